//! Injected randomness: a small, seedable generator (SplitMix64; Steele, Lea, Flood, OOPSLA 2014). Not for secrets.

use std::cell::RefCell;

/// A seedable generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Makes a generator; the same seed gives the same stream.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::hash::mix64(self.state)
    }

    /// Uniform below `n` (0 when `n` is 0). The multiply-shift bias is under 2^-32 for the `n` used here.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for c in out.chunks_mut(8) {
            let b = self.next_u64().to_le_bytes();
            c.copy_from_slice(&b[..c.len()]);
        }
    }
}

/// 64 bits that differ from process to process, from the operating system by way of the standard library's hasher keys.
/// For identities, not for secrets. A simulation, which must repeat them, calls [`fix_entropy_on_this_thread`].
#[allow(clippy::disallowed_methods)] // the one room for the raw source
pub fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let fixed = FIXED.with_borrow_mut(|rng| rng.as_mut().map(Rng::next_u64));
    fixed.unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish())
}

thread_local! {
    static FIXED: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// From now on what the calling thread gets from [`entropy`] follows from a seed; with `None` from the system again.
#[doc(hidden)]
pub fn fix_entropy_on_this_thread(seed: Option<u64>) {
    FIXED.set(seed.map(Rng::new));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_repeats_only_where_it_is_told_to() {
        let drawn = |seed| {
            fix_entropy_on_this_thread(seed);
            [entropy(), entropy()]
        };
        assert_eq!(drawn(Some(7)), drawn(Some(7)));
        assert_ne!(drawn(Some(7)), drawn(Some(8)));
        assert_ne!(drawn(None), drawn(None));
    }

    #[test]
    fn reproducible_and_roughly_uniform() {
        let mut a = Rng::new(1);
        let mut b = Rng::new(1);
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[a.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (9_000..11_000).contains(c)), "{counts:?}");
    }
}
