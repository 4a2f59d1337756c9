//! Many threads, real time.

use std::cell::Cell;

use kingtide_base::rng::Rng;

use super::*;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};

const KEYS: u64 = 12;

/// A manager on the real clock with counters that only locks protect: a lost update shows as a wrong sum.
struct Arena {
    locks: Arc<LockManager>,
    owners: Registry,
    order: KeyOrder,
    counters: Vec<AtomicU64>,
    next: AtomicU64,
    deadlocks: AtomicU64,
}

impl Arena {
    fn new() -> Arena {
        let locks = Arc::new(LockManager::new(SystemClock::shared(), Arc::new(Stats::default())));
        let owners = Registry::default();
        *owners.locks.lock() = Some(locks.clone());
        let counters = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let (next, deadlocks) = (AtomicU64::new(1), AtomicU64::new(0));
        Arena { locks, owners, order: KeyOrder::Bytewise, counters, next, deadlocks }
    }

    fn lock(&self, txn: TxnId, key: u64, mode: LockMode) -> Result<()> {
        self.locks.acquire(&self.owners, txn, (F, &self.order), &key.to_be_bytes(), mode, LONG).map(drop)
    }

    fn lock_range(&self, txn: TxnId, lo: u64, hi: u64, mode: LockMode) -> Result<()> {
        let (lo, hi) = (lo.to_be_bytes(), hi.to_be_bytes());
        let bounds = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
        self.locks.acquire_range(&self.owners, txn, (F, &self.order), bounds, mode, LONG).map(drop)
    }

    /// Adds one in two steps, between which another thread must not get in. The locks order the accesses.
    fn bump(&self, key: u64) {
        let counter = &self.counters[key as usize];
        let seen = counter.load(Ordering::Relaxed);
        std::thread::yield_now();
        counter.store(seen + 1, Ordering::Relaxed);
    }

    /// Runs a transaction, again and again as long as it is a deadlock's victim. Returns its id.
    fn retry(&self, mut f: impl FnMut(TxnId) -> Result<()>) -> TxnId {
        loop {
            let txn = self.next.fetch_add(1, Ordering::Relaxed);
            let result = f(txn);
            self.locks.release_all(txn);
            match result {
                Ok(()) => return txn,
                Err(e) if e.kind() == ErrorKind::Deadlock => {
                    assert!(e.message().contains(&format!("transaction {txn} waits for")), "{e}");
                    self.deadlocks.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn finish(&self, sum: u64) {
        self.finish_after_ends(sum, 0);
    }

    /// Of `ended` transactions, ended from outside, each may have learnt of that and not of being a victim.
    fn finish_after_ends(&self, sum: u64, ended: u64) {
        self.locks.state.lock().check();
        assert_eq!(self.counters.iter().map(|c| c.load(Ordering::Relaxed)).sum::<u64>(), sum);
        assert!(!self.locks.any_held() && self.locks.waits().is_empty());
        let (chosen, told) = (self.locks.stats.get(Stat::Deadlocks), self.deadlocks.load(Ordering::Relaxed));
        assert!((told..=told + ended).contains(&chosen), "{chosen} victims chosen, {told} told, {ended} ended");
    }
}

fn rounds() -> u64 {
    if std::env::var_os("KINGTIDE_FULL").is_some() { 5_000 } else { 300 }
}

#[test]
fn an_exclusive_lock_is_exclusive() {
    let a = Arena::new();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..rounds() {
                    a.retry(|txn| a.lock(txn, 0, X).map(|()| a.bump(0)));
                }
            });
        }
    });
    a.finish(4 * rounds());
}

/// Locks in random order, shared and exclusive, keys and ranges, upgrades: whatever cycles form, every transaction completes.
#[test]
fn random_orders_never_hang() {
    let a = Arena::new();
    let (bumped, running) = (AtomicU64::new(0), AtomicU64::new(6));
    let seed = kingtide_base::rng::entropy();
    println!("seed {seed}");
    std::thread::scope(|s| {
        for thread in 0..6 {
            let (a, bumped, running) = (&a, &bumped, &running);
            s.spawn(move || {
                let mut rng = Rng::new(seed ^ thread);
                for _ in 0..rounds() {
                    let bumps = Cell::new(0);
                    a.retry(|txn| {
                        // All locks first: a victim must not have written anything.
                        let mut write = BTreeSet::new();
                        for _ in 0..1 + rng.below(4) {
                            let (x, y) = (rng.below(KEYS), rng.below(KEYS));
                            match rng.below(8) {
                                0 => a.lock_range(txn, x.min(y), x.max(y), S)?,
                                1 => {
                                    a.lock_range(txn, x.min(y), (x.min(y) + 2).min(KEYS - 1), X)?;
                                    write.insert(x.min(y));
                                }
                                2..5 => a.lock(txn, x, S)?,
                                _ => {
                                    a.lock(txn, x, X)?;
                                    write.insert(x);
                                }
                            }
                        }
                        write.iter().for_each(|key| a.bump(*key));
                        bumps.set(write.len() as u64);
                        Ok(())
                    });
                    bumped.fetch_add(bumps.get(), Ordering::Relaxed);
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        // At no moment does a transaction wait for nothing, or in a cycle.
        while running.load(Ordering::Relaxed) > 0 {
            a.locks.state.lock().check();
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    a.finish(bumped.load(Ordering::Relaxed));
}

/// Shared lockers without end, always some of them holding the lock, do not keep an exclusive one out.
#[test]
fn shared_lockers_do_not_starve_an_exclusive_one() {
    let a = Arena::new();
    let done = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    a.retry(|txn| {
                        a.lock(txn, 0, S)?;
                        std::thread::sleep(Duration::from_millis(1));
                        Ok(())
                    });
                }
            });
        }
        for _ in 0..20 {
            a.retry(|txn| a.lock(txn, 0, X).map(|()| a.bump(0)));
        }
        done.store(1, Ordering::Relaxed);
    });
    a.finish(20);
}

/// Transactions ended from another thread while they wait or hold: nothing is left behind and no thread hangs.
#[test]
fn transactions_ended_from_outside_leave_nothing() {
    let a = Arena::new();
    let (running, over) = (AtomicU64::new(4), AtomicU64::new(0));
    std::thread::scope(|s| {
        for thread in 0..4 {
            let (a, running, over) = (&a, &running, &over);
            s.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..rounds() {
                    let txn = a.next.fetch_add(1, Ordering::Relaxed);
                    let two = (0..2).try_for_each(|_| a.lock(txn, rng.below(3), X));
                    let ended = a.owners.check(txn);
                    if let Err(e) = &two {
                        let known = [ErrorKind::Aborted, ErrorKind::Deadlock];
                        assert!(known.contains(&e.kind()), "{e}");
                        let victim = u64::from(e.kind() == ErrorKind::Deadlock);
                        a.deadlocks.fetch_add(victim, Ordering::Relaxed);
                    }
                    over.fetch_add(u64::from(ended.is_err()), Ordering::Relaxed);
                    a.locks.release_all(txn);
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut rng = Rng::new(77);
        while running.load(Ordering::Relaxed) > 0 {
            let txn = a.next.load(Ordering::Relaxed).saturating_sub(rng.below(5));
            a.owners.ended.lock().insert(txn, ErrorKind::Aborted);
            match rng.one_in(2) {
                true => a.locks.wake(txn),
                false => drop(a.locks.release_all(txn)),
            }
            std::thread::yield_now();
        }
    });
    a.finish_after_ends(0, over.load(Ordering::Relaxed));
    println!("{} ended", over.load(Ordering::Relaxed));
}
