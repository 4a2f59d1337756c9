//! Indexes and filters in partitions, for where those of all tables do not fit into memory.
//!
//! The file has one frame for the filter and one for the index, each with one checksum. A table that is opened in partitions reads
//! and verifies both as a whole, as any table does, and keeps a few bytes of each partition: its checksum and, of the index, where it is and
//! its last separator. Those are an [`Index`] of their own, the *top*, whose blocks are the partitions. The partitions are in a
//! [`BlockCache`] of their own, by file and offset. What is not there is read from the file again, a few KiB, and verified with the
//! checksum of the partition. So the file format has no part in this.
//!
//! A partition of the filter is 4 KiB of its lines; a lookup needs one line. A partition of the index is a number of successive
//! separators, with the blocks in front of them, that take some 4 KiB in memory:
//!
//! | bytes | what |
//! |---|---|
//! | 8 (m + 1) | where its m blocks begin, and where the last ends, u64 each |
//! | 4 n | where its n separators end in what follows, u32 each |
//! | ... | the separators |
//!
//! How they are read is in `partition_reads.rs`. In the file these are two places, the lengths of the blocks and the separators. One checksum covers both.

use crate::filter::{FilterShape, HEAD, LINE};
use crate::index::Index;
use kingtide_base::checksum::crc;
use kingtide_base::coding::Reader;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result};
use kingtide_mem::cache::{Block, BlockCache};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a partition of a filter, but for the last one. Tests have small tables.
pub(crate) const FILTER_PARTITION: usize = if cfg!(test) { 128 } else { 4 << 10 };
pub(crate) const LINES: usize = FILTER_PARTITION / LINE;

/// About the bytes of a partition of an index in memory.
const INDEX_PARTITION: usize = if cfg!(test) { 100 } else { 4 << 10 };

/// What is resident of a filter in partitions.
pub(crate) struct FilterParts {
    pub shape: FilterShape,
    /// Where the lines begin in the file.
    pub at: u64,
    /// Of each partition.
    pub checksums: Box<[u32]>,
}

/// Where a partition of an index begins in the index's bytes, and its checksum. One more tells where the last partition ends.
pub(crate) struct Place {
    pub lens: u32,
    pub separators: u32,
    pub checksum: u32,
}

/// What is resident of an index in partitions, besides its top.
pub(crate) struct IndexParts {
    /// Where the index's bytes begin in the file.
    pub at: u64,
    pub blocks: usize,
    groups: usize,
    pub sampling: usize,
    /// Separators of a partition, but for the last one.
    pub step: usize,
    pub places: Box<[Place]>,
}

/// What is resident of a table's index and filter in partitions, besides the index's top.
pub(crate) struct Parts {
    pub cache: Arc<BlockCache>,
    pub filter: Option<FilterParts>,
    pub index: IndexParts,
    /// Bytes that index and filter take as a whole.
    whole: u64,
}

/// The partition of an index that a reader has at hand, and its buffers.
#[derive(Default)]
pub(crate) struct PartScratch {
    /// Instance of a table and number of the partition; instance 0 is none.
    pub holds: (u64, usize),
    pub cached: Option<Block>,
    /// The partition, if no block has it.
    pub own: Vec<u8>,
    /// What was read from the file.
    pub stored: Vec<u8>,
    /// Partitions that it reads are not offered to the cache.
    pub passing: bool,
    /// Blocks and partitions that are in no cache are not read.
    pub memory_only: bool,
    /// One was wanted that would have had to be read.
    pub refused: bool,
}

impl PartScratch {
    /// The bytes of the partition at hand.
    pub fn index(&self) -> &[u8] {
        self.cached.as_deref().unwrap_or(&self.own)
    }

    #[cold]
    pub fn refuse(&mut self) -> Error {
        self.refused = true;
        Error::new(ErrorKind::Busy, "the block is not in memory")
    }

    /// Lets go of memory of the cache.
    pub fn unpin(&mut self) {
        if self.cached.take().is_some() {
            self.holds.0 = 0;
        }
    }

    pub fn memory(&self) -> usize {
        self.own.capacity() + self.stored.capacity()
    }
}

impl FilterParts {
    fn new(bytes: &[u8], at: u64) -> Result<FilterParts> {
        let shape = FilterShape::of(bytes)?;
        let checksums = bytes[HEAD..].chunks(FILTER_PARTITION).map(crc).collect();
        Ok(FilterParts { shape, at: at + HEAD as u64, checksums })
    }
}

impl IndexParts {
    /// `None`: the bytes are not those of `index`.
    fn new(bytes: &[u8], at: u64, index: &Index) -> Option<IndexParts> {
        let (blocks, groups, sampling) = (index.blocks(), index.groups(), index.sampling());
        let step = step_of(index);
        let mut r = Reader::new(bytes);
        let position = |r: &Reader<'_>| u32::try_from(bytes.len() - r.rest().len()).ok();
        for _ in 0..3 {
            r.varint()?;
        }
        let mut places = Vec::with_capacity(groups.div_ceil(step) + 1);
        for i in 0..blocks {
            if i.is_multiple_of(step.saturating_mul(sampling)) {
                places.push(Place { lens: position(&r)?, separators: 0, checksum: 0 });
            }
            r.varint()?;
        }
        places.push(Place { lens: position(&r)?, separators: 0, checksum: 0 });
        for i in 0..groups {
            if i.is_multiple_of(step) {
                places.get_mut(i / step)?.separators = position(&r)?;
            }
            r.varint()?;
            r.slice()?;
        }
        places.last_mut()?.separators = position(&r)?;
        let mut stored = Vec::new();
        for i in 0..places.len() - 1 {
            let [lens, separators] = ranges(&places, i);
            stored.clear();
            stored.extend_from_slice(bytes.get(lens)?);
            stored.extend_from_slice(bytes.get(separators)?);
            places[i].checksum = crc(&stored);
        }
        r.is_empty().then(|| IndexParts { at, blocks, groups, sampling, step, places: places.into() })
    }

    pub fn partitions(&self) -> usize {
        self.places.len() - 1
    }

    /// Blocks of a partition, but for the last one.
    fn blocks_of_one(&self) -> usize {
        self.step.saturating_mul(self.sampling)
    }

    /// The blocks of a partition.
    pub fn blocks(&self, partition: usize) -> Range<usize> {
        let first = partition * self.blocks_of_one();
        first..first.saturating_add(self.blocks_of_one()).min(self.blocks)
    }

    /// Makes a partition as it is in memory of what the file has, whose first `lens` bytes are the lengths of blocks.
    pub fn decode(
        &self,
        partition: usize,
        top: &Index,
        (lens, stored): (usize, &[u8]),
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let (lens, separators) = stored.split_at_checked(lens)?;
        let groups = (self.groups - partition * self.step).min(self.step);
        out.clear();
        let (mut r, mut at) = (Reader::new(lens), top.piece(partition).start);
        out.extend_from_slice(&at.to_le_bytes());
        for _ in self.blocks(partition) {
            at = at.checked_add(r.varint()?)?;
            out.extend_from_slice(&at.to_le_bytes());
        }
        let ends = out.len();
        out.resize(ends + groups * 4, 0);
        let base = out.len();
        let mut r = Reader::new(separators);
        let mut previous = base..base;
        for i in 0..groups {
            let shared = usize::try_from(r.varint()?).ok()?;
            let rest = r.slice()?;
            let start = out.len();
            if i == 0 {
                let before = if partition == 0 { &[][..] } else { top.separator(partition - 1)? };
                out.extend_from_slice(before.get(..shared)?);
            } else {
                if shared > previous.len() {
                    return None;
                }
                out.extend_from_within(previous.start..previous.start + shared);
            }
            out.extend_from_slice(rest);
            previous = start..out.len();
            let end = u32::try_from(out.len() - base).ok()?;
            out[ends + i * 4..ends + i * 4 + 4].copy_from_slice(&end.to_le_bytes());
        }
        (at == top.piece(partition).end).then_some(())
    }

    /// The number, in a partition, of the first separator that is not below a key.
    pub fn search(&self, partition: usize, bytes: &[u8], top: &Index, order: &KeyOrder, key: &[u8]) -> Option<usize> {
        let key = top.compared(key);
        let (_, rest) = bytes.split_at_checked((self.blocks(partition).len() + 1) * 8)?;
        let groups = (self.groups - partition * self.step).min(self.step);
        let (ends, separators) = rest.split_at_checked(groups * 4)?;
        let (ends, _) = ends.as_chunks::<4>();
        let end = |i: usize| u32::from_le_bytes(ends[i]) as usize;
        let (mut lo, mut hi) = (0, groups);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let start = if mid == 0 { 0 } else { end(mid - 1) };
            let separator = separators.get(start..end(mid))?;
            if order.compare(separator, key).is_lt() { lo = mid + 1 } else { hi = mid }
        }
        Some(lo)
    }
}

/// Where a partition is in the index's bytes.
pub(crate) fn ranges(places: &[Place], partition: usize) -> [Range<usize>; 2] {
    let (from, to) = (&places[partition], &places[partition + 1]);
    [from.lens as usize..to.lens as usize, from.separators as usize..to.separators as usize]
}

/// Bytes of an index in memory that its partitions divide among them.
fn divided_bytes(index: &Index) -> usize {
    index.blocks() * 8 + index.groups() * 4 + index.separator_bytes()
}

/// Separators of a partition of an index.
fn step_of(index: &Index) -> usize {
    (index.groups().saturating_mul(INDEX_PARTITION) / divided_bytes(index).max(1)).max(1)
}

impl Parts {
    /// Bytes of an index and a filter in memory below which they are not divided.
    const LEAST: u64 = if cfg!(any(test, shuttle)) { 0 } else { 4 << 10 };

    /// Whether dividing an index, and a filter of so many bytes, leaves at most half of them resident. It does not where separators have
    /// several KiB, because keys are long and begin alike: each partition would have one of them, and the top all.
    pub fn pay(index: &Index, filter: u64) -> bool {
        let divided = divided_bytes(index) as u64;
        let top = divided / step_of(index) as u64;
        let is_large = (index.memory() as u64 + filter).checked_sub(Self::LEAST).is_some();
        is_large && 2 * top <= divided + filter
    }

    /// Divides an index and a filter, given as their bytes and where these are in the file. Returns the index's top too.
    ///
    /// # Errors
    /// `Corruption` with the offset when the bytes are no index and filter.
    pub fn new(
        cache: Arc<BlockCache>,
        index: &Index,
        (index_bytes, index_at): (&[u8], u64),
        (filter_bytes, filter_at): (&[u8], u64),
    ) -> Result<(Parts, Index)> {
        let damaged = || Error::corruption("damaged index").at_offset(index_at);
        let parts = IndexParts::new(index_bytes, index_at, index).ok_or_else(damaged)?;
        let top = index.of_pieces(parts.step)?;
        let filter = match filter_bytes.is_empty() {
            true => None,
            false => Some(FilterParts::new(filter_bytes, filter_at).map_err(|e| e.at_offset(filter_at))?),
        };
        let lines = filter.as_ref().map_or(0, |f| f.shape.lines);
        let whole = (index.memory() + lines * LINE) as u64;
        Ok((Parts { cache, filter, index: parts, whole }, top))
    }

    /// Bytes of memory, without the index's top and without partitions.
    pub fn memory(&self) -> usize {
        let checksums = self.filter.as_ref().map_or(0, |f| f.checksums.len() * size_of::<u32>());
        size_of::<Parts>() + checksums + self.index.places.len() * size_of::<Place>()
    }

    /// Bytes of memory that index and filter take as a whole.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Blocks of a partition of the index, but for the last one.
    pub fn blocks_of_one(&self) -> usize {
        self.index.blocks_of_one()
    }

    /// Behind which block the partition of block `i` ends.
    pub fn end_of(&self, i: usize) -> usize {
        self.index.blocks(i / self.blocks_of_one()).end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::IndexBuilder;

    #[test]
    fn an_index_whose_keys_are_longer_than_a_partition_is_not_divided() {
        let index = |len: usize| {
            let order = KeyOrder::Reverse; // which keeps separators whole
            let key = |i: u8| [&vec![b'k'; len][..], &[u8::MAX - i]].concat();
            let mut builder = IndexBuilder::new(&order, 1, 0);
            for i in 0..50 {
                builder.add_block(1000);
                builder.separate(&key(i), Some(&key(i + 1))).unwrap();
            }
            Index::decode(&builder.finish(), 50_000, &order).unwrap()
        };
        assert!(Parts::pay(&index(7), 0));
        assert!(!Parts::pay(&index(500), 0));
        assert!(Parts::pay(&index(500), 1 << 20), "what is divided is the filter");
    }
}
