//! A work queue: jobs leave in the order in which they came, each to one worker.

use kingtide::{Db, Options, Result};
use std::path::Path;

/// The queue.
pub struct Queue(Db);

impl Queue {
    /// Opens the queue in a directory.
    pub fn open(path: &Path) -> Result<Queue> {
        Ok(Queue(Db::open(path, Options::default())?))
    }

    /// Appends a job.
    pub fn push(&self, job: &[u8]) -> Result<()> {
        let jobs = self.0.default_family();
        self.0.transact(|txn| {
            let last = txn.last(jobs)?.and_then(|e| e.key.first_chunk().copied()).map_or(0, u64::from_be_bytes);
            txn.put(jobs, &(last + 1).to_be_bytes(), job)
        })
    }

    /// Takes the oldest job.
    pub fn pop(&self) -> Result<Option<Vec<u8>>> {
        let jobs = self.0.default_family();
        self.0.transact(|txn| {
            let Some(oldest) = txn.first(jobs)? else { return Ok(None) };
            txn.delete(jobs, &oldest.key)?;
            Ok(Some(oldest.value.to_vec()))
        })
    }
}
