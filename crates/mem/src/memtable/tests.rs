use std::cmp::Ordering as Order;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kingtide_base::budget::Budget;
use kingtide_base::key::CustomOrder;
use kingtide_base::rng::Rng;
use kingtide_base::{KeyOrder, Kind, Tag};

use super::node::{CAPACITY, NodeRef};
use super::*;

fn pool() -> Arc<ArenaPool> {
    ArenaPool::new(Budget::new(u64::MAX))
}

fn table(order: &KeyOrder) -> Arc<Memtable> {
    Arc::new(Memtable::new(order.clone(), &pool()))
}

/// Whatever the entries are, those that room was made for take no more memory than that, but for the nodes of an unlucky
/// batch; and a memtable that is full says so before it panics.
#[test]
fn reserved_entries_fit_and_a_full_memtable_refuses() {
    for seed in 0..if cfg!(miri) { 2 } else { 40 } {
        let mut rng = Rng::new(seed);
        let pool = ArenaPool::with_slots(Budget::new(u64::MAX), 0, 64);
        let table = Memtable::new(KeyOrder::Bytewise, &pool);
        let longest = [30, 3_000, 300_000][rng.below(3) as usize];
        let (mut tag, mut beyond, mut batches) = (0, 0, 0);
        let full = loop {
            let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..1 + rng.below(50))
                .map(|_| (rng.next_u64().to_be_bytes().to_vec(), vec![7; rng.below(longest) as usize]))
                .collect();
            let bytes = entries.iter().map(|(k, v)| k.len() + v.len()).sum();
            if let Err(e) = table.reserve(bytes, entries.len()) {
                break e;
            }
            let held = table.memory();
            for (key, value) in &entries {
                tag += 1;
                table.writer().insert(key, Tag(tag << 8 | Kind::Put as u64), value);
            }
            beyond += u64::from(table.memory() > held);
            batches += 1;
            if batches > if cfg!(miri) { 20 } else { 20_000 } {
                break NoRoom::Full;
            }
        };
        assert_eq!(full, NoRoom::Full, "seed {seed}");
        assert!(beyond * 100 <= batches, "seed {seed}: {beyond} of {batches} batches took more than was reserved");
        assert_eq!(table.len(), tag, "seed {seed}");
        assert_eq!(table.reserve(usize::MAX, usize::MAX), Err(NoRoom::Full));
    }
}

/// A batch may split more nodes than was reckoned with. It goes on all the same, where a memtable can name hardly any more memory too.
#[test]
fn a_batch_that_was_reserved_goes_into_a_memtable_that_is_nearly_full() {
    let pool = ArenaPool::with_slots(Budget::new(u64::MAX), 0, 16);
    let table = Memtable::new(KeyOrder::Bytewise, &pool);
    let tag = |seq: u64| Tag::new(seq, Kind::Put);
    let mut keys = 0u64;
    while table.reserve(20_000, 0).is_ok() {
        keys += 1;
        table.writer().insert(&(keys * 1000).to_be_bytes(), tag(keys), b""); // ascending: leaves are full
    }
    let batch: Vec<[u8; 8]> = (1..41).map(|i| (i * keys / 41 * 1000 + 1).to_be_bytes()).collect();
    table.reserve(8 * batch.len(), batch.len()).unwrap();
    let held = table.memory();
    table.writer().insert_batch(batch.iter().map(|key| (&key[..], tag(keys + 1), &b""[..])));
    assert!(cfg!(miri) || table.memory() > held, "the batch is one that takes more than was reserved");
    assert_eq!(table.keys(), keys + 40);
    assert!(batch.iter().all(|key| table.get(key, Tag(u64::MAX)).is_some()));
    assert_eq!(table.reserve(1 << 20, 0), Err(NoRoom::Full));
}

/// Longest first, then bytewise: an order of which heads know nothing.
struct ByLength;

impl CustomOrder for ByLength {
    fn name(&self) -> &str {
        "by-length"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Order {
        b.len().cmp(&a.len()).then_with(|| a.cmp(b))
    }
}

fn orders() -> Vec<KeyOrder> {
    let mut all: Vec<_> =
        ["bytewise", "reverse", "u64", "i64", "case-insensitive"].iter().filter_map(|n| KeyOrder::builtin(n)).collect();
    all.push(KeyOrder::Custom(Arc::new(ByLength)));
    all
}

/// A model key: ordered as the memtable orders.
struct ModelKey(KeyOrder, Vec<u8>, Tag);

impl Ord for ModelKey {
    fn cmp(&self, other: &Self) -> Order {
        self.0.compare(&self.1, &other.1).then_with(|| other.2.cmp(&self.2))
    }
}

impl PartialOrd for ModelKey {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ModelKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ModelKey {}

type Model = BTreeMap<ModelKey, Vec<u8>>;

/// Ways to draw keys, each of which strains another part of the tree.
const SHAPES: u64 = 9;

fn draw_key(rng: &mut Rng, shape: u64, i: u64) -> Vec<u8> {
    match shape {
        0 => (0..rng.below(4)).map(|_| rng.below(3) as u8).collect(), // tiny, many versions, zero bytes
        1 => rng.next_u64().to_le_bytes().to_vec(),
        2 => format!("user:{:012}", rng.below(100_000)).into_bytes(), // a long shared prefix
        3 => format!("seq:{i:010}").into_bytes(),                     // ascending
        4 => format!("seq:{:010}", u64::MAX - i).into_bytes(),        // descending
        5 => {
            // Prefixes that differ late, lengths 0 to 300.
            let mut key = vec![b"aB"[rng.below(2) as usize]; rng.below(300) as usize];
            if let Some(last) = key.last_mut() {
                *last = rng.below(256) as u8;
            }
            key
        }
        6 => vec![0; rng.below(20) as usize], // nothing but padding
        7 => vec![0xff; rng.below(20) as usize],
        _ => format!("{}:{:06}", rng.below(5), i).into_bytes(), // several ascending streams
    }
}

fn expect(it: &MemIter, want: Option<(&ModelKey, &Vec<u8>)>, what: &str) {
    let got = it.valid().then(|| (it.key().to_vec(), it.tag(), it.value().to_vec()));
    assert_eq!(got, want.map(|(k, v)| (k.1.clone(), k.2, v.clone())), "{what}");
    if it.valid() {
        assert_eq!(it.head(), it.table().order().head(it.key()), "{what}");
    }
}

fn check_gets(table: &Memtable, model: &Model, rng: &mut Rng, shape: u64, n: u64, what: &str) {
    for i in 0..if cfg!(miri) { 10 } else { 200 } {
        let key = draw_key(rng, shape, rng.clone().below(n + 5));
        let upper = Tag::seek(rng.below(n + 5));
        let from = ModelKey(table.order().clone(), key.clone(), upper);
        let want = model.range(from..).next().filter(|(k, _)| table.order().compare(&k.1, &key).is_eq());
        let got = table.get(&key, upper);
        assert_eq!(got, want.map(|(k, v)| (k.2, &v[..])), "{what} get {i} {key:?} {upper:?}");
    }
}

/// Seeks, and turns round at random, with the model's keys as a sorted list beside it.
fn check_zigzag(table: &Arc<Memtable>, model: &Model, rng: &mut Rng, shape: u64, n: u64, what: &str) {
    let sorted: Vec<_> = model.iter().collect();
    let mut it = table.iter();
    assert!(!it.valid());
    for round in 0..if cfg!(miri) { 3 } else { 60 } {
        let key = draw_key(rng, shape, rng.clone().below(n + 5));
        let tag = if rng.one_in(4) { Tag(0) } else { Tag::seek(rng.below(n + 5)) };
        let place = sorted.partition_point(|(k, _)| **k < ModelKey(table.order().clone(), key.clone(), tag));
        let mut at = match rng.below(5) {
            0 => {
                it.first();
                0
            }
            1 => {
                it.last();
                sorted.len().wrapping_sub(1)
            }
            2 => {
                it.seek_lt(&key, tag);
                place.wrapping_sub(1)
            }
            _ => {
                it.seek(&key, tag);
                place
            }
        };
        let what = format!("{what} round {round}");
        expect(&it, sorted.get(at).copied(), &what);
        let forward_of_8 = rng.below(9);
        for _ in 0..rng.below(if cfg!(miri) { 10 } else { 150 }) {
            if at >= sorted.len() {
                break;
            }
            if rng.below(8) < forward_of_8 {
                it.next();
                at += 1;
            } else if rng.one_in(3) {
                at = check_jump(&mut it, &sorted, at, rng, n, &what);
            } else {
                it.prev();
                at = at.wrapping_sub(1);
            }
            expect(&it, sorted.get(at).copied(), &what);
        }
    }
}

/// Jumps over versions, and returns where the model says that this leads; `usize::MAX` before the first entry.
fn check_jump(
    it: &mut MemIter,
    sorted: &[(&ModelKey, &Vec<u8>)],
    at: usize,
    rng: &mut Rng,
    n: u64,
    what: &str,
) -> usize {
    let order = it.table().order().clone();
    let (key, tag) = (it.key().to_vec(), it.tag());
    let first = sorted.partition_point(|(k, _)| order.compare(&k.1, &key).is_lt());
    let other = first + sorted[first..].partition_point(|(k, _)| order.compare(&k.1, &key).is_eq());
    // The newest version up to some tag, or where the next key begins.
    let upper = Tag::seek(rng.below(n + 5));
    let newest = first + sorted[first..other].partition_point(|(k, _)| k.2 > upper);
    let (to, jump) = match rng.below(4) {
        0 => (other, "next_key"),
        1 => (first.wrapping_sub(1), "prev_key"),
        2 if tag > upper => (newest, "pass_newer"),
        3 if tag <= upper => (newest, "go_newest"),
        _ => (at, "stay"),
    };
    match jump {
        "next_key" => it.next_key(),
        "prev_key" => it.prev_key(),
        "pass_newer" => it.pass_newer(upper),
        "go_newest" => it.go_newest(upper),
        _ => {}
    }
    expect(it, sorted.get(to).copied(), &format!("{what} {jump} from {at}"));
    to
}

fn run_model(order: &KeyOrder, shape: u64, seed: u64, n: u64) {
    let what = format!("order {order:?} shape {shape} seed {seed}");
    let mut rng = Rng::new(seed);
    let table = table(order);
    let mut model = Model::new();
    let mut bytes = 0;
    let mut seq = 0;
    while seq < n {
        let batch = if rng.one_in(2) { 1 } else { 1 + rng.below(if cfg!(miri) { 20 } else { 100 }) };
        let mut entries: Vec<_> = (0..batch)
            .map(|_| {
                seq += 1;
                let value = vec![seq as u8; if rng.one_in(3) { 0 } else { rng.below(40) as usize }];
                (draw_key(&mut rng, shape, seq), Tag::new(seq, Kind::Put), value)
            })
            .collect();
        if rng.one_in(2) {
            entries.sort_by(|a, b| order.compare(&a.0, &b.0).then(b.1.cmp(&a.1)));
        }
        table.writer().insert_batch(entries.iter().map(|(k, t, v)| (&k[..], *t, &v[..])));
        for (key, tag, value) in entries {
            bytes += key.len() + value.len();
            model.insert(ModelKey(order.clone(), key, tag), value);
        }
    }
    assert_eq!((table.len(), table.data_bytes()), (model.len() as u64, bytes as u64), "{what}");
    let mut keys: Vec<_> = model.keys().map(|k| &k.1).collect();
    keys.dedup_by(|a, b| order.compare(a, b).is_eq());
    assert_eq!(table.keys(), keys.len() as u64, "{what}");
    let mut it = table.iter();
    it.first();
    for want in &model {
        expect(&it, Some(want), &what);
        it.next();
    }
    expect(&it, None, &what);
    it.last();
    for want in model.iter().rev() {
        expect(&it, Some(want), &what);
        it.prev();
    }
    expect(&it, None, &what);
    check_gets(&table, &model, &mut rng, shape, seq, &what);
    check_zigzag(&table, &model, &mut rng, shape, seq, &what);
}

#[test]
fn agrees_with_a_sorted_map() {
    let orders = orders();
    for shape in 0..SHAPES {
        if cfg!(miri) {
            // Miri looks for undefined behaviour, at a thousandth of the speed; the answers are checked elsewhere.
            run_model(&orders[shape as usize % orders.len()], shape, shape, 30);
            continue;
        }
        for order in &orders {
            for (seed, n) in [50, 300, 1000, 3000, 5000, 9000].into_iter().enumerate() {
                run_model(order, shape, seed as u64 * 100 + shape, n);
            }
        }
    }
}

#[test]
fn an_empty_memtable_costs_nothing_and_has_nothing() {
    let pool = pool();
    let table = Arc::new(Memtable::new(KeyOrder::Bytewise, &pool));
    let mut it = table.iter();
    it.first();
    assert!(!it.valid());
    it.last();
    assert!(!it.valid());
    it.seek(b"a", Tag(0));
    it.seek_lt(b"a", Tag(0));
    it.next();
    it.prev();
    assert!(!it.valid() && it.key().is_empty() && table.is_empty());
    assert_eq!((table.get(b"a", Tag::seek(9)), table.memory(), pool.budget().used()), (None, 0, 0));
    table.writer().insert(b"", Tag::new(1, Kind::Put), b"");
    assert_eq!(table.get(b"", Tag::seek(1)), Some((Tag::new(1, Kind::Put), &b""[..])));
    assert_eq!(table.get(b"", Tag::seek(0)), None);
    assert_eq!(table.memory(), pool.budget().used());
    drop((it, table));
    assert_eq!(pool.budget().used(), 0);
}

/// Keys in order, up or down, must leave full leaves behind.
#[test]
fn ordered_keys_fill_their_leaves() {
    let n = if cfg!(miri) { 60 } else { 20_000u32 };
    let fill = |keys: &mut dyn Iterator<Item = u32>| {
        let table = table(&KeyOrder::Bytewise);
        for (i, k) in keys.enumerate() {
            table.writer().insert(format!("user:{k:09}").as_bytes(), Tag::new(i as u64, Kind::Put), b"v");
        }
        let (mut leaves, mut at) = (0, table.tree.descend_to_end(false).map(|(leaf, _)| leaf));
        while let Some(leaf) = at {
            leaves += 1;
            // SAFETY: a leaf of a live table.
            at = unsafe { NodeRef::new(leaf.next.load(Ordering::Acquire)) };
        }
        table.len() as f64 / (leaves * CAPACITY) as f64
    };
    let up = fill(&mut (0..n));
    let down = fill(&mut (0..n).rev());
    let beside = fill(&mut (0..n / 2).chain(n..n + n / 2).chain(n / 2..n));
    // Few leaves tell nothing about how full they are.
    assert!(cfg!(miri) || (up > 0.95 && down > 0.9 && beside > 0.9), "{up} {down} {beside}");
}

/// The heads of keys that arrive in order tell the keys apart, up or down, at an end of the tree or in the middle, also in the leaf that was
/// begun last: each new key is compared with those in that leaf.
#[test]
fn a_leaf_begun_in_order_leaves_out_the_prefix_of_the_one_before() {
    let leaves = 4 * CAPACITY as u32;
    let beside = [0, 2 * leaves]; // so that the keys between them go to the middle
    let orders: [(&str, Vec<u32>); 4] = [
        ("up at the end", (0..leaves).collect()),
        ("down at the beginning", (0..leaves).rev().collect()),
        ("up in the middle", beside.into_iter().chain(1..leaves).collect()),
        ("down in the middle", beside.into_iter().chain((1..leaves).rev()).collect()),
    ];
    for (what, keys) in orders {
        let table = table(&KeyOrder::Bytewise);
        let mut tied = 0;
        for (i, k) in keys.iter().enumerate() {
            table.writer().insert(format!("a/long/prefix:{k:09}").as_bytes(), Tag::new(i as u64, Kind::Put), b"v");
            // The first leaf leaves out nothing before it is split.
            if i > CAPACITY {
                let mut at = table.tree.descend_to_end(false).map(|(leaf, _)| leaf);
                while let Some(leaf) = at {
                    tied += (1..leaf.len()).filter(|i| leaf.head(i - 1) == leaf.head(*i)).count();
                    // SAFETY: a leaf of a live table.
                    at = unsafe { NodeRef::new(leaf.next.load(Ordering::Acquire)) };
                }
            }
        }
        assert_eq!(tied, 0, "{what}");
    }
}

#[test]
fn huge_values_have_memory_of_their_own() {
    let table = table(&KeyOrder::Bytewise);
    let value: Vec<u8> = (0..if cfg!(miri) { 300_000 } else { 5_000_001 }).map(|i| i as u8).collect();
    for i in 0..3u64 {
        table.writer().insert(b"small", Tag::new(i * 2, Kind::Put), b"s");
        table.writer().insert(b"huge", Tag::new(i * 2 + 1, Kind::Put), &value[i as usize..]);
    }
    assert_eq!(table.get(b"huge", Tag::seek(3)), Some((Tag::new(3, Kind::Put), &value[1..])));
    assert!(table.memory() < table.data_bytes() + (1 << 20));
}

/// One writer; readers check that whatever was visible when they looked at the clock is found, in order.
#[test]
fn readers_see_all_that_was_published() {
    let n: u64 = if cfg!(miri) { 40 } else { 60_000 };
    for (seed, order) in [(1, KeyOrder::Bytewise), (2, KeyOrder::CaseInsensitive)] {
        let table = table(&order);
        let visible = AtomicU64::new(0);
        let key_of = |i: u64| format!("{:07}", kingtide_base::hash::mix64(i * 31 + seed) % (n / 2)).into_bytes();
        let done = || visible.load(Ordering::Acquire) == n;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut i = 0;
                while i < n {
                    let batch: Vec<_> = (i + 1..=(i + 1 + i % 7).min(n)).map(|s| (s, key_of(s))).collect();
                    let entries = batch.iter().map(|(s, k)| (&k[..], Tag::new(*s, Kind::Put), &k[..]));
                    table.writer().insert_batch(entries);
                    i += batch.len() as u64;
                    visible.store(i, Ordering::Release);
                }
            });
            scope.spawn(|| {
                let mut rng = Rng::new(seed);
                while !done() {
                    let upper = visible.load(Ordering::Acquire);
                    let seq = 1 + rng.below(upper.max(1));
                    if seq <= upper {
                        let key = key_of(seq);
                        let (tag, value) = table.get(&key, Tag::seek(upper)).expect("a published key");
                        assert!(tag >= Tag::new(seq, Kind::Put) && value == key, "{seq} of {upper}");
                    }
                }
            });
            scope.spawn(|| {
                let mut it = table.iter();
                let mut forward = true;
                while !done() {
                    let upper = visible.load(Ordering::Acquire);
                    count_visible(&mut it, upper, forward);
                    forward = !forward;
                }
            });
        });
        count_visible(&mut table.iter(), n, true);
    }
}

/// A whole scan must meet exactly `upper` entries of sequence up to `upper`, in strict order.
fn count_visible(it: &mut MemIter, upper: u64, forward: bool) {
    let mut seen = 0;
    let mut before: Option<(Vec<u8>, Tag)> = None;
    if forward {
        it.first()
    } else {
        it.last()
    }
    while it.valid() {
        seen += u64::from(it.tag().seq() <= upper);
        assert_eq!(it.key(), it.value());
        let here = (it.key().to_vec(), it.tag());
        if let Some(b) = before {
            let order = b.0.cmp(&here.0).then(here.1.cmp(&b.1));
            assert_eq!(order, if forward { Order::Less } else { Order::Greater }, "{b:?} {here:?}");
        }
        before = Some(here);
        if forward { it.next() } else { it.prev() }
    }
    assert_eq!(seen, upper);
}

/// An old snapshot among very many versions is found in few steps, and memory grows by a version's own bytes alone.
#[test]
fn many_versions_of_one_key() {
    let n: u64 = if cfg!(miri) { 70 } else { 100_000 };
    let table = table(&KeyOrder::Bytewise);
    for i in 1..=n {
        table.writer().insert(b"counter", Tag::new(i, Kind::Put), &i.to_le_bytes());
    }
    assert_eq!((table.len(), table.keys()), (n, 1));
    for upper in (0..=n).step_by(if cfg!(miri) { 1 } else { 97 }) {
        let want = (upper > 0).then(|| (Tag::new(upper, Kind::Put), upper.to_le_bytes()));
        let got = table.get(b"counter", Tag::seek(upper));
        assert_eq!(got.map(|(tag, value)| (tag, value.to_vec())), want.map(|(tag, value)| (tag, value.to_vec())));
        // SAFETY: the newest entry of a live table.
        let steps = unsafe {
            let (leaf, _) = table.tree.descend_to_end(false).unwrap();
            let (mut at, mut steps) = (leaf.entry(0), 0);
            while let Some(links) = table.tree.links_of(at).filter(|_| table.tree.tag_of(at) > Tag::seek(upper)) {
                at = if table.tree.tag_of(links.skip) > Tag::seek(upper) { links.skip } else { links.older };
                steps += 1;
            }
            steps
        };
        assert!(steps <= 3 * (64 - n.leading_zeros()), "{steps} steps from {n} to {upper}");
    }
    let entry = 8 + 4 + 12 + 7 + 8 + 7; // tag, lengths, links, key, value, up to a multiple of 8
    assert!(cfg!(miri) || table.memory() < n * entry + (4 << 20), "{}", table.memory());
}
