//! Values of many chunks, written and read by several threads at once: the caller, and helpers that it starts for the value.
//! Helpers of the whole process are one fewer than it has processors, however many callers there are, and a caller
//! reads and writes alone where there are none; it then writes compressed chunks through its buffer. A file that must see the same operations in each run has none ([`File::allows_helpers`]).
//!
//! A writing thread compresses the next chunk that no other one has, waits until the chunks before it have their places, which
//! gives it its own, and writes it there. So there is one buffer for each thread. A reading thread takes the next chunk's
//! place out of its header, and decodes the chunk straight into the value.

use super::scratch::{Scratch, with_scratch};
use super::{CHUNK, Chunk, FLAG_FIRST, FLAG_LAST, ValuePointer};
use crate::compression::{Codec, Compressor, shrinks};
use crate::reader::fit;
use kingtide_base::checksum::{crc, crc_append, place};
use kingtide_base::options::Compression;
use kingtide_base::{Error, Result};
use kingtide_mem::zeroed::zeroed;
use kingtide_vfs::File;
use std::ops::Range;
use std::slice::ChunksMut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Values of fewer chunks are not worth a second thread.
const FROM_CHUNKS: usize = 4;
/// Chunks of fewer bytes are not worth a system call each.
pub(super) const LEAST_CHUNK: usize = 64 << 10;
/// Values of fewer bytes are read and written by one thread, through its buffer.
const LEAST_VALUE: usize = 512 << 10;
/// Bytes that a helper that compresses should have to do at least: starting and joining it costs some 50 us, and compressing a
/// mebibyte two milliseconds.
const TO_WRITE: usize = 1 << 20;
/// Bytes that a helper that decompresses should have to do at least.
const TO_READ: usize = 2 << 20;
/// Helpers of one value at most: one thread gives chunks their places, and more would wait for it.
const MOST_FOR_A_VALUE: usize = 7;
/// So much of the file is asked for in advance.
pub(super) const AHEAD: u64 = 8 << 20;
/// A value that is larger than so many times its stored bytes is read with less trust in its pointer.
const TRUSTED_RATIO: u64 = 16;

/// Whether a value is worth it, and may be read or written so.
pub(super) fn pays(file: &dyn File, len: usize, chunk_size: usize) -> bool {
    let (large, chunks) = (len >= LEAST_VALUE && chunk_size >= LEAST_CHUNK, len.div_ceil(chunk_size.max(1)));
    large && chunks >= FROM_CHUNKS && file.allows_helpers()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Helpers that a caller may start.
pub(super) struct Helpers(usize);

/// Those of all callers. Relaxed: a number that orders nothing.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

impl Helpers {
    /// None.
    pub fn none() -> Helpers {
        Helpers(0)
    }

    /// As many as are available to write a value of `len` bytes in chunks.
    pub fn to_write(len: usize, chunk_size: usize) -> Helpers {
        Helpers::take(len / TO_WRITE, len.div_ceil(chunk_size))
    }

    /// As many as are available to read one.
    fn to_read(len: usize, chunk_size: usize) -> Helpers {
        Helpers::take(len / TO_READ, len.div_ceil(chunk_size))
    }

    /// One thread for each of `shares`, the caller's among them, and no more than there are chunks.
    fn take(shares: usize, chunks: usize) -> Helpers {
        let most = kingtide_base::processors() - 1;
        let wanted = shares.min(chunks).saturating_sub(1).min(MOST_FOR_A_VALUE);
        let mut got = 0;
        let _ = AT_WORK.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at_work| {
            got = wanted.min(most.saturating_sub(at_work));
            Some(at_work + got)
        });
        Helpers(got)
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.0 > 0
    }

    /// Does `work` on the caller's thread and on so many others as can be started.
    fn run(self, work: impl Fn() + Sync) {
        run_with(self.0, work);
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// These threads end before this returns, whatever `work` does, and files without order only are worked on: see
/// [`File::allows_helpers`].
#[allow(clippy::disallowed_methods)]
fn run_with(helpers: usize, work: impl Fn() + Sync) {
    if helpers == 0 {
        return work();
    }
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            let thread = std::thread::Builder::new().name("kingtide-value".into());
            if kingtide_vfs::room_for_a_thread().is_err() || thread.spawn_scoped(scope, &work).is_err() {
                break; // the system has no more: the others do it all
            }
        }
        work();
    });
}

/// What a thread needs to write chunks. Kept by the writer for the next value.
pub(super) struct Spare {
    compressor: Compressor,
    /// Room for a chunk and its header.
    buf: Vec<u8>,
}

impl Spare {
    /// Bytes of the buffer.
    pub fn memory(&self) -> usize {
        self.buf.len()
    }
}

/// Where and how chunks are written.
pub(super) struct Chunks<'a> {
    pub file: &'a dyn File,
    pub file_id: u64,
    pub codec: Codec,
    pub chunk_size: usize,
    /// The value's first and last bytes are among them.
    pub first: bool,
    pub last: bool,
    /// Where the first goes.
    pub at: u64,
}

/// Whose turn it is to get a place.
struct Turns {
    state: Mutex<Turn>,
    moved: Condvar,
}

struct Turn {
    next: usize,
    at: u64,
    failed: Option<Error>,
}

impl Turns {
    /// The place of chunk `i`, of `len` bytes, once those before it have theirs; `None` after a failure.
    fn place(&self, i: usize, len: usize) -> Option<u64> {
        let mut turn = lock(&self.state);
        while turn.next != i && turn.failed.is_none() {
            turn = self.moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        if turn.failed.is_some() {
            return None;
        }
        let at = turn.at;
        turn.at += len as u64;
        turn.next += 1;
        self.moved.notify_all();
        Some(at)
    }

    fn fail(&self, e: Error) {
        lock(&self.state).failed.get_or_insert(e);
        self.moved.notify_all();
    }
}

/// Keeps other threads from waiting for one that panics.
struct Worker<'a>(&'a Turns);

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::corruption("a thread that wrote a value panicked"));
        }
    }
}

impl Chunks<'_> {
    /// Writes `raw`, all chunks of it full but the last. Returns where it ends.
    ///
    /// # Errors
    /// From the file, behind whose end there may be bytes then.
    pub fn write(&self, raw: &[u8], spares: &mut Vec<Spare>, helpers: Helpers) -> Result<u64> {
        let turns = Turns { state: Mutex::new(Turn { next: 0, at: self.at, failed: None }), moved: Condvar::new() };
        let (claimed, pool) = (AtomicUsize::new(0), Mutex::new(std::mem::take(spares)));
        helpers.run(|| {
            let _worker = Worker(&turns);
            let spare = lock(&pool).pop();
            let mut spare = spare.unwrap_or_else(|| Spare { compressor: Compressor::new(self.codec), buf: Vec::new() });
            if let Err(e) = self.write_some(raw, &claimed, &turns, &mut spare) {
                turns.fail(e);
            }
            lock(&pool).push(spare);
        });
        *spares = pool.into_inner().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match turn.failed {
            Some(e) => Err(e),
            None => Ok(turn.at),
        }
    }

    fn write_some(&self, raw: &[u8], claimed: &AtomicUsize, turns: &Turns, spare: &mut Spare) -> Result<()> {
        let chunks = raw.len().div_ceil(self.chunk_size);
        loop {
            let i = claimed.fetch_add(1, Ordering::Relaxed);
            if i >= chunks {
                return Ok(());
            }
            let from = i * self.chunk_size;
            let chunk = &raw[from..raw.len().min(from + self.chunk_size)];
            let first = if self.first && i == 0 { FLAG_FIRST } else { 0 };
            let last = if self.last && i + 1 == chunks { FLAG_LAST } else { 0 };
            let compressed = match self.codec.method != Compression::None && shrinks(chunk) {
                true => {
                    fit(&mut spare.buf, CHUNK + self.chunk_size)?;
                    spare.compressor.set_level(self.codec.for_value(chunk).level);
                    spare.compressor.compress(chunk, &mut spare.buf[CHUNK..CHUNK + chunk.len()])
                }
                false => None,
            };
            let (method, n) = compressed.map_or((Compression::None, chunk.len()), |n| (self.codec.method, n));
            let (raw_len, stored_len) = (chunk.len() as u32, n as u32);
            let mut head = Chunk { crc: 0, method: method as u8, flags: first | last, raw_len, stored_len };
            let body = if compressed.is_some() { &spare.buf[CHUNK..CHUNK + n] } else { chunk };
            let sum = head.sum(body);
            let Some(at) = turns.place(i, CHUNK + n) else { return Ok(()) };
            head.crc = sum ^ place(self.file_id, at);
            match compressed {
                Some(n) => {
                    spare.buf[..CHUNK].copy_from_slice(&head.encode());
                    self.file.write_at(&spare.buf[..CHUNK + n], at)?;
                }
                None => {
                    self.file.write_at(&head.encode(), at)?;
                    self.file.write_at(chunk, at + CHUNK as u64)?;
                }
            }
        }
    }
}

/// What is left of a value to read.
struct Front<'a> {
    at: u64,
    end: u64,
    rest: ChunksMut<'a, u8>,
    failed: Option<Error>,
    /// The system was asked for the file up to here.
    asked: u64,
}

/// A chunk to read, and where it goes.
struct Claim<'a> {
    at: u64,
    chunk: Chunk,
    to: &'a mut [u8],
    /// What to ask the system for.
    ask: Range<u64>,
}

impl<'a> Front<'a> {
    /// The next chunk; `None` at the end.
    fn claim(&mut self, source: &Source<'_>) -> Result<Option<Claim<'a>>> {
        if self.at == self.end {
            return Ok(None);
        }
        let at = self.at;
        let mut head = [0; CHUNK];
        let is_there = self.end - at >= CHUNK as u64;
        if is_there {
            source.file.read_exact_at(&mut head, at)?;
        }
        let chunk = Chunk::decode(&head);
        if !chunk.is_possible() {
            return Err(source.error(Error::corruption("a chunk has a length of more than 16 MiB"), at));
        }
        if !is_there || chunk.len() > self.end - at {
            return Err(source.error(Error::corruption("a value extends beyond its end"), at));
        }
        let to = self.rest.next().filter(|to| to.len() == chunk.raw_len as usize);
        let to = to.ok_or_else(|| source.error(Error::corruption("a value's lengths contradict each other"), at))?;
        self.at += chunk.len();
        let mut ask = 0..0;
        if self.asked < self.end && self.asked < self.at + AHEAD / 2 {
            ask = self.asked.max(self.at)..self.end.min(self.at + AHEAD);
            self.asked = ask.end;
        }
        Ok(Some(Claim { at, chunk, to, ask }))
    }
}

/// A value log to read from.
pub(super) struct Source<'a> {
    pub file: &'a dyn File,
    pub file_id: u64,
}

impl Source<'_> {
    #[cold]
    fn error(&self, e: Error, offset: u64) -> Error {
        e.at_path(self.file.path()).at_offset(offset)
    }

    /// Reads a value of many chunks, whose pointer was checked. False: it is to be read in the other way, which needs no vector of zeros
    /// to begin with, as threads that fill parts of it do.
    pub fn read(&self, p: &ValuePointer, out: &mut Vec<u8>) -> Result<bool> {
        if p.raw_len < 2 * TO_READ as u64 {
            return Ok(false);
        }
        let Some(size) = self.chunk_size(p)? else { return Ok(false) };
        self.read_chunks(p, size, out, Helpers::to_read(p.raw_len as usize, size))?;
        Ok(true)
    }

    /// The bytes of each chunk but the last, if the value is to be read here.
    fn chunk_size(&self, p: &ValuePointer) -> Result<Option<usize>> {
        if p.raw_len > p.stored_len.saturating_mul(TRUSTED_RATIO) || !self.file.allows_helpers() {
            return Ok(None);
        }
        let mut head = [0; CHUNK];
        self.file.read_exact_at(&mut head, p.offset)?;
        let size = Chunk::decode(&head).raw_len as usize;
        Ok((size > 0 && pays(self.file, p.raw_len as usize, size)).then_some(size))
    }

    fn read_chunks(&self, p: &ValuePointer, size: usize, out: &mut Vec<u8>, helpers: Helpers) -> Result<()> {
        let len = p.raw_len as usize;
        if out.len() < len {
            *out = Vec::new(); // before the larger one is made
            *out = zeroed(len, "a value")?;
        }
        out.truncate(len);
        self.fill(p, size, out, helpers)
    }

    fn fill(&self, p: &ValuePointer, size: usize, out: &mut [u8], helpers: Helpers) -> Result<()> {
        let end = p.offset + p.stored_len;
        let rest = out.chunks_mut(size);
        let front = Mutex::new(Front { at: p.offset, end, rest, failed: None, asked: p.offset });
        helpers.run(|| {
            let failed = with_scratch(|s| self.read_some(p, &front, s)).err();
            if let Some(e) = failed {
                lock(&front).failed.get_or_insert(e);
            }
        });
        let mut front = front.into_inner().unwrap_or_else(PoisonError::into_inner);
        match front.failed {
            Some(e) => Err(e),
            None if front.rest.next().is_some() => {
                let text = "the length of a value does not match its pointer";
                Err(self.error(Error::corruption(text), p.offset))
            }
            None => Ok(()),
        }
    }

    fn read_some(&self, p: &ValuePointer, front: &Mutex<Front<'_>>, s: &mut Scratch) -> Result<()> {
        let end = p.offset + p.stored_len;
        loop {
            let claim = {
                let mut front = lock(front);
                match front.failed.is_some() {
                    true => None,
                    false => front.claim(self)?,
                }
            };
            let Some(Claim { at, chunk, to, ask }) = claim else { return Ok(()) };
            if !ask.is_empty() {
                self.file.prefetch(ask.start, ask.end - ask.start);
            }
            self.read_chunk(at, &chunk, to, s).map_err(|e| self.error(e, at))?;
            chunk.check_flags(at == p.offset, at + chunk.len() == end).map_err(|e| self.error(e, p.offset))?;
        }
    }

    /// Reads, checks and decodes one chunk whose header is known.
    fn read_chunk(&self, at: u64, chunk: &Chunk, to: &mut [u8], s: &mut Scratch) -> Result<()> {
        let n = chunk.stored_len as usize;
        let head = crc(&chunk.encode()[4..]);
        if chunk.method == Compression::None as u8 {
            if n != to.len() {
                return Err(Error::corruption("a value's lengths contradict each other"));
            }
            self.file.read_exact_at(to, at + CHUNK as u64)?;
            return chunk.check_sum(crc_append(head, to), self.file_id, at).map(|_| ());
        }
        fit(&mut s.buf, n)?;
        let body = &mut s.buf[..n];
        self.file.read_exact_at(body, at + CHUNK as u64)?;
        let method = chunk.check_sum(crc_append(head, body), self.file_id, at)?;
        if s.decompressor.room(method, body, None)? != to.len() {
            return Err(Error::corruption("a value's lengths contradict each other"));
        }
        s.decompressor.decompress(method, body, to, None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Vlog, VlogInfo, VlogWriter};
    use super::*;
    use crate::frame::PIECE;
    use kingtide_base::ErrorKind;
    use kingtide_base::rng::Rng;
    use kingtide_vfs::{Fs, MemFs, OpenMode};
    use std::path::Path;
    use std::sync::Arc;

    const ID: u64 = 9;
    const SIZE: usize = 4096;

    /// A file in memory that several threads may work on. Writes past the second field fail; the third lists where writes begin and end.
    #[derive(Debug)]
    struct Shared(Arc<dyn File>, AtomicUsize, Mutex<Vec<Range<u64>>>);

    impl File for Shared {
        fn path(&self) -> &Path {
            self.0.path()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
            self.0.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
            if offset as usize + data.len() > self.1.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::NoSpace, "full").at_path(self.path()));
            }
            lock(&self.2).push(offset..offset + data.len() as u64);
            self.0.write_at(data, offset)
        }
        fn sync_data(&self) -> Result<()> {
            self.0.sync_data()
        }
        fn sync_all(&self) -> Result<()> {
            self.0.sync_all()
        }
        fn len(&self) -> Result<u64> {
            self.0.len()
        }
        fn truncate(&self, len: u64) -> Result<()> {
            self.0.truncate(len)
        }
        fn allocate(&self, offset: u64, len: u64) -> Result<()> {
            self.0.allocate(offset, len)
        }
        fn allows_helpers(&self) -> bool {
            true
        }
    }

    impl Helpers {
        fn exactly(n: usize) -> Helpers {
            AT_WORK.fetch_add(n, Ordering::Relaxed);
            Helpers(n)
        }
    }

    fn plain() -> Arc<dyn File> {
        MemFs::new().open("v".as_ref(), OpenMode::Create).unwrap()
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared(plain(), AtomicUsize::new(usize::MAX), Mutex::default()))
    }

    /// Parts of it do not compress.
    fn value(len: usize) -> Vec<u8> {
        let (mut bytes, mut rng) = (b"tide and ebb ".repeat(len / 13 + 1), Rng::new(5));
        bytes.truncate(len);
        bytes.chunks_mut(SIZE).step_by(3).for_each(|chunk| rng.fill(chunk));
        bytes
    }

    fn bytes_of(file: &dyn File) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn finish(mut w: VlogWriter, values: &[&[u8]]) -> (Vec<ValuePointer>, VlogInfo) {
        let pointers = values.iter().map(|v| w.append(v).unwrap()).collect();
        (pointers, w.finish().unwrap())
    }

    /// However many threads there are, the file's bytes are those that one thread writes.
    #[test]
    fn several_threads_write_and_read_what_one_does() {
        let bytes = value(40 * SIZE + 77);
        for method in [Compression::Lz4, Compression::Zstd, Compression::Snappy, Compression::None] {
            let want = plain();
            let (pointers, info) = finish(VlogWriter::new(want.clone(), ID, method, SIZE), &[b"small", &bytes, b"end"]);
            let want = bytes_of(&*want);
            let wide = shared();
            finish(VlogWriter::new(wide.clone(), ID, method, SIZE), &[b"small", &bytes, b"end"]);
            assert!(bytes_of(&*wide) == want, "{method}: a writer");

            let by_pieces = shared();
            let mut w = VlogWriter::new(by_pieces.clone(), ID, method, SIZE);
            w.append(b"small").unwrap();
            w.begin().unwrap();
            bytes.chunks(SIZE * 3 + 1).for_each(|piece| w.extend(piece).unwrap());
            assert_eq!(w.end().unwrap(), pointers[1]);
            w.flush().unwrap();
            assert!(w.memory() > 0);
            w.release_memory();
            assert_eq!(w.memory(), 0, "a log may wait long for its next value");
            w.append(b"end").unwrap();
            assert_eq!(w.finish().unwrap(), info);
            assert!(bytes_of(&*by_pieces) == want, "{method}: in pieces");

            for helpers in [0, 1, 5] {
                let file = shared();
                let p = pointers[1];
                let (first, last) = (true, true);
                let chunks = Chunks {
                    file: &*file,
                    file_id: ID,
                    codec: method.into(),
                    chunk_size: SIZE,
                    first,
                    last,
                    at: p.offset,
                };
                let mut spares = Vec::new();
                let end = chunks.write(&bytes, &mut spares, Helpers::exactly(helpers)).unwrap();
                assert_eq!(end, p.offset + p.stored_len, "{method}, {helpers} helpers");
                assert!(bytes_of(&*file)[p.offset as usize..] == want[p.offset as usize..end as usize]);
                assert!(spares.len() <= helpers + 1 && !spares.is_empty());
                let source = Source { file: &*file, file_id: ID };
                let mut out = vec![7; 100]; // what it holds is replaced
                source.read_chunks(&p, SIZE, &mut out, Helpers::exactly(helpers)).unwrap();
                assert!(out == bytes, "{method}, {helpers} helpers");
                out.extend_from_slice(b"more");
                source.read_chunks(&p, SIZE, &mut out, Helpers::exactly(helpers)).unwrap();
                assert!(out == bytes, "{method}: into the place of a longer one");
                out.fill(9);
                source.fill(&p, SIZE, &mut out, Helpers::exactly(helpers)).unwrap();
                assert!(out == bytes, "{method}: into a slice");
            }
        }
    }

    /// Compressed chunks that one thread writes are written in pieces that end at multiples of [`PIECE`], by any kind of writer.
    #[test]
    fn pieces_end_where_folios_do() {
        let chunk_size = 256 << 10;
        let (mut bytes, mut rng) = (vec![7; TO_WRITE], Rng::new(6)); // no helper for so few bytes
        bytes.chunks_mut(64).for_each(|piece| rng.fill(&mut piece[..32]));
        for (direct, values) in [(true, 3), (false, 9)] {
            let file = shared();
            let mut w = match direct {
                true => VlogWriter::new_direct(file.clone(), ID, Compression::Lz4, chunk_size),
                false => VlogWriter::new(file.clone(), ID, Compression::Lz4, chunk_size),
            };
            let mut pointers = Vec::new();
            for i in 0..values {
                lock(&file.2).clear();
                bytes[0] = i;
                pointers.push(w.append(&bytes).unwrap());
                if direct {
                    w.flush().unwrap();
                    assert!(w.memory() < 400 << 10, "a log of its own has a buffer of {} bytes", w.memory());
                }
                let mut writes = std::mem::take(&mut *lock(&file.2));
                writes.retain(|w| w.start > 0 || !direct); // the file's header, for which the buffer was small
                assert!(writes.windows(2).all(|w| w[0].end == w[1].start));
                let before_last = &writes[..writes.len() - usize::from(direct)];
                assert!(!direct || !before_last.is_empty(), "one write for all of it");
                assert!(before_last.iter().all(|w| w.end % PIECE as u64 == 0), "{before_last:?}");
            }
            w.finish().unwrap();
            let vlog = Vlog::open(file, ID).unwrap();
            let mut out = Vec::new();
            for (i, p) in pointers.iter().enumerate() {
                vlog.read(p, &mut out).unwrap();
                bytes[0] = i as u8;
                assert!(out == bytes, "value {i}");
            }
        }
    }

    #[test]
    fn a_failed_write_ends_all_threads_and_is_undone() {
        let bytes = value(30 * SIZE);
        let file = shared();
        let mut w = VlogWriter::new_direct(file.clone(), ID, Compression::Lz4, SIZE);
        let small = w.append(b"small").unwrap();
        w.flush().unwrap();
        let mark = w.mark();
        for full in [SIZE, 5 * SIZE, 9 * SIZE] {
            file.1.store(full, Ordering::Relaxed);
            assert_eq!(w.append(&bytes).unwrap_err().kind(), ErrorKind::NoSpace);
            w.rewind(mark).unwrap();
            let (first, last, at) = (true, true, w.written());
            let chunks =
                Chunks { file: &*file, file_id: ID, codec: Compression::Lz4.into(), chunk_size: SIZE, first, last, at };
            let failed = chunks.write(&bytes, &mut Vec::new(), Helpers::exactly(4)).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::NoSpace);
            w.rewind(mark).unwrap();
        }
        file.1.store(usize::MAX, Ordering::Relaxed);
        let large = w.append(&bytes).unwrap();
        w.finish().unwrap();
        let vlog = Vlog::open(file, ID).unwrap();
        let mut out = Vec::new();
        for (p, want) in [(small, &b"small"[..]), (large, &bytes[..])] {
            vlog.read(&p, &mut out).unwrap();
            assert!(out == want);
        }
        vlog.verify().unwrap();
    }

    /// A flipped byte in any chunk is found, and the error names its place.
    #[test]
    fn damage_is_found_by_all_threads() {
        let bytes = value(6 * SIZE + 9);
        let file = shared();
        let (pointers, _) = finish(VlogWriter::new(file.clone(), ID, Compression::Lz4, SIZE), &[&bytes]);
        let (p, whole) = (pointers[0], bytes_of(&*file));
        let mut rng = Rng::new(11);
        for at in (p.offset..p.offset + p.stored_len).step_by(7).chain(p.offset..p.offset + CHUNK as u64) {
            file.0.write_at(&[whole[at as usize] ^ 1 << rng.below(8)], at).unwrap();
            let source = Source { file: &*file, file_id: ID };
            let e = source.read_chunks(&p, SIZE, &mut Vec::new(), Helpers::exactly(2)).unwrap_err();
            assert!(e.kind() == ErrorKind::Corruption && e.path().is_some() && e.offset().is_some(), "{at}: {e}");
            file.0.write_at(&whole[at as usize..][..1], at).unwrap();
        }
        let source = Source { file: &*file, file_id: ID };
        for wrong in [
            ValuePointer { raw_len: p.raw_len - 1, ..p },
            ValuePointer { raw_len: p.raw_len + SIZE as u64, ..p },
            ValuePointer { stored_len: p.stored_len - 5, ..p },
        ] {
            assert!(source.read_chunks(&wrong, SIZE, &mut Vec::new(), Helpers::exactly(2)).is_err(), "{wrong:?}");
            let mut slice = vec![0; wrong.raw_len as usize];
            assert!(source.fill(&wrong, SIZE, &mut slice, Helpers::exactly(2)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_error_of_an_impossible_length_says_so() {
        let file = shared();
        let (pointers, _) = finish(VlogWriter::new(file.clone(), ID, Compression::None, SIZE), &[&value(6 * SIZE)]);
        let (p, second) = (pointers[0], pointers[0].offset + (CHUNK + SIZE) as u64);
        let source = Source { file: &*file, file_id: ID };
        for (len, reason) in
            [(16 << 20, "a value extends beyond its end"), ((16 << 20) + 1, "a chunk has a length of more than 16 MiB")]
        {
            file.0.write_at(&u32::to_le_bytes(len), second + 10).unwrap();
            let e = source.read_chunks(&p, SIZE, &mut Vec::new(), Helpers::none()).unwrap_err();
            assert_eq!((e.message(), e.offset()), (reason, Some(second)), "{len}");
        }
    }

    #[test]
    fn helpers_are_shared_out() {
        assert_eq!(Helpers::to_write(TO_WRITE, LEAST_CHUNK).0, 0, "there is nothing to help with");
        assert_eq!(Helpers::to_write(64 << 20, 64 << 20).0, 0, "one chunk is one thread's");
        let all: Vec<Helpers> = (0..100).map(|_| Helpers::to_write(64 << 20, LEAST_CHUNK)).collect();
        let most = kingtide_base::processors() - 1;
        assert!(all.iter().map(|h| h.0).sum::<usize>() <= most);
    }
}
