//! The last stage of recovery: the state that the database begins with.

use super::families::Families;
use super::log::Replayed;
use super::manifest::no_default;
use super::recovery::{Recovered, Recovery};
use crate::catalog::Catalog;
use crate::family::{TableCache, View};
use crate::memtable::FamilyMemtable;
use kingtide_base::events::{Event, RecoveryInfo};
use kingtide_base::names::FileName;
use kingtide_base::stats::Stat;
use kingtide_base::{Result, SeqNo, rare};
use kingtide_versions::{DEFAULT_FAMILY, VersionSet};
use kingtide_vfs::Fs;
use kingtide_wal::ReplayEnd;
use std::collections::HashSet;
use std::path::Path;

impl Families<'_> {
    /// What the open goes on with, after all of the log was replayed.
    pub fn install(mut self, replayed: Replayed) -> Result<Recovered> {
        let Replayed { mut log, records, prepared } = replayed;
        raise_log_start(&mut self.catalog.versions, &log.end);
        let last_seq = self.last_seq.max(log.end.next_seq.saturating_sub(1));
        if log.end.segments.is_empty() {
            log.end.next_seq = last_seq + 1; // a copy without a log: the one that begins now holds nothing older
        }
        self.start_empty_memtables_after(last_seq);
        let stats = self.recovery.stats;
        stats.set(Stat::RecoveredRecords, records);
        stats.events.tell(|| recovered_event(&self.catalog, &log.end));

        let orphans = self.take_orphans();
        let Families { catalog, next_file_id, default_changed, misplaced_at, .. } = self;
        let families = catalog.families.values().cloned().collect();
        let default = catalog.by_name(DEFAULT_FAMILY).cloned().ok_or_else(no_default)?;
        let next_file_id = next_file_id.into_inner();
        Ok(Recovered {
            catalog,
            families,
            default,
            default_changed,
            log,
            last_seq,
            next_file_id,
            prepared,
            orphans,
            misplaced_at,
        })
    }

    /// What neither the manifest nor the log names. A manifest that lost its end is found out by the log, and what it does not name
    /// is no orphan then but what repair needs.
    fn take_orphans(&mut self) -> Vec<String> {
        let mut orphans = std::mem::take(&mut self.orphans);
        let versions = &self.catalog.versions;
        let tables: HashSet<u64> =
            versions.families.values().flat_map(|f| f.version.files().map(|(_, m)| m.id)).collect();
        let named_by_log = |name: &String| match FileName::parse(name) {
            Some(FileName::Table(id)) => tables.contains(&id),
            Some(FileName::ValueLog(id)) => versions.vlogs.get(id).is_some(),
            _ => false,
        };
        orphans.retain(|name| !named_by_log(name));
        orphans
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

/// Removes the orphans that recovery found. Only after the log is durable: its end may say that a transaction was rolled back, and a
/// power cut that took the end and kept the removal of the transaction's values would leave a transaction in doubt without them. What
/// cannot be removed is left to the next open.
pub(crate) fn remove_orphans(orphans: &[String], (fs, dir): (&dyn Fs, &Path), tables: &TableCache) {
    for name in orphans {
        rare!("recovery-removed-orphan");
        if let Some(FileName::ValueLog(id)) = FileName::parse(name) {
            rare!("direct-log-orphan-removed");
            let _ = tables.delete_vlog(id, 0); // a memtable or a transaction in doubt that points into it keeps it
            continue;
        }
        let _ = fs.remove(&dir.join(name));
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
