//! Entries of one table, as far as they can be read, in order.

use super::plan::TablePlan;
use super::report::{KeyGap, Repair};
use kingtide_base::names::klog_path;
use kingtide_base::stats::Stats;
use kingtide_base::{Error, KeyOrder, Result, SeqNo, Tag};
use kingtide_mem::MemIter;
use kingtide_mem::cache::BlockCache;
use kingtide_table::salvage::{BlockScan, read_written_as};
use kingtide_table::{RangeTombstone, ReadScratch, Table, TableId};
use kingtide_versions::FileMeta;
use std::path::PathBuf;
use std::sync::Arc;

/// How blocks are found.
enum Blocks {
    /// By the index; the number is the next block.
    Indexed(Arc<Table>, usize),
    /// By their checksums, for the index is lost.
    Scanned(BlockScan),
}

/// A damaged table, on an entry or at its end.
pub(super) struct TableSource {
    path: PathBuf,
    order: KeyOrder,
    blocks: Blocks,
    scratch: ReadScratch,
    /// The next entry of the block in the scratch, and how many it has.
    at: usize,
    count: usize,
    /// The sequence number of all entries; 0: they have their own.
    sequence: SeqNo,
    entries: u64,
    expected: Option<u64>,
    min: Option<Vec<u8>>,
    max: Option<Vec<u8>>,
    /// Where the block in the scratch begins in the file.
    block_at: u64,
    /// The last entry read was before a part that is lost. The end of that part is not known yet.
    open_gap: Option<KeyGap>,
    pub valid: bool,
    pub key: Vec<u8>,
    pub tag: Tag,
    pub value: Vec<u8>,
    pub lost: Vec<KeyGap>,
    /// Why.
    pub damage: Vec<Error>,
    /// Range tombstones that could be read.
    pub ranges: Vec<RangeTombstone>,
    /// Whether others are lost.
    pub ranges_lost: bool,
}

impl TableSource {
    /// Opens a table, without its index if need be.
    ///
    /// # Errors
    /// Nothing of it can be read.
    pub fn open(repair: &Repair<'_, '_>, plan: &TablePlan, order: &KeyOrder) -> Result<TableSource> {
        let path = klog_path(repair.dir, plan.id);
        let file = repair.files.open(&path).map_err(|e| e.at_path(&path))?;
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        let meta = plan.meta.as_deref();
        // Of a file that came from elsewhere, and whose record is lost, the footer tells how to read it, but nothing which
        // sequence number its entries were given.
        let identity = meta.map(FileMeta::table_id).unwrap_or_else(|| TableId {
            written_as: read_written_as(&*file).unwrap_or(plan.id),
            ..TableId::from(plan.id)
        });
        let mut source = TableSource {
            path: path.clone(),
            order: order.clone(),
            blocks: Blocks::Scanned(BlockScan::new(file.clone(), identity.written_as).map_err(|e| e.at_path(&path))?),
            sequence: identity.sequence,
            scratch: ReadScratch::new(),
            at: 0,
            count: 0,
            entries: 0,
            expected: meta.map(|m| m.entries),
            min: meta.map(|m| m.min_key.clone()),
            max: meta.map(|m| m.max_key.clone()),
            block_at: 0,
            open_gap: None,
            valid: false,
            key: Vec::new(),
            tag: Tag(0),
            value: Vec::new(),
            lost: Vec::new(),
            damage: Vec::new(),
            ranges: Vec::new(),
            ranges_lost: meta.is_none_or(|m| m.range_tombstones > 0),
        };
        match Table::open_damaged(file, identity, order.clone(), cache, stats) {
            Ok((table, damage)) => {
                let info = table.info();
                if !info.max_key.is_empty() {
                    source.min.get_or_insert_with(|| info.min_key.clone());
                    source.max.get_or_insert_with(|| info.max_key.clone());
                }
                source.ranges = table.range_tombstones().to_vec();
                let stated = meta.map_or(info.range_tombstones, |m| m.range_tombstones);
                source.ranges_lost = stated != source.ranges.len() as u64 || (meta.is_none() && !damage.is_empty());
                source.damage = damage;
                source.expected = None; // every block is accounted for
                source.blocks = Blocks::Indexed(table, 0);
            }
            Err(e) => source.damage.push(e),
        }
        Ok(source)
    }

    /// Whether nothing was found so far that cannot be read.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty() && !self.ranges_lost
    }

    /// The table's key range, as far as it is known.
    pub fn range(&self) -> KeyGap {
        KeyGap { lo: self.min.clone(), hi: self.max.clone(), path: Some(self.path.clone()), offset: None }
    }

    /// Moves to the next entry that can be read. Returns the bytes read for it.
    ///
    /// # Errors
    /// None of a damaged table: these are noted, and passed over.
    pub fn next(&mut self) -> u64 {
        let mut bytes = 0;
        loop {
            if self.at < self.count {
                if self.take_entry() {
                    return bytes;
                }
                // Bytes that pass their checksum and are no entries in order: the rest of the block is as good as lost.
                let e = Error::corruption("a block's entries are not in order").at_path(&self.path);
                self.damage.push(e.at_offset(self.block_at));
                self.at = self.count;
                self.begin_gap(self.block_at);
            }
            match self.next_block() {
                Some(read) => bytes += read,
                None => {
                    self.valid = false;
                    if let Some(gap) = self.open_gap.take() {
                        self.lost.push(KeyGap { hi: self.max.clone(), ..gap });
                    }
                    return bytes;
                }
            }
        }
    }

    fn take_entry(&mut self) -> bool {
        let Ok(entry) = self.scratch.entry(self.at) else { return false };
        let raw = self.scratch.bytes();
        let tag = if self.sequence == 0 { entry.tag } else { Tag(self.sequence << 8 | entry.tag.0 & 0xff) };
        let key = entry.key(raw);
        if self.entries > 0 && self.order.compare(&self.key, key).then(tag.cmp(&self.tag)).is_ge() {
            return false;
        }
        if let Some(gap) = self.open_gap.take() {
            self.lost.push(KeyGap { hi: Some(key.to_vec()), ..gap });
        }
        self.key.clear();
        self.key.extend_from_slice(key);
        self.value.clear();
        self.value.extend_from_slice(entry.value(raw));
        self.tag = tag;
        self.at += 1;
        self.entries += 1;
        self.valid = true;
        true
    }

    fn begin_gap(&mut self, offset: u64) {
        let lo = if self.entries > 0 { Some(self.key.clone()) } else { self.min.clone() };
        let gap = KeyGap { lo, hi: None, path: Some(self.path.clone()), offset: Some(offset) };
        self.open_gap.get_or_insert(gap);
    }

    /// Loads the next block that can be read; `None` when there is none.
    fn next_block(&mut self) -> Option<u64> {
        loop {
            let place = match &mut self.blocks {
                Blocks::Indexed(table, next) => {
                    let (table, block) = (table.clone(), *next);
                    if block >= table.blocks() {
                        return None;
                    }
                    *next += 1;
                    if let Err(e) = table.read_block(block, &mut self.scratch) {
                        self.damage.push(e);
                        self.begin_gap(table.block_place(block).start);
                        continue;
                    }
                    table.block_place(block)
                }
                Blocks::Scanned(scan) => match scan.next(&mut self.scratch) {
                    Ok(Some(place)) => place,
                    end => {
                        let at_end = end.is_ok() && scan.at_end();
                        let at = scan.position();
                        if !at_end && self.expected != Some(self.entries) {
                            let e = Error::corruption(
                                "the table's index is missing, so the table cannot be read beyond this point",
                            );
                            self.damage.push(e.at_path(&self.path).at_offset(at));
                            self.begin_gap(at);
                        }
                        return None;
                    }
                },
            };
            (self.at, self.count, self.block_at) = (0, self.scratch.entries(), place.start);
            return Some(place.end - place.start);
        }
    }
}

/// What is merged.
pub(super) enum Source {
    Table(Box<TableSource>),
    Log(Box<MemIter>),
}

impl Source {
    pub fn valid(&self) -> bool {
        match self {
            Source::Table(t) => t.valid,
            Source::Log(m) => m.valid(),
        }
    }

    pub fn key(&self) -> &[u8] {
        match self {
            Source::Table(t) => &t.key,
            Source::Log(m) => m.key(),
        }
    }

    pub fn tag(&self) -> Tag {
        match self {
            Source::Table(t) => t.tag,
            Source::Log(m) => m.tag(),
        }
    }

    pub fn value(&self) -> &[u8] {
        match self {
            Source::Table(t) => &t.value,
            Source::Log(m) => m.value(),
        }
    }

    /// Moves on; returns the bytes read.
    pub fn next(&mut self) -> u64 {
        match self {
            Source::Table(t) => t.next(),
            Source::Log(m) => {
                m.next();
                0
            }
        }
    }
}
