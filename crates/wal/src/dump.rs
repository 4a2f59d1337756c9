//! Showing a single segment, for tools: what it holds by itself, whatever the log that it belongs to makes of it.

use super::scan::{Found, Window, record_at};
use super::segment::{FLAG_GAP, HeaderState, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, SegmentHeader, record_span};
use kingtide_base::names::FileName;
use kingtide_base::{Error, Result, SeqNo};
use kingtide_vfs::{Fs, OpenMode};
use std::path::Path;

/// A part of a segment, in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentPart<'a> {
    /// The segment's header.
    Header {
        /// Its id.
        id: u64,
        /// The segment before; 0 in the first of a database.
        previous: u64,
        /// Where the records of that one end.
        previous_end: u32,
        /// Whether everything before this segment was synced when it was begun.
        previous_synced: bool,
        /// Bytes of the file.
        size: u32,
        /// The sequence number at which it was begun.
        start: SeqNo,
    },
    /// A whole record.
    Record {
        /// Where it begins.
        offset: u64,
        /// The sequence number of its first operation.
        sequence: SeqNo,
        /// Its operations.
        count: u32,
        /// Bytes of the segment that were known to be synced when it was written; 0 if nothing was.
        synced: u32,
        /// Whether commits that were not logged may have come before it.
        gap: bool,
        /// The operations' bytes, which the log does not look into.
        payload: &'a [u8],
    },
    /// A mark behind the last record.
    End {
        /// Where it is.
        offset: u64,
        /// The segment in which the log goes on; `None`: the database was closed.
        successor: Option<u64>,
    },
    /// No record where one should begin, although there is a whole header or a record behind it: damage, or what a power
    /// cut left behind the end of the log, which recovery can tell apart.
    Broken {
        /// Where it is.
        offset: u64,
        /// Whether a record's header is there, without its payload.
        header_whole: bool,
        /// Where the next whole record begins; `None` if there is none.
        resumes: Option<u64>,
    },
    /// Nothing more; what follows was never written, or belongs to an earlier use of the file.
    Unused {
        /// Where it begins.
        offset: u64,
    },
}

/// Gives all parts of the segment in file `path` to `show`, passing over what is broken. A released segment (`.walfree`)
/// shows what it held. Changes no byte; memory is bounded by the largest record.
///
/// # Errors
/// `InvalidArgument` for a file whose name is no segment's; `NewerFormat`; of reading; of `show`.
pub fn dump_segment(fs: &dyn Fs, path: &Path, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(FileName::Segment(id) | FileName::FreeSegment(id)) = FileName::parse(&name) else {
        return Err(Error::invalid("not the name of a log segment, such as 000012.wal").at_path(path));
    };
    let mut window = Window::new(fs.open(path, OpenMode::Read)?)?;
    let state = window.get_small(SEGMENT_HEADER_LEN)?.map_or(HeaderState::Invalid, |b| SegmentHeader::decode(b, id));
    match state {
        HeaderState::Valid(head) => show(SegmentPart::Header {
            id,
            previous: head.prev_id,
            previous_end: head.prev_end,
            previous_synced: head.prev_synced,
            size: head.size,
            start: head.start_seq,
        })?,
        HeaderState::Invalid => {
            let resumes = next_record(&mut window, id, SEGMENT_HEADER_LEN as u64)?;
            if resumes.is_none() {
                return show(SegmentPart::Unused { offset: 0 }); // a spare, which has no header yet
            }
            show(SegmentPart::Broken { offset: 0, header_whole: false, resumes })?;
        }
        HeaderState::Newer(version) => {
            let text = format!("log segment of format version {version}, newer than this build reads");
            return Err(Error::new(kingtide_base::ErrorKind::NewerFormat, text).at_path(path));
        }
    }
    dump_records(&mut window, id, show)
}

fn dump_records(window: &mut Window, id: u64, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<()> {
    let limit = window.len();
    let mut offset = SEGMENT_HEADER_LEN as u64;
    loop {
        let header_whole = match record_at(window, id, offset, limit)? {
            Found::Record(h, payload) => {
                let gap = h.flags & FLAG_GAP != 0;
                let (sequence, count, synced) = (h.base_seq, h.count, h.synced);
                show(SegmentPart::Record { offset, sequence, count, synced, gap, payload })?;
                offset += record_span(payload.len());
                continue;
            }
            Found::End(h) => {
                show(SegmentPart::End { offset, successor: h.successor() })?;
                offset += RECORD_HEADER_LEN as u64;
                continue;
            }
            Found::HeaderOnly(_) => true,
            Found::Nothing => false,
        };
        let resumes = next_record(window, id, offset + 8)?;
        if !header_whole && resumes.is_none() {
            return show(SegmentPart::Unused { offset });
        }
        show(SegmentPart::Broken { offset, header_whole, resumes })?;
        match resumes {
            Some(next) => offset = next,
            None => return Ok(()),
        }
    }
}

/// Where the first whole record or end mark from `offset` on begins. O(bytes).
fn next_record(window: &mut Window, id: u64, offset: u64) -> Result<Option<u64>> {
    let limit = window.len();
    let mut at = offset.next_multiple_of(8);
    while at + RECORD_HEADER_LEN as u64 <= limit {
        if matches!(record_at(window, id, at, limit)?, Found::Record(..) | Found::End(_)) {
            return Ok(Some(at));
        }
        at += 8;
    }
    Ok(None)
}
