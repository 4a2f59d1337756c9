//! Damage that comes while the database is open: what is cached stays right, what is read is right or an error, and a
//! merge of damaged input fails, keeps its input and changes nothing.

use super::anatomy::parts;
use super::check::{located, read_family};
use super::sample::{DIR, Data, KINDS, Sample, bytes_of, full};
use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide::{ColumnFamily, Cursor, Db};
use kingtide_base::rng::Rng;
use std::path::Path;

#[derive(Default, Debug)]
struct Seen {
    rounds: u64,
    right_from_cache: u64,
    read_errors: u64,
    iterators_stopped: u64,
    merges_refused: u64,
    merges_past_it: u64,
    reopened_refused: u64,
}

/// Writes into a file that is open.
fn poke(fs: &MemFs, path: &Path, at: usize, byte: u8) {
    let file = fs.open(path, OpenMode::Write).unwrap();
    file.write_at(&[byte], at as u64).unwrap();
}

/// Goes on with an iterator that stands at entry `from`: nothing is left out, nothing is wrong. True if it failed.
fn goes_on(it: &mut Cursor, sorted: &[(&Vec<u8>, &Vec<u8>)], from: usize, what: &str) -> bool {
    let mut failed = false;
    for (key, value) in &sorted[from..] {
        if !it.valid() {
            located(&it.status().expect_err(&format!("{what}: ends before {key:?} without an error")), what);
            it.next();
            assert!(!it.valid() && it.status().is_err(), "{what}: goes on after an error");
            return true;
        }
        assert_eq!(it.key(), &key[..], "{what}");
        match it.value() {
            Ok(v) => assert_eq!(v, &value[..], "{what}"),
            Err(e) => {
                located(&e, what);
                failed = true;
            }
        }
        it.next();
    }
    assert!(!it.valid(), "{what}: shows too much");
    assert!(failed || it.status().is_ok(), "{what}: ends with an error at the end");
    failed
}

fn sorted<'d>(family: &ColumnFamily, data: &'d Data) -> Vec<(&'d Vec<u8>, &'d Vec<u8>)> {
    let mut all: Vec<_> = data.iter().collect();
    all.sort_by(|a, b| family.order().compare(a.0, b.0));
    all
}

pub fn damage() {
    let mut rng = Rng::new(super::seed("online"));
    let mut seen = Seen::default();
    for kind in &KINDS {
        let sample = Sample::new(kind, true);
        let paths = [sample.files(".klog"), sample.files(".vlog")].concat();
        for _ in 0..if full() { 1500 } else { 25 } {
            let path = &paths[rng.below(paths.len() as u64) as usize];
            one(&sample, path, &mut rng, &mut seen);
        }
    }
    println!("damage under an open database: {seen:?}");
    assert!(seen.merges_refused > 0 && seen.read_errors > 0 && seen.right_from_cache > 0);
}

fn one(sample: &Sample, path: &Path, rng: &mut Rng, seen: &mut Seen) {
    seen.rounds += 1;
    let fs = sample.fs.kill_clone();
    let db = Db::open(DIR, sample.options(&fs)).unwrap();
    let owner = sample.owner(path).unwrap();
    let family = db.family(&owner).unwrap();
    let data = &sample.all()[&owner];
    let sorted = sorted(&family, data);
    // Some is in the cache, and an iterator stands somewhere.
    let warm: Vec<&Vec<u8>> = data.keys().filter(|_| rng.one_in(2)).collect();
    warm.iter().for_each(|k| _ = family.get(k).unwrap());
    let stands = rng.below(sorted.len() as u64) as usize;
    let mut it = family.cursor(..).unwrap();
    it.seek(sorted[stands].0);

    let bytes = bytes_of(&fs, path);
    let all = parts(sample, path, &bytes);
    let place = all[rng.below(all.len() as u64) as usize].place.clone();
    let at = place.start + rng.below(place.len() as u64) as usize;
    let what = format!("{}: byte {at} of {} changed while it is open", sample.kind.name, path.display());
    poke(&fs, path, at, bytes[at] ^ 1 << rng.below(8));

    seen.iterators_stopped += u64::from(goes_on(&mut it, &sorted, stands, &what));
    drop(it);
    let errors = read_family(&family, data, &what);
    seen.read_errors += u64::from(errors > 0);
    seen.right_from_cache += u64::from(errors == 0);
    for (name, data) in sample.all().iter().filter(|(n, _)| **n != owner) {
        assert_eq!(read_family(&db.family(name).unwrap(), data, &what), 0, "{what}: {name} has nothing to do with it");
    }
    merge(sample, (&fs, path), &db, &family, data, &what, seen);
    drop((family, db));
    after(sample, &fs, path, &owner, (at, bytes[at]), &what, seen);
}

/// A compaction that reads what is damaged fails and keeps it; one that does not need it succeeds. It may be several jobs,
/// of which the first ones succeed: what they made of their inputs is read afterwards.
fn merge(
    sample: &Sample,
    (fs, path): (&MemFs, &Path),
    db: &Db,
    family: &ColumnFamily,
    data: &Data,
    what: &str,
    seen: &mut Seen,
) {
    // Something over all of it, so that a merge has to read it.
    for (key, value) in data.iter().step_by(3) {
        family.put(key, value).unwrap();
    }
    db.flush().unwrap_or_else(|e| located(&e, what));
    match family.compact_range(..) {
        Ok(()) => seen.merges_past_it += 1,
        Err(e) => {
            located(&e, what);
            seen.merges_refused += 1;
            assert!(fs.exists(path).unwrap(), "{what}: a compaction that failed deleted its input");
        }
    }
    read_family(family, data, &format!("{what}, after a merge"));
    for (name, data) in sample.all().iter().filter(|(n, _)| **n != family.name()) {
        assert_eq!(read_family(&db.family(name).unwrap(), data, what), 0, "{what}: {name} after a merge");
    }
}

/// After a new open it is as before; and when the damage is undone, everything is there.
fn after(sample: &Sample, fs: &MemFs, path: &Path, owner: &str, (at, byte): (usize, u8), what: &str, seen: &mut Seen) {
    match Db::open(DIR, sample.options(fs)) {
        Ok(db) => {
            for (name, data) in sample.all() {
                let errors = read_family(&db.family(name).unwrap(), data, what);
                assert!(errors == 0 || name == owner, "{what}: {name} has nothing to do with it");
            }
        }
        Err(e) => {
            located(&e, what);
            seen.reopened_refused += 1;
        }
    }
    if fs.exists(path).unwrap() {
        poke(fs, path, at, byte);
    }
    let db = Db::open(DIR, sample.options(fs)).unwrap_or_else(|e| panic!("{what}: undone, but {e}"));
    for (name, data) in sample.all() {
        let family = db.family(name).unwrap();
        assert_eq!(read_family(&family, data, what), 0, "{what}: undone, but {name} cannot be read");
    }
    db.compact().unwrap_or_else(|e| panic!("{what}: undone, but merging fails: {e}"));
    assert_eq!(read_family(db.default_family(), &sample.all()["default"], what), 0, "{what}: merged");
}
