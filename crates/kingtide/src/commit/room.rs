//! Room for commits: waiting for it where memory or dead space is used up, and sealing memtables: a full one, one that keeps
//! the log long, or one that a caller wants flushed.

use super::batch::WriteBatch;
use super::dead_space::Shares;
use super::pipeline::CommitState;
use super::stall;
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::jobs::Outcome;
use crate::memtable::{FamilyMemtable, no_room};
use kingtide_base::events::Event;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo, rare};
use kingtide_mem::NoRoom;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a flush before the caller gets an error that says that flushes do not keep up.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_secs(60);
/// A writer held for dead space asks this often, in its waits of a millisecond, whether a compaction can still help.
const WAITS_BETWEEN_PLANS: u32 = 100;

/// While the flushes of some families fail, the memtable of another one is sealed for memory only if it holds at least 1/`WORTH` of what all
/// memtables may hold. Otherwise a failing disk would have all memtables sealed, however small, before a writer gets the error.
const WORTH: u64 = 8;
/// Once the flushes of this many families have failed and none has succeeded, a writer does not wait for those of the other families.
const MANY_FAILING: u32 = 16;

/// On a full disk, a memtable is flushed for the log that it keeps if it takes at most 1/`SMALL_PART` of the bytes of the log that may go.
const SMALL_PART: u64 = 4;

/// How flushes had gone when a writer began to wait.
struct SoFar {
    /// The families whose last flush failed, each with the number of its failed flushes.
    failing: BTreeMap<FamilyId, u64>,
    /// The number of flushes that succeeded.
    flushes: u64,
}

/// What a writer that waits for memory can expect of the immutable memtables.
enum ToCome {
    /// There are none.
    None,
    /// At least one may still be flushed.
    Some,
    /// The flush of each of their families has failed.
    Failing(Error),
    /// Flushes have failed, and it is futile to wait for others.
    Stuck(Error),
}

impl DbInner {
    /// The error of a writer that would have to wait and does not want to.
    #[cold]
    pub(super) fn refuse_to_wait(&self) -> Error {
        self.stats.add(Stat::BusyRefusals, 1);
        Error::new(
            ErrorKind::Busy,
            "writers are being slowed because flush or compaction lags behind; try again shortly",
        )
    }

    /// Holds the writer, without a time limit, while dead space of a family that it writes to exceeds the cap by the whole slack. If
    /// compactions of that family cannot help, because they fail or there is none to run, the writer goes on: the cap is not worth a failed
    /// write. Failures of compactions of other families make no difference.
    #[cold]
    pub(super) fn wait_for_space(&self, shares: &Shares) {
        rare!("writer-held-for-dead-space");
        let (start, timer) = (self.clock.monotonic_ns(), perf::begin_wait());
        self.stats.events.tell(|| Event::StallBegun(stall::stall_reason(Stat::StallDebtMicros)));
        let waited = || self.clock.monotonic_ns().saturating_sub(start);
        let mut waits: u32 = 0;
        loop {
            let held_for = self.may_give_back(shares);
            if held_for.is_empty() {
                break;
            }
            if self.jobs.is_manual() {
                match self.jobs.run_one() {
                    Outcome::Ran => continue,
                    Outcome::Failed(_) if self.jobs.compaction_due(&held_for) => continue, // a compaction of these families gets its turn in the end
                    Outcome::Failed(_) | Outcome::Idle => break,
                }
            }
            waits += 1;
            if waits.is_multiple_of(WAITS_BETWEEN_PLANS) && !self.jobs.compaction_due(&held_for) {
                break;
            }
            self.jobs.wait_for_progress(Duration::from_millis(1));
        }
        self.stats.add(Stat::StallDeadSpaceMicros, waited() / 1000);
        self.stall.record(Stat::StallDebtMicros, waited(), true);
        timer.end(Stage::AdmissionNs);
    }

    /// The families of a commit whose dead space holds their writers, and whose compactions may still give it back.
    fn may_give_back(&self, shares: &Shares) -> Vec<FamilyId> {
        if self.check_writable().is_err() || self.failures.lasting().is_some() {
            return Vec::new();
        }
        let full = shares.iter().map(|(family, _)| family).filter(|f| f.is_full());
        full.filter(|f| f.compactions.lasting().is_none()).map(|f| f.family).collect()
    }

    /// Holds the writer until a flush has freed memory.
    #[cold]
    pub(super) fn wait_for_flush(&self) -> Result<()> {
        let timer = perf::begin_wait();
        let waited = self.wait_for_memory();
        timer.end(Stage::AdmissionNs);
        waited
    }

    fn wait_for_memory(&self) -> Result<()> {
        let Some(reason) = self.stall.full() else { return Ok(()) };
        self.stats.events.tell(|| Event::StallBegun(stall::stall_reason(reason)));
        let start = self.clock.monotonic_ns();
        let mut before = self.flushes_so_far();
        let mut may_make_room = self.reserve.is_held();
        let result = loop {
            self.check_writable()?;
            if self.stall.full().is_none() {
                break Ok(());
            }
            match self.flushes_to_come(&before) {
                ToCome::Some => {}
                // Many families with partly filled memtables: seal the largest, so that there is something to flush.
                ToCome::None if self.seal_largest(0) => {}
                ToCome::None => break Ok(()), // nothing to flush: what is held belongs to readers
                ToCome::Failing(_) if self.seal_largest(self.memory.limit() / WORTH) => {}
                // The last flush may have ended since.
                ToCome::Failing(_) | ToCome::Stuck(_) if self.stall.full().is_none() => break Ok(()),
                // The flush that met the full disk takes the ballast, and is tried again with its space.
                ToCome::Stuck(e) if may_make_room && e.kind() == ErrorKind::NoSpace => {
                    may_make_room = false;
                    self.make_room();
                    before = self.flushes_so_far();
                }
                ToCome::Failing(e) | ToCome::Stuck(e) => {
                    break Err(e.context("no memory for writes until a flush succeeds"));
                }
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

    fn flushes_so_far(&self) -> SoFar {
        let catalog = self.catalog.lock();
        let failing = |f: &Arc<Family>| Some((f.id(), f.flush_failures.lasting()?.0));
        SoFar {
            failing: catalog.families.values().filter_map(failing).collect(),
            flushes: self.stats.get(Stat::Flushes),
        }
    }

    /// Returns what a writer can expect of the immutable memtables.
    fn flushes_to_come(&self, before: &SoFar) -> ToCome {
        let catalog = self.catalog.lock();
        let (mut error, mut failing, mut waits) = (None, 0, false);
        // A flush gives the memory back some time after it took the memtable from the view.
        let flushing = |f: &&Arc<Family>| !f.view.load().immutable.is_empty() || catalog.flushing.contains(&f.id());
        for family in catalog.families.values().filter(flushing) {
            // An earlier failure may be over: only one that happened since counts.
            let earlier = before.failing.get(&family.id()).copied().unwrap_or(0);
            match family.flush_failures.lasting().filter(|(count, _)| *count > earlier) {
                Some((_, e)) if e.kind() == ErrorKind::NoSpace => return ToCome::Stuck(e),
                Some((_, e)) => {
                    error = Some(e);
                    failing += 1;
                }
                None => waits = true,
            }
        }
        match error {
            Some(e) if failing >= MANY_FAILING && self.stats.get(Stat::Flushes) == before.flushes => ToCome::Stuck(e),
            _ if waits => ToCome::Some,
            Some(e) => ToCome::Failing(e),
            None => ToCome::None,
        }
    }

    /// Seals the largest active memtable among the families without immutable memtables, if it holds `least` bytes and is not empty.
    fn seal_largest(&self, least: u64) -> bool {
        let mut c = self.commit.lock();
        let idle = c.families.iter().filter(|f| f.view.load().immutable.is_empty());
        let largest = idle.max_by_key(|f| f.view.load().active.memory()).cloned();
        let worth = |f: &Arc<Family>| !f.view.load().active.is_empty() && f.view.load().active.memory() >= least;
        let Some(family) = largest.filter(worth) else { return false };
        rare!("memtable-sealed-for-memory");
        self.seal_memtable(&mut c, &family);
        true
    }

    /// Makes room for a batch family by family. A memtable that cannot name as much memory is sealed, whatever its size. Called
    /// under the commit lock.
    #[cold]
    pub(super) fn reserve_each(&self, c: &mut CommitState, batch: &WriteBatch) -> Result<()> {
        for (i, family) in batch.families().iter().enumerate() {
            let (bytes, ops) = batch.extent_of(i);
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

    /// Seals the memtable that keeps the log long, if a flush of it shortens the log. Called under the commit lock.
    #[cold]
    pub(super) fn seal_for_log(&self, c: &mut CommitState, most: u64) {
        // The family that pins the oldest segment is flushed, so that the log stays bounded.
        if let Some((seq, f)) = pins_log(c)
            && f.view.load().immutable.is_empty()
        {
            // A flush frees nothing while a prepared transaction's record is the older one.
            match self.prepared.oldest().filter(|prepared| *prepared < seq) {
                None => {
                    rare!("memtable-sealed-for-log");
                    self.seal_memtable(c, &f);
                }
                Some(_) if self.prepared.is_overdue(self.wal.appended(), most) => self.jobs.wake(),
                Some(_) => {}
            }
        }
    }

    /// While the disk is full: seals the memtable that keeps the log long, if its flush takes little of the space that it gives back. Returns
    /// whether it did.
    pub(crate) fn seal_for_space(&self) -> bool {
        let may_go = self.wal.needed_sealed(); // the segment in use stays
        if may_go == 0 {
            return false;
        }
        let mut c = self.commit.lock();
        let Some((seq, family)) = pins_log(&c) else { return false };
        let view = family.view.load();
        let is_small = view.active.memory() + view.active.direct().bytes() <= may_go / SMALL_PART;
        let frees = view.immutable.is_empty() && self.prepared.oldest().is_none_or(|prepared| prepared > seq);
        if is_small && frees {
            rare!("memtable-sealed-for-log");
            self.seal_memtable(&mut c, &family);
        }
        is_small && frees
    }

    /// Freezes a family's active memtable and puts an empty one in its place. Called under the commit lock, so the
    /// immutable one holds everything of its family up to `last_seq` and nothing after it.
    pub(crate) fn seal_memtable(&self, c: &mut CommitState, family: &Arc<Family>) {
        self.seal_memtable_after(c.last_seq, family);
        if family.view.load().unflushed_value_bytes() > 0 {
            self.measure_unflushed_values(c.families.iter());
        }
    }

    /// The same, if `last` is the last sequence number given out.
    pub(crate) fn seal_memtable_after(&self, last: SeqNo, family: &Arc<Family>) {
        if family.view.load().active.is_empty() {
            return;
        }
        let timer = perf::begin_wait();
        let fresh = FamilyMemtable::new(family.order().clone(), &self.arenas, last + 1);
        family.update_view(|v| {
            let immutable = std::iter::once(&v.active).chain(&v.immutable).cloned().collect();
            View::new(v.order.clone(), fresh, immutable, v.version.clone(), &self.tables, Some(v))
        });
        // Release pairs with the Acquire in `Family::acquire_view`.
        family.outdated.fetch_add(1, Ordering::Release);
        timer.end(Stage::SealNs);
        self.stats.add(Stat::Rotations, 1);
        self.jobs.wake();
    }
}

/// The family whose entries in memory keep the oldest part of the log, and the sequence number from which it needs the log.
fn pins_log(c: &CommitState) -> Option<(SeqNo, Arc<Family>)> {
    c.families.iter().filter_map(|f| f.oldest_unflushed().map(|s| (s, f.clone()))).min_by_key(|x| x.0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::SMALL_PART;
    use crate::{ColumnFamily, Db, Options, WriteBatch};
    use kingtide_base::clock::ManualClock;
    use kingtide_base::options::Compression;
    use kingtide_base::stats::Stat;
    use kingtide_base::{Error, ErrorKind};
    use kingtide_vfs::{Fs, MemFs};
    use std::path::Path;
    use std::sync::Arc;

    fn held(families: &[ColumnFamily]) -> u64 {
        families.iter().map(|f| f.inner().view.load_full().memtables().map(|m| m.memory()).sum::<u64>()).sum()
    }

    /// They have memtables flushed as all writes do, also if none of these is full by itself.
    #[test]
    fn deletes_of_ranges_take_no_more_memory_than_memtables_may() {
        const BUDGET: u64 = 4 << 20;
        for reads in [false, true] {
            let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true).clock(ManualClock::at_unix_ms(1));
            options.db.memtable_budget = BUDGET;
            let db = Db::open("db", options.clone()).unwrap();
            let create = |name: &str| db.create_family(name, options.family.clone()).unwrap();
            let (families, inner) = (["a", "b", "c"].map(create), db.inner());
            for n in 0..60_000u64 {
                let family = &families[n as usize % families.len()];
                family.delete_range(n.to_be_bytes()..(n + 5).to_be_bytes()).unwrap();
                if reads && n % 64 == 0 {
                    assert!(family.get(n.to_be_bytes()).unwrap().is_none());
                }
                assert!(inner.memory.used() >= held(&families), "after {n}");
                assert!(inner.memory.used() < BUDGET * 2, "{} after {n}", inner.memory.used());
            }
            assert!(inner.stats.get(Stat::Flushes) > 0);
        }
    }

    /// So does their replay.
    #[test]
    fn replayed_deletes_of_ranges_take_no_more_memory_than_memtables_may() {
        const BUDGET: u64 = 4 << 20;
        let fs = MemFs::new();
        let on = |fs: MemFs| Options::new().fs(Arc::new(fs)).manual_jobs(true);
        let db = Db::open("db", on(fs.clone())).unwrap();
        for from in (0..100_000u64).step_by(1000) {
            let mut batch = WriteBatch::new();
            let mut delete = |n: u64| {
                batch.delete_range(db.default_family(), n.to_be_bytes()..(n + 5).to_be_bytes()).unwrap();
            };
            (from..from + 1000).for_each(&mut delete);
            db.write(batch).unwrap();
        }
        assert!(held(std::slice::from_ref(db.default_family())) > BUDGET);
        let mut options = on(fs.kill_clone());
        options.db.memtable_budget = BUDGET;
        let again = Db::open("db", options).unwrap();
        assert!(held(std::slice::from_ref(again.default_family())) <= BUDGET);
    }

    /// A database with a second family, and a log of segments of 512 KiB at most.
    fn with_short_segments() -> (MemFs, Db, ColumnFamily) {
        let fs = MemFs::new();
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.db.wal_segment_size = 512 << 10;
        options.family = options.family.compression(Compression::None);
        let db = Db::open("db", options.clone()).unwrap();
        let other = db.create_family("other", options.family).unwrap();
        (fs, db, other)
    }

    fn leave_free(fs: &MemFs, bytes: u64) {
        fs.set_capacity(Some(1 << 40));
        let used = (1 << 40) - fs.free_space(Path::new("db")).unwrap();
        fs.set_capacity(Some(used + bytes));
    }

    /// On a full disk, all of the log but the segment in use goes, whatever the size of the others, and segments for reuse go too.
    #[test]
    fn a_small_memtable_keeps_no_segment_but_the_one_in_use_on_a_full_disk() {
        for rows in [1500, 3000u32] {
            let (fs, db, other) = with_short_segments();
            let put = |rows: std::ops::Range<u32>| rows.for_each(|n| _ = db.put(n.to_be_bytes(), [1; 400]).unwrap());
            put(0..200); // more than the first segment holds
            other.put("key", "value").unwrap();
            put(200..rows);
            db.default_family().flush().unwrap();
            let inner = db.inner();
            assert!(inner.wal.needed_size() > 700 << 10);
            leave_free(&fs, 100 << 10);
            inner.reserve.with_space_of_manifest(|| ()); // as if it had been needed
            (0..5).for_each(|_| drop(db.run_one_job()));
            assert_eq!(inner.wal.needed_size(), 512 << 10, "{rows}");
            let names = fs.list(Path::new("db")).unwrap();
            assert!(!names.iter().any(|name| name.ends_with(".walfree")), "{names:?}");
        }
    }

    /// After a full disk, segments begin small again: the one in use may be smaller than those that may go.
    #[test]
    fn a_memtable_is_small_beside_all_segments_but_the_one_in_use() {
        let (fs, db, other) = with_short_segments();
        let inner = db.inner();
        let mut rows = 0..;
        let mut put = || _ = db.put(u32::to_be_bytes(rows.next().unwrap()), [1; 400]).unwrap();
        (0..950u32).for_each(|n| _ = other.put(n.to_be_bytes(), [1; 200]).unwrap());
        while inner.wal.needed_size() < 900 << 10 {
            put();
        }
        inner.wal.shrink().unwrap();
        let sealed = inner.wal.needed_sealed();
        while inner.wal.needed_sealed() == sealed {
            put();
        }
        let (sealed, all) = (inner.wal.needed_sealed(), inner.wal.needed_size());
        assert!(all - sealed < 512 << 10, "{sealed} {all}");
        let held = other.inner().view.load().active.memory();
        assert!(held <= sealed / SMALL_PART && held > (all - (512 << 10)) / SMALL_PART, "{held} {sealed} {all}");
        db.default_family().flush().unwrap();
        leave_free(&fs, 400 << 10);
        inner.reserve.with_space_of_manifest(|| ()); // as if it had been needed
        (0..5).for_each(|_| drop(db.run_one_job()));
        assert_eq!(inner.wal.needed_sealed(), 0);
    }

    /// A failed job of another family is no reason to let a writer exceed the cap, because compactions of the writer's own family can give
    /// space back. The writer goes on if those fail.
    #[test]
    fn a_writer_that_is_held_for_dead_space_goes_on_only_if_compactions_of_its_family_fail() {
        const MEMTABLE: u64 = 64 << 10;
        for own in [false, true] {
            let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true).clock(ManualClock::at_unix_ms(1));
            options.family = options.family.compression(Compression::None).memtable_size(MEMTABLE);
            options.family = options.family.target_file_size(MEMTABLE).direct_value_threshold(1000);
            options.family = options.family.vlog_dead_ratio(0.1).l0_trigger(64); // so that no writer waits for level 0
            options.tuning.direct_memtable_bytes = Some(MEMTABLE);
            let db = Db::open("db", options).unwrap();
            let family = db.default_family();
            let put = |n: u64| _ = db.put((n % 50).to_be_bytes(), [1; 5000]).unwrap();
            let is_full = || family.inner().dead_space.is_full();
            let filled = (0..20_000).find(|n| {
                put(*n);
                while db.stats().families.iter().any(|f| f.immutable_memtables > 0) {
                    db.run_one_job().unwrap(); // a flush, since these come first
                }
                is_full()
            });
            assert!(filled.is_some());
            let failed = Error::new(ErrorKind::Io, "a job");
            db.inner().note_background_error(&failed);
            if own {
                family.inner().dead_space.compactions.note(Err::<(), _>(failed)).unwrap_err();
            }
            put(0);
            assert_eq!(is_full(), own, "whether it went on before compactions had given space back");
        }
    }
}
