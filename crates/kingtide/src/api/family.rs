//! A column family as its users hold it.

use crate::commit::batch::WriteBatch;
use crate::commit::hook::CommitHook;
use crate::engine::DbInner;
use crate::family::Family;
use crate::options::{ReadOptions, WriteOptions};
use crate::read::{self, DbIterator, IterConfig, PinnedValue, ValueReader};
use crate::snapshot::Snapshot;
use crate::sync::atomic::Ordering;
use crate::version::FamilyId;
use kingtide_base::options::FamilyOptions;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// A handle to a column family. Cheap to clone. It does not keep the database open: after the last [`crate::Db`] went, the
/// database was closed, or the family was dropped, operations return [`ErrorKind::Closed`].
#[derive(Clone)]
pub struct ColumnFamily {
    pub(crate) db: Arc<DbInner>,
    family: Arc<Family>,
}

impl ColumnFamily {
    pub(crate) fn new(db: Arc<DbInner>, family: Arc<Family>) -> ColumnFamily {
        ColumnFamily { db, family }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Family> {
        &self.family
    }

    /// The family's name now.
    pub fn name(&self) -> String {
        self.family.name()
    }

    /// Its number, by which locks and changes name it. Never used for another family.
    pub fn id(&self) -> FamilyId {
        self.family.id()
    }

    /// The order of its keys.
    pub fn order(&self) -> &KeyOrder {
        self.family.order()
    }

    /// Its options now.
    pub fn options(&self) -> FamilyOptions {
        (*self.family.options()).clone()
    }
}

impl std::fmt::Debug for ColumnFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ColumnFamily('{}')", self.name())
    }
}

// Single operations reuse one batch per thread: no allocation on the write path.
crate::sync::thread_local! {
    static ONE: std::cell::RefCell<WriteBatch> = std::cell::RefCell::new(WriteBatch::new());
}

impl ColumnFamily {
    fn one(&self, fill: impl FnOnce(&mut WriteBatch) -> Result<()>) -> Result<()> {
        ONE.with(|batch| match batch.try_borrow_mut() {
            Ok(mut batch) => {
                let result = self.commit_one(&mut batch, fill);
                batch.reset(1 << 20);
                result
            }
            // A commit hook writes: this thread is in the midst of another commit.
            Err(_) => self.commit_one(&mut WriteBatch::new(), fill),
        })
    }

    fn commit_one(&self, batch: &mut WriteBatch, fill: impl FnOnce(&mut WriteBatch) -> Result<()>) -> Result<()> {
        fill(batch).and_then(|()| self.db.write(batch, &WriteOptions::default()).map(|_| ()))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key, otherwise as [`crate::Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.one(|b| b.put(self, key.as_ref(), value.as_ref()))
    }

    /// Sets a key that is invisible once `ttl` has passed.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn put_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        self.one(|b| b.put_ttl(self, key.as_ref(), value.as_ref(), ttl))
    }

    /// Deletes a key. Deleting an absent key is not an error.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.one(|b| b.delete(self, key.as_ref()))
    }

    /// Deletes a key that was put exactly once since its last delete; cheaper to reclaim. On a key put more than once an
    /// older value may come back.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn single_delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.one(|b| b.single_delete(self, key.as_ref()))
    }

    /// Deletes all keys in `[start, end)` of the family's order.
    ///
    /// # Errors
    /// `InvalidArgument` when `start` sorts after `end` or a bound is empty; otherwise as [`ColumnFamily::put`].
    pub fn delete_range(&self, start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> Result<()> {
        self.one(|b| b.delete_range(self, start.as_ref(), end.as_ref()))
    }

    /// Sequence number that a read sees up to. The view must have been loaded before: see [`DbInner::commit`].
    #[inline]
    fn read_seq(&self, snapshot: Option<&Snapshot>) -> Result<SeqNo> {
        self.db.check_open()?;
        if self.inner().is_dropped() {
            self.inner().check_alive()?;
        }
        match snapshot {
            None => Ok(self.db.snapshots.visible()),
            Some(s) if s.belongs_to(&self.db.snapshots) => {
                // Acquire, after the view was loaded: pairs with the Release before views are exchanged.
                let floor = self.db.read_floor.load(Ordering::Acquire);
                if s.sequence() < floor { Err(Self::overtaken(s.sequence(), floor)) } else { Ok(s.sequence()) }
            }
            Some(_) => Err(Error::invalid("the snapshot belongs to another database")),
        }
    }

    /// Reads a key. The value is handed out without a copy where it lies in the block cache.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`, `Closed`.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::get(&view, key.as_ref(), seq, &self.inner().reads)
    }

    /// Reads a key as of a snapshot.
    ///
    /// # Errors
    /// As [`ColumnFamily::get`]; `InvalidArgument` for a snapshot of another database.
    pub fn get_at(&self, key: impl AsRef<[u8]>, snapshot: &Snapshot) -> Result<Option<PinnedValue>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(Some(snapshot))?;
        read::get(&view, key.as_ref(), seq, &self.inner().reads)
    }

    /// Reads a key into a buffer that is reused; false when the key is absent (the buffer is then empty).
    ///
    /// # Errors
    /// As [`ColumnFamily::get`].
    #[inline]
    pub fn get_into(&self, key: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Result<bool> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::get_into(&view, key.as_ref(), seq, &self.inner().reads, out)
    }

    /// Opens the value of a key to be read in pieces, from anywhere in it, in bounded memory: a reader holds one chunk of a
    /// value that lies in a value log (option `value_chunk_size`), and nothing of one that lies in a memtable. `None` when
    /// the key is absent. Costs what [`ColumnFamily::get`] costs without the reading of the value.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::{Read, Seek, SeekFrom};
    /// # let db = Db::open("db", Options { fs: Some(MemFs::shared()), ..Options::default() })?;
    /// let family = db.default_family();
    /// family.put(b"film", vec![7; 5_000_000])?;
    /// let mut film = family.get_reader(b"film")?.expect("it was put");
    /// film.seek(SeekFrom::End(-3))?;
    /// let mut end = Vec::new();
    /// film.read_to_end(&mut end)?;
    /// assert_eq!((film.len(), end), (5_000_000, vec![7; 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::get`].
    pub fn get_reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::open_value(&view, key.as_ref(), seq, &self.inner().reads)
    }

    /// The same as of a snapshot.
    ///
    /// # Errors
    /// As [`ColumnFamily::get_at`].
    pub fn get_reader_at(&self, key: impl AsRef<[u8]>, snapshot: &Snapshot) -> Result<Option<ValueReader>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(Some(snapshot))?;
        read::open_value(&view, key.as_ref(), seq, &self.inner().reads)
    }

    /// Reads several keys as of one moment, sharing the work that they have in common. Results are in the order of the
    /// keys, each with an error of its own.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        match self.inner().look(|v| v.load(), || self.read_seq(None)) {
            Ok((view, seq)) => read::multi_get(&view, keys, seq, &self.inner().reads),
            Err(e) => keys.iter().map(|_| Err(e.duplicate())).collect(),
        }
    }

    /// Iterates as the options say. See [`ColumnFamily::iter`].
    ///
    /// # Errors
    /// As [`ColumnFamily::iter`]; `InvalidArgument` for a snapshot of another database.
    pub fn iter_with(&self, options: ReadOptions<'_>) -> Result<DbIterator> {
        let (view, snapshot) = self.inner().look(|v| v.load_full(), || self.read_seq(options.snapshot))?;
        let config = IterConfig {
            snapshot,
            lower: options.lower,
            upper: options.upper,
            prefix: options.prefix,
            fill_cache: options.fill_cache,
            readahead: options.readahead,
        };
        DbIterator::new(view, self.inner().reads.clone(), config, None)
    }

    /// Moves an open iterator to what is visible now, keeping its bounds; it must be positioned anew. Cheaper than a new
    /// one when nothing was flushed or merged in between.
    ///
    /// # Errors
    /// As [`ColumnFamily::iter`]; `InvalidArgument` for an iterator of another family.
    pub fn refresh(&self, iterator: &mut DbIterator) -> Result<()> {
        if !iterator.is_of(&self.inner().reads) {
            return Err(Error::invalid("the iterator belongs to another column family"));
        }
        let (view, seq) = self.inner().look(|v| v.load_full(), || self.read_seq(None))?;
        iterator.refresh(view, seq, None)
    }

    /// Flushes the family's memtables to tables and waits for it.
    ///
    /// # Errors
    /// What kept the flush from succeeding.
    pub fn flush(&self) -> Result<()> {
        self.db.flush_families(&[self.inner().clone()])
    }

    /// Compacts all tables that meet `[lo, hi]` into the deepest level and waits for it: afterwards the range is one sorted
    /// run without tombstones or hidden versions that no snapshot needs, and value logs that only tables of the range
    /// refer to have less than a twentieth of dead bytes. `None` is an open end. Memtables are flushed first. Costs as many
    /// writes as the range has bytes in levels above the deepest one, in tables that hold what is to go, and in value logs
    /// that are to be emptied; nothing when nothing is to be gained.
    ///
    /// # Errors
    /// What kept the merge from succeeding.
    pub fn compact_range(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Result<()> {
        self.db.compact_range(self.inner(), lo, hi)
    }

    /// Changes options of the family while it is open, by name; only those marked live in the option table. The change
    /// is stored.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown, fixed, or out-of-range option; `Io`, `NoSpace`.
    pub fn set_option(&self, name: &str, value: &str) -> Result<()> {
        self.db.set_family_option(self.inner(), name, value)
    }

    /// Iterates over a range of keys as of now. The iterator owns what it reads: it outlives this handle, and flushes
    /// and merges do not disturb it.
    ///
    /// # Errors
    /// `Closed`, or what kept a table from being opened.
    pub fn iter<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<DbIterator> {
        let (lower, upper) = owned_bounds(&range);
        self.iter_with(ReadOptions { lower, upper, ..ReadOptions::default() })
    }

    /// Sets the callback that is told of every commit to this family, or removes it. It holds from the next commit on,
    /// until it is replaced, the family is dropped, or the database closes.
    ///
    /// The hook is called once for each commit that touches the family: in commit order, over all threads; after the
    /// commit is visible and, if it was a transaction's, over, its locks given up; and before the commit call
    /// returns to its caller. Durability may come later: the commit call waits for the hook first, and then for the disk
    /// if it was asked to. So a hook may be told of a commit that a power cut undoes. Commits found in the log at an open
    /// are not told of again; [`crate::Db::changes_since`] reads those.
    ///
    /// One hook runs at a time. A commit made inside a hook returns before the hooks for it run: they run after this one,
    /// in their turn. A hook that waits for another thread's commit to a family with a hook waits for ever. A hook that
    /// owns a `Db` keeps the database from closing by itself: remove the hook or call [`crate::Db::close`].
    ///
    /// A hook that panics harms nothing: the panic is caught, counted in the statistic `commit_hook_panics`, and the hook
    /// stays set.
    ///
    /// While no family has a hook, a commit pays one relaxed load. A commit to a family with a hook pays a copy of its
    /// batch under the commit lock.
    pub fn set_commit_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        let former = {
            let _order = self.db.commit.lock(); // so that it is clear which commits come before
            if self.db.check_open().is_err() { hook } else { self.db.hooks.set(self.inner().id(), hook) }
        };
        drop(former);
    }

    /// The error for a snapshot that was taken before the last catch-up, whose versions merges may have dropped.
    #[cold]
    pub(crate) fn overtaken(seq: SeqNo, floor: SeqNo) -> Error {
        let text = format!("the snapshot of sequence number {seq} was taken before the database caught up to {floor}");
        Error::new(ErrorKind::TooOld, text)
    }

    /// Has the space given back soon, in the background, of what was deleted in the range from `lo` up to, not including, `hi`
    /// with [`ColumnFamily::delete_range`] or the like. It waits for nothing but an estimate of how much that is. Snapshots
    /// see what they saw: the space is given back when they are gone. After a restart it is left to merges.
    ///
    /// # Errors
    /// `Closed`, `ReadOnly`; `Corruption` and `Io` from opening a table.
    pub fn reclaim_range(&self, lo: &[u8], hi: &[u8]) -> Result<()> {
        self.db.check_writable()?;
        self.inner().check_alive()?;
        self.db.remember_to_reclaim(self.inner(), lo, hi)
    }
}

/// The bounds of a range as owned keys.
pub(crate) fn owned_bounds<'k>(range: &impl RangeBounds<&'k [u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let own = |b: Bound<&&[u8]>| b.map(|k| k.to_vec());
    (own(range.start_bound()), own(range.end_bound()))
}
