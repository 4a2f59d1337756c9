//! The lock manager: exclusive and shared locks on keys, existing or not, and on ranges of keys.
//!
//! | module | what it holds |
//! |---|---|
//! | `span` | places between keys, keys and ranges as spans of them |
//! | `table` | the locks held in one family |
//! | `state` | owners, queues, granting, deadlocks: everything under the one mutex |
//!
//! The mutex is a leaf: neither [`Owners`] nor any other lock is touched while it is held (a family's custom order is
//! called, though). `docs/concurrency.md` tells how locks and commits work together.

mod span;
mod state;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use kingtide_base::clock::Clock;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{Error, ErrorKind, KeyOrder, Result};

use self::span::Span;
use self::state::{Place, State, Verdict, Want};
use super::{LockWaitHook, TxnId};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::version::FamilyId;

/// Longest a waiter sleeps before it looks at the clock again, which a test may have moved.
const SLICE: Duration = Duration::from_millis(50);
/// Shortest sleep, so that a clock that stands just before a deadline does not keep a thread spinning.
const SHORTEST: Duration = Duration::from_micros(100);
/// Locks given back under one hold of the mutex: about a millisecond.
const RELEASED_AT_ONCE: usize = 4096;
/// Bytes of a key that messages show.
const SHOWN: usize = 32;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Others may hold shared locks too.
    Shared,
    /// Nobody else may hold a lock.
    Exclusive,
}

impl LockMode {
    fn conflicts(self, other: LockMode) -> bool {
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
pub struct LockWait {
    /// The transaction that waits; 0 for a write outside of transactions.
    pub waiter: TxnId,
    /// Those it waits for: they hold a lock that stands in its way, or asked before it for one that does.
    pub holders: Vec<TxnId>,
    /// The column family's number.
    pub family: FamilyId,
    /// What is asked for.
    pub target: LockTarget,
    /// How.
    pub mode: LockMode,
    /// For how long it has waited.
    pub waited: Duration,
}

/// Whether a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: a lock that somebody else holds is a [`ErrorKind::Conflict`]. It does not stand in line either: a lock
    /// that others wait for but that nobody holds is granted.
    No,
    /// At most this long, then [`ErrorKind::LockTimeout`].
    Until(Duration),
}

/// When a lock was taken that its owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// By this request.
    Now,
    /// A weaker one by earlier requests, all of it; this one made it stronger.
    Raised,
    /// By earlier ones, all of it in this mode or a stronger one, so that nobody came in between.
    Before,
}

/// What the manager asks about lock owners; implemented by the registry of transactions. Called without the manager's
/// mutex, but perhaps with locks that the manager's caller holds.
pub(crate) trait Owners: Send + Sync {
    /// `Ok` while the transaction may go on; `Aborted` or `Expired` otherwise. Asked by a waiter for itself each time it
    /// wakes.
    fn check(&self, txn: TxnId) -> Result<()>;
    /// When an (unprepared) holder's timeout passes, in monotonic nanoseconds; `None`: never.
    fn deadline(&self, txn: TxnId) -> Option<u64>;
    /// Ends a holder whose deadline passed; afterwards its locks are released through `release_all`, by whoever. Asked
    /// again every so often while the locks are still there.
    fn expire(&self, txn: TxnId);
    /// For messages: "transaction 7" or "prepared transaction 'xid'".
    fn describe(&self, txn: TxnId) -> String;
    /// Who is to be told of waits.
    fn wait_hook(&self) -> Option<Arc<dyn LockWaitHook>>;
}

/// The lock manager of a database.
pub(crate) struct LockManager {
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    any: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl LockManager {
    /// A manager without locks.
    pub fn new(clock: Arc<dyn Clock>, stats: Arc<Stats>) -> LockManager {
        let any = Arc::new(AtomicBool::new(false));
        LockManager { clock, stats, state: Mutex::new(State::new(any.clone())), any }
    }

    /// Whether anybody holds a lock: true from before a lock is entered until after it is gone.
    #[inline]
    pub fn any_held(&self) -> bool {
        // Pairs with the stores in `State::grant` and `State::release_all`.
        self.any.load(Ordering::SeqCst)
    }

    /// Locks a key for a transaction, until [`LockManager::release_all`]. Asking again for what it holds costs a lookup.
    ///
    /// Another thread may end the transaction at any time: the caller looks at its state after this returned `Ok`, and if
    /// it was ended, calls `release_all` (again), because the lock may have come after the first call.
    ///
    /// # Errors
    /// `Conflict` (held, and the caller did not want to wait), `LockTimeout`, `Deadlock`, and what [`Owners::check`] says.
    #[allow(clippy::too_many_arguments)]
    pub fn lock(
        &self,
        owners: &dyn Owners,
        txn: TxnId,
        family: FamilyId,
        order: &KeyOrder,
        key: &[u8],
        mode: LockMode,
        wait: Wait,
    ) -> Result<Taken> {
        self.request(owners, Want { txn, family, span: Span::key(order, key), mode }, order, wait)
    }

    /// As [`LockManager::lock`], for all keys between two bounds. Bounds that no key can lie between lock nothing.
    #[allow(clippy::too_many_arguments)]
    pub fn lock_range(
        &self,
        owners: &dyn Owners,
        txn: TxnId,
        family: FamilyId,
        order: &KeyOrder,
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        mode: LockMode,
        wait: Wait,
    ) -> Result<Taken> {
        match Span::range(order, lo, hi) {
            Some(span) => self.request(owners, Want { txn, family, span, mode }, order, wait),
            None => Ok(Taken::Before),
        }
    }

    /// Waits until nobody holds a lock on the key, without taking it: what a write outside of transactions does before it
    /// looks again under the commit lock.
    pub fn wait_free(
        &self,
        owners: &dyn Owners,
        family: FamilyId,
        order: &KeyOrder,
        key: &[u8],
        wait: Wait,
    ) -> Result<()> {
        let span = Span::key(order, key);
        self.request(owners, Want { txn: 0, family, span, mode: LockMode::Exclusive }, order, wait).map(drop)
    }

    /// As [`LockManager::wait_free`], for all keys between two bounds.
    pub fn wait_range_free(
        &self,
        owners: &dyn Owners,
        family: FamilyId,
        order: &KeyOrder,
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        wait: Wait,
    ) -> Result<()> {
        let Some(span) = Span::range(order, lo, hi) else { return Ok(()) };
        self.request(owners, Want { txn: 0, family, span, mode: LockMode::Exclusive }, order, wait).map(drop)
    }

    /// Who, other than `txn`, holds a lock that such a request would have to wait for. Never waits: for commits, which hold
    /// the commit lock.
    pub fn holder(&self, txn: TxnId, family: FamilyId, order: &KeyOrder, key: &[u8], mode: LockMode) -> Option<TxnId> {
        let span = Span::key(order, key);
        self.state.lock().holder(&Want { txn, family, span, mode })
    }

    /// As [`LockManager::holder`], for all keys between two bounds.
    pub fn range_holder(
        &self,
        txn: TxnId,
        family: FamilyId,
        order: &KeyOrder,
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        mode: LockMode,
    ) -> Option<TxnId> {
        let span = Span::range(order, lo, hi)?;
        self.state.lock().holder(&Want { txn, family, span, mode })
    }

    /// Gives back all locks of a transaction. If it waits for one, on another thread, that wait ends.
    pub fn release_all(&self, txn: TxnId) {
        // The mutex is given up now and then, for the sake of others when a transaction holds very many.
        while self.state.lock().release(txn, RELEASED_AT_ONCE) {}
    }

    /// Gives back the lock that a transaction took last, if it is on a key and stands by itself in the table: false if it
    /// is not, and nothing happens. Only for one that was [`Taken::Now`].
    pub fn release_newest(&self, txn: TxnId) -> bool {
        self.state.lock().release_newest(txn)
    }

    /// Makes the transaction, if it waits, ask [`Owners::check`] now.
    pub fn wake(&self, txn: TxnId) {
        self.state.lock().wake(txn);
    }

    /// All locks, by family and then in the order of their keys. O(locks).
    pub fn held(&self) -> Vec<HeldLock> {
        let state = self.state.lock();
        let held = state.held();
        held.map(|Want { txn, family, span, mode }| HeldLock { txn, family, target: span.target(), mode }).collect()
    }

    /// The locks of one transaction, perhaps in pieces and some of them more than once. O(its locks).
    pub fn held_by(&self, txn: TxnId) -> Vec<HeldLock> {
        let held = self.state.lock().held_by(txn);
        let held = held.into_iter();
        held.map(|Want { txn, family, span, mode }| HeldLock { txn, family, target: span.target(), mode }).collect()
    }

    /// All requests that wait, by family and then in the order in which they are granted.
    pub fn waits(&self) -> Vec<LockWait> {
        let now = self.clock.monotonic_ns();
        let state = self.state.lock();
        let waits = state.waits().map(|(request, blockers)| LockWait {
            waiter: request.want.txn,
            holders: blockers.iter().map(|b| b.txn).collect(),
            family: request.want.family,
            target: request.want.span.target(),
            mode: request.want.mode,
            waited: Duration::from_nanos(now.saturating_sub(request.since)),
        });
        waits.collect()
    }

    /// Approximate bytes held.
    pub fn memory(&self) -> u64 {
        self.state.lock().memory()
    }
}

// Asking and waiting.
impl LockManager {
    fn request(&self, owners: &dyn Owners, want: Want, order: &KeyOrder, wait: Wait) -> Result<Taken> {
        let mut state = self.state.lock();
        let blocker = match state.try_lock(&want, order, wait != Wait::No) {
            Ok(taken) => return Ok(taken),
            Err(blocker) => blocker,
        };
        let Wait::Until(timeout) = wait else {
            drop(state);
            let (target, family) = (want.span.target(), want.family);
            let message = format!("{target} of family {family} is locked by {}", owners.describe(blocker.txn));
            return Err(Error::new(ErrorKind::Conflict, message));
        };
        let (txn, since, signal) = (want.txn, self.clock.monotonic_ns(), Arc::new(Condvar::new()));
        let Some(place) = state.enqueue(want.clone(), since, signal.clone(), blocker) else {
            return Ok(Taken::Now);
        };
        let victims = state.untangle(txn);
        self.stats.add(Stat::LockWaits, 1);
        self.stats.add(Stat::Deadlocks, victims);
        let deadline = since.saturating_add(nanos(timeout));
        let result = self.wait(owners, &want, Waiting { place, signal: &signal, deadline }, state);
        self.stats.add(Stat::LockWaitMicros, self.clock.monotonic_ns().saturating_sub(since) / 1000);
        result.map(|()| if place.is_upgrade() { Taken::Raised } else { Taken::Now })
    }

    /// Waits for the verdict on a request.
    fn wait<'a>(
        &'a self,
        owners: &dyn Owners,
        want: &Want,
        Waiting { place, signal, deadline }: Waiting<'_>,
        mut state: MutexGuard<'a, State>,
    ) -> Result<()> {
        let mut told = None; // a holder that was told to end, and gets a slice of time to do so
        loop {
            if let Some(verdict) = state.verdict(place) {
                drop(state);
                return conclude(owners, want, verdict);
            }
            let blocker = state.blocker(place);
            drop(state);
            if want.txn != 0
                && let Err(e) = owners.check(want.txn)
            {
                self.state.lock().withdraw(place);
                return Err(e);
            }
            let now = self.clock.monotonic_ns();
            if now >= deadline {
                return self.time_out(owners, want, place);
            }
            self.tell_hook(owners, want, place);
            let holder = blocker.filter(|b| b.queued.is_none()).map(|b| b.txn);
            let end = holder.and_then(|holder| owners.deadline(holder)).unwrap_or(u64::MAX);
            if let Some(holder) = holder.filter(|_| end <= now && holder != told) {
                owners.expire(holder);
                told = Some(holder);
                state = self.state.lock();
                continue;
            }
            let next = if end > now { end.min(deadline) } else { deadline };
            let slice = Duration::from_nanos(next - now).clamp(SHORTEST, SLICE);
            state = self.state.lock();
            told = None;
            if !state.roused(place) {
                signal.wait_for(&mut state, slice);
            }
        }
    }

    /// Each time round, because others may have come to stand before it: an upgrade, or one that did not stand in line.
    fn tell_hook(&self, owners: &dyn Owners, want: &Want, place: Place) {
        if want.txn == 0 {
            return;
        }
        let Some(hook) = owners.wait_hook() else { return };
        let holders = self.state.lock().blockers(place);
        if !holders.is_empty() {
            hook.waits(want.txn, &holders);
        }
    }

    fn time_out(&self, owners: &dyn Owners, want: &Want, place: Place) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(verdict) = state.verdict(place) {
            drop(state);
            return conclude(owners, want, verdict);
        }
        let blocker = state.blocker(place);
        state.withdraw(place);
        drop(state);
        self.stats.add(Stat::LockTimeouts, 1);
        let who = match blocker {
            Some(b) if b.queued.is_some() => format!("for which {} waits, too", owners.describe(b.txn)),
            Some(b) => format!("which {} holds", owners.describe(b.txn)),
            None => "which was given back just now".to_owned(),
        };
        let Want { family, mode, .. } = want;
        let message = format!("no {mode} lock in time on {} of family {family}, {who}", want.span.target());
        Err(Error::new(ErrorKind::LockTimeout, message))
    }
}

/// What a waiting thread needs.
struct Waiting<'a> {
    place: Place,
    signal: &'a Condvar,
    /// When it gives up, in monotonic nanoseconds.
    deadline: u64,
}

fn nanos(d: Duration) -> u64 {
    d.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Turns a verdict into what the caller gets. Called without the mutex.
fn conclude(owners: &dyn Owners, want: &Want, verdict: Verdict) -> Result<()> {
    match verdict {
        Verdict::Granted => Ok(()),
        Verdict::Cancelled => {
            owners.check(want.txn)?;
            let message = format!("{} was ended while it waited for a lock", owners.describe(want.txn));
            Err(Error::new(ErrorKind::Aborted, message))
        }
        Verdict::Deadlock(circle) => {
            let next = circle.iter().cycle().skip(1);
            let steps: Vec<String> = circle.iter().zip(next).map(|(a, b)| step(owners, a, b.txn)).collect();
            Err(Error::new(ErrorKind::Deadlock, format!("deadlock: {}", steps.join("; "))))
        }
    }
}

fn step(owners: &dyn Owners, Want { txn, family, span, mode }: &Want, next: TxnId) -> String {
    let (who, holder) = (owners.describe(*txn), owners.describe(next));
    format!("{who} waits for {holder} to get {} of family {family} in {mode} mode", span.target())
}
