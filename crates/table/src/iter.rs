//! The cursor over a table.
//!
//! State: either no block is loaded, or block `block` is (pinned in the cache, or in the cursor's own buffers); `valid`
//! says whether the cursor is on entry `at` of it. A block stays loaded when the cursor runs off an end, so that a seek
//! near by finds it. Every error unloads the block and leaves the cursor invalid.

use crate::block::{Entry, Layout, Passed};
use crate::frame::Handle;
use crate::reader::{ReadScratch, Stamp, Table};
use kingtide_base::key::head_be;
use kingtide_base::{Error, Result, Tag};
use kingtide_mem::cache::Block;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// No block is loaded.
const NONE: usize = usize::MAX;

/// Steps to the next block before a cursor reads ahead by itself.
const STREAK: u32 = 2;

/// The first span that a cursor reads ahead by itself, in bytes: most ranges end soon.
const SPAN_FIRST: u64 = 8 << 10;
/// The first span of a cursor that was asked to read ahead, and the longest.
const SPAN_MIN: u64 = 32 << 10;
const SPAN_MAX: u64 = 256 << 10;

/// How a cursor reads.
#[derive(Clone, Copy, Debug)]
pub struct IterOptions {
    /// Whether blocks that it touches a second time soon may enter the block cache.
    pub fill_cache: bool,
    /// Read long spans from the start, past the block cache: for merges and full scans.
    pub readahead: bool,
}

impl Default for IterOptions {
    fn default() -> Self {
        IterOptions { fill_cache: true, readahead: false }
    }
}

fn first_span(opts: IterOptions) -> u64 {
    if opts.readahead { SPAN_MIN } else { SPAN_FIRST }
}

/// What [`TableIter::walk_block`] does after it has offered an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// The cursor does not move to the entry, and the walk ends.
    Refused,
    /// The cursor moves to the entry, and the next one is offered.
    Taken,
    /// The cursor moves to the entry, and the walk ends.
    TakenLast,
}

/// A cursor over a table, in both directions. Moves return an error and leave the cursor invalid when a block cannot be
/// read; [`TableIter::key`] and [`TableIter::value`] point into the current block.
pub struct TableIter {
    table: Arc<Table>,
    /// The table's own.
    stamp: Stamp,
    opts: IterOptions,
    valid: bool,
    at: usize,
    entry: Entry,
    layout: Layout,
    /// Of the loaded block. None before the first step back: most cursors only go forward, and these are a quarter of a KiB.
    passed: Option<Box<Passed>>,
    block: usize,
    cached: Option<Block>,
    scratch: ReadScratch,
    /// Blocks read ahead, in `span_buf`.
    span: Range<usize>,
    /// Where the first of them is.
    span_at: u64,
    span_buf: Vec<u8>,
    next_span: u64,
    /// Steps to the next block since the last seek that left the loaded block.
    streak: u32,
    /// The streak before that seek. The next one is probably about as long: most programs read ranges of one length again and again.
    habit: u32,
}

impl Table {
    /// A cursor, not yet positioned.
    pub fn iter(self: &Arc<Table>, opts: IterOptions) -> TableIter {
        TableIter::new(Arc::clone(self), opts)
    }
}

impl TableIter {
    fn new(table: Arc<Table>, opts: IterOptions) -> TableIter {
        TableIter {
            stamp: table.stamp(),
            table,
            opts,
            valid: false,
            at: 0,
            entry: Entry::EMPTY,
            layout: Layout::default(),
            passed: None,
            block: NONE,
            cached: None,
            scratch: ReadScratch::new().pass_by_cache(opts.readahead || !opts.fill_cache),
            span: 0..0,
            span_at: 0,
            span_buf: Vec::new(),
            next_span: first_span(opts),
            streak: 0,
            habit: 0,
        }
    }

    /// Goes over to another table, not yet positioned: a cursor on it with the buffers of this one.
    pub fn reset(&mut self, table: Arc<Table>) {
        self.stamp = table.stamp();
        self.table = table;
        self.valid = false;
        self.block = NONE;
        self.cached = None;
        self.span = 0..0;
        // The streak and the span's length stay: a run's files follow one another.
    }

    /// About the bytes that a cursor with [`IterOptions::readahead`] holds besides the table.
    pub const READAHEAD_MEMORY: u64 = SPAN_MAX + (64 << 10);

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Whether the cursor is on an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// The user key; only when valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.entry.key(self.raw())
    }

    /// The tag; only when valid.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.stamp.seen(self.entry.tag)
    }

    /// The stored value; only when valid.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.entry.value(self.raw())
    }

    /// [`kingtide_base::KeyOrder::head`] of the key; only when valid.
    #[inline]
    pub fn head(&self) -> u64 {
        self.table.order().head(self.key())
    }

    /// The cached block that holds the current entry, and where its value is there: a caller can keep it beyond the
    /// cursor's next move without copying. `None` when the block is in the cursor's own buffer.
    pub fn pinned(&self) -> Option<(&Block, Range<usize>)> {
        self.cached.as_ref().map(|b| (b, self.entry.value_range()))
    }

    /// Checks the loaded block.
    pub(crate) fn check_block(&self) -> Result<()> {
        self.layout.check(self.raw()).map_err(|e| self.table.at_block(e, self.block))
    }

    pub(crate) fn block_number(&self) -> usize {
        self.block
    }

    #[inline]
    fn raw(&self) -> &[u8] {
        match &self.cached {
            Some(block) => block,
            None => self.scratch.bytes(),
        }
    }

    /// To the first entry.
    ///
    /// # Errors
    /// `Corruption` with file and offset, `Io`; so for every move.
    pub fn first(&mut self) -> Result<()> {
        self.valid = false;
        if self.table.blocks() == 0 {
            return Ok(());
        }
        self.load(0)?;
        self.set(0)
    }

    /// To the last entry.
    ///
    /// # Errors
    /// As [`TableIter::first`].
    pub fn last(&mut self) -> Result<()> {
        self.valid = false;
        if self.table.blocks() == 0 {
            return Ok(());
        }
        self.load(self.table.blocks() - 1)?;
        self.set_back(self.layout.count() - 1)
    }

    /// To the next entry; invalid after the last one.
    ///
    /// # Errors
    /// As [`TableIter::first`].
    #[allow(clippy::should_implement_trait)] // a cursor: it lends its entries, which the trait cannot
    #[inline]
    pub fn next(&mut self) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        let i = self.at + 1;
        if i >= self.layout.count() {
            return self.next_block();
        }
        match self.layout.entry_after(self.raw(), &self.entry, i) {
            Ok(e) => {
                self.entry = e;
                self.at = i;
                Ok(())
            }
            Err(e) => Err(self.fail(e)),
        }
    }

    /// Moves to the next entry if that is in the loaded block and has another key, and returns the head of this key. `head` is that of the
    /// current one. Otherwise the cursor stays, and [`TableIter::next`] says what follows. Only while valid, and for the bytewise order.
    #[inline]
    pub fn next_at_hand(&mut self, head: u64) -> Option<u64> {
        let i = self.at + 1;
        if i >= self.layout.count() {
            return None;
        }
        let raw = match &self.cached {
            Some(block) => block,
            None => self.scratch.bytes(),
        };
        let next = self.layout.entry_after(raw, &self.entry, i).ok()?;
        let key = next.key(raw);
        let next_head = head_be(key);
        if next_head == head && key == self.entry.key(raw) {
            return None;
        }
        (self.at, self.entry) = (i, next);
        Some(next_head)
    }

    /// Offers `pass` the entries after the current one in the loaded block, with the heads of their keys, and moves to each one that it
    /// takes. The walk ends before an entry that `pass` refuses, before one with the same key as its predecessor, before a damaged one, for
    /// which [`TableIter::next`] returns the error, and at the end of the block. Only for the bytewise order.
    #[inline]
    pub fn walk_block(&mut self, mut pass: impl FnMut(u64, &[u8], Tag, &[u8]) -> Offered) {
        if !self.valid {
            return;
        }
        let raw = match &self.cached {
            Some(block) => block,
            None => self.scratch.bytes(),
        };
        let (mut at, mut entry) = (self.at, self.entry);
        let mut last = head_be(entry.key(raw));
        while at + 1 < self.layout.count() {
            let Ok(next) = self.layout.entry_after(raw, &entry, at + 1) else { break };
            let key = next.key(raw);
            let head = head_be(key);
            if head == last && key == entry.key(raw) {
                break;
            }
            let offered = pass(head, key, self.stamp.seen(next.tag), next.value(raw));
            if offered == Offered::Refused {
                break;
            }
            (at, entry, last) = (at + 1, next, head);
            if offered == Offered::TakenLast {
                break;
            }
        }
        (self.at, self.entry) = (at, entry);
    }

    #[inline(never)]
    fn next_block(&mut self) -> Result<()> {
        self.valid = false;
        if self.block + 1 >= self.table.blocks() {
            return Ok(());
        }
        self.streak = self.streak.saturating_add(1);
        self.load(self.block + 1)?;
        self.set(0)
    }

    /// To the previous entry; invalid before the first one.
    ///
    /// # Errors
    /// As [`TableIter::first`].
    #[inline]
    pub fn prev(&mut self) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        if self.at > 0 {
            return self.set_back(self.at - 1);
        }
        self.valid = false;
        self.streak = 0;
        if self.block == 0 {
            return Ok(());
        }
        self.load(self.block - 1)?;
        self.set_back(self.layout.count() - 1)
    }

    /// To the first entry that is not before (`key`, `tag`).
    ///
    /// # Errors
    /// As [`TableIter::first`].
    pub fn seek(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        let tag = self.stamp.stored(tag);
        if self.block != NONE {
            match self.seek_in_block(key, tag) {
                Ok(Some((i, e))) => {
                    self.set_to(i, e);
                    return Ok(());
                }
                Ok(None) => {}
                Err(e) => return Err(self.fail(e)),
            }
        }
        self.valid = false;
        self.reset_streak();
        let blocks = self.locate(key)?;
        let Some(mut b) = self.narrow(blocks, key, tag)? else { return Ok(()) };
        loop {
            self.load(b)?;
            if let Some((i, e)) = self.search(key, tag)? {
                self.set_to(i, e);
                return Ok(());
            }
            b += 1;
            if b >= self.table.blocks() {
                return Ok(());
            }
        }
    }

    /// To the last entry that is before (`key`, `tag`).
    ///
    /// # Errors
    /// As [`TableIter::first`]. `Corruption` too if the index leads to an entry that is not before it: a walk that steps back over a range
    /// until it is before that would never end.
    pub fn seek_lt(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        let tag = self.stamp.stored(tag);
        self.go_before(key, tag)?;
        let order = self.table.order();
        let went_back = |e: &Entry| order.compare(e.key(self.raw()), key).then(tag.cmp(&e.tag)).is_lt();
        if self.valid && !went_back(&self.entry) {
            return Err(self.fail(Error::corruption("the index leads to a wrong block")));
        }
        Ok(())
    }

    fn go_before(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        self.valid = false;
        self.reset_streak();
        let blocks = self.locate(key)?;
        let Some(mut b) = self.narrow(blocks, key, tag)? else { return self.last() };
        let i = loop {
            self.load(b)?;
            let i = self.search(key, tag)?.map_or(self.layout.count(), |(i, _)| i);
            // At the block's end the answer is its last entry, unless the next block begins before the target too.
            if i < self.layout.count() || b + 1 == self.table.blocks() || self.closes(key)? {
                break i;
            }
            b += 1;
        };
        if i > 0 {
            return self.set(i - 1);
        }
        if b == 0 {
            return Ok(());
        }
        self.load(b - 1)?;
        self.set(self.layout.count() - 1)
    }

    /// Whether entries after the loaded block, which ends before `key`, are certainly not before `key`.
    fn closes(&mut self, key: &[u8]) -> Result<bool> {
        if !self.table.is_exact() {
            return Ok(false);
        }
        match self.layout.entry(self.raw(), self.layout.count() - 1) {
            Ok(last) => Ok(self.table.order().compare(last.key(self.raw()), key).is_ne()),
            Err(e) => Err(self.fail(e)),
        }
    }

    /// The blocks in which `key` can be.
    #[inline]
    fn locate(&mut self, key: &[u8]) -> Result<Range<usize>> {
        let found = self.table.locate(key, &mut self.scratch);
        if found.is_err() {
            self.block = NONE;
        }
        found
    }

    /// The answer to a seek if it is certainly in the loaded block: an entry that is not before the target, behind one that
    /// is. A target below the first entry may belong to an earlier block.
    fn seek_in_block(&self, key: &[u8], tag: Tag) -> Result<Option<(usize, Entry)>> {
        let raw = self.raw();
        let order = self.table.order();
        let before = |e: &Entry| order.compare(e.key(raw), key).then(tag.cmp(&e.tag)).is_lt();
        if self.valid && before(&self.entry) {
            // Forward: very often the next entry is the answer.
            let i = self.at + 1;
            if i >= self.layout.count() {
                return Ok(None);
            }
            let next = self.layout.entry_after(raw, &self.entry, i)?;
            if !before(&next) {
                return Ok(Some((i, next)));
            }
        } else {
            let first = self.layout.entry(raw, 0)?;
            let starts_after = order.compare(first.key(raw), key).then(tag.cmp(&first.tag)) == Ordering::Greater;
            if starts_after && self.block != 0 {
                return Ok(None);
            }
        }
        self.layout.lower_bound(raw, order, key, tag)
    }

    /// The block to look into first; `None` when the target is past all keys.
    fn narrow(&mut self, blocks: Range<usize>, key: &[u8], tag: Tag) -> Result<Option<usize>> {
        let (mut lo, mut hi) = (blocks.start, blocks.end);
        if lo == hi {
            return Ok(None);
        }
        while hi - lo > 1 {
            let mid = lo + (hi - lo - 1) / 2;
            self.load(mid)?;
            match self.table.ends_before(self.raw(), key, tag) {
                Ok(true) => lo = mid + 1,
                Ok(false) => hi = mid + 1,
                Err(e) => return Err(self.fail(e)),
            }
        }
        Ok(Some(lo))
    }

    fn search(&mut self, key: &[u8], tag: Tag) -> Result<Option<(usize, Entry)>> {
        self.layout.lower_bound(self.raw(), self.table.order(), key, tag).map_err(|e| self.fail(e))
    }

    /// To entry `i` of the loaded block.
    #[inline]
    fn set(&mut self, i: usize) -> Result<()> {
        match self.layout.entry(self.raw(), i) {
            Ok(e) => {
                self.set_to(i, e);
                Ok(())
            }
            Err(e) => Err(self.fail(e)),
        }
    }

    /// The same on the way back.
    #[inline]
    fn set_back(&mut self, i: usize) -> Result<()> {
        let raw = match &self.cached {
            Some(block) => block,
            None => self.scratch.bytes(),
        };
        let passed = self.passed.get_or_insert_with(|| Box::new(Passed::NONE));
        match self.layout.entry_back(raw, i, passed) {
            Ok(e) => {
                self.set_to(i, e);
                Ok(())
            }
            Err(e) => Err(self.fail(e)),
        }
    }

    /// To entry `i` of the loaded block, which was read.
    #[inline]
    fn set_to(&mut self, i: usize, entry: Entry) {
        self.entry = entry;
        self.at = i;
        self.valid = true;
    }

    #[cold]
    fn fail(&mut self, e: Error) -> Error {
        let e = if self.block == NONE { e } else { self.table.at_block(e, self.block) };
        self.valid = false;
        self.block = NONE;
        e
    }

    fn reset_streak(&mut self) {
        self.habit = std::mem::take(&mut self.streak);
        self.next_span = first_span(self.opts);
    }

    /// Loads block `i`, unless it is the loaded one.
    fn load(&mut self, i: usize) -> Result<()> {
        if self.block == i {
            return Ok(());
        }
        self.valid = false;
        self.block = NONE;
        self.cached = None;
        if let Some(passed) = &mut self.passed {
            passed.clear();
        }
        let handle = self.table.handle(i, &mut self.scratch)?;
        if !self.opts.readahead
            && let Some(block) = self.table.cache().get(self.table.cache_id(), handle.offset)
        {
            self.layout = Layout::parse(&block).map_err(|e| self.table.at_block(e, i))?;
            self.cached = Some(block);
            self.block = i;
            return Ok(());
        }
        let goes_on = self.streak > 0 && self.streak.max(self.habit) >= STREAK;
        if self.opts.readahead || goes_on || self.span.contains(&i) {
            self.load_from_span(i, handle)?;
        } else {
            self.table.load_at(handle, i, &mut self.scratch)?;
        }
        // Of what is read ahead, too, since a walk that is made again would decompress it again. A walk over much fills what
        // is free of the cache, and after that only blocks get in that were asked for before.
        if self.opts.fill_cache && !self.opts.readahead {
            self.table.offer(handle.offset, self.scratch.bytes());
        }
        self.layout = self.scratch.layout();
        self.block = i;
        Ok(())
    }

    /// Loads block `i` out of the span, after reading one that begins with it if need be.
    fn load_from_span(&mut self, i: usize, handle: Handle) -> Result<()> {
        if !self.span.contains(&i) {
            self.read_span_from(i, handle)?;
        }
        let from = (handle.offset - self.span_at) as usize;
        let frame = &self.span_buf[from..from + handle.len as usize];
        self.scratch
            .unpack_from(frame, self.table.written_as(), handle.offset, self.table.dictionary())
            .map_err(|e| self.table.at_block(e, i))
    }

    /// Reads a span that begins with block `i`. It ends with a partition of the index, if not before.
    fn read_span_from(&mut self, i: usize, handle: Handle) -> Result<()> {
        let mut most = self.table.parts().map_or(self.table.blocks(), |p| p.end_of(i));
        let mut most_bytes = self.next_span;
        let is_usual = (1..=self.habit).contains(&self.streak) && !self.opts.readahead;
        if is_usual {
            // What is left of the usual walk, and one block more, since walks of one length touch a block more or less. If this one is
            // shorter, blocks are read that it does not need, which costs little beside what the last walk did.
            most = most.min(i.saturating_add((self.habit - self.streak) as usize + 2));
            most_bytes = SPAN_MAX;
        }
        let (start, mut len, mut end) = (handle.offset, u64::from(handle.len), i + 1);
        while end < most {
            let next = self.table.handle(end, &mut self.scratch)?;
            if len + u64::from(next.len) > most_bytes {
                break;
            }
            (len, end) = (len + u64::from(next.len), end + 1);
        }
        self.span = 0..0;
        self.table.read_span(end - i, start, len as usize, &mut self.span_buf)?;
        (self.span, self.span_at) = (i..end, start);
        // A walk that is longer than usual goes on with a short span.
        if !is_usual {
            self.next_span = (self.next_span * 2).min(SPAN_MAX);
        }
        Ok(())
    }
}
