//! What a stream finds in the log of earlier opens, and where the log has holes.

use super::{History, drain, full, open, random_batch, since, small};
use kingtide::vfs::{Fault, FaultFs, MemFs, Op as FsOp, Rule, Survival};
use kingtide::{
    ChangeKind, ChangeStreamOptions, Db, Durability, ErrorKind, FamilyOptions, Options, WriteBatch, WriteOptions,
};
use kingtide_base::rng::{Rng, entropy};
use std::sync::Arc;
use std::time::Duration;

const SHOW_ALL: ChangeStreamOptions = ChangeStreamOptions::new().show_unlogged(true);
const DURABLE: ChangeStreamOptions = ChangeStreamOptions::new().durable_only(true);

fn write_some(db: &Db, rng: &mut Rng, n: u64, history: &mut History) {
    let other = db.family("other").unwrap();
    let mut batch = WriteBatch::new();
    for _ in 0..n {
        let ops = random_batch(rng, &mut batch, [db.default_family(), &other], 8);
        history.insert(db.write_with(&mut batch, &WriteOptions::default()).unwrap(), ops);
    }
}

/// Closes, kills and reopens between batches; from any sequence number on, the stream shows what was committed.
#[test]
fn streams_go_on_after_closes_and_kills() {
    let seed = entropy();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut fs = Arc::new(MemFs::new());
    let mut history = History::new();
    let mut db = open(&fs, 1 << 40);
    db.create_family("other", FamilyOptions::default()).unwrap();
    for round in 0..if full() { 200 } else { 25 } {
        let n = rng.below(120);
        write_some(&db, &mut rng, n, &mut history);
        if rng.one_in(2) {
            fs = Arc::new(fs.kill_clone());
        } else {
            db.close().unwrap();
            assert_eq!(db.changes_since(0).unwrap_err().kind(), ErrorKind::Closed);
        }
        drop(db);
        db = open(&fs, 1 << 40);
        assert!(since(&db, 0) == history, "round {round}");
        for _ in 0..10 {
            // Any number, in the midst of a commit too: that one is shown whole.
            let from = rng.below(db.latest_sequence() + 1);
            assert!(since(&db, from) == history.range(from + 1..).map(|(k, v)| (*k, v.clone())).collect::<History>());
        }
    }
    assert_eq!(db.oldest_change_sequence(), 0);
    assert_eq!(db.changes_since(db.latest_sequence() + 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// What a durable stream has shown is there after a power cut, and the stream goes on from it.
#[test]
fn a_power_cut_undoes_nothing_that_a_durable_stream_has_shown() {
    let seed = entropy();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    for round in 0..if full() { 400 } else { 40 } {
        let fs = Arc::new(MemFs::new());
        let db = open(&fs, 1 << 40);
        db.create_family("other", FamilyOptions::default()).unwrap();
        let mut history = History::new();
        let mut shown = History::new();
        let mut stream = db.changes_with(0, DURABLE).unwrap();
        for _ in 0..1 + rng.below(6) {
            let n = rng.below(60);
            write_some(&db, &mut rng, n, &mut history);
            if rng.one_in(2) {
                db.sync().unwrap();
                shown.append(&mut drain(&mut stream));
                assert!(shown == history, "round {round}: synced, so all of it is shown");
            }
            shown.append(&mut drain(&mut stream));
            let any = db.changes_since(0).unwrap().next().unwrap();
            assert_eq!(any.is_some(), !history.is_empty());
        }
        let model = Survival::ALL[rng.below(4) as usize];
        let fs = Arc::new(fs.crash_clone(model, &mut rng));
        drop(stream);
        let db = match Db::open("/db", small(&fs, 1 << 40)) {
            Ok(db) => db,
            Err(e) => panic!("round {round}, {model:?}: {e}"),
        };
        let last = shown.last_key_value().map_or(0, |(last, _)| *last);
        let mut stream = db.changes_with(0, SHOW_ALL).unwrap();
        let mut found = History::new();
        while let Some(record) = stream.next().unwrap() {
            if record.is_unlogged() {
                assert!(record.first_sequence > last, "round {round}, {model:?}: lost {}", record.first_sequence);
            } else {
                assert_eq!(history.get(&record.last_sequence), Some(&super::ops_of(&record)), "round {round}");
                found.insert(record.last_sequence, super::ops_of(&record));
            }
        }
        assert!(shown.iter().all(|(last, ops)| found.get(last) == Some(ops)), "round {round}, {model:?}");
        let mut stream = db.changes_with(last, SHOW_ALL).unwrap();
        assert!(stream.next().unwrap().is_none_or(|r| r.first_sequence == last + 1));
    }
}

#[test]
fn commits_that_were_not_logged_are_an_error_or_shown_as_such() {
    let fs = Arc::new(MemFs::new());
    let db = open(&fs, 1 << 40);
    let put = |keys: &[&str], options: &WriteOptions| {
        let mut batch = WriteBatch::new();
        keys.iter().for_each(|k| batch.put(db.default_family(), k.as_bytes(), b"v").unwrap());
        db.write_with(&mut batch, options).unwrap()
    };
    let (logged, unlogged) = (WriteOptions::new(), WriteOptions::new().durability(Durability::None));
    assert_eq!(put(&["a"], &logged), 1);
    assert_eq!(put(&["b", "c"], &unlogged), 3);
    let mut stream = db.changes_since(0).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().last_sequence, 1);
    for _ in 0..2 {
        let e = stream.next().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TooOld);
        assert!(e.to_string().contains("2 to 3"), "{e}");
    }
    assert_eq!(put(&["d"], &unlogged), 4);
    assert_eq!(put(&["e"], &logged), 5);
    assert!(stream.next().unwrap_err().to_string().contains("2 to 4"));
    let mut all = db.changes_with(0, SHOW_ALL).unwrap();
    let mut next = || all.next().unwrap().map(|r| (r.first_sequence, r.last_sequence, r.is_unlogged(), r.len()));
    assert_eq!([next(), next(), next()], [Some((1, 1, false, 1)), Some((2, 4, true, 0)), Some((5, 5, false, 1))]);
    // A commit's own number is a place to go on from, whether that commit was logged or not.
    assert_eq!(since(&db, 4).into_keys().collect::<Vec<_>>(), [5]);
    assert_eq!(next(), None);
    assert_eq!(put(&["f"], &unlogged), 6);
    assert_eq!([next(), next()], [Some((6, 6, true, 0)), None]);
    assert_eq!(db.changes_with(0, DURABLE).unwrap().next().unwrap().map(|r| r.last_sequence), None);
    db.sync().unwrap();
    let mut durable = db.changes_with(0, DURABLE).unwrap();
    assert_eq!(durable.next().unwrap().map(|r| r.last_sequence), Some(1));
    assert!(durable.next().unwrap_err().to_string().contains("2 to 4"));
    assert!(db.changes_with(5, DURABLE).unwrap().next().unwrap().is_none(), "6 is not durable");
    // The flush at close makes what was not logged durable; the log does not have it for all that.
    db.close().unwrap();
    let db = open(&fs, 1 << 40);
    db.put("g", "v").unwrap();
    let mut all = db.changes_with(4, SHOW_ALL).unwrap();
    let mut next = || all.next().unwrap().map(|r| (r.first_sequence, r.last_sequence, r.is_unlogged()));
    assert_eq!([next(), next(), next(), next()], [Some((5, 5, false)), Some((6, 6, true)), Some((7, 7, false)), None]);
}

/// Without retention a flush gives the log back; with it, as much stays as was asked for, over opens too.
#[test]
fn retention_keeps_so_much_and_no_more() {
    let fs = Arc::new(MemFs::new());
    let kept = 400_000;
    let mut db = open(&fs, kept);
    db.create_family("other", FamilyOptions::default()).unwrap();
    let mut rng = Rng::new(7);
    let mut history = History::new();
    let wal_bytes = |fs: &MemFs| -> u64 {
        use kingtide::vfs::{Fs, OpenMode};
        let dir = std::path::Path::new("/db");
        let names = fs.list(dir).unwrap();
        let segments = names.iter().filter(|n| n.ends_with(".wal"));
        segments.map(|n| fs.open(&dir.join(n), OpenMode::Read).unwrap().len().unwrap()).sum()
    };
    for _ in 0..3 {
        write_some(&db, &mut rng, 1500, &mut history);
        db.flush().unwrap(); // no flush is left that would give more log back
        let oldest = db.oldest_change_sequence();
        assert!(oldest > 0, "more was written than is kept");
        assert!(since(&db, oldest) == history.range(oldest + 1..).map(|(k, v)| (*k, v.clone())).collect::<History>());
        let e = db.changes_since(oldest - 1).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TooOld);
        assert!(e.to_string().contains(&oldest.to_string()), "{e}");
        db.close().unwrap();
        let oldest = db.oldest_change_sequence();
        let bytes = wal_bytes(&fs);
        assert!((kept - 65_536..kept + 65_536).contains(&bytes), "{bytes} bytes of log after a clean close");
        db = open(&fs, kept);
        assert_eq!(db.oldest_change_sequence(), oldest, "an open keeps what a close kept");
        assert!(since(&db, oldest) == history.range(oldest + 1..).map(|(k, v)| (*k, v.clone())).collect::<History>());
    }
    // What is kept is not counted as log that ought to be flushed: memtables are not sealed for it.
    let before = db.stats().get("memtable_rotations").unwrap();
    write_some(&db, &mut rng, 20, &mut history);
    assert_eq!(db.stats().get("memtable_rotations").unwrap(), before);
    // The option is live.
    db.flush().unwrap();
    db.set_option("change_retention", "0").unwrap();
    db.close().unwrap();
    assert!(wal_bytes(&fs) <= 65_536);
    let db = open(&fs, 0);
    assert_eq!(db.changes_since(1).unwrap_err().kind(), ErrorKind::TooOld);
    assert!(db.changes_since(db.latest_sequence()).unwrap().next().unwrap().is_none());
}

/// A tool that opens the database for a moment must keep to what the application asked for, so it is stored: by the first
/// commit of an open, in each copy of the manifest, and when it changes.
#[test]
fn retention_is_stored() {
    let fs = Arc::new(MemFs::new());
    let stored = |asked: u64| {
        let mut options = Options::new().fs(fs.clone());
        options.db.change_retention = asked;
        options.load("/db").unwrap().db.change_retention
    };
    let db = open(&fs, 300_000);
    assert_eq!(stored(7), 7, "nothing was written that could be kept");
    db.put("k", "v").unwrap();
    assert_eq!(stored(7), 300_000);
    db.set_option("change_retention", "200000").unwrap();
    assert_eq!(stored(7), 200_000);
    for n in 0..700 {
        db.default_family().set_option("l0_trigger", if n % 2 == 0 { "6" } else { "5" }).unwrap();
    }
    assert_eq!(stored(7), 200_000, "in a manifest that was rewritten");
    db.close().unwrap();
    let db = open(&fs, 0);
    assert_eq!(stored(7), 200_000, "an open that wrote nothing has given up nothing");
    db.put("k", "w").unwrap();
    assert_eq!(stored(7), 0);
}

#[test]
fn an_empty_database_has_an_empty_stream_that_wakes_up() {
    let db = open(&Arc::new(MemFs::new()), 0);
    assert_eq!(db.oldest_change_sequence(), 0);
    let mut stream = db.changes_since(0).unwrap();
    assert!(stream.next().unwrap().is_none());
    assert!(stream.wait_next(Duration::from_millis(3)).unwrap().is_none());
    std::thread::scope(|s| {
        s.spawn(|| db.put("k", "v").unwrap());
        let record = stream.wait_next(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!((record.first_sequence, record.last_sequence, stream.position()), (1, 1, 1));
    });
    db.close().unwrap();
    assert_eq!(stream.next().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn families_are_named_while_they_exist() {
    let db = open(&Arc::new(MemFs::new()), 1 << 40);
    let family = db.create_family("first name", FamilyOptions::default()).unwrap();
    family.put("k", "v").unwrap();
    let names = |stream: &mut kingtide::ChangeStream| {
        let record = stream.next().unwrap().unwrap();
        record.operations().map(|c| (c.family, c.family_name.map(str::to_owned))).collect::<Vec<_>>()
    };
    let mut stream = db.changes_since(0).unwrap();
    assert_eq!(names(&mut stream), [(1, Some("first name".to_owned()))]);
    family.put("k", "v").unwrap();
    db.rename_family("first name", "second name").unwrap();
    assert_eq!(names(&mut stream), [(1, Some("second name".to_owned()))]);
    family.put("k", "v").unwrap();
    db.drop_family("second name").unwrap();
    assert_eq!(names(&mut stream), [(1, None)]);
    assert_eq!(names(&mut db.changes_since(0).unwrap()), [(1, None)]);
}

#[test]
fn damage_is_reported_with_its_place_and_nothing_is_skipped() {
    use kingtide::vfs::{Fs, OpenMode};
    let fs = Arc::new(MemFs::new());
    let db = open(&fs, 1 << 40);
    (0..10).for_each(|i| {
        db.put(format!("key {i}"), "value").unwrap();
    });
    // A spare that came too late for the first write may have the lower number, and is empty.
    let segments = fs.list("/db".as_ref()).unwrap().into_iter().filter(|n| n.ends_with(".wal"));
    let found = segments.map(|n| std::path::Path::new("/db").join(n)).find_map(|path| {
        let file = fs.open(&path, OpenMode::Write).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        Some((path, file, bytes.windows(5).position(|w| w == b"key 4")? as u64))
    });
    let (path, file, at) = found.expect("a segment with the key");
    file.write_at(b"K", at).unwrap();
    let mut stream = db.changes_since(0).unwrap();
    for i in 1..=4 {
        assert_eq!(stream.next().unwrap().unwrap().last_sequence, i);
    }
    for _ in 0..2 {
        let e = stream.next().unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(path.as_path())));
        assert!(e.offset().unwrap() < at && e.offset().unwrap() + 64 > at);
    }
}

/// A change of the option that cannot be stored is refused, and the option is what it was: a close still keeps the log.
#[test]
fn retention_that_cannot_be_stored_does_not_change() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let mut options = Options::new().fs(Arc::new(faults.clone()));
    options.db.change_retention = 1 << 30;
    let db = Db::open("/db", options.clone()).unwrap();
    let first = db.put("k", "v").unwrap();
    (0..500u32).for_each(|i| _ = db.put(i.to_be_bytes(), [7; 1000]).unwrap()); // more than a small segment
    faults.add(Rule::new(FsOp::Sync, Fault::Eio).path("MANIFEST"));
    assert_eq!(db.set_option("change_retention", "0").unwrap_err().kind(), ErrorKind::Io);
    db.close().unwrap();
    assert!(db.oldest_change_sequence() < first);
    let db = Db::open("/db", options).unwrap();
    assert!(db.changes_since(first - 1).unwrap().next().unwrap().is_some());
    db.set_option("change_retention", "0").unwrap();
    db.close().unwrap();
    assert!(db.oldest_change_sequence() >= first);
}

/// A read that fails once costs a stream one error: it goes on where it was, and takes nothing that it could not read for damage.
#[test]
fn a_stream_goes_on_after_a_read_that_failed() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let db = Db::open("/db", Options::new().fs(Arc::new(faults.clone()))).unwrap();
    let mut history = History::new();
    for i in 0..3u8 {
        let seq = db.put([b'k', i], [i; 9]).unwrap();
        let op = (0, ChangeKind::Put, vec![b'k', i], vec![i; 9], false);
        history.insert(seq, vec![op]);
    }
    let mut stream = db.changes_since(0).unwrap();
    faults.add(Rule::new(FsOp::Read, Fault::Eio).path(".wal"));
    assert_eq!(stream.next().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(faults.stats().injected(), 1);
    assert_eq!(stream.position(), 0);
    assert!(drain(&mut stream) == history);
}
