//! Compaction: merging the files that [`kingtide_versions::plan`] chooses.
//!
//! | module | what it holds |
//! |---|---|
//! | [`context`] | what a merge needs from the engine, what it gives back, the rate limiter |
//! | [`merge`] | the executor of jobs and flushes |
//! | `covered` | how much the range tombstones of tables hide, estimated for the planner |
//! | `sources` | its inputs in one order: the loser tree |
//! | `history` | which versions of a key it keeps |
//! | `raise` | which sequence numbers become one |
//! | `output` | the files it writes |
//!
//! The life of a job: [`kingtide_versions::plan`] proposes it; the engine records its [`footprints`](kingtide_versions::Job::footprints)
//! among the running ones, and either applies [`Job::moved`](kingtide_versions::Job::moved) or runs [`merge::run_merge`] over the ranges
//! of [`Job::split`](kingtide_versions::Job::split); then it syncs the directory, and installs the added and removed files with one
//! manifest record.

pub mod context;
mod covered;
mod history;
pub mod merge;
mod output;
mod raise;
pub(crate) mod run;
mod sources;
mod surroundings;

pub use context::{FlushInput, Lookup, MergeContext, MergeCounters, MergeOutput, RateLimiter};
pub use merge::{run_flush, run_merge};
pub(crate) use output::{Outputs, Placement};
pub(crate) use surroundings::Surroundings;

#[cfg(test)]
mod merge_tests;
