//! What each durability level promises, shown on a file system that forgets what was not synced.

use kingtide::vfs::{Fs, MemFs, Survival};
use kingtide::{Db, Durability, Isolation, Options, TransactionOptions, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::sync::Arc;
use std::time::Duration;

fn options(fs: &MemFs) -> Options {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    Options::new().fs(fs).manual_jobs(true)
}

fn put(db: &Db, key: &[u8], durability: Durability) {
    let mut b = WriteBatch::new();
    b.put(db.default_family(), key, b"value").unwrap();
    db.write_with(&mut b, &WriteOptions::new().durability(durability)).unwrap();
}

/// Keys that are there after the machine lost everything that was not synced.
fn after_power_cut(fs: &MemFs, keys: &[&[u8]]) -> Vec<bool> {
    let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    let db = Db::open("db", options(&cut)).unwrap();
    keys.iter().map(|k| db.get(k).unwrap().is_some()).collect()
}

/// Keys that are there after the process was killed.
fn after_kill(fs: &MemFs, keys: &[&[u8]]) -> Vec<bool> {
    let db = Db::open("db", options(&fs.kill_clone())).unwrap();
    keys.iter().map(|k| db.get(k).unwrap().is_some()).collect()
}

#[test]
fn each_level_survives_what_it_names() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    put(&db, b"power", Durability::Power);
    put(&db, b"process", Durability::Process);
    put(&db, b"none", Durability::None);
    assert_eq!(db.stats().get("wal_synced_commits"), Some(1), "a commit counts once");
    let keys: [&[u8]; 3] = [b"power", b"process", b"none"];
    assert_eq!(after_power_cut(&fs, &keys), [true, false, false]);
    assert_eq!(after_kill(&fs, &keys), [true, true, false]);
    // A power commit takes everything logged before it along.
    put(&db, b"power again", Durability::Power);
    assert_eq!(after_power_cut(&fs, &keys), [true, true, false]);
    db.flush().unwrap();
    assert_eq!(after_power_cut(&fs, &keys), [true, true, true], "a flush makes all of it durable");
}

#[test]
fn sync_and_an_empty_power_commit_make_earlier_commits_durable() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    put(&db, b"a", Durability::Process);
    assert_eq!(after_power_cut(&fs, &[b"a"]), [false]);
    db.write_with(&mut WriteBatch::new(), &WriteOptions::new().durability(Durability::Power)).unwrap();
    assert_eq!(after_power_cut(&fs, &[b"a"]), [true]);
    put(&db, b"b", Durability::Process);
    db.sync().unwrap();
    assert_eq!(after_power_cut(&fs, &[b"a", b"b"]), [true, true]);
}

#[test]
fn interval_syncs_in_the_background_and_can_be_set_while_open() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.manual_jobs = false;
    let db = Db::open("db", o).unwrap();
    db.set_option("durability", "interval:5").unwrap();
    db.put(b"k", b"v").unwrap();
    let mut tries = 0;
    while after_power_cut(&fs, &[b"k"]) == [false] {
        tries += 1;
        assert!(tries < 2000, "never synced");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Otherwise the database makes no syncs, so nothing but the commit wakes the thread that makes this one.
#[test]
fn a_commit_that_asks_for_an_interval_is_synced_in_the_background() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs).manual_jobs(false)).unwrap();
    for round in 0..6u8 {
        let key = [round + 1];
        let soon = Durability::Interval(Duration::from_millis(u64::from(round)));
        match round % 2 {
            0 => put(&db, &key, soon),
            _ => {
                let options = TransactionOptions::new(Isolation::Snapshot).durability(soon);
                let mut txn = db.begin_with(options).unwrap();
                txn.put(db.default_family(), &key, b"value").unwrap();
                txn.commit().unwrap();
            }
        }
        let mut tries = 0;
        while after_power_cut(&fs, &[&key]) == [false] {
            tries += 1;
            assert!(tries < 2000, "never synced");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What survives is a prefix of the commits over all families: a flush makes its family's commits durable, so older ones of others,
/// which are in the log alone, must become durable before it.
#[test]
fn a_flush_takes_older_commits_of_other_families_along() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    let other = db.create_family("other", kingtide::FamilyOptions::default()).unwrap();
    put(&db, b"older", Durability::Process);
    other.put(b"newer", b"value").unwrap();
    put(&db, b"newest", Durability::Process);
    assert_eq!(after_power_cut(&fs, &[b"older"]), [false]);
    other.flush().unwrap();
    let cut = fs.crash_clone(Survival::AllLost, &mut Rng::new(1));
    let found = Db::open("db", options(&cut)).unwrap();
    assert!(found.family("other").unwrap().get(b"newer").unwrap().is_some());
    assert!(found.get(b"older").unwrap().is_some(), "a commit is there, and one before it is not");
}

/// A commit over two families goes to the log even if it asked for nothing, to be whole after a kill. As the first of an
/// open it begins the log, and the manifest has to say so, or the loss of the log passes for one that was never begun.
#[test]
fn a_commit_over_two_families_begins_the_log() {
    let fs = MemFs::new();
    let db = Db::open("db", options(&fs)).unwrap();
    let other = db.create_family("other", kingtide::FamilyOptions::default()).unwrap();
    let mut b = WriteBatch::new();
    b.put(db.default_family(), b"key", b"value").unwrap();
    b.put(&other, b"key", b"value").unwrap();
    db.write_with(&mut b, &WriteOptions::new().durability(Durability::None)).unwrap();
    assert_eq!(after_kill(&fs, &[b"key"]), [true]);
    let killed = fs.kill_clone();
    for name in killed.list("db".as_ref()).unwrap().iter().filter(|name| name.ends_with(".wal")) {
        killed.remove(&std::path::Path::new("db").join(name)).unwrap();
    }
    let e = Db::open("db", options(&killed)).unwrap_err();
    assert_eq!(e.kind(), kingtide::ErrorKind::Corruption, "{e}");
}

/// However little time closing gives running merges, its own flushes end: what is in no log has nowhere else to go.
#[test]
fn closing_without_patience_flushes_what_was_not_logged() {
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.db.close_timeout = Duration::ZERO;
    let db = Db::open("db", o).unwrap();
    for name in ["second", "third"] {
        let family = db.create_family(name, kingtide::FamilyOptions::default()).unwrap();
        let mut b = WriteBatch::new();
        (0..500).for_each(|i| b.put(&family, format!("key {i}").as_bytes(), &[7; 100]).unwrap());
        db.write_with(&mut b, &WriteOptions::new().durability(Durability::None)).unwrap();
    }
    put(&db, b"none", Durability::None);
    db.close().unwrap();
    assert_eq!(after_power_cut(&fs, &[b"none"]), [true]);
    let db = Db::open("db", options(&fs)).unwrap();
    assert!(["second", "third"].iter().all(|f| db.family(f).unwrap().get(b"key 499").unwrap().is_some()));
}
