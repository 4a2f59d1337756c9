//! The families that the manifest describes, as the log fills their memtables.

use super::manifest::Described;
use super::recovery::Recovery;
use crate::catalog::Catalog;
use crate::compact::{FlushInput, Lookup, RateLimiter, Surroundings, run_flush};
use crate::family::{Family, ReadContext, View};
use crate::memtable::FamilyMemtable;
use crate::ops::files::read_files;
use crate::read::hidden::Hidden;
use kingtide_base::names::{klog_path, vlog_path};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo, rare};
use kingtide_versions::{Edit, FamilyState};
use kingtide_vfs::{Fs, OpenMode};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The database as it comes together.
pub(super) struct Families<'a> {
    pub recovery: &'a Recovery<'a>,
    pub catalog: Catalog,
    pub next_file_id: AtomicU64,
    /// The highest sequence number that the manifest shows.
    pub last_seq: SeqNo,
    /// From here on the log cannot be done without.
    pub log_needed_from: SeqNo,
    /// The machine was not restarted since the database was last open.
    pub same_boot: bool,
    /// A flush found the disk full: the rest stays in memory.
    disk_full: bool,
    pub default_changed: bool,
    pub orphans: Vec<String>,
    /// When only reading: the first log record of files that lie below older entries of their keys, as the manifest was read.
    pub misplaced_at: Option<SeqNo>,
}

impl Recovery<'_> {
    /// Makes the families that the manifest describes, with empty memtables.
    pub(super) fn make_families(&self, described: Described) -> Result<Families<'_>> {
        let log_needed_from = described.log_needed_from();
        let Described { mut versions, next_file_id, default_changed, same_boot, orphans } = described;
        versions.set_default_options(&self.options.family);
        let mut families: BTreeMap<FamilyId, Arc<Family>> = BTreeMap::new();
        for (id, f) in &versions.families {
            families.insert(*id, Arc::new(self.make_family(*id, f, f.flushed + 1)?));
        }
        Ok(Families {
            recovery: self,
            last_seq: versions.last_seq,
            catalog: Catalog::new(versions, families),
            next_file_id: AtomicU64::new(next_file_id),
            log_needed_from,
            same_boot,
            disk_full: false,
            default_changed,
            orphans,
            misplaced_at: None,
        })
    }

    /// `begins`: the first sequence number that its memtable may hold.
    fn make_family(&self, id: FamilyId, state: &FamilyState, begins: SeqNo) -> Result<Family> {
        let FamilyState { name, order, options, direct_from, version, flushed, .. } = state.clone();
        version.check(&order).map_err(|e| Error::corruption(e).at_path(self.dir))?;
        let active = FamilyMemtable::new(order.clone(), self.arenas, begins);
        let view = View::new(order.clone(), active, Vec::new(), version, self.tables, None);
        let reads = Arc::new(ReadContext::new(self.stats.clone(), self.tables.clone(), self.clock.clone()));
        let family = Family::new(id, name, order, options, reads, view);
        family.note_direct_from(direct_from);
        family.flushed_seq.store(flushed, Ordering::Relaxed);
        Ok(family)
    }
}

/// The family that gets a file, or comes into being.
fn family_of(edit: &Edit) -> Option<FamilyId> {
    match edit {
        Edit::CreateFamily { id, .. } => Some(*id),
        Edit::AddFile { family, .. } | Edit::AddVlog { family, .. } | Edit::Flushed { family, .. } => Some(*family),
        _ => None,
    }
}

/// Looks whether a file that an edit adds is there. Its name and its bytes were durable before the log named it, so that no
/// power cut can have taken it.
fn check_file(fs: &dyn Fs, dir: &Path, edit: &Edit) -> Result<()> {
    let (path, size) = match edit {
        Edit::AddFile { meta, .. } => (klog_path(dir, meta.id), meta.size),
        Edit::AddVlog { meta, .. } => (vlog_path(dir, meta.id), meta.size),
        _ => return Ok(()),
    };
    let len = fs.open(&path, OpenMode::Read).and_then(|file| file.len()).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::corruption("the file is missing").at_path(&path),
        _ => e,
    })?;
    match len == size {
        true => Ok(()),
        false => {
            let text = format!("the file has {len} bytes; the log says {size}");
            Err(Error::corruption(text).at_path(&path).at_offset(len.min(size)))
        }
    }
}

/// The run of level 0 that an edit adds a file of `family` to.
fn run_at_top(edit: &Edit, family: FamilyId) -> Option<u64> {
    match edit {
        Edit::AddFile { family: of, level: 0, meta } if *of == family => Some(meta.run),
        _ => None,
    }
}

impl Families<'_> {
    /// Adds files that a record of the log says became part of the database, at the place of the record among the others. Returns
    /// the families that they are in. Does nothing if the manifest has them: all that it gets later is written behind them, so it
    /// has them if it shows their last sequence number or a later one.
    pub fn add_files(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<Vec<Arc<Family>>> {
        let mut edits = read_files(base, count, payload)?;
        let last = base + u64::from(count) - 1;
        let recorded = last <= self.last_seq;
        if recorded {
            rare!("recovery-skipped-files");
            return Ok(Vec::new());
        }
        rare!("recovery-added-files");
        let Recovery { fs, dir, tables, options, .. } = *self.recovery;
        let said = |e: Error| e.context(format!("files of the log record with sequence {base}"));
        edits.iter().try_for_each(|edit| check_file(&**fs, dir, edit)).map_err(said)?;
        let next_file = edits.iter().map(|e| if let Edit::NextFileId(id) = e { *id } else { 0 }).max();
        self.next_file_id.fetch_max(next_file.unwrap_or(0), Ordering::Relaxed);
        self.number_runs(&mut edits);
        if self.recovery.read_only && self.misplaced_at.is_none() && edits.iter().any(|e| self.is_misplaced(e)) {
            self.misplaced_at = Some(base);
        }
        let touched: BTreeSet<FamilyId> = edits.iter().filter_map(family_of).collect();
        let logged =
            self.catalog.versions.with_logged(edits, &options.key_orders()).map_err(|e| said(e).at_path(dir))?;
        self.catalog.versions.adopt_logged(logged);
        let mut families = Vec::new();
        for id in touched {
            let Some(state) = self.catalog.versions.families.get(&id) else { continue };
            if !self.catalog.families.contains_key(&id) {
                let family = Arc::new(self.recovery.make_family(id, state, last + 1)?);
                self.catalog.families.insert(id, family);
            }
            let family = &self.catalog.families[&id];
            self.catalog.show_change(family, 0, tables);
            families.push(family.clone());
        }
        Ok(families)
    }

    /// Whether something older with keys of a file that an edit adds would be found before the file. A writer flushes memtables with
    /// keys of the file, and its manifest says so, before the log names the file; and it places the file among the tables that
    /// the manifest has then. A reader reads the manifest first. If it reads the log much later, the two do not fit together.
    fn is_misplaced(&self, edit: &Edit) -> bool {
        let Edit::AddFile { family, level, meta } = edit else { return false };
        let Some(family) = self.catalog.families.get(family) else { return false };
        let (view, lo, hi) = (family.view.load(), &meta.min_key, &meta.max_key);
        let place = (usize::from(*level), Reverse(meta.run));
        let mut above = view.version.runs().take_while(|(level, run)| (*level, Reverse(run.id)) < place);
        view.memtables().any(|m| m.holds_any(lo, hi))
            || above.any(|(_, run)| run.overlapping(family.order(), lo, hi).next().is_some())
    }

    /// Gives new runs of level 0 other ids where this recovery's own flushes have theirs, or greater ones. When the record was
    /// made, its runs were the newest; what was flushed here is older, but got its ids before the record was read, and no name
    /// of a file shows the ids of runs.
    fn number_runs(&self, edits: &mut [Edit]) {
        for (id, state) in &self.catalog.versions.families {
            let Some(newest) = state.version.levels[0].first().map(|run| run.id) else { continue };
            let runs: BTreeSet<u64> = edits.iter().filter_map(|e| run_at_top(e, *id)).collect();
            if runs.first().is_none_or(|oldest| *oldest > newest) {
                continue;
            }
            let drawn: BTreeMap<u64, u64> =
                runs.iter().map(|run| (*run, self.next_file_id.fetch_add(1, Ordering::Relaxed))).collect();
            for edit in edits.iter_mut() {
                let run = run_at_top(edit, *id);
                if let (Edit::AddFile { meta, .. }, Some(run)) = (edit, run) {
                    Arc::make_mut(meta).run = drawn[&run];
                }
            }
        }
    }

    /// Whether a memtable can become tables.
    pub fn can_flush(&self) -> bool {
        !self.disk_full && !self.recovery.read_only
    }

    /// Puts an empty memtable in the place of a family's, which holds all that was replayed up to `last`, and flushes that
    /// if it can. When the disk is full the memtable stays in memory, sealed: a database on a full disk opens, and what the
    /// log holds can be read.
    pub fn empty(&mut self, family: &Arc<Family>, last: SeqNo) -> Result<()> {
        let full = family.view.load().active.clone();
        if full.is_empty() {
            return Ok(());
        }
        // Or else what the memtable holds would be replayed again, or never.
        debug_assert!(last >= full.first_seq() && last >= family.flushed_seq.load(Ordering::Relaxed));
        let Recovery { arenas, tables, .. } = *self.recovery;
        let fresh = FamilyMemtable::new(family.order().clone(), arenas, last + 1);
        family.update_view(|v| {
            let immutable = std::iter::once(&v.active).chain(&v.immutable).cloned().collect();
            View::new(v.order.clone(), fresh, immutable, v.version.clone(), tables, Some(v))
        });
        if !self.can_flush() {
            return Ok(());
        }
        match self.flush(family, &full, last) {
            Err(e) if e.kind() == ErrorKind::NoSpace => self.disk_full = true,
            flushed => flushed?,
        }
        Ok(())
    }

    fn flush(&mut self, family: &Arc<Family>, full: &Arc<FamilyMemtable>, last: SeqNo) -> Result<()> {
        rare!("recovery-flushed");
        debug_assert!(!self.recovery.read_only, "a reader changes no byte");
        let Recovery { fs, dir, clock, tables, .. } = *self.recovery;
        let options = family.options();
        let limiter = RateLimiter::new(clock.clone(), 0);
        let around = Surroundings {
            fs,
            dir,
            tables: Some(tables),
            next_file: &self.next_file_id,
            now_ms: clock.unix_ms(),
            limiter: Some(&limiter),
            memory: None, // nothing else runs
            cancelled: &AtomicBool::new(false),
            may_cancel: false,
            poll_interval: self.recovery.options.tuning.poll_interval,
            restart_interval: self.recovery.options.tuning.restart_interval,
            raised_below: 0,
            keeps_from: family.keeps_from(),
        };
        let view = family.view.load_full();
        let hidden = Hidden::of(&view, std::slice::from_ref(full), &options);
        let lookup = hidden.as_ref().map(|h| move |key: &[u8], value| h.bytes(key, value));
        let output = around.with_context((family.order(), &options), vec![last], view.version.clone(), |context| {
            let input = FlushInput::of(std::slice::from_ref(full), context.new_file_id());
            let hidden = lookup.as_ref().map(|f| f as &Lookup<'_>);
            let output = run_flush(context, FlushInput { hidden, ..input })?;
            context.sync_dir().inspect_err(|_| output.discard(&**fs, dir))?;
            Ok(output)
        })?;
        let mut edits = output.edits(family.id(), &[]);
        drop(view);
        edits.push(Edit::Flushed { family: family.id(), seq: last });
        // Where the disk is full, the open goes on: the files of the record that failed go once the manifest is written anew.
        let changed = self.catalog.change_files(family, edits, 1, tables, &self.next_file_id);
        changed.map(drop).inspect_err(|_| self.catalog.versions.doubt(output.names()))
    }
}
