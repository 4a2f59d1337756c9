//! Value logs: files of values that are too large to be carried through merges.
//!
//! File (integers little-endian):
//!
//! | bytes | what |
//! |---|---|
//! | 24 | header: magic 8, file id u64, version u32, crc32c of the 20 bytes before u32 |
//! | ... | values, each one or more chunks |
//! | 48 | footer: file id u64, values u64, stored bytes u64, raw bytes u64, version u32, crc32c of the 36 bytes before u32, magic 8 |
//!
//! Chunk:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | crc32c of bytes 4 to the chunk's end, bound to file id and the chunk's offset, u32 |
//! | 4 | 1 | compression, u8 |
//! | 5 | 1 | flags: 1 = first chunk of its value, 2 = last, u8 |
//! | 6 | 4 | raw length, u32 |
//! | 10 | 4 | stored length, u32 |
//! | 14 | stored length | the bytes, as [`crate::compression`] made them |
//!
//! All chunks of a value but the last have the same raw length, so that a value larger than memory can be written and
//! read in pieces. A value that was never acknowledged, or whose table was deleted, stays in the file as dead bytes.

mod pointer;
mod read_ahead;
mod reader;
mod scratch;
mod sums;
mod wide;
mod writer;

pub use pointer::ValuePointer;
pub use read_ahead::ReadAhead;
pub use reader::{Vlog, VlogRecords, VlogValueReader};
pub use writer::{VlogInfo, VlogMark, VlogValue, VlogWriter};

use crate::footer::check_version;
use kingtide_base::checksum::{crc, crc_append, place};
use kingtide_base::coding::Reader;
use kingtide_base::options::Compression;
use kingtide_base::{Error, Result};

/// Version of the value-log format that this build writes, and the newest that it reads.
pub const VLOG_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"KTIDvlog";
const HEADER: usize = 24;
const FOOTER: usize = 48;
/// Bytes of a chunk's header.
const CHUNK: usize = 14;
/// The most bytes of a chunk, both before and after compression: the largest allowed `value_chunk_size`. A header with a larger length is
/// damaged, and nothing is allocated for it.
const MAX_CHUNK: u32 = 16 << 20;
const FLAG_FIRST: u8 = 1;
const FLAG_LAST: u8 = 2;

fn encode_header(file_id: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&file_id.to_le_bytes());
    out[16..20].copy_from_slice(&VLOG_VERSION.to_le_bytes());
    let sum = crc(&out[..20]);
    out[20..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn check_header(bytes: &[u8; HEADER], file_id: u64) -> Result<()> {
    if bytes[..8] != MAGIC {
        return Err(Error::corruption("not a value log"));
    }
    check_version(&bytes[16..24], VLOG_VERSION, &bytes[..20])?;
    check_id(&bytes[8..16], file_id)
}

fn check_id(bytes: &[u8], file_id: u64) -> Result<()> {
    match Reader::new(bytes).u64() {
        Some(found) if found == file_id => Ok(()),
        found => Err(Error::corruption(format!("this is file {}, expected file {file_id}", found.unwrap_or(0)))),
    }
}

fn encode_footer(info: &VlogInfo, file_id: u64) -> [u8; FOOTER] {
    let mut out = [0; FOOTER];
    for (to, v) in out.chunks_exact_mut(8).zip([file_id, info.values, info.stored_bytes, info.raw_bytes]) {
        to.copy_from_slice(&v.to_le_bytes());
    }
    out[32..36].copy_from_slice(&VLOG_VERSION.to_le_bytes());
    let sum = crc(&out[..36]);
    out[36..40].copy_from_slice(&sum.to_le_bytes());
    out[40..].copy_from_slice(&MAGIC);
    out
}

fn decode_footer(bytes: &[u8; FOOTER], file_id: u64, file_size: u64) -> Result<VlogInfo> {
    if bytes[40..] != MAGIC {
        return Err(Error::corruption("the value log's end is missing"));
    }
    check_version(&bytes[32..40], VLOG_VERSION, &bytes[..36])?;
    check_id(&bytes[..8], file_id)?;
    let mut r = Reader::new(&bytes[8..]);
    let mut next = || r.u64().unwrap_or_default();
    let info = VlogInfo { file_size, values: next(), stored_bytes: next(), raw_bytes: next() };
    if info.stored_bytes.checked_add((HEADER + FOOTER) as u64) != Some(file_size) {
        return Err(Error::corruption("the footer contradicts the file's length"));
    }
    Ok(info)
}

/// A chunk's header.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    crc: u32,
    method: u8,
    flags: u8,
    raw_len: u32,
    stored_len: u32,
}

impl Chunk {
    fn decode(b: &[u8; CHUNK]) -> Chunk {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        Chunk { crc: u32_at(0), method: b[4], flags: b[5], raw_len: u32_at(6), stored_len: u32_at(10) }
    }

    /// Fills in the header of a chunk whose bytes are in place already.
    fn seal(&mut self, chunk: &mut [u8], file_id: u64, offset: u64) {
        chunk[..CHUNK].copy_from_slice(&self.encode());
        self.crc = crc(&chunk[4..]) ^ place(file_id, offset);
        chunk[..4].copy_from_slice(&self.crc.to_le_bytes());
    }

    /// The header, with the checksum as it is now.
    fn encode(&self) -> [u8; CHUNK] {
        let mut out = [0; CHUNK];
        out[..4].copy_from_slice(&self.crc.to_le_bytes());
        out[4] = self.method;
        out[5] = self.flags;
        out[6..10].copy_from_slice(&self.raw_len.to_le_bytes());
        out[10..14].copy_from_slice(&self.stored_len.to_le_bytes());
        out
    }

    /// The checksum of a chunk whose bytes lie elsewhere than its header, not bound to a place yet.
    fn sum(&self, body: &[u8]) -> u32 {
        crc_append(crc(&self.encode()[4..]), body)
    }

    /// Whether both lengths are at most [`MAX_CHUNK`].
    fn is_possible(&self) -> bool {
        self.raw_len <= MAX_CHUNK && self.stored_len <= MAX_CHUNK
    }

    /// Whether it says that its bytes are those of the value.
    fn is_as_it_was(&self) -> bool {
        self.method == Compression::None as u8 && self.raw_len == self.stored_len
    }

    /// Whether a header goes with the bytes behind it: those of a compressed chunk begin with its raw length. Other bytes that look like a
    /// header hardly ever do, and this spares taking a checksum of all that they seem to announce.
    fn fits(&self, body: &[u8]) -> bool {
        match Compression::from_u8(self.method) {
            None => false,
            Some(Compression::None) => self.raw_len == self.stored_len,
            Some(_) => body.starts_with(&self.raw_len.to_le_bytes()),
        }
    }

    /// Bytes in the file.
    fn len(&self) -> u64 {
        CHUNK as u64 + self.stored_len as u64
    }

    /// Whether it says of itself what it is of its value: the first chunk, the last.
    fn check_flags(&self, first: bool, last: bool) -> Result<()> {
        let want = if first { FLAG_FIRST } else { 0 } | if last { FLAG_LAST } else { 0 };
        if self.flags != want {
            return Err(Error::corruption("a value's chunks do not match its start and end"));
        }
        Ok(())
    }

    /// Checks a whole chunk's checksum; returns its compression.
    fn check(&self, chunk: &[u8], file_id: u64, offset: u64) -> Result<Compression> {
        self.check_sum(crc(chunk.get(4..).unwrap_or_default()), file_id, offset)
    }

    /// The same with the checksum of its bytes from 4 on.
    fn check_sum(&self, sum: u32, file_id: u64, offset: u64) -> Result<Compression> {
        if sum ^ place(file_id, offset) != self.crc {
            return Err(Error::corruption("value checksum mismatch"));
        }
        Compression::from_u8(self.method)
            .ok_or_else(|| Error::corruption(format!("unknown compression {}", self.method)))
    }
}
