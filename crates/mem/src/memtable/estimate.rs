//! How many keys lie between two places, without looking at most of them.
//!
//! Few are counted, leaf by leaf. Of many it is estimated what share of all comes before each of the places, from the
//! path down to it, as if all nodes of one height held equally many keys. They hold between half of a node and a whole
//! one, except at the right end of the tree, where a root can have one full child and one that is nearly empty; so the
//! children of the root count as much as they have children themselves.

use std::cmp::Ordering as Order;
use std::ops::Bound;
use std::sync::Arc;

use kingtide_base::Tag;

use super::tree::{Side, Target, Tree, child_index};
use super::{MemIter, Memtable};

/// Leaves that are counted before the rest is estimated: some 500 to 1000 keys.
const COUNTED_LEAVES: usize = 16;

/// What lies between two places of a [`Memtable`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemRange {
    /// Keys, each once however many versions it has, deleted ones included.
    pub keys: u64,
    /// Whether they were counted. Otherwise they were estimated, and are more than a few hundred.
    pub counted: bool,
}

/// A place between entries: before the first that is not below it; the end without one.
type Place<'k> = Option<(&'k [u8], Tag)>;

impl Memtable {
    /// Keys within the bounds. Copies at most 16 leaves and goes down the tree twice: a few microseconds. An
    /// estimate is off by a third at worst when keys came in random order, typically by a tenth of the smaller one of the
    /// range and what is left of and right of it. Keys that are inserted meanwhile may count or not.
    pub fn count(self: &Arc<Self>, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> MemRange {
        let first = match lower {
            Bound::Included(key) => Some((key, Tag(u64::MAX))),
            Bound::Excluded(key) => Some((key, Tag(0))),
            Bound::Unbounded => None,
        };
        let end = match upper {
            Bound::Included(key) => Some((key, Tag(0))),
            Bound::Excluded(key) => Some((key, Tag(u64::MAX))),
            Bound::Unbounded => None,
        };
        if self.is_empty() || first.is_none() && end.is_none() {
            return MemRange { keys: self.keys(), counted: true };
        }
        let mut cursor = self.iter();
        match first {
            Some((key, tag)) => cursor.seek(key, tag),
            None => cursor.first(),
        }
        let (keys, counted) = cursor.count_to(end, COUNTED_LEAVES);
        if counted {
            return MemRange { keys, counted };
        }
        let before = first.map_or(0.0, |(key, _)| self.tree.share_before(&self.tree.target(key)));
        let up_to = end.map_or(1.0, |(key, _)| self.tree.share_before(&self.tree.target(key)));
        let estimate = ((up_to - before) * self.keys() as f64) as u64; // saturates at 0
        MemRange { keys: estimate.max(keys), counted }
    }
}

impl Tree {
    /// About the share of all keys that come before the target.
    fn share_before(&self, target: &Target<'_>) -> f64 {
        'restart: loop {
            let Some((mut node, mut version)) = self.enter() else { return 0.0 };
            let (mut start, mut width, mut is_root) = (0.0, 1.0, true);
            loop {
                let Some(place) = self.locate(node, version, target) else { continue 'restart };
                let children = node.len().max(1);
                if node.is_leaf() {
                    let share = start + width * place.0 as f64 / children as f64;
                    if node.validate(version) {
                        return share;
                    }
                    continue 'restart;
                }
                let i = child_index(place, Side::At);
                let Some(child) = self.step(node, version, i) else { continue 'restart };
                let (mut before, mut own, mut all) = (i as f64, 1.0, children as f64);
                if std::mem::take(&mut is_root) {
                    (before, all) = (0.0, 0.0);
                    for j in 0..children {
                        let Some((sibling, _)) = self.step(node, version, j) else { continue 'restart };
                        let weight = sibling.len() as f64;
                        before += if j < i { weight } else { 0.0 };
                        own = if j == i { weight } else { own };
                        all += weight;
                    }
                }
                start += width * before / f64::max(all, 1.0);
                width *= own / f64::max(all, 1.0);
                (node, version) = child;
            }
        }
    }
}

impl MemIter {
    /// Goes to the first key of the next leaf, or to none, and returns how many keys that is on: 64 at most.
    pub fn skip_leaf(&mut self) -> usize {
        if !self.valid() {
            return 0;
        }
        let (pos, count) = self.in_leaf();
        self.go_in_leaf(count - 1);
        self.next_key();
        count - pos
    }

    /// Keys from the current one up to `end`, and whether those are all: otherwise more than `leaves` leaves would have to be
    /// copied, and these are the keys of the first. The cursor goes to some entry, or to none.
    fn count_to(&mut self, end: Place<'_>, leaves: usize) -> (u64, bool) {
        let mut keys = 0;
        for _ in 0..leaves {
            if !self.valid() {
                return (keys, true);
            }
            let (from, count) = self.in_leaf();
            let ends_here = end.is_some_and(|end| self.is_at_or_past(count - 1, end));
            if ends_here {
                let (mut low, mut high) = (from, count - 1);
                while low < high {
                    let mid = low + (high - low) / 2;
                    if end.is_some_and(|end| self.is_at_or_past(mid, end)) { high = mid } else { low = mid + 1 }
                }
                return (keys + (low - from) as u64, true);
            }
            keys += (count - from) as u64;
            self.skip_leaf();
        }
        (keys, !self.valid())
    }

    fn is_at_or_past(&mut self, pos: usize, (key, tag): (&[u8], Tag)) -> bool {
        self.go_in_leaf(pos);
        let order = self.table().order().compare(self.key(), key).then_with(|| tag.cmp(&self.tag()));
        order != Order::Less
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::ArenaPool;
    use kingtide_base::budget::Budget;
    use kingtide_base::rng::Rng;
    use kingtide_base::{KeyOrder, Kind};

    fn key_of(shape: u32, i: u64, n: u64, rng: &mut Rng) -> Vec<u8> {
        match shape {
            0 => rng.next_u64().to_be_bytes().to_vec(),
            1 => i.to_be_bytes().to_vec(),
            2 => (n + 9 - i).to_be_bytes().to_vec(),
            3 => format!("{}:{i:09}", rng.below(5)).into_bytes(), // five ascending streams
            4 => format!("user:{:09}", rng.below(n / 10 + 1)).into_bytes(), // ten versions of each
            _ => vec![b'k'; rng.below(40) as usize],              // many versions of few
        }
    }

    #[test]
    fn counts_few_keys_and_estimates_many() {
        let sizes: &[u64] = if cfg!(miri) { &[0, 1, 200] } else { &[0, 1, 63, 65, 700, 5000, 40_000] };
        let (mut estimates, mut sum, mut worst) = (0, 0.0, 0.0f64);
        for (shape, n) in (0..6).flat_map(|shape| sizes.iter().map(move |n| (shape, *n))) {
            let mut rng = Rng::new(n + u64::from(shape));
            let table = Arc::new(Memtable::new(KeyOrder::Bytewise, &ArenaPool::new(Budget::new(u64::MAX))));
            let mut keys: Vec<Vec<u8>> = (0..n).map(|i| key_of(shape, i, n, &mut rng)).collect();
            for (i, key) in keys.iter().enumerate() {
                table.writer().insert(key, Tag::new(i as u64 + 1, Kind::Put), b"v");
            }
            keys.sort();
            keys.dedup();
            let n = keys.len() as u64;
            for _ in 0..if cfg!(miri) { 5 } else { 200 } {
                let bound = |rng: &mut Rng| {
                    let i = rng.below(n + 2);
                    let key = match keys.get(i as usize) {
                        Some(key) if !rng.one_in(4) => key.clone(),
                        _ => key_of(shape, i, n.max(2), rng),
                    };
                    [Bound::Included(key.clone()), Bound::Excluded(key), Bound::Unbounded][(rng.below(9) / 4) as usize]
                        .clone()
                };
                let (lower, upper) = (bound(&mut rng), bound(&mut rng));
                let before = match &lower {
                    Bound::Included(k) => keys.partition_point(|x| x < k),
                    Bound::Excluded(k) => keys.partition_point(|x| x <= k),
                    Bound::Unbounded => 0,
                };
                let up_to = match &upper {
                    Bound::Included(k) => keys.partition_point(|x| x <= k),
                    Bound::Excluded(k) => keys.partition_point(|x| x < k),
                    Bound::Unbounded => keys.len(),
                };
                let want = up_to.saturating_sub(before) as u64;
                let got = table.count(lower.as_ref().map(|k| &k[..]), upper.as_ref().map(|k| &k[..]));
                let what = format!("shape {shape}, {n} keys, {lower:?}..{upper:?}: {got:?}, are {want}");
                if got.counted {
                    assert_eq!(got.keys, want, "{what}");
                    continue;
                }
                let least = want.min(n - want).max(n / 20) as f64;
                let off = (got.keys as f64 - want as f64).abs() / least;
                // Leaves are small under Miri, so few entries are too many to count there.
                assert!(cfg!(miri) || want > 300 && off < 0.5, "{what}");
                (estimates, sum, worst) = (estimates + 1, sum + off, worst.max(off));
            }
        }
        println!(
            "{estimates} estimates, off by {:.3} on average and {worst:.3} at worst",
            sum / f64::from(estimates.max(1))
        );
        assert!(cfg!(miri) || estimates > 500);
    }
}
