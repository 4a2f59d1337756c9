//! How many processors this process may use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are, as far as the system tells; 1 if it does not. It is asked once: later changes, of a container's share for example, go
/// unnoticed. Not in a `OnceLock`: a process that is forked while another thread fills that waits at it for ever.
pub fn processors() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the number stands for nothing but itself. Threads that come at once find the same.
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let found = std::thread::available_parallelism().map_or(1, usize::from);
            KNOWN.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_the_system_says() {
        assert_eq!(super::processors(), std::thread::available_parallelism().map_or(1, usize::from));
        assert_eq!(super::processors(), super::processors());
    }
}
