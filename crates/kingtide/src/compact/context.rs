//! What a merge or flush needs from the engine, and what it gives back.

use crate::rangedel::RangeTombstone;
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::events::{Event, Events};
use kingtide_base::names::{klog_name, klog_path, vlog_name, vlog_path};
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::{FamilyId, KeyOrder, Result, SeqNo};
use kingtide_mem::MemIter;
use kingtide_table::{Table, Vlog};
use kingtide_versions::{Edit, FileMeta, Retired, Version, VlogMeta};
use kingtide_vfs::Fs;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Surroundings of one merge or flush.
#[derive(Clone)]
pub struct MergeContext<'a> {
    /// The file system.
    pub fs: Arc<dyn Fs>,
    /// Directory of the database: tables are `NNNNNN.klog`, value logs `NNNNNN.vlog`.
    pub dir: &'a Path,
    /// Order of the family's keys.
    pub order: KeyOrder,
    /// The family's options.
    pub options: &'a FamilyOptions,
    /// Next free file id, which is the next free run id too.
    pub next_file: &'a AtomicU64,
    /// Live snapshots and, last, the visible sequence number, ascending: read under the lock that registers snapshots.
    pub snapshots: Vec<SeqNo>,
    /// Unix time of the job: what expired by then is dropped.
    pub now_ms: u64,
    /// The family's version when the job was planned.
    pub version: Arc<Version>,
    /// A merge raises numbers only to such as are less than this: all memtables of the family, but for those that the job flushes, begin
    /// with it or later ones, and what a caller wants compacted has smaller ones. 0: not known.
    pub raised_below: SeqNo,
    /// Values of so many bytes and more may have been moved out of value logs into which a commit wrote them: puts of them keep their
    /// numbers.
    pub keeps_from: u64,
    /// Opens an input table, through the engine's table cache.
    pub open_table: &'a (dyn Fn(&FileMeta) -> Result<Arc<Table>> + Sync),
    /// Opens a value log by id.
    pub open_vlog: &'a (dyn Fn(u64) -> Result<Arc<Vlog>> + Sync),
    /// Limit of the bytes written, shared by all background jobs.
    pub limiter: Option<&'a RateLimiter>,
    /// Where the job's buffers are charged.
    pub memory: Option<&'a Arc<Budget>>,
    /// Stops the job with an error of kind `Cancelled` at the next block.
    pub cancelled: &'a AtomicBool,
    /// Whether it stops then. A flush goes on, without waiting for the rate limit any more: closing needs it.
    pub may_cancel: bool,
    /// Input bytes between checks for cancellation and throttling.
    pub poll_interval: usize,
    /// Entries from one restart point of a table's block to the next.
    pub restart_interval: usize,
}

impl MergeContext<'_> {
    /// Draws a file id. Relaxed: the manifest record that names the file orders it.
    pub fn new_file_id(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the files that a job created durable in their directory; to be called before the manifest names them.
    pub fn sync_dir(&self) -> Result<()> {
        self.fs.sync_dir(self.dir)
    }
}

/// Given a key and how many bytes of value a flush has for it: the stored bytes in value logs of the value that older tables hold.
pub type Lookup<'a> = dyn Fn(&[u8], u64) -> u64 + 'a;

/// What a flush writes.
pub struct FlushInput<'a> {
    /// Cursors over the memtables, newest first.
    pub memtables: Vec<MemIter>,
    /// Their range tombstones, in any order. These are the memtables' own lists, which are charged there.
    pub tombstones: Vec<Arc<Vec<RangeTombstone>>>,
    /// Run id of the result: greater than every run's of level 0.
    pub run: u64,
    /// The last sequence number that can be in them; what is newer is in other memtables. 0: not known.
    pub last: SeqNo,
    /// Value logs whose values move to a new one: those that no table may refer to.
    pub relocate: BTreeSet<u64>,
    /// What tells what a key hides. `None`: not asked for.
    pub hidden: Option<&'a Lookup<'a>>,
}

/// What a job counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounters {
    /// Entries read.
    pub entries_in: u64,
    /// Entries written.
    pub entries_out: u64,
    /// Versions dropped because a newer one hides them from every snapshot, single deletes' pairs included.
    pub shadowed: u64,
    /// Stored bytes in value logs of the puts among them: dead from now on, where they were hidden before.
    pub uncovered: u64,
    /// Entries dropped because a range tombstone covers them.
    pub range_deleted: u64,
    /// Tombstones dropped because nothing older is left to hide.
    pub tombstones: u64,
    /// Entries that had expired.
    pub expired: u64,
    /// Bytes of key logs read.
    pub bytes_read: u64,
    /// Bytes of key logs and value logs written.
    pub bytes_written: u64,
    /// Bytes of values moved from one value log to another.
    pub vlog_moved: u64,
}

/// Result of a job: files that exist and are synced, but are not yet part of a version.
#[derive(Debug, Default)]
pub struct MergeOutput {
    /// New tables with their level, by ascending key.
    pub added: Vec<(usize, FileMeta)>,
    /// New value logs.
    pub vlogs: Vec<VlogMeta>,
    /// What happened.
    pub counters: MergeCounters,
}

impl MergeOutput {
    /// How many files it has.
    pub fn files(&self) -> usize {
        self.added.len() + self.vlogs.len()
    }

    /// The ids of its files, and the sizes of its value logs.
    pub(crate) fn names(&self) -> Retired {
        let tables = self.added.iter().map(|(_, table)| table.id).collect();
        Retired { tables, vlogs: self.vlogs.iter().map(|log| (log.id, log.size)).collect() }
    }

    /// Tells of its files, once they are the database's.
    pub(crate) fn tell(&self, events: &Events) {
        for (_, table) in &self.added {
            events.tell_detail(|| Event::FileCreated(klog_name(table.id), table.size));
        }
        for vlog in &self.vlogs {
            events.tell_detail(|| Event::FileCreated(vlog_name(vlog.id), vlog.size));
        }
    }

    /// Joins the result of the next key range of the same job.
    pub fn append(&mut self, other: MergeOutput) {
        self.added.extend(other.added);
        self.vlogs.extend(other.vlogs);
        let (a, b) = (&mut self.counters, other.counters);
        a.entries_in += b.entries_in;
        a.entries_out += b.entries_out;
        a.shadowed += b.shadowed;
        a.uncovered += b.uncovered;
        a.range_deleted += b.range_deleted;
        a.tombstones += b.tombstones;
        a.expired += b.expired;
        a.bytes_read += b.bytes_read;
        a.bytes_written += b.bytes_written;
        a.vlog_moved += b.vlog_moved;
    }

    /// The edits that install the result in place of `inputs`.
    pub fn edits(&self, family: FamilyId, inputs: &[(usize, Arc<FileMeta>)]) -> Vec<Edit> {
        let vlogs = self.vlogs.iter().map(|meta| Edit::AddVlog { family, meta: meta.clone() });
        let removed = inputs.iter().map(|(level, f)| Edit::RemoveFile { family, level: *level as u8, id: f.id });
        let added = self.added.iter().map(|(level, meta)| Edit::AddFile {
            family,
            level: *level as u8,
            meta: Arc::new(meta.clone()),
        });
        vlogs.chain(removed).chain(added).collect()
    }

    /// Deletes the files again, for a job whose result will not be installed. Errors are ignored: a file that nothing
    /// names is deleted by the next open.
    pub fn discard(&self, fs: &dyn Fs, dir: &Path) {
        for (_, meta) in &self.added {
            let _ = fs.remove(&klog_path(dir, meta.id));
        }
        for vlog in &self.vlogs {
            let _ = fs.remove(&vlog_path(dir, vlog.id));
        }
    }
}

/// A token bucket over bytes that background jobs write. Holds at most a tenth of a second's tokens, so that no burst
/// takes the disk from the foreground.
pub struct RateLimiter {
    clock: Arc<dyn Clock>,
    /// Bytes per second; 0 does not limit.
    rate: AtomicU64,
    /// Time, on the clock's scale, at which what was written so far would have been written at the rate.
    paid_until_ns: AtomicU64,
}

impl RateLimiter {
    /// A limiter of `rate` bytes per second; 0 does not limit.
    pub fn new(clock: Arc<dyn Clock>, rate: u64) -> RateLimiter {
        RateLimiter { clock, rate: AtomicU64::new(rate), paid_until_ns: AtomicU64::new(0) }
    }

    /// Changes the rate.
    pub fn set_rate(&self, bytes_per_second: u64) {
        self.rate.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Books `bytes` and waits, in steps of at most 10 ms, until they are due; returns early when `cancelled`.
    pub fn take(&self, bytes: u64, cancelled: &AtomicBool) {
        const BURST_NS: u64 = 100_000_000;
        const STEP_NS: u64 = 10_000_000;
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let cost = (bytes as u128 * 1_000_000_000 / rate as u128) as u64;
        let now = self.clock.monotonic_ns();
        let book = |paid: u64| Some(paid.max(now.saturating_sub(BURST_NS)).saturating_add(cost));
        // Relaxed: the bucket orders nothing but itself.
        let paid = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, book).unwrap_or(0);
        let due = book(paid).unwrap_or(0);
        loop {
            let now = self.clock.monotonic_ns();
            if now >= due || cancelled.load(Ordering::Relaxed) {
                return;
            }
            self.clock.sleep(Duration::from_nanos((due - now).min(STEP_NS)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::clock::ManualClock;

    #[test]
    fn limiter_spends_the_rate_and_no_more() {
        let clock = ManualClock::at_unix_ms(1_000_000);
        let limiter = RateLimiter::new(clock.clone(), 1_000_000);
        let go = AtomicBool::new(false);
        let start = clock.monotonic_ns();
        (0..100).for_each(|_| limiter.take(50_000, &go));
        let took = clock.monotonic_ns() - start;
        assert!((4_850_000_000..=5_000_000_000).contains(&took), "{took}");
        limiter.set_rate(0);
        limiter.take(u64::MAX, &go);
        assert_eq!(clock.monotonic_ns() - start, took);
        limiter.set_rate(1);
        limiter.take(1 << 40, &AtomicBool::new(true));
        assert_eq!(clock.monotonic_ns() - start, took);
    }
}
