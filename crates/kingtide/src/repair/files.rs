//! Files that the log says became part of the database.

use super::report::Repair;
use crate::ops::files::{is_files, read_files};
use kingtide_base::{Result, SeqNo};
use kingtide_versions::Edit;

/// What the log says of files, oldest first: the last sequence number of each record, and its edits. As far as the log can be read.
pub(super) fn files_of_log(
    repair: &Repair<'_, '_>,
    first_segment: u64,
    log_from: SeqNo,
) -> Result<Vec<(SeqNo, Vec<Edit>)>> {
    let (fs, dir) = (&*repair.fs, repair.dir);
    let mut segments = kingtide_wal::list_segments(fs, dir)?;
    segments.retain(|id| *id >= first_segment);
    let mut all = Vec::new();
    let judged =
        kingtide_wal::replay(fs, dir, &segments, log_from, |base, count, payload| note(&mut all, base, count, payload));
    if let Err(e) = judged {
        if e.is_out_of_descriptors() {
            return Err(e);
        }
        all.clear();
        let past_damage = repair.how.salvage_past_damage;
        let apply = |base, count, payload: &[u8]| note(&mut all, base, count, payload);
        kingtide_wal::salvage(fs, dir, &segments, log_from, past_damage, apply)?;
    }
    Ok(all)
}

fn note(all: &mut Vec<(SeqNo, Vec<Edit>)>, base: SeqNo, count: u32, payload: &[u8]) -> Result<()> {
    if is_files(payload)
        && let Ok(edits) = read_files(base, count, payload)
    {
        all.push((base + u64::from(count) - 1, edits));
    }
    Ok(())
}
