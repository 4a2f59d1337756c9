//! Ranges of keys, and what an estimate says of one.

use kingtide_base::KeyOrder;
use std::ops::Bound;

/// An estimate of the contents of a range, from [`crate::ColumnFamily::range_stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeStats {
    /// Keys that a read would show, on these assumptions: a tombstone hides one entry of an older table or memtable, a range tombstone hides all
    /// older ones, and no two tables hold versions of the same key. So keys that were overwritten and not compacted yet count more than once.
    /// Expired entries are left out as far as [`RangeStats::expired`] counts them. It is 0 only if the range holds no entry at all.
    pub rows: u64,
    /// Entries that have expired and were not compacted away yet, estimated: in a table as if the expiries of its entries were
    /// spread evenly between its first and its last, and evenly over its keys; in a memtable by a sample of 24 keys. Tables
    /// written by earlier builds did not count them, and add nothing.
    pub expired: u64,
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
    /// Bytes in value-log files, values that nothing refers to not counted. Those that memtables refer to are estimated by a sample of
    /// 24 keys in each.
    pub value_log_bytes: u64,
    /// Bytes of keys and values in memtables.
    pub memtable_bytes: u64,
    /// Tables that meet the range.
    pub tables: u64,
    /// Runs that overlap the range, which a scan has to merge, without memtables.
    pub runs: u64,
}

/// How many keys a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeCount {
    /// Keys.
    pub rows: u64,
    /// Whether they were counted. Otherwise `rows` is an estimate, and not 0.
    pub exact: bool,
}

/// A range of keys.
#[derive(Clone, Copy)]
pub(crate) struct Span<'k> {
    pub lower: Bound<&'k [u8]>,
    pub upper: Bound<&'k [u8]>,
}

pub(super) fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl<'k> Span<'k> {
    pub fn of(lower: &'k Bound<Vec<u8>>, upper: &'k Bound<Vec<u8>>) -> Span<'k> {
        Span { lower: lower.as_ref().map(Vec::as_slice), upper: upper.as_ref().map(Vec::as_slice) }
    }

    /// Returns whether no key can be in it.
    pub fn is_empty(&self, order: &KeyOrder) -> bool {
        let (Some(from), Some(to)) = (key_of(self.lower), key_of(self.upper)) else { return false };
        match order.compare(from, to) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => !matches!((self.lower, self.upper), (Bound::Included(_), Bound::Included(_))),
            std::cmp::Ordering::Greater => true,
        }
    }

    /// The part of it in `[start, end)`.
    pub fn within<'a>(&self, order: &KeyOrder, start: &'a [u8], end: &'a [u8]) -> Span<'a>
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
