//! Sealing memtables: a full one, one that keeps the log long, or one that a caller wants flushed.

use super::state::CommitState;
use crate::engine::DbInner;
use crate::family::{Family, View};
use crate::memtable::FamilyMemtable;
use crate::sync::atomic::Ordering;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::Stat;
use kingtide_base::{SeqNo, rare};
use std::sync::Arc;

impl DbInner {
    /// Seals the memtables that are full. Called under the commit lock.
    pub(super) fn seal_full_memtables(&self, c: &mut CommitState, touched: &[Arc<Family>]) {
        for f in touched {
            let limit = f.options().memtable_size;
            let view = f.view.load();
            let direct = view.active.direct().bytes();
            if view.active.memory() > limit || (direct > 0 && direct > self.most_direct_bytes(limit)) {
                self.seal_memtable(c, f);
            }
        }
        let max = self.max_wal_size.load(Ordering::Relaxed);
        if self.wal.needed_size() > max {
            // The family that pins the oldest segment is flushed, so that the log stays bounded.
            let oldest =
                c.families.iter().filter_map(|f| f.oldest_unflushed().map(|s| (s, f.clone()))).min_by_key(|x| x.0);
            if let Some((seq, f)) = oldest
                && f.view.load().immutable.is_empty()
            {
                // A flush frees nothing while a prepared transaction's record is the older one.
                match self.prepared.oldest().filter(|prepared| *prepared < seq) {
                    None => {
                        rare!("memtable-sealed-for-log");
                        self.seal_memtable(c, &f);
                    }
                    Some(_) if self.prepared.is_overdue(self.wal.appended(), max) => self.jobs.wake(),
                    Some(_) => {}
                }
            }
        }
    }

    /// Freezes a family's active memtable and puts an empty one in its place. Called under the commit lock, so the
    /// immutable one holds everything of its family up to `last_seq` and nothing after it.
    pub(crate) fn seal_memtable(&self, c: &mut CommitState, family: &Arc<Family>) {
        self.seal_memtable_after(c.last_seq, family);
        if family.view.load().unflushed_value_bytes() > 0 {
            self.measure_unflushed_values(c.families.iter());
        }
    }

    /// The same, if `last` is the last sequence number given out.
    pub(crate) fn seal_memtable_after(&self, last: SeqNo, family: &Arc<Family>) {
        if family.view.load().active.is_empty() {
            return;
        }
        let timer = perf::begin_wait();
        let fresh = FamilyMemtable::new(family.order().clone(), &self.arenas, last + 1);
        family.update_view(|v| {
            let immutable = std::iter::once(&v.active).chain(&v.immutable).cloned().collect();
            View::new(v.order.clone(), fresh, immutable, v.version.clone(), &self.tables, Some(v))
        });
        timer.end(Stage::SealNs);
        self.stats.add(Stat::Rotations, 1);
        self.jobs.wake();
    }
}
