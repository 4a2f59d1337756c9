//! The third stage of recovery: the families, what of the log does not fit into memory as tables, and the state that the
//! database begins with.

use super::log::Replayed;
use super::manifest::{Described, no_default};
use super::{Recovered, Recovery};
use crate::compact::{FlushInput, RateLimiter, Surroundings, run_flush};
use crate::family::{Family, ReadContext, View};
use crate::memtable::FamilyMemtable;
use crate::names::{FileName, segment_path};
use crate::shape::Shape;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::version::manifest::write_again;
use crate::version::{DEFAULT_FAMILY, Edit, FamilyId};
use crate::version_set::{FamilyState, VersionSet};
use crate::wal::{self, ReplayEnd, ReplayedSegment};
use kingtide_base::events::{Event, RecoveryInfo};
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Result, SeqNo, rare};
use kingtide_vfs::OpenMode;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The database as it comes together.
pub(super) struct Install<'a> {
    recovery: &'a Recovery<'a>,
    pub shape: Shape,
    next_file_id: AtomicU64,
    /// The highest sequence number that the manifest shows.
    last_seq: SeqNo,
    /// From here on the log cannot be done without.
    pub log_needed_from: SeqNo,
    /// The machine was not restarted since the database was last open.
    pub same_boot: bool,
    /// A flush found the disk full: the rest stays in memory.
    disk_full: bool,
    default_changed: bool,
    orphans: Vec<String>,
}

impl Recovery<'_> {
    /// Makes the families that the manifest describes, with empty memtables.
    pub(super) fn make_families(&self, described: Described) -> Result<Install<'_>> {
        let log_needed_from = described.log_needed_from();
        let Described { mut versions, next_file_id, default_changed, same_boot, orphans } = described;
        versions.set_default_options(&self.options.family);
        let mut families: BTreeMap<FamilyId, Arc<Family>> = BTreeMap::new();
        for (id, f) in &versions.families {
            families.insert(*id, Arc::new(self.make_family(*id, f)?));
        }
        Ok(Install {
            recovery: self,
            last_seq: versions.last_seq,
            shape: Shape::new(versions, families),
            next_file_id: AtomicU64::new(next_file_id),
            log_needed_from,
            same_boot,
            disk_full: false,
            default_changed,
            orphans,
        })
    }

    fn make_family(&self, id: FamilyId, state: &FamilyState) -> Result<Family> {
        let FamilyState { name, order, options, version, flushed } = state.clone();
        version.check(&order).map_err(|e| Error::corruption(e).at_path(self.dir))?;
        let active = FamilyMemtable::new(order.clone(), self.arenas, flushed + 1);
        let view = View::new(order.clone(), active, Vec::new(), version, self.tables, None);
        let reads = Arc::new(ReadContext::new(self.stats.clone(), self.tables.clone(), self.clock.clone()));
        let family = Family::new(id, name, order, options, reads, view);
        family.flushed_seq.store(flushed, Ordering::Relaxed);
        Ok(family)
    }

    /// Makes durable what recovery reads of the log: of each segment its id, and the bytes that count.
    pub(super) fn sync_segments(&self, segments: impl Iterator<Item = (u64, u64)>, same_boot: bool) -> Result<()> {
        if kingtide_base::planted!("recovered-log-not-synced") {
            return Ok(());
        }
        for (id, bytes) in segments {
            let file = self.fs.open(&segment_path(self.dir, id), OpenMode::Write)?;
            if same_boot {
                write_again(&*file, bytes)?;
            }
            file.sync_data()?;
        }
        Ok(())
    }
}

impl Install<'_> {
    /// Whether a memtable can become tables.
    pub fn can_flush(&self) -> bool {
        !self.disk_full && !self.recovery.read_only
    }

    /// Puts an empty memtable in the place of a family's, which holds all that was replayed up to `last`, and flushes that
    /// if it can. When the disk is full the memtable stays in memory, frozen: a database on a full disk opens, and what the
    /// log holds can be read.
    pub fn empty(&mut self, family: &Arc<Family>, last: SeqNo) -> Result<()> {
        let full = family.view.load().active.clone();
        if full.is_empty() {
            return Ok(());
        }
        let Recovery { arenas, tables, .. } = *self.recovery;
        let fresh = FamilyMemtable::new(family.order().clone(), arenas, last + 1);
        family.update_view(|v| {
            let frozen = std::iter::once(&v.active).chain(&v.frozen).cloned().collect();
            View::new(v.order.clone(), fresh, frozen, v.version.clone(), tables, Some(v))
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
        let Recovery { fs, dir, clock, tables, .. } = *self.recovery;
        let options = family.options();
        let limiter = RateLimiter::new(clock.clone(), 0);
        let around = Surroundings {
            fs,
            dir,
            tables,
            next_file: &self.next_file_id,
            now_ms: clock.unix_ms(),
            limiter: Some(&limiter),
            cancelled: &AtomicBool::new(false),
            may_cancel: false,
            poll_interval: self.recovery.options.tuning.poll_interval,
        };
        let version = family.view.load().version.clone();
        let output = around.with_context((family.order(), &options), vec![last], version, |context| {
            let output = run_flush(context, FlushInput::of(std::slice::from_ref(full), context.new_file_id()))?;
            context.sync_dir().map(|()| output)
        })?;
        let mut edits = output.edits(family.id(), &[]);
        edits.push(Edit::Flushed { family: family.id(), seq: last });
        self.shape.change_files(family, edits, 1, tables, &self.next_file_id)?;
        Ok(())
    }

    /// What the open goes on with, after all of the log was replayed.
    pub fn finish(mut self, replayed: Replayed) -> Result<Recovered> {
        let Replayed { end: mut log_end, prepared } = replayed;
        raise_log_start(&mut self.shape.versions, &log_end);
        if !self.recovery.read_only {
            self.remove_orphans();
            self.sync_log(&log_end)?;
        }
        let last_seq = self.last_seq.max(log_end.next_seq.saturating_sub(1));
        if log_end.segments.is_empty() {
            log_end.next_seq = last_seq + 1; // a copy without a log: the one that begins now holds nothing older
        }
        self.start_empty_memtables_after(last_seq);
        let stats = self.recovery.stats;
        stats.set(Stat::RecoveredRecords, log_end.records);
        stats.events.tell(|| recovered_event(&self.shape, &log_end));

        let Install { shape, next_file_id, default_changed, .. } = self;
        let families = shape.families.values().cloned().collect();
        let default = shape.by_name(DEFAULT_FAMILY).cloned().ok_or_else(no_default)?;
        let next_file_id = next_file_id.into_inner();
        Ok(Recovered { shape, families, default, default_changed, log_end, last_seq, next_file_id, prepared })
    }

    /// Removes what nothing names. Only after the log was read: a manifest that lost its end is found out by the log, and
    /// what it does not name is no orphan then but what repair needs. What cannot be removed is left to the next open.
    fn remove_orphans(&self) {
        for name in &self.orphans {
            rare!("recovery-removed-orphan");
            if let Some(FileName::ValueLog(id)) = FileName::parse(name) {
                rare!("direct-log-orphan-removed");
                let _ = self.recovery.tables.delete_vlog(id); // a memtable that points into it keeps it until its flush
                continue;
            }
            let _ = self.recovery.fs.remove(&self.recovery.dir.join(name));
        }
    }

    /// Makes durable what was read of the log.
    fn sync_log(&self, end: &ReplayEnd) -> Result<()> {
        if !end.closed {
            // Those too that are only kept for change streams: the log is read from its beginning.
            self.recovery.sync_segments(end.segments.iter().map(extent), self.same_boot)
        } else if self.same_boot {
            // The mark of a closed log was written when all before its segment was synced, but its own sync may have
            // failed, and with it that of the segment's header.
            self.recovery.sync_segments(end.segments.last().map(extent).into_iter(), self.same_boot)
        } else {
            Ok(())
        }
    }

    /// A memtable that is still empty begins after everything recovered, so that it pins no log.
    fn start_empty_memtables_after(&self, last_seq: SeqNo) {
        let Recovery { arenas, tables, .. } = *self.recovery;
        for f in self.shape.families.values().filter(|f| f.view.load().active.is_empty()) {
            let fresh = FamilyMemtable::new(f.order().clone(), arenas, last_seq + 1);
            f.update_view(|v| View::new(v.order.clone(), fresh, v.frozen.clone(), v.version.clone(), tables, Some(v)));
        }
    }
}

/// After a manifest of a build that let the log's start fall: the oldest segment says where the log begins. All that was
/// released before it had been in tables, because a segment is given up only when the manifest says so for good.
fn raise_log_start(versions: &mut VersionSet, log_end: &ReplayEnd) {
    if versions.manifest.log_start_is_exact() {
        return;
    }
    let begins = log_end.segments.first().map_or(0, |s| s.start_seq);
    if begins > versions.log_start && !kingtide_base::planted!("log-start-of-an-old-build-kept") {
        rare!("log-start-raised-by-chain");
        versions.raise_log_start(begins);
    }
    versions.manifest.vouch_for_log_start();
}

/// The bytes of a segment that count: its records and the mark behind them.
fn extent(s: &ReplayedSegment) -> (u64, u64) {
    (s.id, u64::from(s.end) + wal::END_MARK_LEN)
}

fn recovered_event(shape: &Shape, log_end: &ReplayEnd) -> Event {
    let mut info = RecoveryInfo::default();
    let tables = shape.families.values().map(|f| f.view.load().version.files().count());
    info.files = tables.sum::<usize>() + shape.versions.vlogs.len();
    info.families = shape.families.len();
    (info.log_records, info.log_segments, info.closed) = (log_end.records, log_end.segments.len(), log_end.closed);
    Event::Recovered(info)
}
