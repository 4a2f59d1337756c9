//! The space of deleted ranges comes back without further writes, and nothing else goes with it.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op, Rule};
use kingtide::{Compression, Db, ErrorKind, IngestOptions, ManualClock, Options, Snapshot, SortedFileWriter, verify};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn options(fs: &Arc<dyn Fs>) -> Options {
    let mut options = Options::new().fs(fs.clone()).manual_jobs(true);
    options.db.wal_segment_size = 256 << 10;
    options.family.memtable_size = 256 << 10;
    options.family.target_file_size = 256 << 10;
    options.family.value_threshold = 500;
    options.family.compression = Compression::None;
    options
}

fn key(table: u8, row: u32) -> Vec<u8> {
    [&[table][..], &row.to_be_bytes()].concat()
}

fn fill(db: &Db, table: u8, rows: u32) {
    for row in 0..rows {
        let length = if row % 10 == 0 { 1000 } else { 400 };
        db.put(key(table, row), vec![row as u8; length]).unwrap();
        while db.run_one_job().unwrap() {}
    }
}

fn drop_table(db: &Db, table: u8) {
    db.delete_range([table]..[table + 1]).unwrap();
    db.default_family().reclaim_range(&[table]..&[table + 1]).unwrap();
}

fn run_jobs(db: &Db) {
    let mut jobs = 0;
    while db.run_one_job().unwrap() {
        jobs += 1;
        assert!(jobs < 1000, "the jobs do not end");
    }
}

fn disk(db: &Db) -> u64 {
    let stats = db.stats();
    stats.get("klog_bytes").unwrap() + stats.get("vlog_bytes").unwrap()
}

fn tables(db: &Db) -> usize {
    db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.files).sum()
}

fn rows(db: &Db, table: u8, at: Option<&Snapshot>) -> usize {
    let range = kingtide::ReadOptions::new().range([table]..[table + 1]).snapshot(at);
    let mut it = db.default_family().cursor_with(range).unwrap();
    it.seek_to_first();
    let mut n = 0;
    while it.valid() {
        n += 1;
        it.next();
    }
    it.status().unwrap();
    n
}

#[test]
fn space_comes_back_without_further_writes_and_is_not_read_for_it() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs)).unwrap();
    for table in 1..=3 {
        fill(&db, table, 20_000);
    }
    db.flush().unwrap();
    run_jobs(&db);
    let (before, read) = (disk(&db), db.stats().get("compaction_read_bytes").unwrap());
    assert!(before > 24 << 20, "{before}");
    drop_table(&db, 2);
    assert_eq!(rows(&db, 2, None), 0);
    run_jobs(&db);
    let after = disk(&db);
    assert!(after < before * 7 / 10, "{after} of {before}");
    let read = db.stats().get("compaction_read_bytes").unwrap() - read;
    assert!(read < before / 8, "{read} bytes were read to drop a third of {before}");
    drop(db);
    assert!(verify("db", &options(&fs)).unwrap().is_clean());
    let db = Db::open("db", options(&fs)).unwrap();
    assert_eq!([1, 2, 3].map(|t| rows(&db, t, None)), [20_000, 0, 20_000]);
    // A little is not worth a flush, until it is more.
    let flushes = db.stats().get("flushes").unwrap();
    fill(&db, 4, 1000);
    db.flush().unwrap();
    run_jobs(&db);
    let flushes_now = db.stats().get("flushes").unwrap();
    assert!(flushes_now > flushes);
    drop_table(&db, 4);
    run_jobs(&db);
    assert_eq!(db.stats().get("flushes").unwrap(), flushes_now);
    drop_table(&db, 3);
    run_jobs(&db);
    assert!(disk(&db) < before * 4 / 10, "{} of {before}", disk(&db));
    assert_eq!([1, 2, 3, 4].map(|t| rows(&db, t, None)), [20_000, 0, 0, 0]);
}

/// Entries that wait for a flush when their range is deleted get into a table without the range delete, which is in the next memtable.
#[test]
fn space_comes_back_of_what_waited_for_a_flush() {
    let fs = MemFs::shared();
    let mut options = options(&fs);
    options.family.memtable_size = 8 << 20;
    let db = Db::open("db", options).unwrap();
    let sealed = || db.stats().families.iter().map(|f| f.immutable_memtables).sum::<usize>();
    let mut written = 0;
    while sealed() == 0 {
        for row in written..written + 100 {
            db.put(key(1, row), [row as u8; 400]).unwrap();
        }
        written += 100;
        assert!(written < 100_000, "no memtable was sealed");
    }
    assert_eq!(disk(&db), 0);
    drop_table(&db, 1);
    run_jobs(&db);
    assert_eq!(rows(&db, 1, None), 0);
    assert!(disk(&db) < 1 << 20, "{} bytes", disk(&db));
}

/// The memtable with the range tombstone of one family cannot be flushed. Ranges of other families do not wait for that flush.
#[test]
fn ranges_of_a_family_whose_flush_fails_hold_up_no_other_family() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", options(&fs)).unwrap();
    let other = db.create_family("other", options(&fs).family).unwrap();
    fill(&db, 1, 20_000);
    for row in 0..20_000 {
        other.put(key(1, row), [row as u8; 400]).unwrap();
        while db.run_one_job().unwrap() {}
    }
    db.flush().unwrap();
    run_jobs(&db);
    // Returns whether a memtable of the family waits for its flush, and the bytes of the family's tables.
    let state = |name: &str| {
        let stats = db.stats();
        let family = stats.families.iter().find(|f| f.name == name).unwrap();
        (family.immutable_memtables > 0, family.levels.iter().map(|l| l.bytes).sum::<u64>())
    };
    let before = ["default", "other"].map(|name| state(name).1);
    drop_table(&db, 1);
    other.delete_range([1u8]..[2]).unwrap();
    other.reclaim_range(&[1u8]..&[2]).unwrap();
    let mut failed = 0;
    for _ in 0..20 {
        if state("default").0 && !state("other").0 {
            faults.add(Rule::new(Op::Sync, Fault::Eio).path(".klog").nth(1));
        }
        failed += u32::from(db.run_one_job().is_err());
        faults.clear();
    }
    assert!(failed > 5, "{failed} flushes failed");
    assert!(state("default").0 && state("default").1 > before[0] / 2, "it waits: {:?}", state("default"));
    assert!(state("other").1 < before[1] / 10, "{} of {} bytes are left", state("other").1, before[1]);
    run_jobs(&db);
    assert!(state("default").1 < before[0] / 10, "{} of {} bytes are left", state("default").1, before[0]);
}

/// One family's files cannot leave the tree. That is a background error, although the step succeeds for the next family.
#[test]
fn an_error_in_one_family_is_counted_where_another_makes_progress() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", options(&fs)).unwrap();
    let families = ["first", "second"].map(|name| db.create_family(name, options(&fs).family).unwrap());
    for family in &families {
        for row in 0..2000 {
            family.put(key(1, row), [row as u8; 400]).unwrap();
            while db.run_one_job().unwrap() {}
        }
    }
    db.flush().unwrap();
    run_jobs(&db);
    families.iter().for_each(|family| _ = family.delete_range([1u8]..[2]).unwrap());
    db.flush().unwrap();
    for family in &families {
        family.reclaim_range(&[1u8]..&[2]).unwrap();
    }
    let bytes = |name: &str| {
        let stats = db.stats();
        let family = stats.families.iter().find(|f| f.name == name).unwrap();
        family.levels.iter().map(|l| l.bytes).sum::<u64>()
    };
    let before = ["first", "second"].map(bytes);
    let errors = db.stats().get("background_errors").unwrap();
    faults.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").nth(1));
    assert!(db.run_one_job().unwrap(), "a step for the second family");
    faults.clear();
    assert_eq!(bytes("first"), before[0]);
    assert!(bytes("second") < before[1] / 10, "{} of {} bytes are left", bytes("second"), before[1]);
    assert_eq!(db.stats().get("background_errors").unwrap() - errors, 1);
}

/// While the disk is full, the manifest cannot record that files leave the tree. They leave it once there is space.
#[test]
fn space_comes_back_after_the_disk_was_full() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", options(&fs)).unwrap();
    fill(&db, 1, 20_000);
    db.flush().unwrap();
    run_jobs(&db);
    let before = disk(&db);
    db.delete_range([1u8]..[2]).unwrap();
    db.flush().unwrap();
    db.default_family().reclaim_range(&[1u8]..&[2]).unwrap();
    let read = db.stats().get("compaction_read_bytes").unwrap();
    faults.add(Rule::new(Op::Write, Fault::Enospc).path("MANIFEST").sticky());
    for _ in 0..3 {
        assert_eq!(db.run_one_job().unwrap_err().kind(), ErrorKind::NoSpace, "it is tried again");
    }
    faults.clear();
    run_jobs(&db);
    assert!(disk(&db) < before / 10, "{} of {before} bytes are left", disk(&db));
    let read = db.stats().get("compaction_read_bytes").unwrap() - read;
    assert!(read < before / 8, "{read} bytes were read");
}

/// A flush may fail until there is space. Files whose rows are all deleted need none to go, and make some.
#[test]
fn space_comes_back_although_a_flush_finds_none() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", options(&fs)).unwrap();
    fill(&db, 1, 20_000);
    db.flush().unwrap();
    run_jobs(&db);
    let before = disk(&db);
    let snapshot = db.snapshot();
    drop_table(&db, 1);
    db.flush().unwrap();
    db.put(key(2, 0), b"value").unwrap();
    faults.add(Rule::new(Op::Write, Fault::Enospc).path(".klog").sticky());
    assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(disk(&db) >= before);
    drop(snapshot);
    (0..20).for_each(|_| _ = db.run_one_job());
    assert!(disk(&db) < before / 10, "{} of {before} bytes are left", disk(&db));
    assert_eq!(db.run_one_job().unwrap_err().kind(), ErrorKind::NoSpace);
    faults.clear();
    run_jobs(&db);
    assert_eq!((rows(&db, 1, None), rows(&db, 2, None)), (0, 1));
}

/// Compactions have no turn before the ranges. Their callers get the error of these and wait no longer than for one of their own.
#[test]
fn a_full_disk_ends_the_wait_for_a_compaction_behind_a_range() {
    let faults = FaultFs::new(MemFs::shared(), 1);
    let fs: Arc<dyn Fs> = Arc::new(faults.clone());
    let db = Db::open("db", options(&fs)).unwrap();
    fill(&db, 1, 20_000);
    db.delete_range([1u8]..[2]).unwrap();
    db.flush().unwrap();
    db.default_family().reclaim_range(&[1u8]..&[2]).unwrap();
    faults.add(Rule::new(Op::Write, Fault::Enospc).path("MANIFEST").sticky());
    let (tries, of) = (std::sync::atomic::AtomicU64::new(0), faults.clone());
    faults.before_each(Some(Arc::new(move |op, path: &std::path::Path| {
        let is_try = op == Op::Write && path.to_string_lossy().contains("MANIFEST");
        if is_try && tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 50 {
            of.clear(); // the disk has space again
        }
    })));
    assert_eq!(db.compact().unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn a_snapshot_keeps_what_it_sees() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs)).unwrap();
    fill(&db, 1, 20_000);
    fill(&db, 2, 2_000);
    db.flush().unwrap();
    run_jobs(&db);
    let before = disk(&db);
    let snapshot = db.snapshot();
    drop_table(&db, 1);
    fill(&db, 1, 100);
    db.flush().unwrap();
    run_jobs(&db);
    assert_eq!((rows(&db, 1, Some(&snapshot)), rows(&db, 1, None)), (20_000, 100));
    assert!(disk(&db) >= before);
    drop(snapshot);
    run_jobs(&db);
    assert!(disk(&db) < before / 3, "{} of {before}", disk(&db));
    assert_eq!((rows(&db, 1, None), rows(&db, 2, None)), (100, 2_000));
}

/// The space that a snapshot kept comes back without a write or a flush: idle threads look for work from time to time.
#[test]
fn the_space_of_a_dropped_snapshot_comes_back_by_itself() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs).manual_jobs(false)).unwrap();
    for row in 0..3000 {
        db.put(key(1, row), vec![row as u8; 1000]).unwrap();
    }
    let snapshot = db.snapshot();
    drop_table(&db, 1);
    db.flush().unwrap();
    db.wait_for_background().unwrap();
    let held = disk(&db);
    assert_eq!(rows(&db, 1, Some(&snapshot)), 3000);
    assert!(held > 2_000_000, "{held}");
    drop(snapshot);
    while disk(&db) > held / 10 {
        std::thread::yield_now();
    }
}

/// An ingested range delete is in a table at once, without a flush. What it covers leaves the tree without a merge, and no moment
/// before it may be read any more then, unless it was held in time.
#[test]
fn moments_before_a_reclaimed_range_are_read_as_they_were_or_refused() {
    for held in [false, true] {
        let fs = MemFs::shared();
        let db = Db::open("db", options(&fs)).unwrap();
        let family = db.default_family();
        fill(&db, 1, 100);
        db.flush().unwrap();
        run_jobs(&db);
        let before = db.latest_sequence();
        let mut file = SortedFileWriter::create("sorted", family).unwrap();
        file.delete_range([1]..[2]).unwrap();
        file.finish().unwrap();
        family.ingest(&["sorted"], &IngestOptions::default()).unwrap();
        family.reclaim_range([1]..[2]).unwrap();
        let then = db.snapshot_at(before).unwrap();
        assert_eq!((rows(&db, 1, Some(&then)), rows(&db, 1, None)), (100, 0));
        let then = held.then_some(then);
        let before_the_job = tables(&db);
        while tables(&db) == before_the_job && db.run_one_job().unwrap() {}
        match &then {
            None => {
                assert!(tables(&db) < before_the_job, "the table with the rows is there still");
                assert_eq!(db.snapshot_at(before).unwrap_err().kind(), ErrorKind::TooOld);
                assert!(db.oldest_readable_sequence() > before);
            }
            Some(then) => assert_eq!(rows(&db, 1, Some(then)), 100),
        }
        assert_eq!(rows(&db, 1, None), 0);
    }
}

/// Random writes, range deletes and snapshots, each range to be cleared at once: reads answer as a map does.
#[test]
fn reads_stay_as_they_were() {
    for seed in 0..5u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let fs = MemFs::shared();
        let mut options = options(&fs);
        (options.family.memtable_size, options.family.target_file_size) = (64 << 10, 64 << 10);
        let mut db = Db::open("db", options.clone()).unwrap();
        let mut model: BTreeMap<Vec<u8>, u8> = BTreeMap::new();
        let mut snapshots: Vec<(Snapshot, BTreeMap<Vec<u8>, u8>)> = Vec::new();
        for _ in 0..1500 {
            let (table, row) = (below(4) as u8, below(40_000) as u32);
            match below(100) {
                0..=89 => {
                    for row in row..row + 40 {
                        db.put(key(table, row), vec![row as u8; 300]).unwrap();
                        model.insert(key(table, row), row as u8);
                    }
                }
                90..=91 => {
                    let (lo, hi) = (key(table, row), key(table, row + 1 + below(40_000) as u32));
                    db.delete_range(&lo..&hi).unwrap();
                    db.default_family().reclaim_range(&lo..&hi).unwrap();
                    model.retain(|k, _| !(&lo..&hi).contains(&k));
                }
                92..=93 if snapshots.len() < 3 => snapshots.push((db.snapshot(), model.clone())),
                94 => drop(snapshots.pop()),
                95 => db.flush().unwrap(),
                96 if below(8) == 0 => {
                    snapshots.clear();
                    drop(db);
                    db = Db::open("db", options.clone()).unwrap();
                }
                _ => (0..below(10)).for_each(|_| _ = db.run_one_job().unwrap()),
            }
        }
        run_jobs(&db);
        for (snapshot, model) in snapshots.iter().map(|(s, m)| (Some(s), m)).chain([(None, &model)]) {
            let range = kingtide::ReadOptions::new().snapshot(snapshot);
            let mut it = db.default_family().cursor_with(range).unwrap();
            it.seek_to_first();
            let mut found = BTreeMap::new();
            while it.valid() {
                found.insert(it.key().to_vec(), it.value().unwrap()[0]);
                it.next();
            }
            it.status().unwrap();
            assert!(found == *model, "seed {seed}: {} of {} keys", found.len(), model.len());
        }
        drop((snapshots, db));
        assert!(verify("db", &options).unwrap().is_clean(), "seed {seed}");
    }
}

fn small_files(fs: &Arc<dyn Fs>) -> Options {
    let mut options = options(fs);
    options.family.memtable_size = 4 << 20;
    options.family.target_file_size = 64 << 10;
    options.family.value_threshold = 0;
    options
}

/// A deleted range over all of a flush is cut where its files are: each ends, exclusively, with the key with which the next
/// one begins, and below them files begin with the same keys. None of those is an overlap.
#[test]
fn files_may_end_where_a_deleted_range_was_cut_and_others_begin() {
    let fs = MemFs::shared();
    let db = Db::open("db", small_files(&fs)).unwrap();
    let fill = |value: u8| {
        (0..1000).for_each(|row| {
            db.put(key(1, row), vec![value; 400]).unwrap();
        })
    };
    fill(1);
    db.flush().unwrap();
    run_jobs(&db);
    db.delete_range([1]..[2]).unwrap();
    fill(2);
    db.flush().unwrap();
    let files = db.stats().get("klog_files");
    // Without threads this thread runs the jobs, and the checks of the planner fail here.
    run_jobs(&db);
    db.compact().unwrap();
    assert_eq!(rows(&db, 1, None), 1000, "{files:?} files");
    assert!((0..1000).all(|row| db.get(key(1, row)).unwrap().unwrap()[0] == 2));
    drop(db);
    assert!(verify("db", &options(&fs)).unwrap().is_clean());
}

/// Deleted ranges, files and ingested files that begin and end with the same few keys: reads answer as a map does.
#[test]
fn bounds_that_files_share_hide_nothing() {
    for seed in 0..if kingtide_testkit::full() { 200 } else { 12u64 } {
        println!("seed {seed}");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let fs = MemFs::shared();
        let mut options = small_files(&fs);
        (options.family.level_ratio, options.family.l0_trigger) = (2 + seed % 3, 1 + seed % 4);
        options.family.memtable_size = 128 << 10;
        let mut db = Db::open("db", options.clone()).unwrap();
        let mut model: BTreeMap<Vec<u8>, u8> = BTreeMap::new();
        let mut snapshots: Vec<(Snapshot, BTreeMap<Vec<u8>, u8>)> = Vec::new();
        for step in 0..600u32 {
            let (row, value) = (below(800) as u32, step as u8);
            // Coarse bounds, so that many meet.
            let (a, b) = (below(20) as u32 * 40, below(20) as u32 * 40);
            let (lo, hi) = (key(1, a.min(b)), key(1, a.max(b) + 1 - step % 2));
            match below(40) {
                0..=19 => (row..(row + 30).min(800)).for_each(|row| {
                    db.put(key(1, row), vec![value; 1000]).unwrap();
                    model.insert(key(1, row), value);
                }),
                20..=22 if lo < hi => {
                    db.delete_range(&lo..&hi).unwrap();
                    if step % 3 == 0 {
                        db.default_family().reclaim_range(&lo..&hi).unwrap();
                    }
                    model.retain(|k, _| *k < lo || *k >= hi);
                }
                23..=25 if lo < hi => {
                    let path = format!("sorted-{step}");
                    let family = db.default_family();
                    let mut file = SortedFileWriter::create(&path, family).unwrap();
                    let bare = below(2) == 0;
                    if bare || below(2) == 0 {
                        file.delete_range(&lo..&hi).unwrap();
                        model.retain(|k, _| *k < lo || *k >= hi);
                    }
                    if !bare {
                        for row in [a.min(b), a.max(b)] {
                            file.put(&key(1, row), &[value]).unwrap();
                            model.insert(key(1, row), value);
                            if a == b {
                                break;
                            }
                        }
                    }
                    file.finish().unwrap();
                    family.ingest(&[path], &IngestOptions::new().move_files(true)).unwrap();
                }
                26..=28 => db.flush().unwrap(),
                29 => db.default_family().compact_range(&lo..=&hi).unwrap(),
                30 if snapshots.len() < 2 => snapshots.push((db.snapshot(), model.clone())),
                31 => drop(snapshots.pop()),
                32 if below(6) == 0 => {
                    snapshots.clear();
                    drop(db);
                    db = Db::open("db", options.clone()).unwrap();
                }
                _ => (0..below(6)).for_each(|_| _ = db.run_one_job().unwrap()),
            }
            for row in [a, a.saturating_sub(1), a + 1, b] {
                let found = db.get(key(1, row)).unwrap().map(|v| v[0]);
                assert_eq!(found, model.get(&key(1, row)).copied(), "seed {seed}, step {step}, row {row}");
            }
        }
        run_jobs(&db);
        for (snapshot, model) in snapshots.iter().map(|(s, m)| (Some(s), m)).chain([(None, &model)]) {
            let range = kingtide::ReadOptions::new().snapshot(snapshot);
            let mut it = db.default_family().cursor_with(range).unwrap();
            it.seek_to_last();
            let mut found = BTreeMap::new();
            while it.valid() {
                found.insert(it.key().to_vec(), it.value().unwrap()[0]);
                it.prev();
            }
            it.status().unwrap();
            assert!(found == *model, "seed {seed}: {} of {} keys", found.len(), model.len());
        }
        drop((snapshots, db));
        assert!(verify("db", &options).unwrap().is_clean(), "seed {seed}");
    }
}

/// What one live value of each key takes, in tables, value logs and the blocks around them.
fn live_bytes(db: &Db) -> u64 {
    let entries = db.iter().map(Result::unwrap);
    entries.map(|e| (e.key.len() + e.value.len() + 16) as u64).sum()
}

/// A requested compaction gives back what overwritten values took, in tables and in value logs, also when it is
/// less than what would be compacted by itself.
#[test]
fn a_compaction_on_request_leaves_little_but_what_is_live() {
    for (length, share) in [(100, 4), (100, 1), (2000, 4), (2000, 8), (2000, 1)] {
        let fs = MemFs::shared();
        let db = Db::open("db", options(&fs)).unwrap();
        let write = |step: usize, round: u8| {
            for row in (0..4000u32).step_by(step) {
                db.put(key(1, row), vec![round; length]).unwrap();
                while db.run_one_job().unwrap() {}
            }
        };
        write(1, 1);
        write(share, 2);
        run_jobs(&db);
        let (before, live) = (disk(&db), live_bytes(&db));
        db.compact().unwrap();
        run_jobs(&db);
        let after = disk(&db);
        println!(
            "values of {length} bytes, every {share}th written again: {live} live, {before} before, {after} after"
        );
        assert!(after * 100 <= live * 107, "{length} bytes, every {share}th: {after} bytes for {live}");
        db.compact().unwrap();
        assert_eq!(disk(&db), after, "there is nothing left to do");
        assert!(db.verify().unwrap().is_clean());
    }
}

/// Versions that a snapshot sees stay, and the compaction ends nevertheless.
#[test]
fn a_compaction_on_request_keeps_what_snapshots_see() {
    let fs = MemFs::shared();
    let db = Db::open("db", options(&fs)).unwrap();
    fill(&db, 1, 3000);
    let (snapshot, before) = (db.snapshot(), disk(&db));
    for row in (0..3000).step_by(5) {
        db.put(key(1, row), vec![9; 2000]).unwrap();
    }
    db.compact().unwrap();
    run_jobs(&db);
    assert!(disk(&db) > before);
    assert_eq!(snapshot.of(db.default_family()).get(key(1, 0)).unwrap().unwrap().len(), 1000);
    let held = disk(&db);
    drop(snapshot);
    db.compact().unwrap();
    run_jobs(&db);
    assert!(disk(&db) < held);
}

/// Lives of many lengths: a table is rewritten now and then while its entries expire, and not for each that does.
#[test]
fn a_table_is_not_rewritten_for_each_entry_that_expires() {
    const LIVES: u64 = 2000;
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.clock = Some(clock.clone());
    let db = Db::open("db", options).unwrap();
    for i in 1..=LIVES {
        db.put_ttl(i.to_be_bytes(), [7; 100], Duration::from_secs(i)).unwrap();
    }
    db.flush().unwrap();
    let jobs = || while db.run_one_job().unwrap() {};
    jobs();
    let compactions = || db.stats().get("compactions").unwrap();
    let before = compactions();
    for _ in 0..LIVES * 2 {
        clock.advance(Duration::from_secs(1));
        jobs();
    }
    let rewrites = compactions() - before;
    assert!((5..60).contains(&rewrites), "{rewrites} compactions for {LIVES} entries that expired");
    let tables = db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.runs).sum::<usize>();
    assert_eq!((tables, db.iter().count()), (0, 0), "all of it is gone");
}

/// The same holds for the output of a compaction: entries that live for half an hour are rewritten every few minutes.
#[test]
fn a_merged_table_is_not_rewritten_for_each_entry_that_expires_either() {
    const LIFE: u64 = 2000;
    let clock = ManualClock::at_unix_ms(1_800_000_000_000);
    let mut options = Options::new().fs(MemFs::shared()).manual_jobs(true);
    options.clock = Some(clock.clone());
    let db = Db::open("db", options).unwrap();
    let compactions = || db.stats().get("compactions").unwrap();
    let jobs = || while db.run_one_job().unwrap() {};
    for i in 0..LIFE {
        db.put_ttl(i.to_be_bytes(), [7; 100], Duration::from_secs(LIFE)).unwrap();
        clock.advance(Duration::from_secs(1));
        if (i + 1) % 200 == 0 {
            db.flush().unwrap();
        }
    }
    db.compact().unwrap();
    jobs();
    let before = compactions();
    for _ in 0..LIFE * 2 {
        clock.advance(Duration::from_secs(1));
        jobs();
    }
    let rewrites = compactions() - before;
    assert!((3..12).contains(&rewrites), "{rewrites} compactions for {LIFE} entries that expired");
    let tables = db.stats().families.iter().flat_map(|f| &f.levels).map(|l| l.runs).sum::<usize>();
    assert_eq!((tables, db.iter().count()), (0, 0), "all of it is gone");
}
