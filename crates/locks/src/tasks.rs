//! Waits without a thread: asynchronous tasks that wait until no transaction holds a lock on a key or a range.
//!
//! Such a wait takes no lock, so no request queues behind it, it waits for holders alone, and it is in no deadlock. It therefore stands in no
//! queue, but in a list by its witness, the holder that it waits for, and is looked at again only when that one gives up locks. The thread
//! that releases the lock wakes the task. `free_wait` has the future.
//!
//! No wake-up is lost: a task looks whether its wait has ended under the mutex under which it leaves its waker.

use crate::span::Want;
use kingtide_base::TxnId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// How long after a look at the holders' deadlines the next one follows at the earliest: half of the time after which there must be one.
const LOOK_AT_HOLDERS: u64 = 25_000_000;

/// The tasks whose waits a call ended. They are woken when it is dropped. What wakes a task is the caller's code, and may drop the task with
/// all that it owns, so drop it without locks that a task could want. One waker that panics does not keep the others from being called.
#[derive(Default)]
pub struct Woken(Vec<Waker>);

impl From<Vec<Waker>> for Woken {
    fn from(wakers: Vec<Waker>) -> Woken {
        Woken(wakers)
    }
}

impl Drop for Woken {
    #[inline]
    fn drop(&mut self) {
        for waker in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// The waits of tasks, under the manager's mutex.
#[derive(Default)]
pub(super) struct Tasks {
    /// Those that have not ended, by witness and number.
    waiting: BTreeMap<(TxnId, u64), TaskWait>,
    /// When those end that have a timeout, and their numbers.
    deadlines: BTreeSet<(u64, u64)>,
    /// When the holders' deadlines were looked at last.
    looked: u64,
    /// A wait has begun since [`Tasks::must_tend`] was asked last.
    begun: bool,
    /// What tends to the waits will do so soon: it has been called, or was answered that it must.
    pub is_tended: bool,
    /// Where each is that its task has not given up, by number.
    stages: BTreeMap<u64, Stage>,
    /// Wakers of waits that ended, to be called without the mutex: each may drop a task, and with it other waits.
    woken: Vec<Waker>,
    next: u64,
}

pub(super) struct TaskWait {
    pub want: Want,
    /// When it began, in monotonic nanoseconds.
    pub since: u64,
    /// When it ends in any case. `None`: it is for the holder alone, and ends also when another holds what it is for.
    pub deadline: Option<u64>,
    pub waker: Waker,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// For this transaction.
    Waits(TxnId),
    Ended(End),
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Nothing stood in the way, or the task is to look again.
    Free,
    /// In spite of this holder.
    TimedOut(TxnId),
}

impl Tasks {
    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins a wait for a holder. Returns its number.
    pub fn add(&mut self, witness: TxnId, wait: TaskWait) -> u64 {
        self.next += 1;
        self.begun = true;
        self.deadlines.extend(wait.deadline.map(|deadline| (deadline, self.next)));
        self.waiting.insert((witness, self.next), wait);
        self.stages.insert(self.next, Stage::Waits(witness));
        self.next
    }

    /// Ends a wait, unless it has ended. `end` is given the holder.
    pub fn end(&mut self, number: u64, end: impl FnOnce(TxnId) -> End) {
        let Some(Stage::Waits(witness)) = self.stages.get(&number).copied() else { return };
        self.stages.insert(number, Stage::Ended(end(witness)));
        let wait = self.take(witness, number);
        self.woken.extend(wait.map(|wait| wait.waker));
    }

    fn take(&mut self, witness: TxnId, number: u64) -> Option<TaskWait> {
        let wait = self.waiting.remove(&(witness, number))?;
        if let Some(deadline) = wait.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        Some(wait)
    }

    /// How a wait ended, which is forgotten then; or whether the waker that it has wakes the same task.
    pub fn poll(&mut self, number: u64, waker: &Waker) -> Result<End, bool> {
        match self.stages.get(&number).copied() {
            Some(Stage::Waits(witness)) => {
                Err(self.waiting.get(&(witness, number)).is_some_and(|wait| wait.waker.will_wake(waker)))
            }
            Some(Stage::Ended(end)) => {
                self.stages.remove(&number);
                Ok(end)
            }
            None => Ok(End::Free),
        }
    }

    /// Gives a wait that goes on another waker. Returns what is to be dropped without the mutex.
    pub fn set_waker(&mut self, number: u64, waker: Waker) -> Waker {
        let Some(Stage::Waits(witness)) = self.stages.get(&number).copied() else { return waker };
        match self.waiting.get_mut(&(witness, number)) {
            Some(wait) => std::mem::replace(&mut wait.waker, waker),
            None => waker,
        }
    }

    /// Ends the waits whose deadline has passed. O(these).
    pub fn end_late(&mut self, now: u64) {
        while let Some((deadline, number)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.remove(&(deadline, number));
            self.end(number, End::TimedOut);
        }
    }

    /// The holders that are waited for, each once, if it is time to look at their deadlines.
    pub fn holders_to_look_at(&mut self, now: u64) -> Vec<TxnId> {
        // A clock that went back must not put the look off until it is where it was.
        if now.checked_sub(self.looked).is_some_and(|passed| passed < LOOK_AT_HOLDERS) {
            return Vec::new();
        }
        let (mut holders, mut from) = (Vec::new(), Bound::Unbounded);
        while let Some(((holder, _), _)) = self.waiting.range((from, Bound::Unbounded)).next() {
            holders.push(*holder);
            from = Bound::Excluded((*holder, u64::MAX));
        }
        if !holders.is_empty() {
            self.looked = now;
        }
        holders
    }

    /// Whether a task waits, or one has begun to since the last call.
    pub fn must_tend(&mut self) -> bool {
        self.is_tended = std::mem::take(&mut self.begun) || !self.is_empty();
        self.is_tended
    }

    /// The task gives up. Returns what is to be dropped without the mutex.
    pub fn leave(&mut self, number: u64) -> Option<TaskWait> {
        match self.stages.remove(&number) {
            Some(Stage::Waits(witness)) => self.take(witness, number),
            _ => None,
        }
    }

    /// Looks again at those waits for a transaction that gave up locks which `concerns` is true of: at most `limit` of those from number `from`
    /// on. `holder` returns the transaction that holds what is asked for. Returns the number to go on with.
    #[cold]
    pub fn settle(
        &mut self,
        (gone, from, limit): (TxnId, u64, usize),
        concerns: impl Fn(&Want) -> bool,
        holder: impl Fn(&Want) -> Option<TxnId>,
    ) -> Option<u64> {
        let mut all = self.waiting.range((gone, from)..=(gone, u64::MAX));
        let portion = all.by_ref().take(limit).filter(|(_, wait)| concerns(&wait.want));
        let theirs: Vec<u64> = portion.map(|((_, number), _)| *number).collect();
        let next = all.next().map(|((_, number), _)| *number);
        for number in theirs {
            let Some(wait) = self.waiting.get(&(gone, number)) else { continue };
            match holder(&wait.want) {
                Some(witness) if witness == gone => {}
                Some(witness) if wait.deadline.is_some() => {
                    if let Some(wait) = self.waiting.remove(&(gone, number)) {
                        self.waiting.insert((witness, number), wait);
                        self.stages.insert(number, Stage::Waits(witness));
                    }
                }
                _ => self.end(number, |_| End::Free),
            }
        }
        next
    }

    /// The waits that have not ended: holder, number and wait, in this order.
    pub fn iter(&self) -> impl Iterator<Item = (TxnId, u64, &TaskWait)> {
        self.waiting.iter().map(|((witness, number), wait)| (*witness, *number, wait))
    }

    /// The wakers to call when the mutex was given up.
    #[inline]
    pub fn take_woken(&mut self) -> Woken {
        Woken(std::mem::take(&mut self.woken))
    }

    /// Adds these to others that are to be called then.
    #[inline]
    pub fn add_woken_to(&mut self, woken: &mut Woken) {
        woken.0.append(&mut self.woken);
    }

    /// Approximate bytes held.
    pub fn memory(&self) -> u64 {
        let each = size_of::<((TxnId, u64), TaskWait)>() + size_of::<(u64, u64)>() + size_of::<(u64, Stage)>();
        (self.stages.len() * each) as u64
    }

    /// Panics unless each wait is for one of the holders that stand in its way, and all wakers were called.
    #[cfg(test)]
    pub fn check(&self, holders: impl Fn(&Want) -> Vec<TxnId>) {
        assert!(self.woken.is_empty(), "wakers were not called");
        for (witness, number, wait) in self.iter() {
            assert!(holders(&wait.want).contains(&witness), "wait {number} is for no holder");
            assert_eq!(self.stages.get(&number), Some(&Stage::Waits(witness)));
        }
        let waits = self.stages.values().filter(|stage| matches!(stage, Stage::Waits(_)));
        assert_eq!(waits.count(), self.waiting.len());
        let deadlines = self.iter().filter_map(|(_, number, wait)| Some((wait.deadline?, number)));
        assert_eq!(deadlines.collect::<BTreeSet<_>>(), self.deadlines);
    }
}
