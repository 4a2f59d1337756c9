//! The block index: resident, flat, searched without branches.
//!
//! Index bytes (in a frame, see [`crate::frame`]):
//!
//! | bytes | what |
//! |---|---|
//! | varint | number of blocks |
//! | varint | sampling: blocks that share one separator, at least 1 |
//! | varint | prefix length to which separators were cut; 0 when none was |
//! | varints | for each block its bytes in the file; blocks follow each other from offset 0 |
//! | ... | for each separator: varint bytes shared with the previous one, varint length of the rest, the rest |
//!
//! A separator `s` of a block (or of a group of `sampling` blocks) satisfies `last key <= s < first key of the next`, or
//! `s = last key` where the same key goes on in the next block. For the bytewise order it is the shortest such string,
//! then cut to `prefix length` bytes; a search cuts its target likewise, so it finds the right block or an earlier one,
//! and the reader walks on. Other orders keep the last key whole.
//!
//! Separators share bytes, so a small index could spell out a huge one. All of them together have at most as many bytes
//! as the blocks and the index in the file, and 1 MiB more: a writer whose separators have more leaves every other one
//! out, by a larger sampling, until they have not; a reader refuses more.
//!
//! In memory: an array of 64-bit heads (after the prefix common to all separators), all separators' bytes in one blob
//! with u32 ends, and the blocks' offsets.

use crate::block::common_prefix;
use crate::frame::Handle;
use kingtide_base::coding::{Reader, put_varint};
use kingtide_base::key::head_be;
use kingtide_base::{Error, KeyOrder, Result};
use std::hint::select_unpredictable;
use std::ops::Range;

/// Bytes of separators beyond those of the blocks and the index in the file.
const FREE_SEPARATORS: u64 = 1 << 20;

/// No frame is shorter: its trailer, and what a block of one entry with an empty key compresses to.
const MIN_FRAME: u64 = 8;

/// The shortest `s` with `last <= s < next`, bytewise; `last` when there is no shorter one. Returns how many bytes of
/// `last` to take and the byte to append.
fn shortest_separator(last: &[u8], next: &[u8], out: &mut Vec<u8>) {
    let p = common_prefix(last, next);
    if p < last.len() && p < next.len() {
        if last[p] + 1 < next[p] || (last[p] < next[p] && next.len() > p + 1) {
            // One byte past the common prefix suffices: above `last`, and below `next` because smaller or its prefix.
            out.extend_from_slice(&last[..p]);
            out.push(last[p] + 1);
            return;
        }
        // `last[p] + 1 == next[p]` ends `next`: go along `last` to a byte that can grow.
        if let Some(i) = (p + 1..last.len()).find(|i| last[*i] != 0xff)
            && i + 1 < last.len()
        {
            out.extend_from_slice(&last[..i]);
            out.push(last[i] + 1);
            return;
        }
    }
    out.extend_from_slice(last);
}

/// Strings in one blob.
#[derive(Default)]
struct Blob {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Blob {
    fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.bytes[start..self.ends[i] as usize]
    }

    /// Ends the string whose bytes were appended last.
    fn seal(&mut self) -> Result<()> {
        match u32::try_from(self.bytes.len()) {
            Ok(end) => self.ends.push(end),
            Err(_) => return Err(Error::invalid("the keys of a table's index exceed 4 GiB")),
        }
        Ok(())
    }
}

/// Collects the index of a table that is being written.
pub struct IndexBuilder {
    bytewise: bool,
    sampling: usize,
    prefix_len: usize,
    cut: bool,
    lens: Vec<u32>,
    separators: Blob,
}

impl IndexBuilder {
    /// `prefix_len` 0 cuts nothing; it is ignored for orders other than bytewise.
    pub fn new(order: &KeyOrder, sampling: usize, prefix_len: usize) -> IndexBuilder {
        IndexBuilder {
            bytewise: order.is_bytewise(),
            sampling: sampling.max(1),
            prefix_len: if order.is_bytewise() { prefix_len } else { 0 },
            cut: false,
            lens: Vec::new(),
            separators: Blob::default(),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.lens.len()
    }

    /// About the bytes that the index will have in the file.
    pub fn estimated_size(&self) -> usize {
        self.lens.len() * 4 + self.separators.bytes.len()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        (self.lens.capacity() + self.separators.ends.capacity()) * size_of::<u32>() + self.separators.bytes.capacity()
    }

    /// Adds a block of `len` bytes.
    pub fn add_block(&mut self, len: u32) {
        self.lens.push(len);
    }

    /// Gives block `i` its length, if that was not known when it was added.
    pub fn set_len(&mut self, i: usize, len: u32) {
        self.lens[i] = len;
    }

    /// Separates the last block added from what follows: a key, or the end of the table.
    pub fn separate(&mut self, last: &[u8], next: Option<&[u8]>) -> Result<()> {
        if next.is_some() && !self.lens.len().is_multiple_of(self.sampling) {
            return Ok(());
        }
        let start = self.separators.bytes.len();
        match next {
            Some(next) if self.bytewise => shortest_separator(last, next, &mut self.separators.bytes),
            _ => self.separators.bytes.extend_from_slice(last),
        }
        if self.prefix_len > 0 && self.separators.bytes.len() - start > self.prefix_len {
            self.separators.bytes.truncate(start + self.prefix_len);
            self.cut = true;
        }
        self.separators.seal()
    }

    /// The index's bytes.
    pub fn finish(&self) -> Vec<u8> {
        let step = self.step();
        let mut out = Vec::with_capacity(self.estimated_size() + 16);
        put_varint(&mut out, self.lens.len() as u64);
        put_varint(&mut out, (self.sampling * step) as u64);
        put_varint(&mut out, if self.cut { self.prefix_len as u64 } else { 0 });
        self.lens.iter().for_each(|n| put_varint(&mut out, *n as u64));
        let mut previous: &[u8] = &[];
        for i in self.kept(step) {
            let s = self.separators.get(i);
            let shared = common_prefix(previous, s);
            put_varint(&mut out, shared as u64);
            put_varint(&mut out, (s.len() - shared) as u64);
            out.extend_from_slice(&s[shared..]);
            previous = s;
        }
        out
    }

    /// Of how many separators one is kept: 1, unless they have more bytes than a reader believes.
    fn step(&self) -> usize {
        let limit = self.lens.iter().map(|n| *n as u64).sum::<u64>() + FREE_SEPARATORS;
        let bytes = |step| self.kept(step).map(|i| self.separators.get(i).len() as u64).sum::<u64>();
        let mut step = 1;
        while step < self.separators.len() && bytes(step) > limit {
            step *= 2;
        }
        step
    }

    /// Every `step`th separator, and the last.
    fn kept(&self, step: usize) -> impl Iterator<Item = usize> {
        let n = self.separators.len();
        (0..n.div_ceil(step)).map(move |group| (group * step + step).min(n) - 1)
    }
}

/// A resident index.
pub struct Index {
    order: KeyOrder,
    sampling: usize,
    prefix_len: usize,
    /// Where the blocks begin, and where the last ends.
    offsets: Vec<u64>,
    /// Bytes that all separators begin with (bytewise order only).
    common: usize,
    heads: Vec<u64>,
    separators: Blob,
}

impl Index {
    /// Reads an index whose blocks fill the first `data_end` bytes of a file.
    ///
    /// # Errors
    /// `Corruption` when the bytes are not such an index.
    pub fn decode(bytes: &[u8], data_end: u64, order: &KeyOrder) -> Result<Index> {
        Self::read(bytes, data_end, order).ok_or_else(|| Error::corruption("damaged index"))
    }

    fn read(bytes: &[u8], data_end: u64, order: &KeyOrder) -> Option<Index> {
        let mut r = Reader::new(bytes);
        let blocks = usize::try_from(r.varint()?).ok().filter(|n| *n <= bytes.len())?;
        if blocks as u64 > data_end / MIN_FRAME {
            return None;
        }
        let sampling = usize::try_from(r.varint()?).ok().filter(|n| *n > 0)?;
        let prefix_len = usize::try_from(r.varint()?).ok()?;
        let mut offsets = Vec::with_capacity(blocks + 1);
        let mut at = 0u64;
        for _ in 0..blocks {
            offsets.push(at);
            let len = u32::try_from(r.varint()?).ok().filter(|n| *n > 0)?;
            at = at.checked_add(len as u64)?;
        }
        offsets.push(at);
        if at != data_end {
            return None;
        }
        let groups = blocks.div_ceil(sampling);
        let mut separators = Blob::default();
        separators.ends.reserve_exact(groups);
        let most = data_end.checked_add(bytes.len() as u64 + FREE_SEPARATORS)?;
        separators.bytes.reserve_exact(separator_bytes(r, groups).filter(|n| *n as u64 <= most)?);
        let mut previous = 0..0;
        for _ in 0..groups {
            let shared = usize::try_from(r.varint()?).ok().filter(|n| *n <= previous.len())?;
            let rest = r.slice()?;
            let start = separators.bytes.len();
            separators.bytes.extend_from_within(previous.start..previous.start + shared);
            separators.bytes.extend_from_slice(rest);
            separators.seal().ok()?;
            previous = start..separators.bytes.len();
        }
        let mut index =
            Index { order: order.clone(), sampling, prefix_len, offsets, common: 0, heads: Vec::new(), separators };
        if order.is_bytewise() && groups > 0 {
            index.common = common_prefix(index.separators.get(0), index.separators.get(groups - 1));
            // What the first and last share, all between share, unless the index is hostile.
            let common = &index.separators.get(0)[..index.common];
            if !(0..groups).all(|i| index.separators.get(i).starts_with(common)) {
                return None;
            }
        }
        index.heads = (0..groups).map(|i| index.head(&index.separators.get(i)[index.common..])).collect();
        r.is_empty().then_some(index)
    }

    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        if self.order.is_bytewise() { head_be(key) } else { self.order.head(key) }
    }

    /// Number of blocks.
    #[inline]
    pub fn blocks(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether a key that [`Index::locate`] places in a block, but is past that block's last key, is nowhere.
    #[inline]
    pub fn is_exact(&self) -> bool {
        self.sampling == 1 && self.prefix_len == 0
    }

    /// Where block `i` is.
    #[inline]
    pub fn handle(&self, i: usize) -> Handle {
        Handle { offset: self.offsets[i], len: (self.offsets[i + 1] - self.offsets[i]) as u32 }
    }

    /// The blocks, as a range of numbers, in which the lower bound of `key` can be, or at whose end it is; it may also be
    /// further on when the index is not exact. Empty when `key` is past all keys.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Range<usize> {
        let group = self.group(key);
        let first = group.saturating_mul(self.sampling).min(self.blocks());
        first..first.saturating_add(self.sampling).min(self.blocks())
    }

    /// Blocks that share a separator.
    pub(crate) fn sampling(&self) -> usize {
        self.sampling
    }

    /// Number of separators.
    pub(crate) fn groups(&self) -> usize {
        self.separators.len()
    }

    /// Bytes of all separators.
    pub(crate) fn separator_bytes(&self) -> usize {
        self.separators.bytes.len()
    }

    /// An index of pieces of this one: of every `groups` separators the last, and as blocks all blocks in front of that. Its search
    /// finds the piece in which [`Index::locate`] finds the key's blocks.
    pub(crate) fn of_pieces(&self, groups: usize) -> Result<Index> {
        let pieces = self.groups().div_ceil(groups);
        let mut separators = Blob::default();
        let last = |piece: usize| self.separators.get((piece * groups + groups).min(self.groups()) - 1);
        separators.bytes.reserve_exact((0..pieces).map(|p| last(p).len()).sum());
        separators.ends.reserve_exact(pieces);
        for piece in 0..pieces {
            separators.bytes.extend_from_slice(last(piece));
            separators.seal()?;
        }
        let blocks = groups.saturating_mul(self.sampling);
        let mut offsets: Vec<u64> = Vec::with_capacity(pieces + 1);
        offsets.extend((0..pieces).map(|p| self.offsets[p * blocks]));
        offsets.push(self.data_end());
        let heads = (0..pieces).map(|p| self.head(&separators.get(p)[self.common..])).collect();
        let (order, prefix_len, common) = (self.order.clone(), self.prefix_len, self.common);
        Ok(Index { order, sampling: 1, prefix_len, offsets, common, heads, separators })
    }

    /// Where the blocks of piece `i` begin and end, of an index of pieces.
    pub(crate) fn piece(&self, i: usize) -> Range<u64> {
        self.offsets[i]..self.offsets[i + 1]
    }

    /// The part of a key that separators are compared with.
    #[inline]
    pub(crate) fn compared<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        if self.prefix_len > 0 { &key[..key.len().min(self.prefix_len)] } else { key }
    }

    /// The separator behind block `i`, which it may share with blocks after it.
    pub fn separator(&self, i: usize) -> Option<&[u8]> {
        (i < self.blocks()).then(|| self.separators.get(i / self.sampling))
    }

    /// Where the last block ends.
    pub fn data_end(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// The first separator that is not below `key`.
    pub(crate) fn group(&self, key: &[u8]) -> usize {
        let n = self.heads.len();
        if n == 0 {
            return 0;
        }
        let key = self.compared(key);
        let mut rest = key;
        if self.common > 0 {
            let common = &self.separators.get(0)[..self.common];
            match key.get(..self.common) {
                Some(start) if start == common => rest = &key[self.common..],
                _ if key < common => return 0,
                _ => return n,
            }
        }
        let head = self.head(rest);
        let lo = lower_bound(&self.heads, head);
        // Among equal heads whole keys decide.
        let (mut lo, mut hi) = (lo, lo + self.heads[lo..].iter().take(4).take_while(|h| **h == head).count());
        if hi - lo == 4 {
            hi += self.heads[hi..].partition_point(|h| *h <= head);
        }
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if self.order.compare(self.separators.get(mid), key).is_lt() { lo = mid + 1 } else { hi = mid }
        }
        lo
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.offsets.capacity() * 8
            + self.heads.capacity() * 8
            + self.separators.bytes.capacity()
            + self.separators.ends.capacity() * 4
    }
}

/// Bytes of all `groups` separators that `r` is about to read.
fn separator_bytes(mut r: Reader<'_>, groups: usize) -> Option<usize> {
    let mut total = 0usize;
    for _ in 0..groups {
        let shared = usize::try_from(r.varint()?).ok()?;
        total = total.checked_add(shared)?.checked_add(r.slice()?.len())?;
    }
    Some(total)
}

/// Index of the first head that is not below `target`: a binary search without unpredictable branches.
#[inline]
fn lower_bound(heads: &[u64], target: u64) -> usize {
    let mut base = 0;
    let mut len = heads.len();
    while len > 1 {
        let half = len / 2;
        base = select_unpredictable(heads[base + half - 1] < target, base + half, base);
        len -= half;
    }
    base + heads.get(base).is_some_and(|h| *h < target) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    #[test]
    fn separators_separate() {
        let mut rng = Rng::new(5);
        let mut key = || -> Vec<u8> {
            let len = rng.below(6) as usize;
            (0..len).map(|_| [0, 1, b'a', b'b', 0xfe, 0xff][rng.below(6) as usize]).collect()
        };
        for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
            let (a, b) = (key(), key());
            let (a, b) = if a <= b { (a, b) } else { (b, a) };
            let mut s = Vec::new();
            shortest_separator(&a, &b, &mut s);
            assert!(a <= s && (s < b || a == b) && s.len() <= a.len().max(1), "{a:?} {s:?} {b:?}");
        }
    }

    fn sample(order: &KeyOrder, n: usize, sampling: usize, prefix_len: usize, rng: &mut Rng) -> (Vec<Vec<u8>>, Index) {
        let prefix: &[u8] = if rng.one_in(2) { b"shared-by-all/" } else { b"" };
        let mut keys: Vec<Vec<u8>> = (0..2 * n)
            .map(|_| {
                let mut k = prefix.to_vec();
                let len = rng.below(14) as usize;
                k.extend((0..len).map(|_| b"aB\x00\xff"[rng.below(4) as usize]));
                k
            })
            .collect();
        keys.sort_by(|a, b| order.compare(a, b));
        let mut b = IndexBuilder::new(order, sampling, prefix_len);
        for i in 0..n {
            b.add_block(10 + i as u32);
            b.separate(&keys[2 * i + 1], keys.get(2 * i + 2).map(|k| &k[..])).unwrap();
        }
        let data_end = (0..n as u64).map(|i| 10 + i).sum();
        (keys, Index::decode(&b.finish(), data_end, order).unwrap())
    }

    /// Long keys that share nearly all of their bytes, in blocks that compressed to next to nothing.
    #[test]
    fn separators_beyond_what_a_reader_believes_are_left_out() {
        for order in [KeyOrder::Bytewise, KeyOrder::Reverse] {
            let mut keys: Vec<Vec<u8>> =
                (0..300u32).map(|i| [&[b'k'; 20_000][..], &i.to_be_bytes()].concat()).collect();
            keys.sort_by(|a, b| order.compare(a, b));
            let mut b = IndexBuilder::new(&order, 1, 0);
            for (i, k) in keys.iter().enumerate() {
                b.add_block(100);
                b.separate(k, keys.get(i + 1).map(|k| &k[..])).unwrap();
            }
            let bytes = b.finish();
            let index = Index::decode(&bytes, 300 * 100, &order).unwrap();
            assert!(!index.is_exact() && index.memory() < bytes.len() + 300 * 100 + (1 << 20) + 300 * 20);
            for (i, k) in keys.iter().enumerate() {
                assert!(index.locate(k).contains(&i), "{order:?}: block {i}");
            }
        }
    }

    #[test]
    fn a_small_index_cannot_spell_out_a_huge_one() {
        let mut bytes = Vec::new();
        [1000u64, 1, 0].into_iter().for_each(|n| put_varint(&mut bytes, n));
        (0..1000).for_each(|_| put_varint(&mut bytes, 10));
        let key = [b'k'; 20_000];
        for i in 0..1000 {
            let (shared, rest) = if i == 0 { (0, &key[..]) } else { (key.len(), &key[..0]) };
            put_varint(&mut bytes, shared as u64);
            put_varint(&mut bytes, rest.len() as u64);
            bytes.extend_from_slice(rest);
        }
        assert!(Index::decode(&bytes, 10_000, &KeyOrder::Bytewise).is_err());
    }

    #[test]
    fn a_forged_sampling_does_not_overflow() {
        let mut bytes = Vec::new();
        [1, u64::MAX, 0, 10, 0, 1].into_iter().for_each(|n| put_varint(&mut bytes, n));
        bytes.push(b'k');
        let index = Index::decode(&bytes, 10, &KeyOrder::Bytewise).unwrap();
        assert_eq!((index.locate(b"a"), index.locate(b"z")), (0..1, 1..1));
    }

    #[test]
    fn locate_never_skips_the_block() {
        let mut rng = Rng::new(6);
        for order in [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::CaseInsensitive] {
            for (n, sampling, prefix_len) in [(1, 1, 0), (2, 1, 0), (100, 1, 0), (101, 4, 0), (300, 1, 3), (300, 3, 17)]
            {
                let (keys, index) = sample(&order, n, sampling, prefix_len, &mut rng);
                assert_eq!(index.blocks(), n);
                for _ in 0..if cfg!(miri) { 3 } else { 300 } {
                    let mut key = keys[rng.below(keys.len() as u64) as usize].clone();
                    if rng.one_in(2) {
                        key.push(b"a\xff"[rng.below(2) as usize]);
                    }
                    // The first block whose last key is not below the target holds its lower bound.
                    let want = (0..n).find(|i| order.compare(&keys[2 * i + 1], &key).is_ge()).unwrap_or(n);
                    let got = index.locate(&key);
                    assert!(got.start <= want, "{got:?} skips {want}");
                    if index.is_exact() && order.is_bytewise() {
                        // In the gap behind a block the block itself may be named.
                        assert!(want == got.start || want == got.start + 1, "{got:?} {want}");
                    } else if index.is_exact() {
                        assert_eq!(got.start, want);
                    }
                }
            }
        }
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless() {
        let mut rng = Rng::new(8);
        let order = KeyOrder::Bytewise;
        let mut b = IndexBuilder::new(&order, 1, 0);
        for i in 0..30u32 {
            b.add_block(100);
            b.separate(&i.to_be_bytes(), Some(&(i + 1).to_be_bytes())).unwrap();
        }
        let bytes = b.finish();
        assert!(Index::decode(&bytes, 2999, &order).is_err());
        for cut in 0..bytes.len() {
            assert!(Index::decode(&bytes[..cut], 3000, &order).is_err());
        }
        for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
            let mut bad = bytes.clone();
            let at = rng.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << rng.below(8);
            if let Ok(index) = Index::decode(&bad, 3000, &order) {
                let key = rng.next_u64().to_be_bytes();
                index.locate(&key[4..]).for_each(|i| assert!(index.handle(i).len > 0));
            }
        }
    }
}
