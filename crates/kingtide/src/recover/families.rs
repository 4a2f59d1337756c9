//! The families that the manifest describes, as the log fills their memtables.

use super::manifest::Described;
use super::recovery::Recovery;
use crate::catalog::Catalog;
use crate::compact::{FlushInput, RateLimiter, Surroundings, run_flush};
use crate::family::{Family, ReadContext, View};
use crate::memtable::FamilyMemtable;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::version::{Edit, FamilyId};
use crate::version_set::FamilyState;
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use std::collections::BTreeMap;
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
}

impl Recovery<'_> {
    /// Makes the families that the manifest describes, with empty memtables.
    pub(super) fn make_families(&self, described: Described) -> Result<Families<'_>> {
        let log_needed_from = described.log_needed_from();
        let Described { mut versions, next_file_id, default_changed, same_boot, orphans } = described;
        versions.set_default_options(&self.options.family);
        let mut families: BTreeMap<FamilyId, Arc<Family>> = BTreeMap::new();
        for (id, f) in &versions.families {
            families.insert(*id, Arc::new(self.make_family(*id, f)?));
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
        })
    }

    fn make_family(&self, id: FamilyId, state: &FamilyState) -> Result<Family> {
        let FamilyState { name, order, options, version, flushed, .. } = state.clone();
        version.check(&order).map_err(|e| Error::corruption(e).at_path(self.dir))?;
        let active = FamilyMemtable::new(order.clone(), self.arenas, flushed + 1);
        let view = View::new(order.clone(), active, Vec::new(), version, self.tables, None);
        let reads = Arc::new(ReadContext::new(self.stats.clone(), self.tables.clone(), self.clock.clone()));
        let family = Family::new(id, name, order, options, reads, view);
        family.flushed_seq.store(flushed, Ordering::Relaxed);
        Ok(family)
    }
}

impl Families<'_> {
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
        };
        let version = family.view.load().version.clone();
        let output = around.with_context((family.order(), &options), vec![last], version, |context| {
            let output = run_flush(context, FlushInput::of(std::slice::from_ref(full), context.new_file_id()))?;
            context.sync_dir().map(|()| output)
        })?;
        let mut edits = output.edits(family.id(), &[]);
        edits.push(Edit::Flushed { family: family.id(), seq: last });
        self.catalog.change_files(family, edits, 1, tables, &self.next_file_id)?;
        Ok(())
    }
}
