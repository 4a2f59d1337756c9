//! Iterators of a transaction that wrote something, against a sorted list to which its operations were applied.

use super::fixture::{EMPTY, Fixture, Op, START_MS, Shape, What, all_orders, random_key};
use super::{Pairs, Walk, random_config, random_fixture, seeds, within};
use crate::read::cursor::{Cursor, CursorConfig};
use crate::read::newest::own_value;
use crate::read::overlay::{Overlay, Own};
use kingtide_base::clock::Clock;
use kingtide_base::key::{EXPIRY_FLAG, PACKED_FLAG};
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::{ErrorKind, KeyOrder, Kind, SeqNo};
use kingtide_table::packed;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// An operation as a batch stores it, and what it means.
#[derive(Clone, Debug)]
struct OwnOp {
    kind: u8,
    key: Vec<u8>,
    stored: Vec<u8>,
    /// The value and when it expires; `None` if the operation deletes.
    means: Option<(Vec<u8>, Option<u64>)>,
}

fn random_own(order: &KeyOrder, pool: &[Vec<u8>], now_ms: u64, rng: &mut Rng) -> OwnOp {
    let pick = |rng: &mut Rng| match rng.one_in(2) {
        true => pool[rng.below(pool.len() as u64) as usize].clone(),
        false => random_key(order, rng),
    };
    let key = pick(rng);
    let deletes = |kind: Kind, key, stored| OwnOp { kind: kind as u8, key, stored, means: None };
    match rng.below(10) {
        0 | 1 => return deletes(Kind::Delete, key, Vec::new()),
        2 => return deletes(Kind::SingleDelete, key, Vec::new()),
        3 if rng.one_in(2) => {
            let other = pick(rng);
            let (start, end) = if order.compare(&key, &other).is_gt() { (other, key) } else { (key, other) };
            return deletes(Kind::RangeDelete, start, end);
        }
        _ => {}
    }
    let mut value = vec![0; if rng.one_in(5) { 200 + rng.below(900) } else { rng.below(40) } as usize];
    let random = rng.below(value.len() as u64 + 1) as usize;
    rng.fill(&mut value[..random]);
    let expiry = rng.one_in(4).then(|| now_ms + rng.below(600));
    let mut kind = Kind::Put as u8;
    let mut stored = Vec::new();
    if let Some(at) = expiry {
        kind |= EXPIRY_FLAG;
        stored.extend_from_slice(&at.to_le_bytes());
    }
    let mut packed = Vec::new();
    match packed::pack(Compression::Lz4, &value, &mut packed) {
        Some(_) if rng.one_in(2) => {
            kind |= PACKED_FLAG;
            stored.extend_from_slice(&packed);
        }
        _ => stored.extend_from_slice(&value),
    }
    OwnOp { kind, key, stored, means: Some((value, expiry)) }
}

fn overlay(order: &KeyOrder, ops: &[OwnOp]) -> Option<Arc<Overlay>> {
    Overlay::build(order, ops.iter().map(|o| (o.kind, &o.key[..], &o.stored[..])))
}

/// What the transaction sees: the committed pairs with its operations on top.
fn applied(f: &Fixture, snapshot: SeqNo, ops: &[OwnOp]) -> Pairs {
    let (order, now_ms) = (&f.order, f.clock.unix_ms());
    let mut pairs = f.visible(snapshot, now_ms);
    for op in ops {
        if op.kind == Kind::RangeDelete as u8 {
            pairs.retain(|(k, _)| order.compare(k, &op.key).is_lt() || order.compare(k, &op.stored).is_ge());
            continue;
        }
        let at = pairs.partition_point(|(k, _)| order.compare(k, &op.key).is_lt());
        if pairs.get(at).is_some_and(|(k, _)| order.compare(k, &op.key).is_eq()) {
            pairs.remove(at);
        }
        match &op.means {
            Some((value, expiry)) if expiry.is_none_or(|e| e > now_ms) => {
                pairs.insert(at, (op.key.clone(), value.clone()));
            }
            _ => {}
        }
    }
    pairs
}

#[test]
fn a_transactions_iterators_agree_with_the_model() {
    let (mut steps, mut own) = (0, 0);
    for seed in seeds(40) {
        for order in all_orders() {
            let mut rng = Rng::new(seed ^ 0x0e1a);
            let f = random_fixture(&order, &mut rng);
            let pool: Vec<Vec<u8>> = (0..12).map(|_| random_key(&order, &mut rng)).collect();
            for _ in 0..4 {
                f.clock.advance(Duration::from_millis(rng.below(400)));
                let mut snapshot = if rng.one_in(2) { f.last_seq } else { rng.below(f.last_seq + 2) };
                let config = random_config(&order, snapshot, &mut rng);
                let mut ops: Vec<OwnOp> = Vec::new();
                let now_ms = f.clock.unix_ms();
                let what = format!("seed {seed} {order:?} {config:?}");
                let more = [0, 1, 5, 50, 400][rng.below(5) as usize];
                ops.extend((0..more).map(|_| random_own(&order, &pool, now_ms, &mut rng)));
                let iter = Cursor::new(f.view.clone(), f.ctx.clone(), config.clone(), overlay(&order, &ops));
                let mut walk = Walk { f: &f, iter: iter.unwrap(), pairs: Vec::new(), at: None, what };
                for _ in 0..2 {
                    walk.pairs = applied(&f, snapshot, &ops);
                    walk.pairs.retain(|(k, _)| within(&order, &config, k));
                    walk.at = None;
                    own += ops.len();
                    for _ in 0..120 {
                        if rng.one_in(20) {
                            walk.stride(&mut rng);
                        }
                        walk.step(&mut rng);
                        steps += 1;
                    }
                    snapshot = rng.below(f.last_seq + 2);
                    f.clock.advance(Duration::from_millis(rng.below(200)));
                    ops.extend((0..rng.below(20)).map(|_| random_own(&order, &pool, now_ms, &mut rng)));
                    walk.iter.refresh(f.view.clone(), snapshot, overlay(&order, &ops)).unwrap();
                }
            }
        }
    }
    println!("{steps} iterator steps compared, over {own} operations");
}

/// In these histories the runs rarely alternate, so most of a walk stays within a loaded block; in those of the other tests hardly two
/// consecutive steps do.
#[test]
fn walks_within_blocks_agree_with_the_model() {
    let order = KeyOrder::Bytewise;
    let key = |n: u64| format!("key{n:06}").into_bytes();
    let mut in_block = [0, 0];
    for seed in seeds(30) {
        let mut rng = Rng::new(seed ^ 0xb10c);
        let entries = 1500;
        let mut history: Vec<Op> = Vec::new();
        for seq in 1..=entries + 60 {
            let n = if seq <= entries { seq } else { rng.below(entries) };
            let what = match rng.below(if seq <= entries { 100 } else { 3 }) {
                0 => What::Delete,
                1 => What::Put { value: b"expires".to_vec(), expiry: Some(START_MS + rng.below(2_000)) },
                _ => What::Put { value: vec![seq as u8; rng.below(50) as usize], expiry: None },
            };
            history.push(Op { seq, key: key(2 * n), what });
        }
        let threshold = if rng.one_in(2) { 45 } else { usize::MAX };
        let f = Fixture::build(order.clone(), Shape { value_threshold: threshold, ..EMPTY }, history, &mut rng);
        for round in 0..8 {
            f.clock.advance(Duration::from_millis(rng.below(400)));
            let (snapshot, now_ms) = (f.last_seq - rng.below(40), f.clock.unix_ms());
            let pool: Vec<Vec<u8>> = (0..20).map(|_| key(rng.below(2 * entries))).collect();
            let mut ops: Vec<OwnOp> =
                (0..round % 2 * 30).map(|_| random_own(&order, &pool, now_ms, &mut rng)).collect();
            ops.retain(|o| o.kind != Kind::RangeDelete as u8 || round > 5);
            let upper = if rng.one_in(2) { Bound::Excluded(key(rng.below(2 * entries))) } else { Bound::Unbounded };
            let config = CursorConfig { upper, ..CursorConfig::at(snapshot) };
            let mut pairs = applied(&f, snapshot, &ops);
            pairs.retain(|(k, _)| within(&order, &config, k));
            let what = format!("seed {seed} {config:?}");
            let iter = Cursor::new(f.view.clone(), f.ctx.clone(), config, overlay(&order, &ops)).unwrap();
            let mut walk = Walk { f: &f, iter, pairs, at: None, what };
            for _ in 0..20 {
                let to = key(rng.below(2 * entries));
                walk.iter.seek(&to);
                let at = walk.pairs.partition_point(|(k, _)| *k < to);
                walk.at = (at < walk.pairs.len()).then_some(at);
                walk.walk(true, 1 + rng.below(400) as usize);
                walk.step(&mut rng);
            }
            in_block[usize::from(!ops.is_empty())] += walk.iter.walked_in_block;
        }
    }
    println!("steps within a block, without and with operations of the transaction's own: {in_block:?}");
    assert!(in_block.iter().all(|n| *n > 10_000) || seeds(2).len() == 1, "{in_block:?}");
}

/// Each version of a point lookup, and the values' forms.
#[test]
fn an_overlay_answers_for_single_keys() {
    for seed in seeds(30) {
        for order in all_orders() {
            let mut rng = Rng::new(seed ^ 0x51e);
            let f = Fixture::build(order.clone(), super::fixture::EMPTY, Vec::new(), &mut rng);
            let pool: Vec<Vec<u8>> = (0..8).map(|_| random_key(&order, &mut rng)).collect();
            let ops: Vec<OwnOp> =
                (0..1 + rng.below(60)).map(|_| random_own(&order, &pool, START_MS - 300, &mut rng)).collect();
            let overlay = overlay(&order, &ops).unwrap();
            let pairs = applied(&f, 0, &ops);
            for _ in 0..60 {
                let key =
                    if rng.one_in(2) { pool[rng.below(8) as usize].clone() } else { random_key(&order, &mut rng) };
                let what = format!("seed {seed} {order:?} {} in {ops:?}", key.escape_ascii());
                let touched = ops.iter().any(|o| match o.kind == Kind::RangeDelete as u8 {
                    true => order.compare(&o.key, &key).is_le() && order.compare(&key, &o.stored).is_lt(),
                    false => order.compare(&o.key, &key).is_eq(),
                });
                let got = overlay.get(&key);
                assert_eq!(got.is_some(), touched, "{what}");
                let value = match got {
                    Some(Own::Written(kind, stored)) => own_value(kind, stored, &f.ctx).unwrap(),
                    _ => None,
                };
                let want = pairs.iter().find(|(k, _)| order.compare(k, &key).is_eq()).map(|(_, v)| v);
                assert_eq!(value.as_deref(), want.map(Vec::as_slice), "{what}");
            }
        }
    }
}

#[test]
fn nothing_written_is_no_overlay_and_what_no_batch_holds_is_corruption() {
    let order = KeyOrder::Bytewise;
    assert!(Overlay::build(&order, std::iter::empty()).is_none());
    let f = Fixture::build(order, super::fixture::EMPTY, Vec::new(), &mut Rng::new(1));
    for (kind, stored) in [
        (Kind::PutPointer as u8, &b"12345678"[..]),
        (Kind::RangeDelete as u8, b"z"),
        (Kind::Put as u8 | EXPIRY_FLAG, b"short"),
        (Kind::Put as u8 | PACKED_FLAG, b"none"),
        (0x3f, b""),
    ] {
        assert_eq!(own_value(kind, stored, &f.ctx).unwrap_err().kind(), ErrorKind::Corruption, "{kind:#x}");
    }
    assert_eq!(own_value(Kind::Delete as u8, b"", &f.ctx).unwrap(), None);
    assert_eq!(own_value(Kind::Put as u8, b"", &f.ctx).unwrap().unwrap(), b"");
}

/// A range delete of the transaction's own passes what it hides in one jump, in memtables too.
#[test]
fn an_own_range_delete_is_jumped_over() {
    let history: Vec<_> = (1..=20_000u64)
        .map(|seq| super::fixture::Op {
            seq,
            key: format!("key{:05}", seq % 4000).into_bytes(),
            what: super::fixture::What::Put { value: b"v".to_vec(), expiry: None },
        })
        .collect();
    let f = Fixture::build(KeyOrder::Bytewise, super::fixture::EMPTY, history, &mut Rng::new(7));
    let own = Overlay::build(&f.order, [(Kind::RangeDelete as u8, &b"key00001"[..], &b"key03999"[..])].into_iter());
    let snapshot = 19_990;
    let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(snapshot), own).unwrap();
    let skipped = || f.stats.get(kingtide_base::stats::Stat::SkippedEntries);
    iter.seek_to_first();
    iter.next();
    assert_eq!(iter.key(), b"key03999");
    iter.prev();
    assert_eq!(iter.key(), b"key00000");
    let before = skipped();
    drop(iter);
    assert!(skipped() - before < 200, "{} entries stepped over", skipped() - before);
}
