//! Isolation, shown on histories: transactions run against the engine, everything they read and wrote is recorded, and a
//! checker looks for what their levels exclude. The checker itself is shown to find what is planted.
//!
//! `KINGTIDE_FULL=1` runs the full counts. A failure prints a seed; `KINGTIDE_SEED` runs that again.
#![allow(clippy::disallowed_methods, missing_docs)]

mod anomaly;
mod checker;
mod driver;
mod graph;
mod history;
mod notation;
mod planted;
mod reference;
mod versions;
mod worker;

fn full() -> bool {
    std::env::var_os("KINGTIDE_FULL").is_some()
}

fn seed() -> u64 {
    let given = std::env::var("KINGTIDE_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| kingtide_base::rng::entropy() >> 16)
}
