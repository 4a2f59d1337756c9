//! A column family as its users hold it.

use crate::api::range::{KeyRange, check_ends, owned_bounds};
use crate::commit::batch::WriteBatch;
use crate::commit::hook::CommitHook;
use crate::engine::DbInner;
use crate::family::Family;
use crate::options::{ReadOptions, WriteOptions};
use crate::read::{self, Cursor, CursorConfig, PinnedValue, ValueReader};
use crate::snapshot::Snapshot;
use kingtide_base::histogram::{Histogram, HistogramSnapshot};
use kingtide_base::options::FamilyOptions;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, SeqNo};
use std::cell::{RefCell, RefMut};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Duration;

/// A handle to a column family. Cheap to clone. It does not keep the database open: after the last [`crate::Db`] was dropped, the
/// database was closed, or the family was dropped, operations return [`ErrorKind::Closed`].
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// use kingtide::Read;
/// use std::time::Duration;
///
/// let sessions = db.create_family("sessions", Default::default())?;
/// sessions.put("ann", "1f3a")?;
/// sessions.put_ttl("ben", "77c0", Duration::from_secs(3600))?; // gone after an hour
/// assert!(sessions.contains_key("ben")?);
/// assert_eq!(db.get("ann")?, None, "families are separate key spaces");
/// let mut value = Vec::new();
/// assert!(sessions.get_into("ann", &mut value)? && value == b"1f3a", "a read into memory of the caller's");
/// sessions.delete("ben")?;
/// sessions.delete_range("a".."b")?;
/// assert!(sessions.iter().next().is_none());
/// assert_eq!((sessions.name(), db.families().len()), ("sessions".to_string(), 2));
/// assert_ne!(sessions.id(), db.default_family().id());
///
/// sessions.set_option("ttl_ms", "60000")?; // of entries that are written from now on
/// sessions.put("carl/1", "08ee")?;
/// sessions.put("carl/2", "5d10")?;
/// sessions.flush()?;
/// sessions.single_delete("carl/1")?; // it was put once
/// let mut cursor = sessions.cursor("carl/"..)?;
/// cursor.seek_to_first();
/// assert_eq!(cursor.key(), b"carl/2");
/// sessions.delete_prefix("carl/")?;
/// assert!(sessions.iter().next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// The family's current name.
    pub fn name(&self) -> String {
        self.family.name()
    }

    /// Its number, which identifies it in lists of locks and changes. Never reused for another family.
    pub fn id(&self) -> FamilyId {
        self.family.id()
    }

    /// Its key order.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// assert_eq!(db.default_family().order().name(), "bytewise");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn order(&self) -> &KeyOrder {
        self.family.order()
    }

    /// Its current options.
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
crate::threads::thread_local! {
    static ONE: RefCell<WriteBatch> = RefCell::new(WriteBatch::new());
}

/// The thread's batch in use. Emptied in any case: a key order or file system may panic, and the next put must not commit what is left.
struct One<'a>(RefMut<'a, WriteBatch>);

impl Drop for One<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.reset(1 << 20);
    }
}

impl ColumnFamily {
    fn one(&self, fill: impl FnOnce(&mut WriteBatch) -> Result<()>) -> Result<SeqNo> {
        ONE.with(|batch| match batch.try_borrow_mut() {
            Ok(batch) => self.commit_one(&mut One(batch).0, fill),
            // A commit hook writes: this thread is in the midst of another commit.
            Err(_) => self.commit_one(&mut WriteBatch::new(), fill),
        })
    }

    fn commit_one(&self, batch: &mut WriteBatch, fill: impl FnOnce(&mut WriteBatch) -> Result<()>) -> Result<SeqNo> {
        fill(batch).and_then(|()| self.db.write(batch, &WriteOptions::DEFAULT))
    }

    /// Sets a key. Returns the sequence number of the write, as [`crate::Db::write`] does; [`crate::Db::snapshot_at`] reads as of it.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let low = db.put("tide", "low")?;
    /// let high = db.put("tide", "high")?;
    /// assert!(high > low && high == db.latest_sequence());
    /// let then = db.snapshot_at(low)?;
    /// assert_eq!(then.of(db.default_family()).get("tide")?.as_deref(), Some(&b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key, otherwise as [`crate::Db::write`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<SeqNo> {
        let (key, value) = (key.as_ref(), value.as_ref());
        if value.len() as u64 >= self.inner().direct_from()
            && let Some(seq) = self.put_large(key, self.inner().default_expiry(), value)?
        {
            return Ok(seq);
        }
        self.one(|b| b.put(self, key, value))
    }

    /// `None`: the value is to be put as all values are.
    #[cold]
    fn put_large(&self, key: &[u8], expiry: Option<u64>, value: &[u8]) -> Result<Option<SeqNo>> {
        self.db.put_uncopied(self.inner(), (key, expiry), value)
    }

    /// Sets a key that expires after `ttl`.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn put_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<SeqNo> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let large = value.len() as u64 >= self.inner().direct_from();
        if large && let Some(seq) = self.put_large(key, Some(self.inner().expiry_after(ttl)), value)? {
            return Ok(seq);
        }
        self.one(|b| b.put_ttl(self, key, value, ttl))
    }

    /// Deletes a key. Deleting an absent key is not an error.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.one(|b| b.delete(self, key.as_ref()))
    }

    /// Deletes a key that was put exactly once since its last delete; cheaper to reclaim. If the key was put more than once, an
    /// older value may reappear. That includes a crash that took a delete with [`Durability::None`](crate::Durability::None) and left
    /// the puts around it.
    ///
    /// # Errors
    /// As [`ColumnFamily::put`].
    pub fn single_delete(&self, key: impl AsRef<[u8]>) -> Result<SeqNo> {
        self.one(|b| b.single_delete(self, key.as_ref()))
    }

    /// Deletes all keys in a range of the family's order. See [`WriteBatch::delete_range`]. Returns the write's sequence number; 0 for
    /// an empty range, in which case nothing is written.
    ///
    /// # Errors
    /// As [`WriteBatch::delete_range`] and [`ColumnFamily::put`].
    pub fn delete_range(&self, range: impl KeyRange) -> Result<SeqNo> {
        self.one(|b| b.delete_range(self, range))
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

    /// Reads a key. A value in the block cache is returned without a copy.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`, `Closed`.
    #[inline]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<PinnedValue>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::get(&view, key.as_ref(), seq, &self.inner().reads)
    }

    /// Returns the result of [`ColumnFamily::get`] if no file must be read for it; `None` otherwise.
    #[cfg(feature = "tokio")]
    pub(crate) fn get_in_memory(&self, key: &[u8]) -> Result<Option<Option<PinnedValue>>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::get_in_memory(&view, key, seq, &self.inner().reads)
    }

    pub(super) fn get_as_of(&self, key: &[u8], snapshot: Option<&Snapshot>) -> Result<Option<PinnedValue>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(snapshot)?;
        read::get(&view, key, seq, &self.inner().reads)
    }

    pub(super) fn contains_as_of(&self, key: &[u8], snapshot: Option<&Snapshot>) -> Result<bool> {
        let view = self.inner().view.load();
        let seq = self.read_seq(snapshot)?;
        read::contains(&view, key, seq, &self.inner().reads)
    }

    /// Reads a key into a reusable buffer. Returns false if the key is absent (the buffer is then empty).
    ///
    /// # Errors
    /// As [`ColumnFamily::get`].
    #[inline]
    pub fn get_into(&self, key: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Result<bool> {
        let view = self.inner().view.load();
        let seq = self.read_seq(None)?;
        read::get_into(&view, key.as_ref(), seq, &self.inner().reads, out)
    }

    /// Opens the value of a key for reading in pieces, from any position, in bounded memory: a reader holds one chunk of a
    /// value in a value log (option `value_chunk_size`), and nothing of a value in a memtable. `None` if
    /// the key is absent. Costs as much as [`ColumnFamily::get`] without reading the value.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::{Read, Seek, SeekFrom};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
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
        self.reader_as_of(key.as_ref(), None)
    }

    /// Reads a range of the bytes of a key's value, as far as they exist; `None` if the key is absent. For a value in a value log,
    /// only the chunks with these bytes are read, so memory is bounded by the range and one chunk.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let films = db.default_family();
    /// films.put("film", vec![7; 5_000_000])?;
    /// assert_eq!(films.get_range("film", 1_000_000..1_000_004)?, Some(vec![7; 4]));
    /// assert_eq!(films.get_range("film", 4_999_999..9_000_000)?, Some(vec![7]));
    /// assert_eq!(films.get_range("absent", 0..1)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::get`].
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        self.get_reader(key)?.map(|mut reader| reader.read_range(range)).transpose()
    }

    pub(super) fn reader_as_of(&self, key: &[u8], snapshot: Option<&Snapshot>) -> Result<Option<ValueReader>> {
        let view = self.inner().view.load();
        let seq = self.read_seq(snapshot)?;
        read::open_value(&view, key, seq, &self.inner().reads)
    }

    pub(super) fn multi_get_as_of<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        snapshot: Option<&Snapshot>,
    ) -> Vec<Result<Option<PinnedValue>>> {
        match self.inner().acquire_view(|v| v.load(), || self.read_seq(snapshot)) {
            Ok((view, seq)) => read::multi_get(&view, keys, seq, &self.inner().reads),
            Err(e) => keys.iter().map(|_| Err(e.clone())).collect(),
        }
    }

    /// A cursor with options. See [`ColumnFamily::cursor`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::ReadOptions;
    ///
    /// let before = db.snapshot();
    /// db.put("ebb", "low")?;
    /// db.default_family().put_ttl("eddy", "short", std::time::Duration::from_secs(60))?;
    /// let mut cursor = db.default_family().cursor_with(ReadOptions::new().prefix(b"e".to_vec()))?;
    /// cursor.seek_to_first();
    /// assert_eq!(cursor.entry()?, (&b"ebb"[..], &b"low"[..]));
    /// assert_eq!(cursor.expires_at(), None);
    /// cursor.next();
    /// assert!(cursor.expires_at().is_some());
    /// let mut then = db.default_family().cursor_with(ReadOptions::new().snapshot(&before))?;
    /// then.seek_to_first();
    /// assert!(!then.valid());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::cursor`]; `InvalidArgument` for a snapshot of another database.
    pub fn cursor_with(&self, options: ReadOptions<'_>) -> Result<Cursor> {
        let (view, snapshot) = self.inner().acquire_view(|v| v.load_full(), || self.read_seq(options.snapshot))?;
        let config = CursorConfig {
            snapshot,
            lower: options.lower,
            upper: options.upper,
            prefix: options.prefix,
            fill_cache: options.fill_cache,
            readahead: options.readahead,
        };
        Cursor::new(view, self.inner().reads.clone(), config, None)
    }

    /// Moves an open cursor to the current state, keeping its bounds; it must be positioned again. Cheaper than a new
    /// one if nothing was flushed or compacted in between.
    ///
    /// # Errors
    /// As [`ColumnFamily::cursor`]; `InvalidArgument` for a cursor of another family.
    pub fn refresh(&self, cursor: &mut Cursor) -> Result<()> {
        if !cursor.is_of(&self.inner().reads) {
            return Err(Error::invalid("the cursor belongs to another column family"));
        }
        let (view, seq) = self.inner().acquire_view(|v| v.load_full(), || self.read_seq(None))?;
        cursor.refresh(view, seq, None)
    }

    /// Flushes the family's memtables to tables, and waits until that is done or the family is dropped, but not for what is written meanwhile.
    ///
    /// # Errors
    /// `Closed`; the reason why the flush failed; `InvalidArgument` in an [`EventListener`](crate::EventListener).
    pub fn flush(&self) -> Result<()> {
        self.inner().check_alive()?;
        self.db.flush_families(&[self.inner().clone()])
    }

    /// Compacts the entire family into its bottom level. See [`ColumnFamily::compact_range`]; [`crate::Db::compact`] compacts all
    /// families.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.default_family().put("ebb", "low")?;
    /// db.default_family().compact()?;
    /// assert_eq!(db.stats().families[0].levels.iter().map(|l| l.runs).sum::<usize>(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::compact_range`].
    pub fn compact(&self) -> Result<()> {
        self.compact_range(..)
    }

    /// Compacts all tables that overlap a range into the deepest level and waits for it: afterwards the range is one sorted run without
    /// tombstones or hidden versions that no snapshot needs, and value logs that only tables of the range refer to have less than a twentieth of
    /// dead bytes (unless the option `vlog_dead_ratio` is 1). Memtables are flushed first. Entries that are written meanwhile may remain in
    /// levels above. The keys at the ends belong to the range, even if excluded. Cost: writes as many bytes as the range has in levels above the
    /// deepest one, in tables with entries to be dropped, and in value logs to be emptied; nothing if there is nothing to gain.
    ///
    /// # Errors
    /// The reason why the compaction failed; `InvalidArgument` when the start sorts after the end, and in an
    /// [`EventListener`](crate::EventListener).
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        check_ends("compact_range", self.order(), &range)?;
        self.db.compact_range(self.inner(), key_of(range.lower()), key_of(range.upper()))
    }

    /// Changes options of the family while it is open, by name; only those marked live in the option table. The change
    /// is stored.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown, fixed, or out-of-range option; `Io`, `NoSpace`.
    pub fn set_option(&self, name: &str, value: &str) -> Result<()> {
        self.db.set_family_option(self.inner(), name, value)
    }

    /// Returns how long operations of one kind took in this family since the open. The difference of two snapshots covers the time
    /// between them. Reads at most 22 KB.
    ///
    /// Families have histograms of gets, multi-gets, seeks, steps, writes, flushes and compactions. Batches over several families, and
    /// transactions, are counted only in [`crate::Db::histogram`]. Empty for other kinds, if the option `histograms` is off, and if as many
    /// families as the option `family_histograms` allows were used before this one.
    ///
    /// ```
    /// # use kingtide::{Db, Histogram, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let boats = db.create_family("boats", Default::default())?;
    /// boats.get("skiff")?;
    /// db.get("tide")?;
    /// assert_eq!(boats.histogram(Histogram::Get).count(), 1);
    /// assert_eq!(db.histogram(Histogram::Get).count(), 2);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    pub fn histogram(&self, histogram: Histogram) -> HistogramSnapshot {
        match self.db.check_origin() {
            Ok(()) => self.inner().histograms().snapshot(histogram),
            Err(_) => HistogramSnapshot::default(),
        }
    }

    /// A cursor over a range of keys as of now. It owns the data that it reads: it may outlive this handle, and flushes and compactions
    /// do not affect it. [`ColumnFamily::range`] returns a Rust iterator, which copies entries.
    ///
    /// # Errors
    /// `Closed`, or the reason why a table could not be opened.
    pub fn cursor(&self, range: impl KeyRange) -> Result<Cursor> {
        let (lower, upper) = owned_bounds(&range);
        self.cursor_with(ReadOptions { lower, upper, ..ReadOptions::default() })
    }

    /// Sets or removes the callback that is called after every commit that writes to this family. It takes effect with the next commit,
    /// and until it is replaced, the family is dropped, or the database closes. It is not called for ingests, clones and imports, because
    /// their entries are in files.
    ///
    /// The hook is called once for each commit that writes to the family: in commit order, over all threads; after the
    /// commit is visible and, for a transaction, ended and its locks released; and before the commit call
    /// returns to its caller. The commit may become durable later: the commit call first waits for the hook, and then for the disk
    /// if required. So a hook may be called for a commit that a power cut undoes. Commits found in the log at an open
    /// are not reported again; [`crate::Db::changes_since`] reads those.
    ///
    /// One hook runs at a time. A commit made inside a hook returns before the hooks for it run: they run after this one, in order. A hook that
    /// waits for another thread's commit to a family with a hook waits forever. A hook that owns a `Db` keeps the database from closing by
    /// itself: remove the hook or call [`crate::Db::close`].
    ///
    /// A panic of a hook is harmless: it is caught and counted in the statistic `commit_hook_panics`, and the hook
    /// stays set.
    ///
    /// A value in pieces ([`ColumnFamily::value_writer`]) is read back for the hook. If that fails, the hook is not called for the
    /// commit, and the statistic `background_errors` counts it.
    ///
    /// While no family has a hook, a commit costs one relaxed load more. A commit to a family with a hook costs a copy of its
    /// batch under the commit lock.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{CommitHook, CommittedWrites};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// #[derive(Default)]
    /// struct Counter(AtomicUsize);
    /// impl CommitHook for Counter {
    ///     fn committed(&self, commit: &CommittedWrites<'_>) {
    ///         self.0.fetch_add(commit.len(), Ordering::Relaxed);
    ///     }
    /// }
    /// let counter = Arc::new(Counter::default());
    /// db.default_family().set_commit_hook(Some(counter.clone()))?;
    /// db.put("ebb", "low")?;
    /// assert_eq!(counter.0.load(Ordering::Relaxed), 1);
    /// db.default_family().set_commit_hook(None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Closed`; `hook` is then dropped.
    pub fn set_commit_hook(&self, hook: Option<Arc<dyn CommitHook>>) -> Result<()> {
        self.db.check_origin()?; // before any lock: in a forked child, no thread may be left to release it
        let former = {
            let _order = self.db.commit.lock(); // so that it is clear which commits come before
            match self.db.check_open().and_then(|()| self.inner().check_not_gone()) {
                Ok(()) => Ok(self.db.hooks.set(self.inner().id(), hook)),
                Err(e) => Err((e, hook)),
            }
        };
        // Without the commit lock: dropping a hook may call the database.
        former.map(drop).map_err(|(e, _)| e)
    }

    /// The error for a snapshot that was taken before the last catch-up, whose versions merges may have dropped.
    #[cold]
    pub(crate) fn overtaken(seq: SeqNo, floor: SeqNo) -> Error {
        let text = format!("the snapshot of sequence number {seq} was taken before the database caught up to {floor}");
        Error::new(ErrorKind::TooOld, text)
    }

    /// Reclaims, soon and in the background, the space of the entries that [`ColumnFamily::delete_range`] or a similar call deleted in a
    /// range `start..end`. The call itself waits only for an estimate of their size. Snapshots still see these entries, and their space
    /// is reclaimed when the snapshots are dropped, within about a quarter of a second unless other work is more urgent. After a
    /// restart, compactions reclaim it.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// db.put("log/1", "old")?;
    /// db.default_family().delete_range("log/".."log0")?;
    /// db.default_family().reclaim_range("log/".."log0")?; // the space comes back soon, in the background
    /// assert!(db.default_family().reclaim_range("log/"..).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a range of another form, and when the start sorts after the end; `Closed`, `ReadOnly`; `Corruption` and `Io`
    /// from opening a table.
    pub fn reclaim_range(&self, range: impl KeyRange) -> Result<()> {
        let (Bound::Included(lo), Bound::Excluded(hi)) = (range.lower(), range.upper()) else {
            return Err(Error::invalid("reclaim_range: the range must have a start and an excluded end, `start..end`"));
        };
        check_ends("reclaim_range", self.order(), &range)?;
        self.db.check_writable()?;
        self.inner().check_alive()?;
        self.db.remember_to_reclaim(self.inner(), lo, hi)
    }
}

/// The key at an end of a range.
fn key_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
    }
}
