//! Showing a single segment, for tools: what it holds by itself, whatever the log that it belongs to makes of it.

use super::scan::{Found, Window, record_at};
use super::segment::{FLAG_GAP, HeaderState, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, SegmentHeader, record_span};
use kingtide_base::names::FileName;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_vfs::{File, Fs, OpenMode};
use std::path::Path;
use std::sync::Arc;

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
/// shows what it held. The log may be written to while it is read. Changes no byte; memory is bounded by the largest record.
///
/// # Errors
/// `InvalidArgument` for a file whose name is no segment's; `NotFound`, possibly after parts were shown, if the log releases the
/// segment meanwhile; `NewerFormat`; of reading; of `show`.
pub fn dump_segment(fs: &dyn Fs, path: &Path, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(FileName::Segment(id) | FileName::FreeSegment(id)) = FileName::parse(&name) else {
        return Err(Error::invalid("not the name of a log segment, such as 000012.wal").at_path(path));
    };
    let window = Window::new(fs.open(path, OpenMode::Read)?)?;
    let mut segment = Segment { fs, path, id, window };
    let mut resumes = None;
    let mut state = segment.header()?;
    if state == HeaderState::Invalid {
        resumes = segment.next_record(SEGMENT_HEADER_LEN as u64)?;
        segment.read_anew()?;
        state = segment.header()?;
        if state == HeaderState::Invalid {
            drop(segment.open()?);
        }
    }
    match state {
        HeaderState::Valid(head) => show(SegmentPart::Header {
            id,
            previous: head.prev_id,
            previous_end: head.prev_end,
            previous_synced: head.prev_synced,
            size: head.size,
            start: head.start_seq,
        })?,
        // A spare, which has no header yet.
        HeaderState::Invalid if resumes.is_none() => return show(SegmentPart::Unused { offset: 0 }),
        HeaderState::Invalid => show(SegmentPart::Broken { offset: 0, header_whole: false, resumes })?,
        HeaderState::Newer(version) => {
            let text = format!("log segment of format version {version}, newer than this build reads");
            return Err(Error::new(ErrorKind::NewerFormat, text).at_path(path));
        }
    }
    segment.dump_records(show)
}

/// A segment that may be written while it is read, or given up and used again.
struct Segment<'a> {
    fs: &'a dyn Fs,
    path: &'a Path,
    id: u64,
    window: Window,
}

impl Segment<'_> {
    fn header(&mut self) -> Result<HeaderState> {
        let bytes = self.window.get_small(SEGMENT_HEADER_LEN)?;
        Ok(bytes.map_or(HeaderState::Invalid, |b| SegmentHeader::decode(b, self.id)))
    }

    fn dump_records(&mut self, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<()> {
        let mut offset = SEGMENT_HEADER_LEN as u64;
        while let Some(next) = self.show_record(offset, show)? {
            offset = next;
        }
        Ok(())
    }

    /// Shows what begins at `offset`, and returns where to go on.
    fn show_record(&mut self, offset: u64, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<Option<u64>> {
        if let Shown::Whole(next) = self.show_whole(offset, show)? {
            return Ok(Some(next));
        }
        let resumes = self.next_record(offset + 8)?;
        self.read_anew()?;
        let header_whole = match self.show_whole(offset, show)? {
            Shown::Whole(next) => return Ok(Some(next)),
            Shown::Nothing { header_whole } => header_whole,
        };
        drop(self.open()?);
        if !header_whole && resumes.is_none() {
            show(SegmentPart::Unused { offset })?;
        } else {
            show(SegmentPart::Broken { offset, header_whole, resumes })?;
        }
        Ok(resumes)
    }

    fn show_whole(&mut self, offset: u64, show: &mut dyn FnMut(SegmentPart<'_>) -> Result<()>) -> Result<Shown> {
        let limit = self.window.len();
        match record_at(&mut self.window, self.id, offset, limit)? {
            Found::Record(h, payload) => {
                let gap = h.flags & FLAG_GAP != 0;
                let (sequence, count, synced) = (h.base_seq, h.count, h.synced);
                show(SegmentPart::Record { offset, sequence, count, synced, gap, payload })?;
                Ok(Shown::Whole(offset + record_span(payload.len())))
            }
            Found::End(h) => {
                show(SegmentPart::End { offset, successor: h.successor() })?;
                Ok(Shown::Whole(offset + RECORD_HEADER_LEN as u64))
            }
            Found::HeaderOnly(_) => Ok(Shown::Nothing { header_whole: true }),
            Found::Nothing => Ok(Shown::Nothing { header_whole: false }),
        }
    }

    /// Lets a place be read again before it is called broken or unused. Records are written in order, so if a record was found behind the
    /// place, one that is at the place must be whole by now. The file may also have grown.
    fn read_anew(&mut self) -> Result<()> {
        self.window = Window::new(self.open()?)?;
        Ok(())
    }

    /// Opens the segment again. If that succeeds, what was read before belongs to this segment: it loses its name before the file is reused,
    /// and no other segment ever gets that name.
    fn open(&self) -> Result<Arc<dyn File>> {
        self.fs.open(self.path, OpenMode::Read).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let text = "the segment was released or reused while it was being read";
                Error::new(ErrorKind::NotFound, text).at_path(self.path)
            }
            _ => e,
        })
    }

    /// Where the first whole record or end mark from `offset` on begins. O(bytes).
    fn next_record(&mut self, offset: u64) -> Result<Option<u64>> {
        let limit = self.window.len();
        let mut at = offset.next_multiple_of(8);
        while at + RECORD_HEADER_LEN as u64 <= limit {
            if matches!(record_at(&mut self.window, self.id, at, limit)?, Found::Record(..) | Found::End(_)) {
                return Ok(Some(at));
            }
            at += 8;
        }
        Ok(None)
    }
}

/// What became of a place.
enum Shown {
    /// A record or mark, which ends here.
    Whole(u64),
    /// No record, at most the header of one.
    Nothing { header_whole: bool },
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Log, SEGMENT, config, filled, open};
    use super::super::{RecoveredLog, Wal, WalConfig};
    use super::*;
    use kingtide_base::names::{free_path, segment_path};
    use kingtide_base::sync::Mutex;
    use kingtide_vfs::{FaultFs, MemFs, Op};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Dumps segment `id` of a log in memory, and does something to the log before read `nth` of it: 1 is that of its length, 2 of its
    /// header, 3 of its first records.
    fn dump_while(id: u64, nth: u64, log: Log, fs: &Arc<dyn Fs>, act: fn(&mut Log, &dyn Fs)) -> Result<Vec<String>> {
        let watched = FaultFs::new(fs.clone(), 1);
        let (log, reads, below) = (Mutex::new(log), AtomicU64::new(0), fs.clone());
        watched.before_each(Some(Arc::new(move |op, _| {
            if op == Op::Read && reads.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                act(&mut log.lock(), &*below);
            }
        })));
        let mut parts = Vec::new();
        let dumped = dump_segment(&watched, &segment_path(Path::new("db"), id), &mut |part| {
            parts.push(match part {
                SegmentPart::Header { .. } => "header".to_owned(),
                SegmentPart::Record { payload, .. } => format!("record of {}", payload.len()),
                other => format!("{other:?}"),
            });
            Ok(())
        });
        dumped.map(|()| parts)
    }

    /// The spare has no header when it is looked for, and records when these are.
    #[test]
    fn a_spare_that_becomes_active_while_it_is_read_is_not_damaged() {
        let fs = MemFs::shared();
        let log = open(&fs).unwrap();
        log.wal.prepare_spare().unwrap();
        let parts = dump_while(1, 3, log, &fs, |log, _| _ = log.append(b"first").unwrap()).unwrap();
        assert_eq!(parts[..2], ["header", "record of 5"], "{parts:?}");
        assert!(matches!(&parts[2..], [last] if last.starts_with("Unused")), "{parts:?}");
    }

    /// Not yet there when the beginning of the segment was read, it is when the part behind it is.
    #[test]
    fn records_that_are_written_while_a_segment_is_read_are_not_damaged() {
        let fs = MemFs::shared();
        let mut log = open(&fs).unwrap();
        let config = WalConfig { segment_size: 4 << 20, ..config(&fs, 4 << 20, 1) };
        (log.writer, log.wal) = Wal::open(config, RecoveredLog::none(log.next_seq)).unwrap();
        let id = log.writer.begin().unwrap();
        let parts = dump_while(id, 4, log, &fs, |log, _| {
            log.append(&filled(3 << 19, 1)).unwrap();
            log.append(b"behind").unwrap();
        })
        .unwrap();
        assert_eq!(parts[..3], ["header", "record of 1572864", "record of 6"], "{parts:?}");
        assert_eq!(parts.len(), 4, "{parts:?}");
    }

    /// Released and begun again under another name, it holds records of both until the last of the first are overwritten.
    #[test]
    fn a_segment_that_is_used_again_while_it_is_read_is_gone_and_not_damaged() {
        for nth in [2, 3, 4] {
            let fs = MemFs::shared();
            let mut log = open(&fs).unwrap();
            for _ in 0..8 {
                log.append(&filled(SEGMENT as usize / 8 - 64, 1)).unwrap();
            }
            let e = dump_while(1, nth, log, &fs, |_, fs| {
                let (old, free, new) = (
                    segment_path(Path::new("db"), 1),
                    free_path(Path::new("db"), 1),
                    segment_path(Path::new("db"), 99),
                );
                fs.rename(&old, &free).unwrap();
                fs.rename(&free, &new).unwrap();
                fs.open(&new, OpenMode::Write).unwrap().write_at(&[7; 700], 0).unwrap();
            })
            .unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFound, "before read {nth}: {e}");
        }
    }

    #[test]
    fn damage_stays_damage() {
        let fs = MemFs::shared();
        let mut log = open(&fs).unwrap();
        (0..3).for_each(|_| _ = log.append(&filled(100, 1)).unwrap());
        let parts = dump_while(1, 1, log, &fs, |_, fs| {
            let file = fs.open(&segment_path(Path::new("db"), 1), OpenMode::Write).unwrap();
            file.write_at(&[7; 8], 64).unwrap();
        })
        .unwrap();
        assert_eq!(parts[1], "Broken { offset: 64, header_whole: false, resumes: Some(200) }", "{parts:?}");
        assert_eq!(parts[2..4], ["record of 100", "record of 100"], "{parts:?}");
    }
}
