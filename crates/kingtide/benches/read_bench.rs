//! Costs of the read path alone, without a database around it:
//! `cargo bench -p kingtide --bench read_bench -- [entries] [cache MiB]`.
//!
//! Four runs of sizes 1 : 4 : 16 : 79, in files of about 16 MB, entries of 16-byte random keys and 100-byte
//! half-compressible values. Figures are processor time of the thread where the system tells it (Linux), so that other
//! work on the machine counts less; compare only figures of one run.

#![allow(clippy::disallowed_methods)] // a benchmark reads the clock

use kingtide::Cursor;
use kingtide::internal::{CursorConfig, FamilyMemtable, ReadContext, TableCache, View, cursor, get, multi_get};
use kingtide_base::budget::Budget;
use kingtide_base::clock::SystemClock;
use kingtide_base::names::klog_path;
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::{KeyOrder, Kind, Result, SeqNo, Tag};
use kingtide_mem::ArenaPool;
use kingtide_mem::cache::BlockCache;
use kingtide_table::{TableOptions, TableWriter};
use kingtide_versions::{FileMeta, Version};
use kingtide_vfs::{Fs, OpenMode, SystemFs};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const FILE_ENTRIES: usize = 200_000;

type Key = [u8; 16];

struct Bench {
    view: Arc<View>,
    ctx: Arc<ReadContext>,
    keys: Vec<Key>,
    snapshot: SeqNo,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map_while(|a| a.parse::<usize>().ok());
    let n = args.next().unwrap_or(1_000_000);
    let cache = args.next().unwrap_or(64) as u64;
    let fs = SystemFs::shared();
    let dir = std::env::temp_dir().join(format!("kingtide-read-bench-{}", std::process::id()));
    fs.create_dir_all(&dir)?;
    for shares in [&[1usize, 4, 16, 79][..], &[100]] {
        let bench = build(&fs, &dir, n, shares, cache << 20)?;
        println!("{} runs", shares.len());
        bench.run()?;
    }
    for name in fs.list(&dir)? {
        fs.remove(&dir.join(name))?;
    }
    fs.remove_dir(&dir)
}

fn build(fs: &Arc<dyn Fs>, dir: &Path, n: usize, shares: &[usize], cache: u64) -> Result<Bench> {
    let mut rng = Rng::new(1);
    let mut values = vec![b'v'; 1 << 20];
    values.chunks_mut(100).for_each(|c| {
        let half = c.len() / 2;
        rng.fill(&mut c[..half]);
    });
    let order = KeyOrder::Bytewise;
    let mut version = Version::default();
    let mut all = Vec::with_capacity(n);
    let (mut id, mut seq) = (1, 0);
    for (level, share) in shares.iter().enumerate() {
        let mut keys = vec![Key::default(); n * share / 100];
        keys.iter_mut().for_each(|k| rng.fill(k));
        keys.sort_unstable();
        for part in keys.chunks(FILE_ENTRIES) {
            version.add(&order, level, Arc::new(write(fs, dir, id, part, &values, &mut seq)?));
            id += 1;
        }
        all.extend(keys);
    }
    let stats = Arc::new(Stats::default());
    let blocks = BlockCache::new(cache, 0, stats.clone());
    let tables = TableCache::new(fs.clone(), dir.to_owned(), blocks, stats.clone(), 1000);
    let active = FamilyMemtable::new(order.clone(), &ArenaPool::new(Budget::new(1 << 30)), seq);
    let view = View::new(order, active, Vec::new(), Arc::new(version), &tables, None);
    let ctx = ReadContext::new(stats, tables, SystemClock::shared());
    Ok(Bench { view: Arc::new(view), ctx: Arc::new(ctx), keys: all, snapshot: seq + 1 })
}

fn write(fs: &Arc<dyn Fs>, dir: &Path, id: u64, keys: &[Key], values: &[u8], seq: &mut SeqNo) -> Result<FileMeta> {
    let file = fs.open(&klog_path(dir, id), OpenMode::Overwrite)?;
    let mut w = TableWriter::new(file, id, TableOptions { expected_entries: keys.len(), ..TableOptions::default() });
    for (i, key) in keys.iter().enumerate() {
        *seq += 1;
        let at = i % 10_000 * 100;
        w.add(key, Tag::new(*seq, Kind::Put), &values[at..at + 100])?;
    }
    let info = w.finish()?;
    Ok(FileMeta {
        id,
        run: 1,
        size: info.file_size,
        entries: info.entries,
        tombstones: 0,
        range_tombstones: 0,
        raw_bytes: info.raw_bytes,
        min_key: info.min_key,
        max_key: info.max_key,
        min_seq: info.min_seq,
        max_seq: info.max_seq,
        min_expiry_ms: 0,
        created_ms: 0,
        vlog_refs: Vec::new(),
        written_as: id,
        sequence: 0,
        hides: 0,
    })
}

/// Processor time of the main thread, else wall time.
struct Watch {
    wall: Instant,
    cpu_ns: Option<u64>,
}

impl Watch {
    fn start() -> Watch {
        Watch { wall: Instant::now(), cpu_ns: Watch::cpu_ns() }
    }

    /// The first field of schedstat is nanoseconds on a processor.
    fn cpu_ns() -> Option<u64> {
        std::fs::read_to_string("/proc/self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }

    fn elapsed_ns(&self) -> u64 {
        match (self.cpu_ns, Watch::cpu_ns()) {
            (Some(from), Some(to)) => to - from,
            _ => self.wall.elapsed().as_nanos() as u64,
        }
    }
}

fn report(what: &str, n: usize, started: Watch) {
    println!("  {what:<34} {:>9.1} ns", started.elapsed_ns() as f64 / n as f64);
}

impl Bench {
    fn run(&self) -> Result<()> {
        let mut rng = Rng::new(2);
        let mut pick = || self.keys[rng.below(self.keys.len() as u64) as usize];
        let n = 300_000;
        for what in ["get, first pass", "get, second pass"] {
            let started = Watch::start();
            for _ in 0..n {
                assert!(black_box(get(&self.view, &pick(), self.snapshot, &self.ctx)?).is_some());
            }
            report(what, n, started);
        }
        let started = Watch::start();
        for _ in 0..n {
            let mut key = pick();
            key[15] ^= 1;
            black_box(get(&self.view, &key, self.snapshot, &self.ctx)?);
        }
        report("get, absent", n, started);

        let batches: Vec<Vec<Key>> = (0..n / 100).map(|_| (0..100).map(|_| pick()).collect()).collect();
        let started = Watch::start();
        for batch in &batches {
            black_box(multi_get(&self.view, batch, self.snapshot, &self.ctx));
        }
        report("multi_get of 100, a key", n, started);

        let mut iter = cursor(self.view.clone(), self.ctx.clone(), CursorConfig::at(self.snapshot))?;
        let started = Watch::start();
        for _ in 0..n {
            iter.seek(&pick());
            assert!(!black_box(iter.value()?).is_empty());
        }
        report("seek to a key, reused iterator", n, started);
        let started = Watch::start();
        for _ in 0..n {
            let mut key = pick();
            key[15] ^= 1;
            iter.seek(&key);
            black_box(iter.valid());
        }
        report("seek between keys", n, started);
        let started = Watch::start();
        for _ in 0..20_000 {
            iter.seek(&pick());
            for _ in 0..100 {
                if iter.valid() {
                    black_box((iter.key(), 0));
                    black_box(iter.value()?);
                    iter.next();
                }
            }
        }
        report("range of 100", 20_000, started);
        self.scan(&mut iter)
    }

    fn scan(&self, iter: &mut Cursor) -> Result<()> {
        for what in ["full scan, a key", "full scan backward, a key"] {
            let backward = what.contains("backward");
            let started = Watch::start();
            let mut n = 0;
            if backward {
                iter.seek_to_last()
            } else {
                iter.seek_to_first()
            }
            while iter.valid() {
                black_box(iter.key());
                black_box(iter.value()?);
                n += 1;
                if backward { iter.prev() } else { iter.next() }
            }
            iter.status()?;
            assert_eq!(n, self.keys.len());
            report(what, n, started);
        }
        Ok(())
    }
}
