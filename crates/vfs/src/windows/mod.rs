//! Files of Windows.
//!
//! What differs from POSIX, and what stands in for it (`docs/platforms.md` says what each is worth):
//!
//! * Removing an open file. NTFS since Windows 10 removes the name at once. Where that is refused, the name would stay until the last
//!   handle is closed, and nothing could be created in its place; so the file is renamed first, to a name that [`Fs::list`] does not
//!   tell.
//! * The names of a directory are flushed by way of a handle to it, where the system allows that.
//! * A log segment is an ordinary file, written with calls; there is no mapped window.
//! * The boot is not known, so each start is one after a power cut.
//! * Permissions are those that the directory hands down: a [`FileMode`] has no effect.

#![allow(clippy::disallowed_methods)] // the one room for std::fs

use std::fs;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use kingtide_base::options::FileMode;
use kingtide_base::{Error, Result};
use windows_sys::Win32::Foundation as w;
use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_BACKUP_SEMANTICS;

use self::calls::{PARKED, directory, explained, free_space, is_unknown, patiently, remove_file, repeat_at};
use self::file::{open_existing_to_read, open_file, open_to_write};
use self::sys::identity;
use crate::lock::{ProcessLock, lock_named};
use crate::transfer::open_sized;
use crate::{DirId, File, FileLock, Fs, LockKind, OpenMode};

mod calls;
mod errno;
mod file;
mod sys;

pub(crate) use errno::Errno;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFs {
    mode: FileMode,
}

impl SystemFs {
    /// The file system, behind the trait. What it creates has the permissions that its directory hands down.
    pub fn shared() -> Arc<dyn Fs> {
        static SHARED: OnceLock<Arc<SystemFs>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(Arc::default)) as Arc<dyn Fs>
    }
}

/// Checks before a thread is started that the process may have the memory that it takes. Here the start itself tells: the standard
/// library returns an error where the system has no memory for a stack.
///
/// # Errors
/// None.
pub fn room_for_a_thread() -> io::Result<()> {
    Ok(())
}

/// Locks a file. Returns whether the path still leads to it, too.
fn take_lock(path: &Path, file: fs::File, kind: LockKind) -> Result<(Box<dyn FileLock>, bool)> {
    let id = identity(&file).map_err(|e| Error::io("lock", path, e))?;
    let lock = ProcessLock::take(path, file, id, kind)?;
    let named = open_existing_to_read("lock", path).is_ok_and(|file| identity(&file).is_ok_and(|now| now == id));
    Ok((Box::new(lock), named))
}

impl Fs for SystemFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(open_file(path, mode, self.mode)?))
    }

    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(SystemFs { mode })
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        Ok(Arc::new(open_sized(path, size, |mode| open_file(path, mode, self.mode), remove_file)?.0))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        remove_file(path).map_err(|e| Error::io("remove", path, e))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        let removed = match patiently(|| fs::remove_dir(path)) {
            // Removed files whose last handle was closed meanwhile, or that a power cut left.
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty && self.list(path).is_ok_and(|l| l.is_empty()) => {
                patiently(|| fs::remove_dir(path))
            }
            other => other,
        };
        removed.map_err(|e| Error::io("remove directory", path, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        // Where an open file cannot be replaced, access is denied until its readers have closed it.
        let renamed = repeat_at(&[w::ERROR_SHARING_VIOLATION, w::ERROR_ACCESS_DENIED], || {
            let is_dir = fs::symlink_metadata(from)?.is_dir();
            // A directory would take the place of a file.
            if fs::symlink_metadata(to).is_ok_and(|there| there.is_dir() != is_dir) {
                return Err(if is_dir { Errno::NOTDIR } else { Errno::ISDIR }.into());
            }
            // It asks for the semantics of POSIX where the older call refuses, because the file at `to` is open.
            fs::rename(from, to)
        });
        renamed.map_err(|e| Error::io(&format!("rename to {}", to.display()), from, e))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let linked = patiently(|| match fs::symlink_metadata(from)?.is_symlink() {
            // The new name would be one of the symbolic link, whose target others can remove.
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => fs::hard_link(from, to),
        });
        linked.map_err(|e| Error::io(&format!("hard link to {}", to.display()), from, e))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(directory(path)).map_err(|e| Error::io("create directory", path, explained(path, e)))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        let failed = |e| Error::io("list", path, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(directory(path)).map_err(failed)? {
            // No name that the engine makes is anything but ASCII, so a lossy one is a stranger's and only looked at.
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if name.contains(PARKED) {
                // Left by a process that ended between renaming and removing. Refused if that is still to happen, or done.
                let _ = fs::remove_file(path.join(name));
            } else {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        fs::exists(directory(path)).map_err(|e| Error::io("look for", path, e))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::io("sync directory", path, e);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
        let dir = patiently(|| options.open(directory(path))).map_err(failed)?;
        match dir.sync_all() {
            // File systems that cannot flush a directory order changes of names themselves, or do not promise any.
            Err(e) if is_unknown(&e) || e.raw_os_error() == Some(w::ERROR_INVALID_HANDLE.cast_signed()) => Ok(()),
            other => other.map_err(failed),
        }
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        let mut options = fs::OpenOptions::new();
        options.access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
        let found = patiently(|| options.open(directory(path))).and_then(|dir| identity(&dir));
        found.map(|(volume, number)| DirId(volume, number)).map_err(|e| Error::io("identify", path, e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let open = || open_to_write("lock", path, self.mode, |o| _ = o.create(true).truncate(false));
        lock_named(|| take_lock(path, open()?, LockKind::Exclusive))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        lock_named(|| take_lock(path, open_existing_to_read("lock", path)?, LockKind::Shared))
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        free_space(path).map_err(|e| Error::io("ask for free space", path, e))
    }

    fn boot_id(&self) -> [u8; 16] {
        [0; 16]
    }
}

#[cfg(test)]
mod tests;
