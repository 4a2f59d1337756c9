//! The version set: what the edits of the manifest add up to, and the manifest that they are written to.
//!
//! The sum is computed in one place, [`VersionState::apply`], whether recovery reads the edits or a running database makes
//! them. A running database applies them to a copy of the parts that they touch, writes them, and takes the copy over once
//! the manifest has them: after a failure the state is what it was.

use crate::edit::{Edit, LogBegun};
use crate::manifest::Manifest;
use crate::orders::{self, KeyOrders};
use crate::scan::ManifestScan;
use crate::version::{DEFAULT_FAMILY, Retired, Version};
use crate::vlogs::{OwnedVlog, VlogSet};
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo, rare};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Deref;
use std::sync::Arc;

/// A family as the manifest describes it.
#[derive(Clone, Debug)]
pub struct FamilyState {
    /// Its name.
    pub name: String,
    /// The order of its keys.
    pub order: KeyOrder,
    /// Whether the order was given. What the edits say of a family that was dropped since does not need it.
    pub order_is_known: bool,
    /// Its options.
    pub options: FamilyOptions,
    /// The shortest value that any options it has had let commits write once, to a value log alone; `u64::MAX` if none did.
    pub direct_from: u64,
    /// Its files. Changed in place while nothing else holds it, as in recovery.
    pub version: Arc<Version>,
    /// Everything up to this sequence number is in tables.
    pub flushed: SeqNo,
}

impl FamilyState {
    fn set_options(&mut self, options: FamilyOptions) {
        self.direct_from = self.direct_from.min(direct_from(&options));
        self.options = options;
    }

    /// The error for a family whose order was not given.
    #[cold]
    pub fn lacks_order(&self) -> Error {
        let (name, order) = (&self.name, self.order.name());
        Error::new(
            ErrorKind::Incompatible,
            format!(
                "column family '{name}' is ordered by '{order}', which this open was not given: hand the order in \
                 `Options::custom_orders`"
            ),
        )
    }
}

/// Everything that the manifest describes: the sum of its edits.
#[derive(Debug, Default)]
pub struct VersionState {
    /// The families.
    pub families: BTreeMap<FamilyId, FamilyState>,
    /// The value logs in use.
    pub vlogs: VlogSet,
    /// Family ids below this are taken.
    pub next_family: FamilyId,
    /// File ids below this are taken.
    pub next_file_id: u64,
    /// The highest sequence number that the manifest was given. Files need not show it any more, nor need the log: those
    /// of ingests are in none.
    pub last_seq: SeqNo,
    /// Operations below this are in tables; the log may be released up to here.
    pub log_start: SeqNo,
    /// Log segments with smaller ids were given up, though a power cut may have brought some back; 0: none that could come back.
    pub first_segment: u64,
    /// First log segment of the last open that wrote any, and its boot.
    pub log_begun: Option<LogBegun>,
}

impl VersionState {
    /// Adds an edit. A family whose order is not among `orders` is marked as such: see [`VersionState::check_orders`].
    ///
    /// # Errors
    /// `Corruption` for an edit that does not fit the state; `NewerFormat` for a stored option that this build does not know.
    pub fn apply(&mut self, edit: Edit, orders: &KeyOrders) -> Result<()> {
        self.last_seq = self.last_seq.max(edit.last_seq());
        match edit {
            Edit::CreateFamily { id, name, order, options: stored, direct_from: earlier } => {
                let known = orders.named(&order);
                let order_is_known = known.is_some();
                let order = known.unwrap_or_else(|| orders::unknown(order));
                let options = read_options(&name, &stored)?;
                self.next_family = self.next_family.max(id + 1);
                let direct_from = direct_from(&options).min(earlier.unwrap_or(u64::MAX));
                let version = Arc::default();
                let family = FamilyState { name, order, order_is_known, options, direct_from, version, flushed: 0 };
                self.families.insert(id, family);
            }
            Edit::DropFamily { id } => {
                self.families.remove(&id).ok_or_else(|| unknown(id))?;
                self.next_family = self.next_family.max(id + 1);
            }
            Edit::RenameFamily { id, name } => self.family(id)?.name = name,
            Edit::SetOptions { id, options } => {
                let f = self.family(id)?;
                f.set_options(read_options(&f.name, &options)?);
            }
            Edit::AddFile { family, level, meta } => {
                let f = self.family(family)?;
                if level as usize >= f.version.levels.len() {
                    return Err(Error::corruption(format!("the manifest puts file {} into level {level}", meta.id)));
                }
                Arc::make_mut(&mut f.version).add(&f.order, level as usize, meta);
            }
            Edit::RemoveFile { family, level, id } => {
                let f = self.family(family)?;
                if level as usize >= f.version.levels.len() || !Arc::make_mut(&mut f.version).remove(level as usize, id)
                {
                    return Err(Error::corruption(format!(
                        "the manifest removes file {id}, which level {level} lacks"
                    )));
                }
            }
            Edit::Flushed { family, seq } => {
                let f = self.family(family)?;
                f.flushed = f.flushed.max(seq);
            }
            Edit::AddVlog { family, meta } => {
                self.vlogs.insert(OwnedVlog { family, meta });
            }
            Edit::RemoveVlog { id } => {
                self.vlogs.remove(id);
            }
            Edit::NextFileId(id) => self.next_file_id = self.next_file_id.max(id),
            Edit::LastSeq(_) => {}
            Edit::NextFamilyId(id) => self.next_family = self.next_family.max(id),
            Edit::LogStart(seq) => self.log_start = self.log_start.max(seq),
            Edit::LogStartIn { seq, segment } => {
                self.log_start = self.log_start.max(seq);
                self.first_segment = self.first_segment.max(segment);
            }
            Edit::LogBegun(begun) => self.log_begun = Some(begun),
        }
        Ok(())
    }

    /// To be asked when all edits were added: they may have dropped a family whose order is not known any more.
    ///
    /// # Errors
    /// `Incompatible` for a family whose order was not given.
    pub fn check_orders(&self) -> Result<()> {
        let unknown = self.families.values().find(|f| !f.order_is_known);
        unknown.map_or(Ok(()), |f| Err(f.lacks_order()))
    }

    fn family(&mut self, id: FamilyId) -> Result<&mut FamilyState> {
        self.families.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// A copy of what an edit of these families and value logs can change.
    fn part(&self, touched: &Touched) -> VersionState {
        let family = |id: &FamilyId| Some((*id, self.families.get(id)?.clone()));
        let mut vlogs = VlogSet::default();
        touched.vlogs.iter().filter_map(|id| self.vlogs.get(*id)).for_each(|log| vlogs.insert(log.clone()));
        VersionState { families: touched.families.iter().filter_map(family).collect(), vlogs, ..*self }
    }

    /// Takes a changed copy over.
    fn adopt(&mut self, part: VersionState, touched: &Touched) {
        touched.families.iter().for_each(|id| _ = self.families.remove(id));
        touched.vlogs.iter().for_each(|id| _ = self.vlogs.remove(*id));
        let mut families = part.families;
        self.families.append(&mut families);
        part.vlogs.iter().for_each(|log| self.vlogs.insert(log.clone()));
        let VersionState { next_family, next_file_id, last_seq, log_start, first_segment, log_begun, .. } = part;
        (self.next_family, self.next_file_id, self.last_seq) = (next_family, next_file_id, last_seq);
        (self.log_start, self.first_segment, self.log_begun) = (log_start, first_segment, log_begun);
    }

    /// Edits that make this state from nothing.
    fn snapshot_edits(&self, next_file_id: u64) -> Vec<Edit> {
        let mut edits = vec![
            Edit::NextFileId(next_file_id),
            Edit::NextFamilyId(self.next_family),
            match self.first_segment {
                0 => Edit::LogStart(self.log_start),
                segment => Edit::LogStartIn { seq: self.log_start, segment },
            },
            Edit::LastSeq(self.last_seq),
        ];
        if let Some(begun) = self.log_begun {
            edits.push(Edit::LogBegun(begun));
        }
        let vlogs = self.vlogs.iter().cloned();
        edits.extend(vlogs.map(|OwnedVlog { family, meta }| Edit::AddVlog { family, meta }));
        for (id, f) in &self.families {
            let options = f.options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
            let (id, name, order) = (*id, f.name.clone(), f.order.name().to_owned());
            let direct_from = (f.direct_from < direct_from(&f.options)).then_some(f.direct_from);
            edits.push(Edit::CreateFamily { id, name, order, options, direct_from });
            edits.push(Edit::Flushed { family: id, seq: f.flushed });
            for (level, meta) in f.version.files() {
                edits.push(Edit::AddFile { family: id, level: level as u8, meta: meta.clone() });
            }
        }
        edits
    }

    /// The numbers that never fall: of the last commit, of the next file and family, and where the log begins.
    fn numbers(&self) -> [u64; 5] {
        [self.last_seq, self.next_file_id, self.next_family.into(), self.log_start, self.first_segment]
    }

    /// Whether no number falls from this state to `next`, nor in what the edits themselves say: a rewritten manifest begins with
    /// such edits.
    fn is_followed_by(&self, next: &VersionState, edits: &[Edit]) -> bool {
        self.numbers().iter().zip(next.numbers()).all(|(now, then)| *now <= then)
            && edits.iter().all(|e| !matches!(e, Edit::NextFileId(id) if *id < self.next_file_id))
    }

    /// Asserts that a rewritten manifest adds up to what the one before did, and `edits`. `number` is the first file id that
    /// the new one may name as free.
    ///
    /// Both sides are read from files and added up by [`VersionState::apply`]. So this finds what
    /// [`VersionState::snapshot_edits`] leaves out and what is written or read wrongly, but not what `apply` itself gets
    /// wrong: recovery and the running database would agree on that.
    fn assert_became(mut self, after: &VersionState, edits: &[Edit], number: u64, orders: &KeyOrders) {
        for e in edits {
            if let Err(e) = self.apply(e.clone(), orders) {
                panic!("an edit does not fit what the manifest held: {e}");
            }
        }
        // One by one, so that a message names what differs and not all that there is.
        let ids = |s: &VersionState| s.families.keys().copied().collect::<Vec<_>>();
        assert_eq!(ids(&self), ids(after), "a rewritten manifest has other families");
        for (id, f) in &self.families {
            let other = &after.families[id];
            let told = |f: &FamilyState| (f.name.clone(), f.order.name().to_owned(), f.flushed);
            assert_eq!(told(f), told(other), "a rewritten manifest says something else of family {id}");
            // Those of the default family are given by each open, which stores them last: a manifest that is rewritten before
            // that has them already.
            let same = f.name == DEFAULT_FAMILY || (f.options == other.options && f.direct_from == other.direct_from);
            assert!(same, "a rewritten manifest has other options of family {id}");
            assert!(f.direct_from >= other.direct_from, "a rewritten manifest forgets earlier options of family {id}");
        }
        assert!(self.vlogs == after.vlogs, "a rewritten manifest has other value logs");
        assert_eq!(self.log_begun, after.log_begun, "a rewritten manifest names another first segment of the log");
        for (id, f) in &self.families {
            assert_eq!(f.version, after.families[id].version, "a rewritten manifest has other files of family {id}");
        }
        assert!(after.next_file_id >= self.next_file_id.max(number), "the next file id fell");
        assert!(after.next_family >= self.next_family, "the next family's id fell");
        assert!(after.last_seq >= self.last_seq, "the last sequence number fell");
        assert!(after.log_start >= self.log_start, "the log start fell");
        assert!(after.first_segment >= self.first_segment, "the log's first segment fell");
    }
}

/// Whether all new files have ids that the one counter of all files gave out.
fn names_drawn_ids(edits: &[Edit], next_file_id: &AtomicU64) -> bool {
    let next = next_file_id.load(Ordering::Relaxed);
    edits.iter().all(|e| match e {
        Edit::AddFile { meta, .. } => meta.id < next,
        Edit::AddVlog { meta, .. } => meta.id < next,
        _ => true,
    })
}

#[cold]
fn unknown(id: FamilyId) -> Error {
    Error::corruption(format!("the manifest changes family {id}, which does not exist"))
}

/// The options of a family from what the manifest has of them.
///
/// # Errors
/// `NewerFormat` for an option or a value that this build does not know.
pub fn read_options(family: &str, stored: &[(String, String)]) -> Result<FamilyOptions> {
    let mut options = FamilyOptions::default();
    for (name, value) in stored {
        options.set(name, value).map_err(|e| {
            Error::new(ErrorKind::NewerFormat, format!("stored option of column family '{family}': {}", e.message()))
        })?;
    }
    Ok(options)
}

/// The length from which on values are written once, to a value log alone; no value has it if none is.
pub fn direct_from(options: &FamilyOptions) -> u64 {
    match options.direct_value_threshold {
        from if from > 0 && options.value_threshold > 0 => from,
        _ => u64::MAX,
    }
}

/// What edits name.
#[derive(Default)]
struct Touched {
    families: BTreeSet<FamilyId>,
    /// Families whose files may change.
    files_of: BTreeSet<FamilyId>,
    vlogs: BTreeSet<u64>,
}

impl Touched {
    fn by(edits: &[Edit]) -> Touched {
        let mut touched = Touched::default();
        for e in edits {
            match e {
                Edit::CreateFamily { id, .. } | Edit::RenameFamily { id, .. } | Edit::SetOptions { id, .. } => {
                    touched.families.insert(*id);
                }
                Edit::DropFamily { id }
                | Edit::AddFile { family: id, .. }
                | Edit::RemoveFile { family: id, .. }
                | Edit::Flushed { family: id, .. } => {
                    touched.families.insert(*id);
                    touched.files_of.insert(*id);
                }
                Edit::AddVlog { family, meta } => {
                    touched.files_of.insert(*family);
                    touched.vlogs.insert(meta.id);
                }
                Edit::RemoveVlog { id } => _ = touched.vlogs.insert(*id),
                Edit::NextFileId(_) | Edit::LastSeq(_) | Edit::NextFamilyId(_) => {}
                Edit::LogStart(_) | Edit::LogStartIn { .. } | Edit::LogBegun(_) => {}
            }
        }
        touched
    }
}

/// The state, and the manifest that it is written to. Read through [`Deref`]; changed by [`VersionSet::write`].
pub struct VersionSet {
    /// The manifest.
    pub manifest: Manifest,
    state: VersionState,
    /// New files whose record failed: the manifest may name them until the next record is in it.
    doubtful: Retired,
    /// Edits that the state and the log have and the manifest has not: the next record begins with them.
    unwritten: Vec<Edit>,
    /// Why they must not be written.
    stopped: Option<Error>,
    /// Makes space for a record that met a full disk: see [`VersionSet::on_full_disk`].
    make_space: Option<MakeSpace>,
}

/// Returns whether it made space.
type MakeSpace = Box<dyn Fn() -> bool + Send + Sync>;

/// Edits that the log is to hold before the manifest does, and what they make of the state.
pub struct Logged {
    edits: Vec<Edit>,
    next: VersionState,
    touched: Touched,
}

impl Deref for VersionSet {
    type Target = VersionState;

    fn deref(&self) -> &VersionState {
        &self.state
    }
}

impl VersionSet {
    /// A manifest with what its edits add up to.
    pub fn new(manifest: Manifest, state: VersionState) -> VersionSet {
        VersionSet {
            manifest,
            state,
            doubtful: Retired::default(),
            unwritten: Vec::new(),
            stopped: None,
            make_space: None,
        }
    }

    /// The log begins later than the manifest says, which a build wrote that let the number fall.
    pub fn raise_log_start(&mut self, begins: SeqNo) {
        debug_assert!(begins >= self.state.log_start, "the log start fell");
        self.state.log_start = begins;
    }

    /// Gives the default family the options of this open, which are to be stored.
    pub fn set_default_options(&mut self, options: &FamilyOptions) {
        for f in self.state.families.values_mut().filter(|f| f.name == DEFAULT_FAMILY) {
            f.set_options(options.clone());
        }
    }

    /// Writes edits as one record, together with the removal of the value logs that no table needs after them, and applies
    /// them. Returns the files that are not needed any more. `new_order` is the key order of a family that the edits create.
    ///
    /// When the manifest grew too long, or a failed write left its end in doubt, the record goes into a new one behind a
    /// snapshot of the state. Otherwise it begins with the edits that only the log has so far.
    ///
    /// # Errors
    /// Those of [`Manifest::append`], also when the manifest is rewritten; `Corruption` for edits that do not fit the state. Nothing was
    /// applied, but sequence numbers and family ids that the edits name are taken: the manifest may have them.
    pub fn write(
        &mut self,
        mut edits: Vec<Edit>,
        new_order: Option<&KeyOrder>,
        next_file_id: &AtomicU64,
    ) -> Result<Retired> {
        self.check()?;
        debug_assert!(names_drawn_ids(&edits, next_file_id), "a file id that was never drawn: {edits:?}");
        let orders = self.orders(new_order);
        let mut touched = Touched::by(&edits);
        let mut next = self.state.part(&touched);
        edits.iter().try_for_each(|e| next.apply(e.clone(), &orders))?;
        next.check_orders()?;
        let retired = self.retired(&next, &touched, &edits)?;
        for (id, _) in &retired.vlogs {
            rare!("value-log-retired");
            edits.push(Edit::RemoveVlog { id: *id });
            next.vlogs.remove(*id);
            touched.vlogs.insert(*id);
        }
        let log_start = edits.iter().filter_map(Edit::log_start).max();
        // What the log may have lost since it was last said where it begins cannot be needed again.
        debug_assert!(
            log_start.is_none_or(|s| s >= self.log_start),
            "the log start fell: {log_start:?}, {}",
            self.log_start
        );
        debug_assert!(self.state.is_followed_by(&next, &edits), "a number fell: {:?}, {edits:?}", self.state.numbers());
        (self.state.last_seq, self.state.next_family) = (next.last_seq, next.next_family);
        let mut written = self.write_record(&edits, &orders, next_file_id);
        if written.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace)
            && self.make_space.as_ref().is_some_and(|make| make())
        {
            // What failed is followed by a new manifest, which does not have it.
            written = self.write_record(&edits, &orders, next_file_id);
        }
        written?;
        // Only once the manifest has it: from here on segments below the log start are released.
        self.state.adopt(next, &touched);
        self.unwritten.clear();
        Ok(retired)
    }

    fn write_record(&mut self, edits: &[Edit], orders: &KeyOrders, next_file_id: &AtomicU64) -> Result<()> {
        if self.manifest.needs_rewrite() {
            return self.rewrite(edits, orders, next_file_id);
        }
        let all: Vec<Edit> = self.unwritten.iter().chain(edits).cloned().collect();
        self.manifest.append(&all)
    }

    /// From now on, `make` is called when a record meets a full disk, and if it made space, the record is tried once more.
    pub fn on_full_disk(&mut self, make: impl Fn() -> bool + Send + Sync + 'static) {
        self.make_space = Some(Box::new(make));
    }

    /// Whether anything can be written, to be asked before files are made.
    ///
    /// # Errors
    /// That of [`VersionSet::stop`], for good.
    pub fn check(&self) -> Result<()> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    /// Whether the manifest has all that the state has.
    pub fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Looks what the state is with edits that the log is to hold before the manifest does. Nothing is changed yet. `orders` has
    /// the key order of a family that they create.
    ///
    /// # Errors
    /// `Corruption` for edits that do not fit the state; `Incompatible` for a family whose order is not among `orders`.
    pub fn with_logged(&self, edits: Vec<Edit>, orders: &KeyOrders) -> Result<Logged> {
        let touched = Touched::by(&edits);
        let mut next = self.state.part(&touched);
        let taken = |id: FamilyId, name: &str| id < self.next_family || self.families.values().any(|f| f.name == name);
        for edit in &edits {
            if let Edit::CreateFamily { id, name, .. } = edit
                && taken(*id, name)
            {
                return Err(Error::corruption(format!("column family {id} '{name}' exists already")));
            }
            next.apply(edit.clone(), orders)?;
        }
        next.check_orders()?;
        for family in touched.files_of.iter().filter_map(|id| next.families.get(id)) {
            family.version.check(&family.order).map_err(Error::corruption)?;
        }
        Ok(Logged { edits, next, touched })
    }

    /// Takes over what the log holds by now. The next record of the manifest begins with it.
    pub fn adopt_logged(&mut self, Logged { mut edits, next, touched }: Logged) {
        self.state.adopt(next, &touched);
        self.unwritten.append(&mut edits);
    }

    /// The log that holds what the manifest lacks could not be synced: nothing that comes after it may be written.
    pub fn stop(&mut self, why: Error) {
        self.stopped.get_or_insert(why);
    }

    /// Notes new files whose edits [`VersionSet::write`] failed to write; the next try makes others. They must stay as long as the
    /// manifest may name them. What is left at the end is removed by the next open.
    pub fn doubt(&mut self, mut files: Retired) {
        rare!("files-of-failed-record");
        self.doubtful.append(&mut files);
    }

    /// Whether there are such files.
    pub fn has_doubtful(&self) -> bool {
        !self.doubtful.tables.is_empty() || !self.doubtful.vlogs.is_empty()
    }

    /// After a write that succeeded: the files of those that had failed before, which can be removed. Nothing is appended
    /// behind a record that failed, so the write made a new manifest, which does not name them.
    pub fn take_doubtful(&mut self) -> Retired {
        std::mem::take(&mut self.doubtful)
    }

    /// The tables that no level of `next` holds any more, and the value logs that no table of its families refers to.
    fn retired(&self, next: &VersionState, touched: &Touched, edits: &[Edit]) -> Result<Retired> {
        let mut retired = Retired::default();
        for id in &touched.files_of {
            let version = match next.families.get(id) {
                Some(f) => {
                    f.version.check(&f.order).map_err(Error::corruption)?;
                    f.version.clone()
                }
                None => Arc::default(), // dropped
            };
            let held: HashSet<u64> = version.files().map(|(_, f)| f.id).collect();
            let before = self.families.get(id).into_iter().flat_map(|f| f.version.files());
            // A file that only moved to another level is removed and added by the same record.
            retired.tables.extend(before.map(|(_, f)| f.id).filter(|id| !held.contains(id)));
            let used: HashSet<u64> = version.files().flat_map(|(_, f)| f.vlog_refs.iter().map(|r| r.file_id)).collect();
            let known = self.vlogs.of(*id).chain(next.vlogs.of(*id).filter(|log| self.vlogs.get(log.id).is_none()));
            let removed = |v: u64| edits.iter().any(|e| matches!(e, Edit::RemoveVlog { id } if *id == v));
            let unused = known.filter(|log| !used.contains(&log.id) && !removed(log.id));
            retired.vlogs.extend(unused.map(|log| (log.id, log.size)));
        }
        Ok(retired)
    }

    /// Writes a new manifest: a snapshot of the state before these edits, and the edits.
    fn rewrite(&mut self, edits: &[Edit], orders: &KeyOrders, next_file_id: &AtomicU64) -> Result<()> {
        let number = next_file_id.fetch_add(1, Ordering::Relaxed);
        let snapshot = self.snapshot_edits(number + 1);
        let before = cfg!(debug_assertions).then(|| self.written_state(orders)).flatten();
        self.manifest.append_or_rewrite(edits, || number, || snapshot)?;
        if let Some(before) = before
            && let Some(after) = self.written_state(orders)
        {
            let edits: Vec<Edit> = self.unwritten.iter().chain(edits).cloned().collect();
            before.assert_became(&after, &edits, number + 1, orders);
        }
        Ok(())
    }

    /// What the manifest on disk adds up to, where that is certain and can be read: for assertions.
    fn written_state(&self, orders: &KeyOrders) -> Option<VersionState> {
        let path = self.manifest.settled_path()?;
        let scan = ManifestScan::read_one(&**self.manifest.fs(), &path).ok().filter(|s| s.damage.is_empty())?;
        let mut state = VersionState::default();
        let edits = scan.records.into_iter().flat_map(|r| r.edits);
        edits.into_iter().try_for_each(|e| state.apply(e, orders)).ok()?;
        Some(state)
    }

    /// The orders of all families, and one more.
    pub fn orders(&self, new: Option<&KeyOrder>) -> KeyOrders {
        KeyOrders::with(self.families.values().map(|f| &f.order).chain(new).cloned())
    }
}
