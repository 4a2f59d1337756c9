//! How a transaction takes locks.

use super::Transaction;
use crate::api::{ColumnFamily, KeyRange};
use crate::txn::isolation::Isolation;
use crate::txn::state::State;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_locks::{LockMode, Owners, Taken, Wait};
use std::ops::Bound;
use std::time::Duration;

impl Transaction {
    fn lock_wait(&self) -> Wait {
        match self.options.lock_timeout.unwrap_or_else(|| self.db.options.read().lock_timeout) {
            Duration::ZERO => Wait::No,
            timeout => Wait::Until(timeout),
        }
    }

    /// To be called with the answer to a request for a lock.
    fn took(&mut self, wait: Wait, taken: Result<Taken>) -> Result<Taken> {
        self.spare_lock = false;
        match taken {
            Ok(taken) => {
                self.active()?; // another thread may have ended it, and released its locks, before this one was granted
                Ok(taken)
            }
            Err(e) => {
                if e.kind() == ErrorKind::Deadlock {
                    return Err(self.fall_victim(e));
                }
                Err(if wait == Wait::No && e.kind() == ErrorKind::Conflict { e.lock_held() } else { e })
            }
        }
    }

    /// Ends a deadlock's victim, unless the thread that found the deadlock has done so.
    fn fall_victim(&self, deadlock: Error) -> Error {
        self.db.txns.sacrifice(self.id);
        match self.shared.state_of(self.id) {
            State::RolledBack => {
                // The rest of the cycle waits for its locks: release them now, not when the caller rolls back.
                self.db.txns.release_locks_and_snapshot(&self.shared, self.id);
                deadlock
            }
            state => self.gone(state), // another thread ended it for another reason, and has said so
        }
    }

    /// Waits for commits that passed this point before the lock was taken: see the lock's partner, the look at locks
    /// under the commit lock. For a lock that it had already it waited then.
    fn pass_commits(&self, taken: Taken) {
        if taken != Taken::Before {
            drop(self.db.commit.lock());
        }
    }

    fn ask_for_key(&mut self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<Taken> {
        let f = family.inner();
        self.shared.note_locks();
        let wait = self.lock_wait();
        let taken = self.db.txns.locks.acquire(&self.db.txns, self.id, (f.id(), f.order()), key, mode, wait);
        self.took(wait, taken)
    }

    pub(crate) fn lock_key(&mut self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<()> {
        let taken = self.ask_for_key(family, key, mode)?;
        self.pass_commits(taken);
        self.spare_lock = taken == Taken::Now;
        Ok(())
    }

    /// Locks several keys, each with an error of its own. In the order of the keys, so that two transactions that do it
    /// wait for each other one way round only.
    pub(super) fn lock_keys<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        keys: &[K],
        mode: LockMode,
    ) -> Vec<Result<()>> {
        let order = family.inner().order();
        let mut ascending: Vec<usize> = (0..keys.len()).collect();
        ascending.sort_by(|a, b| order.compare(keys[*a].as_ref(), keys[*b].as_ref()));
        let mut results: Vec<Result<()>> = keys.iter().map(|_| Ok(())).collect();
        let mut any = Taken::Before;
        for i in ascending {
            let key = keys[i].as_ref();
            let taken = self.active().and_then(|()| match key.is_empty() {
                true => Err(empty_key()),
                false => self.ask_for_key(family, key, mode),
            });
            results[i] = taken.map(|taken| any = if taken == Taken::Before { any } else { taken });
        }
        self.pass_commits(any);
        results
    }

    /// Locks a key, which need not exist, without reading it. Only for locking transactions.
    ///
    /// # Errors
    /// As [`Transaction::lock_range`].
    pub fn lock(&mut self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<()> {
        self.usable(family)?;
        if !self.options.locking {
            return Err(Error::invalid("lock: the transaction was begun without `locking`"));
        }
        if key.is_empty() {
            return Err(empty_key());
        }
        self.lock_key(family, key, mode)?;
        self.begin_snapshot();
        Ok(())
    }

    /// Releases the lock on a key that the previous call took, if the row is not needed after all, as SQL servers do at READ
    /// COMMITTED: a [`Transaction::get_for_update`], [`Transaction::contains_for_update`] or
    /// [`Transaction::get_reader_for_update`], one of the same for share, or [`Transaction::lock`]. Returns whether it did: not
    /// if the transaction already had a lock on the key, if the lock has become part of a range lock, or at the serializable
    /// level, which promises that reads stay valid. At the snapshot level, releasing a lock fixes the snapshot: see
    /// [`Transaction::get_for_update`].
    ///
    /// # Errors
    /// `Finished`, `Aborted`, `Expired`.
    pub fn unlock_last(&mut self) -> Result<bool> {
        self.db.check_origin()?;
        self.active()?;
        let released = self.options.isolation != Isolation::Serializable && self.give_back_spare_lock();
        if released {
            // What it read under the lock may change now.
            self.fix_snapshot();
        }
        Ok(released)
    }

    /// Locks a range of keys, including absent ones. Only for locking transactions.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, LockMode, TransactionOptions};
    ///
    /// let tides = db.default_family();
    /// let mut txn = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true))?;
    /// txn.lock(tides, b"ebb", LockMode::Exclusive)?; // it need not exist
    /// assert!(txn.unlock_last()?);
    /// txn.lock_range(tides, "a".."c", LockMode::Shared)?; // no other writes a key there until the end
    /// assert_eq!(db.locks().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` on an optimistic transaction; `Conflict`, `LockTimeout`, `Deadlock`; `Finished` and the like.
    pub fn lock_range(&mut self, family: &ColumnFamily, range: impl KeyRange, mode: LockMode) -> Result<()> {
        self.usable(family)?;
        if !self.options.locking {
            return Err(Error::invalid("lock_range: the transaction was begun without `locking`"));
        }
        self.lock_span(family, range.lower(), range.upper(), mode)?;
        self.begin_snapshot();
        Ok(())
    }

    pub(super) fn lock_span(
        &mut self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        mode: LockMode,
    ) -> Result<()> {
        let f = family.inner();
        self.shared.note_locks();
        let (wait, locks) = (self.lock_wait(), &self.db.txns.locks);
        let taken = locks.acquire_range(&self.db.txns, self.id, (f.id(), f.order()), (lower, upper), mode, wait);
        let taken = self.took(wait, taken)?;
        self.pass_commits(taken);
        Ok(())
    }
}

pub(super) fn empty_key() -> Error {
    Error::invalid("empty key: keys have at least one byte")
}

#[cfg(test)]
mod tests {
    use crate::{Db, Isolation, Options, TransactionOptions};
    use kingtide_base::ErrorKind;
    use kingtide_locks::LockMode;
    use kingtide_vfs::MemFs;
    use std::ops::Bound;

    /// The other thread ends the transaction after the call has found it running, and before the lock is granted, which is at once.
    #[test]
    fn a_lock_that_is_granted_after_an_abort_is_given_back() {
        let db = Db::open("/db", Options::new().fs(MemFs::shared())).unwrap();
        let f = db.default_family();
        for range in [false, true] {
            let mut txn = db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true)).unwrap();
            txn.handle().abort().unwrap();
            let taken = match range {
                false => txn.ask_for_key(f, b"k", LockMode::Exclusive).map(drop),
                true => txn.lock_span(f, Bound::Unbounded, Bound::Unbounded, LockMode::Shared),
            };
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::Aborted);
            assert!(db.locks().is_empty(), "held by a transaction that is over: {:?}", db.locks());
        }
    }
}
