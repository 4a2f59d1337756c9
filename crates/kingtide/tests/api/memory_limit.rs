//! The option `memory_limit`: what it counts, what gives way, and that reads stay right while indexes and filters come and go.

use kingtide::internal::least_memory_limit;
use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op as FsOp, OpenMode, Rule};
use kingtide::{Db, ErrorKind, Isolation, Options, ReadOptions};
use kingtide_base::rng::Rng;
use kingtide_testkit::RaiseOnDrop;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Small tables with large indexes, and the least memory that these settings allow.
fn tiny(fs: Arc<dyn Fs>) -> Options {
    let mut options = Options::new().fs(fs);
    let small = "memtable_size=65536 memtable_budget=200000 target_file_size=65536 block_size=512 compression=none \
                 filter_fp=0.001 l0_trigger=2 block_cache_size=1M wal_segment_size=65536 background_threads=2";
    for (name, value) in small.split_whitespace().map(|t| t.split_once('=').unwrap()) {
        options.set(name, value).unwrap();
    }
    options.db.memory_limit = least_memory_limit(&options.db, &options.family);
    options
}

/// Bytes of [`tiny`]'s limit that memtables have not.
fn room() -> u64 {
    let options = tiny(MemFs::shared());
    options.db.memory_limit - options.db.memtable_budget
}

fn stat(db: &Db, name: &str) -> u64 {
    db.stats().get(name).unwrap()
}

fn key(i: u64) -> Vec<u8> {
    format!("key-{i:08}").into_bytes()
}

/// Puts `keys` keys, and has them in settled tables: not in their order, in which the small tables of flushes would stay.
fn load(db: &Db, keys: u64) {
    for i in (0..keys).map(|i| i * 7919 % keys) {
        db.put(key(i), format!("value of {i}")).unwrap();
    }
    db.compact().unwrap();
    db.wait_for_background().unwrap();
}

const CONSUMERS: [&str; 8] = [
    "memtable_bytes",
    "memtable_pinned_bytes",
    "memtable_spare_bytes",
    "block_cache_bytes",
    "resident_table_bytes",
    "job_memory_bytes",
    "transaction_bytes",
    "lock_bytes",
];

fn sum(db: &Db) -> u64 {
    let stats = db.stats();
    let sum = CONSUMERS.iter().map(|c| stats.get(c).unwrap()).sum();
    assert_eq!(stats.get("memory_bytes"), Some(sum));
    sum
}

#[test]
fn a_limit_too_small_for_the_memtables_is_refused() {
    let open = |limit: u64, budget: u64| {
        let mut options = tiny(MemFs::shared());
        (options.db.memory_limit, options.db.memtable_budget) = (limit, budget);
        Db::open("db", options)
    };
    let e = open(200_000, 200_000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let text = e.to_string();
    assert!(text.contains("option memory_limit = 200000 is too small"), "{text}");
    assert!(text.contains("200000 bytes (memtable_budget)") && text.contains("at least 265536"), "{text}");
    let text = open(147_456, 0).unwrap_err().to_string();
    assert!(text.contains("three quarters of memtable_size = 65536 times (1 + max_immutable_memtables = 2)"), "{text}");
    assert!(text.contains("147456") && text.contains("at least 212992"), "{text}");
    for (limit, budget, good) in
        [(265_535, 200_000, false), (265_536, 200_000, true), (212_991, 0, false), (212_992, 0, true), (0, 0, true)]
    {
        assert_eq!(open(limit, budget).is_ok(), good, "{limit} with {budget}");
    }
    let mut large = tiny(MemFs::shared());
    (large.db.memory_limit, large.db.memtable_budget) = (33 << 20, 32 << 20);
    assert!(Db::open("db", large.clone()).unwrap_err().to_string().contains("at least 35651584"));
    large.db.memory_limit = 34 << 20;
    Db::open("db", large).unwrap();

    // An open database changes neither of the two so that they no longer fit together.
    let db = open(265_536, 200_000).unwrap();
    for (name, value) in [("memory_limit", "65536"), ("memory_limit", "265535"), ("memtable_budget", "200001")] {
        let e = db.set_option(name, value).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("memory_limit"), "{e}");
    }
    db.set_option("memory_limit", "265536").unwrap(); // that it did not change: no more would be allowed with another budget
    db.set_option("memory_limit", "1M").unwrap();
    db.set_option("memtable_budget", "900000").unwrap();
    db.set_option("memory_limit", "0").unwrap();
}

/// With a limit, memtables of many families have at most half of it by default.
#[test]
fn memtables_of_many_families_leave_half_of_the_limit() {
    let mut options = tiny(MemFs::shared()).manual_jobs(true);
    (options.db.memory_limit, options.db.memtable_budget) = (2 << 20, 0);
    let family = options.family.clone();
    let db = Db::open("db", options).unwrap();
    let families: Vec<_> = (0..40).map(|i| db.create_family(&format!("f{i}"), family.clone()).unwrap()).collect();
    let mut flushed_at = None;
    for round in 0..200u64 {
        for family in &families {
            family.put(key(round), [7; 200]).unwrap();
        }
        while db.run_one_job().unwrap() {}
        if stat(&db, "flushes") > 0 {
            flushed_at.get_or_insert(stat(&db, "memtable_bytes"));
        }
        assert!(stat(&db, "memtable_bytes") <= 1 << 20, "{}", stat(&db, "memtable_bytes"));
    }
    assert!(flushed_at.is_some());
}

/// Whatever held memory is counted while it does, and no longer.
#[test]
fn the_sum_is_what_consumers_hold() {
    for limited in [false, true] {
        let mut options = tiny(MemFs::shared()).manual_jobs(true);
        if !limited {
            options.db.memory_limit = 0;
        }
        let db = Db::open("db", options).unwrap();
        let empty = sum(&db);
        assert!(empty <= 8 << 10, "{empty}");
        load(&db, 10_000);
        let reports = db.stats();
        let active: u64 = reports.families.iter().map(|f| f.active_bytes).sum();
        assert_eq!((reports.get("memtable_bytes"), reports.get("job_memory_bytes")), (Some(active), Some(0)));
        for i in 0..10_000 {
            assert!(db.get(key(i)).unwrap().is_some());
        }
        sum(&db);
        assert!(stat(&db, "resident_table_bytes") > 10_000);
        assert_eq!(limited, stat(&db, "block_cache_bytes") < 300_000, "{}", stat(&db, "block_cache_bytes"));

        // A transaction and its locks, and an iterator that keeps tables which no view names any more.
        let mut txn = db.begin_with(kingtide::TransactionOptions::new(Isolation::Snapshot).locking(true)).unwrap();
        for i in 0..2000 {
            txn.put(db.default_family(), &key(i), &[1; 100]).unwrap();
        }
        assert!(stat(&db, "transaction_bytes") > 200_000 && stat(&db, "lock_bytes") > 2000 * 20);
        sum(&db);
        txn.rollback().unwrap();
        drop(txn);
        let mut cursor = db.default_family().cursor_with(ReadOptions::new()).unwrap();
        cursor.seek_to_first();
        db.delete_range(key(0)..key(20_000)).unwrap();
        db.compact().unwrap();
        db.wait_for_background().unwrap();
        assert!(cursor.valid() && stat(&db, "resident_table_bytes") > 0, "the cursor's table is counted");
        drop(cursor);
        while db.run_one_job().unwrap() {}
        assert_eq!((stat(&db, "resident_table_bytes"), stat(&db, "transaction_bytes")), (0, 0));
        db.set_option("block_cache_size", "0").unwrap();
        assert_eq!(stat(&db, "block_cache_bytes"), 0);
        let left = sum(&db);
        assert!(left <= empty + (8 << 10), "{left} of {empty}");
    }
}

/// Without a limit, and with one that everything fits into, no table is ever closed for it.
#[test]
fn what_fits_stays() {
    for limit in [0, 64 << 20] {
        let mut options = tiny(MemFs::shared());
        options.db.memory_limit = limit;
        let db = Db::open("db", options).unwrap();
        load(&db, 20_000);
        (0..20_000).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
        assert_eq!((stat(&db, "table_evictions"), stat(&db, "table_reloads")), (0, 0));
        assert_eq!((stat(&db, "partitions_read"), stat(&db, "partition_hits")), (0, 0), "all is resident as a whole");
        assert_eq!(stat(&db, "block_cache_capacity_bytes"), 1 << 20);
    }
}

/// A get whose partitions are not in memory reads a few KiB, however large the table's index and filter are; and those that are read
/// again and again stay.
#[test]
fn a_get_reads_a_few_kib_of_an_index_and_a_filter_that_do_not_fit() {
    const KEYS: u64 = 60_000;
    let faults = Arc::new(FaultFs::new(MemFs::shared(), 7));
    let mut options = tiny(faults.clone()).manual_jobs(true);
    let (limit, memtables) = (options.db.memory_limit + 100_000, options.db.memtable_budget);
    (options.db.memory_limit, options.db.cache_shards) = (0, 1);
    options.db.block_cache_size = 0;
    options.family.target_file_size = 64 << 20;
    let db = Db::open("db", options).unwrap();
    load(&db, KEYS);
    while db.run_one_job().unwrap() {}
    let whole = stat(&db, "resident_table_bytes");
    assert!(whole > 200_000, "{whole}");
    db.set_option("memory_limit", &limit.to_string()).unwrap();
    while db.run_one_job().unwrap() {}
    let get = |i: u64| {
        let before = faults.bytes_read();
        assert_eq!(db.get(key(i)).unwrap().as_deref(), Some(format!("value of {i}").as_bytes()), "key {i}");
        faults.bytes_read() - before
    };
    let first = get(0);
    assert!(first > 100_000, "it reads and verifies index and filter as a whole: {first}");
    while db.run_one_job().unwrap() {}
    let (mut rng, mut most, mut sum) = (Rng::new(5), 0, 0);
    for _ in 0..2_000 {
        let bytes = get(rng.below(KEYS));
        (most, sum) = (most.max(bytes), sum + bytes);
    }
    println!("GETS: {} bytes on average, {most} at most, of an index and a filter of {whole}", sum / 2_000);
    // 4 KiB of a filter, about as much of an index, and a block.
    assert!(most <= 10 << 10 && sum / 2_000 <= 8 << 10, "{most} at most, {} on average", sum / 2_000);
    assert!(stat(&db, "partitions_read") > 1_000 && stat(&db, "partition_evictions") > 100);
    assert_eq!(stat(&db, "table_reloads"), 1);
    assert!(stat(&db, "resident_table_bytes") <= limit - memtables, "{}", stat(&db, "resident_table_bytes"));

    // A few keys: their partitions stay.
    let hot: Vec<u64> = (0..4).map(|_| rng.below(KEYS)).collect();
    for _ in 0..20 {
        hot.iter().for_each(|i| _ = get(*i));
    }
    let before = stat(&db, "partitions_read");
    for _ in 0..100 {
        hot.iter().for_each(|i| _ = get(*i));
    }
    assert_eq!(stat(&db, "partitions_read"), before, "{}", db.stats());
    assert_eq!(stat(&db, "memory_bytes"), CONSUMERS.iter().map(|c| stat(&db, c)).sum::<u64>());
}

/// When tables are closed so that their indexes and filters can be divided, the partitions have the room at once, and not only when background
/// work looks in.
#[test]
fn partitions_have_the_room_of_tables_that_were_closed() {
    const KEYS: u64 = 60_000;
    let mut options = tiny(MemFs::shared()).manual_jobs(true);
    (options.db.memory_limit, options.db.block_cache_size) = (options.db.memory_limit + 100_000, 0);
    options.family.target_file_size = 1 << 20;
    let db = Db::open("db", options).unwrap();
    load(&db, KEYS);
    let read = |times: u64| {
        (0..4 * times).for_each(|i| assert!(db.get(key(i % 4 * 15_000)).unwrap().is_some()));
        stat(&db, "partitions_read")
    };
    let before = read(20);
    assert!(before > 0, "{}", db.stats());
    assert_eq!(read(100), before, "{}", db.stats());
}

/// Readers, writers and compactions while indexes and filters are evicted all the time; then once more after a reopen.
#[test]
fn every_answer_is_right_while_indexes_and_filters_come_and_go() {
    const KEYS: u64 = 30_000;
    let fs = MemFs::shared();
    let db = Db::open("db", tiny(fs.clone())).unwrap();
    load(&db, KEYS);
    let model: RwLock<BTreeMap<Vec<u8>, Option<u64>>> = RwLock::new((0..KEYS).map(|i| (key(i), None)).collect());
    let value = |i: u64, version: Option<u64>| match version {
        None => format!("value of {i}"),
        Some(v) => format!("version {v} of {i}"),
    };
    let (done, read) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&done);
        let reader = |seed| {
            let (db, model, done, read) = (&db, &model, &done, &read);
            s.spawn(move || {
                let mut rng = Rng::new(seed);
                while !done.load(Ordering::Relaxed) {
                    let i = rng.below(KEYS + KEYS / 4); // some are absent
                    let model = model.read().unwrap();
                    let expected = model.get(&key(i)).map(|v| value(i, *v).into_bytes());
                    assert_eq!(db.get(key(i)).unwrap().map(|v| v.to_vec()), expected, "key {i}");
                    if rng.one_in(50) {
                        let to = i + 1 + rng.below(40);
                        let found: Vec<_> = db.range(key(i)..key(to)).map(|e| e.unwrap().key.to_vec()).collect();
                        let back: Vec<_> = db.range(key(i)..key(to)).rev().map(|e| e.unwrap().key.to_vec()).collect();
                        let expected: Vec<_> = model.range(key(i)..key(to)).map(|(k, _)| k.clone()).collect();
                        assert_eq!(found, expected);
                        assert!(back.iter().rev().eq(&expected), "backward from {to} to {i}");
                        let prefix = &key(i)[..11];
                        let found: Vec<_> = db.prefix(prefix).map(|e| e.unwrap().key.to_vec()).collect();
                        let expected: Vec<_> = (model.range(prefix.to_vec()..).map(|(k, _)| k.clone()))
                            .take_while(|k| k.starts_with(prefix))
                            .collect();
                        assert_eq!(found, expected);
                    }
                    if rng.one_in(50) {
                        let keys: Vec<_> = (0..20).map(|_| key(rng.below(KEYS + 10))).collect();
                        for (key, found) in keys.iter().zip(db.default_family().multi_get(&keys)) {
                            let n = std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
                            let expected = model.get(key).map(|v| value(n, *v).into_bytes());
                            assert_eq!(found.unwrap().map(|v| v.to_vec()), expected, "key {n}");
                        }
                    }
                    read.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let readers: Vec<_> = (0..3).map(reader).collect();
        let all_read = || readers.iter().all(|r| !r.is_finished()); // one that failed has ended
        let mut rng = Rng::new(99);
        for version in 0..6_000 {
            let i = rng.below(KEYS);
            let mut model = model.write().unwrap();
            if rng.one_in(100) {
                db.delete_range(key(i)..key(i + 7)).unwrap();
                (i..i + 7).for_each(|i| _ = model.remove(&key(i)));
            } else if rng.one_in(4) {
                db.delete(key(i)).unwrap();
                model.remove(&key(i));
            } else {
                db.put(key(i), value(i, Some(version))).unwrap();
                model.insert(key(i), Some(version));
            }
        }
        db.compact().unwrap();
        while read.load(Ordering::Relaxed) < 20_000 && all_read() {
            std::thread::yield_now();
        }
        drop(end);
    });
    let check = |db: &Db| {
        let model = model.read().unwrap();
        for i in 0..KEYS {
            let expected = model.get(&key(i)).map(|v| value(i, *v).into_bytes());
            assert_eq!(db.get(key(i)).unwrap().map(|v| v.to_vec()), expected, "key {i}");
        }
        let n = db.default_family().iter().inspect(|e| assert!(e.is_ok())).count();
        assert_eq!(n, model.len());
    };
    check(&db);
    db.wait_for_background().unwrap();
    let (evictions, parts) = (stat(&db, "partition_evictions"), stat(&db, "partitions_read"));
    println!("EVICTIONS: {evictions}, {parts} partitions read, {} reads", read.into_inner());
    assert!(evictions > 1000 && parts > 10_000, "{evictions} evictions, {parts} partitions read");
    db.close().unwrap();
    let db = Db::open("db", tiny(fs)).unwrap();
    check(&db);
    assert!(stat(&db, "partition_evictions") > 0 && stat(&db, "partitions_read") > 0);
    assert!(stat(&db, "resident_table_bytes") <= room(), "{}", stat(&db, "resident_table_bytes"));
}

/// A read that cannot get a table's index back fails alone: others go on, and the same one works when the disk does.
#[test]
fn an_error_while_an_index_is_read_again_is_that_reads_alone() {
    const KEYS: u64 = 30_000;
    let faults = Arc::new(FaultFs::new(MemFs::shared(), 7));
    let mut options = tiny(faults.clone()).manual_jobs(true);
    options.db.block_cache_size = 0;
    let db = Db::open("db", options).unwrap();
    load(&db, KEYS);
    let read_all = || {
        for i in 0..KEYS {
            assert_eq!(db.get(key(i)).unwrap().as_deref(), Some(format!("value of {i}").as_bytes()), "key {i}");
        }
    };
    let mut rng = Rng::new(3);
    for fault in [Fault::Eio, Fault::ShortRead] {
        read_all();
        while db.run_one_job().unwrap() {} // views let go of their tables
        let before = stat(&db, "partitions_read");
        faults.add(Rule::new(FsOp::Read, fault).path(".klog").probability(0.2));
        let (mut failed, mut right) = (0, 0);
        for _ in 0..2_000 {
            let i = rng.below(KEYS);
            match db.get(key(i)) {
                Ok(value) => {
                    assert_eq!(value.as_deref(), Some(format!("value of {i}").as_bytes()), "key {i}");
                    right += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                    failed += 1;
                }
            }
        }
        faults.clear();
        assert!(right > 200 && (failed > 100 || matches!(fault, Fault::ShortRead)), "{failed} failed, {right} right");
        read_all();
        assert!(stat(&db, "partitions_read") > before + 300, "{fault:?}: {}", stat(&db, "partitions_read") - before);
        db.put(key(KEYS), "writes go on").unwrap();
        db.compact().unwrap();
        db.delete(key(KEYS)).unwrap();
    }
}

/// A flipped byte of an index, a filter or a block, while the table is open in partitions: reads that need it fail and name the place, all
/// others are right, and so is a scan up to there.
#[test]
fn damage_of_an_open_table_in_partitions_is_found_where_it_is() {
    const KEYS: u64 = 6_000;
    let fs = MemFs::new();
    let mut options = tiny(Arc::new(fs.clone())).manual_jobs(true);
    options.db.block_cache_size = 0;
    options.db.cache_shards = 64; // each too small for a partition: all are read again
    options.family.target_file_size = 64 << 20;
    options.family.value_threshold = 0;
    let limit = std::mem::take(&mut options.db.memory_limit);
    let db = Db::open("db", options).unwrap();
    // Values as long as keys are many: more blocks, and so an index of several partitions.
    for i in (0..KEYS).map(|i| i * 7919 % KEYS) {
        db.put(key(i), [i as u8; 200]).unwrap();
        while i.is_multiple_of(50) && db.run_one_job().unwrap() {}
    }
    db.compact().unwrap();
    db.set_option("memory_limit", &limit.to_string()).unwrap();
    while db.run_one_job().unwrap() {}
    assert!(db.get(key(0)).unwrap().is_some() && stat(&db, "partitions_read") > 0, "{}", db.stats());
    let names = fs.list(Path::new("db")).unwrap();
    let path = Path::new("db").join(names.iter().find(|n| n.ends_with(".klog")).unwrap());
    let file = fs.open(&path, OpenMode::Write).unwrap();
    let mut footer = [0; 64];
    file.read_exact_at(&mut footer, file.len().unwrap() - 64).unwrap();
    let field = |i: usize| u64::from_le_bytes(footer[8 * i..8 * i + 8].try_into().unwrap());
    let (data, filter, index) = (field(1), field(2), field(3));
    assert!(filter > 8_000 && index > 4_000, "{filter} bytes of a filter, {index} of an index");
    // Without what is before the first line and block, and after the last: it is not read again.
    let parts = [
        ("a block", 0..data, 1_000),
        ("the filter", data + 8..data + filter - 8, 4_096),
        ("the index", data + filter + 16..data + filter + index - 8, index),
    ];
    let mut rng = Rng::new(11);
    for round in 0..12 {
        let (what, place, reach) = &parts[round % 3];
        let at = place.start + rng.below(place.end - place.start);
        let flip = |bit: u8| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ bit], at).unwrap();
        };
        let bit = 1 << rng.below(8);
        flip(bit);
        let right = |i: u64, value: &[u8]| assert_eq!(value, [i as u8; 200], "{what}, byte {at}: key {i}");
        let named = |e: &kingtide::Error| {
            assert!(e.is_corruption() && e.path() == Some(&*path), "{what}, byte {at}: {e}");
            let offset = e.offset().unwrap();
            assert!(offset <= at && at - offset < *reach, "{what}, byte {at}: {e}");
        };
        let mut failed = 0;
        for i in 0..KEYS {
            match db.get(key(i)) {
                Ok(found) => right(i, &found.unwrap_or_else(|| panic!("{what}, byte {at}: key {i} is not there"))),
                Err(e) => {
                    named(&e);
                    failed += 1;
                }
            }
        }
        assert!(failed > 0 && failed < KEYS / 2, "{what}, byte {at}: {failed} gets failed");
        for (i, entry) in (0..).zip(db.iter()) {
            match entry {
                Ok(entry) => {
                    assert_eq!(entry.key, key(i), "{what}, byte {at}");
                    right(i, &entry.value);
                }
                Err(e) => {
                    named(&e);
                    break;
                }
            }
        }
        assert!(!db.verify().unwrap().is_clean(), "{what}, byte {at}");
        flip(bit);
        (0..KEYS).step_by(10).for_each(|i| right(i, &db.get(key(i)).unwrap().unwrap()));
    }
}

/// The cache gives way to memtables as they grow, and to tables, and grows back; and the limit changes while the database is open.
#[test]
fn the_cache_gives_way_and_comes_back() {
    let mut options = tiny(MemFs::shared()).manual_jobs(true);
    options.db.memtable_budget = 4 << 20;
    options.family.memtable_size = 3 << 20;
    options.db.memory_limit = 6 << 20;
    options.db.block_cache_size = 5 << 20;
    let db = Db::open("db", options).unwrap();
    let capacity = || stat(&db, "block_cache_capacity_bytes");
    assert!(capacity() >= 5 << 20);
    let within = || assert!(stat(&db, "memory_bytes") <= (6 << 20) * 11 / 10, "{}", db.stats());
    for i in 0..20_000 {
        db.put(key(i), [3; 100]).unwrap();
        if i % 100 == 0 {
            within();
        }
    }
    let full = capacity();
    assert!(stat(&db, "memtable_bytes") > 5 << 19 && full < 7 << 19, "{}", db.stats());
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    assert!(capacity() > full, "{} after {full}", capacity());
    for _ in 0..2 {
        (0..20_000).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
        within();
    }
    assert!(stat(&db, "block_cache_bytes") > 1 << 20);
    assert_eq!(stat(&db, "table_evictions"), 0, "tables fit");

    // Less than tables need.
    let resident = stat(&db, "resident_table_bytes");
    db.set_option("memtable_budget", "100000").unwrap();
    db.set_option("memory_limit", "200000").unwrap();
    assert!(stat(&db, "block_cache_bytes") <= 200_000);
    while db.run_one_job().unwrap() {}
    assert!(
        stat(&db, "table_evictions") > 0 && stat(&db, "resident_table_bytes") <= 100_000,
        "{resident}: {}",
        db.stats()
    );
    (0..20_000).step_by(500).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
    assert!(stat(&db, "resident_table_bytes") <= 100_000 && stat(&db, "partitions_read") > 0, "{}", db.stats());

    // And none again: what is read comes back as a whole and stays.
    db.set_option("memory_limit", "0").unwrap();
    while db.run_one_job().unwrap() {} // views let go of tables in partitions
    assert_eq!(capacity(), 5 << 20);
    (0..20_000).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
    let evictions = stat(&db, "table_evictions");
    assert_eq!(stat(&db, "resident_table_bytes"), resident);
    (0..20_000).step_by(10).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
    assert_eq!(stat(&db, "table_evictions"), evictions);
}

/// A memtable that was flushed counts as long as something keeps it: cursors and iterators do, those of transactions too, and readers of long
/// values, and nothing else.
#[test]
fn memtables_that_readers_keep_are_counted_until_they_let_go() {
    let mut options = tiny(MemFs::shared()).manual_jobs(true);
    (options.db.memory_limit, options.db.memtable_budget) = (0, 4 << 20);
    (options.family.memtable_size, options.family.value_threshold) = (1 << 20, 0);
    let same = options.family.clone();
    let db = Db::open("db", options).unwrap();
    let family = db.default_family();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    let at_the_end = || {
        let mut all = db.iter();
        assert!(all.by_ref().all(|e| e.is_ok()));
        all
    };
    let refreshed = || {
        db.put(key(0), "older").unwrap();
        let mut cursor = db.cursor(..).unwrap();
        db.flush().unwrap();
        assert!(stat(&db, "memtable_pinned_bytes") > 0);
        db.put(key(0), "newer").unwrap();
        family.refresh(&mut cursor).unwrap();
        cursor
    };
    fn any(held: impl Any) -> Box<dyn Any> {
        Box::new(held)
    }
    let keeps = |what: &str, expected: bool, make: &mut dyn FnMut() -> Box<dyn Any>| {
        (0..100).for_each(|i| _ = db.put(key(i), [2; 100]).unwrap());
        let held = make();
        let memtables = stat(&db, "memtable_bytes");
        db.flush().unwrap();
        let flushed = memtables - stat(&db, "memtable_bytes");
        assert!(flushed > 10_000, "{what}: {flushed}");
        let pinned = if expected { flushed } else { 0 };
        assert_eq!(stat(&db, "memtable_pinned_bytes"), pinned, "{what}");
        sum(&db);
        drop(held);
        assert_eq!(stat(&db, "memtable_pinned_bytes"), 0, "{what}");
    };
    keeps("a cursor", true, &mut || any(db.cursor(..).unwrap()));
    keeps("an iterator", true, &mut || any(db.iter()));
    keeps("an iterator at its end", false, &mut || any(at_the_end()));
    keeps("a transaction's cursor", true, &mut || any(txn.cursor(family, ..).unwrap()));
    keeps("a transaction's iterator", true, &mut || any(txn.iter(family)));
    keeps("a snapshot", false, &mut || any(db.snapshot()));
    keeps("a value", false, &mut || any(db.get(key(1)).unwrap().unwrap()));
    keeps("a reader of a value", false, &mut || any(family.get_reader(key(1)).unwrap().unwrap()));
    keeps("a reader of a long value", true, &mut || {
        db.put("long", [3; 100_000]).unwrap();
        any(family.get_reader("long").unwrap().unwrap())
    });
    drop(txn);
    let cursor = refreshed();
    assert_eq!(stat(&db, "memtable_pinned_bytes"), 0, "a refreshed cursor has let go of it");
    db.flush().unwrap();
    assert!(stat(&db, "memtable_pinned_bytes") > 0);
    drop(cursor);

    let other = db.create_family("other", same).unwrap();
    other.put("key", [4; 10_000]).unwrap();
    let cursor = other.cursor(..).unwrap();
    db.drop_family("other").unwrap();
    assert!(stat(&db, "memtable_pinned_bytes") > 10_000, "that of a dropped family");
    sum(&db);
    drop(cursor);
    assert_eq!(stat(&db, "memtable_pinned_bytes"), 0);
}

/// Readers search sets of range tombstones, and each set is counted for as long as a reader or a family has it. So is the set that a flush or a
/// compaction has for itself.
#[test]
fn sets_of_range_tombstones_are_counted_wherever_they_are() {
    const COUNT: u64 = 2000;
    const BYTES: u64 = COUNT * 100; // at least, of a set of so many
    let faults = FaultFs::new(MemFs::shared(), 1);
    let mut options = tiny(Arc::new(faults.clone())).manual_jobs(true);
    (options.db.memory_limit, options.db.memtable_budget, options.family.memtable_size) = (0, 32 << 20, 8 << 20);
    let db = Db::open("db", options).unwrap();
    let delete =
        |from: u64| (from..from + COUNT).for_each(|i| _ = db.delete_range(key(3 * i)..key(3 * i + 2)).unwrap());
    let reader = || {
        let mut cursor = db.cursor(..).unwrap();
        cursor.seek_to_first();
        cursor
    };
    let pinned = || stat(&db, "memtable_pinned_bytes");
    [0, 9 * COUNT].iter().for_each(|i| _ = db.put(key(*i), "before").unwrap());
    db.flush().unwrap(); // or there would be nothing to delete
    delete(0);
    let first = reader();
    assert_eq!(pinned(), 0);
    delete(COUNT);
    let second = reader();
    assert!(pinned() > BYTES, "{}: the set that was replaced", pinned());
    sum(&db);
    drop(first);
    assert_eq!(pinned(), 0);

    let (of, most) = (db.clone(), Arc::new(AtomicU64::new(0)));
    let seen = most.clone();
    faults.before_each(Some(Arc::new(move |op, path: &Path| {
        if op == FsOp::Write && path.extension().is_some_and(|e| e == "klog") {
            seen.fetch_max(stat(&of, "job_memory_bytes"), Ordering::SeqCst);
        }
    })));
    db.flush().unwrap();
    let held = most.swap(0, Ordering::SeqCst);
    assert!(held > 5 * BYTES, "{held}: that of the flush, and what it writes");
    assert!(pinned() > 2 * BYTES, "{}: the memtable and its set", pinned());
    drop(second);
    assert_eq!(pinned(), 0);

    let resident = || stat(&db, "resident_table_bytes");
    let of_tables = resident();
    let third = reader();
    let with_set = resident();
    assert!(with_set > of_tables + 2 * BYTES, "{of_tables}, {with_set}");
    db.put(key(1), "after").unwrap();
    db.flush().unwrap();
    let fourth = reader();
    let with_both = resident();
    assert!(with_both > with_set + 2 * BYTES, "{with_set}, {with_both}: another version has a set of its own");
    drop(third);
    assert!(resident() + 2 * BYTES < with_both, "{with_both}, {}", resident());
    drop(fourth);
    most.store(0, Ordering::SeqCst);
    db.compact().unwrap();
    let held = most.load(Ordering::SeqCst);
    assert!(held > 4 * BYTES, "{held}: that of the compaction");
    faults.before_each(None);
    sum(&db);
    assert_eq!(stat(&db, "job_memory_bytes"), 0);
    assert!(resident() < BYTES, "{}: no range tombstone is left", resident());
}

/// The block cache gives way to what iterators keep of memtables that were flushed, and comes back when they let go of it.
#[test]
fn the_cache_gives_way_to_memtables_that_iterators_keep() {
    const LIMIT: u64 = 10 << 20;
    let mut options = tiny(MemFs::shared()).manual_jobs(true);
    (options.db.memtable_budget, options.family.memtable_size) = (3 << 20, 2 << 20);
    (options.db.memory_limit, options.db.block_cache_size) = (LIMIT, LIMIT);
    let db = Db::open("db", options).unwrap();
    let capacity = || stat(&db, "block_cache_capacity_bytes");
    let rest = || stat(&db, "memory_bytes") - stat(&db, "block_cache_bytes");
    let fill = || {
        (0..10_000).for_each(|i| _ = db.put(key(i), [3; 100]).unwrap());
        db.iter() // of a memtable that the next round flushes
    };
    let kept: Vec<_> = (0..4)
        .map(|round| {
            let iter = fill();
            assert!(capacity() + rest() <= LIMIT * 11 / 10, "round {round}: {}", db.stats());
            db.flush().unwrap();
            while db.run_one_job().unwrap() {}
            iter
        })
        .collect();
    let pinned = stat(&db, "memtable_pinned_bytes");
    assert!(pinned > 4 << 20 && capacity() + pinned <= LIMIT, "{}", db.stats());
    assert_eq!(stat(&db, "memtable_bytes"), 0);
    for iter in kept {
        assert_eq!(iter.filter(|e| e.as_ref().is_ok_and(|e| *e.value == [3; 100])).count(), 10_000);
    }
    while db.run_one_job().unwrap() {}
    assert!(stat(&db, "memtable_pinned_bytes") == 0 && capacity() + rest() >= LIMIT * 9 / 10, "{}", db.stats());
}

/// A limit that is lowered is kept although nothing is written or opened after that.
#[test]
fn a_database_at_rest_keeps_to_a_lower_limit() {
    let mut options = tiny(MemFs::shared());
    let limit = std::mem::take(&mut options.db.memory_limit);
    let db = Db::open("db", options).unwrap();
    load(&db, 20_000);
    (0..20_000).step_by(10).for_each(|i| assert!(db.get(key(i)).unwrap().is_some()));
    let resident = || stat(&db, "resident_table_bytes");
    assert!(resident() > room(), "{}", resident());
    db.set_option("memory_limit", &limit.to_string()).unwrap();
    for _ in 0..1_000_000 {
        if resident() <= room() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} bytes of tables stay, of {}", resident(), room());
}

/// One that is opened read-only keeps its tables: a writer may remove their files.
#[test]
fn a_reader_keeps_its_tables() {
    let fs = MemFs::shared();
    let db = Db::open("db", tiny(fs.clone())).unwrap();
    load(&db, 30_000);
    let reader = Db::open_read_only("db", tiny(fs.clone())).unwrap();
    db.delete_range(key(0)..key(30_000)).unwrap();
    db.compact().unwrap();
    (0..30_000).for_each(|i| assert!(reader.get(key(i)).unwrap().is_some()));
    assert_eq!(stat(&reader, "table_evictions"), 0);
    assert!(stat(&reader, "resident_table_bytes") > room());
    let held = sum(&reader);
    assert!(held <= tiny(fs).db.memory_limit * 11 / 10, "the cache gives way: {held}");
}
