//! What the log is given: its surroundings; and its unit of length.

use kingtide_base::clock::Clock;
use kingtide_base::stats::Stats;
use kingtide_vfs::Fs;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A position in the log: bytes appended since it was opened, the record that it was returned for included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// What the log needs from its surroundings.
#[derive(Clone)]
pub struct WalConfig {
    /// The file system. After a failed sync of the directory it must fail all later ones: names that were lost then are not made
    /// durable by them.
    pub fs: Arc<dyn Fs>,
    /// The database's directory, which holds the segments.
    pub dir: PathBuf,
    /// Bytes of a segment once the log is warm. A record that does not fit into one gets a segment of its own size.
    pub segment_size: u64,
    /// Bytes of the first segments after an open or a [`super::Wal::shrink`], if that is less. Each one made after that is
    /// `GROWTH` times as large as the last one in use, up to `segment_size`: a small database has a small log.
    pub first_segment: u64,
    /// Released segments kept for reuse.
    pub max_free: usize,
    /// Bytes of a spare segment that are filled with zeros at a time: a writer that needs the spare meanwhile waits for no
    /// more.
    pub prefill_piece: u64,
    /// Draws a file number, greater than every one drawn before and than every segment on disk.
    pub next_id: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Called when [`super::Wal::prepare_spare`] has something to do, under the commit lock perhaps: schedule it. Must not block.
    pub on_rotate: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Time for the leader's short wait.
    pub clock: Arc<dyn Clock>,
    /// Where the `wal_*` statistics go.
    pub stats: Arc<Stats>,
}

/// How much larger than the active segment the next one is, while segments are small.
pub(super) const GROWTH: u64 = 4;

impl WalConfig {
    /// Bytes of the smallest segment.
    pub(super) fn smallest(&self) -> u64 {
        self.first_segment.min(self.segment_size)
    }

    /// Bytes of the smallest segment that takes a record that needs `need` bytes.
    pub(super) fn least_for(&self, need: u64) -> u64 {
        match need {
            _ if need <= self.smallest() => self.smallest(),
            _ if need <= self.segment_size => need.next_multiple_of(4096).min(self.segment_size),
            _ => need,
        }
    }

    /// Bytes of a segment for a record that needs `need` bytes, if segments have `now` bytes.
    pub(super) fn size_for(&self, need: u64, now: u64) -> u64 {
        if need <= now {
            return now;
        }
        if need > self.segment_size {
            return need;
        }
        // Room for a few of its kind, in whole pages.
        need.saturating_mul(GROWTH).next_multiple_of(4096).min(self.segment_size)
    }
}

impl fmt::Debug for WalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WalConfig").field("dir", &self.dir).field("segment_size", &self.segment_size).finish()
    }
}
