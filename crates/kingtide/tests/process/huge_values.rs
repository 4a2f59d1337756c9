//! Values of gibibytes, and of the lengths where a number of 31 or 32 bits, or a limit that the documentation states, ends. The values
//! are zeros but for a stamp in each block, so that they take little disk and time. `KINGTIDE_FULL=1` uses 8 GiB, otherwise 48 MiB.

use kingtide::backup::{Backup, BackupOptions};
use kingtide::{Compression, Db, ErrorKind, MAX_BATCH_BYTES, Options, ValueReader, WriteBatch};
use kingtide_base::hash::mix64;
use kingtide_testkit::child::{child, child_dir};
use kingtide_testkit::{RaiseOnDrop, Scratch, full, test_name};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Each block begins with a stamp of eight bytes, which tells its place.
const BLOCK: u64 = 64 << 10;
/// Bytes that the process may hold for values of any length: buffers of the writer, of chunks and of threads that help.
const MOST_HELD: u64 = 16 << 20;

/// The bytes of a value from `at` on.
struct Sparse {
    seed: u64,
    at: u64,
    len: u64,
}

impl Sparse {
    fn new(seed: u64, len: u64) -> Sparse {
        Sparse { seed, at: 0, len }
    }

    fn range(seed: u64, len: u64, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        Sparse { seed, at: from, len: to.min(len) }.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

impl Read for Sparse {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let within = self.at % BLOCK;
        let n = (buf.len() as u64).min(BLOCK - within).min(self.len.saturating_sub(self.at)) as usize;
        let out = &mut buf[..n];
        out.fill(0);
        let stamp = mix64(self.seed ^ (self.at / BLOCK + 1)).to_le_bytes();
        if within < 8 {
            let shown = (8 - within as usize).min(n);
            out[..shown].copy_from_slice(&stamp[within as usize..][..shown]);
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// What `/proc/self/status` says under a name, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Runs `work`, and returns the most anonymous memory that the process held meanwhile, beyond that before.
fn held_by(work: impl FnOnce()) -> u64 {
    let (peak, done, before) = (AtomicU64::new(0), AtomicBool::new(false), status("RssAnon"));
    std::thread::scope(|s| {
        let end = RaiseOnDrop(&done);
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(status("RssAnon").saturating_sub(before), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        work();
        drop(end);
    });
    peak.into_inner()
}

fn reader(db: &Db, key: &[u8]) -> ValueReader {
    db.default_family().get_reader(key).unwrap().expect("it was put")
}

/// Compares a stream with the value, to its end.
fn same_stream(mut found: impl Read, mut want: Sparse, what: &str) {
    let (mut a, mut b) = (vec![0; BLOCK as usize], vec![0; BLOCK as usize]);
    while want.at < want.len {
        let at = want.at;
        let n = want.read(&mut a).unwrap();
        found.read_exact(&mut b[..n]).unwrap_or_else(|e| panic!("{what}, at {at}: {e}"));
        assert!(a[..n] == b[..n], "{what}: at {at}");
    }
    assert_eq!(found.read(&mut b).unwrap(), 0, "{what}: there is more");
}

/// Ranges at both ends, beyond the end, and across the borders of chunks and of numbers of 31 and 32 bits.
fn same_ranges(db: &Db, key: &[u8], seed: u64, len: u64, chunk: u64, what: &str) {
    let family = db.default_family();
    let mut borders = vec![0, chunk, 7 * chunk, len / chunk / 2 * chunk, (len - 1) / chunk * chunk, len];
    borders.extend((1..=len / (2 * GIB)).map(|n| n * 2 * GIB));
    borders.retain(|border| *border <= len);
    let mut one = reader(db, key);
    assert_eq!(one.len(), len, "{what}");
    for border in borders {
        for (from, to) in [(border.saturating_sub(5), border + 5), (border, border + chunk), (border, border)] {
            let want = Sparse::range(seed, len, from, to);
            let found = family.get_range(key, from..to).unwrap().expect("it was put");
            assert!(found == want, "{what}: {from}..{to} of {len}");
            assert!(one.read_range(from..to).unwrap() == want, "{what}: {from}..{to} of {len}, by one reader");
        }
        one.seek(SeekFrom::Start(border)).unwrap();
        let mut rest = [9; 8];
        let n = one.read(&mut rest).unwrap();
        assert!(rest[..n] == Sparse::range(seed, len, border, border + n as u64), "{what}: from {border} on");
        assert_eq!(n == 0, border == len, "{what}: at {border}");
    }
    assert_eq!(one.seek(SeekFrom::End(-1)).unwrap(), len - 1);
    assert_eq!(family.get_range(key, len + 1..u64::MAX).unwrap(), Some(Vec::new()));
}

fn same(db: &Db, len: u64, chunk: u64, what: &str) {
    same_stream(reader(db, b"large"), Sparse::new(1, len), what);
    same_ranges(db, b"large", 1, len, chunk, what);
}

fn options(compression: Compression, chunk: u64) -> Options {
    let mut options = Options::default();
    options.db.block_cache_size = 1 << 20;
    options.family.compression = compression;
    options.family.value_chunk_size = chunk;
    options
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(|f| f.unwrap()) {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// One value, written in pieces, and read wherever it may be: in the file that a memtable points into, in a table, after a reopen and a
/// crash, in a checkpoint and in a backup.
#[test]
#[ignore = "run by another, as a process of its own"]
fn a_huge_value() {
    let Some(dir) = child_dir() else { return };
    let len = if full() { 8 * GIB } else { 48 * MIB } + 12_345;
    let (options, chunk) = (options(Compression::Lz4, 256 << 10), 256 << 10);
    let held = held_by(|| {
        let db = Db::open(dir.join("db"), options.clone()).unwrap();
        assert_eq!(db.put_reader(b"large", Sparse::new(1, len)).unwrap(), len);
        same(&db, len, chunk, "in the memtable's file");
        copy_files(&dir.join("db"), &dir.join("crashed"));
        db.flush().unwrap();
        same(&db, len, chunk, "in a table");
        db.close().unwrap();
        let db = Db::open(dir.join("db"), options.clone()).unwrap();
        same(&db, len, chunk, "reopened");
        assert!(db.verify().unwrap().is_clean());
        db.checkpoint(dir.join("checkpoint")).unwrap();
        let backup = Backup::at(dir.join("backups"));
        backup.create(&db, BackupOptions::default()).unwrap();
        backup.restore(1, dir.join("restored")).unwrap();
        db.close().unwrap();
        for (place, what) in [("checkpoint", "a checkpoint"), ("restored", "a backup"), ("crashed", "after a crash")] {
            let db = Db::open(dir.join(place), options.clone()).unwrap();
            db.flush().unwrap(); // after a crash it is moved now
            same(&db, len, chunk, what);
            db.close().unwrap();
        }
    });
    println!(
        "HELD: a value of {} MiB, at most {} KiB; with files that are mapped, {} KiB",
        len / MIB,
        held >> 10,
        status("VmHWM") >> 10
    );
}

/// Lengths just below and above those where numbers of 31 and 32 bits end, written by [`ValueWriter`](kingtide::ValueWriter), with the
/// smallest chunks, the default ones and the largest.
#[test]
#[ignore = "run by another, as a process of its own"]
fn values_of_border_lengths() {
    let Some(dir) = child_dir() else { return };
    let mut most = 0;
    for (compression, chunk) in [(Compression::Lz4, 256 << 10), (Compression::Zstd, 16 << 20), (Compression::Lz4, 4096)]
    {
        let borders = match chunk {
            _ if full() => vec![2 * GIB, 4 * GIB],
            0..MIB => vec![2 * MIB],
            _ => vec![chunk, 2 * chunk], // six values, enough to show whether each keeps a chunk in memory until its flush
        };
        let held = held_by(|| {
            let place = dir.join(format!("{compression}-{chunk}"));
            let db = Db::open(&place, options(compression, chunk)).unwrap();
            let lengths: Vec<u64> = borders.iter().flat_map(|b| [b - 1, *b, b + 1]).collect();
            for len in &lengths {
                let mut writer = db.value_writer().unwrap();
                let (mut source, mut piece) = (Sparse::new(*len, *len), vec![0; BLOCK as usize]);
                while source.at < *len {
                    let n = source.read(&mut piece).unwrap();
                    writer.write_all(&piece[..n]).unwrap();
                }
                assert_eq!(writer.len(), *len);
                db.default_family().put_staged(len.to_be_bytes(), &writer.finish().unwrap()).unwrap();
            }
            let check = |db: &Db, what: &str| {
                for len in &lengths {
                    same_ranges(db, &len.to_be_bytes(), *len, *len, chunk, what);
                    same_stream(reader(db, &len.to_be_bytes()), Sparse::new(*len, *len), what);
                }
            };
            check(&db, "in files of a memtable");
            db.close().unwrap();
            let db = Db::open(&place, options(compression, chunk)).unwrap();
            check(&db, "in tables");
            assert!(db.verify().unwrap().is_clean());
        });
        most = most.max(held);
        // A chunk for each thread that compresses, and what is read of one: the largest chunks take more than all else.
        let allowed = MOST_HELD + 6 * chunk;
        assert!(held < allowed, "{compression}, chunks of {chunk}: {held} bytes");
        println!("BORDERS: {compression}, chunks of {chunk}: at most {} KiB", held >> 10);
    }
}

/// What no batch can hold is refused, and in pieces or alone it is put.
#[test]
#[ignore = "run by another, as a process of its own"]
fn what_no_batch_holds() {
    let Some(dir) = child_dir() else { return };
    let db = Db::open(dir.join("db"), Options::default()).unwrap();
    let family = db.default_family();
    let zeros = vec![0; MAX_BATCH_BYTES + 1]; // never written to, so it takes no memory
    let mut batch = WriteBatch::new();
    for key in [&b"key"[..], &zeros] {
        let refused = batch.put(family, key, &zeros).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    assert_eq!(family.put(&zeros, b"value").unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(batch.is_empty());
    family.put(b"alone", &zeros).unwrap();
    assert_eq!(reader(&db, b"alone").len(), zeros.len() as u64);
    assert_eq!(family.get_range(b"alone", MAX_BATCH_BYTES as u64 - 9..u64::MAX).unwrap(), Some(vec![0; 10]));
    db.close().unwrap();
}

fn run(body: &str, what: &str) -> Option<String> {
    if status("RssAnon") == 0 {
        println!("SKIPPED: the system does not tell how much memory a process has");
        return None;
    }
    let dir = Scratch::new(what);
    let said = child(body, &dir.0, "");
    said.lines().filter(|l| l.contains("HELD: ") || l.contains("BORDERS: ")).for_each(|l| println!("{l}"));
    Some(said)
}

#[test]
fn a_huge_value_is_the_same_everywhere_and_takes_little_memory() {
    let Some(said) = run(&test_name!("a_huge_value"), "huge") else { return };
    let line = said.lines().find(|l| l.contains("HELD: ")).unwrap();
    let held: u64 = line.split("at most ").nth(1).and_then(|p| p.split(' ').next()).unwrap().parse().unwrap();
    assert!(held << 10 < MOST_HELD, "{line}");
}

#[test]
fn values_end_where_numbers_do() {
    run(&test_name!("values_of_border_lengths"), "borders");
}

#[test]
fn what_no_batch_holds_is_put_alone() {
    run(&test_name!("what_no_batch_holds"), "no-batch");
}
