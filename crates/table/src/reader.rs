//! Reads a key log: what is resident, and point reads.
//!
//! A point read is: filter (one cache line) -> index (resident, or see `parts.rs`) -> block cache -> on a miss one read into the thread's
//! [`ReadScratch`], checksum, decompression, search. A block enters the cache only when it is touched several times
//! soon: inserting every miss costs more than it saves.

use crate::block::Layout;
use crate::compression::{Decompressor, Dictionary};
use crate::filter::Filter;
use crate::footer::{FOOTER, Footer};
use crate::frame::{self, Handle};
use crate::index::Index;
use crate::info::{Properties, RangeTombstone, TableInfo, UNSEQUENCED};
use crate::partition_reads::Of;
use crate::parts::{PartScratch, Parts};
use crate::tombstones;
use kingtide_base::budget::{Budget, Charge};
use kingtide_base::memory::{extend_zeroed, zeroed};
use kingtide_base::options::Compression;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo, Tag};
use kingtide_mem::cache::{Block, BlockCache};
use kingtide_vfs::File;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes that open reads from the end of the file at once: the whole tail of a small table.
const TAIL_GUESS: u64 = 32 << 10;

/// A buffer above this is given back when a much smaller block follows.
const KEEP_BUFFER: usize = 4 << 20;

/// Numbers open tables, so that a scratch knows whose block it holds, across databases too.
static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

/// Reusable buffers of one reader; keep one per thread. Holds the block that was read last, so that the next read of the
/// same block (a sorted multi-get) does nothing.
#[derive(Default)]
pub struct ReadScratch {
    /// What was read from the file.
    stored: Vec<u8>,
    /// The raw block is its first `raw_len` bytes.
    raw: Vec<u8>,
    raw_len: usize,
    layout: Layout,
    /// Instance of a table and number of the block; instance 0 is none.
    holds: (u64, usize),
    decompressor: Decompressor,
    part: PartScratch,
}

impl ReadScratch {
    /// Empty buffers.
    pub fn new() -> ReadScratch {
        ReadScratch::default()
    }

    /// The raw block that was read last: [`TableValue::Scratch`] is a range of it.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.raw[..self.raw_len]
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.stored.capacity() + self.raw.capacity() + self.part.memory()
    }

    /// From now on a point read that needs a block from a file fails without reading it, or, with `false`, reads it again.
    /// Forgets whether that happened.
    pub fn set_memory_only(&mut self, on: bool) {
        (self.part.memory_only, self.part.refused) = (on, false);
    }

    /// Whether a point read failed because it needed a block from a file since [`ReadScratch::set_memory_only`].
    pub fn refused(&self) -> bool {
        self.part.refused
    }

    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Of a cursor: lets partitions that are read pass by the cache.
    pub(crate) fn pass_by_cache(mut self, passing: bool) -> ReadScratch {
        self.part.passing = passing;
        self
    }

    /// Unpacks a frame that is in `stored`.
    #[inline]
    fn unpack_stored(&mut self, file_id: u64, handle: Handle, with: Option<&Dictionary>) -> Result<()> {
        let frame = &self.stored[..handle.len as usize];
        let (method, payload) = frame::open(frame, file_id, handle.offset)?;
        if method == Compression::None {
            self.raw_len = payload.len();
            std::mem::swap(&mut self.raw, &mut self.stored);
        } else {
            unpack(&mut self.decompressor, method, payload, &mut self.raw, &mut self.raw_len, with)?;
        }
        self.layout = Layout::parse(self.bytes())?;
        Ok(())
    }

    /// Unpacks a frame that is elsewhere.
    pub(crate) fn unpack_from(
        &mut self,
        frame: &[u8],
        file_id: u64,
        offset: u64,
        with: Option<&Dictionary>,
    ) -> Result<()> {
        self.holds.0 = 0;
        let (method, payload) = frame::open(frame, file_id, offset)?;
        if method == Compression::None {
            fit(&mut self.raw, payload.len())?;
            self.raw[..payload.len()].copy_from_slice(payload);
            self.raw_len = payload.len();
        } else {
            unpack(&mut self.decompressor, method, payload, &mut self.raw, &mut self.raw_len, with)?;
        }
        self.layout = Layout::parse(self.bytes())?;
        Ok(())
    }
}

#[inline]
fn unpack(
    d: &mut Decompressor,
    method: Compression,
    payload: &[u8],
    raw: &mut Vec<u8>,
    raw_len: &mut usize,
    with: Option<&Dictionary>,
) -> Result<()> {
    let n = d.room(method, payload, with)?;
    *raw_len = 0;
    fit(raw, n)?;
    d.decompress(method, payload, &mut raw[..n], with)?;
    *raw_len = n;
    Ok(())
}

/// Makes a buffer at least `n` bytes long without clearing what is there; gives a huge one back.
///
/// # Errors
/// When there is no memory.
#[inline]
pub(crate) fn fit(buf: &mut Vec<u8>, n: usize) -> Result<()> {
    if buf.len() < n {
        extend_zeroed(buf, n - buf.len(), "a block")?;
    } else if buf.len() > KEEP_BUFFER && n < buf.len() / 8 {
        *buf = zeroed(n, "a block")?;
    }
    Ok(())
}

/// Where a value is that a point read found.
#[derive(Clone, Debug)]
pub enum TableValue {
    /// In [`ReadScratch::bytes`] of the scratch that was passed, until its next use.
    Scratch(Range<usize>),
    /// In a cached block, which the clone keeps alive.
    Cached(Block, Range<usize>),
}

impl TableValue {
    /// The stored value (with its expiry in front, if the tag says so).
    #[inline]
    pub fn bytes<'a>(&'a self, scratch: &'a ReadScratch) -> &'a [u8] {
        match self {
            TableValue::Scratch(range) => scratch.bytes().get(range.clone()).unwrap_or_default(),
            TableValue::Cached(block, range) => block.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// What a table's file is known as. A number is the identity of a file that its own database wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId {
    /// Names the file in its database and in the block cache.
    pub file_id: u64,
    /// The id that it was written under, to which its checksums are bound. A file that came from elsewhere keeps it.
    pub written_as: u64,
    /// The sequence number that all entries of a sorted file have got; 0 for a table whose entries have their own.
    pub sequence: SeqNo,
}

impl From<u64> for TableId {
    fn from(file_id: u64) -> TableId {
        TableId { file_id, written_as: file_id, sequence: 0 }
    }
}

/// Translates between the tags in a file and those that its readers see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    sequence: SeqNo,
    keep: u64,
    set: u64,
}

impl Stamp {
    fn new(sequence: SeqNo) -> Stamp {
        let keep = if sequence == 0 { u64::MAX } else { 0xff };
        Stamp { sequence, keep, set: sequence << 8 }
    }

    /// The tag of an entry for its reader.
    #[inline]
    pub fn seen(self, stored: Tag) -> Tag {
        Tag(stored.0 & self.keep | self.set)
    }

    /// A reader's tag as a place among the stored ones, which all have the same sequence number.
    #[inline]
    pub fn stored(self, tag: Tag) -> Tag {
        if self.sequence == 0 {
            return tag;
        }
        match tag.seq().cmp(&self.sequence) {
            std::cmp::Ordering::Greater => Tag(u64::MAX),
            std::cmp::Ordering::Equal => Tag(UNSEQUENCED << 8 | tag.0 & 0xff),
            std::cmp::Ordering::Less => Tag(0),
        }
    }
}

/// Where a table's readers find blocks in memory, and partitions of index and filter if it is opened in partitions.
#[derive(Clone)]
pub struct TableCaches {
    /// Blocks.
    pub blocks: Arc<BlockCache>,
    /// Partitions, of [`BlockCache::of_partitions`]. `None`: index and filter are resident as a whole.
    pub partitions: Option<Arc<BlockCache>>,
}

impl From<Arc<BlockCache>> for TableCaches {
    fn from(blocks: Arc<BlockCache>) -> TableCaches {
        TableCaches { blocks, partitions: None }
    }
}

/// An open table: immutable, shared by threads.
pub struct Table {
    pub(crate) file: Arc<dyn File>,
    file_id: u64,
    written_as: u64,
    stamp: Stamp,
    instance: u64,
    pub(crate) order: KeyOrder,
    cache: Arc<BlockCache>,
    stats: Arc<Stats>,
    /// The whole index or, of a table in partitions, its top.
    pub(crate) index: Index,
    /// The whole filter, if the table has one that is not in partitions.
    pub(crate) filter: Option<Filter>,
    parts: Option<Box<Parts>>,
    /// Index and filter are so small, or of such long keys, or stored in such a way, that they are not divided.
    indivisible: bool,
    blocks: usize,
    exact: bool,
    tombstones: Vec<RangeTombstone>,
    pub(crate) info: TableInfo,
    /// What it holds, charged to a budget if it is counted.
    charge: OnceLock<Charge>,
    dictionary: Option<Dictionary>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("path", &self.file.path()).field("entries", &self.info.entries).finish()
    }
}

/// The sections between the blocks and the footer.
pub(crate) struct Tail {
    bytes: Vec<u8>,
    pub footer: Footer,
    file_id: u64,
}

impl Tail {
    /// One read for a small tail, two for a large one.
    pub fn read(file: &dyn File, file_id: u64, len: u64) -> Result<Tail> {
        let guess = len.min(TAIL_GUESS);
        let mut end = zeroed(guess as usize, "a table's index and filter")?;
        file.read_exact_at(&mut end, len - guess)?;
        let Some((_, footer)) = end.split_last_chunk::<FOOTER>() else {
            return Err(Error::corruption("too short for a key log").at_offset(0));
        };
        let footer = Footer::decode(footer, len, file_id).map_err(|e| e.at_offset(len - FOOTER as u64))?;
        let tail_len = len - footer.data_end;
        let bytes = if tail_len <= guess {
            end.split_off((guess - tail_len) as usize)
        } else {
            let mut all = zeroed(tail_len as usize, "a table's index and filter")?;
            let (front, back) = all.split_at_mut((tail_len - guess) as usize);
            file.read_exact_at(front, footer.data_end)?;
            back.copy_from_slice(&end);
            all
        };
        Ok(Tail { bytes, footer, file_id })
    }

    /// The raw bytes of the section of `len` bytes at `skip` bytes into the tail; empty for an absent one.
    pub fn section(&self, skip: u64, len: u64) -> Result<(Cow<'_, [u8]>, u64)> {
        let at = self.footer.data_end + skip;
        if len == 0 {
            return Ok((Cow::Borrowed(&[]), at));
        }
        // The footer's lengths add up to the file's, so the range is inside.
        let frame = self.bytes.get(skip as usize..(skip + len) as usize).unwrap_or_default();
        let raw = frame::open_raw(frame, self.file_id, at).map_err(|e| e.at_offset(at))?;
        Ok((raw, at))
    }

    /// Whether the section of `len` bytes at `skip` bytes into the tail lies in the file as it is, not compressed.
    fn is_plain(&self, skip: u64, len: u64) -> bool {
        let method = (skip + len).checked_sub(frame::TRAILER as u64).and_then(|at| self.bytes.get(at as usize));
        len == 0 || method.is_some_and(|m| *m == Compression::None as u8)
    }
}

impl Tail {
    /// The dictionary of damaged properties, if a copy of it is intact.
    pub fn find_dictionary(&self) -> Option<Dictionary> {
        Properties::find_dictionary(&self.bytes).and_then(|bytes| Dictionary::new(bytes).ok())
    }
}

/// What was read, or nothing if it is damaged and `damage` goes on.
fn or_go_on<T>(read: Result<Option<T>>, damage: &mut dyn FnMut(Error) -> Result<()>) -> Result<Option<T>> {
    read.or_else(|e| damage(e).map(|()| None))
}

impl Table {
    /// Opens a finished table: one or two reads at the end of the file. With a cache for partitions, a few bytes of each partition of
    /// index and filter stay in memory, otherwise all of both.
    ///
    /// # Errors
    /// `Corruption` with file and offset when the tail is damaged or of another file, `NewerFormat`, `Incompatible` when
    /// the table was written in another key order, `Io`.
    pub fn open(
        file: Arc<dyn File>,
        id: impl Into<TableId>,
        order: KeyOrder,
        caches: impl Into<TableCaches>,
        stats: Arc<Stats>,
    ) -> Result<Arc<Table>> {
        let path = file.path().to_owned();
        Self::open_inner(file, id.into(), order, caches.into(), stats, &mut Err)
            .map(Arc::new)
            .map_err(|e| e.at_path(&path))
    }

    /// `damage` decides whether to go on without filter, properties or range tombstones that cannot be used.
    pub(crate) fn open_inner(
        file: Arc<dyn File>,
        id: TableId,
        order: KeyOrder,
        TableCaches { blocks: cache, partitions }: TableCaches,
        stats: Arc<Stats>,
        damage: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Table> {
        let len = file.len()?;
        let tail = Tail::read(&*file, id.written_as, len)?;
        let f = tail.footer;
        let properties = tail
            .section(f.filter + f.index + f.tombstones, f.properties)
            .and_then(|(bytes, at)| Properties::decode(&bytes).map_err(|e| e.at_offset(at)));
        let properties = or_go_on(properties.map(Some), damage)?;
        if let Some(name) = properties.as_ref().map(|p| &p.order).filter(|name| *name != order.name()) {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!("the table is in key order '{name}', not '{}'", order.name()),
            ));
        }
        let (index_bytes, index_at) = tail.section(f.filter, f.index)?;
        let mut index = Index::decode(&index_bytes, f.data_end, &order).map_err(|e| e.at_offset(index_at))?;
        let (blocks, exact) = (index.blocks(), index.is_exact());
        let indivisible =
            !tail.is_plain(0, f.filter) || !tail.is_plain(f.filter, f.index) || !Parts::pay(&index, f.filter);
        let (mut filter, mut parts) = (None, None);
        match partitions.filter(|_| !indivisible) {
            None => {
                let whole = tail.section(0, f.filter).and_then(|(filter, at)| match filter.is_empty() {
                    true => Ok(None),
                    false => Filter::decode(&filter).map(Some).map_err(|e| e.at_offset(at)),
                });
                filter = or_go_on(whole, damage)?;
            }
            Some(cache) => {
                let (filter, filter_at) = tail.section(0, f.filter)?;
                let made = Parts::new(cache, &index, (&index_bytes, index_at), (&filter, filter_at))?;
                (parts, index) = (Some(Box::new(made.0)), made.1);
            }
        }
        drop(index_bytes);
        let encoded = tail.section(f.filter + f.index, f.tombstones);
        let tombstones = encoded.and_then(|(encoded, at)| match encoded.is_empty() {
            true => Ok(Some(Vec::new())),
            false => tombstones::decode(&encoded, &order).map(Some).map_err(|e| e.at_offset(at)),
        });
        let tombstones = or_go_on(tombstones, damage)?;
        if let (Some(p), Some(tombstones)) = (&properties, &tombstones)
            && (blocks as u64 != p.blocks || tombstones.len() as u64 != p.info.range_tombstones)
        {
            let at = f.data_end + f.filter + f.index;
            damage(Error::corruption("the properties contradict the index").at_offset(at))?;
        }
        if id.sequence != 0 && properties.as_ref().is_some_and(|p| !p.info.unsequenced) {
            let text = "the table was given a sequence number, but its entries have their own";
            damage(Error::corruption(text).at_offset(f.data_end))?;
        }
        let intact = properties.is_some();
        let properties = properties.unwrap_or_default();
        let dictionary = match &properties.dictionary[..] {
            // Where the properties are lost, the dictionary need not be.
            [] if !intact => Ok(tail.find_dictionary()),
            [] => Ok(None),
            bytes => Dictionary::new(bytes).map(Some).map_err(|e| e.at_offset(f.data_end)),
        };
        let dictionary = or_go_on(dictionary, damage)?;
        let (mut info, mut tombstones) = (properties.info, tombstones.unwrap_or_default());
        info.file_size = len;
        if id.sequence != 0 {
            tombstones.iter_mut().for_each(|t| t.seq = id.sequence);
            (info.min_seq, info.max_seq) = (id.sequence, id.sequence);
        }
        stats.add(Stat::TableOpens, 1);
        // Relaxed: only uniqueness matters.
        let instance = NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed);
        let (file_id, written_as, stamp) = (id.file_id, id.written_as, Stamp::new(id.sequence));
        let charge = OnceLock::new();
        Ok(Table {
            file,
            file_id,
            written_as,
            stamp,
            instance,
            order,
            cache,
            stats,
            index,
            filter,
            parts,
            indivisible,
            blocks,
            exact,
            tombstones,
            info,
            charge,
            dictionary,
        })
    }

    /// The id of its file in its database.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }

    pub(crate) fn written_as(&self) -> u64 {
        self.written_as
    }

    #[inline]
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// An entry's tag, read from a block of the file, as this table's readers see it.
    pub fn seen(&self, stored: Tag) -> Tag {
        self.stamp.seen(stored)
    }

    /// The order of its keys.
    pub fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// What it holds.
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// Whether its index and filter are in memory as wanted: in partitions or as a whole. Those of a
    /// table that are not worth dividing are as wanted in any case.
    pub fn is_in_partitions(&self, wanted: bool) -> bool {
        self.parts.is_some() == wanted || self.indivisible
    }

    /// Its file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// What [`Table::resident_bytes`] is if index and filter are resident as a whole.
    pub fn whole_bytes(&self) -> u64 {
        let resident = self.resident_bytes();
        match &self.parts {
            Some(p) => resident - (self.index.memory() + p.memory()) as u64 + p.whole(),
            None => resident,
        }
    }

    /// Bytes of memory that it holds while open: index, filter, range tombstones, dictionary. Without partitions, which their cache
    /// counts.
    pub fn resident_bytes(&self) -> u64 {
        let tombstones: usize =
            self.tombstones.iter().map(|t| size_of::<RangeTombstone>() + t.start.len() + t.end.len()).sum();
        let filter = self.filter.as_ref().map_or(0, Filter::memory);
        let dictionary = self.dictionary.as_ref().map_or(0, Dictionary::memory);
        let parts = self.parts.as_ref().map_or(0, |p| p.memory());
        (size_of::<Table>() + self.index.memory() + parts + filter + dictionary + tombstones) as u64
    }

    /// Charges [`Table::resident_bytes`] to `budget` for as long as the table lives, if that was not done before.
    pub fn charge_to(&self, budget: &Arc<Budget>) {
        self.charge.get_or_init(|| Charge::new(budget, self.resident_bytes()));
    }

    /// Its range tombstones, by start ascending, then sequence number descending.
    pub fn range_tombstones(&self) -> &[RangeTombstone] {
        &self.tombstones
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether a key that [`Table::locate`] places in a block, but is past that block's last key, is nowhere.
    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(crate) fn parts(&self) -> Option<&Parts> {
        self.parts.as_deref()
    }

    /// What its partitions have to know of it.
    fn of(&self) -> Of<'_> {
        Of {
            file: &*self.file,
            file_id: self.file_id,
            instance: self.instance,
            top: &self.index,
            order: &self.order,
            stats: &self.stats,
        }
    }

    /// Where block `i` is.
    ///
    /// # Errors
    /// Of a table in partitions: `Corruption` with file and offset, `Io`.
    #[inline]
    pub(crate) fn handle(&self, i: usize, scratch: &mut ReadScratch) -> Result<Handle> {
        match &self.parts {
            None => Ok(self.index.handle(i)),
            Some(parts) => parts.handle(&self.of(), i, &mut scratch.part),
        }
    }

    /// The dictionary that its blocks are compressed with.
    #[inline]
    pub(crate) fn dictionary(&self) -> Option<&Dictionary> {
        self.dictionary.as_ref()
    }

    #[inline]
    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Whether the filter lets a key of that hash pass; false is certain. True without a filter.
    ///
    /// # Errors
    /// Of a table in partitions: `Corruption` with file and offset, `Io`.
    #[inline]
    pub fn may_contain(&self, hash: u64, scratch: &mut ReadScratch) -> Result<bool> {
        let may = match (&self.filter, &self.parts) {
            (Some(f), _) => f.may_contain(hash),
            (None, None) => true,
            (None, Some(parts)) => parts.may_contain(&self.of(), hash, &mut scratch.part)?,
        };
        self.count_skip(may);
        Ok(may)
    }

    /// The same without reading: true too where the filter's partition is not in memory.
    #[inline]
    pub fn may_contain_in_memory(&self, hash: u64) -> bool {
        let may = match (&self.filter, &self.parts) {
            (Some(f), _) => f.may_contain(hash),
            (None, None) => true,
            (None, Some(parts)) => parts.may_contain_in_memory(&self.of(), hash),
        };
        self.count_skip(may);
        may
    }

    #[inline]
    fn count_skip(&self, may: bool) {
        if !may {
            self.stats.add(Stat::FilterSkips, 1);
            perf::count(Stage::FilterSkips, 1);
        }
    }

    /// Starts loading the filter's line for that hash into the processor's cache.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if let Some(f) = &self.filter {
            f.prefetch(hash);
        }
    }

    /// The blocks in which `key` can be; empty when it is past all keys.
    ///
    /// # Errors
    /// Of a table in partitions: `Corruption` with file and offset, `Io`.
    #[inline]
    pub(crate) fn locate(&self, key: &[u8], scratch: &mut ReadScratch) -> Result<Range<usize>> {
        match &self.parts {
            None => Ok(self.index.locate(key)),
            Some(parts) => parts.locate(&self.of(), key, &mut scratch.part),
        }
    }

    /// The newest entry of `key` with a tag of at most `upper`. `hash` is [`KeyOrder::hash`] of the key; `None` skips
    /// the filter.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`.
    #[inline]
    pub fn get(
        &self,
        key: &[u8],
        hash: Option<u64>,
        upper: Tag,
        scratch: &mut ReadScratch,
    ) -> Result<Option<(Tag, TableValue)>> {
        if let Some(hash) = hash
            && !self.may_contain(hash, scratch)?
        {
            return Ok(None);
        }
        let blocks = self.locate(key, scratch)?;
        let found = self.get_in(blocks, key, upper, scratch);
        if self.parts.is_some() {
            scratch.part.unpin();
        }
        let found = found?;
        if found.is_none() && hash.is_some() && self.has_filter() {
            self.stats.add(Stat::FilterFalsePositives, 1);
        }
        Ok(found)
    }

    fn has_filter(&self) -> bool {
        self.filter.is_some() || self.parts.as_ref().is_some_and(|p| p.has_filter())
    }

    /// The same without the filter, in the blocks that [`Table::locate`] named for the key.
    #[inline]
    fn get_in(
        &self,
        blocks: Range<usize>,
        key: &[u8],
        upper: Tag,
        scratch: &mut ReadScratch,
    ) -> Result<Option<(Tag, TableValue)>> {
        let upper = self.stamp.stored(upper);
        let mut i = blocks.start;
        if blocks.len() > 1 {
            i = self.narrow(blocks, key, upper, scratch)?;
        }
        while i < self.blocks {
            let cached = self.fetch(i, scratch)?;
            let (raw, layout) = match &cached {
                Some(block) => (&block[..], Layout::parse(block).map_err(|e| self.at_block(e, i))?),
                None => (scratch.bytes(), scratch.layout()),
            };
            let search = || -> Result<Step> {
                if let Some((_, e)) = layout.lower_bound(raw, &self.order, key, upper)? {
                    let same = self.order.compare(e.key(raw), key).is_eq();
                    return Ok(if same { Step::Found(self.stamp.seen(e.tag), e.value_range()) } else { Step::Absent });
                }
                if !self.exact {
                    return Ok(Step::Next);
                }
                // Past an exact block only older versions of its last key can follow.
                let last = layout.entry(raw, layout.count() - 1)?;
                Ok(if self.order.compare(last.key(raw), key).is_eq() { Step::Next } else { Step::Absent })
            };
            match search().map_err(|e| self.at_block(e, i))? {
                Step::Found(tag, range) => {
                    let value = match cached {
                        Some(block) => TableValue::Cached(block, range),
                        None => TableValue::Scratch(range),
                    };
                    return Ok(Some((tag, value)));
                }
                Step::Absent => return Ok(None),
                Step::Next => i += 1,
            }
        }
        Ok(None)
    }

    /// Of blocks that share a separator, the first that does not end before (`key`, `tag`), or the last.
    fn narrow(&self, blocks: Range<usize>, key: &[u8], tag: Tag, scratch: &mut ReadScratch) -> Result<usize> {
        let (mut lo, mut hi) = (blocks.start, blocks.end);
        while hi - lo > 1 {
            let mid = lo + (hi - lo - 1) / 2;
            let cached = self.fetch(mid, scratch)?;
            let raw = cached.as_deref().unwrap_or(scratch.bytes());
            if self.ends_before(raw, key, tag).map_err(|e| self.at_block(e, mid))? {
                lo = mid + 1
            } else {
                hi = mid + 1
            }
        }
        Ok(lo)
    }

    /// Whether the last entry of a block is before (`key`, `tag`), a stored tag.
    pub(crate) fn ends_before(&self, raw: &[u8], key: &[u8], tag: Tag) -> Result<bool> {
        let layout = Layout::parse(raw)?;
        let last = layout.entry(raw, layout.count() - 1)?;
        Ok(self.order.compare(last.key(raw), key).then(tag.cmp(&last.tag)).is_lt())
    }

    /// Block `i`: from the cache, or in the scratch when `None` is returned.
    #[inline]
    pub(crate) fn fetch(&self, i: usize, scratch: &mut ReadScratch) -> Result<Option<Block>> {
        if scratch.holds == (self.instance, i) {
            return Ok(None);
        }
        let handle = self.handle(i, scratch)?;
        if let Some(block) = self.cache.get(self.cache_id(), handle.offset) {
            return Ok(Some(block));
        }
        self.load_at(handle, i, scratch)?;
        self.offer(handle.offset, scratch.bytes());
        Ok(None)
    }

    /// What tells its blocks from others' in the cache.
    #[inline]
    pub(crate) fn cache_id(&self) -> u64 {
        self.file_id
    }

    /// Inserts the block at `offset` into the cache if it was touched before.
    #[inline]
    pub(crate) fn offer(&self, offset: u64, raw: &[u8]) {
        if self.cache.admit(self.cache_id(), offset) {
            // Without memory for a copy, the cache goes without.
            self.cache.copied(raw).into_iter().for_each(|block| self.cache.insert(self.cache_id(), offset, block));
        }
    }

    /// Reads block `i` from the file into the scratch.
    pub(crate) fn load(&self, i: usize, scratch: &mut ReadScratch) -> Result<()> {
        let handle = self.handle(i, scratch)?;
        self.load_at(handle, i, scratch)
    }

    /// The same for a block whose place is known.
    #[inline]
    pub(crate) fn load_at(&self, handle: Handle, i: usize, scratch: &mut ReadScratch) -> Result<()> {
        if scratch.part.memory_only {
            return Err(scratch.part.refuse());
        }
        scratch.holds.0 = 0;
        fit(&mut scratch.stored, handle.len as usize)?;
        let timer = perf::begin_wait();
        self.file.read_exact_at(&mut scratch.stored[..handle.len as usize], handle.offset)?;
        self.count_read(1, handle.len as u64);
        scratch.unpack_stored(self.written_as, handle, self.dictionary()).map_err(|e| self.at_block(e, i))?;
        timer.end(Stage::BlockReadNs);
        scratch.holds = (self.instance, i);
        Ok(())
    }

    /// Reads a number of blocks that fill `len` bytes from `offset` on with one read.
    pub(crate) fn read_span(&self, blocks: usize, offset: u64, len: usize, buf: &mut Vec<u8>) -> Result<()> {
        fit(buf, len)?;
        let timer = perf::begin_wait();
        self.file.read_exact_at(&mut buf[..len], offset)?;
        timer.end(Stage::BlockReadNs);
        self.count_read(blocks as u64, len as u64);
        Ok(())
    }

    #[inline]
    fn count_read(&self, blocks: u64, bytes: u64) {
        self.stats.add(Stat::BlocksRead, blocks);
        self.stats.add(Stat::BlockReadBytes, bytes);
        perf::count(Stage::BlocksRead, blocks);
        perf::count(Stage::BlockBytes, bytes);
    }

    #[cold]
    pub(crate) fn at_block(&self, e: Error, i: usize) -> Error {
        let offset = match &self.parts {
            None => self.index.handle(i).offset,
            Some(parts) => parts.place_of(&self.of(), i),
        };
        e.at_path(self.file.path()).at_offset(offset)
    }

    /// Without reading: a key that no entry at or after `key` is below; `None` when there is none at or after it. A merge
    /// need not load the table's block before its other sources have passed that key.
    pub fn lower_bound_hint<'a>(&'a self, key: &'a [u8]) -> Option<&'a [u8]> {
        if self.info.entries == 0 || self.order.compare(key, &self.info.max_key).is_gt() {
            return None;
        }
        Some(if self.order.compare(key, &self.info.min_key).is_lt() { &self.info.min_key } else { key })
    }

    /// About how many bytes of the file lie before `key`. Reads nothing.
    pub fn approximate_offset(&self, key: &[u8]) -> u64 {
        let i = self.index.locate(key).start;
        if i < self.index.blocks() { self.index.piece(i).start } else { self.info.file_size }
    }
}

/// What the search of one block said.
enum Step {
    Found(Tag, Range<usize>),
    Absent,
    Next,
}
