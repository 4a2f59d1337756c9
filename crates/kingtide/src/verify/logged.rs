//! What recovery would look for because of the log: values, and files that the manifest does not have yet.

use crate::ops::files::{is_files, read_files};
use crate::ops::{LogOp, read_log_op};
use crate::txn::Fates;
use kingtide_base::coding::Reader;
use kingtide_base::names::vlog_path;
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo};
use kingtide_table::{ValuePointer, Vlog};
use kingtide_versions::{Edit, VersionState};
use kingtide_vfs::{Fs, OpenMode};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The values that records point to: those that are in no table yet, and those of transactions in doubt.
pub(super) struct LoggedValues<'a> {
    fs: &'a Arc<dyn Fs>,
    dir: &'a Path,
    segments: &'a [u64],
    /// Of each family, what is in tables.
    flushed: HashMap<FamilyId, SeqNo>,
    logs: HashMap<u64, Arc<Vlog>>,
    /// File and offset of values that were read and are whole.
    whole: HashSet<(u64, u64)>,
    /// As in recovery.
    fated_end: Option<Option<SeqNo>>,
}

impl<'a> LoggedValues<'a> {
    /// `segments`: the log's. `flushed`: of each family, what is in tables.
    pub fn new(
        fs: &'a Arc<dyn Fs>,
        dir: &'a Path,
        segments: &'a [u64],
        flushed: HashMap<FamilyId, SeqNo>,
    ) -> LoggedValues<'a> {
        LoggedValues { fs, dir, segments, flushed, logs: HashMap::new(), whole: HashSet::new(), fated_end: None }
    }

    /// Returns what is wrong with the first value of a record that cannot be read, and has to be.
    pub fn missing(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Option<Error>> {
        let mut r = Reader::new(payload);
        for seq in base..base + u64::from(count) {
            let Some(op) = read_log_op(&mut r) else { return Ok(None) }; // told elsewhere
            match op {
                LogOp::Write(op) => {
                    if let Some(p) = op.pointer()
                        && self.matters(op.family, Some(seq))
                        && let Some(e) = self.check(&p)?
                    {
                        let of = format!("the value that the log record with sequence {base} points to");
                        return Ok(Some(e.context(of)));
                    }
                }
                LogOp::Prepare(prepare) => {
                    let ends = prepare.pointers().next().is_some() && self.fated_end()? == Some(base);
                    for (family, p) in prepare.pointers().filter(|_| ends) {
                        if self.matters(family, None)
                            && let Some(e) = self.check(&p)?
                        {
                            let of = format!("the transaction that the log record with sequence {base} prepares");
                            return Ok(Some(e.context(of)));
                        }
                    }
                }
                LogOp::Resolved { .. } => {}
            }
        }
        Ok(None)
    }

    /// Whether a value in a family is needed: one that was committed with sequence number `seq`, or one of a transaction
    /// in doubt.
    fn matters(&self, family: FamilyId, seq: Option<SeqNo>) -> bool {
        self.flushed.get(&family).is_some_and(|flushed| seq.is_none_or(|seq| seq > *flushed))
    }

    /// What is wrong with a value.
    fn check(&mut self, p: &ValuePointer) -> Result<Option<Error>> {
        let place = (p.file_id, p.offset);
        if self.whole.contains(&place) {
            return Ok(None);
        }
        match self.log(p.file_id).and_then(|log| log.check(p)) {
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotFound) => Ok(Some(e)),
            checked => {
                checked?;
                self.whole.insert(place);
                Ok(None)
            }
        }
    }

    /// Before which record recovery would end the log for want of a value.
    fn fated_end(&mut self) -> Result<Option<SeqNo>> {
        if let Some(known) = self.fated_end {
            return Ok(known);
        }
        let (fs, dir, segments) = (self.fs.clone(), self.dir, self.segments);
        let mut fates = Fates::default();
        let mut lost = |family, seq, p: &ValuePointer| Ok(self.matters(family, seq) && self.check(p)?.is_some());
        let mut failed = None;
        let look = |base, count, payload: &[u8]| {
            fates.note((base, count, payload), &mut lost).inspect_err(|e| failed = Some(e.clone()))
        };
        let looked =
            kingtide_wal::replay_records(&*fs, dir, segments, 0, false, &mut (|_, _, _: &[u8]| Ok(None), look));
        if let (Err(_), Some(e)) = (looked, failed) {
            return Err(e);
        }
        let end = fates.end(&mut lost)?;
        self.fated_end = Some(end);
        Ok(end)
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
    let mut values = LoggedValues::new(fs, dir, &segments, flushed);
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
