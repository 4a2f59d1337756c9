//! What writes cost: in the foreground, when the last one was acknowledged, and *settled*, when the work that they left
//! behind is done too. A burst that fits into memtables costs little at first and its flushes and compactions later.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::measure::{median, show_bytes, show_ns};
use crate::process::{self, Usage};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// What was spent since the first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Seconds of processor time.
    pub cpu: f64,
    /// Bytes written.
    pub written: u64,
    /// Bytes of the store's files.
    pub disk_bytes: u64,
    /// Resident bytes above what the harness held before the store was opened.
    pub rss: u64,
}

/// The cost of writes, twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// When the last write was acknowledged.
    pub foreground: Cost,
    /// When memtables were flushed and compaction was idle.
    pub settled: Cost,
}

impl Costs {
    /// The median of each figure over repeats.
    pub fn median_of(all: &[Costs]) -> Costs {
        let of = |cost: fn(&Costs) -> &Cost| {
            let figure = |f: fn(&Cost) -> f64| median(all.iter().map(|c| f(cost(c))));
            Cost {
                seconds: figure(|c| c.seconds),
                cpu: figure(|c| c.cpu),
                written: figure(|c| c.written as f64) as u64,
                disk_bytes: figure(|c| c.disk_bytes as f64) as u64,
                rss: figure(|c| c.rss as f64) as u64,
            }
        };
        Costs { foreground: of(|c| &c.foreground), settled: of(|c| &c.settled) }
    }
}

/// For people: a line for each engine that has costs, of medians over its repeats.
pub fn cost_table(out: &mut String, engines: &[(&str, Vec<Costs>)]) {
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "{:<10} {:>12} {:>9} {:>10} {:>10} {:>10} | {:>9} {:>9} {:>10} {:>10} {:>10}",
        "cost", "foreground:", "cpu", "written", "space", "RSS", "settled:", "cpu", "written", "space", "RSS"
    );
    for (engine, costs) in engines.iter().filter(|(_, costs)| !costs.is_empty()) {
        let Costs { foreground, settled } = Costs::median_of(costs);
        let [a, b] = [foreground, settled].map(|c| {
            let bytes = [c.written, c.disk_bytes, c.rss].map(|n| show_bytes(n as f64));
            (show_ns(c.seconds * 1e9), show_ns(c.cpu * 1e9), bytes)
        });
        let _ = writeln!(
            out,
            "{engine:<10} {:>12} {:>9} {:>10} {:>10} {:>10} | {:>9} {:>9} {:>10} {:>10} {:>10}",
            a.0, a.1, a.2[0], a.2[1], a.2[2], b.0, b.1, b.2[0], b.2[1], b.2[2],
        );
    }
}

/// The moment before the first write.
pub struct Begun {
    at: Instant,
    usage: Usage,
    base_rss: u64,
}

impl Begun {
    /// Now. `base_rss` is what the harness held before the store was opened.
    pub fn now(base_rss: u64) -> Begun {
        Begun { at: Instant::now(), usage: Usage::now(), base_rss }
    }

    fn cost(&self, dir: &Path, end: Instant) -> Cost {
        let now = Usage::now();
        let spent = now.since(&self.usage);
        Cost {
            seconds: end.saturating_duration_since(self.at).as_secs_f64(),
            cpu: spent.cpu_user + spent.cpu_sys,
            written: spent.written(),
            disk_bytes: process::disk_bytes(dir),
            rss: now.rss.saturating_sub(self.base_rss),
        }
    }

    /// Flushes, waits until compaction is idle, and returns the cost before and after.
    pub fn settle(&self, store: &dyn Engine, dir: &Path) -> Result<Costs> {
        let foreground = self.cost(dir, Instant::now());
        store.flush()?;
        let idle_since = until_idle(CALM, LIMIT, &mut activity)?;
        Ok(Costs { foreground, settled: self.cost(dir, idle_since) })
    }
}

/// Time between two looks at the process.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row without activity after which the engine is idle.
const CALM: u32 = 10;
/// How long background work may go on before that is a failure.
const LIMIT: Duration = Duration::from_secs(3600);
/// Bytes written between two looks that are no activity: a timer's line in a log.
const TRIFLE: u64 = 64 << 10;

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Activity {
    /// Threads beside this one that run, wait for a processor, or wait for the disk.
    busy_threads: usize,
    /// Seconds of processor time that the process has used.
    cpu: f64,
    /// Bytes that it has asked the kernel to write.
    written: u64,
}

fn activity() -> Activity {
    let usage = Usage::now();
    let busy_threads = process::busy_threads();
    Activity { busy_threads, cpu: usage.cpu_user + usage.cpu_sys, written: usage.write_calls }
}

/// Waits until the process has done nothing for `calm` looks in a row; returns when that began.
fn until_idle(calm: u32, limit: Duration, look: &mut dyn FnMut() -> Activity) -> Result<Instant> {
    let start = Instant::now();
    let (mut last, mut idle_since, mut quiet) = (look(), start, 0);
    while quiet < calm {
        if start.elapsed() >= limit {
            return Err(Error::failed(format!("background work did not finish within {} s", limit.as_secs())));
        }
        std::thread::sleep(LOOK);
        let now = look();
        // The looks themselves take a tick of processor time now and then.
        let idle = now.busy_threads == 0 && now.cpu - last.cpu < 0.025 && now.written - last.written < TRIFLE;
        if idle {
            quiet += 1;
        } else {
            (quiet, idle_since) = (0, Instant::now());
        }
        last = now;
    }
    Ok(idle_since)
}

/// Whether a data set of so many bytes is so small that figures of the foreground say little about it.
pub fn is_small(bytes: u64, memtable_size: u64) -> bool {
    bytes < memtable_size.saturating_mul(4)
}

/// Why figures of the foreground say little about small data sets of `least` to `most` bytes.
pub fn fits_in_memory(least: u64, most: u64, memtable_size: u64) -> String {
    let show = |n: u64| crate::measure::show_bytes(n as f64);
    let sets = match least == most {
        true => format!("the data set of {} is", show(most)),
        false => format!("the data sets of {} to {} are", show(least), show(most)),
    };
    format!(
        "{sets} under four times the memtable of {}: foreground figures mostly measure memtables; judge by the settled cost, or \
         use a larger data set",
        show(memtable_size)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_begins_behind_the_last_activity() {
        // A thread that waits for the disk, then processor time, then a large write, then calm with a trifle in it.
        let looks = [(1, 0.0, 0), (1, 0.0, 0), (0, 0.5, 0), (0, 0.5, 1 << 20), (0, 0.51, (1 << 20) + 100)];
        let mut at = 0;
        let start = Instant::now();
        let mut look = || {
            let (busy_threads, cpu, written) = looks[at.min(looks.len() - 1)];
            at += 1;
            Activity { busy_threads, cpu, written }
        };
        let since = until_idle(3, Duration::from_secs(60), &mut look).unwrap();
        assert!(since >= start + 3 * LOOK && at == 7, "{at} looks");
        let mut work = 0;
        let mut never = || {
            work += 1;
            Activity { busy_threads: 1, cpu: 0.0, written: work }
        };
        let e = until_idle(3, LOOK * 2, &mut never).unwrap_err();
        assert!(e.to_string().contains("did not finish"), "{e}");
    }

    #[test]
    fn small_data_sets_are_told() {
        assert!(is_small(255 << 20, 64 << 20) && !is_small(256 << 20, 64 << 20));
        let one = fits_in_memory(255 << 20, 255 << 20, 64 << 20);
        assert!(one.starts_with("the data set of 255 MiB is under four times the memtable of 64.0 MiB"), "{one}");
        assert!(fits_in_memory(1 << 20, 3 << 20, 64 << 20).starts_with("the data sets of 1.00 MiB to 3.00 MiB are"));
    }

    #[test]
    fn a_merge_that_goes_on_is_waited_for() {
        use crate::engine::{self, EngineOptions};
        let dir = std::env::temp_dir().join(format!("keybench-settle-{}", std::process::id()));
        process::fresh_dir(&dir).unwrap();
        let options = EngineOptions { memtable_size: Some(64 << 10), ..EngineOptions::default() };
        let store = engine::registry::open("kingtide", &dir, &options).unwrap();
        let begun = Begun::now(0);
        let mut session = store.session().unwrap();
        for i in 0..30_000u64 {
            session.put(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), &[7; 100]).unwrap();
        }
        drop(session);
        let costs = begun.settle(&*store, &dir).unwrap();
        let (before, after) = (costs.foreground, costs.settled);
        assert!(after.seconds >= before.seconds && after.cpu >= before.cpu && after.written >= before.written);
        assert!(after.disk_bytes > 0 && before.written > 0 && after.rss > 0);
        store.close().unwrap();
        process::remove_dir(&dir).unwrap();
    }
}
