//! A sorted block of entries. Keys are stored whole and values follow them, so a cursor hands out both without copying
//! and a step decodes one varint.
//!
//! Raw block (integers little-endian):
//!
//! | bytes | what |
//! |---|---|
//! | ... | entries, back to back: tag u64, varint key length, key, value up to the next entry |
//! | 4 n | heads, when the flag says so: the 4 key bytes after the common prefix, as a big-endian number, zero padded |
//! | 2 n or 4 n | offsets of the entries, u16, or u32 when the flag says so |
//! | 4 | n, the number of entries, u32; at least 1 |
//! | 2 | length of the prefix common to all keys of the block, u16 |
//! | 2 | flags, u16: 1 = heads present, 2 = wide offsets |
//!
//! Entries are ordered by key ascending, then tag descending. Heads exist for the bytewise order only: there they are
//! monotone, so a search counts heads below the target, which compiles to vector compares, and compares whole keys only
//! among equal heads. Other orders search the offsets with whole-key comparisons.
//!
//! A [`Layout`] checks the trailer once when a block is loaded; every entry is checked where it is used, so damaged
//! bytes that pass their checksum give an error and never a read out of bounds.

use kingtide_base::coding::put_varint;
use kingtide_base::memory::reserve;
use kingtide_base::{Error, KeyOrder, Result, Tag};
use std::cmp::Ordering;
use std::ops::Range;

/// Bytes of the fixed trailer.
const TRAILER: usize = 8;
const FLAG_HEADS: u16 = 1;
const FLAG_WIDE: u16 = 2;

/// Up to this many heads are counted one after another, four to a vector; more are halved first.
const LINEAR: usize = 64;

#[cold]
fn damaged(what: &str) -> Error {
    Error::corruption(format!("damaged block: {what}"))
}

/// First four bytes of `key` as a big-endian number, zero padded: monotone for the bytewise order.
#[inline]
fn head32(key: &[u8]) -> u32 {
    if let Some(b) = key.first_chunk::<4>() {
        return u32::from_be_bytes(*b);
    }
    let mut b = [0u8; 4];
    b[..key.len()].copy_from_slice(key);
    u32::from_be_bytes(b)
}

/// Length of the common prefix of two keys.
#[inline]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Where the parts of a raw block are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    count: u32,
    /// Where the entries end and the heads, or the offsets, begin.
    entries_end: u32,
    offsets_at: u32,
    prefix_len: u16,
    flags: u16,
}

/// Where one entry is in its raw block.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What the entry does, and when.
    pub tag: Tag,
    key_start: u32,
    key_end: u32,
    end: u32,
}

impl Entry {
    /// Nowhere: empty key and value.
    pub const EMPTY: Entry = Entry { tag: Tag(0), key_start: 0, key_end: 0, end: 0 };

    /// Where the key is.
    #[inline]
    pub fn key_range(&self) -> Range<usize> {
        self.key_start as usize..self.key_end as usize
    }

    /// Where the value is.
    #[inline]
    pub fn value_range(&self) -> Range<usize> {
        self.key_end as usize..self.end as usize
    }

    /// The key, in the block that the entry was read from.
    #[inline]
    pub fn key<'a>(&self, raw: &'a [u8]) -> &'a [u8] {
        raw.get(self.key_range()).unwrap_or_default()
    }

    /// The value, in the block that the entry was read from.
    #[inline]
    pub fn value<'a>(&self, raw: &'a [u8]) -> &'a [u8] {
        raw.get(self.value_range()).unwrap_or_default()
    }
}

impl Layout {
    /// Reads the trailer of a raw block.
    ///
    /// # Errors
    /// `Corruption` when the parts that it announces do not fit.
    #[inline]
    pub fn parse(raw: &[u8]) -> Result<Layout> {
        let Some((rest, trailer)) = raw.split_last_chunk::<TRAILER>() else { return Err(damaged("no trailer")) };
        let [c0, c1, c2, c3, p0, p1, f0, f1] = *trailer;
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        let flags = u16::from_le_bytes([f0, f1]);
        let heads = if flags & FLAG_HEADS != 0 { 4 } else { 0 };
        let offsets = if flags & FLAG_WIDE != 0 { 4 } else { 2 };
        let tables = (heads + offsets) as u64 * count as u64;
        if count == 0 || flags > 3 || raw.len() > u32::MAX as usize || tables > rest.len() as u64 {
            return Err(damaged("its tables do not fit"));
        }
        let entries_end = rest.len() as u32 - tables as u32;
        Ok(Layout {
            count,
            entries_end,
            offsets_at: entries_end + heads * count,
            prefix_len: u16::from_le_bytes([p0, p1]),
            flags,
        })
    }

    /// Number of entries; at least 1.
    #[inline]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Where entry `i` begins; where the entries end for `i == count`.
    #[inline]
    fn offset(&self, raw: &[u8], i: usize) -> Option<u32> {
        if i >= self.count as usize {
            return (i == self.count as usize).then_some(self.entries_end);
        }
        let at = self.offsets_at as usize;
        if self.flags & FLAG_WIDE == 0 {
            raw.get(at + 2 * i..)?.first_chunk().map(|b| u16::from_le_bytes(*b) as u32)
        } else {
            raw.get(at + 4 * i..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
        }
    }

    /// Entry `i`.
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    #[inline]
    pub fn entry(&self, raw: &[u8], i: usize) -> Result<Entry> {
        match self.offset(raw, i).and_then(|start| self.entry_from(raw, i, start)) {
            Some(e) => Ok(e),
            None => Err(damaged("an entry is not inside it")),
        }
    }

    /// The entry that follows `entry`, which is entry `i - 1`: its start is known.
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    #[inline]
    pub fn entry_after(&self, raw: &[u8], entry: &Entry, i: usize) -> Result<Entry> {
        match self.entry_from(raw, i, entry.end) {
            Some(e) => Ok(e),
            None => Err(damaged("an entry is not inside it")),
        }
    }

    #[inline]
    fn entry_from(&self, raw: &[u8], i: usize, start: u32) -> Option<Entry> {
        let end = self.offset(raw, i + 1)?;
        if end > self.entries_end {
            return None;
        }
        let bytes = raw.get(start as usize..end as usize)?;
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (first, _) = rest.split_first()?;
        let (len_bytes, key_len) = if *first < 0x80 {
            (1, *first as usize)
        } else {
            let mut r = kingtide_base::coding::Reader::new(rest);
            let n = usize::try_from(r.varint()?).ok()?;
            (rest.len() - r.rest().len(), n)
        };
        if key_len > rest.len() - len_bytes {
            return None;
        }
        let key_start = start + 8 + len_bytes as u32;
        Some(Entry { tag: Tag(u64::from_le_bytes(*tag)), key_start, key_end: key_start + key_len as u32, end })
    }

    /// Index of the first entry that is not before (`key`, `tag`); `count` when all are.
    ///
    /// # Errors
    /// `Corruption` when an entry that it meets is not inside the block.
    #[inline]
    pub fn lower_bound(&self, raw: &[u8], order: &KeyOrder, key: &[u8], tag: Tag) -> Result<usize> {
        let mut range = 0..self.count as usize;
        if self.flags & FLAG_HEADS != 0 && order.is_bytewise() {
            range = self.candidates(raw, key)?;
        }
        let (mut lo, mut hi) = (range.start, range.end);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let e = self.entry(raw, mid)?;
            match order.compare(e.key(raw), key).then_with(|| tag.cmp(&e.tag)) {
                Ordering::Less => lo = mid + 1,
                _ => hi = mid,
            }
        }
        Ok(lo)
    }

    /// Where the lower bound of `key` can be, by the heads alone: in the range or at its end.
    #[inline]
    fn candidates(&self, raw: &[u8], key: &[u8]) -> Result<Range<usize>> {
        let n = self.count as usize;
        let prefix_len = self.prefix_len as usize;
        let mut rest = key;
        if prefix_len > 0 {
            let first = self.entry(raw, 0)?;
            let Some(prefix) = first.key(raw).get(..prefix_len) else { return Err(damaged("prefix too long")) };
            match key.get(..prefix_len) {
                Some(start) if start == prefix => rest = &key[prefix_len..],
                _ if key < prefix => return Ok(0..0),
                _ => return Ok(n..n),
            }
        }
        let Some(heads) = raw.get(self.entries_end as usize..self.offsets_at as usize) else {
            return Err(damaged("no heads"));
        };
        let (heads, _) = heads.as_chunks::<4>();
        Ok(equal_heads(heads, head32(rest)))
    }
}

/// The range of `heads`, which are sorted, that equal `target`.
#[inline]
fn equal_heads(mut heads: &[[u8; 4]], target: u32) -> Range<usize> {
    let all = heads;
    let mut base = 0;
    while heads.len() > LINEAR {
        // The halves overlap so that no branch depends on the comparison.
        let half = heads.len() / 2;
        let below = u32::from_le_bytes(heads[half - 1]) < target;
        let from = if below { half } else { 0 };
        base += from;
        heads = &heads[from..from + heads.len() - half];
    }
    let lo = base + heads.iter().map(|h| (u32::from_le_bytes(*h) < target) as u32).sum::<u32>() as usize;
    // Equal heads are rare and few: walk over the first ones, halve when there are many.
    let tied = |i: usize| all.get(i).is_some_and(|h| u32::from_le_bytes(*h) == target);
    let mut hi = lo;
    while tied(hi) {
        hi += 1;
        if hi - lo == 8 {
            hi += all[hi..].partition_point(|h| u32::from_le_bytes(*h) <= target);
            break;
        }
    }
    lo..hi
}

/// Builds one raw block after another in the same buffers.
pub struct BlockBuilder {
    heads: bool,
    raw: Vec<u8>,
    offsets: Vec<u32>,
    /// Where the keys of the entries are, for heads and prefix.
    first_key: Range<usize>,
    last_key: Range<usize>,
}

impl BlockBuilder {
    /// A builder for blocks in that order, of about `capacity` bytes.
    pub fn new(order: &KeyOrder, capacity: usize) -> BlockBuilder {
        BlockBuilder {
            heads: order.is_bytewise(),
            raw: Vec::with_capacity(capacity + capacity / 4),
            offsets: Vec::with_capacity(capacity / 32),
            first_key: 0..0,
            last_key: 0..0,
        }
    }

    /// Whether nothing was added.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Bytes that the block would have with one entry more, of a key and a value of those lengths.
    #[inline]
    pub fn size_with(&self, key_len: usize, value_len: usize) -> usize {
        let per_entry = if self.heads { 6 } else { 2 };
        self.raw.len() + TRAILER + per_entry * (self.offsets.len() + 1) + 10 + key_len + value_len
    }

    /// Makes room for an entry, so that [`BlockBuilder::add`] finds memory for it.
    ///
    /// # Errors
    /// When there is none.
    #[inline]
    pub fn reserve(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        reserve(&mut self.raw, key.len() + value.len() + 32, "a block")
    }

    /// Appends an entry. The caller keeps the order and the limit of 4 GiB.
    #[inline]
    pub fn add(&mut self, key: &[u8], tag: Tag, value: &[u8]) {
        self.offsets.push(self.raw.len() as u32);
        self.raw.extend_from_slice(&tag.0.to_le_bytes());
        put_varint(&mut self.raw, key.len() as u64);
        let start = self.raw.len();
        self.raw.extend_from_slice(key);
        self.last_key = start..self.raw.len();
        if self.offsets.len() == 1 {
            self.first_key = self.last_key.clone();
        }
        self.raw.extend_from_slice(value);
    }

    /// Completes the block and returns it. [`BlockBuilder::clear`] starts the next.
    pub fn finish(&mut self) -> &[u8] {
        let entries_end = self.raw.len();
        let (mut flags, mut prefix_len) = (0, 0);
        if self.heads {
            flags |= FLAG_HEADS;
            let (first, last) = (&self.raw[self.first_key.clone()], &self.raw[self.last_key.clone()]);
            prefix_len = common_prefix(first, last).min(u16::MAX as usize);
            for &at in &self.offsets {
                let head = self.head_of(at as usize, prefix_len);
                self.raw.extend_from_slice(&head.to_le_bytes());
            }
        }
        if entries_end > u16::MAX as usize {
            flags |= FLAG_WIDE;
            self.raw.extend(self.offsets.iter().flat_map(|o| o.to_le_bytes()));
        } else {
            self.raw.extend(self.offsets.iter().flat_map(|o| (*o as u16).to_le_bytes()));
        }
        self.raw.extend_from_slice(&(self.offsets.len() as u32).to_le_bytes());
        self.raw.extend_from_slice(&(prefix_len as u16).to_le_bytes());
        self.raw.extend_from_slice(&flags.to_le_bytes());
        &self.raw
    }

    fn head_of(&self, at: usize, prefix_len: usize) -> u32 {
        let mut r = kingtide_base::coding::Reader::new(&self.raw[at + 8..]);
        let key = r.slice().unwrap_or_default();
        head32(key.get(prefix_len..).unwrap_or_default())
    }

    /// Forgets the finished block.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.offsets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::Kind;
    use kingtide_base::rng::Rng;

    type Model = Vec<(Vec<u8>, Tag, Vec<u8>)>;

    fn sorted(order: &KeyOrder, n: usize, rng: &mut Rng) -> Model {
        let prefix: &[u8] = if rng.one_in(2) { b"common/prefix/" } else { b"" };
        let mut m: Model = (0..n)
            .map(|i| {
                let mut key = prefix.to_vec();
                let len = rng.below(12) as usize;
                key.extend((0..len).map(|_| b"\x00aAb\xff"[rng.below(5) as usize]));
                let mut value = vec![0; rng.below(40) as usize];
                rng.fill(&mut value);
                (key, Tag::new(i as u64, Kind::Put), value)
            })
            .collect();
        m.sort_by(|a, b| order.compare(&a.0, &b.0).then(b.1.cmp(&a.1)));
        m
    }

    fn build(order: &KeyOrder, model: &Model) -> Vec<u8> {
        let mut b = BlockBuilder::new(order, 4096);
        for (k, t, v) in model {
            b.add(k, *t, v);
        }
        b.finish().to_vec()
    }

    #[test]
    fn searches_agree_with_a_sorted_vector() {
        let mut rng = Rng::new(11);
        for order in [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::CaseInsensitive, KeyOrder::U64] {
            let sizes: &[usize] = if cfg!(miri) { &[1, 2, 33] } else { &[1, 2, 3, 31, 33, 64, 65, 200, 3000] };
            for n in sizes.iter().copied() {
                let model = sorted(&order, n, &mut rng);
                let raw = build(&order, &model);
                let layout = Layout::parse(&raw).unwrap();
                assert_eq!(layout.count(), n);
                for (i, (k, t, v)) in model.iter().enumerate() {
                    let e = layout.entry(&raw, i).unwrap();
                    assert_eq!((e.key(&raw), e.tag, e.value(&raw)), (&k[..], *t, &v[..]));
                }
                for _ in 0..if cfg!(miri) { 5 } else { 500 } {
                    let mut key = model[rng.below(n as u64) as usize].0.clone();
                    match rng.below(4) {
                        0 => key.push(b"\x00a\xff"[rng.below(3) as usize]),
                        1 => drop(key.pop()),
                        2 => key.clear(),
                        _ => {}
                    }
                    let tag = Tag::seek(rng.below(n as u64));
                    let want = model.partition_point(|(k, t, _)| order.compare(k, &key).then(tag.cmp(t)).is_lt());
                    assert_eq!(layout.lower_bound(&raw, &order, &key, tag).unwrap(), want, "{order:?} {n} {key:?}");
                }
            }
        }
    }

    #[test]
    fn large_blocks_have_wide_offsets() {
        let mut b = BlockBuilder::new(&KeyOrder::Bytewise, 4096);
        for i in 0..100u32 {
            b.add(&i.to_be_bytes(), Tag::new(1, Kind::Put), &[i as u8; 1000]);
        }
        let raw = b.finish().to_vec();
        let layout = Layout::parse(&raw).unwrap();
        for i in 0..100u32 {
            let at = layout.lower_bound(&raw, &KeyOrder::Bytewise, &i.to_be_bytes(), Tag::seek(9)).unwrap();
            let e = layout.entry(&raw, at).unwrap();
            assert_eq!((e.key(&raw), e.value(&raw)), (&i.to_be_bytes()[..], &[i as u8; 1000][..]));
        }
    }

    /// Every byte changed and every length cut: an error or some answer, never a panic.
    #[test]
    fn hostile_bytes_never_panic() {
        let mut rng = Rng::new(12);
        let model = sorted(&KeyOrder::Bytewise, 20, &mut rng);
        let raw = build(&KeyOrder::Bytewise, &model);
        let walk = |bytes: &[u8]| {
            let Ok(layout) = Layout::parse(bytes) else { return };
            for (k, t, _) in &model {
                let _ = layout.lower_bound(bytes, &KeyOrder::Bytewise, k, *t);
                let _ = layout.lower_bound(bytes, &KeyOrder::Reverse, k, *t);
            }
            for i in 0..layout.count().min(1000) {
                let Ok(e) = layout.entry(bytes, i) else { continue };
                let _ = (e.key(bytes), e.value(bytes), layout.entry_after(bytes, &e, i + 1));
            }
        };
        for i in (0..raw.len()).step_by(if cfg!(miri) { 97 } else { 1 }) {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = raw.clone();
                bad[i] ^= flip;
                walk(&bad);
            }
            walk(&raw[..i]);
            walk(&raw[i..]);
        }
    }
}
