//! Range tombstones, fragmented for queries.
//!
//! The bounds of all tombstones cut the key space into spans within which the set of covering tombstones is constant.
//! Each span keeps its newest sequence number, which answers almost every query after one binary search. A query at an
//! older snapshot asks for the newest tombstone at or below it; for that each span has the root of a persistent segment
//! tree over the tombstones ranked by age (Driscoll et al., "Making data structures persistent", JCSS 1989). Neighbouring
//! spans share all nodes but a path, so n tombstones need O(n log n) bytes however deeply they nest: a queue that
//! deletes `[0, k)` again and again would need n^2 with a list for each span.

use kingtide_base::budget::{Budget, Charge};
use kingtide_base::sync::Mutex;
use kingtide_base::{KeyOrder, SeqNo};
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

pub use kingtide_table::RangeTombstone;

/// Place of an iterator in a [`RangeTombstones`]: makes queries with nearby keys, in either direction, cheap.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanCursor {
    /// Number of bounds at or below the last key asked for; the span is the one that begins at the last of them.
    at: usize,
}

/// Bytes that a key takes, with what the allocator adds: keys may be short.
pub fn allocated(key: &[u8]) -> u64 {
    (key.len().next_multiple_of(16) + 16) as u64
}

/// Bytes of memory that a list of tombstones takes.
pub fn list_memory(list: &[RangeTombstone]) -> u64 {
    list.iter().map(|t| size_of::<RangeTombstone>() as u64 + allocated(&t.start) + allocated(&t.end)).sum()
}

/// An immutable set of range tombstones.
#[derive(Default)]
pub struct RangeTombstones {
    order: KeyOrder,
    /// Span `i` is `[bounds[i], bounds[i + 1])`. The last bound begins nothing: its root is empty.
    bounds: Vec<Vec<u8>>,
    heads: Vec<u64>,
    /// Newest sequence number of each span, 0 when nothing covers it.
    newest: Vec<SeqNo>,
    roots: Vec<u32>,
    /// Sequence numbers in ascending order: the leaves' ranks.
    seqs: Vec<SeqNo>,
    /// Children of each inner node; 0 is the empty tree. Level by level halves of a range of ranks.
    nodes: Vec<[u32; 2]>,
    /// The charge for this set, if it is charged. It is the set's own: readers may keep the set longer than the memtable or view it was built for.
    charge: Option<Mutex<Charge>>,
}

/// A leaf that is present. Leaves need no node of their own.
const PRESENT: u32 = u32::MAX;

impl RangeTombstones {
    /// Fragments tombstones given as `(start, end, seq)` in any order. Empty ranges are ignored. O(n log n).
    pub fn build<'a>(order: &KeyOrder, items: impl IntoIterator<Item = (&'a [u8], &'a [u8], SeqNo)>) -> Self {
        Self::build_within(order, items, None, None)
    }

    /// The same, with the tombstones truncated to `[lo, hi)`; `None` does not bound.
    pub fn build_within<'a>(
        order: &KeyOrder,
        items: impl IntoIterator<Item = (&'a [u8], &'a [u8], SeqNo)>,
        lo: Option<&'a [u8]>,
        hi: Option<&'a [u8]>,
    ) -> Self {
        let mut items: Vec<(&[u8], &[u8], SeqNo)> = items
            .into_iter()
            .map(|(start, end, seq)| {
                let start = lo.map_or(start, |lo| if order.compare(lo, start).is_gt() { lo } else { start });
                let end = hi.map_or(end, |hi| if order.compare(hi, end).is_lt() { hi } else { end });
                (start, end, seq)
            })
            .filter(|(start, end, _)| order.compare(start, end).is_lt())
            .collect();
        let mut set = RangeTombstones { order: order.clone(), nodes: vec![[0, 0]], ..Default::default() };
        if items.is_empty() {
            return set;
        }
        items.sort_by_key(|t| t.2);
        set.seqs = items.iter().map(|t| t.2).collect();
        // One event where a tombstone begins and one where it ends; at equal keys their order does not matter, because
        // only the state after the last of them becomes a span.
        let mut events: Vec<(&[u8], u32, u32)> = Vec::with_capacity(items.len() * 2);
        for (rank, (start, end, _)) in items.iter().enumerate() {
            events.push((start, rank as u32, PRESENT));
            events.push((end, rank as u32, 0));
        }
        events.sort_by(|a, b| order.compare(a.0, b.0));
        let mut root = 0;
        for (i, (key, rank, leaf)) in events.iter().enumerate() {
            root = set.with_leaf(root, 0, set.seqs.len(), *rank as usize, *leaf);
            if events.get(i + 1).is_some_and(|next| order.compare(key, next.0).is_eq()) {
                continue;
            }
            set.bounds.push(key.to_vec());
            set.heads.push(order.head(key));
            set.newest.push(set.newest_below(root, set.seqs.len()));
            set.roots.push(root);
        }
        set
    }

    /// A copy of the tree over ranks `[lo, hi)` with one leaf changed. Recursion depth is log2 of the number of ranks.
    fn with_leaf(&mut self, node: u32, lo: usize, hi: usize, rank: usize, leaf: u32) -> u32 {
        if hi - lo == 1 {
            return leaf;
        }
        let mid = lo + (hi - lo) / 2;
        let mut children = self.nodes[node as usize];
        if rank < mid {
            children[0] = self.with_leaf(children[0], lo, mid, rank, leaf);
        } else {
            children[1] = self.with_leaf(children[1], mid, hi, rank, leaf);
        }
        if children == [0, 0] {
            return 0;
        }
        self.nodes.push(children);
        (self.nodes.len() - 1) as u32
    }

    /// Sequence number of the greatest present rank below `limit`; 0 when there is none.
    fn newest_below(&self, root: u32, limit: usize) -> SeqNo {
        self.rank_below(root, 0, self.seqs.len(), limit).map_or(0, |rank| self.seqs[rank])
    }

    fn rank_below(&self, node: u32, lo: usize, hi: usize, limit: usize) -> Option<usize> {
        if node == 0 || lo >= limit {
            return None;
        }
        if hi - lo == 1 {
            return Some(lo);
        }
        let mid = lo + (hi - lo) / 2;
        let [left, right] = self.nodes[node as usize];
        self.rank_below(right, mid, hi, limit).or_else(|| self.rank_below(left, lo, mid, limit))
    }

    /// Whether there are none. Every other query may be skipped then.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Number of tombstones it was built from.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> u64 {
        let keys: usize = self.bounds.iter().map(|b| b.capacity() + size_of::<Vec<u8>>() + 20).sum();
        (keys + self.nodes.capacity() * 8 + self.seqs.capacity() * 8) as u64
    }

    /// Charges what it holds to `budget` for as long as it lives. O(spans).
    pub fn charged(mut self, budget: &Arc<Budget>) -> RangeTombstones {
        self.charge = Some(Mutex::new(Charge::new(budget, self.memory())));
        self
    }

    /// Charges another budget for this set from now on, if it is charged at all.
    pub fn charge_to(&self, budget: &Arc<Budget>) {
        self.charge.iter().for_each(|charge| charge.lock().charge_to(budget));
    }

    /// Newest sequence number at or below `snapshot` of a tombstone that covers `key`; 0 when there is none. An entry
    /// of the key is deleted for that snapshot if its sequence number is smaller. O(log n).
    pub fn max_covering(&self, key: &[u8], snapshot: SeqNo) -> SeqNo {
        if self.is_empty() {
            return 0;
        }
        self.span_newest(self.bounds_at_or_below(key), snapshot)
    }

    /// Newest sequence number of a tombstone that overlaps the bounds, which hold some key; 0 when there is none. O(log n) and the number of
    /// spans there.
    pub fn newest_within(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> SeqNo {
        let from = match lo {
            Bound::Included(key) | Bound::Excluded(key) => self.bounds_at_or_below(key).saturating_sub(1),
            Bound::Unbounded => 0,
        };
        let begins_within = |bound: &Vec<u8>| match hi {
            Bound::Included(key) => self.order.compare(bound, key).is_le(),
            Bound::Excluded(key) => self.order.compare(bound, key).is_lt(),
            Bound::Unbounded => true,
        };
        let spans = self.bounds.iter().zip(&self.newest).skip(from);
        spans.take_while(|(bound, _)| begins_within(bound)).map(|(_, newest)| *newest).max().unwrap_or(0)
    }

    /// The spans that are covered and have keys within the bounds, with the newest sequence number of each. O(log n) to the
    /// first.
    pub fn spans_within<'a>(
        &'a self,
        lo: Bound<&[u8]>,
        hi: Bound<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8], SeqNo)> {
        let from = match lo {
            Bound::Included(key) | Bound::Excluded(key) => self.bounds_at_or_below(key).saturating_sub(1),
            Bound::Unbounded => 0,
        };
        let spans = self.bounds.iter().zip(self.bounds.iter().skip(1)).zip(&self.newest).skip(from);
        spans
            .take_while(move |((start, _), _)| match hi {
                Bound::Included(key) => self.order.compare(start, key).is_le(),
                Bound::Excluded(key) => self.order.compare(start, key).is_lt(),
                Bound::Unbounded => true,
            })
            .filter(|(_, newest)| **newest > 0)
            .map(|((start, end), newest)| (start.as_slice(), end.as_slice(), *newest))
    }

    /// The same as [`RangeTombstones::max_covering`] for an iterator: constant time while keys stay in the cursor's
    /// span or a neighbour.
    pub fn max_covering_near(&self, cursor: &mut SpanCursor, key: &[u8], snapshot: SeqNo) -> SeqNo {
        if self.is_empty() {
            return 0;
        }
        self.move_to(cursor, key);
        self.span_newest(cursor.at, snapshot)
    }

    /// Bounds of the span that the cursor's last key lies in; `None` for the ends of the key space.
    pub fn span(&self, cursor: &SpanCursor) -> (Option<&[u8]>, Option<&[u8]>) {
        let start = cursor.at.checked_sub(1).and_then(|i| self.bounds.get(i));
        (start.map(Vec::as_slice), self.bounds.get(cursor.at).map(Vec::as_slice))
    }

    fn move_to(&self, cursor: &mut SpanCursor, key: &[u8]) {
        let head = self.order.head(key);
        let starts_after = |i: usize| i >= self.bounds.len() || self.compare_bound(i, head, key).is_gt();
        for at in [cursor.at, cursor.at + 1, cursor.at.wrapping_sub(1)] {
            if at <= self.bounds.len() && (at == 0 || !starts_after(at - 1)) && starts_after(at) {
                cursor.at = at;
                return;
            }
        }
        cursor.at = self.bounds_at_or_below(key);
    }

    #[inline]
    fn compare_bound(&self, i: usize, head: u64, key: &[u8]) -> Ordering {
        self.heads[i].cmp(&head).then_with(|| self.order.compare(&self.bounds[i], key))
    }

    fn bounds_at_or_below(&self, key: &[u8]) -> usize {
        let head = self.order.head(key);
        let (mut lo, mut hi) = (0, self.bounds.len());
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if self.compare_bound(mid, head, key).is_gt() { hi = mid } else { lo = mid + 1 }
        }
        lo
    }

    fn span_newest(&self, bounds_below: usize, snapshot: SeqNo) -> SeqNo {
        let Some(span) = bounds_below.checked_sub(1) else { return 0 };
        let newest = self.newest[span];
        if newest <= snapshot {
            return newest;
        }
        self.newest_below(self.roots[span], self.seqs.partition_point(|s| *s <= snapshot))
    }

    /// The tombstones that some snapshot can tell from the others, as disjoint fragments for each stripe: what a merge
    /// has to keep. `snapshots` is ascending; a tombstone newer than all of them is kept for itself.
    pub fn visible_fragments(&self, snapshots: &[SeqNo]) -> Vec<RangeTombstone> {
        let mut limits: Vec<SeqNo> = self
            .seqs
            .iter()
            .map(|seq| snapshots.get(snapshots.partition_point(|s| s < seq)).copied().unwrap_or(*seq))
            .collect();
        limits.dedup();
        let mut out: Vec<RangeTombstone> = Vec::new();
        let mut below = 0;
        for limit in limits {
            let mut open: Option<RangeTombstone> = None;
            for span in 0..self.bounds.len() {
                let seq = self.span_newest(span + 1, limit);
                if open.as_ref().is_some_and(|f| f.seq != seq) {
                    out.extend(open.take());
                }
                if seq > below {
                    // The last bound begins an empty span, so a covered span has a bound after it.
                    let Some(end) = self.bounds.get(span + 1).cloned() else {
                        panic!("key order '{}' contradicts itself", self.order.name())
                    };
                    match &mut open {
                        Some(f) => f.end = end,
                        None => open = Some(RangeTombstone { start: self.bounds[span].clone(), end, seq }),
                    }
                }
            }
            out.extend(open);
            below = limit;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;

    type Item = (Vec<u8>, Vec<u8>, SeqNo);

    fn orders() -> [KeyOrder; 5] {
        [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::U64, KeyOrder::I64, KeyOrder::CaseInsensitive]
    }

    fn random_key(rng: &mut Rng) -> Vec<u8> {
        let len = if rng.one_in(2) { 8 } else { 1 + rng.below(3) as usize };
        (0..len).map(|_| b"aAbB\x00\xff"[rng.below(6) as usize]).collect()
    }

    fn random_items(rng: &mut Rng, order: &KeyOrder, n: u64) -> Vec<Item> {
        let mut seqs: Vec<SeqNo> = (1..=n * 2).collect();
        (0..n)
            .map(|_| {
                let (mut a, mut b) = (random_key(rng), random_key(rng));
                if order.compare(&a, &b).is_gt() {
                    std::mem::swap(&mut a, &mut b);
                }
                (a, b, seqs.swap_remove(rng.below(seqs.len() as u64) as usize))
            })
            .collect()
    }

    fn slices(items: &[Item]) -> impl Iterator<Item = (&[u8], &[u8], SeqNo)> {
        items.iter().map(|(a, b, s)| (a.as_slice(), b.as_slice(), *s))
    }

    fn brute(order: &KeyOrder, items: &[Item], key: &[u8], snapshot: SeqNo) -> SeqNo {
        let covers = |t: &&Item| order.compare(&t.0, key).is_le() && order.compare(key, &t.1).is_lt();
        items.iter().filter(covers).map(|t| t.2).filter(|s| *s <= snapshot).max().unwrap_or(0)
    }

    #[test]
    fn answers_like_brute_force_in_every_order() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            for order in orders() {
                let n = rng.below(20);
                let items = random_items(&mut rng, &order, n);
                let set = RangeTombstones::build(&order, slices(&items));
                let mut cursor = SpanCursor::default();
                let mut keys: Vec<Vec<u8>> = (0..60).map(|_| random_key(&mut rng)).collect();
                if rng.one_in(2) {
                    keys.sort_by(|a, b| order.compare(a, b));
                }
                for key in keys {
                    let snapshot = rng.below(2 * n + 3);
                    let want = brute(&order, &items, &key, snapshot);
                    assert_eq!(set.max_covering(&key, snapshot), want, "seed {seed} {order:?} {key:?}@{snapshot}");
                    assert_eq!(set.max_covering_near(&mut cursor, &key, snapshot), want, "seed {seed} {order:?}");
                    let (start, end) = set.span(&cursor);
                    if !set.is_empty() {
                        assert!(start.is_none_or(|s| order.compare(s, &key).is_le()));
                        assert!(end.is_none_or(|e| order.compare(&key, e).is_lt()));
                    }
                }
            }
        }
    }

    #[test]
    fn the_newest_within_bounds_is_that_of_brute_force() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            for order in orders() {
                let n = rng.below(12);
                let items = random_items(&mut rng, &order, n);
                let set = RangeTombstones::build(&order, slices(&items));
                for _ in 0..40 {
                    let (mut a, mut b) = (random_key(&mut rng), random_key(&mut rng));
                    if order.compare(&a, &b).is_gt() {
                        std::mem::swap(&mut a, &mut b);
                    }
                    let lo =
                        [Bound::Unbounded, Bound::Included(&a[..]), Bound::Excluded(&a[..])][rng.below(3) as usize];
                    let hi =
                        [Bound::Unbounded, Bound::Included(&b[..]), Bound::Excluded(&b[..])][rng.below(3) as usize];
                    if order.compare(&a, &b).is_eq() {
                        continue; // an empty range, unless both are included
                    }
                    let meets = |t: &&Item| {
                        (lo == Bound::Unbounded || order.compare(&t.1, &a).is_gt())
                            && order.compare(&t.0, &t.1).is_lt()
                            && match hi {
                                Bound::Unbounded => true,
                                Bound::Included(_) => order.compare(&t.0, &b).is_le(),
                                Bound::Excluded(_) => order.compare(&t.0, &b).is_lt(),
                            }
                    };
                    let want = items.iter().filter(meets).map(|t| t.2).max().unwrap_or(0);
                    assert_eq!(set.newest_within(lo, hi), want, "seed {seed} {order:?} {lo:?} {hi:?} {items:?}");
                }
            }
        }
    }

    #[test]
    fn truncation_bounds_what_is_covered() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            for order in orders() {
                let items = random_items(&mut rng, &order, 8);
                let (lo, hi) = (random_key(&mut rng), random_key(&mut rng));
                let set = RangeTombstones::build_within(&order, slices(&items), Some(&lo), Some(&hi));
                for _ in 0..30 {
                    let key = random_key(&mut rng);
                    let inside = order.compare(&lo, &key).is_le() && order.compare(&key, &hi).is_lt();
                    let want = if inside { brute(&order, &items, &key, 99) } else { 0 };
                    assert_eq!(set.max_covering(&key, 99), want, "seed {seed} {order:?} {key:?} in {lo:?}..{hi:?}");
                }
            }
        }
    }

    /// What a merge keeps must answer every snapshot's questions about entries of that snapshot's stripe.
    #[test]
    fn visible_fragments_keep_every_snapshots_view() {
        for seed in 0..80 {
            let mut rng = Rng::new(seed);
            let order = orders()[rng.below(5) as usize].clone();
            let items = random_items(&mut rng, &order, 10);
            let mut snapshots: Vec<SeqNo> = (0..rng.below(4)).map(|_| rng.below(22)).collect();
            snapshots.sort_unstable();
            snapshots.dedup();
            let kept = RangeTombstones::build(&order, slices(&items)).visible_fragments(&snapshots);
            let kept: Vec<Item> = kept.into_iter().map(|f| (f.start, f.end, f.seq)).collect();
            let newest = snapshots.last().copied().unwrap_or(0);
            for _ in 0..40 {
                let key = random_key(&mut rng);
                for snapshot in snapshots.iter().copied().chain(newest..=25) {
                    let want = brute(&order, &items, &key, snapshot);
                    assert_eq!(brute(&order, &kept, &key, snapshot), want, "seed {seed} {order:?} {key:?}@{snapshot}");
                }
            }
        }
    }

    /// Nested tombstones, as a queue's consumer leaves them, must not need quadratic memory, and a merge keeps only one.
    #[test]
    fn nesting_stays_small() {
        let order = KeyOrder::Bytewise;
        let items: Vec<Item> = (1..=5000u32).map(|i| (vec![], i.to_be_bytes().to_vec(), i as SeqNo)).collect();
        let set = RangeTombstones::build(&order, slices(&items));
        assert!(set.memory() < 4 << 20, "{}", set.memory());
        assert_eq!(set.max_covering(&10u32.to_be_bytes(), 100), 100);
        assert_eq!(set.max_covering(&10u32.to_be_bytes(), 10), 0);
        assert_eq!(set.visible_fragments(&[5000]).len(), 1);
        assert_eq!(set.visible_fragments(&[100, 5000]).len(), 2);
    }
}
