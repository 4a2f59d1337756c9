//! Commits of asynchronous tasks, whose threads must not wait.

use super::batch::WriteBatch;
use super::dead_space::Shares;
use super::pipeline::{Commit, CommitEnv, Guard, LockRefusal, Pipeline, Visible, Written};
use crate::engine::DbInner;
use crate::jobs::IDLE;
use crate::options::WriteOptions;
use crate::trace;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{ErrorKind, Result};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// A larger batch is committed where waiting is allowed: copying it takes longer than handing it over.
const LARGE_BATCH: u64 = 256 << 10;

/// A commit of a task where waiting is allowed, and what is left of one attempt for the next.
pub(crate) struct Attempts {
    batch: WriteBatch,
    /// Flow control let it pass.
    admitted: bool,
    /// The operation that another transaction had locked.
    met: Option<usize>,
    /// When the commit first met a lock. The option `lock_timeout_ms` counts from there, without the time in line for a thread.
    since: Option<u64>,
    /// Its large values: however often a lock is in the way, they are written once.
    written: Option<Written>,
}

impl Attempts {
    pub(crate) fn new(batch: WriteBatch) -> Attempts {
        Attempts { batch, admitted: false, met: None, since: None, written: None }
    }
}

impl DbInner {
    /// Commits a batch that is not empty, up to the point where others see it, if the thread need not wait for that: neither
    /// for room, a lock or a commit hook, nor for a file to be made or written. `None`: nothing has happened, and
    /// [`DbInner::commit_unless_locked`] does it.
    pub(crate) fn try_commit(&self, batch: &mut WriteBatch, options: &WriteOptions) -> Result<Option<Visible>> {
        self.check_writable()?;
        let bytes = batch.bytes() as u64;
        // Acquire, as in `begin_log`.
        let log_is_ready = self.log_begun.load(Ordering::Acquire) && self.wal.has_spare();
        if bytes > LARGE_BATCH || !log_is_ready || self.hooks.any() || batch.may_divert() {
            return Ok(None);
        }
        let shares = if self.stall.dead_space_is_idle() { Shares::new() } else { batch.shares() };
        if !self.stall.try_admit(bytes, &shares) {
            return Ok(None);
        }
        let refused = Cell::new(false);
        let how = Commit { refusal: Some(&refused), ..Commit::admitted(options, Guard::Plain) };
        self.unless_refused(batch, &how, &refused)
    }

    /// Commits a batch that is not empty, up to the point where others see it, if it need not wait for a lock of a transaction. `None`:
    /// another has locked what it writes, and it is not committed. After `Some`, the caller releases what hooks may want, and then
    /// calls [`DbInner::begin_hooks`].
    pub(crate) fn commit_unless_locked(
        &self,
        attempts: &mut Attempts,
        options: &WriteOptions,
    ) -> Result<Option<Visible>> {
        if !attempts.admitted {
            self.admit(&attempts.batch, options.no_wait)?;
            attempts.admitted = true;
        }
        let mut refused = false;
        loop {
            // Here too, because large values would be written before the commit finds it out.
            if self.txns.locks.any_held()
                && let Some((op, _)) = self.first_locked(&attempts.batch, &Guard::Plain)
            {
                attempts.met = Some(op);
                return Ok(None);
            }
            if refused {
                // What was locked is free again. If that happens again and again, it counts as a wait.
                attempts.since.get_or_insert_with(|| self.clock.monotonic_ns());
            }
            let refusal = LockRefusal::default();
            let how = Commit { lock_refusal: Some(&refusal), ..Commit::admitted(options, Guard::Plain) };
            match self.attempt(attempts, &how) {
                Err(_) if refusal.refused.get() => {}
                committed => return committed.map(Some),
            }
            attempts.written = refusal.written.take().or(attempts.written.take());
            refused = true;
        }
    }

    fn attempt(&self, attempts: &mut Attempts, how: &Commit<'_>) -> Result<Visible> {
        if let Some(written) = &mut attempts.written {
            let _span = trace::commit();
            if let Some(visible) = Pipeline::new(self).commit_written(&attempts.batch, written, how)? {
                return Ok(visible);
            }
            attempts.written = None; // by now the log itself must hold all values, or a sync of their file failed
        }
        self.commit(&mut attempts.batch, how)
    }

    /// Whether another transaction holds a lock on what a commit met one on, if it did. O(log locks).
    pub(crate) fn is_locked_still(&self, attempts: &Attempts) -> bool {
        attempts.met.is_some_and(|op| self.lock_holder(&attempts.batch, op, 0).is_some())
    }

    /// Waits for a place in a line, which the timeout of a commit's wait for a lock is not about.
    pub(crate) async fn in_line<T>(&self, attempts: &mut Attempts, place: impl Future<Output = T>) -> T {
        let begun = self.clock.monotonic_ns();
        let place = place.await;
        self.put_off(&mut attempts.since, begun);
        place
    }

    /// Waits, without a thread, until no transaction holds a lock on what a commit met one on.
    pub(crate) async fn until_unlocked(&self, attempts: &mut Attempts) -> Result<()> {
        let batch = &attempts.batch;
        while let Some(op) = attempts.met
            && let Some(holder) = self.lock_holder(batch, op, 0)
        {
            let (timeout, begun) = (self.longest_wait(holder, &mut attempts.since), self.clock.monotonic_ns());
            let mut wait = self.free_wait(batch, op, holder, timeout);
            let waited = poll_fn(|cx| {
                let polled = Pin::new(&mut wait).poll(cx);
                if wait.take_urgent(IDLE) {
                    self.jobs.wake_log(); // to keep the time for it
                }
                // A close that came before the wait began did not end it.
                if polled.is_pending() {
                    self.check_open().map_or_else(|e| Poll::Ready(Err(e)), |()| Poll::Pending)
                } else {
                    polled
                }
            });
            let waited = waited.await;
            if timeout.is_none() {
                self.put_off(&mut attempts.since, begun);
            }
            match waited {
                // It waited for a transaction first, and then for an ingest.
                Err(e) if e.kind() == ErrorKind::LockTimeout && self.is_locked_by_ingest(batch, op) => {}
                waited => waited?,
            }
            self.check_open()?;
        }
        Ok(())
    }

    /// Commits, unless the commit sets `refused`: then nothing has happened, and the answer is `None`. Calls hooks as
    /// [`DbInner::begin_hooks`] does.
    fn unless_refused(
        &self,
        batch: &mut WriteBatch,
        how: &Commit<'_>,
        refused: &Cell<bool>,
    ) -> Result<Option<Visible>> {
        match self.commit(batch, how) {
            Err(_) if refused.get() => Ok(None),
            Err(e) => Err(e),
            Ok(visible) => {
                self.begin_hooks(visible); // one may have been set just now
                Ok(Some(visible))
            }
        }
    }

    /// Commits a batch that is not empty, up to the point where others see it, or refuses it where `no_wait` says so. Calls hooks as
    /// [`DbInner::begin_hooks`] does.
    pub(crate) fn commit_or_refuse(&self, batch: &mut WriteBatch, options: &WriteOptions) -> Result<Visible> {
        let visible = self.commit(batch, &Commit::new(options, Guard::Plain))?;
        self.begin_hooks(visible);
        Ok(visible)
    }

    /// Calls the commit hooks for a commit of a task, or leaves that to another thread that is calling hooks already.
    /// [`DbInner::hooks_called`] waits for that without occupying a thread.
    pub(crate) fn begin_hooks(&self, commit: Visible) {
        if commit.hooked {
            self.hooks.try_deliver();
        }
    }

    /// Waits until commit hooks were called for a commit that was passed to [`DbInner::begin_hooks`].
    pub(crate) async fn hooks_called(&self, commit: Visible) {
        if commit.hooked {
            self.hooks.until_delivered(commit.last).await;
        }
    }
}
