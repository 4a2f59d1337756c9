//! The write-ahead log, shared by all families.
//!
//! A record is one batch; the log does not look into it. Records lie back to back in segment files of a fixed size, which
//! are allocated in advance and reused. Segments form a chain: the header of each names its predecessor and the place
//! where that one's records end. `docs/format/wal.md` holds the byte tables and the rules of recovery.
//!
//! Who calls what:
//!
//! | under the commit lock | [`WalWriter::append`]: two small writes, and now and then a swap to the prepared spare |
//! | outside it, committers | [`Wal::sync_to`]: one sync for all that wait together |
//! | background jobs | [`Wal::prepare_spare`], [`Wal::release`], [`Wal::sync_all`] |
//! | followers, while it is written | [`Tail`] |
//! | opening | [`replay`], then [`Wal::open`] with what it found |
//!
//! Promises: what `sync_to` acknowledged survives a power cut; what `append` acknowledged survives the process; replay
//! yields an exact prefix of what was appended, or says with file and offset that the middle is damaged.

#[cfg(test)]
mod crash_tests;
mod dump;
mod lifecycle;
mod reader;
mod salvage;
mod scan;
mod segment;
mod sync;
#[cfg(test)]
mod sync_tests;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

pub use dump::{SegmentPart, dump_segment};
pub use reader::{ReplayEnd, ReplayedSegment, TornTail, list_segments, replay, replay_live};
pub use salvage::{LogGap, SalvagedLog, salvage};
pub use segment::{FORMAT_VERSION, MAX_PAYLOAD, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN};
pub use tail::{Tail, TailItem};
pub(crate) use writer::END_MARK_LEN;
pub use writer::WalWriter;

use crate::names::segment_path;
use kingtide_base::clock::Clock;
use kingtide_base::stats::Stats;
use kingtide_base::{Error, Result, SeqNo};
use kingtide_vfs::{Fs, OpenMode};
use lifecycle::Segments;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use sync::GroupSync;

/// A position in the log: bytes appended since it was opened, the record that it was returned for included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// A batch, ready to append. Making one computes the payload's checksum: do it before taking the commit lock.
#[derive(Clone, Copy, Debug)]
pub struct WalRecord<'a> {
    /// The batch's serialized operations, without their sequence numbers.
    pub payload: &'a [u8],
    /// crc32c of the payload.
    pub payload_crc: u32,
}

impl<'a> WalRecord<'a> {
    /// Checksums the payload.
    #[inline]
    pub fn new(payload: &'a [u8]) -> WalRecord<'a> {
        WalRecord { payload, payload_crc: kingtide_base::checksum::crc(payload) }
    }
}

/// What the log needs from its surroundings.
#[derive(Clone)]
pub struct WalConfig {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// The database's directory, which holds the segments.
    pub dir: PathBuf,
    /// Bytes of a segment. A record that does not fit into one gets a segment of its own size.
    pub segment_size: u64,
    /// Released segments kept for reuse.
    pub max_free: usize,
    /// Bytes of a spare segment that are filled with zeros at a time: a writer that needs the spare meanwhile waits for no
    /// more.
    pub prefill_piece: u64,
    /// Draws a file number, greater than every one drawn before and than every segment on disk.
    pub next_id: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Called when [`Wal::prepare_spare`] has something to do, under the commit lock perhaps: schedule it. Must not block.
    pub on_rotate: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Time for the leader's short wait.
    pub clock: Arc<dyn Clock>,
    /// Where the `wal_*` statistics go.
    pub stats: Arc<Stats>,
}

impl fmt::Debug for WalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WalConfig").field("dir", &self.dir).field("segment_size", &self.segment_size).finish()
    }
}

/// The part of the log that threads share: syncing, and the life of segments.
#[derive(Debug)]
pub struct Wal {
    segments: Segments,
    sync: GroupSync,
    config: WalConfig,
}

impl Wal {
    /// Opens the log for appending after `end`, what [`replay`] found (`ReplayEnd::default()` in a new database).
    ///
    /// Syncs the replayed segments, so that what was read from the page cache cannot vanish under commits that build on
    /// it. Never appends to an old segment: what lies behind a discarded tail stays behind it. Writes nothing before the
    /// first append, so that a database opens on a full disk; call [`Wal::prepare_spare`] soon to keep the first append
    /// fast.
    ///
    /// # Errors
    /// `Io` from syncing or listing.
    pub fn open(config: WalConfig, end: &ReplayEnd) -> Result<(WalWriter, Arc<Wal>)> {
        for s in &end.segments {
            if kingtide_base::planted!("recovered-log-not-synced") {
                continue;
            }
            config.fs.open(&segment_path(&config.dir, s.id), OpenMode::Write)?.sync_data()?;
        }
        let segments = Segments::open(&config, end)?;
        let sync = GroupSync::new(config.clock.clone(), config.stats.clone(), config.on_rotate.clone());
        let wal = Arc::new(Wal { segments, sync, config });
        Ok((WalWriter::new(wal.clone(), end), wal))
    }

    /// A log that nothing is appended to and nothing read from: for a database opened for reading only. Touches no file.
    pub fn detached(config: WalConfig) -> (WalWriter, Arc<Wal>) {
        let sync = GroupSync::new(config.clock.clone(), config.stats.clone(), config.on_rotate.clone());
        let wal = Arc::new(Wal { segments: Segments::none(), sync, config });
        (WalWriter::new(wal.clone(), &ReplayEnd::default()), wal)
    }

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

    /// The end of the last append.
    pub fn appended(&self) -> Lsn {
        self.sync.appended()
    }

    /// Everything up to here is synced.
    pub fn synced(&self) -> Lsn {
        self.sync.synced()
    }

    /// Makes the next segment ready, if it is not: creates or recycles the file and makes its name durable. While the log
    /// is synced often, a new file is also filled with zeros, which makes those syncs cheaper.
    ///
    /// # Errors
    /// `NoSpace` and other errors of creating a file: nothing is lost, an append that needs the segment tries again.
    /// `Poisoned` when the directory's sync failed, or the file's.
    pub fn prepare_spare(&self) -> Result<()> {
        self.sync.check()?;
        self.segments.prepare_spare(&self.config, &self.sync)
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
        self.release_beyond(min_needed_seq, 0)
    }

    /// As [`Wal::release`], but of what could be given up keeps the newest segments, `retention` bytes of them at most,
    /// for [`Tail`]s to read.
    ///
    /// # Errors
    /// As [`Wal::release`].
    pub fn release_beyond(&self, min_needed_seq: SeqNo, retention: u64) -> Result<usize> {
        self.segments.release(&self.config, &self.sync, min_needed_seq, retention)
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

    /// The sequence number at which the oldest segment was begun; `None` if there is no segment.
    pub fn oldest_seq(&self) -> Option<SeqNo> {
        self.segments.oldest(&self.sync).map(|s| s.start_seq)
    }

    /// Ids of the segments that recovery would read, oldest first, and of the spare.
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
