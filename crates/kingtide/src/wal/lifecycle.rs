//! The life of segment files: spare, active, sealed, released, free, spare again.
//!
//! Files `NNNNNN.wal` are the spare, the active and the sealed segments; `NNNNNN.walfree` wait for reuse. A spare's name
//! is durable before it can become active, so that no synced commit is in a file without a name. Segments are released
//! oldest first and each release is durable before the next, so that a segment missing between others is damage.

use super::config::{GROWTH, WalConfig};
use super::reader::ReplayEnd;
use super::sync::GroupSync;
use crate::names::{FileName, free_path, segment_path};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::events::Event;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, Result, SeqNo, rare};
use kingtide_vfs::{File, OpenMode};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// A segment that is ready to become active.
#[derive(Debug)]
pub(super) struct Spare {
    pub id: u64,
    pub file: Arc<dyn File>,
    pub size: u64,
    /// From here to its end nothing was ever written.
    blank_from: u64,
}

#[derive(Debug)]
struct Sealed {
    id: u64,
    size: u64,
    /// The sequence number at which it was begun.
    start_seq: SeqNo,
    /// The sequence number after its last.
    end_seq: SeqNo,
    /// Where its records end.
    end: u64,
    /// Log position of its first byte; `None` if an earlier open wrote it.
    base: Option<u64>,
}

/// The active segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub id: u64,
    pub size: u64,
    /// The sequence number at which it was begun.
    pub start_seq: SeqNo,
    /// Log position of its first byte.
    pub base: u64,
}

/// A segment as seen by a reader that follows the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub id: u64,
    /// The sequence number at which it was begun.
    pub start_seq: SeqNo,
    /// Up to here records may be read.
    pub end: u64,
    /// That is all that there will ever be in it.
    pub complete: bool,
}

#[derive(Debug, Default)]
struct Live {
    /// Oldest first.
    sealed: VecDeque<Sealed>,
    active: Option<Begun>,
    /// Segments below this id may be overwritten at any time.
    gone_before: u64,
    /// Bytes of sealed segments that recovery does not need, as of the last release.
    retained: u64,
    /// Segments that recovery left out of the chain, and spares of the last run.
    strays: Vec<u64>,
    /// A stray is the proof that no segment with records was lost behind the end of the chain, which names it: strays must
    /// stay until the header of a new segment is durable. Nor may anything be released before the strays, or records
    /// that recovery left out would become the start of the chain.
    strays_stay: bool,
    /// Ids of `.walfree` files of the standard size.
    free: Vec<u64>,
}

impl Live {
    fn size(&self) -> u64 {
        self.sealed.iter().map(|s| s.size).sum::<u64>() + self.active.map_or(0, |a| a.size)
    }

    /// Bytes of sealed segments that hold nothing from `seq` on.
    fn unneeded(&self, seq: SeqNo) -> u64 {
        self.sealed.iter().take_while(|s| s.end_seq <= seq).map(|s| s.size).sum()
    }
}

#[derive(Debug)]
pub(super) struct Segments {
    /// Held while a spare is made: ids of segments must ascend in the order of use, so no thread may overtake.
    spare: Mutex<Option<Spare>>,
    has_spare: AtomicBool,
    /// The spare has a part that was never written.
    blank_spare: AtomicBool,
    /// Bytes of the next segment to be made. Relaxed: segments may have any size.
    next_size: AtomicU64,
    live: Mutex<Live>,
    /// Bytes of live segments that recovery needs. Relaxed: commits compare it with a bound, which is no sharp one.
    needed_size: AtomicU64,
    /// One release at a time.
    releasing: Mutex<()>,
}

impl Segments {
    /// No segments at all.
    pub fn none() -> Segments {
        Segments {
            spare: Mutex::new(None),
            has_spare: AtomicBool::new(false),
            blank_spare: AtomicBool::new(false),
            next_size: AtomicU64::new(0),
            live: Mutex::default(),
            needed_size: AtomicU64::new(0),
            releasing: Mutex::new(()),
        }
    }

    pub fn open(config: &WalConfig, end: &ReplayEnd) -> Result<Segments> {
        let mut live = Live { strays_stay: end.keep_discarded, ..Live::default() };
        for s in &end.segments {
            let (start_seq, end_seq, end) = (s.start_seq, s.end_seq, s.end as u64);
            live.sealed.push_back(Sealed { id: s.id, size: s.size, start_seq, end_seq, end, base: None });
        }
        for name in config.fs.list(&config.dir)? {
            match FileName::parse(&name) {
                Some(FileName::Segment(id)) if !end.segments.iter().any(|s| s.id == id) => live.strays.push(id),
                Some(FileName::FreeSegment(id)) => live.free.push(id),
                _ => {}
            }
        }
        debug_assert!(live.sealed.iter().is_sorted_by_key(|s| s.id), "the chain is in the order of ids");
        let next_size = AtomicU64::new(config.smallest());
        let segments = Segments { live: Mutex::new(live), next_size, ..Segments::none() };
        segments.trim_free(config, 0)?; // what a killed process kept for its speed
        segments.publish_size(config);
        Ok(segments)
    }

    pub fn needs_spare(&self, sync: &GroupSync) -> bool {
        // Hints; the lock decides.
        !self.has_spare.load(Ordering::Relaxed) || (sync.is_frequent() && self.blank_spare.load(Ordering::Relaxed))
    }

    /// Whether a segment is ready to follow the active one.
    #[cfg(feature = "tokio")]
    pub fn has_spare(&self) -> bool {
        self.has_spare.load(Ordering::Relaxed)
    }

    pub fn prepare_spare(&self, config: &WalConfig, sync: &GroupSync) -> Result<()> {
        let mut slot = self.spare.lock();
        if slot.is_none() {
            self.put(&mut slot, self.make(config, sync, self.next_size.load(Ordering::Relaxed))?);
        }
        drop(slot);
        while sync.is_frequent() && self.fill_piece(config, sync)? {}
        Ok(())
    }

    fn put(&self, slot: &mut Option<Spare>, spare: Spare) {
        self.has_spare.store(true, Ordering::Relaxed);
        self.blank_spare.store(spare.blank_from < spare.size, Ordering::Relaxed);
        *slot = Some(spare);
    }

    /// Writes zeros into the next piece of the spare: the first write to a block makes the file system note that the block
    /// has been written, and the sync behind it writes that too. False when nothing is left to do.
    fn fill_piece(&self, config: &WalConfig, sync: &GroupSync) -> Result<bool> {
        let mut slot = self.spare.lock();
        let Some(spare) = slot.as_mut().filter(|s| s.blank_from < s.size) else {
            self.blank_spare.store(false, Ordering::Relaxed);
            return Ok(false);
        };
        let piece = config.prefill_piece.min(spare.size - spare.blank_from);
        // If it fails, the segment is as good as before.
        if !matches!(spare.file.prefill(spare.blank_from, piece), Ok(true)) {
            spare.blank_from = spare.size;
            self.blank_spare.store(false, Ordering::Relaxed);
            return Ok(false);
        }
        rare!("log-spare-prefilled");
        spare.blank_from += piece;
        let file = spare.file.clone();
        drop(slot);
        // It may be the active segment by now: the kernel reports a failed write to one sync only, and this may be the one.
        file.sync_data().map_err(|e| sync.poison("sync of a new log segment failed", e.at_path(file.path())))?;
        Ok(true)
    }

    /// The spare, or a segment made on the spot, of at least `need` bytes.
    pub fn take_spare(&self, config: &WalConfig, sync: &GroupSync, need: u64) -> Result<Spare> {
        let mut slot = self.spare.lock();
        let wanted = config.size_for(need, self.next_size.load(Ordering::Relaxed));
        let mut spare = match slot.take() {
            Some(spare) => spare,
            None => {
                rare!("log-segment-made-late");
                self.make(config, sync, wanted)?
            }
        };
        if need > config.segment_size {
            rare!("log-record-in-own-segment");
        }
        if spare.size < need {
            rare!("log-spare-grown");
            match config.fs.open_log(&segment_path(&config.dir, spare.id), wanted) {
                Ok(file) => (spare.file, spare.size, spare.blank_from) = (file, wanted, wanted),
                Err(e) => {
                    self.put(&mut slot, spare);
                    return Err(e);
                }
            }
        }
        self.has_spare.store(false, Ordering::Relaxed);
        Ok(spare)
    }

    /// A segment of `size` bytes became the active one because the one before it was full: the next will be larger.
    pub fn grow(&self, config: &WalConfig, size: u64) {
        let next = size.saturating_mul(GROWTH).min(config.segment_size);
        if next > self.next_size.fetch_max(next, Ordering::Relaxed) {
            rare!("log-segments-grown");
        }
    }

    /// Begins with small segments again, and gives back what is ready for a writer at full speed: free segments, and a
    /// spare that is larger. No end mark names that spare yet: it would be the active segment then.
    pub fn shrink(&self, config: &WalConfig) -> Result<()> {
        self.next_size.store(config.smallest(), Ordering::Relaxed);
        self.trim_free(config, 0)?;
        let mut slot = self.spare.lock();
        match slot.take_if(|s| s.size > config.smallest()) {
            Some(spare) => {
                rare!("log-spare-shrunk");
                self.has_spare.store(false, Ordering::Relaxed);
                config.fs.remove(&segment_path(&config.dir, spare.id))
            }
            None => Ok(()),
        }
    }

    /// Gives back a spare that could not be put to use.
    pub fn put_back(&self, spare: Spare) {
        self.put(&mut self.spare.lock(), spare);
    }

    /// Creates or recycles a file and makes its name durable.
    fn make(&self, config: &WalConfig, sync: &GroupSync, size: u64) -> Result<Spare> {
        let id = (config.next_id)();
        let path = segment_path(&config.dir, id);
        let mut recycled = false;
        if size == config.segment_size {
            let free = self.live.lock().free.pop();
            if let Some(free) = free {
                // One that cannot be renamed is left to the next open, and a new one is created.
                recycled = config.fs.rename(&free_path(&config.dir, free), &path).is_ok();
            }
        }
        let file = match config.fs.open_log(&path, size) {
            Ok(file) => file,
            Err(e) => {
                let _ = config.fs.remove(&path);
                return Err(e);
            }
        };
        if let Err(e) = sync_names(config, sync) {
            if e.is_out_of_descriptors() {
                let _ = config.fs.remove(&path); // one that stays is a stray, which the next open removes
            }
            return Err(e);
        }
        let stat = if recycled { Stat::WalSegmentsRecycled } else { Stat::WalSegmentsCreated };
        config.stats.add(stat, 1);
        let name = || path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        config.stats.events.tell_detail(|| Event::FileCreated(name(), size));
        if recycled {
            rare!("log-segment-recycled");
        }
        Ok(Spare { id, file, size, blank_from: if recycled { size } else { 0 } })
    }

    /// A spare became the active segment; the former active one is sealed, and its records end at `end`.
    pub fn activated(&self, config: &WalConfig, begun: Begun, end: u64) {
        let end_seq = begun.start_seq;
        let mut live = self.live.lock();
        if let Some(Begun { id, size, start_seq, base }) = live.active.replace(begun) {
            debug_assert!(id < begun.id && start_seq <= end_seq, "segment {} begins before {id}", begun.id);
            live.sealed.push_back(Sealed { id, size, start_seq, end_seq, end, base: Some(base) });
        }
        drop(live);
        self.publish_size(config);
    }

    pub fn release(&self, config: &WalConfig, sync: &GroupSync, needed: SeqNo, retention: u64) -> Result<usize> {
        let _one = self.releasing.lock();
        sync.check()?;
        if !self.release_strays(config, sync)? {
            return Ok(0);
        }
        let mut released = 0;
        loop {
            let (id, size) = {
                let mut live = self.live.lock();
                live.retained = live.unneeded(needed);
                // The last one stays until there is another: a log without segments is one that was lost.
                if live.retained > 0 && live.retained <= retention {
                    rare!("log-kept-for-followers");
                }
                if live.retained <= retention || (live.active.is_none() && live.sealed.len() == 1) {
                    break;
                }
                let Some((id, size)) = live.sealed.front().map(|s| (s.id, s.size)) else { break };
                live.gone_before = id + 1; // before it can be overwritten, so that followers notice
                (id, size)
            };
            rare!("log-segment-released");
            self.give_up(config, sync, id, size)?;
            sync.forget(id);
            let gone = self.live.lock().sealed.pop_front();
            debug_assert!(gone.is_some_and(|s| s.id == id), "segments are released oldest first, by one thread");
            released += 1;
        }
        self.publish_size(config);
        Ok(released)
    }

    pub fn would_release(&self, min_needed_seq: SeqNo) -> bool {
        let live = self.live.lock();
        live.unneeded(min_needed_seq) > live.retained
    }

    /// False when they must stay for now. Newest first, each durable before the next: those that recovery left out name
    /// one another as predecessors, and one missing in their midst would look like damage.
    fn release_strays(&self, config: &WalConfig, sync: &GroupSync) -> Result<bool> {
        if !self.replace_proof(config, sync)? {
            return Ok(false);
        }
        let mut strays = self.live.lock().strays.clone();
        strays.sort_unstable();
        while let Some(id) = strays.pop() {
            let size = match config.fs.open(&segment_path(&config.dir, id), OpenMode::Read) {
                Ok(file) => file.len()?,
                Err(e) if e.kind() == ErrorKind::NotFound => 0,
                Err(e) => return Err(e),
            };
            rare!("log-stray-released");
            self.give_up(config, sync, id, size)?;
            self.live.lock().strays.retain(|s| *s != id);
        }
        Ok(true)
    }

    /// Makes durable what comes in the place of strays that must stay: the first segment begun since the open. False when
    /// there is none yet.
    fn replace_proof(&self, config: &WalConfig, sync: &GroupSync) -> Result<bool> {
        let first = {
            let live = self.live.lock();
            if !live.strays_stay {
                return Ok(true);
            }
            let sealed = live.sealed.iter().find(|s| s.base.is_some()).map(|s| s.id);
            sealed.or(live.active.map(|a| a.id))
        };
        let Some(first) = first else {
            rare!("log-strays-kept");
            return Ok(false);
        };
        let file = config.fs.open(&segment_path(&config.dir, first), OpenMode::Write)?;
        file.sync_data().map_err(|e| sync.poison("sync of the log failed", e.at_path(file.path())))?;
        self.live.lock().strays_stay = false;
        Ok(true)
    }

    pub fn sync_active(&self, config: &WalConfig, sync: &GroupSync) -> Result<()> {
        let Some(active) = self.live.lock().active else { return Ok(()) };
        let file = config.fs.open(&segment_path(&config.dir, active.id), OpenMode::Write)?;
        file.sync_data().map_err(|e| sync.poison("sync of the log failed", e.at_path(file.path())))
    }

    /// Takes a segment's name away for good: it becomes a free file, or is deleted.
    fn give_up(&self, config: &WalConfig, sync: &GroupSync, id: u64, size: u64) -> Result<()> {
        let path: PathBuf = segment_path(&config.dir, id);
        let keep = size == config.segment_size && self.live.lock().free.len() < config.max_free;
        let done = if keep { config.fs.rename(&path, &free_path(&config.dir, id)) } else { config.fs.remove(&path) };
        if done.is_ok() {
            let name = || path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
            config.stats.events.tell_detail(|| Event::FileDeleted(name()));
        }
        match done {
            Ok(()) if keep => self.live.lock().free.push(id),
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e), // not found: an earlier try got this far
            _ => {}
        }
        sync_names(config, sync)
    }

    /// Deletes free segments beyond `keep`. They are no part of the chain, so nothing need be durable.
    pub fn trim_free(&self, config: &WalConfig, keep: usize) -> Result<()> {
        loop {
            let id = {
                let mut live = self.live.lock();
                match live.free.len() > keep {
                    true => live.free.pop(),
                    false => None,
                }
            };
            let Some(id) = id else { return Ok(()) };
            match config.fs.remove(&free_path(&config.dir, id)) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }

    /// Deletes the spare. Only behind an end marker of a closed log: a sealed segment's successor must not go missing.
    pub fn drop_spare(&self, config: &WalConfig) -> Result<()> {
        let mut slot = self.spare.lock();
        self.has_spare.store(false, Ordering::Relaxed);
        match slot.take() {
            Some(spare) => config.fs.remove(&segment_path(&config.dir, spare.id)),
            None => Ok(()),
        }
    }

    pub fn size(&self) -> u64 {
        self.live.lock().size()
    }

    /// The same without what is kept for followers only.
    pub fn needed_size(&self) -> u64 {
        self.needed_size.load(Ordering::Relaxed)
    }

    pub fn note_needed(&self, config: &WalConfig, seq: SeqNo) {
        {
            let mut live = self.live.lock();
            live.retained = live.unneeded(seq);
        }
        self.publish_size(config);
    }

    /// Whether nothing has overwritten the segment yet.
    pub fn is_live(&self, id: u64) -> bool {
        id >= self.live.lock().gone_before
    }

    /// The oldest segment that can be read.
    pub fn oldest(&self, sync: &GroupSync) -> Option<Span> {
        self.locate(sync, false, |_| true)
    }

    /// The segment `id`, with what may be read of it: with `durable`, what is synced.
    pub fn span(&self, sync: &GroupSync, durable: bool, id: u64) -> Option<Span> {
        self.locate(sync, durable, |s| s.id == id)
    }

    /// The first segment that holds records from `seq` on, or the active one.
    pub fn span_from(&self, sync: &GroupSync, durable: bool, seq: SeqNo) -> Option<Span> {
        self.locate(sync, durable, |s| s.end_seq > seq)
    }

    /// The first segment in the chain that passes, the active one as if it were sealed now with no end to its numbers.
    fn locate(&self, sync: &GroupSync, durable: bool, passes: impl Fn(&Sealed) -> bool) -> Option<Span> {
        // Under the lock the active segment does not change, so what is appended ends in it.
        let live = self.live.lock();
        let active = live.active.map(|a| Sealed {
            id: a.id,
            size: a.size,
            start_seq: a.start_seq,
            end_seq: SeqNo::MAX,
            end: sync.appended().0.saturating_sub(a.base),
            base: Some(a.base),
        });
        let found = live.sealed.iter().chain(&active).find(|s| s.id >= live.gone_before && passes(s))?;
        let synced = match found.base {
            Some(base) if durable => sync.synced().0.saturating_sub(base),
            _ => u64::MAX, // the open synced what earlier ones wrote
        };
        Some(Span {
            id: found.id,
            start_seq: found.start_seq,
            end: found.end.min(synced),
            complete: found.end_seq != SeqNo::MAX && synced >= found.end,
        })
    }

    fn publish_size(&self, config: &WalConfig) {
        let live = self.live.lock();
        let size = live.size();
        self.needed_size.store(size.saturating_sub(live.retained), Ordering::Relaxed);
        config.stats.set(Stat::WalSize, size);
    }

    pub fn live_ids(&self) -> Vec<u64> {
        let spare = self.spare.lock().as_ref().map(|s| s.id);
        let live = self.live.lock();
        live.sealed.iter().map(|s| s.id).chain(live.active.map(|a| a.id)).chain(spare).collect()
    }
}

fn sync_names(config: &WalConfig, sync: &GroupSync) -> Result<()> {
    config.fs.sync_dir(&config.dir).map_err(|e| match e.is_out_of_descriptors() {
        true => e, // the directory could not be opened, so nothing was lost: it may be tried again
        false => sync.poison("sync of the log's directory failed", e),
    })
}
