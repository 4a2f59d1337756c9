//! `keybench micro`: native loops that put, get, seek and scan as fast as an engine lets them, and check every answer.

mod args;
mod csv;
mod expected;
mod outcome;
pub mod phases;
mod picker;
mod report;
mod run;
mod spec;
#[cfg(test)]
mod tests;
mod txn;
#[cfg(test)]
mod txn_tests;
mod verify;
mod warning;
mod work;

pub use args::Args;
pub use csv::column_today;
pub use warning::Warning;

use crate::child;
use crate::engine::{self, EngineOptions};
use crate::error::{Error, Result};
use crate::machine;
use crate::process;
use crate::results::equality;
use crate::say::{note, say_part};
use outcome::{Column, HarnessCost, Outcome, Phase};
use serde::{Deserialize, Serialize};
use spec::{AfterLoad, Spec, TxnSpec, Workload};
use std::path::Path;

/// What a child sends to its parent.
#[derive(Serialize, Deserialize)]
enum Message {
    Done(Box<Outcome>),
    Unavailable(String),
    Unsupported(String),
    Usage(String),
    Failed(String),
}

/// The child's side: runs the specification on standard input.
pub fn child_main() -> Result<()> {
    let spec: Spec = child::read_spec()?;
    let open =
        |dir: &Path, sync| engine::registry::open(&spec.engine, dir, &EngineOptions { sync, ..spec.options.clone() });
    let done = match spec.phases[..] {
        [] => run::run(&spec, &|dir| open(dir, spec.options.sync)),
        _ => phases::run(&spec, &open),
    };
    let message = match done {
        Ok(outcome) => Message::Done(Box::new(outcome)),
        Err(Error::Unavailable(m)) => Message::Unavailable(m),
        Err(Error::Unsupported(m)) => Message::Unsupported(m),
        Err(Error::Usage(m)) => Message::Usage(m),
        Err(e) => Message::Failed(e.to_string()),
    };
    child::send(&message)?;
    if spec.killed && matches!(message, Message::Done(_)) {
        // As a crash would: nothing is flushed or closed. What was told is in the pipe.
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        killed.map_err(|e| Error::failed(format!("cannot end the process without closing its store: {e}")))?;
    }
    Ok(())
}

/// Runs one specification in a child process.
fn run_in_child(spec: &Spec) -> Result<Outcome> {
    let mut answer = None;
    let ended = child::run("micro", spec, |m: Message| answer = Some(m));
    match answer {
        // Its end was not a success, as it was told to be.
        Some(Message::Done(outcome)) if spec.killed => return Ok(*outcome),
        _ => ended?,
    }
    match answer {
        Some(Message::Done(outcome)) => Ok(*outcome),
        Some(Message::Unavailable(m)) => Err(Error::Unavailable(m)),
        Some(Message::Unsupported(m)) => Err(Error::Unsupported(m)),
        Some(Message::Usage(m)) => Err(Error::Usage(m)),
        Some(Message::Failed(m)) => Err(Error::Failed(m)),
        None => Err(Error::failed("the engine's process ended without a result")),
    }
}

/// What a command line came to.
pub struct Measurement {
    plan: args::Plan,
    columns: Vec<Column>,
    harness: Vec<HarnessCost>,
    /// What a reader must know before the figures.
    pub warnings: Vec<Warning>,
    /// The report.
    pub text: String,
    /// Whether every engine that is there ran to its end and answered rightly.
    pub sound: Result<()>,
}

/// Runs `keybench micro`.
pub fn main(args: &Args) -> Result<()> {
    let plan = args.plan()?;
    if let Some(path) = &args.csv {
        csv::check(path, &plan)?;
    }
    // A file that cannot be written is an error before hours are spent, not after.
    for path in [&args.csv, &args.report].into_iter().flatten() {
        let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
        open.map_err(|e| Error::io("write", path, e))?;
    }
    // As it is before the runs change its load and its free space.
    let machine = machine::lines(&plan.root, plan.base.bytes());
    let measured = measure(args)?;
    let text = format!("\n{machine}{}", measured.text);
    say_part!("{text}");
    if let Some(path) = &args.report {
        std::fs::write(path, &text).map_err(|e| Error::io("write", path, e))?;
    }
    if let Some(path) = &args.csv {
        append_csv(path, &measured)?;
    }
    measured.sound
}

/// Appends a measurement's rows to a CSV file.
pub fn append_csv(path: &Path, measured: &Measurement) -> Result<()> {
    csv::append(path, &measured.plan, &measured.columns, &measured.harness)
}

/// Runs all engines and repeats of a command line. Files that it names are left to the caller.
pub fn measure(args: &Args) -> Result<Measurement> {
    let plan = args.plan()?;
    process::warn_of_tmpfs(&plan.root, plan.choices.sync());
    if !plan.ignore_free_space && !plan.base.existing {
        let stores = plan.engines.iter().filter(|e| engine::keeps_files(e)).count() as u64;
        let stores = if plan.keep { stores } else { stores.min(1) };
        process::need_room(&plan.root, plan.base.bytes().saturating_mul(stores * process::ROOM_FACTOR))?;
    }
    let harness = harness_cost(&plan);
    let mut columns: Vec<Column> =
        plan.engines.iter().map(|e| Column { engine: e.clone(), outcomes: Vec::new(), trouble: None }).collect();
    let ended = repeats(&plan, &mut columns);
    let interrupted = ended == Err(Error::Interrupted);
    if !interrupted {
        ended?;
    }
    let warnings = warning::warnings(&plan, &columns);
    if !interrupted && plan.equal {
        equality::require(&warning::differences(&columns))?;
    }
    warnings.iter().for_each(|w| note!("warning: {w}"));
    let mut text = report::render(&plan, &columns, &harness, &warnings);
    if interrupted {
        text.insert_str(0, "\nINTERRUPTED: this report has the finished part\n");
    }
    let sound = if interrupted { Err(Error::Interrupted) } else { verdict(&columns) };
    Ok(Measurement { plan, columns, harness, warnings, text, sound })
}

/// All runs. An engine that fails takes no more part.
fn repeats(plan: &args::Plan, columns: &mut [Column]) -> Result<()> {
    // Engines alternate within a repeat, so that a change in the machine meets all of them.
    for repeat in 0..plan.repeat {
        for at in engine::turns(columns.len(), repeat) {
            let column = &mut columns[at];
            if column.trouble.is_some() {
                continue;
            }
            note!("run {} of {}: {} {}", repeat + 1, plan.repeat, column.engine, plan.doing());
            match run_once(plan, &column.engine) {
                Ok(outcome) => column.outcomes.push(outcome),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(e @ Error::Usage(_)) => return Err(e.context(&column.engine)),
                Err(e) => {
                    let e = e.context(format!("in {}", plan.root.join(&column.engine).display()));
                    note!("{}: {e}", column.engine);
                    column.trouble = Some(e);
                }
            }
        }
    }
    Ok(())
}

fn verdict(columns: &[Column]) -> Result<()> {
    if let Some(c) = columns.iter().find(|c| matches!(c.trouble, Some(Error::Failed(_)))) {
        return Err(Error::failed(format!("{} failed; see above", c.engine)));
    }
    if columns.iter().all(|c| c.outcomes.is_empty()) {
        return Err(Error::failed("no engine could be measured"));
    }
    match columns.iter().find(|c| c.outcomes.iter().any(|o| o.wrong() > 0)) {
        Some(c) => Err(Error::failed(format!("{} gave wrong answers", c.engine))),
        None => Ok(()),
    }
}

/// One repeat of one engine, in a directory that is new before and gone after, unless the user keeps it.
fn run_once(plan: &args::Plan, engine: &str) -> Result<Outcome> {
    let dir = plan.root.join(engine);
    if plan.base.existing {
        if !dir.is_dir() {
            return Err(Error::usage(format!("--existing: there is no store in {}", dir.display())));
        }
    } else {
        process::fresh_dir(&dir)?;
    }
    let spec =
        Spec { engine: engine.to_owned(), dir: dir.clone(), options: plan.choices.of(engine), ..plan.base.clone() };
    let outcome = if spec.after_load == AfterLoad::ReopenKilled { run_killed(&spec) } else { run_in_child(&spec) };
    if !plan.base.existing && !plan.keep {
        process::remove_dir(&dir)?;
    }
    outcome
}

/// Loads in a process that ends without closing its store, and measures in another one.
fn run_killed(spec: &Spec) -> Result<Outcome> {
    if !engine::keeps_files(&spec.engine) {
        return Err(Error::Unsupported(format!("--after-load reopen-killed: engine {} has no files", spec.engine)));
    }
    let load = run_in_child(&Spec { killed: true, ..spec.clone() })?;
    let mut rest = run_in_child(&Spec { existing: true, ..spec.clone() })?;
    rest.reopen_seconds = Some(rest.open_seconds);
    rest.open_seconds = load.open_seconds;
    rest.phases.splice(0..0, load.phases);
    rest.user_bytes += load.user_bytes;
    rest.written_bytes += load.written_bytes;
    rest.peak_rss = rest.peak_rss.max(load.peak_rss);
    Ok(rest)
}

/// What the harness adds to each operation: a short run of the same loops on the engine that does nothing.
fn harness_cost(plan: &args::Plan) -> Vec<HarnessCost> {
    // As many as are needed for starting up not to count, whatever the run's own size; at most a gigabyte of values.
    let entries = (1 << 30) / (plan.base.value_size + plan.base.key_size).max(1) as u64;
    let entries = entries.clamp(10, 500_000);
    // A range costs as much as many gets. A list of phases has one number of operations for both.
    let ranges = (entries / plan.base.range_size.max(1) as u64).max(10);
    let operations = match plan.base.phases.contains(&phases::Preset::RangeRandom) {
        true => (10 * ranges).min(entries),
        false if plan.base.workload == Workload::Range => ranges,
        false => entries,
    };
    let spec = Spec {
        engine: "null".into(),
        entries,
        operations,
        existing: false,
        after_load: AfterLoad::Nothing,
        drop_cache: false,
        options: plan.choices.of("null"),
        txn: TxnSpec { hot_keys: plan.base.txn.hot_keys.map(|n| n.min(entries)), ..plan.base.txn },
        ..plan.base.clone()
    };
    let Ok(outcome) = run_in_child(&spec) else { return Vec::new() };
    // Processor time, not wall-clock time: the latter would count whatever else this machine does.
    let cost = |p: &Phase| HarnessCost {
        operation: p.title(),
        ns: p.callers_cpu_ns as f64 / p.ops.max(1) as f64,
        latency_ns: p.latency.p50,
    };
    outcome.phases.iter().filter(|p| p.ops > 0).map(cost).collect()
}
