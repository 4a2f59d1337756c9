//! The lock that keeps a second opener out.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kingtide_base::{Error, Result};
use parking_lot::Mutex;

use crate::{FileLock, locked, locked_here};

/// (device, inode) of every lock file held by this process. The system's lock belongs to the open file description, so
/// it alone would refuse a second open here too; the registry refuses it even where locks are emulated per process (NFS),
/// and can say that it was this process.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// An exclusive `flock`, and a place in the process's registry.
#[derive(Debug)]
pub(super) struct ProcessLock {
    id: (u64, u64),
    file: fs::File,
}

impl ProcessLock {
    pub(super) fn take(path: &Path) -> Result<ProcessLock> {
        let failed = |e| Error::io("lock", path, e);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = super::retry(|| options.open(path)).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let id = (meta.dev(), meta.ino());
        // Held across the system's lock, so that of two threads one gets both.
        let mut held = HELD.lock();
        if held.contains(&id) {
            return Err(locked_here(path));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(locked(path, "another process has it open; close it there, or wait until it ends"));
            }
            Err(fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
        held.insert(id);
        Ok(ProcessLock { id, file })
    }
}

impl FileLock for ProcessLock {}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        // Before the registry forgets it: a thread that finds the place free must get the system's lock too. A failure
        // leaves it to the closing of the descriptor.
        let _ = self.file.unlock();
        held.remove(&self.id);
    }
}
