//! The one error type. It says what kind of failure it is, what was being done, and where: file and offset.

use std::fmt;
use std::path::{Path, PathBuf};

/// Kingtide's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, on which code can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused an operation; see [`Error::io_kind`].
    Io,
    /// The disk or quota is full. Writes resume by themselves once there is space.
    NoSpace,
    /// Stored bytes fail their checksum or contradict each other.
    Corruption,
    /// The caller passed an invalid argument, such as an empty key or an option out of range.
    InvalidArgument,
    /// No such database, family or file.
    NotFound,
    /// An object of that name already exists.
    Exists,
    /// The call may succeed later: writers are slowed and the call was made with `no_wait`, or memory, files or transactions are used up at the
    /// moment, or a close could not flush the memtables in time.
    Busy,
    /// Another process or handle has the database open.
    Locked,
    /// The file was written in a newer format version than this build can read.
    NewerFormat,
    /// An earlier failed write or sync stopped all writes; reads continue to work. The message names the first cause.
    Poisoned,
    /// The database or family handle was closed or dropped.
    Closed,
    /// The work was cancelled.
    Cancelled,
    /// Stored and given options contradict each other, such as two key orders.
    Incompatible,
    /// Another transaction committed, or has locked, data that the isolation level of this one does not allow to change.
    /// Nothing was written: roll back and run the transaction again.
    Conflict,
    /// This transaction was chosen as the deadlock victim and was rolled back.
    Deadlock,
    /// A lock was not granted within the lock timeout.
    LockTimeout,
    /// The transaction outlived its timeout and was rolled back.
    Expired,
    /// The transaction was rolled back at the request of another thread.
    Aborted,
    /// The requested state is no longer kept: a compaction dropped the versions, or the log was recycled.
    TooOld,
    /// The transaction was already committed, rolled back or prepared, so it accepts no more operations.
    Finished,
    /// The database or transaction was opened read-only.
    ReadOnly,
}

/// What can be done about an error: each [`ErrorKind`] is in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorGroup {
    /// The request cannot be carried out: change its arguments or the stored data.
    Request,
    /// Another transaction or a full buffer was in the way. Nothing was written; run the transaction or the call again.
    Contention,
    /// The transaction, the handle or the job has ended. It accepts no more operations.
    Ended,
    /// The operating system refused an operation: the disk is full or fails, or the directory is locked.
    System,
    /// Stored bytes are damaged, or a failed sync left it unknown whether they are durable.
    Damage,
}

impl ErrorKind {
    /// The group that the kind is in.
    pub fn group(self) -> ErrorGroup {
        use ErrorKind as K;
        match self {
            K::InvalidArgument
            | K::NotFound
            | K::Exists
            | K::NewerFormat
            | K::Incompatible
            | K::TooOld
            | K::ReadOnly => ErrorGroup::Request,
            K::Busy | K::Conflict | K::Deadlock | K::LockTimeout => ErrorGroup::Contention,
            K::Closed | K::Cancelled | K::Expired | K::Aborted | K::Finished => ErrorGroup::Ended,
            K::Io | K::NoSpace | K::Locked => ErrorGroup::System,
            K::Corruption | K::Poisoned => ErrorGroup::Damage,
        }
    }
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<PathBuf>,
    offset: Option<u64>,
    io: Option<std::io::Error>,
    lock_held: bool,
}

/// The engine's only error type.
///
/// ```
/// use kingtide_base::{Error, ErrorKind};
/// use std::path::Path;
///
/// let refused = Error::io("write", Path::new("db/000007.wal"), std::io::ErrorKind::PermissionDenied.into());
/// assert_eq!((refused.kind(), refused.message()), (ErrorKind::Io, "cannot write"));
/// assert_eq!(refused.io_kind(), Some(std::io::ErrorKind::PermissionDenied));
/// assert!(!refused.is_out_of_descriptors() && !refused.is_lock_held());
///
/// // A file system of your own reports damage with file and offset.
/// let damaged = Error::corruption("a block fails its checksum").at_path(Path::new("db/00000012.klog")).at_offset(4096);
/// assert!(damaged.is_corruption() && damaged.offset() == Some(4096));
/// let told = damaged.context("backup 7");
/// assert_eq!(told.message(), "backup 7: a block fails its checksum");
///
/// let full = Error::out_of_memory("a value", 1 << 40);
/// assert_eq!(full.io_kind(), Some(std::io::ErrorKind::OutOfMemory));
/// ```
pub struct Error(Box<Inner>);

impl Error {
    /// An error of a kind with a message that says what was wrong and, where it helps, what to do.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), path: None, offset: None, io: None, lock_held: false }))
    }

    /// Stored bytes are damaged.
    #[cold]
    pub fn corruption(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corruption, message)
    }

    /// An error made by the caller.
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// A failed operating-system call: `doing` names the operation ("write", "create").
    #[cold]
    pub fn io(doing: &str, path: &Path, e: std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        let kind = match e.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::NoSpace,
            K::NotFound => ErrorKind::NotFound,
            K::AlreadyExists => ErrorKind::Exists,
            _ => ErrorKind::Io,
        };
        Error(Box::new(Inner {
            kind,
            message: format!("cannot {doing}"),
            path: Some(path.to_owned()),
            offset: None,
            io: Some(e),
            lock_held: false,
        }))
    }

    /// Memory for `bytes` bytes of `what` could not be allocated. Nothing happened, and the call may succeed later.
    #[cold]
    pub fn out_of_memory(what: impl fmt::Display, bytes: usize) -> Error {
        let mut e = Error::new(ErrorKind::Io, format!("cannot allocate {bytes} bytes of memory for {what}"));
        e.0.io = Some(std::io::ErrorKind::OutOfMemory.into());
        e
    }

    /// Adds the file, unless the error already names one.
    #[cold]
    pub fn at_path(mut self, path: &Path) -> Error {
        self.0.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Adds the byte offset, unless the error already has one.
    #[cold]
    pub fn at_offset(mut self, offset: u64) -> Error {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Puts `what: ` before the message.
    #[cold]
    pub fn context(mut self, what: impl fmt::Display) -> Error {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Marks a lock request that did not wait and was not granted.
    #[doc(hidden)] // the engine makes these
    #[cold]
    pub fn lock_held(mut self) -> Error {
        self.0.lock_held = true;
        self
    }

    /// Returns whether a lock was held by another transaction and the call did not wait for it. The transaction remains usable,
    /// unlike after other conflicts.
    pub fn is_lock_held(&self) -> bool {
        self.0.lock_held
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without file and offset.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The file the error is about.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The byte offset in that file.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The kind of the operating system's error, if there was one.
    pub fn io_kind(&self) -> Option<std::io::ErrorKind> {
        self.0.io.as_ref().map(std::io::Error::kind)
    }

    /// Returns whether the system or the process had no file descriptor left. The call did nothing, and may succeed later.
    pub fn is_out_of_descriptors(&self) -> bool {
        // EMFILE and ENFILE, on every Unix, and ERROR_TOO_MANY_OPEN_FILES; the standard library has no kind for them.
        let codes: &[i32] = if cfg!(windows) { &[4] } else { &[24, 23] };
        self.0.io.as_ref().and_then(std::io::Error::raw_os_error).is_some_and(|code| codes.contains(&code))
    }

    /// Returns whether the same call may succeed later with the same arguments.
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::Busy | ErrorKind::NoSpace | ErrorKind::Locked => true,
            ErrorKind::Io if self.is_out_of_descriptors() => true,
            ErrorKind::Io => matches!(
                self.io_kind(),
                Some(
                    std::io::ErrorKind::Interrupted
                        | std::io::ErrorKind::WouldBlock
                        | std::io::ErrorKind::TimedOut
                        | std::io::ErrorKind::OutOfMemory
                )
            ),
            _ => false,
        }
    }

    /// Returns whether the transaction that failed with it may succeed if it is run again from its beginning.
    pub fn is_transient_conflict(&self) -> bool {
        self.group() == ErrorGroup::Contention
    }

    /// The group that the kind is in.
    pub fn group(&self) -> ErrorGroup {
        self.0.kind.group()
    }

    /// Returns whether stored bytes are damaged, so that trying again does not help. `verify` reports what is damaged, and `repair` salvages the
    /// rest.
    pub fn is_corruption(&self) -> bool {
        self.0.kind == ErrorKind::Corruption
    }
}

/// A copy for each of several waiters. The operating system's error keeps its kind and text.
impl Clone for Error {
    #[cold]
    fn clone(&self) -> Error {
        let io = self.0.io.as_ref().map(|e| match e.raw_os_error() {
            Some(code) => std::io::Error::from_raw_os_error(code),
            None => std::io::Error::new(e.kind(), e.to_string()),
        });
        Error(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            path: self.0.path.clone(),
            offset: self.0.offset,
            io,
            lock_held: self.0.lock_held,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(p) = &self.0.path {
            write!(f, " [{}", p.display())?;
            if let Some(o) = self.0.offset {
                write!(f, " at byte {o}")?;
            }
            f.write_str("]")?;
        }
        if let Some(e) = &self.0.io {
            write!(f, ": {e}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.io.as_ref().map(|e| e as _)
    }
}

/// For code that uses [`std::io`], such as readers of values. The error is inside; use `get_ref` and a downcast to get it back.
impl From<Error> for std::io::Error {
    fn from(e: Error) -> std::io::Error {
        let kind = match e.kind() {
            ErrorKind::Io => e.io_kind().unwrap_or(std::io::ErrorKind::Other),
            ErrorKind::NoSpace => std::io::ErrorKind::StorageFull,
            ErrorKind::Corruption => std::io::ErrorKind::InvalidData,
            ErrorKind::InvalidArgument => std::io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => std::io::ErrorKind::NotFound,
            ErrorKind::Exists => std::io::ErrorKind::AlreadyExists,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_made_of_it_keeps_kind_and_text() {
        let made = std::io::Error::from(Error::corruption("value checksum mismatch").at_path(Path::new("7.vlog")));
        assert_eq!(made.kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(made.to_string(), "value checksum mismatch [7.vlog]");
        assert_eq!(
            made.get_ref().and_then(|e| e.downcast_ref::<Error>()).map(Error::kind),
            Some(ErrorKind::Corruption)
        );
    }

    #[test]
    fn messages_name_file_and_offset() {
        let e = Error::corruption("block checksum mismatch").at_path(Path::new("db/000007.klog")).at_offset(4096);
        assert_eq!(e.to_string(), "block checksum mismatch [db/000007.klog at byte 4096]");
        assert!(!e.is_retryable());
        let e = e.at_path(Path::new("other")).at_offset(1).context("get");
        assert_eq!((e.path(), e.offset()), (Some(Path::new("db/000007.klog")), Some(4096)));
    }

    #[test]
    fn full_disk_is_retryable_and_clones_keep_the_cause() {
        let e = Error::io("write", Path::new("f"), std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::NoSpace, true));
        let d = e.clone();
        assert_eq!((d.kind(), d.io_kind(), d.to_string()), (e.kind(), e.io_kind(), e.to_string()));
    }

    #[test]
    fn groups_say_what_to_do() {
        let of = |kind| Error::new(kind, "");
        for kind in [ErrorKind::Conflict, ErrorKind::Deadlock, ErrorKind::LockTimeout, ErrorKind::Busy] {
            assert!(of(kind).is_transient_conflict() && of(kind).group() == ErrorGroup::Contention);
        }
        for kind in [ErrorKind::Closed, ErrorKind::Finished, ErrorKind::Aborted, ErrorKind::Expired] {
            assert!(
                !of(kind).is_transient_conflict() && !of(kind).is_retryable() && of(kind).group() == ErrorGroup::Ended
            );
        }
        assert!(of(ErrorKind::Corruption).is_corruption() && of(ErrorKind::Corruption).group() == ErrorGroup::Damage);
        assert!(!of(ErrorKind::Poisoned).is_corruption(), "a failed sync damages nothing that can be read");
    }
}
