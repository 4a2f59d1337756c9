//! A slot of the cache's table: a pointer to a block that readers take references through with one atomic instruction.
//!
//! The upper 16 bits of the pointer word count the references that readers took here; adding one to them yields pointer
//! and reference at once, so that a block cannot go between the look and the count ("split reference counts":
//! Williams, C++ Concurrency in Action, 7.2.4). When the pointer leaves the slot, the count taken here moves into the
//! block's own, which meanwhile held [`CACHED`] extra so as not to reach zero. That needs pointers of 64 bits, of which addresses
//! take 48; `kingtide-base` refuses to compile for other machines.

use std::ptr::NonNull;

use super::block::{self, Block, BlockKey, CACHED, Header};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, Ordering, fetch_byte_add};

const COUNT_SHIFT: u32 = 48;
const ONE: usize = 1 << COUNT_SHIFT;
const ADDRESS: usize = ONE - 1;

/// A slot that has counted this many moves them to the block: so few under loom and Miri that they see it happen.
const SPILL: usize = if cfg!(loom) {
    2
} else if cfg!(miri) {
    16
} else {
    1 << 14
};

/// Greatest value of the CLOCK counter: rounds of the hand that a block that was often hit survives.
const CLOCK_MAX: u8 = 3;

/// One slot, a quarter of a cache line. All stores but `acquire`'s, `touch`'s and the door's are made under the
/// partition's lock.
pub(super) struct Slot {
    /// Block and count; see the module.
    word: AtomicPtr<Header>,
    /// 0 when free, else the block's tag. A hint: the key in the block decides. Relaxed throughout.
    tag: AtomicU32,
    /// The doorkeeper's mark; see `doorkeeper.rs`. Nothing to do with the block in the slot.
    pub(super) door: AtomicU16,
    /// CLOCK counter. Relaxed: losing an update loses a little of a block's merit.
    clock: AtomicU8,
}

/// A pointer word out of a slot, with the count taken there.
pub(super) struct Word(*mut Header);

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            word: AtomicPtr::new(std::ptr::null_mut()),
            tag: AtomicU32::new(0),
            door: AtomicU16::new(0),
            clock: AtomicU8::new(0),
        }
    }
}

fn header(word: *mut Header) -> Option<NonNull<Header>> {
    NonNull::new(word.map_addr(|a| a & ADDRESS))
}

fn count(word: *mut Header) -> usize {
    word.addr() >> COUNT_SHIFT
}

impl Slot {
    #[inline]
    pub(super) fn tag(&self) -> u32 {
        self.tag.load(Ordering::Relaxed)
    }

    /// A handle to the block, if the slot holds the one with this key.
    #[inline]
    pub(super) fn acquire(&self, key: BlockKey) -> Option<Block> {
        // Acquire: pairs with the Release in `put`; the block's header and bytes are as they were when it was cached.
        // On a free slot this counts nothing: `put` overwrites it.
        let word = fetch_byte_add(&self.word, ONE, Ordering::Acquire);
        // SAFETY: the addition found the block in the slot and counted a reference to it in the same step; the
        // thread that takes the block out of the slot honours that count.
        let block = unsafe { Block::from_raw(header(word)?) };
        if count(word) >= SPILL {
            self.spill(&block);
        }
        // Tags collide, and the slot may have changed hands since its tag was read.
        block.has_key(key).then_some(block)
    }

    /// Moves references counted here to the block, before 16 bits overflow. For that to come too late, tens of
    /// thousands of threads would have to stand between `acquire`'s addition and this.
    #[cold]
    #[inline(never)]
    fn spill(&self, block: &Block) {
        block.add_refs(SPILL);
        // Relaxed: a read-modify-write carries on the Release of `put`, and counts order nothing else.
        let mut word = self.word.load(Ordering::Relaxed);
        while header(word) == Some(block.as_raw()) && count(word) >= SPILL {
            let less = word.wrapping_byte_sub(SPILL << COUNT_SHIFT);
            match self.word.compare_exchange(word, less, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
        block.remove_refs(SPILL); // the block left the slot, or another thread was first
    }

    /// Marks the block as used.
    #[inline]
    pub(super) fn touch(&self) {
        let clock = self.clock.load(Ordering::Relaxed);
        if clock < CLOCK_MAX {
            self.clock.store(clock + 1, Ordering::Relaxed);
        }
    }

    /// Takes one from the CLOCK counter; true if there was none left to take. Under the partition's lock.
    #[inline]
    pub(super) fn age(&self) -> bool {
        let clock = self.clock.load(Ordering::Relaxed);
        self.clock.store(clock.saturating_sub(1), Ordering::Relaxed);
        clock == 0
    }

    /// The block in the slot, for a look under the partition's lock, while which it stays.
    #[inline]
    pub(super) fn peek(&self) -> Option<NonNull<Header>> {
        header(self.word.load(Ordering::Relaxed))
    }

    /// Takes the block out of the slot, under the partition's lock.
    #[inline]
    pub(super) fn take(&self) -> (Word, u8) {
        self.tag.store(0, Ordering::Relaxed);
        // Relaxed: the lock orders this after `put`, and `release` orders readers' uses of the block.
        let word = self.word.swap(std::ptr::null_mut(), Ordering::Relaxed);
        (Word(word), self.clock.load(Ordering::Relaxed))
    }

    /// Puts a block in a free slot, under the partition's lock.
    #[inline]
    pub(super) fn put(&self, tag: u32, word: Word, clock: u8) {
        self.clock.store(clock, Ordering::Relaxed);
        // Release: pairs with the Acquire in `acquire`. A plain store would do; loom, which does not know that nothing
        // comes between the two halves of `acquire`'s addition, follows a swap only.
        self.word.swap(word.0, Ordering::Release);
        self.tag.store(tag, Ordering::Relaxed);
    }
}

impl Word {
    /// A word for a block that is bound to its key. None if the block's address has no 16 bits to spare (tagged
    /// pointers, five-level page tables).
    pub(super) fn new(block: Block) -> Option<Word> {
        if block.as_raw().addr().get() & !ADDRESS != 0 {
            return None;
        }
        block.add_refs(CACHED - 1); // the handle's own reference makes it CACHED
        Some(Word(std::mem::ManuallyDrop::new(block).as_raw().as_ptr()))
    }

    /// Gives up the cache's reference: what the slot counted becomes the block's own count.
    pub(super) fn release(self) {
        if let Some(header) = header(self.0) {
            // SAFETY: the word owns CACHED references, less those that readers took through the slot.
            unsafe { block::release(header, CACHED - count(self.0)) };
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const KEY: BlockKey = BlockKey { file_id: 1, offset: 2 };
    const OTHER: BlockKey = BlockKey { file_id: 1, offset: 3 };

    fn word(key: BlockKey, byte: u8) -> Word {
        Word::new(Block::from(&[byte; 4][..]).bound_to(key)).unwrap()
    }

    /// A reader meets an eviction and the reuse of the slot for another block: it gets the right bytes or nothing, and
    /// every block is freed once (loom tracks the allocations).
    #[test]
    fn hit_against_evict_and_reuse() {
        loom::model(|| {
            let slot = Arc::new(Slot::default());
            slot.put(9, word(KEY, 1), 0);
            let reader = {
                let slot = slot.clone();
                thread::spawn(move || slot.acquire(KEY).map(|b| assert_eq!(&*b, [1; 4])))
            };
            slot.take().0.release();
            slot.put(9, word(OTHER, 2), 0);
            assert_eq!(&*slot.acquire(OTHER).unwrap(), [2; 4]);
            reader.join().unwrap();
            slot.take().0.release();
        });
    }

    /// Two readers overflow the slot's count while the block moves to another slot and is evicted there.
    #[test]
    fn spill_against_move_and_evict() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let slots = Arc::new([Slot::default(), Slot::default()]);
            slots[0].put(9, word(KEY, 1), 0);
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let slots = slots.clone();
                    thread::spawn(move || {
                        let held: Vec<_> = (0..2).filter_map(|_| slots[0].acquire(KEY)).collect();
                        held.iter().for_each(|b| assert_eq!(&**b, [1; 4]));
                    })
                })
                .collect();
            let (word, clock) = slots[0].take();
            slots[1].put(9, word, clock);
            slots[1].take().0.release();
            for r in readers {
                r.join().unwrap();
            }
        });
    }
}
