//! Operations on column families, added to a batch.

#[cfg(doc)]
use crate::MAX_BATCH_BYTES;
use crate::api::{ColumnFamily, StagedValue};
use crate::commit::batch::WriteBatch;
use kingtide_base::clock::unix_ms_of_time;
use kingtide_base::key::EXPIRY_FLAG;
use kingtide_base::{Error, Kind, Result};
use std::time::{Duration, SystemTime};

impl WriteBatch {
    /// Sets a key. In a family with a `ttl_ms`, the entry expires after that time.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key or a batch that would exceed [`MAX_BATCH_BYTES`].
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        match family.inner().default_expiry() {
            None => self.push(family.inner(), Kind::Put as u8, key, None, Some(value)),
            Some(at) => self.push(family.inner(), Kind::Put as u8 | EXPIRY_FLAG, key, Some(at), Some(value)),
        }
    }

    /// Sets a key that expires after `ttl`, with millisecond resolution.
    ///
    /// # Errors
    /// As [`WriteBatch::put`].
    pub fn put_ttl(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        let at = family.inner().expiry_after(ttl);
        self.push(family.inner(), Kind::Put as u8 | EXPIRY_FLAG, key, Some(at), Some(value))
    }

    /// Sets a key that expires at a moment, which is rounded up to a whole millisecond. Keys that are to expire together
    /// need the same moment, and a copy of an entry needs that of the original. A moment in the past is no error: the key has
    /// expired already.
    ///
    /// ```
    /// use kingtide::{Db, ManualClock, Options, WriteBatch, vfs::MemFs};
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let clock = ManualClock::at_unix_ms(1_000);
    /// let db = Db::open("db", Options::new().fs(MemFs::shared()).clock(clock.clone()))?;
    /// let offers = db.default_family();
    /// let midnight = UNIX_EPOCH + Duration::from_secs(2);
    /// let mut batch = WriteBatch::new();
    /// batch.put_until(offers, b"apples", b"-20 %", midnight)?;
    /// batch.put_until(offers, b"pears", b"-10 %", midnight)?;
    /// db.write(batch)?;
    /// let mut cursor = offers.cursor(..)?;
    /// cursor.seek_to_first();
    /// assert_eq!(cursor.expires_at(), Some(midnight));
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(offers.first()?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`WriteBatch::put`].
    pub fn put_until(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8], expires_at: SystemTime) -> Result<()> {
        let at = unix_ms_of_time(expires_at);
        self.push(family.inner(), Kind::Put as u8 | EXPIRY_FLAG, key, Some(at), Some(value))
    }

    /// Sets a key to a value that a [`ValueWriter`](crate::ValueWriter) has written. In a family with a `ttl_ms`, the entry
    /// expires after that time. The value is not copied: the batch holds a pointer to it, and keeps its file.
    ///
    /// Until it is committed, a value may be put into another batch or transaction, for example after a conflict. It can be committed
    /// only once: the commit of a batch that is written again, or of another one with the value, returns `InvalidArgument`. (A value of up to
    /// 1 MiB is kept in memory and copied here; it has no such limit.)
    ///
    /// ```
    /// # use kingtide::{Db, Options, WriteBatch, vfs::MemFs};
    /// # use std::io::Write;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let films = db.default_family();
    /// let mut writer = films.value_writer()?;
    /// for _ in 0..100 {
    ///     writer.write_all(&[7; 50_000])?;
    /// }
    /// let film = writer.finish()?;
    /// let mut batch = WriteBatch::new();
    /// batch.put_staged(films, b"film", &film)?;
    /// batch.put(films, b"film:title", b"The General")?;
    /// db.write(batch)?; // both or nothing
    /// assert_eq!(db.get(b"film")?.map(|v| v.len()), Some(5_000_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`WriteBatch::put`]; `InvalidArgument` for a value that was written for another family, that was committed, or that
    /// is already in the batch.
    pub fn put_staged(&mut self, family: &ColumnFamily, key: &[u8], value: &StagedValue) -> Result<()> {
        value.put_into(self, family, key, family.inner().default_expiry())
    }

    /// Sets a key to a staged value that expires after `ttl`. See [`WriteBatch::put_staged`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::WriteBatch;
    /// use std::io::Write;
    /// use std::time::Duration;
    ///
    /// let files = db.default_family();
    /// let staged = || -> Result<_, Box<dyn std::error::Error>> {
    ///     let mut writer = files.value_writer()?;
    ///     writer.write_all(&[7; 100_000])?;
    ///     Ok(writer.finish()?)
    /// };
    /// let mut batch = WriteBatch::new();
    /// batch.put_staged_ttl(files, b"for a minute", &staged()?, Duration::from_secs(60))?;
    /// db.write(batch)?;
    /// let (value, hour) = (staged()?, Duration::from_secs(3600));
    /// db.transact(|txn| txn.put_staged_ttl(files, b"for an hour", &value, hour))?;
    /// assert_eq!(files.iter().count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`WriteBatch::put_staged`].
    pub fn put_staged_ttl(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        value: &StagedValue,
        ttl: Duration,
    ) -> Result<()> {
        value.put_into(self, family, key, Some(family.inner().expiry_after(ttl)))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`WriteBatch::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.push(family.inner(), Kind::Delete as u8, key, None, None)
    }

    /// Deletes a key that was put exactly once since it was last deleted. Cheaper to reclaim than [`WriteBatch::delete`];
    /// if the key was put more than once, an older value may reappear.
    ///
    /// # Errors
    /// As [`WriteBatch::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.push(family.inner(), Kind::SingleDelete as u8, key, None, None)
    }

    /// Deletes `[start, end)`.
    pub(in crate::api) fn delete_span(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        if end.is_empty() {
            return Err(Error::invalid("delete_range: the end key is empty; keys have at least one byte"));
        }
        match family.inner().order().compare(start, end) {
            std::cmp::Ordering::Greater => Err(Error::invalid("delete_range: start sorts after end")),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => self.push(family.inner(), Kind::RangeDelete as u8, start, None, Some(end)),
        }
    }
}
