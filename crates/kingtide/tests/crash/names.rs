//! Names of files: what a failed sync of the directory makes of them, and a release of log segments that a power cut ends.

use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs, OpenMode, Survival, WriteOp};
use kingtide::{
    Db, Durability, ErrorKind, FamilyOptions, IngestOptions, Options, Severity, SortedFileWriter, WriteBatch,
    WriteOptions,
};
use kingtide_base::rng::Rng;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
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
    db.write_with(&mut batch, &WriteOptions::new().durability(durability)).map(drop)
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

/// What syncs the database's directory through another object, by another path too: it makes a directory there.
type Neighbour = (&'static str, fn(&Db, &MemFs) -> kingtide::Result<()>);

// A database refuses to make checkpoints, backups and exports in its own directory, but not in that of another.
const NEIGHBOURS: [Neighbour; 5] = [
    ("a database in the directory", |_, fs| Db::open("db/other", options(fs)).map(drop)),
    ("a database by another path", |_, fs| Db::open("./db/../db/other", options(fs)).map(drop)),
    ("a checkpoint of another database", |_, fs| Db::open("source", options(fs))?.checkpoint("./db/copy").map(drop)),
    ("backups of another database", |_, fs| {
        let source = Db::open("source", options(fs))?;
        Backup::on(Arc::new(fs.clone()), "db/../db/backups").create(&source, BackupOptions::new()).map(drop)
    }),
    ("an export of another database", |_, fs| {
        Db::open("source", options(fs))?.default_family().export("db/export").map(drop)
    }),
];

/// The names that such a sync forgets when it fails are those of our files too.
#[test]
fn a_failed_sync_of_the_directory_is_noticed_when_another_object_makes_it() {
    for (what, act) in NEIGHBOURS {
        let mut noticed = 0;
        for nth in 1.. {
            let fs = MemFs::new();
            let db = open(&fs);
            put(&db, 0, Durability::Power).unwrap();
            // Several segments whose names are not durable.
            (1..12).for_each(|n| put(&db, n, Durability::Process).unwrap());
            fs.fail_dir_sync(nth);
            let done = act(&db, &fs);
            let what = format!("{what}, sync {nth}");
            if done.is_ok() {
                break;
            }
            fs.fail_dir_sync(0);
            let last = put(&db, 12, Durability::Power);
            let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
            let found = open(&cut);
            assert!(is_there(&found, 0), "{what}: what was durable before is gone");
            assert!(last.is_err() || (0..13).all(|n| is_there(&found, n)), "{what}: an acknowledged commit is gone");
            let stopped = db.stats().writes_stopped;
            assert_eq!(stopped.is_some(), last.is_err(), "{what}: {stopped:?}");
            noticed += u64::from(stopped.is_some_and(|why| why.contains("directory")));
            let _ = db.close();
            let found = open(&fs);
            assert!((0..12).all(|n| is_there(&found, n)), "{what}: what was read before is gone");
            put(&found, 12, Durability::Power).unwrap();
        }
        assert!(noticed > 0, "{what} never syncs the database's directory");
    }
}

/// A stranger, or damage, may leave a file of any number. No number is given to two files, and none is passed over for ever.
#[test]
fn files_with_the_greatest_numbers_are_no_harm() {
    let kinds: [fn(u64) -> String; 6] = [
        |n| format!("{n:08}.klog"),
        |n| format!("{n:08}.vlog"),
        |n| format!("{n:06}.wal"),
        |n| format!("{n:06}.walfree"),
        |n| format!("MANIFEST-{n:06}"),
        |n| format!("LOG.{n}"),
    ];
    for kind in kinds {
        let mut numbers: Vec<u64> = (0..4).map(|less| u64::MAX - less).collect();
        numbers.extend([u64::MAX / 2 - 2, u64::MAX / 2 - 1, u64::MAX / 2, u64::MAX / 2 + 1]);
        for number in numbers {
            let (fs, name) = (MemFs::new(), kind(number));
            let db = open(&fs);
            (0..12).for_each(|n| put(&db, n, Durability::Power).unwrap());
            db.flush().unwrap();
            (12..20).for_each(|n| put(&db, n, Durability::Power).unwrap());
            let fs = fs.kill_clone();
            let file = fs.open(&Path::new("db").join(&name), OpenMode::Create).unwrap();
            file.write_at(&[3; 5000], 0).unwrap();
            fs.sync_dir(Path::new("db")).unwrap();
            let read = Db::open_read_only("db", options(&fs)).unwrap_or_else(|e| panic!("{name}, read only: {e}"));
            assert!((0..20).all(|n| is_there(&read, n)), "{name}");
            drop(read);
            let report = kingtide::repair("db", "repaired", &options(&fs)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(report.verify.is_clean(), "{name}: {report:?}");
            for round in 0..3 {
                let db = Db::open("db", options(&fs)).unwrap_or_else(|e| panic!("{name}, open {round}: {e}"));
                put(&db, 20 + round, Durability::Power).unwrap();
                db.put([round as u8], [0; 3000]).unwrap(); // into a value log
                db.flush().unwrap();
                db.compact().unwrap();
                db.checkpoint(format!("copy-{round}")).unwrap();
                assert!((0..21 + round).all(|n| is_there(&db, n)), "{name}");
                assert!(db.verify().unwrap().is_clean(), "{name}");
                db.close().unwrap();
            }
        }
    }
}

/// A file that a crash left may still be removed when another one is written, so that one has another number.
#[test]
fn ids_of_files_that_a_crash_left_are_not_given_again() {
    for ending in ["klog", "vlog"] {
        let fs = MemFs::new();
        let db = open(&fs);
        put(&db, 1, Durability::Power).unwrap();
        let fs = fs.kill_clone();
        fs.open(&Path::new("db").join(format!("00000500.{ending}")), OpenMode::Create).unwrap();
        let db = open(&fs);
        put(&db, 2, Durability::Power).unwrap();
        db.flush().unwrap();
        let names = fs.list(Path::new("db")).unwrap();
        let tables: Vec<&String> = names.iter().filter(|n| n.ends_with(".klog")).collect();
        assert!(tables.iter().all(|n| n[..8].parse::<u64>().unwrap() > 500), "{ending}: {names:?}");
        assert!(!tables.is_empty() && is_there(&db, 1) && is_there(&db, 2));
    }
}

/// A backup's number follows the greatest that there is; after the last there is none.
#[test]
fn the_last_number_of_a_backup_is_no_panic() {
    let fs = MemFs::new();
    let db = open(&fs);
    put(&db, 1, Durability::Power).unwrap();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let backup = Backup::on(shared, "backups");
    backup.create(&db, BackupOptions::new()).unwrap();
    fs.open(&Path::new("backups/backups").join(format!("{}.backup", u64::MAX - 1)), OpenMode::Create).unwrap();
    assert_eq!(backup.create(&db, BackupOptions::new()).unwrap().id, u64::MAX);
    assert_eq!(backup.create(&db, BackupOptions::new()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    backup.verify(u64::MAX, BackupOptions::new()).unwrap();
    backup.delete(u64::MAX - 1).unwrap();
    backup.delete(u64::MAX).unwrap();
    assert_eq!(backup.create(&db, BackupOptions::new()).unwrap().id, 2);
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
    let undone = Arc::new(AtomicU64::new(0)); // on this thread: the simulation cuts releases, too
    let count = undone.clone();
    kingtide_base::rare::on_this_thread(Some(Box::new(move |taken| {
        _ = count.fetch_add(u64::from(taken == "log-release-half-undone"), Ordering::Relaxed);
    })));
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
            db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
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
    kingtide_base::rare::on_this_thread(None);
    let undone = undone.load(Ordering::Relaxed);
    println!("{cuts} cuts, {undone} amid a release that was half undone");
    assert!(undone > 0, "no cut brought a segment back");
}
