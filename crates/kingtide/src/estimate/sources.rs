//! What one memtable or one run holds of a range, and all of them together.

use super::range::{RangeStats, Span, key_of};
use crate::family::View;
use crate::family::totals::Totals;
use crate::family::view::{FileSlot, ResolvedRun};
use crate::memtable::FamilyMemtable;
use crate::rangedel::RangeTombstones;
use kingtide_base::key::split_expiry;
use kingtide_base::{KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_table::ValuePointer;
use std::ops::{Bound, Range};

/// Keys of a memtable that are looked at to tell how many of them are rows.
const SAMPLE: u64 = 24;

/// Ranges deleted by range tombstones that are taken off the rows; those beyond count as if they were there.
const SPANS: usize = 16;

/// Files that are asked how new they are, to know whether a range tombstone hides them; past it the run as a whole is.
const FILES_ASKED: usize = 64;

/// Returns what all sources hold in a span.
pub(crate) fn estimate(view: &View, span: Span<'_>, now_ms: u64) -> Result<RangeStats> {
    let mut stats = RangeStats::default();
    if span.is_empty(&view.order) {
        return Ok(stats);
    }
    let (mut rows, mut expired, mut pointed_to) = (0.0, 0.0, 0.0);
    for memtable in view.memtables() {
        let (keys, share) = share_of(memtable, span);
        if keys > 0 {
            let all = memtable.points();
            stats.memtable_entries += ((share * all.len() as f64).round() as u64).max(keys);
            stats.memtable_bytes += (share * all.data_bytes() as f64) as u64;
            let key = a_key(memtable, span, SeqNo::MAX, now_ms);
            rows += keys as f64 * key.rows;
            expired += keys as f64 * key.expired;
            pointed_to += keys as f64 * key.pointed_to;
        }
    }
    let mut sum = Totals::default();
    for run in &view.runs {
        let held = run_totals(run, &view.order, span)?;
        stats.runs += u64::from(held.files > 0);
        sum.add(&held);
        let gone = expired_entries(run, &view.order, span, now_ms)?;
        rows -= gone;
        expired += gone;
    }
    rows += sum.entries as f64 - 2.0 * sum.tombstones as f64;
    // That a table which meets the span has no entry in it cannot be told without a look into a block.
    stats.entries = stats.memtable_entries + sum.entries.max(u64::from(sum.files > 0));
    stats.tombstones = sum.tombstones;
    stats.range_tombstones = sum.range_tombstones;
    stats.raw_bytes = sum.raw_bytes;
    stats.value_log_bytes = sum.vlog_bytes + pointed_to as u64;
    stats.disk_bytes = sum.size;
    stats.tables = sum.files;
    if stats.entries > 0 && view.has_range_tombstones() {
        rows -= hidden_rows(view, span, now_ms)?;
    }
    stats.expired = (expired.round() as u64).min(stats.entries);
    if stats.entries > 0 {
        stats.rows = (rows.round() as u64).clamp(1, stats.entries);
    }
    Ok(stats)
}

/// Estimates the bytes of keys and values that memtables hold in a span before they are flushed, the active one not counted.
pub(crate) fn unflushed_bytes(view: &View, span: Span<'_>) -> u64 {
    let bytes = |m: &FamilyMemtable| (share_of(m, span).1 * m.points().data_bytes() as f64) as u64;
    view.immutable.iter().map(|m| bytes(m)).sum()
}

/// The number of a memtable's keys that a span holds, and which part of all they are.
fn share_of(memtable: &FamilyMemtable, span: Span<'_>) -> (u64, f64) {
    let all = memtable.points();
    let keys = all.count(span.lower, span.upper).keys;
    (keys, keys as f64 / all.keys().max(keys).max(1) as f64)
}

/// Averages over keys of a memtable.
struct KeyAverage {
    /// Less than one where keys are deleted or expired, and less than none where what they hide is elsewhere.
    rows: f64,
    expired: f64,
    /// Bytes in value logs that the newest entries point to.
    pointed_to: f64,
}

/// What a key of a memtable stands for, from the first keys of the span; those whose newest entry is not older than `below`
/// count nothing.
fn a_key(memtable: &FamilyMemtable, span: Span<'_>, below: SeqNo, now_ms: u64) -> KeyAverage {
    let order = memtable.order();
    let mut cursor = memtable.points().iter();
    match span.lower {
        Bound::Included(key) => cursor.seek(key, Tag(u64::MAX)),
        Bound::Excluded(key) => cursor.seek(key, Tag(0)),
        Bound::Unbounded => cursor.first(),
    }
    let (mut seen, mut rows, mut expired, mut pointed_to) = (0, 0.0, 0.0, 0.0);
    while cursor.valid() && seen < SAMPLE {
        let key = cursor.key();
        let beyond = match span.upper {
            Bound::Included(upper) => order.compare(key, upper).is_gt(),
            Bound::Excluded(upper) => order.compare(key, upper).is_ge(),
            Bound::Unbounded => false,
        };
        if beyond {
            break;
        }
        seen += 1;
        let newest = cursor.tag();
        let stored = || split_expiry(newest, cursor.value());
        let is_expired = || matches!(stored(), Some((Some(at), _)) if at <= now_ms);
        if newest.seq() < below {
            if newest.kind() == Some(Kind::PutPointer) {
                pointed_to += stored().and_then(|(_, p)| ValuePointer::decode(p)).map_or(0.0, |p| p.stored_len as f64);
            }
            rows += if !newest.is_tombstone() && newest.has_expiry() && is_expired() {
                expired += 1.0;
                0.0
            } else if !newest.is_tombstone() {
                1.0
            } else if cursor.older_tag().is_some_and(|t| !t.is_tombstone()) {
                // What was put and deleted in the same memtable probably is nowhere else.
                0.0
            } else {
                -1.0
            };
        }
        cursor.next_key();
    }
    let seen = f64::max(seen as f64, 1.0);
    KeyAverage { rows: rows / seen, expired: expired / seen, pointed_to: pointed_to / seen }
}

/// The files of a run that meet a span.
pub(super) fn files_of(run: &ResolvedRun, order: &KeyOrder, span: Span<'_>) -> Range<usize> {
    let first = key_of(span.lower).map_or(0, |key| run.find(key, order.head(key)));
    let end = match key_of(span.upper) {
        None => run.files.len(),
        Some(key) => {
            let last = run.find(key, order.head(key));
            // The file at whose end the range ends may begin behind it; the next may begin with the very key.
            let meets = |i: usize| match run.files.get(i).map(|f| order.compare(&f.meta.min_key, key)) {
                Some(std::cmp::Ordering::Less) => true,
                Some(std::cmp::Ordering::Equal) => matches!(span.upper, Bound::Included(_)),
                _ => false,
            };
            last + usize::from(meets(last)) + usize::from(meets(last) && meets(last + 1))
        }
    };
    first..end.max(first)
}

/// Returns what a run holds in a span: whole files as their metadata says, and a share of those at its ends.
fn run_totals(run: &ResolvedRun, order: &KeyOrder, span: Span<'_>) -> Result<Totals> {
    let files = files_of(run, order, span);
    if files.is_empty() {
        return Ok(Totals::default());
    }
    let reaches_in = |i: usize| {
        let meta = &run.files[i].meta;
        key_of(span.lower).is_some_and(|key| order.compare(key, &meta.min_key).is_gt())
            || key_of(span.upper).is_some_and(|key| order.compare(key, &meta.max_key).is_lt())
    };
    let (mut from, mut to) = (files.start, files.end);
    let mut sum = Totals::default();
    if reaches_in(from) {
        sum.add(&part_of(&run.files[from], span)?);
        from += 1;
    }
    if from < to && reaches_in(to - 1) {
        sum.add(&part_of(&run.files[to - 1], span)?);
        to -= 1;
    }
    sum.add(&run.totals(from..to));
    Ok(sum)
}

/// About how many bytes a run holds of the keys from `start` up to `end`, in tables and in value logs.
pub(crate) fn stored_bytes(run: &ResolvedRun, order: &KeyOrder, start: &[u8], end: &[u8]) -> Result<u64> {
    let held = run_totals(run, order, Span { lower: Bound::Included(start), upper: Bound::Excluded(end) })?;
    Ok(held.size + held.vlog_bytes)
}

/// Returns what a table holds in a span that it reaches out of.
fn part_of(slot: &FileSlot, span: Span<'_>) -> Result<Totals> {
    let whole = Totals::of(&slot.meta);
    slot.with(|table| {
        let blocks = table.blocks();
        if blocks == 0 {
            return Ok(whole.share(0.0)); // range tombstones alone
        }
        let from = key_of(span.lower).map_or(0.0, |key| table.blocks_before(key));
        let to = key_of(span.upper).map_or(blocks as f64, |key| table.blocks_before(key)).max(from);
        let mut part = whole.share((to - from) / blocks as f64);
        let bytes = table.bytes_before(to) - table.bytes_before(from);
        let all = table.bytes_before(blocks as f64).max(1);
        part.size = (bytes as f64 / all as f64 * whole.size as f64) as u64;
        Ok(part)
    })
}

/// About how many of a run's entries in a span have expired. A few tables of those in which any has are opened, which know
/// how many expire, and until when.
fn expired_entries(run: &ResolvedRun, order: &KeyOrder, span: Span<'_>, now_ms: u64) -> Result<f64> {
    let has_expired = |f: &&FileSlot| f.meta.min_expiry_ms != 0 && f.meta.min_expiry_ms <= now_ms;
    let files = &run.files[files_of(run, order, span)];
    let all = files.iter().filter(has_expired).count();
    let mut expired = 0.0;
    for slot in files.iter().filter(has_expired).take(FILES_ASKED) {
        let reaches_out = key_of(span.lower).is_some_and(|key| order.compare(key, &slot.meta.min_key).is_gt())
            || key_of(span.upper).is_some_and(|key| order.compare(key, &slot.meta.max_key).is_lt());
        let share = match reaches_out {
            true => part_of(slot, span)?.entries as f64 / slot.meta.entries.max(1) as f64,
            false => 1.0,
        };
        expired += share * slot.with(|table| Ok(table.info().expired_at(now_ms)))?;
    }
    Ok(expired * all as f64 / all.clamp(1, FILES_ASKED) as f64)
}

/// Rows that the estimate counted although range tombstones hide them.
fn hidden_rows(view: &View, span: Span<'_>, now_ms: u64) -> Result<f64> {
    let sets = view.range_sets()?;
    let spans = sets.iter().flat_map(|set| set.spans_within(span.lower, span.upper)).take(SPANS);
    // Once more into one set, so that what several sets cover is not taken off more than once.
    let covered = RangeTombstones::build(&view.order, spans);
    let mut hidden = 0.0;
    for (start, end, seq) in covered.spans_within(span.lower, span.upper) {
        let part = span.within(&view.order, start, end);
        for memtable in view.memtables().filter(|m| m.first_seq() < seq) {
            let keys = memtable.points().count(part.lower, part.upper).keys;
            if keys > 0 {
                hidden += keys as f64 * a_key(memtable, part, seq, now_ms).rows;
            }
        }
        for run in &view.runs {
            let files = files_of(run, &view.order, part);
            let newest = match files.len() <= FILES_ASKED {
                true => run.files[files].iter().map(|f| f.meta.max_seq).max().unwrap_or(0),
                false => run.max_seq,
            };
            if newest < seq {
                let held = run_totals(run, &view.order, part)?;
                hidden += held.entries as f64 - 2.0 * held.tombstones as f64;
                hidden -= expired_entries(run, &view.order, part, now_ms)?;
            }
        }
    }
    Ok(hidden)
}
