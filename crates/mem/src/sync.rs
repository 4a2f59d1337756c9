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

/// A load that the one writer of a structure makes with the same code as its readers.
///
/// To loom the writer's own loads are made invisible: loom remembers only the last access to an atomic, so a writer
/// that loads what it then stores would hide from loom the race between that store and a reader's earlier load, and
/// not one interleaving would be tried.
pub(crate) trait Observe<T> {
    /// Loads.
    fn observe(&self, order: Ordering) -> T;
}

#[cfg(loom)]
loom::thread_local! {
    /// Whether this thread is the one writer at the moment.
    pub(crate) static WRITING: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

macro_rules! observe {
    ($atomic:ty, $value:ty $(, $t:ident)?) => {
        impl$(<$t>)? Observe<$value> for $atomic {
            #[inline(always)]
            fn observe(&self, order: Ordering) -> $value {
                #[cfg(loom)]
                if WRITING.with(std::cell::Cell::get) {
                    // SAFETY: only the writer stores, so no store is concurrent; loom checks that.
                    return unsafe { self.unsync_load() };
                }
                self.load(order)
            }
        }
    };
}

observe!(AtomicU32, u32);
observe!(AtomicU64, u64);
observe!(AtomicPtr<T>, *mut T, T);
