//! Long lives of one database: kills, power cuts, faults of the disk and shadow recoveries while the scenario goes on, so
//! that what one of them leaves behind meets the next.

use crate::clock::LATER;
use crate::cuts::on_two_threads;
use crate::draws::PANICS;
use crate::plan::{Part, Plan};
use crate::storm::{DEATHS, Doom};
use crate::watchdog::watch;
use crate::world::{Counts, World};
use crate::{cases, env, full};
use kingtide::vfs::MemFs;
use kingtide_base::rare;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// A scenario in which everything happens that can happen to it, a disk that fails as the plan says included.
fn troubled(plan: &Plan) -> Arc<Plan> {
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

/// Rare paths that no life takes, and why.
const OUT_OF_REACH: [(&str, &str); 16] = [
    (
        "direct-log-sealed-in-hand",
        "needs a flush amid a commit; one thread does one after the other here. `direct.rs` has tests of it",
    ),
    ("direct-log-seal-waited", "the same"),
    ("writer-held-for-dead-space", "needs compactions that fall far behind, as in `tests/concurrency/dead_space`"),
    ("manifest-of-old-build", "needs a directory of an older build; `tests/crash/golden` has one"),
    ("log-start-raised-by-chain", "the same"),
    (
        "memtable-sealed-for-memory",
        "a writer that waits for memory runs the flushes itself here, before it has to seal",
    ),
    (
        "flush-of-dropped-family",
        "needs a drop amid a job, as in `tests/concurrency/dropped_amid`; jobs run to their end here",
    ),
    ("compaction-of-dropped-family", "the same"),
    ("compaction-cancelled", "needs a close that cancels a compaction amid its run"),
    ("ingest-flushed-memtable", "no scenario ingests; `tests/ingest` and its crash test do"),
    ("ingest-below-level-0", "the same"),
    ("ingest-record-failed", "the same"),
    ("log-names-synced-together", "needs two threads that sync the directory; `wal/spare_tests.rs` has them"),
    ("log-spare-overtaken", "needs a commit amid the making of a spare; `wal/spares.rs` has a test of it"),
    ("directory-sync-waited-for-descriptor", "needs a process without descriptors; `wal/spare_tests.rs` has one"),
    ("read-only-overtaken", "needs a writer at work while a reader opens; `tests/read_only` has both"),
];

fn live(plan: &Arc<Plan>, seed: u64, steps: u64) -> Counts {
    let mut world = World::new(plan, seed);
    world.mount(MemFs::new());
    world.open();
    world.doom = Some(Doom::new(seed, &world));
    (0..steps).for_each(|_| world.step());
    assert!(world.clock_ms() < LATER[0], "the scenario took too long for what expires");
    world.check_reads();
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
             {} faults begun, {} jobs panicked",
            start.elapsed(),
            n.lives,
            n.steps,
            n.kills,
            n.cuts,
            n.deaths,
            n.reopens,
            n.shadows,
            n.troubles,
            n.panics
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
    println!("deaths by rare path: {:?}", DEATHS.lock().expect("deaths"));
    println!("panics by what the job did: {:?}", PANICS.lock().expect("panics"));
    let counts = rare::counts();
    println!("{}", rare::report(&counts));
    OUT_OF_REACH.iter().for_each(|(name, why)| println!("not taken here: {name}: {why}"));
    let missing = rare::never_taken(&counts, &OUT_OF_REACH.map(|o| o.0));
    assert!(!full() || crate::env("KINGTIDE_SEED").is_some() || missing.is_empty(), "never taken: {missing:?}");
    assert!(failures.is_empty(), "{failures:#?}");
}
