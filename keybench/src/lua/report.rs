//! What a run leaves behind: the console's tables, `report.txt`, `points.tsv` and `timeline.tsv`.

use super::args::Plan;
use super::point::{Limit, Measured, Message, Point};
use super::sink::{Sink, Table};
use crate::error::{Error, Result};
use crate::measure::{Summary, median, show_bytes, show_count, show_ns};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// One point of the grid and its repeats.
struct Row {
    workload: String,
    engine: String,
    point: Point,
    repeats: Vec<Measured>,
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
    pub fn create(plan: &Plan) -> Result<Report> {
        let stamp = stamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()));
        let dir = plan.report_dir.join(stamp);
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
        let replay = dir.join("replay.cnf");
        std::fs::write(&replay, &plan.replay).map_err(|e| Error::io("write", &replay, e))?;
        let columns = plan.engines.iter().map(|e| Column { engine: e.clone(), ..Column::default() }).collect();
        Ok(Report { points, timeline, console, columns, rows: Vec::new(), dir })
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
            Message::Sample { seeding, point, elapsed, metrics } => {
                let identity = identity(workload, engine, &point);
                let phase = if seeding { "seed" } else { "run" };
                let mut lines = String::new();
                for (metric, value) in metrics {
                    // Writing to a String cannot fail.
                    let _ = writeln!(lines, "{identity}\t{phase}\t{elapsed:.3}\t{metric}\t{value}");
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
        let same = |r: &&mut Row| {
            r.workload == workload
                && r.engine == engine
                && r.point.threads == point.threads
                && r.point.swept == point.swept
        };
        match self.rows.iter_mut().find(same) {
            Some(row) => row.repeats.push(m),
            None => self.rows.push(Row { workload: workload.into(), engine: engine.into(), point, repeats: vec![m] }),
        }
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

    fn render(&self, plan: &Plan) -> String {
        let mut out = String::new();
        let until = match plan.limit {
            Limit::Units(n) => format!("{} units a point", show_count(n as f64)),
            Limit::Seconds(s) => format!("{s} s a point"),
        };
        let _ = writeln!(
            out,
            "\n{} items, {} users, values of {} B, {until}, {}, medians of {}",
            show_count(plan.context.items as f64),
            show_count(plan.context.users as f64),
            plan.context.value_size,
            if plan.choices.sync() { "synced" } else { "not synced" },
            plan.repeat,
        );
        if plan.warmup > 0.0 {
            let _ = writeln!(out, "  each point after {} s of warming up", plan.warmup);
        }
        if let Some(rate) = plan.rate {
            let _ =
                writeln!(out, "  open loop: {} units/s are due, latencies count from when they were", show_count(rate));
        }
        if plan.probe.system {
            self.render_system(&mut out, &plan.data_dir);
        }
        if plan.probe.build {
            render_build(&mut out);
        }
        for c in &self.columns {
            if let Some(e) = &c.trouble {
                let _ = writeln!(out, "  {} was skipped: {e}", c.engine);
            }
            if c.opened.is_empty() {
                continue;
            }
            let options: Vec<String> = c.options.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let _ =
                writeln!(out, "  {} {}: {}\n    durability: {}", c.engine, c.version, options.join(" "), c.durability);
        }
        for row in &self.rows {
            render_point(&mut out, row);
        }
        self.render_summary(&mut out);
        self.render_resources(&mut out);
        out
    }

    fn render_system(&self, out: &mut String, data_dir: &Path) {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu
            .lines()
            .find_map(|l| l.strip_prefix("model name"))
            .map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let memory = crate::process::Machine::now().available;
        let _ = writeln!(
            out,
            "  {cores} x {model}, {} of memory available, load {:.2}, Linux {}, data in {}",
            show_bytes(memory),
            crate::process::Machine::now().load,
            kernel.trim(),
            data_dir.display()
        );
    }

    /// Rates of all engines side by side.
    fn render_summary(&self, out: &mut String) {
        let engines: Vec<&str> =
            self.columns.iter().filter(|c| !c.opened.is_empty()).map(|c| c.engine.as_str()).collect();
        if engines.len() < 2 {
            return;
        }
        let _ = write!(out, "\n{:<28}", "wu/s");
        for engine in &engines {
            let _ = write!(out, " {engine:>20}");
        }
        out.push('\n');
        let mut seen: Vec<(String, Point)> = Vec::new();
        for row in &self.rows {
            let title = point_title(&row.workload, &row.point);
            if seen.iter().any(|(t, _)| *t == title) {
                continue;
            }
            let _ = write!(out, "{title:<28}");
            let mut base = None;
            for engine in &engines {
                let same = |r: &&Row| r.engine == *engine && point_title(&r.workload, &r.point) == title;
                let Some(r) = self.rows.iter().find(same) else {
                    let _ = write!(out, " {:>20}", "-");
                    continue;
                };
                let rate = median(r.repeats.iter().map(Measured::unit_rate));
                let wrong = r.repeats.iter().any(|m| m.wrong > 0);
                let base = *base.get_or_insert(rate);
                let shown = if wrong { "WRONG".into() } else { format!("{} {:>6.2}x", show_count(rate), rate / base) };
                let _ = write!(out, " {shown:>20}");
            }
            out.push('\n');
            seen.push((title, row.point.clone()));
        }
    }

    fn render_resources(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n{:<10} {:>14} {:>9} {:>11} {:>11} {:>11} {:>10} {:>9} {:>9} {:>7}",
            "resources",
            "seed keys/s",
            "seed",
            "peak RSS",
            "mean RSS",
            "written",
            "db size",
            "cpu/Mops",
            "close",
            "busy"
        );
        for c in self.columns.iter().filter(|c| !c.opened.is_empty()) {
            let rows = self.rows.iter().filter(|r| r.engine == c.engine).flat_map(|r| &r.repeats);
            let (mut cpu, mut touches, mut rss) = (0.0, 0, Vec::new());
            for m in rows {
                cpu += m.usage.cpu_user + m.usage.cpu_sys;
                touches += m.touches;
                rss.push(m.mean_rss);
            }
            let _ = writeln!(
                out,
                "{:<10} {:>14} {:>8.2}s {:>11} {:>11} {:>11} {:>10} {:>8.2}s {:>8.2}s {:>7}",
                c.engine,
                show_count(median(c.seeded.iter().map(Measured::touch_rate))),
                median(c.seeded.iter().map(|m| m.seconds)),
                show_bytes(median(c.peak_rss.iter().copied())),
                show_bytes(median(rss)),
                show_bytes(median(c.written_bytes.iter().copied())),
                show_bytes(median(c.disk_bytes.iter().copied())),
                cpu * 1e6 / touches.max(1) as f64,
                median(c.closed.iter().copied()),
                c.busy,
            );
        }
    }
}

fn render_build(out: &mut String) {
    let build =
        if cfg!(debug_assertions) { "UNOPTIMISED BUILD: figures mean nothing; use --release" } else { "release build" };
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    let _ = writeln!(out, "  keybench {}, {build}, {arch} {os}", env!("CARGO_PKG_VERSION"));
}

fn point_title(workload: &str, point: &Point) -> String {
    let swept = point.swept.as_ref().map_or(String::new(), |(p, v)| format!(", {p} {v}"));
    format!("{workload}, {} threads{swept}", point.threads)
}

/// The table of one point.
fn render_point(out: &mut String, row: &Row) {
    let of = |f: fn(&Measured) -> f64| median(row.repeats.iter().map(f));
    let (units, touches) = (of(Measured::unit_rate), of(Measured::touch_rate));
    let _ = write!(out, "\n{} on {}: {} wu/s", point_title(&row.workload, &row.point), row.engine, show_count(units));
    if (units - touches).abs() > touches * 0.005 {
        let _ = write!(out, ", {} ops/s", show_count(touches));
    }
    let hits: Vec<f64> = row.repeats.iter().filter_map(Measured::hit_rate).collect();
    if !hits.is_empty() {
        let _ = write!(out, ", {:.1} % of gets found a value", median(hits) * 100.0);
    }
    let rates: Vec<String> = row.repeats.iter().map(|m| show_count(m.unit_rate())).collect();
    let _ = writeln!(out, "  (repeats: {})", rates.join(" "));
    let _ = writeln!(out, "  {:<7} {:>12} {:>11} {:>11} {:>11} {:>11}", "op", "count", "p50", "p99", "p99.9", "max");
    let Some(first) = row.repeats.first() else { return };
    for op in &first.ops {
        let all = row.repeats.iter().flat_map(|m| m.ops.iter().filter(|o| o.name == op.name));
        let l = Summary::median_of(&all.map(|o| o.latency).collect::<Vec<_>>());
        let _ = writeln!(
            out,
            "  {:<7} {:>12} {:>11} {:>11} {:>11} {:>11}",
            op.name,
            show_count(l.count as f64),
            show_ns(l.p50),
            show_ns(l.p99),
            show_ns(l.p999),
            show_ns(l.max)
        );
    }
    let aborts = median(row.repeats.iter().map(|m| m.aborts as f64));
    if aborts > 0.0 {
        let _ = writeln!(out, "  {} transactions gave way to another", show_count(aborts));
    }
    let (verified, wrong) = row.repeats.iter().fold((0, 0), |(v, w), m| (v + m.verified, w + m.wrong));
    if verified > 0 {
        let _ = writeln!(out, "  {} answers checked, {wrong} wrong", show_count(verified as f64));
    }
    for example in row.repeats.iter().flat_map(|m| &m.examples).take(5) {
        let _ = writeln!(out, "    {example}");
    }
}

/// `YYYYmmdd-HHMMSS` in UTC (days to civil date after Howard Hinnant, "chrono-compatible low-level date algorithms").
fn stamp(unix: u64) -> String {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(1_780_963_734), "20260609-000854");
        assert_eq!(stamp(1_735_689_599), "20241231-235959");
    }
}
