//! Column families: separate key spaces with their own order, options, memtables and tables, in one log and one
//! sequence of commits.

mod reads;
mod slot;
pub mod tables;
pub mod totals;
pub mod view;

pub use reads::ReadContext;
pub(crate) use reads::SAMPLE_PERIOD;
pub use tables::{TableCache, TableHandle};
pub use view::View;

use crate::commit::dead_space::DeadSpace;
use crate::direct::DirectPool;
use crate::failures::{Failures, Yields};
use crate::memtable::FamilyMemtable;
use crate::swap::ArcSwap;
use kingtide_base::clock::Clock;
use kingtide_base::histogram::FamilyHistograms;
use kingtide_base::options::{Compression, FamilyOptions};
use kingtide_base::stats::Stats;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use kingtide_base::sync::{Mutex, RwLock, spin_loop};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo};
use kingtide_table::Codec;
use kingtide_table::packed::{MAX_RAW, shrinks};
use kingtide_versions::direct_from;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// A bit of [`Family::outdated`]: a follower is exchanging the view.
const EXCHANGING: u64 = 1 << 63;

/// The engine's side of a family.
pub struct Family {
    // Constant after construction.
    id: FamilyId,
    order: KeyOrder,
    clock: Arc<dyn Clock>,
    /// Which values are packed when they are put.
    packing: Packing,
    /// What reads of this family need besides a view.
    pub(crate) reads: Arc<ReadContext>,
    /// Value logs that commits write.
    pub(crate) direct: DirectPool,

    // Changed as a whole, read without locks.
    /// What reads go through. Replaced only under `view_lock`.
    pub(crate) view: ArcSwap<View>,
    options: ArcSwap<FamilyOptions>,

    // Protected by locks.
    name: RwLock<String>,
    /// Serializes replacements of the view: by sealing (which holds the commit lock) and by installing files (which
    /// holds the catalog lock). Innermost: nothing else is locked under it.
    pub(crate) view_lock: Mutex<()>,

    // Atomics.
    /// Copy of the option, read on every put. Relaxed: an option change needs no order with puts.
    ttl_ms: AtomicU64,
    /// Values of so many bytes and more are written once. From the options, and as relaxed.
    direct_from: AtomicU64,
    /// The smallest number that that has been, under earlier options too, as the manifest has it. As relaxed: a compaction finds
    /// no such value in tables before a flush, which came after the change.
    keeps_from: AtomicU64,
    /// Set under the commit lock; commits check it there.
    dropped: AtomicBool,
    gone: AtomicBool,
    /// Everything up to here is in tables. Written under the catalog lock; a hint elsewhere.
    pub(crate) flushed_seq: AtomicU64,
    /// How many times the view got something that earlier views do not show: ingested files, or another memtable for commits. Counted
    /// after the view has it and before what is in it is visible: see [`Family::acquire_view`].
    pub(crate) outdated: AtomicU64,
    /// Needless looks into runs by reads since the last merge that was planned for it. A statistic.
    pub(crate) extra_runs: AtomicU64,
    /// Whether others go first, because its last flush or compaction failed.
    pub(crate) flush_yields: Yields,
    pub(crate) merge_yields: Yields,
    /// Failures of its flushes. Those of its compactions are in `dead_space`.
    pub(crate) flush_failures: Failures,
    /// Bytes of values in tables that flushes hide for each 1024 bytes of their keys and values, 1024 at most. A statistic.
    pub(crate) hidden_per_kib: AtomicU64,
    /// The pace of its writers.
    pub(crate) dead_space: Arc<DeadSpace>,
    /// What range tombstones of tables hide: see `DbInner::note_covered`.
    pub(crate) covered: Mutex<BTreeMap<u64, u64>>,
}

/// The life of an entry without one of its own, 0 for ever: a number that an atomic holds.
fn ttl_ms(options: &FamilyOptions) -> u64 {
    options.ttl.map_or(0, |ttl| ttl.as_millis() as u64)
}

impl Family {
    pub(crate) fn new(
        id: FamilyId,
        name: String,
        order: KeyOrder,
        options: FamilyOptions,
        reads: Arc<ReadContext>,
        view: View,
    ) -> Family {
        reads.set_family(id);
        Family {
            id,
            order,
            clock: reads.clock.clone(),
            packing: Packing::of(&options),
            reads,
            direct: DirectPool::default(),
            direct_from: AtomicU64::new(direct_from(&options)),
            keeps_from: AtomicU64::new(direct_from(&options)),
            view: ArcSwap::from_pointee(view),
            ttl_ms: AtomicU64::new(ttl_ms(&options)),
            options: ArcSwap::from_pointee(options),
            name: RwLock::new(name),
            view_lock: Mutex::new(()),
            dropped: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            flushed_seq: AtomicU64::new(0),
            extra_runs: AtomicU64::new(0),
            flush_yields: Yields::default(),
            merge_yields: Yields::default(),
            flush_failures: Failures::default(),
            hidden_per_kib: AtomicU64::new(0),
            dead_space: Arc::new(DeadSpace::new(id)),
            covered: Mutex::default(),
            outdated: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> FamilyId {
        self.id
    }

    pub(crate) fn order(&self) -> &KeyOrder {
        &self.order
    }

    pub(crate) fn name(&self) -> String {
        self.name.read().clone()
    }

    pub(crate) fn rename(&self, name: &str) {
        *self.name.write() = name.to_owned();
    }

    pub(crate) fn options(&self) -> Arc<FamilyOptions> {
        self.options.load_full()
    }

    pub(crate) fn set_options(&self, options: FamilyOptions) {
        self.ttl_ms.store(ttl_ms(&options), Ordering::Relaxed);
        self.note_direct_from(direct_from(&options));
        self.direct_from.store(direct_from(&options), Ordering::Relaxed);
        self.options.store(Arc::new(options));
    }

    /// Values of so many bytes and more may have been written once.
    pub(crate) fn note_direct_from(&self, bytes: u64) {
        self.keeps_from.fetch_min(bytes, Ordering::Relaxed);
    }

    /// Values of so many bytes and more may have been written once, now or under earlier options: a change stream may ask for one by
    /// the sequence number of its commit.
    pub(crate) fn keeps_from(&self) -> u64 {
        self.keeps_from.load(Ordering::Relaxed)
    }

    /// Values of so many bytes and more are written once, to a value log, before their commit.
    #[inline]
    pub(crate) fn direct_from(&self) -> u64 {
        self.direct_from.load(Ordering::Relaxed)
    }

    /// The compression to pack a value with, if that is worth a try. [`Family::note_packing`] wants to know what came of
    /// it.
    #[inline]
    pub(crate) fn packs(&self, value: &[u8]) -> Option<Codec> {
        if !self.packing.lengths.contains(&value.len()) || !self.packing.trusts(value) {
            return None;
        }
        Some(self.packing.codec_for(value))
    }

    /// A value was packed, or would not shrink.
    #[inline]
    pub(crate) fn note_packing(&self, packed: bool) {
        self.packing.note(packed);
    }

    /// When an entry put now without a life of its own expires; `None` for never.
    pub(crate) fn default_expiry(&self) -> Option<u64> {
        match self.ttl_ms.load(Ordering::Relaxed) {
            0 => None,
            ttl => Some(self.clock.unix_ms().saturating_add(ttl)),
        }
    }

    pub(crate) fn expiry_after(&self, ttl: Duration) -> u64 {
        self.clock.unix_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    /// Acquire pairs with the Release in [`Family::mark_dropped`]; commits check under the commit lock anyway.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    pub(crate) fn mark_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// How long its operations took.
    #[inline]
    pub(crate) fn histograms(&self) -> &FamilyHistograms {
        &self.reads.histograms
    }

    /// Whether the manifest says that it was dropped. A family whose drop failed is closed for writers, but the next open may
    /// find it undropped. Changed under the commit lock; a hint elsewhere.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Notes that the manifest says that it was dropped. Called under the commit lock.
    pub(crate) fn mark_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Whether it is a family of the database with these statistics: each database has its own.
    #[inline]
    pub(crate) fn belongs_to(&self, stats: &Arc<Stats>) -> bool {
        Arc::ptr_eq(&self.reads.stats, stats)
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_dropped() { Err(self.was_dropped()) } else { Ok(()) }
    }

    /// As [`Family::check_alive`], but a family whose drop failed counts as alive.
    pub(crate) fn check_not_gone(&self) -> Result<()> {
        if self.is_gone() { Err(self.was_dropped()) } else { Ok(()) }
    }

    #[cold]
    fn was_dropped(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("column family '{}' was dropped", self.name()))
    }

    /// Replaces the view by what `change` makes of it, one change at a time.
    pub(crate) fn update_view(&self, change: impl FnOnce(&View) -> View) {
        let _one_at_a_time = self.view_lock.lock();
        let next = change(&self.view.load());
        self.view.store(Arc::new(next));
    }

    /// Acquires a view and a sequence number to read it at, such that the view shows all up to that number.
    ///
    /// A view shows every commit that is made into its memtable after it was taken. But it shows neither files that are ingested later,
    /// nor commits into the memtable that takes the place of its own. So if one of these came between the two steps, they are
    /// repeated: or a read would see a commit that came after the ingested files, and not them, and a caller that goes on from
    /// the number, in a change stream for instance, would miss a commit.
    #[inline]
    pub(crate) fn acquire_view<V>(
        &self,
        view: impl Fn(&ArcSwap<View>) -> V,
        seq: impl Fn() -> Result<SeqNo>,
    ) -> Result<(V, SeqNo)> {
        loop {
            // Acquire pairs with the Release where it is counted: a thread that sees the count sees the view that has what came.
            let before = self.outdated.load(Ordering::Acquire);
            let (view, seq) = (view(&self.view), seq()?);
            // Relaxed: a thread with a number at or behind that of what came acquired it after that was counted.
            if self.outdated.load(Ordering::Relaxed) == before && before & EXCHANGING == 0 {
                return Ok((view, seq));
            }
            spin_loop();
        }
    }

    /// From here until [`Family::exchanged`], the view and the visible number may not match, so reads that need both wait.
    pub(crate) fn begin_exchange(&self) {
        // Relaxed: the number is published after it, with Release.
        self.outdated.fetch_or(EXCHANGING, Ordering::Relaxed);
    }

    /// The view and the number belong together.
    pub(crate) fn exchanged(&self) {
        self.outdated.fetch_add(1, Ordering::Relaxed);
        self.outdated.fetch_and(!EXCHANGING, Ordering::Release); // pairs with the Acquire in `Family::acquire_view`
    }

    /// Oldest sequence number that is in a memtable and in no table; `None` when all is in tables.
    /// Exact under the commit lock.
    pub(crate) fn oldest_unflushed(&self) -> Option<SeqNo> {
        self.oldest_of(|immutable| immutable.last())
    }

    /// The sequence number of the oldest entry that waits for a flush.
    pub(crate) fn oldest_immutable_entry(&self) -> Option<SeqNo> {
        self.view.load().immutable.last()?.needs_log_from()
    }

    /// The same as if the oldest immutable memtable were in tables.
    pub(crate) fn oldest_unflushed_but_one(&self) -> Option<SeqNo> {
        self.oldest_of(|immutable| immutable.iter().rev().nth(1))
    }

    fn oldest_of(&self, pick: impl Fn(&[Arc<FamilyMemtable>]) -> Option<&Arc<FamilyMemtable>>) -> Option<SeqNo> {
        let view = self.view.load();
        pick(&view.immutable).unwrap_or(&view.active).needs_log_from()
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Family({} '{}')", self.id, self.name())
    }
}

/// Which values are compressed when they are put ([`kingtide_table::packed`]): those that will go to a value log as one
/// chunk, and are large enough to make up for being decompressed by reads from memtables.
struct Packing {
    lengths: RangeInclusive<usize>,
    codec: Codec,
    /// Values in a row that did not shrink, up to [`Packing::MOST_DOUBT`], times 2^16, plus values to let pass untried.
    /// While values shrink it is 0 and only read. Relaxed, and an update may be lost: it decides only which thread does
    /// the compressing.
    doubt: AtomicU32,
    /// The same of values that [`Codec::for_value`] found no quicker way for, and of values that it is not asked about.
    /// Relaxed: it decides only how long compressing takes.
    plain: AtomicU32,
    /// Trials in a row that found a quicker way, of values for which one is dear, times 2^16, plus values to let pass that way.
    /// Relaxed, as `plain`.
    quick: AtomicU32,
}

impl Packing {
    const MIN: u64 = 1024;
    /// At most 2^this values pass untried.
    const MOST_DOUBT: u32 = 5;

    /// From options that cannot change while the family is open.
    fn of(options: &FamilyOptions) -> Packing {
        let on = options.value_threshold > 0 && options.compression != Compression::None;
        let (from, to) = (options.value_threshold.max(Packing::MIN), options.value_chunk_size.min(MAX_RAW as u64));
        #[allow(clippy::reversed_empty_ranges)] // that is: no length
        let lengths = if on { from as usize..=to as usize } else { 1..=0 };
        let [doubt, plain, quick] = [0; 3].map(AtomicU32::new);
        Packing { lengths, codec: Codec::of_values(options), doubt, plain, quick }
    }

    /// What to compress a value with. Each value that is compressed in a quicker way has been tried itself, or is short and comes
    /// after trials that all found one; after trials that found none, most values are not tried.
    #[inline]
    fn codec_for(&self, value: &[u8]) -> Codec {
        if self.codec.suits_itself(value.len()) { self.tried(value) } else { self.codec }
    }

    #[inline(never)]
    fn tried(&self, value: &[u8]) -> Codec {
        let plain = self.plain.load(Ordering::Relaxed);
        if plain & 0xffff != 0 {
            self.plain.store(plain - 1, Ordering::Relaxed);
            return self.codec;
        }
        let dear = self.codec.looks_dearly(value.len());
        let quick = self.quick.load(Ordering::Relaxed);
        if dear && quick & 0xffff != 0 {
            self.quick.store(quick - 1, Ordering::Relaxed);
            return self.codec.quick();
        }
        let codec = self.codec.for_value(value);
        if codec == self.codec {
            self.plain.store(once_more(plain), Ordering::Relaxed);
            self.quick.store(0, Ordering::Relaxed);
            return codec;
        }
        if plain != 0 {
            self.plain.store(0, Ordering::Relaxed);
        }
        if dear {
            self.quick.store(once_more(quick), Ordering::Relaxed);
        }
        codec
    }

    /// Whether a value is likely to shrink: after one that did, always; after others, if a sample of it does, and most
    /// are not even sampled. So values like random bytes cost next to nothing.
    #[inline]
    fn trusts(&self, value: &[u8]) -> bool {
        self.doubt.load(Ordering::Relaxed) == 0 || self.trusts_after_noise(value)
    }

    #[inline(never)]
    fn trusts_after_noise(&self, value: &[u8]) -> bool {
        let doubt = self.doubt.load(Ordering::Relaxed);
        if doubt & 0xffff != 0 {
            self.doubt.store(doubt - 1, Ordering::Relaxed);
            return false;
        }
        let trusted = shrinks(value);
        if !trusted {
            self.note(false);
        }
        trusted
    }

    #[inline]
    fn note(&self, packed: bool) {
        let doubt = self.doubt.load(Ordering::Relaxed);
        if !packed {
            self.doubt.store(once_more(doubt), Ordering::Relaxed);
        } else if doubt != 0 {
            self.doubt.store(0, Ordering::Relaxed);
        }
    }
}

/// What [`Packing`] knows of values after one more that was like those before.
fn once_more(known: u32) -> u32 {
    // An even number passes, so that values of two kinds in turn do not show the same kind each time.
    let alike = ((known >> 16) + 1).min(Packing::MOST_DOUBT);
    alike << 16 | 1 << alike
}

/// Longest family name in bytes.
pub const MAX_NAME: usize = 255;

/// Checks a family name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("column family name is empty"));
    }
    if name.len() > MAX_NAME {
        return Err(Error::invalid(format!("column family name has {} bytes; at most {MAX_NAME}", name.len())));
    }
    if name.contains('\0') {
        // The C API could neither list nor open it. Databases that have such a family keep it.
        return Err(Error::invalid("column family name contains a NUL byte"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    /// Of values for which there is no quicker way few are tried, and one that is found to have one ends that.
    #[test]
    fn few_values_are_tried_where_trials_fail() {
        let packing = Packing::of(&FamilyOptions::default());
        let mut rng = Rng::new(1);
        let text: Vec<u8> = (0..20_000).map(|_| b"tide, ebb"[rng.below(9) as usize]).collect();
        let mut noise = vec![0; 20_000];
        rng.fill(&mut noise);
        let quick = |value: &[u8]| packing.codec_for(value) != packing.codec;
        assert!(quick(&noise), "no way of compressing noise is better");
        let mut tried = 0;
        for _ in 0..1000 {
            let before = packing.plain.load(Ordering::Relaxed);
            assert!(!quick(&text));
            tried += u32::from(before & 0xffff == 0);
        }
        assert!((30..40).contains(&tried), "{tried} of 1000");
        let untried = (0..100).take_while(|_| !quick(&noise)).count();
        assert!(untried <= 1 << Packing::MOST_DOUBT, "{untried}");
        assert!((0..100).all(|_| quick(&noise)), "from then on each is");
        assert!(!quick(&noise[..1000]) && quick(&noise), "short ones are never");
    }

    /// Of shorter values, few are tried while they are alike. Where two kinds alternate, most values get the codec that suits them.
    #[test]
    fn few_short_values_are_tried_while_they_are_alike() {
        let packing = Packing::of(&FamilyOptions::default());
        let mut rng = Rng::new(1);
        let text: Vec<u8> = (0..5000).map(|_| b"tide, ebb"[rng.below(9) as usize]).collect();
        let mut noise = vec![0; 5000];
        rng.fill(&mut noise);
        let quick = |value: &[u8]| packing.codec_for(value) != packing.codec;
        let tried = |of: &AtomicU32| u32::from(of.load(Ordering::Relaxed) & 0xffff == 0);
        let mut trials = 0;
        for _ in 0..1000 {
            trials += tried(&packing.quick);
            assert!(quick(&noise));
        }
        assert!((30..40).contains(&trials), "{trials} of 1000");
        let unnoticed = (0..100).take_while(|_| quick(&text)).count();
        assert!(unnoticed <= 1 << Packing::MOST_DOUBT, "{unnoticed}");
        assert!((0..2).all(|_| !quick(&text)), "from then on most are not even tried");
        let in_turn = (0..1000).filter(|_| quick(&noise) & quick(&text)).count();
        assert!(in_turn < 350, "{in_turn} texts of 1000");
    }
}
