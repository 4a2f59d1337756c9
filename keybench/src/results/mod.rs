//! What a run came to: the one form of it that every report is made of.
//!
//! A run fills a [`Results`] while it goes on. The text report, the tables, the page, the figures and `report.json` read
//! it, and none of them measures or keeps anything of its own. `report.json` is this form as it is, so that a reader of the
//! file knows what a reader of the page knows.

use crate::engine;
use crate::error::{Error, Result};
use crate::lua::point::{Answers, Closed, Limit, Measured, Op, Phase, Point};
use crate::lua::script::Swept;
use crate::measure::{Summary, median, plural, show_count};
use crate::settle::{self, Costs};
use crate::stats::Estimate;
use serde::{Deserialize, Serialize};
use std::path::Path;

pub mod conditions;
pub mod equality;
#[cfg(test)]
pub mod tests;
pub mod verdict;

/// The form of `report.json` that this program writes and reads. It changes when what is there changes its meaning; fields
/// that are added don't change it.
pub const FORMAT: u32 = 1;

/// What stands for the operation in the line of a point whose workload calls none, in `points.tsv` and `repeats.tsv`.
pub const NO_OPERATION: &str = "-";

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// What was run, where and how.
    pub meta: Meta,
    /// The engines, in the order of the command line.
    pub engines: Vec<EngineResult>,
    /// The points, in the order in which they were first done.
    pub points: Vec<PointResult>,
    /// What the harness adds to each workload.
    #[serde(default)]
    pub harness: Vec<HarnessCost>,
    /// Effective settings that are not the same for all engines.
    #[serde(default)]
    pub differences: Vec<equality::Difference>,
    /// Readings of engine and machine, in the order of their taking. They are too many for the file: `timeline.tsv` has them.
    #[serde(skip)]
    pub timeline: Vec<Reading>,
}

/// What the harness and a script add to what an engine does: processor time of one thread on an engine that does nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HarnessCost {
    /// The workload.
    pub workload: String,
    /// The swept parameter and its value.
    pub swept: Option<(String, Swept)>,
    /// Nanoseconds for a call of `run`.
    pub ns_per_wu: f64,
    /// Nanoseconds for a key touch.
    pub ns_per_op: f64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// It did not, or it was killed.
    #[default]
    None,
    /// It was stopped on request: what it has is right, but not all that was asked for.
    Interrupted,
    /// It did all that it could.
    Complete,
}

/// What was run, where and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Whether the run came to its end.
    #[serde(default)]
    pub ending: Ending,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// The same in UTC, `YYYYmmdd-HHMMSS`: how the name of its directory begins.
    pub stamp: String,
    /// This program's version.
    pub version: String,
    /// The commit that it was built from.
    pub commit: String,
    /// Whether it was built to be fast.
    pub optimised: bool,
    /// Processor architecture and operating system.
    pub target: String,
    /// The command line.
    pub command: String,
    /// The configuration that runs the same again (`replay.cnf`).
    pub replay: String,
    /// What was asked for.
    pub settings: Settings,
    /// The machine; none if it was not asked for.
    #[serde(default)]
    pub machine: Option<MachineProbe>,
}

/// A median, where there is anything to take it of.
fn median_if_any(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(values))
}

/// What all points of a run share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `ctx.users`.
    pub users: u64,
    /// `ctx.items`.
    pub items: u64,
    /// Bytes of a value.
    pub value_size: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Loading threads.
    pub seed_threads: usize,
    /// Runs of each point that were asked for.
    pub repeat: usize,
    /// When a point ends.
    pub limit: Option<Limit>,
    /// Seconds before a point is measured.
    pub warmup: f64,
    /// Units that are due each second in an open loop; none in a closed one.
    pub rate: Option<f64>,
    /// What shares of are due in the open loops of a sweep over the rate.
    #[serde(default)]
    pub capacities: Vec<Capacity>,
    /// Whether every write was fsynced before it was acknowledged.
    pub sync: bool,
    /// Whether answers were verified.
    pub verify: bool,
    /// Seconds between readings; 0: none.
    pub timeline: f64,
    /// Whether the program's build is recorded.
    pub show_build: bool,
}

impl Settings {
    /// Whether calls were due at moments of their own.
    pub fn is_open(&self) -> bool {
        self.rate.is_some() || !self.capacities.is_empty()
    }

    /// The loop, in words; none if it was a closed one.
    pub fn open_loop(&self) -> Option<String> {
        if let Some(rate) = self.rate {
            return Some(format!("{} units/s are due", show_count(rate)));
        }
        let told: Vec<String> = self.capacities.iter().map(ToString::to_string).collect();
        let shares = "shares of a closed loop's rate are due (load_percent)";
        (!told.is_empty()).then(|| format!("{shares}: {}", told.join("; ")))
    }
}

/// How fast an engine was in a closed loop, of which the open loops of a sweep over the rate are shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// The workload.
    pub workload: String,
    /// Its threads.
    pub threads: usize,
    /// The engine that was measured.
    pub engine: String,
    /// Calls of `run` a second.
    pub wu_per_s: f64,
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let threads = plural(self.threads, "thread");
        write!(f, "{}, {threads}: {} reaches {} wu/s", self.workload, self.engine, show_count(self.wu_per_s))
    }
}

/// The machine as it was when the run began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineProbe {
    /// Processors, memory and kernel in a line.
    pub description: String,
    /// Bytes that were available without swapping.
    pub available: f64,
    /// Load average of the last minute.
    pub load: f64,
    /// Where the stores were.
    pub data_dir: String,
    /// Whether that is memory, so that disk figures are meaningless.
    pub tmpfs: bool,
    /// What else figures depend on, by name: disk, file system, processors, compiler, allocator, memory against data.
    #[serde(default)]
    pub facts: Vec<(String, String)>,
}

/// One engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineResult {
    /// Its name in flags.
    pub name: String,
    /// What it says its version is; empty if it could not be opened.
    pub version: String,
    /// What an acknowledged write survives, in words.
    pub durability: String,
    /// Options in effect.
    pub options: Vec<(String, String)>,
    /// One for each store that it was given.
    pub stores: Vec<Store>,
    /// Why it takes no more part, if it does not.
    pub trouble: Option<Error>,
    /// The workload that it failed in; what it did in others before stands.
    #[serde(default)]
    pub trouble_in: Option<String>,
}

/// A store from its opening to its close, as its process saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// The workload that it was made for.
    pub workload: String,
    /// The swept parameter and its value, if all its points share them.
    pub swept: Option<(String, Swept)>,
    /// The threads of its points, if all have as many.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// Seconds to open it.
    pub open_seconds: f64,
    /// How it was loaded, if it was.
    pub seeded: Option<Measured>,
    /// The scan of all that it held, with which verification ends.
    #[serde(default)]
    pub checked: Answers,
    /// What its writes cost, load and points together, where that was settled.
    #[serde(default)]
    pub costs: Option<Costs>,
    /// What there was to tell when it was closed; none if it never came to that.
    pub closed: Option<Closed>,
}

impl Store {
    /// Whether both are repeats of one store.
    fn alike(&self, other: &Store) -> bool {
        (&self.workload, &self.swept, self.threads) == (&other.workload, &other.swept, other.threads)
    }

    /// Whether a point ran against it, or against a repeat of it.
    fn holds(&self, p: &PointResult) -> bool {
        p.workload == self.workload
            && self.swept.as_ref().is_none_or(|s| p.point.swept.as_ref() == Some(s))
            && self.threads.is_none_or(|t| p.point.threads == t)
    }

    /// `mixed, 8 threads`.
    fn title(&self) -> String {
        let threads = self.threads.map_or(String::new(), |t| format!(", {}", plural(t, "thread")));
        let swept = self.swept.as_ref().map_or(String::new(), |(param, value)| format!(", {param} {value}"));
        format!("{}{threads}{swept}", self.workload)
    }
}

/// One point of the grid on one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointResult {
    /// The workload.
    pub workload: String,
    /// The engine's name.
    pub engine: String,
    /// Threads, batch and swept value.
    #[serde(flatten)]
    pub point: Point,
    /// Each time that it was run.
    pub repeats: Vec<Repeat>,
    /// What the repeats say together.
    pub figures: Figures,
}

/// A point, run once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Which repeat, from 0.
    pub number: usize,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// How the rate moved while it was measured ([`crate::stats::drift`]), where there were readings enough to tell.
    pub drift: Option<f64>,
}

/// What the repeats of a point say together: medians, and intervals where they matter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Calls of `run` a second.
    pub wu_per_s: Estimate,
    /// Key touches a second.
    pub ops_per_s: Estimate,
    /// Share of gets that found a value, if there were any.
    pub hit_rate: Option<f64>,
    /// How the rate moved within a run, where there were readings enough to tell.
    pub drift: Option<f64>,
    /// Transactions that gave way to another, in a run.
    pub aborts: f64,
    /// Answers checked, over all repeats.
    pub verified: u64,
    /// Wrong ones, over all repeats.
    pub wrong: u64,
    /// For each kind of operation the median of each figure, and the failed calls of all repeats.
    pub ops: Vec<Op>,
}

/// Readings of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The workload.
    pub workload: String,
    /// The engine's name.
    pub engine: String,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// What the store was going through.
    pub phase: Phase,
    /// The point; while a store is seeded the first that will run.
    pub point: Point,
    /// Seconds since the phase began.
    pub elapsed: f64,
    /// Names and values: the machine's and the process's, then the engine's own.
    pub metrics: Vec<(String, f64)>,
}

/// Movement of a rate within a run that a reader should know of.
const UNSTEADY: f64 = 0.1;

impl PointResult {
    /// A point that was not run yet.
    pub fn new(workload: &str, engine: &str, point: Point) -> PointResult {
        let (workload, engine) = (workload.to_owned(), engine.to_owned());
        PointResult { workload, engine, point, repeats: Vec::new(), figures: Figures::default() }
    }

    /// Adds a repeat, and brings the figures up to date.
    pub fn push(&mut self, repeat: Repeat) {
        self.repeats.push(repeat);
        self.figures = Figures::of(&self.repeats);
    }

    /// The movement of its rate within a run, if it is worth a remark.
    pub fn unsteady(&self) -> Option<f64> {
        self.figures.drift.filter(|d| d.abs() > UNSTEADY)
    }

    /// What was wrong with the first few wrong answers.
    pub fn examples(&self) -> impl Iterator<Item = &str> {
        self.repeats.iter().flat_map(|r| &r.measured.examples).map(String::as_str)
    }

    /// What the engine failed and the script went on after, over all repeats, if there was any.
    pub fn failures(&self) -> Option<String> {
        let failed = self.figures.ops.iter().filter(|o| o.failed > 0);
        let each: Vec<String> = failed.map(|o| format!("{} {}", show_count(o.failed as f64), o.name)).collect();
        let first = self.repeats.iter().find_map(|r| r.measured.first_failure.as_deref()).unwrap_or_default();
        (!each.is_empty()).then(|| format!("{} failed, and the script went on; the first: {first}", each.join(", ")))
    }

    /// The figures of one kind of operation.
    pub fn op(&self, name: &str) -> Option<&Summary> {
        self.figures.ops.iter().find(|o| o.name == name).map(|o| &o.latency)
    }

    /// The swept value in words: `batch 64`, or nothing.
    pub fn swept(&self) -> Option<String> {
        self.point.swept.as_ref().map(|(param, value)| format!("{param} {value}"))
    }

    /// Calls of `run` a second in each repeat.
    pub fn unit_rates(&self) -> Vec<f64> {
        self.repeats.iter().map(|r| r.measured.unit_rate()).collect()
    }

    /// Whether calls of `run` and key touches differ by enough to tell both.
    pub fn touches_differ(&self) -> bool {
        let (units, touches) = (self.figures.wu_per_s.value, self.figures.ops_per_s.value);
        (units - touches).abs() > touches * 0.005
    }
}

impl Figures {
    /// The highest p99 among its kinds of operation, and the highest p99.9.
    pub fn tail(&self) -> (f64, f64) {
        let highest = |of: fn(&Summary) -> f64| self.ops.iter().map(|o| of(&o.latency)).fold(0.0, f64::max);
        (highest(|l| l.p99), highest(|l| l.p999))
    }

    /// Of a point's repeats.
    pub fn of(repeats: &[Repeat]) -> Figures {
        let each = |f: fn(&Measured) -> f64| repeats.iter().map(|r| f(&r.measured)).collect::<Vec<f64>>();
        let some = |values: Vec<f64>| (!values.is_empty()).then(|| median(values));
        let mut names: Vec<&str> = Vec::new();
        for op in repeats.iter().flat_map(|r| &r.measured.ops) {
            if !names.contains(&op.name.as_str()) {
                names.push(&op.name);
            }
        }
        let op = |name: &str| {
            let all: Vec<&Op> = repeats.iter().flat_map(|r| r.measured.ops.iter().filter(|o| o.name == name)).collect();
            let latency = Summary::of_repeats(&all.iter().map(|o| o.latency).collect::<Vec<_>>());
            Op { name: name.to_owned(), latency, failed: all.iter().map(|o| o.failed).sum() }
        };
        Figures {
            wu_per_s: Estimate::of(&each(Measured::unit_rate)),
            ops_per_s: Estimate::of(&each(Measured::touch_rate)),
            hit_rate: some(repeats.iter().filter_map(|r| r.measured.hit_rate()).collect()),
            drift: some(repeats.iter().filter_map(|r| r.drift).collect()),
            aborts: median(each(|m| m.aborts as f64)),
            verified: repeats.iter().map(|r| r.measured.verified).sum(),
            wrong: repeats.iter().map(|r| r.measured.wrong).sum(),
            ops: names.into_iter().map(op).collect(),
        }
    }
}

impl EngineResult {
    /// Whether it is trouble in this workload that it met.
    pub fn failed_at(&self, workload: &str) -> bool {
        self.trouble.is_some() && self.trouble_in.as_deref().is_none_or(|w| w == workload)
    }

    /// Whether it could be opened at all.
    pub fn took_part(&self) -> bool {
        !self.stores.is_empty()
    }

    /// Median over its stores into which something was loaded, if there are any.
    pub fn seeding(&self, of: impl Fn(&Measured) -> f64) -> Option<f64> {
        median_if_any(self.stores.iter().filter_map(|s| s.seeded.as_ref()).filter(|m| m.touches > 0).map(of))
    }

    /// Median over its stores that were closed, if there are any.
    pub fn closing(&self, of: impl Fn(&Closed) -> f64) -> Option<f64> {
        median_if_any(self.stores.iter().filter_map(|s| s.closed.as_ref()).map(of))
    }

    /// What verification found outside the points: while its stores were loaded, and by their closing scans.
    pub fn answers(&self) -> Answers {
        let mut all = Answers::default();
        for store in &self.stores {
            if let Some(m) = &store.seeded {
                all.merge(Answers { verified: m.verified, wrong: m.wrong, examples: m.examples.clone() });
            }
            all.merge(store.checked.clone());
        }
        all
    }

    /// Bytes written for each byte that it was given: median over its stores.
    pub fn write_amp(&self) -> Option<f64> {
        self.amplification(|c| (c.written_bytes, c.put_bytes))
    }

    /// Bytes on disk for each live byte: median over its stores that were read to learn how many those are.
    pub fn space_amp(&self) -> Option<f64> {
        self.amplification(|c| (c.disk_bytes, c.live_bytes.unwrap_or_default()))
    }

    fn amplification(&self, of: impl Fn(&Closed) -> (u64, u64)) -> Option<f64> {
        let all = self.stores.iter().filter_map(|s| s.closed.as_ref()).map(of);
        let all: Vec<f64> = all.filter(|(a, b)| *a > 0 && *b > 0).map(|(a, b)| a as f64 / b as f64).collect();
        (!all.is_empty()).then(|| median(all))
    }

    /// What the writes to its stores cost, for each that was settled.
    pub fn costs(&self) -> Vec<Costs> {
        self.stores.iter().filter_map(|s| s.costs).collect()
    }

    /// How often it said that it was busy.
    pub fn busy(&self) -> u64 {
        self.stores.iter().filter_map(|s| s.closed.as_ref()).map(|c| c.busy).sum()
    }
}

impl Results {
    /// Bytes of a value: those of the settings, or of what points sweep where that is their size.
    pub fn value_sizes(&self) -> String {
        let size = |p: &PointResult| match &p.point.swept {
            Some((param, Swept::Int(n))) if param.ends_with("bytes") || param.ends_with("size") => *n as u64,
            _ => self.meta.settings.value_size,
        };
        let sizes: Vec<u64> = self.points.iter().map(size).collect();
        let show = |n: u64| crate::measure::show_bytes(n as f64);
        match (sizes.iter().min(), sizes.iter().max()) {
            (Some(least), Some(most)) if least != most => format!("{} to {}", show(*least), show(*most)),
            (Some(one), _) => show(*one),
            _ => show(self.meta.settings.value_size),
        }
    }

    /// Compares the settings of all engines that were opened so far. Returns whether a difference is new.
    pub fn compare_settings(&mut self) -> bool {
        let opened = |e: &'_ EngineResult| e.took_part();
        let engines: Vec<equality::Opened<'_>> = self
            .engines
            .iter()
            .filter(|e| opened(e))
            .map(|e| (e.name.as_str(), e.options.as_slice(), e.durability.as_str()))
            .collect();
        let found = equality::differences(&engines);
        let new = found != self.differences && !found.is_empty();
        self.differences = found;
        new
    }

    /// Engines that could be opened.
    pub fn measured_engines(&self) -> impl Iterator<Item = &EngineResult> {
        self.engines.iter().filter(|e| e.took_part())
    }

    /// An engine by its name.
    pub fn engine(&self, name: &str) -> Option<&EngineResult> {
        self.engines.iter().find(|e| e.name == name)
    }

    /// All repeats of all points of an engine.
    pub fn repeats_of<'a>(&'a self, engine: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.points.iter().filter(move |p| p.engine == engine).flat_map(|p| &p.repeats).map(|r| &r.measured)
    }

    /// Wrong answers of an engine, in its points and outside of them.
    pub fn wrong_answers(&self, engine: &str) -> u64 {
        let outside = self.engine(engine).map_or(0, |e| e.answers().wrong);
        outside + self.repeats_of(engine).map(|m| m.wrong).sum::<u64>()
    }

    /// Seconds of processor time for each million key touches of an engine's points, if it touched any.
    pub fn cpu_per_million(&self, engine: &str) -> Option<f64> {
        let (cpu, touches) = self
            .repeats_of(engine)
            .fold((0.0, 0), |(cpu, touches), m| (cpu + m.usage.cpu_user + m.usage.cpu_sys, touches + m.touches));
        (touches > 0).then(|| cpu * 1e6 / touches as f64)
    }

    /// Bytes that system calls read while an engine's points ran, for each byte of their answers. What is read through a
    /// memory map is in none.
    pub fn read_amp(&self, engine: &str) -> Option<f64> {
        let sums = self.repeats_of(engine).map(|m| (m.usage.read_calls, m.got_bytes));
        let (read, got) = sums.fold((0, 0), |(a, b), (read, got)| (a + read, b + got));
        (got > 0).then(|| read as f64 / got as f64)
    }

    /// The results of each kind of store by itself, with what tells it apart: figures of one workload's stores say nothing of
    /// another's.
    pub fn by_store(&self) -> Vec<(String, Results)> {
        let mut kinds: Vec<&Store> = Vec::new();
        for store in self.engines.iter().flat_map(|e| &e.stores) {
            if !kinds.iter().any(|k| k.alike(store)) {
                kinds.push(store);
            }
        }
        let of_kind = |kind: &Store| {
            let stores = |e: &EngineResult| e.stores.iter().filter(|s| s.alike(kind)).cloned().collect::<Vec<_>>();
            let engines = self.engines.iter().map(|e| EngineResult { stores: stores(e), ..e.clone() });
            let points = self.points.iter().filter(|p| kind.holds(p)).cloned().collect();
            let engines = engines.filter(|e| !e.stores.is_empty()).collect();
            (kind.title(), Results { engines, points, ..Results::default() })
        };
        kinds.into_iter().map(of_kind).collect()
    }

    /// Why foreground figures of writes say little, if what stores were given fits in memtables: one sentence for all kinds of
    /// stores of which that is so.
    pub fn small_stores(&self) -> Option<String> {
        let small = |(title, results): (String, Results)| {
            let files: Vec<_> = results.measured_engines().filter(|e| engine::keeps_files(&e.name)).collect();
            let given = files.iter().filter_map(|e| e.closing(|c| c.put_bytes as f64)).map(|n| n as u64);
            let given = given.filter(|n| *n > 0).max()?;
            let memtable = files.iter().filter_map(|e| equality::memtable(&e.options)).max()?;
            settle::is_small(given, memtable).then_some((title, given, memtable))
        };
        let all: Vec<(String, u64, u64)> = self.by_store().into_iter().filter_map(small).collect();
        let title = match all.as_slice() {
            [] => return None,
            [(only, ..)] => only.clone(),
            [(first, ..), rest @ ..] => format!("{first}, and {}", plural(rest.len(), "more store")),
        };
        let given = || all.iter().map(|(_, given, _)| *given);
        let memtable = all.iter().map(|(_, _, memtable)| *memtable).max()?;
        Some(format!("{title}: {}", settle::fits_in_memory(given().min()?, given().max()?, memtable)))
    }

    /// Median over an engine's points of the mean of its resident bytes, if it has any.
    pub fn mean_rss(&self, engine: &str) -> Option<f64> {
        median_if_any(self.repeats_of(engine).map(|m| m.mean_rss))
    }

    /// Of how many repeats figures are medians, in words: a run that ended early has fewer at some points.
    pub fn medians(&self) -> String {
        let asked = self.meta.settings.repeat;
        let fewest = self.points.iter().map(|p| p.repeats.len()).min().unwrap_or(asked);
        format!("medians of {}{asked}", if fewest < asked { "at most " } else { "" })
    }

    /// Adds a point that was done, to those of its kind if there are any. Returns where it is.
    pub fn add_point(&mut self, workload: &str, engine: &str, point: Point, repeat: Repeat) -> usize {
        let same = |p: &PointResult| p.workload == workload && p.engine == engine && p.point.same_place(&point);
        let at = self.points.iter().position(same).unwrap_or_else(|| {
            self.points.push(PointResult::new(workload, engine, point));
            self.points.len() - 1
        });
        self.points[at].push(repeat);
        at
    }

    /// Writes it to `path`. A reader of that file finds the old one or the new one, and no half of either.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))?;
        text.push('\n');
        let part = path.with_extension("json.part");
        std::fs::write(&part, text).map_err(|e| Error::io("write", &part, e))?;
        std::fs::rename(&part, path).map_err(|e| Error::io("rename", &part, e))
    }

    /// Reads what [`Results::save`] wrote.
    ///
    /// # Errors
    /// A usage error that says what is wrong with the file: it is not there, it is no `report.json`, or its form is
    /// another program's.
    pub fn load(path: &Path) -> Result<Results> {
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::usage(format!("cannot read {}: {e}", path.display())))?;
        Results::parse(&text).map_err(|e| Error::usage(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Results, String> {
        #[derive(Deserialize)]
        struct Versioned {
            format: u32,
        }
        let versioned: Versioned = serde_json::from_str(text).map_err(|e| no_report(&e))?;
        if versioned.format != FORMAT {
            return Err(format!("its format is {}, and this program reads {FORMAT}", versioned.format));
        }
        serde_json::from_str(text).map_err(|e| no_report(&e))
    }
}

/// What is wrong with the text of a report, and what to do.
fn no_report(e: &serde_json::Error) -> String {
    let what = if e.is_data() { "not a report" } else { "damaged" };
    let (line, column, why) = (e.line(), e.column(), e.to_string());
    let why = why.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&why);
    format!(
        "{what} at line {line}, column {column} ({why}); use a copy of it, or run the benchmark again. Without the file, `keybench plot` draws \
         what repeats.tsv or points.tsv beside it have"
    )
}
