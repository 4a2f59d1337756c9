//! Writes a key log: entries in order, then the tail. See `docs/format/klog.md`.

use crate::block::{BlockBuilder, RESTART_INTERVAL};
use crate::compression::{Codec, Compressor, Dictionary};
use crate::filter::FilterBuilder;
use crate::footer::{Footer, KLOG_VERSION};
use crate::frame::Output;
use crate::index::IndexBuilder;
use crate::info::{MAX_SIZE, Properties, RangeTombstone, TableInfo, UNSEQUENCED, VlogRef};
use crate::tombstones;
use crate::vlog::ValuePointer;
use kingtide_base::key::{MAX_SEQ, split_expiry};
use kingtide_base::memory::append;
use kingtide_base::options::Compression;
use kingtide_base::{Error, KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_vfs::File;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that are collected before a write: large enough that the system call vanishes, small enough for the cache.
const BUFFER: usize = 512 << 10;

/// How to write a table.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Order of the keys.
    pub order: KeyOrder,
    /// Raw bytes of a block; an entry that is larger has a block of its own.
    pub block_size: usize,
    /// Entries from one restart point of a block to the next, as [`BlockBuilder::new`] rounds it. With 1 the table has format
    /// version 1.
    pub restart_interval: usize,
    /// Compression of the blocks.
    pub compression: Compression,
    /// Level of Zstandard.
    pub zstd_level: i32,
    /// Bytes of the dictionary that is trained for Zstandard from the first blocks; 0 trains none.
    pub zstd_dictionary: usize,
    /// False-positive rate of the filter; 0 writes none.
    pub filter_fp: f64,
    /// Blocks that share one separator of the index; at least 1.
    pub index_sampling: usize,
    /// Bytes to which separators are cut; 0 cuts none.
    pub index_prefix_len: usize,
    /// About how many entries will come; sizes buffers.
    pub expected_entries: usize,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            order: KeyOrder::Bytewise,
            block_size: 4096,
            restart_interval: RESTART_INTERVAL,
            compression: Compression::Lz4,
            zstd_level: 1,
            zstd_dictionary: 0,
            filter_fp: 0.01,
            index_sampling: 1,
            index_prefix_len: 0,
            expected_entries: 0,
        }
    }
}

/// Bytes of blocks that a dictionary is trained from, as a multiple of its own.
const SAMPLE: usize = 100;
/// At most so many.
const MOST_SAMPLE: usize = 4 << 20;
/// A dictionary takes at most one of so many bytes of the blocks that it is trained from.
const LEAST_SAMPLE: usize = 10;
/// A smaller dictionary than this is not worth having.
const SMALLEST_DICTIONARY: usize = 256;
/// About how many blocks are compressed with and without a dictionary to see what it gains.
const TRIALS: usize = 100;

/// The first blocks of a table, which wait for the dictionary that is trained from them.
struct Sample {
    blocks: Vec<u8>,
    lengths: Vec<usize>,
    /// Bytes of the dictionary that is wanted.
    size: usize,
}

impl Sample {
    /// `None` where the blocks get no dictionary.
    fn new(opts: &TableOptions) -> Option<Sample> {
        let wanted = opts.compression == Compression::Zstd && opts.zstd_dictionary > 0;
        wanted.then(|| Sample { blocks: Vec::new(), lengths: Vec::new(), size: opts.zstd_dictionary })
    }

    fn add(&mut self, block: &[u8]) -> Result<()> {
        append(&mut self.blocks, block, "the blocks that a dictionary is trained from")?;
        self.lengths.push(block.len());
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.blocks.len() >= (self.size * SAMPLE).min(MOST_SAMPLE)
    }

    fn train(&self) -> Option<Vec<u8>> {
        let size = self.size.min(self.blocks.len() / LEAST_SAMPLE);
        if size < SMALLEST_DICTIONARY { None } else { Dictionary::train(&self.blocks, &self.lengths, size) }
    }

    /// Bytes of memory that it takes, the training included.
    fn memory(&self) -> usize {
        self.blocks.capacity() + self.lengths.capacity() * size_of::<usize>() + Dictionary::TRAINING
    }

    /// Some of the blocks, from all over it.
    fn some(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().step_by(self.lengths.len().div_ceil(TRIALS).max(1))
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.blocks[..];
        self.lengths.iter().map(move |n| {
            let (block, behind) = rest.split_at(*n);
            rest = behind;
            block
        })
    }
}

/// Writes one table. Dropping it unfinished leaves an incomplete file, which [`crate::Table::open`] refuses.
pub struct TableWriter {
    out: Output,
    file_id: u64,
    opts: TableOptions,
    block: BlockBuilder,
    compressor: Compressor,
    sample: Option<Sample>,
    dictionary: Vec<u8>,
    filter: Option<FilterBuilder>,
    index: IndexBuilder,
    /// The last key and tag; also the last of the last block until the next key separates it.
    last_key: Vec<u8>,
    last_tag: Tag,
    separator_due: bool,
    info: TableInfo,
    vlog_refs: BTreeMap<u64, VlogRef>,
    tombstones: Vec<RangeTombstone>,
}

impl TableWriter {
    /// Writes to an empty file.
    pub fn new(file: Arc<dyn File>, file_id: u64, opts: TableOptions) -> TableWriter {
        let filtered = opts.filter_fp > 0.0 && opts.order.hash(&[]).is_some();
        TableWriter {
            out: Output::new(file, BUFFER),
            file_id,
            block: BlockBuilder::new(&opts.order, opts.block_size, opts.restart_interval),
            compressor: Compressor::new(Codec::new(opts.compression, opts.zstd_level)),
            sample: Sample::new(&opts),
            dictionary: Vec::new(),
            filter: filtered.then(|| FilterBuilder::new(opts.expected_entries)),
            index: IndexBuilder::new(&opts.order, opts.index_sampling, opts.index_prefix_len),
            last_key: Vec::new(),
            last_tag: Tag(0),
            separator_due: false,
            info: TableInfo { min_seq: MAX_SEQ, ..TableInfo::default() },
            vlog_refs: BTreeMap::new(),
            tombstones: Vec::new(),
            opts,
        }
    }

    /// Writes a sorted file: every tag has the sequence number [`UNSEQUENCED`] and every key comes once.
    pub fn new_unsequenced(file: Arc<dyn File>, file_id: u64, opts: TableOptions) -> TableWriter {
        let mut writer = TableWriter::new(file, file_id, opts);
        writer.info.unsequenced = true;
        writer
    }

    /// Appends an entry. Entries come by ascending key, and for one key by descending tag.
    ///
    /// # Errors
    /// `InvalidArgument` when the entry is out of order, its kind is no point kind, its value lacks the expiry or the
    /// pointer that its tag announces, or it is larger than 4 GiB; `Io` and `NoSpace` from the file.
    #[inline]
    pub fn add(&mut self, key: &[u8], tag: Tag, value: &[u8]) -> Result<()> {
        let first = self.info.entries == 0;
        let mut new_key = true;
        if !first {
            match self.opts.order.compare(&self.last_key, key) {
                Ordering::Less => {}
                Ordering::Equal if tag < self.last_tag => new_key = false,
                _ => return Err(self.out_of_order(key, tag)),
            }
        }
        if self.info.unsequenced && (!new_key || tag.seq() != UNSEQUENCED) {
            return Err(self.out_of_order(key, tag));
        }
        if tag.0 as u8 != Kind::Put as u8 {
            self.note_special(tag, value)?;
        }
        if key.len() + value.len() > u32::MAX as usize - (1 << 20) {
            return Err(Error::invalid("an entry of 4 GiB does not fit in a table"));
        }
        if !self.block.is_empty() && self.block.size_with(key.len(), value.len()) >= self.opts.block_size {
            self.finish_block()?;
        }
        if self.separator_due {
            self.index.separate(&self.last_key, Some(key))?;
            self.separator_due = false;
        }
        self.block.reserve(key, value)?;
        self.block.add(key, tag, value);
        if let Some(filter) = &mut self.filter
            && new_key
            && let Some(hash) = self.opts.order.hash(key)
        {
            filter.add(hash)?;
        }
        let info = &mut self.info;
        info.entries += 1;
        info.older_versions += u64::from(!new_key);
        info.raw_bytes += (key.len() + value.len()) as u64;
        info.min_seq = info.min_seq.min(tag.seq());
        info.max_seq = info.max_seq.max(tag.seq());
        if first {
            info.min_key = key.to_vec();
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_tag = tag;
        Ok(())
    }

    #[cold]
    fn out_of_order(&self, key: &[u8], tag: Tag) -> Error {
        Error::invalid(format!(
            "entry out of order: {:?} {tag:?} after {:?} {:?}",
            key.escape_ascii().to_string(),
            self.last_key.escape_ascii().to_string(),
            self.last_tag
        ))
        .at_path(self.out.file().path())
    }

    /// Counts what is not a plain put: tombstones, expiries, pointers.
    fn note_special(&mut self, tag: Tag, value: &[u8]) -> Result<()> {
        let Some((expiry, rest)) = split_expiry(tag, value) else {
            return Err(Error::invalid("an entry's value lacks the expiry that its tag requires"));
        };
        match tag.kind() {
            Some(Kind::Delete | Kind::SingleDelete) => self.info.tombstones += 1,
            Some(Kind::Put) if !tag.is_packed() => {}
            Some(Kind::PutPointer) => {
                let Some(p) = ValuePointer::decode(rest) else {
                    return Err(Error::invalid("an entry's value is not the pointer that its tag requires"));
                };
                let r = self.vlog_refs.entry(p.file_id).or_insert(VlogRef { file_id: p.file_id, ..VlogRef::default() });
                r.values += 1;
                r.bytes += p.stored_len; // both are below `MAX_SIZE`
                if r.bytes >= MAX_SIZE {
                    return Err(Error::invalid(format!("{} bytes of one value log: no file is as large", r.bytes)));
                }
            }
            _ => return Err(Error::invalid(format!("{tag:?} is not a point entry"))),
        }
        if let Some(ms) = expiry {
            // 0 means none; an entry that expired in 1970 counts as expiring one millisecond later.
            let (ms, first) = (ms.max(1), self.info.min_expiry_ms);
            self.info.min_expiry_ms = if first == 0 { ms } else { first.min(ms) };
            self.info.max_expiry_ms = self.info.max_expiry_ms.max(ms);
            self.info.expiring += 1;
        }
        Ok(())
    }

    fn finish_block(&mut self) -> Result<()> {
        let raw = self.block.finish();
        let (len, full) = match &mut self.sample {
            None => {
                let method = self.opts.compression;
                self.compressor.suit_blocks(raw);
                (self.out.append_frame(&mut self.compressor, method, raw, self.file_id)?.len, false)
            }
            Some(sample) => {
                sample.add(raw)?;
                (0, sample.is_full()) // its length is known when it is written
            }
        };
        self.block.clear();
        self.index.add_block(len);
        self.separator_due = true;
        if full { self.end_sample() } else { Ok(()) }
    }

    /// Trains the dictionary and writes the blocks that waited for it.
    #[cold]
    fn end_sample(&mut self) -> Result<()> {
        let Some(sample) = self.sample.take() else { return Ok(()) };
        if let Some(dictionary) = sample.train()
            && self.use_dictionary(&sample, &dictionary)
        {
            self.dictionary = dictionary;
        }
        for (i, raw) in sample.iter().enumerate() {
            let frame = self.out.append_frame(&mut self.compressor, self.opts.compression, raw, self.file_id)?;
            self.index.set_len(i, frame.len);
        }
        Ok(())
    }

    /// Compresses with the dictionary from now on, if that makes the table smaller: some blocks of the sample tell. Without memory for
    /// it nothing changes.
    fn use_dictionary(&mut self, sample: &Sample, dictionary: &[u8]) -> bool {
        let without = self.compressor.stored_bytes(sample.some());
        if !self.compressor.set_dictionary(dictionary) {
            return false;
        }
        let with = self.compressor.stored_bytes(sample.some());
        let tried: usize = sample.some().map(<[u8]>::len).sum();
        // How much more comes after the sample. What is expected is up to twice what the table gets.
        let after = if sample.is_full() { self.opts.expected_entries as u64 / 2 / self.info.entries.max(1) } else { 1 };
        let all = sample.blocks.len() as u64 * after.max(1);
        let saved = without.saturating_sub(with) as u128 * all as u128 / tried.max(1) as u128;
        let pays = saved > Properties::dictionary_bytes(dictionary.len()) as u128;
        if !pays {
            self.compressor.drop_dictionary();
        }
        pays
    }

    /// Adds a range tombstone for the keys in `[start, end)`. In any order, at any time before [`TableWriter::finish`].
    ///
    /// # Errors
    /// `InvalidArgument` when the range is empty.
    pub fn add_range_tombstone(&mut self, start: &[u8], end: &[u8], seq: SeqNo) -> Result<()> {
        if !self.opts.order.compare(start, end).is_lt() {
            return Err(Error::invalid("a range tombstone covers no key"));
        }
        self.info.min_seq = self.info.min_seq.min(seq);
        self.info.max_seq = self.info.max_seq.max(seq);
        self.tombstones.push(RangeTombstone { start: start.to_vec(), end: end.to_vec(), seq });
        Ok(())
    }

    /// Point entries added.
    pub fn entries(&self) -> u64 {
        self.info.entries
    }

    /// The order of the keys.
    pub fn order(&self) -> &KeyOrder {
        &self.opts.order
    }

    /// The key added last; empty before the first.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// About the bytes that the file would have if it were finished now.
    pub fn estimated_size(&self) -> u64 {
        let filter = self.filter.as_ref().map_or(0, |f| f.keys() * 5 / 4);
        let block = if self.block.is_empty() { 0 } else { self.block.size_with(0, 0) };
        // A writer that wants a dictionary has blocks that shrink.
        let waiting = self.sample.as_ref().map_or(0, |s| s.blocks.len() / 4);
        self.out.position() + (block + waiting + filter + self.index.estimated_size()) as u64
    }

    /// About the bytes of memory that it holds: the buffer, what filter and index are made of, a block, and the blocks that wait for
    /// a dictionary.
    pub fn memory(&self) -> u64 {
        let filter = self.filter.as_ref().map_or(0, FilterBuilder::memory);
        let sample = self.sample.as_ref().map_or(0, Sample::memory);
        (self.out.memory() + filter + self.index.memory() + 2 * self.opts.block_size + sample) as u64
    }

    /// Writes the last block and the tail, and makes the bytes durable. The caller syncs the directory.
    ///
    /// # Errors
    /// `Io` and `NoSpace` from the file.
    pub fn finish(mut self) -> Result<TableInfo> {
        if !self.block.is_empty() {
            self.finish_block()?;
        }
        if self.separator_due {
            self.index.separate(&self.last_key, None)?;
        }
        self.end_sample()?;
        self.compressor.drop_dictionary();
        let first = self.block.restart_interval() == 1 && self.dictionary.is_empty();
        let version = if first { 1 } else { KLOG_VERSION };
        let (file_id, data_end) = (self.file_id, self.out.position());
        let mut footer = Footer { version, file_id, data_end, ..Footer::default() };
        // The hashes are given up before anything else is made.
        let filter = self.filter.take().map(|f| f.finish(self.opts.filter_fp)).transpose()?.unwrap_or_default();
        if !filter.is_empty() {
            footer.filter = self.section(Compression::None, &filter)?;
        }
        footer.index = self.section(Compression::None, &self.index.finish())?;
        if !self.tombstones.is_empty() {
            tombstones::sort(&mut self.tombstones, &self.opts.order);
            footer.tombstones = self.section(self.opts.compression, &tombstones::encode(&self.tombstones))?;
        }
        let blocks = self.index.blocks() as u64;
        let order = self.opts.order.name().to_owned();
        let dictionary = std::mem::take(&mut self.dictionary);
        let mut properties = Properties { order, blocks, info: self.complete_info(), dictionary };
        footer.properties = self.section(Compression::None, &properties.encode())?;
        self.out.append(&footer.encode())?;
        properties.info.file_size = self.out.finish()?;
        Ok(properties.info)
    }

    fn section(&mut self, method: Compression, raw: &[u8]) -> Result<u64> {
        let frame = match method {
            Compression::None => self.out.append_plain(raw, self.file_id)?,
            _ => self.out.append_frame(&mut self.compressor, method, raw, self.file_id)?,
        };
        Ok(frame.len as u64)
    }

    /// Completes counts and the key range, which covers range tombstones.
    fn complete_info(&mut self) -> TableInfo {
        let order = &self.opts.order;
        let mut info = std::mem::take(&mut self.info);
        info.max_key = std::mem::take(&mut self.last_key);
        let mut empty = info.entries == 0;
        for t in &self.tombstones {
            if empty || order.compare(&t.start, &info.min_key).is_lt() {
                info.min_key = t.start.clone();
            }
            if empty || order.compare(&t.end, &info.max_key).is_gt() {
                info.max_key = t.end.clone();
            }
            empty = false;
        }
        if empty {
            info.min_seq = 0;
        }
        info.range_tombstones = self.tombstones.len() as u64;
        info.vlog_refs = std::mem::take(&mut self.vlog_refs).into_values().collect();
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;
    use kingtide_vfs::{MemFs, OpenMode};
    use std::path::Path;

    /// The writer shows each block to its compressor.
    #[test]
    fn blocks_with_long_repetitions_are_compressed_quickly() {
        let fs = MemFs::shared();
        let file = fs.open(Path::new("t.klog"), OpenMode::Create).unwrap();
        let mut writer = TableWriter::new(file, 1, TableOptions::default());
        let (mut rng, mut noise) = (Rng::new(1), [0; 32]);
        let careful = writer.compressor.codec();
        for i in 0..1000u32 {
            rng.fill(&mut noise);
            writer.add(&i.to_be_bytes(), Tag::new(1, Kind::Put), &noise.repeat(4)).unwrap();
        }
        assert_ne!(writer.compressor.codec(), careful);
    }
}
