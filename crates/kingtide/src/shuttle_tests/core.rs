//! Reads, writes, snapshots and families beside flushes and merges.

use super::world::*;
use crate::{ErrorKind, WriteBatch};
use kingtide_testkit::scenarios;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

scenarios! {
    /// What was acknowledged is seen by every later read, and nothing goes back.
    shuttle_acknowledged_writes_are_seen => acknowledged;
    /// A batch over two families is seen whole or not at all.
    shuttle_batches_are_whole => batches;
    /// A snapshot shows the same whatever is written, flushed and merged.
    shuttle_snapshots_are_stable => snapshots;
    /// Iterators and multi-gets show one moment, range deletions included.
    shuttle_iterators_show_one_moment => iterators;
    /// Writers on several threads: sequence numbers are published in order.
    shuttle_sequences_are_published_in_order => sequences;
    /// The commit pipeline by itself, over an environment without a database.
    shuttle_pipeline_publishes_what_is_logged => pipeline;
    /// Families created and dropped beside commits and flushes.
    shuttle_families_come_and_go => families;
    /// Close beside commits: what was acknowledged is found by the next open.
    shuttle_close_beside_commits => close;
    /// Merges of what is being deleted.
    shuttle_deletions_beside_merges => deletions;
    /// Reads while indexes and filters are divided into partitions, put together again, and evicted.
    shuttle_reads_beside_partitioning => partitioning;
}

fn acknowledged() {
    const LAST: u32 = 4;
    let w = World::new();
    let done = Arc::new(AtomicU32::new(0));
    let writer = {
        let (db, done) = (w.db.clone(), done.clone());
        shuttle::thread::spawn(move || {
            for n in 1..=LAST {
                db.put("key", value(n)).expect("put");
                done.store(n, Ordering::SeqCst);
            }
        })
    };
    let reader = {
        let (db, done) = (w.db.clone(), done.clone());
        shuttle::thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..4 {
                let least = done.load(Ordering::SeqCst).max(seen);
                seen = get(db.default_family(), "key");
                assert!(seen >= least, "{seen} after {least}");
            }
        })
    };
    join([writer, reader, churn(&w.db, 2)]);
    assert_eq!(get(w.db.default_family(), "key"), LAST);
    assert_eq!(get(w.killed().default_family(), "key"), LAST);
}

fn batches() {
    let w = World::new();
    let other = w.db.create_family("other", family_options()).expect("create");
    let writer = {
        let (db, other) = (w.db.clone(), other.clone());
        shuttle::thread::spawn(move || {
            for n in 1..=3 {
                let sets = [(db.default_family(), "a", n), (&other, "b", n), (db.default_family(), "c", n)];
                db.write(batch(&sets)).expect("write");
            }
        })
    };
    let reader = {
        let (db, other) = (w.db.clone(), other.clone());
        shuttle::thread::spawn(move || {
            for _ in 0..2 {
                let both: Vec<u32> = (db.multi_get(&["a", "c"]).into_iter())
                    .map(|v| v.expect("get").map_or(0, |v| meaning(&v)))
                    .collect();
                assert_eq!(both[0], both[1], "multi_get");
                let s = db.snapshot();
                let at = |f: &crate::ColumnFamily, key| s.of(&f).get(key).expect("get").map_or(0, |v| meaning(&v));
                let seen = (at(db.default_family(), "a"), at(&other, "b"), at(db.default_family(), "c"));
                assert!(seen.0 == seen.1 && seen.1 == seen.2, "{seen:?}");
                assert!(seen.0 >= both[0], "{seen:?} after {both:?}");
            }
        })
    };
    join([writer, reader, churn(&w.db, 2)]);
    let found = w.killed();
    let other = found.family("other").expect("family");
    assert_eq!((get(found.default_family(), "a"), get(&other, "b")), (3, 3));
}

fn snapshots() {
    let w = World::new();
    w.db.put("key", value(1)).expect("put");
    w.db.put("gone", value(1)).expect("put");
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.put("key", value(2)).expect("put");
            db.delete("gone").expect("delete");
            db.put("key", value(3)).expect("put");
        })
    };
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let family = db.default_family();
            let s = db.snapshot();
            let seen = |key| s.of(&family).get(key).expect("get").map_or(0, |v| meaning(&v));
            let first = (seen("key"), seen("gone"));
            assert_eq!(first.1, u32::from(s.sequence() < 4), "{first:?} at {}", s.sequence());
            assert_eq!(first.0, [1, 1, 2, 2, 3][s.sequence() as usize - 1], "at {}", s.sequence());
            for _ in 0..2 {
                assert_eq!((seen("key"), seen("gone")), first, "at {}", s.sequence());
            }
            let options = crate::ReadOptions { snapshot: Some(&s), ..crate::ReadOptions::default() };
            let all = contents(family.cursor_with(options).expect("iter"));
            assert_eq!(all.get("key"), Some(&first.0));
            assert_eq!(all.contains_key("gone"), first.1 == 1);
        })
    };
    join([writer, reader, churn(&w.db, 3)]);
    w.db.compact().expect("compact");
    assert_eq!((get(w.db.default_family(), "key"), get(w.db.default_family(), "gone")), (3, 0));
}

fn iterators() {
    let w = World::new();
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=3 {
                let mut batch = WriteBatch::new();
                batch.delete_range(db.default_family(), b"a"..b"z").expect("delete");
                // The keys change from batch to batch, so that a missed deletion shows.
                batch.put(db.default_family(), format!("k{n}").as_bytes(), &value(n)).expect("put");
                batch.put(db.default_family(), b"last", &value(n)).expect("put");
                db.write(batch).expect("write");
            }
        })
    };
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let mut newest = 0;
            for _ in 0..3 {
                let all = contents(db.cursor(..).expect("iter"));
                let n = all.get("last").copied().unwrap_or(0);
                let expected: BTreeMap<String, u32> = match n {
                    0 => BTreeMap::new(),
                    n => [(format!("k{n}"), n), ("last".to_owned(), n)].into(),
                };
                assert_eq!(all, expected);
                assert!(n >= newest, "{n} after {newest}");
                newest = n;
            }
        })
    };
    join([writer, reader, churn(&w.db, 2)]);
    let expected = BTreeMap::from([("k3".to_owned(), 3), ("last".to_owned(), 3)]);
    assert_eq!(contents(w.killed().cursor(..).expect("iter")), expected);
}

fn sequences() {
    let w = World::new();
    let first = w.db.latest_sequence();
    let writers: Vec<_> = (0..3)
        .map(|t| {
            let db = w.db.clone();
            shuttle::thread::spawn(move || {
                let mut before = 0;
                for n in 1..=2 {
                    let key = format!("{t}-{n}");
                    let sets = [(db.default_family(), key.as_str(), n), (db.default_family(), "all", n)];
                    let seq = db.write(batch(&sets)).expect("write");
                    assert!(seq > before, "{seq} after {before}");
                    before = seq;
                    let visible = db.latest_sequence();
                    assert!(visible >= seq, "{visible} is visible after {seq} was acknowledged");
                    assert_eq!(get(db.default_family(), &key), n);
                }
            })
        })
        .collect();
    let mut seen = first;
    for _ in 0..3 {
        // At a snapshot every batch up to it is there, and each has two operations.
        let s = w.db.snapshot();
        assert!(s.sequence() >= seen && (s.sequence() - first).is_multiple_of(2), "{}", s.sequence());
        seen = s.sequence();
        let options = crate::ReadOptions { snapshot: Some(&s), ..crate::ReadOptions::default() };
        let all = contents(w.db.default_family().cursor_with(options).expect("iter"));
        let own = all.keys().filter(|k| *k != "all").count() as u64;
        assert_eq!(own, (seen - first) / 2, "{all:?} at {seen}");
    }
    join(writers);
    assert_eq!(w.db.latest_sequence(), first + 12);
    assert_eq!(contents(w.killed().cursor(..).expect("iter")).len(), 7);
}

fn pipeline() {
    crate::commit::pipeline_tests::commit_from_threads(3, 2, |threads| {
        join(threads.into_iter().map(|t| shuttle::thread::spawn(t)).collect::<Vec<_>>());
    });
}

fn families() {
    let w = World::new();
    let maker = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=2 {
                let f = db.create_family("temp", family_options()).expect("create");
                f.put("key", value(n)).expect("put");
                assert_eq!(get(&f, "key"), n);
                db.drop_family("temp").expect("drop");
                assert!(f.put("key", value(n)).is_err_and(|e| is_closed(&e)));
            }
        })
    };
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for n in 1..=3 {
                match db.family("temp") {
                    Ok(temp) => match db.write(batch(&[(db.default_family(), "both", n), (&temp, "both", n)])) {
                        Ok(_) => {
                            assert_eq!(get(db.default_family(), "both"), n);
                            match temp.get("both") {
                                Ok(found) => {
                                    // Dropped between the commit and the read, it is empty.
                                    let ok = found.map(|v| meaning(&v)) == Some(n) || db.family("temp").is_err();
                                    assert!(ok || temp.get("both").is_err(), "a batch lost half");
                                }
                                Err(e) => assert!(is_closed(&e), "{e}"),
                            }
                        }
                        Err(e) => assert!(is_closed(&e), "{e}"),
                    },
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
                }
                db.put("key", value(n)).expect("put");
            }
        })
    };
    join([maker, writer, churn(&w.db, 2)]);
    assert_eq!(w.db.families(), ["default"]);
    let found = w.killed();
    assert_eq!(found.families(), ["default"]);
    assert_eq!(get(found.default_family(), "key"), 3);
    assert_eq!(get(found.default_family(), "both"), get(w.db.default_family(), "both"));
}

fn close() {
    let w = World::new();
    let writers: Vec<_> = (0..2)
        .map(|t| {
            let db = w.db.clone();
            let acknowledged = Arc::new(AtomicU32::new(0));
            let last = acknowledged.clone();
            let thread = shuttle::thread::spawn(move || {
                for n in 1..=3 {
                    match db.put(format!("key-{t}"), value(n)) {
                        Ok(_) => last.store(n, Ordering::SeqCst),
                        Err(e) => assert!(is_closed(&e), "{e}"),
                    }
                }
            });
            (thread, acknowledged)
        })
        .collect();
    let worker = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for _ in 0..3 {
                if let Err(e) = db.run_one_job() {
                    assert!(is_closed(&e), "{e}");
                }
            }
        })
    };
    w.db.close().expect("close");
    assert!(w.db.get("key-0").is_err_and(|e| is_closed(&e)));
    join([worker]);
    let mut expected = Vec::new();
    for (thread, acknowledged) in writers {
        join([thread]);
        expected.push(acknowledged.load(Ordering::SeqCst));
    }
    let found = reopen(&w.fs);
    for (t, n) in expected.into_iter().enumerate() {
        assert_eq!(get(found.default_family(), &format!("key-{t}")), n);
    }
}

fn partitioning() {
    let w = World::new();
    let keys = ["a", "b", "c", "d"];
    for n in 1..=2 {
        keys.iter().for_each(|key| _ = w.db.put(key, value(n)).expect("put"));
        w.db.flush().expect("flush");
    }
    let limiter = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let inner = db.inner();
            let memtables = inner.memory.limit();
            // Room for one table and a few partitions, then for nothing but these, and then for all.
            for limit in [memtables + 1500, memtables + 400, 0] {
                inner.accountant.set(limit, 1 << 16);
                inner.tables.fit_memory();
                inner.balance_memory();
            }
        })
    };
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for _ in 0..2 {
                keys.iter().for_each(|key| assert_eq!(get(db.default_family(), key), 2));
                assert_eq!(contents(db.cursor(..).expect("iter")).len(), keys.len());
            }
        })
    };
    join([limiter, reader, churn(&w.db, 1)]);
    keys.iter().for_each(|key| assert_eq!(get(w.db.default_family(), key), 2));
    w.db.inner().balance_memory();
    assert_eq!(w.db.inner().accountant.partitions.used(), 0, "without a limit there are no partitions");
}

fn deletions() {
    let w = World::new();
    for key in ["a", "b", "c"] {
        w.db.put(key, value(1)).expect("put");
    }
    w.db.flush().expect("flush");
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.delete("a").expect("delete");
            assert_eq!(get(db.default_family(), "a"), 0);
            db.delete_range("b".."d").expect("delete");
            assert_eq!((get(db.default_family(), "b"), get(db.default_family(), "c")), (0, 0));
            db.put("c", value(2)).expect("put");
            assert_eq!((get(db.default_family(), "b"), get(db.default_family(), "c")), (0, 2));
        })
    };
    let merger = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            db.compact().expect("compact");
            jobs(&db, 3);
        })
    };
    let held = w.db.snapshot();
    let family = w.db.default_family();
    let seen: Vec<bool> = ["a", "b", "c"].map(|k| held.of(&family).get(k).expect("get").is_some()).to_vec();
    let expected = [held.sequence() < 4, held.sequence() < 5, held.sequence() != 5];
    assert_eq!(seen, expected, "at {}", held.sequence());
    join([writer, merger, churn(&w.db, 1)]);
    let again: Vec<bool> = ["a", "b", "c"].map(|k| held.of(&family).get(k).expect("get").is_some()).to_vec();
    assert_eq!(again, expected, "at {} afterwards", held.sequence());
    drop(held);
    w.db.compact().expect("compact");
    assert_eq!(contents(w.db.cursor(..).expect("iter")), BTreeMap::from([("c".to_owned(), 2)]));
}
