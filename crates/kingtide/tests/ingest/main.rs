//! Sorted files and what becomes of them: ingests beside everything else that goes on in a database, over crashes and
//! failures, and against transactions, snapshots and change streams.
//!
//! `KINGTIDE_FULL=1` runs longer. A failure of the model prints a seed; `KINGTIDE_SEED` runs it again.
#![allow(clippy::disallowed_methods, missing_docs)]

mod crash;
mod edges;
mod families;
mod files;
#[path = "../killed/mod.rs"]
mod killed;
mod model;
mod others;
mod world;

/// The process that is killed.
#[test]
#[ignore = "run by a_killed_process_leaves_whole_ingests"]
fn child() {
    crash::run_child();
}
