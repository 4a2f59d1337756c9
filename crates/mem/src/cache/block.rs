//! A block of bytes in one counted allocation.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use kingtide_base::{Error, Result};

use super::slabs::Slabs;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, alloc, alloc_zeroed, dealloc};

/// Where a block was read from: a file and the byte offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockKey {
    pub file_id: u64,
    pub offset: u64,
}

/// What stands in front of a block's bytes. Its size is a multiple of 16, so the bytes are aligned to 16.
#[repr(C, align(16))]
pub(super) struct Header {
    /// Handles, plus [`CACHED`] for each cache slot that holds the block, minus handles that those slots have counted
    /// themselves (see `slot.rs`). Zero exactly when nothing refers to the block.
    refs: AtomicUsize,
    /// `NO_KEY`, then `SETTING_KEY`, then `HAS_KEY`, never back.
    key_state: AtomicU32,
    memory: Memory,
    file_id: AtomicU64,
    offset: AtomicU64,
    len: usize,
    /// Whose slot it is, if the memory is [`Memory::Large`].
    owner: *const Slabs,
}

/// Where a block's memory came from, and goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Global,
    /// A slot of [`Slabs`], which finds its slab by the address.
    Slab,
    /// A slot for large blocks.
    Large,
}

/// What a cache slot adds to the count. More than a slot can ever have counted itself, so that a cached block's count
/// never passes zero.
pub(super) const CACHED: usize = 1 << 32;

const NO_KEY: u32 = 0;
const SETTING_KEY: u32 = 1;
const HAS_KEY: u32 = 2;

/// Immutable bytes behind a reference count: a clone is one atomic increment, and the bytes stay valid while any clone
/// lives, evicted from the cache or not.
pub struct Block {
    header: NonNull<Header>,
}

// SAFETY: a Block is shared ownership of bytes that are never written after `build`; the header's fields are atomics, or are not
// changed, and the owner may be used by any thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A block of `len` bytes that `fill` writes. It is given the bytes zeroed. If it fails, so does `build`; a `len`
    /// that no address space holds is `Corruption`, for lengths come from files.
    #[inline]
    pub fn build(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Block> {
        let Some(layout) = layout(len) else { return Err(too_long(len)) };
        // SAFETY: the layout has the header's size at least, so it is not zero; what is adopted is fresh from it.
        let header = unsafe {
            let memory = alloc_zeroed(layout);
            if memory.is_null() {
                return Err(Error::out_of_memory("a block", len));
            }
            Self::adopt(memory, layout, len, (Memory::Global, ptr::null()))
        };
        let block = Block { header };
        // SAFETY: `len` zeroed bytes follow the header, and this block is the only handle to them.
        fill(unsafe { std::slice::from_raw_parts_mut(block.bytes(), len) })?;
        Ok(block)
    }

    /// The same in a cache's memory, if that takes blocks of this size. `fill` is given bytes of any content then, and must
    /// write all of them or fail.
    #[inline]
    pub(super) fn build_in(
        slabs: &Arc<Slabs>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Block> {
        let Some(layout) = layout(len) else { return Err(too_long(len)) };
        let Some((slot, memory)) = slot_of(slabs, layout.size()) else { return Block::build(len, fill) };
        // SAFETY: a fresh slot of that size.
        let block = Block { header: unsafe { Self::adopt(slot.as_ptr(), layout, len, (memory, Arc::as_ptr(slabs))) } };
        // SAFETY: `len` bytes follow the header, and this block is the only handle to them. They are initialised: slots are in
        // memory that the system mapped, as zeros.
        fill(unsafe { std::slice::from_raw_parts_mut(block.bytes(), len) })?;
        Ok(block)
    }

    /// A copy of bytes; `None` when there is no memory for it.
    #[inline]
    pub fn copied(bytes: &[u8]) -> Option<Block> {
        Block::copied_to(bytes, None)
    }

    /// The same, in a cache's memory if that takes blocks of this size.
    #[inline]
    pub(super) fn copied_to(bytes: &[u8], slabs: Option<&Arc<Slabs>>) -> Option<Block> {
        let layout = layout(bytes.len())?;
        let slot = slabs.and_then(|s| slot_of(s, layout.size()));
        let memory = slot.map_or(Memory::Global, |(_, memory)| memory);
        // SAFETY: the layout is not of size zero; the bytes after the header are `bytes.len()` in number, and fresh,
        // so they overlap nothing.
        unsafe {
            let at = slot.map_or_else(|| alloc(layout), |(slot, _)| slot.as_ptr());
            if at.is_null() {
                return None;
            }
            let owner = slabs.map_or(ptr::null(), Arc::as_ptr);
            let block = Block { header: Block::adopt(at, layout, bytes.len(), (memory, owner)) };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.bytes(), bytes.len());
            Some(block)
        }
    }

    /// Turns fresh memory into a block with one handle.
    ///
    /// # Safety
    /// `at` is null or fresh from an allocation of `layout`, which is `layout(len)`, and is a slot, of `owner`, if `memory` says so.
    #[inline]
    unsafe fn adopt(
        at: *mut u8,
        layout: Layout,
        len: usize,
        (memory, owner): (Memory, *const Slabs),
    ) -> NonNull<Header> {
        let Some(header) = NonNull::new(at.cast::<Header>()) else { handle_alloc_error(layout) };
        // SAFETY: the memory is fresh, large enough and aligned, by the contract.
        unsafe {
            header.write(Header {
                refs: AtomicUsize::new(1),
                key_state: AtomicU32::new(NO_KEY),
                memory,
                file_id: AtomicU64::new(0),
                offset: AtomicU64::new(0),
                len,
                owner,
            });
        }
        header
    }

    /// Bytes that the block occupies: its own and the header's. What a cache charges for it.
    #[inline]
    pub fn charge(&self) -> u64 {
        (size_of::<Header>() + self.header().len) as u64
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: a handle keeps the header alive; it is only ever shared.
        unsafe { self.header.as_ref() }
    }

    /// The first byte. Derived from the allocation's pointer, not from a reference to the header, which may not be used
    /// to reach past the header.
    #[inline]
    fn bytes(&self) -> *mut u8 {
        // SAFETY: the allocation goes on for `len` bytes after the header.
        unsafe { self.header.as_ptr().add(1).cast() }
    }

    /// The allocation, for a cache slot to point at.
    #[inline]
    pub(super) fn as_raw(&self) -> NonNull<Header> {
        self.header
    }

    /// Makes a handle of a reference that is counted already.
    ///
    /// # Safety
    /// The caller owns one reference to `header`, in its count or in the count of a slot, and gives it up.
    #[inline]
    pub(super) unsafe fn from_raw(header: NonNull<Header>) -> Block {
        Block { header }
    }

    /// Whether the block was cached under `key`.
    #[inline]
    pub(super) fn has_key(&self, key: BlockKey) -> bool {
        // SAFETY: a handle keeps the header alive.
        unsafe { has_key(self.header, key) }
    }

    /// Binds the block to `key`, once and for all. False if it is bound to another key, or being bound right now.
    fn bind(&self, key: BlockKey) -> bool {
        let h = self.header();
        // Acquire: pairs with the Release below when another cache bound the block.
        match h.key_state.compare_exchange(NO_KEY, SETTING_KEY, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                h.file_id.store(key.file_id, Ordering::Relaxed);
                h.offset.store(key.offset, Ordering::Relaxed);
                h.key_state.store(HAS_KEY, Ordering::Release);
                true
            }
            Err(state) => state == HAS_KEY && self.has_key(key),
        }
    }

    /// The block bound to `key`: a copy if it is bound to another already, for a header can name only one.
    pub(super) fn bound_to(self, key: BlockKey) -> Block {
        if self.bind(key) {
            return self;
        }
        let copy = Block::from(&*self);
        let bound = copy.bind(key);
        debug_assert!(bound, "no other reference to the copy exists yet");
        copy
    }

    /// Adds `n` references. Relaxed: the caller holds a reference, so the block cannot go meanwhile.
    #[inline]
    pub(super) fn add_refs(&self, n: usize) {
        self.header().refs.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes back what [`Block::add_refs`] added. The caller's own handle keeps the count above zero.
    #[inline]
    pub(super) fn remove_refs(&self, n: usize) {
        self.header().refs.fetch_sub(n, Ordering::Relaxed);
    }
}

/// Whether the block was cached under `key`.
///
/// # Safety
/// Something keeps `header` alive: a handle, or the slot that holds it and the partition's lock.
#[inline]
pub(super) unsafe fn has_key(header: NonNull<Header>, key: BlockKey) -> bool {
    // SAFETY: alive by the contract.
    let h = unsafe { header.as_ref() };
    // Relaxed: the key was written before the slot was published (Release), and read after the slot was (Acquire, or
    // the partition's lock).
    h.file_id.load(Ordering::Relaxed) == key.file_id && h.offset.load(Ordering::Relaxed) == key.offset
}

/// Key and charge of a cached block.
///
/// # Safety
/// As for [`has_key`].
#[inline]
pub(super) unsafe fn key_and_charge(header: NonNull<Header>) -> (BlockKey, u64) {
    // SAFETY: alive by the contract.
    let h = unsafe { header.as_ref() };
    // Relaxed: as in `has_key`.
    let key = BlockKey { file_id: h.file_id.load(Ordering::Relaxed), offset: h.offset.load(Ordering::Relaxed) };
    (key, (size_of::<Header>() + h.len) as u64)
}

/// Gives up `n` references (modulo 2^64: a slot gives up [`CACHED`] less what it counted itself), and frees the block if
/// they were the last.
///
/// # Safety
/// The caller owns these references.
#[inline]
pub(super) unsafe fn release(header: NonNull<Header>, n: usize) {
    // SAFETY: our references keep the header alive up to here.
    // Release: our reads of the bytes come before the Acquire load of the thread that frees them.
    if unsafe { header.as_ref() }.refs.fetch_sub(n, Ordering::Release) == n {
        // SAFETY: they were the last.
        unsafe { free(header) };
    }
}

/// # Safety
/// No reference is left.
#[cold]
#[inline(never)]
unsafe fn free(header: NonNull<Header>) {
    // Acquire: pairs with the Release of every other holder in `release`. A load rather than a fence, which the thread
    // sanitizer does not understand: it reads what our own subtraction wrote, the end of all of theirs.
    // SAFETY: nothing frees the block but we.
    unsafe { header.as_ref() }.refs.load(Ordering::Acquire);
    // SAFETY: no other thread can reach the block any more, and it was allocated as a slot or with this very layout.
    unsafe {
        let Header { len, memory, owner, .. } = *header.as_ref();
        ptr::drop_in_place(header.as_ptr());
        let size = size_of::<Header>() + len;
        match memory {
            Memory::Slab => Slabs::free(header.cast()),
            Memory::Large => Slabs::free_large(owner, header.cast(), size),
            Memory::Global => {
                dealloc(header.as_ptr().cast(), Layout::from_size_align_unchecked(size, align_of::<Header>()));
            }
        }
    }
}

/// A slot of a cache's memory for a block of `size` bytes, header included.
#[inline]
fn slot_of(slabs: &Arc<Slabs>, size: usize) -> Option<(NonNull<u8>, Memory)> {
    match slabs.allocate(size) {
        Some(slot) => Some((slot, Memory::Slab)),
        None => Some((slabs.allocate_large(size)?, Memory::Large)),
    }
}

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(size_of::<Header>().checked_add(len)?, align_of::<Header>()).ok()
}

#[cold]
fn too_long(len: usize) -> Error {
    Error::corruption(format!("a block of {len} bytes exceeds the address space"))
}

impl From<&[u8]> for Block {
    fn from(bytes: &[u8]) -> Block {
        Block::copied(bytes).unwrap_or_else(|| handle_alloc_error(Layout::for_value(bytes)))
    }
}

impl Clone for Block {
    #[inline]
    fn clone(&self) -> Block {
        self.add_refs(1);
        Block { header: self.header }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a handle owns one reference.
        unsafe { release(self.header, 1) };
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes follow the header; they are never written after `build`.
        unsafe { std::slice::from_raw_parts(self.bytes(), self.header().len) }
    }
}

impl AsRef<[u8]> for Block {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn built_copied_and_cloned_blocks_hold_their_bytes() {
        let built = Block::build(5, |b| {
            assert_eq!(b, [0; 5]);
            b.copy_from_slice(b"hello");
            Ok(())
        })
        .unwrap();
        let copied = Block::from(&b"hello"[..]);
        let clone = built.clone();
        drop(built);
        assert_eq!(&*clone, &*copied);
        assert_eq!(clone.charge(), 5 + size_of::<Header>() as u64);
        assert_eq!(clone.as_ptr() as usize % 16, 0);
        assert_eq!(&*Block::from(&[][..]), b"");
    }

    #[test]
    fn a_failing_fill_fails_and_absurd_lengths_are_refused() {
        assert!(Block::build(9, |_| Err(Error::invalid("no"))).is_err());
        assert!(Block::build(usize::MAX, |_| Ok(())).is_err());
        assert!(Block::build(isize::MAX as usize, |_| Ok(())).is_err());
    }

    #[test]
    fn a_block_is_bound_to_one_key() {
        let b = Block::from(&b"x"[..]);
        let (one, two) = (BlockKey { file_id: 0, offset: 0 }, BlockKey { file_id: 0, offset: 1 });
        assert!(b.bind(one) && b.bind(one) && !b.bind(two) && b.has_key(one));
    }
}
