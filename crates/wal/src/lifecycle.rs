//! The life of segment files: spare, active, sealed, released, free, spare again.
//!
//! Files `NNNNNN.wal` are the spares, the active and the sealed segments; `NNNNNN.walfree` wait for reuse. What must come
//! after a segment's name is durable is listed in [`super::durable_names`]. Segments are released oldest first. Those that the
//! manifest says are given up go together, and a power cut may bring any of them back, which recovery knows; of others each release
//! is durable before the next, so that a segment missing between others is damage. A released segment is reused
//! once its release is durable: else its old name could come back with new contents.

use super::config::{GROWTH, WalConfig};
use super::durable_names::DurableNames;
use super::reader::ReplayEnd;
use super::spares::{Spare, Spares};
use super::sync::GroupSync;
use kingtide_base::events::Event;
use kingtide_base::names::{FileName, free_path, segment_path};
use kingtide_base::stats::Stat;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{ErrorKind, Result, SeqNo, rare};
use kingtide_vfs::OpenMode;
use std::collections::VecDeque;
use std::path::PathBuf;

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
    /// Those whose release may not be durable, each with the number of its change of names.
    parting: Vec<(u64, u64)>,
}

impl Live {
    fn size(&self) -> u64 {
        self.sealed.iter().map(|s| s.size).sum::<u64>() + self.active.map_or(0, |a| a.size)
    }

    /// A free segment whose release is durable.
    fn take_free(&mut self, names: &DurableNames) -> Option<u64> {
        let free = &mut self.free;
        self.parting.retain(|(id, name)| {
            let durable = names.is_durable(*name);
            if durable {
                free.push(*id);
            }
            !durable
        });
        free.pop()
    }

    /// How many sealed segments may be given up: those that hold nothing from `needed` on, without the newest of them,
    /// `retention` bytes at most.
    fn releasable(&self, needed: SeqNo, retention: u64) -> usize {
        let (mut left, mut count) = (self.unneeded(needed), 0);
        for s in &self.sealed {
            // The last one stays until there is another: a log without segments is one that was lost.
            if left <= retention || (self.active.is_none() && count + 1 == self.sealed.len()) {
                break;
            }
            left -= s.size;
            count += 1;
        }
        if left > 0 && left <= retention {
            rare!("log-kept-for-followers");
        }
        count
    }

    /// The segments to be given up next, oldest first, with their sizes: those with ids below `first` together, others one by one.
    fn begin_release(&mut self, needed: SeqNo, retention: u64, first: u64) -> Vec<(u64, u64)> {
        self.retained = self.unneeded(needed);
        let count = self.releasable(needed, retention);
        let together = self.sealed.iter().take(count).take_while(|s| s.id < first).count();
        let going: Vec<_> = self.sealed.iter().take(together.max(count.min(1))).map(|s| (s.id, s.size)).collect();
        if let Some((newest, _)) = going.last() {
            self.gone_before = newest + 1; // before they can be overwritten, so that followers notice
        }
        going
    }

    /// Takes the `released` oldest segments out of the chain: they are gone for good.
    fn end_release(&mut self, released: usize, needed: SeqNo) {
        for s in self.sealed.drain(..released) {
            debug_assert!(s.end_seq <= needed, "segment {} reaches above the log start {needed}", s.id);
        }
        self.retained = self.unneeded(needed);
    }

    /// Bytes of sealed segments that hold nothing from `seq` on.
    fn unneeded(&self, seq: SeqNo) -> u64 {
        self.sealed.iter().take_while(|s| s.end_seq <= seq).map(|s| s.size).sum()
    }
}

/// Makes something of `wanted` bytes or, where the disk has no space for that, of `least`: on a full disk, a delete must not fail for want
/// of a whole segment.
fn or_smaller<T>((wanted, least): (u64, u64), make: impl Fn(u64) -> Result<T>) -> Result<T> {
    match make(wanted) {
        Err(e) if e.kind() == ErrorKind::NoSpace && least < wanted => {
            rare!("log-segment-smaller-for-space");
            make(least)
        }
        made => made,
    }
}

#[derive(Debug)]
pub(super) struct Segments {
    spares: Spares,
    /// Held by the thread that makes spares.
    making: Mutex<()>,
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
            spares: Spares::default(),
            making: Mutex::new(()),
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
        self.spares.needs_some() || self.needs_filling(sync) || !sync.names.is_durable(sync.names.newest())
    }

    /// As long as the result lives, the thread that makes spares seems to be at work.
    #[cfg(test)]
    pub fn while_spares_are_made(&self) -> kingtide_base::sync::MutexGuard<'_, ()> {
        self.making.lock()
    }

    /// How many spares are ready.
    #[cfg(test)]
    pub fn spares(&self) -> usize {
        self.spares.ids().len()
    }

    fn needs_filling(&self, sync: &GroupSync) -> bool {
        sync.is_frequent() && (self.spares.count() < 2 || (self.spares.can_be_filled() && sync.is_filling_due()))
    }

    /// Whether a segment is ready to follow the active one.
    pub fn has_spare(&self) -> bool {
        self.spares.count() > 0
    }

    /// Makes as many spares as a writer at its present speed needs, and all names durable.
    pub fn prepare_spare(&self, config: &WalConfig, sync: &GroupSync) -> Result<()> {
        let _one = self.making.lock();
        for spare in self.spares.take_overtaken() {
            self.discard(config, sync, spare)?;
        }
        let next_size = self.next_size.load(Ordering::Relaxed);
        // A log at full speed has one while the next is being made.
        let warm = next_size >= config.segment_size && next_size > config.smallest();
        for _ in 0..self.spares.missing(1 + usize::from(warm || sync.is_frequent())) {
            let sizes = (self.next_size.load(Ordering::Relaxed), config.smallest());
            let spare = or_smaller(sizes, |size| self.make(config, &sync.names, size))?;
            self.spares.add(spare);
        }
        sync.sync_names()?;
        // One spare at most, as the next one is not due before it is used: a sync of `Interval` that is due waits for no
        // second one.
        while sync.is_frequent()
            && sync.is_filling_due()
            && let Some(mut spare) = self.spares.take_blank()
        {
            let filled = self.fill(config, sync, &mut spare);
            self.spares.add(spare);
            filled?;
        }
        Ok(())
    }

    /// Writes zeros into the next piece of a spare: the first write to a block makes the file system note that the block has
    /// been written, and the sync behind it writes that too.
    fn fill(&self, config: &WalConfig, sync: &GroupSync, spare: &mut Spare) -> Result<()> {
        let piece = config.prefill_piece.min(spare.size - spare.blank_from);
        // If it fails, the segment is as good as before.
        if !matches!(spare.file.prefill(spare.blank_from, piece), Ok(true)) {
            spare.blank_from = spare.size;
            return Ok(());
        }
        rare!("log-spare-prefilled");
        spare.blank_from += piece;
        // A page that this sync loses is zero when it is read again, or not: a later sync must not vouch for it.
        (spare.file.sync_data())
            .map_err(|e| sync.poison("sync of a new log segment failed", e.at_path(spare.file.path())))
    }

    /// The oldest spare, or a segment made on the spot, of at least `need` bytes. Its name need not be durable.
    pub fn take_spare(&self, config: &WalConfig, names: &DurableNames, need: u64) -> Result<Spare> {
        let wanted = config.size_for(need, self.next_size.load(Ordering::Relaxed));
        let least = config.least_for(need);
        let mut spare = match self.spares.take() {
            Some(spare) => spare,
            None => {
                rare!("log-segment-made-late");
                or_smaller((wanted, least), |size| self.make(config, names, size))?
            }
        };
        if need > config.segment_size {
            rare!("log-record-in-own-segment");
        }
        if spare.size < need {
            rare!("log-spare-grown");
            let path = segment_path(&config.dir, spare.id);
            match or_smaller((wanted, least), |size| Ok((config.fs.open_log(&path, size)?, size))) {
                Ok((file, size)) => (spare.file, spare.size, spare.blank_from) = (file, size, size),
                Err(e) => {
                    self.spares.put_back(spare);
                    return Err(e);
                }
            }
        }
        Ok(spare)
    }

    /// A segment of `size` bytes became the active one because the one before it was full: the next will be larger.
    pub fn grow(&self, config: &WalConfig, size: u64) {
        let next = size.saturating_mul(GROWTH).min(config.segment_size);
        if next > self.next_size.fetch_max(next, Ordering::Relaxed) {
            rare!("log-segments-grown");
        }
    }

    /// Begins with small segments again, and gives back what is ready for a writer at full speed: free segments, and
    /// spares that are larger. No end mark names those yet: they would be the active segment then. The spares that a killed process
    /// left go too.
    pub fn shrink(&self, config: &WalConfig, sync: &GroupSync) -> Result<()> {
        self.next_size.store(config.smallest(), Ordering::Relaxed);
        let making = self.making.lock();
        let removed = self.spares.take_larger(config.smallest()).into_iter().try_for_each(|spare| {
            rare!("log-spare-shrunk");
            config.fs.remove(&segment_path(&config.dir, spare.id))
        });
        drop(making);
        let releasing = self.releasing.lock();
        let released = self.release_strays(config, sync);
        drop(releasing);
        let trimmed = self.trim_free(config, 0); // also those that strays became
        removed.and(released.map(drop)).and(trimmed)
    }

    /// Gives back a spare that could not be put to use.
    pub fn put_back(&self, spare: Spare) {
        self.spares.put_back(spare);
    }

    /// Creates or recycles a file. Its name is not durable.
    fn make(&self, config: &WalConfig, names: &DurableNames, size: u64) -> Result<Spare> {
        let id = (config.next_id)();
        let path = segment_path(&config.dir, id);
        let mut recycled = false;
        if size == config.segment_size {
            let free = self.live.lock().take_free(names);
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
        let name = names.changed();
        let stat = if recycled { Stat::WalSegmentsRecycled } else { Stat::WalSegmentsCreated };
        config.stats.add(stat, 1);
        let file_name = || path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
        config.stats.events.tell_detail(|| Event::FileCreated(file_name(), size));
        if recycled {
            rare!("log-segment-recycled");
        }
        Ok(Spare { id, file, size, blank_from: if recycled { size } else { 0 }, name })
    }

    /// Gives up a spare that no segment can be any more: it was never part of the log.
    fn discard(&self, config: &WalConfig, sync: &GroupSync, spare: Spare) -> Result<()> {
        self.give_up(config, sync, spare.id, spare.size)
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
        self.spares.used(begun.id);
        self.publish_size(config);
    }

    /// The oldest segment that stays when the log is released.
    pub fn first_kept(&self, needed: SeqNo, retention: u64) -> Option<u64> {
        let live = self.live.lock();
        let sealed = live.sealed.get(live.releasable(needed, retention)).map(|s| s.id);
        sealed.or(live.active.map(|a| a.id))
    }

    /// Releases what is not needed. The manifest says that segments below `first` are given up.
    pub fn release(
        &self,
        config: &WalConfig,
        sync: &GroupSync,
        (needed, first): (SeqNo, u64),
        retention: u64,
    ) -> Result<usize> {
        let _one = self.releasing.lock();
        sync.check()?;
        if !self.release_strays(config, sync)? {
            return Ok(0);
        }
        let mut released = 0;
        loop {
            let going = self.live.lock().begin_release(needed, retention, first);
            if going.is_empty() {
                break;
            }
            sync.sync_names()?; // of what stays, which another thread may have begun: a log without segments is one that was lost
            for (id, size) in &going {
                rare!("log-segment-released");
                self.give_up(config, sync, *id, *size)?;
            }
            sync.sync_names()?;
            going.iter().for_each(|(id, _)| sync.forget(*id));
            self.live.lock().end_release(going.len(), needed);
            released += going.len();
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
            sync.sync_names()?;
            self.give_up(config, sync, id, size)?;
            sync.sync_names()?;
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
        sync.sync_names()?;
        file.sync_data().map_err(|e| sync.poison("sync of the log failed", e.at_path(file.path())))?;
        self.live.lock().strays_stay = false;
        Ok(true)
    }

    /// Syncs the oldest segment that stays when those are given up that hold nothing from `needed` on.
    pub fn sync_oldest_kept(&self, config: &WalConfig, sync: &GroupSync, needed: SeqNo) -> Result<()> {
        // No other thread gives segments up meanwhile, on account of a later log start.
        let _one = self.releasing.lock();
        let kept: Vec<u64> = {
            let live = self.live.lock();
            let sealed = live.sealed.iter().filter(|s| s.end_seq > needed).map(|s| s.id);
            sealed.chain(live.active.map(|a| a.id)).collect()
        };
        for (i, oldest) in kept.iter().enumerate() {
            let file = match config.fs.open(&segment_path(&config.dir, *oldest), OpenMode::Write) {
                // A release that failed half way got this far.
                Err(e) if e.kind() == ErrorKind::NotFound && i + 1 < kept.len() => continue,
                opened => opened?,
            };
            sync.sync_names()?;
            return file.sync_data().map_err(|e| sync.poison("sync of the log failed", e.at_path(file.path())));
        }
        Ok(())
    }

    /// Takes a segment's name away for good: it becomes a free file, or is deleted. That is not durable yet.
    fn give_up(&self, config: &WalConfig, sync: &GroupSync, id: u64, size: u64) -> Result<()> {
        let path: PathBuf = segment_path(&config.dir, id);
        let kept = |live: &Live| live.free.len() + live.parting.len();
        let keep = size == config.segment_size && kept(&self.live.lock()) < config.max_free;
        let done = if keep { config.fs.rename(&path, &free_path(&config.dir, id)) } else { config.fs.remove(&path) };
        if done.is_ok() {
            let name = || path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
            config.stats.events.tell_detail(|| Event::FileDeleted(name()));
        }
        let name = sync.names.changed();
        match done {
            Ok(()) if keep => self.live.lock().parting.push((id, name)),
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e), // not found: an earlier try got this far
            _ => {}
        }
        Ok(())
    }

    /// Deletes free segments beyond `keep`. They are no part of the chain, so nothing need be durable.
    pub fn trim_free(&self, config: &WalConfig, keep: usize) -> Result<()> {
        loop {
            let id = {
                let mut live = self.live.lock();
                match live.free.len() + live.parting.len() > keep {
                    true => live.free.pop().or_else(|| live.parting.pop().map(|(id, _)| id)),
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

    /// Deletes all spares. Only behind an end marker of a closed log: a sealed segment's successor must not go missing.
    pub fn drop_spares(&self, config: &WalConfig) -> Result<()> {
        let _one = self.making.lock();
        let overtaken = self.spares.take_overtaken();
        for spare in self.spares.take_larger(0).into_iter().chain(overtaken) {
            config.fs.remove(&segment_path(&config.dir, spare.id))?;
        }
        Ok(())
    }

    pub fn size(&self) -> u64 {
        self.live.lock().size()
    }

    /// The same without what is kept for followers only.
    pub fn needed_size(&self) -> u64 {
        self.needed_size.load(Ordering::Relaxed)
    }

    pub fn needed_sealed(&self) -> u64 {
        let live = self.live.lock();
        live.sealed.iter().map(|s| s.size).sum::<u64>().saturating_sub(live.retained)
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
        let spares = self.spares.ids();
        let live = self.live.lock();
        live.sealed.iter().map(|s| s.id).chain(live.active.map(|a| a.id)).chain(spares).collect()
    }
}
