//! Living with a full disk: how large the reserve is to be, when it is spent, and which writes are allowed then.

use crate::commit::batch::WriteBatch;
use crate::commit::pipeline::Commit;
use crate::engine::DbInner;
use crate::reserve::LARGEST;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Kind, Result, Tag};

impl DbInner {
    /// Returns two sizes in bytes. The first is the size of the ballast, the space that flushes and compactions of deletes need: a log
    /// segment, two memtables, and some for compactions, but no more than an eighth of the database. The second is the space that must be
    /// free besides the ballast before growth is accepted again: a log segment and two memtables, but no more than a quarter of the
    /// database, because a small disk may never have more.
    fn reserve_wanted(&self) -> (u64, u64) {
        let stored = self.stats.get(Stat::KlogBytes) + self.stats.get(Stat::VlogBytes);
        let working = self.options.read().wal_segment_size + 2 * self.family_defaults.memtable_size;
        let beside = working.min(stored / 4);
        match stored < self.tuning.reserve_from {
            true => (0, beside),
            false => ((working + stored / 32).min(stored / 8).min(LARGEST), beside),
        }
    }

    /// Keeps the ballast as large as the database asks for, and makes it again once there is space. Beside it memtables hold no more than
    /// their flushes have space for. Cheap when there is nothing to do.
    pub fn keep_reserve(&self) {
        let (wanted, beside) = self.reserve_wanted();
        self.reserve.keep(wanted, beside, self.tuning.reserve_below);
        // While the ballast is spent, the limit stays as it was: only deletes are accepted.
        if let Some(room) = self.reserve.room_for_flushes(self.memory.used())
            && self.flush_room.swap(room, Ordering::Relaxed) != room
        {
            self.fit_memtable_limit(&self.catalog.lock());
        }
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
    /// kept only for speed, and then the ballast.
    pub fn make_room(&self) {
        let _ = self.wal.trim(0);
        self.tables.empty_trash();
        self.reserve.spend();
    }

    /// After a commit met a full disk: if the ballast is meant for such commits, makes room and returns true. The caller then tries again.
    #[cold]
    pub fn made_room_for(&self, batch: &WriteBatch, how: &Commit<'_>) -> bool {
        // A task must not wait for files. Its commit has a spare segment of the log, so it rarely comes here.
        let may_wait = how.refusal.is_none();
        // A prepare has its writes in the record, and no operations.
        let may = may_wait && batch.control().map_or_else(|| only_deletes(batch), |c| c.resolves());
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

    #[cold]
    fn refuse_growth(&self, batch: &WriteBatch) -> Result<()> {
        if only_deletes(batch) { Ok(()) } else { Err(self.full()) }
    }

    #[cold]
    fn full(&self) -> Error {
        self.jobs.wake();
        let text = "the disk is full: only deletes are accepted until space is freed";
        Error::new(ErrorKind::NoSpace, text).at_path(&self.dir)
    }
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
    use crate::{Compression, Db, Options};
    use kingtide_base::ErrorKind;
    use kingtide_base::names::RESERVE_FILE;
    use kingtide_base::stats::Stat;
    use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
    use std::path::Path;
    use std::sync::Arc;

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
            inner.keep_reserve();
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
                inner.keep_reserve();
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
        fs.add(Rule::new(Op::Allocate, Fault::Edquot).path(RESERVE_FILE));
        inner.keep_reserve();
        inner.keep_reserve();
        assert_eq!(inner.reserve.room_for_flushes(0), Some(100 << 20));
        assert_eq!(inner.memory.limit(), 100 << 20);
    }
}
