//! Tables whose indexes and filters are in memory in partitions: what stays, what is read, and damage that comes later.

use super::common::*;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stat;
use kingtide_base::{ErrorKind, KeyOrder, Kind, Tag};
use kingtide_table::{IterOptions, ReadScratch, TableOptions};
use kingtide_vfs::{FaultFs, Fs, MemFs};
use std::sync::Arc;

const ID: u64 = 5;

fn model(n: u32) -> Model {
    (0..n).map(|i| (format!("key-{i:06}").into_bytes(), Tag::new(1, Kind::Put), vec![i as u8; 30])).collect()
}

fn options() -> TableOptions {
    let compression = kingtide_base::options::Compression::None;
    TableOptions { block_size: 128, compression, ..TableOptions::default() }
}

fn hash(key: &[u8]) -> Option<u64> {
    KeyOrder::Bytewise.hash(key)
}

/// Partitions stay as long as there is room; a get of a key that was read before reads only its block.
#[test]
fn a_working_set_of_partitions_stays() {
    let model = model(4000);
    let (file, _) = write(&model, ID, options());
    let (table, stats) = open_in_partitions(&file, ID, &KeyOrder::Bytewise, (0, 1 << 20)).unwrap();
    let whole = open(&file, ID, &KeyOrder::Bytewise, 0).unwrap();
    assert!(table.resident_bytes() < whole.resident_bytes(), "{table:?}");
    let mut scratch = ReadScratch::new();
    for round in 0..2 {
        let before = (stats.get(Stat::PartitionsRead), stats.get(Stat::PartitionHits));
        for (key, tag, value) in &model {
            let (found, at) = table.get(key, hash(key), Tag::seek(9), &mut scratch).unwrap().unwrap();
            assert_eq!((found, at.bytes(&scratch)), (*tag, &value[..]));
        }
        let read = stats.get(Stat::PartitionsRead) - before.0;
        let hits = stats.get(Stat::PartitionHits) - before.1;
        match round {
            0 => assert!(read > 50 && read < 1000 && hits + read >= 4000, "{read} read, {hits} found"),
            _ => assert!(read == 0 && hits >= 4000, "{read} read, {hits} found"),
        }
    }
    assert_eq!(stats.get(Stat::PartitionEvictions), 0);
}

/// A scan reads each partition of the index once and leaves those alone that gets have in memory.
#[test]
fn a_scan_passes_by() {
    let model = model(4000);
    let (file, _) = write(&model, ID, options());
    let (table, stats) = open_in_partitions(&file, ID, &KeyOrder::Bytewise, (0, 1 << 20)).unwrap();
    let mut reads = Vec::new();
    for _ in 0..2 {
        let before = stats.get(Stat::PartitionsRead);
        let mut it = table.iter(IterOptions { fill_cache: false, readahead: true });
        it.first().unwrap();
        for (key, ..) in &model {
            assert_eq!(it.key(), key);
            it.next().unwrap();
        }
        assert!(!it.valid());
        reads.push(stats.get(Stat::PartitionsRead) - before);
    }
    assert!(reads[0] > 20 && reads[0] < table.blocks() as u64 / 2, "{reads:?} for {} blocks", table.blocks());
    assert_eq!((reads[0], stats.get(Stat::PartitionHits)), (reads[1], 0), "nothing entered the cache");
}

/// Bytes that change on the disk after the table was opened are found out, by the partition that holds them, whichever it is, and where.
#[test]
fn damage_that_comes_later_is_found() {
    let model = model(300);
    let (file, _) = write(&model, ID, options());
    let bytes = bytes_of(&*file);
    let footer = &bytes[bytes.len() - 64..];
    let field = |i: usize| u64::from_le_bytes(*footer[i * 8..].first_chunk().unwrap()) as usize;
    let (data_end, filter, index) = (field(1), field(2), field(3));
    // Not the head of the filter, nor that of the index, nor the frames' checksums, which are not read again.
    let filter_lines = data_end + 8..data_end + filter - 5;
    let index_body = data_end + filter + 6..data_end + filter + index - 5;
    let mut rng = Rng::new(3);
    let (mut found, mut flips) = (0, 0);
    for at in filter_lines.chain(index_body).step_by(7) {
        let file = file_of(&bytes);
        let (table, _) = open_in_partitions(&file, ID, &KeyOrder::Bytewise, (0, 0)).unwrap();
        file.write_at(&[bytes[at] ^ 1 << rng.below(8)], at as u64).unwrap();
        let mut scratch = ReadScratch::new();
        let mut failed = false;
        for (key, tag, value) in &model {
            match table.get(key, hash(key), Tag::seek(9), &mut scratch) {
                Ok(got) => {
                    let (t, v) = got.unwrap();
                    assert_eq!((t, v.bytes(&scratch)), (*tag, &value[..]), "byte {at}");
                }
                Err(e) => {
                    assert_eq!((e.kind(), e.path().is_some()), (ErrorKind::Corruption, true), "{e}");
                    let offset = e.offset().unwrap() as usize;
                    assert!(offset >= data_end && offset < data_end + filter + index, "{e}");
                    assert!(e.to_string().contains("part of an index or filter"), "{e}");
                    failed = true;
                }
            }
        }
        let mut it = table.iter(IterOptions::default());
        let walked = it.first().and_then(|()| {
            let mut n = 0;
            while it.valid() {
                assert_eq!(it.key(), model[n].0);
                n += 1;
                it.next()?;
            }
            assert_eq!(n, model.len());
            Ok(())
        });
        assert!(walked.is_ok() || at >= data_end + filter, "a walk needs no filter");
        flips += 1;
        found += u32::from(failed);
    }
    assert_eq!(found, flips, "each byte is of some partition");
}

/// A read of a partition that fails is an error of that read: nothing of it stays.
#[test]
fn a_failed_read_leaves_nothing() {
    use kingtide_vfs::{Fault, Op, OpenMode, Rule};
    let model = model(1000);
    let (written, _) = write(&model, ID, options());
    let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
    let file = faults.open(std::path::Path::new("t"), OpenMode::Create).unwrap();
    file.write_at(&bytes_of(&*written), 0).unwrap();
    let (table, _) = open_in_partitions(&file, ID, &KeyOrder::Bytewise, (0, 3000)).unwrap();
    let mut scratch = ReadScratch::new();
    let mut it = table.iter(IterOptions::default());
    faults.add(Rule::new(Op::Read, Fault::Eio).probability(0.2));
    let (mut failed, mut rng) = (0, Rng::new(8));
    for _ in 0..5000 {
        let (key, _, value) = &model[rng.below(1000) as usize];
        match table.get(key, hash(key), Tag::seek(9), &mut scratch) {
            Ok(got) => assert_eq!(got.unwrap().1.bytes(&scratch), &value[..]),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                failed += 1;
            }
        }
        match it.seek(key, Tag::seek(9)) {
            Ok(()) => assert_eq!((it.key(), it.value()), (&key[..], &value[..])),
            Err(_) => assert!(!it.valid()),
        }
    }
    assert!(failed > 500, "{failed}");
}

/// Where no file may be read, a get that needs a partition says so instead of answering.
#[test]
fn memory_only_reads_no_partition() {
    let model = model(500);
    let (file, _) = write(&model, ID, options());
    let (table, stats) = open_in_partitions(&file, ID, &KeyOrder::Bytewise, (1 << 20, 1 << 20)).unwrap();
    let mut scratch = ReadScratch::new();
    let (key, ..) = &model[77];
    scratch.set_memory_only(true);
    assert!(table.get(key, hash(key), Tag::seek(9), &mut scratch).is_err() && scratch.refused());
    assert_eq!(stats.get(Stat::PartitionsRead), 0);
    scratch.set_memory_only(false);
    (0..2).for_each(|_| assert!(table.get(key, hash(key), Tag::seek(9), &mut scratch).unwrap().is_some()));
    scratch.set_memory_only(true);
    assert!(table.get(key, hash(key), Tag::seek(9), &mut scratch).unwrap().is_some() && !scratch.refused());
}
