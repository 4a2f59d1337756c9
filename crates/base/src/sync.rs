//! Locks and atomics that a build for exploration puts other ones in the place of (CONTRIBUTING.md says how to run it): with
//! `--cfg shuttle` every lock and atomic is a point where the test's scheduler may run another thread; with `--cfg loom` single
//! structures are tried in every interleaving that their memory orderings allow.
//!
//! The lock manager, the log and the engine take theirs from here. [`crate::lock`] has what is never explored: locks that are held for a moment
//! and guard no more than themselves, and those of statics.

#[cfg(any(loom, shuttle))]
mod locks;
#[cfg(loom)]
mod loom;
#[cfg(shuttle)]
mod shuttle;

#[cfg(any(loom, shuttle))]
pub use self::locks::{Mutex, MutexGuard, RwLock};
#[cfg(loom)]
pub use self::loom::{Condvar, atomic, spin_loop, yield_now};
#[cfg(shuttle)]
pub use self::shuttle::{Condvar, atomic, never_time_out, perhaps, spin_loop, yield_now};
#[cfg(not(any(loom, shuttle)))]
pub use crate::lock::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, shuttle)))]
pub use std::{hint::spin_loop, sync::atomic, thread::yield_now};
