//! Zero bytes that are not written. Pages of a large allocation come from the system, as zeros, when they are touched, so that
//! threads which fill parts of it share that work.

use kingtide_base::sync::atomic::AtomicU64;
use kingtide_base::{Error, Result};
use std::alloc::{Layout, alloc_zeroed};

/// `len` zero bytes; `what` they are for is named in the error.
///
/// # Errors
/// See [`Error::out_of_memory`].
pub fn zeroed(len: usize, what: &str) -> Result<Vec<u8>> {
    let layout = Layout::array::<u8>(len).map_err(|_| Error::out_of_memory(what, len))?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has bytes.
    let at = unsafe { alloc_zeroed(layout) };
    if at.is_null() {
        return Err(Error::out_of_memory(what, len));
    }
    // SAFETY: the global allocator, which vectors use, made `len` bytes there for an array of bytes; all are initialised.
    Ok(unsafe { Vec::from_raw_parts(at, len, len) })
}

/// `len` counters set to 0. Like Rust's collections, this aborts the process if memory runs out.
pub fn zero_counters(len: usize) -> Box<[AtomicU64]> {
    #[cfg(not(any(shuttle, loom)))]
    // SAFETY: a counter is represented as a 64-bit integer, so zero bytes are a valid counter of value 0.
    return unsafe { Box::new_zeroed_slice(len).assume_init() };
    #[cfg(any(shuttle, loom))]
    return (0..len).map(|_| AtomicU64::new(0)).collect();
}

#[cfg(test)]
mod tests {
    use super::{zero_counters, zeroed};
    use std::sync::atomic::Ordering;

    #[test]
    fn counters_begin_at_zero() {
        let counters = zero_counters(100_000);
        assert!(counters.len() == 100_000 && counters.iter().all(|c| c.load(Ordering::Relaxed) == 0));
        counters[7].store(9, Ordering::Relaxed);
        assert_eq!(counters[7].load(Ordering::Relaxed), 9);
        assert!(zero_counters(0).is_empty());
    }

    #[test]
    fn all_bytes_are_zero_and_a_want_of_memory_is_an_error() {
        for len in [0, 1, 5_000_000] {
            let bytes = zeroed(len, "a test").unwrap();
            assert!(bytes.len() == len && bytes.iter().all(|b| *b == 0));
        }
        // Seen as used, or the compiler may leave out the allocation that is to fail.
        let fails = |len| std::hint::black_box(zeroed(len, "a test")).is_err();
        assert!(fails(isize::MAX as usize) && fails(usize::MAX));
    }
}
