//! A small database has a small log, and a large one gives its log back when it is at rest.

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{Compression, Db, ErrorKind, FamilyOptions, ManualClock, Options};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Keys of 4 KiB that [`load`] writes.
const KEYS: u32 = 6 << 10;

/// With the production sizes of log segments.
fn options(fs: &Arc<dyn Fs>, clock: &Arc<ManualClock>) -> Options {
    let mut options = Options::new().fs(fs.clone()).clock(clock.clone()).manual_jobs(true);
    options.family.compression = Compression::None;
    options
}

/// Bytes of all files whose names contain `part`.
fn space(fs: &Arc<dyn Fs>, part: &str) -> u64 {
    let dir = Path::new("db");
    let names = fs.list(dir).unwrap().into_iter().filter(|n| n.contains(part));
    names.map(|n| fs.open(&dir.join(n), OpenMode::Read).unwrap().len().unwrap()).sum()
}

fn run_jobs(db: &Db) {
    while db.run_one_job().unwrap() {}
}

/// Writes 24 MiB, more than a segment of full size.
fn load(db: &Db) {
    for i in 0..KEYS {
        db.put(i.to_be_bytes(), vec![i as u8; 4096]).unwrap();
        run_jobs(db);
    }
}

fn holds_all(db: &Db) -> bool {
    let value = |i: u32| db.get(i.to_be_bytes()).unwrap();
    (0..KEYS).all(|i| value(i).is_some_and(|v| v.len() == 4096 && v[0] == i as u8))
}

#[test]
fn a_few_entries_in_ten_families_take_little_space() {
    let (fs, clock) = (MemFs::shared(), ManualClock::at_unix_ms(1));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    db.put(b"tide", b"high").unwrap();
    run_jobs(&db);
    let open = space(&fs, "");
    assert!(open <= 200 << 10, "{open} bytes for one entry");
    for name in 1..10 {
        let family = db.create_family(&name.to_string(), FamilyOptions::default()).unwrap();
        family.put(b"tide", b"high").unwrap();
        run_jobs(&db);
    }
    let open = space(&fs, "");
    assert!(open <= 200 << 10, "{open} bytes for ten families");
    db.close().unwrap();
    let closed = space(&fs, "");
    assert!(closed <= 64 << 10, "{closed} bytes when closed");
}

#[test]
fn the_log_of_a_loaded_database_shrinks_at_a_compaction_and_at_the_close() {
    let (fs, clock) = (MemFs::shared(), ManualClock::at_unix_ms(1));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    load(&db);
    assert!(space(&fs, ".wal") >= 32 << 20, "warm segments are large");
    db.compact().unwrap();
    run_jobs(&db);
    assert!(space(&fs, ".wal") <= 128 << 10, "{}", space(&fs, ".wal"));
    load(&db);
    assert!(space(&fs, ".wal") >= 32 << 20);
    db.close().unwrap();
    assert!(space(&fs, ".wal") <= 4 << 10, "{}", space(&fs, ".wal"));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    assert!(holds_all(&db));
}

#[test]
fn a_flush_of_all_families_shrinks_the_log() {
    let (fs, clock) = (MemFs::shared(), ManualClock::at_unix_ms(1));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    load(&db);
    assert!(space(&fs, ".wal") >= 32 << 20);
    db.flush().unwrap();
    assert!(space(&fs, ".wal") <= 128 << 10, "{}", space(&fs, ".wal"));
    let before = db.latest_sequence();
    let killed = Db::open_read_only("db", options(&fs, &clock)).unwrap();
    assert!(holds_all(&killed) && killed.latest_sequence() == before);
}

/// A program that waits before it measures the directory need not wait for another second. What is only in memtables stays.
#[test]
fn waiting_for_background_work_shrinks_the_log_to_what_memtables_need() {
    let (fs, clock) = (MemFs::shared(), ManualClock::at_unix_ms(1));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    load(&db);
    db.default_family().flush().unwrap();
    assert!(space(&fs, ".wal") >= 32 << 20);
    db.wait_for_background().unwrap();
    assert!(space(&fs, ".wal") <= 128 << 10, "{}", space(&fs, ".wal"));

    load(&db);
    let warm = space(&fs, ".wal");
    db.wait_for_background().unwrap();
    let needed = space(&fs, ".wal");
    assert!(needed >= 24 << 20 && needed < warm, "{needed} of {warm} bytes");
    let killed = Db::open_read_only("db", options(&fs, &clock)).unwrap();
    assert!(holds_all(&killed) && killed.latest_sequence() == db.latest_sequence());
    killed.wait_for_background().unwrap(); // there is nothing that a reader could give back
}

#[test]
fn the_log_of_an_idle_database_shrinks_but_keeps_what_recovery_and_followers_need() {
    let (fs, clock) = (MemFs::shared(), ManualClock::at_unix_ms(1));
    let db = Db::open("db", options(&fs, &clock)).unwrap();
    let rest = || {
        run_jobs(&db);
        clock.advance(Duration::from_secs(2));
        run_jobs(&db);
    };
    load(&db);
    db.default_family().flush().unwrap();
    let warm = space(&fs, ".wal");
    run_jobs(&db);
    clock.advance(Duration::from_millis(900));
    run_jobs(&db);
    assert_eq!(space(&fs, ".wal"), warm, "less than a second is no rest");
    rest();
    assert!(space(&fs, ".wal") <= 128 << 10, "{}", space(&fs, ".wal"));

    // What is only in memtables stays in the log, also for a process that is killed at rest.
    load(&db);
    rest();
    let needed = space(&fs, ".wal");
    assert!((24 << 20..60 << 20).contains(&needed), "{needed}");
    let copy = Db::open_read_only("db", options(&fs, &clock)).unwrap();
    assert!(holds_all(&copy));
    drop(copy);

    db.set_option("change_retention", "1G").unwrap();
    let before = db.latest_sequence();
    load(&db);
    db.flush().unwrap();
    rest();
    assert!(db.changes_since(before).is_ok(), "a follower still finds the changes");
    db.set_option("change_retention", "0").unwrap();
    load(&db);
    db.flush().unwrap();
    rest();
    let gone = db.changes_since(before).map(drop).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::TooOld);
    assert!(space(&fs, ".wal") <= 128 << 10, "{}", space(&fs, ".wal"));
}
