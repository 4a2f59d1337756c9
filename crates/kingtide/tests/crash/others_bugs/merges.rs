//! Flushes and merges, and what they must keep.

use super::{Contents, contents, files, key, large, open, options, small, value};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule};
use kingtide::{ColumnFamily, Db, ManualClock, Snapshot};
use std::sync::Arc;
use std::time::Duration;

/// Puts, overwrites and deletes with a snapshot between each of them; `between` runs after each step. Returns what every
/// snapshot has to see.
fn history(db: &Db, between: impl Fn(&Db)) -> Vec<(Snapshot, Contents)> {
    let mut snapshots = Vec::new();
    for step in 0..6u64 {
        for i in 0..30 {
            match (i + step) % 5 {
                0 => db.delete(key(i)).unwrap(),
                1 => db.delete_range(key(i)..key(i + 2)).unwrap(),
                2 => db.put(key(i), large(i * 10 + step)).unwrap(),
                _ => db.put(key(i), value(i * 10 + step)).unwrap(),
            };
        }
        snapshots.push((db.snapshot(), contents(db.default_family())));
        between(db);
    }
    snapshots
}

fn check(family: &ColumnFamily, snapshots: &[(Snapshot, Contents)], what: &str) {
    for (n, (snapshot, expected)) in snapshots.iter().enumerate() {
        for i in 0..30 {
            let found = snapshot.of(family).get(key(i)).unwrap().map(|v| v.to_vec());
            assert_eq!(found.as_ref(), expected.get(&key(i)), "{what}: key {i} at snapshot {n}");
        }
        let found: Contents = snapshot.of(family).iter().map(|e| e.unwrap().into()).collect();
        assert_eq!(&found, expected, "{what}: a scan at snapshot {n}");
    }
}

/// A flush kept only the newest version of a key, though a snapshot was open that saw an older one.
#[test]
fn a_flush_does_not_ignore_an_active_snapshot() {
    let db = open(&MemFs::new());
    let mut snapshots = history(&db, |_| {});
    db.flush().unwrap();
    check(db.default_family(), &snapshots, "all in one memtable");
    snapshots.remove(2);
    let db = open(&MemFs::new());
    let snapshots = history(&db, |db| db.flush().unwrap());
    check(db.default_family(), &snapshots, "a memtable a snapshot");
}

/// A compaction dropped what only an older snapshot saw.
#[test]
fn a_compaction_does_not_ignore_an_active_snapshot() {
    let db = open(&MemFs::new());
    let mut snapshots = history(&db, |db| db.flush().unwrap());
    while !snapshots.is_empty() {
        db.compact().unwrap();
        check(db.default_family(), &snapshots, "compacted");
        snapshots.remove(snapshots.len() / 2);
        // Something to merge again.
        db.put(b"zzz", b"1").unwrap();
        db.flush().unwrap();
    }
    let expected = contents(db.default_family());
    db.compact().unwrap();
    assert_eq!(contents(db.default_family()), expected);
}

/// A tombstone was dropped by a merge that did not reach the level in which the deleted key still was, and the key came back.
/// Here keys in the deepest level are deleted in each way, and merges of every part happen in every order.
#[test]
fn deleted_keys_are_not_resurrected() {
    for way in 0..4 {
        for part in 0..3 {
            let fs = MemFs::new();
            let mut o = options(&fs);
            o.family.l0_trigger = 2;
            let db = Db::open(super::DIR, o).unwrap();
            let family = db.default_family();
            for i in 0..200 {
                db.put(key(i), large(i)).unwrap();
            }
            db.compact().unwrap();
            db.put(key(0), value(0)).unwrap(); // a level in between
            db.put(key(199), value(0)).unwrap();
            db.flush().unwrap();
            match way {
                0 => (50..150).for_each(|i| {
                    db.delete(key(i)).unwrap();
                }),
                1 => (50..150).for_each(|i| {
                    db.single_delete(key(i)).unwrap();
                }),
                2 => {
                    db.delete_range(key(50)..key(150)).unwrap();
                }
                _ => (50..150).step_by(10).for_each(|i| {
                    db.delete_range(key(i)..key(i + 10)).unwrap();
                }),
            }
            db.put(key(300), value(1)).unwrap();
            db.flush().unwrap();
            let gone = |db: &Db, what: &str| {
                let found: Vec<u64> = (50..150).filter(|i| db.get(key(*i)).unwrap().is_some()).collect();
                assert_eq!(found, [0u64; 0], "resurrected {what}: way {way}, part {part}");
                assert_eq!(contents(db.default_family()).len(), 101);
            };
            gone(&db, "after the flush");
            match part {
                0 => family.compact_range(&key(60)..=&key(90)).unwrap(),
                1 => family.compact_range(&key(140)..).unwrap(),
                _ => while db.run_one_job().unwrap() {},
            }
            gone(&db, "after a part was merged");
            for n in 0..3 {
                db.put(key(400), value(n)).unwrap();
                db.flush().unwrap();
                while db.run_one_job().unwrap() {}
            }
            db.delete(key(400)).unwrap();
            gone(&db, "after merges of level 0");
            db.compact().unwrap();
            gone(&db, "after all was merged");
            db.close().unwrap();
            gone(&open(&fs), "after a reopen");
        }
    }
}

/// The tombstone of a deleted range went into the first of several output files only: keys behind the cut came back. Here a
/// range over many files is deleted while a snapshot holds the keys, so that merges must write both.
#[test]
fn a_deleted_range_is_whole_across_the_files_of_a_merge() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.family = small().value_threshold(0).compression(kingtide::Compression::None);
    let db = Db::open(super::DIR, o).unwrap();
    for i in 0..400 {
        db.put(key(i), large(i)).unwrap();
    }
    db.compact().unwrap();
    let before = db.snapshot();
    db.delete_range(key(10)..key(390)).unwrap();
    db.compact().unwrap();
    assert!(files(&fs, ".klog").len() > 3, "one file has no boundary");
    assert_eq!(contents(db.default_family()).len(), 20);
    let seen = (0..400).filter(|i| before.of(db.default_family()).get(key(*i)).unwrap().is_some()).count();
    assert_eq!(seen, 400);
    drop(before);
    db.compact().unwrap();
    assert_eq!(contents(db.default_family()).len(), 20);
}

/// The first read of an input, at offset 0, failed; the merge took that for an empty file, installed what it had, and deleted
/// its inputs. Here a read of the inputs fails at each place, entirely or in part.
#[test]
fn a_read_error_in_a_compaction_loses_nothing() {
    for fault in [Fault::Eio, Fault::ShortRead] {
        for nth in 1..=12 {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let mut o = options(&fs);
            o.db.block_cache_size = 0;
            let db = Db::open(super::DIR, o).unwrap();
            let mut stored = Contents::new();
            for i in 0..120 {
                db.put(key(i % 60), large(i)).unwrap();
                stored.insert(key(i % 60), large(i));
                if i % 40 == 39 {
                    db.flush().unwrap();
                }
            }
            fs.add(Rule::new(Op::Read, fault).path(".klog").nth(nth).sticky());
            let merged = db.compact();
            let met = fs.stats().injected() > 0;
            fs.clear();
            assert!(met || nth > 3, "{fault:?}: no read {nth}");
            assert!(merged.is_err() || !met || fault == Fault::ShortRead, "{fault:?} at read {nth} went unnoticed");
            assert_eq!(contents(db.default_family()), stored, "{fault:?} at read {nth}");
            db.compact().unwrap();
            assert_eq!(contents(db.default_family()), stored);
            db.close().unwrap();
            assert_eq!(contents(open(&disk).default_family()), stored, "{fault:?} at read {nth}, reopened");
        }
    }
}

/// Expiry was compared in another unit, or with the wrong bound, by one of the two that decide on it: reads and merges. Here both
/// are asked in the last millisecond of an entry's life and in the first after it.
#[test]
fn an_entry_expires_neither_early_nor_late() {
    let fs = MemFs::new();
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let mut o = options(&fs);
    o.clock = Some(clock.clone());
    let db = Db::open(super::DIR, o).unwrap();
    for i in 0..40 {
        db.put_ttl(key(i), value(i), Duration::from_millis(1000 * (i + 1))).unwrap();
    }
    for i in 0..40 {
        clock.advance(Duration::from_millis(999));
        db.put(key(1000), value(i)).unwrap(); // something to merge
        if i % 4 != 0 {
            db.compact().unwrap();
        }
        assert!(db.get(key(i)).unwrap().is_some(), "expired early: {i}");
        clock.advance(Duration::from_millis(1));
        assert!(db.get(key(i)).unwrap().is_none(), "expired late: {i}");
        assert_eq!(contents(db.default_family()).len() as u64, 40 - i);
    }
}
