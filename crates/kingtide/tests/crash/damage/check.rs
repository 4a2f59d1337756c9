//! Opens damaged databases and reads all of them: every answer is right or an error that names file and place.

use super::anatomy::{is_begun, parts};
use super::harm::{Harm, Victim};
use super::sample::{DIR, Data, Sample, State, bytes_of, directory, replace};
use kingtide::vfs::{MemFs, is_one_write};
use kingtide::{ColumnFamily, Db, Error, ErrorKind, KeyGap, RepairReport};
use std::collections::BTreeMap;
use std::path::Path;

/// What became of damaged copies.
#[derive(Default, Debug, Clone, Copy)]
pub struct Found {
    pub cases: u64,
    /// The open was refused.
    pub refused: u64,
    /// It opened, and some reads failed.
    pub read_errors: u64,
    /// Everything was right.
    pub intact: u64,
    /// The last commits are gone, as if they had never been finished.
    pub without_last: u64,
    pub verified: u64,
    pub repaired: u64,
    /// Keys that repair could not save, and that it reported.
    pub lost_by_repair: u64,
}

impl Found {
    pub fn add(&mut self, other: &Found) {
        self.cases += other.cases;
        self.refused += other.refused;
        self.read_errors += other.read_errors;
        self.intact += other.intact;
        self.without_last += other.without_last;
        self.verified += other.verified;
        self.repaired += other.repaired;
        self.lost_by_repair += other.lost_by_repair;
    }
}

/// By file kind, part and kind of damage.
pub type Tally = BTreeMap<(&'static str, &'static str, &'static str), Found>;

/// The error says what is wrong, in which file, and where in it.
pub fn located(e: &Error, what: &str) {
    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "{what}: {e:?}");
    let path = e.path().unwrap_or_else(|| panic!("{what}: no file in {e:?}"));
    assert!(path.starts_with(DIR) && !e.message().is_empty(), "{what}: {e:?}");
    let missing = e.message().contains("missing");
    assert!(missing || e.offset().is_some(), "{what}: no offset in {e:?}");
}

/// What is looked at besides the reads of an ordinary open.
#[derive(Clone, Copy, Default)]
pub struct Extra {
    pub read_only: bool,
    pub verify: bool,
    pub repair: bool,
}

impl Sample {
    /// A copy with the damage in it.
    pub fn with(&self, harm: &Harm) -> MemFs {
        let fs = self.fs.kill_clone();
        replace(&fs, &harm.path, &harm.bytes);
        fs
    }

    pub fn examine(&self, victim: &Victim, harm: &Harm, extra: Extra, tally: &mut Tally) {
        let what = format!(
            "{} ({}), {} of {}: {} at {}",
            self.kind.name,
            match (self.closed, self.checkpoint) {
                (false, _) => "killed",
                (true, false) => "closed",
                (true, true) => "checkpoint",
            },
            harm.part,
            harm.path.display(),
            harm.how,
            harm.at
        );
        let damaged = victim.owner.as_slice();
        let found = self.examine_files(&self.with(harm), &what, damaged, self.may_end_at(victim, harm), extra);
        tally.entry((victim.kind, harm.part, harm.how)).or_default().add(&found);
    }

    /// `damaged` are the families whose reads may fail once the database opened; `may_end_at`: the damage looks exactly as
    /// if so many states had never come to be.
    pub fn examine_files(
        &self,
        fs: &MemFs,
        what: &str,
        damaged: &[String],
        may_end_at: Option<usize>,
        extra: Extra,
    ) -> Found {
        let mut found = Found { cases: 1, ..Found::default() };
        let before = extra.verify.then(|| fs.kill_clone());
        let open = if extra.read_only { Db::open_read_only } else { Db::open };
        match open(Path::new(DIR), self.options(fs)) {
            Ok(db) => self.read_all(&db, what, damaged, may_end_at, &mut found),
            Err(e) => {
                located(&e, what);
                found.refused = 1;
            }
        }
        if let Some(before) = before {
            found.verified = 1;
            self.verify(&before, what, &found);
        }
        if extra.repair {
            found.repaired = 1;
            found.lost_by_repair = self.repair(&fs.kill_clone(), what, may_end_at);
        }
        found
    }

    fn read_all(&self, db: &Db, what: &str, damaged: &[String], may_end_at: Option<usize>, found: &mut Found) {
        let shorter = may_end_at.map(|n| &self.states[n]).filter(|state| ends_at(db, state, self.all()));
        let mut errors = 0;
        for (name, data) in shorter.unwrap_or(self.all()) {
            let place = format!("{what}, family {name}");
            let failed = read_family(&db.family(name).unwrap(), data, &place);
            assert!(failed == 0 || damaged.contains(name), "{place}: {failed} reads failed, but its files are whole");
            errors += failed;
        }
        found.without_last = u64::from(shorter.is_some());
        found.read_errors = u64::from(errors > 0);
        found.intact = u64::from(errors == 0 && shorter.is_none());
    }

    /// Verification reports what reads trip over, and changes nothing.
    fn verify(&self, fs: &MemFs, what: &str, found: &Found) {
        let report = kingtide::verify(DIR, &self.options(fs)).unwrap_or_else(|e| panic!("{what}: verify: {e}"));
        let trouble = found.refused + found.read_errors > 0;
        assert!(report.is_damaged() || !trouble, "{what}: {found:?}, but verify says {:?}", report.problems);
        for problem in &report.problems {
            assert!(problem.path.as_ref().is_some_and(|p| p.starts_with(DIR)), "{what}: no file in {problem}");
        }
    }

    /// Where the history may seem to end although no damage is reported: behind the last whole record, if no whole record follows,
    /// and the header of the next record is broken, or any part of it if it may have been written at once.
    fn may_end_at(&self, victim: &Victim, harm: &Harm) -> Option<usize> {
        let last = self.files(".wal").into_iter().filter(|p| is_begun(p, &bytes_of(&self.fs, p))).max()?;
        if self.closed || victim.path != last || harm.bytes.len() < victim.bytes.len() {
            return None;
        }
        let differs = |at: usize, end: usize| victim.bytes[at..end] != harm.bytes[at..end];
        let records = &parts(self, &victim.path, &victim.bytes)[1..];
        let broken = |p: &&super::anatomy::Part| differs(p.place.start, p.place.end);
        let first = records.iter().position(|p| broken(&p))?;
        let (start, tail) = (records[first].place.start, &records[first..]);
        let at_once = is_one_write(start as u64, records[first].place.len());
        if !tail.iter().all(|p| broken(&p)) || !(at_once || differs(start, start + 32)) {
            return None;
        }
        let lost = tail.iter().filter(|p| p.name == "record").count();
        Some((self.states.len() - 1).saturating_sub(lost))
    }

    /// Repairs into a new directory. Every key that is missing or out of date there was reported, nothing is made up, and
    /// the damaged database stays as it is. Returns how many keys those are.
    fn repair(&self, fs: &MemFs, what: &str, may_end_at: Option<usize>) -> u64 {
        let before = directory(fs);
        let options = self.options(fs);
        let report = kingtide::repair(DIR, "repaired", &options).unwrap_or_else(|e| panic!("{what}: repair: {e}"));
        assert!(directory(fs) == before, "{what}: repair changed the damaged database");
        assert!(report.verify.is_clean(), "{what}: {:?}", report.verify.problems);
        let db = Db::open("repaired", options).unwrap();
        let shorter = may_end_at.map(|n| &self.states[n]).filter(|state| ends_at(&db, state, self.all()));
        let mut wrong = 0;
        for (name, data) in shorter.unwrap_or(self.all()) {
            wrong += self.compare_repaired(&db, &report, name, data, what);
        }
        wrong
    }

    fn compare_repaired(&self, db: &Db, report: &RepairReport, name: &str, data: &Data, what: &str) -> u64 {
        let Some(part) = report.families.iter().find(|f| f.name == *name) else {
            assert!(
                report.notes.iter().any(|n| n.contains("manifest is incomplete")),
                "{what}: '{name}' is lost silently"
            );
            return data.len() as u64;
        };
        let family = db.family(name).unwrap();
        let within = |gaps: &[KeyGap], key: &[u8]| {
            let order = family.order();
            let above = |lo: &Vec<u8>| order.compare(lo, key).is_le();
            let below = |hi: &Vec<u8>| order.compare(key, hi).is_le();
            gaps.iter().any(|g| g.lo.as_ref().is_none_or(above) && g.hi.as_ref().is_none_or(below))
        };
        let made_up = |key: &[u8], v: Vec<u8>| !self.ever.contains(&(name.to_owned(), key.to_vec(), v));
        let mut there = Data::new();
        let mut it = family.cursor(..).unwrap();
        it.seek_to_first();
        while it.valid() {
            there.insert(it.key().to_vec(), it.value().unwrap().to_vec());
            it.next();
        }
        it.status().unwrap();
        let mut wrong = 0;
        for (key, value) in data {
            let shown = key.escape_ascii();
            match there.remove(key) {
                Some(v) if v == *value => continue,
                Some(v) => {
                    assert!(!made_up(key, v), "{what}: a value made up");
                    assert!(within(&part.stale, key), "{what}: '{name}' {shown} is stale");
                }
                None => {
                    let told = within(&part.lost, key) || within(&part.stale, key) || part.lost_keys.contains(key);
                    assert!(told, "{what}: '{name}' {shown} is lost silently");
                }
            }
            wrong += 1;
        }
        for (key, v) in there {
            assert!(within(&part.stale, &key), "{what}: '{name}' {} came back", key.escape_ascii());
            assert!(!made_up(&key, v), "{what}: a value made up");
            wrong += 1;
        }
        wrong
    }
}

/// Whether a database has only reached `state` on the way to `all`.
fn ends_at(db: &Db, state: &State, all: &State) -> bool {
    let newer = all.iter().find_map(|(n, d)| d.keys().find(|k| !state[n].contains_key(*k)).map(|k| (n, k)));
    newer.is_some_and(|(name, key)| db.family(name).is_ok_and(|f| f.get(key).is_ok_and(|v| v.is_none())))
}

/// Reads a family in every way; each answer is right or a located error. Returns how many were errors.
pub fn read_family(family: &ColumnFamily, data: &Data, what: &str) -> u64 {
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
    let mut sorted: Vec<(&Vec<u8>, &Vec<u8>)> = data.iter().collect();
    sorted.sort_by(|a, b| family.order().compare(a.0, b.0));
    scan(family, sorted.iter().copied(), true, what, &mut fail);
    scan(family, sorted.iter().rev().copied(), false, what, &mut fail);
    errors
}

fn scan<'d>(
    family: &ColumnFamily,
    expected: impl Iterator<Item = (&'d Vec<u8>, &'d Vec<u8>)>,
    forward: bool,
    what: &str,
    fail: &mut impl FnMut(&Error),
) {
    let mut it = match family.cursor(..) {
        Ok(it) => it,
        Err(e) => return fail(&e),
    };
    if forward {
        it.seek_to_first()
    } else {
        it.seek_to_last()
    }
    for (k, v) in expected {
        if !it.valid() {
            let e = it.status().expect_err(&format!("{what}: the scan ends before {k:?} without an error"));
            return fail(&e);
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
