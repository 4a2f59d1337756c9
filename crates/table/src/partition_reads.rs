//! Reading tables in partitions: what a lookup needs of an index and a filter comes from the cache of partitions, or from the file.

use crate::filter::LINE;
use crate::frame::Handle;
use crate::index::Index;
use crate::parts::{FILTER_PARTITION, LINES, PartScratch, Parts, ranges};
use kingtide_base::checksum::crc;
use kingtide_base::memory::extend_zeroed;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, KeyOrder, Result, rare};
use kingtide_vfs::File;
use std::ops::Range;

/// The table that partitions are of.
pub(crate) struct Of<'a> {
    pub file: &'a dyn File,
    pub file_id: u64,
    pub instance: u64,
    /// The index's top.
    pub top: &'a Index,
    pub order: &'a KeyOrder,
    pub stats: &'a Stats,
}

impl Parts {
    /// Does what `Table::may_contain` does by a partition of the filter.
    #[cold]
    #[inline(never)]
    pub(crate) fn may_contain(&self, of: &Of<'_>, hash: u64, scratch: &mut PartScratch) -> Result<bool> {
        let Some(filter) = &self.filter else { return Ok(true) };
        let line = filter.shape.line_of(hash);
        let (partition, line) = (line / LINES, line % LINES * LINE);
        let at = filter.at + (partition * FILTER_PARTITION) as u64;
        if let Some(block) = self.cache.find(of.file_id, at) {
            of.stats.add(Stat::PartitionHits, 1);
            return Ok(filter.shape.line_may_contain(&block[line..], hash));
        }
        let len = (filter.shape.lines * LINE - partition * FILTER_PARTITION).min(FILTER_PARTITION);
        Self::read_partition(of, scratch, &[(at, len)], filter.checksums[partition])?;
        let may = filter.shape.line_may_contain(&scratch.stored[line..len], hash);
        if !scratch.passing {
            self.offer_partition(of, at, &scratch.stored[..len]);
        }
        Ok(may)
    }

    /// Does what `Table::may_contain` does if that takes no read; true otherwise.
    pub(crate) fn may_contain_in_memory(&self, of: &Of<'_>, hash: u64) -> bool {
        let Some(filter) = &self.filter else { return true };
        let line = filter.shape.line_of(hash);
        let at = filter.at + (line / LINES * FILTER_PARTITION) as u64;
        let found = self.cache.find(of.file_id, at);
        found.is_none_or(|block| filter.shape.line_may_contain(&block[line % LINES * LINE..], hash))
    }

    /// Does what `Table::locate` does by a partition of the index.
    #[cold]
    #[inline(never)]
    pub(crate) fn locate(&self, of: &Of<'_>, key: &[u8], scratch: &mut PartScratch) -> Result<Range<usize>> {
        let (index, partition) = (&self.index, of.top.group(key));
        if partition >= index.partitions() {
            return Ok(index.blocks..index.blocks);
        }
        self.hold_partition(of, partition, scratch)?;
        let found = index.search(partition, scratch.index(), of.top, of.order, key);
        let group = partition * index.step + found.ok_or_else(|| self.damaged_partition(of, partition))?;
        let first = group.saturating_mul(index.sampling).min(index.blocks);
        Ok(first..first.saturating_add(index.sampling).min(index.blocks))
    }

    /// Where block `i` is, by a partition of the index.
    #[cold]
    #[inline(never)]
    pub(crate) fn handle(&self, of: &Of<'_>, i: usize, scratch: &mut PartScratch) -> Result<Handle> {
        let partition = i / self.blocks_of_one();
        self.hold_partition(of, partition, scratch)?;
        let (offsets, _) = scratch.index().as_chunks::<8>();
        let at = i - self.index.blocks(partition).start;
        match (offsets.get(at), offsets.get(at + 1)) {
            (Some(start), Some(end)) => {
                let (offset, end) = (u64::from_le_bytes(*start), u64::from_le_bytes(*end));
                Ok(Handle { offset, len: (end - offset) as u32 })
            }
            _ => Err(self.damaged_partition(of, partition)),
        }
    }

    /// Where block `i` is, for an error. If its partition cannot be read, where the blocks of that begin.
    #[cold]
    pub(crate) fn place_of(&self, of: &Of<'_>, i: usize) -> u64 {
        let mut scratch = PartScratch { passing: true, ..PartScratch::default() };
        let partition = (i / self.blocks_of_one()).min(self.index.partitions().saturating_sub(1));
        self.handle(of, i, &mut scratch).map_or_else(|_| of.top.piece(partition).start, |h| h.offset)
    }

    /// Has the partition of the index at hand in `scratch.part`.
    fn hold_partition(&self, of: &Of<'_>, partition: usize, scratch: &mut PartScratch) -> Result<()> {
        let wanted = (of.instance, partition);
        if scratch.holds == wanted {
            return Ok(());
        }
        let index = &self.index;
        let [lens, separators] = ranges(&index.places, partition);
        // No filter begins there: lengths and separators of a partition have bytes.
        let at = index.at + separators.start as u64;
        scratch.holds.0 = 0;
        scratch.cached = self.cache.find(of.file_id, at);
        if scratch.cached.is_some() {
            of.stats.add(Stat::PartitionHits, 1);
        } else {
            let places = [(index.at + lens.start as u64, lens.len()), (at, separators.len())];
            Self::read_partition(of, scratch, &places, index.places[partition].checksum)?;
            let stored = &scratch.stored[..lens.len() + separators.len()];
            (index.decode(partition, of.top, (lens.len(), stored), &mut scratch.own))
                .ok_or_else(|| self.damaged_partition(of, partition))?;
            if !scratch.passing {
                self.offer_partition(of, at, &scratch.own);
            }
        }
        scratch.holds = wanted;
        Ok(())
    }

    /// Reads the places of a partition, one behind the other, and verifies them.
    fn read_partition(of: &Of<'_>, scratch: &mut PartScratch, places: &[(u64, usize)], checksum: u32) -> Result<()> {
        if scratch.memory_only {
            return Err(scratch.refuse());
        }
        let stored = &mut scratch.stored;
        let len: usize = places.iter().map(|(_, len)| len).sum();
        if stored.len() < len {
            extend_zeroed(stored, len - stored.len(), "a part of an index or filter")?;
        }
        let timer = perf::begin_wait();
        let mut to = 0;
        for (at, len) in places {
            of.file.read_exact_at(&mut stored[to..to + len], *at)?;
            to += len;
        }
        timer.end(Stage::BlockReadNs);
        rare!("table-partition-read");
        of.stats.add(Stat::PartitionsRead, 1);
        of.stats.add(Stat::PartitionReadBytes, len as u64);
        if crc(&stored[..len]) != checksum {
            let text = "checksum mismatch in a part of an index or filter, which was intact when the table was opened";
            return Err(Error::corruption(text).at_path(of.file.path()).at_offset(places[0].0));
        }
        Ok(())
    }

    /// Inserts a partition into the cache, if that has room or the partition was asked for before.
    fn offer_partition(&self, of: &Of<'_>, at: u64, bytes: &[u8]) {
        if self.cache.admit(of.file_id, at)
            && let Some(block) = self.cache.copied(bytes)
        {
            self.cache.insert(of.file_id, at, block);
        }
    }

    #[cold]
    fn damaged_partition(&self, of: &Of<'_>, partition: usize) -> Error {
        let at = self.index.at + u64::from(self.index.places[partition].lens);
        Error::corruption("damaged index").at_path(of.file.path()).at_offset(at)
    }
}
