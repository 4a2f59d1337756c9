//! Values in pieces: a reader that holds one chunk of a value at a time, however large the value is.

use crate::family::tables::VlogHandle;
use crate::family::{ReadContext, View};
use crate::read::get::{Found, found, lookup_runs, visible, with_scratch};
use crate::read::value::PinnedValue;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, Kind, Result, SeqNo, Tag};
use kingtide_mem::Memtable;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A value in a memtable of at least this many bytes is read where it is; a smaller one is copied.
const COPY_BELOW: usize = 64 << 10;

/// Room for so many bytes is made before they are read.
const BELIEVED: usize = 16 << 20;

/// Reads one value in pieces: see [`ColumnFamily::get_reader`](crate::ColumnFamily::get_reader).
///
/// It reads the value as it was when the reader was opened, regardless of later writes, deletes, compactions and dropped families, and keeps the
/// file or memtable that holds the value until it is dropped. Reading forward decodes each chunk once; a seek in a compressed value reads the
/// headers of the chunks in between, as far as their places are not known yet.
///
/// A reader may move between threads. Besides [`io::Read`] and [`io::Seek`] there is [`ValueReader::read_at`], which does
/// not move the position. Errors of the engine come out of the traits as [`io::Error`]s that hold an [`Error`].
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.put("film", "frames")?;
/// let mut film = db.default_family().get_reader("film")?.expect("it was put");
/// let mut piece = [0; 3];
/// film.read_at(2, &mut piece)?;
/// assert_eq!((film.len(), film.is_empty(), &piece), (6, false, b"ame"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ValueReader {
    source: Source,
    len: u64,
    /// Where [`io::Read`] goes on.
    position: u64,
    stats: Arc<Stats>,
}

/// Where the value is.
enum Source {
    /// Here: it is small, or was decoded as a whole to be found.
    Owned(PinnedValue),
    /// In a memtable: `bytes` of what is stored under that key and tag.
    Memory { memtable: Arc<Memtable>, key: Box<[u8]>, tag: Tag, bytes: Range<usize> },
    /// In a value log, whose handle keeps the file.
    Log { value: Box<kingtide_table::VlogValueReader>, _file: Arc<VlogHandle> },
}

/// Opens the value that `key` has at `snapshot`, or `None` when it has none.
///
/// # Errors
/// `Io` and `Corruption` with the file.
pub(crate) fn open(view: &View, key: &[u8], snapshot: SeqNo, ctx: &ReadContext) -> Result<Option<ValueReader>> {
    let source = find(view, key, snapshot, ctx)?;
    ctx.stats.add(Stat::Gets, 1);
    let Some(source) = source else { return Ok(None) };
    ctx.stats.add(Stat::GetHits, 1);
    let len = match &source {
        Source::Owned(value) => value.len() as u64,
        Source::Memory { bytes, .. } => bytes.len() as u64,
        Source::Log { value, .. } => value.len(),
    };
    Ok(Some(ValueReader { source, len, position: 0, stats: ctx.stats.clone() }))
}

fn find(view: &View, key: &[u8], snapshot: SeqNo, ctx: &ReadContext) -> Result<Option<Source>> {
    let covering = view.max_covering(key, snapshot)?;
    let upper = Tag::seek(snapshot);
    for memtable in view.memtables() {
        let Some((tag, stored)) = memtable.points().get(key, upper) else { continue };
        let Some(bytes) = visible(tag, stored, covering, ctx)? else { return Ok(None) };
        if tag.kind() == Some(Kind::Put) && !tag.is_packed() && bytes.len() >= COPY_BELOW {
            return Ok(Some(Source::Memory { memtable: memtable.points().clone(), key: key.into(), tag, bytes }));
        }
        return take(found(tag, &stored[bytes], None)?, ctx).map(Some);
    }
    if view.runs.is_empty() {
        return Ok(None);
    }
    with_scratch(|scratch| lookup_runs(view, key, (upper, covering), ctx, scratch, |found| take(found, ctx)))
}

fn take(found: Found<'_>, ctx: &ReadContext) -> Result<Source> {
    let Found::Pointer(pointer, _) = found else { return found.into_pinned(ctx).map(Source::Owned) };
    ctx.stats.add(Stat::VlogReads, 1);
    let file = ctx.tables.vlog_handle(pointer.file_id);
    let value = Box::new(file.vlog()?.reader(pointer)?);
    Ok(Source::Log { value, _file: file })
}

impl ValueReader {
    /// A reader of a value that is here as a whole.
    pub(crate) fn of(value: PinnedValue, stats: &Arc<Stats>) -> ValueReader {
        let len = value.len() as u64;
        ValueReader { source: Source::Owned(value), len, position: 0, stats: stats.clone() }
    }

    /// Reads a range of the value's bytes, as far as they exist, without moving the position.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("film", [7; 100])?;
    /// let mut film = db.default_family().get_reader("film")?.expect("it was put");
    /// assert_eq!(film.read_range(90..95)?, [7; 5]);
    /// assert_eq!(film.read_range(95..200)?.len(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ValueReader::read_at`].
    pub fn read_range(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        let wanted = range.end.min(self.len).saturating_sub(range.start);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < wanted {
            let left = wanted - bytes.len();
            let piece = self.source.bytes_from(range.start + bytes.len() as u64, &self.stats)?;
            if piece.is_empty() {
                break;
            }
            let piece = &piece[..piece.len().min(left)];
            if bytes.capacity() - bytes.len() < piece.len() {
                // The length is what a file says, and is believed as far as bytes come.
                let room = left.min(BELIEVED.max(bytes.len()).max(piece.len()));
                bytes.try_reserve_exact(room).map_err(|_| Error::out_of_memory("a part of a value", room))?;
            }
            bytes.extend_from_slice(piece);
        }
        self.stats.add(Stat::BytesRead, bytes.len() as u64);
        Ok(bytes)
    }

    /// Returns the bytes of the value.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads from byte `offset` of the value into `buf`. Returns how many bytes there were, which is less than `buf` takes
    /// only at the end of the value, and 0 behind it. Does not move the position of [`io::Read`].
    ///
    /// # Errors
    /// `Corruption` with file and offset when a chunk fails its checksum, `Io`. The contents of `buf` are then undefined; other parts of the
    /// value can still be read.
    pub fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let from = offset.saturating_add(done as u64);
            let bytes = self.source.bytes_from(from, &self.stats)?;
            if bytes.is_empty() {
                break;
            }
            let n = bytes.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&bytes[..n]);
            done += n;
        }
        self.stats.add(Stat::BytesRead, done as u64);
        Ok(done)
    }
}

impl Source {
    /// Some bytes of the value from `from` on; none at its end.
    fn bytes_from(&mut self, from: u64, stats: &Stats) -> Result<&[u8]> {
        let here = |value: &'_ [u8]| value.len().min(usize::try_from(from).unwrap_or(usize::MAX));
        match self {
            Source::Owned(value) => Ok(&value[here(value)..]),
            Source::Memory { memtable, key, tag, bytes } => match memtable.get(key, *tag) {
                Some((found, stored)) if found == *tag => {
                    let value = &stored[bytes.clone()];
                    Ok(&value[here(value)..])
                }
                _ => Err(Error::corruption("an entry found earlier in a memtable is missing")),
            },
            Source::Log { value, .. } => {
                let before = value.stored_bytes_read();
                value.chunk_from(from)?;
                stats.add(Stat::VlogReadBytes, value.stored_bytes_read() - before);
                value.chunk_from(from) // is loaded now
            }
        }
    }
}

impl io::Read for ValueReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(self.position, buf)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl io::Seek for ValueReader {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let position = match to {
            io::SeekFrom::Start(offset) => Some(offset),
            io::SeekFrom::End(offset) => self.len.checked_add_signed(offset),
            io::SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "the position lies before the value's beginning");
        self.position = position.ok_or_else(outside)?;
        Ok(self.position)
    }
}

impl fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader").field("len", &self.len).field("position", &self.position).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::tables::TableCache;
    use kingtide_base::ErrorKind;
    use kingtide_base::names::vlog_path;
    use kingtide_base::options::Compression;
    use kingtide_mem::cache::BlockCache;
    use kingtide_table::{ValuePointer, VlogWriter};
    use kingtide_vfs::{MemFs, OpenMode};
    use std::path::{Path, PathBuf};

    /// A length that a damaged table states takes no memory for bytes that are not there.
    #[test]
    fn a_range_takes_memory_for_what_there_is() {
        let (fs, dir, stats) = (MemFs::shared(), Path::new("db"), Arc::new(Stats::default()));
        fs.create_dir_all(dir).unwrap();
        let file = fs.open(&vlog_path(dir, 7), OpenMode::Create).unwrap();
        let mut writer = VlogWriter::new(file, 7, Compression::Lz4, 4096);
        let value = b"ebb and flow ".repeat(3000);
        let pointer = writer.append(&value).unwrap();
        writer.finish().unwrap();
        let blocks = BlockCache::new(0, 1, stats.clone());
        let tables = TableCache::new(fs, PathBuf::from(dir), blocks, stats.clone(), 100);
        let open = |pointer: ValuePointer| {
            let file = tables.vlog_handle(7);
            let log = Box::new(file.vlog().unwrap().reader(pointer).unwrap());
            ValueReader {
                len: log.len(),
                source: Source::Log { value: log, _file: file },
                position: 0,
                stats: stats.clone(),
            }
        };
        for (from, to) in [(0, u64::MAX), (4095, 4098), (10_000, 39_000), (38_999, 40_000), (39_000, 40_000), (9, 3)] {
            let want = value.get(from as usize..value.len().min(to as usize)).unwrap_or_default();
            let range = open(pointer).read_range(from..to).unwrap();
            assert!(range == want && range.capacity() == want.len(), "{from} to {to}");
        }
        for raw_len in [1 << 46, u64::MAX] {
            let mut reader = open(ValuePointer { raw_len, ..pointer });
            for from in [0, 5000] {
                let e = reader.read_range(from..u64::MAX).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            }
        }
    }
}
