//! The calls of Windows that the standard library has no safe function for. The only unsafe code of this directory.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle};
use std::path::Path;

use windows_sys::Win32::Foundation::{GENERIC_READ, GENERIC_WRITE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Storage::FileSystem as w;

/// What tells a file from all others of the machine: its volume, and its number there. On ReFS a number has 128 bits, whose upper half
/// is mixed into that of the volume; on NTFS that half is zero.
pub(super) fn identity(file: &File) -> io::Result<(u64, u64)> {
    // SAFETY: a structure of integers, for which zeros are values.
    let mut id: w::FILE_ID_INFO = unsafe { zeroed() };
    let (to, size) = ((&raw mut id).cast::<c_void>(), size_of::<w::FILE_ID_INFO>() as u32);
    // SAFETY: the handle is open, and `to` has room for `size` bytes of that class of information.
    if unsafe { w::GetFileInformationByHandleEx(file.as_raw_handle(), w::FileIdInfo, to, size) } != 0 {
        let number = u128::from_le_bytes(id.FileId.Identifier);
        let upper = (number >> 64) as u64;
        return Ok((id.VolumeSerialNumber ^ upper.rotate_left(32), number as u64));
    }
    // File systems other than NTFS and ReFS may not have this class, but the older call.
    // SAFETY: as above.
    let mut old: w::BY_HANDLE_FILE_INFORMATION = unsafe { zeroed() };
    // SAFETY: the handle is open, and the structure is the one that is asked for.
    match unsafe { w::GetFileInformationByHandle(file.as_raw_handle(), &raw mut old) } {
        0 => Err(io::Error::last_os_error()),
        _ => {
            let number = u64::from(old.nFileIndexHigh) << 32 | u64::from(old.nFileIndexLow);
            Ok((u64::from(old.dwVolumeSerialNumber), number))
        }
    }
}

/// Removes the name of a file that was opened for that, at once: other handles keep working. An error where the file system does not
/// have this, which is any but NTFS, and NTFS before Windows 10.
pub(super) fn delete_at_once(file: &File) -> io::Result<()> {
    let info = w::FILE_DISPOSITION_INFO_EX {
        Flags: w::FILE_DISPOSITION_FLAG_DELETE | w::FILE_DISPOSITION_FLAG_POSIX_SEMANTICS,
    };
    let (from, size) = ((&raw const info).cast::<c_void>(), size_of::<w::FILE_DISPOSITION_INFO_EX>() as u32);
    // SAFETY: the handle is open, and `from` is a structure of that class of information, of `size` bytes.
    match unsafe { w::SetFileInformationByHandle(file.as_raw_handle(), w::FileDispositionInfoEx, from, size) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Another handle to the same file, for writing: only such a one can be flushed.
pub(super) fn reopen_to_flush(file: &File) -> io::Result<File> {
    let share = w::FILE_SHARE_READ | w::FILE_SHARE_WRITE | w::FILE_SHARE_DELETE;
    // SAFETY: the handle is open.
    let handle = unsafe { w::ReOpenFile(file.as_raw_handle(), GENERIC_READ | GENERIC_WRITE, share, 0) };
    if handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new handle to a file, which nothing else owns.
    Ok(unsafe { File::from_raw_handle(handle) })
}

/// Bytes that the user of this process may still write to the volume that holds a directory.
pub(super) fn free_space(dir: &Path) -> io::Result<u64> {
    let name: Vec<u16> = dir.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: a string that ends with a zero, and a place for the first number; the others are not asked for.
    let asked =
        unsafe { w::GetDiskFreeSpaceExW(name.as_ptr(), &raw mut free, std::ptr::null_mut(), std::ptr::null_mut()) };
    if asked == 0 { Err(io::Error::last_os_error()) } else { Ok(free) }
}
