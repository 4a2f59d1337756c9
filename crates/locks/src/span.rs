//! Places between keys, and the spans from one to another that locks are put on.
//!
//! Every key has a place just before it and one just after it. A key lock is a lock on the span between the two; any range
//! with open, closed or absent ends is a span between two such places. So one kind of half-open interval serves both.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use crate::kinds::{LockMode, LockTarget};
use kingtide_base::{FamilyId, KeyOrder, TxnId};

/// Keys up to this length are kept in place, without an allocation.
const INLINE: usize = 22;

/// The bytes of a key, cheap to clone.
#[derive(Clone)]
pub(super) enum KeyBytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Shared(Arc<[u8]>),
}

impl KeyBytes {
    #[inline]
    fn new(key: &[u8]) -> KeyBytes {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..key.len()) {
            Some(room) => {
                room.copy_from_slice(key);
                KeyBytes::Inline { len: key.len() as u8, bytes }
            }
            None => KeyBytes::Shared(key.into()),
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            KeyBytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            KeyBytes::Shared(bytes) => bytes,
        }
    }

    /// Returns the bytes on the heap.
    pub fn heap(&self) -> u64 {
        match self {
            KeyBytes::Inline { .. } => 0,
            KeyBytes::Shared(bytes) => bytes.len() as u64 + 16, // the two counters of the Arc
        }
    }
}

/// Where a cut lies, relative to its key if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Before all keys.
    Start,
    /// Just before the key.
    Before,
    /// Just after the key.
    After,
    /// After all keys.
    End,
}

/// A place between keys of one family. It carries the family's order, because a map's keys must know how to compare.
#[derive(Clone)]
pub(super) struct Cut {
    /// The order's 64-bit image of the key, which decides most comparisons.
    head: u64,
    key: KeyBytes,
    order: KeyOrder,
    side: Side,
}

/// A cut that borrows its key: the same bytes under another side.
#[derive(Clone, Copy)]
pub(super) struct CutRef<'a> {
    cut: &'a Cut,
    side: Side,
}

impl Cut {
    #[inline]
    pub fn new(order: &KeyOrder, key: &[u8], side: Side) -> Cut {
        Cut { head: order.head(key), key: KeyBytes::new(key), order: order.clone(), side }
    }

    fn open(order: &KeyOrder, side: Side) -> Cut {
        Cut { head: 0, key: KeyBytes::new(&[]), order: order.clone(), side }
    }

    pub fn as_ref(&self) -> CutRef<'_> {
        CutRef { cut: self, side: self.side }
    }

    #[inline]
    pub fn into_key(self) -> KeyBytes {
        self.key
    }

    /// The place just after this cut's key.
    #[inline]
    pub fn after(&self) -> CutRef<'_> {
        CutRef { cut: self, side: Side::After }
    }
}

impl CutRef<'_> {
    pub fn to_cut(self) -> Cut {
        Cut { side: self.side, ..self.cut.clone() }
    }

    /// As the lower end of a range.
    pub fn lower(self) -> Bound<Vec<u8>> {
        match self.side {
            Side::Before => Bound::Included(self.cut.key.as_slice().to_vec()),
            Side::After => Bound::Excluded(self.cut.key.as_slice().to_vec()),
            Side::Start | Side::End => Bound::Unbounded,
        }
    }

    /// As the upper end of a range.
    pub fn upper(self) -> Bound<Vec<u8>> {
        match self.side {
            Side::Before => Bound::Excluded(self.cut.key.as_slice().to_vec()),
            Side::After => Bound::Included(self.cut.key.as_slice().to_vec()),
            Side::Start | Side::End => Bound::Unbounded,
        }
    }
}

impl Ord for CutRef<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.side, other.side);
        if matches!(a, Side::Start | Side::End) || matches!(b, Side::Start | Side::End) {
            return a.cmp(&b);
        }
        let heads = self.cut.head.cmp(&other.cut.head);
        let keys = || self.cut.order.compare(self.cut.key.as_slice(), other.cut.key.as_slice());
        heads.then_with(keys).then_with(|| a.cmp(&b))
    }
}

impl PartialOrd for CutRef<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for CutRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for CutRef<'_> {}

impl Ord for Cut {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_ref().cmp(&other.as_ref())
    }
}

impl PartialOrd for Cut {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cut {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Cut {}

/// What is asked for.
#[derive(Clone)]
pub(super) struct Want {
    /// 0: wants only that no transaction holds it.
    pub txn: TxnId,
    pub family: FamilyId,
    pub span: Span,
    pub mode: LockMode,
}

/// A key or a range: what lies between two cuts, the first before the second.
#[derive(Clone)]
pub(super) struct Span {
    pub lo: Cut,
    /// `None` for a key: just after the key of `lo`, which lies just before it.
    pub hi: Option<Box<Cut>>,
}

impl Span {
    #[inline]
    pub fn key(order: &KeyOrder, key: &[u8]) -> Span {
        Span { lo: Cut::new(order, key, Side::Before), hi: None }
    }

    /// Does what [`Span::key`] does, from bytes that it gave out.
    #[inline]
    pub fn of_key(order: &KeyOrder, key: KeyBytes) -> Span {
        let head = order.head(key.as_slice());
        Span { lo: Cut { head, key, order: order.clone(), side: Side::Before }, hi: None }
    }

    /// `None` when no key can lie between the bounds.
    pub fn range(order: &KeyOrder, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Option<Span> {
        let lo = match lo {
            Bound::Included(key) => Cut::new(order, key, Side::Before),
            Bound::Excluded(key) => Cut::new(order, key, Side::After),
            Bound::Unbounded => Cut::open(order, Side::Start),
        };
        let hi = match hi {
            Bound::Included(key) => Cut::new(order, key, Side::After),
            Bound::Excluded(key) => Cut::new(order, key, Side::Before),
            Bound::Unbounded => Cut::open(order, Side::End),
        };
        Span::between(lo, hi.as_ref())
    }

    /// `None` when `lo` does not lie before `hi`.
    pub fn between(lo: Cut, hi: CutRef<'_>) -> Option<Span> {
        if lo.as_ref() >= hi {
            return None;
        }
        let is_key = lo.side == Side::Before && lo.after() == hi;
        let hi = (!is_key).then(|| Box::new(hi.to_cut()));
        Some(Span { lo, hi })
    }

    /// The end, not part of the span.
    #[inline]
    pub fn end(&self) -> CutRef<'_> {
        self.hi.as_ref().map_or_else(|| self.lo.after(), |hi| hi.as_ref().as_ref())
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        self.lo.as_ref() < other.end() && other.lo.as_ref() < self.end()
    }

    /// Makes the span reach over `other` too, if they overlap or touch.
    pub fn extend(&mut self, other: &Span) -> bool {
        if self.lo.as_ref() > other.end() || other.lo.as_ref() > self.end() {
            return false;
        }
        let end = self.end().max(other.end()).to_cut();
        if other.lo < self.lo {
            self.lo = other.lo.clone();
        }
        self.hi = Some(Box::new(end));
        true
    }

    /// Approximate bytes on the heap.
    pub fn heap(&self) -> u64 {
        let hi = self.hi.as_ref().map_or(0, |hi| size_of::<Cut>() as u64 + hi.key.heap());
        self.lo.key.heap() + hi
    }

    pub fn target(&self) -> LockTarget {
        match self.hi {
            None => LockTarget::Key(self.lo.key.as_slice().to_vec()),
            Some(_) => LockTarget::Range(self.lo.as_ref().lower(), self.end().upper()),
        }
    }
}
