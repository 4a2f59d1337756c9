//! Point reads in batches.
//!
//! The keys are sorted, and the runs are searched one after the other with the keys that nothing newer has answered.
//! Neighbouring keys then meet the same leaves of a memtable, the same lines of an index and the same block, which is
//! read and decoded once.

use crate::family::ReadContext;
use crate::family::View;
use crate::family::view::{FileSlot, ResolvedRun};
use crate::read::get::{Found, decide, with_table_scratch};
use crate::read::value::PinnedValue;
use kingtide_base::histogram::Histogram;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::Stat;
use kingtide_base::{Result, SeqNo, Tag};
use kingtide_table::{ReadScratch, TableValue};

/// A key that no source has answered yet.
struct Wanted<'k> {
    head: u64,
    key: &'k [u8],
    hash: Option<u64>,
    covering: SeqNo,
    /// Place in the caller's order.
    at: usize,
}

/// Reads all of `keys` as of `snapshot`: the results stand in the order of the keys, and a failure concerns its key only.
pub fn multi_get<K: AsRef<[u8]>>(
    view: &View,
    keys: &[K],
    snapshot: SeqNo,
    ctx: &ReadContext,
) -> Vec<Result<Option<PinnedValue>>> {
    let started = ctx.stats.start();
    let results = find_all(view, keys, snapshot, ctx);
    count(ctx, &results);
    ctx.finish(Histogram::MultiGet, started, || ctx.about_keys(keys.len()));
    results
}

fn find_all<K: AsRef<[u8]>>(
    view: &View,
    keys: &[K],
    snapshot: SeqNo,
    ctx: &ReadContext,
) -> Vec<Result<Option<PinnedValue>>> {
    let mut results: Vec<Result<Option<PinnedValue>>> = Vec::with_capacity(keys.len());
    results.resize_with(keys.len(), || Ok(None));
    let mut wanted = sorted(view, keys);
    let upper = Tag::seek(snapshot);
    wanted.retain_mut(|w| match in_memory(view, w, snapshot, ctx) {
        Some(answer) => {
            results[w.at] = answer;
            false
        }
        None => true,
    });
    if !view.runs.is_empty() {
        for w in &mut wanted {
            w.hash = view.order.hash(w.key);
        }
    }
    for run in &view.runs {
        if wanted.is_empty() {
            break;
        }
        // All filter lines load while the first keys are looked up.
        for w in &wanted {
            if let Some(hash) = w.hash
                && let Some(table) = run.files.get(run.find(w.key, w.head)).and_then(FileSlot::resident)
            {
                table.prefetch(hash);
            }
        }
        with_table_scratch(|scratch| {
            wanted.retain(|w| match in_run(run, w, upper, ctx, scratch) {
                Some(answer) => {
                    results[w.at] = answer;
                    false
                }
                None => true,
            });
        });
    }
    results
}

fn sorted<'k, K: AsRef<[u8]>>(view: &View, keys: &'k [K]) -> Vec<Wanted<'k>> {
    let mut wanted: Vec<Wanted<'k>> = (keys.iter().enumerate())
        .map(|(at, key)| {
            let key = key.as_ref();
            Wanted { head: view.order.head(key), key, hash: None, covering: 0, at }
        })
        .collect();
    wanted.sort_unstable_by(|a, b| a.head.cmp(&b.head).then_with(|| view.order.compare(a.key, b.key)));
    wanted
}

/// The answer for a key if a memtable has one.
fn in_memory(
    view: &View,
    wanted: &mut Wanted<'_>,
    snapshot: SeqNo,
    ctx: &ReadContext,
) -> Option<Result<Option<PinnedValue>>> {
    wanted.covering = match view.max_covering(wanted.key, snapshot) {
        Ok(seq) => seq,
        Err(e) => return Some(Err(e)),
    };
    view.memtables().find_map(|memtable| {
        perf::count(Stage::MemtablesSearched, 1);
        let (tag, stored) = memtable.points().get(wanted.key, Tag::seek(snapshot))?;
        let value = decide(tag, stored, wanted.covering, None, ctx);
        Some(value.and_then(|v| v.map(|found| found.into_pinned(ctx)).transpose()))
    })
}

/// The answer for a key if the run has one.
fn in_run(
    run: &ResolvedRun,
    wanted: &Wanted<'_>,
    upper: Tag,
    ctx: &ReadContext,
    scratch: &mut ReadScratch,
) -> Option<Result<Option<PinnedValue>>> {
    let candidates = &run.files[run.candidates(wanted.key, wanted.head)];
    for slot in candidates.iter().filter(|s| !s.is_hidden_by(wanted.covering)) {
        perf::count(Stage::TablesSearched, 1);
        let (tag, value) = match slot.with(|t| t.get(wanted.key, wanted.hash, upper, scratch)) {
            Ok(Some(hit)) => hit,
            Ok(None) => continue,
            Err(e) => return Some(Err(e)),
        };
        let pinned = match value {
            TableValue::Scratch(at) => decide(tag, &scratch.bytes()[at], wanted.covering, Some(&slot.handle), ctx)
                .and_then(|v| v.map(|found| found.into_pinned(ctx)).transpose()),
            TableValue::Cached(block, at) => {
                Found::in_block(tag, (block, at), wanted.covering, &slot.handle, ctx, |f| f.into_pinned(ctx))
            }
        };
        return Some(pinned);
    }
    None
}

fn count(ctx: &ReadContext, results: &[Result<Option<PinnedValue>>]) {
    let (mut hits, mut bytes) = (0, 0);
    for value in results.iter().flatten().flatten() {
        hits += 1;
        bytes += value.len() as u64;
    }
    ctx.stats.add(Stat::Gets, results.len() as u64);
    ctx.stats.add(Stat::GetHits, hits);
    ctx.stats.add(Stat::BytesRead, bytes);
}
