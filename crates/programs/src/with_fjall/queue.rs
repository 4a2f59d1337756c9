//! A work queue: jobs leave in the order in which they came, each to one worker.

use fjall::{KeyspaceCreateOptions, PersistMode, Readable, Result, SingleWriterTxDatabase, SingleWriterTxKeyspace};
use std::path::Path;

/// The queue.
pub struct Queue {
    db: SingleWriterTxDatabase,
    jobs: SingleWriterTxKeyspace,
}

impl Queue {
    /// Opens the queue in a directory.
    pub fn open(path: &Path) -> Result<Queue> {
        let db = SingleWriterTxDatabase::builder(path).open()?;
        let jobs = db.keyspace("jobs", KeyspaceCreateOptions::default)?;
        Ok(Queue { db, jobs })
    }

    /// Appends a job.
    pub fn push(&self, job: &[u8]) -> Result<()> {
        let mut txn = self.db.write_tx().durability(Some(PersistMode::Buffer));
        let last = txn.last_key_value(&self.jobs).map(|guard| guard.key()).transpose()?;
        let last = last.and_then(|key| key.first_chunk().copied()).map_or(0, u64::from_be_bytes);
        txn.insert(&self.jobs, (last + 1).to_be_bytes(), job);
        txn.commit()
    }

    /// Takes the oldest job.
    pub fn pop(&self) -> Result<Option<Vec<u8>>> {
        let mut txn = self.db.write_tx().durability(Some(PersistMode::Buffer));
        let Some(oldest) = txn.first_key_value(&self.jobs) else { return Ok(None) };
        let (key, job) = oldest.into_inner()?;
        txn.remove(&self.jobs, key);
        txn.commit()?;
        Ok(Some(job.to_vec()))
    }
}
