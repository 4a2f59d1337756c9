//! Reads a value log.

use super::read_ahead::ReadAhead;
use super::scratch::with_scratch;
use super::sums::Sums;
use super::wide::{AHEAD, Source};
use super::{CHUNK, Chunk, FLAG_FIRST, FLAG_LAST, FOOTER, HEADER, ValuePointer, VlogInfo, check_header, decode_footer};
use crate::compression::{Decompressor, FREE_RAW, RAW_LEN};
use crate::reader::fit;
use kingtide_base::memory::{append, extend_zeroed};
use kingtide_base::options::Compression;
use kingtide_base::perf::{self, Stage};
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_vfs::File;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Small chunks are read so many bytes at a time.
const WINDOW: u64 = 1 << 20;
/// Values of up to so many stored bytes are read at once; longer ones chunk by chunk, so that the bytes of one are still in the processor's
/// cache when they are decoded.
const AT_ONCE: u64 = 320 << 10;

/// An open value log: shared by threads.
pub struct Vlog {
    file: Arc<dyn File>,
    file_id: u64,
    info: VlogInfo,
    /// Its footer is there, and nothing of the file changes any more.
    finished: bool,
}

impl fmt::Debug for Vlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vlog").field("path", &self.file.path()).field("values", &self.info.values).finish()
    }
}

/// Walks over the chunks of a byte range of the file, reading a window at a time into a buffer.
struct Walk<'a> {
    vlog: &'a Vlog,
    buf: &'a mut Vec<u8>,
    /// The bytes of the file that are in the buffer.
    window: Range<u64>,
    /// The next chunk.
    at: u64,
    /// Where the walk ends.
    end: u64,
}

impl<'a> Walk<'a> {
    fn new(vlog: &'a Vlog, buf: &'a mut Vec<u8>, at: u64, end: u64) -> Walk<'a> {
        Walk { vlog, buf, window: 0..0, at, end }
    }

    /// Makes the `n` bytes at `at` available, reading up to `want` in one go.
    fn need(&mut self, n: u64, want: u64) -> Result<&[u8]> {
        let end = self.at + n;
        if end > self.end {
            return Err(self.error("a value extends beyond its end"));
        }
        if self.at < self.window.start || end > self.window.end {
            let len = want.max(n).min(self.end - self.at);
            fit(self.buf, len as usize)?;
            self.window = 0..0;
            self.vlog.file.read_exact_at(&mut self.buf[..len as usize], self.at)?;
            self.window = self.at..self.at + len;
        }
        let from = (self.at - self.window.start) as usize;
        Ok(&self.buf[from..from + n as usize])
    }

    #[cold]
    fn error(&self, what: &str) -> Error {
        self.vlog.error(Error::corruption(what), self.at)
    }

    /// The next chunk's header. Nothing of it has been checked, except that its lengths are at most [`MAX_CHUNK`](super::MAX_CHUNK).
    fn peek(&mut self, want: u64) -> Result<Chunk> {
        match self.header(want)? {
            chunk if chunk.is_possible() => Ok(chunk),
            _ => Err(self.error("a chunk has a length of more than 16 MiB")),
        }
    }

    /// Decodes the bytes where the next chunk's header should be, without any check.
    fn header(&mut self, want: u64) -> Result<Chunk> {
        match self.need(CHUNK as u64, want)?.first_chunk::<CHUNK>() {
            Some(b) => Ok(Chunk::decode(b)),
            None => Err(self.error("a value extends beyond its end")),
        }
    }

    /// Reads, checks and decodes the next chunk, appends its bytes to `out` if given, and moves on.
    fn next(&mut self, out: Option<&mut impl ChunkOutput>, d: &mut Decompressor) -> Result<Chunk> {
        let rest = self.end.saturating_sub(self.at); // a damaged header may have led beyond the end
        let chunk = self.peek(if rest <= AT_ONCE { rest } else { CHUNK as u64 })?;
        let (vlog, at, end) = (self.vlog, self.at, self.at + chunk.len());
        if let Some(out) = out {
            if end > self.window.end && chunk.is_as_it_was() && chunk.len() <= rest {
                self.read_in_place(&chunk, out)?;
            } else {
                let bytes = self.chunk_bytes(&chunk)?;
                let decode = |method| out.append_decoded(method, &chunk, &bytes[CHUNK..], d);
                chunk.check(bytes, vlog.file_id, at).and_then(decode).map_err(|e| vlog.error(e, at))?;
            }
        } else {
            let bytes = self.chunk_bytes(&chunk)?;
            chunk.check(bytes, vlog.file_id, at).map_err(|e| vlog.error(e, at))?;
        }
        self.at = end;
        Ok(chunk)
    }

    /// All bytes of the next chunk, whose header was read; with them the header of the one behind it, or many small chunks.
    fn chunk_bytes(&mut self, chunk: &Chunk) -> Result<&[u8]> {
        let want = if chunk.len() >= AT_ONCE / 4 { chunk.len() + CHUNK as u64 } else { WINDOW };
        self.need(chunk.len(), want)
    }

    /// Reads the bytes of the next chunk, which is not compressed, to where they belong.
    fn read_in_place(&self, chunk: &Chunk, out: &mut impl ChunkOutput) -> Result<()> {
        let mut read = || -> Result<()> {
            let room = out.room(chunk.stored_len as usize)?;
            self.vlog.file.read_exact_at(room, self.at + CHUNK as u64)?;
            chunk.check_sum(chunk.sum(room), self.vlog.file_id, self.at).map(|_| ())
        };
        read().map_err(|e| self.vlog.error(e, self.at))
    }
}

/// Where the bytes of a value go, chunk by chunk.
trait ChunkOutput {
    /// The next `n` bytes of the value, to be written.
    fn room(&mut self, n: usize) -> Result<&mut [u8]>;

    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Appends the `n` bytes that `body` decompresses to.
    fn decompress(&mut self, method: Compression, body: &[u8], n: usize, d: &mut Decompressor) -> Result<()> {
        d.decompress(method, body, self.room(n)?, None)
    }

    fn append_decoded(&mut self, method: Compression, c: &Chunk, body: &[u8], d: &mut Decompressor) -> Result<()> {
        let raw_len = c.raw_len as usize;
        let stored_as_it_is = method == Compression::None;
        let room = if stored_as_it_is { body.len() } else { d.room(method, body, None)? };
        if room != raw_len {
            return Err(Error::corruption("a value's lengths contradict each other"));
        }
        match stored_as_it_is {
            true => self.append(body),
            false => self.decompress(method, body, raw_len, d),
        }
    }
}

/// Puts a value in the place of what a vector holds. Bytes that the vector has are written over, so that a scan, which
/// uses one vector for all its values, does not zero it for each of them.
struct VecOutput<'a> {
    out: &'a mut Vec<u8>,
    /// Bytes of the value so far; behind them are leftovers.
    len: usize,
}

impl<'a> VecOutput<'a> {
    fn new(out: &'a mut Vec<u8>) -> VecOutput<'a> {
        VecOutput { out, len: 0 }
    }

    /// The value is complete.
    fn finish(self) {
        self.out.truncate(self.len);
    }
}

impl ChunkOutput for VecOutput<'_> {
    fn room(&mut self, n: usize) -> Result<&mut [u8]> {
        let end = self.len + n;
        if end > self.out.len() {
            extend_zeroed(self.out, end - self.out.len(), "a value")?;
        }
        let room = &mut self.out[self.len..end];
        self.len = end;
        Ok(room)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.truncate(self.len);
        append(self.out, bytes, "a value")?;
        self.len += bytes.len();
        Ok(())
    }

    fn decompress(&mut self, method: Compression, body: &[u8], n: usize, d: &mut Decompressor) -> Result<()> {
        if !matches!(method, Compression::Lz4 | Compression::Lz4Fast) {
            return d.decompress(method, body, self.room(n)?, None);
        }
        self.out.truncate(self.len);
        d.decompress_onto(method, body, self.out, n)?;
        self.len += n;
        Ok(())
    }
}

/// Fills a slice of the value's length.
struct SliceOutput<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl ChunkOutput for SliceOutput<'_> {
    fn room(&mut self, n: usize) -> Result<&mut [u8]> {
        let room = self.out.get_mut(self.len..self.len + n).ok_or_else(wrong_length)?;
        self.len += n;
        Ok(room)
    }
}

#[cold]
fn wrong_length() -> Error {
    Error::corruption("the length of a value does not match its pointer")
}

impl Vlog {
    /// Opens a finished value log: two small reads.
    ///
    /// # Errors
    /// `Corruption` with file and offset when header or footer are damaged or of another file, `NewerFormat`, `Io`.
    pub fn open(file: Arc<dyn File>, file_id: u64) -> Result<Arc<Vlog>> {
        let path = file.path().to_owned();
        let open = || -> Result<VlogInfo> {
            let len = file.len()?;
            if len < (HEADER + FOOTER) as u64 {
                return Err(Error::corruption("too short for a value log").at_offset(0));
            }
            let (mut header, mut footer) = ([0; HEADER], [0; FOOTER]);
            file.read_exact_at(&mut header, 0)?;
            check_header(&header, file_id).map_err(|e| e.at_offset(0))?;
            let at = len - FOOTER as u64;
            file.read_exact_at(&mut footer, at)?;
            decode_footer(&footer, file_id, len).map_err(|e| e.at_offset(at))
        };
        let info = open().map_err(|e| e.at_path(&path))?;
        Ok(Arc::new(Vlog { file, file_id, info, finished: true }))
    }

    /// A value log that is being written, or that a crash left without its footer. Values can be read from it by their
    /// pointers, which name whole values that were handed to the system; it knows nothing about itself. Reads nothing.
    pub fn unfinished(file: Arc<dyn File>, file_id: u64) -> Arc<Vlog> {
        // Values may reach as far as they like; none reaches behind the end of what is there.
        let info = VlogInfo { file_size: u64::MAX, ..VlogInfo::default() };
        Arc::new(Vlog { file, file_id, info, finished: false })
    }

    /// As [`Vlog::open`], but goes on when header or footer are damaged, and returns what was wrong: each value has
    /// checksums of its own. What the log says about itself is then unknown.
    ///
    /// # Errors
    /// `NewerFormat`, `Io`.
    pub fn open_damaged(file: Arc<dyn File>, file_id: u64) -> Result<(Arc<Vlog>, Option<Error>)> {
        match Self::open(file.clone(), file_id) {
            Ok(vlog) => Ok((vlog, None)),
            Err(e) if e.kind() == ErrorKind::Corruption => {
                // Values may reach up to the end of what is there.
                let info = VlogInfo { file_size: file.len()?.saturating_add(FOOTER as u64), ..VlogInfo::default() };
                Ok((Arc::new(Vlog { file, file_id, info, finished: true }), Some(e)))
            }
            Err(e) => Err(e),
        }
    }

    /// The file id that it was opened with.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// What it holds.
    pub fn info(&self) -> VlogInfo {
        self.info
    }

    fn data_end(&self) -> u64 {
        self.info.file_size - FOOTER as u64
    }

    #[cold]
    fn error(&self, e: Error, offset: u64) -> Error {
        e.at_path(self.file.path()).at_offset(offset)
    }

    /// The range of the file that a pointer names.
    fn range(&self, p: &ValuePointer) -> Result<Range<u64>> {
        // The end of a log that is still being written is unknown, so a long pointer is checked against the length of the file. A short one needs no
        // check here: it cannot make a large buffer necessary.
        let data_end = match self.finished || p.stored_len <= WINDOW {
            true => self.data_end(),
            false => self.file.len()?,
        };
        match p.offset.checked_add(p.stored_len) {
            Some(end) if p.file_id == self.file_id && p.offset >= HEADER as u64 && end <= data_end => Ok(p.offset..end),
            _ => {
                let text = format!("a pointer to {} bytes in value log {} leads to no value", p.stored_len, p.file_id);
                Err(self.error(Error::corruption(text), p.offset))
            }
        }
    }

    /// Reads a value into `out`, whose contents are replaced. One read for a value of up to 320 KiB as it is stored; a longer one is
    /// read and decoded chunk by chunk, from 4 MiB on by several threads where there are processors for them.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`; `out` then holds nothing of use.
    pub fn read(&self, p: &ValuePointer, out: &mut Vec<u8>) -> Result<()> {
        let range = self.range(p)?;
        let timer = perf::begin_wait();
        let source = Source { file: &*self.file, file_id: self.file_id };
        let read = source.read(p, out).and_then(|done| match done {
            true => Ok(()),
            false => with_scratch(|s| {
                self.ask_for(&range);
                let mut walk = Walk::new(self, &mut s.buf, range.start, range.end);
                self.read_walking(p, &mut walk, out, &mut s.decompressor)
            }),
        });
        timer.end(Stage::ValueLogNs);
        read
    }

    /// The same for values that are likely to lie beside one another, such as those of a scan in either direction: one read
    /// serves many of them. `near` remembers what was read, for several value logs at a time.
    ///
    /// # Errors
    /// As [`Vlog::read`].
    pub fn read_near(&self, p: &ValuePointer, near: &mut ReadAhead, out: &mut Vec<u8>) -> Result<()> {
        let range = self.range(p)?;
        if p.stored_len > ReadAhead::LONGEST {
            return self.read(p, out);
        }
        let window = near.window_of(self.file_id);
        if !window.has(&range) {
            // What lies beside the value may just be written, if it is not the log of a table.
            let within = if self.finished { HEADER as u64..self.data_end() } else { range.clone() };
            let wanted = window.around(&range, within);
            window.clear();
            fit(&mut window.bytes, (wanted.end - wanted.start) as usize)?;
            let timer = perf::begin_wait();
            self.file.read_exact_at(&mut window.bytes[..(wanted.end - wanted.start) as usize], wanted.start)?;
            timer.end(Stage::ValueLogNs);
            window.range = wanted;
        }
        let held = window.range.clone();
        let mut walk = Walk::new(self, &mut window.bytes, range.start, range.end);
        walk.window = held;
        with_scratch(|s| self.read_walking(p, &mut walk, out, &mut s.decompressor))
    }

    /// Reads a value into `out`, which has its length. One read for a value of up to 320 KiB as it is stored; a longer one is
    /// read and decoded chunk by chunk, by this thread alone.
    ///
    /// # Errors
    /// As [`Vlog::read`].
    pub fn read_into(&self, p: &ValuePointer, out: &mut [u8]) -> Result<()> {
        let range = self.range(p)?;
        if out.len() as u64 != p.raw_len {
            return Err(self.error(wrong_length(), range.start));
        }
        self.ask_for(&range);
        let timer = perf::begin_wait();
        let read = with_scratch(|s| {
            let mut walk = Walk::new(self, &mut s.buf, range.start, range.end);
            let mut output = SliceOutput { out, len: 0 };
            self.walk_chunks(&mut walk, &mut output, &mut s.decompressor)?;
            match output.len == output.out.len() {
                true => Ok(()),
                false => Err(self.error(wrong_length(), range.start)),
            }
        });
        timer.end(Stage::ValueLogNs);
        read
    }

    /// Has the system read a value that is read in several pieces.
    fn ask_for(&self, range: &Range<u64>) {
        if range.end - range.start > AT_ONCE {
            self.file.prefetch(range.start, (range.end - range.start).min(AHEAD));
        }
    }

    fn read_walking(
        &self,
        p: &ValuePointer,
        walk: &mut Walk<'_>,
        out: &mut Vec<u8>,
        d: &mut Decompressor,
    ) -> Result<()> {
        let start = walk.at;
        // A pointer is not trusted much further than the stored bytes go; what expands more makes room as it comes.
        let trusted = p.raw_len.min(p.stored_len + FREE_RAW as u64) as usize;
        if trusted > out.capacity() {
            out.clear(); // what it holds need not be carried over
        }
        out.try_reserve_exact(trusted.saturating_sub(out.len()))
            .map_err(|_| Error::out_of_memory("a value", trusted))?;
        let mut output = VecOutput::new(out);
        self.walk_chunks(walk, &mut output, d)?;
        output.finish();
        if out.len() as u64 != p.raw_len {
            return Err(self.error(wrong_length(), start));
        }
        Ok(())
    }

    /// Reads the chunks of a value, from where the walk is to its end.
    fn walk_chunks(&self, walk: &mut Walk<'_>, output: &mut impl ChunkOutput, d: &mut Decompressor) -> Result<()> {
        let (start, end) = (walk.at, walk.end);
        loop {
            let first = walk.at == start;
            let chunk = walk.next(Some(output), d)?;
            let last = walk.at == end;
            chunk.check_flags(first, last).map_err(|e| self.error(e, start))?;
            if last {
                return Ok(());
            }
        }
    }

    /// Reads the bytes `range` of a value into `out`, whose contents are replaced; a range past the end is cut. To read
    /// a large value from front to back, [`Vlog::reader`] is faster: it remembers where it is.
    ///
    /// # Errors
    /// As [`Vlog::read`].
    pub fn read_range(self: &Arc<Vlog>, p: &ValuePointer, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let mut r = self.reader(*p)?;
        r.read_range(range, out)
    }

    /// Reads a value in pieces.
    ///
    /// # Errors
    /// `Corruption` when the pointer does not point into this log.
    pub fn reader(self: &Arc<Vlog>, p: ValuePointer) -> Result<VlogValueReader> {
        self.range(&p)?;
        Ok(VlogValueReader {
            vlog: Arc::clone(self),
            pointer: p,
            at: p.offset,
            raw_at: 0,
            chunk: Vec::new(),
            chunk_at: 0,
            stored_bytes_read: 0,
            known: Known::new(),
            chunk_size: 0,
        })
    }

    /// Reads a value and checks it, without keeping it.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`; of a file that is too short too.
    pub fn check(&self, p: &ValuePointer) -> Result<()> {
        let range = self.range(p)?;
        with_scratch(|s| {
            let mut walk = Walk::new(self, &mut s.buf, range.start, range.end);
            let mut raw_len = 0;
            loop {
                let at = walk.at;
                let chunk = walk.next(None::<&mut SliceOutput<'_>>, &mut s.decompressor)?;
                raw_len += u64::from(chunk.raw_len);
                let last = walk.at == range.end;
                chunk.check_flags(at == range.start, last).map_err(|e| self.error(e, at))?;
                if last {
                    break;
                }
            }
            match raw_len == p.raw_len {
                true => Ok(()),
                false => Err(self.error(Error::corruption("value length does not match its pointer"), range.start)),
            }
        })
    }

    /// Asks the system to start reading a value.
    pub fn prefetch(&self, p: &ValuePointer) {
        if self.range(p).is_ok() {
            self.file.prefetch(p.offset, p.stored_len);
        }
    }

    /// Walks over all values in file order, dead ones included: for verification and repair.
    pub fn records(self: &Arc<Vlog>) -> VlogRecords {
        self.file.advise_sequential();
        VlogRecords { vlog: Arc::clone(self), at: HEADER as u64 }
    }

    /// Reads everything and checks it, the footer's totals too.
    ///
    /// # Errors
    /// `Corruption` with file and offset of the first contradiction, `Io`.
    pub fn verify(self: &Arc<Vlog>) -> Result<()> {
        let mut records = self.records();
        let (mut values, mut raw_bytes) = (0, 0);
        while let Some(p) = records.next_pointer()? {
            values += 1;
            raw_bytes += p.raw_len;
        }
        if (values, raw_bytes) != (self.info.values, self.info.raw_bytes) {
            return Err(self.error(Error::corruption("the footer contradicts the values"), self.data_end()));
        }
        Ok(())
    }
}

/// Reads one value in pieces, in any order; forward is cheap.
pub struct VlogValueReader {
    vlog: Arc<Vlog>,
    pointer: ValuePointer,
    /// The chunk after the decoded one: its place in the file and in the value.
    at: u64,
    raw_at: u64,
    /// The chunk decoded last, and its place in the value.
    chunk: Vec<u8>,
    chunk_at: u64,
    stored_bytes_read: u64,
    known: Known,
    /// Bytes of every chunk but the last, as the first one's header has them.
    chunk_size: u32,
}

/// Where some chunks of a value begin, in the value and in the file: so a step back does not begin at the value's start. At
/// most [`Known::MOST`], evenly spread over what was walked.
struct Known {
    places: Vec<(u64, u64)>,
    /// Every so many chunks are noted.
    every: usize,
    /// Chunks behind the last one that was noted.
    behind: usize,
    /// The first chunk that was not seen yet, as its place in the value.
    seen: u64,
}

impl Known {
    /// 64 KiB of places: those of all chunks of a value of 1 GiB with the default `value_chunk_size`.
    const MOST: usize = 4096;

    fn new() -> Known {
        Known { places: Vec::new(), every: 1, behind: 0, seen: 0 }
    }

    /// A chunk that begins at `raw_at`, and at `at` in the file. Only the first after those that are known counts.
    fn note(&mut self, raw_at: u64, at: u64, raw_len: u64) {
        if raw_at != self.seen {
            return;
        }
        self.seen += raw_len;
        if self.behind == 0 {
            if self.places.len() == Known::MOST {
                let mut i = 0;
                self.places.retain(|_| {
                    i += 1;
                    i % 2 == 1
                });
                self.every *= 2;
            }
            self.places.push((raw_at, at));
        }
        self.behind = (self.behind + 1) % self.every;
    }

    /// The last known chunk that does not begin behind byte `target`.
    fn before(&self, target: u64) -> Option<(u64, u64)> {
        let i = self.places.partition_point(|(raw_at, _)| *raw_at <= target);
        i.checked_sub(1).map(|i| self.places[i])
    }
}

impl VlogValueReader {
    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.pointer.raw_len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.pointer.raw_len == 0
    }

    /// Bytes of the file that were read for it so far.
    pub fn stored_bytes_read(&self) -> u64 {
        self.stored_bytes_read
    }

    /// Reads the bytes `range` of the value into `out`, whose contents are replaced; a range past the end is cut.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`.
    pub fn read_range(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let (mut from, to) = (range.start, range.end.min(self.pointer.raw_len));
        while from < to {
            let bytes = self.chunk_from(from)?;
            let bytes = &bytes[..bytes.len().min((to - from) as usize)];
            append(out, bytes, "a part of a value")?;
            from += bytes.len() as u64;
        }
        Ok(())
    }

    /// The decoded bytes of a chunk from byte `from` of the value on; none at the value's end. Loads one chunk at most.
    ///
    /// # Errors
    /// As [`VlogValueReader::read_range`].
    pub fn chunk_from(&mut self, from: u64) -> Result<&[u8]> {
        if from >= self.pointer.raw_len {
            return Ok(&[]);
        }
        if !(self.chunk_at..self.chunk_at + self.chunk.len() as u64).contains(&from) {
            self.load_chunk_at(from)?;
        }
        Ok(&self.chunk[(from - self.chunk_at) as usize..])
    }

    /// Decodes the chunk that holds byte `target` of the value.
    fn load_chunk_at(&mut self, target: u64) -> Result<()> {
        let end = self.pointer.offset + self.pointer.stored_len;
        let start = (0, self.pointer.offset);
        let known = self.known.before(target).unwrap_or(start);
        if target < self.raw_at || known.0 > self.raw_at {
            (self.raw_at, self.at) = known;
        }
        self.chunk.clear();
        let loaded = self.walk_to(target, end);
        if loaded.is_err() {
            // Where the walk stopped is not known, and headers that it passed over may be wrong.
            self.chunk.clear();
            self.known = Known::new();
            (self.raw_at, self.at) = start;
        }
        loaded
    }

    /// Walks over headers of chunks up to the one that holds byte `target`, and decodes that one. Headers that are passed over are
    /// not checked by their checksum: all chunks of a value but the last have one length, which is checked instead.
    fn walk_to(&mut self, target: u64, end: u64) -> Result<()> {
        let vlog = Arc::clone(&self.vlog);
        with_scratch(|s| {
            let mut walk = Walk::new(&vlog, &mut s.buf, self.at, end);
            let mut head = walk.peek(CHUNK as u64)?;
            if self.raw_at == 0 {
                self.chunk_size = head.raw_len;
            }
            if self.raw_at == 0 && target >= head.raw_len as u64 {
                // Uncompressed values have chunks of one size: compute instead of walking.
                let size = (head.raw_len as u64).max(1);
                let chunks = self.pointer.raw_len.div_ceil(size);
                let heads = chunks.checked_mul(CHUNK as u64);
                if heads.and_then(|n| n.checked_add(self.pointer.raw_len)) == Some(self.pointer.stored_len) {
                    let skip = target / size;
                    walk.at += skip * (size + CHUNK as u64);
                    self.raw_at = skip * size;
                    head = walk.peek(CHUNK as u64)?;
                }
            }
            while target >= self.raw_at + head.raw_len as u64 {
                if head.flags & FLAG_LAST != 0 || head.raw_len == 0 || head.raw_len != self.chunk_size {
                    return Err(walk.error("the length of a value does not match its pointer"));
                }
                self.known.note(self.raw_at, walk.at, head.raw_len as u64);
                walk.at += head.len();
                self.raw_at += head.raw_len as u64;
                head = walk.peek(CHUNK as u64)?;
            }
            self.known.note(self.raw_at, walk.at, head.raw_len as u64);
            self.chunk_at = self.raw_at;
            let at = walk.at;
            walk.end = (at + head.len()).min(end);
            let mut output = VecOutput::new(&mut self.chunk);
            let checked = walk.next(Some(&mut output), &mut s.decompressor);
            output.finish();
            let chunk = checked?;
            chunk.check_flags(at == self.pointer.offset, walk.at == end).map_err(|e| vlog.error(e, at))?;
            let fits = match walk.at == end {
                true => self.raw_at + self.chunk.len() as u64 == self.pointer.raw_len,
                false => self.chunk.len() as u64 == u64::from(self.chunk_size),
            };
            if !fits {
                let text = "the lengths of a value's chunks contradict each other";
                return Err(vlog.error(Error::corruption(text), at));
            }
            self.stored_bytes_read += walk.at - at;
            self.at = walk.at;
            self.raw_at += self.chunk.len() as u64;
            Ok(())
        })
    }
}

/// Walks over the values of a log in file order.
pub struct VlogRecords {
    vlog: Arc<Vlog>,
    at: u64,
}

impl VlogRecords {
    /// The next value's pointer; its chunks are read and their checksums checked. `None` at the end.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`; the walk then cannot go on.
    pub fn next_pointer(&mut self) -> Result<Option<ValuePointer>> {
        self.next(None)
    }

    /// The next value's pointer, and the value in `out`, whose contents are replaced.
    ///
    /// # Errors
    /// As [`VlogRecords::next_pointer`].
    pub fn next_value(&mut self, out: &mut Vec<u8>) -> Result<Option<ValuePointer>> {
        self.next(Some(out))
    }

    /// After an error: moves on to the next place where a value begins, and returns it; `None` if there is none, and the
    /// walk is then at its end. A place is known by its chunk's checksum. O(bytes passed over), whatever they are.
    ///
    /// # Errors
    /// `Io`.
    pub fn skip_damage(&mut self) -> Result<Option<u64>> {
        let vlog = Arc::clone(&self.vlog);
        let end = vlog.data_end().min(vlog.file.len()?);
        let found = with_scratch(|s| {
            let mut walk = Walk::new(&vlog, &mut s.buf, self.at + 1, end);
            let mut sums = Sums::new(&*vlog.file);
            while walk.at + CHUNK as u64 <= end {
                let chunk = walk.header(WINDOW)?;
                let at = walk.at;
                // The cheap tests first: all places but one in millions fail them.
                if chunk.flags & !FLAG_LAST == FLAG_FIRST
                    && chunk.is_possible()
                    && chunk.len() <= end - at
                    && chunk.fits(&walk.need(chunk.len().min((CHUNK + RAW_LEN) as u64), WINDOW)?[CHUNK..])
                    && chunk.check_sum(sums.of(at + 4..at + chunk.len())?, vlog.file_id, at).is_ok()
                {
                    return Ok::<_, Error>(Some(at));
                }
                walk.at += 1;
            }
            Ok(None)
        })?;
        self.at = found.unwrap_or(vlog.data_end());
        Ok(found)
    }

    fn next(&mut self, out: Option<&mut Vec<u8>>) -> Result<Option<ValuePointer>> {
        let (offset, end) = (self.at, self.vlog.data_end());
        if offset == end {
            return Ok(None);
        }
        let vlog = Arc::clone(&self.vlog);
        with_scratch(|s| {
            let mut walk = Walk::new(&vlog, &mut s.buf, offset, end);
            let mut raw_len = 0;
            let mut output = out.map(VecOutput::new);
            loop {
                let at = walk.at;
                let chunk = walk.next(output.as_mut(), &mut s.decompressor)?;
                raw_len += chunk.raw_len as u64;
                let last = chunk.flags & FLAG_LAST != 0;
                chunk.check_flags(at == offset, last).map_err(|e| vlog.error(e, at))?;
                if last {
                    break;
                }
            }
            if let Some(output) = output {
                output.finish();
            }
            self.at = walk.at;
            let stored_len = walk.at - offset;
            Ok(Some(ValuePointer { file_id: vlog.file_id, offset, stored_len, raw_len }))
        })
    }
}
