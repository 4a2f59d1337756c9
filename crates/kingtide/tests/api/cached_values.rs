//! Values of value logs in the block cache.

use kingtide::vfs::MemFs;
use kingtide::{Db, FamilyOptions, Options, PinnedValue};
use kingtide_base::rng::Rng;
use std::sync::Arc;

const CACHE: u64 = 4 << 20;
/// What a cache of that size takes at most.
const LONGEST: usize = (CACHE / 32) as usize;

const MOMENTS: [&str; 2] = ["before the flush", "after it"];

fn open(fs: &MemFs, cache: u64) -> Db {
    let family = FamilyOptions::new().value_chunk_size(8192);
    let options = Options::new().family(family).fs(Arc::new(fs.clone())).manual_jobs(true);
    Db::open("/db", options.block_cache_size(cache).cache_shards(1)).unwrap()
}

fn value(len: usize, seed: u64) -> Vec<u8> {
    let mut value = vec![seed as u8; len];
    Rng::new(seed).fill(&mut value[..len / 2]);
    value
}

fn run_jobs(db: &Db) {
    while db.run_one_job().unwrap() {}
}

fn stat(db: &Db, name: &str) -> u64 {
    db.stats().get(name).unwrap()
}

/// Reads of value logs that `read` makes.
fn reads(db: &Db, read: impl FnOnce()) -> u64 {
    let before = stat(db, "vlog_reads");
    read();
    stat(db, "vlog_reads") - before
}

#[test]
fn a_value_enters_a_cache_with_room_at_its_third_read() {
    let fs = MemFs::new();
    let db = open(&fs, CACHE);
    let lengths = [512, 1000, 4096, 16_368, 16_384, 20_000, LONGEST];
    for (i, len) in lengths.into_iter().enumerate() {
        db.put(format!("key {i}"), value(len, i as u64)).unwrap();
    }
    for moment in MOMENTS {
        for (i, len) in lengths.into_iter().enumerate() {
            let (key, want) = (format!("key {i}"), value(len, i as u64));
            let mut into = Vec::new();
            let first = reads(&db, || (0..3).for_each(|_| assert!(*db.get(&key).unwrap().unwrap() == want[..])));
            // The largest are in a value log from the start, and the flush leaves them there; the flush writes the others to one.
            let new_to_the_cache = (len >= 16_384) == (moment == MOMENTS[0]);
            assert_eq!(first, if new_to_the_cache { 3 } else { 0 }, "{len} {moment}");
            let again = reads(&db, || {
                assert!(*db.get(&key).unwrap().unwrap() == want[..], "{len} {moment}");
                assert!(db.default_family().get_into(&key, &mut into).unwrap() && into == want);
                assert!(db.multi_get(&[&key]).remove(0).unwrap().unwrap() == want);
            });
            assert_eq!(again, 0, "{len} {moment}");
        }
        db.flush().unwrap();
    }
}

#[test]
fn a_value_that_is_too_large_for_the_cache_stays_out() {
    let fs = MemFs::new();
    let (small, large) = (value(LONGEST, 1), value(LONGEST + 1, 2));
    for cache in [CACHE, 0] {
        let db = open(&fs, cache);
        db.put("small", &small).unwrap();
        db.put("large", &large).unwrap();
        db.flush().unwrap();
        let of = |key: &str, want: &[u8]| {
            reads(&db, || (0..4).for_each(|_| assert!(*db.get(key).unwrap().unwrap() == *want, "{key}")))
        };
        assert_eq!((of("small", &small), of("large", &large)), (if cache > 0 { 3 } else { 4 }, 4));
        assert!(stat(&db, "block_cache_bytes") <= cache);
    }
}

#[test]
fn a_held_value_stays_when_the_cache_forgets_it_and_its_file_goes() {
    let fs = MemFs::new();
    let db = open(&fs, CACHE);
    let mut held: Vec<(u64, PinnedValue)> = Vec::new();
    for i in 0..200u64 {
        db.put("key", value(LONGEST, i)).unwrap();
        db.flush().unwrap();
        (0..2).for_each(|_| drop(db.get("key").unwrap()));
        held.push((i, db.get("key").unwrap().unwrap()));
        if i % 64 == 63 {
            db.compact().unwrap();
            run_jobs(&db);
        }
    }
    db.delete("key").unwrap();
    db.compact().unwrap();
    run_jobs(&db);
    assert_eq!(db.get("key").unwrap(), None);
    assert!(held.iter().all(|(i, v)| **v == value(LONGEST, *i)[..]));
    assert!(stat(&db, "block_cache_evictions") > 0);
    let cached = stat(&db, "block_cache_bytes");
    assert!(cached < LONGEST as u64 / 2, "{cached} bytes of files that went are cached");
}

/// A caller that reads many values with one buffer gets those of the cache into that buffer, not into a new one for each.
#[test]
fn a_cached_value_is_copied_into_the_callers_buffer() {
    let fs = MemFs::new();
    let db = open(&fs, CACHE);
    db.put("key", value(20_000, 1)).unwrap();
    db.flush().unwrap();
    let mut buffer = Vec::new();
    let read = |buffer: &mut Vec<u8>| assert!(db.default_family().get_into("key", buffer).unwrap());
    (0..3).for_each(|_| read(&mut buffer));
    let place = buffer.as_ptr();
    for len in [0, 20_000, 7] {
        buffer.resize(len, 7);
        read(&mut buffer);
        assert!(buffer == value(20_000, 1) && buffer.as_ptr() == place, "a buffer of {len} bytes");
    }
}

/// Overwrites, flushes, compactions and cleaned value logs against a map: every read answers it, with a cache that has room for a few values
/// and with one that has room for all.
#[test]
fn cached_values_are_the_newest_ones() {
    for (seed, cache) in [(1, 256 << 10), (2, CACHE), (3, 64 << 20)] {
        println!("seed {seed}");
        let (fs, mut rng) = (MemFs::new(), Rng::new(seed));
        let mut db = open(&fs, cache);
        let mut want: Vec<Option<(usize, u64)>> = vec![None; 40];
        for step in 0..1500 {
            let i = rng.below(40) as usize;
            let key = format!("key {i}");
            match rng.below(100) {
                0..30 => {
                    // Few lengths: a value that takes another's place shows, for it is not told by its length.
                    let (len, seed) = ([100, 600, 5_000, 17_000, 39_999][rng.below(5) as usize], rng.next_u64());
                    db.put(&key, value(len, seed)).unwrap();
                    want[i] = Some((len, seed));
                }
                30..35 => {
                    db.delete(&key).unwrap();
                    want[i] = None;
                }
                35..38 => db.flush().unwrap(),
                38 => db.compact().unwrap(),
                39 => run_jobs(&db),
                40 => {
                    drop(db);
                    db = open(&fs, cache);
                }
                _ => {
                    let (got, want) = (db.get(&key).unwrap(), want[i].map(|(len, seed)| value(len, seed)));
                    assert!(got.as_deref() == want.as_deref(), "seed {seed} step {step}: {key}");
                }
            }
        }
        assert!(stat(&db, "vlog_reads") > 0);
        db.close().unwrap();
    }
}
