//! Estimates of what a range of keys holds, for planners of queries: microseconds, and mostly no block read.
//!
//! A family's entries are in memtables and in runs of tables. For each of them it is estimated on its own how many of its
//! entries are in the range ([`sources`]). Which of them are newer versions of each other nobody knows without reading; see
//! [`RangeStats::rows`] for what is assumed. [`ColumnFamily::count_up_to`] does read, and counts exactly, as long as there is
//! little to count.

mod sample;
mod sources;

pub use sample::Cardinality;

use crate::db::owned_bounds;
use crate::family::{ColumnFamily, View};
use crate::options::ReadOptions;
use crate::read::iter::prefix_range;
use kingtide_base::{KeyOrder, Result};
use std::ops::{Bound, RangeBounds};

/// What a range of a family holds, as [`ColumnFamily::range_stats`] estimates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeStats {
    /// Keys that a read would show. Assumed is that a tombstone hides one entry of an older table or memtable, that a range
    /// tombstone hides all older ones, and that no two tables hold versions of the same key: keys that were overwritten and
    /// not merged yet count more than once. Expired entries count. 0 only if the range holds no entry at all.
    pub rows: u64,
    /// Point entries: tombstones and hidden versions included. 0 only if there is none.
    pub entries: u64,
    /// Those of them that are in memtables.
    pub memtable_entries: u64,
    /// Point tombstones in tables.
    pub tombstones: u64,
    /// Range tombstones in the tables that meet the range, wherever in these they are.
    pub range_tombstones: u64,
    /// Bytes of keys and inline values in tables, before compression.
    pub raw_bytes: u64,
    /// Bytes in key-log files: blocks, and the range's share of index and filter.
    pub disk_bytes: u64,
    /// Bytes in value-log files, values that nothing refers to not counted.
    pub value_log_bytes: u64,
    /// Bytes of keys and values in memtables.
    pub memtable_bytes: u64,
    /// Tables that meet the range.
    pub tables: u64,
    /// Runs that meet the range: what a scan has to merge, memtables aside.
    pub runs: u64,
}

/// How many keys a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeCount {
    /// Keys.
    pub rows: u64,
    /// Whether they were counted. Otherwise `rows` is an estimate, and not 0.
    pub exact: bool,
}

/// A range of keys.
#[derive(Clone, Copy)]
struct Span<'k> {
    lower: Bound<&'k [u8]>,
    upper: Bound<&'k [u8]>,
}

fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl<'k> Span<'k> {
    fn of(lower: &'k Bound<Vec<u8>>, upper: &'k Bound<Vec<u8>>) -> Span<'k> {
        Span { lower: lower.as_ref().map(Vec::as_slice), upper: upper.as_ref().map(Vec::as_slice) }
    }

    /// Whether no key can be in it.
    fn is_empty(&self, order: &KeyOrder) -> bool {
        let (Some(from), Some(to)) = (key_of(self.lower), key_of(self.upper)) else { return false };
        match order.compare(from, to) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => !matches!((self.lower, self.upper), (Bound::Included(_), Bound::Included(_))),
            std::cmp::Ordering::Greater => true,
        }
    }

    /// The part of it in `[start, end)`.
    fn within<'a>(&self, order: &KeyOrder, start: &'a [u8], end: &'a [u8]) -> Span<'a>
    where
        'k: 'a,
    {
        let lower = match key_of(self.lower) {
            Some(key) if order.compare(key, start).is_ge() => self.lower,
            _ => Bound::Included(start),
        };
        let upper = match key_of(self.upper) {
            Some(key) if order.compare(key, end).is_lt() => self.upper,
            _ => Bound::Excluded(end),
        };
        Span { lower, upper }
    }
}

impl ColumnFamily {
    /// Estimates what a range of keys holds, from metadata and resident indexes. No block is read; a table that is not open
    /// is opened, at most two of each run. O(log entries) for each memtable and run: a few microseconds.
    ///
    /// Tables that lie in the range as a whole count exactly. In the two of a run at the range's ends, whole blocks are
    /// counted, as if all of a table held equally many entries, and parts of a block are interpolated by the numbers that
    /// the keys are: so each run adds an error of less than the entries of two blocks where entries are alike. A memtable's
    /// entries are counted up to several hundred, and above that off by a tenth typically. What lies behind the number of
    /// [`RangeStats::rows`] is said there. Commits that are being made may count or not, and a transaction's own writes do
    /// not.
    ///
    /// # Errors
    /// `Closed`; `Corruption` and `Io` from opening a table.
    pub fn range_stats<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<RangeStats> {
        let (lower, upper) = owned_bounds(&range);
        let view = self.open_view()?;
        sources::estimate(&view, Span::of(&lower, &upper))
    }

    /// Counts the keys of a range, as of now, if that takes no more than looking at `most` of them; estimates them otherwise.
    /// What was deleted in the range and not merged yet is passed too, so after four times as many deleted keys it is an
    /// estimate as well. Nothing is counted if there seem to be more than four times `most` anyway. O(`most`) steps of an
    /// iterator.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`], and from reading blocks.
    pub fn count_up_to<'k>(&self, range: impl RangeBounds<&'k [u8]>, most: u64) -> Result<RangeCount> {
        let (lower, upper) = owned_bounds(&range);
        let estimate = sources::estimate(&*self.open_view()?, Span::of(&lower, &upper))?;
        if estimate.entries == 0 {
            return Ok(RangeCount { rows: 0, exact: true });
        }
        let limit = most.saturating_mul(4).saturating_add(16);
        if estimate.rows > limit {
            return Ok(RangeCount { rows: estimate.rows, exact: false });
        }
        let mut it = self.iter_with(ReadOptions { lower, upper, ..ReadOptions::default() })?;
        it.limit_skips(limit);
        it.seek_to_first();
        let mut counted = 0;
        while it.valid() && counted < most {
            counted += 1;
            it.next();
        }
        it.status()?;
        match it.valid() || it.gave_up() {
            false => Ok(RangeCount { rows: counted, exact: true }),
            true => Ok(RangeCount { rows: estimate.rows.max(counted + u64::from(it.valid())).max(1), exact: false }),
        }
    }

    /// About how many keys the family has: [`RangeStats::rows`] of all of it.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`].
    pub fn estimate_count(&self) -> Result<u64> {
        Ok(self.range_stats(..)?.rows)
    }

    /// About how many bytes a range takes: in key logs, in value logs, and in memtables.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`].
    pub fn approximate_size<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<u64> {
        let stats = self.range_stats(range)?;
        Ok(stats.disk_bytes + stats.value_log_bytes + stats.memtable_bytes)
    }

    /// The bounds between which the keys with a prefix lie.
    ///
    /// # Errors
    /// `InvalidArgument` in an order in which keys of one prefix are not neighbours, unless the prefix is empty.
    pub fn prefix_bounds(&self, prefix: &[u8]) -> Result<[Bound<Vec<u8>>; 2]> {
        prefix_range(self.order(), prefix)
    }

    fn open_view(&self) -> Result<impl std::ops::Deref<Target = std::sync::Arc<View>> + use<>> {
        self.db.check_open()?;
        self.inner().check_alive()?;
        Ok(self.inner().view.load())
    }
}
