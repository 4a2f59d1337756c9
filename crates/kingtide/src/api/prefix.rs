//! Deleting all keys of a range or a prefix.
//!
//! Mostly that is one range delete, from the prefix to its successor. Where no key can be named that follows all of them
//! (a range with an open end, a prefix of 0xff only, an empty one, a descending order) the first and the last key are looked for, and what lies
//! between them is deleted: two seeks, however many keys there are.

use crate::api::range::check_ends;
use crate::api::{ColumnFamily, Db, KeyRange};
use crate::commit::batch::WriteBatch;
use crate::options::WriteOptions;
use crate::read::cursor::prefix_range;
use crate::txn::bounds::{is_before, is_behind, slice};
use kingtide_base::{KeyOrder, Kind, Result, SeqNo};
use std::ops::Bound;

/// `[start, end)` that holds the keys of a prefix and no others; `None` if it has to be looked for.
///
/// # Errors
/// `InvalidArgument` for an order that does not support prefix iteration.
pub(crate) fn range_of_prefix(order: &KeyOrder, prefix: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    Ok(match prefix_range(order, prefix)? {
        [Bound::Included(start), Bound::Excluded(end)] if !start.is_empty() => Some((start, end)),
        _ => None,
    })
}

impl WriteBatch {
    /// Deletes all keys in a range, including those that the batch itself wrote before. One operation for `start..end`, two for
    /// `start..=last`, regardless of the number of keys. For a range with an open end or an excluded start, two seeks find the
    /// first and the last key, and only keys between these are deleted, not keys that others insert outside of them before the
    /// batch is committed.
    ///
    /// # Errors
    /// `InvalidArgument` when the start sorts after the end, for an empty key as a bound, or for a batch that grows too large;
    /// `Corruption` and `Io` of the seeks.
    pub fn delete_range(&mut self, family: &ColumnFamily, range: impl KeyRange) -> Result<()> {
        match (range.lower(), range.upper()) {
            (Bound::Included(start), Bound::Excluded(end)) => self.delete_span(family, start, end),
            (Bound::Included(first), Bound::Included(last)) => self.delete_through(family, first, last),
            (lower, upper) => {
                check_ends("delete_range", family.order(), &range)?;
                self.delete_found(family, lower, upper)
            }
        }
    }

    /// Deletes all keys that begin with `prefix`, including those that the batch itself wrote before, and ignoring case in the
    /// case-insensitive order. One range delete, regardless of the number of keys; but if the prefix is empty or all
    /// 0xff, or the order is [`KeyOrder::Reverse`], two seeks find the first and last key, and only keys
    /// between these are deleted, not keys that others insert outside of them before the batch is committed.
    ///
    /// # Errors
    /// As [`WriteBatch::put`]; `InvalidArgument` for an order that does not support prefix iteration; `Corruption`
    /// and `Io` of the seeks.
    pub fn delete_prefix(&mut self, family: &ColumnFamily, prefix: &[u8]) -> Result<()> {
        let order = family.inner().order();
        if let Some((start, end)) = range_of_prefix(order, prefix)? {
            return self.delete_span(family, &start, &end);
        }
        let [lower, upper] = prefix_range(order, prefix)?;
        self.delete_found(family, slice(&lower), slice(&upper))
    }

    /// Deletes from the first key to the last that there are between two bounds, now or in the batch.
    pub(super) fn delete_found(
        &mut self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        let order = family.inner().order();
        let mut it = family.cursor((lower, upper))?;
        it.seek_to_first();
        let mut ends = it.valid().then(|| [it.key().to_vec(), it.key().to_vec()]);
        it.seek_to_last();
        if let Some([_, last]) = ends.as_mut().filter(|_| it.valid()) {
            *last = it.key().to_vec();
        }
        it.status()?;
        for op in self.ops() {
            let key = self.key_of(op);
            let same_family = std::sync::Arc::ptr_eq(&self.families()[op.family as usize], family.inner());
            let outside = is_before(order, key, lower) || is_behind(order, key, upper);
            if op.kind == Kind::RangeDelete as u8 || !same_family || outside {
                continue;
            }
            let [first, last] = ends.get_or_insert_with(|| [key.to_vec(), key.to_vec()]);
            if order.compare(key, first).is_lt() {
                *first = key.to_vec();
            }
            if order.compare(key, last).is_gt() {
                *last = key.to_vec();
            }
        }
        match ends {
            Some([first, last]) => self.delete_through(family, &first, &last),
            None => Ok(()),
        }
    }

    /// Deletes `[first, last]`: all of it or, after an error, nothing.
    pub(super) fn delete_through(&mut self, family: &ColumnFamily, first: &[u8], last: &[u8]) -> Result<()> {
        let mark = self.mark();
        self.delete_span(family, first, last)?;
        self.delete(family, last).inspect_err(|_| self.truncate(mark))
    }
}

impl ColumnFamily {
    /// Deletes all keys that begin with `prefix`. See [`WriteBatch::delete_prefix`].
    ///
    /// # Errors
    /// As [`WriteBatch::delete_prefix`] and [`ColumnFamily::put`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<SeqNo> {
        let mut batch = WriteBatch::new();
        batch.delete_prefix(self, prefix.as_ref())?;
        self.db.write(&mut batch, &WriteOptions::default())
    }
}

impl Db {
    /// Deletes all keys that begin with `prefix`. See [`WriteBatch::delete_prefix`].
    ///
    /// # Errors
    /// As [`ColumnFamily::delete_prefix`].
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default_family().delete_prefix(prefix)
    }
}
