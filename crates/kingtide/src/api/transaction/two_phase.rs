//! Two-phase commit as its users call it: prepare, and then commit or roll back, by the transaction or by its name.
//!
//! A prepared transaction has been checked and may commit whatever happens, so nothing that it relies on may change until
//! it does: what it wrote is locked exclusively and, on levels that check reads, what it read is locked shared. Others meet
//! these locks like any others: writes outside of transactions wait, optimistic commits are refused.

use super::{CommitTicket, Transaction};
use crate::api::Db;
use crate::commit::pipeline::{Commit, Guard};
use crate::engine::DbInner;
use crate::ops::LockTarget;
use crate::options::WriteOptions;
use crate::txn::prepared::{PrepareRequest, PreparedInfo, PreparedLock, locks_of};
use crate::txn::read_set::Validation;
use crate::txn::state::State;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, Result, SeqNo};
use std::sync::Arc;

impl Transaction {
    /// Prepares: checks everything that a commit would check, and logs the transaction under a name, durably unless it was begun with a
    /// durability of its own. From then on it can be committed, even after a crash, and is in doubt until [`Transaction::commit`] or
    /// [`Transaction::rollback`], or [`Db::commit_prepared`] or [`Db::rollback_prepared`] by its name. It takes no other operation, and dropping
    /// it leaves it in doubt.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let accounts = db.default_family();
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// txn.put(accounts, b"ann", b"70")?;
    /// txn.prepare(b"transfer 17")?; // from here on it can be committed, whatever happens
    /// assert_eq!(db.get("ann")?, None);
    /// drop(txn); // as after a crash: it is in doubt, until its coordinator decides
    /// assert_eq!(db.recover_prepared()[0].xid, b"transfer 17");
    /// db.commit_prepared(b"transfer 17")?; // or rollback_prepared
    /// assert_eq!(db.get("ann")?.as_deref(), Some(&b"70"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Conflict`, as from a commit, or if a staged value ([`Transaction::put_staged`]) was begun before `change_retention` was set: the
    /// transaction is rolled back. After these errors it is as before: `Exists` for a name that a transaction in doubt has; `InvalidArgument`
    /// for a name that is empty or longer than 1,024 bytes, for a staged value that another transaction committed or prepared, and for more
    /// writes than a memtable holds; `NoSpace` and the like; `Io` if a staged value cannot be synced, and then no commit takes that value any
    /// more. `Poisoned` from the sync: it is prepared, and it is unknown whether it would survive a power cut.
    pub fn prepare(&mut self, xid: &[u8]) -> Result<()> {
        self.db.check_origin()?;
        self.active()?;
        if !self.shared.change(self.id, State::Active, State::Committing) {
            return self.active();
        }
        match self.prepare_now(xid) {
            Ok(durable) => {
                self.db.refresh_prepared();
                self.xid = Some(xid.into());
                durable.map(|_| ())
            }
            Err(e) if e.kind() == ErrorKind::Conflict => {
                self.finish(State::RolledBack);
                self.db.stats.add(Stat::TxnRollbacks, 1);
                Err(e)
            }
            Err(e) => {
                if !self.takes_locks() {
                    self.db.txns.locks.release_all(self.id);
                }
                self.shared.enter(self.id, State::Active);
                Err(e)
            }
        }
    }

    /// The outer error: not prepared. The inner: prepared, but not known to be durable.
    fn prepare_now(&mut self, xid: &[u8]) -> Result<Result<SeqNo>> {
        let (shared, db) = (self.shared.clone(), self.db.clone());
        self.admit()?;
        let reads = self.read_locks();
        shared.note_locks();
        if !self.takes_locks() {
            // The write set is not locked meanwhile, as in `admit`: this may wait for an ingest.
            let locks = locks_of(&shared.writes.lock().batch, &reads);
            db.lock_for_prepare(self.id, &locks, self.options.no_wait)?;
        }
        let mut writes = shared.writes.lock();
        db.check_space(&writes.batch)?;
        let durability = self.durability().unwrap_or(Durability::Power);
        if durability == Durability::Power {
            // Here one thread waits for it; with the log, all would whose commits are synced.
            writes.batch.staged().iter().try_for_each(|s| s.log.make_durable())?;
        }
        let locks = if self.takes_locks() { db.other_locks_of(self.id, &writes.batch) } else { reads };
        let options = WriteOptions { durability: Some(durability), ..self.write_options() };
        let request =
            PrepareRequest { xid, txn: self.id, isolation: self.isolation(), batch: &mut writes.batch, locks };
        let outcome = db.prepare_with(request, |record, writes| {
            let visible = if self.takes_locks() {
                db.commit(record, &Commit::admitted(&options, Guard::Locked))?
            } else {
                let since = self.rules.check_writes.then_some(self.snapshot);
                let mut validation = Validation::new(self.id, since, &self.reads, writes);
                validation.writes = Some(writes);
                db.commit(record, &Commit::admitted(&options, Guard::Checked(&validation)))?
            };
            // From here on it is prepared. Its state says so before a caller that knows its name can resolve it, or its locks
            // would stay.
            db.txns.prepared(&self.shared, self.id, xid);
            db.make_durable(visible, durability)?;
            Ok(visible.last)
        })?;
        Ok(outcome.durable)
    }

    fn takes_locks(&self) -> bool {
        self.rules.lock_writes
    }

    /// Shared locks on everything that must still be current at the commit.
    fn read_locks(&self) -> Vec<PreparedLock> {
        let keys = self.reads.keys().iter().map(|key| PreparedLock {
            family: self.reads.family_of(key).clone(),
            exclusive: false,
            target: LockTarget::Key(self.reads.key_of(key).to_vec()),
        });
        let ranges = self.reads.ranges().into_iter().map(|r| PreparedLock {
            family: r.family,
            exclusive: false,
            target: LockTarget::Range(r.lower, r.upper),
        });
        keys.chain(ranges).collect()
    }

    pub(super) fn commit_prepared(&mut self) -> Result<CommitTicket> {
        let Some(xid) = self.xid.clone() else { return Err(self.db.txns.why_not(self.id, State::Prepared)) };
        let ticket = resolve(&self.db, &xid, true, &self.write_options())?;
        self.xid = None;
        self.forget();
        Ok(ticket)
    }

    pub(super) fn rollback_prepared(&mut self) -> Result<()> {
        let Some(xid) = self.xid.clone() else { return Ok(()) };
        let ticket = resolve(&self.db, &xid, false, &self.write_options())?;
        self.xid = None;
        self.forget();
        ticket.wait().map(|_| ())
    }
}

/// Ends a prepared transaction. What is left to do is to wait until that is durable.
fn resolve(db: &Arc<DbInner>, xid: &[u8], committed: bool, options: &WriteOptions) -> Result<CommitTicket> {
    let (visible, durability) = db.resolve(xid, committed, options)?;
    Ok(CommitTicket::new(db.clone(), visible, durability))
}

impl Db {
    /// The transactions in doubt, oldest first: those prepared now and, after an open, those that recovery found. They hold
    /// their locks. None in a forked child.
    pub fn recover_prepared(&self) -> Vec<PreparedInfo> {
        if self.check_process().is_err() {
            return Vec::new();
        }
        self.inner().prepared.list()
    }

    /// Commits a prepared transaction by its name. Returns the sequence number of the commit.
    ///
    /// # Errors
    /// `NotFound` when none of that name is in doubt; those of a commit, after which it is still in doubt.
    pub fn commit_prepared(&self, xid: &[u8]) -> Result<SeqNo> {
        resolve(self.inner(), xid, true, &WriteOptions::default())?.wait()
    }

    /// Rolls a prepared transaction back by its name.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
    /// txn.put(db.default_family(), b"ann", b"70")?;
    /// txn.prepare(b"transfer 17")?;
    /// db.rollback_prepared(b"transfer 17")?;
    /// assert_eq!(db.get("ann")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::commit_prepared`].
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        resolve(self.inner(), xid, false, &WriteOptions::default())?.wait().map(|_| ())
    }
}
