//! Locks and atomics of the engine. All of its rooms take them from here, so that a build for the exploration of schedules
//! can put other ones in their place: with `--cfg shuttle` every lock, atomic and swap of a shared pointer is a point where
//! the test's scheduler may run another thread (CONTRIBUTING.md says how to run that).

#[cfg(shuttle)]
mod shuttle;

#[cfg(shuttle)]
pub(crate) use self::shuttle::{
    ArcSwap, ArcSwapOption, Condvar, Mutex, MutexGuard, RwLock, atomic, scope, spawn_named, spin_loop, thread_local,
    yield_now,
};
#[cfg(all(test, shuttle))]
pub(crate) use self::shuttle::never_time_out;
#[cfg(not(shuttle))]
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(shuttle))]
pub(crate) use std::{hint::spin_loop, sync::atomic, thread::scope, thread::yield_now, thread_local};

/// The one place that starts threads.
#[cfg(not(shuttle))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn spawn_named(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name).spawn(body).map(|_| ())
}
