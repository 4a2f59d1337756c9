//! What a transaction wrote to a family and did not commit yet, sorted, as the newest source of its iterators.
//!
//! Of each key only the newest operation is kept, and none that a later range delete covers. So an entry here always
//! decides its key, and the range deletes hide every committed entry in them: neither needs a sequence number. For the
//! merge's sake entries carry the iterator's snapshot as theirs, the newest that it shows; a committed version may carry
//! the same, but of equals the earlier source comes first.

use crate::family::tables::VlogHandle;
use crate::rangedel::RangeTombstones;
use kingtide_base::{KeyOrder, Kind, SeqNo, Tag};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// A transaction's own writes to one family as of some moment. Immutable.
#[doc(hidden)] // an iterator takes one; it cannot be made outside
pub struct Overlay {
    order: KeyOrder,
    /// By ascending key.
    entries: Vec<Entry>,
    /// Keys and stored values.
    bytes: Vec<u8>,
    /// The range deletes; which of them covers a key does not matter.
    ranges: Arc<RangeTombstones>,
    /// The same as they were written: start and exclusive end.
    deleted: Vec<(Vec<u8>, Vec<u8>)>,
    /// The value logs that entries point into.
    files: Vec<Arc<VlogHandle>>,
}

struct Entry {
    head: u64,
    /// Low byte of the tag.
    kind: u8,
    /// Where the key begins; the value follows it.
    at: usize,
    key_len: usize,
    value_len: usize,
}

/// What an overlay says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own<'a> {
    /// The newest operation on the key: low byte of its tag, and stored value.
    Written(u8, &'a [u8]),
    /// Deleted with its range, and not written since.
    Deleted,
}

/// The bytes of an operation, in place.
type Op<'a> = (u8, &'a [u8], &'a [u8]);

impl Overlay {
    /// The overlay of operations in the order in which they were written, each with the low byte of its tag, its key and
    /// its stored value; a range delete with its start and its exclusive end. `None` if there are none. O(n log n).
    pub(crate) fn build<'a>(order: &KeyOrder, ops: impl Iterator<Item = Op<'a>>) -> Option<Arc<Overlay>> {
        let mut points: Vec<(u64, SeqNo, Op<'a>)> = Vec::new();
        let mut ranges: Vec<(&[u8], &[u8], SeqNo)> = Vec::new();
        for (age, op) in (1..).zip(ops) {
            match Tag(op.0 as u64).kind() {
                Some(Kind::RangeDelete) => ranges.push((op.1, op.2, age)),
                Some(Kind::Put | Kind::PutPointer | Kind::Delete | Kind::SingleDelete) => {
                    points.push((order.head(op.1), age, op));
                }
                None => debug_assert!(false, "no batch holds {:#x}", op.0),
            }
        }
        if points.is_empty() && ranges.is_empty() {
            return None;
        }
        points.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| order.compare(a.2.1, b.2.1)).then_with(|| b.1.cmp(&a.1))
        });
        points.dedup_by(|older, newer| older.0 == newer.0 && order.compare(older.2.1, newer.2.1).is_eq());
        let deleted = ranges.iter().map(|(start, end, _)| (start.to_vec(), end.to_vec())).collect();
        let ranges = RangeTombstones::build(order, ranges);
        if !ranges.is_empty() {
            points.retain(|(_, age, op)| ranges.max_covering(op.1, SeqNo::MAX) < *age);
        }
        let len = points.iter().map(|(_, _, op)| op.1.len() + op.2.len()).sum();
        let mut bytes = Vec::with_capacity(len);
        let entries = points
            .into_iter()
            .map(|(head, _, (kind, key, value))| {
                let at = bytes.len();
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
                Entry { head, kind, at, key_len: key.len(), value_len: value.len() }
            })
            .collect();
        Some(Arc::new(Overlay {
            order: order.clone(),
            entries,
            bytes,
            ranges: Arc::new(ranges),
            deleted,
            files: Vec::new(),
        }))
    }

    /// Does the same, with value logs that entries point into and that stay as long as it does.
    pub(crate) fn keep(
        own: Option<Arc<Overlay>>,
        files: impl Iterator<Item = Arc<VlogHandle>>,
    ) -> Option<Arc<Overlay>> {
        let mut own = own?;
        if let Some(overlay) = Arc::get_mut(&mut own) {
            overlay.files.extend(files);
        }
        Some(own)
    }

    /// Operations that amount to this overlay between two bounds, in an order in which they could have been written.
    pub(crate) fn ops_within<'a>(
        &'a self,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
    ) -> impl Iterator<Item = Op<'a>> {
        let from = match lower {
            Bound::Unbounded => 0,
            Bound::Included(k) => self.entries.partition_point(|e| self.compare(e, k, self.order.head(k)).is_lt()),
            Bound::Excluded(k) => self.entries.partition_point(|e| self.compare(e, k, self.order.head(k)).is_le()),
        };
        let until = match upper {
            Bound::Unbounded => self.entries.len(),
            Bound::Included(k) => self.entries.partition_point(|e| self.compare(e, k, self.order.head(k)).is_le()),
            Bound::Excluded(k) => self.entries.partition_point(|e| self.compare(e, k, self.order.head(k)).is_lt()),
        };
        let points = self.entries.get(from..until).unwrap_or_default();
        let ranges = self.deleted.iter().map(|(start, end)| (Kind::RangeDelete as u8, &start[..], &end[..]));
        ranges.chain(points.iter().map(|e| (e.kind, self.key(e), self.value(e))))
    }

    /// Returns what it says of a key; `None` if nothing. O(log n).
    pub(crate) fn get(&self, key: &[u8]) -> Option<Own<'_>> {
        let head = self.order.head(key);
        let at = self.entries.partition_point(|e| self.compare(e, key, head).is_lt());
        match self.entries.get(at) {
            Some(e) if self.compare(e, key, head).is_eq() => Some(Own::Written(e.kind, self.value(e))),
            _ if self.ranges.max_covering(key, SeqNo::MAX) > 0 => Some(Own::Deleted),
            _ => None,
        }
    }

    /// The range deletes, whose sequence numbers mean nothing outside.
    pub(crate) fn ranges(&self) -> &Arc<RangeTombstones> {
        &self.ranges
    }

    fn key(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.at..][..e.key_len]
    }

    fn value(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.at + e.key_len..][..e.value_len]
    }

    /// Returns how the entry lies to a key.
    fn compare(&self, e: &Entry, key: &[u8], head: u64) -> Ordering {
        e.head.cmp(&head).then_with(|| self.order.compare(self.key(e), key))
    }
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Overlay({} keys, {} range deletes)", self.entries.len(), self.ranges.len())
    }
}

/// A cursor over an overlay's entries. Its methods are marked cold, not because they are, but to stay out of line in the
/// merge, whose steps are as short without a transaction as they were.
pub(crate) struct OwnIter {
    overlay: Arc<Overlay>,
    /// Sequence number that the entries carry.
    seq: SeqNo,
    /// Index of the current entry; past the last, or `usize::MAX` before the first, when there is none.
    at: usize,
}

impl OwnIter {
    pub(crate) fn new(overlay: Arc<Overlay>, seq: SeqNo) -> OwnIter {
        OwnIter { overlay, seq, at: usize::MAX }
    }

    pub(crate) fn entries(&self) -> u64 {
        self.overlay.entries.len() as u64
    }

    fn entry(&self) -> Option<&Entry> {
        self.overlay.entries.get(self.at)
    }

    #[cold]
    pub(crate) fn valid(&self) -> bool {
        self.at < self.overlay.entries.len()
    }

    #[cold]
    pub(crate) fn key(&self) -> &[u8] {
        self.entry().map_or(&[], |e| self.overlay.key(e))
    }

    #[cold]
    pub(crate) fn value(&self) -> &[u8] {
        self.entry().map_or(&[], |e| self.overlay.value(e))
    }

    #[cold]
    pub(crate) fn head(&self) -> u64 {
        self.entry().map_or(0, |e| e.head)
    }

    #[cold]
    pub(crate) fn tag(&self) -> Tag {
        self.entry().map_or(Tag(0), |e| self.tag_of(e))
    }

    fn tag_of(&self, e: &Entry) -> Tag {
        Tag(e.kind as u64).with_seq(self.seq)
    }

    #[cold]
    pub(crate) fn first(&mut self) {
        self.at = 0;
    }

    #[cold]
    pub(crate) fn last(&mut self) {
        self.at = self.overlay.entries.len().wrapping_sub(1);
    }

    /// Number of entries before `(key, tag)`.
    fn before(&self, key: &[u8], head: u64, tag: Tag) -> usize {
        let overlay = &*self.overlay;
        overlay.entries.partition_point(|e| match overlay.compare(e, key, head) {
            Ordering::Equal => self.tag_of(e) > tag,
            other => other.is_lt(),
        })
    }

    /// Goes to the first entry at or after `(key, tag)`.
    #[cold]
    pub(crate) fn seek(&mut self, key: &[u8], head: u64, tag: Tag) {
        self.at = self.before(key, head, tag);
    }

    /// Goes to the last entry before `(key, tag)`.
    #[cold]
    pub(crate) fn seek_lt(&mut self, key: &[u8], head: u64, tag: Tag) {
        self.at = self.before(key, head, tag).wrapping_sub(1);
    }

    /// Only called while valid.
    #[cold]
    pub(crate) fn next(&mut self) {
        self.at += 1;
    }

    /// Only called while valid.
    #[cold]
    pub(crate) fn prev(&mut self) {
        self.at = self.at.wrapping_sub(1);
    }
}
