//! The write path. A commit is
//!
//! 1. prepared by its own thread: the batch is already serialized; it is checksummed and its fill order sorted;
//! 2. admitted by flow control ([`stall`]), which may slow it or, on request, refuse it with `Busy`;
//! 3. under the commit lock: checked against the locks of others and, when it is an optimistic transaction's, against what
//!    was committed since ([`crate::txn`]); given sequence numbers, appended to the log, inserted into the memtables, and published by
//!    one release store; a memtable that became full is frozen here, so that no entry can race a rotation;
//! 4. outside the lock: made durable if it asked for `Power`, together with whoever else waits.
//!
//! Lock order: shape, commit, a family's view lock. Nothing waits for input or output under the commit lock but the log
//! append itself, which is a copy into preallocated, mapped memory.

pub mod batch;
pub(crate) mod hook;
pub(crate) mod stall;
pub(crate) mod state;

use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::memtable::{FamilyMemtable, no_room};
use crate::options::WriteOptions;
use crate::sync::atomic::Ordering;
use crate::txn::TxnId;
use crate::txn::bounds::shown;
use crate::txn::locks::{LockMode, Owners, Wait};
use crate::txn::validate::{Round, Validation, Verdict};
use crate::version::Edit;
use crate::wal::{Lsn, Wal, WalRecord};
use batch::WriteBatch;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag, rare};
use kingtide_mem::NoRoom;
use state::CommitState;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for memory before the caller is told that flushes do not keep up.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(60);

/// What a commit has to mind besides its batch.
pub(crate) enum Guard<'a> {
    /// A write outside any transaction: it waits until nobody holds a lock on what it writes.
    Plain,
    /// An optimistic transaction: what it relied on must be unchanged, and nobody may hold a lock on what it writes.
    Checked(&'a Validation<'a>),
    /// A transaction that holds locks on all that it relies on.
    Locked,
}

/// A commit that is visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    /// The sequence number of its last operation.
    pub last: SeqNo,
    /// Where its log record ends; `None` if it was not logged.
    pub lsn: Option<Lsn>,
    /// A commit hook is to be called: see [`DbInner::tell_hooks`].
    pub hooked: bool,
}

/// What may be done under the commit lock.
enum Admission {
    Go,
    /// What is to be validated needs a look into tables.
    LookOutside,
    /// Somebody holds a lock on this operation's key or range.
    Wait(usize),
}

/// Rounds of validation outside the commit lock before the rest is done under it, tables and all.
const ROUNDS_OUTSIDE: u32 = 3;

impl DbInner {
    /// Commits a batch. Returns the last sequence number it was given; 0 for an empty batch.
    pub(crate) fn commit(self: &Arc<Self>, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        let durability = options.durability.unwrap_or_else(|| self.durability());
        if batch.sequences() == 0 {
            self.check_writable()?;
            if durability == Durability::Power {
                self.wal.sync_all()?; // what was committed before is what the caller means
            }
            return Ok(0);
        }
        let visible = self.commit_visible(batch, options, &Guard::Plain)?;
        self.tell_hooks(visible);
        self.make_durable(visible, durability)?;
        Ok(visible.last)
    }

    /// Waits until a commit survives what its durability says.
    pub(crate) fn make_durable(&self, commit: Visible, durability: Durability) -> Result<()> {
        match (durability, commit.lsn) {
            (Durability::Power, Some(lsn)) if !kingtide_base::planted!("power-commit-not-synced") => self.sync_wal(lsn),
            _ => Ok(()),
        }
    }

    /// Commits a batch that is not empty, up to the point where others see it. When the caller has given up what it holds,
    /// [`DbInner::tell_hooks`] does the rest.
    pub(crate) fn commit_visible(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        options: &WriteOptions,
        guard: &Guard<'_>,
    ) -> Result<Visible> {
        self.check_writable()?;
        self.admit(batch.bytes() as u64, options.no_wait)?;
        self.commit_admitted(batch, options, guard)
    }

    /// As [`DbInner::commit_visible`], without flow control: for who passed it before taking a lock that others must not
    /// wait for.
    pub(crate) fn commit_admitted(
        self: &Arc<Self>,
        batch: &mut WriteBatch,
        options: &WriteOptions,
        guard: &Guard<'_>,
    ) -> Result<Visible> {
        if !batch.families().iter().all(|f| f.belongs_to(&self.stats)) {
            return Err(Error::invalid("the batch holds operations on a column family of another database"));
        }
        self.check_writable()?;
        // What was prepared was taken then, and must be committed whatever happens.
        if !batch.control().is_some_and(|c| c.resolves) {
            self.check_space(batch)?;
        }
        let durability = options.durability.unwrap_or_else(|| self.durability());
        batch.prepare();
        let batch = &*batch;
        let record = WalRecord::new(batch.payload());
        // What a control operation says is nowhere but in the log. Families are flushed one by one: only the log keeps a
        // batch over several of them whole.
        let alone = batch.families().len() < 2 || kingtide_base::planted!("batch-over-families-not-logged");
        let unlogged = durability == Durability::None && batch.control().is_none() && alone;
        if !unlogged {
            self.begin_log()?;
        }
        let watch = matches!(guard, Guard::Checked(v) if !v.ranges.is_empty()).then(|| Watch::begin(self));
        let visible = self.commit_when_admitted(batch, record, unlogged, options, guard)?;
        drop(watch);
        self.count(batch);
        Ok(visible)
    }

    /// Has commit hooks called for a commit, before its call returns. A hook may read and write what it likes, so by now
    /// the commit's thread holds nothing that somebody could wait for.
    #[inline]
    pub(crate) fn tell_hooks(&self, commit: Visible) {
        if commit.hooked {
            self.hooks.deliver();
        }
    }

    fn commit_when_admitted(
        self: &Arc<Self>,
        batch: &WriteBatch,
        record: WalRecord<'_>,
        unlogged: bool,
        options: &WriteOptions,
        guard: &Guard<'_>,
    ) -> Result<Visible> {
        let mut round = Round { checked: 0, tables: false };
        let mut rounds = 0;
        let mut waiting_since = None;
        loop {
            if let Guard::Checked(v) = guard
                && (rounds > 0 || v.is_long(batch) || self.may_conflict(v, batch))
            {
                round.checked = self.validate_outside(v, batch, round.checked)?;
            }
            let mut c = self.commit.lock();
            match self.admission(&c, batch, guard, round)? {
                Admission::Go => return self.apply(&mut c, batch, record, unlogged),
                Admission::LookOutside => {
                    rounds += 1;
                    round.tables = rounds >= ROUNDS_OUTSIDE;
                }
                Admission::Wait(op) => {
                    drop(c);
                    let since = *waiting_since.get_or_insert_with(|| self.clock.monotonic_ns());
                    self.wait_for_locks(batch, op, (!options.no_wait).then_some(since))?;
                }
            }
        }
    }

    /// Whether the batch may be committed now. Called under the commit lock.
    #[inline]
    fn admission(&self, c: &CommitState, batch: &WriteBatch, guard: &Guard<'_>, round: Round) -> Result<Admission> {
        self.check_open()?;
        self.check_whole(c)?;
        for f in batch.families() {
            f.check_alive()?;
        }
        if matches!(guard, Guard::Locked) {
            return Ok(Admission::Go);
        }
        if self.txns.locks.any_held()
            && !kingtide_base::planted!("locks-not-asked")
            && let Some((op, holder)) = self.first_locked(batch, guard)
        {
            return match guard {
                Guard::Plain => Ok(Admission::Wait(op)),
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

    /// Gives the batch its sequence numbers, logs it, inserts it and makes it visible. Called under the commit lock. True:
    /// a hook waits to be told of it.
    fn apply(&self, c: &mut CommitState, batch: &WriteBatch, record: WalRecord<'_>, unlogged: bool) -> Result<Visible> {
        let base = c.last_seq + 1;
        let last = c.last_seq + batch.sequences() as u64;
        if last > kingtide_base::key::MAX_SEQ {
            return Err(Error::invalid("sequence numbers are used up"));
        }
        self.reserve_memtables(c, batch)?; // before the log has it, after which nothing may fail
        let lsn = match unlogged {
            true => None,
            false => Some(c.wal.append(base, batch.sequences() as u32, record)?),
        };
        c.last_seq = last;
        if kingtide_base::planted!("published-early") {
            self.snapshots.publish(last);
        }
        let filling = Filling { state: c, wal: &self.wal };
        fill_memtables(batch, base);
        filling.done();
        if let (Some(control), Some(lsn)) = (batch.control(), lsn) {
            self.prepared.logged(control, last, lsn, self.wal.synced());
        }
        self.note_writes(batch, base);
        c.recent.note(batch, base);
        self.snapshots.publish(last);
        let hooked = self.hooks.enqueue(batch, last);
        self.rotate_full(c, batch.families());
        Ok(Visible { last, lsn, hooked })
    }

    /// Makes room for the batch in its families' memtables. One that cannot name as much memory is sealed, whatever its
    /// size. Called under the commit lock.
    #[inline]
    fn reserve_memtables(&self, c: &mut CommitState, batch: &WriteBatch) -> Result<()> {
        // All of a small batch may go to each family.
        let (bytes, ops) = (batch.bytes(), batch.len());
        let fits = |f: &Arc<Family>| f.view.load().active.reserve(bytes, ops).is_ok();
        if bytes <= SMALL_BATCH && batch.families().iter().all(fits) { Ok(()) } else { self.reserve_each(c, batch) }
    }

    #[cold]
    fn reserve_each(&self, c: &mut CommitState, batch: &WriteBatch) -> Result<()> {
        for (i, family) in batch.families().iter().enumerate() {
            let (mut bytes, mut ops) = (0, 0);
            for op in batch.ops().iter().filter(|op| op.family as usize == i) {
                bytes += batch.key_of(op).len() + batch.value_of(op).len();
                ops += 1;
            }
            let mut reserved = family.view.load().active.reserve(bytes, ops);
            if reserved == Err(NoRoom::Full) {
                self.rotate(c, family);
                reserved = family.view.load().active.reserve(bytes, ops);
            }
            reserved.map_err(|e| no_room(e, bytes, ops))?;
        }
        Ok(())
    }

    /// An error once a panic left a part of a batch in memtables.
    #[inline]
    pub(crate) fn check_whole(&self, c: &CommitState) -> Result<()> {
        match c.half_filled {
            false => Ok(()),
            true => Err(self.wal.poison().unwrap_or_else(half_filled)),
        }
    }

    /// Tells the conflict filter what is committed.
    #[inline]
    fn note_writes(&self, batch: &WriteBatch, base: SeqNo) {
        let filter = self.conflicts();
        for (i, op) in batch.ops().iter().enumerate() {
            if op.kind == Kind::RangeDelete as u8 {
                filter.note_range(base + i as u64);
            } else {
                filter.note(op.slot, base + i as u64);
            }
        }
    }

    /// The first operation on something that somebody else has locked, and who.
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

    /// Waits until nobody holds a lock on what an operation writes. The timeout counts from `since`, for all operations of
    /// the batch together; without it, does not wait.
    #[cold]
    fn wait_for_locks(&self, batch: &WriteBatch, op: usize, since: Option<u64>) -> Result<()> {
        let op = &batch.ops()[op];
        let family = &batch.families()[op.family as usize];
        let (id, order, key) = (family.id(), family.order(), batch.key_of(op));
        let timeout = Duration::from_millis(self.options.read().lock_timeout_ms);
        let waited = |since| Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since));
        let wait = since.map_or(Wait::No, |since| Wait::Until(timeout.saturating_sub(waited(since))));
        let locks = &self.txns.locks;
        if op.kind == Kind::RangeDelete as u8 {
            let range = (Bound::Included(key), Bound::Excluded(batch.value_of(op)));
            locks.wait_range_free(&self.txns, id, order, range, wait)
        } else {
            locks.wait_free(&self.txns, id, order, key, wait)
        }
    }

    /// Before the first commit: begins a log segment and notes it in the manifest, so that recovery knows that there
    /// must be one. Once an open, not at opening, which must work on a full disk.
    #[inline]
    pub(crate) fn begin_log(&self) -> Result<()> {
        if self.log_begun.load(Ordering::Acquire) { Ok(()) } else { self.begin_log_now() }
    }

    #[cold]
    fn begin_log_now(&self) -> Result<()> {
        let mut shape = self.shape.lock();
        if self.log_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_open()?;
        let segment = self.commit.lock().wal.begin()?;
        let boot_id = self.fs.boot_id();
        shape.write(&[Edit::LogBegun { segment, boot_id }], &self.next_file_id)?;
        shape.log_begun = Some((segment, boot_id));
        self.log_begun.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until everything up to `lsn` survives a power cut.
    pub(crate) fn sync_wal(&self, lsn: Lsn) -> Result<()> {
        self.wal.sync_to(lsn) // which counts it
    }

    /// Freezes the memtables that are full. Called under the commit lock.
    fn rotate_full(&self, c: &mut CommitState, touched: &[Arc<Family>]) {
        for f in touched {
            let limit = f.options().memtable_size;
            if f.view.load().active.memory() > limit {
                self.rotate(c, f);
            }
        }
        let max = self.max_wal_size.load(Ordering::Relaxed);
        if self.wal.needed_size() > max {
            // The family that pins the oldest segment is flushed, so that the log stays bounded.
            let oldest =
                c.families.iter().filter_map(|f| f.oldest_unflushed().map(|s| (s, f.clone()))).min_by_key(|x| x.0);
            if let Some((seq, f)) = oldest
                && f.view.load().frozen.is_empty()
            {
                // A flush frees nothing while a prepared transaction's record is the older one.
                match self.prepared.oldest().filter(|prepared| *prepared < seq) {
                    None => {
                        rare!("memtable-sealed-for-log");
                        self.rotate(c, &f);
                    }
                    Some(_) if self.prepared.is_overdue(self.wal.appended(), max) => self.jobs.wake(),
                    Some(_) => {}
                }
            }
        }
    }

    /// Freezes a family's active memtable and puts an empty one in its place. Called under the commit lock, so the
    /// frozen one holds everything of its family up to `last_seq` and nothing after it.
    pub(crate) fn rotate(&self, c: &mut CommitState, family: &Arc<Family>) {
        self.rotate_after(c.last_seq, family);
    }

    /// The same, if `last` is the last sequence number given out.
    pub(crate) fn rotate_after(&self, last: SeqNo, family: &Arc<Family>) {
        if family.view.load().active.is_empty() {
            return;
        }
        let fresh = FamilyMemtable::new(family.order().clone(), &self.arenas, last + 1);
        family.update_view(|v| {
            let mut frozen: Vec<_> = std::iter::once(&v.active).chain(&v.frozen).cloned().collect();
            if kingtide_base::planted!("rotated-out-of-order") {
                frozen.reverse();
            }
            View::new(v.order.clone(), fresh, frozen, v.version.clone(), &self.tables, Some(v))
        });
        self.stats.add(Stat::Rotations, 1);
        self.jobs.wake();
    }

    /// Paces the writer, or holds it while memory is used up.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64, no_wait: bool) -> Result<()> {
        if no_wait && self.stall.would_wait(bytes) {
            self.stats.add(Stat::BusyRefusals, 1);
            return Err(Error::new(
                ErrorKind::Busy,
                "writers are being slowed because flush or compaction lags behind; try again shortly",
            ));
        }
        match self.stall.admit(bytes) {
            stall::Verdict::Go => Ok(()),
            stall::Verdict::MemoryFull => self.wait_for_memory(),
        }
    }

    #[cold]
    fn wait_for_memory(self: &Arc<Self>) -> Result<()> {
        let start = self.clock.monotonic_ns();
        // A failure from before may be over: only one that happens now is the caller's.
        let failures = self.stats.get(Stat::BackgroundErrors);
        let result = loop {
            self.check_writable()?;
            if self.memory.used() < self.memory.limit() {
                break Ok(());
            }
            if !self.any_frozen() {
                // Many families with partly filled memtables: freeze the largest, so that there is something to flush.
                let mut c = self.commit.lock();
                let largest = c.families.iter().max_by_key(|f| f.view.load().active.memory()).cloned();
                match largest.filter(|f| !f.view.load().active.is_empty()) {
                    Some(f) => {
                        rare!("memtable-sealed-for-memory");
                        self.rotate(&mut c, &f);
                    }
                    None => break Ok(()), // nothing to flush: what is held belongs to readers
                }
            }
            if self.stats.get(Stat::BackgroundErrors) > failures
                && let Some(e) = self.background_error()
            {
                break Err(e.context("no memory for writes until a flush succeeds"));
            }
            let waited = self.clock.monotonic_ns().saturating_sub(start);
            if waited > MEMORY_WAIT_LIMIT.as_nanos() as u64 {
                break Err(Error::new(ErrorKind::Busy, "no flush ended within a minute; the disk may be stuck"));
            }
            if !self.jobs.help() {
                self.jobs.wait_for_progress(Duration::from_millis(1));
            }
        };
        self.stall.record(Stat::StallMemoryMicros, self.clock.monotonic_ns().saturating_sub(start));
        result
    }

    fn count(&self, batch: &WriteBatch) {
        if batch.is_empty() {
            return; // a record about a prepared transaction
        }
        let (mut puts, mut deletes, mut ranges) = (0, 0, 0);
        for op in batch.ops() {
            match Tag(op.kind as u64).kind() {
                Some(Kind::Put | Kind::PutPointer) => puts += 1,
                Some(Kind::RangeDelete) => ranges += 1,
                _ => deletes += 1,
            }
        }
        self.stats.add(Stat::Commits, 1);
        self.stats.add(Stat::BytesCommitted, batch.raw_bytes() as u64);
        for (stat, n) in [(Stat::Puts, puts), (Stat::Deletes, deletes), (Stat::RangeDeletes, ranges)] {
            if n > 0 {
                self.stats.add(stat, n);
            }
        }
    }
}

/// Batches up to this size need not be measured family by family.
const SMALL_BATCH: usize = 64 << 10;

/// Stops writes if filling the memtables panics, as a family's key order may: what is in memory is a part of a batch then,
/// which the next commit would publish and a flush would make durable. Reads never see it. The log holds all of the batch
/// or, if it was not to be logged, nothing, so the next open puts things right.
struct Filling<'a> {
    state: &'a mut CommitState,
    wal: &'a Wal,
}

impl Filling<'_> {
    #[inline]
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Filling<'_> {
    #[cold]
    fn drop(&mut self) {
        self.state.half_filled = true;
        self.wal.stop(half_filled());
    }
}

#[cold]
fn half_filled() -> Error {
    let text = "a panic, of a key order perhaps, broke off a commit; whether it happened is open until the next open";
    Error::new(ErrorKind::Poisoned, text)
}

/// Has commits list what they write until it is dropped, which is in any case: a family's key order may panic.
struct Watch<'a>(&'a DbInner);

impl<'a> Watch<'a> {
    fn begin(db: &'a DbInner) -> Watch<'a> {
        let mut c = db.commit.lock();
        let last = c.last_seq;
        c.recent.watch(last);
        Watch(db)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.commit.lock().recent.unwatch();
    }
}

/// Inserts a batch's operations, operation `i` with sequence `base + i`, family by family.
fn fill_memtables(batch: &WriteBatch, base: SeqNo) {
    let ops = batch.ops();
    for of_family in batch.fill_order().chunk_by(|a, b| ops[*a as usize].family == ops[*b as usize].family) {
        let family = &batch.families()[ops[of_family[0] as usize].family as usize];
        let view = family.view.load();
        view.active.note_entries_from(base);
        let mut ranges = false;
        let points = of_family.iter().filter_map(|i| {
            let op = &ops[*i as usize];
            if op.kind == Kind::RangeDelete as u8 {
                ranges = true;
                return None;
            }
            Some((batch.key_of(op), Tag((base + *i as u64) << 8 | op.kind as u64), batch.value_of(op)))
        });
        view.active.writer().insert_batch(points);
        if ranges {
            for i in of_family.iter().filter(|i| ops[**i as usize].kind == Kind::RangeDelete as u8) {
                let op = &ops[*i as usize];
                view.active.insert_range(batch.key_of(op), batch.value_of(op), base + *i as u64);
            }
        }
    }
}
