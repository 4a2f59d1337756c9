//! Grants and refusals against a naive list of locks, over all key orders.

use std::cmp::Ordering as Cmp;

use kingtide_base::key::CustomOrder;
use kingtide_base::rng::Rng;

use super::*;

struct ByLength;

impl CustomOrder for ByLength {
    fn name(&self) -> &str {
        "by-length"
    }

    /// Keys of one length are one key, so that equal keys often differ.
    fn compare(&self, a: &[u8], b: &[u8]) -> Cmp {
        a.len().cmp(&b.len())
    }
}

type Ends = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Every lock that was granted, as it was asked for.
struct Naive {
    order: KeyOrder,
    locks: Vec<(TxnId, Ends, LockMode)>,
}

impl Naive {
    fn above(&self, lo: &Bound<Vec<u8>>, key: &[u8]) -> bool {
        match lo {
            Bound::Included(lo) => self.order.compare(lo, key).is_le(),
            Bound::Excluded(lo) => self.order.compare(lo, key).is_lt(),
            Bound::Unbounded => true,
        }
    }

    fn below(&self, hi: &Bound<Vec<u8>>, key: &[u8]) -> bool {
        match hi {
            Bound::Included(hi) => self.order.compare(key, hi).is_le(),
            Bound::Excluded(hi) => self.order.compare(key, hi).is_lt(),
            Bound::Unbounded => true,
        }
    }

    /// Whether anything can lie above `lo` and below `hi`.
    fn room(&self, lo: &Bound<Vec<u8>>, hi: &Bound<Vec<u8>>) -> bool {
        let (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) = (lo, hi) else {
            return true;
        };
        match self.order.compare(a, b) {
            Cmp::Less => true,
            Cmp::Equal => matches!((lo, hi), (Bound::Included(_), Bound::Included(_))),
            Cmp::Greater => false,
        }
    }

    /// Two ranges overlap if something can lie in both: between the greater lower end and the smaller upper one.
    fn overlap(&self, a: &Ends, b: &Ends) -> bool {
        [&a.0, &b.0].iter().all(|lo| [&a.1, &b.1].iter().all(|hi| self.room(lo, hi)))
    }

    fn in_the_way(&self, txn: TxnId, ends: &Ends, mode: LockMode) -> BTreeSet<TxnId> {
        let clash = |held: &&(TxnId, Ends, LockMode)| {
            held.0 != txn && (held.2 == X || mode == X) && self.overlap(&held.1, ends)
        };
        self.locks.iter().filter(clash).map(|held| held.0).collect()
    }

    /// The strongest lock of a transaction on a key.
    fn mode_of(&self, txn: TxnId, key: &[u8]) -> Option<LockMode> {
        let mine = self.locks.iter().filter(|l| l.0 == txn && self.above(&l.1.0, key) && self.below(&l.1.1, key));
        mine.map(|l| l.2).max_by_key(|mode| *mode == X)
    }
}

fn random_key(rng: &mut Rng, numbers: bool) -> Vec<u8> {
    if numbers && !rng.one_in(4) {
        return (rng.below(40) as i64 - 20).to_le_bytes().to_vec();
    }
    let len = if rng.one_in(10) { 20 + rng.below(6) } else { rng.below(4) };
    (0..len).map(|_| b"aAbB\0\xff"[rng.below(6) as usize]).collect()
}

fn random_ends(rng: &mut Rng, order: &KeyOrder, numbers: bool) -> Ends {
    let (mut a, mut b) = (random_key(rng, numbers), random_key(rng, numbers));
    if order.compare(&a, &b).is_gt() && !rng.one_in(10) {
        std::mem::swap(&mut a, &mut b);
    }
    let mut end = |key: Vec<u8>| match rng.below(7) {
        0 => Bound::Unbounded,
        1..4 => Bound::Included(key),
        _ => Bound::Excluded(key),
    };
    (end(a), end(b))
}

fn run(order: KeyOrder, seed: u64, steps: u64) {
    let context = format!("order {order:?}, seed {seed}");
    let numbers = matches!(order, KeyOrder::U64 | KeyOrder::I64);
    let mut rng = Rng::new(seed);
    let b = Bench::with(order.clone());
    let mut naive = Naive { order, locks: Vec::new() };
    // Few transactions make big locks, many make small ones; both matter.
    let txns = 2 + rng.below(6);
    for step in 0..steps {
        let txn = 1 + rng.below(txns);
        if rng.one_in(6) {
            b.locks.release_all(txn);
            naive.locks.retain(|held| held.0 != txn);
        } else {
            let mode = if rng.one_in(2) { X } else { S };
            let key = random_key(&mut rng, numbers);
            let is_key = rng.below(3) > 0;
            let ends = match is_key {
                true => (Bound::Included(key.clone()), Bound::Included(key.clone())),
                false => random_ends(&mut rng, &b.order, numbers),
            };
            let bounds = (ends.0.as_ref().map(Vec::as_slice), ends.1.as_ref().map(Vec::as_slice));
            let way = naive.in_the_way(txn, &ends, mode);
            let (holder, got) = match is_key {
                true => (
                    b.locks.holder(txn, F, &b.order, &key, mode),
                    b.locks.acquire(&b.owners, txn, (F, &b.order), &key, mode, Wait::No),
                ),
                false => (
                    b.locks.range_holder(txn, F, &b.order, bounds, mode),
                    b.locks.acquire_range(&b.owners, txn, (F, &b.order), bounds, mode, Wait::No),
                ),
            };
            let what = format!("{context}, step {step}: {txn} {mode} {ends:?}, in the way {way:?}");
            assert_eq!(got.is_ok(), way.is_empty(), "{what}");
            assert_eq!(holder.is_some(), !way.is_empty(), "{what}");
            assert!(holder.is_none_or(|h| way.contains(&h)), "{what}: {holder:?}");
            if got.is_ok() && naive.room(&ends.0, &ends.1) {
                let may_go = is_key && got.is_ok_and(|taken| taken == Taken::Now) && rng.one_in(3);
                if !may_go || !b.locks.release_newest(txn) {
                    naive.locks.push((txn, ends, mode));
                }
            }
        }
        b.locks.state.lock().check();
        if step % 16 == 0 {
            compare_lists(&b, &naive, &mut rng, numbers, &context);
        }
    }
    (1..=txns).for_each(|txn| drop(b.locks.release_all(txn)));
    assert_eq!((b.locks.state.lock().segments(F), b.locks.any_held()), (0, false), "{context}");
}

/// The listing of held locks says of each key what the naive list says.
fn compare_lists(b: &Bench, naive: &Naive, rng: &mut Rng, numbers: bool, context: &str) {
    let as_ends = |target| match target {
        LockTarget::Key(key) => (Bound::Included(key.clone()), Bound::Included(key)),
        LockTarget::Range(lo, hi) => (lo, hi),
    };
    let listed = |held: Vec<HeldLock>| Naive {
        order: naive.order.clone(),
        locks: held.into_iter().map(|l| (l.txn, as_ends(l.target), l.mode)).collect(),
    };
    let all = listed(b.locks.held());
    let by_owner = listed((1..8).flat_map(|txn| b.locks.held_by(txn)).collect());
    for _ in 0..8 {
        let key = random_key(rng, numbers);
        for txn in 1..8 {
            let want = naive.mode_of(txn, &key);
            assert_eq!(all.mode_of(txn, &key), want, "{context}: {txn} {key:?}");
            assert_eq!(by_owner.mode_of(txn, &key), want, "{context}: {txn} {key:?}, by owner");
        }
    }
}

#[test]
fn grants_are_those_of_a_naive_list() {
    let full = std::env::var_os("KINGTIDE_FULL").is_some();
    let mut orders: Vec<KeyOrder> =
        ["bytewise", "reverse", "u64", "i64", "case-insensitive"].iter().filter_map(|n| KeyOrder::builtin(n)).collect();
    orders.push(KeyOrder::Custom(Arc::new(ByLength)));
    for order in orders {
        for seed in 0..if full { 400 } else { 20 } {
            run(order.clone(), seed, 400);
        }
    }
}
