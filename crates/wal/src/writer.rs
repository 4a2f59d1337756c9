//! Appending, under the commit lock.

use super::config::{Lsn, WalConfig};
use super::durable_names::EndMark;
use super::lifecycle::{Begun, Segments};
use super::log::Wal;
use super::reader::ReplayEnd;
use super::recovered::RecoveredLog;
use super::segment::{
    END_MARK_LEN, FLAG_GAP, MAX_PAYLOAD, PLAIN, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, SegmentHeader,
    WITH_FILES, WITH_POINTERS, WITH_STAGED, record_span,
};
use super::spares::Spare;
use super::sync::GroupSync;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::Stat;
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, Result, SeqNo, rare};
use kingtide_vfs::File;
use std::sync::Arc;

/// A batch, ready to append. Making one computes the payload's checksum: do it before taking the commit lock.
#[derive(Clone, Copy, Debug)]
pub struct WalRecord<'a> {
    /// The batch's serialized operations, without their sequence numbers.
    pub payload: &'a [u8],
    /// crc32c of the payload.
    pub payload_crc: u32,
    /// Whether an operation points into a value log.
    pub points: bool,
    /// Whether it says that files became part of the database.
    pub files: bool,
    /// Whether it prepares a transaction whose writes point into value logs.
    pub prepares_staged: bool,
}

impl<'a> WalRecord<'a> {
    /// Checksums the payload.
    #[inline]
    pub fn new(payload: &'a [u8]) -> WalRecord<'a> {
        let payload_crc = kingtide_base::checksum::crc(payload);
        WalRecord { payload, payload_crc, points: false, files: false, prepares_staged: false }
    }

    /// The version of a segment that may hold it. Builds that read only lower ones do not know what it holds.
    fn version(&self) -> u32 {
        match (self.prepares_staged, self.files, self.points) {
            (true, _, _) => WITH_STAGED,
            (false, true, _) => WITH_FILES,
            (false, false, true) => WITH_POINTERS,
            (false, false, false) => PLAIN,
        }
    }
}

/// The one appender of the log; it lives under the commit lock.
#[derive(Debug)]
pub struct WalWriter {
    wal: Arc<Wal>,
    active: Option<Active>,
    /// The sequence number after the last appended one.
    next_seq: SeqNo,
    /// Where the chain ends while there is no active segment: segment id and offset.
    tail: (u64, u32),
    /// The sequence number of the last append that failed when it wrote the header: see [`WalWriter::may_show_refused`].
    refused: Option<SeqNo>,
    /// A segment whose header may be in the file although writing it failed: see [`WalWriter::take_back_header`].
    doubtful: Option<Arc<dyn File>>,
}

#[derive(Debug)]
struct Active {
    id: u64,
    file: Arc<dyn File>,
    size: u64,
    /// Log position of the first byte of the file.
    base: u64,
    /// Where the next record goes.
    at: u64,
    /// The predecessor holds no record.
    after_empty: bool,
    /// The header of a record that was refused may be there.
    doubtful: bool,
    /// The version in its header, which says what its records may hold.
    version: u32,
    /// The number of the file's name, see [`super::durable_names`].
    name: u64,
}

impl Wal {
    /// Opens the log for appending behind what earlier opens left, [`RecoveredLog::none`] in a new database.
    ///
    /// Syncs what recovery read of the log, unless it had to do so itself. Never appends to an old segment: what lies behind a discarded tail stays behind it. Writes nothing before the
    /// first append, so that a database opens on a full disk; call [`Wal::prepare_spare`] soon to keep the first append
    /// fast.
    ///
    /// # Errors
    /// `Io` from syncing or listing.
    pub fn open(config: WalConfig, mut recovered: RecoveredLog) -> Result<(WalWriter, Arc<Wal>)> {
        recovered.sync_chain(&*config.fs, &config.dir)?;
        let segments = Segments::open(&config, &recovered.end)?;
        let sync = GroupSync::new(&config);
        let wal = Arc::new(Wal { segments, sync, config, quiet: Mutex::default() });
        Ok((WalWriter::new(wal.clone(), &recovered.end), wal))
    }

    /// A log that nothing is appended to and nothing read from: for a database opened for reading only. Touches no file.
    pub fn detached(config: WalConfig) -> (WalWriter, Arc<Wal>) {
        let sync = GroupSync::new(&config);
        let wal = Arc::new(Wal { segments: Segments::none(), sync, config, quiet: Mutex::default() });
        (WalWriter::new(wal.clone(), &ReplayEnd::default()), wal)
    }
}

impl WalWriter {
    pub(super) fn new(wal: Arc<Wal>, end: &ReplayEnd) -> WalWriter {
        let tail = end.segments.last().map_or((0, 0), |s| (s.id, s.end));
        WalWriter { wal, active: None, next_seq: end.next_seq, tail, refused: None, doubtful: None }
    }

    /// The shared part of the log.
    pub fn shared(&self) -> &Arc<Wal> {
        &self.wal
    }

    /// Begins a segment unless one is active, and returns the active one's id. Appends do that by themselves; call
    /// this to learn the segment's id before the first append.
    ///
    /// # Errors
    /// As [`WalWriter::append`].
    pub fn begin(&mut self) -> Result<u64> {
        self.wal.sync.check()?;
        if self.active.is_none() {
            self.rotate(0, PLAIN)?;
        }
        Ok(self.active.as_ref().map_or(0, |a| a.id))
    }

    /// Appends one batch, whose operations have the sequence numbers `base_seq .. base_seq + count`. Numbers left out
    /// since the last record are remembered as a gap on purpose. When this returns, the record survives the process;
    /// give the position to [`Wal::sync_to`] to make it survive the machine.
    ///
    /// Costs two writes to a mapped file, or one where the log is synced often; now and then a swap to a prepared spare segment, or its creation if none is
    /// ready. It waits for a sync only after writing a segment's header has failed.
    ///
    /// # Errors
    /// `NoSpace`, `Io`: nothing was appended, and a later append works as if this one had not been tried.
    /// `Poisoned`: the log is stopped for good. `InvalidArgument`: an empty batch, one of 4 GiB, or sequence numbers
    /// that were appended before.
    #[inline]
    pub fn append(&mut self, base_seq: SeqNo, count: u32, record: WalRecord<'_>) -> Result<Lsn> {
        self.wal.sync.check()?;
        if count == 0 || base_seq < self.next_seq || record.payload.len() > MAX_PAYLOAD {
            return Err(self.refuse(base_seq, count, record.payload.len()));
        }
        if self.doubtful.is_some() {
            self.take_back_header()?;
        }
        let span = record_span(record.payload.len());
        let fits = |a: &Active| a.size - a.at >= span + END_MARK_LEN && a.version >= record.version();
        if !self.active.as_ref().is_some_and(fits) {
            self.rotate(span, record.version())?;
        }
        let Some(active) = &mut self.active else {
            return Err(Error::invalid("the log has no active segment"));
        };
        debug_assert!(active.size - active.at >= span + END_MARK_LEN, "a segment has room for its end mark");
        let header = RecordHeader {
            payload_crc: record.payload_crc,
            payload_len: record.payload.len() as u32,
            count,
            base_seq,
            synced: active.synced_mark(self.wal.sync.synced()),
            flags: if base_seq > self.next_seq { FLAG_GAP } else { 0 },
        };
        if active.doubtful {
            active.zero_header()?;
        }
        let header = header.encode(active.id, active.at);
        let mut written = active.file.write_record_at(&header, record.payload, active.at);
        if let Ok(false) = written {
            // The header last: until it is there the payload is bytes that mean nothing.
            active.file.write_at(record.payload, active.at + RECORD_HEADER_LEN as u64)?;
            written = active.file.write_at(&header, active.at).map(|()| true);
        }
        if let Err(e) = written {
            rare!("log-append-failed");
            self.refused = Some(base_seq);
            // If this fails too, it is tried again before the next record.
            active.doubtful = true;
            let _ = active.zero_header();
            return Err(e);
        }
        active.at += span;
        self.next_seq = base_seq + count as u64;
        let lsn = active.base + active.at;
        self.wal.sync.set_appended(lsn);
        self.wal.config.stats.add(Stat::WalBytes, span);
        Ok(Lsn(lsn))
    }

    /// After an append from `base_seq` on failed: whether a crash may show the record all the same. Its header may have been
    /// written before it was taken back, and a power cut then keeps either.
    pub fn may_show_refused(&self, base_seq: SeqNo) -> bool {
        self.refused == Some(base_seq)
    }

    #[cold]
    fn refuse(&self, base_seq: SeqNo, count: u32, len: usize) -> Error {
        Error::invalid(format!(
            "log record of {count} operations from sequence {base_seq} and {len} bytes; \
             expected sequence {} or later, at least one operation, at most {MAX_PAYLOAD} bytes",
            self.next_seq
        ))
    }

    /// Moves to the next segment, which has room for a record of `span` bytes. Its version is that of the first record, or
    /// of the segment before if that is higher. Changes nothing when it fails.
    #[cold]
    fn rotate(&mut self, span: u64, version: u32) -> Result<()> {
        let timer = perf::begin_wait();
        let moved = self.move_on(span, version);
        timer.end(Stage::LogSwitchNs);
        moved
    }

    fn move_on(&mut self, span: u64, version: u32) -> Result<()> {
        self.take_back_header()?;
        let version = self.active.as_ref().map_or(version, |a| a.version.max(version));
        let wal = &*self.wal;
        let spare =
            wal.segments.take_spare(&wal.config, &wal.sync.names, SEGMENT_HEADER_LEN as u64 + span + END_MARK_LEN)?;
        let base = wal.sync.appended().0;
        let (prev_id, prev_end) = self.active.as_ref().map_or(self.tail, |a| (a.id, a.at as u32));
        debug_assert!(spare.id > prev_id, "segment {} is used after {prev_id}: ids ascend", spare.id);
        debug_assert!(spare.size >= SEGMENT_HEADER_LEN as u64 + span + END_MARK_LEN, "the record has no room");
        if self.active.is_some() && span > 0 {
            wal.segments.grow(&wal.config, spare.size);
        }
        // A segment without a record has nothing that a sync was asked for, so its header may not be synced although
        // all records are.
        let after_empty = self.active.as_ref().is_some_and(|a| a.base == base);
        let header = SegmentHeader {
            id: spare.id,
            prev_id,
            prev_end,
            prev_synced: wal.sync.synced().0 >= base && !after_empty,
            prev_unnamed: self.active.as_ref().is_some_and(|a| !wal.sync.names.is_durable(a.name)),
            size: spare.size as u32,
            start_seq: self.next_seq,
            boot_id: wal.config.fs.boot_id(),
        };
        if let Err(e) = spare.file.write_at(&header.encode(version), 0) {
            let file = spare.file.clone();
            wal.segments.put_back(spare);
            self.doubtful = Some(file);
            // If this fails too, it is tried again before the next record.
            let _ = self.take_back_header();
            return Err(e);
        }
        if !wal.sync.names.is_durable(spare.name) {
            rare!("log-segment-without-durable-name");
        }
        if let Some(old) = self.active.take() {
            wal.sync.names.mark_when_durable(old.end_mark(&spare, self.next_seq, wal.sync.synced()));
        }
        let begun = Begun { id: spare.id, size: spare.size, start_seq: self.next_seq, base };
        wal.segments.activated(&wal.config, begun, prev_end as u64);
        wal.sync.push_segment(spare.id, spare.file.clone(), base, spare.name);
        wal.sync.fill_within(base, spare.size);
        let at = SEGMENT_HEADER_LEN as u64;
        self.active = Some(Active {
            id: spare.id,
            file: spare.file,
            size: spare.size,
            base,
            at,
            after_empty,
            doubtful: false,
            version,
            name: spare.name,
        });
        if let Some(call) = &wal.config.on_rotate {
            call();
        }
        Ok(())
    }

    /// Overwrites a header with zeros after writing it failed, because it may be in the file all the same. It says where the
    /// records of the active segment end, so recovery would not find a record that is appended there. The zeros are synced before
    /// such a record is appended, because that record may be synced.
    ///
    /// # Errors
    /// `Io` if the write or the sync fails; the next call tries both again.
    #[cold]
    fn take_back_header(&mut self) -> Result<()> {
        let Some(file) = &self.doubtful else { return Ok(()) };
        // A failed sync does not poison the log: no record depends on it yet, and the next call writes the zeros again before it syncs.
        file.write_at(&[0; SEGMENT_HEADER_LEN], 0)?;
        file.sync_data().map_err(|e| e.at_path(file.path()))?;
        self.doubtful = None;
        Ok(())
    }

    /// Moves to a small segment if the active one is larger and holds nothing from `needed` on, so that it can be released;
    /// not if that would give up no more than the last `retention` bytes of log. Returns whether it moved. To be called
    /// after [`Wal::shrink`], and before a release.
    ///
    /// # Errors
    /// As [`WalWriter::append`].
    pub fn shrink(&mut self, needed: SeqNo, retention: u64) -> Result<bool> {
        self.wal.sync.check()?;
        let smallest = self.wal.config.smallest();
        if self.next_seq > needed || self.active.as_ref().is_none_or(|a| a.size <= smallest || a.at <= retention) {
            return Ok(false);
        }
        rare!("log-moved-to-small-segment");
        self.rotate(0, PLAIN)?;
        Ok(true)
    }

    /// Marks the end of the log and syncs it, so that the next open need not look for records behind it and damage to
    /// the last record cannot be taken for a torn one. To be called on a clean close; without it nothing is lost. An
    /// append after it begins another segment.
    ///
    /// # Errors
    /// As [`Wal::sync_to`].
    pub fn close(&mut self) -> Result<()> {
        self.wal.sync.check()?;
        self.wal.sync_all()?; // so that the marker can say that everything before it is synced
        self.take_back_header()?;
        let Some(active) = self.active.take() else { return Ok(()) };
        self.tail = (active.id, active.at as u32);
        let mark = RecordHeader::end_mark(0, self.next_seq, active.synced_mark(self.wal.synced()));
        active.file.write_at(&mark.encode(active.id, active.at), active.at)?;
        self.wal.sync.set_appended(active.base + active.at + END_MARK_LEN);
        self.wal.sync_all()?;
        // A closed database keeps no space that it does not use.
        active.file.truncate(active.at + END_MARK_LEN)?;
        self.wal.segments.drop_spares(&self.wal.config)
    }
}

impl Active {
    /// A header that failed to be written may be there all the same, or half of it. Removes it, so that the batch that was
    /// reported as failed does not come back.
    #[cold]
    fn zero_header(&mut self) -> Result<()> {
        self.file.write_at(&[0; RECORD_HEADER_LEN], self.at)?;
        self.doubtful = false;
        Ok(())
    }

    /// What a record written now may say about earlier bytes being synced; see [`RecordHeader::synced`].
    #[inline]
    fn synced_mark(&self, synced: Lsn) -> u32 {
        match synced.0.checked_sub(self.base) {
            None => 0,
            Some(0) if self.after_empty => 0, // the predecessor's header is not synced yet
            Some(in_segment) => in_segment.max(1) as u32,
        }
    }

    /// The end mark that names `successor`, for which appends leave room: see [`RecordHeader::end_mark`].
    fn end_mark(self, successor: &Spare, next_seq: SeqNo, synced: Lsn) -> EndMark {
        let mark = RecordHeader::end_mark(successor.id, next_seq, self.synced_mark(synced));
        EndMark { bytes: mark.encode(self.id, self.at), at: self.at, file: self.file, name: successor.name }
    }
}
