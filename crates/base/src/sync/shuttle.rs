//! The same locks and atomics under the control of [`shuttle`].
//!
//! shuttle runs all threads of a test on one thread of the machine and is sequentially consistent: it finds wrong orders of
//! steps, not missing fences. Those are loom's business.

#![allow(missing_docs)] // as in `crate::lock`

pub use ::shuttle::hint::spin_loop;
pub use ::shuttle::sync::atomic;
pub use ::shuttle::thread::yield_now;

use super::locks::{MutexGuard, whatever};
use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::sync as sh;
use std::time::Duration;

/// As [`crate::lock::Condvar`]. shuttle's own timed wait never times out; this one may at any moment, and to shuttle it is no
/// blocked thread, so that a deadlock is reported only where no thread would wake by itself.
#[derive(Debug, Default)]
pub struct Condvar {
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

/// Yes or no, as the schedule has it: for what depends on time in a real run.
pub fn perhaps() -> bool {
    thread_rng().gen_bool(0.5)
}

/// Whether timed waits of this test end only when they are notified: then a lost wake-up is a deadlock, which shuttle reports.
pub fn never_time_out(never: bool) {
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
