//! The end of a transaction: commit, rollback, and the beginning of the next one in the same object.

use super::{CommitTicket, KEEP, Transaction};
use crate::commit::pipeline::{Commit, Guard, Visible};
use crate::txn::read_set::Validation;
use crate::txn::state::State;

use kingtide_base::histogram::Histogram;
use kingtide_base::options::Durability;
use kingtide_base::slow::Subject;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, Result, SeqNo};

impl Transaction {
    /// Commits: all writes become visible at once, with the transaction's durability. Returns the sequence number of
    /// the last of them, 0 if there were none.
    ///
    /// # Errors
    /// `Conflict`: another commit changed data that the level protects; the transaction is rolled back. `Busy`, `NoSpace`,
    /// `Io`: nothing was written, and the commit may be tried again. `Poisoned` from the sync: visible, and of unknown
    /// durability. `Finished`, `Aborted`, `Expired`, `Closed`.
    pub fn commit(&mut self) -> Result<SeqNo> {
        self.db.check_origin()?; // the list of slow operations has a lock
        let started = self.db.stats.start();
        let committed = self.commit_and_sync();
        self.db.stats.finish(Histogram::Commit, None, started, Subject::default);
        committed
    }

    fn commit_and_sync(&mut self) -> Result<SeqNo> {
        if self.xid.is_some() {
            return self.commit_prepared()?.wait();
        }
        let (visible, durability) = self.commit_now()?;
        let Some(visible) = visible else { return Ok(0) };
        self.db.make_durable(visible, durability)?;
        Ok(visible.last)
    }

    /// Commits up to the point where the writes are visible: consecutive calls take effect in their
    /// order, without waiting for the disk. For coordinators that fix the order of commits, such as a binary log, and sync
    /// many of them together: [`CommitTicket::wait`] does the rest.
    ///
    /// # Errors
    /// As [`Transaction::commit`], except those of the sync.
    pub fn commit_ordered(&mut self) -> Result<CommitTicket> {
        if self.xid.is_some() {
            return self.commit_prepared();
        }
        let (visible, durability) = self.commit_now()?;
        Ok(CommitTicket::new(self.db.clone(), visible, durability))
    }

    fn commit_now(&mut self) -> Result<(Option<Visible>, Durability)> {
        self.db.check_origin()?;
        self.active()?;
        if !self.shared.change(self.id, State::Active, State::Committing) {
            return Err(self.gone(self.shared.state_of(self.id)));
        }
        let durability = self.options.durability.unwrap_or_else(|| self.db.durability());
        match self.write_out() {
            Ok(visible) => {
                self.finish(State::Committed);
                visible.into_iter().for_each(|v| self.db.notify_hooks(v));
                self.db.stats.add(Stat::TxnCommits, 1);
                Ok((visible, durability))
            }
            Err(e) if e.kind() == ErrorKind::Conflict => {
                self.finish(State::RolledBack);
                self.db.stats.add(Stat::TxnRollbacks, 1);
                Err(e)
            }
            Err(e) => {
                self.shared.enter(self.id, State::Active);
                Err(e)
            }
        }
    }

    fn write_out(&mut self) -> Result<Option<Visible>> {
        if self.wrote_nothing() && self.reads.is_empty() {
            self.db.check_open()?;
            return Ok(None); // it read from one snapshot, or its level promises nothing about its reads
        }
        self.admit()?;
        let mut writes = self.shared.writes.lock();
        let batch = &mut writes.batch;
        if batch.is_empty() {
            self.db.check_open()?;
            if !self.rules.check_writes && !self.reads.is_empty() {
                // Keys read for update, perhaps at different moments: there must be one at which all of it was so.
                let validation = Validation::new(self.id, None, &self.reads, batch);
                self.db.validate_outside(&validation, batch, 0)?;
            }
            return Ok(None); // otherwise it read one moment, or was promised nothing
        }
        let options = self.write_options();
        let visible = if self.options.locking {
            self.db.commit(batch, &Commit::admitted(&options, Guard::Locked))?
        } else {
            let since = self.rules.check_writes.then_some(self.snapshot);
            let validation = Validation::new(self.id, since, &self.reads, batch);
            self.db.commit(batch, &Commit::admitted(&options, Guard::Checked(&validation)))?
        };
        self.shared.forget_writes(&mut writes);
        Ok(Some(visible))
    }

    /// Rolls the transaction back, and frees the memory of its writes and reads, except for a little that the next transaction in the
    /// same object reuses. Idempotent: once the transaction has ended, this changes nothing. Also allowed after an error.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// txn.put(db.default_family(), b"ebb", b"low")?;
    /// txn.rollback()?;
    /// assert_eq!(db.get("ebb")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// For a prepared transaction, errors of the log; it then remains in doubt.
    pub fn rollback(&mut self) -> Result<()> {
        self.db.check_origin()?;
        if self.xid.is_some() {
            return self.rollback_prepared();
        }
        if self.shared.change(self.id, State::Active, State::RolledBack) {
            self.db.stats.add(Stat::TxnRollbacks, 1);
            self.db.txns.release_locks_and_snapshot(&self.shared, self.id);
            let has_files = self.shared.has_writes() && !self.shared.writes.lock().batch.staged().is_empty();
            self.forget();
            if has_files {
                self.db.jobs.wake(); // to remove them
            }
        } else if self.shared.state_of(self.id).is_over() {
            self.forget(); // another thread ended it, and could not clear the read set
        }
        Ok(())
    }

    /// Rolls back if it is still running, and restarts with the same options in the same object. A prepared
    /// transaction stays in doubt.
    ///
    /// # Errors
    /// As [`crate::Db::begin`].
    pub fn reset(&mut self) -> Result<()> {
        self.db.check_origin()?;
        self.rollback_unless_prepared();
        self.overlays.clear();
        self.reads.reset(KEEP);
        (self.written, self.spare_lock) = (0, false);
        self.db.check_writable()?;
        let (isolation, locking, timeout) = (self.options.isolation, self.options.locking, self.options.timeout);
        if self.shared.state_of(self.id).is_over() {
            self.id = self.db.txns.renew(&self.shared, self.id, timeout);
        } else {
            (self.shared, self.id) = self.db.txns.begin(isolation, locking, timeout)?;
        }
        self.take_snapshot();
        Ok(())
    }

    fn rollback_unless_prepared(&mut self) {
        if self.xid.take().is_some() && self.shared.change(self.id, State::Prepared, State::InDoubt) {
            return; // the table of prepared transactions has it
        }
        if self.shared.state_of(self.id) == State::Committing {
            self.finish(State::RolledBack); // a panic of a family's key order came out of the commit
            return;
        }
        if self.shared.state_of(self.id) == State::Active
            && self.shared.change(self.id, State::Active, State::RolledBack)
        {
            self.db.stats.add(Stat::TxnRollbacks, 1);
            self.db.txns.release_locks_and_snapshot(&self.shared, self.id);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.db.check_origin().is_err() {
            return; // in a forked child: what it holds is the parent's to give back
        }
        self.rollback_unless_prepared();
        if self.shared.state_of(self.id).is_over() {
            self.db.txns.release(self.shared.clone(), self.id);
        }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use super::*;
    use crate::{Db, Isolation, Options};
    use kingtide_vfs::MemFs;

    /// Bytes that an object may keep for its next transaction: up to `KEEP` for each part of its write and read sets.
    const LITTLE: u64 = 8 * KEEP as u64;

    /// A program may keep the object of a finished transaction for long. Whichever way a large transaction ends, its object keeps
    /// little memory, and no share of `transaction_memory`.
    #[test]
    fn a_finished_large_transaction_holds_little_memory() {
        let ends: [(&str, fn(&Db, &mut Transaction)); 6] = [
            ("commit", |_, t| _ = t.commit().unwrap()),
            ("conflict", |db, t| {
                db.put(0u32.to_be_bytes(), "first").unwrap();
                assert_eq!(t.commit().unwrap_err().kind(), ErrorKind::Conflict);
            }),
            ("rollback", |_, t| t.rollback().unwrap()),
            ("abort", |_, t| {
                t.handle().abort().unwrap();
                assert_eq!(t.commit().unwrap_err().kind(), ErrorKind::Aborted);
                t.rollback().unwrap();
            }),
            ("prepare and commit", |_, t| {
                t.prepare(b"x").unwrap();
                t.commit().unwrap();
            }),
            ("prepare and rollback", |_, t| {
                t.prepare(b"x").unwrap();
                t.rollback().unwrap();
            }),
        ];
        for (how, end) in ends {
            let db = Db::open("db", Options::new().fs(MemFs::shared())).unwrap();
            let family = db.default_family();
            let mut txn = db.begin(Isolation::Serializable).unwrap();
            for n in 0..100_000u32 {
                let key = n.to_be_bytes();
                txn.put(family, &key, b"value").unwrap();
                if n % 10 == 0 {
                    txn.get(family, &(n + 1_000_000).to_be_bytes()).unwrap();
                }
            }
            txn.get(family, &5u32.to_be_bytes()).unwrap(); // by its index
            txn.cursor(family, ..).unwrap();
            let held = |txn: &Transaction| txn.shared.writes.lock().memory() + txn.reads.memory();
            let charged = || db.inner().txns.memory.used();
            assert!(held(&txn) > 4 * LITTLE && charged() > 4 * LITTLE, "{how}: {} {}", held(&txn), charged());
            end(&db, &mut txn);
            assert!(held(&txn) <= LITTLE, "{how}: {} bytes are held", held(&txn));
            assert_eq!((charged(), txn.len()), (0, 0), "{how}");
            txn.reset().unwrap();
            txn.put(family, b"next", b"value").unwrap();
            txn.commit().unwrap();
        }
    }
}
