//! Two-phase commit as its users call it: prepare, and then commit or roll back, by the transaction or by its name.
//!
//! A prepared transaction has been checked and may commit whatever happens, so nothing that it relies on may change until
//! it does: what it wrote is locked exclusively and, on levels that check reads, what it read is locked shared. Others meet
//! these locks like any others: writes outside of transactions wait, optimistic commits are refused.

use super::id::TxnId;
use super::locks::{LockMode, Wait};
use super::prepared::{PrepareRequest, PreparedInfo, PreparedLock, locks_of};
use super::state::{State, Transactions};
use super::transaction::{CommitTicket, Transaction};
use super::validate::{Validation, slice};
use crate::commit::Guard;
use crate::commit::batch::WriteBatch;
use crate::db::Db;
use crate::engine::DbInner;
use crate::ops::LockTarget;
use crate::options::WriteOptions;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, Kind, Result, SeqNo};
use std::collections::HashSet;
use std::sync::Arc;

impl Transactions {
    /// Takes a lock for a transaction that is prepared or about to be, without waiting.
    ///
    /// # Errors
    /// `Conflict` naming who holds it.
    pub fn lock_for_prepared(&self, id: TxnId, lock: &PreparedLock) -> Result<()> {
        let mode = if lock.exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let (family, order) = (lock.family.id(), lock.family.order());
        match &lock.target {
            LockTarget::Key(key) => self.locks.lock(self, id, family, order, key, mode, Wait::No).map(drop),
            LockTarget::Range(lo, hi) => {
                self.locks.lock_range(self, id, family, order, (slice(lo), slice(hi)), mode, Wait::No).map(drop)
            }
        }
    }
}

impl Transaction {
    /// Prepares: checks everything that a commit would check, and logs the transaction under a name, durably unless it was
    /// begun with a durability of its own. From then on it can be committed whatever happens, after a crash too, and is
    /// in doubt until [`Transaction::commit`] or [`Transaction::rollback`], or [`Db::commit_prepared`] or
    /// [`Db::rollback_prepared`] by its name. It takes no other operation, and dropping it leaves it in doubt.
    ///
    /// # Errors
    /// `Conflict`: as from a commit, the transaction is rolled back. `Exists` for a name that a transaction in doubt has,
    /// `InvalidArgument` for a name that is empty or longer than 1,024 bytes, `NoSpace` and the like: it is as before.
    /// `Poisoned` from the sync: it is prepared, and whether it would survive a power cut is unknown.
    pub fn prepare(&mut self, xid: &[u8]) -> Result<()> {
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
        let mut writes = shared.writes.lock();
        db.check_space(&writes.batch)?;
        let reads = self.read_locks();
        shared.note_locks();
        if !self.takes_locks() {
            for lock in locks_of(&writes.batch, &reads) {
                db.txns.lock_for_prepared(self.id, &lock)?;
            }
        }
        let locks = if self.takes_locks() { db.other_locks_of(self.id, &writes.batch) } else { reads };
        let durability = self.durability().unwrap_or(Durability::Power);
        let options = WriteOptions { durability: Some(durability), ..self.write_options() };
        let request =
            PrepareRequest { xid, txn: self.id, isolation: self.isolation(), batch: &mut writes.batch, locks };
        let outcome = db.prepare_with(request, |record, writes| {
            let visible = if self.takes_locks() {
                db.commit_admitted(record, &options, &Guard::Locked)?
            } else {
                let since = self.rules.check_writes.then_some(self.snapshot);
                let mut validation = Validation::new(self.id, since, &self.reads, writes);
                validation.writes = Some(writes);
                db.commit_admitted(record, &options, &Guard::Checked(&validation))?
            };
            // From here on it is prepared. Its state says so before whoever knows its name can resolve it, or its locks
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
        let ticket = self.db.resolve(&xid, true, &self.write_options())?;
        self.xid = None;
        Ok(ticket)
    }

    pub(super) fn rollback_prepared(&mut self) -> Result<()> {
        let Some(xid) = self.xid.clone() else { return Ok(()) };
        let ticket = self.db.resolve(&xid, false, &self.write_options())?;
        self.xid = None;
        ticket.wait().map(|_| ())
    }
}

impl DbInner {
    /// What a locking transaction has locked besides the keys that it writes, whatever its level: what it read for update or
    /// for share, and what it was told to lock.
    fn other_locks_of(&self, id: TxnId, batch: &WriteBatch) -> Vec<PreparedLock> {
        let families = self.commit.lock().families.clone();
        let keys = batch.ops().iter().filter(|op| op.kind != Kind::RangeDelete as u8);
        let written: HashSet<_> =
            keys.map(|op| (batch.families()[op.family as usize].id(), batch.key_of(op))).collect();
        let with_family = self.txns.locks.held_by(id).into_iter().filter_map(|l| {
            let family = families.iter().find(|f| f.id() == l.family)?.clone();
            let exclusive = l.mode == LockMode::Exclusive;
            let target = match l.target {
                super::locks::LockTarget::Key(key) if exclusive && written.contains(&(l.family, &key[..])) => {
                    return None;
                }
                super::locks::LockTarget::Key(key) => LockTarget::Key(key),
                super::locks::LockTarget::Range(lo, hi) => LockTarget::Range(lo, hi),
            };
            Some(PreparedLock { family, exclusive, target })
        });
        with_family.collect()
    }

    /// Ends a prepared transaction, up to the point where others see what it wrote.
    fn resolve(self: &Arc<Self>, xid: &[u8], committed: bool, options: &WriteOptions) -> Result<CommitTicket> {
        self.check_writable()?;
        let mut visible = None;
        let resolution = self.resolve_with(xid, committed, |_, record: &mut WriteBatch| {
            // It holds locks on all that it writes.
            let done = self.commit_visible(record, options, &Guard::Locked)?;
            visible = Some(done);
            Ok(done.last)
        })?;
        self.txns.resolved(resolution.txn, committed);
        self.refresh_prepared();
        visible.into_iter().for_each(|c| self.tell_hooks(c));
        resolution.durable?;
        let durability = options.durability.unwrap_or_else(|| self.durability());
        Ok(CommitTicket::new(self.clone(), visible, durability))
    }

    pub(crate) fn refresh_prepared(&self) {
        self.stats.set(Stat::TxnPrepared, self.prepared.count() as u64);
    }
}

impl Db {
    /// The transactions in doubt, oldest first: those prepared now and, after an open, those that recovery found. They hold
    /// their locks.
    pub fn recover_prepared(&self) -> Vec<PreparedInfo> {
        self.inner().prepared.list()
    }

    /// Commits a prepared transaction by its name. Returns the sequence number of the commit.
    ///
    /// # Errors
    /// `NotFound` when none of that name is in doubt; those of a commit, after which it is still in doubt.
    pub fn commit_prepared(&self, xid: &[u8]) -> Result<SeqNo> {
        self.inner().resolve(xid, true, &WriteOptions::default())?.wait()
    }

    /// Rolls a prepared transaction back by its name.
    ///
    /// # Errors
    /// As [`Db::commit_prepared`].
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        self.inner().resolve(xid, false, &WriteOptions::default())?.wait().map(|_| ())
    }
}
