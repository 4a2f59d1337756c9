//! Merges the sources of an iterator into one stream of entries: keys ascending, versions of a key newest first.
//!
//! Sources are given newest first, and everything that an earlier source holds of a key is newer than what a later one
//! holds, so on equal keys the source's index decides.
//!
//! The sources stand in a queue sorted by their current entry. The usual way of an LSM tree is that one big run supplies
//! nearly all entries: as long as its next entry stays before the second in the queue, a step costs one comparison of two
//! cached heads. Otherwise a binary search finds its new place: log n comparisons, like a loser tree, and with the
//! runner-up always at hand.

//!
//! # Lazy seek
//!
//! Decoding a block is most of a seek's cost. When a source holds the target itself, no other source can come before it
//! except a newer one that holds the target too, which its filter can deny. So a seek asks newer runs' filters, and once
//! the target is found, leaves the denied and all older runs *deferred*: not positioned until a step needs them.

use crate::read::level::RunIter;
use crate::read::overlay::OwnIter;
use kingtide_base::key::MAX_SEQ;
use kingtide_base::{Error, KeyOrder, Result, SeqNo, Tag};
use kingtide_mem::MemIter;
use kingtide_table::Offered;
use std::cmp::Ordering;
use std::hint::select_unpredictable;

/// With so many sources at an entry or fewer, one that has moved is compared with all others.
const FEW: usize = 8;

/// A source of entries. A memtable's cursor holds a copy of a leaf, so it is large; a merge has few, built once.
///
/// Nearly all steps are a run's: a tag byte of its own, with runs first and all accessors inlined, makes finding that out
/// one comparison, of which a step has many.
#[allow(clippy::large_enum_variant)]
#[repr(u8)]
pub(crate) enum Source {
    /// A run of tables.
    Run(Box<RunIter>),
    /// A memtable.
    Mem(MemIter),
    /// A transaction's own writes: the first source.
    Own(OwnIter),
}

impl Source {
    /// A bound of the sequence numbers that it can hold. Only own writes, which nothing hides, reach `SeqNo::MAX`.
    pub(crate) fn max_seq(&self) -> SeqNo {
        match self {
            Source::Mem(_) => MAX_SEQ,
            Source::Run(c) => c.max_seq(),
            Source::Own(_) => SeqNo::MAX,
        }
    }

    /// How many entries it has, all versions included. O(files) for a run.
    fn entries(&self) -> u64 {
        match self {
            Source::Mem(c) => c.table().len(),
            Source::Run(c) => c.entries(),
            Source::Own(c) => c.entries(),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Source::Own(_))
    }

    #[inline(always)]
    pub(crate) fn valid(&self) -> bool {
        match self {
            Source::Mem(c) => c.valid(),
            Source::Run(c) => c.valid(),
            Source::Own(c) => c.valid(),
        }
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Source::Mem(c) => c.key(),
            Source::Run(c) => c.current().map_or(&[], |t| t.key()),
            Source::Own(c) => c.key(),
        }
    }

    #[inline(always)]
    pub(crate) fn head(&self) -> u64 {
        match self {
            Source::Mem(c) => c.head(),
            Source::Run(c) => c.current().map_or(0, |t| t.head()),
            Source::Own(c) => c.head(),
        }
    }

    #[inline(always)]
    pub(crate) fn tag(&self) -> Tag {
        match self {
            Source::Mem(c) => c.tag(),
            Source::Run(c) => c.current().map_or(Tag(0), |t| t.tag()),
            Source::Own(c) => c.tag(),
        }
    }

    #[inline(always)]
    pub(crate) fn value(&self) -> &[u8] {
        match self {
            Source::Mem(c) => c.value(),
            Source::Run(c) => c.current().map_or(&[], |t| t.value()),
            Source::Own(c) => c.value(),
        }
    }

    fn first(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.first();
                Ok(())
            }
            Source::Run(c) => c.first(),
            Source::Own(c) => {
                c.first();
                Ok(())
            }
        }
    }

    fn last(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.last();
                Ok(())
            }
            Source::Run(c) => c.last(),
            Source::Own(c) => {
                c.last();
                Ok(())
            }
        }
    }

    fn seek(&mut self, key: &[u8], head: u64, tag: Tag) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.seek(key, tag);
                Ok(())
            }
            Source::Run(c) => c.seek(key, head, tag),
            Source::Own(c) => {
                c.seek(key, head, tag);
                Ok(())
            }
        }
    }

    fn seek_lt(&mut self, key: &[u8], head: u64, tag: Tag) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.seek_lt(key, tag);
                Ok(())
            }
            Source::Run(c) => c.seek_lt(key, head, tag),
            Source::Own(c) => {
                c.seek_lt(key, head, tag);
                Ok(())
            }
        }
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.next();
                Ok(())
            }
            Source::Run(c) => c.next(),
            Source::Own(c) => {
                c.next();
                Ok(())
            }
        }
    }

    /// Past versions of the current key: all of them in a memtable, one elsewhere.
    #[inline]
    fn next_key(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.next_key();
                Ok(())
            }
            _ => self.next(),
        }
    }

    /// Does the same backward.
    #[inline]
    fn prev_key(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.prev_key();
                Ok(())
            }
            _ => self.prev(),
        }
    }

    /// Past versions of the current key that are newer than `upper`: all of them in a memtable, one elsewhere.
    fn pass_newer(&mut self, upper: Tag) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.pass_newer(upper);
                Ok(())
            }
            _ => self.next(),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        match self {
            Source::Mem(c) => {
                c.prev();
                Ok(())
            }
            Source::Run(c) => c.prev(),
            Source::Own(c) => {
                c.prev();
                Ok(())
            }
        }
    }
}

/// A source's place in the queue, with the head of its current key.
#[derive(Clone, Copy)]
struct Place {
    head: u64,
    source: u32,
}

/// Counts the entries that a merge has passed since it was positioned. In an order they are never more than there are. An order that contradicts
/// itself could send a source back when it is to go on, and the walk would never end.
#[derive(Clone, Copy)]
struct Passed {
    /// How many more until they are compared with the entries that there are.
    left: u32,
    before: u64,
}

impl Passed {
    /// To add up the entries of all files takes longer than a step.
    const STRIDE: u32 = 1 << 16;
    const NONE: Passed = Passed { left: Passed::STRIDE, before: 0 };
}

/// A merge of sources. It has no direction of its own: [`Merge::next_key`] may follow only a forward positioning
/// ([`Merge::first`], [`Merge::seek`]) and [`Merge::prev_key`] only a backward one. After an error it must be positioned anew.
pub(crate) struct Merge {
    order: KeyOrder,
    sources: Vec<Source>,
    /// Sources that are at an entry, the one that comes first in the direction in front.
    queue: Vec<Place>,
    forward: bool,
    /// Target of the last [`Merge::seek`], while the sources stand as it and forward steps left them.
    anchor: Vec<u8>,
    anchor_tag: Tag,
    anchored: bool,
    /// Per source: whether it has not moved since that seek, so that it has nothing between the anchor and its entry.
    unmoved: Vec<bool>,
    /// Sources that stand anywhere, with nothing between the anchor and the current entry, which has the anchor's key.
    deferred: Vec<u32>,
    passed: Passed,
}

impl Merge {
    pub(crate) fn new(order: KeyOrder, sources: Vec<Source>) -> Merge {
        Merge {
            queue: Vec::with_capacity(sources.len()),
            unmoved: vec![false; sources.len()],
            deferred: Vec::new(),
            order,
            sources,
            forward: true,
            anchor: Vec::new(),
            anchor_tag: Tag(0),
            anchored: false,
            passed: Passed::NONE,
        }
    }

    #[inline]
    pub(crate) fn valid(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The source of the current entry. Only while valid.
    #[inline]
    pub(crate) fn top(&self) -> &Source {
        &self.sources[self.queue[0].source as usize]
    }

    /// Head of the current key. Only while valid.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.queue[0].head
    }

    pub(crate) fn first(&mut self) -> Result<()> {
        self.reset(true);
        self.sources.iter_mut().try_for_each(Source::first)?;
        self.enqueue_all();
        Ok(())
    }

    pub(crate) fn last(&mut self) -> Result<()> {
        self.reset(false);
        self.sources.iter_mut().try_for_each(Source::last)?;
        self.enqueue_all();
        Ok(())
    }

    /// Goes to the last entry before `(key, tag)`.
    pub(crate) fn seek_lt(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        self.reset(false);
        let head = self.order.head(key);
        for source in &mut self.sources {
            source.seek_lt(key, head, tag)?;
        }
        self.enqueue_all();
        Ok(())
    }

    /// Goes to the first entry at or after `(key, tag)`.
    ///
    /// A source is not sought if its present entry provably is the answer. Its entry must be at or after the target, and
    /// nothing of it may lie between the target and its entry, for which there are two proofs:
    /// * the target is not before the merge's current entry: steps forward only passed what is before that one;
    /// * the target is not before the last seek's target, and the source has not moved since.
    pub(crate) fn seek(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        let head = self.order.head(key);
        let passed_all = self.forward && self.valid() && self.at_or_before(self.top(), key, head, tag);
        let since_anchor = self.forward
            && self.anchored
            && match self.order.compare(&self.anchor, key) {
                Ordering::Less => true,
                Ordering::Equal => self.anchor_tag >= tag,
                Ordering::Greater => false,
            };
        let stale = std::mem::take(&mut self.deferred);
        self.reset(true);
        self.anchor.clear();
        self.anchor.extend_from_slice(key);
        self.anchor_tag = tag;
        let hash = self.hash_for_lazy_seek(key, head);
        let mut found = false;
        for i in 0..self.sources.len() {
            let source = &self.sources[i];
            let proven = !stale.contains(&(i as u32))
                && match (source.valid(), passed_all || since_anchor && self.unmoved[i]) {
                    (_, false) => false,
                    (true, true) => !self.before(source, key, head, tag),
                    // At its end: the first proof says that all it has was passed, the second that it had nothing to
                    // pass. An end reached any other way, such as backward, is not forward and never comes here.
                    (false, true) => true,
                };
            if !proven {
                if let (Source::Run(run), Some(hash)) = (source, hash)
                    && (found || !run.may_contain(key, head, hash))
                {
                    self.deferred.push(i as u32);
                    continue;
                }
                self.sources[i].seek(key, head, tag)?;
            }
            self.unmoved[i] = true;
            found = found || self.is_at(&self.sources[i], key, head);
        }
        self.anchored = true;
        self.enqueue_all();
        if found { Ok(()) } else { self.settle_deferred() }
    }

    /// The hash of the key if there is more than one run, all filters' lines being loaded meanwhile.
    fn hash_for_lazy_seek(&self, key: &[u8], head: u64) -> Option<u64> {
        let mut runs = self.sources.iter().filter_map(|s| match s {
            Source::Run(run) => Some(run),
            Source::Mem(_) | Source::Own(_) => None,
        });
        let (first, second) = (runs.next()?, runs.next()?);
        let hash = self.order.hash(key)?;
        for run in [first, second].into_iter().chain(runs) {
            run.prefetch(key, head, hash);
        }
        Some(hash)
    }

    /// Positions the sources that the last seek left alone.
    fn settle_deferred(&mut self) -> Result<()> {
        if self.deferred.is_empty() {
            return Ok(());
        }
        let head = self.order.head(&self.anchor);
        while let Some(source) = self.deferred.pop() {
            let cursor = &mut self.sources[source as usize];
            cursor.seek(&self.anchor, head, self.anchor_tag)?;
            self.unmoved[source as usize] = true;
            self.enqueue(source);
        }
        Ok(())
    }

    fn is_at(&self, source: &Source, key: &[u8], head: u64) -> bool {
        source.valid() && source.head() == head && self.order.compare(source.key(), key).is_eq()
    }

    /// Goes past the current entry and all others of its key, on the way forward: to the first entry behind `key`.
    pub(crate) fn seek_past(&mut self, key: &[u8]) -> Result<()> {
        debug_assert!(self.forward);
        let passed = self.passed;
        self.seek(key, Tag(0))?;
        self.passed = passed;
        self.count_passed()
    }

    /// Moves the current entry's source on to the first entry at or after `(key, tag)`: everything that it passes is
    /// hidden from this iterator for good, so the proofs of [`Merge::seek`] hold.
    pub(crate) fn skip_to(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        debug_assert!(self.forward);
        self.count_passed()?;
        self.settle_deferred()?;
        let Some(top) = self.queue.first().copied() else { return Ok(()) };
        self.unmoved[top.source as usize] = false;
        self.sources[top.source as usize].seek(key, self.order.head(key), tag)?;
        self.settle(top.source)
    }

    /// Does the same backward: to the last entry before `(key, tag)`.
    pub(crate) fn skip_before(&mut self, key: &[u8], tag: Tag) -> Result<()> {
        debug_assert!(!self.forward);
        self.count_passed()?;
        let Some(top) = self.queue.first().copied() else { return Ok(()) };
        self.sources[top.source as usize].seek_lt(key, self.order.head(key), tag)?;
        self.settle(top.source)
    }

    /// Returns whether the source's entry is before `(key, tag)`.
    fn before(&self, source: &Source, key: &[u8], head: u64, tag: Tag) -> bool {
        match source.head().cmp(&head).then_with(|| self.order.compare(source.key(), key)) {
            Ordering::Less => true,
            Ordering::Equal => source.tag() > tag,
            Ordering::Greater => false,
        }
    }

    /// Returns whether the source's entry is at or before `(key, tag)`.
    fn at_or_before(&self, source: &Source, key: &[u8], head: u64, tag: Tag) -> bool {
        match source.head().cmp(&head).then_with(|| self.order.compare(source.key(), key)) {
            Ordering::Less => true,
            Ordering::Equal => source.tag() >= tag,
            Ordering::Greater => false,
        }
    }

    fn reset(&mut self, forward: bool) {
        self.queue.clear();
        self.forward = forward;
        self.anchored = false;
        self.deferred.clear();
        self.passed = Passed::NONE;
    }

    /// Counts an entry that is passed.
    ///
    /// # Errors
    /// `Corruption` if they are more than there are.
    #[inline(always)]
    fn count_passed(&mut self) -> Result<()> {
        self.passed.left -= 1;
        if self.passed.left == 0 { self.compare_passed() } else { Ok(()) }
    }

    #[cold]
    fn compare_passed(&mut self) -> Result<()> {
        let Passed { before, .. } = self.passed;
        // One stride more, for what was just being written when it was positioned.
        if before > self.sources.iter().map(Source::entries).sum() {
            return Err(Error::corruption(format!(
                "a walk in key order '{}' passed more entries than there are: the order contradicts itself, or is not the one that \
                 the keys were written in",
                self.order.name()
            )));
        }
        self.passed = Passed { left: Passed::STRIDE, before: before + u64::from(Passed::STRIDE) };
        Ok(())
    }

    fn enqueue_all(&mut self) {
        for source in 0..self.sources.len() as u32 {
            if !self.deferred.contains(&source) {
                self.enqueue(source);
            }
        }
    }

    fn enqueue(&mut self, source: u32) {
        let cursor = &self.sources[source as usize];
        if cursor.valid() {
            let place = Place { head: cursor.head(), source };
            let at = self.rank(place, 0);
            self.queue.insert(at, place);
        }
    }

    /// Goes past the current entry, and past some or all of its key's older versions in its source: those of a key that is
    /// dealt with.
    #[inline]
    pub(crate) fn next_key(&mut self) -> Result<()> {
        self.step(Source::next_key)
    }

    /// Goes past the current entry, which is newer than `upper`, and past some or all others that are and have its key.
    pub(crate) fn pass_newer(&mut self, upper: Tag) -> Result<()> {
        self.step(|source| source.pass_newer(upper))
    }

    #[inline(always)]
    fn step(&mut self, step: impl FnOnce(&mut Source) -> Result<()>) -> Result<()> {
        debug_assert!(self.forward);
        self.count_passed()?;
        if !self.deferred.is_empty() {
            self.settle_deferred()?;
        }
        let Some(top) = self.queue.first().copied() else { return Ok(()) };
        let source = &mut self.sources[top.source as usize];
        self.unmoved[top.source as usize] = false;
        step(source)?;
        self.settle(top.source)
    }

    /// Goes past the current entry as [`Merge::next_key`] does, if the entry behind it is certain to have another key: that of the same
    /// source is at hand, and all others have other heads. Returns whether it went, as it does in most steps. Does not go while there is no
    /// current entry.
    #[inline]
    pub(crate) fn next_at_hand(&mut self) -> bool {
        debug_assert!(self.forward);
        let Some(top) = self.queue.first().copied() else { return false };
        let tied = self.queue.get(1).is_some_and(|second| second.head == top.head);
        // The last step of a stride is left to `next_key`, which can fail.
        if tied || !self.deferred.is_empty() || self.passed.left == 1 || !self.order.is_bytewise() {
            return false;
        }
        let next = match &mut self.sources[top.source as usize] {
            Source::Run(run) => match run.next_at_hand(top.head) {
                Some(head) => Some(head),
                None => return false,
            },
            Source::Mem(mem) => {
                mem.next_key();
                mem.valid().then(|| mem.head())
            }
            Source::Own(_) => return false,
        };
        self.passed.left -= 1;
        self.unmoved[top.source as usize] = false;
        self.put_in_front(next.map(|head| Place { head, ..top }));
        true
    }

    /// Walks forward in the loaded block of the run in front, over entries with new keys that come before the entries of all other sources:
    /// see [`TableIter::walk_block`](kingtide_table::TableIter::walk_block). Only for the bytewise order and the forward direction. Does
    /// nothing if the source in front is not a run.
    #[inline]
    pub(crate) fn walk_block(&mut self, mut pass: impl FnMut(u64, &[u8], Tag, &[u8]) -> Offered) {
        debug_assert!(self.forward && self.order.is_bytewise());
        let Some(top) = self.queue.first().copied().filter(|_| self.deferred.is_empty()) else { return };
        let at = top.source as usize;
        let second = self.queue.get(1).copied();
        let (front, other) = match second {
            None => (&mut self.sources[at], None),
            Some(second) => match self.sources.get_disjoint_mut([at, second.source as usize]) {
                Ok([front, other]) => (front, Some(&*other)),
                Err(_) => return,
            },
        };
        let Source::Run(run) = front else { return };
        let until = second.map_or(u64::MAX, |second| second.head);
        let mut last = top.head;
        run.walk_block(|head, key, tag, value| {
            let first = head < until || other.is_none_or(|other| head == until && key < other.key());
            let offered = if first { pass(head, key, tag, value) } else { Offered::Refused };
            if offered != Offered::Refused {
                last = head;
            }
            offered
        });
        self.queue[0].head = last;
        self.unmoved[at] = false;
    }

    /// Goes back past the current entry, and past some or all of its key's newer versions in its source: those of a key that
    /// is dealt with, or that are too new.
    #[inline]
    pub(crate) fn prev_key(&mut self) -> Result<()> {
        debug_assert!(!self.forward);
        self.count_passed()?;
        let Some(top) = self.queue.first().copied() else { return Ok(()) };
        self.sources[top.source as usize].prev_key()?;
        self.settle(top.source)
    }

    /// Goes back from the current entry, which is `upper` or older, to the newest of its key in its source that is, if that
    /// costs less than to pass the ones between. What is passed is older than that one.
    #[inline]
    pub(crate) fn go_newest(&mut self, upper: Tag) {
        debug_assert!(!self.forward);
        if let Some(top) = self.queue.first()
            && let Source::Mem(c) = &mut self.sources[top.source as usize]
        {
            c.go_newest(upper);
        }
    }

    /// Puts the front source, which has moved, into its place.
    #[inline]
    fn settle(&mut self, source: u32) -> Result<()> {
        let cursor = &self.sources[source as usize];
        let place = cursor.valid().then(|| Place { head: cursor.head(), source });
        self.put_in_front(place);
        Ok(())
    }

    /// Replaces the place in front, and moves it to where it belongs. `None`: that source is at no entry any more.
    #[inline]
    fn put_in_front(&mut self, place: Option<Place>) {
        let Some(place) = place else {
            self.queue.remove(0);
            return;
        };
        self.queue[0] = place;
        match self.queue.len() {
            1 => {}
            2..=FEW => self.sink(place),
            _ if self.goes_first(place, self.queue[1]) => {}
            _ => {
                let end = self.rank(place, 1);
                self.queue[..end].rotate_left(1);
            }
        }
    }

    /// Moves the place in front behind all that go before it. Looks at all of them, but unless heads are equal with no branch that depends on
    /// how they compare: where sources alternate, the processor would mispredict one in each step.
    #[inline]
    fn sink(&mut self, mut place: Place) {
        let reversed = if self.forward { 0 } else { u64::MAX };
        for i in 1..self.queue.len() {
            let next = self.queue[i];
            if next.head == place.head && !self.goes_first(next, place) {
                self.queue[i - 1] = place;
                return;
            }
            let first = next.head ^ reversed <= place.head ^ reversed;
            self.queue[i - 1] = Place {
                head: select_unpredictable(first, next.head, place.head),
                source: select_unpredictable(first, next.source, place.source),
            };
            place = Place {
                head: select_unpredictable(first, place.head, next.head),
                source: select_unpredictable(first, place.source, next.source),
            };
        }
        if let Some(last) = self.queue.last_mut() {
            *last = place;
        }
    }

    /// Number of places from `from` on that go before `place`, counted from the front of the queue.
    fn rank(&self, place: Place, from: usize) -> usize {
        from + self.queue[from..].partition_point(|p| self.goes_first(*p, place))
    }

    /// Returns whether `a` comes before `b` in the direction of the merge.
    #[inline]
    fn goes_first(&self, a: Place, b: Place) -> bool {
        let ascending = a.head.cmp(&b.head).then_with(|| {
            let (x, y) = (&self.sources[a.source as usize], &self.sources[b.source as usize]);
            self.order.compare(x.key(), y.key()).then(a.source.cmp(&b.source))
        });
        ascending == if self.forward { Ordering::Less } else { Ordering::Greater }
    }
}
