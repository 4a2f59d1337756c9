//! What reads of a family share.

use crate::family::tables::TableCache;
use kingtide_base::clock::Clock;
use kingtide_base::histogram::{FamilyHistograms, Histogram};
use kingtide_base::slow::Subject;
use kingtide_base::stats::{Started, Stats};
use kingtide_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// One point read in this many is a sample for the compaction planner.
pub(crate) const SAMPLE_PERIOD: u32 = 64;

/// What reads of one family need besides a view.
pub struct ReadContext {
    /// Where reads are counted.
    pub stats: Arc<Stats>,
    /// Opens tables and value logs.
    pub tables: Arc<TableCache>,
    /// Decides expiry.
    pub clock: Arc<dyn Clock>,
    /// The family whose reads these are; told when an operation was slow.
    family: AtomicU32,
    /// How long operations of that family took.
    pub(crate) histograms: FamilyHistograms,
    /// Runs that sampled reads looked into beyond the first, times the sampling period.
    extra_runs: AtomicU64,
}

impl ReadContext {
    /// A context.
    pub fn new(stats: Arc<Stats>, tables: Arc<TableCache>, clock: Arc<dyn Clock>) -> ReadContext {
        ReadContext {
            stats,
            tables,
            clock,
            family: AtomicU32::new(0),
            histograms: FamilyHistograms::default(),
            extra_runs: AtomicU64::new(0),
        }
    }

    /// Says which family's reads these are.
    pub(crate) fn set_family(&self, id: u32) {
        self.family.store(id, Ordering::Relaxed);
    }

    /// An operation of this family ended: see [`Stats::finish`].
    #[inline]
    pub(crate) fn finish(&self, operation: Histogram, started: Started, about: impl FnOnce() -> Subject) {
        self.stats.finish_sampled(operation, Some(&self.histograms), started, about);
    }

    /// What an operation on one key is about.
    #[cold]
    pub(crate) fn about(&self, key: &[u8]) -> Subject {
        Subject::key(self.family.load(Ordering::Relaxed), key)
    }

    /// What an operation on several keys, or none, is about.
    #[cold]
    pub(crate) fn about_keys(&self, keys: usize) -> Subject {
        Subject { family: self.family.load(Ordering::Relaxed), keys: keys as u64, ..Subject::default() }
    }

    /// Takes note that one sampled read had to search `runs_touched` runs. Relaxed: a hint to the planner.
    pub fn sample_read(&self, runs_touched: u32) {
        let extra = u64::from(runs_touched.saturating_sub(1));
        if extra > 0 {
            self.extra_runs.fetch_add(extra * u64::from(SAMPLE_PERIOD), Ordering::Relaxed);
        }
    }

    /// Searches of runs beyond a read's first since the last call, estimated from samples: what reads would have been
    /// spared by a single run.
    pub fn take_extra_runs(&self) -> u64 {
        self.extra_runs.swap(0, Ordering::Relaxed)
    }

    /// Whether an entry that expires at `expiry` has expired.
    #[inline]
    pub(crate) fn expired(&self, expiry: Option<u64>) -> bool {
        expiry.is_some_and(|at| at <= self.clock.unix_ms())
    }
}

impl Drop for ReadContext {
    fn drop(&mut self) {
        self.stats.retire_family(&mut self.histograms);
    }
}
