//! Memory for the blocks of a cache.
//!
//! Evicted blocks leave holes, and a general allocator with an arena for each thread, such as glibc's, does not refill those
//! of other threads: a process whose cache had a limit of 256 MiB grew to 760 MiB within minutes. Here all threads share the
//! holes. A *slab* of 64 KiB is divided into slots of one size; a slab without blocks can be divided anew, and if there are
//! many of those, their pages are returned to the system. So a cache occupies little more than the largest size that it had.
//!
//! A slab lies at a multiple of its size, so the address of a slot tells where its slab begins. Each number of slots has its
//! own lock, which is held for some ten instructions.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use kingtide_base::lock::Mutex;

use super::large::Large;
use crate::arena::{CHUNK, map, unmap};

/// Bytes of a slab, and its alignment.
const SLAB: usize = 64 << 10;

/// What slots share.
const USABLE: usize = SLAB - size_of::<Slab>();

/// Slots in a slab: for blocks of 1,008 bytes to 16,368. Smaller ones are left to the global allocator, because they are rare, and
/// larger ones to [`Large`], because few of them would fit into a slab.
const FEWEST: usize = 4;
const MOST: usize = 64;

/// Empty slabs whose pages are kept, so that a cache whose blocks come and go makes no system calls.
const WARM: usize = 16;

/// Bytes to ask the system for: the first of these that it grants.
const EXTENTS: [usize; 3] = [4 << 20, 512 << 10, SLAB];

/// What stands at the beginning of a slab. All but the first two fields are guarded by the lock of `slots`.
#[repr(C, align(64))]
struct Slab {
    /// A strong reference of the `Arc`, as long as the slab has blocks.
    owner: *const Slabs,
    slots: usize,
    used: usize,
    /// Slots from this one on were never used.
    fresh: usize,
    /// The first of the other free slots; each begins with the address of the next.
    free: *mut u8,
    /// Neighbours in the list of slabs that have blocks and room for more.
    previous: *mut Slab,
    next: *mut Slab,
}

/// The first slab that has blocks and room for more, or null.
struct Partial(*mut Slab);

/// Slabs without blocks.
struct Empty {
    warm: Vec<NonNull<Slab>>,
    /// Their pages were given back.
    cold: Vec<NonNull<Slab>>,
    extents: Vec<(NonNull<u8>, usize)>,
}

/// The memory of one cache. It lives until the cache and the last of its blocks are gone.
pub(super) struct Slabs {
    partial: [Mutex<Partial>; MOST + 1],
    empty: Mutex<Empty>,
    large: Large,
}

// SAFETY: the pointers are to memory that the value owns, which only holders of its locks touch.
unsafe impl Send for Slabs {}
// SAFETY: as above.
unsafe impl Sync for Slabs {}

impl Slabs {
    pub(super) fn new() -> Arc<Slabs> {
        Arc::new(Slabs {
            partial: [const { Mutex::new(Partial(ptr::null_mut())) }; MOST + 1],
            empty: Mutex::new(Empty { warm: Vec::new(), cold: Vec::new(), extents: Vec::new() }),
            large: Large::default(),
        })
    }

    /// Memory for a large block of `size` bytes, aligned to 16, to be returned by [`Slabs::free_large`]. `None` if blocks of this size
    /// are left to others, or there is no memory.
    pub(super) fn allocate_large(self: &Arc<Slabs>, size: usize) -> Option<NonNull<u8>> {
        if size <= USABLE / FEWEST {
            return None;
        }
        let slot = self.large.allocate(size)?;
        // SAFETY: the owner is alive, for it is `self`. The slot has a reference from here on.
        unsafe { Arc::increment_strong_count(Arc::as_ptr(self)) };
        Some(slot)
    }

    /// Returns the memory of a large block, from any thread.
    ///
    /// # Safety
    /// `slot` comes from [`Slabs::allocate_large`] of `owner` and `size`, is not yet returned, and nothing refers to it any more.
    pub(super) unsafe fn free_large(owner: *const Slabs, slot: NonNull<u8>, size: usize) {
        // SAFETY: the slot's reference keeps the owner alive until the last statement, which gives it up.
        unsafe {
            (*owner).large.free(slot, size);
            Arc::decrement_strong_count(owner);
        }
    }

    /// Memory for `size` bytes, aligned to 16, to be returned by [`Slabs::free`]. `None` if blocks of this size are left to
    /// the global allocator, or there is no memory.
    pub(super) fn allocate(self: &Arc<Slabs>, size: usize) -> Option<NonNull<u8>> {
        if !(USABLE / (MOST + 1)..=USABLE / FEWEST).contains(&size) {
            return None;
        }
        let slots = USABLE / size.next_multiple_of(16);
        let mut partial = self.partial[slots].lock();
        let fresh = if partial.0.is_null() { Some(self.new_slab(slots)?) } else { None };
        // SAFETY: slabs of the list are alive and not full, and its lock is held; a fresh slab is in no list. The owner is alive,
        // for it is `self`.
        unsafe {
            if let Some(slab) = fresh {
                partial.push(slab);
                Arc::increment_strong_count((*slab).owner);
            }
            let slab = partial.0;
            let slot = allocate_slot(slab);
            if (*slab).used == slots {
                partial.remove(slab);
            }
            NonNull::new(slot)
        }
    }

    /// Returns memory, from any thread.
    ///
    /// # Safety
    /// `slot` comes from [`Slabs::allocate`], is not yet returned, and nothing refers to it any more.
    pub(super) unsafe fn free(slot: NonNull<u8>) {
        let slab = slot.as_ptr().map_addr(|a| a & !(SLAB - 1)).cast::<Slab>();
        // SAFETY: a slab with a block is alive, its first two fields do not change, and it keeps its owner alive. The others
        // are touched under their lock only. The last statement gives up that reference, after the lock was released and
        // the slab was handed back: nothing here uses the owner after it.
        unsafe {
            let (owner, slots) = ((*slab).owner, (*slab).slots);
            let mut partial = (*owner).partial[slots].lock();
            slot.cast::<*mut u8>().write((*slab).free);
            (*slab).free = slot.as_ptr();
            let was_full = (*slab).used == slots;
            (*slab).used -= 1;
            if was_full {
                partial.push(slab);
            }
            if (*slab).used > 0 {
                return;
            }
            partial.remove(slab);
            drop(partial);
            (*owner).empty.lock().give_back(NonNull::new_unchecked(slab));
            Arc::decrement_strong_count(owner);
        }
    }

    /// An empty slab with so many slots, in no list.
    fn new_slab(self: &Arc<Slabs>, slots: usize) -> Option<*mut Slab> {
        let slab = self.empty.lock().take()?;
        let nowhere = ptr::null_mut::<Slab>();
        let owner = Arc::as_ptr(self);
        // SAFETY: the slab is ours alone, of `SLAB` bytes, and aligned to that.
        unsafe {
            slab.write(Slab { owner, slots, used: 0, fresh: 0, free: nowhere.cast(), previous: nowhere, next: nowhere })
        };
        Some(slab.as_ptr())
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        for (base, len) in std::mem::take(&mut self.empty.lock().extents) {
            // SAFETY: made by `map` with this length. No slab has blocks, for each that has keeps this value alive.
            unsafe { unmap(base, len) };
        }
    }
}

/// A slot of a slab that is not full.
///
/// # Safety
/// The slab is alive and not full, and the caller holds its lock.
unsafe fn allocate_slot(slab: *mut Slab) -> *mut u8 {
    // SAFETY: by the contract. A free slot begins with the address of the next one; fresh slots lie within the slab.
    unsafe {
        (*slab).used += 1;
        if (*slab).free.is_null() {
            let size = (USABLE / (*slab).slots) & !15;
            let slot = slab.cast::<u8>().add(size_of::<Slab>() + (*slab).fresh * size);
            (*slab).fresh += 1;
            return slot;
        }
        let slot = (*slab).free;
        (*slab).free = slot.cast::<*mut u8>().read();
        slot
    }
}

impl Partial {
    /// # Safety
    /// The slab is alive and in no list, and the lock of this list is held.
    unsafe fn push(&mut self, slab: *mut Slab) {
        // SAFETY: by the contract; slabs of the list are alive.
        unsafe {
            (*slab).previous = ptr::null_mut();
            (*slab).next = self.0;
            if let Some(next) = self.0.as_mut() {
                next.previous = slab;
            }
        }
        self.0 = slab;
    }

    /// # Safety
    /// The slab is in this list, whose lock is held.
    unsafe fn remove(&mut self, slab: *mut Slab) {
        // SAFETY: by the contract; slabs of the list are alive.
        unsafe {
            let (previous, next) = ((*slab).previous, (*slab).next);
            match previous.as_mut() {
                Some(previous) => previous.next = next,
                None => self.0 = next,
            }
            if let Some(next) = next.as_mut() {
                next.previous = previous;
            }
        }
    }
}

impl Empty {
    /// A slab, whose bytes are undefined.
    fn take(&mut self) -> Option<NonNull<Slab>> {
        if self.warm.is_empty() && self.cold.is_empty() {
            self.grow()?;
        }
        self.warm.pop().or_else(|| self.cold.pop())
    }

    /// Maps more memory. The lists get room for all slabs that there are, so that returning one takes no memory.
    fn grow(&mut self) -> Option<()> {
        let slabs = self.extents.iter().map(|(_, len)| len / SLAB).sum::<usize>() + EXTENTS[0] / SLAB;
        self.extents.try_reserve(1).ok()?;
        self.warm.try_reserve(WARM + 1).ok()?;
        self.cold.try_reserve(slabs - self.cold.len()).ok()?;
        let (base, len) = EXTENTS.iter().find_map(|len| Some((map(*len, CHUNK, false)?, *len)))?;
        self.extents.push((base, len));
        for at in (0..len).step_by(SLAB).rev() {
            // SAFETY: within the mapping.
            self.cold.push(unsafe { base.add(at) }.cast());
        }
        Some(())
    }

    fn give_back(&mut self, slab: NonNull<Slab>) {
        if self.warm.len() < WARM {
            self.warm.push(slab);
            return;
        }
        #[cfg(all(target_os = "linux", not(miri), not(loom)))]
        // SAFETY: the slab is within a mapping of ours, and nothing in it is used any more. If the system refuses, its pages
        // stay.
        unsafe {
            libc::madvise(slab.as_ptr().cast(), SLAB, libc::MADV_DONTNEED);
        }
        self.cold.push(slab);
    }
}

#[cfg(all(test, target_os = "linux", not(miri), not(loom)))]
mod tests {
    use kingtide_base::rng::Rng;

    use super::*;

    /// Slabs with blocks in them, and empty ones with and without pages.
    fn counts(slabs: &Slabs) -> (usize, usize, usize) {
        let empty = slabs.empty.lock();
        let all = empty.extents.iter().map(|(_, len)| len / SLAB).sum::<usize>();
        (all - empty.warm.len() - empty.cold.len(), empty.warm.len(), empty.cold.len())
    }

    fn resident(slab: NonNull<Slab>) -> usize {
        let mut pages = [0u8; SLAB / 4096];
        // SAFETY: the slab is mapped, and `pages` has a byte for each of its pages (or more, where pages are larger).
        let done = unsafe { libc::mincore(slab.as_ptr().cast(), SLAB, pages.as_mut_ptr().cast()) };
        assert_eq!(done, 0);
        pages.iter().filter(|p| **p & 1 == 1).count()
    }

    /// A slot that is filled with a byte. It can go to another thread.
    struct Filled(NonNull<u8>, usize, u8);

    // SAFETY: it owns its slot.
    unsafe impl Send for Filled {}

    impl Filled {
        fn new(slabs: &Arc<Slabs>, size: usize, byte: u8) -> Filled {
            let slot = slabs.allocate(size).unwrap();
            assert_eq!(slot.as_ptr() as usize % 16, 0);
            // SAFETY: a fresh slot of that size.
            unsafe { slot.write_bytes(byte, size) };
            Filled(slot, size, byte)
        }

        fn check(&self) {
            // SAFETY: the slot is ours, with so many bytes that were written.
            let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) };
            assert!(bytes.iter().all(|b| *b == self.2), "slots overlap");
        }
    }

    impl Drop for Filled {
        fn drop(&mut self) {
            self.check();
            // SAFETY: not yet returned, and nothing else knows it.
            unsafe { Slabs::free(self.0) };
        }
    }

    #[test]
    fn sizes_that_fit_badly_are_left_to_the_global_allocator() {
        let slabs = Slabs::new();
        for size in [0, 1, 992, USABLE / 4 + 1, SLAB, usize::MAX] {
            assert!(slabs.allocate(size).is_none(), "{size}");
        }
        for size in [1008, 4144, 4145, USABLE / 4] {
            drop(Filled::new(&slabs, size, 1));
        }
    }

    #[test]
    fn slots_never_overlap_and_blocks_outlive_the_cache() {
        for seed in 0..8 {
            println!("seed {seed}");
            let slabs = Slabs::new();
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    let slabs = slabs.clone();
                    std::thread::spawn(move || {
                        let mut rng = Rng::new(seed * 4 + t);
                        let mut held = Vec::new();
                        for _ in 0..4_000 {
                            if rng.below(100) < 52 {
                                held.push(Filled::new(&slabs, 1008 + rng.below(9000) as usize, rng.below(256) as u8));
                            } else if !held.is_empty() {
                                let at = rng.below(held.len() as u64) as usize;
                                held.swap_remove(at);
                            }
                        }
                        held
                    })
                })
                .collect();
            let held: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
            let observer = Arc::downgrade(&slabs);
            drop(slabs);
            held.iter().for_each(Filled::check);
            assert!(observer.upgrade().is_some());
            drop(held);
            assert!(observer.upgrade().is_none(), "the memory is kept after its last block");
        }
    }

    #[test]
    fn another_thread_refills_the_holes() {
        let slabs = Slabs::new();
        let mut held: Vec<_> = (0..3_000).map(|_| Filled::new(&slabs, 4_200, 1)).collect();
        let before = counts(&slabs);
        assert_eq!(before.0, 3_000 / 15);
        let mut odd = false;
        held.retain(|_| {
            odd = !odd;
            odd
        });
        let other = slabs.clone();
        let more = std::thread::spawn(move || (0..1_500).map(|_| Filled::new(&other, 4_100, 2)).collect::<Vec<_>>());
        let more = more.join().unwrap();
        assert_eq!(counts(&slabs), before);
        drop((held, more));
    }

    #[test]
    fn pages_without_blocks_are_returned_to_the_system() {
        let slabs = Slabs::new();
        let held: Vec<_> = (0..3_000).map(|_| Filled::new(&slabs, 4_200, 1)).collect();
        drop(held);
        let (used, warm, cold) = counts(&slabs);
        assert_eq!((used, warm), (0, WARM));
        assert!(cold >= 200 - WARM);
        let empty = slabs.empty.lock();
        // Those that had blocks. Others may have been touched with them, where the system gives out huge pages.
        let returned = empty.cold.iter().rev().take(200 - WARM);
        assert_eq!(returned.map(|s| resident(*s)).sum::<usize>(), 0);
        assert!(empty.warm.iter().all(|s| resident(*s) > 0));
    }
}
