//! The command line of `keybench run` and the grid it means.

use super::point::{Limit, Point, Spec};
use super::script::{Context, Outline, Recording, Script, Swept};
use super::sink::{Probes, Sink, Table};
use super::worker::{Tracker, Worker};
use crate::clock::Clock;
use crate::engine::{self, EngineOptions};
use crate::error::{Error, Result};
use crate::options::{EngineChoices, EngineFlags, TxnFlags, size, switch, within};
use crate::pin::Pin;
use crate::results::Capacity;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs workloads written in Lua over a grid of engines, threads and swept values.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Lua files, or names of bundled workloads: mixed, cart, scan, batch, valsize, onegig, overwrite, ycsb-a to ycsb-f; a property file of
    /// YCSB; or a trace
    pub workloads: Vec<String>,
    /// Engines, separated by commas: kingtide, kingtide-c (its C API), rocksdb, tidesdb, lmdb, memory; with the
    /// feature peers also fjall, redb and sqlite
    #[arg(long, alias = "engine", alias = "engines", default_value = "kingtide")]
    pub backend: String,
    /// Numbers of worker threads, separated by commas [default: one for each core]
    #[arg(long, value_delimiter = ',', value_parser = threads)]
    pub threads: Vec<usize>,
    /// Pin each worker thread to a processor of its own, or in turn to the processors of a list such as 0-3,6-6
    #[arg(long, value_name = "BOOL|LIST", num_args = 0..=1, require_equals = true, default_value_t = Pin::No, default_missing_value = "true")]
    pub pin: Pin,
    /// Threads that load the data set [default: one for each core]
    #[arg(long, value_parser = threads)]
    pub seed_threads: Option<usize>,
    /// Load one store for each engine and swept value, and run all its points against it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub seed_once: bool,
    /// Values of ctx.batch for batch workloads, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = count)]
    pub batch: Vec<u64>,
    /// Values to sweep instead of the workload's own, separated by commas, with optional suffixes K, M, G and T
    #[arg(long, value_delimiter = ',', value_parser = Swept::parse)]
    pub sweep: Vec<Swept>,
    /// Number of runs of each point; figures are medians
    #[arg(long, default_value_t = 3, value_parser = repeats)]
    pub repeat: usize,
    /// Calls of the workload per point, over all its threads; --secs takes precedence
    #[arg(long, value_parser = count)]
    pub ops: Option<u64>,
    /// Duration of each point in seconds, or as 30m or 2h [default: 5]
    #[arg(long, alias = "duration", value_parser = seconds)]
    pub secs: Option<f64>,
    /// Warm-up time of each point in seconds
    #[arg(long, default_value_t = 0.0, value_parser = seconds_or_none)]
    pub warmup: f64,
    /// Open loop: start this many calls per second in total, on schedule, even if earlier ones have not finished. Latency
    /// counts from the scheduled start. Without it, threads go as fast as they can
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// Measure the first engine's rate in a closed loop, then run every engine in open loops at 25, 50, 75 and 90 % of
    /// that rate, and draw latency over load. Only for workloads without a sweep of their own
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub rate_sweep: bool,
    /// Value of ctx.users
    #[arg(long, default_value_t = 20_000, value_parser = count)]
    pub users: u64,
    /// Value of ctx.items: entries of the data set
    #[arg(long, default_value_t = 100_000, value_parser = count)]
    pub items: u64,
    /// Size of a value in bytes, with an optional suffix K or M
    #[arg(long, default_value = "4K", value_parser = value_size)]
    pub value_size: u64,
    /// Record the operations of the run in this file, for `keybench replay`: of one engine and one point, run once. Figures
    /// include the cost of recording
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Replay a trace at this many times the pace at which it was recorded, in an open loop [default: as fast as possible]
    #[arg(long, value_parser = rate)]
    pub speed: Option<f64>,
    /// Seed of all choices
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Directory in which each run creates a report directory
    #[arg(long, default_value = "bench-data/reports")]
    pub report_dir: PathBuf,
    /// Draw figures into the report directory at the end of the run
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", value_parser = switch)]
    pub auto_plot: bool,
    /// Directory for the stores
    #[arg(long, default_value = "bench-data")]
    pub data_dir: PathBuf,
    /// Put key and version into every value and check every read
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub verify: bool,
    /// When a store's points are done, flush, wait until compaction is idle, and report the total cost of its writes. On by
    /// default where a point writes; with true, also where only loading does
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub settle: Option<bool>,
    /// Seconds between samples of machine and engine statistics while a point runs; 0 for none
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    pub timeline: f64,
    /// Information to include about the machine and the program: all, none, or a list of system and build
    #[arg(long, default_value = "all")]
    pub probe: Probes,
    #[allow(rustdoc::broken_intra_doc_links)] // the text is that of --help
    /// Tables to write in addition to those in the report directory: a list of console, tsv[:FILE], timeline[:FILE]
    /// [default: console]
    #[arg(long, value_delimiter = ',')]
    pub report: Vec<Sink>,
    /// Read flags, workloads and engine options from this file; flags on the command line take precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Fail if the engines' effective settings differ: compression, cache, memtable, durability, filters, threads
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub equal: bool,
    /// HASH:NAME of a workload's script, as in replay.cnf: a different script under that name is refused
    #[arg(long, hide = true, value_name = "HASH:NAME")]
    pub script_hash: Vec<String>,
    /// Run even if there seems to be too little free space for the data set
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub ignore_free_space: bool,
    /// Write the settings of this command line to this file, for --config
    #[arg(long, value_name = "FILE")]
    pub save_config: Option<PathBuf>,
    /// Transactions of kv.begin; required for engines whose store must be opened for transactions
    #[command(flatten)]
    pub txn_flags: TxnFlags,
    /// Options for all engines, and for single engines
    #[command(flatten)]
    pub engine_flags: EngineFlags,
}

fn threads(text: &str) -> Result<usize, String> {
    within(text, 1, 1024)
}

fn repeats(text: &str) -> Result<usize, String> {
    within(text, 1, 1000)
}

/// One at least, with the suffixes of counts.
fn count(text: &str) -> Result<u64, String> {
    crate::measure::parse_count(text.trim()).and_then(|n| within(&n.to_string(), 1, u64::MAX))
}

fn value_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|n| if n <= 1 << 32 { Ok(n) } else { Err("use at most 4G".into()) })
}

/// Seconds, or minutes and hours with an m or an h behind them.
fn seconds(text: &str) -> Result<f64, String> {
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    let found = units.iter().find_map(|(suffix, n)| text.strip_suffix(*suffix).map(|digits| (digits, *n)));
    let (digits, factor) = found.unwrap_or((text, 1.0));
    // Both limits are those of the seconds that come out, so that the message states limits that hold.
    let n: f64 = digits.trim().parse().map_err(|_| format!("'{text}' is not a duration; use 10, 30m or 2h"))?;
    within(&(n * factor).to_string(), 1e-6, 1e7)
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e7)
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, 1e-6, 1e9)
}

/// Seconds between readings; 0: none.
fn interval(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e7)
        .and_then(|s| if s == 0.0 || s >= 0.01 { Ok(s) } else { Err("use 0, or at least 0.01".into()) })
}

/// Points that share one store.
#[derive(Clone, Debug)]
pub struct Group {
    /// The workload's name.
    pub workload: String,
    /// The workload.
    pub script: Script,
    /// Points, in order.
    pub points: Vec<Point>,
    /// Entries that are loaded at most, where that is not `ctx.items`.
    pub entries: Option<u64>,
}

impl Group {
    /// The swept parameter and its value, if all points share them.
    pub fn swept(&self) -> Option<&(String, Swept)> {
        let first = self.points.first()?.swept.as_ref();
        first.filter(|_| self.points.iter().all(|p| p.swept.as_ref() == first))
    }

    /// The threads of its points, if all have as many.
    pub fn threads(&self) -> Option<usize> {
        let first = self.points.first()?.threads;
        self.points.iter().all(|p| p.threads == first).then_some(first)
    }

    /// About how many bytes of keys and values are loaded: entries of the data set, of the size that is swept where it is.
    pub fn bytes(&self, context: &Context) -> u64 {
        const KEY: u64 = 32;
        let sizes = self.points.iter().map(|p| match &p.swept {
            Some((param, Swept::Int(n))) if param.ends_with("bytes") || param.ends_with("size") => *n as u64,
            _ => context.value_size,
        });
        self.entries.unwrap_or(context.items).saturating_mul(sizes.max().unwrap_or(0).saturating_add(KEY))
    }
}

/// A checked command line.
#[derive(Debug)]
pub struct Plan {
    /// Engines in the order of the report.
    pub engines: Vec<String>,
    /// Runs of each point.
    pub repeat: usize,
    /// The grid, without engines.
    pub groups: Vec<Group>,
    /// Directory of the stores.
    pub data_dir: PathBuf,
    /// Directory of the reports.
    pub report_dir: PathBuf,
    /// Whether figures are drawn in the end.
    pub auto_plot: bool,
    /// What all points share.
    pub context: Context,
    /// When a point ends.
    pub limit: Limit,
    /// Seconds before it is measured.
    pub warmup: f64,
    /// Calls due each second in an open loop.
    pub rate: Option<f64>,
    /// Whether every point is to be run at shares of a capacity that is measured first.
    pub rate_sweep: bool,
    /// What was measured for that.
    pub capacities: Vec<Capacity>,
    /// Seconds between readings; 0: none.
    pub timeline: f64,
    /// What is reported about machine and program.
    pub probe: Probes,
    /// Where tables go besides the report directory.
    pub sinks: Vec<Sink>,
    /// Loading threads.
    pub seed_threads: usize,
    /// Where worker threads run.
    pub pin: Pin,
    /// Whether answers are verified.
    pub verify: bool,
    /// Whether what writes cost is taken again when they are settled; none: where points write.
    pub settle: Option<bool>,
    /// Whether engines with different settings are an error.
    pub equal: bool,
    /// Whether it is not checked that the data set fits.
    pub ignore_free_space: bool,
    /// Where operations are recorded.
    pub trace: Option<PathBuf>,
    /// Options of each engine.
    pub choices: EngineChoices,
}

impl Plan {
    /// What a child process gets.
    pub fn spec(&self, group: &Group, engine: &str, dir: &Path) -> Spec {
        Spec {
            script: group.script.clone(),
            workload: group.workload.clone(),
            engine: engine.to_owned(),
            dir: dir.to_owned(),
            options: self.choices.of(engine),
            seed_threads: self.seed_threads,
            points: group.points.clone(),
            context: self.context.clone(),
            limit: self.limit,
            warmup: self.warmup,
            rate: self.rate,
            timeline: self.timeline,
            verify: self.verify,
            settle: self.settle,
            pin: self.pin.clone(),
            trace: self.trace.clone(),
        }
    }
}

/// What a workload says about itself, learned in a state whose `kv` acts on an empty map in memory.
fn outline(script: &Script) -> Result<Outline> {
    let store = engine::registry::open("memory", Path::new(""), &EngineOptions::default())?;
    let shared = Worker::new(store.session()?, Clock::calibrated(), None, Arc::<Tracker>::default());
    Ok(script.load(Some(&shared), 0)?.outline)
}

/// Points of one workload, grouped by the store they run against.
fn groups(
    script: &Script,
    about: &Outline,
    threads: &[usize],
    (batches, sweep): (&[u64], &[Swept]),
    seed_once: bool,
) -> Vec<Group> {
    let swept: Vec<Option<(String, Swept)>> = match &about.sweep {
        // A list on the command line takes the place of the script's own.
        Some((param, _)) if param == "batch" && !batches.is_empty() => {
            batches.iter().map(|b| Some(("batch".to_owned(), Swept::Int(*b as i64)))).collect()
        }
        Some((param, _)) if !sweep.is_empty() => sweep.iter().map(|v| Some((param.clone(), v.clone()))).collect(),
        Some((param, values)) => values.iter().map(|v| Some((param.clone(), v.clone()))).collect(),
        None if about.batched && batches.len() > 1 => {
            batches.iter().map(|b| Some(("batch".to_owned(), Swept::Int(*b as i64)))).collect()
        }
        None => vec![None],
    };
    let point = |threads: usize, swept: &Option<(String, Swept)>| {
        let batch = match swept {
            Some((param, Swept::Int(b))) if param == "batch" => *b as u64,
            _ => batches.first().copied().unwrap_or(1),
        };
        Point { threads, batch, swept: swept.clone(), rate: None }
    };
    let entries = about.entries;
    let group = |points| Group { workload: about.name.clone(), script: script.clone(), points, entries };
    let over_threads = |s: &Option<(String, Swept)>| threads.iter().map(|t| point(*t, s)).collect::<Vec<_>>();
    match (seed_once, about.seed_per_value) {
        (true, false) => vec![group(swept.iter().flat_map(over_threads).collect())],
        (true, true) => swept.iter().map(|s| group(over_threads(s))).collect(),
        (false, _) => swept.iter().flat_map(over_threads).map(|p| group(vec![p])).collect(),
    }
}

/// A workload's name and the points that it sweeps, all with `threads` threads.
pub fn points(script: &Script, threads: usize, batches: &[u64]) -> Result<(String, Vec<Point>)> {
    let about = outline(script)?;
    let groups = groups(script, &about, &[threads], (batches, &[]), false);
    Ok((about.name, groups.into_iter().flat_map(|g| g.points).collect()))
}

impl Args {
    /// Refuses a script whose text is not the one that a configuration was written for.
    fn same_script(&self, name: &str, script: &Script) -> Result<()> {
        let noted = self.script_hash.iter().filter_map(|noted| noted.split_once(':'));
        match noted.filter(|(_, of)| *of == name).find(|(hash, _)| *hash != script.hash()) {
            None => Ok(()),
            Some((hash, _)) => Err(Error::usage(format!(
                "workload '{name}' is not the script that was run: its hash is {}, the configuration notes {hash}; restore the \
                 script, or remove script_hash to run the one that is there",
                script.hash()
            ))),
        }
    }

    /// The trace among the workloads, which is then the only one.
    fn recorded(&self) -> Result<Option<Recording>> {
        let mut recorded = None;
        for name in &self.workloads {
            let script = Script::find(name)?;
            if script.source.contains("kv.replay(") {
                recorded = outline(&script)?.recorded;
            }
        }
        if recorded.is_some() && (self.workloads.len() > 1 || self.rate.is_some() || self.rate_sweep) {
            return Err(Error::usage("a trace is replayed alone, and at its own rate (--speed)"));
        }
        if recorded.is_some() && (self.ops.is_some() || self.secs.is_some()) {
            return Err(Error::usage("a trace is replayed to its end: omit --ops and --secs"));
        }
        if recorded.is_none() && self.speed.is_some() {
            return Err(Error::usage("--speed: there is no trace to replay"));
        }
        Ok(recorded)
    }

    /// Checks everything that can be wrong before an engine is started.
    pub fn plan(&self) -> Result<Plan> {
        let engines = engine::parse_names(&self.backend)?;
        self.pin.check()?;
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let recorded = self.recorded()?;
        let threads = match recorded {
            _ if !self.threads.is_empty() => self.threads.clone(),
            Some(recorded) => vec![recorded.threads],
            None => vec![cores],
        };
        let seed_threads = self.seed_threads.unwrap_or(cores);
        let how = self.txn_flags.given().then(|| self.txn_flags.transactions());
        let choices = self.engine_flags.check(&engines, self.value_size as usize)?.with_transactions(how);
        let (mut all, mut sweeps) = (Vec::new(), false);
        for name in &self.workloads {
            let script = Script::find(name)?;
            self.same_script(name, &script)?;
            let about = outline(&script)?;
            sweeps |= about.sweep.is_some();
            all.extend(groups(&script, &about, &threads, (&self.batch, &self.sweep), self.seed_once));
        }
        if self.rate_sweep && self.rate.is_some() {
            return Err(Error::usage("--rate-sweep measures its own rates; omit --rate or --rate-sweep"));
        }
        if self.rate_sweep && all.iter().any(|g: &Group| g.points.iter().any(|p| p.swept.is_some())) {
            let why = "a workload that sweeps a parameter cannot be swept over its rate too; give one value, or another workload";
            return Err(Error::usage(format!("--rate-sweep: {why}")));
        }
        if !self.sweep.is_empty() && !sweeps {
            return Err(Error::usage("--sweep: none of the workloads sweeps anything"));
        }
        let trace = self.trace.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        if trace.is_some() && (engines.len() > 1 || all.iter().map(|g| g.points.len()).sum::<usize>() != 1) {
            return Err(Error::usage(
                "--trace records one engine, one workload, one thread count and one value at a time",
            ));
        }
        let speed = self.speed.unwrap_or(0.0);
        let rate = match recorded {
            // What is due each second, as in any open loop.
            Some(r) if speed > 0.0 && r.seconds > 0.0 => Some(r.operations as f64 / r.seconds * speed),
            _ => self.rate,
        };
        let limit = match (self.ops, self.secs) {
            (Some(n), None) => Limit::Units(n),
            (None, None) if recorded.is_some() => Limit::Trace(recorded.map_or(0, |r| r.operations)),
            (_, seconds) => Limit::Seconds(seconds.unwrap_or(5.0)),
        };
        if let (Some(rate), Limit::Seconds(seconds)) = (self.rate, &limit)
            && rate * seconds < 1.0
        {
            let why = format!("at --rate {rate} less than one unit is due in a point of {seconds} s");
            return Err(Error::usage(format!("{why}; use a higher rate, or --secs {:.0}", (1.0 / rate).ceil())));
        }
        let context = Context {
            users: self.users,
            items: recorded.map_or(self.items, |r| r.entries),
            seed: self.seed,
            value_size: recorded.map_or(self.value_size, |r| r.value_size),
            speed,
            ..Context::default()
        };
        Ok(Plan {
            engines,
            repeat: if trace.is_some() { 1 } else { self.repeat },
            groups: all,
            data_dir: self.data_dir.clone(),
            report_dir: self.report_dir.clone(),
            auto_plot: self.auto_plot,
            context,
            limit,
            warmup: self.warmup,
            rate,
            rate_sweep: self.rate_sweep,
            capacities: Vec::new(),
            timeline: self.timeline,
            probe: self.probe,
            sinks: if self.report.is_empty() {
                vec![Sink { table: Table::Console, path: None }]
            } else {
                self.report.clone()
            },
            seed_threads,
            pin: self.pin.clone(),
            verify: self.verify,
            settle: self.settle,
            equal: self.equal,
            ignore_free_space: self.ignore_free_space,
            trace,
            choices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn durations_take_suffixes() {
        assert_eq!(
            (seconds("30m"), seconds("2h"), seconds("0.5"), seconds("90s")),
            (Ok(1800.0), Ok(7200.0), Ok(0.5), Ok(90.0))
        );
        assert!(seconds("0m").is_err() && seconds("3d").is_err() && seconds("m").is_err());
        for refused in ["-1", "0.0000001", "1e8", "nan", "9999h"] {
            assert_eq!(seconds(refused).unwrap_err(), "use 0.000001 to 10000000", "{refused}: limits that hold");
        }
    }
}
