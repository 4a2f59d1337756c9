//! Values that are written once: what a crash makes of the log and the value logs that it points into.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival, WriteOp};
use kingtide::{Db, Durability, ErrorKind, Options, Severity, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.family.direct_value_threshold = 100;
    o
}

fn open(fs: &MemFs) -> kingtide::Result<Db> {
    Db::open("db", options(fs))
}

/// Of 1000 bytes that do not shrink.
fn value(i: u8) -> Vec<u8> {
    let mut bytes = vec![0; 1000];
    Rng::new(u64::from(i)).fill(&mut bytes);
    bytes
}

fn put(db: &Db, i: u8, durability: Durability) {
    let mut batch = WriteBatch::new();
    batch.put(db.default_family(), &[i], &value(i)).unwrap();
    db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
}

fn found(db: &Db) -> Vec<u8> {
    let there = |i: &u8| db.get([*i]).unwrap().is_some_and(|v| v == value(*i));
    (0..20).filter(there).collect()
}

fn value_logs(fs: &MemFs) -> Vec<PathBuf> {
    let names = fs.list(Path::new("db")).unwrap();
    names.iter().filter(|n| n.ends_with(".vlog")).map(|n| Path::new("db").join(n)).collect()
}

/// Makes zeros of the second of the values that the one value log holds.
fn lose_second_value(fs: &MemFs) -> PathBuf {
    let path = value_logs(fs).remove(0);
    let file = fs.open(&path, OpenMode::Write).unwrap();
    file.write_at(&[0; 500], 24 + 1014 + 200).unwrap();
    path
}

#[test]
fn values_are_durable_before_the_log_that_points_to_them() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    put(&db, 0, Durability::Process);
    put(&db, 1, Durability::Power); // which covers the commit before it
    assert_eq!(value_logs(&fs).len(), 1);
    let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    put(&db, 2, Durability::Process);
    db.sync().unwrap();
    let synced = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    put(&db, 3, Durability::Process);
    let killed = fs.kill_clone();
    assert_eq!(found(&open(&cut).unwrap()), [0, 1]);
    assert_eq!(found(&open(&synced).unwrap()), [0, 1, 2]);
    let again = open(&killed).unwrap();
    assert_eq!(found(&again), [0, 1, 2, 3]);
    db.flush().unwrap(); // and so the next value goes to a new file
    put(&db, 5, Durability::Power);
    assert_eq!(found(&open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1))).unwrap()), [0, 1, 2, 3, 5]);
    // What recovery showed stays, even without a sync since.
    assert_eq!(found(&open(&killed.crash_clone(Survival::AllLost, &mut Rng::new(1))).unwrap()), [0, 1, 2, 3]);
}

/// Its name is durable before it has a value, so that no commit and no flush syncs the directory for it.
#[test]
fn values_in_a_file_that_was_made_ahead_are_durable() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.tuning.direct_log_size = 500; // a file for each value
    let db = Db::open("db", o).unwrap();
    put(&db, 0, Durability::Process);
    db.flush().unwrap();
    while db.run_one_job().unwrap() {}
    put(&db, 1, Durability::Power);
    while value_logs(&fs).len() < 3 {
        assert!(db.run_one_job().unwrap(), "one is made ahead"); // and no job after that, which may sync the directory
    }
    let syncs = Arc::new(AtomicUsize::new(0));
    let counted = syncs.clone();
    fs.on_write(Some(Box::new(move |b| {
        counted.fetch_add(usize::from(b.op == WriteOp::SyncDir), Ordering::Relaxed);
    })));
    put(&db, 2, Durability::Power);
    assert_eq!((value_logs(&fs).len(), syncs.load(Ordering::Relaxed)), (3, 0));
    for survival in [Survival::AllLost, Survival::AllKept] {
        let cut = open(&fs.crash_clone(survival, &mut Rng::new(1))).unwrap();
        assert_eq!((found(&cut), cut.verify().unwrap().is_clean()), (vec![0, 1, 2], true));
    }
}

/// A commit that waits for no sync waits for none of the directory either, when it begins a value log. A power cut takes the
/// file then, and the log ends before it.
#[test]
fn a_value_log_gets_a_durable_name_from_the_first_that_needs_it() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    put(&db, 0, Durability::Power);
    db.flush().unwrap(); // and so the next value goes to a new file
    let syncs = Arc::new(AtomicUsize::new(0));
    let counted = syncs.clone();
    fs.on_write(Some(Box::new(move |b| {
        counted.fetch_add(usize::from(b.op == WriteOp::SyncDir), Ordering::Relaxed);
    })));
    put(&db, 1, Durability::Process);
    assert_eq!((value_logs(&fs).len(), syncs.load(Ordering::Relaxed)), (2, 0));
    let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    let half = fs.crash_clone(Survival::AllKept, &mut Rng::new(1));
    half.remove(&value_logs(&fs)[1]).unwrap(); // its name was lost, and the record was not
    for left in [&cut, &half] {
        let report = kingtide::verify("db", &options(left)).unwrap();
        assert!(report.problems.iter().all(|p| p.severity != Severity::Error), "{report:?}");
        assert_eq!(found(&Db::open_read_only("db", options(left)).unwrap()), [0]);
        assert_eq!(found(&open(left).unwrap()), [0]);
    }
    put(&db, 2, Durability::Power);
    assert!(syncs.load(Ordering::Relaxed) > 0);
    fs.on_write(None);
    assert_eq!(found(&open(&fs.crash_clone(Survival::AllLost, &mut Rng::new(1))).unwrap()), [0, 1, 2]);
}

#[test]
fn a_value_that_a_power_cut_took_ends_the_log() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    for i in 0..4 {
        put(&db, i, Durability::Process);
    }
    let cut = fs.crash_clone(Survival::AllKept, &mut Rng::new(1));
    let lost = lose_second_value(&cut);

    let report = kingtide::verify("db", &options(&cut)).unwrap();
    assert!(report.problems.iter().all(|p| p.severity != Severity::Error), "{report:?}");
    let reader = Db::open_read_only("db", options(&cut)).unwrap();
    assert_eq!(found(&reader), [0]);
    drop(reader);
    let again = open(&cut).unwrap();
    assert_eq!(found(&again), [0], "an exact prefix: nothing behind the value either");
    put(&again, 9, Durability::Power);
    again.flush().unwrap();
    drop(again);
    let again = open(&cut).unwrap();
    assert_eq!(found(&again), [0, 9]);
    assert!(!cut.exists(&lost).unwrap(), "what the log needed of it was moved");
    again.close().unwrap();
}

/// A read that ends before the file does says nothing of what a power cut took: the log would end there for ever.
#[test]
fn a_read_that_falls_short_is_not_taken_for_what_a_power_cut_took() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    for i in 0..4 {
        put(&db, i, Durability::Power);
    }
    let (mut opened, mut refused) = (0, 0);
    for sticky in [false, true] {
        for nth in 1.. {
            let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(nth));
            let faults = Arc::new(FaultFs::new(Arc::new(cut.clone()), nth));
            let rule = Rule::new(Op::Read, Fault::ShortRead).nth(nth);
            faults.add(if sticky { rule.sticky() } else { rule });
            let opened_now = Db::open("db", options(&cut).fs(faults.clone()));
            let injected = faults.stats().injected();
            faults.clear();
            match opened_now {
                Ok(db) => {
                    assert_eq!(found(&db), [0, 1, 2, 3], "read {nth}, sticky: {sticky}");
                    opened += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "read {nth}: {e}");
                    refused += 1;
                }
            }
            let db = open(&cut).unwrap_or_else(|e| panic!("after read {nth}, sticky: {sticky}: {e}"));
            assert_eq!(found(&db), [0, 1, 2, 3], "after read {nth}, sticky: {sticky}");
            if injected == 0 {
                break; // there is no such read
            }
        }
    }
    assert!(opened > 10 && refused > 5, "{opened} opened, {refused} refused");
}

/// Its sequence numbers are those of other operations afterwards; with these in tables, nothing of it seemed to be missing.
#[test]
fn a_record_whose_value_a_power_cut_took_does_not_come_back_later() {
    for flushed in 1..=4u8 {
        let fs = MemFs::new();
        let db = open(&fs).unwrap();
        put(&db, 0, Durability::Power);
        let family = db.default_family();
        let mut batch = WriteBatch::new();
        batch.put(family, &[1], &value(1)).unwrap();
        batch.put(family, b"old", b"1").unwrap();
        batch.put(family, b"old too", b"2").unwrap();
        db.write_with(&mut batch, &WriteOptions::new().durability(Durability::Process)).unwrap();
        db.put(b"behind", b"3").unwrap();
        let cut = fs.crash_clone(Survival::AllKept, &mut Rng::new(1));
        lose_second_value(&cut);

        // The flush must not give the segment up.
        let mut keeps_log = options(&cut);
        keeps_log.db.change_retention = 1 << 20;
        let again = Db::open("db", keeps_log).unwrap();
        assert_eq!(again.range(..).count(), 1);
        (0..flushed).for_each(|i| _ = again.put([100 + i], b"new").unwrap());
        again.flush().unwrap();
        again.put(b"unsynced", b"lost").unwrap();
        let second = cut.crash_clone(Survival::AllLost, &mut Rng::new(2));
        let last = open(&second).unwrap();
        let keys: Vec<_> = last.range(..).map(|e| e.unwrap().key.to_vec()).collect();
        let expected: Vec<_> = std::iter::once(0).chain((0..flushed).map(|i| 100 + i)).map(|k| vec![k]).collect();
        assert_eq!(keys, expected, "{flushed} flushed");
    }
}

#[test]
fn a_damaged_value_without_a_power_cut_is_damage() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    for i in 0..4 {
        put(&db, i, Durability::Process);
    }
    let killed = fs.kill_clone();
    let path = lose_second_value(&killed);
    let e = open(&killed).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)), "{e}");
    assert!(e.to_string().contains("the value that the log record with sequence 2 points to"), "{e}");
    // After a sync a power cut is no excuse.
    db.sync().unwrap();
    put(&db, 4, Durability::Process); // its record says what was synced
    let cut = fs.crash_clone(Survival::AllKept, &mut Rng::new(1));
    lose_second_value(&cut);
    assert_eq!(open(&cut).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_value_log_stays_as_long_as_a_memtable_needs_it() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    for round in 0..3 {
        for i in 0..10 {
            put(&db, i, Durability::Process);
        }
        let snapshot = db.snapshot();
        let killed = fs.kill_clone();
        db.flush().unwrap();
        while db.run_one_job().unwrap() {}
        assert_eq!(found(&db).len(), 10, "round {round}");
        let report = db.verify().unwrap();
        assert!(report.is_clean(), "{report:?}");
        // Recovered, and flushed after that: the values move to a log that the manifest names.
        let again = open(&killed).unwrap();
        assert_eq!(found(&again).len(), 10, "round {round}");
        again.flush().unwrap();
        while again.run_one_job().unwrap() {}
        assert_eq!(found(&again).len(), 10, "round {round}");
        drop(snapshot);
    }
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    db.close().unwrap();
    drop(db);
    let left = value_logs(&fs).len();
    let again = open(&fs).unwrap();
    assert_eq!((value_logs(&fs).len(), found(&again).len()), (left, 10), "a close leaves no orphan");
}

#[test]
fn what_a_writer_left_is_removed_by_the_next_open() {
    let fs = MemFs::new();
    let db = open(&fs).unwrap();
    put(&db, 0, Durability::Power);
    // A file whose commit never came to the log.
    let stray = Path::new("db/00000900.vlog");
    fs.open(stray, OpenMode::Create).unwrap().write_at(b"KTIDvlog", 0).unwrap();
    let killed = fs.kill_clone();
    let reader = Db::open_read_only("db", options(&killed)).unwrap();
    assert!(killed.exists(stray).unwrap(), "a reader removes nothing");
    drop(reader);
    let again = open(&killed).unwrap();
    assert!(!killed.exists(stray).unwrap());
    put(&again, 1, Durability::Power);
    assert!(value_logs(&killed).iter().all(|p| p == &value_logs(&killed)[0] || *p > stray.to_path_buf()), "ids go on");
    assert_eq!(found(&again), [0, 1]);
}
