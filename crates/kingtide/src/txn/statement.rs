//! What callers need that run statements inside of a transaction, as SQL servers do: a view for each statement, a lock
//! timeout for each, and a way to end a statement's wait without ending the transaction.

use super::isolation::ReadRule;
use super::transaction::{Transaction, TransactionHandle};
use kingtide_base::{Error, Result};
use std::time::Duration;

impl Transaction {
    /// Sets how long it waits for a lock from now on; the database's `lock_timeout_ms` when absent. Zero: not at all, a lock
    /// that somebody else holds is a `Conflict` of which [`Error::is_lock_held`] is true.
    pub fn set_lock_timeout(&mut self, timeout: Option<Duration>) {
        self.options.lock_timeout = timeout;
    }

    /// Moves what it reads at to now: what a statement at SQL's read-committed level does at its beginning, on
    /// [`crate::Isolation::RepeatableRead`]. Also takes a locking transaction's snapshot now and not with its first operation.
    /// Open iterators stay where they are. On levels whose reads are always of now it does nothing.
    ///
    /// # Errors
    /// `InvalidArgument`, and nothing changes, when the level promises that what was read before still holds at commit, or an
    /// optimistic transaction read for update, or it was begun at a snapshot. `Finished`, `Aborted`, `Expired`.
    pub fn refresh_snapshot(&mut self) -> Result<()> {
        self.active()?;
        if self.rules.reads != ReadRule::Begin {
            return Ok(());
        }
        if self.options.snapshot.is_some() {
            return Err(Error::invalid("the transaction reads at the snapshot that it was begun with"));
        }
        if self.pinned && (self.rules.check_writes || self.rules.check_reads || !self.reads.is_empty()) {
            let level = self.options.isolation;
            return Err(Error::invalid(format!(
                "a transaction at level {level} keeps to the moment of its first reads"
            )));
        }
        self.snapshot = self.db.txns.pin(&self.shared);
        self.pinned = true;
        self.active() // somebody may have ended it before it was pinned again
    }

    /// Forgets an interrupt that met no wait.
    pub fn clear_interrupt(&mut self) {
        self.shared.take_interrupt(self.id);
    }
}

impl TransactionHandle {
    /// Ends a wait of the transaction for a lock: the call of its owner that waits, or else the next that would have to,
    /// returns `Cancelled`, and the transaction goes on. See [`Transaction::clear_interrupt`].
    ///
    /// # Errors
    /// `NotFound` when it is not running.
    pub fn interrupt(&self) -> Result<()> {
        self.db.txns.interrupt(self.id)
    }
}
