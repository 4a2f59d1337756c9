//! The table of statistics: one entry each for name, kind and help. Recording, reading, printing and the Prometheus
//! text are derived from it.
//!
//! Hot counters are sharded by thread so that two threads do not pass a cache line to and fro; a read sums the shards.

use crate::clock::Clock;
use crate::events::{Event, Events};
use crate::histogram::{FamilyHistograms, Histogram, HistogramSnapshot, Histograms};
use crate::perf::{begin_operation, end_operation};
use crate::sample::{Sampled, is_chosen};
use crate::slow::{Ring, SlowOperation, Subject};
use crate::tick::{TICK_BITS, Ticker};
use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Whether a statistic only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

const SHARDS: usize = 8;

macro_rules! stat_table {
    ($( $(#[doc = $doc:literal])+ $name:ident $text:literal $kind:ident; )*) => {
        /// A statistic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Stat { $( $(#[doc = $doc])+ $name, )* }

        impl Stat {
            /// All, in table order.
            pub const ALL: &'static [Stat] = &[$(Stat::$name),*];
            /// Name in reports.
            pub fn name(self) -> &'static str { match self { $(Stat::$name => $text,)* } }
            /// Returns what it counts, with its unit.
            pub fn help(self) -> &'static str { match self { $(Stat::$name => concat!($($doc),+),)* } }
            /// Returns whether it only grows.
            pub fn kind(self) -> StatKind { match self { $(Stat::$name => StatKind::$kind,)* } }
        }

        const COUNT: usize = [$(Stat::$name),*].len();
    };
}

stat_table! {
    /// Keys put by commits.
    Puts "puts" Counter;
    /// Keys deleted by commits, single deletes included.
    Deletes "deletes" Counter;
    /// Key ranges deleted by commits.
    RangeDeletes "range_deletes" Counter;
    /// Batches committed.
    Commits "commits" Counter;
    /// Bytes of keys and values in commits, before compression.
    BytesCommitted "bytes_committed" Counter;
    /// Point reads.
    Gets "gets" Counter;
    /// Point reads that found a value.
    GetHits "get_hits" Counter;
    /// Bytes of values returned by point reads.
    BytesRead "bytes_read" Counter;
    /// Iterator seeks.
    Seeks "seeks" Counter;
    /// Iterator steps.
    Steps "iterator_steps" Counter;
    /// Tombstones and hidden versions that iterators stepped over.
    SkippedEntries "iterator_skipped_entries" Counter;
    /// Bytes appended to the write-ahead log.
    WalBytes "wal_bytes" Counter;
    /// Syncs of the write-ahead log.
    WalSyncs "wal_syncs" Counter;
    /// Commits that waited for a sync of the write-ahead log.
    WalSyncedCommits "wal_synced_commits" Counter;
    /// Log segments created.
    WalSegmentsCreated "wal_segments_created" Counter;
    /// Log segments reused.
    WalSegmentsRecycled "wal_segments_recycled" Counter;
    /// Bytes of live log segments.
    WalSize "wal_size_bytes" Gauge;
    /// Memtables sealed: made immutable, to be flushed.
    Rotations "memtable_rotations" Counter;
    /// Memtables flushed.
    Flushes "flushes" Counter;
    /// Bytes written by flushes: key logs and value logs.
    FlushBytes "flush_bytes" Counter;
    /// Compactions that merged tables; trivial moves are not counted.
    Compactions "compactions" Counter;
    /// Files moved to a deeper level without being rewritten.
    TrivialMoves "trivial_moves" Counter;
    /// Key-log bytes read by compactions.
    CompactionReadBytes "compaction_read_bytes" Counter;
    /// Key-log and value-log bytes written by compactions.
    CompactionWriteBytes "compaction_write_bytes" Counter;
    /// Entries dropped by compactions: shadowed, deleted, expired.
    CompactionDropped "compaction_dropped_entries" Counter;
    /// Bytes of live values moved out of value logs that are to be deleted.
    VlogMovedBytes "vlog_moved_bytes" Counter;
    /// Values written once, to a value log before their commit.
    DirectValues "direct_values" Counter;
    /// Stored bytes of values written once.
    DirectValueBytes "direct_value_bytes" Counter;
    /// Value logs deleted.
    VlogsDeleted "vlogs_deleted" Counter;
    /// Table blocks and values found in the block cache.
    CacheHits "block_cache_hits" Counter;
    /// Table blocks and values not found in the block cache.
    CacheMisses "block_cache_misses" Counter;
    /// Blocks and values admitted to the block cache.
    CacheInserts "block_cache_inserts" Counter;
    /// Blocks and values evicted from the block cache.
    CacheEvictions "block_cache_evictions" Counter;
    /// Bytes held by the block cache.
    CacheBytes "block_cache_bytes" Gauge;
    /// Bytes that the block cache may hold now: `block_cache_size`, or less under the option `memory_limit`.
    CacheCapacity "block_cache_capacity_bytes" Gauge;
    /// Key-log blocks read from files.
    BlocksRead "blocks_read" Counter;
    /// Bytes read from key logs by gets and iterators.
    BlockReadBytes "block_read_bytes" Counter;
    /// Values read from value logs.
    VlogReads "vlog_reads" Counter;
    /// Bytes read from value logs.
    VlogReadBytes "vlog_read_bytes" Counter;
    /// Table lookups skipped because of the Bloom filter.
    FilterSkips "filter_skips" Counter;
    /// Bloom filter false positives.
    FilterFalsePositives "filter_false_positives" Counter;
    /// Table files opened.
    TableOpens "table_opens" Counter;
    /// Tables closed because not even the resident parts of partitioned indexes and filters fit into the option `memory_limit`, or because
    /// their indexes and filters are partitioned from then on.
    TableEvictions "table_evictions" Counter;
    /// Tables of these that were opened again: each reads index and filter from the file.
    TableReloads "table_reloads" Counter;
    /// Partitions of indexes and filters that were found in memory, where the option `memory_limit` does not hold all of them.
    PartitionHits "partition_hits" Counter;
    /// Partitions of indexes and filters that were read from files because they were not in memory.
    PartitionsRead "partitions_read" Counter;
    /// Bytes of these.
    PartitionReadBytes "partition_read_bytes" Counter;
    /// Partitions of indexes and filters given up for others, or because their memory was needed.
    PartitionEvictions "partition_evictions" Counter;
    /// Table files open now.
    OpenTables "open_tables" Gauge;
    /// Microseconds that writers waited because memory for memtables was used up.
    StallMemoryMicros "stall_memory_micros" Counter;
    /// Microseconds by which writers were slowed because flushes or level 0 lagged behind.
    StallDebtMicros "stall_debt_micros" Counter;
    /// Microseconds of these that writers were held because dead bytes of value logs passed their cap by the whole slack.
    StallDeadSpaceMicros "stall_dead_space_micros" Counter;
    /// Writers slowed or made to wait, for any reason.
    Stalls "stalls" Counter;
    /// Longest single wait of a writer, in microseconds.
    StallMaxMicros "stall_max_micros" Gauge;
    /// Commits refused with `Busy` because the caller asked not to wait.
    BusyRefusals "busy_refusals" Counter;
    /// Ingests, imports and clones of families.
    Ingests "ingests" Counter;
    /// Bytes of key logs and value logs added by ingests, imports and clones.
    IngestedBytes "ingested_bytes" Counter;
    /// Bytes of all that the option `memory_limit` counts, whether or not it is set: the sum of `memtable_bytes`,
    /// `memtable_pinned_bytes`, `memtable_spare_bytes`, `block_cache_bytes`, `resident_table_bytes`, `job_memory_bytes`, `transaction_bytes` and
    /// `lock_bytes`.
    MemoryBytes "memory_bytes" Gauge;
    /// Bytes held by memtables, active and immutable.
    MemtableBytes "memtable_bytes" Gauge;
    /// Bytes of memtables that were flushed, or whose family was dropped, but that iterators, cursors, readers of values and running jobs keep;
    /// and of sets of range tombstones that newer ones replaced, but that these keep.
    MemtablePinnedBytes "memtable_pinned_bytes" Gauge;
    /// Bytes of memory kept for the next memtables.
    MemtableSpareBytes "memtable_spare_bytes" Gauge;
    /// Immutable memtables that wait for a flush.
    ImmutableMemtables "immutable_memtables" Gauge;
    /// Bytes of the indexes, filters and range tombstones of tables held in memory.
    ResidentTableBytes "resident_table_bytes" Gauge;
    /// Bytes of the buffers of running flushes and compactions, and of the range tombstones that they search.
    JobMemoryBytes "job_memory_bytes" Gauge;
    /// Snapshots held.
    Snapshots "snapshots" Gauge;
    /// Bytes of key logs in the current version.
    KlogBytes "klog_bytes" Gauge;
    /// Bytes of value logs in the current version, and of values that are being written.
    VlogBytes "vlog_bytes" Gauge;
    /// Bytes of values in value logs to which nothing refers any more.
    VlogDeadBytes "vlog_dead_bytes" Gauge;
    /// Bytes of values in value logs that newer entries of tables hide, and to which older tables refer until a compaction has met both.
    VlogHiddenBytes "vlog_hidden_bytes" Gauge;
    /// Bytes of value logs that are no longer in the current version, but are kept by cursors, readers and running jobs.
    VlogPinnedBytes "vlog_pinned_bytes" Gauge;
    /// Background jobs that failed and will be retried.
    BackgroundErrors "background_errors" Counter;
    /// Transactions committed, those without writes included.
    TxnCommits "transactions_committed" Counter;
    /// Transactions rolled back, for any reason.
    TxnRollbacks "transactions_rolled_back" Counter;
    /// Commits and locking reads refused because of a conflict.
    TxnConflicts "transaction_conflicts" Counter;
    /// Keys and ranges whose newest version had to be looked up to rule out a conflict.
    TxnExactChecks "transaction_exact_checks" Counter;
    /// Transactions rolled back because their timeout passed.
    TxnExpired "transactions_expired" Counter;
    /// Bytes held by the read and write sets of transactions, in steps of 64 KiB for each transaction.
    TxnBytes "transaction_bytes" Gauge;
    /// Transactions in doubt: prepared, neither committed nor rolled back.
    TxnPrepared "transactions_prepared" Gauge;
    /// Lock requests that had to wait.
    LockWaits "lock_waits" Counter;
    /// Microseconds that lock requests waited.
    LockWaitMicros "lock_wait_micros" Counter;
    /// Lock requests that timed out.
    LockTimeouts "lock_timeouts" Counter;
    /// Approximate bytes held by the lock table.
    LockBytes "lock_bytes" Gauge;
    /// Deadlocks resolved by rolling back a transaction.
    Deadlocks "deadlocks" Counter;
    /// Panics of commit hooks that were caught.
    HookPanics "commit_hook_panics" Counter;
    /// Panics of event listeners that were caught.
    ListenerPanics "listener_panics" Counter;
    /// Events dropped because the listener did not keep up.
    EventsDropped "events_dropped" Counter;
    /// Lines that could not be written to the file `LOG`.
    LogLinesDropped "log_lines_dropped" Counter;
    /// Operations that took at least as long as the option `slow_operation_threshold_us` says.
    SlowOperations "slow_operations" Counter;
    /// Write-ahead-log records that the last open replayed: those with operations that were not yet in a table.
    RecoveredRecords "recovered_records" Gauge;
    /// Microseconds that the last open took.
    OpenMicros "open_micros" Gauge;
}

#[repr(align(128))]
struct Shard([AtomicU64; COUNT]);

/// Bits of [`Stats::timed`].
const FOR_HISTOGRAMS: u8 = 1;
const FOR_SLOW: u8 = 2;
/// Every get is timed, every seek: a database that does little of either, and a test, has exact histograms.
const EVERY_GET: u8 = 4;
const EVERY_SEEK: u8 = 8;

/// Gets, and seeks, of a new database that are all timed.
const FIRST: u64 = 256;

/// The statistics of one database: counters, gauges and histograms, and the operations that took long.
pub struct Stats {
    shards: Box<[Shard; SHARDS]>,
    histograms: Histograms,
    ticker: Ticker,
    /// What operations are timed for.
    timed: AtomicU8,
    /// How many gets, and seeks, were timed because they were among the first.
    first: [AtomicU64; 2],
    /// Operations that take as many nanoseconds are slow.
    slow_from: AtomicU64,
    slow: Ring,
    /// Events, and the sinks that receive them.
    pub events: Events,
}

impl Default for Stats {
    fn default() -> Self {
        Stats::with_ticker(Ticker::machine().clone())
    }
}

/// When an operation began, if it is timed: ticks, and above them how its end is recorded; 0 for what is recorded as it is.
#[derive(Clone, Copy, Debug)]
pub struct Started(u64);

const NOT_TIMED: u64 = u64::MAX;
/// The bit that says that slow operations are looked out for. The two above it say what kind was sampled, from 1.
const WATCHED: u64 = 1 << TICK_BITS;
/// For how many operations one stands, by the two uppermost bits.
const WEIGHTS: [u64; 4] = [1, Sampled::Get.weight(), Sampled::Seek.weight(), Sampled::Next.weight()];

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static MY_SHARD: Cell<usize> = const { Cell::new(SHARDS) };
}

/// The group of threads that this thread belongs to; less than [`SHARDS`].
#[inline]
fn group() -> usize {
    let group = MY_SHARD.get();
    if group < SHARDS { group } else { join_group() }
}

#[cold]
fn join_group() -> usize {
    let group = NEXT_THREAD.fetch_add(1, Ordering::Relaxed) % SHARDS;
    MY_SHARD.set(group);
    group
}

// Every access is Relaxed: statistics order nothing.
impl Stats {
    /// Adds to a counter.
    #[inline]
    pub fn add(&self, stat: Stat, n: u64) {
        self.shards[group()].0[stat as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, stat: Stat, v: u64) {
        self.shards[0].0[stat as usize].store(v, Ordering::Relaxed);
    }

    /// Raises a gauge to `v` if it is lower.
    pub fn raise(&self, stat: Stat, v: u64) {
        self.shards[0].0[stat as usize].fetch_max(v, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self, stat: Stat) -> u64 {
        match stat.kind() {
            StatKind::Gauge => self.shards[0].0[stat as usize].load(Ordering::Relaxed),
            StatKind::Counter => {
                self.shards.iter().fold(0u64, |sum, s| sum.wrapping_add(s.0[stat as usize].load(Ordering::Relaxed)))
            }
        }
    }

    /// Statistics that measure time with the machine's counter, or with a clock if there is one.
    pub fn new(clock: Option<&Arc<dyn Clock>>) -> Stats {
        clock.map_or_else(Stats::default, |clock| Stats::with_ticker(Ticker::of(clock.clone())))
    }

    fn with_ticker(ticker: Ticker) -> Stats {
        Stats {
            shards: Box::new(std::array::from_fn(|_| Shard([const { AtomicU64::new(0) }; COUNT]))),
            histograms: Histograms::default(),
            ticker,
            timed: AtomicU8::new(FOR_HISTOGRAMS | EVERY_GET | EVERY_SEEK),
            first: Default::default(),
            slow_from: AtomicU64::new(u64::MAX),
            slow: Ring::default(),
            events: Events::default(),
        }
    }

    /// Says whether histograms are kept, and from how many nanoseconds on an operation is slow; 0: none is.
    pub fn time_operations(&self, histograms: bool, slow_from: Option<Duration>) {
        let slow_from_ns = slow_from.map_or(0, |t| t.as_nanos() as u64);
        self.slow_from.store(if slow_from_ns == 0 { u64::MAX } else { slow_from_ns }, Ordering::Relaxed);
        let for_histograms = if histograms { FOR_HISTOGRAMS } else { 0 };
        let for_slow = if slow_from_ns == 0 { 0 } else { FOR_SLOW };
        let (former, new) = (FOR_HISTOGRAMS | FOR_SLOW, for_histograms | for_slow);
        let _ = self.timed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |timed| Some(timed & !former | new));
    }

    /// An operation begins. [`Stats::finish`] must follow, whatever becomes of it.
    #[inline]
    pub fn start(&self) -> Started {
        let timed = self.timed.load(Ordering::Relaxed);
        if timed & (FOR_HISTOGRAMS | FOR_SLOW) == 0 {
            return Started(NOT_TIMED);
        }
        if timed & FOR_SLOW != 0 {
            begin_operation();
        }
        Started(self.ticker.now() | if timed & FOR_SLOW != 0 { WATCHED } else { 0 })
    }

    /// Does the same for an operation so cheap that only some are timed, unless slow ones are looked out for. Then
    /// [`Stats::finish_sampled`] must follow.
    #[inline]
    pub fn start_sampled(&self, kind: Sampled) -> Started {
        let timed = self.timed.load(Ordering::Relaxed);
        if timed & FOR_SLOW != 0 { self.start() } else { self.start_some(kind, timed) }
    }

    /// Does what [`Stats::start_sampled`] does, without looking out for slow operations: [`Stats::finish_sampled`] need not follow.
    #[inline]
    pub fn start_unwatched(&self, kind: Sampled) -> Started {
        self.start_some(kind, self.timed.load(Ordering::Relaxed))
    }

    /// Begins an operation that [`is_chosen`] chose. [`Stats::finish_sampled`] need not follow.
    pub fn start_chosen(&self, kind: Sampled) -> Started {
        match self.timed.load(Ordering::Relaxed) & FOR_HISTOGRAMS {
            0 => Started(NOT_TIMED),
            _ => self.started(Some(kind)),
        }
    }

    #[inline]
    fn start_some(&self, kind: Sampled, timed: u8) -> Started {
        let every = if kind == Sampled::Get { EVERY_GET } else { EVERY_SEEK };
        if timed & FOR_HISTOGRAMS == 0 {
            Started(NOT_TIMED)
        } else if timed & every != 0 {
            self.start_first(every)
        } else if is_chosen(kind) {
            self.started(Some(kind))
        } else {
            Started(NOT_TIMED)
        }
    }

    #[cold]
    fn started(&self, sampled: Option<Sampled>) -> Started {
        Started(self.ticker.now() | sampled.map_or(0, |kind| (kind as u64 + 1) << (TICK_BITS + 1)))
    }

    #[cold]
    fn start_first(&self, every: u8) -> Started {
        if self.first[usize::from(every == EVERY_SEEK)].fetch_add(1, Ordering::Relaxed) + 1 >= FIRST {
            self.timed.fetch_and(!every, Ordering::Relaxed);
        }
        self.started(None)
    }

    /// An operation that [`Stats::start`] began ended. `family` is the one that it concerned, if it was one; `about` says what it was
    /// about, if it was slow.
    #[inline]
    pub fn finish(
        &self,
        operation: Histogram,
        family: Option<&FamilyHistograms>,
        started: Started,
        about: impl FnOnce() -> Subject,
    ) {
        if started.0 == NOT_TIMED {
            return;
        }
        if started.0 >> TICK_BITS == 0 {
            return self.count(operation, family, self.ticker.ns_since(started.0), 1);
        }
        debug_assert!(started.0 >> TICK_BITS == 1, "a sampled operation ends with `finish_sampled`");
        self.finish_watched(operation, family, self.ticker.ns_since(started.0 & (WATCHED - 1)), about);
    }

    /// The same for an operation that may have been sampled, and then stands for as many as its kind says. Looking that up and
    /// multiplying costs a few instructions more.
    #[inline]
    pub fn finish_sampled(
        &self,
        operation: Histogram,
        family: Option<&FamilyHistograms>,
        started: Started,
        about: impl FnOnce() -> Subject,
    ) {
        if started.0 == NOT_TIMED {
            return;
        }
        let ns = self.ticker.ns_since(started.0 & (WATCHED - 1));
        if started.0 & WATCHED != 0 {
            self.finish_watched(operation, family, ns, about);
        } else {
            self.count(operation, family, ns, WEIGHTS[(started.0 >> (TICK_BITS + 1)) as usize]);
        }
    }

    /// Adds to a histogram. Inlined, because much of it is known beforehand where the operation is a constant.
    #[inline(always)]
    fn count(&self, operation: Histogram, family: Option<&FamilyHistograms>, ns: u64, weight: u64) {
        match family {
            Some(family) => self.histograms.record_in(family, operation, group(), ns, weight),
            None => self.histograms.record(operation, group(), ns, weight),
        }
    }

    /// The same where it is rare.
    #[inline(never)]
    fn count_apart(&self, operation: Histogram, family: Option<&FamilyHistograms>, ns: u64, weight: u64) {
        self.count(operation, family, ns, weight);
    }

    #[cold]
    fn finish_watched(
        &self,
        operation: Histogram,
        family: Option<&FamilyHistograms>,
        ns: u64,
        about: impl FnOnce() -> Subject,
    ) {
        let stages = end_operation();
        self.record(operation, family, ns);
        if ns >= self.slow_from.load(Ordering::Relaxed) {
            self.add(Stat::SlowOperations, 1);
            let slow = self.slow.push(operation, about(), ns, stages);
            self.events.tell(|| Event::SlowOperation(slow));
        }
    }

    /// Delivers events that wait. Call it with no lock held.
    #[inline]
    pub fn deliver_events(&self) {
        self.events.deliver();
        let (dropped, panics) = self.events.take_losses();
        if dropped + panics > 0 {
            self.add(Stat::EventsDropped, dropped);
            self.add(Stat::ListenerPanics, panics);
        }
    }

    /// Reads the time for [`Stats::record_since`], without looking out for slow operations.
    #[inline]
    pub fn ticks(&self) -> Option<u64> {
        (self.timed.load(Ordering::Relaxed) & FOR_HISTOGRAMS != 0).then(|| self.ticker.now())
    }

    /// Adds the time since a reading to a histogram.
    #[inline]
    pub fn record_since(&self, histogram: Histogram, family: Option<&FamilyHistograms>, ticks: Option<u64>) {
        if let Some(ticks) = ticks {
            self.count(histogram, family, self.ticker.ns_since(ticks), 1);
        }
    }

    /// Adds a duration to a histogram, in nanoseconds.
    pub fn record(&self, histogram: Histogram, family: Option<&FamilyHistograms>, ns: u64) {
        if self.timed.load(Ordering::Relaxed) & FOR_HISTOGRAMS != 0 {
            self.count_apart(histogram, family, ns, 1);
        }
    }

    /// Says how many families have histograms of their own: so many that are used first.
    pub fn limit_family_histograms(&self, families: usize) {
        self.histograms.limit_families(families);
    }

    /// Gives up the histograms of a family whose last handle is gone; those of the database keep what they recorded.
    pub fn retire_family(&self, family: &mut FamilyHistograms) {
        self.histograms.retire(family);
    }

    /// A histogram as it is now. Reads some 22 KB, and as much for each family that has histograms of its own.
    pub fn histogram(&self, histogram: Histogram) -> HistogramSnapshot {
        self.histograms.snapshot(histogram)
    }

    /// Slow operations from that number on, of those that are kept, oldest first.
    pub fn slow_operations(&self, from: u64) -> Vec<SlowOperation> {
        self.slow.since(from)
    }

    /// All names and values, in table order.
    pub fn entries(&self) -> Vec<(&'static str, u64)> {
        Stat::ALL.iter().map(|s| (s.name(), self.get(*s))).collect()
    }

    /// The Prometheus text exposition of all statistics, each name prefixed with `kingtide_`, and of all histograms, whose
    /// names also have the suffix `_seconds`.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        for s in Stat::ALL {
            let kind = match s.kind() {
                StatKind::Counter => "counter",
                StatKind::Gauge => "gauge",
            };
            let name = s.name();
            let _ = writeln!(out, "# HELP kingtide_{name} {}", s.help().trim());
            let _ = writeln!(out, "# TYPE kingtide_{name} {kind}\nkingtide_{name} {}", self.get(*s));
        }
        for h in Histogram::ALL {
            let _ = self.histogram(*h).prometheus(*h, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_sum_over_threads_and_print() {
        let s = Stats::default();
        std::thread::scope(|t| {
            for _ in 0..4 {
                t.spawn(|| (0..1000).for_each(|_| s.add(Stat::Gets, 2)));
            }
        });
        s.set(Stat::CacheBytes, 9);
        s.raise(Stat::StallMaxMicros, 5);
        s.raise(Stat::StallMaxMicros, 3);
        assert_eq!((s.get(Stat::Gets), s.get(Stat::CacheBytes), s.get(Stat::StallMaxMicros)), (8000, 9, 5));
        let text = s.prometheus();
        assert!(text.contains("# TYPE kingtide_gets counter\nkingtide_gets 8000\n"), "{text}");
        assert_eq!(s.entries().len(), Stat::ALL.len());
    }

    #[test]
    fn operations_are_timed_by_the_databases_clock_and_only_if_asked_for() {
        let clock = crate::clock::ManualClock::at_unix_ms(1);
        let dynamic: Arc<dyn Clock> = clock.clone();
        let stats = Stats::new(Some(&dynamic));
        let operation = |micros: u64| {
            let started = stats.start();
            crate::perf::count(crate::perf::Stage::BlocksRead, micros);
            clock.advance(std::time::Duration::from_micros(micros));
            stats.finish(Histogram::Get, None, started, || Subject::key(2, b"k"));
        };
        let counted = || stats.histogram(Histogram::Get).count();
        operation(100);
        assert_eq!((counted(), stats.histogram(Histogram::Get).max()), (1, std::time::Duration::from_micros(100)));
        stats.time_operations(false, None);
        operation(100);
        assert_eq!((counted(), stats.slow_operations(0).len()), (1, 0));
        stats.time_operations(false, Some(Duration::from_micros(50)));
        operation(49);
        operation(50);
        stats.time_operations(true, Some(Duration::from_micros(50)));
        operation(70);
        assert_eq!(counted(), 2);
        let slow: Vec<_> = stats.slow_operations(0).iter().map(|s| (s.ns, s.stages.blocks_read)).collect();
        assert_eq!(slow, [(50_000, 50), (70_000, 70)]);
        assert_eq!((stats.get(Stat::SlowOperations), stats.slow_operations(1).len()), (2, 1));
        assert_eq!(crate::perf::take().blocks_read, 169, "what was watched for");
    }

    /// Every fourth operation takes long, and so does one in 16, at the same place of each 16.
    #[test]
    fn sampled_operations_have_the_counts_and_quantiles_of_all() {
        let clock = crate::clock::ManualClock::at_unix_ms(1);
        let dynamic: Arc<dyn Clock> = clock.clone();
        for (kind, histogram) in [(Sampled::Get, Histogram::Get), (Sampled::Seek, Histogram::Seek)] {
            let stats = Stats::new(Some(&dynamic));
            let operation = |i: u64| {
                let started = stats.start_sampled(kind);
                clock.advance(Duration::from_nanos(if i % 16 == 5 { 10_000 } else { 100 + i % 4 * 100 }));
                stats.finish_sampled(histogram, None, started, Subject::default);
            };
            (0..FIRST).for_each(operation);
            let first = stats.histogram(histogram);
            assert_eq!((first.count(), first.sum()), (256, Duration::from_nanos(16 * 10_000 + 240 * 250 + 16 * 50)));
            (0..1_600_000).for_each(operation);
            let later = &stats.histogram(histogram) - &first;
            assert!(later.count().abs_diff(1_600_000) <= 32, "{later}");
            let ns = |d: Duration| d.as_nanos() as f64;
            assert!((ns(later.mean()) / 862.5 - 1.0).abs() < 0.1, "{later}");
            assert!((ns(later.quantile(0.3)) / 200.0 - 1.0).abs() < 0.06, "{later}");
            assert!((ns(later.quantile(0.97)) / 10_000.0 - 1.0).abs() < 0.06, "{later}");
        }
    }

    #[test]
    fn no_slow_operation_goes_unseen_between_samples() {
        let clock = crate::clock::ManualClock::at_unix_ms(1);
        let dynamic: Arc<dyn Clock> = clock.clone();
        let stats = Stats::new(Some(&dynamic));
        let get = |micros: u64| {
            let started = stats.start_sampled(Sampled::Get);
            clock.advance(Duration::from_micros(micros));
            stats.finish_sampled(Histogram::Get, None, started, Subject::default);
        };
        (0..1000).for_each(|_| get(1));
        stats.time_operations(true, Some(Duration::from_micros(50)));
        let before = stats.histogram(Histogram::Get);
        (0..1000).for_each(|i| get(if i % 10 == 0 { 50 } else { 1 }));
        assert_eq!(stats.get(Stat::SlowOperations), 100);
        assert_eq!((&stats.histogram(Histogram::Get) - &before).count(), 1000, "each counts once");
    }
}
