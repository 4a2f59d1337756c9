//! How many bytes the range tombstones of tables hide, estimated.
//!
//! The planner reads no file, and the metadata of a table tells how many range tombstones it has, not how wide they are. So each
//! table that has some is measured once, when it is first seen, before the planner is asked.

use crate::engine::DbInner;
use crate::estimate::sources::stored_bytes;
use crate::family::Family;
use crate::family::view::{FileSlot, View};
use crate::rangedel::RangeTombstones;
use kingtide_base::Result;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Ranges of a table that are measured; of more, as many spread evenly stand for all.
const MEASURED: usize = 4096;

impl DbInner {
    /// Measures the tables with range tombstones that came since the last call, and forgets those that went. Reads indexes of
    /// tables that are not open, so it must be called without locks. Costs O(log n) for each range tombstone and run.
    pub(super) fn note_covered(&self) {
        let families: Vec<_> = self.catalog.lock().families.values().cloned().collect();
        families.iter().for_each(|family| note(family));
    }
}

fn note(family: &Family) {
    let view = family.view.load();
    let slots = || view.runs.iter().enumerate().flat_map(|(n, run)| run.files.iter().map(move |slot| (n, slot)));
    let known = family.covered.lock().clone();
    if !view.tables_have_ranges() {
        if !known.is_empty() {
            family.covered.lock().clear();
        }
        return;
    }
    let mut now = BTreeMap::new();
    for (n, slot) in slots().filter(|(_, slot)| slot.meta.range_tombstones > 0) {
        // A table that cannot be read is reported by what reads it for its entries.
        let bytes = known.get(&slot.meta.id).copied().unwrap_or_else(|| covered(&view, n, slot).unwrap_or(0));
        now.insert(slot.meta.id, bytes);
    }
    *family.covered.lock() = now;
}

/// Bytes of runs older than the `n`th that range tombstones of one of its tables hide.
fn covered(view: &View, n: usize, slot: &FileSlot) -> Result<u64> {
    slot.with(|table| {
        // Ranges that overlap, or were deleted again and again, hide what they hide once.
        let all = table.range_tombstones().iter().map(|t| (t.start.as_slice(), t.end.as_slice(), t.seq));
        let all = RangeTombstones::build(&view.order, all);
        let spans: Vec<_> = all.spans_within(Bound::Unbounded, Bound::Unbounded).collect();
        let step = spans.len().div_ceil(MEASURED).max(1);
        let mut bytes = 0;
        for (start, end, _) in spans.iter().step_by(step) {
            for run in &view.runs[n + 1..] {
                bytes += stored_bytes(run, &view.order, start, end)?;
            }
        }
        Ok(bytes * step as u64)
    })
}
