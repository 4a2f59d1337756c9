//! Gets where indexes and filters do not fit into `memory_limit`: processor time and bytes read of each, in a settled database in the
//! page cache: `cargo bench -p kingtide --bench memory_limit -- [entries [gets]]`. Entries have 16-byte keys at random and 100-byte
//! half-compressible values. The limit leaves 1/1, 1/2, 1/4 and 1/8 of the bytes of indexes and filters for them. There is no block
//! cache, so each get of a key reads a block.

#![allow(clippy::disallowed_methods)] // a benchmark reads its own processor time

use kingtide::{Db, Options, Result, WriteBatch};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use std::hint::black_box;

const BUDGET: u64 = 8 << 20;

/// Processor nanoseconds and bytes read by this thread.
fn spent() -> (u64, u64) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/thread-self/schedstat").split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(0);
    let io = read("/proc/thread-self/io");
    let bytes = io.lines().find_map(|l| l.strip_prefix("rchar: ")).and_then(|t| t.parse().ok()).unwrap_or(0);
    (cpu, bytes)
}

fn key(i: u64) -> [u8; 16] {
    let (a, b) = (mix64(i), mix64(!i));
    (u128::from(a) << 64 | u128::from(b)).to_be_bytes()
}

fn value(rng: &mut Rng) -> [u8; 100] {
    let mut v = [b'v'; 100];
    rng.fill(&mut v[..50]);
    v
}

/// Keys by Zipf's law with the exponent 0.99; the frequent ones are anywhere.
fn zipfian(n: u64, gets: usize, rng: &mut Rng) -> Vec<u64> {
    let mut sum = 0.0;
    let steps: Vec<f64> = (1..=n)
        .map(|i| {
            sum += (i as f64).powf(-0.99);
            sum
        })
        .collect();
    (0..gets).map(|_| steps.partition_point(|s| *s < rng.unit() * sum) as u64 % n).collect()
}

fn main() -> Result<()> {
    let arg = |i: usize| std::env::args().filter(|a| a != "--bench").nth(i).and_then(|a| a.parse::<u64>().ok());
    let (n, gets) = (arg(1).unwrap_or(1_000_000), arg(2).unwrap_or(100_000) as usize);
    let dir = std::env::temp_dir().join(format!("kingtide-memory-limit-{}", std::process::id()));
    let result = measure(&dir, n, gets);
    let _ = std::fs::remove_dir_all(&dir);
    result
}

fn measure(dir: &std::path::Path, n: u64, gets: usize) -> Result<()> {
    let mut options = Options::default();
    options.set("memtable_budget", &BUDGET.to_string())?;
    options.set("memtable_size", "4M")?;
    options.set("target_file_size", "16M")?;
    options.set("block_cache_size", "0")?;
    let db = Db::open(dir, options.clone())?;
    let mut rng = Rng::new(1);
    for from in (0..n).step_by(1000) {
        let mut batch = WriteBatch::new();
        for i in from..(from + 1000).min(n) {
            batch.put(db.default_family(), &key(i), &value(&mut rng))?;
        }
        db.write(batch)?;
    }
    db.compact()?;
    db.close()?;
    let uniform: Vec<u64> = (0..gets).map(|_| rng.below(n)).collect();
    let zipfian = zipfian(n, gets, &mut rng);
    for (name, picks) in [("uniform", &uniform), ("zipfian", &zipfian)] {
        for share in [1, 2, 4, 8] {
            let db = Db::open(dir, options.clone())?;
            let stat = |name: &str| db.stats().get(name).unwrap_or(0);
            let whole = stat("resident_table_bytes");
            let limit = if share == 1 { 0 } else { (BUDGET + whole / share).max(BUDGET * 17 / 16) };
            db.set_option("memory_limit", &limit.to_string())?;
            // Until views have let go of what they hold, and what is to stay has come.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            let get = |i: &u64| db.get(key(*i)).map(|v| assert!(black_box(v).is_some()));
            picks[..gets / 2].iter().try_for_each(get)?;
            let (reloads, before) = (stat("table_reloads"), spent());
            picks[gets / 2..].iter().try_for_each(get)?;
            let (after, gets) = (spent(), (gets - gets / 2) as u64);
            println!(
                "{name}, 1/{share} of {} KiB: {} ns, {} bytes a get; {} reloads, {} KiB held",
                whole >> 10,
                (after.0 - before.0) / gets,
                (after.1 - before.1) / gets,
                stat("table_reloads") - reloads,
                stat("resident_table_bytes") >> 10,
            );
            db.close()?;
        }
    }
    Ok(())
}
