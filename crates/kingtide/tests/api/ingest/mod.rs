//! Sorted files and what becomes of them: ingests beside everything else that goes on in a database, over crashes and
//! failures, and against transactions, snapshots and change streams.
//!
//! `KINGTIDE_FULL=1` runs longer. A failure of the model prints a seed; `KINGTIDE_SEED` runs it again.

mod beside;
mod crash;
mod edges;
mod families;
mod files;
mod model;
mod others;
mod world;

/// The test that runs in processes of its own.
fn child_name() -> String {
    kingtide_testkit::test_name!("child")
}

/// The process that is killed.
#[test]
#[ignore = "run by a_killed_process_leaves_whole_ingests"]
fn child() {
    crash::run_child();
}
