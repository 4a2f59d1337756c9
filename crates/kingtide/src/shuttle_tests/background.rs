//! Waiting: for memory, for flushes, for background threads. Every waiter is woken: shuttle reports a deadlock, and a
//! schedule without an end as one of too many steps.

use super::world::*;
use kingtide_testkit::scenarios;
use std::collections::BTreeMap;

scenarios! {
    /// Writers that wait for memory go on when a flush ends.
    shuttle_writers_wait_for_memory => memory;
    /// Log segments are taken, sealed, released and used again beside commits.
    shuttle_log_segments_come_and_go => segments;
    /// A pool of threads of its own: flush, merge, and close while they work.
    shuttle_background_threads => pool;
    /// Several threads run jobs at once: flushes of one family stay in order, merges do not take the same tables.
    shuttle_jobs_on_several_threads => workers;
    /// A waiting `compact_range` and a waiting `flush` beside writers.
    shuttle_manual_merges => manual;
}

fn memory() {
    let w = World::with(|o| {
        o.db.memtable_budget = 48 << 10;
        o.db.wal_segment_size = 1 << 20;
    });
    let big = vec![b'7'; 12 << 10];
    let writers: Vec<_> = (0..2)
        .map(|t| {
            let (db, big) = (w.db.clone(), big.clone());
            shuttle::thread::spawn(move || {
                for n in 0..4 {
                    db.put(format!("key-{t}-{n}"), &big).expect("put");
                }
            })
        })
        .collect();
    join(writers);
    for t in 0..2 {
        for n in 0..4 {
            let found = w.db.get(format!("key-{t}-{n}")).expect("get");
            assert!(found.is_some_and(|v| v.len() == big.len()), "key-{t}-{n}");
        }
    }
}

fn segments() {
    let w = World::with(|o| o.db.max_wal_size = 1 << 17);
    let big = vec![b'7'; 40 << 10];
    let writers: Vec<_> = (0..2)
        .map(|t| {
            let (db, big) = (w.db.clone(), big.clone());
            shuttle::thread::spawn(move || {
                for n in 0..3 {
                    db.put(format!("big-{t}-{n}"), &big).expect("put");
                    db.put(format!("small-{t}"), value(n + 1)).expect("put");
                }
            })
        })
        .collect();
    let syncer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for _ in 0..2 {
                db.sync().expect("sync");
                jobs(&db, 2);
            }
        })
    };
    let churn = churn(&w.db, 2);
    join(writers);
    join([syncer, churn]);
    let found = w.killed();
    for t in 0..2 {
        assert_eq!(get(found.default_family(), &format!("small-{t}")), 3);
        for n in 0..3 {
            let value = found.get(format!("big-{t}-{n}")).expect("get");
            assert!(value.is_some_and(|v| v.len() == big.len()), "big-{t}-{n}");
        }
    }
}

fn pool() {
    let w = World::with(|o| {
        o.manual_jobs = false;
        o.db.background_threads = 2;
    });
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=2 {
                db.put("key", value(n)).expect("put");
                db.flush().expect("flush");
                assert_eq!(get(db.default_family(), "key"), n);
            }
        })
    };
    w.db.put("other", value(5)).expect("put");
    rotate(&w.db);
    assert_eq!(get(w.db.default_family(), "other"), 5);
    join([writer]);
    w.db.close().expect("close");
    let found = reopen(&w.fs);
    assert_eq!(contents(found.cursor(..).expect("iter")), BTreeMap::from([("key".into(), 2), ("other".into(), 5)]));
}

fn workers() {
    let w = World::new();
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=4 {
                db.put("key", value(n)).expect("put");
                db.put(format!("key-{n}"), value(n)).expect("put");
                rotate(&db);
                assert_eq!(get(db.default_family(), "key"), n);
            }
        })
    };
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                for _ in 0..4 {
                    db.run_one_job().expect("job");
                }
            })
        })
        .collect();
    join([writer]);
    join(workers);
    assert_eq!(get(w.db.default_family(), "key"), 4);
    assert_eq!(contents(w.killed().cursor(..).expect("iter")).len(), 5);
    w.db.wait_for_background().expect("wait");
    assert_eq!(contents(w.killed().cursor(..).expect("iter")).len(), 5);
}

fn manual() {
    let w = World::new();
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=2 {
                db.put("a", value(n)).expect("put");
                db.put("b", value(n)).expect("put");
                db.flush().expect("flush");
            }
        })
    };
    let merger = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.default_family().compact_range(..=b"a").expect("compact");
            db.compact().expect("compact");
        })
    };
    join([writer, merger]);
    assert_eq!(contents(w.killed().cursor(..).expect("iter")), BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
}
