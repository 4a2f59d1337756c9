//! Locks and atomics of the engine. All of its rooms take them from here, so that a build for exploration can put other ones
//! in their place (CONTRIBUTING.md says how to run it): with `--cfg shuttle` every lock, atomic and swap of a shared pointer
//! is a point where the test's scheduler may run another thread; with `--cfg loom` single structures are tried in every
//! interleaving that their memory orderings allow.

#[cfg(any(loom, shuttle))]
mod locks;
#[cfg(loom)]
mod loom;
#[cfg(shuttle)]
mod shuttle;

#[cfg(any(loom, shuttle))]
pub(crate) use self::locks::{Mutex, MutexGuard, RwLock};
#[cfg(loom)]
pub(crate) use self::loom::{
    ArcSwap, ArcSwapOption, Condvar, atomic, scope, spawn_named, spin_loop, thread_local, yield_now,
};
#[cfg(all(test, shuttle))]
pub(crate) use self::shuttle::never_time_out;
#[cfg(shuttle)]
pub(crate) use self::shuttle::{
    ArcSwap, ArcSwapOption, Condvar, atomic, scope, spawn_named, spin_loop, thread_local, try_spawn, yield_now,
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use kingtide_base::lock::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{hint::spin_loop, sync::atomic, thread::scope, thread::yield_now, thread_local};

/// The one place that starts threads.
#[cfg(not(any(loom, shuttle)))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn spawn_named(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    kingtide_vfs::room_for_a_thread()?;
    std::thread::Builder::new().name(name).spawn(body).map(|_| ())
}

/// Starts a thread of a scope. `None` when the system cannot: the caller then does the work itself.
#[cfg(not(shuttle))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn try_spawn<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Option<std::thread::ScopedJoinHandle<'scope, T>> {
    kingtide_vfs::room_for_a_thread().ok()?;
    std::thread::Builder::new().spawn_scoped(scope, body).ok()
}
