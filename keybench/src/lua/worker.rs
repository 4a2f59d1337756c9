//! One thread's side of `kv`: its session, what it measured, and how each call of the engine is timed and counted.

use super::truth::{Answers, Truth};
use crate::clock::Clock;
use crate::engine::Session;
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::error::{Error, Result};
use crate::measure::Latencies;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Operations with a histogram of their own. A scan is a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put,
    Get,
    Del,
    Range,
    Mget,
    Mput,
    Mdel,
    Commit,
}

/// Names of the kinds, in order.
pub const KIND_NAMES: [&str; 8] = ["put", "get", "del", "range", "mget", "mput", "mdel", "commit"];

/// How far a thread is, to show progress. Each has its lines of the processors' caches, two of which many processors fetch together:
/// a thread writes here at every call, and would else wait for what the others write.
#[derive(Default)]
#[repr(align(128))]
pub struct Tracker {
    /// Key touches.
    pub touches: AtomicU64,
    /// Calls of `run`.
    pub units: AtomicU64,
}

/// Figures of one thread.
#[derive(Default)]
pub struct Figures {
    pub latencies: [Latencies; KIND_NAMES.len()],
    pub touches: u64,
    pub hits: u64,
    pub misses: u64,
    /// Calls that the engine failed, for each kind.
    pub failed: [u64; KIND_NAMES.len()],
    /// What the first of them said.
    pub first_failure: Option<String>,
    /// Nanoseconds of processor time of the thread.
    pub cpu_ns: u64,
    /// Transactions that had to give way.
    pub aborts: u64,
    /// Bytes of keys and values that were written, and of keys that were deleted.
    pub put_bytes: u64,
    /// Bytes of keys and values in answers.
    pub got_bytes: u64,
    pub answers: Answers,
}

/// Where a worker is with its transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum State {
    /// It has none.
    #[default]
    Outside,
    /// Verbs act inside it.
    Running,
    /// A conflict has come up, and the script does not know yet.
    Doomed,
}

/// One thread's side of `kv`.
pub struct Worker {
    pub(super) session: Box<dyn Session>,
    pub(super) clock: Clock,
    pub(super) truth: Option<Arc<Truth>>,
    tracker: Arc<Tracker>,
    /// What was measured so far.
    pub figures: Figures,
    /// The engine's first error within this call of the script: it ends the run unless the script catches it.
    pub failure: Option<Error>,
    /// Whether the workload has no more to do: the present call of `run` was none, and there is no other.
    pub over: bool,
    /// How late the present call of `run` began, in nanoseconds, until its first operation has taken it on.
    late: u64,
    /// When the last operation ended, in the clock's ticks.
    pub(super) now: u64,
    /// Scans under way, inside which nothing may be written.
    pub(super) scanning: u32,
    /// Bytes of answers, and of sealed values.
    pub(super) buffer: Vec<u8>,
    /// Where it is with its transaction.
    pub(super) txn: State,
    /// Key touches when the transaction began.
    pub(super) touches_before: u64,
    /// How transactions are begun that do not say it.
    pub how: Transactions,
}

/// A worker, shared by the functions of one Lua state.
pub type Shared = Rc<RefCell<Worker>>;

impl Worker {
    /// A thread's worker.
    pub fn new(session: Box<dyn Session>, clock: Clock, truth: Option<Arc<Truth>>, tracker: Arc<Tracker>) -> Shared {
        let figures = Figures::default();
        Rc::new(RefCell::new(Worker {
            session,
            clock,
            truth,
            tracker,
            figures,
            failure: None,
            over: false,
            late: 0,
            now: 0,
            scanning: 0,
            buffer: Vec::new(),
            txn: State::default(),
            touches_before: 0,
            how: Transactions { isolation: Isolation::Snapshot, mode: TxnMode::Optimistic },
        }))
    }

    /// The next operation was due so long ago: its latency counts from then.
    pub fn late(&mut self, by: Duration) {
        self.late = by.as_nanos().min(u128::from(u64::MAX)) as u64;
    }

    /// Calls the engine, and counts the call if it succeeds.
    pub(super) fn timed<T>(
        &mut self,
        kind: Kind,
        touches: u64,
        call: impl FnOnce(&mut dyn Session) -> Result<T>,
    ) -> mlua::Result<T> {
        let from = self.clock.now();
        let result = call(&mut *self.session);
        self.now = self.clock.now();
        self.count(kind, touches, self.clock.ns(from, self.now), result)
    }

    /// Counts a call that took `ns` nanoseconds, if it succeeded.
    pub(super) fn count<T>(&mut self, kind: Kind, touches: u64, ns: u64, result: Result<T>) -> mlua::Result<T> {
        match result {
            Ok(t) => {
                let late = std::mem::take(&mut self.late);
                self.figures.latencies[kind as usize].record(ns.saturating_add(late));
                self.figures.touches += touches;
                // Relaxed: read to show progress, which needs no other memory.
                self.tracker.touches.store(self.figures.touches, Ordering::Relaxed);
                Ok(t)
            }
            Err(e) => Err(self.fail(kind, e.context(KIND_NAMES[kind as usize]))),
        }
    }

    /// Notes that the engine failed a call, which is neither counted as done nor as a miss, and makes it the script's error.
    pub(super) fn fail(&mut self, kind: Kind, e: Error) -> mlua::Error {
        let text = e.to_string();
        self.figures.failed[kind as usize] += 1;
        self.figures.first_failure.get_or_insert_with(|| text.clone());
        self.failure.get_or_insert(e);
        mlua::Error::runtime(text)
    }

    pub(super) fn may_write(&self) -> mlua::Result<()> {
        if self.scanning > 0 { Err(mlua::Error::runtime("writes are not allowed inside a scan")) } else { Ok(()) }
    }

    pub(super) fn unverifiable(&self, verb: &str) -> mlua::Result<()> {
        match self.truth {
            Some(_) => Err(mlua::Error::runtime(format!("kv.{verb} cannot be used with --verify"))),
            None => Ok(()),
        }
    }

    /// Does writes of `keys` through `call`, with their versions issued and acknowledged where answers are verified.
    pub(super) fn write<'k>(
        &mut self,
        kind: Kind,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        call: impl FnOnce(&mut dyn Session, Option<&[(u64, u64)]>) -> Result<()>,
    ) -> mlua::Result<()> {
        self.may_write()?;
        let touches = keys.len() as u64;
        let Some(truth) = self.truth.clone() else { return self.timed(kind, touches, |s| call(s, None)) };
        let writing = truth.begin_write(keys, matches!(kind, Kind::Del | Kind::Mdel));
        self.timed(kind, touches, |s| call(s, Some(&writing.versions)))?;
        writing.acknowledge();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Tracker;

    /// A thread that writes where another one does waits for it at every call.
    #[test]
    fn no_two_threads_share_a_line_of_a_cache() {
        assert!(align_of::<Tracker>() >= 128);
    }
}
