//! Which families there were, and which tables are theirs.

use super::files::files_of_log;
use super::report::{FamilyRepair, KeyGap, Repair};
use crate::recover::is_boot;
use kingtide_base::names::{COPY_MARKER, CURRENT, FileName, klog_path, parse_segment_name, parse_table_name};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo};
use kingtide_table::salvage::{TableTraits, read_traits, read_written_as};
use kingtide_versions::{DEFAULT_FAMILY, Edit, FileMeta, LogBegun, ManifestScan, required_log_start, unfinished_copy};
use kingtide_vfs::File;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The family that every database has from the beginning.
const DEFAULT_ID: FamilyId = 0;

/// A table to read.
pub(super) struct TablePlan {
    pub id: u64,
    /// What the manifest says of it, if its record is left.
    pub meta: Option<Arc<FileMeta>>,
}

/// A family to write.
pub(super) struct FamilyPlan {
    pub id: Option<FamilyId>,
    pub name: String,
    pub named: bool,
    pub order: KeyOrder,
    pub options: FamilyOptions,
    /// Operations up to here are in tables.
    pub flushed: SeqNo,
    pub tables: Vec<TablePlan>,
    /// Tables may be among them that were replaced by others, and tombstones may be missing.
    pub uncertain: bool,
}

pub(super) struct Plan {
    pub families: Vec<FamilyPlan>,
    known: Known,
    /// Tables in the directory that the manifest does not name.
    unnamed: BTreeSet<u64>,
    /// Families that the manifest says are gone.
    pub dropped: HashSet<FamilyId>,
    /// Family ids below this were given to families.
    pub next_family: FamilyId,
    /// The greatest sequence number that manifest, tables and log tell of.
    pub last_seq: SeqNo,
    /// What [`required_log_start`] says.
    pub log_from: SeqNo,
    /// Log segments with smaller ids are given up, though a power cut may have brought some back.
    pub first_segment: u64,
    /// A segment that is in the log, it or a later one, if the machine did not restart since.
    pub log_begun: Option<LogBegun>,
    /// Whether the manifest is whole, so that what it does not name is no part of the database.
    pub complete: bool,
}

/// The sum of the edits, as far as they are known.
#[derive(Default)]
struct Known {
    families: BTreeMap<FamilyId, (String, String, FamilyOptions)>,
    dropped: HashSet<FamilyId>,
    flushed: HashMap<FamilyId, SeqNo>,
    live: BTreeMap<u64, (FamilyId, Arc<FileMeta>)>,
    removed: HashSet<u64>,
    owners: HashMap<u64, FamilyId>,
    vlog_owners: HashMap<u64, FamilyId>,
    next_family: FamilyId,
    last_seq: SeqNo,
    log_start: SeqNo,
    /// Log segments with smaller ids were given up.
    first_segment: u64,
    log_begun: Option<LogBegun>,
}

impl Known {
    /// Adds a record. It may first add a file that the manifest lacked, and remove it then. A file that moves is removed from one
    /// level and added to another, in either order.
    fn apply(&mut self, edits: &[Edit]) {
        let mut added: HashMap<u64, u8> = HashMap::new();
        for edit in edits {
            match edit {
                Edit::AddFile { level, meta, .. } => _ = added.insert(meta.id, *level),
                Edit::RemoveFile { family, level, id } => {
                    self.owners.insert(*id, *family);
                    if added.get(id).is_none_or(|to| to == level) {
                        self.live.remove(id);
                        self.removed.insert(*id);
                    }
                }
                _ => {}
            }
            self.apply_one(edit);
        }
    }

    /// Adds what the log says of files. The manifest has those of a record if it shows a later sequence number;
    /// but if it lost records, perhaps that one.
    fn add_files_of_log(&mut self, records: &[(SeqNo, Vec<Edit>)], lost: bool, on_disk: &BTreeSet<u64>) {
        let told = self.last_seq;
        for (_, edits) in records.iter().filter(|(last, _)| *last > told || lost) {
            let is_new = |edit: &&Edit| match edit {
                Edit::AddFile { meta, .. } if lost => !self.removed.contains(&meta.id) && on_disk.contains(&meta.id),
                Edit::CreateFamily { id, .. } => !self.families.contains_key(id) && !self.dropped.contains(id),
                _ => true,
            };
            let new: Vec<Edit> = edits.iter().filter(is_new).cloned().collect();
            self.apply(&new);
        }
    }

    fn apply_one(&mut self, edit: &Edit) {
        let read = |stored: &[(String, String)]| {
            let mut options = FamilyOptions::default();
            for (name, value) in stored {
                let _ = options.set(name, value); // one that a newer version wrote has its default here
            }
            options
        };
        self.last_seq = self.last_seq.max(edit.last_seq());
        match edit {
            Edit::CreateFamily { id, name, order, options, .. } => {
                self.families.insert(*id, (name.clone(), order.clone(), read(options)));
                self.next_family = self.next_family.max(id.saturating_add(1));
            }
            Edit::DropFamily { id } => {
                self.families.remove(id);
                self.dropped.insert(*id);
                let gone = self.live.iter().filter(|(_, (family, _))| family == id).map(|(file, _)| *file);
                self.removed.extend(gone);
                self.live.retain(|_, (family, _)| family != id);
            }
            Edit::RenameFamily { id, name } => {
                if let Some(f) = self.families.get_mut(id) {
                    f.0 = name.clone();
                }
            }
            Edit::SetOptions { id, options } => {
                if let Some(f) = self.families.get_mut(id) {
                    f.2 = read(options);
                }
            }
            Edit::AddFile { family, meta, .. } => {
                self.live.insert(meta.id, (*family, meta.clone()));
                self.removed.remove(&meta.id);
                self.owners.insert(meta.id, *family);
            }
            Edit::Flushed { family, seq } => {
                let flushed = self.flushed.entry(*family).or_default();
                *flushed = (*flushed).max(*seq);
            }
            Edit::LastSeq(_) => {}
            Edit::LogStart(seq) => self.log_start = self.log_start.max(*seq),
            Edit::LogStartIn { seq, segment } => {
                self.log_start = self.log_start.max(*seq);
                self.first_segment = self.first_segment.max(*segment);
            }
            Edit::LogBegun(begun) => self.log_begun = Some(*begun),
            Edit::NextFamilyId(id) => self.next_family = self.next_family.max(*id),
            Edit::AddVlog { family, meta } => {
                self.vlog_owners.insert(meta.id, *family);
            }
            _ => {}
        }
    }
}

/// Reads the manifest and the directory.
pub(super) fn make(repair: &mut Repair<'_, '_>) -> Result<Plan> {
    let mut scan = ManifestScan::read(&*repair.fs, repair.dir)?;
    if let Some(at) = scan.damage.iter().position(Error::is_out_of_descriptors) {
        return Err(scan.damage.swap_remove(at));
    }
    let names = repair.fs.list(repair.dir)?;
    if names.iter().any(|n| n == COPY_MARKER) && !names.iter().any(|n| n == CURRENT) {
        let unfinished = unfinished_copy(repair.dir);
        let text = format!("{}; to salvage what was copied, remove {COPY_MARKER} first", unfinished.message());
        return Err(Error::corruption(text).at_path(repair.dir));
    }
    if !scan.found && !names.iter().any(|n| parse_segment_name(n).is_some()) {
        return Err(Error::new(ErrorKind::NotFound, "no files of a database here").at_path(repair.dir));
    }
    for e in &scan.damage {
        repair.report.unreadable(repair.dir, e);
    }
    let mut known = Known::default();
    scan.records.iter().for_each(|r| known.apply(&r.edits));
    let on_disk: BTreeSet<u64> = names.iter().filter_map(|n| parse_table_name(n)).collect();
    let log_from = required_log_start(known.log_start, scan.log_start_is_exact);
    known.add_files_of_log(&files_of_log(repair, known.first_segment, log_from)?, !scan.damage.is_empty(), &on_disk);
    let is_unnamed = |id: &u64| !known.live.contains_key(id) && !known.removed.contains(id);
    let unnamed: BTreeSet<u64> = on_disk.iter().copied().filter(is_unnamed).collect();
    let left_behind = on_disk.iter().filter(|id| !known.live.contains_key(id)).copied().collect::<Vec<u64>>();
    let complete = is_complete(repair, &scan, &known, &on_disk, &unnamed)?;
    let (dropped, next_family, last_seq) = (known.dropped.clone(), known.next_family, known.last_seq);
    let (log_begun, first_segment) = (known.log_begun, known.first_segment);
    let (families, live) = (known.families.clone(), known.live.clone());
    let mut plan = Plan {
        families: Vec::new(),
        known,
        unnamed,
        dropped,
        next_family,
        last_seq,
        log_from,
        first_segment,
        log_begun,
        complete,
    };
    for (id, (name, order, options)) in families {
        let Some(order) = repair.options.key_orders().named(&order) else {
            let text = format!("column family '{name}' was left out: pass its key order '{order}' in the options");
            repair.report.notes.push(text);
            repair.report.left_out.push(name);
            plan.dropped.insert(id);
            continue;
        };
        let flushed = plan.known.flushed.get(&id).copied().unwrap_or(0);
        let mut family = new_family(Some(id), name, true, order, false);
        (family.options, family.flushed) = (options, flushed);
        plan.families.push(family);
    }
    for (id, (family, meta)) in live {
        plan.give(repair, Some(family), TablePlan { id, meta: Some(meta) }, "bytewise");
    }
    if !complete {
        plan.distrust(repair);
    }
    if plan.complete {
        repair.report.leftovers = left_behind.iter().map(|id| klog_path(repair.dir, *id)).collect();
    }
    for family in &plan.families {
        repair.total +=
            family.tables.iter().filter_map(|t| t.meta.as_ref()).map(|m| m.size + m.vlog_bytes()).sum::<u64>();
    }
    Ok(plan)
}

/// Whether the manifest names everything that belongs to the database, so that tables beside it are what an unfinished
/// job left, or a finished one had not removed yet.
///
/// A manifest that was cut looks like one that a crash cut short or, between two records, like a whole one. But what
/// the lost records did is seen in the directory: the inputs of a compaction that it does not know of are gone, and
/// after a flush that it does not know of the log begins too late, or lacks a segment that was given up while a power cut
/// brought an earlier one back. As long as neither happened, the tables that it does
/// not name hold nothing that the named ones and the log do not hold too. Files that were ingested are named by the log. Builds before
/// did not log them, but took sequence numbers for them: where the log passes over some that are newer than all of the manifest, the
/// record of one is lost. Only when nothing was written after it does such an ingest look like one that was never finished.
fn is_complete(
    repair: &Repair<'_, '_>,
    scan: &ManifestScan,
    known: &Known,
    on_disk: &BTreeSet<u64>,
    unnamed: &BTreeSet<u64>,
) -> Result<bool> {
    // Without CURRENT the newest manifest is read, which may not be the one that it named.
    let current = repair.dir.join(CURRENT);
    let by_name = scan.damage.is_empty();
    if scan.records.is_empty() || !scan.damage.iter().all(|e| e.path() == Some(&*current)) {
        return Ok(false);
    }
    if by_name && unnamed.is_empty() {
        return Ok(true);
    }
    let mut segments = kingtide_wal::list_segments(&*repair.fs, repair.dir)?;
    segments.retain(|id| *id >= known.first_segment);
    let (mut passed_over, mut next) = (0, SeqNo::MAX);
    let log = kingtide_wal::replay(
        &*repair.fs,
        repair.dir,
        &segments,
        required_log_start(known.log_start, scan.log_start_is_exact),
        |base, count, _| {
            if base > next {
                passed_over = next;
            }
            next = base + count as u64;
            Ok(())
        },
    );
    if passed_over > known.last_seq && !unnamed.is_empty() {
        return Ok(false);
    }
    let is_missing = |path: &Path| {
        let id = path.file_name().and_then(|name| FileName::parse(&name.to_string_lossy())?.number());
        id.is_some_and(|id| !segments.contains(&id))
    };
    let log_is_short = match log {
        Ok(end) => known.log_begun.is_some_and(|b| end.lacks(b.segment, is_boot(b.boot_id, &*repair.fs))),
        Err(e) if e.is_out_of_descriptors() => return Err(e),
        Err(e) => e.path().is_some_and(is_missing),
    };
    Ok(!log_is_short && known.live.keys().all(|id| on_disk.contains(id)))
}

fn new_family(id: Option<FamilyId>, name: String, named: bool, order: KeyOrder, uncertain: bool) -> FamilyPlan {
    let (options, tables) = (FamilyOptions::default(), Vec::new());
    FamilyPlan { id, name, named, order, options, flushed: 0, tables, uncertain }
}

impl Plan {
    /// The family with that id, made up if its record is lost; `None` if it was dropped.
    pub fn family(&mut self, repair: &mut Repair<'_, '_>, id: FamilyId, order: &str) -> Option<&mut FamilyPlan> {
        if self.dropped.contains(&id) {
            return None;
        }
        if let Some(at) = self.families.iter().position(|f| f.id == Some(id)) {
            return self.families.get_mut(at);
        }
        if self.complete && id < self.next_family {
            return None; // dropped, and the record of that was left out of a later manifest
        }
        self.doubt(repair);
        // The tables that this brought in may be of the same family.
        if let Some(at) = self.families.iter().position(|f| f.id == Some(id)) {
            return self.families.get_mut(at);
        }
        let (name, order) = match id {
            DEFAULT_ID => (DEFAULT_FAMILY.to_owned(), Some(repair.options.order.clone())),
            _ => (self.free_name(id as u64), repair.options.key_orders().named(order)),
        };
        self.families.push(new_family(Some(id), name, id == DEFAULT_ID, order?, true));
        self.families.last_mut()
    }

    /// The first of `recovered-N` that no family has, from N = `number` on.
    fn free_name(&self, mut number: u64) -> String {
        loop {
            let name = format!("recovered-{number}");
            if !self.families.iter().any(|f| f.name == name) {
                return name;
            }
            number += 1;
        }
    }

    /// The manifest turns out not to be whole.
    fn doubt(&mut self, repair: &mut Repair<'_, '_>) {
        if std::mem::take(&mut self.complete) {
            self.distrust(repair);
        }
    }

    /// The manifest is not whole: what it does not name may belong to the database.
    fn distrust(&mut self, repair: &mut Repair<'_, '_>) {
        let text = match self.unnamed.is_empty() {
            true => "the manifest is incomplete: entries and families may be missing",
            false => "the manifest is incomplete: tables were found in the directory, and some may be out of date",
        };
        repair.report.notes.push(text.to_owned());
        repair.report.leftovers.clear();
        self.families.iter_mut().for_each(|f| f.uncertain = true);
        let (known, unnamed) = (std::mem::take(&mut self.known), std::mem::take(&mut self.unnamed));
        assign_unnamed(repair, self, &known, &unnamed);
        // Every database has it. Where neither a record nor a table of it is left, it is not known to have been empty.
        if !self.families.iter().any(|f| f.id == Some(DEFAULT_ID)) {
            let order = repair.options.order.clone();
            self.families.push(new_family(Some(DEFAULT_ID), DEFAULT_FAMILY.to_owned(), true, order, true));
        }
    }

    fn give(&mut self, repair: &mut Repair<'_, '_>, family: Option<FamilyId>, table: TablePlan, order: &str) {
        let path = klog_path(repair.dir, table.id);
        match family.and_then(|id| self.family(repair, id, order)) {
            Some(f) => f.tables.push(table),
            None => {
                let e = Error::corruption("its family does not exist, or its key order is unknown").at_path(&path);
                repair.report.unreadable(&path, &e);
            }
        }
    }
}

/// Tables in the directory of which no record of the manifest is left. A value log belongs to one family, so a table that
/// refers to one is of the family of the others that do. What nothing connects is kept apart: keys of two families in one
/// would be wrong values.
fn assign_unnamed(repair: &mut Repair<'_, '_>, plan: &mut Plan, known: &Known, unnamed: &BTreeSet<u64>) {
    let mut vlog_owners = known.vlog_owners.clone();
    let mut unknown: Vec<(u64, TableTraits)> = Vec::new();
    for (family, meta) in known.live.values() {
        meta.vlog_refs.iter().for_each(|r| _ = vlog_owners.insert(r.file_id, *family));
    }
    for &id in unnamed {
        let path = klog_path(repair.dir, id);
        // One that was ingested or cloned was written under another id.
        let read = |file: Arc<dyn File>| read_traits(&*file, read_written_as(&*file).unwrap_or(id));
        let traits = repair.files.open(&path).and_then(read);
        let traits = traits.unwrap_or_else(|e| {
            repair.report.unreadable(&path, &e);
            TableTraits { order: "bytewise".to_owned(), ..TableTraits::default() }
        });
        plan.last_seq = plan.last_seq.max(traits.info.max_seq);
        let by_vlog = || traits.info.vlog_refs.iter().find_map(|r| vlog_owners.get(&r.file_id).copied());
        match known.owners.get(&id).copied().or_else(by_vlog) {
            Some(family) => {
                let order = traits.order.clone();
                plan.give(repair, Some(family), TablePlan { id, meta: None }, &order);
            }
            None if repair.how.one_family => {
                plan.give(repair, Some(DEFAULT_ID), TablePlan { id, meta: None }, "bytewise");
            }
            None => unknown.push((id, traits)),
        }
    }
    let mut groups: Vec<(String, HashSet<u64>, Vec<u64>)> = Vec::new();
    for (id, traits) in unknown {
        let mut vlogs: HashSet<u64> = traits.info.vlog_refs.iter().map(|r| r.file_id).collect();
        let mut tables = vec![id];
        // Groups that this table connects become one.
        let mut at = 0;
        while at < groups.len() {
            if groups[at].0 == traits.order && !groups[at].1.is_disjoint(&vlogs) {
                let (_, more, ids) = groups.swap_remove(at);
                vlogs.extend(more);
                tables.extend(ids);
            } else {
                at += 1;
            }
        }
        groups.push((traits.order, vlogs, tables));
    }
    groups.sort_by_key(|(_, _, ids)| ids.iter().min().copied());
    for (order, _, ids) in groups {
        let Some(order) = repair.options.key_orders().named(&order) else {
            let text = format!("tables {ids:?} were left out: pass their key order '{order}' in the options");
            repair.report.notes.push(text);
            repair.report.left_out.push(plan.free_name(1));
            continue;
        };
        let name = plan.free_name(1);
        let text = format!("the family of tables {ids:?} is unknown: they are assigned to '{name}'");
        repair.report.notes.push(text);
        let mut family = new_family(None, name, false, order, true);
        family.tables = ids.into_iter().map(|id| TablePlan { id, meta: None }).collect();
        plan.families.push(family);
    }
}

impl FamilyPlan {
    /// The report to begin with.
    pub fn report(&self) -> FamilyRepair {
        let stale = if self.uncertain { vec![KeyGap::default()] } else { Vec::new() };
        FamilyRepair { name: self.name.clone(), named: self.named, stale, ..FamilyRepair::default() }
    }
}
