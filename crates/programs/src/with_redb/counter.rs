//! Counters that many threads increase.

use redb::{Database, Error, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");

/// The counters.
pub struct Counters(Database);

impl Counters {
    /// Opens the counters in a directory.
    pub fn open(path: &Path) -> Result<Counters, Error> {
        let db = Database::create(path.join("counters.redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(COUNTERS)?; // a reader would find no table
        txn.commit()?;
        Ok(Counters(db))
    }

    /// Adds to a counter, which begins at 0.
    pub fn add(&self, name: &str, n: u64) -> Result<(), Error> {
        let txn = self.0.begin_write()?;
        {
            let mut counters = txn.open_table(COUNTERS)?;
            let old = counters.get(name)?.map_or(0, |value| value.value());
            counters.insert(name, old + n)?;
        }
        Ok(txn.commit()?)
    }

    /// What a counter is at.
    pub fn get(&self, name: &str) -> Result<u64, Error> {
        let counters = self.0.begin_read()?.open_table(COUNTERS)?;
        Ok(counters.get(name)?.map_or(0, |value| value.value()))
    }
}
