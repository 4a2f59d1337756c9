//! Values that are written in pieces, before the commit that puts them: however large, in bounded memory.

use crate::api::{ColumnFamily, Db};
use crate::commit::batch::{MAX_BATCH_BYTES, StagedFile, WriteBatch};
use crate::direct::DirectLog;
use crate::family::Family;
use crate::options::WriteOptions;
use kingtide_base::key::EXPIRY_FLAG;
use kingtide_base::memory::append;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, rare};
use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::sync::Arc;

/// So much is written between two looks at space and flow control.
const PIECE: usize = 1 << 20;
/// Bytes of a batch that a value held in memory leaves to its key.
const REST_OF_BATCH: usize = 1 << 20;

/// A writer of one value in pieces: see [`ColumnFamily::value_writer`].
///
/// The bytes are compressed, checksummed and appended to a file chunk by chunk (option `value_chunk_size`), so that a
/// value of any length takes little memory. No read finds it before [`ValueWriter::finish`] and a commit with
/// [`WriteBatch::put_staged`] or [`Transaction::put_staged`](crate::Transaction::put_staged). A writer that is dropped leaves
/// nothing behind, and neither does a crash.
///
/// A writer may move between threads. [`io::Write`] returns errors of the engine as [`io::Error`]s that hold an [`Error`].
/// After an error the value is discarded, its file is removed, and every further call returns the same error.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// # use std::io::Write;
/// let mut writer = db.value_writer()?;
/// assert!(writer.is_empty());
/// writer.write_all(b"frame")?;
/// assert_eq!(writer.len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ValueWriter {
    family: ColumnFamily,
    sink: Sink,
    len: u64,
    failed: Option<Error>,
    /// Up to so many bytes are kept in memory.
    memory: usize,
    /// Whether there is a value log for more.
    may_stage: bool,
}

enum Sink {
    Memory(Vec<u8>),
    Log(Arc<DirectLog>),
}

/// A finished value of a [`ValueWriter`] that waits for the commit that puts it under a key: see
/// [`WriteBatch::put_staged`]. Its file is removed when this, and every batch and transaction that has the value, is dropped
/// without a commit.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// let staged = db.value_writer()?.finish()?; // nothing was written to it
/// assert!(staged.is_empty() && staged.len() == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StagedValue {
    family: ColumnFamily,
    place: Place,
    len: u64,
}

enum Place {
    Memory(Vec<u8>),
    Log(StagedFile),
}

impl ColumnFamily {
    /// Begins a value of any length that is written in pieces, in bounded memory: about 3 MiB, and a chunk (option
    /// `value_chunk_size`) for each thread that helps to compress it; or two chunks if chunks are longer than 512 KiB. Once it is
    /// finished, a value in a value log takes no memory. [`ColumnFamily::put_reader`] is the short form.
    ///
    /// A value of up to 1 MiB, or below the family's `value_threshold`, is kept in memory, and put like any other. A longer one goes to
    /// a value log of its own, regardless of `direct_value_threshold`. Where no value may be in a value log alone, it is kept
    /// in memory regardless of its length, up to the limit of a batch (a little less than 4 GiB): in a family with
    /// `value_threshold = 0`, and in a database that keeps log for change streams (`change_retention`).
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::Write;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let family = db.default_family();
    /// let mut writer = family.value_writer()?;
    /// for piece in 0..30u8 {
    ///     writer.write_all(&[piece; 100_000])?;
    /// }
    /// assert_eq!(db.get(b"film")?, None); // not yet
    /// family.put_staged(b"film", &writer.finish()?)?;
    /// assert_eq!(family.get_reader(b"film")?.map(|r| r.len()), Some(3_000_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Closed`, `ReadOnly`, `Poisoned`. While writing: `NoSpace`, `Io`; `Busy` if more values are being written at once than
    /// `max_open_files` has room for; `InvalidArgument` for a value in memory that no batch can hold.
    pub fn value_writer(&self) -> Result<ValueWriter> {
        self.db.check_writable()?;
        self.inner().check_alive()?;
        let threshold = usize::try_from(self.inner().options().value_threshold).unwrap_or(usize::MAX);
        let memory = usize::try_from(self.db.tuning.staged_from).unwrap_or(usize::MAX);
        Ok(ValueWriter {
            family: self.clone(),
            sink: Sink::Memory(Vec::new()),
            len: 0,
            failed: None,
            memory: memory.max(threshold.saturating_sub(1)),
            may_stage: self.db.may_stage(self.inner()),
        })
    }

    /// Sets a key to a staged value. See [`WriteBatch::put_staged`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::Write;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut writer = db.default_family().value_writer()?;
    /// writer.write_all(b"in ")?;
    /// writer.write_all(b"pieces")?;
    /// db.default_family().put_staged(b"key", &writer.finish()?)?;
    /// assert_eq!(db.get(b"key")?.unwrap(), b"in pieces");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`WriteBatch::put_staged`] and [`Db::write`].
    pub fn put_staged(&self, key: impl AsRef<[u8]>, value: &StagedValue) -> Result<SeqNo> {
        let mut batch = WriteBatch::new();
        batch.put_staged(self, key.as_ref(), value)?;
        self.db.write(&mut batch, &WriteOptions::default())
    }

    /// Sets a key to the entire contents of `value`, in bounded memory. Returns the number of bytes. Nothing is put if reading
    /// fails. See [`ColumnFamily::value_writer`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::Read;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let source = std::io::repeat(7).take(5_000_000); // a file, for example
    /// assert_eq!(db.default_family().put_reader(b"film", source)?, 5_000_000);
    /// assert_eq!(db.get(b"film")?.map(|v| v.len()), Some(5_000_000));
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key; `Io` from `value`; as [`ColumnFamily::value_writer`] and [`Db::write`].
    pub fn put_reader(&self, key: impl AsRef<[u8]>, value: impl io::Read) -> Result<u64> {
        let key = key.as_ref();
        if key.is_empty() {
            return Err(Error::invalid("empty key: keys have at least one byte"));
        }
        let mut writer = self.value_writer()?;
        let n = writer.read_from(value)?;
        self.put_staged(key, &writer.finish()?)?;
        Ok(n)
    }
}

impl Db {
    /// Begins a value of the default family that is written in pieces. See [`ColumnFamily::value_writer`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # use std::io::Write;
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut writer = db.value_writer()?;
    /// writer.write_all(b"value")?;
    /// drop(writer); // nothing happened
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::value_writer`].
    pub fn value_writer(&self) -> Result<ValueWriter> {
        self.default_family().value_writer()
    }

    /// Sets a key to the entire contents of `value`. See [`ColumnFamily::put_reader`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// assert_eq!(db.put_reader(b"key", &b"value"[..])?, 5);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ColumnFamily::put_reader`].
    pub fn put_reader(&self, key: impl AsRef<[u8]>, value: impl io::Read) -> Result<u64> {
        self.default_family().put_reader(key, value)
    }
}

impl ValueWriter {
    /// Returns the bytes written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the entire contents of `from`. Returns the number of bytes.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut writer = db.value_writer()?;
    /// writer.read_from(&b"two "[..])?;
    /// assert_eq!(writer.read_from(&b"parts"[..])?, 5);
    /// assert_eq!(writer.len(), 9);
    /// # Ok::<(), kingtide::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Io` from `from`, after which writing can continue; otherwise as writing.
    pub fn read_from(&mut self, mut from: impl io::Read) -> Result<u64> {
        let mut buf = vec![0; 64 << 10];
        let mut done = 0;
        loop {
            match from.read(&mut buf) {
                Ok(0) => return Ok(done),
                Ok(n) => {
                    self.append(buf.get(..n).unwrap_or_default())?;
                    done += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(source_error(&e)),
            }
        }
    }

    /// Appends bytes, as [`io::Write`] does, with the engine's error.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Busy`, `Closed`, `InvalidArgument`: see [`ColumnFamily::value_writer`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let appended = bytes.chunks(PIECE).try_for_each(|piece| self.append_piece(piece));
        match &appended {
            Ok(()) => self.len += bytes.len() as u64,
            Err(e) => self.give_up(e),
        }
        appended
    }

    fn append_piece(&mut self, bytes: &[u8]) -> Result<()> {
        let (db, family) = (&self.family.db, self.family.inner());
        db.check_writable()?;
        family.check_alive()?;
        if let Sink::Memory(held) = &mut self.sink {
            let len = held.len() + bytes.len();
            if !self.may_stage && len > MAX_BATCH_BYTES - REST_OF_BATCH {
                return Err(Error::invalid(format!(
                    "the value is kept in memory, where it may have {} bytes: a longer one needs a family with \
                     `value_threshold` above 0 in a database with `change_retention = 0`",
                    MAX_BATCH_BYTES - REST_OF_BATCH
                )));
            }
            if len <= self.memory || !self.may_stage {
                return append(held, bytes, "a value");
            }
        }
        db.check_space_to_grow()?;
        let len = bytes.len() as u64;
        db.admit_shares(len, || vec![(family.dead_space.clone(), len)], false)?;
        if let Sink::Memory(held) = &mut self.sink {
            let held = std::mem::take(held);
            let log = begin_log(&self.family)?;
            log.extend(&held)?;
            self.sink = Sink::Log(log);
        }
        if let Sink::Log(log) = &self.sink {
            log.extend(bytes)?;
            rare!("staged-value-growing");
        }
        Ok(())
    }

    /// Finishes the value. It is then handed to the operating system and, if the database's durability requires it, synced, so that the
    /// commit does not have to wait for all of it.
    ///
    /// # Errors
    /// As [`ValueWriter::append`]. The value is then discarded.
    pub fn finish(mut self) -> Result<StagedValue> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        self.family.db.check_writable()?;
        self.family.inner().check_alive()?;
        let place = match std::mem::replace(&mut self.sink, Sink::Memory(Vec::new())) {
            Sink::Memory(bytes) => Place::Memory(bytes),
            Sink::Log(log) => Place::Log(finish_log(&self.family, log)?),
        };
        Ok(StagedValue { family: self.family.clone(), place, len: self.len })
    }

    fn give_up(&mut self, e: &Error) {
        self.failed = Some(e.clone());
        let sink = std::mem::replace(&mut self.sink, Sink::Memory(Vec::new()));
        remove_soon(&self.family, matches!(sink, Sink::Log(_)), sink);
    }
}

/// Lets go of what may be the last handle of a file, which a background thread then removes.
fn remove_soon<T>(family: &ColumnFamily, is_file: bool, what: T) {
    drop(what);
    if is_file && family.db.check_open().is_ok() {
        family.db.jobs.wake();
    }
}

fn begin_log(family: &ColumnFamily) -> Result<Arc<DirectLog>> {
    let db = &family.db;
    if let Some(log) = db.begin_staged(family.inner())? {
        return Ok(log);
    }
    // A flush closes the logs of committed values that its memtables point to. It usually suffices to flush one family, the one with the most
    // open logs. Families whose last flush failed come last.
    let open = |f: &Arc<Family>| f.view.load().open_value_logs();
    let mut families: Vec<_> = db.catalog.lock().families.values().filter(|f| open(f) > 0).cloned().collect();
    families.sort_by_cached_key(|f| (f.flush_failures.lasting().is_some(), Reverse(open(f))));
    let mut failed = None;
    for of in &families {
        failed = failed.or(db.flush_families(std::slice::from_ref(of)).err());
        if let Some(log) = db.begin_staged(family.inner())? {
            return Ok(log);
        }
    }
    Err(failed.map_or_else(too_many, |e| e.context("no value log can be created until a flush closes others")))
}

#[cold]
fn too_many() -> Error {
    let text = "too many values are being written at once: finish or drop some, or raise `max_open_files`, of \
                which they may take a quarter";
    Error::new(ErrorKind::Busy, text)
}

fn finish_log(family: &ColumnFamily, log: Arc<DirectLog>) -> Result<StagedFile> {
    let pointer = log.end()?;
    rare!("staged-value-ended");
    let db = &family.db;
    if db.durability() == Durability::Power {
        log.make_durable()?; // here one thread waits for it; in the commit, all that commit would
    }
    db.stats.add(Stat::DirectValues, 1);
    db.stats.add(Stat::DirectValueBytes, pointer.stored_len);
    Ok(StagedFile { family: family.inner().clone(), log, pointer })
}

/// The error of what a value was to be read from.
fn source_error(e: &io::Error) -> Error {
    match e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(ours) => ours.clone(),
        None => Error::new(ErrorKind::Io, format!("reading the value from its source failed: {e}")),
    }
}

impl io::Write for ValueWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.append(buf)?;
        Ok(buf.len())
    }

    /// Does nothing: [`ValueWriter::finish`] finishes the value.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ValueWriter {
    fn drop(&mut self) {
        let sink = std::mem::replace(&mut self.sink, Sink::Memory(Vec::new()));
        remove_soon(&self.family, matches!(sink, Sink::Log(_)), sink);
    }
}

impl StagedValue {
    /// Returns the bytes of the value.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn put_into(
        &self,
        batch: &mut WriteBatch,
        family: &ColumnFamily,
        key: &[u8],
        expiry: Option<u64>,
    ) -> Result<()> {
        if !Arc::ptr_eq(family.inner(), self.family.inner()) {
            return Err(Error::invalid(format!(
                "the staged value was written for column family '{}': use the writer of the family that it goes to",
                self.family.name()
            )));
        }
        match &self.place {
            Place::Log(file) => batch.push_staged(key, expiry, file),
            Place::Memory(bytes) => {
                let kind = Kind::Put as u8 | if expiry.is_some() { EXPIRY_FLAG } else { 0 };
                batch.push(family.inner(), kind, key, expiry, Some(bytes))
            }
        }
    }
}

impl Drop for StagedValue {
    fn drop(&mut self) {
        let place = std::mem::replace(&mut self.place, Place::Memory(Vec::new()));
        remove_soon(&self.family, matches!(&place, Place::Log(f) if f.log.is_free()), place);
    }
}

impl fmt::Debug for ValueWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ValueWriter({}, {} bytes)", self.family.name(), self.len)
    }
}

impl fmt::Debug for StagedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagedValue({}, {} bytes)", self.family.name(), self.len)
    }
}
