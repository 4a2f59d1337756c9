//! How a transaction takes locks.

use super::locks::{LockMode, Taken, Wait};
use super::read_set::ReadSet;
use super::slot_of;
use super::state::State;
use super::transaction::Transaction;
use super::validate::Validation;
use crate::commit::batch::WriteBatch;
use crate::family::{ColumnFamily, Family};
use kingtide_base::stats::Stat;
use kingtide_base::{Error, ErrorKind, Result};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

impl Transaction {
    /// A `Conflict` if the key was committed by another since the snapshot.
    pub(super) fn check_unchanged(&self, family: &Arc<Family>, key: &[u8]) -> Result<()> {
        let slot = slot_of(family.id(), family.order(), key, family.order().head(key));
        if !self.db.txns.filter.may_have_changed(slot, self.snapshot) {
            return Ok(());
        }
        let mut reads = ReadSet::default();
        reads.add_key(family, slot, key, self.snapshot);
        let validation =
            Validation { txn: self.id, writes_since: None, writes: None, reads: &reads, ranges: Vec::new() };
        self.db.validate_outside(&validation, &WriteBatch::new(), 0).map(|_| ())
    }

    fn lock_wait(&self) -> Wait {
        match self.options.lock_timeout {
            Some(Duration::ZERO) => Wait::No,
            Some(t) => Wait::Until(t),
            None => Wait::Until(Duration::from_millis(self.db.options.read().lock_timeout_ms)),
        }
    }

    /// Takes a lock, and then waits until whoever passed the place before the lock was there is done: see the lock's
    /// partner, the look at locks under the commit lock. For a lock that it has already it waited then.
    fn locked(&self, take: impl FnOnce(Wait) -> Result<Taken>) -> Result<()> {
        self.shared.note_locks();
        let wait = self.lock_wait();
        match take(wait) {
            Ok(Taken::Now) => drop(self.db.commit.lock()),
            Ok(Taken::Before) => {}
            Err(e) => {
                if e.kind() == ErrorKind::Deadlock && self.shared.change(self.id, State::Active, State::RolledBack) {
                    // The others of the circle wait for what it holds, not for its owner to make up his mind.
                    self.db.stats.add(Stat::TxnRollbacks, 1);
                    self.db.txns.let_go(&self.shared, self.id);
                }
                return Err(if wait == Wait::No && e.kind() == ErrorKind::Conflict { e.lock_held() } else { e });
            }
        }
        self.active() // somebody may have ended it, and let go of its locks, before this one was granted
    }

    pub(crate) fn lock_key(&self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<()> {
        let f = family.inner();
        self.locked(|wait| self.db.txns.locks.lock(&self.db.txns, self.id, f.id(), f.order(), key, mode, wait))
    }

    /// Locks a range of keys, those that do not exist included. Only for locking transactions.
    ///
    /// # Errors
    /// `InvalidArgument` on an optimistic transaction; `Conflict`, `LockTimeout`, `Deadlock`; `Finished` and the like.
    pub fn lock_range(
        &mut self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mode: LockMode,
    ) -> Result<()> {
        self.usable(family)?;
        if !self.options.locking {
            return Err(Error::invalid("lock_range: the transaction was begun without `locking`"));
        }
        self.lock_span(family, lower, upper, mode)
    }

    pub(super) fn lock_span(
        &self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mode: LockMode,
    ) -> Result<()> {
        let f = family.inner();
        let locks = &self.db.txns.locks;
        self.locked(|wait| locks.lock_range(&self.db.txns, self.id, f.id(), f.order(), (lower, upper), mode, wait))
    }
}
