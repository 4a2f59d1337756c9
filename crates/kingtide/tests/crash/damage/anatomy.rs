//! Where the parts of a file are, as `docs/format` says.

use super::sample::Sample;
use kingtide::vfs::{Fs, OpenMode};
use kingtide_base::KeyOrder;
use kingtide_base::stats::Stats;
use kingtide_mem::cache::BlockCache;
use kingtide_table::footer::{FOOTER, Footer};
use kingtide_table::reader::Table;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A piece of a file that a checksum covers.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    pub place: Range<usize>,
}

pub fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()) as usize)
}

pub fn file_id(path: &Path) -> u64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

/// The parts of a file that is whole; what is between and behind them means nothing.
pub fn parts(sample: &Sample, path: &Path, bytes: &[u8]) -> Vec<Part> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("klog") => table(sample, path, bytes),
        Some("vlog") => value_log(bytes),
        Some("wal") => segment(path, bytes),
        _ if bytes.starts_with(b"KTIDEMAN") => manifest(bytes),
        _ => vec![Part { name: "whole", place: 0..bytes.len() }],
    }
}

fn table(sample: &Sample, path: &Path, bytes: &[u8]) -> Vec<Part> {
    let at = bytes.len() - FOOTER;
    let footer = Footer::decode(bytes[at..].try_into().unwrap(), bytes.len() as u64, file_id(path)).unwrap();
    let open = || sample.fs.open(path, OpenMode::Read).unwrap();
    let traits = kingtide_table::salvage::read_traits(&*open(), file_id(path)).unwrap();
    let custom = || KeyOrder::Custom(sample.options(&sample.fs).custom_orders[0].clone());
    let order = KeyOrder::builtin(&traits.order).unwrap_or_else(custom);
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(0, 1, stats.clone());
    let (table, _) = Table::open_damaged(open(), file_id(path), order, cache, stats).unwrap();
    let blocks = (0..table.blocks()).map(|i| table.block_place(i));
    let mut parts: Vec<Part> =
        blocks.map(|p| Part { name: "data block", place: p.start as usize..p.end as usize }).collect();
    let mut from = footer.data_end as usize;
    let tail = [
        ("filter", footer.filter),
        ("index", footer.index),
        ("range tombstones", footer.tombstones),
        ("properties", footer.properties),
        ("footer", FOOTER as u64),
    ];
    for (name, len) in tail.into_iter().filter(|(_, len)| *len > 0) {
        parts.push(Part { name, place: from..from + len as usize });
        from += len as usize;
    }
    assert_eq!(from, bytes.len());
    parts
}

fn value_log(bytes: &[u8]) -> Vec<Part> {
    let end = bytes.len() - 48;
    let mut parts = vec![Part { name: "header", place: 0..24 }];
    let mut at = 24;
    while at < end {
        let next = at + 14 + u32_at(bytes, at + 10);
        parts.push(Part { name: "chunk", place: at..next });
        at = next;
    }
    assert_eq!(at, end);
    parts.push(Part { name: "footer", place: end..bytes.len() });
    parts
}

/// Whether a log segment is in use.
pub fn is_begun(path: &Path, bytes: &[u8]) -> bool {
    bytes.starts_with(b"KWAL") && bytes[16..24] == file_id(path).to_le_bytes()
}

/// Header and records of a segment that is in use.
fn segment(path: &Path, bytes: &[u8]) -> Vec<Part> {
    if !is_begun(path, bytes) {
        return Vec::new();
    }
    let mut parts = vec![Part { name: "header", place: 0..64 }];
    let mut at = 64;
    while at + 32 <= bytes.len() {
        let (len, count) = (u32_at(bytes, at + 8), u32_at(bytes, at + 12));
        let flags = u32_at(bytes, at + 28);
        let end = at + 32 + len;
        let sum = kingtide_base::checksum::crc(bytes.get(at + 32..end).unwrap_or(&[])) as usize;
        if (count == 0 && flags & 6 == 0) || sum != u32_at(bytes, at + 4) {
            break;
        }
        parts.push(Part { name: if count == 0 { "end mark" } else { "record" }, place: at..end });
        at = end.next_multiple_of(8);
    }
    parts
}

fn manifest(bytes: &[u8]) -> Vec<Part> {
    let mut parts = vec![Part { name: "header", place: 0..52 }];
    let mut at = 52;
    while at < bytes.len() {
        let end = at + 9 + u32_at(bytes, at + 1);
        parts.push(Part { name: "record", place: at..end });
        at = end;
    }
    assert_eq!(at, bytes.len());
    parts
}
