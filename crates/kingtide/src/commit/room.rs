//! Room for a commit: in the memory of all memtables, which flow control shares out, and in those that it goes to.

use super::batch::WriteBatch;
use super::stall;
use super::state::CommitState;
use crate::engine::DbInner;
use crate::family::Family;
use crate::memtable::no_room;
use crate::sync::atomic::Ordering;
use kingtide_base::events::Event;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_mem::NoRoom;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a flush before the caller gets an error that says that flushes do not keep up.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for a compaction that gives dead space of value logs back.
const DEAD_SPACE_WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Batches up to this size need not be measured family by family.
const SMALL_BATCH: usize = 64 << 10;

impl DbInner {
    /// Paces the writer, or holds it while memory, or the room for values without a table, is used up.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64, no_wait: bool) -> Result<()> {
        if no_wait && self.stall.would_wait(bytes) {
            self.stats.add(Stat::BusyRefusals, 1);
            return Err(Error::new(
                ErrorKind::Busy,
                "writers are being slowed because flush or compaction lags behind; try again shortly",
            ));
        }
        match self.stall.admit(bytes) {
            stall::Verdict::Go if self.stall.dead_space_full() => {
                self.wait_for_space();
                Ok(())
            }
            stall::Verdict::Go => Ok(()),
            stall::Verdict::Full => {
                let timer = perf::begin_wait();
                let waited = self.wait_for_flush();
                timer.end(Stage::AdmissionNs);
                waited
            }
        }
    }

    /// Holds the writer while dead space of value logs is past its cap by all that it may be. Where compactions cannot help,
    /// because they fail or there is none to run, the writer goes on: the cap is not worth a write.
    #[cold]
    fn wait_for_space(self: &Arc<Self>) {
        rare!("writer-held-for-dead-space");
        let (start, timer) = (self.clock.monotonic_ns(), perf::begin_wait());
        self.stats.events.tell(|| Event::StallBegun(stall::stall_reason(Stat::StallDebtMicros)));
        let waited = || self.clock.monotonic_ns().saturating_sub(start);
        while self.stall.dead_space_full()
            && waited() < DEAD_SPACE_WAIT_LIMIT.as_nanos() as u64
            && !self.closed.load(Ordering::Acquire)
            && self.background_error().is_none()
        {
            if self.jobs.is_manual() {
                if !self.jobs.help() {
                    break;
                }
            } else {
                self.jobs.wait_for_progress(Duration::from_millis(1));
            }
        }
        self.stall.record(Stat::StallDebtMicros, waited(), true);
        timer.end(Stage::AdmissionNs);
    }

    #[cold]
    fn wait_for_flush(self: &Arc<Self>) -> Result<()> {
        let Some(reason) = self.stall.full() else { return Ok(()) };
        self.stats.events.tell(|| Event::StallBegun(stall::stall_reason(reason)));
        let start = self.clock.monotonic_ns();
        // A failure from before may be over: only one that happens now is the caller's. Merges may fail for their own
        // reasons, and memory is freed nevertheless.
        let failures = || self.writers_failures.load(Ordering::Relaxed);
        let failures_before = failures();
        let result = loop {
            self.check_writable()?;
            if self.stall.full().is_none() {
                break Ok(());
            }
            if !self.has_immutable_memtables() {
                // Many families with partly filled memtables: freeze the largest, so that there is something to flush.
                let mut c = self.commit.lock();
                let largest = c.families.iter().max_by_key(|f| f.view.load().active.memory()).cloned();
                match largest.filter(|f| !f.view.load().active.is_empty()) {
                    Some(f) => {
                        rare!("memtable-sealed-for-memory");
                        self.seal_memtable(&mut c, &f);
                    }
                    None => break Ok(()), // nothing to flush: what is held belongs to readers
                }
            }
            if failures() > failures_before
                && let Some(e) = self.background_error()
            {
                break Err(e.context("no memory for writes until a flush succeeds"));
            }
            let waited = self.clock.monotonic_ns().saturating_sub(start);
            if waited > MEMORY_WAIT_LIMIT.as_nanos() as u64 {
                break Err(Error::new(ErrorKind::Busy, "no flush completed within 60 s; the disk may be stuck"));
            }
            if !self.jobs.help() {
                self.jobs.wait_for_progress(Duration::from_millis(1));
            }
        };
        self.stall.record(reason, self.clock.monotonic_ns().saturating_sub(start), true);
        result
    }

    /// Makes room for the batch in its families' memtables. One that cannot name as much memory is sealed, whatever its
    /// size. Called under the commit lock.
    #[inline]
    pub(super) fn reserve_memtables(&self, c: &mut CommitState, batch: &WriteBatch) -> Result<()> {
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
                rare!("memtable-sealed-for-pieces");
                self.seal_memtable(c, family);
                reserved = family.view.load().active.reserve(bytes, ops);
            }
            reserved.map_err(|e| no_room(e, bytes, ops))?;
        }
        Ok(())
    }
}
