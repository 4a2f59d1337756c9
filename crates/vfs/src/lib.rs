//! Kingtide's file systems. The engine reaches storage only through the two traits here, so that a test can run it on a
//! file system that forgets unsynced bytes, fails on command, or fills up.
//!
//! | type | what it is |
//! |---|---|
//! | [`SystemFs`] | the operating system's files: positioned I/O, and on Linux log segments through a sliding mapped window |
//! | [`MemFs`] | files in memory that know which bytes and names would survive a power cut |
//! | [`FaultFs`] | wraps another file system; injects errors by rule and counts operations |
//!
//! # Durability contract
//!
//! * Bytes survive the death of the *process* once [`File::write_at`] returns.
//! * Bytes survive the death of the *machine* once a later [`File::sync_data`] returns.
//! * A name (made by create, rename, hard link, or gone by remove) survives the death of the machine once
//!   [`Fs::sync_dir`] of its directory returns; syncing the file is not enough.
//! * After a failed sync nothing is known about the bytes written since the last good one: the system may have marked
//!   the pages clean. Do not retry; stop writing (Rebello et al., "Can Applications Recover from fsync Failures?",
//!   USENIX ATC 2020).

#![allow(clippy::disallowed_methods)] // files are its business

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use kingtide_base::memory::reserve;
use kingtide_base::options::FileMode;
use kingtide_base::{Error, ErrorKind, Result};

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod durable;
mod fault;
mod fork;
mod lock;
mod mem;
#[cfg(unix)]
mod posix;
#[cfg(test)]
mod scratch;
mod transfer;
#[cfg(windows)]
mod windows;

#[cfg(test)]
extern crate self as kingtide_vfs; // what the tests beside the source call it
#[cfg(all(test, unix))]
#[path = "../tests/kill/mod.rs"]
mod kill;

pub use durable::{sync_dir_patiently, write_again};
pub use fault::{BeforeEach, Fault, FaultFs, FaultStats, Op, Rule};
pub use fork::{Origin, PerProcess};
pub use mem::{Boundary, MemFs, OnWrite, Survival, WriteOp};
#[cfg(unix)]
use posix as system;
pub use system::{SystemFs, room_for_a_thread};
#[cfg(windows)]
use windows as system;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenMode {
    /// Existing, for reading only.
    Read,
    /// New; an existing file is an error. Read and write.
    Create,
    /// New; a file of that name is removed first, if there is one. So nothing is written through a symbolic or hard link
    /// that was put there, and handles to the old file stay valid. Read and write.
    Overwrite,
    /// Existing, kept as it is, and no symbolic link. Read and write.
    Write,
}

/// Identifies a directory within this process, whatever path leads to it: the file system and, in it, the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirId(pub u64, pub u64);

/// What else may be locked beside a lock of [`Fs::lock`] or [`Fs::lock_shared`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Nothing.
    Exclusive,
    /// Other shared locks.
    Shared,
}

/// Held while a directory is in use; dropping it gives the lock back.
pub trait FileLock: Send + Sync + Debug {}

/// A file system. All paths are used as given; errors name them. The engine calls it while it holds locks: what implements it must neither
/// call a database that lies on it nor close one.
pub trait Fs: Send + Sync + Debug {
    /// Opens a file. Creating one does not make its name durable: see [`Fs::sync_dir`].
    ///
    /// # Errors
    /// `NotFound` (the file, or its directory when creating), `Exists` ([`OpenMode::Create`]), `Io`.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;

    /// The same file system, but what is created from now on, by way of the result, has these permissions, less the
    /// process's umask. A file system without permissions ignores them.
    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs>;

    /// Opens or creates a log segment of exactly `size` bytes with its blocks allocated, so that a full disk is an error
    /// here. An existing file keeps its bytes up to `size` (a recycled segment); bytes never written read as zero. A
    /// symbolic link is refused.
    ///
    /// The handle is tuned for one thread that appends small records; others may read. Concurrent writers are safe but
    /// wait for each other.
    ///
    /// No other handle may shorten the file meanwhile: a store past its end kills the process.
    ///
    /// # Errors
    /// `NoSpace`, `NotFound` (the directory), `Io`. A file that was not there before is gone again then.
    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>>;

    /// Unlinks a file. Open handles keep working; the space comes back when the last one is dropped.
    ///
    /// # Errors
    /// `NotFound`, `Io` (such as a directory).
    fn remove(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `Io` (not empty, not a directory).
    fn remove_dir(&self, path: &Path) -> Result<()>;

    /// Renames atomically; a file at `to` is replaced.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Gives a file a second name.
    ///
    /// # Errors
    /// `NotFound`, `Exists` (something is at `to`), `Io`; also when `from` is a symbolic link.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Creates a directory and its missing parents. None of their names is durable: sync each parent.
    ///
    /// # Errors
    /// `NoSpace`, `Exists` or `Io` (a file is in the way).
    fn create_dir_all(&self, path: &Path) -> Result<()>;

    /// The names in a directory, files and directories, sorted.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn list(&self, path: &Path) -> Result<Vec<String>>;

    /// Whether a file or directory is there.
    ///
    /// # Errors
    /// `Io`.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Makes the names in a directory durable. The empty path is the current directory.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn sync_dir(&self, path: &Path) -> Result<()>;

    /// Identifies a directory: the answer is the same for all paths that lead to it, and for all objects through which the
    /// same files are reached. A failed sync of a directory may have lost names that were made through another object, so
    /// the engine has to know which objects mean the same directory. A file system that wraps another passes the question on.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn dir_id(&self, path: &Path) -> Result<DirId>;

    /// Takes an exclusive lock on a file, which is created when missing and stays after the lock is dropped; a symbolic
    /// link is refused. Never waits. The holder may remove the file: when this returns, the path led to the file that is locked.
    ///
    /// # Errors
    /// `Locked` when this or another process holds it; otherwise as [`Fs::open`].
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;

    /// Takes a lock that excludes those of [`Fs::lock`], but no other of its own kind, on a file that exists: for callers
    /// that read what its owner must not change meanwhile. It needs the permission to read the file, and none to write to it, so
    /// it can be taken where nothing can be written. Never waits.
    ///
    /// A file system of the caller's that does not implement it takes an exclusive lock, which is safe but may need to write.
    ///
    /// # Errors
    /// `Locked` when this or another process holds it exclusively; `NotFound`; otherwise as [`Fs::open`].
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.lock(path)
    }

    /// Bytes that this process can still write in the file system that holds `path`, an existing file or directory.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn free_space(&self, path: &Path) -> Result<u64>;

    /// Identifies the machine's present boot: another value means that the machine restarted, so unsynced bytes may be
    /// gone. All zeros when unknown, which callers must treat as a restart.
    fn boot_id(&self) -> [u8; 16];
}

/// Longest record that [`File::write_record_at`] may write with one write of the system.
const ONE_WRITE: usize = 1 << 10;
/// The smallest page that a system has.
const SMALLEST_PAGE: u64 = 4 << 10;

/// Whether a log record of `len` bytes at `offset`, its header included, may be written with a single write of the system. A kill
/// or a failing disk may leave such a write incomplete: the system copies the bytes of one page without checking for signals, but
/// stops midway if the memory that it copies from goes away (swapped out, moved, or taken from a process that is being killed for
/// want of memory). A reader of the page may meanwhile see only the first of the bytes. The log's recovery relies on these
/// limits, also for logs that earlier versions have written, so they must not change.
#[doc(hidden)]
#[inline]
pub fn is_one_write(offset: u64, len: usize) -> bool {
    len <= ONE_WRITE && offset % SMALLEST_PAGE + len as u64 <= SMALLEST_PAGE
}

/// An open file. All I/O is positioned; handles can be shared by threads.
pub trait File: Send + Sync + Debug {
    /// The path that it was opened at (a later rename does not change it).
    fn path(&self) -> &Path;

    /// Reads at an offset into all of `buf`; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// `Io`.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes all of `data`. When it fails, any part of it may have been written.
    ///
    /// # Errors
    /// `NoSpace`, `Io` (such as a file opened for reading).
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Writes `parts` one behind the other, in one call of the system where it has one for this; else a copy of them all. Large
    /// writes matter: Linux's page cache keeps a file in pieces that are as large as the writes which made them, and smaller pieces
    /// make both writes and later reads slower.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let mut whole = Vec::new();
        reserve(&mut whole, parts.iter().map(|part| part.len()).sum(), "a write")?;
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        self.write_at(&whole, offset)
    }

    /// For a log segment: writes a small record whose `head` must not be in the file without the `body` behind it, even if the
    /// process is killed meanwhile or another one reads the file. Where no single write of the system does this, nothing is
    /// written, and the result is false.
    ///
    /// A record for which [`is_one_write`] is true, and no other, may be found in part all the same: its head with the
    /// beginning of its body. Readers must not take that for damage.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn write_record_at(&self, head: &[u8], body: &[u8], offset: u64) -> Result<bool> {
        let _ = (head, body, offset);
        Ok(false)
    }

    /// Makes the bytes durable, and the length that is needed to read them.
    ///
    /// # Errors
    /// `Io`, `NoSpace`. Do not retry: see the crate's durability contract.
    fn sync_data(&self) -> Result<()>;

    /// As [`File::sync_data`], and all other metadata.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    fn sync_all(&self) -> Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// `Io`.
    fn len(&self) -> Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// `Io`.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Sets the length; new bytes are zero.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    fn truncate(&self, len: u64) -> Result<()>;

    /// Reserves disk blocks for a range and extends the file to its end; bytes already there stay.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Of a log segment: writes zeros into a range that was allocated and never written, so that the file system need not
    /// note with each later sync which blocks were written for the first time. To be followed by a sync. False: there is
    /// nothing to gain, and nothing was written.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn prefill(&self, offset: u64, len: u64) -> Result<bool> {
        let _ = (offset, len);
        Ok(false)
    }

    /// Reads until `buf` is full or the file ends, and returns how many bytes were read.
    ///
    /// # Errors
    /// As [`File::read_at`]; `Io` if reads return nothing although the file goes on. Code that takes missing bytes for a
    /// write that a power cut tore must not take such a read for the end of the file.
    fn read_full_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self.read_at(buf, offset)? {
            n if n == buf.len() => Ok(n),
            n => read_rest(self.path(), buf, offset, n, &|b, at| self.read_at(b, at), &|| self.len()),
        }
    }

    /// Reads exactly `buf.len()` bytes.
    ///
    /// # Errors
    /// `Corruption` with file and offset when the file ends before; otherwise as [`File::read_full_at`].
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let got = self.read_full_at(buf, offset)?;
        if got == buf.len() {
            return Ok(());
        }
        Err(ends_early(self.path(), buf.len(), offset, got))
    }

    /// Hint: this handle will be read from front to back.
    fn advise_sequential(&self) {}

    /// Hint: the range will be read soon. Starts reading ahead without waiting where the system can.
    fn prefetch(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Whether threads that help the caller may read and write the file beside it. False where the order of operations must
    /// be the same in each run: in file systems that fail at a chosen one, or that are simulated.
    fn allows_helpers(&self) -> bool {
        false
    }
}

/// Continues a read that returned `got` bytes, until the buffer is full or the file ends.
#[cold]
fn read_rest(
    path: &Path,
    buf: &mut [u8],
    offset: u64,
    mut got: usize,
    read_at: &dyn Fn(&mut [u8], u64) -> Result<usize>,
    len: &dyn Fn() -> Result<u64>,
) -> Result<usize> {
    let mut futile = false;
    while got < buf.len() {
        let at = offset + got as u64;
        match read_at(&mut buf[got..], at)? {
            0 if len()? <= at => break,
            0 if futile => {
                let text = format!("a read returned nothing, although the file has {} bytes", len()?);
                return Err(Error::new(ErrorKind::Io, text).at_path(path).at_offset(at));
            }
            0 => futile = true, // it may have grown meanwhile
            n => {
                got += n;
                futile = false;
            }
        }
    }
    Ok(got)
}

#[cold]
fn ends_early(path: &Path, wanted: usize, offset: u64, got: usize) -> Error {
    Error::corruption(format!("file ends early: wanted {wanted} bytes, got {got}")).at_path(path).at_offset(offset)
}

#[cold]
fn locked(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Locked, format!("{} is locked: {why}", path.display())).at_path(path)
}

#[cold]
fn locked_here(path: &Path) -> Error {
    locked(path, "this process has it open already; share that handle, or close it first")
}

#[cold]
fn locked_by_readers_here(path: &Path) -> Error {
    locked(path, "this process is verifying or repairing it; wait until that ends")
}
