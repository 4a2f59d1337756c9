//! What recovery learns from the log about prepared transactions.
//!
//! A transaction is in doubt if the log holds its prepare record and, after it, no end. Segments are released oldest
//! first, so an end is never lost before what it ends. What is in tables already does not matter: no table holds a
//! prepare.
//!
//! # Values that are gone
//! A prepare may point to values in value logs. One that was resolved may have lost them: they were given up, or moved.
//! One that is in doubt has them, unless a power cut took them before they were synced: then nothing behind the prepare was
//! synced either, and the log ends before it. Which of the two it is depends on what follows in the log, so that prepares
//! with values are judged by [`Fates`], which has looked at all of it. It reads no value of a transaction that was resolved.

use super::prepared::{PreparedLock, RecoveredPrepared};
use crate::commit::batch::{StagedFile, WriteBatch};
use crate::direct::DirectLog;
use crate::family::Family;
use crate::ops::{LockTarget, LogOp, LoggedLock, Prepared, read_log_op};
use kingtide_base::coding::Reader;
use kingtide_base::{Error, FamilyId, Result, SeqNo};
use kingtide_table::ValuePointer;
use std::collections::{BTreeMap, HashMap, HashSet};
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

    /// Ids of the value logs that those in doubt point into.
    pub fn value_logs(&self) -> HashSet<u64> {
        let prepared = self.by_xid.values().filter_map(|found| match read_log_op(&mut Reader::new(&found.bytes)) {
            Some(LogOp::Prepare(p)) => Some(p),
            _ => None,
        });
        prepared.flat_map(|p| p.pointers().map(|(_, pointer)| pointer.file_id)).collect()
    }

    /// The end of a transaction. One that is not known was prepared in a part of the log that was released.
    pub fn resolved(&mut self, xid: &[u8]) {
        self.by_xid.remove(xid);
    }

    /// The transactions, oldest first, with what they hold of the families that exist. Ids from `next_family` on are
    /// of no family that ever was. `open` opens the files of staged values.
    ///
    /// # Errors
    /// `Corruption` when the manifest lost a family; those of `open`.
    pub fn finish(
        self,
        families: &HashMap<FamilyId, Arc<Family>>,
        next_family: FamilyId,
        open: &OpenStaged<'_>,
    ) -> Result<Vec<RecoveredPrepared>> {
        let log_bytes = self.log_bytes;
        let mut all = self
            .by_xid
            .into_values()
            .map(|found| found.rebuild(families, next_family, open, log_bytes))
            .collect::<Result<Vec<_>>>()?;
        all.sort_unstable_by_key(|p| p.first);
        Ok(all)
    }
}

/// Opens the file of a staged value, for a transaction that will commit or give it up. `None`: neither will happen here.
pub(crate) type OpenStaged<'a> = dyn Fn(&Arc<Family>, u64) -> Result<Option<Arc<DirectLog>>> + 'a;

/// Says of a pointer whether it matters and its value cannot be read. It is given the operation's sequence number if that was
/// committed, and none if it was prepared.
pub(crate) type IsLost<'a> = dyn FnMut(FamilyId, Option<SeqNo>, &ValuePointer) -> Result<bool> + 'a;

/// What the log says about prepares with values, and about commits whose values are lost, collected in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    events: Vec<(SeqNo, Fate)>,
}

#[derive(Debug)]
enum Fate {
    /// A transaction was prepared, and points to these values.
    Prepared(Vec<u8>, Vec<(FamilyId, ValuePointer)>),
    Resolved(Vec<u8>),
    /// A value that was committed cannot be read.
    Lost,
}

impl Fates {
    /// Takes a record.
    ///
    /// # Errors
    /// Those of `lost`.
    pub fn note(&mut self, (base, count, payload): (SeqNo, u32, &[u8]), lost: &mut IsLost<'_>) -> Result<()> {
        let mut r = Reader::new(payload);
        for seq in base..base + u64::from(count) {
            match read_log_op(&mut r) {
                Some(LogOp::Write(op)) => {
                    if let Some(p) = op.pointer()
                        && lost(op.family, Some(seq), &p)?
                    {
                        self.events.push((base, Fate::Lost));
                    }
                }
                Some(LogOp::Prepare(p)) => {
                    self.events.push((base, Fate::Prepared(p.xid.to_vec(), p.pointers().collect())));
                }
                Some(LogOp::Resolved { xid, .. }) => self.events.push((base, Fate::Resolved(xid.to_vec()))),
                None => break, // told elsewhere
            }
        }
        Ok(())
    }

    /// The first sequence number of the record before which the log ends for want of a value; `None`: it need not.
    ///
    /// A log that ends earlier may lack ends of transactions that then are in doubt with a lost value, so the end moves towards
    /// the front until there are none.
    ///
    /// # Errors
    /// Those of `lost`.
    pub fn end(&self, lost: &mut IsLost<'_>) -> Result<Option<SeqNo>> {
        let mut end = self.events.iter().find(|(_, fate)| matches!(fate, Fate::Lost)).map(|(base, _)| *base);
        loop {
            // Each by its first record: those that repeat it point to the same values.
            let mut in_doubt: BTreeMap<&[u8], (SeqNo, &[(FamilyId, ValuePointer)])> = BTreeMap::new();
            for (base, fate) in self.events.iter().take_while(|(base, _)| end.is_none_or(|end| *base < end)) {
                match fate {
                    Fate::Prepared(xid, pointers) => drop(in_doubt.entry(xid).or_insert((*base, pointers))),
                    Fate::Resolved(xid) => drop(in_doubt.remove(&xid[..])),
                    Fate::Lost => {}
                }
            }
            let mut earliest = None;
            for (base, pointers) in in_doubt.into_values() {
                for (family, pointer) in pointers {
                    if earliest.is_none_or(|earliest| base < earliest) && lost(*family, None, pointer)? {
                        earliest = Some(base);
                    }
                }
            }
            match earliest {
                Some(earlier) => end = Some(earlier),
                None => return Ok(end),
            }
        }
    }
}

impl Found {
    fn rebuild(
        self,
        families: &HashMap<FamilyId, Arc<Family>>,
        next_family: FamilyId,
        open: &OpenStaged<'_>,
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
                if let Some(pointer) = op.pointer()
                    && let Some(log) = open(family, pointer.file_id)?
                {
                    batch.add_staged(StagedFile { family: family.clone(), log, pointer });
                }
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
            bytes: self.bytes.len() as u64,
            log_behind: log_bytes - self.at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end, if the prepares with `true` lost a value.
    fn end(events: &[(SeqNo, &str, bool)]) -> Option<SeqNo> {
        let fate = |(base, what, lost): &(SeqNo, &str, bool)| {
            let pointer = ValuePointer { file_id: u64::from(*lost), offset: 0, stored_len: 1, raw_len: 1 };
            let fate = match what.split_once(' ') {
                Some(("prepare", xid)) => Fate::Prepared(xid.into(), vec![(0, pointer)]),
                Some((_, xid)) => Fate::Resolved(xid.into()),
                None => Fate::Lost,
            };
            (*base, fate)
        };
        let fates = Fates { events: events.iter().map(fate).collect() };
        fates.end(&mut |_, _, p| Ok(p.file_id == 1)).unwrap()
    }

    #[test]
    fn a_lost_value_of_a_resolved_transaction_does_not_end_the_log() {
        assert_eq!(end(&[]), None);
        assert_eq!(end(&[(1, "prepare a", true), (2, "end a", false)]), None);
        assert_eq!(end(&[(1, "prepare a", true), (2, "prepare b", false)]), Some(1));
        assert_eq!(end(&[(1, "prepare a", false), (5, "lost", false)]), Some(5));
    }

    #[test]
    fn an_end_behind_the_end_of_the_log_does_not_count() {
        // The commit of b is lost, which puts a in doubt, whose value is lost, which puts c in doubt.
        let events = [
            (1, "prepare c", true),
            (2, "prepare a", true),
            (3, "end c", false),
            (4, "lost", false),
            (5, "end a", false),
        ];
        assert_eq!(end(&events), Some(1));
        // A copy of a record counts as the first one does.
        assert_eq!(end(&[(1, "prepare a", true), (7, "prepare a", true)]), Some(1));
        // The same name again is another transaction.
        assert_eq!(end(&[(1, "prepare a", true), (2, "end a", false), (3, "prepare a", true)]), Some(3));
    }
}
