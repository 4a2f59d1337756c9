//! Counters that many threads increase.

use kingtide::{Db, Options, Result};
use std::path::Path;

/// The counters.
pub struct Counters(Db);

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

impl Counters {
    /// Opens the counters in a directory.
    pub fn open(path: &Path) -> Result<Counters> {
        Ok(Counters(Db::open(path, Options::default())?))
    }

    /// Adds to a counter, which begins at 0.
    pub fn add(&self, name: &str, n: u64) -> Result<()> {
        let counters = self.0.default_family();
        counters.fetch_update(name, |old| Some((old.map_or(0, number) + n).to_le_bytes()))?;
        Ok(())
    }

    /// What a counter is at.
    pub fn get(&self, name: &str) -> Result<u64> {
        Ok(self.0.get(name)?.map_or(0, |value| number(&value)))
    }
}
