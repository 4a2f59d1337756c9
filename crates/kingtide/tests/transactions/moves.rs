//! The snapshot of a locking transaction at the snapshot level moves when the transaction locks a key that was changed since, and stays once
//! something depends on it that no lock keeps unchanged. Wherever it is in the end, all reads are of that one moment.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, Db, ErrorKind, FamilyOptions, Isolation, LockMode, Options, PinnedValue, ReadOptions, Result,
    Transaction, TransactionOptions, WriteBatch,
};
use kingtide_base::rng::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn open() -> Db {
    let db = Db::open("/db", Options::new().fs(MemFs::shared()).manual_jobs(true)).unwrap();
    for key in ["a", "b", "b2", "w", "x"] {
        db.put(key, "old").unwrap();
    }
    db
}

fn locking(isolation: Isolation) -> TransactionOptions {
    TransactionOptions::new(isolation).locking(true).lock_timeout(Duration::ZERO)
}

fn begin(db: &Db) -> Transaction {
    db.begin_with(locking(Isolation::Snapshot)).unwrap()
}

fn text(value: Option<PinnedValue>) -> String {
    value.map_or("-".into(), |v| String::from_utf8(v.to_vec()).unwrap())
}

/// What another commits: the key that the transaction locks next, and one that it only reads, together.
fn change(db: &Db) {
    let mut batch = WriteBatch::new();
    for key in ["b", "x"] {
        batch.put(db.default_family(), key.as_bytes(), b"new").unwrap();
    }
    db.write(batch).unwrap();
}

type Step = (&'static str, fn(&mut Transaction, &ColumnFamily) -> Result<()>);

/// Every way to lock the changed key, with what a read under the lock must find.
const LOCKS: &[Step] = &[
    ("get_for_update", |t, f| t.get_for_update(f, b"b").map(|v| assert_eq!(text(v), "new"))),
    ("get_for_share", |t, f| t.get_for_share(f, b"b").map(|v| assert_eq!(text(v), "new"))),
    ("contains_for_share", |t, f| t.contains_for_share(f, b"b").map(|found| assert!(found))),
    ("get_reader_for_update", |t, f| {
        let mut reader = t.get_reader_for_update(f, b"b")?.unwrap();
        assert_eq!(reader.read_range(0..10)?, b"new");
        Ok(())
    }),
    ("multi_get_for_update", |t, f| {
        let found: Result<Vec<_>> = t.multi_get_for_update(f, &["a", "b", "absent"]).into_iter().collect();
        assert_eq!(found?.into_iter().map(text).collect::<Vec<_>>(), ["old", "new", "-"]);
        Ok(())
    }),
    ("a lock, and a read later", |t, f| {
        t.lock(f, b"b", LockMode::Exclusive)?;
        t.get_for_share(f, b"b").map(|v| assert_eq!(text(v), "new"))
    }),
    ("put", |t, f| t.put(f, b"b", b"mine")),
    ("delete", |t, f| t.delete(f, b"b")),
    ("delete_range", |t, f| t.delete_range(f, b"b"..b"c")),
    ("delete_range through", |t, f| t.delete_range(f, "a2"..="b")),
    ("delete_prefix", |t, f| t.delete_prefix(f, b"b")),
];

/// What does not fix the snapshot.
const FREE: &[Step] = &[
    ("nothing", |_, _| Ok(())),
    ("get_for_update", |t, f| t.get_for_update(f, b"w").map(drop)),
    ("get_for_share", |t, f| t.get_for_share(f, b"absent too").map(drop)),
    ("multi_get_for_share", |t, f| {
        t.multi_get_for_share(f, &["w", "absent too"]).into_iter().try_for_each(|v| v.map(drop))
    }),
    ("a write", |t, f| t.put(f, b"w", b"mine")),
    ("a read of what it wrote", |t, f| {
        t.put(f, b"w", b"mine")?;
        t.delete_range(f, b"y"..b"z")?;
        assert_eq!((text(t.get(f, b"w")?), text(t.get(f, b"y")?)), ("mine".into(), "-".into()));
        t.multi_get(f, &["w", "y"]).into_iter().try_for_each(|v| v.map(drop))
    }),
    ("locks", |t, f| {
        t.lock(f, b"w", LockMode::Shared)?;
        t.lock_range(f, b"w"..b"x", LockMode::Exclusive)
    }),
    ("a rollback to a savepoint", |t, f| {
        t.set_savepoint("s")?;
        t.put(f, b"w", b"mine")?;
        t.get_for_update(f, b"w2")?;
        t.rollback_to_savepoint("s")
    }),
    ("a lock that is not released", |t, f| {
        t.put(f, b"w", b"mine")?;
        assert!(!t.unlock_last()?);
        Ok(())
    }),
];

/// What fixes it.
const FIXED: &[Step] = &[
    ("get", |t, f| t.get(f, b"a").map(drop)),
    ("get of an absent key", |t, f| t.get(f, b"absent").map(drop)),
    ("get of a locked key", |t, f| t.get_for_update(f, b"a").and_then(|_| t.get(f, b"a")).map(drop)),
    ("contains_key", |t, f| t.contains_key(f, b"a").map(drop)),
    ("get_reader", |t, f| t.get_reader(f, b"a").map(drop)),
    ("multi_get", |t, f| t.multi_get(f, &["a"]).remove(0).map(drop)),
    ("multi_get of an own key and another", |t, f| {
        t.put(f, b"w", b"mine")?;
        t.multi_get(f, &["w", "a"]).into_iter().try_for_each(|v| v.map(drop))
    }),
    ("a cursor", |t, f| {
        let mut cursor = t.cursor(f, ..)?;
        cursor.seek(b"a");
        cursor.status()
    }),
    ("a cursor that was not placed", |t, f| t.cursor_with(f, ReadOptions::default()).map(drop)),
    ("a cursor over a locked range", |t, f| {
        t.lock_range(f, b"a"..b"b", LockMode::Shared)?;
        t.cursor(f, b"a"..b"b").map(drop)
    }),
    ("range", |t, f| t.range(f, b"a"..b"b").try_for_each(|e| e.map(drop))),
    ("first", |t, f| t.first(f).map(drop)),
    ("a reader of the family", |t, f| t.of(f).get(b"a").map(drop)),
    ("a range delete that looks for its end", |t, f| t.delete_range(f, b"y"..)),
    ("a lock that is released", |t, f| {
        t.get_for_update(f, b"a")?;
        assert!(t.unlock_last()?);
        Ok(())
    }),
    ("changed_since_snapshot", |t, f| t.changed_since_snapshot(f, b"a").map(|changed| assert!(!changed))),
    ("snapshot_sequence", |t, f| t.get_for_update(f, b"a").map(|_| assert!(t.snapshot_sequence() > 0))),
];

/// What happens to the data between the steps: it stays in the memtable, or is flushed and merged, so that only what a snapshot keeps is left.
fn between(db: &Db, merged: bool) {
    if merged {
        db.compact().unwrap();
        while db.run_one_job().unwrap() {}
    }
}

#[test]
fn a_snapshot_moves_to_a_changed_key_and_reads_one_moment() {
    for merged in [false, true] {
        for (free, before) in FREE {
            for (locks, lock) in LOCKS {
                let what = format!("{free}, then {locks}, merged: {merged}");
                let db = open();
                let f = db.default_family();
                let mut txn = begin(&db);
                txn.get_for_update(f, b"first").unwrap();
                before(&mut txn, f).unwrap_or_else(|e| panic!("{what}: {e}"));
                between(&db, merged);
                change(&db);
                between(&db, merged);
                lock(&mut txn, f).unwrap_or_else(|e| panic!("{what}: {e}"));
                db.put("x", "newer").unwrap();
                between(&db, merged);
                assert_eq!(text(txn.get(f, b"x").unwrap()), "new", "{what}: not the moment of the other read");
                assert_eq!(text(txn.get_for_update(f, b"first").unwrap()), "-", "{what}");
                assert_eq!(txn.get_for_update(f, b"x").unwrap_err().kind(), ErrorKind::Conflict, "{what}");
                txn.commit().unwrap();
            }
        }
    }
}

#[test]
fn a_fixed_snapshot_does_not_move() {
    for merged in [false, true] {
        for (fixed, before) in FIXED {
            for (locks, lock) in LOCKS {
                let what = format!("{fixed}, then {locks}, merged: {merged}");
                let db = open();
                let f = db.default_family();
                let mut txn = begin(&db);
                txn.get_for_update(f, b"first").unwrap();
                before(&mut txn, f).unwrap_or_else(|e| panic!("{what}: {e}"));
                change(&db);
                between(&db, merged);
                let refused = lock(&mut txn, f).expect_err(&what);
                assert_eq!(refused.kind(), ErrorKind::Conflict, "{what}: {refused}");
                assert!(refused.to_string().contains("changed"), "{what}: {refused}");
                assert_eq!(text(txn.get(f, b"x").unwrap()), "old", "{what}: not the moment of the other read");
                txn.rollback().unwrap();
                // The next transaction in the same object is not bound by this one.
                txn.reset().unwrap();
                txn.get_for_update(f, b"first").unwrap();
                change(&db);
                lock(&mut txn, f).unwrap_or_else(|e| panic!("{what}, reset: {e}"));
            }
        }
    }
}

/// A caller that begins at a snapshot of its own goes on reading there.
#[test]
fn a_snapshot_that_was_given_does_not_move() {
    for (locks, lock) in LOCKS {
        let db = open();
        let f = db.default_family();
        let mut txn = db.begin_with(locking(Isolation::Snapshot).snapshot(db.snapshot())).unwrap();
        change(&db);
        assert_eq!(lock(&mut txn, f).expect_err(locks).kind(), ErrorKind::Conflict, "{locks}");
        assert_eq!(text(txn.get(f, b"x").unwrap()), "old", "{locks}");
        txn.reset().unwrap();
        assert_eq!(lock(&mut txn, f).expect_err(locks).kind(), ErrorKind::Conflict, "{locks}, reset");
    }
}

/// As in RocksDB. A lock that it had before stays, and so does that of a range.
#[test]
fn a_key_that_was_changed_is_not_locked_by_the_call_that_is_refused() {
    const CALLS: &[Step] = &[
        ("get_for_update", |t, f| t.get_for_update(f, b"b").map(drop)),
        ("get_for_share", |t, f| t.get_for_share(f, b"b").map(drop)),
        ("put", |t, f| t.put(f, b"b", b"mine")),
        ("delete", |t, f| t.delete(f, b"b")),
    ];
    for (name, call) in CALLS {
        let db = open();
        let f = db.default_family();
        let mut txn = begin(&db);
        txn.get(f, b"x").unwrap();
        txn.put(f, b"a", b"mine").unwrap();
        change(&db);
        for _ in 0..2 {
            assert_eq!(call(&mut txn, f).expect_err(name).kind(), ErrorKind::Conflict);
            assert_eq!(db.locks().len(), 1, "{name}: {:?}", db.locks());
            assert!(!txn.unlock_last().unwrap(), "{name}");
            begin(&db).lock(f, b"b", LockMode::Exclusive).unwrap();
        }
        txn.lock(f, b"b", LockMode::Shared).unwrap();
        assert_eq!(call(&mut txn, f).expect_err(name).kind(), ErrorKind::Conflict);
        assert!(begin(&db).lock(f, b"b", LockMode::Exclusive).unwrap_err().is_lock_held(), "{name}");
        txn.commit().unwrap();
        assert!(db.locks().is_empty());
        assert_eq!(text(db.get("b").unwrap()) + &text(db.get("a").unwrap()), "newmine");
    }
}

/// Before the first operation there is no snapshot that could be given out. After it, a caller can open the same moment elsewhere, which
/// stays readable.
#[test]
fn a_sequence_number_is_that_of_the_reads_once_it_was_asked_for() {
    let db = open();
    let f = db.default_family();
    let mut txn = begin(&db);
    let begun = txn.snapshot_sequence();
    assert_eq!(begun, db.latest_sequence());
    txn.get_for_update(f, b"first").unwrap();
    change(&db);
    txn.get_for_update(f, b"b").unwrap();
    let moved = txn.snapshot_sequence();
    assert_eq!(moved, db.latest_sequence());
    assert!(moved > begun);
    db.put("x", "newer").unwrap();
    db.put("w", "newer").unwrap();
    between(&db, true);
    assert_eq!(txn.get_for_update(f, b"w").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(txn.snapshot_sequence(), moved);
    assert_eq!(text(db.snapshot_at(moved).unwrap().get(f, "x").unwrap()), "new");
    assert_eq!(text(txn.get(f, b"x").unwrap()), "new");
}

/// A lock that was refused showed nothing.
#[test]
fn a_refused_lock_does_not_fix_the_snapshot() {
    let db = open();
    let f = db.default_family();
    let (mut txn, mut other) = (begin(&db), begin(&db));
    txn.get_for_update(f, b"first").unwrap();
    other.put(f, b"b", b"new").unwrap();
    assert!(txn.get_for_update(f, b"b").unwrap_err().is_lock_held());
    let found = txn.multi_get_for_share(f, &["a", "b"]);
    assert!(found[0].is_ok() && found[1].as_ref().unwrap_err().is_lock_held());
    other.commit().unwrap();
    assert_eq!(text(txn.get_for_update(f, b"b").unwrap()), "new");
}

/// Keys that are locked together are read as of one moment, although one of them moved the snapshot and another one before it did not.
#[test]
fn keys_locked_together_are_of_one_moment() {
    let db = open();
    let f = db.default_family();
    let mut txn = begin(&db);
    txn.get_for_update(f, b"first").unwrap();
    db.put("b", "new").unwrap();
    db.put("x", "new").unwrap();
    db.put("w", "new").unwrap();
    let found = txn.multi_get_for_update(f, &["x", "a", "b", "absent"]);
    assert_eq!(found.into_iter().map(|v| text(v.unwrap())).collect::<Vec<_>>(), ["new", "old", "new", "-"]);
    assert_eq!(text(txn.get(f, b"w").unwrap()), "new");
}

/// Of a family that was dropped, a later moment shows nothing, so what was read there binds the transaction to its moment.
#[test]
fn a_snapshot_does_not_move_over_the_drop_of_a_family() {
    let db = open();
    let f = db.default_family();
    let other = db.create_family("other", FamilyOptions::default()).unwrap();
    other.put("k", "v").unwrap();
    let mut txn = begin(&db);
    assert_eq!(text(txn.get_for_update(&other, b"k").unwrap()), "v");
    db.drop_family("other").unwrap();
    change(&db);
    assert_eq!(txn.get_for_update(f, b"b").unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(text(txn.get(f, b"x").unwrap()), "old");
    // After a restart it has no locks there.
    txn.reset().unwrap();
    txn.get_for_update(f, b"first").unwrap();
    change(&db);
    assert_eq!(text(txn.get_for_update(f, b"b").unwrap()), "new");
}

/// It has no locks in that family. The snapshot may be of the moment before the drop, or of one after it with the same sequence number.
#[test]
fn a_snapshot_moves_over_the_drop_of_a_family_that_was_not_read() {
    for is_older in [true, false] {
        let db = open();
        let f = db.default_family();
        db.create_family("other", FamilyOptions::default()).unwrap().put("k", "v").unwrap();
        let mut txn = begin(&db);
        if is_older {
            txn.get_for_update(f, b"first").unwrap();
        }
        db.drop_family("other").unwrap();
        txn.get_for_update(f, b"second").unwrap();
        change(&db);
        assert_eq!(text(txn.get_for_update(f, b"b").unwrap()), "new", "older: {is_older}");
        assert_eq!(text(txn.get(f, b"x").unwrap()), "new");
    }
}

/// Repeatable read does not check writes: its locking reads see the newest values, and its plain reads the beginning. An optimistic transaction
/// is refused at once, because what it has read is not locked.
#[test]
fn other_levels_read_as_before() {
    let db = open();
    let f = db.default_family();
    let mut txn = db.begin_with(locking(Isolation::RepeatableRead)).unwrap();
    txn.get_for_update(f, b"first").unwrap();
    change(&db);
    assert_eq!(text(txn.get_for_update(f, b"b").unwrap()), "new");
    assert_eq!(text(txn.get(f, b"x").unwrap()), "old");
    txn.rollback().unwrap();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = db.begin(isolation).unwrap();
        txn.get_for_update(f, b"first").unwrap();
        change(&db);
        assert_eq!(txn.get_for_update(f, b"b").unwrap_err().kind(), ErrorKind::Conflict);
        txn.put(f, b"b", b"mine").unwrap();
        assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
    }
}

/// Transactions that read only under locks meet no conflict, whatever the order in which they take them: only deadlocks. No increment is lost,
/// and a plain read at the end sees the moment of all of them: the counters of one commit.
#[test]
fn transactions_that_read_under_locks_have_no_conflicts() {
    const KEYS: u64 = 6;
    let db = Db::open("/db", Options::new().fs(MemFs::shared()).memtable_size(64 << 10)).unwrap();
    let (rounds, done) = (if kingtide_testkit::full() { 20_000 } else { 400 }, AtomicBool::new(false));
    let number = |v: Option<PinnedValue>| v.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
    // Adds to three counters, and to their sum, in random order.
    let add = |txn: &mut Transaction, f: &ColumnFamily, rng: &mut Rng| -> Result<()> {
        let from = rng.below(KEYS);
        let mut keys = [(from, 1), ((from + 1) % KEYS, 1), ((from + 2) % KEYS, 1), (KEYS, 3)];
        for left in (1..keys.len()).rev() {
            keys.swap(left, rng.below(left as u64 + 1) as usize);
        }
        for (key, more) in keys {
            let key = key.to_be_bytes();
            let next = number(txn.get_for_update(f, &key)?) + more;
            txn.put(f, &key, &next.to_le_bytes())?;
        }
        if rng.one_in(2) {
            let all: Vec<u64> = (0..=KEYS).map(|k| txn.get(f, &k.to_be_bytes()).map(number)).collect::<Result<_>>()?;
            assert_eq!(all[..KEYS as usize].iter().sum::<u64>(), all[KEYS as usize], "not of one moment");
        }
        txn.commit().map(drop)
    };
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (db, add) = (&db, &add);
                s.spawn(move || {
                    let (mut rng, f) = (Rng::new(thread), db.default_family());
                    let patient = locking(Isolation::Snapshot).lock_timeout(Duration::from_secs(600));
                    let mut txn = db.begin_with(patient).unwrap();
                    for _ in 0..rounds {
                        while let Err(e) = add(&mut txn, f, &mut rng) {
                            assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
                            txn.reset().unwrap();
                        }
                        txn.reset().unwrap();
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                db.flush().unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|r| r.unwrap());
    });
    assert_eq!(number(db.get(KEYS.to_be_bytes()).unwrap()), 4 * rounds * 3);
    let stats = db.stats();
    println!("{:?} deadlocks, {:?} conflicts", stats.get("deadlocks"), stats.get("transaction_conflicts"));
    assert_eq!(stats.get("transaction_conflicts"), Some(0));
}
