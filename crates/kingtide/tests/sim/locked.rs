//! What a transaction in doubt has locked: until it ends, over kills and power cuts too, no other commit changes what it wrote, or read in a way
//! that must remain valid. And its end meets no conflict.

use crate::sim::durability::How;
use crate::sim::history::{FamilyNo, Op, What, Xid};
use crate::sim::world::World;
use kingtide::{Db, ErrorKind, Isolation, Result};

impl Op {
    /// The keys that it writes: the first, and for a range the first beyond.
    fn keys(&self) -> (&[u8], Option<&[u8]>) {
        match self {
            Op::Put(_, key, ..) | Op::Delete(_, key) | Op::SingleDelete(_, key) => (key, None),
            Op::DeleteRange(_, from, to) | Op::DeletePrefix(_, from, to) => (from, Some(to)),
        }
    }

    /// Whether it writes the key.
    fn writes(&self, key: &[u8]) -> bool {
        let (from, to) = self.keys();
        to.map_or(from == key, |to| (from..to).contains(&key))
    }

    /// Whether both write some key.
    fn meets(&self, other: &Op) -> bool {
        let ((from, _), (other_from, _)) = (self.keys(), other.keys());
        self.family() == other.family() && (self.writes(other_from) || other.writes(from))
    }
}

/// A key that was read in such a way that no other commit may change it once the transaction is prepared.
pub type Read = (FamilyNo, Vec<u8>);

/// Whether a read by a transaction that has written `ops` must remain valid. Its own writes are locked in any case.
pub fn is_relied_on(read: &Read, level: Isolation, for_update_or_share: bool, ops: &[Op]) -> bool {
    let own = ops.iter().any(|op| op.family() == read.0 && op.writes(&read.1));
    !own && (for_update_or_share || level == Isolation::Serializable)
}

impl World {
    /// Event `n` was acknowledged.
    pub fn check_locks(&mut self, n: usize) {
        let (What::Commit { ops, .. } | What::Ingest(ops) | What::Prepare(_, ops)) = &self.history.events[n - 1].what
        else {
            return;
        };
        for xid in self.history.in_doubt(n - 1, self.epoch()) {
            let written = |op: &Op| self.history.prepared(xid).iter().any(|own| own.meets(op));
            let reads = self.prepared_reads.get(&xid).map_or(&[][..], Vec::as_slice);
            let read = |op: &Op| reads.iter().any(|(family, key)| op.family() == *family && op.writes(key));
            let changed = ops.iter().find(|op| written(op) || read(op));
            assert!(
                changed.is_none(),
                "event {n} changed what transaction {xid} has locked, which is in doubt: {changed:?}"
            );
        }
        self.counts.beside_doubt += u64::from(!self.history.in_doubt(n - 1, self.epoch()).is_empty());
    }

    /// Ends a prepared transaction, which meets no conflict.
    pub fn end(&mut self, xid: Xid, commit: bool, how: How, act: impl FnOnce(&Db) -> Result<u64>) -> Result<()> {
        let ended = self.attempt(What::End(xid, commit), how, act);
        if let Err(e) = &ended {
            let conflicts = [ErrorKind::Conflict, ErrorKind::Deadlock, ErrorKind::LockTimeout];
            assert!(!conflicts.contains(&e.kind()), "the end of transaction {xid}, which is prepared: {e:?}");
        }
        ended
    }
}
