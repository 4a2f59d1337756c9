//! Rule by rule, against a naive list of locks, and with threads.

mod deadlocks;
mod model;
mod rules;
mod tasks;
mod threads;

use crate::{DeadlockStep, HeldLock, LockManager, LockMode, LockTarget, LockWaitHook, Owners, Taken, Wait};
use kingtide_base::clock::{Clock, ManualClock, SystemClock};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, TxnId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

const X: LockMode = LockMode::Exclusive;
const S: LockMode = LockMode::Shared;
const LONG: Wait = Wait::Until(Duration::from_secs(600));
/// The family of most tests.
const F: FamilyId = 3;

/// A registry that a test holds in its hand.
#[derive(Default)]
struct Registry {
    ended: Mutex<BTreeMap<TxnId, ErrorKind>>,
    deadlines: Mutex<BTreeMap<TxnId, u64>>,
    expired: Mutex<Vec<TxnId>>,
    /// Where `expire` releases locks, if it does.
    locks: Mutex<Option<Arc<LockManager>>>,
}

impl Owners for Registry {
    fn check(&self, txn: TxnId) -> Result<()> {
        match self.ended.lock().get(&txn) {
            Some(kind) => Err(Error::new(*kind, format!("transaction {txn} ended"))),
            None => Ok(()),
        }
    }

    fn deadline(&self, txn: TxnId) -> Option<u64> {
        self.deadlines.lock().get(&txn).copied()
    }

    fn expire(&self, txn: TxnId) {
        self.expired.lock().push(txn);
        self.ended.lock().insert(txn, ErrorKind::Expired);
        if let Some(locks) = &*self.locks.lock() {
            locks.release_all(txn);
        }
    }

    fn sacrifice(&self, _: TxnId) {}

    fn describe(&self, txn: TxnId) -> String {
        format!("transaction {txn}")
    }

    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>> {
        None
    }
}

/// A manager, its registry and its clock, and requests by short names.
struct Bench {
    locks: Arc<LockManager>,
    owners: Registry,
    clock: Arc<ManualClock>,
    stats: Arc<Stats>,
    order: KeyOrder,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(KeyOrder::Bytewise)
    }

    fn with(order: KeyOrder) -> Bench {
        let (clock, stats) = (ManualClock::at_unix_ms(1_000), Arc::new(Stats::default()));
        let locks = Arc::new(LockManager::new(clock.clone(), stats.clone()));
        let owners = Registry::default();
        *owners.locks.lock() = Some(locks.clone());
        Bench { locks, owners, clock, stats, order }
    }

    fn key(&self, txn: TxnId, key: &str, mode: LockMode, wait: Wait) -> Result<()> {
        self.locks.acquire(&self.owners, txn, (F, &self.order), key.as_bytes(), mode, wait).map(drop)
    }

    fn range(&self, txn: TxnId, lo: Bound<&str>, hi: Bound<&str>, mode: LockMode, wait: Wait) -> Result<()> {
        let bounds = (lo.map(str::as_bytes), hi.map(str::as_bytes));
        self.locks.acquire_range(&self.owners, txn, (F, &self.order), bounds, mode, wait).map(drop)
    }

    /// A lock that must be free.
    fn take(&self, txn: TxnId, key: &str, mode: LockMode) {
        self.key(txn, key, mode, Wait::No).unwrap();
        self.locks.state.lock().check();
    }

    /// A range, from `lo` to before `hi`, that must be free.
    fn take_range(&self, txn: TxnId, lo: &str, hi: &str, mode: LockMode) {
        self.range(txn, Bound::Included(lo), Bound::Excluded(hi), mode, Wait::No).unwrap();
        self.locks.state.lock().check();
    }

    fn free(&self, txn: TxnId, key: &str, mode: LockMode) -> bool {
        self.locks.holder(txn, F, &self.order, key.as_bytes(), mode).is_none()
    }

    fn release(&self, txn: TxnId) {
        self.locks.release_all(txn);
        self.locks.state.lock().check();
    }

    /// Waits, in real time, until that many requests wait; not for ever if they do not.
    fn until_waiting(&self, n: usize) {
        let came_to_be = (0..20_000).any(|_| {
            let waiting = self.locks.waits().len() == n;
            if !waiting {
                std::thread::sleep(Duration::from_millis(1));
            }
            waiting
        });
        assert!(came_to_be, "{:?} instead of {n} requests", self.locks.waits());
        self.locks.state.lock().check();
    }

    /// Locks as `owner mode target`.
    fn held(&self) -> Vec<String> {
        let letter = |mode| if mode == X { 'X' } else { 'S' };
        self.locks.held().iter().map(|l| format!("{} {} {}", l.txn, letter(l.mode), l.target)).collect()
    }
}

fn kind(result: Result<()>) -> ErrorKind {
    result.unwrap_err().kind()
}
