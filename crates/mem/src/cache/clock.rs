//! A partition of the cache: an open-addressing table that readers search without a lock, with a CLOCK hand over it.
//!
//! Writers (insert, erase, a change of capacity) hold the partition's lock. Readers may miss a block that a writer is
//! moving at that moment; they then read it from its file, as after any miss.
//!
//! CLOCK with a counter of two bits a block ("generalized CLOCK": Smith, ACM TODS 3(3), 1978): a hit raises it, the
//! hand lowers it and evicts at zero. Linear probing with backward-shift deletion (Knuth, TAOCP 3, 6.4, Algorithm R),
//! so no tombstones pile up under steady eviction.

use std::sync::OnceLock;

use kingtide_base::lock::Mutex;
use kingtide_base::rare;

use super::block::{self, Block, BlockKey};
use super::doorkeeper;
use super::slot::{Slot, Word};
use crate::sync::{AtomicUsize, Ordering};

/// Smallest and greatest table. The greatest is what a tag's hash bits can address.
const MIN_BITS: usize = 6;
const MAX_BITS: usize = HASH_BITS as usize;

/// A tag is a bit that says "taken", then this many bits of hash, which are also the home slot, then bits of the file
/// id, by which `erase_file` passes over most blocks of other files without touching them.
const HASH_BITS: u32 = 25;
const TAKEN: u32 = 1;
const FILE_MASK: u32 = !0 << (1 + HASH_BITS);

/// Counter of a fresh block: it survives one round of the hand.
const FRESH: u8 = 1;

/// A large value that is not in the cache looks at one block for so many of its bytes, and passes so many slots for each of these blocks: see
/// [`Partition::has_idle_block_within`].
const BYTES_PER_LOOK: u64 = 4096;
const SLOTS_PER_LOOK: u64 = 16;

/// A key, hashed once.
#[derive(Clone, Copy)]
pub(super) struct Hashed {
    pub key: BlockKey,
    pub hash: u64,
}

impl Hashed {
    #[inline]
    pub(super) fn new(file_id: u64, offset: u64) -> Hashed {
        let hash = kingtide_base::hash::mix64(spread(file_id).wrapping_add(offset));
        Hashed { key: BlockKey { file_id, offset }, hash }
    }

    #[inline]
    fn tag(self) -> u32 {
        file_bits(self.key.file_id) | (self.hash as u32 & ((1 << HASH_BITS) - 1)) << 1 | TAKEN
    }

    #[inline]
    fn fingerprint(self) -> u16 {
        (self.hash >> 32) as u16
    }
}

#[inline]
fn spread(file_id: u64) -> u64 {
    file_id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn file_bits(file_id: u64) -> u32 {
    (spread(file_id) >> 32) as u32 & FILE_MASK
}

/// Where a tag's block would best be.
#[inline]
fn home(tag: u32, mask: usize) -> usize {
    (tag >> 1) as usize & mask
}

/// What a change did to a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub inserted: bool,
    pub bytes_added: u64,
    pub bytes_removed: u64,
    pub evicted: u64,
}

/// What the lock guards.
#[derive(Default)]
struct Inner {
    hand: usize,
    blocks: usize,
    used: u64,
    capacity: u64,
    /// Whether it ever was full.
    was_full: bool,
}

/// How a miss is received; see [`Partition::admit`].
const OFF: usize = 0;
const ROOM: usize = 1;
const FULL: usize = 2;

/// A partition. Aligned so that two partitions do not share a pair of cache lines.
#[repr(align(128))]
pub(super) struct Partition {
    /// log2 of the current table's size.
    bits: AtomicUsize,
    /// `OFF`, `ROOM` or `FULL`. Relaxed: a hint.
    state: AtomicUsize,
    /// By log2 of their size. A table that was outgrown stays, empty, for readers may be in it; all of them together
    /// are smaller than the current one.
    tables: [OnceLock<Box<[Slot]>>; MAX_BITS + 1],
    inner: Mutex<Inner>,
}

impl Partition {
    pub(super) fn new(capacity: u64) -> Partition {
        let p = Partition {
            bits: AtomicUsize::new(MIN_BITS),
            state: AtomicUsize::new(OFF),
            tables: [const { OnceLock::new() }; MAX_BITS + 1],
            inner: Mutex::new(Inner { capacity, ..Inner::default() }),
        };
        p.table_of(MIN_BITS);
        p.publish_state(&p.inner.lock());
        p
    }

    fn table_of(&self, bits: usize) -> &[Slot] {
        self.tables[bits].get_or_init(|| (0..1usize << bits).map(|_| Slot::default()).collect())
    }

    /// Makes a larger table. False when there is no memory for it.
    fn make_table(&self, bits: usize) -> bool {
        let mut slots = Vec::new();
        if self.tables[bits].get().is_some() || slots.try_reserve_exact(1 << bits).is_err() {
            return self.tables[bits].get().is_some();
        }
        slots.resize_with(1 << bits, Slot::default);
        self.tables[bits].get_or_init(|| slots.into_boxed_slice());
        true
    }

    #[inline]
    fn table(&self) -> &[Slot] {
        // Acquire: pairs with the Release in `grow`, so that the table is there.
        self.tables[self.bits.load(Ordering::Acquire)].get().map_or(&[], |t| t)
    }

    /// The block, if it is cached. Takes no lock.
    #[inline]
    pub(super) fn get(&self, k: Hashed) -> Option<Block> {
        let table = self.table();
        let tag = k.tag();
        let mask = table.len().wrapping_sub(1);
        let mut i = home(tag, mask);
        // Bounded, though writers keep free slots: tags may change under the search.
        for _ in 0..table.len() {
            let slot = table.get(i)?;
            let seen = slot.tag();
            if seen == tag
                && let Some(block) = slot.acquire(k.key)
            {
                slot.touch();
                return Some(block);
            }
            if seen == 0 {
                return None;
            }
            i = (i + 1) & mask;
        }
        None
    }

    /// Whether a block that was missed should be inserted: at once while there is room, on its second touch later.
    #[inline]
    pub(super) fn admit(&self, k: Hashed) -> bool {
        match self.state.load(Ordering::Relaxed) {
            OFF => false,
            ROOM => true,
            _ => self.may_displace(k),
        }
    }

    /// Whether a block that was missed may take the place of another one: at its second and third miss, if the one in front of the hand is
    /// idle, and at its fourth in any case. Otherwise that one counts as hit less often. Where all blocks are read equally often, one that
    /// displaces another gains nothing and costs a copy; where they are not, most of those that are missed again are read less often than
    /// those in the cache.
    #[inline]
    fn may_displace(&self, k: Hashed) -> bool {
        let table = self.table();
        let Some(slot) = table.get(home(k.tag(), table.len().wrapping_sub(1))) else { return false };
        let misses = doorkeeper::count(&slot.door, k.fingerprint());
        let admitted = misses > doorkeeper::MOST || misses > 1 && self.is_next_idle();
        if admitted {
            slot.door.store(0, Ordering::Relaxed); // as in the doorkeeper
        }
        admitted
    }

    /// Moves the hand to the next block, and past it unless its counter is at zero: then it loses one. Says whether it is at zero.
    fn is_next_idle(&self) -> bool {
        let inner = &mut *self.inner.lock();
        let table = self.table();
        let mask = table.len() - 1;
        for _ in 0..table.len().min(SLOTS_PER_LOOK as usize) {
            let slot = &table[inner.hand & mask];
            let taken = slot.tag() != 0;
            if taken && slot.age() {
                return true;
            }
            inner.hand = inner.hand.wrapping_add(1);
            if taken {
                break;
            }
        }
        false
    }

    /// The same for a value. While there is room, its memory is new and costs more than one hit saves: it is admitted at its third touch. A large
    /// one, of `bytes`, must also find an idle block among those that would be evicted for it once the partition is full.
    #[inline]
    pub(super) fn admit_value(&self, k: Hashed, large: Option<u64>) -> bool {
        match self.state.load(Ordering::Relaxed) {
            OFF => false,
            ROOM => self.was_touched(k, 3),
            _ => self.was_touched(k, 2) && large.is_none_or(|bytes| self.has_idle_block_within(bytes)),
        }
    }

    /// Moves the hand up to the next block with its counter at zero, but no further than over `bytes` of others, each of which loses one, as if
    /// something were evicted. Says whether there is such a block, or nothing else in its way.
    ///
    /// Whatever the partition holds, the lock is held for a part of the time that reading the value takes. To look at a block takes up to 100 ns,
    /// because the processor's cache seldom has its header; to read 4 KiB of the value takes about 400. So there is one look for each
    /// [`BYTES_PER_LOOK`] of the value, which ends the walk early only where blocks are smaller than that. And a table that once held many small
    /// blocks has few large ones far apart: an empty slot takes about a nanosecond, so there are [`SLOTS_PER_LOOK`] slots for each look. After an
    /// early end, the hand goes on from there at the next miss.
    fn has_idle_block_within(&self, bytes: u64) -> bool {
        let inner = &mut *self.inner.lock();
        if bytes >= inner.capacity {
            return false; // Never inserted, so nothing should count as hit less often for it.
        }
        let table = self.table();
        let mask = table.len() - 1;
        let looks = bytes.div_ceil(BYTES_PER_LOOK);
        let slots = (looks * SLOTS_PER_LOOK).min(table.len() as u64);
        let (mut passed, mut looked) = (0, 0);
        for _ in 0..slots {
            let slot = &table[inner.hand & mask];
            if let Some(header) = slot.peek() {
                if slot.age() {
                    return true;
                }
                // SAFETY: the lock keeps the block in its slot, and so alive.
                passed += unsafe { block::key_and_charge(header) }.1;
                looked += 1;
            }
            inner.hand = inner.hand.wrapping_add(1);
            if passed >= bytes || looked >= looks {
                return false;
            }
        }
        slots == table.len() as u64
    }

    #[inline]
    fn was_touched(&self, k: Hashed, times: u16) -> bool {
        let table = self.table();
        let i = home(k.tag(), table.len().wrapping_sub(1));
        table.get(i).is_some_and(|slot| doorkeeper::touched(&slot.door, k.fingerprint(), times))
    }

    /// Inserts a block, evicting others as needed. Nothing happens if the block is larger than the partition or the key
    /// is cached already (then it counts as used: blocks of one file and offset are all alike).
    pub(super) fn insert(&self, k: Hashed, block: Block) -> Change {
        let mut change = Change::default();
        let block = block.bound_to(k.key);
        let charge = block.charge();
        let inner = &mut *self.inner.lock();
        if charge > inner.capacity {
            return change;
        }
        if let Some(slot) = self.find(k) {
            slot.touch();
            return change;
        }
        let Some(word) = Word::new(block) else { return change };
        if !inner.was_full && inner.used > inner.capacity - charge {
            inner.was_full = true;
            rare!("cache-partition-filled");
        }
        self.evict_to(inner, inner.capacity - charge, &mut change);
        self.make_slot(inner, &mut change);
        self.put(k.tag(), word, FRESH);
        inner.blocks += 1;
        inner.used += charge;
        change.inserted = true;
        change.bytes_added = charge;
        self.publish_state(inner);
        change
    }

    /// The slot with this key. Under the lock.
    fn find(&self, k: Hashed) -> Option<&Slot> {
        let table = self.table();
        let mask = table.len() - 1;
        let mut i = home(k.tag(), mask);
        while table[i].tag() != 0 {
            if table[i].tag() == k.tag()
                // SAFETY: the lock keeps the block in its slot, and so alive.
                && table[i].peek().is_some_and(|h| unsafe { block::has_key(h, k.key) })
            {
                return Some(&table[i]);
            }
            i = (i + 1) & mask;
        }
        None
    }

    /// Puts a block into the first free slot from its home. Under the lock; there is a free slot.
    fn put(&self, tag: u32, word: Word, clock: u8) {
        let table = self.table();
        let mask = table.len() - 1;
        let mut i = home(tag, mask);
        while table[i].tag() != 0 {
            i = (i + 1) & mask;
        }
        table[i].put(tag, word, clock);
    }

    /// Sees to it that one more block leaves 3/8 of the table free, which keeps a miss at about four probes.
    fn make_slot(&self, inner: &mut Inner, change: &mut Change) {
        let bits = self.bits.load(Ordering::Relaxed);
        if (inner.blocks + 1) * 8 <= (1 << bits) * 5 {
            return;
        }
        let old = self.table();
        if bits == MAX_BITS || !self.make_table(bits + 1) {
            self.evict_one(inner, change);
            return;
        }
        // Release: pairs with the Acquire in `table`.
        self.bits.store(bits + 1, Ordering::Release);
        for slot in old {
            let tag = slot.tag();
            if tag != 0 {
                let (word, clock) = slot.take();
                self.put(tag, word, clock);
            }
        }
    }

    fn evict_to(&self, inner: &mut Inner, bytes: u64, change: &mut Change) {
        while inner.used > bytes && inner.blocks > 0 {
            self.evict_one(inner, change);
        }
    }

    /// Evicts the block that the hand comes to first with its counter at zero. Under the lock.
    fn evict_one(&self, inner: &mut Inner, change: &mut Change) {
        let table = self.table();
        let mask = table.len() - 1;
        let mut steps = 0;
        while inner.blocks > 0 {
            let i = inner.hand & mask;
            // Four rounds bring every counter to zero; readers that raise them meanwhile do not hold us up for ever.
            let tired = steps > 4 * table.len();
            if table[i].tag() != 0 && (table[i].age() || tired) {
                // The hand stays: the removal may have moved the next block here.
                self.remove(inner, i, change);
                change.evicted += 1;
                return;
            }
            inner.hand = inner.hand.wrapping_add(1);
            steps += 1;
        }
    }

    /// Empties slot `hole` and closes the gap that it leaves in the probe sequences of others. Under the lock.
    fn remove(&self, inner: &mut Inner, mut hole: usize, change: &mut Change) {
        let table = self.table();
        let mask = table.len() - 1;
        if let Some(header) = table[hole].peek() {
            // SAFETY: the lock keeps the block in its slot, and so alive.
            let (_, charge) = unsafe { block::key_and_charge(header) };
            inner.used -= charge;
            inner.blocks -= 1;
            change.bytes_removed += charge;
        }
        let (word, _) = table[hole].take();
        word.release();
        let mut i = (hole + 1) & mask;
        while table[i].tag() != 0 {
            let tag = table[i].tag();
            let distance_from_home = i.wrapping_sub(home(tag, mask)) & mask;
            if distance_from_home >= i.wrapping_sub(hole) & mask {
                let (word, clock) = table[i].take();
                table[hole].put(tag, word, clock);
                hole = i;
            }
            i = (i + 1) & mask;
        }
    }

    /// Removes all blocks of a file. O(slots), at about a nanosecond each.
    pub(super) fn erase_file(&self, file_id: u64) -> Change {
        let mut change = Change::default();
        let inner = &mut *self.inner.lock();
        let table = self.table();
        let bits = file_bits(file_id) | TAKEN;
        let mut i = 0;
        while i < table.len() {
            let candidate = table[i].tag() & (FILE_MASK | TAKEN) == bits;
            // SAFETY: the lock keeps the block in its slot, and so alive.
            let is_of = |h| unsafe { block::key_and_charge(h) }.0.file_id == file_id;
            if candidate && table[i].peek().is_some_and(is_of) {
                self.remove(inner, i, &mut change); // look at slot i again: another block may have moved here
            } else {
                i += 1;
            }
        }
        self.publish_state(inner);
        change
    }

    /// Changes the capacity and evicts down to it.
    pub(super) fn set_capacity(&self, bytes: u64) -> Change {
        let mut change = Change::default();
        let inner = &mut *self.inner.lock();
        inner.capacity = bytes;
        self.evict_to(inner, bytes, &mut change);
        self.publish_state(inner);
        change
    }

    /// There is room below seven eighths of the capacity: an insertion then evicts nothing, so it can only pay.
    fn publish_state(&self, inner: &Inner) {
        let state = match inner.capacity {
            0 => OFF,
            c if inner.used < c - c / 8 => ROOM,
            _ => FULL,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// Checks what must always hold, block by block; returns blocks and bytes.
    #[cfg(all(test, not(loom)))]
    pub(super) fn audit(&self) -> (usize, u64) {
        let inner = self.inner.lock();
        let table = self.table();
        let (mut blocks, mut bytes) = (0, 0);
        for slot in table.iter().filter(|s| s.tag() != 0) {
            // SAFETY: the lock keeps the block in its slot, and so alive.
            let (key, charge) = unsafe { block::key_and_charge(slot.peek().unwrap()) };
            let k = Hashed::new(key.file_id, key.offset);
            assert!(std::ptr::eq(self.find(k).unwrap(), slot), "block {key:?} is not where its key leads");
            blocks += 1;
            bytes += charge;
        }
        assert_eq!((inner.blocks, inner.used), (blocks, bytes));
        assert!(inner.used <= inner.capacity && blocks * 8 <= table.len() * 5);
        (blocks, bytes)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        for slot in self.tables.iter().filter_map(OnceLock::get).flatten() {
            slot.take().0.release();
        }
    }
}
