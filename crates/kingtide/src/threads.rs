//! The one place that starts threads, and what belongs to a thread. A build for exploration (see [`kingtide_base::sync`]) has
//! its scheduler's threads instead.

#[cfg(shuttle)]
pub(crate) use ::shuttle::{thread::scope, thread_local};
#[cfg(not(shuttle))]
pub(crate) use std::{thread::scope, thread_local};

/// Starts a thread that is not joined.
///
/// # Errors
/// Those of the system, which has no room for another thread.
#[cfg(not(any(loom, shuttle)))]
#[allow(clippy::disallowed_methods)]
pub(crate) fn spawn_named(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    kingtide_vfs::room_for_a_thread()?;
    std::thread::Builder::new().name(name).spawn(body).map(|_| ())
}

#[cfg(loom)]
pub(crate) fn spawn_named(_: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    ::loom::thread::spawn(body);
    Ok(())
}

#[cfg(shuttle)]
pub(crate) fn spawn_named(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    ::shuttle::thread::Builder::new().name(name).spawn(body).map(|_| ())
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

#[cfg(shuttle)]
pub(crate) fn try_spawn<'scope, T: Send + 'static>(
    scope: &'scope ::shuttle::thread::Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Option<::shuttle::thread::ScopedJoinHandle<'scope, T>> {
    Some(scope.spawn(body))
}
