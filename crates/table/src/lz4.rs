//! The C LZ4 block functions: a leaf of `unsafe` because they are foreign. Nothing else in this crate calls C directly.
//!
//! The `fastReset` entry point is used because the plain one clears 16 KiB of hash table per call, which for a 4 KiB
//! block costs as much as a tenth of the compression itself.

#![allow(unsafe_code)]

use lz4_sys::{LZ4_decompress_safe, c_char, c_int};
use std::ffi::c_void;

unsafe extern "C" {
    /// Bytes of a compression state.
    fn LZ4_sizeofState() -> c_int;
    /// Compresses with a state that is all zero or was used by this function before. Returns 0 when `dst` is too small.
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// LZ4's largest input.
const MAX_INPUT: usize = 0x7e00_0000;

/// A reusable compression state.
pub struct Encoder {
    /// u64 for the alignment that the state needs.
    state: Vec<u64>,
}

impl Encoder {
    /// A fresh state (16 KiB).
    pub fn new() -> Encoder {
        // SAFETY: takes no arguments and reads no memory.
        let bytes = unsafe { LZ4_sizeofState() } as usize;
        Encoder { state: vec![0; bytes.div_ceil(8)] }
    }

    /// Compresses into `dst`; `None` when it does not fit.
    pub fn compress(&mut self, src: &[u8], dst: &mut [u8], acceleration: i32) -> Option<usize> {
        if src.len() > MAX_INPUT {
            return None;
        }
        let capacity = dst.len().min(c_int::MAX as usize) as c_int;
        // SAFETY: the state has the size that the library asked for and its alignment, and is zero (which is what the
        // library's own initialiser makes of it) or as an earlier call of this function left it. Both slices are passed
        // with their lengths, and the library writes at most `capacity` bytes.
        let n = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.state.as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src.len() as c_int,
                capacity,
                acceleration,
            )
        };
        if n <= 0 {
            // A call that ran out of room may leave the table marked for another input size: start afresh.
            self.state.fill(0);
            return None;
        }
        Some(n as usize)
    }
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
