//! The errors that file systems in memory and injected faults return: Windows' numbers for what POSIX names.

use std::io;

use windows_sys::Win32::Foundation as w;

/// An error of the system, by the name that POSIX has for it. The standard library gives each the kind that it gives to POSIX' own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errno {
    Number(u32),
    /// Windows has no number for it.
    Kind(io::ErrorKind),
}

impl Errno {
    pub(crate) const BADF: Errno = Errno::Number(w::ERROR_ACCESS_DENIED);
    pub(crate) const DQUOT: Errno = Errno::Number(w::ERROR_DISK_QUOTA_EXCEEDED);
    pub(crate) const EXIST: Errno = Errno::Number(w::ERROR_ALREADY_EXISTS);
    pub(crate) const FBIG: Errno = Errno::Number(w::ERROR_FILE_TOO_LARGE);
    pub(crate) const INTR: Errno = Errno::Kind(io::ErrorKind::Interrupted);
    pub(crate) const INVAL: Errno = Errno::Number(w::ERROR_INVALID_PARAMETER);
    pub(crate) const IO: Errno = Errno::Number(w::ERROR_IO_DEVICE);
    pub(crate) const ISDIR: Errno = Errno::Number(w::ERROR_DIRECTORY_NOT_SUPPORTED);
    pub(crate) const MFILE: Errno = Errno::Number(w::ERROR_TOO_MANY_OPEN_FILES);
    pub(crate) const NOENT: Errno = Errno::Number(w::ERROR_FILE_NOT_FOUND);
    pub(crate) const NOSPC: Errno = Errno::Number(w::ERROR_DISK_FULL);
    pub(crate) const NOTDIR: Errno = Errno::Number(w::ERROR_DIRECTORY);
    pub(crate) const NOTEMPTY: Errno = Errno::Number(w::ERROR_DIR_NOT_EMPTY);
    pub(crate) const PERM: Errno = Errno::Number(w::ERROR_ACCESS_DENIED);
}

impl From<Errno> for io::Error {
    fn from(e: Errno) -> io::Error {
        match e {
            Errno::Number(number) => io::Error::from_raw_os_error(number.cast_signed()),
            Errno::Kind(kind) => kind.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind as K;

    #[test]
    fn errors_have_the_kinds_that_the_engine_tells_apart() {
        let kinds = [
            (Errno::DQUOT, K::QuotaExceeded),
            (Errno::EXIST, K::AlreadyExists),
            (Errno::FBIG, K::FileTooLarge),
            (Errno::INTR, K::Interrupted),
            (Errno::NOENT, K::NotFound),
            (Errno::NOSPC, K::StorageFull),
            (Errno::PERM, K::PermissionDenied),
        ];
        for (e, kind) in kinds {
            assert_eq!(io::Error::from(e).kind(), kind, "{e:?}");
        }
    }
}
