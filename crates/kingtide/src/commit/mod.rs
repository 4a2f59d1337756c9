//! The write path. [`DbInner::commit`] is a commit from one end to the other, stage by stage:
//!
//! | stage | what it does | lock |
//! |---|---|---|
//! | admit | flow control ([`stall`]), which may slow the writer or, on request, refuse it with `Busy` | |
//! | divert | writes large values to value logs ([`divert`]): the batch has pointers from here on | |
//! | prepare | checks the batch, which is serialized already; its checksum, the order to fill memtables in | |
//! | sequence | waits for the batch's turn ([`turn`]): locks of others and, for an optimistic transaction, what was committed since ([`crate::txn`]); sequence numbers, room in memory | takes `commit` |
//! | log | one append | `commit` |
//! | apply | into the memtables | `commit` |
//! | publish | one release store makes it visible; a memtable that became full is sealed here, so that no entry can race the sealing | gives `commit` back |
//! | sync | `make_durable`: outside the lock, together with other threads that wait, if `Power` was asked for | |
//!
//! Lock order: catalog, commit, a family's view lock. What a commit does to files under the commit lock: the log append, which
//! is a copy into mapped memory or a write into the page cache; every megabyte of log it maps the next one, and once a
//! segment it takes a spare, or makes a file if there is none. Nothing is synced or flushed there, except by a close, which
//! ends the log.
//!
//! # Files that become part of the database
//!
//! An ingest, a clone and an import are commits whose operations are in files. They have stages of their own
//! (`ingest/install.rs`):
//!
//! | stage | what it does | locks |
//! |---|---|---|
//! | admit | locks the keys between each file's smallest and largest, as a transaction would: who writes there waits until the files are visible | |
//! | prepare | flushes memtables that hold any of these keys; syncs most of the log | |
//! | sequence | finds a place in the tree for each file; sequence numbers | `catalog`, then `commit` too |
//! | log | one append: the record has the edits that the manifest is told later | `catalog`, `commit` |
//! | publish | the views get the files, and one release store makes them visible | `catalog`, gives `commit` back |
//! | sync | the log up to the record, while commits go on behind it | `catalog` |
//! | record | the edits go into the manifest | gives `catalog` back |
//!
//! The files are at one place among the commits, in memory and in the log, so that a power cut leaves a prefix of both together:
//! the manifest is told only what the synced log has, and until then recovery takes the files from the log. The catalog lock
//! keeps all other records of the manifest behind that of the files. So one that shows the files' last sequence number or a later
//! one has the files, which is how recovery knows. If the manifest cannot be written, its next record begins with the files; if
//! the log cannot be synced, the manifest takes no further record.

pub mod batch;
mod divert;
pub(crate) mod hook;
#[cfg(feature = "tokio")]
mod in_task;
mod request;
mod room;
mod seal;
pub(crate) mod stall;
pub(crate) mod state;
mod turn;

pub(crate) use request::{Commit, Guard, Visible};

use crate::engine::DbInner;
use crate::family::Family;
use crate::options::WriteOptions;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::trace;
use crate::version::{Edit, LogBegun};
use crate::wal::{Lsn, Wal, WalRecord};
use batch::WriteBatch;
use divert::Diverted;
use kingtide_base::histogram::Histogram;
use kingtide_base::key::EXPIRY_FLAG;
use kingtide_base::options::Durability;
use kingtide_base::perf::{self, Stage};
use kingtide_base::slow::Subject;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag};
use state::{CommitState, half_filled};
use std::sync::Arc;
use turn::ValidationScope;

/// A batch that is ready to be committed.
struct Ready<'a> {
    batch: &'a WriteBatch,
    record: WalRecord<'a>,
    /// Where values were written that the batch points to.
    direct: &'a [Diverted],
    /// It survives in no log.
    unlogged: bool,
    /// Given up last, when the commit lock is.
    _watch: Option<ValidationScope<'a>>,
}

/// A commit that has the commit lock and its sequence numbers.
struct Turn<'a> {
    state: MutexGuard<'a, CommitState>,
    base: SeqNo,
    last: SeqNo,
}

impl DbInner {
    /// Commits a batch that belongs to no transaction, as its options say. Returns the last sequence number it was given; 0 for
    /// an empty batch.
    pub(crate) fn write(self: &Arc<Self>, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        let started = self.stats.start();
        let written = self.write_and_sync(batch, options);
        self.stats.finish(Histogram::Write, batch.histograms(), started, || batch.about());
        written
    }

    fn write_and_sync(self: &Arc<Self>, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        let durability = options.durability.unwrap_or_else(|| self.durability());
        if batch.sequences() == 0 {
            self.check_writable()?;
            if durability == Durability::Power {
                self.wal.sync_all()?; // what was committed before is what the caller means
            }
            return Ok(0);
        }
        let visible = self.commit(batch, &Commit { options, guard: Guard::Plain, admitted: false, refusal: None })?;
        self.notify_hooks(visible);
        self.make_durable(visible, durability)?;
        Ok(visible.last)
    }

    /// Puts a large value, which is written to its value log from where it is: no batch holds a copy. Returns the
    /// sequence number, or `None`, and then nothing was done: it goes the way of all values.
    pub(crate) fn put_uncopied(
        self: &Arc<Self>,
        family: &Arc<Family>,
        (key, expiry): (&[u8], Option<u64>),
        value: &[u8],
    ) -> Result<Option<SeqNo>> {
        if !self.may_divert_one(family, value.len() as u64) {
            return Ok(None);
        }
        let started = self.stats.start();
        let put = self.put_and_sync(family, (key, expiry), value);
        self.stats.finish(Histogram::Write, Some(family.histograms()), started, || Subject::key(family.id(), key));
        put.map(Some)
    }

    fn put_and_sync(
        self: &Arc<Self>,
        family: &Arc<Family>,
        (key, expiry): (&[u8], Option<u64>),
        value: &[u8],
    ) -> Result<SeqNo> {
        batch::check_key(key)?;
        self.check_writable()?;
        family.check_alive()?;
        self.admit(value.len() as u64, false)?;
        let options = WriteOptions::default();
        let how = Commit { options: &options, guard: Guard::Plain, admitted: true, refusal: None };
        let mut batch = WriteBatch::new();
        let uncopied = match self.divert_one(family, value)? {
            Some((pointer, logs)) => {
                batch.push_pointer(family, key, expiry, &pointer)?;
                self.commit_admitted((&mut batch, &logs), None, &how)?
            }
            None => None,
        };
        let visible = match uncopied {
            Some(visible) => visible,
            None => {
                batch.clear();
                let kind = Kind::Put as u8 | if expiry.is_some() { EXPIRY_FLAG } else { 0 };
                batch.push(family, kind, key, expiry, Some(value))?;
                self.commit(&mut batch, &how)?
            }
        };
        self.notify_hooks(visible);
        self.make_durable(visible, self.durability())?;
        Ok(visible.last)
    }

    /// Commits a batch that is not empty, up to the point where others see it. When the caller has given up what it holds,
    /// [`DbInner::notify_hooks`] and [`DbInner::make_durable`] do the rest.
    pub(crate) fn commit(self: &Arc<Self>, batch: &mut WriteBatch, how: &Commit<'_>) -> Result<Visible> {
        let _span = trace::commit();
        if !how.admitted {
            self.check_writable()?;
            self.admit(batch.bytes() as u64, how.options.no_wait)?;
        }
        if batch.may_divert()
            && let Some(visible) = self.commit_diverted(batch, how)?
        {
            return Ok(visible);
        }
        self.commit_admitted((batch, &[]), None, how)?.ok_or_else(staged_too_early)
    }

    /// Commits with large values written to value logs first. `None`: there are none that may be, and nothing was committed.
    #[cold]
    fn commit_diverted(self: &Arc<Self>, batch: &WriteBatch, how: &Commit<'_>) -> Result<Option<Visible>> {
        let durability = how.options.durability.unwrap_or_else(|| self.durability());
        let Some((mut pointers, logs)) = self.divert(batch, durability)? else { return Ok(None) };
        self.commit_admitted((&mut pointers, &logs), Some(batch), how)
    }

    /// The stages after the admission. `shown`: what hooks see in the place of the batch. `None`: nothing was committed, because
    /// the batch points to values that the log itself must hold by now.
    fn commit_admitted(
        self: &Arc<Self>,
        (batch, direct): (&mut WriteBatch, &[Diverted]),
        shown: Option<&WriteBatch>,
        how: &Commit<'_>,
    ) -> Result<Option<Visible>> {
        let ready = self.prepare((batch, direct), how)?;
        let Some(mut turn) = self.sequence(&ready, how)? else { return Ok(None) };
        let lsn = self.log(&mut turn, &ready)?;
        self.apply(&mut turn, &ready, lsn);
        let visible = self.publish(turn, &ready, shown.unwrap_or(ready.batch), lsn);
        self.count(ready.batch);
        Ok(Some(visible))
    }

    /// Whatever can be done without the commit lock.
    fn prepare<'a>(
        &'a self,
        (batch, direct): (&'a mut WriteBatch, &'a [Diverted]),
        how: &Commit<'_>,
    ) -> Result<Ready<'a>> {
        if !batch.families().iter().all(|f| f.belongs_to(&self.stats)) {
            return Err(Error::invalid("the batch holds operations on a column family of another database"));
        }
        self.check_writable()?;
        // What was prepared was taken then, and must be committed whatever happens.
        if !batch.control().is_some_and(|c| c.resolves) {
            self.check_space(batch)?;
        }
        let durability = how.options.durability.unwrap_or_else(|| self.durability());
        batch.prepare();
        let batch = &*batch;
        let points = !direct.is_empty() || !batch.staged().is_empty();
        let record = WalRecord { points, ..WalRecord::new(batch.payload()) };
        // What a control operation says is nowhere but in the log. Families are flushed one by one: only the log keeps a
        // batch over several of them whole.
        let alone = batch.families().len() < 2;
        let unlogged = durability == Durability::None && batch.control().is_none() && alone;
        if !unlogged {
            self.begin_log()?;
        }
        let watched = matches!(how.guard, Guard::Checked(v) if !v.ranges.is_empty());
        let watch = watched.then(|| ValidationScope::begin(self));
        Ok(Ready { batch, record, direct, unlogged, _watch: watch })
    }

    /// Takes the commit lock when it is the batch's turn, and gives it its sequence numbers and room in memory: after this
    /// nothing fails but the log. `None`: the batch points to values that the log itself must hold. Streams read such a
    /// value as long as its file is there, and `change_retention` promises more of all commits after it was set.
    fn sequence<'a>(&'a self, ready: &Ready<'_>, how: &Commit<'_>) -> Result<Option<Turn<'a>>> {
        let batch = ready.batch;
        let timer = perf::begin_wait();
        let mut state = self.take_turn(batch, how)?;
        timer.end(Stage::TurnNs);
        if state.holds_values && ready.record.points {
            return Ok(None);
        }
        let (base, last) = (state.last_seq + 1, state.last_seq + batch.sequences() as u64);
        if last > kingtide_base::key::MAX_SEQ {
            return Err(Error::invalid("sequence numbers are used up"));
        }
        batch.check_staged()?;
        self.reserve_memtables(&mut state, batch)?;
        Ok(Some(Turn { state, base, last }))
    }

    /// Appends the record to the log, unless the batch does without. `None`: it is not in the log.
    fn log(&self, turn: &mut Turn<'_>, ready: &Ready<'_>) -> Result<Option<Lsn>> {
        let timer = perf::begin_wait();
        let lsn = match ready.unlogged {
            true => None,
            false => {
                ready.direct.iter().for_each(|d| self.wal.needs_first(d.sync_first()));
                ready.batch.staged().iter().for_each(|s| self.wal.needs_first(divert::sync_first(&s.log)));
                Some(turn.state.wal.append(turn.base, ready.batch.sequences() as u32, ready.record)?)
            }
        };
        debug_assert_eq!(turn.state.last_seq + 1, turn.base, "another commit took numbers during this one's turn");
        timer.end(Stage::LogNs);
        perf::count(Stage::LogBytes, if ready.unlogged { 0 } else { ready.batch.payload().len() as u64 });
        turn.state.last_seq = turn.last;
        Ok(lsn)
    }

    /// Puts the operations into the memtables, and tells those who look out for them.
    fn apply(&self, turn: &mut Turn<'_>, ready: &Ready<'_>, lsn: Option<Lsn>) {
        let batch = ready.batch;
        self.hold_files(batch, ready.direct);
        let timer = perf::begin_wait();
        let guard = CommitGuard { state: &mut turn.state, wal: &self.wal };
        fill_memtables(batch, turn.base);
        guard.done();
        timer.end(Stage::MemtableInsertNs);
        if let (Some(control), Some(lsn)) = (batch.control(), lsn) {
            self.prepared.logged(control, turn.last, lsn, self.wal.synced());
        }
        self.note_writes(batch, turn.base);
        turn.state.recent.note(batch, turn.base);
    }

    /// Makes the commit visible, seals memtables that became full, and gives the commit lock back.
    /// `shown` is the batch with its values, for hooks.
    fn publish(&self, mut turn: Turn<'_>, ready: &Ready<'_>, shown: &WriteBatch, lsn: Option<Lsn>) -> Visible {
        self.snapshots.publish(turn.last);
        let hooked = self.hooks.enqueue(shown, || ready.direct.iter().map(|d| d.file().clone()).collect(), turn.last);
        self.seal_full_memtables(&mut turn.state, ready.batch.families());
        Visible { last: turn.last, lsn, hooked }
    }

    /// Has commit hooks called for a commit, before its call returns. A hook may read and write what it likes, so by now
    /// the commit's thread holds nothing that another thread could wait for.
    #[inline]
    pub(crate) fn notify_hooks(&self, commit: Visible) {
        if commit.hooked {
            self.hooks.deliver();
        }
    }

    /// Waits until a commit survives what its durability says.
    pub(crate) fn make_durable(&self, commit: Visible, durability: Durability) -> Result<()> {
        match (durability, commit.lsn) {
            (Durability::Power, Some(lsn)) => self.wal.sync_to(lsn), // which counts it
            _ => Ok(()),
        }
    }

    /// Before the first commit: begins a log segment and notes it in the manifest, so that recovery knows that there
    /// must be one. Once an open, not at opening, which must work on a full disk.
    #[inline]
    pub(crate) fn begin_log(&self) -> Result<()> {
        if self.log_begun.load(Ordering::Acquire) { Ok(()) } else { self.begin_log_now() }
    }

    #[cold]
    fn begin_log_now(&self) -> Result<()> {
        let mut catalog = self.catalog.lock();
        if self.log_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_open()?;
        let segment = self.commit.lock().wal.begin()?;
        self.wal.sync_names()?; // the record below says that it is there
        let change_retention = Some(self.options.read().change_retention);
        let begun = LogBegun { segment, boot_id: self.fs.boot_id(), change_retention };
        catalog.write(&[Edit::LogBegun(begun)], &self.next_file_id)?;
        self.log_begun.store(true, Ordering::Release);
        Ok(())
    }

    /// Tells the conflict filter what is committed.
    #[inline]
    fn note_writes(&self, batch: &WriteBatch, base: SeqNo) {
        let filter = self.conflicts();
        for (i, op) in batch.ops().iter().enumerate() {
            if op.kind == Kind::RangeDelete as u8 {
                filter.note_range(base + i as u64);
            } else {
                filter.note(op.slot, base + i as u64);
            }
        }
    }

    fn count(&self, batch: &WriteBatch) {
        if batch.is_empty() {
            return; // a record about a prepared transaction
        }
        let (mut puts, mut deletes, mut ranges) = (0, 0, 0);
        for op in batch.ops() {
            match Tag(op.kind as u64).kind() {
                Some(Kind::Put | Kind::PutPointer) => puts += 1,
                Some(Kind::RangeDelete) => ranges += 1,
                _ => deletes += 1,
            }
        }
        self.stats.add(Stat::Commits, 1);
        self.stats.add(Stat::BytesCommitted, batch.raw_bytes() as u64);
        for (stat, n) in [(Stat::Puts, puts), (Stat::Deletes, deletes), (Stat::RangeDeletes, ranges)] {
            if n > 0 {
                self.stats.add(stat, n);
            }
        }
    }
}

/// A conflict, because another thread's change of the option got in between, and doing the same again succeeds.
#[cold]
fn staged_too_early() -> Error {
    let text = "the staged value was begun before `change_retention` was set: with that the log itself holds large \
                values, so write it again";
    Error::new(ErrorKind::Conflict, text)
}

/// Stops writes if filling the memtables panics, as a family's key order may: what is in memory is a part of a batch then,
/// which the next commit would publish and a flush would make durable. Reads never see it. The log holds all of the batch
/// or, if it was not to be logged, nothing, so the next open puts things right.
struct CommitGuard<'a> {
    state: &'a mut CommitState,
    wal: &'a Wal,
}

impl CommitGuard<'_> {
    #[inline]
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for CommitGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        self.state.half_filled = true;
        self.wal.stop(half_filled());
    }
}

/// Inserts a batch's operations, operation `i` with sequence `base + i`, family by family.
fn fill_memtables(batch: &WriteBatch, base: SeqNo) {
    let ops = batch.ops();
    for of_family in batch.fill_order().chunk_by(|a, b| ops[*a as usize].family == ops[*b as usize].family) {
        let family = &batch.families()[ops[of_family[0] as usize].family as usize];
        let view = family.view.load();
        view.active.note_entries_from(base);
        let mut ranges = false;
        let points = of_family.iter().filter_map(|i| {
            let op = &ops[*i as usize];
            if op.kind == Kind::RangeDelete as u8 {
                ranges = true;
                return None;
            }
            Some((batch.key_of(op), Tag((base + *i as u64) << 8 | op.kind as u64), batch.value_of(op)))
        });
        view.active.writer().insert_batch(points);
        if ranges {
            for i in of_family.iter().filter(|i| ops[**i as usize].kind == Kind::RangeDelete as u8) {
                let op = &ops[*i as usize];
                view.active.insert_range(batch.key_of(op), batch.value_of(op), base + *i as u64);
            }
        }
    }
}
