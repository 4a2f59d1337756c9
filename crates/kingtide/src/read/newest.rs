//! Whether anything changed after a sequence number: what a transaction asks at commit about what it read and writes.
//!
//! The answer is exact as long as a snapshot is registered that is not newer than that number, because merges keep the
//! sequence number of every key's newest change after the oldest snapshot (`compact::history`). A source is left out if nothing in it is newer: soon after the
//! snapshot was taken that is all of them but the active memtable.

use crate::family::ReadContext;
use crate::family::View;
use crate::family::view::{FileSlot, ResolvedRun};
use crate::memtable::FamilyMemtable;
use crate::read::get::{decide, with_table_scratch};
use crate::read::value::PinnedValue;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::stats::Stat;
use kingtide_base::{KeyOrder, Result, SeqNo, Tag};
use kingtide_table::IterOptions;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// Returns whether a version of `key` with a sequence number greater than `since` exists: put, tombstone, or a range tombstone
/// over it. Exact as long as a snapshot at or before `since` is registered.
///
/// # Errors
/// `Io` and `Corruption` of tables.
pub(crate) fn changed_since(view: &View, key: &[u8], since: SeqNo, ctx: &ReadContext) -> Result<bool> {
    for memtable in newer_memtables(view, since) {
        if memtable.ranges().is_some_and(|r| r.max_covering(key, MAX_SEQ) > since) {
            return Ok(true);
        }
        if let Some((tag, _)) = memtable.points().get(key, Tag::seek(MAX_SEQ)) {
            // The first source that holds the key holds its newest version, unless that is a range tombstone.
            if tag.seq() > since || !view.has_range_tombstones() {
                return Ok(tag.seq() > since);
            }
        }
    }
    if tables_newer(view, since) { changed_in_tables(view, key, since, ctx) } else { Ok(false) }
}

#[cold]
fn changed_in_tables(view: &View, key: &[u8], since: SeqNo, ctx: &ReadContext) -> Result<bool> {
    let (head, hash) = (view.order.head(key), view.order.hash(key));
    with_table_scratch(|scratch| {
        for run in newer_runs(view, since) {
            for slot in run.files[run.candidates(key, head)].iter().filter(|s| s.meta.max_seq > since) {
                if range_in_table(&view.order, slot, Bound::Included(key), Bound::Included(key), since)? {
                    return Ok(true);
                }
                let newest = slot.with(|t| t.get(key, hash, Tag::seek(MAX_SEQ), scratch))?;
                if newest.is_some_and(|(tag, _)| tag.seq() > since) {
                    return Ok(true);
                }
            }
        }
        ctx.stats.add(Stat::Gets, 1);
        Ok(false)
    })
}

/// Returns whether anything between the bounds changed after `since`: an entry, or a range tombstone that overlaps them. Looks
/// at every entry there of the sources that hold anything newer: O(entries in the range).
///
/// # Errors
/// `Io` and `Corruption` of tables.
pub(crate) fn range_changed_since(
    view: &View,
    lo: Bound<&[u8]>,
    hi: Bound<&[u8]>,
    since: SeqNo,
    ctx: &ReadContext,
) -> Result<bool> {
    if is_empty(&view.order, lo, hi) {
        return Ok(false);
    }
    ctx.stats.add(Stat::Seeks, 1);
    for memtable in newer_memtables(view, since) {
        if memtable.ranges().is_some_and(|r| r.newest_within(lo, hi) > since)
            || changed_in_memtable(&view.order, memtable, lo, hi, since)
        {
            return Ok(true);
        }
    }
    for run in newer_runs(view, since) {
        let from = match lo {
            Bound::Included(k) | Bound::Excluded(k) => run.find(k, view.order.head(k)),
            Bound::Unbounded => 0,
        };
        let met = run.files[from..].iter().take_while(|s| !behind(&view.order, &s.meta.min_key, hi));
        for slot in met.filter(|s| s.meta.max_seq > since) {
            if range_in_table(&view.order, slot, lo, hi, since)? || changed_in_table(&view.order, slot, lo, hi, since)?
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns whether a look at tables would be needed: some run holds sequence numbers above `since`.
pub(crate) fn tables_newer(view: &View, since: SeqNo) -> bool {
    newer_runs(view, since).next().is_some()
}

/// The value of an operation as a `WriteBatch` stores it: `kind` is the tag's low byte. `None` for a tombstone and for a
/// value that has expired.
///
/// # Errors
/// `Corruption` for what no batch holds.
pub(crate) fn own_value(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<Option<PinnedValue>> {
    let tag = Tag(kind as u64);
    decide(tag, stored, 0, None, ctx)?.map(|found| found.into_pinned(ctx)).transpose()
}

/// Returns whether [`own_value`] would find a value. Reads no value log.
///
/// # Errors
/// `Corruption` for what no batch holds.
pub(crate) fn own_is_visible(kind: u8, stored: &[u8], ctx: &ReadContext) -> Result<bool> {
    Ok(decide(Tag(kind as u64), stored, 0, None, ctx)?.is_some())
}

/// The memtables that may hold something newer than `since`. An immutable one holds nothing from its successor's first
/// sequence number on.
fn newer_memtables(view: &View, since: SeqNo) -> impl Iterator<Item = &Arc<FamilyMemtable>> {
    let mut successor = MAX_SEQ;
    view.memtables().take_while(move |m| std::mem::replace(&mut successor, m.first_seq()).saturating_sub(1) > since)
}

fn newer_runs(view: &View, since: SeqNo) -> impl Iterator<Item = &Arc<ResolvedRun>> {
    view.runs.iter().filter(move |r| r.max_seq > since)
}

fn changed_in_memtable(
    order: &KeyOrder,
    memtable: &FamilyMemtable,
    lo: Bound<&[u8]>,
    hi: Bound<&[u8]>,
    since: SeqNo,
) -> bool {
    let mut at = memtable.points().iter();
    match start(lo) {
        Some((key, tag)) => at.seek(key, tag),
        None => at.first(),
    }
    while at.valid() && !behind(order, at.key(), hi) {
        // A key's newest entry comes first.
        if at.tag().seq() > since {
            return true;
        }
        at.next_key();
    }
    false
}

fn changed_in_table(
    order: &KeyOrder,
    slot: &FileSlot,
    lo: Bound<&[u8]>,
    hi: Bound<&[u8]>,
    since: SeqNo,
) -> Result<bool> {
    let mut at = slot.table()?.iter(IterOptions { fill_cache: true, readahead: false });
    match start(lo) {
        Some((key, tag)) => at.seek(key, tag)?,
        None => at.first()?,
    }
    while at.valid() && !behind(order, at.key(), hi) {
        if at.tag().seq() > since {
            return Ok(true);
        }
        at.next()?;
    }
    Ok(false)
}

/// Returns whether the file holds a range tombstone newer than `since` that overlaps the bounds.
fn range_in_table(order: &KeyOrder, slot: &FileSlot, lo: Bound<&[u8]>, hi: Bound<&[u8]>, since: SeqNo) -> Result<bool> {
    if slot.meta.range_tombstones == 0 {
        return Ok(false);
    }
    slot.with(|table| {
        let newer = table.range_tombstones().iter().filter(|t| t.seq > since);
        Ok(newer.into_iter().any(|t| {
            let ends_before = match lo {
                Bound::Included(k) | Bound::Excluded(k) => order.compare(&t.end, k).is_le(),
                Bound::Unbounded => false,
            };
            !ends_before && !behind(order, &t.start, hi)
        }))
    })
}

/// Where a scan of a range begins: before all versions of an included key, behind all of an excluded one.
fn start(lo: Bound<&[u8]>) -> Option<(&[u8], Tag)> {
    match lo {
        Bound::Included(key) => Some((key, Tag(u64::MAX))),
        Bound::Excluded(key) => Some((key, Tag(0))),
        Bound::Unbounded => None,
    }
}

/// Returns whether `key` lies behind the upper bound.
fn behind(order: &KeyOrder, key: &[u8], hi: Bound<&[u8]>) -> bool {
    match hi {
        Bound::Included(hi) => order.compare(key, hi).is_gt(),
        Bound::Excluded(hi) => order.compare(key, hi).is_ge(),
        Bound::Unbounded => false,
    }
}

pub(crate) fn is_empty(order: &KeyOrder, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> bool {
    use Bound::{Excluded, Included, Unbounded};
    match (lo, hi) {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(lo), Included(hi)) => order.compare(lo, hi) == Ordering::Greater,
        (Included(lo) | Excluded(lo), Included(hi) | Excluded(hi)) => order.compare(lo, hi) != Ordering::Less,
    }
}
