//! Figures over time: loading, rates, the machine, and the engines' own figures.

use super::chart::{Body, Chart, Panel};
use super::data::{Course, Run, distinct, exactly};
use super::lines::{Across, Line, Lines, Spot};
use super::run::{baseline, inks, titled};
use super::theme::Ink;
use super::unit::Unit;

/// Most panels of a figure: an engine that has more figures than this shows its first.
const MOST_PANELS: usize = 120;

/// A quantity that is read of machine and process: its name in `timeline.tsv`, its name for people, its unit, what a reading
/// is multiplied by to be in it, and whether it is counted up, so that its growth is what is shown.
struct Reading {
    metric: &'static str,
    title: &'static str,
    unit: Unit,
    factor: f64,
    counts: bool,
}

const fn reading(metric: &'static str, title: &'static str, unit: Unit, factor: f64, counts: bool) -> Reading {
    Reading { metric, title, unit, factor, counts }
}

const MIB: f64 = 1_048_576.0;

const SYSTEM: &[Reading] = &[
    reading("cpu_util_pct", "machine: processors busy", Unit::Percent, 1.0, false),
    reading("proc_cpu_pct", "process: processor time (100 % = 1 core)", Unit::Percent, 1.0, false),
    reading("load1", "machine: load, 1 minute", Unit::Count, 1.0, false),
    reading("mem_avail_mb", "machine: memory available", Unit::Bytes, MIB, false),
    reading("rss_mb", "process: resident memory", Unit::Bytes, MIB, false),
    reading("peak_rss_mb", "process: peak resident memory", Unit::Bytes, MIB, false),
    reading("disk_bytes", "files of the store", Unit::Bytes, 1.0, false),
    reading("io_write_mb", "written to disk, since start", Unit::Bytes, MIB, false),
    reading("io_read_mb", "read from disk, since start", Unit::Bytes, MIB, false),
    reading("minflt", "minor page faults per second", Unit::Count, 1.0, true),
    reading("majflt", "major page faults per second", Unit::Count, 1.0, true),
    reading("vol_ctxsw", "voluntary context switches per second", Unit::Count, 1.0, true),
    reading("invol_ctxsw", "forced context switches per second", Unit::Count, 1.0, true),
    reading("threads", "process: threads", Unit::Count, 1.0, false),
    reading("busy_answers", "busy answers, since start", Unit::Count, 1.0, false),
];

/// What figures of their own show.
const RATES: [&str; 3] = ["wu_per_s", "ops_per_s", "seed_keys"];

/// Every figure over time that the run has readings for.
pub fn charts(run: &Run) -> Vec<(String, Chart)> {
    let mut all = Vec::new();
    all.extend(seeding(run).map(|c| ("seed_progress".to_owned(), c)));
    all.extend(throughput(run).map(|c| ("timeline_throughput".to_owned(), c)));
    let workloads = distinct(run.courses.iter().map(|c| &c.workload));
    for workload in &workloads {
        all.extend(system(run, workload).map(|c| (format!("timeline_system_{workload}"), c)));
    }
    for (engine, ink) in inks(run) {
        for workload in &workloads {
            let name = engine.split_whitespace().next().unwrap_or("engine");
            all.extend(own(run, &engine, ink, workload).map(|c| (format!("engine_stats_{name}_{workload}"), c)));
        }
    }
    all
}

/// What stands for a workload where there is room for one of its points: the most threads at the baseline.
fn at_baseline<'a>(run: &'a Run, workload: &str, phase: &str) -> Vec<&'a Course> {
    let own: Vec<&Course> = run.courses.iter().filter(|c| c.workload == workload && c.phase == phase).collect();
    let most = own.iter().map(|c| c.threads).max();
    let base = baseline(own.iter().filter(|c| Some(c.threads) == most).map(|c| &c.swept));
    own.into_iter().filter(|c| Some(c.threads) == most && c.swept == base).collect()
}

/// So many repeats are told apart, each as a line of its own.
const MOST_REPEATS: usize = 3;

/// All repeats, or of many the one in the middle: by its mean, or where that is the same for all, as of keys that were
/// loaded, by when it ended.
fn chosen(repeats: &[Vec<(f64, f64)>]) -> Vec<&Vec<(f64, f64)>> {
    if repeats.len() <= MOST_REPEATS {
        return repeats.iter().collect();
    }
    let order = |r: &Vec<(f64, f64)>| {
        let mean = r.iter().map(|(_, v)| v).sum::<f64>() / r.len().max(1) as f64;
        let end = r.last().map_or(0.0, |(t, _)| *t);
        (mean, end)
    };
    let mut sorted: Vec<&Vec<(f64, f64)>> = repeats.iter().collect();
    sorted.sort_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    vec![sorted[sorted.len() / 2]]
}

/// A reading as a place on a line.
fn spots(readings: &[(f64, f64)]) -> Vec<Spot> {
    let finite = readings.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
    finite.map(|(x, y)| Spot { x: *x, y: exactly(*y) }).collect()
}

/// The lines of one quantity: for each engine one for each repeat.
fn lines(
    run: &Run,
    courses: &[&Course],
    metric: &str,
    as_drawn: impl Fn(&[(f64, f64)]) -> Vec<(f64, f64)>,
) -> Vec<Line> {
    let mut out = Vec::new();
    for (engine, ink) in inks(run) {
        for course in courses.iter().filter(|c| c.engine == engine && c.metric == metric) {
            for repeat in chosen(&course.repeats) {
                let spots = spots(&as_drawn(repeat));
                if !spots.is_empty() {
                    out.push(Line { name: engine.clone(), ink, spots });
                }
            }
        }
    }
    out
}

fn over_time(unit: Unit, lines: Vec<Line>) -> Option<Body> {
    let lines = Lines { across: Across::Time, across_name: String::new(), unit, may_be_log: false, lines };
    // A single moment is no course.
    let any = lines.any() && lines.lines.iter().any(|l| l.spots.len() > 1);
    any.then_some(Body::Lines(lines))
}

fn chart(run: &Run, title: String, what: &str, panels: Vec<Panel>) -> Option<Chart> {
    let drawn = |ink: &Ink| {
        panels.iter().any(|p| matches!(&p.body, Body::Lines(l) if l.lines.iter().any(|line| line.ink == *ink)))
    };
    let legend: Vec<(String, Ink)> = inks(run).into_iter().filter(|(_, ink)| drawn(ink)).collect();
    let repeats = panels.iter().any(|p| match &p.body {
        Body::Lines(l) => l.lines.iter().enumerate().any(|(i, a)| l.lines[..i].iter().any(|b| b.ink == a.ink)),
        Body::Bars(_) => false,
    });
    let lines = match run.courses.iter().map(|c| c.repeats.len()).max().unwrap_or(0) {
        _ if repeats => "a line for each repeat",
        0 | 1 => "",
        _ => "of the repeats the one in the middle",
    };
    let subtitle = [what, lines, &run.conditions].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ");
    (!panels.is_empty()).then(|| Chart {
        title,
        subtitle,
        legend,
        panels,
        notes: run.notes.clone(),
        ..Chart::default()
    })
}

/// The threads of courses, in words.
fn threads(courses: &[&Course]) -> String {
    match courses.first().map_or(0, |c| c.threads) {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    }
}

fn seeding(run: &Run) -> Option<Chart> {
    let seeding = |c: &&Course| c.phase == "seed" && c.metric == "seed_keys";
    let mut panels = Vec::new();
    for workload in distinct(run.courses.iter().filter(seeding).map(|c| &c.workload)) {
        let courses = at_baseline(run, &workload, "seed");
        // Loading begins with nothing, which no reading says.
        let drawn =
            lines(run, &courses, "seed_keys", |r| std::iter::once((0.0, 0.0)).chain(r.iter().copied()).collect());
        let title = courses.first().map_or(workload.clone(), |c| titled(&workload, &c.swept));
        panels.extend(over_time(Unit::Count, drawn).map(|body| Panel { title, body }));
    }
    chart(run, "Loading: keys in the store over time".into(), "", panels)
}

fn throughput(run: &Run) -> Option<Chart> {
    let mut panels = Vec::new();
    let mut counts = Vec::new();
    for workload in distinct(run.courses.iter().filter(|c| c.phase == "run").map(|c| &c.workload)) {
        let courses = at_baseline(run, &workload, "run");
        let title = courses.first().map_or(workload.clone(), |c| titled(&workload, &c.swept));
        let body = over_time(Unit::Count, lines(run, &courses, "wu_per_s", <[_]>::to_vec));
        if let Some(body) = body {
            counts.push(threads(&courses));
            panels.push(Panel { title, body });
        }
    }
    counts.dedup();
    let what = if counts.len() == 1 { counts.remove(0) } else { String::new() };
    chart(run, "Throughput: units of work per second over time".into(), &what, panels)
}

/// What a counter grows by each second.
fn growth(readings: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pairs = readings.windows(2).filter(|w| w[1].0 > w[0].0);
    pairs.map(|w| (w[1].0, (w[1].1 - w[0].1).max(0.0) / (w[1].0 - w[0].0))).collect()
}

fn system(run: &Run, workload: &str) -> Option<Chart> {
    let courses = at_baseline(run, workload, "run");
    let (mut panels, mut zero) = (Vec::new(), Vec::new());
    for r in SYSTEM {
        let drawn = lines(run, &courses, r.metric, |readings| {
            let scaled: Vec<(f64, f64)> = readings.iter().map(|(t, v)| (*t, v * r.factor)).collect();
            if r.counts { growth(&scaled) } else { scaled }
        });
        let nothing = drawn.iter().flat_map(|l| &l.spots).all(|s| s.y.value == 0.0);
        if nothing && !drawn.is_empty() {
            zero.push(r.title.to_owned());
        } else {
            panels.extend(over_time(r.unit, drawn).map(|body| Panel { title: r.title.into(), body }));
        }
    }
    let title = courses.first().map_or(workload.to_owned(), |c| titled(workload, &c.swept));
    let mut chart = chart(run, format!("{title}: machine and process over time"), &threads(&courses), panels)?;
    chart.facts = (!zero.is_empty()).then(|| ("Zero at all times".to_owned(), zero));
    Some(chart)
}

/// The unit of an engine's own figure, as far as its name tells.
fn unit_of(metric: &str) -> Unit {
    let name = metric.to_ascii_lowercase();
    let ends = |with: &[&str]| with.iter().any(|w| name.ends_with(w));
    let about = |words: &[&str]| words.iter().any(|w| name.contains(w));
    if about(&["bytes"]) || ends(&["size", "usage", "-mem-tables"]) {
        Unit::Bytes
    } else if ends(&["_ns", "nanos"]) {
        Unit::Nanos
    } else if ends(&["_pct", "percent"]) {
        Unit::Percent
    } else {
        Unit::Count
    }
}

/// An engine's own figures: those that moved as panels, the others as a list.
fn own(run: &Run, engine: &str, ink: Ink, workload: &str) -> Option<Chart> {
    let courses: Vec<&Course> = at_baseline(run, workload, "run").into_iter().filter(|c| c.engine == engine).collect();
    let known = |metric: &str| RATES.contains(&metric) || SYSTEM.iter().any(|r| r.metric == metric);
    let (mut panels, mut still) = (Vec::new(), Vec::new());
    for metric in distinct(courses.iter().map(|c| &c.metric).filter(|m| !known(m))) {
        let unit = unit_of(&metric);
        let drawn = lines(run, &courses, &metric, <[_]>::to_vec);
        let values = || drawn.iter().flat_map(|l| &l.spots).map(|s| s.y.value);
        let Some(first) = values().next() else { continue };
        if values().all(|v| v == first) {
            still.push(format!("{metric}: {}", unit.show(first)));
        } else if let Some(body) = over_time(unit, drawn) {
            panels.push(Panel { title: metric, body });
        }
    }
    let left_out = panels.len().saturating_sub(MOST_PANELS);
    panels.truncate(MOST_PANELS);
    let title = courses.first().map_or(workload.to_owned(), |c| titled(workload, &c.swept));
    let title = format!("{engine}: its own figures in {title}, over time");
    if panels.is_empty() {
        return None;
    }
    let mut chart = chart(run, title, &threads(&courses), panels)?;
    chart.legend = vec![(engine.to_owned(), ink)];
    chart.facts = (!still.is_empty()).then(|| ("What did not move".to_owned(), still));
    if left_out > 0 {
        chart.notes.push(format!("{left_out} more are in timeline.tsv."));
    }
    Some(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_repeats_the_middle_one_is_drawn() {
        let repeats: Vec<Vec<(f64, f64)>> =
            [9.0, 1.0, 5.0, 8.0, 2.0].iter().map(|v| vec![(1.0, *v), (2.0, *v)]).collect();
        assert_eq!(chosen(&repeats[..3]).len(), 3);
        assert_eq!(chosen(&repeats), [&repeats[2]]);
        let loads: Vec<Vec<(f64, f64)>> = [4.0, 9.0, 3.0, 6.0, 5.0].iter().map(|t| vec![(*t, 100.0)]).collect();
        assert_eq!(chosen(&loads), [&loads[4]]);
    }

    #[test]
    fn counters_are_shown_by_their_growth() {
        assert_eq!(
            growth(&[(1.0, 10.0), (2.0, 30.0), (4.0, 30.0), (5.0, 20.0)]),
            [(2.0, 20.0), (4.0, 0.0), (5.0, 0.0)]
        );
        assert!(growth(&[(1.0, 10.0)]).is_empty() && growth(&[(1.0, 1.0), (1.0, 2.0)]).is_empty());
    }

    #[test]
    fn names_tell_units() {
        for (name, unit) in [
            ("wal_bytes", Unit::Bytes),
            ("live-sst-files-size", Unit::Bytes),
            ("cur-size-all-mem-tables", Unit::Bytes),
            ("stall_ns", Unit::Nanos),
            ("cache_hit_pct", Unit::Percent),
            ("levels", Unit::Count),
        ] {
            assert_eq!(unit_of(name), unit, "{name}");
        }
    }
}
