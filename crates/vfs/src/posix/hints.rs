//! What systems have in different ways, or not at all: allocation, and advice about how a file will be read.
//!
//! | | Linux | other Unix systems |
//! |---|---|---|
//! | [`allocate`] | `fallocate` | `Unsupported`: the caller writes zeros, which reserves the same space more slowly |
//! | [`advise`] | `posix_fadvise` | nothing: the system reads ahead as it thinks best |
//! | [`writes_in_place`] | asks for the kind of file system | never, so that every write of the log is a `pwrite` |

use std::fs::File;
use std::io;

/// How bytes of a file will be read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// Here and there: nothing is to be read ahead.
    Random,
    /// From one end to the other.
    Sequential,
    /// Soon: they are to be read now.
    Soon,
}

/// Tells the system how `len` bytes from `offset` will be read; a `len` of 0 means all that follow. Only a hint, so its failure is
/// ignored.
#[cfg(target_os = "linux")]
pub(super) fn advise(file: &File, offset: u64, len: u64, access: Access) {
    use rustix::fs::{Advice, fadvise};
    let advice = match access {
        Access::Random => Advice::Random,
        Access::Sequential => Advice::Sequential,
        Access::Soon => Advice::WillNeed,
    };
    let _ = fadvise(file, offset, std::num::NonZeroU64::new(len), advice);
}

#[cfg(not(target_os = "linux"))]
pub(super) fn advise(_: &File, _: u64, _: u64, _: Access) {}

/// Gives blocks to `len` bytes from `offset`, and makes the file as long.
///
/// # Errors
/// `Unsupported` where the file system, or the system, cannot.
#[cfg(target_os = "linux")]
pub(super) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), offset, len)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether the file system writes an allocated block where it is. One that writes elsewhere (btrfs, ZFS, F2FS) can run out
/// of space at a store, which kills the process instead of returning an error; there all writes are `pwrite`.
///
/// What remains is what no user-space code can exclude: an XFS file whose blocks someone shared by a reflink copy while the
/// disk is full, another program that cuts the file, a disk that cannot read back a page it was given.
#[cfg(target_os = "linux")]
pub(super) fn writes_in_place(file: &File) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const TMPFS: i64 = 0x0102_1994;
    #[allow(clippy::unnecessary_cast)] // the field's type differs between machines
    rustix::fs::fstatfs(file).is_ok_and(|s| [EXT, XFS, TMPFS].contains(&(s.f_type as i64)))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn writes_in_place(_: &File) -> bool {
    false
}
