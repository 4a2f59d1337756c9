//! Names of files: what a failed sync of the directory makes of them, and a release of log segments that a power cut ends.

use kingtide::vfs::{Fs, MemFs, Survival, WriteOp};
use kingtide::{
    Db, Durability, ErrorKind, FamilyOptions, IngestOptions, Options, Severity, SortedFileWriter, WriteBatch,
    WriteOptions,
};
use kingtide_base::rng::Rng;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn options(fs: &MemFs) -> Options {
    let mut o = Options { fs: Some(Arc::new(fs.clone())), manual_jobs: true, ..Options::default() };
    (o.tuning.segment_size, o.tuning.first_segment) = (Some(4096), 4096);
    o.tuning.manifest_rewrite = 2048;
    o.family.direct_value_threshold = 2000;
    o
}

fn open(fs: &MemFs) -> Db {
    Db::open("db", options(fs)).unwrap()
}

/// Of bytes that do not shrink.
fn value(n: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::new(n).fill(&mut bytes);
    bytes
}

fn put(db: &Db, n: u64, durability: Durability) -> kingtide::Result<()> {
    let mut batch = WriteBatch::new();
    batch.put(db.default_family(), &n.to_be_bytes(), &value(n, 900)).unwrap();
    db.write_with(&mut batch, &WriteOptions { durability: Some(durability), no_wait: false }).map(drop)
}

fn is_there(db: &Db, n: u64) -> bool {
    db.get(n.to_be_bytes()).unwrap().is_some_and(|v| v == value(n, 900))
}

fn syncs_of_names(fs: &MemFs) -> Arc<AtomicU64> {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    fs.on_write(Some(Box::new(move |b| {
        counted.fetch_add(u64::from(b.op == WriteOp::SyncDir && b.path == Path::new("db")), Ordering::Relaxed);
    })));
    syncs
}

/// What makes files, and their names durable.
type Job = (&'static str, fn(&Db) -> kingtide::Result<()>);

const JOBS: [Job; 6] = [
    ("a flush", |db| db.flush()),
    ("a compaction", |db| db.compact()),
    ("a value log", |db| {
        db.put("large", value(1, 5000))?;
        db.sync()
    }),
    ("an ingest", |db| db.default_family().ingest(&["files/sorted"], &IngestOptions::default()).map(drop)),
    ("a clone", |db| db.clone_family("other", "copy").map(drop)),
    ("manifests", |db| (0..40).try_for_each(|n| db.default_family().set_option("l0_trigger", &(n + 2).to_string()))),
];

/// A sync of the directory that fails may forget all names in it, that of the log segment in which the next commits are too. The
/// syncs that succeed later were believed.
#[test]
fn after_a_failed_sync_of_the_directory_nothing_is_acknowledged_that_a_power_cut_takes() {
    let mut failures = 0;
    for (what, job) in JOBS {
        for nth in 1.. {
            let fs = MemFs::new();
            let db = open(&fs);
            let other = db.create_family("other", FamilyOptions::default()).unwrap();
            other.put("a", "1").unwrap();
            fs.create_dir_all(Path::new("files")).unwrap();
            let mut file = SortedFileWriter::create("files/sorted", db.default_family()).unwrap();
            file.put(b"sorted", b"1").unwrap();
            file.finish().unwrap();
            for n in 0..3 {
                put(&db, n, Durability::Power).unwrap();
                db.flush().unwrap();
            }
            // No job makes spares, so the commits themselves make the next segments, and their names are not durable.
            (3..12).for_each(|n| put(&db, n, Durability::Process).unwrap());
            let syncs = syncs_of_names(&fs);
            fs.fail_dir_sync(nth);
            let done = job(&db);
            fs.fail_dir_sync(0);
            fs.on_write(None);
            if syncs.load(Ordering::Relaxed) < nth {
                done.unwrap_or_else(|e| panic!("{what} on a healthy disk: {e}"));
                assert!(nth > 1, "{what} syncs no directory");
                break;
            }
            failures += 1;
            let what = format!("{what}, sync {nth}");
            let last = put(&db, 12, Durability::Power);
            let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
            let found = open(&cut);
            assert!((0..3).all(|n| is_there(&found, n)), "{what}: what was durable before is gone");
            assert!(last.is_err() || (0..13).all(|n| is_there(&found, n)), "{what}: an acknowledged commit is gone");
            assert_eq!(last.unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
            let told = db.stats().writes_stopped.unwrap_or_else(|| panic!("{what}: nothing says that writes stopped"));
            assert!(told.contains("directory"), "{what}: {told}");
            assert_eq!(put(&db, 12, Durability::Process).unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
            assert!((0..12).all(|n| is_there(&db, n)), "{what}: reads go on");
            let killed = fs.kill_clone();
            let _ = db.close();
            for disk in [&killed, &fs] {
                let found = open(disk);
                assert!((0..12).all(|n| is_there(&found, n)), "{what}: a kill takes nothing");
                put(&found, 12, Durability::Power).unwrap();
            }
        }
    }
    println!("{failures} failed syncs");
    assert!(failures > 8, "only {failures}");
}

/// A flush that gives many log segments up syncs the directory as often as one that gives one up.
#[test]
fn a_flush_syncs_the_directory_once_for_all_segments_that_it_gives_up() {
    let syncs = |commits: u64| {
        let fs = MemFs::new();
        let db = open(&fs);
        (0..commits).for_each(|n| put(&db, n, Durability::Process).unwrap());
        put(&db, commits, Durability::Power).unwrap(); // the names are durable
        while db.run_one_job().unwrap() {} // and there is a spare
        let segments = || fs.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".wal")).count();
        let (before, syncs) = (segments(), syncs_of_names(&fs));
        db.flush().unwrap();
        let released = before - segments();
        fs.on_write(None);
        (released, syncs.load(Ordering::Relaxed))
    };
    let (few, many) = (syncs(12), syncs(60));
    assert!(few.0 > 1 && many.0 > few.0 + 5, "{few:?}, {many:?}");
    assert_eq!((few.1, many.1), (2, 2), "one for the tables and one for the release");
}

/// Of the segments that one release gives up a power cut brings any back, and takes the headers of those that stay. The database
/// opens nevertheless, with a prefix of the commits and all that was flushed or synced.
#[test]
fn a_release_that_a_power_cut_ends_leaves_a_log_that_can_be_read() {
    let mut cuts = 0;
    let taken = || kingtide_base::rare::counts().iter().find(|(n, _)| *n == "log-release-half-undone").unwrap().1;
    let before = taken();
    for (synced, behind) in [(false, 0), (false, 7), (true, 7)] {
        let fs = MemFs::new();
        let db = open(&fs);
        let mut txn = db.begin(kingtide::Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), b"prepared", b"1").unwrap();
        txn.prepare(b"xid").unwrap();
        (0..14).for_each(|n| put(&db, n, Durability::Process).unwrap());
        txn.commit().unwrap(); // in a later segment than the prepare record
        db.sync().unwrap();
        (14..30).for_each(|n| put(&db, n, Durability::Process).unwrap());
        let disks: Arc<Mutex<Vec<MemFs>>> = Arc::default();
        let keep = disks.clone();
        fs.on_write(Some(Box::new(move |at| {
            if matches!(at.op, WriteOp::Rename | WriteOp::Remove | WriteOp::SyncDir) {
                keep.lock().unwrap().push(at.kill_clone());
            }
        })));
        // What is not flushed comes behind the segments that are released.
        let other = db.create_family("other", FamilyOptions::default()).unwrap();
        for n in 0..behind {
            let mut batch = WriteBatch::new();
            batch.put(&other, &[n], &value(u64::from(n), 900)).unwrap();
            let durability = if synced { Durability::Power } else { Durability::Process };
            db.write_with(&mut batch, &WriteOptions { durability: Some(durability), no_wait: false }).unwrap();
        }
        let flushing = disks.lock().unwrap().len();
        db.default_family().flush().unwrap();
        fs.on_write(None);
        let mut rng = Rng::new(1);
        for (at, disk) in disks.lock().unwrap().iter().enumerate().skip(flushing) {
            for seed in 0..12 {
                for survival in Survival::ALL {
                    let left = disk.crash_clone(survival, &mut rng);
                    let what = format!("synced {synced}, {behind} behind, cut {at}, {survival:?} {seed}");
                    let db = Db::open("db", options(&left)).unwrap_or_else(|e| panic!("{what}: {e}"));
                    cuts += 1;
                    if seed % 4 == 0 {
                        let report = kingtide::verify("db", &options(&left.kill_clone())).unwrap();
                        assert!(report.problems.iter().all(|p| p.severity != Severity::Error), "{what}: {report:?}");
                    }
                    let n = (0..30).take_while(|n| is_there(&db, *n)).count() as u64;
                    assert!((n..30).all(|n| !is_there(&db, n)), "{what}: not a prefix");
                    assert!(n == 30 || !synced, "{what}: {n} commits of 30 that were synced");
                    assert!(n >= 14, "{what}: {n} commits of 14 that were synced");
                    assert!(db.recover_prepared().is_empty(), "{what}: a transaction is in doubt that was committed");
                    let other = db.family("other").unwrap();
                    let there = |i: u8| other.get([i]).unwrap().is_some_and(|v| v == value(u64::from(i), 900));
                    let m = (0..behind).take_while(|i| there(*i)).count();
                    assert!((m..usize::from(behind)).all(|i| !there(i as u8)), "{what}: not a prefix");
                    assert!(m == 0 || n == 30, "{what}: later commits are there, and earlier ones are not");
                    assert!(!synced || m == usize::from(behind), "{what}");
                    if seed % 8 == 0 {
                        // What is committed next is found after another cut.
                        put(&db, 100, Durability::Power).unwrap();
                        drop(db);
                        let again = open(&left.crash_clone(survival, &mut rng));
                        assert!(
                            is_there(&again, 100) && (0..n).all(|n| is_there(&again, n)),
                            "{what}, and another cut"
                        );
                    }
                }
            }
        }
    }
    println!("{cuts} cuts, {} amid a release that was half undone", taken() - before);
    assert!(taken() > before, "no cut brought a segment back");
}
