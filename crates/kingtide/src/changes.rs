//! The change stream: what was committed, in commit order, read back from the write-ahead log.
//!
//! A consumer remembers the `last_sequence` of the record that it handled last, and goes on from there later, in this
//! process or after any number of opens, for as long as the log is kept: recovery keeps what is not in tables yet, and
//! the option `change_retention` says how many bytes are kept beyond that. The price of retention is disk space and the
//! time that an open needs to read the retained log; memory it costs none, as operations that are in tables are passed
//! over.

use crate::api::Db;
use crate::engine::DbInner;
use crate::family::Family;
use crate::ops::files::is_files;
use crate::ops::{Change, ChangedOps};
use crate::ops::{LogOp, LoggedOp, read_log_op};
use crate::read::exact;
use kingtide_base::coding::Reader;
use kingtide_base::names::vlog_path;
use kingtide_base::{Error, ErrorKind, FamilyId, Result, SeqNo, rare};
use kingtide_table::{ValuePointer, Vlog};
use kingtide_vfs::OpenMode;
use kingtide_wal::{Tail, TailItem};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest pause between two looks for a new record.
const POLL: Duration = Duration::from_millis(1);

/// Options of a change stream.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()).change_retention(1 << 20))?;
/// use kingtide::ChangeStreamOptions;
///
/// let options = ChangeStreamOptions::new().durable_only(true).show_unlogged(true);
/// let mut stream = db.changes_with(db.latest_sequence(), options)?;
/// db.put("ebb", "low")?;
/// db.sync()?;
/// assert_eq!(stream.next()?.map(|record| record.len()), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeStreamOptions {
    /// Show only commits that survive a power cut. Without it, a stream may show a commit that a power cut (or, if it was not logged, the death
    /// of the process) then undoes, so that other commits get its sequence numbers. Commits that request no sync are shown when a later sync
    /// covers them: see [`Db::sync`].
    pub durable_only: bool,
    /// Show commits that are not in the log as records without operations ([`ChangeRecord::is_unlogged`]), instead of
    /// ending in an error there.
    pub show_unlogged: bool,
}

impl ChangeStreamOptions {
    /// The defaults.
    pub const fn new() -> ChangeStreamOptions {
        ChangeStreamOptions { durable_only: false, show_unlogged: false }
    }

    /// Sets whether only commits that survive a power cut are shown.
    #[must_use]
    pub const fn durable_only(mut self, durable_only: bool) -> ChangeStreamOptions {
        self.durable_only = durable_only;
        self
    }

    /// Sets whether commits that are not in the log are shown, as records without operations.
    #[must_use]
    pub const fn show_unlogged(mut self, show_unlogged: bool) -> ChangeStreamOptions {
        self.show_unlogged = show_unlogged;
        self
    }
}

/// One commit.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.put("tide", "high")?;
/// let mut changes = db.changes_since(0)?;
/// let record = changes.next()?.expect("a commit");
/// assert!(!record.is_empty() && record.len() == 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChangeRecord {
    /// The sequence number of its first operation.
    pub first_sequence: SeqNo,
    /// The sequence number of its last operation, which the commit call returned. A later stream continues from here.
    pub last_sequence: SeqNo,
    unlogged: bool,
    ops: ChangedOps,
    names: Vec<(FamilyId, String)>,
}

impl ChangeRecord {
    /// The operations, in the order in which they were put into the batch.
    pub fn operations(&self) -> impl Iterator<Item = Change<'_>> {
        self.ops.iter(|id| self.names.iter().find(|(of, _)| *of == id).map(|(_, name)| name.as_str()))
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns whether it has no operations, which happens only if [`ChangeRecord::is_unlogged`].
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns whether the record stands for commits that are not in the log: all those with sequence numbers from `first_sequence` to
    /// `last_sequence`. They were committed with `Durability::None`, or are files that were ingested, or a power cut took the log while tables
    /// kept its contents. Such records are shown only with [`ChangeStreamOptions::show_unlogged`].
    pub fn is_unlogged(&self) -> bool {
        self.unlogged
    }
}

/// Reads commits in commit order, each completely and exactly once. Created by [`Db::changes_since`].
///
/// A stream does not retain the log: one that falls behind further than `change_retention` gets `TooOld`. It is not necessary
/// to keep a stream open in order to continue later.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// use kingtide::ChangeKind;
///
/// db.put("ebb", "low")?;
/// let known = db.latest_sequence();
/// db.put("flood", "rising")?;
/// db.delete("ebb")?;
/// let mut changes = db.changes_since(known)?;
/// let first = changes.next()?.expect("two commits came since");
/// let change = first.operations().next().expect("it has one operation");
/// assert_eq!((change.kind, change.key, change.value), (ChangeKind::Put, &b"flood"[..], &b"rising"[..]));
/// assert_eq!((first.len(), changes.next()?.map(|r| r.len())), (1, Some(1)));
/// assert!(changes.next()?.is_none(), "that is all for now; wait_next waits for more");
/// assert_eq!(changes.position(), db.latest_sequence(), "where a later stream continues");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ChangeStream {
    db: Arc<DbInner>,
    tail: Tail,
    options: ChangeStreamOptions,
    /// Families met so far; `None` for one that is gone.
    families: HashMap<FamilyId, Option<Weak<Family>>>,
}

impl ChangeStream {
    /// The next commit; `None` if there is none to be shown yet: call again later.
    ///
    /// What a prepared transaction writes is shown when it commits. Costs one read of the log for every megabyte of it
    /// and otherwise time and memory in the size of the commit.
    ///
    /// # Errors
    /// * `TooOld`, naming the oldest sequence number to continue from: the log was released beyond this place. Read the data
    ///   at a snapshot, and continue from the snapshot's number.
    /// * `TooOld`, for a value that was written once, to a value log alone (`direct_value_threshold`), and whose space compactions have
    ///   reclaimed because it was overwritten or deleted, has expired, or belonged to a dropped family. A value that was only moved is found, at
    ///   the cost of a point read. The remedy is the same.
    /// * `TooOld`, naming the missing numbers: commits that were not logged, see [`ChangeRecord::is_unlogged`]. The remedy is the same, or
    ///   [`ChangeStreamOptions::show_unlogged`].
    /// * `Corruption` with file and offset, `Io`, `Closed`.
    ///
    /// The stream stays where it is after an error.
    #[allow(clippy::should_implement_trait)] // it is not over when it yields nothing
    pub fn next(&mut self) -> Result<Option<ChangeRecord>> {
        loop {
            self.db.check_open()?;
            let visible = self.db.snapshots.visible(); // before looking into the log
            let place = self.tail.next_seq();
            let item = self.tail.next(visible);
            self.db.check_open()?; // a closed database does not keep the log from others
            match item? {
                None => return Ok(None),
                Some(TailItem::Missing(first, last)) => return self.show_unlogged(first, last).map(Some),
                // The log names the files that were ingested, but the operations are in these.
                Some(TailItem::Record(base, count, payload)) if is_files(&payload) => {
                    let first = base.max(place);
                    self.tail.go_back(first);
                    return self.show_unlogged(first, base + u64::from(count) - 1).map(Some);
                }
                Some(TailItem::Record(base, count, payload)) => {
                    let record = match self.decode(base, count, &payload) {
                        Ok(record) => record,
                        Err(e) => {
                            self.tail.go_back(base);
                            return Err(e);
                        }
                    };
                    if !record.is_empty() {
                        return Ok(Some(record));
                    }
                }
            }
        }
    }

    fn show_unlogged(&mut self, first: SeqNo, last: SeqNo) -> Result<ChangeRecord> {
        if !self.options.show_unlogged {
            return Err(unlogged(first, last));
        }
        self.tail.pass(last);
        Ok(ChangeRecord {
            first_sequence: first,
            last_sequence: last,
            unlogged: true,
            ops: ChangedOps::default(),
            names: Vec::new(),
        })
    }

    /// Does what [`ChangeStream::next`] does, but waits for a commit for at most `timeout`. It polls every millisecond.
    ///
    /// # Errors
    /// As [`ChangeStream::next`].
    pub fn wait_next(&mut self, timeout: Duration) -> Result<Option<ChangeRecord>> {
        let clock = self.db.clock.clone();
        let start = clock.monotonic_ns();
        loop {
            if let Some(record) = self.next()? {
                return Ok(Some(record));
            }
            let waited = Duration::from_nanos(clock.monotonic_ns().saturating_sub(start));
            match timeout.checked_sub(waited) {
                None | Some(Duration::ZERO) => return Ok(None),
                Some(left) => clock.sleep(left.min(POLL)),
            }
        }
    }

    /// Everything up to this sequence number was shown, or had nothing to show.
    pub fn position(&self) -> SeqNo {
        self.tail.next_seq() - 1
    }

    fn decode(&mut self, base: SeqNo, count: u32, payload: &[u8]) -> Result<ChangeRecord> {
        let mut record = ChangeRecord {
            first_sequence: base,
            last_sequence: base + (count as u64 - 1),
            unlogged: false,
            ops: ChangedOps::default(),
            names: Vec::new(),
        };
        let mut r = Reader::new(payload);
        for seq in base..=record.last_sequence {
            match read_log_op(&mut r) {
                // Only the end of a prepared transaction says whether its writes came true, and repeats them then.
                Some(LogOp::Prepare(_) | LogOp::Resolved { .. }) => {}
                Some(LogOp::Write(op)) => {
                    record.ops.push(&op, |p, value| self.read_value(&op, seq, p, value))?;
                    if !record.names.iter().any(|(id, _)| *id == op.family)
                        && let Some(name) = self.family_name(op.family)
                    {
                        record.names.push((op.family, name));
                    }
                }
                None => {
                    let text =
                        format!("operation {} of the log record with sequence {base} cannot be read", seq - base);
                    return Err(Error::corruption(text));
                }
            }
        }
        Ok(record)
    }

    /// A value that was written once. Its file may be gone, because what it held was overwritten or moved: by the first flush
    /// after a crash, by a flush that could not hand the pointer on, or when much of the file was dead. What was moved is
    /// where its key is, under the sequence number of its commit.
    fn read_value(&mut self, op: &LoggedOp<'_>, seq: SeqNo, p: &ValuePointer, value: &mut Vec<u8>) -> Result<()> {
        let read = self.db.tables.vlog(p.file_id).and_then(|vlog| vlog.read(p, value));
        let Err(e) = read else { return Ok(()) };
        if e.kind() != ErrorKind::Corruption {
            return Err(e);
        }
        // The view is taken after the file was missed: a value's new place is in the view before its old file goes.
        let moved = match self.family(op.family) {
            Some(family) => exact::version(&family.view.load(), op.key, seq, &family.reads)?,
            None => None,
        };
        if let Some(moved) = moved {
            rare!("direct-value-moved-before-stream");
            *value = moved.into_vec();
            return Ok(());
        }
        match self.db.fs.open(&vlog_path(&self.db.dir, p.file_id), OpenMode::Read) {
            // A file that a crash left without its footer, whose values have moved, and which no job has removed yet.
            Ok(file) => Vlog::unfinished(file, p.file_id).read(p, value).map_err(|_| e),
            Err(missing) if missing.kind() == ErrorKind::NotFound => {
                rare!("direct-value-gone-for-stream");
                Err(Error::new(
                    ErrorKind::TooOld,
                    "a large value was overwritten or deleted since, or has expired, or its family was dropped, and its space was \
                     given up. Copy the data at a snapshot and go on from its number, and set `change_retention`, with \
                     which the log itself holds large values",
                ))
            }
            Err(other) => Err(other),
        }
    }

    /// A family that is not dropped.
    fn family(&mut self, id: FamilyId) -> Option<Arc<Family>> {
        let db = &self.db;
        let known = self
            .families
            .entry(id)
            .or_insert_with(|| db.catalog.lock().families.get(&id).map(Arc::downgrade))
            .as_ref()?;
        known.upgrade().filter(|family| !family.is_dropped())
    }

    fn family_name(&mut self, id: FamilyId) -> Option<String> {
        self.family(id).map(|family| family.name())
    }
}

impl std::fmt::Debug for ChangeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChangeStream({:?})", self.tail)
    }
}

#[cold]
fn unlogged(first: SeqNo, last: SeqNo) -> Error {
    Error::new(
        ErrorKind::TooOld,
        format!(
            "the commits with sequence numbers {first} to {last} are not in the log. Copy the data at a snapshot and go \
             on from its number, or let the stream show them as unlogged"
        ),
    )
}

/// Change streams.
impl Db {
    /// Opens a stream of the commits after sequence number `seq`, past and future ones. `seq` is 0, a record's
    /// `last_sequence`, or the result of a commit or of [`crate::Snapshot::sequence`]; a commit that contains it is shown
    /// completely.
    ///
    /// # Errors
    /// `TooOld` if the log was released beyond `seq`, naming [`Db::oldest_change_sequence`]; `InvalidArgument` for a
    /// number that was not committed yet (or that a power cut undid); `Closed`; `ReadOnly`.
    pub fn changes_since(&self, seq: SeqNo) -> Result<ChangeStream> {
        self.changes_with(seq, ChangeStreamOptions::default())
    }

    /// Does what [`Db::changes_since`] does, with options.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::ChangeStreamOptions;
    /// use std::time::Duration;
    ///
    /// let mut stream = db.changes_with(db.oldest_change_sequence(), ChangeStreamOptions::new().show_unlogged(true))?;
    /// db.put("ebb", "low")?;
    /// let record = stream.wait_next(Duration::from_secs(60))?.expect("a commit");
    /// assert!(!record.is_unlogged() && record.operations().any(|op| op.key == b"ebb"));
    /// assert!(stream.wait_next(Duration::ZERO)?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::changes_since`].
    pub fn changes_with(&self, seq: SeqNo, options: ChangeStreamOptions) -> Result<ChangeStream> {
        let db = self.inner();
        db.check_writable()?; // a reader does not follow the log
        let visible = db.snapshots.visible();
        if seq > visible {
            return Err(Error::invalid(format!(
                "changes since sequence number {seq}, which was not committed yet; the newest is {visible}. A power cut \
                 may have undone it"
            )));
        }
        let mut tail = Tail::new(db.wal.clone(), seq, options.durable_only);
        tail.check()?;
        Ok(ChangeStream { db: db.clone(), tail, options, families: HashMap::new() })
    }

    /// The smallest number that [`Db::changes_since`] accepts now. It grows as log is released, which
    /// `change_retention` delays.
    pub fn oldest_change_sequence(&self) -> SeqNo {
        let db = self.inner();
        match db.wal.oldest_seq() {
            Some(first) => first.saturating_sub(1),
            None => db.snapshots.visible(), // there is no log yet
        }
    }
}
