//! Processor nanoseconds an entry of flushes and merges: `cargo bench -p kingtide --bench merge_cost -- [entries]`.
//! Entries have 16-byte keys and 100-byte half-compressible values, a memtable holds 450,000 of them. Processor time,
//! because a busy machine changes it little; compare only figures of one run.

#![allow(clippy::disallowed_methods)] // a benchmark reads its own processor time

use kingtide::internal::{FlushInput, MergeContext, MergeOutput, run_flush, run_merge};
use kingtide_base::budget::Budget;
use kingtide_base::names::klog_path;
use kingtide_base::options::{Compression, FamilyOptions};
use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_base::{KeyOrder, Kind, Result, Tag};
use kingtide_mem::cache::BlockCache;
use kingtide_mem::{ArenaPool, Memtable};
use kingtide_table::Table;
use kingtide_versions::{CompactionRange, FileMeta, Job, JobKind, Version};
use kingtide_vfs::{Fs, OpenMode, SystemFs};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PER_MEMTABLE: usize = 450_000;

fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(0)
}

fn main() -> Result<()> {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_800_000);
    let fs = SystemFs::shared();
    let dir = std::env::temp_dir().join(format!("kingtide-merge-cost-{}", std::process::id()));
    fs.create_dir_all(&dir)?;
    let mut result = Ok(());
    for (name, sequential) in [("random", false), ("sequential", true)] {
        for compression in [Compression::Lz4, Compression::None] {
            result = result.and_then(|()| measure(&fs, &dir, n, name, sequential, compression));
        }
    }
    for name in fs.list(&dir)? {
        fs.remove(&dir.join(name))?;
    }
    fs.remove_dir(&dir)?;
    result
}

fn measure(fs: &Arc<dyn Fs>, dir: &Path, n: usize, name: &str, sequential: bool, method: Compression) -> Result<()> {
    let options = FamilyOptions::new().compression(method);
    let stats = Arc::new(Stats::default());
    let cache = BlockCache::new(64 << 20, 2, stats.clone());
    let pool = ArenaPool::new(Budget::new(1 << 40));
    let next_file = AtomicU64::new(1);
    let open_table = |f: &FileMeta| {
        let file = fs.open(&klog_path(dir, f.id), OpenMode::Read)?;
        Table::open(file, f.id, KeyOrder::Bytewise, cache.clone(), stats.clone())
    };
    let mut ctx = MergeContext {
        fs: fs.clone(),
        dir,
        order: KeyOrder::Bytewise,
        options: &options,
        next_file: &next_file,
        snapshots: vec![n as u64],
        now_ms: 1,
        version: Arc::new(Version::default()),
        open_table: &open_table,
        open_vlog: &|_| Err(kingtide_base::Error::invalid("no value logs here")),
        limiter: None,
        memory: None,
        cancelled: &AtomicBool::new(false),
        may_cancel: true,
        poll_interval: 32 << 10,
        restart_interval: kingtide_table::block::RESTART_INTERVAL,
        raised_below: 0,
        keeps_from: u64::MAX,
    };
    let mut rng = Rng::new(1);
    let mut value = [b'v'; 100];
    let mut version = Version::default();
    let mut flush_ns = 0;
    for from in (0..n).step_by(PER_MEMTABLE) {
        let to = n.min(from + PER_MEMTABLE);
        let table = Arc::new(Memtable::new(KeyOrder::Bytewise, &pool));
        let mut writer = table.writer();
        for i in from..to {
            let mut key = [0; 16];
            rng.fill(&mut key);
            if sequential {
                key[..8].copy_from_slice(&(i as u64).to_be_bytes());
            }
            rng.fill(&mut value[..50]);
            writer.insert(&key, Tag::new(i as u64 + 1, Kind::Put), &value);
        }
        drop(writer);
        let run = next_file.load(Ordering::Relaxed);
        let input = FlushInput {
            memtables: vec![table.iter()],
            tombstones: vec![],
            relocate: BTreeSet::new(),
            run,
            last: 0,
            hidden: None,
        };
        let started = cpu_ns();
        let out = run_flush(&ctx, input)?;
        flush_ns += cpu_ns() - started;
        add(&mut version, out);
    }
    report(&format!("{name} {method:?} flush"), flush_ns, n);
    ctx.version = Arc::new(version.clone());
    let inputs: Vec<_> = version.files().map(|(l, f)| (l, f.clone())).collect();
    let job = Job {
        kind: JobKind::FullPreemptive,
        inputs,
        output_level: 1,
        output_run: 1,
        drop_tombstones: true,
        boundaries: Vec::new(),
        relocate_vlogs: BTreeSet::new(),
        open_ends: BTreeSet::new(),
    };
    let started = cpu_ns();
    let out = run_merge(&ctx, &job, &CompactionRange::default())?;
    report(&format!("{name} {method:?} merge of {} runs", version.levels[0].len()), cpu_ns() - started, n);
    assert_eq!(out.added.iter().map(|(_, f)| f.entries).sum::<u64>(), n as u64);
    Ok(())
}

fn add(version: &mut Version, out: MergeOutput) {
    for (level, meta) in out.added {
        version.add(&KeyOrder::Bytewise, level, Arc::new(meta));
    }
}

fn report(what: &str, ns: u64, n: usize) {
    println!("{what:<36} {:>7.1} ns an entry", ns as f64 / n as f64);
}
