//! Counters that many threads increase.

use fjall::{KeyspaceCreateOptions, Result, SingleWriterTxDatabase, SingleWriterTxKeyspace};
use std::path::Path;

/// The counters.
pub struct Counters {
    _db: SingleWriterTxDatabase,
    counters: SingleWriterTxKeyspace,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

impl Counters {
    /// Opens the counters in a directory.
    pub fn open(path: &Path) -> Result<Counters> {
        let db = SingleWriterTxDatabase::builder(path).open()?;
        let counters = db.keyspace("counters", KeyspaceCreateOptions::default)?;
        Ok(Counters { _db: db, counters })
    }

    /// Adds to a counter, which begins at 0.
    pub fn add(&self, name: &str, n: u64) -> Result<()> {
        self.counters.fetch_update(name, |old| {
            let sum = old.map_or(0, |value| number(value)) + n;
            Some(sum.to_le_bytes().into())
        })?;
        Ok(())
    }

    /// What a counter is at.
    pub fn get(&self, name: &str) -> Result<u64> {
        Ok(self.counters.get(name)?.map_or(0, |value| number(&value)))
    }
}
