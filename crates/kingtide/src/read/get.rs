//! Point reads.
//!
//! The first source, newest first, that holds a visible version of the key decides: invariant 2 of the version says
//! that nothing after it can be newer. A range tombstone is asked first and only if the view has any; it hides an
//! entry by sequence number alone, wherever the two are stored. Files that hold nothing as new as it are not read.

use crate::family::view::FileSlot;
use crate::family::{ReadContext, SAMPLE_PERIOD, TableHandle, View};
use crate::read::value::PinnedValue;
use kingtide_base::histogram::Histogram;
use kingtide_base::key::split_expiry;
use kingtide_base::memory::append;
use kingtide_base::perf::{self, Stage};
use kingtide_base::sample::Sampled;
use kingtide_base::stats::Stat;
use kingtide_base::{Error, Kind, Result, SeqNo, Tag, rare};
use kingtide_mem::cache::{Block, LARGE_VALUE, LONGEST_VALUE};
use kingtide_table::{Packed, ReadScratch, TableValue, ValuePointer, Vlog};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// A thread's buffers for point reads.
pub(super) struct Scratch {
    table: ReadScratch,
    until_sample: u32,
}

crate::threads::thread_local! {
    static SCRATCH: RefCell<Scratch> =
        RefCell::new(Scratch { table: ReadScratch::default(), until_sample: SAMPLE_PERIOD });
}

/// Gives `f` the thread's scratch, or a new one when it is in use: a file system or clock that reads the database from
/// inside a read.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|s| match s.try_borrow_mut() {
        Ok(mut s) => f(&mut s),
        Err(_) => f(&mut Scratch { table: ReadScratch::default(), until_sample: SAMPLE_PERIOD }),
    })
}

/// Does the same for the tables' scratch alone.
pub(crate) fn with_table_scratch<R>(f: impl FnOnce(&mut ReadScratch) -> R) -> R {
    with_scratch(|s| f(&mut s.table))
}

/// The place of a visible value.
pub(crate) enum Found<'a> {
    /// Bytes that live as long as the view or the scratch.
    Bytes(&'a [u8]),
    /// Part of a cached block.
    Cached(Block, Range<usize>),
    /// Compressed bytes that live as long.
    Packed(Packed<'a>),
    /// In a value log; the table that refers to it, when it is one.
    Pointer(ValuePointer, Option<&'a TableHandle>),
}

impl Found<'_> {
    pub(crate) fn into_pinned(self, ctx: &ReadContext) -> Result<PinnedValue> {
        match self {
            Found::Bytes(b) => Ok(PinnedValue::copy(b)),
            Found::Cached(block, range) => Ok(PinnedValue::cached(block, range)),
            Found::Packed(p) => {
                let mut value = Vec::new();
                p.append_to(&mut value)?;
                Ok(PinnedValue::from(value))
            }
            Found::Pointer(p, table) => large_value(&p, table, ctx),
        }
    }

    /// Decides an entry in a cached block and hands its visible value to `take`.
    pub(crate) fn in_block<R>(
        tag: Tag,
        (block, at): (Block, Range<usize>),
        covering: SeqNo,
        table: &TableHandle,
        ctx: &ReadContext,
        take: impl FnOnce(Found<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let Some(range) = visible(tag, &block[at.clone()], covering, ctx)? else { return Ok(None) };
        let range = at.start + range.start..at.start + range.end;
        match tag.kind() {
            Some(Kind::Put) if !tag.is_packed() => take(Found::Cached(block, range)).map(Some),
            _ => found(tag, &block[range], Some(table)).and_then(take).map(Some),
        }
    }

    /// Puts the value into an empty vector.
    fn fill(self, ctx: &ReadContext, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Found::Bytes(b) => append(out, b, "a value"),
            Found::Cached(block, range) => append(out, &block[range], "a value"),
            Found::Packed(p) => p.append_to(out),
            Found::Pointer(p, table) => match through_cache(&p, table, ctx)? {
                Some(value) => append(out, &value, "a value"),
                None => vlog_of(&p, table, ctx)?.read(&p, out),
            },
        }
    }
}

/// Whether the block cache has values of that length.
fn may_be_cached(p: &ValuePointer) -> bool {
    p.raw_len <= LONGEST_VALUE as u64
}

/// The value that a pointer names, if the block cache has it.
fn cached_value(p: &ValuePointer, find: impl FnOnce(u64, u64) -> Option<Block>) -> Option<PinnedValue> {
    let block = find(p.file_id, p.offset).filter(|block| block.len() as u64 == p.raw_len)?;
    Some(PinnedValue::cached(block, 0..p.raw_len as usize))
}

/// The value that a pointer names, from the block cache, which it enters if that takes it. One that enters is decoded into the
/// cache's memory.
fn through_cache(p: &ValuePointer, table: Option<&TableHandle>, ctx: &ReadContext) -> Result<Option<PinnedValue>> {
    let blocks = ctx.tables.blocks();
    if !may_be_cached(p) {
        return Ok(None);
    }
    if let Some(value) = cached_value(p, |file, offset| blocks.get(file, offset)) {
        return Ok(Some(value));
    }
    let len = p.raw_len as usize;
    if !blocks.admit_value(p.file_id, p.offset, len) {
        return Ok(None);
    }
    rare!("value-cached");
    let vlog = vlog_of(p, table, ctx)?;
    let block = blocks.filled(len, |out| vlog.read_into(p, out))?;
    blocks.insert(p.file_id, p.offset, block.clone());
    Ok(Some(PinnedValue::cached(block, 0..len)))
}

/// The value that a pointer names: from the block cache, or from its file.
fn large_value(p: &ValuePointer, table: Option<&TableHandle>, ctx: &ReadContext) -> Result<PinnedValue> {
    if let Some(value) = through_cache(p, table, ctx)? {
        return Ok(value);
    }
    let vlog = vlog_of(p, table, ctx)?;
    // The general allocator would ask the system for fresh pages for each large value, until it has learnt their size.
    if p.raw_len >= LARGE_VALUE as u64 && may_be_cached(p) {
        let len = p.raw_len as usize;
        let block = ctx.tables.blocks().filled(len, |out| vlog.read_into(p, out))?;
        return Ok(PinnedValue::cached(block, 0..len));
    }
    let mut value = Vec::new();
    vlog.read(p, &mut value)?;
    Ok(PinnedValue::from(value))
}

/// The value log that a pointer names; `table` holds the pointer, unless it comes from elsewhere.
pub(crate) fn vlog_of(p: &ValuePointer, table: Option<&TableHandle>, ctx: &ReadContext) -> Result<Arc<Vlog>> {
    ctx.stats.add(Stat::VlogReads, 1);
    ctx.stats.add(Stat::VlogReadBytes, p.stored_len);
    perf::count(Stage::ValueLogReads, 1);
    perf::count(Stage::ValueLogBytes, p.stored_len);
    match table {
        Some(t) => t.vlog(p.file_id),
        None => ctx.tables.vlog(p.file_id),
    }
}

/// The newest version of `key` visible at `snapshot`, or `None` when there is none, it is deleted or has expired.
///
/// # Errors
/// `Io` and `Corruption` with the file; a read that failed has answered nothing.
pub fn get(view: &View, key: &[u8], snapshot: SeqNo, ctx: &ReadContext) -> Result<Option<PinnedValue>> {
    let started = ctx.stats.start_sampled(Sampled::Get);
    let value = lookup(view, key, snapshot, ctx, |found| found.into_pinned(ctx));
    if let Ok(value) = &value {
        count(ctx, value.as_deref().map(<[u8]>::len));
    }
    ctx.finish(Histogram::Get, started, || ctx.about(key));
    value
}

/// Like [`get`], but replaces the contents of `out`. Returns whether the key has a value; without one `out` is empty.
///
/// # Errors
/// As [`get`].
pub fn get_into(view: &View, key: &[u8], snapshot: SeqNo, ctx: &ReadContext, out: &mut Vec<u8>) -> Result<bool> {
    out.clear();
    let started = ctx.stats.start_sampled(Sampled::Get);
    let found = lookup(view, key, snapshot, ctx, |found| found.fill(ctx, out)).map(|found| found.is_some());
    if let Ok(found) = &found {
        count(ctx, found.then_some(out.len()));
    }
    ctx.finish(Histogram::Get, started, || ctx.about(key));
    found
}

/// Returns whether [`get`] would find a value. Reads no value log and unpacks nothing.
///
/// # Errors
/// As [`get`].
pub fn contains(view: &View, key: &[u8], snapshot: SeqNo, ctx: &ReadContext) -> Result<bool> {
    let started = ctx.stats.start_sampled(Sampled::Get);
    let found = lookup(view, key, snapshot, ctx, |_| Ok(())).map(|found| found.is_some());
    if let Ok(found) = &found {
        count(ctx, found.then_some(0));
    }
    ctx.finish(Histogram::Get, started, || ctx.about(key));
    found
}

fn count(ctx: &ReadContext, hit: Option<usize>) {
    ctx.stats.add(Stat::Gets, 1);
    if let Some(bytes) = hit {
        ctx.stats.add(Stat::GetHits, 1);
        ctx.stats.add(Stat::BytesRead, bytes as u64);
    }
}

/// Returns what [`get`] returns if nothing needs to be read from a file for it: the key is decided by a memtable, by filters, or by blocks
/// that are in the block cache. `None`: only [`get`] can tell.
///
/// # Errors
/// `Corruption`.
#[cfg(feature = "tokio")]
pub fn get_in_memory(
    view: &View,
    key: &[u8],
    snapshot: SeqNo,
    ctx: &ReadContext,
) -> Result<Option<Option<PinnedValue>>> {
    if !view.has_ranges_in_memory() {
        return Ok(None);
    }
    let started = ctx.stats.start_unwatched(Sampled::Get);
    let blocks = ctx.tables.blocks();
    let take = |found: Found<'_>| match found {
        Found::Pointer(p, _) => Ok(cached_value(&p, |file, offset| blocks.find(file, offset))),
        found => found.into_pinned(ctx).map(Some),
    };
    let value = match with_scratch(|scratch| lookup_in_memory(view, key, snapshot, ctx, scratch, take))? {
        None | Some(Some(None)) => return Ok(None),
        Some(Some(Some(value))) => Some(value),
        Some(None) => None,
    };
    count(ctx, value.as_deref().map(<[u8]>::len));
    ctx.finish(Histogram::Get, started, || ctx.about(key));
    Ok(Some(value))
}

/// Does what [`lookup`] does; `None` when a file would have to be read.
#[cfg(feature = "tokio")]
fn lookup_in_memory<R>(
    view: &View,
    key: &[u8],
    snapshot: SeqNo,
    ctx: &ReadContext,
    scratch: &mut Scratch,
    take: impl FnOnce(Found<'_>) -> Result<R>,
) -> Result<Option<Option<R>>> {
    let covering = view.max_covering(key, snapshot)?;
    let upper = Tag::seek(snapshot);
    if let Some((tag, stored)) = view.memtables().find_map(|memtable| memtable.points().get(key, upper)) {
        return decide(tag, stored, covering, None, ctx)?.map(take).transpose().map(Some);
    }
    let head = view.order.head(key);
    // Nothing may be opened below, so tables that are not open are looked for first.
    let is_open = |slot: &FileSlot| slot.resident().is_some();
    let candidates = || view.runs.iter().flat_map(|run| &run.files[run.candidates(key, head)]);
    if !candidates().filter(|slot| !slot.is_hidden_by(covering)).all(is_open) {
        return Ok(None);
    }
    let scratch = MemoryOnly::new(scratch);
    let found = lookup_runs(view, key, (upper, covering), ctx, scratch.0, take);
    if scratch.0.table.refused() { Ok(None) } else { found.map(Some) }
}

/// A thread's scratch that reads no blocks from files until this is dropped, which is in any case: a key order may panic.
#[cfg(feature = "tokio")]
struct MemoryOnly<'a>(&'a mut Scratch);

#[cfg(feature = "tokio")]
impl<'a> MemoryOnly<'a> {
    fn new(scratch: &'a mut Scratch) -> MemoryOnly<'a> {
        scratch.table.set_memory_only(true);
        MemoryOnly(scratch)
    }
}

#[cfg(feature = "tokio")]
impl Drop for MemoryOnly<'_> {
    fn drop(&mut self) {
        self.0.table.set_memory_only(false);
    }
}

/// Finds the key and hands its visible value to `take` while the bytes are still in place.
fn lookup<R>(
    view: &View,
    key: &[u8],
    snapshot: SeqNo,
    ctx: &ReadContext,
    take: impl FnOnce(Found<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let covering = view.max_covering(key, snapshot)?;
    let upper = Tag::seek(snapshot);
    let (timer, mut searched) = (perf::begin_stage(), 0);
    let in_memory = view.memtables().find_map(|memtable| {
        searched += 1;
        memtable.points().get(key, upper)
    });
    perf::count(Stage::MemtablesSearched, searched);
    timer.end(Stage::MemtableSearchNs);
    if let Some((tag, stored)) = in_memory {
        return decide(tag, stored, covering, None, ctx)?.map(take).transpose();
    }
    if view.runs.is_empty() {
        return Ok(None);
    }
    let timer = perf::begin_stage();
    let found = with_scratch(|scratch| lookup_runs(view, key, (upper, covering), ctx, scratch, take));
    timer.end(Stage::TableSearchNs);
    found
}

pub(super) fn lookup_runs<R>(
    view: &View,
    key: &[u8],
    (upper, covering): (Tag, SeqNo),
    ctx: &ReadContext,
    scratch: &mut Scratch,
    take: impl FnOnce(Found<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let head = view.order.head(key);
    let hash = view.order.hash(key);
    if let Some(hash) = hash {
        // The filters' cache lines load while the first of them is looked at.
        for run in &view.runs {
            if let Some(table) = run.files.get(run.find(key, head)).and_then(FileSlot::resident) {
                table.prefetch(hash);
            }
        }
    }
    let mut touched = 0;
    let mut hit = None;
    'runs: for run in &view.runs {
        for slot in run.files[run.candidates(key, head)].iter().filter(|s| !s.is_hidden_by(covering)) {
            let got = slot.with(|t| t.get(key, hash, upper, &mut scratch.table))?;
            touched += 1;
            if let Some((tag, value)) = got {
                hit = Some((tag, value, slot));
                break 'runs;
            }
        }
    }
    perf::count(Stage::TablesSearched, u64::from(touched));
    scratch.until_sample -= 1;
    if scratch.until_sample == 0 {
        scratch.until_sample = SAMPLE_PERIOD;
        ctx.sample_read(touched);
    }
    let Some((tag, value, slot)) = hit else { return Ok(None) };
    match value {
        TableValue::Scratch(at) => {
            decide(tag, &scratch.table.bytes()[at], covering, Some(&slot.handle), ctx)?.map(take).transpose()
        }
        TableValue::Cached(block, at) => Found::in_block(tag, (block, at), covering, &slot.handle, ctx, take),
    }
}

/// The visible value of the entry that decides a key, if it has one.
#[inline]
pub(crate) fn decide<'a>(
    tag: Tag,
    stored: &'a [u8],
    covering: SeqNo,
    table: Option<&'a TableHandle>,
    ctx: &ReadContext,
) -> Result<Option<Found<'a>>> {
    match visible(tag, stored, covering, ctx)? {
        Some(range) => found(tag, &stored[range], table).map(Some),
        None => Ok(None),
    }
}

/// The part of a stored value behind its expiry, or `None` when the entry hides its key: a tombstone, covered by a range
/// tombstone, or expired.
#[inline]
pub(crate) fn visible(tag: Tag, stored: &[u8], covering: SeqNo, ctx: &ReadContext) -> Result<Option<Range<usize>>> {
    if tag.is_tombstone() || tag.seq() < covering {
        return Ok(None);
    }
    if !tag.has_expiry() {
        return Ok(Some(0..stored.len()));
    }
    let (expiry, value) = split_expiry(tag, stored).ok_or_else(|| short_expiry(tag))?;
    Ok((!ctx.expired(expiry)).then(|| stored.len() - value.len()..stored.len()))
}

#[cold]
fn short_expiry(tag: Tag) -> Error {
    Error::corruption(format!("entry {tag:?} is too short to hold its expiry"))
}

/// Returns what the value of a live entry is.
#[inline]
pub(super) fn found<'a>(tag: Tag, value: &'a [u8], table: Option<&'a TableHandle>) -> Result<Found<'a>> {
    match tag.kind() {
        Some(Kind::Put) if tag.is_packed() => Packed::parse(value).map(Found::Packed),
        Some(Kind::Put) => Ok(Found::Bytes(value)),
        Some(Kind::PutPointer) => {
            let p = ValuePointer::decode(value).ok_or_else(|| Error::corruption("damaged pointer into a value log"))?;
            Ok(Found::Pointer(p, table))
        }
        _ => Err(Error::corruption(format!("entry {tag:?} is of a kind that a table cannot hold"))),
    }
}
