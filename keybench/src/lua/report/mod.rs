//! What a run leaves behind: the console's tables, `report.txt`, `report.html`, `report.json`, `points.tsv`,
//! `repeats.tsv` and `timeline.tsv`.

mod again;
mod html;
mod text;

pub use again::again;

use super::args::{Group, Plan};
use super::point::{Measured, Message, Op, Phase, Point};
use super::sink::{Sink, Table};
use crate::clock::{stamp, unix_now};
use crate::error::{Error, Result};
use crate::figure;
use crate::machine;
use crate::measure::exact;
use crate::process::{self, Machine, describe_machine};
use crate::results::equality;
use crate::results::{
    Ending, EngineResult, FORMAT, HarnessCost, MachineProbe, Meta, NO_OPERATION, Reading, Repeat, Results, Settings,
    Store,
};
use crate::say::note;
use crate::stats::drift;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The places that one table goes to.
struct Outputs(Vec<Box<dyn std::io::Write>>);

impl Outputs {
    fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.0.iter_mut().try_for_each(|out| out.write_all(text.as_bytes()))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.iter_mut().try_for_each(|out| out.flush())
    }
}

/// A report that grows while the run goes on.
pub struct Report {
    dir: PathBuf,
    repeats: Outputs,
    timeline: Outputs,
    console: Outputs,
    results: Results,
    /// Whether figures are drawn in the end.
    auto_plot: bool,
    /// Whether engines with different settings are an error.
    equal: bool,
    /// Seconds and rates of the store that is open, read since it was opened or its last point was done.
    readings: Vec<(f64, f64)>,
}

const REPEATS: &str = "workload\tengine\tthreads\tsweep_param\tsweep_value\trepeat\top\tcount\tp50_ns\tp99_ns\tp999_ns\t\
max_ns\thit_rate\twu_per_s\tops_per_s\tverified\twrong\tfailed\n";
const TIMELINE: &str = "workload\tengine\tthreads\tsweep_param\tsweep_value\tphase\telapsed_s\tmetric\tvalue\n";

/// The first five columns of both tables.
fn identity(workload: &str, engine: &str, point: &Point) -> String {
    // Where nothing is swept, the value 1 of nothing: programs that plot these files expect a number.
    let (param, value) =
        point.swept.as_ref().map_or((String::new(), "1".to_owned()), |(p, v)| (p.clone(), v.to_string()));
    format!("{workload}\t{engine}\t{}\t{param}\t{value}", point.threads)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("0.0".into(), |s| format!("{:.3}", s * 100.0))
}

/// What the lines of a point share behind the latencies.
struct Shared {
    hit_rate: Option<f64>,
    wu_per_s: f64,
    ops_per_s: f64,
    verified: u64,
    wrong: u64,
}

/// The lines of a point, one for each kind of operation. A workload that calls none has a rate all the same: its one line
/// is of no operation.
fn lines_of(identity: &str, ops: &[Op], shared: &Shared) -> String {
    let none = [Op { name: NO_OPERATION.into(), ..Op::default() }];
    let (hit_rate, wu, ops_per_s) = (percent(shared.hit_rate), exact(shared.wu_per_s), exact(shared.ops_per_s));
    let mut text = String::new();
    for op in if ops.is_empty() { &none[..] } else { ops } {
        let l = &op.latency;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{identity}\t{}\t{}\t{:.0}\t{:.0}\t{:.0}\t{:.0}\t{hit_rate}\t{wu}\t{ops_per_s}\t{}\t{}\t{}",
            op.name, l.count, l.p50, l.p99, l.p999, l.max, shared.verified, shared.wrong, op.failed
        );
    }
    text
}

/// The lines of all points, with the medians of their repeats: what the original keybench writes, whose programs take each
/// line for a point. Behind its columns come those of answers that were checked and of calls that failed, of all repeats.
fn medians(results: &Results) -> String {
    let lines = results.points.iter().map(|p| {
        let f = &p.figures;
        let (wu_per_s, ops_per_s) = (f.wu_per_s.value, f.ops_per_s.value);
        let shared = Shared { hit_rate: f.hit_rate, wu_per_s, ops_per_s, verified: f.verified, wrong: f.wrong };
        lines_of(&identity(&p.workload, &p.engine, &p.point), &f.ops, &shared)
    });
    REPEATS.replace("repeat\t", "") + &lines.collect::<String>()
}

/// What is known of a run before it begins.
fn meta(plan: &Plan, replay: &str) -> Meta {
    let started = unix_now();
    let machine = plan.probe.system.then(|| {
        let now = Machine::now();
        let facts = machine::facts(&plan.data_dir).into_iter().map(|(name, fact)| (name.to_owned(), fact));
        let mut facts: Vec<(String, String)> = facts.collect();
        let largest = plan.groups.iter().map(|g| g.bytes(&plan.context)).max().unwrap_or(0);
        facts.extend(machine::against_memory(largest).map(|told| ("data set".to_owned(), told)));
        MachineProbe {
            facts,
            description: describe_machine(),
            available: now.available,
            load: now.load,
            data_dir: plan.data_dir.display().to_string(),
            tmpfs: process::is_tmpfs(&plan.data_dir),
        }
    });
    Meta {
        ending: Ending::None,
        started,
        stamp: stamp(started),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("KEYBENCH_COMMIT").into(),
        optimised: !cfg!(debug_assertions),
        target: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
        command: format!("keybench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        replay: replay.to_owned(),
        settings: Settings {
            users: plan.context.users,
            items: plan.context.items,
            value_size: plan.context.value_size,
            seed: plan.context.seed,
            seed_threads: plan.seed_threads,
            repeat: plan.repeat,
            limit: Some(plan.limit),
            warmup: plan.warmup,
            rate: plan.rate,
            capacities: plan.capacities.clone(),
            sync: plan.choices.sync(),
            verify: plan.verify,
            timeline: plan.timeline,
            show_build: plan.probe.build,
        },
        machine,
    }
}

/// Makes a directory of this name, or of this name and a number: another run may have begun in the same second.
fn new_dir(parent: &Path, name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    let mut dir = parent.join(name);
    let mut number = 1;
    loop {
        match std::fs::create_dir(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                number += 1;
                dir = parent.join(format!("{name}-{number}"));
            }
            done => return done.map(|()| dir.clone()).map_err(|e| Error::io("create", &dir, e)),
        }
    }
}

impl Report {
    /// Makes the run's directory and its files.
    pub fn create(plan: &Plan, replay: &str) -> Result<Report> {
        let meta = meta(plan, replay);
        let dir = new_dir(&plan.report_dir, &meta.stamp)?;
        let outputs = |own: Option<&str>, table: Table, header: &str| -> Result<Outputs> {
            let mut all = Vec::new();
            if let Some(name) = own {
                all.push(Sink { table, path: Some(dir.join(name)) }.open()?);
            }
            for sink in plan.sinks.iter().filter(|s| s.table == table) {
                all.push(sink.open()?);
            }
            let mut all = Outputs(all);
            all.write(header).map_err(|e| Error::io("write", &dir, e))?;
            Ok(all)
        };
        let repeats = outputs(Some("repeats.tsv"), Table::Points, REPEATS)?;
        let timeline = outputs(Some("timeline.tsv"), Table::Timeline, TIMELINE)?;
        let console = outputs(None, Table::Console, "")?;
        let path = dir.join("replay.cnf");
        std::fs::write(&path, replay).map_err(|e| Error::io("write", &path, e))?;
        let engines =
            plan.engines.iter().map(|e| EngineResult { name: e.clone(), ..EngineResult::default() }).collect();
        let results = Results { format: FORMAT, meta, engines, ..Results::default() };
        Ok(Report {
            repeats,
            timeline,
            console,
            results,
            auto_plot: plan.auto_plot,
            equal: plan.equal,
            readings: Vec::new(),
            dir,
        })
    }

    fn engine(&mut self, name: &str) -> Result<&mut EngineResult> {
        let found = self.results.engines.iter_mut().find(|e| e.name == name);
        found.ok_or_else(|| Error::failed(format!("engine {name} is not part of this run")))
    }

    /// The store that an engine has now.
    fn store(&mut self, engine: &str) -> Result<&mut Store> {
        let store = self.engine(engine)?.stores.last_mut();
        store.ok_or_else(|| Error::failed(format!("engine {engine} reported a store before it opened one")))
    }

    /// Takes in what the harness itself costs.
    pub fn set_harness(&mut self, costs: Vec<HarnessCost>) {
        self.results.harness = costs;
    }

    /// Takes in the settings that differ between engines.
    pub fn set_differences(&mut self, differences: Vec<equality::Difference>) {
        self.results.differences = differences;
    }

    /// Why an engine takes no more part, if it does not.
    pub fn trouble(&self, engine: &str) -> Option<&Error> {
        self.results.engine(engine).and_then(|e| e.trouble.as_ref())
    }

    /// An engine takes no more part, because of what happened in a workload.
    pub fn give_up(&mut self, engine: &str, workload: &str, e: Error) {
        if let Ok(engine) = self.engine(engine) {
            (engine.trouble, engine.trouble_in) = (Some(e), Some(workload.to_owned()));
        }
    }

    /// Takes a child's message in.
    pub fn add(&mut self, group: &Group, engine: &str, repeat: usize, message: Message) -> Result<()> {
        match message {
            Message::Opened { version, durability, options, seconds } => {
                let store = Store {
                    workload: group.workload.clone(),
                    swept: group.swept().cloned(),
                    threads: group.threads(),
                    repeat,
                    open_seconds: seconds,
                    ..Store::default()
                };
                // Those of a store before whose point was never done belong to no other.
                self.readings.clear();
                let engine = self.engine(engine)?;
                (engine.version, engine.durability) = (version, durability);
                engine.options = equality::in_force(options);
                engine.stores.push(store);
                self.compare_settings()?;
            }
            Message::Seeded(measured) => self.store(engine)?.seeded = Some(measured),
            Message::Settled(costs) => self.store(engine)?.costs = Some(costs),
            Message::Checked(verdicts) => self.store(engine)?.checked = verdicts,
            Message::Closed(closed) => self.store(engine)?.closed = Some(closed),
            Message::Sample { phase, point, elapsed, metrics } => {
                let (workload, engine) = (group.workload.clone(), engine.to_owned());
                self.add_reading(Reading { workload, engine, repeat, phase, point, elapsed, metrics })?;
            }
            Message::Done { point, measured } => self.add_point(&group.workload, engine, repeat, point, measured)?,
            Message::Unavailable(_) | Message::Usage(_) | Message::Failed(_) => {}
        }
        Ok(())
    }

    /// Warns of settings that differ between engines, or refuses them where equal ones were asked for.
    fn compare_settings(&mut self) -> Result<()> {
        if self.results.compare_settings() {
            if self.equal {
                return equality::require(&self.results.differences);
            }
            self.results.differences.iter().for_each(|d| note!("warning: {d}"));
        }
        Ok(())
    }

    fn io(&self, e: std::io::Error) -> Error {
        Error::io("write into", &self.dir, e)
    }

    fn add_reading(&mut self, reading: Reading) -> Result<()> {
        let Reading { phase, elapsed, .. } = reading;
        let identity = identity(&reading.workload, &reading.engine, &reading.point);
        let mut lines = String::new();
        for (metric, value) in &reading.metrics {
            if phase == Phase::Run && metric == "wu_per_s" {
                self.readings.push((elapsed, *value));
            }
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{identity}\t{}\t{elapsed:.3}\t{metric}\t{value}", phase.name());
        }
        self.results.timeline.push(reading);
        self.timeline.write(&lines).map_err(|e| self.io(e))
    }

    fn add_point(&mut self, workload: &str, engine: &str, number: usize, point: Point, m: Measured) -> Result<()> {
        let identity = format!("{}\t{number}", identity(workload, engine, &point));
        let (wu_per_s, ops_per_s) = (m.unit_rate(), m.touch_rate());
        let shared = Shared { hit_rate: m.hit_rate(), wu_per_s, ops_per_s, verified: m.verified, wrong: m.wrong };
        let lines = lines_of(&identity, &m.ops, &shared);
        let written = self.repeats.write(&lines).and_then(|()| self.repeats.flush());
        written.map_err(|e| self.io(e))?;
        let drift = drift(&std::mem::take(&mut self.readings));
        self.results.add_point(workload, engine, point, Repeat { number, measured: m, drift });
        self.save()
    }

    /// Brings `report.json` up to date, so that whatever ends the run leaves what it has.
    fn save(&self) -> Result<()> {
        self.results.save(&self.dir.join("report.json"))
    }

    /// Writes the report of what was finished when a stop was requested.
    pub fn interrupted(mut self) -> Result<()> {
        self.write(Ending::Interrupted).and(Err(Error::Interrupted))
    }

    /// Writes the report of what was finished before the run had to end for another reason, which is returned.
    pub fn broken_off(mut self, why: Error) -> Result<()> {
        if !self.results.points.is_empty() {
            self.write(Ending::Interrupted)?;
        } else if !self.results.differences.is_empty() {
            self.save()?;
        }
        Err(why)
    }

    /// Prints the report and writes it down.
    fn write(&mut self, ending: Ending) -> Result<()> {
        self.results.meta.ending = ending;
        self.results.small_stores().into_iter().for_each(|why| note!("warning: {why}"));
        let text = text::render(&self.results);
        let shown = self.console.write(&format!("{text}\nreport: {}\n", self.dir.display()));
        shown.and_then(|()| self.console.flush()).map_err(|e| self.io(e))?;
        let path = self.dir.join("report.txt");
        std::fs::write(&path, &text).map_err(|e| Error::io("write", &path, e))?;
        let path = self.dir.join("report.html");
        let figures = figure::of_run(&self.results);
        std::fs::write(&path, html::render(&self.results, &figures)).map_err(|e| Error::io("write", &path, e))?;
        let path = self.dir.join("points.tsv");
        std::fs::write(&path, medians(&self.results)).map_err(|e| Error::io("write", &path, e))?;
        self.timeline.flush().map_err(|e| self.io(e))?;
        self.save()?;
        if self.auto_plot {
            figure::write(&self.dir.join("figures"), &figures)?;
        }
        Ok(())
    }

    /// Prints the report, writes it down, and says whether the run was sound.
    pub fn finish(mut self) -> Result<()> {
        self.write(Ending::Complete)?;
        let failed = |e: &&EngineResult| matches!(e.trouble, Some(Error::Failed(_) | Error::Unsupported(_)));
        if let Some(engine) = self.results.engines.iter().find(failed) {
            return Err(Error::failed(format!("{} failed; see above", engine.name)));
        }
        if self.results.points.is_empty() {
            return Err(Error::failed("no engine could be measured"));
        }
        match self.results.engines.iter().find(|e| self.results.wrong_answers(&e.name) > 0) {
            Some(e) => Err(Error::failed(format!("{} gave wrong answers", e.name))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lua::script::Script;
    use crate::results::tests::{measured, place, run};

    #[test]
    fn a_workload_without_operations_has_its_line() {
        let mut results = run(&[("kingtide", &[100; 3]), ("rocksdb", &[200; 3])]);
        results.points.iter_mut().filter(|p| p.engine == "rocksdb").for_each(|p| p.figures.ops.clear());
        let text = medians(&results);
        let header = text.lines().next().unwrap_or_default();
        assert!(text.lines().all(|l| l.matches('\t').count() == header.matches('\t').count()), "{text}");
        let of = |start: &str| text.lines().filter(|l| l.starts_with(start)).collect::<Vec<_>>();
        assert_eq!(of("mixed\tkingtide\t1\t").len(), 2, "one for each operation");
        let [line] = of("mixed\trocksdb\t1\t")[..] else { panic!("{text}") };
        assert!(line.contains("\t-\t0\t0\t0\t0\t0\t") && line.contains("\t200.0\t"), "{line}");
    }

    #[test]
    fn runs_that_begin_in_one_second_have_a_directory_each() {
        let root = std::env::temp_dir().join(format!("keybench-second-{}", std::process::id()));
        let made: Vec<PathBuf> = (0..3).map(|_| new_dir(&root, "20260101-000000").unwrap()).collect();
        let names: Vec<_> = made.iter().filter_map(|d| d.file_name()?.to_str()).collect();
        assert_eq!(names, ["20260101-000000", "20260101-000000-2", "20260101-000000-3"]);
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// An engine that fails within a point leaves readings that are of no other engine's point.
    #[test]
    fn readings_of_a_point_that_was_never_done_are_not_the_next_ones() {
        let dir = std::env::temp_dir().join(format!("keybench-readings-{}", std::process::id()));
        process::fresh_dir(&dir).unwrap();
        let outputs = || Outputs(Vec::new());
        let mut report = Report {
            dir: dir.clone(),
            repeats: outputs(),
            timeline: outputs(),
            console: outputs(),
            results: run(&[("kingtide", &[]), ("rocksdb", &[])]),
            auto_plot: false,
            equal: false,
            readings: Vec::new(),
        };
        let script = Script { origin: "test".into(), source: String::new() };
        let group = Group { workload: "mixed".into(), script, points: vec![place(1, None)], entries: None };
        let opened =
            || Message::Opened { version: String::new(), durability: String::new(), options: Vec::new(), seconds: 0.0 };
        let sample = |second: u32, rate: f64| Message::Sample {
            phase: Phase::Run,
            point: place(1, None),
            elapsed: f64::from(second),
            metrics: vec![("wu_per_s".into(), rate)],
        };
        report.add(&group, "kingtide", 0, opened()).unwrap();
        (1..9).for_each(|s| report.add(&group, "kingtide", 0, sample(s, 9000.0)).unwrap());
        report.give_up("kingtide", "mixed", Error::failed("disk on fire"));
        report.add(&group, "rocksdb", 0, opened()).unwrap();
        (1..9).for_each(|s| report.add(&group, "rocksdb", 0, sample(s, 100.0)).unwrap());
        report.add(&group, "rocksdb", 0, Message::Done { point: place(1, None), measured: measured(100) }).unwrap();
        let steady = report.results.points.last().unwrap().repeats[0].drift;
        process::remove_dir(&dir).unwrap();
        assert_eq!(steady, Some(0.0));
    }
}
