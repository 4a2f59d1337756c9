//! Makes the golden databases.
//!
//! Every scenario leaves a directory as a build of this version leaves it, and listings of what is in it. They are made
//! once for a set of formats and never again: a test that fails because a file here has to change is a format that has to
//! get a new version.

use super::{Backwards, DIR, Disk, NOW, list, options};
use kingtide::backup::{Backup, BackupOptions};
use kingtide::vfs::{FaultFs, Fs, MemFs, Op};
use kingtide::{
    ColumnFamily, Compression, Db, Durability, FamilyOptions, IngestOptions, Isolation, KeyOrder, ManualClock,
    SortedFileWriter, StagedValue, TransactionOptions, WriteBatch, WriteOptions,
};
use kingtide_base::hash::mix64;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A directory and the listings of what it holds: one for a database, one for each backup.
pub struct Made {
    pub disk: MemFs,
    pub dir: &'static str,
    pub listings: Vec<String>,
}

/// All scenarios by name.
pub const ALL: [(&str, fn() -> Made); 13] = [
    ("closed", closed),
    ("killed", killed),
    ("compressions", compressions),
    ("value-logs", value_logs),
    ("orders", orders),
    ("in-doubt", in_doubt),
    ("range-tombstones", range_tombstones),
    ("expiry", expiry),
    ("backups", backups),
    ("log-start-fell", log_start_fell),
    ("written-once", written_once),
    ("ingested", ingested),
    ("in-doubt-staged", in_doubt_staged),
];

/// Whether a set of golden directories has a scenario. What only builds of one time left is in their set alone.
pub fn is_in(version: &str, name: &str) -> bool {
    match name {
        "log-start-fell" => version == "1",
        "written-once" => version != "1",
        "ingested" | "in-doubt-staged" => !matches!(version, "1" | "2"),
        _ => true,
    }
}

fn create(disk: &MemFs) -> Db {
    // An hour before the entries are read: what lives for a minute is gone by then.
    let clock = ManualClock::at_unix_ms(NOW - 3_600_000);
    Db::open(DIR, options(disk).clock(clock)).unwrap()
}

/// The database as it is when its process is killed now.
fn as_killed(disk: MemFs, db: Db) -> Made {
    let listings = vec![list(&db)];
    let disk = disk.kill_clone();
    drop(db);
    Made { disk, dir: DIR, listings }
}

fn as_closed(disk: MemFs, db: Db) -> Made {
    let listings = vec![list(&db)];
    db.close().unwrap();
    Made { disk, dir: DIR, listings }
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:05}").into_bytes()
}

/// Half of it compresses.
fn value(i: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| if at % 2 == 0 { b'v' } else { (mix64(i + at as u64 / 8) >> (at % 8 * 8)) as u8 }).collect()
}

fn family(change: impl Fn(&mut FamilyOptions)) -> FamilyOptions {
    let mut o = options(&MemFs::new()).family;
    change(&mut o);
    o
}

/// Tables in several levels, every kind of operation, families that were made, renamed, changed and dropped.
fn closed() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let kept = db.create_family("made", family(|_| {})).unwrap();
    db.create_family("dropped", family(|_| {})).unwrap().put(b"gone", b"with its family").unwrap();
    for round in 0..3u64 {
        for i in (round..120).step_by(1 + round as usize) {
            db.put(key(i), value(i + round, 30)).unwrap();
            kept.put(key(1000 + i), value(i, 10)).unwrap();
        }
        db.delete(key(round * 9)).unwrap();
        db.put(b"single", b"once").unwrap();
        db.single_delete(b"single").unwrap();
        db.flush().unwrap();
        if round == 1 {
            db.compact().unwrap();
        }
    }
    db.rename_family("made", "renamed").unwrap();
    db.drop_family("dropped").unwrap();
    kept.set_option("l0_trigger", "3").unwrap();
    db.create_family("empty", family(|o| o.filter_fp = 0.0)).unwrap();
    db.put(b"\x00", b"").unwrap();
    db.put([0xff; 300], value(1, 3)).unwrap();
    as_closed(disk, db)
}

/// A family whose first write came long after the beginning of the log was released, killed after the manifest was
/// rewritten. The builds that made the golden directory wrote a log start into the new manifest that lies before the oldest
/// segment, and then refused to open what they had left: only databases of those builds are in that state.
fn log_start_fell() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let idle = db.create_family("idle", family(|_| {})).unwrap();
    for i in 0..1500 {
        db.put(key(i % 100), value(i, 190)).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    idle.put(b"first", b"written").unwrap();
    db.put(key(1), b"written after the flush").unwrap();
    db.default_family().flush().unwrap();
    for i in 0..1500 {
        idle.set_option("l0_trigger", if i % 2 == 0 { "3" } else { "4" }).unwrap();
    }
    idle.put(b"second", b"written").unwrap();
    as_killed(disk, db)
}

/// Commits that are in the log only, in two segments: batches over families, packed values, a gap, a dropped family.
fn killed() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let other = db.create_family("other", family(|_| {})).unwrap();
    (0..50).for_each(|i| {
        db.put(key(i), value(i, 40)).unwrap();
    });
    db.flush().unwrap();
    for i in 0..24 {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), &key(i * 3), &value(i, 20)).unwrap();
        batch.put(&other, &key(i), &value(i, if i % 8 == 0 { 3000 } else { 50 })).unwrap();
        batch.delete(db.default_family(), &key(i * 3 + 1)).unwrap();
        db.write(batch).unwrap();
    }
    let unlogged = WriteOptions::new().durability(Durability::None);
    let mut batch = WriteBatch::new();
    batch.put(&other, b"not logged", b"but flushed").unwrap();
    db.write_with(&mut batch, &unlogged).unwrap();
    other.flush().unwrap();
    db.create_family("dropped", family(|_| {})).unwrap().put(b"gone", b"with its family").unwrap();
    db.drop_family("dropped").unwrap();
    db.delete_range(key(30)..key(36)).unwrap();
    db.put(b"last", b"commit").unwrap();
    as_killed(disk, db)
}

/// Two ingests, of which the manifest has the first: it is killed when it is about to be told the second, which the log has.
fn ingested() -> Made {
    let disk = MemFs::new();
    let faulty = Arc::new(FaultFs::new(Arc::new(disk.clone()), 1));
    let clock = ManualClock::at_unix_ms(NOW - 3_600_000);
    let db = Db::open(DIR, options(&disk).fs(faulty.clone()).clock(clock)).unwrap();
    let other = db.create_family("other", family(|_| {})).unwrap();
    disk.create_dir_all(Path::new("sorted")).unwrap();
    let sorted = |path: &str, family: &ColumnFamily, keys: std::ops::Range<u64>| {
        let mut file = SortedFileWriter::create(path, family).unwrap();
        keys.for_each(|i| file.put(&key(i), &value(i, if i % 10 == 0 { 1300 } else { 30 })).unwrap());
        file.finish().unwrap();
    };
    sorted("sorted/first", db.default_family(), 20..60);
    sorted("sorted/second", db.default_family(), 40..50);
    sorted("sorted/third", &other, 0..10);
    db.put(key(30), b"hidden by the first file").unwrap();
    db.default_family().ingest(&["sorted/first"], &IngestOptions::new()).unwrap();
    db.put(key(55), b"newer than the first file").unwrap();
    other.put(key(70), b"beside the third file").unwrap();
    let left = Arc::new(Mutex::new(None));
    let (kept, at) = (left.clone(), disk.clone());
    faulty.before_each(Some(Arc::new(move |op, path: &Path| {
        if op == Op::Write && path.to_string_lossy().contains("MANIFEST") {
            kept.lock().unwrap().get_or_insert_with(|| at.kill_clone());
        }
    })));
    let files = [(db.default_family(), &["sorted/second"][..]), (&other, &["sorted/third"][..])];
    db.ingest(&files, &IngestOptions::new()).unwrap();
    faulty.before_each(None);
    let disk = left.lock().unwrap().take().expect("the manifest was written");
    Made { disk, dir: DIR, listings: vec![list(&db)] }
}

/// A family for each compression, and one with another on each level.
fn compressions() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let all = ["none", "lz4", "lz4-fast", "zstd", "snappy"];
    for name in all {
        let options = family(|o| o.set("compression", name).unwrap());
        let f = db.create_family(name, options).unwrap();
        // In blocks, and in value logs.
        (0..30).for_each(|i| {
            f.put(key(i), value(i, if i % 10 == 0 { 1300 } else { 60 })).unwrap();
        });
    }
    let rows = family(|o| (o.compression, o.zstd_dictionary, o.zstd_level) = (Compression::Zstd, 512, 3));
    let rows = db.create_family("rows with a dictionary", rows).unwrap();
    (0..300u64).for_each(|i| {
        let row = format!("{{\"station\":\"Cuxhaven {}\",\"reading\":{i},\"verified\":{}}}", i % 7, i % 3 == 0);
        rows.put(key(i), row).unwrap();
    });
    let levels = vec![Compression::None, Compression::Snappy, Compression::Zstd];
    let leveled = db.create_family("leveled", family(|o| o.compression_per_level = levels.clone())).unwrap();
    for round in 0..3 {
        (0..60).for_each(|i| {
            leveled.put(key(i * 2 + round), value(i, 30)).unwrap();
        });
        leveled.flush().unwrap();
        if round < 2 {
            leveled.compact_range(..).unwrap();
        }
    }
    as_closed(disk, db)
}

/// Values of one chunk and of many, in value logs of which parts are dead.
fn value_logs() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let chunked = db.create_family("chunked", family(|o| o.value_chunk_size = 4096)).unwrap();
    for round in 0..2 {
        (0..12).for_each(|i| {
            db.put(key(i * (1 + round)), value(i + round, 200 + i as usize * 40)).unwrap();
        });
        chunked.put(b"large", value(round, 14_000)).unwrap();
        chunked.put(b"one chunk", value(round, 4096)).unwrap();
        db.flush().unwrap();
    }
    db.compact().unwrap();
    db.put(key(3), value(9, 500)).unwrap();
    as_closed(disk, db)
}

/// Every built-in order of keys, and one of the user's.
fn orders() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    for name in ["reverse", "u64", "i64", "case-insensitive"] {
        let order = KeyOrder::builtin(name).unwrap();
        let f = db.create_family_ordered(name, family(|_| {}), order).unwrap();
        for i in 0..60u64 {
            match name {
                "u64" | "i64" => f.put((mix64(i) >> (i % 60)).to_le_bytes(), value(i, 8)).unwrap(),
                _ => f.put([b'a' + (i % 7) as u8, b'A' + (i % 11) as u8], value(i, 8)).unwrap(),
            };
        }
    }
    let f = db.create_family_ordered("custom", family(|_| {}), KeyOrder::Custom(Arc::new(Backwards))).unwrap();
    (0..60).for_each(|i| {
        f.put(key(i), value(i, 8)).unwrap();
    });
    db.flush().unwrap();
    f.delete_range(key(20)..key(10)).unwrap();
    as_closed(disk, db)
}

/// Transactions that were prepared and not resolved; others that were.
fn in_doubt() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let other = db.create_family("other", family(|_| {})).unwrap();
    (0..20).for_each(|i| {
        db.put(key(i), value(i, 20)).unwrap();
    });
    for (n, level) in Isolation::ALL.into_iter().enumerate() {
        let how = TransactionOptions::new(level).locking(n % 2 == 1);
        let mut t = db.begin_with(how).unwrap();
        t.get_for_update(db.default_family(), &key(n as u64)).unwrap();
        t.put(db.default_family(), &key(100 + n as u64), &value(n as u64, 30)).unwrap();
        t.delete(&other, &key(n as u64)).unwrap();
        t.prepare(format!("in doubt {n}").as_bytes()).unwrap();
    }
    for (name, commit) in [("committed", true), ("rolled back", false)] {
        let mut t = db.begin(Isolation::Snapshot).unwrap();
        t.put(&other, name.as_bytes(), b"x").unwrap();
        t.prepare(name.as_bytes()).unwrap();
        match commit {
            true => db.commit_prepared(name.as_bytes()).map(drop).unwrap(),
            false => db.rollback_prepared(name.as_bytes()).unwrap(),
        }
    }
    as_killed(disk, db)
}

/// Transactions with values that were written in pieces: in doubt, committed and rolled back.
fn in_doubt_staged() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let first = db.default_family();
    for (n, name) in ["in doubt", "committed", "rolled back", "in doubt, too"].into_iter().enumerate() {
        let n = n as u64;
        let mut t = db.begin(Isolation::Serializable).unwrap();
        t.put(first, &key(n), &value(n, 30)).unwrap();
        t.put_staged(first, &key(100 + n), &in_pieces(first, n)).unwrap();
        t.prepare(name.as_bytes()).unwrap();
    }
    db.commit_prepared(b"committed").unwrap();
    db.rollback_prepared(b"rolled back").unwrap();
    while db.run_one_job().unwrap() {}
    as_killed(disk, db)
}

/// Range tombstones in several levels and in the log, over point entries older and newer than they are.
fn range_tombstones() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    for round in 0..3u64 {
        (0..150).for_each(|i| {
            db.put(key(i), value(i + round, 20)).unwrap();
        });
        db.delete_range(key(round * 20 + 10)..key(round * 20 + 35)).unwrap();
        db.put(key(round * 20 + 15), b"newer than the tombstone").unwrap();
        db.delete_range(key(140 - round)..key(145)).unwrap();
        db.flush().unwrap();
    }
    db.delete_range(key(90)..key(100)).unwrap();
    db.put(key(95), b"newer").unwrap();
    db.delete_range(key(0)..key(2)).unwrap();
    as_killed(disk, db)
}

/// Entries that expired an hour ago and others that will in a century, in tables, a value log and the log.
fn expiry() -> Made {
    let disk = MemFs::new();
    let db = create(&disk);
    let aging = db.create_family("aging", family(|o| o.ttl = Some(Duration::from_secs(60)))).unwrap();
    for i in 0..60u64 {
        let ttl = Duration::from_secs(if i % 3 == 0 { 60 } else { 3_155_760_000 });
        db.put_ttl(key(i), value(i, if i % 10 == 0 { 400 } else { 20 }), ttl).unwrap();
        aging.put(key(i), value(i, 10)).unwrap();
        aging.put_ttl(key(100 + i), value(i, 10), ttl).unwrap();
        if i == 40 {
            db.flush().unwrap();
        }
    }
    drop((db, aging));
    let db = Db::open(DIR, options(&disk)).unwrap(); // now
    as_killed(disk, db)
}

/// A long text that compresses well.
fn text(i: u64, len: usize) -> Vec<u8> {
    format!("{i} of the tides ").into_bytes().into_iter().cycle().take(len).collect()
}

/// A value that is written in pieces, into a file of its own.
fn in_pieces(family: &ColumnFamily, i: u64) -> StagedValue {
    let mut writer = family.value_writer().unwrap();
    (0..3).for_each(|piece| writer.append(&text(i + piece, 500_000)).unwrap());
    writer.finish().unwrap()
}

/// Large values that are written once, into value logs that the log points into, some of them in pieces: in tables and in the log,
/// in several families, beside times to live, range deletes and a prepared transaction.
fn written_once() -> Made {
    const CENTURY: Duration = Duration::from_secs(3_155_760_000);
    let disk = MemFs::new();
    let clock = ManualClock::at_unix_ms(NOW - 3_600_000);
    let db = Db::open(DIR, options(&disk).clock(clock.clone())).unwrap();
    let first = db.default_family();
    let chunked = db
        .create_family(
            "chunked",
            family(|o| {
                o.value_chunk_size = 4096;
                o.set("compression", "zstd").unwrap();
            }),
        )
        .unwrap();
    let aging = db.create_family("aging", family(|o| o.ttl = Some(Duration::from_secs(60)))).unwrap();
    for i in 0..6 {
        db.put(key(i), text(i, 16_384 + i as usize * 500)).unwrap();
        chunked.put(key(i), text(i, 40_000)).unwrap();
        db.put(key(100 + i), value(i, 30)).unwrap();
    }
    chunked.put_staged(key(10), &in_pieces(&chunked, 10)).unwrap();
    db.flush().unwrap();
    // From here on in the log only.
    let mut batch = WriteBatch::new();
    batch.put_staged(first, &key(20), &in_pieces(first, 20)).unwrap();
    batch.put_staged_ttl(&chunked, &key(21), &in_pieces(&chunked, 21), CENTURY).unwrap();
    batch.put(&chunked, &key(22), &text(22, 20_000)).unwrap();
    batch.put(first, &key(23), &value(23, 30)).unwrap();
    db.write(batch).unwrap();
    let staged = in_pieces(first, 30);
    db.transact(|txn| txn.put_staged(first, &key(30), &staged)).unwrap();
    db.put_ttl(key(40), text(40, 17_000), CENTURY).unwrap();
    db.put_ttl(key(41), text(41, 17_000), Duration::from_secs(60)).unwrap();
    aging.put(key(42), text(42, 17_000)).unwrap();
    db.delete_range(key(2)..key(4)).unwrap();
    chunked.delete(key(5)).unwrap();
    chunked.delete_range(key(9)..key(11)).unwrap();
    let mut txn = db.begin(Isolation::Serializable).unwrap();
    txn.put(first, &key(50), &value(50, 30)).unwrap();
    txn.put(&chunked, &key(51), &text(51, 17_000)).unwrap();
    txn.prepare(b"in doubt").unwrap();
    clock.advance(Duration::from_secs(3600)); // what lives for a minute is gone
    as_killed(disk, db)
}

/// Two backups that share files.
fn backups() -> Made {
    let (disk, vault) = (MemFs::new(), MemFs::new());
    let db = create(&disk);
    let backup = Backup::on(Arc::new(vault.clone()) as Arc<dyn Fs>, "backups");
    let mut listings = Vec::new();
    for round in 0..2u64 {
        (round * 30..round * 30 + 60).for_each(|i| {
            db.put(key(i), value(i + round, 50 + i as usize * 5)).unwrap();
        });
        backup.create(&db, BackupOptions::default()).unwrap();
        listings.push(list(&db));
    }
    Made { disk: vault, dir: "backups", listings }
}

/// Writes what `disk` has below `from` to a real directory. A file that ends in many zeros, as a log segment does, is stored
/// without them, under a name that tells its length.
pub fn write_out(disk: &Disk, from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for (path, bytes) in disk {
        let at = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        let kept = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        match bytes.len() - kept > 1024 {
            true => std::fs::write(format!("{}@{}", at.display(), bytes.len()), &bytes[..kept]).unwrap(),
            false => std::fs::write(at, bytes).unwrap(),
        }
    }
}
