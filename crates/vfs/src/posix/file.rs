//! Opening, reading and writing files, again where a signal interrupted it.

use std::fs;
use std::io;
#[cfg(target_os = "linux")]
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kingtide_base::options::FileMode;
use kingtide_base::{Error, ErrorKind, Result};
use rustix::fs::OFlags;

use super::hints::{self, Access};
use crate::fork::Origin;
#[cfg(target_os = "linux")]
use crate::transfer::write_parts_fully;
use crate::transfer::{read_fully, replace, retry, write_fully};
use crate::{File, OpenMode};

/// For a file that is written to: a symbolic link in its place is not followed, for it may lead anywhere.
fn options_to_write(mode: FileMode) -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(mode.file_bits()).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens a file to write to it, as `how` says.
pub(super) fn open_to_write(
    doing: &str,
    path: &Path,
    mode: FileMode,
    how: impl Fn(&mut fs::OpenOptions),
) -> Result<fs::File> {
    let mut options = options_to_write(mode);
    how(&mut options);
    retry(|| options.open(path)).map_err(|e| open_failed(doing, path, e))
}

/// Opens a file only to read, but as [`open_to_write`] does: without following a symbolic link.
pub(super) fn open_existing_to_read(doing: &str, path: &Path) -> Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    retry(|| options.open(path)).map_err(|e| open_failed(doing, path, e))
}

/// The error of an open that met a symbolic link where none is followed.
#[cold]
fn open_failed(doing: &str, path: &Path, e: io::Error) -> Error {
    let is_link = e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    match Error::io(doing, path, e) {
        e if is_link => e.context("a symbolic link is in the place of a file that is written to; remove it"),
        e => e,
    }
}

/// Removes a name; the error of a missing one has the kind `NotFound`.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    retry(|| fs::remove_file(path))
}

pub(super) fn open_file(path: &Path, mode: OpenMode, permissions: FileMode) -> Result<PosixFile> {
    let file = match mode {
        OpenMode::Read => retry(|| fs::File::open(path)).map_err(|e| Error::io("open", path, e))?,
        OpenMode::Create => open_to_write("create", path, permissions, |o| _ = o.create_new(true))?,
        OpenMode::Overwrite => {
            replace(options_to_write(permissions), path, remove_file).map_err(|e| open_failed("create", path, e))?
        }
        OpenMode::Write => open_to_write("open for writing", path, permissions, |_| ())?,
    };
    if mode == OpenMode::Read {
        // Point reads dominate: without this the kernel reads ahead around each of them. Only a hint, so its failure is
        // ignored.
        hints::advise(&file, 0, 0, Access::Random);
    }
    Ok(PosixFile { path: path.to_owned(), file, origin: Origin::here() })
}

/// A file of the operating system's.
#[derive(Debug)]
pub(super) struct PosixFile {
    path: PathBuf,
    pub file: fs::File,
    /// The process that opened it, which alone may write to it.
    pub origin: Origin,
}

impl PosixFile {
    #[cold]
    pub fn failed(&self, doing: &str, e: impl Into<io::Error>) -> Error {
        Error::io(doing, &self.path, e.into())
    }

    /// The last line of defence: a forked child shares the file with its parent, and must not change it.
    #[inline]
    pub fn check_origin(&self) -> Result<()> {
        if self.origin.is_here() { Ok(()) } else { Err(opened_before_fork(&self.path)) }
    }

    /// Writes zeros where `fallocate` is not supported. Only past the present end: bytes before it have blocks, or are
    /// holes, which are the business of the code that made them.
    fn write_zeros(&self, from: u64, to: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }
}

impl File for PosixFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        read_fully(buf, |b, done| self.file.read_at(b, offset + done))
            .map_err(|e| self.failed("read", e).at_offset(offset))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_origin()?;
        write_fully(data, |b, done| self.file.write_at(b, offset + done))
            .map_err(|e| self.failed("write", e).at_offset(offset))
    }

    #[cfg(target_os = "linux")]
    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        self.check_origin()?;
        let pwritev = |parts: &[IoSlice<'_>], done| Ok(rustix::io::pwritev(&self.file, parts, offset + done)?);
        write_parts_fully(parts, pwritev).map_err(|e| self.failed("write", e).at_offset(offset))
    }

    fn sync_data(&self) -> Result<()> {
        retry(|| self.file.sync_data()).map_err(|e| self.failed("sync", e))
    }

    fn sync_all(&self) -> Result<()> {
        retry(|| self.file.sync_all()).map_err(|e| self.failed("sync", e))
    }

    fn len(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| self.failed("ask for the length of", e))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.check_origin()?;
        retry(|| self.file.set_len(len)).map_err(|e| self.failed("truncate", e))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.check_origin()?;
        match retry(|| hints::allocate(&self.file, offset, len)) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => self.write_zeros(self.len()?, offset + len),
            Err(e) => Err(self.failed("allocate", e).at_offset(offset)),
        }
    }

    fn advise_sequential(&self) {
        hints::advise(&self.file, 0, 0, Access::Sequential);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if len > 0 {
            hints::advise(&self.file, offset, len, Access::Soon);
        }
    }

    fn allows_helpers(&self) -> bool {
        true
    }
}

#[cold]
fn opened_before_fork(path: &Path) -> Error {
    let text = "the file was opened before a fork(), and only the process that opened it may write to it";
    Error::new(ErrorKind::Closed, text).at_path(path)
}
