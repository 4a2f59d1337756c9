//! The manifest, which says what belongs to the database.

use super::{Contents, DIR, bytes_of, contents, cut, files, key, large, open, options, patch, put_durably, value};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op, Rule};
use kingtide::{Db, ErrorKind, Options};
use std::sync::Arc;

/// A line of the manifest that could not be read was skipped, and the table that it named was gone without a word. Here a
/// record that does not have its checksum is an error, unless it is the last one and can be the remains of a crash.
#[test]
fn a_damaged_manifest_record_does_not_silently_drop_a_table() {
    let fs = MemFs::new();
    let db = open(&fs);
    let mut stored = Contents::new();
    for table in 0..3 {
        for i in 0..10 {
            db.put(key(table * 10 + i), value(i)).unwrap();
            stored.insert(key(table * 10 + i), value(i));
        }
        db.flush().unwrap();
    }
    db.close().unwrap();
    let path = &files(&fs, "MANIFEST-")[0];
    let whole = bytes_of(&fs, path);
    let (mut refused, mut intact) = (0, 0);
    for at in 0..whole.len() {
        patch(&fs, path, at, &[whole[at] ^ 1 << (at % 8)]);
        match Db::open(DIR, options(&fs.kill_clone())) {
            Ok(db) => {
                assert_eq!(contents(db.default_family()), stored, "byte {at} of {}", whole.len());
                intact += 1;
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "byte {at}: {e:?}");
                assert!(e.path().is_some() && e.offset().is_some(), "byte {at}: {e:?}");
                refused += 1;
            }
        }
        patch(&fs, path, at, &whole[at..at + 1]);
    }
    println!("{refused} damaged manifests refused, {intact} without effect");
    assert!(refused > whole.len() / 2);
}

/// A manifest record that a full disk had cut short was followed by the next one: no open could read past it. Here nothing is
/// appended behind a doubtful record; the manifest is written anew.
#[test]
fn a_full_disk_does_not_corrupt_the_manifest() {
    for fault in [Fault::Enospc, Fault::ShortWrite, Fault::Edquot] {
        for nth in 1..=4 {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let db = open(&fs);
            let mut stored = Contents::new();
            fs.add(Rule::new(Op::Write, fault).path("MANIFEST-").nth(nth));
            for round in 0..6 {
                for i in 0..5 {
                    let i = round * 5 + i;
                    // The first commit begins the log, which the manifest records.
                    if db.put(key(i), large(i)).is_ok() {
                        stored.insert(key(i), large(i));
                    }
                }
                let flushed = db.flush();
                for disk in [disk.kill_clone(), cut(&disk)] {
                    let db = Db::open(DIR, options(&disk)).unwrap_or_else(|e| panic!("{fault:?}, write {nth}: {e:?}"));
                    let found = contents(db.default_family());
                    assert!(flushed.is_err() || found == stored, "{fault:?}, write {nth}, round {round}");
                }
                assert_eq!(contents(open(&disk.kill_clone()).default_family()), stored, "{fault:?}, write {nth}");
            }
            assert_eq!(fs.stats().injected(), 1, "{fault:?}, write {nth}: no such write");
            db.flush().unwrap();
            db.close().unwrap();
            assert_eq!(contents(open(&disk).default_family()), stored);
        }
    }
}

/// A disk on which a record of the manifest will fail.
struct Failing {
    /// The case, for messages.
    what: String,
    disk: MemFs,
    fs: FaultFs,
    options: Options,
    /// Makes the rule by which the next record fails.
    record: Box<dyn Fn() -> Rule>,
    /// Values of that many bytes and more are written once; 0: none.
    direct: u64,
}

/// Runs a test for each way in which a record can fail, with values that commits write to value logs and without.
fn each_failure(test: impl Fn(Failing)) {
    for (op, fault) in [(Op::Write, Fault::Enospc), (Op::Write, Fault::ShortWrite), (Op::Sync, Fault::Eio)] {
        for direct in [0, 300] {
            let disk = MemFs::new();
            let fs = FaultFs::new(Arc::new(disk.clone()), 1);
            let mut options = options(&fs);
            options.family.direct_value_threshold = direct;
            let record = Box::new(move || Rule::new(op, fault).path("MANIFEST-"));
            test(Failing { what: format!("{op:?} {fault:?} {direct}"), disk, fs, options, record, direct });
        }
    }
}

/// The files of a flush or compaction whose manifest record failed stayed until the next open, as the manifest might name them:
/// on a full disk, of all times, they took space that nothing gave back. The next record goes into a new manifest, which settles
/// that they belong to nothing, so they go at once.
#[test]
fn files_of_a_failed_manifest_record_go_when_the_manifest_is_written_anew() {
    each_failure(|Failing { what, disk, fs, options: o, record, direct }| {
        let db = Db::open(DIR, o).unwrap();
        let mut stored = Contents::new();
        for round in 0..4 {
            for i in 0..20 {
                db.put(key(i), large(round * 7 + i)).unwrap();
                stored.insert(key(i), large(round * 7 + i));
            }
            fs.add(record());
            // May be tried again, where room could be made.
            let _ = if round < 2 { db.flush() } else { db.compact() };
            assert_eq!(fs.stats().injected(), round + 1, "{what}, round {round}");
            assert_eq!(contents(db.default_family()), stored, "{what}, round {round}");
            assert_eq!(contents(open(&disk.kill_clone()).default_family()), stored);
            db.compact().unwrap();
            let report = db.verify().unwrap();
            assert!(report.is_clean(), "{what}, round {round}: {:?}", report.problems);
            assert_eq!(contents(db.default_family()), stored);
            assert_eq!(contents(open(&disk.kill_clone()).default_family()), stored);
        }
        if direct == 0 {
            // At once, not only by the close. Value logs that commits write are there for other reasons, too.
            let report = kingtide::verify(DIR, &options(&disk.kill_clone())).unwrap();
            assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        }
        drop(db);
        let report = kingtide::verify(DIR, &options(&disk)).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    });
}

/// A rename may happen and fail nevertheless, over a network for example. The new manifest was removed then, and `CURRENT` named it: the
/// database was refused for ever.
#[test]
fn a_rename_of_current_that_happens_although_it_fails_leaves_a_manifest() {
    for nth in 0..3 {
        let disk = MemFs::new();
        let fs = FaultFs::new(Arc::new(disk.clone()), 1);
        let db = open(&fs);
        let mut stored = Contents::new();
        for round in 0..4 {
            for i in 0..5 {
                let i = round * 5 + i;
                db.put(key(i), large(i)).unwrap();
                stored.insert(key(i), large(i));
            }
            // A record that fails has the next one written to a new manifest. A flush may try again by itself.
            fs.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST-"));
            (0..nth).for_each(|_| fs.add(Rule::new(Op::Rename, Fault::DoneEio).path("CURRENT")));
            for _ in 0..=nth {
                let flushed = db.flush();
                assert_eq!(contents(open(&disk.kill_clone()).default_family()), stored, "round {round}");
                let after_cut = Db::open(DIR, options(&cut(&disk))).unwrap();
                assert!(flushed.is_err() || contents(after_cut.default_family()) == stored, "round {round}");
                assert_eq!(contents(db.default_family()), stored);
            }
            db.flush().unwrap();
            assert_eq!(fs.stats().injected(), (round + 1) * (nth + 1), "round {round} of {nth}");
        }
        drop(db);
        let report = kingtide::verify(DIR, &options(&disk)).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(contents(open(&disk).default_family()), stored);
    }
}

/// A sync of the manifest fails, and the process ends. The next one finds the record, which the disk does not have, and cannot write it
/// again for want of space, on a file system that writes elsewhere. It appended behind it nevertheless, and a power cut left a hole.
#[test]
fn nothing_is_appended_behind_a_record_that_could_not_be_written_again() {
    let disk = MemFs::new();
    let db = open(&disk);
    put_durably(db.default_family(), &db, &key(0), &value(0)).unwrap();
    let set = |db: &Db, n: u64| db.default_family().set_option("memtable_size", &(65_536 + n).to_string());
    (0..8).for_each(|n| set(&db, n).unwrap()); // over some sectors
    disk.fail_syncs(1);
    set(&db, 100).unwrap_err();
    let disk = disk.kill_clone();
    drop(db);
    let fs = FaultFs::new(Arc::new(disk.clone()), 1);
    fs.add(Rule::new(Op::Write, Fault::Enospc).path("MANIFEST-"));
    let db = open(&fs);
    assert_eq!(fs.stats().injected(), 1, "the manifest was not written again");
    for n in 1..20 {
        put_durably(db.default_family(), &db, &key(n), &value(n)).unwrap();
        set(&db, 200 + n).unwrap();
        let found = open(&cut(&disk));
        assert_eq!(contents(found.default_family()).len() as u64, n + 1, "after {n} records");
    }
}

/// The same, with a close before the next record: the files would stay until the next open, and `verify` reported them.
#[test]
fn files_of_a_failed_manifest_record_go_at_a_close() {
    each_failure(|Failing { what, disk, fs, options: o, record, .. }| {
        let db = Db::open(DIR, o).unwrap();
        let mut stored = Contents::new();
        for i in 0..40 {
            db.put(key(i % 30), large(i)).unwrap();
            stored.insert(key(i % 30), large(i));
            if i == 20 {
                db.compact().unwrap(); // or there were a table to move, which makes none
            }
        }
        db.flush().unwrap();
        fs.add(record().sticky());
        db.compact().unwrap_err();
        fs.clear();
        db.close().unwrap();
        let report = kingtide::verify(DIR, &options(&disk)).unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.problems);
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        drop(db);
        assert_eq!(contents(open(&disk).default_family()), stored, "{what}");
    });
}

/// A close left the memtables of a family unflushed whose drop had failed, and said nothing of it: `verify` reported their value log.
#[test]
fn a_family_whose_drop_failed_is_flushed_at_a_close() {
    each_failure(|Failing { what, disk, fs, options: o, record, .. }| {
        let db = Db::open(DIR, o.clone()).unwrap();
        let family = db.create_family("tides", o.family).unwrap();
        let stored: Contents = (0..20).map(|i| (key(i), large(i))).collect();
        stored.iter().for_each(|(key, value)| _ = family.put(key, value).unwrap());
        fs.add(record());
        db.drop_family("tides").unwrap_err();
        assert_eq!(family.put(key(0), value(0)).unwrap_err().kind(), ErrorKind::Closed);
        db.close().unwrap();
        let report = kingtide::verify(DIR, &options(&disk)).unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.problems);
        drop((db, family));
        assert_eq!(contents(&open(&disk).family("tides").unwrap()), stored, "{what}");
    });
}
