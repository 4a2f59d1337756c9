//! A family as one reader sees it: memtables, version, and the version's runs with their tables resolved.
//!
//! A view is immutable and keeps alive all that it names. Readers borrow it through an `arc_swap` guard, so a get takes
//! no lock and touches no shared reference count.

use crate::family::tables::{TableCache, TableHandle};
use crate::family::totals::Totals;
use crate::memtable::FamilyMemtable;
use crate::rangedel::{RangeTombstones, list_memory};
use kingtide_base::budget::Charge;
use kingtide_base::{KeyOrder, Result, SeqNo};
use kingtide_table::{RangeTombstone, Table};
use kingtide_versions::{FileMeta, LiveValues, Run, Version};
use std::sync::{Arc, OnceLock};

/// One file of a run, with its table once it was opened.
pub struct FileSlot {
    /// What the manifest knows about it.
    pub meta: Arc<FileMeta>,
    /// Opens the table and keeps its file from being deleted.
    pub handle: Arc<TableHandle>,
    /// The open table, for as long as this slot lives. Only filled while all tables fit into the open-file budget, and into memory, at
    /// least in partitions; otherwise every access asks the handle.
    pinned: OnceLock<Arc<Table>>,
    /// Whether the next file of the run begins with the key that this one ends with. That key is then the exclusive end
    /// of a range tombstone here, and its point entries may be in either file.
    pub shares_bound: bool,
}

impl FileSlot {
    /// Runs `f` on the table, opening it if need be.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&Arc<Table>) -> Result<R>) -> Result<R> {
        match self.pinned.get() {
            Some(table) => f(table),
            None => f(&self.open()?),
        }
    }

    /// The table, opened if need be.
    pub fn table(&self) -> Result<Arc<Table>> {
        self.with(|t| Ok(t.clone()))
    }

    /// Whether a range tombstone with the sequence number `covering` hides everything in the file; 0 hides nothing.
    #[inline]
    pub fn is_hidden_by(&self, covering: SeqNo) -> bool {
        covering > 0 && self.meta.max_seq < covering
    }

    /// The table if it is open and pinned: never does I/O.
    #[inline]
    pub fn resident(&self) -> Option<&Arc<Table>> {
        self.pinned.get()
    }

    #[cold]
    fn open(&self) -> Result<Arc<Table>> {
        let table = self.handle.table()?;
        if self.handle.may_pin(&table) {
            let _ = self.pinned.set(table.clone());
        }
        Ok(table)
    }
}

/// A run with its files resolved.
pub struct ResolvedRun {
    order: KeyOrder,
    /// Head of each file's largest key: one cache line holds eight, and a search looks at nothing else unless heads tie.
    max_heads: Box<[u64]>,
    /// The files, by ascending key.
    pub files: Box<[FileSlot]>,
    /// Newest sequence number in the run.
    pub max_seq: SeqNo,
    /// Built when estimates are first asked for.
    running_totals: OnceLock<Box<[Totals]>>,
}

/// The files of a run, each with its table if that may be pinned and is open. `shares`: whether the file at an index shares its
/// largest key with the next one.
fn slots<'a>(
    files: impl Iterator<Item = &'a Arc<FileMeta>>,
    order: &KeyOrder,
    tables: &TableCache,
    shares: impl Fn(usize) -> bool,
) -> Box<[FileSlot]> {
    let slot = |(i, meta): (usize, &Arc<FileMeta>)| {
        let handle = tables.handle(meta, order);
        let pinned = OnceLock::new();
        if let Some(table) = handle.open_table()
            && handle.may_pin(&table)
        {
            let _ = pinned.set(table);
        }
        FileSlot { meta: meta.clone(), handle, pinned, shares_bound: shares(i) }
    };
    files.enumerate().map(slot).collect()
}

impl ResolvedRun {
    fn new(order: &KeyOrder, run: &Run, tables: &TableCache) -> ResolvedRun {
        let shares = |i: usize| {
            run.files.get(i + 1).is_some_and(|next| order.compare(&run.files[i].max_key, &next.min_key).is_eq())
        };
        ResolvedRun {
            files: slots(run.files.iter(), order, tables, shares),
            max_heads: run.files.iter().map(|f| order.head(&f.max_key)).collect(),
            max_seq: run.files.iter().map(|f| f.max_seq).max().unwrap_or(0),
            order: order.clone(),
            running_totals: OnceLock::new(),
        }
    }

    /// Whether all tables that it has pinned are in memory as they are to be now.
    fn suits(&self, tables: &TableCache) -> bool {
        self.files.iter().filter_map(FileSlot::resident).all(|t| tables.suits(t))
    }

    /// The same files with the tables that may be pinned now. Calls no key order, which is the caller's code and may panic: not in
    /// a call that seals a memtable.
    fn pinned_anew(&self, tables: &TableCache) -> ResolvedRun {
        let shares = |i: usize| self.files[i].shares_bound;
        ResolvedRun {
            files: slots(self.files.iter().map(|f| &f.meta), &self.order, tables, shares),
            max_heads: self.max_heads.clone(),
            max_seq: self.max_seq,
            order: self.order.clone(),
            running_totals: self.running_totals.clone(),
        }
    }

    /// What the files of a range hold together. O(files) once, then O(1).
    pub fn totals(&self, files: std::ops::Range<usize>) -> Totals {
        let running = self.running_totals.get_or_init(|| Totals::running(self.files.iter().map(|f| &*f.meta)));
        match (running.get(files.start), running.get(files.end)) {
            (Some(before), Some(up_to)) if files.start <= files.end => *up_to - *before,
            _ => Totals::default(),
        }
    }

    fn is_of(&self, run: &Run) -> bool {
        self.files.len() == run.files.len() && self.files.iter().zip(&run.files).all(|(a, b)| Arc::ptr_eq(&a.meta, b))
    }

    /// Index of the first file whose largest key is not below `key`, whose head is `head`; `files.len()` if there is
    /// none. O(log files).
    #[inline]
    pub fn find(&self, key: &[u8], head: u64) -> usize {
        let at = lower_bound(&self.max_heads, head);
        if at < self.max_heads.len() && self.max_heads[at] == head { self.find_among_ties(key, head, at) } else { at }
    }

    fn find_among_ties(&self, key: &[u8], head: u64, from: usize) -> usize {
        let ties = self.max_heads[from..].partition_point(|h| *h == head);
        from + self.files[from..from + ties].partition_point(|f| self.order.compare(&f.meta.max_key, key).is_lt())
    }

    /// The files that may hold point entries of `key`: none, one, or two when the key is the bound they share.
    #[inline]
    pub fn candidates(&self, key: &[u8], head: u64) -> std::ops::Range<usize> {
        let at = self.find(key, head);
        let Some(slot) = self.files.get(at) else { return at..at };
        if slot.shares_bound && self.order.compare(&slot.meta.max_key, key).is_eq() {
            return at..at + 2;
        }
        at..at + 1
    }
}

/// First index whose head is not below `head`. The loop's length depends only on the slice's, so it compiles to
/// conditional moves: no mispredicted branches.
#[inline]
pub(crate) fn lower_bound(heads: &[u64], head: u64) -> usize {
    let mut base = 0;
    let mut size = heads.len();
    while size > 1 {
        let half = size / 2;
        base = if heads[base + half - 1] < head { base + half } else { base };
        size -= half;
    }
    base + usize::from(size == 1 && heads[base] < head)
}

/// A family as a reader sees it.
pub struct View {
    /// The order of its keys.
    pub order: KeyOrder,
    /// Takes new operations.
    pub active: Arc<FamilyMemtable>,
    /// Waiting for flush, newest first.
    pub immutable: Vec<Arc<FamilyMemtable>>,
    /// The tables.
    pub version: Arc<Version>,
    /// The version's runs, newest first.
    pub runs: Vec<Arc<ResolvedRun>>,
    /// Whether a table or an immutable memtable holds range tombstones: fixed for the life of a view.
    fixed_ranges: bool,
    table_ranges: OnceLock<Arc<RangeTombstones>>,
    tables_have_ranges: bool,
    /// Of the version, which a view of the same one takes over.
    klog_bytes: u64,
    live_values: OnceLock<Arc<LiveValues>>,
}

impl View {
    /// A view. Runs that `previous` resolved already are taken over from it. O(files) at worst; opens nothing.
    pub fn new(
        order: KeyOrder,
        active: Arc<FamilyMemtable>,
        immutable: Vec<Arc<FamilyMemtable>>,
        version: Arc<Version>,
        tables: &TableCache,
        previous: Option<&View>,
    ) -> View {
        // A version that stays was checked, and its order is the caller's code, which may panic: not in a call that seals a memtable.
        let stays = previous.is_some_and(|p| Arc::ptr_eq(&p.version, &version));
        debug_assert!(stays || version.check(&order) == Ok(()), "{:?}", version.check(&order));
        let memtables = || std::iter::once(&active).chain(&immutable).map(|m| m.first_seq());
        debug_assert!(memtables().is_sorted_by(|a, b| a >= b), "the memtables of a view are the newest first");
        let known = previous.map_or(&[][..], |p| &p.runs);
        let runs = (version.runs())
            .map(|(_, run)| match known.iter().find(|k| k.is_of(run)) {
                Some(k) if tables.may_pin() && k.suits(tables) => k.clone(),
                // A run taken over would keep its tables pinned, as they are in memory.
                Some(k) => Arc::new(k.pinned_anew(tables)),
                None => Arc::new(ResolvedRun::new(&order, run, tables)),
            })
            .collect();
        let tables_have_ranges = version.files().any(|(_, f)| f.range_tombstones > 0);
        let fixed_ranges = tables_have_ranges || immutable.iter().any(|m| m.has_ranges());
        let same = previous.filter(|p| Arc::ptr_eq(&p.version, &version));
        let table_ranges = same.map_or_else(OnceLock::new, |p| p.table_ranges.clone());
        let live_values = same.map_or_else(OnceLock::new, |p| p.live_values.clone());
        let klog_bytes = same.map_or_else(|| version.files().map(|(_, f)| f.size).sum(), |p| p.klog_bytes);
        View {
            order,
            active,
            immutable,
            version,
            runs,
            fixed_ranges,
            table_ranges,
            tables_have_ranges,
            klog_bytes,
            live_values,
        }
    }

    /// Bytes of all tables, without value logs. O(1).
    pub fn klog_bytes(&self) -> u64 {
        self.klog_bytes
    }

    /// What the tables refer to in value logs. O(references) once for each version, then O(1).
    pub fn live_values(&self) -> &LiveValues {
        self.live_values.get_or_init(|| Arc::new(LiveValues::of(self.version.files().map(|(_, f)| &**f))))
    }

    /// Bytes of values written once that immutable memtables point to.
    pub fn unflushed_value_bytes(&self) -> u64 {
        self.immutable.iter().map(|m| m.direct().bytes()).sum()
    }

    /// The number of value logs that are open until memtables of the family are flushed.
    pub fn open_value_logs(&self) -> usize {
        self.memtables().map(|m| m.direct().open_files()).sum()
    }

    /// Memtables, newest first.
    pub fn memtables(&self) -> impl Iterator<Item = &Arc<FamilyMemtable>> {
        std::iter::once(&self.active).chain(&self.immutable)
    }

    /// Whether any range tombstone may hide something.
    #[inline]
    pub fn has_range_tombstones(&self) -> bool {
        self.fixed_ranges || self.active.has_ranges()
    }

    /// Whether a table holds range tombstones.
    pub fn tables_have_ranges(&self) -> bool {
        self.tables_have_ranges
    }

    /// Whether [`View::max_covering`] reads no file.
    #[cfg(feature = "tokio")]
    pub fn has_ranges_in_memory(&self) -> bool {
        !self.tables_have_ranges || self.table_ranges.get().is_some()
    }

    /// The newest sequence number up to `snapshot` of a range tombstone that covers `key`; 0 when none does. An entry of
    /// the key is hidden if its sequence number is lower, wherever either of them is stored.
    #[inline]
    pub fn max_covering(&self, key: &[u8], snapshot: SeqNo) -> Result<SeqNo> {
        if self.has_range_tombstones() { self.max_covering_slow(key, snapshot) } else { Ok(0) }
    }

    #[cold]
    fn max_covering_slow(&self, key: &[u8], snapshot: SeqNo) -> Result<SeqNo> {
        let in_memory = (self.memtables()).filter_map(|m| m.ranges()).map(|r| r.max_covering(key, snapshot)).max();
        let in_tables = match self.table_ranges()? {
            Some(set) => set.max_covering(key, snapshot),
            None => 0,
        };
        Ok(in_memory.unwrap_or(0).max(in_tables))
    }

    /// All range tombstones of the view: one set for the tables, and a few for each memtable that has any.
    pub fn range_sets(&self) -> Result<Vec<Arc<RangeTombstones>>> {
        let mut sets: Vec<_> = Vec::new();
        for in_memory in self.memtables().filter_map(|m| m.ranges()) {
            sets.extend(in_memory.iter().cloned());
        }
        sets.extend(self.table_ranges()?.cloned());
        Ok(sets)
    }

    /// The range tombstones of all tables in one set, built on first use: reads the tables that have any. The set is charged for as long as this
    /// view or a reader has it.
    pub fn table_ranges(&self) -> Result<Option<&Arc<RangeTombstones>>> {
        if !self.tables_have_ranges {
            return Ok(None);
        }
        if let Some(set) = self.table_ranges.get() {
            return Ok(Some(set));
        }
        let slots = || self.runs.iter().flat_map(|r| r.files.iter()).filter(|s| s.meta.range_tombstones > 0);
        let Some(memory) = slots().next().map(|slot| slot.handle.range_memory()) else { return Ok(None) };
        // A copy, because holding all of these tables open at once could exceed `max_open_files`.
        let mut all: Vec<RangeTombstone> = Vec::new();
        let mut held = Charge::new(memory, 0);
        for slot in slots() {
            slot.with(|t| {
                all.extend(t.range_tombstones().iter().cloned());
                Ok(())
            })?;
        }
        held.resize(list_memory(&all));
        let items = all.iter().map(|t| (t.start.as_slice(), t.end.as_slice(), t.seq));
        let set = Arc::new(RangeTombstones::build(&self.order, items).charged(memory));
        Ok(Some(self.table_ranges.get_or_init(|| set)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_bound_agrees_with_partition_point() {
        for n in 0..40u64 {
            let heads: Vec<u64> = (0..n).map(|i| i / 3 * 10).collect();
            for h in 0..150 {
                assert_eq!(lower_bound(&heads, h), heads.partition_point(|x| *x < h), "{heads:?} {h}");
            }
        }
    }
}
