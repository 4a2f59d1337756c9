//! A scenario: commits of mixed durability, flushes, merges and family changes, run on the test's own thread, with
//! the disk cloned before each write operation.

use crate::history::{Commit, FamilyNo, History, Op, Progress};
use kingtide::vfs::{Fs, MemFs};
use kingtide::{ColumnFamily, Db, Durability, FamilyOptions, ManualClock, Options, Result, WriteBatch, WriteOptions};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const DIR: &str = "/db";

/// What a scenario does more of.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// `option=value` for the open.
    pub options: &'static str,
    /// Bytes of the usual value.
    pub value: u64,
    /// One commit in so many is not logged; 0: none.
    pub unlogged: u64,
    /// One commit in so many asks for `Power`.
    pub power: u64,
    /// Of a thousand steps: flushes, merges, family changes, reopens.
    pub rare: [u64; 4],
}

pub const KINDS: [Kind; 5] = [
    Kind { name: "mixed", options: "", value: 300, unlogged: 0, power: 4, rare: [30, 15, 20, 8] },
    Kind { name: "unlogged", options: "", value: 200, unlogged: 3, power: 6, rare: [40, 10, 10, 8] },
    Kind {
        name: "value-logs",
        options: "value_threshold=1 vlog_dead_ratio=0.05 l0_trigger=1",
        value: 2000,
        unlogged: 0,
        power: 8,
        rare: [60, 40, 0, 8],
    },
    Kind {
        name: "log-rotation",
        options: "max_wal_size=131072 memtable_budget=200000",
        value: 9000,
        unlogged: 0,
        power: 10,
        rare: [10, 5, 5, 15],
    },
    Kind {
        name: "families",
        options: "value_threshold=0 memtable_budget=300000",
        value: 200,
        unlogged: 6,
        power: 5,
        rare: [30, 10, 120, 15],
    },
];

pub fn options(kind: &Kind, fs: Arc<dyn Fs>, clock: &Arc<ManualClock>) -> Options {
    let mut options = Options { fs: Some(fs), clock: Some(clock.clone()), manual_jobs: true, ..Options::default() };
    let small = "wal_segment_size=65536 max_wal_size=400000 memtable_size=65536 memtable_budget=1M target_file_size=65536 \
                 value_threshold=200 l0_trigger=2 level_ratio=2 block_size=1024 block_cache_size=100000";
    for text in small.split_whitespace().chain(kind.options.split_whitespace()) {
        let (name, value) = text.split_once('=').expect("name=value");
        options.set(name, value).expect("option");
    }
    options
}

/// A scenario that runs.
pub struct Scenario {
    pub kind: Kind,
    pub history: History,
    pub progress: Arc<Mutex<Progress>>,
    pub fs: Arc<dyn Fs>,
    pub clock: Arc<ManualClock>,
    rng: Rng,
    pub db: Option<Db>,
    pub families: BTreeMap<String, (FamilyNo, ColumnFamily)>,
    next_family: FamilyNo,
}

impl Scenario {
    /// Opens a database in an empty file system.
    pub fn new(kind: Kind, seed: u64, fs: Arc<dyn Fs>) -> Scenario {
        let default = BTreeMap::from([("default".to_owned(), 0)]);
        let progress = Progress { families: BTreeMap::new(), changing: Some(default), ..Progress::default() };
        Scenario {
            kind,
            history: History::default(),
            progress: Arc::new(Mutex::new(progress)),
            fs,
            clock: ManualClock::at_unix_ms(1_700_000_000_000),
            rng: Rng::new(seed),
            db: None,
            families: BTreeMap::new(),
            next_family: 1,
        }
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("open")
    }

    fn edit<R>(&self, change: impl FnOnce(&mut Progress) -> R) -> R {
        change(&mut self.progress.lock().expect("progress"))
    }

    /// Opens; the families are those that the history tells.
    pub fn open(&mut self) -> Result<()> {
        let db = Db::open(Path::new(DIR), options(&self.kind, self.fs.clone(), &self.clock))?;
        let known = self.edit(|p| {
            if let Some(next) = p.changing.take().filter(|n| n.keys().eq(db.families().iter())) {
                p.families = next;
            }
            p.families.clone()
        });
        assert_eq!(db.families(), known.keys().cloned().collect::<Vec<_>>());
        self.families = known
            .iter()
            .map(|(name, no)| Ok((name.clone(), (*no, db.family(name)?))))
            .collect::<Result<BTreeMap<_, _>>>()?;
        self.db = Some(db);
        Ok(())
    }

    /// One step; `Err` where the database refused it.
    pub fn step(&mut self) -> Result<()> {
        let [flush, merge, family, reopen] = self.kind.rare;
        let roll = self.rng.below(1000);
        self.clock.advance(Duration::from_millis(1));
        if roll < flush {
            self.flush()
        } else if roll < flush + merge {
            let names: Vec<String> = self.families.keys().cloned().collect();
            let name = &names[self.rng.below(names.len() as u64) as usize];
            self.families[name].1.compact_range(None, None)
        } else if roll < flush + merge + family {
            self.change_family()
        } else if roll < flush + merge + family + reopen {
            self.reopen()
        } else if roll > 960 {
            self.db().run_one_job().map(drop)
        } else if roll > 950 {
            self.db().sync()?;
            self.edit(|p| p.power = p.process);
            Ok(())
        } else {
            self.commit()
        }
    }

    pub fn reopen(&mut self) -> Result<()> {
        let db = self.db.take().expect("open");
        let begun = self.edit(|p| p.begun);
        let closed = db.close();
        self.families.clear();
        drop(db);
        if closed.is_ok() {
            self.all_flushed(begun);
        }
        closed.and(self.open())
    }

    fn flush(&mut self) -> Result<()> {
        let begun = self.edit(|p| p.begun);
        self.db().flush()?;
        self.all_flushed(begun);
        Ok(())
    }

    /// What was committed so far is in tables.
    fn all_flushed(&self, begun: usize) {
        self.edit(|p| {
            p.power = p.process;
            for family in p.families.clone().into_values() {
                p.flushed.insert(family, begun);
            }
        });
    }

    fn change_family(&mut self) -> Result<()> {
        if self.edit(|p| p.changing.is_some()) {
            return self.commit(); // one in doubt at a time; the next open decides it
        }
        let name = format!("family-{}", self.rng.below(4));
        let mut next = self.edit(|p| p.families.clone());
        let renamed = format!("renamed-{}", self.rng.below(2));
        let exists = next.contains_key(&name);
        let rename = exists && !next.contains_key(&renamed) && self.rng.one_in(3);
        let drop = exists && !rename;
        if rename && let Some(no) = next.remove(&name) {
            next.insert(renamed.clone(), no);
        } else if drop {
            next.remove(&name);
        } else {
            next.insert(name.clone(), self.next_family);
        }
        self.edit(|p| p.changing = Some(next.clone()));
        if rename {
            self.db().rename_family(&name, &renamed)?;
            let family = self.families.remove(&name).expect("known");
            self.families.insert(renamed, family);
        } else if drop {
            self.families.remove(&name);
            self.db().drop_family(&name)?;
        } else {
            self.next_family += 1;
            let options = FamilyOptions { memtable_size: 65536, value_threshold: 100, ..FamilyOptions::default() };
            let handle = self.db().create_family(&name, options)?;
            self.families.insert(name, (self.next_family - 1, handle));
        }
        self.edit(|p| (p.families, p.changing) = (next, None));
        Ok(())
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key-{:03}", self.rng.below(60)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(200) {
            0 => 70_000, // more than a log segment
            1..10 => self.rng.below(10 * self.kind.value),
            _ => self.rng.below(self.kind.value),
        };
        let mut value = vec![0; len as usize];
        self.rng.fill(&mut value);
        value
    }

    /// The operations of a random batch.
    fn random_ops(&mut self) -> Vec<Op> {
        let handles: Vec<FamilyNo> = self.families.values().map(|f| f.0).collect();
        let spread = 1 + self.rng.below(3.min(handles.len() as u64));
        let chosen: Vec<FamilyNo> =
            (0..spread).map(|_| handles[self.rng.below(handles.len() as u64) as usize]).collect();
        let mut ops = Vec::new();
        for _ in 0..1 + self.rng.below(5) {
            let family = chosen[self.rng.below(chosen.len() as u64) as usize];
            let key = self.key();
            ops.push(match self.rng.below(12) {
                0..9 => Op::Put(family, key, self.value()),
                9 | 10 => Op::Delete(family, key),
                _ => {
                    let other = self.key();
                    let (from, mut to) = (key.clone().min(other.clone()), key.max(other));
                    to.push(b'x'); // never empty: a batch without operations is not logged, so syncs nothing
                    Op::DeleteRange(family, from, to)
                }
            });
        }
        ops
    }

    fn commit(&mut self) -> Result<()> {
        let ops = self.random_ops();
        let durability = match self.rng.below(self.kind.power) {
            0 => Durability::Power,
            1 => Durability::Interval(Duration::from_millis(3)),
            _ if self.kind.unlogged > 0 && self.rng.one_in(self.kind.unlogged) => Durability::None,
            _ => Durability::Process,
        };
        self.commit_ops(ops, durability)
    }

    pub fn commit_ops(&mut self, ops: Vec<Op>, durability: Durability) -> Result<()> {
        let mut batch = WriteBatch::new();
        for op in &ops {
            let (_, handle) = self.families.values().find(|f| f.0 == op.family()).expect("family");
            match op {
                Op::Put(_, k, v) => batch.put(handle, k, v)?,
                Op::Delete(_, k) => batch.delete(handle, k)?,
                Op::DeleteRange(_, a, b) => batch.delete_range(handle, a, b)?,
            }
        }
        let logged = durability != Durability::None || ops.iter().any(|op| op.family() != ops[0].family());
        self.history.commits.push(Commit { ops, logged });
        let number = self.history.commits.len();
        self.edit(|p| p.begun = number);
        self.db().write_with(&mut batch, &WriteOptions { durability: Some(durability), no_wait: false })?;
        self.edit(|p| {
            if logged {
                p.process = number;
            }
            if durability == Durability::Power {
                p.power = number;
            }
        });
        Ok(())
    }
}

/// The disk before a write operation, and what the caller had been told by then.
pub struct Cut {
    pub number: u64,
    pub disk: MemFs,
    pub progress: Progress,
}

/// Runs a scenario of `steps` steps and returns its history and the disk before each of its write operations.
pub fn record(kind: Kind, seed: u64, steps: u64) -> (History, Vec<Cut>) {
    let fs = MemFs::new();
    let mut scenario = Scenario::new(kind, seed, Arc::new(fs.clone()));
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let (keep, progress) = (cuts.clone(), scenario.progress.clone());
    fs.on_write(Some(Box::new(move |b| {
        let progress = progress.lock().expect("progress").clone();
        keep.lock().expect("cuts").push(Cut { number: b.number, disk: b.kill_clone(), progress });
    })));
    scenario.open().expect("open");
    for _ in 0..steps {
        scenario.step().expect("step");
    }
    scenario.db().close().expect("close");
    fs.on_write(None);
    scenario.history.freeze();
    let cuts = std::mem::take(&mut *cuts.lock().expect("cuts"));
    (scenario.history, cuts)
}
