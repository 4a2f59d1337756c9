//! Streams over a database that is being written.

use super::{History, add, full, open, random_batch};
use kingtide::vfs::MemFs;
use kingtide::{ChangeStreamOptions, Db, ErrorKind, FamilyOptions, WriteBatch, WriteOptions};
use kingtide_base::rng::{Rng, entropy};
use kingtide_testkit::RaiseOnDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Writers commit random batches, some of them synced; returns what they committed.
fn write_from_threads(db: &Db, seed: u64, threads: u64, each: u64) -> History {
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..threads)
            .map(|t| {
                let (db, other) = (db.clone(), db.family("other").unwrap());
                s.spawn(move || {
                    let mut rng = Rng::new(seed ^ t << 32);
                    let mut batch = WriteBatch::new();
                    let mut mine = History::new();
                    for _ in 0..each {
                        let ops = random_batch(&mut rng, &mut batch, [db.default_family(), &other], 6);
                        let durability = rng.one_in(10).then_some(kingtide::Durability::Power);
                        let options = WriteOptions::new().durability(durability);
                        mine.insert(db.write_with(&mut batch, &options).unwrap(), ops);
                        if rng.one_in(200) {
                            db.default_family().flush().unwrap();
                        }
                    }
                    mine
                })
            })
            .collect();
        writers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    })
}

/// Readers follow four writers, with and without resuming at random places; each sees exactly what was committed.
#[test]
fn readers_that_follow_see_every_commit_once_and_in_order() {
    let seed = entropy();
    println!("seed {seed}");
    let each = if full() { 20_000 } else { 1_000 };
    let fs = Arc::new(MemFs::new());
    let db = open(&fs, 1 << 40);
    db.create_family("other", FamilyOptions::default()).unwrap();
    let written = AtomicBool::new(false);
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&written);
        let (db, written) = (&db, &written);
        let readers: Vec<_> = (0..3)
            .map(|r| {
                s.spawn(move || {
                    let mut rng = Rng::new(seed + r);
                    let options = ChangeStreamOptions::new().durable_only(r == 2);
                    let mut stream = db.changes_with(0, options).unwrap();
                    let mut seen = History::new();
                    loop {
                        let last_look = written.load(Ordering::Acquire);
                        while let Some(record) = stream.wait_next(Duration::from_millis(2)).unwrap() {
                            add(&mut seen, &record);
                            if r > 0 && rng.one_in(50) {
                                stream = db.changes_with(record.last_sequence, options).unwrap();
                            }
                        }
                        if last_look {
                            return seen;
                        }
                    }
                })
            })
            .collect();
        let history = write_from_threads(db, seed, 4, each);
        db.sync().unwrap();
        drop(end);
        for reader in readers {
            assert!(reader.join().unwrap() == history);
        }
        assert!(super::since(db, 0) == history);
    });
    assert!(db.stats().get("flushes").unwrap() > 4, "the log turned over");
    db.close().unwrap();
}

/// Without retention segments are recycled under a reader that is slower than the writers. It gets whole and true
/// records or `TooOld`, never anything else.
#[test]
fn a_reader_that_falls_behind_is_told_and_never_shown_anything_false() {
    let seed = entropy();
    println!("seed {seed}");
    let each = if full() { 40_000 } else { 2_500 };
    let fs = Arc::new(MemFs::new());
    let db = open(&fs, 0);
    db.create_family("other", FamilyOptions::default()).unwrap();
    let written = AtomicBool::new(false);
    let (history, seen, lost) = std::thread::scope(|s| {
        let end = RaiseOnDrop(&written);
        let reader = s.spawn(|| {
            let mut rng = Rng::new(seed);
            let (mut seen, mut lost) = (History::new(), 0);
            let mut stream = db.changes_since(0).unwrap();
            loop {
                let last_look = written.load(Ordering::Acquire);
                match stream.next() {
                    Ok(Some(record)) => {
                        seen.insert(record.last_sequence, super::ops_of(&record));
                        // At the first record, and now and then, it does nothing until the log has passed it by.
                        let rests = seen.len() == 1 || rng.one_in(1000);
                        let passed_by = || db.oldest_change_sequence() > record.last_sequence;
                        while rests && !passed_by() && !written.load(Ordering::Acquire) {
                            std::thread::yield_now();
                        }
                    }
                    Ok(None) if last_look => return (seen, lost),
                    Ok(None) => std::thread::yield_now(),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::TooOld, "{e}");
                        assert_eq!(stream.next().unwrap_err().kind(), ErrorKind::TooOld, "it stays so");
                        lost += 1;
                        // May be recycled further before the stream is there.
                        stream = std::iter::repeat_with(|| db.changes_since(db.oldest_change_sequence()))
                            .find_map(Result::ok)
                            .unwrap();
                    }
                }
            }
        });
        let history = write_from_threads(&db, seed, 3, each);
        drop(end);
        let (seen, lost) = reader.join().unwrap();
        (history, seen, lost)
    });
    for (last, ops) in &seen {
        assert_eq!(history.get(last), Some(ops), "record that ends at {last}");
    }
    assert!(lost > 0 && seen.len() < history.len(), "lost {lost} times, saw {} of {}", seen.len(), history.len());
    assert_eq!(seen.last_key_value().map(|x| x.0), history.last_key_value().map(|x| x.0));
    db.close().unwrap();
}
