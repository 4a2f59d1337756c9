//! The future with which an asynchronous task waits for a lock to be released.

use crate::kinds::{LockMode, Owners};
use crate::manager::{LockManager, nanos, timed_out};
use crate::span::{Span, Want};
use crate::tasks::{End, TaskWait};
use kingtide_base::histogram::Histogram;
use kingtide_base::stats::Stat;
use kingtide_base::{FamilyId, KeyOrder, Result, TxnId};
use std::ops::Bound;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A task's wait until no transaction holds a lock on a key or a range, which it does not take: see [`LockManager::free_wait`]. It begins when
/// the future is polled first. A future that is dropped waits no more.
///
/// # Errors
/// `LockTimeout`.
pub struct FreeWait<'a> {
    locks: &'a LockManager,
    owners: &'a dyn Owners,
    /// `None` when it is over, or no key can lie between the bounds.
    want: Option<Want>,
    timeout: Option<Duration>,
    /// The only holder that it may wait for, if not for any.
    only: Option<TxnId>,
    /// Number and beginning, once it waits.
    waiting: Option<(u64, u64)>,
    /// The holder that it began to wait for, and when it ends at the latest, until `take_urgent` asks.
    begun: Option<(TxnId, Option<u64>)>,
}

impl FreeWait<'_> {
    /// Lets it end, as if the lock were free, if by the time that it begins another than `holder` holds the lock: for a wait whose timeout was
    /// chosen for that holder.
    pub fn only_for(mut self, holder: TxnId) -> Self {
        self.only = Some(holder);
        self
    }

    /// True at most once, after the poll that began the wait: if it, or its holder, may have to be ended within that time from now, but what
    /// calls [`LockManager::tend`] may not know that a task waits. See to it then that it asks [`LockManager::must_tend`] now.
    pub fn take_urgent(&mut self, within: Duration) -> bool {
        let Some((holder, deadline)) = self.begun.take() else { return false };
        let soon = self.locks.clock.monotonic_ns().saturating_add(nanos(within));
        let is_near = |end: Option<u64>| end.is_some_and(|end| end < soon);
        (is_near(deadline) || is_near(self.owners.deadline(holder)))
            && !std::mem::replace(&mut self.locks.state.lock().tasks.is_tended, true)
    }

    fn begin(&mut self, waker: &Waker) -> Poll<Result<()>> {
        let Some(want) = self.want.clone() else { return Poll::Ready(Ok(())) };
        let since = self.locks.clock.monotonic_ns();
        let deadline = self.timeout.map(|timeout| since.saturating_add(nanos(timeout)));
        let wait = TaskWait { want, since, deadline, waker: waker.clone() };
        let mut state = self.locks.state.lock();
        let begun = match state.holder(&wait.want) {
            None => Err(End::Free),
            Some(holder) if self.only.is_some_and(|only| only != holder) => Err(End::Free),
            Some(holder) if self.timeout == Some(Duration::ZERO) => Err(End::TimedOut(holder)),
            Some(holder) => Ok((holder, state.tasks.add(holder, wait))),
        };
        drop(state);
        if begun != Err(End::Free) {
            self.locks.stats.add(Stat::LockWaits, 1);
        }
        match begun {
            Ok((holder, number)) => {
                (self.waiting, self.begun) = (Some((number, since)), Some((holder, deadline)));
                Poll::Pending
            }
            Err(end) => {
                if end != End::Free {
                    self.record(since);
                }
                Poll::Ready(self.conclude(end))
            }
        }
    }

    fn conclude(&mut self, end: End) -> Result<()> {
        match (end, self.want.take()) {
            (End::TimedOut(holder), Some(want)) => {
                self.locks.stats.add(Stat::LockTimeouts, 1);
                Err(timed_out(&want, &format!("which {} holds", self.owners.describe(holder))))
            }
            _ => Ok(()),
        }
    }

    fn record(&self, since: u64) {
        let waited = self.locks.clock.monotonic_ns().saturating_sub(since);
        self.locks.stats.add(Stat::LockWaitMicros, waited / 1000);
        self.locks.stats.record(Histogram::LockWait, None, waited);
    }
}

impl Future for FreeWait<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some((number, since)) = self.waiting else { return self.begin(cx.waker()) };
        let polled = self.locks.state.lock().tasks.poll(number, cx.waker());
        let end = match polled {
            Ok(end) => end,
            Err(true) => return Poll::Pending,
            Err(false) => {
                let waker = cx.waker().clone(); // the caller's code, as is what drops a waker: without the mutex
                let mut state = self.locks.state.lock();
                let unused = state.tasks.set_waker(number, waker);
                // It may have ended meanwhile, which woke the task by its former waker.
                let polled = state.tasks.poll(number, cx.waker());
                drop(state);
                drop(unused);
                let Ok(end) = polled else { return Poll::Pending };
                end
            }
        };
        self.waiting = None;
        self.record(since);
        Poll::Ready(self.conclude(end))
    }
}

impl Drop for FreeWait<'_> {
    fn drop(&mut self) {
        if let Some((number, since)) = self.waiting {
            let left = self.locks.state.lock().tasks.leave(number);
            drop(left); // without the mutex: the waker may be the last of its task
            self.record(since);
        }
    }
}

impl LockManager {
    /// Does what [`LockManager::wait_free`] does, for a task: a future that is ready when the key is not locked, or with `LockTimeout` after
    /// `timeout`. Without a timeout, it is ready also when another transaction holds the lock than the one that it first waited for. While it
    /// waits, [`LockManager::tend`] must be called.
    pub fn free_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        (family, order): (FamilyId, &KeyOrder),
        key: &[u8],
        timeout: Option<Duration>,
    ) -> FreeWait<'a> {
        self.task_wait(owners, family, Some(Span::key(order, key)), timeout)
    }

    /// Does what [`LockManager::free_wait`] does, for all keys between two bounds.
    pub fn range_free_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        (family, order): (FamilyId, &KeyOrder),
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        timeout: Option<Duration>,
    ) -> FreeWait<'a> {
        self.task_wait(owners, family, Span::range(order, lo, hi), timeout)
    }

    fn task_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        family: FamilyId,
        span: Option<Span>,
        timeout: Option<Duration>,
    ) -> FreeWait<'a> {
        let want = span.map(|span| Want { txn: 0, family, span, mode: LockMode::Exclusive });
        FreeWait { locks: self, owners, want, timeout, only: None, waiting: None, begun: None }
    }

    /// Ends the waits of tasks whose timeout has passed, and, at most once in 25 ms, the transactions for which tasks wait and whose deadline
    /// has passed. To be called about every 50 ms while [`LockManager::must_tend`]. O(waits that end), and now and then O(transactions that
    /// are waited for).
    pub fn tend(&self, owners: &dyn Owners) {
        let now = self.clock.monotonic_ns();
        let holders = self.with_state(|state| {
            state.tasks.end_late(now);
            state.tasks.holders_to_look_at(now)
        });
        for holder in holders {
            if owners.deadline(holder).is_some_and(|end| end <= now) {
                owners.expire(holder);
            }
        }
    }

    /// Whether a task waits, or one has begun to since the last call: then the caller is to call [`LockManager::tend`] within 50 ms, and ask
    /// again. One caller at a time.
    pub fn must_tend(&self) -> bool {
        self.state.lock().tasks.must_tend()
    }

    /// Ends all waits of tasks as if what they wait for were free: each has its task look again.
    pub fn rouse_tasks(&self) {
        self.with_state(|state| {
            let all: Vec<u64> = state.tasks.iter().map(|(_, number, _)| number).collect();
            all.into_iter().for_each(|number| state.tasks.end(number, |_| End::Free));
        });
    }
}
