//! Asynchronous tasks that wait for commits.
//!
//! Any number of tasks can wait for a sync of the log without a thread each: one thread, the leader, syncs for all of them,
//! as one member of the group commit among the threads that wait for themselves, and then wakes the tasks whose records
//! are durable. It goes on as long as a position is wanted that is not synced. A wanted position stays wanted when the task that
//! wanted it is dropped.
//!
//! No wake-up is lost: a task compares its position with what is synced under the lock under which it leaves its waker, and
//! the leader collects wakers under the same lock after the sync.

use kingtide_base::sync::Mutex;
use kingtide_locks::Woken;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use tokio::sync::Semaphore;

/// Commits of tasks that may occupy a thread at the same time because they wait for room, and as many whose lock was released. More wait in
/// line without a thread, so that stalled writers leave threads to readers.
const WAITING_WRITERS: usize = 16;

/// The tasks of one database.
pub(crate) struct Waiters {
    state: Mutex<State>,
    /// Tasks to be woken by the first thread that takes them.
    woken: Mutex<Vec<Woken>>,
    /// Permits to commit where waiting is allowed, but not for locks, which transactions may hold for long.
    pub writers: Arc<Semaphore>,
    /// The same for commits that waited for a lock. Flow control let them pass already, so they wait for none that is held by it.
    pub unlocked: Arc<Semaphore>,
}

impl Default for Waiters {
    fn default() -> Waiters {
        let line = || Arc::new(Semaphore::new(WAITING_WRITERS));
        Waiters { state: Mutex::default(), woken: Mutex::default(), writers: line(), unlocked: line() }
    }
}

#[derive(Default)]
struct State {
    /// A leader is at work, or is about to be.
    led: bool,
    /// The log is to be synced up to here.
    wanted: u64,
    /// Wakers by the number of their task's wait, with the position that it waits for.
    waiting: BTreeMap<u64, (u64, Waker)>,
    next: u64,
}

/// What a task that waits for a position finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The position is synced.
    Synced,
    /// No leader is at work: the caller has become it, and must begin, unless the log is stopped.
    Lead,
    /// A leader is at work and will wake the task.
    Wait,
}

impl Waiters {
    /// Asks for a sync up to `lsn`. True if the caller must provide a leader.
    #[must_use]
    pub fn want(&self, lsn: u64) -> bool {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(lsn);
        !std::mem::replace(&mut state.led, true)
    }

    /// Leaves the waker of wait number `id`, which is given at the first call, unless the position is synced. `synced` is asked
    /// under the lock.
    pub fn wait(&self, lsn: u64, synced: impl Fn() -> u64, id: &mut Option<u64>, waker: &Waker) -> Found {
        let mut state = self.state.lock();
        if synced() >= lsn {
            return Found::Synced;
        }
        let id = *id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let before = state.waiting.insert(id, (lsn, waker.clone()));
        state.wanted = state.wanted.max(lsn);
        let led = std::mem::replace(&mut state.led, true);
        drop(state);
        drop(before); // it may be the last of its task, whose futures leave then
        if led { Found::Wait } else { Found::Lead }
    }

    /// A task waits no more.
    pub fn leave(&self, id: u64) {
        let left = self.state.lock().waiting.remove(&id);
        drop(left); // without the lock, as above
    }

    /// The leader has synced up to `synced`, or failed to. Wakes tasks. True if nothing is wanted any more: the leader is none
    /// from now on.
    #[must_use]
    pub fn landed(&self, synced: u64, failed: bool) -> bool {
        let mut state = self.state.lock();
        let done = failed || state.wanted <= synced;
        state.led = !done;
        if failed {
            state.wanted = 0; // nothing is synced any more
        }
        let all = std::mem::take(&mut state.waiting);
        let (woken, rest): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, (lsn, _))| done || *lsn <= synced);
        state.waiting = rest;
        drop(state);
        drop(Woken::from(woken.into_values().map(|(_, waker)| waker).collect::<Vec<_>>()));
        done
    }

    /// Leaves tasks to be woken by the caller of [`Waiters::take_woken`].
    pub fn wake_later(&self, woken: Woken) {
        self.woken.lock().push(woken);
    }

    /// Takes the tasks to wake. Dropping the result wakes them.
    pub fn take_woken(&self) -> Vec<Woken> {
        std::mem::take(&mut *self.woken.lock())
    }

    /// Tasks that wait for a sync.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }
}
