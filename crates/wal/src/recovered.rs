//! The log that earlier opens left: from the moment its segments are found until the writer goes on behind it.

use super::reader::{ReplayEnd, list_segments};
use super::segment::{END_MARK_LEN, RECORD_HEADER_LEN};
use kingtide_base::names::segment_path;
use kingtide_base::{Result, SeqNo, rare};
use kingtide_vfs::{Fs, OpenMode, write_again};
use std::path::Path;

/// The log that earlier opens left. Recovery fills in what it read; [`super::Wal::open`] takes it and goes on behind it.
///
/// It alone syncs segments of earlier opens, each of them once. What was read from them may be in the page cache only, and
/// must not vanish under what builds on it: a table of a flush during recovery, or the first commit after it. Nothing else is ever
/// written to them again, so one sync is enough.
#[derive(Debug)]
pub struct RecoveredLog {
    /// All segment files, those too that turn out not to be part of the log.
    files: Vec<u64>,
    /// The machine was not restarted since the log was written.
    same_boot: bool,
    /// Everything in `files` was synced.
    synced: bool,
    /// Where replay found the log to end.
    pub end: ReplayEnd,
}

impl RecoveredLog {
    /// The segment files in `dir` from id `first` on, nothing of them read yet: a power cut amid a release may have brought earlier
    /// ones back. `same_boot`: the machine was not restarted since they were
    /// written, so that a sync that failed before may have left pages which only a second write stores.
    ///
    /// # Errors
    /// I/O errors from listing the directory.
    pub fn find(fs: &dyn Fs, dir: &Path, first: u64, same_boot: bool) -> Result<RecoveredLog> {
        let mut files = list_segments(fs, dir)?;
        if files.first().is_some_and(|id| *id < first) {
            rare!("log-release-half-undone");
            files.retain(|id| *id >= first);
        }
        Ok(RecoveredLog { files, same_boot, synced: false, end: ReplayEnd::default() })
    }

    /// No log: the one that is opened behind it begins with the operation `next_seq`, 1 in a new database.
    pub fn none(next_seq: SeqNo) -> RecoveredLog {
        RecoveredLog::ended(ReplayEnd { next_seq, ..ReplayEnd::default() })
    }

    /// A log that [`super::replay`] has read.
    pub(super) fn ended(end: ReplayEnd) -> RecoveredLog {
        RecoveredLog { files: end.segments.iter().map(|s| s.id).collect(), same_boot: false, synced: false, end }
    }

    /// Ids of the segment files, ascending.
    pub fn files(&self) -> &[u64] {
        &self.files
    }

    /// Syncs the whole files, while it is not known yet where the log ends: for a flush during recovery, whose table must
    /// not survive a power cut that older operations of other families do not. Free after the first time.
    ///
    /// # Errors
    /// `Io`.
    pub fn sync_files(&mut self, fs: &dyn Fs, dir: &Path) -> Result<()> {
        if !self.synced {
            sync_names(fs, dir, self.files.is_empty())?;
            self.files.iter().try_for_each(|id| sync(fs, dir, *id, self.same_boot.then_some(u64::MAX)))?;
            self.synced = true;
        }
        Ok(())
    }

    /// Syncs the segments that are part of the log, unless [`RecoveredLog::sync_files`] did: those too that are only kept for
    /// change streams, for the log is read from its beginning.
    pub(super) fn sync_chain(&mut self, fs: &dyn Fs, dir: &Path) -> Result<()> {
        self.cut_off(fs, dir)?;
        if self.synced {
            return Ok(());
        }
        debug_assert!(self.end.segments.iter().all(|s| self.files.contains(&s.id)), "a segment that was not found");
        sync_names(fs, dir, self.end.closed || self.end.segments.is_empty())?;
        for (i, s) in self.end.segments.iter().enumerate() {
            // The mark of a closed log was written when all before its segment was synced, but its own sync may have
            // failed, and with it that of the segment's header.
            let doubtful = !self.end.closed || i + 1 == self.end.segments.len();
            let again = (self.same_boot && doubtful).then_some(u64::from(s.end) + END_MARK_LEN);
            sync(fs, dir, s.id, again)?;
        }
        self.synced = true;
        Ok(())
    }

    /// Takes away, durably, the header of the record before which the log ends because a value that it points to is not whole. Its
    /// sequence numbers go to other operations now. Once some of these are in tables, a later open would take the record's
    /// operations for those, find nothing missing of it, and apply the rest.
    fn cut_off(&self, fs: &dyn Fs, dir: &Path) -> Result<()> {
        let Some(last) = self.end.segments.last().filter(|_| self.end.missing) else { return Ok(()) };
        let file = fs.open(&segment_path(dir, last.id), OpenMode::Write)?;
        file.write_at(&[0; RECORD_HEADER_LEN], u64::from(last.end))?;
        file.sync_data()
    }
}

/// Makes the names of segments durable, and of value logs that their records point into, unless they are known to be: a process
/// that was killed may have left them in memory only.
fn sync_names(fs: &dyn Fs, dir: &Path, known: bool) -> Result<()> {
    if known { Ok(()) } else { fs.sync_dir(dir) }
}

/// Makes a segment durable, and before that, if asked for, writes so many bytes of it over themselves.
fn sync(fs: &dyn Fs, dir: &Path, id: u64, again: Option<u64>) -> Result<()> {
    let file = fs.open(&segment_path(dir, id), OpenMode::Write)?;
    if let Some(bytes) = again {
        write_again(&*file, bytes)?;
    }
    file.sync_data()
}
