//! What recovery learns from the log about prepared transactions.
//!
//! A transaction is in doubt if the log holds its prepare record and, after it, no end. Segments are released oldest
//! first, so an end is never lost before what it ends. What is in tables already does not matter: no table holds a
//! prepare.

use super::prepared::{PreparedLock, RecoveredPrepared};
use crate::commit::batch::WriteBatch;
use crate::family::Family;
use crate::ops::{LockTarget, LogOp, LoggedLock, Prepared, read_log_op};
use crate::version::FamilyId;
use kingtide_base::coding::Reader;
use kingtide_base::{Error, Result, SeqNo};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Collects, in the order of the log, the transactions that are in doubt.
#[derive(Debug, Default)]
pub(crate) struct InDoubt {
    by_xid: BTreeMap<Vec<u8>, Found>,
    /// Bytes of the records read so far.
    log_bytes: u64,
}

#[derive(Debug)]
struct Found {
    first: SeqNo,
    seq: SeqNo,
    /// The control operation, as in the log.
    bytes: Vec<u8>,
    /// [`InDoubt::log_bytes`] when its record began.
    at: u64,
}

impl InDoubt {
    /// Log that was read, for telling how much lies behind a record.
    pub fn count_record(&mut self, bytes: u64) {
        self.log_bytes += bytes;
    }

    /// A prepare with sequence number `seq`; `bytes` are all of it. One of a transaction that is in doubt already must be
    /// a copy of its first record, and takes its place.
    ///
    /// # Errors
    /// `Corruption` when it is another transaction of the same xid, or names a first record that comes later.
    pub fn prepare(&mut self, p: &Prepared<'_>, seq: SeqNo, bytes: &[u8]) -> Result<()> {
        let first = if p.first == 0 { seq } else { p.first };
        if first > seq || (p.first == seq) {
            let text = format!("the log's prepare record with sequence {seq} claims to be a copy of one at {first}");
            return Err(Error::corruption(text));
        }
        let found = Found { first, seq, bytes: bytes.to_vec(), at: self.log_bytes };
        match self.by_xid.insert(p.xid.to_vec(), found) {
            Some(before) if before.first != first => Err(Error::corruption(format!(
                "the log prepares a transaction at sequence {first} whose xid is that of one prepared at {} and not \
                 resolved",
                before.first
            ))),
            _ => Ok(()),
        }
    }

    /// Returns how many transactions are in doubt.
    pub fn len(&self) -> usize {
        self.by_xid.len()
    }

    /// The end of a transaction. One that is not known was prepared in a part of the log that was released.
    pub fn resolved(&mut self, xid: &[u8]) {
        self.by_xid.remove(xid);
    }

    /// The transactions, oldest first, with what they hold of the families that exist. Ids from `next_family` on are
    /// of no family that ever was.
    ///
    /// # Errors
    /// `Corruption` when the manifest lost a family.
    pub fn finish(
        self,
        families: &HashMap<FamilyId, Arc<Family>>,
        next_family: FamilyId,
    ) -> Result<Vec<RecoveredPrepared>> {
        let log_bytes = self.log_bytes;
        let mut all = self
            .by_xid
            .into_values()
            .map(|found| found.rebuild(families, next_family, log_bytes))
            .collect::<Result<Vec<_>>>()?;
        all.sort_unstable_by_key(|p| p.first);
        Ok(all)
    }
}

impl Found {
    fn rebuild(
        self,
        families: &HashMap<FamilyId, Arc<Family>>,
        next_family: FamilyId,
        log_bytes: u64,
    ) -> Result<RecoveredPrepared> {
        let Some(LogOp::Prepare(p)) = read_log_op(&mut Reader::new(&self.bytes)) else {
            return Err(Error::corruption("a prepare record of the log cannot be read"));
        };
        let family = |id: FamilyId| match families.get(&id) {
            None if id >= next_family => {
                let text = format!("the log holds a prepared transaction on family {id}, which the manifest lost");
                Err(Error::corruption(text))
            }
            found => Ok(found),
        };
        let mut batch = WriteBatch::new();
        for op in p.writes() {
            if let Some(family) = family(op.family)? {
                batch.push_logged(family, &op)?;
            }
        }
        let mut locks = Vec::new();
        for LoggedLock { family: id, exclusive, target } in p.locks() {
            if let Some(family) = family(id)? {
                let target = match target {
                    LockTarget::Key(key) => LockTarget::Key(key.to_vec()),
                    LockTarget::Range(lo, hi) => LockTarget::Range(lo.map(<[u8]>::to_vec), hi.map(<[u8]>::to_vec)),
                };
                locks.push(PreparedLock { family: family.clone(), exclusive, target });
            }
        }
        Ok(RecoveredPrepared {
            xid: p.xid.to_vec(),
            first: self.first,
            seq: self.seq,
            isolation: p.isolation,
            batch,
            locks,
            log_behind: log_bytes - self.at,
        })
    }
}
