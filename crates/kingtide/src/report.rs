//! What [`crate::Db::stats`] returns: every counter, the shape of every family's tree, and the figures derived from them.

use crate::engine::DbInner;
use crate::family::Family;
use kingtide_base::histogram::{Histogram, HistogramSnapshot};
use kingtide_base::names::{STATS_FILE, STATS_TMP};
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_vfs::OpenMode;
use std::fmt;
use std::sync::Arc;

/// The shape of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelReport {
    /// The level.
    pub level: usize,
    /// Sorted runs.
    pub runs: usize,
    /// Table files.
    pub files: usize,
    /// Bytes of key logs.
    pub bytes: u64,
    /// Point entries, tombstones and hidden versions included.
    pub entries: u64,
    /// Point tombstones.
    pub tombstones: u64,
}

/// One family.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.put("tide", "high")?;
/// let report: kingtide::StatsReport = db.stats();
/// assert_eq!((report.families[0].name.as_str(), report.families[0].entries()), ("default", 1));
/// assert_eq!(report.get("puts"), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyReport {
    /// Its name.
    pub name: String,
    /// Bytes in its active memtable.
    pub active_bytes: u64,
    /// Immutable memtables.
    pub immutable_memtables: usize,
    /// Entries and range tombstones in all memtables, hidden versions included.
    pub memtable_entries: u64,
    /// Levels that hold anything.
    pub levels: Vec<LevelReport>,
    /// Bytes of its value logs.
    pub vlog_bytes: u64,
    /// Stored bytes in them that nothing refers to.
    pub vlog_dead_bytes: u64,
    /// Stored bytes in them that newer entries of tables hide, and to which older tables refer until a compaction has met both.
    pub vlog_hidden_bytes: u64,
    /// Its histograms of durations that are not empty, by name, in table order. See [`crate::ColumnFamily::histogram`].
    pub histograms: Vec<(&'static str, HistogramSnapshot)>,
}

impl FamilyReport {
    /// Entries in memtables and tables: tombstones and hidden versions included, so mostly more than there are keys.
    pub fn entries(&self) -> u64 {
        self.memtable_entries + self.levels.iter().map(|l| l.entries).sum::<u64>()
    }
}

/// All statistics at one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StatsReport {
    /// Every counter and gauge by name, in table order.
    pub counters: Vec<(&'static str, u64)>,
    /// Every histogram of durations that is not empty, by name, in table order.
    pub histograms: Vec<(&'static str, HistogramSnapshot)>,
    /// Every family, by name.
    pub families: Vec<FamilyReport>,
    /// Bytes written to log, tables and value logs per byte committed.
    pub write_amplification: f64,
    /// Table blocks and values read from files per point read and seek.
    pub read_amplification: f64,
    /// Bytes of tables and value logs per byte of them that is not known to be dead.
    pub space_amplification: f64,
    /// The reason why writes are no longer accepted, if so: a sync failed, so the state of the disk is unknown. Reads continue to work; the
    /// database must be opened again.
    pub writes_stopped: Option<String>,
    /// The error of the last background job, as long as none has succeeded since. The job is retried.
    pub background_error: Option<String>,
}

impl StatsReport {
    /// A counter or gauge by name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }
}

/// The histograms that are not empty, by name.
fn filled(
    all: &[Histogram],
    snapshot: impl Fn(Histogram) -> HistogramSnapshot,
) -> Vec<(&'static str, HistogramSnapshot)> {
    all.iter().map(|h| (h.name(), snapshot(*h))).filter(|(_, s)| s.count() > 0).collect()
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

impl DbInner {
    /// Brings gauges up to date that are computed on demand.
    pub fn refresh_gauges(&self) {
        let catalog = self.catalog.lock();
        catalog.update_gauges(&catalog.vlog_space(), self.staged.bytes(None), &self.stats);
        drop(catalog);
        let memory = self.memory_use();
        for (stat, bytes) in [
            (Stat::MemoryBytes, memory.total()),
            (Stat::MemtableBytes, memory.memtables),
            (Stat::MemtablePinnedBytes, memory.retired),
            (Stat::MemtableSpareBytes, memory.spare),
            (Stat::CacheBytes, memory.cache),
            (Stat::ResidentTableBytes, memory.tables),
            (Stat::JobMemoryBytes, memory.jobs),
            (Stat::TxnBytes, memory.transactions),
            (Stat::LockBytes, memory.locks),
        ] {
            self.stats.set(stat, bytes);
        }
        self.stats.set(Stat::CacheCapacity, self.cache.capacity());
        self.stats.set(Stat::Snapshots, self.snapshots.count());
        self.stats.set(Stat::WalSize, self.wal.size());
    }

    /// All statistics and histograms as Prometheus text.
    pub fn prometheus(&self) -> String {
        if self.check_origin().is_err() {
            return String::new();
        }
        self.refresh_gauges();
        let mut text = self.stats.prometheus();
        let families: Vec<Arc<Family>> = self.catalog.lock().families.values().cloned().collect();
        let named: Vec<(String, &Arc<Family>)> = families.iter().map(|f| (f.name(), f)).collect();
        for h in Histogram::OF_FAMILIES {
            let snapshots = named.iter().map(|(name, f)| (name.as_str(), f.histograms().snapshot(*h)));
            let _ = HistogramSnapshot::prometheus_of_families(*h, snapshots.filter(|(_, s)| s.count() > 0), &mut text);
        }
        text
    }

    /// Writes the file `STATS`, if the option `stats_interval_ms` asks for it and it is time. What fails is tried again when
    /// it is time again: nothing relies on it.
    pub fn publish_stats(&self) {
        let Some(every) = self.options.read().stats_interval.filter(|every| !every.is_zero()) else { return };
        let (now, last) = (self.clock.monotonic_ns().max(1), self.stats_published.load(Ordering::Relaxed));
        if last > 0 && u128::from(now.saturating_sub(last)) < every.as_nanos() {
            return;
        }
        // One thread wins the turn.
        if self.stats_published.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let (from, to) = (self.dir.join(STATS_TMP), self.dir.join(STATS_FILE));
            let written = || self.fs.open(&from, OpenMode::Overwrite)?.write_at(self.prometheus().as_bytes(), 0);
            let _ = written().and_then(|()| self.fs.rename(&from, &to));
        }
    }

    /// Removes that file: a closed database has no process whose statistics they would be.
    pub fn unpublish_stats(&self) {
        if self.stats_published.load(Ordering::Relaxed) > 0 {
            let _ = self.fs.remove(&self.dir.join(STATS_FILE));
        }
    }

    /// The report.
    pub fn report(&self) -> StatsReport {
        if let Err(e) = self.check_origin() {
            return StatsReport { writes_stopped: Some(e.to_string()), ..StatsReport::default() };
        }
        self.refresh_gauges();
        let s = |stat| self.stats.get(stat);
        let written =
            s(Stat::WalBytes) + s(Stat::FlushBytes) + s(Stat::CompactionWriteBytes) + s(Stat::DirectValueBytes);
        let stored = s(Stat::KlogBytes) + s(Stat::VlogBytes);
        StatsReport {
            counters: self.stats.entries(),
            histograms: self.histograms(),
            families: self.family_reports(),
            write_amplification: ratio(written, s(Stat::BytesCommitted)),
            read_amplification: ratio(s(Stat::BlocksRead) + s(Stat::VlogReads), s(Stat::Gets) + s(Stat::Seeks)),
            space_amplification: ratio(stored, stored - s(Stat::VlogDeadBytes).min(stored)),
            writes_stopped: self.poison().map(|e| e.to_string()),
            background_error: self.background_error().map(|e| e.to_string()),
        }
    }

    fn histograms(&self) -> Vec<(&'static str, HistogramSnapshot)> {
        filled(Histogram::ALL, |h| self.stats.histogram(h))
    }

    fn family_reports(&self) -> Vec<FamilyReport> {
        let catalog = self.catalog.lock();
        let mut all: Vec<FamilyReport> = Vec::new();
        for f in catalog.families.values() {
            let view = f.view.load();
            let mut report = FamilyReport {
                name: f.name(),
                active_bytes: view.active.memory(),
                immutable_memtables: view.immutable.len(),
                memtable_entries: view.memtables().map(|m| m.len()).sum(),
                histograms: filled(Histogram::OF_FAMILIES, |h| f.histograms().snapshot(h)),
                ..FamilyReport::default()
            };
            for (level, runs) in view.version.levels.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
                let mut l = LevelReport { level, runs: runs.len(), ..LevelReport::default() };
                for file in runs.iter().flat_map(|r| &r.files) {
                    l.files += 1;
                    l.bytes += file.size;
                    l.entries += file.entries;
                    l.tombstones += file.tombstones;
                }
                report.levels.push(l);
            }
            report.vlog_bytes = catalog.versions.vlogs.of(f.id()).map(|log| log.size).sum();
            report.vlog_dead_bytes =
                catalog.versions.vlogs.of(f.id()).map(|log| view.live_values().dead_bytes(log)).sum();
            report.vlog_hidden_bytes = view.version.hidden_bytes();
            report.vlog_bytes += view.memtables().map(|m| m.direct().file_bytes()).sum::<u64>();
            report.vlog_bytes += self.staged.bytes(Some(f.id()));
            all.push(report);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

impl fmt::Display for StatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.writes_stopped {
            writeln!(f, "writes are stopped: {why}")?;
        }
        if let Some(why) = &self.background_error {
            writeln!(f, "background work fails: {why}")?;
        }
        for family in &self.families {
            writeln!(
                f,
                "family '{}': memtable {} B, {} immutable, value logs {} B ({} B dead, {} B hidden)",
                family.name,
                family.active_bytes,
                family.immutable_memtables,
                family.vlog_bytes,
                family.vlog_dead_bytes,
                family.vlog_hidden_bytes
            )?;
            for l in &family.levels {
                writeln!(
                    f,
                    "  level {}: {:>3} runs {:>5} files {:>14} B {:>12} entries {:>10} tombstones",
                    l.level, l.runs, l.files, l.bytes, l.entries, l.tombstones
                )?;
            }
            for (name, histogram) in &family.histograms {
                writeln!(f, "  {name:<10} {histogram}")?;
            }
        }
        writeln!(
            f,
            "amplification: write {:.2}, read {:.2}, space {:.2}",
            self.write_amplification, self.read_amplification, self.space_amplification
        )?;
        for (name, histogram) in &self.histograms {
            writeln!(f, "{name:<12} {histogram}")?;
        }
        for (name, value) in &self.counters {
            writeln!(f, "{name:<32} {value}")?;
        }
        Ok(())
    }
}
