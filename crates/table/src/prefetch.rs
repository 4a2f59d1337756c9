//! Cache prefetch: a leaf of `unsafe` because the instruction takes a raw pointer. It cannot fault and changes nothing
//! but the processor's cache.

#![allow(unsafe_code)]

/// Starts loading the cache line at `what`.
#[inline(always)]
pub fn read<T>(what: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint that never faults, and the reference is valid anyway.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = what;
}
