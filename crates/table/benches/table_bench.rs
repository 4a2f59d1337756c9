//! Nanoseconds of the table's inner loops: `cargo bench -p kingtide-table --bench table_bench -- [entries] [restart interval]`.
//! Entries have 16-byte random keys and 100-byte half-compressible values. Single runs on a shared machine: compare only
//! figures of one run.

#![allow(clippy::disallowed_methods)] // a benchmark reads the clock

use kingtide_base::options::Compression;
use kingtide_base::rng::Rng;
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::{KeyOrder, Kind, Result, Tag};
use kingtide_mem::cache::BlockCache;
use kingtide_table::{IterOptions, ReadScratch, Table, TableOptions, TableWriter, Vlog, VlogWriter};
use kingtide_vfs::{Fs, OpenMode, SystemFs};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Wall and processor time: on a busy machine only the latter means something.
struct Started {
    wall: Instant,
    on_cpu: u64,
}

/// Nanoseconds that this thread ran, as Linux counts them; 0 elsewhere.
fn on_cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(0)
}

fn start() -> Started {
    Started { on_cpu: on_cpu(), wall: Instant::now() }
}

fn report(what: &str, n: usize, started: Started) {
    let (wall, cpu) = (started.wall.elapsed().as_nanos() as f64, (on_cpu() - started.on_cpu) as f64);
    println!("{what:<44} {:>9.1} ns, {:>9.1} ns of processor", wall / n as f64, cpu / n as f64);
}

fn main() -> Result<()> {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(500_000);
    let fs = SystemFs::shared();
    let dir = std::env::temp_dir().join(format!("kingtide-table-bench-{}", std::process::id()));
    fs.create_dir_all(&dir)?;
    let result = run(&*fs, &dir, n);
    for name in fs.list(&dir)? {
        fs.remove(&dir.join(name))?;
    }
    fs.remove_dir(&dir)?;
    result
}

fn sample(n: usize) -> (Vec<[u8; 16]>, Vec<u8>) {
    let mut rng = Rng::new(1);
    let mut keys = vec![[0u8; 16]; n];
    keys.iter_mut().for_each(|k| rng.fill(k));
    keys.sort_unstable();
    // 1 MiB of value bytes, half of each 100 random: entries take windows of it.
    let mut values = vec![b'v'; 1 << 20];
    values.chunks_mut(100).for_each(|c| {
        let half = c.len() / 2;
        rng.fill(&mut c[..half]);
    });
    (keys, values)
}

fn value_of(values: &[u8], i: usize) -> &[u8] {
    let at = i % 10_000 * 100;
    &values[at..at + 100]
}

fn build(fs: &dyn Fs, path: &Path, keys: &[[u8; 16]], values: &[u8], compression: Compression) -> Result<()> {
    let file = fs.open(path, OpenMode::Overwrite)?;
    let mut opts = TableOptions { compression, expected_entries: keys.len(), ..TableOptions::default() };
    if let Some(interval) = std::env::args().nth(2).and_then(|a| a.parse().ok()) {
        opts.restart_interval = interval;
    }
    let mut w = TableWriter::new(file, 1, opts);
    let started = start();
    for (i, k) in keys.iter().enumerate() {
        w.add(k, Tag::new(i as u64 + 1, Kind::Put), value_of(values, i))?;
    }
    report(&format!("add, {compression}"), keys.len(), started);
    let started = start();
    let info = w.finish()?;
    report("  finish with sync, by entry", keys.len(), started);
    println!("  {:.1} bytes an entry", info.file_size as f64 / keys.len() as f64);
    Ok(())
}

fn open(fs: &dyn Fs, path: &Path, cache_bytes: u64) -> Result<(Arc<Table>, Arc<Stats>)> {
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(cache_bytes, 0, Arc::clone(&stats));
    let table = Table::open(fs.open(path, OpenMode::Read)?, 1, KeyOrder::Bytewise, cache, Arc::clone(&stats))?;
    Ok((table, stats))
}

fn run(fs: &dyn Fs, dir: &Path, n: usize) -> Result<()> {
    let (keys, values) = sample(n);
    let path: PathBuf = dir.join("t");
    for c in [Compression::None, Compression::Lz4Fast, Compression::Snappy, Compression::Zstd, Compression::Lz4] {
        build(fs, &path, &keys, &values, c)?;
    }
    let started = Instant::now();
    let (table, _) = open(fs, &path, 0)?;
    println!("open {:?}, {:.1} resident bytes an entry", started.elapsed(), table.resident_bytes() as f64 / n as f64);
    reads(&table, &keys, "cache off")?;
    let (table, stats) = open(fs, &path, 1 << 30)?;
    // The second touch of a block brings it into the cache; another scratch each time keeps the block from being reused.
    let mut scratches = [ReadScratch::new(), ReadScratch::new()];
    for i in 0..4 {
        for k in keys.iter().step_by(8) {
            black_box(table.get(k, None, Tag::seek(1 << 40), &mut scratches[i % 2])?);
        }
    }
    let before = stats.get(Stat::BlocksRead);
    reads(&table, &keys, "all cached")?;
    println!("{} blocks read although cached", stats.get(Stat::BlocksRead) - before);
    vlog(fs, dir)
}

fn reads(table: &Arc<Table>, keys: &[[u8; 16]], how: &str) -> Result<()> {
    let order = KeyOrder::Bytewise;
    let mut rng = Rng::new(2);
    let ops = 200_000;
    let picks: Vec<[u8; 16]> = (0..ops).map(|_| keys[rng.below(keys.len() as u64) as usize]).collect();
    let top = Tag::seek(1 << 40);
    let mut scratch = ReadScratch::new();

    let started = start();
    for k in &picks {
        let found = table.get(k, order.hash(k), top, &mut scratch)?;
        assert!(black_box(found).is_some());
    }
    report(&format!("get, {how}"), ops, started);
    let started = start();
    for k in &picks {
        let mut k = *k;
        k[15] ^= 1;
        black_box(table.get(&k, order.hash(&k), top, &mut scratch)?.is_some());
    }
    report(&format!("get of an absent key, {how}"), ops, started);
    let started = start();
    for k in &picks {
        black_box(table.approximate_offset(k));
    }
    report("  index alone", ops, started);

    let mut it = table.iter(IterOptions::default());
    let started = start();
    for k in &picks {
        it.seek(k, top)?;
        assert!(it.valid());
    }
    report(&format!("seek, {how}"), ops, started);
    let started = start();
    for k in keys {
        it.seek(k, top)?;
        black_box(it.value());
    }
    report(&format!("seek to each key in turn, {how}"), keys.len(), started);
    for readahead in [false, true] {
        let mut it = table.iter(IterOptions { fill_cache: !readahead, readahead });
        let started = start();
        it.first()?;
        let mut seen = 0;
        while it.valid() {
            black_box((it.key(), it.value()));
            it.next()?;
            seen += 1;
        }
        assert_eq!(seen, keys.len());
        report(&format!("next, {how}, read-ahead {readahead}"), seen, started);
    }
    it.first()?;
    it.seek(&keys[keys.len() / 2], top)?;
    let started = start();
    let rounds = 100_000;
    let mut steps = 0;
    for _ in 0..rounds {
        for _ in 0..10 {
            it.next()?;
            black_box(it.key());
        }
        for _ in 0..10 {
            it.prev()?;
            black_box(it.key());
        }
        steps += 20;
    }
    report(&format!("ten steps forth, ten back, {how}"), steps, started);
    Ok(())
}

fn vlog(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let mut rng = Rng::new(3);
    let mut noise = vec![0u8; 4096];
    rng.fill(&mut noise);
    let mut half = noise.clone();
    half.chunks_mut(100).filter(|c| c.len() == 100).for_each(|c| c[50..].fill(b'v'));
    for (what, value) in [("random", &noise), ("half-compressible", &half)] {
        let path = dir.join("v");
        let mut w = VlogWriter::new(fs.open(&path, OpenMode::Overwrite)?, 2, Compression::Lz4, 256 << 10);
        let ops = 20_000;
        let started = start();
        let pointers = (0..ops).map(|_| w.append(value)).collect::<Result<Vec<_>>>()?;
        report(&format!("value-log append of 4 KiB, {what}"), ops, started);
        w.finish()?;
        let vlog = Vlog::open(fs.open(&path, OpenMode::Read)?, 2)?;
        let mut out = Vec::new();
        let started = start();
        for _ in 0..ops {
            vlog.read(&pointers[rng.below(ops as u64) as usize], &mut out)?;
            black_box(&out);
        }
        report(&format!("value-log read of 4 KiB, {what}"), ops, started);
    }
    Ok(())
}
