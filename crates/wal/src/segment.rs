//! Bytes of a log segment: its header, record headers. `docs/format/wal.md` is the byte table.

use kingtide_base::SeqNo;
use kingtide_base::checksum::crc_append;
use kingtide_base::coding::Reader;

/// Bytes of a segment's header; the first record follows.
pub const SEGMENT_HEADER_LEN: usize = 64;
/// Bytes of a record's header; the payload follows.
pub const RECORD_HEADER_LEN: usize = 32;
/// What every segment has left behind its last record.
pub(super) const END_MARK_LEN: u64 = RECORD_HEADER_LEN as u64;
/// The newest format version, of segments whose records may prepare transactions with staged values.
pub const FORMAT_VERSION: u32 = WITH_STAGED;
/// The version of segments with neither such records nor pointers, which all builds read.
pub(super) const PLAIN: u32 = 1;
/// The version of segments whose records may hold pointers into value logs.
pub(super) const WITH_POINTERS: u32 = 2;
/// The version of segments whose records may also say that files became part of the database.
pub(super) const WITH_FILES: u32 = 3;
/// The version of segments whose prepare records may also hold pointers. A build that does not look for pointers there would
/// remove the value logs that they point into as orphans.
pub(super) const WITH_STAGED: u32 = 4;
/// Largest payload of one record. Offsets in a segment are 32 bits.
pub const MAX_PAYLOAD: usize = u32::MAX as usize - 4096;

const MAGIC: [u8; 4] = *b"KWAL";
const PREV_SYNCED: u32 = 1;
const PREV_UNNAMED: u32 = 2;

/// Sequence numbers between the previous record and this one were not logged.
pub(super) const FLAG_GAP: u32 = 1;
/// Not a batch: the segment ends here, and its successor, whose id the record names, had a durable name by then.
pub(super) const FLAG_SEALED: u32 = 2;
/// Not a batch: the log was closed here.
pub(super) const FLAG_CLOSED: u32 = 4;
const KNOWN_FLAGS: u32 = FLAG_GAP | FLAG_SEALED | FLAG_CLOSED;

/// Bytes that a record of `payload_len` takes in its segment.
#[inline]
pub(super) const fn record_span(payload_len: usize) -> u64 {
    (RECORD_HEADER_LEN as u64 + payload_len as u64 + 7) & !7
}

/// The head of a segment, written when the segment becomes the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub id: u64,
    /// The segment whose records come before; 0 for the first of a database.
    pub prev_id: u64,
    /// Where the previous segment's records end. What it holds past that is not part of the log.
    pub prev_end: u32,
    /// Whether everything before this segment was known synced when the header was written.
    pub prev_synced: bool,
    /// Whether the previous segment's name was not known durable then, so that a power cut may have taken the file.
    pub prev_unnamed: bool,
    /// Bytes of the file.
    pub size: u32,
    /// The sequence number that follows the previous segment's last.
    pub start_seq: SeqNo,
    /// The machine's boot in which the segment was begun.
    pub boot_id: [u8; 16],
}

/// What the first 64 bytes of a segment are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderState {
    Valid(SegmentHeader),
    /// Written by a newer format version.
    Newer(u32),
    /// Never activated under this id, lost at a power cut, or damaged.
    Invalid,
}

impl SegmentHeader {
    /// `version` says what records of the segment may hold.
    pub fn encode(&self, version: u32) -> [u8; SEGMENT_HEADER_LEN] {
        let mut out = [0u8; SEGMENT_HEADER_LEN];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&version.to_le_bytes());
        // 8..12: crc
        let flags = (self.prev_synced as u32 * PREV_SYNCED) | (self.prev_unnamed as u32 * PREV_UNNAMED);
        out[12..16].copy_from_slice(&flags.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.prev_id.to_le_bytes());
        out[32..36].copy_from_slice(&self.prev_end.to_le_bytes());
        out[36..40].copy_from_slice(&self.size.to_le_bytes());
        out[40..48].copy_from_slice(&self.start_seq.to_le_bytes());
        out[48..64].copy_from_slice(&self.boot_id);
        let crc = header_crc(&out, self.id);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header of the segment whose file name says `id`. A recycled file that was never activated under its
    /// new name still has its former header, which is `Invalid` here.
    pub fn decode(bytes: &[u8], id: u64) -> HeaderState {
        Self::try_decode(bytes, id).unwrap_or(HeaderState::Invalid)
    }

    fn try_decode(bytes: &[u8], id: u64) -> Option<HeaderState> {
        let bytes: &[u8; SEGMENT_HEADER_LEN] = bytes.first_chunk()?;
        let mut r = Reader::new(bytes);
        let (magic, version, crc) = (r.bytes(4)?, r.u32()?, r.u32()?);
        let flags = r.u32()?;
        if magic != MAGIC || crc != header_crc(bytes, id) || r.u64()? != id {
            return None;
        }
        if version > FORMAT_VERSION {
            return Some(HeaderState::Newer(version));
        }
        let (prev_id, prev_end, size, start_seq) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
        let boot_id = *r.bytes(16)?.first_chunk()?;
        Some(HeaderState::Valid(SegmentHeader {
            id,
            prev_id,
            prev_end,
            prev_synced: flags & PREV_SYNCED != 0,
            prev_unnamed: flags & PREV_UNNAMED != 0,
            size,
            start_seq,
            boot_id,
        }))
    }
}

fn header_crc(bytes: &[u8; SEGMENT_HEADER_LEN], id: u64) -> u32 {
    crc_append(crc_append(seed(id, 0), &bytes[..8]), &bytes[12..])
}

/// Start value of a header's checksum. For one offset it is a bijection of the id's low 32 bits, and so is a crc of its
/// start value: bytes that were a record of another segment can never pass for one of this segment.
#[inline]
fn seed(id: u64, offset: u64) -> u32 {
    crc_append(id as u32, &offset.to_le_bytes())
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// crc32c of the payload. It needs no seed: the header's own checksum binds it to segment and offset.
    pub payload_crc: u32,
    pub payload_len: u32,
    /// Operations, which take the sequence numbers `base_seq .. base_seq + count`.
    pub count: u32,
    pub base_seq: SeqNo,
    /// 0: nothing known. 1 and more: everything before this segment was synced, and of this one at least so many bytes.
    pub synced: u32,
    pub flags: u32,
}

impl RecordHeader {
    #[inline]
    pub fn encode(&self, id: u64, offset: u64) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0u8; RECORD_HEADER_LEN];
        out[4..8].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.base_seq.to_le_bytes());
        out[24..28].copy_from_slice(&self.synced.to_le_bytes());
        out[28..32].copy_from_slice(&self.flags.to_le_bytes());
        let crc = crc_append(seed(id, offset), &out[4..]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at `offset` of segment `id`, or `None` if the bytes are none.
    #[inline]
    pub fn decode(bytes: &[u8], id: u64, offset: u64) -> Option<RecordHeader> {
        let bytes: &[u8; RECORD_HEADER_LEN] = bytes.first_chunk()?;
        let mut r = Reader::new(bytes);
        let crc = r.u32()?;
        let header = RecordHeader {
            payload_crc: r.u32()?,
            payload_len: r.u32()?,
            count: r.u32()?,
            base_seq: r.u64()?,
            synced: r.u32()?,
            flags: r.u32()?,
        };
        // The cheap tests first: a scan meets millions of places that are no headers.
        if header.flags & !KNOWN_FLAGS != 0 || header.synced as u64 > offset || !header.is_consistent() {
            return None;
        }
        (crc == crc_append(seed(id, offset), &bytes[4..])).then_some(header)
    }

    fn is_consistent(&self) -> bool {
        match self.flags & !FLAG_GAP {
            0 => self.count > 0,
            FLAG_SEALED => self.count == 0 && self.successor() != Some(0),
            FLAG_CLOSED => self.count == 0 && self.payload_len == 0 && self.payload_crc == 0,
            _ => false,
        }
    }

    /// Whether this ends the segment instead of holding a batch.
    pub fn is_end(&self) -> bool {
        self.flags & (FLAG_SEALED | FLAG_CLOSED) != 0
    }

    /// The end mark of a segment that is followed by segment `successor`, or, with 0, of a log that is closed. It has no
    /// payload: the id is in the place of the payload's checksum and length.
    pub fn end_mark(successor: u64, next_seq: SeqNo, synced: u32) -> RecordHeader {
        let flags = if successor == 0 { FLAG_CLOSED } else { FLAG_SEALED };
        let (payload_crc, payload_len) = (successor as u32, (successor >> 32) as u32);
        RecordHeader { payload_crc, payload_len, count: 0, base_seq: next_seq, synced, flags }
    }

    /// The segment that an end mark names as the next; `None` if the log was closed.
    pub fn successor(&self) -> Option<u64> {
        let id = u64::from(self.payload_len) << 32 | u64::from(self.payload_crc);
        (self.flags & FLAG_SEALED != 0).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    fn record() -> RecordHeader {
        RecordHeader { payload_crc: 7, payload_len: 100, count: 3, base_seq: 99, synced: 64, flags: FLAG_GAP }
    }

    #[test]
    fn headers_round_trip_and_every_bit_matters() {
        let head = SegmentHeader {
            id: 12,
            prev_id: 9,
            prev_end: 4096,
            prev_synced: true,
            prev_unnamed: true,
            size: 65_536,
            start_seq: 77,
            boot_id: *b"0123456789abcdef",
        };
        let bytes = head.encode(PLAIN);
        assert_eq!(SegmentHeader::decode(&bytes, 12), HeaderState::Valid(head));
        assert_eq!(SegmentHeader::decode(&bytes, 13), HeaderState::Invalid);
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes;
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&b, 12), HeaderState::Invalid, "bit {bit}");
        }
        let bytes = record().encode(12, 640);
        assert_eq!(RecordHeader::decode(&bytes, 12, 640), Some(record()));
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes;
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&b, 12, 640), None, "bit {bit}");
        }
    }

    #[test]
    fn end_marks_name_the_successor() {
        for successor in [1, 77, u64::from(u32::MAX), 1 << 40 | 5] {
            let mark = RecordHeader::end_mark(successor, 9, 64);
            let read = RecordHeader::decode(&mark.encode(12, 640), 12, 640);
            assert_eq!(read.and_then(|m| m.successor()), Some(successor));
        }
        let closed = RecordHeader::end_mark(0, 9, 64);
        assert!(closed.is_end() && closed.successor().is_none());
        assert_eq!(RecordHeader::decode(&closed.encode(12, 640), 12, 640), Some(closed));
        let nameless = RecordHeader { flags: FLAG_SEALED, ..closed };
        assert_eq!(RecordHeader::decode(&nameless.encode(12, 640), 12, 640), None);
    }

    #[test]
    fn newer_version_is_told_from_damage() {
        let head = SegmentHeader {
            id: 1,
            prev_id: 0,
            prev_end: 0,
            prev_synced: true,
            prev_unnamed: false,
            size: 64,
            start_seq: 1,
            boot_id: [0; 16],
        };
        let mut bytes = head.encode(FORMAT_VERSION);
        let newer = FORMAT_VERSION + 1;
        bytes[4] = newer as u8;
        let crc = header_crc(&bytes, 1);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes, 1), HeaderState::Newer(newer));
    }

    #[test]
    fn a_record_is_valid_only_in_its_segment_and_place() {
        let mut rng = Rng::new(5);
        for _ in 0..20_000 {
            let (id, other) = (rng.below(1 << 32), rng.below(1 << 32));
            let offset = 64 + 8 * rng.below(1 << 20);
            let bytes = record().encode(id, offset);
            assert!(id == other || RecordHeader::decode(&bytes, other, offset).is_none());
            assert!(RecordHeader::decode(&bytes, id, offset + 8).is_none());
        }
    }
}
