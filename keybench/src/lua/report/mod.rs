//! What a run leaves behind: the console's tables, `report.txt`, `points.tsv` and `timeline.tsv`.

mod text;

use super::args::Plan;
use super::point::{Measured, Message, Phase, Point};
use super::sink::{Sink, Table};
use crate::clock::{stamp, unix_now};
use crate::error::{Error, Result};
use crate::measure::median;
use crate::stats::drift;
use std::fmt::Write as _;
use std::path::PathBuf;

/// One point of the grid and its repeats.
struct Row {
    workload: String,
    engine: String,
    point: Point,
    repeats: Vec<Measured>,
    /// How the rate moved within each repeat, where there were readings enough to tell.
    drifts: Vec<f64>,
}

/// Movement of a rate within a run that a reader should know of.
const UNSTEADY: f64 = 0.1;

impl Row {
    /// The median movement of its rate within a run, if it is worth a remark.
    fn drift(&self) -> Option<f64> {
        let drift = median(self.drifts.iter().copied());
        (drift.abs() > UNSTEADY).then_some(drift)
    }
}

/// One engine.
#[derive(Default)]
struct Column {
    engine: String,
    version: String,
    durability: String,
    options: Vec<(String, String)>,
    opened: Vec<f64>,
    seeded: Vec<Measured>,
    closed: Vec<f64>,
    disk_bytes: Vec<f64>,
    written_bytes: Vec<f64>,
    peak_rss: Vec<f64>,
    busy: u64,
    trouble: Option<Error>,
}

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
    points: Outputs,
    timeline: Outputs,
    console: Outputs,
    columns: Vec<Column>,
    rows: Vec<Row>,
    /// Rates read since the last point was done.
    readings: Vec<f64>,
}

const POINTS: &str = "workload\tengine\tthreads\tsweep_param\tsweep_value\trepeat\top\tcount\tp50_ns\tp99_ns\tp999_ns\t\
max_ns\thit_rate\twu_per_s\tops_per_s\n";
const TIMELINE: &str = "workload\tengine\tthreads\tsweep_param\tsweep_value\tphase\telapsed_s\tmetric\tvalue\n";

/// The first five columns of both tables.
fn identity(workload: &str, engine: &str, point: &Point) -> String {
    // Where nothing is swept, the value 1 of nothing: programs that plot these files expect a number.
    let (param, value) =
        point.swept.as_ref().map_or((String::new(), "1".to_owned()), |(p, v)| (p.clone(), v.to_string()));
    format!("{workload}\t{engine}\t{}\t{param}\t{value}", point.threads)
}

impl Report {
    /// Makes the run's directory and its files.
    pub fn create(plan: &Plan, replay: &str) -> Result<Report> {
        let dir = plan.report_dir.join(stamp(unix_now()));
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
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
        let points = outputs(Some("points.tsv"), Table::Points, POINTS)?;
        let timeline = outputs(Some("timeline.tsv"), Table::Timeline, TIMELINE)?;
        let console = outputs(None, Table::Console, "")?;
        let path = dir.join("replay.cnf");
        std::fs::write(&path, replay).map_err(|e| Error::io("write", &path, e))?;
        let columns = plan.engines.iter().map(|e| Column { engine: e.clone(), ..Column::default() }).collect();
        Ok(Report { points, timeline, console, columns, rows: Vec::new(), readings: Vec::new(), dir })
    }

    fn column(&mut self, engine: &str) -> Result<&mut Column> {
        let found = self.columns.iter_mut().find(|c| c.engine == engine);
        found.ok_or_else(|| Error::failed(format!("engine {engine} is not part of this run")))
    }

    /// Why an engine takes no more part, if it does not.
    pub fn trouble(&self, engine: &str) -> Option<&Error> {
        self.columns.iter().find(|c| c.engine == engine).and_then(|c| c.trouble.as_ref())
    }

    /// An engine takes no more part.
    pub fn give_up(&mut self, engine: &str, e: Error) {
        if let Ok(column) = self.column(engine) {
            column.trouble = Some(e);
        }
    }

    /// Takes a child's message in.
    pub fn add(&mut self, workload: &str, engine: &str, repeat: usize, message: Message) -> Result<()> {
        match message {
            Message::Opened { version, durability, options, seconds } => {
                let column = self.column(engine)?;
                (column.version, column.durability, column.options) = (version, durability, options);
                column.opened.push(seconds);
            }
            Message::Seeded(measured) => self.column(engine)?.seeded.push(measured),
            Message::Closed { seconds, disk_bytes, written_bytes, peak_rss, busy } => {
                let column = self.column(engine)?;
                column.closed.push(seconds);
                column.disk_bytes.push(disk_bytes as f64);
                column.written_bytes.push(written_bytes as f64);
                column.peak_rss.push(peak_rss as f64);
                column.busy += busy;
            }
            Message::Sample { phase, point, elapsed, metrics } => {
                let identity = identity(workload, engine, &point);
                let mut lines = String::new();
                for (metric, value) in metrics {
                    if phase == Phase::Run && metric == "wu_per_s" {
                        self.readings.push(value);
                    }
                    // Writing to a String cannot fail.
                    let _ = writeln!(lines, "{identity}\t{}\t{elapsed:.3}\t{metric}\t{value}", phase.name());
                }
                self.timeline.write(&lines).map_err(|e| self.io(e))?;
            }
            Message::Done { point, measured } => self.add_point(workload, engine, repeat, point, measured)?,
            Message::Unavailable(_) | Message::Usage(_) | Message::Failed(_) => {}
        }
        Ok(())
    }

    fn io(&self, e: std::io::Error) -> Error {
        Error::io("write into", &self.dir, e)
    }

    fn add_point(&mut self, workload: &str, engine: &str, repeat: usize, point: Point, m: Measured) -> Result<()> {
        let identity = identity(workload, engine, &point);
        let hit_rate = m.hit_rate().map_or("0.0".into(), |h| format!("{:.3}", h * 100.0));
        let (wu, ops) = (m.unit_rate(), m.touch_rate());
        let mut lines = String::new();
        for op in &m.ops {
            let l = &op.latency;
            // Writing to a String cannot fail.
            let _ = writeln!(
                lines,
                "{identity}\t{repeat}\t{}\t{}\t{:.0}\t{:.0}\t{:.0}\t{:.0}\t{hit_rate}\t{wu:.1}\t{ops:.1}",
                op.name, l.count, l.p50, l.p99, l.p999, l.max
            );
        }
        let written = self.points.write(&lines).and_then(|()| self.points.flush());
        written.map_err(|e| self.io(e))?;
        let same = |r: &Row| {
            r.workload == workload
                && r.engine == engine
                && r.point.threads == point.threads
                && r.point.swept == point.swept
        };
        let at = self.rows.iter().position(same).unwrap_or_else(|| {
            let (workload, engine) = (workload.into(), engine.into());
            self.rows.push(Row { workload, engine, point, repeats: Vec::new(), drifts: Vec::new() });
            self.rows.len() - 1
        });
        let readings = std::mem::take(&mut self.readings);
        self.rows[at].drifts.extend(drift(&readings));
        self.rows[at].repeats.push(m);
        Ok(())
    }

    /// Prints the report, writes it down, and says whether the run was sound.
    pub fn finish(mut self, plan: &Plan) -> Result<()> {
        let text = self.render(plan);
        let shown = self.console.write(&format!("{text}\nreport: {}\n", self.dir.display()));
        shown.and_then(|()| self.console.flush()).map_err(|e| self.io(e))?;
        let path = self.dir.join("report.txt");
        std::fs::write(&path, &text).map_err(|e| Error::io("write", &path, e))?;
        self.timeline.flush().map_err(|e| self.io(e))?;
        if let Some(c) =
            self.columns.iter().find(|c| matches!(c.trouble, Some(Error::Failed(_) | Error::Unsupported(_))))
        {
            return Err(Error::failed(format!("{} failed; see above", c.engine)));
        }
        if self.rows.is_empty() {
            return Err(Error::failed("no engine could be measured"));
        }
        match self.rows.iter().find(|r| r.repeats.iter().any(|m| m.wrong > 0)) {
            Some(r) => Err(Error::failed(format!("{} gave wrong answers", r.engine))),
            None => Ok(()),
        }
    }
}
