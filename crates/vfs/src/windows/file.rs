//! Opening, reading and writing files.
//!
//! Reads and writes give their offset with each call. They move the handle's cursor too, which nothing uses. A handle is not opened for
//! overlapped I/O, so the system carries out one call on it at a time.

use std::fs;
use std::io;
use std::os::windows::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kingtide_base::options::FileMode;
use kingtide_base::{Error, Result};
use windows_sys::Win32::Foundation::ERROR_HANDLE_DISK_FULL;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_OPEN_REPARSE_POINT, FILE_FLAG_RANDOM_ACCESS,
};

use super::calls::{explained, free_space, patiently, remove_file};
use super::errno::Errno;
use super::sys;
use crate::transfer::{read_fully, replace, write_fully};
use crate::{File, OpenMode};

/// For a file that is written to: a symbolic link in its place is opened itself, and then refused.
fn options_to_write() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    options
}

/// Opens a file to write to it, as `how` says.
pub(super) fn open_to_write(
    doing: &str,
    path: &Path,
    _: FileMode,
    how: impl Fn(&mut fs::OpenOptions),
) -> Result<fs::File> {
    let mut options = options_to_write();
    how(&mut options);
    let failed = |e| Error::io(doing, path, explained(path, e));
    let file = patiently(|| options.open(path)).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT == 0 {
        return Ok(file);
    }
    if meta.file_type().is_symlink() {
        let e = failed(io::ErrorKind::InvalidInput.into());
        return Err(e.context("a symbolic link is in the place of a file that is written to; remove it"));
    }
    // A file that the system keeps elsewhere (deduplicated, in a cloud): the flag gave access to what stands for it.
    let mut options = fs::OpenOptions::new();
    patiently(|| options.read(true).write(true).open(path)).map_err(failed)
}

/// Opens a file only to read, but as [`open_to_write`] does: without following a symbolic link.
pub(super) fn open_existing_to_read(doing: &str, path: &Path) -> Result<fs::File> {
    let failed = |e| Error::io(doing, path, explained(path, e));
    if patiently(|| fs::symlink_metadata(path)).map_err(failed)?.is_symlink() {
        let e = failed(io::ErrorKind::InvalidInput.into());
        return Err(e.context("a symbolic link is in the place of a file that is written to; remove it"));
    }
    patiently(|| fs::File::open(path)).map_err(failed)
}

pub(super) fn open_file(path: &Path, mode: OpenMode, permissions: FileMode) -> Result<WinFile> {
    let file = match mode {
        OpenMode::Read => {
            // Point reads dominate: without this the system reads ahead around each of them.
            let mut options = fs::OpenOptions::new();
            options.read(true).custom_flags(FILE_FLAG_RANDOM_ACCESS);
            patiently(|| options.open(path)).map_err(|e| Error::io("open", path, explained(path, e)))?
        }
        OpenMode::Create => open_to_write("create", path, permissions, |o| _ = o.create_new(true))?,
        OpenMode::Overwrite => {
            replace(options_to_write(), path, remove_file).map_err(|e| Error::io("create", path, explained(path, e)))?
        }
        OpenMode::Write => open_to_write("open for writing", path, permissions, |_| ())?,
    };
    Ok(WinFile { path: path.to_owned(), file, writable: mode != OpenMode::Read })
}

/// A file of the operating system's.
#[derive(Debug)]
pub(super) struct WinFile {
    path: PathBuf,
    file: fs::File,
    writable: bool,
}

impl WinFile {
    #[cold]
    fn failed(&self, doing: &str, e: io::Error) -> Error {
        let full = e.raw_os_error() == Some(ERROR_HANDLE_DISK_FULL.cast_signed());
        Error::io(doing, &self.path, if full { Errno::NOSPC.into() } else { e })
    }

    /// The same handle, or if it is one for reading, another one that may be flushed.
    fn flush(&self) -> Result<()> {
        let flushed = match self.writable {
            true => self.file.sync_all(),
            false => sys::reopen_to_flush(&self.file).and_then(|file| file.sync_all()),
        };
        flushed.map_err(|e| self.failed("sync", e))
    }
}

/// Offsets beyond this are negative to the system, where some have a meaning of their own.
fn check_end(offset: u64, len: u64) -> io::Result<u64> {
    offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or_else(|| Errno::FBIG.into())
}

impl File for WinFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        check_end(offset, buf.len() as u64)
            .and_then(|_| read_fully(buf, |b, done| self.file.seek_read(b, offset + done)))
            .map_err(|e| self.failed("read", e).at_offset(offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        check_end(offset, data.len() as u64)
            .and_then(|_| write_fully(data, |b, done| self.file.seek_write(b, offset + done)))
            .map_err(|e| self.failed("write", e).at_offset(offset))
    }

    // There is one call for both: it flushes data and metadata, and the disk's cache.
    fn sync_data(&self) -> Result<()> {
        self.flush()
    }

    fn sync_all(&self) -> Result<()> {
        self.flush()
    }

    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| self.failed("ask for the length of", e))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        check_end(len, 0).and_then(|len| self.file.set_len(len)).map_err(|e| self.failed("truncate", e))
    }

    /// NTFS and ReFS give clusters to all bytes of a file that is neither sparse nor compressed, so setting its length is enough. The
    /// free space is asked for first, because other file systems do not.
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let failed = |e| self.failed("allocate", e).at_offset(offset);
        if !self.writable {
            return Err(failed(Errno::BADF.into()));
        }
        let end = check_end(offset, len).map_err(failed)?;
        let have = self.len()?;
        if len == 0 || end <= have {
            return Ok(());
        }
        if free_space(&self.path).is_ok_and(|free| end - have > free) {
            return Err(failed(Errno::NOSPC.into()));
        }
        self.file.set_len(end).map_err(failed)
    }

    fn allows_helpers(&self) -> bool {
        true
    }
}
