//! A wait for a lock is ended from another thread, and the transaction goes on.

use kingtide::{
    Db, DeadlockStep, ErrorKind, Isolation, LockMode, LockTarget, LockWaitHook, Options, Transaction,
    TransactionOptions, TxnId, vfs::MemFs,
};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn open() -> Db {
    let options = Options::new().fs(Arc::new(MemFs::new()));
    Db::open("/db", options).unwrap()
}

fn begin(db: &Db) -> Transaction {
    let (isolation, lock_timeout) = (Isolation::RepeatableRead, Some(Duration::from_secs(3600)));
    db.begin_with(TransactionOptions::new(isolation).locking(true).lock_timeout(lock_timeout)).unwrap()
}

#[test]
fn a_wait_ends_and_the_transaction_goes_on() {
    let db = open();
    let family = db.default_family();
    let (mut holder, mut waiter) = (begin(&db), begin(&db));
    holder.put(family, b"k", b"1").unwrap();
    waiter.put(family, b"other", b"1").unwrap();
    let handle = waiter.handle();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| waiter.put(family, b"k", b"2").unwrap_err().kind());
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        handle.interrupt().unwrap();
        assert_eq!(waiting.join().unwrap(), ErrorKind::Cancelled);
    });
    assert!(db.lock_waits().is_empty());
    assert_eq!(db.locks().len(), 2, "it keeps the locks that it has");
    holder.rollback().unwrap();
    waiter.put(family, b"k", b"2").unwrap();
    waiter.commit().unwrap();
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&b"2"[..]));
}

/// What a server does that has promised to commit the waiter first: the hook ends the one that holds the lock.
#[test]
fn a_hook_is_told_of_a_wait_and_may_end_the_holder() {
    let db = open();
    let family = db.default_family();
    let (mut holder, mut waiter) = (begin(&db), begin(&db));
    let told = Arc::new(Mutex::new(Vec::new()));
    let (told_to, handle) = (told.clone(), holder.handle());
    db.set_lock_wait_hook(Some(Arc::new(move |waiter: TxnId, holders: &[TxnId]| {
        told_to.lock().unwrap().push((waiter, holders.to_vec()));
        handle.abort().unwrap();
    })));
    holder.put(family, b"k", b"1").unwrap();
    waiter.put(family, b"free", b"2").unwrap(); // no wait
    assert!(told.lock().unwrap().is_empty());
    waiter.put(family, b"k", b"2").unwrap();
    assert_eq!(*told.lock().unwrap(), [(waiter.id(), vec![holder.id()])]);
    assert_eq!(holder.commit().unwrap_err().kind(), ErrorKind::Aborted);

    // No listener is called any more, and it holds nothing.
    db.set_lock_wait_hook(None);
    assert_eq!(Arc::strong_count(&told), 1);
    let mut late = begin(&db);
    late.set_lock_timeout(Some(Duration::from_millis(1)));
    assert_eq!(late.put(family, b"k", b"3").unwrap_err().kind(), ErrorKind::LockTimeout);
    assert_eq!(told.lock().unwrap().len(), 1);
}

/// Those that it waits for change while it waits, without its being granted anything.
#[test]
fn a_hook_is_told_again_while_the_wait_lasts() {
    let db = open();
    let family = db.default_family();
    let (mut first, mut second, mut waiter) = (begin(&db), begin(&db), begin(&db));
    let (first_id, second_id) = (first.id(), second.id());
    let told = Arc::new(Mutex::new(Vec::new()));
    let told_to = told.clone();
    db.set_lock_wait_hook(Some(Arc::new(move |_: TxnId, holders: &[TxnId]| {
        told_to.lock().unwrap().push(holders.to_vec());
    })));
    let wait_until = |wanted: Vec<TxnId>| {
        while !told.lock().unwrap().contains(&wanted) {
            std::thread::yield_now();
        }
    };
    first.put(family, b"a", b"").unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(move || {
            let (lower, upper) = (Bound::Included(&b"a"[..]), Bound::Excluded(&b"c"[..]));
            waiter.lock_range(family, (lower, upper), LockMode::Exclusive).unwrap();
        });
        wait_until(vec![first_id]);
        second.set_lock_timeout(Some(Duration::ZERO)); // it does not stand in line
        second.put(family, b"b", b"").unwrap();
        wait_until(vec![first_id, second_id]);
        first.rollback().unwrap();
        wait_until(vec![second_id]);
        second.rollback().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn one_that_meets_no_wait_ends_the_next_unless_it_is_forgotten() {
    let db = open();
    let family = db.default_family();
    let (mut holder, mut txn) = (begin(&db), begin(&db));
    holder.put(family, b"k", b"1").unwrap();
    txn.handle().interrupt().unwrap();
    txn.put(family, b"free", b"1").unwrap(); // it does not wait
    assert_eq!(txn.put(family, b"k", b"2").unwrap_err().kind(), ErrorKind::Cancelled);
    txn.handle().interrupt().unwrap();
    txn.clear_interrupt();
    txn.set_lock_timeout(Some(Duration::from_millis(1)));
    assert_eq!(txn.put(family, b"k", b"2").unwrap_err().kind(), ErrorKind::LockTimeout);

    // It is meant for one transaction, not for those that follow in the same object.
    let handle = txn.handle();
    handle.interrupt().unwrap();
    txn.reset().unwrap();
    assert_eq!(handle.interrupt().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(txn.put(family, b"k", b"2").unwrap_err().kind(), ErrorKind::LockTimeout);
}

#[test]
fn a_held_lock_is_told_from_a_change() {
    let db = open();
    let family = db.default_family();
    db.put(b"changed", b"1").unwrap();
    let mut holder = begin(&db);
    holder.put(family, b"k", b"1").unwrap();
    let mut txn = db.begin_with(TransactionOptions::default().locking(true)).unwrap();
    txn.get(family, b"changed").unwrap();
    db.put(b"changed", b"2").unwrap();
    txn.set_lock_timeout(Some(Duration::ZERO));
    let held = txn.put(family, b"k", b"2").unwrap_err();
    assert_eq!((held.kind(), held.is_lock_held()), (ErrorKind::Conflict, true));
    let changed = txn.put(family, b"changed", b"3").unwrap_err();
    assert_eq!((changed.kind(), changed.is_lock_held()), (ErrorKind::Conflict, false));
}

/// Records the deadlocks that are reported to it, and which transactions held locks then.
struct Deadlocks(Db, Mutex<Vec<(Vec<DeadlockStep>, Vec<TxnId>)>>);

impl LockWaitHook for Deadlocks {
    fn waits(&self, _: TxnId, _: &[TxnId]) {}

    fn deadlock(&self, cycle: &[DeadlockStep]) {
        let holders = self.0.locks().iter().map(|lock| lock.txn).collect();
        self.1.lock().unwrap().push((cycle.to_vec(), holders));
    }
}

#[test]
fn a_hook_is_told_of_a_deadlock_before_the_victim_gives_its_locks_back() {
    let db = open();
    let family = db.default_family();
    let hook = Arc::new(Deadlocks(db.clone(), Mutex::new(Vec::new())));
    db.set_lock_wait_hook(Some(hook.clone()));
    let (mut one, mut two) = (begin(&db), begin(&db));
    let (one_id, two_id) = (one.id(), two.id());
    one.lock_range(family, (Bound::Included(&b"a"[..]), Bound::Excluded(&b"c"[..])), LockMode::Shared).unwrap();
    one.put(family, b"z", b"").unwrap(); // so that the other one has fewer locks
    two.put(family, b"k", b"").unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| one.put(family, b"k", b"1"));
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        assert!(hook.1.lock().unwrap().is_empty());
        assert_eq!(two.put(family, b"b", b"2").unwrap_err().kind(), ErrorKind::Deadlock);
        waiting.join().unwrap().unwrap();
    });
    let told = hook.1.lock().unwrap();
    let [(cycle, holders)] = told.as_slice() else { panic!("{} deadlocks", told.len()) };
    let (a, c) = (Bound::Included(b"a".to_vec()), Bound::Excluded(b"c".to_vec()));
    let victim = DeadlockStep {
        waiter: two_id,
        family: family.id(),
        wanted: LockTarget::Key(b"b".to_vec()),
        wanted_mode: LockMode::Exclusive,
        holder: one_id,
        held: LockTarget::Range(a, c),
        held_mode: LockMode::Shared,
    };
    let other = DeadlockStep {
        waiter: one_id,
        family: family.id(),
        wanted: LockTarget::Key(b"k".to_vec()),
        wanted_mode: LockMode::Exclusive,
        holder: two_id,
        held: LockTarget::Key(b"k".to_vec()),
        held_mode: LockMode::Exclusive,
    };
    assert_eq!(*cycle, [victim, other]);
    assert!(holders.contains(&one_id) && holders.contains(&two_id), "{holders:?}");
    db.set_lock_wait_hook(None);
}
