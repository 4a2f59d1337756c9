//! Whose turn it is: a commit waits until no other transaction holds a lock on what it writes, and looks whether what it relied on is still so,
//! outside the commit lock as far as that is possible.

use super::batch::WriteBatch;
use super::request::{Commit, Guard};
use super::state::CommitState;
use crate::engine::DbInner;
use crate::family::Family;
use crate::sync::{MutexGuard, spin_loop};
use crate::txn::bounds::shown;
use crate::txn::locks::{LockMode, Owners, Wait};
use crate::txn::validate::{Round, Verdict};
use crate::txn::{Transactions, TxnId};
use kingtide_base::events::Event;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, rare};
use std::ops::Bound;
use std::time::Duration;

/// What may be done under the commit lock.
enum Admission {
    Go,
    /// What is to be validated needs a look into tables.
    LookOutside,
    /// Another transaction, or an ingest, holds a lock on this operation's key or range.
    Wait(usize, TxnId),
}

/// Rounds of validation outside the commit lock before the rest is done under it, tables and all.
const ROUNDS_OUTSIDE: u32 = 3;
/// Attempts of a commit that must not wait to take the commit lock.
const TRIES: usize = 128;
/// After so long a commit that waits for an ingest looks again whom it waits for.
const SLICE_FOR_INGEST: Duration = Duration::from_secs(1);

impl DbInner {
    /// Takes the commit lock when the batch may be committed.
    pub(super) fn take_turn(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<MutexGuard<'_, CommitState>> {
        let Commit { options, guard, .. } = how;
        let mut round = Round { checked: 0, tables: false };
        let mut rounds = 0;
        let mut waiting_since = None;
        loop {
            if let Guard::Checked(v) = guard
                && (rounds > 0 || v.is_long(batch) || self.may_conflict(v, batch))
            {
                round.checked = self.validate_outside(v, batch, round.checked)?;
            }
            let c = match how.refusal {
                None => self.commit.lock(),
                Some(_) => self.try_lock_commits(how)?,
            };
            match self.admission(&c, batch, guard, round)? {
                Admission::Go => return Ok(c),
                Admission::LookOutside => {
                    rounds += 1;
                    round.tables = rounds >= ROUNDS_OUTSIDE;
                }
                Admission::Wait(op, holder) => {
                    drop(c);
                    if let Some(e) = how.refuse() {
                        return Err(e);
                    }
                    if Transactions::is_ingest(holder) && !options.no_wait {
                        self.wait_for_ingest(batch, op)?;
                        continue;
                    }
                    let since = *waiting_since.get_or_insert_with(|| self.clock.monotonic_ns());
                    self.wait_for_locks(batch, op, (!options.no_wait).then_some(since))?;
                }
            }
        }
    }

    /// The commit lock for a commit that must not wait for another thread. Most commits hold it for about a microsecond, so
    /// that giving up at once would send every second commit of two threads elsewhere.
    #[cold]
    fn try_lock_commits(&self, how: &Commit<'_>) -> Result<MutexGuard<'_, CommitState>> {
        for _ in 0..TRIES {
            if let Some(c) = self.commit.try_lock() {
                return Ok(c);
            }
            spin_loop();
        }
        match how.refuse() {
            Some(e) => Err(e),
            None => Ok(self.commit.lock()),
        }
    }

    /// Whether the batch may be committed now. Called under the commit lock.
    #[inline]
    fn admission(&self, c: &CommitState, batch: &WriteBatch, guard: &Guard<'_>, round: Round) -> Result<Admission> {
        self.check_open()?;
        c.check_whole()?;
        // A transaction that was prepared commits in families too whose drop failed: the next open may find them undropped, and
        // must not find a part of it.
        let resolves = batch.control().is_some_and(|c| c.resolves);
        for f in batch.families() {
            if resolves { f.check_not_gone()? } else { f.check_alive()? }
        }
        if matches!(guard, Guard::Locked) {
            return Ok(Admission::Go);
        }
        if self.txns.locks.any_held()
            && let Some((op, holder)) = self.first_locked(batch, guard)
        {
            return match guard {
                // A transaction waits for an ingest too: whether the two conflict is for the validation to say.
                _ if Transactions::is_ingest(holder) => Ok(Admission::Wait(op, holder)),
                Guard::Plain => Ok(Admission::Wait(op, holder)),
                _ => Err(self.locked_conflict(batch, op, holder)),
            };
        }
        match guard {
            Guard::Checked(v) => match self.validate_locked(v, batch, &c.recent, round)? {
                Verdict::Pass => Ok(Admission::Go),
                Verdict::LookOutside => Ok(Admission::LookOutside),
            },
            _ => Ok(Admission::Go),
        }
    }

    /// The first operation on something that another transaction has locked, and which.
    #[cold]
    fn first_locked(&self, batch: &WriteBatch, guard: &Guard<'_>) -> Option<(usize, TxnId)> {
        let own = match guard {
            Guard::Checked(v) => v.txn,
            _ => 0,
        };
        let locks = &self.txns.locks;
        batch.ops().iter().enumerate().find_map(|(i, op)| {
            let family = &batch.families()[op.family as usize];
            let (id, order, key) = (family.id(), family.order(), batch.key_of(op));
            let holder = if op.kind == Kind::RangeDelete as u8 {
                let range = (Bound::Included(key), Bound::Excluded(batch.value_of(op)));
                locks.range_holder(own, id, order, range, LockMode::Exclusive)
            } else {
                locks.holder(own, id, order, key, LockMode::Exclusive)
            };
            holder.map(|h| (i, h))
        })
    }

    #[cold]
    fn locked_conflict(&self, batch: &WriteBatch, op: usize, holder: TxnId) -> Error {
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
    fn wait_for_locks(&self, batch: &WriteBatch, op: usize, since: Option<u64>) -> Result<()> {
        let timeout = self.options.read().lock_timeout;
        let waited = |since| Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since));
        self.wait_free(batch, op, since.map_or(Wait::No, |since| Wait::Until(timeout.saturating_sub(waited(since)))))
    }

    /// Waits for an ingest that installs files with an operation's key between their smallest and largest. It holds its locks no
    /// longer than its own work takes, so that the timeout, which is about what others decide, does not count.
    #[cold]
    fn wait_for_ingest(&self, batch: &WriteBatch, op: usize) -> Result<()> {
        rare!("commit-waited-for-ingest");
        match self.wait_free(batch, op, Wait::Until(SLICE_FOR_INGEST)) {
            // By now another may have the lock: the caller looks who.
            Err(e) if e.kind() == ErrorKind::LockTimeout => self.check_open(),
            waited => waited,
        }
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

/// Has commits list what they write until it is dropped, which is in any case: a family's key order may panic.
pub(super) struct ValidationScope<'a>(&'a DbInner);

impl<'a> ValidationScope<'a> {
    pub fn begin(db: &'a DbInner) -> ValidationScope<'a> {
        let mut c = db.commit.lock();
        let last = c.last_seq;
        c.recent.watch(last);
        ValidationScope(db)
    }
}

impl Drop for ValidationScope<'_> {
    fn drop(&mut self) {
        self.0.commit.lock().recent.unwatch();
    }
}
