//! The executor: inputs in one order, the versions that a reader can see, output files. A flush is the same merge with
//! memtables for inputs.

use super::context::{FlushInput, MergeContext, MergeOutput};
use super::history::{Fate, History};
use super::output::{Outputs, Placement, pointed_bytes};
use super::raise;
use super::sources::{Merged, RunSource, Source};
use crate::rangedel::{RangeTombstone, RangeTombstones, SpanCursor, list_memory};
use kingtide_base::budget::Charge;
use kingtide_base::{KeyOrder, Result};
use kingtide_table::TableIter;
use kingtide_versions::{CompactionRange, FileMeta, Job, Run, runs_below};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Merges the part of a job that lies in `range` into new files of run `job.output_run`.
///
/// # Errors
/// Those of the file system, `Corruption` of inputs, `Cancelled`. Every file it created is deleted again.
pub fn run_merge(ctx: &MergeContext<'_>, job: &Job, range: &CompactionRange) -> Result<MergeOutput> {
    let order = &ctx.order;
    let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
    let within = |f: &FileMeta| {
        lo.is_none_or(|lo| order.compare(&f.max_key, lo).is_ge())
            && hi.is_none_or(|hi| order.compare(&f.min_key, hi).is_lt())
    };
    let mut runs: BTreeMap<(usize, std::cmp::Reverse<u64>), Vec<Arc<FileMeta>>> = BTreeMap::new();
    let mut fragments: Vec<RangeTombstone> = Vec::new();
    let mut bytes_read = 0;
    for (level, file) in job.inputs.iter().filter(|(_, f)| within(f)) {
        runs.entry((*level, std::cmp::Reverse(file.run))).or_default().push(file.clone());
        bytes_read += file.size;
        if file.range_tombstones > 0 {
            let table = (ctx.open_table)(file)?;
            fragments.extend_from_slice(table.range_tombstones());
        }
    }
    let mut expected = (0, 0);
    let mut sources = Vec::with_capacity(runs.len());
    for mut files in runs.into_values() {
        files.sort_by(|a, b| order.compare(&a.min_key, &b.min_key));
        expected.0 += files.iter().map(|f| f.entries).sum::<u64>();
        // The target is compared with compressed bytes, so it is those that tell how many entries a file will hold.
        expected.1 += files.iter().map(|f| f.size).sum::<u64>();
        sources.push(Source::Run(RunSource::new(ctx.open_table, files)));
    }
    let older = if job.drop_tombstones {
        OlderData::none(order)
    } else {
        OlderData::below(order, runs_below(&ctx.version, job.output_level, job.output_run))
    };
    let place = Placement {
        level: job.output_level,
        run: job.output_run,
        boundaries: &job.boundaries,
        relocate: &job.relocate_vlogs,
        lo,
        hidden: None,
        raise_to: raise::of_merge(ctx, job),
        expected,
    };
    let held = ctx.memory.map(|memory| Charge::new(memory, list_memory(&fragments)));
    let tombstones = fragmented(ctx, fragments.iter(), range);
    drop((fragments, held));
    let mut output = merge(ctx, sources, tombstones, older, place, range)?;
    output.counters.bytes_read = bytes_read;
    Ok(output)
}

/// Writes memtables as one run of level 0. The result may have no file, when everything annihilates.
///
/// # Errors
/// Those of the file system, `Cancelled`. Every file it created is deleted again.
pub fn run_flush(ctx: &MergeContext<'_>, input: FlushInput<'_>) -> Result<MergeOutput> {
    let older = OlderData::below(&ctx.order, runs_below(&ctx.version, 0, input.run));
    let tables = input.memtables.iter().map(|m| m.table());
    // Memtable bytes are not compressed yet; about half of them reach the file.
    let expected = tables.fold((0, 0), |(n, bytes), t| (n + t.len(), bytes + t.data_bytes() / 2));
    let relocate = &input.relocate;
    let (level, run, hidden) = (0, input.run, input.hidden);
    let raise_to = raise::of_flush(ctx, input.last);
    let place = Placement { level, run, boundaries: &[], relocate, lo: None, hidden, raise_to, expected };
    let sources = input.memtables.into_iter().map(Source::Mem).collect();
    let range = CompactionRange::default();
    let tombstones = fragmented(ctx, input.tombstones.iter().flat_map(|list| list.iter()), &range);
    merge(ctx, sources, tombstones, older, place, &range)
}

/// The range tombstones of a job's input, truncated to its range. Their memory is charged like the job's buffers.
fn fragmented<'a>(
    ctx: &MergeContext<'_>,
    list: impl Iterator<Item = &'a RangeTombstone>,
    range: &'a CompactionRange,
) -> RangeTombstones {
    let items = list.map(|t| (t.start.as_slice(), t.end.as_slice(), t.seq));
    let set = RangeTombstones::build_within(&ctx.order, items, range.lo.as_deref(), range.hi.as_deref());
    match ctx.memory {
        Some(memory) => set.charged(memory),
        None => set,
    }
}

/// Merges sources, newest first, within a key range.
fn merge(
    ctx: &MergeContext<'_>,
    sources: Vec<Source<'_>>,
    tombstones: RangeTombstones,
    mut older: OlderData<'_>,
    place: Placement<'_>,
    range: &CompactionRange,
) -> Result<MergeOutput> {
    let order = &ctx.order;
    let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
    let mut kept = tombstones.visible_fragments(&ctx.snapshots);
    // A range tombstone that every snapshot sees has hidden all it covers in this merge; it is needed for older runs. One
    // that some snapshot does not see is also the trace of a change.
    let oldest = ctx.snapshots.first().copied().unwrap_or(0);
    let written = kept.len();
    kept.retain(|f| f.seq > oldest || older.may_meet(&f.start, &f.end));
    let dropped_ranges = written - kept.len();
    let kept_memory = list_memory(&kept);

    let mut out = Outputs::new(ctx, place, kept);
    out.counters().tombstones += dropped_ranges as u64;
    let runs = sources.iter().filter(|s| matches!(s, Source::Run(_))).count();
    out.set_input_memory(runs as u64 * TableIter::READAHEAD_MEMORY + kept_memory);
    let mut history = History::new(&ctx.snapshots, ctx.now_ms);
    let mut merged = Merged::new(order, sources, lo)?;
    let mut cursor = SpanCursor::default();
    let mut key: Option<(u64, Vec<u8>)> = None;
    let mut untouched = true; // nothing of the key was written yet
    let mut since_breath = 0;
    while let Some((head, k, tag, value)) = merged.current() {
        if hi.is_some_and(|hi| order.compare(k, hi).is_ge()) {
            break;
        }
        match &mut key {
            Some((last_head, last)) if *last_head == head && order.compare(last, k).is_eq() => {}
            last => {
                if let Some((_, last)) = last {
                    finish_key(&mut history, &mut older, &mut out, last, untouched)?;
                }
                let (last_head, buffer) = last.get_or_insert_default();
                *last_head = head;
                buffer.clear();
                buffer.extend_from_slice(k);
                history.begin();
                untouched = true;
            }
        }
        let covered = match tombstones.is_empty() {
            true => 0,
            false => tombstones.max_covering_near(&mut cursor, k, history.limit(tag.seq())),
        };
        out.counters().entries_in += 1;
        let shadowed = out.counters().shadowed;
        if history.step(tag, value, covered, out.counters())? == Fate::Keep {
            for t in history.pending() {
                out.add(k, *t, &[], std::mem::take(&mut untouched))?;
            }
            history.clear_pending();
            out.add(k, tag, value, std::mem::take(&mut untouched))?;
        } else if out.counters().shadowed > shadowed {
            out.counters().uncovered += pointed_bytes(tag, value).unwrap_or(0);
        }
        since_breath += k.len() + value.len() + 16;
        merged.advance()?;
        if since_breath >= ctx.poll_interval {
            since_breath = 0;
            out.poll_cancel_and_throttle()?;
        }
    }
    if let Some((_, last)) = &key {
        finish_key(&mut history, &mut older, &mut out, last, untouched)?;
    }
    out.poll_cancel_and_throttle()?;
    out.finish()
}

/// Writes the tombstones that end a key's history. When nothing older can lie below, only those that are traces.
#[inline]
fn finish_key(
    history: &mut History<'_>,
    older: &mut OlderData<'_>,
    out: &mut Outputs<'_>,
    key: &[u8],
    mut untouched: bool,
) -> Result<()> {
    if history.pending().is_empty() {
        return Ok(());
    }
    let kept = if older.may_hold(key) { history.pending() } else { history.traces() };
    for t in kept {
        out.add(key, *t, &[], std::mem::take(&mut untouched))?;
    }
    out.counters().tombstones += (history.pending().len() - kept.len()) as u64;
    Ok(())
}

/// Whether runs older than a result may hold a key. Asked with ascending keys, in constant time on average.
struct OlderData<'a> {
    order: &'a KeyOrder,
    runs: Vec<(&'a Run, usize)>,
}

impl<'a> OlderData<'a> {
    fn below(order: &'a KeyOrder, runs: impl Iterator<Item = &'a Run>) -> OlderData<'a> {
        OlderData { order, runs: runs.map(|r| (r, 0)).collect() }
    }

    /// There is none.
    fn none(order: &'a KeyOrder) -> OlderData<'a> {
        OlderData { order, runs: Vec::new() }
    }

    fn may_hold(&mut self, key: &[u8]) -> bool {
        let order = self.order;
        self.runs.iter_mut().any(|(run, at)| {
            while run.files.get(*at).is_some_and(|f| order.compare(&f.max_key, key).is_lt()) {
                *at += 1;
            }
            run.files.get(*at).is_some_and(|f| order.compare(&f.min_key, key).is_le())
        })
    }

    fn may_meet(&self, start: &[u8], end: &[u8]) -> bool {
        self.runs.iter().any(|(r, _)| r.overlapping(self.order, start, end).next().is_some())
    }
}
