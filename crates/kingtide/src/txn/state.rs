//! The transactions that exist: their states, and what other threads may do to them.
//!
//! ```text
//!            begin                commit_ordered            (visible)
//!   Idle ------------> Active ------------------> Committing ------> Committed
//!    ^                  |  | \  prepare                |  \
//!    |                  |  |  `-------------> Prepared    `-> Active      (not written: disk full, busy)
//!    |   rollback,      |  | abort, expire        |       `-> RolledBack  (conflict)
//!    |   deadlock       |  |                      |
//!    |                  v  v                      v
//!    `---- RolledBack, Aborted, Expired, Committed: `Transactions::release` at drop, or `renew` at reset
//! ```
//! A prepared transaction whose owner drops it is `InDoubt`; `Transactions::resolved` ends both.
//!
//! State and id share one word, so that no thread acts on the transaction that follows in the same object. The thread that moves a
//! transaction out of `Active` owns it exclusively: a commit cannot be aborted half way, nor an expired one committed.
//! Objects are reused, so a transaction costs no allocation, and the list of all of them never shrinks: it is as long as
//! there were transactions at the same time.

use super::filter::ConflictFilter;
use super::isolation::Isolation;
use super::write_set::WriteSet;
use crate::snapshot::{SlotId, Snapshot, Snapshots};
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use kingtide_base::sync::{Mutex, RwLock};
use kingtide_base::{Error, ErrorKind, Result, TxnId};
use kingtide_locks::{LockManager, LockWaitHook, Owners, Woken};
use std::sync::Arc;
use std::time::Duration;

/// Where a transaction is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// No transaction: the object waits for reuse.
    Idle = 0,
    Active = 1,
    Committing = 2,
    Prepared = 3,
    Committed = 4,
    RolledBack = 5,
    /// Rolled back at the request of another thread.
    Aborted = 6,
    /// Rolled back because its time was up.
    Expired = 7,
    /// Prepared, and left by its owner to any caller that knows its xid.
    InDoubt = 8,
}

impl State {
    /// Returns whether a transaction in this state is its owner's to take apart.
    pub fn is_over(self) -> bool {
        matches!(self, State::Committed | State::RolledBack | State::Aborted | State::Expired)
    }

    fn from_word(word: u64) -> State {
        match word & 15 {
            1 => State::Active,
            2 => State::Committing,
            3 => State::Prepared,
            4 => State::Committed,
            5 => State::RolledBack,
            6 => State::Aborted,
            7 => State::Expired,
            8 => State::InDoubt,
            _ => State::Idle,
        }
    }
}

/// Bits of an id that name the object; the rest counts its uses.
const INDEX_BITS: u32 = 20;
/// The index in the ids of ingests, which no object has: see [`Transactions::ingest_id`].
const OF_INGESTS: u64 = (1 << INDEX_BITS) - 1;
/// A deadline that never comes.
const NEVER: u64 = u64::MAX;
/// A deadline that the next sweep sets, so that beginning a transaction does not read the clock.
const UNSET: u64 = u64::MAX - 1;
/// After this time, a commit or prepare that waits for an ingest checks again what it waits for.
pub(crate) const SLICE_FOR_INGEST: Duration = Duration::from_secs(1);
/// Bytes of read and write sets below which nothing is charged to the budget, and by which charges grow.
const CHARGE: u64 = 64 << 10;

/// A transaction as other threads see it.
pub(crate) struct TxnShared {
    /// Id and state. Release and Acquire: a thread that sees a state sees what was done before it was entered.
    word: AtomicU64,
    index: u32,
    isolation: AtomicU8,
    locking: AtomicBool,
    /// Whether it may hold locks.
    has_locks: AtomicBool,
    /// Whether there is anything in the write set. A hint for readers of the write sets of other transactions.
    has_writes: AtomicBool,
    deadline: AtomicU64,
    /// The id of the transaction whose next wait for a lock ends at once, if it is one. Relaxed: the lock manager's mutex, which
    /// the thread that sets it takes afterwards and a waiter before it sleeps, orders them.
    interrupted: AtomicU64,
    /// Keeps the versions that it reads. Without one, `pinned` does.
    slot: Option<SlotId>,
    pinned: Mutex<Option<Snapshot>>,
    /// Held by a thread that ends the transaction from outside, from before its state changes until nothing of it is touched any
    /// more: the object is not used again before.
    ending: Mutex<()>,
    pub writes: Mutex<WriteSet>,
    /// Bytes charged to the database's budget.
    charged: AtomicU64,
    xid: Mutex<Option<Box<[u8]>>>,
    has_xid: AtomicBool,
}

impl TxnShared {
    fn new(index: u32, slot: Option<SlotId>) -> TxnShared {
        TxnShared {
            word: AtomicU64::new(0),
            index,
            isolation: AtomicU8::new(0),
            locking: AtomicBool::new(false),
            has_locks: AtomicBool::new(false),
            has_writes: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            interrupted: AtomicU64::new(0),
            slot,
            pinned: Mutex::new(None),
            ending: Mutex::new(()),
            writes: Mutex::new(WriteSet::default()),
            charged: AtomicU64::new(0),
            xid: Mutex::new(None),
            has_xid: AtomicBool::new(false),
        }
    }

    /// Id and state.
    pub fn get(&self) -> (TxnId, State) {
        let word = self.word.load(Ordering::Acquire);
        (word >> 4, State::from_word(word))
    }

    /// The state of transaction `id`; `Idle` when another one has the object by now.
    #[inline]
    pub fn state_of(&self, id: TxnId) -> State {
        let (now, state) = self.get();
        if now == id { state } else { State::Idle }
    }

    /// Moves transaction `id` from one state to another; false when it is not in the first.
    pub fn change(&self, id: TxnId, from: State, to: State) -> bool {
        let (old, new) = (id << 4 | from as u64, id << 4 | to as u64);
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Moves transaction `id` on from `Committing`, from where no other thread moves it, or an object that is not in use.
    #[inline]
    pub fn enter(&self, id: TxnId, state: State) {
        self.word.store(id << 4 | state as u64, Ordering::Release);
    }

    #[inline]
    pub fn note_writes(&self) {
        if !self.has_writes.load(Ordering::Relaxed) {
            self.has_writes.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there may be anything in the write set. Only for its owner, which alone adds writes.
    #[inline]
    pub fn has_writes(&self) -> bool {
        self.has_writes.load(Ordering::Relaxed) // set by this thread
    }

    /// Empties the write set, which the caller has locked.
    #[inline]
    pub fn forget_writes(&self, writes: &mut WriteSet) {
        const KEEP: usize = 64 << 10;
        // Pairs with the Acquire in `writers`: a reader that leaves it out for that sees its commit.
        self.has_writes.store(false, Ordering::Release);
        writes.reset(KEEP);
    }

    /// Returns whether transaction `id` was interrupted since it was last asked.
    pub fn take_interrupt(&self, id: TxnId) -> bool {
        self.interrupted.load(Ordering::Relaxed) == id
            && self.interrupted.compare_exchange(id, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn set_xid(&self, xid: &[u8]) {
        *self.xid.lock() = Some(xid.into());
        self.has_xid.store(true, Ordering::Relaxed); // read by the thread that takes the object apart
    }

    /// To be called before a lock is asked for.
    pub fn note_locks(&self) {
        self.has_locks.store(true, Ordering::Relaxed); // read after the state changed, which synchronizes
    }

    /// The sets hold only this by now.
    pub fn uncharge(&self, bytes: u64, budget: &Budget) {
        let keep = bytes.next_multiple_of(CHARGE);
        // A thread that ends it may take the rest meanwhile.
        let charged = self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |c| (c > keep).then_some(keep));
        if let Ok(charged) = charged {
            budget.release(charged - keep);
        }
    }

    /// Keeps the database's budget in step with what the sets hold.
    pub fn charge(&self, bytes: u64, budget: &Budget) {
        let charged = self.charged.load(Ordering::Relaxed);
        if bytes > charged + CHARGE {
            let more = (bytes - charged).next_multiple_of(CHARGE);
            budget.charge(more);
            self.charged.fetch_add(more, Ordering::Relaxed); // a thread that ends it may have taken the rest
        }
    }
}

/// Information about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionInfo {
    /// Its id.
    pub id: TxnId,
    /// Its level.
    pub isolation: Isolation,
    /// Whether it locks what it reads and writes.
    pub locking: bool,
    /// The name under which it was prepared, if it was.
    pub xid: Option<Vec<u8>>,
    /// Operations that it wrote so far.
    pub writes: usize,
}

/// The transactions of a database.
pub(crate) struct Transactions {
    pub filter: ConflictFilter,
    pub locks: LockManager,
    snapshots: Arc<Snapshots>,
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    /// What read and write sets hold. Apart from the memtables' memory: writers wait for what flushes can free.
    pub memory: Arc<Budget>,
    /// By index.
    all: RwLock<Vec<Arc<TxnShared>>>,
    free: Mutex<Vec<Arc<TxnShared>>>,
    /// The option, in milliseconds. Relaxed: read once by each sweep.
    timeout_ms: AtomicU64,
    /// Ingests that took locks so far. Relaxed: only its values count.
    ingests: AtomicU64,
    wait_hook: RwLock<Option<Arc<dyn LockWaitHook>>>,
}

impl Transactions {
    pub fn new(
        snapshots: Arc<Snapshots>,
        clock: Arc<dyn Clock>,
        stats: Arc<Stats>,
        memory: Arc<Budget>,
    ) -> Transactions {
        Transactions {
            filter: ConflictFilter::new(),
            locks: LockManager::new(clock.clone(), stats.clone()),
            snapshots,
            clock,
            stats,
            memory,
            all: RwLock::new(Vec::new()),
            free: Mutex::new(Vec::new()),
            timeout_ms: AtomicU64::new(0),
            ingests: AtomicU64::new(0),
            wait_hook: RwLock::new(None),
        }
    }

    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let ms = timeout.map_or(0, |t| t.as_millis() as u64);
        self.timeout_ms.store(ms, Ordering::Relaxed);
    }

    pub fn set_wait_hook(&self, hook: Option<Arc<dyn LockWaitHook>>) {
        let before = std::mem::replace(&mut *self.wait_hook.write(), hook);
        drop(before); // without the lock: it may run code of the caller's
    }

    /// A new transaction. `timeout`: its own, `None` for the database's.
    ///
    /// # Errors
    /// `Busy` when a million transactions run.
    pub fn begin(
        &self,
        isolation: Isolation,
        locking: bool,
        timeout: Option<Duration>,
    ) -> Result<(Arc<TxnShared>, TxnId)> {
        let free = self.free.lock().pop();
        let shared = match free {
            Some(shared) => shared,
            None => self.another()?,
        };
        shared.isolation.store(isolation as u8, Ordering::Relaxed);
        shared.locking.store(locking, Ordering::Relaxed);
        let id = self.start(&shared, timeout);
        Ok((shared, id))
    }

    /// Begins another transaction of the same kind in the object of one that is over.
    pub fn renew(&self, shared: &TxnShared, id: TxnId, timeout: Option<Duration>) -> TxnId {
        if matches!(shared.state_of(id), State::Aborted | State::Expired) {
            self.release_locks_and_snapshot(shared, id); // for what it was granted while it was ended
        }
        self.clear(shared);
        self.start(shared, timeout)
    }

    fn start(&self, shared: &TxnShared, timeout: Option<Duration>) -> TxnId {
        let uses = shared.word.load(Ordering::Relaxed) >> (4 + INDEX_BITS); // only this thread has the object
        let id = (uses + 1) << INDEX_BITS | u64::from(shared.index);
        let deadline = match timeout {
            Some(t) => self.clock.monotonic_ns().saturating_add(u64::try_from(t.as_nanos()).unwrap_or(NEVER)),
            None => UNSET,
        };
        shared.deadline.store(deadline, Ordering::Relaxed);
        shared.enter(id, State::Active);
        id
    }

    #[cold]
    fn another(&self) -> Result<Arc<TxnShared>> {
        let mut all = self.all.write();
        if all.len() >= (1 << INDEX_BITS) - 1 {
            return Err(Error::new(ErrorKind::Busy, "too many running transactions"));
        }
        let shared = Arc::new(TxnShared::new(all.len() as u32, self.snapshots.claim_slot()));
        all.push(shared.clone());
        Ok(shared)
    }

    /// An id under which an ingest holds locks while its files are installed. It is no transaction: nothing ends it from outside,
    /// and it never waits for a lock while it holds one, so it is in no deadlock.
    pub fn ingest_id(&self) -> TxnId {
        (self.ingests.fetch_add(1, Ordering::Relaxed) + 1) << INDEX_BITS | OF_INGESTS
    }

    /// Returns whether this is the id of an ingest.
    pub fn is_ingest(id: TxnId) -> bool {
        id & OF_INGESTS == OF_INGESTS
    }

    /// Registers the newest visible sequence number as the transaction's snapshot.
    pub fn pin(&self, shared: &TxnShared) -> kingtide_base::SeqNo {
        if let Some(slot) = shared.slot {
            return self.snapshots.pin(slot);
        }
        let snapshot = self.snapshots.acquire();
        let seq = snapshot.sequence();
        *shared.pinned.lock() = Some(snapshot);
        seq
    }

    fn unpin(&self, shared: &TxnShared) {
        match shared.slot {
            Some(slot) => self.snapshots.unpin(slot),
            None => *shared.pinned.lock() = None,
        }
    }

    /// Gives up what a transaction holds that others wait for: locks and old versions. It may be called again.
    pub fn release_locks_and_snapshot(&self, shared: &TxnShared, id: TxnId) {
        self.unpin(shared);
        if shared.has_locks.load(Ordering::Relaxed) {
            self.locks.release_all(id);
        }
    }

    /// Makes the object of a transaction that is over ready for reuse. The caller does not use it any more.
    pub fn release(&self, shared: Arc<TxnShared>, id: TxnId) {
        self.release_locks_and_snapshot(&shared, id);
        self.clear(&shared);
        shared.enter(id, State::Idle);
        self.free.lock().push(shared);
    }

    /// Takes what a transaction held off the budget.
    #[inline]
    pub fn uncharge(&self, shared: &TxnShared) {
        if shared.charged.load(Ordering::Relaxed) > 0 {
            self.memory.release(shared.charged.swap(0, Ordering::Relaxed));
        }
    }

    /// Forgets what a transaction that is over left in its object.
    fn clear(&self, shared: &TxnShared) {
        const KEEP: usize = 64 << 10;
        if matches!(shared.get().1, State::Aborted | State::Expired) {
            drop(shared.ending.lock()); // or it would take from the next transaction what it means to take from this one
        }
        shared.has_locks.store(false, Ordering::Relaxed);
        if shared.has_writes.load(Ordering::Relaxed) {
            shared.has_writes.store(false, Ordering::Relaxed);
            shared.writes.lock().reset(KEEP);
        }
        self.uncharge(shared);
        if shared.has_xid.load(Ordering::Relaxed) {
            shared.has_xid.store(false, Ordering::Relaxed);
            *shared.xid.lock() = None;
        }
    }

    fn find(&self, id: TxnId) -> Option<Arc<TxnShared>> {
        let index = (id & ((1 << INDEX_BITS) - 1)) as usize;
        self.all.read().get(index).filter(|t| t.get().0 == id).cloned()
    }

    /// Rolls a running transaction back from outside.
    ///
    /// # Errors
    /// `NotFound` when no transaction of that id runs; prepared ones are resolved by their xid.
    pub fn abort(&self, id: TxnId) -> Result<()> {
        match self.find(id) {
            Some(t) if self.end(&t, id, State::Aborted).is_some() => Ok(()),
            _ => Err(Error::new(ErrorKind::NotFound, format!("no transaction {id} is running"))),
        }
    }

    /// Ends the wait of a running transaction for a lock, or its next one.
    ///
    /// # Errors
    /// `NotFound` when no transaction of that id runs.
    pub fn interrupt(&self, id: TxnId) -> Result<()> {
        match self.find(id).filter(|t| t.state_of(id) == State::Active) {
            Some(t) => t.interrupted.store(id, Ordering::Relaxed),
            None => return Err(Error::new(ErrorKind::NotFound, format!("no transaction {id} is running"))),
        }
        self.locks.wake(id);
        Ok(())
    }

    /// Ends a running transaction that its owner may still believe to be running. Returns the tasks that waited for its locks, or `None` if it
    /// did not run. Among them may be the one that owns it, so they are woken without any lock.
    fn end(&self, t: &TxnShared, id: TxnId, how: State) -> Option<Woken> {
        let _ending = t.ending.lock();
        if !t.change(id, State::Active, how) {
            return None;
        }
        self.stats.add(Stat::TxnRollbacks, 1);
        if how == State::Expired {
            self.stats.add(Stat::TxnExpired, 1);
        }
        // Whatever `has_locks` says: the owning thread, which sets it, may be asking for its first lock just now.
        self.unpin(t);
        let woken = self.locks.release_all(id);
        self.locks.wake(id);
        if let Some(mut writes) = t.writes.try_lock() {
            writes.reset(0); // an owner that is using it sees the state and resets it
            self.memory.release(t.charged.swap(0, Ordering::Relaxed));
        }
        Some(woken)
    }

    /// Ends transactions whose time is up, and sets the deadline of those that the database's timeout applies to.
    pub fn sweep(&self) {
        let timeout = self.timeout_ms.load(Ordering::Relaxed).saturating_mul(1_000_000);
        let mut woken = Vec::new(); // dropped after the lock
        let all = self.all.read();
        if all.is_empty() {
            return;
        }
        let now = self.clock.monotonic_ns();
        for t in all.iter() {
            let (id, state) = t.get();
            if state != State::Active {
                continue;
            }
            match t.deadline.load(Ordering::Relaxed) {
                NEVER => {}
                UNSET if timeout == 0 => {}
                UNSET => {
                    let deadline = now.saturating_add(timeout);
                    let _ = t.deadline.compare_exchange(UNSET, deadline, Ordering::Relaxed, Ordering::Relaxed);
                }
                at if at <= now => woken.extend(self.end(t, id, State::Expired)),
                _ => {}
            }
        }
    }

    /// Running and prepared transactions.
    pub fn list(&self) -> Vec<TransactionInfo> {
        let all = self.all.read();
        let live = all.iter().filter_map(|t| match t.get() {
            (id, State::Active | State::Committing | State::Prepared | State::InDoubt) => Some(TransactionInfo {
                id,
                isolation: Isolation::from_u8(t.isolation.load(Ordering::Relaxed)).unwrap_or_default(),
                locking: t.locking.load(Ordering::Relaxed),
                xid: t.xid.lock().as_ref().map(|x| x.to_vec()),
                writes: t.writes.try_lock().map_or(0, |w| w.batch.len()),
            }),
            _ => None,
        });
        live.collect()
    }

    /// Running transactions other than `reader` that have written something, including those that are being committed: a
    /// thread that waits for the write set of one of these finds it empty, and its writes visible.
    pub fn writers(&self, reader: TxnId) -> Vec<Arc<TxnShared>> {
        let all = self.all.read();
        let writes = |t: &&Arc<TxnShared>| {
            let (id, state) = t.get();
            let is_running = matches!(state, State::Active | State::Committing);
            id != reader && is_running && t.has_writes.load(Ordering::Acquire)
        };
        all.iter().filter(writes).cloned().collect()
    }

    /// A transaction became prepared: it keeps its locks, and reads no more.
    pub fn prepared(&self, shared: &TxnShared, id: TxnId, xid: &[u8]) {
        shared.set_xid(xid);
        shared.enter(id, State::Prepared);
        self.unpin(shared);
    }

    /// A prepared transaction that recovery found. The ids of those begun before any other transaction follow one another.
    ///
    /// # Errors
    /// As [`Transactions::begin`].
    pub fn recovered(&self, xid: &[u8], isolation: Isolation) -> Result<TxnId> {
        let (shared, id) = self.begin(isolation, false, None)?;
        shared.set_xid(xid);
        shared.note_locks();
        shared.change(id, State::Active, State::InDoubt);
        Ok(id)
    }

    /// A prepared transaction is in doubt no more: its locks go.
    pub fn resolved(&self, id: TxnId, committed: bool) {
        let Some(shared) = self.find(id) else { return };
        let how = if committed { State::Committed } else { State::RolledBack };
        self.stats.add(if committed { Stat::TxnCommits } else { Stat::TxnRollbacks }, 1);
        if shared.change(id, State::Prepared, how) {
            // Its locks, by its id, and nothing else: the owner may give the object back, and another transaction may have
            // it by now.
            self.locks.release_all(id);
        } else if shared.change(id, State::InDoubt, how) {
            self.release(shared, id);
        }
    }

    /// Why a transaction takes no more operations.
    #[cold]
    pub fn why_not(&self, id: TxnId, state: State) -> Error {
        let (kind, text) = match state {
            State::Aborted => (ErrorKind::Aborted, "was rolled back at the request of another thread"),
            State::Expired => (ErrorKind::Expired, "outlived its timeout and was rolled back"),
            State::Prepared | State::InDoubt => {
                (ErrorKind::Finished, "is prepared: it can only be committed or rolled back")
            }
            State::Committed | State::Committing => (ErrorKind::Finished, "was committed"),
            State::RolledBack | State::Idle | State::Active => (ErrorKind::Finished, "was rolled back"),
        };
        Error::new(kind, format!("transaction {id} {text}"))
    }

    /// Returns whether the deadline of a transaction that has one of its own has passed; ends it then.
    pub fn check_deadline(&self, shared: &TxnShared, id: TxnId) -> Result<()> {
        let deadline = shared.deadline.load(Ordering::Relaxed);
        if deadline < UNSET && self.clock.monotonic_ns() >= deadline && self.end(shared, id, State::Expired).is_some() {
            return Err(self.why_not(id, State::Expired));
        }
        Ok(())
    }
}

impl Owners for Transactions {
    fn check(&self, txn: TxnId) -> Result<()> {
        let Some(t) = self.find(txn) else { return Err(self.why_not(txn, State::Idle)) };
        match t.state_of(txn) {
            State::Active if t.take_interrupt(txn) => {
                let message = format!("transaction {txn} was interrupted while it waited for a lock");
                Err(Error::new(ErrorKind::Cancelled, message))
            }
            State::Active => self.check_deadline(&t, txn),
            State::Committing | State::Prepared | State::InDoubt => Ok(()),
            state => Err(self.why_not(txn, state)),
        }
    }

    fn deadline(&self, txn: TxnId) -> Option<u64> {
        let t = self.find(txn)?;
        let deadline = t.deadline.load(Ordering::Relaxed);
        (t.state_of(txn) == State::Active && deadline < UNSET).then_some(deadline)
    }

    fn expire(&self, txn: TxnId) {
        if let Some(t) = self.find(txn) {
            self.end(&t, txn, State::Expired);
        }
    }

    fn sacrifice(&self, victim: TxnId) {
        // By the id, and nothing else of the object: the owner may have begun the next transaction in it.
        if self.find(victim).is_some_and(|t| t.change(victim, State::Active, State::RolledBack)) {
            self.stats.add(Stat::TxnRollbacks, 1);
        }
    }

    fn describe(&self, txn: TxnId) -> String {
        let xid = self.find(txn).and_then(|t| t.xid.lock().as_ref().map(|x| x.escape_ascii().to_string()));
        match xid {
            Some(xid) => format!("prepared transaction '{xid}'"),
            None if Transactions::is_ingest(txn) => "an ingest".to_owned(),
            None => format!("transaction {txn}"),
        }
    }

    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>> {
        self.wait_hook.read().clone()
    }
}
