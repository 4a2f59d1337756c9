//! A work queue: jobs leave in the order in which they came, each to one worker.

use redb::{Database, Error, ReadableTable, TableDefinition};
use std::path::Path;

const JOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("jobs");

/// The queue.
pub struct Queue(Database);

impl Queue {
    /// Opens the queue in a directory.
    pub fn open(path: &Path) -> Result<Queue, Error> {
        Ok(Queue(Database::create(path.join("queue.redb"))?))
    }

    /// Appends a job.
    pub fn push(&self, job: &[u8]) -> Result<(), Error> {
        let txn = self.0.begin_write()?;
        {
            let mut jobs = txn.open_table(JOBS)?;
            let last = jobs.last()?.map_or(0, |(number, _)| number.value());
            jobs.insert(last + 1, job)?;
        }
        Ok(txn.commit()?)
    }

    /// Takes the oldest job.
    pub fn pop(&self) -> Result<Option<Vec<u8>>, Error> {
        let txn = self.0.begin_write()?;
        let oldest = txn.open_table(JOBS)?.pop_first()?.map(|(_, job)| job.value().to_vec());
        txn.commit()?;
        Ok(oldest)
    }
}
