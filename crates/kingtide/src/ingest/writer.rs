//! Sorted files: tables written outside of any database.

use crate::api::{ColumnFamily, KeyRange};
use crate::txn::bounds::shown;
use kingtide_base::clock::{Clock, unix_ms_of_time};
use kingtide_base::key::EXPIRY_FLAG;
use kingtide_base::options::FamilyOptions;
use kingtide_base::rng::entropy;
use kingtide_base::{Error, KeyOrder, Kind, Result, Tag};
use kingtide_table::{TableOptions, TableWriter, UNSEQUENCED};
use kingtide_versions::{LEVELS, SORTED_FILE};
use kingtide_vfs::{Fs, OpenMode, Origin};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Information about a finished sorted file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Keys put and deleted.
    pub entries: u64,
    /// Ranges deleted.
    pub range_deletes: u64,
    /// Its smallest key, the starts of deleted ranges included.
    pub smallest: Vec<u8>,
    /// Its largest key; when that comes from a deleted range, the range's exclusive end.
    pub largest: Vec<u8>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes a sorted file: a table in a family's key order and table format, outside of any database. Keys must be passed in ascending order, each
/// once. [`ColumnFamily::ingest`] makes its contents part of a family.
///
/// Its entries have no sequence numbers before the ingest, which gives all of them the same one. So a range deleted in it deletes what the
/// family held before, and no entry of the file itself.
///
/// Values of all sizes are in the file beside their keys, so only this file has to be moved, copied or deleted. Values that the family would
/// keep in a value log move there with the first compaction that rewrites them, which may never happen for files in the deepest level.
///
/// A few times `target_file_size` is a good size for a file: compactions process entire files, and can then run in parallel.
///
/// Memory: one block, the index, and eight bytes for each key for the filter. If the writer is dropped before it is finished, it removes the
/// file.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// use kingtide::{IngestOptions, SortedFileWriter};
///
/// let family = db.default_family();
/// db.put("tide:0500", "of yesterday")?;
/// let mut writer = SortedFileWriter::create("tides.sorted", family)?;
/// for hour in 0..10_000u32 {
///     writer.put(format!("tide:{hour:04}").as_bytes(), b"measured")?; // in order
/// }
/// assert_eq!(writer.entries(), 10_000);
/// let file = writer.finish()?;
/// assert_eq!(file.entries, 10_000);
/// family.ingest(&["tides.sorted"], &IngestOptions::default())?; // all of it or nothing
/// assert_eq!(db.get("tide:0500")?.as_deref(), Some(&b"measured"[..]));
///
/// // A file may also delete, and have entries that expire.
/// let mut writer = SortedFileWriter::create("changes.sorted", family)?;
/// writer.delete_range("tide:1000".."tide:2000")?; // at any time; all else is in order
/// writer.delete(b"tide:0500")?;
/// writer.put_ttl(b"tide:0501", b"estimated", std::time::Duration::from_secs(60))?;
/// writer.put_until(b"tide:0502", b"estimated", std::time::SystemTime::now() + std::time::Duration::from_secs(60))?;
/// writer.finish()?;
/// family.ingest(&["changes.sorted"], &IngestOptions::default())?;
/// assert_eq!(db.iter().count(), 8999);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SortedFileWriter {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    clock: Arc<dyn Clock>,
    order: KeyOrder,
    ttl_ms: u64,
    /// `None` once finished.
    writer: Option<TableWriter>,
    /// An expiry and a value behind it.
    value: Vec<u8>,
    range_deletes: u64,
    /// A forked child leaves the file to its parent.
    origin: Origin,
}

impl SortedFileWriter {
    /// Begins a file for a family: in the file system, key order and options of it. The file must not exist.
    ///
    /// # Errors
    /// `Exists`, `NotFound` (the directory), `Io`, `NoSpace`.
    pub fn create(path: impl AsRef<Path>, family: &ColumnFamily) -> Result<SortedFileWriter> {
        let db = &family.db;
        let (order, options) = (family.order().clone(), family.options());
        SortedFileWriter::create_on(db.fs.clone(), path, order, &options, db.clock.clone())
    }

    /// Begins a file for a family that need not exist yet, in any process: it can be ingested by families in the same key order. Only the
    /// options that concern the format of tables matter, and `ttl_ms`.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// use kingtide::{FamilyOptions, IngestOptions, KeyOrder, SortedFileWriter, SystemClock};
    ///
    /// let fs = MemFs::shared();
    /// let options = FamilyOptions::default();
    /// let mut writer = SortedFileWriter::create_on(fs.clone(), "tides.sorted", KeyOrder::Bytewise, &options, SystemClock::shared())?;
    /// writer.put(b"ebb", b"low")?;
    /// writer.finish()?;
    /// let db = Db::open("db", Options::new().fs(fs))?; // perhaps on another day
    /// db.default_family().ingest(&["tides.sorted"], &IngestOptions::default())?;
    /// assert!(db.get("ebb")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`SortedFileWriter::create`]; `InvalidArgument` for options out of range.
    pub fn create_on(
        fs: Arc<dyn Fs>,
        path: impl AsRef<Path>,
        order: KeyOrder,
        options: &FamilyOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<SortedFileWriter> {
        options.validate()?;
        let path = path.as_ref().to_owned();
        let file = fs.open(&path, OpenMode::Create)?;
        let table = TableOptions {
            order: order.clone(),
            block_size: options.block_size as usize,
            compression: options.compression_at(LEVELS - 1),
            zstd_level: options.zstd_level as i32,
            zstd_dictionary: options.zstd_dictionary as usize,
            filter_fp: options.filter_fp,
            index_sampling: options.index_sampling as usize,
            index_prefix_len: options.index_prefix_len as usize,
            ..TableOptions::default()
        };
        // At random, so that a file that takes another one's place is found out.
        let writer = TableWriter::new_unsequenced(file, entropy() | SORTED_FILE, table);
        let (ttl_ms, value) = (options.ttl.map_or(0, |ttl| ttl.as_millis() as u64), Vec::new());
        let (writer, origin) = (Some(writer), Origin::here());
        Ok(SortedFileWriter { fs, path, clock, order, ttl_ms, writer, value, range_deletes: 0, origin })
    }

    /// Sets a key, which must sort after all keys before it. In a family with a `ttl_ms`, the entry expires after that time, counted from now.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key, and, naming both, for a key that does not sort after the one before it; `Io`,
    /// `NoSpace`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.ttl_ms {
            0 => self.add(key, Kind::Put as u8, value),
            ttl => self.put_expiring(key, value, self.clock.unix_ms().saturating_add(ttl)),
        }
    }

    /// Sets a key that expires after `ttl`.
    ///
    /// # Errors
    /// As [`SortedFileWriter::put`].
    pub fn put_ttl(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        let life = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.put_expiring(key, value, self.clock.unix_ms().saturating_add(life))
    }

    /// Sets a key that expires at a moment, which is rounded up to a whole millisecond.
    ///
    /// # Errors
    /// As [`SortedFileWriter::put`].
    pub fn put_until(&mut self, key: &[u8], value: &[u8], expires_at: SystemTime) -> Result<()> {
        self.put_expiring(key, value, unix_ms_of_time(expires_at))
    }

    fn put_expiring(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<()> {
        let mut stored = std::mem::take(&mut self.value);
        stored.clear();
        stored.extend_from_slice(&expires_at_ms.to_le_bytes());
        stored.extend_from_slice(value);
        let added = self.add(key, Kind::Put as u8 | EXPIRY_FLAG, &stored);
        self.value = stored;
        added
    }

    /// Deletes a key of the family, which must sort after all keys before it in the file.
    ///
    /// # Errors
    /// As [`SortedFileWriter::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.add(key, Kind::Delete as u8, &[])
    }

    /// Deletes the keys that the family held in a range `start..end` before the ingest. Entries of the file itself stay. Ranges may be deleted
    /// in any order, at any time.
    ///
    /// # Errors
    /// `InvalidArgument` for a range of another form, when `start` sorts after `end`, or when a bound is empty.
    pub fn delete_range(&mut self, range: impl KeyRange) -> Result<()> {
        let (Bound::Included(start), Bound::Excluded(end)) = (range.lower(), range.upper()) else {
            return Err(Error::invalid(
                "delete_range: a sorted file takes ranges with a start and an excluded end only",
            ));
        };
        if start.is_empty() || end.is_empty() {
            return Err(Error::invalid("delete_range: a bound is empty; keys have at least one byte"));
        }
        match self.order.compare(start, end) {
            std::cmp::Ordering::Greater => Err(Error::invalid("delete_range: start sorts after end")),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => {
                self.open()?.add_range_tombstone(start, end, UNSEQUENCED)?;
                self.range_deletes += 1;
                Ok(())
            }
        }
    }

    fn add(&mut self, key: &[u8], kind: u8, value: &[u8]) -> Result<()> {
        if key.is_empty() {
            return Err(Error::invalid("empty key: keys have at least one byte"));
        }
        let writer = self.open()?;
        let added = writer.add(key, Tag(UNSEQUENCED << 8 | kind as u64), value);
        match added {
            Err(_) if writer.entries() > 0 && writer.order().compare(writer.last_key(), key).is_ge() => {
                Err(self.out_of_order(key))
            }
            added => added,
        }
    }

    fn open(&mut self) -> Result<&mut TableWriter> {
        self.writer.as_mut().ok_or_else(|| Error::invalid("the sorted file is finished"))
    }

    #[cold]
    fn out_of_order(&self, key: &[u8]) -> Error {
        let last = self.writer.as_ref().map(|w| w.last_key()).unwrap_or_default();
        let text = match self.order.compare(last, key) {
            std::cmp::Ordering::Equal => format!("key '{}' comes twice; a sorted file holds a key once", shown(key)),
            _ => format!("key '{}' comes after '{}', but sorts before it", shown(key), shown(last)),
        };
        Error::invalid(text).at_path(&self.path)
    }

    /// Keys put and deleted so far.
    pub fn entries(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::entries)
    }

    /// About the bytes that the file would have if it were finished now.
    pub fn estimated_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::estimated_size)
    }

    /// Completes the file and makes its bytes durable. Its name is durable when its directory is synced; an ingest does
    /// not need that.
    ///
    /// # Errors
    /// `InvalidArgument` for a file with nothing in it; `Io`, `NoSpace`. The file is then removed.
    pub fn finish(mut self) -> Result<SortedFile> {
        if self.entries() == 0 && self.range_deletes == 0 {
            return Err(Error::invalid("the sorted file is empty").at_path(&self.path));
        }
        let info = match self.writer.take() {
            Some(writer) => writer.finish(),
            None => Err(Error::invalid("the sorted file is finished")),
        };
        let info = info.inspect_err(|_| {
            let _ = self.fs.remove(&self.path);
        })?;
        Ok(SortedFile {
            path: self.path.clone(),
            entries: info.entries,
            range_deletes: info.range_tombstones,
            smallest: info.min_key,
            largest: info.max_key,
            bytes: info.file_size,
        })
    }
}

impl Drop for SortedFileWriter {
    fn drop(&mut self) {
        if self.writer.take().is_some() && self.origin.is_here() {
            let _ = self.fs.remove(&self.path); // what stays is no sorted file: its end is missing
        }
    }
}

impl std::fmt::Debug for SortedFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SortedFileWriter({}, {} entries)", self.path.display(), self.entries())
    }
}
