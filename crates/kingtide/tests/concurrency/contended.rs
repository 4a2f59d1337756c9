//! Counters that many threads increment at once: no increment is lost where the level or a lock protects it, and where
//! nothing does, they can be.
//!
//! `KINGTIDE_FULL=1` runs 8 threads with 100,000 increments each.

use kingtide::vfs::MemFs;
use kingtide::{Db, ErrorKind, Isolation, Options, PinnedValue, Result, Transaction, TransactionOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const THREADS: u64 = 8;
const COUNTERS: u64 = 4;

fn increments() -> u64 {
    if kingtide_testkit::full() { 100_000 } else { 8_000 }
}

fn open() -> Db {
    let mut options = Options::new().fs(MemFs::shared());
    options.family.memtable_size = 64 << 10;
    options.family.l0_trigger = 2;
    options.db.wal_segment_size = 64 << 10;
    Db::open(Path::new("/db"), options).unwrap()
}

fn number(found: Option<PinnedValue>) -> u64 {
    found.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
}

/// How a counter is read before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Read {
    Plain,
    ForUpdate,
}

fn increment(t: &mut Transaction, db: &Db, key: &[u8], read: Read) -> Result<()> {
    let family = db.default_family();
    let found = if read == Read::Plain { t.get(family, key) } else { t.get_for_update(family, key) };
    let next = number(found?) + 1;
    if next.is_multiple_of(4) {
        std::thread::yield_now(); // to other threads that want this counter
    }
    t.put(family, key, &next.to_le_bytes())
}

/// Every thread increments counters in turn, each increment until it succeeds. Returns how often one had to be repeated.
fn count(options: &TransactionOptions, read: Read) -> u64 {
    let db = open();
    let (each, repeated, done) = (increments(), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, repeated) = (&db, &repeated);
                s.spawn(move || {
                    let mut t = db.begin_with(options.clone()).unwrap();
                    for i in 0..each {
                        let key = ((i + thread) % COUNTERS).to_be_bytes();
                        loop {
                            let result = increment(&mut t, db, &key, read).and_then(|()| t.commit());
                            t.reset().unwrap();
                            match result {
                                Ok(_) => break,
                                Err(e) if e.is_transient_conflict() => repeated.fetch_add(1, Ordering::Relaxed),
                                Err(e) => panic!("{options:?} {read:?}: {e}"),
                            };
                        }
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                db.default_family().flush().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|r| r.unwrap());
    });
    let sum: u64 = (0..COUNTERS).map(|c| number(db.get(c.to_be_bytes()).unwrap())).sum();
    assert_eq!(sum, THREADS * each, "{options:?} {read:?}");
    db.close().unwrap();
    repeated.into_inner()
}

fn options(isolation: Isolation, locking: bool) -> TransactionOptions {
    TransactionOptions::new(isolation).locking(locking).lock_timeout(Duration::from_secs(60))
}

#[test]
fn no_increment_is_lost_where_it_is_protected() {
    let protected = Isolation::ALL.into_iter().flat_map(|level| {
        let plain = level >= Isolation::Snapshot;
        let all = [(false, Read::Plain), (true, Read::Plain), (false, Read::ForUpdate), (true, Read::ForUpdate)];
        all.into_iter()
            .filter(move |(_, read)| plain || *read == Read::ForUpdate)
            .map(move |(l, read)| (level, l, read))
    });
    let mut total = 0;
    for (level, locking, read) in protected {
        let start = std::time::Instant::now();
        let repeated = count(&options(level, locking), read);
        total += THREADS * increments();
        let mode = if locking { "locking" } else { "optimistic" };
        println!("{level} {mode} {read:?}: {repeated} repeated, {:.1?}", start.elapsed());
    }
    println!("{total} increments, none lost");
}

/// Two transactions read a counter, then both write it. What is left, and what the second was told.
fn two_increments(level: Isolation, read: Read) -> (u64, Option<ErrorKind>) {
    let db = open();
    let mut first = db.begin(level).unwrap();
    let mut second = db.begin(level).unwrap();
    increment(&mut first, &db, b"counter", read).unwrap();
    // The second must not see what the first wrote and did not commit, or it would count on from there.
    let begun = if level == Isolation::ReadUncommitted && read == Read::Plain {
        second.put(db.default_family(), b"counter", &1u64.to_le_bytes())
    } else {
        increment(&mut second, &db, b"counter", read)
    };
    begun.unwrap();
    first.commit().unwrap();
    let second = second.commit().err().map(|e| e.kind());
    (number(db.get(b"counter").unwrap()), second)
}

#[test]
fn increments_are_lost_where_nothing_protects_them() {
    for level in Isolation::ALL {
        let expected = if level < Isolation::Snapshot { (1, None) } else { (1, Some(ErrorKind::Conflict)) };
        assert_eq!(two_increments(level, Read::Plain), expected, "{level}");
        assert_eq!(two_increments(level, Read::ForUpdate), (1, Some(ErrorKind::Conflict)), "{level} for update");
    }
}

/// A key that was deleted since is a conflict, also after merges have made nothing of key and delete.
#[test]
fn a_delete_that_was_merged_away_is_still_a_conflict() {
    for level in Isolation::ALL {
        let db = open();
        db.put(b"key", b"value").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        let mut t = db.begin(level).unwrap();
        assert!(t.get_for_update(db.default_family(), b"key").unwrap().is_some());
        t.put(db.default_family(), b"other", b"value").unwrap();
        db.delete(b"key").unwrap();
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(t.commit().err().map(|e| e.kind()), Some(ErrorKind::Conflict), "{level}");
        assert!(db.get(b"other").unwrap().is_none(), "{level}");
    }
}
