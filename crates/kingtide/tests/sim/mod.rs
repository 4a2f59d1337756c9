//! The simulation: scenarios from files on a simulated disk, on one thread, with simulated time, so that scenario and seed
//! decide everything that happens.
//!
//! | module | what it proves |
//! |---|---|
//! | [`cuts`] | after a power cut or kill at any write operation, recovery finds an exact prefix with all that was acknowledged |
//! | [`faults`] | errors from the disk lose nothing acknowledged, and nothing panics or hangs |
//! | [`durability`] | a commit survives a power cut as it asked, `Interval` included, whatever kind of commit it is |
//! | [`lives`] | one database outlives kills, cuts, faults and clocks that go back, and its files always say what memory has |
//! | [`locked`] | what a transaction in doubt has locked stays as it is, over kills and power cuts |
//! | [`repeat`] | a run can be repeated to the byte |
//!
//! `KINGTIDE_FULL=1 cargo test --release -p kingtide-tests --test engine sim::` runs the full counts. A failure prints a line with
//! `KINGTIDE_SCENARIO`, `KINGTIDE_SEED` and `KINGTIDE_CUT` or `KINGTIDE_FAULT`, which set in the environment run just that
//! again.

mod clients;
mod clock;
mod copies;
mod cuts;
mod draws;
mod durability;
mod faults;
mod history;
mod ingests;
mod lives;
mod locked;
mod plan;
mod readers;
mod repeat;
mod storm;
mod trace;
mod watchdog;
mod world;
mod writes;

pub use kingtide_testkit::full;
use plan::Plan;
use std::sync::Arc;

pub fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Whether this is a full run of all scenarios, which must take every rare path, and no part of one.
pub fn is_whole() -> bool {
    let part = ["KINGTIDE_SCENARIO", "KINGTIDE_SEED", "KINGTIDE_FAULT", "KINGTIDE_CUT", "KINGTIDE_LIVES"];
    full() && part.iter().all(|name| std::env::var_os(name).is_none())
}

/// The scenarios to run, and of each the seeds.
pub fn cases(seeds: u64) -> Vec<(Arc<Plan>, u64)> {
    draws::quiet_panics();
    let only = std::env::var("KINGTIDE_SCENARIO").ok();
    let plans = Plan::all().into_iter().filter(|p| only.as_ref().is_none_or(|name| *name == p.name));
    let seeds = env("KINGTIDE_SEED").map_or(1..=seeds, |seed| seed..=seed);
    // Seed by seed, so that a run that is broken off has seen all scenarios.
    let plans: Vec<Arc<Plan>> = plans.map(Arc::new).collect();
    assert!(!plans.is_empty(), "no scenario of that name");
    seeds.flat_map(|seed| plans.iter().map(move |p| (p.clone(), seed)).collect::<Vec<_>>()).collect()
}
