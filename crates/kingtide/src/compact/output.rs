//! The files that a merge writes: cut by size, at boundaries and where streams of keys end, with range tombstones truncated
//! at the cuts and values separated into value logs.

use super::context::{Lookup, MergeContext, MergeOutput};
use super::raise;
use crate::rangedel::RangeTombstone;
use kingtide_base::budget::Charge;
use kingtide_base::key::{EXPIRY_FLAG, split_expiry};
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag, rare};
use kingtide_table::{Codec, Packed, TableInfo, TableOptions, TableWriter, ValuePointer, Vlog, VlogWriter};
use kingtide_versions::{FileMeta, Streams, VlogMeta, vlog_size};
use kingtide_vfs::{File, OpenMode};
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Value logs that are kept at hand while values are moved out of them. A table may have values in thousands, and a file stays open as
/// long as it is here, whatever `max_open_files` says.
const MOST_SOURCES: usize = 8;

/// Where a merge writes.
pub struct Placement<'a> {
    /// Level of the result.
    pub level: usize,
    /// Run of the result.
    pub run: u64,
    /// Preferred cuts, ascending.
    pub boundaries: &'a [Vec<u8>],
    /// Value logs whose values move.
    pub relocate: &'a BTreeSet<u64>,
    /// First key of the range merged.
    pub lo: Option<&'a [u8]>,
    /// What tells what a key hides: for flushes.
    pub hidden: Option<&'a Lookup<'a>>,
    /// Short puts with smaller sequence numbers get this one: see `compact::raise`.
    pub raise_to: SeqNo,
    /// About how many entries come, and how many bytes of keys and values: sizes buffers.
    pub expected: (u64, u64),
}

/// Writes the result of one merge. Dropped unfinished, it deletes what it created.
pub struct Outputs<'a> {
    ctx: &'a MergeContext<'a>,
    place: Placement<'a>,
    /// Boundaries passed.
    passed: usize,
    /// A boundary was passed since the current file began.
    crossed: bool,
    streams: Streams,
    /// Range tombstones that reach beyond the last cut, by start.
    tombstones: Vec<RangeTombstone>,
    /// Where the current file's keys begin.
    file_lo: Option<Vec<u8>>,
    current: Option<(u64, TableWriter)>,
    /// Stored bytes that entries of the current file hide in older files.
    hides: u64,
    vlog: Option<(u64, VlogWriter)>,
    sources: HashMap<u64, Arc<Vlog>>,
    /// The value being moved, and the stored value that points to it.
    moving: Vec<u8>,
    stored: Vec<u8>,
    result: MergeOutput,
    created: Vec<PathBuf>,
    finished_bytes: u64,
    billed: u64,
    /// What the job holds, where it is counted, and how much of that its input takes.
    held: Option<Charge>,
    input_memory: u64,
    done: bool,
}

impl<'a> Outputs<'a> {
    /// Nothing is created before the first entry. `tombstones` are the range tombstones to write.
    pub fn new(ctx: &'a MergeContext<'a>, place: Placement<'a>, mut tombstones: Vec<RangeTombstone>) -> Outputs<'a> {
        tombstones.sort_by(|a, b| ctx.order.compare(&a.start, &b.start));
        debug_assert!(ctx.snapshots.is_sorted(), "snapshots ascend");
        debug_assert!(place.boundaries.is_sorted_by(|a, b| ctx.order.compare(a, b).is_le()), "boundaries ascend");
        Outputs {
            ctx,
            passed: 0,
            crossed: false,
            streams: Streams::new(ctx.options.target_file_size, place.expected.1),
            tombstones,
            file_lo: place.lo.map(<[u8]>::to_vec),
            current: None,
            hides: 0,
            vlog: None,
            sources: HashMap::new(),
            moving: Vec::new(),
            stored: Vec::new(),
            result: MergeOutput::default(),
            created: Vec::new(),
            finished_bytes: 0,
            billed: 0,
            held: ctx.memory.map(|budget| Charge::new(budget, 0)),
            input_memory: 0,
            done: false,
            place,
        }
    }

    /// What was counted so far.
    pub fn counters(&mut self) -> &mut super::context::MergeCounters {
        &mut self.result.counters
    }

    /// Appends an entry. `first` says that it is the first of its user key: only there may a file end.
    #[inline]
    pub fn add(&mut self, key: &[u8], tag: Tag, value: &[u8], first: bool) -> Result<()> {
        if first {
            self.cut_before(key, tag.seq())?;
        }
        if let Some(hidden) = self.place.hidden {
            // An older version that only snapshots keep is as good as hidden: the compaction that drops it will subtract it.
            let bytes = value_bytes(tag, value);
            self.hides += if first { hidden(key, bytes) } else { bytes };
        }
        self.result.counters.entries_out += 1;
        let threshold = self.ctx.options.value_threshold;
        let kind = tag.0 as u8 & !EXPIRY_FLAG;
        let separate = kind == Kind::Put as u8 && threshold > 0 && value.len() as u64 >= threshold;
        if separate || tag.is_packed() || (kind == Kind::PutPointer as u8 && !self.place.relocate.is_empty()) {
            return self.add_value(key, tag, value);
        }
        let raised =
            kind == Kind::Put as u8 && tag.seq() < self.place.raise_to && raise::may_raise(self.ctx, value.len());
        let tag = if raised { tag.with_seq(self.place.raise_to) } else { tag };
        self.writer()?.add(key, tag, value)
    }

    /// Appends a put whose value may change its place.
    #[inline(never)]
    fn add_value(&mut self, key: &[u8], tag: Tag, value: &[u8]) -> Result<()> {
        let Some((_, inner)) = split_expiry(tag, value) else {
            return Err(Error::corruption("an entry's value lacks the expiry that its tag requires"));
        };
        let pointer = match tag.kind() {
            Some(Kind::PutPointer) => Some(
                ValuePointer::decode(inner)
                    .ok_or_else(|| Error::corruption("an entry's value is not the pointer that its tag requires"))?,
            ),
            _ => None,
        };
        if pointer.is_some_and(|p| !self.place.relocate.contains(&p.file_id)) {
            return self.writer()?.add(key, tag, value);
        }
        // One of several chunks may be larger than memory, and than what a table takes. It stays in a value log, though an open
        // with a higher threshold, or none, may have come between.
        if let Some(p) = pointer.filter(|p| p.raw_len > self.ctx.options.value_chunk_size) {
            let moved = self.move_in_pieces(&p)?;
            let mut stored = value[..value.len() - inner.len()].to_vec();
            moved.encode(&mut stored);
            return self.writer()?.add(key, tag, &stored);
        }
        let packed = if tag.is_packed() { Some(Packed::parse(inner)?) } else { None };
        let mut moving = std::mem::take(&mut self.moving);
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        stored.extend_from_slice(&value[..value.len() - inner.len()]);
        let kind = match packed {
            Some(p) if self.separates(p.raw_len()) => {
                self.vlog()?.append_packed(p)?.encode(&mut stored);
                Kind::PutPointer
            }
            _ => {
                let raw = match (pointer, packed) {
                    (Some(pointer), _) => {
                        self.source(pointer.file_id)?.read(&pointer, &mut moving)?;
                        self.result.counters.vlog_moved += pointer.stored_len;
                        moving.as_slice()
                    }
                    // Put before a reopen with a higher threshold.
                    (None, Some(p)) => {
                        moving.clear();
                        p.append_to(&mut moving)?;
                        moving.as_slice()
                    }
                    (None, None) => inner,
                };
                if self.separates(raw.len()) {
                    self.vlog()?.append(raw)?.encode(&mut stored);
                    if pointer.is_some() {
                        rare!("value-moved");
                    }
                    Kind::PutPointer
                } else {
                    stored.extend_from_slice(raw);
                    Kind::Put
                }
            }
        };
        let tag = Tag((tag.0 & !0x7f) | kind as u64);
        self.writer()?.add(key, tag, &stored)?;
        (self.moving, self.stored) = (moving, stored);
        Ok(())
    }

    /// Appends an entry whose value, of several chunks, is in a value log of another database, and moves the value. `head` is what is
    /// stored in front of the value pointer.
    pub fn add_moved(&mut self, key: &[u8], tag: Tag, head: &[u8], from: (&Arc<Vlog>, &ValuePointer)) -> Result<()> {
        self.cut_before(key, tag.seq())?;
        self.result.counters.entries_out += 1;
        let moved = self.move_pieces(from.0, from.1)?;
        let mut stored = head.to_vec();
        moved.encode(&mut stored);
        self.writer()?.add(key, Tag((tag.0 & !0x7f) | Kind::PutPointer as u64), &stored)
    }

    /// Moves a value of several chunks to the value log that is being written, one at a time: it may be larger than memory.
    fn move_in_pieces(&mut self, from: &ValuePointer) -> Result<ValuePointer> {
        let source = self.source(from.file_id)?;
        self.move_pieces(&source, from)
    }

    fn move_pieces(&mut self, source: &Arc<Vlog>, from: &ValuePointer) -> Result<ValuePointer> {
        let mut reader = source.reader(*from)?;
        self.result.counters.vlog_moved += from.stored_len;
        let vlog = self.vlog()?;
        vlog.begin()?;
        let mut at = 0;
        while at < from.raw_len {
            let piece = reader.chunk_from(at)?;
            if piece.is_empty() {
                return Err(Error::corruption("value length does not match its pointer"));
            }
            vlog.extend(piece)?;
            at += piece.len() as u64;
        }
        rare!("value-moved");
        vlog.end()
    }

    fn source(&mut self, id: u64) -> Result<Arc<Vlog>> {
        if let Some(vlog) = self.sources.get(&id) {
            return Ok(vlog.clone());
        }
        let vlog = (self.ctx.open_vlog)(id)?;
        // Those that stay open nevertheless are found again without opening them.
        if self.sources.len() >= MOST_SOURCES {
            self.sources.clear();
        }
        self.sources.insert(id, vlog.clone());
        Ok(vlog)
    }

    /// Whether a value of that length goes to the value log.
    fn separates(&self, len: usize) -> bool {
        let threshold = self.ctx.options.value_threshold;
        threshold > 0 && len as u64 >= threshold
    }

    /// The value log that the next value goes to.
    fn vlog(&mut self) -> Result<&mut VlogWriter> {
        if self.vlog.as_ref().is_some_and(|(_, w)| w.written() >= vlog_size(self.ctx.options)) {
            self.finish_vlog()?;
        }
        if self.vlog.is_none() {
            let (id, file) = self.create(vlog_path)?;
            let options = self.ctx.options;
            let chunk = options.value_chunk_size as usize;
            self.vlog = Some((id, VlogWriter::new(file, id, Codec::of_values(options), chunk)));
        }
        match &mut self.vlog {
            Some((_, writer)) => Ok(writer),
            None => Err(Error::new(ErrorKind::Io, "no value log")),
        }
    }

    /// Creates a file under a fresh id. A leftover of a crash that has the name is passed over, never overwritten.
    fn create(&mut self, path: fn(&Path, u64) -> PathBuf) -> Result<(u64, Arc<dyn File>)> {
        loop {
            let id = self.ctx.new_file_id();
            let path = path(self.ctx.dir, id);
            match self.ctx.fs.open(&path, OpenMode::Create) {
                Ok(file) => {
                    self.created.push(path);
                    return Ok((id, file));
                }
                Err(e) if e.kind() == ErrorKind::Exists => continue,
                Err(e) => return Err(e),
            }
        }
    }

    fn writer(&mut self) -> Result<&mut TableWriter> {
        if self.current.is_none() {
            let (id, file) = self.create(klog_path)?;
            let options = self.ctx.options;
            let (entries, bytes) = self.place.expected;
            let most = entries as u128 * options.target_file_size as u128 * 2 / bytes.max(1) as u128;
            let table = TableOptions {
                order: self.ctx.order.clone(),
                block_size: options.block_size as usize,
                restart_interval: self.ctx.restart_interval,
                compression: options.compression_at(self.place.level),
                zstd_level: options.zstd_level as i32,
                zstd_dictionary: options.zstd_dictionary as usize,
                filter_fp: options.filter_fp,
                index_sampling: options.index_sampling as usize,
                index_prefix_len: options.index_prefix_len as usize,
                expected_entries: most.min(entries as u128) as usize,
            };
            self.current = Some((id, TableWriter::new(file, id, table)));
        }
        match &mut self.current {
            Some((_, writer)) => Ok(writer),
            None => Err(Error::new(ErrorKind::Io, "no table")),
        }
    }

    /// Ends the current file before `key`, whose newest entry has that sequence number, if it is large enough: half the target at a
    /// boundary, the target anywhere if there are none, and half as much again if there are; an eighth after a stream of keys.
    #[inline]
    fn cut_before(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        while self.place.boundaries.get(self.passed).is_some_and(|b| self.ctx.order.compare(b, key).is_le()) {
            self.passed += 1;
            self.crossed = true;
        }
        let ended = self.streams.step(seq);
        let Some((_, writer)) = &self.current else { return Ok(()) };
        let target = self.ctx.options.target_file_size;
        let most = if self.place.boundaries.is_empty() { target } else { target + target / 2 };
        let limit = if self.crossed { target / 2 } else { most };
        let size = writer.estimated_size();
        if ended > 0 && self.streams.end_file(ended, writer.entries(), size) {
            rare!("file-ended-with-stream");
        } else if size < limit {
            return Ok(());
        }
        self.finish_table(Some(key))
    }

    /// Completes the current file, which holds all keys from the last cut up to `end`.
    fn finish_table(&mut self, end: Option<&[u8]>) -> Result<()> {
        self.crossed = false;
        let order = &self.ctx.order;
        let lo = std::mem::replace(&mut self.file_lo, end.map(<[u8]>::to_vec));
        let tombstones = std::mem::take(&mut self.tombstones);
        for t in &tombstones {
            let start = lo.as_deref().filter(|lo| order.compare(lo, &t.start).is_gt()).unwrap_or(&t.start);
            let stop = end.filter(|e| order.compare(e, &t.end).is_lt()).unwrap_or(&t.end);
            if order.compare(start, stop).is_lt() {
                self.writer()?.add_range_tombstone(start, stop, t.seq)?;
            }
        }
        if let Some(end) = end {
            self.tombstones = tombstones;
            self.tombstones.retain(|t| order.compare(&t.end, end).is_gt());
        }
        let Some((id, writer)) = self.current.take() else { return Ok(()) };
        let info = writer.finish()?;
        self.finished_bytes += info.file_size;
        self.result.counters.bytes_written += info.file_size;
        let hides = std::mem::take(&mut self.hides);
        self.result.added.push((self.place.level, FileMeta { hides, ..self.meta(id, info) }));
        Ok(())
    }

    fn meta(&self, id: u64, info: TableInfo) -> FileMeta {
        FileMeta {
            id,
            run: self.place.run,
            size: info.file_size,
            entries: info.entries,
            tombstones: info.tombstones,
            range_tombstones: info.range_tombstones,
            raw_bytes: info.raw_bytes,
            min_key: info.min_key,
            max_key: info.max_key,
            min_seq: info.min_seq,
            max_seq: info.max_seq,
            min_expiry_ms: info.min_expiry_ms,
            created_ms: self.ctx.now_ms,
            vlog_refs: info.vlog_refs,
            written_as: id,
            sequence: 0,
            hides: 0,
        }
    }

    fn finish_vlog(&mut self) -> Result<()> {
        let Some((id, writer)) = self.vlog.take() else { return Ok(()) };
        let info = writer.finish()?;
        self.finished_bytes += info.file_size;
        self.result.counters.bytes_written += info.file_size;
        let meta = VlogMeta { id, size: info.file_size, stored_bytes: info.stored_bytes, values: info.values };
        self.result.vlogs.push(meta);
        Ok(())
    }

    /// Says how much memory the job's input takes.
    pub fn set_input_memory(&mut self, bytes: u64) {
        self.input_memory = bytes;
        self.count_memory();
    }

    fn count_memory(&mut self) {
        let Some(held) = &mut self.held else { return };
        let klog = self.current.as_ref().map_or(0, |(_, w)| w.memory());
        let vlog = self.vlog.as_ref().map_or(0, |(_, w)| w.memory());
        let values = self.moving.capacity() + self.stored.capacity();
        held.resize(self.input_memory + klog + vlog + values as u64);
    }

    /// Between blocks: stops a cancelled job, counts what it holds, and pays for what was written.
    pub fn poll_cancel_and_throttle(&mut self) -> Result<()> {
        self.count_memory();
        if self.ctx.may_cancel && self.ctx.cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "background job cancelled"));
        }
        if let Some(limiter) = self.ctx.limiter {
            let klog = self.current.as_ref().map_or(0, |(_, w)| w.estimated_size());
            let vlog = self.vlog.as_ref().map_or(0, |(_, w)| w.written());
            let written = self.finished_bytes + klog + vlog;
            if written > self.billed {
                limiter.take(written - self.billed, self.ctx.cancelled);
                self.billed = written;
            }
        }
        Ok(())
    }

    /// Completes the last files.
    pub fn finish(mut self) -> Result<MergeOutput> {
        self.finish_table(None)?;
        self.finish_vlog()?;
        self.done = true;
        Ok(std::mem::take(&mut self.result))
    }
}

/// Stored bytes of an entry's value in a value log, or of one that may get there.
fn value_bytes(tag: Tag, value: &[u8]) -> u64 {
    pointed_bytes(tag, value).unwrap_or(if tag.is_tombstone() { 0 } else { value.len() as u64 })
}

/// Stored bytes of the value that an entry points to. `None` for one of another kind.
pub(super) fn pointed_bytes(tag: Tag, value: &[u8]) -> Option<u64> {
    if tag.kind() != Some(Kind::PutPointer) {
        return None;
    }
    let (_, pointer) = split_expiry(tag, value)?;
    ValuePointer::decode(pointer).map(|p| p.stored_len)
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        (self.current, self.vlog) = (None, None);
        // A file that cannot be deleted now is one that nothing names: the next open deletes it. A panic of the caller's file system
        // must not leave a destructor: it would lose the error that is returned, and end the process where another one is on its way.
        let _ = catch_unwind(AssertUnwindSafe(|| self.created.iter().for_each(|path| _ = self.ctx.fs.remove(path))));
    }
}
