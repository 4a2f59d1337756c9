//! The write path. [`Pipeline::commit`] is a commit from one end to the other, stage by stage, over what this module gives it of the
//! database ([`CommitEnv`]):
//!
//! | stage | what it does | lock |
//! |---|---|---|
//! | admit | flow control ([`stall`]), which may slow the writer or, on request, refuse it with `Busy` | |
//! | divert | writes large values to value logs ([`divert`]): the batch has pointers from here on | |
//! | prepare | checks the batch, which is serialized already; its checksum, the order to fill memtables in | |
//! | sequence | waits for the batch's turn: locks of other transactions ([`locks`]) and, for an optimistic transaction, what was committed since ([`crate::txn`]); sequence numbers, room in memory | takes `commit` |
//! | log | one append | `commit` |
//! | apply | into the memtables | `commit` |
//! | publish | one release store makes it visible; a memtable that became full is sealed here, so that no entry can race the sealing | gives `commit` back |
//! | sync | [`Pipeline::sync`]: outside the lock, together with other threads that wait, if `Power` was asked for | |
//!
//! Lock order: catalog, commit, a family's view lock. What a commit does to files under the commit lock: the log append, which
//! is a copy into mapped memory or a write into the page cache; every 256 KiB of log it maps the next ones, and once a
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
//! | admit | locks the keys between each file's smallest and largest, as a transaction would: a commit that writes there waits until the files are visible | |
//! | prepare | flushes memtables that hold any of these keys; syncs most of the log | |
//! | sequence | finds a place in the tree for each file; sequence numbers | `catalog`, then `commit` too |
//! | log | one append: the record has the edits that are written to the manifest later | `catalog`, `commit` |
//! | publish | the views get the files, and one release store makes them visible | `catalog`, gives `commit` back |
//! | sync | the log up to the record, while commits go on behind it | `catalog` |
//! | record | the edits go into the manifest | gives `catalog` back |
//!
//! The files are at one place among the commits, in memory and in the log, so that a power cut leaves a prefix of both together:
//! the manifest gets only what the synced log has, and until then recovery takes the files from the log. The catalog lock
//! keeps all other records of the manifest behind that of the files. So one that shows the files' last sequence number or a later
//! one has the files, which is how recovery knows. If the manifest cannot be written, its next record begins with the files; if
//! the log cannot be synced, the manifest takes no further record.

pub mod batch;
pub(crate) mod dead_space;
mod divert;
pub(crate) mod hook;
#[cfg(feature = "tokio")]
pub(crate) mod in_task;
mod locks;
pub(crate) mod pipeline;
#[cfg(test)]
pub(crate) mod pipeline_tests;
mod room;
pub(crate) mod stall;

use crate::direct::Diverted;
use crate::engine::DbInner;
use crate::family::Family;
use crate::options::WriteOptions;
use crate::trace;
use crate::txn::Transactions;
use crate::txn::read_set::{Round, Validation};
use crate::txn::validate::Verdict;
use batch::WriteBatch;
use dead_space::Shares;
use kingtide_base::histogram::Histogram;
use kingtide_base::key::EXPIRY_FLAG;
use kingtide_base::options::Durability;
use kingtide_base::slow::Subject;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, Tag};
use kingtide_mem::fair::FairMutex;
use kingtide_versions::{Edit, LogBegun};
use kingtide_wal::{Lsn, WalWriter};
use pipeline::{Admission, Commit, CommitEnv, CommitState, Guard, Pipeline, Visible};
use stall::Pace;
use std::sync::Arc;
use std::time::Duration;

/// Batches up to this size need not be measured family by family.
const SMALL_BATCH: usize = 64 << 10;

/// How often, for a millisecond or less each time, the end of a prepared transaction waits for running flushes and compactions to end. There is a
/// limit because one of them may itself wait for this very commit, in the listener of an event.
const MOST_WAITS_FOR_JOBS: u32 = 10_000;

impl DbInner {
    /// Commits a batch that belongs to no transaction, as its options say. Returns the last sequence number it was given; 0 for
    /// an empty batch.
    pub(crate) fn write(&self, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        self.check_origin()?; // the histograms of a family have a lock
        let started = self.stats.start();
        let written = self.write_and_sync(batch, options);
        self.stats.finish(Histogram::Write, batch.histograms(), started, || batch.about());
        written
    }

    fn write_and_sync(&self, batch: &mut WriteBatch, options: &WriteOptions) -> Result<SeqNo> {
        let durability = options.durability.unwrap_or_else(|| self.durability());
        if batch.sequences() == 0 {
            self.check_writable()?;
            if durability == Durability::Power {
                self.wal.sync_all()?; // what was committed before is what the caller means
            }
            return Ok(0);
        }
        let visible = self.commit(batch, &Commit::new(options, Guard::Plain))?;
        self.notify_hooks(visible);
        self.make_durable(visible, durability)?;
        Ok(visible.last)
    }

    /// Puts a large value, which is written to its value log from where it is: no batch holds a copy. Returns the
    /// sequence number, or `None`, and then nothing was done: it goes the way of all values.
    pub(crate) fn put_uncopied(
        &self,
        family: &Arc<Family>,
        (key, expiry): (&[u8], Option<u64>),
        value: &[u8],
    ) -> Result<Option<SeqNo>> {
        if !self.may_divert_one(family, value.len() as u64) {
            return Ok(None);
        }
        self.check_origin()?; // as above
        let started = self.stats.start();
        let put = self.put_and_sync(family, (key, expiry), value);
        self.stats.finish(Histogram::Write, Some(family.histograms()), started, || Subject::key(family.id(), key));
        put.map(Some)
    }

    fn put_and_sync(&self, family: &Arc<Family>, (key, expiry): (&[u8], Option<u64>), value: &[u8]) -> Result<SeqNo> {
        batch::check_key(key)?;
        family.check_alive()?;
        let len = value.len() as u64;
        self.admit_shares(len, || vec![(family.dead_space.clone(), len)], false)?;
        let how = Commit::admitted(&WriteOptions::DEFAULT, Guard::Plain);
        let mut batch = WriteBatch::new();
        let uncopied = match self.divert_one(family, value)? {
            Some((pointer, files)) => {
                batch.push_pointer(family, key, expiry, &pointer)?;
                let _span = trace::commit();
                Pipeline::new(self).commit(&mut batch, &Commit { diverted: &files, ..how })?
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
    pub(crate) fn commit(&self, batch: &mut WriteBatch, how: &Commit<'_>) -> Result<Visible> {
        let _span = trace::commit();
        let mut committed = Pipeline::new(self).commit(batch, how);
        if is_refused_for_space(&committed) && self.made_room_for(batch, how) {
            committed = Pipeline::new(self).commit(batch, how);
            if is_refused_for_space(&committed) && batch.control().is_some_and(|c| c.resolves()) {
                committed = self.commit_in_space_of_manifest(batch, how);
            }
        }
        committed?.ok_or_else(staged_too_early)
    }

    /// Commits the end of a prepared transaction, for which even the ballast left no space, in the space that is kept for the manifest. A transaction
    /// must not stay in doubt for want of a few bytes: it has locks, and a coordinator that recovers may not begin its work before it ends. The
    /// smallest segment of the log takes no more than half of this space; the rest is for the record that says where the log begins.
    ///
    /// A flush or compaction would take this space, even if it soon failed for want of more. So those that run end first, and none begins meanwhile.
    #[cold]
    fn commit_in_space_of_manifest(&self, batch: &mut WriteBatch, how: &Commit<'_>) -> Result<Option<Visible>> {
        let _claims = self.jobs.claims.lock();
        for _ in 0..MOST_WAITS_FOR_JOBS {
            if self.catalog.lock().is_quiet() {
                break;
            }
            self.jobs.wait_for_progress(Duration::from_millis(1));
        }
        // Flow control must not hold this commit either: it would wait for a flush.
        let how = Commit { admitted: true, ..*how };
        self.reserve.with_space_of_manifest(|| Pipeline::new(self).commit(batch, &how))
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
        Pipeline::new(self).sync(commit, durability)
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
}

impl DbInner {
    /// Paces a writer of `bytes`, or holds it, as [`CommitEnv::admit`] says. `shares` is called where it matters what goes to which family.
    #[inline]
    pub(crate) fn admit_shares(&self, bytes: u64, shares: impl FnOnce() -> Shares, no_wait: bool) -> Result<()> {
        self.check_writable()?;
        let shares = if self.stall.dead_space_is_idle() { Shares::new() } else { shares() };
        if no_wait && self.stall.would_wait(bytes, &shares) {
            return Err(self.refuse_to_wait());
        }
        match self.stall.admit(bytes, &shares) {
            Pace::Go if stall::any_full(&shares) => {
                self.wait_for_space(&shares);
                Ok(())
            }
            Pace::Go => Ok(()),
            Pace::Full => self.wait_for_flush(),
        }
    }
}

/// The common case of each method is here; what is rare stands in the module that it belongs to.
impl CommitEnv for DbInner {
    type Log = WalWriter;

    #[inline]
    fn admit(&self, batch: &WriteBatch, no_wait: bool) -> Result<()> {
        self.admit_shares(batch.bytes() as u64, || batch.shares(), no_wait)
    }

    #[inline]
    fn default_durability(&self) -> Durability {
        self.durability()
    }

    fn divert(&self, batch: &WriteBatch, durability: Durability) -> Result<Option<(WriteBatch, Vec<Diverted>)>> {
        self.divert_batch(batch, durability)
    }

    #[inline]
    fn check(&self, batch: &WriteBatch) -> Result<()> {
        if !batch.families().iter().all(|f| f.belongs_to(&self.stats)) {
            return Err(Error::invalid("the batch holds operations on a column family of another database"));
        }
        self.check_writable()?;
        // What was prepared was taken then, and must be committed whatever happens.
        let resolves = batch.control().is_some_and(|c| c.resolves());
        if !resolves {
            // The sync of the log would fail for it, and stop all writes.
            batch.staged().iter().try_for_each(|s| s.log.check_synced())?;
        }
        if self.reserve.is_spent() && !resolves { self.check_space(batch) } else { Ok(()) }
    }

    #[inline]
    fn ensure_log(&self) -> Result<()> {
        self.begin_log()
    }

    #[inline]
    fn commits(&self) -> &FairMutex<CommitState> {
        &self.commit
    }

    #[inline]
    fn validate_unlocked(&self, v: &Validation<'_>, batch: &WriteBatch, round: Round, again: bool) -> Result<SeqNo> {
        if again || v.is_long(batch) || self.may_conflict(v, batch) {
            self.validate_outside(v, batch, round.checked)
        } else {
            Ok(round.checked)
        }
    }

    #[inline]
    fn admission(&self, state: &CommitState, batch: &WriteBatch, guard: &Guard<'_>, round: Round) -> Result<Admission> {
        self.check_open()?;
        // A transaction that was prepared commits in families too whose drop failed: the next open may find them undropped, and
        // must not find a part of it.
        let resolves = batch.control().is_some_and(|c| c.resolves());
        for f in batch.families() {
            if resolves { f.check_not_gone()? } else { f.check_alive()? }
        }
        if matches!(guard, Guard::Locked) {
            return Ok(Admission::Go);
        }
        if self.txns.locks.any_held()
            && let Some((op, holder)) = self.first_locked(batch, guard)
        {
            return match guard {
                // A transaction waits for an ingest too: whether the two conflict is for the validation to say.
                _ if Transactions::is_ingest(holder) => Ok(Admission::Wait(op)),
                Guard::Plain => Ok(Admission::Wait(op)),
                _ => Err(self.locked_conflict(batch, op, holder)),
            };
        }
        match guard {
            Guard::Checked(v) => match self.validate_locked(v, batch, &state.recent, round)? {
                Verdict::Pass => Ok(Admission::Go),
                Verdict::LookOutside => Ok(Admission::LookOutside),
            },
            _ => Ok(Admission::Go),
        }
    }

    fn wait_for_locks(
        &self,
        batch: &WriteBatch,
        op: usize,
        options: &WriteOptions,
        since: &mut Option<u64>,
    ) -> Result<()> {
        if !options.no_wait && self.is_locked_by_ingest(batch, op) {
            return self.wait_for_ingest(batch, op, since);
        }
        let began = *since.get_or_insert_with(|| self.clock.monotonic_ns());
        match self.wait_until_unlocked(batch, op, (!options.no_wait).then_some(began)) {
            // It waited for a transaction first, and then for an ingest.
            Err(e) if e.kind() == ErrorKind::LockTimeout && self.is_locked_by_ingest(batch, op) => Ok(()),
            waited => waited,
        }
    }

    #[inline]
    fn reserve(&self, state: &mut CommitState, batch: &WriteBatch) -> Result<()> {
        // All of a small batch may go to each family.
        let (bytes, ops) = (batch.bytes(), batch.len());
        let fits = |f: &Arc<Family>| f.view.load().active.reserve(bytes, ops).is_ok();
        if bytes <= SMALL_BATCH && batch.families().iter().all(fits) { Ok(()) } else { self.reserve_each(state, batch) }
    }

    #[inline]
    fn apply(&self, batch: &WriteBatch, diverted: &[Diverted], base: SeqNo) {
        if batch.prepares_staged() {
            batch.staged().iter().for_each(|s| s.log.promise());
        } else if !diverted.is_empty() || !batch.staged().is_empty() {
            self.hold_files(batch, diverted);
        }
        fill_memtables(batch, base);
    }

    #[inline]
    fn note(&self, batch: &WriteBatch, base: SeqNo, lsn: Option<Lsn>) {
        if let (Some(control), Some(lsn)) = (batch.control(), lsn) {
            self.prepared.logged(control, base + batch.sequences() as u64 - 1, lsn, self.wal.synced());
        }
        let filter = &self.txns.filter;
        for (i, op) in batch.ops().iter().enumerate() {
            if op.kind == Kind::RangeDelete as u8 {
                filter.note_range(base + i as u64);
            } else {
                filter.note(op.slot, base + i as u64);
            }
        }
    }

    #[inline]
    fn publish(&self, last: SeqNo) {
        self.snapshots.publish(last);
    }

    #[inline]
    fn enqueue_for_hooks(&self, shown: &WriteBatch, diverted: &[Diverted], last: SeqNo) -> bool {
        self.hooks.enqueue(shown, || diverted.iter().map(|d| d.log.clone()).collect(), last)
    }

    #[inline]
    fn seal_full(&self, state: &mut CommitState, batch: &WriteBatch) {
        for f in batch.families() {
            let limit = f.options().memtable_size;
            let view = f.view.load();
            let direct = view.active.direct().disk_bytes();
            if view.active.memory() > limit || (direct > 0 && direct > self.direct_bytes_before_seal(f, limit)) {
                self.seal_memtable(state, f);
            }
        }
        let most = self.max_wal_size.load(Ordering::Relaxed);
        if self.wal.needed_size() > most {
            self.seal_for_log(state, most);
        }
    }

    #[inline]
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

    #[inline]
    fn sync_within(&self, time: Duration) {
        // Most commits with this durability have it from the option, whose syncs come in any case.
        if !matches!(self.durability(), Durability::Interval(every) if every <= time) {
            self.ask_for_sync_within(time);
        }
    }

    fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.wal.sync_to(lsn)
    }
}

fn is_refused_for_space(committed: &Result<Option<Visible>>) -> bool {
    committed.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace)
}

/// A conflict, because another thread's change of the option got in between, and doing the same again succeeds.
#[cold]
fn staged_too_early() -> Error {
    let text = "the staged value was begun before `change_retention` was set: with that the log itself holds large \
                values, so write it again";
    Error::new(ErrorKind::Conflict, text)
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
