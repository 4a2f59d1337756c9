//! A file system in memory.
use std::path::Path;
use std::sync::Arc;

use kingtide_base::Result;
use kingtide_base::rng::Rng;

use crate::{File, FileLock, Fs, OpenMode};

/// What a power cut leaves of everything that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survival {
    /// Nothing unsynced.
    AllLost,
    /// Everything.
    AllKept,
    /// Each 512-byte block by itself, each file length and each directory change by itself.
    RandomBlocks,
    /// The first so many unsynced changes in order, the last of them cut at a 512-byte boundary.
    Torn,
}

impl Survival {
    /// Every model.
    pub const ALL: [Survival; 4] = [Survival::AllLost, Survival::AllKept, Survival::RandomBlocks, Survival::Torn];
}

/// An operation that changes what a crash would leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteOp {
    /// A file made, or cut by opening.
    Create,
    /// `write_at`.
    Write,
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
    /// A directory made.
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
}

impl Boundary<'_> {
    /// What the next process would find if this one died now.
    pub fn kill_clone(&self) -> MemFs {
        unimplemented!()
    }
}

/// A file system in memory that knows what a power cut would leave. Cloning the handle shares the files.
#[derive(Clone, Debug, Default)]
pub struct MemFs {}

impl MemFs {
    /// An empty file system without a size limit.
    pub fn new() -> MemFs {
        MemFs {}
    }
    /// As [`MemFs::new`], behind the trait.
    pub fn shared() -> Arc<dyn Fs> {
        Arc::new(MemFs::new())
    }
    /// Limits the bytes of all files together (`None`: no limit).
    pub fn set_capacity(&self, _bytes: Option<u64>) {}
    /// What a process finds that starts after this one died, the machine staying up.
    pub fn kill_clone(&self) -> MemFs {
        unimplemented!()
    }
    /// What a process finds after the machine lost power now.
    pub fn crash_clone(&self, _model: Survival, _rng: &mut Rng) -> MemFs {
        unimplemented!()
    }
    /// Number of write operations so far.
    pub fn write_ops(&self) -> u64 {
        0
    }
    /// Calls back before every write operation.
    pub fn on_write(&self, _callback: Option<Box<dyn FnMut(&Boundary<'_>) + Send>>) {}
    /// Keeps a clone from before each write operation in `numbers`; see [`MemFs::take_traps`].
    pub fn set_traps(&self, _numbers: impl IntoIterator<Item = u64>) {}
    /// The clones kept so far, each with its operation number.
    pub fn take_traps(&self) -> Vec<(u64, MemFs)> {
        Vec::new()
    }
}

#[allow(unused_variables)]
impl Fs for MemFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        unimplemented!()
    }
    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        unimplemented!()
    }
    fn remove(&self, path: &Path) -> Result<()> {
        unimplemented!()
    }
    fn remove_dir(&self, path: &Path) -> Result<()> {
        unimplemented!()
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        unimplemented!()
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        unimplemented!()
    }
    fn create_dir_all(&self, path: &Path) -> Result<()> {
        unimplemented!()
    }
    fn list(&self, path: &Path) -> Result<Vec<String>> {
        unimplemented!()
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        unimplemented!()
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        unimplemented!()
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        unimplemented!()
    }
    fn free_space(&self, path: &Path) -> Result<u64> {
        unimplemented!()
    }
    fn boot_id(&self) -> [u8; 16] {
        unimplemented!()
    }
}
