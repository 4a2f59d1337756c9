//! Ranges of keys, as every verb that takes a range takes them.

use kingtide_base::{Error, KeyOrder, Result};
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys, as taken by [`ColumnFamily::range`](crate::ColumnFamily::range), `delete_range` and other methods.
///
/// All range expressions over byte strings are key ranges, and so are pairs of bounds:
///
/// ```
/// use kingtide::KeyRange;
/// use std::ops::Bound;
///
/// fn takes(range: impl KeyRange) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
///     (range.lower().map(<[u8]>::to_vec), range.upper().map(<[u8]>::to_vec))
/// }
/// assert_eq!(takes(b"a"..b"b"), takes("a".."b"));
/// assert_eq!(takes(vec![1, 2]..=vec![3]).1, Bound::Included(vec![3]));
/// assert_eq!(takes("a"..).1, Bound::Unbounded);
/// assert_eq!(takes(..), (Bound::Unbounded, Bound::Unbounded));
/// assert_eq!(takes((Bound::Excluded("a"), Bound::Unbounded)).0, Bound::Excluded(b"a".to_vec()));
/// ```
///
/// Both ends of a Rust range have the same type, and the length of a byte string literal is part of its type: write `"a".."bc"` or
/// `&b"a"[..]..b"bc"`.
///
/// The key order of the family determines which keys are in a range. A range whose lower end sorts after its upper end holds no key:
/// reads and estimates find nothing there, and locking it locks nothing. `delete_range`, `compact_range` and `reclaim_range` refuse such a
/// range with `InvalidArgument`.
pub trait KeyRange {
    /// The lower bound.
    fn lower(&self) -> Bound<&[u8]>;

    /// The upper bound.
    fn upper(&self) -> Bound<&[u8]>;
}

/// The bounds as owned keys.
pub(crate) fn owned_bounds(range: &impl KeyRange) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (range.lower().map(<[u8]>::to_vec), range.upper().map(<[u8]>::to_vec))
}

/// Refuses a range whose lower end sorts after its upper end, for a `call` that would change something in it.
pub(crate) fn check_ends(call: &str, order: &KeyOrder, range: &impl KeyRange) -> Result<()> {
    let key = |bound| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    };
    match key(range.lower()).zip(key(range.upper())) {
        Some((start, end)) if order.compare(start, end).is_gt() => {
            Err(Error::invalid(format!("{call}: start sorts after end")))
        }
        _ => Ok(()),
    }
}

macro_rules! key_range {
    ($range:ty, |$r:ident| $lower:expr, $upper:expr) => {
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn lower(&self) -> Bound<&[u8]> {
                let $r = self;
                $lower
            }

            fn upper(&self) -> Bound<&[u8]> {
                let $r = self;
                $upper
            }
        }
    };
}

key_range!(Range<K>, |r| Bound::Included(r.start.as_ref()), Bound::Excluded(r.end.as_ref()));
key_range!(RangeInclusive<K>, |r| Bound::Included(r.start().as_ref()), Bound::Included(r.end().as_ref()));
key_range!(RangeFrom<K>, |r| Bound::Included(r.start.as_ref()), unbounded(r));
key_range!(RangeTo<K>, |r| unbounded(r), Bound::Excluded(r.end.as_ref()));
key_range!(RangeToInclusive<K>, |r| unbounded(r), Bound::Included(r.end.as_ref()));
key_range!((Bound<K>, Bound<K>), |r| r.0.as_ref().map(AsRef::as_ref), r.1.as_ref().map(AsRef::as_ref));
key_range!([Bound<K>; 2], |r| r[0].as_ref().map(AsRef::as_ref), r[1].as_ref().map(AsRef::as_ref));

fn unbounded<R>(_: &R) -> Bound<&[u8]> {
    Bound::Unbounded
}

impl KeyRange for RangeFull {
    fn lower(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn upper(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

impl<R: KeyRange + ?Sized> KeyRange for &R {
    fn lower(&self) -> Bound<&[u8]> {
        (**self).lower()
    }

    fn upper(&self) -> Bound<&[u8]> {
        (**self).upper()
    }
}
