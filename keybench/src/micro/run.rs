//! One run of one engine: open, load, measure, check, close.

use super::expected::expected_entries;
use super::outcome::{Outcome, Phase, TxnCounts};
use super::picker::Picker;
use super::spec::{AfterLoad, Spec, Workload};
use super::txn;
use super::verify::{Tally, value_of, whole_store};
use super::work::{Done, Shared, Worker};
use crate::clock::Clock;
use crate::data::{Keys, Values};
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::measure::Latencies;
use crate::process::{self, Usage};
use crate::progress::{Goal, Progress};
use crate::settle::Begun;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Opens an engine in a directory.
pub type Opener<'a> = &'a dyn Fn(&Path) -> Result<Box<dyn Engine>>;

/// Runs a specification in this process.
pub fn run(spec: &Spec, open: Opener<'_>) -> Result<Outcome> {
    let keys = Keys::new(spec.pattern, spec.entries, spec.key_size, spec.seed)?;
    let values = Values::new(spec.value_size, spec.value_entropy, spec.seed)?;
    let walks = matches!(spec.workload, Workload::Range | Workload::Iterate);
    let sorted = if walks { keys.sorted_ids() } else { Vec::new() };
    let stop = AtomicBool::new(false);
    let shared = Shared { spec, keys, values, sorted, clock: Clock::calibrated(), stop };

    process::reset_peak();
    let before = Usage::now();
    let (mut store, open_seconds) = timed(|| open(&spec.dir))?;
    let mut outcome = Outcome {
        version: store.version(),
        durability: store.durability(),
        options: store.effective_options(),
        open_seconds,
        ..Outcome::default()
    };
    let begun = Begun::now(before.rss);
    if spec.workload.loads_first() && !spec.existing {
        let load = |w: &mut Worker<'_>| w.puts(Picker::for_load(spec, w.thread), spec.entries, spec.load_batch);
        phase(&shared, &*store, &["LOAD"], spec.load_batch, &mut outcome, load)?;
        if spec.killed {
            account(&shared, &mut outcome);
            outcome.written_bytes = Usage::now().since(&before).written();
            outcome.peak_rss = Usage::now().peak_rss.saturating_sub(before.rss);
            // The process is about to end with its store open.
            std::mem::forget(store);
            return Ok(outcome);
        }
        store = settle(spec, store, open, &mut outcome)?;
    }
    if spec.workload.loads_first() {
        // If another process loaded the data, this is what this process holds of them.
        outcome.loaded_rss = Usage::now().rss.saturating_sub(before.rss);
    }
    if spec.drop_cache && engine::keeps_files(&spec.engine) {
        process::drop_cache(&spec.dir)?;
    }
    let first = outcome.phases.len();
    measure(&shared, &*store, &mut outcome)?;
    let after = Usage::now();
    outcome.peak_rss = after.peak_rss.saturating_sub(before.rss);
    outcome.peak_vms = after.peak_vms;
    if spec.settles() && spec.workload.writes() {
        let costs = begun.settle(&*store, &spec.dir)?;
        outcome.phases[first].costs = Some(costs);
        let peak = Usage::now().peak_rss.saturating_sub(before.rss);
        outcome.peak_rss = outcome.peak_rss.max(peak);
    }
    if !spec.workload.loads_first() {
        outcome.loaded_rss = after.rss.saturating_sub(before.rss);
        store = settle(spec, store, open, &mut outcome)?;
    }
    account(&shared, &mut outcome);
    if (matches!(spec.workload, Workload::Write | Workload::Delete | Workload::Mixed)
        || spec.workload.is_transactional())
        && spec.final_check
    {
        final_check(&shared, &*store, &mut outcome)?;
    }
    let ((), close_seconds) = timed(|| store.close())?;
    outcome.close_seconds = close_seconds;
    outcome.written_bytes = Usage::now().since(&before).written();
    outcome.disk_bytes = process::disk_bytes(&spec.dir);
    outcome.busy = engine::busy_answers();
    if !engine::keeps_data(&spec.engine) {
        outcome.forget_answers();
    }
    Ok(outcome)
}

/// What `work` returns, and the seconds it took.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let value = work()?;
    Ok((value, start.elapsed().as_secs_f64()))
}

/// What the user wants done between loading and measuring.
fn settle(spec: &Spec, store: Box<dyn Engine>, open: Opener<'_>, outcome: &mut Outcome) -> Result<Box<dyn Engine>> {
    match spec.after_load {
        AfterLoad::Nothing => {}
        AfterLoad::Flush => store.flush()?,
        AfterLoad::Compact => store.compact()?,
        // Another process has done it.
        AfterLoad::ReopenKilled => {}
        AfterLoad::Reopen | AfterLoad::ReopenSettled => {
            if spec.after_load == AfterLoad::ReopenSettled {
                Begun::now(0).settle(&*store, &spec.dir)?;
            }
            store.close()?;
            let (again, seconds) = timed(|| open(&spec.dir))?;
            outcome.reopen_seconds = Some(seconds);
            return Ok(again);
        }
    }
    Ok(store)
}

/// The measured phase.
fn measure(shared: &Shared<'_>, store: &dyn Engine, outcome: &mut Outcome) -> Result<()> {
    let spec = shared.spec;
    let batch = spec.batch;
    match spec.workload {
        Workload::Write => phase(shared, store, &["PUT"], batch, outcome, |w| {
            w.puts(Picker::for_writes(spec, w.thread), spec.entries, batch)
        }),
        Workload::Read => phase(shared, store, &["GET"], 1, outcome, |w| w.gets()),
        Workload::Mixed => phase(shared, store, &["PUT", "GET"], batch, outcome, |w| w.mixed()),
        Workload::Delete => phase(shared, store, &["DELETE"], batch, outcome, |w| w.deletes()),
        Workload::Seek => phase(shared, store, &["SEEK"], 1, outcome, |w| w.seeks()),
        Workload::Range => phase(shared, store, &["RANGE"], 1, outcome, |w| w.ranges()),
        Workload::Iterate => phase(shared, store, &["ITER"], 1, outcome, |w| w.iterates()),
        Workload::Mget => phase(shared, store, &["MGET"], batch, outcome, |w| w.multi_gets()),
        Workload::TxnWrite | Workload::TxnRmw | Workload::TxnMixed => {
            let name = spec.workload.name().to_uppercase();
            phase(shared, store, &[&name], spec.txn.size, outcome, |w| w.transactions())
        }
    }
}

/// What one thread brings back.
struct Share {
    latencies: [Latencies; 2],
    ops: [u64; 2],
    txn: TxnCounts,
    tally: Tally,
    cpu_ns: u64,
    start: Instant,
    end: Instant,
}

/// Runs `work` on every thread at once and adds a phase for each of `operations` to the outcome.
fn phase(
    shared: &Shared<'_>,
    store: &dyn Engine,
    operations: &[&str],
    batch: usize,
    outcome: &mut Outcome,
    work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let steps = Steps { threads: shared.spec.threads, operations, batch };
    phase_on(steps, shared, store, outcome, work)
}

/// What a person sees of a phase. How many operations it has in all is known of workloads, not of presets.
fn progress(spec: &Spec, operations: &[&str]) -> Progress {
    let total = if operations == ["LOAD"] || spec.workload == Workload::Write { spec.entries } else { spec.operations };
    let goal = match engine::keeps_data(&spec.engine) {
        // The harness measures itself: that is over in an instant, and no figure of an engine.
        false => Goal::Unseen,
        true if spec.phases.is_empty() && !spec.workload.is_transactional() => Goal::Units(total),
        true => Goal::Unknown,
    };
    Progress::start(format!("{} {}", spec.engine, operations.join(" and ")), "operations", goal)
}

/// Runs `one` on as many threads as there are counts, and shows what those are meanwhile.
fn on_threads(
    one: &(dyn Fn(usize) -> Result<Share> + Sync),
    done: &[Done],
    mut progress: Progress,
) -> Vec<Result<Share>> {
    let (end, ended) = channel::<()>();
    let shares = std::thread::scope(|scope| {
        let start = |thread| {
            let end = end.clone();
            scope.spawn(move || {
                // Dropped when this thread is done.
                let _end = end;
                one(thread)
            })
        };
        let handles: Vec<_> = (0..done.len()).map(start).collect();
        drop(end);
        while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            progress.update(done.iter().map(Done::get).sum());
        }
        let join = |h: std::thread::ScopedJoinHandle<'_, Result<Share>>| {
            h.join().unwrap_or_else(|_| Err(Error::failed("a thread of the harness panicked")))
        };
        handles.into_iter().map(join).collect()
    });
    progress.finish();
    shares
}

/// What the threads of a phase do.
pub struct Steps<'a> {
    pub threads: usize,
    /// The kinds of operation: one, or two that are mixed.
    pub operations: &'a [&'a str],
    /// Operations of one commit.
    pub batch: usize,
}

/// The same on another number of threads.
pub fn phase_on(
    steps: Steps<'_>,
    shared: &Shared<'_>,
    store: &dyn Engine,
    outcome: &mut Outcome,
    work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let Steps { threads, operations, batch } = steps;
    let barrier = Barrier::new(threads);
    let done: Vec<Done> = (0..threads).map(|_| Done::default()).collect();
    let before = Usage::now();
    let one = |thread: usize| -> Result<Share> {
        // Relaxed: pairs with nothing; the others stop a little later.
        let stop = || shared.stop.store(true, Ordering::Relaxed);
        let pinned = shared.spec.pin.apply(thread).inspect_err(|_| stop());
        let session = store.session().inspect_err(|_| stop());
        barrier.wait();
        pinned?;
        let cpu = process::thread_cpu_ns();
        let start = Instant::now();
        let mut worker = Worker {
            shared,
            thread,
            done: &done[thread],
            session: session?,
            latencies: Default::default(),
            ops: [0; 2],
            txn: TxnCounts::default(),
            tally: Tally::default(),
        };
        let done = work(&mut worker);
        let end = Instant::now();
        done.inspect_err(|_| stop())?;
        let cpu_ns = process::thread_cpu_ns().saturating_sub(cpu);
        Ok(Share {
            cpu_ns,
            latencies: worker.latencies,
            ops: worker.ops,
            txn: worker.txn,
            tally: worker.tally,
            start,
            end,
        })
    };
    let shares = on_threads(&one, &done, progress(shared.spec, operations));
    let usage = Usage::now().since(&before);
    let mut latencies: [Latencies; 2] = Default::default();
    let (mut ops, mut tally, mut callers_cpu_ns) = ([0u64; 2], Tally::default(), 0);
    let mut txn = TxnCounts::default();
    let (mut start, mut end): (Option<Instant>, Option<Instant>) = (None, None);
    for part in shares {
        let part = part?;
        for kind in 0..2 {
            latencies[kind].merge(&part.latencies[kind]);
            ops[kind] += part.ops[kind];
        }
        start = Some(start.map_or(part.start, |s| s.min(part.start)));
        end = Some(end.map_or(part.end, |e| e.max(part.end)));
        txn.add(&part.txn);
        tally.merge(part.tally);
        callers_cpu_ns += part.cpu_ns;
    }
    let seconds = start.zip(end).map_or(0.0, |(s, e)| (e - s).as_secs_f64());
    outcome.examples.append(&mut tally.examples);
    for (kind, operation) in operations.iter().enumerate() {
        outcome.phases.push(Phase {
            operation: (*operation).to_owned(),
            batch,
            ops: ops[kind],
            seconds,
            latency: latencies[kind].summary(),
            usage,
            // Kinds of one loop share its time by their number.
            callers_cpu_ns: (u128::from(callers_cpu_ns) * u128::from(ops[kind]) / u128::from((ops[0] + ops[1]).max(1)))
                as u64,
            // Answers belong to the last kind: in `mixed`, to the gets.
            verified: if kind + 1 == operations.len() { tally.verified } else { 0 },
            wrong: if kind + 1 == operations.len() { tally.wrong } else { 0 },
            txn: (txn.commits > 0).then_some(txn),
            ..Phase::default()
        });
    }
    Ok(())
}

/// Bytes given to the engine and bytes alive in it.
fn account(shared: &Shared<'_>, outcome: &mut Outcome) {
    let spec = shared.spec;
    let entry = (spec.key_size + spec.value_size) as u64;
    let bytes = |p: &Phase| match p.operation.as_str() {
        "LOAD" | "PUT" => p.ops * entry,
        "DELETE" => p.ops * spec.key_size as u64,
        _ if p.txn.is_some() => p.txn.map_or(0, |t| t.writes) * entry,
        _ => 0,
    };
    outcome.user_bytes = outcome.phases.iter().map(bytes).sum();
    outcome.live_bytes = expected_entries(spec).iter().filter(|e| **e).count() as u64 * entry;
}

/// Scans the whole store after writes and deletes.
fn final_check(shared: &Shared<'_>, store: &dyn Engine, outcome: &mut Outcome) -> Result<()> {
    let mut session = store.session()?;
    if !engine::keeps_data(&shared.spec.engine) {
        return Ok(());
    }
    if matches!(shared.spec.workload, Workload::TxnRmw | Workload::TxnMixed) {
        return txn::final_check(shared, &mut *session, outcome);
    }
    let exists = expected_entries(shared.spec);
    let ids = exists.iter().enumerate().filter(|(_, e)| **e).map(|(i, _)| shared.keys.id(i as u64));
    let mut expected: Vec<u64> = ids.collect();
    expected.sort_unstable();
    let tally = whole_store(&mut *session, &shared.keys, &expected, &mut value_of(&shared.values, &expected))?;
    outcome.final_check = (tally.verified, tally.wrong);
    outcome.examples.extend(tally.examples);
    Ok(())
}
