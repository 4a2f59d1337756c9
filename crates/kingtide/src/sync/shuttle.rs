//! The same locks and atomics under the control of [`shuttle`].
//!
//! shuttle runs all threads of a test on one thread of the machine and is sequentially consistent: it finds wrong orders of
//! steps, not missing fences. Those are loom's business.

pub(crate) use ::shuttle::hint::spin_loop;
pub(crate) use ::shuttle::sync::atomic;
pub(crate) use ::shuttle::thread::{scope, yield_now};
pub(crate) use ::shuttle::thread_local;

use super::locks::{MutexGuard, whatever};
use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::sync as sh;
use arc_swap::RefCnt;
use std::sync::Arc;
use std::time::Duration;

/// Starts a thread that is not joined.
pub(crate) fn spawn_named(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    ::shuttle::thread::Builder::new().name(name).spawn(body).map(|_| ())
}

/// As [`kingtide_base::lock::Condvar`]. shuttle's own timed wait never times out; this one may at any moment, and to shuttle it is no
/// blocked thread, so that a deadlock is reported only where no thread would wake by itself.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    untimed: sh::Condvar,
    /// Changed between two points of the schedule only.
    waiting: std::sync::Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    untimed: usize,
    timed: usize,
    /// Timed waits that were notified and have not noticed yet.
    notified: usize,
}

std::thread_local! {
    /// One for all threads of a test: shuttle runs them on one thread of the machine.
    static NEVER_TIME_OUT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether timed waits end only when they are notified: then a lost wake-up is a deadlock, which shuttle reports.
#[cfg(test)]
pub(crate) fn never_time_out(never: bool) {
    NEVER_TIME_OUT.set(never);
}

impl Condvar {
    pub const fn new() -> Condvar {
        let waiting = std::sync::Mutex::new(Waiting { untimed: 0, timed: 0, notified: 0 });
        Condvar { untimed: sh::Condvar::new(), waiting }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn wait<'a, T>(&self, held: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting().untimed += 1;
        let guard = whatever(self.untimed.wait(held.guard));
        self.waiting().untimed -= 1;
        MutexGuard { guard, of: held.of }
    }

    pub fn wait_for<'a, T>(&self, held: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
        if NEVER_TIME_OUT.get() {
            return self.wait(held);
        }
        self.waiting().timed += 1;
        let MutexGuard { mut guard, of } = held;
        loop {
            drop(guard);
            yield_now();
            guard = whatever(of.lock());
            let mut waiting = self.waiting();
            if waiting.notified > 0 {
                waiting.notified -= 1;
                break;
            }
            drop(waiting);
            if thread_rng().gen_range(0..4) == 0 {
                break;
            }
        }
        self.waiting().timed -= 1;
        MutexGuard { guard, of }
    }

    /// Wakes any one of the waiting threads.
    pub fn notify_one(&self) {
        let (timed, all) = {
            let w = self.waiting();
            (w.timed - w.notified, w.timed - w.notified + w.untimed)
        };
        if timed > 0 && thread_rng().gen_range(0..all) < timed {
            self.waiting().notified += 1;
        } else {
            self.untimed.notify_one();
        }
    }

    pub fn notify_all(&self) {
        self.untimed.notify_all();
        let mut waiting = self.waiting();
        waiting.notified = waiting.timed;
    }
}

/// As `arc_swap::ArcSwapAny`, where each access is a step of its own. Its insides are not explored.
pub(crate) struct ArcSwapAny<T: RefCnt> {
    inner: arc_swap::ArcSwapAny<T>,
    step: atomic::AtomicBool,
}

pub(crate) type ArcSwap<T> = ArcSwapAny<Arc<T>>;
pub(crate) type ArcSwapOption<T> = ArcSwapAny<Option<Arc<T>>>;

impl<T: RefCnt> ArcSwapAny<T> {
    fn of(inner: arc_swap::ArcSwapAny<T>) -> Self {
        ArcSwapAny { inner, step: atomic::AtomicBool::new(false) }
    }

    /// Lets another thread run before the access, as every access to an atomic does.
    fn step(&self) -> &arc_swap::ArcSwapAny<T> {
        self.step.load(atomic::Ordering::SeqCst);
        &self.inner
    }

    pub fn load(&self) -> arc_swap::Guard<T> {
        self.step().load()
    }

    pub fn load_full(&self) -> T {
        self.step().load_full()
    }

    pub fn store(&self, value: T) {
        self.step().store(value);
    }

    pub fn swap(&self, value: T) -> T {
        self.step().swap(value)
    }
}

impl<T> ArcSwapAny<Arc<T>> {
    pub fn from_pointee(value: T) -> Self {
        ArcSwapAny::of(arc_swap::ArcSwap::from_pointee(value))
    }
}

impl<T> ArcSwapAny<Option<Arc<T>>> {
    pub fn empty() -> Self {
        ArcSwapAny::of(arc_swap::ArcSwapAny::empty())
    }
}

/// Starts a thread of a scope; see [`super::try_spawn`].
pub(crate) fn try_spawn<'scope, T: Send + 'static>(
    scope: &'scope ::shuttle::thread::Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Option<::shuttle::thread::ScopedJoinHandle<'scope, T>> {
    Some(scope.spawn(body))
}
