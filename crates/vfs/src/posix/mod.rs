//! Files of Unix systems.

#![allow(clippy::disallowed_methods)] // the one room for std::fs

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use kingtide_base::options::FileMode;
use kingtide_base::{Error, Result};

use self::file::{PosixFile, open_existing_to_read, open_file, open_to_write, remove_file};
use crate::lock::{ProcessLock, lock_named};
use crate::transfer::{open_sized, retry};
use crate::{DirId, File, FileLock, Fs, LockKind, OpenMode};

mod file;
mod hints;
mod log;
mod mapped;

pub use mapped::room_for_a_thread;
pub(crate) use rustix::io::Errno;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFs {
    mode: FileMode,
}

impl SystemFs {
    /// The file system, behind the trait. What it creates is its owner's alone: see [`Fs::with_mode`].
    pub fn shared() -> Arc<dyn Fs> {
        static SHARED: OnceLock<Arc<SystemFs>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(Arc::default)) as Arc<dyn Fs>
    }

    fn open_file(&self, path: &Path, mode: OpenMode) -> Result<PosixFile> {
        open_file(path, mode, self.mode)
    }
}

/// The empty path means the current directory, which the system calls want spelled out.
fn directory(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Locks a file. Returns whether the path still leads to it, too.
fn take_lock(path: &Path, file: fs::File, kind: LockKind) -> Result<(Box<dyn FileLock>, bool)> {
    let id = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let of_file = file.metadata().map(id).map_err(|e| Error::io("lock", path, e))?;
    let lock = ProcessLock::take(path, file, of_file, kind)?;
    let named = retry(|| fs::symlink_metadata(path)).is_ok_and(|meta| id(meta) == of_file);
    Ok((Box::new(lock), named))
}

impl Fs for SystemFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(path, mode)?))
    }

    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(SystemFs { mode })
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        let (file, len) = open_sized(path, size, |mode| self.open_file(path, mode), remove_file)?;
        Ok(Arc::new(log::PosixLog::new(file, size, len > 0)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        remove_file(path).map_err(|e| Error::io("remove", path, e))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        retry(|| fs::remove_dir(path)).map_err(|e| Error::io("remove directory", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        retry(|| fs::rename(from, to)).map_err(|e| Error::io(&format!("rename to {}", to.display()), from, e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let linked = retry(|| match fs::symlink_metadata(from)?.is_symlink() {
            // The new name would be one of the symbolic link, whose target others can remove.
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => fs::hard_link(from, to),
        });
        linked.map_err(|e| Error::io(&format!("hard link to {}", to.display()), from, e))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(self.mode.dir_bits());
        retry(|| builder.create(directory(path))).map_err(|e| Error::io("create directory", path, e))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let failed = |e| Error::io("list", path, e);
        let mut names = Vec::new();
        for entry in retry(|| fs::read_dir(directory(path))).map_err(failed)? {
            // No name that the engine makes is anything but ASCII, so a lossy one is a stranger's and only looked at.
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        retry(|| fs::exists(directory(path))).map_err(|e| Error::io("look for", path, e))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        retry(|| fs::File::open(directory(path)))
            .and_then(|dir| retry(|| dir.sync_all()))
            .map_err(|e| Error::io("sync directory", path, e))
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        let found = retry(|| fs::metadata(directory(path))).map_err(|e| Error::io("identify", path, e))?;
        Ok(DirId(found.dev(), found.ino()))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let open = || open_to_write("lock", path, self.mode, |o| _ = o.create(true).truncate(false));
        lock_named(|| take_lock(path, open()?, LockKind::Exclusive))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        lock_named(|| take_lock(path, open_existing_to_read("lock", path)?, LockKind::Shared))
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        let v = rustix::fs::statvfs(directory(path)).map_err(|e| Error::io("ask for free space", path, e.into()))?;
        Ok(v.f_bavail.saturating_mul(v.f_frsize))
    }

    fn boot_id(&self) -> [u8; 16] {
        static ID: OnceLock<[u8; 16]> = OnceLock::new();
        // Read outside of the cell: a process that is forked while the cell is being filled waits at it for ever.
        *ID.get().unwrap_or_else(|| {
            let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            let id = parse_boot_id(&text).unwrap_or([0; 16]);
            ID.get_or_init(|| id)
        })
    }
}

/// The UUID's 32 hexadecimal digits.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    let mut digits = text.trim().chars().filter(|&c| c != '-').map(|c| c.to_digit(16));
    for byte in &mut id {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    digits.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests;
