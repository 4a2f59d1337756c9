//! Transactions that are run again, updates of single keys, and families that are created if they are not there.

use kingtide::vfs::{FaultFs, MemFs, Op};
use kingtide::{
    Clock, Db, Durability, Error, ErrorKind, FamilyOptions, Isolation, ManualClock, Options, TransactOptions,
    TransactionOptions,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn open() -> Db {
    Db::open("/db", Options::new().fs(Arc::new(MemFs::new()))).unwrap()
}

fn number(value: Option<&[u8]>) -> u64 {
    value.and_then(|v| v.first_chunk().copied()).map_or(0, u64::from_le_bytes)
}

#[test]
fn a_conflict_runs_it_again() {
    let db = open();
    let f = db.default_family();
    let mut runs = 0;
    let read = db.transact(|txn| {
        runs += 1;
        let n = number(txn.get(f, b"n")?.as_deref());
        if runs <= 3 {
            db.put("n", (n + 10).to_le_bytes())?; // another writer is first
        }
        txn.put(f, b"n", &(n + 1).to_le_bytes())?;
        Ok(n)
    });
    assert_eq!((read.unwrap(), runs, number(db.get("n").unwrap().as_deref())), (30, 4, 31));
    assert!(db.transactions().is_empty(), "nothing is left running");
}

#[test]
fn attempts_are_bounded_and_other_errors_end_it() {
    let db = open();
    let f = db.default_family();
    for level in [Isolation::Snapshot, Isolation::Serializable] {
        for most in [1, 3] {
            let mut runs = 0;
            let result = db.transact_with(TransactOptions::new().transaction(level).attempts(most), |txn| {
                runs += 1;
                txn.get(f, b"k")?;
                db.put("k", "other")?;
                txn.put(f, b"k", b"mine")
            });
            let error = result.unwrap_err();
            assert_eq!((error.kind(), runs), (ErrorKind::Conflict, most));
            assert!(error.to_string().contains(&format!("given up after {most} attempts")), "{error}");
        }
    }
    let mut runs = 0;
    let result = db.transact(|txn| -> kingtide::Result<()> {
        runs += 1;
        txn.put(f, b"k", b"mine")?;
        Err(Error::invalid("no"))
    });
    assert_eq!((result.unwrap_err().kind(), runs), (ErrorKind::InvalidArgument, 1));
    assert_eq!(db.get("k").unwrap().unwrap(), b"other");
    // One that the body itself committed can be committed no more; one that it rolled back neither.
    let result = db.transact(|txn| txn.rollback());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Finished);
    assert!(db.transactions().is_empty());
    db.close().unwrap();
    assert_eq!(db.transact(|_| Ok(())).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn retries_are_bounded_in_time() {
    let clock = ManualClock::at_unix_ms(1_000_000);
    let db = Db::open("/db", Options::new().fs(MemFs::shared()).clock(clock.clone())).unwrap();
    let run = |options: TransactOptions, takes: Duration| {
        let (mut runs, began) = (0, clock.monotonic_ns());
        let result = db.transact_with(options, |txn| {
            runs += 1;
            clock.advance(takes);
            txn.get(db.default_family(), b"k")?;
            db.put("k", "other")?;
            txn.put(db.default_family(), b"k", b"mine")
        });
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(&format!("given up after {runs} attempts")), "{error}");
        (runs, Duration::from_nanos(clock.monotonic_ns() - began))
    };
    let takes = Duration::from_millis(40);
    let limited = TransactOptions::new().time_limit(Duration::from_millis(100));
    assert_eq!(run(limited.clone(), takes).0, 3, "a fourth one would begin behind the limit");
    assert_eq!(run(limited.clone().time_limit(Duration::ZERO), takes).0, 1);
    assert_eq!(run(limited.time_limit(None).attempts(0), takes).0, 1, "no attempts are one");
    let (runs, waited) = run(TransactOptions::new().max_wait(Duration::ZERO), Duration::ZERO);
    assert_eq!((runs, waited), (100, Duration::ZERO));
    let (runs, waited) = run(TransactOptions::new().attempts(24).max_wait(Duration::MAX), Duration::ZERO);
    assert!(runs == 24 && waited > Duration::from_secs(1), "each wait may be twice as long: {waited:?}");
}

/// A commit waits a minute for a flush that never completes, and lock timeouts may be as long. A hundred attempts would take hours.
#[test]
fn no_attempt_that_waited_too_long_is_repeated_after_a_minute() {
    let clock = ManualClock::at_unix_ms(1_000_000);
    let db = Db::open("/db", Options::new().fs(MemFs::shared()).clock(clock.clone())).unwrap();
    let run = |options: TransactOptions, kind: ErrorKind, takes: u64| {
        let mut runs = 0;
        let result = db.transact_with(options, |_| -> kingtide::Result<()> {
            runs += 1;
            clock.advance(Duration::from_secs(takes));
            Err(Error::new(kind, "the wait ended"))
        });
        assert_eq!(result.unwrap_err().kind(), kind);
        runs
    };
    let at_once = TransactOptions::new().max_wait(Duration::ZERO);
    for kind in [ErrorKind::Busy, ErrorKind::LockTimeout] {
        assert_eq!(run(at_once.clone(), kind, 60), 1);
        assert_eq!(run(at_once.clone(), kind, 59), 2);
        assert_eq!(run(at_once.clone(), kind, 10), 6);
        assert_eq!(run(at_once.clone(), kind, 0), 100, "attempts that fail at once are repeated as usual");
        assert_eq!(
            run(at_once.clone().time_limit(Duration::from_secs(3600)), kind, 60),
            60,
            "the limit of the caller counts"
        );
    }
    assert_eq!(run(at_once, ErrorKind::Conflict, 60), 100, "a conflict is no wait");
}

#[test]
fn threads_that_update_one_key_lose_nothing() {
    let db = open();
    let each = if kingtide_testkit::full() { 2_000 } else { 150 };
    std::thread::scope(|s| {
        for thread in 0..4u8 {
            let db = &db;
            s.spawn(move || {
                let f = db.default_family();
                let locking =
                    TransactionOptions::new(Isolation::RepeatableRead).locking(true).durability(Durability::Process);
                let options = TransactOptions::new().transaction(locking);
                for i in 0..each {
                    match (thread + (i % 4) as u8) % 4 {
                        0 => {
                            f.fetch_update("n", |n| Some((number(n) + 1).to_le_bytes())).unwrap();
                        }
                        1 => loop {
                            let now = f.get("n").unwrap();
                            let next = (number(now.as_deref()) + 1).to_le_bytes();
                            if f.compare_and_swap("n", now.as_deref(), Some(&next)).unwrap().is_ok() {
                                break;
                            }
                        },
                        2 => db
                            .transact(|txn| {
                                let n = number(txn.get(f, b"n")?.as_deref());
                                txn.put(f, b"n", &(n + 1).to_le_bytes())
                            })
                            .unwrap(),
                        _ => db
                            .transact_with(options.clone(), |txn| {
                                let n = number(txn.get_for_update(f, b"n")?.as_deref());
                                txn.put(f, b"n", &(n + 1).to_le_bytes())
                            })
                            .unwrap(),
                    }
                }
            });
        }
    });
    assert_eq!(number(db.get("n").unwrap().as_deref()), 4 * each);
}

#[test]
fn a_key_is_updated_deleted_and_swapped() {
    let db = open();
    let f = db.default_family();
    assert!(f.fetch_update("k", |v| v.map(<[u8]>::to_vec)).unwrap().is_none());
    assert!(!f.contains_key("k").unwrap(), "nothing was made of nothing");
    assert!(f.fetch_update("k", |_| Some("1")).unwrap().is_none());
    assert_eq!(f.fetch_update("k", |v| v.map(|v| [v, b"2"].concat())).unwrap().unwrap(), b"1");
    assert_eq!(f.get("k").unwrap().unwrap(), b"12");

    assert_eq!(f.compare_and_swap("k", None, Some(b"x")).unwrap().unwrap_err().unwrap(), b"12");
    assert_eq!(f.compare_and_swap("k", Some(b"1"), None).unwrap().unwrap_err().unwrap(), b"12");
    assert!(f.compare_and_swap("k", Some(b"12"), Some(b"3")).unwrap().is_ok());
    assert!(f.compare_and_swap("k", Some(b"3"), None).unwrap().is_ok());
    assert!(f.compare_and_swap("k", Some(b"3"), None).unwrap().unwrap_err().is_none());
    assert!(f.compare_and_swap("k", None, None).unwrap().is_ok());
    assert_eq!(f.fetch_update("", |_| Some("1")).unwrap_err().kind(), ErrorKind::InvalidArgument);

    db.put("k", "4").unwrap();
    assert_eq!(f.fetch_update("k", |_| None::<Vec<u8>>).unwrap().unwrap(), b"4");
    assert!(f.get("k").unwrap().is_none());
}

#[test]
fn an_update_of_a_locked_key_waits_as_long_as_a_put() {
    let mut options = Options::new().fs(Arc::new(MemFs::new()));
    options.db.lock_timeout = Duration::from_millis(20);
    let db = Db::open("/db", options).unwrap();
    let f = db.default_family();
    let locking = TransactionOptions::new(Isolation::Snapshot).locking(true);

    let mut holder = db.begin_with(locking.clone()).unwrap();
    holder.put(f, b"k", b"1").unwrap();
    holder.prepare(b"in doubt").unwrap();
    assert_eq!(f.put("k", "2").unwrap_err().kind(), ErrorKind::LockTimeout);
    assert_eq!(f.fetch_update("k", |_| Some("2")).unwrap_err().kind(), ErrorKind::LockTimeout);
    assert_eq!(f.compare_and_swap("k", None, Some(b"2")).unwrap_err().kind(), ErrorKind::LockTimeout);
    holder.rollback().unwrap();
    assert!(f.compare_and_swap("k", None, Some(b"2")).unwrap().is_ok());

    // A lock that is released in time is waited for.
    db.set_option("lock_timeout_ms", "60000").unwrap();
    let mut holder = db.begin_with(locking).unwrap();
    holder.put(f, b"k", b"3").unwrap();
    std::thread::scope(|s| {
        let update = s.spawn(|| f.fetch_update("k", |v| v.map(|v| [v, b"4"].concat())));
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        holder.commit().unwrap();
        assert_eq!(update.join().unwrap().unwrap().unwrap(), b"3");
    });
    assert_eq!(f.get("k").unwrap().unwrap(), b"34");
}

/// If no flush completes, an update gives up after a minute, as a put does, instead of waiting for one more minute again and again.
#[test]
fn an_update_gives_up_where_a_put_does() {
    let (clock, faulty) = (ManualClock::at_unix_ms(1_000), Arc::new(FaultFs::new(MemFs::shared(), 1)));
    let stuck = Arc::new(AtomicBool::new(true));
    let is_stuck = stuck.clone();
    faulty.before_each(Some(Arc::new(move |op, path: &Path| {
        while op == Op::Sync && path.extension().is_some_and(|e| e == "klog") && is_stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    })));
    let options = Options::new().fs(faulty).clock(clock.clone()).memtable_size(64 << 10).memtable_budget(64 << 10);
    let db = Db::open("/db", options).unwrap();
    let mut runs = 0;
    let (put, updated) = std::thread::scope(|s| {
        let ended = Arc::new(AtomicBool::new(false));
        let (over, clock) = (ended.clone(), &clock);
        s.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                clock.advance(Duration::from_secs(1));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let put = (0..10_000u32).find_map(|n| db.put(n.to_be_bytes(), [7; 1000]).err());
        let updated = db.default_family().fetch_update("k", |_| {
            runs += 1;
            if runs > 1 {
                stuck.store(false, Ordering::SeqCst); // otherwise it would never end
            }
            Some("v")
        });
        stuck.store(false, Ordering::SeqCst);
        ended.store(true, Ordering::SeqCst);
        (put, updated)
    });
    assert_eq!(put.map(|e| e.kind()), Some(ErrorKind::Busy));
    assert_eq!((updated.map_err(|e| e.kind()).err(), runs), (Some(ErrorKind::Busy), 1));
}

#[test]
fn a_family_is_created_once() {
    let db = open();
    let small = FamilyOptions::new().value_threshold(100);
    let made = std::thread::scope(|s| {
        let make = || db.get_or_create_family("f", small.clone()).unwrap().id();
        let threads: Vec<_> = (0..4).map(|_| s.spawn(make)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(made.iter().all(|id| *id == made[0]), "{made:?}");
    // The options are those of a family that is new.
    let family = db.get_or_create_family("f", FamilyOptions::default()).unwrap();
    assert_eq!(family.options().value_threshold, 100);
    let kind = db.get_or_create_family("", FamilyOptions::default()).map_err(|e| e.kind()).unwrap_err();
    assert_eq!(kind, ErrorKind::InvalidArgument);
}
