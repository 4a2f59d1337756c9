//! What a flush hides: the values in value logs that older tables hold for its keys.
//!
//! A flush of few keys looks up all of them. Of more, it looks up a sample, so that the cost is bounded: see [`Sample`].

use crate::family::View;
use crate::family::view::ResolvedRun;
use crate::memtable::FamilyMemtable;
use kingtide_base::key::{MAX_SEQ, split_expiry};
use kingtide_base::options::FamilyOptions;
use kingtide_base::rng::Rng;
use kingtide_base::{KeyOrder, Kind, Result, Tag};
use kingtide_table::{IterOptions, TableIter, ValuePointer};
use std::cell::RefCell;
use std::sync::Arc;

/// About so many keys are looked up because each entry has the same chance, and as many because each byte has: see [`Sample`].
const LOOK_UPS: u64 = 2048;
/// Keys come in order, so blocks follow one another and are read once.
const IN_ORDER: IterOptions = IterOptions { fill_cache: false, readahead: false };

/// Looks up what the keys of a flush hide.
pub(crate) struct Hidden<'a> {
    view: &'a View,
    place: RefCell<Place>,
}

/// How far the look-ups have come.
struct Place {
    sample: Sample,
    /// Live bytes of values in value logs that nothing was found to hide yet: an estimate must not pass what there is.
    left: u64,
    /// One for each run of the view.
    runs: Vec<RunPlace>,
}

/// In which file of a run, and where in it, the last key was looked up.
#[derive(Default)]
struct RunPlace {
    file: usize,
    table: Option<TableIter>,
}

/// Which keys of a flush are looked up, and for how many others each stands.
///
/// A key's chance is the share of its entry in the number of entries plus its share in their bytes, times [`LOOK_UPS`]. What is found
/// is divided by the chance, so the sum has no bias. The first share keeps deletes of large values from being overlooked,
/// the second large values that replace others of their kind. The chances are laid end to end, and one point is drawn in each
/// unit of length: so any pattern in the order of the keys, as of two kinds that alternate, has its share.
struct Sample {
    rng: Rng,
    per_entry: f64,
    per_byte: f64,
    /// Where the chances so far end.
    reached: f64,
    /// The unit that the next point is in, and the point.
    unit: f64,
    point: f64,
}

impl Sample {
    /// For so many entries, with so many bytes of keys and values.
    fn of(entries: u64, bytes: u64) -> Sample {
        let share = |of: u64| LOOK_UPS as f64 / of.max(1) as f64;
        let mut rng = Rng::new(entries ^ bytes);
        let point = rng.unit();
        Sample { rng, per_entry: share(entries), per_byte: share(bytes), reached: 0.0, unit: 0.0, point }
    }

    /// For how many keys the next one stands, whose entry has so many bytes. 0: it is not looked up.
    fn stands_for(&mut self, bytes: u64) -> f64 {
        let chance = self.per_entry + self.per_byte * bytes as f64;
        if chance >= 1.0 {
            return 1.0;
        }
        self.reached += chance;
        let mut points = 0.0;
        while self.point < self.reached {
            points += 1.0;
            self.unit += 1.0;
            self.point = self.unit + self.rng.unit();
        }
        points / chance
    }
}

impl<'a> Hidden<'a> {
    /// For a flush of these memtables that adds to the tables of `view`. `None` where it can hide no value of a value log, or where no
    /// cap asks for it.
    pub fn of(view: &'a View, memtables: &[Arc<FamilyMemtable>], options: &FamilyOptions) -> Option<Hidden<'a>> {
        let left = view.live_values().iter().map(|r| r.bytes).fold(0, u64::saturating_add);
        if left == 0 || options.vlog_dead_ratio >= 1.0 {
            return None;
        }
        let entries = memtables.iter().map(|m| m.points().len()).sum();
        let bytes = memtables.iter().map(|m| m.bytes()).sum();
        let runs = view.runs.iter().map(|_| RunPlace::default()).collect();
        let place = RefCell::new(Place { sample: Sample::of(entries, bytes), left, runs });
        Some(Hidden { view, place })
    }

    /// Stored bytes of the value in a value log that the tables hold for `key`, 0 if there is none; `value` is how many bytes of value
    /// the flush has for it. Keys are to ascend: then each block is read once. In another order, each costs a point read without the
    /// value.
    pub fn bytes(&self, key: &[u8], value: u64) -> u64 {
        let mut place = self.place.borrow_mut();
        let times = place.sample.stands_for(key.len() as u64 + value);
        if times == 0.0 {
            return 0;
        }
        // A table that cannot be read must not keep a flush from ending: reads and compactions tell of it.
        let found = newest_value(self.view, &mut place.runs, key).ok().flatten().unwrap_or(0);
        let all = ((found as f64 * times).round() as u64).min(place.left);
        place.left -= all;
        all
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate for entries of (bytes that it has, bytes that it hides), beside the truth, and how many were looked up.
    fn estimate(entries: &[(u64, u64)]) -> (f64, f64, usize) {
        let mut sample = Sample::of(entries.len() as u64, entries.iter().map(|e| e.0).sum());
        let (mut sum, mut looked) = (0.0, 0);
        for (bytes, hides) in entries {
            let times = sample.stands_for(*bytes);
            sum += times * *hides as f64;
            looked += usize::from(times > 0.0);
        }
        (sum, entries.iter().map(|e| e.1 as f64).sum(), looked)
    }

    #[test]
    fn few_keys_are_all_looked_up() {
        let entries: Vec<(u64, u64)> = (0..LOOK_UPS).map(|i| (i % 7, i * i)).collect();
        let (sum, truth, looked) = estimate(&entries);
        assert_eq!((sum, looked), (truth, entries.len()));
    }

    /// Among many keys, a bounded number is looked up, and the sum is right within a few hundredths, whatever the order of the keys.
    #[test]
    fn a_sample_stands_for_all_keys() {
        type Entry = fn(u64) -> (u64, u64);
        let kinds: [(&str, Entry); 8] = [
            ("all alike", |_| (1000, 1000)),
            ("half are new", |i| (1000, i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 << 10)),
            ("every other one is new, in step with the sample", |i| (1000, i % 2 * 1000)),
            ("every other one is large", |i| if i % 2 == 0 { (4000, 4000) } else { (20, 0) }),
            ("one of sixteen is large", |i| if i % 16 == 0 { (4000, 4000) } else { (20, 0) }),
            ("the first third", |i| (1000, if i < 20_000 { 1000 } else { 0 })),
            ("deletes", |_| (0, 4000)),
            ("few are huge", |i| if i % 1000 == 0 { (1 << 30, 1 << 30) } else { (600, 600) }),
        ];
        for (what, entry) in kinds {
            let entries: Vec<(u64, u64)> = (0..32 * LOOK_UPS).map(entry).collect();
            let (sum, truth, looked) = estimate(&entries);
            let error = (sum - truth).abs() / truth;
            assert!(error < 0.05, "{what}: {sum} for {truth}");
            assert!(looked as u64 <= 2 * LOOK_UPS + 1, "{what}: {looked} look-ups");
        }
    }
}
