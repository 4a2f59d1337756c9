//! Allocation of what may be large: where the size comes from data or from an option, a want of memory is an error that the
//! caller gets, and not the end of the process.

use crate::error::{Error, Result};

/// `len` zero bytes; `what` they are for is named in the error.
///
/// # Errors
/// See [`Error::out_of_memory`].
#[inline]
pub fn zeroed(len: usize, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, len, what)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// A copy of bytes.
///
/// # Errors
/// See [`Error::out_of_memory`].
#[inline]
pub fn copied(from: &[u8], what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append(&mut bytes, from, what)?;
    Ok(bytes)
}

/// Appends bytes to a vector.
///
/// # Errors
/// See [`Error::out_of_memory`]. The vector is as it was.
#[inline]
pub fn append(to: &mut Vec<u8>, from: &[u8], what: &str) -> Result<()> {
    reserve(to, from.len(), what)?;
    to.extend_from_slice(from);
    Ok(())
}

/// Makes a vector longer by `more` zero bytes.
///
/// # Errors
/// See [`Error::out_of_memory`]. The vector is as it was.
#[inline]
pub fn extend_zeroed(to: &mut Vec<u8>, more: usize, what: &str) -> Result<()> {
    reserve(to, more, what)?;
    to.resize(to.len() + more, 0);
    Ok(())
}

/// Makes room in a vector for `more` elements.
///
/// # Errors
/// See [`Error::out_of_memory`]. The vector is as it was.
#[inline]
pub fn reserve<T>(to: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    to.try_reserve(more).map_err(|_| Error::out_of_memory(what, more.saturating_mul(size_of::<T>())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_cannot_be_had_is_an_error_that_says_how_much() {
        assert_eq!(zeroed(3, "a test").unwrap(), [0; 3]);
        let e = zeroed(isize::MAX as usize, "a test").unwrap_err();
        assert_eq!(
            (e.kind(), e.io_kind(), e.is_retryable()),
            (ErrorKind::Io, Some(std::io::ErrorKind::OutOfMemory), true)
        );
        assert!(e.message().contains(&isize::MAX.to_string()) && e.message().contains("a test"), "{e}");
        let mut numbers = vec![1u64];
        assert!(reserve(&mut numbers, usize::MAX / 8, "a test").is_err());
        assert_eq!(numbers, [1]);
    }
}
