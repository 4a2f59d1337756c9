//! Where a wait is the point: threads that wait for one another's locks, and counters that come out right.

use super::world::{Mode, open};
use kingtide::{ColumnFamily, Db, ErrorKind, Isolation, Result, Transaction, TransactionOptions};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

/// Locking, with patience.
fn patient(db: &Db, isolation: Isolation) -> Transaction {
    let lock_timeout = Some(Duration::from_secs(60));
    db.begin_with(TransactionOptions::new(isolation).locking(true).lock_timeout(lock_timeout)).unwrap()
}

fn number(txn: &mut Transaction, family: &ColumnFamily, key: &str) -> Result<i64> {
    let value = txn.get(family, key.as_bytes())?;
    Ok(value.map_or(0, |v| super::world::number(&v)))
}

fn committed(db: &Db, key: &str) -> i64 {
    db.get(key).unwrap().map_or(0, |v| super::world::number(&v))
}

/// Lets other threads run until one waits for a lock.
fn until_a_transaction_waits(db: &Db) {
    while db.lock_waits().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The second writer waits for the first, and then goes on, on the snapshot level too: its snapshot is taken when it has the
/// lock. One that had its snapshot before learns that the key changed.
#[test]
fn a_writer_waits_for_a_writer() {
    for level in Isolation::ALL {
        for (commit, early) in [(true, false), (false, false), (true, true), (false, true)] {
            let db = open();
            db.put("1", "10").unwrap();
            let mut a = patient(&db, level);
            a.put(db.default_family(), b"1", b"11").unwrap();
            let outcome = thread::scope(|s| {
                let second = s.spawn(|| {
                    let mut b = patient(&db, level);
                    if early {
                        b.get(db.default_family(), b"2").unwrap();
                    }
                    b.put(db.default_family(), b"1", b"12").and_then(|()| b.commit()).map_err(|e| e.kind())
                });
                until_a_transaction_waits(&db);
                assert_eq!(committed(&db, "1"), 10, "readers outside do not wait");
                if commit {
                    a.commit().map(drop).unwrap()
                } else {
                    a.rollback().unwrap()
                }
                second.join().unwrap()
            });
            let refused = level == Isolation::Snapshot && commit && early;
            assert_eq!(outcome.err(), refused.then_some(ErrorKind::Conflict), "{level}, commit {commit}");
            assert_eq!(committed(&db, "1"), if refused { 11 } else { 12 });
        }
    }
}

/// A write outside of transactions waits for a lock, and not for a transaction that has none on its key.
#[test]
fn a_plain_write_waits_for_a_lock() {
    let db = open();
    db.set_option("lock_timeout_ms", "60000").unwrap();
    let mut a = patient(&db, Isolation::ReadCommitted);
    a.get_for_update(db.default_family(), b"1").unwrap();
    db.put("2", "20").unwrap();
    thread::scope(|s| {
        let plain = s.spawn(|| db.put("1", "12"));
        until_a_transaction_waits(&db);
        a.put(db.default_family(), b"1", b"11").unwrap();
        a.commit().unwrap();
        plain.join().unwrap().unwrap();
    });
    assert_eq!((committed(&db, "1"), committed(&db, "2")), (12, 20));
}

/// Write skew under locks is a deadlock, of which one transaction is the victim and the other commits.
#[test]
fn write_skew_under_locks_is_a_deadlock() {
    let db = open();
    let family = db.default_family();
    let both_read = Barrier::new(2);
    let run = |own: &'static str, other: &'static str| {
        let mut txn = patient(&db, Isolation::Serializable);
        let sum = number(&mut txn, family, own)? + number(&mut txn, family, other)?;
        both_read.wait();
        if sum == 0 {
            txn.put(family, own.as_bytes(), b"1")?;
        }
        txn.commit()
    };
    let outcomes = thread::scope(|s| {
        let (a, b) = (s.spawn(|| run("1", "2")), s.spawn(|| run("2", "1")));
        [a.join().unwrap(), b.join().unwrap()].map(|r| r.map(drop).map_err(|e| e.kind()))
    });
    assert!(outcomes.contains(&Ok(())), "{outcomes:?}");
    assert!(outcomes.contains(&Err(ErrorKind::Deadlock)), "{outcomes:?}");
    assert_eq!(committed(&db, "1") + committed(&db, "2"), 1);
    assert!(db.locks().is_empty() && db.lock_waits().is_empty());
}

/// The same with ranges: each transaction counts a range and adds to it only if there is less than two in it.
#[test]
fn no_phantom_comes_in_between_under_locks() {
    let db = open();
    let family = db.default_family();
    thread::scope(|s| {
        for thread in 0..4 {
            let db = &db;
            s.spawn(move || {
                let mut txn = patient(db, Isolation::Serializable);
                loop {
                    match add_unless_two(&mut txn, family, thread) {
                        Err(e) if e.is_transient_conflict() => txn.reset().unwrap(),
                        done => return done.unwrap(),
                    }
                }
            });
        }
    });
    assert_eq!(db.iter().filter(|e| e.is_ok()).count(), 2);
}

fn add_unless_two(txn: &mut Transaction, family: &ColumnFamily, thread: u32) -> Result<()> {
    let mut it = txn.cursor(family, &b"seat "[..]..&b"seat~"[..])?;
    it.seek_to_first();
    let mut seats = 0;
    while it.valid() {
        seats += 1;
        it.next();
    }
    it.status()?;
    if seats < 2 {
        txn.put(family, format!("seat {thread}").as_bytes(), b"taken")?;
    }
    txn.commit().map(drop)
}

/// Threads that count up, every one of them until it has counted: nothing is lost on any level if the read says that it is
/// for update, and without on the levels that exclude lost updates.
#[test]
fn counters_come_out_right() {
    const THREADS: u32 = 4;
    let rounds = if kingtide_testkit::full() { 1000 } else { 100 };
    for mode in Mode::all() {
        for for_update in [false, true] {
            if !for_update && mode.level < Isolation::Snapshot {
                continue; // lost updates: the table has them one by one
            }
            let db = open();
            thread::scope(|s| {
                for _ in 0..THREADS {
                    s.spawn(|| (0..rounds).for_each(|_| count_up(&db, mode, for_update)));
                }
            });
            assert_eq!(committed(&db, "counter"), i64::from(THREADS * rounds), "{mode}, for update {for_update}");
            assert!(db.transactions().is_empty() && db.locks().is_empty());
        }
    }
}

fn count_up(db: &Db, mode: Mode, for_update: bool) {
    let family = db.default_family();
    let mut txn = db.begin_with(mode.options().lock_timeout(None)).unwrap();
    let once = |txn: &mut Transaction| {
        let key = b"counter";
        let value = if for_update { txn.get_for_update(family, key)? } else { txn.get(family, key)? };
        let next = value.map_or(0, |v| super::world::number(&v)) + 1;
        txn.put(family, key, next.to_string().as_bytes())?;
        txn.commit()
    };
    while let Err(e) = once(&mut txn) {
        assert!(e.is_transient_conflict(), "{e}");
        txn.reset().unwrap();
    }
}
