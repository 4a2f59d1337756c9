//! Waits without a thread: asynchronous tasks that wait until no transaction holds a lock on a key or a range.
//!
//! Such a wait takes no lock, so no request queues behind it, it waits for holders alone, and it is in no deadlock. It therefore stands in no
//! queue, but in a list by its witness, the holder that it waits for, and is looked at again only when that one gives up locks. The thread
//! that releases the lock wakes the task. `free_wait` has the future.
//!
//! No wake-up is lost: a task looks whether its wait has ended under the mutex under which it leaves its waker.

use crate::span::Want;
use kingtide_base::TxnId;
use std::collections::BTreeMap;
use std::task::Waker;

/// The waits of tasks, under the manager's mutex.
#[derive(Default)]
pub(super) struct Tasks {
    /// Those that have not ended, by witness and number.
    waiting: BTreeMap<(TxnId, u64), TaskWait>,
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
    /// When it ends in any case.
    pub deadline: u64,
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
        self.waiting.insert((witness, self.next), wait);
        self.stages.insert(self.next, Stage::Waits(witness));
        self.next
    }

    /// Ends a wait, unless it has ended. `end` is given the holder.
    pub fn end(&mut self, number: u64, end: impl FnOnce(TxnId) -> End) {
        let Some(Stage::Waits(witness)) = self.stages.get(&number).copied() else { return };
        self.stages.insert(number, Stage::Ended(end(witness)));
        self.woken.extend(self.waiting.remove(&(witness, number)).map(|wait| wait.waker));
    }

    /// How a wait ended, which is forgotten then; while it goes on, the waker that `waker` takes the place of.
    pub fn poll(&mut self, number: u64, waker: &Waker) -> Result<End, Option<Waker>> {
        match self.stages.get(&number).copied() {
            Some(Stage::Waits(witness)) => {
                let wait = self.waiting.get_mut(&(witness, number));
                Err(wait.map(|wait| std::mem::replace(&mut wait.waker, waker.clone())))
            }
            Some(Stage::Ended(end)) => {
                self.stages.remove(&number);
                Ok(end)
            }
            None => Ok(End::Free),
        }
    }

    /// The task gives up. Returns what is to be dropped without the mutex.
    pub fn leave(&mut self, number: u64) -> Option<TaskWait> {
        match self.stages.remove(&number) {
            Some(Stage::Waits(witness)) => self.waiting.remove(&(witness, number)),
            _ => None,
        }
    }

    /// Looks again at the waits for a transaction that gave up locks. `holder` says who holds what is asked for.
    #[cold]
    pub fn settle(&mut self, gone: TxnId, holder: impl Fn(&Want) -> Option<TxnId>) {
        let theirs: Vec<u64> =
            self.waiting.range((gone, 0)..=(gone, u64::MAX)).map(|((_, number), _)| *number).collect();
        for number in theirs {
            match self.waiting.get(&(gone, number)).and_then(|wait| holder(&wait.want)) {
                None => self.end(number, |_| End::Free),
                Some(witness) if witness == gone => {}
                Some(witness) => {
                    if let Some(wait) = self.waiting.remove(&(gone, number)) {
                        self.waiting.insert((witness, number), wait);
                        self.stages.insert(number, Stage::Waits(witness));
                    }
                }
            }
        }
    }

    /// The waits that have not ended: holder, number and wait, in this order.
    pub fn iter(&self) -> impl Iterator<Item = (TxnId, u64, &TaskWait)> {
        self.waiting.iter().map(|((witness, number), wait)| (*witness, *number, wait))
    }

    /// The wakers to call when the mutex was given up.
    #[inline]
    pub fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    /// Approximate bytes held.
    pub fn memory(&self) -> u64 {
        let each = size_of::<((TxnId, u64), TaskWait)>() + size_of::<(u64, Stage)>();
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
    }
}
