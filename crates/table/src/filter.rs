//! A Bloom filter blocked by cache line (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom Filters",
//! WEA 2007): all bits of a key lie in one 512-bit line, so a probe costs one cache miss. The price is uneven lines, paid
//! with about one bit a key more than a plain Bloom filter of the same rate; [`shape`] computes how many.
//!
//! Filter bytes (in a frame, see [`crate::frame`]):
//!
//! | bytes | what |
//! |---|---|
//! | 1 | k, probes of a key, 1 to 14 |
//! | 7 | zero |
//! | 64 n | lines, each eight u64 |
//!
//! A key's line is the high half of `hash * n`; its bits are nine-bit pieces of `mix64(hash)`, the first seven, then of
//! `mix64` of that.

use kingtide_base::hash::mix64;
use kingtide_base::memory::{reserve, zeroed};
use kingtide_base::{Error, Result};

const LINE_BITS: f64 = 512.0;
const MAX_PROBES: u32 = 14;
const PIECES: u32 = 7;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// The expected false-positive rate of `bits` bits a key and `k` probes: the mean, over lines that hold a Poisson number
/// of keys, of the chance that k random bits are set.
fn expected_rate(bits: f64, k: u32) -> f64 {
    let mean = LINE_BITS / bits;
    let most = (mean + 10.0 * mean.sqrt() + 10.0) as u32;
    let clear_per_key = (1.0 - 1.0 / LINE_BITS).powi(k as i32);
    let (mut chance, mut clear, mut rate) = ((-mean).exp(), 1.0, 0.0);
    for keys in 0..most {
        rate += chance * (1.0f64 - clear).powi(k as i32);
        chance *= mean / (keys + 1) as f64;
        clear *= clear_per_key;
    }
    rate
}

/// Bits a key and probes that reach `target`, a false-positive rate.
pub fn shape(target: f64) -> (f64, u32) {
    let best = |quarters: u32| {
        let bits = quarters as f64 / 4.0;
        let middle = (bits * std::f64::consts::LN_2) as u32;
        let probes = middle.saturating_sub(2).clamp(1, MAX_PROBES)..=(middle + 1).clamp(1, MAX_PROBES);
        probes.map(|k| (expected_rate(bits, k), k)).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((1.0, 1))
    };
    let (mut lo, mut hi) = (4, 200); // 1 to 50 bits
    while lo < hi {
        let mid = (lo + hi) / 2;
        if best(mid).0 <= target { hi = mid } else { lo = mid + 1 }
    }
    (lo as f64 / 4.0, best(lo).1)
}

/// Hashes in a chunk of 64 KiB. Chunks are not copied when a filter grows, and glibc does not map pieces as small as these: each time
/// that it unmaps a piece, it keeps up to twice that size of free memory in every heap.
const CHUNK: usize = 8 << 10;

/// Collects hashes for a filter.
pub struct FilterBuilder {
    full: Vec<Vec<u64>>,
    /// The last chunk.
    hashes: Vec<u64>,
}

impl FilterBuilder {
    /// A builder for about `expected` keys.
    pub fn new(expected: usize) -> FilterBuilder {
        FilterBuilder { full: Vec::new(), hashes: Vec::with_capacity(expected.min(CHUNK)) }
    }

    /// Adds a key's hash. A repetition of the previous one, another version of the same key, counts once.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[inline]
    pub fn add(&mut self, hash: u64) -> Result<()> {
        if self.hashes.last() != Some(&hash) {
            if self.hashes.len() == CHUNK {
                self.start_chunk()?;
            }
            reserve(&mut self.hashes, 1, "a filter")?;
            self.hashes.push(hash);
        }
        Ok(())
    }

    #[cold]
    fn start_chunk(&mut self) -> Result<()> {
        reserve(&mut self.full, 1, "a filter")?;
        let mut next = Vec::new();
        reserve(&mut next, CHUNK, "a filter")?;
        self.full.push(std::mem::replace(&mut self.hashes, next));
        Ok(())
    }

    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.full.len() * CHUNK + self.hashes.len()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        (self.full.len() * CHUNK + self.hashes.capacity()) * size_of::<u64>()
    }

    /// The filter's bytes, for a false-positive rate of `target`. Empty without keys or with a target outside (0, 1).
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn finish(&self, target: f64) -> Result<Vec<u8>> {
        if self.hashes.is_empty() || !(target > 0.0 && target < 1.0) {
            return Ok(Vec::new());
        }
        let (bits, k) = shape(target);
        let n = (self.keys() as f64 * bits / LINE_BITS).ceil().max(1.0) as usize;
        let shape = FilterShape { lines: n, k };
        let mut out = zeroed(HEAD + n * LINE, "a filter")?;
        out[0] = k as u8;
        let (lines, _) = out[HEAD..].as_chunks_mut::<LINE>();
        for &hash in self.full.iter().chain([&self.hashes]).flatten() {
            let line = &mut lines[shape.line_of(hash)];
            for_bits(hash, k, |bit| {
                line[bit >> 3] |= 1 << (bit & 7);
                true
            });
        }
        Ok(out)
    }
}

/// Calls `f` with the bits of a hash in its line until it says false.
#[inline]
fn for_bits(hash: u64, k: u32, mut f: impl FnMut(usize) -> bool) -> bool {
    let mut pieces = mix64(hash);
    let again = pieces;
    for i in 0..k {
        if i == PIECES {
            pieces = mix64(again ^ hash.rotate_left(32));
        }
        if !f((pieces & 511) as usize) {
            return false;
        }
        pieces >>= 9;
    }
    true
}

/// Bytes of a line.
pub(crate) const LINE: usize = size_of::<Line>();

/// Bytes before the first line.
pub(crate) const HEAD: usize = 8;

/// How many lines a filter has, and how many bits a key sets: what it takes to search one of which not all lines are resident.
#[derive(Clone, Copy)]
pub(crate) struct FilterShape {
    pub lines: usize,
    k: u32,
}

impl FilterShape {
    /// Reads the head of a filter's bytes.
    ///
    /// # Errors
    /// `Corruption` when they are not a filter.
    pub fn of(bytes: &[u8]) -> Result<FilterShape> {
        let damaged = || Error::corruption("damaged filter");
        let (head, body) = bytes.split_first_chunk::<HEAD>().ok_or_else(damaged)?;
        let k = head[0] as u32;
        if k == 0 || k > MAX_PROBES || body.is_empty() || !body.len().is_multiple_of(LINE) {
            return Err(damaged());
        }
        Ok(FilterShape { lines: body.len() / LINE, k })
    }

    /// The line that has the bits of a hash.
    #[inline]
    pub fn line_of(&self, hash: u64) -> usize {
        ((hash as u128 * self.lines as u128) >> 64) as usize
    }

    /// Whether a key with that hash may have been added, by its line's bytes; false is certain.
    pub fn line_may_contain(&self, line: &[u8], hash: u64) -> bool {
        let (words, _) = line.as_chunks::<8>();
        let word = |i: usize| words.get(i).map_or(u64::MAX, |w| u64::from_le_bytes(*w));
        for_bits(hash, self.k, |bit| word(bit >> 6) & 1 << (bit & 63) != 0)
    }
}

/// A resident filter.
pub struct Filter {
    lines: Vec<Line>,
    k: u32,
}

impl Filter {
    /// Reads a filter's bytes.
    ///
    /// # Errors
    /// `Corruption` when they are not a filter.
    pub fn decode(bytes: &[u8]) -> Result<Filter> {
        let FilterShape { k, .. } = FilterShape::of(bytes)?;
        let (lines, _) = bytes[HEAD..].as_chunks::<LINE>();
        let line = |b: &[u8; 64]| {
            let (words, _) = b.as_chunks::<8>();
            Line(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
        };
        Ok(Filter { lines: lines.iter().map(line).collect(), k })
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    #[inline]
    fn line_of(&self, hash: u64) -> usize {
        ((hash as u128 * self.lines.len() as u128) >> 64) as usize
    }

    /// Whether a key with that hash may have been added; false is certain. One cache line.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let Some(line) = self.lines.get(self.line_of(hash)) else { return true };
        for_bits(hash, self.k, |bit| line.0[bit >> 6] & 1 << (bit & 63) != 0)
    }

    /// Starts loading the line of that hash into the processor's cache.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.line_of(hash)) {
            crate::prefetch::read(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::hash::hash64;
    use kingtide_base::rng::Rng;

    fn build(n: u64, target: f64) -> (Filter, usize) {
        let mut b = FilterBuilder::new(0);
        for i in 0..n {
            b.add(hash64(&i.to_be_bytes())).unwrap();
            b.add(hash64(&i.to_be_bytes())).unwrap();
        }
        assert_eq!(b.keys() as u64, n, "a repeated hash counts once");
        let bytes = b.finish(target).unwrap();
        (Filter::decode(&bytes).unwrap(), bytes.len())
    }

    #[test]
    #[cfg_attr(miri, ignore = "millions of lookups; safe code")]
    fn measured_rate_meets_the_target() {
        let n = 100_000;
        for target in [0.1, 0.01, 0.001] {
            let (f, bytes) = build(n, target);
            assert!((0..n).all(|i| f.may_contain(hash64(&i.to_be_bytes()))), "a filter never forgets a key");
            let tries = 2_000_000;
            let hits = (n..n + tries).filter(|i| f.may_contain(hash64(&i.to_be_bytes()))).count();
            let rate = hits as f64 / tries as f64;
            let bits = bytes as f64 * 8.0 / n as f64;
            println!("target {target}: measured {rate:.5} with {bits:.2} bits a key, {} probes", f.k);
            assert!(rate <= 1.15 * target, "{rate} > 1.15 x {target}");
            assert!(rate >= 0.5 * target, "{bits} bits a key are too many for {target}: {rate}");
        }
    }

    #[test]
    fn small_filters_and_no_filter() {
        for n in 1..40 {
            let (f, _) = build(n, 0.01);
            assert!((0..n).all(|i| f.may_contain(hash64(&i.to_be_bytes()))));
            f.prefetch(7);
        }
        assert!(FilterBuilder::new(0).finish(0.01).unwrap().is_empty());
        for absurd in [1 << 44, usize::MAX] {
            let mut b = FilterBuilder::new(absurd);
            b.add(1).unwrap();
            assert_eq!((b.keys(), b.finish(0.01).unwrap().is_empty()), (1, false));
        }
        let mut b = FilterBuilder::new(0);
        b.add(1).unwrap();
        assert!(b.finish(0.0).unwrap().is_empty());
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless() {
        let mut b = FilterBuilder::new(0);
        b.add(1).unwrap();
        let bytes = b.finish(0.01).unwrap();
        let mut rng = Rng::new(1);
        for cut in 0..bytes.len() {
            assert!(Filter::decode(&bytes[..cut]).is_err());
        }
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 0xff;
            if let Ok(f) = Filter::decode(&bad) {
                (0..100).for_each(|_| assert!(f.may_contain(rng.next_u64()) || f.k > 0));
            }
        }
    }
}
