//! Values that are written once: every verb sees them as it sees others, from the commit on.

use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, Survival, SystemFs};
use kingtide::{
    ColumnFamily, Compression, Db, Durability, FamilyOptions, Isolation, LockMode, Options, TransactionOptions,
    WriteBatch, WriteOptions,
};
use kingtide_base::rng::Rng;
use kingtide_testkit::Scratch;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Shorter than the threshold, packed, of several chunks, and such that nothing shrinks.
const LENGTHS: [usize; 6] = [10, 63, 64, 3000, 20_000, 100_000];

fn options(fs: &MemFs, compression: Compression) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.family = FamilyOptions::new().compression(compression).value_chunk_size(4096).direct_value_threshold(64);
    o
}

/// Half of it compresses.
fn value(len: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![version as u8; len];
    let mut rng = Rng::new(version);
    for piece in bytes.chunks_mut(700).step_by(2) {
        rng.fill(piece);
    }
    bytes
}

fn put_all(family: &ColumnFamily, version: u64) {
    for len in LENGTHS {
        family.put(format!("{len:06}"), value(len, version)).unwrap();
    }
}

/// Reads the family in every way.
fn check(family: &ColumnFamily, version: u64, what: &str) {
    let keys: Vec<String> = LENGTHS.iter().map(|len| format!("{len:06}")).collect();
    for (key, found) in keys.iter().zip(family.multi_get(&keys)) {
        let want = value(key.parse().unwrap(), version);
        assert!(found.unwrap().unwrap() == want, "{what}: multi_get of {key}");
        assert!(family.get(key).unwrap().unwrap() == want, "{what}: get of {key}");
        let mut reader = family.get_reader(key).unwrap().unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == want, "{what}: a reader of {key}");
        let mut part = vec![0; 50];
        let n = reader.read_at(want.len() as u64 / 2, &mut part).unwrap();
        assert!(want[want.len() / 2..].starts_with(&part[..n]), "{what}: a part of {key}");
    }
    let lengths = |entries: Vec<kingtide::Entry>| -> Vec<usize> {
        entries.iter().for_each(|e| assert!(e.value[..] == value(e.value.len(), version)[..], "{what}: a scan"));
        entries.iter().map(|e| e.value.len()).collect()
    };
    assert_eq!(lengths(family.iter().map(Result::unwrap).collect()), LENGTHS, "{what}: forward");
    let mut backward = lengths(family.iter().rev().map(Result::unwrap).collect());
    backward.reverse();
    assert_eq!(backward, LENGTHS, "{what}: backward");
}

/// A database that fills one memtable after the other has its files made by a job, and leaves no empty one behind.
#[test]
fn files_are_made_ahead_and_go_with_a_close() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    let family = db.default_family().clone();
    let empty = || -> Vec<String> {
        let names = fs.list(Path::new("db")).unwrap().into_iter().filter(|name| name.ends_with(".vlog"));
        let open = |name: &String| fs.open(&Path::new("db").join(name), OpenMode::Read).unwrap();
        names.filter(|name| open(name).len().unwrap() == 0).collect()
    };
    let fill = |version| {
        family.put(b"key", value(3000, version)).unwrap();
        db.flush().unwrap();
        while db.run_one_job().unwrap() {}
    };
    fill(1);
    assert_eq!(empty(), [""; 0], "a large value may come once");
    fill(2);
    let spare = empty();
    assert_eq!(spare.len(), 1);
    family.put(b"key", value(3000, 3)).unwrap();
    assert!(!empty().contains(&spare[0]), "the spare has the next memtable's first value");
    while db.run_one_job().unwrap() {}
    assert_eq!(empty().len(), 1);
    assert!(db.verify().unwrap().is_clean());
    db.close().unwrap();
    assert_eq!(empty(), [""; 0]);
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    assert!(db.get(b"key").unwrap().unwrap() == value(3000, 3));
}

#[test]
fn every_verb_sees_values_that_were_written_once() {
    for compression in [Compression::Lz4, Compression::None, Compression::Zstd] {
        let fs = MemFs::new();
        let db = Db::open("db", options(&fs, compression)).unwrap();
        let family = db.default_family().clone();
        put_all(&family, 1);
        check(&family, 1, "in the memtable");
        assert_eq!(db.stats().get("direct_values"), Some(4));
        let old = db.snapshot();
        let mut reader = family.get_reader("100000").unwrap().unwrap();
        put_all(&family, 2);
        check(&family, 2, "overwritten");
        for len in LENGTHS {
            assert!(old.of(&family).get(format!("{len:06}")).unwrap().unwrap() == value(len, 1), "at a snapshot");
        }
        let mut txn = db.begin(kingtide::Isolation::Snapshot).unwrap();
        txn.put(&family, b"020000", &value(20_000, 9)).unwrap();
        assert!(txn.get(&family, b"020000").unwrap().unwrap() == value(20_000, 9));
        assert!(txn.get(&family, b"100000").unwrap().unwrap() == value(100_000, 2));
        txn.put(&family, b"020000", &value(20_000, 2)).unwrap();
        txn.commit().unwrap();
        check(&family, 2, "after a transaction");

        db.flush().unwrap();
        check(&family, 2, "in tables");
        assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
        put_all(&family, 3);
        while db.run_one_job().unwrap() {}
        check(&family, 3, "in the memtable over tables");
        drop(old);
        db.compact().unwrap();
        check(&family, 3, "compacted");
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == value(100_000, 1), "a reader keeps its file");
        drop(reader);

        put_all(&family, 4);
        let copies = db.checkpoint("copy").map(|_| Db::open("copy", options(&fs, compression)).unwrap()).unwrap();
        check(copies.default_family(), 4, "a checkpoint");
        assert!(copies.verify().unwrap().is_clean());
        let shared: Arc<dyn Fs> = Arc::new(fs.clone());
        put_all(&family, 5);
        let backup = Backup::on(shared.clone(), "backups");
        let id = backup.create(&db, BackupOptions::default()).unwrap().id;
        backup.restore_to(id, &shared, "restored", BackupOptions::default()).unwrap();
        let restored = Db::open("restored", options(&fs, compression)).unwrap();
        check(restored.default_family(), 5, "a backup");
        put_all(&family, 6);
        let clone = db.clone_family("default", "clone").unwrap();
        check(&clone, 6, "a clone");
        put_all(&clone, 7);
        check(&clone, 7, "an overwritten clone");
        db.drop_family("clone").unwrap();
        check(&family, 6, "beside a dropped family");

        let reader = Db::open_read_only("db", options(&fs, compression)).unwrap();
        check(reader.default_family(), 6, "a reader");
        put_all(&family, 7);
        db.flush().unwrap();
        put_all(&family, 8);
        check(reader.default_family(), 6, "a reader that did not catch up");
        reader.try_catch_up().unwrap();
        check(reader.default_family(), 8, "a reader that caught up");
        assert!(db.verify().unwrap().is_clean(), "{:?}", db.verify().unwrap());
        drop(reader);
        let killed = fs.kill_clone();
        let again = Db::open("db", options(&killed, compression)).unwrap();
        check(again.default_family(), 8, "recovered");
        put_all(again.default_family(), 9);
        again.flush().unwrap();
        check(again.default_family(), 9, "recovered and flushed");
        again.close().unwrap();
        assert!(kingtide::verify("db", &options(&killed, compression)).unwrap().is_clean());
        db.close().unwrap();
        let report = kingtide::verify("db", &options(&fs, compression)).unwrap();
        assert!(report.is_clean(), "a close leaves no orphan: {report:?}");
    }
}

/// Values of a batch are written together, and their pointers put in their places afterwards: each under its own key, whatever lies between
/// them, and though thresholds change meanwhile.
#[test]
fn each_value_of_a_batch_is_found_under_its_key() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    let mut larger = db.default_family().options();
    larger.direct_value_threshold = 5000;
    let families = [db.default_family().clone(), db.create_family("larger", larger).unwrap()];
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let changes = std::thread::spawn({
        let (family, done) = (families[0].clone(), done.clone());
        move || {
            for threshold in [64, 3000, 0, 20_000].into_iter().cycle() {
                family.set_option("direct_value_threshold", &threshold.to_string()).unwrap();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    });
    let mut rng = Rng::new(12);
    for round in 0..200 {
        let mut batch = WriteBatch::new();
        let want: Vec<(usize, String, Vec<u8>)> = (0..30)
            .map(|i| {
                let len = LENGTHS[rng.below(5) as usize];
                let mut bytes = value(len, round * 100 + i);
                if rng.one_in(3) {
                    rng.fill(&mut bytes);
                }
                (rng.below(2) as usize, format!("{i}"), bytes)
            })
            .collect();
        for (family, key, bytes) in &want {
            match rng.one_in(4) {
                true => batch.put_ttl(&families[*family], key.as_bytes(), bytes, Duration::from_secs(1000)).unwrap(),
                false => batch.put(&families[*family], key.as_bytes(), bytes).unwrap(),
            }
        }
        batch.delete(&families[0], b"none").unwrap();
        db.write(batch).unwrap();
        for (family, key, bytes) in &want {
            assert!(families[*family].get(key).unwrap().unwrap() == *bytes, "round {round}: {key}");
            let mut into = vec![1; 10];
            assert!(families[*family].get_into(key, &mut into).unwrap() && into == *bytes, "round {round}: {key}");
        }
    }
    done.store(true, Ordering::Relaxed);
    changes.join().unwrap();
    assert!(db.stats().get("direct_values").unwrap() > 1000);
    db.flush().unwrap();
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_time_to_live_stands_in_front_of_the_pointer() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    db.put_ttl("soon", value(5000, 1), Duration::from_millis(0)).unwrap();
    db.put_ttl("late", value(5000, 2), Duration::from_secs(3600)).unwrap();
    for round in 0..3 {
        assert!(db.get("soon").unwrap().is_none(), "round {round}");
        assert!(db.get("late").unwrap().unwrap() == value(5000, 2), "round {round}");
        db.flush().unwrap();
        if round == 1 {
            db.compact().unwrap();
        }
    }
}

#[test]
fn change_streams_and_retained_logs_have_the_values() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    let logs = |db: &Db| db.stats().get("direct_values").unwrap();
    db.put("a", value(5000, 1)).unwrap();
    let written = logs(&db);
    assert_eq!(written, 1);
    let seen: Vec<Vec<u8>> = {
        let mut stream = db.changes_since(0).unwrap();
        let mut seen = Vec::new();
        while let Some(record) = stream.next().unwrap() {
            seen.extend(record.operations().map(|c| c.value.to_vec()));
        }
        seen
    };
    assert_eq!(seen, [value(5000, 1)]);
    db.set_option("change_retention", "1M").unwrap();
    db.put("b", value(5000, 2)).unwrap();
    assert_eq!(logs(&db), written, "the log holds it");
    db.set_option("change_retention", "0").unwrap();
    let mut txn = db.begin(kingtide::Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"c", &value(5000, 3)).unwrap();
    txn.prepare(b"name").unwrap();
    assert_eq!(logs(&db), written, "so it does for a transaction in doubt");
    txn.commit().unwrap();
    db.default_family().set_option("direct_value_threshold", "0").unwrap();
    db.put("d", value(5000, 4)).unwrap();
    assert_eq!(logs(&db), written);
    for (key, version) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        assert!(db.get(key).unwrap().unwrap() == value(5000, version), "{key}");
    }
}

/// After a crash the values move at the first flush, and their file goes with its last reader. Until a job has removed it, it
/// stands there without a footer, which is no damage.
#[test]
fn a_stream_reads_values_of_a_file_that_is_about_to_be_removed() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    db.put("a", value(5000, 1)).unwrap();
    let killed = fs.kill_clone();
    drop(db);
    let db = Db::open("db", options(&killed, Compression::None)).unwrap();
    let mut stream = db.changes_since(0).unwrap();
    let reader = db.cursor(..).unwrap();
    db.flush().unwrap();
    drop(reader);
    let values = |stream: &mut kingtide::ChangeStream| -> Vec<_> {
        let record = stream.next().unwrap().unwrap();
        record.operations().map(|c| c.value.to_vec()).collect()
    };
    assert_eq!(values(&mut stream), [value(5000, 1)]);
    db.wait_for_background().unwrap();
    assert_eq!(values(&mut db.changes_since(0).unwrap()), [value(5000, 1)], "where it was moved to");
}

#[test]
fn a_durable_commit_syncs_a_second_file_only_for_enough_bytes() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    let other = db.create_family("other", options(&fs, Compression::None).family.direct_value_threshold(640));
    let other = other.unwrap();
    let mut expected = 0;
    for (durability, lengths, other_lengths, direct) in [
        (Durability::Power, vec![64, 100], vec![], 0),
        (Durability::Power, vec![511], vec![], 0),
        (Durability::Power, vec![512], vec![], 1),
        (Durability::Power, vec![10, 63, 256, 256], vec![], 2),
        (Durability::Power, vec![64; 6], vec![639, 1000], 0),
        (Durability::Power, vec![64; 6], vec![640, 640], 8),
        (Durability::Process, vec![10, 64], vec![640], 2),
    ] {
        let what = format!("{durability:?} {lengths:?} {other_lengths:?}");
        let mut batch = WriteBatch::new();
        for (family, lengths) in [(db.default_family(), &lengths), (&other, &other_lengths)] {
            for (n, length) in lengths.iter().enumerate() {
                batch.put(family, &[n as u8], &value(*length, n as u64)).unwrap();
            }
        }
        db.write_with(&mut batch, &WriteOptions::new().durability(durability)).unwrap();
        expected += direct;
        assert_eq!(db.stats().get("direct_values"), Some(expected), "{what}");
        for (family, lengths) in [(db.default_family(), &lengths), (&other, &other_lengths)] {
            for (n, length) in lengths.iter().enumerate() {
                assert!(family.get([n as u8]).unwrap().unwrap() == value(*length, n as u64)[..], "{what}");
            }
        }
    }
}

/// Each family has files of its own. Where a quarter of the open-file budget is used up, values go through the log.
#[test]
fn value_logs_that_are_written_do_not_use_up_the_open_file_budget() {
    let fs = MemFs::new();
    let mut options = options(&fs, Compression::None);
    options.db.max_open_files = 16;
    let db = Db::open("db", options.clone()).unwrap();
    let families: Vec<_> =
        (0..20).map(|n| db.create_family(&format!("f{n}"), options.family.clone()).unwrap()).collect();
    let check = |when: &str| {
        for (n, family) in (0u64..).zip(&families) {
            assert!(family.get("k").unwrap().unwrap() == value(3000, n)[..], "{when}: family {n}");
        }
    };
    for flushes in 1..=2 {
        for (n, family) in (0u64..).zip(&families) {
            family.put("k", value(3000, n)).unwrap();
        }
        assert_eq!(db.stats().get("direct_values"), Some(4 * flushes), "16 / 4 files");
        check("in memory");
        db.flush().unwrap(); // their files are sealed, and there is room for others
        check("flushed");
    }
}

/// Where flushes lag behind, writers wait before the disk holds more than a few memtables' worth of values in no table.
#[test]
fn writers_wait_when_flushes_lag_behind_values_that_are_written_once() {
    let fs = MemFs::new();
    let mut options = options(&fs, Compression::None);
    options.tuning.direct_memtable_bytes = Some(10_000);
    let db = Db::open("db", options.clone()).unwrap();
    let other = db.create_family("other", options.family.clone()).unwrap();
    let immutable = || db.stats().get("immutable_memtables").unwrap();
    let no_wait = || {
        let mut batch = WriteBatch::new();
        batch.put(&other, b"k", &value(9_000, 1)).unwrap();
        db.write_with(&mut batch, &WriteOptions::new().no_wait(true))
    };
    let mut refused = None;
    for n in 0..20u64 {
        let family = if n % 2 == 0 { db.default_family() } else { &other };
        family.put(n.to_be_bytes(), value(15_000, n)).unwrap();
        assert!(immutable() <= 3, "after put {n}: {}", immutable()); // of 15,000 bytes, where 40,000 may wait
        if immutable() == 3 && refused.is_none() {
            refused = Some(no_wait().unwrap_err());
        }
    }
    assert_eq!(refused.expect("three waited once").kind(), kingtide::ErrorKind::Busy);
    assert!(db.stats().get("stalls").unwrap() > 0);
    db.flush().unwrap();
    no_wait().unwrap();
    // Dropping a family lets those go that waited for its flush.
    for n in 0..3u64 {
        other.put(n.to_be_bytes(), value(15_000, n)).unwrap();
    }
    assert_eq!(no_wait().unwrap_err().kind(), kingtide::ErrorKind::Busy);
    db.drop_family("other").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(db.default_family(), b"k", b"v").unwrap();
    db.write_with(&mut batch, &WriteOptions::new().no_wait(true)).unwrap();
    for n in (0..20u64).step_by(2) {
        assert!(db.get(n.to_be_bytes()).unwrap().unwrap() == value(15_000, n)[..], "{n}");
    }
}

#[test]
fn repair_finds_the_values_of_commits_that_are_in_no_table() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    put_all(db.default_family(), 1);
    db.flush().unwrap();
    put_all(db.default_family(), 2);
    let killed = fs.kill_clone();
    let report = kingtide::repair("db", "repaired", &options(&killed, Compression::Lz4)).unwrap();
    let repaired = Db::open("repaired", options(&killed, Compression::Lz4)).unwrap();
    check(repaired.default_family(), 2, "repaired");
    assert!(killed.exists(Path::new("repaired")).unwrap() && report.is_complete(), "{report:?}");
}

/// A log without pointers is one that older builds read: its segments say so, until the first pointer begins one that does not.
#[test]
fn the_log_has_the_newer_format_only_where_it_has_pointers() {
    let fs = MemFs::new();
    let mut options = options(&fs, Compression::None);
    options.family.direct_value_threshold = 0;
    options.family.value_threshold = 1000;
    let versions = || -> Vec<u8> {
        let dir = Path::new("db");
        let mut names = fs.list(dir).unwrap();
        names.retain(|name| name.ends_with(".wal"));
        names.sort();
        let version = |name: &String| {
            let mut head = [0; 8];
            fs.open(&dir.join(name), kingtide::vfs::OpenMode::Read).unwrap().read_at(&mut head, 0).unwrap();
            (head[..4] == *b"KWAL").then_some(head[4]) // a spare segment has none
        };
        names.iter().filter_map(version).collect()
    };
    let db = Db::open("db", options.clone()).unwrap();
    for n in 0..100u32 {
        db.put(n.to_be_bytes(), value(3000, 1)).unwrap();
    }
    let before = versions();
    assert!(before.len() > 1 && before.iter().all(|v| *v == 1), "{before:?}");
    db.default_family().set_option("direct_value_threshold", "2000").unwrap();
    db.put("small", "value").unwrap();
    assert_eq!(versions(), before);
    db.put("large", value(3000, 2)).unwrap();
    db.put("small", "again").unwrap();
    assert_eq!(versions(), [&before[..], &[2]].concat(), "one segment more, which small values go to as well");
    drop(db);
    let db = Db::open("db", options).unwrap();
    assert!(db.get("large").unwrap().unwrap() == value(3000, 2)[..]);
    assert_eq!(db.get("small").unwrap().as_deref(), Some(&b"again"[..]));
}

/// A large value that is put by itself is written from the caller's memory where that is allowed, and all readers see the same.
#[test]
fn a_value_that_is_put_by_itself_is_not_copied() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    let (family, large) = (db.default_family().clone(), 300_000);
    let uncopied = Arc::new(AtomicU64::new(0)); // on this thread: other tests put large values, too
    let count = uncopied.clone();
    kingtide_base::rare::on_this_thread(Some(Box::new(move |taken| {
        _ = count.fetch_add(u64::from(taken == "direct-value-uncopied"), Ordering::Relaxed);
    })));
    db.put("a", value(large, 1)).unwrap();
    db.put_ttl("b", value(large, 2), Duration::from_secs(1000)).unwrap();
    kingtide_base::rare::on_this_thread(None);
    assert_eq!(uncopied.load(Ordering::Relaxed), 2, "both were written from where they were");
    assert_eq!(db.stats().get("direct_values"), Some(2));
    assert_eq!(family.put("", value(large, 3)).unwrap_err().kind(), kingtide::ErrorKind::InvalidArgument);
    assert_eq!(db.stats().get("direct_values"), Some(2), "a refused one was not written");
    assert!(db.stats().get("bytes_committed").unwrap() >= 2 * large as u64);
    let mut txn = db.begin_with(kingtide::TransactionOptions::default().locking(true)).unwrap();
    txn.put(&family, b"c", b"locked").unwrap();
    let late = std::thread::spawn({
        let family = family.clone();
        move || family.put("c", value(300_000, 4))
    });
    txn.commit().unwrap();
    late.join().unwrap().unwrap();
    for (key, version) in [("a", 1), ("b", 2), ("c", 4)] {
        assert!(db.get(key).unwrap().unwrap() == value(large, version), "{key}");
    }
    db.flush().unwrap();
    db.compact().unwrap();
    assert!(db.get("a").unwrap().unwrap() == value(large, 1));
    assert!(db.verify().unwrap().is_clean());
    let dropped = db.create_family("dropped", family.options()).unwrap();
    db.drop_family("dropped").unwrap();
    assert!(dropped.put("a", value(large, 5)).is_err());
    db.close().unwrap();
    let again = Db::open("db", options(&fs, Compression::Lz4)).unwrap();
    assert!(again.get("c").unwrap().unwrap() == value(large, 4));
    again.set_option("change_retention", "1M").unwrap();
    again.put("d", value(large, 6)).unwrap();
    assert_eq!(again.stats().get("direct_values"), Some(0), "the log that is kept has the value");
    assert!(again.get("d").unwrap().unwrap() == value(large, 6));
}

/// The option says of all commits after it that the log itself holds them. A commit that wrote its values to a value log before it
/// was set, and gets its turn after that, is written again.
#[test]
fn values_whose_commit_comes_after_change_retention_are_in_the_log() {
    for (batched, at) in [(false, "direct-value-uncopied"), (true, "direct-log-rotated")] {
        let fs = MemFs::new();
        let mut o = options(&fs, Compression::None);
        (o.tuning.uncopied_from, o.tuning.direct_log_size) = (1 << 10, 1);
        let db = Db::open("db", o).unwrap();
        let before = db.put("a", "1").unwrap();
        let mut setting = Some(db.clone());
        kingtide_base::rare::on_this_thread(Some(Box::new(move |taken| {
            if taken == at {
                setting.take().into_iter().for_each(|db| db.set_option("change_retention", "1G").unwrap());
            }
        })));
        match batched {
            true => {
                let mut batch = WriteBatch::new();
                batch.put(db.default_family(), b"large", &value(50_000, 1)).unwrap();
                batch.put(db.default_family(), b"small", b"1").unwrap();
                db.write(batch).unwrap();
            }
            false => _ = db.put("large", value(50_000, 1)).unwrap(),
        }
        kingtide_base::rare::on_this_thread(None);
        assert_eq!(db.get("large").unwrap().as_deref(), Some(&value(50_000, 1)[..]));
        db.put("large", "overwritten").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        let mut stream = db.changes_since(before).unwrap();
        let record = stream.next().unwrap_or_else(|e| panic!("batched {batched}: {e}")).unwrap();
        assert_eq!(record.operations().next().unwrap().value, value(50_000, 1), "batched {batched}");
        assert_eq!(record.len(), 1 + usize::from(batched));
    }
}

/// Families whose values are in value logs that no manifest names yet, in as many logs. Returns what the puts returned, too.
fn make_dropped_families(db: &Db, options: &Options) -> Vec<String> {
    let make = |i: u8| {
        let name = format!("dropped {i}");
        let family = db.create_family(&name, options.family.clone()).unwrap();
        family.put(b"key", [i; 20_000]).unwrap();
        name
    };
    (0..6).map(make).collect()
}

/// A reader of the directory holds files open by their numbers.
#[test]
fn a_reader_never_takes_values_of_a_dropped_family_for_others() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    db.put(b"small", b"begins the log").unwrap();
    db.flush().unwrap(); // so that the close has nothing to flush
    while db.run_one_job().unwrap() {}
    let names = make_dropped_families(&db, &options(&fs, Compression::None));
    let reader = Db::open_read_only("db", options(&fs, Compression::None)).unwrap();
    assert_eq!(reader.family(&names[5]).unwrap().get(b"key").unwrap().unwrap(), [5; 20_000]);
    for name in &names {
        db.drop_family(name).unwrap();
    }
    while db.run_one_job().unwrap() {}
    db.close().unwrap();
    drop(db);
    let db = Db::open("db", options(&fs, Compression::None)).unwrap();
    for name in ["a", "b", "c"] {
        let family = db.create_family(name, options(&fs, Compression::None).family).unwrap();
        family.put(b"key", [0xab; 20_000]).unwrap();
    }
    reader.try_catch_up().unwrap();
    for name in ["a", "b", "c"] {
        let value = reader.family(name).unwrap().get(b"key").unwrap().unwrap();
        assert!(value == [0xab; 20_000], "another value for that of {name}");
    }
}

/// Notes how many files of those kinds are open at most, within a directory, when one is opened.
fn most_open(faults: &FaultFs, within: &Path, kinds: &'static [&'static str]) -> Arc<AtomicUsize> {
    let most = Arc::new(AtomicUsize::new(0));
    let (note, within) = (most.clone(), within.to_owned());
    faults.before_each(Some(Arc::new(move |op, _| {
        if op == Op::Open {
            let open =
                std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            let is_one = |path: &PathBuf| {
                path.starts_with(&within) && path.extension().is_some_and(|e| kinds.iter().any(|kind| *kind == e))
            };
            note.fetch_max(open.filter(is_one).count(), Ordering::Relaxed);
        }
    })));
    most
}

/// However many files a database has, a check and a repair of it have few of them open: a file that cannot be opened for that would be
/// reported as damaged, and a repair would leave out what is in it.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the system does not tell which files are open")]
fn many_files_are_checked_and_repaired_with_few_of_them_open() {
    const FILES: usize = 200;
    let dir = Scratch::new("many-files");
    let faults = Arc::new(FaultFs::new(SystemFs::shared(), 1));
    let mut o = Options::new().fs(faults.clone()).manual_jobs(true);
    // No file grows larger than one value.
    o.family = FamilyOptions::new().compression(Compression::None).value_threshold(100).l0_trigger(64);
    let (path, into) = (dir.0.join("db"), dir.0.join("repaired"));
    let db = Db::open(&path, o.clone()).unwrap();
    for i in 0..FILES {
        db.put(i.to_be_bytes(), value(400, i as u64)).unwrap();
        db.put(b"changing", value(400, i as u64)).unwrap();
        db.flush().unwrap();
    }
    let count = |kind: &str| {
        std::fs::read_dir(&path)
            .unwrap()
            .filter(|f| f.as_ref().unwrap().path().extension().is_some_and(|e| e == kind))
            .count()
    };
    assert!(count("klog") >= FILES && count("vlog") >= FILES, "{} tables, {} value logs", count("klog"), count("vlog"));
    db.close().unwrap();
    drop(db);
    let most = most_open(&faults, &path, &["vlog"]);
    let report = kingtide::verify(&path, &o).unwrap();
    let in_check = most.load(Ordering::Relaxed);
    assert!(report.is_clean(), "{report:?}");
    let most = most_open(&faults, &path, &["klog", "vlog"]);
    let report = kingtide::repair(&path, &into, &o).unwrap();
    let in_repair = most.load(Ordering::Relaxed);
    faults.before_each(None);
    assert!(report.unreadable.is_empty() && report.verify.is_clean(), "{report:?}");
    let db = Db::open(&into, o).unwrap();
    assert!((0..FILES).all(|i| db.get(i.to_be_bytes()).unwrap().unwrap() == value(400, i as u64)));
    assert!(db.get(b"changing").unwrap().unwrap() == value(400, FILES as u64 - 1));
    assert!(in_check > 1 && in_check <= 32, "{in_check} value logs were open for a check");
    assert!(in_repair > 1 && in_repair <= 80, "{in_repair} files were open for a repair");
}

/// However many value logs the values of one table are in, few of these are open at a time while the values are moved.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the system does not tell which files are open")]
fn values_are_moved_out_of_many_value_logs_with_few_of_them_open() {
    const LOGS: usize = 120;
    let dir = Scratch::new("many-value-logs");
    let faults = Arc::new(FaultFs::new(SystemFs::shared(), 1));
    let mut o = Options::new().fs(faults.clone()).manual_jobs(true);
    o.db.max_open_files = 16;
    o.family = FamilyOptions::new().compression(Compression::None).value_threshold(100).vlog_dead_ratio(1.0);
    let db = Db::open(dir.0.join("db"), o).unwrap();
    let family = db.default_family().clone();
    let jobs = || while db.run_one_job().unwrap() {};
    for i in 0..LOGS {
        family.put(i.to_be_bytes(), value(400, i as u64)).unwrap();
        family.put(b"changing", value(4000, i as u64)).unwrap();
        db.flush().unwrap();
        jobs();
    }
    db.compact().unwrap();
    let check = |family: &ColumnFamily| {
        let same = |i: &usize| family.get(i.to_be_bytes()).unwrap().unwrap() == value(400, *i as u64);
        assert!((0..LOGS).all(|i| same(&i)));
    };
    check(&family);
    let most = most_open(&faults, &dir.0, &["vlog"]);
    let clone = db.clone_family("default", "clone").unwrap();
    let in_clone = most.swap(0, Ordering::Relaxed);
    check(&clone);
    most.store(0, Ordering::Relaxed);
    let moved = || db.stats().get("vlog_moved_bytes").unwrap();
    let before = moved();
    family.set_option("vlog_dead_ratio", "0.1").unwrap();
    jobs();
    assert!(moved() - before >= LOGS as u64 * 400, "all logs were mostly dead");
    let in_compaction = most.load(Ordering::Relaxed);
    check(&family);
    faults.before_each(None);
    assert!(in_clone > 1 && in_clone <= 40, "{in_clone} value logs were open for a clone");
    assert!(in_compaction > 1 && in_compaction <= 40, "{in_compaction} value logs were open for a compaction");
}

fn names_of_value_logs(fs: &MemFs) -> Vec<String> {
    fs.list(Path::new("db")).unwrap().into_iter().filter(|name| name.ends_with(".vlog")).collect()
}

/// The directory may be another's when the writer gets to know.
#[test]
fn a_close_amid_a_large_value_leaves_no_file() {
    for at in [Op::Open, Op::Write] {
        let fs = MemFs::new();
        let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
        let shared: Arc<dyn Fs> = faults.clone();
        let db = Arc::new(Db::open("db", options(&fs, Compression::None).fs(shared)).unwrap());
        db.put("first", "begins the log").unwrap();
        let closer = Arc::new(Mutex::new(None));
        let (weak, slot, met) = (Arc::downgrade(&db), closer.clone(), AtomicUsize::new(0));
        faults.before_each(Some(Arc::new(move |op, path: &Path| {
            let met = || met.fetch_add(1, Ordering::Relaxed);
            if op == at && path.extension().is_some_and(|e| e == "vlog") && met() == 0 {
                let db = weak.upgrade().unwrap();
                let thread = std::thread::spawn(move || db.close());
                // A close may wait for a file that is being made, so this waits for it only as long as most closes take.
                for _ in 0..500 {
                    if thread.is_finished() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                *slot.lock().unwrap() = Some(thread);
            }
        })));
        let refused = db.put("large", value(3000, 1)).unwrap_err();
        assert_eq!(refused.kind(), kingtide::ErrorKind::Closed, "{at:?}: {refused}");
        faults.before_each(None);
        let closer = closer.lock().unwrap().take().unwrap();
        closer.join().unwrap().unwrap();
        assert_eq!(names_of_value_logs(&fs), [""; 0], "{at:?}");
        let again = Db::open("db", options(&fs, Compression::None)).unwrap();
        assert!(again.get("large").unwrap().is_none() && again.get("first").unwrap().is_some());
    }
}

/// A part of a disk that takes no more keeps no flush from getting the values to another.
#[test]
fn a_flush_moves_the_values_of_a_file_that_takes_no_footer() {
    let fs = MemFs::new();
    let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let shared: Arc<dyn Fs> = faults.clone();
    let db = Db::open("db", options(&fs, Compression::None).fs(shared)).unwrap();
    for n in 0..3u64 {
        db.put([n as u8], value(3000, n)).unwrap();
    }
    let before = names_of_value_logs(&fs);
    assert_eq!(before.len(), 1);
    faults.add(Rule::new(Op::Write, Fault::Eio).path(before[0].as_str()).sticky());
    db.flush().unwrap(); // it tries more than once
    while db.run_one_job().unwrap() {}
    assert!(!names_of_value_logs(&fs).contains(&before[0]));
    db.put("after", value(3000, 9)).unwrap();
    db.sync().unwrap();
    for n in 0..3u64 {
        assert!(db.get([n as u8]).unwrap().unwrap() == value(3000, n), "{n}");
    }
    assert!(db.verify().unwrap().is_clean());
}

/// A commit waits for a lock after it has written its value to a file that other commits share, and a flush seals that file meanwhile.
#[test]
fn a_value_whose_file_could_not_be_synced_before_its_commit_is_written_again() {
    for (durability, len) in [(Durability::Process, 3000), (Durability::Power, 3000), (Durability::Process, 300_000)] {
        let what = format!("{durability:?}, {len}");
        let fs = MemFs::new();
        let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
        let shared: Arc<dyn Fs> = faults.clone();
        let mut options = options(&fs, Compression::None).fs(shared);
        options.db.durability = durability;
        let db = Db::open("db", options.clone()).unwrap();
        let family = db.default_family();
        db.put("first", value(3000, 1)).unwrap();
        let before = names_of_value_logs(&fs);
        let mut holder = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true)).unwrap();
        holder.lock(family, b"locked", LockMode::Exclusive).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| db.put("locked", value(len, 2)));
            while db.lock_waits().is_empty() {
                std::thread::yield_now();
            }
            assert_eq!((before.len(), names_of_value_logs(&fs)), (1, before), "{what}: one file has both values");
            faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
            let _ = db.flush(); // it tries more than once
            faults.clear();
            db.flush().unwrap();
            holder.rollback().unwrap();
            writer.join().unwrap().unwrap_or_else(|e| panic!("{what}: {e}"));
        });
        db.put("after", value(3000, 3)).unwrap();
        db.sync().unwrap_or_else(|e| panic!("{what}: {e}"));
        let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
        let again = Db::open("db", options.clone().fs(Arc::new(cut))).unwrap();
        for (key, len, version) in [("first", 3000, 1), ("locked", len, 2), ("after", 3000, 3)] {
            assert!(again.get(key).unwrap().is_some_and(|v| *v == value(len, version)[..]), "{what}: {key}");
        }
    }
}

/// A reader keeps the memtable, and with it the file that could not be synced, although a flush has moved the values by then.
#[test]
fn values_that_have_moved_keep_no_sync_of_the_log_from_succeeding() {
    let fs = MemFs::new();
    let faults = Arc::new(FaultFs::new(Arc::new(fs.clone()), 1));
    let shared: Arc<dyn Fs> = faults.clone();
    let options = options(&fs, Compression::None).fs(shared);
    let db = Db::open("db", options.clone()).unwrap();
    let family = db.default_family();
    put_all(family, 1);
    let mut reader = family.cursor(..).unwrap();
    reader.seek_to_last();
    faults.add(Rule::new(Op::Sync, Fault::Eio).path(".vlog"));
    db.flush().unwrap();
    assert_eq!(faults.stats().injected(), 1);
    put_all(family, 2);
    db.sync().unwrap();
    assert!(*reader.value().unwrap() == value(LENGTHS[LENGTHS.len() - 1], 1)[..]);
    let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    let again = Db::open("db", options.fs(Arc::new(cut))).unwrap();
    check(again.default_family(), 2, "after a power cut");
}
