//! The transaction as its user holds it.

mod cursor;
mod end;
mod interrupt;
mod locking;
mod overlays;
mod read;
pub(crate) mod retry;
mod snapshot;
mod ticket;
mod two_phase;
mod write;

pub use cursor::TransactionCursor;

use crate::api::ColumnFamily;
use crate::api::Db;
use crate::engine::DbInner;
use crate::options::WriteOptions;
use crate::snapshot::Snapshot;
use crate::txn::isolation::{Isolation, ReadRule, Rules};
use crate::txn::read_set::ReadSet;
use crate::txn::state::{State, TransactionInfo, TxnShared};
use crate::txn::write_set::WriteSet;
use kingtide_base::options::Durability;
use kingtide_base::sync::MutexGuard;
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_base::{Error, Result, SeqNo, TxnId};
use kingtide_locks::{HeldLock, LockWait, LockWaitHook};
use overlays::Overlays;
pub use retry::TransactOptions;
use std::sync::Arc;
use std::time::Duration;
pub use ticket::CommitTicket;

/// Bytes of read and write sets that a transaction keeps for its next use.
const KEEP: usize = 64 << 10;

/// Options of a transaction.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TransactionOptions {
    /// Which effects of other transactions it may see.
    pub isolation: Isolation,
    /// Take locks when keys are written, and read for update, instead of checking at commit. A transaction that waits for a lock may be chosen
    /// as a deadlock victim. At the levels that read as of the beginning, such a transaction reads as of its first operation, once the lock that
    /// this operation takes is granted. At the snapshot level, that moment moves when the transaction locks a key that was changed since, as
    /// long as it has read only under locks: see [`Transaction::get_for_update`].
    pub locking: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// Its timeout; the database's `transaction_timeout_ms` if absent. Its own timeout is checked at every call, the database's a few times a
    /// second.
    pub timeout: Option<Duration>,
    /// Its lock timeout; the database's `lock_timeout_ms` if absent. Zero: `Conflict` instead of waiting.
    pub lock_timeout: Option<Duration>,
    /// The durability of its commit; the database's durability if absent. If absent, a prepare survives a power cut.
    pub durability: Option<Durability>,
    /// Do not wait in commit and prepare: return `Busy` when writers are being slowed, and `Conflict` when an ingest holds a lock.
    pub no_wait: bool,
    /// Read as of this snapshot instead of now, at levels that read as of the beginning. It does not move.
    pub snapshot: Option<Snapshot>,
}

impl TransactionOptions {
    /// The defaults, at this level.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Durability, Isolation, TransactionOptions};
    /// use std::time::Duration;
    ///
    /// let options = TransactionOptions::new(Isolation::RepeatableRead).locking(true).durability(Durability::Power);
    /// let options = options.timeout(Duration::from_secs(60)).lock_timeout(Duration::from_millis(20)).no_wait(true);
    /// let mut txn = db.begin_with(options)?;
    /// txn.put(db.default_family(), b"ebb", b"low")?;
    /// txn.commit()?;
    /// let now = db.snapshot();
    /// let reading = TransactionOptions::default().isolation(Isolation::Snapshot).read_only(true).snapshot(now);
    /// let mut reader = db.begin_with(reading)?;
    /// assert!(reader.get(db.default_family(), b"ebb")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(isolation: Isolation) -> TransactionOptions {
        isolation.into()
    }

    /// Sets the isolation level.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> TransactionOptions {
        self.isolation = isolation;
        self
    }

    /// Chooses between locks (true) and checks at commit (false).
    #[must_use]
    pub fn locking(mut self, locking: bool) -> TransactionOptions {
        self.locking = locking;
        self
    }

    /// Sets whether writes are refused.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> TransactionOptions {
        self.read_only = read_only;
        self
    }

    /// Limits the transaction's lifetime, instead of the database's `transaction_timeout_ms`, which `None` stands for.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> TransactionOptions {
        self.timeout = timeout.into();
        self
    }

    /// Limits each wait for a lock, instead of the database's `lock_timeout_ms`, which `None` stands for.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: impl Into<Option<Duration>>) -> TransactionOptions {
        self.lock_timeout = timeout.into();
        self
    }

    /// Sets the commit's durability, instead of the database's, which `None` stands for.
    #[must_use]
    pub fn durability(mut self, durability: impl Into<Option<Durability>>) -> TransactionOptions {
        self.durability = durability.into();
        self
    }

    /// Sets whether commit and prepare return `Busy` instead of waiting while writers are slowed, and `Conflict` instead of waiting for
    /// an ingest.
    #[must_use]
    pub fn no_wait(mut self, no_wait: bool) -> TransactionOptions {
        self.no_wait = no_wait;
        self
    }

    /// Reads as of this snapshot instead of now, which `None` stands for.
    #[must_use]
    pub fn snapshot(mut self, snapshot: impl Into<Option<Snapshot>>) -> TransactionOptions {
        self.snapshot = snapshot.into();
        self
    }
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
/// After any [`kingtide_base::ErrorKind::Conflict`], [`kingtide_base::ErrorKind::Deadlock`] or [`kingtide_base::ErrorKind::LockTimeout`] nothing was written: call
/// [`Transaction::reset`] and run it again ([`Error::is_transient_conflict`] is true for these). A deadlock victim, and a transaction
/// whose commit or prepare met a conflict, is already rolled back; so is a transaction after `Aborted` or `Expired`. After any other
/// error of a call before the commit, the transaction remains usable; [`Transaction::commit`] says what its own errors mean.
///
/// ```
/// use kingtide::{Db, Isolation, Options};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-txn-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// let db = Db::open(&dir, Options::default())?;
/// let accounts = db.default_family();
/// db.put(b"ann", b"100")?;
/// // What `Db::transact` does, by hand.
/// let mut txn = db.begin(Isolation::Serializable)?;
/// loop {
///     let balance: u64 = String::from_utf8_lossy(&txn.get(accounts, b"ann")?.unwrap()).parse().unwrap();
///     txn.put(accounts, b"ann", (balance - 30).to_string().as_bytes())?;
///     txn.put(accounts, b"ben", b"30")?;
///     match txn.commit() {
///         Err(e) if e.is_transient_conflict() => txn.reset()?, // another transaction was first
///         done => break done,
///     }
/// }?;
/// assert_eq!(db.get(b"ann")?.as_deref(), Some(&b"70"[..]));
///
/// // Reads see the transaction's own writes.
/// txn.reset()?;
/// let handle: kingtide::TransactionHandle = txn.handle();
/// assert!(txn.is_empty() && handle.id() == txn.id());
/// txn.put_until(accounts, b"offer", b"5", std::time::SystemTime::now() + std::time::Duration::from_secs(60))?;
/// txn.single_delete(accounts, b"ben")?; // it was put once
/// txn.delete_range(accounts, "a".."an")?;
/// txn.delete_prefix(accounts, b"old/")?;
/// assert!(txn.contains_key(accounts, b"offer")? && !txn.contains_key(accounts, b"ben")?);
/// assert_eq!(txn.range(accounts, "a"..).count(), 2);
/// assert_eq!(txn.prefix(accounts, "of").count(), 1);
/// txn.rollback()?;
/// # db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), kingtide::Error>(())
/// ```
pub struct Transaction {
    pub(super) db: Arc<DbInner>,
    pub(super) shared: Arc<TxnShared>,
    pub(super) id: TxnId,
    pub(super) rules: Rules,
    pub(super) options: TransactionOptions,
    /// What reads as of the beginning see; what the check of writes starts from.
    pub(super) snapshot: SeqNo,
    /// Whether the snapshot is taken; one that locks takes it late.
    pinned: bool,
    /// Whether the snapshot stays as it is, because it has shown what no lock of the transaction keeps unchanged. Atomic only because a getter
    /// sets it. Relaxed: the transaction belongs to one thread at a time.
    fixed: AtomicBool,
    pub(super) reads: ReadSet,
    /// Whether its newest lock is on a key that it had no lock on before, and nothing was done since.
    pub(super) spare_lock: bool,
    /// Bytes that the write set held when it was last looked at, if that is much.
    pub(super) written: u64,
    overlays: Overlays,
    pub(super) xid: Option<Box<[u8]>>,
}

/// Refers to a transaction from any thread.
#[derive(Clone)]
pub struct TransactionHandle {
    pub(super) db: Arc<DbInner>,
    pub(super) id: TxnId,
}

impl TransactionHandle {
    /// The transaction's id.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Rolls the transaction back. A call of its owner that waits for a lock returns `Aborted`, as does the next call.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// let handle = txn.handle(); // for any thread
    /// txn.put(db.default_family(), b"ebb", b"low")?;
    /// handle.abort()?;
    /// assert_eq!(txn.commit().unwrap_err().kind(), kingtide::ErrorKind::Aborted);
    /// assert!(handle.abort().is_err(), "it is over");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` when it is not running: committed, rolled back, or prepared.
    pub fn abort(&self) -> Result<()> {
        self.db.check_origin()?;
        self.db.txns.abort(self.id)
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
    /// `Closed`, `ReadOnly`; `InvalidArgument` for a snapshot of another database, or for a snapshot at a level that does not read as of one.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction> {
        Transaction::begin(self.inner().clone(), options)
    }

    /// Running and prepared transactions. None in a forked child.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// txn.put(db.default_family(), b"ebb", b"low")?;
    /// let running = db.transactions();
    /// assert_eq!((running.len(), running[0].id, running[0].writes), (1, txn.id(), 1));
    /// db.abort_transaction(txn.id())?;
    /// assert!(db.transactions().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transactions(&self) -> Vec<TransactionInfo> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().txns.list()
    }

    /// All locks that transactions hold. None in a forked child.
    pub fn locks(&self) -> Vec<HeldLock> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().txns.locks.held()
    }

    /// Returns which transactions wait for whose locks. None in a forked child.
    pub fn lock_waits(&self) -> Vec<LockWait> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().txns.locks.waits()
    }

    /// Rolls a running transaction back, from any thread. See [`TransactionHandle::abort`].
    ///
    /// # Errors
    /// `NotFound` when it is not running.
    pub fn abort_transaction(&self, id: TxnId) -> Result<()> {
        self.check_process()?;
        self.inner().txns.abort(id)
    }

    /// Sets the hook that is called for transactions that wait for locks, and for deadlocks, in place of the one before; `None`
    /// removes it.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{DeadlockStep, Isolation, LockWaitHook, TransactionOptions, TxnId};
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    ///
    /// #[derive(Default)]
    /// struct Waits(Mutex<Vec<(TxnId, Vec<TxnId>)>>);
    /// impl LockWaitHook for Waits {
    ///     fn waits(&self, waiter: TxnId, holders: &[TxnId]) {
    ///         self.0.lock().unwrap().push((waiter, holders.to_vec()));
    ///     }
    ///     fn deadlock(&self, cycle: &[DeadlockStep]) {
    ///         eprintln!("deadlock of {} transactions", cycle.len());
    ///     }
    /// }
    /// let waits = Arc::new(Waits::default());
    /// db.set_lock_wait_hook(Some(waits.clone()));
    ///
    /// let locking = || db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true));
    /// let (mut first, mut second) = (locking()?, locking()?);
    /// first.get_for_update(db.default_family(), b"ebb")?;
    /// second.set_lock_timeout(Some(Duration::from_millis(1)));
    /// assert!(second.get_for_update(db.default_family(), b"ebb").is_err());
    /// assert_eq!(waits.0.lock().unwrap()[0], (second.id(), vec![first.id()]));
    /// assert!(db.lock_waits().is_empty(), "no transaction waits now");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_lock_wait_hook(&self, hook: Option<Arc<dyn LockWaitHook>>) {
        if self.check_process().is_ok() {
            self.inner().txns.set_wait_hook(hook);
        }
    }
}

impl Transaction {
    fn begin(db: Arc<DbInner>, options: TransactionOptions) -> Result<Transaction> {
        db.check_writable()?;
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
            fixed: AtomicBool::new(false),
            reads: ReadSet::default(),
            spare_lock: false,
            written: 0,
            overlays: Overlays::default(),
            xid: None,
        };
        txn.take_snapshot();
        Ok(txn)
    }

    fn take_snapshot(&mut self) {
        let at_begin = self.rules.reads == ReadRule::Begin;
        self.pinned = !at_begin || !self.options.locking || self.options.snapshot.is_some();
        self.fixed.store(self.options.snapshot.is_some(), Ordering::Relaxed);
        self.snapshot = match &self.options.snapshot {
            Some(s) => s.sequence(), // the options keep it
            None if at_begin && self.pinned => self.db.txns.pin(&self.shared),
            None => self.db.snapshots.visible(),
        };
    }

    /// Changes how long later calls wait for a lock: see [`TransactionOptions::lock_timeout`].
    pub fn set_lock_timeout(&mut self, timeout: Option<Duration>) {
        self.options.lock_timeout = timeout;
    }

    /// Changes what its prepare and commit survive: see [`TransactionOptions::durability`]. For callers that do not know it when the transaction
    /// begins.
    pub fn set_durability(&mut self, durability: Option<Durability>) {
        self.options.durability = durability;
    }

    /// Its id, unique while the database is open.
    pub fn id(&self) -> TxnId {
        self.id
    }

    /// Its level.
    pub fn isolation(&self) -> Isolation {
        self.options.isolation
    }

    /// A handle by which any thread can abort it.
    pub fn handle(&self) -> TransactionHandle {
        TransactionHandle { db: self.db.clone(), id: self.id }
    }

    /// Operations written and not committed.
    pub fn len(&self) -> usize {
        self.shared.writes.lock().batch.len()
    }

    /// Returns whether nothing was ever written, without locking the write set. Also false if all writes were undone again.
    #[inline]
    pub(super) fn wrote_nothing(&self) -> bool {
        !self.shared.has_writes()
    }

    /// Returns whether nothing was written.
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

    /// The writes and savepoints of an active transaction. Another thread that ends it changes its state before it takes them away, so
    /// they are all there.
    fn writes_while_active(&self) -> Result<MutexGuard<'_, WriteSet>> {
        self.active()?;
        let writes = self.shared.writes.lock();
        match self.shared.state_of(self.id) {
            State::Active => Ok(writes),
            state => {
                drop(writes);
                Err(self.gone(state))
            }
        }
    }

    #[cold]
    fn gone(&self, state: State) -> Error {
        // A lock that was granted while another thread ended the transaction is still held.
        if matches!(state, State::Aborted | State::Expired) {
            self.db.txns.release_locks_and_snapshot(&self.shared, self.id);
            // A call that was running when the other thread ended it may also have added writes.
            if let Some(mut writes) = self.shared.writes.try_lock() {
                self.shared.forget_writes(&mut writes);
                self.db.txns.uncharge(&self.shared);
            }
        }
        self.db.txns.why_not(self.id, state)
    }

    #[inline]
    pub(super) fn usable(&self, family: &ColumnFamily) -> Result<()> {
        self.db.check_origin()?; // before locks
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

    /// An error unless what was just read of a family holds: when another thread ended the transaction meanwhile, a compaction may
    /// have dropped what it read, and of a family that was dropped meanwhile the read may have seen nothing at all.
    #[inline]
    pub(super) fn read_holds(&self, family: &ColumnFamily) -> Result<()> {
        self.active()?;
        // The view is emptied after the family is marked, so a thread that read an empty one sees the mark.
        if family.inner().is_dropped() { family.inner().check_alive() } else { Ok(()) }
    }

    /// Passes flow control, which may take long, so without holding the lock on the writes: read-uncommitted transactions take
    /// that lock. No other thread changes the writes while the transaction commits.
    pub(super) fn admit(&self) -> Result<()> {
        let bytes = match &self.shared.writes.lock().batch {
            batch if batch.is_empty() => return Ok(()),
            batch => batch.bytes() as u64,
        };
        let shares = || self.shared.writes.lock().batch.shares();
        self.db.admit_shares(bytes, shares, self.options.no_wait)
    }

    pub(super) fn write_options(&self) -> WriteOptions {
        WriteOptions { durability: self.options.durability, no_wait: self.options.no_wait }
    }

    /// Ends a transaction that no other thread can end.
    pub(super) fn finish(&mut self, how: State) {
        self.shared.enter(self.id, how);
        self.db.txns.release_locks_and_snapshot(&self.shared, self.id);
        self.forget();
    }

    /// Forgets what a finished transaction read and wrote. A program may keep the object for long, so only a little memory stays for the
    /// next transaction in it; the rest is freed now.
    pub(super) fn forget(&mut self) {
        self.overlays.clear();
        self.reads.reset(KEEP);
        self.written = 0;
        if self.shared.has_writes() {
            self.shared.forget_writes(&mut self.shared.writes.lock());
        }
        self.db.txns.uncharge(&self.shared);
    }

    /// Keeps the budget in step with what the sets hold.
    #[inline]
    pub(super) fn charge(&self) {
        self.shared.charge(self.reads.memory() + self.written, &self.db.txns.memory);
    }

    /// The durability it was begun with, if it was with one.
    pub(super) fn durability(&self) -> Option<Durability> {
        self.options.durability
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction({}, {}, {:?})", self.id, self.options.isolation, self.shared.state_of(self.id))
    }
}
