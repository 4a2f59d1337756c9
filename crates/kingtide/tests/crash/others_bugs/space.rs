//! Space: what is reported, what is given back, and what happens when there is none.

use super::{Contents, contents, files, key, large, open, options, value};
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{Db, ErrorKind};

fn on_disk(fs: &MemFs, extension: &str) -> u64 {
    files(fs, extension).iter().map(|p| fs.open(p, OpenMode::Read).unwrap().len().unwrap()).sum()
}

/// A database of 10 GB reported 200 GB: the same files counted at each level, or files counted that were long deleted. Every
/// figure here is compared with what the directory holds.
#[test]
fn reported_sizes_are_what_lies_on_the_disk() {
    let fs = MemFs::new();
    let db = open(&fs);
    let check = |db: &Db, what: &str| {
        let report = db.stats();
        let figure = |name| report.get(name).unwrap();
        assert_eq!(figure("klog_bytes"), on_disk(&fs, ".klog"), "{what}: key logs");
        assert_eq!(figure("vlog_bytes"), on_disk(&fs, ".vlog"), "{what}: value logs");
        let unused = 8 * (64 << 10); // spares, and released ones that are to be used again
        assert!(on_disk(&fs, ".wal") - figure("wal_size_bytes") <= unused, "{what}: log");
        let levels = report.families.iter().flat_map(|f| &f.levels);
        assert_eq!(levels.map(|l| l.bytes).sum::<u64>(), figure("klog_bytes"), "{what}: levels");
        assert_eq!(report.families.iter().map(|f| f.vlog_bytes).sum::<u64>(), figure("vlog_bytes"), "{what}: families");
        assert!(figure("vlog_dead_bytes") <= figure("vlog_bytes"), "{what}: dead bytes");
        let entries: u64 = report.families.iter().flat_map(|f| &f.levels).map(|l| l.entries).sum();
        (figure("vlog_dead_bytes"), entries)
    };
    for round in 0..5u64 {
        for i in 0..200 {
            db.put(key(i), if i % 2 == 0 { large(i + round) } else { value(i + round) }).unwrap();
        }
        db.flush().unwrap();
        check(&db, "after a flush");
        while db.run_one_job().unwrap() {}
        check(&db, "after merges");
    }
    db.compact().unwrap();
    let (_, entries) = check(&db, "compacted");
    assert_eq!(entries, 200, "hidden versions are left");
    // What is dead is what was overwritten: the values' stored bytes, no more and no less.
    let dead_before = check(&db, "compacted").0;
    let live = db.stats().get("vlog_bytes").unwrap() - dead_before;
    (0..200).step_by(2).for_each(|i| {
        db.delete(key(i)).unwrap();
    });
    db.default_family().set_option("vlog_dead_ratio", "1").unwrap();
    db.compact().unwrap();
    let (dead, entries) = check(&db, "deleted");
    assert_eq!(entries, 100);
    assert!(dead == 0 || dead > dead_before && dead <= dead_before + live, "{dead} dead bytes after {dead_before}");
    let report = db.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    db.close().unwrap();
    check(&open(&fs), "reopened");
}

/// How much of a value log is dead decides when it is rewritten; a figure that drifts means files that are never given back, or
/// rewritten for nothing. Half of the values of a log are deleted: half of its bytes are dead.
#[test]
fn dead_bytes_of_a_value_log_are_exact() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.family.vlog_dead_ratio = 1.0;
    o.family.compression = kingtide::Compression::None;
    o.family.memtable_size = 1 << 20; // all go to one value log
    let db = Db::open(super::DIR, o).unwrap();
    let same = |i: u64| vec![i as u8; 1000];
    for i in 0..40 {
        db.put(key(i), same(i)).unwrap();
    }
    db.compact().unwrap();
    let whole = db.stats();
    assert_eq!(whole.get("vlog_dead_bytes"), Some(0));
    (0..10).for_each(|i| {
        db.delete(key(i)).unwrap();
    });
    db.compact().unwrap();
    let dead = db.stats().get("vlog_dead_bytes").unwrap();
    (10..30).for_each(|i| {
        db.delete(key(i)).unwrap();
    });
    db.compact().unwrap();
    assert_eq!(db.stats().get("vlog_dead_bytes"), Some(3 * dead), "values of one size");
    assert!((10_000..11_000).contains(&dead), "{dead} bytes of ten values of 1000");
    (30..40).for_each(|i| {
        db.delete(key(i)).unwrap();
    });
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    assert_eq!((db.stats().get("vlog_bytes"), on_disk(&fs, ".vlog")), (Some(0), 0), "nothing refers to it any more");
}

/// A full disk left value logs that could not be opened again but by cutting them, with the values in them. Here the disk is
/// full after each kibibyte of a flush and a merge; once there is space, everything goes on without a reopen, or with one.
#[test]
fn a_full_disk_leaves_no_value_log_that_must_be_truncated() {
    let mut refused = 0;
    for room in (0..96).step_by(3) {
        let fs = MemFs::new();
        let mut o = options(&fs);
        o.family.compression = kingtide::Compression::None;
        let db = Db::open(super::DIR, o).unwrap();
        let mut stored = Contents::new();
        for i in 0..60 {
            db.put(key(i % 40), large(i)).unwrap();
            stored.insert(key(i % 40), large(i));
            if i == 30 {
                db.flush().unwrap();
            }
        }
        let names = fs.list(super::DIR.as_ref()).unwrap();
        let used: u64 = names.iter().map(|n| on_disk(&fs, n)).sum();
        fs.set_capacity(Some(used + room * 1024));
        if let Err(e) = db.compact() {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?}");
            refused += 1;
        }
        assert_eq!(contents(db.default_family()), stored, "on a full disk, {room} KiB");
        let full = fs.kill_clone();
        assert_eq!(contents(open(&full).default_family()), stored, "reopened on a full disk, {room} KiB");
        fs.set_capacity(None);
        db.compact().unwrap();
        assert_eq!(contents(db.default_family()), stored, "space came back, {room} KiB");
        let report = db.verify().unwrap();
        assert!(report.is_clean(), "{room} KiB: {:?}", report.problems);
        db.close().unwrap();
        assert_eq!(contents(open(&fs).default_family()), stored);
    }
    println!("{refused} compactions met a full disk");
    assert!(refused > 5);
}
