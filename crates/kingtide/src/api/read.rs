//! One way to read, whatever is read: a family as it is now, a snapshot of it, or what a transaction sees of it.

use crate::api::entries::{Entries, Entry};
use crate::api::range::KeyRange;
use crate::api::{ColumnFamily, Db, Transaction};
use crate::options::ReadOptions;
use crate::read::{PinnedValue, ValueReader};
use crate::snapshot::Snapshot;
use kingtide_base::{Error, Result};
use std::cell::RefCell;

/// Reads from a family: in its current state ([`ColumnFamily`]; [`Db`] for the default family), as of a snapshot
/// ([`Snapshot::of`]), or as a transaction sees it ([`Transaction::of`]).
///
/// The types also have these methods themselves; the trait is for code that reads from any of them.
///
/// ```
/// use kingtide::{Db, Options, Read};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-read-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
///
/// fn total(stock: &impl Read) -> kingtide::Result<usize> {
///     let mut total = 0;
///     for entry in stock.prefix("fruit/") {
///         total += entry?.value.len();
///     }
///     Ok(total)
/// }
///
/// let db = Db::open(&dir, Options::default())?;
/// db.put("fruit/apple", "|||")?;
/// let before = db.snapshot();
/// db.put("fruit/pear", "||")?;
/// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
/// txn.delete(db.default_family(), b"fruit/apple")?;
///
/// assert_eq!(total(&db)?, 5);
/// assert_eq!(total(&before.of(db.default_family()))?, 3);
/// assert_eq!(total(&txn.of(db.default_family()))?, 2);
/// # drop(txn);
/// # db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), kingtide::Error>(())
/// ```
pub trait Read {
    /// Reads a key.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`, `Closed`. For a snapshot also `InvalidArgument` if it belongs to another database,
    /// and `TooOld` in a database that was opened read-only and has since caught up. For a transaction, the errors of
    /// [`Transaction::get`].
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>>;

    /// Reads several keys as of one moment, sharing common work. Results are in the order of the
    /// keys, each with its own error, as from [`Read::get`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("ebb", "low")?;
    /// let found = db.multi_get(&["ebb", "flood"]);
    /// assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&b"low"[..]));
    /// assert!(matches!(found[1], Ok(None)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>>;

    /// Iterates over a range in key order, from either end or both, as of the moment of the call. If it cannot begin,
    /// its first and only item is the error.
    ///
    /// # Errors
    /// Items are errors as [`Read::get`] returns them.
    fn range(&self, range: impl KeyRange) -> Entries;

    /// Iterates over the keys that begin with `prefix`, ignoring case in the case-insensitive order.
    ///
    /// # Errors
    /// As [`Read::range`]; `InvalidArgument` in an order that does not support prefix iteration, unless the prefix is
    /// empty.
    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries;

    /// Iterates over all keys. The same as `range(..)`.
    ///
    /// # Errors
    /// As [`Read::range`].
    fn iter(&self) -> Entries {
        self.range(..)
    }

    /// Returns whether a key has a value. Cheaper than [`Read::get`] if the value is in a value log.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The entry with the first key. Steps over deleted entries before it that were not compacted yet.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn first(&self) -> Result<Option<Entry>> {
        self.iter().next().transpose()
    }

    /// The entry with the last key. Steps over deleted entries after it that were not compacted yet.
    ///
    /// # Errors
    /// As [`Read::get`].
    fn last(&self) -> Result<Option<Entry>> {
        self.iter().next_back().transpose()
    }
}

/// A family as of a snapshot; created by [`Snapshot::of`].
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.put("film", vec![7; 100_000])?;
/// let snapshot = db.snapshot();
/// db.delete("film")?;
/// let then = snapshot.of(db.default_family());
/// assert_eq!(then.get_reader("film")?.map(|film| film.len()), Some(100_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SnapshotReader<'a> {
    snapshot: &'a Snapshot,
    family: &'a ColumnFamily,
}

impl Snapshot {
    /// Reads a family as of the snapshot, through [`Read`]. The snapshot has the same verbs itself, which take the family.
    pub fn of<'a>(&'a self, family: &'a ColumnFamily) -> SnapshotReader<'a> {
        SnapshotReader { snapshot: self, family }
    }

    /// Reads a key of a family as of the snapshot. See [`Read::get`].
    ///
    /// ```
    /// use kingtide::{Db, Options, vfs::MemFs};
    ///
    /// let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let tides = db.default_family();
    /// db.put("ebb", "low")?;
    /// db.put("flood", "high")?;
    /// let before = db.snapshot();
    /// db.put("ebb", "lower")?;
    /// db.delete("flood")?;
    ///
    /// assert_eq!(before.get(tides, "ebb")?.as_deref(), Some(&b"low"[..]));
    /// assert!(before.contains_key(tides, "flood")?);
    /// assert!(before.multi_get(tides, &["ebb", "flood"]).into_iter().all(|value| value.unwrap().is_some()));
    /// assert_eq!(before.range(tides, "f"..).count(), 1);
    /// assert_eq!(before.prefix(tides, "e").count(), 1);
    /// assert_eq!(before.iter(tides).count(), 2);
    /// assert_eq!(before.first(tides)?.unwrap().value, b"low");
    /// assert_eq!(before.last(tides)?.unwrap().key, b"flood");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Read::get`].
    pub fn get(&self, family: &ColumnFamily, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        Read::get(&self.of(family), key)
    }

    /// Returns whether a key of a family had a value at the snapshot. See [`Read::contains_key`].
    ///
    /// # Errors
    /// As [`Read::get`].
    pub fn contains_key(&self, family: &ColumnFamily, key: impl AsRef<[u8]>) -> Result<bool> {
        Read::contains_key(&self.of(family), key)
    }

    /// Reads several keys of a family as of the snapshot. See [`Read::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, family: &ColumnFamily, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        Read::multi_get(&self.of(family), keys)
    }

    /// Iterates over a range of a family as of the snapshot, from either end. The iterator does not borrow the snapshot and
    /// may outlive it. See [`Read::range`].
    pub fn range(&self, family: &ColumnFamily, range: impl KeyRange) -> Entries {
        Read::range(&self.of(family), range)
    }

    /// Iterates over the keys of a family that begin with `prefix`, as of the snapshot. See [`Read::prefix`].
    pub fn prefix(&self, family: &ColumnFamily, prefix: impl AsRef<[u8]>) -> Entries {
        Read::prefix(&self.of(family), prefix)
    }

    /// Iterates over all keys of a family as of the snapshot. See [`Read::iter`].
    pub fn iter(&self, family: &ColumnFamily) -> Entries {
        Read::iter(&self.of(family))
    }

    /// The entry with the first key of a family at the snapshot. See [`Read::first`].
    ///
    /// # Errors
    /// As [`Read::get`].
    pub fn first(&self, family: &ColumnFamily) -> Result<Option<Entry>> {
        Read::first(&self.of(family))
    }

    /// The entry with the last key of a family at the snapshot. See [`Read::last`].
    ///
    /// # Errors
    /// As [`Read::get`].
    pub fn last(&self, family: &ColumnFamily) -> Result<Option<Entry>> {
        Read::last(&self.of(family))
    }
}

impl SnapshotReader<'_> {
    /// Opens the value of a key for reading in pieces. See [`ColumnFamily::get_reader`].
    ///
    /// # Errors
    /// As [`Read::get`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.family.reader_as_of(key.as_ref(), Some(self.snapshot))
    }

    fn entries(&self, options: ReadOptions<'_>) -> Entries {
        let options = ReadOptions { snapshot: Some(self.snapshot), ..options };
        Entries::of_family(self.family.order(), self.family.cursor_with(options))
    }
}

/// A family as a transaction sees it; created by [`Transaction::of`].
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.transact(|txn| {
///     txn.put(db.default_family(), b"film", &[7; 100_000])?;
///     let within = txn.of(db.default_family());
///     assert_eq!(within.get_reader("film")?.map(|film| film.len()), Some(100_000));
///     Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TransactionReader<'a> {
    txn: RefCell<&'a mut Transaction>,
    family: &'a ColumnFamily,
}

impl Transaction {
    /// Reads a family as the transaction sees it, through [`Read`]. The transaction itself has the same methods, which take the
    /// family.
    pub fn of<'a>(&'a mut self, family: &'a ColumnFamily) -> TransactionReader<'a> {
        TransactionReader { txn: RefCell::new(self), family }
    }

    /// Iterates over a range of a family, including the transaction's own writes so far; its later writes do not
    /// show. The iterator does not borrow the transaction, and fails once it has ended. If it cannot begin, the error is its
    /// first item. See [`Read::range`].
    ///
    /// # Errors
    /// Items are errors as [`Transaction::get`] returns them.
    pub fn range(&mut self, family: &ColumnFamily, range: impl KeyRange) -> Entries {
        Entries::of_transaction(family.order(), self.cursor(family, range))
    }

    /// Iterates over the keys that begin with `prefix`. See [`Transaction::range`] and [`Read::prefix`].
    pub fn prefix(&mut self, family: &ColumnFamily, prefix: impl AsRef<[u8]>) -> Entries {
        let options = ReadOptions { prefix: Some(prefix.as_ref().to_vec()), ..ReadOptions::default() };
        Entries::of_transaction(family.order(), self.cursor_with(family, options))
    }

    /// Iterates over all keys of a family. See [`Transaction::range`].
    pub fn iter(&mut self, family: &ColumnFamily) -> Entries {
        self.range(family, ..)
    }

    /// The entry with the first key of a family.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn first(&mut self, family: &ColumnFamily) -> Result<Option<Entry>> {
        self.iter(family).next().transpose()
    }

    /// The entry with the last key of a family.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn last(&mut self, family: &ColumnFamily) -> Result<Option<Entry>> {
        self.iter(family).next_back().transpose()
    }
}

impl TransactionReader<'_> {
    /// Opens the value of a key for reading in pieces. See [`Transaction::get_reader`].
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        self.txn.try_borrow_mut().map_err(|_| in_use())?.get_reader(self.family, key.as_ref())
    }
}

impl std::fmt::Debug for TransactionReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TransactionReader({:?})", self.family)
    }
}

impl Read for SnapshotReader<'_> {
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.family.get_as_of(key.as_ref(), Some(self.snapshot))
    }

    fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.family.contains_as_of(key.as_ref(), Some(self.snapshot))
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        self.family.multi_get_as_of(keys, Some(self.snapshot))
    }

    fn range(&self, range: impl KeyRange) -> Entries {
        let (lower, upper) = crate::api::range::owned_bounds(&range);
        self.entries(ReadOptions { lower, upper, ..ReadOptions::default() })
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries {
        self.entries(ReadOptions { prefix: Some(prefix.as_ref().to_vec()), ..ReadOptions::default() })
    }
}

impl Read for TransactionReader<'_> {
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.txn.try_borrow_mut().map_err(|_| in_use())?.get(self.family, key.as_ref())
    }

    fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.txn.try_borrow_mut().map_err(|_| in_use())?.contains_key(self.family, key.as_ref())
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        match self.txn.try_borrow_mut() {
            Ok(mut txn) => txn.multi_get(self.family, keys),
            Err(_) => keys.iter().map(|_| Err(in_use())).collect(),
        }
    }

    fn range(&self, range: impl KeyRange) -> Entries {
        let cursor = self.txn.try_borrow_mut().map_err(|_| in_use());
        Entries::of_transaction(self.family.order(), cursor.and_then(|mut txn| txn.cursor(self.family, range)))
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries {
        let options = ReadOptions { prefix: Some(prefix.as_ref().to_vec()), ..ReadOptions::default() };
        let cursor = self.txn.try_borrow_mut().map_err(|_| in_use());
        Entries::of_transaction(self.family.order(), cursor.and_then(|mut txn| txn.cursor_with(self.family, options)))
    }
}

/// For a key whose `as_ref`, or a key order whose comparison, reads through the reader that is asking it.
#[cold]
fn in_use() -> Error {
    Error::invalid("another read of the transaction is in progress")
}

impl Read for ColumnFamily {
    #[inline]
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        ColumnFamily::get(self, key)
    }

    fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_as_of(key.as_ref(), None)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        self.multi_get_as_of(keys, None)
    }

    fn range(&self, range: impl KeyRange) -> Entries {
        Entries::of_family(self.order(), self.cursor(range))
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries {
        let options = ReadOptions { prefix: Some(prefix.as_ref().to_vec()), ..ReadOptions::default() };
        Entries::of_family(self.order(), self.cursor_with(options))
    }
}

impl Read for Db {
    #[inline]
    fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.default_family().get(key)
    }

    fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.default_family().contains_key(key)
    }

    fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        self.default_family().multi_get(keys)
    }

    fn range(&self, range: impl KeyRange) -> Entries {
        self.default_family().range(range)
    }

    fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries {
        self.default_family().prefix(prefix)
    }
}

/// The verbs of [`Read`] as methods of the type, so that callers need not import the trait.
macro_rules! read_verbs {
    ($type:ty) => {
        impl $type {
            /// Returns whether a key has a value. See [`Read::contains_key`].
            ///
            /// # Errors
            /// As [`Read::get`].
            pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
                Read::contains_key(self, key)
            }

            /// Reads several keys as of one moment. See [`Read::multi_get`].
            pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
                Read::multi_get(self, keys)
            }

            /// Iterates over a range of keys, as of now, from either end. See [`Read::range`].
            pub fn range(&self, range: impl KeyRange) -> Entries {
                Read::range(self, range)
            }

            /// Iterates over the keys that begin with `prefix`. See [`Read::prefix`].
            pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Entries {
                Read::prefix(self, prefix)
            }

            /// Iterates over all keys. See [`Read::iter`].
            pub fn iter(&self) -> Entries {
                Read::iter(self)
            }

            /// The entry with the first key. See [`Read::first`].
            ///
            /// # Errors
            /// As [`Read::get`].
            pub fn first(&self) -> Result<Option<Entry>> {
                Read::first(self)
            }

            /// The entry with the last key. See [`Read::last`].
            ///
            /// # Errors
            /// As [`Read::get`].
            pub fn last(&self) -> Result<Option<Entry>> {
                Read::last(self)
            }
        }
    };
}

read_verbs!(ColumnFamily);
read_verbs!(Db);
read_verbs!(SnapshotReader<'_>);
read_verbs!(TransactionReader<'_>);

macro_rules! read_get {
    ($type:ty) => {
        impl $type {
            /// Reads a key. See [`Read::get`].
            ///
            /// # Errors
            /// As [`Read::get`].
            #[inline]
            pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
                Read::get(self, key)
            }
        }
    };
}

read_get!(SnapshotReader<'_>);
read_get!(TransactionReader<'_>);
