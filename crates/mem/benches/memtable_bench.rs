//! What the memtable costs an operation, in nanoseconds, beside a `BTreeMap` doing the same work without concurrency.
//!
//! `cargo bench -p kingtide-mem --bench memtable_bench -- [entries] [rounds]`
//!
//! Entries are a 16-byte key and a 100-byte value. Each figure is the median and the minimum of the rounds; the first
//! round, which pays for fresh pages, is left out. What is measured is the thread's CPU time, so that a busy machine
//! disturbs it less.

#![allow(clippy::disallowed_methods)] // a benchmark reads the clock

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hint::black_box;
use std::sync::Arc;

use kingtide_base::budget::Budget;
use kingtide_base::rng::Rng;
use kingtide_base::{KeyOrder, Kind, Tag};
use kingtide_mem::{ArenaPool, Memtable};

type Key = [u8; 16];

fn cpu_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the timespec only.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Table {
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    fn add(&mut self, name: &str, n: usize, work: impl FnOnce()) {
        let start = cpu_ns();
        work();
        let ns = (cpu_ns() - start) as f64 / n as f64;
        match self.rows.iter_mut().find(|r| r.0 == name) {
            Some(row) => row.1.push(ns),
            None => self.rows.push((name.to_owned(), vec![ns])),
        }
    }

    fn print(&mut self) {
        println!("{:42} {:>8} {:>8}", "ns an entry", "median", "min");
        for (name, runs) in &mut self.rows {
            if runs.len() > 1 {
                runs.remove(0);
            }
            runs.sort_by(f64::total_cmp);
            println!("{name:42} {:8.1} {:8.1}", runs[runs.len() / 2], runs[0]);
        }
    }
}

fn decimal(v: u64) -> Key {
    let mut key = [0; 16];
    key.copy_from_slice(format!("{v:016}").as_bytes());
    key
}

fn put(i: usize) -> Tag {
    Tag::new(i as u64 + 1, Kind::Put)
}

fn fill(pool: &Arc<ArenaPool>, keys: &[Key], value: &[u8], batch: usize, sort: bool) -> Arc<Memtable> {
    let table = Arc::new(Memtable::new(KeyOrder::Bytewise, pool));
    let mut order: Vec<(Key, Tag)> = Vec::with_capacity(batch);
    for (b, chunk) in keys.chunks(batch).enumerate() {
        if batch == 1 {
            table.writer().insert(&chunk[0], put(b), value);
            continue;
        }
        order.clear();
        order.extend(chunk.iter().enumerate().map(|(i, k)| (*k, put(b * batch + i))));
        if sort {
            order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        }
        table.writer().insert_batch(order.iter().map(|(k, t)| (&k[..], *t, value)));
    }
    table
}

fn round(rows: &mut Table, pool: &Arc<ArenaPool>, name: &str, keys: &[Key]) {
    let n = keys.len();
    let value = [7u8; 100];
    let all = Tag::seek(u64::MAX >> 8);
    for (how, batch, sort) in [("one by one", 1, false), ("batches of 1000", 1000, false)] {
        rows.add(&format!("{name}: insert {how}"), n, || drop(black_box(fill(pool, keys, &value, batch, sort))));
    }
    // Sorting is not the memtable's work, so it is done before the clock starts.
    let mut sorted = keys.to_vec();
    sorted.chunks_mut(1000).for_each(|c| c.sort_unstable());
    for (how, batch) in [("sorted batches of 1000", 1000), ("sorted, one by one", 1)] {
        rows.add(&format!("{name}: insert {how}"), n, || drop(black_box(fill(pool, &sorted, &value, batch, false))));
    }
    let table = fill(pool, keys, &value, 1, false);
    let mut probes = keys.to_vec();
    let mut rng = Rng::new(5);
    for i in (1..n).rev() {
        probes.swap(i, rng.below(i as u64 + 1) as usize);
    }
    rows.add(&format!("{name}: lookup"), n, || {
        for k in &probes {
            assert!(table.get(k, all).is_some_and(|(_, v)| v[0] == 7));
        }
    });
    let mut it = table.iter();
    rows.add(&format!("{name}: seek"), n, || {
        for k in &probes {
            it.seek(k, all);
            assert!(it.key() == k);
        }
    });
    for (how, back) in [("scan", false), ("scan backward", true)] {
        rows.add(&format!("{name}: {how}"), n, || {
            let mut sum = 0u64;
            if back {
                it.last()
            } else {
                it.first()
            }
            while it.valid() {
                sum = sum.wrapping_add(it.head() ^ it.value()[0] as u64);
                if back { it.prev() } else { it.next() }
            }
            black_box(sum);
        });
    }
    let mut reference: BTreeMap<Key, Box<[u8]>> = BTreeMap::new();
    rows.add(&format!("{name}: BTreeMap insert"), n, || {
        for k in keys {
            if let Entry::Vacant(e) = reference.entry(*k) {
                e.insert(value.into());
            }
        }
    });
    rows.add(&format!("{name}: BTreeMap lookup"), n, || {
        for k in &probes {
            assert!(reference.get(k).is_some_and(|v| v[0] == 7));
        }
    });
    rows.add(&format!("{name}: BTreeMap scan"), n, || {
        black_box(reference.iter().fold(0u64, |s, (k, v)| s.wrapping_add((k[0] ^ v[0]) as u64)));
    });
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let n = args.next().unwrap_or(500_000);
    let rounds = args.next().unwrap_or(5);
    let pool = ArenaPool::with_free_limit(Budget::new(u64::MAX), 1 << 30);
    let mut rng = Rng::new(1);
    let random: Vec<Key> = (0..n).map(|_| decimal(rng.next_u64() % 10_000_000_000_000_000)).collect();
    let sequential: Vec<Key> = (0..n as u64).map(decimal).collect();
    let mut shuffled = sequential.clone();
    for i in (1..n).rev() {
        shuffled.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut rows = Table { rows: Vec::new() };
    for _ in 0..=rounds {
        round(&mut rows, &pool, "random", &random);
        round(&mut rows, &pool, "shuffled dense", &shuffled);
        round(&mut rows, &pool, "sequential", &sequential);
    }
    rows.print();
}
