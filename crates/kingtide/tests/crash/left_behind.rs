//! What failed jobs leave on the disk: nothing that stays, and little for as long as they fail.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
use kingtide::{Db, Durability, ErrorKind, ManualClock, Options, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn options(fs: Arc<dyn Fs>) -> Options {
    let mut o = Options::new().fs(fs).manual_jobs(true);
    o.family.direct_value_threshold = 500;
    o.family.value_threshold = 200;
    o
}

fn value(i: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(i).fill(&mut bytes);
    bytes
}

/// The names of tables and value logs.
fn files(fs: &MemFs) -> BTreeSet<String> {
    let names = fs.list(Path::new("db")).unwrap().into_iter();
    names.filter(|name| name.ends_with(".klog") || name.ends_with(".vlog")).collect()
}

/// Those that the next open removes.
fn left_behind(fs: &MemFs) -> BTreeSet<String> {
    let (before, again) = (files(fs), fs.kill_clone());
    let db = Db::open("db", options(Arc::new(again.clone()))).unwrap();
    let after = files(&again);
    drop(db);
    before.difference(&after).cloned().collect()
}

fn run_all_jobs(db: &Db) {
    while db.run_one_job().unwrap() {}
}

/// The files of a record that failed may be in the manifest and must stay until it is written anew. Until it can be, no job makes more.
#[test]
fn a_manifest_that_cannot_be_written_does_not_let_files_pile_up() {
    let fs = MemFs::new();
    let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let db = Db::open("db", options(faults.clone())).unwrap();
    let put = |from: u64| (from..from + 10).for_each(|i| _ = db.put(i.to_be_bytes(), value(i, 300)).unwrap());
    let fails = || faults.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").sticky());
    put(0);
    fails();
    (0..5).for_each(|_| drop(db.flush().unwrap_err()));
    assert_eq!(files(&fs).len(), 2, "a table and its value log: {:?}", files(&fs));
    faults.clear();
    db.flush().unwrap();
    run_all_jobs(&db);
    assert_eq!(files(&fs).len(), 2, "{:?}", files(&fs));
    put(5);
    db.flush().unwrap();
    fails();
    (0..5).for_each(|_| drop(db.compact().unwrap_err()));
    assert!(files(&fs).len() <= 6, "four, and those of one compaction: {:?}", files(&fs));
    faults.clear();
    db.compact().unwrap();
    run_all_jobs(&db);
    assert!((0..15u64).all(|i| db.get(i.to_be_bytes()).unwrap().unwrap() == value(i, 300)));
    assert_eq!(left_behind(&fs), BTreeSet::new());
}

/// A value log that commits wrote is kept for a record that may be in the manifest, and not for longer.
#[test]
fn a_value_log_of_a_failed_record_goes_when_nothing_needs_it() {
    for dropped in [false, true] {
        let fs = MemFs::new();
        let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
        let clock = ManualClock::at_unix_ms(1_800_000_000_000);
        let options = options(faults.clone()).clock(clock.clone());
        let of_family = options.family.clone();
        let db = Db::open("db", options).unwrap();
        let family = db.create_family("soon gone", of_family).unwrap();
        family.put_ttl(b"key", value(1, 5000), Duration::from_secs(10)).unwrap();
        assert_eq!(files(&fs).len(), 1);
        faults.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").sticky());
        family.flush().unwrap_err();
        faults.clear();
        if dropped {
            db.drop_family("soon gone").unwrap();
        } else {
            clock.advance(Duration::from_secs(20));
            family.flush().unwrap();
        }
        run_all_jobs(&db);
        assert_eq!(files(&fs), BTreeSet::new(), "dropped: {dropped}");
        db.close().unwrap();
    }
}

/// Recovery opens a database although its flushes meet a full disk, on which no byte may be lost to files that nothing names.
#[test]
fn a_flush_of_recovery_that_meets_a_full_disk_leaves_no_files() {
    let fs = MemFs::new();
    let db = Db::open("db", options(Arc::new(fs.clone()))).unwrap();
    for i in 0..800u64 {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), &i.to_be_bytes(), &value(i, 400)).unwrap();
        db.write_with(&mut batch, &WriteOptions::new().durability(Durability::Process)).unwrap();
    }
    let killed = fs.kill_clone();
    let mut opened = 0;
    for nth in 1..100 {
        let disk = killed.kill_clone();
        let faults = Arc::new(FaultFs::new(Arc::new(disk.clone()), 1));
        faults.add(Rule::new(Op::Write, Fault::Enospc).path("MANIFEST").nth(nth));
        let mut small = options(faults.clone());
        small.family.memtable_size = 64 << 10;
        small.db.memtable_budget = 192 << 10;
        let db = match Db::open("db", small) {
            Ok(db) => db,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                continue;
            }
        };
        if faults.stats().injected() == 0 {
            break;
        }
        opened += 1;
        db.flush().unwrap();
        run_all_jobs(&db);
        assert!((0..800u64).all(|i| db.get(i.to_be_bytes()).unwrap().unwrap() == value(i, 400)));
        assert_eq!(left_behind(&disk), BTreeSet::new(), "write {nth} of the manifest failed");
    }
    assert!(opened > 0, "a flush of recovery was among them");
}
