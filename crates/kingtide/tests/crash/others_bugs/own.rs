//! Bugs that Kingtide itself had.

use super::{DIR, contents, cut, files, key, open, options, power, put_durably, value};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule};
use kingtide::{ColumnFamily, Db, ErrorKind, Isolation, Options, SeqNo, WriteBatch};
use kingtide_base::rare;
use std::sync::{Arc, Mutex};

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
    let expected = (contents(db.default_family()), contents(&idle));
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!((contents(db.default_family()), contents(&db.family("idle").unwrap())), expected);
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
    let expected = (contents(db.default_family()), contents(&idle));
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!((contents(db.default_family()), contents(&db.family("idle").unwrap())), expected);
}

/// The log start that a drop of a family leaves may lie behind all that a power cut lets the log keep. The numbers before it
/// are taken all the same: segments are released up to it.
#[test]
fn numbers_below_the_log_start_are_not_given_out_again_after_a_power_cut() {
    let fs = MemFs::new();
    let db = open(&fs);
    let dropped = db.create_family("dropped", options(&fs).family).unwrap();
    put_durably(db.default_family(), &db, b"kept", b"1").unwrap();
    db.flush().unwrap();
    for i in 0..50 {
        dropped.put(key(i), value(i)).unwrap();
    }
    db.drop_family("dropped").unwrap();
    let before = newest(&db);
    let fs = cut(&fs);
    drop(db);
    let db = open(&fs);
    assert!(newest(&db) >= before, "{before} were given out, and now {}", newest(&db));
    db.put(b"next", b"2").unwrap();
    db.create_family("other", options(&fs).family).unwrap().put(b"x", b"3").unwrap();
    db.default_family().flush().unwrap();
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!(contents(db.default_family()).len(), 2);
    assert_eq!(contents(&db.family("other").unwrap()).len(), 1);
}

/// A family that is created begins behind all that was given out by then. When it is dropped, nothing else in the manifest
/// may say how far that was; a rewritten manifest must repeat it, and a power cut that takes the log shows whether it did.
#[test]
fn a_rewritten_manifest_repeats_the_number_of_a_family_that_was_dropped() {
    let fs = MemFs::new();
    let db = open(&fs);
    put_durably(db.default_family(), &db, b"first", b"1").unwrap(); // not flushed: the log start stays below it
    for i in 0..50 {
        db.put(key(i), value(i)).unwrap();
    }
    let before = newest(&db);
    db.create_family("gone", options(&fs).family).unwrap();
    db.drop_family("gone").unwrap();
    rewrite_manifest(&fs, db.default_family());
    let fs = cut(&fs);
    drop(db);
    let db = open(&fs);
    assert!(newest(&db) >= before, "the manifest named {before}, and now the newest is {}", newest(&db));
}

/// The sequence number of the last commit.
fn newest(db: &Db) -> SeqNo {
    db.snapshot().sequence()
}

/// Each rewrite of the manifest is compared with the one before where assertions are on; here what it says is also looked at
/// from outside: after a kill right behind it, everything is as it was, and no id is given out twice.
#[test]
fn a_rewritten_manifest_says_all_that_the_one_before_said() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.tuning.manifest_rewrite = 256;
    o.tuning.snapshot_edits = 3;
    let db = Db::open(DIR, o.clone()).unwrap();
    let kept = db.create_family("kept", options(&fs).family).unwrap();
    for round in 0..4 {
        let gone = db.create_family("gone", options(&fs).family).unwrap();
        for i in 0..200 {
            db.put(key(i), value(i + round)).unwrap();
            kept.put(key(i), super::large(i + round)).unwrap();
            gone.put(key(i), value(i)).unwrap();
        }
        db.flush().unwrap();
        db.drop_family("gone").unwrap();
        kept.put(key(1000 + round), value(round)).unwrap();
    }
    for n in 0..40 {
        kept.set_option("l0_trigger", if n % 2 == 0 { "8" } else { "7" }).unwrap();
    }
    let highest_id = |fs: &MemFs| {
        let names = [files(fs, ".klog"), files(fs, ".vlog"), files(fs, ".wal")].concat();
        names.iter().filter_map(|p| p.file_stem()?.to_str()?.parse::<u64>().ok()).max().unwrap()
    };
    let (expected, before) = ((contents(db.default_family()), contents(&kept)), highest_id(&fs));
    let (sequence, manifests) = (newest(&db), files(&fs, "MANIFEST-"));
    let fs = fs.kill_clone();
    drop((db, kept));
    let db = Db::open(DIR, o.fs(Arc::new(fs.clone()))).unwrap();
    let kept = db.family("kept").unwrap();
    assert!(manifests[0].to_str().unwrap() > "db/MANIFEST-000020", "hardly ever rewritten: {manifests:?}");
    assert_eq!((contents(db.default_family()), contents(&kept)), expected);
    assert_eq!(kept.options().l0_trigger, 7);
    assert_eq!(newest(&db), sequence);
    let fresh = db.create_family("fresh", options(&fs).family).unwrap();
    assert!(contents(&fresh).is_empty(), "a dropped family's id was given out again");
    kept.put(b"more", b"data").unwrap();
    kept.flush().unwrap();
    assert!(highest_id(&fs) > before, "a file id was given out again");
    assert!(db.verify().unwrap().is_clean());
}

/// The number up to which a new family counts as flushed was read twice, once for the manifest and once for memory: after a
/// commit in between a rewritten manifest differed from the one before.
#[test]
fn a_commit_amid_the_creation_of_a_family_does_not_set_memory_and_manifest_apart() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.tuning.manifest_rewrite = 0;
    let db = Db::open(DIR, o).unwrap();
    db.put(b"amid", b"before").unwrap(); // the first commit of all says in the manifest that the log has begun
    let (other, done) = (db.clone(), Arc::new(Mutex::new(0)));
    let puts = done.clone();
    rare::on_this_thread(Some(Box::new(move |name| {
        if name == "manifest-rewritten" {
            other.put(b"amid", b"the creation").unwrap();
            *puts.lock().unwrap() += 1;
        }
    })));
    // Each rewrite compares the new manifest with the one before.
    let mut created = 0;
    while *done.lock().unwrap() < 3 {
        db.create_family(&format!("family-{created}"), options(&fs).family).unwrap();
        created += 1;
        assert!(created < 1000, "the manifest is hardly ever rewritten");
    }
    rare::on_this_thread(None);
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    assert_eq!(db.families().len(), created + 1);
    assert_eq!(contents(db.default_family()).len(), 1);
}

/// A recovery that flushes may write a new manifest before the options of the default family that this open was given are
/// stored; they are in it already, which the comparison with the manifest before took for a mistake.
#[test]
fn a_recovery_that_rewrites_the_manifest_may_be_given_other_options() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.db.memtable_budget = 1 << 20;
    let db = Db::open(DIR, o).unwrap();
    for i in 0..1000 {
        db.put(key(i), value(i)).unwrap();
    }
    for n in 0..100 {
        db.default_family().set_option("l0_trigger", if n % 2 == 0 { "8" } else { "7" }).unwrap();
    }
    let expected = contents(db.default_family());
    let killed = fs.kill_clone();
    drop(db);
    let mut o = options(&killed);
    (o.family.l0_trigger, o.db.memtable_budget, o.tuning.manifest_rewrite) = (9, 64 << 10, 0);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = seen.clone();
    rare::on_this_thread(Some(Box::new(move |name| list.lock().unwrap().push(name))));
    let db = Db::open(DIR, o).unwrap();
    rare::on_this_thread(None);
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&"recovery-flushed") && seen.contains(&"manifest-rewritten"), "{seen:?}");
    assert_eq!(contents(db.default_family()), expected);
    assert_eq!(db.default_family().options().l0_trigger, 9);
}

/// A database with all that an open has to deal with: tables, value logs, a log to replay, a transaction in doubt, a file
/// that nothing names; the default family has other options than are stored. As a kill leaves it.
fn all_kinds() -> MemFs {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", options(&fs).family).unwrap();
    for i in 0..300 {
        db.put(key(i), value(i)).unwrap();
        other.put(key(i), super::large(i)).unwrap();
    }
    db.flush().unwrap();
    for i in 300..350 {
        db.put(key(i), value(i)).unwrap();
    }
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(&other, b"in doubt", b"1").unwrap();
    txn.prepare(b"xid").unwrap();
    drop(txn);
    let mut batch = WriteBatch::new();
    batch.put(&other, b"last", b"1").unwrap();
    db.write_with(&mut batch, &power()).unwrap();
    let killed = fs.kill_clone();
    kingtide::vfs::Fs::open(&killed, "db/00009999.klog".as_ref(), kingtide::vfs::OpenMode::Create).unwrap();
    killed
}

fn changed(fs: &(impl kingtide::vfs::Fs + Clone + 'static)) -> Options {
    let mut o = options(fs);
    o.family.memtable_size *= 2;
    o.manual_jobs = false;
    o
}

fn is_complete(fs: &MemFs, what: &str) {
    let db = Db::open(DIR, changed(fs)).unwrap_or_else(|e| panic!("{what}: the next open failed too: {e:?}"));
    assert_eq!(contents(db.default_family()).len(), 350, "{what}");
    assert_eq!(contents(&db.family("other").unwrap()).len(), 301, "{what}");
    assert_eq!(db.recover_prepared().len(), 1, "{what}");
    db.put(b"written", b"after").unwrap();
    db.close().unwrap_or_else(|e| panic!("{what}: {e:?}"));
}

/// An open that failed after it had started some of its threads kept the lock and the threads: every later open in the
/// process was refused as `Locked`. So each operation on files that an open makes fails once, and each thread.
#[test]
fn an_open_that_fails_at_any_step_can_be_tried_again() {
    let (mut failed, mut survived) = (0, 0);
    let of_open = [
        (Op::Open, Fault::Emfile),
        (Op::Open, Fault::Eio),
        (Op::Read, Fault::Eio),
        (Op::Write, Fault::Eio),
        (Op::Write, Fault::Enospc),
        (Op::Sync, Fault::Eio),
        (Op::SyncDir, Fault::Eio),
        (Op::Rename, Fault::Eio),
        (Op::Remove, Fault::Eio),
        (Op::Allocate, Fault::Enospc),
    ];
    for (op, fault) in of_open {
        for n in 1.. {
            let disk = all_kinds();
            let faulty = FaultFs::new(Arc::new(disk.clone()), n);
            faulty.add(Rule::new(op, fault).nth(n));
            let what = format!("{op:?} {n}: {fault:?}");
            let opened = Db::open(DIR, changed(&faulty));
            if faulty.stats().injected() == 0 {
                break; // the open makes fewer
            }
            match opened {
                Err(_) => failed += 1,
                Ok(db) => {
                    survived += 1;
                    faulty.clear();
                    _ = db.close(); // a failed sync in the background stops the log
                }
            }
            is_complete(&disk, &what);
        }
    }
    println!("{failed} opens failed, {survived} went on");
    assert!(failed > 20, "only {failed} opens failed");
}

#[test]
fn an_open_that_cannot_start_a_thread_can_be_tried_again() {
    let disk = all_kinds();
    for threads in 0..5 {
        let mut o = changed(&disk);
        o.db.background_threads = 4;
        o.tuning.thread_limit = Some(threads);
        let refused = Db::open(DIR, o).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io);
        assert!(refused.to_string().contains(&format!("background thread {} of 5", threads + 1)), "{refused}");
    }
    is_complete(&disk, "after five opens without threads");
}
