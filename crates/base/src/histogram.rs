//! Histograms of durations, and the table of those that a database keeps.
//!
//! A bucket covers an eighth of a power of two: between 2^k and 2^(k+1) nanoseconds there are eight, for k from 3 to 44, and
//! below 8 ns each number has its own. A quantile is reported as the middle of its bucket (the harmonic mean of its ends), which is
//! wrong by at most 1/17 of the truth: 5.9 %. The last bucket ends at 2^45 ns, which is 9.8 hours; what took longer counts
//! there, and in sum and maximum as what it was.
//!
//! Recording is two relaxed additions, and a comparison with the maximum. Histograms of operations that many threads do at
//! once have a copy for each of 8 groups of threads, so that threads do not pass cache lines to and fro; a snapshot sums the copies.
//! The others have one. All of that takes [`MEMORY`] bytes for a database, whatever is recorded.
//!
//! A number of families have histograms of their own ([`FamilyHistograms`]). What is recorded in one of these is recorded nowhere
//! else: a snapshot of the database adds them up. So they cost operations next to nothing. Their copies are allocated when something
//! is first recorded in them: at most [`FAMILY_MEMORY`] bytes for a family.

use crate::lock::Mutex;
use std::fmt::{self, Write};
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Buckets of a power of two, as a power of two.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// The last power of two that has buckets.
const LAST_POWER: u32 = 44;
/// Buckets of a histogram.
const BUCKETS: usize = ((LAST_POWER - SUB_BITS) as usize + 2) * SUB;
/// Copies of histograms that many threads record in.
const STRIPES: usize = 8;

macro_rules! histogram_table {
    (many: $( $(#[doc = $doc:literal])+ $name:ident $text:literal; )* few: $( $(#[doc = $rdoc:literal])+ $rname:ident $rtext:literal; )*) => {
        /// A histogram of durations that a database keeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum Histogram { $( $(#[doc = $doc])+ $name, )* $( $(#[doc = $rdoc])+ $rname, )* }

        impl Histogram {
            /// All, in table order.
            pub const ALL: &'static [Histogram] = &[$(Histogram::$name,)* $(Histogram::$rname),*];
            /// Name in reports.
            pub fn name(self) -> &'static str { match self { $(Histogram::$name => $text,)* $(Histogram::$rname => $rtext,)* } }
            /// Returns a description of the measured operation.
            pub fn help(self) -> &'static str {
                match self { $(Histogram::$name => concat!($($doc),+),)* $(Histogram::$rname => concat!($($rdoc),+),)* }
            }
            /// The one of that name.
            pub fn by_name(name: &str) -> Option<Histogram> {
                Histogram::ALL.iter().copied().find(|h| h.name() == name)
            }
        }

        const MANY: usize = [$(Histogram::$name),*].len();
        const FEW: usize = [$(Histogram::$rname),*].len();
    };
}

histogram_table! {
    many:
    /// Point reads, whether or not they found a value; one in 32 is timed and counts 32 times.
    Get "get";
    /// Calls that read several keys at once; each call counts once.
    MultiGet "multi_get";
    /// Seeks of cursors and iterators; one in 32 is timed and counts 32 times.
    Seek "seek";
    /// Steps of cursors and iterators in either direction; one step in 64 is timed and counts 64 times.
    Next "next";
    /// Commits of puts, deletes and batches, including the wait for durability.
    Write "write";
    /// Commits of transactions, including the wait for durability.
    Commit "commit";
    few:
    /// Syncs of write-ahead log files.
    Fsync "fsync";
    /// Flushes of memtables.
    Flush "flush";
    /// Compactions, without trivial moves.
    Compaction "compaction";
    /// Waits of writers for flow control.
    Stall "stall";
    /// Waits of transactions for locks.
    LockWait "lock_wait";
}

impl Histogram {
    /// Those that families have, too.
    pub const OF_FAMILIES: &'static [Histogram] = &[
        Histogram::Get,
        Histogram::MultiGet,
        Histogram::Seek,
        Histogram::Next,
        Histogram::Write,
        Histogram::Flush,
        Histogram::Compaction,
    ];

    /// The place in [`Histogram::OF_FAMILIES`].
    #[inline]
    fn of_family(self) -> Option<usize> {
        match self {
            Histogram::Get => Some(0),
            Histogram::MultiGet => Some(1),
            Histogram::Seek => Some(2),
            Histogram::Next => Some(3),
            Histogram::Write => Some(4),
            Histogram::Flush => Some(5),
            Histogram::Compaction => Some(6),
            Histogram::Commit | Histogram::Fsync | Histogram::Stall | Histogram::LockWait => None,
        }
    }
}

/// One histogram, or one group's copy of it.
struct Cells {
    sum: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Cells {
    fn default() -> Cells {
        Cells { sum: AtomicU64::new(0), max: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

// Every access is Relaxed: histograms order nothing.
impl Cells {
    #[inline]
    fn record(&self, ns: u64, weight: u64) {
        self.buckets[bucket_of(ns)].fetch_add(weight, Ordering::Relaxed);
        self.sum.fetch_add(ns.wrapping_mul(weight), Ordering::Relaxed);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    fn add(&self, snapshot: &HistogramSnapshot) {
        for (cell, n) in self.buckets.iter().zip(snapshot.buckets.iter()) {
            cell.fetch_add(*n, Ordering::Relaxed);
        }
        self.sum.fetch_add(snapshot.sum, Ordering::Relaxed);
        self.max.fetch_max(snapshot.max, Ordering::Relaxed);
    }

    fn add_to(&self, snapshot: &mut HistogramSnapshot) {
        for (sum, cell) in snapshot.buckets.iter_mut().zip(&self.buckets) {
            *sum += cell.load(Ordering::Relaxed);
        }
        snapshot.sum = snapshot.sum.wrapping_add(self.sum.load(Ordering::Relaxed));
        snapshot.max = snapshot.max.max(self.max.load(Ordering::Relaxed));
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe([Cells; MANY]);

/// Bytes of memory that the histograms of a database take, without those of families.
pub const MEMORY: usize = STRIPES * size_of::<Stripe>() + FEW * size_of::<Cells>();

/// Bytes of memory that the histograms of one family take when every group of threads has done everything in it.
pub const FAMILY_MEMORY: usize = size_of::<Own>() + Histogram::OF_FAMILIES.len() * STRIPES * size_of::<Cells>();

/// The histograms of a family, once it has some.
#[derive(Default)]
struct Own {
    /// For each kind, a copy for each group of threads.
    cells: [[OnceLock<Box<Cells>>; STRIPES]; Histogram::OF_FAMILIES.len()],
}

impl Own {
    fn add_to(&self, kind: usize, snapshot: &mut HistogramSnapshot) {
        self.cells[kind].iter().filter_map(OnceLock::get).for_each(|cells| cells.add_to(snapshot));
    }
}

/// The histograms of one family, or the knowledge that it has none because enough other families do. That is decided when
/// something is first recorded in it.
#[derive(Default)]
pub struct FamilyHistograms(OnceLock<Option<Arc<Own>>>);

impl FamilyHistograms {
    /// A histogram as it is now; empty for a kind that families do not have.
    pub fn snapshot(&self, h: Histogram) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        if let (Some(Some(own)), Some(kind)) = (self.0.get(), h.of_family()) {
            own.add_to(kind, &mut snapshot);
        }
        snapshot
    }
}

/// The families that have histograms.
struct Families {
    limit: usize,
    own: Vec<Arc<Own>>,
}

/// The histograms of a database.
pub(crate) struct Histograms {
    many: Box<[Stripe]>,
    few: Box<[Cells]>,
    families: Mutex<Families>,
}

impl Default for Histograms {
    fn default() -> Histograms {
        Histograms {
            many: (0..STRIPES).map(|_| Stripe::default()).collect(),
            few: (0..FEW).map(|_| Cells::default()).collect(),
            families: Mutex::new(Families { limit: 0, own: Vec::new() }),
        }
    }
}

impl Histograms {
    /// Adds a duration that stands for `weight` operations, in the copy of the caller's group of threads.
    #[inline]
    pub(crate) fn record(&self, h: Histogram, group: usize, ns: u64, weight: u64) {
        let at = h as usize;
        match at < MANY {
            true => self.many[group % STRIPES].0[at].record(ns, weight),
            false => self.few[at - MANY].record(ns, weight),
        }
    }

    /// Does the same for an operation of one family.
    #[inline]
    pub(crate) fn record_in(&self, family: &FamilyHistograms, h: Histogram, group: usize, ns: u64, weight: u64) {
        match (family.0.get_or_init(|| self.admit()), h.of_family()) {
            (Some(own), Some(kind)) => own.cells[kind][group % STRIPES].get_or_init(Box::default).record(ns, weight),
            _ => self.record(h, group, ns, weight),
        }
    }

    /// Says how many families may have histograms. Those that have them keep them.
    pub(crate) fn limit_families(&self, limit: usize) {
        self.families.lock().limit = limit;
    }

    /// Gives a family histograms, unless enough others have some.
    #[cold]
    fn admit(&self) -> Option<Arc<Own>> {
        let mut families = self.families.lock();
        let own = (families.own.len() < families.limit).then(Arc::<Own>::default)?;
        families.own.push(own.clone());
        Some(own)
    }

    /// Keeps what was recorded in the histograms of a family whose last handle is gone, without them.
    pub(crate) fn retire(&self, family: &mut FamilyHistograms) {
        let Some(Some(own)) = family.0.take() else { return };
        let mut families = self.families.lock(); // so that no snapshot counts them twice, or not at all
        families.own.retain(|other| !Arc::ptr_eq(other, &own));
        for (kind, h) in Histogram::OF_FAMILIES.iter().enumerate() {
            let mut sum = HistogramSnapshot::default();
            own.add_to(kind, &mut sum);
            let at = *h as usize;
            (if at < MANY { &self.many[0].0[at] } else { &self.few[at - MANY] }).add(&sum);
        }
    }

    pub(crate) fn snapshot(&self, h: Histogram) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        let at = h as usize;
        let families = self.families.lock();
        match at < MANY {
            true => self.many.iter().for_each(|stripe| stripe.0[at].add_to(&mut snapshot)),
            false => self.few[at - MANY].add_to(&mut snapshot),
        }
        if let Some(kind) = h.of_family() {
            families.own.iter().for_each(|own| own.add_to(kind, &mut snapshot));
        }
        snapshot
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    let shift = (ns | SUB as u64).ilog2() - SUB_BITS;
    let bucket = ((shift as usize) << SUB_BITS) + (ns >> shift) as usize;
    bucket.min(BUCKETS - 1)
}

/// The least number of nanoseconds that counts in a bucket.
fn start_of(bucket: usize) -> u64 {
    match bucket.checked_sub(SUB) {
        None => bucket as u64,
        Some(above) => ((SUB + above % SUB) as u64) << (above / SUB),
    }
}

/// The greatest number of nanoseconds that counts in a bucket.
fn last_of(bucket: usize) -> u64 {
    start_of(bucket + 1) - 1
}

/// A histogram as it was at one moment: how many durations fell into each of its buckets. The difference of two snapshots of one
/// histogram is what was recorded between them.
///
/// Counts that other threads add while the snapshot is taken may be missing from a part of it.
#[derive(Clone, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Box<[u64; BUCKETS]>,
    sum: u64,
    max: u64,
}

impl Default for HistogramSnapshot {
    fn default() -> HistogramSnapshot {
        HistogramSnapshot { buckets: Box::new([0; BUCKETS]), sum: 0, max: 0 }
    }
}

impl HistogramSnapshot {
    /// Returns the number of operations. For gets, seeks and steps it is off by at most a few dozen for each thread, because one timed
    /// operation stands for 32 or 64; the statistics `gets`, `seeks` and `iterator_steps` are exact.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The longest measured duration; not all gets, seeks and steps are measured. For a difference of two snapshots it is
    /// known only up to the width of a bucket.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The average duration; 0 if none was recorded.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// The duration that a share `q` of all durations did not exceed: 0.5 is the median, 0.99 is the duration that one in a hundred
    /// exceeded. It is off by at most 5.9 %; 0 if none was recorded. A `q` below 0 means 0, and one above 1 means 1.
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Duration::from_nanos(middle(bucket).min(self.max));
            }
        }
        Duration::ZERO
    }

    /// The non-empty buckets in ascending order: the range of durations, in nanoseconds, and the number of durations in it.
    pub fn buckets(&self) -> impl Iterator<Item = (std::ops::Range<u64>, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        filled.map(|(bucket, n)| (start_of(bucket)..start_of(bucket + 1), *n))
    }

    /// Returns how many durations were below `ns`, which must be a power of two and no more than 2^45.
    fn below(&self, ns: u64) -> u64 {
        self.buckets[..bucket_of(ns - 1) + 1].iter().sum()
    }

    /// Text in the form of Prometheus: cumulative buckets at powers of two from a microsecond to a minute, sum, and count.
    pub(crate) fn prometheus(&self, h: Histogram, out: &mut String) -> fmt::Result {
        let metric = format!("kingtide_{}_seconds", h.name());
        write!(out, "# HELP {metric} {}\n# TYPE {metric} histogram\n", h.help().trim())?;
        self.samples(&metric, "", out)
    }

    /// The same for families, each with its name as a label; `out` is not changed if there are none.
    #[doc(hidden)] // for `Db::prometheus`
    pub fn prometheus_of_families<'a>(
        h: Histogram,
        families: impl Iterator<Item = (&'a str, HistogramSnapshot)>,
        out: &mut String,
    ) -> fmt::Result {
        let metric = format!("kingtide_family_{}_seconds", h.name());
        for (n, (family, snapshot)) in families.enumerate() {
            if n == 0 {
                write!(out, "# HELP {metric} By family. {}\n# TYPE {metric} histogram\n", h.help().trim())?;
            }
            let escaped = family.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            snapshot.samples(&metric, &format!("family=\"{escaped}\""), out)?;
        }
        Ok(())
    }

    fn samples(&self, metric: &str, label: &str, out: &mut String) -> fmt::Result {
        let comma = if label.is_empty() { "" } else { "," };
        for power in 10..=36 {
            let end = 1u64 << power; // "le" includes its bound, and durations are whole nanoseconds
            let bound = Seconds(end - 1);
            writeln!(out, "{metric}_bucket{{{label}{comma}le=\"{bound}\"}} {}", self.below(end))?;
        }
        let count = self.count();
        let braces = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        writeln!(out, "{metric}_bucket{{{label}{comma}le=\"+Inf\"}} {count}")?;
        writeln!(out, "{metric}_sum{braces} {}\n{metric}_count{braces} {count}", Seconds(self.sum))
    }
}

/// The middle of a bucket: what is wrong by the same share for either end.
fn middle(bucket: usize) -> u64 {
    let (first, last) = (u128::from(start_of(bucket)), u128::from(last_of(bucket)));
    match first + last {
        0 => 0,
        sum => (2 * first * last / sum) as u64,
    }
}

impl Sub<&HistogramSnapshot> for &HistogramSnapshot {
    type Output = HistogramSnapshot;

    /// Returns the durations recorded since `earlier`, which must be an older snapshot of the same histogram.
    fn sub(self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let mut since = self.clone();
        for (n, before) in since.buckets.iter_mut().zip(earlier.buckets.iter()) {
            *n = n.saturating_sub(*before);
        }
        since.sum = self.sum.wrapping_sub(earlier.sum);
        if self.max == earlier.max {
            let end = since.buckets.iter().rposition(|n| *n > 0).map_or(0, last_of);
            since.max = end.min(self.max);
        }
        since
    }
}

impl fmt::Debug for HistogramSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistogramSnapshot({self})")
    }
}

impl fmt::Display for HistogramSnapshot {
    /// Count, mean, median, 99th and 99.9th percentile, and maximum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| self.quantile(q));
        let (count, mean, max) = (self.count(), self.mean(), self.max());
        write!(f, "count {count}, mean {mean:.1?}, p50 {p50:.1?}, p99 {p99:.1?}, p99.9 {p999:.1?}, max {max:.1?}")
    }
}

/// Nanoseconds, written as seconds without loss.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn of(values: &[u64]) -> HistogramSnapshot {
        let all = Histograms::default();
        values.iter().for_each(|v| all.record(Histogram::Get, *v as usize, *v, 1));
        all.snapshot(Histogram::Get)
    }

    #[test]
    fn buckets_follow_one_another_and_hold_what_they_say() {
        assert_eq!(start_of(0), 0);
        for bucket in 0..BUCKETS {
            let (start, end) = (start_of(bucket), start_of(bucket + 1));
            assert!(start < end);
            assert_eq!((bucket_of(start), bucket_of(end - 1)), (bucket, bucket), "{start}..{end}");
            assert!((end - 1 - start) as f64 <= start as f64 / 8.0, "{start}..{end} is too wide");
        }
        assert_eq!(start_of(BUCKETS), 1 << (LAST_POWER + 1));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        const { assert!(MEMORY < 160 << 10) };
    }

    #[test]
    fn quantiles_are_within_six_percent_of_those_of_the_sorted_values() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let spread = 1 + rng.below(40);
            let mut values: Vec<u64> = (0..1 + rng.below(5000)).map(|_| rng.next_u64() >> (63 - spread)).collect();
            let snapshot = of(&values);
            values.sort_unstable();
            for q in [0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((q * values.len() as f64).ceil() as usize).max(1);
                let (exact, told) = (values[rank - 1], snapshot.quantile(q).as_nanos() as u64);
                let wrong = exact.abs_diff(told) as f64;
                assert!(wrong <= exact as f64 * 0.059 + 1.0, "seed {seed}, quantile {q}: {told} for {exact}");
            }
            let sum: u64 = values.iter().sum();
            assert_eq!((snapshot.count(), snapshot.sum().as_nanos() as u64), (values.len() as u64, sum), "seed {seed}");
            assert_eq!(snapshot.max().as_nanos() as u64, *values.last().unwrap(), "seed {seed}");
            assert_eq!(snapshot.mean().as_nanos() as u64, sum / values.len() as u64);
            assert_eq!(snapshot.buckets().map(|(_, n)| n).sum::<u64>(), values.len() as u64);
            let of_bucket = |r: &std::ops::Range<u64>| values.iter().filter(|v| r.contains(v)).count() as u64;
            assert!(snapshot.buckets().all(|(range, n)| n == of_bucket(&range)), "seed {seed}");
        }
    }

    #[test]
    fn an_empty_histogram_has_no_durations() {
        let none = HistogramSnapshot::default();
        assert_eq!((none.count(), none.quantile(0.5), none.mean(), none.max()), Default::default());
        assert_eq!(none.buckets().count(), 0);
        assert_eq!(of(&[u64::MAX]).max().as_nanos() as u64, u64::MAX, "what is too long keeps its size in the maximum");
    }

    #[test]
    fn the_difference_of_two_snapshots_is_what_came_between() {
        let all = Histograms::default();
        [100, 200, 1_000_000].into_iter().for_each(|ns| all.record(Histogram::Flush, 0, ns, 1));
        let before = all.snapshot(Histogram::Flush);
        [300, 5_000].into_iter().for_each(|ns| all.record(Histogram::Flush, 0, ns, 1));
        let between = &all.snapshot(Histogram::Flush) - &before;
        assert_eq!((between.count(), between.sum()), (2, Duration::from_nanos(5_300)));
        let max = between.max().as_nanos() as f64;
        assert!((5_000.0..5_000.0 * 1.125).contains(&max), "{max}");
        assert_eq!(&before - &before, HistogramSnapshot { max: 0, ..HistogramSnapshot::default() });
        all.record(Histogram::Flush, 0, 2_000_000, 1);
        let with_new_max = &all.snapshot(Histogram::Flush) - &before;
        assert_eq!(with_new_max.max(), Duration::from_millis(2), "a new maximum is known exactly");
    }

    #[test]
    fn prometheus_text_counts_up_to_each_bound() {
        let mut text = String::new();
        of(&[0, 1_023, 1_024, 5_000, 1 << 40]).prometheus(Histogram::Get, &mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "# TYPE kingtide_get_seconds histogram");
        assert_eq!(lines[2], "kingtide_get_seconds_bucket{le=\"0.000001023\"} 2");
        assert_eq!(lines[3], "kingtide_get_seconds_bucket{le=\"0.000002047\"} 3");
        let counts: Vec<u64> = lines[2..30].iter().map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
        assert!(counts.is_sorted() && counts.last() == Some(&5), "{text}");
        assert_eq!(
            lines[30],
            format!(
                "kingtide_get_seconds_sum {}.{:09}",
                (1u64 << 40) / 1_000_000_000,
                ((1u64 << 40) + 7047) % 1_000_000_000
            )
        );
        assert_eq!(lines[31], "kingtide_get_seconds_count 5");
    }

    #[test]
    fn threads_of_all_groups_are_summed() {
        let all = Histograms::default();
        (0..100).for_each(|group| all.record(Histogram::Write, group, 50, 1));
        assert_eq!(all.snapshot(Histogram::Write).count(), 100);
        assert_eq!(Histogram::by_name("write"), Some(Histogram::Write));
        assert_eq!(Histogram::ALL.len(), MANY + FEW);
        assert!(Histogram::ALL.iter().all(|h| h.help().ends_with('.')));
    }
}
