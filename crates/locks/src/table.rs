//! The locks held in one family: disjoint segments of the key space, each with the transactions that hold it.
//!
//! A lock is put on by cutting the segments at its ends and adding its owner to all that lie between; neighbours with the
//! same owners grow together again. So every question (which transactions hold something of this span?) is a lookup of the segment at
//! its start and a walk to its end, and a scan that locks one small range after the other ends up as one segment. Locks
//! are given back all at once, so there is no need to remember which requests made a segment; only a key that is a segment
//! of its own may go before.

use crate::kinds::LockMode;
use crate::span::{Cut, CutRef, Span};
use kingtide_base::TxnId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

/// Approximate bytes of an entry of the map, which is two thirds full on average.
const ENTRY: u64 = ((size_of::<Cut>() + size_of::<Segment>()) * 3 / 2) as u64;

/// The holders of a segment: one owner with an exclusive lock, or any number with shared ones.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holders {
    exclusive: bool,
    first: TxnId,
    /// The others, ascending, each greater than `first`. Boxed because there rarely are any.
    #[allow(clippy::box_collection)] // a thin pointer
    more: Option<Box<Vec<TxnId>>>,
}

impl Holders {
    fn new(txn: TxnId, mode: LockMode) -> Holders {
        Holders { exclusive: mode == LockMode::Exclusive, first: txn, more: None }
    }

    fn iter(&self) -> impl Iterator<Item = TxnId> + '_ {
        std::iter::once(self.first).chain(self.more.iter().flat_map(|more| more.iter().copied()))
    }

    fn contains(&self, txn: TxnId) -> bool {
        self.first == txn || self.more.as_ref().is_some_and(|more| more.binary_search(&txn).is_ok())
    }

    fn mode(&self) -> LockMode {
        if self.exclusive { LockMode::Exclusive } else { LockMode::Shared }
    }

    /// Those other than `txn` that stand in the way of a lock.
    fn in_the_way(&self, txn: TxnId, mode: LockMode) -> impl Iterator<Item = TxnId> + '_ {
        let clash = self.mode().conflicts(mode);
        self.iter().filter(move |holder| clash && *holder != txn)
    }

    /// Adds an owner with whose lock no other conflicts.
    fn add(&mut self, txn: TxnId, mode: LockMode) {
        self.exclusive |= mode == LockMode::Exclusive;
        if self.contains(txn) {
            return;
        }
        let other = self.first.max(txn);
        self.first = self.first.min(txn);
        let more = self.more.get_or_insert_default();
        if let Err(at) = more.binary_search(&other) {
            more.insert(at, other);
        }
    }

    /// Returns whether any holder is left.
    fn remove(&mut self, txn: TxnId) -> bool {
        let Some(more) = &mut self.more else { return self.first != txn };
        if self.first == txn {
            self.first = more.remove(0);
        } else if let Ok(at) = more.binary_search(&txn) {
            more.remove(at);
        }
        if more.is_empty() {
            self.more = None;
        }
        true
    }
}

struct Segment {
    /// `None`: the segment is just the key after the cut at which it starts.
    end: Option<Box<Cut>>,
    holders: Holders,
}

impl Segment {
    /// Returns whether it is just a key, with no other owner.
    fn is_only(&self, txn: TxnId) -> bool {
        self.end.is_none() && self.holders.first == txn && self.holders.more.is_none()
    }

    fn end<'a>(&'a self, start: &'a Cut) -> CutRef<'a> {
        self.end.as_ref().map_or_else(|| start.after(), |end| end.as_ref().as_ref())
    }
}

/// What the table says to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The transaction holds all of it, in this mode or a stronger one.
    Covered,
    /// No other lock conflicts. `upgrade`: the transaction holds all of it, in a weaker mode.
    Free { upgrade: bool },
    /// This transaction, perhaps among others, holds something of it.
    Held(TxnId),
}

/// The locks held in one family.
#[derive(Default)]
pub(super) struct Table {
    /// By start.
    segments: BTreeMap<Cut, Segment>,
}

impl Table {
    /// The segments that share something with the span, in order.
    fn overlapping<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = (&'a Cut, &'a Segment)> + 'a {
        let before = self.segments.range(..=&span.lo).next_back();
        let first = before.filter(|(start, segment)| segment.end(start) > span.lo.as_ref());
        // No segment begins within a key.
        let rest = span.hi.as_ref().map(|_| self.segments.range((Bound::Excluded(&span.lo), Bound::Unbounded)));
        let end = span.end();
        first.into_iter().chain(rest.into_iter().flatten().take_while(move |(start, _)| start.as_ref() < end))
    }

    /// Returns what a request meets.
    pub fn ask(&self, txn: TxnId, span: &Span, mode: LockMode) -> Answer {
        // Up to `reach` the transaction holds all of the span, as long as `held` and `covered` say so.
        let (mut held, mut covered, mut reach) = (true, true, span.lo.as_ref());
        for (start, segment) in self.overlapping(span) {
            if let Some(holder) = segment.holders.in_the_way(txn, mode).next() {
                return Answer::Held(holder);
            }
            held &= start.as_ref() <= reach && segment.holders.contains(txn);
            covered &= segment.holders.exclusive || mode == LockMode::Shared;
            reach = segment.end(start);
        }
        held &= reach >= span.end();
        if held && covered { Answer::Covered } else { Answer::Free { upgrade: held } }
    }

    /// Calls back for each transaction that stands in the way of a request, perhaps several times.
    pub fn in_the_way(&self, txn: TxnId, span: &Span, mode: LockMode, mut f: impl FnMut(TxnId)) {
        self.overlapping(span).for_each(|(_, segment)| segment.holders.in_the_way(txn, mode).for_each(&mut f));
    }

    /// Enters a lock that [`Table::ask`] found free.
    #[inline]
    pub fn insert(&mut self, txn: TxnId, span: &Span, mode: LockMode) {
        if span.hi.is_none() && self.insert_key(txn, span, mode) {
            return;
        }
        self.split(span.lo.as_ref());
        self.split(span.end());
        let mut reach = span.lo.clone();
        let mut gaps = Vec::new();
        let end = span.end();
        for (start, segment) in self.segments.range_mut(&span.lo..).take_while(|(start, _)| start.as_ref() < end) {
            gaps.extend(Span::between(reach, start.as_ref()));
            segment.holders.add(txn, mode);
            reach = segment.end(start).to_cut();
        }
        gaps.extend(Span::between(reach, end));
        for gap in gaps {
            self.segments.insert(gap.lo, Segment { end: gap.hi, holders: Holders::new(txn, mode) });
        }
        self.join(&span.lo, span.end());
    }

    /// The two simple cases of a key: nothing there yet, or a segment of just that key. False if it is neither.
    #[inline]
    fn insert_key(&mut self, txn: TxnId, span: &Span, mode: LockMode) -> bool {
        let before = self.segments.range_mut(..=&span.lo).next_back();
        match before {
            Some((start, segment)) if segment.end(start) > span.lo.as_ref() => {
                let is_that_key = segment.end.is_none(); // it contains the key, so it is the key
                if is_that_key {
                    segment.holders.add(txn, mode);
                }
                is_that_key
            }
            _ => {
                self.segments.insert(span.lo.clone(), Segment { end: None, holders: Holders::new(txn, mode) });
                true
            }
        }
    }

    /// Makes a segment end, and another begin, at the place, if one reaches over it.
    fn split(&mut self, at: CutRef<'_>) {
        let at = at.to_cut();
        let Some((start, segment)) = self.segments.range_mut(..&at).next_back() else { return };
        if segment.end(start) <= at.as_ref() {
            return;
        }
        let end = segment.end(start).to_cut();
        let holders = segment.holders.clone();
        segment.end = Span::between(start.clone(), at.as_ref()).and_then(|left| left.hi);
        if let Some(right) = Span::between(at, end.as_ref()) {
            self.segments.insert(right.lo, Segment { end: right.hi, holders });
        }
    }

    /// Returns whether the key that the span is is a segment of its own.
    pub fn is_apart(&self, span: &Span) -> bool {
        span.hi.is_none() && self.segments.get(&span.lo).is_some_and(|segment| segment.end.is_none())
    }

    /// Takes the transaction off everything that shares something with the span. Right only for one that gives all of
    /// its locks back, or a key that [`Table::is_apart`], because a segment may reach beyond the span, over locks that other requests put on.
    pub fn remove(&mut self, txn: TxnId, span: &Span) {
        // Most locks are on a key that no other transaction uses.
        if span.hi.is_none()
            && let Entry::Occupied(entry) = self.segments.entry(span.lo.clone())
            && entry.get().is_only(txn)
        {
            entry.remove();
            return;
        }
        let before = self.segments.range(..=&span.lo).next_back();
        let lo = match before {
            Some((start, segment)) if segment.end(start) > span.lo.as_ref() => start.clone(),
            _ => span.lo.clone(),
        };
        let (mut empty, mut shared) = (Vec::new(), false);
        let end = span.end();
        for (start, segment) in self.segments.range_mut(&lo..).take_while(|(start, _)| start.as_ref() < end) {
            if !segment.holders.contains(txn) {
                continue;
            }
            if segment.holders.remove(txn) {
                shared = true;
            } else {
                empty.push(start.clone());
            }
        }
        for start in &empty {
            self.segments.remove(start);
        }
        if shared {
            self.join(&lo, end);
        }
    }

    /// Takes the transaction off exactly the span, or leaves it a shared lock there if `weaken`.
    pub fn give_back(&mut self, txn: TxnId, span: &Span, weaken: bool) {
        self.split(span.lo.as_ref());
        self.split(span.end());
        if weaken {
            let end = span.end();
            let within = self.segments.range_mut(&span.lo..).take_while(|(start, _)| start.as_ref() < end);
            within.filter(|(_, s)| s.holders.contains(txn)).for_each(|(_, s)| s.holders.exclusive = false);
        } else {
            self.remove(txn, span);
        }
        self.join(&span.lo, span.end());
    }

    /// Joins neighbours with the same holders, from the one before `lo` to the one that begins at `end`.
    fn join(&mut self, lo: &Cut, end: CutRef<'_>) {
        let before = self.segments.range(..lo).next_back();
        let Some((mut at, mut left)) = before.or_else(|| self.segments.range(lo..).next()) else { return };
        let mut joined: Vec<(Cut, Cut)> = Vec::new(); // of a segment to go: its start, and that of the one it joins
        for (start, right) in self.segments.range((Bound::Excluded(at), Bound::Unbounded)) {
            if at.as_ref() > end {
                break;
            }
            if left.end(at) == start.as_ref() && left.holders == right.holders {
                let into = match joined.last() {
                    Some((previous, into)) if previous == at => into,
                    _ => at,
                };
                joined.push((start.clone(), into.clone()));
            }
            (at, left) = (start, right);
        }
        for (start, into) in joined {
            let Some(gone) = self.segments.remove(&start) else { continue };
            let end = gone.end(&start).to_cut();
            if let Some(segment) = self.segments.get_mut(&into) {
                segment.end = Some(Box::new(end));
            }
        }
    }

    /// Approximate bytes, without keys too long to be kept in place.
    pub fn memory(&self) -> u64 {
        self.segments.len() as u64 * ENTRY
    }

    /// The locks as spans with owner and mode: of each owner, what touches and has the same mode is one.
    pub fn held(&self) -> Vec<(TxnId, Span, LockMode)> {
        let mut out: Vec<(TxnId, Span, LockMode)> = Vec::new();
        let mut last: BTreeMap<TxnId, usize> = BTreeMap::new();
        for (start, segment) in &self.segments {
            let mode = segment.holders.mode();
            let Some(span) = Span::between(start.clone(), segment.end(start)) else { continue };
            for txn in segment.holders.iter() {
                let previous = last.get(&txn).and_then(|&i| out.get_mut(i));
                if !previous.is_some_and(|(_, whole, m)| *m == mode && whole.extend(&span)) {
                    last.insert(txn, out.len());
                    out.push((txn, span.clone(), mode));
                }
            }
        }
        out
    }

    /// The segments that share something with a span and that the transaction holds. They may reach beyond the span.
    pub fn held_by<'a>(&'a self, txn: TxnId, span: &'a Span) -> impl Iterator<Item = (Span, LockMode)> + 'a {
        let theirs = self.overlapping(span).filter(move |(_, segment)| segment.holders.contains(txn));
        theirs.filter_map(|(start, segment)| {
            Some((Span::between(start.clone(), segment.end(start))?, segment.holders.mode()))
        })
    }

    /// Panics unless segments are disjoint, in order, not empty, and held as the rules allow.
    #[cfg(test)]
    pub fn check(&self) {
        let mut last: Option<CutRef<'_>> = None;
        for (start, segment) in &self.segments {
            assert!(last.is_none_or(|end| end <= start.as_ref()), "segments overlap");
            assert!(start.as_ref() < segment.end(start), "an empty segment");
            let holders: Vec<TxnId> = segment.holders.iter().collect();
            assert!(holders.is_sorted_by(|a, b| a < b) && (holders.len() == 1 || !segment.holders.exclusive));
            last = Some(segment.end(start));
        }
    }

    /// Number of segments.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.segments.len()
    }
}
