//! Schedules of threads, explored with shuttle: `cargo xtask shuttle`.
//!
//! A scenario is a function that starts a few threads and checks what they saw. It is run under
//! thousands of schedules: half of them draw a thread at every step ([`RandomScheduler`]), half give threads priorities
//! that change at a few steps (Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
//! ASPLOS 2010). Every lock, atomic and swap of a shared pointer is a step.
//!
//! | variable | meaning |
//! |---|---|
//! | `KINGTIDE_SHUTTLE` | schedules of each scenario; a small sample when absent |
//! | `KINGTIDE_SHUTTLE_SEED` | seed of the schedules; 1 when absent |
//! | `KINGTIDE_SHUTTLE_REPLAY` | a file with the schedule that a failure printed: runs that one only |

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Schedules of one scenario in the sample that every change is tested with.
const SAMPLE: usize = 1000;
/// Steps at which priorities change, and one: bugs of that many steps in a certain order are found with a known
/// probability.
const PCT_DEPTH: usize = 4;

/// Declares the scenarios of a module as tests.
#[macro_export]
macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident => $body:path;)+) => {
        $($(#[$doc])* #[test] fn $name() {
            $crate::schedules::explore(stringify!($name), $body);
        })+
    };
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is not a number")))
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20; // merges of unoptimized builds
    config.silence_warnings = true; // that orderings are not explored is said in `kingtide_base::sync`
    config
}

/// Runs a body under a scheduler's schedules. Returns how many there were; after a failure the panic, too.
fn run(config: Config, scheduler: impl Scheduler + 'static, body: fn()) -> (usize, Result<(), Box<dyn Any + Send>>) {
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = tried.clone();
    let runner = Runner::new(scheduler, config);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runner.run(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            body();
        });
    }));
    (tried.load(Ordering::Relaxed), outcome)
}

/// Runs a scenario under its schedules.
///
/// # Panics
/// When one fails, after printing which.
pub fn explore(name: &str, body: fn()) {
    if let Some(file) = variable("KINGTIDE_SHUTTLE_REPLAY") {
        let scheduler = ReplayScheduler::new_from_file(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        Runner::new(scheduler, config()).run(body);
        return;
    }
    let schedules = number("KINGTIDE_SHUTTLE").map_or(SAMPLE, |each| each as usize);
    let seed = number("KINGTIDE_SHUTTLE_SEED").unwrap_or(1);
    let half = schedules.div_ceil(2); // a single one is random: how to run a seed again
    let passed = |kind: &str, (tried, outcome): (usize, Result<(), Box<dyn Any + Send>>)| {
        if let Err(panic) = outcome {
            eprintln!("{name}: {kind} schedule {tried} of seed {seed} failed");
            resume_unwind(panic);
        }
        tried
    };
    let random = passed("random", run(config(), RandomScheduler::new_from_seed(seed, half), body));
    let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules - half);
    let pct = passed("prioritized", run(config(), pct, body));
    println!("{name}: {random} random and {pct} prioritized schedules of seed {seed} passed");
}

/// A model with a planted bug: some schedule out of `most` must break it. Tells how many it took.
///
/// # Panics
/// When none does.
pub fn finds(name: &str, most: usize, body: fn()) {
    let seed = number("KINGTIDE_SHUTTLE_SEED").unwrap_or(1);
    let mut config = config();
    config.failure_persistence = FailurePersistence::None;
    eprintln!("{name}: a planted bug; that it fails is as it should be");
    let (tried, outcome) = run(config, RandomScheduler::new_from_seed(seed, most), body);
    assert!(outcome.is_err(), "{name}: the planted bug was not found by {tried} schedules of seed {seed}");
    println!("{name}: found by schedule {tried} of seed {seed}");
}
