//! What one append to a log costs: `cargo bench -p kingtide-vfs --bench log_append -- [directory]`.
//!
//! Nanoseconds of processor time an append, so that a busy machine changes little, and the longest append on the clock; the
//! best of a few rounds over a 256 MiB log, fresh (blocks just allocated) and recycled (the same file again), through
//! `open_log` and through plain `write_at`. The lines with syncs are on the clock.

#![allow(clippy::disallowed_methods)] // it measures time

use std::path::Path;
use std::time::Instant;

use kingtide_vfs::{File, OpenMode, SystemFs};

const SIZE: u64 = 256 << 20;

/// Nanoseconds that this thread has spent on a processor.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Nanoseconds per append of `len` bytes, `total` bytes together; syncs after every `sync_every` appends if not 0.
fn append(file: &dyn File, len: usize, total: u64, sync_every: u64) -> (f64, f64) {
    let data = vec![0x5a; len];
    let count = total / len as u64;
    let (start, cpu) = (Instant::now(), cpu_ns());
    let mut worst = 0.0f64;
    for i in 0..count {
        // The worst is sampled: asking the clock each time would cost more than the append.
        let t = (i % 8 == 0).then(Instant::now);
        file.write_at(&data, i * len as u64).unwrap();
        if sync_every > 0 && (i + 1) % sync_every == 0 {
            file.sync_data().unwrap();
        }
        worst = worst.max(t.map_or(0.0, |t| t.elapsed().as_nanos() as f64));
    }
    let spent = if sync_every > 0 { start.elapsed().as_nanos() as u64 } else { cpu_ns() - cpu };
    (spent as f64 / count as f64, worst)
}

fn best(rounds: usize, mut run: impl FnMut() -> (f64, f64)) -> String {
    let all: Vec<(f64, f64)> = (0..rounds).map(|_| run()).collect();
    let (ns, worst) = all.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    format!("{ns:>9.0} ns (worst {:>6.0} us)", worst / 1000.0)
}

fn main() {
    let dir = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with("--"))
        .unwrap_or_else(|| std::env::temp_dir().display().to_string());
    let fs = SystemFs::shared();
    let (mapped, plain) = (Path::new(&dir).join("append.mapped"), Path::new(&dir).join("append.plain"));
    let clear = || [&mapped, &plain].into_iter().for_each(|p| drop(fs.remove(p)));
    println!(
        "{:>8}  {:<30} {:<30} {:<30} write_at, recycled",
        "bytes", "log, fresh", "log, recycled", "write_at, fresh"
    );
    for len in [32, 130, 512, 1000, 4 << 10, 130 << 10] {
        let total = SIZE.min(len as u64 * 1_500_000);
        let fresh = best(2, || {
            clear();
            append(&*fs.open_log(&mapped, SIZE).unwrap(), len, total, 0)
        });
        let recycled = best(3, || append(&*fs.open_log(&mapped, SIZE).unwrap(), len, total, 0));
        let first = best(2, || {
            clear();
            fs.open_log(&plain, SIZE).unwrap();
            append(&*fs.open(&plain, OpenMode::Write).unwrap(), len, total, 0)
        });
        let writes = best(3, || append(&*fs.open(&plain, OpenMode::Write).unwrap(), len, total, 0));
        println!("{len:>8}  {fresh} {recycled} {first} {writes}");
    }
    println!("\n{:>8}  {:<30} write_at, recycled", "sync of", "log, recycled");
    fs.open_log(&mapped, SIZE).unwrap();
    for (every, total) in [(1, 400), (10, 4_000), (1_000, 200_000)] {
        let (a, b) = (fs.open_log(&mapped, SIZE).unwrap(), fs.open(&plain, OpenMode::Write).unwrap());
        let log = best(1, || append(&*a, 130, total * 130, every));
        let writes = best(1, || append(&*b, 130, total * 130, every));
        println!("{every:>8}  {log} {writes}");
    }
    clear();
}
