//! The same locks and atomics under the control of [`loom`], which tries every interleaving and every value that a load may
//! return. For single structures: a database has far too many interleavings.

#![allow(missing_docs)] // as in `crate::lock`

pub use ::loom::hint::spin_loop;
pub use ::loom::sync::atomic;
pub use ::loom::thread::yield_now;

use super::locks::{MutexGuard, whatever};
use std::time::Duration;

/// As [`crate::lock::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(::loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn wait<'a, T>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { guard: whatever(self.0.wait(held.guard)), of: held.of }
    }

    /// Never times out.
    pub fn wait_for<'a, T>(&self, held: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
        self.wait(held)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
