//! Commits of asynchronous tasks, whose threads must not wait.

use super::batch::WriteBatch;
use super::dead_space::Shares;
use super::pipeline::{Commit, CommitEnv, Guard, Visible};
use crate::engine::DbInner;
use crate::options::WriteOptions;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{ErrorKind, Result, TxnId};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// A larger batch is committed where waiting is allowed: copying it takes longer than handing it over.
const LARGE_BATCH: u64 = 256 << 10;

/// What came of a commit that must not wait for a lock of a transaction.
pub(crate) enum Attempt {
    Committed(Visible),
    /// Nothing has happened, but flow control let it pass: this transaction has locked what the operation writes.
    Locked(usize, TxnId),
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

    /// Commits a batch that is not empty, up to the point where others see it, if it need not wait for a lock of a transaction. `admitted`:
    /// flow control let it pass already.
    pub(crate) fn commit_unless_locked(
        &self,
        batch: &mut WriteBatch,
        options: &WriteOptions,
        admitted: bool,
    ) -> Result<Attempt> {
        if !admitted {
            self.admit(batch, options.no_wait)?;
        }
        loop {
            // Here too, because large values would be written before the commit finds it out, and then again.
            if self.txns.locks.any_held()
                && let Some((op, holder)) = self.first_locked(batch, &Guard::Plain)
            {
                return Ok(Attempt::Locked(op, holder));
            }
            let refused = Cell::new(false);
            let how = Commit { lock_refusal: Some(&refused), ..Commit::admitted(options, Guard::Plain) };
            if let Some(visible) = self.unless_refused(batch, &how, &refused)? {
                return Ok(Attempt::Committed(visible));
            }
        }
    }

    /// Waits, without a thread, until no transaction holds a lock on what an operation writes, or `holder` is an ingest and it is time to
    /// look again. `since` is when the commit first waited for a transaction, which the first call sets; the option `lock_timeout_ms` counts
    /// from there.
    pub(crate) async fn until_unlocked(
        &self,
        batch: &WriteBatch,
        (op, holder): (usize, TxnId),
        since: &mut Option<u64>,
    ) -> Result<()> {
        let (is_ingest, timeout) = self.longest_wait(holder, since);
        let mut wait = self.free_wait(batch, op, timeout);
        let waited = poll_fn(|cx| {
            let polled = Pin::new(&mut wait).poll(cx);
            if wait.take_first() {
                self.jobs.wake(); // to keep the time for it
            }
            // A close that came before the wait began did not end it.
            if polled.is_pending() {
                self.check_open().map_or_else(|e| Poll::Ready(Err(e)), |()| Poll::Pending)
            } else {
                polled
            }
        });
        match waited.await {
            Err(e) if is_ingest && e.kind() == ErrorKind::LockTimeout => self.check_open(),
            waited => waited.and_then(|()| self.check_open()),
        }
    }

    /// Commits, unless the commit sets `refused`: then nothing has happened, and the answer is `None`.
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
                self.notify_hooks(visible); // one that was set just now
                Ok(Some(visible))
            }
        }
    }

    /// Commits a batch that is not empty, up to the point where others see it, or refuses it where `no_wait` says so.
    pub(crate) fn commit_or_refuse(&self, batch: &mut WriteBatch, options: &WriteOptions) -> Result<Visible> {
        let visible = self.commit(batch, &Commit::new(options, Guard::Plain))?;
        self.notify_hooks(visible);
        Ok(visible)
    }
}
