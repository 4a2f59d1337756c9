//! `--verify`: what an engine may answer, known from what was written.
//!
//! Every stored value is followed by 24 bytes: the hash of its key, its version, and a checksum over all that. A table of
//! versions, beside the engine, holds for each key the last version that was issued, the last that was acknowledged, and
//! the last that was a delete. Writes of one key happen one after another, so versions of a key are in commit order; a get
//! is right if its version lies between what was acknowledged before it and what was issued when it returned.
//!
//! A scan's keys are not known before it, so what held when it began is found out afterwards: acknowledgements are
//! numbered in the order in which they happened, and those with a number up to the scan's happened before it. A key that
//! was put before the scan and that no thread has begun to delete since must be among its rows ([`Scan`]).

use kingtide_base::hash::hash64;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Bytes behind each value.
const TRAILER: usize = 24;
const STRIPES: usize = 1024;
/// Wrong answers that are described.
const EXAMPLES: usize = 5;

/// What is known of one key.
#[derive(Clone, Copy, Default, Debug)]
pub struct Known {
    issued: u64,
    acknowledged: u64,
    deleted: u64,
    /// When `acknowledged` was.
    at: u64,
    /// The version acknowledged before that, and when.
    before: (u64, u64),
    /// Since when it has existed, if no thread has begun to delete it.
    exists_since: Option<u64>,
}

impl Known {
    /// The oldest version that a read begun at `since` may answer.
    fn oldest_at(&self, since: u64) -> u64 {
        match (self.at <= since, self.before) {
            (true, _) => self.acknowledged,
            (false, (version, at)) if at <= since => version,
            _ => 0,
        }
    }
}

/// Answers that were checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// How many.
    pub verified: u64,
    /// Wrong ones among them.
    pub wrong: u64,
    /// What was wrong with the first few.
    pub examples: Vec<String>,
}

impl Answers {
    /// Counts the answer that `what` gave for a key.
    pub fn judge(&mut self, what: &str, key: &[u8], outcome: Result<(), String>) {
        self.verified += 1;
        if let Err(e) = outcome {
            self.wrong += 1;
            if self.examples.len() < EXAMPLES {
                self.examples.push(format!("{what} {}: {e}", key.escape_ascii()));
            }
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: Answers) {
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.examples.extend(other.examples);
        self.examples.truncate(2 * EXAMPLES);
    }
}

/// The table of versions, shared by all threads.
pub struct Truth {
    known: Vec<Mutex<HashMap<u64, Known>>>,
    writing: Vec<Mutex<()>>,
    /// Every key that was ever written, in order.
    keys: RwLock<BTreeSet<Box<[u8]>>>,
    /// Acknowledgements so far.
    acknowledgements: AtomicU64,
}

impl Default for Truth {
    fn default() -> Self {
        Truth {
            known: (0..STRIPES).map(|_| Mutex::default()).collect(),
            writing: (0..STRIPES).map(|_| Mutex::default()).collect(),
            keys: RwLock::default(),
            acknowledgements: AtomicU64::new(0),
        }
    }
}

/// Writes under way: their keys are locked against other writes until this goes.
pub struct Writing<'a> {
    truth: &'a Truth,
    delete: bool,
    /// Hash and version of each operation.
    pub versions: Vec<(u64, u64)>,
    _locks: Vec<MutexGuard<'a, ()>>,
}

impl Writing<'_> {
    /// The engine acknowledged the writes.
    pub fn acknowledge(self) {
        // Release: pairs with `Truth::now`, so that a thread that reads this number began after the engine had answered.
        let at = self.truth.acknowledgements.fetch_add(1, Ordering::AcqRel) + 1;
        for (hash, version) in &self.versions {
            self.truth.update(*hash, |k| {
                if k.at != at {
                    k.before = (k.acknowledged, k.at);
                }
                (k.acknowledged, k.at) = (*version, at);
                if !self.delete {
                    k.exists_since.get_or_insert(at);
                }
            });
        }
    }
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Truth {
    fn update(&self, hash: u64, change: impl FnOnce(&mut Known)) {
        change(locked(&self.known[hash as usize % STRIPES]).entry(hash).or_default());
    }

    fn known(&self, hash: u64) -> Known {
        locked(&self.known[hash as usize % STRIPES]).get(&hash).copied().unwrap_or_default()
    }

    /// What is known of a key now: taken before a read and handed to [`Truth::judge`] after it.
    pub fn before_read(&self, key: &[u8]) -> Known {
        self.known(hash64(key))
    }

    /// The moment, as the number of acknowledgements before it.
    fn now(&self) -> u64 {
        // Acquire: pairs with `Writing::acknowledge`.
        self.acknowledgements.load(Ordering::Acquire)
    }

    /// Issues versions for writes of these keys, in order.
    pub fn begin_write<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, delete: bool) -> Writing<'_> {
        let keys: Vec<(&[u8], u64)> = keys.map(|k| (k, hash64(k))).collect();
        // Stripes are locked in ascending order, each once, so that no two batches wait for each other.
        let mut stripes: Vec<usize> = keys.iter().map(|(_, h)| *h as usize % STRIPES).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let locks = stripes.into_iter().map(|s| locked(&self.writing[s])).collect();
        let mut versions = Vec::with_capacity(keys.len());
        let mut new = Vec::new();
        for (key, hash) in keys {
            self.update(hash, |k| {
                if k.issued == 0 {
                    new.push(key);
                }
                k.issued += 1;
                if delete {
                    (k.deleted, k.exists_since) = (k.issued, None);
                }
                versions.push((hash, k.issued));
            });
        }
        if !new.is_empty() {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            keys.extend(new.into_iter().map(Box::from));
        }
        Writing { truth: self, delete, versions, _locks: locks }
    }

    /// A value with its trailer.
    pub fn seal(value: &[u8], (hash, version): (u64, u64), out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(value);
        out.extend_from_slice(&hash.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        let sum = hash64(out);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// The value without its trailer and its version, if it is whole and this key's.
    pub fn open<'v>(key: &[u8], stored: &'v [u8]) -> Result<(&'v [u8], u64), String> {
        let Some(body) = stored.len().checked_sub(TRAILER) else {
            return Err(format!("{} bytes are too few for a value that was put", stored.len()));
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&stored[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if word(body + 16) != hash64(&stored[..body + 16]) {
            return Err("its bytes were changed".into());
        }
        if word(body) != hash64(key) {
            return Err("it is another key's value".into());
        }
        Ok((&stored[..body], word(body + 8)))
    }

    /// What is wrong with an answer, if anything; `version` is none for a key that was not found.
    pub fn judge(&self, key: &[u8], before: Known, version: Option<u64>) -> Result<(), String> {
        let now = self.before_read(key);
        match version {
            Some(v) => judge_version(v, before.acknowledged, &now),
            None if before.acknowledged > 0 && now.deleted < before.acknowledged => {
                Err(format!("it is lost: version {} was acknowledged", before.acknowledged))
            }
            None => Ok(()),
        }
    }

    /// Keys in a gap between rows that must have been rows of a scan begun at `since`.
    fn missing(&self, after: Bound<&[u8]>, until: Bound<&[u8]>, since: u64) -> Vec<Box<[u8]>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let all = keys.range::<[u8], _>((after, until));
        all.filter(|k| self.before_read(k).exists_since.is_some_and(|at| at <= since)).cloned().collect()
    }
}

/// What is wrong with a version that was read, if anything, when `oldest` had been acknowledged before.
fn judge_version(version: u64, oldest: u64, now: &Known) -> Result<(), String> {
    if version > now.issued {
        return Err(format!("version {version} was never written; the last is {}", now.issued));
    }
    if version >= oldest {
        return Ok(());
    }
    if version < now.deleted && now.deleted <= oldest {
        return Err(format!("version {version} is stale: version {} deleted it before the read", now.deleted));
    }
    Err(format!("version {version} is stale: {oldest} was acknowledged before the read"))
}

/// A range or a scan under way, checked row by row: rows must ascend within the bounds, each must be one that was written
/// and not too old, and none may be left out.
pub struct Scan {
    truth: Arc<Truth>,
    what: &'static str,
    since: u64,
    lo: Box<[u8]>,
    hi: Option<Box<[u8]>>,
    limit: u64,
    rows: u64,
    /// The greatest key so far.
    last: Option<Box<[u8]>>,
}

impl Scan {
    /// Begins one of `[lo, hi)`. To be called before the engine is.
    pub fn begin(truth: &Arc<Truth>, what: &'static str, lo: &[u8], hi: Option<&[u8]>, limit: usize) -> Scan {
        let (since, limit) = (truth.now(), limit as u64);
        let (lo, hi) = (Box::from(lo), hi.map(Box::from));
        Scan { truth: Arc::clone(truth), what, since, lo, hi, limit, rows: 0, last: None }
    }

    /// Judges the next row. Returns the length of the part of its value that the script put.
    pub fn row(&mut self, key: &[u8], stored: &[u8], answers: &mut Answers) -> usize {
        self.rows += 1;
        let opened = Truth::open(key, stored);
        let len = opened.as_ref().map_or(stored.len(), |(value, _)| value.len());
        let outcome = opened.and_then(|(_, version)| {
            let now = self.truth.before_read(key);
            judge_version(version, now.oldest_at(self.since), &now)
        });
        answers.judge(self.what, key, self.place(key).and(outcome));
        if self.last.as_ref().is_none_or(|last| &**last < key) {
            self.gap(Some(key), answers);
            self.last = Some(key.into());
        }
        len
    }

    /// What is wrong with a row's place, if anything.
    fn place(&self, key: &[u8]) -> Result<(), String> {
        let show = |key: &[u8]| key.escape_ascii().to_string();
        if self.rows > self.limit {
            return Err(format!("it is row {} of {} at most", self.rows, self.limit));
        }
        if key < &*self.lo {
            return Err(format!("it is before the start, {}", show(&self.lo)));
        }
        if let Some(hi) = self.hi.as_ref().filter(|hi| key >= &***hi) {
            return Err(format!("it is not before the end, {}", show(hi)));
        }
        match &self.last {
            Some(last) if **last == *key => Err("it is there twice".into()),
            Some(last) if &**last > key => Err(format!("it is out of order, after {}", show(last))),
            _ => Ok(()),
        }
    }

    /// Judges that no row was left out between the last one and `key`, or the end. Returns whether that is so.
    fn gap(&self, key: Option<&[u8]>, answers: &mut Answers) -> bool {
        let after = self.last.as_deref().map_or(Bound::Included(&*self.lo), Bound::Excluded);
        let end = match (key, &self.hi) {
            (Some(key), _) => Some(key),
            (None, hi) => hi.as_deref(),
        };
        let (Bound::Included(from) | Bound::Excluded(from)) = after else { return true };
        if end.is_some_and(|end| end <= from) {
            return true;
        }
        let missing = self.truth.missing(after, end.map_or(Bound::Unbounded, Bound::Excluded), self.since);
        for key in &missing {
            answers.judge(self.what, key, Err("it is missing".into()));
        }
        missing.is_empty()
    }

    /// There are no more rows in the bounds, if the engine is right.
    pub fn end(&self, answers: &mut Answers) {
        if self.gap(None, answers) {
            answers.judge(self.what, &self.lo, Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(truth: &Truth, key: &[u8], value: &[u8]) -> Vec<u8> {
        let writing = truth.begin_write([key].into_iter(), false);
        let mut out = Vec::new();
        Truth::seal(value, writing.versions[0], &mut out);
        writing.acknowledge();
        out
    }

    #[test]
    fn right_answers_pass_and_wrong_ones_do_not() {
        let truth = Truth::default();
        assert!(truth.judge(b"k", truth.before_read(b"k"), None).is_ok(), "never written");
        let old = put(&truth, b"k", b"one");
        let new = put(&truth, b"k", b"two");
        let (value, version) = Truth::open(b"k", &new).unwrap();
        assert_eq!((value, version), (&b"two"[..], 2));
        let before = truth.before_read(b"k");
        assert!(truth.judge(b"k", before, Some(2)).is_ok());
        assert!(truth.judge(b"k", before, None).unwrap_err().contains("lost"));
        let stale = Truth::open(b"k", &old).unwrap().1;
        assert!(truth.judge(b"k", before, Some(stale)).unwrap_err().contains("stale"));
        assert!(truth.judge(b"k", before, Some(9)).unwrap_err().contains("never written"));
        assert!(Truth::open(b"other", &new).unwrap_err().contains("another key"));
        let mut damaged = new.clone();
        damaged[1] ^= 1;
        assert!(Truth::open(b"k", &damaged).unwrap_err().contains("changed"));
        assert!(Truth::open(b"k", b"short").is_err());
    }

    #[test]
    fn writes_during_a_read_allow_both_answers() {
        let truth = Truth::default();
        put(&truth, b"k", b"one");
        let before = truth.before_read(b"k");
        let deleting = truth.begin_write([&b"k"[..]].into_iter(), true);
        assert!(truth.judge(b"k", before, Some(1)).is_ok() && truth.judge(b"k", before, None).is_ok());
        deleting.acknowledge();
        let after = truth.before_read(b"k");
        assert!(truth.judge(b"k", after, None).is_ok());
        assert!(truth.judge(b"k", after, Some(1)).unwrap_err().contains("stale"), "a deleted value came back");
    }

    #[test]
    fn batches_with_repeated_keys_do_not_wait_for_themselves() {
        let truth = Truth::default();
        let keys = [&b"a"[..], b"b", b"a"];
        let writing = truth.begin_write(keys.into_iter(), false);
        assert_eq!(writing.versions.iter().map(|v| v.1).collect::<Vec<_>>(), [1, 1, 2]);
        writing.acknowledge();
        assert_eq!(truth.before_read(b"a").acknowledged, 2);
    }

    /// Rows of a scan of `[lo, hi)` with the versions that values of them have; the complaints.
    fn scanned(truth: &Arc<Truth>, bounds: (&str, Option<&str>), limit: usize, rows: &[(&str, u64)]) -> Vec<String> {
        let (lo, hi) = bounds;
        let mut scan = Scan::begin(truth, "scan", lo.as_bytes(), hi.map(str::as_bytes), limit);
        let mut answers = Answers::default();
        for (key, version) in rows {
            let mut stored = Vec::new();
            Truth::seal(b"value", (hash64(key.as_bytes()), *version), &mut stored);
            assert_eq!(scan.row(key.as_bytes(), &stored, &mut answers), 5);
        }
        if rows.len() < limit {
            scan.end(&mut answers);
        }
        assert_eq!(answers.wrong as usize, answers.examples.len());
        answers.examples
    }

    fn delete(truth: &Truth, key: &[u8]) {
        truth.begin_write([key].into_iter(), true).acknowledge();
    }

    #[test]
    fn scans_are_judged_by_what_is_certain() {
        let truth = Arc::new(Truth::default());
        for key in ["a", "b", "c", "d", "d", "e"] {
            put(&truth, key.as_bytes(), b"value");
        }
        delete(&truth, b"c");
        let all = [("a", 1), ("b", 1), ("d", 2), ("e", 1)];
        assert!(scanned(&truth, ("a", None), 9, &all).is_empty());
        assert!(scanned(&truth, ("", Some("e")), 9, &all[..3]).is_empty());
        assert!(scanned(&truth, ("b", Some("c")), 9, &all[1..2]).is_empty());
        assert!(scanned(&truth, ("a", None), 2, &all[..2]).is_empty(), "the limit ends it");
        assert!(
            scanned(&truth, ("c", Some("c")), 9, &[]).is_empty()
                && scanned(&truth, ("d", Some("b")), 9, &[]).is_empty()
        );
        for (bounds, limit, rows, wanted) in [
            (("a", None), 9, &[("a", 1), ("d", 2), ("e", 1)][..], &["b: it is missing"][..]),
            (("a", None), 9, &[("b", 1), ("d", 2), ("e", 1)], &["a: it is missing"]),
            (("a", None), 9, &all[..3], &["e: it is missing"]),
            (("a", Some("e")), 9, &[], &["a: it is missing", "b: it is missing", "d: it is missing"]),
            (
                ("a", None),
                9,
                &[("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 1)],
                &["c: version 1 is stale: version 2 deleted"],
            ),
            (("a", None), 9, &[("a", 1), ("b", 1), ("d", 1), ("e", 1)], &["d: version 1 is stale: 2 was acknowledged"]),
            (("a", None), 9, &[("a", 1), ("b", 1), ("d", 3), ("e", 1)], &["d: version 3 was never written"]),
            (
                ("a", None),
                9,
                &[("a", 1), ("b", 1), ("bb", 1), ("d", 2), ("e", 1)],
                &["bb: version 1 was never written"],
            ),
            (("a", None), 9, &[("a", 1), ("b", 1), ("b", 1), ("d", 2), ("e", 1)], &["b: it is there twice"]),
            (
                ("a", None),
                9,
                &[("a", 1), ("d", 2), ("b", 1), ("e", 1)],
                &["b: it is missing", "b: it is out of order, after d"],
            ),
            (("b", None), 9, &all, &["a: it is before the start, b"]),
            (("a", Some("d")), 9, &all[..3], &["d: it is not before the end, d"]),
            (("a", None), 3, &all, &["e: it is row 4 of 3 at most"]),
        ] {
            let complaints = scanned(&truth, bounds, limit, rows);
            assert_eq!(complaints.len(), wanted.len(), "{rows:?}: {complaints:?}");
            for (got, wanted) in complaints.iter().zip(wanted) {
                assert!(got.starts_with(&format!("scan {wanted}")), "{rows:?}: {complaints:?}");
            }
        }
    }

    #[test]
    fn scans_allow_what_others_write_meanwhile() {
        let truth = Arc::new(Truth::default());
        put(&truth, b"a", b"value");
        put(&truth, b"b", b"value");
        let stored = |version| {
            let mut out = Vec::new();
            Truth::seal(b"value", (hash64(b"b"), version), &mut out);
            out
        };
        let begin = || (Scan::begin(&truth, "scan", b"b", None, 9), Answers::default());
        // Deleted, and put again, while the scan goes on: there or not, in either version.
        for ended in [false, true] {
            let ((mut scan, mut seen), (unseen_scan, mut unseen)) = (begin(), begin());
            let deleting = truth.begin_write([&b"b"[..]].into_iter(), true);
            let mut deleting = Some(deleting);
            if ended {
                deleting.take().into_iter().for_each(Writing::acknowledge);
            }
            let version = truth.before_read(b"b").issued - 1;
            scan.row(b"b", &stored(version), &mut seen);
            scan.end(&mut seen);
            unseen_scan.end(&mut unseen);
            assert_eq!((seen.wrong, unseen.wrong), (0, 0), "{ended}: {seen:?} {unseen:?}");
            drop(deleting);
            put(&truth, b"b", b"value");
        }
        // Put again before the scan: it must be there, and must be new.
        let (scan, mut answers) = begin();
        put(&truth, b"b", b"value");
        scan.end(&mut answers);
        assert_eq!(answers.wrong, 1, "written over, but never gone");
        let (mut scan, mut answers) = begin();
        let last = truth.before_read(b"b").issued;
        put(&truth, b"b", b"value");
        for (version, wrong) in [(last + 1, 0), (last, 0), (last - 1, 1)] {
            let (mut again, mut answers) = (Scan { since: scan.since, ..begin().0 }, Answers::default());
            again.row(b"b", &stored(version), &mut answers);
            assert_eq!(answers.wrong, wrong, "version {version} where {last} was acknowledged before: {answers:?}");
        }
        scan.row(b"b", &stored(last), &mut answers);
        assert_eq!(answers, Answers { verified: 1, ..Answers::default() });
    }
}
