//! Reading tables block by block, damaged ones too: for verification and repair.
//!
//! A reader of these functions decides by itself what a broken block means. Nothing here uses the block cache: what is
//! to be known is what the file holds.

use crate::block::{Entry, Layout};
use crate::compression::Dictionary;
use crate::footer::{FOOTER, Footer};
use crate::info::{Properties, TableInfo};
use crate::reader::{ReadScratch, Table, TableId, Tail};
use kingtide_base::checksum::{crc_append, place};
use kingtide_base::memory::extend_zeroed;
use kingtide_base::stats::Stats;
use kingtide_base::{Error, KeyOrder, Result};
use kingtide_mem::cache::BlockCache;
use kingtide_vfs::File;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the longest block that [`BlockScan`] finds.
const LONGEST: usize = 64 << 20;
/// More bytes than a dictionary has with what is around it, which finds it: the option's maximum is half of that.
const LONGEST_DICTIONARY: u64 = 512 << 10;
/// Bytes that it reads first.
const FIRST_READ: usize = 256 << 10;
/// Bytes of a frame behind its payload.
const TRAILER: usize = crate::frame::TRAILER;

/// What the tail of a table says about it, read without knowing its key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableTraits {
    /// The name of its key order.
    pub order: String,
    /// What it holds.
    pub info: TableInfo,
}

/// The id that a table was written under, as its footer says: the number in its name, unless it came from elsewhere.
///
/// # Errors
/// `Corruption` with file and offset when it does not end with a footer, `NewerFormat`, `Io`.
pub fn read_written_as(file: &dyn File) -> Result<u64> {
    let read = || {
        let len = file.len()?;
        let Some(at) = len.checked_sub(FOOTER as u64) else {
            return Err(Error::corruption("too short for a key log").at_offset(0));
        };
        let mut footer = [0; FOOTER];
        file.read_exact_at(&mut footer, at)?;
        let id = footer.first_chunk().map(|b| u64::from_le_bytes(*b)).unwrap_or_default();
        Footer::decode(&footer, len, id).map(|f| f.file_id).map_err(|e| e.at_offset(at))
    };
    read().map_err(|e: Error| e.at_path(file.path()))
}

/// Reads a table's properties; `written_as` is the id that it was written under.
///
/// # Errors
/// `Corruption` with file and offset, `NewerFormat`, `Io`.
pub fn read_traits(file: &dyn File, written_as: u64) -> Result<TableTraits> {
    let read = || {
        let len = file.len()?;
        let tail = Tail::read(file, written_as, len)?;
        let f = tail.footer;
        let (bytes, at) = tail.section(f.filter + f.index + f.tombstones, f.properties)?;
        let Properties { order, mut info, .. } = Properties::decode(&bytes).map_err(|e| e.at_offset(at))?;
        info.file_size = len;
        Ok(TableTraits { order, info })
    };
    read().map_err(|e: Error| e.at_path(file.path()))
}

impl Table {
    /// As [`Table::open`], but goes on without a filter, properties or range tombstones that are damaged; returns what
    /// was wrong with them. [`Table::info`] is empty without properties.
    ///
    /// # Errors
    /// As [`Table::open`], for footer and index.
    pub fn open_damaged(
        file: Arc<dyn File>,
        id: impl Into<TableId>,
        order: KeyOrder,
        cache: Arc<BlockCache>,
        stats: Arc<Stats>,
    ) -> Result<(Arc<Table>, Vec<Error>)> {
        let path = file.path().to_owned();
        let mut damage = Vec::new();
        let table = Self::open_inner(file, id.into(), order, cache.into(), stats, &mut |e| {
            damage.push(e.at_path(&path));
            Ok(())
        });
        Ok((Arc::new(table.map_err(|e| e.at_path(&path))?), damage))
    }

    /// Where block `i` lies in the file. The table must not be in partitions.
    pub fn block_place(&self, i: usize) -> Range<u64> {
        debug_assert!(self.parts().is_none(), "which blocks there are is not all in memory");
        let handle = self.index.handle(i);
        handle.offset..handle.offset + handle.len as u64
    }

    /// Reads block `i` from the file, never from the cache, and checks that a search in it meets the entries that a walk
    /// does; its entries are then [`ReadScratch::entry`].
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`.
    pub fn read_block(&self, i: usize, scratch: &mut ReadScratch) -> Result<()> {
        self.load(i, scratch)?;
        scratch.layout().check(scratch.bytes()).map_err(|e| self.at_block(e, i))
    }

    /// What is wrong with finding `key`, an entry's key of block `i`, through filter and index. The table must not be in partitions.
    pub fn check_lookup(&self, key: &[u8], i: usize) -> Option<&'static str> {
        if self.index.locate(key).start > i {
            return Some("the index does not find a key");
        }
        match self.order().hash(key) {
            Some(hash) if !self.may_contain_in_memory(hash) => Some("the filter denies a key"),
            _ => None,
        }
    }

    /// An error at block `i`.
    pub fn error_at_block(&self, e: Error, i: usize) -> Error {
        self.at_block(e, i)
    }
}

impl ReadScratch {
    /// Number of entries of the block that was read last.
    pub fn entries(&self) -> usize {
        self.layout().count()
    }

    /// Entry `i` of the block that was read last, in [`ReadScratch::bytes`].
    ///
    /// # Errors
    /// `Corruption` when it is not inside the block.
    pub fn entry(&self, i: usize) -> Result<Entry> {
        self.layout().entry(self.bytes(), i)
    }
}

/// Walks over a table's blocks without its index, which is lost: every block ends where a checksum of all bytes since
/// its beginning stands. O(bytes), at the speed of a checksum taken byte by byte.
///
/// The walk ends at the first place where no block begins: at the end of the blocks, or at a damaged one.
pub struct BlockScan {
    file: Arc<dyn File>,
    file_id: u64,
    at: u64,
    end: u64,
    /// Whether the footer says so; otherwise it is the end of the file, which may have been cut.
    end_known: bool,
    buf: Vec<u8>,
    /// Where `buf` begins.
    start: u64,
    dictionary: Option<Dictionary>,
}

impl BlockScan {
    /// A walk over the blocks of a table file; `file_id` is the id that it was written under.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(file: Arc<dyn File>, file_id: u64) -> Result<BlockScan> {
        let len = file.len()?;
        let (mut end, mut end_known) = (len, false);
        let mut footer = [0; FOOTER];
        if let Some(at) = len.checked_sub(FOOTER as u64)
            && file.read_exact_at(&mut footer, at).is_ok()
            && let Ok(f) = Footer::decode(&footer, len, file_id)
        {
            (end, end_known) = (f.data_end, true);
        }
        let dictionary = read_dictionary(&*file, file_id, len);
        Ok(BlockScan { file, file_id, at: 0, end, end_known, buf: Vec::new(), start: 0, dictionary })
    }

    /// Where the next block would begin.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Whether all blocks were read for certain: up to the place where the footer says that they end.
    pub fn at_end(&self) -> bool {
        self.end_known && self.at == self.end
    }

    /// Reads the next block into `scratch`; `None` at the end of the walk.
    ///
    /// # Errors
    /// `Io`.
    pub fn next(&mut self, scratch: &mut ReadScratch) -> Result<Option<Range<u64>>> {
        let bound = place(self.file_id, self.at);
        let (mut sum, mut covered) = (0, 0);
        loop {
            let have = self.available();
            while covered + TRAILER <= have {
                let from = (self.at - self.start) as usize;
                sum = crc_append(sum, &self.buf[from + covered..from + covered + 1]);
                covered += 1;
                let stored = self.buf[from + covered..].first_chunk().map(|b| u32::from_le_bytes(*b));
                if covered > 1 && stored == Some(sum ^ bound) {
                    let frame = from..from + covered + TRAILER - 1;
                    let with = self.dictionary.as_ref();
                    if scratch.unpack_from(&self.buf[frame], self.file_id, self.at, with).is_ok()
                        && holds_entries(scratch)
                    {
                        let found = self.at..self.at + (covered + TRAILER - 1) as u64;
                        self.at = found.end;
                        return Ok(Some(found));
                    }
                }
            }
            if have >= LONGEST || self.at + have as u64 >= self.end {
                return Ok(None);
            }
            self.read_more(have)?;
        }
    }

    /// Bytes in the buffer from the present place on.
    fn available(&self) -> usize {
        (self.start + self.buf.len() as u64).saturating_sub(self.at) as usize
    }

    fn read_more(&mut self, have: usize) -> Result<()> {
        let want = (have * 2).clamp(FIRST_READ, LONGEST).min((self.end - self.at) as usize);
        self.buf.clear();
        extend_zeroed(&mut self.buf, want, "a block")?;
        self.start = self.at;
        self.file.read_exact_at(&mut self.buf, self.at)
    }
}

/// The dictionary of a table, if it has one. Where its properties cannot be read, or not even its footer, an intact copy is looked for.
fn read_dictionary(file: &dyn File, file_id: u64, len: u64) -> Option<Dictionary> {
    let Ok(tail) = Tail::read(file, file_id, len) else { return find_dictionary(file, len) };
    let f = tail.footer;
    let properties = tail.section(f.filter + f.index + f.tombstones, f.properties);
    match properties.and_then(|(bytes, _)| Properties::decode(&bytes)) {
        Ok(p) if p.dictionary.is_empty() => None,
        Ok(p) => Dictionary::new(&p.dictionary).ok(),
        Err(_) => tail.find_dictionary(),
    }
}

/// Looks for a dictionary in a file without a footer, from the end. O(bytes).
fn find_dictionary(file: &dyn File, len: u64) -> Option<Dictionary> {
    let mut buf = Vec::new();
    let mut end = len;
    while end > 0 {
        let begin = end.saturating_sub(2 * LONGEST_DICTIONARY);
        buf.clear();
        extend_zeroed(&mut buf, (end - begin) as usize, "a part of a table").ok()?;
        file.read_exact_at(&mut buf, begin).ok()?;
        if let Some(bytes) = Properties::find_dictionary(&buf) {
            return Dictionary::new(bytes).ok();
        }
        // The next part shares half with this one, so that a dictionary is in one of them as a whole.
        end = if begin == 0 { 0 } else { begin + LONGEST_DICTIONARY };
    }
    None
}

fn holds_entries(scratch: &ReadScratch) -> bool {
    let layout: Layout = scratch.layout();
    layout.check(scratch.bytes()).is_ok()
        && (0..layout.count()).all(|i| scratch.entry(i).is_ok_and(|e| e.tag.kind().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{TableOptions, TableWriter};
    use kingtide_base::{Kind, Tag};
    use kingtide_vfs::{Fs, MemFs, OpenMode};
    use std::path::Path;

    fn written(fs: &MemFs, n: u64) -> (Arc<dyn File>, Vec<Vec<u8>>) {
        let file = fs.open(Path::new("t"), OpenMode::Create).unwrap();
        let mut w = TableWriter::new(file.clone(), 7, TableOptions { block_size: 512, ..TableOptions::default() });
        let keys: Vec<Vec<u8>> = (0..n).map(|i| format!("key-{i:06}").into_bytes()).collect();
        for (i, k) in keys.iter().enumerate() {
            w.add(k, Tag::new(i as u64 + 1, Kind::Put), &[i as u8; 20]).unwrap();
        }
        w.add_range_tombstone(b"a", b"b", n + 5).unwrap();
        w.finish().unwrap();
        (file, keys)
    }

    fn open(file: &Arc<dyn File>) -> Result<(Arc<Table>, Vec<Error>)> {
        let stats = Arc::new(Stats::default());
        Table::open_damaged(file.clone(), 7, KeyOrder::Bytewise, BlockCache::new(0, 1, stats.clone()), stats)
    }

    fn scan(file: &Arc<dyn File>) -> (Vec<Vec<u8>>, BlockScan) {
        let (mut scan, mut scratch) = (BlockScan::new(file.clone(), 7).unwrap(), ReadScratch::new());
        let mut keys = Vec::new();
        while scan.next(&mut scratch).unwrap().is_some() {
            for i in 0..scratch.entries() {
                keys.push(scratch.entry(i).unwrap().key(scratch.bytes()).to_vec());
            }
        }
        (keys, scan)
    }

    #[test]
    fn blocks_are_found_without_index_and_footer() {
        let fs = MemFs::new();
        let (file, keys) = written(&fs, 500);
        assert_eq!(read_traits(&*file, 7).unwrap().order, "bytewise");
        let (found, end) = scan(&file);
        assert_eq!((found, end.at_end()), (keys.clone(), true));
        // Without the footer, whatever follows the blocks is not taken for one.
        let len = file.len().unwrap();
        file.truncate(len - 10).unwrap();
        assert!(open(&file).is_err() && read_traits(&*file, 7).is_err());
        let (found, end) = scan(&file);
        assert_eq!((found, end.at_end()), (keys.clone(), false));
        // Up to a damaged block.
        file.write_at(&[0x55; 4], 3000).unwrap();
        let (found, end) = scan(&file);
        assert!(!end.at_end() && end.position() <= 3000 && !found.is_empty() && keys.starts_with(&found));
    }

    #[test]
    fn every_damaged_byte_is_told_and_the_rest_can_be_read() {
        let fs = MemFs::new();
        let (file, keys) = written(&fs, 60);
        let mut good = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut good, 0).unwrap();
        for at in 0..good.len() {
            file.write_at(&[good[at] ^ 0x10], at as u64).unwrap();
            let (mut wrong, mut seen) = (0, 0);
            match open(&file) {
                Err(_) => wrong += 1,
                Ok((table, damage)) => {
                    wrong += damage.len();
                    let mut scratch = ReadScratch::new();
                    for i in 0..table.blocks() {
                        match table.read_block(i, &mut scratch) {
                            Ok(()) => seen += scratch.entries(),
                            Err(e) => {
                                assert!(table.block_place(i).contains(&(at as u64)), "{e}");
                                wrong += 1;
                            }
                        }
                    }
                    assert!(seen >= keys.len() - 20, "byte {at}: {seen} entries");
                }
            }
            assert_eq!(wrong, 1, "byte {at}");
            file.write_at(&good[at..at + 1], at as u64).unwrap();
        }
    }
}
