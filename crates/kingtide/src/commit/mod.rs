//! The write path. A commit is
//!
//! 1. prepared by its own thread: the batch is already serialized; it is checksummed and its fill order sorted;
//! 2. admitted by flow control ([`stall`]), which may slow it or, on request, refuse it with `Busy`;
//! 3. under the commit lock: given sequence numbers, appended to the log, inserted into the memtables, and published by
//!    one release store; a memtable that became full is frozen here, so that no entry can race a rotation;
//! 4. outside the lock: made durable if it asked for `Power`, together with whoever else waits.
//!
//! Lock order: shape, commit, a family's view lock. Nothing waits for input or output under the commit lock but the log
//! append itself, which is a copy into preallocated, mapped memory.

pub mod batch;
pub(crate) mod changed;
pub(crate) mod control;
pub(crate) mod hook;
pub(crate) mod stall;

use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::memtable::FamilyMemtable;
use crate::options::WriteOptions;
use crate::sync::atomic::Ordering;
use crate::version::Edit;
use crate::wal::{Lsn, WalRecord, WalWriter};
use batch::WriteBatch;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag};
use std::sync::Arc;
use std::time::Duration;

/// What the commit lock protects.
pub(crate) struct CommitState {
    /// The log's appending end.
    pub wal: WalWriter,
    /// Last sequence number given out.
    pub last_seq: SeqNo,
    /// Families that can be written to.
    pub families: Vec<Arc<Family>>,
}

/// Longest wait for memory before the caller is told that flushes do not keep up.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(60);

impl DbInner {
    /// Commits a batch. Returns the last sequence number it was given; 0 for an empty batch.
    pub(crate) fn commit(self: &Arc<Self>, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        if batch.sequences() == 0 {
            self.check_open()?;
            if options.durability.unwrap_or_else(|| self.durability()) == Durability::Power {
                self.wal.sync_all()?; // what was committed before is what the caller means
            }
            return Ok(0);
        }
        if !batch.families().iter().all(|f| f.belongs_to(self)) {
            return Err(Error::invalid("the batch holds operations on a column family of another database"));
        }
        let durability = options.durability.unwrap_or_else(|| self.durability());
        batch.prepare();
        let record = WalRecord::new(batch.payload());
        self.admit(batch.bytes() as u64, options.no_wait)?;
        // What a control operation says is nowhere but in the log.
        let unlogged = durability == Durability::None && batch.control().is_none();
        if !unlogged {
            self.begin_log()?;
        }

        let (last, lsn, hooked) = {
            let mut c = self.commit.lock();
            self.check_open()?;
            for f in batch.families() {
                f.check_alive()?;
            }
            let base = c.last_seq + 1;
            let last = c.last_seq + batch.sequences() as u64;
            if last > kingtide_base::key::MAX_SEQ {
                return Err(Error::invalid("sequence numbers are used up"));
            }
            // Families are flushed one by one: only the log keeps a batch over several of them whole.
            let lsn = match unlogged && batch.families().len() < 2 {
                true => None,
                false => Some(c.wal.append(base, batch.sequences() as u32, record)?),
            };
            c.last_seq = last;
            fill_memtables(batch, base);
            if let (Some(control), Some(lsn)) = (batch.control(), lsn) {
                self.prepared.logged(control, last, lsn, self.wal.synced());
            }
            self.snapshots.publish(last);
            let hooked = self.hooks.enqueue(batch, last);
            self.rotate_full(&mut c, batch.families());
            (last, lsn, hooked)
        };
        if hooked {
            self.hooks.deliver();
        }
        self.count(batch);
        if let (Durability::Power, Some(lsn)) = (durability, lsn) {
            self.sync_wal(lsn)?;
        }
        Ok(last)
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
        self.stats.add(Stat::WalSyncedCommits, 1);
        self.wal.sync_to(lsn)
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
                    None => self.rotate(c, &f),
                    Some(_) if self.prepared.is_overdue(self.wal.appended(), max) => self.jobs.wake(),
                    Some(_) => {}
                }
            }
        }
    }

    /// Freezes a family's active memtable and puts an empty one in its place. Called under the commit lock, so the
    /// frozen one holds everything of its family up to `last_seq` and nothing after it.
    pub(crate) fn rotate(&self, c: &mut CommitState, family: &Arc<Family>) {
        if family.view.load().active.is_empty() {
            return;
        }
        let fresh = FamilyMemtable::new(family.order().clone(), &self.arenas, c.last_seq + 1);
        family.update_view(|v| {
            let frozen = std::iter::once(&v.active).chain(&v.frozen).cloned().collect();
            View::new(v.order.clone(), fresh, frozen, v.version.clone(), &self.tables, Some(v))
        });
        self.stats.add(Stat::Rotations, 1);
        self.jobs.wake();
    }

    /// Paces the writer, or holds it while memory is used up.
    fn admit(self: &Arc<Self>, bytes: u64, no_wait: bool) -> Result<()> {
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
            self.check_open()?;
            if self.memory.used() < self.memory.limit() {
                break Ok(());
            }
            if !self.any_frozen() {
                // Many families with partly filled memtables: freeze the largest, so that there is something to flush.
                let mut c = self.commit.lock();
                let largest = c.families.iter().max_by_key(|f| f.view.load().active.memory()).cloned();
                match largest.filter(|f| !f.view.load().active.is_empty()) {
                    Some(f) => self.rotate(&mut c, &f),
                    None => break Ok(()), // nothing to flush: what is held belongs to readers
                }
            }
            if self.stats.get(Stat::BackgroundErrors) > failures
                && let Some(e) = self.background_error()
            {
                break Err(e.context("no memory for writes until a flush succeeds"));
            }
            let waited = self.clock.monotonic_ns() - start;
            if waited > MEMORY_WAIT_LIMIT.as_nanos() as u64 {
                break Err(Error::new(ErrorKind::Busy, "no flush ended within a minute; the disk may be stuck"));
            }
            if !self.jobs.help(self) {
                self.jobs.wait_for_progress(Duration::from_millis(1));
            }
        };
        self.stall.record(Stat::StallMemoryMicros, self.clock.monotonic_ns() - start);
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

/// Inserts a batch's operations, operation `i` with sequence `base + i`, family by family.
fn fill_memtables(batch: &WriteBatch, base: SeqNo) {
    let ops = batch.ops();
    for of_family in batch.fill_order().chunk_by(|a, b| ops[*a as usize].family == ops[*b as usize].family) {
        let family = &batch.families()[ops[of_family[0] as usize].family as usize];
        let view = family.view.load();
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
