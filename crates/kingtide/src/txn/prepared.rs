//! Prepared transactions: those that promised to commit and wait to be told whether to.
//!
//! # Life
//! A prepare is one log record that holds the transaction's writes and locks; memtables know nothing of it. From then on
//! the transaction is *in doubt*, through closes, crashes and opens, until a record says that it was resolved. A commit
//! writes the operations again, as a normal batch with the end behind them in the same record: so they are replayed,
//! flushed, and released from the log like any others, and either all of it is in the log or nothing. A rollback is
//! the end alone.
//!
//! # The log
//! Until it is resolved, and that in turn is synced, the prepare record *pins* the log. So that a forgotten
//! transaction does not keep the log for ever, a record that has too much log behind it is written once more, at
//! the end, and its first copy is let go when the second is synced ([`DbInner::keep_log_short`]).
//!
//! # Staged values
//! The writes may point to values that were written to value logs before ([`crate::direct`]). Until the transaction is
//! resolved, the log alone says that their files are needed:
//!
//! 1. A file is in the system's hands before the prepare record is appended, and every sync of the log from then on syncs
//!    the file first. So a prepare that survives a kill has its values, and so does one that is known to survive a power cut.
//!    A power cut may leave an unsynced prepare without a value; then the log ends before it ([`super::in_doubt`]).
//! 2. Under the commit lock, together with the append, the file is promised to the transaction: no other batch can commit it,
//!    and a close leaves it on disk.
//! 3. A commit hands it to the memtable, as any commit of a staged value does. The flush that names the file in the manifest
//!    or moves the value syncs the log first, which has an end that is not known to be synced: so no power cut can bring
//!    the transaction back in doubt after its file went.
//! 4. A rollback gives it up, but the file stays until the end is synced, for the same reason
//!    ([`PreparedTable::given_up`]). So it does over a death: an open removes orphans when it has made the log durable
//!    ([`crate::recover::remove_orphans`]).
//! 5. Recovery makes the files durable of those in doubt, as far as they are, before it lets the transaction be
//!    resolved, and lists them, so that they are not removed as orphans. A family that was dropped has no such values: they
//!    go with the next open, or with the end.
//!
//! # Locks
//! A transaction's body has a lock of its own, held while it is prepared, resolved or written again: of two threads that
//! resolve one transaction the second waits, and finds it gone or, if the first one failed, has its turn. The table's
//! lock is a leaf under the commit lock: what pins the log changes only under the commit lock, with the log itself.

use super::Isolation;
use crate::commit::batch::{Control, ControlAction, StagedFile, WriteBatch};
use crate::family::Family;
use crate::ops::{LockTarget, LoggedLock};
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, ErrorKind, Kind, Result, SeqNo, TxnId};
use kingtide_locks::LockMode;
use kingtide_wal::Lsn;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// A transaction in doubt, for the coordinator to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreparedInfo {
    /// The name that the coordinator gave it.
    pub xid: Vec<u8>,
    /// Sequence number of its prepare record: prepared transactions are ordered by it.
    pub sequence: SeqNo,
    /// Its isolation level.
    pub isolation: Isolation,
    /// Number of writes that it would commit.
    pub operations: u64,
}

/// A lock that a prepared transaction holds.
#[derive(Clone, Debug)]
pub(crate) struct PreparedLock {
    pub family: Arc<Family>,
    pub exclusive: bool,
    pub target: LockTarget<Vec<u8>>,
}

impl PreparedLock {
    /// The mode in which it is held.
    pub fn mode(&self) -> LockMode {
        if self.exclusive { LockMode::Exclusive } else { LockMode::Shared }
    }
}

/// What it takes to prepare a transaction.
#[derive(Debug)]
pub(crate) struct PrepareRequest<'a> {
    pub xid: &'a [u8],
    /// The transaction that holds its locks.
    pub txn: TxnId,
    pub isolation: Isolation,
    /// Its writes; taken when the transaction was prepared, and only then.
    pub batch: &'a mut WriteBatch,
    /// What it holds besides the keys that it writes.
    pub locks: Vec<PreparedLock>,
}

/// What became of a transaction that was prepared.
#[derive(Debug)]
pub(crate) struct PrepareOutcome {
    /// The sequence number of its record, or why it is not known to survive a power cut.
    pub durable: Result<SeqNo>,
}

/// What became of a transaction that is in doubt no more: its locks can go.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub txn: TxnId,
    /// The sequence number of its end, or why that is not known to survive a power cut.
    pub durable: Result<SeqNo>,
}

/// A prepared transaction that recovery found.
#[derive(Debug)]
pub(crate) struct RecoveredPrepared {
    pub xid: Vec<u8>,
    /// Sequence number of its first prepare record.
    pub first: SeqNo,
    /// That of its last one, which the log must keep.
    pub seq: SeqNo,
    pub isolation: Isolation,
    /// Its writes to families that exist.
    pub batch: WriteBatch,
    /// Its other locks on families that exist.
    pub locks: Vec<PreparedLock>,
    /// Bytes of its record, most of which may be its locks.
    pub bytes: u64,
    /// Bytes of the log from its last record on.
    pub log_behind: u64,
}

impl RecoveredPrepared {
    /// Everything that it holds: what it writes, exclusively, and what else it locked.
    pub fn locks_of(&self) -> Vec<PreparedLock> {
        locks_of(&self.batch, &self.locks)
    }
}

/// Locks on everything a batch writes, exclusive, and `others`.
pub(crate) fn locks_of(batch: &WriteBatch, others: &[PreparedLock]) -> Vec<PreparedLock> {
    let written = batch.ops().iter().map(|op| {
        let key = batch.key_of(op).to_vec();
        let target = match op.kind == Kind::RangeDelete as u8 {
            true => LockTarget::Range(Bound::Included(key), Bound::Excluded(batch.value_of(op).to_vec())),
            false => LockTarget::Key(key),
        };
        PreparedLock { family: batch.families()[op.family as usize].clone(), exclusive: true, target }
    });
    written.chain(others.iter().cloned()).collect()
}

/// The content of a prepared transaction. `None`: it is not prepared yet, or not any more.
pub(super) type Body = Arc<Mutex<Option<Content>>>;

#[derive(Debug)]
pub(super) struct Content {
    pub batch: WriteBatch,
    pub locks: Vec<PreparedLock>,
}

/// Where the log has the newest prepare record of a transaction.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Sequence number of the first record.
    first: SeqNo,
    /// Sequence number of the newest.
    seq: SeqNo,
    /// Where the newest ends, in the log as of this open.
    end: Lsn,
    /// For one from an earlier open: bytes of the log from it to the end of that log.
    behind_at_open: u64,
}

#[derive(Debug)]
struct Slot {
    txn: TxnId,
    isolation: Isolation,
    operations: u64,
    bytes: u64,
    /// `None` while the first record is not in the log.
    record: Option<Record>,
    /// The staged values that it points to.
    staged: Vec<StagedFile>,
    body: Body,
}

/// A transaction whose record is to be written again.
pub(super) struct Overdue {
    pub xid: Box<[u8]>,
    pub first: SeqNo,
    pub isolation: Isolation,
    pub body: Body,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order of their names, in which they are written again: a run with the same seed does the same.
    slots: BTreeMap<Box<[u8]>, Slot>,
    /// Sequence numbers of the newest records, and whose they are.
    pins: BTreeMap<SeqNo, Box<[u8]>>,
    /// Bytes of all of them.
    bytes: u64,
    /// Records that are needed until the log is synced up to a position, ascending in it: what took their place lies
    /// before that.
    fading: VecDeque<(SeqNo, Lsn)>,
    /// Files of transactions that were rolled back, and where the log has their ends, ascending: until that is synced, a power
    /// cut may bring the transactions back.
    given_up: VecDeque<(Lsn, Vec<StagedFile>)>,
    /// The end of the last record with a control operation.
    last_control: Lsn,
}

/// All prepared transactions.
#[derive(Debug, Default)]
pub(crate) struct PreparedTable {
    inner: Mutex<Inner>,
}

impl PreparedTable {
    /// The table as recovery found it. The transactions get ids from `first_txn` on, in the order of the list.
    pub fn new(recovered: Vec<RecoveredPrepared>, first_txn: TxnId) -> PreparedTable {
        let mut inner = Inner::default();
        for (txn, p) in (first_txn..).zip(recovered) {
            let bytes = p.bytes;
            let record = Record { first: p.first, seq: p.seq, end: Lsn(0), behind_at_open: p.log_behind };
            inner.pins.insert(p.seq, p.xid.clone().into());
            inner.bytes += bytes;
            let slot = Slot {
                txn,
                isolation: p.isolation,
                operations: p.batch.len() as u64,
                bytes,
                record: Some(record),
                staged: p.batch.staged().to_vec(),
                body: Arc::new(Mutex::new(Some(Content { batch: p.batch, locks: p.locks }))),
            };
            inner.slots.insert(p.xid.into(), slot);
        }
        PreparedTable { inner: Mutex::new(inner) }
    }

    /// The transactions in doubt, oldest first.
    pub fn list(&self) -> Vec<PreparedInfo> {
        let inner = self.inner.lock();
        let mut all: Vec<PreparedInfo> = inner
            .slots
            .iter()
            .filter_map(|(xid, slot)| {
                let sequence = slot.record?.first;
                Some(PreparedInfo {
                    xid: xid.to_vec(),
                    sequence,
                    isolation: slot.isolation,
                    operations: slot.operations,
                })
            })
            .collect();
        all.sort_unstable_by_key(|p| p.sequence);
        all
    }

    /// Number of transactions in doubt.
    pub fn count(&self) -> usize {
        self.inner.lock().pins.len()
    }

    /// A record with this control operation, its last, was appended with sequence number `seq` and ends at `lsn`. Called
    /// under the commit lock.
    pub fn logged(&self, control: &Control, seq: SeqNo, lsn: Lsn, synced: Lsn) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.last_control = lsn;
        inner.forget_faded(synced);
        if control.resolves() {
            if let Some(slot) = inner.slots.remove(&control.xid) {
                inner.bytes -= slot.bytes;
                if control.action == ControlAction::RollsBack && !slot.staged.is_empty() {
                    inner.given_up.push_back((lsn, slot.staged));
                }
                if let Some(record) = slot.record {
                    inner.pins.remove(&record.seq);
                    inner.fading.push_back((record.seq, lsn));
                }
            }
        } else if let Some(slot) = inner.slots.get_mut(&control.xid) {
            slot.record = Some(Record { first: seq, seq, end: lsn, behind_at_open: 0 });
            inner.bytes += slot.bytes;
            inner.pins.insert(seq, control.xid.clone());
        }
    }

    /// A transaction's record was appended once more. Called under the commit lock.
    pub(super) fn moved(&self, xid: &[u8], seq: SeqNo, lsn: Lsn) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.last_control = lsn;
        if let Some(slot) = inner.slots.get_mut(xid)
            && let Some(record) = &mut slot.record
        {
            inner.pins.remove(&record.seq);
            inner.pins.insert(seq, xid.into());
            inner.fading.push_back((record.seq, lsn));
            *record = Record { seq, end: lsn, behind_at_open: 0, ..*record };
        }
    }

    /// The sequence number of the oldest record of a transaction in doubt. Exact under the commit lock.
    pub fn oldest(&self) -> Option<SeqNo> {
        self.inner.lock().pins.keys().next().copied()
    }

    /// Takes the state of another table.
    pub fn replace(&self, other: PreparedTable) {
        *self.inner.lock() = std::mem::take(&mut *other.inner.lock());
    }

    /// Sequence numbers of the newest records of all transactions in doubt, ascending. Exact under the commit lock.
    pub fn pins(&self) -> Vec<SeqNo> {
        self.inner.lock().pins.keys().copied().collect()
    }

    /// The first sequence number that recovery needs for the sake of prepared transactions, if the log is synced up to
    /// `synced`. Exact under the commit lock.
    pub fn needed(&self, synced: Lsn) -> Option<SeqNo> {
        let mut inner = self.inner.lock();
        inner.forget_faded(synced);
        let fading = inner.fading.iter().map(|(seq, _)| *seq);
        fading.chain(inner.pins.keys().next().copied()).min()
    }

    /// The staged values of all transactions in doubt, which keep their files. Exact under the commit lock.
    pub fn staged(&self) -> Vec<StagedFile> {
        let inner = self.inner.lock();
        inner.slots.values().filter(|slot| slot.record.is_some()).flat_map(|slot| slot.staged.iter().cloned()).collect()
    }

    /// Up to where the log must be synced before the files of all transactions that were rolled back may go; `None`: there
    /// are none.
    pub fn given_up(&self) -> Option<Lsn> {
        self.inner.lock().given_up.back().map(|(end, _)| *end)
    }

    /// The files that may go because the log is synced up to `synced`. They go with what is returned.
    pub fn take_given_up(&self, synced: Lsn) -> Vec<StagedFile> {
        let mut inner = self.inner.lock();
        let ended = inner.given_up.iter().take_while(|(end, _)| *end <= synced).count();
        inner.given_up.drain(..ended).flat_map(|(_, files)| files).collect()
    }

    /// Returns whether the log holds a control operation that is not known to be synced.
    pub fn is_unsynced(&self, synced: Lsn) -> bool {
        self.inner.lock().last_control > synced
    }

    /// Returns whether a record keeps too much log, which has `appended` bytes and may have `max`.
    pub fn is_overdue(&self, appended: Lsn, max: u64) -> bool {
        self.inner.lock().is_overdue(appended, max)
    }

    /// The transactions whose records are to be written again: if the oldest is overdue, it and those that soon will be.
    pub(super) fn overdue(&self, appended: Lsn, max: u64) -> Vec<Overdue> {
        let inner = self.inner.lock();
        if !inner.is_overdue(appended, max) {
            return Vec::new();
        }
        let soon = inner.patience(max) / 2;
        inner
            .slots
            .iter()
            .filter_map(|(xid, slot)| Some((xid, slot, slot.record?)))
            .filter(|(_, _, record)| record.behind(appended) > soon)
            .map(|(xid, slot, Record { first, .. })| {
                let (xid, body) = (xid.clone(), slot.body.clone());
                Overdue { xid, first, isolation: slot.isolation, body }
            })
            .collect()
    }

    /// Takes the name. The transaction is not prepared before its record was logged.
    pub(super) fn reserve(&self, request: &PrepareRequest<'_>, bytes: u64, body: &Body) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.slots.contains_key(request.xid) {
            return Err(Error::new(ErrorKind::Exists, "a prepared transaction with this xid already exists"));
        }
        let slot = Slot {
            txn: request.txn,
            isolation: request.isolation,
            operations: request.batch.len() as u64,
            bytes,
            record: None,
            staged: request.batch.staged().to_vec(),
            body: body.clone(),
        };
        inner.slots.insert(request.xid.into(), slot);
        Ok(())
    }

    /// Gives a name back whose record was not logged. False if it was, or if it was given back before.
    pub(super) fn give_back(&self, xid: &[u8], body: &Body) -> bool {
        let mut inner = self.inner.lock();
        let ours = inner.slots.get(xid).filter(|slot| Arc::ptr_eq(&slot.body, body));
        let unused = ours.is_some_and(|slot| slot.record.is_none());
        if unused {
            inner.slots.remove(xid);
        }
        unused
    }

    pub(super) fn find(&self, xid: &[u8]) -> Result<(TxnId, Body)> {
        let inner = self.inner.lock();
        inner.slots.get(xid).map(|slot| (slot.txn, slot.body.clone())).ok_or_else(not_prepared)
    }

    pub(super) fn holds(&self, xid: &[u8], body: &Body) -> bool {
        self.inner.lock().slots.get(xid).is_some_and(|slot| Arc::ptr_eq(&slot.body, body))
    }
}

/// A name whose record is not logged yet; given back in any case, for a family's key order may panic.
pub(super) struct ReservedName<'a> {
    pub table: &'a PreparedTable,
    pub xid: &'a [u8],
    pub body: &'a Body,
}

impl ReservedName<'_> {
    pub fn give_back(&self) -> bool {
        self.table.give_back(self.xid, self.body)
    }
}

impl Drop for ReservedName<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Inner {
    fn forget_faded(&mut self, synced: Lsn) {
        while self.fading.front().is_some_and(|(_, until)| *until <= synced) {
            self.fading.pop_front();
        }
    }

    /// So many bytes of log may lie behind a record. At least twice what all records together take: writing all of them
    /// again does not make the first of them overdue.
    fn patience(&self, max: u64) -> u64 {
        (max / 2).max(self.bytes.saturating_mul(2))
    }

    fn is_overdue(&self, appended: Lsn, max: u64) -> bool {
        let oldest = self.pins.values().next().and_then(|xid| self.slots.get(xid)?.record);
        oldest.is_some_and(|record| record.behind(appended) > self.patience(max))
    }
}

impl Record {
    fn behind(&self, appended: Lsn) -> u64 {
        appended.0.saturating_sub(self.end.0).saturating_add(self.behind_at_open)
    }
}

impl PreparedLock {
    pub(super) fn logged(&self) -> LoggedLock<'_> {
        let target = match &self.target {
            LockTarget::Key(key) => LockTarget::Key(&key[..]),
            LockTarget::Range(lo, hi) => LockTarget::Range(lo.as_ref().map(|k| &k[..]), hi.as_ref().map(|k| &k[..])),
        };
        LoggedLock { family: self.family.id(), exclusive: self.exclusive, target }
    }
}

#[cold]
pub(super) fn not_prepared() -> Error {
    Error::new(ErrorKind::NotFound, "no prepared transaction with this xid; it may already be resolved")
}
