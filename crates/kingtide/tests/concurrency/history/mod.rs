//! Isolation, shown on histories: transactions run against the engine, everything they read and wrote is recorded, and a
//! checker looks for what their levels exclude. The checker itself is shown to find what is planted.
//!
//! `KINGTIDE_FULL=1` runs the full counts. A failure prints a seed; `KINGTIDE_SEED` runs that again.

use kingtide_testkit::full;

mod anomaly;
mod checker;
mod driver;
mod graph;
mod notation;
mod planted;
mod recorded;
mod reference;
mod versions;
mod worker;

fn seed() -> u64 {
    let given = kingtide_testkit::number("KINGTIDE_SEED");
    given.unwrap_or_else(|| kingtide_base::rng::entropy() >> 16)
}
