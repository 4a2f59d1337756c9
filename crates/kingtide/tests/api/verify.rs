//! Verification: a healthy database is clean, whatever was done to it; every kind of damage is found, in the right file;
//! and nothing on disk is changed by looking.
//!
//! `KINGTIDE_FULL=1` damages many more places.

use kingtide::vfs::{Fault, FaultFs, Fs, MemFs, Op as FsOp, OpenMode, Rule};
use kingtide::{
    ColumnFamily, Db, ErrorKind, FamilyOptions, Isolation, Options, Problem, ProblemKind, Severity, VerifyReport,
    WriteBatch,
};
use kingtide_base::hash::mix64;
use kingtide_base::rng::{Rng, entropy};
use kingtide_testkit::{RaiseOnDrop, full};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DIR: &str = "db";

/// The same in every short run, new in every full one; printed, so that a failure can be repeated with `KINGTIDE_SEED`.
fn seed(test: &str) -> u64 {
    let given = kingtide_testkit::number("KINGTIDE_SEED");
    let seed = given.unwrap_or_else(|| if full() { entropy() } else { 20_261_121 });
    println!("{test}: KINGTIDE_SEED={seed}");
    seed
}

fn options(fs: &MemFs) -> Options {
    let mut o = Options::new().fs(Arc::new(fs.clone())).manual_jobs(true);
    o.db.wal_segment_size = 64 << 10;
    o.db.block_cache_size = 1 << 20;
    o.family.block_size = 1024;
    o.family.value_threshold = 200;
    o
}

type Contents = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// All that a database answers; an error where a part of it cannot be read.
fn contents(fs: &MemFs) -> kingtide::Result<Contents> {
    let db = Db::open(DIR, options(fs))?;
    let mut all = Contents::new();
    for name in db.families() {
        let family = db.family(&name)?;
        let mut it = family.cursor(..)?;
        it.seek_to_first();
        while it.valid() {
            let value = it.value()?.to_vec();
            assert_eq!(family.get(it.key())?.as_deref(), Some(&value[..]));
            all.entry(name.clone()).or_default().insert(it.key().to_vec(), value);
            it.next();
        }
        it.status()?;
    }
    Ok(all)
}

fn value(i: u64) -> Vec<u8> {
    let len = if i.is_multiple_of(5) { 200 + i % 400 } else { 20 + i % 40 };
    (0..len).map(|at| (mix64(i) >> (at % 8 * 8)) as u8 ^ at as u8).collect()
}

fn random_work(db: &Db, families: &[ColumnFamily], rng: &mut Rng, steps: u64) {
    let key = |rng: &mut Rng| format!("key-{:05}", rng.below(400)).into_bytes();
    for _ in 0..steps {
        let family = &families[rng.below(families.len() as u64) as usize];
        match rng.below(24) {
            0 => db.flush().unwrap(),
            1 => {
                let (a, b) = (key(rng), key(rng));
                family.delete_range(a.clone().min(b.clone())..a.max(b)).unwrap();
            }
            2 => {
                family.put_ttl(key(rng), value(rng.below(1000)), Duration::from_secs(100_000)).unwrap();
            }
            3..6 => {
                family.delete(key(rng)).unwrap();
            }
            6 if rng.below(20) == 0 => db.compact().unwrap(),
            7..10 => {
                for _ in 0..rng.below(8) {
                    db.run_one_job().unwrap();
                }
            }
            10..13 => {
                let mut batch = WriteBatch::new();
                for _ in 0..rng.below(30) {
                    let family = &families[rng.below(families.len() as u64) as usize];
                    batch.put(family, &key(rng), &value(rng.below(1000))).unwrap();
                }
                db.write(batch).unwrap();
            }
            _ => {
                family.put(key(rng), value(rng.below(1000))).unwrap();
            }
        }
    }
}

fn families_of(db: &Db, fs: &MemFs) -> Vec<ColumnFamily> {
    let make = |name: &str| match db.family(name) {
        Ok(f) => f,
        Err(_) => db.create_family(name, options(fs).family).unwrap(),
    };
    vec![db.default_family().clone(), make("second"), make("third")]
}

fn prepare(db: &Db, families: &[ColumnFamily], xid: &[u8], key: &[u8]) {
    let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
    txn.put(&families[0], key, b"in doubt").unwrap();
    txn.put(&families[1], key, &value(5)).unwrap();
    txn.prepare(xid).unwrap();
}

/// A database with everything in it, killed or closed.
fn sample(rng: &mut Rng, steps: u64, closed: bool) -> MemFs {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let families = families_of(&db, &fs);
    random_work(&db, &families, rng, steps);
    for i in 0..60 {
        // Values that a table points to, whatever the random work left.
        families[1].put(format!("late-{i:03}"), value(i)).unwrap();
    }
    families[2].put("late", value(100)).unwrap();
    db.flush().unwrap();
    prepare(&db, &families, b"first", b"p1");
    random_work(&db, &families, rng, 20);
    if closed {
        db.close().unwrap();
        return fs;
    }
    fs.kill_clone()
}

fn bytes_of(fs: &MemFs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn replace(fs: &MemFs, path: &Path, bytes: &[u8]) {
    let file = fs.open(path, OpenMode::Overwrite).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_data().unwrap();
}

fn directory(fs: &MemFs) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names.into_iter().map(|n| (n.clone(), bytes_of(fs, &Path::new(DIR).join(n)))).collect()
}

fn files(fs: &MemFs, kind: &str) -> Vec<PathBuf> {
    let names = fs.list(Path::new(DIR)).unwrap();
    let named = names.iter().filter(|n| n.contains(kind) && !n.ends_with(".walfree"));
    named.map(|n| Path::new(DIR).join(n)).collect()
}

fn verified(fs: &MemFs) -> VerifyReport {
    kingtide::verify(DIR, &options(fs)).unwrap()
}

fn about<'r>(report: &'r VerifyReport, path: &Path) -> Vec<&'r Problem> {
    report.problems.iter().filter(|p| p.path.as_deref() == Some(path)).collect()
}

fn show(report: &VerifyReport) -> String {
    report.problems.iter().map(|p| format!("{p}\n")).collect()
}

#[test]
fn a_healthy_database_is_clean_and_stays_untouched() {
    let mut rng = Rng::new(seed("healthy"));
    for round in 0..if full() { 40 } else { 6 } {
        let fs = sample(&mut rng, 100 + round * 60, round % 2 == 0);
        let before = directory(&fs);
        let report = verified(&fs);
        assert!(report.is_clean() && report.problems.is_empty(), "round {round}:\n{}", show(&report));
        assert_eq!(directory(&fs), before);
        let c = report.counts;
        assert!(c.families == 3 && c.files > 3 && c.blocks > 0 && c.entries > 0 && c.values > 0, "{c:?}");
        assert!(c.prepared == 1 && c.log_records > 0 && c.bytes > 0, "{c:?}");
    }
}

#[test]
fn an_open_database_is_verified_while_it_is_written() {
    let mut rng = Rng::new(seed("online"));
    let fs = MemFs::new();
    let mut o = options(&fs);
    o.manual_jobs = false;
    o.family.memtable_size = 64 << 10;
    let db = Db::open(DIR, o).unwrap();
    let families = families_of(&db, &fs);
    prepare(&db, &families, b"first", b"p1");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&stop);
        for t in 0..2 {
            let (db, families, stop) = (&db, &families, &stop);
            let seed = rng.next_u64();
            s.spawn(move || {
                let mut rng = Rng::new(seed + t);
                while !stop.load(Ordering::Relaxed) {
                    random_work(db, families, &mut rng, 50);
                }
            });
        }
        for _ in 0..if full() { 100 } else { 12 } {
            let report = db.verify().unwrap();
            assert!(report.is_clean(), "{}", show(&report));
            assert_eq!(report.counts.families, 3);
        }
        drop(end);
    });
    assert!(db.verify().unwrap().counts.log_records > 0);
    assert_eq!(kingtide::verify(DIR, &options(&fs)).unwrap_err().kind(), ErrorKind::Locked);
    db.close().unwrap();
    assert_eq!(db.verify().unwrap_err().kind(), ErrorKind::Closed);
    assert!(verified(&fs).is_clean(), "{}", show(&verified(&fs)));
}

#[test]
fn no_process_opens_a_database_that_is_being_verified_but_others_verify_it() {
    let fs = MemFs::new();
    Db::open(DIR, options(&fs)).unwrap().put(b"tide", b"high").unwrap();
    let mut times = 0;
    let report = kingtide::verify_with(DIR, &options(&fs), &mut |_| {
        times += 1;
        let e = Db::open(DIR, options(&fs)).unwrap_err();
        assert!(e.kind() == ErrorKind::Locked && e.message().contains("verifying"), "{e}");
        assert!(verified(&fs).is_clean());
        assert_eq!(Db::open_read_only(DIR, options(&fs)).unwrap().get(b"tide").unwrap().as_deref(), Some(&b"high"[..]));
        true
    });
    assert!(report.unwrap().is_clean() && times > 0);
    Db::open(DIR, options(&fs)).unwrap();
}

/// A change that the disk refused may be in the manifest nevertheless, which is no damage: the next change writes it anew.
#[test]
fn a_change_that_failed_is_no_damage() {
    let disk = MemFs::new();
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let db = Db::open(DIR, options(&disk).fs(Arc::new(faults.clone()))).unwrap();
    db.create_family("tides", FamilyOptions::new()).unwrap();
    faults.add(Rule::new(FsOp::Sync, Fault::Eio).path("MANIFEST"));
    assert_eq!(db.rename_family("tides", "waves").unwrap_err().kind(), ErrorKind::Io);
    let report = db.verify().unwrap();
    assert!(report.is_clean(), "{}", show(&report));
    db.rename_family("tides", "currents").unwrap();
    let report = db.verify().unwrap();
    assert!(report.is_clean(), "{}", show(&report));
    assert_eq!(db.families(), ["currents", "default"]);
}

/// What is given up of the log while it is verified may have held the end of a transaction, whose name another one has now.
#[test]
fn a_log_that_is_given_up_meanwhile_is_no_damage() {
    let fs = MemFs::new();
    let mut options = options(&fs);
    options.db.wal_segment_size = 64 << 10;
    options.family.memtable_size = 64 << 20;
    let db = Db::open(DIR, options).unwrap();
    let prepare = |key: &[u8]| {
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), key, b"in doubt").unwrap();
        txn.prepare(b"xid").unwrap();
    };
    prepare(b"first");
    for i in 0..1700_u32 {
        db.put(i.to_be_bytes(), vec![7; 1000]).unwrap();
        if i == 1500 {
            db.rollback_prepared(b"xid").unwrap();
        }
    }
    prepare(b"second");
    let mut flushed = false;
    let report = db.verify_with(&mut |progress| {
        if progress.bytes > 1 << 20 && !flushed {
            flushed = true;
            db.flush().unwrap();
        }
        true
    });
    let report = report.unwrap();
    assert!(flushed && report.is_clean(), "{}", show(&report));
    assert!((1000..1500).contains(&report.counts.log_records), "nothing was given up: {:?}", report.counts);
}

#[test]
fn damage_under_an_open_database_is_found_past_its_caches() {
    let fs = sample(&mut Rng::new(3), 100, true);
    let db = Db::open(DIR, options(&fs)).unwrap();
    let path = files(&fs, ".klog")[0].clone();
    assert!(db.verify().unwrap().is_clean());
    let file = fs.open(&path, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 20).unwrap();
    file.write_at(&[byte[0] ^ 1], 20).unwrap();
    let report = db.verify().unwrap();
    let [problem] = &about(&report, &path)[..] else { panic!("{}", show(&report)) };
    assert_eq!((problem.kind, problem.offset), (ProblemKind::Block, Some(0)));
    assert!(problem.keys.is_some() && problem.family.is_some() && report.is_damaged());
}

#[test]
fn progress_is_told_and_cancels() {
    let fs = sample(&mut Rng::new(4), 100, true);
    let mut told = Vec::new();
    kingtide::verify_with(DIR, &options(&fs), &mut |p| {
        told.push(p);
        true
    })
    .unwrap();
    assert!(told.windows(2).all(|w| w[0].bytes <= w[1].bytes));
    assert!(told.last().is_some_and(|p| p.fraction == 1.0 && p.bytes == p.total_bytes && p.bytes > 0));
    let e = kingtide::verify_with(DIR, &options(&fs), &mut |_| false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    fs.create_dir_all(Path::new("empty")).unwrap();
    assert_eq!(kingtide::verify("empty", &options(&fs)).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Flips bits of every kind of file. What is not reported must not change anything that is read.
fn flips(closed: bool) {
    let mut rng = Rng::new(seed("flips"));
    let fs = sample(&mut rng, 150, closed);
    let expected = contents(&fs.kill_clone()).unwrap();
    let per_kind = if full() { 20_000 } else { 400 };
    for kind in [".klog", ".vlog", ".wal", "MANIFEST", "CURRENT"] {
        let files = files(&fs, kind);
        assert!(!files.is_empty(), "no {kind}");
        let (mut reported, mut silent) = (0, 0);
        for _ in 0..per_kind {
            let path = &files[rng.below(files.len() as u64) as usize];
            let mut bytes = bytes_of(&fs, path);
            let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            let at = rng.below(if kind == ".wal" { written.max(64) } else { bytes.len() } as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
            let damaged = fs.kill_clone();
            replace(&damaged, path, &bytes);
            let what = format!("closed {closed}: {} with a bit of byte {at} flipped", path.display());
            let before = directory(&damaged);
            let report = verified(&damaged);
            assert!(directory(&damaged) == before, "{what}: verification changed something");
            if !report.problems.is_empty() {
                reported += 1;
                assert!(!about(&report, path).is_empty(), "{what}:\n{}", show(&report));
                continue;
            }
            assert_eq!(kind, ".wal", "{what}: not reported");
            silent += 1;
            // What a power cut may do to the last record, which nothing proves to have been there: docs/format/wal.md.
            let read = contents(&damaged).unwrap_or_else(|e| panic!("{what}: clean, but {e}"));
            let last_record = !closed && read != expected;
            assert!(!last_record || written - at < 64 + 30 * 640, "{what}: clean, but reads otherwise");
            assert!(closed || last_record || read == expected, "{what}");
        }
        println!("closed {closed}, {kind}: {reported} flips reported, {silent} without effect");
        assert!(reported > 0);
    }
}

#[test]
fn flipped_bits_of_a_closed_database_are_found() {
    flips(true);
}

#[test]
fn flipped_bits_of_a_killed_database_are_found() {
    flips(false);
}

#[test]
fn cut_missing_exchanged_and_orphaned_files_are_found() {
    let mut rng = Rng::new(seed("files"));
    for closed in [true, false] {
        let fs = sample(&mut rng, 150, closed);
        for kind in [".klog", ".vlog", "MANIFEST", "CURRENT"] {
            for path in files(&fs, kind) {
                let copy = fs.kill_clone();
                copy.remove(&path).unwrap();
                let report = verified(&copy);
                assert!(report.is_damaged() && !about(&report, &path).is_empty(), "{path:?}:\n{}", show(&report));
                let bytes = bytes_of(&fs, &path);
                for _ in 0..if full() { 200 } else { 8 } {
                    let len = rng.below(bytes.len() as u64) as usize;
                    let copy = fs.kill_clone();
                    replace(&copy, &path, &bytes[..len]);
                    let report = verified(&copy);
                    // A manifest that was cut between two records is whole: only what it names shows it.
                    let told = !about(&report, &path).is_empty() || (kind == "MANIFEST" && !report.is_clean());
                    assert!(told, "{path:?} cut to {len}:\n{}", show(&report));
                }
            }
        }
        for (a, b) in [(".klog", ".klog"), (".vlog", ".vlog"), (".klog", ".vlog")] {
            let (a, b) = (files(&fs, a)[0].clone(), files(&fs, b).last().unwrap().clone());
            if a == b {
                continue;
            }
            let (of_a, of_b) = (bytes_of(&fs, &a), bytes_of(&fs, &b));
            let copy = fs.kill_clone();
            replace(&copy, &a, &of_b);
            replace(&copy, &b, &of_a);
            let report = verified(&copy);
            assert!(!about(&report, &a).is_empty() && !about(&report, &b).is_empty(), "{}", show(&report));
        }
        for name in ["09999999.klog", "09999999.vlog", "something.tmp", "MANIFEST-999999"] {
            let copy = fs.kill_clone();
            let path = Path::new(DIR).join(name);
            replace(&copy, &path, &bytes_of(&fs, &files(&fs, ".klog")[0]));
            let report = verified(&copy);
            let [problem] = &report.problems[..] else { panic!("{name}:\n{}", show(&report)) };
            assert_eq!((problem.kind, problem.severity), (ProblemKind::Orphan, Severity::Warning), "{name}");
            assert_eq!(problem.path.as_deref(), Some(&*path));
        }
    }
}

/// At every point a creation may be killed. What is left is no damage: an open begins anew, or goes on.
#[test]
fn a_creation_that_was_cut_short_is_no_damage() {
    let fs = MemFs::new();
    let cuts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = cuts.clone();
    fs.on_write(Some(Box::new(move |b| seen.lock().unwrap().push(b.kill_clone()))));
    Db::open(DIR, options(&fs)).unwrap();
    fs.on_write(None);
    let (mut anew, mut whole, mut rng) = (0, 0, Rng::new(1));
    let cuts = std::mem::take(&mut *cuts.lock().unwrap());
    for (i, cut) in cuts.iter().enumerate() {
        for model in [None].into_iter().chain(kingtide::vfs::Survival::ALL.map(Some)) {
            let left = model.map_or_else(|| cut.kill_clone(), |m| cut.crash_clone(m, &mut rng));
            let what = format!("write {i}, {model:?}: {:?}", left.list(Path::new(DIR)));
            match kingtide::verify(DIR, &options(&left)) {
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{what}: {e}"),
                Ok(report) => {
                    let begun_anew = report.problems.iter().any(|p| p.message.contains("starts it again"));
                    *(if begun_anew { &mut anew } else { &mut whole }) += 1;
                    assert!(
                        !report.is_damaged() && (report.is_clean() || !begun_anew),
                        "{what}: {:?}",
                        report.problems
                    );
                }
            }
            assert!(contents(&left).unwrap().is_empty(), "{what}");
            assert!(kingtide::verify(DIR, &options(&left)).unwrap().is_clean(), "{what}");
        }
    }
    println!("{} cuts: {anew} begun anew, {whole} went on", cuts.len());
    assert!(anew > 5 && whole > 0);
    // The same files beside a log are those of a database that lost its CURRENT.
    let db = Db::open(DIR, options(&fs)).unwrap();
    db.put(b"k", b"v").unwrap();
    drop(db);
    fs.remove(&Path::new(DIR).join("CURRENT")).unwrap();
    assert!(kingtide::verify(DIR, &options(&fs)).unwrap().is_damaged());
}
