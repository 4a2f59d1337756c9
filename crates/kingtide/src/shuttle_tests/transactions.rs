//! Transactions beside each other, beside plain writes, and beside flushes and merges.

use super::world::*;
use crate::{ColumnFamily, Db, Error, ErrorKind, Isolation, Snapshot, Transaction, TransactionOptions, WriteOptions};
use kingtide_testkit::scenarios;
use shuttle::rand::{Rng, thread_rng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex as StdMutex;

scenarios! {
    /// Money moves between accounts and is never made, at every level that promises it.
    shuttle_transfers_keep_the_sum => transfers;
    /// A snapshot that moves to a key which was changed shows one moment, whatever the transaction did before.
    shuttle_snapshots_that_move => moving_snapshots;
    /// Serializable transactions that read what the other writes: one of them is refused.
    shuttle_write_skew_is_refused => write_skew;
    /// Two transactions that each insert what the other found absent.
    shuttle_phantoms_are_refused => phantoms;
    /// A transaction never commits over a plain write that it has not seen.
    shuttle_validation_beside_plain_writes => plain_writes;
    /// A transaction's snapshot keeps its versions, whatever is merged while it is being registered.
    shuttle_transactions_keep_their_versions => pinned;
    /// Prepared transactions resolved by two threads at once beside plain writes and flushes.
    shuttle_prepared_beside_plain_writes => prepared;
    /// A prepared transaction resolved by its name while its owner is still at it, and then uses the object again.
    shuttle_prepared_resolved_beside_the_owner => resolved_beside_the_owner;
    /// A prepared transaction survives a kill at any moment, and so does its end.
    shuttle_prepared_survive_kills => prepared_kills;
    /// Reads of what others have not committed show only what was written, and miss nothing while it is committed.
    shuttle_uncommitted_reads => uncommitted;
    /// Commits in an order, durable later.
    shuttle_ordered_commits => ordered;
}

/// Bounds retries, so that a schedule in which no thread makes progress fails instead of going on.
const MOST_RETRIES: usize = 200;

pub(super) fn pick<T: Clone>(of: &[T]) -> T {
    of[thread_rng().gen_range(0..of.len())].clone()
}

pub(super) fn options(isolation: Isolation, locking: bool) -> TransactionOptions {
    TransactionOptions { isolation, locking, ..TransactionOptions::default() }
}

pub(super) fn read(txn: &mut Transaction, family: &ColumnFamily, key: &str) -> Result<u32, Error> {
    Ok(txn.get(family, key.as_bytes())?.map_or(0, |v| meaning(&v)))
}

pub(super) fn read_for_update(txn: &mut Transaction, family: &ColumnFamily, key: &str) -> Result<u32, Error> {
    Ok(txn.get_for_update(family, key.as_bytes())?.map_or(0, |v| meaning(&v)))
}

pub(super) fn write(txn: &mut Transaction, family: &ColumnFamily, key: &str, n: u32) -> Result<(), Error> {
    txn.put(family, key.as_bytes(), &value(n))
}

/// Runs a transaction until it commits.
pub(super) fn retry(
    db: &Db,
    options: &TransactionOptions,
    mut body: impl FnMut(&mut Transaction, &ColumnFamily) -> Result<(), Error>,
) {
    let family = db.default_family();
    let mut txn = db.begin_with(options.clone()).expect("begin");
    let mut last = None;
    for _ in 0..MOST_RETRIES {
        match body(&mut txn, family).and_then(|()| txn.commit()) {
            Ok(_) => return,
            Err(e) if e.is_transient_conflict() => {
                txn.reset().expect("reset");
                last = Some(e);
                // A commit that is about to be published refuses others before they wait for it: let it go on.
                shuttle::thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no commit after {MOST_RETRIES} tries: {last:?}");
}

fn transfers() {
    let (how, by_update) = pick(&[
        (options(Isolation::Snapshot, false), false),
        (options(Isolation::Serializable, false), false),
        (options(Isolation::Snapshot, true), false),
        (options(Isolation::Serializable, true), false),
        (options(Isolation::Snapshot, true), true),
        (options(Isolation::ReadCommitted, false), true),
        (options(Isolation::ReadCommitted, true), true),
        (options(Isolation::RepeatableRead, false), true),
        (options(Isolation::Serializable, true), true),
    ]);
    let w = World::new();
    for account in ["a", "b", "c"] {
        w.db.put(account, value(100)).expect("put");
    }
    let workers: Vec<_> = [("a", "b", 7), ("b", "a", 11), ("c", "a", 13)]
        .into_iter()
        .take(thread_rng().gen_range(2..=3))
        .map(|(from, to, sum)| {
            let (db, how) = (w.db.clone(), how.clone());
            shuttle::thread::spawn(move || {
                retry(&db, &how, |txn, family| {
                    let get = if by_update { read_for_update } else { read };
                    let (left, right) = (get(txn, family, from)?, get(txn, family, to)?);
                    write(txn, family, from, left - sum)?;
                    write(txn, family, to, right + sum)
                });
            })
        })
        .collect();
    let moved = if workers.len() == 3 { (117, 96, 87) } else { (104, 96, 100) };
    let reader = {
        let db = w.db.clone();
        let level = pick(&[Isolation::RepeatableRead, Isolation::Snapshot, Isolation::Serializable]);
        shuttle::thread::spawn(move || {
            let mut txn = db.begin(level).expect("begin");
            let family = db.default_family();
            let seen = ["a", "b", "c"].map(|k| read(&mut txn, family, k).expect("get"));
            assert_eq!(seen.iter().sum::<u32>(), 300, "{seen:?}");
            let again = ["a", "b", "c"].map(|k| read(&mut txn, family, k).expect("get"));
            assert_eq!(seen, again);
            txn.commit().expect("a transaction that only reads is never refused");
        })
    };
    let churn = churn(&w.db, 1);
    join(workers);
    join([reader, churn]);
    let end = |db: &Db| ["a", "b", "c"].map(|k| get(db.default_family(), k));
    assert_eq!(end(&w.db), [moved.0, moved.1, moved.2], "{how:?}, for update: {by_update}");
    assert_eq!(end(&w.killed()), [moved.0, moved.1, moved.2]);
    assert!(w.db.transactions().is_empty() && w.db.locks().is_empty());
}

/// Before a transaction locks a key that may have been changed, it has read one: under a lock that it keeps, or in a way that fixes its
/// snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Locked,
    Plain,
    Released,
    Asked,
}

fn moving_snapshots() {
    let w = World::new();
    never_time_out(true);
    for account in ["a", "b", "c"] {
        w.db.put(account, value(100)).expect("put");
    }
    let locking = options(Isolation::Snapshot, true);
    let workers: Vec<_> = [("a", "b", 7), ("c", "b", 13)]
        .into_iter()
        .map(|(from, to, sum)| {
            let (db, locking) = (w.db.clone(), locking.clone());
            shuttle::thread::spawn(move || {
                retry(&db, &locking, |txn, family| {
                    let mut step = || {
                        let left = read_for_update(txn, family, from)?;
                        let right = read_for_update(txn, family, to)?;
                        write(txn, family, from, left - sum)?;
                        write(txn, family, to, right + sum)
                    };
                    step().inspect_err(|e| assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}"))
                });
            })
        })
        .collect();
    let watcher = {
        let (db, before) = (w.db.clone(), pick(&[Before::Locked, Before::Plain, Before::Released, Before::Asked]));
        shuttle::thread::spawn(move || {
            retry(&db, &locking, |txn, family| {
                let a = match before {
                    Before::Plain => read(txn, family, "a")?,
                    _ => txn.get_for_share(family, b"a")?.map_or(0, |v| meaning(&v)),
                };
                if before == Before::Released {
                    assert!(txn.unlock_last()?);
                }
                let asked = (before == Before::Asked).then(|| txn.snapshot_sequence());
                let b = match read_for_update(txn, family, "b") {
                    Err(e) if before == Before::Locked => {
                        assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
                        return Err(e);
                    }
                    b => b?,
                };
                let c = read(txn, family, "c")?;
                assert_eq!(a + b + c, 300, "{before:?}: {a} {b} {c}");
                assert_eq!((read(txn, family, "a")?, read(txn, family, "b")?), (a, b), "{before:?}");
                let seen = txn.snapshot_sequence();
                assert!(asked.is_none_or(|asked| asked == seen), "{asked:?}, then {seen}");
                let kept = db.inner().snapshots.list();
                assert!(kept.contains(&seen), "{seen} of {kept:?}");
                Ok(())
            });
        })
    };
    let churn = churn(&w.db, 1);
    join(workers);
    join([watcher, churn]);
    never_time_out(false);
    assert_eq!(["a", "b", "c"].map(|k| get(w.db.default_family(), k)), [93, 120, 87]);
    assert!(w.db.transactions().is_empty() && w.db.locks().is_empty());
}

/// Both are on call; each goes home if the other stays.
fn write_skew() {
    let w = World::new();
    w.db.put("x", value(1)).expect("put");
    w.db.put("y", value(1)).expect("put");
    let locking = pick(&[false, true]);
    let doctors: Vec<_> = [("x", "y"), ("y", "x")]
        .into_iter()
        .map(|(me, other)| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                retry(&db, &options(Isolation::Serializable, locking), |txn, family| match read(txn, family, other)? {
                    1 => write(txn, family, me, 0),
                    _ => Ok(()),
                });
            })
        })
        .collect();
    let churn = churn(&w.db, 1);
    join(doctors);
    join([churn]);
    let on_call = (get(w.db.default_family(), "x"), get(w.db.default_family(), "y"));
    assert!(on_call == (1, 0) || on_call == (0, 1), "{on_call:?}");
}

fn phantoms() {
    let w = World::new();
    let locking = pick(&[false, true]);
    let by_scan = pick(&[false, true]);
    let workers: Vec<_> = ["k1", "k2"]
        .into_iter()
        .map(|me| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                retry(&db, &options(Isolation::Serializable, locking), |txn, family| {
                    let found = if by_scan {
                        let mut it = txn.cursor(family, &b"k"[..]..&b"l"[..])?;
                        it.seek_to_first();
                        let found = it.valid();
                        it.status()?;
                        found
                    } else {
                        read(txn, family, "k1")? + read(txn, family, "k2")? > 0
                    };
                    if found { Ok(()) } else { write(txn, family, me, 1) }
                });
            })
        })
        .collect();
    let churn = churn(&w.db, 1);
    join(workers);
    join([churn]);
    assert_eq!(contents(w.db.cursor(..).expect("iter")).len(), 1);
}

/// What a transaction read at `snapshot` and wrote with sequence number `at`: no other transaction wrote it in between.
fn plain_writes() {
    let w = World::new();
    let level = pick(&[Isolation::Snapshot, Isolation::Serializable]);
    let plain: Arc<StdMutex<Vec<u64>>> = Arc::default();
    let writer = {
        let (db, plain) = (w.db.clone(), plain.clone());
        shuttle::thread::spawn(move || {
            for n in 1..=3 {
                let one = &mut match n {
                    2 => {
                        let mut b = crate::WriteBatch::new();
                        b.delete_range(db.default_family(), b"a"..b"z").expect("delete");
                        b
                    }
                    _ => batch(&[(db.default_family(), "key", n)]),
                };
                let seq = db.write_with(one, &WriteOptions::default()).expect("write");
                plain.lock().expect("plain").push(seq);
            }
        })
    };
    let ours: Arc<StdMutex<Vec<(u64, u64)>>> = Arc::default();
    let transactor = {
        let (db, ours) = (w.db.clone(), ours.clone());
        shuttle::thread::spawn(move || {
            let mut txn = db.begin(level).expect("begin");
            for n in 1..=3 {
                let family = db.default_family();
                let _ = read(&mut txn, family, "key").expect("get");
                match n {
                    // Deleting a range relies on all of it.
                    3 => txn.delete_range(family, b"k"..b"l").expect("delete"),
                    _ => write(&mut txn, family, "key", 100 + n).expect("put"),
                }
                let began = txn.snapshot_sequence();
                match txn.commit() {
                    Ok(at) => ours.lock().expect("ours").push((began, at)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Conflict, "{e}"),
                }
                txn.reset().expect("reset");
            }
        })
    };
    join([writer, transactor, churn(&w.db, 2)]);
    let plain = plain.lock().expect("plain");
    for (began, at) in &*ours.lock().expect("ours") {
        let between = plain.iter().find(|p| *p > began && *p < at);
        assert_eq!(between, None, "a transaction that began at {began} committed at {at} over {plain:?}");
    }
}

fn pinned() {
    let w = World::new();
    let base = w.db.latest_sequence();
    w.db.put("key", value(1)).expect("put");
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 2..=4 {
                db.put("key", value(n)).expect("put");
            }
        })
    };
    // More of them than there are slots under exploration.
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                let mut txn = db.begin(Isolation::RepeatableRead).expect("begin");
                let mut older: Option<Snapshot> = None;
                for _ in 0..2 {
                    let family = db.default_family();
                    let expected = (txn.snapshot_sequence() - base) as u32;
                    assert_eq!(read(&mut txn, family, "key").expect("get"), expected);
                    // A registered moment can be registered again.
                    let same = db.snapshot_at(txn.snapshot_sequence()).expect("it is pinned");
                    assert_eq!(read(&mut txn, family, "key").expect("get"), expected);
                    let seen = same.of(&family).get("key").expect("get").map_or(0, |v| meaning(&v));
                    assert_eq!(seen, expected);
                    if let Some(older) = older.replace(same) {
                        let seen = older.of(&family).get("key").expect("get").map_or(0, |v| meaning(&v));
                        assert_eq!(seen, (older.sequence() - base) as u32);
                    }
                    txn.reset().expect("reset");
                }
            })
        })
        .collect();
    let churn = churn(&w.db, 3);
    join(readers);
    join([writer, churn]);
    assert_eq!(get(w.db.default_family(), "key"), 4);
}

fn prepared() {
    let w = World::new();
    never_time_out(true);
    let mut txn = w.db.begin(Isolation::Serializable).expect("begin");
    write(&mut txn, w.db.default_family(), "a", 1).expect("put");
    write(&mut txn, w.db.default_family(), "b", 1).expect("put");
    txn.prepare(b"xid").expect("prepare");
    let resolvers: Vec<_> = [true, false]
        .into_iter()
        .map(|commit| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                let done = match commit {
                    true => db.commit_prepared(b"xid").map(|_| ()),
                    false => db.rollback_prepared(b"xid"),
                };
                match done {
                    Ok(()) => commit,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                        !commit
                    }
                }
            })
        })
        .collect();
    let plain = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.put("a", value(2)).expect("put");
            assert_eq!(get(db.default_family(), "a"), 2, "a prepared write came after one that waited for it");
        })
    };
    let again = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            // The object of the prepared transaction may be used again while its end is under way.
            drop(txn);
            let mut next = db.begin(Isolation::RepeatableRead).expect("begin");
            let b = read(&mut next, db.default_family(), "b").expect("get");
            write(&mut next, db.default_family(), "c", 3).expect("put");
            assert_eq!(read(&mut next, db.default_family(), "b").expect("get"), b);
            next.commit().expect("commit");
            assert_eq!(get(db.default_family(), "c"), 3);
        })
    };
    let churn = churn(&w.db, 1);
    let outcomes: Vec<bool> = resolvers.into_iter().map(|t| t.join().expect("thread")).collect();
    join([plain, again, churn]);
    never_time_out(false);
    assert_eq!(outcomes[0], outcomes[1], "both won, or both lost");
    let expected = (2, u32::from(outcomes[0]), 3);
    for db in [&w.db, &w.killed()] {
        let f = db.default_family();
        assert_eq!((get(f, "a"), get(f, "b"), get(f, "c")), expected);
        assert!(db.recover_prepared().is_empty() && db.locks().is_empty());
    }
}

fn resolved_beside_the_owner() {
    let w = World::new();
    never_time_out(true);
    w.db.put("b", value(1)).expect("put");
    let resolver = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            while let Err(e) = db.commit_prepared(b"xid") {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                shuttle::thread::yield_now();
            }
        })
    };
    let mut txn = w.db.begin(Isolation::Snapshot).expect("begin");
    write(&mut txn, w.db.default_family(), "a", 1).expect("put");
    txn.prepare(b"xid").expect("prepare");
    drop(txn);
    let next = w.db.begin(Isolation::RepeatableRead).expect("begin");
    join([resolver]);
    assert_eq!(w.db.inner().snapshots.count(), 1, "a running transaction's snapshot is registered");
    drop(next);
    never_time_out(false);
    assert_eq!(get(w.db.default_family(), "a"), 1);
    assert_eq!((w.db.locks(), w.db.transactions(), w.db.recover_prepared()), Default::default());
}

fn prepared_kills() {
    let w = World::new();
    let owner = {
        let (db, fs) = (w.db.clone(), w.fs.clone());
        shuttle::thread::spawn(move || {
            let mut txn = db.begin(Isolation::Snapshot).expect("begin");
            write(&mut txn, db.default_family(), "a", 1).expect("put");
            write(&mut txn, db.default_family(), "b", 1).expect("put");
            txn.prepare(b"xid").expect("prepare");
            let found = reopen(&fs.crash_clone(kingtide_vfs::Survival::AllLost, &mut kingtide_base::rng::Rng::new(1)));
            assert_eq!(found.recover_prepared().len(), 1, "prepared, and lost");
            let f = found.default_family();
            assert_eq!((get(f, "a"), get(f, "b")), (0, 0), "prepared, and committed");
            found.commit_prepared(b"xid").expect("commit");
            assert_eq!((get(f, "a"), get(f, "b")), (1, 1));
            txn.commit().expect("commit");
        })
    };
    let plain = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.put("other", value(1)).expect("put");
            db.put("other", value(2)).expect("put");
        })
    };
    let churn = churn(&w.db, 2);
    let found = w.killed();
    let doubt = found.recover_prepared().len() as u32;
    let f = found.default_family();
    let seen = (get(f, "a"), get(f, "b"));
    assert!(seen == (0, 0) || (seen == (1, 1) && doubt == 0), "{seen:?} with {doubt} in doubt");
    if doubt == 1 {
        assert!(found.locks().len() >= 2, "in doubt without locks");
        found.rollback_prepared(b"xid").expect("rollback");
        assert!(found.locks().is_empty());
        assert_eq!((get(f, "a"), get(f, "b")), (0, 0));
    }
    join([owner, plain, churn]);
    let found = w.killed();
    assert!(found.recover_prepared().is_empty());
    let expected = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1), ("other".to_owned(), 2)]);
    assert_eq!(contents(found.cursor(..).expect("iter")), expected);
}

fn uncommitted() {
    let w = World::new();
    let writers: Vec<_> = (1..=2)
        .map(|t| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                let family = db.default_family();
                let mut txn = db.begin(Isolation::ReadUncommitted).expect("begin");
                for n in 1..=2 {
                    write(&mut txn, family, "key", 10 * t + n).expect("put");
                    write(&mut txn, family, &format!("own-{t}"), n).expect("put");
                    match n {
                        1 => txn.rollback().expect("rollback"),
                        _ => drop(txn.commit().expect("commit")),
                    }
                    txn.reset().expect("reset");
                }
            })
        })
        .collect();
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let mut txn = db.begin(Isolation::ReadUncommitted).expect("begin");
            let mut own = 0;
            for _ in 0..3 {
                let found = read(&mut txn, db.default_family(), "key").expect("get");
                assert!([0, 11, 12, 21, 22].contains(&found), "{found}");
                let found = read(&mut txn, db.default_family(), "own-1").expect("get");
                assert!(found <= 2, "{found}");
                // What is written last is committed: it does not vanish for a moment meanwhile.
                assert!(own < 2 || found == 2, "{found} after {own}");
                own = found;
            }
        })
    };
    let churn = churn(&w.db, 1);
    join(writers);
    join([reader, churn]);
    let f = w.db.default_family();
    assert!([12, 22].contains(&get(f, "key")) && (get(f, "own-1"), get(f, "own-2")) == (2, 2));
}

fn ordered() {
    let w = World::new();
    let workers: Vec<_> = (0..2)
        .map(|t| {
            let (db, fs) = (w.db.clone(), w.fs.clone());
            shuttle::thread::spawn(move || {
                let durability = Some(crate::Durability::Power);
                let mut txn = db
                    .begin_with(TransactionOptions { durability, ..options(Isolation::Snapshot, false) })
                    .expect("begin");
                let mut tickets = Vec::new();
                for n in 1..=2 {
                    write(&mut txn, db.default_family(), &format!("key-{t}"), n).expect("put");
                    tickets.push(txn.commit_ordered().expect("commit"));
                    assert_eq!(get(db.default_family(), &format!("key-{t}")), n, "visible");
                    txn.reset().expect("reset");
                }
                assert!(tickets[0].sequence() < tickets[1].sequence());
                let last = tickets.pop().expect("ticket");
                let seq = last.sequence();
                assert_eq!(last.wait().expect("wait"), seq);
                let cut = fs.crash_clone(kingtide_vfs::Survival::AllLost, &mut kingtide_base::rng::Rng::new(1));
                assert_eq!(get(reopen(&cut).default_family(), &format!("key-{t}")), 2, "durable");
                tickets.pop().expect("ticket").wait().expect("wait");
            })
        })
        .collect();
    let churn = churn(&w.db, 1);
    join(workers);
    join([churn]);
}
