//! Random operations against an ordered map: everything that the engine answers must be what the map says, under every
//! option set of [`sets::all`].
//!
//! `KINGTIDE_FULL=1` runs the full counts. A failure prints the option set and the seed; `KINGTIDE_SET` and
//! `KINGTIDE_SEED` run that again (to the letter where the set runs its background jobs itself).
#![allow(clippy::disallowed_methods, missing_docs)]

mod cursor;
mod driver;
mod oracle;
mod sets;

use driver::{Counts, Driver};
use sets::Set;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations before a run begins anew with the next seed: the longer ones reach deeper trees.
const RUN: u64 = 25_000;

fn operations() -> u64 {
    let given = std::env::var("KINGTIDE_OPS").ok().and_then(|v| v.parse().ok());
    given.unwrap_or(if std::env::var_os("KINGTIDE_FULL").is_some() { 1_000_000 } else { 50_000 })
}

/// Runs one seed; tells the operation at which it failed.
fn run(set: &Set, seed: u64, operations: u64) -> Result<Counts, u64> {
    let mut done = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut driver = Driver::new(set, seed);
        while done < operations {
            driver.step();
            done += 1;
        }
        driver.finish();
        driver.counts
    }));
    outcome.map_err(|_| done)
}

fn run_set(set: &Set) -> Result<(u64, Counts), String> {
    let only: Option<u64> = std::env::var("KINGTIDE_SEED").ok().and_then(|v| v.parse().ok());
    let mut total = Counts::new();
    let mut done = 0;
    let mut seed = only.unwrap_or(1);
    while done < operations() {
        // One long run among the short ones.
        let length = if done == 0 { RUN } else { RUN / 2 }.min(operations() - done);
        match run(set, seed, length) {
            Ok(counts) => counts.into_iter().for_each(|(k, n)| *total.entry(k).or_default() += n),
            Err(at) => return Err(format!("KINGTIDE_SET={} KINGTIDE_SEED={seed} failed at operation {at}", set.name)),
        }
        done += length;
        seed += 1;
        if only.is_some() {
            break;
        }
    }
    Ok((done, total))
}

#[test]
fn every_answer_is_the_ordered_maps() {
    let only = std::env::var("KINGTIDE_SET").ok();
    let mut sets: Vec<Set> = sets::all().into_iter().filter(|s| only.as_ref().is_none_or(|n| n == s.name)).collect();
    assert!(!sets.is_empty(), "no such set");
    sets.sort_by_key(|s| s.disk == sets::Disk::Memory);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    // Those on a real disk mostly wait for it.
    let workers = 2 + std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                while let Some(set) = sets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = std::time::Instant::now();
                    let result = run_set(set);
                    println!("{}: {:.1?} {:?}", set.name, start.elapsed(), result.as_ref().map(|r| &r.1));
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let failures: Vec<&String> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    let operations: u64 = results.iter().filter_map(|r| r.as_ref().ok()).map(|r| r.0).sum();
    println!("{operations} operations in {} option sets, {} failures", sets.len(), failures.len());
    assert!(failures.is_empty(), "{failures:#?}");
}
