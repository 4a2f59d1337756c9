//! A file system in memory that knows what a power cut would leave.
//!
//! It keeps two versions of everything: what a running process sees, and what is durable, with the unsynced changes
//! between them in order. All content is copy-on-write, so that the whole disk can be cloned before every single write
//! operation of a scenario, which then needs to run only once:
//!
//! ```
//! # use kingtide_vfs::*; use kingtide_base::rng::Rng; use std::{path::Path, sync::Arc};
//! # use std::sync::Mutex;
//! let fs = MemFs::new();
//! let clones = Arc::new(Mutex::new(Vec::new()));
//! let keep = Arc::clone(&clones);
//! fs.on_write(Some(Box::new(move |b: &Boundary<'_>| keep.lock().unwrap().push(b.kill_clone()))));
//! let log = fs.open_log(Path::new("log"), 4096)?;
//! log.write_at(b"committed", 0)?;
//! log.sync_data()?;
//! fs.on_write(None);
//! for before_write in clones.lock().unwrap().iter() {
//!     for model in Survival::ALL {
//!         let found = before_write.crash_clone(model, &mut Rng::new(1));
//!         // open `found`, and check that nothing acknowledged is gone
//!     }
//! }
//! # Ok::<(), kingtide_base::Error>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kingtide_base::hash::mix64;
use kingtide_base::lock::{Mutex, RwLock, RwLockWriteGuard};
use kingtide_base::options::FileMode;
use kingtide_base::rng::Rng;
use kingtide_base::{Error, Result};

use crate::lock::{Registry, lock_named};
use crate::system::Errno;
use crate::{DirId, File, FileLock, Fs, LockKind, OpenMode, is_one_write};

mod content;
mod crash;
mod disk;
mod journal;
#[cfg(test)]
mod tests;

pub use crash::Survival;
use disk::Disk;

/// Writes to a log segment below this size are stores into its mapped window, as those of the POSIX file system may be.
const STORED: usize = 1 << 10;

/// An operation that changes what a crash would leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteOp {
    /// A file made, or cut by opening.
    Create,
    /// `write_at`.
    Write,
    /// A small record that `write_record_at` writes with one write, or a point in the middle of that write.
    Record,
    /// `truncate`.
    Truncate,
    /// `allocate`, and the allocation of a log segment.
    Allocate,
    /// `sync_data` and `sync_all`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `remove` and `remove_dir`.
    Remove,
    /// `rename`.
    Rename,
    /// `hard_link`.
    HardLink,
    /// `create_dir_all`.
    CreateDir,
}

/// The moment before a write operation.
#[derive(Debug)]
pub struct Boundary<'a> {
    /// Number of the operation, from 0.
    pub number: u64,
    /// What is about to happen.
    pub op: WriteOp,
    /// To what.
    pub path: &'a Path,
    disk: &'a Disk,
}

impl Boundary<'_> {
    /// As [`MemFs::kill_clone`].
    pub fn kill_clone(&self) -> MemFs {
        MemFs::of(self.disk.kill())
    }

    /// As [`MemFs::crash_clone`].
    pub fn crash_clone(&self, model: Survival, rng: &mut Rng) -> MemFs {
        MemFs::of(self.disk.crash(model, rng))
    }
}

/// What [`MemFs::on_write`] calls.
pub type OnWrite = Box<dyn FnMut(&Boundary<'_>) + Send>;

struct State {
    /// Tells its directories from those of others.
    number: u64,
    disk: Disk,
    write_ops: u64,
    /// In a mutex only so that the state may be shared; reached through `get_mut`.
    callback: Option<Mutex<OnWrite>>,
    traps: BTreeSet<u64>,
    trapped: Vec<(u64, MemFs)>,
    locks: Registry,
    syncs_to_fail: u64,
    /// So many syncs of directories succeed, and the next one fails.
    dir_sync_to_fail: Option<u64>,
}

impl State {
    /// Counts a write operation and lets the test look at the disk before it.
    fn before_write(&mut self, op: WriteOp, path: &Path) {
        let number = self.write_ops;
        self.write_ops += 1;
        if self.traps.remove(&number) {
            self.trapped.push((number, MemFs::of(self.disk.kill())));
        }
        if let Some(callback) = &mut self.callback {
            callback.get_mut()(&Boundary { number, op, path, disk: &self.disk });
        }
    }
}

/// A file system in memory that knows what a power cut would leave. Cloning the handle shares the files.
///
/// Paths are rooted: relative ones start at the root, which always exists and needs no sync.
#[derive(Clone)]
pub struct MemFs {
    state: Arc<RwLock<State>>,
}

impl fmt::Debug for MemFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFs").field("write_ops", &self.write_ops()).finish_non_exhaustive()
    }
}

impl Default for MemFs {
    fn default() -> MemFs {
        MemFs::new()
    }
}

impl MemFs {
    /// An empty file system without a size limit.
    pub fn new() -> MemFs {
        MemFs::of(Disk::new())
    }

    /// As [`MemFs::new`], behind the trait.
    pub fn shared() -> Arc<dyn Fs> {
        Arc::new(MemFs::new())
    }

    fn of(disk: Disk) -> MemFs {
        // Counted from above, where no device of the machine has its number.
        static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
        let state = State {
            number: NEXT.fetch_sub(1, Ordering::Relaxed), // each number is drawn once, in whatever order
            disk,
            write_ops: 0,
            callback: None,
            traps: BTreeSet::new(),
            trapped: Vec::new(),
            locks: Registry::default(),
            syncs_to_fail: 0,
            dir_sync_to_fail: None,
        };
        MemFs { state: Arc::new(RwLock::new(state)) }
    }

    /// Limits the bytes of all files together, reserved ones included (`None`: no limit). Names cost nothing.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.write().disk.capacity = bytes;
    }

    /// What a process finds that starts after this one died, the machine staying up: everything that was written, and
    /// no locks. What is durable and what is not stays known, so that the power can be cut on the clone later.
    ///
    /// Costs a few reference counts per file.
    pub fn kill_clone(&self) -> MemFs {
        MemFs::of(self.state.read().disk.kill())
    }

    /// What a process finds after the machine lost power now. The boot id is another one; the same `rng` state gives the
    /// same clone.
    pub fn crash_clone(&self, model: Survival, rng: &mut Rng) -> MemFs {
        MemFs::of(self.state.read().disk.crash(model, rng))
    }

    /// Number of write operations so far; a clone starts at 0.
    pub fn write_ops(&self) -> u64 {
        self.state.read().write_ops
    }

    /// Calls back before every write operation, on the thread that does it, the file system standing still: the callback
    /// must not touch this file system but through the [`Boundary`]. What it learns from elsewhere, such as which commits
    /// were acknowledged so far, belongs to that moment. `None` ends it.
    pub fn on_write(&self, callback: Option<OnWrite>) {
        // Dropped after the lock is released: it may own files of this very file system.
        let _old = std::mem::replace(&mut self.state.write().callback, callback.map(Mutex::new));
    }

    /// Keeps a [`MemFs::kill_clone`] from before each write operation in `numbers`; see [`MemFs::take_traps`].
    pub fn set_traps(&self, numbers: impl IntoIterator<Item = u64>) {
        self.state.write().traps.extend(numbers);
    }

    /// The clones kept so far, each with its operation number.
    pub fn take_traps(&self) -> Vec<(u64, MemFs)> {
        std::mem::take(&mut self.state.write().trapped)
    }

    /// The next `n` file syncs fail with EIO and mark the unsynced bytes clean, as common file systems do: a later sync
    /// succeeds without making them durable, though they can be read until the power goes.
    pub fn fail_syncs(&self, n: u64) {
        self.state.write().syncs_to_fail = n;
    }

    /// The `nth` sync of a directory from now, counting from 1, fails with EIO and forgets all changes of its names: a later
    /// sync succeeds without making them durable, though the names are there until the power goes. 0: none fails.
    pub fn fail_dir_sync(&self, nth: u64) {
        self.state.write().dir_sync_to_fail = nth.checked_sub(1);
    }

    fn before(&self, op: WriteOp, path: &Path) -> RwLockWriteGuard<'_, State> {
        let mut state = self.state.write();
        state.before_write(op, path);
        state
    }

    fn handle(&self, state: &mut State, id: u64, path: &Path, writable: bool) -> MemFile {
        state.disk.opened(id);
        MemFile { fs: self.clone(), id, path: path.to_owned(), writable, log: false }
    }

    fn create(&self, path: &Path) -> Result<MemFile> {
        let mut state = self.before(WriteOp::Create, path);
        let id = state.disk.create(path).map_err(|e| Error::io("create", path, e))?;
        Ok(self.handle(&mut state, id, path, true))
    }

    /// An existing file; `None` when there is none.
    fn open_existing(&self, path: &Path, writable: bool) -> Result<Option<MemFile>> {
        let mut state = self.state.write();
        match state.disk.find(path).and_then(|id| state.disk.file(id).map(|_| id)) {
            Ok(id) => Ok(Some(self.handle(&mut state, id, path, writable))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("open", path, e)),
        }
    }

    /// Locks a file. Returns whether the path still leads to it, too.
    fn take_lock(&self, path: &Path, file: MemFile, kind: LockKind) -> Result<(Box<dyn FileLock>, bool)> {
        let id = (0, file.id); // there is one device
        let mut state = self.state.write();
        let entry = state.locks.admit(path, id, kind)?;
        state.locks.enter(id, entry);
        let named = state.disk.find(path).is_ok_and(|found| found == file.id);
        drop(state); // which the file takes too, when it is dropped
        Ok((Box::new(MemLock { file }), named))
    }

    fn open_file(&self, path: &Path, mode: OpenMode) -> Result<MemFile> {
        if mode == OpenMode::Create {
            return self.create(path);
        }
        match (self.open_existing(path, mode != OpenMode::Read)?, mode) {
            (Some(file), OpenMode::Overwrite) => {
                self.remove(path)?;
                drop(file);
                self.create(path)
            }
            (Some(file), _) => Ok(file),
            (None, OpenMode::Overwrite) => self.create(path),
            (None, _) => Err(Error::io("open", path, Errno::NOENT.into())),
        }
    }
}

impl Fs for MemFs {
    fn with_mode(self: Arc<Self>, _: FileMode) -> Arc<dyn Fs> {
        self
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(path, mode)?))
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        let (mut file, new) = match self.open_existing(path, true)? {
            Some(file) => (file, false),
            None => (self.create(path)?, true),
        };
        if file.len()? > size {
            file.truncate(size)?;
        }
        if file.len()? < size
            && let Err(e) = file.allocate(0, size)
        {
            if new {
                self.remove(path)?;
            }
            return Err(e);
        }
        file.log = true;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.before(WriteOp::Remove, path).disk.remove(path, false).map_err(|e| Error::io("remove", path, e))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.before(WriteOp::Remove, path).disk.remove(path, true).map_err(|e| Error::io("remove directory", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.before(WriteOp::Rename, from);
        state.disk.rename(from, to).map_err(|e| Error::io(&format!("rename to {}", to.display()), from, e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.before(WriteOp::HardLink, from);
        state.disk.hard_link(from, to).map_err(|e| Error::io(&format!("hard link to {}", to.display()), from, e))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let mut state = self.before(WriteOp::CreateDir, path);
        state.disk.create_dir_all(path).map_err(|e| Error::io("create directory", path, e))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let state = self.state.read();
        let dir = state.disk.find(path).and_then(|id| state.disk.dir(id)).map_err(|e| Error::io("list", path, e))?;
        Ok(dir.current.keys().cloned().collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.state.read().disk.find(path).is_ok())
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let mut state = self.before(WriteOp::SyncDir, path);
        let fails = state.dir_sync_to_fail == Some(0);
        state.dir_sync_to_fail = state.dir_sync_to_fail.and_then(|left| left.checked_sub(1));
        let synced = match fails {
            true => state.disk.lose_names(path).and(Err(Errno::IO.into())),
            false => state.disk.sync_dir(path),
        };
        synced.map_err(|e| Error::io("sync directory", path, e))
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        let state = self.state.read();
        let dir = state.disk.find(path).map_err(|e| Error::io("identify", path, e))?;
        Ok(DirId(state.number, dir))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let open = || self.open_existing(path, true)?.map_or_else(|| self.create(path), Ok);
        lock_named(|| self.take_lock(path, open()?, LockKind::Exclusive))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let missing = || Error::io("lock", path, Errno::NOENT.into());
        let open = || self.open_existing(path, false)?.ok_or_else(missing);
        lock_named(|| self.take_lock(path, open()?, LockKind::Shared))
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        let state = self.state.read();
        state.disk.find(path).map_err(|e| Error::io("ask for free space", path, e))?;
        Ok(state.disk.free())
    }

    fn boot_id(&self) -> [u8; 16] {
        self.state.read().disk.boot
    }
}

#[derive(Debug)]
struct MemLock {
    file: MemFile,
}

impl FileLock for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.file.fs.state.write().locks.leave((0, self.file.id));
    }
}

#[derive(Debug)]
struct MemFile {
    fs: MemFs,
    id: u64,
    path: PathBuf,
    writable: bool,
    /// Opened as a log segment.
    log: bool,
}

impl MemFile {
    #[cold]
    fn failed(&self, doing: &str, e: impl Into<io::Error>) -> Error {
        Error::io(doing, &self.path, e.into())
    }

    fn write(&self, state: &mut State, data: &[u8], offset: u64, mapped: bool) -> Result<()> {
        state.disk.write(self.id, data, offset, mapped).map_err(|e| self.failed("write", e).at_offset(offset))
    }

    /// For the operations that need a writable handle.
    fn before(&self, op: WriteOp, doing: &str) -> Result<RwLockWriteGuard<'_, State>> {
        if self.writable { Ok(self.fs.before(op, &self.path)) } else { Err(self.failed(doing, Errno::BADF)) }
    }
}

impl File for MemFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let state = self.fs.state.read();
        let file = state.disk.file(self.id).map_err(|e| self.failed("read", e))?;
        Ok(file.written.read(buf, offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut state = self.before(WriteOp::Write, "write")?;
        self.write(&mut state, data, offset, self.log && data.len() < STORED)
    }

    /// The place of a record decides how it is written. One in eight goes into the mapped window, its body and its head
    /// separately, and for one in eight there is a moment at which only the beginning of the record is there.
    fn write_record_at(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        let len = head.len() + body.len();
        let place = mix64(offset);
        if !self.log || !is_one_write(offset, len) || place.is_multiple_of(8) {
            return Ok(false);
        }
        let mut record = Vec::with_capacity(len);
        record.extend_from_slice(head);
        record.extend_from_slice(body);
        let mut state = self.before(WriteOp::Record, "write")?;
        let done = if place % 8 == 1 { (place >> 8) as usize % len.max(1) } else { 0 };
        let (first, rest) = record.split_at(done);
        if done > 0 {
            self.write(&mut state, first, offset, false)?;
            state.before_write(WriteOp::Record, &self.path);
        }
        self.write(&mut state, rest, offset + done as u64, false).map(|()| true)
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<bool> {
        self.write_at(&vec![0; len as usize], offset).map(|()| true)
    }

    fn sync_data(&self) -> Result<()> {
        let mut state = self.fs.before(WriteOp::Sync, &self.path);
        if state.syncs_to_fail > 0 {
            state.syncs_to_fail -= 1;
            state.disk.lose_unsynced(self.id);
            return Err(self.failed("sync", Errno::IO));
        }
        state.disk.sync(self.id);
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }

    fn len(&self) -> Result<u64> {
        let state = self.fs.state.read();
        Ok(state.disk.file(self.id).map_err(|e| self.failed("ask for the length of", e))?.written.len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let mut state = self.before(WriteOp::Truncate, "truncate")?;
        state.disk.truncate(self.id, len).map_err(|e| self.failed("truncate", e))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.before(WriteOp::Allocate, "allocate")?;
        state.disk.allocate(self.id, offset, len).map_err(|e| self.failed("allocate", e).at_offset(offset))
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.fs.state.write().disk.closed(self.id);
    }
}
