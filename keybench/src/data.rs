//! The data set: keys and values that can be made again from a number, so that every answer of an engine can be checked
//! without keeping a copy of what was written.
//!
//! Entry `i` of `0..n` has an *id*, a `u64` that no other entry has; the key is the id in sixteen hexadecimal digits (in
//! eight big-endian bytes for keys shorter than that), so keys are in id order. The value starts with eight bytes that
//! depend on the id alone; the rest is cut from a pool at a place that depends on the id.

use crate::error::{Error, Result};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The order in which ids come and keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Ascending keys.
    Seq,
    /// Truly random keys: a seeded bijection of the index. Written once each; asked for uniformly.
    Random,
    /// Random keys; each write and each read draws one with Zipfian skew 0.99.
    Zipfian,
    /// Random keys; each write and each read draws one uniformly, so writes repeat keys.
    Uniform,
    /// Keys that rise like time stamps with irregular gaps.
    Timestamp,
    /// Descending keys.
    Reverse,
}

impl Pattern {
    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Seq => "seq",
            Pattern::Random => "random",
            Pattern::Zipfian => "zipfian",
            Pattern::Uniform => "uniform",
            Pattern::Timestamp => "timestamp",
            Pattern::Reverse => "reverse",
        }
    }

    /// Whether keys are asked for in index order.
    pub fn is_ordered(self) -> bool {
        matches!(self, Pattern::Seq | Pattern::Timestamp | Pattern::Reverse)
    }
}

/// The shortest key: eight bytes hold an id.
pub const MIN_KEY: usize = 8;

/// The first time stamp of [`Pattern::Timestamp`], in nanoseconds: any fixed point does.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// The keys of a data set.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pattern: Pattern,
    n: u64,
    size: usize,
    salt: u64,
}

impl Keys {
    /// `n` keys of `size` bytes.
    pub fn new(pattern: Pattern, n: u64, size: usize, seed: u64) -> Result<Keys> {
        if size < MIN_KEY {
            return Err(Error::usage(format!("keys of {size} bytes cannot all differ; use at least {MIN_KEY}")));
        }
        if n == 0 || n > 1 << 40 {
            return Err(Error::usage(format!("{n} entries: use 1 to {}", 1u64 << 40)));
        }
        Ok(Keys { pattern, n, size, salt: mix64(seed ^ 0x6b65_7973) })
    }

    /// Number of entries.
    #[cfg(test)]
    pub fn count(&self) -> u64 {
        self.n
    }

    /// Bytes of a key.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The id of entry `i`.
    #[inline]
    pub fn id(&self, i: u64) -> u64 {
        match self.pattern {
            Pattern::Seq => i,
            Pattern::Reverse => self.n - 1 - i,
            Pattern::Timestamp => EPOCH + i * 1_000 + mix64(i ^ self.salt) % 1_000,
            // Adding a constant and mixing are bijections of u64, so no two entries share an id.
            Pattern::Random | Pattern::Zipfian | Pattern::Uniform => mix64(i.wrapping_add(self.salt)),
        }
    }

    /// Writes the key of an id.
    #[inline]
    pub fn write(&self, id: u64, out: &mut [u8]) {
        if self.size < 16 {
            out[..8].copy_from_slice(&id.to_be_bytes());
            out[8..].fill(b'.');
            return;
        }
        for (pair, byte) in out.chunks_exact_mut(2).zip(id.to_be_bytes()) {
            pair.copy_from_slice(&HEX[usize::from(byte)]);
        }
        out[16..].fill(b'.');
    }

    /// The id that a key was written for, if it is one of these keys.
    pub fn parse(&self, key: &[u8]) -> Option<u64> {
        let id = match self.size {
            0..16 => u64::from_be_bytes(*key.first_chunk()?),
            _ => u64::from_str_radix(std::str::from_utf8(key.get(..16)?).ok()?, 16).ok()?,
        };
        let mut again = vec![0; self.size];
        self.write(id, &mut again);
        (again == key).then_some(id)
    }

    /// The key of an id, as a new vector.
    #[cfg(test)]
    pub fn key(&self, id: u64) -> Vec<u8> {
        let mut out = vec![0; self.size];
        self.write(id, &mut out);
        out
    }

    /// All ids in ascending order, which is the order of the keys.
    pub fn sorted_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = (0..self.n).map(|i| self.id(i)).collect();
        if self.pattern == Pattern::Reverse {
            ids.reverse();
        } else if !self.pattern.is_ordered() {
            ids.sort_unstable();
        }
        ids
    }
}

/// Two hexadecimal digits for every byte.
static HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = [digits[i >> 4], digits[i & 15]];
        i += 1;
    }
    table
};

/// Bytes of the pool that values are cut from.
const POOL: usize = 1 << 20;

/// The pool is made of units of this many bytes, each with its own share of random bytes: small enough that a value of
/// 100 bytes has the asked-for entropy, large enough that LZ4 finds the repetition worth a match.
const UNIT: usize = 64;

/// A pool of bytes in which a fraction `entropy` of each unit is random and the rest repeats it.
pub fn entropy_pool(bytes: usize, entropy: f64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0x706f_6f6c);
    let random = ((UNIT as f64 * entropy).round() as usize).min(UNIT);
    let mut pool = vec![0; bytes];
    for unit in pool.chunks_mut(UNIT) {
        let random = random.min(unit.len());
        rng.fill(&mut unit[..random]);
        for i in random.max(1)..unit.len() {
            unit[i] = unit[i - random.max(1)];
        }
    }
    pool
}

/// Appends so many bytes of a pool, from a place in it on: behind its end comes its beginning again.
pub fn cut_from(pool: &[u8], from: usize, bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + bytes;
    let mut rest = &pool[from..];
    while out.len() < end {
        let n = rest.len().min(end - out.len());
        out.extend_from_slice(&rest[..n]);
        rest = pool;
    }
}

/// The values of a data set. Copies share the pool.
#[derive(Clone, Debug)]
pub struct Values {
    pool: Arc<[u8]>,
    size: usize,
}

impl Values {
    /// Values of `size` bytes, of which a fraction `entropy` (0 to 1) is random.
    pub fn new(size: usize, entropy: f64, seed: u64) -> Result<Values> {
        if !(0.0..=1.0).contains(&entropy) {
            return Err(Error::usage(format!("value entropy {entropy} is not between 0 and 1")));
        }
        Ok(Values { pool: entropy_pool(POOL, entropy, seed).into(), size })
    }

    /// Values of another size, of the same bytes.
    #[must_use]
    pub fn with_size(&self, size: usize) -> Values {
        Values { pool: Arc::clone(&self.pool), size }
    }

    /// Bytes of a value.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What the first eight bytes of an id's value are.
    #[inline]
    fn tag(id: u64) -> u64 {
        mix64(id ^ 0x7661_6c75_6573)
    }

    /// Where in the pool an id's value begins; values of up to half the pool never wrap.
    #[inline]
    fn offset(&self, tag: u64) -> usize {
        let span = if self.size <= POOL / 2 { POOL - self.size } else { POOL };
        ((tag >> 32) as usize * span) >> 32
    }

    /// Writes the value of an id; `out` has the size of a value.
    #[inline]
    pub fn write(&self, id: u64, out: &mut [u8]) {
        let tag = Values::tag(id);
        let head = out.len().min(8);
        let mut from = self.offset(tag);
        let mut at = head;
        while at < out.len() {
            let n = (out.len() - at).min(POOL - from);
            out[at..at + n].copy_from_slice(&self.pool[from..from + n]);
            at += n;
            from = 0;
        }
        out[..head].copy_from_slice(&tag.to_le_bytes()[..head]);
    }

    /// Whether `got` looks like the value of an id: its length, its tag, and its last eight bytes.
    #[inline]
    pub fn check(&self, id: u64, got: &[u8]) -> bool {
        let tag = Values::tag(id);
        if got.len() != self.size {
            return false;
        }
        if self.size < 16 {
            return got.iter().take(8).eq(tag.to_le_bytes().iter().take(got.len()));
        }
        let last = self.size - 8;
        let from = (self.offset(tag) + last - 8) % POOL;
        let tag_right = got[..8] == tag.to_le_bytes();
        // A wrap inside the eight bytes is left to the full check.
        let tail_right = from + 8 > POOL || got[last..] == self.pool[from..from + 8];
        tag_right & tail_right
    }

    /// Puts a number into a value of an id, of eight bytes at least.
    #[inline]
    pub fn set_count(&self, id: u64, count: u64, value: &mut [u8]) {
        value[..8].copy_from_slice(&Values::tag(id).wrapping_add(count).to_le_bytes());
    }

    /// The number in a value of an id, 0 as [`write`](Values::write) leaves it; none if length or last eight bytes are
    /// not that value's.
    #[inline]
    pub fn count(&self, id: u64, got: &[u8]) -> Option<u64> {
        let tag = Values::tag(id);
        let head = got.first_chunk::<8>().filter(|_| got.len() == self.size)?;
        if self.size >= 16 {
            let last = self.size - 8;
            let from = (self.offset(tag) + last - 8) % POOL;
            // A wrap inside the eight bytes is left to the full check.
            if from + 8 <= POOL && got[last..] != self.pool[from..from + 8] {
                return None;
            }
        }
        Some(u64::from_le_bytes(*head).wrapping_sub(tag))
    }

    /// Whether `got` is the value of an id, byte for byte. It allocates nothing: new memory for a value of a GiB takes longer than to get one.
    pub fn check_fully(&self, id: u64, got: &[u8]) -> bool {
        let tag = Values::tag(id);
        let head = self.size.min(8);
        if got.len() != self.size || got[..head] != tag.to_le_bytes()[..head] {
            return false;
        }
        let mut from = self.offset(tag);
        let mut rest = &got[head..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(POOL - from));
            if piece != &self.pool[from..from + piece.len()] {
                return false;
            }
            rest = after;
            from = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Pattern; 6] =
        [Pattern::Seq, Pattern::Random, Pattern::Zipfian, Pattern::Uniform, Pattern::Timestamp, Pattern::Reverse];

    #[test]
    fn keys_are_unique_and_ordered_like_ids() {
        for pattern in ALL {
            for size in [8, 15, 16, 33] {
                let keys = Keys::new(pattern, 20_000, size, 7).unwrap();
                let sorted = keys.sorted_ids();
                assert!(sorted.windows(2).all(|w| w[0] < w[1]), "{pattern:?} repeats an id");
                assert!(sorted.iter().all(|id| keys.parse(&keys.key(*id)) == Some(*id)));
                assert!([&b""[..], b"1", &[b'+'; 16], &[b'G'; 40]].iter().all(|k| keys.parse(k).is_none()));
                assert!(sorted.windows(2).all(|w| keys.key(w[0]) < keys.key(w[1])), "{pattern:?} {size} out of order");
                let mut again: Vec<u64> = (0..keys.count()).map(|i| keys.id(i)).collect();
                again.sort_unstable();
                assert_eq!(again, sorted);
            }
        }
    }

    #[test]
    fn random_keys_are_random_and_follow_the_seed() {
        let keys = Keys::new(Pattern::Random, 1000, 16, 1).unwrap();
        let ascending = (1..1000).filter(|i| keys.id(i - 1) < keys.id(*i)).count();
        assert!((400..600).contains(&ascending), "{ascending} of 999 steps ascend");
        let other = Keys::new(Pattern::Random, 1000, 16, 2).unwrap();
        assert_ne!(keys.key(keys.id(0)), other.key(other.id(0)));
        assert!(keys.key(keys.id(5)).iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Keys::new(Pattern::Seq, 10, 7, 0).unwrap_err().to_string().contains("at least 8"));
        assert!(Keys::new(Pattern::Seq, 0, 16, 0).is_err());
        assert!(Values::new(10, 1.5, 0).is_err());
    }

    #[test]
    fn values_are_known_by_their_id() {
        for size in [0, 1, 7, 8, 15, 16, 100, 4096, POOL / 2, POOL / 2 + 1, POOL + 100, 3 * POOL] {
            let values = Values::new(size, 0.5, 9).unwrap();
            for id in [0, 1, 77, u64::MAX] {
                let mut v = vec![0; size];
                values.write(id, &mut v);
                assert!(values.check(id, &v) && values.check_fully(id, &v), "size {size} id {id}");
                if size >= 8 {
                    assert!(!values.check(id ^ 1, &v) && !values.check_fully(id ^ 1, &v));
                    v[0] ^= 1;
                    assert!(!values.check(id, &v));
                    v[0] ^= 1;
                }
                if size > 0 {
                    assert!(!values.check(id, &v[1..]));
                    for at in [0, size / 2, size - 1, POOL.min(size - 1)] {
                        v[at] ^= 0x80;
                        assert!(!values.check_fully(id, &v), "size {size}: a change of byte {at} passed");
                        v[at] ^= 0x80;
                    }
                }
            }
        }
    }

    #[test]
    fn values_hold_numbers() {
        for size in [8, 15, 16, 100, POOL + 100] {
            let values = Values::new(size, 0.5, 9).unwrap();
            let mut v = vec![0; size];
            values.write(7, &mut v);
            assert_eq!(values.count(7, &v), Some(0));
            values.set_count(7, 12, &mut v);
            assert_eq!(values.count(7, &v), Some(12));
            assert_eq!(values.count(7, &v[1..]), None);
            if size >= 16 {
                v[size - 1] ^= 1;
                assert_eq!(values.count(7, &v), None);
            }
        }
    }

    #[test]
    fn a_pool_begins_again_behind_its_end() {
        let mut out = b"-".to_vec();
        cut_from(b"abc", 2, 8, &mut out);
        cut_from(b"abc", 0, 2, &mut out);
        cut_from(b"abc", 1, 0, &mut out);
        assert_eq!(out, b"-cabcabcaab");
    }

    #[test]
    fn entropy_is_what_was_asked() {
        // Distinct 4-byte windows that no earlier window of their unit equals stand for random bytes.
        for (entropy, low, high) in [(0.0, 0.0, 0.05), (0.5, 0.45, 0.6), (1.0, 0.95, 1.0)] {
            let pool = entropy_pool(UNIT * 500, entropy, 1);
            let mut fresh = 0;
            for unit in pool.chunks(UNIT) {
                let windows: Vec<&[u8]> = unit.windows(4).collect();
                fresh += (0..windows.len()).filter(|&i| !windows[..i].contains(&windows[i])).count();
            }
            let share = fresh as f64 / (500.0 * (UNIT - 3) as f64);
            assert!((low..=high).contains(&share), "entropy {entropy}: share {share}");
        }
    }
}
