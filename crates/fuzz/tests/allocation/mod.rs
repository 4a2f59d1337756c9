//! No length in a file is believed further than the file goes: every number of every format is forged, its checksums made
//! right, and no single allocation of its reader is larger than the largest file and 1 MiB.
//!
//! What a caller's options allocate by themselves is kept small here: `sample::options`.
#![allow(unsafe_code)]

use kingtide::vfs::{Fs, MemFs, OpenMode};
use kingtide_base::coding::put_varint;
use kingtide_base::rng::Rng;
use kingtide_fuzz::edit::{FIT, Trust, VERIFY, number_at, write_number};
use kingtide_fuzz::examine::Examination;
use kingtide_fuzz::sample::{self, DIR, Sample};
use kingtide_fuzz::{backup, claims, forge, ingest};
use kingtide_table::{ReadAhead, ValuePointer, Vlog};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, which remembers the largest request.
struct Remembering;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Remembering {
    // SAFETY: as the caller of this promises.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the caller of this promises.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: as the caller of this promises.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: pointer and layout are the caller's.
        unsafe { System.realloc(ptr, layout, size) }
    }

    // SAFETY: as the caller of this promises.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: pointer and layout are the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Remembering = Remembering;

const MIB: usize = 1 << 20;
/// What lengths and counts are forged to.
const FORGED: [u64; 8] = [65_535, 300_000, 2 << 20, 16 << 20, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX];

/// The largest allocation of `what`, with the size of the files that it read.
#[derive(Default, Clone, Copy)]
struct Worst {
    cases: u64,
    allocation: usize,
    files: usize,
}

impl Worst {
    fn measure(&mut self, largest_file: usize, case: &str, what: impl FnOnce()) {
        LARGEST.store(0, Ordering::Relaxed);
        what();
        let allocation = LARGEST.load(Ordering::Relaxed);
        self.cases += 1;
        if allocation.saturating_sub(largest_file) >= self.allocation.saturating_sub(self.files) {
            (self.allocation, self.files) = (allocation, largest_file);
        }
        assert!(allocation <= largest_file + MIB, "{case}: {allocation} bytes at once for files of {largest_file}");
    }
}

/// Offsets where a file has numbers: both ends of it and of its parts.
fn places(path: &Path, bytes: &[u8], rng: &mut Rng) -> Vec<usize> {
    let mut parts = vec![0, bytes.len()];
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    match path.extension().and_then(|e| e.to_str()) {
        Some("klog") => {
            let footer = bytes.len() - 64;
            let mut at = u64_at(footer + 8);
            for section in 2..6 {
                parts.push(at);
                at += u64_at(footer + 8 * section);
            }
            parts.push(footer);
            // Blocks follow each other; where one ends only the index says, so any place will do.
            parts.extend((0..4).map(|_| rng.below(footer as u64) as usize));
        }
        Some("vlog") => {
            let mut at = 24;
            while at + 14 < bytes.len() - 48 && parts.len() < 7 {
                parts.push(at);
                at += 14 + u32_at(at + 10);
            }
        }
        Some("wal") => {
            let mut at = 64;
            while at + 32 < bytes.len() && parts.len() < 7 && bytes[at..at + 32].iter().any(|b| *b != 0) {
                parts.push(at);
                parts.push(at + 32);
                at = (at + 32 + u32_at(at + 8)).next_multiple_of(8);
            }
        }
        _ => {
            let mut at = 52;
            while at + 9 < bytes.len() && parts.len() < 200 {
                parts.push(at);
                at += 9 + u32_at(at + 1);
            }
        }
    }
    let around = |at: usize| at.saturating_sub(30)..(at + 40).min(bytes.len().saturating_sub(8));
    let mut all: Vec<usize> = parts.into_iter().flat_map(around).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Reads everything there is of a database with a hostile file.
fn read_all(fs: &MemFs, path: &Path, sample: &Sample, repair: bool) {
    let examination = Examination { sample, trust: Trust::Forged, torn: false };
    examination.dump(fs, path);
    examination.verify(fs);
    examination.open(fs, false);
    examination.open_read_only(fs);
    if repair {
        examination.repair(fs, Path::new(DIR));
    }
}

/// Forges, of compressed bytes, what they expand to: in the first of them and in the last.
fn forge_claims(sample: &Sample, kind: &str, worst: &mut Worst) -> usize {
    let mut forged = 0;
    for path in sample.files(kind) {
        let good = sample.bytes(&path);
        let claims = claims::of(&path, &good);
        for claim in claims.iter().take(2).chain(claims.last()) {
            for number in [3 << 20, 15 << 20, 16 << 20] {
                let mut bytes = good.clone();
                claim.iter().for_each(|at| write_number(&mut bytes, *at, 0, number));
                forge::file(&path, &mut bytes, false);
                let fs = sample.copy();
                sample::replace(&fs, &path, &bytes);
                let case = format!("{} with {number} at {claim:?}", path.display());
                worst.measure(bytes.len(), &case, || read_all(&fs, &path, sample, false));
                forged += 1;
            }
        }
    }
    forged
}

/// Manifests of one long record, at whose beginning a count announces more than there is.
fn forge_counts(sample: &Sample, worst: &mut Worst) {
    let path = sample.files("MANIFEST").remove(0);
    let good = sample.bytes(&path);
    let edit = |tag: u8, front: &[u8]| {
        let mut out = vec![1, tag];
        put_varint(&mut out, 400_000);
        out.extend_from_slice(front);
        out
    };
    let huge = [[0xff; 9].as_slice(), &[1]].concat();
    let family = [&[9, 1, b'f', 1, b'o'], &huge[..]].concat();
    // Family, level, id, run, size, four counts, two keys, four numbers.
    let file = [&[0; 7][..], &[0; 2], &[1, b'a', 1, b'b'], &[0; 4], &huge[..]].concat();
    // Behind it options without names, of which there may not be so many; and nothing that could be a reference.
    for (front, rest) in [(huge.clone(), 0xff), (edit(1, &family), 0), (edit(5, &file), 0xff)] {
        let mut bytes = good[..52].to_vec();
        bytes.extend_from_slice(&[0x5a, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&front);
        bytes.resize(52 + 9 + 400_100, rest);
        write_number(&mut bytes, 53, 0, 400_100);
        forge::file(&path, &mut bytes, false);
        let fs = sample.copy();
        sample::replace(&fs, &path, &bytes);
        worst.measure(bytes.len(), "a manifest of one record", || read_all(&fs, &path, sample, false));
    }
}

/// Forges `n` numbers, or all, in each file of a kind.
fn forge_files(sample: &Sample, kind: &str, n: usize, rng: &mut Rng, worst: &mut Worst) {
    let full = std::env::var_os("KINGTIDE_FULL").is_some();
    for path in sample.files(kind) {
        let good = sample.bytes(&path);
        if good.len() < 64 {
            continue;
        }
        let largest = sample.files("").iter().map(|p| sample.bytes(p).len()).max().unwrap_or_default();
        let all = places(&path, &good, rng);
        for i in 0..if full { all.len() * 8 } else { n } {
            let at = if full { all[i / 8] } else { all[rng.below(all.len() as u64) as usize] };
            let number = FORGED[if full { i % 8 } else { rng.below(8) as usize }];
            let form = [0, 1, 3][rng.below(3) as usize];
            let fit = rng.one_in(2);
            let mut bytes = good.clone();
            write_number(&mut bytes, at, form, number);
            forge::file(&path, &mut bytes, fit);
            let fs = sample.copy();
            sample::replace(&fs, &path, &bytes);
            let case = format!("{} with {number} in form {form} at {at}, fit {fit}", path.display());
            worst.measure(largest.max(bytes.len()), &case, || read_all(&fs, &path, sample, i % 12 == 0));
        }
    }
}

/// A pointer and the chunk that it leads to, both forged to the same length: in a log without a footer only the end of the file contradicts
/// them. In a file that is as long as they say, only the format does, in which no chunk has more than 16 MiB.
fn forge_chunks(worst: &mut Worst) {
    const ID: u64 = 9;
    for (n, file_len) in
        [1 << 31, (1 << 32) - 15, 17 << 20, 3 << 20].into_iter().flat_map(|n| [(n, 200), (n, 40 << 20)])
    {
        for method in [0, 1, 2, 3] {
            let mut bytes = vec![0; 24];
            bytes.extend_from_slice(&[0, 0, 0, 0, method, 3]);
            (0..2).for_each(|_| bytes.extend_from_slice(&(n as u32).to_le_bytes()));
            bytes.extend_from_slice(&(n as u32).to_le_bytes()); // as compressed chunks begin
            bytes.resize(200, 7);
            let file = MemFs::new().open("v".as_ref(), OpenMode::Create).unwrap();
            file.write_at(&bytes, 0).unwrap();
            file.truncate(file_len).unwrap();
            let p = ValuePointer { file_id: ID, offset: 24, stored_len: n + 14, raw_len: n };
            let is_there = p.offset + p.stored_len <= file_len;
            let most = if is_there { 16 << 20 } else { 1 << 20 };
            let case = format!("a chunk of {n} bytes in a file of {file_len}, compression {method}");
            worst.measure(most, &case, || {
                let unfinished = Vlog::unfinished(file.clone(), ID);
                let (damaged, _) = Vlog::open_damaged(file.clone(), ID).unwrap();
                for log in [unfinished, damaged] {
                    let mut out = Vec::new();
                    assert!(log.read(&p, &mut out).is_err(), "{case}");
                    assert!(log.read_near(&p, &mut ReadAhead::default(), &mut out).is_err(), "{case}");
                    assert!(log.check(&p).is_err(), "{case}");
                    let read = log.reader(p).and_then(|mut reader| reader.read_range(n - 5..n, &mut out));
                    assert!(read.is_err(), "{case}");
                }
            });
        }
    }
}

#[test]
fn no_allocation_exceeds_the_file_by_more_than_a_mebibyte() {
    let _alone = super::ALONE.write().unwrap_or_else(|failed| failed.into_inner());
    let seed = std::env::var("KINGTIDE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut rng = Rng::new(seed);
    let large = Sample::large();
    let mut found: BTreeMap<&str, Worst> = BTreeMap::new();
    let good = large.copy();
    let largest = large.files("").iter().map(|p| large.bytes(p).len()).max().unwrap_or_default();
    let anyone = large.files(".klog")[0].clone();
    found.entry("(nothing forged)").or_default().measure(largest, "the good one", || {
        read_all(&good, &anyone, &large, true);
    });
    for (kind, in_large, in_small) in [("klog", 6, 8), ("vlog", 4, 8), ("wal", 6, 30), ("MANIFEST", 20, 75)] {
        let worst = found.entry(kind).or_default();
        forge_files(&large, kind, in_large, &mut rng, worst);
        forge_files(sample::get(true), kind, in_small, &mut rng, worst);
        let claims = forge_claims(sample::get(true), kind, worst);
        assert!(claims > 0 || kind == "MANIFEST", "nothing is compressed in a {kind}");
    }
    forge_counts(sample::get(true), found.entry("MANIFEST").or_default());
    forge_chunks(found.entry("chunks of a vlog, with their pointers").or_default());
    let worst = found.entry("backup").or_default();
    let further = if std::env::var_os("KINGTIDE_FULL").is_some() { 200 } else { 100 };
    for _ in 0..further {
        let place = rng.next_u64() as u16 % 700;
        let (file, n) = (rng.next_u64() as u8, 12 + rng.below(12) as usize);
        let input = number_at(0, file, place, [0, 1, 3][rng.below(3) as usize], n);
        let case = backup::Case::new(&input).unwrap();
        worst.measure(case.largest as usize, &format!("backup {input:?}"), || case.examine());
    }
    let worst = found.entry("ingest").or_default();
    for _ in 0..further {
        // From either end, where the blocks and where the sections are.
        let mut input =
            number_at(VERIFY | FIT, rng.below(2) as u8, rng.below(600) as u16, [0, 1, 3][rng.below(3) as usize], 12);
        input[2] |= (rng.next_u64() as u8) & 0x80;
        input[5] += (rng.below(12) as u8) << 2;
        let case = ingest::Case::new(&input).unwrap();
        worst.measure(case.largest as usize, &format!("ingest {input:?}"), || case.examine());
    }
    println!("KINGTIDE_SEED={seed}");
    for (kind, worst) in found {
        let Worst { cases, allocation, files } = worst;
        println!("{kind}: {cases} hostile files, at most {allocation} bytes at once, for files of {files}");
    }
}
