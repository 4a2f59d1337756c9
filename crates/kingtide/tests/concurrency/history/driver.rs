//! Histories of the engine: random transactions of several threads on a file system in memory, with small memtables so
//! that flushes and merges go on all the time, and a crash or a reopen in the middle, or many of them.

use super::anomaly::{Anomaly, Report};
use super::checker::check;
use super::recorded::{Finals, History, Op, Outcome, OwnWrites};
use super::worker::{FAMILIES, LISTS, Recorded, Worker, World, list_in, locate, register_in};
use kingtide::vfs::{MemFs, Survival};
use kingtide::{ColumnFamily, Db, Durability, Isolation, Options, Tuning};
use kingtide_base::rare;
use kingtide_base::rare::excuses::HISTORIES;
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One history to record.
pub struct Setup {
    pub name: String,
    pub kinds: Vec<(Isolation, bool)>,
    pub txns: u64,
    pub threads: u32,
    pub seed: u64,
}

/// How a part of a history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    Kill,
    PowerCut(Survival),
}

fn options(fs: &MemFs, durability: Durability, tuning: u64) -> Options {
    let mut options = Options::new().fs(Arc::new(fs.clone()));
    let small = "wal_segment_size=65536 max_wal_size=400000 memtable_size=65536 memtable_budget=2M target_file_size=65536 \
                 value_threshold=200 l0_trigger=2 level_ratio=3 block_size=1024 block_cache_size=100000 \
                 background_threads=2 lock_timeout_ms=20";
    for text in small.split_whitespace() {
        let (name, value) = text.split_once('=').expect("name=value");
        options.set(name, value).expect("option");
    }
    options.family.direct_value_threshold = [0, 8, 64, 500][tuning as usize % 4];
    options.tuning = Tuning::random(tuning);
    options.db.durability = durability;
    options
}

/// What was recorded, and how much.
pub struct Outcomes {
    pub report: Report,
    pub history: History,
    pub committed: usize,
}

struct Run<'s> {
    setup: &'s Setup,
    world: World,
    rng: Rng,
    durability: Durability,
    recorded: Vec<Recorded>,
    processes: u32,
}

/// Records and judges a history with these restarts in it.
fn run_with(setup: &Setup, rng: Rng, durability: Durability, endings: &[Ending]) -> Outcomes {
    let mut run = Run { setup, world: World::new(), rng, durability, recorded: Vec::new(), processes: 0 };
    let part = setup.txns / (endings.len() as u64 + 1);
    let mut fs = MemFs::new();
    for ending in endings {
        fs = run.part(&fs, *ending, part);
    }
    let finals = run.last_part(&fs, part);
    let mut txns: Vec<_> = run.recorded.into_iter().map(|r| r.txn).collect();
    txns.sort_by_key(|t| t.begin);
    let committed = txns.iter().filter(|t| matches!(t.outcome, Outcome::Committed(_))).count();
    let history = History { txns, finals: Some(finals) };
    Outcomes { report: check(&history), history, committed }
}

fn any_cut(rng: &mut Rng) -> Ending {
    Ending::PowerCut(Survival::ALL[rng.below(Survival::ALL.len() as u64) as usize])
}

/// Records and judges a history with a close, a kill or a power cut in its middle.
pub fn run(setup: &Setup) -> Outcomes {
    let mut rng = Rng::new(setup.seed);
    let cut = any_cut(&mut rng);
    let ending = [Ending::Close, Ending::Kill, cut][rng.below(3) as usize];
    let durability = if ending == cut { Durability::Power } else { Durability::Process };
    run_with(setup, rng, durability, &[ending])
}

/// The same with many restarts, most of them power cuts, and every commit with `Power` durability.
fn run_across(setup: &Setup, restarts: usize) -> (Outcomes, Vec<Ending>) {
    let mut rng = Rng::new(setup.seed);
    let endings: Vec<Ending> = (0..restarts)
        .map(|_| match rng.below(6) {
            0 => Ending::Close,
            1 | 2 => Ending::Kill,
            _ => any_cut(&mut rng),
        })
        .collect();
    (run_with(setup, rng, Durability::Power, &endings), endings)
}

impl Run<'_> {
    /// Workers on a database, and a thread that flushes and merges, until so many transactions were begun; `meanwhile`
    /// may end it sooner.
    fn work(&mut self, db: &Db, families: &[ColumnFamily], until: u64, meanwhile: impl FnOnce(&World)) {
        let done = AtomicBool::new(false);
        let (world, kinds) = (&self.world, &self.setup.kinds[..]);
        let mut workers = Vec::new();
        for _ in 0..self.setup.threads {
            let (process, rng) = (self.processes, Rng::new(self.rng.next_u64()));
            self.processes += 1;
            workers.push(Worker { world, db, families, process, kinds, rng, recorded: Vec::new() });
        }
        let all = std::thread::scope(|s| {
            let threads: Vec<_> = workers.into_iter().map(|w| s.spawn(move || w.run(until))).collect();
            s.spawn(|| {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(3));
                    let family = &families[round % families.len()];
                    family.flush().expect("flush");
                    if round % 7 == 6 {
                        family.compact_range(..).expect("compact");
                    }
                    round += 1;
                }
            });
            meanwhile(world);
            let all: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            done.store(true, Ordering::Relaxed);
            all
        });
        for result in all {
            self.recorded.extend(result.unwrap_or_else(|e| std::panic::resume_unwind(e)));
        }
        self.world.stop.store(false, Ordering::Relaxed);
    }

    fn open(&mut self, fs: &MemFs) -> (Db, Vec<ColumnFamily>) {
        let options = options(fs, self.durability, self.rng.next_u64());
        let family = options.family.clone();
        let db = Db::open(Path::new("/db"), options).expect("open");
        let families =
            FAMILIES.map(|n| db.family(n).or_else(|_| db.create_family(n, family.clone())).expect("family")).to_vec();
        (db, families)
    }

    /// Runs about so many transactions, until the restart. Returns the disk as the next part finds it.
    fn part(&mut self, fs: &MemFs, ending: Ending, txns: u64) -> MemFs {
        let (db, families) = self.open(fs);
        let until = self.world.begun.load(Ordering::Relaxed) + txns;
        if ending == Ending::Close {
            self.work(&db, &families, until, |_| ());
            db.close().expect("close");
            return fs.clone();
        }
        let (mut left, mut cut) = (None, 0);
        let mut dice = Rng::new(self.rng.next_u64());
        self.work(&db, &families, u64::MAX, |world| {
            while world.begun.load(Ordering::Relaxed) < until {
                std::thread::sleep(Duration::from_micros(200));
            }
            cut = world.tick();
            left = Some(match ending {
                Ending::PowerCut(model) => fs.crash_clone(model, &mut dice),
                _ => fs.kill_clone(),
            });
            world.stop.store(true, Ordering::Relaxed);
        });
        drop((families, db));
        self.forget_lost(&left.expect("the disk"), cut)
    }

    /// Takes what ended after the cut for what the disk says of it. Transactions in doubt are resolved either way.
    fn forget_lost(&mut self, disk: &MemFs, cut: u64) -> MemFs {
        let (db, _families) = self.open(disk);
        let recovered = db.latest_sequence();
        let mut doubt: BTreeMap<Vec<u8>, _> = db.recover_prepared().into_iter().map(|p| (p.xid.to_vec(), p)).collect();
        for record in &mut self.recorded {
            let in_doubt = record.xid.as_ref().is_some_and(|x| doubt.remove(x).is_some());
            let txn = &mut record.txn;
            if in_doubt {
                assert!(txn.end > cut, "in doubt, but resolved and acknowledged before: {txn:?}");
                let xid = record.xid.as_deref().expect("prepared");
                txn.outcome = if self.rng.one_in(3) {
                    db.rollback_prepared(xid).expect("rollback");
                    Outcome::Aborted
                } else {
                    Outcome::Committed(db.commit_prepared(xid).expect("commit"))
                };
                txn.end = self.world.tick();
                continue;
            }
            let wrote = !OwnWrites::of(txn).all().is_empty();
            let there = matches!(txn.outcome, Outcome::Committed(seq) if wrote && seq <= recovered);
            if there || txn.end < cut {
                continue;
            }
            // The crash undid it. A read-uncommitted transaction may still have seen what it wrote.
            txn.outcome = Outcome::Aborted;
            txn.ops.retain(|op| matches!(op, Op::Write { .. } | Op::Append { .. }));
        }
        assert!(doubt.is_empty(), "in doubt, but never prepared: {doubt:?}");
        db.close().expect("close");
        disk.clone()
    }

    fn last_part(&mut self, fs: &MemFs, txns: u64) -> Finals {
        let (db, families) = self.open(fs);
        let until = self.world.begun.load(Ordering::Relaxed) + txns;
        self.work(&db, &families, until, |_| ());
        db.flush().expect("flush");
        let get = |key| {
            let (family, name) = locate(key);
            families[family].get(name).expect("get")
        };
        let registers = (0..LISTS).map(|k| (k, get(k).map(|v| register_in(&v)))).collect();
        let lists = LISTS..self.world.unused() + self.setup.threads;
        let lists = lists.map(|k| (k, get(k).map_or_else(Default::default, |v| list_in(&v)))).collect();
        assert!(db.transactions().is_empty(), "{:?}", db.transactions());
        db.close().expect("close");
        Finals { lists, registers }
    }
}

/// What a level still lets happen, seen when its history is judged by the next one.
const ALLOWED: [(Isolation, Isolation, Anomaly); 4] = [
    (Isolation::ReadUncommitted, Isolation::ReadCommitted, Anomaly::AbortedRead),
    (Isolation::ReadCommitted, Isolation::RepeatableRead, Anomaly::Fractured),
    (Isolation::RepeatableRead, Isolation::Snapshot, Anomaly::LostUpdate),
    (Isolation::Snapshot, Isolation::Serializable, Anomaly::WriteSkew),
];

/// Each level with and without locks, serializable without any, and all of them in one database.
fn mixtures() -> Vec<(String, Vec<(Isolation, bool)>)> {
    let both = |l: &Isolation| [(*l, false), (*l, true)];
    let mut all: Vec<_> = Isolation::ALL.iter().map(|l| (l.name().to_owned(), both(l).to_vec())).collect();
    all.push(("serializable, optimistic".to_owned(), vec![(Isolation::Serializable, false)]));
    all.push(("mixed".to_owned(), Isolation::ALL.iter().flat_map(both).collect()));
    all
}

#[test]
fn transactions_of_every_level_show_only_what_it_allows() {
    let seed = super::seed();
    println!("seed {seed}");
    let (rounds, txns) = if super::full() { (16, 11_000) } else { (2, 4_000) };
    let (mut total, mut committed) = (0, 0);
    let mut seen = [0; ALLOWED.len()];
    for round in 0..rounds {
        for (at, (name, kinds)) in mixtures().into_iter().enumerate() {
            let setup = Setup { name, kinds, txns, threads: 6, seed: seed.wrapping_add(round * 100 + at as u64) };
            let start = std::time::Instant::now();
            let Outcomes { report, history, committed: some } = run(&setup);
            let (name, count) = (&setup.name, history.txns.len());
            println!("{name}: {count} transactions, {some} committed, {} edges, {:.1?}", report.edges, start.elapsed());
            assert!(report.is_clean(), "KINGTIDE_SEED={seed} round {round}, {name}: {report}");
            for (i, (_, stronger, anomaly)) in ALLOWED.iter().enumerate().filter(|a| a.1.0.name() == name) {
                seen[i] += check(&history.at(*stronger)).counts.get(anomaly).copied().unwrap_or(0);
            }
            total += count;
            committed += some;
        }
    }
    println!("{total} transactions, {committed} committed, nothing found that their levels exclude");
    for ((level, _, anomaly), seen) in ALLOWED.iter().zip(seen) {
        println!("{level}: {anomaly:?} {seen} times");
        assert!(seen > 0, "seed {seed}: the transactions at {level} met too rarely to show anything");
    }
}

/// Histories across restarts: with `Power` durability a power cut takes nothing that was acknowledged, and what it takes of
/// the rest leaves no trace, so the whole history, from the first open to the last, must be free of what the levels exclude.
#[test]
fn histories_across_restarts_show_only_what_the_levels_allow() {
    let seed = super::seed();
    println!("seed {seed}");
    let (rounds, txns, restarts) = if super::full() { (12, 12_000, 12) } else { (1, 2_400, 5) };
    let (mut total, mut committed, mut kinds) = (0, 0, BTreeMap::<&str, u64>::new());
    for round in 0..rounds {
        for (at, (name, levels)) in mixtures().into_iter().enumerate() {
            let seed = seed.wrapping_add(0x1_0000 + round * 100 + at as u64);
            let setup = Setup { name, kinds: levels, txns, threads: 6, seed };
            let (outcomes, endings) = run_across(&setup, restarts);
            let Outcomes { report, history, committed: some } = outcomes;
            println!("{}: {} transactions, {some} committed, {} edges", setup.name, history.txns.len(), report.edges);
            assert!(report.is_clean(), "round {round}, {}, after {endings:?}: {report}", setup.name);
            total += history.txns.len();
            committed += some;
            for ending in endings {
                let kind = match ending {
                    Ending::Close => "closes",
                    Ending::Kill => "kills",
                    Ending::PowerCut(_) => "power cuts",
                };
                *kinds.entry(kind).or_default() += 1;
            }
        }
    }
    println!("{total} transactions, {committed} committed, across {kinds:?}: nothing found that their levels exclude");
    println!("{}", HISTORIES.report(&rare::counts()));
    if super::full() {
        HISTORIES.check(&rare::counts()).unwrap_or_else(|never| panic!("{never}"));
    }
}
