//! The report that people read.

use super::{Measured, Plan, Point, Report, Row};
use crate::lua::point::Limit;
use crate::measure::{Summary, median, show_bytes, show_count, show_ns};
use crate::process::{Machine, describe_machine};
use crate::stats::Estimate;
use std::fmt::Write as _;
use std::path::Path;

impl Report {
    /// The whole of it.
    pub(super) fn render(&self, plan: &Plan) -> String {
        let mut out = String::new();
        let until = match plan.limit {
            Limit::Units(n) => format!("{} units a point", show_count(n as f64)),
            Limit::Seconds(s) => format!("{s} s a point"),
            Limit::Endless => "no end".into(),
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
        let machine = Machine::now();
        let _ = writeln!(
            out,
            "  {}, {} of memory available, load {:.2}, data in {}",
            describe_machine(),
            show_bytes(machine.available),
            machine.load,
            data_dir.display()
        );
    }

    /// Rates of all engines side by side: for each workload and swept value a table of threads.
    fn render_summary(&self, out: &mut String) {
        let engines: Vec<&str> =
            self.columns.iter().filter(|c| !c.opened.is_empty()).map(|c| c.engine.as_str()).collect();
        if engines.len() < 2 {
            return;
        }
        let mut titles: Vec<String> = Vec::new();
        for row in &self.rows {
            let title = table_title(row);
            if titles.contains(&title) {
                continue;
            }
            let _ = write!(out, "\n{title}, wu/s\n  {:<8}", "threads");
            for engine in &engines {
                let _ = write!(out, " {engine:>14}");
            }
            for other in &engines[1..] {
                let _ = write!(out, " {:>26}", format!("{} / {other}", engines[0]));
            }
            out.push('\n');
            let of_table: Vec<&Row> = self.rows.iter().filter(|r| table_title(r) == title).collect();
            let mut threads: Vec<usize> = of_table.iter().map(|r| r.point.threads).collect();
            threads.sort_unstable();
            threads.dedup();
            for count in threads {
                let at =
                    |engine: &str| of_table.iter().find(|r| r.engine == engine && r.point.threads == count).copied();
                let _ = write!(out, "  {count:<8}");
                for engine in &engines {
                    let _ = write!(out, " {:>14}", at(engine).map_or("-".into(), rate_of));
                }
                for other in &engines[1..] {
                    let _ = write!(out, " {:>26}", ratio_of(at(engines[0]), at(other)));
                }
                out.push('\n');
            }
            titles.push(title);
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
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("KEYBENCH_COMMIT"));
    let _ = writeln!(out, "  keybench {version}, commit {commit}, {build}, {arch} {os}");
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
    let rates: Vec<f64> = row.repeats.iter().map(Measured::unit_rate).collect();
    let e = Estimate::of(&rates);
    let _ = writeln!(out, "  [{} .. {}, {} repeats]", show_count(e.low), show_count(e.high), rates.len());
    if let Some(drift) = row.drift() {
        let _ = writeln!(
            out,
            "  not steady: the rate moved by {:+.0} % from the first third of a run to the last",
            drift * 100.0
        );
    }
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

/// Workload and swept value: what one table of the summary is about.
fn table_title(row: &Row) -> String {
    let swept = row.point.swept.as_ref().map_or(String::new(), |(p, v)| format!(", {p} {v}"));
    format!("{}{swept}", row.workload)
}

fn rate_of(row: &Row) -> String {
    if row.repeats.iter().any(|m| m.wrong > 0) {
        return "WRONG".into();
    }
    show_count(median(row.repeats.iter().map(Measured::unit_rate)))
}

/// How many times as fast, with the interval that holds it at 95 %.
fn ratio_of(over: Option<&Row>, under: Option<&Row>) -> String {
    let rates = |r: &Row| r.repeats.iter().map(Measured::unit_rate).collect::<Vec<_>>();
    match (over, under) {
        (Some(a), Some(b)) if a.repeats.iter().chain(&b.repeats).all(|m| m.wrong == 0) => {
            let e = Estimate::ratio(&rates(a), &rates(b));
            format!("{:.2} [{:.2} .. {:.2}]", e.value, e.low, e.high)
        }
        _ => "-".into(),
    }
}
