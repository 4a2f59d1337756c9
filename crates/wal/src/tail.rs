//! Following the log while it is written.
//!
//! A follower reads the same segment files as recovery does, through handles of its own. It never looks at bytes that
//! the writer may still write: of the active segment it reads up to the end of the last append, which the writer makes
//! known after the record is whole. Segments may be given up and overwritten while they are read. Before that can happen
//! they are marked as gone, so what was read from a segment that is not marked afterwards is what was written there.

use super::log::Wal;
use super::scan::{Found, Window, record_at};
use super::segment::{RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, record_span};
use kingtide_base::memory::copied;
use kingtide_base::names::segment_path;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_vfs::OpenMode;
use std::sync::Arc;

/// A place in the log that moves from record to record.
#[derive(Debug)]
pub struct Tail {
    wal: Arc<Wal>,
    /// The first sequence number not passed yet.
    next_seq: SeqNo,
    /// Only records that are synced.
    durable: bool,
    /// The segment that holds it; `None` when that is to be found out.
    open: Option<Open>,
}

struct Open {
    id: u64,
    window: Window,
    /// Where the next record begins.
    at: u64,
    /// Where reading must stop for now.
    end: u64,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {} at {} of {}", self.id, self.at, self.end)
    }
}

/// What comes next in the log.
#[derive(Debug, PartialEq, Eq)]
pub enum TailItem {
    /// A record with its first sequence number, number of operations, and payload.
    Record(SeqNo, u32, Vec<u8>),
    /// These numbers were given to operations that are not in the log. [`Tail::pass`] goes on behind them.
    Missing(SeqNo, SeqNo),
}

/// What was found where a record should be.
enum NextRecord {
    Record(SeqNo, u32, Vec<u8>),
    /// Lies before the place, or is an end marker.
    Passed,
    /// Begins after a hole in the numbers.
    Hole(SeqNo),
    /// Not visible yet.
    Later,
    Unreadable,
}

impl Tail {
    /// A follower that reads what comes after sequence number `after`; with `durable`, only what is synced.
    pub fn new(wal: Arc<Wal>, after: SeqNo, durable: bool) -> Tail {
        Tail { wal, next_seq: after.saturating_add(1), durable, open: None }
    }

    /// The first sequence number not passed yet.
    pub fn next_seq(&self) -> SeqNo {
        self.next_seq
    }

    /// Goes on behind `seq`.
    pub fn pass(&mut self, seq: SeqNo) {
        self.next_seq = self.next_seq.max(seq.saturating_add(1));
    }

    /// Goes back to the record that begins at `seq`.
    pub fn go_back(&mut self, seq: SeqNo) {
        self.next_seq = seq;
        self.open = None;
    }

    /// Opens the segment that holds the place, if there is one yet.
    ///
    /// # Errors
    /// `TooOld`, `Io`.
    pub fn check(&mut self) -> Result<()> {
        if self.open.is_none() {
            self.find_segment()?;
        }
        Ok(())
    }

    /// The next record, if all its operations are `visible`, a number that was read before this call. A record that
    /// holds the place in its midst is given whole. `None`: not yet.
    ///
    /// # Errors
    /// `TooOld`, naming the oldest sequence number available, when the log was given up past the place; `Corruption`
    /// with file and offset; `Io`.
    pub fn next(&mut self, visible: SeqNo) -> Result<Option<TailItem>> {
        loop {
            if self.open.is_none() && !self.find_segment()? {
                return Ok(self.missing_at_end(visible));
            }
            let Some(open) = &mut self.open else { continue };
            if open.at >= open.end {
                match self.wal.segments.span(&self.wal.sync, self.durable, open.id) {
                    Some(span) if span.end > open.end => {
                        open.end = span.end;
                        open.window.extend_to(span.end);
                    }
                    Some(span) if !span.complete => return Ok(self.missing_at_end(visible)),
                    _ => self.open = None, // there is another after it
                }
                continue;
            }
            let loads = open.window.loads();
            let next = open.read_record(self.next_seq, visible);
            if open.window.loads() != loads && !self.wal.segments.is_live(open.id) {
                self.open = None; // what was read may be anything, a failure too
                continue;
            }
            match next? {
                NextRecord::Record(base, count, payload) => {
                    open.at += record_span(payload.len());
                    self.next_seq = base + count as u64;
                    return Ok(Some(TailItem::Record(base, count, payload)));
                }
                NextRecord::Passed => {}
                NextRecord::Hole(base) => return Ok(Some(TailItem::Missing(self.next_seq, base - 1))),
                NextRecord::Later => return Ok(self.missing_at_end(visible)),
                NextRecord::Unreadable => {
                    let path = segment_path(&self.wal.config.dir, open.id);
                    let e = Error::corruption("write-ahead log: a record is damaged");
                    return Err(e.at_path(&path).at_offset(open.at));
                }
            }
        }
    }

    /// Everything logged up to `visible` was read, so what is visible beyond the place is not in the log and never will
    /// be. What is not logged is not durable either, until a flush that nothing tells of.
    fn missing_at_end(&self, visible: SeqNo) -> Option<TailItem> {
        (!self.durable && self.next_seq <= visible).then_some(TailItem::Missing(self.next_seq, visible))
    }

    /// Opens the segment that holds the place. False when there is none yet.
    fn find_segment(&mut self) -> Result<bool> {
        loop {
            let Some(span) = self.wal.segments.span_from(&self.wal.sync, self.durable, self.next_seq) else {
                return Ok(false);
            };
            if span.start_seq > self.next_seq {
                return Err(too_old(self.next_seq - 1, span.start_seq - 1));
            }
            let path = segment_path(&self.wal.config.dir, span.id);
            let file = match self.wal.config.fs.open(&path, OpenMode::Read) {
                Ok(file) => file,
                Err(_) if !self.wal.segments.is_live(span.id) => continue, // given up meanwhile
                Err(e) => return Err(e),
            };
            let window = Window::up_to(file, span.end);
            let (at, end) = (SEGMENT_HEADER_LEN as u64, span.end);
            self.open = Some(Open { id: span.id, window, at, end });
            return Ok(true);
        }
    }
}

impl Open {
    /// Reads the record at the place, and moves over it if it lies before `next_seq`.
    fn read_record(&mut self, next_seq: SeqNo, visible: SeqNo) -> Result<NextRecord> {
        match record_at(&mut self.window, self.id, self.at, self.end)? {
            Found::Record(header, payload) => {
                let Some(after) = header.base_seq.checked_add(header.count as u64) else {
                    return Ok(NextRecord::Unreadable);
                };
                if after <= next_seq {
                    self.at += record_span(payload.len());
                    return Ok(NextRecord::Passed);
                }
                if after - 1 > visible {
                    return Ok(NextRecord::Later);
                }
                if header.base_seq > next_seq {
                    return Ok(NextRecord::Hole(header.base_seq));
                }
                Ok(NextRecord::Record(header.base_seq, header.count, copied(payload, "a log record")?))
            }
            Found::End(_) => {
                self.at += RECORD_HEADER_LEN as u64;
                Ok(NextRecord::Passed)
            }
            Found::Nothing | Found::HeaderOnly(_) => Ok(NextRecord::Unreadable),
        }
    }
}

/// The log was given up past `seq`; what came after `oldest` is there.
#[cold]
fn too_old(seq: SeqNo, oldest: SeqNo) -> Error {
    Error::new(
        ErrorKind::TooOld,
        format!(
            "the log no longer holds all changes since sequence number {seq}; it holds those since {oldest}. Copy the \
             data at a snapshot and go on from its number, or raise `change_retention`"
        ),
    )
}
