//! The database as tasks hold it.

use super::commit::{ask_for_sync, blocking, durable, enter, sync_all, write};
use super::{AsyncEntries, AsyncFamily};
use crate::api::transaction::{CommitTicket, TransactOptions, Transaction, retry};
use crate::api::{Db, Entry, KeyRange};
use crate::commit::batch::WriteBatch;
use crate::options::{Options, WriteOptions};
use crate::read::PinnedValue;
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Result, SeqNo};
use std::path::Path;

/// A database whose operations are futures, for tasks of tokio. Clones share it. Needs the feature `tokio`.
///
/// No operation blocks the thread that polls it. A get that is answered by a memtable or the block cache, a range whose entries are all in
/// memtables, and a commit that need not wait, are done at once, on the task; the rest runs on the runtime's threads for blocking work. Waiting
/// for the disk takes no thread: one thread syncs the log for all tasks that commit with [`Durability::Power`](crate::Durability::Power).
/// Waiting for a lock of a transaction takes no thread either: each commit continues when its own lock is released.
///
/// # Dropping a future
/// Nothing happens before a future is polled first. A commit is all or nothing even if its future is dropped, for example because of a timeout:
/// either it was not begun, or it is completed without the future, its sync included. Read the key back to find out which.
///
/// # Closing
/// Call [`AsyncDb::close`] at the end. Dropping the last handle closes the database too, but on the thread that drops it, which waits until the
/// memtables are flushed.
///
/// ```
/// use kingtide::{AsyncDb, Durability, Options, WriteBatch, WriteOptions};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-async-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let db = AsyncDb::open(&dir, Options::default()).await?;
/// db.put("tide", "rising").await?;
/// assert_eq!(db.get("tide").await?.as_deref(), Some(&b"rising"[..]));
///
/// let mut batch = WriteBatch::new();
/// batch.put(db.default_family().inner(), b"moon", b"full")?;
/// batch.delete(db.default_family().inner(), b"tide")?;
/// let power = WriteOptions::new().durability(Durability::Power);
/// db.write_with(batch, power).await?; // ready when it survives a power cut
///
/// let mut entries = db.range("a"..);
/// while let Some(entry) = entries.next().await {
///     assert_eq!(&*entry?.key, b"moon");
/// }
/// let report = db.with(|db| db.verify()).await?; // any other call
/// assert!(report.is_clean());
/// let last = db.range(..).backwards().next().await;
/// assert!(last.is_some());
///
/// let bays = db.get_or_create_family("bays", Default::default()).await?;
/// assert_eq!(db.family("bays").await?.inner().name(), bays.inner().name());
/// let mut batch = WriteBatch::new();
/// batch.put(bays.inner(), b"fundy", b"16 m")?;
/// db.write(batch).await?; // ready when it survives what the database's durability says
/// let twice = kingtide::TransactOptions::new().attempts(2);
/// let of = db.default_family().inner().clone();
/// db.transact_with(twice, move |txn| txn.put(&of, b"neap", b"small")).await?;
/// assert!(db.prefix("ne").next().await.is_some());
/// db.sync().await?; // all of it survives a power cut
/// db.flush().await?; // and is in tables
///
/// let mut txn = db.inner().begin(kingtide::Isolation::Snapshot)?;
/// txn.put(db.default_family().inner(), b"tide", b"falling")?;
/// db.wait(txn.commit_ordered()?).await?;
/// db.close().await?;
/// # kingtide::Result::Ok(())
/// # })?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), kingtide::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncDb {
    db: Db,
    default: AsyncFamily,
}

impl From<Db> for AsyncDb {
    fn from(db: Db) -> AsyncDb {
        AsyncDb { default: AsyncFamily::from(db.default_family().clone()), db }
    }
}

impl AsyncDb {
    /// Opens a database as [`Db::open`] does.
    ///
    /// # Errors
    /// As [`Db::open`].
    pub async fn open(path: impl AsRef<Path>, options: Options) -> Result<AsyncDb> {
        enter().await?;
        let path = path.as_ref().to_owned();
        blocking(move || Db::open(path, options)).await.map(AsyncDb::from)
    }

    /// The database, for calls that have no asynchronous form. They block.
    pub fn inner(&self) -> &Db {
        &self.db
    }

    /// The default family. Operations on [`AsyncDb`] itself mean this family.
    pub fn default_family(&self) -> &AsyncFamily {
        &self.default
    }

    /// The family of that name.
    ///
    /// # Errors
    /// As [`Db::family`].
    pub async fn family(&self, name: &str) -> Result<AsyncFamily> {
        let name = name.to_owned();
        self.with(move |db| db.family(&name).map(AsyncFamily::from)).await
    }

    /// The family of that name, which is created if it does not exist. See [`Db::get_or_create_family`].
    ///
    /// # Errors
    /// As [`Db::get_or_create_family`].
    pub async fn get_or_create_family(&self, name: &str, options: FamilyOptions) -> Result<AsyncFamily> {
        let name = name.to_owned();
        self.with(move |db| db.get_or_create_family(&name, options).map(AsyncFamily::from)).await
    }

    /// Runs `f` with the database on one of the runtime's threads for blocking work, for calls that have no asynchronous form.
    ///
    /// # Errors
    /// Those of `f`; `Cancelled` when the runtime shut down before it began.
    pub async fn with<T: Send + 'static>(&self, f: impl FnOnce(&Db) -> Result<T> + Send + 'static) -> Result<T> {
        enter().await?;
        let db = self.db.clone();
        blocking(move || f(&db)).await
    }

    /// Reads a key. See [`AsyncFamily::get`].
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::get`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.default.get(key).await
    }

    /// Returns whether a key has a value. See [`AsyncFamily::contains_key`].
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::contains_key`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.default.contains_key(key).await
    }

    /// Reads several keys as of one moment. See [`AsyncFamily::multi_get`].
    ///
    /// # Errors
    /// As [`AsyncFamily::multi_get`].
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Option<PinnedValue>>>> {
        self.default.multi_get(keys).await
    }

    /// The entry with the first key. See [`AsyncFamily::first`].
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::first`].
    pub async fn first(&self) -> Result<Option<Entry>> {
        self.default.first().await
    }

    /// The entry with the last key. See [`AsyncFamily::first`].
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::last`].
    pub async fn last(&self) -> Result<Option<Entry>> {
        self.default.last().await
    }

    /// Sets a key. Returns the sequence number of the commit.
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::put`].
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.put(key, value).await
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`crate::ColumnFamily::delete`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.default.delete(key).await
    }

    /// The entries of a range. See [`AsyncFamily::range`].
    pub fn range(&self, range: impl KeyRange) -> AsyncEntries {
        self.default.range(range)
    }

    /// The entries whose keys begin with `prefix`. See [`AsyncFamily::prefix`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> AsyncEntries {
        self.default.prefix(prefix)
    }

    /// Commits a batch: all of it or nothing. Returns the sequence number of its last operation.
    ///
    /// # Errors
    /// As [`Db::write`]; `Cancelled` when the runtime shut down before it began.
    pub async fn write(&self, batch: WriteBatch) -> Result<SeqNo> {
        self.write_with(batch, WriteOptions::default()).await
    }

    /// Commits a batch with options.
    ///
    /// # Errors
    /// As [`AsyncDb::write`].
    pub async fn write_with(&self, batch: WriteBatch, options: WriteOptions) -> Result<SeqNo> {
        write(self.db.inner(), batch, options).await
    }

    /// Runs `body` in a serializable transaction and commits it, as [`Db::transact`] does. `body` runs on one of the runtime's
    /// threads for blocking work and may block; the wait for the disk takes no thread. If the future is dropped, the transaction
    /// is still run to its end.
    ///
    /// # Errors
    /// As [`Db::transact`]; `Cancelled` when the runtime shut down before it began.
    pub async fn transact<T: Send + 'static>(
        &self,
        body: impl FnMut(&mut Transaction) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.transact_with(TransactOptions::default(), body).await
    }

    /// Does what [`AsyncDb::transact`] does, with options.
    ///
    /// # Errors
    /// As [`AsyncDb::transact`].
    pub async fn transact_with<T: Send + 'static>(
        &self,
        options: TransactOptions,
        body: impl FnMut(&mut Transaction) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        enter().await?;
        let db = self.db.inner().clone();
        let (value, ticket) = blocking(move || {
            let (value, ticket) = retry::run(&db, options, body, Transaction::commit_ordered)?;
            let (_, commit, durability) = ticket.parts();
            ask_for_sync(&db, commit, durability);
            Ok((value, ticket))
        })
        .await?;
        let (db, commit, durability) = ticket.parts();
        durable(db, commit, durability).await?;
        Ok(value)
    }

    /// Waits until a commit of [`Transaction::commit_ordered`] survives what its durability names, in the database that it was made
    /// in. Returns its sequence number.
    ///
    /// # Errors
    /// As [`CommitTicket::wait`].
    pub async fn wait(&self, ticket: CommitTicket) -> Result<SeqNo> {
        enter().await?;
        let (db, commit, durability) = ticket.parts(); // a position in the log of another database means nothing in this one's
        ask_for_sync(db, commit, durability);
        durable(db, commit, durability).await?;
        Ok(ticket.sequence())
    }

    /// Syncs the write-ahead log: everything committed so far survives a power cut, but for commits with `Durability::None`.
    ///
    /// # Errors
    /// As [`Db::sync`].
    pub async fn sync(&self) -> Result<()> {
        enter().await?;
        self.db.inner().check_writable()?;
        sync_all(self.db.inner()).await
    }

    /// Flushes all memtables of all families to tables.
    ///
    /// # Errors
    /// As [`Db::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.with(Db::flush).await
    }

    /// Closes the database as [`Db::close`] does. Commits that were sequenced are completed; later operations get `Closed`.
    ///
    /// # Errors
    /// As [`Db::close`].
    pub async fn close(&self) -> Result<()> {
        self.with(Db::close).await
    }
}
