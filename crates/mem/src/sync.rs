//! Atomics of the lock-free paths. A build with `--cfg loom` swaps in loom's, whose tests try every interleaving.

#[cfg(loom)]
pub(crate) use loom::alloc::{alloc, alloc_zeroed, dealloc};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::alloc::{alloc, alloc_zeroed, dealloc};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// `AtomicPtr::fetch_byte_add`: adds to the address, wrapping, and returns what was there before.
#[cfg(not(loom))]
#[inline]
pub(crate) fn fetch_byte_add<T>(at: &AtomicPtr<T>, bytes: usize, order: Ordering) -> *mut T {
    at.fetch_byte_add(bytes, order)
}

/// The same, from what loom has.
#[cfg(loom)]
pub(crate) fn fetch_byte_add<T>(at: &AtomicPtr<T>, bytes: usize, order: Ordering) -> *mut T {
    at.fetch_update(order, Ordering::Relaxed, |p| Some(p.wrapping_byte_add(bytes))).unwrap_or_else(|p| p)
}
