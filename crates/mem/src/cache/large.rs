//! Memory for the large blocks of a cache, which are values of value logs.
//!
//! A general allocator is a bad place for them, for the reason that [`super::slabs`] gives, and a mapping for each would cost a page
//! fault for every 4 KiB of every value. Here a block gets a slot of the next larger size class. Slots are never unmapped. Those
//! that were freed last keep their pages, so that a full cache, which frees a slot for each that it takes, makes no system
//! calls; the pages of all others go back to the system at once. A block touches only the pages that it needs, and a slot whose last
//! block was larger gives back what the next one leaves unused. So what a slot has beyond its block costs addresses, and at most an
//! eighth of the slot in memory.

use std::ptr::NonNull;

use kingtide_base::lock::Mutex;

use crate::arena::{CHUNK, map, unmap};

/// Classes have slots of `SMALLEST + EXTRA`, `2 * SMALLEST + EXTRA` bytes and so on: a value of a power of two, the usual size of a large
/// one, fits with its header.
const SMALLEST: usize = 16 << 10;
const EXTRA: usize = 4 << 10;
const CLASSES: usize = 7;

/// The largest block, header included.
pub(super) const LARGEST: usize = (SMALLEST << (CLASSES - 1)) + EXTRA;

/// Free slots of a class keep pages up to so many bytes, or two of them, or one for each processor.
const WARM_BYTES: usize = 512 << 10;
const MOST_WARM_BYTES: usize = 8 << 20;

/// Bytes to ask the system for: the first of these that it grants, if they hold a slot.
const EXTENTS: [usize; 3] = [4 << 20, 2 << 20, 512 << 10];

#[derive(Default)]
struct Class {
    /// Each with how many of its first bytes may have pages.
    warm: Vec<(NonNull<u8>, usize)>,
    /// Their pages were given back, or never touched.
    cold: Vec<NonNull<u8>>,
    extents: Vec<(NonNull<u8>, usize)>,
}

/// The memory of the large blocks of one cache.
#[derive(Default)]
pub(super) struct Large {
    classes: [Mutex<Class>; CLASSES],
}

/// The class of a block of `size` bytes, header included; `None`: it is too large.
fn class_of(size: usize) -> Option<usize> {
    let units = size.saturating_sub(EXTRA).max(1).div_ceil(SMALLEST);
    let class = units.checked_next_power_of_two()?.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn slot_size(class: usize) -> usize {
    (SMALLEST << class) + EXTRA
}

/// How many bytes of a slot keep their pages for a block of `size` bytes: rounded up to an eighth, so that blocks of about the same size
/// take turns without a system call.
fn kept(class: usize, size: usize) -> usize {
    size.next_multiple_of((SMALLEST << class >> 3).max(4 << 10)).min(slot_size(class))
}

/// Gives the pages of bytes `from..to` of a slot back to the system. If it refuses, they stay.
///
/// # Safety
/// Nothing in them is used any more, and no other thread has the slot.
unsafe fn give_back(slot: NonNull<u8>, from: usize, to: usize) {
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    if from < to {
        // SAFETY: within a mapping of ours, and unused by the contract.
        unsafe {
            libc::madvise(slot.as_ptr().add(from).cast(), to - from, libc::MADV_DONTNEED);
        }
    }
    #[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
    let _ = (slot, from, to);
}

/// One for each processor at least, as long as that is no more than [`MOST_WARM_BYTES`]: each may be about to take one for a value that does
/// not enter the cache.
fn warm_slots(class: usize) -> usize {
    let size = slot_size(class);
    (WARM_BYTES / size).max(kingtide_base::processors().min(MOST_WARM_BYTES / size)).max(2)
}

impl Large {
    /// Memory for `size` bytes, aligned to 16 and with contents that do not matter, to be returned by [`Large::free`]. `None` if such a block is too
    /// large, or there is no memory.
    pub(super) fn allocate(&self, size: usize) -> Option<NonNull<u8>> {
        let class = class_of(size)?;
        let (slot, pages) = {
            let mut slots = self.classes[class].lock();
            if slots.warm.is_empty() && slots.cold.is_empty() {
                slots.grow(class)?;
            }
            slots.warm.pop().or_else(|| Some((slots.cold.pop()?, 0)))?
        };
        // SAFETY: a free slot, which was just taken.
        unsafe { give_back(slot, kept(class, size), pages) };
        Some(slot)
    }

    /// Returns memory, from any thread.
    ///
    /// # Safety
    /// `slot` comes from [`Large::allocate`] of this value and `size`, is not yet returned, and nothing refers to it any more.
    pub(super) unsafe fn free(&self, slot: NonNull<u8>, size: usize) {
        let Some(class) = class_of(size) else { return };
        {
            let mut slots = self.classes[class].lock();
            if slots.warm.len() < warm_slots(class) {
                return slots.warm.push((slot, kept(class, size)));
            }
        }
        // SAFETY: by the contract nothing in the slot is used any more, and it is in no list.
        unsafe { give_back(slot, 0, slot_size(class)) };
        self.classes[class].lock().cold.push(slot);
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        for class in &self.classes {
            for (base, len) in std::mem::take(&mut class.lock().extents) {
                // SAFETY: made by `map` with this length. Each block keeps this value alive, so there is none.
                unsafe { unmap(base, len) };
            }
        }
    }
}

impl Class {
    /// Maps more slots. The lists get room for all that there are, so that returning one takes no memory.
    #[cold]
    fn grow(&mut self, class: usize) -> Option<()> {
        let size = slot_size(class);
        let slots: usize = self.extents.iter().map(|(_, len)| len / size).sum();
        self.extents.try_reserve(1).ok()?;
        self.warm.try_reserve(warm_slots(class)).ok()?;
        self.cold.try_reserve(slots + EXTENTS[0] / size).ok()?;
        let (base, len) =
            EXTENTS.iter().filter(|len| **len >= size).find_map(|len| Some((map(*len, CHUNK, false)?, *len)))?;
        self.extents.push((base, len));
        for i in (0..len / size).rev() {
            // SAFETY: within the mapping.
            self.cold.push(unsafe { base.add(i * size) });
        }
        Some(())
    }
}

#[cfg(all(test, target_os = "linux", not(miri), not(loom)))]
mod tests {
    use kingtide_base::rng::Rng;

    use super::*;

    fn resident(slot: NonNull<u8>, size: usize) -> usize {
        let mut pages = vec![0u8; size.div_ceil(4096)];
        // SAFETY: the slot is mapped, begins at a page, and `pages` has a byte for each of its pages (or more, where pages are larger).
        let done = unsafe { libc::mincore(slot.as_ptr().cast(), size, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|p| **p & 1 == 1).count()
    }

    #[test]
    fn classes_hold_what_they_are_for() {
        for size in [1, 16 << 10, 20 << 10, (20 << 10) + 1, (64 << 10) + 48, (1 << 20) + 48, LARGEST] {
            let class = class_of(size).unwrap();
            assert!(slot_size(class) >= size && (class == 0 || slot_size(class - 1) < size), "{size}");
        }
        assert!([LARGEST + 1, usize::MAX].into_iter().all(|size| class_of(size).is_none()));
        assert!(Large::default().allocate(LARGEST + 1).is_none());
    }

    #[test]
    fn slots_never_overlap() {
        for seed in 0..4 {
            println!("seed {seed}");
            let (large, mut rng, mut held) = (Large::default(), Rng::new(seed), Vec::new());
            for i in 0..3_000u32 {
                if held.len() < 40 || rng.below(100) < 50 {
                    let part = 1 + rng.below(30);
                    let size = 16_369 + rng.below((LARGEST - 16_369) as u64 / part) as usize;
                    let slot = large.allocate(size).unwrap();
                    assert_eq!(slot.as_ptr() as usize % 16, 0);
                    // SAFETY: a fresh slot of that size: its first and last bytes.
                    unsafe {
                        slot.cast::<u32>().write_unaligned(i);
                        slot.add(size - 4).cast::<u32>().write_unaligned(!i);
                    }
                    held.push((slot, size, i));
                } else {
                    let (slot, size, i) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    // SAFETY: the slot is ours and was written; it is returned once.
                    unsafe {
                        assert_eq!(slot.cast::<u32>().read_unaligned(), i);
                        assert_eq!(slot.add(size - 4).cast::<u32>().read_unaligned(), !i, "slots overlap");
                        large.free(slot, size);
                    }
                }
            }
        }
    }

    #[test]
    fn free_slots_are_used_again_and_few_of_them_keep_pages() {
        let (large, size) = (Large::default(), (64 << 10) + 48);
        let take = || {
            let slot = large.allocate(size).unwrap();
            // SAFETY: a fresh slot of that size.
            unsafe { slot.write_bytes(1, size) };
            slot
        };
        let held: Vec<_> = (0..100).map(|_| take()).collect();
        // SAFETY: taken above, and returned once.
        held.iter().for_each(|slot| unsafe { large.free(*slot, size) });
        let class = class_of(size).unwrap();
        let pages: usize = held.iter().map(|slot| resident(*slot, slot_size(class))).sum();
        assert!(pages <= warm_slots(class) * 17 && pages >= warm_slots(class) * 16, "{pages} pages are kept");
        let again: Vec<_> = (0..100).map(|_| take()).collect();
        let common = again.iter().filter(|slot| held.contains(slot)).count();
        assert!(common >= 90, "{common} of 100 slots were used again");
        // SAFETY: taken above, and returned once.
        again.iter().for_each(|slot| unsafe { large.free(*slot, size) });
    }

    /// A cache whose values become smaller does not keep the pages of the larger ones.
    #[test]
    fn a_slot_gives_back_what_a_smaller_block_leaves_unused() {
        let (large, size) = (Large::default(), 36 << 10);
        let class = class_of(size).unwrap();
        let smaller = (slot_size(class - 1)) + 1;
        let take = |size: usize| {
            let slot = large.allocate(size).unwrap();
            // SAFETY: a fresh slot of that size.
            unsafe { slot.write_bytes(1, size) };
            slot
        };
        let mut held: Vec<_> = (0..100).map(|_| take(size)).collect();
        let pages = |held: &[NonNull<u8>]| held.iter().map(|slot| resident(*slot, slot_size(class))).sum::<usize>();
        assert_eq!(pages(&held), 900);
        for (n, slot) in held.iter_mut().enumerate() {
            // SAFETY: taken above, and returned once.
            unsafe { large.free(*slot, size) };
            *slot = take(smaller + n);
        }
        assert!(pages(&held) <= 600, "{} pages are kept", pages(&held));
        for (n, slot) in held.iter_mut().enumerate() {
            // SAFETY: taken above, and returned once.
            unsafe { large.free(*slot, smaller + n) };
            *slot = take(size);
        }
        assert_eq!(pages(&held), 900);
        // SAFETY: taken above, and returned once.
        held.iter().for_each(|slot| unsafe { large.free(*slot, size) });
    }
}
