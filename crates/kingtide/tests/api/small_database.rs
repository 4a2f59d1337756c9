//! A whole database's life in a few dozen operations: small enough for Miri, which runs it with all the engine's threads
//! and tells undefined behaviour and data races, also those of the crates that it stands on.

use kingtide::vfs::{Fs, MemFs};
use kingtide::{ColumnFamily, Compression, Db, ErrorKind, FamilyOptions, Isolation, Options, WriteBatch};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No compression: Miri runs no C. Two threads, so that flush and merge meet.
fn options(fs: &Arc<dyn Fs>, manual: bool) -> Options {
    let mut options = Options::new().fs(fs.clone()).manual_jobs(manual);
    options.db.wal_segment_size = 64 << 10;
    options.db.background_threads = 2;
    options.db.cache_shards = 1;
    options.db.block_cache_size = 64 << 10;
    options.family.memtable_size = 64 << 10;
    options.family.block_size = 512;
    options.family.value_threshold = 200;
    options.family.compression = Compression::None;
    options
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:04}").into_bytes()
}

/// Every fifth is large enough for a value log.
fn value(i: u64, round: u64) -> Vec<u8> {
    vec![(i + round) as u8; if i.is_multiple_of(5) { 300 } else { 10 }]
}

fn content(family: &ColumnFamily) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut it = family.cursor(..).unwrap();
    it.seek_to_first();
    let mut all = BTreeMap::new();
    while it.valid() {
        all.insert(it.key().to_vec(), it.value().unwrap().to_vec());
        it.next();
    }
    it.status().unwrap();
    all
}

#[test]
fn written_flushed_merged_read_and_reopened() {
    let keys: u64 = if cfg!(miri) { 24 } else { 400 };
    let fs = MemFs::shared();
    let mut model = BTreeMap::new();
    let db = Db::open("db", options(&fs, true)).unwrap();
    for round in 0..2 {
        for i in round..keys {
            db.put(key(i), value(i, round)).unwrap();
            model.insert(key(i), value(i, round));
        }
        db.delete(key(round + 3)).unwrap();
        db.delete_range(key(keys - 4 - round)..key(keys - 3)).unwrap();
        model.remove(&key(round + 3));
        model.retain(|k, _| !(key(keys - 4 - round)..key(keys - 3)).contains(k));
        db.flush().unwrap();
        assert_eq!(content(db.default_family()), model);
    }
    let snapshot = db.snapshot();
    db.put(key(0), b"newer").unwrap();
    db.compact().unwrap();
    assert_eq!(snapshot.of(db.default_family()).get(key(0)).unwrap().as_deref(), model.get(&key(0)).map(|v| &v[..]));
    model.insert(key(0), b"newer".to_vec());
    db.put(b"only in the log", b"x").unwrap();
    model.insert(b"only in the log".to_vec(), b"x".to_vec());
    drop(snapshot);
    db.close().unwrap();
    let db = Db::open("db", options(&fs, true)).unwrap();
    assert_eq!(content(db.default_family()), model);
    for i in 0..keys {
        assert_eq!(db.get(key(i)).unwrap().as_deref(), model.get(&key(i)).map(|v| &v[..]), "{i}");
    }
    db.close().unwrap();
}

#[test]
fn transactions_over_two_families() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs, true)).unwrap();
    let other = db.create_family("other", FamilyOptions::clone(&options(&fs, true).family)).unwrap();
    let mut first = db.begin(Isolation::Serializable).unwrap();
    let mut second = db.begin(Isolation::Serializable).unwrap();
    for (t, name) in [(&mut first, b"first"), (&mut second, b"secnd")] {
        assert!(t.get(&other, b"taken").unwrap().is_none());
        t.put(&other, b"taken", name).unwrap();
        t.put(db.default_family(), name, b"").unwrap();
    }
    first.commit().unwrap();
    assert_eq!(second.commit().unwrap_err().kind(), ErrorKind::Conflict);
    let mut prepared = db.begin(Isolation::Snapshot).unwrap();
    prepared.put(&other, b"in doubt", b"v").unwrap();
    prepared.prepare(b"gid").unwrap();
    drop((prepared, other));
    db.close().unwrap();
    let db = Db::open("db", options(&fs, true)).unwrap();
    db.commit_prepared(b"gid").unwrap();
    let expected = [(b"in doubt".to_vec(), b"v".to_vec()), (b"taken".to_vec(), b"first".to_vec())];
    assert_eq!(content(&db.family("other").unwrap()), BTreeMap::from(expected));
    assert_eq!(content(db.default_family()).into_keys().collect::<Vec<_>>(), [b"first"]);
}

/// Two writers, a reader and the engine's own threads. Batches are seen whole.
#[test]
fn threads_beside_each_other() {
    let batches: u64 = if cfg!(miri) { 4 } else { 200 };
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs, false)).unwrap();
    std::thread::scope(|s| {
        for w in 0..2u64 {
            let db = &db;
            s.spawn(move || {
                for n in 1..=batches {
                    let mut batch = WriteBatch::new();
                    for half in 0..2 {
                        batch.put(db.default_family(), &[w as u8, half], &n.to_le_bytes()).unwrap();
                    }
                    db.write(batch).unwrap();
                    if n == batches / 2 {
                        db.flush().unwrap();
                    }
                }
            });
        }
        s.spawn(|| {
            for _ in 0..batches {
                let snapshot = db.snapshot();
                for w in 0..2 {
                    let get = |half| snapshot.of(db.default_family()).get([w, half]).unwrap().map(|v| v.to_vec());
                    assert_eq!(get(0), get(1), "part of a batch");
                }
                let mut it = db.cursor(..).unwrap();
                it.seek_to_first();
                while it.valid() {
                    it.next();
                }
                it.status().unwrap();
            }
        });
    });
    db.close().unwrap();
    let db = Db::open("db", options(&fs, false)).unwrap();
    let last = batches.to_le_bytes().to_vec();
    assert!(content(db.default_family()).values().eq([&last; 4]));
}

/// A background thread that ends may hold the last reference to the database; no other thread waits for what it frees then.
#[test]
fn nothing_of_a_dropped_database_is_left_to_its_threads() {
    for round in 0..if cfg!(miri) { 2 } else { 300 } {
        let fs = MemFs::shared();
        let db = Db::open("db", options(&fs, false)).unwrap();
        db.put(key(round), value(round, 0)).unwrap();
        drop(db);
        assert_eq!(Arc::strong_count(&fs), 1, "after {round} rounds");
    }
}
