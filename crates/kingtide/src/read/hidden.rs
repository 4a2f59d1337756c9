//! What a flush hides: the values in value logs that older tables hold for its keys.

use crate::family::View;
use crate::read::get::with_table_scratch;
use kingtide_base::key::{MAX_SEQ, split_expiry};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Kind, Tag};
use kingtide_table::{TableValue, ValuePointer};
use std::cell::Cell;

/// Tables of so many bytes are probably in memory, in the system's cache if not in the block cache.
const IN_MEMORY: u64 = 256 << 20;
/// Of the keys of a flush over larger tables, one in so many is looked up.
const SAMPLE: u64 = 16;

/// Looks up what the keys of a flush hide.
pub(crate) struct Hidden<'a> {
    view: &'a View,
    /// One key in so many is looked up, and stands for all of them.
    every: u64,
    keys: Cell<u64>,
}

impl<'a> Hidden<'a> {
    /// For a flush that adds to the tables of `view`. `None` where it can hide no value of a value log, or where no cap asks for it.
    pub fn of(view: &'a View, options: &FamilyOptions, block_cache_size: u64) -> Option<Hidden<'a>> {
        let any = view.live_values().iter().next().is_some();
        let every = if view.klog_bytes() <= block_cache_size.max(IN_MEMORY) { 1 } else { SAMPLE };
        (any && options.vlog_dead_ratio < 1.0).then(|| Hidden { view, every, keys: Cell::new(0) })
    }

    /// Stored bytes of the value in a value log that the tables hold for `key`, 0 if there is none. Costs a point read without the
    /// value; keys that ascend share their blocks.
    pub fn bytes(&self, key: &[u8]) -> u64 {
        self.keys.set(self.keys.get() + 1);
        if !self.keys.get().is_multiple_of(self.every) {
            return 0;
        }
        // A table that cannot be read must not keep a flush from ending: reads and compactions tell of it.
        newest_value(self.view, key).unwrap_or(0).saturating_mul(self.every)
    }
}

/// Stored bytes of the newest value of `key` in tables, if it is in a value log. Expired or covered by a range tombstone, it counts:
/// a table refers to it.
fn newest_value(view: &View, key: &[u8]) -> Option<u64> {
    let (head, hash) = (view.order.head(key), view.order.hash(key));
    with_table_scratch(|scratch| {
        for run in &view.runs {
            for slot in &run.files[run.candidates(key, head)] {
                let Some((tag, value)) = slot.with(|t| t.get(key, hash, Tag::seek(MAX_SEQ), scratch)).ok()? else {
                    continue;
                };
                if tag.kind() != Some(Kind::PutPointer) {
                    return None;
                }
                let stored = match &value {
                    TableValue::Scratch(at) => &scratch.bytes()[at.clone()],
                    TableValue::Cached(block, at) => &block[at.clone()],
                };
                return ValuePointer::decode(split_expiry(tag, stored)?.1).map(|p| p.stored_len);
            }
        }
        None
    })
}
