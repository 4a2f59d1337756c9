//! Value logs: round trips, ranges, walks, damage.

use super::common::{METHODS, bytes_of, file_of, new_file};
use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::{Error, ErrorKind};
use kingtide_table::{ReadAhead, ValuePointer, Vlog, VlogWriter};
use kingtide_vfs::{Fault, FaultFs, File, Fs, MemFs, Op, OpenMode, Rule};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ID: u64 = 44;
/// Bytes of a chunk's header, and where the stored length is in it.
const CHUNK_HEADER: usize = 14;
const STORED_LEN_AT: usize = 10;

fn values(rng: &mut Rng) -> Vec<Vec<u8>> {
    [0, 1, 100, 512, 1000, 3000, 4096, 4097, 20_000, 300_000]
        .into_iter()
        .flat_map(|len| {
            let mut noise = vec![0; len];
            rng.fill(&mut noise);
            let half = super::common::value(rng, len as u64 + 1);
            [noise, half, vec![7; len]]
        })
        .collect()
}

fn write(values: &[Vec<u8>], method: Compression, chunk: usize) -> (Arc<dyn File>, Vec<ValuePointer>) {
    let file = new_file(&MemFs::new(), "v");
    let mut w = VlogWriter::new(Arc::clone(&file), ID, method, chunk);
    let pointers: Vec<_> = values.iter().map(|v| w.append(v).unwrap()).collect();
    let written = w.written();
    let info = w.finish().unwrap();
    assert_eq!(info.values, values.len() as u64);
    assert_eq!(info.raw_bytes, values.iter().map(|v| v.len() as u64).sum::<u64>());
    assert_eq!(info.stored_bytes, pointers.iter().map(|p| p.stored_len).sum::<u64>());
    assert!(info.file_size == file.len().unwrap() && info.file_size > written);
    (file, pointers)
}

/// In pieces, a value becomes the same bytes of the same file.
#[test]
fn values_in_pieces_are_stored_like_whole_ones() {
    let mut rng = Rng::new(3);
    for method in METHODS {
        for chunk in [1, 100, 4096, 256 << 10] {
            let values = if chunk == 1 { vec![vec![], vec![1], vec![1, 2, 3]] } else { values(&mut rng) };
            let (file, pointers) = write(&values, method, chunk);
            let pieces = new_file(&MemFs::new(), "v");
            let mut w = VlogWriter::new(Arc::clone(&pieces), ID, method, chunk);
            for (p, v) in pointers.iter().zip(&values) {
                if rng.one_in(4) {
                    assert_eq!(w.append(v).unwrap(), *p);
                    continue;
                }
                w.begin().unwrap();
                let mut rest = v.as_slice();
                while !rest.is_empty() {
                    let most = [1 + chunk / 2, chunk, 3 * chunk + 1][rng.below(3) as usize];
                    let (piece, more) = rest.split_at(rest.len().min(rng.below(most as u64 + 1) as usize));
                    w.extend(piece).unwrap();
                    rest = more;
                }
                assert_eq!(w.end().unwrap(), *p, "{method} {chunk}");
            }
            w.finish().unwrap();
            let bytes = |file: &Arc<dyn File>| {
                let mut bytes = vec![0; file.len().unwrap() as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            };
            assert!(bytes(&file) == bytes(&pieces), "{method} {chunk}");
        }
    }
}

#[test]
fn one_value_in_pieces_at_a_time_and_one_that_is_given_up_leaves_nothing() {
    let file = new_file(&MemFs::new(), "v");
    let mut w = VlogWriter::new(Arc::clone(&file), ID, Compression::None, 10);
    let first = w.append(b"first").unwrap();
    for outside in [w.extend(b"x").unwrap_err(), w.end().unwrap_err()] {
        assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
    }
    let mark = w.mark();
    w.begin().unwrap();
    w.extend(&[1; 35]).unwrap();
    for inside in [w.begin().unwrap_err(), w.append(b"x").unwrap_err()] {
        assert_eq!(inside.kind(), ErrorKind::InvalidArgument);
    }
    w.flush().unwrap();
    w.rewind(mark).unwrap();
    let last = w.append(b"last").unwrap();
    assert_eq!(last.offset, first.offset + first.stored_len);
    assert_eq!(w.finish().unwrap().values, 2);
    let vlog = Vlog::open(file, ID).unwrap();
    vlog.verify().unwrap();
}

#[test]
fn values_ranges_and_walks() {
    let mut rng = Rng::new(2);
    for method in METHODS {
        for chunk in [100, 4096, 256 << 10] {
            let values = values(&mut rng);
            let (file, pointers) = write(&values, method, chunk);
            let vlog = Vlog::open(file, ID).unwrap();
            vlog.verify().unwrap();
            let mut out = b"old".to_vec();
            for (p, v) in pointers.iter().zip(&values).rev() {
                vlog.prefetch(p);
                vlog.read(p, &mut out).unwrap();
                assert!(out == *v, "{method} {chunk} {p:?}");
                let mut slice = vec![9; v.len()];
                vlog.read_into(p, &mut slice).unwrap();
                assert!(slice == *v, "into a slice: {method} {chunk} {p:?}");
                let mut reader = vlog.reader(*p).unwrap();
                for _ in 0..8 {
                    let from = rng.below(v.len() as u64 + 2);
                    let to = from + rng.below(5000);
                    let want = v.get(from as usize..v.len().min(to as usize)).unwrap_or_default();
                    vlog.read_range(p, from..to, &mut out).unwrap();
                    assert!(out == want, "{method} {chunk} {p:?} {from}..{to}");
                    reader.read_range(from..to, &mut out).unwrap();
                    assert!(out == want, "reader {method} {chunk} {p:?} {from}..{to}");
                }
            }
            let mut records = vlog.records();
            for (p, v) in pointers.iter().zip(&values) {
                assert_eq!(records.next_value(&mut out).unwrap(), Some(*p));
                assert!(out == *v);
            }
            assert_eq!(records.next_value(&mut out).unwrap(), None);
        }
    }
}

#[test]
fn incompressible_values_are_stored_as_they_are_and_others_shrink() {
    let mut rng = Rng::new(3);
    let mut noise = vec![0; 50_000];
    rng.fill(&mut noise);
    let (_, pointers) = write(&[noise, vec![b'x'; 50_000], b"half ".repeat(10_000)], Compression::Lz4, 256 << 10);
    assert_eq!(pointers[0].stored_len, 50_014);
    assert!(pointers[1].stored_len < 500 && pointers[2].stored_len < 1000, "{pointers:?}");
}

fn located(e: &Error) {
    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat), "{e}");
    assert!(e.path().is_some() && e.offset().is_some(), "no place in '{e}'");
}

/// Whether any error showed; panics at a wrong value.
fn read_all(bytes: &[u8], pointers: &[ValuePointer], values: &[Vec<u8>]) -> bool {
    let vlog = match Vlog::open(file_of(bytes), ID) {
        Ok(v) => v,
        Err(e) => {
            located(&e);
            return true;
        }
    };
    let mut failed = false;
    let mut out = Vec::new();
    for (p, v) in pointers.iter().zip(values) {
        match vlog.read(p, &mut out) {
            Ok(()) => assert!(out == *v, "a wrong value"),
            Err(e) => {
                located(&e);
                failed = true;
            }
        }
        let mut slice = vec![9; v.len()];
        match vlog.read_into(p, &mut slice) {
            Ok(()) => assert!(slice == *v, "a wrong value in a slice"),
            Err(e) => located(&e),
        }
        match vlog.read_range(p, 3..500, &mut out) {
            Ok(()) => assert!(out == v.get(3..v.len().min(500)).unwrap_or_default(), "a wrong range"),
            Err(e) => located(&e),
        }
    }
    failed | vlog.verify().inspect_err(located).is_err()
}

#[test]
fn every_flipped_byte_and_truncation_is_detected() {
    let mut rng = Rng::new(4);
    for method in METHODS {
        let values: Vec<Vec<u8>> = (0..8).map(|i| super::common::value(&mut rng, 40 + 60 * i)).collect();
        let (file, pointers) = write(&values, method, 100);
        let bytes = bytes_of(&*file);
        assert!(!read_all(&bytes, &pointers, &values));
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1 << rng.below(8);
            assert!(read_all(&bad, &pointers, &values), "byte {i}");
            assert!(read_all(&bytes[..i], &pointers, &values), "cut to {i}");
        }
    }
}

#[test]
fn wrong_pointers_and_files_are_refused() {
    let mut rng = Rng::new(5);
    let values = [super::common::value(&mut rng, 500), vec![1; 1000], vec![2; 1000]];
    let (file, p) = write(&values, Compression::None, 300);
    let vlog = Vlog::open(Arc::clone(&file), ID).unwrap();
    let mut out = Vec::new();
    for bad in [
        ValuePointer { file_id: ID + 1, ..p[0] },
        ValuePointer { offset: p[0].offset + 1, ..p[0] },
        ValuePointer { offset: 0, ..p[0] },
        ValuePointer { offset: u64::MAX, ..p[0] },
        ValuePointer { stored_len: u64::MAX, ..p[0] },
        ValuePointer { stored_len: 0, ..p[1] },
        ValuePointer { stored_len: p[1].stored_len - 1, ..p[1] },
        ValuePointer { stored_len: p[1].stored_len + p[2].stored_len, ..p[1] },
        ValuePointer { offset: p[1].offset + 314, stored_len: p[1].stored_len - 314, ..p[1] },
        ValuePointer { raw_len: 999, ..p[1] },
        ValuePointer { raw_len: u64::MAX, ..p[1] },
    ] {
        located(&vlog.read(&bad, &mut out).unwrap_err());
        for len in [0, 999, 1000, 1001, 2000] {
            located(&vlog.read_into(&bad, &mut vec![0; len]).unwrap_err());
        }
        if let Ok(mut r) = vlog.reader(bad) {
            let _ = (r.read_range(0..5000, &mut out), r.read_range(0..u64::MAX, &mut out));
        }
        if let Ok(mut r) = vlog.reader(bad) {
            let _ = r.read_range(5000..6000, &mut out); // which it computes the place of
        }
    }
    vlog.read(&p[1], &mut out).unwrap();
    assert_eq!(out, values[1]);
    assert!(Vlog::open(Arc::clone(&file), ID + 1).unwrap_err().to_string().contains("expected file 45"));

    // Two values of equal length that change places.
    let bytes = bytes_of(&*file);
    let (a, b, n) = (p[1].offset as usize, p[2].offset as usize, p[1].stored_len as usize);
    let mut swapped = bytes.clone();
    swapped[a..a + n].copy_from_slice(&bytes[b..b + n]);
    swapped[b..b + n].copy_from_slice(&bytes[a..a + n]);
    assert!(read_all(&swapped, &p, &values));
}

/// A step back reads the chunk that it wants, and not the headers of all before it.
#[test]
fn a_reader_remembers_where_chunks_begin() {
    let fs = FaultFs::new(MemFs::shared(), 1);
    let value = b"ebb and flow ".repeat(50_000);
    for chunk in [10_000, 100] {
        let file = fs.open(format!("v{chunk}").as_ref(), OpenMode::Create).unwrap();
        let mut writer = VlogWriter::new(file.clone(), ID, Compression::Lz4, chunk);
        let p = writer.append(&value).unwrap();
        writer.finish().unwrap();
        let mut reader = Vlog::open(file, ID).unwrap().reader(p).unwrap();
        let mut out = Vec::new();
        reader.read_range(value.len() as u64 - 5..u64::MAX, &mut out).unwrap(); // walks over all of them
        let before = fs.count(Op::Read);
        let steps = value.len() as u64 / chunk as u64;
        for step in (0..steps).rev() {
            let from = step * chunk as u64 + 1;
            reader.read_range(from..from + 9, &mut out).unwrap();
            assert!(out == value[from as usize..from as usize + 9]);
        }
        let reads = fs.count(Op::Read) - before;
        assert!(reads <= 4 * steps, "{steps} steps back took {reads} reads");
        let mut rng = kingtide_base::rng::Rng::new(8);
        for _ in 0..500 {
            let from = rng.below(value.len() as u64);
            reader.read_range(from..from + 300, &mut out).unwrap();
            assert!(out == value[from as usize..value.len().min(from as usize + 300)]);
        }
    }
}

/// A walk over chunks that breaks off does not leave the reader at a place that it takes for another.
#[test]
fn a_reader_answers_right_after_any_read_that_failed() {
    let fs = FaultFs::new(MemFs::shared(), 1);
    let mut value = vec![0; 300_000];
    Rng::new(5).fill(&mut value[..150_000]);
    for (n, method) in [Compression::Lz4, Compression::None].into_iter().enumerate() {
        let file = fs.open(format!("v{n}").as_ref(), OpenMode::Create).unwrap();
        let mut writer = VlogWriter::new(file.clone(), ID, method, 10_000);
        let p = writer.append(&value).unwrap();
        writer.finish().unwrap();
        let vlog = Vlog::open(file, ID).unwrap();
        let mut failed = 0;
        for nth in 1..40 {
            let mut reader = vlog.reader(p).unwrap();
            let mut out = Vec::new();
            fs.add(Rule::new(Op::Read, Fault::Eio).nth(nth));
            failed += u32::from(reader.read_range(205_000..205_100, &mut out).is_err());
            fs.clear();
            for chunk in [4, 0, 20, 7, 29, 1, 12].into_iter().chain(0..30) {
                let from = chunk * 10_000 + 17;
                reader.read_range(from as u64..from as u64 + 60, &mut out).unwrap();
                assert!(out == value[from..from + 60], "{method}: byte {from} after read {nth} failed");
            }
        }
        assert!(failed > 1, "{method}: {failed} reads failed");
    }
}

/// Headers that are passed over are not read with their chunks, so a wrong length in one must show in another way.
#[test]
fn a_wrong_length_in_the_header_of_a_chunk_shifts_no_byte() {
    let value: Vec<u8> = (0..30_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    for method in [Compression::Lz4, Compression::None] {
        let (file, pointers) = write(std::slice::from_ref(&value), method, 10_000);
        let p = pointers[0];
        let whole = bytes_of(&*file);
        let (mut at, mut wrong) = (p.offset as usize, 0);
        while at < (p.offset + p.stored_len) as usize {
            let number = |i: usize| u32::from_le_bytes(whole[at + i..at + i + 4].try_into().unwrap());
            for i in (0..CHUNK_HEADER * 8).step_by(3) {
                let mut damaged = whole.clone();
                damaged[at + i / 8] ^= 1 << (i % 8);
                let vlog = Vlog::open(file_of(&damaged), ID).unwrap();
                for from in [0, 9_999, 55_000, 119_000] {
                    let mut out = Vec::new();
                    let read = vlog.reader(p).unwrap().read_range(from..from + 500, &mut out);
                    wrong += u32::from(read.is_err());
                    assert!(
                        read.is_err() || out == value[from as usize..from as usize + 500],
                        "{method}: bit {i} of {at}"
                    );
                }
            }
            at += CHUNK_HEADER + number(STORED_LEN_AT) as usize;
        }
        assert!(wrong > 100, "{method}: {wrong} reads were refused");
    }
}

/// Scans over several value logs at once, in both directions, with gaps, and at random.
#[test]
fn values_near_one_another_are_read_together() {
    let fs = FaultFs::new(MemFs::shared(), 1);
    let mut rng = Rng::new(17);
    let logs: Vec<(Arc<Vlog>, Vec<ValuePointer>, Vec<Vec<u8>>)> = (0..20)
        .map(|id| {
            let file = fs.open(format!("v{id}").as_ref(), OpenMode::Create).unwrap();
            let mut writer = VlogWriter::new(file.clone(), id, Compression::None, 4096);
            let mut values = vec![vec![0; 3000]; 300];
            values.iter_mut().for_each(|v| rng.fill(v));
            let pointers = values.iter().map(|v| writer.append(v).unwrap()).collect();
            writer.finish().unwrap();
            (Vlog::open(file, id).unwrap(), pointers, values)
        })
        .collect();
    let reads = |logs: &[(Arc<Vlog>, Vec<ValuePointer>, Vec<Vec<u8>>)],
                 steps: &mut dyn Iterator<Item = (usize, usize)>| {
        let (mut near, mut out, before, mut n) = (ReadAhead::default(), Vec::new(), fs.count(Op::Read), 0);
        for (log, at) in steps {
            let (vlog, pointers, values) = &logs[log];
            vlog.read_near(&pointers[at], &mut near, &mut out).unwrap();
            assert!(out == values[at], "log {log}, value {at}");
            n += 1;
        }
        (n, fs.count(Op::Read) - before)
    };
    let one = (0..300).map(|at| (0, at)).collect::<Vec<_>>();
    let interleaved = |logs: usize| (0..300 * logs).map(|n| (n % logs, n / logs)).collect::<Vec<_>>();
    let every_third = (0..100).map(|at| (0, at * 3)).collect::<Vec<_>>();
    let random = (0..1000).map(|_| (rng.below(16) as usize, rng.below(300) as usize)).collect::<Vec<_>>();
    for (what, steps, at_most) in [
        ("one log", one, 10),
        ("eight logs", interleaved(8), 8 * 18),
        ("sixteen logs", interleaved(16), 16 * 32),
        ("every third value of one", every_third, 10),
        ("more logs than windows", interleaved(20), 20 * 300),
        ("at random", random, 1000),
    ] {
        let (n, forward) = reads(&logs, &mut steps.iter().copied());
        let (_, backward) = reads(&logs, &mut steps.iter().rev().copied());
        assert!(forward <= at_most && backward <= at_most, "{what}: {n} values, {forward} and {backward} reads");
    }
}

/// Bytes that look like the headers of long chunks, as many bytes of a value do, cost a look each: no checksum of what they announce.
#[test]
fn a_value_behind_damage_is_found_in_one_pass() {
    let fs = FaultFs::new(MemFs::shared(), 1);
    for method in METHODS {
        let file = fs.open(format!("v{method}").as_ref(), OpenMode::Create).unwrap();
        // Flags, raw length, stored length.
        let mut looks_alike = [&[7; 5][..], &[3], &9u32.to_le_bytes(), &1_500_000u32.to_le_bytes(), &[7; 2]].concat();
        let mut values = [Vec::new(), Vec::new(), b"".to_vec(), vec![b'e'; 900], b"last".to_vec()];
        for compression in 0..6 {
            looks_alike[4] = compression;
            values[1].extend(looks_alike.repeat(100));
        }
        values[1].resize(3_000_000, 7);
        let mut writer = VlogWriter::new(file.clone(), ID, method, 16 << 20);
        let pointers: Vec<_> = values.iter().map(|v| writer.append(v).unwrap()).collect();
        writer.finish().unwrap();
        // The first value's header, and that of the value which has them.
        file.write_at(&[0xff; 10], pointers[0].offset).unwrap();
        file.write_at(&[0xff; 10], pointers[1].offset).unwrap();
        let vlog = Vlog::open(file, ID).unwrap();
        let mut records = vlog.records();
        located(&records.next_pointer().unwrap_err());
        let before = fs.count(Op::Read);
        assert_eq!(records.skip_damage().unwrap(), Some(pointers[2].offset), "{method}");
        let reads = fs.count(Op::Read) - before;
        assert!(reads <= 8, "{method}: {reads} reads of 3 MB");
        for p in &pointers[2..] {
            assert_eq!(records.next_pointer().unwrap().as_ref(), Some(p), "{method}");
        }
        assert_eq!(records.next_pointer().unwrap(), None);
    }
}

/// A file that counts the bytes that are read from it.
#[derive(Debug)]
struct Counted(Arc<dyn File>, AtomicU64);

impl File for Counted {
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> kingtide_base::Result<usize> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> kingtide_base::Result<()> {
        self.0.write_at(data, offset)
    }
    fn sync_data(&self) -> kingtide_base::Result<()> {
        self.0.sync_data()
    }
    fn sync_all(&self) -> kingtide_base::Result<()> {
        self.0.sync_all()
    }
    fn len(&self) -> kingtide_base::Result<u64> {
        self.0.len()
    }
    fn truncate(&self, len: u64) -> kingtide_base::Result<()> {
        self.0.truncate(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> kingtide_base::Result<()> {
        self.0.allocate(offset, len)
    }
}

/// Each header announces a chunk of 1.2 MB; for the first 14,000 the file is long enough.
#[test]
fn forged_headers_cost_a_few_kilobytes_each() {
    let header = [&[7; 4][..], &[0, 1], &1_200_000u32.to_le_bytes(), &1_200_000u32.to_le_bytes()].concat();
    let values = [header.repeat(100_000), b"last".to_vec()];
    let (file, pointers) = write(&values, Compression::None, 16 << 20);
    file.write_at(&[0xff; 10], pointers[0].offset).unwrap();
    let file = Arc::new(Counted(file, AtomicU64::new(0)));
    let vlog = Vlog::open(file.clone(), ID).unwrap();
    let mut records = vlog.records();
    located(&records.next_pointer().unwrap_err());
    let before = file.1.load(Ordering::Relaxed);
    assert_eq!(records.skip_damage().unwrap(), Some(pointers[1].offset));
    let each = (file.1.load(Ordering::Relaxed) - before) / 14_000;
    assert!(each < 8 << 10, "{each} bytes were read for each of them");
}
