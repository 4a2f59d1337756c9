//! The C LZ4 block functions: a leaf of `unsafe` because they are foreign. Nothing else in this crate calls C directly.
//!
//! Each call starts from a cleared hash table. LZ4 can also keep the table from call to call (`fastReset`), but then a
//! 4 KiB block meets the stale entries of the blocks before it, and rejecting those candidates costs twice what
//! clearing 16 KiB does: 5.5 against 2.5 us a block of half-compressible values.

#![allow(unsafe_code)]

use crate::lz4_long;
use lz4_sys::{LZ4_compress_fast, LZ4_decompress_safe, c_int};
use std::mem::MaybeUninit;

/// LZ4's largest input.
const MAX_INPUT: usize = 0x7e00_0000;

/// Blocks that expand to fewer bytes, as those of tables do, are left to the library: judging them takes too large a part of the time.
const LONG_FROM: usize = 16 << 10;

/// Compresses into `dst`; `None` when it does not fit. Acceleration 1 is the strongest.
#[inline]
pub fn compress(src: &[u8], dst: &mut [u8], acceleration: i32) -> Option<usize> {
    let dst: *mut [u8] = dst;
    // SAFETY: an array of plain bytes may be seen as one of bytes that need no value; only bytes with values are written to it.
    compress_into(src, unsafe { &mut *(dst as *mut [MaybeUninit<u8>]) }, acceleration)
}

/// Compresses onto the end of `out`, into at most `most` bytes, which are not cleared first. Returns how many were written;
/// `None` when it does not fit or there is no memory, and `out` is as it was.
#[inline]
pub fn compress_onto(src: &[u8], out: &mut Vec<u8>, most: usize, acceleration: i32) -> Option<usize> {
    out.try_reserve(most).ok()?;
    let n = compress_into(src, &mut out.spare_capacity_mut()[..most], acceleration)?;
    // SAFETY: the library wrote the first `n` bytes behind the vector's, which lie within its capacity.
    unsafe { out.set_len(out.len() + n) };
    Some(n)
}

fn compress_into(src: &[u8], dst: &mut [MaybeUninit<u8>], acceleration: i32) -> Option<usize> {
    if src.len() > MAX_INPUT {
        return None;
    }
    let capacity = dst.len().min(c_int::MAX as usize) as c_int;
    // SAFETY: both slices are passed with their lengths; the library reads the first and writes the second, within them only.
    let n = unsafe {
        LZ4_compress_fast(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src.len() as c_int, capacity, acceleration)
    };
    usize::try_from(n).ok().filter(|n| *n > 0)
}

/// Decompresses into `dst`; `None` when the input is damaged or does not fit. Returns the bytes written.
#[inline]
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let dst: *mut [u8] = dst;
    // SAFETY: as in `compress`.
    decompress_into(src, unsafe { &mut *(dst as *mut [MaybeUninit<u8>]) })
}

/// Decompresses onto the end of `out`, into at most `most` bytes, which are not cleared first and for which it has capacity. Returns
/// how many were written; `None` when the input is damaged or does not fit, and `out` is as it was.
#[inline]
pub fn decompress_onto(src: &[u8], out: &mut Vec<u8>, most: usize) -> Option<usize> {
    let n = decompress_into(src, out.spare_capacity_mut().get_mut(..most)?)?;
    // SAFETY: the decoders wrote the first `n` bytes behind the vector's, which lie within its capacity.
    unsafe { out.set_len(out.len() + n) };
    Some(n)
}

fn decompress_into(src: &[u8], dst: &mut [MaybeUninit<u8>]) -> Option<usize> {
    if dst.len() >= LONG_FROM && lz4_long::has_long_sequences(src) {
        return lz4_long::decode(src, dst);
    }
    let src_len = c_int::try_from(src.len()).ok()?;
    let capacity = dst.len().min(c_int::MAX as usize) as c_int;
    // SAFETY: both slices are passed with their lengths; the `safe` decoder checks every read and write against them, and reads
    // back only what it wrote.
    let n = unsafe { LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_len, capacity) };
    usize::try_from(n).ok()
}
