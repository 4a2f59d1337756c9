//! Bugs that Kingtide itself had.

use crate::{contents, files, key, open, options, value};
use kingtide::vfs::MemFs;
use kingtide::{ColumnFamily, Db, ErrorKind};

/// Writes to the default family until the beginning of the log is released.
fn write_until_released(fs: &MemFs, db: &Db) {
    let oldest = files(fs, ".wal").into_iter().filter(|p| p.extension().is_some_and(|e| e == "wal")).min();
    for i in 0..3000 {
        db.put(key(i % 100), value(i)).unwrap();
    }
    db.flush().unwrap();
    while db.run_one_job().unwrap() {}
    let now = files(fs, ".wal").into_iter().filter(|p| p.extension().is_some_and(|e| e == "wal")).min();
    assert!(now > oldest, "no segment was released: {now:?}");
}

/// Makes the manifest so long that it is rewritten.
fn rewrite_manifest(fs: &MemFs, family: &ColumnFamily) {
    let before = files(fs, "MANIFEST-");
    let mut written = 0;
    while files(fs, "MANIFEST-") == before {
        family.set_option("l0_trigger", if written % 2 == 0 { "3" } else { "4" }).unwrap();
        written += 1;
        assert!(written < 10_000, "the manifest was not rewritten");
    }
}

/// A family's memtable counted as holding operations from the moment when it was made, not from its first entry: the first
/// write to a family that had long been idle moved the log's start back before segments that were released by then. The
/// next manifest said so, and a database that was killed after that was refused: "a segment is missing".
#[test]
fn the_first_write_to_an_idle_family_does_not_move_the_logs_start_back() {
    let fs = MemFs::new();
    let db = open(&fs);
    let idle = db.create_family("idle", options(&fs).family).unwrap();
    write_until_released(&fs, &db);
    idle.put(b"first", b"written").unwrap();
    db.put(key(1), b"after").unwrap();
    db.default_family().flush().unwrap();
    rewrite_manifest(&fs, &idle);
    let expected = (contents(&db.default_family()), contents(&idle));
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!((contents(&db.default_family()), contents(&db.family("idle").unwrap())), expected);
}

/// The same after a reopen, where the memtable was counted from what its family had flushed.
#[test]
fn nor_does_it_after_a_recovery() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.create_family("idle", options(&fs).family).unwrap().put(b"old", b"flushed").unwrap();
    db.flush().unwrap();
    write_until_released(&fs, &db);
    let fs = fs.kill_clone();
    drop(db);
    let db = open(&fs);
    let idle = db.family("idle").unwrap();
    write_until_released(&fs, &db);
    idle.put(b"first", b"written").unwrap();
    db.put(key(1), b"after").unwrap();
    db.default_family().flush().unwrap();
    rewrite_manifest(&fs, &idle);
    let expected = (contents(&db.default_family()), contents(&idle));
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!((contents(&db.default_family()), contents(&db.family("idle").unwrap())), expected);
}
