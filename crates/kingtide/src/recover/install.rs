//! The last stage of recovery: the state that the database begins with.

use super::families::Families;
use super::log::Replayed;
use super::manifest::no_default;
use super::recovery::{Recovered, Recovery};
use crate::catalog::Catalog;
use crate::family::View;
use crate::memtable::FamilyMemtable;
use crate::version::DEFAULT_FAMILY;
use crate::version_set::VersionSet;
use kingtide_base::events::{Event, RecoveryInfo};
use kingtide_base::names::FileName;
use kingtide_base::stats::Stat;
use kingtide_base::{Result, SeqNo, rare};
use kingtide_wal::ReplayEnd;
use std::collections::HashSet;

impl Families<'_> {
    /// What the open goes on with, after all of the log was replayed.
    pub fn install(mut self, replayed: Replayed) -> Result<Recovered> {
        let Replayed { mut log, prepared } = replayed;
        raise_log_start(&mut self.catalog.versions, &log.end);
        if !self.recovery.read_only {
            self.remove_orphans();
        }
        let last_seq = self.last_seq.max(log.end.next_seq.saturating_sub(1));
        if log.end.segments.is_empty() {
            log.end.next_seq = last_seq + 1; // a copy without a log: the one that begins now holds nothing older
        }
        self.start_empty_memtables_after(last_seq);
        let stats = self.recovery.stats;
        stats.set(Stat::RecoveredRecords, log.end.records);
        stats.events.tell(|| recovered_event(&self.catalog, &log.end));

        let Families { catalog, next_file_id, default_changed, .. } = self;
        let families = catalog.families.values().cloned().collect();
        let default = catalog.by_name(DEFAULT_FAMILY).cloned().ok_or_else(no_default)?;
        let next_file_id = next_file_id.into_inner();
        Ok(Recovered { catalog, families, default, default_changed, log, last_seq, next_file_id, prepared })
    }

    /// Removes what neither the manifest nor the log names. Only after the log was read: a manifest that lost its end is found out by the log, and
    /// what it does not name is no orphan then but what repair needs. What cannot be removed is left to the next open.
    fn remove_orphans(&self) {
        let versions = &self.catalog.versions;
        let tables: HashSet<u64> =
            versions.families.values().flat_map(|f| f.version.files().map(|(_, m)| m.id)).collect();
        let named_by_log = |name: &String| match FileName::parse(name) {
            Some(FileName::Table(id)) => tables.contains(&id),
            Some(FileName::ValueLog(id)) => versions.vlogs.get(id).is_some(),
            _ => false,
        };
        for name in self.orphans.iter().filter(|name| !named_by_log(name)) {
            rare!("recovery-removed-orphan");
            if let Some(FileName::ValueLog(id)) = FileName::parse(name) {
                rare!("direct-log-orphan-removed");
                let _ = self.recovery.tables.delete_vlog(id, 0); // a memtable that points into it keeps it until its flush
                continue;
            }
            let _ = self.recovery.fs.remove(&self.recovery.dir.join(name));
        }
    }

    /// A memtable that is still empty begins after everything recovered, so that it pins no log.
    fn start_empty_memtables_after(&self, last_seq: SeqNo) {
        let Recovery { arenas, tables, .. } = *self.recovery;
        for f in self.catalog.families.values().filter(|f| f.view.load().active.is_empty()) {
            let fresh = FamilyMemtable::new(f.order().clone(), arenas, last_seq + 1);
            f.update_view(|v| {
                View::new(v.order.clone(), fresh, v.immutable.clone(), v.version.clone(), tables, Some(v))
            });
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
    if begins > versions.log_start {
        rare!("log-start-raised-by-chain");
        versions.raise_log_start(begins);
    }
    versions.manifest.vouch_for_log_start();
}

fn recovered_event(catalog: &Catalog, log_end: &ReplayEnd) -> Event {
    let mut info = RecoveryInfo::default();
    let tables = catalog.families.values().map(|f| f.view.load().version.files().count());
    info.files = tables.sum::<usize>() + catalog.versions.vlogs.count();
    info.families = catalog.families.len();
    (info.log_records, info.log_segments, info.closed) = (log_end.records, log_end.segments.len(), log_end.closed);
    info.log_bytes = log_end.segments.iter().map(|s| u64::from(s.end)).sum();
    info.torn_bytes = log_end.torn.as_ref().map(|torn| torn.bytes);
    Event::Recovered(info)
}
