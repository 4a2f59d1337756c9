//! Flushes and compactions raise sequence numbers that no reader can tell apart, for the space. What is newer stays newer.

use kingtide::vfs::MemFs;
use kingtide::{Db, ErrorKind, IngestOptions, Isolation, Options, SortedFileWriter};
use kingtide_base::rng::Rng;
use std::path::Path;

fn open() -> Db {
    let fs = MemFs::shared();
    fs.create_dir_all(Path::new("files")).unwrap();
    Db::open("db", Options::new().fs(fs).manual_jobs(true)).unwrap()
}

fn table_bytes(db: &Db) -> u64 {
    db.stats().get("klog_bytes").unwrap()
}

fn run_jobs(db: &Db) {
    while db.run_one_job().unwrap() {}
}

fn all(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    db.iter().map(|e| e.unwrap().into()).collect()
}

/// Puts a hundred thousand entries in an order of their own.
fn put_all(db: &Db, seed: Option<u64>) {
    let mut keys: Vec<u64> = (0..100_000).collect();
    if let Some(seed) = seed {
        let mut rng = Rng::new(seed);
        keys.sort_by_cached_key(|_| rng.next_u64());
    }
    for key in keys {
        db.put(format!("{key:016x}"), key.to_be_bytes()).unwrap();
    }
}

#[test]
fn tables_do_not_store_in_which_order_keys_were_put() {
    let sizes = |seed| {
        let db = open();
        put_all(&db, seed);
        db.flush().unwrap();
        let flushed = table_bytes(&db);
        put_all(&db, seed.map(|s| s + 1));
        db.flush().unwrap();
        run_jobs(&db);
        db.compact().unwrap();
        (flushed, table_bytes(&db))
    };
    let (in_order, at_random) = (sizes(None), sizes(Some(1)));
    assert!(at_random.0 <= in_order.0 + in_order.0 / 200, "flushed: {at_random:?} bytes, in order {in_order:?}");
    assert!(at_random.1 <= in_order.1 + in_order.1 / 200, "compacted: {at_random:?} bytes, in order {in_order:?}");
    assert!(in_order.1 <= in_order.0 + in_order.0 / 50, "compacted: {in_order:?}");
}

/// The number of an ingested table is higher than those of puts that are still in memory, and it is merged with older tables of their keys.
#[test]
fn a_merge_does_not_raise_puts_above_those_in_memory() {
    let db = open();
    db.default_family().set_option("l0_trigger", "2").unwrap();
    for key in ["a", "k", "m", "z"] {
        db.put(key, "old").unwrap();
    }
    db.flush().unwrap();
    db.put("m", "new").unwrap();
    db.delete("k").unwrap();
    let mut file = SortedFileWriter::create("files/b", db.default_family()).unwrap();
    file.put(b"b", b"ingested").unwrap();
    file.finish().unwrap();
    db.default_family().ingest(&["files/b"], &IngestOptions::new()).unwrap();
    run_jobs(&db);
    assert_eq!(db.stats().get("compactions"), Some(1), "the tables are not merged, so this shows nothing");
    let wanted = [("a", "old"), ("b", "ingested"), ("m", "new"), ("z", "old")];
    let wanted: Vec<_> = wanted.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
    assert_eq!(all(&db), wanted);
    assert_eq!(db.get("m").unwrap().as_deref(), Some(&b"new"[..]));
    // A read meets what is newer first, but a merge goes by the numbers, and the flush does not raise that of the delete.
    db.compact().unwrap();
    assert_eq!(all(&db), wanted);
    assert!(db.verify().unwrap().is_clean());
}

/// A transaction finds a conflict with what changed after it began, and none with what did not, whatever was flushed and merged meanwhile.
#[test]
fn transactions_ask_about_raised_numbers() {
    let db = open();
    for key in ["a", "b", "c"] {
        db.put(key, "0").unwrap();
    }
    let begin = |key: &[u8]| {
        let mut txn = db.begin(Isolation::Serializable).unwrap();
        txn.get(db.default_family(), key).unwrap();
        txn.put(db.default_family(), key, b"txn").unwrap();
        txn
    };
    let (mut changed, mut unchanged) = (begin(b"a"), begin(b"b"));
    db.put("a", "1").unwrap();
    db.put("c", "1").unwrap();
    db.flush().unwrap();
    run_jobs(&db);
    db.put("c", "2").unwrap();
    db.compact().unwrap();
    assert_eq!(changed.commit().unwrap_err().kind(), ErrorKind::Conflict);
    unchanged.commit().unwrap();
}
