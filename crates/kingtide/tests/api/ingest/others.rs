//! Ingests beside transactions, locks, change streams, copies, and readers.

use super::world::*;
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{ChangeStreamOptions, Db, ErrorKind, IngestOptions, Isolation, TransactionOptions, WriteBatch, repair};
use kingtide_testkit::RaiseOnDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ingests the even keys of 100..200.
fn ingest(db: &Db, value: &[u8]) -> u64 {
    sorted_file(db.default_family(), "files/even", (100..200).step_by(2), value);
    let options = IngestOptions::new().move_files(true);
    db.default_family().ingest(&["files/even"], &options).unwrap()
}

/// Each transaction is prepared to commit, then files are ingested. What they hold is what counts, not what lies between
/// their smallest and largest key.
#[test]
fn a_transaction_fails_exactly_if_a_key_of_it_was_ingested() {
    let fs = MemFs::new();
    let db = open(&fs);
    let family = db.default_family().clone();
    for i in 0..300 {
        db.put(key(i), b"old").unwrap();
    }
    for (level, touched, fails) in [
        (Isolation::Snapshot, 150, true),
        (Isolation::Snapshot, 151, false),
        (Isolation::Snapshot, 250, false),
        (Isolation::Serializable, 150, true),
        (Isolation::Serializable, 151, false),
    ] {
        for how in ["write", "read", "scan"] {
            let mut txn = db.begin(level).unwrap();
            match how {
                "write" => txn.put(&family, &key(touched), b"mine").unwrap(),
                "read" => _ = txn.get(&family, &key(touched)).unwrap(),
                _ => {
                    let (from, to) = (key(touched), key(touched + 1));
                    let mut it = txn.cursor(&family, from.as_slice()..to.as_slice()).unwrap();
                    it.seek_to_first();
                    while it.valid() {
                        it.next();
                    }
                    it.status().unwrap();
                }
            }
            txn.put(&family, &key(900), b"elsewhere").unwrap();
            ingest(&db, how.as_bytes());
            let outcome = txn.commit();
            let expected = fails && (how == "write" || level == Isolation::Serializable);
            assert_eq!(outcome.is_err(), expected, "{level:?} {how} {touched}");
            if let Err(e) = outcome {
                assert_eq!(e.kind(), ErrorKind::Conflict);
            }
            if how != "write" {
                let ingested = if touched % 2 == 0 && touched < 200 { how } else { "" };
                let now = db.get(key(touched)).unwrap().unwrap();
                assert!(ingested.is_empty() || &now[..] == ingested.as_bytes());
            }
            db.flush().unwrap();
        }
    }
}

#[test]
fn locks_are_respected() {
    let fs = MemFs::new();
    let mut options = options_on(Arc::new(fs.clone()), false);
    options.set("lock_timeout_ms", "50").unwrap();
    fs.create_dir_all(Path::new("files")).unwrap();
    let db = Db::open("db", options).unwrap();
    let family = db.default_family();
    sorted_file(family, "files/a", 100..200, b"v");
    let locking = TransactionOptions::default().locking(true);
    let mut txn = db.begin_with(locking.clone()).unwrap();
    txn.put(family, &key(150), b"locked").unwrap();
    let no_wait = IngestOptions::new().no_wait(true);
    assert_eq!(family.ingest(&["files/a"], &no_wait).unwrap_err().kind(), ErrorKind::Conflict);
    let e = family.ingest(&["files/a"], &IngestOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LockTimeout, "{e}");
    assert!(contents(family, None).is_empty());
    db.set_option("lock_timeout_ms", "60000").unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| family.ingest(&["files/a"], &IngestOptions::default()));
        while db.lock_waits().is_empty() {
            std::thread::yield_now();
        }
        txn.commit().unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(db.get(key(150)).unwrap().as_deref(), Some(&b"v"[..]), "the ingest came after the transaction");
    let mut elsewhere = db.begin_with(locking).unwrap();
    elsewhere.put(family, &key(250), b"locked").unwrap();
    family.ingest(&["files/a"], &no_wait).unwrap();
    elsewhere.commit().unwrap();
}

#[test]
fn a_change_stream_says_that_something_is_missing() {
    let fs = MemFs::new();
    let db = open(&fs);
    db.put(key(1), b"1").unwrap();
    let seq = ingest(&db, b"v");
    db.put(key(2), b"2").unwrap();
    let mut stream = db.changes_since(0).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().last_sequence, 1);
    let e = stream.next().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TooOld, "{e}");
    let all = ChangeStreamOptions::new().show_unlogged(true);
    let mut stream = db.changes_with(1, all).unwrap();
    let record = stream.next().unwrap().unwrap();
    assert!(record.is_unlogged() && (record.first_sequence, record.last_sequence) == (seq, seq));
    assert_eq!(stream.next().unwrap().unwrap().first_sequence, seq + 1);
    // The place to go on from after the gap was copied.
    assert!(db.changes_since(seq).unwrap().next().unwrap().is_some());
}

/// A database whose first commit is an ingest, and which is then opened again and again.
#[test]
fn the_log_may_begin_behind_an_ingest() {
    let fs = MemFs::new();
    let mut expected = 0;
    for round in 0..4 {
        let db = open(&fs);
        assert_eq!(contents(db.default_family(), None).len(), expected);
        if round != 2 {
            ingest(&db, b"v");
            expected = 50;
        }
        if round > 1 {
            db.put(key(1), b"logged").unwrap();
            expected = 51;
        }
        if round == 3 {
            db.close().unwrap();
        }
    }
    let again = open(&fs.kill_clone());
    assert_eq!(contents(again.default_family(), None).len(), expected);
}

#[test]
fn copies_verification_and_repair_know_ingested_files() {
    let fs = MemFs::new();
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let db = open(&fs);
    for i in 0..300 {
        db.put(key(i), [1; 300]).unwrap();
    }
    ingest(&db, b"first");
    db.put(key(100), b"newer").unwrap();
    let backup = Backup::on(shared.clone(), "backups");
    backup.create(&db, BackupOptions::default()).unwrap();
    ingest(&db, b"second");
    db.put(key(110), b"newest").unwrap();
    let expected = contents(db.default_family(), None);
    assert_eq!(expected[&key(100)], b"second");
    let second = backup.create(&db, BackupOptions::default()).unwrap();
    db.checkpoint("copy").unwrap();
    backup.restore_to(second.id, &shared, "restored", BackupOptions::default()).unwrap();
    drop(db);
    let options = || options_on(shared.clone(), true);
    for dir in ["copy", "restored"] {
        let copy = Db::open(dir, options()).unwrap();
        assert_eq!(contents(copy.default_family(), None), expected, "{dir}");
        assert!(copy.verify().unwrap().problems.is_empty());
    }
    let report = repair("db", "repaired", &options()).unwrap();
    assert!(report.unreadable.is_empty() && report.notes.is_empty(), "{report:?}");
    assert_eq!(contents(Db::open("repaired", options()).unwrap().default_family(), None), expected);
    // Without a manifest everything can be read, and the log still knows whose the ingested files are.
    for name in fs.list(Path::new("db")).unwrap().iter().filter(|n| n.starts_with("MANIFEST") || *n == "CURRENT") {
        fs.remove(&Path::new("db").join(name)).unwrap();
    }
    let report = repair("db", "from-tables", &options()).unwrap();
    assert!(!report.unreadable.iter().any(|f| f.path.ends_with(".klog")), "{report:?}");
    assert!(report.families.iter().any(|f| f.named && f.kept == 50), "{report:?}");
    let db = Db::open("from-tables", options()).unwrap();
    assert!(db.latest_sequence() < 1 << 40, "numbers are left: {}", db.latest_sequence());
    db.put(b"after", b"v").unwrap();
    assert_eq!(db.get(b"after").unwrap().as_deref(), Some(&b"v"[..]));
}

/// A reader that sees the commit after an ingest sees the ingest too, in any kind of read over several keys.
#[test]
fn readers_see_ingests_and_commits_in_order() {
    let rounds = if full() { 3000 } else { 150 };
    let fs = MemFs::new();
    let db = Db::open("db", options_on(Arc::new(fs.clone()), false)).unwrap();
    fs.create_dir_all(Path::new("files")).unwrap();
    let family = db.default_family();
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let number = |v: &[u8]| std::str::from_utf8(v).unwrap().parse::<u64>().unwrap();
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for t in 0..3 {
            let (db, stop, looks) = (&db, &stop, &looks);
            s.spawn(move || {
                let keys = [key(1), key(2), key(3)];
                while !stop.load(Ordering::Relaxed) {
                    let read: Vec<u64> = match t {
                        0 => {
                            let read = db.multi_get(&keys);
                            read.into_iter().map(|v| v.unwrap().map_or(0, |v| number(&v))).collect()
                        }
                        1 => {
                            let all = contents(db.default_family(), None);
                            keys.iter().map(|k| all.get(k).map_or(0, |v| number(v))).collect()
                        }
                        _ => {
                            let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
                            let read = txn.multi_get(db.default_family(), &keys);
                            read.into_iter().map(|v| v.unwrap().map_or(0, |v| number(&v))).collect()
                        }
                    };
                    // Ingested n, then committed n: the commit is never ahead.
                    assert!(read[0] == read[2] && (read[1] == read[0] || read[1] + 1 == read[0]), "{t}: {read:?}");
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=rounds {
            sorted_file(family, "files/a", [1, 3], n.to_string().as_bytes());
            family.ingest(&["files/a"], &IngestOptions::new().move_files(true)).unwrap();
            let mut batch = WriteBatch::new();
            batch.put(family, &key(2), n.to_string().as_bytes()).unwrap();
            db.write(batch).unwrap();
        }
        drop(end);
    });
    println!("{rounds} ingests, {} looks", looks.into_inner());
}
