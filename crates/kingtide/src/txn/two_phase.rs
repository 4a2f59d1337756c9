//! Two-phase commit: what preparing a transaction, resolving one, and keeping the log short behind those in doubt take.
//! [`super::prepared`] explains it.

use super::bounds::slice;
use super::prepared::{
    Body, Content, Overdue, PrepareOutcome, PrepareRequest, PreparedLock, ReservedName, Resolution, not_prepared,
};
use super::state::{SLICE_FOR_INGEST, Transactions};
use crate::commit::batch::WriteBatch;
use crate::commit::pipeline::{Commit, Guard, Visible};
use crate::engine::DbInner;
use crate::memtable::no_room;
use crate::ops::{LockTarget, check_xid};
use crate::options::WriteOptions;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::options::Durability;
use kingtide_base::stats::Stat;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, TxnId, rare};
use kingtide_locks::{LockMode, Wait};
use kingtide_mem::{Memtable, NoRoom};
use kingtide_versions::Edit;
use kingtide_wal::WalRecord;
use std::collections::HashSet;
use std::sync::Arc;

impl Transactions {
    /// Takes a lock for a transaction that is prepared or about to be.
    ///
    /// # Errors
    /// `Conflict`, which names the holder, if `wait` is [`Wait::No`]; otherwise `LockTimeout`.
    pub fn lock_for_prepared(&self, id: TxnId, lock: &PreparedLock, wait: Wait) -> Result<()> {
        let mode = lock.mode();
        let (family, order) = (lock.family.id(), lock.family.order());
        match &lock.target {
            LockTarget::Key(key) => self.locks.acquire(self, id, (family, order), key, mode, wait).map(drop),
            LockTarget::Range(lo, hi) => {
                self.locks.acquire_range(self, id, (family, order), (slice(lo), slice(hi)), mode, wait).map(drop)
            }
        }
    }
}

impl DbInner {
    /// Takes all locks of a transaction that holds none and is about to be prepared. It waits for ingests, as a commit does, since an ingest
    /// holds its locks no longer than its own work takes. While it waits, it holds no lock.
    ///
    /// # Errors
    /// `Conflict`, which names another transaction that holds one of them or, with `no_wait`, an ingest; `Closed`. After an error it holds no
    /// lock.
    pub(crate) fn lock_for_prepare(&self, id: TxnId, locks: &[PreparedLock], no_wait: bool) -> Result<()> {
        loop {
            let refused = |lock| Some((lock, self.txns.lock_for_prepared(id, lock, Wait::No).err()?));
            let Some((lock, e)) = locks.iter().find_map(refused) else { return Ok(()) };
            self.txns.locks.release_all(id);
            let holder = if e.kind() == ErrorKind::Conflict { self.holder_of(id, lock) } else { return Err(e) };
            if no_wait || !holder.is_none_or(Transactions::is_ingest) {
                return Err(e);
            }
            match self.txns.lock_for_prepared(id, lock, Wait::Slice(SLICE_FOR_INGEST)) {
                // By now another transaction may have the lock: the next round finds out.
                Err(e) if e.kind() == ErrorKind::LockTimeout => self.check_open()?,
                taken => taken?,
            }
        }
    }

    /// Returns another transaction that holds a lock for which this one would have to wait.
    fn holder_of(&self, id: TxnId, lock: &PreparedLock) -> Option<TxnId> {
        let mode = lock.mode();
        let (family, order, locks) = (lock.family.id(), lock.family.order(), &self.txns.locks);
        match &lock.target {
            LockTarget::Key(key) => locks.holder(id, family, order, key, mode),
            LockTarget::Range(lo, hi) => locks.range_holder(id, family, order, (slice(lo), slice(hi)), mode),
        }
    }

    /// Returns what a locking transaction has locked besides the keys that it writes, whatever its level: what it read for update or
    /// for share, and what it was told to lock.
    pub(crate) fn other_locks_of(&self, id: TxnId, batch: &WriteBatch) -> Vec<PreparedLock> {
        let families = self.commit.lock().families.clone();
        let keys = batch.ops().iter().filter(|op| op.kind != Kind::RangeDelete as u8);
        let written: HashSet<_> =
            keys.map(|op| (batch.families()[op.family as usize].id(), batch.key_of(op))).collect();
        let with_family = self.txns.locks.held_by(id).into_iter().filter_map(|l| {
            let family = families.iter().find(|f| f.id() == l.family)?.clone();
            let exclusive = l.mode == LockMode::Exclusive;
            let target = match l.target {
                kingtide_locks::LockTarget::Key(key) if exclusive && written.contains(&(l.family, &key[..])) => {
                    return None;
                }
                kingtide_locks::LockTarget::Key(key) => LockTarget::Key(key),
                kingtide_locks::LockTarget::Range(lo, hi) => LockTarget::Range(lo, hi),
            };
            Some(PreparedLock { family, exclusive, target })
        });
        with_family.collect()
    }

    /// Ends a prepared transaction, up to the point where others see what it wrote.
    pub(crate) fn resolve(
        self: &Arc<Self>,
        xid: &[u8],
        committed: bool,
        options: &WriteOptions,
    ) -> Result<(Option<Visible>, Durability)> {
        self.check_writable()?;
        let mut visible = None;
        let resolution = self.resolve_with(xid, committed, |_, record: &mut WriteBatch| {
            // It holds locks on all that it writes.
            let done = self.commit(record, &Commit::new(options, Guard::Locked))?;
            visible = Some(done);
            Ok(done.last)
        })?;
        self.txns.resolved(resolution.txn, committed);
        self.refresh_prepared();
        if self.prepared.given_up().is_some() {
            self.jobs.wake();
        }
        visible.into_iter().for_each(|c| self.notify_hooks(c));
        resolution.durable?;
        let durability = options.durability.unwrap_or_else(|| self.durability());
        Ok((visible, durability))
    }

    pub(crate) fn refresh_prepared(&self) {
        self.stats.set(Stat::TxnPrepared, self.prepared.count() as u64);
    }
}

impl DbInner {
    /// Prepares a transaction. `commit` commits the first batch that it is given, the prepare record, with whatever checks
    /// the transaction, whose writes are the second batch, needs before it may promise to commit.
    ///
    /// # Errors
    /// `InvalidArgument` for an xid that is empty or longer than [`crate::ops::control::MAX_XID`], and for a
    /// transaction too large for a record; `Exists` when a transaction of that xid is in doubt; `Closed` when a family was
    /// dropped; and those of `commit`. After any error nothing was prepared and the request's batch is as it was.
    ///
    /// When the record was logged, but the sync that `commit` waited for failed, the transaction *is* prepared and the
    /// outcome holds the error: the log takes no more records, so only the next open can tell whether it is in doubt.
    pub(crate) fn prepare_with(
        &self,
        request: PrepareRequest<'_>,
        commit: impl FnOnce(&mut WriteBatch, &WriteBatch) -> Result<SeqNo>,
    ) -> Result<PrepareOutcome> {
        check_xid(request.xid)?;
        for f in request.batch.families().iter().chain(request.locks.iter().map(|l| &l.family)) {
            if !f.belongs_to(&self.stats) {
                return Err(Error::invalid("the transaction holds operations on a column family of another database"));
            }
            f.check_alive()?;
        }
        for i in 0..request.batch.families().len() {
            // Its commit must not be refused.
            let (bytes, ops) = request.batch.extent_of(i);
            if !Memtable::fits(&self.arenas, bytes, ops) {
                return Err(no_room(NoRoom::Full, bytes, ops));
            }
        }
        let locks = request.locks.iter().map(PreparedLock::logged);
        let mut record = WriteBatch::prepare_record(request.xid, (0, request.isolation), locks, request.batch)?;
        let body = Body::default();
        let mut content = body.lock(); // before another thread can find it
        self.prepared.reserve(&request, record.bytes() as u64, &body)?;
        let name = ReservedName { table: &self.prepared, xid: request.xid, body: &body };
        let durable = commit(&mut record, request.batch);
        if name.give_back() {
            return match durable {
                Err(e) => Err(e),
                Ok(_) => Err(Error::invalid("the prepare record was not logged")),
            };
        }
        *content = Some(Content { batch: std::mem::take(request.batch), locks: request.locks });
        Ok(PrepareOutcome { durable })
    }

    /// Commits a prepared transaction or rolls it back. `commit` commits the batch that it is given: the end of the
    /// transaction, after its writes if it commits. Writes to families that were dropped are left out.
    ///
    /// Of several threads exactly one succeeds; the others wait for it.
    ///
    /// # Errors
    /// `NotFound` when no such transaction is in doubt, or another thread was faster; and those of `commit`. After any
    /// error the transaction is in doubt as before. As with any commit, a failed *sync* is different: the outcome holds
    /// the error, the transaction is resolved in memory, and the next open may find it resolved or in doubt.
    pub(crate) fn resolve_with(
        &self,
        xid: &[u8],
        committed: bool,
        mut commit: impl FnMut(TxnId, &mut WriteBatch) -> Result<SeqNo>,
    ) -> Result<Resolution> {
        let (txn, body) = self.prepared.find(xid)?;
        let mut content = body.lock();
        loop {
            let Some(Content { batch, .. }) = content.as_mut() else { return Err(not_prepared()) };
            let mut no_writes = WriteBatch::new();
            let record = if committed { batch } else { &mut no_writes };
            record.pop_control(); // a panic of a key order may have left one
            record.leave_out_dropped()?;
            record.push_resolved(xid, committed);
            let durable = commit(txn, record);
            record.pop_control();
            let dropped = record.families().iter().any(|f| f.is_gone());
            if !self.prepared.holds(xid, &body) {
                *content = None;
                return Ok(Resolution { txn, durable });
            }
            match durable {
                Err(e) if e.kind() == ErrorKind::Closed && dropped => self.check_open()?, // dropped just now: without it
                Err(e) => return Err(e),
                Ok(_) => return Err(Error::invalid("the end of the prepared transaction was not logged")),
            }
        }
    }

    /// Does what keeps the log short that flushes do not do. False when nothing is to be done.
    ///
    /// 1. Prepare records that keep too much log are written again at its end. The old ones pin the log until the new ones
    ///    are synced, so whatever happens in between, recovery finds one of them.
    /// 2. Files of staged values whose transactions were rolled back go, once the ends of these are synced.
    /// 3. A log that is too long although nothing in memtables needs it, because it is full of prepares and their ends, is
    ///    given back.
    pub(crate) fn keep_log_short(&self) -> Result<bool> {
        if self.check_open().is_err() || self.wal.poison().is_some() {
            return Ok(false);
        }
        let max = self.max_wal_size.load(Ordering::Relaxed);
        let mut moved = false;
        for overdue in self.prepared.overdue(self.wal.appended(), max) {
            moved |= self.log_again(&overdue)?;
        }
        if moved {
            self.wal.sync_all()?;
            return Ok(true);
        }
        if let Some(end) = self.prepared.given_up() {
            if end > self.wal.synced() {
                self.wal.sync_all()?;
            }
            let files = self.prepared.take_given_up(self.wal.synced());
            rare!("rolled-back-staged-value-removed");
            drop(files); // their handles were the last, or a user's is
            return Ok(true);
        }
        if self.wal.needed_size() <= max {
            return Ok(false);
        }
        if self.prepared.is_unsynced(self.wal.synced()) {
            self.wal.sync_all()?;
        }
        let mut catalog = self.catalog.lock();
        let needed = self.log_needed_by_all();
        if needed <= catalog.versions.log_start || !self.wal.would_release(needed) {
            return Ok(false);
        }
        let edits = [Edit::LastSeq(self.snapshots.visible()), Edit::LogStart(needed)];
        catalog.write(&edits, &self.next_file_id)?;
        rare!("log-start-moved-without-flush");
        drop(catalog);
        self.release_log().map(|()| true)
    }

    /// Appends a transaction's prepare record once more. False if it is being resolved.
    fn log_again(&self, Overdue { xid, first, isolation, body }: &Overdue) -> Result<bool> {
        let Some(content) = body.try_lock() else { return Ok(false) };
        let Some(Content { batch, locks }) = &*content else { return Ok(false) };
        let locks = locks.iter().map(PreparedLock::logged);
        let record = WriteBatch::prepare_record(xid, (*first, *isolation), locks, batch)?;
        // The syncs that a record with staged values needs first were asked for by the first record.
        let prepares_staged = record.prepares_staged();
        let payload = WalRecord { points: prepares_staged, prepares_staged, ..WalRecord::new(record.payload()) };
        self.begin_log()?;
        rare!("prepared-logged-again");
        let mut c = self.commit.lock();
        self.check_open()?;
        let seq = c.last_seq + 1;
        if seq > MAX_SEQ {
            return Ok(false);
        }
        let lsn = c.wal.append(seq, 1, payload)?;
        c.last_seq = seq;
        self.prepared.moved(xid, seq, lsn);
        self.snapshots.publish(seq);
        Ok(true)
    }
}
