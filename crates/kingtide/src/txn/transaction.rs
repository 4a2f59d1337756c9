//! The transaction as its user holds it.

use super::isolation::{Isolation, ReadRule, Rules};
use super::iter::{Overlays, TransactionIterator};
use super::locks::{HeldLock, LockMode, LockWait, Wait};
use super::read_set::ReadSet;
use super::slot_of;
use super::state::{State, TransactionInfo, TxnId, TxnShared};
use super::validate::Validation;
use super::write_set::OwnWrite;
use crate::commit::batch::WriteBatch;
use crate::commit::{Guard, Visible};
use crate::db::Db;
use crate::engine::DbInner;
use crate::family::{ColumnFamily, Family};
use crate::options::WriteOptions;
use crate::read::newest::own_value;
use crate::read::{self, PinnedValue};
use crate::snapshot::Snapshot;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of read and write sets that a transaction keeps for its next use.
const KEEP: usize = 64 << 10;
/// Bytes of writes below which nothing is charged to the budget.
const SMALL: u64 = 32 << 10;

/// How a transaction behaves.
#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    /// How much of other transactions it may notice.
    pub isolation: Isolation,
    /// Take locks when keys are written, and read for update, instead of checking at commit. A transaction that waits
    /// for a lock may be chosen to break a deadlock. On the levels that read as of the beginning, that is the moment of
    /// its first operation, after the lock that this takes was granted.
    pub locking: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// How long it may live; the database's `transaction_timeout_ms` when absent. One of its own is checked at every call,
    /// the database's by a sweep a few times a second.
    pub timeout: Option<Duration>,
    /// How long to wait for a lock; the database's `lock_timeout_ms` when absent. Zero: `Conflict` instead of waiting.
    pub lock_timeout: Option<Duration>,
    /// What its commit survives; the database's durability when absent. A prepare survives a power cut when absent.
    pub durability: Option<Durability>,
    /// Return `Busy` from commit instead of waiting when writers are being slowed.
    pub no_wait: bool,
    /// Read as of this snapshot instead of now, on the levels that read as of the beginning.
    pub snapshot: Option<Snapshot>,
}

impl From<Isolation> for TransactionOptions {
    fn from(isolation: Isolation) -> Self {
        TransactionOptions { isolation, ..TransactionOptions::default() }
    }
}

/// Operations that take effect together, or not at all, isolated from other transactions as its level says.
///
/// Writes are held back until [`Transaction::commit`], and only this transaction's own reads see them. Dropping it rolls
/// it back, unless it was prepared. It belongs to one thread at a time and may move between them; use
/// [`Transaction::handle`] to abort it from another.
///
/// After any [`ErrorKind::Conflict`], [`ErrorKind::Deadlock`] or [`ErrorKind::LockTimeout`] nothing was written: call
/// [`Transaction::reset`] and do it all again ([`Error::is_transient_conflict`] tells). A deadlock's victim and one whose
/// commit or prepare met a conflict were rolled back by then; after other errors it goes on if its owner wishes.
///
/// ```
/// use kingtide::{Db, Isolation, Options};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-txn-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// let db = Db::open(&dir, Options::default())?;
/// let accounts = db.default_family();
/// db.put(b"ann", b"100")?;
/// let mut txn = db.begin(Isolation::Serializable)?;
/// loop {
///     let balance: u64 = String::from_utf8_lossy(&txn.get(accounts, b"ann")?.unwrap()).parse().unwrap();
///     txn.put(accounts, b"ann", (balance - 30).to_string().as_bytes())?;
///     txn.put(accounts, b"ben", b"30")?;
///     match txn.commit() {
///         Err(e) if e.is_transient_conflict() => txn.reset()?, // somebody else was first
///         done => break done,
///     }
/// }?;
/// assert_eq!(db.get(b"ann")?.as_deref(), Some(&b"70"[..]));
/// # db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), kingtide::Error>(())
/// ```
pub struct Transaction {
    pub(super) db: Arc<DbInner>,
    pub(super) shared: Arc<TxnShared>,
    pub(super) id: TxnId,
    pub(super) rules: Rules,
    options: TransactionOptions,
    /// What reads as of the beginning see; what the check of writes starts from.
    pub(super) snapshot: SeqNo,
    /// Whether the snapshot is taken; one that locks takes it late.
    pinned: bool,
    pub(super) reads: ReadSet,
    pub(super) overlays: Overlays,
    pub(super) xid: Option<Box<[u8]>>,
}

/// Refers to a transaction from any thread.
#[derive(Clone)]
pub struct TransactionHandle {
    db: Arc<DbInner>,
    id: TxnId,
}

impl TransactionHandle {
    /// The transaction's id.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Rolls the transaction back. A call of its owner that waits for a lock returns `Aborted`, as does the next call.
    ///
    /// # Errors
    /// `NotFound` when it is not running: committed, rolled back, or prepared.
    pub fn abort(&self) -> Result<()> {
        self.db.txns.abort(self.id)
    }
}

/// A commit that is visible to all and may not be durable yet.
#[must_use = "durability is known only after `wait`"]
pub struct CommitTicket {
    db: Arc<DbInner>,
    commit: Option<Visible>,
    durability: Durability,
}

impl CommitTicket {
    pub(super) fn new(db: Arc<DbInner>, commit: Option<Visible>, durability: Durability) -> CommitTicket {
        CommitTicket { db, commit, durability }
    }

    /// The sequence number of the commit's last operation; 0 if it wrote nothing. Tickets are ordered as the commits are.
    pub fn sequence(&self) -> SeqNo {
        self.commit.map_or(0, |c| c.last)
    }

    /// Waits until the commit survives what its durability names. Waiting threads share one sync. Returns the sequence
    /// number.
    ///
    /// # Errors
    /// `Poisoned`, `Io`: the commit is visible, and it is unknown whether it survives a power cut.
    pub fn wait(self) -> Result<SeqNo> {
        if let Some(commit) = self.commit {
            self.db.make_durable(commit, self.durability)?;
        }
        Ok(self.sequence())
    }
}

impl Db {
    /// Begins a transaction.
    ///
    /// # Errors
    /// `Closed`.
    pub fn begin(&self, isolation: Isolation) -> Result<Transaction> {
        self.begin_with(isolation.into())
    }

    /// Begins a transaction with options.
    ///
    /// # Errors
    /// `Closed`; `InvalidArgument` for a snapshot of another database, or one on a level that does not read at one.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self.inner().clone(), options)
    }

    /// Running and prepared transactions.
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        self.inner().txns.list()
    }

    /// All locks that transactions hold.
    pub fn locks(&self) -> Vec<HeldLock> {
        self.inner().txns.locks.held()
    }

    /// Who waits for whose locks.
    pub fn lock_waits(&self) -> Vec<LockWait> {
        self.inner().txns.locks.waits()
    }

    /// Rolls a running transaction back, from any thread. See [`TransactionHandle::abort`].
    ///
    /// # Errors
    /// `NotFound` when it is not running.
    pub fn abort_transaction(&self, id: TxnId) -> Result<()> {
        self.inner().txns.abort(id)
    }
}

/// What a read-and-remember is for.
#[derive(Clone, Copy)]
enum Purpose {
    Update,
    Share,
}

impl Transaction {
    fn begin(db: Arc<DbInner>, options: TransactionOptions) -> Result<Transaction> {
        db.check_open()?;
        let rules = options.isolation.rules(options.locking);
        if let Some(s) = &options.snapshot {
            if !s.belongs_to(&db.snapshots) {
                return Err(Error::invalid("the snapshot belongs to another database"));
            }
            if rules.reads != ReadRule::Begin {
                let level = options.isolation;
                return Err(Error::invalid(format!("a transaction at level {level} does not read at a snapshot")));
            }
        }
        let (shared, id) = db.txns.begin(options.isolation, options.locking, options.timeout)?;
        let mut txn = Transaction {
            db,
            shared,
            id,
            rules,
            options,
            snapshot: 0,
            pinned: false,
            reads: ReadSet::default(),
            overlays: Overlays::default(),
            xid: None,
        };
        txn.take_snapshot();
        Ok(txn)
    }

    fn take_snapshot(&mut self) {
        let at_begin = self.rules.reads == ReadRule::Begin;
        self.pinned = !at_begin || !self.options.locking || self.options.snapshot.is_some();
        self.snapshot = match &self.options.snapshot {
            Some(s) => s.sequence(), // the options keep it
            None if at_begin && self.pinned => self.db.txns.pin(&self.shared),
            None => self.db.snapshots.visible(),
        };
    }

    /// A locking transaction's snapshot is that of its first operation, which, if that takes a lock, comes after it was
    /// granted: whoever waited for a key must see what the one that he waited for made of it, not lose to it.
    #[inline]
    pub(super) fn fix_snapshot(&mut self) {
        if !self.pinned {
            self.snapshot = self.db.txns.pin(&self.shared);
            self.pinned = true;
        }
    }

    /// Its id, unique while the database is open.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Its level.
    pub fn isolation(&self) -> Isolation {
        self.options.isolation
    }

    /// The sequence number as of which it reads, on the levels that read as of the beginning; on others, and before the
    /// first operation of a locking transaction, that of its beginning.
    pub fn snapshot_sequence(&self) -> SeqNo {
        self.snapshot
    }

    /// A handle by which any thread can abort it.
    pub fn handle(&self) -> TransactionHandle {
        TransactionHandle { db: self.db.clone(), id: self.id }
    }

    /// Operations written and not committed.
    pub fn len(&self) -> usize {
        self.shared.writes.lock().batch.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An error unless it takes operations.
    #[inline]
    pub(super) fn active(&self) -> Result<()> {
        match self.shared.state_of(self.id) {
            State::Active if self.options.timeout.is_none() => Ok(()),
            State::Active => self.db.txns.check_deadline(&self.shared, self.id),
            state => Err(self.gone(state)),
        }
    }

    #[cold]
    fn gone(&self, state: State) -> Error {
        // A lock that was granted while somebody else ended the transaction is still held.
        if matches!(state, State::Aborted | State::Expired) {
            self.db.txns.let_go(&self.shared, self.id);
        }
        self.db.txns.why_not(self.id, state)
    }

    #[inline]
    pub(super) fn usable(&self, family: &ColumnFamily) -> Result<()> {
        self.active()?;
        self.db.check_open()?;
        if !Arc::ptr_eq(&family.db, &self.db) {
            return Err(Error::invalid("the column family belongs to another database"));
        }
        if family.inner().is_dropped() {
            family.inner().check_alive()?;
        }
        Ok(())
    }

    /// Reads a key: the transaction's own write, or what its level lets it see.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`, `Closed`; `Finished`, `Aborted`, `Expired`; when it takes locks on reads,
    /// also as [`Transaction::get_for_share`].
    pub fn get(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        if self.rules.lock_reads && !key.is_empty() {
            return self.get_for_share(family, key);
        }
        self.usable(family)?;
        self.fix_snapshot();
        if let Some(own) = self.own(family, key)? {
            return Ok(own);
        }
        if self.rules.reads == ReadRule::Uncommitted
            && let Some(value) = self.uncommitted(family, key)?
        {
            return Ok(value);
        }
        let (value, seq) = self.read(family, key)?;
        if self.rules.check_reads {
            self.remember(family, key, seq);
        }
        self.active()?; // or what it read may have been merged away meanwhile
        Ok(value)
    }

    /// Reads what is committed, and tells up to which sequence number that holds.
    fn read(&self, family: &ColumnFamily, key: &[u8]) -> Result<(Option<PinnedValue>, SeqNo)> {
        let view = family.inner().view.load();
        let seq = self.read_seq();
        Ok((read::get(&view, key, seq, &family.inner().reads)?, seq))
    }

    /// The view must have been loaded before.
    #[inline]
    pub(super) fn read_seq(&self) -> SeqNo {
        match self.rules.reads {
            ReadRule::Begin => self.snapshot,
            ReadRule::Latest | ReadRule::Uncommitted => self.db.snapshots.visible(),
        }
    }

    /// The transaction's own word on a key: `Some(None)` when it deleted it.
    fn own(&self, family: &ColumnFamily, key: &[u8]) -> Result<Option<Option<PinnedValue>>> {
        let mut writes = self.shared.writes.lock();
        match writes.get(family.inner(), key) {
            OwnWrite::None => Ok(None),
            OwnWrite::Deleted => Ok(Some(None)),
            OwnWrite::Put(kind, stored) => own_value(kind, stored, &family.inner().reads).map(Some),
        }
    }

    /// What some other running transaction wrote to a key. Which one's, when there are several, is not promised.
    fn uncommitted(&self, family: &ColumnFamily, key: &[u8]) -> Result<Option<Option<PinnedValue>>> {
        for other in self.db.txns.writers(self.id) {
            match other.writes.lock().get(family.inner(), key) {
                OwnWrite::None => {}
                OwnWrite::Deleted => return Ok(Some(None)),
                OwnWrite::Put(kind, stored) => return own_value(kind, stored, &family.inner().reads).map(Some),
            }
        }
        Ok(None)
    }

    fn remember(&mut self, family: &ColumnFamily, key: &[u8], seq: SeqNo) {
        let f = family.inner();
        self.reads.add_key(f, slot_of(f.id(), f.order(), key, f.order().head(key)), key, seq);
        self.shared.charge(self.reads.memory(), &self.db.memory);
    }

    /// Reads a key that the transaction is going to write: it will be unchanged until the commit.
    ///
    /// A locking transaction takes an exclusive lock; the key need not exist. It reads the newest committed value, except
    /// on the snapshot level, where a key that was changed since the beginning is a `Conflict`. An optimistic one has the
    /// key checked at commit, whatever its level; below snapshot it reads the newest committed value.
    ///
    /// # Errors
    /// As [`Transaction::get`]; `Conflict`; `LockTimeout`, `Deadlock`.
    pub fn get_for_update(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        self.get_for(family, key, Purpose::Update)
    }

    /// Reads a key that must not change until the commit, although the transaction does not write it. As
    /// [`Transaction::get_for_update`], but with a shared lock.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`].
    pub fn get_for_share(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<Option<PinnedValue>> {
        self.get_for(family, key, Purpose::Share)
    }

    fn get_for(&mut self, family: &ColumnFamily, key: &[u8], purpose: Purpose) -> Result<Option<PinnedValue>> {
        self.usable(family)?;
        if key.is_empty() {
            return Err(Error::invalid("empty key: keys have at least one byte"));
        }
        let as_of_begin = self.rules.check_writes && self.rules.reads == ReadRule::Begin;
        if self.options.locking {
            let mode = match purpose {
                Purpose::Update => LockMode::Exclusive,
                Purpose::Share => LockMode::Shared,
            };
            self.lock_key(family, key, mode)?;
        }
        self.fix_snapshot();
        if as_of_begin {
            self.check_unchanged(family.inner(), key)?;
        }
        if let Some(own) = self.own(family, key)? {
            return Ok(own);
        }
        if !self.options.locking && self.rules.reads != ReadRule::Begin && self.reads.is_empty() {
            // From here on merges keep the trace of every change, a delete's too, for the check at commit.
            self.db.txns.pin(&self.shared);
        }
        // Before the view, which therefore holds everything up to it. A number taken after it may be that of a commit into a
        // memtable that the view does not know yet: what is read would pass for newer than it is.
        let seen = if as_of_begin { self.snapshot } else { self.db.snapshots.visible() };
        let view = family.inner().view.load();
        let seq = if as_of_begin { self.snapshot } else { self.db.snapshots.visible() };
        let value = read::get(&view, key, seq, &family.inner().reads)?;
        if !self.options.locking {
            self.remember(family, key, seen);
        }
        self.active()?;
        Ok(value)
    }

    /// A `Conflict` if the key was committed by another since the snapshot.
    fn check_unchanged(&self, family: &Arc<Family>, key: &[u8]) -> Result<()> {
        let mut reads = ReadSet::default();
        let slot = slot_of(family.id(), family.order(), key, family.order().head(key));
        if !self.db.txns.filter.may_have_changed(slot, self.snapshot) {
            return Ok(());
        }
        reads.add_key(family, slot, key, self.snapshot);
        let validation =
            Validation { txn: self.id, writes_since: None, writes: None, reads: &reads, ranges: Vec::new() };
        self.db.validate_outside(&validation, &WriteBatch::new(), 0).map(|_| ())
    }

    fn lock_wait(&self) -> Wait {
        match self.options.lock_timeout {
            Some(Duration::ZERO) => Wait::No,
            Some(t) => Wait::Until(t),
            None => Wait::Until(Duration::from_millis(self.db.options.read().lock_timeout_ms)),
        }
    }

    /// Takes a lock, and then waits until whoever passed the place before the lock was there is done: see the lock's
    /// partner, the look at locks under the commit lock.
    fn locked(&self, take: impl FnOnce(Wait) -> Result<()>) -> Result<()> {
        self.shared.note_locks();
        if let Err(e) = take(self.lock_wait()) {
            if e.kind() == ErrorKind::Deadlock && self.shared.change(self.id, State::Active, State::RolledBack) {
                // The others of the circle wait for what it holds, not for its owner to make up his mind.
                self.db.stats.add(Stat::TxnRollbacks, 1);
                self.db.txns.let_go(&self.shared, self.id);
            }
            return Err(e);
        }
        drop(self.db.commit.lock());
        self.active() // somebody may have ended it, and let go of its locks, before this one was granted
    }

    fn lock_key(&self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<()> {
        let f = family.inner();
        self.locked(|wait| self.db.txns.locks.lock(&self.db.txns, self.id, f.id(), f.order(), key, mode, wait))
    }

    /// Locks a range of keys, those that do not exist included. Only for locking transactions.
    ///
    /// # Errors
    /// `InvalidArgument` on an optimistic transaction; `Conflict`, `LockTimeout`, `Deadlock`; `Finished` and the like.
    pub fn lock_range(
        &mut self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mode: LockMode,
    ) -> Result<()> {
        self.usable(family)?;
        if !self.options.locking {
            return Err(Error::invalid("lock_range: the transaction was begun without `locking`"));
        }
        self.lock_span(family, lower, upper, mode)
    }

    pub(super) fn lock_span(
        &self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mode: LockMode,
    ) -> Result<()> {
        let f = family.inner();
        let locks = &self.db.txns.locks;
        self.locked(|wait| locks.lock_range(&self.db.txns, self.id, f.id(), f.order(), (lower, upper), mode, wait))
    }

    /// Reads several keys, in their order, each with an error of its own: as of one moment, except on the read-uncommitted
    /// level and where reads take locks, which is key by key.
    pub fn multi_get<K: AsRef<[u8]>>(&mut self, family: &ColumnFamily, keys: &[K]) -> Vec<Result<Option<PinnedValue>>> {
        if self.rules.lock_reads || self.rules.reads == ReadRule::Uncommitted {
            return keys.iter().map(|k| self.get(family, k.as_ref())).collect();
        }
        match self.usable(family).and_then(|()| self.multi_get_now(family, keys)) {
            Ok(values) => values,
            Err(e) => keys.iter().map(|_| Err(e.duplicate())).collect(),
        }
    }

    fn multi_get_now<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
    ) -> Result<Vec<Result<Option<PinnedValue>>>> {
        self.fix_snapshot();
        let own: Vec<_> = match self.is_empty() {
            true => keys.iter().map(|_| Ok(None)).collect(),
            false => keys.iter().map(|k| self.own(family, k.as_ref())).collect(),
        };
        let asked: Vec<&[u8]> =
            keys.iter().zip(&own).filter(|(_, own)| matches!(own, Ok(None))).map(|(k, _)| k.as_ref()).collect();
        let view = family.inner().view.load();
        let seq = self.read_seq();
        let mut found = read::multi_get(&view, &asked, seq, &family.inner().reads).into_iter();
        if self.rules.check_reads {
            asked.iter().for_each(|k| self.remember(family, k, seq));
        }
        self.active()?;
        let values = own.into_iter().map(|own| match own {
            Ok(Some(value)) => Ok(value),
            Ok(None) => found.next().unwrap_or(Ok(None)),
            Err(e) => Err(e),
        });
        Ok(values.collect())
    }

    /// Sets a key.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty key or a write set of 4 GiB; `ReadOnly`; `Finished`, `Aborted`, `Expired`, `Closed`;
    /// of a locking transaction also `Conflict`, `LockTimeout`, `Deadlock`.
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.put(family, key, value))
    }

    /// Sets a key that is gone after `ttl`.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_ttl(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        self.write(family, key, None, |b| b.put_ttl(family, key, value, ttl))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.delete(family, key))
    }

    /// Deletes a key that was put exactly once since its last delete. See [`ColumnFamily::single_delete`].
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.write(family, key, None, |b| b.single_delete(family, key))
    }

    /// Deletes all keys in `[start, end)`.
    ///
    /// # Errors
    /// As [`Transaction::put`]; `InvalidArgument` when `start` sorts after `end`.
    pub fn delete_range(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        self.write(family, start, Some(end), |b| b.delete_range(family, start, end))
    }

    pub(super) fn writable(&self, family: &ColumnFamily) -> Result<()> {
        self.usable(family)?;
        if self.options.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, format!("transaction {} was begun read-only", self.id)));
        }
        Ok(())
    }

    fn write(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        end: Option<&[u8]>,
        add: impl FnOnce(&mut WriteBatch) -> Result<()>,
    ) -> Result<()> {
        self.writable(family)?;
        if self.rules.lock_writes {
            self.lock_written(family, key, end)?;
        }
        let mut writes = self.shared.writes.lock();
        let before = writes.batch.len();
        add(&mut writes.batch)?;
        if writes.batch.len() > before {
            writes.added();
        }
        self.shared.note_writes();
        let held = writes.batch.bytes() as u64;
        if held >= SMALL {
            let held = writes.memory();
            drop(writes);
            self.shared.charge(held, &self.db.memory);
        }
        Ok(())
    }

    /// Locks what is about to be written and, if the level asks for it, checks that it did not change.
    fn lock_written(&mut self, family: &ColumnFamily, key: &[u8], end: Option<&[u8]>) -> Result<()> {
        let order = family.inner().order();
        match end {
            _ if key.is_empty() => Ok(()), // the batch refuses it
            None => {
                self.lock_key(family, key, LockMode::Exclusive)?;
                self.fix_snapshot();
                if self.rules.check_writes { self.check_unchanged(family.inner(), key) } else { Ok(()) }
            }
            Some(end) if order.compare(key, end).is_ge() => Ok(()),
            Some(end) => {
                let (lower, upper) = (Bound::Included(key), Bound::Excluded(end));
                self.lock_span(family, lower, upper, LockMode::Exclusive)?;
                self.fix_snapshot();
                if !self.rules.check_writes {
                    return Ok(());
                }
                let mut batch = WriteBatch::new();
                batch.delete_range(family, key, end)?;
                let reads = ReadSet::default();
                let validation = Validation::new(self.id, Some(self.snapshot), &reads, &batch);
                self.db.validate_outside(&validation, &batch, 0).map(|_| ())
            }
        }
    }

    /// Marks a point to come back to with [`Transaction::rollback_to_savepoint`]. Savepoints nest; of several with one
    /// name the newest counts, as in SQL.
    ///
    /// # Errors
    /// `Finished`, `Aborted`, `Expired`.
    pub fn set_savepoint(&mut self, name: &str) -> Result<()> {
        self.active()?;
        self.shared.note_writes();
        self.shared.writes.lock().set_savepoint(name);
        Ok(())
    }

    /// Takes back what was written since a savepoint. The savepoint stays, those set after it go. Locks are kept, and what
    /// was read since is still checked.
    ///
    /// # Errors
    /// `NotFound` for a name that is not set, and nothing changes; `Finished`, `Aborted`, `Expired`.
    pub fn rollback_to_savepoint(&mut self, name: &str) -> Result<()> {
        self.active()?;
        self.overlays.clear();
        self.shared.writes.lock().rollback_to_savepoint(name)
    }

    /// Forgets a savepoint and those set after it; what was written since stays.
    ///
    /// # Errors
    /// As [`Transaction::rollback_to_savepoint`].
    pub fn release_savepoint(&mut self, name: &str) -> Result<()> {
        self.active()?;
        self.shared.writes.lock().release_savepoint(name)
    }

    /// Commits: all writes become visible at once and survive what the durability names. Returns the sequence number of
    /// the last of them, 0 if there were none.
    ///
    /// # Errors
    /// `Conflict`: what the level protects was changed by another commit; the transaction is rolled back. `Busy`, `NoSpace`,
    /// `Io`: nothing was written, and the commit may be tried again. `Poisoned` from the sync: visible, and of unknown
    /// durability. `Finished`, `Aborted`, `Expired`, `Closed`.
    pub fn commit(&mut self) -> Result<SeqNo> {
        if self.xid.is_some() {
            return self.commit_prepared()?.wait();
        }
        let (visible, durability) = self.commit_now()?;
        let Some(visible) = visible else { return Ok(0) };
        self.db.make_durable(visible, durability)?;
        Ok(visible.last)
    }

    /// Commits up to the point where the writes are visible: calls that are made one after the other take effect in that
    /// order, without waiting for the disk. For coordinators that fix the order of commits, such as a binary log, and sync
    /// many of them together: [`CommitTicket::wait`] does the rest.
    ///
    /// # Errors
    /// As [`Transaction::commit`], but for those of the sync.
    pub fn commit_ordered(&mut self) -> Result<CommitTicket> {
        if self.xid.is_some() {
            return self.commit_prepared();
        }
        let (visible, durability) = self.commit_now()?;
        Ok(CommitTicket::new(self.db.clone(), visible, durability))
    }

    fn commit_now(&mut self) -> Result<(Option<Visible>, Durability)> {
        self.active()?;
        if !self.shared.change(self.id, State::Active, State::Committing) {
            return Err(self.gone(self.shared.state_of(self.id)));
        }
        let durability = self.options.durability.unwrap_or_else(|| self.db.durability());
        match self.write_out() {
            Ok(visible) => {
                self.finish(State::Committed);
                visible.into_iter().for_each(|v| self.db.tell_hooks(v));
                self.db.stats.add(Stat::TxnCommits, 1);
                Ok((visible, durability))
            }
            Err(e) if e.kind() == ErrorKind::Conflict => {
                self.finish(State::RolledBack);
                self.db.stats.add(Stat::TxnRollbacks, 1);
                Err(e)
            }
            Err(e) => {
                self.shared.enter(self.id, State::Active);
                Err(e)
            }
        }
    }

    fn write_out(&mut self) -> Result<Option<Visible>> {
        let mut writes = self.shared.writes.lock();
        let batch = &mut writes.batch;
        if batch.is_empty() {
            self.db.check_open()?;
            return Ok(None); // what it read was true when it began
        }
        let options = self.write_options();
        if self.options.locking {
            return self.db.commit_visible(batch, &options, &Guard::Locked).map(Some);
        }
        let since = self.rules.check_writes.then_some(self.snapshot);
        let validation = Validation::new(self.id, since, &self.reads, batch);
        self.db.commit_visible(batch, &options, &Guard::Checked(&validation)).map(Some)
    }

    pub(super) fn write_options(&self) -> WriteOptions {
        WriteOptions { durability: self.options.durability, no_wait: self.options.no_wait }
    }

    /// Ends a transaction that nobody else can end.
    pub(super) fn finish(&mut self, how: State) {
        self.shared.enter(self.id, how);
        self.db.txns.let_go(&self.shared, self.id);
    }

    /// Takes everything back. Also after an error and after the end, where it does nothing.
    ///
    /// # Errors
    /// Of a prepared transaction those of the log; it stays in doubt then.
    pub fn rollback(&mut self) -> Result<()> {
        if self.xid.is_some() {
            return self.rollback_prepared();
        }
        if self.shared.change(self.id, State::Active, State::RolledBack) {
            self.db.stats.add(Stat::TxnRollbacks, 1);
            self.db.txns.let_go(&self.shared, self.id);
        }
        Ok(())
    }

    /// Rolls back if it is still running, and begins anew with the same options, keeping its memory. A prepared
    /// transaction stays in doubt.
    ///
    /// # Errors
    /// As [`Db::begin`].
    pub fn reset(&mut self) -> Result<()> {
        self.rollback_unless_prepared();
        self.overlays.clear();
        self.reads.reset(KEEP);
        self.db.check_open()?;
        let (isolation, locking, timeout) = (self.options.isolation, self.options.locking, self.options.timeout);
        if self.shared.state_of(self.id).is_over() {
            self.id = self.db.txns.renew(&self.shared, self.id, timeout);
        } else {
            (self.shared, self.id) = self.db.txns.begin(isolation, locking, timeout)?;
        }
        self.take_snapshot();
        Ok(())
    }

    fn rollback_unless_prepared(&mut self) {
        if self.xid.take().is_some() && self.shared.change(self.id, State::Prepared, State::InDoubt) {
            return; // the table of prepared transactions has it
        }
        if self.shared.change(self.id, State::Active, State::RolledBack) {
            self.db.stats.add(Stat::TxnRollbacks, 1);
            self.db.txns.let_go(&self.shared, self.id);
        }
    }

    /// The durability it was begun with, if it was with one.
    pub(super) fn durability(&self) -> Option<Durability> {
        self.options.durability
    }

    /// Iterates over a range of a family, the transaction's own writes merged in, as of now: what it writes later does not
    /// show. The iterator is owned, and ends with the transaction.
    ///
    /// # Errors
    /// As [`ColumnFamily::iter`] and [`Transaction::get`].
    pub fn iter<'k>(
        &mut self,
        family: &ColumnFamily,
        range: impl std::ops::RangeBounds<&'k [u8]>,
    ) -> Result<TransactionIterator> {
        let own = |b: Bound<&&[u8]>| b.map(|k| k.to_vec());
        let options = crate::options::ReadOptions {
            lower: own(range.start_bound()),
            upper: own(range.end_bound()),
            ..Default::default()
        };
        self.iter_with(family, options)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.rollback_unless_prepared();
        if self.shared.state_of(self.id).is_over() {
            self.db.txns.release(self.shared.clone(), self.id);
        }
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction({}, {}, {:?})", self.id, self.options.isolation, self.shared.state_of(self.id))
    }
}
