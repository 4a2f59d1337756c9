//! Damaged, missing and exchanged files of every kind: opening or reading gives an error that names the file and the
//! place in it, or the right data. Never a panic, a wrong value, a silently missing key, or an allocation beyond what
//! the files hold; and what lies in undamaged files stays readable.
//!
//! The bodies run in a process of their own under `ulimit -v`, so that a length field that was believed ends it.
//! `KINGTIDE_FULL=1` damages every byte instead of a sample.
#![allow(clippy::disallowed_methods, missing_docs)]

use kingtide::vfs::{Fs, MemFs, OpenMode, Survival};
use kingtide::{ColumnFamily, Db, Error, ErrorKind, Options, WriteBatch};
use kingtide_base::checksum::{crc, crc_append};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DIR: &str = "db";
/// Data of one family.
type Data = BTreeMap<Vec<u8>, Vec<u8>>;

fn full() -> bool {
    std::env::var_os("KINGTIDE_FULL").is_some()
}

fn options(fs: &MemFs) -> Options {
    let mut o = Options { fs: Some(Arc::new(fs.clone())), manual_jobs: true, ..Options::default() };
    o.db.wal_segment_size = 64 << 10;
    o.db.block_cache_size = 1 << 20;
    o.family.block_size = 1024;
    o.family.value_threshold = 200;
    o
}

fn value(i: u64) -> Vec<u8> {
    let len = if i.is_multiple_of(5) { 300 } else { 40 };
    (0..len).map(|at| (mix64(i) >> (at % 8 * 8)) as u8 ^ at as u8).collect()
}

/// A database with tables and value logs of three families, and commits that are only in the log.
struct Sample {
    fs: MemFs,
    data: BTreeMap<String, Data>,
    /// The same without the last commit.
    before_last: BTreeMap<String, Data>,
    /// Bytes of the last commit's record in the log.
    last_record: usize,
}

fn put(db: &Db, data: &mut BTreeMap<String, Data>, family: &ColumnFamily, keys: std::ops::Range<u64>) -> usize {
    let mut batch = WriteBatch::new();
    for i in keys {
        let key = format!("key-{i:05}").into_bytes();
        batch.put(family, &key, &value(i)).unwrap();
        data.entry(family.name()).or_default().insert(key, value(i));
    }
    let bytes = batch.bytes();
    db.write(batch).unwrap();
    bytes
}

impl Sample {
    fn new(closed: bool) -> Sample {
        let fs = MemFs::new();
        let db = Db::open(DIR, options(&fs)).unwrap();
        let other = db.create_family("other", options(&fs).family).unwrap();
        let ranges = db.create_family("ranges", options(&fs).family).unwrap();
        let mut data = BTreeMap::new();
        for part in 0..3 {
            put(&db, &mut data, db.default_family(), part * 100..part * 100 + 60);
            put(&db, &mut data, &other, part * 100..part * 100 + 20);
            put(&db, &mut data, &ranges, part * 100..part * 100 + 20);
            ranges.delete_range(format!("key-{:05}", part * 100 + 5), format!("key-{:05}", part * 100 + 9)).unwrap();
            for i in part * 100 + 5..part * 100 + 9 {
                data.get_mut("ranges").unwrap().remove(format!("key-{i:05}").as_bytes());
            }
            db.flush().unwrap();
        }
        let mut before_last = data.clone();
        let mut last_record = 0;
        for i in 0..12 {
            before_last = data.clone();
            let family = if i % 2 == 0 { &other } else { db.default_family() };
            last_record = 32 + put(&db, &mut data, family, 400 + i * 10..406 + i * 10).next_multiple_of(8);
        }
        let fs = if closed {
            db.close().unwrap();
            before_last = data.clone();
            fs
        } else {
            fs.kill_clone()
        };
        Sample { fs: fs.kill_clone(), data, before_last, last_record }
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let names = self.fs.list(Path::new(DIR)).unwrap();
        names.iter().filter(|n| n.contains(extension)).map(|n| Path::new(DIR).join(n)).collect()
    }
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

/// The error says what is wrong, in which file, and where in it.
fn located(e: &Error, what: &str) {
    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "{what}: {e:?}");
    let path = e.path().unwrap_or_else(|| panic!("{what}: no file in {e:?}"));
    assert!(path.starts_with(DIR) && !e.message().is_empty(), "{what}: {e:?}");
    let missing = e.message().contains("missing");
    assert!(missing || e.offset().is_some(), "{what}: no offset in {e:?}");
}

#[derive(Default, Debug)]
struct Found {
    refused: u64,
    read_errors: u64,
    intact: u64,
    without_last: u64,
}

impl Sample {
    /// Opens a damaged copy and reads everything. `damaged` is the family whose reads may fail once it opened;
    /// `may_lose_last`: the damage looks exactly like a commit that was never finished.
    fn examine(&self, fs: &MemFs, what: &str, damaged: Option<&str>, may_lose_last: bool, found: &mut Found) {
        let db = match Db::open(DIR, options(fs)) {
            Ok(db) => db,
            Err(e) => {
                located(&e, what);
                if std::env::var_os("KINGTIDE_SHOW").is_some() {
                    println!("{what}: {e}");
                }
                found.refused += 1;
                return;
            }
        };
        let lost = may_lose_last && {
            let (name, last) = (self.data.iter())
                .find_map(|(n, d)| d.keys().find(|k| !self.before_last[n].contains_key(*k)).map(|k| (n, k)))
                .unwrap();
            db.family(name).unwrap().get(last).is_ok_and(|v| v.is_none())
        };
        found.without_last += lost as u64;
        let expected = if lost { &self.before_last } else { &self.data };
        let mut errors = 0;
        for (name, data) in expected {
            let place = format!("{what}, family {name}");
            let failed = read_family(&db.family(name).unwrap(), data, &place);
            assert!(failed == 0 || damaged == Some(name), "{place}: {failed} reads failed, but its files are whole");
            errors += failed;
        }
        found.read_errors += errors;
        found.intact += u64::from(errors == 0 && !lost);
    }
}

/// Reads a family in every way; each answer is right or a located error. Returns how many were errors.
fn read_family(family: &ColumnFamily, data: &Data, what: &str) -> u64 {
    let mut errors = 0;
    let mut fail = |e: &Error| {
        located(e, what);
        errors += 1;
    };
    for (k, v) in data {
        match family.get(k) {
            Ok(got) => assert_eq!(got.as_deref(), Some(&v[..]), "{what}: get of {:?}", String::from_utf8_lossy(k)),
            Err(e) => fail(&e),
        }
    }
    for gone in [&b"key-00006"[..], b"nothing", b"key-00070"] {
        match family.get(gone) {
            Ok(got) => assert_eq!(got.as_deref(), data.get(gone).map(|v| &v[..]), "{what}"),
            Err(e) => fail(&e),
        }
    }
    let keys: Vec<&[u8]> = data.keys().map(|k| &k[..]).collect();
    for (got, v) in family.multi_get(&keys).into_iter().zip(data.values()) {
        match got {
            Ok(got) => assert_eq!(got.as_deref(), Some(&v[..]), "{what}: multi-get"),
            Err(e) => fail(&e),
        }
    }
    for forward in [true, false] {
        let Ok(mut it) = family.iter(..).inspect_err(&mut fail) else { continue };
        let expected: Vec<_> = if forward { data.iter().collect() } else { data.iter().rev().collect() };
        if forward {
            it.seek_to_first()
        } else {
            it.seek_to_last()
        }
        for (k, v) in expected {
            if !it.valid() {
                let e = it.status().expect_err(&format!("{what}: the scan ends before {k:?} without an error"));
                fail(&e);
                break;
            }
            assert_eq!(it.key(), &k[..], "{what}: scan, forward {forward}");
            match it.value() {
                Ok(got) => assert_eq!(got, &v[..], "{what}: scan"),
                Err(e) => fail(&e),
            }
            if forward { it.next() } else { it.prev() }
        }
        assert!(!it.valid(), "{what}: the scan shows more than there is");
    }
    errors
}

/// The family whose table or value log a file is. `None` for files of the whole database.
fn owner(sample: &Sample, path: &Path) -> Option<String> {
    if !path.extension().is_some_and(|e| e == "klog" || e == "vlog") {
        return None;
    }
    // Remove it and see whose reads fail.
    let fs = sample.fs.kill_clone();
    fs.remove(path).unwrap();
    let db = Db::open(DIR, options(&fs)).unwrap();
    let owner = sample.data.iter().find(|(name, data)| {
        let f = db.family(name).unwrap();
        data.keys().any(|k| f.get(k).is_err())
    });
    Some(owner.unwrap_or_else(|| panic!("nobody misses {}", path.display())).0.clone())
}

/// Offsets to damage: all of the beginning and the end, and a sample of the rest.
fn offsets(len: usize, rng: &mut Rng) -> Vec<usize> {
    if full() {
        return (0..len).collect();
    }
    let mut all: Vec<usize> = (0..len.min(72)).chain(len.saturating_sub(80)..len).collect();
    all.extend((0..60).map(|_| rng.below(len as u64) as usize));
    all.sort_unstable();
    all.dedup();
    all
}

fn damage_every_kind(closed: bool) {
    let sample = Sample::new(closed);
    let mut rng = Rng::new(11);
    let mut kinds: Vec<(&str, Vec<PathBuf>)> =
        [".klog", ".vlog", ".wal", "MANIFEST", "CURRENT"].map(|k| (k, sample.files(k))).into();
    for (kind, files) in &mut kinds {
        assert!(!files.is_empty(), "no {kind}");
        if !full() && files.len() > 3 {
            files.truncate(3);
        }
    }
    for (kind, files) in kinds {
        let mut found = Found::default();
        let mut cases = 0;
        for path in files {
            let bytes = bytes_of(&sample.fs, &path);
            if bytes.is_empty() {
                continue;
            }
            let owner = owner(&sample, &path);
            // In the log, only what is written counts, and the header of the last record has nothing behind it that
            // would show it was ever complete.
            let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| (at + 1).next_multiple_of(8));
            let last = written.saturating_sub(sample.last_record);
            for at in offsets(if kind == ".wal" { (written + 64).min(bytes.len()) } else { bytes.len() }, &mut rng) {
                let fs = sample.fs.kill_clone();
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << rng.below(8);
                replace(&fs, &path, &damaged);
                let what = format!("closed {closed}: {} with a bit of byte {at} flipped", path.display());
                let may_lose = kind == ".wal" && !closed && (last..last + 32).contains(&at);
                sample.examine(&fs, &what, owner.as_deref(), may_lose, &mut found);
                cases += 1;
            }
            for len in offsets(bytes.len(), &mut rng).into_iter().step_by(2) {
                let fs = sample.fs.kill_clone();
                replace(&fs, &path, &bytes[..len]);
                let what = format!("closed {closed}: {} cut to {len} of {} bytes", path.display(), bytes.len());
                sample.examine(&fs, &what, owner.as_deref(), false, &mut found);
                cases += 1;
            }
        }
        println!("closed {closed}, {kind}: {cases} damaged copies: {found:?}");
        assert!(found.refused + found.read_errors > 0);
    }
}

fn missing_and_exchanged() {
    let sample = Sample::new(true);
    let mut found = Found::default();
    for kind in [".klog", ".vlog", "MANIFEST", "CURRENT"] {
        for path in sample.files(kind) {
            let fs = sample.fs.kill_clone();
            fs.remove(&path).unwrap();
            let before = (found.refused, found.read_errors);
            sample.examine(
                &fs,
                &format!("{} removed", path.display()),
                owner(&sample, &path).as_deref(),
                false,
                &mut found,
            );
            assert_ne!(before, (found.refused, found.read_errors), "nobody misses {}", path.display());
        }
    }
    // A log that was in use is missed too, and unused segments are not.
    let killed = Sample::new(false);
    let mut logs = Found::default();
    for path in killed.files(".wal") {
        let fs = killed.fs.kill_clone();
        fs.remove(&path).unwrap();
        killed.examine(&fs, &format!("{} removed", path.display()), None, false, &mut logs);
    }
    println!("log segments removed: {logs:?}");
    assert!(logs.refused > 0);
    // CURRENT and the manifest both gone: the tables must not be taken for leftovers.
    let fs = sample.fs.kill_clone();
    for path in [sample.files("CURRENT"), sample.files("MANIFEST")].concat() {
        fs.remove(&path).unwrap();
    }
    let e = Db::open(DIR, options(&fs)).unwrap_err();
    located(&e, "CURRENT and MANIFEST removed");
    assert_eq!(
        fs.list(Path::new(DIR)).unwrap().iter().filter(|n| n.ends_with(".klog")).count(),
        sample.files(".klog").len()
    );

    for (a, b) in [(".klog", ".klog"), (".vlog", ".vlog"), (".klog", ".vlog")] {
        let (a, b) = (sample.files(a)[0].clone(), sample.files(b).last().unwrap().clone());
        let fs = sample.fs.kill_clone();
        let (of_a, of_b) = (bytes_of(&fs, &a), bytes_of(&fs, &b));
        replace(&fs, &a, &of_b);
        replace(&fs, &b, &of_a);
        let db = Db::open(DIR, options(&fs)).unwrap();
        let what = format!("{} and {} exchanged", a.display(), b.display());
        let errors: u64 = sample.data.iter().map(|(n, d)| read_family(&db.family(n).unwrap(), d, &what)).sum();
        assert!(errors > 0, "{what}: nobody noticed");
    }
    println!("missing and exchanged files: {found:?}");
}

/// Every segment of the log that holds something is missed, by open, verify and repair, after a kill and after a power
/// cut: also the last one, though an unused one lies behind it, and the first of an open.
fn missing_segments() {
    let mut checked = 0;
    for reopened in [false, true] {
        let fs = MemFs::new();
        let mut db = Db::open(DIR, options(&fs)).unwrap();
        db.default_family().put("first", "value").unwrap();
        if reopened {
            db.close().unwrap();
            db = Db::open(DIR, options(&fs)).unwrap();
        }
        let segments = |fs: &MemFs| fs.list(Path::new(DIR)).unwrap().into_iter().filter(|n| n.ends_with(".wal"));
        let commits = if reopened { 1 } else { 200 };
        for i in 0..commits {
            db.default_family().put(format!("key-{i:05}"), vec![i as u8; 1000]).unwrap();
        }
        while db.run_one_job().unwrap() {}
        for cut_power in [false, true] {
            let disk = || match cut_power {
                true => fs.crash_clone(Survival::AllKept, &mut Rng::new(1)),
                false => fs.kill_clone(),
            };
            let mut names: Vec<String> = segments(&disk()).collect();
            names.sort();
            let spare = names.pop().unwrap();
            assert_eq!(names.len(), if reopened { 2 } else { 4 });
            // What the close left behind holds nothing that is not in tables.
            for name in names.into_iter().skip(usize::from(reopened)) {
                let path = Path::new(DIR).join(&name);
                let what = format!("{name} of a log removed, spare {spare}, reopened {reopened}, power {cut_power}");
                let damaged = disk();
                damaged.remove(&path).unwrap();
                let e = Db::open(DIR, options(&damaged)).expect_err(&what);
                located(&e, &what);
                assert_eq!(e.path(), Some(&*path), "{what}: {e}");
                assert!(!kingtide::verify(DIR, &options(&damaged)).unwrap().is_clean(), "{what}");
                assert!(!kingtide::repair(DIR, "into", &options(&damaged)).unwrap().is_complete(), "{what}");
                checked += 1;
            }
            let unused = disk();
            unused.remove(&Path::new(DIR).join(&spare)).unwrap();
            let reopened = Db::open(DIR, options(&unused)).unwrap();
            let last = format!("key-{:05}", commits - 1);
            assert!(reopened.default_family().get(last).unwrap().is_some());
        }
    }
    println!("{checked} segments removed");
}

/// A file with another format version and a checksum that fits is refused as newer, not as damaged.
fn newer_versions() {
    let sample = Sample::new(true);
    let with = |path: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let fs = sample.fs.kill_clone();
        let mut bytes = bytes_of(&fs, path);
        change(&mut bytes);
        replace(&fs, path, &bytes);
        fs
    };
    let manifest = sample.files("MANIFEST").pop().unwrap();
    let number: u64 = manifest.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
    let fs = with(&manifest, &|b| {
        b[8..12].copy_from_slice(&2u32.to_le_bytes());
        let seed = crc_append(crc(&number.to_le_bytes()), &0u64.to_le_bytes());
        let sum = crc_append(seed, &b[..48]);
        b[48..52].copy_from_slice(&sum.to_le_bytes());
    });
    let e = Db::open(DIR, options(&fs)).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::NewerFormat, Some(&*manifest)), "{e}");

    let newer_footer = |from_end: usize, version_at: usize| {
        move |b: &mut Vec<u8>| {
            let at = b.len() - from_end;
            b[at + version_at..at + version_at + 4].copy_from_slice(&2u32.to_le_bytes());
            let sum = crc(&b[at..at + version_at + 4]);
            b[at + version_at + 4..at + version_at + 8].copy_from_slice(&sum.to_le_bytes());
        }
    };
    for (kind, from_end, version_at) in [(".klog", 64, 48), (".vlog", 48, 32)] {
        let path = sample.files(kind).pop().unwrap();
        let fs = with(&path, &newer_footer(from_end, version_at));
        let db = Db::open(DIR, options(&fs)).unwrap();
        let errors: Vec<Error> = (sample.data.iter())
            .flat_map(|(n, d)| d.keys().map(|k| (n.clone(), k.clone())).collect::<Vec<_>>())
            .filter_map(|(n, k)| db.family(&n).unwrap().get(k).err())
            .collect();
        assert!(!errors.is_empty(), "{kind}");
        for e in errors {
            assert_eq!((e.kind(), e.path()), (ErrorKind::NewerFormat, Some(&*path)), "{e}");
        }
    }
}

// Each body in a process of its own whose address space is limited.

fn limited(body: &str) {
    let exe = std::env::current_exe().unwrap();
    let run = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 1500000; exec \"$0\" \"$1\" --exact --ignored --nocapture --test-threads=1"])
        .arg(exe)
        .arg(body)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    assert!(run.status.success() && text.contains("1 passed"), "{body}: {}", String::from_utf8_lossy(&run.stderr));
}

#[test]
#[ignore = "run by the tests below under limits"]
fn body_of_killed() {
    damage_every_kind(false);
}

#[test]
#[ignore = "run by the tests below under limits"]
fn body_of_closed() {
    damage_every_kind(true);
}

#[test]
#[ignore = "run by the tests below under limits"]
fn body_of_missing() {
    missing_and_exchanged();
    missing_segments();
    newer_versions();
}

#[test]
fn flipped_and_cut_files_of_a_killed_database() {
    limited("body_of_killed");
}

#[test]
fn flipped_and_cut_files_of_a_closed_database() {
    limited("body_of_closed");
}

#[test]
fn missing_exchanged_and_newer_files() {
    limited("body_of_missing");
}
