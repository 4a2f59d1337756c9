//! The lock that keeps a second opener out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kingtide_base::lock::Mutex;
use kingtide_base::{Error, Result};

use crate::fork::{Origin, PerProcess};
use crate::{FileLock, LockKind, locked, locked_by_readers_here, locked_here};

/// How a process holds a lock file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    /// By one handle.
    Exclusively,
    /// By so many handles, at least one.
    Shared(usize),
}

/// Every lock file that this process holds, by its identity. The system's lock belongs to the open file description, so
/// it alone would refuse a second open here too; the registry refuses it even where locks are emulated per process (NFS),
/// and can say that it was this process.
pub(crate) static HELD: PerProcess<Mutex<Registry>> = PerProcess::new();

/// The lock files that a process holds.
#[derive(Debug, Default)]
pub(crate) struct Registry(BTreeMap<(u64, u64), Held>);

impl Registry {
    /// What a lock of this kind would be, beside those that are held.
    ///
    /// # Errors
    /// `Locked`, if it cannot be beside them.
    pub(crate) fn admit(&self, path: &Path, id: (u64, u64), kind: LockKind) -> Result<Held> {
        match (self.0.get(&id), kind) {
            (None, LockKind::Exclusive) => Ok(Held::Exclusively),
            (None, LockKind::Shared) => Ok(Held::Shared(1)),
            (Some(Held::Shared(n)), LockKind::Shared) => Ok(Held::Shared(n + 1)),
            (Some(Held::Shared(_)), LockKind::Exclusive) => Err(locked_by_readers_here(path)),
            (Some(Held::Exclusively), _) => Err(locked_here(path)),
        }
    }

    /// Notes what [`Registry::admit`] returned.
    pub(crate) fn enter(&mut self, id: (u64, u64), held: Held) {
        self.0.insert(id, held);
    }

    /// Forgets one handle's lock.
    pub(crate) fn leave(&mut self, id: (u64, u64)) {
        match self.0.get_mut(&id) {
            Some(Held::Shared(n)) if *n > 1 => *n -= 1,
            _ => _ = self.0.remove(&id),
        }
    }
}

/// A lock of the system (`flock`, or `LockFileEx` on Windows), and a place in the process's registry.
#[derive(Debug)]
pub(crate) struct ProcessLock {
    id: (u64, u64),
    file: fs::File,
    origin: Origin,
}

impl ProcessLock {
    /// Locks an open file, which `id` tells from all others. Never waits.
    pub(crate) fn take(path: &Path, file: fs::File, id: (u64, u64), kind: LockKind) -> Result<ProcessLock> {
        // Held across the system's lock, so that of two threads one gets both.
        let mut held = HELD.get().lock();
        let entry = held.admit(path, id, kind)?;
        let (taken, holder) = match kind {
            LockKind::Exclusive => (file.try_lock(), "another process has it open, or is verifying or repairing it"),
            LockKind::Shared => (file.try_lock_shared(), "another process has it open"),
        };
        match taken {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(locked(path, &format!("{holder}; close it there, or wait until it ends")));
            }
            Err(fs::TryLockError::Error(e)) => return Err(Error::io("lock", path, e)),
        }
        held.enter(id, entry);
        Ok(ProcessLock { id, file, origin: Origin::here() })
    }
}

impl FileLock for ProcessLock {}

/// How often a lock is taken again. A file system that numbers a file differently each time would have it taken again for ever.
const TRIES: usize = 8;

/// Opens and locks a file with `take`, which also says whether its path still leads to that file. A holder may remove the file before it
/// gives up the lock: a caller that opened it before would otherwise get the lock on a file that has no name, and the next the one on a new file.
pub(crate) fn lock_named(take: impl Fn() -> Result<(Box<dyn FileLock>, bool)>) -> Result<Box<dyn FileLock>> {
    for _ in 1..TRIES {
        if let (lock, true) = take()? {
            return Ok(lock);
        }
    }
    take().map(|(lock, _)| lock)
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            return; // a forked child: the system's lock is shared with the parent, whose it is
        }
        let mut held = HELD.get().lock();
        // Before the registry forgets it: a thread that finds the place free must get the system's lock too. A failure
        // leaves it to the closing of the descriptor.
        let _ = self.file.unlock();
        held.leave(self.id);
    }
}
