//! The operating system's files.

#![allow(clippy::disallowed_methods)] // the one room for std::fs

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kingtide_base::options::FileMode;
use kingtide_base::{Error, ErrorKind, Result};
use rustix::fs::{Advice, FallocateFlags, OFlags};

use self::fork::Origin;
use crate::{File, FileLock, Fs, OpenMode};

pub(crate) mod fork;
mod lock;
mod log;
pub(crate) mod mapped;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct PosixFs {
    mode: FileMode,
}

impl PosixFs {
    /// The file system, behind the trait. What it creates is its owner's alone: see [`Fs::with_mode`].
    pub fn shared() -> Arc<dyn Fs> {
        static SHARED: OnceLock<Arc<PosixFs>> = OnceLock::new();
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

/// For a file that is written to: a symbolic link in its place is not followed, for it may lead anywhere.
fn options_to_write(mode: FileMode) -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(mode.file_bits()).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
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

/// Others that create a file of the same name again and again are given up on after so many of them were removed.
const REPLACED: usize = 16;

fn open_file(path: &Path, mode: OpenMode, permissions: FileMode) -> Result<PosixFile> {
    let (doing, opened) = match mode {
        OpenMode::Read => ("open", retry(|| fs::File::open(path))),
        OpenMode::Create => ("create", retry(|| options_to_write(permissions).create_new(true).open(path))),
        OpenMode::Overwrite => ("create", replace(path, permissions)),
        OpenMode::Write => ("open for writing", retry(|| options_to_write(permissions).open(path))),
    };
    let file = opened.map_err(|e| open_failed(doing, path, e))?;
    if mode == OpenMode::Read {
        // Point reads dominate: without this the kernel reads ahead around each of them. Only a hint, so its failure is
        // ignored.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    }
    Ok(PosixFile { path: path.to_owned(), file, origin: Origin::here() })
}

/// Creates a file in place of what has its name, which is removed and not written to.
fn replace(path: &Path, permissions: FileMode) -> io::Result<fs::File> {
    let mut options = options_to_write(permissions);
    options.create_new(true);
    let mut removed = 0;
    loop {
        match retry(|| options.open(path)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && removed < REPLACED => removed += 1,
            other => return other,
        }
        match retry(|| fs::remove_file(path)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
}

impl Fs for PosixFs {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_file(path, mode)?))
    }

    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(PosixFs { mode })
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        let (file, new) = match self.open_file(path, OpenMode::Write) {
            Err(e) if e.kind() == ErrorKind::NotFound => (self.open_file(path, OpenMode::Create)?, true),
            other => (other?, false),
        };
        let len = file.len()?;
        if len > size {
            file.truncate(size)?;
        }
        if let Err(e) = file.allocate(0, size) {
            // A full disk gave what it had. The cause is what the caller needs to hear, so failures here are not told.
            let _ = if new { self.remove(path) } else { file.truncate(len.min(size)) };
            return Err(e);
        }
        Ok(Arc::new(log::PosixLog::new(file, size, len > 0)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        retry(|| fs::remove_file(path)).map_err(|e| Error::io("remove", path, e))
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

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        Ok(Box::new(lock::ProcessLock::take(path, self.mode)?))
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

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Fills `buf` through a `pread` that may return early; the count is short only at the end of the file.
fn read_fully(buf: &mut [u8], pread: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match retry(|| pread(&mut buf[done..], done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Writes all of `data` through a `pwrite` that may take only part of it.
fn write_fully(data: &[u8], pwrite: impl Fn(&[u8], u64) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match retry(|| pwrite(&data[done..], done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => done += n,
        }
    }
    Ok(())
}

#[derive(Debug)]
struct PosixFile {
    path: PathBuf,
    file: fs::File,
    /// The process that opened it, which alone may write to it.
    origin: Origin,
}

impl PosixFile {
    #[cold]
    fn failed(&self, doing: &str, e: impl Into<io::Error>) -> Error {
        Error::io(doing, &self.path, e.into())
    }

    /// The last line of defence: a forked child shares the file with its parent, and must not change it.
    #[inline]
    fn check_origin(&self) -> Result<()> {
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
        match retry(|| Ok(rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len)?)) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => self.write_zeros(self.len()?, offset + len),
            Err(e) => Err(self.failed("allocate", e).at_offset(offset)),
        }
    }

    fn advise_sequential(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Sequential);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }
}

#[cold]
fn opened_before_fork(path: &Path) -> Error {
    let text = "the file was opened before a fork(), and only the process that opened it may write to it";
    Error::new(ErrorKind::Closed, text).at_path(path)
}

#[cfg(test)]
mod tests;
