//! The database's shape: which families exist and which files they consist of. Everything here is protected by the
//! shape lock, which is held across manifest writes; reads never take it.
//!
//! A change is a list of edits. It is written to the manifest first (one record, so all or nothing), and then applied to
//! the families' views.

use crate::compact::job::Running;
use crate::compact::{KeyRange, Rewrite};
use crate::family::{Family, TableCache, View};
use crate::layout::Layout;
use crate::options::Options;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::version::manifest::Manifest;
use crate::version::scan::ManifestScan;
use crate::version::{Edit, FamilyId, LogBegun, Version, VlogMeta};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, KeyOrder, Result, SeqNo, rare};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// What the shape lock protects.
pub(crate) struct Shape {
    pub manifest: Manifest,
    pub families: BTreeMap<FamilyId, Arc<Family>>,
    pub vlogs: BTreeMap<u64, VlogMeta>,
    pub next_family: FamilyId,
    /// Operations below this are in tables; the log may be released up to here.
    pub log_start: SeqNo,
    /// The highest sequence number that the manifest was told of. Files need not show it any more, nor need the log: those
    /// of ingests are in none.
    pub last_seq: SeqNo,
    /// First log segment of the last open that wrote any, and its boot.
    pub log_begun: Option<LogBegun>,
    /// Families with a flush running.
    pub flushing: HashSet<FamilyId>,
    /// Merges that run.
    pub running: Vec<Running>,
    /// Families whose dividing level is being emptied: the planner's memory.
    pub draining: HashSet<FamilyId>,
    /// The visible sequence when it last changed, and when that was, on the monotonic clock.
    pub last_activity: (SeqNo, u64),
    /// Families whose next merge was asked for by a caller: key ranges, first come first served.
    pub manual: Vec<ManualRange>,
    /// Last ticket given to a caller of a manual merge.
    pub next_manual: u64,
}

/// A range that a caller wants merged down.
#[derive(Clone, Debug)]
pub(crate) struct ManualRange {
    pub ticket: u64,
    pub family: FamilyId,
    pub range: KeyRange,
    pub rewrite: Rewrite,
}

/// What a change left behind.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    pub tables: Vec<u64>,
    pub vlogs: Vec<u64>,
}

/// What happens to one family in a change of files.
pub(crate) struct FileChange {
    pub family: Arc<Family>,
    pub edits: Vec<Edit>,
    /// So many of the oldest frozen memtables leave the view.
    pub flushed: usize,
}

impl FileChange {
    /// The family's version after it. Notes the tables that no level holds any more.
    fn next_version(&self, retired: &mut Retired) -> Result<Version> {
        let order = self.family.order();
        let mut next = Version::clone(&self.family.view.load().version);
        let mut removed = Vec::new();
        for e in &self.edits {
            match e {
                Edit::AddFile { level, meta, .. } => next.add(order, *level as usize, meta.clone()),
                Edit::RemoveFile { level, id, .. } => {
                    if !next.remove(*level as usize, *id) {
                        return Err(Error::corruption(format!("level {level} holds no file {id} to remove")));
                    }
                    removed.push(*id);
                }
                _ => {}
            }
        }
        // A file that only moved to another level is removed and added by the same record.
        removed.retain(|id| !next.files().any(|(_, f)| f.id == *id));
        retired.tables.extend(removed);
        next.check(order).map_err(Error::corruption)?;
        Ok(next)
    }
}

impl Shape {
    /// Asks for a range of a family to be merged down. The ticket of the request, or `None` if the family was dropped: no
    /// merge would ever answer it.
    pub fn ask_for(&mut self, family: &Family, range: KeyRange, rewrite: Rewrite) -> Option<u64> {
        if !self.families.contains_key(&family.id()) {
            return None;
        }
        self.next_manual += 1;
        self.manual.push(ManualRange { ticket: self.next_manual, family: family.id(), range, rewrite });
        Some(self.next_manual)
    }

    pub fn new(
        manifest: Manifest,
        families: BTreeMap<FamilyId, Arc<Family>>,
        vlogs: BTreeMap<u64, VlogMeta>,
        next_family: FamilyId,
    ) -> Shape {
        Shape {
            manifest,
            families,
            vlogs,
            next_family,
            log_start: 0,
            last_seq: 0,
            log_begun: None,
            flushing: HashSet::new(),
            running: Vec::new(),
            draining: HashSet::new(),
            last_activity: (0, 0),
            manual: Vec::new(),
            next_manual: 0,
        }
    }

    /// The family of that name.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Family>> {
        self.families.values().find(|f| f.name() == name)
    }

    /// Live bytes of each value log: exact, from the tables that refer to it.
    pub fn vlog_live_bytes(&self) -> HashMap<u64, u64> {
        let mut live = HashMap::new();
        for f in self.families.values() {
            for (_, file) in f.view.load().version.files() {
                for r in &file.vlog_refs {
                    *live.entry(r.file_id).or_insert(0) += r.bytes;
                }
            }
        }
        live
    }

    /// Writes edits that change one family's files to the manifest and installs the new version in its view.
    /// `flushed` oldest frozen memtables leave the view with it.
    ///
    /// Value logs that the new version refers to no more are removed by the same record.
    pub fn change_files(
        &mut self,
        family: &Arc<Family>,
        edits: Vec<Edit>,
        flushed: usize,
        tables: &TableCache,
        next_file_id: &AtomicU64,
    ) -> Result<Retired> {
        let change = FileChange { family: family.clone(), edits, flushed };
        self.change_families(vec![change], Vec::new(), tables, next_file_id)
    }

    /// The same for several families with one record, which has further edits too.
    pub fn change_families(
        &mut self,
        changes: Vec<FileChange>,
        further: Vec<Edit>,
        tables: &TableCache,
        next_file_id: &AtomicU64,
    ) -> Result<Retired> {
        let mut retired = Retired::default();
        let mut next = Vec::with_capacity(changes.len());
        for change in &changes {
            next.push(change.next_version(&mut retired)?);
        }
        let mut edits: Vec<Edit> = changes.iter().flat_map(|c| &c.edits).cloned().collect();
        edits.extend(further);
        for e in &edits {
            if let Edit::AddVlog { id, family, size, stored_bytes, values } = e {
                let meta = VlogMeta { family: *family, size: *size, stored_bytes: *stored_bytes, values: *values };
                self.vlogs.insert(*id, meta);
            }
        }
        for (change, version) in changes.iter().zip(&next) {
            let used: HashSet<u64> = version.files().flat_map(|(_, f)| f.vlog_refs.iter().map(|r| r.file_id)).collect();
            let unused = self.vlogs.iter().filter(|(id, v)| v.family == change.family.id() && !used.contains(id));
            retired.vlogs.extend(unused.map(|(id, _)| *id));
        }
        edits.extend(retired.vlogs.iter().map(|id| Edit::RemoveVlog { id: *id }));
        edits.push(Edit::NextFileId(next_file_id.load(Ordering::Relaxed)));
        if let Err(e) = self.write(&edits, next_file_id) {
            // Not applied: forget the value logs that the failed change announced.
            for e in &edits {
                if let Edit::AddVlog { id, .. } = e {
                    self.vlogs.remove(id);
                }
            }
            return Err(e);
        }
        for id in &retired.vlogs {
            rare!("value-log-retired");
            self.vlogs.remove(id);
        }
        for (change, version) in changes.iter().zip(next) {
            let version = Arc::new(version);
            change.family.update_view(|v| {
                let kept = v.frozen.len() - change.flushed;
                v.frozen[kept..].iter().for_each(|m| m.retire());
                let frozen = v.frozen[..kept].to_vec();
                View::new(v.order.clone(), v.active.clone(), frozen, version.clone(), tables, Some(v))
            });
        }
        Ok(retired)
    }

    /// Writes one record to the manifest. When the manifest grew too long, or a failed write left its end in doubt, the
    /// record goes into a new one behind a snapshot of the shape.
    pub fn write(&mut self, edits: &[Edit], next_file_id: &AtomicU64) -> Result<()> {
        self.last_seq = edits.iter().map(Edit::last_seq).fold(self.last_seq, SeqNo::max);
        let log_start = edits.iter().filter_map(|e| if let Edit::LogStart(seq) = e { Some(*seq) } else { None }).max();
        // What the log may have lost since it was last said where it begins cannot be needed again.
        debug_assert!(
            log_start.is_none_or(|s| s >= self.log_start),
            "the log start fell: {log_start:?}, {}",
            self.log_start
        );
        if self.manifest.needs_rewrite() {
            self.rewrite(edits, next_file_id)?;
        } else {
            self.manifest.append(edits)?;
        }
        // The one place that sets it, once the manifest has it: from here on segments below it are released.
        self.log_start = self.log_start.max(log_start.unwrap_or(0));
        Ok(())
    }

    /// Writes a new manifest: a snapshot of the state before these edits, and the edits.
    fn rewrite(&mut self, edits: &[Edit], next_file_id: &AtomicU64) -> Result<()> {
        let number = next_file_id.fetch_add(1, Ordering::Relaxed);
        let snapshot = self.snapshot_edits(number + 1);
        let before = cfg!(debug_assertions).then(|| self.written_layout()).flatten();
        self.manifest.append_or_rewrite(edits, || number, || snapshot)?;
        if let Some(before) = before
            && let Some(after) = self.written_layout()
        {
            before.assert_became(&after, edits, number + 1, &self.orders());
        }
        Ok(())
    }

    /// What the manifest on disk adds up to, where that is certain and can be read: for assertions.
    fn written_layout(&self) -> Option<Layout> {
        let path = self.manifest.settled_path()?;
        let scan = ManifestScan::read_one(&**self.manifest.fs(), &path).ok().filter(|s| s.damage.is_empty())?;
        let orders = self.orders();
        let mut layout = Layout::default();
        let edits = scan.records.into_iter().flat_map(|r| r.edits);
        edits.into_iter().try_for_each(|e| layout.apply(e, &orders)).ok()?;
        Some(layout)
    }

    /// The custom orders of all families.
    fn orders(&self) -> Options {
        let custom = self.families.values().filter_map(|f| match f.order() {
            KeyOrder::Custom(order) => Some(order.clone()),
            _ => None,
        });
        Options { custom_orders: custom.collect(), ..Options::default() }
    }

    /// Edits that make this shape from nothing.
    fn snapshot_edits(&self, next_file_id: u64) -> Vec<Edit> {
        let mut edits = vec![
            Edit::NextFileId(next_file_id),
            Edit::NextFamilyId(self.next_family),
            Edit::LogStart(self.log_start),
            Edit::LastSeq(self.last_seq),
        ];
        if let Some(begun) = self.log_begun {
            edits.push(Edit::LogBegun(begun));
        }
        for (id, v) in &self.vlogs {
            edits.push(Edit::AddVlog {
                id: *id,
                family: v.family,
                size: v.size,
                stored_bytes: v.stored_bytes,
                values: v.values,
            });
        }
        for f in self.families.values() {
            let options = f.options().entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            edits.push(Edit::CreateFamily { id: f.id(), name: f.name(), order: f.order().name().to_owned(), options });
            edits.push(Edit::Flushed { family: f.id(), seq: f.flushed_seq.load(Ordering::Relaxed) });
            for (level, meta) in f.view.load().version.files() {
                edits.push(Edit::AddFile { family: f.id(), level: level as u8, meta: meta.clone() });
            }
        }
        edits
    }

    /// Brings the gauges that describe the shape up to date.
    pub fn update_gauges(&self, stats: &Stats) {
        let klog: u64 =
            self.families.values().map(|f| f.view.load().version.files().map(|(_, f)| f.size).sum::<u64>()).sum();
        let live: u64 = self.vlog_live_bytes().values().sum();
        let stored: u64 = self.vlogs.values().map(|v| v.stored_bytes).sum();
        stats.set(Stat::KlogBytes, klog);
        // Those that commits write, which no table refers to yet.
        let direct =
            self.families.values().map(|f| f.view.load().memtables().map(|m| m.direct().file_bytes()).sum::<u64>());
        stats.set(Stat::VlogBytes, self.vlogs.values().map(|v| v.size).sum::<u64>() + direct.sum::<u64>());
        stats.set(Stat::VlogDeadBytes, stored.saturating_sub(live));
        let frozen: usize = self.families.values().map(|f| f.view.load().frozen.len()).sum();
        stats.set(Stat::ImmutableMemtables, frozen as u64);
    }
}
