//! Recovery: finds the chain of segments, reads its records in order, and decides what a broken place means.
//!
//! A power cut may lose any part of what was not synced, so a broken record can be an honest torn tail: the log ends
//! there, and whatever lies behind it, in later segments too, was never acknowledged as synced and is left out, so that
//! what is recovered is a prefix. The same broken record is damage, and an error, when it is known to have been whole
//! on stable storage, or when no power cut happened since it was written. The proofs are listed at [`Walk::judge`].

use super::scan::{Evidence, Found, Window, record_at, search};
use super::segment::{HeaderState, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, SegmentHeader, record_span};
use kingtide_base::names::{parse_segment_name, segment_path};
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use kingtide_vfs::{Fs, OpenMode, is_one_write};
use std::path::{Path, PathBuf};

/// A segment that recovery read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedSegment {
    /// Its id.
    pub id: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Where its records end.
    pub end: u32,
    /// The sequence number at which it was begun.
    pub start_seq: SeqNo,
    /// The sequence number after its last.
    pub end_seq: SeqNo,
}

/// What a power cut or a kill left behind the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment in which the log ends.
    pub path: PathBuf,
    /// The offset of the first record that is not whole.
    pub offset: u64,
    /// Bytes left out from there to the last trace of a record, those of later segments included.
    pub bytes: u64,
}

/// The end of the log as [`replay`] found it; [`super::Wal::open`] goes on from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayEnd {
    /// The sequence number after the last one in the log; 1 if it has none.
    pub next_seq: SeqNo,
    /// Records replayed.
    pub records: u64,
    /// The segments of the chain, oldest first.
    pub segments: Vec<ReplayedSegment>,
    /// Other segment files: spares, and what was left out behind a torn tail.
    pub discarded: Vec<u64>,
    /// What was left out, if anything was.
    pub torn: Option<TornTail>,
    /// The log was closed cleanly.
    pub closed: bool,
    /// One of the files in `discarded` is the proof that no segment was lost behind the end: it must stay until another
    /// segment follows for good.
    pub keep_discarded: bool,
    /// It ends before a record that is whole, because a value that this points to is not.
    pub missing: bool,
}

impl ReplayEnd {
    /// Whether segment `begun` was lost, of which the manifest says that its file was made and its header written, though
    /// not that it was synced. `same_boot`: the machine was not restarted since.
    ///
    /// Without a restart a header does not go away. With one the file's name still cannot: it goes when the segment is
    /// released, but older segments are released before it, and a later one was made by then.
    pub fn lacks(&self, begun: u64, same_boot: bool) -> bool {
        if self.segments.iter().any(|s| s.id >= begun) {
            return false;
        }
        let nameless = !self.discarded.contains(&begun);
        same_boot || (nameless && (!self.segments.is_empty() || self.discarded.iter().all(|id| *id < begun)))
    }
}

impl Default for ReplayEnd {
    fn default() -> Self {
        ReplayEnd {
            next_seq: 1,
            records: 0,
            segments: Vec::new(),
            discarded: Vec::new(),
            torn: None,
            closed: false,
            keep_discarded: false,
            missing: false,
        }
    }
}

/// Ids of the segment files in a directory, ascending.
///
/// # Errors
/// I/O errors from listing the directory.
pub fn list_segments(fs: &dyn Fs, dir: &Path) -> Result<Vec<u64>> {
    let mut ids: Vec<u64> = fs.list(dir)?.iter().filter_map(|n| parse_segment_name(n)).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Reads the log in `dir` and gives each record to `apply` as (first sequence number, operations, payload). Changes no
/// byte, so it may run any number of times.
///
/// `segments` are all segment files ([`list_segments`]). `needed_from` is the first sequence number that the caller
/// cannot do without, or 0: a log that begins later than that has lost its beginning.
///
/// # Errors
/// `Corruption` with file and offset when a record is damaged that no power cut can have torn, or a segment is missing;
/// records before it were applied by then. `NewerFormat`. Errors of `apply`, and of reading.
pub fn replay(
    fs: &dyn Fs,
    dir: &Path,
    segments: &[u64],
    needed_from: SeqNo,
    mut apply: impl FnMut(SeqNo, u32, &[u8]) -> Result<()>,
) -> Result<ReplayEnd> {
    let mut walk = Walk::open(fs, dir, segments)?;
    let chain = walk.find_chain(needed_from)?;
    walk.read_chain(&chain, &mut Plain(&mut apply))?;
    Ok(walk.end)
}

/// As [`replay`] for a caller that inspects records, if `live` while a writer may append (a record that is whole when it is
/// looked at again was appended meanwhile; it and what follows it are left out): one that the caller finds
/// incomplete is judged as one whose own bytes are missing.
///
/// # Errors
/// As [`replay`]. For a record with missing parts that no power cut can have taken, the error that `records` returned.
pub fn replay_records(
    fs: &dyn Fs,
    dir: &Path,
    segments: &[u64],
    needed_from: SeqNo,
    live: bool,
    records: &mut dyn Records,
) -> Result<ReplayEnd> {
    let mut walk = Walk::open(fs, dir, segments)?;
    walk.live = live;
    let chain = walk.find_chain(needed_from)?;
    walk.read_chain(&chain, records)?;
    Ok(walk.end)
}

/// Takes the log's records, in order.
pub trait Records {
    /// What of a record is missing elsewhere: a value that it points to. Asked before [`Records::apply`].
    ///
    /// # Errors
    /// Any; it ends the replay.
    fn missing(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Option<Error>>;

    /// Takes a record: its first sequence number, its number of operations, its payload.
    ///
    /// # Errors
    /// Any; it ends the replay.
    fn apply(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<()>;
}

impl<M, A> Records for (M, A)
where
    M: FnMut(SeqNo, u32, &[u8]) -> Result<Option<Error>>,
    A: FnMut(SeqNo, u32, &[u8]) -> Result<()>,
{
    fn missing(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Option<Error>> {
        (self.0)(base, count, payload)
    }

    fn apply(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<()> {
        (self.1)(base, count, payload)
    }
}

/// Records that are whole by themselves.
struct Plain<'a>(&'a mut dyn FnMut(SeqNo, u32, &[u8]) -> Result<()>);

impl Records for Plain<'_> {
    fn missing(&mut self, _: SeqNo, _: u32, _: &[u8]) -> Result<Option<Error>> {
        Ok(None)
    }

    fn apply(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<()> {
        (self.0)(base, count, payload)
    }
}

struct Segment {
    id: u64,
    path: PathBuf,
    len: u64,
    /// `None`: the first bytes are no header of this segment.
    head: Option<SegmentHeader>,
}

struct Walk<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    boot_id: [u8; 16],
    /// A writer may append meanwhile.
    live: bool,
    all: Vec<Segment>,
    end: ReplayEnd,
}

/// How the records of a segment ended.
enum Stop {
    /// At the place where the next segment says, or where the file has no room for another.
    Full,
    /// At an end marker.
    Marker(RecordHeader),
    /// At something that is not a record; with its header if that is whole.
    Broken(Option<RecordHeader>),
    /// At a record that is whole, but refers to something that is not.
    Missing(Error),
}

/// What reading a segment in order gave.
struct SegmentRead {
    stop: Stop,
    /// Where it stopped.
    at: u64,
    /// The greatest synced mark.
    synced: u32,
}

/// A broken place.
struct Break {
    at: u64,
    header_whole: bool,
    /// Whether it may have been written at once with its header. If so, the header proves nothing.
    one_write: bool,
    /// The greatest synced mark before it.
    synced: u32,
    /// The record is whole, but what it refers to is not.
    missing: Option<Error>,
}

impl Walk<'_> {
    fn open<'a>(fs: &'a dyn Fs, dir: &'a Path, ids: &[u64]) -> Result<Walk<'a>> {
        let mut all = Vec::with_capacity(ids.len());
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for id in sorted {
            let path = segment_path(dir, id);
            let mut window = Window::new(fs.open(&path, OpenMode::Read)?)?;
            let len = window.len();
            let state = match window.get_small(SEGMENT_HEADER_LEN)? {
                Some(bytes) => SegmentHeader::decode(bytes, id),
                None => HeaderState::Invalid,
            };
            let head = match state {
                HeaderState::Valid(head) => Some(head),
                HeaderState::Invalid => None,
                HeaderState::Newer(version) => {
                    let text = format!("log segment of format version {version}, newer than this build reads");
                    return Err(Error::new(ErrorKind::NewerFormat, text).at_path(&path));
                }
            };
            all.push(Segment { id, path, len, head });
        }
        // A boot id of zeros means that the system does not tell.
        Ok(Walk { fs, dir, boot_id: fs.boot_id(), live: false, all, end: ReplayEnd::default() })
    }

    fn window(&self, i: usize) -> Result<Window> {
        Window::new(self.fs.open(&self.all[i].path, OpenMode::Read)?)
    }

    fn corrupt(&self, i: usize, offset: u64, what: &str) -> Error {
        Error::corruption(format!("write-ahead log: {what}")).at_path(&self.all[i].path).at_offset(offset)
    }

    /// Whether the segment was begun since the machine last started, so that nothing written to it can be lost.
    fn is_same_boot(&self, i: usize) -> bool {
        self.all[i].head.as_ref().is_some_and(|h| h.boot_id == self.boot_id && h.boot_id != [0; 16])
    }

    fn start_seq(&self, i: usize) -> SeqNo {
        self.all[i].head.as_ref().map_or(0, |h| h.start_seq)
    }

    /// Whether some header or record of these segments says that all segments before the first of them were synced.
    fn prove_synced_before(&self, segments: &[usize]) -> Result<bool> {
        for &i in segments {
            if self.all[i].head.as_ref().is_some_and(|h| h.prev_synced) {
                return Ok(true);
            }
            let start = self.start_seq(i);
            if search(&mut self.window(i)?, self.all[i].id, SEGMENT_HEADER_LEN as u64, start)?.synced > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Follows the headers back from the last segment that has one. Returns indexes, oldest first.
    fn find_chain(&mut self, needed_from: SeqNo) -> Result<Vec<usize>> {
        let mut chain: Vec<usize> = Vec::new(); // newest first
        let Some(mut i) = self.all.iter().rposition(|s| s.head.is_some()) else { return Ok(chain) };
        loop {
            chain.push(i);
            let Some(head) = self.all[i].head.clone() else { break };
            if head.prev_id == 0 {
                break;
            }
            match self.all.binary_search_by_key(&head.prev_id, |s| s.id) {
                Ok(j) if j < i && self.all[j].head.is_some() => i = j,
                Ok(j) if j < i => {
                    chain.reverse();
                    match self.lost_header(j, &chain)? {
                        Some(earlier) => (i, chain) = (earlier, Vec::new()),
                        None => return Ok(Vec::new()),
                    }
                }
                Ok(_) => return Err(self.corrupt(i, 0, "a segment names itself or a later one as its predecessor")),
                Err(_) => match self.lost_file(i, &head, &mut chain, needed_from)? {
                    Some(earlier) => i = earlier,
                    None => break,
                },
            }
        }
        chain.reverse();
        Ok(chain)
    }

    /// The file of segment `i`'s predecessor is not there. `None`: the chain begins with segment `i`, because what came before
    /// was given up. Damage, unless a power cut can have taken the file: then the log ends before it, and the chain is
    /// empty, or is sought again from the segment returned.
    fn lost_file(
        &mut self,
        i: usize,
        head: &SegmentHeader,
        chain: &mut Vec<usize>,
        needed_from: SeqNo,
    ) -> Result<Option<usize>> {
        let needed = needed_from != 0 && head.start_seq > needed_from;
        let earlier = self.all[..i].iter().rposition(|s| s.head.is_some());
        if earlier.is_none() && !needed {
            return Ok(None);
        }
        let after: Vec<usize> = chain.drain(..).rev().collect();
        let path = segment_path(self.dir, head.prev_id);
        if !head.prev_unnamed || self.is_same_boot(after[0]) || self.prove_synced_before(&after)? {
            return Err(Error::corruption("write-ahead log: a segment is missing").at_path(&path));
        }
        let bytes = after.iter().map(|&i| self.all[i].len).sum::<u64>();
        rare!("log-lost-name");
        self.end.torn.get_or_insert(TornTail { path, offset: 0, bytes });
        Ok(earlier)
    }

    /// Segment `j` has successors but no header. Damage, unless a power cut can have taken it: then the log ends before
    /// it, and the chain is sought again from the segment returned.
    fn lost_header(&mut self, j: usize, after: &[usize]) -> Result<Option<usize>> {
        let id = self.all[j].id;
        let own = search(&mut self.window(j)?, id, SEGMENT_HEADER_LEN as u64, 0)?;
        if self.is_same_boot(after[0])
            || own.synced as usize >= SEGMENT_HEADER_LEN
            || self.prove_synced_before(after)?
        {
            return Err(self.corrupt(j, 0, "the header of a segment is damaged"));
        }
        let bytes = own.end + after.iter().map(|&i| self.all[i].len).sum::<u64>();
        rare!("log-lost-header");
        self.end.torn.get_or_insert(TornTail { path: self.all[j].path.clone(), offset: 0, bytes });
        Ok(self.all[..j].iter().rposition(|s| s.head.is_some()))
    }

    fn read_chain(&mut self, chain: &[usize], records: &mut dyn Records) -> Result<()> {
        let mut used = chain.len();
        if let Some(&first) = chain.first() {
            self.end.next_seq = self.start_seq(first);
        }
        for (n, &i) in chain.iter().enumerate() {
            if self.start_seq(i) != self.end.next_seq {
                return Err(self.corrupt(i, 0, "a segment does not continue its predecessor's sequence numbers"));
            }
            let next_head = chain.get(n + 1).and_then(|&k| self.all[k].head.as_ref());
            let next_end = next_head.map(|h| h.prev_end as u64);
            let SegmentRead { stop, at, synced } = self.read_segment(i, next_end, records)?;
            let s = &self.all[i];
            let (id, size, start_seq) = (s.id, s.len, self.start_seq(i));
            self.end.segments.push(ReplayedSegment { id, size, end: at as u32, start_seq, end_seq: self.end.next_seq });
            match (stop, next_end.is_some()) {
                (Stop::Full, _) => {}
                (Stop::Marker(_), true) => return Err(self.corrupt(i, at, "an end marker before the segment's end")),
                (Stop::Marker(mark), false) => match mark.successor() {
                    None => {
                        rare!("recovery-of-closed-log");
                        self.end.closed = true;
                    }
                    Some(successor) => self.check_successor(i, successor)?,
                },
                (Stop::Broken(header), _) => {
                    let header_whole = header.is_some();
                    let len = header.map_or(0, |h| RECORD_HEADER_LEN + h.payload_len as usize);
                    let broken = Break { at, header_whole, one_write: is_one_write(at, len), synced, missing: None };
                    self.judge(i, broken, &chain[n + 1..])?;
                    used = n + 1;
                    break;
                }
                (Stop::Missing(what), _) => {
                    let missing = Some(what);
                    let broken = Break { at, header_whole: true, one_write: false, synced, missing };
                    self.judge(i, broken, &chain[n + 1..])?;
                    rare!("direct-value-torn-at-recovery");
                    self.end.missing = true;
                    used = n + 1;
                    break;
                }
            }
        }
        self.look_behind(&chain[..used])?;
        let in_chain: Vec<u64> = self.end.segments.iter().map(|s| s.id).collect();
        self.end.discarded = self.all.iter().map(|s| s.id).filter(|id| !in_chain.contains(id)).collect();
        Ok(())
    }

    fn read_segment(&mut self, i: usize, next_end: Option<u64>, records: &mut dyn Records) -> Result<SegmentRead> {
        let mut window = self.window(i)?;
        let id = self.all[i].id;
        // Not the file's length, which damage may have cut.
        let size = self.all[i].head.as_ref().map_or(0, |h| h.size as u64);
        let limit = next_end.unwrap_or(size);
        let mut at = SEGMENT_HEADER_LEN as u64;
        let mut synced = 0;
        loop {
            if at == limit || (next_end.is_none() && limit.saturating_sub(at) < RECORD_HEADER_LEN as u64) {
                return Ok(SegmentRead { stop: Stop::Full, at, synced });
            }
            let stop = |stop| Ok(SegmentRead { stop, at, synced });
            let (header, payload) = match record_at(&mut window, id, at, limit)? {
                Found::Record(header, payload) => (header, payload),
                Found::End(header) => return stop(Stop::Marker(header)),
                Found::HeaderOnly(header) => return stop(Stop::Broken(Some(header))),
                Found::Nothing => return stop(Stop::Broken(None)),
            };
            synced = synced.max(header.synced);
            let gap = header.flags & super::segment::FLAG_GAP != 0;
            let (base, expected) = (header.base_seq, self.end.next_seq);
            let Some(next) =
                base.checked_add(header.count as u64).filter(|_| base > expected || (base == expected && !gap))
            else {
                let what = format!("a record begins at sequence {base} where {expected} was expected");
                return Err(self.corrupt(i, at, &what));
            };
            if base > expected && !gap {
                let what = format!("records are missing: sequence {base} where {expected} was expected");
                return Err(self.corrupt(i, at, &what));
            }
            if let Some(what) = records.missing(base, header.count, payload)? {
                return Ok(SegmentRead { stop: Stop::Missing(what), at, synced });
            }
            records.apply(base, header.count, payload)?;
            self.end.records += 1;
            self.end.next_seq = next;
            at += record_span(payload.len());
        }
    }

    /// Segment `i` is broken; `later` are the segments that the chain has after it. Damage if one of these holds:
    ///
    /// 1. No power cut since the segment was begun, and a record lies behind the place, or the header there is whole (it
    ///    is written after its payload, unless [`is_one_write`] is true), or the file is short: a killed process leaves no holes.
    /// 2. A record behind the place says that more bytes of the segment were synced when it was written.
    /// 3. A later segment's header or record says that everything before that segment was synced.
    /// 4. The file is shorter than the header says, and was synced since.
    ///
    /// Otherwise the log ends here. A later segment without a header proves nothing: it may have been begun by a recovery
    /// that ended the log at this very place.
    fn judge(&mut self, i: usize, broken: Break, later: &[usize]) -> Result<()> {
        let Break { at, header_whole, one_write, synced, missing } = broken;
        let behind = search(&mut self.window(i)?, self.all[i].id, at + 8, self.end.next_seq)?;
        let short = self.all[i].head.as_ref().is_some_and(|h| self.all[i].len < h.size as u64);
        let has_later = behind.records > 0 || !later.is_empty();
        let damaged = (self.is_same_boot(i) && (has_later || (header_whole && !one_write) || short))
            || behind.synced as u64 > at
            || (short && synced as usize >= SEGMENT_HEADER_LEN)
            || self.prove_synced_before(later)?;
        if damaged && self.live && missing.is_none() && later.is_empty() && self.is_whole(i, at)? {
            return Ok(()); // appended since, and what was found behind it too
        }
        if let Some(e) = missing.filter(|_| damaged) {
            return Err(e);
        }
        if damaged {
            return Err(self.corrupt(
                i,
                at,
                if short { "a record is damaged, or the file was cut" } else { "a record is damaged" },
            ));
        }
        if has_later || header_whole || short {
            let bytes = behind.end.max(at + RECORD_HEADER_LEN as u64) - at
                + later.iter().map(|&k| self.all[k].len).sum::<u64>();
            rare!("log-torn-tail");
            self.end.torn = Some(TornTail { path: self.all[i].path.clone(), offset: at, bytes });
        }
        Ok(())
    }

    /// The chain ends with sealed segment `i`, which names the next one. A power cut can have taken the header of that, but
    /// not its name; and nothing else can have made it shorter than a header, for it had its size before its name.
    fn check_successor(&mut self, i: usize, successor: u64) -> Result<()> {
        let path = segment_path(self.dir, successor);
        let known = self.all.binary_search_by_key(&successor, |s| s.id);
        if let Ok(j) = known
            && self.is_same_boot(i)
            && self.window(j)?.len() < SEGMENT_HEADER_LEN as u64
        {
            return Err(self.corrupt(j, 0, "the last segment was cut"));
        }
        if known.is_ok() || (self.live && self.fs.exists(&path)?) {
            self.end.keep_discarded = known.is_ok();
            return Ok(());
        }
        Err(Error::corruption("write-ahead log: the last segment is missing").at_path(&path))
    }

    /// Whether there is a record at that place now.
    fn is_whole(&self, i: usize, at: u64) -> Result<bool> {
        let mut window = self.window(i)?;
        let limit = window.len();
        Ok(matches!(record_at(&mut window, self.all[i].id, at, limit)?, Found::Record(..) | Found::End(_)))
    }

    /// Looks at segments after the end of the chain that have no header: spares that were never used, or a segment whose
    /// header is lost.
    fn look_behind(&mut self, chain: &[usize]) -> Result<()> {
        let last = chain.last().copied();
        if self.end.closed && self.live {
            return Ok(()); // a writer may begin a segment there at this moment
        }
        let from = last.map_or(0, |i| i + 1);
        for k in from..self.all.len() {
            if self.all[k].head.is_some() {
                continue; // judged with the chain
            }
            let found: Evidence =
                search(&mut self.window(k)?, self.all[k].id, SEGMENT_HEADER_LEN as u64, self.end.next_seq)?;
            let same_boot = last.is_some_and(|i| self.is_same_boot(i));
            if found.synced as usize >= SEGMENT_HEADER_LEN || (same_boot && found.records > 0) {
                return Err(self.corrupt(k, 0, "the header of a segment is damaged"));
            }
            if found.records > 0 && self.end.torn.is_none() {
                let path = self.all[k].path.clone();
                self.end.torn = Some(TornTail { path, offset: 0, bytes: found.end });
            }
        }
        Ok(())
    }
}
