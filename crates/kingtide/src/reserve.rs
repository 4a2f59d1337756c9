//! Space that is kept for a full disk.
//!
//! To free space takes space: deletes go into the log, their memtable into a table, and a merge writes its output before its
//! inputs go. So a database that has grown keeps a file of nothing, an eighth of its size or less. When background work, or a
//! commit that may use it, meets a full disk, the file is removed and the space is *spent*: from then on commits that add data are
//! refused, as they were by the full disk, and those that only delete are taken, until deletes, or other users of the disk, have
//! freed so much that the file can be made again.
//!
//! While the disk has space for much more than can be written between two looks, there is no file. A disk that was full once is
//! not believed any more: a quota may let the database have less than what is free.
//!
//! A second, small file is kept for the manifest. Nothing that frees space is done before the manifest has it, and what a job
//! wrote stays until then; so a disk that is full to the last byte when a record is written would stay full. The record that finds no
//! space takes this file's. So does the end of a prepared transaction for which even the ballast left no space. From then on, too, commits that add
//! data are refused, at least until this file is whole again.
//!
//! The files' names end in `.tmp`: what a crash leaves of them, the next open removes.

use kingtide_base::names::{MANIFEST_RESERVE_FILE, RESERVE_FILE};
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::{ErrorKind, Result, rare};
use kingtide_vfs::{Fs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// No reserve is larger.
pub(crate) const LARGEST: u64 = 256 << 20;

/// A smaller reserve is of no use: where that much cannot be allocated, the disk is full.
const SMALLEST: u64 = 1 << 20;

/// The file for the manifest has room for a manifest of the present size, rounded up to a multiple of this, and as much again: for
/// what the next record adds, and for `CURRENT`.
const FOR_MANIFEST: u64 = 64 << 10;

/// It also has room for a small segment of the log. The end of a prepared transaction takes this room first, and leaves the rest to transactions
/// that are to be ended after a kill.
const FOR_LOG: u64 = 64 << 10;

/// Rounds of background work for which the reserve is left as it is after a failure that was not for want of space: where
/// files cannot be allocated, each would fail.
const PAUSE: u64 = 10_000;

/// The same after the ballast was spent, so that what it was spent for can begin, and after there was too little space to make it again: a few
/// seconds without work, less while writes are refused.
const SHORT_PAUSE: u64 = 16;

/// Keeps the file for the manifest from being made again, until it is dropped: also if a commit panics.
struct Lent<'a>(&'a AtomicBool);

impl<'a> Lent<'a> {
    fn new(lent: &'a AtomicBool) -> Self {
        lent.store(true, Ordering::Relaxed);
        Lent(lent)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The reserve of a database.
pub(crate) struct DiskBallast {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    path: PathBuf,
    /// Bytes of the file; changed under `one`. Relaxed, as `spent`: hints.
    held: AtomicU64,
    spent: AtomicBool,
    /// Background work met a full disk since the open.
    was_full: AtomicBool,
    /// The disk refused space that [`Fs::free_space`] says is free, as it does for a quota.
    has_quota: AtomicBool,
    /// Rounds left of a [`PAUSE`].
    pause: AtomicU64,
    /// The file for the manifest, and its bytes; changed under `one`.
    of_manifest: PathBuf,
    held_for_manifest: AtomicU64,
    /// Rounds left of its own [`PAUSE`].
    pause_for_manifest: AtomicU64,
    /// A commit uses the space of that file, so the file is not made again meanwhile. Relaxed: set before `one` is taken.
    lent: AtomicBool,
    /// Bytes of the manifest. Relaxed: a hint.
    manifest: AtomicU64,
    /// One change at a time.
    one: Mutex<()>,
}

impl DiskBallast {
    pub fn new(fs: Arc<dyn Fs>, dir: &std::path::Path) -> DiskBallast {
        let no = || AtomicBool::new(false);
        let none = || AtomicU64::new(0);
        DiskBallast {
            fs,
            dir: dir.to_owned(),
            path: dir.join(RESERVE_FILE),
            held: none(),
            spent: no(),
            was_full: no(),
            has_quota: no(),
            pause: none(),
            of_manifest: dir.join(MANIFEST_RESERVE_FILE),
            held_for_manifest: none(),
            pause_for_manifest: none(),
            lent: no(),
            manifest: none(),
            one: Mutex::new(()),
        }
    }

    /// Whether the disk was full and has not been emptied since.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Whether there is a ballast to spend. A hint.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Gives the space to the operations that free more of it. Returns whether there was any.
    pub fn spend(&self) -> bool {
        let _one = self.one.lock();
        let spent = self.give_up(&self.held, &self.path);
        if spent {
            rare!("disk-reserve-released");
            self.note_spent();
        }
        spent
    }

    fn note_spent(&self) {
        self.pause.store(SHORT_PAUSE, Ordering::Relaxed);
        self.spent.store(true, Ordering::Relaxed);
    }

    /// Gives up the space that is kept for the manifest. Returns whether there was any.
    pub fn spend_for_manifest(&self) -> bool {
        let _one = self.one.lock();
        let spent = self.give_up(&self.held_for_manifest, &self.of_manifest);
        if spent {
            rare!("manifest-written-from-ballast");
        }
        spent
    }

    /// Lends the space that is kept for the manifest, or a part of it, to `commit`: the file is not made again before `commit` returns.
    pub fn with_space_of_manifest<R>(&self, commit: impl FnOnce() -> R) -> R {
        let _lent = Lent::new(&self.lent);
        if !self.spend_for_log() {
            self.spend_for_manifest();
        }
        self.note_spent(); // or other commits would take what this one leaves
        commit()
    }

    /// Gives up the part of the file for the manifest that is for the log. Returns whether there was one.
    fn spend_for_log(&self) -> bool {
        let _one = self.one.lock();
        let (held, rest) = (self.held_for_manifest.load(Ordering::Relaxed), self.least_for_manifest());
        let shrink = || self.fs.open(&self.of_manifest, OpenMode::Write)?.truncate(rest);
        let spent = held >= rest + FOR_LOG && shrink().is_ok();
        if spent {
            self.was_full.store(true, Ordering::Relaxed);
            self.held_for_manifest.store(rest, Ordering::Relaxed);
        }
        spent
    }

    /// Bytes that the file for the manifest must have for the manifest alone.
    fn least_for_manifest(&self) -> u64 {
        self.manifest.load(Ordering::Relaxed).next_multiple_of(FOR_MANIFEST) + FOR_MANIFEST
    }

    /// Removes one of the files, because the disk is full. Returns whether there was one. One that an operator has deleted, to have its space,
    /// counts as removed here: otherwise it would be counted on for ever, and never be made again.
    fn give_up(&self, held: &AtomicU64, path: &Path) -> bool {
        self.was_full.store(true, Ordering::Relaxed);
        let removed = || self.fs.remove(path).map_or_else(|e| e.kind() == ErrorKind::NotFound, |()| true);
        let given_up = held.load(Ordering::Relaxed) > 0 && removed();
        if given_up {
            held.store(0, Ordering::Relaxed);
        }
        given_up
    }

    /// Notes how large the manifest is.
    pub fn note_manifest(&self, bytes: u64) {
        self.manifest.store(bytes, Ordering::Relaxed);
    }

    /// The most bytes of unflushed data that can be flushed, if there are `unflushed` now: the log takes as much of the free space as
    /// memtables grow by, and their flush takes the rest and the ballast. [`u64::MAX`] if there is no ballast, because the disk has plenty
    /// of space or the database is small. While it is spent, the deletes that are still accepted must leave as much for their flush. `None`
    /// if what is free is not known.
    pub fn room_for_flushes(&self, unflushed: u64) -> Option<u64> {
        let _one = self.one.lock();
        let held = self.held.load(Ordering::Relaxed);
        let spent = self.is_spent();
        if held == 0 && !spent {
            return Some(u64::MAX);
        }
        if self.has_quota.load(Ordering::Relaxed) {
            return (!spent).then_some(held);
        }
        let free = match self.fs.free_space(&self.dir) {
            Ok(free) => free,
            Err(_) if spent => return None,
            Err(_) => u64::MAX,
        };
        let room = (held + unflushed).saturating_add(free) / 2;
        let step = if spent { SMALLEST / 16 } else { SMALLEST };
        Some(room / step * step) // it is used only when it changes
    }

    /// The most bytes that a compaction may write to make room for others while the ballast is spent: half of what is left. The other half
    /// is for the log of deletes. `None` while there is a ballast that flushes may still use, or if the space left is not known, as with a
    /// quota: a compaction would use it up, and fail, again and again.
    pub fn room_for_compaction(&self) -> Option<u64> {
        if !self.is_spent() || self.is_held() || self.has_quota.load(Ordering::Relaxed) {
            return None;
        }
        self.fs.free_space(&self.dir).ok().map(|free| free / 2)
    }

    /// Whether the ballast is about to be made again, which flushes and compactions that run may keep it from: see [`DiskBallast::keep`].
    pub fn waits_for_jobs(&self) -> bool {
        self.is_spent() && self.pause.load(Ordering::Relaxed) == 0
    }

    /// Takes the file away, at a close.
    pub fn remove(&self) {
        let _one = self.one.lock();
        for (held, path) in [(&self.held, &self.path), (&self.held_for_manifest, &self.of_manifest)] {
            if held.swap(0, Ordering::Relaxed) > 0 {
                let _ = self.fs.remove(path);
            }
        }
    }

    /// The free bytes that the file system reports; `None` if it does not, or if a write found the disk full in spite of them.
    fn believed_free(&self) -> Option<u64> {
        match self.is_spent() || self.was_full.load(Ordering::Relaxed) {
            true => None,
            false => self.fs.free_space(&self.dir).ok(),
        }
    }

    /// Keeps both files: that for the manifest if it is wanted, and the ballast of `wanted` bytes: see [`DiskBallast::keep_ballast`]. The
    /// ballast is made if less than `below` bytes are free.
    ///
    /// One that was spent is made again if `beside` bytes are free besides it: after a pause, in which what it was spent for can begin, and while
    /// no flush or compaction runs or can begin (`is_quiet`), because without its space they would fail, and spend it again. If as much as they can
    /// write, `most`, is free besides, it need not wait for them. Under a quota, all of its space is taken for a moment to find out whether
    /// there is enough, so it waits in any case: anything that writes at that moment fails.
    pub fn keep(&self, (for_manifest, wanted): (bool, u64), beside: u64, below: u64, (most, is_quiet): (u64, bool)) {
        // One look for both, as each background job comes here.
        let free = if for_manifest || wanted > 0 { self.believed_free() } else { None };
        // One that is held goes only at twice the space, so that it does not come and go.
        let has_plenty = |held: &AtomicU64| {
            let much = if held.load(Ordering::Relaxed) > 0 { below.saturating_mul(2) } else { below };
            free.is_some_and(|free| free >= much)
        };
        let has_manifests = self.keep_for_manifest(for_manifest && !has_plenty(&self.held_for_manifest));
        if self.is_spent() && !has_manifests {
            return; // writes that are let in would take its space
        }
        self.keep_ballast(if wanted > 0 && has_plenty(&self.held) { 0 } else { wanted }, beside, (most, is_quiet));
    }

    /// Keeps the file for the manifest, if it is `wanted`, as large as a new manifest, a small segment of the log and a bit. It is made again as
    /// soon as there is that much space, before anything else may grow. Returns false if there is too little space.
    fn keep_for_manifest(&self, wanted: bool) -> bool {
        let held = self.held_for_manifest.load(Ordering::Relaxed);
        let size = if wanted { self.least_for_manifest() + FOR_LOG } else { 0 };
        let is_right = |held: u64| if size == 0 { held == 0 } else { held >= size };
        if is_right(held) {
            return true;
        }
        let _one = self.one.lock();
        let held = self.held_for_manifest.load(Ordering::Relaxed);
        let pause = self.pause_for_manifest.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause_for_manifest.store(pause - 1, Ordering::Relaxed);
            return true;
        }
        if is_right(held) {
            return true;
        }
        if size == 0 {
            let _ = self.fs.remove(&self.of_manifest);
            self.held_for_manifest.store(0, Ordering::Relaxed);
            return true;
        }
        // As below, no allocation is begun that must fail. A file without space for the log is better than none.
        let free = self.fs.free_space(&self.dir).unwrap_or(0);
        let sizes = [size, size - FOR_LOG].into_iter().filter(|size| *size > held && *size <= free + held);
        let Some(made) = sizes.max().filter(|_| !self.lent.load(Ordering::Relaxed)) else { return false };
        match self.allocate(&self.of_manifest, (made, held)) {
            Ok(()) => self.held_for_manifest.store(made, Ordering::Relaxed),
            Err(ErrorKind::NoSpace) => return false, // a quota; tried again in the next round
            Err(_) => {
                self.pause_for_manifest.store(PAUSE, Ordering::Relaxed);
                return true; // writes need not wait for the file
            }
        }
        made == size
    }

    /// Makes, grows or shrinks the file, or makes one of a half, a quarter and so on of its size where there is no more space;
    /// once it was spent, only all of it, and if there is space besides. Where files cannot be allocated there is no reserve.
    fn keep_ballast(&self, wanted: u64, beside: u64, (most, is_quiet): (u64, bool)) {
        // Its size changes seldom, and never a little.
        let is_right = |held: u64| held == wanted || held > wanted / 2 && held / 2 < wanted;
        if !self.is_spent() && is_right(self.held.load(Ordering::Relaxed)) {
            return;
        }
        let _one = self.one.lock();
        let needed = wanted + beside;
        let free = if self.is_spent() { self.fs.free_space(&self.dir).unwrap_or(0) } else { 0 };
        let has_quota = self.has_quota.load(Ordering::Relaxed);
        let is_for_all = self.is_spent() && !has_quota && free >= needed.saturating_add(most);
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 && !is_for_all {
            return self.pause.store(pause - 1, Ordering::Relaxed);
        }
        let held = self.held.load(Ordering::Relaxed);
        if self.is_spent() {
            if free < needed {
                self.pause.store(SHORT_PAUSE, Ordering::Relaxed);
            } else if is_quiet || is_for_all {
                self.make_again(wanted, beside);
            }
            return;
        }
        if is_right(held) {
            return;
        }
        if held > wanted {
            if self.shrink(wanted).is_err() {
                self.pause.store(PAUSE, Ordering::Relaxed);
            }
            return;
        }
        if held > 0 && has_quota {
            return; // what writes meanwhile would fail, and spend what there is
        }
        let (free, mut size) = (self.fs.free_space(&self.dir).unwrap_or(u64::MAX), wanted);
        while size > held {
            // An allocation that fails takes all the space first, so none is begun that must fail.
            let is_free = size <= free.saturating_add(held);
            match if is_free { self.take(size, held) } else { Err(ErrorKind::NoSpace) } {
                Ok(()) => return self.held.store(size, Ordering::Relaxed),
                Err(ErrorKind::NoSpace) if size / 2 >= SMALLEST => size /= 2,
                Err(ErrorKind::NoSpace) if held == 0 => return self.note_spent(),
                Err(ErrorKind::NoSpace) => return, // what there was is still there
                Err(_) => return self.pause.store(PAUSE, Ordering::Relaxed),
            }
        }
    }

    /// Makes the file anew after it was spent. Free space that a quota does not let the database have is found out by allocating it:
    /// all that must be free, for a moment. A smaller file would be spent by what is written beside it, and made again, and so on.
    fn make_again(&self, wanted: u64, beside: u64) {
        let size = if self.has_quota.load(Ordering::Relaxed) { wanted + beside } else { wanted };
        let made = if wanted == 0 { Ok(()) } else { self.take(size, 0).and_then(|()| self.give_back_beyond(wanted)) };
        match made {
            // Not before: the space beside it is that of the writes which are let in now.
            Ok(()) => self.spent.store(false, Ordering::Relaxed),
            Err(ErrorKind::NoSpace) => self.pause.store(SHORT_PAUSE, Ordering::Relaxed),
            Err(_) => {
                // There is space, as far as is known, so writes need not wait for the file.
                self.spent.store(false, Ordering::Relaxed);
                self.pause.store(PAUSE, Ordering::Relaxed);
            }
        }
    }

    /// Makes the new file `size` bytes long, or removes it: the space beyond that is not its own.
    fn give_back_beyond(&self, size: u64) -> Result<(), ErrorKind> {
        self.shrink(size).map_err(|e| {
            let _ = self.fs.remove(&self.path);
            e.kind()
        })
    }

    /// Gives back what the file has beyond `size` bytes. After an error it is as it was.
    fn shrink(&self, size: u64) -> Result<()> {
        match size {
            0 => self.fs.remove(&self.path)?,
            _ => self.fs.open(&self.path, OpenMode::Write)?.truncate(size)?,
        }
        self.held.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the ballast of `held` bytes `size` bytes long, for which the disk has said that it has the space.
    fn take(&self, size: u64, held: u64) -> Result<(), ErrorKind> {
        let allocate = || self.allocate(&self.path, (size, held));
        let says_free = || self.fs.free_space(&self.dir).map_or(true, |free| size <= free.saturating_add(held));
        let mut done = allocate();
        if done == Err(ErrorKind::NoSpace) && !self.has_quota.load(Ordering::Relaxed) && says_free() {
            done = allocate(); // a single refusal may be chance: another program had the space for a moment
            self.has_quota.store(done == Err(ErrorKind::NoSpace), Ordering::Relaxed);
        }
        done
    }

    /// Makes a file of `held` bytes `size` bytes long, or leaves it as it was.
    fn allocate(&self, path: &Path, (size, held): (u64, u64)) -> Result<(), ErrorKind> {
        let mode = if held > 0 { OpenMode::Write } else { OpenMode::Overwrite };
        let file = self.fs.open(path, mode).map_err(|e| e.kind())?;
        file.allocate(0, size).map_err(|e| {
            // A part may be allocated.
            let _ = if held > 0 { file.truncate(held) } else { self.fs.remove(path) };
            e.kind()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Isolation, Options};
    use kingtide_base::options::FileMode;
    use kingtide_vfs::{DirId, Fault, FaultFs, File, FileLock, MemFs, Op, Rule};

    /// No job runs, but one that begins may write any amount.
    const QUIET: (u64, bool) = (u64::MAX, true);

    /// A custom key order may panic in any commit.
    #[test]
    fn space_is_not_lent_for_ever_to_a_commit_that_panics() {
        let reserve = DiskBallast::new(MemFs::shared(), Path::new("db"));
        let commit = || reserve.with_space_of_manifest(|| panic!("in a commit"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).is_err());
        assert!(!reserve.lent.load(Ordering::Relaxed));
    }

    #[test]
    fn what_was_prepared_is_committed_even_from_the_reserve() {
        let options = Options { fs: Some(Arc::new(MemFs::new())), manual_jobs: true, ..Options::default() };
        let db = Db::open("db", options).unwrap();
        let family = db.default_family();
        db.put(b"old", b"value").unwrap();
        let mut doubts = Vec::new();
        for xid in [b"a", b"b"] {
            let mut txn = db.begin(Isolation::Snapshot).unwrap();
            txn.put(family, xid, b"prepared").unwrap();
            txn.prepare(xid).unwrap();
            doubts.push(txn);
        }
        let mut late = db.begin(Isolation::Snapshot).unwrap();
        late.put(family, b"late", b"value").unwrap();
        db.inner().reserve.spent.store(true, Ordering::Relaxed);

        let refused = |done: Result<()>| assert_eq!(done.unwrap_err().kind(), ErrorKind::NoSpace);
        refused(db.put(b"new", b"value").map(drop));
        refused(late.prepare(b"late"));
        db.delete(b"old").unwrap();
        doubts.remove(0).commit().unwrap();
        drop(doubts);
        db.commit_prepared(b"b").unwrap();
        assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"prepared"[..]));
        assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&b"prepared"[..]));
        db.inner().reserve.spent.store(false, Ordering::Relaxed);
        db.put(b"new", b"value").unwrap();
    }

    /// An eighth of what is stored now, not of what was stored once.
    #[test]
    fn a_database_that_shrinks_has_a_smaller_reserve() {
        let fs = MemFs::new();
        let dir = std::path::Path::new("d");
        let reserve = DiskBallast::new(Arc::new(fs.clone()), dir);
        fs.create_dir_all(dir).unwrap();
        let size = || fs.open(&dir.join(RESERVE_FILE), OpenMode::Read).ok().map(|file| file.len().unwrap());
        reserve.keep((false, 64 << 20), 0, u64::MAX, QUIET);
        reserve.keep((false, 33 << 20), 0, u64::MAX, QUIET);
        assert_eq!(size(), Some(64 << 20), "a little less is not worth a change");
        reserve.keep((false, 16 << 20), 0, u64::MAX, QUIET);
        assert_eq!((size(), reserve.is_spent()), (Some(16 << 20), false));
        reserve.keep((false, 31 << 20), 0, u64::MAX, QUIET);
        assert_eq!(size(), Some(16 << 20));
        reserve.keep((false, 32 << 20), 0, u64::MAX, QUIET);
        assert_eq!(size(), Some(32 << 20), "it grows again");
        reserve.keep((false, 0), 0, u64::MAX, QUIET);
        assert_eq!((size(), reserve.is_spent()), (None, false), "a small database keeps none");
        reserve.spend();
        assert!(!reserve.is_spent(), "there was nothing to spend");
        reserve.keep((false, 8 << 20), 0, u64::MAX, QUIET);
        assert_eq!(size(), Some(8 << 20));
    }

    /// Between a disk with much space and one with little is a gap, in which the reserve stays as it is.
    #[test]
    fn a_disk_with_much_space_needs_no_reserve_until_it_was_full() {
        let fs = MemFs::new();
        let dir = std::path::Path::new("d");
        fs.create_dir_all(dir).unwrap();
        let reserve = DiskBallast::new(Arc::new(fs.clone()), dir);
        let held = |free: u64| {
            fs.set_capacity(Some(free + reserve.held.load(Ordering::Relaxed)));
            reserve.keep((false, 8 << 20), 0, 100 << 20, QUIET);
            reserve.held.load(Ordering::Relaxed) >> 20
        };
        let pass = || (0..SHORT_PAUSE).for_each(|_| reserve.keep((false, 8 << 20), 0, 100 << 20, QUIET));
        assert_eq!([101, 99, 101, 199, 201, 101].map(|megabytes| held(megabytes << 20)), [0, 8, 8, 8, 0, 0]);
        reserve.spend();
        assert!(!reserve.is_spent(), "there was nothing to spend");
        assert_eq!(held(500 << 20), 8, "a disk that was full says that much is free");
        reserve.spend();
        pass();
        assert!(reserve.is_spent());
        assert_eq!((held(500 << 20), reserve.is_spent()), (8, false));
    }

    #[test]
    fn a_disk_with_little_space_has_a_small_reserve_and_refuses_nothing() {
        let fs = MemFs::new();
        fs.set_capacity(Some(24 << 20));
        let reserve = DiskBallast::new(Arc::new(fs.clone()), std::path::Path::new("d"));
        fs.create_dir_all(std::path::Path::new("d")).unwrap();
        reserve.keep((false, 64 << 20), 0, u64::MAX, QUIET);
        assert_eq!((reserve.held.load(Ordering::Relaxed), reserve.is_spent()), (16 << 20, false));
        reserve.spend();
        assert!(reserve.is_spent());
        let look =
            |wanted: u64| (0..=SHORT_PAUSE).for_each(|_| reserve.keep((false, wanted), 8 << 20, u64::MAX, QUIET));
        look(20 << 20);
        assert!(reserve.is_spent(), "there is not that much besides");
        look(16 << 20);
        assert_eq!((reserve.held.load(Ordering::Relaxed), reserve.is_spent()), (16 << 20, false));

        fs.create_dir_all(std::path::Path::new("e")).unwrap();
        fs.set_capacity(Some(0));
        let full = DiskBallast::new(Arc::new(fs), std::path::Path::new("e"));
        full.keep((false, 64 << 20), 0, u64::MAX, QUIET);
        assert!(full.is_spent(), "a disk without a megabyte is full");
    }

    /// To have their space when the disk is full.
    #[test]
    fn files_that_an_operator_deleted_are_made_again() {
        let (fs, dir) = (MemFs::new(), Path::new("d"));
        fs.create_dir_all(dir).unwrap();
        let ballast = DiskBallast::new(Arc::new(fs.clone()), dir);
        let keep = || (0..=SHORT_PAUSE).for_each(|_| ballast.keep((true, 8 << 20), 0, u64::MAX, QUIET));
        keep();
        let files = [RESERVE_FILE, MANIFEST_RESERVE_FILE].map(|name| dir.join(name));
        files.iter().for_each(|file| fs.remove(file).unwrap());
        assert!(ballast.spend() && ballast.is_spent() && !ballast.is_held());
        assert!(ballast.spend_for_manifest());
        keep();
        assert!(files.iter().all(|file| fs.exists(file).unwrap()) && ballast.is_held() && !ballast.is_spent());
    }

    /// A disk that reports much free space of which the database may have only a part.
    #[derive(Debug)]
    struct Quota(MemFs);

    impl Fs for Quota {
        fn with_mode(self: Arc<Self>, _: FileMode) -> Arc<dyn Fs> {
            self
        }

        fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
            self.0.open(path, mode)
        }

        fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
            self.0.open_log(path, size)
        }

        fn remove(&self, path: &Path) -> Result<()> {
            self.0.remove(path)
        }

        fn remove_dir(&self, path: &Path) -> Result<()> {
            self.0.remove_dir(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> Result<()> {
            self.0.rename(from, to)
        }

        fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
            self.0.hard_link(from, to)
        }

        fn create_dir_all(&self, path: &Path) -> Result<()> {
            self.0.create_dir_all(path)
        }

        fn list(&self, path: &Path) -> Result<Vec<String>> {
            self.0.list(path)
        }

        fn exists(&self, path: &Path) -> Result<bool> {
            self.0.exists(path)
        }

        fn sync_dir(&self, path: &Path) -> Result<()> {
            self.0.sync_dir(path)
        }

        fn dir_id(&self, path: &Path) -> Result<DirId> {
            self.0.dir_id(path)
        }

        fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
            self.0.lock(path)
        }

        fn free_space(&self, _: &Path) -> Result<u64> {
            Ok(1 << 40)
        }

        fn boot_id(&self) -> [u8; 16] {
            self.0.boot_id()
        }
    }

    /// A smaller ballast, or one with no space beside it, would be spent and made again in turn, for as long as there are writes.
    #[test]
    fn under_a_quota_a_ballast_is_made_again_as_a_whole_and_with_space_beside_it() {
        let (mem, dir) = (MemFs::new(), Path::new("d"));
        mem.create_dir_all(dir).unwrap();
        let ballast = DiskBallast::new(Arc::new(Quota(mem.clone())), dir);
        let held = |capacity: u64| {
            mem.set_capacity(Some(capacity << 20));
            (0..=SHORT_PAUSE).for_each(|_| ballast.keep((false, 8 << 20), 8 << 20, u64::MAX, QUIET));
            assert_ne!(ballast.is_spent(), ballast.is_held());
            ballast.held.load(Ordering::Relaxed) >> 20
        };
        assert_eq!(held(20), 8);
        assert_eq!(ballast.room_for_compaction(), None, "there is a ballast");
        assert!(ballast.spend());
        assert_eq!(ballast.room_for_compaction(), Some(1 << 39));
        assert_eq!([5, 15].map(held), [0, 0]);
        assert_eq!(ballast.room_for_compaction(), None, "what is free says nothing");
        assert_eq!(held(17), 8);
        let file = mem.open(&dir.join(RESERVE_FILE), OpenMode::Read).unwrap();
        assert_eq!(file.len().unwrap(), 8 << 20);
    }

    /// The excess is space that writes need.
    #[test]
    fn a_ballast_that_cannot_give_back_the_space_beside_it_is_made_anew() {
        let (mem, dir) = (MemFs::new(), Path::new("d"));
        mem.create_dir_all(dir).unwrap();
        let faults = FaultFs::new(Arc::new(Quota(mem.clone())), 1);
        let ballast = DiskBallast::new(Arc::new(faults.clone()), dir);
        let keep = |capacity: u64| {
            mem.set_capacity(Some(capacity << 20));
            (0..=SHORT_PAUSE).for_each(|_| ballast.keep((false, 8 << 20), 4 << 20, u64::MAX, QUIET));
        };
        keep(20);
        assert!(ballast.spend());
        keep(5);
        faults.add(Rule::new(Op::Allocate, Fault::Eio).path(RESERVE_FILE).nth(2)); // it is cut after it was allocated
        keep(20);
        assert_eq!(faults.stats().injected(), 1);
        assert!(!ballast.is_spent() && !ballast.is_held());
        assert_eq!(mem.free_space(dir).unwrap(), 20 << 20);
        (0..=PAUSE / SHORT_PAUSE).for_each(|_| keep(20));
        let file = mem.open(&dir.join(RESERVE_FILE), OpenMode::Read).unwrap();
        assert_eq!((file.len().unwrap(), ballast.is_held()), (8 << 20, true));
    }

    /// For a moment another program may have the space that was free when the disk was asked.
    #[test]
    fn a_refusal_by_chance_is_no_quota() {
        for was_spent in [false, true] {
            for is_taken in [false, true] {
                let (mem, dir) = (MemFs::new(), Path::new("d"));
                mem.create_dir_all(dir).unwrap();
                mem.set_capacity(Some(64 << 20));
                let faults = FaultFs::new(Arc::new(mem.clone()), 1);
                let ballast = DiskBallast::new(Arc::new(faults.clone()), dir);
                let keep = || ballast.keep((false, 8 << 20), 8 << 20, u64::MAX, QUIET);
                let pass = || (0..SHORT_PAUSE).for_each(|_| keep());
                if was_spent {
                    keep();
                    assert!(ballast.spend());
                    pass();
                }
                faults.add(Rule::new(Op::Allocate, Fault::Enospc).path(RESERVE_FILE));
                let disk = mem.clone();
                faults.before_each(Some(Arc::new(move |op, _: &Path| {
                    if op == Op::Allocate && is_taken {
                        disk.set_capacity(Some(1 << 10));
                    }
                })));
                keep();
                faults.before_each(None);
                assert_eq!(faults.stats().injected(), 1);
                assert!(!ballast.has_quota.load(Ordering::Relaxed), "{was_spent} {is_taken}");
                assert_eq!(ballast.is_held(), !is_taken);
                mem.set_capacity(Some(64 << 20));
                pass();
                keep();
                assert!(ballast.is_held() && !ballast.is_spent());
            }
        }
    }

    /// An attempt to grow takes all the space that a quota leaves, for a moment. What writes in that moment fails, and spends what there is of the
    /// ballast, which is made again only as a whole.
    #[test]
    fn under_a_quota_a_ballast_that_cannot_grow_stays_as_it_is() {
        let (mem, dir) = (MemFs::new(), Path::new("d"));
        mem.create_dir_all(dir).unwrap();
        let faults = FaultFs::new(Arc::new(Quota(mem.clone())), 1);
        let ballast = DiskBallast::new(Arc::new(faults.clone()), dir);
        let keep = |wanted: u64| ballast.keep((false, wanted), 0, u64::MAX, QUIET);
        mem.set_capacity(Some(12 << 20));
        keep(8 << 20);
        let (disk, path) = (mem.clone(), dir.join(RESERVE_FILE));
        let part = path.clone();
        faults.before_each(Some(Arc::new(move |op, _: &Path| {
            if op == Op::Allocate {
                disk.open(&part, OpenMode::Write).unwrap().allocate(0, 10 << 20).unwrap();
            }
        })));
        keep(32 << 20);
        let len = || mem.open(&path, OpenMode::Read).unwrap().len().unwrap();
        assert_eq!(len(), 8 << 20, "nothing is left of an allocation that failed");
        let tried = faults.count(Op::Allocate);
        (0..PAUSE).for_each(|_| keep(32 << 20));
        assert_eq!(faults.count(Op::Allocate), tried);
        faults.before_each(None);
        mem.set_capacity(Some(64 << 20));
        assert!(ballast.spend());
        (0..=SHORT_PAUSE).for_each(|_| keep(32 << 20));
        assert_eq!(len(), 32 << 20);
    }

    /// Writes are not refused because a file cannot be made for another reason than a full disk.
    #[test]
    fn writes_are_accepted_where_there_is_space_but_a_file_cannot_be_made() {
        let dir = Path::new("d");
        for name in [MANIFEST_RESERVE_FILE, RESERVE_FILE] {
            let (mem, wanted) = (MemFs::new(), (true, 8 << 20));
            mem.create_dir_all(dir).unwrap();
            mem.set_capacity(Some(64 << 20));
            let faults = FaultFs::new(Arc::new(mem), 1);
            let ballast = DiskBallast::new(Arc::new(faults.clone()), dir);
            ballast.keep(wanted, 0, u64::MAX, QUIET);
            assert!(ballast.spend_for_manifest() && ballast.spend() && ballast.is_spent());
            faults.add(Rule::new(Op::Open, Fault::Eio).path(name).sticky());
            (0..=SHORT_PAUSE).for_each(|_| ballast.keep(wanted, 0, u64::MAX, QUIET));
            assert!(!ballast.is_spent(), "{name}");
            faults.clear();
            (0..=PAUSE).for_each(|_| ballast.keep(wanted, 0, u64::MAX, QUIET));
            let exists = |name| faults.exists(&dir.join(name)).unwrap();
            assert!(exists(RESERVE_FILE) && exists(MANIFEST_RESERVE_FILE), "{name}: tried again after a while");
        }
    }
}
