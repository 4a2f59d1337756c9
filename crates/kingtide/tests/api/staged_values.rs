//! Values written in pieces, beside everything else that a database does meanwhile.

use super::value_writer::{open, open_with_faults, options, run_jobs, stage, value, value_logs};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fault, Fs, MemFs, Op, Rule};
use kingtide::{
    Db, Durability, ErrorKind, Isolation, LockMode, ManualClock, TransactionOptions, WriteBatch, WriteOptions,
};
use kingtide_base::rng::Rng;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const BIG: usize = 60_000;

fn vlog_bytes(db: &Db) -> u64 {
    let stats = db.stats();
    let of_families: u64 = stats.families.iter().map(|f| f.vlog_bytes).sum();
    assert_eq!(stats.get("vlog_bytes"), Some(of_families), "the families' sum is the database's");
    of_families
}

fn bytes_of_value_logs(fs: &MemFs) -> u64 {
    let names = fs.list(Path::new("db")).unwrap();
    let logs = names.iter().filter(|n| n.ends_with(".vlog"));
    logs.map(|n| fs.open(&Path::new("db").join(n), kingtide::vfs::OpenMode::Read).unwrap().len().unwrap()).sum()
}

#[test]
fn space_of_a_value_counts_from_its_first_chunk_on() {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", options(&fs).family).unwrap();
    let mut rng = Rng::new(1);
    let mut noise = vec![0; BIG];
    rng.fill(&mut noise);
    let (mut one, mut two) = (db.value_writer().unwrap(), other.value_writer().unwrap());
    one.write_all(&noise).unwrap();
    let counted = vlog_bytes(&db);
    assert!(counted > BIG as u64 - 5000 && counted < BIG as u64 + 1000, "{counted}");
    two.write_all(&noise).unwrap();
    assert!(vlog_bytes(&db) > counted * 2 - 5000);
    let (one, two) = (one.finish().unwrap(), two.finish().unwrap());
    let staged = vlog_bytes(&db);
    assert_eq!(staged, bytes_of_value_logs(&fs));
    // Once it is committed, the memtable counts it, and then the manifest.
    db.default_family().put_staged(b"k", &one).unwrap();
    assert_eq!(vlog_bytes(&db), staged);
    drop(one);
    db.flush().unwrap();
    assert_eq!(vlog_bytes(&db), bytes_of_value_logs(&fs));
    drop(two);
    run_jobs(&db);
    assert_eq!((vlog_bytes(&db), value_logs(&fs)), (bytes_of_value_logs(&fs), 1));
}

#[test]
fn a_close_removes_what_was_not_committed() {
    let fs = MemFs::new();
    let db = open(&fs);
    let mut rng = Rng::new(2);
    let other = db.create_family("other", options(&fs).family).unwrap();
    db.put_reader(b"kept", &value(BIG, 1)[..]).unwrap();
    let mut writer = db.value_writer().unwrap();
    writer.write_all(&value(BIG, 2)).unwrap();
    let small = db.value_writer().unwrap();
    let staged = stage(db.default_family(), &value(BIG, 3), &mut rng);
    let of_dropped = stage(&other, &value(BIG, 4), &mut rng);
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put_staged(db.default_family(), b"txn", &staged).unwrap();
    db.drop_family("other").unwrap();
    assert_eq!(value_logs(&fs), 4);
    db.close().unwrap();
    assert_eq!(value_logs(&fs), 1, "what is left is the value that was committed");
    // The directory is another's now, with files by the same names perhaps.
    let again = open(&fs);
    for n in 0..8u8 {
        again.put_reader([n], &value(BIG, 10 + u64::from(n))[..]).unwrap();
    }
    again.flush().unwrap();
    for closed in [writer.append(b"x").unwrap_err(), writer.finish().unwrap_err(), small.finish().unwrap_err()] {
        assert_eq!(closed.kind(), ErrorKind::Closed, "{closed}");
    }
    assert_eq!(db.default_family().put_staged(b"late", &staged).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(db.value_writer().unwrap_err().kind(), ErrorKind::Closed);
    drop((txn, staged, of_dropped, other, db));
    for n in 0..8u8 {
        assert!(again.get([n]).unwrap().unwrap() == value(BIG, 10 + u64::from(n)), "{n}");
    }
    assert!(again.get(b"kept").unwrap().unwrap() == value(BIG, 1));
    assert!(again.verify().unwrap().is_clean(), "{:?}", again.verify().unwrap());
}

#[test]
fn a_value_begun_before_retention_is_not_committed_under_it() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let staged = stage(&family, &value(BIG, 1), &mut Rng::new(3));
    let mut batch = WriteBatch::new();
    batch.put_staged(&family, b"k", &staged).unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put_staged(&family, b"k", &staged).unwrap();
    db.set_option("change_retention", "1M").unwrap();
    let refused = db.write_with(&mut batch, &WriteOptions::default()).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("change_retention"), "{refused}");
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
    drop(txn);
    assert_eq!(db.get(b"k").unwrap(), None);
    family.put_reader(b"k", &value(BIG, 2)[..]).unwrap();
    let mut stream = db.changes_since(0).unwrap();
    let record = stream.next().unwrap().unwrap();
    assert!(record.operations().next().unwrap().value == value(BIG, 2), "the log holds it");
    db.set_option("change_retention", "0").unwrap();
    db.write_with(&mut batch, &WriteOptions::default()).unwrap(); // it was not lost
    assert!(db.get(b"k").unwrap().unwrap() == value(BIG, 1));
}

#[test]
fn copies_have_what_is_committed_and_nothing_else() {
    let fs = MemFs::new();
    let db = open(&fs);
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let mut rng = Rng::new(4);
    db.put_reader(b"in a table", &value(BIG, 1)[..]).unwrap();
    db.flush().unwrap();
    db.put_reader(b"in a memtable", &value(BIG, 2)[..]).unwrap();
    db.put_reader(b"overwritten", &value(BIG, 3)[..]).unwrap();
    let mut writer = db.value_writer().unwrap();
    writer.write_all(&value(BIG, 4)).unwrap();
    let staged = stage(db.default_family(), &value(BIG, 5), &mut rng);
    let snapshot = db.snapshot();
    db.put_reader(b"overwritten", &value(BIG, 6)[..]).unwrap();
    assert!(db.verify().unwrap().is_clean(), "amid all of it: {:?}", db.verify().unwrap());
    let old = snapshot.of(db.default_family()).get(b"overwritten").unwrap().unwrap();
    assert!(old == value(BIG, 3), "a snapshot");
    db.checkpoint("checkpoint").unwrap();
    let backup = Backup::on(shared.clone(), "backups");
    let id = backup.create(&db, BackupOptions::default()).unwrap().id;
    backup.restore_to(id, &shared, "restored", BackupOptions::default()).unwrap();
    let reader = Db::open_read_only("db", options(&fs)).unwrap();
    // Neither the writer nor the staged value was disturbed.
    writer.write_all(b"and more").unwrap();
    let writer = writer.finish().unwrap();
    let (mut with_more, wanted) = (value(BIG, 4), [("late", &writer), ("later", &staged)]);
    with_more.extend_from_slice(b"and more");
    wanted.iter().for_each(|(key, value)| {
        db.default_family().put_staged(key, value).unwrap();
    });
    let late = |db: &Db, there: bool, what: &str| {
        assert_eq!(db.get(b"late").unwrap().is_some_and(|v| v == with_more), there, "{what}");
        assert_eq!(db.get(b"later").unwrap().is_some_and(|v| v == value(BIG, 5)), there, "{what}");
        for (key, seed) in [("in a table", 1), ("in a memtable", 2), ("overwritten", 6)] {
            assert!(db.get(key).unwrap().unwrap() == value(BIG, seed), "{what}: {key}");
        }
    };
    late(&reader, false, "a reader beside the writer");
    assert_eq!(reader.value_writer().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(reader.put_reader(b"k", &b"v"[..]).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(reader.default_family().put_staged(b"k", &staged).unwrap_err().kind(), ErrorKind::InvalidArgument);
    reader.try_catch_up().unwrap();
    late(&reader, true, "a reader that caught up");
    late(&db, true, "the database");
    for copy in ["checkpoint", "restored"] {
        let copied = Db::open(copy, options(&fs)).unwrap();
        late(&copied, false, copy);
        copied.close().unwrap();
        let report = kingtide::verify(copy, &options(&fs)).unwrap();
        assert!(report.is_clean(), "{copy}: {report:?}");
    }
}

#[test]
fn staged_values_expire() {
    let fs = MemFs::new();
    let clock = ManualClock::at_unix_ms(1_000_000);
    let mut options = options(&fs).clock(clock.clone());
    let db = Db::open("db", options.clone()).unwrap();
    options.family.ttl = Some(Duration::from_secs(10));
    let short = db.create_family("short", options.family.clone()).unwrap();
    let mut rng = Rng::new(5);
    let mut batch = WriteBatch::new();
    let ttl = Duration::from_secs(5);
    for (len, key) in [(BIG, "big"), (100, "small")] {
        batch
            .put_staged_ttl(
                db.default_family(),
                key.as_bytes(),
                &stage(db.default_family(), &value(len, 1), &mut rng),
                ttl,
            )
            .unwrap();
        batch.put_staged(&short, key.as_bytes(), &stage(&short, &value(len, 2), &mut rng)).unwrap();
    }
    db.write(batch).unwrap();
    let check = |later: u64, in_default: bool, in_short: bool| {
        clock.advance(Duration::from_millis(later));
        for key in ["big", "small"] {
            assert_eq!(db.get(key).unwrap().is_some(), in_default, "{key}");
            assert_eq!(short.get(key).unwrap().is_some(), in_short, "{key}");
            assert_eq!(short.get_reader(key).unwrap().is_some(), in_short, "{key}");
        }
    };
    check(4000, true, true);
    db.flush().unwrap();
    check(500, true, true);
    check(1500, false, true);
    check(6000, false, false);
    db.compact().unwrap();
    run_jobs(&db);
    assert_eq!(value_logs(&fs), 0, "nothing is left of them");
}

#[test]
fn a_commit_that_fails_leaves_its_staged_value_usable() {
    let fs = MemFs::new();
    let (faults, db) = open_with_faults(&fs);
    let family = db.default_family();
    db.put(b"first", b"begins the log").unwrap();
    let staged = stage(family, &value(BIG, 1), &mut Rng::new(6));
    let mut batch = WriteBatch::new();
    batch.put_staged(family, b"k", &staged).unwrap();
    let other = Db::open("other", options(&fs)).unwrap();
    assert_eq!(other.write_with(&mut batch, &WriteOptions::default()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put_staged(family, b"k", &staged).unwrap();
    db.put(b"k", b"came first").unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Conflict);
    drop(txn);
    faults.add(Rule::new(Op::Write, Fault::Enospc).path(".wal"));
    let full = db.write_with(&mut batch, &WriteOptions::default());
    faults.clear();
    // A mapped log may have had the room.
    if let Err(e) = full {
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        db.write_with(&mut batch, &WriteOptions::default()).unwrap();
    }
    assert!(db.get(b"k").unwrap().unwrap() == value(BIG, 1));
}

/// A sync of the value that fails when its commit is in the log stops the writes, as that of the log would: whether it lasts is not known.
#[test]
fn a_value_that_cannot_be_synced_is_not_acknowledged() {
    let fs = MemFs::new();
    let (faults, db) = open_with_faults(&fs);
    db.put(b"first", b"value").unwrap();
    let mut batch = WriteBatch::new();
    batch.put_staged(db.default_family(), b"k", &stage(db.default_family(), &value(BIG, 1), &mut Rng::new(7))).unwrap();
    let process = WriteOptions::new().durability(Durability::Process);
    db.write_with(&mut batch, &process).unwrap();
    faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
    assert_eq!(db.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    faults.clear();
    assert_eq!(db.put_reader(b"l", &value(BIG, 2)[..]).unwrap_err().kind(), ErrorKind::Poisoned);
    let cut = fs.crash_clone(kingtide::vfs::Survival::AllLost, &mut Rng::new(1));
    let again = open(&cut);
    assert_eq!(again.get(b"k").unwrap(), None);
    again.flush().unwrap();
    assert!(again.verify().unwrap().is_clean());
}

/// Values that grow amid flushes and merges, over more files than the tests above have.
#[test]
fn writers_live_through_flushes_and_merges() {
    for seed in 0..6 {
        let fs = MemFs::new();
        let db = open(&fs);
        let mut rng = Rng::new(seed);
        let mut writers = Vec::new();
        let mut wanted: std::collections::BTreeMap<u64, (usize, u64)> = std::collections::BTreeMap::new();
        for step in 0..150u64 {
            match rng.below(8) {
                0 if writers.len() < 5 => {
                    writers.push((db.value_writer().unwrap(), 1 + rng.below(80_000) as usize, step))
                }
                0..=3 => {
                    for (writer, len, seed) in &mut writers {
                        let at = writer.len() as usize;
                        let piece = (*len - at).min(rng.below(20_000) as usize);
                        writer.append(&value(*len, *seed)[at..at + piece]).unwrap();
                    }
                    let done = writers.iter().position(|(w, len, _)| w.len() == *len as u64);
                    if let Some((writer, len, seed)) = done.map(|i| writers.swap_remove(i)) {
                        let key = rng.below(6);
                        db.default_family().put_staged(key.to_be_bytes(), &writer.finish().unwrap()).unwrap();
                        wanted.insert(key, (len, seed));
                    }
                }
                4 if !writers.is_empty() => drop(writers.swap_remove(rng.below(writers.len() as u64) as usize)),
                5 => db.flush().unwrap(),
                6 => drop(db.run_one_job().unwrap()),
                _ if step % 50 == 49 => db.compact().unwrap(),
                _ => {}
            }
        }
        let check = |db: &Db| {
            for key in 0..6u64 {
                let mut found = Vec::new();
                let reader = db.default_family().get_reader(key.to_be_bytes()).unwrap();
                assert_eq!(reader.is_some(), wanted.contains_key(&key), "seed {seed}");
                let Some(mut reader) = reader else { continue };
                reader.read_to_end(&mut found).unwrap();
                let (len, of) = wanted[&key];
                assert!(found == value(len, of), "seed {seed}, key {key}");
            }
        };
        check(&db);
        check(&open(&fs.kill_clone()));
        drop(writers);
        db.compact().unwrap();
        run_jobs(&db);
        check(&db);
        assert_eq!(vlog_bytes(&db), bytes_of_value_logs(&fs), "seed {seed}: nothing on the disk that is not counted");
        db.close().unwrap();
        assert!(kingtide::verify("db", &options(&fs)).unwrap().is_clean(), "seed {seed}");
    }
}

/// A table's entry has less than 4 GiB, and what writes it has it in memory. A value in pieces knows no such limit, so it never
/// comes to be there: not even in a family that an open since then wants to keep all values in tables.
#[test]
fn a_value_of_several_chunks_stays_in_value_logs_when_the_threshold_is_raised() {
    for threshold in [0, 1 << 20] {
        let fs = MemFs::new();
        let db = open(&fs);
        let big = value(BIG, 3);
        db.default_family().put_staged(b"long", &stage(db.default_family(), &big, &mut Rng::new(3))).unwrap();
        // Its first flush after a crash moves it.
        let fs = fs.kill_clone();
        let mut raised = options(&fs);
        raised.family.value_threshold = threshold;
        let db = Db::open("db", raised).unwrap();
        db.put(b"short", value(3000, 4)).unwrap();
        db.flush().unwrap();
        let of = |db: &Db| db.stats().families[0].clone();
        assert!(of(&db).vlog_bytes > BIG as u64 / 2, "with {threshold}: {:?}", of(&db));
        assert!(of(&db).levels[0].bytes < 10_000, "with {threshold}: {:?}", of(&db));
        // And so does a clone, which has its own copy.
        let copy = db.clone_family("default", "copy").unwrap();
        assert!(of(&db).vlog_bytes > BIG as u64 / 2, "with {threshold}: {:?}", of(&db));
        for family in [db.default_family(), &copy] {
            assert!(family.get(b"long").unwrap().unwrap() == big);
            assert!(family.get(b"short").unwrap().unwrap() == value(3000, 4));
        }
        assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
    }
}

/// Prepares a transaction with a staged value, another one that a savepoint takes back, and a small one.
fn prepare(db: &Db, xid: &[u8], seed: u64) {
    let family = db.default_family();
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(family, b"small", b"value").unwrap();
    txn.set_savepoint("here").unwrap();
    txn.put_staged(family, b"taken back", &stage(family, &value(BIG, 99), &mut Rng::new(seed))).unwrap();
    txn.rollback_to_savepoint("here").unwrap();
    let staged = stage(family, &value(BIG, seed), &mut Rng::new(seed));
    txn.put_staged_ttl(family, b"in doubt", &staged, Duration::from_secs(1_000_000)).unwrap();
    assert!(txn.get(family, b"in doubt").unwrap().unwrap() == value(BIG, seed));
    txn.prepare(xid).unwrap();
}

/// Whether a database has the transaction in doubt, and can commit it.
fn commit_prepared(db: &Db, xid: &[u8], seed: u64, what: &str) {
    assert_eq!(db.recover_prepared().iter().map(|p| p.operations).collect::<Vec<_>>(), [2], "{what}");
    assert!(db.verify().unwrap().is_clean(), "{what}: {:?}", db.verify().unwrap());
    assert_eq!(db.get(b"in doubt").unwrap(), None, "{what}");
    db.commit_prepared(xid).unwrap();
    assert!(db.get(b"in doubt").unwrap().unwrap() == value(BIG, seed), "{what}");
    db.flush().unwrap();
    run_jobs(db);
    assert!(db.get(b"in doubt").unwrap().unwrap() == value(BIG, seed), "{what}, flushed");
    assert_eq!(db.get(b"taken back").unwrap(), None, "{what}");
    assert!(db.verify().unwrap().is_clean(), "{what}: {:?}", db.verify().unwrap());
}

#[test]
fn copies_have_transactions_in_doubt_with_their_values() {
    let fs = MemFs::new();
    let db = open(&fs);
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    prepare(&db, b"xid", 7);
    run_jobs(&db);
    assert_eq!(value_logs(&fs), 1, "what was taken back is gone");
    db.checkpoint("checkpoint").unwrap();
    let backup = Backup::on(shared.clone(), "backups");
    let first = backup.create(&db, BackupOptions::default()).unwrap().id;
    let read_only = Db::open_read_only("db", options(&fs)).unwrap();
    assert_eq!(read_only.recover_prepared().len(), 1);
    // The file of the database gets its footer now.
    commit_prepared(&db, b"xid", 7, "the database");
    read_only.try_catch_up().unwrap();
    assert!(read_only.recover_prepared().is_empty());
    assert!(read_only.get(b"in doubt").unwrap().unwrap() == value(BIG, 7));
    let second = backup.create(&db, BackupOptions::default()).unwrap().id;
    for (id, to) in [(first, "restored"), (second, "restored later")] {
        backup.restore_to(id, &shared, to, BackupOptions::default()).unwrap();
    }
    backup.verify(first, BackupOptions::default()).unwrap();
    let open = |dir: &str| Db::open(dir, options(&fs)).unwrap();
    for dir in ["checkpoint", "restored"] {
        let report = kingtide::verify(dir, &options(&fs)).unwrap();
        assert_eq!(report.counts.prepared, 1, "{dir}");
        let copy = open(dir);
        copy.checkpoint(format!("{dir} again")).unwrap();
        commit_prepared(&copy, b"xid", 7, dir);
        commit_prepared(&open(&format!("{dir} again")), b"xid", 7, "a copy of a copy");
    }
    let later = open("restored later");
    assert!(later.get(b"in doubt").unwrap().unwrap() == value(BIG, 7) && later.recover_prepared().is_empty());
}

#[test]
fn repair_keeps_transactions_in_doubt_with_their_values() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.put(b"k", b"v").unwrap();
    prepare(&db, b"xid", 8);
    db.sync().unwrap();
    let killed = fs.kill_clone();
    let report = kingtide::repair("db", "repaired", &options(&killed)).unwrap();
    assert_eq!(report.prepared, [b"xid".to_vec()], "{report:?}");
    let repaired = Db::open("repaired", options(&killed)).unwrap();
    assert_eq!(repaired.get(b"k").unwrap().unwrap(), b"v");
    commit_prepared(&repaired, b"xid", 8, "repaired");
    // One whose value is gone is left out, and said so.
    let damaged = fs.kill_clone();
    for name in damaged.list(Path::new("db")).unwrap().iter().filter(|n| n.ends_with(".vlog")) {
        damaged.remove(&Path::new("db").join(name)).unwrap();
    }
    let report = kingtide::repair("db", "repaired", &options(&damaged)).unwrap();
    assert!(report.prepared.is_empty() && report.left_out.iter().any(|l| l.contains("xid")), "{report:?}");
    assert_eq!(Db::open("repaired", options(&damaged)).unwrap().get(b"k").unwrap().unwrap(), b"v");
}

/// Hooks and streams see the value when it is committed, after a crash too.
#[test]
fn followers_have_values_of_prepared_transactions() {
    struct Seen(std::sync::Mutex<Vec<Vec<u8>>>);
    impl kingtide::CommitHook for Seen {
        fn committed(&self, commit: &kingtide::CommittedWrites<'_>) {
            let values = commit.operations().map(|op| op.value.to_vec());
            self.0.lock().unwrap().extend(values);
        }
    }
    let fs = MemFs::new();
    let db = open(&fs);
    prepare(&db, b"xid", 9);
    let killed = fs.kill_clone();
    let recovered = Db::open("db", options(&killed)).unwrap();
    for db in [db, recovered] {
        let seen = Arc::new(Seen(std::sync::Mutex::default()));
        db.default_family().set_commit_hook(Some(seen.clone())).unwrap();
        let before = db.latest_sequence();
        let mut stream = db.changes_since(before).unwrap();
        db.commit_prepared(b"xid").unwrap();
        let wanted = [b"value".to_vec(), value(BIG, 9)];
        assert!(*seen.0.lock().unwrap() == wanted);
        let record = stream.next().unwrap().unwrap();
        assert!(record.operations().map(|op| op.value).eq(wanted.iter().map(|v| &v[..])));
        let mut late = db.changes_since(before).unwrap();
        db.flush().unwrap();
        run_jobs(&db);
        assert!(late.next().unwrap().unwrap().operations().any(|op| op.value == value(BIG, 9)), "moved or not");
    }
}

/// After a conflict nothing was promised.
#[test]
fn a_prepare_that_fails_leaves_its_staged_value_usable() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    let staged = stage(&family, &value(BIG, 1), &mut Rng::new(1));
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.get(&family, b"read").unwrap();
    txn.put_staged(&family, b"k", &staged).unwrap();
    db.put(b"read", b"changed").unwrap();
    assert_eq!(txn.prepare(b"xid").unwrap_err().kind(), ErrorKind::Conflict);
    drop(txn);
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put_staged(&family, b"k", &staged).unwrap();
    assert_eq!(txn.prepare(b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
    txn.prepare(b"xid").unwrap();
    drop(staged);
    txn.rollback().unwrap();
    run_jobs(&db);
    assert_eq!((db.get(b"k").unwrap(), value_logs(&fs), vlog_bytes(&db)), (None, 0, 0));
}

/// What may be lost cannot be committed; everything else can.
#[test]
fn a_value_whose_sync_failed_is_refused_alone() {
    let fs = MemFs::new();
    let (faults, db) = open_with_faults(&fs);
    let family = db.default_family().clone();
    db.put(b"first", b"value").unwrap();
    let staged = stage(&family, &value(BIG, 1), &mut Rng::new(1));
    for level in [Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = db.begin(level).unwrap();
        txn.put(&family, b"beside", b"it").unwrap();
        txn.put_staged(&family, b"k", &staged).unwrap();
        faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
        assert_eq!(txn.prepare(b"xid").unwrap_err().kind(), ErrorKind::Io);
        faults.clear();
        assert_eq!(txn.prepare(b"xid").unwrap_err().kind(), ErrorKind::Io, "a later sync means nothing");
        let refused = txn.commit().unwrap_err();
        assert!(refused.kind() == ErrorKind::Io && refused.to_string().contains("sync"), "{refused}");
    }
    for durability in [Durability::Process, Durability::Power] {
        let mut batch = WriteBatch::new();
        batch.put_staged(&family, b"k", &staged).unwrap();
        let options = WriteOptions::new().durability(durability);
        assert_eq!(db.write_with(&mut batch, &options).unwrap_err().kind(), ErrorKind::Io);
    }
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put_staged(&family, b"k", &stage(&family, &value(BIG, 2), &mut Rng::new(2))).unwrap();
    txn.prepare(b"xid").unwrap();
    txn.commit().unwrap();
    db.put(b"after", b"it").unwrap();
    db.sync().unwrap();
    let again = open(&fs.crash_clone(kingtide::vfs::Survival::AllLost, &mut Rng::new(1)));
    assert!(again.get(b"k").unwrap().unwrap() == value(BIG, 2));
    assert!(again.get(b"beside").unwrap().is_none() && again.get(b"after").unwrap().is_some());
}

/// Until the first flush moves the values, the files that recovery found take space.
#[test]
fn space_of_value_logs_counts_after_a_crash() {
    let fs = MemFs::new();
    let db = open(&fs);
    let other = db.create_family("other", options(&fs).family).unwrap();
    db.put_reader(b"pieces", &value(BIG, 1)[..]).unwrap();
    other.put_reader(b"pieces", &value(BIG, 2)[..]).unwrap();
    let counted = vlog_bytes(&db);
    assert!(counted > 0 && counted == bytes_of_value_logs(&fs));
    let killed = fs.kill_clone();
    drop((db, other));
    let reader = Db::open_read_only("db", options(&killed)).unwrap();
    assert_eq!(vlog_bytes(&reader), counted);
    drop(reader);
    let db = open(&killed);
    assert_eq!(vlog_bytes(&db), counted);
    db.flush().unwrap();
    run_jobs(&db);
    assert_eq!(vlog_bytes(&db), bytes_of_value_logs(&killed));
    // The manifest names files that the log names too, when only one family of two was flushed.
    let other = db.family("other").unwrap();
    other.put_reader(b"k", &value(BIG, 3)[..]).unwrap();
    db.put_reader(b"k", &value(BIG, 4)[..]).unwrap();
    other.flush().unwrap();
    let killed = killed.kill_clone();
    drop((db, other));
    let db = open(&killed);
    assert_eq!(vlog_bytes(&db), bytes_of_value_logs(&killed));
}

/// Both where the commit itself syncs the value's file, and where another transaction does while the commit waits for a lock.
#[test]
fn a_commit_whose_value_cannot_be_synced_is_refused_alone() {
    let fs = MemFs::new();
    let (faults, db) = open_with_faults(&fs);
    let family = db.default_family().clone();
    db.put(b"first", b"value").unwrap();
    let fail = || faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
    let power = WriteOptions::new().durability(Durability::Power);
    for in_transaction in [false, true] {
        let staged = stage(&family, &value(BIG, 1), &mut Rng::new(1));
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        let mut batch = WriteBatch::new();
        batch.put_staged(&family, b"k", &staged).unwrap();
        txn.put_staged(&family, b"k", &staged).unwrap();
        txn.set_durability(Some(Durability::Power));
        fail();
        let refused = if in_transaction { txn.commit().map(drop) } else { db.write_with(&mut batch, &power).map(drop) };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
        faults.clear();
        assert_eq!(db.write_with(&mut batch, &power).unwrap_err().kind(), ErrorKind::Io, "a later sync means nothing");
        db.sync().unwrap();
    }
    let staged = stage(&family, &value(BIG, 2), &mut Rng::new(2));
    let mut holder = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true)).unwrap();
    holder.lock(&family, b"locked", LockMode::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut batch = WriteBatch::new();
            batch.put(&family, b"locked", b"by another").unwrap();
            batch.put_staged(&family, b"k", &staged).unwrap();
            db.write(batch)
        });
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put_staged(&family, b"k", &staged).unwrap();
        fail();
        assert_eq!(txn.prepare(b"xid").unwrap_err().kind(), ErrorKind::Io);
        faults.clear();
        holder.rollback().unwrap();
        assert_eq!(writer.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
    });
    db.put(b"after", b"it").unwrap();
    db.sync().unwrap();
    assert!(db.get(b"k").unwrap().is_none() && db.get(b"locked").unwrap().is_none());
}
