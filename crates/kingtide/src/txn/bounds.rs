//! Keys and their bounds: where a key lies, and how messages show it.

use kingtide_base::KeyOrder;
use std::ops::Bound;

/// A key for a message: printable and short.
pub(crate) fn shown(key: &[u8]) -> String {
    const MOST: usize = 40;
    let mut text = key[..key.len().min(MOST)].escape_ascii().to_string();
    if key.len() > MOST {
        text.push_str("...");
    }
    text
}

pub(crate) fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Returns whether a key lies before a lower bound.
pub(crate) fn is_before(order: &KeyOrder, key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(k) => order.compare(key, k).is_lt(),
        Bound::Excluded(k) => order.compare(key, k).is_le(),
    }
}

/// Returns whether a key lies behind an upper bound.
pub(crate) fn is_behind(order: &KeyOrder, key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(k) => order.compare(key, k).is_gt(),
        Bound::Excluded(k) => order.compare(key, k).is_ge(),
    }
}
