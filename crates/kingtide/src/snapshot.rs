//! Snapshots: sequence numbers that somebody may still read at.
//!
//! Registering a snapshot and listing them for a merge take the same lock, and both read the visible sequence under it.
//! So a merge either sees a snapshot or started from a visible sequence that the snapshot is not older than; in both
//! cases it keeps what the snapshot needs.

use kingtide_base::SeqNo;
use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The snapshots of a database and the newest visible sequence number.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    held: Mutex<BTreeMap<SeqNo, u32>>,
    visible: AtomicU64,
}

impl Snapshots {
    /// The newest visible sequence number. Acquire pairs with the Release in [`Snapshots::publish`]: who sees the number
    /// sees the memtable entries below it.
    #[inline]
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything up to `seq` visible. Called in commit order, under the commit lock.
    #[inline]
    pub fn publish(&self, seq: SeqNo) {
        self.visible.store(seq, Ordering::Release);
    }

    /// Registers a snapshot of now.
    pub fn acquire(self: &Arc<Self>) -> Snapshot {
        let mut held = self.held.lock();
        let seq = self.visible();
        *held.entry(seq).or_insert(0) += 1;
        Snapshot { seq, list: self.clone() }
    }

    /// All held snapshots and the visible sequence, ascending, without duplicates: the versions a merge must keep.
    pub fn list(&self) -> Vec<SeqNo> {
        let held = self.held.lock();
        let mut all: Vec<SeqNo> = held.keys().copied().collect();
        let now = self.visible();
        if all.last() != Some(&now) {
            all.push(now);
        }
        all
    }

    /// Number of snapshots held.
    pub fn count(&self) -> u64 {
        self.held.lock().values().map(|n| *n as u64).sum()
    }

    /// The oldest sequence number that is sure to be readable.
    pub fn oldest(&self) -> SeqNo {
        let held = self.held.lock();
        held.keys().next().copied().unwrap_or_else(|| self.visible())
    }
}

/// A consistent view of the whole database at one moment, over all families. Reads through it see exactly what was
/// committed before it was taken. Dropping it lets merges reclaim what only it could see.
#[derive(Debug)]
pub struct Snapshot {
    seq: SeqNo,
    list: Arc<Snapshots>,
}

impl Snapshot {
    /// The newest sequence number that the snapshot sees.
    pub fn sequence(&self) -> SeqNo {
        self.seq
    }

    pub(crate) fn belongs_to(&self, list: &Arc<Snapshots>) -> bool {
        Arc::ptr_eq(&self.list, list)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        *self.list.held.lock().entry(self.seq).or_insert(0) += 1;
        Snapshot { seq: self.seq, list: self.list.clone() }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut held = self.list.held.lock();
        if let Some(n) = held.get_mut(&self.seq) {
            *n -= 1;
            if *n == 0 {
                held.remove(&self.seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_counted_and_listed_with_now() {
        let s = Arc::new(Snapshots::default());
        s.publish(5);
        let a = s.acquire();
        let b = a.clone();
        s.publish(9);
        assert_eq!((s.list(), s.count(), s.oldest()), (vec![5, 9], 2, 5));
        drop(a);
        assert_eq!(s.list(), [5, 9]);
        drop(b);
        assert_eq!((s.list(), s.oldest()), (vec![9], 9));
    }
}
