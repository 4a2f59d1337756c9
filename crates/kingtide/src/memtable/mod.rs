//! A family's memtable: point entries in the index of `kingtide_mem`, range tombstones beside it.
//!
//! Range tombstones are rare, so a reader pays one load of a counter when there are none. When there are some, the
//! fragmented sets are brought up to date by the first reader that finds them out of date, not by each insert: a batch with
//! a thousand range deletes costs one build. New tombstones form a new set, which replaces the preceding sets that are not
//! much larger (J. Bentley and J. Saxe, "Decomposable searching problems I", J. Algorithms 1980). So n range deletes with a
//! read after each cost O(n log^2 n), and there are O(log n) sets.
//!
//! The tombstones and their sets are charged to the budget of the memtables, beside the arena of the point entries. A set that was replaced
//! lives on while readers keep it; it is then charged like memtables that only readers keep.

use crate::direct::DirectRefs;
use crate::rangedel::{RangeTombstone, RangeTombstones, allocated};
use crate::swap::ArcSwapOption;
use kingtide_base::budget::{Budget, Charge};
use kingtide_base::key::MAX_SEQ;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use kingtide_base::{Error, KeyOrder, SeqNo, Tag};
use kingtide_mem::{ArenaPool, MemWriter, Memtable, NoRoom};
use std::ops::Bound;
use std::sync::Arc;

/// Range tombstones of a memtable in the form that readers search: several sets, the oldest first.
#[derive(Default)]
pub struct RangeSets {
    sets: Vec<Built>,
}

#[derive(Clone)]
struct Built {
    /// The number of tombstones that it was built from.
    count: usize,
    /// Bytes of memory held: counting them takes as long as building it.
    memory: u64,
    set: Arc<RangeTombstones>,
}

/// A set is built from at least this many times as many tombstones as all sets after it together.
const GROWTH: usize = 8;

impl RangeSets {
    /// The sets.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<RangeTombstones>> {
        self.sets.iter().map(|built| &built.set)
    }

    /// Like [`RangeTombstones::max_covering`], for all sets.
    pub fn max_covering(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        self.iter().map(|set| set.max_covering(key, snapshot)).max().unwrap_or(0)
    }

    /// Like [`RangeTombstones::newest_within`], for all sets.
    pub fn newest_within(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> SeqNo {
        self.iter().map(|set| set.newest_within(lo, hi)).max().unwrap_or(0)
    }

    /// The number of tombstones that the sets were built from.
    fn count(&self) -> usize {
        self.sets.iter().map(|built| built.count).sum()
    }

    /// Bytes of memory held. O(sets).
    fn memory(&self) -> u64 {
        self.sets.iter().map(|built| built.memory).sum()
    }

    /// Returns the sets for all of `list`; these were built from its first tombstones. The new one is charged to `budget`.
    fn grown(&self, order: &KeyOrder, list: &[RangeTombstone], budget: &Arc<Budget>) -> RangeSets {
        let (mut sets, mut from) = (self.sets.clone(), self.count());
        while let Some(built) = sets.pop_if(|built| built.count < GROWTH * (list.len() - from)) {
            from -= built.count;
        }
        let items = list[from..].iter().map(|t| (t.start.as_slice(), t.end.as_slice(), t.seq));
        let set = Arc::new(RangeTombstones::build(order, items).charged(budget));
        sets.push(Built { count: list.len() - from, memory: set.memory(), set });
        RangeSets { sets }
    }

    /// Charges another budget for the sets from the `first` on.
    fn charge_to(&self, first: usize, budget: &Arc<Budget>) {
        self.sets.iter().skip(first).for_each(|built| built.set.charge_to(budget));
    }
}

/// Range tombstones as they were inserted.
struct RangeList {
    /// Flushes share this list, so they need no copy. Nothing is inserted any more by then.
    tombstones: Arc<Vec<RangeTombstone>>,
    /// Bytes that the keys take.
    keys: u64,
    /// Bytes of the sets that were built last. Each set has a charge of its own.
    sets: u64,
    /// The charge for the list and its keys.
    charge: Charge,
}

impl RangeList {
    /// Charges what the list holds now. Returns these bytes and those of the sets.
    fn count_bytes(&mut self) -> u64 {
        let bytes = self.keys + (self.tombstones.capacity() * size_of::<RangeTombstone>()) as u64;
        self.charge.resize(bytes);
        bytes + self.sets
    }
}

/// No sequence number is as large.
const NO_ENTRY: SeqNo = SeqNo::MAX;

/// A memtable of one family.
pub struct FamilyMemtable {
    order: KeyOrder,
    points: Arc<Memtable>,
    first_seq: SeqNo,
    /// The sequence number of the first entry's commit; `NO_ENTRY` until there is one. Written and read under the commit
    /// lock, or by recovery, which is alone.
    first_entry: AtomicU64,
    /// Range tombstones in `list`. The Release store in `insert_range` pairs with the Acquire load in `ranges`, so a
    /// reader that sees a count sees a list of at least that length.
    range_count: AtomicUsize,
    /// What is charged for them. Changed under the lock of `list`; Relaxed: it orders nothing.
    range_bytes: AtomicU64,
    list: Mutex<RangeList>,
    /// The budget's owner.
    pool: Arc<ArenaPool>,
    fragmented: ArcSwapOption<RangeSets>,
    direct: DirectRefs,
}

impl FamilyMemtable {
    /// An empty memtable for operations from `first_seq` on.
    pub fn new(order: KeyOrder, pool: &Arc<ArenaPool>, first_seq: SeqNo) -> Arc<FamilyMemtable> {
        let charge = Charge::new(pool.budget(), 0);
        Arc::new(FamilyMemtable {
            points: Arc::new(Memtable::new(order.clone(), pool)),
            order,
            first_seq,
            first_entry: AtomicU64::new(NO_ENTRY),
            range_count: AtomicUsize::new(0),
            range_bytes: AtomicU64::new(0),
            list: Mutex::new(RangeList { tombstones: Arc::default(), keys: 0, sets: 0, charge }),
            pool: pool.clone(),
            fragmented: ArcSwapOption::empty(),
            direct: DirectRefs::default(),
        })
    }

    /// The point entries.
    #[inline]
    pub fn points(&self) -> &Arc<Memtable> {
        &self.points
    }

    /// The value logs that commits wrote and its entries point into.
    pub fn direct(&self) -> &DirectRefs {
        &self.direct
    }

    /// The order of its keys.
    pub fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// The one writer of point entries; waits for the current one.
    pub fn writer(&self) -> MemWriter<'_> {
        self.points.writer()
    }

    /// The sequence number from which on operations go into this memtable. It says where the one before ends, and nothing
    /// about which operations there are: those of other families have numbers of the same row.
    pub fn first_seq(&self) -> SeqNo {
        self.first_seq
    }

    /// Notes that a commit which begins with `seq` inserts entries. Called under the commit lock before the insertion, or
    /// by recovery; commits come in ascending order.
    #[inline]
    pub fn note_entries_from(&self, seq: SeqNo) {
        debug_assert!(seq >= self.first_seq, "a commit at {seq} into a memtable from {} on", self.first_seq);
        // Not only the first time: a range delete that covers nothing leaves the memtable empty.
        if self.is_empty() {
            self.first_entry.store(seq, Ordering::Relaxed); // the lock orders it
        }
    }

    /// From where on the log must be kept for this memtable: the sequence number with which the commit of its first entry
    /// begins. `None` while it is empty.
    pub fn needs_log_from(&self) -> Option<SeqNo> {
        if self.is_empty() {
            return None;
        }
        match self.first_entry.load(Ordering::Relaxed) {
            NO_ENTRY => Some(self.first_seq), // inserted without a commit, by a test
            seq => Some(seq),
        }
    }

    /// Makes room for point entries of `bytes` bytes together: see [`Memtable::reserve`].
    #[inline]
    pub fn reserve(&self, bytes: usize, entries: usize) -> Result<(), NoRoom> {
        self.points.reserve(bytes, entries)
    }

    /// Adds the tombstone `[start, end)`. A range that is empty in the family's order covers nothing and is left out.
    pub fn insert_range(&self, start: &[u8], end: &[u8], seq: SeqNo) {
        if self.order.compare(start, end).is_ge() {
            return;
        }
        let mut list = self.list.lock();
        let tombstone = RangeTombstone { start: start.to_vec(), end: end.to_vec(), seq };
        Arc::make_mut(&mut list.tombstones).push(tombstone);
        list.keys += allocated(start) + allocated(end);
        self.range_bytes.store(list.count_bytes(), Ordering::Relaxed);
        self.range_count.store(list.tombstones.len(), Ordering::Release);
    }

    /// Whether it holds range tombstones.
    #[inline]
    pub fn has_ranges(&self) -> bool {
        self.range_count.load(Ordering::Acquire) != 0
    }

    /// The range tombstones inserted so far, fragmented; `None` when there are none. O(log n), the number of sets, unless a
    /// tombstone was added since the last call.
    pub fn ranges(&self) -> Option<Arc<RangeSets>> {
        let count = self.range_count.load(Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let built = self.fragmented.load_full();
        if built.as_ref().is_some_and(|sets| sets.count() >= count) {
            return built;
        }
        let mut list = self.list.lock();
        let built = self.fragmented.load_full();
        if built.as_ref().is_some_and(|sets| sets.count() == list.tombstones.len()) {
            return built;
        }
        let before = built.unwrap_or_default();
        let sets = Arc::new(before.grown(&self.order, &list.tombstones, list.charge.budget()));
        self.fragmented.store(Some(sets.clone()));
        // All of these sets but the last are also in `before`. The others in it are gone now, unless readers keep them.
        before.charge_to(sets.sets.len() - 1, self.pool.retired());
        list.sets = sets.memory();
        self.range_bytes.store(list.count_bytes(), Ordering::Relaxed);
        Some(sets)
    }

    /// The range tombstones as they were inserted, for a flush.
    pub fn range_list(&self) -> Arc<Vec<RangeTombstone>> {
        self.list.lock().tombstones.clone()
    }

    /// Whether it holds keys from `lo` to `hi`, both included, or range tombstones that cover some of these. O(log n + range tombstones).
    pub fn holds_any(&self, lo: &[u8], hi: &[u8]) -> bool {
        let mut points = self.points.iter();
        points.seek(lo, Tag::seek(MAX_SEQ));
        if points.valid() && self.order.compare(points.key(), hi).is_le() {
            return true;
        }
        let meets =
            |start: &[u8], end: &[u8]| self.order.compare(start, hi).is_le() && self.order.compare(end, lo).is_gt();
        self.has_ranges() && self.list.lock().tombstones.iter().any(|r| meets(&r.start, &r.end))
    }

    /// Takes the memtable off the budget: its family was dropped, it is not written any more, and only readers still hold it. It is
    /// counted separately until it is freed.
    pub fn retire(&self) {
        self.points.retire();
        self.retire_ranges();
        self.direct.retire();
    }

    fn retire_ranges(&self) {
        let mut list = self.list.lock();
        list.charge.charge_to(self.pool.retired());
        if let Some(sets) = self.fragmented.load_full() {
            sets.charge_to(0, self.pool.retired());
        }
    }

    /// Lets go of a memtable that was flushed, and that the family's view does not have any more. If readers keep it, it is taken off the budget
    /// as by [`FamilyMemtable::retire`]: writers wait for memory that a flush can free, and what an open iterator holds is not that.
    pub fn let_go(self: Arc<FamilyMemtable>) {
        self.retire_ranges();
        let points = match Arc::try_unwrap(self) {
            Ok(last) => last.points,
            Err(kept) => kept.points.clone(),
        };
        if let Err(kept) = Arc::try_unwrap(points) {
            kept.retire();
        }
    }

    /// Bytes of keys and values, those included that commits wrote to value logs.
    pub fn bytes(&self) -> u64 {
        self.points.data_bytes() + self.direct.bytes()
    }

    /// Bytes held: arena, and range tombstones with the sets that readers search.
    pub fn memory(&self) -> u64 {
        self.points.memory() + self.range_bytes.load(Ordering::Relaxed)
    }

    /// Entries and range tombstones.
    pub fn len(&self) -> u64 {
        self.points.len() + self.range_count.load(Ordering::Acquire) as u64
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for FamilyMemtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FamilyMemtable").field("first_seq", &self.first_seq).field("len", &self.len()).finish()
    }
}

/// The error of a batch that does not fit into a memtable, or for which there is no memory.
#[cold]
pub(crate) fn no_room(why: NoRoom, bytes: usize, ops: usize) -> Error {
    match why {
        NoRoom::Memory(wanted) => Error::out_of_memory("a memtable", wanted),
        NoRoom::Full => Error::invalid(format!(
            "batch too large: {ops} operations of {bytes} bytes on one column family do not fit into a memtable; commit in parts"
        )),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    #[test]
    fn range_tombstones_and_their_sets_are_charged() {
        let pool = ArenaPool::new(Budget::new(u64::MAX));
        let used = || (pool.budget().used(), pool.retired().used());
        for is_kept in [false, true] {
            let memtable = FamilyMemtable::new(KeyOrder::Bytewise, &pool, 1);
            for seq in 1..=1000u32 {
                memtable.insert_range(&seq.to_be_bytes(), &(seq + 7).to_be_bytes(), u64::from(seq));
            }
            let list = used().0;
            assert!(list >= 1000 * (size_of::<RangeTombstone>() as u64 + 8), "{list}");
            assert_eq!((memtable.memory(), used().1), (list, 0));
            assert!(Arc::ptr_eq(&memtable.range_list(), &memtable.range_list()), "a flush copies nothing");
            let sets = memtable.ranges().unwrap();
            assert_eq!(memtable.memory(), list + sets.iter().map(|set| set.memory()).sum::<u64>());
            assert_eq!(used(), (memtable.memory(), 0));
            memtable.insert_range(b"a", b"b", 1001);
            let before = used().0;
            let grown = memtable.ranges().unwrap();
            assert_eq!((grown.iter().count(), used().1), (2, 0), "the first set is still in use");
            assert!(used().0 > before);
            (1002..2000).for_each(|seq| memtable.insert_range(b"a", b"b", seq));
            drop(memtable.ranges());
            let replaced: u64 = grown.iter().map(|set| set.memory()).sum();
            assert_eq!(used(), (memtable.memory(), replaced), "readers keep what was replaced");
            drop(sets);
            assert_eq!(used(), (memtable.memory(), replaced));
            drop(grown);
            assert_eq!(used(), (memtable.memory(), 0));
            let reader = is_kept.then(|| memtable.clone());
            let sets = memtable.ranges().unwrap();
            memtable.let_go();
            let kept = sets.iter().map(|set| set.memory()).sum();
            assert_eq!(used(), (0, reader.as_ref().map_or(kept, |reader| reader.memory())));
            drop((reader, sets));
            assert_eq!(used(), (0, 0));
        }
        let dropped = FamilyMemtable::new(KeyOrder::Bytewise, &pool, 1);
        dropped.insert_range(b"a", b"b", 1);
        (0..2).for_each(|_| dropped.retire());
        assert_eq!(used(), (0, dropped.memory()));
    }

    /// A read after each range delete rebuilds few and small sets. They give the answers that one set of all tombstones gives.
    #[test]
    fn range_tombstones_are_not_built_anew_for_each_read() {
        const COUNT: u64 = 4096;
        let memtable = FamilyMemtable::new(KeyOrder::Bytewise, &ArenaPool::new(Budget::new(1 << 20)), 1);
        let mut rng = Rng::new(5);
        let mut key = || (rng.below(5000) as u32).to_be_bytes();
        let (mut before, mut built, mut most) = (Vec::<Arc<RangeTombstones>>::new(), 0, 0);
        for seq in 1..=COUNT {
            let (a, b) = (key(), key());
            memtable.insert_range(a.min(b).as_slice(), a.max(b).as_slice(), seq);
            let now: Vec<_> =
                memtable.ranges().into_iter().flat_map(|r| r.iter().cloned().collect::<Vec<_>>()).collect();
            built +=
                now.iter().filter(|set| !before.iter().any(|b| Arc::ptr_eq(b, set))).map(|s| s.len()).sum::<usize>();
            most = most.max(now.len());
            before = now;
            if seq.is_multiple_of(64) {
                let (list, sets) = (memtable.range_list(), memtable.ranges().unwrap());
                let items = list.iter().map(|t| (t.start.as_slice(), t.end.as_slice(), t.seq));
                let one = RangeTombstones::build(&KeyOrder::Bytewise, items);
                for _ in 0..20 {
                    let (lo, hi) = (key(), key());
                    let (lo, hi) = (lo.min(hi), lo.max(hi));
                    for snapshot in [seq, seq / 2, 1] {
                        assert_eq!(sets.max_covering(&lo, snapshot), one.max_covering(&lo, snapshot));
                    }
                    let (lo, hi) = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
                    assert_eq!(sets.newest_within(lo, hi), one.newest_within(lo, hi));
                }
            }
        }
        assert!(most <= 5, "{most} sets");
        assert!(built < 100 * COUNT as usize, "{built} tombstones were built into sets for {COUNT}");
    }
}
