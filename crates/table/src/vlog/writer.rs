//! Writes a value log.

use super::wide::{Chunks, Helpers, LEAST_CHUNK, Spare, pays};
use super::{CHUNK, Chunk, FLAG_FIRST, FLAG_LAST, MAX_CHUNK, ValuePointer, encode_footer, encode_header};
use crate::compression::{Codec, Compressor, shrinks};
use crate::frame::Output;
use crate::packed::Packed;
use kingtide_base::checksum::place;
use kingtide_base::memory::{append, reserve};
use kingtide_base::options::Compression;
use kingtide_base::{Error, Result};
use kingtide_vfs::File;
use std::sync::Arc;

const BUFFER: usize = 1 << 20;
const SMALL_BUFFER: usize = 4 << 10;
/// Values of as many bytes are compressed by several threads even if their first chunk does not look as if it shrank.
const WORTH_TRYING: usize = 16 << 20;
/// A value that comes in pieces is compressed by several threads in portions of so many bytes.
const PORTION: usize = 2 << 20;

/// What a finished value log holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlogInfo {
    /// Bytes of the file.
    pub file_size: u64,
    /// Values.
    pub values: u64,
    /// Bytes of the values' chunks, headers included.
    pub stored_bytes: u64,
    /// Bytes of the values.
    pub raw_bytes: u64,
}

/// A place in a value log that is being written, to which [`VlogWriter::rewind`] returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct VlogMark {
    position: u64,
    info: VlogInfo,
}

/// A value to append.
#[derive(Clone, Copy)]
pub enum VlogValue<'a> {
    /// As it is.
    Plain(&'a [u8]),
    /// Compressed before.
    Packed(Packed<'a>),
}

impl VlogValue<'_> {
    /// Bytes that it takes in memory, and about those that it will take in the file.
    pub fn bytes(&self) -> usize {
        match self {
            VlogValue::Plain(raw) => raw.len(),
            VlogValue::Packed(packed) => packed.payload.len(),
        }
    }
}

/// Chunks that lie beside one another in the file and nowhere in memory.
#[derive(Default)]
struct Gathered<'a> {
    heads: Vec<[u8; CHUNK]>,
    bodies: Vec<&'a [u8]>,
    /// Of all of them, headers included.
    stored_bytes: u64,
    raw_bytes: u64,
}

/// A value that is being appended in pieces.
struct Partial {
    offset: u64,
    raw_len: u64,
    /// What is in no chunk yet: [`VlogWriter::portion`] bytes at most. So many wait for the next byte, since the last chunk is
    /// marked.
    pending: Vec<u8>,
    /// Whether a chunk of it was written.
    begun: bool,
}

/// Appends values to a value log.
pub struct VlogWriter {
    out: Output,
    file_id: u64,
    codec: Codec,
    chunk_size: usize,
    compressor: Compressor,
    info: VlogInfo,
    /// Set once the header is in the buffer.
    started: bool,
    /// Set once the footer is in the buffer, by [`VlogWriter::seal`].
    sealed: bool,
    /// Set between [`VlogWriter::begin`] and [`VlogWriter::end`].
    partial: Option<Partial>,
    /// Bytes of a value in pieces that are written at once: whole chunks.
    portion: usize,
    /// What threads that compress need.
    spares: Vec<Spare>,
}

impl VlogWriter {
    /// Writes to an empty file, in chunks of `chunk_size` raw bytes (at least 1).
    pub fn new(file: Arc<dyn File>, file_id: u64, codec: impl Into<Codec>, chunk_size: usize) -> VlogWriter {
        let codec = codec.into();
        let chunk_size = chunk_size.clamp(1, MAX_CHUNK as usize);
        let whole = PORTION / chunk_size * chunk_size;
        let portion =
            if codec.method != Compression::None && pays(&*file, whole, chunk_size) { whole } else { chunk_size };
        VlogWriter {
            out: Output::new(file, BUFFER),
            file_id,
            codec,
            chunk_size,
            portion,
            spares: Vec::new(),
            compressor: Compressor::new(codec),
            info: VlogInfo::default(),
            started: false,
            sealed: false,
            partial: None,
        }
    }

    /// As [`VlogWriter::new`], for a log whose values are handed to the system one by one ([`VlogWriter::flush`]): it
    /// buffers no more than the chunk that is being written, or, with compressed values of several chunks, that and the 128 KiB to which
    /// writes are aligned.
    pub fn new_direct(file: Arc<dyn File>, file_id: u64, codec: impl Into<Codec>, chunk_size: usize) -> VlogWriter {
        let mut writer = VlogWriter::new(file.clone(), file_id, codec, chunk_size);
        writer.out = Output::new(file, SMALL_BUFFER);
        writer
    }

    /// Appends a value. One of many chunks is compressed by several threads, without a buffer, where there are processors for them.
    ///
    /// # Errors
    /// `Io` and `NoSpace` from the file; the value then has no place, but earlier ones keep theirs.
    pub fn append(&mut self, value: &[u8]) -> Result<ValuePointer> {
        self.no_partial()?;
        self.start()?;
        let offset = self.out.position();
        self.append_chunks(value, true, true)?;
        let stored_len = self.out.position() - offset;
        self.info.values += 1;
        self.info.stored_bytes += stored_len;
        self.info.raw_bytes += value.len() as u64;
        Ok(ValuePointer { file_id: self.file_id, offset, stored_len, raw_len: value.len() as u64 })
    }

    /// Appends a value that was compressed before, as it is: one chunk.
    ///
    /// # Errors
    /// As [`VlogWriter::append`].
    pub fn append_packed(&mut self, value: Packed<'_>) -> Result<ValuePointer> {
        self.no_partial()?;
        self.start()?;
        let n = value.payload.len();
        self.out.room(CHUNK + n)?;
        let offset = self.out.position();
        let room = self.out.room(CHUNK + n)?;
        room[CHUNK..].copy_from_slice(value.payload);
        let (raw_len, stored_len) = (value.raw_len() as u32, n as u32);
        let flags = FLAG_FIRST | FLAG_LAST;
        Chunk { crc: 0, method: value.method as u8, flags, raw_len, stored_len }.seal(room, self.file_id, offset);
        self.out.advance(CHUNK + n);
        let stored_len = (CHUNK + n) as u64;
        self.info.values += 1;
        self.info.stored_bytes += stored_len;
        self.info.raw_bytes += raw_len as u64;
        Ok(ValuePointer { file_id: self.file_id, offset, stored_len, raw_len: raw_len as u64 })
    }

    /// Appends values and hands them to the system. Those that are stored as they are, because they were compressed before or do
    /// not shrink, are written from where the caller has them, all that lie beside one another in one call.
    ///
    /// # Errors
    /// As [`VlogWriter::append`]. [`VlogWriter::rewind`] then gives up those values that were written.
    pub fn append_all(&mut self, values: &[VlogValue<'_>]) -> Result<Vec<ValuePointer>> {
        self.no_partial()?;
        self.start()?;
        let mut pointers = Vec::new();
        reserve(&mut pointers, values.len(), "pointers to values")?;
        let mut gathered = Gathered::default();
        for value in values {
            let (method, raw_len, body) = match value {
                VlogValue::Packed(packed) => (packed.method, packed.raw_len(), packed.payload),
                VlogValue::Plain(raw) if self.stores_as_it_is(raw) => (Compression::None, raw.len(), *raw),
                VlogValue::Plain(raw) => {
                    self.write_gathered(&mut gathered)?;
                    pointers.push(self.append(raw)?);
                    continue;
                }
            };
            pointers.push(self.gather(&mut gathered, (method, raw_len), body)?);
        }
        self.write_gathered(&mut gathered)?;
        self.out.flush()?;
        Ok(pointers)
    }

    /// Whether a value is stored as one chunk, uncompressed.
    fn stores_as_it_is(&self, raw: &[u8]) -> bool {
        raw.len() <= self.chunk_size && (self.codec.method == Compression::None || !shrinks(raw))
    }

    /// Adds a value of one chunk to those that are to be written.
    fn gather<'v>(
        &mut self,
        gathered: &mut Gathered<'v>,
        (method, raw_len): (Compression, usize),
        body: &'v [u8],
    ) -> Result<ValuePointer> {
        reserve(&mut gathered.heads, 1, "headers of values")?;
        reserve(&mut gathered.bodies, 1, "headers of values")?;
        let offset = self.out.position() + gathered.stored_bytes;
        let flags = FLAG_FIRST | FLAG_LAST;
        let (raw_len, stored_len) = (raw_len as u32, body.len() as u32);
        let mut head = Chunk { crc: 0, method: method as u8, flags, raw_len, stored_len };
        head.crc = head.sum(body) ^ place(self.file_id, offset);
        gathered.heads.push(head.encode());
        gathered.bodies.push(body);
        gathered.stored_bytes += head.len();
        gathered.raw_bytes += u64::from(raw_len);
        Ok(ValuePointer { file_id: self.file_id, offset, stored_len: head.len(), raw_len: u64::from(raw_len) })
    }

    /// Writes what was gathered, behind what is buffered.
    fn write_gathered(&mut self, gathered: &mut Gathered<'_>) -> Result<()> {
        if gathered.heads.is_empty() {
            return Ok(());
        }
        self.out.flush()?;
        let mut parts: Vec<&[u8]> = Vec::new();
        reserve(&mut parts, 2 * gathered.heads.len(), "headers of values")?;
        for (head, body) in gathered.heads.iter().zip(&gathered.bodies) {
            parts.extend([&head[..], body]);
        }
        self.out.file().write_parts_at(&parts, self.out.position())?;
        self.out.skip(gathered.stored_bytes);
        self.info.values += gathered.heads.len() as u64;
        self.info.stored_bytes += gathered.stored_bytes;
        self.info.raw_bytes += gathered.raw_bytes;
        *gathered = Gathered::default();
        Ok(())
    }

    /// Begins a value whose bytes come in pieces, by [`VlogWriter::extend`], until [`VlogWriter::end`]. It is stored as
    /// [`VlogWriter::append`] would store it, and no more than 2 MiB or one chunk of it are held in memory. No other value can
    /// be appended meanwhile.
    ///
    /// # Errors
    /// As [`VlogWriter::append`]; `InvalidArgument` while another value is being appended.
    pub fn begin(&mut self) -> Result<()> {
        self.no_partial()?;
        self.start()?;
        self.partial = Some(Partial { offset: self.out.position(), raw_len: 0, pending: Vec::new(), begun: false });
        Ok(())
    }

    /// Appends bytes to the value that was begun.
    ///
    /// # Errors
    /// As [`VlogWriter::append`], after which [`VlogWriter::rewind`] gives the value up; `InvalidArgument` when none was
    /// begun.
    pub fn extend(&mut self, mut bytes: &[u8]) -> Result<()> {
        let Some(mut partial) = self.partial.take() else { return Err(none_begun()) };
        partial.raw_len += bytes.len() as u64;
        // All chunks but the last are full, and which one is the last shows when there are no more bytes.
        while partial.pending.len() + bytes.len() > self.portion {
            if partial.pending.is_empty() {
                let (portion, rest) = bytes.split_at(self.portion);
                self.append_chunks(portion, !partial.begun, false)?;
                bytes = rest;
            } else {
                let (filling, rest) = bytes.split_at(self.portion - partial.pending.len());
                append(&mut partial.pending, filling, "a chunk of a value")?;
                self.append_chunks(&partial.pending, !partial.begun, false)?;
                partial.pending.clear();
                bytes = rest;
            }
            partial.begun = true;
        }
        append(&mut partial.pending, bytes, "a chunk of a value")?;
        self.partial = Some(partial);
        Ok(())
    }

    /// Ends the value that was begun, which may be empty.
    ///
    /// # Errors
    /// As [`VlogWriter::extend`].
    pub fn end(&mut self) -> Result<ValuePointer> {
        let Some(partial) = self.partial.take() else { return Err(none_begun()) };
        self.append_chunks(&partial.pending, !partial.begun, true)?;
        let Partial { offset, raw_len, .. } = partial;
        let stored_len = self.out.position() - offset;
        self.info.values += 1;
        self.info.stored_bytes += stored_len;
        self.info.raw_bytes += raw_len;
        Ok(ValuePointer { file_id: self.file_id, offset, stored_len, raw_len })
    }

    fn no_partial(&self) -> Result<()> {
        match self.partial {
            None => Ok(()),
            Some(_) => Err(Error::invalid("another value of this value log was begun and is not finished")),
        }
    }

    fn start(&mut self) -> Result<()> {
        if !self.started {
            self.out.append(&encode_header(self.file_id))?;
            self.started = true;
        }
        Ok(())
    }

    /// Appends `raw` in chunks, all of them full but the last. They are the `first` and `last` of their value.
    fn append_chunks(&mut self, raw: &[u8], first: bool, last: bool) -> Result<()> {
        if pays(&**self.out.file(), raw.len(), self.chunk_size) {
            let compresses = self.codec.method != Compression::None
                && (raw.len() >= WORTH_TRYING || shrinks(&raw[..self.chunk_size.min(raw.len())]));
            let helpers = match compresses {
                true => Helpers::to_write(raw.len(), self.chunk_size),
                false => Helpers::none(), // writes to one file are done one by one
            };
            // Compressed chunks go through the buffer if this thread alone writes them: larger writes, which end where folios do.
            if !compresses || helpers.any() {
                return self.append_wide(raw, (first, last), helpers);
            }
        }
        let chunks = raw.len().div_ceil(self.chunk_size).max(1);
        if chunks > 1 && self.chunk_size >= LEAST_CHUNK {
            self.out.reserve_pieces(CHUNK + self.chunk_size)?;
        }
        for i in 0..chunks {
            let from = i * self.chunk_size;
            let chunk = &raw[from..raw.len().min(from + self.chunk_size)];
            let mut flags = if first && i == 0 { FLAG_FIRST } else { 0 };
            if last && i + 1 == chunks {
                flags |= FLAG_LAST;
            }
            self.append_chunk(chunk, flags)?;
        }
        Ok(())
    }

    fn append_wide(&mut self, raw: &[u8], (first, last): (bool, bool), helpers: Helpers) -> Result<()> {
        self.out.flush()?;
        let at = self.out.position();
        let file = self.out.file().clone();
        let (file_id, codec, chunk_size) = (self.file_id, self.codec, self.chunk_size);
        let chunks = Chunks { file: &*file, file_id, codec, chunk_size, first, last, at };
        let end = chunks.write(raw, &mut self.spares, helpers)?;
        self.spares.truncate(1); // what other threads used is not kept: there may be hundreds of logs
        self.out.skip(end - at);
        Ok(())
    }

    fn append_chunk(&mut self, raw: &[u8], flags: u8) -> Result<()> {
        let try_it = self.codec.method != Compression::None && shrinks(raw);
        self.out.room(CHUNK + raw.len())?;
        let offset = self.out.position();
        let room = self.out.room(CHUNK + raw.len())?;
        let body = &mut room[CHUNK..];
        let compressed = if try_it {
            self.compressor.set_level(self.codec.for_value(raw).level);
            self.compressor.compress(raw, body)
        } else {
            None
        };
        let (n, method) = match compressed {
            Some(n) => (n, self.codec.method),
            None => {
                body.copy_from_slice(raw);
                (raw.len(), Compression::None)
            }
        };
        let mut chunk = Chunk { crc: 0, method: method as u8, flags, raw_len: raw.len() as u32, stored_len: n as u32 };
        chunk.seal(&mut room[..CHUNK + n], self.file_id, offset);
        self.out.advance(CHUNK + n);
        Ok(())
    }

    /// The end of what was appended so far.
    pub fn mark(&self) -> VlogMark {
        VlogMark { position: self.out.position(), info: self.info }
    }

    /// Gives up what was appended since `mark` was taken, or a footer that could not be written. The writer is then as it
    /// was, even if writing failed halfway.
    ///
    /// # Errors
    /// `Io` from cutting the file. The log is of no further use then.
    pub fn rewind(&mut self, mark: VlogMark) -> Result<()> {
        self.out.rewind(mark.position)?;
        self.info = mark.info;
        self.started = mark.position > 0;
        self.sealed = false;
        self.partial = None;
        Ok(())
    }

    /// Bytes of its buffers.
    pub fn memory(&self) -> u64 {
        (self.out.memory() + self.spares.iter().map(Spare::memory).sum::<usize>()) as u64
    }

    /// Releases the memory that only appending needs: the buffers, once their bytes were handed to the system, and the compressor. A value log
    /// may wait long for its flush, among hundreds of others. A further append allocates it again.
    pub fn release_memory(&mut self) {
        self.out.release_buffer();
        self.spares = Vec::new();
        self.compressor = Compressor::new(self.codec);
    }

    /// Bytes written, buffered ones included.
    pub fn written(&self) -> u64 {
        self.out.position()
    }

    /// Hands what is buffered to the system: what was appended so far then survives the process.
    ///
    /// # Errors
    /// `Io` and `NoSpace` from the file. Its end may be torn then, which [`VlogWriter::rewind`] mends.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }

    /// Writes the footer, and hands everything to the system. The caller makes it durable. Nothing can be appended any
    /// more; a second call changes nothing.
    ///
    /// # Errors
    /// As [`VlogWriter::flush`], but that a second call may succeed.
    pub fn seal(&mut self) -> Result<VlogInfo> {
        if !self.sealed {
            self.start()?;
            self.out.append(&encode_footer(&self.info, self.file_id))?;
            self.info.file_size = self.out.position();
            self.sealed = true;
        }
        self.out.flush()?;
        self.release_memory();
        Ok(self.info)
    }

    /// Values appended.
    pub fn values(&self) -> u64 {
        self.info.values
    }

    /// Writes the footer and makes the bytes durable. The caller syncs the directory.
    ///
    /// # Errors
    /// `Io` and `NoSpace` from the file.
    pub fn finish(mut self) -> Result<VlogInfo> {
        self.start()?;
        self.out.append(&encode_footer(&self.info, self.file_id))?;
        self.info.file_size = self.out.finish()?;
        Ok(self.info)
    }
}

#[cold]
fn none_begun() -> Error {
    Error::invalid("no value of this value log was begun")
}

#[cfg(test)]
mod tests {
    use super::super::Vlog;
    use super::*;
    use crate::packed::pack;
    use kingtide_base::ErrorKind;
    use kingtide_base::rng::Rng;
    use kingtide_vfs::{Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule};

    const CHUNK_SIZE: usize = 4096;

    fn file(fs: &dyn Fs, name: &str) -> Arc<dyn File> {
        fs.open(name.as_ref(), OpenMode::Create).unwrap()
    }

    fn bytes_of(file: &dyn File) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Values of all kinds: packed, noise, what shrinks but was not packed, several chunks, next to nothing.
    fn values(rng: &mut Rng) -> Vec<(bool, Vec<u8>)> {
        let mut one = || {
            let len = [0, 1, 700, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE][rng.below(6) as usize];
            let mut raw = vec![b'v'; len];
            let noise = if rng.one_in(2) { len } else { len / 2 };
            rng.fill(&mut raw[..noise]);
            let mut packed = Vec::new();
            match len <= CHUNK_SIZE && rng.one_in(2) && pack(Compression::Lz4, &raw, &mut packed).is_some() {
                true => (true, packed),
                false => (false, raw),
            }
        };
        (0..60).map(|_| one()).collect()
    }

    fn as_they_come((packed, bytes): &(bool, Vec<u8>)) -> VlogValue<'_> {
        if *packed { VlogValue::Packed(Packed::parse(bytes).unwrap()) } else { VlogValue::Plain(bytes) }
    }

    /// However they are appended, values are stored alike.
    #[test]
    fn many_values_at_once_are_stored_as_one_by_one() {
        for seed in 0..20 {
            println!("seed {seed}");
            let (fs, mut rng) = (MemFs::new(), Rng::new(seed));
            let values = values(&mut rng);
            let values: Vec<VlogValue<'_>> = values.iter().map(as_they_come).collect();
            for method in [Compression::Lz4, Compression::None] {
                let (single, together) = (file(&fs, &format!("s{method}")), file(&fs, &format!("t{method}")));
                let mut w = VlogWriter::new_direct(single.clone(), 7, method, CHUNK_SIZE);
                let one = |v: &VlogValue<'_>| match v {
                    VlogValue::Plain(raw) => w.append(raw).unwrap(),
                    VlogValue::Packed(packed) => w.append_packed(*packed).unwrap(),
                };
                let want: Vec<ValuePointer> = values.iter().map(one).collect();
                let info = w.finish().unwrap();
                let mut w = VlogWriter::new_direct(together.clone(), 7, method, CHUNK_SIZE);
                let (mut got, mut rest) = (Vec::new(), &values[..]);
                while !rest.is_empty() {
                    let (run, behind) = rest.split_at(1 + rng.below(rest.len() as u64) as usize);
                    got.extend(w.append_all(run).unwrap());
                    assert_eq!(together.len().unwrap(), w.written(), "all of it is the system's");
                    rest = behind;
                }
                assert_eq!((got, w.finish().unwrap()), (want.clone(), info), "{method}");
                assert!(bytes_of(&*single) == bytes_of(&*together), "{method}");
                let vlog = Vlog::open(together, 7).unwrap();
                vlog.verify().unwrap();
                let mut out = Vec::new();
                for (p, v) in want.iter().zip(&values) {
                    vlog.read(p, &mut out).unwrap();
                    let mut raw = Vec::new();
                    match v {
                        VlogValue::Plain(bytes) => raw.extend_from_slice(bytes),
                        VlogValue::Packed(packed) => packed.append_to(&mut raw).unwrap(),
                    }
                    assert!(out == raw && out.len() as u64 == p.raw_len);
                    let mut slice = vec![9; raw.len()];
                    vlog.read_into(p, &mut slice).unwrap();
                    assert!(slice == raw);
                }
            }
        }
    }

    /// Values of a write that failed halfway have no place, and those before and after keep theirs.
    #[test]
    fn a_write_of_many_values_that_fails_is_undone() {
        let faults = FaultFs::new(MemFs::shared(), 1);
        let file = file(&faults, "v");
        let mut w = VlogWriter::new_direct(file.clone(), 7, Compression::None, CHUNK_SIZE);
        let first = w.append_all(&[VlogValue::Plain(b"first"), VlogValue::Plain(b"second")]).unwrap();
        let mark = w.mark();
        faults.add(Rule::new(Op::Write, Fault::ShortWrite).nth(1));
        let e = w.append_all(&[VlogValue::Plain(&[5; 900]), VlogValue::Plain(b"lost")]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        faults.clear();
        assert!(file.len().unwrap() > mark.position, "some of it was written");
        w.rewind(mark).unwrap();
        let last = w.append_all(&[VlogValue::Plain(b"last")]).unwrap();
        assert_eq!(last[0].offset, first[1].offset + first[1].stored_len);
        assert_eq!(w.finish().unwrap().values, 3);
        let vlog = Vlog::open(file, 7).unwrap();
        vlog.verify().unwrap();
        let mut out = Vec::new();
        for (p, want) in first.iter().chain(&last).zip([&b"first"[..], b"second", b"last"]) {
            vlog.read(p, &mut out).unwrap();
            assert_eq!(out, want);
        }
    }
}
