//! Whether something changed, against a plain scan of the history.

use super::fixture::{Fixture, Op, What, all_orders, random_key};
use super::{random_bound, random_fixture, seeds};
use crate::read::newest::{changed_since, range_changed_since, tables_newer};
use kingtide_base::rng::Rng;
use std::ops::Bound;

fn touches(f: &Fixture, op: &Op, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> bool {
    let order = &f.order;
    let behind_lo = |key: &[u8], end: bool| match lo {
        Bound::Included(lo) if !end => order.compare(key, lo).is_ge(),
        Bound::Included(lo) | Bound::Excluded(lo) => order.compare(key, lo).is_gt(),
        Bound::Unbounded => true,
    };
    let before_hi = |key: &[u8]| match hi {
        Bound::Included(hi) => order.compare(key, hi).is_le(),
        Bound::Excluded(hi) => order.compare(key, hi).is_lt(),
        Bound::Unbounded => true,
    };
    match &op.what {
        What::RangeDelete(end) => order.compare(&op.key, end).is_lt() && behind_lo(end, true) && before_hi(&op.key),
        _ => behind_lo(&op.key, false) && before_hi(&op.key),
    }
}

#[test]
fn changes_of_keys_and_ranges_agree_with_the_history() {
    let mut changed = [0, 0];
    for seed in seeds(40) {
        for order in all_orders() {
            let mut rng = Rng::new(seed ^ 0x9e3);
            let f = random_fixture(&order, &mut rng);
            for _ in 0..80 {
                let since =
                    if rng.one_in(2) { rng.below(f.last_seq + 2) } else { f.last_seq - rng.below(f.last_seq.min(9)) };
                let later: Vec<&Op> = f.history.iter().filter(|o| o.seq > since).collect();
                let what = format!("seed {seed} {order:?} since {since}");
                let key = random_key(&order, &mut rng);
                let only = Bound::Included(&key[..]);
                let want = later.iter().any(|o| touches(&f, o, only, only));
                let got = changed_since(&f.view, &key, since, &f.ctx).unwrap();
                assert_eq!(got, want, "{what}: {}", key.escape_ascii());
                changed[usize::from(got)] += 1;

                let (mut lo, mut hi) = (random_bound(&order, &mut rng), random_bound(&order, &mut rng));
                if let (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) = (&lo, &hi)
                    && order.compare(a, b).is_gt()
                {
                    std::mem::swap(&mut lo, &mut hi);
                }
                let (lo, hi) = (lo.as_ref().map(Vec::as_slice), hi.as_ref().map(Vec::as_slice));
                let empty = matches!((lo, hi), (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b))
                    if order.compare(a, b).is_eq() && (lo, hi) != (Bound::Included(a), Bound::Included(b)));
                let want = !empty && later.iter().any(|o| touches(&f, o, lo, hi));
                let got = range_changed_since(&f.view, lo, hi, since, &f.ctx).unwrap();
                assert_eq!(got, want, "{what}: {lo:?}..{hi:?}");
                let in_tables = f.view.version.files().any(|(_, m)| m.max_seq > since);
                assert_eq!(tables_newer(&f.view, since), in_tables, "{what}");
            }
        }
    }
    println!("{} unchanged, {} changed", changed[0], changed[1]);
}
