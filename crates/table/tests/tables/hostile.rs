//! Damaged key logs: an error with file and offset, or the right answer. Never a panic, a wrong value or a missing key.

use super::common::*;
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::{Error, ErrorKind, KeyOrder, Tag};
use kingtide_table::block::RESTART_INTERVAL;
use kingtide_table::footer::KLOG_VERSION;
use kingtide_table::{IterOptions, Offered, ReadScratch, Table, TableIter, TableOptions};
use std::sync::Arc;

const ID: u64 = 12;

/// A table of format version 1 for an even seed, of version 2 for an odd one.
fn sample(compression: Compression, seed: u64) -> (Model, Vec<u8>) {
    let model = entries(&KeyOrder::Bytewise, 120, &mut Rng::new(seed));
    let restart_interval = if seed.is_multiple_of(2) { 1 } else { RESTART_INTERVAL };
    let zstd_dictionary = if seed.is_multiple_of(2) { 0 } else { 512 };
    let opts =
        TableOptions { block_size: 512, restart_interval, compression, zstd_dictionary, ..TableOptions::default() };
    let (file, _) = write(&model, ID, opts);
    (model, bytes_of(&*file))
}

fn located(e: &Error) {
    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "{e}");
    assert!(e.path().is_some() && e.offset().is_some(), "no place in '{e}'");
}

/// Reads everything in every way; returns whether an error showed.
fn read_all(bytes: &[u8], model: &Model) -> bool {
    let order = KeyOrder::Bytewise;
    let table = match open(&file_of(bytes), ID, &order, 0) {
        Ok(t) => t,
        Err(e) => {
            located(&e);
            return true;
        }
    };
    let mut failed = false;
    let mut scratch = ReadScratch::new();
    for (k, t, v) in model {
        match table.get(k, order.hash(k), *t, &mut scratch) {
            Ok(got) => {
                let got = got.as_ref().map(|(t, v)| (*t, v.bytes(&scratch)));
                assert_eq!(got, Some((*t, &v[..])), "a wrong answer or a missing key");
            }
            Err(e) => {
                located(&e);
                failed = true;
            }
        }
    }
    for readahead in [false, true] {
        let mut it = table.iter(IterOptions { fill_cache: false, readahead });
        let mut i = 0;
        let mut moved = it.first();
        while moved.is_ok() && it.valid() {
            assert_eq!((it.key(), it.tag(), it.value()), (&model[i].0[..], model[i].1, &model[i].2[..]));
            i += 1;
            moved = it.next();
        }
        match moved {
            Ok(()) => assert_eq!(i, model.len(), "entries are missing"),
            Err(e) => {
                assert!(!it.valid(), "a failed cursor is invalid");
                located(&e);
                failed = true;
            }
        }
    }
    failed |= table.verify().inspect_err(located).is_err();
    failed
}

#[test]
fn every_flipped_byte_is_an_error_or_harmless() {
    let mut rng = Rng::new(1);
    let (mut flips, mut detected) = (0, 0);
    for compression in METHODS {
        for seed in [4, 5] {
            let (model, bytes) = sample(compression, seed);
            assert!(!read_all(&bytes, &model));
            for i in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[i] ^= 1 << rng.below(8);
                flips += 1;
                detected += read_all(&bad, &model) as u32;
            }
        }
    }
    println!("{flips} flips, {detected} detected");
    assert_eq!(flips, detected, "every byte of a table is covered by a checksum");
}

#[test]
fn every_truncation_is_an_error() {
    let (model, bytes) = sample(Compression::Lz4, 6);
    for n in 0..bytes.len() {
        assert!(read_all(&bytes[..n], &model), "cut to {n}");
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(&[0; 70]);
    assert!(read_all(&longer, &model));
    longer.extend_from_slice(&bytes);
    assert!(read_all(&longer, &model), "a table behind other bytes");
}

/// Two blocks of equal length that change places carry the wrong place in their checksums.
#[test]
fn swapped_blocks_and_files_are_detected() {
    let model: Model = (0..200u32)
        .map(|i| (i.to_be_bytes().to_vec(), Tag::new(1, kingtide_base::Kind::Put), vec![i as u8; 40]))
        .collect();
    let opts = TableOptions { block_size: 512, compression: Compression::None, ..TableOptions::default() };
    let (file, _) = write(&model, ID, opts.clone());
    let bytes = bytes_of(&*file);
    let table = open(&file, ID, &KeyOrder::Bytewise, 0).unwrap();
    let len = table.approximate_offset(&model[100].0) as usize;
    let block = table.approximate_offset(&model[199].0) as usize / (table.blocks() - 1);
    assert_eq!(len % block, 0, "the blocks are equally long");
    let mut swapped = bytes.clone();
    swapped[..block].copy_from_slice(&bytes[block..2 * block]);
    swapped[block..2 * block].copy_from_slice(&bytes[..block]);
    assert!(read_all(&swapped, &model));

    let e = open(&file, ID + 1, &KeyOrder::Bytewise, 0).unwrap_err();
    assert!(e.to_string().contains("this is file 12, expected file 13"), "{e}");
    // A block of another file at the same place.
    let (other, _) = write(&model, ID + 1, opts);
    let mut mixed = bytes.clone();
    mixed[..block].copy_from_slice(&bytes_of(&*other)[..block]);
    assert!(read_all(&mixed, &model));
}

#[test]
fn a_newer_version_is_named_as_such() {
    let (_, mut bytes) = sample(Compression::Lz4, 7);
    let at = bytes.len() - 16;
    bytes[at] = u8::try_from(KLOG_VERSION + 1).unwrap();
    let e = open(&file_of(&bytes), ID, &KeyOrder::Bytewise, 0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NewerFormat, "{e}");
}

/// Compares a walk through loaded blocks with single steps, over at most 2000 entries. Returns how many of them the walk took within a block.
fn walks_as_it_steps(table: &Arc<Table>) -> usize {
    let start = || {
        let mut it = table.iter(IterOptions { fill_cache: false, readahead: false });
        let moved = it.first();
        (it, moved)
    };
    let (mut walking, mut walked) = start();
    let (mut stepping, mut stepped) = start();
    let (mut steps, mut in_block) = (0, 0);
    while walked.is_ok() && walking.valid() && steps < 2000 {
        walking.walk_block(|head, key, tag, value| {
            assert_eq!(head, KeyOrder::Bytewise.head(key));
            stepped = stepping.next();
            let same = stepped.is_ok() && (stepping.key(), stepping.tag(), stepping.value()) == (key, tag, value);
            assert!(same, "a walk shows {} where a step does not", key.escape_ascii());
            (steps, in_block) = (steps + 1, in_block + 1);
            Offered::Taken
        });
        (walked, stepped) = (walking.next(), stepping.next());
        steps += 1;
        assert_eq!(walked.is_ok() && walking.valid(), stepped.is_ok() && stepping.valid());
    }
    assert_eq!(walked.err().map(|e| e.to_string()), stepped.err().map(|e| e.to_string()));
    in_block
}

/// Bytes whose checksums are right but whose contents are not: errors or wrong answers, never a panic, a huge
/// allocation, or a seek back that goes forward. This is what an attacker, not a disk, would make.
#[test]
fn forged_checksums_never_panic() {
    use kingtide_base::checksum::block_crc;
    use kingtide_table::footer::{FOOTER, Footer};
    let (mut rng, mut in_block) = (Rng::new(9), 0);
    for (compression, seed) in METHODS.into_iter().flat_map(|c| [(c, 8), (c, 9)]) {
        let (model, bytes) = sample(compression, seed);
        let footer_at = bytes.len() - FOOTER;
        let footer = Footer::decode(bytes[footer_at..].try_into().unwrap(), bytes.len() as u64, ID).unwrap();
        // The frames: the first block, and the tail sections.
        let table = open(&file_of(&bytes), ID, &KeyOrder::Bytewise, 0).unwrap();
        let mut last = model[0].0.clone();
        let first_block = loop {
            let at = table.approximate_offset(&last);
            if at > 0 {
                break at as usize;
            }
            last = model.iter().find(|e| e.0 > last).unwrap().0.clone();
        };
        let mut frames = vec![(0, first_block)];
        let mut at = footer.data_end as usize;
        for len in [footer.filter, footer.index, footer.tombstones, footer.properties] {
            if len > 0 {
                frames.push((at, at + len as usize));
            }
            at += len as usize;
        }
        for (start, end) in frames {
            for _ in 0..1500 {
                let mut bad = bytes.clone();
                for _ in 0..1 + rng.below(3) {
                    let i = start + rng.below((end - start - 4) as u64) as usize;
                    bad[i] = rng.next_u64() as u8;
                }
                let sum = block_crc(&bad[start..end - 4], ID, start as u64);
                bad[end - 4..end].copy_from_slice(&sum.to_le_bytes());
                let Ok(table) = open(&file_of(&bad), ID, &KeyOrder::Bytewise, 0) else { continue };
                let mut scratch = ReadScratch::new();
                for (k, t, _) in model.iter().step_by(5) {
                    if let Ok(Some((_, v))) = table.get(k, None, *t, &mut scratch) {
                        let _ = v.bytes(&scratch);
                    }
                }
                let mut it = table.iter(IterOptions { fill_cache: false, readahead: rng.one_in(2) });
                let mut moved = it.first();
                let mut steps = 0;
                while moved.is_ok() && it.valid() && steps < 2000 {
                    let _ = (it.key().len(), it.value().len());
                    moved = it.next();
                    steps += 1;
                }
                in_block += walks_as_it_steps(&table);
                let _ = (it.seek(&last, Tag::seek(5)), it.prev(), table.verify());
                // Where the index leads to a wrong block, a walk back over a deleted range must not go to and fro in it for ever.
                for (k, t, _) in model.iter().step_by(5) {
                    let went_back =
                        |it: &TableIter| compare(&KeyOrder::Bytewise, (it.key(), it.tag()), (k, *t)).is_lt();
                    assert!(it.seek_lt(k, *t).is_err() || !it.valid() || went_back(&it), "at or behind {k:?}");
                }
            }
        }
    }
    assert!(in_block > 10_000, "{in_block} steps within a block");
}
