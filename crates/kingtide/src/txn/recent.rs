//! What was committed lately, key by key, for transactions that validate ranges.

use super::bounds::{is_before, is_behind, slice};
use super::read_set::ReadRange;
use crate::commit::batch::WriteBatch;
use kingtide_base::{FamilyId, Kind, SeqNo};
use std::ops::Bound;

/// Keys that commits wrote while a transaction validates ranges. Under the commit lock.
#[derive(Debug, Default)]
pub(crate) struct RecentWrites {
    /// Validations under way.
    watchers: u32,
    /// All commits after this one are listed.
    since: SeqNo,
    writes: Vec<Recent>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Recent {
    seq: SeqNo,
    family: FamilyId,
    at: usize,
    key_len: u32,
    /// Length of a range delete's end; 0 for a key.
    end_len: u32,
}

impl RecentWrites {
    /// Past this many operations or bytes the list starts anew, and a transaction that needs more looks at the memtables again.
    const MOST: usize = 16 << 10;
    const MOST_BYTES: usize = 1 << 20;

    /// Begins to list commits after `last`.
    pub fn watch(&mut self, last: SeqNo) {
        if self.watchers == 0 {
            self.restart(last);
        }
        self.watchers += 1;
    }

    /// Ends what one [`RecentWrites::watch`] began.
    pub fn unwatch(&mut self) {
        self.watchers -= 1;
        if self.watchers == 0 {
            self.writes = Vec::new();
            self.bytes = Vec::new();
        }
    }

    fn restart(&mut self, last: SeqNo) {
        self.since = last;
        self.writes.clear();
        self.bytes.clear();
    }

    /// A commit up to sequence number `last` is not listed key by key.
    pub fn pass(&mut self, last: SeqNo) {
        if self.watchers > 0 {
            self.restart(last);
        }
    }

    /// Returns whether all commits after `seq` are listed.
    pub fn knows_since(&self, seq: SeqNo) -> bool {
        self.watchers > 0 && self.since <= seq
    }

    /// Lists a batch that is committed from sequence number `base` on.
    #[inline]
    pub fn note(&mut self, batch: &WriteBatch, base: SeqNo) {
        if self.watchers > 0 {
            self.list(batch, base);
        }
    }

    #[cold]
    fn list(&mut self, batch: &WriteBatch, base: SeqNo) {
        if self.writes.len() + batch.len() > Self::MOST || self.bytes.len() + batch.bytes() > Self::MOST_BYTES {
            return self.restart(base + batch.len() as u64 - 1);
        }
        for (i, op) in batch.ops().iter().enumerate() {
            let at = self.bytes.len();
            let key = batch.key_of(op);
            self.bytes.extend_from_slice(key);
            let end: &[u8] = if op.kind == Kind::RangeDelete as u8 { batch.value_of(op) } else { &[] };
            self.bytes.extend_from_slice(end);
            self.writes.push(Recent {
                seq: base + i as u64,
                family: batch.families()[op.family as usize].id(),
                at,
                key_len: key.len() as u32,
                end_len: end.len() as u32,
            });
        }
    }

    /// Returns whether a listed commit after `checked` wrote into the range.
    pub fn touch(&self, range: &ReadRange, checked: SeqNo) -> bool {
        let since = checked.max(range.seq);
        let order = range.family.order();
        self.writes.iter().filter(|w| w.seq > since && w.family == range.family.id()).any(|w| {
            let key = &self.bytes[w.at..w.at + w.key_len as usize];
            let end = &self.bytes[w.at + w.key_len as usize..][..w.end_len as usize];
            if end.is_empty() {
                !is_before(order, key, slice(&range.lower)) && !is_behind(order, key, slice(&range.upper))
            } else {
                // [key, end) ends at or before the lower bound, or begins behind the upper one.
                let ends_before = match &range.lower {
                    Bound::Unbounded => false,
                    Bound::Included(k) | Bound::Excluded(k) => order.compare(end, k).is_le(),
                };
                !ends_before && !is_behind(order, key, slice(&range.upper))
            }
        })
    }
}
