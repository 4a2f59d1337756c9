//! Long lives of one database: kills, power cuts, faults of the disk and shadow recoveries while the scenario goes on, so
//! that what one of them leaves behind meets the next.

use crate::sim::clock::LATER;
use crate::sim::cuts::on_two_threads;
use crate::sim::draws::PANICS;
use crate::sim::durability::table;
use crate::sim::plan::{Part, Plan};
use crate::sim::storm::{DEATHS, Doom};
use crate::sim::watchdog::watch;
use crate::sim::world::{Counts, World};
use crate::sim::{cases, env, full, is_whole};
use kingtide::vfs::MemFs;
use kingtide_base::rare;
use kingtide_base::rare::excuses::LIVES;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A scenario in which everything happens that can happen to it, a disk that fails as the plan says included.
pub fn troubled(plan: &Plan) -> Arc<Plan> {
    let mut plan = plan.clone();
    let total: u64 = plan.weights.iter().map(|w| w.1).sum();
    let mut add = |part: Part, weight: u64| {
        if !plan.weights.iter().any(|w| w.0 == part) {
            plan.weights.push((part, weight));
        }
    };
    add(Part::Kill, total / 60);
    add(Part::Cut, total / 80);
    add(Part::Reopen, total / 100);
    add(Part::Shadow, total / 80);
    if plan.disk.is_empty() && plan.mix.unlogged == 0 && plan.mix.ttl == 0 {
        add(Part::Trouble, total / 40);
    }
    add(Part::Panic, total / 150);
    if plan.mix.ttl == 0 {
        add(Part::Clock, total / 100);
    }
    Arc::new(plan)
}

/// A path that was taken as often must have had a death: a life dies at a path with a chance of one in forty.
const OFTEN: u64 = 400;

pub fn live(plan: &Arc<Plan>, seed: u64, steps: u64) -> Counts {
    let mut world = World::new(plan, seed);
    world.mount(MemFs::new());
    world.open();
    world.doom = Some(Doom::new(seed, &world));
    (0..steps).for_each(|_| world.step());
    assert!(world.clock_ms() < LATER[0], "the scenario took too long for what expires");
    world.check_reads();
    world.counts.records = world.records.load(Ordering::Relaxed);
    world.counts
}

#[test]
fn a_database_outlives_kills_cuts_and_faults() {
    let (seeds, steps) = if full() { (100, 500) } else { (2, 250) };
    let seeds = env("KINGTIDE_LIVES").unwrap_or(seeds);
    let totals = Mutex::new(Counts::default());
    let start = std::time::Instant::now();
    let print = || {
        let n = totals.lock().expect("totals");
        println!(
            "{:?}: {} lives, {} steps, {} kills, {} power cuts, {} deaths in rare paths, {} reopens, {} shadow recoveries, \
             {} faults begun, {} jobs panicked, {} records written at once, {} own intervals kept, {} power cuts behind one, \
             {} commits beside transactions in doubt",
            start.elapsed(),
            n.lives,
            n.steps,
            n.kills,
            n.cuts,
            n.deaths,
            n.reopens,
            n.shadows,
            n.troubles,
            n.panics,
            n.records,
            n.kept,
            n.behind_interval,
            n.beside_doubt
        );
    };
    let failures = on_two_threads(&cases(seeds), |(plan, seed)| {
        let case = format!("KINGTIDE_SCENARIO={} KINGTIDE_SEED={seed}, a life", plan.name);
        let _watched = watch(case.clone());
        let plan = troubled(plan);
        match catch_unwind(AssertUnwindSafe(|| live(&plan, *seed, steps))) {
            Ok(counts) => {
                let lives = {
                    let mut all = totals.lock().expect("totals");
                    all.add(&counts, steps);
                    all.lives
                };
                if full() && lives.is_multiple_of(200) {
                    print();
                }
                Vec::new()
            }
            Err(_) => vec![case],
        }
    });
    print();
    println!("{}", table(&totals.lock().expect("totals").commits));
    println!("deaths by rare path: {:?}", DEATHS.lock().expect("deaths"));
    println!("panics by what the job did: {:?}", PANICS.lock().expect("panics"));
    let counts = rare::counts();
    println!("{}", LIVES.report(&counts));
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(totals.lock().expect("totals").records > 0, "no record was written at once");
    if is_whole() {
        LIVES.check(&counts).unwrap_or_else(|never| panic!("{never}"));
        // A name of the table that no life died at is one that the next change may break unseen.
        let deaths = DEATHS.lock().expect("deaths");
        let spared = counts.iter().filter(|(name, n)| *n >= OFTEN && !deaths.contains_key(name));
        let spared: Vec<_> = spared.map(|(name, _)| *name).collect();
        assert!(spared.is_empty(), "no death in these rare paths: {spared:?}");
    }
}
