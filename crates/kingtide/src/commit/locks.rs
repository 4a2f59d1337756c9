//! The locks of transactions, as commits meet them: which transaction holds one on what a batch writes, and waiting
//! until no other does.

use super::batch::WriteBatch;
use super::pipeline::Guard;
use crate::engine::DbInner;
use crate::family::Family;
use crate::txn::Transactions;
use crate::txn::bounds::shown;
use crate::txn::state::SLICE_FOR_INGEST;
use kingtide_base::events::Event;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, TxnId, rare};
#[cfg(feature = "tokio")]
use kingtide_locks::FreeWait;
use kingtide_locks::{LockMode, Owners, Wait, Woken};
use std::ops::Bound;
use std::time::Duration;

impl DbInner {
    /// The first operation on something that another transaction has locked, and which.
    #[cold]
    pub(super) fn first_locked(&self, batch: &WriteBatch, guard: &Guard<'_>) -> Option<(usize, TxnId)> {
        let own = match guard {
            Guard::Checked(v) => v.txn,
            _ => 0,
        };
        (0..batch.ops().len()).find_map(|op| Some((op, self.lock_holder(batch, op, own)?)))
    }

    /// The transaction, other than `own`, that has locked what an operation writes.
    pub(super) fn lock_holder(&self, batch: &WriteBatch, op: usize, own: TxnId) -> Option<TxnId> {
        let op = &batch.ops()[op];
        let family = &batch.families()[op.family as usize];
        let (id, order, key, locks) = (family.id(), family.order(), batch.key_of(op), &self.txns.locks);
        if op.kind == Kind::RangeDelete as u8 {
            let range = (Bound::Included(key), Bound::Excluded(batch.value_of(op)));
            locks.range_holder(own, id, order, range, LockMode::Exclusive)
        } else {
            locks.holder(own, id, order, key, LockMode::Exclusive)
        }
    }

    /// Whether an ingest installs files with an operation's key between their smallest and largest.
    pub(super) fn is_locked_by_ingest(&self, batch: &WriteBatch, op: usize) -> bool {
        self.lock_holder(batch, op, 0).is_some_and(Transactions::is_ingest)
    }

    /// Waits for it. An ingest holds its locks no longer than its own work takes, so the time does not count towards the timeout, which
    /// is for locks of transactions: `since`, when the timeout began, is put off.
    #[cold]
    pub(super) fn wait_for_ingest(&self, batch: &WriteBatch, op: usize, since: &mut Option<u64>) -> Result<()> {
        rare!("commit-waited-for-ingest");
        let begun = self.clock.monotonic_ns();
        let waited = self.wait_free(batch, op, Wait::Slice(SLICE_FOR_INGEST));
        self.put_off(since, begun);
        match waited {
            // By now another transaction may have the lock: the caller checks which.
            Err(e) if e.kind() == ErrorKind::LockTimeout => self.check_open(),
            waited => waited,
        }
    }

    /// Moves the beginning of a timeout, if it has begun, forward by the time since `begun`.
    pub(super) fn put_off(&self, since: &mut Option<u64>, begun: u64) {
        let waited = self.clock.monotonic_ns().saturating_sub(begun);
        *since = since.map(|since| since.saturating_add(waited));
    }

    /// Leaves it to the thread that keeps the time to wake tasks, because the caller holds a lock that they may want. Once the caller has
    /// released that lock, it calls [`DbInner::wake_tasks`] itself: the thread may be busy, or there may be none.
    #[cfg(feature = "tokio")]
    pub(crate) fn have_tasks_woken(&self, woken: Woken) {
        self.waiters.wake_later(woken);
        self.jobs.wake_log();
    }

    /// Wakes the tasks that were passed to [`DbInner::have_tasks_woken`] and have not been woken yet.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake_tasks(&self) {
        drop(self.waiters.take_woken());
    }

    /// Without the feature `tokio`, there are no tasks.
    #[cfg(not(feature = "tokio"))]
    pub(crate) fn have_tasks_woken(&self, _: Woken) {}

    #[cfg(not(feature = "tokio"))]
    pub(crate) fn wake_tasks(&self) {}

    #[cold]
    pub(super) fn locked_conflict(&self, batch: &WriteBatch, op: usize, holder: TxnId) -> Error {
        self.stats.add(Stat::TxnConflicts, 1);
        let op = &batch.ops()[op];
        self.stats.events.tell_detail(|| Event::WriteConflict(batch.families()[op.family as usize].name()));
        Error::new(
            ErrorKind::Conflict,
            format!(
                "key '{}' of column family '{}' is locked by {}",
                shown(batch.key_of(op)),
                batch.families()[op.family as usize].name(),
                self.txns.describe(holder)
            ),
        )
    }

    /// Waits until no transaction holds a lock on what an operation writes. The timeout counts from `since`, for all operations of
    /// the batch together; without it, does not wait.
    #[cold]
    pub(super) fn wait_until_unlocked(&self, batch: &WriteBatch, op: usize, since: Option<u64>) -> Result<()> {
        let timeout = self.options.read().lock_timeout;
        let waited = |since| Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since));
        self.wait_free(batch, op, since.map_or(Wait::No, |since| Wait::Until(timeout.saturating_sub(waited(since)))))
    }

    /// How long a commit of a task waits for a lock. `None`: it is an ingest's, whose own work the timeout is not about. `since` is when the
    /// commit first met the lock of another, from where the timeout counts.
    #[cfg(feature = "tokio")]
    pub(super) fn longest_wait(&self, holder: TxnId, since: &mut Option<u64>) -> Option<Duration> {
        if Transactions::is_ingest(holder) {
            return None;
        }
        let now = self.clock.monotonic_ns();
        let waited = Duration::from_nanos(now.saturating_sub(*since.get_or_insert(now)));
        Some(self.options.read().lock_timeout.saturating_sub(waited))
    }

    /// Waits as [`DbInner::wait_until_unlocked`] does, without a thread. Without a timeout it waits for `holder` alone.
    #[cfg(feature = "tokio")]
    pub(super) fn free_wait(
        &self,
        batch: &WriteBatch,
        op: usize,
        holder: TxnId,
        timeout: Option<Duration>,
    ) -> FreeWait<'_> {
        let op = &batch.ops()[op];
        let family = &batch.families()[op.family as usize];
        let (of, key, locks) = ((family.id(), family.order()), batch.key_of(op), &self.txns.locks);
        let wait = if op.kind == Kind::RangeDelete as u8 {
            let range = (Bound::Included(key), Bound::Excluded(batch.value_of(op)));
            locks.range_free_wait(&self.txns, of, range, timeout)
        } else {
            locks.free_wait(&self.txns, of, key, timeout)
        };
        if timeout.is_none() { wait.only_for(holder) } else { wait }
    }

    fn wait_free(&self, batch: &WriteBatch, op: usize, wait: Wait) -> Result<()> {
        let op = &batch.ops()[op];
        let family = &batch.families()[op.family as usize];
        let (id, order, key) = (family.id(), family.order(), batch.key_of(op));
        let locks = &self.txns.locks;
        if op.kind == Kind::RangeDelete as u8 {
            let range = (Bound::Included(key), Bound::Excluded(batch.value_of(op)));
            locks.wait_range_free(&self.txns, id, order, range, wait)
        } else {
            locks.wait_free(&self.txns, id, order, key, wait)
        }
    }

    /// Waits until no transaction holds a lock on a key, and adds the time to `waited`, which the option `lock_timeout_ms` limits.
    #[cold]
    pub(crate) fn wait_for_lock(&self, family: &Family, key: &[u8], waited: &mut Duration) -> Result<()> {
        let (since, timeout) = (self.clock.monotonic_ns(), self.options.read().lock_timeout);
        let wait = Wait::Until(timeout.saturating_sub(*waited));
        let free = self.txns.locks.wait_free(&self.txns, family.id(), family.order(), key, wait);
        *waited += Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since));
        free
    }
}
