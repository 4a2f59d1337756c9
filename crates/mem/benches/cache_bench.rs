//! Nanoseconds per hit, miss and insert of the block cache, with one and two threads:
//! `cargo bench -p kingtide-mem --bench cache_bench`
//!
//! The time is the threads' own processor time, so that a busy machine changes it little.

#![allow(clippy::disallowed_methods)] // it starts threads

use std::sync::{Arc, Barrier};

use kingtide_base::rng::Rng;
use kingtide_base::stats::Stats;
use kingtide_mem::cache::{Block, BlockCache};

const BLOCK: u64 = 4096;
const CAPACITY: u64 = 64 << 20;

/// Processor time of this thread in nanoseconds.
fn thread_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Runs `work(thread, step)` on each thread and prints nanoseconds per step and thread.
fn measure(name: &str, threads: u64, steps: u64, work: impl Fn(u64, &mut Rng, u64) -> bool + Sync) {
    let barrier = Barrier::new(threads as usize);
    let ns: Vec<f64> = std::thread::scope(|s| {
        let (work, barrier) = (&work, &barrier);
        let run = move |t| {
            let mut rng = Rng::new(t);
            barrier.wait();
            let start = thread_ns();
            let found = (0..steps).filter(|i| work(t, &mut rng, *i)).count();
            std::hint::black_box(found);
            (thread_ns() - start) as f64 / steps as f64
        };
        let handles: Vec<_> = (0..threads).map(|t| s.spawn(move || run(t))).collect();
        handles.into_iter().filter_map(|h| h.join().ok()).collect()
    });
    println!("{name:<44} {threads} threads  {:>8.1} ns", ns.iter().sum::<f64>() / ns.len() as f64);
}

fn filled(blocks: u64) -> Arc<BlockCache> {
    let cache = BlockCache::new(CAPACITY, 0, Arc::new(Stats::default()));
    for i in 0..blocks {
        cache.insert(1, i * BLOCK, Block::from(&[1u8; BLOCK as usize][..]));
    }
    cache
}

fn main() {
    let most = CAPACITY / BLOCK * 9 / 10;
    for threads in [1, 2] {
        let cache = filled(most);
        measure("hit, one hot block", threads, 10_000_000, |_, _, _| cache.get(1, 0).is_some());
        measure("hit, 100 hot blocks", threads, 10_000_000, |_, rng, _| cache.get(1, rng.below(100) * BLOCK).is_some());
        measure("hit, all of 64 MB at random", threads, 3_000_000, |_, rng, _| {
            cache.get(1, rng.below(most) * BLOCK).is_some_and(|b| b[0] == 1)
        });
        measure("miss", threads, 5_000_000, |_, rng, _| cache.get(2, rng.below(most) * BLOCK).is_some());
        let data = [7u8; BLOCK as usize];
        let full = filled(2 * most);
        measure("miss on a full cache, asking for admission", threads, 3_000_000, |t, _, i| {
            full.get(3 + t, i * BLOCK).is_some() || full.admit(3 + t, i * BLOCK)
        });
        measure("copy 4 KB to a block, no cache", threads, 500_000, |_, _, _| Block::from(&data[..])[9] == 7);
        measure("copy 4 KB to a block and insert, evicting", threads, 500_000, |t, _, i| {
            full.insert(9 + t, i * BLOCK, Block::from(&data[..]));
            true
        });
    }
}
