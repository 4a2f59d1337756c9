//! Commits of asynchronous tasks, whose threads must not wait.

use super::batch::WriteBatch;
use super::dead_space::Shares;
use super::pipeline::{Commit, CommitEnv, Guard, Visible};
use crate::engine::DbInner;
use crate::options::WriteOptions;
use kingtide_base::Result;
use kingtide_base::sync::atomic::Ordering;
use std::cell::Cell;

/// A larger batch is committed where waiting is allowed: copying it takes longer than handing it over.
const LARGE_BATCH: u64 = 256 << 10;

impl DbInner {
    /// Commits a batch that is not empty, up to the point where others see it, if the thread need not wait for that: neither
    /// for room, a lock or a commit hook, nor for a file to be made or written. `None`: nothing has happened, and
    /// [`DbInner::commit_waiting`] does it.
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
    /// nothing has happened, but flow control let it pass.
    pub(crate) fn commit_unless_locked(
        &self,
        batch: &mut WriteBatch,
        options: &WriteOptions,
    ) -> Result<Option<Visible>> {
        self.admit(batch, options.no_wait)?;
        // Here too, because large values would be written before the commit finds it out, and then again.
        if self.txns.locks.any_held() && self.first_locked(batch, &Guard::Plain).is_some() {
            return Ok(None);
        }
        let refused = Cell::new(false);
        let how = Commit { lock_refusal: Some(&refused), ..Commit::admitted(options, Guard::Plain) };
        self.unless_refused(batch, &how, &refused)
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

    /// Commits a batch that is not empty, up to the point where others see it. `admitted`: flow control let it pass already.
    pub(crate) fn commit_waiting(
        &self,
        batch: &mut WriteBatch,
        options: &WriteOptions,
        admitted: bool,
    ) -> Result<Visible> {
        let visible = self.commit(batch, &Commit { admitted, ..Commit::new(options, Guard::Plain) })?;
        self.notify_hooks(visible);
        Ok(visible)
    }
}
