//! A column family as tasks hold it.

use super::AsyncEntries;
use super::commit::{blocking, enter, write};
use crate::api::{ColumnFamily, Entry, KeyRange};
use crate::commit::batch::WriteBatch;
use crate::options::WriteOptions;
use crate::read::PinnedValue;
use kingtide_base::{Result, SeqNo};
use std::time::Duration;

/// A column family of an [`AsyncDb`](crate::AsyncDb). Cheap to clone. As a [`ColumnFamily`], it does not keep the database open.
///
/// ```
/// use kingtide::{AsyncDb, AsyncFamily, Options, vfs::MemFs};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let db = AsyncDb::open("db", Options::new().fs(MemFs::shared())).await?;
/// let bays: AsyncFamily = db.get_or_create_family("bays", Default::default()).await?;
/// bays.put("fundy", "16 m").await?;
/// bays.put("severn", "15 m").await?;
/// bays.put_ttl("visited", "today", Duration::from_secs(3600)).await?;
/// assert_eq!(bays.get("fundy").await?.as_deref(), Some(&b"16 m"[..]));
/// assert!(bays.contains_key("visited").await?);
/// assert_eq!(bays.multi_get(&["fundy", "wash"]).await?.len(), 2);
/// assert_eq!(bays.last().await?.map(|entry| entry.key.to_vec()), Some(b"visited".to_vec()));
///
/// let mut entries = bays.range("g"..);
/// assert_eq!(entries.next().await.expect("two entries")?.value[..], b"15 m"[..]);
/// assert!(bays.prefix("wa").next().await.is_none());
/// bays.delete("severn").await?;
/// bays.inner().compact()?; // any other call, which blocks
/// db.close().await
/// # })?;
/// # Ok::<(), kingtide::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncFamily {
    family: ColumnFamily,
}

impl From<ColumnFamily> for AsyncFamily {
    fn from(family: ColumnFamily) -> AsyncFamily {
        AsyncFamily { family }
    }
}

impl AsyncFamily {
    /// The family, for batches, transactions and calls that have no asynchronous form. They block.
    pub fn inner(&self) -> &ColumnFamily {
        &self.family
    }

    /// Reads a key: on the task if a memtable, a filter or the block cache has the answer; on a thread for blocking work if a
    /// block or a value must be read from a file.
    ///
    /// # Errors
    /// As [`ColumnFamily::get`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        enter().await?;
        if let Some(answer) = self.family.get_in_memory(key.as_ref())? {
            return Ok(answer);
        }
        let (family, key) = (self.family.clone(), key.as_ref().to_vec());
        blocking(move || family.get(key)).await
    }

    /// Returns whether a key has a value. Runs where [`AsyncFamily::get`] does; no value is read from a value log.
    ///
    /// # Errors
    /// As [`ColumnFamily::contains_key`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        enter().await?;
        if let Some(answer) = self.family.get_in_memory(key.as_ref())? {
            return Ok(answer.is_some());
        }
        let (family, key) = (self.family.clone(), key.as_ref().to_vec());
        blocking(move || family.contains_key(key)).await
    }

    /// Reads several keys as of one moment, on a thread for blocking work. See [`Read::multi_get`](crate::Read::multi_get).
    ///
    /// # Errors
    /// `Cancelled` when the runtime shut down before it began. Each key has a result of its own.
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<Option<PinnedValue>>>> {
        enter().await?;
        let (family, keys) = (self.family.clone(), keys.iter().map(|k| k.as_ref().to_vec()).collect::<Vec<_>>());
        blocking(move || Ok(family.multi_get(&keys))).await
    }

    /// The entry with the first key. See [`Read::first`](crate::Read::first); it runs where [`AsyncFamily::range`] does.
    ///
    /// ```
    /// use kingtide::{AsyncDb, Options, vfs::MemFs};
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let db = AsyncDb::open("db", Options::new().fs(MemFs::shared())).await?;
    /// db.put("ebb", "low").await?;
    /// db.put("flood", "rising").await?;
    /// assert!(db.contains_key("ebb").await?);
    /// let found = db.multi_get(&["ebb", "neap"]).await?;
    /// assert!(matches!(&found[..], [Ok(Some(_)), Ok(None)]));
    /// assert_eq!(db.first().await?.map(|e| e.key.into_vec()), Some(b"ebb".to_vec()));
    /// assert_eq!(db.last().await?.map(|e| e.key.into_vec()), Some(b"flood".to_vec()));
    /// db.close().await
    /// # })?;
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::first`].
    pub async fn first(&self) -> Result<Option<Entry>> {
        self.range(..).next().await.transpose()
    }

    /// The entry with the last key. See [`AsyncFamily::first`].
    ///
    /// # Errors
    /// As [`ColumnFamily::last`].
    pub async fn last(&self) -> Result<Option<Entry>> {
        self.range(..).backwards().next().await.transpose()
    }

    /// Sets a key. Returns the sequence number of the commit.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.one(|batch| batch.put(&self.family, key.as_ref(), value.as_ref())).await
    }

    /// Sets a key that expires after `ttl`.
    ///
    /// # Errors
    /// As [`ColumnFamily::put_ttl`].
    pub async fn put_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<SeqNo> {
        self.one(|batch| batch.put_ttl(&self.family, key.as_ref(), value.as_ref(), ttl)).await
    }

    /// Deletes a key. Deleting an absent key is not an error.
    ///
    /// # Errors
    /// As [`ColumnFamily::delete`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.one(|batch| batch.delete(&self.family, key.as_ref())).await
    }

    async fn one(&self, fill: impl FnOnce(&mut WriteBatch) -> Result<()>) -> Result<SeqNo> {
        let mut batch = WriteBatch::new();
        fill(&mut batch)?;
        write(&self.family.db, batch, WriteOptions::default()).await
    }

    /// The entries of a range of keys, as of this call, in the order of the keys.
    pub fn range(&self, range: impl KeyRange) -> AsyncEntries {
        AsyncEntries::of_range(&self.family, &range)
    }

    /// The entries whose keys begin with `prefix`, as of this call, in the order of the keys.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> AsyncEntries {
        AsyncEntries::of_prefix(&self.family, prefix.as_ref())
    }
}
