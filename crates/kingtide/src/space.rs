//! Living with a full disk: how large the reserve is to be, when it is spent, and which writes are allowed then.

use crate::commit::batch::WriteBatch;
use crate::commit::pipeline::Commit;
use crate::engine::DbInner;
use crate::reserve::LARGEST;
use kingtide_base::events::Event;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Kind, Result, Tag};
use kingtide_vfs::Fs;
use std::path::Path;

/// A database gets a file of space for its manifest at one part in so many of the size at which it gets a ballast.
const SMALL: u64 = 16;

/// The least time, in nanoseconds, between two refused commits that make background threads look for space. They also look by themselves, four
/// times a second.
const LOOK_NS: u64 = 20_000_000;

impl DbInner {
    /// Returns two sizes in bytes. The first is the size of the ballast, the space that flushes and compactions of deletes need: a log
    /// segment, two memtables, and some for compactions, but no more than an eighth of the database. The second is the space that must be
    /// free besides the ballast before growth is accepted again: a log segment and two memtables, but no more than a quarter of the
    /// database, because a small disk may never have more.
    fn reserve_wanted(&self) -> (u64, u64) {
        let stored = self.stored_bytes();
        let working = self.options.read().wal_segment_size + 2 * self.family_defaults.memtable_size;
        let beside = working.min(stored / 4);
        match stored < self.tuning.reserve_from {
            true => (0, beside),
            false => ((working + stored / 32).min(stored / 8).min(LARGEST), beside),
        }
    }

    fn stored_bytes(&self) -> u64 {
        self.stats.get(Stat::KlogBytes) + self.stats.get(Stat::VlogBytes)
    }

    /// Keeps the ballast as large as the database asks for, and makes it again once there is space. Beside it memtables hold no more than
    /// their flushes have space for. Cheap when there is nothing to do.
    pub fn keep_reserve(&self) {
        let (wanted, beside) = self.reserve_wanted();
        // This file is so small that small databases can afford it too. Unflushed data counts: transactions may be prepared before the first flush.
        let for_manifest = self.stored_bytes() + self.memory.used() >= self.tuning.reserve_from / SMALL;
        // The lock keeps jobs from beginning meanwhile. They write no more than there is. Where a file system has no `fallocate`, the ballast is
        // made by writing zeros, which takes seconds: whatever else needs the catalog does not wait for that.
        let claims = self.reserve.waits_for_jobs().then(|| self.jobs.claims.lock());
        let is_quiet = claims.is_some() && self.catalog.lock().is_quiet();
        let most = self.stored_bytes() + self.memory.used();
        self.reserve.keep((for_manifest, wanted), beside, self.tuning.reserve_below, (most, is_quiet));
        drop(claims);
        if let Some(room) = self.reserve.room_for_flushes(self.memory.used())
            && self.flush_room.swap(room, Ordering::Relaxed) != room
        {
            self.fit_memtable_limit(&self.catalog.lock());
        }
    }

    /// While writes are refused: the most bytes that a compaction may write to empty a value log although dead values are within
    /// `vlog_dead_ratio`. `None` once there is space for the ballast and beside it, and where the space left is not known, as with a quota.
    pub fn room_to_collect(&self) -> Option<u64> {
        let (wanted, beside) = self.reserve_wanted();
        self.reserve.room_for_compaction().filter(|half| 2 * half < wanted + beside)
    }

    /// Reports the failure of background work that no caller of this thread gets as its error.
    pub fn report_background_error(&self, e: &Error) {
        self.stats.events.tell(|| Event::BackgroundError(e.to_string()));
        self.note_background_error(e);
    }

    /// Background work failed, or what may as well be done later.
    pub fn note_background_error(&self, e: &Error) {
        self.stats.add(Stat::BackgroundErrors, 1);
        if e.kind() == ErrorKind::NoSpace {
            self.make_room();
        }
        let mut background_error = self.background_error.lock();
        if !self.halted.load(Ordering::Acquire) {
            *background_error = Some(e.clone()); // a panic stays
        }
    }

    /// Makes room for the next attempt after background work, or a commit that may use the ballast, met a full disk: removes files that are
    /// kept only for speed, and then the ballast. Returns whether there was a ballast.
    pub fn make_room(&self) -> bool {
        let _ = self.wal.shrink();
        self.tables.empty_trash();
        let spent = self.reserve.spend();
        if spent {
            self.jobs.wake(); // what failed for want of it is tried again at once
        }
        spent
    }

    /// After a commit met a full disk: if the ballast is meant for such commits, makes room and returns true. The caller then tries again.
    #[cold]
    pub fn made_room_for(&self, batch: &WriteBatch, how: &Commit<'_>) -> bool {
        // A task must not wait for files. Its commit has a spare segment of the log, so it rarely comes here.
        let may_wait = how.refusal.is_none();
        // A prepare has its writes in the record, and no operations.
        let resolves = batch.control().map(|c| c.resolves());
        let may = may_wait && resolves.unwrap_or_else(|| only_deletes(batch));
        if may {
            self.make_room();
        }
        may
    }

    /// Refuses a commit that adds data while the reserve is spent.
    pub fn check_space(&self, batch: &WriteBatch) -> Result<()> {
        if self.reserve.is_spent() { self.refuse_growth(batch) } else { Ok(()) }
    }

    /// The same for a value that is written before it is in a batch.
    #[inline]
    pub fn check_space_to_grow(&self) -> Result<()> {
        if self.reserve.is_spent() { Err(self.full()) } else { Ok(()) }
    }

    /// The same for a copy of the database in `target`, which takes no space of the database if it is made on another disk.
    pub fn check_space_to_copy(&self, fs: &dyn Fs, target: &Path) -> Result<()> {
        if !self.reserve.is_spent() {
            return Ok(());
        }
        let disk = |fs: &dyn Fs, at: &Path| Some(Disk { id: fs.dir_id(at).ok()?.0, free: fs.free_space(at).ok() });
        let own = || disk(&*self.fs, &self.dir);
        // It may have to be made, in the nearest directory that there is.
        let of_target = || target.ancestors().find_map(|at| disk(fs, at));
        if is_one_disk(own, of_target) { Err(self.full()) } else { Ok(()) }
    }

    #[cold]
    fn refuse_growth(&self, batch: &WriteBatch) -> Result<()> {
        if only_deletes(batch) { Ok(()) } else { Err(self.full()) }
    }

    #[cold]
    fn full(&self) -> Error {
        // To see whether there is space by now, but not for every refused call: each look may try a job that fails.
        let now = self.clock.monotonic_ns();
        let seen = self.looked_for_space.load(Ordering::Relaxed);
        if now.checked_sub(seen).is_none_or(|since| since >= LOOK_NS) {
            self.looked_for_space.store(now, Ordering::Relaxed);
            self.jobs.wake();
        }
        let text = "the disk is full: only deletes are accepted until space is freed";
        Error::new(ErrorKind::NoSpace, text).at_path(&self.dir)
    }
}

/// What says which disk a directory is on.
struct Disk {
    id: u64,
    /// Free bytes, if that is known.
    free: Option<u64>,
}

/// Whether what is written to one takes the space of the other. Parts of one file system, such as subvolumes of btrfs, may have ids of their
/// own, but report the same free space. Other programs may write meanwhile, so `own` is asked before `other` and after it. If two disks happen
/// to report the same, the other is as full as this one.
fn is_one_disk(own: impl Fn() -> Option<Disk>, other: impl FnOnce() -> Option<Disk>) -> bool {
    let (Some(before), Some(other), Some(after)) = (own(), other(), own()) else { return false };
    let is_between = |free: u64| {
        let ends = before.free.zip(after.free);
        ends.is_some_and(|(a, b)| (a.min(b)..=a.max(b)).contains(&free))
    };
    other.id == after.id || other.free.is_some_and(is_between)
}

fn only_deletes(batch: &WriteBatch) -> bool {
    let deletes = |kind: u8| {
        let tag = Tag(u64::from(kind));
        tag.is_tombstone() || tag.kind() == Some(Kind::RangeDelete)
    };
    batch.ops().iter().all(|op| deletes(op.kind))
}

#[cfg(test)]
mod tests {
    use super::{Disk, is_one_disk};
    use crate::backup::{Backup, BackupOptions};
    use crate::{Compression, Db, Durability, FamilyOptions, IngestOptions, Isolation, Options, SortedFileWriter};
    use kingtide_base::ErrorKind;
    use kingtide_base::events::{Event, LogLevel};
    use kingtide_base::names::{MANIFEST_RESERVE_FILE, RESERVE_FILE};
    use kingtide_base::stats::Stat;
    use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
    use std::cell::Cell;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A log segment and two memtables take 144 MiB by default, which a smaller disk never has free.
    #[test]
    fn a_small_database_grows_again_once_a_quarter_of_its_size_is_free() {
        let fs = MemFs::new();
        let options = Options { fs: Some(Arc::new(fs.clone())), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        let leave_free = |bytes: u64| {
            fs.set_capacity(Some(1 << 40));
            let used = (1 << 40) - fs.free_space(Path::new("db")).unwrap();
            fs.set_capacity(Some(used + bytes));
            look(&db);
        };
        inner.stats.set(Stat::KlogBytes, 80 << 20);
        leave_free(40 << 20);
        assert!(!inner.reserve.is_spent());
        inner.make_room();
        assert!(inner.reserve.is_spent());
        // The ballast takes an eighth of the database (10 MiB), and another quarter (20 MiB) must be free.
        leave_free(29 << 20);
        assert_eq!(db.put(b"key", b"value").unwrap_err().kind(), ErrorKind::NoSpace);
        leave_free(31 << 20);
        db.put(b"key", b"value").unwrap();
        db.flush().unwrap();
        assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }

    /// What is accepted has space when it is flushed, even if the log first takes all other space.
    #[test]
    fn a_small_disk_has_space_for_the_flush_of_what_it_accepts() {
        for was_full in [true, false] {
            let fs = MemFs::new();
            let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
            options.db.wal_segment_size = 256 << 10;
            options.family.memtable_size = 8 << 20;
            options.family.compression = Compression::None;
            options.tuning.reserve_from = 1 << 20;
            let db = Db::open("db", options).unwrap();
            let inner = db.inner();
            let put = |n: u32| db.put(n.to_be_bytes(), [n as u8; 1000]);
            let filled = 40_000;
            (0..filled).for_each(|n| _ = put(n).unwrap());
            db.flush().unwrap();
            db.compact().unwrap();
            let usual = inner.memory.limit();
            fs.set_capacity(Some(1 << 40));
            let used = (1 << 40) - fs.free_space(Path::new("db")).unwrap();
            fs.set_capacity(Some(used + (20 << 20)));
            inner.keep_reserve();
            if was_full {
                inner.make_room();
                look(&db);
            }
            assert!(!inner.reserve.is_spent(), "there is space for the ballast and a quarter of the database");
            let full = (filled..1_000_000).find_map(|n| Some((n, put(n).err()?)));
            let (accepted, e) = full.unwrap();
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            assert!(accepted > filled + 4_000, "{accepted}");
            let flushed = (0..3).any(|_| db.flush().is_ok()); // the first failure removes the ballast
            assert!(flushed, "{:?}", db.flush());
            assert!(db.stats().families.iter().all(|f| f.immutable_memtables == 0));
            for n in 0..accepted {
                assert_eq!(db.get(n.to_be_bytes()).unwrap().as_deref(), Some(&[n as u8; 1000][..]), "{n}");
            }
            fs.set_capacity(Some(1 << 40));
            inner.keep_reserve();
            assert_eq!(inner.memory.limit(), usual, "a disk with space bounds nothing, even if it was full");
        }
    }

    /// The same for deletes that are accepted when the ballast is spent: their log must not take the space of their flush.
    #[test]
    fn a_full_disk_has_space_for_the_flush_of_the_deletes_that_it_accepts() {
        let fs = MemFs::new();
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.db.wal_segment_size = 256 << 10;
        options.family.compression = Compression::None;
        options.tuning.reserve_from = 1 << 20;
        options.tuning.reserve_below = u64::MAX;
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        (0..40_000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap());
        db.flush().unwrap();
        db.compact().unwrap();
        inner.keep_reserve();
        assert!(inner.reserve.is_held());
        leave_free(&fs, 0);
        inner.make_room();
        let long = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 1000]].concat();
        let delete = |n: u32| {
            inner.keep_reserve(); // as background threads do
            db.delete(long(n)).map(drop)
        };
        let refused = (0..20_000).find_map(|n| Some((n, delete(n).err()?)));
        let (accepted, e) = refused.expect("the space of the ballast is used up");
        assert!(accepted > 1_000 && e.kind() == ErrorKind::NoSpace, "{accepted}: {e}");
        leave_free(&fs, 1 << 20); // what is not flushed yet is little
        db.flush().unwrap();
        db.delete_range(0u32.to_be_bytes()..u32::MAX.to_be_bytes()).unwrap();
        db.compact().unwrap();
        look(&db);
        db.put(b"key", b"value").unwrap();
    }

    /// The log may be the first to need space, before a flush or compaction meets the full disk.
    #[test]
    fn a_delete_whose_log_has_no_space_takes_the_ballast() {
        let fs = MemFs::new();
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.db.wal_segment_size = 256 << 10;
        options.tuning.reserve_from = 1 << 20;
        options.tuning.reserve_below = u64::MAX;
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        inner.stats.set(Stat::KlogBytes, 80 << 20);
        inner.keep_reserve();
        assert!(inner.reserve.is_held());
        fs.set_capacity(Some(1 << 40));
        let used = (1 << 40) - fs.free_space(Path::new("db")).unwrap();
        fs.set_capacity(Some(used));
        let long = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 1000]].concat();
        (0..1000).for_each(|n| _ = db.delete(long(n)).unwrap()); // more than the log has room for
        assert!(inner.reserve.is_spent() && !inner.reserve.is_held());
        let refused = db.put(b"key", b"value");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    }

    /// A flush that meets the full disk takes the ballast. Commits that waited for it wait for the next flush, which has space.
    #[test]
    fn deletes_that_wait_for_memory_wait_for_the_flush_that_has_the_ballast() {
        let fs = FaultFs::new(MemFs::shared(), 1);
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.family.memtable_size = 64 << 10;
        options.tuning.reserve_below = u64::MAX;
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        let key = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 200]].concat();
        (0..10_000).for_each(|n| _ = db.put(key(n), b"value").unwrap());
        db.flush().unwrap();
        inner.stats.set(Stat::KlogBytes, 80 << 20);
        inner.keep_reserve();
        assert!(inner.reserve.is_held());
        fs.add(Rule::new(Op::Write, Fault::Enospc).path(".klog"));
        let refused = (0..10_000).find_map(|n| Some((n, db.delete(key(n)).err()?)));
        assert!(refused.is_none(), "{refused:?}");
        assert_eq!(fs.stats().injected(), 1);
        assert!(!inner.reserve.is_held());
    }

    /// A quota is not among the free bytes that the system reports.
    #[test]
    fn under_a_quota_memtables_hold_no_more_than_the_ballast() {
        let fs = FaultFs::new(MemFs::shared(), 1);
        let db = Db::open("db", Options::new().fs(Arc::new(fs.clone())).manual_jobs(true)).unwrap();
        let inner = db.inner();
        inner.stats.set(Stat::KlogBytes, 800 << 20);
        inner.make_room();
        (0..2).for_each(|_| fs.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE)));
        inner.keep_reserve();
        inner.keep_reserve();
        assert_eq!(inner.reserve.room_for_flushes(0), Some(50 << 20), "there is no space for more");
        assert_eq!(inner.memory.limit(), 50 << 20);
    }

    /// A database without threads that keeps a ballast, however small it is, with a table.
    fn on_faulty_disk() -> (FaultFs, Db) {
        let fs = FaultFs::new(MemFs::shared(), 1);
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        (options.tuning.reserve_from, options.tuning.reserve_below) = (1, u64::MAX);
        let db = Db::open("db", options).unwrap();
        (0..1000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [n as u8; 100]).unwrap());
        db.flush().unwrap();
        (fs, db)
    }

    /// To find out whether a quota has space for the ballast takes all of it for a moment, in which a flush or compaction would fail.
    #[test]
    fn under_a_quota_a_spent_ballast_is_made_again_while_no_job_runs() {
        let (fs, db) = on_faulty_disk();
        let inner = db.inner().clone();
        let quota = {
            let fs = fs.clone();
            move || fs.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE).sticky())
        };
        let look = {
            let inner = inner.clone();
            move || (0..20).for_each(|_| inner.keep_reserve())
        };
        look();
        quota();
        inner.make_room();
        look();
        assert!(inner.reserve.is_spent() && !inner.reserve.is_held());
        let looks = Arc::new(AtomicU64::new(0));
        fs.before_each(Some(Arc::new({
            let (inner, fs, look, looks) = (inner.clone(), fs.clone(), look.clone(), looks.clone());
            move |op, path: &Path| {
                if op == Op::Write && path.to_string_lossy().ends_with(".klog") {
                    fs.clear(); // the quota is raised
                    look();
                    assert!(inner.reserve.is_spent() && !inner.reserve.is_held());
                    quota();
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            }
        })));
        db.delete(1u32.to_be_bytes()).unwrap();
        db.flush().unwrap();
        let of_flush = looks.load(Ordering::Relaxed);
        assert!(of_flush > 0);
        db.compact().unwrap();
        assert!(looks.load(Ordering::Relaxed) > of_flush && inner.stats.get(Stat::Compactions) > 0);
        fs.before_each(None);
        fs.clear();
        look();
        assert!(inner.reserve.is_held() && !inner.reserve.is_spent());
    }

    /// Where a file system has no `fallocate`, that takes seconds.
    #[test]
    fn the_catalog_is_free_while_a_spent_ballast_is_made_again() {
        let (fs, db) = on_faulty_disk();
        let inner = db.inner().clone();
        let look = || (0..20).for_each(|_| inner.keep_reserve());
        look();
        inner.make_room();
        fs.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE).sticky());
        look();
        fs.clear();
        assert!(inner.reserve.is_spent());
        let seen = Arc::new(AtomicU64::new(0));
        fs.before_each(Some(Arc::new({
            let (inner, seen) = (inner.clone(), seen.clone());
            move |op, path: &Path| {
                if op == Op::Allocate && path.ends_with(RESERVE_FILE) {
                    assert!(inner.catalog.try_lock().is_some_and(|catalog| catalog.is_quiet()), "others wait for it");
                    assert!(inner.jobs.claims.try_lock().is_none(), "a job may begin meanwhile");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        })));
        look();
        fs.before_each(None);
        assert_eq!((inner.reserve.is_held(), inner.reserve.is_spent()), (true, false));
        assert!(seen.load(Ordering::Relaxed) > 0);
    }

    /// With little for the log and no threads.
    fn on_small_disk(fs: &MemFs) -> Options {
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.db.wal_segment_size = 256 << 10;
        options.tuning.reserve_from = 1 << 20;
        options.tuning.reserve_below = u64::MAX;
        options.family.compression = Compression::None;
        options
    }

    /// A database with a ballast. It has a family `other`, and lies beside an exported family and a sorted file.
    fn with_ballast() -> (MemFs, Db) {
        let fs = MemFs::new();
        let db = Db::open("db", on_small_disk(&fs)).unwrap();
        db.create_family("other", FamilyOptions::default()).unwrap().put(b"key", b"value").unwrap();
        (0..4000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap());
        db.flush().unwrap();
        db.default_family().export("exported").unwrap();
        let mut file = SortedFileWriter::create("given", db.default_family()).unwrap();
        file.put(b"new", b"value").unwrap();
        file.finish().unwrap();
        db.inner().keep_reserve();
        assert!(db.inner().reserve.is_held());
        (fs, db)
    }

    /// The same after the ballast was spent, on a disk that has just this space.
    fn with_spent_ballast() -> (MemFs, Db) {
        let (fs, db) = with_ballast();
        leave_free(&fs, 0);
        assert!(db.inner().make_room() && db.inner().reserve.is_spent());
        (fs, db)
    }

    /// Another program has taken what the memtable counted on. A compaction that moves the few live values out of a value log needs less
    /// space than the flush, and frees more.
    #[test]
    fn a_flush_that_finds_no_space_gets_that_of_dead_values() {
        get_space_of_dead_values(0);
    }

    /// Its turn comes after that of one which needs more space than there is.
    #[test]
    fn a_flush_that_finds_no_space_gets_that_of_a_compaction_behind_one_that_needs_more() {
        get_space_of_dead_values(6);
    }

    /// `before`: so many runs with smaller keys make a compaction of them all due before the one of the dead values.
    fn get_space_of_dead_values(before: u32) {
        let fs = MemFs::new();
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.db.wal_segment_size = 256 << 10;
        options.tuning.reserve_from = 1 << 20;
        options.tuning.reserve_below = u64::MAX;
        options.family = options.family.compression(Compression::None).direct_value_threshold(0);
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        let row = |n: u32| format!("row {n:05}");
        let fill = |rows: std::ops::Range<u32>, value: &[u8]| {
            rows.for_each(|n| _ = db.put(row(n), value).unwrap());
        };
        fill(0..2000, &[1; 10_000]);
        db.flush().unwrap();
        fill(0..1900, &[2; 100]);
        db.flush().unwrap();
        for run in 0..before {
            (0..8000u32).for_each(|n| _ = db.put(format!("before {n}"), [run as u8; 400]).unwrap());
            inner.seal_memtable(&mut inner.commit.lock(), db.default_family().inner());
            assert!(inner.flush_one().unwrap());
        }
        inner.keep_reserve();
        assert!(inner.reserve.is_held());
        fill(2000..26_000, &[3; 400]);
        leave_free(&fs, 1 << 20);
        let _ = db.flush();
        let is_flushed = || db.stats().families.iter().all(|f| f.immutable_memtables == 0);
        assert!((0..20).any(|_| db.run_one_job().is_ok() && is_flushed()));
        let runs = db.default_family().inner().view.load().version.levels[0].len() as u32;
        assert!(runs >= before, "the compaction that needs more did not run: {runs}");
        let is = |n: u32, value: &[u8]| assert_eq!(db.get(row(n)).unwrap().as_deref(), Some(value));
        is(0, &[2; 100]);
        is(1999, &[1; 10_000]);
        is(25_999, &[3; 400]);
    }

    /// The flush's error is the one that is returned.
    #[test]
    fn a_compaction_that_fails_while_a_flush_finds_no_space_is_reported() {
        let mem = MemFs::new();
        let fs = FaultFs::new(Arc::new(mem.clone()), 1);
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        (options.tuning.reserve_from, options.tuning.reserve_below) = (1 << 20, u64::MAX);
        options.db.block_cache_size = 0;
        options.family = options.family.compression(Compression::None).l0_trigger(2);
        let db = Db::open("db", options.clone()).unwrap();
        let inner = db.inner();
        let other = db.create_family("other", options.family).unwrap(); // so much that the ballast is not made again at once
        (0..20u8).for_each(|n| _ = other.put([n], vec![n; 1 << 20]).unwrap());
        db.compact().unwrap();
        let fill = |run: u8| {
            (0..4000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [run; 400]).unwrap());
            inner.seal_memtable(&mut inner.commit.lock(), db.default_family().inner());
        };
        for run in 0..4 {
            fill(run);
            assert!(inner.flush_one().unwrap());
        }
        fill(4);
        inner.keep_reserve();
        leave_free(&mem, 16 << 20);
        inner.make_room();
        assert!(inner.reserve.room_for_compaction().is_some() && inner.merge_due());
        let reported = Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = reported.clone();
        let listener = move |e: &Event| {
            if let Event::BackgroundError(text) = e {
                sink.lock().unwrap().push(text.clone());
            }
        };
        inner.stats.events.connect(LogLevel::Info, Box::new(listener));
        // The flush reads no table, and the compaction does so before it writes one.
        fs.add(Rule::new(Op::Write, Fault::Enospc).path(".klog").sticky());
        fs.add(Rule::new(Op::Read, Fault::Eio).path(".klog"));
        let errors = || inner.stats.get(Stat::BackgroundErrors);
        let fails_twice = || {
            let before = errors();
            db.run_one_job().is_err_and(|e| e.kind() == ErrorKind::NoSpace) && errors() - before == 2
        };
        assert!((0..10).any(|_| fails_twice()), "{} errors", errors()); // compactions that only move a table succeed first
        let reported = reported.lock().unwrap().clone();
        let reads = reported.iter().filter(|text| text.contains("cannot read")).count();
        assert!(reads == 1 && reported.len() as u64 == errors(), "{reported:?}");
        fs.clear();
        while db.run_one_job().unwrap() {}
        assert_eq!(db.get(7u32.to_be_bytes()).unwrap().as_deref(), Some(&[4; 400][..]));
    }

    /// Three runs of about `SIZE` bytes, whose compaction writes one of them if they have the same keys, and else all; and the ballast, an eighth of
    /// them. `free` bytes are left.
    fn with_runs_and_ballast(free: u64, have_same_keys: bool) -> (MemFs, Db) {
        let fs = MemFs::new();
        let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        options.family = options.family.compression(Compression::None).l0_trigger(3);
        options.db.durability = Durability::None; // no log, whose space comes and goes
        (options.tuning.reserve_from, options.tuning.reserve_below) = (1 << 20, u64::MAX);
        let db = Db::open("db", options).unwrap();
        let inner = db.inner();
        for run in 0..3u8 {
            let key = |n: u32| if have_same_keys { n } else { n * 3 + u32::from(run) };
            (0..SIZE as u32 / 400).for_each(|n| _ = db.put(key(n).to_be_bytes(), [run; 400]).unwrap());
            inner.seal_memtable(&mut inner.commit.lock(), db.default_family().inner());
            assert!(inner.flush_one().unwrap());
        }
        inner.keep_reserve();
        assert!(inner.reserve.is_held());
        leave_free(&fs, free);
        (fs, db)
    }

    const SIZE: u64 = 8 << 20;

    /// Looks at the ballast until the pause after it was spent, or could not be made again, is over.
    fn look(db: &Db) {
        (0..20).for_each(|_| db.inner().keep_reserve());
    }

    /// After it has failed and been undone, there is space for the ballast again. It is not made before the compaction is tried with its space.
    #[test]
    fn a_compaction_that_needs_the_space_of_the_ballast_gets_it() {
        let (_, db) = with_runs_and_ballast(SIZE * 7 / 8, true);
        let reserve = &db.inner().reserve;
        let e = (0..5).find_map(|_| db.run_one_job().err()).expect("there is too little space without the ballast");
        assert!(e.kind() == ErrorKind::NoSpace && reserve.is_spent(), "{e}");
        assert!(db.run_one_job().unwrap() && reserve.is_spent());
        let runs: usize = db.stats().families[0].levels.iter().map(|l| l.runs).sum();
        assert_eq!(runs, 1, "the compaction had the space of the ballast");
        (0..20).for_each(|_| _ = db.run_one_job().unwrap());
        assert!(reserve.is_held() && !reserve.is_spent());
        db.put("key", "value").unwrap();
    }

    /// The ballast does not come and go with each attempt.
    #[test]
    fn a_compaction_that_needs_more_than_the_ballast_seldom_spends_it() {
        let (_, db) = with_runs_and_ballast(SIZE, false);
        let reserve = &db.inner().reserve;
        let (mut made, mut failed, looks) = (0, 0, 200);
        for _ in 0..looks {
            db.inner().keep_reserve();
            made += u32::from(reserve.is_held());
            failed += u32::from(db.run_one_job().is_err_and(|e| e.kind() == ErrorKind::NoSpace));
        }
        assert!(failed > looks - 10, "{failed}");
        assert!((5..=looks / 8).contains(&made), "{made} times in {looks} looks");
    }

    /// A family with little in memory keeps the log of all others. On a full disk it is flushed, but not one whose flush takes as much.
    #[test]
    fn a_small_memtable_does_not_keep_a_long_log_on_a_full_disk() {
        for (entries, rows) in [(1, 20_000), (6000, 20_000), (1, 1500)] {
            let fs = MemFs::new();
            let mut options = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
            options.db.wal_segment_size = 256 << 10;
            options.family.compression = Compression::None;
            (options.tuning.reserve_from, options.tuning.reserve_below) = (1 << 20, u64::MAX);
            let db = Db::open("db", options).unwrap();
            let other = db.create_family("other", FamilyOptions::default()).unwrap();
            (0..20_000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [2; 400]).unwrap());
            db.flush().unwrap();
            (0..entries).for_each(|n: u32| _ = other.put(n.to_be_bytes(), [1; 400]).unwrap());
            (0..rows).for_each(|n: u32| _ = db.put(n.to_be_bytes(), [2; 400]).unwrap());
            db.default_family().flush().unwrap();
            let inner = db.inner();
            inner.keep_reserve();
            let log = inner.wal.needed_size();
            assert!(log > u64::from(rows) * 400 && log > 512 << 10 && inner.reserve.is_held());
            leave_free(&fs, 100 << 10);
            inner.make_room();
            (0..5).for_each(|_| drop(db.run_one_job())); // there may be no space for a compaction
            let left = inner.wal.needed_size();
            assert!(if entries == 1 { left <= 512 << 10 } else { left == log }, "{entries}: {left} of {log}");
            assert_eq!(other.get(0u32.to_be_bytes()).unwrap().as_deref(), Some(&[1; 400][..]));
        }
    }

    /// A ballast that was spent for a job which runs is made again beside it only if the job cannot need its space.
    #[test]
    fn a_spent_ballast_leaves_a_job_that_runs_its_space() {
        let (fs, db) = with_runs_and_ballast(SIZE, true);
        let inner = db.inner();
        inner.make_room();
        inner.catalog.lock().flushing.insert(db.default_family().id());
        look(&db);
        assert!(inner.reserve.is_spent());
        leave_free(&fs, SIZE * 8);
        inner.keep_reserve();
        assert!(!inner.reserve.is_spent(), "at once");
        inner.make_room();
        leave_free(&fs, SIZE * 2);
        look(&db);
        assert!(inner.reserve.is_spent());
        inner.catalog.lock().flushing.clear();
        inner.keep_reserve();
        assert!(!inner.reserve.is_spent());
    }

    #[test]
    fn directories_with_one_free_space_are_on_one_disk() {
        let disk = |id, free| move || Some(Disk { id, free });
        assert!(is_one_disk(disk(1, None), disk(1, Some(7))));
        assert!(is_one_disk(disk(1, Some(7)), disk(2, Some(7))), "two subvolumes");
        assert!(!is_one_disk(disk(1, Some(7)), disk(2, Some(8))));
        assert!(!is_one_disk(disk(1, None), disk(2, None)));
        assert!(!is_one_disk(disk(1, Some(7)), || None));
        // Others write, or delete, while the two are asked.
        for step in [1, u64::MAX] {
            let free = Cell::new(100u64);
            let changing = |id| {
                free.set(free.get().wrapping_add(step));
                Some(Disk { id, free: Some(free.get()) })
            };
            assert!(is_one_disk(|| changing(1), || changing(2)));
        }
    }

    fn used(fs: &MemFs) -> u64 {
        fs.set_capacity(Some(1 << 40));
        (1 << 40) - fs.free_space(Path::new("db")).unwrap()
    }

    fn leave_free(fs: &MemFs, bytes: u64) {
        let used = used(fs);
        fs.set_capacity(Some(used + bytes));
    }

    /// An ingest took the space that deletes needed, and in the end that of the manifest, without which nothing can be freed.
    #[test]
    fn only_what_frees_space_takes_the_space_of_the_ballast() {
        let (fs, db) = with_spent_ballast();
        let family = db.default_family();
        let elsewhere = MemFs::shared();
        let backups = Backup::on(Arc::new(fs.clone()), "backups");
        let grow: [(&str, &dyn Fn() -> crate::Result<()>); 7] = [
            ("ingest", &|| family.ingest(&["given"], &IngestOptions::new()).map(drop)),
            ("import", &|| db.import_family("imported", "exported").map(drop)),
            ("clone", &|| db.clone_family("other", "cloned").map(drop)),
            ("value", &|| family.put_reader("long", &[7u8; 1 << 20][..]).map(drop)),
            ("checkpoint", &|| db.checkpoint("copies/of/db").map(drop)),
            ("export", &|| family.export("copies/of/family").map(drop)),
            ("backup", &|| backups.create(&db, BackupOptions::new()).map(drop)),
        ];
        let free = fs.free_space(Path::new("db")).unwrap();
        for (what, grow) in &grow {
            let e = grow().expect_err(what);
            assert!(e.kind() == ErrorKind::NoSpace && e.to_string().contains("full"), "{what}: {e}");
            assert_eq!(fs.free_space(Path::new("db")).unwrap(), free, "{what}");
        }
        assert_eq!(fs.list(Path::new("")).unwrap(), ["db", "exported", "given"]);
        // A copy on another disk may be what is needed before data is deleted.
        Backup::on(elsewhere, "backups").create(&db, BackupOptions::new().flush(false)).unwrap();
        db.delete(1u32.to_be_bytes()).unwrap();
        db.delete_range(2u32.to_be_bytes()..50u32.to_be_bytes()).unwrap();
        db.drop_family("other").unwrap();
        db.create_family("other", FamilyOptions::default()).unwrap(); // so that a family can be emptied
        db.flush().unwrap();
        fs.set_capacity(None);
        look(&db);
        for (what, grow) in &grow {
            grow().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        assert_eq!(db.get(b"new").unwrap().as_deref(), Some(&b"value"[..]));
    }

    /// Whatever frees space is first noted in the manifest.
    #[test]
    fn the_manifest_has_space_of_its_own() {
        let (fs, db) = with_spent_ballast();
        let path = Path::new("db").join(MANIFEST_RESERVE_FILE);
        assert!(fs.exists(&path).unwrap(), "it outlasts the ballast");
        leave_free(&fs, 0); // others took the rest
        let before = used(&fs);
        fs.set_capacity(Some(before));
        db.drop_family("other").unwrap();
        assert!(used(&fs) < before && !fs.exists(&path).unwrap());
        leave_free(&fs, 200 << 10);
        db.inner().keep_reserve();
        assert!(
            fs.exists(&path).unwrap() && db.inner().reserve.is_spent(),
            "it is made again before anything may grow"
        );
        db.close().unwrap();
        assert!(!fs.exists(&path).unwrap());
    }

    /// The process was killed after the ballast was spent, and other programs took its space. What recovery finds prepared can be ended.
    #[test]
    fn what_was_prepared_is_ended_after_a_kill_from_the_space_of_the_manifest() {
        let (fs, db) = with_ballast();
        let mut doubts = Vec::new();
        for xid in [b"a", b"b"] {
            let mut txn = db.begin(Isolation::Snapshot).unwrap();
            txn.put(db.default_family(), xid, b"prepared").unwrap();
            txn.prepare(xid).unwrap();
            doubts.push(txn);
        }
        assert!(db.inner().make_room());
        let killed = fs.kill_clone();
        leave_free(&killed, 0);
        let db = Db::open("db", on_small_disk(&killed)).unwrap();
        assert_eq!(db.put(b"new", b"value").unwrap_err().kind(), ErrorKind::NoSpace);
        db.commit_prepared(b"a").unwrap();
        db.rollback_prepared(b"b").unwrap();
        assert_eq!(db.put(b"new", b"value").unwrap_err().kind(), ErrorKind::NoSpace);

        let again = Db::open("db", on_small_disk(&killed.kill_clone())).unwrap();
        assert_eq!(again.get(b"a").unwrap().as_deref(), Some(&b"prepared"[..]));
        assert_eq!((again.get(b"b").unwrap(), again.recover_prepared().len()), (None, 0));
        again.close().unwrap();
    }

    /// What a kill leaves of a database with the prepared transaction `a`, once its ballast is spent and the disk is full.
    fn killed_in_doubt(fs: &MemFs, db: &Db) -> MemFs {
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), b"a", b"prepared").unwrap();
        txn.prepare(b"a").unwrap();
        assert!(db.inner().make_room());
        let killed = fs.kill_clone();
        leave_free(&killed, 0);
        killed
    }

    /// A flush that begins once the space of the manifest was given up would take that space, and so would the file if it were made again. A flush
    /// that has taken it already gives it back when it fails.
    #[test]
    fn jobs_leave_the_end_of_a_prepared_transaction_the_space_of_the_manifest() {
        for runs in [false, true] {
            let (fs, db) = with_ballast();
            let killed = killed_in_doubt(&fs, &db);
            let faults = FaultFs::new(Arc::new(killed.clone()), 1);
            let db = Db::open("db", on_small_disk(&killed).fs(Arc::new(faults.clone()))).unwrap();
            let inner = db.inner();
            assert!(killed.exists(&Path::new("db").join(MANIFEST_RESERVE_FILE)).unwrap());
            faults.before_each(Some(Arc::new({
                let (inner, killed) = (inner.clone(), killed.clone());
                move |_, path: &Path| {
                    if path.extension().is_some_and(|e| e == "wal") {
                        inner.reserve.keep((true, 1 << 40), 0, u64::MAX, (u64::MAX, false));
                        if !runs && inner.jobs.claims.try_lock().is_some() {
                            leave_free(&killed, 0); // a flush begins
                        }
                    }
                }
            })));
            let (killed, has_ended) = (&killed, &AtomicBool::new(false));
            #[allow(clippy::disallowed_methods)] // what a thread of the database would do
            let ended = std::thread::scope(|scope| {
                if runs {
                    inner.wal.shrink().unwrap();
                    assert!(inner.reserve.spend_for_manifest());
                    leave_free(killed, 0);
                    inner.catalog.lock().flushing.insert(db.default_family().id());
                    scope.spawn(|| {
                        while !has_ended.load(Ordering::Relaxed) && inner.jobs.claims.try_lock().is_some() {
                            std::thread::yield_now();
                        }
                        leave_free(killed, 128 << 10);
                        inner.catalog.lock().flushing.clear();
                    });
                }
                let ended = db.commit_prepared(b"a");
                has_ended.store(true, Ordering::Relaxed);
                ended
            });
            ended.unwrap();
            faults.before_each(None);
            assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"prepared"[..]));
            assert_eq!(db.put(b"new", b"value").unwrap_err().kind(), ErrorKind::NoSpace);
        }
    }

    /// Recovery may fill more memory than can then be flushed. Other commits wait for a flush, but not this one.
    #[test]
    fn what_was_prepared_is_ended_after_a_kill_although_memory_is_used_up() {
        let (fs, db) = with_ballast();
        (0..3000u32).for_each(|n| _ = db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap());
        let killed = killed_in_doubt(&fs, &db);
        let db = Db::open("db", on_small_disk(&killed)).unwrap();
        assert!(db.inner().stall.full().is_some());
        db.commit_prepared(b"a").unwrap();
        assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"prepared"[..]));
    }

    /// Nothing is flushed, and the transaction that is ended before the kill leaves space for the one that is ended after it.
    #[test]
    fn what_was_prepared_is_ended_on_a_full_disk_and_after_a_kill_again() {
        let fs = MemFs::new();
        let db = Db::open("db", on_small_disk(&fs)).unwrap();
        let put = |n: u32| db.put(n.to_be_bytes(), [n as u8; 1000]);
        (0..1000).for_each(|n| _ = put(n).unwrap());
        for xid in [b"a", b"b"] {
            let mut txn = db.begin(Isolation::Snapshot).unwrap();
            txn.put(db.default_family(), xid, b"prepared").unwrap();
            txn.prepare(xid).unwrap();
        }
        db.inner().keep_reserve();
        leave_free(&fs, 0);
        assert!((0..).any(|n| put(n).is_err_and(|e| e.kind() == ErrorKind::NoSpace)));
        db.commit_prepared(b"a").unwrap();
        look(&db);
        assert_eq!(put(0).unwrap_err().kind(), ErrorKind::NoSpace, "it would take what is left for others to be ended");
        let killed = fs.kill_clone();
        leave_free(&killed, 0);
        let db = Db::open("db", on_small_disk(&killed)).unwrap();
        db.commit_prepared(b"b").unwrap();
    }

    /// Spare segments are of no use to the next process, and may be all that a full disk can give back.
    #[test]
    fn what_was_prepared_is_ended_after_a_kill_from_the_space_of_spare_segments() {
        let fs = MemFs::new();
        let db = Db::open("db", on_small_disk(&fs)).unwrap();
        (0..200u32).for_each(|n| _ = db.put(n.to_be_bytes(), [n as u8; 1000]).unwrap());
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), b"a", b"prepared").unwrap();
        txn.prepare(b"a").unwrap();
        while !db.inner().wal.has_spare() {
            assert!(db.run_one_job().unwrap());
        }
        let killed = fs.kill_clone();
        leave_free(&killed, 0);
        let db = Db::open("db", on_small_disk(&killed)).unwrap();
        db.commit_prepared(b"a").unwrap();
        assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"prepared"[..]));
    }

    const ROWS_OF_LOG: u32 = 500;

    /// Eight value logs of about 2 MB in one table. Three fifths of two of them are dead, and a hundredth of one more: in all, less than
    /// `vlog_dead_ratio` allows. The ballast is spent, and `free` bytes are left.
    fn with_dead_values(free: u64) -> (MemFs, FaultFs, Db) {
        let fs = MemFs::new();
        let faults = FaultFs::new(Arc::new(fs.clone()), 1);
        let mut options = on_small_disk(&fs).fs(Arc::new(faults.clone()));
        options.family = options.family.direct_value_threshold(0).vlog_dead_ratio(0.25);
        let db = Db::open("db", options).unwrap();
        for log in 0..8 {
            (0..ROWS_OF_LOG)
                .for_each(|n| _ = db.put((log * ROWS_OF_LOG + n).to_be_bytes(), [log as u8; 4000]).unwrap());
            db.flush().unwrap();
        }
        for (log, dead) in [(1, ROWS_OF_LOG * 3 / 5), (2, ROWS_OF_LOG * 3 / 5), (3, ROWS_OF_LOG / 100)] {
            (0..dead).for_each(|n| _ = db.delete((log * ROWS_OF_LOG + n).to_be_bytes()).unwrap());
        }
        db.flush().unwrap();
        while db.run_one_job().unwrap() {}
        let inner = db.inner();
        inner.keep_reserve();
        assert!(inner.reserve.is_held() && inner.stats.get(Stat::VlogMovedBytes) == 0);
        inner.make_room();
        leave_free(&fs, free);
        (fs, faults, db)
    }

    fn live_rows(db: &Db) -> usize {
        db.default_family().iter().filter(|entry| entry.as_ref().is_ok_and(|e| e.value.len() == 4000)).count()
    }

    const LIVE_ROWS: usize = (8 * ROWS_OF_LOG - 2 * (ROWS_OF_LOG * 3 / 5) - ROWS_OF_LOG / 100) as usize;

    /// Otherwise writes would be refused until data is deleted, although dead values take space.
    #[test]
    fn a_full_disk_gets_the_space_of_dead_values_that_are_fewer_than_the_cap_allows() {
        let (_, _, db) = with_dead_values(4 << 20);
        let reserve = &db.inner().reserve;
        (0..50).for_each(|_| _ = db.run_one_job().unwrap());
        assert!(reserve.is_held() && !reserve.is_spent());
        db.put(b"key", b"value").unwrap();
        db.delete(b"key").unwrap();
        assert_eq!(live_rows(&db), LIVE_ROWS);
    }

    /// Even if that does not free enough, each value is moved at most once, none is moved for few dead ones, and none if the space left is unknown.
    #[test]
    fn no_value_is_moved_twice_for_the_space_of_dead_ones() {
        for has_quota in [false, true] {
            let (fs, faults, db) = with_dead_values(64 << 20);
            let inner = db.inner();
            if has_quota {
                faults.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE).sticky());
                look(&db);
            }
            leave_free(&fs, 2200 << 10);
            let quiet = (0..50).any(|_| !db.run_one_job().unwrap());
            let moved = inner.stats.get(Stat::VlogMovedBytes);
            let live = 2 * u64::from(ROWS_OF_LOG) * 2 / 5 * 4000;
            assert!(quiet && inner.reserve.is_spent());
            assert!(if has_quota { moved == 0 } else { (live..live * 21 / 20).contains(&moved) }, "{moved} of {live}");
            assert_eq!(live_rows(&db), LIVE_ROWS);
        }
    }

    #[test]
    fn no_log_segment_is_made_ahead_of_the_space_that_is_left_for_deletes() {
        let (fs, db) = with_spent_ballast();
        let wal = &db.inner().wal;
        let long = |n: u32| [&n.to_be_bytes()[..], &[b'k'; 1000]].concat();
        (0..).take_while(|_| wal.has_spare()).for_each(|n| _ = db.delete(long(n)).unwrap());
        while db.run_one_job().unwrap() {}
        assert!(!wal.has_spare());
        fs.set_capacity(None);
        look(&db);
        while db.run_one_job().unwrap() {}
        assert!(wal.has_spare());
    }
}
