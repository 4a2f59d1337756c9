//! Kingtide's version set: which files a database consists of, the manifest that says so, and the planner of compactions.
//!
//! | module | contents |
//! |---|---|
//! | `version` | a family's tree: levels of runs of files, and its invariants |
//! | `vlogs` | value logs, and how much of each is live |
//! | `edit`, `codec` | the changes of all that, and their bytes |
//! | `manifest` | the file of edits, and `CURRENT`, which names it |
//! | `scan` | reading a manifest that may be damaged |
//! | `orders` | key orders by name, of which the manifest knows only the names |
//! | `version_set` | what edits add up to, for recovery and for a running database, and writing them |
//! | `job` | what a compaction takes and occupies, and the check of a job against a version |
//! | `planner` | which jobs a tree needs: a pure function |
//! | `streams` | where streams of ascending or descending keys end: there files do too |
//!
//! Callers:
//!
//! | where | what |
//! |---|---|
//! | recovery | [`Manifest::load`] with [`VersionState::apply`], then [`VersionSet::new`] |
//! | every change of files or families | [`VersionSet::write`], under the catalog lock |
//! | an ingest, which the log holds before the manifest does | [`VersionSet::with_logged`], [`VersionSet::adopt_logged`] |
//! | background jobs | [`plan`], then [`Job::split`] or [`Job::moved`] |
//! | verification and repair | [`ManifestScan`] |
//!
//! Promises: [`VersionSet::write`] changes the state and the manifest together or neither; the manifest holds an acknowledged record
//! after a power cut; a record that a crash tore is distinguished from one that was damaged; and no job of [`plan`] breaks an invariant
//! of [`Version`] or meets a running job, which debug builds check.
//!
//! The crate knows no database: it opens no table, takes no lock and starts no thread. Its caller gives it a directory in a file system
//! and the counter of file ids, serializes the calls of [`VersionSet`], and makes and deletes the tables and value logs that edits name.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests read files

mod codec;
mod edit;
mod job;
mod manifest;
#[cfg(test)]
mod manifest_tests;
mod orders;
mod planner;
#[cfg(test)]
mod planner_tests;
mod scan;
#[cfg(test)]
mod simulation;
mod streams;
mod version;
mod version_set;
#[cfg(test)]
mod version_set_tests;
mod vlogs;

pub use codec::{decode_edits, encode_edits};
pub use edit::{Edit, LogBegun, required_log_start};
pub use job::{CompactionRange, Footprint, Job, JobKind, check_job, runs_below};
pub use manifest::{MANIFEST_VERSION, Manifest, ManifestLimits, creation_was_cut_short, replace_id, unfinished_copy};
pub use orders::KeyOrders;
pub use planner::{Manual, Plan, PlanInput, Rewrite, levels_of_rest, meets_range, plan, vlog_size};
pub use scan::{ManifestScan, ScannedRecord};
pub use streams::Streams;
pub use version::{DEFAULT_FAMILY, FileMeta, LEVELS, Retired, Run, SORTED_FILE, Version};
pub use version_set::{FamilyState, Logged, VersionSet, VersionState, direct_from, read_options};
pub use vlogs::{LiveValues, OwnedVlog, VlogMeta, VlogSet};
