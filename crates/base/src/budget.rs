//! Exact byte accounting: arenas, caches, and open tables charge what they hold to a shared [`Budget`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of held bytes with a limit that its owner enforces.
#[derive(Debug)]
pub struct Budget {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { used: AtomicU64::new(0), limit: AtomicU64::new(limit) })
    }

    /// Returns the bytes held now. A statistic: Relaxed, it orders nothing.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` to what is held.
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` off what is held.
    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn charges_balance() {
        let b = super::Budget::new(10);
        b.charge(7);
        b.release(3);
        b.set_limit(20);
        assert_eq!((b.used(), b.limit()), (4, 20));
    }
}
