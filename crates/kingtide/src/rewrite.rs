//! What a compaction on request rewrites for the space that it gives back: versions that only a snapshot of the past saw,
//! and the live values of value logs of which much is dead. Compactions of the engine's own choice wait until it is more.

use crate::engine::DbInner;
use crate::family::Family;
use kingtide_base::Result;
use kingtide_table::VlogRef;
use kingtide_versions::{CompactionRange, FileMeta, Rewrite, meets_range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A value log is emptied when this part of it, or more, is dead.
const DEAD_ONE_IN: u64 = 20;

impl DbInner {
    /// Finds what to rewrite of a range of a family. Opens the tables in it that are not open.
    ///
    /// # Errors
    /// Those of opening a table.
    pub(crate) fn to_rewrite(&self, family: &Arc<Family>, range: &CompactionRange) -> Result<Rewrite> {
        let oldest = self.snapshots.oldest();
        let (view, stored) = {
            let catalog = self.catalog.lock();
            let stored: BTreeMap<u64, u64> =
                catalog.versions.vlogs.of(family.id()).map(|log| (log.id, log.stored_bytes)).collect();
            (family.view.load_full(), stored)
        };
        let inside = |f: &FileMeta| meets_range(family.order(), f, Some(range));
        let live = view.live_values();
        // A table outside of the range refers to them.
        let outside = view.version.files().filter(|(_, f)| !inside(f));
        let kept: BTreeSet<u64> = outside.flat_map(|(_, f)| f.vlog_refs.iter().map(|r| r.file_id)).collect();
        let mut rewrite = Rewrite::default();
        let moves = family.options().vlog_dead_ratio < 1.0; // or else no value is moved for those that are dead
        for VlogRef { file_id: id, bytes: live, .. } in live.iter().filter(|_| moves) {
            let stored = stored.get(id).copied().unwrap_or(*live);
            let dead = stored.saturating_sub(*live);
            if !kept.contains(id) && dead > 0 && dead.saturating_mul(DEAD_ONE_IN) >= stored {
                rewrite.vlogs.insert(*id);
            }
        }
        for slot in view.runs.iter().flat_map(|r| r.files.iter()).filter(|s| inside(&s.meta)) {
            // A snapshot that sees one of them would make rewriting useless.
            if slot.meta.max_seq <= oldest && slot.with(|t| Ok(t.info().older_versions > 0))? {
                rewrite.files.insert(slot.meta.id);
                let refs = slot.meta.vlog_refs.iter().filter(|r| moves && !kept.contains(&r.file_id));
                rewrite.vlogs.extend(refs.map(|r| r.file_id));
            }
        }
        for (_, file) in view.version.files() {
            if file.vlog_refs.iter().any(|r| rewrite.vlogs.contains(&r.file_id)) {
                rewrite.files.insert(file.id);
            }
        }
        Ok(rewrite)
    }
}
