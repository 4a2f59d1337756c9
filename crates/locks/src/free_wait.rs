//! The future with which an asynchronous task waits for a lock to be released.

use crate::kinds::{LockMode, Owners};
use crate::manager::{LockManager, nanos, timed_out};
use crate::span::{Span, Want};
use crate::tasks::{End, TaskWait};
use kingtide_base::histogram::Histogram;
use kingtide_base::stats::Stat;
use kingtide_base::{FamilyId, KeyOrder, Result, TxnId};
use std::collections::BTreeSet;
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
    timeout: Duration,
    /// Number and beginning, once it waits.
    waiting: Option<(u64, u64)>,
    is_first: bool,
}

impl FreeWait<'_> {
    /// True once, after the poll that began the first wait of a task: from now on [`LockManager::tend`] must be called.
    pub fn take_first(&mut self) -> bool {
        std::mem::take(&mut self.is_first)
    }

    fn begin(&mut self, waker: &Waker) -> Poll<Result<()>> {
        let Some(want) = self.want.clone() else { return Poll::Ready(Ok(())) };
        let since = self.locks.clock.monotonic_ns();
        let wait = TaskWait { want, since, deadline: since.saturating_add(nanos(self.timeout)), waker: waker.clone() };
        let mut state = self.locks.state.lock();
        let is_first = state.tasks.is_empty();
        let begun = match state.holder(&wait.want) {
            None => Err(End::Free),
            Some(holder) if self.timeout.is_zero() => Err(End::TimedOut(holder)),
            Some(holder) => Ok(state.tasks.add(holder, wait)),
        };
        drop(state);
        let number = match begun {
            Ok(number) => number,
            Err(end) => return Poll::Ready(self.conclude(end)),
        };
        self.locks.stats.add(Stat::LockWaits, 1);
        (self.waiting, self.is_first) = (Some((number, since)), is_first);
        Poll::Pending
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
        let Ok(end) = polled else { return Poll::Pending };
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
    /// `timeout`. While it waits, [`LockManager::tend`] must be called.
    pub fn free_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        (family, order): (FamilyId, &KeyOrder),
        key: &[u8],
        timeout: Duration,
    ) -> FreeWait<'a> {
        self.task_wait(owners, family, Some(Span::key(order, key)), timeout)
    }

    /// Does what [`LockManager::free_wait`] does, for all keys between two bounds.
    pub fn range_free_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        (family, order): (FamilyId, &KeyOrder),
        (lo, hi): (Bound<&[u8]>, Bound<&[u8]>),
        timeout: Duration,
    ) -> FreeWait<'a> {
        self.task_wait(owners, family, Span::range(order, lo, hi), timeout)
    }

    fn task_wait<'a>(
        &'a self,
        owners: &'a dyn Owners,
        family: FamilyId,
        span: Option<Span>,
        timeout: Duration,
    ) -> FreeWait<'a> {
        let want = span.map(|span| Want { txn: 0, family, span, mode: LockMode::Exclusive });
        FreeWait { locks: self, owners, want, timeout, waiting: None, is_first: false }
    }

    /// Ends the waits of tasks whose timeout has passed, and the transactions for which tasks wait and whose deadline has passed. To be called
    /// about every 50 ms while [`LockManager::tasks_wait`]. O(waits of tasks).
    pub fn tend(&self, owners: &dyn Owners) {
        let waits: Vec<(u64, u64, TxnId)> = {
            let state = self.state.lock();
            state.tasks.iter().map(|(witness, number, wait)| (number, wait.deadline, witness)).collect()
        };
        if waits.is_empty() {
            return;
        }
        let now = self.clock.monotonic_ns();
        self.with_state(|state| {
            let late = waits.iter().filter(|(_, deadline, _)| *deadline <= now);
            late.for_each(|(number, ..)| state.tasks.end(*number, End::TimedOut));
        });
        let holders: BTreeSet<TxnId> = waits.iter().map(|(_, _, witness)| *witness).collect();
        for holder in holders {
            if owners.deadline(holder).is_some_and(|end| end <= now) {
                owners.expire(holder);
            }
        }
    }

    /// Whether a task waits.
    pub fn tasks_wait(&self) -> bool {
        !self.state.lock().tasks.is_empty()
    }

    /// Ends all waits of tasks as if what they wait for were free: each has its task look again.
    pub fn rouse_tasks(&self) {
        self.with_state(|state| {
            let all: Vec<u64> = state.tasks.iter().map(|(_, number, _)| number).collect();
            all.into_iter().for_each(|number| state.tasks.end(number, |_| End::Free));
        });
    }
}
