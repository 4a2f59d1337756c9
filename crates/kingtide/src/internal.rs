//! What the tools, benchmarks and fuzz targets of this repository use of the engine's internals. No part of the API: it
//! changes without notice and without a line in the changelog.

pub use crate::compact::{FlushInput, MergeContext, MergeCounters, MergeOutput, RateLimiter, run_flush, run_merge};
pub use crate::dump::{DumpedPrepare, DumpedRecord};
pub use crate::family::{ReadContext, TableCache, View};
pub use crate::memtable::FamilyMemtable;
pub use crate::options::least_memory_limit;
pub use crate::read::{CursorConfig, get, multi_get};

use crate::{ColumnFamily, Cursor, WriteBatch};
use kingtide_base::{Kind, Result};
use std::sync::Arc;

/// A cursor over a view without a database around it.
///
/// # Errors
/// `InvalidArgument` for a prefix in an order that does not support prefix iteration; `Io` and `Corruption`.
pub fn cursor(view: Arc<View>, reads: Arc<ReadContext>, config: CursorConfig) -> Result<Cursor> {
    Cursor::new(view, reads, config, None)
}

/// Sets a key that does not expire, in a family with a `ttl_ms` too: for copies of entries that did not.
///
/// # Errors
/// As [`WriteBatch::put`].
pub fn put_lasting(batch: &mut WriteBatch, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
    batch.push(family.inner(), Kind::Put as u8, key, None, Some(value))
}
