//! Target: sequences of operations, each answer compared with ordered maps.
//!
//! The input is a program: each byte chooses an operation, the bytes behind it are its operands. Jobs run only when the
//! program says so, so an input replays exactly.

use crate::must;
use crate::sample::{Data, options};
use kingtide::vfs::MemFs;
use kingtide::{
    ColumnFamily, Cursor, Db, IngestOptions, Isolation, Snapshot, SortedFileWriter, Transaction, WriteBatch,
};
use kingtide_base::coding::Reader;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

const DIR: &str = "db";
const NAMES: [&str; 3] = ["default", "b", "c"];
/// Operations of one input at most.
const MOST: usize = 600;

/// What the families should hold; none for one that does not exist.
type Oracle = [Option<Data>; NAMES.len()];

/// A program.
pub fn ops(data: &[u8]) {
    let mut world = World::new();
    let mut r = Reader::new(data);
    for _ in 0..MOST {
        if world.step(&mut r).is_none() {
            break;
        }
    }
    world.txn = None;
    world.check_all();
    world.reopen(true);
    world.check_all();
    let report = must(world.db.verify(), "verify");
    assert!(report.is_clean(), "{report:?}");
}

/// An operation that writes.
#[derive(Clone)]
enum Write {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    Range(usize, Vec<u8>, Vec<u8>),
}

fn apply(oracle: &mut Oracle, write: &Write) {
    match write {
        Write::Put(f, k, v) => drop(oracle[*f].as_mut().map(|d| d.insert(k.clone(), v.clone()))),
        Write::Delete(f, k) => drop(oracle[*f].as_mut().map(|d| d.remove(k))),
        Write::Range(f, a, b) => {
            if let Some(d) = &mut oracle[*f] {
                d.retain(|k, _| k < a || k >= b);
            }
        }
    }
}

/// A transaction, and what it should see.
struct Txn {
    txn: Transaction,
    view: Oracle,
    writes: Vec<Write>,
    savepoints: Vec<(String, Oracle, usize)>,
    /// Another writer committed since it began.
    disturbed: bool,
}

/// An iterator, what it should show, and where it is.
struct Walk {
    it: Cursor,
    data: Data,
    at: Option<Vec<u8>>,
}

struct World {
    fs: MemFs,
    db: Db,
    oracle: Oracle,
    snapshots: Vec<(Snapshot, Oracle, BTreeSet<usize>)>,
    walk: Option<Walk>,
    txn: Option<Txn>,
    count: u32,
}

impl World {
    fn new() -> World {
        let fs = MemFs::new();
        let db = must(Db::open(DIR, Self::options(&fs)), "open");
        let oracle = [Some(Data::new()), None, None];
        World { fs, db, oracle, snapshots: Vec::new(), walk: None, txn: None, count: 0 }
    }

    fn options(fs: &MemFs) -> kingtide::Options {
        let mut o = options(fs);
        o.family.l0_trigger = 2;
        o
    }

    /// The next operation. `None` at the end of the program.
    fn step(&mut self, r: &mut Reader<'_>) -> Option<()> {
        match r.u8()? % 32 {
            0..=5 => {
                let write = self.write(r)?;
                self.commit(&[write]);
            }
            6 => {
                let n = r.u8()? % 8;
                let writes = (0..n).map_while(|_| self.write(r)).collect::<Vec<_>>();
                self.commit(&writes);
            }
            7 => self.ingest(r)?,
            8 | 9 => self.get(family_of(r)?, &key(r)?),
            10 => must(self.db.flush(), "flush"),
            11 => {
                let f = family_of(r)?;
                let (lo, hi) = (key(r)?, key(r)?);
                if self.oracle[f].is_some() {
                    let ends = (Bound::Included(&lo[..]), Bound::Included(&hi[..]));
                    let range = if r.u8()? & 1 == 0 { (Bound::Unbounded, Bound::Unbounded) } else { ends };
                    match (self.family(f).compact_range(range), range) {
                        (compacted, (Bound::Included(lo), Bound::Included(hi))) if lo > hi => {
                            assert!(compacted.is_err())
                        }
                        (compacted, _) => must(compacted, "compact"),
                    }
                }
            }
            12 => {
                must(self.db.run_one_job(), "a job");
            }
            13 => self.reopen(r.u8()? & 1 == 0),
            14 => self.create_or_drop(r.u8()?),
            15 => self.snapshot(r)?,
            16..=22 => self.iterate(r)?,
            23..=30 => self.transact(r)?,
            _ => self.check_all(),
        }
        Some(())
    }

    fn family(&self, f: usize) -> ColumnFamily {
        must(self.db.family(NAMES[f]), "a family")
    }

    fn write(&mut self, r: &mut Reader<'_>) -> Option<Write> {
        let f = family_of(r)?;
        self.count += 1;
        Some(match r.u8()? {
            0..=63 => Write::Delete(f, key(r)?),
            64..=95 => {
                let (a, b) = (key(r)?, key(r)?);
                Write::Range(f, (&a).min(&b).clone(), a.max(b))
            }
            n => Write::Put(f, key(r)?, value(self.count, n)),
        })
    }

    /// Commits writes on families that are there, as one batch.
    fn commit(&mut self, writes: &[Write]) {
        let mut batch = WriteBatch::new();
        let of = |w: &Write| match w {
            Write::Put(f, ..) | Write::Delete(f, _) | Write::Range(f, ..) => *f,
        };
        for w in writes.iter().filter(|w| self.oracle[of(w)].is_some()) {
            let family = self.family(of(w));
            let added = match w {
                Write::Put(_, k, v) => batch.put(&family, k, v),
                Write::Delete(_, k) => batch.delete(&family, k),
                Write::Range(_, a, b) => batch.delete_range(&family, a..b),
            };
            must(added, "an operation of a batch");
        }
        must(self.db.write(batch), "a commit");
        writes.iter().for_each(|w| apply(&mut self.oracle, w));
        if let Some(t) = &mut self.txn {
            t.disturbed = true;
        }
    }

    /// Ingests one or two sorted files of a family, the second over the first, which may delete a range.
    fn ingest(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let (f, what) = (family_of(r)?, r.u8()?);
        let mut files: [BTreeMap<Vec<u8>, Write>; 2] = Default::default();
        for n in 0..what % 16 {
            self.count += 1;
            let (k, v) = (key(r)?, r.u8()?);
            let write = match v {
                0..=63 => Write::Delete(f, k.clone()),
                _ => Write::Put(f, k.clone(), value(self.count, v)),
            };
            files[n as usize % 2].insert(k, write);
        }
        let range = if what & 128 > 0 { Some((key(r)?, key(r)?)) } else { None };
        let range = range.filter(|(a, b)| a != b).map(|(a, b)| Write::Range(f, (&a).min(&b).clone(), a.max(b)));
        // In a file, a deleted range is what the family held before: the file's own entries stay.
        let files = files.map(|points| points.into_values().collect::<Vec<_>>());
        let files = [range.into_iter().chain(files[0].clone()).collect(), files[1].clone()];
        if self.oracle[f].is_none() || files[0].is_empty() {
            return Some(());
        }
        let family = self.family(f);
        let files = files.iter().filter(|writes| !writes.is_empty());
        let paths: Vec<String> =
            files.clone().enumerate().map(|(n, writes)| self.sorted_file(&family, n, writes)).collect();
        let options = IngestOptions::new().move_files(what & 32 > 0).verify(what & 64 > 0);
        must(family.ingest(&paths, &options), "an ingest");
        files.flatten().for_each(|w| apply(&mut self.oracle, w));
        if let Some(t) = &mut self.txn {
            t.disturbed = true;
        }
        Some(())
    }

    fn sorted_file(&self, family: &ColumnFamily, number: usize, writes: &[Write]) -> String {
        let path = format!("{}-{number}.sorted", self.count);
        let mut file = must(SortedFileWriter::create(&path, family), "a sorted file");
        for write in writes {
            let added = match write {
                Write::Put(_, k, v) => file.put(k, v),
                Write::Delete(_, k) => file.delete(k),
                Write::Range(_, a, b) => file.delete_range(a..b),
            };
            must(added, "an entry of a sorted file");
        }
        must(file.finish(), "a sorted file");
        path
    }

    fn get(&self, f: usize, k: &[u8]) {
        let Some(data) = &self.oracle[f] else { return };
        assert_eq!(must(self.family(f).get(k), "get").as_deref(), data.get(k).map(|v| &v[..]), "get of {k:?}");
        for (snapshot, then, gone) in &self.snapshots {
            if let (Some(data), false) = (&then[f], gone.contains(&f)) {
                let got = must(snapshot.of(&self.family(f)).get(k), "get at a snapshot");
                assert_eq!(got.as_deref(), data.get(k).map(|v| &v[..]), "get of {k:?} at a snapshot");
            }
        }
    }

    /// Opens it again, after a close or after the death of the process.
    fn reopen(&mut self, closed: bool) {
        (self.txn, self.walk) = (None, None);
        self.snapshots.clear();
        if closed {
            must(self.db.close(), "close");
        } else {
            self.fs = self.fs.kill_clone();
        }
        self.db = must(Db::open(DIR, Self::options(&self.fs)), "open again");
        let names: Vec<&str> = NAMES.iter().zip(&self.oracle).filter(|n| n.1.is_some()).map(|n| *n.0).collect();
        let mut found = self.db.families();
        found.sort_by_key(|n| NAMES.iter().position(|m| m == n));
        assert_eq!(found, names, "families after opening again");
    }

    /// Drops a family, or makes one: empty, or a clone of the first.
    fn create_or_drop(&mut self, what: u8) {
        let f = what as usize % NAMES.len();
        if f == 0 || self.txn.is_some() {
            return;
        }
        self.walk = None;
        if self.oracle[f].take().is_some() {
            must(self.db.drop_family(NAMES[f]), "drop");
        } else if what >= 128 {
            must(self.db.clone_family(NAMES[0], NAMES[f]), "clone");
            self.oracle[f] = self.oracle[0].clone();
        } else {
            must(self.db.create_family(NAMES[f], Self::options(&self.fs).family), "create");
            self.oracle[f] = Some(Data::new());
        }
        self.snapshots.iter_mut().for_each(|s| s.2.extend([f]));
    }

    fn snapshot(&mut self, r: &mut Reader<'_>) -> Option<()> {
        match r.u8()? {
            n if n & 1 == 0 && self.snapshots.len() < 4 => {
                self.snapshots.push((self.db.snapshot(), self.oracle.clone(), BTreeSet::new()));
            }
            n if !self.snapshots.is_empty() => drop(self.snapshots.remove(n as usize / 2 % self.snapshots.len())),
            _ => {}
        }
        Some(())
    }

    /// A step of the iterator that is open, or a new one.
    fn iterate(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let what = r.u8()?;
        if self.walk.is_none() || what >= 240 {
            let f = family_of(r)?;
            let Some(data) = &self.oracle[f] else { return Some(()) };
            let (a, b) = (key(r)?, key(r)?);
            let bounded = what & 1 == 1 && a < b;
            let range = match bounded {
                true => (Bound::Included(&a[..]), Bound::Excluded(&b[..])),
                false => (Bound::Unbounded, Bound::Unbounded),
            };
            let it = must(self.family(f).cursor(range), "an iterator");
            let data = data.iter().filter(|(k, _)| !bounded || (**k >= a && **k < b));
            let data = data.map(|(k, v)| (k.clone(), v.clone())).collect();
            self.walk = Some(Walk { it, data, at: None });
            return Some(());
        }
        let w = self.walk.as_mut()?;
        let (it, data) = (&mut w.it, &w.data);
        let first_key = |e: Option<(&Vec<u8>, &Vec<u8>)>| e.map(|e| e.0.clone());
        w.at = match what % 8 {
            0 => {
                it.seek_to_first();
                first_key(data.first_key_value())
            }
            1 => {
                it.seek_to_last();
                first_key(data.last_key_value())
            }
            2 => {
                let k = key(r)?;
                it.seek(&k);
                first_key(data.range(k..).next())
            }
            3 => {
                let k = key(r)?;
                it.seek_for_prev(&k);
                first_key(data.range(..=k).next_back())
            }
            4 | 5 => {
                it.next();
                let at = w.at.take();
                at.and_then(|k| first_key(data.range((Bound::Excluded(k), Bound::Unbounded)).next()))
            }
            _ => {
                it.prev();
                let at = w.at.take();
                at.and_then(|k| first_key(data.range(..k).next_back()))
            }
        };
        let value = w.at.as_ref().map(|k| data[k].clone());
        assert_eq!(it.valid().then(|| it.key().to_vec()), w.at, "where an iterator is");
        if it.valid() {
            assert_eq!(Some(must(it.value(), "a value").to_vec()), value, "what an iterator shows");
        }
        must(it.status(), "an iterator");
        Some(())
    }

    /// An operation of the transaction that is open, or a new one.
    fn transact(&mut self, r: &mut Reader<'_>) -> Option<()> {
        let what = r.u8()?;
        let Some(mut t) = self.txn.take() else {
            let level = [Isolation::Snapshot, Isolation::Serializable, Isolation::RepeatableRead][what as usize % 3];
            let txn = must(self.db.begin(level), "begin");
            let view = self.oracle.clone();
            self.txn = Some(Txn { txn, view, writes: Vec::new(), savepoints: Vec::new(), disturbed: false });
            return Some(());
        };
        match what % 16 {
            0..=6 => self.write_in(&mut t, r)?,
            7 | 8 => {
                let (f, k) = (family_of(r)?, key(r)?);
                if let Some(data) = &t.view[f] {
                    let got = must(t.txn.get(&self.family(f), &k), "get in a transaction");
                    assert_eq!(got.as_deref(), data.get(&k).map(|v| &v[..]), "get of {k:?} in a transaction");
                }
            }
            9 => {
                let name = format!("s{}", what / 16 % 3);
                must(t.txn.set_savepoint(&name), "a savepoint");
                t.savepoints.push((name, t.view.clone(), t.writes.len()));
            }
            10 | 11 => self.to_savepoint(&mut t, &format!("s{}", what / 16 % 3), what % 16 == 10),
            12 => {
                let f = family_of(r)?;
                if let Some(data) = &t.view[f] {
                    let mut it = must(t.txn.cursor(&self.family(f), ..), "an iterator of a transaction");
                    it.seek_to_first();
                    for (k, v) in data {
                        assert!(it.valid(), "an iterator of a transaction ends before {k:?}");
                        let value = must(it.value(), "a value").to_vec();
                        assert_eq!((it.key(), &value), (&k[..], v), "an iterator of a transaction");
                        it.next();
                    }
                    assert!(!it.valid());
                    must(it.status(), "an iterator of a transaction");
                }
            }
            13 => {
                must(t.txn.rollback(), "roll back");
                return Some(());
            }
            _ => {
                match t.txn.commit() {
                    Ok(_) => t.writes.iter().for_each(|w| apply(&mut self.oracle, w)),
                    Err(e) => assert!(t.disturbed && e.is_transient_conflict(), "{e:?}"),
                }
                return Some(());
            }
        }
        self.txn = Some(t);
        Some(())
    }

    fn write_in(&mut self, t: &mut Txn, r: &mut Reader<'_>) -> Option<()> {
        let write = self.write(r)?;
        let (Write::Put(f, ..) | Write::Delete(f, _) | Write::Range(f, ..)) = &write;
        if t.view[*f].is_none() {
            return Some(());
        }
        let family = self.family(*f);
        let done = match &write {
            Write::Put(_, k, v) => t.txn.put(&family, k, v),
            Write::Delete(_, k) => t.txn.delete(&family, k),
            Write::Range(_, a, b) => t.txn.delete_range(&family, a..b),
        };
        must(done, "a write in a transaction");
        apply(&mut t.view, &write);
        t.writes.push(write);
        Some(())
    }

    fn to_savepoint(&self, t: &mut Txn, name: &str, roll_back: bool) {
        let at = t.savepoints.iter().rposition(|s| s.0 == name);
        let done = match roll_back {
            true => t.txn.rollback_to_savepoint(name),
            false => t.txn.release_savepoint(name),
        };
        let Some(at) = at else {
            assert!(done.is_err(), "a savepoint that is not set");
            return;
        };
        must(done, "a savepoint");
        if roll_back {
            (t.view, t.savepoints[at].1) = (t.savepoints[at].1.clone(), t.savepoints[at].1.clone());
            t.writes.truncate(t.savepoints[at].2);
            t.savepoints.truncate(at + 1);
        } else {
            t.savepoints.truncate(at);
        }
    }

    /// Compares everything.
    fn check_all(&self) {
        for (f, name) in NAMES.iter().enumerate() {
            let Some(data) = &self.oracle[f] else {
                assert!(self.db.family(name).is_err(), "family {name} was dropped, or never made");
                continue;
            };
            let family = self.family(f);
            let mut found = BTreeMap::new();
            let mut it = must(family.cursor(..), "an iterator");
            it.seek_to_first();
            while it.valid() {
                found.insert(it.key().to_vec(), must(it.value(), "a value").to_vec());
                it.next();
            }
            must(it.status(), "a scan");
            assert_eq!(&found, data, "all of family {name}");
            it.seek_to_last();
            for k in data.keys().rev() {
                assert_eq!(it.valid().then(|| it.key()), Some(&k[..]), "backwards");
                it.prev();
            }
            let keys: Vec<Vec<u8>> = (0..64).map(|n| key_of(n).to_vec()).collect();
            for (k, got) in keys.iter().zip(family.multi_get(&keys)) {
                assert_eq!(must(got, "multi-get").as_deref(), data.get(k).map(|v| &v[..]), "multi-get of {k:?}");
                self.get(f, k);
            }
        }
    }
}

fn family_of(r: &mut Reader<'_>) -> Option<usize> {
    Some(match r.u8()? {
        0..=159 => 0,
        160..=207 => 1,
        _ => 2,
    })
}

/// Of few keys, some of which are others' beginnings.
fn key(r: &mut Reader<'_>) -> Option<Vec<u8>> {
    Some(key_of(r.u8()? % 64))
}

fn key_of(n: u8) -> Vec<u8> {
    match n % 4 {
        0 => vec![b'a' + n / 16],
        1 => vec![b'a' + n / 16, n],
        2 => vec![b'a' + n / 16, n, 0],
        _ => format!("{}-a-key-of-more-bytes-{n}", (b'a' + n / 16) as char).into_bytes(),
    }
}

fn value(count: u32, n: u8) -> Vec<u8> {
    let len = match n {
        0..=127 => n as usize % 4 + 4,
        128..=223 => 60,
        224..=247 => 400,
        _ => 9_000,
    };
    count.to_le_bytes().iter().copied().cycle().take(len).collect()
}
