//! Compaction: which files to merge, and merging them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`job`] | what a job is, what it occupies, and the check of a job against a version |
//! | [`planner`] | a pure function from the shape of a tree to jobs |
//! | [`context`] | what a merge needs from the engine, what it gives back, the rate limiter |
//! | [`merge`] | the executor of jobs and flushes |
//! | `sources` | its inputs in one order: the loser tree |
//! | `history` | which versions of a key it keeps |
//! | `output` | the files it writes |
//! | `streams` | where streams of ascending or descending keys end: there files do too |
//!
//! The life of a job: [`planner::plan`] proposes it; the engine records its [`job::Job::footprints`] among the running
//! ones, and either applies [`job::Job::moved`] or runs [`merge::run_merge`] over the ranges of [`job::Job::split`]; then
//! it syncs the directory, and installs the added and removed files with one manifest record.

pub mod context;
mod history;
pub mod job;
pub mod merge;
mod output;
pub mod planner;
pub(crate) mod run;
mod sources;
mod streams;
mod surroundings;

pub use context::{FlushInput, MergeContext, MergeCounters, MergeOutput, RateLimiter};
pub use job::{CompactionRange, Job, JobKind};
pub use merge::{run_flush, run_merge};
pub(crate) use output::{Outputs, Placement, vlog_size};
pub use planner::Rewrite;
pub(crate) use planner::{hidden_bytes, meets_range};
pub(crate) use surroundings::Surroundings;

#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod planner_tests;
#[cfg(test)]
mod simulation;
