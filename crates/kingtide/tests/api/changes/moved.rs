//! Streams that come late for values that were written once: shown wherever they were moved to, until nothing is left of them.

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{
    ChangeKind, ChangeStream, ColumnFamily, Compression, Db, Error, ErrorKind, FamilyOptions, Isolation, ManualClock,
    Options, WriteBatch,
};
use kingtide_base::rng::Rng;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LEN: usize = 3000;

fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.clock = Some(ManualClock::at_unix_ms(1_800_000_000_000));
    o.family = FamilyOptions::new()
        .compression(Compression::Lz4)
        .direct_value_threshold(1000)
        .value_chunk_size(4096)
        .vlog_dead_ratio(0.05);
    o.tuning.staged_from = 2000;
    o
}

fn open(fs: &MemFs) -> Db {
    Db::open("db", options(fs)).unwrap()
}

fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![seed as u8; len];
    Rng::new(seed).fill(&mut bytes[..len / 2]);
    bytes
}

fn value_logs(fs: &MemFs) -> Vec<String> {
    let names = fs.list(Path::new("db")).unwrap().into_iter().filter(|name| name.ends_with(".vlog"));
    // Some are made ahead, and empty.
    let size = |name: &String| fs.open(&Path::new("db").join(name), OpenMode::Read).unwrap().len().unwrap();
    names.filter(|name| size(name) > 0).collect()
}

/// Has everything in tables, and the values of the logs that there were in others. A memtable of `other` keeps the log.
fn move_all(db: &Db, fs: &MemFs, family: &ColumnFamily) {
    let before = value_logs(fs);
    family.flush().unwrap();
    family.compact_range(..).unwrap();
    while db.run_one_job().unwrap() {}
    let after = value_logs(fs);
    assert!(before.iter().all(|name| !after.contains(name)), "{before:?} are still among {after:?}");
}

/// The next record's operations: key and value.
fn next(stream: &mut ChangeStream) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let record = stream.next()?.expect("there is another record");
    Ok(record.operations().map(|c| (c.key.to_vec(), c.value.to_vec())).collect())
}

#[track_caller]
fn shows(stream: &mut ChangeStream, expected: &[(&[u8], Vec<u8>)]) {
    let expected: Vec<_> = expected.iter().map(|(key, value)| (key.to_vec(), value.clone())).collect();
    assert!(next(stream).unwrap() == expected, "at {}", stream.position());
}

#[track_caller]
fn is_gone(db: &Db, after: u64) {
    let mut stream = db.changes_since(after).unwrap();
    for _ in 0..2 {
        let e = stream.next().unwrap_err();
        assert!(e.kind() == ErrorKind::TooOld && e.to_string().contains("large value"), "{e}");
        assert_eq!(stream.position(), after, "it stays where it is");
    }
}

/// A family beside the default one whose memtable keeps the log.
fn with_keeper(fs: &MemFs) -> (Db, ColumnFamily) {
    let db = open(fs);
    let keeper = db.create_family("keeper", options(fs).family).unwrap();
    keeper.put("k", "the log is needed from here on").unwrap();
    (db, keeper)
}

#[test]
fn what_a_rewrite_moved_is_shown_and_what_it_dropped_is_not() {
    let fs = MemFs::new();
    let (db, _keeper) = with_keeper(&fs);
    for n in 0..10u64 {
        db.put([n as u8], value(LEN, n)).unwrap(); // sequence numbers 2 to 11
    }
    for n in 0..7u64 {
        db.put([n as u8], value(LEN, 100 + n)).unwrap(); // 12 to 18
    }
    db.delete([8]).unwrap(); // 19
    let family = db.default_family().clone();
    move_all(&db, &fs, &family);
    for n in 0..7 {
        is_gone(&db, 1 + n);
    }
    let mut stream = db.changes_since(8).unwrap();
    shows(&mut stream, &[(&[7], value(LEN, 7))]);
    is_gone(&db, 9);
    let mut stream = db.changes_since(10).unwrap();
    shows(&mut stream, &[(&[9], value(LEN, 9))]);
    for n in 0..7u64 {
        shows(&mut stream, &[(&[n as u8], value(LEN, 100 + n))]);
    }
    assert_eq!(stream.next().unwrap().unwrap().operations().next().unwrap().kind, ChangeKind::Delete);
    assert!(stream.next().unwrap().is_none());
    // They move again: below, beside newer versions that are in memory, and after a snapshot that keeps old ones.
    let snapshot = db.snapshot();
    for n in 0..10u64 {
        db.put([n as u8], value(LEN, 200 + n)).unwrap(); // 20 to 29
    }
    shows(&mut db.changes_since(10).unwrap(), &[(&[9], value(LEN, 9))]);
    family.flush().unwrap();
    while db.run_one_job().unwrap() {}
    let mut stream = db.changes_since(11).unwrap();
    for n in 0..7u64 {
        shows(&mut stream, &[(&[n as u8], value(LEN, 100 + n))]);
    }
    drop(snapshot);
    move_all(&db, &fs, &family);
    is_gone(&db, 11);
    shows(&mut db.changes_since(19).unwrap(), &[(&[0], value(LEN, 200))]);
}

#[test]
fn what_the_first_flush_after_a_crash_moved_is_shown() {
    let fs = MemFs::new();
    let (db, _keeper) = with_keeper(&fs);
    let mut batch = WriteBatch::new();
    batch.put(db.default_family(), b"a", &value(LEN, 1)).unwrap();
    batch.put(db.default_family(), b"small", b"in the log").unwrap();
    batch.put(db.default_family(), b"b", &value(20_000, 2)).unwrap();
    db.write(batch).unwrap();
    db.put_reader("pieces", &value(50_000, 3)[..]).unwrap();
    let killed = fs.kill_clone();
    drop(db);
    let db = open(&killed);
    let before = value_logs(&killed);
    db.default_family().flush().unwrap();
    while db.run_one_job().unwrap() {}
    let after = value_logs(&killed);
    assert!(!before.is_empty() && before.iter().all(|name| !after.contains(name)), "{before:?} {after:?}");
    let mut stream = db.changes_since(1).unwrap();
    let small = (&b"small"[..], b"in the log".to_vec());
    shows(&mut stream, &[(b"a", value(LEN, 1)), small, (b"b", value(20_000, 2))]);
    shows(&mut stream, &[(b"pieces", value(50_000, 3))]);
    assert!(stream.next().unwrap().is_none());
}

#[test]
fn values_of_transactions_batches_and_pieces_are_found_by_their_own_numbers() {
    let fs = MemFs::new();
    let (db, _keeper) = with_keeper(&fs);
    let family = db.default_family().clone();
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(&family, b"first", &value(LEN, 1)).unwrap();
    txn.put(&family, b"small", b"value").unwrap();
    txn.put(&family, b"last", &value(LEN, 2)).unwrap();
    txn.commit().unwrap(); // 2 to 4
    // One batch that puts one key twice, once in pieces: no reader ever sees its first value.
    let staged = {
        let mut writer = family.value_writer().unwrap();
        writer.append(&value(60_000, 3)).unwrap();
        writer.finish().unwrap()
    };
    let mut batch = WriteBatch::new();
    batch.put_staged(&family, b"pieces", &staged).unwrap();
    batch.put(&family, b"slice", &value(LEN, 4)).unwrap();
    db.write(batch).unwrap(); // 5 and 6
    let mut batch = WriteBatch::new();
    batch.put(&family, b"twice", &value(LEN, 5)).unwrap();
    batch.put(&family, b"twice", &value(LEN, 6)).unwrap();
    db.write(batch).unwrap(); // 7 and 8
    db.put("dead", value(LEN, 7)).unwrap();
    db.delete("dead").unwrap();
    // A transaction in doubt has its values in the log, which its commit repeats.
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(&family, b"in doubt", &value(LEN, 8)).unwrap();
    txn.prepare(b"name").unwrap();
    txn.commit().unwrap();
    // The file of a staged value is its own: overwriting part of another value log does not move it.
    family.flush().unwrap();
    family.compact_range(..).unwrap();
    while db.run_one_job().unwrap() {}
    let mut stream = db.changes_since(1).unwrap();
    shows(&mut stream, &[(b"first", value(LEN, 1)), (b"small", b"value".to_vec()), (b"last", value(LEN, 2))]);
    shows(&mut stream, &[(b"pieces", value(60_000, 3)), (b"slice", value(LEN, 4))]);
    is_gone(&db, stream.position());
    let mut stream = db.changes_since(10).unwrap();
    shows(&mut stream, &[(b"in doubt", value(LEN, 8))]);
    assert!(stream.next().unwrap().is_none());
}

#[test]
fn deleted_ranges_expired_values_and_dropped_families_are_gone_once_compacted() {
    let fs = MemFs::new();
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let db = Db::open("db", options(&fs).clock(clock.clone())).unwrap();
    let keeper = db.create_family("keeper", options(&fs).family).unwrap();
    keeper.put("k", "the log is needed from here on").unwrap();
    let family = db.default_family().clone();
    db.put("lost", value(LEN, 1)).unwrap(); // 2
    db.put("kept", value(LEN, 2)).unwrap();
    db.put_ttl("soon", value(LEN, 3), Duration::from_secs(1)).unwrap();
    db.put_ttl("late", value(LEN, 4), Duration::from_secs(1_000_000)).unwrap();
    db.delete_range("l".."m").unwrap(); // 6, of `lost` and `late`
    db.put_ttl("late", value(LEN, 5), Duration::from_secs(1_000_000)).unwrap();
    let mut stream = db.changes_since(1).unwrap();
    shows(&mut stream, &[(b"lost", value(LEN, 1))]);
    clock.advance(Duration::from_secs(2));
    let old = db.changes_since(3).unwrap().next().unwrap().unwrap();
    assert!(old.operations().next().unwrap().value == value(LEN, 3), "expired, and not compacted yet");
    move_all(&db, &fs, &family);
    is_gone(&db, 1);
    shows(&mut db.changes_since(2).unwrap(), &[(b"kept", value(LEN, 2))]);
    is_gone(&db, 3);
    is_gone(&db, 4);
    let mut stream = db.changes_since(5).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().operations().next().unwrap().kind, ChangeKind::DeleteRange);
    let record = stream.next().unwrap().unwrap();
    let change = record.operations().next().unwrap();
    assert!(change.value == value(LEN, 5) && change.expires_at.is_some(), "it kept its expiry");

    let other = db.create_family("other", options(&fs).family).unwrap();
    let seq = db.latest_sequence();
    let mut batch = WriteBatch::new();
    batch.put(&other, b"k", &value(LEN, 6)).unwrap();
    batch.put(&family, b"small", b"beside it").unwrap();
    db.write(batch).unwrap();
    let mut stream = db.changes_since(seq).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().len(), 2);
    other.flush().unwrap();
    db.rename_family("other", "renamed").unwrap();
    let mut stream = db.changes_since(seq).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().operations().next().unwrap().family_name, Some("renamed"));
    db.drop_family("renamed").unwrap();
    while db.run_one_job().unwrap() {}
    is_gone(&db, seq);
}

/// Tables hold them after a reopen without value logs, and merges give short values there other sequence numbers.
#[test]
fn what_was_moved_into_tables_is_shown_however_often_they_are_merged() {
    let fs = MemFs::new();
    let (db, keeper) = with_keeper(&fs);
    for n in 0..10u64 {
        db.put([n as u8], value(LEN, n)).unwrap(); // sequence numbers 2 to 11
    }
    db.put("short", "value").unwrap();
    // The first flush after a crash moves values.
    let killed = fs.kill_clone();
    drop((db, keeper));
    let mut options = options(&killed);
    options.family = options.family.direct_value_threshold(0).value_threshold(0);
    let db = Db::open("db", options).unwrap();
    let family = db.default_family().clone();
    assert!(!value_logs(&killed).is_empty());
    for round in 0..3 {
        db.put("short", format!("value {round}")).unwrap();
        db.put([255], "another table to merge").unwrap();
        move_all(&db, &killed, &family);
        assert_eq!(value_logs(&killed), [""; 0], "the values are in tables");
        let mut stream = db.changes_since(1).unwrap();
        for n in 0..10u64 {
            shows(&mut stream, &[(&[n as u8], value(LEN, n))]);
        }
    }
}

/// So they are where short values are written once, whatever the options become later: the manifest remembers the smallest threshold.
#[test]
fn short_values_that_were_moved_into_tables_are_shown_however_often_they_are_merged() {
    const SHORT: usize = 60;
    let with = |fs: &MemFs, (direct, threshold): (u64, u64)| {
        let mut options = options(fs);
        options.tuning.manifest_rewrite = 0; // each record may go into a new manifest
        options.family = options.family.direct_value_threshold(direct).value_threshold(threshold);
        Db::open("db", options).unwrap()
    };
    let mut fs = MemFs::new();
    let db = with(&fs, (50, 10));
    let keeper = db.create_family("keeper", options(&fs).family).unwrap();
    keeper.put("k", "the log is needed from here on").unwrap();
    for n in 0..10u64 {
        db.put([n as u8], value(SHORT, n)).unwrap(); // sequence numbers 2 to 11
    }
    assert!(!value_logs(&fs).is_empty());
    let mut open = (db, keeper);
    // The first flush after a crash moves values, by the options of that open.
    for options in [(0, 0), (2000, 1000), (0, 512)] {
        let killed = fs.kill_clone();
        drop(open);
        fs = killed;
        let db = with(&fs, options);
        for round in 0..3 {
            db.put("other", format!("value {round}")).unwrap();
            db.put([255], "another table to merge").unwrap();
            move_all(&db, &fs, db.default_family());
            assert_eq!(value_logs(&fs), [""; 0], "the values are in tables");
            let mut stream = db.changes_since(1).unwrap();
            for n in 0..10u64 {
                shows(&mut stream, &[(&[n as u8], value(SHORT, n))]);
            }
        }
        let keeper = db.family("keeper").unwrap();
        open = (db, keeper);
    }
}
