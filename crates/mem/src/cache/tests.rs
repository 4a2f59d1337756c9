use std::collections::HashMap;

use kingtide_base::rng::Rng;

use super::*;

fn cache(capacity: u64, shards: usize) -> (Arc<BlockCache>, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    (BlockCache::new(capacity, shards, stats.clone()), stats)
}

/// Bytes that derive from the key: a block handed out under a wrong key, or freed and reused, shows.
fn content(file_id: u64, offset: u64) -> Vec<u8> {
    let mut rng = Rng::new(file_id << 32 ^ offset);
    let mut bytes = vec![0; 20 + rng.below(300) as usize];
    rng.fill(&mut bytes);
    bytes
}

fn block(file_id: u64, offset: u64) -> Block {
    Block::from(&content(file_id, offset)[..])
}

fn audit(c: &BlockCache) -> (usize, u64) {
    let each = c.partitions.iter().map(Partition::audit);
    let sum = each.fold((0, 0), |(n, b), (n1, b1)| (n + n1, b + b1));
    assert_eq!(c.used(), sum.1);
    sum
}

/// An eviction may be counted before the insertion of what it evicted, which another thread made: the sum is not taken for 2^64 bytes then.
#[test]
fn what_is_held_is_never_less_than_nothing() {
    let (c, stats) = cache(1 << 20, 1);
    let k = Hashed::new(1, 2);
    let inserted = c.partition(k).insert(k, block(1, 2));
    let erased = c.partition(k).erase_file(1);
    c.record(erased);
    assert_eq!((c.used(), stats.get(Stat::CacheBytes)), (0, 0));
    c.record(inserted);
    assert_eq!(audit(&c), (0, 0));
}

/// Random operations against a map of all that was ever inserted. The cache may forget, but what it returns is right,
/// what it holds is counted to the byte, and what cannot have been evicted is there.
#[test]
fn model() {
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let (c, stats) = cache(60_000, 1 << rng.below(3));
        let mut known: HashMap<(u64, u64), u64> = HashMap::new();
        let mut held: Vec<(u64, u64, Block)> = Vec::new();
        for step in 0..if cfg!(miri) { 200 } else { 5_000 } {
            let (file, offset) = (rng.below(4), rng.below(200));
            match rng.below(100) {
                0..50 => match c.get(file, offset) {
                    Some(b) => {
                        assert!(known.contains_key(&(file, offset)), "step {step}: a block that was not inserted");
                        assert_eq!(&*b, content(file, offset));
                        held.push((file, offset, b));
                    }
                    None => assert!(
                        !known.contains_key(&(file, offset)) || stats.get(Stat::CacheEvictions) > 0,
                        "step {step}: lost without an eviction"
                    ),
                },
                50..97 => {
                    let b = block(file, offset);
                    known.insert((file, offset), b.charge());
                    c.insert(file, offset, b);
                    assert!(c.get(file, offset).is_some(), "step {step}: gone at once");
                }
                97 => {
                    c.erase_file(file);
                    known.retain(|k, _| k.0 != file);
                }
                98 => c.set_capacity(10_000 + rng.below(100_000)),
                _ => held.clear(),
            }
            if step % 64 == 0 {
                audit(&c);
            }
        }
        audit(&c);
        for (file, offset, b) in &held {
            assert_eq!(&**b, content(*file, *offset));
        }
        assert_eq!(stats.get(Stat::CacheBytes), c.used());
        drop(c);
        for (file, offset, b) in &held {
            assert_eq!(&**b, content(*file, *offset), "a handle outlives the cache");
        }
    }
}

#[test]
fn accounting_is_exact_and_eviction_stops_at_capacity() {
    let capacity = if cfg!(miri) { 40 << 10 } else { 1 << 20 };
    let (c, stats) = cache(capacity, 1);
    let one = Block::from(&[7u8; 1000][..]);
    let charge = one.charge();
    let fit = capacity / charge;
    for i in 0..2 * fit {
        c.insert(1, i, Block::from(&[7u8; 1000][..]));
    }
    assert_eq!(c.used(), fit * charge);
    assert_eq!((stats.get(Stat::CacheInserts), stats.get(Stat::CacheEvictions)), (2 * fit, fit));
    c.set_capacity(10 * charge);
    assert_eq!((c.used(), audit(&c).0), (10 * charge, 10));
    c.insert(1, 1 << 40, Block::from(&vec![0; 10 * charge as usize][..]));
    assert!(c.get(1, 1 << 40).is_none(), "larger than a partition");
    c.set_capacity(0);
    c.insert(1, 1, one);
    assert_eq!((c.used(), c.get(1, 1).is_none(), c.admit(1, 1)), (0, true, false));
    assert!(!c.admit(1, 1), "an empty cache that is off admits nothing");
    c.set_capacity(1 << 20);
    assert!(c.admit(1, 1));
}

#[test]
fn a_block_under_two_keys_is_two_blocks() {
    let (c, _) = cache(1 << 20, 2);
    let b = Block::from(&b"bytes"[..]);
    c.insert(1, 0, b.clone());
    c.insert(2, 0, b.clone());
    c.insert(2, 0, b.clone());
    assert_eq!(c.used(), 2 * b.charge());
    assert_eq!((&*c.get(1, 0).unwrap(), &*c.get(2, 0).unwrap()), (&b"bytes"[..], &b"bytes"[..]));
    let (other, _) = cache(1 << 20, 2);
    other.insert(1, 0, b.clone());
    drop(c);
    assert_eq!(&*other.get(1, 0).unwrap(), b"bytes");
}

#[test]
fn erase_file_takes_that_file_only() {
    let (c, _) = cache(1 << 20, 4);
    let files = if cfg!(miri) { 36 } else { 70 };
    for file in 0..files {
        for offset in 0..10 {
            c.insert(file, offset * 4096, block(file, offset * 4096));
        }
    }
    c.erase_file(33);
    for file in 0..files {
        for offset in 0..10 {
            assert_eq!(c.get(file, offset * 4096).is_none(), file == 33, "file {file} offset {offset}");
        }
    }
    assert_eq!(audit(&c).0 as u64, (files - 1) * 10);
}

/// More references taken through one slot than its count holds, given back in any order.
#[test]
fn counts_spill_from_slot_to_block() {
    let n = if cfg!(miri) { 100 } else { 200_000 };
    let (c, _) = cache(1 << 20, 1);
    c.insert(5, 6, block(5, 6));
    let mut held: Vec<Block> = (0..n).map(|_| c.get(5, 6).unwrap()).collect();
    held.truncate(n / 2);
    c.erase_file(5);
    assert!(c.get(5, 6).is_none());
    let last = held.pop().unwrap();
    drop(held);
    assert_eq!(&*last, content(5, 6));
}

#[test]
#[cfg_attr(miri, ignore = "long, and nothing in it is new to Miri")]
fn hits_protect_and_the_doorkeeper_keeps_scans_out() {
    let (c, _) = cache(256 << 10, 1);
    let hot: Vec<u64> = (0..100).collect();
    let read = |file, offset| {
        let hit = c.get(file, offset).is_some();
        if !hit && c.admit(file, offset) {
            c.insert(file, offset, Block::from(&[0u8; 1000][..]));
        }
        hit
    };
    for _ in 0..3 {
        hot.iter().for_each(|i| _ = read(1, *i));
    }
    // Fill the rest, then scan far more than the cache holds, with the hot blocks read now and then.
    let mut admitted = 0;
    for i in 0..20_000u64 {
        read(2, i);
        if i > 1_000 && c.get(2, i).is_some() {
            admitted += 1;
        }
        if i % 100 == 0 {
            hot.iter().for_each(|i| _ = read(1, *i));
        }
    }
    assert!(admitted < 20, "{admitted} blocks of a scan got in");
    assert!(hot.iter().all(|i| read(1, *i)));
    // A block that comes back soon gets in at its fourth miss, or before if there is an idle one.
    let misses = (0..9).take_while(|_| !read(3, 1)).count();
    assert!((2..=4).contains(&misses), "{misses} misses");
}

/// In a full cache, a block takes the place of an idle one at its second miss, and of any other at its fourth.
#[test]
fn a_block_displaces_one_that_is_in_use_at_its_fourth_miss() {
    let (c, stats) = cache(1 << 20, 1);
    let one = || Block::from(&[0u8; 4096][..]);
    let blocks = (1 << 20) / one().charge();
    let misses = |offset| (1..100u64).find(|_| c.admit(1, offset)).unwrap();
    (0..blocks).for_each(|i| c.insert(2, i, one()));
    assert_eq!((misses(0), misses(0)), (4, 4), "each of the blocks is fresh");
    (1..blocks).for_each(|i| assert!((2..=4).contains(&misses(i))));
    assert_eq!((misses(0), misses(1)), (2, 2), "none is any more");
    c.insert(1, 1, one());
    let hits = || (0..blocks).filter(|i| c.get(2, *i).is_some()).count() as u64;
    assert_eq!((hits(), hits(), hits(), stats.get(Stat::CacheEvictions)), (blocks - 1, blocks - 1, blocks - 1, 1));
    assert_eq!(misses(2), 4, "all are in use");
    c.insert(1, 2, one());
    assert_eq!((hits(), stats.get(Stat::CacheEvictions)), (blocks - 1, 2), "the one that was never hit is gone");
}

/// Where all blocks are read equally often, few displace others: that would only cost copies. Where others are read from some time on, they
/// come in all the same.
#[test]
#[cfg_attr(miri, ignore = "long, and nothing in it is new to Miri")]
fn blocks_that_are_read_equally_often_seldom_displace_each_other() {
    let (c, stats) = cache(1 << 20, 1);
    let mut rng = Rng::new(7);
    let mut read = |from: u64, blocks: u64| {
        let offset = from + rng.below(blocks);
        let hit = c.get(1, offset).is_some();
        if !hit && c.admit(1, offset) {
            c.insert(1, offset, Block::from(&[0u8; 4096][..]));
        }
        hit
    };
    let mut hits = |from, blocks, reads| (0..reads).filter(|_| read(from, blocks)).count() as u64;
    hits(0, 750, 50_000);
    let before = stats.get(Stat::CacheInserts);
    let misses = 50_000 - hits(0, 750, 50_000);
    let inserted = stats.get(Stat::CacheInserts) - before;
    assert!((25_000..40_000).contains(&misses) && inserted < misses / 3, "{misses} misses, {inserted} insertions");
    hits(1_000, 200, 10_000);
    let hits = hits(1_000, 200, 1_000);
    assert!(hits > 950, "{hits} of 1000 reads of another fifth of a cache's blocks");
}

/// Readers, writers, erasers and a changing capacity at once; every block read has the bytes of its key.
#[test]
fn hammer() {
    let steps = if cfg!(miri) { 60 } else { 60_000 };
    let (c, stats) = cache(40_000, 2);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let c = &c;
            s.spawn(move || {
                let mut rng = Rng::new(t);
                let mut held = Vec::new();
                for step in 0..steps {
                    let (file, offset) = (rng.below(3), rng.below(120));
                    match c.get(file, offset) {
                        Some(b) => {
                            assert_eq!(&*b, content(file, offset));
                            held.push((file, offset, b));
                        }
                        None => c.insert(file, offset, block(file, offset)),
                    }
                    if rng.one_in(50) {
                        held.iter().for_each(|(f, o, b)| assert_eq!(&**b, content(*f, *o)));
                        held.clear();
                    }
                    if t == 0 && step % 1000 == 999 {
                        c.erase_file(rng.below(3));
                        c.set_capacity(20_000 + rng.below(40_000));
                    }
                }
            });
        }
    });
    audit(&c);
    assert!(stats.get(Stat::CacheHits) > 0 && stats.get(Stat::CacheBytes) <= 60_000);
}

/// Blocks in the cache's own memory and in the allocator's, by their size, behave alike, and outlive the cache.
#[test]
fn copies_of_every_size_hold_their_bytes() {
    let (c, _) = cache(1 << 20, 1);
    let mut held = Vec::new();
    for (offset, len) in [0usize, 900, 1000, 4096, 4200, 16_000, 20_000].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let block = c.copied(&bytes).unwrap();
        assert_eq!(block.as_ptr() as usize % 16, 0);
        c.insert(1, offset as u64, block);
        held.push((c.get(1, offset as u64).unwrap(), bytes));
    }
    audit(&c);
    c.erase_file(1);
    assert_eq!(c.used(), 0);
    drop(c);
    for (block, bytes) in &held {
        assert_eq!(&**block, bytes);
    }
}

/// Blocks of every size are filled in place, whichever memory they have, and keep their bytes while others come and go.
#[test]
fn filled_blocks_of_every_size_hold_their_bytes() {
    let (c, _) = cache(8 << 20, 1);
    let sizes: &[usize] = match cfg!(miri) {
        true => &[0, 1, 1000, 5000, 16_368, 20_000],
        false => {
            &[0, 1, 1000, 5000, 16_300, 16_368, 16_400, 20_400, 65_536, 262_144, LONGEST_VALUE, LONGEST_VALUE + 9000]
        }
    };
    let mut held = Vec::new();
    for round in 0..3u8 {
        for &size in sizes {
            let byte = size as u8 ^ round;
            let b = c.filled(size, |bytes| {
                assert_eq!(bytes.len(), size);
                bytes.fill(byte);
                Ok(())
            });
            let b = b.unwrap();
            assert_eq!(b.as_ptr() as usize % 16, 0);
            c.insert(u64::from(round), size as u64, b.clone());
            let copy = c.copied(&b).unwrap();
            held.push((byte, size, b, copy));
            assert!(c.filled(size, |_| Err(kingtide_base::Error::invalid("no"))).is_err());
        }
        if round == 1 {
            held.truncate(sizes.len());
        }
    }
    drop(c); // blocks outlive the cache
    for (byte, size, b, copy) in held {
        assert!(b.len() == size && b.iter().all(|x| *x == byte) && b[..] == copy[..], "{size}");
    }
}

#[test]
fn a_value_may_take_a_small_part_of_the_cache_when_it_is_wanted_again() {
    let (c, _) = cache(64 << 20, 1);
    let touches = |c: &BlockCache, len| (0..9).take_while(|_| !c.admit_value(1, 0, len)).count() + 1;
    assert_eq!(touches(&c, LONGEST_VALUE), 3, "new memory is dear");
    c.set_capacity(1 << 20);
    assert_eq!((touches(&c, 32 << 10), touches(&c, (32 << 10) + 1)), (3, 10));
    for i in 0..40 {
        c.insert(2, i, Block::from(&[0; 32 << 10][..]));
    }
    assert_eq!((touches(&c, 32 << 10), touches(&c, 9), touches(&c, 9)), (2, 2, 2), "a full cache has its memory");
    c.set_capacity(0);
    assert_eq!(touches(&c, 0), 10);
}

/// In a full cache, every second miss of a large value lowers the counter of a block of its size, until one is at zero.
#[test]
fn a_large_value_takes_the_place_of_idle_blocks_only() {
    let (c, stats) = cache(4 << 20, 1);
    let large = || Block::from(&vec![0; LARGE_VALUE][..]);
    let misses = |offset, len| (1..1000u64).find(|_| c.admit_value(1, offset, len)).unwrap();
    let blocks = (4 << 20) / large().charge();
    (0..blocks).for_each(|i| c.insert(2, i, large()));
    assert_eq!(misses(0, LARGE_VALUE), 2 * (blocks + 1), "none of the blocks is idle yet");
    c.insert(1, 0, large());
    assert!(misses(1, LARGE_VALUE) <= 4, "all but one are");
    let hits = || {
        let all = (0..blocks).map(|i| (2, i)).chain([(1, 0), (1, 1)]);
        all.filter(|(file, offset)| c.get(*file, *offset).is_some()).count() as u64
    };
    assert_eq!((hits(), hits(), hits()), (blocks, blocks, blocks));
    assert_eq!(misses(1, LARGE_VALUE - 1), 2, "a smaller value does not wait for that");
    assert_eq!(misses(1, LARGE_VALUE), 2 * (3 * blocks + 1), "all are in use");
    c.insert(1, 1, large());
    assert_eq!((hits(), stats.get(Stat::CacheEvictions)), (blocks, 2));
    c.set_capacity(0);
    assert_eq!((hits(), c.admit_value(1, 0, LARGE_VALUE)), (0, false));
}

/// A large value that does not fit into its partition is never inserted. So it is not admitted either, which would age the blocks there.
#[test]
fn a_value_larger_than_its_partition_is_not_admitted() {
    let (c, _) = cache(4 << 20, 64);
    (0..4096).for_each(|i| c.insert(2, i, Block::from(&[0; 4096][..])));
    for offset in 0..64 {
        (0..100).for_each(|_| assert!(!c.admit_value(1, offset, LARGE_VALUE)));
    }
}

/// A large value does not wait longer where blocks are small: each time it passes as many bytes of them as it has.
#[test]
fn a_large_value_passes_many_small_blocks_at_once() {
    let (c, _) = cache(4 << 20, 1);
    let small = || Block::from(&[0; 4096][..]);
    let (blocks, passed) = ((4 << 20) / small().charge(), (LARGE_VALUE as u64).div_ceil(small().charge()));
    (0..=blocks).for_each(|i| c.insert(2, i, small()));
    c.insert(2, 0, small());
    for i in 0..blocks + 1 {
        c.find(2, i); // all have counters of one or more now
    }
    let rounds = (1..10_000u64).find(|_| c.admit_value(1, 0, LARGE_VALUE)).unwrap() / 2;
    let most = 3 * blocks.div_ceil(passed) + 1;
    assert!((2..=most).contains(&rounds), "{rounds} rounds of {passed} blocks, of {blocks}");
}

/// But of smaller ones it passes no more than one for each 4 KiB, and where large ones are far apart in the table, no more than so many slots.
#[test]
#[cfg_attr(miri, ignore = "long, and nothing in it is new to Miri")]
fn a_miss_of_a_large_value_does_a_bounded_amount_of_work() {
    let misses = |c: &BlockCache| (1..100_000u64).find(|_| c.admit_value(1, 0, LARGE_VALUE)).unwrap() / 2;
    let (c, _) = cache(4 << 20, 1);
    let tiny = || Block::from(&[0; 256][..]);
    let blocks = (4 << 20) / tiny().charge();
    (0..blocks).for_each(|i| c.insert(2, i, tiny()));
    let looks = LARGE_VALUE as u64 / 4096;
    assert_eq!(misses(&c), blocks / looks + 1, "fresh blocks, {looks} at each miss");

    // In the place of those, 31 large blocks. The table stays as large as it was.
    let slots = (blocks * 8 / 5).next_power_of_two();
    c.erase_file(2);
    (0..31).for_each(|i| c.insert(3, i, Block::from(&vec![0; LARGE_VALUE][..])));
    assert!(!c.admit(4, 0), "it is full");
    let rounds = misses(&c);
    assert!(rounds >= slots / (16 * looks), "{rounds} rounds over {slots} slots");
    assert!(rounds <= 2 * slots / (16 * looks) + 1, "{rounds} rounds over {slots} slots");
}

/// Threads that fill, cache and drop blocks of one large size share slots; the bytes of one never show in another.
#[test]
fn threads_share_the_memory_of_large_blocks() {
    let (c, _) = cache(1 << 20, 2);
    let rounds = if cfg!(miri) { 20 } else { 3_000 };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let c = &c;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..rounds {
                    let offset = rng.below(100);
                    let (size, byte) = (17_000 + 300 * offset as usize, offset as u8);
                    let b = c.get(1, offset).unwrap_or_else(|| {
                        let b = c.filled(size, |bytes| {
                            bytes.fill(byte);
                            Ok(())
                        });
                        let b = b.unwrap();
                        c.insert(1, offset, b.clone());
                        b
                    });
                    assert!(b.len() == size && b.iter().all(|x| *x == byte), "{offset}");
                }
            });
        }
    });
    audit(&c);
}
