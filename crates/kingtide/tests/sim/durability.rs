//! The durability that each commit chooses, and what `Interval` promises: once the time is over, the next background job sees to it that the
//! commit and all before it survive a power cut. With manual jobs, a sync that is due waits for that job.

use crate::sim::clock::JITTER;
use crate::sim::cuts::on_two_threads;
use crate::sim::draws::quiet_panics;
use crate::sim::lives::{live, troubled};
use crate::sim::plan::{Part, Plan};
use crate::sim::world::{Counts, World};
use kingtide::{Durability, Result};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

/// What commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// A call for one operation.
    Single,
    Batch,
    Transaction,
    /// A transaction that is committed in order, without a wait for its ticket.
    Ordered,
    Prepare,
    /// The end of a prepared transaction: a commit, or a rollback.
    CommitPrepared,
    RollBackPrepared,
    /// An ingest or a clone.
    Files,
}

/// What commits, and the durability that it asks for. `None`: that of the database.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub by: By,
    pub asked: Option<Durability>,
}

impl How {
    pub fn new(by: By, asked: Option<Durability>) -> How {
        How { by, asked }
    }

    /// The column of the table in which it is counted.
    pub fn level(self) -> &'static str {
        match self.asked {
            None => "the database's",
            Some(Durability::None) => "none",
            Some(Durability::Process) => "process",
            Some(Durability::Interval(_)) => "interval",
            Some(Durability::Power) => "power",
        }
    }
}

/// What survives a power cut from a time on.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// The last event.
    event: usize,
    /// The first background job after this must sync it: nanoseconds of the monotonic clock.
    due: u64,
    /// The commit asked for it, and the option of the database would not have it synced as soon.
    own: bool,
}

/// The promises that are open.
#[derive(Debug, Default)]
pub struct Promises {
    open: Vec<Promise>,
    /// The clock went back, and no job has seen that yet. What is promised meanwhile may be late by as much as the clock went back.
    clock_moved: bool,
}

/// The intervals that commits ask for, in microseconds. Less than a millisecond counts as one.
const INTERVALS: [u64; 5] = [0, 300, 3_000, 20_000, 100_000];

impl World {
    /// The durability that a commit asks for.
    pub fn asked(&mut self) -> Option<Durability> {
        let (power, interval) = (self.plan.mix.power, self.plan.mix.interval);
        match self.rng.below(100) {
            n if n < power => Some(Durability::Power),
            n if n < power + interval => {
                let within = INTERVALS[self.rng.below(INTERVALS.len() as u64) as usize];
                Some(Durability::Interval(Duration::from_micros(within)))
            }
            n if n < power + interval + self.plan.mix.unlogged => Some(Durability::None),
            n if n.is_multiple_of(2) => None,
            _ => Some(Durability::Process),
        }
    }

    /// The durability that a commit has.
    pub fn durability(&self, asked: Option<Durability>) -> Durability {
        asked.unwrap_or(self.option)
    }

    /// By how much the monotonic clock may seem to lag behind.
    fn tremble(&self) -> Duration {
        if self.plan.does(Part::Clock) { JITTER } else { Duration::ZERO }
    }

    /// Event `n` was acknowledged, and is in the log.
    pub fn promise(&mut self, n: usize, how: How) {
        let Durability::Interval(within) = self.durability(how.asked) else { return };
        let within = within.max(Duration::from_millis(1));
        let by_option = matches!(self.option, Durability::Interval(every) if every <= within);
        if !self.promises.clock_moved {
            let due = self.clock.monotonic() + (within + self.tremble()).as_nanos() as u64;
            self.promises.open.push(Promise { event: n, due, own: how.asked.is_some() && !by_option });
        }
    }

    /// The option `durability` may have changed. If it was `Interval`, what was promised may be due only when that time has passed from now on.
    pub fn option_changed(&mut self, now: Durability) {
        if let Durability::Interval(every) = std::mem::replace(&mut self.option, now) {
            let due = self.clock.monotonic() + (every + self.tremble()).as_nanos() as u64;
            self.promises.open.iter_mut().for_each(|p| p.due = p.due.max(due));
        }
    }

    /// The clock was set. It is no longer known when the engine takes its earlier promises to be due.
    pub fn clock_was_set(&mut self) {
        self.promises = Promises { open: Vec::new(), clock_moved: true };
    }

    /// Runs a background job, after which nothing is due.
    pub fn run_job(&mut self) -> Result<bool> {
        let now = self.clock.monotonic();
        let ran = self.db().run_one_job();
        self.promises.clock_moved = false;
        let power = self.edit(|p| p.power);
        self.promises.open.retain(|p| p.event > power);
        let due = || self.promises.open.iter().filter(|p| p.due <= now);
        let last = due().map(|p| p.event).max();
        // A log that is stopped is not synced.
        if let Some(n) = last.filter(|_| self.db().stats().writes_stopped.is_none()) {
            let own = due().all(|p| p.own);
            self.counts.kept += u64::from(own);
            self.edit(|p| p.synced(n, own));
        }
        ran
    }

    /// How long it takes until all that was promised is due.
    pub fn longest_promise(&self) -> Duration {
        let last = self.promises.open.iter().map(|p| p.due).max();
        let from_now = last.map_or(0, |due| due.saturating_sub(self.clock.monotonic()));
        let by_option = match self.option {
            Durability::Interval(every) => every + JITTER,
            _ => Duration::ZERO,
        };
        Duration::from_nanos(from_now).max(by_option)
    }
}

/// A table of the commits that were acknowledged.
pub fn table(commits: &BTreeMap<(By, &'static str), u64>) -> String {
    let mut lines = String::from("commits by the durability that they asked for:");
    let mut last = None;
    for ((by, level), n) in commits {
        if last.replace(*by) != Some(*by) {
            lines += &format!("\n  {by:?}:");
        }
        lines += &format!(" {level} {n},");
    }
    lines
}

/// Lives of the test.
const SEEDS: u64 = 24;

/// Lives in which commits choose their durability, and most of what a power cut must leave was synced only because one commit asked for that.
#[test]
fn every_commit_survives_a_power_cut_as_it_asked() {
    quiet_panics();
    let all = Plan::all();
    let plan = troubled(all.iter().find(|p| p.name == "own-interval").expect("the scenario"));
    let totals = Mutex::new(Counts::default());
    let only = crate::sim::env("KINGTIDE_SEED");
    let seeds: Vec<u64> = only.map_or((1..=SEEDS).collect(), |seed| vec![seed]);
    let failures = on_two_threads(&seeds, |seed| {
        let case = format!("KINGTIDE_SEED={seed}");
        let lived = catch_unwind(AssertUnwindSafe(|| live(&plan, *seed, 500)));
        match lived {
            Ok(counts) => totals.lock().expect("totals").add(&counts, 500),
            Err(_) => return vec![case],
        }
        Vec::new()
    });
    assert!(failures.is_empty(), "{failures:#?}");
    let n = totals.into_inner().expect("totals");
    println!(
        "{} power cuts, {} behind a commit's own Interval, which were kept {} times",
        n.cuts, n.behind_interval, n.kept
    );
    println!("{} commits beside transactions in doubt", n.beside_doubt);
    println!("{}", table(&n.commits));
    if only.is_some() {
        return;
    }
    assert!(n.behind_interval >= 2 * SEEDS && n.kept >= 10 * SEEDS, "too few to find much");
    let reached = [
        (By::Single, &["the database's"][..]),
        (By::Batch, &["interval", "process", "power", "none", "the database's"][..]),
        (By::Transaction, &["interval", "process", "none", "the database's"][..]),
        (By::Ordered, &["interval"][..]),
        (By::Prepare, &["interval", "process", "power"][..]),
        (By::CommitPrepared, &["interval", "the database's"][..]),
        (By::RollBackPrepared, &["interval", "the database's"][..]),
    ];
    for (by, levels) in reached {
        for level in levels {
            assert!(n.commits.contains_key(&(by, *level)), "no {by:?} with the durability {level}");
        }
    }
}
