//! A sorted block of entries. Keys are stored whole and values follow them, so a cursor hands out both without copying
//! and a step decodes two lengths.
//!
//! Raw block (integers little-endian):
//!
//! | bytes | what |
//! |---|---|
//! | ... | entries, back to back: tag u64, varint key length, varint value length unless the restart interval is 1, key, value |
//! | 4 r | heads of the restart points, when the flag says so: the 4 key bytes after the common prefix, as a big-endian number, zero padded |
//! | 2 r or 4 r | offsets of the restart points, u16, or u32 when the flag says so |
//! | 4 | n, the number of entries, u32; at least 1 |
//! | 2 | length of the prefix common to all keys of the block, u16 |
//! | 1 | flags, u8: 1 = heads present, 2 = wide offsets |
//! | 1 | binary logarithm of the restart interval, u8, at most 7 |
//!
//! Entries whose number is a multiple of the restart interval are restart points; the entries behind one are reached by
//! walking from it. r is their number without entry 0, which has neither head nor offset: a search that finds no restart point
//! before its target walks from there. In a block with the interval 1 every entry has a head and an offset, entry 0 too, r is
//! n, and each value ends where the next entry begins. All blocks of format version 1 are of this kind.
//!
//! Entries are ordered by key ascending, then tag descending. Heads exist for the bytewise order only: there they are
//! monotone, so a search counts heads below the target, which compiles to vector compares, and compares whole keys only
//! among equal heads. Then it walks, and compares eight key bytes before it compares whole keys. Other orders search the
//! offsets, and walk, with whole-key comparisons.
//!
//! A [`Layout`] checks the trailer once when a block is loaded; every entry is checked where it is used, so damaged
//! bytes that pass their checksum give an error and never a read out of bounds.

use kingtide_base::coding::{Reader, put_varint};
use kingtide_base::memory::reserve;
use kingtide_base::{Error, KeyOrder, Result, Tag};
use std::ops::Range;

/// Entries from one restart point to the next, in the blocks that are written: heads and offsets of every entry take six
/// bytes of it, and compress badly. `docs/experiments.md` says what other intervals cost.
pub const RESTART_INTERVAL: usize = 4;

/// The longest interval that a block may have.
pub const MAX_RESTART_INTERVAL: usize = 1 << MAX_SHIFT;
const MAX_SHIFT: u8 = 7;

/// Bytes of the fixed trailer.
const TRAILER: usize = 8;
const FLAG_HEADS: u8 = 1;
const FLAG_WIDE: u8 = 2;

/// Bytes of an entry besides key and value, at least: the tag, and the length of the key.
const ENTRY_MIN: u64 = 9;

/// Up to this many heads are counted one after another, four to a vector; more are halved first.
const LINEAR: usize = 64;

#[cold]
fn damaged(what: &str) -> Error {
    Error::corruption(format!("damaged block: {what}"))
}

#[cold]
fn not_inside() -> Error {
    damaged("an entry is not inside it")
}

/// First eight bytes of `key` as a big-endian number, zero padded: monotone for the bytewise order.
#[inline]
fn head64(key: &[u8]) -> u64 {
    if let Some(b) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*b);
    }
    let mut b = [0u8; 8];
    b[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(b)
}

/// First four bytes, likewise.
#[inline]
fn head32(key: &[u8]) -> u32 {
    (head64(key) >> 32) as u32
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
    flags: u8,
    /// Binary logarithm of the restart interval.
    shift: u8,
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

/// Entries that a walk from a restart point passed, the last ones up to where it went: those that steps back go to next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    /// The number of the first.
    from: usize,
    count: usize,
    entries: [Entry; Passed::MOST],
}

impl Passed {
    /// Blocks with longer intervals are walked over again for each so many steps.
    const MOST: usize = 8;

    /// None.
    pub const NONE: Passed = Passed { from: 0, count: 0, entries: [Entry::EMPTY; Passed::MOST] };

    /// Forgets them: they are of another block.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    #[inline]
    fn get(&self, i: usize) -> Option<Entry> {
        self.entries[..self.count].get(i.wrapping_sub(self.from)).copied()
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
        let [c0, c1, c2, c3, p0, p1, flags, shift] = *trailer;
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        if count == 0 || flags > 3 || shift > MAX_SHIFT || raw.len() > u32::MAX as usize {
            return Err(damaged("its tables do not fit"));
        }
        let listed = ((count - 1) >> shift) as u64 + (shift == 0) as u64;
        let heads = if flags & FLAG_HEADS != 0 { 4 * listed } else { 0 };
        let offsets = if flags & FLAG_WIDE != 0 { 4 * listed } else { 2 * listed };
        let entries_end = (rest.len() as u64).checked_sub(heads + offsets);
        match entries_end.filter(|end| *end >= ENTRY_MIN * count as u64) {
            Some(end) => Ok(Layout {
                count,
                entries_end: end as u32,
                offsets_at: (end + heads) as u32,
                prefix_len: u16::from_le_bytes([p0, p1]),
                flags,
                shift,
            }),
            None => Err(damaged("its tables do not fit")),
        }
    }

    /// Number of entries; at least 1.
    #[inline]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Number of restart points that have offsets.
    #[inline]
    fn listed(&self) -> usize {
        ((self.count as usize - 1) >> self.shift) + (self.shift == 0) as usize
    }

    /// Where the restart point begins that is number `i` of those that have offsets.
    #[inline]
    fn offset(&self, raw: &[u8], i: usize) -> Option<u32> {
        let at = self.offsets_at as usize;
        if self.flags & FLAG_WIDE == 0 {
            raw.get(at + 2 * i..)?.first_chunk().map(|b| u16::from_le_bytes(*b) as u32)
        } else {
            raw.get(at + 4 * i..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
        }
    }

    /// Where restart point `r` begins.
    #[inline]
    fn restart_at(&self, raw: &[u8], r: usize) -> Option<u32> {
        match (r, self.shift) {
            (r, 0) => self.offset(raw, r),
            (0, _) => Some(0),
            (r, _) => self.offset(raw, r - 1),
        }
    }

    /// Entry `i`. O(restart interval).
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    pub fn entry(&self, raw: &[u8], i: usize) -> Result<Entry> {
        if i >= self.count() {
            return Err(not_inside());
        }
        let restart = i >> self.shift;
        let first = restart << self.shift;
        let mut e = self.restart(raw, restart)?;
        for i in first + 1..i + 1 {
            e = self.entry_after(raw, &e, i)?;
        }
        Ok(e)
    }

    /// Entry `i`, for steps back, one entry after the other: O(1) for most of them. `passed` are entries of this block.
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    #[inline]
    pub(crate) fn entry_back(&self, raw: &[u8], i: usize, passed: &mut Passed) -> Result<Entry> {
        match passed.get(i) {
            Some(entry) => Ok(entry),
            None => self.walk_back(raw, i, passed),
        }
    }

    #[inline(never)]
    fn walk_back(&self, raw: &[u8], i: usize, passed: &mut Passed) -> Result<Entry> {
        passed.clear();
        if i >= self.count() {
            return Err(not_inside());
        }
        let restart = i >> self.shift;
        let first = restart << self.shift;
        let from = first.max((i + 1).saturating_sub(Passed::MOST));
        let mut e = self.restart(raw, restart)?;
        for at in first..=i {
            if at > first {
                e = self.entry_after(raw, &e, at)?;
            }
            if at >= from {
                passed.entries[at - from] = e;
            }
        }
        (passed.from, passed.count) = (from, i + 1 - from);
        Ok(e)
    }

    /// The entry of restart point `r`, which is below their number.
    #[inline]
    fn restart(&self, raw: &[u8], r: usize) -> Result<Entry> {
        let entry = self.restart_at(raw, r).and_then(|start| self.entry_from(raw, r << self.shift, start));
        entry.ok_or_else(not_inside)
    }

    /// Entry `i`, which follows `entry`: its start is known. There must be such an entry.
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    #[inline]
    pub fn entry_after(&self, raw: &[u8], entry: &Entry, i: usize) -> Result<Entry> {
        self.entry_from(raw, i, entry.end).ok_or_else(not_inside)
    }

    #[inline]
    fn entry_from(&self, raw: &[u8], i: usize, start: u32) -> Option<Entry> {
        if self.shift == 0 {
            return self.entry_between(raw, i, start);
        }
        let bytes = raw.get(start as usize..)?;
        let (header, key_len, value_len) = short_lengths(bytes).or_else(|| self.long_lengths(raw, start))?;
        let tag = Tag(u64::from_le_bytes(*bytes.first_chunk()?));
        let key_start = start as u64 + header as u64;
        let key_end = key_start + key_len as u64;
        let end = key_end + value_len as u64;
        if end > self.entries_end as u64 {
            return None;
        }
        Some(Entry { tag, key_start: key_start as u32, key_end: key_end as u32, end: end as u32 })
    }

    /// [`short_lengths`] where they are longer.
    #[inline(never)]
    fn long_lengths(&self, raw: &[u8], start: u32) -> Option<(usize, usize, usize)> {
        let bytes = raw.get(start as usize + 8..self.entries_end as usize)?;
        let mut r = Reader::new(bytes);
        // Each below the limit of a block, so that sums do not overflow.
        let mut length = || r.varint().filter(|n| *n <= u32::MAX as u64);
        let (key_len, value_len) = (length()?, length()?);
        Some((8 + bytes.len() - r.rest().len(), key_len as usize, value_len as usize))
    }

    /// Entry `i` of a block whose entries are all restart points.
    #[inline(never)]
    fn entry_between(&self, raw: &[u8], i: usize, start: u32) -> Option<Entry> {
        let end = if i + 1 < self.count() { self.offset(raw, i + 1)? } else { self.entries_end };
        if i >= self.count() || end > self.entries_end {
            return None;
        }
        let bytes = raw.get(start as usize..end as usize)?;
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (first, _) = rest.split_first()?;
        let (len_bytes, key_len) = if *first < 0x80 {
            (1, *first as usize)
        } else {
            let mut r = Reader::new(rest);
            let n = usize::try_from(r.varint()?).ok()?;
            (rest.len() - r.rest().len(), n)
        };
        if key_len > rest.len() - len_bytes {
            return None;
        }
        let key_start = start + 8 + len_bytes as u32;
        Some(Entry { tag: Tag(u64::from_le_bytes(*tag)), key_start, key_end: key_start + key_len as u32, end })
    }

    /// The first entry that is not before (`key`, `tag`), and its number; `None` when all are.
    ///
    /// # Errors
    /// `Corruption` when an entry that it meets is not inside the block.
    #[inline]
    pub fn lower_bound(&self, raw: &[u8], order: &KeyOrder, key: &[u8], tag: Tag) -> Result<Option<(usize, Entry)>> {
        if self.flags & FLAG_HEADS == 0 || !order.is_bytewise() {
            let before = |e: &Entry| order.compare(e.key(raw), key).then_with(|| tag.cmp(&e.tag)).is_lt();
            return self.walk(raw, 0..self.listed(), before);
        }
        let prefix_len = self.prefix_len as usize;
        let mut rest = key;
        if prefix_len > 0 {
            let first = self.restart(raw, 0)?;
            let Some(prefix) = first.key(raw).get(..prefix_len) else { return Err(damaged("prefix too long")) };
            match key.get(..prefix_len) {
                Some(start) if start == prefix => rest = &key[prefix_len..],
                _ if key < prefix => return Ok(Some((0, first))),
                _ => return Ok(None),
            }
        }
        let Some(heads) = raw.get(self.entries_end as usize..self.offsets_at as usize) else {
            return Err(damaged("no heads"));
        };
        let unsure = equal_heads(heads.as_chunks::<4>().0, head32(rest));
        // Most entries that a walk passes are below the target by their first bytes. Where a stored key ends, bytes of its
        // value follow; where the target ends, zeros, which nothing is below. So these bytes of a value decide only if the key
        // is the beginning of a longer target, and then it is below it indeed.
        let target = head64(rest);
        self.walk(raw, unsure, |e| {
            // Behind the last key are at least the eight bytes of the trailer.
            match raw.get(e.key_start as usize + prefix_len..).and_then(|b| b.first_chunk()) {
                Some(head) if u64::from_be_bytes(*head) < target => true,
                _ => e.key(raw).cmp(key).then_with(|| tag.cmp(&e.tag)).is_lt(),
            }
        })
    }

    /// The first entry that is not `before`, which holds for no entry behind one for which it does not. Among the restart
    /// points that have offsets, it holds for all below `unsure`, and for none above.
    #[inline]
    fn walk(
        &self,
        raw: &[u8],
        unsure: Range<usize>,
        before: impl Fn(&Entry) -> bool,
    ) -> Result<Option<(usize, Entry)>> {
        let unlisted = (self.shift > 0) as usize;
        let (mut lo, mut hi) = (unsure.start, unsure.end);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if before(&self.restart(raw, mid + unlisted)?) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        if self.shift == 0 {
            return if lo < self.count() { self.restart(raw, lo).map(|e| Some((lo, e))) } else { Ok(None) };
        }
        // The answer is behind the last restart point that is before, and at the latest the next one.
        let first = lo << self.shift;
        let next = first + (1 << self.shift);
        let mut i = first;
        let mut start = self.restart_at(raw, lo).ok_or_else(not_inside)?;
        while i < self.count() {
            let e = self.entry_from(raw, i, start).ok_or_else(not_inside)?;
            if i >= next || (i > first || lo == 0) && !before(&e) {
                return Ok(Some((i, e)));
            }
            start = e.end;
            i += 1;
        }
        Ok(None)
    }

    /// Checks what a search relies on: that walking over the entries arrives at each restart point and where the entries
    /// end. O(entries).
    ///
    /// # Errors
    /// `Corruption` when it does not, or an entry is not inside the block.
    pub fn check(&self, raw: &[u8]) -> Result<()> {
        let mut at = Some(0);
        for i in 0..self.count() {
            if i & ((1 << self.shift) - 1) == 0 && self.restart_at(raw, i >> self.shift) != at {
                return Err(damaged("a restart point is not where an entry begins"));
            }
            let e = at.and_then(|start| self.entry_from(raw, i, start));
            at = Some(e.ok_or_else(not_inside)?.end);
        }
        if at != Some(self.entries_end) {
            return Err(damaged("there is something between its entries and its tables"));
        }
        Ok(())
    }
}

/// How many bytes of an entry come before its key, and the lengths of key and value, if these take one byte and at most two.
#[inline]
fn short_lengths(entry: &[u8]) -> Option<(usize, usize, usize)> {
    let [.., key_len, low, high] = *entry.first_chunk::<11>()?;
    if (key_len | low) < 0x80 {
        return Some((10, key_len as usize, low as usize));
    }
    ((key_len | high) < 0x80).then_some((11, key_len as usize, (low & 0x7f) as usize | (high as usize) << 7))
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
    shift: u8,
    raw: Vec<u8>,
    count: usize,
    /// Where the restart points are, without those that are not listed.
    offsets: Vec<u32>,
    /// Where the keys of the entries are, for heads and prefix.
    first_key: Range<usize>,
    last_key: Range<usize>,
}

impl BlockBuilder {
    /// A builder for blocks in that order, of about `capacity` bytes, in which every `restart_interval`-th entry, rounded to
    /// a power of two of at most [`MAX_RESTART_INTERVAL`], is a restart point.
    pub fn new(order: &KeyOrder, capacity: usize, restart_interval: usize) -> BlockBuilder {
        let shift = restart_interval.clamp(1, MAX_RESTART_INTERVAL).ilog2() as u8;
        BlockBuilder {
            heads: order.is_bytewise(),
            shift,
            raw: Vec::with_capacity(capacity + capacity / 4),
            count: 0,
            offsets: Vec::with_capacity(((capacity / 32) >> shift) + 1),
            first_key: 0..0,
            last_key: 0..0,
        }
    }

    /// Entries from one restart point to the next.
    pub fn restart_interval(&self) -> usize {
        1 << self.shift
    }

    /// Whether nothing was added.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the block would have with one entry more, of a key and a value of those lengths.
    #[inline]
    pub fn size_with(&self, key_len: usize, value_len: usize) -> usize {
        let per_restart = if self.heads { 6 } else { 2 };
        let listed = (self.count >> self.shift) + (self.shift == 0) as usize;
        self.raw.len() + TRAILER + per_restart * listed + 10 + key_len + value_len
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
        if self.shift == 0 || self.count > 0 && self.count & ((1 << self.shift) - 1) == 0 {
            self.offsets.push(self.raw.len() as u32);
        }
        self.raw.extend_from_slice(&tag.0.to_le_bytes());
        put_varint(&mut self.raw, key.len() as u64);
        if self.shift > 0 {
            put_varint(&mut self.raw, value.len() as u64);
        }
        let start = self.raw.len();
        self.raw.extend_from_slice(key);
        self.last_key = start..self.raw.len();
        if self.count == 0 {
            self.first_key = self.last_key.clone();
        }
        self.count += 1;
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
        self.raw.extend_from_slice(&(self.count as u32).to_le_bytes());
        self.raw.extend_from_slice(&(prefix_len as u16).to_le_bytes());
        self.raw.extend_from_slice(&[flags, self.shift]);
        &self.raw
    }

    fn head_of(&self, at: usize, prefix_len: usize) -> u32 {
        let mut r = Reader::new(&self.raw[at + 8..]);
        let key_len = r.varint().unwrap_or_default() as usize;
        if self.shift > 0 {
            r.varint();
        }
        let key = r.rest().get(..key_len).unwrap_or_default();
        head32(key.get(prefix_len..).unwrap_or_default())
    }

    /// Forgets the finished block.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.count = 0;
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

    /// Restart intervals: as in format version 1, as it is written, and others.
    const INTERVALS: [usize; 5] = [1, 2, RESTART_INTERVAL, 8, MAX_RESTART_INTERVAL];

    fn build(order: &KeyOrder, interval: usize, model: &Model) -> Vec<u8> {
        let mut b = BlockBuilder::new(order, 4096, interval);
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
            for (n, interval) in sizes.iter().flat_map(|n| INTERVALS.map(|interval| (*n, interval))) {
                let model = sorted(&order, n, &mut rng);
                let raw = build(&order, interval, &model);
                let layout = Layout::parse(&raw).unwrap();
                layout.check(&raw).unwrap();
                assert_eq!(layout.count(), n);
                let entry_of = |e: Entry| (e.key(&raw).to_vec(), e.tag, e.value(&raw).to_vec());
                for (i, want) in model.iter().enumerate() {
                    let e = layout.entry(&raw, i).unwrap();
                    assert_eq!(entry_of(e), *want);
                    assert_eq!(layout.entry_after(&raw, &e, i + 1).ok().map(entry_of).as_ref(), model.get(i + 1));
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
                    let at = model.partition_point(|(k, t, _)| order.compare(k, &key).then(tag.cmp(t)).is_lt());
                    let found = layout.lower_bound(&raw, &order, &key, tag).unwrap();
                    let what = format!("{order:?}, {n} entries, interval {interval}, {key:?}");
                    assert_eq!(found.map_or(n, |(i, _)| i), at, "{what}");
                    assert_eq!(found.map(|(_, e)| entry_of(e)).as_ref(), model.get(at), "{what}");
                }
            }
        }
    }

    #[test]
    fn large_blocks_have_wide_offsets() {
        for interval in INTERVALS {
            let mut b = BlockBuilder::new(&KeyOrder::Bytewise, 4096, interval);
            for i in 0..200u32 {
                b.add(&i.to_be_bytes(), Tag::new(1, Kind::Put), &[i as u8; 1000]);
            }
            let raw = b.finish().to_vec();
            let layout = Layout::parse(&raw).unwrap();
            for i in 0..200u32 {
                let found = layout.lower_bound(&raw, &KeyOrder::Bytewise, &i.to_be_bytes(), Tag::seek(9)).unwrap();
                let (at, e) = found.unwrap();
                assert_eq!((at, e.key(&raw), e.value(&raw)), (i as usize, &i.to_be_bytes()[..], &[i as u8; 1000][..]));
            }
        }
    }

    /// Lengths of one byte and of more, of the key and of the value.
    #[test]
    fn lengths_of_every_size_are_read() {
        for interval in INTERVALS {
            let lens = [0, 1, 127, 128, 16_383, 16_384, 70_000];
            let model: Model = (0..lens.len() * lens.len())
                .map(|i| {
                    let mut key = vec![b'k'; lens[i % lens.len()]];
                    key.splice(0..0, [i as u8]);
                    (key, Tag::new(7, Kind::Put), vec![b'v'; lens[i / lens.len()]])
                })
                .collect();
            let raw = build(&KeyOrder::Bytewise, interval, &model);
            let layout = Layout::parse(&raw).unwrap();
            layout.check(&raw).unwrap();
            for (i, (key, tag, value)) in model.iter().enumerate() {
                let (at, e) = layout.lower_bound(&raw, &KeyOrder::Bytewise, key, *tag).unwrap().unwrap();
                assert_eq!((at, e.key(&raw) == key, e.tag, e.value(&raw) == value), (i, true, *tag, true));
            }
        }
    }

    /// What no checksum finds because it was written so: an error where a search could give a wrong answer.
    #[test]
    fn contradictions_in_a_block_are_errors() {
        let entry = |i: u8| (vec![b'k', i], Tag::new(1, Kind::Put), vec![i; 5]);
        let model: Model = (0..10).map(entry).collect();
        let good = build(&KeyOrder::Bytewise, 4, &model);
        // 17 bytes an entry; three restart points, two with head and offset.
        let (entries_end, len) = (170, good.len());
        assert_eq!(len, entries_end + 2 * 6 + TRAILER);
        let (offsets, count) = (len - TRAILER - 4, len - TRAILER);
        let corrupt = |r: Result<()>, what: &str| {
            let e = r.expect_err(what);
            assert_eq!(e.kind(), kingtide_base::ErrorKind::Corruption, "{what}: {e}");
        };
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad
        };
        let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            corrupt(Layout::parse(&changed(change)).map(drop), what);
        };
        refused("no entries", &|b| b[count] = 0);
        refused("more entries than there are bytes for", &|b| b[count + 1] = 1);
        refused("a restart interval of 256", &|b| b[len - 1] = 8);
        refused("unknown flags", &|b| b[len - 2] = 4);
        refused("an interval with more restart points than fit", &|b| {
            b.drain(20..entries_end);
        });
        let found = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let bad = changed(change);
            corrupt(Layout::parse(&bad).and_then(|l| l.check(&bad)), what);
        };
        found("an offset one too high", &|b| b[offsets] += 1);
        found("the offset of another entry", &|b| b[offsets] = 17);
        found("a value one byte longer", &|b| b[9] += 1);
        found("a last value one byte shorter", &|b| b[9 * 17 + 9] -= 1);
        found("a key longer than the block", &|b| b[25..27].fill(0x7f));
        found("a length of ten bytes", &|b| b[25..35].copy_from_slice(&[[0xff; 9].as_slice(), &[1]].concat()));
        found("an entry less", &|b| b[count] = 9);
        found("another interval", &|b| {
            b[len - 1] = 3;
            b.drain(offsets + 2..offsets + 4);
            b.drain(entries_end + 4..offsets);
        });
        let bad = changed(&|b| b[25..27].fill(0x7f));
        let layout = Layout::parse(&bad).unwrap();
        for (i, (key, ..)) in model.iter().enumerate().take(4).skip(1) {
            corrupt(layout.entry(&bad, i).map(drop), "an entry behind a length that leads out of the block");
            corrupt(layout.lower_bound(&bad, &KeyOrder::Bytewise, key, Tag::seek(1)).map(drop), "a search over it");
        }
        assert!(layout.entry(&bad, 0).is_ok() && layout.entry(&bad, 4).is_ok());
    }

    /// Every byte changed and every length cut: an error or some answer, never a panic.
    #[test]
    fn hostile_bytes_never_panic() {
        let mut rng = Rng::new(12);
        let model = sorted(&KeyOrder::Bytewise, 20, &mut rng);
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
            let _ = layout.check(bytes);
        };
        for interval in INTERVALS {
            let raw = build(&KeyOrder::Bytewise, interval, &model);
            for i in (0..raw.len()).step_by(if cfg!(miri) { 97 } else { 1 }) {
                for flip in [0x01, 0x02, 0x80, 0xff] {
                    let mut bad = raw.clone();
                    bad[i] ^= flip;
                    walk(&bad);
                }
                walk(&raw[..i]);
                walk(&raw[i..]);
            }
        }
    }
}
