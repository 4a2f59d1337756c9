//! Memory for memtables: bump allocation from chunks that are recycled from one memtable to the next.
//!
//! What is allocated is named by a 32-bit *offset* in units of 8 bytes, so that an index entry costs 4 bytes instead of
//! 8. An offset is `slot << 18 | unit`: the slot table maps a slot to a base address, and a slot spans 2 MiB. A chunk
//! smaller than that leaves the rest of its slot unused, an allocation larger than that takes several slots in a row.
//! Slot 0 is never used, which leaves offset 0 to mean "none".
//!
//! The first chunk of a memtable is 4 KiB and the following ones are up to a quarter of what it holds, at most 2 MiB. So
//! thousands of small families stay small, what a memtable is charged is close to what is in it at any size, and a large
//! memtable lives on huge pages (10 % of an insert: fewer TLB misses).
//!
//! Chunks of 128 KiB and more are mappings of their own. From the heap, those of memtables of a few MiB, which many families have,
//! would stay with the C library when they are freed: it gives back the end of a heap only. Where `malloc_trim` is called, they may
//! come from the heap all the same ([`ArenaPool::set_map_smaller_chunks`]).

use std::alloc::Layout;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kingtide_base::budget::Budget;
use kingtide_base::lock::Mutex;

/// Bytes of a full-sized chunk: one huge page on x86-64 and most of AArch64.
pub const CHUNK: usize = 2 << 20;

/// Bytes of a memtable's first chunk.
const FIRST_CHUNK: usize = 4 << 10;

/// An allocation beyond this gets a mapping of its own, so that at most this much of a chunk's end is ever wasted.
const LARGE: usize = 256 << 10;

/// From this size on, a region is a mapping of its own, which is given back as a whole.
const MAPPED: usize = 128 << 10;

/// Bytes set aside for insertions under way when memory runs out.
const EMERGENCY: usize = LARGE;

/// One slot of so many, and at most [`MOST_KEPT_SLOTS`], is no room to reserve: a batch that splits more nodes than was reckoned with takes it.
const SLOTS_PER_KEPT: usize = 64;
const MOST_KEPT_SLOTS: usize = 64;

/// Free chunks below which a pool asks for more. A writer at full speed fills one in 5 ms.
const SPARES: usize = 2;

/// The smallest page size of all platforms.
const SMALL_PAGE: usize = 4 << 10;

/// Alignment of everything a chunk starts with: a cache line.
const LINE: usize = 64;

const UNIT: usize = 8;
const SLOT_SHIFT: u32 = (CHUNK / UNIT).trailing_zeros();
const SLOT_MASK: u32 = (1 << SLOT_SHIFT) - 1;
const MAX_SLOTS: usize = 1 << (32 - SLOT_SHIFT);

/// Where a [`Region`] comes from, hence how it is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The global allocator.
    Heap,
    /// An anonymous mapping.
    Mapped,
}

/// A piece of memory that the owner of this value owns; freed by [`Region::free`], not by drop.
struct Region {
    base: NonNull<u8>,
    len: usize,
    source: Source,
}

// SAFETY: a Region is an exclusively owned allocation without thread affinity, like a Box<[u8]>.
unsafe impl Send for Region {}

impl Region {
    /// A mapping of its own if it has `mapped_from` bytes or more. `None` when there is no memory.
    fn allocate(len: usize, mapped_from: usize) -> Option<Region> {
        if len >= mapped_from
            && let Some(base) = if len < CHUNK { map(len, SMALL_PAGE, false) } else { map(len, CHUNK, true) }
        {
            return Some(Region { base, len, source: Source::Mapped });
        }
        let layout = Region::heap_layout(len);
        // SAFETY: len is never zero (callers ask for chunks or for entries with a header).
        let base = NonNull::new(unsafe { std::alloc::alloc(layout) })?;
        Some(Region { base, len, source: Source::Heap })
    }

    fn heap_layout(len: usize) -> Layout {
        match Layout::from_size_align(len, LINE) {
            Ok(layout) => layout,
            Err(_) => unreachable!("entry lengths are 32 bits each"),
        }
    }

    fn is_chunk(&self) -> bool {
        self.len == CHUNK
    }

    /// Whether it is a smaller chunk with a mapping of its own. Those from the heap are kept by the C library.
    fn is_smaller_chunk(&self) -> bool {
        self.source == Source::Mapped && self.len < CHUNK && self.len.is_power_of_two()
    }

    /// Makes the system provide all pages. One store to a page that is not there yet, in place of an advice to populate all:
    /// the fault takes a lock of this mapping only, so that other threads can map memory meanwhile.
    fn touch(&mut self) {
        for at in (0..self.len).step_by(SMALL_PAGE) {
            // SAFETY: `at` is within the region, which nothing else refers to.
            unsafe { self.base.as_ptr().add(at).write_volatile(0) };
        }
    }

    fn free(self) {
        match self.source {
            // SAFETY: allocated by `allocate` with this very layout.
            Source::Heap => unsafe { std::alloc::dealloc(self.base.as_ptr(), Region::heap_layout(self.len)) },
            // SAFETY: mapped by `map` with this length, and nothing refers to it any more.
            Source::Mapped => unsafe { unmap(self.base, self.len) },
        }
    }
}

/// Maps `len` bytes at an address aligned to `align`, [`SMALL_PAGE`] or a multiple of [`PAGE`], and asks for huge pages if they are
/// wanted. `None` if the system refuses, or has no such thing.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
pub(crate) fn map(len: usize, align: usize, huge: bool) -> Option<NonNull<u8>> {
    let kept = len.next_multiple_of(PAGE);
    // Every mapping is aligned to a page of the system.
    let mapped = if align == SMALL_PAGE { kept } else { kept.checked_add(align)? };
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(align);
    let behind = mapped - before - kept;
    // SAFETY: `before < align` where so much more was mapped, and 0 otherwise, so base..base+kept lies within the mapping; what is
    // cut off before and after it was mapped right here and nothing refers to it. Both cuts begin and end at multiples of the page size.
    unsafe {
        let base = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        if behind > 0 {
            libc::munmap(base.add(kept).cast(), behind);
        }
        // Advice: without huge pages everything works, more slowly.
        if huge {
            libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE);
        }
        NonNull::new(base)
    }
}

/// The largest page size of the platforms that `map` is built for; cuts are made at multiples of it.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
const PAGE: usize = 64 << 10;

/// # Safety
/// `base` and `len` are those of a live mapping made by [`map`], and nothing uses it any more.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: by this function's contract.
    unsafe { libc::munmap(base.as_ptr().cast(), len.next_multiple_of(PAGE)) };
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
pub(crate) fn map(_len: usize, _align: usize, _huge: bool) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
pub(crate) unsafe fn unmap(_base: NonNull<u8>, _len: usize) {
    unreachable!("nothing is mapped on this platform")
}

/// Where memtables get their memory from and return it to.
///
/// Bytes that a memtable holds are charged to the budget, and once it is retired, to another one. Chunks that no memtable holds are kept, full-sized ones up to a limit,
/// smaller ones up to half of it, and all up to what the budget has left. They are not charged: no writer has to wait for them.
///
/// A fresh huge page costs 100 to 200 us to be zeroed by the kernel, and several milliseconds where memory must be found for it
/// first, by the kernel or by the host of a virtual machine (one page of five, when it was measured). A writer would pay that
/// under the commit lock, with all others waiting. So a pool that has few free chunks left says so ([`ArenaPool::on_low`]), and
/// another thread makes spares ([`ArenaPool::prepare_spares`]).
pub struct ArenaPool {
    budget: Arc<Budget>,
    /// What retired memtables hold.
    retired: Arc<Budget>,
    free: Mutex<Free>,
    free_limit: u64,
    /// Spares are wanted. Relaxed: a hint; the chunks themselves are under the lock.
    low: AtomicBool,
    /// From which size on a region is a mapping of its own. Relaxed: each region knows what it is.
    mapped_from: AtomicUsize,
    on_low: OnceLock<Arc<dyn Fn() + Send + Sync>>,
    /// For an insertion that is under way when there is no memory left. Not charged.
    emergency: Mutex<Option<Region>>,
    /// Slots that a memtable may take; fewer than [`MAX_SLOTS`] in tests.
    max_slots: usize,
}

/// Chunks that no memtable holds.
#[derive(Default)]
struct Free {
    /// Of the full size.
    full: Vec<Region>,
    smaller: Vec<Region>,
    smaller_bytes: u64,
}

impl Free {
    fn bytes(&self) -> u64 {
        (self.full.len() * CHUNK) as u64 + self.smaller_bytes
    }

    fn take_smaller(&mut self, len: usize) -> Option<Region> {
        let at = self.smaller.iter().rposition(|r| r.len == len)?;
        self.smaller_bytes -= len as u64;
        Some(self.smaller.swap_remove(at))
    }
}

impl ArenaPool {
    /// A pool that charges to `budget` and keeps up to 8 MiB of free chunks of full size.
    pub fn new(budget: Arc<Budget>) -> Arc<ArenaPool> {
        ArenaPool::with_free_limit(budget, 8 << 20)
    }

    /// A pool that charges to `budget` and keeps up to `free_limit` bytes of free chunks of full size.
    pub fn with_free_limit(budget: Arc<Budget>, free_limit: u64) -> Arc<ArenaPool> {
        ArenaPool::with_slots(budget, free_limit, MAX_SLOTS)
    }

    /// Whether an arena of this pool could hold allocations of `bytes` together, if it were empty.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        bytes.div_ceil(CHUNK) < self.reservable() // the first one names nothing
    }

    /// Slots that can be reserved.
    fn reservable(&self) -> usize {
        self.max_slots - (self.max_slots / SLOTS_PER_KEPT).clamp(1, MOST_KEPT_SLOTS)
    }

    /// The same, with memtables that are full after fewer pieces of memory, of 2 MiB or a large entry each. For tests: the
    /// real number, 16,384, takes at least 4 GiB of entries.
    pub fn with_slots(budget: Arc<Budget>, free_limit: u64, max_slots: usize) -> Arc<ArenaPool> {
        Arc::new(ArenaPool {
            budget,
            retired: Budget::new(u64::MAX),
            free: Mutex::new(Free::default()),
            free_limit,
            low: AtomicBool::new(false),
            mapped_from: AtomicUsize::new(MAPPED),
            on_low: OnceLock::new(),
            emergency: Mutex::new(None),
            max_slots: max_slots.clamp(16, MAX_SLOTS),
        })
    }

    /// Whether chunks of 128 KiB to 2 MiB are mappings of their own (at first they are) or come from the heap. There other
    /// consumers use what memtables leave, so that all of them together take less at their peak, but only `malloc_trim` gives it back.
    pub fn set_map_smaller_chunks(&self, on: bool) {
        self.mapped_from.store(if on { MAPPED } else { CHUNK }, Ordering::Relaxed);
    }

    /// Calls `wake`, which must be fast, whenever a memtable takes a full-sized chunk and few are left. It is to make some
    /// other thread call [`ArenaPool::prepare_spares`]. Only the first call has an effect; without one, no spares are made.
    pub fn on_low(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        let _ = self.on_low.set(wake);
    }

    /// Makes the free chunks of full size that memtables will ask for next, and has the system provide their pages. False when none
    /// are wanted, or another thread makes them. Takes 100 to 200 us a chunk, and sometimes several milliseconds.
    pub fn prepare_spares(&self) -> bool {
        if !self.low.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut made = false;
        while self.free.lock().full.len() < SPARES && self.keeps((SPARES * CHUNK) as u64) {
            let Some(mut region) = Region::allocate(CHUNK, CHUNK) else { break };
            region.touch();
            self.give_back(region);
            made = true;
        }
        made
    }

    /// The budget that memory is charged to while a memtable holds it that is not retired.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The budget, without a limit, that memory is charged to while a retired memtable holds it.
    pub fn retired(&self) -> &Arc<Budget> {
        &self.retired
    }

    /// Bytes of chunks that wait for a memtable.
    pub fn free_bytes(&self) -> u64 {
        self.free.lock().bytes()
    }

    /// Gives all free chunks back to the operating system.
    pub fn trim(&self) {
        let free = std::mem::take(&mut *self.free.lock());
        free.full.into_iter().chain(free.smaller).for_each(Region::free);
    }

    /// `None` when there is no memory.
    fn take(&self, len: usize) -> Option<Region> {
        let recycled = match len {
            CHUNK => self.take_chunk(),
            MAPPED..CHUNK => self.free.lock().take_smaller(len),
            _ => None,
        };
        let region = recycled.or_else(|| Region::allocate(len, self.mapped_from.load(Ordering::Relaxed)))?;
        self.budget.charge(region.len as u64);
        Some(region)
    }

    /// A free chunk. Asks for more if few are left.
    fn take_chunk(&self) -> Option<Region> {
        let (taken, left) = {
            let mut free = self.free.lock();
            (free.full.pop(), free.full.len())
        };
        if left < SPARES
            && let Some(wake) = self.on_low.get()
            && !self.low.swap(true, Ordering::Relaxed)
        {
            wake();
        }
        taken
    }

    /// Sees to it that there is a region for [`ArenaPool::take_emergency`]. False when there is no memory for it.
    fn keep_emergency(&self) -> bool {
        let mut kept = self.emergency.lock();
        if kept.is_none() {
            *kept = Region::allocate(EMERGENCY, CHUNK);
        }
        kept.is_some()
    }

    /// Memory for an insertion that cannot be taken back any more. What was set aside is enough for some hundred splits of
    /// nodes; a process that needs more of it ends, as it would without.
    #[cold]
    fn take_emergency(&self, len: usize) -> Region {
        let kept = if len <= EMERGENCY { self.emergency.lock().take() } else { None };
        let Some(region) = kept else { std::alloc::handle_alloc_error(Region::heap_layout(len)) };
        self.budget.charge(region.len as u64);
        region
    }

    fn give_back(&self, region: Region) {
        let len = region.len as u64;
        let mut free = self.free.lock();
        if region.is_chunk() && self.keeps(((free.full.len() + 1) * CHUNK) as u64) {
            free.full.push(region);
        } else if region.is_smaller_chunk() && self.keeps(2 * (free.smaller_bytes + len)) {
            free.smaller_bytes += len;
            free.smaller.push(region);
        } else {
            drop(free);
            region.free();
        }
    }

    /// Whether it may keep so many bytes of free chunks of full size, or half as many of smaller ones.
    fn keeps(&self, bytes: u64) -> bool {
        bytes <= self.free_limit && self.budget.used().saturating_add(bytes) <= self.budget.limit()
    }
}

impl Drop for ArenaPool {
    fn drop(&mut self) {
        self.trim();
        self.emergency.get_mut().take().into_iter().for_each(Region::free);
    }
}

impl fmt::Debug for ArenaPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaPool").field("budget", &self.budget).field("free_bytes", &self.free_bytes()).finish()
    }
}

/// The half of an arena that readers use: it turns offsets into addresses.
///
/// These atomics are the standard library's even under loom: the tables grow by copying and an entry of theirs is
/// written once, so they add nothing to what loom has to explore.
pub(crate) struct Slots {
    table: AtomicPtr<AtomicPtr<u8>>,
    memory: AtomicU64,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots { table: AtomicPtr::new(ptr::null_mut()), memory: AtomicU64::new(0) }
    }

    /// Bytes held. A statistic: Relaxed, it orders nothing.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// The address of an offset.
    ///
    /// # Safety
    /// `offset` was returned by [`Bump::allocate`] of this arena, which lives, and the return happened before this
    /// call (the caller got the offset through an acquire of a release made after it).
    #[inline(always)]
    pub(crate) unsafe fn address(&self, offset: u32) -> NonNull<u8> {
        // Acquire: partner of the Release in `Bump::grow_table`; what the table holds was copied before that. Some
        // table that knows `offset` is seen because its store happened before the offset was handed out.
        let table = self.table.load(Ordering::Acquire);
        // SAFETY: by the contract the slot is within the table and its base was stored before the offset was made.
        // Relaxed: that store happened before this load, and a slot is stored only once.
        unsafe {
            let base = (*table.add((offset >> SLOT_SHIFT) as usize)).load(Ordering::Relaxed);
            NonNull::new_unchecked(base.add((offset & SLOT_MASK) as usize * UNIT))
        }
    }
}

/// Why memory cannot be reserved for insertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The memtable holds as many pieces of memory as it can name: insert into another one.
    Full,
    /// The system has no memory for that many bytes.
    Memory(usize),
}

/// Where the next bytes of a chunk go.
#[derive(Clone, Copy)]
struct Place {
    /// Next free byte, and the end. Equal when there is no chunk.
    cursor: *mut u8,
    end: *mut u8,
    /// Offset of the chunk's first slot, and its base.
    base: *mut u8,
    base_offset: u32,
}

impl Place {
    const NONE: Place = Place { cursor: ptr::null_mut(), end: ptr::null_mut(), base: ptr::null_mut(), base_offset: 0 };

    #[inline]
    fn left(&self) -> usize {
        self.end as usize - self.cursor as usize
    }
}

/// The half of an arena that the one writer uses. Dropping it gives all memory back.
pub(crate) struct Bump {
    pool: Arc<ArenaPool>,
    /// The current chunk.
    at: Place,
    /// A chunk that a large reservation left unfinished.
    aside: Place,
    next_slot: usize,
    /// Whether the regions are charged to the pool's budget of retired memtables.
    retired: bool,
    regions: Vec<Region>,
    /// All slot tables made so far, the current one last: a reader may still look into an older one.
    tables: Vec<Box<[AtomicPtr<u8>]>>,
}

// SAFETY: the raw pointers point into regions that this value owns.
unsafe impl Send for Bump {}

impl Bump {
    pub(crate) fn new(pool: &Arc<ArenaPool>) -> Bump {
        Bump {
            pool: pool.clone(),
            at: Place::NONE,
            aside: Place::NONE,
            next_slot: 1,
            retired: false,
            regions: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Bytes that can be allocated without asking the system for memory.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        self.at.left()
    }

    /// Makes room for allocations of `bytes` together, so that none of them fails. An error changes nothing.
    #[cold]
    pub(crate) fn reserve(&mut self, slots: &Slots, bytes: usize) -> Result<(), NoRoom> {
        if self.aside.left() > self.at.left() {
            std::mem::swap(&mut self.at, &mut self.aside);
        }
        if self.at.left() >= bytes {
            return Ok(());
        }
        if bytes > MAX_SLOTS * CHUNK {
            return Err(NoRoom::Full);
        }
        let len = if bytes > LARGE { bytes.next_multiple_of(LINE) } else { self.chunk_for(slots, bytes) };
        if !self.pool.keep_emergency() {
            return Err(NoRoom::Memory(len));
        }
        let place = self.make_place(slots, len, self.pool.reservable())?;
        // What a small reservation leaves over is a small part of its chunk; a large one takes nothing of the present chunk.
        if bytes > LARGE {
            self.aside = self.at;
        }
        self.at = place;
        Ok(())
    }

    fn make_place(&mut self, slots: &Slots, len: usize, max_slots: usize) -> Result<Place, NoRoom> {
        let count = len.div_ceil(CHUNK);
        if self.next_slot + count > max_slots {
            return Err(NoRoom::Full);
        }
        let region = self.pool.take(len).ok_or(NoRoom::Memory(len))?;
        Ok(self.add_region(slots, region))
    }

    /// `len` bytes (more than none) at an address aligned to 8, with the offset that `slots` will resolve to it.
    ///
    /// # Panics
    /// If the arena would exceed 32 GiB, and ends the process without memory; never after a [`Bump::reserve`].
    #[inline]
    pub(crate) fn allocate(&mut self, slots: &Slots, len: usize) -> (u32, NonNull<u8>) {
        let len = len.next_multiple_of(UNIT);
        if self.at.left() >= len {
            return self.bump(len);
        }
        self.allocate_slow(slots, len)
    }

    /// `len` bytes at an address aligned to a cache line.
    pub(crate) fn allocate_lines(&mut self, slots: &Slots, len: usize) -> NonNull<u8> {
        let skip = (self.at.cursor as usize).next_multiple_of(LINE) - self.at.cursor as usize;
        if self.at.left() >= skip + len {
            // SAFETY: the line above leaves room for it.
            self.at.cursor = unsafe { self.at.cursor.add(skip) };
            return self.bump(len.next_multiple_of(UNIT)).1;
        }
        self.allocate_slow(slots, len.next_multiple_of(UNIT)).1 // a chunk starts at a line
    }

    #[inline]
    fn bump(&mut self, len: usize) -> (u32, NonNull<u8>) {
        let at = self.at.cursor;
        let offset = self.at.base_offset + ((at as usize - self.at.base as usize) / UNIT) as u32;
        // SAFETY: the caller saw that `len` bytes are left between cursor and end, so `at` is not null either.
        unsafe {
            self.at.cursor = at.add(len);
            (offset, NonNull::new_unchecked(at))
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&mut self, slots: &Slots, len: usize) -> (u32, NonNull<u8>) {
        let is_large = len > LARGE;
        let len_of_region = if is_large { len } else { self.chunk_for(slots, len) };
        let place = match self.make_place(slots, len_of_region, self.pool.max_slots) {
            Ok(place) => place,
            Err(NoRoom::Full) => panic!("a memtable cannot hold more than 32 GiB"),
            Err(NoRoom::Memory(_)) => {
                let region = self.pool.take_emergency(len);
                self.add_region(slots, region)
            }
        };
        let before = std::mem::replace(&mut self.at, place);
        let made = self.bump(len);
        if is_large {
            self.at = before; // the region is as large as what is in it
        }
        made
    }

    /// The size of a chunk to begin with an allocation of `len` bytes.
    fn chunk_for(&self, slots: &Slots, len: usize) -> usize {
        let quarter = usize::try_from(slots.memory() / 4).unwrap_or(usize::MAX).clamp(FIRST_CHUNK, CHUNK);
        (1 << quarter.ilog2()).max(len.next_power_of_two())
    }

    fn add_region(&mut self, slots: &Slots, region: Region) -> Place {
        let (first, len) = (self.next_slot, region.len);
        let count = len.div_ceil(CHUNK);
        self.grow_table(slots, first + count);
        let table = &self.tables[self.tables.len() - 1];
        for i in 0..count {
            // SAFETY: i * CHUNK < len.
            let base = unsafe { region.base.as_ptr().add(i * CHUNK) };
            // Relaxed: published with whatever the caller publishes to name an offset of this region.
            table[first + i].store(base, Ordering::Relaxed);
        }
        self.next_slot = first + count;
        slots.memory.fetch_add(len as u64, Ordering::Relaxed);
        let base = region.base.as_ptr();
        self.regions.push(region);
        // SAFETY: one past the end of the region.
        let end = unsafe { base.add(len) };
        Place { cursor: base, end, base, base_offset: (first as u32) << SLOT_SHIFT }
    }

    /// Makes the table hold `slots_needed` slots. The old table stays, for readers that still look into it.
    fn grow_table(&mut self, slots: &Slots, slots_needed: usize) {
        let old: &[AtomicPtr<u8>] = self.tables.last().map_or(&[], |t| t);
        if old.len() >= slots_needed {
            return;
        }
        let len = (old.len() * 4).max(16).max(slots_needed.next_power_of_two());
        let copy = |i: usize| AtomicPtr::new(old.get(i).map_or(ptr::null_mut(), |p| p.load(Ordering::Relaxed)));
        self.tables.push((0..len).map(copy).collect());
        let table = self.tables[self.tables.len() - 1].as_ptr().cast_mut();
        // Release: partner of the Acquire in `Slots::address`.
        slots.table.store(table, Ordering::Release);
    }
}

impl Bump {
    /// Takes what is held off the budget, for good: nothing more will be allocated. Until it is dropped, it counts as that of a retired memtable.
    pub(crate) fn retire(&mut self) {
        if !std::mem::replace(&mut self.retired, true) {
            self.pool.budget.hand_over(&self.pool.retired, self.held());
        }
    }

    fn held(&self) -> u64 {
        self.regions.iter().map(|r| r.len as u64).sum()
    }
}

impl Drop for Bump {
    fn drop(&mut self) {
        let budget = if self.retired { &self.pool.retired } else { &self.pool.budget };
        budget.release(self.held());
        self.regions.drain(..).for_each(|r| self.pool.give_back(r));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(free_limit: u64) -> Arc<ArenaPool> {
        ArenaPool::with_free_limit(Budget::new(u64::MAX), free_limit)
    }

    #[test]
    fn offsets_resolve_and_do_not_overlap() {
        let pool = pool(0);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        let sizes = [1, 8, 9, 100, 4096, 70_000, LARGE, LARGE + 1, CHUNK, 2 * CHUNK + 5, 3, 64];
        let mut made = Vec::new();
        for round in 0..if cfg!(miri) { 2 } else { 12 } {
            for (i, len) in sizes.into_iter().enumerate() {
                let (offset, at) = bump.allocate(&slots, len);
                let fill = (round * 31 + i) as u8;
                // SAFETY: `len` bytes were just allocated there.
                unsafe { at.write_bytes(fill, len) };
                assert_ne!(offset, 0);
                made.push((offset, len, fill));
            }
            assert_eq!(bump.allocate_lines(&slots, 832).as_ptr() as usize % LINE, 0);
        }
        for (offset, len, fill) in made {
            // SAFETY: made above, on this thread.
            let bytes = unsafe { std::slice::from_raw_parts(slots.address(offset).as_ptr(), len) };
            let step = if cfg!(miri) { 9973 } else { 1 };
            let whole = bytes.iter().rev().step_by(step).all(|b| *b == fill) && bytes[0] == fill;
            assert!(whole, "offset {offset} of {len} bytes");
        }
        assert_eq!(slots.memory(), pool.budget().used());
        drop(bump);
        assert_eq!(pool.budget().used(), 0);
    }

    #[test]
    fn a_small_arena_is_small() {
        let pool = pool(0);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        assert_eq!(slots.memory(), 0);
        bump.allocate(&slots, 100);
        assert_eq!(pool.budget().used(), FIRST_CHUNK as u64);
    }

    /// A memtable that is sealed at its size must not be charged twice that.
    #[test]
    fn what_is_charged_is_close_to_what_is_held() {
        let pool = pool(0);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        let mut held = 0;
        let enough = if cfg!(miri) { 8 * FIRST_CHUNK } else { 16 * CHUNK };
        while held < enough as u64 {
            bump.allocate(&slots, 104);
            held += 104;
            let charged = pool.budget().used();
            assert!(charged <= held + held / 4 + FIRST_CHUNK as u64, "{charged} bytes for {held}");
        }
    }

    /// What is reserved is there, at any size, and a large reservation leaves the chunk before it in use.
    #[test]
    fn reservations_hold() {
        let pool = pool(0);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        let sizes = [1, 100, FIRST_CHUNK, FIRST_CHUNK + 1, 70_000, LARGE, LARGE + 1, CHUNK, 2 * CHUNK + 5, 40];
        for bytes in sizes {
            bump.reserve(&slots, bytes).unwrap();
            let held = slots.memory();
            assert!(bump.left() >= bytes);
            let mut left = bytes;
            while left > 0 {
                let piece = left.min(8192);
                let (offset, at) = bump.allocate(&slots, piece);
                // SAFETY: `piece` bytes were just allocated there, and `offset` names them.
                unsafe {
                    at.write_bytes(7, piece);
                    assert_eq!(slots.address(offset), at);
                }
                left -= piece;
            }
            assert_eq!(slots.memory(), held, "{bytes} bytes were reserved");
        }
        bump.reserve(&slots, 20_000).unwrap();
        let (left, held) = (bump.left(), slots.memory());
        assert!(left > 1000, "the present chunk has room");
        let large = (left + LARGE).next_multiple_of(LINE);
        bump.reserve(&slots, large).unwrap();
        bump.allocate(&slots, large);
        bump.reserve(&slots, 1000).unwrap();
        assert_eq!((bump.left(), slots.memory()), (left, held + large as u64), "the chunk before is used on");
        drop(bump);
        assert_eq!(pool.budget().used(), 0);
    }

    #[test]
    fn a_full_arena_refuses_and_stays_as_it_is() {
        let pool = ArenaPool::with_slots(Budget::new(u64::MAX), 0, 16);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        let mut made = 0;
        while bump.reserve(&slots, LARGE + 8).is_ok() {
            bump.allocate(&slots, LARGE + 8);
            made += 1;
        }
        assert_eq!((made, bump.reserve(&slots, LARGE + 8)), (14, Err(NoRoom::Full)));
        let held = pool.budget().used();
        assert_eq!(bump.reserve(&slots, 10 * CHUNK), Err(NoRoom::Full));
        assert_eq!((slots.memory(), pool.budget().used()), (held, held));
        assert!(pool.fits(14 * CHUNK) && !pool.fits(14 * CHUNK + 1));
        bump.allocate(&slots, 100); // what is under way has a piece to itself
    }

    #[test]
    fn no_memory_is_an_error_and_what_is_under_way_goes_on() {
        let pool = pool(0);
        let slots = Slots::new();
        let mut bump = Bump::new(&pool);
        bump.reserve(&slots, 100).unwrap();
        let held = slots.memory();
        if cfg!(target_pointer_width = "64") && !cfg!(miri) {
            let bytes = 31 << 30; // fits into the slots; whether the system has as much is its business
            match bump.reserve(&slots, bytes) {
                Ok(()) => assert!(bump.left() >= bytes),
                Err(e) => assert!(e == NoRoom::Memory(bytes) && slots.memory() == held, "{e:?}"),
            }
        }
        assert!(pool.keep_emergency());
        let region = pool.take_emergency(1000);
        assert_eq!(region.len, EMERGENCY);
        pool.budget().release(EMERGENCY as u64);
        region.free();
        assert!(pool.keep_emergency(), "it is set aside again once there is memory");
    }

    /// A bump allocator that has just taken its first chunk of the full size.
    fn with_one_chunk(pool: &Arc<ArenaPool>) -> (Slots, Bump) {
        let (slots, mut bump) = (Slots::new(), Bump::new(pool));
        bump.reserve(&slots, CHUNK).unwrap();
        assert!(bump.regions.iter().any(Region::is_chunk));
        (slots, bump)
    }

    #[test]
    fn spares_are_asked_for_when_few_are_left_and_a_memtable_gets_them() {
        let pool = pool(8 << 20);
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        pool.on_low(Arc::new(move || _ = count.fetch_add(1, Ordering::Relaxed)));
        assert!(!pool.prepare_spares(), "nothing was taken yet");
        let mut held = vec![with_one_chunk(&pool), with_one_chunk(&pool)];
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one call until spares are made");
        assert!(pool.prepare_spares() && !pool.prepare_spares());
        assert_eq!((pool.free_bytes(), pool.budget().used()), ((SPARES * CHUNK) as u64, 2 * CHUNK as u64));
        let ready = pool.free.lock().full.last().unwrap().base;
        held.push(with_one_chunk(&pool));
        assert_eq!(held[2].1.at.base, ready.as_ptr(), "the memtable got a spare");
        assert_eq!((asked.load(Ordering::Relaxed), pool.free_bytes()), (2, CHUNK as u64));
        assert!(pool.prepare_spares());
        assert_eq!(pool.free_bytes(), (SPARES * CHUNK) as u64);
        drop(held);
        pool.trim();
        assert!(!pool.prepare_spares() && pool.free_bytes() == 0, "what is trimmed is not made again");
    }

    #[test]
    fn spares_stay_within_the_budget_and_the_limit_of_free_chunks() {
        for (budget, free_limit) in [(3 * CHUNK as u64 - 1, u64::MAX), (u64::MAX, CHUNK as u64)] {
            let pool = ArenaPool::with_free_limit(Budget::new(budget), free_limit);
            pool.on_low(Arc::new(|| ()));
            let held = with_one_chunk(&pool);
            assert!(!pool.prepare_spares() && pool.free_bytes() == 0);
            drop(held);
        }
    }

    #[test]
    fn chunks_are_recycled_up_to_the_limit() {
        let pool = pool(CHUNK as u64);
        for _ in 0..2 {
            let slots = Slots::new();
            let mut bump = Bump::new(&pool);
            while slots.memory() < 8 * CHUNK as u64 {
                bump.allocate(&slots, LARGE);
            }
            drop(bump);
            assert_eq!((pool.free.lock().full.len(), pool.budget().used()), (1, 0));
            assert!(pool.free_bytes() <= (CHUNK + CHUNK / 2) as u64);
        }
        pool.trim();
        assert_eq!(pool.free_bytes(), 0);
    }

    /// Memtables of a few MiB, as many families have: their chunks go from one to the next, and none stays in the heap.
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    #[test]
    fn smaller_chunks_are_recycled_up_to_half_of_the_limit() {
        let pool = pool(4 << 20);
        let fill = |bytes: u64| {
            let (slots, mut bump) = (Slots::new(), Bump::new(&pool));
            while slots.memory() < bytes {
                bump.allocate(&slots, 100);
            }
            assert!(bump.regions.iter().all(|r| (r.len >= MAPPED) == (r.source == Source::Mapped)));
            (slots, bump)
        };
        let (_, first) = fill(1 << 20);
        let mut bases: Vec<_> = first.regions.iter().filter(|r| r.len >= MAPPED).map(|r| r.base).collect();
        let mapped: u64 = first.regions.iter().filter(|r| r.len >= MAPPED).map(|r| r.len as u64).sum();
        assert!(bases.len() > 1);
        drop(first);
        assert_eq!(pool.free_bytes(), mapped);
        let (_, second) = fill(1 << 20);
        let mut again: Vec<_> = second.regions.iter().filter(|r| r.len >= MAPPED).map(|r| r.base).collect();
        bases.sort();
        again.sort();
        assert_eq!((again, pool.free_bytes()), (bases, 0));
        drop((second, fill(6 << 20)));
        assert!((1 << 20..=2 << 20).contains(&pool.free_bytes()), "{} bytes are kept", pool.free_bytes());
        pool.trim();
        assert_eq!(pool.free_bytes(), 0);
        pool.set_map_smaller_chunks(false);
        let (slots, mut bump) = (Slots::new(), Bump::new(&pool));
        while slots.memory() < 1 << 20 {
            bump.allocate(&slots, 100);
        }
        assert!(bump.regions.iter().all(|r| r.source == Source::Heap));
        drop(bump);
        assert_eq!(pool.free_bytes(), 0);
    }
}
