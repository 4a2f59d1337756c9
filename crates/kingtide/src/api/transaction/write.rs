//! Writes of a transaction, and the savepoints to take them back to.

use super::Transaction;
use crate::api::{ColumnFamily, StagedValue};
use crate::commit::batch::WriteBatch;
use kingtide_base::{Error, ErrorKind, Kind, Result};
use kingtide_locks::LockMode;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

/// Bytes of writes below which nothing is charged to the budget.
const SMALL: u64 = 32 << 10;

impl Transaction {
    /// Sets a key.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key, or for writes that would exceed [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES); `Busy` when transactions
    /// hold more than `transaction_memory`, and nothing was added; `ReadOnly`; `Finished`, `Aborted`, `Expired`, `Closed`; of a locking
    /// transaction also `Conflict`, `LockTimeout`, `Deadlock`.
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.put(family, key, value))
    }

    /// Sets a key that does not expire, whatever the `ttl_ms` of its family: for a copy of an entry that did not.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub(crate) fn put_for_good(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.push(family.inner(), Kind::Put as u8, key, None, Some(value)))
    }

    /// Sets a key that expires after `ttl`.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_ttl(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        self.write(family, key, None, |b| b.put_ttl(family, key, value, ttl))
    }

    /// Sets a key that expires at a moment, which is rounded up to a whole millisecond: see [`WriteBatch::put_until`].
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_until(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8], expires_at: SystemTime) -> Result<()> {
        self.write(family, key, None, |b| b.put_until(family, key, value, expires_at))
    }

    /// Sets a key to a value that a [`ValueWriter`](crate::ValueWriter) has written, without a copy: see
    /// [`WriteBatch::put_staged`]. The transaction reads it as it reads its other writes. After a conflict the same value may
    /// be put again, so [`Db::transact`](crate::Db::transact) may take it from outside of its closure.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::Write;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let files = db.default_family();
    /// let mut writer = files.value_writer()?;
    /// writer.write_all(&[7; 3_000_000])?;
    /// let file = writer.finish()?;
    /// db.transact(|tx| {
    ///     assert_eq!(tx.get(files, b"name")?, None);
    ///     tx.put_staged(files, b"name", &file)
    /// })?;
    /// assert!(db.get(b"name")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::put`] and [`WriteBatch::put_staged`].
    pub fn put_staged(&mut self, family: &ColumnFamily, key: &[u8], value: &StagedValue) -> Result<()> {
        self.write(family, key, None, |b| b.put_staged(family, key, value))
    }

    /// Sets a key to a staged value that expires at `expires_at`, in Unix milliseconds, or never, whatever the family's default is.
    pub(crate) fn put_staged_again(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        value: &StagedValue,
        expires_at: Option<u64>,
    ) -> Result<()> {
        self.write(family, key, None, |b| value.put_into(b, family, key, expires_at))
    }

    /// Sets a key to a staged value that expires after `ttl`. See [`Transaction::put_staged`].
    ///
    /// # Errors
    /// As [`Transaction::put_staged`].
    pub fn put_staged_ttl(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        value: &StagedValue,
        ttl: Duration,
    ) -> Result<()> {
        self.write(family, key, None, |b| b.put_staged_ttl(family, key, value, ttl))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.delete(family, key))
    }

    /// Deletes a key that was put exactly once since its last delete. See [`ColumnFamily::single_delete`].
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.single_delete(family, key))
    }

    /// Deletes `[start, end)`.
    pub(super) fn delete_span(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        self.write(family, start, Some(end), |b| b.delete_span(family, start, end))
    }

    /// Deletes `[first, last]`: all of it or, after an error, nothing.
    pub(super) fn delete_through(&mut self, family: &ColumnFamily, first: &[u8], last: &[u8]) -> Result<()> {
        self.writable(family)?; // before a lock that a forked child's parent may have held
        let mark = self.shared.writes.lock().batch.mark();
        self.delete_span(family, first, last)?;
        let deleted = self.delete(family, last);
        if deleted.is_err() {
            self.overlays.clear();
            self.shared.writes.lock().take_back(mark);
        }
        deleted
    }

    pub(super) fn writable(&self, family: &ColumnFamily) -> Result<()> {
        self.usable(family)?;
        if self.options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, format!("transaction {} was begun read-only", self.id)));
        }
        Ok(())
    }

    fn write(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        end: Option<&[u8]>,
        add: impl FnOnce(&mut WriteBatch) -> Result<()>,
    ) -> Result<()> {
        self.writable(family)?;
        if self.rules.lock_writes {
            self.lock_written(family, key, end)?;
            self.spare_lock = false;
        }
        self.shared.note_writes();
        let mut writes = self.shared.writes.lock();
        if writes.batch.bytes() as u64 >= SMALL {
            self.check_memory()?;
        }
        let before = writes.batch.len();
        add(&mut writes.batch)?;
        if writes.batch.len() > before {
            writes.added();
        }
        let held = writes.batch.bytes() as u64;
        if held >= SMALL {
            let held = writes.memory();
            drop(writes);
            self.written = held;
            self.charge();
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<()> {
        let memory = &self.db.txns.memory;
        if memory.used() <= memory.limit() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "transaction {}: running transactions hold {} bytes of reads and writes, and transaction_memory is {}; \
                 commit in parts, or try again when others have ended",
                self.id,
                memory.used(),
                memory.limit()
            ),
        ))
    }

    /// Locks what is about to be written and, if the level asks for it, makes sure that it did not change since the snapshot.
    fn lock_written(&mut self, family: &ColumnFamily, key: &[u8], end: Option<&[u8]>) -> Result<()> {
        let order = family.inner().order();
        match end {
            _ if key.is_empty() || end.is_some_and(<[u8]>::is_empty) => Ok(()), // the batch refuses it
            None => {
                self.lock_key(family, key, LockMode::Exclusive)?;
                self.begin_snapshot();
                if self.rules.check_writes { self.settle_key(family.inner(), key) } else { Ok(()) }
            }
            Some(end) if order.compare(key, end).is_ge() => Ok(()),
            Some(end) => {
                let (lower, upper) = (Bound::Included(key), Bound::Excluded(end));
                self.lock_span(family, lower, upper, LockMode::Exclusive)?;
                self.begin_snapshot();
                if self.rules.check_writes { self.settle_range(family.inner(), key, end) } else { Ok(()) }
            }
        }
    }

    /// Sets a savepoint for [`Transaction::rollback_to_savepoint`]. Savepoints nest; of several with the same name, the newest counts, as in
    /// SQL.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let tides = db.default_family();
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// txn.put(tides, b"ebb", b"low")?;
    /// txn.set_savepoint("one")?;
    /// txn.put(tides, b"flood", b"rising")?;
    /// txn.rollback_to_savepoint("one")?; // the savepoint stays
    /// txn.put(tides, b"spring", b"highest")?;
    /// txn.release_savepoint("one")?; // what was written since stays
    /// txn.commit()?;
    /// assert_eq!(db.get("flood")?, None);
    /// assert!(db.get("ebb")?.is_some() && db.get("spring")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Finished`, `Aborted`, `Expired`.
    pub fn set_savepoint(&mut self, name: &str) -> Result<()> {
        self.db.check_origin()?;
        self.active()?;
        self.shared.note_writes();
        self.shared.writes.lock().set_savepoint(name);
        Ok(())
    }

    /// Undoes what was written since a savepoint, and frees its memory. The savepoint stays; those set after it are removed. Locks are kept, and
    /// what was read since is still checked.
    ///
    /// # Errors
    /// `NotFound` for a name that is not set, in which case nothing changes; `Finished`, `Aborted`, `Expired`.
    pub fn rollback_to_savepoint(&mut self, name: &str) -> Result<()> {
        self.db.check_origin()?;
        self.overlays.clear();
        let mut writes = self.writes_while_active()?;
        writes.rollback_to_savepoint(name)?;
        if self.written > 0 {
            writes.shrink(SMALL as usize);
            let held = if writes.batch.bytes() as u64 >= SMALL { writes.memory() } else { 0 };
            self.shared.uncharge(self.reads.memory() + held, &self.db.txns.memory);
            drop(writes);
            self.written = held;
        }
        Ok(())
    }

    /// Removes a savepoint and those set after it; what was written since stays.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to_savepoint`].
    pub fn release_savepoint(&mut self, name: &str) -> Result<()> {
        self.db.check_origin()?;
        self.writes_while_active()?.release_savepoint(name)
    }
}
