//! The report that people read.

use crate::engine::memory_note;
use crate::lua::point::{Limit, Measured};
use crate::measure::{plural, show_amplification, show_bytes, show_count, show_ns, show_percent, sig3};
use crate::results::verdict::{ENOUGH, KEPT_UP, Outcome, Unranked, lead, percent, ratio};
use crate::results::{Ending, PointResult, Results};
use crate::settle::cost_table;
use std::fmt::Write as _;

/// The whole of it.
pub fn render(results: &Results) -> String {
    // Writing to a String cannot fail, here and below.
    let mut out = String::new();
    render_conditions(&mut out, results);
    match results.meta.ending {
        Ending::Complete => {}
        Ending::Interrupted => out.push_str("  INTERRUPTED: this report has the finished part\n"),
        Ending::None => out.push_str("  INCOMPLETE: this report has the finished part\n"),
    }
    for e in &results.engines {
        if let Some(trouble) = &e.trouble {
            let what = if e.took_part() { "failed" } else { "was skipped" };
            let _ = writeln!(out, "  {} {what}: {trouble}", e.name);
        }
        if e.took_part() {
            let options: Vec<String> = e.options.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let _ =
                writeln!(out, "  {} {}: {}\n    durability: {}", e.name, e.version, options.join(" "), e.durability);
        }
    }
    for point in &results.points {
        render_point(&mut out, results, point);
    }
    render_answers(&mut out, results);
    render_differences(&mut out, results);
    if let Some(why) = results.small_stores() {
        let _ = writeln!(out, "\nSMALL DATA SET: {why}");
    }
    render_verdict(&mut out, results);
    render_summary(&mut out, results);
    render_resources(&mut out, results);
    render_costs(&mut out, results);
    for note in results.engines.iter().filter(|e| e.took_part()).filter_map(|e| memory_note(&e.name)) {
        let _ = writeln!(out, "{note}");
    }
    for cost in &results.harness {
        let swept = cost.swept.as_ref().map_or(String::new(), |(p, v)| format!(", {p} {v}"));
        let _ = write!(out, "harness: {} ns of overhead for each op of {}{swept}", sig3(cost.ns_per_op), cost.workload);
        if (cost.ns_per_wu - cost.ns_per_op).abs() > cost.ns_per_op * 0.01 {
            let _ = write!(out, " ({} ns a wu)", sig3(cost.ns_per_wu));
        }
        let _ = writeln!(out, " (script included, processor time on the null engine); subtract it");
    }
    out
}

fn render_conditions(out: &mut String, results: &Results) {
    let meta = &results.meta;
    let s = &meta.settings;
    let until = s.limit.unwrap_or(Limit::Endless);
    let _ = writeln!(
        out,
        "\n{} items, {} users, values of {}, {until}, {}, {}",
        show_count(s.items as f64),
        show_count(s.users as f64),
        results.value_sizes(),
        if s.sync { "synced" } else { "not synced" },
        results.medians(),
    );
    if s.warmup > 0.0 {
        let _ = writeln!(out, "  each point after {} s of warming up", s.warmup);
    }
    if let Some(rate) = s.open_loop() {
        let _ = writeln!(out, "  open loop: {rate}; latencies count from when units were due");
    }
    if let Some(m) = &meta.machine {
        let _ = writeln!(
            out,
            "  {}, {} of memory available, load {:.2}, data in {}{}",
            m.description,
            show_bytes(m.available),
            m.load,
            m.data_dir,
            if m.tmpfs { ", which is memory" } else { "" }
        );
        for (name, fact) in &m.facts {
            let _ = writeln!(out, "  {name}: {fact}");
        }
    }
    if s.show_build {
        let build =
            if meta.optimised { "release build" } else { "UNOPTIMISED BUILD: figures are meaningless; use --release" };
        let _ = writeln!(out, "  keybench {}, commit {}, {build}, {}", meta.version, meta.commit, meta.target);
    }
}

/// The table of one point.
fn render_point(out: &mut String, results: &Results, p: &PointResult) {
    let f = &p.figures;
    let rate = show_count(f.wu_per_s.value);
    let _ = write!(out, "\n{}, {} on {}: {rate} wu/s", p.workload, p.point.place(), p.engine);
    if p.touches_differ() {
        let _ = write!(out, ", {} ops/s", show_count(f.ops_per_s.value));
    }
    if let Some(hits) = f.hit_rate {
        let _ = write!(out, ", {} of gets found a value", show_percent(hits));
    }
    let repeats = plural(p.repeats.len(), "repeat");
    // The verdict has no intervals of fewer repeats, so there are none here.
    if p.repeats.len() < ENOUGH {
        let _ = writeln!(out, "  [{repeats}]");
    } else {
        let (low, high) = (show_count(f.wu_per_s.low), show_count(f.wu_per_s.high));
        let _ = writeln!(out, "  [{low} .. {high}, {repeats}]");
    }
    if let Some(share) = results.delivered(p) {
        let _ = match share >= KEPT_UP {
            true => writeln!(out, "  kept up with the rate"),
            false => writeln!(out, "  DID NOT KEEP UP: delivered {} of the rate", percent(share)),
        };
    }
    if let Some(drift) = p.unsteady() {
        let _ = writeln!(
            out,
            "  not steady: the rate moved by {:+.1} % from the first third of a run to the last",
            drift * 100.0
        );
    }
    let _ = writeln!(out, "  {:<7} {:>12} {:>11} {:>11} {:>11} {:>11}", "op", "count", "p50", "p99", "p99.9", "max");
    for op in &f.ops {
        let l = &op.latency;
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
    if let Some(failures) = p.failures() {
        let _ = writeln!(out, "  FAILED: {failures}");
    }
    if f.aborts > 0.0 {
        let _ = writeln!(out, "  {} transactions were aborted because of a conflict", show_count(f.aborts));
    }
    if f.verified > 0 {
        let _ = writeln!(out, "  {} answers checked, {} wrong", show_count(f.verified as f64), f.wrong);
    }
    for example in p.examples().take(5) {
        let _ = writeln!(out, "    {example}");
    }
}

/// What makes the comparison below unequal.
fn render_differences(out: &mut String, results: &Results) {
    if results.differences.is_empty() {
        return;
    }
    out.push_str("\nUNEQUAL SETTINGS: the engines below were not set up alike\n");
    for d in &results.differences {
        let _ = writeln!(out, "  {d}");
    }
}

/// Which engine wins what, by how much, and how sure that is.
fn render_verdict(out: &mut String, results: &Results) {
    let verdicts = results.verdicts();
    let judged = |o: &Outcome<'_>| o.lead().is_some() || matches!(o, Outcome::Tail(_) | Outcome::Overloaded { .. });
    if verdicts.iter().all(|v| !judged(&v.outcome) && v.unranked.is_empty()) {
        return;
    }
    let outcomes: Vec<_> = verdicts.iter().map(|v| &v.outcome).collect();
    out.push_str("\nverdict\n");
    for v in &verdicts {
        let _ = writeln!(out, "  {}: {}", v.place(), v.outcome);
        for (engine, why) in &v.unranked {
            let _ = writeln!(out, "    {engine} is not ranked: {why}");
        }
    }
    if verdicts.len() > 1 {
        let _ = writeln!(out, "  {}", lead(&outcomes, "points"));
        for standing in results.standings() {
            let _ = writeln!(out, "  {}", standing.sentence("points"));
        }
    }
}

/// What verification found outside the points.
fn render_answers(out: &mut String, results: &Results) {
    for e in &results.engines {
        let v = e.answers();
        if v.verified + v.wrong > 0 {
            let checked = show_count(v.verified as f64);
            let _ = writeln!(
                out,
                "\n{}: loading and the closing scan: {checked} answers checked, {} wrong",
                e.name, v.wrong
            );
        }
        for example in v.examples.iter().take(5) {
            let _ = writeln!(out, "    {example}");
        }
    }
}

/// Workload and swept value: what one table of the summary is about.
fn table_title(p: &PointResult) -> String {
    format!("{}{}", p.workload, p.swept().map_or(String::new(), |s| format!(", {s}")))
}

/// Rates of all engines side by side: for each workload and swept value a table of threads.
fn render_summary(out: &mut String, results: &Results) {
    let engines: Vec<&str> = results.measured_engines().map(|e| e.name.as_str()).collect();
    // In an open loop all that keep up have the rate that was asked for.
    if engines.len() < 2 || results.meta.settings.is_open() {
        return;
    }
    let mut titles: Vec<String> = Vec::new();
    for point in &results.points {
        let title = table_title(point);
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
        let of_table: Vec<&PointResult> = results.points.iter().filter(|p| table_title(p) == title).collect();
        let mut threads: Vec<usize> = of_table.iter().map(|p| p.point.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        for count in threads {
            let at = |engine: &str| of_table.iter().find(|p| p.engine == engine && p.point.threads == count).copied();
            let ranked = |engine: &str| at(engine).filter(|p| results.unranked(p).is_none());
            let _ = write!(out, "  {count:<8}");
            for engine in &engines {
                let _ = write!(out, " {:>14}", at(engine).map_or("-".into(), |p| rate_of(results, p)));
            }
            for other in &engines[1..] {
                let _ = write!(out, " {:>26}", ratio_of(ranked(engines[0]), ranked(other)));
            }
            out.push('\n');
        }
        titles.push(title);
    }
}

fn rate_of(results: &Results, p: &PointResult) -> String {
    match results.unranked(p) {
        Some(Unranked::Wrong { .. }) => "WRONG".into(),
        Some(Unranked::Failures(_)) => "FAILED CALLS".into(),
        _ => show_count(p.figures.wu_per_s.value),
    }
}

/// How many times as fast, with the interval that holds it at 95 %, where both are ranked.
fn ratio_of(over: Option<&PointResult>, under: Option<&PointResult>) -> String {
    match (over, under) {
        (Some(a), Some(b)) => {
            let e = ratio(a, b);
            if a.repeats.len().min(b.repeats.len()) < ENOUGH {
                return sig3(e.value);
            }
            format!("{} [{} .. {}]", sig3(e.value), sig3(e.low), sig3(e.high))
        }
        _ => "-".into(),
    }
}

fn render_resources(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "\n{:<10} {:>14} {:>9} {:>11} {:>11} {:>11} {:>10} {:>7} {:>7} {:>7} {:>9} {:>9} {:>7}",
        "resources",
        "seed keys/s",
        "seed",
        "peak RSS",
        "mean RSS",
        "written",
        "db size",
        "w-amp",
        "r-amp",
        "s-amp",
        "cpu/Mops",
        "close",
        "busy"
    );
    for (title, results) in results.by_store() {
        let _ = writeln!(out, "  {title}");
        store_rows(out, &results);
    }
}

/// What the writes of each kind of store cost when the last one was acknowledged, and when they were settled.
fn render_costs(out: &mut String, results: &Results) {
    for (title, results) in results.by_store() {
        let costs: Vec<_> = results.measured_engines().map(|e| (e.name.as_str(), e.costs())).collect();
        if costs.iter().any(|(_, costs)| !costs.is_empty()) {
            let _ = writeln!(out, "\nwrites of {title}, load and points, until compaction was idle");
            cost_table(out, &costs);
        }
    }
}

/// The engines' rows of one kind of store.
fn store_rows(out: &mut String, results: &Results) {
    let show = |amplification: Option<f64>| amplification.map_or("-".into(), show_amplification);
    let or_none = |figure: Option<String>| figure.unwrap_or_else(|| "-".into());
    for e in results.measured_engines() {
        let _ = writeln!(
            out,
            "{:<10} {:>14} {:>9} {:>11} {:>11} {:>11} {:>10} {:>7} {:>7} {:>7} {:>9} {:>9} {:>7}",
            e.name,
            or_none(e.seeding(Measured::touch_rate).map(show_count)),
            or_none(e.seeding(|m| m.seconds * 1e9).map(show_ns)),
            or_none(e.closing(|c| c.peak_rss as f64).map(show_bytes)),
            or_none(results.mean_rss(&e.name).map(show_bytes)),
            or_none(e.closing(|c| c.written_bytes as f64).map(show_bytes)),
            or_none(e.closing(|c| c.disk_bytes as f64).map(show_bytes)),
            show(e.write_amp()),
            show(results.read_amp(&e.name)),
            show(e.space_amp()),
            or_none(results.cpu_per_million(&e.name).map(|s| show_ns(s * 1e9))),
            or_none(e.closing(|c| c.seconds * 1e9).map(show_ns)),
            e.busy(),
        );
    }
}
