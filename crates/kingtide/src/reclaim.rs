//! The space of deleted ranges, given back in the background.
//!
//! A range delete is a small tombstone; the bytes that it deletes go when merges happen to bring the two together, which may
//! be much later. A caller that deleted much asks for more with [`crate::ColumnFamily::reclaim_range`]. As soon as no
//! snapshot sees the deleted entries any more,
//!
//! 1. the memtable that holds the tombstone is flushed, if what there is to gain is worth a flush;
//! 2. files of which all keys are deleted leave the tree, without being read;
//! 3. what is left of the range, in files that hold other keys too, is merged, if little else has to be rewritten for it.
//!
//! What was asked for is not stored: after a restart it is left to the merges.

use crate::engine::DbInner;
use crate::estimate::range::Span;
use crate::estimate::sources::{estimate, unflushed_bytes};
use crate::family::{Family, View};
use crate::rangedel::RangeTombstones;
use crate::reclaims::Request;
use kingtide_base::sync::atomic::Ordering;
use kingtide_base::{ErrorKind, KeyOrder, Result, SeqNo};
use kingtide_versions::{CompactionRange, Edit, FileMeta, Rewrite};
use std::ops::Bound;
use std::sync::Arc;

/// A byte of the range may cost the rewriting of so many others.
const COST: u64 = 16;

impl DbInner {
    /// Remembers to give the space of a range back, if there is any.
    ///
    /// # Errors
    /// `Corruption` and `Io` from opening a table.
    pub(crate) fn remember_to_reclaim(&self, family: &Arc<Family>, lo: &[u8], hi: &[u8]) -> Result<()> {
        // What waits for a flush will be in a table without the range delete, which is in a later memtable. It is counted first: what is flushed
        // meanwhile counts twice, and not never.
        let unflushed = unflushed_bytes(&family.view.load(), span(lo, hi));
        let bytes = stored_bytes(family, lo, hi)? + unflushed;
        if bytes > 0 {
            let (family, since) = (family.clone(), self.snapshots.visible());
            self.reclaims.add(Request { family, lo: lo.to_vec(), hi: hi.to_vec(), since, bytes });
            self.jobs.wake();
        }
        Ok(())
    }

    /// Does one step towards reclaiming the space of ranges. Returns false if there is nothing to do now. A family whose ranges fail or must
    /// wait does not keep other families from their turn. No caller waits for these steps, and those that fail are not tried again, so each
    /// error is reported here as a background error.
    ///
    /// # Errors
    /// `NoSpace`, which is not reported here: what a full disk has left is for flushes, and not for the next family. Such a step is tried
    /// again, because it frees space once there is enough for it to run.
    pub(crate) fn reclaim_some(self: &Arc<Self>) -> Result<bool> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let (oldest, mut tried) = (self.snapshots.oldest(), Vec::new());
        loop {
            let due = self.reclaims.due(oldest, &tried);
            let Some(family) = due.first().map(|r| r.family.clone()) else { return Ok(false) };
            match self.reclaim_of(&family, &due, oldest) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(e) if e.kind() == ErrorKind::NoSpace => return Err(e),
                Err(e) => {
                    self.report_background_error(&e);
                }
            }
            tried.push(family);
        }
    }

    /// Does one step for the ranges of one family that are `due`. Returns false if they must wait.
    fn reclaim_of(self: &Arc<Self>, family: &Arc<Family>, due: &[Request], oldest: SeqNo) -> Result<bool> {
        let last = due.iter().map(|r| r.since).max().unwrap_or_default();
        if family.oldest_unflushed().is_some_and(|s| s <= last) {
            return Ok(self.freeze_up_to(last, family));
        }
        let view = family.view.load_full();
        let done = match view.table_ranges() {
            Ok(Some(tombstones)) => self.remove_covered(family, &view, tombstones, due, oldest),
            Ok(None) => Ok(true),
            Err(e) => Err(e),
        };
        match &done {
            Ok(false) => return Ok(false), // a compaction has the files or was faster, or a snapshot needs them: tried again when that is over
            Err(e) if e.kind() == ErrorKind::NoSpace => return done,
            _ => {}
        }
        for request in due {
            self.reclaims.done(request);
            if done.is_ok() {
                self.merge_rest(request)?;
            }
        }
        done
    }

    /// Seals the memtable if it may hold something up to `last`. False if that waits for its flush already.
    fn freeze_up_to(&self, last: SeqNo, family: &Arc<Family>) -> bool {
        let mut c = self.commit.lock();
        let view = family.view.load();
        if family.is_dropped() || view.active.is_empty() || view.active.first_seq() > last {
            return false;
        }
        drop(view);
        self.seal_memtable(&mut c, family);
        true
    }

    /// Removes the files that tombstones cover as a whole. False if the tree changed meanwhile, a merge has one of them, or a
    /// snapshot needs them after all.
    fn remove_covered(
        &self,
        family: &Arc<Family>,
        view: &Arc<View>,
        tombstones: &RangeTombstones,
        due: &[Request],
        oldest: SeqNo,
    ) -> Result<bool> {
        let order = family.order();
        let asked = |f: &FileMeta| due.iter().any(|r| f.overlaps(order, &r.lo, &r.hi));
        let covered: Vec<_> =
            view.version.files().filter(|(_, f)| asked(f) && is_covered(order, tombstones, f, oldest)).collect();
        if covered.is_empty() {
            return Ok(true);
        }
        let mut catalog = self.catalog.lock();
        if !Arc::ptr_eq(&family.view.load_full().version, &view.version) {
            return Ok(false);
        }
        let taken = |level: usize, f: &FileMeta| {
            let mut of_family = catalog.running.iter().filter(|r| r.family == family.id()).flat_map(|r| &r.footprints);
            of_family.any(|p| (p.top..=p.bottom).contains(&level) && f.overlaps(order, &p.lo, &p.hi))
        };
        if covered.iter().any(|(level, f)| taken(*level, f)) {
            return Ok(false);
        }
        // As for a merge: an earlier moment is in the list by now, or cannot be read any more.
        if self.snapshots.list().first().is_some_and(|first| *first < oldest) {
            return Ok(false); // a snapshot of one was taken meanwhile
        }
        let remove = |(level, f): &(usize, &Arc<FileMeta>)| Edit::RemoveFile {
            family: family.id(),
            level: *level as u8,
            id: f.id,
        };
        let edits = covered.iter().map(remove).collect();
        let retired = catalog.change_files(family, edits, 0, &self.tables, &self.next_file_id)?;
        self.measure_debt(&catalog);
        drop(catalog);
        self.delete_retired(retired);
        Ok(true)
    }

    /// Has what files hold of a range besides other keys merged, if that is worth it.
    fn merge_rest(self: &Arc<Self>, request: &Request) -> Result<()> {
        if request.family.is_dropped() {
            return Ok(());
        }
        let rest = stored_bytes(&request.family, &request.lo, &request.hi)?;
        let version = request.family.view.load().version.clone();
        let deepest = version.deepest();
        let meets = |f: &FileMeta| f.overlaps(request.family.order(), &request.lo, &request.hi);
        let rewritten: u64 =
            version.files().filter(|(level, f)| *level < deepest || meets(f)).map(|(_, f)| f.size).sum();
        if rest < self.tuning.reclaim_from || rewritten / COST > rest {
            return Ok(());
        }
        let range = CompactionRange { lo: Some(request.lo.clone()), hi: Some(request.hi.clone()) };
        let since = self.snapshots.visible();
        self.catalog.lock().ask_for(&request.family, (range, since), Rewrite::default());
        Ok(())
    }
}

fn span<'k>(lo: &'k [u8], hi: &'k [u8]) -> Span<'k> {
    Span { lower: Bound::Included(lo), upper: Bound::Excluded(hi) }
}

/// Bytes on disk that a range takes, up to, not including, `hi`.
fn stored_bytes(family: &Family, lo: &[u8], hi: &[u8]) -> Result<u64> {
    let held = estimate(&family.view.load(), span(lo, hi), 0)?; // files are counted, whether or not entries have expired
    Ok(held.disk_bytes + held.value_log_bytes)
}

/// Whether every key of a file is deleted by tombstones that are newer than all its entries and that every snapshot sees.
fn is_covered(order: &KeyOrder, tombstones: &RangeTombstones, file: &FileMeta, oldest: SeqNo) -> bool {
    let mut at: &[u8] = &file.min_key;
    let (lo, hi) = (Bound::Included(file.min_key.as_slice()), Bound::Included(file.max_key.as_slice()));
    for (start, end, newest) in tombstones.spans_within(lo, hi) {
        if order.compare(start, at).is_gt() || newest <= file.max_seq || newest > oldest {
            return false;
        }
        at = end;
    }
    order.compare(at, &file.max_key).is_gt()
}
