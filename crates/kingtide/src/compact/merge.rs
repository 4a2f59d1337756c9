//! The executor of merges and flushes.

use super::context::{FlushInput, MergeContext, MergeOutput};
use super::job::{Job, KeyRange};
use kingtide_base::Result;

/// Merges the part of a job that lies in `range` into new files of run `job.output_run`.
///
/// # Errors
/// Those of the file system, `Corruption` of inputs, `Cancelled`. Every file it created is deleted again.
pub fn run_merge(_ctx: &MergeContext<'_>, _job: &Job, _range: &KeyRange) -> Result<MergeOutput> {
    unimplemented!()
}

/// Writes memtables as one run of level 0. The result may have no file, when everything annihilates.
///
/// # Errors
/// Those of the file system, `Cancelled`. Every file it created is deleted again.
pub fn run_flush(_ctx: &MergeContext<'_>, _input: FlushInput) -> Result<MergeOutput> {
    unimplemented!()
}
