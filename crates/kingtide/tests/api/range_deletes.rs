//! The space of what range tombstones hide comes back without a request, where a merge is worth it.

use kingtide::vfs::MemFs;
use kingtide::{Db, FamilyOptions, Options};
use std::sync::Arc;

const KEYS: u64 = 20_000;

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:08}").into_bytes()
}

/// A family whose keys rest in the largest level, with values in a value log or in tables.
fn load(value: usize) -> Db {
    let db = Db::open("/db", Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true)).unwrap();
    let mut options = FamilyOptions::default();
    (options.memtable_size, options.target_file_size) = (128 << 10, 256 << 10);
    let family = db.create_family("tide", options).unwrap();
    for i in (0..KEYS).map(|i| i * 7919 % KEYS) {
        let bytes: Vec<u8> = (0..value).map(|n| (i * 31 + n as u64 * 17 + (i >> 3) * n as u64) as u8).collect();
        family.put(key(i), bytes).unwrap();
    }
    family.compact().unwrap();
    db.wait_for_background().unwrap();
    db
}

fn stored(db: &Db) -> u64 {
    let stats = db.family("tide").unwrap().range_stats(..).unwrap();
    stats.disk_bytes + stats.value_log_bytes
}

/// Deletes the first `of_ten` tenths of each of `spans` spans with one range tombstone each, and lets the engine do what it wants.
fn delete(db: &Db, spans: u64, of_ten: u64) {
    let family = db.family("tide").unwrap();
    let width = KEYS / spans;
    for i in 0..spans {
        family.delete_range(key(i * width)..key(i * width + width * of_ten / 10)).unwrap();
    }
    family.flush().unwrap();
    db.wait_for_background().unwrap();
}

fn check(db: &Db, spans: u64, of_ten: u64) {
    let width = KEYS / spans;
    let left: Vec<Vec<u8>> = db.family("tide").unwrap().iter().map(|e| e.unwrap().key.into_vec()).collect();
    let wanted: Vec<Vec<u8>> = (0..KEYS).filter(|i| i % width >= width * of_ten / 10).map(key).collect();
    assert!(left == wanted, "{} keys are left, not {}", left.len(), wanted.len());
}

#[test]
fn what_many_keys_left_behind_is_merged_away() {
    for (value, spans) in [(100, 1), (100, 50), (100, 400), (3000, 10)] {
        let db = load(value);
        let before = stored(&db);
        delete(&db, spans, 5);
        check(&db, spans, 5);
        let after = stored(&db);
        assert!(after * 10 < before * 6, "{value} bytes, {spans} spans: {before} bytes became {after}");
        let tombstones: u64 = db.family("tide").unwrap().range_stats(..).unwrap().range_tombstones;
        assert_eq!(tombstones, 0, "{value} bytes, {spans} spans");
    }
}

#[test]
fn a_few_keys_are_not_worth_a_merge_until_there_are_more() {
    let db = load(100);
    let before = stored(&db);
    let family = db.family("tide").unwrap();
    // Again and again, which hides no more than once. With the snapshots, the table has each of the ranges.
    let mut snapshots = Vec::new();
    for n in 0..500 {
        snapshots.push(db.snapshot());
        family.delete_range(key(7 + n % 100)..key(209)).unwrap();
        family.delete_range(key(KEYS / 2 + 7)..key(KEYS / 2 + 209 - n % 100)).unwrap();
    }
    family.flush().unwrap();
    let tombstones = family.range_stats(..).unwrap().range_tombstones;
    assert!(tombstones >= 1000, "{tombstones}");
    drop(snapshots);
    db.wait_for_background().unwrap();
    assert!(stored(&db) >= before, "{before} bytes became {}", stored(&db));
    delete(&db, 10, 5);
    check(&db, 10, 5);
    assert!(stored(&db) * 10 < before * 6, "{before} bytes became {}", stored(&db));
}

#[test]
fn a_snapshot_that_reads_them_comes_first() {
    let db = load(100);
    let before = stored(&db);
    let snapshot = db.snapshot();
    delete(&db, 10, 5);
    assert!(stored(&db) >= before, "{before} bytes became {}", stored(&db));
    drop(snapshot);
    db.wait_for_background().unwrap();
    check(&db, 10, 5);
    assert!(stored(&db) * 10 < before * 6, "{before} bytes became {}", stored(&db));
}
