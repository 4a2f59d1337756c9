//! The lock that keeps a second opener out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kingtide_base::lock::Mutex;
use kingtide_base::{Error, Result};

use crate::fork::{Origin, PerProcess};
use crate::{FileLock, locked, locked_here};

/// The identity of every lock file that this process holds. The system's lock belongs to the open file description, so
/// it alone would refuse a second open here too; the registry refuses it even where locks are emulated per process (NFS),
/// and can say that it was this process.
pub(crate) static HELD: PerProcess<Mutex<BTreeSet<(u64, u64)>>> = PerProcess::new();

/// An exclusive lock of the system (`flock`, or `LockFileEx` on Windows), and a place in the process's registry.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    id: (u64, u64),
    file: fs::File,
    origin: Origin,
}

impl ProcessLock {
    /// Locks an open file, which `id` tells from all others. Never waits.
    pub(crate) fn take(path: &Path, file: fs::File, id: (u64, u64)) -> Result<ProcessLock> {
        // Held across the system's lock, so that of two threads one gets both.
        let mut held = HELD.get().lock();
        if held.contains(&id) {
            return Err(locked_here(path));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(locked(path, "another process has it open; close it there, or wait until it ends"));
            }
            Err(fs::TryLockError::Error(e)) => return Err(Error::io("lock", path, e)),
        }
        held.insert(id);
        Ok(ProcessLock { id, file, origin: Origin::here() })
    }
}

impl FileLock for ProcessLock {}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return; // a forked child: the system's lock is shared with the parent, whose it is
        }
        let mut held = HELD.get().lock();
        // Before the registry forgets it: a thread that finds the place free must get the system's lock too. A failure
        // leaves it to the closing of the descriptor.
        let _ = self.file.unlock();
        held.remove(&self.id);
    }
}
