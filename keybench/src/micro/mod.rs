//! `keybench micro`: native loops that put, get, seek and scan as fast as an engine lets them, and check every answer.

mod args;
mod csv;
pub mod phases;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod txn;
#[cfg(test)]
mod txn_tests;
mod verify;
mod work;

pub use args::Args;

use crate::child;
use crate::data::Pattern;
use crate::engine::{self, EngineOptions};
use crate::error::{Error, Result};
use crate::machine;
use crate::measure::Summary;
use crate::pin::Pin;
use crate::process::{self, Usage};
use crate::results::equality;
use crate::say::{note, say_part};
use crate::settle::{self, Costs};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use txn::{TxnCounts, TxnSpec};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Puts into an empty store; then a scan checks what is there.
    Write,
    /// Gets of loaded keys.
    Read,
    /// As many puts as gets, interleaved; each get asks for a key that the same thread put before.
    Mixed,
    /// Deletes of loaded keys; then a scan checks what is left.
    Delete,
    /// Seeks to loaded keys.
    Seek,
    /// A seek to a loaded key and the entries that follow it.
    Range,
    /// One pass over all loaded keys in order.
    Iterate,
    /// Gets of many loaded keys in one call.
    Mget,
    /// Transactions of puts into an empty store; then a scan checks what is there.
    TxnWrite,
    /// Transactions that get loaded counters and put each back with one added; then a scan counts.
    TxnRmw,
    /// Transactions of as many gets of loaded entries as puts.
    TxnMixed,
}

impl Workload {
    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Write => "write",
            Workload::Read => "read",
            Workload::Mixed => "mixed",
            Workload::Delete => "delete",
            Workload::Seek => "seek",
            Workload::Range => "range",
            Workload::Iterate => "iterate",
            Workload::Mget => "mget",
            Workload::TxnWrite => "txn-write",
            Workload::TxnRmw => "txn-rmw",
            Workload::TxnMixed => "txn-mixed",
        }
    }

    /// Whether the data set is loaded before, in a phase of its own.
    pub fn loads_first(self) -> bool {
        !matches!(self, Workload::Write | Workload::Mixed | Workload::TxnWrite)
    }

    /// Whether it writes, so that it leaves work behind.
    pub fn writes(self) -> bool {
        matches!(self, Workload::Write | Workload::Mixed | Workload::Delete) || self.is_transactional()
    }

    /// Whether it is made of transactions.
    pub fn is_transactional(self) -> bool {
        matches!(self, Workload::TxnWrite | Workload::TxnRmw | Workload::TxnMixed)
    }
}

/// What is done between loading and measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AfterLoad {
    /// Nothing: what the load left behind in memory and in compaction debt is part of the measurement.
    Nothing,
    /// Memtables are flushed.
    Flush,
    /// Everything is compacted.
    Compact,
    /// The store is closed as it is and opened again: an engine that does not flush when it closes replays its log.
    Reopen,
    /// Memtables are flushed and compaction ends before the store is closed and opened again: there is no log to replay.
    ReopenSettled,
    /// The process is killed without closing the store, and another one opens it: every engine replays its log.
    ReopenKilled,
}

impl AfterLoad {
    /// What a time to reopen is of, if it reopens.
    pub fn reopens(self) -> Option<&'static str> {
        match self {
            AfterLoad::Nothing | AfterLoad::Flush | AfterLoad::Compact => None,
            AfterLoad::Reopen => Some("as it was closed"),
            AfterLoad::ReopenSettled => Some("settled: no log to replay"),
            AfterLoad::ReopenKilled => Some("killed: with a log to replay"),
        }
    }
}

/// One run of one engine, as its child process gets it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Engine's name.
    pub engine: String,
    /// Where its files go.
    pub dir: PathBuf,
    /// What is measured.
    pub workload: Workload,
    /// Order of keys.
    pub pattern: Pattern,
    /// Entries of the data set.
    pub entries: u64,
    /// Operations of the measured phase.
    pub operations: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Fraction of a value's bytes that is random.
    pub value_entropy: f64,
    /// Threads.
    pub threads: usize,
    /// Entries of a batch in the measured phase.
    pub batch: usize,
    /// Entries of a batch while loading.
    pub load_batch: usize,
    /// Entries of a range.
    pub range_size: usize,
    /// Column families of the phases that use them.
    pub families: usize,
    /// What is run instead of the workload, in order.
    pub phases: Vec<phases::Preset>,
    /// Transactions, where the workload is made of them.
    pub txn: TxnSpec,
    /// Where threads run.
    #[serde(default)]
    pub pin: Pin,
    /// Whether a cursor is made anew for each seek and range.
    pub fresh_iterator: bool,
    /// What is done between loading and measuring.
    pub after_load: AfterLoad,
    /// Whether its files are taken from the page cache before what is measured.
    #[serde(default)]
    pub drop_cache: bool,
    /// The store exists and holds the data set.
    pub existing: bool,
    /// Whether the cost of writes is taken again when memtables are flushed and compaction is idle.
    pub settle: bool,
    /// Whether the process ends once the data set is loaded, without closing the store.
    pub killed: bool,
    /// Whether a scan after writes and deletes checks the whole store.
    pub final_check: bool,
    /// Seed of keys, values and choices.
    pub seed: u64,
    /// The engine's options.
    pub options: EngineOptions,
}

impl Spec {
    /// Bytes of keys and values that its data set has.
    pub fn bytes(&self) -> u64 {
        self.entries.saturating_mul((self.key_size + self.value_size) as u64)
    }

    /// Whether what is measured writes.
    pub fn writes(&self) -> bool {
        match self.phases[..] {
            [] => self.workload.writes(),
            _ => self.phases.iter().any(|p| p.writes()),
        }
    }

    /// Whether the cost of writes is taken again when they are settled: where there are files to compact.
    fn settles(&self) -> bool {
        self.settle && engine::keeps_files(&self.engine)
    }
}

/// One operation's part of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// The phase's name, where it is one of [`phases`].
    pub name: String,
    /// `LOAD`, `PUT`, `GET`, ...
    pub operation: String,
    /// Entries of a batch.
    pub batch: usize,
    /// Operations done; a batch counts its entries, a range counts one, an iteration counts keys.
    pub ops: u64,
    /// Wall-clock seconds from the first thread's start to the last one's end.
    pub seconds: f64,
    /// Latency of a call: of an operation, of a batch, or of a transaction with its retries.
    pub latency: Summary,
    /// What the phase cost.
    pub usage: Usage,
    /// Nanoseconds of processor time that the threads calling the engine used, together.
    pub callers_cpu_ns: u64,
    /// Answers checked.
    pub verified: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// Gets that found something, where that is not known beforehand.
    pub found: Option<u64>,
    /// What became of its transactions, where it has any.
    pub txn: Option<TxnCounts>,
    /// What its writes cost, and those of the load before it, where that was waited for.
    #[serde(default)]
    pub costs: Option<Costs>,
}

impl Phase {
    /// What it is told apart by.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.operation).trim_start().to_owned()
    }

    /// Operations a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.ops as f64 / self.seconds } else { 0.0 }
    }

    /// Commits a second.
    pub fn commit_rate(&self) -> f64 {
        let commits = self.txn.map_or(0, |t| t.commits);
        if self.seconds > 0.0 { commits as f64 / self.seconds } else { 0.0 }
    }
}

/// One run of one engine, as its child process reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The engine's version.
    pub version: String,
    /// What its acknowledged writes survive.
    pub durability: String,
    /// Its options.
    pub options: Vec<(String, String)>,
    /// Its phases, in order.
    pub phases: Vec<Phase>,
    /// What was wrong with the first few wrong answers.
    pub examples: Vec<String>,
    /// Answers that the closing scan checked, and those that were wrong.
    pub final_check: (u64, u64),
    /// Committed read-modify-writes that the closing scan did not find.
    pub lost_updates: u64,
    /// Most resident bytes above what the harness itself held before the engine was opened.
    pub peak_rss: u64,
    /// The same after loading or writing.
    pub loaded_rss: u64,
    /// Most virtual bytes.
    pub peak_vms: u64,
    /// Bytes of the store's files after it was closed.
    pub disk_bytes: u64,
    /// Bytes of keys and values that were written.
    pub user_bytes: u64,
    /// Bytes of keys and values that are live at the end.
    pub live_bytes: u64,
    /// Bytes that the process wrote while the store was open.
    pub written_bytes: u64,
    /// Times the engine said it was busy.
    pub busy: u64,
    /// Seconds to open the empty or existing store.
    pub open_seconds: f64,
    /// Seconds to open it again after it was loaded ([`AfterLoad::reopens`]).
    pub reopen_seconds: Option<f64>,
    /// Seconds to close it.
    pub close_seconds: f64,
}

impl Outcome {
    /// For an engine whose answers cannot be right: they are not judged.
    fn forget_answers(&mut self) {
        self.examples.clear();
        self.final_check = (0, 0);
        self.lost_updates = 0;
        self.phases.iter_mut().for_each(|p| (p.verified, p.wrong) = (0, 0));
    }

    /// Answers checked, in all phases and in the closing scan.
    pub fn verified(&self) -> u64 {
        self.phases.iter().map(|p| p.verified).sum::<u64>() + self.final_check.0
    }

    /// Wrong answers, in all phases and in the closing scan.
    pub fn wrong(&self) -> u64 {
        self.phases.iter().map(|p| p.wrong).sum::<u64>() + self.final_check.1
    }

    /// Bytes written for each byte of keys and values given.
    pub fn write_amp(&self) -> f64 {
        ratio(self.written_bytes, self.user_bytes)
    }

    /// Bytes on disk for each live byte.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes, self.live_bytes)
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

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

/// All runs of one engine.
struct Column {
    engine: String,
    outcomes: Vec<Outcome>,
    /// Why it has none, or no more.
    trouble: Option<Error>,
}

/// What the harness itself costs, as seen on the engine that does nothing.
struct HarnessCost {
    operation: String,
    /// Nanoseconds of processor time for each operation.
    ns: f64,
    /// Nanoseconds that a latency is measured too long: its median there.
    latency_ns: f64,
}

/// What a reader must know before the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The engines do not share a setting.
    Differs(equality::Difference),
    /// Data sets of `least` to `most` bytes that fit into memtables of `memtable` bytes.
    Small { least: u64, most: u64, memtable: u64 },
}

impl Warning {
    /// The warning that says what this one and another say, if one sentence can.
    pub fn with(&self, other: &Warning) -> Option<Warning> {
        match (self, other) {
            (
                Warning::Small { least, most, memtable },
                Warning::Small { least: low, most: high, memtable: another },
            ) if memtable == another => {
                Some(Warning::Small { least: *least.min(low), most: *most.max(high), memtable: *memtable })
            }
            _ => (self == other).then(|| self.clone()),
        }
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::Differs(difference) => difference.fmt(f),
            Warning::Small { least, most, memtable } => f.write_str(&settle::fits_in_memory(*least, *most, *memtable)),
        }
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
    let warnings = warnings(&plan, &columns);
    if !interrupted && plan.equal {
        equality::require(&differences(&columns))?;
    }
    warnings.iter().for_each(|w| note!("warning: {w}"));
    let mut text = report::render(&plan, &columns, &harness, &warnings);
    if interrupted {
        text.insert_str(0, "\nINTERRUPTED: this report has the finished part\n");
    }
    let sound = if interrupted { Err(Error::Interrupted) } else { verdict(&columns) };
    Ok(Measurement { plan, columns, harness, warnings, text, sound })
}

/// Settings that the engines do not share.
fn differences(columns: &[Column]) -> Vec<equality::Difference> {
    let opened = columns.iter().filter_map(|c| c.outcomes.first().map(|o| (c, o)));
    let opened: Vec<equality::Opened<'_>> =
        opened.map(|(c, o)| (c.engine.as_str(), o.options.as_slice(), o.durability.as_str())).collect();
    equality::differences(&opened)
}

/// What a reader must know before the figures.
fn warnings(plan: &args::Plan, columns: &[Column]) -> Vec<Warning> {
    let mut out: Vec<Warning> = differences(columns).into_iter().map(Warning::Differs).collect();
    if plan.base.writes() {
        let files = columns.iter().filter(|c| engine::keeps_files(&c.engine));
        let memtables = files.filter_map(|c| c.outcomes.first()).filter_map(|o| equality::memtable(&o.options));
        let bytes = plan.base.bytes();
        let small = memtables.max().filter(|memtable| settle::is_small(bytes, *memtable));
        out.extend(small.map(|memtable| Warning::Small { least: bytes, most: bytes, memtable }));
    }
    out
}

/// All runs. An engine that fails takes no more part.
fn repeats(plan: &args::Plan, columns: &mut [Column]) -> Result<()> {
    // Engines alternate within a repeat, so that a change in the machine meets all of them.
    for repeat in 0..plan.repeat {
        for column in columns.iter_mut().filter(|c| c.trouble.is_none()) {
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
