//! Reading a segment: a window over the file, records in order, and the search for records behind a broken place.

use super::segment::{RECORD_HEADER_LEN, RecordHeader, record_span};
use kingtide_base::checksum::crc;
use kingtide_base::memory::extend_zeroed;
use kingtide_base::{Result, SeqNo};
use kingtide_vfs::File;
use std::sync::Arc;

/// Bytes read at once, unless a record is larger.
const CHUNK: u64 = 1 << 20;

/// A part of a file in memory that follows the reader.
pub(super) struct Window {
    file: Arc<dyn File>,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
    loads: u64,
}

impl Window {
    pub fn new(file: Arc<dyn File>) -> Result<Window> {
        let len = file.len()?;
        Ok(Window::up_to(file, len))
    }

    /// A window over the first `len` bytes of a file that is being written behind them.
    pub fn up_to(file: Arc<dyn File>, len: u64) -> Window {
        Window { file, len, start: 0, bytes: Vec::new(), loads: 0 }
    }

    /// More bytes of the file have come to stay.
    pub fn extend_to(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// How often bytes were read from the file.
    pub fn loads(&self) -> u64 {
        self.loads
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes `offset .. offset + n`, or `None` if the file ends before.
    #[inline]
    pub fn get(&mut self, offset: u64, n: usize) -> Result<Option<&[u8]>> {
        let end = match offset.checked_add(n as u64) {
            Some(end) if end <= self.len => end,
            _ => return Ok(None),
        };
        if offset < self.start || end > self.start + self.bytes.len() as u64 {
            self.fill(offset, n as u64)?;
        }
        let at = (offset - self.start) as usize;
        Ok(self.bytes.get(at..at + n))
    }

    /// The first `n` bytes, read by themselves.
    pub fn get_small(&mut self, n: usize) -> Result<Option<&[u8]>> {
        if self.len < n as u64 {
            return Ok(None);
        }
        self.load(0, n as u64)?;
        Ok(self.bytes.get(..n))
    }

    #[cold]
    fn fill(&mut self, offset: u64, n: u64) -> Result<()> {
        self.load(offset, n.max(CHUNK).min(self.len - offset))
    }

    fn load(&mut self, offset: u64, take: u64) -> Result<()> {
        // When the read fails the window is empty: zeros in the place of what was not read would pass for a damaged record.
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        self.start = offset;
        self.loads += 1;
        extend_zeroed(&mut bytes, take as usize, "a part of the log")?;
        let got = self.file.read_full_at(&mut bytes, offset)?;
        bytes.truncate(got);
        self.bytes = bytes;
        Ok(())
    }
}

/// What is at a place where a record should begin.
pub(super) enum Found<'a> {
    Record(RecordHeader, &'a [u8]),
    /// An end marker.
    End(RecordHeader),
    /// No header that belongs here.
    Nothing,
    /// A header that belongs here, without its payload.
    HeaderOnly(RecordHeader),
}

/// Looks at `offset` of segment `id`, whose records end at `limit` or before.
pub(super) fn record_at(window: &mut Window, id: u64, offset: u64, limit: u64) -> Result<Found<'_>> {
    if limit.saturating_sub(offset) < RECORD_HEADER_LEN as u64 {
        return Ok(Found::Nothing);
    }
    let Some(header) = window.get(offset, RECORD_HEADER_LEN)?.and_then(|b| RecordHeader::decode(b, id, offset)) else {
        return Ok(Found::Nothing);
    };
    if header.is_end() {
        return Ok(Found::End(header));
    }
    let len = header.payload_len as usize;
    if record_span(len) > limit - offset {
        return Ok(Found::HeaderOnly(header));
    }
    match window.get(offset + RECORD_HEADER_LEN as u64, len)? {
        Some(payload) if crc(payload) == header.payload_crc => Ok(Found::Record(header, payload)),
        _ => Ok(Found::HeaderOnly(header)),
    }
}

/// Records found in a part of a segment where reading in order does not lead.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Records and end markers found.
    pub records: u64,
    /// End of the last of them.
    pub end: u64,
    /// The greatest synced mark among them.
    pub synced: u32,
}

/// Searches segment `id` for records from `offset` on. Records below `min_seq` do not count: in a segment that was
/// begun later there can be none.
pub(super) fn search(window: &mut Window, id: u64, offset: u64, min_seq: SeqNo) -> Result<Evidence> {
    let mut seen = Evidence::default();
    let limit = window.len();
    let mut at = offset.next_multiple_of(8);
    while at + RECORD_HEADER_LEN as u64 <= limit {
        let (header, span) = match record_at(window, id, at, limit)? {
            Found::Record(header, payload) => (header, record_span(payload.len())),
            Found::End(header) => (header, RECORD_HEADER_LEN as u64),
            _ => {
                at += 8;
                continue;
            }
        };
        at += span;
        if header.base_seq >= min_seq {
            seen.records += 1;
            seen.end = at;
            seen.synced = seen.synced.max(header.synced);
        }
    }
    Ok(seen)
}
