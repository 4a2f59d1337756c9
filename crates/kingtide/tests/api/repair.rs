//! Repair: of a damaged database everything that can be read is kept, nothing is made up, and the report covers what is
//! missing or may be out of date. The damaged database stays as it is.

use kingtide::vfs::{Boundary, Fault, FaultFs, Fs, MemFs, Op, OpenMode, Rule, WriteOp};
use kingtide::{
    Clock, ColumnFamily, Compression, Db, ErrorKind, FamilyOptions, IngestOptions, Isolation, KeyGap, LockMode,
    Options, RepairOptions, RepairReport, SortedFileWriter, TransactionOptions, WriteBatch, WriteOptions,
};
use kingtide_base::KeyOrder;
use kingtide_base::checksum::block_crc;
use kingtide_base::hash::mix64;
use kingtide_base::rng::{Rng, entropy};
use kingtide_base::stats::Stats;
use kingtide_mem::cache::BlockCache;
use kingtide_table::{ReadScratch, Table, TableId};
use kingtide_testkit::full;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DIR: &str = "db";
const INTO: &str = "repaired";
const FAMILIES: [&str; 3] = ["default", "second", "third"];

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
    o.family.block_size = 512;
    o.family.value_threshold = 200;
    o
}

/// A database and what it must answer.
struct Sample {
    fs: MemFs,
    data: BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// All values that a key ever had.
    ever: HashSet<(String, Vec<u8>, Vec<u8>)>,
    /// The last sequence number.
    last: u64,
}

fn value(i: u64) -> Vec<u8> {
    let len = if i.is_multiple_of(5) { 200 + i % 400 } else { 20 + i % 40 };
    (0..len).map(|at| (mix64(i) >> (at % 8 * 8)) as u8 ^ at as u8).collect()
}

impl Sample {
    fn new(rng: &mut Rng, steps: u64, closed: bool) -> Sample {
        let fs = MemFs::new();
        let db = Db::open(DIR, options(&fs)).unwrap();
        for name in &FAMILIES[1..] {
            db.create_family(name, options(&fs).family).unwrap();
        }
        let families: Vec<ColumnFamily> = FAMILIES.iter().map(|n| db.family(n).unwrap()).collect();
        let mut s = Sample { fs: fs.clone(), data: BTreeMap::new(), ever: HashSet::new(), last: 0 };
        FAMILIES.iter().for_each(|n| _ = s.data.insert((*n).to_owned(), BTreeMap::new()));
        for step in 0..steps {
            s.step(&db, &families[rng.below(3) as usize], rng, step);
        }
        let mut txn = db.begin(Isolation::ReadCommitted).unwrap();
        txn.put(&families[1], b"prepared", &value(10)).unwrap();
        txn.prepare(b"in doubt").unwrap();
        drop(txn);
        s.last = db.latest_sequence();
        if closed {
            db.close().unwrap()
        } else {
            s.fs = fs.kill_clone()
        }
        s
    }

    fn step(&mut self, db: &Db, family: &ColumnFamily, rng: &mut Rng, step: u64) {
        let name = family.name();
        let key = |rng: &mut Rng| format!("key-{:05}", rng.below(300)).into_bytes();
        let data = self.data.get_mut(&name).unwrap();
        match rng.below(31) {
            30 => {
                let (key, value) = (key(rng), value(step * 20));
                let path = format!("sorted-{step}");
                let mut file = SortedFileWriter::create(&path, family).unwrap();
                let behind = [&key[..], b"~"].concat();
                file.delete_range(&key..&behind).unwrap();
                file.put(&key, &value).unwrap();
                file.finish().unwrap();
                family.ingest(&[path], &IngestOptions::new().move_files(true)).unwrap();
                self.ever.insert((name.clone(), key.clone(), value.clone()));
                data.insert(key, value);
            }
            0 => db.flush().unwrap(),
            1 => {
                let (a, b) = (key(rng), key(rng));
                let (a, b) = (a.clone().min(b.clone()), a.max(b));
                family.delete_range(&a..&b).unwrap();
                data.retain(|k, _| *k < a || *k >= b);
            }
            2..6 => {
                let key = key(rng);
                family.delete(&key).unwrap();
                data.remove(&key);
            }
            6..9 => (0..rng.below(8)).for_each(|_| _ = db.run_one_job().unwrap()),
            _ => {
                let mut batch = WriteBatch::new();
                for i in 0..1 + rng.below(12) {
                    let (key, value) = (key(rng), value(step * 20 + i));
                    match rng.below(8) {
                        0 => batch.put_ttl(family, &key, &value, Duration::from_secs(1_000_000)).unwrap(),
                        _ => batch.put(family, &key, &value).unwrap(),
                    }
                    self.ever.insert((name.clone(), key.clone(), value.clone()));
                    data.insert(key, value);
                }
                db.write(batch).unwrap();
            }
        }
    }

    /// Compares what the repaired database holds with what it should, as far as the report does not excuse it. Returns
    /// the number of keys that are missing or out of date.
    fn check(&self, fs: &MemFs, report: &RepairReport, what: &str) -> u64 {
        assert!(report.verify.is_clean(), "{what}: {:?}", report.verify.problems);
        let db = Db::open(INTO, options(fs)).unwrap();
        let mut wrong = 0;
        for (name, data) in &self.data {
            let Some(part) = report.families.iter().find(|f| f.name == *name) else {
                assert!(
                    report.notes.iter().any(|n| n.contains("manifest is incomplete")),
                    "{what}: '{name}' is lost silently"
                );
                wrong += data.len() as u64;
                continue;
            };
            let mut found = read_all(&db.family(name).unwrap());
            assert_eq!(found.len() as u64, part.kept, "{what}: '{name}'");
            for (key, value) in data {
                match found.remove(key) {
                    Some(v) if v == *value => continue,
                    Some(v) => {
                        assert!(self.ever.contains(&(name.clone(), key.clone(), v)), "{what}: a value made up");
                        assert!(within(&part.stale, key), "{what}: '{name}' {} is stale", key.escape_ascii());
                    }
                    None => {
                        let told = within(&part.lost, key) || within(&part.stale, key) || part.lost_keys.contains(key);
                        assert!(told, "{what}: '{name}' {} is lost silently: {report:?}", key.escape_ascii());
                    }
                }
                wrong += 1;
            }
            for (key, v) in found {
                assert!(within(&part.stale, &key), "{what}: '{name}' {} came back", key.escape_ascii());
                assert!(self.ever.contains(&(name.clone(), key.clone(), v)), "{what}: a value made up");
                wrong += 1;
            }
        }
        wrong
    }
}

fn read_all(family: &ColumnFamily) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut it = family.cursor(..).unwrap();
    it.seek_to_first();
    while it.valid() {
        found.insert(it.key().to_vec(), it.value().unwrap().to_vec());
        it.next();
    }
    it.status().unwrap();
    found
}

fn within(gaps: &[KeyGap], key: &[u8]) -> bool {
    gaps.iter().any(|g| g.lo.as_deref().is_none_or(|lo| lo <= key) && g.hi.as_deref().is_none_or(|hi| key <= hi))
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

fn files(fs: &MemFs, kind: &str) -> Vec<PathBuf> {
    let names = fs.list(Path::new(DIR)).unwrap();
    let named = names.iter().filter(|n| n.contains(kind) && !n.ends_with(".walfree"));
    named.map(|n| Path::new(DIR).join(n)).collect()
}

fn directory(fs: &MemFs) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).unwrap();
    names.into_iter().map(|n| (n.clone(), bytes_of(fs, &Path::new(DIR).join(n)))).collect()
}

fn repaired(fs: &MemFs) -> RepairReport {
    kingtide::repair(DIR, INTO, &options(fs)).unwrap()
}

#[test]
fn a_healthy_database_is_copied() {
    let mut rng = Rng::new(seed("healthy"));
    for round in 0..if full() { 40 } else { 6 } {
        let s = Sample::new(&mut rng, 60 + round * 40, round % 2 == 0);
        let before = directory(&s.fs);
        let report = repaired(&s.fs);
        assert!(report.is_complete() && report.unreadable.is_empty() && report.notes.is_empty(), "{report:?}");
        assert_eq!(s.check(&s.fs, &report, "healthy"), 0);
        assert!(directory(&s.fs) == before, "repair changed the damaged database");
        assert_eq!(report.prepared, [b"in doubt"]);
        assert!(report.last_sequence >= s.last && report.leftovers.is_empty(), "{report:?}");
        let db = Db::open(INTO, options(&s.fs)).unwrap();
        db.commit_prepared(b"in doubt").unwrap();
        assert_eq!(db.family("second").unwrap().get(b"prepared").unwrap().as_deref(), Some(&value(10)[..]));
        drop(db);
        let again = kingtide::repair(DIR, INTO, &options(&s.fs)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
    }
    let fs = MemFs::new();
    fs.create_dir_all(Path::new(DIR)).unwrap();
    assert_eq!(kingtide::repair(DIR, INTO, &options(&fs)).unwrap_err().kind(), ErrorKind::NotFound);
    let db = Db::open("open", options(&fs)).unwrap();
    assert_eq!(kingtide::repair("open", INTO, &options(&fs)).unwrap_err().kind(), ErrorKind::Locked);
    drop(db);
    let how = RepairOptions::default();
    let e = kingtide::repair_with("open", INTO, &options(&fs), how, &mut |_| false);
    assert!(e.is_ok(), "too little to be reported: {e:?}");
}

#[test]
fn random_damage_loses_what_the_report_says_and_no_more() {
    let mut rng = Rng::new(seed("damage"));
    let mut sums = BTreeMap::new();
    for round in 0..if full() { 400 } else { 14 } {
        let s = Sample::new(&mut rng, 150, round % 2 == 0);
        for kind in [".klog", ".vlog", ".wal", "MANIFEST", "CURRENT"] {
            for how in ["flip", "flips", "cut", "remove"] {
                let fs = s.fs.kill_clone();
                let all = files(&fs, kind);
                if all.is_empty() {
                    continue;
                }
                let path = &all[rng.below(all.len() as u64) as usize];
                let mut bytes = bytes_of(&fs, path);
                let written = bytes.iter().rposition(|b| *b != 0).map_or(1, |at| at + 1) as u64;
                for _ in 0..if how == "flip" { 1 } else { 4 } {
                    bytes[rng.below(written) as usize] ^= 1 << rng.below(8);
                    if how == "cut" {
                        bytes = bytes_of(&fs, path)[..rng.below(written) as usize].to_vec();
                        break;
                    }
                }
                replace(&fs, path, &bytes);
                if how == "remove" {
                    fs.remove(path).unwrap();
                }
                let what = format!("round {round}: {} {how}", path.display());
                let before = directory(&fs);
                let report = repaired(&fs);
                assert!(directory(&fs) == before, "{what}: repair changed the damaged database");
                // The end of a log that was not closed looks like a commit that was never finished, and a spare segment
                // like the missing last one: docs/format/wal.md.
                let torn = kind == ".wal" && how != "cut" && round % 2 == 1 && report.is_complete();
                let wrong = if torn { 0 } else { s.check(&fs, &report, &what) };
                assert!(torn || report.last_sequence >= s.last, "{what}: numbers go back: {report:?}");
                if kind != "MANIFEST" && kind != "CURRENT" {
                    let gaps = report.families.iter().flat_map(|f| f.lost.iter().chain(&f.stale));
                    let mut told = gaps.map(|g| g.path.as_ref()).chain(report.log_gaps.iter().map(|g| Some(&g.path)));
                    // A missing segment is noticed in the one that follows it.
                    let own = |p: Option<&PathBuf>| p == Some(path) || (kind == ".wal" && p.is_some());
                    assert!(told.all(own), "{what}: loss elsewhere: {report:?}");
                    assert!(report.notes.is_empty() && report.left_out.is_empty(), "{what}: {:?}", report.notes);
                }
                *sums.entry((kind, how)).or_insert(0) += wrong;
            }
        }
    }
    println!("keys missing or out of date: {sums:?}");
}

#[test]
fn one_damaged_block_costs_its_keys_and_no_others() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..500u64 {
        db.put(format!("key-{i:05}"), value(1 + i * 5)).unwrap();
    }
    db.close().unwrap();
    let path = files(&fs, ".klog")[0].clone();
    let mut bytes = bytes_of(&fs, &path);
    bytes[3000] ^= 4;
    // And without index and footer.
    for cut in [0, 40] {
        let copy = fs.kill_clone();
        replace(&copy, &path, &bytes[..bytes.len() - cut]);
        let report = repaired(&copy);
        let [family] = &report.families[..] else { panic!("{report:?}") };
        assert!(family.lost.len() == 1 && report.unreadable.iter().any(|u| u.path == path), "{report:?}");
        let db = Db::open(INTO, options(&copy)).unwrap();
        let found = read_all(db.default_family());
        assert_eq!(found.len() as u64, family.kept);
        let missing = (0..500).map(|i| format!("key-{i:05}").into_bytes()).filter(|k| !found.contains_key(k));
        let missing: Vec<_> = missing.collect();
        assert!(missing.iter().all(|k| within(&family.lost, k)));
        assert!(if cut == 0 { missing.len() < 30 } else { !found.is_empty() }, "{} missing", missing.len());
    }
    // The index alone: nothing is lost.
    let copy = fs.kill_clone();
    let whole = bytes_of(&fs, &path);
    replace(&copy, &path, &whole[..whole.len() - 40]);
    let report = repaired(&copy);
    assert_eq!((report.families[0].kept, report.families[0].lost.len()), (500, 0), "{report:?}");
}

/// Blocks that are compressed with a dictionary need it: the properties have it twice, and damage costs one of the copies.
#[test]
fn damaged_properties_of_a_table_with_a_dictionary_cost_nothing() {
    let fs = MemFs::new();
    let mut with = options(&fs);
    (with.family.compression, with.family.zstd_dictionary) = (Compression::Zstd, 5000);
    let row = |i: u64| {
        let place = ["Cuxhaven", "Brest", "Saint-Malo", "Halifax"][(i * i % 7 % 4) as usize];
        format!("{{\"station\":\"{place}\",\"reading\":{},\"source\":\"gauge-{}\"}}", i * 7919 % 100_000, i % 40)
    };
    let db = Db::open(DIR, with.clone()).unwrap();
    (0..4000u64).for_each(|i| _ = db.put(format!("key-{i:05}"), row(i)).unwrap());
    db.close().unwrap();
    let path = files(&fs, ".klog")[0].clone();
    let bytes = bytes_of(&fs, &path);
    let magic = [0x37, 0xa4, 0x30, 0xec];
    let copies: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&magic)).collect();
    let [first, second] = copies[..] else { panic!("dictionaries at {copies:?}") };
    // A page of either copy, both partly, and what lies between them; the footer in addition.
    for (at, len, lost) in
        [(first, 4096, 0), (second, 4096, 0), (second - 2000, 4096, 0), (first + 90, second - first, 1)]
    {
        for cut in [0, 40] {
            let mut bytes = bytes.clone();
            bytes[at..at + len].fill(0);
            let copy = fs.kill_clone();
            replace(&copy, &path, &bytes[..bytes.len() - cut]);
            let report = repaired(&copy);
            let [family] = &report.families[..] else { panic!("{report:?}") };
            assert!(
                family.lost.len() == lost && (family.kept == 4000) == (lost == 0),
                "at {at}, {cut} cut: {report:?}"
            );
            let db = Db::open(INTO, options(&copy)).unwrap();
            let right = |i: &u64| db.get(format!("key-{i:05}")).unwrap().as_deref() == Some(row(*i).as_bytes());
            assert_eq!((0..4000).filter(right).count() as u64, family.kept);
        }
    }
}

#[test]
fn without_a_manifest_tables_are_kept_apart_unless_they_are_of_one_family() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..100u64 {
        db.put(format!("key-{i:05}"), value(i)).unwrap();
        if i % 30 == 29 {
            db.flush().unwrap();
        }
    }
    db.close().unwrap();
    for path in [files(&fs, "MANIFEST"), files(&fs, "CURRENT")].concat() {
        fs.remove(&path).unwrap();
    }
    let how = RepairOptions::new().one_family(true);
    let report = kingtide::repair_with(DIR, INTO, &options(&fs), how, &mut |_| true).unwrap();
    let kept: Vec<_> = report.families.iter().map(|f| (f.name.as_str(), f.kept)).collect();
    assert_eq!(kept, [("default", 100)]);
    let report = kingtide::repair(DIR, "apart", &options(&fs)).unwrap();
    // What the log still holds tells its family.
    let apart: Vec<_> = report.families.iter().filter(|f| f.name != "default").collect();
    assert!(apart.len() == 4 && apart.iter().all(|f| f.name.starts_with("recovered-") && !f.named), "{report:?}");
    assert_eq!(apart.iter().map(|f| f.kept).sum::<u64>(), 100);
    assert!(!report.notes.is_empty() && report.verify.is_clean());
}

/// A log of which nothing was given up yet has lost its beginning.
#[test]
fn a_missing_first_segment_is_told_by_all() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..1000u64 {
        db.put(format!("key-{i:05}"), value(1 + i * 5)).unwrap();
        db.put(format!("big-{i:05}"), [i as u8; 150]).unwrap();
    }
    let fs = fs.kill_clone();
    let path = files(&fs, ".wal")[0].clone();
    fs.remove(&path).unwrap();
    let report = kingtide::verify(DIR, &options(&fs)).unwrap();
    assert!(report.problems.iter().any(|p| p.path.as_deref() == Some(&*path)), "{report:?}");
    let report = repaired(&fs);
    assert!(report.log_gaps.len() == 1 && report.families[0].kept > 0, "{report:?}");
    assert_eq!(Db::open(DIR, options(&fs)).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn records_behind_a_damaged_one_are_salvaged_if_asked_for() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..50u64 {
        db.put(format!("key-{i:05}"), value(1)).unwrap();
    }
    let fs = fs.kill_clone();
    let path = files(&fs, ".wal")[0].clone();
    let mut bytes = bytes_of(&fs, &path);
    bytes[1000] ^= 1;
    replace(&fs, &path, &bytes);
    let report = repaired(&fs);
    let [gap] = &report.log_gaps[..] else { panic!("{report:?}") };
    assert_eq!((gap.to, report.families[0].kept), (Some(gap.from + 1), 49));
    let how = RepairOptions::new().salvage_past_damage(false);
    let report = kingtide::repair_with(DIR, "prefix", &options(&fs), how, &mut |_| true).unwrap();
    assert_eq!((report.log_gaps.len(), report.families[0].kept), (1, gap.from - 1));
    assert_eq!(report.log_gaps[0].to, None);
}

/// A prepared transaction holds in the new database what it held in the old one, what it only read included.
#[test]
fn a_prepared_transaction_keeps_all_its_locks() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let family = db.default_family();
    let mut txn = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true)).unwrap();
    txn.lock_range(family, b"b"..b"d", LockMode::Shared).unwrap();
    txn.get_for_update(family, b"read").unwrap();
    txn.put(family, b"written", b"value").unwrap();
    txn.prepare(b"in doubt").unwrap();
    let disk = fs.kill_clone();
    drop((txn, db));

    let report = kingtide::repair(DIR, INTO, &options(&disk)).unwrap();
    assert_eq!((report.prepared, report.notes), (vec![b"in doubt".to_vec()], vec![]));
    let db = Db::open(INTO, options(&disk)).unwrap();
    let locked = |key: &[u8]| {
        let mut batch = WriteBatch::new();
        batch.put(db.default_family(), key, b"").unwrap();
        let outcome = db.write_with(&mut batch, &WriteOptions::new().durability(None).no_wait(true));
        outcome.is_err_and(|e| e.kind() == ErrorKind::Conflict)
    };
    for (key, expected) in [(&b"a"[..], false), (b"b", true), (b"c", true), (b"d", false), (b"read", true)] {
        assert_eq!(locked(key), expected, "{}", key.escape_ascii());
    }
    assert!(locked(b"written"));
    db.rollback_prepared(b"in doubt").unwrap();
    assert!(!locked(b"b") && !locked(b"read") && !locked(b"written"));
}

/// Time goes on with every look at it.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        1_000_000 + self.0.fetch_add(1000, Ordering::Relaxed)
    }

    fn sleep(&self, _d: Duration) {}
}

/// Transactions in doubt are listed oldest first in the new database too, whatever their names.
#[test]
fn transactions_in_doubt_keep_their_order() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let xids = [b"second name".to_vec(), b"third name".to_vec(), b"first name".to_vec()];
    for xid in &xids {
        let mut txn = db.begin(Isolation::Snapshot).unwrap();
        txn.put(db.default_family(), xid, b"value").unwrap();
        txn.prepare(xid).unwrap();
    }
    let disk = fs.kill_clone();
    drop(db);

    assert_eq!(kingtide::repair(DIR, INTO, &options(&disk)).unwrap().prepared, xids);
    let listed = Db::open(INTO, options(&disk)).unwrap().recover_prepared();
    assert_eq!(listed.into_iter().map(|p| p.xid).collect::<Vec<_>>(), xids);
}

/// What a prepared transaction puts for a time is gone when it was to be gone, however long the repair takes.
#[test]
fn a_prepared_put_expires_when_it_was_to_expire() {
    let fs = MemFs::new();
    let clock = Arc::new(Ticking::default());
    let timed = |fs: &MemFs| options(fs).clock(clock.clone());
    let db = Db::open(DIR, timed(&fs)).unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    let expiry = std::time::UNIX_EPOCH + std::time::Duration::from_secs(4_000_000_000);
    txn.put_until(db.default_family(), b"key", b"value", expiry).unwrap();
    txn.prepare(b"in doubt").unwrap();
    let disk = fs.kill_clone();
    drop((txn, db));
    kingtide::repair(DIR, INTO, &timed(&disk)).unwrap();
    let db = Db::open(INTO, timed(&disk)).unwrap();
    db.commit_prepared(b"in doubt").unwrap();
    let mut cursor = db.default_family().cursor(..).unwrap();
    cursor.seek_to_first();
    assert_eq!((cursor.key(), cursor.expires_at()), (&b"key"[..], Some(expiry)));
}

/// What a prepared transaction puts for good stays for good, although what its family takes today expires.
#[test]
fn a_prepared_put_that_never_expires_does_not_begin_to() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let family = db.create_family("offers", FamilyOptions::new()).unwrap();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(&family, b"key", b"value").unwrap();
    txn.prepare(b"in doubt").unwrap();
    family.set_option("ttl_ms", "60000").unwrap();
    let disk = fs.kill_clone();
    drop((txn, family, db));
    kingtide::repair(DIR, INTO, &options(&disk)).unwrap();
    let db = Db::open(INTO, options(&disk)).unwrap();
    db.commit_prepared(b"in doubt").unwrap();
    let family = db.family("offers").unwrap();
    assert!(family.options().ttl.is_some());
    let mut cursor = family.cursor(..).unwrap();
    cursor.seek_to_first();
    assert_eq!((cursor.key(), cursor.expires_at()), (&b"key"[..], None));
}

/// The number of each entry in the tables of a database.
fn numbers(fs: &MemFs, dir: &str) -> BTreeMap<Vec<u8>, u64> {
    let mut found = BTreeMap::new();
    for name in fs.list(Path::new(dir)).unwrap().iter().filter(|n| n.ends_with(".klog")) {
        let id: u64 = name.split('.').next().unwrap().parse().unwrap();
        let file = fs.open(&Path::new(dir).join(name), OpenMode::Read).unwrap();
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        let table = Table::open(file, TableId::from(id), KeyOrder::Bytewise, cache, stats).unwrap();
        let mut scratch = ReadScratch::new();
        for block in 0..table.blocks() {
            table.read_block(block, &mut scratch).unwrap();
            for i in 0..scratch.entries() {
                let entry = scratch.entry(i).unwrap();
                assert!(found.insert(entry.key(scratch.bytes()).to_vec(), entry.tag.seq()).is_none());
            }
        }
    }
    found
}

/// Whatever holds a number of the old database finds it in the new one, and none is given twice.
#[test]
fn entries_keep_their_sequence_numbers() {
    for closed in [true, false] {
        let fs = MemFs::new();
        let db = Db::open(DIR, options(&fs)).unwrap();
        let mut expected = BTreeMap::new();
        let from_the_beginning = db.snapshot(); // without it a flush gives one number to several
        for i in 0..300u64 {
            let key = format!("key-{:05}", i % 200).into_bytes();
            db.put(&key, value(i)).unwrap();
            expected.insert(key, db.latest_sequence());
            if i % 70 == 69 {
                db.flush().unwrap();
            }
        }
        db.delete(b"key-00007").unwrap();
        expected.remove(&b"key-00007"[..]);
        let last = db.latest_sequence();
        if closed {
            db.close().unwrap();
        }
        drop(from_the_beginning);
        let fs = fs.kill_clone();
        let report = repaired(&fs);
        assert!(report.is_complete() && report.last_sequence == last, "{report:?}");
        assert!(numbers(&fs, INTO) == expected && expected.len() == 199);
        let db = Db::open(INTO, options(&fs)).unwrap();
        assert_eq!(db.latest_sequence(), last);
        // A stream that saw all goes on; one that did not gets an error, and so does a reader of the past.
        let mut stream = db.changes_since(last).unwrap();
        let early = db.changes_since(last - 1);
        assert!(db.snapshot_at(last - 1).is_err_and(|e| e.kind() == ErrorKind::TooOld));
        db.put(b"next", b"").unwrap();
        assert_eq!(db.latest_sequence(), last + 1);
        let record = stream.next().unwrap().unwrap();
        assert_eq!(record.last_sequence, last + 1);
        let told = early.and_then(|mut stream| stream.next());
        assert!(told.is_err_and(|e| e.kind() == ErrorKind::TooOld));
    }
}

/// A log whose end is damaged may have given numbers that nothing tells of any more.
#[test]
fn numbers_that_may_have_been_given_are_not_given_again() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..100u64 {
        db.put(format!("key-{i:05}"), value(1)).unwrap();
    }
    let last = db.latest_sequence();
    let fs = fs.kill_clone();
    let path = files(&fs, ".wal")[0].clone();
    let mut bytes = bytes_of(&fs, &path);
    bytes[3000] ^= 1;
    replace(&fs, &path, &bytes);
    let how = RepairOptions::new().salvage_past_damage(false);
    let report = kingtide::repair_with(DIR, INTO, &options(&fs), how, &mut |_| true).unwrap();
    let [gap] = &report.log_gaps[..] else { panic!("{report:?}") };
    assert!(gap.from < last && report.families[0].kept == gap.from - 1, "{report:?}");
    assert!(report.last_sequence > last && !report.is_complete());
    assert_eq!(Db::open(INTO, options(&fs)).unwrap().latest_sequence(), report.last_sequence);
}

/// What a crash leaves beside the tables of a whole manifest is no part of the database: neither loss nor data.
#[test]
fn leftovers_of_jobs_are_neither_lost_nor_kept() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let other = db.create_family("other", options(&fs).family).unwrap();
    for i in 0..300u64 {
        db.put(format!("key-{i:05}"), value(i)).unwrap();
        other.put(format!("key-{i:05}").as_bytes(), value(i)).unwrap();
    }
    db.flush().unwrap();
    let old = fs.kill_clone();
    let retired = files(&old, ".klog");
    db.delete_range(b"key-00100"..b"key-00200").unwrap();
    db.drop_family("other").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    // The manifest is rewritten, and no record of what was removed is left in it.
    (0..2000).for_each(|i| db.default_family().set_option("l0_trigger", &(4 + i % 2).to_string()).unwrap());
    for i in 300..350u64 {
        db.put(format!("key-{i:05}"), value(i)).unwrap();
    }
    let (before, last) = (fs.kill_clone(), db.latest_sequence());
    db.flush().unwrap();
    let after = fs.kill_clone();
    // Killed when tables were replaced but not yet removed, and when a flush was written, in whole or in part, but not
    // yet named by the manifest.
    let flushed: Vec<_> = files(&after, ".klog").into_iter().filter(|f| !files(&before, ".klog").contains(f)).collect();
    assert_eq!(flushed.len(), 1);
    for cut in [false, true] {
        let killed = before.kill_clone();
        let mut expected = Vec::new();
        for (from, path) in retired.iter().map(|p| (&old, p)).chain([(&after, &flushed[0])]) {
            if before.exists(path).unwrap() {
                continue;
            }
            let bytes = bytes_of(from, path);
            replace(&killed, path, &bytes[..if cut { bytes.len() / 2 } else { bytes.len() }]);
            expected.push(path.clone());
        }
        assert!(expected.len() > 1);
        let report = repaired(&killed);
        assert!(report.is_complete() && report.notes.is_empty() && report.unreadable.is_empty(), "{report:?}");
        let mut found = report.leftovers.clone();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!((report.last_sequence, report.families.len(), report.families[0].kept), (last, 1, 250));
        let db = Db::open(INTO, options(&killed)).unwrap();
        assert!(db.get(b"key-00150").unwrap().is_none() && db.get(b"key-00349").unwrap().is_some());
    }
}

/// A manifest that lost its end is told from one with leftovers beside it: what it names is gone.
#[test]
fn a_manifest_that_lost_records_is_found_out() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let fill = |from: u64| {
        (from..from + 200).for_each(|i| {
            db.put(format!("key-{i:05}"), value(i)).unwrap();
        })
    };
    fill(0);
    db.flush().unwrap();
    let manifest = files(&fs, "MANIFEST")[0].clone();
    let early = bytes_of(&fs, &manifest);
    fill(100);
    db.flush().unwrap();
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    db.close().unwrap();
    let cut = fs.kill_clone();
    replace(&cut, &manifest, &early);
    let how = RepairOptions::new().one_family(true);
    let report = kingtide::repair_with(DIR, INTO, &options(&cut), how, &mut |_| true).unwrap();
    assert!(!report.is_complete() && report.leftovers.is_empty() && !report.notes.is_empty(), "{report:?}");
    assert_eq!(report.families[0].kept, 300, "{report:?}");
}

/// Where the manifest does not tell from where on the log is needed, its beginning is no hole.
#[test]
fn a_log_whose_beginning_is_not_known_is_read_from_where_it_begins() {
    let fs = MemFs::new();
    let db = Db::open(DIR, options(&fs)).unwrap();
    for i in 0..50u64 {
        db.put(format!("key-{i:05}"), value(1)).unwrap();
    }
    let fs = fs.kill_clone();
    let wal = files(&fs, ".wal")[0].clone();
    let mut bytes = bytes_of(&fs, &wal);
    bytes[1000] ^= 1;
    replace(&fs, &wal, &bytes);
    let manifest = files(&fs, "MANIFEST")[0].clone();
    let mut bytes = bytes_of(&fs, &manifest);
    bytes[70] ^= 1;
    replace(&fs, &manifest, &bytes);
    let report = repaired(&fs);
    assert!(!report.notes.is_empty(), "the manifest is damaged: {report:?}");
    let [gap] = &report.log_gaps[..] else { panic!("{report:?}") };
    assert_eq!((gap.to, report.families[0].kept), (Some(gap.from + 1), 49));
    let how = RepairOptions::new().salvage_past_damage(false);
    let report = kingtide::repair_with(DIR, "prefix", &options(&fs), how, &mut |_| true).unwrap();
    assert_eq!((report.log_gaps.len(), report.families[0].kept), (1, gap.from - 1));
}

/// Writes until the log has this many segments. Returns how many rows there are.
fn fill_segments(fs: &MemFs, db: &Db, from: u64, segments: usize) -> u64 {
    let mut next = from;
    while files(fs, ".wal").len() < segments {
        db.put(format!("key-{next:05}"), value(next)).unwrap();
        next += 1;
    }
    next
}

fn many_segments(fs: &MemFs) -> Options {
    let mut o = options(fs);
    (o.tuning.segment_size, o.tuning.first_segment) = (Some(4096), 4096);
    o
}

/// The record of a flush is lost, and of the log segments that the flush gave up a power cut brought the oldest back: the log does
/// not begin too late, but a segment in its midst is missing. The flushed table is part of the database.
#[test]
fn a_flush_that_the_manifest_lost_is_found_out_by_a_gap_in_the_log() {
    for back in [false, true] {
        let fs = MemFs::new();
        let db = Db::open(DIR, many_segments(&fs)).unwrap();
        let manifest = files(&fs, "MANIFEST")[0].clone();
        let rows = fill_segments(&fs, &db, 0, 5);
        let early = bytes_of(&fs, &manifest);
        let oldest = files(&fs, ".wal")[0].clone();
        let released = bytes_of(&fs, &oldest);
        db.flush().unwrap();
        assert!(!fs.exists(&oldest).unwrap(), "nothing was released");
        let rows = fill_segments(&fs, &db, rows, 3);
        let cut = fs.kill_clone();
        replace(&cut, &manifest, &early);
        if back {
            replace(&cut, &oldest, &released);
        }
        let how = RepairOptions::new().one_family(true);
        let report = kingtide::repair_with(DIR, INTO, &many_segments(&cut), how, &mut |_| true).unwrap();
        assert_eq!(report.families[0].kept, rows, "{report:?}");
        assert!(!report.is_complete() && report.leftovers.is_empty(), "{report:?}");
    }
}

/// With a damaged manifest, the log's segments that were given up before are none of the log's all the same. One that a power cut
/// brought back has the record that prepared a transaction, and not that of its end.
#[test]
fn a_transaction_that_ended_is_not_in_doubt_again_when_its_segment_is_back() {
    let fs = MemFs::new();
    let db = Db::open(DIR, many_segments(&fs)).unwrap();
    let manifest = files(&fs, "MANIFEST")[0].clone();
    let mut txn = db.begin(Isolation::Snapshot).unwrap();
    txn.put(db.default_family(), b"prepared", b"1").unwrap();
    txn.prepare(b"xid").unwrap();
    let prepared = files(&fs, ".wal").last().unwrap().clone();
    let rows = fill_segments(&fs, &db, 0, 4);
    txn.commit().unwrap();
    let released = bytes_of(&fs, &prepared);
    let rows = fill_segments(&fs, &db, rows, 6);
    db.flush().unwrap();
    assert!(!fs.exists(&prepared).unwrap(), "nothing was released");
    let rows = fill_segments(&fs, &db, rows, 3);
    for n in 4..10 {
        db.default_family().set_option("l0_trigger", &n.to_string()).unwrap();
    }
    let cut = fs.kill_clone();
    replace(&cut, &prepared, &released);
    let mut bytes = bytes_of(&cut, &manifest);
    let at = bytes.iter().rposition(|b| *b != 0).unwrap() - 5;
    bytes[at] ^= 1; // of the last record, so the one of the release can be read
    replace(&cut, &manifest, &bytes);
    let report = kingtide::repair(DIR, INTO, &many_segments(&cut)).unwrap();
    assert!(!report.is_complete(), "the manifest is whole: {report:?}");
    assert_eq!((report.prepared, report.log_gaps), (vec![], vec![]));
    assert_eq!(report.families[0].kept, rows + 1);
}

/// The first record of the manifest after an open may begin with files that only the log had, and go on to remove them.
#[test]
fn files_that_one_record_adds_and_removes_are_gone() {
    let disk = MemFs::new();
    let faults = FaultFs::new(Arc::new(disk.clone()), 1);
    let db = Db::open(DIR, options(&disk).fs(Arc::new(faults.clone()))).unwrap();
    db.put(b"before", b"it").unwrap();
    db.compact().unwrap();
    let family = db.default_family();
    let mut puts = SortedFileWriter::create("puts", family).unwrap();
    puts.put(b"kept", b"a value").unwrap();
    puts.put(b"taken back", b"another").unwrap();
    puts.finish().unwrap();
    let mut deletes = SortedFileWriter::create("deletes", family).unwrap();
    deletes.delete(b"taken back").unwrap();
    deletes.finish().unwrap();
    faults.add(Rule::new(Op::Write, Fault::Eio).path("MANIFEST").sticky());
    family.ingest(&["puts", "deletes"], &IngestOptions::new()).unwrap();

    let fs = disk.kill_clone();
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let keep = cuts.clone();
    fs.on_write(Some(Box::new(move |b: &Boundary<'_>| {
        if matches!(b.op, WriteOp::Remove) {
            keep.lock().unwrap().push(b.kill_clone());
        }
    })));
    let db = Db::open(DIR, options(&fs)).unwrap();
    db.compact().unwrap();
    while db.run_one_job().unwrap() {}
    fs.on_write(None);
    let expected = read_all(db.default_family());
    assert_eq!(expected.len(), 2);
    db.close().unwrap();
    let mut cuts = std::mem::take(&mut *cuts.lock().unwrap());
    assert!(cuts.len() >= 2, "{} files were removed", cuts.len());
    cuts.push(fs);
    for (i, cut) in cuts.iter().enumerate() {
        let report = repaired(cut);
        assert!(report.unreadable.is_empty() && report.notes.is_empty(), "state {i}: {report:?}");
        assert!(report.families.iter().all(|f| f.lost.is_empty() && f.stale.is_empty()), "state {i}: {report:?}");
        let after = Db::open(INTO, options(cut)).unwrap();
        assert_eq!(read_all(after.default_family()), expected, "state {i}");
    }
}

/// The log keeps what was flushed until its segment is given up.
#[test]
fn what_a_damaged_table_had_is_read_from_the_log() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Damage {
        Gone,
        Cut,
        Block,
    }
    for damage in [Damage::Gone, Damage::Cut, Damage::Block] {
        for unlogged in [false, true] {
            let fs = MemFs::new();
            let db = Db::open(DIR, options(&fs)).unwrap();
            db.put("deleted", "long ago").unwrap();
            if unlogged {
                let mut batch = WriteBatch::new();
                batch.delete(db.default_family(), b"deleted").unwrap();
                db.write_with(&mut batch, &WriteOptions::new().durability(kingtide::Durability::None)).unwrap();
            } else {
                db.delete("deleted").unwrap();
            }
            db.flush().unwrap();
            db.compact().unwrap();
            let other = db.create_family("other", options(&fs).family).unwrap();
            (0..50u64).for_each(|i| _ = other.put(i.to_be_bytes(), value(i)).unwrap());
            (0..50u64).for_each(|i| _ = db.put(i.to_be_bytes(), value(i)).unwrap());
            db.delete(7u64.to_be_bytes()).unwrap();
            db.put(8u64.to_be_bytes(), "newer").unwrap();
            db.flush().unwrap();
            db.put("last", "in the log").unwrap();
            let expected = read_all(db.default_family());
            let before = files(&fs, "klog");
            let killed = fs.kill_clone();
            drop(db);
            let longest = before.iter().map(|p| bytes_of(&killed, p).len()).max().unwrap();
            for path in before.iter().filter(|p| bytes_of(&killed, p).len() * 2 > longest) {
                let bytes = bytes_of(&killed, path);
                match damage {
                    Damage::Gone => killed.remove(path).unwrap(),
                    Damage::Cut => replace(&killed, path, &bytes[..bytes.len() / 2]),
                    Damage::Block => {
                        let damaged = [&bytes[..100], &[bytes[100] ^ 1], &bytes[101..]].concat();
                        replace(&killed, path, &damaged);
                    }
                }
            }
            let report = repaired(&killed);
            assert!(!report.is_complete(), "{report:?}");
            let again = Db::open(INTO, options(&killed)).unwrap();
            assert_eq!(read_all(again.default_family()), expected, "{damage:?}, unlogged: {unlogged}: {report:?}");
            assert_eq!(read_all(&again.family("other").unwrap()).len(), 50);
        }
    }
}

/// A chunk whose checksum is right but which contradicts its header, at the beginning of a value that is moved in pieces.
#[test]
fn a_value_that_cannot_be_decoded_costs_its_key_and_no_other() {
    const CHUNK: usize = 14;
    let fs = MemFs::new();
    let mut compressed = options(&fs);
    compressed.family.compression = Compression::Lz4;
    let db = Db::open(DIR, compressed).unwrap();
    for key in ["a", "b", "c"] {
        db.put(key, vec![key.as_bytes()[0]; 9 << 20]).unwrap();
    }
    db.put("d", "short").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let mut damaged = 0;
    for path in files(&fs, "vlog") {
        let mut bytes = bytes_of(&fs, &path);
        let id: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let (mut at, mut values) = (24, 0);
        while at + CHUNK < bytes.len() - 48 {
            let stored_len = u32::from_le_bytes(bytes[at + 10..at + CHUNK].try_into().unwrap()) as usize;
            let end = at + CHUNK + stored_len;
            values += bytes[at + 5] & 1;
            if bytes[at + 5] & 1 == 1 && values == 2 {
                bytes[at + CHUNK] ^= 1; // the raw length, before the compressed bytes
                let sum = block_crc(&bytes[at + 4..end], id, at as u64);
                bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                damaged += 1;
            }
            at = end;
        }
        replace(&fs, &path, &bytes);
    }
    assert_eq!(damaged, 1, "the second of three values in one file");
    let report = repaired(&fs);
    let family = &report.families[0];
    assert_eq!((&family.lost_keys[..], family.kept), (&[b"b".to_vec()][..], 3), "{report:?}");
    assert_eq!(report.unreadable.len(), 1, "{report:?}");
    let db = Db::open(INTO, options(&fs)).unwrap();
    for key in ["a", "c"] {
        assert!(*db.get(key).unwrap().unwrap() == vec![key.as_bytes()[0]; 9 << 20]);
    }
    assert_eq!((db.get("b").unwrap(), db.get("d").unwrap().as_deref()), (None, Some(&b"short"[..])));
}

/// Without a descriptor left, a repair says so: what cannot be opened at the moment is not lost.
#[test]
fn a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_left_out() {
    let s = Sample::new(&mut Rng::new(seed("descriptors")), 300, false);
    let (mut refused, mut opens) = (0, 0);
    loop {
        let disk = s.fs.kill_clone();
        let faults = FaultFs::new(Arc::new(disk.clone()), 1);
        faults.add(Rule::new(Op::Open, Fault::Emfile).path(DIR).nth(opens + 1).sticky());
        let with_faults = options(&disk).fs(Arc::new(faults.clone()));
        match kingtide::repair(DIR, INTO, &with_faults) {
            Err(e) => assert!(e.is_out_of_descriptors(), "open {opens}: {e}"),
            Ok(report) => {
                let whole = report.is_complete() && report.unreadable.is_empty() && report.notes.is_empty();
                assert!(whole && s.check(&disk, &report, "descriptors") == 0, "open {opens}: {report:?}");
                assert_eq!(report.prepared, [b"in doubt"]);
            }
        }
        if faults.stats().injected() == 0 {
            break;
        }
        (refused, opens) = (refused + 1, opens + 1);
    }
    assert!(refused > 20, "{refused} opens");
}
