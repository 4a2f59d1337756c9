//! The database as its users hold it.

use crate::api::{ColumnFamily, KeyRange};
use crate::commit::batch::WriteBatch;
use crate::engine::DbInner;
use crate::family::{Family, check_name};
use crate::jobs::Outcome;
use crate::open;
use crate::options::{Options, WriteOptions, check_order};
use crate::read::{Cursor, PinnedValue};
use crate::report::StatsReport;
use crate::snapshot::Snapshot;
use kingtide_base::histogram::{Histogram, HistogramSnapshot};
use kingtide_base::options::FamilyOptions;
use kingtide_base::slow::SlowOperation;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo};
use std::borrow::BorrowMut;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An open database. Clones share it; it closes when the last one is dropped, or on [`Db::close`].
///
/// Only the process that opened it can use it. A child that inherited it through `fork()` gets `Closed` from every call
/// that can fail, including [`Db::close`], and empty results from those that cannot fail, such as [`Db::families`]; dropping it
/// there does nothing, and does not touch the parent's lock. Iterators, snapshots and transactions that were inherited may be
/// dropped, but cannot be used. A child that needs the database opens it once the parent has closed it, or uses
/// [`Db::open_read_only`] while the parent has it open.
///
/// ```
/// use kingtide::{Db, Options};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// let db = Db::open(&dir, Options::default())?;
/// db.put(b"tide", b"rising")?;
/// assert_eq!(db.get(b"tide")?.as_deref(), Some(&b"rising"[..]));
///
/// for entry in db.range("t"..) {
///     let entry = entry?;
///     println!("{:?} = {:?}", entry.key, entry.value);
/// }
/// db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), kingtide::Error>(())
/// ```
#[derive(Clone)]
pub struct Db {
    handle: Arc<Handle>,
}

/// Closes the database when the last [`Db`] goes.
struct Handle {
    inner: Arc<DbInner>,
    default: ColumnFamily,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.inner.check_origin().is_err() {
            // A forked child leaves everything as it is. The database is never taken apart here, for its parts would wait
            // for locks and clean up files that are the parent's.
            std::mem::forget(self.inner.clone());
            return;
        }
        // A failure here cannot be returned; what was acknowledged is in the log. `Db::close` reports it.
        let _ = open::close_for_last_handle(&self.inner);
    }
}

impl Db {
    /// Opens the database in directory `path`, creating it unless [`Options`] say otherwise. Returns when recovery is
    /// complete. Only the last component of `path` is created; the directory above it must exist.
    ///
    /// The open succeeds even if a table is damaged or missing; the reads that need the table fail. [`Db::verify`] checks all tables.
    ///
    /// # Errors
    /// `Locked` if it is open elsewhere; `NotFound`, `Exists` depending on the options; `NotFound` if the directory above
    /// does not exist; `InvalidArgument` for options out of range; `Incompatible` for a key order other than the stored one;
    /// `NewerFormat`; `Corruption` of the manifest or the log, with file and offset; `Io`, `NoSpace`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let (inner, default) = open::open(path.as_ref(), options)?;
        Ok(Db::new(inner, default))
    }

    pub(crate) fn new(inner: Arc<DbInner>, default: Arc<Family>) -> Db {
        let default = ColumnFamily::new(inner.clone(), default);
        Db { handle: Arc::new(Handle { inner, default }) }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<DbInner> {
        &self.handle.inner
    }

    /// Closes the database: flushes memtables, cancels running compactions (when the memtables are flushed, at the latest after
    /// `close_timeout_ms`), and releases the directory's lock. Calls on its other handles then return `Closed`.
    ///
    /// # Errors
    /// The reason why memtables could not be flushed. Acknowledged commits are nevertheless safe in the log, within their
    /// durability.
    pub fn close(&self) -> Result<()> {
        open::close(self.inner())
    }

    /// The default family, named `default`. Methods of [`Db`] itself use this family.
    #[inline]
    pub fn default_family(&self) -> &ColumnFamily {
        &self.handle.default
    }

    /// Sets a key. See [`ColumnFamily::put`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.handle.default.put(key, value)
    }

    /// Sets a key for a time. See [`ColumnFamily::put_ttl`].
    pub fn put_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<SeqNo> {
        self.handle.default.put_ttl(key, value, ttl)
    }

    /// Reads a key. See [`ColumnFamily::get`].
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        self.handle.default.get(key)
    }

    /// Deletes a key. See [`ColumnFamily::delete`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.handle.default.delete(key)
    }

    /// Deletes a key that was put once. See [`ColumnFamily::single_delete`].
    pub fn single_delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.handle.default.single_delete(key)
    }

    /// Deletes all keys in a range. See [`ColumnFamily::delete_range`].
    pub fn delete_range(&self, range: impl KeyRange) -> Result<SeqNo> {
        self.handle.default.delete_range(range)
    }

    /// A cursor over a range of the default family. See [`ColumnFamily::cursor`].
    pub fn cursor(&self, range: impl KeyRange) -> Result<Cursor> {
        self.handle.default.cursor(range)
    }

    /// Commits a batch atomically. Returns the sequence number of its last operation; 0 for an empty batch.
    ///
    /// Takes the batch, or a `&mut` to it. A borrowed batch keeps its operations; [`WriteBatch::clear`] empties it
    /// for reuse and keeps its memory.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::WriteBatch;
    ///
    /// let mut batch = WriteBatch::new();
    /// for day in 1..=3u8 {
    ///     batch.put(db.default_family(), &[day], b"low")?;
    ///     db.write(&mut batch)?;
    ///     batch.clear(); // keeps its memory
    /// }
    /// batch.delete(db.default_family(), &[1])?;
    /// let last = db.write(batch)?;
    /// assert_eq!(last, db.latest_sequence());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Closed`, `ReadOnly`, `NoSpace`, `Poisoned`, `Busy` as described in [`ErrorKind`]; `LockTimeout` if a transaction holds a lock
    /// on a key, or `Conflict` then if [`WriteOptions::no_wait`](WriteOptions#structfield.no_wait) is set. After any error, no part of the
    /// batch is visible or will be recovered, with two exceptions: a failed *sync* leaves it visible and of unknown durability, and a
    /// write to the log that the system reports as failed but has carried out may be recovered after a crash.
    /// After the disk was full, batches that add data get `NoSpace` until there is space again, and so do ingests, imports, clones
    /// and copies on the same disk. Batches that only delete are accepted, as far as the space that is kept for them on a nearly
    /// full disk allows.
    pub fn write(&self, mut batch: impl BorrowMut<WriteBatch>) -> Result<SeqNo> {
        self.inner().write(batch.borrow_mut(), &WriteOptions::DEFAULT)
    }

    /// Commits a batch with options. Takes the batch or a `&mut` to it, as [`Db::write`] does.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn write_with(&self, mut batch: impl BorrowMut<WriteBatch>, options: &WriteOptions) -> Result<SeqNo> {
        self.inner().write(batch.borrow_mut(), options)
    }

    /// A consistent view of all families as of now.
    pub fn snapshot(&self) -> Snapshot {
        self.inner().snapshots.acquire()
    }

    /// The newest visible sequence number.
    pub fn latest_sequence(&self) -> SeqNo {
        self.inner().snapshots.visible()
    }

    /// The family of that name.
    ///
    /// # Errors
    /// `NotFound`, `Closed`.
    pub fn family(&self, name: &str) -> Result<ColumnFamily> {
        self.inner().check_open()?;
        let found = self.inner().catalog.lock().by_name(name).cloned();
        match found {
            Some(f) => Ok(ColumnFamily::new(self.inner().clone(), f)),
            None => Err(Error::new(ErrorKind::NotFound, format!("no column family '{name}'"))),
        }
    }

    /// Creates a family with bytewise order.
    ///
    /// # Errors
    /// `Exists`, `InvalidArgument` (name, options), `Io`, `NoSpace`, `Closed`.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<ColumnFamily> {
        self.create_family_ordered(name, options, KeyOrder::Bytewise)
    }

    /// The family of that name, which is created with bytewise order and these options if it does not exist. The options of an
    /// existing family do not change.
    ///
    /// # Errors
    /// As [`Db::create_family`], except `Exists`.
    pub fn get_or_create_family(&self, name: &str, options: FamilyOptions) -> Result<ColumnFamily> {
        loop {
            match self.family(name) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
            match self.create_family(name, options.clone()) {
                Err(e) if e.kind() == ErrorKind::Exists => {} // by another thread, just now
                created => return created,
            }
        }
    }

    /// Creates a family with a key order of its own. The order's name is stored; every later open must pass a custom order in
    /// [`Options::custom_orders`].
    ///
    /// # Errors
    /// As [`Db::create_family`]; `InvalidArgument` for a custom order without a name, or with that of a built-in order.
    pub fn create_family_ordered(&self, name: &str, options: FamilyOptions, order: KeyOrder) -> Result<ColumnFamily> {
        check_name(name)?;
        options.validate()?;
        check_order(&order)?;
        let family = self.inner().create_family(name, options, order)?;
        Ok(ColumnFamily::new(self.inner().clone(), family))
    }

    /// Drops a family and everything in it. Calls on its handles that read or write then return `Closed`; open iterators can finish.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for the default family; `Io`, `NoSpace`, `Closed`.
    pub fn drop_family(&self, name: &str) -> Result<()> {
        self.inner().drop_family(name)
    }

    /// Renames a family.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidArgument` (the default family, a bad name), `Io`, `NoSpace`, `Closed`.
    pub fn rename_family(&self, old: &str, new: &str) -> Result<()> {
        check_name(new)?;
        self.inner().rename_family(old, new)
    }

    /// Names of all families, sorted. None in a forked child.
    pub fn families(&self) -> Vec<String> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        let mut names: Vec<String> = self.inner().catalog.lock().families.values().map(|f| f.name()).collect();
        names.sort();
        names
    }

    /// Flushes all memtables of all families to tables, and waits until that is done, but not for what is written meanwhile. If nothing is
    /// written meanwhile, the write-ahead log gives back its space, as it does after a second without writes.
    ///
    /// # Errors
    /// The reason why a flush failed; `InvalidArgument` in an [`EventListener`](crate::EventListener).
    pub fn flush(&self) -> Result<()> {
        self.inner().flush_all()
    }

    /// Compacts all families into their bottom levels, one after the other, as [`Db::flush`] flushes all of them. A family that is
    /// dropped meanwhile is skipped. If a family cannot be compacted, the others still are, and the first error is returned; once
    /// the database accepts no writes any more, the call ends at once. See [`ColumnFamily::compact_range`];
    /// [`ColumnFamily::compact`] compacts one family.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.create_family("draft", Default::default())?.put("a", "1")?;
    /// db.rename_family("draft", "final")?;
    /// for n in 0..1000u32 {
    ///     db.put(n.to_be_bytes(), [7; 100])?;
    /// }
    /// db.single_delete(0u32.to_be_bytes())?; // it was put once
    /// db.family("final")?.compact_range("a".."b")?;
    /// db.compact()?;
    /// db.wait_for_background()?;
    /// assert!(db.stats().families.iter().all(|f| f.levels.iter().map(|l| l.runs).sum::<usize>() <= 1));
    /// assert!(db.default_family().estimate_count()? <= 1000);
    /// let report = db.verify_with(&mut |_| true)?;
    /// assert!(report.is_clean() && !report.is_damaged());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.inner().check_open()?;
        let families: Vec<_> = self.inner().catalog.lock().families.values().cloned().collect();
        let mut outcome = Ok(());
        for family in families {
            // The others are compacted all the same, unless the database can no longer be written to.
            if let Err(e) = self.inner().compact_range(&family, None, None)
                && !family.is_dropped()
            {
                self.inner().check_writable()?;
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }

    /// Waits until no flush and no compaction is due or running. Compactions that otherwise start only once writers have been quiet for a
    /// tenth of a second start at once. If nothing was written meanwhile, the log then gives back the space that it keeps ready for writers.
    ///
    /// # Errors
    /// The background error that prevents them from finishing; `InvalidArgument` in an [`EventListener`](crate::EventListener).
    pub fn wait_for_background(&self) -> Result<()> {
        self.inner().wait_until_quiet()
    }

    /// Fsyncs the write-ahead log: everything committed so far survives a power cut (except `Durability::None` commits).
    ///
    /// # Errors
    /// `Poisoned`, `Io`, `Closed`.
    pub fn sync(&self) -> Result<()> {
        self.inner().check_writable()?;
        self.inner().wal.sync_all()
    }

    /// Changes database options while it is open, by name; only those marked live in the option table.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown, fixed, or out-of-range option.
    pub fn set_option(&self, name: &str, value: &str) -> Result<()> {
        self.inner().set_option(name, value)
    }

    /// All statistics. In a forked child they are empty, except that [`StatsReport::writes_stopped`] gives the reason.
    pub fn stats(&self) -> StatsReport {
        self.inner().report()
    }

    /// Returns how long operations of one kind took since the open, for all families together. The difference of two snapshots covers the
    /// time between them. Reads about 22 KB, and up to 22 KB more for each family that has histograms of its own. Empty if the
    /// option `histograms` is off.
    ///
    /// ```
    /// # use kingtide::{Db, Histogram, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let before = db.histogram(Histogram::Get);
    /// db.get(b"tide")?;
    /// let since = &db.histogram(Histogram::Get) - &before;
    /// assert_eq!(since.count(), 1);
    /// println!("99 % took at most {:?}, the longest {:?}", since.quantile(0.99), since.max());
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    pub fn histogram(&self, histogram: Histogram) -> HistogramSnapshot {
        self.inner().stats.histogram(histogram)
    }

    /// The last 128 operations that took at least as long as the option `slow_operation_threshold_us` says, oldest first, each with what it
    /// accessed and waited for. Only the length and the hash of a key are recorded. Steps of cursors are not included. None in a forked child.
    pub fn slow_operations(&self) -> Vec<SlowOperation> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().stats.slow_operations(0)
    }

    /// All statistics and histograms as Prometheus text. Empty in a forked child.
    pub fn prometheus(&self) -> String {
        self.inner().prometheus()
    }

    /// Fails in a forked child of the process that opened the database. Calls that cannot fail return empty results there.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.check_process()?; // this process opened it
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Closed`.
    pub fn check_process(&self) -> Result<()> {
        self.inner().check_origin()
    }

    /// Runs one background job on this thread, for databases opened with [`Options::manual_jobs`]. Returns false if there was
    /// nothing to do.
    ///
    /// # Errors
    /// The error of the job.
    pub fn run_one_job(&self) -> Result<bool> {
        self.inner().check_origin()?;
        match self.inner().jobs.run_one() {
            Outcome::Idle => Ok(false),
            Outcome::Ran => Ok(true),
            Outcome::Failed(e) => Err(e),
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db({})", self.inner().dir.display())
    }
}
