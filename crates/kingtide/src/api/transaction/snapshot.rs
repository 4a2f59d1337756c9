//! The moment as of which a transaction reads, at the levels that read as of the beginning.
//!
//! The snapshot of a locking transaction at the snapshot level can move. What such a transaction has read under locks that it still holds, and
//! what it has written, is the same at every later moment until it ends. So if another transaction changed a key before this one got
//! the lock on it, the snapshot moves to now, instead of a conflict. It is *fixed*, and stays, once the transaction has
//! seen anything that no lock keeps unchanged. `docs/concurrency.md` has the proof, `docs/isolation.md` the rules for users.

use super::Transaction;
use crate::family::Family;
use crate::txn::isolation::ReadRule;
use crate::txn::read_set::ReadRange;
use crate::txn::slot_of;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{Error, Result, SeqNo};
use std::ops::Bound;
use std::sync::Arc;

impl Transaction {
    /// The sequence number as of which it reads, on the levels that read as of the beginning; on others, and before the
    /// first operation of a locking transaction, that of its beginning. After that operation, the call fixes the snapshot of a
    /// locking transaction at the snapshot level: see [`Transaction::get_for_update`].
    pub fn snapshot_sequence(&self) -> SeqNo {
        if self.pinned {
            self.fixed.store(true, Ordering::Relaxed);
        }
        self.snapshot
    }

    /// A locking transaction's snapshot is that of its first operation, which, if that takes a lock, comes after it was
    /// granted: a transaction that waited for a key must see what the previous holder wrote to it, and not conflict with that.
    #[inline]
    pub(super) fn begin_snapshot(&mut self) {
        if !self.pinned {
            self.snapshot = self.db.txns.pin(&self.shared);
            self.pinned = true;
        }
    }

    /// Does the same, for an operation that shows something as of the snapshot that no lock of the transaction keeps unchanged: from
    /// here on the snapshot does not move.
    #[inline]
    pub(super) fn fix_snapshot(&mut self) {
        self.begin_snapshot();
        self.fixed.store(true, Ordering::Relaxed);
    }

    /// To be called once a key is locked, or before it is read for update without locks, at the snapshot level: a `Conflict` if another
    /// committed it since the snapshot, and the snapshot does not move. The lock is given back then, if this call took it alone.
    #[inline]
    pub(super) fn settle_key(&mut self, family: &Arc<Family>, key: &[u8]) -> Result<()> {
        let slot = slot_of(family.id(), family.order(), key, family.order().head(key));
        if !self.db.txns.filter.may_have_changed(slot, self.snapshot) {
            return Ok(());
        }
        self.settle_exactly(family, key)
    }

    #[inline(never)]
    fn settle_exactly(&mut self, family: &Arc<Family>, key: &[u8]) -> Result<()> {
        if !self.db.key_changed(&family.view.load(), family, key, self.snapshot)? {
            return Ok(());
        }
        if !self.move_snapshot() {
            let conflict = self.db.key_conflict(self.id, family, key, self.snapshot);
            self.give_back_spare_lock(); // nothing was read or written under it
            return Err(conflict);
        }
        self.active() // or what it pinned may have been let go meanwhile
    }

    /// Gives back the lock on a key that the call before, or the one that is running, has taken alone. Returns whether it did.
    pub(super) fn give_back_spare_lock(&mut self) -> bool {
        std::mem::take(&mut self.spare_lock) && self.db.txns.locks.release_newest(self.id)
    }

    /// The same as [`Transaction::settle_key`] for a range that was locked, which stays locked.
    pub(super) fn settle_range(&mut self, family: &Arc<Family>, start: &[u8], end: &[u8]) -> Result<()> {
        let range = ReadRange {
            family: family.clone(),
            lower: Bound::Included(start.to_vec()),
            upper: Bound::Excluded(end.to_vec()),
            seq: self.snapshot,
        };
        if !self.db.range_changed(&range, 0)? {
            return Ok(());
        }
        if !self.move_snapshot() {
            return Err(self.db.range_conflict(self.id, &range));
        }
        self.active() // as above
    }

    /// Moves the snapshot of a locking transaction to now, unless it is fixed. Returns whether it did. What was locked before is
    /// unchanged since then.
    fn move_snapshot(&mut self) -> bool {
        if !self.options.locking || self.fixed.load(Ordering::Relaxed) {
            return false;
        }
        // So that no family is dropped between the look at drops and the new snapshot.
        let commits = self.db.commit.lock();
        if commits.last_drop > self.snapshot {
            // It still holds the lock on each key that it has read, including keys of a family that is gone by now.
            let is_there = |id| commits.families.iter().any(|f| f.id() == id && !f.is_dropped());
            if self.db.txns.locks.families_of(self.id).into_iter().any(|id| !is_there(id)) {
                return false;
            }
        }
        self.snapshot = self.db.txns.pin(&self.shared);
        true
    }

    /// Takes a new snapshot, at the repeatable-read level: later reads are as of now. Writes and locks of the transaction stay. For callers
    /// whose unit of consistent reading is smaller than a transaction, such as a statement of SQL at READ COMMITTED. A locking transaction that
    /// has not read yet takes its snapshot now, not at its first operation.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Durability, Isolation};
    ///
    /// let tides = db.default_family();
    /// let mut txn = db.begin(Isolation::RepeatableRead)?;
    /// let begun = txn.snapshot_sequence();
    /// db.put("ebb", "low")?;
    /// assert_eq!(txn.get(tides, b"ebb")?, None);
    /// txn.refresh_snapshot()?; // as between two statements of SQL
    /// assert!(txn.get(tides, b"ebb")?.is_some() && txn.snapshot_sequence() > begun);
    /// assert_eq!(txn.isolation(), Isolation::RepeatableRead);
    /// txn.put(tides, b"flood", b"rising")?;
    /// txn.set_durability(Some(Durability::Power));
    /// txn.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` at other levels, whose promises it would break or which do not need it, and for an optimistic transaction that has read
    /// for update; `Finished`, `Aborted`, `Expired`.
    pub fn refresh_snapshot(&mut self) -> Result<()> {
        self.db.check_origin()?;
        self.active()?;
        if self.rules.reads != ReadRule::Begin || self.rules.check_writes {
            let level = self.options.isolation;
            return Err(Error::invalid(format!(
                "refresh_snapshot: allowed only at level repeatable-read, not at {level}"
            )));
        }
        if !self.reads.is_empty() {
            // Merges would no longer keep the trace of what changed between that read and now.
            return Err(Error::invalid("refresh_snapshot: an optimistic transaction has read for update"));
        }
        self.snapshot = self.db.txns.pin(&self.shared);
        self.options.snapshot = None;
        self.pinned = true;
        self.active() // or what it pinned may have been let go meanwhile
    }
}
