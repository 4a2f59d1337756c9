//! One transaction at a time against ordered maps: random verbs, among plain writes, flushes and merges, on every level,
//! optimistic and locking. Every answer is what the level promises, every commit is refused exactly when it must be, and
//! what is left is what the maps say.
//!
//! `KINGTIDE_SEED` runs one seed again; `KINGTIDE_FULL=1` runs many.

use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, Db, ErrorKind, FamilyOptions, Isolation, KeyOrder, Options, ReadOptions, Result, Transaction,
    TransactionOptions,
};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

type Key = Vec<u8>;
/// By family and key.
type Map = BTreeMap<(usize, Key), Vec<u8>>;

/// Family 0 is ordered bytewise, family 1 in reverse.
const FAMILIES: usize = 2;

fn before(family: usize, a: &[u8], b: &[u8]) -> bool {
    if family == 0 { a < b } else { a > b }
}

/// A part of a family: a key, or a range.
#[derive(Clone, Debug)]
enum Part {
    Key(usize, Key),
    /// From the first, included, to the second, excluded; in the family's order.
    Range(usize, Key, Key),
    Prefix(usize, Key),
    /// From the first through the last.
    Through(usize, Key, Key),
    /// The keys of a prefix that are not between two of them; those two are in it.
    Around(usize, Key, [Key; 2]),
}

impl Part {
    fn holds(&self, family: usize, key: &[u8]) -> bool {
        match self {
            Part::Key(f, k) => *f == family && k == key,
            Part::Range(f, lo, hi) => *f == family && !before(family, key, lo) && before(family, key, hi),
            Part::Prefix(f, p) => *f == family && key.starts_with(p),
            Part::Through(f, lo, hi) => *f == family && !before(family, key, lo) && !before(family, hi, key),
            Part::Around(f, p, [lo, hi]) => {
                let between = before(family, lo, key) && before(family, key, hi);
                *f == family && key.starts_with(p) && !between
            }
        }
    }

    /// Whether they have a key in common, of all that there could be: one that is used, or one past those of a prefix.
    fn meets(&self, other: &Part) -> bool {
        let past = all_keys().iter().map(|k| [&k[..], &[0xff; 3]].concat());
        past.collect::<Vec<_>>()
            .iter()
            .chain(all_keys())
            .any(|k| (0..FAMILIES).any(|f| self.holds(f, k) && other.holds(f, k)))
    }
}

const LETTERS: [u8; 3] = [b'a', b'b', 0xff];

fn all_keys() -> &'static [Key] {
    static KEYS: std::sync::OnceLock<Vec<Key>> = std::sync::OnceLock::new();
    KEYS.get_or_init(|| {
        let longer =
            |keys: &[Key]| -> Vec<Key> { keys.iter().flat_map(|k| LETTERS.map(|l| [&k[..], &[l]].concat())).collect() };
        let one = longer(&[Vec::new()]);
        let two = longer(&one);
        let three = longer(&two);
        [one, two, three].concat()
    })
}

#[derive(Clone, Debug)]
enum Write {
    Put(usize, Key, Vec<u8>),
    Delete(Part),
}

impl Write {
    fn apply(&self, map: &mut Map) {
        match self {
            Write::Put(f, k, v) => drop(map.insert((*f, k.clone()), v.clone())),
            Write::Delete(part) => map.retain(|(f, k), _| !part.holds(*f, k)),
        }
    }

    fn part(&self) -> Part {
        match self {
            Write::Put(f, k, _) => Part::Key(*f, k.clone()),
            Write::Delete(part) => part.clone(),
        }
    }
}

/// What must be unchanged at the commit, since the change with this number.
type Check = (Part, usize);

struct Driver {
    db: Db,
    families: [ColumnFamily; FAMILIES],
    rng: Rng,
    committed: Map,
    options: TransactionOptions,
    txn: Transaction,
    /// What was committed when the transaction began: a locking one begins with its first operation.
    base: Map,
    begun: bool,
    /// Whether a locking one stays at its beginning, because something depends on it that is not locked.
    fixed: bool,
    own: Vec<Write>,
    savepoints: Vec<(String, usize)>,
    /// What others changed since the transaction began.
    changes: Vec<Part>,
    checks: Vec<Check>,
    /// Commits, refusals, writes that met a lock, and beginnings that moved.
    counts: [u64; 4],
}

impl Driver {
    fn new(level: Isolation, locking: bool, seed: u64) -> Driver {
        let mut open = Options::new().fs(Arc::new(MemFs::new())).manual_jobs(true);
        open.set("memtable_size", "64K").unwrap();
        open.set("lock_timeout_ms", "0").unwrap();
        let db = Db::open("/db", open).unwrap();
        let reverse = db.create_family_ordered("reverse", FamilyOptions::default(), KeyOrder::Reverse).unwrap();
        let lock_timeout = Some(Duration::ZERO);
        let options = TransactionOptions::new(level).locking(locking).lock_timeout(lock_timeout);
        Driver {
            families: [db.default_family().clone(), reverse],
            rng: Rng::new(seed),
            committed: Map::new(),
            txn: db.begin_with(options.clone()).unwrap(),
            options,
            base: Map::new(),
            begun: false,
            fixed: false,
            own: Vec::new(),
            savepoints: Vec::new(),
            changes: Vec::new(),
            checks: Vec::new(),
            counts: [0; 4],
            db,
        }
    }

    fn key(&mut self) -> Key {
        all_keys()[self.rng.below(all_keys().len() as u64) as usize].clone()
    }

    fn family(&mut self) -> usize {
        self.rng.below(FAMILIES as u64) as usize
    }

    fn value(&mut self) -> Vec<u8> {
        let long = self.rng.below(20) == 0;
        let length = if long { 3000 } else { self.rng.below(20) };
        (0..length).map(|_| self.rng.below(256) as u8).collect()
    }

    /// Two keys in the family's order.
    fn range(&mut self, family: usize) -> (Key, Key) {
        let (a, b) = (self.key(), self.key());
        if before(family, &b, &a) { (b, a) } else { (a, b) }
    }

    fn level(&self) -> Isolation {
        self.options.isolation
    }

    fn reads_as_of_begin(&self) -> bool {
        self.level() >= Isolation::RepeatableRead && !self.locks_reads()
    }

    fn locks_reads(&self) -> bool {
        self.level() == Isolation::Serializable && self.options.locking
    }

    fn checks_reads(&self) -> bool {
        self.level() == Isolation::Serializable && !self.options.locking
    }

    fn checks_writes(&self) -> bool {
        self.level() >= Isolation::Snapshot && !self.locks_reads()
    }

    /// What the transaction's reads see: `newest` for those that look past its beginning.
    fn visible(&self, newest: bool) -> Map {
        let mut map = if self.reads_as_of_begin() && !newest { self.base.clone() } else { self.committed.clone() };
        self.own.iter().for_each(|w| w.apply(&mut map));
        map
    }

    fn first_operation(&mut self) {
        if self.options.locking && !self.begun {
            self.base = self.committed.clone();
            self.changes.clear();
            self.begun = true;
        }
    }

    /// It saw what it may not have locked.
    fn saw(&mut self, part: Part) {
        self.fixed = true;
        if self.checks_reads() {
            self.checks.push((part, 0));
        }
    }

    /// It locks a part that may have changed since its beginning. Returns whether it is refused that; if not, it may begin anew.
    fn is_refused(&mut self, part: &Part) -> bool {
        if !self.checks_writes() || !self.changed_since(part, 0) {
            return false;
        }
        if self.options.locking && !self.fixed {
            self.base = self.committed.clone();
            self.changes.clear();
            self.counts[3] += 1;
            return false;
        }
        true
    }

    fn changed_since(&self, part: &Part, since: usize) -> bool {
        self.changes[since..].iter().any(|c| c.meets(part))
    }

    /// A write of another client, or background work.
    fn outside(&mut self) {
        let f = self.family();
        let family = self.families[f].clone();
        let (write, result) = match self.rng.below(12) {
            0 => return self.db.flush().unwrap(),
            1 => {
                let _ = self.db.run_one_job().unwrap();
                return;
            }
            2 => return family.compact_range(..).unwrap(),
            3..8 => {
                let (key, value) = (self.key(), self.value());
                let result = family.put(&key, &value);
                (Write::Put(f, key, value), result)
            }
            8 | 9 => {
                let key = self.key();
                let result = family.delete(&key);
                (Write::Delete(Part::Key(f, key)), result)
            }
            10 => {
                let (lo, hi) = self.range(f);
                let result = family.delete_range(&lo..&hi);
                if lo == hi {
                    return result.map(drop).unwrap();
                }
                (Write::Delete(Part::Range(f, lo, hi)), result)
            }
            _ => {
                // Where the prefix has no end, the keys found are deleted and nothing around them changes.
                let prefix = if f == 0 { vec![LETTERS[self.rng.below(2) as usize]] } else { vec![0xff] };
                if f == 1 && !self.committed.keys().any(|(g, k)| *g == 1 && k.starts_with(&prefix)) {
                    return family.delete_prefix(&prefix).map(drop).unwrap();
                }
                let part = if f == 0 { Part::Prefix(f, prefix.clone()) } else { self.span_of(&prefix) };
                (Write::Delete(part), family.delete_prefix(&prefix))
            }
        };
        match result.map(drop) {
            Ok(()) => {
                write.apply(&mut self.committed);
                self.changes.push(write.part());
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::LockTimeout, "{e}");
                assert!(!self.db.locks().is_empty());
                self.counts[2] += 1;
            }
        }
    }

    /// From the first committed key of a prefix in family 1 through the last.
    fn span_of(&self, prefix: &[u8]) -> Part {
        let found = self.committed.keys().filter(|(f, k)| *f == 1 && k.starts_with(prefix));
        let found: Vec<&Key> = found.map(|(_, k)| k).collect();
        Part::Through(1, found[found.len() - 1].clone(), found[0].clone())
    }

    fn write(&mut self) {
        let f = self.family();
        let family = self.families[f].clone();
        let (write, result) = match self.rng.below(8) {
            0..4 => {
                let (key, value) = (self.key(), self.value());
                let result = match self.rng.below(4) {
                    0 => self.txn.put_ttl(&family, &key, &value, Duration::from_secs(1_000_000)),
                    _ => self.txn.put(&family, &key, &value),
                };
                (Write::Put(f, key, value), result)
            }
            4 | 5 => {
                let key = self.key();
                let result = self.txn.delete(&family, &key);
                (Write::Delete(Part::Key(f, key)), result)
            }
            6 => {
                let (lo, hi) = self.range(f);
                let result = self.txn.delete_range(&family, &lo..&hi);
                if lo == hi {
                    return result.unwrap();
                }
                (Write::Delete(Part::Range(f, lo, hi)), result)
            }
            _ => return self.delete_prefix(f, &family),
        };
        self.first_operation();
        self.written(write, result);
    }

    fn written(&mut self, write: Write, result: Result<()>) {
        let refused = self.options.locking && self.is_refused(&write.part());
        assert_eq!(result.err().map(|e| e.kind()), refused.then_some(ErrorKind::Conflict), "{write:?}");
        if !refused {
            self.own.push(write);
        }
    }

    fn delete_prefix(&mut self, f: usize, family: &ColumnFamily) {
        let key = self.key();
        let prefix = key[..1 + self.rng.below(key.len() as u64) as usize].to_vec();
        self.first_operation();
        let visible = self.visible(false);
        let result = self.txn.delete_prefix(family, &prefix);
        if f == 0 && prefix.iter().any(|b| *b != 0xff) {
            return self.written(Write::Delete(Part::Prefix(f, prefix)), result);
        }
        // Looked for: first and last in the family's order, and what is between.
        let found: Vec<Key> =
            visible.into_keys().filter(|(g, k)| *g == f && k.starts_with(&prefix)).map(|(_, k)| k).collect();
        let Some(last) = found.last().cloned() else {
            self.saw(Part::Prefix(f, prefix));
            return result.unwrap();
        };
        let (first, last) = if f == 0 { (found[0].clone(), last) } else { (last, found[0].clone()) };
        // The search fixes the beginning.
        self.saw(Part::Around(f, prefix, [first.clone(), last.clone()]));
        let range = Write::Delete(Part::Range(f, first.clone(), last.clone()));
        let check = self.options.locking && self.checks_writes();
        let range_refused = check && first != last && self.changed_since(&range.part(), 0);
        let last_refused = check && self.changed_since(&Part::Key(f, last.clone()), 0);
        let refused = range_refused || last_refused;
        assert_eq!(result.err().map(|e| e.kind()), refused.then_some(ErrorKind::Conflict));
        if !range_refused && first != last {
            self.own.push(range);
        }
        if !refused {
            self.own.push(Write::Delete(Part::Key(f, last)));
        }
    }

    fn read(&mut self) {
        let f = self.family();
        let family = self.families[f].clone();
        self.first_operation();
        let visible = self.visible(false);
        let key = self.key();
        match self.rng.below(4) {
            0 | 1 => {
                let found = self.txn.get(&family, &key).unwrap();
                assert_eq!(found.as_deref(), visible.get(&(f, key.clone())).map(|v| &v[..]), "get {key:?}");
                self.saw_unless_own(f, key);
            }
            2 => {
                let keys: Vec<Key> = (0..self.rng.below(6) + 1).map(|_| self.key()).collect();
                let found = self.txn.multi_get(&family, &keys);
                for (key, found) in keys.into_iter().zip(found) {
                    assert_eq!(found.unwrap().as_deref(), visible.get(&(f, key.clone())).map(|v| &v[..]));
                    self.saw_unless_own(f, key);
                }
            }
            _ => self.read_for_update(f, &family, key),
        }
    }

    /// A key that the transaction wrote itself depends on no other transaction.
    fn saw_unless_own(&mut self, f: usize, key: Key) {
        if !self.own.iter().any(|w| w.part().holds(f, &key)) {
            self.saw(Part::Key(f, key));
        }
    }

    fn read_for_update(&mut self, f: usize, family: &ColumnFamily, key: Key) {
        let part = Part::Key(f, key.clone());
        let share = self.rng.below(2) == 0;
        let found = match share {
            true => self.txn.get_for_share(family, &key),
            false => self.txn.get_for_update(family, &key),
        };
        if self.is_refused(&part) {
            assert_eq!(found.unwrap_err().kind(), ErrorKind::Conflict);
            return;
        }
        let expected = self.visible(true).get(&(f, key.clone())).cloned();
        assert_eq!(found.unwrap().as_deref(), expected.as_deref(), "read for update {key:?}");
        if !self.options.locking && !self.own.iter().any(|w| w.part().holds(f, &key)) {
            let since = if self.checks_writes() { 0 } else { self.changes.len() };
            self.checks.push((part, since));
        }
        if self.rng.below(8) == 0 {
            self.fixed |= self.txn.unlock_last().unwrap();
        }
    }

    /// Looks at the beginning itself.
    fn look(&mut self) {
        if self.rng.below(2) == 0 {
            let sequence = self.txn.snapshot_sequence();
            assert!(sequence <= self.db.latest_sequence());
            self.fixed |= self.begun;
            return;
        }
        self.first_operation();
        let f = self.family();
        let (family, key) = (self.families[f].clone(), self.key());
        let changed = self.txn.changed_since_snapshot(&family, &key).unwrap();
        assert_eq!(changed, self.reads_as_of_begin() && self.changed_since(&Part::Key(f, key), 0));
        self.fixed = true;
    }

    /// A cursor against the sorted keys, wherever it is put and moved; in the end it has seen all of its range.
    fn iterate(&mut self) {
        let f = self.family();
        let family = self.families[f].clone();
        self.first_operation();
        let (lo, hi) = self.range(f);
        let (part, options) = match self.rng.below(3) {
            0 => {
                let prefix = vec![LETTERS[self.rng.below(3) as usize]];
                let options = ReadOptions::new().prefix(prefix.clone());
                (Part::Prefix(f, prefix), options)
            }
            _ => {
                let (lower, upper) = (Bound::Included(lo.clone()), Bound::Excluded(hi.clone()));
                (Part::Range(f, lo, hi), ReadOptions::new().range((lower, upper)))
            }
        };
        let mut shown: Vec<(Key, Vec<u8>)> = self
            .visible(false)
            .into_iter()
            .map(|((g, k), v)| (g, k, v))
            .filter(|(g, k, _)| *g == f && part.holds(f, k))
            .map(|(_, k, v)| (k, v))
            .collect();
        if f == 1 {
            shown.reverse();
        }
        let mut it = self.txn.cursor_with(&family, options).unwrap();
        self.fixed = true;
        let mut at: Option<usize> = None;
        for step in 0..self.rng.below(12) + 2 {
            // The first two moves pass over everything.
            let key = self.key();
            match if step < 2 { step } else { self.rng.below(8) } {
                0 => {
                    it.seek_to_first();
                    let all: Vec<_> = std::iter::from_fn(|| {
                        let entry = it.valid().then(|| it.entry().map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
                        it.next();
                        entry
                    })
                    .collect();
                    assert_eq!(all, shown);
                    at = None;
                }
                1 => {
                    it.seek_to_last();
                    at = shown.len().checked_sub(1);
                }
                2 => {
                    it.seek(&key);
                    at = shown.iter().position(|(k, _)| !before(f, k, &key));
                }
                3 => {
                    it.seek_for_prev(&key);
                    at = shown.iter().rposition(|(k, _)| !before(f, &key, k));
                }
                4 | 5 => {
                    it.next();
                    at = at.map(|i| i + 1).filter(|i| *i < shown.len());
                }
                _ => {
                    it.prev();
                    at = at.and_then(|i| i.checked_sub(1));
                }
            }
            let found = it.valid().then(|| it.entry().map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
            assert_eq!(found.as_ref(), at.map(|i| &shown[i]));
            it.status().unwrap();
        }
        self.saw(part);
    }

    fn savepoint(&mut self) {
        let name = format!("s{}", self.rng.below(3));
        let known = self.savepoints.iter().rposition(|(n, _)| *n == name);
        match self.rng.below(4) {
            0 | 1 => {
                self.txn.set_savepoint(&name).unwrap();
                self.savepoints.push((name, self.own.len()));
            }
            2 => {
                let result = self.txn.rollback_to_savepoint(&name);
                assert_eq!(result.err().map(|e| e.kind()), known.is_none().then_some(ErrorKind::NotFound));
                if let Some(i) = known {
                    self.own.truncate(self.savepoints[i].1);
                    self.savepoints.truncate(i + 1);
                }
            }
            _ => {
                let result = self.txn.release_savepoint(&name);
                assert_eq!(result.err().map(|e| e.kind()), known.is_none().then_some(ErrorKind::NotFound));
                self.savepoints.truncate(known.unwrap_or(self.savepoints.len()));
            }
        }
        assert_eq!(self.txn.len(), self.own.len());
    }

    /// Whether a commit must be refused now.
    fn is_stale(&self) -> bool {
        let writes = self.checks_writes() && self.own.iter().any(|w| self.changed_since(&w.part(), 0));
        let reads = self.checks.iter().any(|(part, since)| self.changed_since(part, *since));
        !self.options.locking && !self.own.is_empty() && (writes || reads)
    }

    fn end(&mut self) {
        let stale = self.is_stale();
        let how = self.rng.below(10);
        let commits = match how {
            0 => {
                self.txn.rollback().unwrap();
                false
            }
            1 => false, // begun again without an end
            2 if !self.own.is_empty() => {
                let prepared = self.txn.prepare(b"model");
                assert_eq!(prepared.err().map(|e| e.kind()), stale.then_some(ErrorKind::Conflict));
                for _ in 0..self.rng.below(5) {
                    self.outside();
                }
                match self.rng.below(4) {
                    _ if stale => false,
                    0 => {
                        self.txn.commit().unwrap();
                        true
                    }
                    1 => self.db.commit_prepared(b"model").map(|_| true).unwrap(),
                    2 => self.db.rollback_prepared(b"model").map(|()| false).unwrap(),
                    _ => self.txn.rollback().map(|()| false).unwrap(),
                }
            }
            _ => {
                let result = self.txn.commit();
                let kind = result.as_ref().err().map(|e| e.kind());
                assert_eq!(kind, stale.then_some(ErrorKind::Conflict), "{result:?}");
                self.counts[usize::from(stale)] += 1;
                !stale
            }
        };
        if commits {
            let own = std::mem::take(&mut self.own);
            own.iter().for_each(|w| w.apply(&mut self.committed));
        }
        self.begin();
    }

    fn begin(&mut self) {
        if self.rng.below(2) == 0 {
            self.txn.reset().unwrap();
        } else {
            self.txn = self.db.begin_with(self.options.clone()).unwrap();
        }
        assert!(self.db.locks().is_empty());
        self.base = self.committed.clone();
        (self.begun, self.fixed) = (false, false);
        self.own.clear();
        self.savepoints.clear();
        self.changes.clear();
        self.checks.clear();
    }

    /// What a reader outside finds, of all.
    fn check_committed(&self) {
        let mut found = Map::new();
        for (f, family) in self.families.iter().enumerate() {
            found.extend(family.iter().map(|e| e.unwrap().into()).map(|(k, v): (Vec<u8>, Vec<u8>)| ((f, k), v)));
        }
        assert_eq!(found, self.committed);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.write(),
            30..50 => self.read(),
            50..59 => self.iterate(),
            59 => self.look(),
            60..70 => self.savepoint(),
            // Rarely, or every commit that reads would be refused.
            70..80 => self.outside(),
            80..92 => self.end(),
            _ => self.check_committed(),
        }
    }
}

#[test]
fn a_transaction_is_what_its_level_promises() {
    let only: Option<u64> = kingtide_testkit::number("KINGTIDE_SEED");
    let full = kingtide_testkit::full();
    let (seeds, steps) = if full { (50, 10_000) } else { (4, 5_000) };
    for level in Isolation::ALL {
        for locking in [false, true] {
            let mut counts = [0; 4];
            for seed in only.map_or(0..seeds, |s| s..s + 1) {
                let at = std::cell::Cell::new(0);
                let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let mut driver = Driver::new(level, locking, seed);
                    for i in 0..steps {
                        at.set(i);
                        driver.step();
                    }
                    driver.check_committed();
                    driver.counts
                }));
                match run {
                    Ok(run) => counts.iter_mut().zip(run).for_each(|(sum, n)| *sum += n),
                    Err(_) => panic!("{level}, locking {locking}: KINGTIDE_SEED={seed} failed at step {}", at.get()),
                }
            }
            println!("{level}, locking {locking}: {counts:?} commits, refusals, locks met, beginnings moved");
            let moves = locking && level == Isolation::Snapshot;
            assert!(only.is_some() || (counts[3] > 0) == moves, "{counts:?}");
            assert!(only.is_some() || counts[0] > 100 && (counts[1] > 0) != locking && counts[2] > 0, "{counts:?}");
        }
    }
}
