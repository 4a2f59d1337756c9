//! A wait for a lock is ended from another thread, and the transaction goes on.

#![allow(clippy::disallowed_methods)] // tests may start threads

use kingtide::{Db, ErrorKind, Isolation, Options, Transaction, TransactionOptions, vfs::MemFs};
use std::sync::Arc;
use std::time::Duration;

fn open() -> Db {
    let options = Options { fs: Some(Arc::new(MemFs::new())), ..Options::default() };
    Db::open("/db", options).unwrap()
}

fn begin(db: &Db) -> Transaction {
    let (isolation, lock_timeout) = (Isolation::RepeatableRead, Some(Duration::from_secs(3600)));
    db.begin_with(TransactionOptions { isolation, locking: true, lock_timeout, ..Default::default() }).unwrap()
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
    let mut txn = db.begin_with(TransactionOptions { locking: true, ..Default::default() }).unwrap();
    txn.get(family, b"changed").unwrap();
    db.put(b"changed", b"2").unwrap();
    txn.set_lock_timeout(Some(Duration::ZERO));
    let held = txn.put(family, b"k", b"2").unwrap_err();
    assert_eq!((held.kind(), held.is_lock_held()), (ErrorKind::Conflict, true));
    let changed = txn.put(family, b"changed", b"3").unwrap_err();
    assert_eq!((changed.kind(), changed.is_lock_held()), (ErrorKind::Conflict, false));
}
