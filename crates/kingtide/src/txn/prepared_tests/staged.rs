//! Prepared transactions with values that were written to value logs before.

use super::*;
use crate::txn::prepared::PreparedTable;
use kingtide_base::names::segment_path;
use kingtide_vfs::OpenMode;
use std::path::Path;

const LONG: usize = 20_000;

fn with_staged(db: &Db, key: &[u8], seed: u32) -> WriteBatch {
    let mut batch = batch(&[(db.default_family(), &[b"beside ", key].concat(), b"it")]);
    let value = stage(db.default_family(), &noise(seed, LONG));
    batch.put_staged(db.default_family(), key, &value).expect("put");
    batch
}

fn value_logs(fs: &MemFs) -> usize {
    fs.list(Path::new("/db")).expect("list").iter().filter(|name| name.ends_with(".vlog")).count()
}

fn table(db: &Db) -> &PreparedTable {
    &db.inner().prepared
}

fn run_jobs(db: &Db) {
    while db.run_one_job().expect("job") {}
}

fn staged_bytes(db: &Db) -> u64 {
    db.stats().get("vlog_bytes").expect("a statistic")
}

fn powerless(fs: &MemFs) -> MemFs {
    fs.crash_clone(Survival::AllLost, &mut Rng::new(1))
}

/// Versions of the segments that have a header.
fn versions(db: &Db, fs: &MemFs) -> Vec<u8> {
    let version = |id: u64| {
        let mut head = [0; 8];
        let file = fs.open(&segment_path(Path::new("/db"), id), OpenMode::Read).expect("segment");
        file.read_at(&mut head, 0).expect("header");
        head[4]
    };
    db.inner().wal.live_segments().into_iter().map(version).filter(|v| *v > 0).collect()
}

#[test]
fn staged_values_stay_in_doubt_through_every_end_and_are_counted() {
    let mut fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"one", with_staged(&db, b"long", 1));
    // The value of this one is synced with the log, not by its prepare.
    let mut second = with_staged(&db, b"longer", 2);
    try_prepare(&db, b"two", &mut second, Durability::Process).expect("prepare");
    db.sync().unwrap();
    let counted = staged_bytes(&db);
    assert!(counted >= 2 * LONG as u64, "{counted}");
    assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
    let mut db = Some(db);
    for round in 0..4 {
        fs = match round {
            0 => powerless(&fs),
            1 => fs.kill_clone(),
            2 => {
                db.take().unwrap().close().unwrap();
                fs
            }
            _ => fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(2)),
        };
        let again = open(&fs);
        assert_eq!((value_logs(&fs), staged_bytes(&again)), (2, counted), "round {round}");
        run_jobs(&again);
        let writes = writes_of(&again, b"one");
        assert!(writes.iter().any(|w| w.2 == b"long" && w.3 == noise(1, LONG)), "round {round}");
        assert!(again.verify().unwrap().is_clean(), "round {round}: {:?}", again.verify().unwrap());
        let report = crate::verify("/db", &options(Arc::new(fs.kill_clone()))).unwrap();
        assert!(report.is_clean() && report.counts.prepared == 2, "round {round}: {report:?}");
        db = Some(again);
    }
    let db = db.unwrap();
    resolve(&db, b"one", true);
    resolve(&db, b"two", false);
    let long = noise(1, LONG);
    assert!(db.get(b"long").unwrap().unwrap() == long && db.get(b"longer").unwrap().is_none());
    let committed = open(&powerless(&fs));
    assert!(committed.get(b"long").unwrap().unwrap() == long, "before its flush");
    db.flush().unwrap();
    run_jobs(&db);
    assert!(db.get(b"long").unwrap().unwrap() == long);
    assert_eq!(value_logs(&fs), 1, "the value moved, and the other one went");
    assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
}

/// The flush hands the pointer on: the value is written once.
#[test]
fn a_value_is_written_once_if_nothing_crashes() {
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"xid", with_staged(&db, b"long", 1));
    let names = || fs.list(Path::new("/db")).unwrap().into_iter().filter(|n| n.ends_with(".vlog")).collect::<Vec<_>>();
    let before = names();
    resolve(&db, b"xid", true);
    db.flush().unwrap();
    run_jobs(&db);
    assert_eq!(names(), before);
    assert!(db.get(b"long").unwrap().unwrap() == noise(1, LONG));
}

/// The end of a rollback may be lost by a power cut as long as it is not synced, so the file must stay as long.
#[test]
fn the_file_of_a_rolled_back_value_goes_when_the_end_is_synced() {
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"xid", with_staged(&db, b"long", 1));
    try_resolve(&db, b"xid", false, Durability::Process).unwrap().durable.unwrap();
    assert_eq!(value_logs(&fs), 1, "the end is not synced");
    assert!(table(&db).given_up().is_some());
    let back = open(&powerless(&fs));
    assert_eq!(xids(&back), [b"xid"], "the power cut took the end");
    resolve(&back, b"xid", true);
    assert!(back.get(b"long").unwrap().unwrap() == noise(1, LONG));
    drop(back);
    run_jobs(&db);
    assert_eq!((value_logs(&fs), staged_bytes(&db)), (0, 0));
    assert!(xids(&open(&powerless(&fs))).is_empty(), "the job synced it first");
    // A close does the same.
    prepare(&db, b"again", with_staged(&db, b"long", 2));
    try_resolve(&db, b"again", false, Durability::Process).unwrap().durable.unwrap();
    db.close().unwrap();
    assert_eq!(value_logs(&fs), 0);
}

/// Recovery meets the prepare, whose value is gone, and its end behind it.
#[test]
fn a_log_with_prepares_that_were_resolved_is_read() {
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"kept", batch(&[(db.default_family(), b"keeps", b"the log")]));
    prepare(&db, b"rolled back", with_staged(&db, b"a", 1));
    resolve(&db, b"rolled back", false);
    prepare(&db, b"committed", with_staged(&db, b"b", 2));
    resolve(&db, b"committed", true);
    db.flush().unwrap();
    db.delete(b"b").unwrap();
    db.put(b"after", b"it").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    run_jobs(&db);
    db.put(b"last", b"put").unwrap();
    assert_eq!(value_logs(&fs), 0, "neither value is there");
    let read_only = Db::open_read_only("/db", options(Arc::new(fs.clone()))).unwrap();
    assert_eq!(read_only.get(b"last").unwrap().as_deref(), Some(&b"put"[..]));
    drop(read_only);
    for again in [fs.kill_clone(), powerless(&fs)] {
        let killed = again.kill_clone();
        let db = open(&again);
        assert_eq!(xids(&db), [b"kept"]);
        assert_eq!(db.get(b"after").unwrap().as_deref(), Some(&b"it"[..]));
        assert!(db.get(b"b").unwrap().is_none());
        drop(db);
        // A power cut may bring files back that were removed.
        let report = crate::verify("/db", &options(Arc::new(killed))).unwrap();
        assert!(!report.is_damaged() && report.counts.prepared == 1, "{report:?}");
    }
}

/// Damage to a synced value is an error that names it; the transaction is not left out silently.
#[test]
fn a_value_that_damage_took_is_told() {
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"xid", with_staged(&db, b"long", 1));
    db.put(b"after", b"it").unwrap();
    db.sync().unwrap();
    let id = table(&db).staged()[0].log.id();
    let path = kingtide_base::names::vlog_path(Path::new("/db"), id);
    let (cut, gone) = (fs.kill_clone(), fs.kill_clone());
    gone.remove(&path).unwrap();
    cut.open(&path, OpenMode::Write).unwrap().write_at(&[0; 64], 5000).unwrap();
    for damaged in [cut, gone] {
        let report = crate::verify("/db", &options(Arc::new(damaged.clone()))).unwrap();
        assert!(!report.is_clean(), "{report:?}");
        let refused = Db::open("/db", options(Arc::new(damaged))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
    }
}

/// A build that does not know of such prepares would remove the files: it must meet a version that it refuses by name.
#[test]
fn only_such_prepares_make_a_log_of_version_4() {
    let fs = MemFs::new();
    let db = open(&fs);
    let value = stage(db.default_family(), &noise(3, LONG));
    db.default_family().put_staged(b"k", &value).unwrap();
    prepare(&db, b"plain", batch(&[(db.default_family(), b"a", b"1")]));
    assert!(versions(&db, &fs).iter().all(|v| *v <= 2), "{:?}", versions(&db, &fs));
    prepare(&db, b"staged", with_staged(&db, b"long", 1));
    assert!(versions(&db, &fs).contains(&4));
    // A record that is written again, too: the log of the next open begins with version 1.
    let info = table(&db).list();
    drop(db);
    let fs = powerless(&fs);
    let db = open(&fs);
    for i in 0..4000u32 {
        db.put((i % 400).to_be_bytes(), [7; 300]).unwrap();
        if i % 8 == 0 {
            run_jobs(&db);
        }
    }
    assert_eq!(table(&db).list(), info);
    assert!(db.inner().wal.oldest_seq().unwrap() > info[1].sequence, "the first record is gone");
    assert!(versions(&db, &fs).contains(&4), "{:?}", versions(&db, &fs));
    let again = open(&powerless(&fs));
    assert_eq!(table(&again).list(), info);
    resolve(&again, b"staged", true);
    assert!(again.get(b"long").unwrap().unwrap() == noise(1, LONG));
}

#[test]
fn a_staged_value_is_promised_to_one_transaction() {
    let db = open(&MemFs::new());
    let family = db.default_family();
    let value = stage(family, &noise(1, LONG));
    let both = |key: &[u8]| {
        let mut batch = WriteBatch::new();
        batch.put_staged(family, key, &value).map(|()| batch)
    };
    let (first, mut second, mut third) = (both(b"a").unwrap(), both(b"b").unwrap(), both(b"c").unwrap());
    prepare(&db, b"first", first);
    let refused = [
        try_prepare(&db, b"second", &mut second, Durability::Power).unwrap_err(),
        db.write(&mut third).unwrap_err(),
        both(b"d").unwrap_err(),
    ];
    for e in refused {
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("prepared"), "{e}");
    }
    assert_eq!((second.len(), xids(&db).len()), (1, 1));
    drop(value);
    resolve(&db, b"first", true);
    assert!(db.get(b"a").unwrap().unwrap() == noise(1, LONG) && db.get(b"b").unwrap().is_none());
}

/// The log must hold values from then on, but nothing may keep a prepared transaction from committing.
#[test]
fn retention_refuses_to_prepare_and_never_to_commit() {
    let db = open(&MemFs::new());
    prepare(&db, b"before", with_staged(&db, b"long", 1));
    let mut late = with_staged(&db, b"late", 2);
    db.set_option("change_retention", "100000").unwrap();
    let refused = try_prepare(&db, b"late", &mut late, Durability::Power).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("change_retention"), "{refused}");
    let mut stream = db.changes_since(db.latest_sequence()).unwrap();
    resolve(&db, b"before", true);
    let record = stream.next().unwrap().expect("the commit");
    assert!(record.operations().any(|op| op.key == b"long" && op.value == noise(1, LONG)));
}

/// The values of a dropped family go, those of others stay.
#[test]
fn a_family_may_be_dropped_while_its_values_are_in_doubt() {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", options(Arc::new(fs.clone())).family).unwrap();
    let mut writes = with_staged(&db, b"long", 1);
    writes.put_staged(&other, b"of dropped", &stage(&other, &noise(2, LONG))).unwrap();
    prepare(&db, b"xid", writes);
    db.drop_family("other").unwrap();
    let reopened = open(&powerless(&fs));
    for db in [db, reopened] {
        resolve(&db, b"xid", true);
        assert!(db.get(b"long").unwrap().unwrap() == noise(1, LONG));
        db.flush().unwrap();
        run_jobs(&db);
        assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
    }
    assert_eq!(value_logs(&fs), 1);
}

/// A prepare that was not synced may lose its value to a power cut: then the log ends before it.
#[test]
fn a_power_cut_takes_an_unsynced_prepare_with_its_value() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..60 {
        let fs = MemFs::new();
        let db = open(&fs);
        db.put(b"before", b"1").unwrap();
        db.sync().unwrap();
        let mut writes = with_staged(&db, b"long", 1);
        try_prepare(&db, b"xid", &mut writes, Durability::Process).unwrap().durable.unwrap();
        db.put(b"after", b"1").unwrap();
        let cut = fs.crash_clone(Survival::RandomBlocks, &mut Rng::new(seed));
        let db = open(&cut);
        assert!(db.get(b"before").unwrap().is_some());
        let in_doubt = !xids(&db).is_empty();
        assert!(in_doubt || db.get(b"after").unwrap().is_none(), "seed {seed}: not a prefix");
        match in_doubt {
            true => {
                resolve(&db, b"xid", true);
                assert!(db.get(b"long").unwrap().unwrap() == noise(1, LONG), "seed {seed}");
                with += 1;
            }
            false => without += 1,
        }
    }
    assert!(without > 0, "{with} and {without}");
}
