//! Sequence numbers that a flush or merge raises, because no reader, snapshot or transaction can tell them apart any more.
//!
//! Every entry of a table has a tag with its sequence number. Where keys were put in random order, the two or three bytes in which the
//! numbers differ look random: they do not compress, and each ends a match of the compressor. So all puts with smaller numbers than
//! the *raised* one get that. It is chosen so that every comparison of sequence numbers has the same result as before:
//!
//! - It is at most the oldest snapshot. So every reader sees the put as before, and a transaction that asks what changed after the moment
//!   at which it read is answered as before. Of the versions of a key up to the oldest snapshot at most one put is kept, and
//!   nothing above it.
//! - While a caller waits for a compaction, it is at most the last number that was visible when the caller asked: by their numbers the
//!   planner knows which data to compact.
//! - It is less than all numbers in newer tables with keys of the merge, and in newer memtables. So newer versions and range tombstones
//!   stay newer.
//! - It was given out, and not after the inputs. So if a repair finds them beside the result, what was kept of a key is newer than what
//!   was dropped, and so it is beside the log.
//!
//! Tombstones keep their numbers, and so do pointers, by which a change stream finds values that were moved (`read::exact`). So do values
//! that may have been moved out of a value log into the table: those that are as long as the shortest that the family's options have ever let
//! commits write once (`FamilyState::direct_from`). And so do all of 1 KiB and more, because manifests of earlier builds may have
//! forgotten a threshold, and the bytes of a number are few beside theirs.

use super::context::MergeContext;
use kingtide_base::SeqNo;
use kingtide_versions::Job;
use std::cmp::Reverse;

/// Puts of so many bytes keep their numbers in any family.
const LONG: u64 = 1024;

/// Whether a put of `bytes` bytes may get another number.
#[inline]
pub(super) fn may_raise(ctx: &MergeContext<'_>, bytes: usize) -> bool {
    (bytes as u64) < LONG.min(ctx.keeps_from)
}

/// The number to which a merge raises those of puts; 0 leaves them.
pub(super) fn of_merge(ctx: &MergeContext<'_>, job: &Job) -> SeqNo {
    let Some((lo, hi)) = job.hull(&ctx.order) else { return 0 };
    let newest = job.inputs.iter().map(|(_, f)| f.max_seq).max().unwrap_or(0);
    let oldest_snapshot = ctx.snapshots.first().copied().unwrap_or(0);
    let most = ctx.raised_below.saturating_sub(1);
    let is_input = |id: u64| job.inputs.iter().any(|(_, f)| f.id == id);
    let out = (job.output_level, Reverse(job.output_run));
    let newer = ctx.version.runs().take_while(|(level, run)| (*level, Reverse(run.id)) < out);
    let met = newer.flat_map(|(_, run)| run.overlapping(&ctx.order, lo, hi)).filter(|f| !is_input(f.id));
    let below_tables = met.map(|f| f.min_seq.saturating_sub(1)).min().unwrap_or(SeqNo::MAX);
    let seen_by_all = newest.min(oldest_snapshot);
    seen_by_all.min(most).min(below_tables)
}

/// The number to which a flush raises those of puts, where `last` is the last one that its memtables can hold; 0 leaves them. All
/// tables are older, but for ingested ones, before which memtables with keys of theirs are flushed.
pub(super) fn of_flush(ctx: &MergeContext<'_>, last: SeqNo) -> SeqNo {
    ctx.snapshots.first().map_or(0, |oldest| last.min(*oldest))
}
