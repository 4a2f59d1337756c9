//! What a flush hides: the values in value logs that older tables hold for its keys.

use crate::family::View;
use crate::family::view::ResolvedRun;
use kingtide_base::key::{MAX_SEQ, split_expiry};
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Kind, KeyOrder, Result, Tag};
use kingtide_table::{IterOptions, TableIter, ValuePointer};
use std::cell::RefCell;

/// Tables of so many bytes are probably in memory, in the system's cache if not in the block cache.
const IN_MEMORY: u64 = 256 << 20;
/// Of the keys of a flush over larger tables, one in so many is looked up.
const SAMPLE: u64 = 16;
/// Keys come in order, so blocks follow one another and are read once.
const IN_ORDER: IterOptions = IterOptions { fill_cache: false, readahead: false };

/// Looks up what the keys of a flush hide.
pub(crate) struct Hidden<'a> {
    view: &'a View,
    /// One key in so many is looked up, and stands for all of them.
    every: u64,
    place: RefCell<Place>,
}

/// How far the look-ups have come.
struct Place {
    keys: u64,
    /// One for each run of the view.
    runs: Vec<RunPlace>,
}

/// In which file of a run, and where in it, the last key was looked up.
#[derive(Default)]
struct RunPlace {
    file: usize,
    table: Option<TableIter>,
}

impl<'a> Hidden<'a> {
    /// For a flush that adds to the tables of `view`. `None` where it can hide no value of a value log, or where no cap asks for it.
    pub fn of(view: &'a View, options: &FamilyOptions, block_cache_size: u64) -> Option<Hidden<'a>> {
        let any = view.live_values().iter().next().is_some();
        if !any || options.vlog_dead_ratio >= 1.0 {
            return None;
        }
        let every = if view.klog_bytes() <= block_cache_size.max(IN_MEMORY) { 1 } else { SAMPLE };
        let runs = view.runs.iter().map(|_| RunPlace::default()).collect();
        Some(Hidden { view, every, place: RefCell::new(Place { keys: 0, runs }) })
    }

    /// Stored bytes of the value in a value log that the tables hold for `key`, 0 if there is none. Keys are to ascend: then each block
    /// is read once. In another order, each costs a point read without the value.
    pub fn bytes(&self, key: &[u8]) -> u64 {
        let mut place = self.place.borrow_mut();
        place.keys += 1;
        if !place.keys.is_multiple_of(self.every) {
            return 0;
        }
        // A table that cannot be read must not keep a flush from ending: reads and compactions tell of it.
        newest_value(self.view, &mut place.runs, key).ok().flatten().unwrap_or(0).saturating_mul(self.every)
    }
}

/// Stored bytes of the newest value of `key` in tables, if it is in a value log. Expired or covered by a range tombstone, it counts:
/// a table refers to it.
fn newest_value(view: &View, places: &mut [RunPlace], key: &[u8]) -> Result<Option<u64>> {
    let (head, hash) = (view.order.head(key), view.order.hash(key));
    for (run, place) in view.runs.iter().zip(places) {
        for file in run.candidates(key, head) {
            if let Some(found) = place.find(run, file, key, hash, &view.order)? {
                return Ok(stored_len(found));
            }
        }
    }
    Ok(None)
}

fn stored_len(found: &TableIter) -> Option<u64> {
    if found.tag().kind() != Some(Kind::PutPointer) {
        return None;
    }
    let (_, pointer) = split_expiry(found.tag(), found.value())?;
    ValuePointer::decode(pointer).map(|p| p.stored_len)
}

impl RunPlace {
    /// Goes to the newest entry of `key` in a file of the run, if there is one.
    fn find(
        &mut self,
        run: &ResolvedRun,
        file: usize,
        key: &[u8],
        hash: Option<u64>,
        order: &KeyOrder,
    ) -> Result<Option<&TableIter>> {
        if self.table.is_none() || self.file != file {
            let table = run.files[file].table()?;
            match &mut self.table {
                Some(cursor) => cursor.reset(table),
                None => self.table = Some(table.iter(IN_ORDER)),
            }
            self.file = file;
        }
        let Some(cursor) = &mut self.table else { return Ok(None) };
        if hash.is_some_and(|hash| !cursor.table().may_contain_in_memory(hash)) {
            return Ok(None);
        }
        cursor.seek(key, Tag::seek(MAX_SEQ))?;
        Ok((cursor.valid() && order.compare(cursor.key(), key).is_eq()).then_some(&*cursor))
    }
}
