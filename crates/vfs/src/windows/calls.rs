//! Calls of the system with what they need around them: names, removal, space.

use std::fs;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windows_sys::Win32::Foundation as w;
use windows_sys::Win32::Storage::FileSystem::{DELETE, FILE_FLAG_OPEN_REPARSE_POINT};

use super::errno::Errno;
use super::sys;

/// The error of a call that was given `path`. Windows says of a path that leads through a file that it was not found.
#[cold]
pub(super) fn explained(path: &Path, e: io::Error) -> io::Error {
    let not_found = e.raw_os_error() == Some(w::ERROR_PATH_NOT_FOUND.cast_signed());
    let through_a_file =
        || path.ancestors().skip(1).find_map(|above| fs::metadata(above).ok()).is_some_and(|m| m.is_file());
    if not_found && through_a_file() { Errno::NOTDIR.into() } else { e }
}

/// Part of the name of a removed file that a process still has open.
pub(super) const PARKED: &str = ".removed-";

/// How often a call is made that fails because another program holds the file, and how long it waits after each: half a second in all.
const ATTEMPTS: u32 = 50;
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Repeats a call while another program has the file open without sharing it. Virus scanners and indexers open new files so, for a
/// moment; nothing in Kingtide does.
pub(super) fn patiently<T>(call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    repeat_at(&[w::ERROR_SHARING_VIOLATION], call)
}

pub(super) fn repeat_at<T>(codes: &[u32], mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(e) if e.raw_os_error().is_some_and(|code| codes.contains(&code.cast_unsigned())) => {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
    call()
}

/// The empty path means the current directory, which the system calls want spelled out.
pub(super) fn directory(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Removes a name; the error of a missing one has the kind `NotFound`.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    // Not the flag with which directories are opened: they are refused.
    let mut options = fs::OpenOptions::new();
    options.access_mode(DELETE).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    let file = patiently(|| options.open(path))?;
    match sys::delete_at_once(&file) {
        Err(e) if is_unknown(&e) => drop(file),
        other => return other,
    }
    let parked = parked_name(path);
    if patiently(|| fs::rename(path, &parked)).is_ok() {
        // What fails here leaves a name that `list` removes later.
        let _ = fs::remove_file(&parked);
        return Ok(());
    }
    patiently(|| fs::remove_file(path))
}

/// Whether the system said that it does not know what it was asked for.
pub(super) fn is_unknown(e: &io::Error) -> bool {
    let codes = [w::ERROR_INVALID_PARAMETER, w::ERROR_INVALID_FUNCTION, w::ERROR_NOT_SUPPORTED, w::ERROR_INVALID_LEVEL];
    e.raw_os_error().is_some_and(|code| {
        codes.contains(&code.cast_unsigned()) || code.cast_unsigned() == w::ERROR_CALL_NOT_IMPLEMENTED
    })
}

/// A name beside `path` that no file has.
pub(super) fn parked_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the number stands for nothing but itself.
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!("{PARKED}{}-{n}", std::process::id()));
    path.with_file_name(name)
}

/// Bytes that this process can still write in the file system that holds a file or directory.
pub(super) fn free_space(path: &Path) -> io::Result<u64> {
    let path = directory(path);
    let is_dir = fs::metadata(path)?.is_dir();
    sys::free_space(if is_dir { path } else { directory(path.parent().unwrap_or(path)) })
}
