//! How and on what locks are held, and what the manager asks about their holders.

use kingtide_base::{FamilyId, Result, TxnId};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a key that messages show.
const SHOWN: usize = 32;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Others may hold shared locks too.
    Shared,
    /// No other transaction may hold a lock.
    Exclusive,
}

impl LockMode {
    pub(crate) fn conflicts(self, other: LockMode) -> bool {
        self == LockMode::Exclusive || other == LockMode::Exclusive
    }
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == LockMode::Shared { "shared" } else { "exclusive" })
    }
}

/// What a lock is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockTarget {
    /// A key, whether or not it exists.
    Key(Vec<u8>),
    /// All keys between two bounds, in the family's order, whether or not they exist.
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl fmt::Display for LockTarget {
    /// Keys escaped and shortened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockTarget::Key(key) => write!(f, "key {}", Shown(key)),
            LockTarget::Range(lo, hi) => {
                match lo {
                    Bound::Included(key) => write!(f, "range [{}, ", Shown(key))?,
                    Bound::Excluded(key) => write!(f, "range ({}, ", Shown(key))?,
                    Bound::Unbounded => f.write_str("range (.., ")?,
                }
                match hi {
                    Bound::Included(key) => write!(f, "{}]", Shown(key)),
                    Bound::Excluded(key) => write!(f, "{})", Shown(key)),
                    Bound::Unbounded => f.write_str("..)"),
                }
            }
        }
    }
}

struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_at_checked(SHOWN) {
            Some((start, rest)) if !rest.is_empty() => {
                write!(f, "\"{}\"... ({} bytes)", start.escape_ascii(), self.0.len())
            }
            _ => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}

/// A lock that a transaction holds. What one transaction locked piece by piece in one mode, without a gap, is one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// The owner.
    pub txn: TxnId,
    /// The column family's number.
    pub family: FamilyId,
    /// What is locked.
    pub target: LockTarget,
    /// How.
    pub mode: LockMode,
}

/// A request that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockWait {
    /// The transaction that waits; 0 for a write outside of transactions.
    pub waiter: TxnId,
    /// The transactions for which it waits: they hold a conflicting lock, or requested one before it.
    pub holders: Vec<TxnId>,
    /// The column family's number.
    pub family: FamilyId,
    /// What is requested.
    pub target: LockTarget,
    /// How.
    pub mode: LockMode,
    /// For how long it has waited.
    pub waited: Duration,
}

/// Whether a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: a lock that another transaction holds is a [`kingtide_base::ErrorKind::Conflict`]. It does not queue either: a lock
    /// that others wait for but that no transaction holds is granted.
    No,
    /// At most this long, then [`kingtide_base::ErrorKind::LockTimeout`].
    Until(Duration),
    /// As `Until`, for a caller that will ask again: the statistics do not count the end of the time as a timeout.
    Slice(Duration),
}

/// When a lock was taken that its owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// By this request.
    Now,
    /// A weaker one by earlier requests, all of it; this one made it stronger.
    Raised,
    /// By earlier ones, all of it in this mode or a stronger one, so that no other transaction came in between.
    Before,
}

/// One transaction of a deadlock. It waits for the next one of the cycle, and the last one waits for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockStep {
    /// The transaction that waits.
    pub waiter: TxnId,
    /// The family of both locks.
    pub family: FamilyId,
    /// What it asked for.
    pub wanted: LockTarget,
    /// The mode that it asked for.
    pub wanted_mode: LockMode,
    /// The transaction that it waits for.
    pub holder: TxnId,
    /// What that transaction has locked: the first contiguous piece that conflicts.
    pub held: LockTarget,
    /// The mode in which it is locked.
    pub held_mode: LockMode,
}

/// A hook that is called for waits for locks and for deadlocks; a closure is called for waits only. For callers that know of waits outside of the engine: a
/// server that commits transactions in a given order can then end the one that would wait for itself.
pub trait LockWaitHook: Send + Sync {
    /// `waiter` is going to wait for locks of `holders`, or for those of them that stand before it in line. Called on the
    /// waiting thread, again a few times a second while it waits, for those that it waits for may have changed. A
    /// transaction named here may be over by now.
    ///
    /// The hook may interrupt or abort transactions, the waiting one included. It must neither panic nor wait for another
    /// transaction.
    ///
    /// ```
    /// use kingtide_base::TxnId;
    /// use kingtide_locks::LockWaitHook;
    ///
    /// // Reports every wait for a lock; as a closure.
    /// let hook = |waiter: TxnId, holders: &[TxnId]| eprintln!("{waiter} waits for {holders:?}");
    /// hook.waits(3, &[7]);
    /// hook.deadlock(&[]); // a closure is not called for deadlocks
    /// ```
    fn waits(&self, waiter: TxnId, holders: &[TxnId]);

    /// A deadlock was found, and the first transaction of the cycle is going to be rolled back. Called on its thread, before it
    /// gives its locks back: so the others of the cycle still wait, unless something else ended their waits meanwhile. A hook that is set
    /// while a deadlock is being resolved may not be called for it.
    ///
    /// The hook must neither panic nor wait for another transaction. By default it does nothing.
    fn deadlock(&self, cycle: &[DeadlockStep]) {
        let _ = cycle;
    }
}

impl<F: Fn(TxnId, &[TxnId]) + Send + Sync> LockWaitHook for F {
    fn waits(&self, waiter: TxnId, holders: &[TxnId]) {
        self(waiter, holders);
    }
}

/// What the manager asks about the owners of locks. The engine's registry of transactions answers. Called without the manager's
/// mutex, but perhaps with locks that the manager's caller holds.
pub trait Owners: Send + Sync {
    /// `Ok` while the transaction may go on; `Aborted` or `Expired` otherwise. Asked by a waiter for itself each time it
    /// wakes.
    fn check(&self, txn: TxnId) -> Result<()>;
    /// Returns when an (unprepared) holder's timeout passes, in monotonic nanoseconds; `None`: never.
    fn deadline(&self, txn: TxnId) -> Option<u64>;
    /// Ends a holder whose deadline passed; any thread then releases its locks through `release_all`. Asked
    /// again every so often while the locks are still there.
    fn expire(&self, txn: TxnId);
    /// Ends the victim of a deadlock, before another thread gives its locks back: from then on nothing that it did counts. It may be over already.
    fn sacrifice(&self, victim: TxnId);
    /// For messages: "transaction 7" or "prepared transaction 'xid'".
    fn describe(&self, txn: TxnId) -> String;
    /// Returns the hook that is called for waits.
    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>>;
}
