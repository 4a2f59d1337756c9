//! Tables whose blocks are compressed with a Zstandard dictionary.

use super::common::*;
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::{KeyOrder, Kind, Tag};
use kingtide_mem::cache::BlockCache;
use kingtide_table::salvage::BlockScan;
use kingtide_table::{IterOptions, ReadScratch, Table, TableOptions, TableWriter};
use std::sync::Arc;

const ID: u64 = 31;
/// Where the format version is, from the end of the file.
const VERSION: usize = 16;

/// Rows such as an application stores: the same names in each, and values from small sets.
fn rows(n: u64) -> Model {
    let mut rng = Rng::new(n);
    let cities = ["Cuxhaven", "Brest", "Saint-Malo", "Bristol", "Halifax", "Mokpo"];
    let row = |i: u64, rng: &mut Rng| {
        format!(
            "{{\"station\":\"{}\",\"reading\":{i},\"height_metres\":{}.{:02},\"tide\":\"{}\",\"verified\":{},\"source\":\"gauge-{}\"}}",
            cities[rng.below(6) as usize],
            rng.below(12),
            rng.below(100),
            if rng.one_in(2) { "high" } else { "low" },
            rng.one_in(3),
            rng.below(40),
        )
    };
    (0..n)
        .map(|i| (format!("reading/{i:08}").into_bytes(), Tag::new(i + 1, Kind::Put), row(i, &mut rng).into_bytes()))
        .collect()
}

fn options(zstd_dictionary: usize) -> TableOptions {
    // With every entry a restart point, the version tells whether a table has a dictionary.
    TableOptions { compression: Compression::Zstd, zstd_dictionary, restart_interval: 1, ..TableOptions::default() }
}

fn check(bytes: &[u8], model: &Model) {
    let order = KeyOrder::Bytewise;
    for cache in [0, 4 << 20] {
        let table = open(&file_of(bytes), ID, &order, cache).unwrap();
        table.verify().unwrap();
        let mut scratch = ReadScratch::new();
        for _ in 0..2 {
            for (k, t, v) in model.iter().step_by(7) {
                let (tag, found) = table.get(k, order.hash(k), *t, &mut scratch).unwrap().expect("a key");
                assert_eq!((tag, found.bytes(&scratch)), (*t, &v[..]));
            }
        }
        for readahead in [false, true] {
            let mut it = table.iter(IterOptions { fill_cache: true, readahead });
            it.first().unwrap();
            for (k, t, v) in model {
                assert_eq!((it.key(), it.tag(), it.value()), (&k[..], *t, &v[..]));
                it.next().unwrap();
            }
            assert!(!it.valid());
        }
    }
}

#[test]
fn rows_that_resemble_each_other_take_less_space_with_a_dictionary() {
    let model = rows(30_000);
    let (without, _) = write(&model, ID, options(0));
    let without = bytes_of(&*without);
    for size in [4 << 10, 16 << 10] {
        let (with, info) = write(&model, ID, options(size));
        let with = bytes_of(&*with);
        println!(
            "{} bytes of rows: {} without a dictionary, {} with one of {size}",
            info.raw_bytes,
            without.len(),
            with.len()
        );
        assert!(with.len() < without.len() * 17 / 20);
        assert_eq!((without[without.len() - VERSION], with[with.len() - VERSION]), (1, 2), "format versions");
        check(&with, &model);
        let (both, _) = write(&model, ID, TableOptions { restart_interval: 4, ..options(size) });
        let both = bytes_of(&*both);
        assert!(both.len() < with.len());
        check(&both, &model);
        let resident = |bytes: &[u8]| open(&file_of(bytes), ID, &KeyOrder::Bytewise, 0).unwrap().resident_bytes();
        assert!(resident(&with) >= resident(&without) + size as u64 / 2, "the dictionary is counted");
    }
}

/// Whatever the writer makes of them, they read back.
#[test]
fn tables_of_any_size_get_the_dictionary_that_fits_or_none() {
    let (mut with, mut without) = (0, 0);
    for n in [1, 2, 9, 40, 200, 1_000, 5_000] {
        for size in [256, 2_000, 16 << 10, 256 << 10] {
            for block_size in [64, 512, 4096, 1 << 20] {
                let model = rows(n);
                let (file, info) = write(&model, ID, TableOptions { block_size, ..options(size) });
                let bytes = bytes_of(&*file);
                check(&bytes, &model);
                let has = bytes[bytes.len() - VERSION] == 2;
                assert!(!has || info.raw_bytes >= 2560, "a dictionary for {} bytes", info.raw_bytes);
                if has { with += 1 } else { without += 1 }
            }
        }
    }
    println!("{with} tables with a dictionary, {without} without");
    assert!(with >= 30 && without >= 30);
}

/// Rows have much in common with others of their block, but nothing with those of the next, not even in their keys. No dictionary makes
/// such a table smaller, so it is as if none had been asked for.
#[test]
fn rows_that_no_dictionary_helps_have_none() {
    let mut rng = Rng::new(5);
    let mut shared = [0; 200];
    let mut model = Model::new();
    for i in 0..6_000u64 {
        if i.is_multiple_of(40) {
            rng.fill(&mut shared);
        }
        let key = [&(i / 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..], &[(i % 40) as u8]].concat();
        model.push((key, Tag::new(i + 1, Kind::Put), shared.to_vec()));
    }
    model.sort_by(|a, b| a.0.cmp(&b.0));
    for size in [256, 8 << 10, 64 << 10] {
        let options = TableOptions { block_size: 8192, ..options(size) };
        let (file, _) = write(&model, ID, options.clone());
        let bytes = bytes_of(&*file);
        check(&bytes, &model);
        let (without, _) = write(&model, ID, TableOptions { zstd_dictionary: 0, ..options });
        let without = bytes_of(&*without);
        assert!(bytes == without, "{} bytes, {} without the option of {size}", bytes.len(), without.len());
    }
    // Values that do not shrink, or are all alike, read back.
    for kind in 0..3 {
        let mut model = rows(3_000);
        for (_, _, v) in &mut model {
            match kind {
                0 => rng.fill(v),
                1 => v.fill(b'x'),
                _ => v.clear(),
            }
        }
        let (file, _) = write(&model, ID, options(8 << 10));
        check(&bytes_of(&*file), &model);
    }
}

/// Whatever the rows have in common, a table is not larger with the option than without it.
#[test]
fn a_dictionary_never_makes_a_table_larger() {
    let (mut with, mut without) = (0, 0);
    for in_common in (0..120).step_by(8) {
        for n in [300, 1_200, 4_800] {
            let mut model = rows(n);
            let mut rng = Rng::new(in_common);
            for (_, _, v) in &mut model {
                let end = v.len();
                rng.fill(&mut v[end.min(in_common as usize)..]);
            }
            let size = |zstd_dictionary| {
                let (file, info) = write(&model, ID, options(zstd_dictionary));
                let bytes = bytes_of(&*file);
                (info.file_size, bytes[bytes.len() - VERSION] == 2)
            };
            let plain = size(0).0;
            for dictionary in [256, 1_024, 4_096] {
                let (bytes, has) = size(dictionary);
                // The blocks that were tried may differ a little from the rest.
                assert!(bytes <= plain + plain / 100, "{n} rows, {in_common} bytes: {bytes} bytes, without {plain}");
                if has { with += 1 } else { without += 1 }
            }
        }
    }
    println!("{with} tables with a dictionary, {without} without");
    assert!(with >= 20 && without >= 50);
}

/// What waits for a dictionary is counted as memory of the writer, until the dictionary is there.
#[test]
fn blocks_that_wait_for_a_dictionary_are_counted() {
    let model = rows(30_000);
    let most = |dictionary| {
        let file = file_of(&[]);
        let mut writer = TableWriter::new(file, ID, options(dictionary));
        let mut most = 0;
        for (k, t, v) in &model {
            writer.add(k, *t, v).unwrap();
            most = most.max(writer.memory());
        }
        (most, writer.memory())
    };
    let ((without, _), (with, after)) = (most(0), most(16 << 10));
    assert!(with > without + 100 * (16 << 10), "{with} bytes, {without} without a dictionary");
    assert!(after < without + (64 << 10), "{after} bytes at last, {without} without a dictionary");
}

/// Without index, footer or properties the blocks are found as those of other tables, as long as one copy of the dictionary is intact.
/// Without it, a block is unreadable, and never read wrongly.
#[test]
fn a_damaged_table_with_a_dictionary_is_read_as_far_as_it_can_be() {
    let model = rows(2_000);
    let (file, _) = write(&model, ID, TableOptions { block_size: 512, ..options(2_000) });
    let good = bytes_of(&*file);
    assert_eq!(good[good.len() - VERSION], 2);
    let sections: Vec<u64> =
        good[good.len() - 64..][..48].chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    let [_, data_end, filter, index, tombstones, _] = sections[..] else { panic!() };
    let scan = |bytes: &[u8]| {
        let (mut scan, mut scratch) = (BlockScan::new(file_of(bytes), ID).unwrap(), ReadScratch::new());
        let mut found = Model::new();
        while scan.next(&mut scratch).unwrap().is_some() {
            for i in 0..scratch.entries() {
                let e = scratch.entry(i).unwrap();
                let raw = scratch.bytes();
                found.push((e.key(raw).to_vec(), e.tag, raw[e.value_range()].to_vec()));
            }
        }
        found
    };
    assert_eq!(scan(&good), model);
    let mut no_index = good.clone();
    no_index[(data_end + filter + 3) as usize] ^= 1;
    assert_eq!(scan(&no_index), model, "the index is not needed");

    let mut no_footer = good.clone();
    no_footer.truncate(good.len() - 10);
    assert_eq!(scan(&no_footer), model, "the footer is not needed");

    // Damage anywhere in the properties leaves a copy of the dictionary, and so all blocks.
    let properties = (data_end + filter + index + tombstones) as usize;
    let through_index = |bytes: &[u8]| {
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        let (table, damage) = Table::open_damaged(file_of(bytes), ID, KeyOrder::Bytewise, cache, stats).unwrap();
        assert_eq!(damage.is_empty(), bytes == good);
        let (mut scratch, mut unreadable) = (ReadScratch::new(), 0);
        for i in 0..table.blocks() {
            match table.read_block(i, &mut scratch) {
                Err(e) => {
                    assert!(e.offset().is_some(), "{e}");
                    unreadable += 1;
                }
                // Stored as it is, because it would not shrink.
                Ok(()) => assert!(model.iter().any(|(k, _, _)| k == scratch.entry(0).unwrap().key(scratch.bytes()))),
            }
        }
        (unreadable, table.blocks())
    };
    for at in (properties..good.len() - 64).step_by(61) {
        let mut damaged = good.clone();
        damaged[at] ^= 1;
        assert_eq!(through_index(&damaged).0, 0, "byte {at}");
        assert!(scan(&damaged) == model, "byte {at}");
    }
    let mut no_dictionary = good.clone();
    no_dictionary[properties..good.len() - 64].iter_mut().step_by(500).for_each(|b| *b ^= 1);
    let (unreadable, all) = through_index(&no_dictionary);
    assert!(unreadable > all / 2);
    assert_eq!(scan(&no_dictionary), Model::new());
    no_dictionary.truncate(good.len() - 10);
    assert_eq!(scan(&no_dictionary), Model::new());
}
