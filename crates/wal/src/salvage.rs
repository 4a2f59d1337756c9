//! Reading a damaged log: whatever whole records are left.
//!
//! [`super::replay`] stops at damage, because what follows may build on what is lost. Here the caller wants what follows
//! nevertheless. A record is found by its checksum, which is bound to its segment and its place, so nothing of a former
//! use of the file can pass for one. What a recovery left out behind a torn tail must not come back: its sequence numbers
//! were given again to later records, so a record counts only if it ends before every later segment begins.

use super::scan::{Found, Window, record_at};
use super::segment::{
    FLAG_GAP, HeaderState, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, SegmentHeader, record_span,
};
use kingtide_base::names::segment_path;
use kingtide_base::{Result, SeqNo};
use kingtide_vfs::{Fs, OpenMode};
use std::path::{Path, PathBuf};

/// A hole in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGap {
    /// The segment in which it was noticed.
    pub path: PathBuf,
    /// Where reading went on; the end of what could be read when it did not.
    pub offset: u64,
    /// The first sequence number that is missing.
    pub from: SeqNo,
    /// The sequence number at which the log goes on; `None` if nothing was found behind the hole.
    pub to: Option<SeqNo>,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedLog {
    /// Records given to the caller.
    pub records: u64,
    /// Places where records are missing.
    pub gaps: Vec<LogGap>,
    /// The sequence number after the last record.
    pub next_seq: SeqNo,
}

/// How a segment ends.
enum Stop {
    /// At a hole behind which nothing is wanted.
    Hole,
    /// It holds nothing of the log.
    Unused,
    /// With an end mark, or with nothing behind its last record.
    Clean,
    /// With something behind its last record that is none: a damaged one, or what the file held before. In a log that is
    /// known to be damaged it counts as damage.
    Broken(u64),
}

struct Segment {
    id: u64,
    path: PathBuf,
    head: Option<SegmentHeader>,
    /// No record here reaches this sequence number.
    cap: SeqNo,
}

/// Gives the whole records of the log in `dir` to `apply`, in the order of their sequence numbers: up to the first hole,
/// or, with `past_damage`, all of them. Changes no byte. A log that begins later than `needed_from` has lost its beginning,
/// which is a hole too; 0 asks for no beginning.
///
/// # Errors
/// Of `apply` and of reading.
pub fn salvage(
    fs: &dyn Fs,
    dir: &Path,
    ids: &[u64],
    needed_from: SeqNo,
    past_damage: bool,
    mut apply: impl FnMut(SeqNo, u32, &[u8]) -> Result<()>,
) -> Result<SalvagedLog> {
    let mut out = SalvagedLog::default();
    let mut broken_end = None;
    for segment in headers(fs, dir, ids)? {
        // How much is missing before the first segment is known if it has a header.
        if out.next_seq == 0
            && needed_from != 0
            && let Some(start) = segment.head.as_ref().map(|h| h.start_seq)
            && start > needed_from
        {
            out.next_seq = needed_from;
            if !segment.skip(&mut out, 0, start, past_damage) {
                return Ok(out);
            }
            out.next_seq = start;
        }
        match segment.read(fs, past_damage, &mut out, &mut apply)? {
            Stop::Hole => return Ok(out),
            Stop::Unused => {}
            Stop::Clean => broken_end = None,
            Stop::Broken(offset) => broken_end = Some((segment.path, offset)),
        }
    }
    if let Some((path, offset)) = broken_end {
        out.gaps.push(LogGap { path, offset, from: out.next_seq, to: None });
    }
    Ok(out)
}

fn headers(fs: &dyn Fs, dir: &Path, ids: &[u64]) -> Result<Vec<Segment>> {
    let mut all = Vec::with_capacity(ids.len());
    for &id in ids {
        let path = segment_path(dir, id);
        let mut window = Window::new(fs.open(&path, OpenMode::Read)?)?;
        let head = match window.get_small(SEGMENT_HEADER_LEN)?.map(|b| SegmentHeader::decode(b, id)) {
            Some(HeaderState::Valid(head)) => Some(head),
            _ => None,
        };
        all.push(Segment { id, path, head, cap: SeqNo::MAX });
    }
    all.sort_unstable_by_key(|s| s.id);
    let mut cap = SeqNo::MAX;
    for s in all.iter_mut().rev() {
        s.cap = cap;
        cap = s.head.as_ref().map_or(cap, |h| h.start_seq.min(cap));
    }
    Ok(all)
}

impl Segment {
    fn read(
        &self,
        fs: &dyn Fs,
        past_damage: bool,
        out: &mut SalvagedLog,
        apply: &mut dyn FnMut(SeqNo, u32, &[u8]) -> Result<()>,
    ) -> Result<Stop> {
        if let Some(head) = &self.head
            && head.start_seq != out.next_seq
        {
            if out.next_seq != 0 && head.start_seq > out.next_seq && !self.skip(out, 0, head.start_seq, past_damage) {
                return Ok(Stop::Hole);
            }
            out.next_seq = out.next_seq.max(head.start_seq);
        }
        let mut window = Window::new(fs.open(&self.path, OpenMode::Read)?)?;
        let (limit, mut at) = (window.len(), SEGMENT_HEADER_LEN as u64);
        let (mut end, mut used) = (at, self.head.is_some());
        while at + RECORD_HEADER_LEN as u64 <= limit {
            let (header, payload): (RecordHeader, &[u8]) = match record_at(&mut window, self.id, at, limit)? {
                Found::Record(header, payload) => (header, payload),
                Found::End(mark) => {
                    // It tells the number behind the last record.
                    let known = out.next_seq != 0 || self.head.is_some();
                    if known && mark.base_seq > out.next_seq && mark.base_seq <= self.cap {
                        if !self.skip(out, at, mark.base_seq, past_damage) {
                            return Ok(Stop::Hole);
                        }
                        out.next_seq = mark.base_seq;
                    }
                    return Ok(Stop::Clean);
                }
                _ => {
                    at += 8;
                    continue;
                }
            };
            let (base, after) = (header.base_seq, header.base_seq.saturating_add(header.count as u64));
            if base >= out.next_seq && after <= self.cap {
                let known = out.next_seq != 0 || self.head.is_some();
                if known
                    && base > out.next_seq
                    && header.flags & FLAG_GAP == 0
                    && !self.skip(out, at, base, past_damage)
                {
                    return Ok(Stop::Hole);
                }
                apply(base, header.count, payload)?;
                out.records += 1;
                out.next_seq = after;
                used = true;
            }
            at += record_span(payload.len());
            end = at;
        }
        if !used {
            return Ok(Stop::Unused);
        }
        let behind = window.get(end, RECORD_HEADER_LEN)?;
        Ok(if behind.is_some_and(|b| b.iter().any(|b| *b != 0)) { Stop::Broken(end) } else { Stop::Clean })
    }

    /// Notes a hole up to `to`; whether to read on behind it.
    fn skip(&self, out: &mut SalvagedLog, offset: u64, to: SeqNo, past_damage: bool) -> bool {
        let (path, from) = (self.path.clone(), out.next_seq);
        out.gaps.push(LogGap { path, offset, from, to: past_damage.then_some(to) });
        past_damage
    }
}
