//! Tables against a sorted vector, over all combinations of options.

use super::common::*;
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{ErrorKind, KeyOrder, Kind, Tag};
use kingtide_mem::cache::BlockCache;
use kingtide_table::info::MAX_SIZE;
use kingtide_table::{IterOptions, ReadScratch, Table, TableIter, TableOptions, TableWriter, ValuePointer, VlogRef};
use kingtide_vfs::MemFs;
use std::sync::Arc;

fn lower_bound(model: &Model, order: &KeyOrder, key: &[u8], tag: Tag) -> usize {
    model.partition_point(|(k, t, _)| compare(order, (k, *t), (key, tag)).is_lt())
}

fn check_gets(table: &Arc<Table>, model: &Model, order: &KeyOrder, rng: &mut Rng) {
    let mut scratch = ReadScratch::new();
    for round in 0..2 {
        for (k, t, _) in model {
            for upper in [*t, Tag(t.0 - 1), Tag::seek(rng.below(model.len() as u64 + 2))] {
                let i = lower_bound(model, order, k, upper);
                let want = model.get(i).filter(|e| order.compare(&e.0, k).is_eq());
                let got = table.get(k, order.hash(k), upper, &mut scratch).unwrap();
                let got = got.as_ref().map(|(t, v)| (*t, v.bytes(&scratch)));
                assert_eq!(got, want.map(|e| (e.1, &e.2[..])), "round {round} {order:?} {k:?} {upper:?}");
            }
        }
        for _ in 0..50 {
            let k = key(order, rng);
            let i = lower_bound(model, order, &k, Tag::seek(u64::MAX >> 8));
            let want = model.get(i).filter(|e| order.compare(&e.0, &k).is_eq()).map(|e| e.1);
            let got = table.get(&k, None, Tag::seek(u64::MAX >> 8), &mut scratch).unwrap();
            assert_eq!(got.map(|g| g.0), want);
        }
    }
}

fn assert_at(it: &TableIter, model: &Model, at: Option<usize>, what: &str) {
    assert_eq!(it.valid(), at.is_some(), "{what}");
    if let Some(i) = at {
        let (k, t, v) = &model[i];
        assert_eq!((it.key(), it.tag(), it.value()), (&k[..], *t, &v[..]), "{what}");
        assert_eq!(it.head(), it.table().order().head(k));
    }
}

/// Random moves in both directions, many of them short seeks near the last place.
fn check_cursor(table: &Arc<Table>, model: &Model, order: &KeyOrder, opts: IterOptions, rng: &mut Rng) {
    let mut it = table.iter(opts);
    assert!(!it.valid());
    let n = model.len();
    let mut at: Option<usize> = None;
    for step in 0..400 {
        let near = |rng: &mut Rng, at: Option<usize>| -> (Vec<u8>, Tag) {
            if n == 0 || rng.one_in(4) {
                return (key(order, rng), Tag::seek(rng.below(n as u64 + 2)));
            }
            let i = match at {
                Some(i) if !rng.one_in(3) => (i + rng.below(9) as usize).saturating_sub(4).min(n - 1),
                _ => rng.below(n as u64) as usize,
            };
            let mut k = model[i].0.clone();
            if rng.one_in(3) {
                k.push(0);
            }
            (k, Tag(model[i].1.0 + rng.below(3) - 1))
        };
        let what;
        match rng.below(10) {
            0 if rng.one_in(4) => {
                it.first().unwrap();
                at = (n > 0).then_some(0);
                what = "first".into();
            }
            1 if rng.one_in(4) => {
                it.last().unwrap();
                at = n.checked_sub(1);
                what = "last".into();
            }
            0..=3 => {
                let (k, t) = near(rng, at);
                it.seek(&k, t).unwrap();
                at = Some(lower_bound(model, order, &k, t)).filter(|i| *i < n);
                what = format!("seek {k:?} {t:?}");
            }
            4 | 5 => {
                let (k, t) = near(rng, at);
                it.seek_lt(&k, t).unwrap();
                at = lower_bound(model, order, &k, t).checked_sub(1);
                what = format!("seek_lt {k:?} {t:?}");
            }
            6 | 7 => {
                let other_key =
                    order.is_bytewise() && it.valid() && rng.one_in(2) && it.next_at_hand(it.head()).is_some();
                match at.filter(|_| other_key) {
                    Some(i) => assert_ne!(it.key(), model[i].0),
                    None => it.next().unwrap(),
                }
                at = at.map(|i| i + 1).filter(|i| *i < n);
                what = "next".into();
            }
            _ => {
                it.prev().unwrap();
                at = at.and_then(|i| i.checked_sub(1));
                what = "prev".into();
            }
        }
        assert_at(&it, model, at, &format!("step {step} {what} {order:?} {opts:?}"));
    }
    it.first().unwrap();
    for i in 0..n {
        assert_at(&it, model, Some(i), "forward");
        it.next().unwrap();
    }
    assert!(!it.valid());
    it.last().unwrap();
    for i in (0..n).rev() {
        assert_at(&it, model, Some(i), "backward");
        it.prev().unwrap();
    }
    assert!(!it.valid());
}

/// Estimates of a table in partitions are as good as its partitions are small.
fn check_estimates(whole: &Table, parts: &Table, model: &Model, order: &KeyOrder, rng: &mut Rng) {
    let end = whole.blocks() as f64;
    assert_eq!(parts.bytes_before(end), whole.bytes_before(end));
    assert_eq!((parts.separator(whole.blocks()), whole.separator(whole.blocks())), (None, None));
    let mut places = Vec::new();
    for (key, ..) in model {
        let place = parts.blocks_before(key);
        assert!((0.0..=end).contains(&place), "{place} of {end}");
        assert!(parts.bytes_before(place) <= whole.bytes_before(end));
        places.push(place);
        let separator = parts.separator(rng.below(whole.blocks() as u64) as usize).unwrap();
        assert!(order.compare(separator, whole.separator(0).unwrap()).is_ge());
    }
    assert!(places.is_sorted(), "{order:?} {places:?}");
}

fn check_info(model: &Model, info: &kingtide_table::TableInfo) {
    let pointers = model.iter().filter(|e| e.1.kind() == Some(Kind::PutPointer)).count() as u64;
    assert_eq!(info.entries, model.len() as u64);
    assert_eq!(info.tombstones, model.iter().filter(|e| e.1.is_tombstone()).count() as u64);
    assert_eq!(info.raw_bytes, model.iter().map(|e| (e.0.len() + e.2.len()) as u64).sum::<u64>());
    assert_eq!(info.min_key, model[0].0);
    assert_eq!(info.max_key, model[model.len() - 1].0);
    assert_eq!(info.min_seq, model.iter().map(|e| e.1.seq()).min().unwrap());
    assert_eq!(info.max_seq, model.iter().map(|e| e.1.seq()).max().unwrap());
    assert_eq!(info.vlog_refs.iter().map(|r| r.values).sum::<u64>(), pointers);
    let expiry = |e: &(Vec<u8>, Tag, Vec<u8>)| u64::from_le_bytes(*e.2.first_chunk().unwrap());
    let min = model.iter().filter(|e| e.1.has_expiry()).map(expiry).min();
    assert_eq!(info.min_expiry_ms, min.unwrap_or(0));
}

#[test]
fn every_combination_agrees_with_a_sorted_vector() {
    let (mut combinations, mut read, mut hits, mut evictions) = (0, 0, 0, 0);
    for (o, order) in orders().into_iter().enumerate() {
        for (c, compression) in METHODS.into_iter().enumerate() {
            for block_size in [64, 512, 4096, 1 << 20] {
                for (index_sampling, index_prefix_len) in [(1, 0), (1, 2), (4, 0), (3, 7)] {
                    let seed = (o * 100_000 + c * 10_000 + block_size + index_sampling * 7 + index_prefix_len) as u64;
                    let mut rng = Rng::new(seed);
                    println!("seed {seed}");
                    let n = [1, 2, 40, 300][rng.below(4) as usize];
                    let model = entries(&order, n, &mut rng);
                    let filter_fp = if rng.one_in(3) { 0.0 } else { 0.01 };
                    let opts = TableOptions {
                        order: order.clone(),
                        block_size,
                        restart_interval: 1 << rng.below(8),
                        compression,
                        zstd_level: 1 + rng.below(6) as i32,
                        zstd_dictionary: [0, 256, 2048][rng.below(3) as usize],
                        filter_fp,
                        index_sampling,
                        index_prefix_len,
                        ..TableOptions::default()
                    };
                    let (file, info) = write(&model, 7, opts);
                    assert_eq!(info.file_size, file.len().unwrap());
                    check_info(&model, &info);
                    let table = open(&file, 7, &order, if rng.one_in(2) { 1 << 20 } else { 0 }).unwrap();
                    assert_eq!(*table.info(), info);
                    table.verify().unwrap();
                    check_gets(&table, &model, &order, &mut rng);
                    for (fill_cache, readahead) in [(true, false), (false, false), (false, true)] {
                        check_cursor(&table, &model, &order, IterOptions { fill_cache, readahead }, &mut rng);
                    }
                    combinations += 1;
                    // None of the partitions stays, some do, all do.
                    let memory = [0, 500, 1 << 20][rng.below(3) as usize];
                    let (parts, stats) = open_in_partitions(&file, 7, &order, (0, memory)).unwrap();
                    assert_eq!((parts.info(), parts.blocks()), (&info, table.blocks()));
                    assert_eq!(parts.whole_bytes(), table.whole_bytes());
                    parts.verify().unwrap();
                    check_gets(&parts, &model, &order, &mut rng);
                    for (fill_cache, readahead) in [(true, false), (false, false), (false, true)] {
                        check_cursor(&parts, &model, &order, IterOptions { fill_cache, readahead }, &mut rng);
                    }
                    check_estimates(&table, &parts, &model, &order, &mut rng);
                    read += stats.get(Stat::PartitionsRead);
                    hits += stats.get(Stat::PartitionHits);
                    evictions += stats.get(Stat::PartitionEvictions);
                }
            }
        }
    }
    println!("{combinations} combinations; partitions: {read} read, {hits} found in memory, {evictions} evicted");
    assert!(read > 10_000 && hits > 10_000 && evictions > 1_000);
}

/// Many blocks and distinct keys, so that spans, galloping and the index's deeper levels are used.
#[test]
fn a_larger_table() {
    let order = KeyOrder::Bytewise;
    let mut rng = Rng::new(21);
    let mut keys: Vec<[u8; 16]> = (0..20_000)
        .map(|_| {
            let mut k = [0; 16];
            rng.fill(&mut k);
            k
        })
        .collect();
    keys.sort();
    let model: Model = (keys.iter().enumerate())
        .map(|(i, k)| (k.to_vec(), Tag::new(i as u64 + 1, Kind::Put), value(&mut rng, 200)))
        .collect();
    let (file, info) = write(&model, 9, TableOptions { expected_entries: 20_000, ..TableOptions::default() });
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(1 << 20, 1, Arc::clone(&stats));
    let table = Table::open(file, 9, order.clone(), cache, Arc::clone(&stats)).unwrap();
    assert!(table.resident_bytes() < info.file_size / 10, "{} of {}", table.resident_bytes(), info.file_size);
    table.verify().unwrap();
    let mut scratch = ReadScratch::new();
    for i in (0..20_000).step_by(37) {
        let (k, t, v) = &model[i];
        let (tag, got) = table.get(k, order.hash(k), Tag::seek(1 << 40), &mut scratch).unwrap().unwrap();
        assert_eq!((tag, got.bytes(&scratch)), (*t, &v[..]));
        assert!(table.lower_bound_hint(k) == Some(&k[..]));
    }
    let before = stats.get(Stat::BlocksRead);
    for _ in 0..1000 {
        let mut k = [0; 16];
        rng.fill(&mut k);
        assert!(table.get(&k, order.hash(&k), Tag::seek(1 << 40), &mut scratch).unwrap().is_none());
    }
    let passed = stats.get(Stat::FilterFalsePositives);
    assert!(passed < 40 && stats.get(Stat::FilterSkips) == 1000 - passed, "{passed}");
    assert!(stats.get(Stat::BlocksRead) - before <= passed, "a key that is not there costs one block at most");
    for opts in [IterOptions::default(), IterOptions { fill_cache: false, readahead: true }] {
        check_cursor(&table, &model, &order, opts, &mut rng);
    }
    let offsets: Vec<u64> = model.iter().step_by(500).map(|e| table.approximate_offset(&e.0)).collect();
    assert!(offsets.is_sorted() && offsets[0] == 0 && offsets[39] > info.file_size / 2);
}

/// A cursor that reads ranges of one length, one after the other, reads hardly more blocks than they take, though it reads ahead.
#[test]
fn ranges_of_one_length_read_few_blocks_too_many() {
    let mut rng = Rng::new(91);
    let n = 20_000u32;
    let model: Model =
        (0..n).map(|i| (i.to_be_bytes().to_vec(), Tag::new(1, Kind::Put), value(&mut rng, 200))).collect();
    let (file, _) = write(&model, 1, TableOptions { compression: Compression::None, ..TableOptions::default() });
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(0, 1, stats.clone());
    let table = Table::open(file, 1, KeyOrder::Bytewise, cache, stats.clone()).unwrap();
    let in_block = u64::from(n) / table.blocks() as u64;
    for steps in [0, 20, 100, 300, 1000, 3000] {
        let mut it = table.iter(IterOptions::default());
        for round in 0..40 {
            let half = u64::from(n) / 2;
            let from = (half * (round % 2) + rng.below(half - steps)) as u32; // never in the block that is loaded
            let before = stats.get(Stat::BlocksRead);
            it.seek(&from.to_be_bytes(), Tag::seek(9)).unwrap();
            (0..steps).for_each(|_| it.next().unwrap());
            assert_eq!(it.key(), (from + steps as u32).to_be_bytes());
            let (read, needed) = (stats.get(Stat::BlocksRead) - before, steps / in_block + 2);
            let too_many = if round == 0 { needed + 2 } else { 3 };
            assert!(read <= needed + too_many, "round {round} of {steps} steps: {read} blocks, {needed} needed");
        }
    }
}

/// A cursor that seeks below its loaded block must not answer with that block's first key.
#[test]
fn a_seek_below_the_loaded_block_goes_back() {
    let model: Model =
        (0..1000u32).map(|i| (i.to_be_bytes().to_vec(), Tag::new(1, Kind::Put), vec![i as u8; 50])).collect();
    let (file, _) = write(&model, 1, TableOptions { block_size: 512, ..TableOptions::default() });
    let table = open(&file, 1, &KeyOrder::Bytewise, 0).unwrap();
    let mut it = table.iter(IterOptions::default());
    for i in (0..1000u32).rev().chain((0..1000).map(|i| i * 7919 % 1000)) {
        it.seek(&i.to_be_bytes(), Tag::seek(9)).unwrap();
        assert_eq!(it.key(), i.to_be_bytes());
    }
}

#[test]
fn one_large_entry_beside_small_ones() {
    let mut rng = Rng::new(31);
    for compression in METHODS {
        let mut model: Model = Vec::new();
        for i in 0..20u8 {
            let mut big = vec![i; if i % 5 == 0 { 3 << 20 } else { 10 }];
            let half = big.len() / 2;
            rng.fill(&mut big[..half]);
            let key = if i == 7 { vec![i; 100_000] } else { vec![i; 3] };
            model.push((key, Tag::new(5, Kind::Put), big));
        }
        let (file, _) = write(&model, 3, TableOptions { compression, ..TableOptions::default() });
        let table = open(&file, 3, &KeyOrder::Bytewise, 64 << 20).unwrap();
        table.verify().unwrap();
        check_gets(&table, &model, &KeyOrder::Bytewise, &mut rng);
        check_cursor(&table, &model, &KeyOrder::Bytewise, IterOptions::default(), &mut rng);
    }
}

#[test]
fn range_tombstones_widen_the_table_and_come_back_sorted() {
    let fs = MemFs::new();
    let mut w = TableWriter::new(new_file(&fs, "t"), 4, TableOptions::default());
    w.add_range_tombstone(b"x", b"z", 9).unwrap();
    w.add(b"m", Tag::new(3, Kind::Put), b"v").unwrap();
    w.add_range_tombstone(b"a", b"c", 2).unwrap();
    assert_eq!(w.add_range_tombstone(b"c", b"c", 2).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let info = w.finish().unwrap();
    assert_eq!((&info.min_key[..], &info.max_key[..], info.min_seq, info.max_seq), (&b"a"[..], &b"z"[..], 2, 9));
    let file = fs_open(&fs, "t");
    let table = open(&file, 4, &KeyOrder::Bytewise, 0).unwrap();
    assert_eq!(table.range_tombstones().iter().map(|t| t.seq).collect::<Vec<_>>(), [2, 9]);
    assert_eq!(table.lower_bound_hint(b"0"), Some(&b"a"[..]));

    // Only range tombstones, and nothing at all.
    let mut w = TableWriter::new(new_file(&fs, "r"), 5, TableOptions::default());
    w.add_range_tombstone(b"a", b"c", 2).unwrap();
    let info = w.finish().unwrap();
    assert_eq!((&info.min_key[..], &info.max_key[..], info.entries), (&b"a"[..], &b"c"[..], 0));
    let info = TableWriter::new(new_file(&fs, "e"), 6, TableOptions::default()).finish().unwrap();
    assert_eq!((info.entries, info.min_seq, info.max_seq), (0, 0, 0));
    for (name, id) in [("r", 5), ("e", 6)] {
        let table = open(&fs_open(&fs, name), id, &KeyOrder::Bytewise, 0).unwrap();
        table.verify().unwrap();
        check_cursor(&table, &Vec::new(), &KeyOrder::Bytewise, IterOptions::default(), &mut Rng::new(1));
        assert!(table.get(b"a", None, Tag::seek(9), &mut ReadScratch::new()).unwrap().is_none());
    }
}

fn fs_open(fs: &MemFs, name: &str) -> Arc<dyn kingtide_vfs::File> {
    use kingtide_vfs::{Fs, OpenMode};
    fs.open(std::path::Path::new(name), OpenMode::Read).unwrap()
}

#[test]
fn mistakes_of_the_caller_are_refused() {
    let writer = || TableWriter::new(new_file(&MemFs::new(), "t"), 4, TableOptions::default());
    let put = |seq| Tag::new(seq, Kind::Put);
    for (key, tag, value) in [
        (&b"a"[..], put(1), &b""[..]),
        (b"b", put(5), b""),
        (b"b", put(6), b""),
        (b"c", Tag::new(1, Kind::RangeDelete), b""),
        (b"c", Tag(0x17), b""),
        (b"c", Tag::new(1, Kind::PutPointer), b"\xff"),
        (b"c", Tag::with_expiry(1, Kind::Put), b"short"),
    ] {
        let mut w = writer();
        w.add(b"b", put(5), b"").unwrap();
        assert_eq!(w.add(key, tag, value).unwrap_err().kind(), ErrorKind::InvalidArgument, "{key:?} {tag:?}");
    }
    // Each fits in a file by itself.
    let mut w = writer();
    let mut pointer = Vec::new();
    ValuePointer { file_id: 7, offset: 24, stored_len: MAX_SIZE - 1, raw_len: 9 }.encode(&mut pointer);
    w.add(b"a", Tag::new(1, Kind::PutPointer), &pointer).unwrap();
    assert_eq!(w.add(b"b", Tag::new(1, Kind::PutPointer), &pointer).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut w = writer();
    w.add(b"", put(5), b"").unwrap();
    assert!(w.add(b"", put(5), b"").is_err(), "the empty key comes first, but once a tag");
}

#[test]
fn value_logs_referenced_are_counted() {
    let model = entries(&KeyOrder::Bytewise, 500, &mut Rng::new(77));
    let (_, info) = write(&model, 1, TableOptions::default());
    let mut want: Vec<VlogRef> = Vec::new();
    for (_, t, v) in &model {
        if t.kind() == Some(Kind::PutPointer) {
            let v = if t.has_expiry() { &v[8..] } else { v };
            let p = kingtide_table::ValuePointer::decode(v).unwrap();
            match want.iter_mut().find(|r| r.file_id == p.file_id) {
                Some(r) => (r.values, r.bytes) = (r.values + 1, r.bytes + p.stored_len),
                None => want.push(VlogRef { file_id: p.file_id, values: 1, bytes: p.stored_len }),
            }
        }
    }
    want.sort_by_key(|r| r.file_id);
    assert_eq!(info.vlog_refs, want);
}

/// A custom order has no hash, hence no filter, and its head may say nothing.
#[test]
fn custom_orders_work_without_filter_and_heads() {
    struct ByLength;
    impl kingtide_base::key::CustomOrder for ByLength {
        fn name(&self) -> &str {
            "by-length"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.len().cmp(&b.len()).then(a.cmp(b))
        }
    }
    let order = KeyOrder::Custom(Arc::new(ByLength));
    let mut rng = Rng::new(41);
    let model = entries(&order, 300, &mut rng);
    let opts = TableOptions { order: order.clone(), block_size: 256, index_prefix_len: 2, ..TableOptions::default() };
    let (file, _) = write(&model, 1, opts);
    let table = open(&file, 1, &order, 1 << 20).unwrap();
    check_gets(&table, &model, &order, &mut rng);
    check_cursor(&table, &model, &order, IterOptions::default(), &mut rng);
    assert_eq!(open(&file, 1, &KeyOrder::Bytewise, 0).unwrap_err().kind(), ErrorKind::Incompatible);
}
