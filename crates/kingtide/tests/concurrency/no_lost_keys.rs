//! No acknowledged key is ever missing: concurrent writers, memtable rotations throughout, then a clean close and a
//! reopen. (The best-known peer of this design loses hundreds of keys in the first of these tests.)
//!
//! CI runs a tenth of the full counts; `KINGTIDE_FULL=1` runs all of them.

use kingtide::{ColumnFamily, Db, FamilyOptions, Options, WriteBatch};
use kingtide_base::hash::mix64;
use kingtide_testkit::RaiseOnDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kingtide-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn total_keys() -> u64 {
    if kingtide_testkit::full() { 2_000_000 } else { 400_000 }
}

/// Small memtables, so that there are rotations throughout.
fn options() -> Options {
    let mut o = Options::default();
    o.family.memtable_size = 2 << 20;
    o.family.target_file_size = 4 << 20;
    o
}

fn key(i: u64) -> [u8; 16] {
    let mut k = [0; 16];
    k[..8].copy_from_slice(&mix64(i).to_be_bytes());
    k[8..].copy_from_slice(&i.to_be_bytes());
    k
}

fn value(i: u64) -> Vec<u8> {
    let mut v = vec![b'v'; 100];
    v[..8].copy_from_slice(&mix64(i ^ 0x5555).to_le_bytes());
    v
}

/// Writes keys `[from, to)` in batches of `batch`.
fn load(db: &Db, family: &ColumnFamily, from: u64, to: u64, batch: u64) {
    let mut at = from;
    while at < to {
        let mut b = WriteBatch::new();
        for i in at..(at + batch).min(to) {
            b.put(family, &key(i), &value(i)).unwrap();
        }
        db.write(b).unwrap();
        at += batch;
    }
}

fn missing(family: &ColumnFamily, keys: u64) -> Vec<u64> {
    (0..keys).filter(|i| family.get(key(*i)).unwrap().as_deref() != Some(&value(*i)[..])).collect()
}

fn count(family: &ColumnFamily) -> u64 {
    let mut it = family.cursor(..).unwrap();
    let mut n = 0;
    it.seek_to_first();
    let mut last: Vec<u8> = Vec::new();
    while it.valid() {
        assert!(it.key() > &last[..], "out of order at entry {n}");
        last = it.key().to_vec();
        n += 1;
        it.next();
    }
    it.status().unwrap();
    n
}

fn write_close_reopen(writers: u64, name: &str) {
    let dir = Dir::new(name);
    let keys = total_keys();
    {
        let db = Db::open(&dir.0, options()).unwrap();
        std::thread::scope(|s| {
            for w in 0..writers {
                let db = db.clone();
                s.spawn(move || load(&db, db.default_family(), keys * w / writers, keys * (w + 1) / writers, 1000));
            }
        });
        assert_eq!(missing(db.default_family(), keys), [0u64; 0], "before the close");
        assert!(db.stats().get("memtable_rotations").unwrap() > 5);
        db.close().unwrap();
    }
    let db = Db::open(&dir.0, options()).unwrap();
    assert_eq!(missing(db.default_family(), keys), [0u64; 0], "after the reopen");
    assert_eq!(count(db.default_family()), keys);
}

#[test]
fn two_writers_close_reopen() {
    write_close_reopen(2, "two-writers");
}

#[test]
fn sixteen_writers_close_reopen() {
    write_close_reopen(16, "sixteen-writers");
}

/// Families come and go while others are written to; nothing of those that stay is lost.
#[test]
fn writers_beside_families_created_and_dropped() {
    let dir = Dir::new("family-churn");
    let keys = total_keys() / 4;
    {
        let db = Db::open(&dir.0, options()).unwrap();
        let kept = db.create_family("kept", options().family).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let end = RaiseOnDrop(&done);
            let writers: Vec<_> = (0..2)
                .map(|w| {
                    let (db, kept) = (db.clone(), kept.clone());
                    s.spawn(move || {
                        load(&db, db.default_family(), keys * w / 2, keys * (w + 1) / 2, 500);
                        load(&db, &kept, keys * w / 2, keys * (w + 1) / 2, 500);
                    })
                })
                .collect();
            s.spawn(|| {
                let mut n = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let name = format!("passing-{}", n % 3);
                    let f = db.create_family(&name, FamilyOptions::default()).unwrap();
                    load(&db, &f, 0, 2000, 100);
                    if n.is_multiple_of(2) {
                        db.flush().unwrap();
                    }
                    assert_eq!(missing(&f, 2000), [0u64; 0]);
                    db.drop_family(&name).unwrap();
                    assert!(f.put(b"k", b"v").is_err(), "a dropped family takes no writes");
                    n += 1;
                }
                assert!(n > 0);
            });
            for w in writers {
                w.join().unwrap();
            }
            drop(end);
        });
        db.close().unwrap();
    }
    check_families(&dir.0, keys);
}

fn check_families(dir: &Path, keys: u64) {
    let db = Db::open(dir, options()).unwrap();
    assert_eq!(db.families(), ["default", "kept"]);
    for f in [db.default_family().clone(), db.family("kept").unwrap()] {
        assert_eq!(missing(&f, keys), [0u64; 0], "family {}", f.name());
        assert_eq!(count(&f), keys);
    }
}
