//! The new database: tables that hold what was salvaged under the sequence numbers that it had, and a manifest that names
//! them. It is written without a log, so that nothing gets a new number.

use super::plan::{FamilyPlan, Plan};
use super::report::Repair;
use crate::compact::{Outputs, Placement, Surroundings};
use crate::options::Options;
use crate::tuning::Tuning;
use kingtide_base::clock::{Clock, SystemClock};
use kingtide_base::key::MAX_SEQ;
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::{FamilyId, KeyOrder, Result, SeqNo};
use kingtide_versions::{DEFAULT_FAMILY, Edit, Manifest};
use kingtide_vfs::Fs;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The level of all that is written; it has one run.
const LEVEL: usize = 1;

/// Sequence numbers that are passed over when the end of the log is lost. A client may know of a number that was given
/// there, and must not see it given again. More than a log can hold of operations between two flushes.
const PASSED_OVER: SeqNo = 1 << 32;

/// A database that is being written. Nothing of it is one before [`NewDatabase::finish`].
pub(super) struct NewDatabase<'a> {
    fs: Arc<dyn Fs>,
    dir: &'a Path,
    options: &'a Options,
    clock: Arc<dyn Clock>,
    next_file: AtomicU64,
    next_family: FamilyId,
    last_seq: SeqNo,
    edits: Vec<Edit>,
    families: Vec<FamilyId>,
    /// The order of the default family, if there is one yet.
    default_order: Option<KeyOrder>,
}

impl<'a> NewDatabase<'a> {
    pub fn new(repair: &Repair<'a, '_>, (fs, dir): (&Arc<dyn Fs>, &'a Path), plan: &Plan) -> NewDatabase<'a> {
        let used = plan.families.iter().filter_map(|f| f.id).map(|id| id.saturating_add(1)).max();
        NewDatabase {
            fs: fs.clone(),
            dir,
            options: repair.options,
            clock: repair.options.clock.clone().unwrap_or_else(SystemClock::shared),
            next_file: AtomicU64::new(2),
            next_family: plan.next_family.max(used.unwrap_or(0)).max(1),
            last_seq: plan.last_seq,
            edits: Vec::new(),
            families: Vec::new(),
            default_order: None,
        }
    }

    /// Makes a family, with the tables that `write` writes for it.
    pub fn add_family(
        &mut self,
        family: &FamilyPlan,
        write: impl FnOnce(&mut Outputs<'_>) -> Result<()>,
    ) -> Result<()> {
        let is_default = family.name == DEFAULT_FAMILY;
        let options = if is_default { self.options.family.clone() } else { family.options.clone() };
        let id = family.id.unwrap_or_else(|| {
            self.next_family += 1;
            self.next_family - 1
        });
        self.create(id, &family.name, &family.order, &options);
        if is_default {
            self.default_order = Some(family.order.clone());
        }
        let metas = || family.tables.iter().filter_map(|t| t.meta.as_ref());
        let expected = (metas().map(|m| m.entries).sum(), metas().map(|m| m.size).sum());
        // Repair reads its input by itself.
        let surroundings = Surroundings {
            fs: &self.fs,
            dir: self.dir,
            tables: None,
            next_file: &self.next_file,
            now_ms: self.clock.unix_ms(),
            limiter: None,
            memory: None,
            cancelled: &AtomicBool::new(false),
            may_cancel: false,
            poll_interval: Tuning::default().poll_interval,
            restart_interval: Tuning::default().restart_interval,
            raised_below: 0,
            keeps_from: u64::MAX,
        };
        let relocate = BTreeSet::new();
        let place = Placement {
            level: LEVEL,
            run: LEVEL as u64,
            boundaries: &[],
            relocate: &relocate,
            lo: None,
            hidden: None,
            raise_to: 0,
            expected,
        };
        let kind = (&family.order, &options);
        let written = surroundings.with_context(kind, Vec::new(), Arc::default(), |context| {
            let mut out = Outputs::new(context, place, Vec::new());
            write(&mut out)?;
            out.finish()
        })?;
        self.last_seq = written.added.iter().map(|(_, meta)| meta.max_seq).fold(self.last_seq, SeqNo::max);
        self.edits.extend(written.edits(id, &[]));
        Ok(())
    }

    fn create(&mut self, id: FamilyId, name: &str, order: &KeyOrder, options: &FamilyOptions) {
        let options = options.entries().into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let (name, order) = (name.to_owned(), order.name().to_owned());
        self.edits.push(Edit::CreateFamily { id, name, order, options, direct_from: None });
        self.families.push(id);
    }

    /// Writes the manifest. Returns the order of the default family.
    pub fn finish(mut self, repair: &mut Repair<'_, '_>, plan: &Plan) -> Result<KeyOrder> {
        let order = self.default_order.take().unwrap_or_else(|| self.options.order.clone());
        if !self.edits.iter().any(|e| matches!(e, Edit::CreateFamily { name, .. } if name == DEFAULT_FAMILY)) {
            let id = if self.families.contains(&0) { self.next_family } else { 0 };
            self.next_family = self.next_family.max(id + 1);
            self.create(id, DEFAULT_FAMILY, &order, &self.options.family.clone());
        }
        let end_is_lost = !plan.complete || repair.report.log_gaps.iter().any(|gap| gap.to.is_none());
        if end_is_lost {
            self.last_seq = self.last_seq.saturating_add(PASSED_OVER).min(MAX_SEQ / 2).max(self.last_seq);
        }
        let last = self.last_seq;
        repair.report.last_sequence = last;
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let mut edits = vec![
            Edit::NextFileId(self.next_file.load(Ordering::Relaxed)),
            Edit::NextFamilyId(self.next_family),
            Edit::LastSeq(last),
            Edit::LogStart(last + 1),
        ];
        edits.append(&mut self.edits);
        edits.extend(self.families.iter().map(|id| Edit::Flushed { family: *id, seq: last }));
        self.fs.sync_dir(self.dir)?;
        let id = Options::draw_id(self.options.seed, number);
        Manifest::create(&self.fs, self.dir, number, id, &edits)?;
        Ok(order)
    }
}
