//! The cursor over a family: what is visible at one sequence number, in key order, both ways.
//!
//! Forward, the merge stands on the entry that is shown, and key and value are borrowed from it. Backward, the versions
//! of a key come oldest first, so the merge has to pass all of them to know the newest visible one: it stands before the
//! shown key, and key and value are copies. A change of direction is a seek of the merge to the shown key, so nothing is
//! lost or shown twice whatever the sources hold around it.

use crate::family::ReadContext;
use crate::family::View;
use crate::rangedel::{RangeTombstones, SpanCursor};
use crate::read::get::{visible, vlog_of};
use crate::read::level::RunIter;
use crate::read::merge::{Merge, Source};
use crate::read::overlay::{Overlay, Own, OwnIter};
use kingtide_base::clock::time_of_unix_ms;
use kingtide_base::histogram::Histogram;
use kingtide_base::key::split_expiry;
use kingtide_base::memory::append;
use kingtide_base::sample::{self, Sampled, is_chosen, unchosen};
use kingtide_base::stats::{Started, Stat};
use kingtide_base::{Error, KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_table::{IterOptions, Offered, Packed, ReadAhead, ValuePointer};
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

/// Versions of one key that are stepped over one by one; past it the merge seeks to the end of them.
const STEPS_BEFORE_SEEK: u32 = 16;

/// Single steps of a walk after [`Cursor::walk_block`] found no entry to show, before the walk tries it again. Where values expire or are large, or
/// entries alternate between sources, trying costs a little and gains nothing.
const STEPS_ALONE: u32 = 4;

/// What an iterator shows.
#[derive(Clone, Debug)]
pub struct CursorConfig {
    /// Entries with a greater sequence number do not exist for it.
    pub snapshot: SeqNo,
    /// Keys before this are not shown.
    pub lower: Bound<Vec<u8>>,
    /// Keys after this bound are not shown.
    pub upper: Bound<Vec<u8>>,
    /// Only keys with this prefix are shown, if there is one.
    pub prefix: Option<Vec<u8>>,
    /// Whether blocks that it reads may enter the block cache.
    pub fill_cache: bool,
    /// Whether it reads ahead: for long scans.
    pub readahead: bool,
}

impl CursorConfig {
    /// All keys, as of `snapshot`.
    pub fn at(snapshot: SeqNo) -> CursorConfig {
        CursorConfig {
            snapshot,
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            prefix: None,
            fill_cache: true,
            readahead: false,
        }
    }
}

/// One end of the keys that are shown.
struct Limit {
    key: Vec<u8>,
    head: u64,
    inclusive: bool,
}

impl Limit {
    fn new(order: &KeyOrder, bound: Bound<Vec<u8>>) -> Option<Limit> {
        let (key, inclusive) = match bound {
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
            Bound::Unbounded => return None,
        };
        Some(Limit { head: order.head(&key), key, inclusive })
    }

    /// Returns how `key` lies to the limit, except that the limit itself counts as `Equal` only when it is inclusive; otherwise
    /// it counts as `outside`.
    #[inline]
    fn compare(&self, order: &KeyOrder, key: &[u8], head: u64, outside: Ordering) -> Ordering {
        match head.cmp(&self.head).then_with(|| order.compare(key, &self.key)) {
            Ordering::Equal if !self.inclusive => outside,
            other => other,
        }
    }
}

/// Where the shown entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    /// Nowhere: the iterator is invalid.
    Nothing,
    /// The merge's current entry.
    Current,
    /// In `saved_key` and `saved_value`; the merge stands before it.
    Saved,
}

/// Walks over the keys of a family in their order, both ways, and seeks. It lends key and value without a copy;
/// [`ColumnFamily::range`](crate::ColumnFamily::range) is an iterator instead. It owns the data that it reads, so it may outlive the handle that created it; it keeps
/// memtables and tables alive until it is dropped or refreshed.
///
/// It starts invalid: position it with one of the seeks. After an error it stays invalid and [`Cursor::status`] returns
/// the error.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// for (key, value) in [("ebb", "low"), ("flood", "rising"), ("spring", "highest")] {
///     db.put(key, value)?;
/// }
/// let mut cursor = db.cursor("e".."s")?;
/// assert_eq!(cursor.snapshot(), db.snapshot().sequence(), "as of now");
/// cursor.seek_to_first();
/// assert_eq!(cursor.key(), b"ebb");
/// assert_eq!(cursor.value()?, b"low");
/// cursor.seek(b"f"); // the first key that is not before it
/// assert_eq!(cursor.key(), b"flood");
/// cursor.next();
/// assert!(!cursor.valid(), "off the end of the range");
/// cursor.status()?; // that, and no error
///
/// cursor.seek_for_prev(b"f"); // the last key at or before it
/// assert_eq!(cursor.key(), b"ebb");
/// cursor.prev();
/// assert!(!cursor.valid());
/// db.put("current", "strong")?;
/// db.put("eddy", "round")?;
/// db.default_family().refresh(&mut cursor)?; // it shows what was committed since
/// cursor.seek_to_last();
/// let mut keys = vec![cursor.key().to_vec()];
/// cursor.walk(false, |key, _value, _expires| {
///     keys.push(key.to_vec());
///     true
/// });
/// assert_eq!(keys, [&b"flood"[..], b"eddy", b"ebb"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cursor {
    merge: Merge,
    view: Arc<View>,
    ctx: Arc<ReadContext>,
    options: IterOptions,
    snapshot: SeqNo,
    lower: Option<Limit>,
    upper: Option<Limit>,
    /// What its transaction wrote, if it is one's.
    overlay: Option<Arc<Overlay>>,
    /// Range tombstones of all sources; mostly none.
    ranges: Vec<RangeSet>,
    shown: Shown,
    shown_tag: Tag,
    saved_key: Vec<u8>,
    saved_value: Vec<u8>,
    /// A value read from a value log or decompressed, while `indirect_read`.
    indirect: Vec<u8>,
    indirect_read: bool,
    read_ahead: ReadAhead,
    error: Option<Error>,
    counts: Counts,
    skips: Skips,
    /// Steps of [`Cursor::walk`] that [`Cursor::walk_block`] took.
    #[cfg(test)]
    pub(crate) walked_in_block: u64,
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor(as of {}, {:?})", self.snapshot, self.shown)
    }
}

/// The keys that a cursor may pass without showing one.
struct Skips {
    left: u64,
    /// It gave up, and did not go on since.
    stopped: Option<Stopped>,
}

/// Where a cursor gave up.
#[derive(Clone, Copy)]
struct Stopped {
    /// The head of `saved_key`, if more entries of that may come and are to be passed.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    passed: Option<u64>,
}

impl Skips {
    /// Counts a key. True if there were enough.
    #[inline]
    fn give_up(&mut self, passed: Option<u64>) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.stopped = Some(Stopped { passed });
        }
        self.left == 0
    }
}

/// Counters kept here and handed over in batches: an atomic addition would cost as much as a step.
#[derive(Default)]
struct Counts {
    seeks: u64,
    steps: u64,
    skipped: u64,
}

impl Cursor {
    /// An iterator over `view`, and over `overlay` in front of it: what the transaction that reads wrote itself. Opens no
    /// table unless the view has range tombstones.
    ///
    /// # Errors
    /// `InvalidArgument` for a prefix in an order that does not support prefix iteration; `Io` and `Corruption`
    /// from tables with range tombstones.
    pub(crate) fn new(
        view: Arc<View>,
        ctx: Arc<ReadContext>,
        config: CursorConfig,
        overlay: Option<Arc<Overlay>>,
    ) -> Result<Cursor> {
        let order = &view.order;
        let mut lower = Limit::new(order, config.lower);
        let mut upper = Limit::new(order, config.upper);
        if let Some(prefix) = &config.prefix {
            let [from, to] = prefix_range(order, prefix)?;
            lower = tighter(order, lower, Limit::new(order, from), Ordering::Greater);
            upper = tighter(order, upper, Limit::new(order, to), Ordering::Less);
        }
        let options = IterOptions { fill_cache: config.fill_cache, readahead: config.readahead };
        Ok(Cursor {
            merge: sources(&view, overlay.as_ref(), config.snapshot, options),
            ranges: ranges(&view, overlay.as_ref())?,
            overlay,
            view,
            ctx,
            options,
            snapshot: config.snapshot,
            lower,
            upper,
            shown: Shown::Nothing,
            shown_tag: Tag(0),
            saved_key: Vec::new(),
            saved_value: Vec::new(),
            indirect: Vec::new(),
            indirect_read: false,
            read_ahead: ReadAhead::default(),
            error: None,
            counts: Counts::default(),
            skips: Skips { left: u64::MAX, stopped: None },
            #[cfg(test)]
            walked_in_block: 0,
        })
    }

    /// Returns whether all that it shows is in memtables.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_in_memory(&self) -> bool {
        self.view.runs.is_empty() && self.view.memtables().all(|m| m.direct().bytes() == 0)
    }

    /// Another cursor over the same range of the same view, as of the same moment. It starts invalid.
    ///
    /// # Errors
    /// As [`Cursor::new`].
    pub(crate) fn another(&self) -> Result<Cursor> {
        let bound = |limit: &Option<Limit>| match limit {
            None => Bound::Unbounded,
            Some(limit) if limit.inclusive => Bound::Included(limit.key.clone()),
            Some(limit) => Bound::Excluded(limit.key.clone()),
        };
        let config = CursorConfig {
            snapshot: self.snapshot,
            lower: bound(&self.lower),
            upper: bound(&self.upper),
            prefix: None, // it is in the bounds
            fill_cache: self.options.fill_cache,
            readahead: self.options.readahead,
        };
        Cursor::new(self.view.clone(), self.ctx.clone(), config, self.overlay.clone())
    }

    /// Moves to a newer view, snapshot and overlay, clears an error, and becomes invalid. Bounds stay.
    ///
    /// # Errors
    /// As [`Cursor::new`].
    pub(crate) fn refresh(&mut self, view: Arc<View>, snapshot: SeqNo, overlay: Option<Arc<Overlay>>) -> Result<()> {
        self.hide();
        self.ranges = ranges(&view, overlay.as_ref())?;
        self.merge = sources(&view, overlay.as_ref(), snapshot, self.options);
        self.overlay = overlay;
        self.view = view;
        self.snapshot = snapshot;
        self.error = None;
        self.skips.stopped = None;
        Ok(())
    }

    /// Makes it stop, invalid and without an error, once it passed `most` more keys whose entries are deleted or invisible.
    pub(crate) fn limit_skips(&mut self, most: u64) {
        self.skips.left = most;
    }

    /// Returns whether it stopped for that.
    pub(crate) fn gave_up(&self) -> bool {
        self.skips.stopped.is_some()
    }

    /// Goes on where it gave up, in the direction in which it went.
    #[cfg(feature = "tokio")]
    pub(crate) fn resume(&mut self, forward: bool) {
        let Some(Stopped { passed }) = self.skips.stopped.take() else { return };
        let found = if forward { self.find_forward(passed) } else { self.find_backward() };
        if let Err(e) = found {
            self.fail(e);
        }
    }

    /// Returns whether it was made with this context: by the same family.
    pub(crate) fn is_of(&self, ctx: &Arc<ReadContext>) -> bool {
        Arc::ptr_eq(&self.ctx, ctx)
    }

    /// The sequence number as of which it shows the family.
    pub fn snapshot(&self) -> SeqNo {
        self.snapshot
    }

    /// Returns whether it is at an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.shown != Shown::Nothing
    }

    /// The error that stopped it, if any. Check it when a loop ends because [`Cursor::valid`] is false.
    ///
    /// # Errors
    /// The first error that a move or [`Cursor::value`] met.
    pub fn status(&self) -> Result<()> {
        self.error.as_ref().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// The key. Empty while invalid.
    #[inline(always)]
    pub fn key(&self) -> &[u8] {
        match self.shown {
            Shown::Current => self.merge.top().key(),
            Shown::Saved => &self.saved_key,
            Shown::Nothing => &[],
        }
    }

    /// The value; read from its value log, or decompressed, on the first call at an entry.
    ///
    /// # Errors
    /// `InvalidArgument` while invalid; `Io` and `Corruption` from the value log, which also invalidate the iterator.
    #[inline]
    pub fn value(&mut self) -> Result<&[u8]> {
        if self.shown == Shown::Nothing {
            return Err(self.no_entry());
        }
        if self.shown_tag.is_indirect() {
            return self.indirect_value();
        }
        Ok(self.stored())
    }

    /// Key and value together: [`Cursor::value`] borrows the iterator mutably, so the key could not be held across it.
    ///
    /// # Errors
    /// As [`Cursor::value`].
    #[inline]
    pub fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        self.value()?;
        let value = if self.indirect_read { &self.indirect } else { self.stored() };
        Ok((self.key(), value))
    }

    /// Returns when the entry expires; `None` if it does not, and while invalid.
    pub fn expires_at(&self) -> Option<SystemTime> {
        let stored = match self.shown {
            Shown::Current => self.merge.top().value(),
            Shown::Saved => &self.saved_value,
            Shown::Nothing => return None,
        };
        split_expiry(self.shown_tag, stored)?.0.map(time_of_unix_ms)
    }

    #[cold]
    fn no_entry(&self) -> Error {
        match &self.error {
            Some(e) => e.clone(),
            None => Error::invalid("the cursor is at no entry"),
        }
    }

    /// The stored value without its expiry.
    #[inline(always)]
    fn stored(&self) -> &[u8] {
        let stored = match self.shown {
            Shown::Current => self.merge.top().value(),
            _ => &self.saved_value,
        };
        // That the expiry is complete was checked when the entry was shown.
        if self.shown_tag.has_expiry() { stored.get(kingtide_base::key::EXPIRY_LEN..).unwrap_or(&[]) } else { stored }
    }

    fn indirect_value(&mut self) -> Result<&[u8]> {
        if !self.indirect_read
            && let Err(e) = self.read_indirect()
        {
            self.fail(e.clone());
            return Err(e);
        }
        Ok(&self.indirect)
    }

    fn read_indirect(&mut self) -> Result<()> {
        if self.shown_tag.is_packed() {
            let mut value = std::mem::take(&mut self.indirect);
            value.clear();
            Packed::parse(self.stored())?.append_to(&mut value)?;
            self.indirect = value;
            self.indirect_read = true;
            return Ok(());
        }
        let p =
            ValuePointer::decode(self.stored()).ok_or_else(|| Error::corruption("damaged pointer into a value log"))?;
        let table = match (self.shown, self.merge.valid().then(|| self.merge.top())) {
            (Shown::Current, Some(Source::Run(run))) => Some(&*run.slot().handle),
            // Backward, the merge has left the entry's table; the view keeps the value log all the same.
            _ => None,
        };
        vlog_of(&p, table, &self.ctx)?.read_near(&p, &mut self.read_ahead, &mut self.indirect)?;
        self.indirect_read = true;
        Ok(())
    }

    /// Moves to the first key.
    pub fn seek_to_first(&mut self) {
        let Some(started) = self.begin_seek() else { return };
        let moved = match &self.lower {
            // Behind all versions of an excluded bound.
            Some(limit) if !limit.inclusive => self.merge.seek(&limit.key, Tag(0)),
            Some(limit) => self.merge.seek(&limit.key, Tag::seek(self.snapshot)),
            None => self.merge.first(),
        };
        self.show_forward(moved, started);
    }

    /// Moves to the last key.
    pub fn seek_to_last(&mut self) {
        let Some(started) = self.begin_seek() else { return };
        let moved = match &self.upper {
            Some(limit) if limit.inclusive => self.merge.seek_lt(&limit.key, Tag(0)),
            Some(limit) => self.merge.seek_lt(&limit.key, Tag(u64::MAX)),
            None => self.merge.last(),
        };
        self.show_backward(moved, started);
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        let order = &self.view.order;
        if let Some(limit) = &self.lower
            && limit.compare(order, key, order.head(key), Ordering::Less).is_lt()
        {
            return self.seek_to_first();
        }
        let Some(started) = self.begin_seek() else { return };
        let moved = self.merge.seek(key, Tag::seek(self.snapshot));
        self.show_forward(moved, started);
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        let order = &self.view.order;
        if let Some(limit) = &self.upper
            && limit.compare(order, key, order.head(key), Ordering::Greater).is_gt()
        {
            return self.seek_to_last();
        }
        let Some(started) = self.begin_seek() else { return };
        let moved = self.merge.seek_lt(key, Tag(0));
        self.show_backward(moved, started);
    }

    /// Moves to the next key. Does nothing while invalid.
    #[inline]
    #[allow(clippy::should_implement_trait)] // a cursor; `range` gives an iterator
    pub fn next(&mut self) {
        if is_chosen(Sampled::Next) { self.timed(Cursor::step_forward) } else { self.step_forward() }
    }

    #[inline]
    fn step_forward(&mut self) {
        if self.shown == Shown::Current && self.merge.next_at_hand() {
            self.counts.steps += 1;
            self.hide();
            if let Err(e) = self.find_forward(None) {
                self.fail(e);
            }
            return;
        }
        self.step_by_key();
    }

    /// The same where keys have to be compared, or a block read.
    #[inline(never)]
    fn step_by_key(&mut self) {
        let head = match self.shown {
            Shown::Nothing => return,
            Shown::Current => {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(self.merge.top().key());
                // Not from the copy: to load what was stored just now, in other pieces, makes the processor wait.
                self.merge.head()
            }
            Shown::Saved => {
                if let Err(e) = self.merge.seek(&self.saved_key, Tag(0)) {
                    return self.fail(e);
                }
                self.view.order.head(&self.saved_key)
            }
        };
        self.counts.steps += 1;
        let turned = self.shown == Shown::Saved;
        self.hide();
        let moved = if turned { Ok(()) } else { self.merge.next_key() };
        if let Err(e) = moved.and_then(|()| self.find_forward(Some(head))) {
            self.fail(e);
        }
    }

    /// Moves to the previous key. Does nothing while invalid.
    pub fn prev(&mut self) {
        if is_chosen(Sampled::Next) { self.timed(Cursor::step_backward) } else { self.step_backward() }
    }

    #[cold]
    fn timed(&mut self, step: impl FnOnce(&mut Cursor)) {
        if self.valid() {
            let started = self.ctx.stats.start_chosen(Sampled::Next);
            step(self);
            self.ctx.finish(Histogram::Next, started, || self.ctx.about_keys(0));
        }
    }

    fn step_backward(&mut self) {
        match self.shown {
            Shown::Nothing => return,
            Shown::Current => {
                self.saved_key.clear();
                self.saved_key.extend_from_slice(self.merge.top().key());
                if let Err(e) = self.merge.seek_lt(&self.saved_key, Tag(u64::MAX)) {
                    return self.fail(e);
                }
            }
            Shown::Saved => {}
        }
        self.counts.steps += 1;
        self.hide();
        if let Err(e) = self.find_backward() {
            self.fail(e);
        }
    }

    /// Moves on, as [`Cursor::next`] or [`Cursor::prev`] do, and passes each entry to `take`: its key, its value, and when it expires
    /// ([`Cursor::expires_at`]). It stops at the entry for which `take` returns false, or off the end.
    pub fn walk(&mut self, forward: bool, mut take: impl FnMut(&[u8], &[u8], Option<SystemTime>) -> bool) {
        let mut alone = 0;
        loop {
            if !forward {
                self.prev();
            } else {
                if alone == 0 {
                    let steps = self.counts.steps;
                    if self.walk_block(&mut take) {
                        return;
                    }
                    alone = if self.counts.steps == steps { STEPS_ALONE } else { 1 };
                }
                alone -= 1;
                self.next();
            }
            if !self.valid() {
                return;
            }
            let expires = if self.shown_tag.has_expiry() { self.expires_at() } else { None };
            let goes_on = match self.shown_tag.is_indirect() {
                false => take(self.key(), self.stored(), expires),
                // An error makes it invalid, and `status` tells it.
                true => self.entry().is_ok_and(|(key, value)| take(key, value, expires)),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Walks forward in the loaded block of the run in front and shows the entries to `take`, for as long as each next entry is a visible put
    /// whose value is in the block. This is most of a walk over a table, and takes a fraction of the instructions of single steps. Returns
    /// whether `take` ended the walk.
    #[inline]
    fn walk_block(&mut self, take: &mut impl FnMut(&[u8], &[u8], Option<SystemTime>) -> bool) -> bool {
        if self.shown != Shown::Current || !self.ranges.is_empty() || !self.view.order.is_bytewise() {
            return false;
        }
        let (order, upper, snapshot) = (&KeyOrder::Bytewise, &self.upper, self.snapshot);
        // The step after these asks whether it is timed.
        let most = unchosen(Sampled::Next);
        let (mut enough, mut steps, mut last) = (false, 0, self.shown_tag);
        self.merge.walk_block(|head, key, tag, value| {
            let plain = tag.0 as u8 == Kind::Put as u8 && tag.seq() <= snapshot;
            let beyond = |limit: &Limit| limit.compare(order, key, head, Ordering::Greater).is_gt();
            if !plain || upper.as_ref().is_some_and(beyond) {
                return Offered::Refused;
            }
            if steps == most {
                return Offered::Refused;
            }
            (steps, last) = (steps + 1, tag);
            if take(key, value, None) {
                return Offered::Taken;
            }
            enough = true;
            Offered::TakenLast
        });
        if steps > 0 {
            #[cfg(test)]
            {
                self.walked_in_block += u64::from(steps);
            }
            sample::pass(Sampled::Next, steps);
            self.counts.steps += u64::from(steps);
            self.shown_tag = last;
            self.indirect_read = false;
        }
        enough
    }

    /// Begins a seek, unless an earlier error forbids it.
    fn begin_seek(&mut self) -> Option<Started> {
        self.hide();
        self.skips.stopped = None;
        self.counts.seeks += 1;
        if self.counts.seeks.is_multiple_of(256) {
            self.count();
        }
        self.error.is_none().then(|| self.ctx.stats.start_sampled(Sampled::Seek))
    }

    #[inline]
    fn hide(&mut self) {
        self.shown = Shown::Nothing;
        self.indirect_read = false;
    }

    #[cold]
    fn fail(&mut self, e: Error) {
        self.hide();
        self.error.get_or_insert(e);
    }

    fn show_forward(&mut self, moved: Result<()>, started: Started) {
        if let Err(e) = moved.and_then(|()| self.find_forward(None)) {
            self.fail(e);
        }
        self.ctx.finish(Histogram::Seek, started, || self.ctx.about_keys(0));
    }

    fn show_backward(&mut self, moved: Result<()>, started: Started) {
        if let Err(e) = moved.and_then(|()| self.find_backward()) {
            self.fail(e);
        }
        self.ctx.finish(Histogram::Seek, started, || self.ctx.about_keys(0));
    }

    /// Steps the merge to the first entry that is to be shown. With the head of `saved_key`, entries of that are versions of a
    /// key that was dealt with.
    #[inline]
    fn find_forward(&mut self, passed: Option<u64>) -> Result<()> {
        let order = &self.view.order;
        let (mut passing, mut passed_head) = (passed.is_some(), passed.unwrap_or(0));
        let mut versions = 0;
        while self.merge.valid() {
            let head = self.merge.head();
            let top = self.merge.top();
            let (key, tag) = (top.key(), top.tag());
            if passing && head == passed_head && order.compare(key, &self.saved_key).is_eq() {
                versions += 1;
                self.counts.skipped += 1;
                if versions > STEPS_BEFORE_SEEK {
                    versions = 0;
                    self.merge.seek_past(&self.saved_key)?;
                } else {
                    self.merge.next_key()?;
                }
                continue;
            }
            if let Some(limit) = &self.upper
                && limit.compare(order, key, head, Ordering::Greater).is_gt()
            {
                return Ok(());
            }
            if tag.seq() > self.snapshot {
                self.counts.skipped += 1;
                self.merge.pass_newer(Tag::seek(self.snapshot))?;
                if self.skips.give_up(passing.then_some(passed_head)) {
                    return Ok(());
                }
                continue;
            }
            let deleted = match self.ranges.is_empty() || top.is_own() {
                true => 0,
                false => covering_in(&mut self.ranges, key, self.snapshot),
            };
            if visible(tag, top.value(), deleted, &self.ctx)?.is_some() {
                self.shown_tag = tag;
                self.shown = Shown::Current;
                return Ok(());
            }
            self.saved_key.clear();
            self.saved_key.extend_from_slice(key);
            (passing, passed_head, versions) = (true, head, 0);
            self.counts.skipped += 1;
            if self.skips.give_up(Some(head)) {
                return Ok(());
            }
            // The rest of a deleted range is passed at once in a source that holds nothing newer than the deletion.
            let whole = if top.max_seq() < deleted { deleted_span(&self.ranges, deleted).1 } else { None };
            match whole {
                Some(end) => self.merge.skip_to(end, Tag::seek(self.snapshot))?,
                None => self.merge.next_key()?,
            }
        }
        Ok(())
    }

    /// Steps the merge back over the versions of a key, to the first key that is to be shown.
    fn find_backward(&mut self) -> Result<()> {
        while self.merge.valid() {
            let head = self.merge.head();
            let key = self.merge.top().key();
            if let Some(limit) = &self.lower
                && limit.compare(&self.view.order, key, head, Ordering::Less).is_lt()
            {
                return Ok(());
            }
            let deleted = covering(&mut self.ranges, key, self.snapshot);
            if self.merge.top().max_seq() < deleted
                && let (Some(start), _) = deleted_span(&self.ranges, deleted)
            {
                self.counts.skipped += 1;
                self.merge.skip_before(start, Tag(u64::MAX))?;
                if self.skips.give_up(None) {
                    return Ok(());
                }
                continue;
            }
            self.saved_key.clear();
            self.saved_key.extend_from_slice(key);
            let Some(tag) = self.pass_versions(head)? else {
                if self.skips.give_up(None) {
                    return Ok(());
                }
                continue;
            };
            let deleted = match self.ranges.is_empty() || self.wrote_saved_key() {
                true => 0,
                false => covering_in(&mut self.ranges, &self.saved_key, self.snapshot),
            };
            if visible(tag, &self.saved_value, deleted, &self.ctx)?.is_some() {
                self.shown_tag = tag;
                self.shown = Shown::Saved;
                return Ok(());
            }
            if self.skips.give_up(None) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether the newest version of `saved_key` is the transaction's own, which no range delete hides.
    fn wrote_saved_key(&self) -> bool {
        self.overlay.as_ref().is_some_and(|o| matches!(o.get(&self.saved_key), Some(Own::Written(..))))
    }

    /// Steps the merge back over all versions of `saved_key`, keeping the newest visible one's value.
    fn pass_versions(&mut self, head: u64) -> Result<Option<Tag>> {
        let mut newest = None;
        // The merge stands at the key, and goes on even if the order does not say that the key equals itself.
        let mut at_key = self.merge.valid();
        while at_key {
            let top = self.merge.top();
            if top.tag().seq() <= self.snapshot {
                if newest.is_some() {
                    self.counts.skipped += 1;
                }
                self.merge.go_newest(Tag::seek(self.snapshot));
                let top = self.merge.top();
                newest = Some(top.tag());
                self.saved_value.clear();
                // A tombstone's value means nothing.
                if !top.tag().is_tombstone() {
                    append(&mut self.saved_value, top.value(), "a value")?;
                }
                // Keys that compare equal need not be the same bytes; show those of the version that is shown.
                self.saved_key.clear();
                self.saved_key.extend_from_slice(top.key());
            }
            // What is left of the key in this source is too new to be visible.
            self.merge.prev_key()?;
            at_key = self.merge.valid()
                && self.merge.head() == head
                && self.view.order.compare(self.merge.top().key(), &self.saved_key).is_eq();
        }
        if newest.is_none_or(Tag::is_tombstone) {
            self.counts.skipped += 1;
        }
        Ok(newest)
    }

    fn count(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        let stats = &self.ctx.stats;
        for (stat, n) in
            [(Stat::Seeks, counts.seeks), (Stat::Steps, counts.steps), (Stat::SkippedEntries, counts.skipped)]
        {
            if n > 0 {
                stats.add(stat, n);
            }
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.count();
    }
}

/// The range tombstones of one source, and where the iterator is in them.
struct RangeSet {
    set: Arc<RangeTombstones>,
    near: SpanCursor,
    /// The range deletes of an overlay. They hide all that is committed, as if their sequence numbers were `SeqNo::MAX`.
    own: bool,
    /// What covers the key that was asked for last.
    covering: SeqNo,
}

impl RangeSet {
    fn new(set: Arc<RangeTombstones>, own: bool) -> RangeSet {
        RangeSet { set, near: SpanCursor::default(), own, covering: 0 }
    }
}

fn ranges(view: &View, overlay: Option<&Arc<Overlay>>) -> Result<Vec<RangeSet>> {
    let own = overlay.filter(|o| !o.ranges().is_empty()).map(|o| RangeSet::new(o.ranges().clone(), true));
    let mut all: Vec<RangeSet> = own.into_iter().collect();
    if view.has_range_tombstones() {
        all.extend(view.range_sets()?.into_iter().map(|set| RangeSet::new(set, false)));
    }
    Ok(all)
}

/// Newest sequence number up to `snapshot` of a range tombstone over `key`; `SeqNo::MAX` for one of the overlay.
#[inline]
fn covering(ranges: &mut [RangeSet], key: &[u8], snapshot: SeqNo) -> SeqNo {
    if ranges.is_empty() { 0 } else { covering_in(ranges, key, snapshot) }
}

#[inline(never)]
fn covering_in(ranges: &mut [RangeSet], key: &[u8], snapshot: SeqNo) -> SeqNo {
    let mut newest = 0;
    for r in ranges {
        r.covering = match r.own {
            true if r.set.max_covering_near(&mut r.near, key, SeqNo::MAX) > 0 => SeqNo::MAX,
            true => 0,
            false => r.set.max_covering_near(&mut r.near, key, snapshot),
        };
        newest = newest.max(r.covering);
    }
    newest
}

/// The span of keys, first and first beyond, in which the tombstone that [`covering`] just returned covers everything.
fn deleted_span(ranges: &[RangeSet], seq: SeqNo) -> (Option<&[u8]>, Option<&[u8]>) {
    ranges.iter().find(|r| r.covering == seq).map_or((None, None), |r| r.set.span(&r.near))
}

fn sources(view: &View, overlay: Option<&Arc<Overlay>>, snapshot: SeqNo, options: IterOptions) -> Merge {
    let memtables = || view.memtables().filter(|m| !m.points().is_empty());
    // Room for exactly as many as there are: sources are large, and with spare room the block would be too large for the allocator's
    // fast path.
    let mut all = Vec::with_capacity(usize::from(overlay.is_some()) + memtables().count() + view.runs.len());
    all.extend(overlay.map(|o| Source::Own(OwnIter::new(o.clone(), snapshot))));
    all.extend(memtables().map(|m| Source::Mem(m.points().iter())));
    all.extend(view.runs.iter().map(|r| Source::Run(Box::new(RunIter::new(r.clone(), view.order.clone(), options)))));
    Merge::new(view.order.clone(), all)
}

/// Of two limits the one that lets less through; `inner` is how the tighter one compares to the other.
fn tighter(order: &KeyOrder, a: Option<Limit>, b: Option<Limit>, inner: Ordering) -> Option<Limit> {
    let (Some(a), Some(b)) = (&a, &b) else { return a.or(b) };
    let b_wins = match order.compare(&b.key, &a.key) {
        Ordering::Equal => !b.inclusive,
        other => other == inner,
    };
    if b_wins { Some(Limit { key: b.key.clone(), ..*b }) } else { Some(Limit { key: a.key.clone(), ..*a }) }
}

/// The bounds between which the keys with a prefix lie.
pub(crate) fn prefix_range(order: &KeyOrder, prefix: &[u8]) -> Result<[Bound<Vec<u8>>; 2]> {
    let at = |key: Vec<u8>| Bound::Included(key);
    let past = |key: Option<Vec<u8>>| key.map_or(Bound::Unbounded, Bound::Excluded);
    match order {
        KeyOrder::Bytewise => Ok([at(prefix.to_vec()), past(successor(prefix.to_vec()))]),
        KeyOrder::Reverse => Ok([past(successor(prefix.to_vec())), at(prefix.to_vec())]),
        KeyOrder::CaseInsensitive => {
            let folded = prefix.to_ascii_lowercase();
            let end = successor(folded.clone()).map(|mut end| {
                // No folded key holds an upper-case letter, and as a bound it would itself be folded.
                if let Some(last) = end.last_mut().filter(|b| b.is_ascii_uppercase()) {
                    *last = b'Z' + 1;
                }
                end
            });
            Ok([at(folded), past(end)])
        }
        _ if prefix.is_empty() => Ok([Bound::Unbounded, Bound::Unbounded]),
        other => Err(Error::invalid(format!("key order {other:?} does not support prefix iteration"))),
    }
}

/// The smallest key, bytewise, behind all that begin with `prefix`; `None` when there is none.
fn successor(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(prefix);
        }
        prefix.pop();
    }
    None
}
