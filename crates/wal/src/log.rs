//! The log as threads share it.

use super::config::{Lsn, WalConfig};
use super::lifecycle::Segments;
use super::sync::{GroupSync, SyncFirst};
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, Result, SeqNo};

/// The part of the log that threads share: syncing, and the life of segments.
#[derive(Debug)]
pub struct Wal {
    pub(super) segments: Segments,
    pub(super) sync: GroupSync,
    pub(super) config: WalConfig,
    pub(super) quiet: Mutex<Quiet>,
}

/// A log that did not grow for so long is at rest.
const REST_NS: u64 = 1_000_000_000;

/// Since when the log has not grown.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Its end then; `None` before the first look.
    end: Option<u64>,
    since_ns: u64,
    /// The failure was reported already.
    told: bool,
}

impl Wal {
    /// Returns once everything appended up to `lsn` is on stable storage. Threads that wait together share one sync.
    /// Call it without the commit lock.
    ///
    /// # Errors
    /// `Poisoned`, naming the first cause: a sync failed, now or earlier. Nothing is known about what was not synced
    /// before; the log takes no more appends.
    pub fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.sync.sync_to(lsn)
    }

    /// Syncs everything appended so far; for `Interval` durability, and before a flush is installed.
    ///
    /// # Errors
    /// As [`Wal::sync_to`].
    pub fn sync_all(&self) -> Result<()> {
        self.sync.sync_all()
    }

    /// The record that is about to be appended refers to `what`, which no sync of the log may leave behind. Called under
    /// the commit lock.
    pub fn needs_first(&self, what: std::sync::Weak<dyn SyncFirst>) {
        self.sync.needs_first(what);
    }

    /// The end of the last append.
    pub fn appended(&self) -> Lsn {
        self.sync.appended()
    }

    /// Everything up to here is synced.
    pub fn synced(&self) -> Lsn {
        self.sync.synced()
    }

    /// Makes the next segments ready, as many as were used since the last call: creates or recycles files and makes their
    /// names durable. While the log is synced often, new files are also filled with zeros, which makes those syncs cheaper.
    ///
    /// # Errors
    /// `NoSpace` and other errors of creating a file: nothing is lost, an append that needs the segment tries again.
    /// `Poisoned` when the directory's sync failed, or the file's.
    pub fn prepare_spare(&self) -> Result<()> {
        self.sync.check()?;
        self.segments.prepare_spare(&self.config, &self.sync)
    }

    /// Whether a segment is ready, so that no append makes a file. A hint.
    pub fn has_spare(&self) -> bool {
        self.segments.has_spare()
    }

    /// Whether [`Wal::prepare_spare`] has something to do.
    pub fn needs_spare(&self) -> bool {
        self.segments.needs_spare(&self.sync)
    }

    /// Gives up sealed segments all of whose records have sequence numbers below `min_needed_seq`, oldest first, but
    /// never the last segment that there is: some are kept for reuse, the rest are deleted. Each step is made durable
    /// before the next, so that the segments on disk are always the end of the chain without holes. Returns how many were
    /// given up.
    ///
    /// # Errors
    /// `Io`: try again later. `Poisoned` when the directory's sync failed.
    pub fn release(&self, min_needed_seq: SeqNo) -> Result<usize> {
        self.release_beyond((min_needed_seq, 0), 0)
    }

    /// As [`Wal::release`], but of what could be given up keeps the newest segments, `retention` bytes of them at most,
    /// for [`super::Tail`]s to read. Segments with ids below `first` are given up together, with one sync of the directory: a
    /// power cut amid the call may bring any of them back. So the manifest must have said before that the log begins with `first`.
    ///
    /// # Errors
    /// As [`Wal::release`].
    pub fn release_beyond(&self, (min_needed_seq, first): (SeqNo, u64), retention: u64) -> Result<usize> {
        self.segments.release(&self.config, &self.sync, (min_needed_seq, first), retention)
    }

    /// The segment that the log begins with after a release, for the manifest to say so: its name is durable. `None` if that cannot
    /// be had now; segments are given up one by one then.
    pub fn first_kept(&self, min_needed_seq: SeqNo, retention: u64) -> Option<u64> {
        let first = self.segments.first_kept(min_needed_seq, retention)?;
        self.sync.sync_names().ok().map(|()| first)
    }

    /// Whether [`Wal::release`] would find a segment, not found before, that is not needed.
    pub fn would_release(&self, min_needed_seq: SeqNo) -> bool {
        self.segments.would_release(min_needed_seq)
    }

    /// Deletes free segments beyond `keep`: disk space that only a writer at full speed needs.
    ///
    /// # Errors
    /// `Io`: nothing is lost, the next open deletes them.
    pub fn trim(&self, keep: usize) -> Result<()> {
        self.segments.trim_free(&self.config, keep)
    }

    /// Begins with small segments again and deletes the files that only a writer at full speed needs: free segments, and
    /// large spares. Also deletes the spares that a killed process left, and other segments that recovery left out of the log, unless they must stay.
    ///
    /// # Errors
    /// `Io`: nothing is lost, the next open deletes them.
    pub fn shrink(&self) -> Result<()> {
        self.segments.shrink(&self.config, &self.sync)
    }

    /// Makes the names of all segments durable: before something names one that must be found again.
    ///
    /// # Errors
    /// `Poisoned` when the directory's sync failed; `Io` when it could not be tried.
    pub fn sync_names(&self) -> Result<()> {
        self.sync.sync_names()
    }

    /// Syncs the oldest segment that stays when those are released that hold nothing from `needed` on, so that its header
    /// survives a power cut even though no record is behind it: then the segments before it may go, and the log still knows
    /// its sequence number. That need not be the active one: others may have appended since [`super::WalWriter::shrink`].
    ///
    /// # Errors
    /// `Poisoned` when the sync failed; `Io`.
    pub fn sync_header(&self, needed: SeqNo) -> Result<()> {
        self.segments.sync_oldest_kept(&self.config, &self.sync, needed)
    }

    /// True once after nothing was appended for a second: time for [`Wal::shrink`]. To be asked now and then.
    pub fn came_to_rest(&self) -> bool {
        let (now, end) = (self.config.clock.monotonic_ns(), self.sync.appended().0);
        let mut quiet = self.quiet.lock();
        if quiet.end != Some(end) || now < quiet.since_ns {
            *quiet = Quiet { end: Some(end), since_ns: now, told: false };
        }
        let rests = !quiet.told && now - quiet.since_ns >= REST_NS;
        quiet.told |= rests;
        rests
    }

    /// Bytes of live segments, the active one included.
    pub fn size(&self) -> u64 {
        self.segments.size()
    }

    /// Tells that recovery needs records from `seq` on. Releasing tells it too.
    pub fn note_needed(&self, seq: SeqNo) {
        self.segments.note_needed(&self.config, seq);
    }

    /// The same without the segments that only [`Wal::release_beyond`] keeps.
    pub fn needed_size(&self) -> u64 {
        self.segments.needed_size()
    }

    /// The bytes of [`Wal::needed_size`] without those of the segment in use.
    pub fn needed_sealed(&self) -> u64 {
        self.segments.needed_sealed()
    }

    /// The sequence number at which the oldest segment was begun; `None` if there is no segment.
    pub fn oldest_seq(&self) -> Option<SeqNo> {
        self.segments.oldest(&self.sync).map(|s| s.start_seq)
    }

    /// Ids of the segments that recovery would read, oldest first, and of the spares.
    pub fn live_segments(&self) -> Vec<u64> {
        self.segments.live_ids()
    }

    /// Stops the log for good, as a failed sync does: the state that it records is not what is in memory.
    pub fn stop(&self, cause: Error) {
        self.sync.poison("writes were stopped", cause);
    }

    /// The failure that stopped the log, if one did.
    pub fn poison(&self) -> Option<Error> {
        self.sync.check().err()
    }
}
