//! What the C library's allocator keeps of memory that was freed.

/// Gives pages that the C library keeps for its next allocations back to the system. It keeps them for each thread that ever
/// allocated, so that buffers of flushes and indexes that were given up can take as much memory again as is in use. Takes some
/// milliseconds for a heap of 100 MiB, in which other threads may have to wait for memory. Does nothing with a C library
/// other than glibc.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri), not(loom)))]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_in_use_stays() {
        let held: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 10_000]).collect();
        let freed: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 10_000]).collect();
        drop(freed);
        super::give_back_free_memory();
        assert!(held.iter().enumerate().all(|(i, v)| v.iter().all(|b| usize::from(*b) == i)));
    }
}
