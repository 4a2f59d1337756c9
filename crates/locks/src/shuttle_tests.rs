//! Schedules of threads that ask for locks: `cargo xtask shuttle`. Those of transactions in a database are in the engine.
//!
//! Timed waits end only when they are notified, so that a wake-up that is lost is a deadlock of threads, which shuttle reports.

use crate::{FreeWait, LockManager, LockMode, LockWaitHook, Owners, Wait};
use kingtide_base::clock::ManualClock;
use kingtide_base::sync::{Condvar, Mutex, never_time_out};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, TxnId};
use kingtide_testkit::scenarios;
use shuttle::thread::{JoinHandle, spawn};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

scenarios! {
    /// Transactions lock two of three keys each, in different orders: all get there in the end, and never two at a time.
    shuttle_lock_cycles_are_broken => cycles;
    /// Of two transactions that share a lock and want it for themselves, one is a victim and the other goes on.
    shuttle_upgrades_end => upgrades;
    /// Every request for a key or a range is granted, whatever holds it when it comes.
    shuttle_lock_requests_end => requests;
    /// A transaction that another thread ends leaves no lock behind, whether it waits, holds or asks.
    shuttle_ended_owners_leave_nothing => ended;
    /// Every task that waits for locks to be released is woken, whichever transaction releases the last one, and one that gives up leaves nothing.
    shuttle_tasks_are_woken => tasks;
}

const FAMILY: FamilyId = 1;
const ORDER: KeyOrder = KeyOrder::Bytewise;
const WAIT: Wait = Wait::Until(Duration::from_secs(600));

/// Transactions, some of which are over.
#[derive(Default)]
struct Registry(Mutex<BTreeSet<TxnId>>);

impl Owners for Registry {
    fn check(&self, txn: TxnId) -> Result<()> {
        match self.0.lock().contains(&txn) {
            true => Err(Error::new(ErrorKind::Aborted, "over")),
            false => Ok(()),
        }
    }

    fn deadline(&self, _: TxnId) -> Option<u64> {
        None
    }

    fn expire(&self, _: TxnId) {}

    fn sacrifice(&self, _: TxnId) {}

    fn describe(&self, txn: TxnId) -> String {
        txn.to_string()
    }

    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>> {
        None
    }
}

/// A lock manager with what says that a key's lock was exclusive.
struct World {
    locks: LockManager,
    owners: Registry,
    inside: [AtomicBool; 3],
}

impl World {
    fn new() -> Arc<World> {
        never_time_out(true);
        let locks = LockManager::new(ManualClock::at_unix_ms(1), Arc::default());
        Arc::new(World { locks, owners: Registry::default(), inside: Default::default() })
    }

    fn lock(&self, txn: TxnId, key: u8, mode: LockMode) -> Result<()> {
        self.locks.acquire(&self.owners, txn, (FAMILY, &ORDER), &[key], mode, WAIT).map(drop)
    }

    /// Runs a transaction, under a new id each time that it is a deadlock's victim.
    fn retry(&self, first: TxnId, f: impl Fn(TxnId) -> Result<()>) {
        for txn in (first..).step_by(10) {
            let result = f(txn);
            self.locks.release_all(txn);
            match result {
                Ok(()) => return,
                Err(e) => assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}"),
            }
        }
    }

    /// Holds keys that are locked, for some steps of the schedule.
    fn hold(&self, keys: &[u8]) {
        let was = |key: &u8, is| self.inside[usize::from(*key)].swap(is, Ordering::Relaxed);
        keys.iter().for_each(|key| assert!(!was(key, true), "two transactions have key {key}"));
        shuttle::thread::yield_now();
        keys.iter().for_each(|key| _ = was(key, false));
    }

    fn finish(&self, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        threads.into_iter().for_each(|t| t.join().expect("thread"));
        never_time_out(false);
        assert!(!self.locks.any_held() && self.locks.held().is_empty() && self.locks.waits().is_empty());
        self.locks.state.lock().check();
    }
}

fn cycles() {
    let w = World::new();
    let threads = [(1, [0, 1]), (2, [1, 0]), (3, [1, 2])].map(|(first, keys)| {
        let w = w.clone();
        spawn(move || {
            w.retry(first, |txn| {
                keys.iter().try_for_each(|key| w.lock(txn, *key, LockMode::Exclusive))?;
                w.hold(&keys);
                Ok(())
            });
        })
    });
    w.finish(threads);
}

fn upgrades() {
    let w = World::new();
    let threads = [1, 2].map(|first| {
        let w = w.clone();
        spawn(move || {
            w.retry(first, |txn| {
                w.lock(txn, 0, LockMode::Shared)?;
                w.lock(txn, 0, LockMode::Exclusive)?;
                w.hold(&[0]);
                Ok(())
            });
        })
    });
    w.finish(threads);
}

fn requests() {
    let w = World::new();
    let by = |f: fn(&World)| {
        let w = w.clone();
        spawn(move || f(&w))
    };
    let threads = [
        by(|w| w.retry(1, |txn| w.lock(txn, 0, LockMode::Shared))),
        by(|w| w.retry(2, |txn| w.lock(txn, 0, LockMode::Exclusive).map(|()| w.hold(&[0])))),
        by(|w| {
            let all = (Bound::Unbounded, Bound::Excluded(&b"\x02"[..]));
            w.retry(3, |txn| {
                w.locks.acquire_range(&w.owners, txn, (FAMILY, &ORDER), all, LockMode::Exclusive, WAIT)?;
                w.hold(&[0, 1]);
                Ok(())
            });
        }),
        by(|w| w.locks.wait_free(&w.owners, FAMILY, &ORDER, &[1], WAIT).expect("no transaction keeps it")),
    ];
    w.finish(threads);
}

fn ended() {
    let w = World::new();
    let holder = {
        let w = w.clone();
        spawn(move || {
            w.retry(1, |txn| {
                w.lock(txn, 0, LockMode::Exclusive)?;
                w.hold(&[0]);
                Ok(())
            });
        })
    };
    let owner = {
        let w = w.clone();
        spawn(move || {
            let locked = [1, 0].iter().try_for_each(|key| w.lock(2, *key, LockMode::Exclusive));
            match locked.and_then(|()| w.owners.check(2)) {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::Aborted, "{e}"),
            }
            w.locks.release_all(2); // also of an ended one: a lock may have come after the release below
        })
    };
    let killer = {
        let w = w.clone();
        spawn(move || {
            w.owners.0.lock().insert(2);
            w.locks.release_all(2);
            w.locks.wake(2);
        })
    };
    w.finish([holder, owner, killer]);
}

/// Wakes the thread that polls a task.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }
}

/// Polls a wait to its end, or only so many times.
fn run_task(mut wait: FreeWait<'_>, polls: usize) {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    for _ in 0..polls {
        if Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
        let mut rung = bell.rung.lock();
        while polls > 1 && !*rung {
            rung = bell.changed.wait(rung);
        }
        *rung = false;
    }
}

fn tasks() {
    const LONG: Duration = Duration::from_secs(600);
    let w = World::new();
    let by = |f: fn(&World)| {
        let w = w.clone();
        spawn(move || f(&w))
    };
    let threads = [
        by(|w| w.retry(1, |txn| w.lock(txn, 0, LockMode::Exclusive).map(|()| w.hold(&[0])))),
        by(|w| w.retry(2, |txn| [0, 1].iter().try_for_each(|key| w.lock(txn, *key, LockMode::Shared)))),
        by(|w| run_task(w.locks.free_wait(&w.owners, (FAMILY, &ORDER), &[0], Some(LONG)), usize::MAX)),
        by(|w| {
            let all = (Bound::Unbounded, Bound::Excluded(&b"\x02"[..]));
            run_task(w.locks.range_free_wait(&w.owners, (FAMILY, &ORDER), all, Some(LONG)), usize::MAX);
        }),
        by(|w| run_task(w.locks.free_wait(&w.owners, (FAMILY, &ORDER), &[0], Some(LONG)), 1)),
    ];
    w.finish(threads);
}
