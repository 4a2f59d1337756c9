//! The range-tombstone section of a key log.
//!
//! | bytes | what |
//! |---|---|
//! | varint | number of tombstones |
//! | ... | for each: start and end, both length-prefixed, and the sequence number, varint |
//!
//! Sorted by start ascending, then sequence number descending.

use crate::info::RangeTombstone;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::key::MAX_SEQ;
use kingtide_base::{Error, KeyOrder, Result};

/// Brings tombstones into the order of the section.
pub fn sort(tombstones: &mut [RangeTombstone], order: &KeyOrder) {
    tombstones.sort_by(|a, b| order.compare(&a.start, &b.start).then(b.seq.cmp(&a.seq)));
}

/// The section's bytes.
pub fn encode(tombstones: &[RangeTombstone]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, tombstones.len() as u64);
    for t in tombstones {
        put_slice(&mut out, &t.start);
        put_slice(&mut out, &t.end);
        put_varint(&mut out, t.seq);
    }
    out
}

/// Reads the section.
///
/// # Errors
/// `Corruption` when the bytes are not such a section, or a range is empty.
pub fn decode(bytes: &[u8], order: &KeyOrder) -> Result<Vec<RangeTombstone>> {
    read(bytes, order).ok_or_else(|| Error::corruption("damaged range tombstones"))
}

fn read(bytes: &[u8], order: &KeyOrder) -> Option<Vec<RangeTombstone>> {
    let mut r = Reader::new(bytes);
    let n = usize::try_from(r.varint()?).ok().filter(|n| *n <= bytes.len())?;
    let mut all = Vec::new();
    for _ in 0..n {
        let t = RangeTombstone { start: r.slice()?.to_vec(), end: r.slice()?.to_vec(), seq: r.varint()? };
        let is_empty = if order.is_known() { order.compare(&t.start, &t.end).is_ge() } else { t.start == t.end };
        if t.seq > MAX_SEQ || is_empty {
            return None;
        }
        all.push(t);
    }
    r.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_truncation() {
        let order = KeyOrder::Bytewise;
        let t = |s: &[u8], e: &[u8], seq| RangeTombstone { start: s.to_vec(), end: e.to_vec(), seq };
        let mut all = vec![t(b"m", b"z", 3), t(b"a", b"c", 1), t(b"a", b"b", 9)];
        sort(&mut all, &order);
        assert_eq!(all.iter().map(|t| t.seq).collect::<Vec<_>>(), [9, 1, 3]);
        let bytes = encode(&all);
        assert_eq!(decode(&bytes, &order).unwrap(), all);
        assert!((0..bytes.len()).all(|n| decode(&bytes[..n], &order).is_err()));
        assert!(decode(&bytes, &KeyOrder::Reverse).is_err());
        let backwards = encode(&[t(b"b", b"a", 1)]);
        let unknown = KeyOrder::Custom(kingtide_base::key::unknown_order("mine".to_owned()));
        assert!(decode(&backwards, &order).is_err());
        assert_eq!(decode(&backwards, &unknown).unwrap().len(), 1, "which end is the first is not known");
        assert!(decode(&encode(&[t(b"b", b"b", 1)]), &unknown).is_err());
    }
}
