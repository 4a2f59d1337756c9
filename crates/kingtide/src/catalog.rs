//! The database's catalog: which families exist and which files they consist of, as the manifest says, and what is being done
//! with them. Everything here is protected by the catalog lock, which is held across manifest writes; reads never take it.
//!
//! A change is a list of edits. It is written to the manifest first (one record, so all or nothing), and then applied to
//! the families' views.

use crate::family::{Family, TableCache, View};
use kingtide_base::options::FamilyOptions;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{FamilyId, Result, SeqNo, rare};
use kingtide_versions::{CompactionRange, Edit, Footprint, Retired, Rewrite, VersionSet};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// What the catalog lock protects.
pub(crate) struct Catalog {
    /// What the manifest says.
    pub versions: VersionSet,
    /// What works with the families that it describes.
    pub families: BTreeMap<FamilyId, Arc<Family>>,
    /// Families with a flush running.
    pub flushing: HashSet<FamilyId>,
    /// Merges that run.
    pub running: Vec<Running>,
    /// How many flushes and merges were begun.
    pub flushes: u64,
    pub merges: u64,
    /// Families whose dividing level is being emptied: the planner's memory.
    pub draining: HashSet<FamilyId>,
    /// The visible sequence when it last changed, and when that was, on the monotonic clock.
    pub last_activity: (SeqNo, u64),
    /// Families whose next merge was asked for by a caller: key ranges, first come first served.
    pub manual: Vec<ManualRange>,
    /// Last ticket given to a caller of a manual merge.
    pub next_manual: u64,
    /// Callers that wait until no merge is due, those included that are otherwise left for quiet moments.
    pub await_all_merges: usize,
}

/// A job that runs, as others see it.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub ticket: u64,
    pub family: FamilyId,
    pub footprints: Vec<Footprint>,
}

/// A range that a caller wants merged down.
#[derive(Clone, Debug)]
pub(crate) struct ManualRange {
    pub ticket: u64,
    pub family: FamilyId,
    pub range: CompactionRange,
    /// The last sequence number that was visible then.
    pub since: SeqNo,
    pub rewrite: Rewrite,
    /// How many merges had been begun when it was asked for, or when its family last had one since.
    pub served: u64,
}

/// What a family's value logs hold, those that commits write not included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VlogSpace {
    /// Stored bytes of all values.
    pub stored: u64,
    /// Of those that a table refers to.
    pub live: u64,
}

impl VlogSpace {
    /// Dead bytes beyond those that `vlog_dead_ratio` allows, `hidden` ones included; negative if there are fewer.
    pub fn excess(&self, options: &FamilyOptions, hidden: u64) -> i64 {
        let cap = options.vlog_dead_ratio;
        if cap >= 1.0 {
            return i64::MIN; // no value is moved, so nothing could be waited for
        }
        let dead = self.stored.saturating_sub(self.live) + hidden;
        dead as i64 - (cap * self.stored as f64) as i64
    }
}

impl Catalog {
    /// Asks for what a range of a family holds up to the sequence number `since` to be merged down. The ticket of the request, or `None` if the family was dropped: no
    /// merge would ever answer it.
    pub fn ask_for(
        &mut self,
        family: &Family,
        (range, since): (CompactionRange, SeqNo),
        rewrite: Rewrite,
    ) -> Option<u64> {
        if !self.families.contains_key(&family.id()) {
            return None;
        }
        self.next_manual += 1;
        let (ticket, served) = (self.next_manual, self.merges);
        self.manual.push(ManualRange { ticket, family: family.id(), range, since, rewrite, served });
        Some(self.next_manual)
    }

    pub fn new(versions: VersionSet, families: BTreeMap<FamilyId, Arc<Family>>) -> Catalog {
        Catalog {
            versions,
            families,
            flushing: HashSet::new(),
            running: Vec::new(),
            flushes: 0,
            merges: 0,
            draining: HashSet::new(),
            last_activity: (0, 0),
            manual: Vec::new(),
            next_manual: 0,
            await_all_merges: 0,
        }
    }

    /// Whether no flush or merge runs.
    pub fn is_quiet(&self) -> bool {
        self.flushing.is_empty() && self.running.is_empty()
    }

    /// The family of that name.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Family>> {
        self.families.values().find(|f| f.name() == name)
    }

    /// What the value logs of each family that has any hold. O(value logs).
    pub fn vlog_space(&self) -> BTreeMap<FamilyId, VlogSpace> {
        let mut all: BTreeMap<FamilyId, VlogSpace> = BTreeMap::new();
        for log in self.versions.vlogs.iter() {
            let Some(family) = self.families.get(&log.family) else { continue };
            let space = all.entry(log.family).or_default();
            space.stored += log.meta.stored_bytes;
            space.live += log.meta.stored_bytes - family.view.load().live_values().dead_bytes(&log.meta);
        }
        all
    }

    /// Writes edits that change one family's files to the manifest and installs the new version in its view.
    /// `flushed` oldest immutable memtables leave the view with it; the caller lets go of them.
    ///
    /// Value logs that the new version refers to no more are removed by the same record.
    pub fn change_files(
        &mut self,
        family: &Arc<Family>,
        mut edits: Vec<Edit>,
        flushed: usize,
        tables: &TableCache,
        next_file_id: &AtomicU64,
    ) -> Result<Retired> {
        edits.push(Edit::NextFileId(next_file_id.load(Ordering::Relaxed)));
        let retired = self.versions.write(edits, None, next_file_id)?;
        self.show_change(family, flushed, tables);
        Ok(retired)
    }

    /// Has a family's view show what the state says of its files. `flushed` oldest immutable memtables leave it. Touches no file.
    pub fn show_change(&self, family: &Family, flushed: usize, tables: &TableCache) {
        let Some(state) = self.versions.families.get(&family.id()) else { return };
        family.update_view(|v| {
            let kept = v.immutable.len() - flushed;
            v.immutable[kept..].iter().for_each(|m| m.direct().retire());
            let immutable = v.immutable[..kept].to_vec();
            View::new(v.order.clone(), v.active.clone(), immutable, state.version.clone(), tables, Some(v))
        });
        let before = family.flushed_seq.swap(state.flushed, Ordering::Relaxed);
        debug_assert!(before <= state.flushed, "what is flushed of a family fell");
    }

    /// Writes edits that change no family's files.
    ///
    /// # Errors
    /// As [`VersionSet::write`].
    pub fn write(&mut self, edits: &[Edit], next_file_id: &AtomicU64) -> Result<()> {
        self.versions.write(edits.to_vec(), None, next_file_id).map(drop)
    }

    /// Where the last record failed, writes the manifest anew, without it. Returns the files of records that failed.
    ///
    /// # Errors
    /// As [`VersionSet::write`].
    pub fn settle(&mut self, next_file_id: &AtomicU64) -> Result<Retired> {
        if self.versions.manifest.settled_path().is_none() || self.versions.has_doubtful() {
            rare!("manifest-settled");
            self.write(&[Edit::NextFileId(next_file_id.load(Ordering::Relaxed))], next_file_id)?;
        }
        Ok(self.versions.take_doubtful())
    }

    /// Brings the gauges that describe the catalog up to date. `space`: what [`Catalog::vlog_space`] tells. `staged`: bytes of value
    /// logs that no memtable has yet. O(families + value logs).
    pub fn update_gauges(&self, space: &BTreeMap<FamilyId, VlogSpace>, staged: u64, stats: &Stats) {
        // `direct`: those that commits write, which no table refers to yet.
        let (mut klog, mut direct, mut immutable, mut hidden) = (0, 0, 0, 0);
        for family in self.families.values() {
            let view = family.view.load();
            klog += view.klog_bytes();
            hidden += view.version.hidden_bytes();
            direct += view.memtables().map(|m| m.direct().file_bytes()).sum::<u64>();
            immutable += view.immutable.len() as u64;
        }
        let vlog: u64 = self.versions.vlogs.iter().map(|log| log.meta.size).sum();
        let dead: u64 = space.values().map(|space| space.stored - space.live).sum();
        stats.set(Stat::KlogBytes, klog);
        stats.set(Stat::VlogBytes, vlog + direct + staged);
        stats.set(Stat::VlogDeadBytes, dead);
        stats.set(Stat::VlogHiddenBytes, hidden);
        stats.set(Stat::ImmutableMemtables, immutable);
    }
}
