//! The same locks and atomics under the control of [`loom`], which tries every interleaving and every value that a load may
//! return. For single structures ([`crate::loom_tests`]): a database has far too many interleavings.

pub(crate) use ::loom::hint::spin_loop;
pub(crate) use ::loom::sync::atomic;
pub(crate) use ::loom::thread::yield_now;
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
pub(crate) use std::{thread::scope, thread_local};

use super::locks::{MutexGuard, whatever};
use std::time::Duration;

/// Starts a thread that is not joined.
pub(crate) fn spawn_named(_: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    ::loom::thread::spawn(body);
    Ok(())
}

/// As [`kingtide_base::lock::Condvar`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(::loom::sync::Condvar);

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
