//! What recovery would look for because of the log: values, and files that the manifest does not have yet.

use crate::ops::files::{is_files, read_files};
use crate::ops::{LogOp, read_log_op};
use crate::version::{Edit, FamilyId};
use crate::version_set::VersionState;
use kingtide_base::coding::Reader;
use kingtide_base::names::vlog_path;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_table::Vlog;
use kingtide_vfs::{Fs, OpenMode};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// The values that records point to: those that are in no table yet.
pub(super) struct LoggedValues<'a> {
    pub fs: &'a Arc<dyn Fs>,
    pub dir: &'a Path,
    /// Of each family, what is in tables.
    pub flushed: HashMap<FamilyId, SeqNo>,
    pub logs: HashMap<u64, Arc<Vlog>>,
}

impl LoggedValues<'_> {
    /// Returns what is wrong with the first value of a record that cannot be read.
    pub fn missing(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Option<Error>> {
        let mut r = Reader::new(payload);
        for seq in base..base + u64::from(count) {
            let Some(op) = read_log_op(&mut r) else { return Ok(None) }; // told elsewhere
            let LogOp::Write(op) = op else { continue };
            let Some(p) = op.pointer() else { continue };
            if self.flushed.get(&op.family).is_none_or(|flushed| seq <= *flushed) {
                continue;
            }
            match self.log(p.file_id).and_then(|log| log.check(&p)) {
                Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotFound) => {
                    return Ok(Some(
                        e.context(format!("the value that the log record with sequence {base} points to")),
                    ));
                }
                checked => checked?,
            }
        }
        Ok(None)
    }

    fn log(&mut self, id: u64) -> Result<Arc<Vlog>> {
        if let Some(log) = self.logs.get(&id) {
            return Ok(log.clone());
        }
        let log = Vlog::unfinished(self.fs.open(&vlog_path(self.dir, id), OpenMode::Read)?, id);
        self.logs.insert(id, log.clone());
        Ok(log)
    }
}

/// The edits of files that the log says became part of the database, and the manifest, whose sum is `state`, does not. Problems
/// of the log itself are reported where it is checked.
pub(super) fn files_of_log(fs: &Arc<dyn Fs>, dir: &Path, state: &VersionState, log_from: SeqNo) -> Result<Vec<Edit>> {
    let mut segments = kingtide_wal::list_segments(&**fs, dir)?;
    segments.retain(|id| *id >= state.first_segment);
    let flushed = state.families.iter().map(|(id, f)| (*id, f.flushed)).collect();
    let mut values = LoggedValues { fs, dir, flushed, logs: HashMap::new() };
    let missing = |base, count, payload: &[u8]| values.missing(base, count, payload);
    let mut added = Vec::new();
    let apply = |base: SeqNo, count: u32, payload: &[u8]| {
        if is_files(payload) && base + u64::from(count) - 1 > state.last_seq {
            added.extend(read_files(base, count, payload)?);
        }
        Ok(())
    };
    let _ = kingtide_wal::replay_records(&**fs, dir, &segments, log_from, false, &mut (missing, apply));
    Ok(added)
}
