//! The C LZ4 block functions: a leaf of `unsafe` because they are foreign. Nothing else in this crate calls C directly.
//!
//! Each call starts from a cleared hash table. LZ4 can also keep the table from call to call (`fastReset`), but then a
//! 4 KiB block meets the stale entries of the blocks before it, and rejecting those candidates costs twice what
//! clearing 16 KiB does: 5.5 against 2.5 us a block of half-compressible values.

#![allow(unsafe_code)]

use lz4_sys::{LZ4_compress_fast, LZ4_decompress_safe, c_int};

/// LZ4's largest input.
const MAX_INPUT: usize = 0x7e00_0000;

/// Compresses into `dst`; `None` when it does not fit. Acceleration 1 is the strongest.
#[inline]
pub fn compress(src: &[u8], dst: &mut [u8], acceleration: i32) -> Option<usize> {
    if src.len() > MAX_INPUT {
        return None;
    }
    let capacity = dst.len().min(c_int::MAX as usize) as c_int;
    // SAFETY: both slices are passed with their lengths; the library reads and writes within them only.
    let n = unsafe {
        LZ4_compress_fast(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, capacity, acceleration)
    };
    usize::try_from(n).ok().filter(|n| *n > 0)
}

/// Decompresses into `dst`; `None` when the input is damaged or does not fit. Returns the bytes written.
#[inline]
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let src_len = c_int::try_from(src.len()).ok()?;
    let capacity = dst.len().min(c_int::MAX as usize) as c_int;
    // SAFETY: both slices are passed with their lengths; the `safe` decoder checks every read and write against them.
    let n = unsafe { LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_len, capacity) };
    usize::try_from(n).ok()
}
