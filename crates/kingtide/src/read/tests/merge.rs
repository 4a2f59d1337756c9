//! The merge of sources by itself: any number of them, and both kinds of steps.

use super::fixture::random_key;
use super::seeds;
use crate::memtable::FamilyMemtable;
use crate::read::merge::{Merge, Source};
use kingtide_base::budget::Budget;
use kingtide_base::rng::Rng;
use kingtide_base::{KeyOrder, Kind, Tag};
use kingtide_mem::ArenaPool;
use std::collections::BTreeSet;

/// Sources with up to 40 keys each, of which many tie in their heads, and all entries in the order of the merge, with the number of their source.
fn sources(order: &KeyOrder, count: u64, rng: &mut Rng) -> (Vec<Source>, Vec<(Vec<u8>, u64)>) {
    let pool = ArenaPool::new(Budget::new(1 << 30));
    let mut entries = Vec::new();
    let all = (0..count)
        .map(|source| {
            let memtable = FamilyMemtable::new(order.clone(), &pool, 1);
            let keys: BTreeSet<Vec<u8>> = (0..rng.below(40)).map(|_| random_key(order, rng)).collect();
            for key in keys {
                memtable.writer().insert(&key, Tag::new(count - source, Kind::Put), &source.to_le_bytes());
                entries.push((key, source));
            }
            Source::Mem(memtable.points().iter())
        })
        .collect();
    entries.sort_by(|a, b| order.compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
    (all, entries)
}

fn current(merge: &Merge) -> Option<(Vec<u8>, u64)> {
    let top = merge.valid().then(|| merge.top())?;
    Some((top.key().to_vec(), u64::from_le_bytes(top.value().try_into().unwrap())))
}

#[test]
fn any_number_of_sources_is_merged_both_ways() {
    let mut at_hand = 0;
    for seed in seeds(200) {
        let mut rng = Rng::new(seed ^ 0x3e6e);
        for order in [KeyOrder::Bytewise, KeyOrder::Reverse] {
            let (all, entries) = sources(&order, 1 + rng.below(20), &mut rng);
            let mut merge = Merge::new(order.clone(), all);
            merge.first().unwrap();
            for (i, want) in entries.iter().enumerate() {
                assert_eq!(current(&merge).as_ref(), Some(want), "seed {seed} {order:?}: entry {i}");
                if rng.one_in(4) || !merge.next_at_hand() {
                    merge.next_key().unwrap();
                } else {
                    let next = entries.get(i + 1);
                    assert!(
                        next.is_none_or(|next| next.0 != want.0),
                        "seed {seed}: another version of a key is at hand"
                    );
                    at_hand += 1;
                }
            }
            assert_eq!((current(&merge), merge.next_at_hand()), (None, false), "seed {seed} {order:?}");
            merge.last().unwrap();
            for (i, want) in entries.iter().enumerate().rev() {
                assert_eq!(current(&merge).as_ref(), Some(want), "seed {seed} {order:?}: entry {i} on the way back");
                merge.prev_key().unwrap();
            }
            assert!(!merge.valid(), "seed {seed} {order:?}");
        }
    }
    println!("{at_hand} steps to entries at hand");
    assert!(at_hand > 1_000 || seeds(2).len() == 1, "{at_hand}");
}
