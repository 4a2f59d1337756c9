//! Transactions that wait for each other, and transactions that others end.

use super::transactions::{options, pick, read, read_for_update, retry, write};
use super::world::*;
use crate::{Error, ErrorKind, Isolation, LockMode, TransactionOptions};
use kingtide_testkit::scenarios;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::Mutex as StdMutex;

scenarios! {
    /// Two transactions lock two keys in opposite order; both get there in the end.
    shuttle_deadlocks_are_broken => deadlocks;
    /// What a deadlock's victim wrote is not read any more by one that has its locks, at no level.
    shuttle_victims_writes_are_gone_before_their_locks => victims_writes;
    /// Every waiter for a lock gets it, without a timeout's help.
    shuttle_lock_waits_end => lock_waits;
    /// Transactions aborted by other threads, at any moment, and new ones in their place.
    shuttle_aborts_from_outside => aborts;
    /// The object of an aborted transaction serves a new one while the aborting thread is still at it.
    shuttle_objects_are_used_again => reuse;
    /// Memory that a transaction was charged for is given back once, no matter which thread ends it.
    shuttle_charges_are_given_back => charges;
    /// Locks of transactions whose time is up go to the transactions that wait for them.
    shuttle_expiry => expiry;
    /// Close, and the end of a family, beside transactions that run and wait for locks: every call ends.
    shuttle_close_beside_transactions => close;
}

fn deadlocks() {
    let w = World::new();
    never_time_out(true);
    let level = pick(&[Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable]);
    let workers: Vec<_> = [["a", "b"], ["b", "a"], ["b", "c"]]
        .into_iter()
        .map(|keys| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                retry(&db, &options(level, true), |txn, family| {
                    for key in keys {
                        let n = read_for_update(txn, family, key)?;
                        write(txn, family, key, n + 1)?;
                    }
                    Ok(())
                });
            })
        })
        .collect();
    join(workers);
    never_time_out(false);
    assert_eq!(["a", "b", "c"].map(|k| get(w.db.default_family(), k)), [2, 3, 1]);
    assert!(w.db.locks().is_empty() && w.db.lock_waits().is_empty());
}

fn victims_writes() {
    let w = World::new();
    never_time_out(true);
    let workers: Vec<_> = [["a", "b"], ["b", "a"]]
        .into_iter()
        .map(|keys| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                retry(&db, &options(Isolation::ReadUncommitted, true), |txn, family| {
                    for key in keys {
                        txn.lock(family, key.as_bytes(), LockMode::Exclusive)?;
                        let n = read(txn, family, key)?;
                        write(txn, family, key, n + 1)?;
                    }
                    Ok(())
                });
            })
        })
        .collect();
    join(workers);
    never_time_out(false);
    assert_eq!(["a", "b"].map(|k| get(w.db.default_family(), k)), [2, 2]);
    assert!(w.db.locks().is_empty() && w.db.lock_waits().is_empty());
}

fn lock_waits() {
    let w = World::new();
    never_time_out(true);
    let plain = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.put("key", value(50)).expect("put"); // waits for the holder of a lock
            db.delete_range("a".."b").expect("delete");
        })
    };
    let workers: Vec<_> = (0..2)
        .map(|t| {
            let db = w.db.clone();
            let ranges = pick(&[false, true]);
            shuttle::thread::spawn(move || {
                let family = db.default_family();
                let mut txn = db.begin_with(options(Isolation::ReadCommitted, true)).expect("begin");
                if ranges {
                    let (lower, upper) = (Bound::Included(&b"a"[..]), Bound::Excluded(&b"z"[..]));
                    txn.lock_range(family, (lower, upper), LockMode::Exclusive).expect("lock");
                } else {
                    read_for_update(&mut txn, family, "key").expect("lock");
                }
                let before = read(&mut txn, family, "key").expect("get");
                assert_eq!(read(&mut txn, family, "key").expect("get"), before, "locked, and changed");
                write(&mut txn, family, "key", before + 1).expect("put");
                match t {
                    0 => txn.commit().map(|_| ()).expect("commit"),
                    _ => txn.rollback().expect("rollback"),
                }
            })
        })
        .collect();
    join(workers);
    join([plain]);
    never_time_out(false);
    let end = get(w.db.default_family(), "key");
    assert!(end == 50 || end == 51, "{end}");
    assert!(w.db.locks().is_empty() && w.db.lock_waits().is_empty());
}

fn aborts() {
    let w = World::new();
    let written: Arc<StdMutex<Vec<(u64, u32)>>> = Arc::default();
    let first = w.db.write(batch(&[(w.db.default_family(), "key", 1)])).expect("write");
    written.lock().expect("written").push((first, 1));
    let owner = {
        let db = w.db.clone();
        let locking = pick(&[false, true]);
        shuttle::thread::spawn(move || {
            let family = db.default_family();
            let mut seen = Vec::new();
            for n in 1..=3 {
                let mut txn = db.begin_with(options(Isolation::RepeatableRead, locking)).expect("begin");
                for _ in 0..2 {
                    match read(&mut txn, family, "key") {
                        Ok(found) => seen.push((txn.snapshot_sequence(), found)),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Aborted, "{e}"),
                    }
                }
                let own = format!("own-{n}");
                let ended = write(&mut txn, family, &own, n).and_then(|()| {
                    txn.set_savepoint("own")?;
                    txn.rollback_to_savepoint("own")?;
                    txn.release_savepoint("own")?;
                    txn.commit()
                });
                match ended {
                    Ok(_) => assert_eq!(get(family, &own), n, "committed"),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Aborted, "{e}");
                        drop(txn);
                        assert_eq!(get(family, &own), 0, "aborted");
                    }
                }
            }
            seen
        })
    };
    let aborter = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for t in db.transactions() {
                let _ = db.abort_transaction(t.id); // it may be over
            }
        })
    };
    let writer = {
        let (db, written) = (w.db.clone(), written.clone());
        shuttle::thread::spawn(move || {
            for n in 2..=3 {
                let at = db.write(batch(&[(db.default_family(), "key", n)])).expect("write");
                written.lock().expect("written").push((at, n));
                db.flush().expect("flush");
            }
        })
    };
    let seen = owner.join().expect("thread");
    join([aborter, writer]);
    let written = written.lock().expect("written");
    for (began, found) in seen {
        let expected = written.iter().filter(|(at, _)| *at <= began).max().map_or(0, |(_, n)| *n);
        assert_eq!(found, expected, "at {began} of {written:?}");
    }
    assert!(w.db.transactions().is_empty() && w.db.locks().is_empty());
}

fn reuse() {
    let w = World::new();
    let mut txn = w.db.begin(Isolation::Snapshot).expect("begin");
    let aborter = {
        let handle = txn.handle();
        shuttle::thread::spawn(move || drop(handle.abort())) // it may be over
    };
    let family = w.db.default_family();
    for n in 1..=2 {
        let own = format!("own-{n}");
        match write(&mut txn, family, &own, n).and_then(|()| txn.commit()) {
            Ok(at) => assert!(at > 0 && get(family, &own) == n, "committed at {at}, and not there"),
            Err(e) => assert!(n == 1 && e.kind() == ErrorKind::Aborted, "{e}"),
        }
        txn.reset().expect("reset");
    }
    // Its snapshot is registered: no thread that ended the former one takes that away.
    let kept = txn.snapshot_sequence();
    w.db.put("later", value(1)).expect("put");
    let listed = w.db.inner().snapshots.list();
    assert!(listed.contains(&kept), "{kept} of {listed:?}");
    join([aborter]);
}

fn charges() {
    let w = World::new();
    let big = vec![b'7'; 70 << 10];
    let mut txn = w.db.begin(Isolation::Snapshot).expect("begin");
    let aborter = {
        let handle = txn.handle();
        shuttle::thread::spawn(move || drop(handle.abort()))
    };
    for key in ["a", "b", "c"] {
        if let Err(e) = txn.put(w.db.default_family(), key.as_bytes(), &big) {
            assert_eq!(e.kind(), ErrorKind::Aborted, "{e}");
        }
    }
    drop(txn);
    join([aborter]);
    assert_eq!(w.db.inner().memory.used(), 0);
}

fn expiry() {
    let w = World::new();
    let owner = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let family = db.default_family();
            let short = Some(std::time::Duration::from_millis(10));
            let mut txn = db
                .begin_with(TransactionOptions { timeout: short, ..options(Isolation::ReadCommitted, true) })
                .expect("begin");
            let mut steps = || {
                write(&mut txn, family, "key", 1)?;
                write(&mut txn, family, "other", 1)?;
                txn.commit()
            };
            match steps() {
                Ok(_) => true,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Expired, "{e}");
                    false
                }
            }
        })
    };
    let waiter = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            retry(&db, &options(Isolation::ReadCommitted, true), |txn, family| {
                let before = read_for_update(txn, family, "key")?;
                assert!(before <= 1);
                assert_eq!(read(txn, family, "other")?, before, "half a commit");
                write(txn, family, "key", before + 10)
            });
        })
    };
    let sweeper = {
        let (db, clock) = (w.db.clone(), w.clock.clone());
        shuttle::thread::spawn(move || {
            clock.advance(std::time::Duration::from_millis(20));
            jobs(&db, 1);
        })
    };
    let committed = owner.join().expect("thread");
    join([waiter, sweeper]);
    let expected = if committed { (11, 1) } else { (10, 0) };
    let seen = (get(w.db.default_family(), "key"), get(w.db.default_family(), "other"));
    assert!(seen == expected || (committed && seen == (1, 1)), "{seen:?} instead of {expected:?}");
    assert!(w.db.transactions().is_empty() && w.db.locks().is_empty());
}

fn close() {
    let w = World::new();
    let temp = w.db.create_family("temp", family_options()).expect("create");
    let over = |e: &Error| is_closed(e) || e.is_transient_conflict() || e.kind() == ErrorKind::Aborted;
    let workers: Vec<_> = (0..2)
        .map(|t| {
            let (db, temp) = (w.db.clone(), temp.clone());
            let locking = pick(&[false, true]);
            shuttle::thread::spawn(move || -> u32 {
                let mut last = 0;
                for n in 1..=2 {
                    let steps = || -> Result<(), Error> {
                        let mut txn = db.begin_with(options(Isolation::Snapshot, locking))?;
                        let before = read_for_update(&mut txn, db.default_family(), "both")?;
                        write(&mut txn, db.default_family(), "both", before + 1)?;
                        write(&mut txn, db.default_family(), &format!("own-{t}"), n)?;
                        if n == 2 {
                            write(&mut txn, &temp, "key", n)?;
                        }
                        txn.commit().map(|_| ())
                    };
                    match steps() {
                        Ok(()) => last = n,
                        Err(e) => assert!(over(&e), "{e}"),
                    }
                }
                last
            })
        })
        .collect();
    let dropper = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || match db.drop_family("temp") {
            Ok(()) => {}
            Err(e) => assert!(is_closed(&e), "{e}"),
        })
    };
    w.db.close().expect("close");
    let last: Vec<u32> = workers.into_iter().map(|t| t.join().expect("thread")).collect();
    join([dropper]);
    let found = reopen(&w.fs);
    let f = found.default_family();
    assert_eq!([get(f, "own-0"), get(f, "own-1")], [last[0], last[1]]);
    assert!(get(f, "both") >= u32::from(last[0] > 0) + u32::from(last[1] > 0));
}
