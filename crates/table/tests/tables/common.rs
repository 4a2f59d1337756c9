//! What the tests of tables share: sample entries, files in memory, and a cursor over a sorted vector.
#![allow(dead_code)] // each test uses a part

use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::{KeyOrder, Kind, Result, Tag};
use kingtide_mem::cache::BlockCache;
use kingtide_table::{Table, TableCaches, TableInfo, TableOptions, TableWriter, ValuePointer};
use kingtide_vfs::{File, Fs, MemFs, OpenMode};
use std::path::Path;
use std::sync::Arc;

pub type Model = Vec<(Vec<u8>, Tag, Vec<u8>)>;

pub const METHODS: [Compression; 5] =
    [Compression::None, Compression::Lz4, Compression::Lz4Fast, Compression::Zstd, Compression::Snappy];

pub fn orders() -> [KeyOrder; 5] {
    [KeyOrder::Bytewise, KeyOrder::Reverse, KeyOrder::U64, KeyOrder::I64, KeyOrder::CaseInsensitive]
}

pub fn compare(order: &KeyOrder, a: (&[u8], Tag), b: (&[u8], Tag)) -> std::cmp::Ordering {
    order.compare(a.0, b.0).then(b.1.cmp(&a.1))
}

/// A key from a small space, so that keys repeat, share prefixes and are prefixes of each other.
pub fn key(order: &KeyOrder, rng: &mut Rng) -> Vec<u8> {
    if matches!(order, KeyOrder::U64 | KeyOrder::I64) && !rng.one_in(8) {
        return (rng.below(200).wrapping_sub(100)).to_le_bytes().to_vec();
    }
    let prefix: &[u8] = [&b""[..], b"table/", b"table/row/", b"zz"][rng.below(4) as usize];
    let mut k = prefix.to_vec();
    let len = rng.below(6) as usize;
    k.extend((0..len).map(|_| b"\x00aAb\xff"[rng.below(5) as usize]));
    k
}

pub fn value(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut v = vec![b'v'; rng.below(most) as usize];
    let half = v.len() / 2;
    rng.fill(&mut v[..half]);
    v
}

/// Sorted entries of every kind, several versions of many keys, and now and then very many of one.
pub fn entries(order: &KeyOrder, n: usize, rng: &mut Rng) -> Model {
    let hot = key(order, rng);
    let mut m: Model = (0..n)
        .map(|i| {
            let k = if rng.one_in(6) { hot.clone() } else { key(order, rng) };
            let seq = i as u64 + 1;
            let mut v = Vec::new();
            let kind = match rng.below(10) {
                0 => Kind::Delete,
                1 => Kind::SingleDelete,
                2 => Kind::PutPointer,
                _ => Kind::Put,
            };
            let expires = rng.one_in(7);
            if expires {
                v.extend_from_slice(&(1_000 + rng.below(1_000)).to_le_bytes());
            }
            match kind {
                Kind::Put => v.extend(value(rng, 60)),
                Kind::PutPointer => ValuePointer {
                    file_id: 100 + rng.below(3),
                    offset: rng.below(1 << 30),
                    stored_len: rng.below(1 << 20),
                    raw_len: 5,
                }
                .encode(&mut v),
                _ => {}
            }
            (k, if expires { Tag::with_expiry(seq, kind) } else { Tag::new(seq, kind) }, v)
        })
        .collect();
    m.sort_by(|a, b| compare(order, (&a.0, a.1), (&b.0, b.1)));
    m
}

pub fn new_file(fs: &dyn Fs, name: &str) -> Arc<dyn File> {
    fs.open(Path::new(name), OpenMode::Overwrite).unwrap()
}

/// A file that holds `bytes`.
pub fn file_of(bytes: &[u8]) -> Arc<dyn File> {
    let file = new_file(&MemFs::new(), "damaged");
    file.write_at(bytes, 0).unwrap();
    file
}

pub fn bytes_of(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub fn write(model: &Model, file_id: u64, opts: TableOptions) -> (Arc<dyn File>, TableInfo) {
    let file = new_file(&MemFs::new(), "table");
    let mut w = TableWriter::new(Arc::clone(&file), file_id, opts);
    for (k, t, v) in model {
        w.add(k, *t, v).unwrap();
    }
    let info = w.finish().unwrap();
    (file, info)
}

/// Opens a table in partitions, for which there is so much memory.
pub fn open_in_partitions(
    file: &Arc<dyn File>,
    file_id: u64,
    order: &KeyOrder,
    (cache_bytes, memory): (u64, u64),
) -> Result<(Arc<Table>, Arc<Stats>)> {
    let stats = Arc::new(Stats::default());
    let partitions = BlockCache::of_partitions(memory, 1, Arc::clone(&stats));
    partitions.set_capacity(memory);
    let caches =
        TableCaches { blocks: BlockCache::new(cache_bytes, 1, Arc::clone(&stats)), partitions: Some(partitions) };
    let table = Table::open(Arc::clone(file), file_id, order.clone(), caches, Arc::clone(&stats))?;
    assert!(table.is_in_partitions(true) && !table.is_in_partitions(false));
    Ok((table, stats))
}

pub fn open(file: &Arc<dyn File>, file_id: u64, order: &KeyOrder, cache_bytes: u64) -> Result<Arc<Table>> {
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(cache_bytes, 1, Arc::clone(&stats));
    Table::open(Arc::clone(file), file_id, order.clone(), cache, stats)
}
