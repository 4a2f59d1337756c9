//! Locks on rows as SQL servers use them: taken without a read, for several keys at once, and given back when the row was
//! not wanted.

use kingtide::vfs::MemFs;
use kingtide::{Db, ErrorKind, Isolation, LockMode, Options, PinnedValue, Result, Transaction, TransactionOptions};
use kingtide_base::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn open() -> Db {
    let options = Options::new().fs(Arc::new(MemFs::new()));
    Db::open("/db", options).unwrap()
}

fn begin(db: &Db, isolation: Isolation, wait: bool) -> Transaction {
    let lock_timeout = Some(if wait { Duration::from_secs(600) } else { Duration::ZERO });
    db.begin_with(TransactionOptions::new(isolation).locking(true).lock_timeout(lock_timeout)).unwrap()
}

fn text(value: &Result<Option<PinnedValue>>) -> String {
    match value {
        Ok(None) => "-".into(),
        Ok(Some(v)) => String::from_utf8(v.to_vec()).unwrap(),
        Err(e) => format!("{:?}", e.kind()),
    }
}

#[test]
fn a_row_that_is_not_wanted_is_given_back() {
    let db = open();
    let f = db.default_family();
    db.put(b"a", b"1").unwrap();
    for isolation in Isolation::ALL {
        let mut txn = begin(&db, isolation, false);
        let serializable = isolation == Isolation::Serializable;
        txn.get_for_update(f, b"a").unwrap();
        assert_eq!(txn.unlock_last().unwrap(), !serializable);
        assert_eq!(db.locks().is_empty(), !serializable, "{isolation}");
        assert!(!txn.unlock_last().unwrap(), "twice");
        txn.rollback().unwrap();
        assert_eq!(txn.unlock_last().unwrap_err().kind(), ErrorKind::Finished);
    }
    let mut txn = begin(&db, Isolation::ReadCommitted, false);
    // Nothing goes that something else relies on.
    txn.put(f, b"written", b"1").unwrap();
    assert!(!txn.unlock_last().unwrap());
    txn.get_for_update(f, b"written").unwrap();
    assert!(!txn.unlock_last().unwrap());
    txn.get_for_share(f, b"b").unwrap();
    txn.get_for_update(f, b"b").unwrap();
    assert!(!txn.unlock_last().unwrap(), "raised, so an earlier statement wants it");
    txn.lock_range(f, b"m"..b"p", LockMode::Shared).unwrap();
    txn.get_for_share(f, b"n").unwrap();
    assert!(!txn.unlock_last().unwrap());
    assert_eq!(db.locks().len(), 3);
    txn.lock(f, b"c", LockMode::Exclusive).unwrap();
    assert!(begin(&db, Isolation::ReadCommitted, false).lock(f, b"c", LockMode::Shared).is_err());
    assert!(txn.unlock_last().unwrap());
    begin(&db, Isolation::ReadCommitted, false).lock(f, b"c", LockMode::Shared).unwrap();
    // A write that comes after takes a lock of its own.
    txn.put(f, b"c", b"2").unwrap();
    assert!(begin(&db, Isolation::ReadCommitted, false).lock(f, b"c", LockMode::Shared).is_err());
    txn.commit().unwrap();
    assert!(db.locks().is_empty());
    let mut optimistic = db.begin(Isolation::ReadCommitted).unwrap();
    assert_eq!(optimistic.lock(f, b"a", LockMode::Shared).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(!optimistic.unlock_last().unwrap());
    assert_eq!(
        begin(&db, Isolation::Snapshot, true).lock(f, b"", LockMode::Shared).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn several_keys_are_read_for_update() {
    let db = open();
    let f = db.default_family();
    for key in ["a", "b", "c", "d"] {
        db.put(key, "old").unwrap();
    }
    let keys = ["d", "x", "a", "own", "gone", "", "b"];
    for isolation in Isolation::ALL {
        let mut txn = begin(&db, isolation, false);
        txn.put(f, b"own", b"mine").unwrap();
        txn.put(f, b"gone", b"mine").unwrap();
        txn.delete(f, b"gone").unwrap();
        let mut other = begin(&db, Isolation::ReadCommitted, false);
        other.lock(f, b"a", LockMode::Exclusive).unwrap();
        let got: Vec<String> = txn.multi_get_for_update(f, &keys).iter().map(text).collect();
        assert_eq!(got, ["old", "-", "Conflict", "mine", "-", "InvalidArgument", "old"], "{isolation}");
        other.put(f, b"a", b"new").unwrap();
        other.commit().unwrap();
        // At the snapshot level the snapshot moves, because the lock was refused before, and so showed nothing.
        let shared: Vec<String> = txn.multi_get_for_share(f, &["a", "c"]).iter().map(text).collect();
        assert_eq!(shared, ["new", "old"], "{isolation}");
        assert!(begin(&db, Isolation::ReadCommitted, false).lock(f, b"x", LockMode::Shared).is_err());
        txn.rollback().unwrap();
        assert!(txn.multi_get_for_update(f, &keys).iter().all(|r| text(r) == "Finished"));
        db.put(b"a", b"old").unwrap();
    }
    let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
    assert_eq!(text(&txn.multi_get_for_update(f, &["a"])[0]), "old");
    db.put(b"a", b"changed").unwrap();
    txn.put(f, b"a", b"mine").unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
}

/// The victim of a deadlock holds no lock any more: none of the keys is locked, and each of them says why, so that a caller that
/// looks at any one of them knows that the transaction is to be tried again.
#[test]
fn a_deadlock_concerns_all_keys_that_were_to_be_locked() {
    let db = open();
    let f = db.default_family();
    for isolation in Isolation::ALL {
        let mut first = begin(&db, isolation, true);
        for key in [&b"m"[..], b"s", b"t", b"u", b"v", b"w", b"x"] {
            first.put(f, key, b"1").unwrap(); // many, so that the other one is the victim
        }
        let victim = std::thread::spawn({
            let db = db.clone();
            move || {
                let f = db.default_family();
                let mut txn = begin(&db, isolation, true);
                txn.put(f, b"y", b"2").unwrap();
                let got: Vec<String> = txn.multi_get_for_update(f, &["n", "m", "a"]).iter().map(text).collect();
                assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Finished);
                got
            }
        });
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        first.put(f, b"y", b"1").unwrap();
        assert_eq!(victim.join().unwrap(), ["Deadlock"; 3], "{isolation}");
        first.rollback().unwrap();
    }
}

/// A transaction that waits for the first of its keys holds none of the others, in whatever order the caller names them.
#[test]
fn keys_are_locked_in_the_order_of_the_family() {
    let db = open();
    let f = db.default_family();
    for isolation in Isolation::ALL {
        let mut first = begin(&db, isolation, true);
        first.put(f, b"a", b"1").unwrap();
        let second = std::thread::spawn({
            let db = db.clone();
            move || {
                let mut txn = begin(&db, isolation, true);
                txn.multi_get_for_update(db.default_family(), &["c", "b", "a"]).iter().map(text).collect::<Vec<_>>()
            }
        });
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        let held = db.locks();
        first.commit().unwrap();
        // The snapshot is taken when all are locked, so that what was committed meanwhile is in it.
        assert_eq!(second.join().unwrap(), ["-", "-", "1"], "{isolation}");
        assert_eq!(held.len(), 1, "{isolation}: {held:?}");
        db.delete(b"a").unwrap();
    }
}

/// Transfers between accounts, the rows read for update in random order: a sum that stays, and no deadlock.
#[test]
fn keys_locked_together_make_no_deadlock() {
    let db = open();
    let accounts: Vec<String> = (0..6).map(|i| format!("account{i}")).collect();
    accounts.iter().for_each(|a| {
        db.put(a, "100").unwrap();
    });
    let (rounds, done) = (300, AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (db, accounts, done) = (&db, &accounts, &done);
            scope.spawn(move || {
                let (mut rng, f) = (Rng::new(thread), db.default_family());
                for _ in 0..rounds {
                    let mut txn = begin(db, Isolation::RepeatableRead, true);
                    let mut keys = accounts.clone();
                    while keys.len() > 3 {
                        keys.swap_remove(rng.below(keys.len() as u64) as usize);
                    }
                    let n: Vec<i64> =
                        txn.multi_get_for_update(f, &keys).iter().map(|v| text(v).parse().unwrap()).collect();
                    for (key, n) in keys.iter().zip([n[0] - 2, n[1] + 1, n[2] + 1]) {
                        txn.put(f, key.as_bytes(), n.to_string().as_bytes()).unwrap();
                    }
                    std::thread::sleep(Duration::from_micros(20)); // so that others come to wait
                    txn.commit().unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let sum: i64 = db.multi_get(&accounts).iter().map(|v| text(v).parse::<i64>().unwrap()).sum();
    assert_eq!((sum, done.into_inner()), (600, 4 * rounds));
    let stats = db.stats();
    assert_eq!(stats.get("deadlocks"), Some(0));
    println!("{} transactions, {:?} waits", 4 * rounds, stats.get("lock_waits"));
}

/// A locking transaction begins with its first operation. A lock on a range was none: what others committed after it was seen, or not a
/// conflict.
#[test]
fn a_locking_transaction_begins_with_the_lock_that_it_takes_first() {
    for isolation in [Isolation::RepeatableRead, Isolation::Snapshot] {
        for first in ["key", "range", "read", "delete"] {
            let db = open();
            let f = db.default_family();
            db.put(b"x", b"before").unwrap();
            let mut txn = begin(&db, isolation, false);
            db.put(b"x", b"before it began").unwrap();
            match first {
                "key" => txn.lock(f, b"a", LockMode::Shared).unwrap(),
                "range" => txn.lock_range(f, b"a"..b"c", LockMode::Shared).unwrap(),
                "read" => assert!(txn.get_for_update(f, b"a").unwrap().is_none()),
                _ => txn.delete_range(f, b"a"..b"c").unwrap(),
            }
            db.put(b"x", b"after").unwrap();
            assert_eq!(text(&txn.get(f, b"x")), "before it began", "{isolation}, {first}");
            let put = txn.put(f, b"x", b"mine");
            match isolation {
                Isolation::Snapshot => assert_eq!(put.unwrap_err().kind(), ErrorKind::Conflict, "{first}"),
                _ => put.unwrap(),
            }
        }
    }
}

/// What others commit after a transaction's snapshot, and only that, counts as changed since: wherever it is, in memtables or tables, and
/// whether or not a compaction has dropped what it replaced.
#[test]
fn keys_that_others_changed_after_the_snapshot_are_told() {
    let (mut told, mut not) = (0, 0);
    for seed in 0..60 {
        let (db, mut rng) = (open(), Rng::new(seed));
        let f = db.default_family();
        let key = |n: u64| format!("key{n:03}");
        let keys = 1 + rng.below(200);
        let changes = |changed: &mut Vec<u64>, rng: &mut Rng, last: u64| {
            for _ in 0..rng.below(60) {
                let n = rng.below(keys);
                match rng.below(40) {
                    0 => {
                        let end = n + rng.below(5);
                        db.delete_range(key(n)..key(end)).unwrap();
                        changed.extend(n..end);
                    }
                    1 if last > 0 => db.flush().unwrap(),
                    2 if last > 0 => db.compact().unwrap(),
                    3..20 => {
                        db.delete(key(n)).unwrap();
                        changed.push(n);
                    }
                    _ => {
                        db.put(key(n), "value").unwrap();
                        changed.push(n);
                    }
                }
            }
        };
        changes(&mut Vec::new(), &mut rng, seed % 2);
        let mut txn = begin(&db, Isolation::RepeatableRead, false);
        txn.get(f, b"none").unwrap();
        let mut changed = Vec::new();
        changes(&mut changed, &mut rng, seed % 3);
        for n in 0..keys {
            let is = txn.changed_since_snapshot(f, key(n).as_bytes()).unwrap();
            assert_eq!(is, changed.contains(&n), "seed {seed}, {n}");
            *if is { &mut told } else { &mut not } += 1;
        }
        let own = (0..keys).find(|n| !changed.contains(n)).map(key);
        if let Some(own) = own {
            txn.put(f, own.as_bytes(), b"mine").unwrap();
            assert!(!txn.changed_since_snapshot(f, own.as_bytes()).unwrap(), "its own write");
        }
    }
    println!("{told} changed, {not} not");
    assert!(told > 500 && not > 500);
}

/// Existence checks and partial reads take the same locks and make the same checks as reads of the whole value.
#[test]
fn a_long_value_is_not_read_to_lock_its_key() {
    let db = open();
    let f = db.default_family();
    db.put(b"long", vec![7; 2_000_000]).unwrap();
    db.put_ttl(b"gone", vec![7; 2_000_000], Duration::from_nanos(1)).unwrap();
    db.flush().unwrap();
    let reads = || (db.stats().get("vlog_reads").unwrap(), db.stats().get("vlog_read_bytes").unwrap());
    for isolation in Isolation::ALL {
        let before = reads();
        let mut txn = begin(&db, isolation, false);
        assert!(txn.contains_key(f, b"long").unwrap() && !txn.contains_key(f, b"gone").unwrap(), "{isolation}");
        assert!(txn.of(f).contains_key(b"long").unwrap() && !txn.of(f).contains_key(b"gone").unwrap());
        assert!(txn.contains_for_share(f, b"long").unwrap() && !txn.contains_for_share(f, b"absent").unwrap());
        assert!(begin(&db, isolation, false).contains_for_share(f, b"long").unwrap());
        let held = begin(&db, isolation, false).contains_for_update(f, b"long").unwrap_err();
        assert_eq!(held.kind(), ErrorKind::Conflict);
        assert!(txn.contains_for_update(f, b"long").unwrap() && !txn.contains_for_update(f, b"absent").unwrap());
        assert!(begin(&db, isolation, false).contains_for_share(f, b"long").is_err());
        assert!(begin(&db, isolation, false).get_reader_for_share(f, b"absent").is_err());
        assert!(txn.contains_for_update(f, b"").is_err() && !txn.contains_for_update(f, b"gone").unwrap());
        // The transaction's own writes.
        txn.put(f, b"own", b"1").unwrap();
        txn.delete(f, b"long").unwrap();
        assert!(txn.contains_for_update(f, b"own").unwrap() && txn.contains_key(f, b"own").unwrap());
        assert!(!txn.contains_for_update(f, b"long").unwrap() && !txn.contains_key(f, b"long").unwrap());
        assert!(txn.get_reader_for_update(f, b"long").unwrap().is_none());
        txn.rollback().unwrap();
        assert_eq!(reads(), before, "{isolation}");
        let mut txn = begin(&db, isolation, false);
        let mut reader = txn.get_reader_for_update(f, b"long").unwrap().unwrap();
        assert_eq!((reader.len(), reader.read_range(1_999_999..3_000_000).unwrap()), (2_000_000, vec![7]));
        assert!(begin(&db, isolation, false).get_reader_for_share(f, b"long").is_err());
        assert_eq!(txn.unlock_last().unwrap(), isolation != Isolation::Serializable);
        assert_eq!(txn.get_reader_for_share(f, b"long").unwrap().unwrap().len(), 2_000_000);
        txn.rollback().unwrap();
    }
}

#[test]
fn an_existence_check_sees_what_a_read_does() {
    for isolation in Isolation::ALL {
        let db = open();
        let f = db.default_family();
        db.put(b"deleted", b"1").unwrap();
        db.put(b"mark", b"1").unwrap();
        // A locking transaction sees the newest state, or fails, at the same levels as with the value.
        let mut asks = [begin(&db, isolation, false), begin(&db, isolation, false)];
        for txn in &mut asks {
            txn.get(f, b"mark").unwrap();
        }
        db.delete(b"deleted").unwrap();
        db.put(b"new", b"1").unwrap();
        let [exists, value] = &mut asks;
        for key in [&b"deleted"[..], b"new"] {
            let expected = value.get_for_share(f, key).map(|v| v.is_some()).map_err(|e| e.kind());
            assert_eq!(exists.contains_for_share(f, key).map_err(|e| e.kind()), expected, "{isolation}");
            let opened = exists.get_reader_for_share(f, key).map(|r| r.is_some()).map_err(|e| e.kind());
            assert_eq!(opened, expected, "{isolation}");
        }
        // An optimistic one is checked at its commit.
        for change in [false, true] {
            let mut txn = db.begin_with(TransactionOptions::new(isolation)).unwrap();
            assert!(!txn.contains_for_update(f, b"other").unwrap());
            txn.put(f, b"mine", b"1").unwrap();
            if change {
                db.put(b"other", b"1").unwrap();
            }
            assert_eq!(
                txn.commit().map(|_| ()).map_err(|e| e.kind()),
                if change { Err(ErrorKind::Conflict) } else { Ok(()) }
            );
        }
    }
}
