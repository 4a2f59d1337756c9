//! Inputs: where they lie, how the first ones are made, and how others are made of them.

use kingtide::{DbOptions, FamilyOptions};
use kingtide_base::coding::put_varint;
use kingtide_base::rng::Rng;
use kingtide_fuzz::edit::{COMPACT, FIT, FORGE, KILLED, NUMBERS, RAW, READ_ONLY, REPAIR, VERIFY, number_at};
use kingtide_fuzz::sample;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The committed inputs of a target: `fuzz/testdata/seeds`, and `fuzz/testdata/regressions`, which once failed. In the order of their names.
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    for kind in ["seeds", "regressions"] {
        if let Ok(dir) = std::fs::read_dir(root().join("fuzz/testdata").join(kind).join(target)) {
            files.extend(dir.map(|e| e.unwrap().path()));
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no committed inputs of target {target}");
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

/// As hexadecimal digits, 32 bytes a line.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|l| l.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n").collect()
}

/// Back from [`to_hex`].
pub fn from_hex(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text.iter().filter_map(|b| (*b as char).to_digit(16)).map(|d| d as u8).collect();
    digits.as_chunks::<2>().0.iter().map(|[a, b]| a << 4 | b).collect()
}

/// Words that mean something in one of the formats.
const WORDS: [&[u8]; 12] = [
    b"KTIDklog",
    b"KTIDvlog",
    b"KWAL",
    b"KTIDEMAN",
    b"KTIDbkup",
    b"bytewise",
    b"reverse",
    b"u64",
    b"default",
    b"\x5a",
    b"key-0100",
    b"=4294967296\n",
];

/// A mutation of one of the inputs.
pub fn mutated(known: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let any = |rng: &mut Rng| known[rng.below(known.len() as u64) as usize].clone();
    let mut input = any(rng);
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(input.len() as u64 + 1) as usize;
        match rng.below(9) {
            0 | 1 if at < input.len() => input[at] ^= 1 << rng.below(8),
            2 if at < input.len() => input[at] = rng.next_u64() as u8,
            3 if at > 2 => input.truncate(at),
            4 => {
                let other = any(rng);
                let from = rng.below(other.len() as u64 + 1) as usize;
                let n = (rng.below(64) as usize).min(other.len() - from);
                input.splice(at..at, other[from..from + n].iter().copied());
            }
            5 => {
                let mut number = Vec::new();
                put_varint(&mut number, NUMBERS[rng.below(NUMBERS.len() as u64) as usize]);
                input.splice(at..at, number);
            }
            6 => {
                let word = WORDS[rng.below(WORDS.len() as u64) as usize];
                input.splice(at..at, word.iter().copied());
            }
            7 => {
                let mut noise = vec![0; rng.below(24) as usize];
                rng.fill(&mut noise);
                input.splice(at..at, noise);
            }
            // An edit that writes a number somewhere, which is how lengths and counts are attacked.
            _ => {
                let place = (rng.next_u64() >> rng.below(16)) as u16;
                let edit = number_at(0, 0, place, rng.below(4) as u8, rng.below(24) as usize);
                input.extend_from_slice(&edit[2..]);
                if let Some(end) = input.len().checked_sub(4).filter(|_| rng.one_in(2)) {
                    input[end] |= 0x80;
                }
            }
        }
    }
    if let Some(flags) = input.first_mut().filter(|_| rng.one_in(4)) {
        *flags |= VERIFY | READ_ONLY;
    }
    input.truncate(4096);
    input
}

/// The first inputs of a target.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(7);
    match target {
        "wal" => file_seeds(".wal", 2, true),
        "klog" => file_seeds(".klog", 6, false),
        "vlog" => file_seeds(".vlog", 4, false),
        "ingest" => file_seeds("CURRENT", 2, false),
        "manifest" => file_seeds("MANIFEST", 2, true),
        "backup" => {
            let mut all = file_seeds("CURRENT", 8, false);
            all.push([&[RAW | FORGE, 0], &b"KTIDbkup\x01\0\0\0\x01\0\0\0"[..]].concat());
            all
        }
        "options" => {
            let lines = |entries: Vec<(&str, String)>| {
                entries.iter().map(|(n, v)| format!("{n}={v}\n")).collect::<String>().into_bytes()
            };
            let text = b"block_size=8KiB\nfilter_fp=0.001\ncompression=zstd\ndurability=interval:50\nttl_ms=5\n";
            let levels = b"compression_per_level=none:lz4:zstd\nvalue_threshold=0\nindex_sampling=4\n";
            vec![
                lines(DbOptions::default().entries()),
                lines(FamilyOptions::default().entries()),
                text.to_vec(),
                levels.to_vec(),
            ]
        }
        _ => (0..24)
            .map(|i| {
                let mut program = vec![0; 40 + i * 12];
                rng.fill(&mut program);
                program
            })
            .collect(),
    }
}

/// No edit, one edit of each kind, a number in front and at the end, and the files themselves.
fn file_seeds(kind: &str, files: u8, killed: bool) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let flags = if killed { KILLED } else { 0 };
    for file in 0..files {
        for more in [VERIFY | READ_ONLY, FORGE, FORGE | REPAIR, FORGE | COMPACT | FIT] {
            all.push(vec![flags | more, file]);
        }
        all.push(vec![flags | VERIFY, file, 0, 70, 0, 0, 0x55]);
        all.push(vec![flags | FORGE | FIT, file, 3, 20, 0, 3, 1, 2, 3, 4]);
        all.push(vec![flags | FORGE | FIT, file, 4, 90, 0, 3]);
        all.push(vec![flags, file, 5, 200, 0]);
        all.push(vec![flags | FORGE, file, 7, 64, 0, 128, 0, 31]);
        all.push(number_at(flags | VERIFY | READ_ONLY, file, 66, 3, 17));
        all.push(number_at(flags | FIT, file, 30, 1, 23));
    }
    let sample = sample::get(killed);
    for path in sample.files(kind).iter().take(2) {
        let mut bytes = sample.bytes(path);
        bytes.truncate(3000);
        all.push([&[flags | RAW | FORGE, 0], &bytes[..]].concat());
    }
    all
}
