//! What follows the commits of other threads: pinned moments, hooks, change streams.

use super::world::*;
use crate::{ChangeStreamOptions, CommittedWrites, ErrorKind};
use kingtide_testkit::scenarios;
use std::sync::Arc;
use std::sync::Mutex;

scenarios! {
    /// A pinned moment stays readable whatever is flushed and merged, and shows the same.
    shuttle_pinned_moments_are_kept => pins;
    /// Every sequence number from the oldest readable one on shows what it showed.
    shuttle_old_moments_are_whole_or_too_old => moments;
    /// Hooks run in commit order, before their commits return, also when they commit.
    shuttle_hooks_run_in_order => hooks;
    /// A stream shows every commit once, in order, while segments come and go.
    shuttle_streams_show_every_commit => stream;
}

fn pins() {
    let w = World::new();
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || (1..=4).for_each(|n| drop(db.put("key", value(n)).expect("put"))))
    };
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            let list = &db.inner().snapshots;
            let slot = list.claim_slot().expect("slot");
            for _ in 0..2 {
                let seq = list.pin(slot);
                for _ in 0..2 {
                    // Settled, so a handle of it can be opened, however late.
                    let s = db.snapshot_at(seq).expect("pinned");
                    let seen = s.of(db.default_family()).get("key").expect("get").map_or(0, |v| meaning(&v));
                    assert_eq!(seen as u64, seq, "one put a sequence number");
                }
            }
            list.release_slot(slot);
        })
    };
    join([writer, reader, churn(&w.db, 3)]);
}

fn moments() {
    let w = World::new();
    let writer = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || (1..=4).for_each(|n| drop(db.put("key", value(n)).expect("put"))))
    };
    let reader = {
        let db = w.db.clone();
        shuttle::thread::spawn(move || {
            for _ in 0..2 {
                let (oldest, newest) = (db.oldest_readable_sequence(), db.latest_sequence());
                for seq in oldest..=newest {
                    let s = match db.snapshot_at(seq) {
                        Ok(s) => s,
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::TooOld);
                            assert!(db.oldest_readable_sequence() > seq, "{e}");
                            continue;
                        }
                    };
                    let seen = s.of(db.default_family()).get("key").expect("get").map_or(0, |v| meaning(&v));
                    assert_eq!(seen as u64, seq);
                }
            }
        })
    };
    join([writer, reader, churn(&w.db, 3)]);
}

fn hooks() {
    let w = World::new();
    let log = w.db.create_family("log", family_options()).expect("create");
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let echoed: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (inside, to) = (seen.clone(), log.clone());
    w.db.default_family()
        .set_commit_hook(Some(Arc::new(move |c: &CommittedWrites<'_>| {
            inside.lock().expect("lock").push(c.sequence());
            to.put(c.sequence().to_be_bytes(), "").expect("put from a hook");
        })))
        .unwrap();
    let inside = echoed.clone();
    log.set_commit_hook(Some(Arc::new(move |c: &CommittedWrites<'_>| {
        inside.lock().expect("lock").push(c.sequence());
    })))
    .unwrap();
    let threads: Vec<_> = (0..2)
        .map(|t| {
            let (db, seen) = (w.db.clone(), seen.clone());
            shuttle::thread::spawn(move || {
                for n in 0..2 {
                    let seq = db.write(batch(&[(db.default_family(), &format!("{t}-{n}"), n)])).expect("write");
                    assert!(seen.lock().expect("lock").contains(&seq), "the hook runs before the call returns");
                }
            })
        })
        .collect();
    join(threads);
    for (name, told) in [("default", &seen), ("log", &echoed)] {
        let told = told.lock().expect("lock");
        assert!(told.len() == 4 && told.is_sorted(), "{name}: {told:?}");
    }
    w.db.close().expect("close"); // the hook holds a handle
}

fn stream() {
    let w = World::with(|o| {
        o.db.max_wal_size = 1 << 17;
        o.family.direct_value_threshold = 40 << 10;
    });
    // In the log, where they fill segments, two or three each; and in value logs, from which a flush may move them.
    let values = [vec![b'7'; 30 << 10], vec![b'8'; 40 << 10], vec![b'9'; 30 << 10]];
    let writers: Vec<_> = (0..2)
        .map(|t| {
            let (db, values) = (w.db.clone(), values.clone());
            shuttle::thread::spawn(move || {
                values
                    .iter()
                    .enumerate()
                    .for_each(|(n, value)| drop(db.put(format!("key-{t}-{n}"), value).expect("put")));
            })
        })
        .collect();
    let reader = {
        let (db, values) = (w.db.clone(), values.clone());
        shuttle::thread::spawn(move || {
            let mut next = 1;
            while next <= 6 {
                let mut stream = match db.changes_with(next - 1, ChangeStreamOptions::default()) {
                    Ok(stream) => stream,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::TooOld);
                        next = db.oldest_change_sequence().max(next - 1) + 1;
                        continue;
                    }
                };
                loop {
                    match stream.next() {
                        Ok(Some(record)) => {
                            assert_eq!((record.first_sequence, record.len()), (next, 1));
                            let whole = |c: crate::Change<'_>| {
                                c.key.last().is_some_and(|n| *c.value == values[usize::from(n - b'0')][..])
                            };
                            assert!(record.operations().all(whole));
                            next += 1;
                        }
                        Ok(None) if next > 6 => break,
                        Ok(None) => shuttle::thread::yield_now(),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::TooOld, "{e}");
                            assert!(!e.to_string().contains("large value"), "none was overwritten: {e}");
                            break;
                        }
                    }
                }
            }
            assert!(next == 7);
        })
    };
    join(writers.into_iter().chain([reader, churn(&w.db, 3)]));
}
