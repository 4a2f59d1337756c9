//! What a transaction wrote and has not committed: a batch, and an index to read its own writes by.
//!
//! The index is built when the first read asks for it, so a transaction that only writes pays nothing for it. It chains
//! the operations of one slot (of the conflict filter's hash), newest first, through `older`; cutting the batch back to a
//! savepoint unlinks what was added since.

use crate::commit::batch::{Op, SavepointPos, WriteBatch};
use crate::family::Family;
use crate::family::tables::VlogHandle;
use crate::txn::slot_of;
use kingtide_base::{Error, ErrorKind, Kind, Result, Tag};
use std::sync::Arc;

/// Up to so many operations a search from the end is as fast as an index.
const INDEX_FROM: usize = 12;
/// No operation.
const NONE: u32 = u32::MAX;

/// A transaction's own newest word on a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OwnWrite<'a> {
    /// It wrote nothing to the key.
    None,
    /// It deleted the key.
    Deleted,
    /// It put this: low byte of the tag, and the value as batches store it.
    Put(u8, &'a [u8]),
}

struct Savepoint {
    name: String,
    mark: SavepointPos,
}

/// The writes of a transaction.
#[derive(Default)]
pub(crate) struct WriteSet {
    pub batch: WriteBatch,
    savepoints: Vec<Savepoint>,
    /// Newest operation of each slot; empty while there is no index. Its length is a power of two.
    newest: Vec<u32>,
    /// For each indexed operation the next older one of its slot.
    older: Vec<u32>,
    /// Range deletes among the operations, ascending.
    ranges: Vec<u32>,
}

impl WriteSet {
    /// Forgets everything, but keeps up to `keep` bytes of memory for each part.
    pub fn reset(&mut self, keep: usize) {
        self.batch.reset(keep);
        self.savepoints.clear();
        let words = keep / size_of::<u32>();
        for part in [&mut self.ranges, &mut self.newest, &mut self.older] {
            part.clear();
            part.shrink_to(words);
        }
    }

    /// Gives memory back that is not used, up to `keep` bytes and as much again as is.
    pub fn shrink(&mut self, keep: usize) {
        self.batch.shrink(keep);
        if self.older.is_empty() {
            self.newest.clear();
            self.newest.shrink_to(keep / size_of::<u32>());
        }
        self.older.shrink_to((keep / size_of::<u32>()).max(2 * self.older.len()));
    }

    /// Returns the bytes of memory held.
    pub fn memory(&self) -> u64 {
        let words = self.newest.capacity() + self.older.capacity() + self.ranges.capacity();
        self.batch.memory() + (words * size_of::<u32>()) as u64
    }

    /// To be called after an operation was added to the batch.
    #[inline]
    pub fn added(&mut self) {
        let at = self.batch.len() - 1;
        if self.batch.ops()[at].kind == Kind::RangeDelete as u8 {
            self.ranges.push(at as u32);
        }
    }

    /// Returns what the transaction itself last wrote to `key`.
    pub fn get(&mut self, family: &Family, key: &[u8]) -> OwnWrite<'_> {
        if self.batch.is_empty() {
            return OwnWrite::None;
        }
        let Some(index) = self.batch.families().iter().position(|f| std::ptr::eq(&**f, family)) else {
            return OwnWrite::None;
        };
        let index = index as u16;
        let head = family.order().head(key);
        let at = if self.batch.len() < INDEX_FROM {
            self.search(index, family, key, head)
        } else {
            self.lookup(index, family, key, head)
        };
        // A later range delete hides it.
        let from = at.map_or(0, |i| i + 1);
        let hidden = self.ranges.iter().rev().take_while(|r| **r as usize >= from).any(|r| {
            let op = &self.batch.ops()[*r as usize];
            op.family == index && self.covers(op, family, key)
        });
        match at.map(|i| &self.batch.ops()[i]) {
            _ if hidden => OwnWrite::Deleted,
            None => OwnWrite::None,
            Some(op) if Tag(op.kind as u64).is_tombstone() => OwnWrite::Deleted,
            Some(op) => OwnWrite::Put(op.kind, self.batch.value_of(op)),
        }
    }

    fn covers(&self, range: &Op, family: &Family, key: &[u8]) -> bool {
        let order = family.order();
        order.compare(self.batch.key_of(range), key).is_le() && order.compare(key, self.batch.value_of(range)).is_lt()
    }

    fn is_of(&self, op: &Op, index: u16, family: &Family, key: &[u8], head: u64) -> bool {
        op.family == index
            && op.head == head
            && op.kind != Kind::RangeDelete as u8
            && family.order().compare(self.batch.key_of(op), key).is_eq()
    }

    fn search(&self, index: u16, family: &Family, key: &[u8], head: u64) -> Option<usize> {
        self.batch.ops().iter().rposition(|op| self.is_of(op, index, family, key, head))
    }

    fn lookup(&mut self, index: u16, family: &Family, key: &[u8], head: u64) -> Option<usize> {
        self.extend_index();
        let slot = slot_of(family.id(), family.order(), key, head);
        let mut at = self.newest[slot as usize & (self.newest.len() - 1)];
        while at != NONE {
            if self.is_of(&self.batch.ops()[at as usize], index, family, key, head) {
                return Some(at as usize);
            }
            at = self.older[at as usize];
        }
        None
    }

    fn extend_index(&mut self) {
        let ops = self.batch.ops();
        let wanted = ops.len().next_power_of_two().clamp(64, 1 << 16);
        if self.newest.len() < wanted {
            self.newest.clear();
            self.newest.resize(2 * wanted.min(1 << 15), NONE);
            self.older.clear();
        }
        let mask = self.newest.len() - 1;
        for (i, op) in ops.iter().enumerate().skip(self.older.len()) {
            self.older.push(std::mem::replace(&mut self.newest[op.slot as usize & mask], i as u32));
        }
    }

    /// The operations on one family from the `from`-th of all on, in the order written, as (low byte of the tag, key or
    /// start, value or end).
    pub fn ops_of<'a>(&'a self, family: &Arc<Family>, from: usize) -> impl Iterator<Item = (u8, &'a [u8], &'a [u8])> {
        let index = self.batch.families().iter().position(|f| Arc::ptr_eq(f, family)).map(|i| i as u16);
        let ops = self.batch.ops().iter().skip(from).filter(move |op| Some(op.family) == index);
        ops.map(|op| (op.kind, self.batch.key_of(op), self.batch.value_of(op)))
    }

    /// The value logs that operations point into.
    pub fn files(&self) -> impl Iterator<Item = Arc<VlogHandle>> {
        self.batch.staged().iter().map(|s| s.log.handle().clone())
    }

    /// Marks a point to come back to. A name may be set again: the newest of it counts until it is gone.
    pub fn set_savepoint(&mut self, name: &str) {
        self.savepoints.push(Savepoint { name: name.to_owned(), mark: self.batch.mark() });
    }

    fn find_savepoint(&self, name: &str) -> Result<usize> {
        self.savepoints
            .iter()
            .rposition(|s| s.name == name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the transaction has no savepoint named '{name}'")))
    }

    /// Takes back what was written since the savepoint, which stays, unlike those set after it.
    pub fn rollback_to_savepoint(&mut self, name: &str) -> Result<()> {
        let at = self.find_savepoint(name)?;
        self.savepoints.truncate(at + 1);
        self.take_back(self.savepoints[at].mark);
        Ok(())
    }

    /// Takes back what was written since the batch's mark was made. Savepoints must not have been set since.
    pub fn take_back(&mut self, mark: SavepointPos) {
        if self.batch.len() < mark.ops {
            return; // another thread ended the transaction, and nothing is left
        }
        let mask = self.newest.len().wrapping_sub(1);
        while self.older.len() > mark.ops {
            // The newest first, so each is the head of its chain when its turn comes.
            if let Some(older) = self.older.pop() {
                self.newest[self.batch.ops()[self.older.len()].slot as usize & mask] = older;
            }
        }
        self.ranges.retain(|r| (*r as usize) < mark.ops);
        self.batch.truncate(mark);
    }

    /// Forgets a savepoint and those set after it; what was written since stays.
    pub fn release_savepoint(&mut self, name: &str) -> Result<()> {
        let at = self.find_savepoint(name)?;
        self.savepoints.truncate(at);
        Ok(())
    }
}
