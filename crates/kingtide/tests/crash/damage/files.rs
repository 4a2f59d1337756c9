//! Missing and exchanged files, and files of formats to come.

use super::check::{Extra, Found, located};
use super::sample::{DIR, KINDS, Sample, bytes_of, replace};
use kingtide::vfs::{Fs, MemFs, Survival};
use kingtide::{Db, Error, ErrorKind};
use kingtide_base::checksum::{crc, crc_append};
use kingtide_base::rng::Rng;
use std::path::Path;

/// With verification and repair beside the reads.
const ALL: Extra = Extra { read_only: false, verify: true, repair: true };

pub fn missing_and_exchanged() {
    let mut found = Found::default();
    for kind in &KINDS {
        missing(&Sample::new(kind, true), &mut found);
        missing_log(&Sample::new(kind, false));
        exchanged(&Sample::new(kind, true));
    }
    println!("missing files: {found:?}");
}

fn missing(sample: &Sample, found: &mut Found) {
    for kind in [".klog", ".vlog", "MANIFEST", "CURRENT"] {
        for path in sample.files(kind) {
            let fs = sample.fs.kill_clone();
            fs.remove(&path).unwrap();
            let what = format!("{} removed", path.display());
            let one = sample.examine_files(&fs, &what, sample.owner(&path).as_slice(), None, ALL);
            assert!(one.refused + one.read_errors > 0, "the loss of {} is not noticed", path.display());
            found.add(&one);
        }
    }
    // CURRENT and the manifest both gone: the tables must not be taken for leftovers.
    let fs = sample.fs.kill_clone();
    for path in [sample.files("CURRENT"), sample.files("MANIFEST")].concat() {
        fs.remove(&path).unwrap();
    }
    let e = Db::open(DIR, sample.options(&fs)).unwrap_err();
    located(&e, "CURRENT and MANIFEST removed");
    let tables = fs.list(Path::new(DIR)).unwrap().iter().filter(|n| n.ends_with(".klog")).count();
    assert_eq!(tables, sample.files(".klog").len());
}

/// A log that was in use is missed too, and unused segments are not.
fn missing_log(killed: &Sample) {
    let mut logs = Found::default();
    for path in killed.files(".wal") {
        let fs = killed.fs.kill_clone();
        fs.remove(&path).unwrap();
        let what = format!("{}: {} removed", killed.kind.name, path.display());
        logs.add(&killed.examine_files(&fs, &what, &[], None, Extra { repair: false, ..ALL }));
    }
    println!("log segments removed: {logs:?}");
    assert!(logs.refused > 0);
}

fn exchanged(sample: &Sample) {
    for (a, b) in [(".klog", ".klog"), (".vlog", ".vlog"), (".klog", ".vlog")] {
        let (Some(a), Some(b)) = (sample.files(a).first().cloned(), sample.files(b).last().cloned()) else { continue };
        if a == b {
            continue;
        }
        let fs = sample.fs.kill_clone();
        let (of_a, of_b) = (bytes_of(&fs, &a), bytes_of(&fs, &b));
        replace(&fs, &a, &of_b);
        replace(&fs, &b, &of_a);
        let what = format!("{} and {} exchanged", a.display(), b.display());
        let owners: Vec<String> = [&a, &b].into_iter().filter_map(|p| sample.owner(p)).collect();
        let found = sample.examine_files(&fs, &what, &owners, None, ALL);
        assert!(found.read_errors > 0, "{what}: not noticed");
    }
}

/// Every segment of the log that holds something is missed, by open, verify and repair, after a kill and after a power
/// cut: also the last one, though an unused one lies behind it, and the first of an open.
pub fn missing_segments() {
    let mut checked = 0;
    for reopened in [false, true] {
        let fs = MemFs::new();
        let mut db = Db::open(DIR, KINDS[0].options(&fs)).unwrap();
        db.default_family().put("first", "value").unwrap();
        if reopened {
            db.close().unwrap();
            db = Db::open(DIR, KINDS[0].options(&fs)).unwrap();
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
            let begun = |name: &String| bytes_of(&disk(), &Path::new(DIR).join(name)).starts_with(b"KWAL");
            let (names, spares): (Vec<String>, Vec<String>) = names.into_iter().partition(begun);
            assert!((1..=4).contains(&spares.len()), "{spares:?}");
            assert_eq!(names.len(), if reopened { 2 } else { 4 });
            // What the close left behind holds nothing that is not in tables.
            for name in names.into_iter().skip(usize::from(reopened)) {
                let path = Path::new(DIR).join(&name);
                let what =
                    format!("{name} of a log removed, spares {spares:?}, reopened {reopened}, power {cut_power}");
                let bytes = bytes_of(&disk(), &path);
                // Cut to nothing, to a part of a header, and removed. After a power cut a size may have been lost.
                for cut in [Some(0), Some(40), None].into_iter().filter(|cut| !cut_power || cut.is_none()) {
                    let damaged = disk();
                    match cut {
                        Some(len) => replace(&damaged, &path, &bytes[..len]),
                        None => damaged.remove(&path).unwrap(),
                    }
                    let what = format!("{what}, cut {cut:?}");
                    let e = Db::open(DIR, KINDS[0].options(&damaged)).expect_err(&what);
                    located(&e, &what);
                    assert_eq!(e.path(), Some(&*path), "{what}: {e}");
                    assert!(!kingtide::verify(DIR, &KINDS[0].options(&damaged)).unwrap().is_clean(), "{what}");
                    let repaired = kingtide::repair(DIR, "into", &KINDS[0].options(&damaged)).unwrap();
                    assert!(!repaired.is_complete(), "{what}: {repaired:?}");
                    checked += 1;
                }
            }
            let unused = disk();
            spares.iter().for_each(|spare| unused.remove(&Path::new(DIR).join(spare)).unwrap());
            let reopened = Db::open(DIR, KINDS[0].options(&unused)).unwrap();
            let last = format!("key-{:05}", commits - 1);
            assert!(reopened.default_family().get(last).unwrap().is_some());
        }
    }
    println!("{checked} segments removed");
}

/// A file with another format version and a checksum that fits is refused as newer, not as damaged.
pub fn newer_versions() {
    let sample = Sample::new(&KINDS[0], true);
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
    let e = Db::open(DIR, sample.options(&fs)).unwrap_err();
    assert_eq!((e.kind(), e.path()), (ErrorKind::NewerFormat, Some(&*manifest)), "{e}");

    let newer_footer = |from_end: usize, version_at: usize, version: u32| {
        move |b: &mut Vec<u8>| {
            let at = b.len() - from_end;
            b[at + version_at..at + version_at + 4].copy_from_slice(&version.to_le_bytes());
            let sum = crc(&b[at..at + version_at + 4]);
            b[at + version_at + 4..at + version_at + 8].copy_from_slice(&sum.to_le_bytes());
        }
    };
    for (kind, from_end, version_at, version) in [(".klog", 64, 48, 3), (".vlog", 48, 32, 2)] {
        let path = sample.files(kind).pop().unwrap();
        let fs = with(&path, &newer_footer(from_end, version_at, version));
        // The first access to the file finds it: the open, or a read.
        let errors: Vec<Error> = match Db::open(DIR, sample.options(&fs)) {
            Err(e) => vec![e],
            Ok(db) => (sample.all().iter())
                .flat_map(|(n, d)| d.keys().map(|k| (n.clone(), k.clone())).collect::<Vec<_>>())
                .filter_map(|(n, k)| db.family(&n).unwrap().get(k).err())
                .collect(),
        };
        assert!(!errors.is_empty(), "{kind}");
        for e in errors {
            assert_eq!((e.kind(), e.path()), (ErrorKind::NewerFormat, Some(&*path)), "{e}");
        }
    }
}
