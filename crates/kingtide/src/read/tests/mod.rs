//! The read path against a model: every answer is compared with a plain scan of the history.

mod fixture;
mod merge;
mod newest;
mod overlay;

use crate::read::cursor::{Cursor, CursorConfig};
use crate::read::{get, get_into, multi_get};
use fixture::{Fixture, START_MS, Shape, all_orders, random_key};
use kingtide_base::clock::Clock;
use kingtide_base::key::PACKED_FLAG;
use kingtide_base::names::klog_path;
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, KeyOrder, Kind, SeqNo, Tag};
use kingtide_table::packed;
use kingtide_vfs::OpenMode;
use std::cmp::Ordering;
use std::ops::Bound;
use std::time::Duration;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Seeds: a fixed set, or the one named by the environment.
fn seeds(n: u64) -> Vec<u64> {
    match std::env::var("KINGTIDE_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=n).collect(),
    }
}

fn random_fixture(order: &KeyOrder, rng: &mut Rng) -> Fixture {
    let shape = Shape {
        ops: [1, 30, 300, 1500][rng.below(4) as usize],
        range_deletes: rng.one_in(2),
        expiry: rng.one_in(2),
        value_threshold: if rng.one_in(2) { 30 } else { usize::MAX },
        max_open_files: if rng.one_in(3) { 3 } else { 1000 },
    };
    Fixture::random(order.clone(), shape, rng)
}

fn find<'a>(f: &Fixture, pairs: &'a Pairs, key: &[u8]) -> Option<&'a Vec<u8>> {
    pairs.iter().find(|(k, _)| f.order.compare(k, key).is_eq()).map(|(_, v)| v)
}

#[test]
fn point_reads_agree_with_the_model() {
    for seed in seeds(40) {
        for order in all_orders() {
            let mut rng = Rng::new(seed);
            let f = random_fixture(&order, &mut rng);
            for _ in 0..4 {
                f.clock.advance(Duration::from_millis(rng.below(600)));
                let snapshot = rng.below(f.last_seq + 2);
                let model = f.visible(snapshot, f.clock.unix_ms());
                let keys: Vec<Vec<u8>> = (0..80).map(|_| random_key(&order, &mut rng)).collect();
                let together = multi_get(&f.view, &keys, snapshot, &f.ctx);
                let mut buffer = Vec::new();
                for (key, batch) in keys.iter().zip(together) {
                    let want = find(&f, &model, key);
                    let what = format!("seed {seed} {order:?} at {snapshot}: {}", key.escape_ascii());
                    let got = get(&f.view, key, snapshot, &f.ctx).unwrap();
                    assert_eq!(got.as_deref(), want.map(Vec::as_slice), "get, {what}");
                    assert_eq!(batch.unwrap().as_deref(), want.map(Vec::as_slice), "multi_get, {what}");
                    let found = get_into(&f.view, key, snapshot, &f.ctx, &mut buffer).unwrap();
                    assert_eq!(found.then_some(&buffer), want, "get_into, {what}");
                }
            }
        }
    }
}

/// An iterator's walk beside the model's: `at` is the index of the entry that it must show.
struct Walk<'a> {
    f: &'a Fixture,
    iter: Cursor,
    pairs: Pairs,
    at: Option<usize>,
    what: String,
}

impl Walk<'_> {
    fn check(&mut self, step: &str) {
        let what = &self.what;
        self.iter.status().unwrap_or_else(|e| panic!("{what}: {step}: {e}"));
        let got = self.iter.valid().then(|| {
            let key = self.iter.key().to_vec();
            (key, self.iter.value().unwrap().to_vec())
        });
        let want = self.at.map(|i| self.pairs[i].clone());
        assert_eq!(got, want, "{what}: {step}");
    }

    fn step(&mut self, rng: &mut Rng) {
        let order = &self.f.order;
        let len = self.pairs.len();
        let step = match rng.below(12) {
            0 => {
                self.iter.seek_to_first();
                self.at = (len > 0).then_some(0);
                "seek_to_first".to_owned()
            }
            1 => {
                self.iter.seek_to_last();
                self.at = len.checked_sub(1);
                "seek_to_last".to_owned()
            }
            2 | 3 => {
                let key = random_key(order, rng);
                self.iter.seek(&key);
                let at = self.pairs.partition_point(|(k, _)| order.compare(k, &key).is_lt());
                self.at = (at < len).then_some(at);
                format!("seek {}", key.escape_ascii())
            }
            4 => {
                let key = random_key(order, rng);
                self.iter.seek_for_prev(&key);
                self.at = self.pairs.partition_point(|(k, _)| order.compare(k, &key).is_le()).checked_sub(1);
                format!("seek_for_prev {}", key.escape_ascii())
            }
            5..=8 => {
                self.iter.next();
                self.at = self.at.map(|i| i + 1).filter(|i| *i < len);
                "next".to_owned()
            }
            _ => {
                self.iter.prev();
                self.at = self.at.and_then(|i| i.checked_sub(1));
                "prev".to_owned()
            }
        };
        self.check(&step);
    }

    /// Walks in one direction, over at most `most` entries.
    fn walk(&mut self, forward: bool, most: usize) {
        let mut got = Pairs::new();
        self.iter.walk(forward, |key, value, _| {
            got.push((key.to_vec(), value.to_vec()));
            got.len() < most
        });
        let want: Pairs = match (self.at, forward) {
            (None, _) => Pairs::new(),
            (Some(at), true) => self.pairs[at + 1..].iter().take(most).cloned().collect(),
            (Some(at), false) => self.pairs[..at].iter().rev().take(most).cloned().collect(),
        };
        let step = format!("walk over {most}, forward: {forward}");
        assert_same(&got, &want, &format!("{}: {step}", self.what));
        self.at = self.at.filter(|_| want.len() == most).map(|at| if forward { at + most } else { at - most });
        self.check(&step);
    }

    /// Steps one way for a while: long runs meet other code than zigzags.
    fn stride(&mut self, rng: &mut Rng) {
        let forward = rng.one_in(2);
        if rng.one_in(2) {
            return self.walk(forward, 1 + rng.below(60) as usize);
        }
        for _ in 0..rng.below(60) {
            if forward {
                self.iter.next();
                self.at = self.at.map(|i| i + 1).filter(|i| *i < self.pairs.len());
            } else {
                self.iter.prev();
                self.at = self.at.and_then(|i| i.checked_sub(1));
            }
            self.check(if forward { "stride forward" } else { "stride backward" });
        }
    }
}

fn random_bound(order: &KeyOrder, rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 => Bound::Included(random_key(order, rng)),
        1 => Bound::Excluded(random_key(order, rng)),
        _ => Bound::Unbounded,
    }
}

fn random_config(order: &KeyOrder, snapshot: SeqNo, rng: &mut Rng) -> CursorConfig {
    let prefixes = matches!(order, KeyOrder::Bytewise | KeyOrder::Reverse | KeyOrder::CaseInsensitive);
    let prefix = (prefixes && rng.one_in(3)).then(|| {
        let mut key = random_key(order, rng);
        key.truncate(rng.below(key.len() as u64 + 1) as usize);
        key
    });
    CursorConfig {
        lower: random_bound(order, rng),
        upper: random_bound(order, rng),
        prefix,
        fill_cache: rng.one_in(2),
        readahead: rng.one_in(2),
        ..CursorConfig::at(snapshot)
    }
}

fn within(order: &KeyOrder, config: &CursorConfig, key: &[u8]) -> bool {
    let lower = match &config.lower {
        Bound::Included(b) => order.compare(key, b).is_ge(),
        Bound::Excluded(b) => order.compare(key, b).is_gt(),
        Bound::Unbounded => true,
    };
    let upper = match &config.upper {
        Bound::Included(b) => order.compare(key, b).is_le(),
        Bound::Excluded(b) => order.compare(key, b).is_lt(),
        Bound::Unbounded => true,
    };
    let prefixed = config.prefix.as_ref().is_none_or(|p| {
        key.len() >= p.len()
            && if matches!(order, KeyOrder::CaseInsensitive) {
                key[..p.len()].eq_ignore_ascii_case(p)
            } else {
                key.starts_with(p)
            }
    });
    lower && upper && prefixed
}

#[test]
fn iterators_agree_with_the_model() {
    let mut steps = 0;
    for seed in seeds(40) {
        for order in all_orders() {
            let mut rng = Rng::new(seed ^ 0x1772);
            let f = random_fixture(&order, &mut rng);
            for _ in 0..6 {
                f.clock.advance(Duration::from_millis(rng.below(400)));
                let snapshot = if rng.one_in(2) { f.last_seq } else { rng.below(f.last_seq + 2) };
                let config = random_config(&order, snapshot, &mut rng);
                let mut pairs = f.visible(snapshot, f.clock.unix_ms());
                pairs.retain(|(k, _)| within(&order, &config, k));
                let what = format!("seed {seed} {order:?} {config:?}");
                let iter = Cursor::new(f.view.clone(), f.ctx.clone(), config, None).unwrap();
                let mut walk = Walk { f: &f, iter, pairs, at: None, what };
                for _ in 0..200 {
                    if rng.one_in(20) {
                        walk.stride(&mut rng);
                    }
                    walk.step(&mut rng);
                    steps += 1;
                }
            }
        }
    }
    println!("{steps} iterator steps compared");
}

/// Fails with the first difference alone.
fn assert_same(got: &Pairs, want: &Pairs, what: &str) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g, w, "{what}: entry {i}");
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

#[test]
fn full_scans_both_ways_agree_with_the_model() {
    for seed in seeds(20) {
        for order in all_orders() {
            let mut rng = Rng::new(seed ^ 0xf0f0);
            let f = random_fixture(&order, &mut rng);
            let want = f.visible(f.last_seq, START_MS);
            let config = CursorConfig::at(f.last_seq);
            let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), config, None).unwrap();
            let forward = all(&mut iter);
            assert_same(&forward, &want, &format!("seed {seed} {order:?} forward"));
            let mut backward = Vec::new();
            iter.seek_to_last();
            while iter.valid() {
                backward.push((iter.key().to_vec(), iter.value().unwrap().to_vec()));
                iter.prev();
            }
            backward.reverse();
            assert_same(&backward, &want, &format!("seed {seed} {order:?} backward"));
        }
    }
}

/// What a cursor shows, from the first entry to the last.
fn all(cursor: &mut Cursor) -> Pairs {
    let mut all = Pairs::new();
    cursor.seek_to_first();
    while cursor.valid() {
        all.push((cursor.key().to_vec(), cursor.value().unwrap().to_vec()));
        cursor.next();
    }
    cursor.status().unwrap();
    all
}

/// The bug of another engine: an iterator that had a block loaded answered a seek below that block with the block's
/// first key.
#[test]
fn a_reused_iterator_seeks_below_its_loaded_block() {
    let mut rng = Rng::new(3);
    let history: Vec<_> = (0..4_000u64)
        .map(|i| fixture::Op {
            seq: i + 1,
            key: format!("key{:08}", (i * 2_654_435_761) % 1_000_003 * 2).into_bytes(),
            what: fixture::What::Put { value: i.to_le_bytes().to_vec(), expiry: None },
        })
        .collect();
    let shape =
        Shape { ops: 0, range_deletes: false, expiry: false, value_threshold: usize::MAX, max_open_files: 1000 };
    let f = Fixture::build(KeyOrder::Bytewise, shape, history, &mut rng);
    let all = f.visible(f.last_seq, START_MS);
    let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(f.last_seq), None).unwrap();
    for _ in 0..20_000 {
        let i = rng.below(all.len() as u64) as usize;
        let mut target = all[i].0.clone();
        if rng.one_in(2) {
            // A key that is not there, just before one that is: the keys' numbers are even.
            *target.last_mut().unwrap() -= 1;
            if f.order.compare(&target, &all[i].0) != Ordering::Less {
                continue;
            }
        }
        let want = all.partition_point(|(k, _)| *k < target);
        iter.seek(&target);
        assert_eq!(iter.key(), all[want].0);
        assert_eq!(iter.value().unwrap(), all[want].1);
        for _ in 0..rng.below(3) {
            iter.next();
        }
    }
}

/// What a damaged table makes of reads: an error that names file and offset, never an answer; an iterator stays stopped
/// until it is refreshed.
#[test]
fn damage_is_an_error_that_sticks() {
    let history: Vec<_> = (1..=2_000u64)
        .map(|seq| fixture::Op {
            seq,
            key: format!("key{seq:06}").into_bytes(),
            what: fixture::What::Put { value: vec![seq as u8; 50], expiry: None },
        })
        .collect();
    let shape =
        Shape { ops: 0, range_deletes: false, expiry: false, value_threshold: usize::MAX, max_open_files: 1000 };
    let mut damaged = 0;
    for seed in seeds(20) {
        let f = Fixture::build(KeyOrder::Bytewise, shape, history.clone(), &mut Rng::new(seed));
        let Some((_, meta)) = f.view.version.files().last() else { continue };
        damaged += 1;
        let path = klog_path(&f.dir, meta.id);
        // The first byte of the first block's payload.
        let file = f.fs.open(&path, OpenMode::Write).unwrap();
        let mut byte = [0];
        let at = 20;
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_at(&[byte[0] ^ 0x40], at).unwrap();

        let e = get(&f.view, &meta.min_key, f.last_seq, &f.ctx).unwrap_err();
        assert_eq!((e.kind(), e.path()), (ErrorKind::Corruption, Some(&*path)), "seed {seed}: {e}");
        let both = multi_get(&f.view, &[&meta.min_key[..], b"absent"], f.last_seq, &f.ctx);
        assert!(both[0].is_err() && both[1].as_ref().unwrap().is_none(), "a failure concerns its key only");
        let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(f.last_seq), None).unwrap();
        iter.seek(&meta.min_key);
        assert!(!iter.valid());
        assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corruption);
        iter.seek_to_last();
        assert!(!iter.valid() && iter.status().is_err(), "an error sticks");
        assert_eq!(iter.value().unwrap_err().kind(), ErrorKind::Corruption);

        file.write_at(&byte, at).unwrap();
        iter.refresh(f.view.clone(), f.last_seq, None).unwrap();
        iter.seek(&meta.min_key);
        assert_eq!(iter.key(), meta.min_key);
    }
    assert!(damaged > 0 || seeds(2).len() == 1);
}

/// A walk shows what lies before a damaged block, as single steps do, and then ends with the error.
#[test]
fn a_walk_ends_before_a_damaged_block() {
    let history: Vec<_> = (1..=2_000u64)
        .map(|seq| fixture::Op {
            seq,
            key: format!("key{seq:06}").into_bytes(),
            what: fixture::What::Put { value: vec![seq as u8; 50], expiry: None },
        })
        .collect();
    let (mut damaged, mut in_block) = (0, 0);
    for seed in seeds(20) {
        let f = Fixture::build(KeyOrder::Bytewise, fixture::EMPTY, history.clone(), &mut Rng::new(seed));
        let Some((_, meta)) = f.view.version.files().max_by_key(|(_, meta)| meta.entries) else { continue };
        damaged += 1;
        let path = klog_path(&f.dir, meta.id);
        let file = f.fs.open(&path, OpenMode::Write).unwrap();
        let (at, mut byte) = (meta.size / 2, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_at(&[byte[0] ^ 0x40], at).unwrap();
        let cursor = || {
            let config = CursorConfig::at(f.last_seq);
            let mut cursor = Cursor::new(f.view.clone(), f.ctx.clone(), config, None).unwrap();
            cursor.seek_to_first();
            cursor
        };
        let (mut walking, mut stepping) = (cursor(), cursor());
        let (mut walked, mut stepped) = (Vec::new(), Vec::new());
        walking.walk(true, |key, value, _| {
            walked.push((key.to_vec(), value.to_vec()));
            true
        });
        stepping.next();
        while stepping.valid() {
            stepped.push((stepping.key().to_vec(), stepping.value().unwrap().to_vec()));
            stepping.next();
        }
        assert_same(&walked, &stepped, &format!("seed {seed}"));
        let (walked, stepped) = (walking.status().unwrap_err(), stepping.status().unwrap_err());
        assert_eq!((walked.kind(), walked.path()), (ErrorKind::Corruption, Some(&*path)), "seed {seed}: {walked}");
        assert_eq!(walked.to_string(), stepped.to_string(), "seed {seed}");
        assert!(!walking.valid());
        in_block += walking.walked_in_block;
    }
    assert!(damaged > 0 && in_block > 0 || seeds(2).len() == 1, "{damaged} files, {in_block} steps in a block");
}

/// What stands for a packed value and is none.
#[test]
fn a_damaged_packed_value_is_an_error() {
    let shape =
        Shape { ops: 0, range_deletes: false, expiry: false, value_threshold: usize::MAX, max_open_files: 1000 };
    let mut whole = Vec::new();
    let n = packed::pack(Compression::Lz4, &[b'v'; 4000], &mut whole).unwrap();
    let none = [Compression::None as u8, 1, 0, 0, 0, b'v'];
    let huge = [&[Compression::Lz4 as u8, 0xff, 0xff, 0xff, 0xff][..], &whole[5..n]].concat();
    for bytes in [&whole[..0], &whole[..3], &whole[..n - 1], &none, &huge, &[9; 40]] {
        let f = Fixture::build(KeyOrder::Bytewise, shape, Vec::new(), &mut Rng::new(1));
        let tag = Tag(1 << 8 | (PACKED_FLAG | Kind::Put as u8) as u64);
        f.view.active.writer().insert(b"bad", tag, bytes);
        f.view.active.writer().insert(b"good", Tag(tag.0 + (1 << 8)), &whole[..n]);
        assert_eq!(get(&f.view, b"bad", 9, &f.ctx).unwrap_err().kind(), ErrorKind::Corruption);
        assert!(get_into(&f.view, b"bad", 9, &f.ctx, &mut Vec::new()).is_err());
        let many = multi_get(&f.view, &[b"bad".as_slice(), b"good"], 9, &f.ctx);
        assert!(many[0].is_err() && many[1].as_ref().unwrap().as_ref().unwrap()[..] == [b'v'; 4000]);
        let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(9), None).unwrap();
        iter.seek_to_first();
        assert_eq!((iter.key(), iter.valid()), (&b"bad"[..], true), "values are looked at when asked for");
        assert_eq!(iter.value().unwrap_err().kind(), ErrorKind::Corruption);
        assert!(!iter.valid() && iter.status().is_err());
    }
}

/// A range tombstone over many entries of an older run is passed by a seek, not entry by entry.
#[test]
fn a_deleted_range_is_passed_at_once() {
    let n = 20_000u64;
    let mut history: Vec<_> = (1..=n)
        .map(|seq| fixture::Op {
            seq,
            key: format!("key{seq:06}").into_bytes(),
            what: fixture::What::Put { value: Vec::new(), expiry: None },
        })
        .collect();
    history.push(fixture::Op {
        seq: n + 1,
        key: b"key000010".to_vec(),
        what: fixture::What::RangeDelete(b"key019990".to_vec()),
    });
    let shape = Shape { ops: 0, range_deletes: true, expiry: false, value_threshold: usize::MAX, max_open_files: 1000 };
    for seed in seeds(10) {
        let f = Fixture::build(KeyOrder::Bytewise, shape, history.clone(), &mut Rng::new(seed));
        let in_runs: u64 = f.view.version.files().map(|(_, m)| m.entries).sum();
        let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(f.last_seq), None).unwrap();
        assert_eq!(all(&mut iter).len(), 20);
        iter.seek_to_last();
        let mut backward = 0;
        while iter.valid() {
            backward += 1;
            iter.prev();
        }
        assert_eq!(backward, 20);
        drop(iter);
        let in_memory = n - in_runs;
        let skipped = f.stats.get(Stat::SkippedEntries);
        assert!(skipped <= 2 * in_memory + 100, "seed {seed}: {skipped} skipped, {in_memory} entries in memory");
    }
}

#[test]
fn reads_are_counted_and_sampled() {
    let mut rng = Rng::new(11);
    let f = random_fixture(&KeyOrder::Bytewise, &mut rng);
    let model = f.visible(f.last_seq, START_MS);
    let keys: Vec<Vec<u8>> = (0..500).map(|_| random_key(&f.order, &mut rng)).collect();
    let (mut hits, mut bytes) = (0, 0);
    for key in &keys {
        if let Some(v) = get(&f.view, key, f.last_seq, &f.ctx).unwrap() {
            hits += 1;
            bytes += v.len() as u64;
        }
    }
    let counted = [Stat::Gets, Stat::GetHits, Stat::BytesRead].map(|s| f.stats.get(s));
    assert_eq!(counted, [500, hits, bytes]);
    let mut iter = Cursor::new(f.view.clone(), f.ctx.clone(), CursorConfig::at(f.last_seq), None).unwrap();
    let n = all(&mut iter).len() as u64;
    assert_eq!(n, model.len() as u64);
    drop(iter);
    assert_eq!((f.stats.get(Stat::Seeks), f.stats.get(Stat::Steps)), (1, n));
    f.ctx.sample_read(4);
    assert!(f.ctx.take_extra_runs() >= 3);
    assert_eq!(f.ctx.take_extra_runs(), 0);
}
