//! The error object, and the gate that every function passes on its way in: no panic gets out of it.

use crate::abi::set_if;
use kingtide_base::{Error, ErrorKind, Result};
use std::any::Any;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a call. The numbers never change; later versions may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kingtide_status {
    /// The call succeeded.
    KINGTIDE_OK = 0,
    /// The operating system refused an operation.
    KINGTIDE_IO = 1,
    /// The disk or quota is full. Writes resume by themselves once there is space.
    KINGTIDE_NO_SPACE = 2,
    /// Stored bytes fail their checksum or contradict each other.
    KINGTIDE_CORRUPTION = 3,
    /// The caller passed an invalid argument: NULL, an empty key, an option out of range.
    KINGTIDE_INVALID_ARGUMENT = 4,
    /// No such database, family, file, snapshot, savepoint or transaction. An absent key is not an error.
    KINGTIDE_NOT_FOUND = 5,
    /// An object of that name already exists.
    KINGTIDE_EXISTS = 6,
    /// Back-pressure, and the caller asked not to wait; or transactions hold too much memory.
    KINGTIDE_BUSY = 7,
    /// Another process or handle has the database open.
    KINGTIDE_LOCKED = 8,
    /// The file was written in a newer format version than this library can read.
    KINGTIDE_NEWER_FORMAT = 9,
    /// An earlier failed write or sync stopped all writes; reads continue to work. The message names the first cause.
    KINGTIDE_POISONED = 10,
    /// The database was closed or the family dropped.
    KINGTIDE_CLOSED = 11,
    /// The work was cancelled, or the wait interrupted.
    KINGTIDE_CANCELLED = 12,
    /// Stored and given options contradict each other, such as two key orders.
    KINGTIDE_INCOMPATIBLE = 13,
    /// Another transaction committed, or has locked, data that this one's isolation level does not allow to change. Nothing
    /// was written: reset the transaction and run it again.
    KINGTIDE_CONFLICT = 14,
    /// This transaction was chosen as the deadlock victim, and was rolled back.
    KINGTIDE_DEADLOCK = 15,
    /// Another transaction did not release a lock in time. The transaction remains usable.
    KINGTIDE_LOCK_TIMEOUT = 16,
    /// The transaction outlived its timeout and was rolled back.
    KINGTIDE_EXPIRED = 17,
    /// The transaction was rolled back at the request of another thread.
    KINGTIDE_ABORTED = 18,
    /// The requested state is no longer kept: a compaction dropped the versions, or the log was recycled.
    KINGTIDE_TOO_OLD = 19,
    /// The transaction was already committed, rolled back or prepared.
    KINGTIDE_FINISHED = 20,
    /// The database or the transaction was opened read-only.
    KINGTIDE_READ_ONLY = 21,
    /// Another transaction holds the lock, and this one does not wait (`KINGTIDE_NO_WAIT`). The transaction remains
    /// usable, as a statement with NOWAIT or SKIP LOCKED needs.
    KINGTIDE_LOCK_HELD = 22,
    /// A defect of the library, or of a callback: it panicked. The outcome of the call is unknown; close the
    /// database and open it again.
    KINGTIDE_PANIC = 23,
    /// A kind of error that has no number in this list. The message describes it.
    KINGTIDE_OTHER = 24,
}
use kingtide_status::*;

/// Names, in the order of the numbers.
const NAMES: [&CStr; 25] = [
    c"ok",
    c"io",
    c"no-space",
    c"corruption",
    c"invalid-argument",
    c"not-found",
    c"exists",
    c"busy",
    c"locked",
    c"newer-format",
    c"poisoned",
    c"closed",
    c"cancelled",
    c"incompatible",
    c"conflict",
    c"deadlock",
    c"lock-timeout",
    c"expired",
    c"aborted",
    c"too-old",
    c"finished",
    c"read-only",
    c"lock-held",
    c"panic",
    c"other",
];

impl kingtide_status {
    /// The status of an error.
    pub(crate) fn of(e: &Error) -> kingtide_status {
        match e.kind() {
            ErrorKind::Io => KINGTIDE_IO,
            ErrorKind::NoSpace => KINGTIDE_NO_SPACE,
            ErrorKind::Corruption => KINGTIDE_CORRUPTION,
            ErrorKind::InvalidArgument => KINGTIDE_INVALID_ARGUMENT,
            ErrorKind::NotFound => KINGTIDE_NOT_FOUND,
            ErrorKind::Exists => KINGTIDE_EXISTS,
            ErrorKind::Busy => KINGTIDE_BUSY,
            ErrorKind::Locked => KINGTIDE_LOCKED,
            ErrorKind::NewerFormat => KINGTIDE_NEWER_FORMAT,
            ErrorKind::Poisoned => KINGTIDE_POISONED,
            ErrorKind::Closed => KINGTIDE_CLOSED,
            ErrorKind::Cancelled => KINGTIDE_CANCELLED,
            ErrorKind::Incompatible => KINGTIDE_INCOMPATIBLE,
            ErrorKind::Conflict if e.is_lock_held() => KINGTIDE_LOCK_HELD,
            ErrorKind::Conflict => KINGTIDE_CONFLICT,
            ErrorKind::Deadlock => KINGTIDE_DEADLOCK,
            ErrorKind::LockTimeout => KINGTIDE_LOCK_TIMEOUT,
            ErrorKind::Expired => KINGTIDE_EXPIRED,
            ErrorKind::Aborted => KINGTIDE_ABORTED,
            ErrorKind::TooOld => KINGTIDE_TOO_OLD,
            ErrorKind::Finished => KINGTIDE_FINISHED,
            ErrorKind::ReadOnly => KINGTIDE_READ_ONLY,
            _ => KINGTIDE_OTHER,
        }
    }
}

/// The error of a failed call. It belongs to the caller, who frees it. May be read from any thread.
pub struct kingtide_error {
    status: kingtide_status,
    message: CString,
    path: Option<CString>,
    offset: Option<u64>,
    retryable: bool,
    transient: bool,
}

impl kingtide_error {
    /// Returns what went wrong.
    #[cfg(test)]
    pub fn message_text(&self) -> String {
        self.message.to_string_lossy().into_owned()
    }
}

impl From<Error> for kingtide_error {
    #[cold]
    fn from(e: Error) -> kingtide_error {
        kingtide_error {
            status: kingtide_status::of(&e),
            message: c_text(e.to_string().as_bytes()),
            path: e.path().map(|p| c_text(p.as_os_str().as_encoded_bytes())),
            offset: e.offset(),
            retryable: e.is_retryable(),
            transient: e.is_transient_conflict(),
        }
    }
}

/// Text for C: a NUL inside ends it.
pub(crate) fn c_text(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// Runs a function's work. Whatever it fails with becomes a status, and an error object if the caller wants one.
///
/// # Safety
/// `err` is NULL or can be written.
#[inline]
pub(crate) unsafe fn guard(err: *mut *mut kingtide_error, work: impl FnOnce() -> Result<()>) -> kingtide_status {
    // The status says what a panic left half done; the engine itself survives panics of key orders and hooks.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => KINGTIDE_OK,
        Ok(Err(e)) => report(err, e),
        Err(panic) => report_panic(err, panic),
    }
}

/// Does what [`guard`] does, for functions that have no way to fail: a panic gives `otherwise`.
#[inline]
pub(crate) fn quietly<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        std::mem::forget(panic); // its drop may panic, too
        otherwise
    })
}

/// # Safety
/// As [`guard`].
#[cold]
unsafe fn report(err: *mut *mut kingtide_error, e: Error) -> kingtide_status {
    let status = kingtide_status::of(&e);
    if !err.is_null() {
        set_if(err, Box::into_raw(Box::new(e.into())));
    }
    status
}

/// # Safety
/// As [`guard`].
#[cold]
unsafe fn report_panic(err: *mut *mut kingtide_error, panic: Box<dyn Any + Send>) -> kingtide_status {
    let text = panic_text(panic);
    let message = c_text(format!("panic in the library: {text}").as_bytes());
    if !err.is_null() {
        let error = kingtide_error {
            status: KINGTIDE_PANIC,
            message,
            path: None,
            offset: None,
            retryable: false,
            transient: false,
        };
        set_if(err, Box::into_raw(Box::new(error)));
    }
    KINGTIDE_PANIC
}

/// Returns what a panic says.
pub(crate) fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_owned(),
    };
    std::mem::forget(panic); // its drop may panic, too
    text
}

/// Returns the status that the failed call also returned. `KINGTIDE_OK` for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_status(error: Option<&kingtide_error>) -> kingtide_status {
    error.map_or(KINGTIDE_OK, |e| e.status)
}

/// Returns the message, in English, with file and offset where they are known. Valid as long as the error. Empty for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_message(error: Option<&kingtide_error>) -> *const c_char {
    error.map_or(c"".as_ptr(), |e| e.message.as_ptr())
}

/// Returns the file that the error is about; NULL if there is none. Valid as long as the error.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_path(error: Option<&kingtide_error>) -> *const c_char {
    error.and_then(|e| e.path.as_ref()).map_or(std::ptr::null(), |p| p.as_ptr())
}

/// Gets the byte offset in that file. Returns false, and does not write `offset`, if it is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_error_offset(error: Option<&kingtide_error>, offset: *mut u64) -> bool {
    let found = error.and_then(|e| e.offset);
    if let Some(at) = found {
        set_if(offset, at);
    }
    found.is_some()
}

/// Returns whether the same call may succeed later with the same arguments.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_is_retryable(error: Option<&kingtide_error>) -> bool {
    error.is_some_and(|e| e.retryable)
}

/// Returns whether the transaction that failed with it may succeed if it is run again from its beginning.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_is_transient_conflict(error: Option<&kingtide_error>) -> bool {
    error.is_some_and(|e| e.transient)
}

/// Frees an error. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_error_free(error: Option<Box<kingtide_error>>) {
    drop(error);
}

/// Returns the name of a status, such as "lock-timeout"; "other" for an unknown number. Valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_status_name(status: i32) -> *const c_char {
    usize::try_from(status).ok().and_then(|s| NAMES.get(s)).unwrap_or(&c"other").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs work and tells what C would see.
    fn outcome(work: impl FnOnce() -> Result<()>) -> (kingtide_status, String) {
        let mut err = std::ptr::null_mut();
        // SAFETY: a place that can be written.
        let status = unsafe { guard(&raw mut err, work) };
        // SAFETY: NULL, or made by `Box::into_raw` just now.
        let error = (!err.is_null()).then(|| unsafe { Box::from_raw(err) });
        assert_eq!(kingtide_error_status(error.as_deref()), status);
        (status, error.map_or_else(String::new, |e| e.message.to_string_lossy().into_owned()))
    }

    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    #[test]
    fn no_panic_gets_out() {
        // SAFETY: the pointers are NULL or to what is here.
        unsafe {
            assert_eq!(outcome(|| Ok(())), (KINGTIDE_OK, String::new()));
            assert_eq!(outcome(|| panic!("at {}", 7)), (KINGTIDE_PANIC, "panic in the library: at 7".to_owned()));
            assert_eq!(outcome(|| std::panic::panic_any(Bomb)).0, KINGTIDE_PANIC);
            assert_eq!(quietly(5, || panic!("x")), 5);
            assert_eq!(guard(std::ptr::null_mut(), || panic!("no reason")), KINGTIDE_PANIC);
        }
    }

    #[test]
    fn errors_keep_what_they_say() {
        // SAFETY: the pointers are NULL or to what is here.
        unsafe {
            let (status, text) = outcome(|| Err(Error::invalid("a\0b")));
            assert_eq!((status, text.as_str()), (KINGTIDE_INVALID_ARGUMENT, "a"));
            let at = Error::corruption("bad").at_path(std::path::Path::new("x.klog")).at_offset(9);
            let error = kingtide_error::from(at);
            let mut offset = 0;
            assert!(kingtide_error_offset(Some(&error), &raw mut offset) && offset == 9);
            assert_eq!(error.path.as_deref(), Some(c"x.klog"));
            assert!(!kingtide_error_offset(None, &raw mut offset));
        }
    }
}
