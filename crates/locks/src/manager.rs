//! The manager: what callers ask for, and how their threads wait for it.

use crate::kinds::{DeadlockStep, HeldLock, LockMode, LockWait, Owners, Taken, Wait};
use crate::queue::Place;
use crate::span::{Span, Want};
use crate::state::{Rest, State, Step, Verdict, Victim};
use crate::tasks::Woken;
use kingtide_base::clock::Clock;
use kingtide_base::events::Event;
use kingtide_base::histogram::Histogram;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, Ordering};
use kingtide_base::sync::{Condvar, Mutex, MutexGuard};
use kingtide_base::{Error, ErrorKind, FamilyId, KeyOrder, Result, TxnId};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Longest a waiter sleeps before it looks at the clock again, which a test may have moved.
const SLICE: Duration = Duration::from_millis(50);
/// Shortest sleep, so that a clock that stands just before a deadline does not keep a thread spinning.
const SHORTEST: Duration = Duration::from_micros(100);
/// Locks given back under one hold of the mutex: about a millisecond.
const RELEASED_AT_ONCE: usize = 4096;
/// Waits of tasks that are looked at again under one hold of it: about a millisecond.
const SETTLED_AT_ONCE: usize = 4096;

/// The lock manager of a database.
pub struct LockManager {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: Arc<Stats>,
    any: Arc<AtomicBool>,
    pub(crate) state: Mutex<State>,
}

impl LockManager {
    /// A manager without locks.
    pub fn new(clock: Arc<dyn Clock>, stats: Arc<Stats>) -> LockManager {
        let any = Arc::new(AtomicBool::new(false));
        LockManager { clock, stats, state: Mutex::new(State::new(any.clone())), any }
    }

    /// Returns whether any transaction holds a lock: true from before a lock is entered until after it is gone.
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
    /// `Conflict` (held, and the caller did not want to wait), `LockTimeout`, and what [`Owners::check`] says. `Deadlock`: some of the
    /// transaction's locks may be gone already, and it has to end.
    pub fn acquire(
        &self,
        owners: &dyn Owners,
        txn: TxnId,
        (family, order): (FamilyId, &KeyOrder),
        key: &[u8],
        mode: LockMode,
        wait: Wait,
    ) -> Result<Taken> {
        self.request(owners, Want { txn, family, span: Span::key(order, key), mode }, order, wait)
    }

    /// As [`LockManager::acquire`], for all keys between two bounds. Bounds that no key can lie between lock nothing.
    ///
    /// # Errors
    /// As [`LockManager::acquire`].
    pub fn acquire_range(
        &self,
        owners: &dyn Owners,
        txn: TxnId,
        (family, order): (FamilyId, &KeyOrder),
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        mode: LockMode,
        wait: Wait,
    ) -> Result<Taken> {
        match Span::range(order, lo, hi) {
            Some(span) => self.request(owners, Want { txn, family, span, mode }, order, wait),
            None => Ok(Taken::Before),
        }
    }

    /// Waits until the key is not locked, without taking it: what a write outside of transactions does before it
    /// looks again under the commit lock.
    ///
    /// # Errors
    /// `Conflict` (held, and the caller did not want to wait), `LockTimeout`.
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

    /// Does what [`LockManager::wait_free`] does, for all keys between two bounds.
    ///
    /// # Errors
    /// As [`LockManager::wait_free`].
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

    /// Returns the transaction, other than `txn`, that holds a lock that such a request would have to wait for. Never waits: for
    /// commits, which hold the commit lock.
    pub fn holder(&self, txn: TxnId, family: FamilyId, order: &KeyOrder, key: &[u8], mode: LockMode) -> Option<TxnId> {
        let span = Span::key(order, key);
        self.state.lock().holder(&Want { txn, family, span, mode })
    }

    /// Does what [`LockManager::holder`] does, for all keys between two bounds.
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

    /// Gives back all locks of a transaction. If it waits for one, on another thread, that wait ends. Returns the tasks that waited for them.
    pub fn release_all(&self, txn: TxnId) -> Woken {
        let (mut rest, mut woken) = (Rest::Locks, Woken::default());
        loop {
            // The mutex is given up now and then, for the sake of others when a transaction holds very many.
            let mut state = self.state.lock();
            rest = match rest {
                Rest::Locks => state.release(txn, RELEASED_AT_ONCE, SETTLED_AT_ONCE),
                Rest::Tasks(from) => state.settle_tasks(txn, from, SETTLED_AT_ONCE),
                Rest::Nothing => return woken,
            };
            state.tasks.add_woken_to(&mut woken);
            give_up(state);
            if matches!(rest, Rest::Nothing) {
                return woken;
            }
        }
    }

    /// Gives back the lock that a transaction took last, if it is on a key and stands by itself in the table: false if it
    /// is not, and nothing happens. Only for one that was [`Taken::Now`].
    pub fn release_newest(&self, txn: TxnId) -> bool {
        self.with_state(|state| state.release_newest(txn))
    }

    /// Changes the state, and then wakes the tasks whose waits that ended, without the mutex.
    #[inline]
    pub(crate) fn with_state<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let woken = state.tasks.take_woken();
        give_up(state);
        drop(woken);
        result
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

    /// The families in which a transaction holds locks. O(its locks), without copying them.
    pub fn families_of(&self, txn: TxnId) -> BTreeSet<FamilyId> {
        self.state.lock().families_of(txn).collect()
    }

    /// All requests that wait, by family and then in the order in which they are granted. Tasks come last, by the holder that they wait for.
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
        let mut all: Vec<LockWait> = waits.collect();
        all.extend(state.tasks.iter().map(|(.., wait)| LockWait {
            waiter: 0,
            holders: state.holders(&wait.want),
            family: wait.want.family,
            target: wait.want.span.target(),
            mode: wait.want.mode,
            waited: Duration::from_nanos(now.saturating_sub(wait.since)),
        }));
        all.sort_by_key(|wait| wait.family);
        all
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
        let (timeout, timeouts) = match wait {
            Wait::Until(timeout) => (timeout, 1),
            Wait::Slice(timeout) => (timeout, 0),
            Wait::No => {
                drop(state);
                let (target, family) = (want.span.target(), want.family);
                let message = format!("{target} of family {family} is locked by {}", owners.describe(blocker.txn));
                return Err(Error::new(ErrorKind::Conflict, message));
            }
        };
        let (txn, since, signal) = (want.txn, self.clock.monotonic_ns(), Arc::new(Condvar::new()));
        let before = state.held_of(&want);
        let Some(place) = state.enqueue(want.clone(), since, signal.clone(), blocker) else {
            return Ok(Taken::Now);
        };
        let victims = state.untangle(txn);
        self.stats.add(Stat::LockWaits, 1);
        self.stats.add(Stat::Deadlocks, victims.len() as u64);
        if !victims.is_empty() {
            drop(state);
            self.release_victims(owners, &victims);
            state = self.state.lock();
        }
        let deadline = since.saturating_add(nanos(timeout));
        let waiting = Waiting { place, signal: &signal, deadline, before: &before };
        let result = self.wait(owners, &want, waiting, state);
        let waited = self.clock.monotonic_ns().saturating_sub(since);
        self.stats.add(Stat::LockWaitMicros, waited / 1000);
        self.stats.record(Histogram::LockWait, None, waited);
        perf::count(Stage::LockWaitNs, waited);
        match result.as_ref().err().map(Error::kind) {
            Some(ErrorKind::Deadlock) => self.stats.events.tell(|| Event::Deadlock(txn)),
            Some(ErrorKind::LockTimeout) => self.stats.add(Stat::LockTimeouts, timeouts),
            _ => {}
        }
        result.map(|()| if place.is_upgrade() { Taken::Raised } else { Taken::Now })
    }

    /// Gives back the locks of victims, for which the others of their cycles wait, before their threads run: with few processors that may
    /// take long. A hook for deadlocks has to find them held.
    fn release_victims(&self, owners: &dyn Owners, victims: &[Victim]) {
        if owners.wait_hook().is_some() {
            return;
        }
        for victim in victims {
            // One that has read its verdict may be calling a hook that was set just now, and gives its locks back itself.
            let let_go = self.state.lock().let_go(victim);
            if let_go {
                owners.sacrifice(victim.txn);
                drop(self.release_all(victim.txn));
            }
        }
    }

    /// Waits for the verdict on a request.
    fn wait<'a>(
        &'a self,
        owners: &dyn Owners,
        want: &Want,
        Waiting { place, signal, deadline, before }: Waiting<'_>,
        mut state: MutexGuard<'a, State>,
    ) -> Result<()> {
        let mut told = None; // a holder that was told to end, and gets a slice of time to do so
        loop {
            if let Some(verdict) = state.verdict(place) {
                give_up(state);
                return conclude(owners, want, verdict);
            }
            let blocker = state.blocker(place);
            give_up(state);
            if want.txn != 0
                && let Err(e) = owners.check(want.txn)
            {
                let verdict = self.with_state(|state| {
                    let verdict = state.verdict(place);
                    // Granted just now. The interrupted transaction goes on, and has an error that says that it has not got this.
                    if matches!(verdict, Some(Verdict::Granted)) {
                        state.undo(want, before);
                    }
                    state.withdraw(place);
                    verdict
                });
                return match verdict {
                    // Its locks may be gone already, so it does not go on.
                    Some(verdict @ Verdict::Deadlock { .. }) => conclude(owners, want, verdict),
                    _ => Err(e),
                };
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
                state = signal.wait_for(state, slice);
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
        give_up(state);
        let obstacle = match blocker {
            Some(b) if b.queued.is_some() => format!("for which {} waits, too", owners.describe(b.txn)),
            Some(b) => format!("which {} holds", owners.describe(b.txn)),
            None => "which was given back just now".to_owned(),
        };
        Err(timed_out(want, &obstacle))
    }
}

/// Gives up the mutex, and wakes the threads whose waits have ended.
#[inline]
fn give_up(mut state: MutexGuard<'_, State>) {
    let signals = state.take_signals();
    drop(state);
    signals.iter().for_each(|signal| signal.notify_one());
}

/// The error of a request that waited for too long. `obstacle` says what it waited for: "which transaction 1 holds".
pub(crate) fn timed_out(want: &Want, obstacle: &str) -> Error {
    let Want { family, mode, .. } = want;
    let message = format!("no {mode} lock in time on {} of family {family}, {obstacle}", want.span.target());
    Error::new(ErrorKind::LockTimeout, message)
}

/// What a waiting thread needs.
struct Waiting<'a> {
    place: Place,
    signal: &'a Condvar,
    /// When it gives up, in monotonic nanoseconds.
    deadline: u64,
    /// What its transaction held of it when it began to wait.
    before: &'a [(Span, LockMode)],
}

pub(crate) fn nanos(d: Duration) -> u64 {
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
        Verdict::Deadlock { cycle, let_go } => {
            // A hook that was set after the locks were given back does not find them.
            if let Some(hook) = owners.wait_hook().filter(|_| !let_go) {
                hook.deadlock(&cycle.iter().map(shown).collect::<Vec<_>>());
            }
            let steps: Vec<String> = cycle.iter().map(|step| described(owners, step)).collect();
            Err(Error::new(ErrorKind::Deadlock, format!("deadlock: {}", steps.join("; "))))
        }
    }
}

/// A step as callers see it.
fn shown(Step { want, holder, held: (span, mode) }: &Step) -> DeadlockStep {
    DeadlockStep {
        waiter: want.txn,
        family: want.family,
        wanted: want.span.target(),
        wanted_mode: want.mode,
        holder: *holder,
        held: span.target(),
        held_mode: *mode,
    }
}

fn described(owners: &dyn Owners, Step { want: Want { txn, family, span, mode }, holder, .. }: &Step) -> String {
    let (waiter, holder) = (owners.describe(*txn), owners.describe(*holder));
    format!("{waiter} waits for {holder} to get {} of family {family} in {mode} mode", span.target())
}
