//! Every mistake with a transaction, and everything that can come in its way, is an error of the right kind, and leaves the
//! transaction and the database as the error's description says.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, CustomOrder, Db, ErrorKind, FamilyOptions, Isolation, KeyOrder, LockMode, ManualClock, Options,
    ReadOptions, Result, Transaction, TransactionOptions,
};
use kingtide_base::hash::mix64;
use kingtide_testkit::RaiseOnDrop;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn options() -> Options {
    Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true)
}

fn open() -> Db {
    Db::open("/db", options()).unwrap()
}

/// A database whose time stands still.
fn open_timeless() -> (Arc<ManualClock>, Db) {
    let clock = ManualClock::at_unix_ms(1_000_000);
    (clock.clone(), Db::open("/db", options().clock(clock)).unwrap())
}

fn modes() -> impl Iterator<Item = TransactionOptions> {
    Isolation::ALL.into_iter().flat_map(|isolation| {
        [false, true].map(|locking| TransactionOptions::new(isolation).locking(locking).lock_timeout(Duration::ZERO))
    })
}

fn locking(isolation: Isolation) -> TransactionOptions {
    TransactionOptions::new(isolation).locking(true).lock_timeout(Duration::ZERO)
}

#[track_caller]
fn refused<T: Debug>(result: Result<T>, kind: ErrorKind, says: &str) {
    let e = result.expect_err("this must be refused");
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.to_string().contains(says), "'{e}' does not say '{says}'");
}

/// Whether a verb writes, reads, or neither.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Write,
    Read,
    End,
}

type Verb = (&'static str, Does, fn(&mut Transaction, &ColumnFamily) -> Result<()>);

/// Everything that a transaction can be asked to do, but `rollback` and `reset`.
const VERBS: &[Verb] = &[
    ("get", Does::Read, |t, f| t.get(f, b"k").map(drop)),
    ("get_for_update", Does::Read, |t, f| t.get_for_update(f, b"k").map(drop)),
    ("get_for_share", Does::Read, |t, f| t.get_for_share(f, b"k").map(drop)),
    ("multi_get", Does::Read, |t, f| t.multi_get(f, &["k", "l"]).into_iter().try_for_each(|r| r.map(drop))),
    ("iter", Does::Read, |t, f| t.cursor(f, ..).map(drop)),
    ("iter_with", Does::Read, |t, f| t.cursor_with(f, ReadOptions::default()).map(drop)),
    ("put", Does::Write, |t, f| t.put(f, b"k", b"v")),
    ("put_ttl", Does::Write, |t, f| t.put_ttl(f, b"k", b"v", Duration::from_secs(1))),
    ("delete", Does::Write, |t, f| t.delete(f, b"k")),
    ("single_delete", Does::Write, |t, f| t.single_delete(f, b"k")),
    ("delete_range", Does::Write, |t, f| t.delete_range(f, b"k"..b"l")),
    ("delete_prefix", Does::Write, |t, f| t.delete_prefix(f, b"k")),
    ("set_savepoint", Does::End, |t, _| t.set_savepoint("s")),
    ("rollback_to_savepoint", Does::End, |t, _| t.rollback_to_savepoint("s")),
    ("release_savepoint", Does::End, |t, _| t.release_savepoint("s")),
    ("prepare", Does::End, |t, _| t.prepare(b"x")),
    ("commit", Does::End, |t, _| t.commit().map(drop)),
    ("commit_ordered", Does::End, |t, _| t.commit_ordered().and_then(|ticket| ticket.wait()).map(drop)),
];

#[track_caller]
fn all_refused(txn: &mut Transaction, family: &ColumnFamily, kind: ErrorKind, says: &str) {
    for (name, _, verb) in VERBS {
        let e = verb(txn, family).expect_err(name);
        assert_eq!(e.kind(), kind, "{name}: {e}");
        assert!(e.to_string().contains(says), "{name}: '{e}' does not say '{says}'");
    }
}

#[test]
fn after_the_end_every_verb_is_refused() {
    let db = open();
    let f = db.default_family();
    for options in modes() {
        let mut txn = db.begin_with(options.clone()).unwrap();
        txn.put(f, b"k", b"committed").unwrap();
        txn.commit().unwrap();
        all_refused(&mut txn, f, ErrorKind::Finished, "was committed");
        if options.locking {
            refused(txn.lock_range(f, .., LockMode::Shared), ErrorKind::Finished, "was committed");
        }
        txn.rollback().unwrap(); // does nothing
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"committed"[..]));
        txn.reset().unwrap();
        txn.put(f, b"k", b"rolled back").unwrap();
        txn.rollback().unwrap();
        all_refused(&mut txn, f, ErrorKind::Finished, "was rolled back");
        txn.rollback().unwrap();
        txn.reset().unwrap();
        txn.put(f, b"k", b"aborted").unwrap();
        txn.handle().abort().unwrap();
        refused(txn.handle().abort(), ErrorKind::NotFound, "running");
        all_refused(&mut txn, f, ErrorKind::Aborted, "another thread");
        txn.rollback().unwrap();
        all_refused(&mut txn, f, ErrorKind::Aborted, "another thread");
        // A commit that was refused is an end, too.
        txn.reset().unwrap();
        if options.isolation == Isolation::Snapshot && !options.locking {
            txn.put(f, b"k", b"late").unwrap();
            db.put("k", "first").unwrap();
            refused(txn.commit(), ErrorKind::Conflict, "changed");
            all_refused(&mut txn, f, ErrorKind::Finished, "was rolled back");
        }
    }
    assert!(db.transactions().is_empty() && db.locks().is_empty());
    refused(db.abort_transaction(12345), ErrorKind::NotFound, "12345");
}

/// A range with its end is two writes, and the second may fail.
#[test]
fn a_range_delete_that_is_refused_deletes_nothing() {
    let db = open();
    let f = db.default_family();
    for isolation in Isolation::ALL {
        for written in [1, 20] {
            db.put("b", "stays").unwrap();
            let mut other = db.begin_with(locking(isolation)).unwrap();
            other.put(f, b"z", b"locked").unwrap();
            let mut txn = db.begin_with(locking(isolation)).unwrap();
            (0..written).for_each(|i: u8| txn.put(f, &[b'o', i], b"own").unwrap()); // few, or so many that they are indexed
            assert_eq!(txn.get(f, b"o\0").unwrap().as_deref(), Some(&b"own"[..]));
            refused(txn.delete_range(f, "a"..="z"), ErrorKind::Conflict, "locked by");
            assert_eq!(txn.len(), usize::from(written), "{isolation}");
            assert_eq!(txn.get(f, b"b").unwrap().as_deref(), Some(&b"stays"[..]), "{isolation}");
            assert_eq!(txn.get(f, b"o\0").unwrap().as_deref(), Some(&b"own"[..]), "{isolation}");
            txn.put(f, b"o\0", b"again").unwrap();
            txn.commit().unwrap();
            other.rollback().unwrap();
            assert_eq!(db.get("b").unwrap().as_deref(), Some(&b"stays"[..]), "{isolation}");
            assert_eq!(db.get(b"o\0").unwrap().as_deref(), Some(&b"again"[..]), "{isolation}");
            db.delete_prefix("o").unwrap();
        }
    }
}

#[test]
fn savepoints_that_are_not_there() {
    let db = open();
    let mut txn = db.begin(Isolation::default()).unwrap();
    refused(txn.rollback_to_savepoint("s"), ErrorKind::NotFound, "'s'");
    refused(txn.release_savepoint("s"), ErrorKind::NotFound, "'s'");
    txn.set_savepoint("outer").unwrap();
    txn.put(db.default_family(), b"k", b"v").unwrap();
    txn.set_savepoint("inner").unwrap();
    txn.release_savepoint("outer").unwrap();
    refused(txn.rollback_to_savepoint("inner"), ErrorKind::NotFound, "'inner'");
    txn.commit().unwrap();
    assert!(db.get("k").unwrap().is_some(), "an error changes nothing");
}

/// Versions and tombstones in tables.
fn entries(db: &Db) -> u64 {
    db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.entries).sum()
}

/// Overwrites ten keys and merges everything; tells what is left.
fn entries_after_merge(db: &Db) -> u64 {
    for i in 0..10 {
        db.put(format!("key {i}"), format!("{}", db.latest_sequence())).unwrap();
    }
    db.compact().unwrap();
    entries(db)
}

#[test]
fn a_timeout_of_its_own() {
    let (clock, db) = open_timeless();
    let f = db.default_family();
    for options in modes() {
        let options = options.timeout(Duration::from_secs(5));
        let (level, locking) = (options.isolation, options.locking);
        assert_eq!(entries_after_merge(&db), 10);
        let mut txn = db.begin_with(options).unwrap();
        txn.put(f, b"k", b"v").unwrap();
        let mut it = txn.cursor(f, ..).unwrap();
        it.seek_to_first();
        assert!(it.valid());
        clock.advance(Duration::from_millis(4999));
        txn.get(f, b"k").unwrap();
        let pins = level >= Isolation::RepeatableRead && !(level == Isolation::Serializable && locking);
        assert_eq!(db.locks().is_empty(), !locking);
        if !(level == Isolation::Serializable && locking) {
            assert_eq!(entries_after_merge(&db), if pins { 20 } else { 10 }, "{level}, {locking}");
        }
        clock.advance(Duration::from_millis(1));
        if locking {
            // A waiter for its lock notices.
            db.put("k", "taken over").unwrap();
        } else {
            refused(txn.get(f, b"k"), ErrorKind::Expired, "outlived its timeout");
        }
        all_refused(&mut txn, f, ErrorKind::Expired, "outlived its timeout");
        it.next();
        refused(it.status(), ErrorKind::Expired, "outlived");
        refused(it.value().map(drop), ErrorKind::Expired, "outlived");
        assert!(db.locks().is_empty() && db.transactions().is_empty(), "{level}, {locking}");
        assert_eq!(entries_after_merge(&db), 10 + u64::from(locking), "{level}, {locking}");
        txn.rollback().unwrap();
        txn.reset().unwrap();
        txn.put(f, b"k", b"v").unwrap();
        txn.delete(f, b"k").unwrap();
        txn.commit().unwrap();
    }
    assert_eq!(db.stats().get("transactions_expired"), Some(10));
}

#[test]
fn the_timeout_of_the_database() {
    let (clock, db) = open_timeless();
    let f = db.default_family();
    db.set_option("transaction_timeout_ms", "1000").unwrap();
    for options in modes() {
        let (level, locking) = (options.isolation, options.locking);
        let mut txn = db.begin_with(options).unwrap();
        txn.put(f, b"k", b"v").unwrap();
        let mut it = txn.cursor(f, ..).unwrap();
        while db.run_one_job().unwrap() {} // a look at it, from which its time counts
        clock.advance(Duration::from_millis(999));
        while db.run_one_job().unwrap() {}
        txn.get(f, b"k").unwrap();
        clock.advance(Duration::from_millis(2));
        while db.run_one_job().unwrap() {}
        assert!(db.transactions().is_empty() && db.locks().is_empty(), "{level}, {locking}");
        it.seek_to_first();
        assert!(!it.valid());
        refused(it.status(), ErrorKind::Expired, "outlived");
        all_refused(&mut txn, f, ErrorKind::Expired, "outlived its timeout");
        assert_eq!(entries_after_merge(&db), 10, "{level}, {locking}");
    }
    // A prepared transaction has no timeout, and 0 means none for all others.
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(f, b"k", b"v").unwrap();
    while db.run_one_job().unwrap() {}
    txn.prepare(b"patient").unwrap();
    clock.advance(Duration::from_secs(1_000_000));
    while db.run_one_job().unwrap() {}
    txn.commit().unwrap();
    db.set_option("transaction_timeout_ms", "0").unwrap();
    txn.reset().unwrap();
    txn.put(f, b"k", b"w").unwrap();
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1_000_000));
        db.run_one_job().unwrap();
    }
    txn.commit().unwrap();
}

#[test]
fn conflicts_of_every_kind_say_what_about() {
    use ErrorKind::Conflict;
    let db = open();
    let f = db.default_family();
    db.put("key", "0").unwrap();
    let begin = |level| db.begin(level).unwrap();
    // A key written.
    let mut txn = begin(Isolation::Snapshot);
    txn.put(f, b"key", b"1").unwrap();
    db.put("key", "2").unwrap();
    refused(txn.commit(), Conflict, "key 'key' of column family 'default' was changed");
    // A range deleted.
    let mut txn = begin(Isolation::Snapshot);
    txn.delete_range(f, b"a"..b"z").unwrap();
    db.put("key", "2").unwrap();
    refused(txn.commit(), Conflict, "changed a key between 'a' and 'z' of column family 'default'");
    // A prefix deleted.
    let mut txn = begin(Isolation::Snapshot);
    txn.delete_prefix(f, b"ke").unwrap();
    db.put("key", "2").unwrap();
    refused(txn.commit(), Conflict, "changed a key between 'ke' and 'kf'");
    // A key that another transaction's range delete covers.
    let mut txn = begin(Isolation::Snapshot);
    txn.put(f, b"key", b"1").unwrap();
    db.delete_range("a".."z").unwrap();
    refused(txn.commit(), Conflict, "key 'key'");
    // A key read, a key not found, a key read for update, a range read.
    let read: [(Isolation, fn(&mut Transaction, &ColumnFamily), &str); 5] = [
        (Isolation::Serializable, |t, f| t.get(f, b"key").map(drop).unwrap(), "key 'key'"),
        (Isolation::Serializable, |t, f| drop(t.multi_get(f, &["key"])), "key 'key'"),
        (Isolation::ReadUncommitted, |t, f| t.get_for_update(f, b"key").map(drop).unwrap(), "key 'key'"),
        (Isolation::RepeatableRead, |t, f| t.get_for_share(f, b"key").map(drop).unwrap(), "key 'key'"),
        (
            Isolation::Serializable,
            |t, f| t.cursor(f, &b"k"[..]..=&b"l"[..]).unwrap().seek_to_first(),
            "between 'k' and 'l' of column family 'default'",
        ),
    ];
    for (level, read, says) in read {
        for flush in [false, true] {
            let mut txn = begin(level);
            read(&mut txn, f);
            txn.put(f, b"elsewhere", b"1").unwrap();
            db.put("key", "3").unwrap();
            db.delete("key").unwrap();
            if flush {
                db.flush().unwrap();
            }
            refused(txn.commit(), Conflict, says);
        }
    }
    // A key that was changed before it is read for update.
    let mut txn = begin(Isolation::Snapshot);
    db.put("key", "4").unwrap();
    refused(txn.get_for_update(f, b"key"), Conflict, "key 'key'");
    txn.put(f, b"other", b"1").unwrap();
    txn.commit().unwrap();
    // Locks of other transactions: for an optimistic commit, and for a request that does not wait.
    let mut holder = db.begin_with(locking(Isolation::ReadCommitted)).unwrap();
    holder.put(f, b"key", b"5").unwrap();
    let mut txn = begin(Isolation::ReadCommitted);
    txn.put(f, b"key", b"6").unwrap();
    refused(txn.commit(), Conflict, &format!("locked by transaction {}", holder.id()));
    let mut txn = db.begin_with(locking(Isolation::ReadCommitted)).unwrap();
    refused(txn.put(f, b"key", b"6"), Conflict, &format!("locked by transaction {}", holder.id()));
    refused(txn.delete_prefix(f, b"k"), Conflict, "locked by");
    refused(txn.lock_range(f, .., LockMode::Shared), Conflict, "locked by");
    txn.put(f, b"free", b"6").unwrap(); // a refused lock ends nothing
    txn.commit().unwrap();
    db.set_option("lock_timeout_ms", "0").unwrap();
    refused(db.put("key", "7"), ErrorKind::LockTimeout, &format!("transaction {}", holder.id()));
    let mut txn = db.begin_with(locking(Isolation::Snapshot).lock_timeout(None)).unwrap();
    refused(txn.put(f, b"key", b"7"), Conflict, "locked by");
    let patience = Some(Duration::from_millis(2));
    let mut txn = db.begin_with(locking(Isolation::Snapshot).lock_timeout(patience)).unwrap();
    refused(txn.get_for_share(f, b"key"), ErrorKind::LockTimeout, "\"key\"");
    holder.commit().unwrap();
}

#[test]
fn two_phase_commit_misused() {
    use ErrorKind::{Exists, Finished, InvalidArgument, NotFound};
    let db = open();
    let f = db.default_family();
    for options in modes() {
        let begin = || db.begin_with(options.clone()).unwrap();
        let mut txn = begin();
        txn.put(f, b"k", b"v").unwrap();
        refused(txn.prepare(b""), InvalidArgument, "");
        refused(txn.prepare(&[b'x'; 1025]), InvalidArgument, "at most 1024");
        txn.prepare(b"xid").unwrap();
        for (_, _, verb) in VERBS.iter().filter(|v| !v.0.starts_with("commit")) {
            refused(verb(&mut txn, f), Finished, "is prepared");
        }
        refused(db.commit_prepared(b"nobody"), NotFound, "no prepared transaction");
        refused(db.rollback_prepared(b"nobody"), NotFound, "no prepared transaction");
        refused(db.abort_transaction(txn.id()), NotFound, "running");
        let mut other = begin();
        other.put(f, b"other", b"v").unwrap();
        refused(other.prepare(b"xid"), Exists, "exists");
        other.put(f, b"more", b"v").unwrap();
        other.commit().unwrap(); // as before
        drop(txn);
        assert_eq!(db.recover_prepared().len(), 1, "dropped, but in doubt");
        db.commit_prepared(b"xid").unwrap();
        refused(db.commit_prepared(b"xid"), NotFound, "no prepared transaction");
        // Its own handle comes after it was resolved by name.
        let mut txn = begin();
        txn.put(f, b"k", b"w").unwrap();
        txn.prepare(b"xid").unwrap();
        db.rollback_prepared(b"xid").unwrap();
        refused(txn.commit(), NotFound, "no prepared transaction");
        refused(txn.rollback(), NotFound, "no prepared transaction");
        txn.reset().unwrap();
        txn.put(f, b"k", b"w").unwrap();
        txn.commit().unwrap();
        assert!(db.locks().is_empty() && db.transactions().is_empty());
    }
}

#[test]
fn a_read_only_transaction_refuses_writes() {
    let db = open();
    let f = db.default_family();
    for options in modes() {
        let mut txn = db.begin_with(options.read_only(true)).unwrap();
        for (name, does, verb) in VERBS {
            match does {
                Does::Write => refused(verb(&mut txn, f), ErrorKind::ReadOnly, "read-only"),
                Does::Read => verb(&mut txn, f).expect(name),
                Does::End => {}
            }
        }
        assert_eq!(txn.commit().unwrap(), 0);
    }
    assert_eq!(db.latest_sequence(), 0);
}

#[test]
fn families_and_snapshots_of_others() {
    let (db, other) = (open(), open());
    let f = db.default_family();
    let stranger = other.default_family();
    for options in modes() {
        let mut txn = db.begin_with(options.clone()).unwrap();
        for (_, _, verb) in VERBS.iter().filter(|v| v.1 != Does::End) {
            refused(verb(&mut txn, stranger), ErrorKind::InvalidArgument, "another database");
        }
        txn.put(f, b"k", b"v").unwrap();
        txn.commit().unwrap();
        let at = |snapshot| options.clone().snapshot(snapshot);
        refused(db.begin_with(at(other.snapshot())), ErrorKind::InvalidArgument, "another database");
        let reads_at_one = db.begin_with(at(db.snapshot())).is_ok();
        let locks_reads = options.isolation == Isolation::Serializable && options.locking;
        assert_eq!(reads_at_one, options.isolation >= Isolation::RepeatableRead && !locks_reads);
        if !reads_at_one {
            refused(db.begin_with(at(db.snapshot())), ErrorKind::InvalidArgument, "snapshot");
        }
    }
    let snapshot = db.snapshot();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    let at_one = ReadOptions::new().snapshot(&snapshot);
    refused(txn.cursor_with(f, at_one), ErrorKind::InvalidArgument, "snapshot");
}

#[test]
fn a_family_that_is_dropped_before_the_commit() {
    let db = open();
    let f = db.default_family();
    for options in modes() {
        let family = db.create_family("short-lived", FamilyOptions::default()).unwrap();
        let mut txn = db.begin_with(options).unwrap();
        txn.put(f, b"kept", b"v").unwrap();
        txn.set_savepoint("before").unwrap();
        txn.put(&family, b"k", b"v").unwrap();
        db.drop_family("short-lived").unwrap();
        refused(txn.commit(), ErrorKind::Closed, "'short-lived' was dropped");
        refused(txn.prepare(b"xid"), ErrorKind::Closed, "'short-lived' was dropped");
        for (_, _, verb) in VERBS.iter().filter(|v| v.1 != Does::End) {
            refused(verb(&mut txn, &family), ErrorKind::Closed, "'short-lived' was dropped");
        }
        assert_eq!(db.get("kept").unwrap().as_deref(), None, "no part of it");
        txn.rollback_to_savepoint("before").unwrap();
        txn.commit().unwrap();
        assert!(db.get("kept").unwrap().is_some());
        db.delete("kept").unwrap();
        assert!(db.locks().is_empty());
    }
}

#[test]
fn keys_and_ranges_that_cannot_be() {
    use ErrorKind::InvalidArgument as Invalid;
    let db = open();
    let f = db.default_family();
    let numbers = db.create_family_ordered("numbers", FamilyOptions::default(), kingtide::KeyOrder::U64).unwrap();
    for options in modes() {
        let locking = options.locking;
        let mut txn = db.begin_with(options).unwrap();
        refused(txn.put(f, b"", b"v"), Invalid, "empty key");
        refused(txn.put_ttl(f, b"", b"v", Duration::from_secs(1)), Invalid, "empty key");
        refused(txn.delete(f, b""), Invalid, "empty key");
        refused(txn.single_delete(f, b""), Invalid, "empty key");
        refused(txn.get_for_update(f, b""), Invalid, "empty key");
        refused(txn.get_for_share(f, b""), Invalid, "empty key");
        refused(txn.delete_range(f, b"b"..b"a"), Invalid, "sorts after");
        refused(txn.delete_range(f, "".."a"), Invalid, "empty");
        refused(txn.delete_range(f, "a"..""), Invalid, "empty");
        refused(txn.delete_prefix(&numbers, b"x"), Invalid, "does not support prefix iteration");
        txn.delete_range(f, b"k"..b"k").unwrap(); // nothing is in it
        assert_eq!(txn.get(f, b"").unwrap().as_deref(), None);
        if !locking {
            let range = txn.lock_range(f, .., LockMode::Exclusive);
            refused(range, Invalid, "without `locking`");
        }
        assert!(txn.is_empty(), "what was refused is not in the write set");
        txn.put(f, b"k", b"v").unwrap();
        txn.commit().unwrap();
    }
}

/// Four gigabytes that are never touched: the size is refused before the bytes are looked at.
#[test]
fn a_write_set_that_is_too_large() {
    let db = open();
    let f = db.default_family();
    let huge = vec![0; u32::MAX as usize];
    for options in modes() {
        let mut txn = db.begin_with(options).unwrap();
        txn.put(f, b"a", b"1").unwrap();
        refused(txn.put(f, b"huge", &huge), ErrorKind::InvalidArgument, "batch too large");
        assert_eq!(txn.get(f, b"huge").unwrap().as_deref(), None);
        txn.put(f, b"b", b"2").unwrap();
        txn.commit().unwrap();
        assert_eq!((db.get("a").unwrap().is_some(), db.get("huge").unwrap().is_some()), (true, false));
    }
}

#[test]
fn a_closed_database() {
    for options in modes() {
        let db = open();
        let f = db.default_family().clone();
        db.put("k", "v").unwrap();
        let mut txn = db.begin_with(options.clone()).unwrap();
        let mut other = db.begin_with(options.clone()).unwrap();
        other.put(&f, b"other", b"v").unwrap();
        txn.put(&f, b"mine", b"v").unwrap();
        db.close().unwrap();
        for (name, _, verb) in VERBS.iter().filter(|v| !v.0.contains("savepoint")) {
            let e = verb(&mut txn, &f).expect_err(name);
            assert_eq!(e.kind(), ErrorKind::Closed, "{name}: {e}");
        }
        refused(db.begin_with(options), ErrorKind::Closed, "closed");
        txn.rollback().unwrap();
        refused(txn.reset(), ErrorKind::Closed, "closed");
        drop(db);
        drop((txn, other));
    }
}

/// A moment that merges have passed cannot be begun at, and says so.
#[test]
fn a_moment_that_is_gone() {
    let db = open();
    db.put("k", "1").unwrap();
    let old = db.latest_sequence();
    db.put("k", "2").unwrap();
    db.compact().unwrap();
    refused(db.snapshot_at(old), ErrorKind::TooOld, "can no longer be read");
    let held = db.snapshot();
    db.put("k", "3").unwrap();
    db.compact().unwrap();
    let snapshot = Some(db.snapshot_at(held.sequence()).unwrap());
    let mut txn = db.begin_with(TransactionOptions::new(Isolation::Snapshot).snapshot(snapshot)).unwrap();
    assert_eq!(txn.get(db.default_family(), b"k").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn iterators_end_with_their_transaction() {
    let db = open();
    let f = db.default_family();
    db.put("a", "1").unwrap();
    db.put("b", "2").unwrap();
    let ends: [(ErrorKind, fn(&mut Transaction)); 4] = [
        (ErrorKind::Finished, |t| t.commit().map(drop).unwrap()),
        (ErrorKind::Finished, |t| t.rollback().unwrap()),
        (ErrorKind::Aborted, |t| t.handle().abort().unwrap()),
        (ErrorKind::Finished, |t| t.reset().unwrap()),
    ];
    for options in modes() {
        for (kind, end) in ends {
            let mut txn = db.begin_with(options.clone()).unwrap();
            let mut it = txn.cursor(f, ..).unwrap();
            it.seek_to_first();
            assert!(it.valid());
            end(&mut txn);
            it.next();
            assert!(!it.valid() && it.key().is_empty());
            refused(it.status(), kind, &txn_of(&it));
            refused(it.value().map(drop), kind, "");
            refused(it.entry().map(drop), kind, "");
            it.seek(b"a");
            it.seek_for_prev(b"a");
            it.seek_to_last();
            it.prev();
            assert!(!it.valid());
        }
        let mut it = db.begin_with(options).unwrap().cursor(f, ..).unwrap(); // dropped at once
        it.seek_to_first();
        refused(it.status(), ErrorKind::Finished, "");
    }
}

/// How messages call the iterator's transaction.
fn txn_of(it: &kingtide::TransactionCursor) -> String {
    let text = format!("{it:?}");
    let id: String = text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    format!("transaction {id}")
}

/// Bytes that nothing compresses.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|i| mix64(i ^ seed << 32).to_le_bytes()).collect()
}

#[test]
fn a_full_disk_ends_no_transaction() {
    for options in modes() {
        let fs = MemFs::new();
        let mut open = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
        open.set("wal_segment_size", "1M").unwrap();
        let db = Db::open("/db", open).unwrap();
        let f = db.default_family();
        let mut txn = db.begin_with(options).unwrap();
        txn.put(f, b"first", b"v").unwrap();
        fs.set_capacity(Some(0)); // not even the first log segment
        refused(txn.commit(), ErrorKind::NoSpace, "");
        refused(txn.prepare(b"xid"), ErrorKind::NoSpace, "");
        assert_eq!(db.get("first").unwrap().as_deref(), None);
        fs.set_capacity(None);
        txn.commit().unwrap();
        fs.set_capacity(Some(0)); // what has been allocated is there, and then no more
        let mut committed = 0;
        let full = loop {
            txn.reset().unwrap();
            txn.put(f, b"large", &noise(300_000, committed)).unwrap();
            match txn.commit() {
                Ok(_) => committed += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
        assert_eq!(txn.get(f, b"large").unwrap().as_deref(), Some(&noise(300_000, committed)[..]), "its own");
        let before = (committed > 0).then(|| noise(300_000, committed - 1));
        assert_eq!(db.get("large").unwrap().as_deref(), before.as_deref());
        fs.set_capacity(None);
        txn.commit().unwrap();
        assert_eq!(db.get("large").unwrap().as_deref(), Some(&noise(300_000, committed)[..]));
        assert!(db.locks().is_empty() && db.transactions().is_empty());
    }
}

/// What transactions hold is counted and limited, and is given back however they end.
#[test]
fn memory_is_counted_and_given_back() {
    let db = open();
    let f = db.default_family();
    let used = || db.stats().get("transaction_bytes").unwrap();
    let before = 0;
    assert_eq!(used(), before);
    let value = noise(100_000, 1);
    let ends: [fn(Transaction); 5] = [
        drop,
        |mut t| t.rollback().unwrap(),
        |mut t| t.reset().unwrap(),
        |t| t.handle().abort().unwrap(),
        |mut t| {
            t.handle().abort().unwrap();
            t.reset().unwrap();
        },
    ];
    for options in modes() {
        for end in ends {
            let mut txn = db.begin_with(options.clone()).unwrap();
            for i in 0..20u8 {
                txn.put(f, &[i + 1], &value).unwrap();
            }
            assert!(used() >= before + 2_000_000, "{} of {before}", used());
            end(txn);
            assert_eq!(used(), before);
        }
    }
    // Aborted, the memory is free although its owner has not noticed.
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(f, b"large", &noise(1_000_000, 2)).unwrap();
    assert!(used() >= before + 1_000_000);
    db.abort_transaction(txn.id()).unwrap();
    assert_eq!(used(), before);
    drop(txn);
    assert_eq!(used(), before);
    // Past the limit only the large ones are refused.
    db.set_option("transaction_memory", "1M").unwrap();
    let (mut large, mut small) = (db.begin(Isolation::Snapshot).unwrap(), db.begin(Isolation::Snapshot).unwrap());
    large.put(f, b"large", &noise(2_000_000, 2)).unwrap();
    let e = large.put(f, b"more", b"1").unwrap_err();
    assert_eq!((e.kind(), large.len()), (ErrorKind::Busy, 1), "{e}");
    small.put(f, b"small", b"1").unwrap();
    small.commit().unwrap();
    db.put("plain", "1").unwrap();
    large.commit().unwrap();
    large.reset().unwrap();
    large.put(f, b"large", b"2").unwrap();
    drop((large, small));
    // Back at a savepoint, there is room again for what is small.
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(f, b"before", &noise(100_000, 3)).unwrap();
    let held = used();
    for round in 0..3u64 {
        txn.set_savepoint("statement").unwrap();
        let refused = (0..100_000u32).find_map(|i| txn.put(f, &i.to_be_bytes(), &noise(1000, round)).err()).unwrap();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(txn.get(f, &7u32.to_be_bytes()).unwrap().is_some());
        txn.rollback_to_savepoint("statement").unwrap();
        assert!(used() <= held + (256 << 10), "{} of {held}", used());
        assert!(txn.get(f, &7u32.to_be_bytes()).unwrap().is_none());
        txn.put(f, &[round as u8 + 1], b"small").unwrap();
    }
    txn.commit().unwrap();
    assert_eq!(used(), before);
    assert_eq!(f.get(b"before").unwrap().unwrap().len(), 100_000);
    assert!((1..=3u8).all(|i| f.get([i]).unwrap().is_some()));
    db.set_option("transaction_memory", "1G").unwrap();
    // Keys and ranges read.
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    for i in 0..20_000u32 {
        txn.get(f, format!("a key that is not so short {i}").as_bytes()).unwrap();
    }
    assert!(used() >= before + 20_000 * 27, "{} of {before}", used());
    drop(txn);
    assert_eq!(used(), before);
}

/// A thread aborts whatever runs, while the owner begins again at once, in the same memory: what was begun after is not
/// touched by the end of what was before.
#[test]
fn an_abort_does_not_reach_the_next_transaction() {
    let rounds = if kingtide_testkit::full() { 200_000 } else { 20_000 };
    let db = open();
    let f = db.default_family();
    let (done, running) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&done);
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = db.abort_transaction(running.load(Ordering::Relaxed));
            }
        });
        let (mut committed, mut aborted) = (0, 0);
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        let mut i = 0u64;
        while i < rounds || aborted < 20 {
            i += 1;
            running.store(if i.is_multiple_of(2) { txn.id() } else { 0 }, Ordering::Relaxed);
            let value = i.to_string();
            match txn.put(f, b"k", value.as_bytes()).and_then(|()| txn.commit()) {
                Ok(seq) => {
                    committed += 1;
                    assert_eq!((seq, db.latest_sequence()), (committed, committed), "a commit without its writes");
                    assert_eq!(db.get("k").unwrap().as_deref(), Some(value.as_bytes()));
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Aborted, "{e}");
                    aborted += 1;
                }
            }
            txn.reset().unwrap();
        }
        drop(end);
        assert!(committed > 0);
    });
}

/// What was read of a family must still be so at the commit. Once the family is dropped, that cannot be checked.
#[test]
fn a_family_that_was_read_and_dropped_is_a_conflict() {
    for scan in [false, true] {
        let db = open();
        let gone = db.create_family("gone", FamilyOptions::default()).unwrap();
        let mut txn = db.begin(Isolation::Serializable).unwrap();
        if scan {
            let mut it = txn.cursor(&gone, ..).unwrap();
            it.seek_to_first();
            assert!(!it.valid());
        } else {
            assert!(txn.get(&gone, b"x").unwrap().is_none());
        }
        txn.put(db.default_family(), b"y", b"1").unwrap();
        let mut other = db.begin(Isolation::Serializable).unwrap();
        assert!(other.get(db.default_family(), b"y").unwrap().is_none());
        other.put(&gone, b"x", b"1").unwrap();
        other.commit().unwrap();
        db.drop_family("gone").unwrap();
        let e = txn.commit().expect_err("write skew");
        assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    }
}

/// An order whose comparisons panic when they are told to.
struct Panicky(AtomicBool);

impl CustomOrder for Panicky {
    fn name(&self) -> &str {
        "panicky"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        assert!(!self.0.load(Ordering::SeqCst), "told to");
        a.cmp(b)
    }

    fn head(&self, _: &[u8]) -> u64 {
        0
    }
}

/// A key order that panics amid a commit leaves nothing of the transaction behind: no lock, no pin, no watch.
#[test]
fn a_panic_amid_a_commit_leaks_nothing() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let db = open();
        let order = Arc::new(Panicky(AtomicBool::new(false)));
        let family =
            db.create_family_ordered("panicky", FamilyOptions::default(), KeyOrder::Custom(order.clone())).unwrap();
        family.put(b"a", b"1").unwrap();
        let mut txn = db.begin(isolation).unwrap();
        let mut it = txn.cursor(&family, ..).unwrap();
        it.seek_to_first();
        assert!(it.valid());
        txn.put(&family, b"a", b"2").unwrap();
        family.put(b"a", b"3").unwrap();
        order.0.store(true, Ordering::SeqCst);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| txn.commit().map(|_| ())));
        assert!(outcome.is_err(), "{outcome:?}");
        order.0.store(false, Ordering::SeqCst);
        assert_eq!(txn.get(&family, b"a").unwrap_err().kind(), ErrorKind::Finished);
        drop((it, txn));
        assert!(db.transactions().is_empty(), "{:?}", db.transactions());
        assert_eq!(family.get(b"a").unwrap().as_deref(), Some(&b"3"[..]));
    }
}

/// In an order in which the empty string is the last one, all keys behind the start would be locked.
#[test]
fn a_range_delete_that_is_refused_locks_nothing() {
    let db = open();
    let f = db.create_family_ordered("reverse", FamilyOptions::default(), KeyOrder::Reverse).unwrap();
    for isolation in Isolation::ALL {
        let mut holder = db.begin_with(locking(isolation)).unwrap();
        holder.put(&f, b"a", b"1").unwrap();
        let mut t = db.begin_with(locking(isolation)).unwrap();
        assert_eq!(t.delete_range(&f, "m".."").unwrap_err().kind(), ErrorKind::InvalidArgument, "{isolation}");
        assert_eq!(t.delete_range(&f, "m"..="").unwrap_err().kind(), ErrorKind::InvalidArgument, "{isolation}");
        holder.rollback().unwrap();
        assert_eq!(t.delete_range(&f, "m".."").unwrap_err().kind(), ErrorKind::InvalidArgument, "{isolation}");
        assert!(db.locks().is_empty(), "{isolation}: {:?}", db.locks());
    }
}

/// A timeout of a transaction's own is exact for its iterators too, without a sweep and without another call.
#[test]
fn an_iterator_ends_with_its_transactions_time() {
    let (clock, db) = open_timeless();
    let f = db.default_family();
    for key in ["a", "b", "c"] {
        db.put(key, "v").unwrap();
    }
    for options in modes().filter(|options| !options.locking) {
        let mut t = db.begin_with(options.timeout(Duration::from_secs(10))).unwrap();
        let mut it = t.cursor(f, ..).unwrap();
        let mut entries = t.iter(f);
        assert!(entries.next().unwrap().is_ok() && entries.next_back().unwrap().is_ok());
        it.seek_to_first();
        clock.advance(Duration::from_secs(9));
        it.next();
        assert_eq!(it.key(), b"b");
        clock.advance(Duration::from_secs(1));
        it.next();
        assert!(!it.valid());
        assert_eq!(it.status().unwrap_err().kind(), ErrorKind::Expired);
        assert_eq!(entries.next().unwrap().unwrap_err().kind(), ErrorKind::Expired);
        assert!(db.transactions().is_empty());
    }
}
