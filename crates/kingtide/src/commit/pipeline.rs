//! The commit pipeline: what happens to a batch from its arrival until it is visible, stage by stage, and in which order.
//! [`Pipeline::commit`] is the outline; the table in [`crate::commit`] says what each stage is for.
//!
//! It knows no database. What the stages need of one (flow control, the log, memtables, validation, hooks) they get through
//! [`CommitEnv`], which `DbInner` implements and tests replace. Calls through it are resolved at compile time.
//!
//! What the pipeline itself guarantees, whatever the environment does:
//!
//! * Commits get contiguous sequence numbers, in the order in which they are logged. One that fails takes none.
//! * A commit is in the log before it is in a memtable, and wholly in the memtables before it is visible.
//! * After a panic amid filling memtables nothing is committed any more.
//! * Waiting (for room, for locks, for a sync) happens without the commit lock.

use super::batch::{StagedFile, WriteBatch};
use crate::direct::{DirectLog, Diverted, sync_first};
use crate::family::Family;
use crate::options::WriteOptions;
use crate::txn::read_set::{Round, Validation};
use crate::txn::recent::RecentWrites;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::options::Durability;
use kingtide_base::perf::{self, Stage};
use kingtide_base::sync::spin_loop;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_mem::fair::{FairGuard, FairMutex};
use kingtide_wal::{Lsn, SyncFirst, WalRecord, WalWriter};
use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Rounds of validation outside the commit lock before the rest is done under it, tables and all.
const ROUNDS_OUTSIDE: u32 = 3;
/// Attempts of a commit that must not wait to take the commit lock.
const TRIES: usize = 128;

/// How a batch is committed.
#[derive(Clone, Copy)]
pub(crate) struct Commit<'a> {
    pub options: &'a WriteOptions,
    pub guard: Guard<'a>,
    /// Flow control let it pass already, before the caller took a lock that others must not wait for.
    pub admitted: bool,
    /// A commit that must not wait for another thread: where it would, it sets this and fails, and nothing has happened.
    pub refusal: Option<&'a Cell<bool>>,
    /// The same for one that must not wait for a lock of a transaction, but for all else.
    pub lock_refusal: Option<&'a LockRefusal>,
    /// Values that the batch points to, already written to value logs.
    pub diverted: &'a [Diverted],
    /// What hooks are shown in the place of the batch: one that has the values themselves.
    pub shown: Option<&'a WriteBatch>,
}

/// Large values of a batch in value logs, and the batch that points to them.
pub(crate) struct Written {
    pointers: WriteBatch,
    files: Vec<Diverted>,
}

/// What a commit leaves that was refused because of a lock.
#[derive(Default)]
pub(crate) struct LockRefusal {
    pub refused: Cell<bool>,
    /// Its large values, if it has written them: [`Pipeline::commit_written`] commits them without writing them again.
    pub written: Cell<Option<Written>>,
}

impl<'a> Commit<'a> {
    /// A commit that waits where it must, of a batch that holds its values.
    #[inline]
    pub fn new(options: &'a WriteOptions, guard: Guard<'a>) -> Commit<'a> {
        Commit { options, guard, admitted: false, refusal: None, lock_refusal: None, diverted: &[], shown: None }
    }

    /// The same for a batch that flow control let pass already.
    #[inline]
    pub fn admitted(options: &'a WriteOptions, guard: Guard<'a>) -> Commit<'a> {
        Commit { admitted: true, ..Commit::new(options, guard) }
    }

    /// The error of a commit that must not wait and would have to; `None` if it may.
    fn refuse(&self) -> Option<Error> {
        Self::refuse_by(self.refusal)
    }

    /// The same where it would wait for a lock.
    fn refuse_lock(&self) -> Option<Error> {
        Self::refuse_by(self.refusal.or(self.lock_refusal.map(|refusal| &refusal.refused)))
    }

    fn refuse_by(refusal: Option<&Cell<bool>>) -> Option<Error> {
        refusal?.set(true);
        Some(Error::new(ErrorKind::Busy, "the commit would have to wait"))
    }
}

/// What a commit has to mind besides its batch.
#[derive(Clone, Copy)]
pub(crate) enum Guard<'a> {
    /// A write outside any transaction: it waits until no transaction holds a lock on what it writes.
    Plain,
    /// An optimistic transaction: what it relied on must be unchanged, and no other transaction may hold a lock on what it writes.
    Checked(&'a Validation<'a>),
    /// A transaction that holds locks on all that it relies on.
    Locked,
}

/// A commit that is visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    /// The sequence number of its last operation.
    pub last: SeqNo,
    /// Where its log record ends; `None` if it was not logged.
    pub lsn: Option<Lsn>,
    /// A commit hook is to be called: see `DbInner::notify_hooks`.
    pub hooked: bool,
}

/// What may be done under the commit lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Go,
    /// What is to be validated needs a look into tables.
    LookOutside,
    /// Another transaction holds a lock on this operation's key or range.
    Wait(usize),
}

/// The log's appending end, as the pipeline uses it under the commit lock.
pub(crate) trait CommitLog {
    /// Appends a record of `count` operations, the first of which has the sequence number `base`. After an error nothing was
    /// appended, and the same numbers may be used again.
    fn append(&mut self, base: SeqNo, count: u32, record: WalRecord<'_>) -> Result<Lsn>;

    /// The next record points into `file`, which each later sync of the log must sync before the log.
    fn needs_first(&mut self, file: Weak<dyn SyncFirst>);

    /// Refuses all appends from now on.
    fn stop(&mut self, why: Error);

    /// Why it takes no appends, if that is so.
    fn poison(&self) -> Option<Error>;
}

impl CommitLog for WalWriter {
    #[inline]
    fn append(&mut self, base: SeqNo, count: u32, record: WalRecord<'_>) -> Result<Lsn> {
        WalWriter::append(self, base, count, record)
    }

    fn needs_first(&mut self, file: Weak<dyn SyncFirst>) {
        self.shared().needs_first(file);
    }

    fn stop(&mut self, why: Error) {
        self.shared().stop(why);
    }

    fn poison(&self) -> Option<Error> {
        self.shared().poison()
    }
}

/// What the commit lock protects.
pub(crate) struct CommitState<L = WalWriter> {
    /// The log's appending end.
    pub wal: L,
    /// Last sequence number given out.
    pub last_seq: SeqNo,
    /// Families that can be written to.
    pub families: Vec<Arc<Family>>,
    /// What was committed while a transaction validates ranges.
    pub recent: RecentWrites,
    /// The log itself must hold all values, because `change_retention` keeps it. Changed with the option, under the commit
    /// lock, so that it is clear which commits come before.
    pub holds_values: bool,
    /// A panic left memtables with a part of a batch: nothing may be published or flushed any more.
    pub half_filled: bool,
    /// The next sequence number when a family was last dropped: a snapshot before it may be of a moment when the family was there, or of one
    /// after the drop and before the next commit. 0 if none was dropped since the open.
    pub last_drop: SeqNo,
}

impl<L> CommitState<L> {
    /// The state of a database whose last sequence number is `last_seq`.
    pub fn new(wal: L, last_seq: SeqNo, families: Vec<Arc<Family>>, holds_values: bool) -> CommitState<L> {
        let recent = RecentWrites::default();
        CommitState { wal, last_seq, families, recent, holds_values, half_filled: false, last_drop: 0 }
    }
}

impl<L: CommitLog> CommitState<L> {
    /// An error once a panic left a part of a batch in memtables.
    #[inline]
    pub fn check_whole(&self) -> Result<()> {
        if self.half_filled { Err(self.wal.poison().unwrap_or_else(half_filled)) } else { Ok(()) }
    }
}

#[cold]
fn half_filled() -> Error {
    let text = "a commit was interrupted by a panic, perhaps of a custom key order; its outcome is unknown until the database is reopened";
    Error::new(ErrorKind::Poisoned, text)
}

/// What the pipeline needs of the database that it commits to, in the order in which a commit needs it.
pub(crate) trait CommitEnv {
    /// The log.
    type Log: CommitLog;

    /// Paces a writer of a batch, or holds it while memory is used up. An error if the database takes no writes, and `Busy`
    /// where the writer would wait and `no_wait` is set.
    fn admit(&self, batch: &WriteBatch, no_wait: bool) -> Result<()>;

    /// The durability of commits that do not say their own.
    fn default_durability(&self) -> Durability;

    /// Writes the batch's large values to value logs. Returns the batch that takes its place, and the files; `None` when all
    /// values stay in the batch.
    fn divert(&self, batch: &WriteBatch, durability: Durability) -> Result<Option<(WriteBatch, Vec<Diverted>)>>;

    /// Refuses a batch that can never be committed, or not now for want of space.
    fn check(&self, batch: &WriteBatch) -> Result<()>;

    /// Sees to it that there is a log, and that recovery will look for it.
    fn ensure_log(&self) -> Result<()>;

    /// The commit lock.
    fn commits(&self) -> &FairMutex<CommitState<Self::Log>>;

    /// Looks at what a transaction relied on, if that may be worth it before the commit lock is taken, or in any case after a round
    /// that found it to be so. Returns the sequence number up to which it looked; `round.checked` if it did not.
    fn validate_unlocked(&self, v: &Validation<'_>, batch: &WriteBatch, round: Round, again: bool) -> Result<SeqNo>;

    /// Whether the batch may be committed now. Called under the commit lock.
    fn admission(
        &self,
        state: &CommitState<Self::Log>,
        batch: &WriteBatch,
        guard: &Guard<'_>,
        round: Round,
    ) -> Result<Admission>;

    /// Waits until no transaction holds a lock on what an operation writes, or as long as the options allow. `since` is when
    /// the commit first waited, which the first call sets.
    fn wait_for_locks(
        &self,
        batch: &WriteBatch,
        op: usize,
        options: &WriteOptions,
        since: &mut Option<u64>,
    ) -> Result<()>;

    /// Makes room for the batch in its families' memtables: filling them cannot fail after this. Called under the commit lock.
    fn reserve(&self, state: &mut CommitState<Self::Log>, batch: &WriteBatch) -> Result<()>;

    /// Fills the memtables: operation `i` has sequence number `base + i`. Called under the commit lock; a panic stops all writes.
    fn apply(&self, batch: &WriteBatch, diverted: &[Diverted], base: SeqNo);

    /// Records the operations for conflict detection, and the decision on a prepared transaction in the table of these. Called
    /// under the commit lock.
    fn note(&self, batch: &WriteBatch, base: SeqNo, lsn: Option<Lsn>);

    /// Makes everything up to `last` visible. Called under the commit lock.
    fn publish(&self, last: SeqNo);

    /// Leaves a commit for the hooks of its families, if there are any: whether the caller has to have them called. Called under
    /// the commit lock.
    fn enqueue_for_hooks(&self, shown: &WriteBatch, diverted: &[Diverted], last: SeqNo) -> bool;

    /// Seals memtables that are full after a commit. Called under the commit lock.
    fn seal_full(&self, state: &mut CommitState<Self::Log>, batch: &WriteBatch);

    /// Counts a commit.
    fn count(&self, batch: &WriteBatch);

    /// Has the log synced in the background within this time, for a commit that is visible.
    fn sync_within(&self, time: Duration);

    /// Waits until the log is on stable storage up to `lsn`, together with other threads that wait.
    fn sync_to(&self, lsn: Lsn) -> Result<()>;
}

/// A batch that is ready to be committed.
struct Ready<'a, L> {
    batch: &'a WriteBatch,
    record: WalRecord<'a>,
    durability: Durability,
    /// It survives in no log.
    unlogged: bool,
    /// Given up last, when the commit lock is.
    _watch: Option<ValidationScope<'a, L>>,
}

/// A commit that has the commit lock and its sequence numbers.
struct Turn<'a, L> {
    state: FairGuard<'a, CommitState<L>>,
    base: SeqNo,
    last: SeqNo,
}

/// Has the files that a commit points into count as needed until memtables, or a prepared transaction, have them. Made under the commit
/// lock before the record is appended.
struct Needed<'a>(&'a [Diverted], &'a [StagedFile]);

impl<'a> Needed<'a> {
    #[inline]
    fn by(diverted: &'a [Diverted], batch: &'a WriteBatch) -> Needed<'a> {
        let needed = Needed(diverted, batch.staged());
        needed.logs().for_each(|log| log.need());
        needed
    }

    #[inline]
    fn logs(&self) -> impl Iterator<Item = &'a Arc<DirectLog>> {
        self.0.iter().map(|d| &d.log).chain(self.1.iter().map(|s| &s.log))
    }
}

impl Drop for Needed<'_> {
    #[inline]
    fn drop(&mut self) {
        self.logs().for_each(|log| log.let_go());
    }
}

/// Commits batches to an environment.
pub(crate) struct Pipeline<'e, E> {
    env: &'e E,
}

impl<'e, E: CommitEnv> Pipeline<'e, E> {
    pub fn new(env: &'e E) -> Pipeline<'e, E> {
        Pipeline { env }
    }

    /// Commits a batch that is not empty, up to the point where others see it. `None`: nothing was committed, because the batch
    /// points to values that the log itself must hold by now, or to values of [`Commit::diverted`] that a power cut may destroy.
    pub fn commit(&self, batch: &mut WriteBatch, how: &Commit<'_>) -> Result<Option<Visible>> {
        self.admit(batch, how)?;
        if let Some(visible) = self.divert(batch, how)? {
            return Ok(Some(visible));
        }
        let ready = self.prepare(batch, how)?;
        let Some(mut turn) = self.sequence(&ready, how)? else { return Ok(None) };
        let _needed = Needed::by(how.diverted, ready.batch);
        let lsn = self.log(&mut turn, &ready, how)?;
        self.apply(&mut turn, &ready, how, lsn);
        let visible = self.publish(turn, &ready, how, lsn);
        self.env.count(ready.batch);
        if let (Durability::Interval(time), Some(_)) = (ready.durability, lsn) {
            self.env.sync_within(time);
        }
        Ok(Some(visible))
    }

    /// Waits until a visible commit survives what its durability says: the last stage, for which a caller first gives up what
    /// others wait for.
    pub fn sync(&self, commit: Visible, durability: Durability) -> Result<()> {
        match (durability, commit.lsn) {
            (Durability::Power, Some(lsn)) => self.env.sync_to(lsn), // which counts it
            _ => Ok(()),
        }
    }

    /// Flow control.
    fn admit(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<()> {
        if how.admitted { Ok(()) } else { self.env.admit(batch, how.options.no_wait) }
    }

    /// Commits with large values written to value logs first. `None`: there are none that may be, and nothing was committed.
    fn divert(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<Option<Visible>> {
        if how.diverted.is_empty() && batch.may_divert() { self.commit_diverted(batch, how) } else { Ok(None) }
    }

    #[cold]
    fn commit_diverted(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<Option<Visible>> {
        let Some((pointers, files)) = self.env.divert(batch, self.durability(how))? else { return Ok(None) };
        let mut written = Written { pointers, files };
        let committed = self.commit_written(batch, &mut written, how);
        if let Some(refusal) = how.lock_refusal.filter(|refusal| refusal.refused.get()) {
            refusal.written.set(Some(written));
        }
        committed
    }

    /// Commits a batch whose large values are written already, and which flow control let pass. `None`: as [`Pipeline::commit`] says.
    pub fn commit_written(
        &self,
        batch: &WriteBatch,
        written: &mut Written,
        how: &Commit<'_>,
    ) -> Result<Option<Visible>> {
        let how = Commit { admitted: true, diverted: &written.files, shown: Some(batch), ..*how };
        self.commit(&mut written.pointers, &how)
    }

    fn durability(&self, how: &Commit<'_>) -> Durability {
        how.options.durability.unwrap_or_else(|| self.env.default_durability())
    }

    /// Whatever can be done without the commit lock.
    fn prepare<'a>(&'a self, batch: &'a mut WriteBatch, how: &Commit<'_>) -> Result<Ready<'a, E::Log>> {
        self.env.check(batch)?;
        self.sync_staged(batch, how)?;
        batch.prepare();
        let batch = &*batch;
        let points = !how.diverted.is_empty() || !batch.staged().is_empty();
        let record = WalRecord { points, prepares_staged: batch.prepares_staged(), ..WalRecord::new(batch.payload()) };
        // What a control operation says is nowhere but in the log. Families are flushed one by one: only the log keeps a
        // batch over several of them whole.
        let alone = batch.families().len() < 2;
        let durability = self.durability(how);
        let unlogged = durability == Durability::None && batch.control().is_none() && alone;
        if !unlogged {
            self.env.ensure_log()?;
        }
        let watched = matches!(how.guard, Guard::Checked(v) if !v.ranges.is_empty());
        let watch = watched.then(|| ValidationScope::begin(self.env.commits()));
        Ok(Ready { batch, record, durability, unlogged, _watch: watch })
    }

    /// Syncs what staged values are in, for a commit that must survive a power cut. If that fails, it is refused, and nothing points
    /// to them: a sync of the log that fails for them would stop all commits.
    fn sync_staged(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<()> {
        let resolves = batch.control().is_some_and(|c| c.resolves());
        if batch.staged().is_empty() || resolves || self.durability(how) != Durability::Power {
            return Ok(());
        }
        match how.refuse() {
            Some(e) => Err(e),
            None => batch.staged().iter().try_for_each(|s| s.log.make_durable()),
        }
    }

    /// Takes the commit lock when it is the batch's turn, and gives it its sequence numbers and room in memory: after this
    /// nothing fails but the log. `None`: the batch points to values that the log itself must hold. Streams read such a
    /// value as long as its file is there, and `change_retention` promises more of all commits after it was set, except of
    /// transactions that were prepared before: nothing may keep these from committing. Or the batch points into a file whose sync
    /// failed while this commit waited: the values may be lost, so the log must not point to them.
    fn sequence(&self, ready: &Ready<'_, E::Log>, how: &Commit<'_>) -> Result<Option<Turn<'e, E::Log>>> {
        let batch = ready.batch;
        let timer = perf::begin_wait();
        let mut state = self.take_turn(batch, how)?;
        timer.end(Stage::TurnNs);
        let promised = || batch.control().is_some_and(|c| c.resolves());
        if state.holds_values && ready.record.points && !promised() {
            return Ok(None);
        }
        if how.diverted.iter().any(|d| d.log.check_intact().is_err()) {
            return Ok(None);
        }
        let (base, last) = (state.last_seq + 1, state.last_seq + batch.sequences() as u64);
        if last > MAX_SEQ {
            return Err(Error::invalid("sequence numbers are used up"));
        }
        batch.check_staged()?;
        self.env.reserve(&mut state, batch)?;
        Ok(Some(Turn { state, base, last }))
    }

    /// Takes the commit lock when the batch may be committed: when no other transaction holds a lock on what it writes, and what
    /// it relied on is unchanged. The latter is found out without the lock as far as that is possible.
    fn take_turn(&self, batch: &WriteBatch, how: &Commit<'_>) -> Result<FairGuard<'e, CommitState<E::Log>>> {
        let mut round = Round { checked: 0, tables: false };
        let mut rounds = 0;
        let mut waiting_since = None;
        loop {
            if let Guard::Checked(v) = how.guard {
                round.checked = self.env.validate_unlocked(v, batch, round, rounds > 0)?;
            }
            let state = match how.refusal {
                None => self.env.commits().lock(),
                Some(_) => self.try_lock(how)?,
            };
            state.check_whole()?;
            match self.env.admission(&state, batch, &how.guard, round)? {
                Admission::Go => return Ok(state),
                Admission::LookOutside => {
                    rounds += 1;
                    round.tables = rounds >= ROUNDS_OUTSIDE;
                }
                Admission::Wait(op) => {
                    drop(state);
                    if let Some(e) = how.refuse_lock() {
                        return Err(e);
                    }
                    self.env.wait_for_locks(batch, op, how.options, &mut waiting_since)?;
                }
            }
        }
    }

    /// The commit lock for a commit that must not wait for another thread. Most commits hold it for about a microsecond, so
    /// that giving up at once would send every second commit of two threads elsewhere.
    #[cold]
    fn try_lock(&self, how: &Commit<'_>) -> Result<FairGuard<'e, CommitState<E::Log>>> {
        for _ in 0..TRIES {
            if let Some(state) = self.env.commits().try_lock() {
                return Ok(state);
            }
            spin_loop();
        }
        match how.refuse() {
            Some(e) => Err(e),
            None => Ok(self.env.commits().lock()),
        }
    }

    /// Appends the record to the log, unless the batch does without. `None`: it is not in the log. A log that was stopped stops
    /// both.
    fn log(&self, turn: &mut Turn<'_, E::Log>, ready: &Ready<'_, E::Log>, how: &Commit<'_>) -> Result<Option<Lsn>> {
        let timer = perf::begin_wait();
        let lsn = match ready.unlogged {
            // Whatever stopped the log, a flush could no longer be trusted to follow, or may not be made at all.
            true => turn.state.wal.poison().map_or(Ok(None), Err)?,
            false => {
                let wal = &mut turn.state.wal;
                how.diverted.iter().for_each(|d| wal.needs_first(sync_first(&d.log)));
                ready.batch.staged().iter().for_each(|s| wal.needs_first(sync_first(&s.log)));
                Some(wal.append(turn.base, ready.batch.sequences() as u32, ready.record)?)
            }
        };
        debug_assert_eq!(turn.state.last_seq + 1, turn.base, "another commit took numbers during this one's turn");
        timer.end(Stage::LogNs);
        perf::count(Stage::LogBytes, if ready.unlogged { 0 } else { ready.batch.payload().len() as u64 });
        turn.state.last_seq = turn.last;
        Ok(lsn)
    }

    /// Puts the operations into the memtables, and records them for conflict detection.
    fn apply(&self, turn: &mut Turn<'_, E::Log>, ready: &Ready<'_, E::Log>, how: &Commit<'_>, lsn: Option<Lsn>) {
        let timer = perf::begin_wait();
        let guard = CommitGuard(&mut turn.state);
        self.env.apply(ready.batch, how.diverted, turn.base);
        guard.done();
        timer.end(Stage::MemtableInsertNs);
        self.env.note(ready.batch, turn.base, lsn);
        turn.state.recent.note(ready.batch, turn.base);
    }

    /// Makes the commit visible, seals memtables that became full, and gives the commit lock back.
    fn publish(
        &self,
        mut turn: Turn<'_, E::Log>,
        ready: &Ready<'_, E::Log>,
        how: &Commit<'_>,
        lsn: Option<Lsn>,
    ) -> Visible {
        self.env.publish(turn.last);
        let hooked = self.env.enqueue_for_hooks(how.shown.unwrap_or(ready.batch), how.diverted, turn.last);
        self.env.seal_full(&mut turn.state, ready.batch);
        Visible { last: turn.last, lsn, hooked }
    }
}

/// Stops writes if filling the memtables panics, as a family's key order may: what is in memory is a part of a batch then,
/// which the next commit would publish and a flush would make durable. Reads never see it. The log holds all of the batch
/// or, if it was not to be logged, nothing, so the next open puts things right.
struct CommitGuard<'a, L: CommitLog>(&'a mut CommitState<L>);

impl<L: CommitLog> CommitGuard<'_, L> {
    #[inline]
    fn done(self) {
        std::mem::forget(self);
    }
}

impl<L: CommitLog> Drop for CommitGuard<'_, L> {
    #[cold]
    fn drop(&mut self) {
        self.0.half_filled = true;
        self.0.wal.stop(half_filled());
    }
}

/// Has commits list what they write until it is dropped, which is in any case: a family's key order may panic.
pub(crate) struct ValidationScope<'a, L>(&'a FairMutex<CommitState<L>>);

impl<'a, L> ValidationScope<'a, L> {
    pub fn begin(commits: &'a FairMutex<CommitState<L>>) -> ValidationScope<'a, L> {
        let mut state = commits.lock();
        let last = state.last_seq;
        state.recent.watch(last);
        ValidationScope(commits)
    }
}

impl<L> Drop for ValidationScope<'_, L> {
    fn drop(&mut self) {
        self.0.lock().recent.unwatch();
    }
}
