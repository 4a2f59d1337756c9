//! Estimates of what a range of keys holds, for planners of queries: microseconds, and mostly no block read.
//!
//! A family's entries are in memtables and in runs of tables. For each of them it is estimated on its own how many of its
//! entries are in the range ([`sources`]). Which of them are newer versions of each other cannot be known without reading; see
//! [`RangeStats::rows`] for what is assumed. [`ColumnFamily::count_up_to`] does read, and counts exactly, as long as there is
//! little to count.

pub(crate) mod range;
mod sample;
pub(crate) mod sources;

pub use range::{RangeCount, RangeStats};
pub use sample::Cardinality;

use range::Span;

use crate::api::range::owned_bounds;
use crate::api::{ColumnFamily, KeyRange};
use crate::family::View;
use crate::options::ReadOptions;
use crate::read::cursor::prefix_range;
use kingtide_base::Result;
use std::ops::Bound;

impl ColumnFamily {
    /// Estimates the contents of a range of keys from metadata and resident indexes. No block is read; a table that is not open
    /// is opened, at most two of each run, and 64 more of those in which entries have expired. O(log entries) for each
    /// memtable and run: a few microseconds.
    ///
    /// Tables that lie entirely in the range count exactly. In the two tables of a run at the ends of the range, entire blocks are counted, as
    /// if all of a table held equally many entries, and parts of a block are interpolated by the numerical values of the keys. So each run adds
    /// an error of less than the entries of two blocks if entries are of similar size. A memtable's entries are counted up to several hundred;
    /// above that, the estimate is typically off by a tenth. Expired entries are known exactly for a table in which all or none have expired;
    /// otherwise see [`RangeStats::expired`]. [`RangeStats::rows`] says on which assumptions that number rests. Commits in progress may or may
    /// not count; a transaction's own writes do not.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let family = db.default_family();
    /// for n in 0..1000u32 {
    ///     db.put(n.to_be_bytes(), [0; 100])?;
    /// }
    /// db.flush()?;
    /// assert_eq!(family.range_stats(..)?.rows, 1000, "exact for whole tables");
    /// let part = family.range_stats(&100u32.to_be_bytes()[..]..&300u32.to_be_bytes()[..])?;
    /// assert!((100..=300).contains(&part.rows), "otherwise an estimate: {part:?}");
    /// let counted = family.count_up_to(.., 10_000)?; // looks at keys, up to so many
    /// assert!(counted.exact && counted.rows == 1000);
    /// assert!(family.approximate_size(..)? > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Closed`; `Corruption` and `Io` from opening a table.
    pub fn range_stats(&self, range: impl KeyRange) -> Result<RangeStats> {
        let (lower, upper) = owned_bounds(&range);
        let view = self.open_view()?;
        sources::estimate(&view, Span::of(&lower, &upper), self.db.clock.unix_ms())
    }

    /// Counts the keys of a range, as of now, if there are at most `most`, and estimates their number otherwise.
    /// Deleted entries that were not compacted yet are also stepped over, so after four times as many deleted keys the result is an
    /// estimate as well. Nothing is counted if there seem to be more than four times `most` anyway. O(`most`) steps of an
    /// iterator.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`], and from reading blocks.
    pub fn count_up_to(&self, range: impl KeyRange, most: u64) -> Result<RangeCount> {
        let (lower, upper) = owned_bounds(&range);
        let estimate = sources::estimate(&*self.open_view()?, Span::of(&lower, &upper), self.db.clock.unix_ms())?;
        if estimate.entries == 0 {
            return Ok(RangeCount { rows: 0, exact: true });
        }
        let limit = most.saturating_mul(4).saturating_add(16);
        if estimate.rows > limit {
            return Ok(RangeCount { rows: estimate.rows, exact: false });
        }
        let mut it = self.cursor_with(ReadOptions { lower, upper, ..ReadOptions::default() })?;
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

    /// The approximate number of bytes that a range takes in key logs, value logs and memtables.
    ///
    /// # Errors
    /// As [`ColumnFamily::range_stats`].
    pub fn approximate_size(&self, range: impl KeyRange) -> Result<u64> {
        let stats = self.range_stats(range)?;
        Ok(stats.disk_bytes + stats.value_log_bytes + stats.memtable_bytes)
    }

    /// The bounds between which the keys with a prefix lie.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use std::ops::Bound;
    ///
    /// let [lower, upper] = db.default_family().prefix_bounds(b"tide/")?;
    /// assert_eq!((lower, upper), (Bound::Included(b"tide/".to_vec()), Bound::Excluded(b"tide0".to_vec())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` in an order that does not support prefix iteration, unless the prefix is empty.
    pub fn prefix_bounds(&self, prefix: &[u8]) -> Result<[Bound<Vec<u8>>; 2]> {
        prefix_range(self.order(), prefix)
    }

    fn open_view(&self) -> Result<impl std::ops::Deref<Target = std::sync::Arc<View>> + use<>> {
        self.db.check_open()?;
        self.inner().check_alive()?;
        Ok(self.inner().view.load())
    }
}
