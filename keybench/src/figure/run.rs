//! The figures of a run: rates and latencies.

use super::axis::Tick;
use super::bars::{Bar, Bars};
use super::chart::{Body, Chart, Panel};
use super::data::{PERCENTILES, Point, Run, distinct, number};
use super::lines::{Across, Line, Lines, Spot};
use super::theme::{self, Ink};
use super::unit::Unit;
use crate::stats::Estimate;

/// What is swept where points differ in the rate that was due.
pub const LOAD: &str = "load_percent";

/// What a unit of work is, for readers of a figure on its own.
const UNIT: &str = "A unit (wu) is one call of the workload's run().";

/// Every figure that the run has data for but those over time: the name of its file, and its chart.
pub fn charts(run: &Run) -> Vec<(String, Chart)> {
    let mut all = Vec::new();
    all.extend(throughput(run).map(|c| ("throughput_compare".to_owned(), c)));
    all.extend(scalability(run).map(|c| ("scalability".to_owned(), c)));
    for workload in workloads(run) {
        all.extend(sweep(run, &workload).map(|c| (format!("sweep_{workload}"), c)));
        for (at, (name, _)) in PERCENTILES.iter().enumerate() {
            all.extend(over_load(run, &workload, at).map(|c| (format!("latency_{name}_load_{workload}"), c)));
        }
    }
    for workload in workloads(run) {
        for (at, (name, _)) in PERCENTILES.iter().enumerate() {
            all.extend(latency(run, &workload, at).map(|c| (format!("latency_{name}_threads_{workload}"), c)));
        }
    }
    all
}

fn workloads(run: &Run) -> Vec<String> {
    distinct(run.points.iter().map(|p| &p.workload))
}

/// The engines and their inks.
pub fn inks(run: &Run) -> Vec<(String, Ink)> {
    run.engines.iter().cloned().zip(theme::inks(&run.engines)).collect()
}

/// The least swept value, or the first where they are words: the one that stands for its workload where there is room for
/// one only.
pub fn baseline<'a>(swept: impl Iterator<Item = &'a Option<(String, String)>>) -> Option<(String, String)> {
    let mut least: Option<&(String, String)> = None;
    for value in swept.flatten() {
        let smaller = |than: &(String, String)| match (number(&value.1), number(&than.1)) {
            (Some(a), Some(b)) => a < b,
            _ => false,
        };
        if least.is_none_or(smaller) {
            least = Some(value);
        }
    }
    least.cloned()
}

/// A workload's points at its baseline.
fn at_baseline<'a>(run: &'a Run, workload: &str) -> Vec<&'a Point> {
    let own: Vec<&Point> = run.points.iter().filter(|p| p.workload == workload).collect();
    let base = baseline(own.iter().map(|p| &p.swept));
    own.into_iter().filter(|p| p.swept == base).collect()
}

/// `mixed`, or `batch at batch 1` for a swept value.
pub fn titled(workload: &str, swept: &Option<(String, String)>) -> String {
    swept
        .as_ref()
        .map_or(workload.to_owned(), |(param, value)| format!("{workload} at {param} {}", show_swept(param, value)))
}

fn threads_of(points: &[&Point]) -> Vec<usize> {
    let mut all: Vec<usize> = points.iter().map(|p| p.threads).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// `8 threads`.
fn count_threads(n: usize) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

/// What was special, then what all points share.
fn conditions(run: &Run, first: &str) -> String {
    [first, &run.conditions, &run.estimates].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ")
}

fn notes(run: &Run, first: Option<&str>) -> Vec<String> {
    let troubles = run.troubles.iter().map(|(engine, why)| {
        let measured = run.points.iter().any(|p| p.engine == *engine);
        format!("{engine} {}: {why}", if measured { "failed later" } else { "was not measured" })
    });
    first.map(str::to_owned).into_iter().chain(troubles).chain(run.notes.iter().cloned()).collect()
}

/// A bar for each engine that has a point in `points`.
fn bars(run: &Run, points: &[&Point], unit: Unit, value: impl Fn(&Point) -> Option<Estimate>) -> Bars {
    let bar = |(engine, ink): (String, Ink)| {
        let point = points.iter().find(|p| p.engine == engine)?;
        let remark = point.unsound.map(str::to_owned);
        let value = if remark.is_some() { None } else { value(point) };
        (value.is_some() || remark.is_some()).then_some(Bar { label: engine, ink, value, remark })
    };
    Bars { unit, bars: inks(run).into_iter().filter_map(bar).collect(), ratio: None }
}

fn throughput(run: &Run) -> Option<Chart> {
    let mut panels = Vec::new();
    let mut counts = Vec::new();
    for workload in workloads(run) {
        let points = at_baseline(run, &workload);
        let Some(most) = points.iter().map(|p| p.threads).max() else { continue };
        let points: Vec<&Point> = points.into_iter().filter(|p| p.threads == most).collect();
        let bars = bars(run, &points, Unit::Count, |p| Some(p.wu_per_s));
        if bars.any() {
            counts.push(most);
            panels.push((titled(&workload, &points[0].swept), most, bars));
        }
    }
    counts.dedup();
    let first = *counts.first()?;
    let alike = counts.len() == 1;
    let panel = |(title, threads, bars)| {
        let title = if alike { title } else { format!("{title}, {}", count_threads(threads)) };
        Panel { title, body: Body::Bars(bars) }
    };
    Some(Chart {
        title: "Throughput: units of work per second".into(),
        subtitle: conditions(run, &if alike { count_threads(first) } else { String::new() }),
        panels: panels.into_iter().map(panel).collect(),
        notes: notes(run, Some(UNIT)),
        ..Chart::default()
    })
}

/// The legend of those engines that have a line in a panel.
fn legend(run: &Run, panels: &[Panel]) -> Vec<(String, Ink)> {
    let drawn = |ink: &Ink| {
        panels
            .iter()
            .any(|p| matches!(&p.body, Body::Lines(l) if l.lines.iter().any(|l| l.ink == *ink && !l.spots.is_empty())))
    };
    inks(run).into_iter().filter(|(_, ink)| drawn(ink)).collect()
}

/// Lines over a number of each point, one for each engine.
fn lines(
    run: &Run,
    points: &[&Point],
    unit: Unit,
    across: impl Fn(&Point) -> Option<f64>,
    value: impl Fn(&Point) -> Option<Estimate>,
) -> Vec<Line> {
    let line = |(engine, ink): (String, Ink)| {
        let own = points.iter().filter(|p| p.engine == engine && p.unsound.is_none());
        let mut spots: Vec<Spot> = own.filter_map(|p| Some(Spot { x: across(p)?, y: value(p)? })).collect();
        spots.sort_by(|a, b| a.x.total_cmp(&b.x));
        Line { name: engine, ink, spots }
    };
    // Zero is where a latency or a rate could not be measured, not what it was.
    let measured = |mut l: Line| {
        l.spots.retain(|s| unit != Unit::Nanos || s.y.value > 0.0);
        l
    };
    inks(run).into_iter().map(line).map(measured).filter(|l| !l.spots.is_empty()).collect()
}

fn over_threads(run: &Run, points: &[&Point], unit: Unit, value: impl Fn(&Point) -> Option<Estimate>) -> Lines {
    let tick = |n: usize| Tick { at: n as f64, label: n.to_string() };
    Lines {
        across: Across::Values(threads_of(points).into_iter().map(tick).collect()),
        across_name: "threads".into(),
        unit,
        may_be_log: unit == Unit::Nanos,
        lines: lines(run, points, unit, |p| Some(p.threads as f64), value),
    }
}

fn scalability(run: &Run) -> Option<Chart> {
    let panel = |workload: &String| {
        let points = at_baseline(run, workload);
        if threads_of(&points).len() < 2 {
            return None;
        }
        let lines = over_threads(run, &points, Unit::Count, |p| Some(p.wu_per_s));
        lines.any().then(|| Panel { title: titled(workload, &points[0].swept), body: Body::Lines(lines) })
    };
    let panels: Vec<Panel> = workloads(run).iter().filter_map(panel).collect();
    if panels.is_empty() {
        return None;
    }
    Some(Chart {
        title: "Scalability: units of work per second over threads".into(),
        subtitle: conditions(run, ""),
        legend: legend(run, &panels),
        panels,
        notes: notes(run, Some(UNIT)),
        ..Chart::default()
    })
}

/// A swept value as people read it: sizes as sizes.
fn show_swept(param: &str, value: &str) -> String {
    let name = param.to_ascii_lowercase();
    let size = name.contains("size") || name.contains("bytes");
    match number(value) {
        Some(x) if size && x >= 1.0 => Unit::Bytes.show(x),
        Some(x) if x.abs() >= 10_000.0 => Unit::Count.show(x),
        _ => value.to_owned(),
    }
}

fn sweep(run: &Run, workload: &str) -> Option<Chart> {
    let points: Vec<&Point> = run.points.iter().filter(|p| p.workload == workload && p.swept.is_some()).collect();
    let (param, _) = points.first()?.swept.clone()?;
    // Rates over the rate that was asked for would say nothing.
    if param == LOAD {
        return None;
    }
    let values = distinct(points.iter().filter_map(|p| p.swept.as_ref()).map(|(_, v)| v));
    if values.len() < 2 {
        return None;
    }
    // Words stand in their order, at equal distances; so do numbers if a word is among them.
    let numbers: Option<Vec<f64>> = values.iter().map(|v| number(v)).collect();
    let places = numbers.unwrap_or_else(|| (0..values.len()).map(|i| i as f64).collect());
    let mut ticks: Vec<Tick> =
        values.iter().zip(&places).map(|(v, at)| Tick { at: *at, label: show_swept(&param, v) }).collect();
    ticks.sort_by(|a, b| a.at.total_cmp(&b.at));
    let place = |p: &Point| {
        let (_, value) = p.swept.as_ref()?;
        values.iter().position(|v| v == value).map(|at| places[at])
    };
    let counts = threads_of(&points);
    let quantities: [(&str, fn(&Point) -> Estimate); 2] =
        [("units (wu) per second", |p| p.wu_per_s), ("key touches (ops) per second", |p| p.ops_per_s)];
    let differ = points.iter().any(|p| (p.wu_per_s.value - p.ops_per_s.value).abs() > 0.005 * p.ops_per_s.value);
    let mut panels = Vec::new();
    for threads in &counts {
        let own: Vec<&Point> = points.iter().filter(|p| p.threads == *threads).copied().collect();
        for (name, of) in &quantities[..if differ { 2 } else { 1 }] {
            let title =
                if counts.len() == 1 { (*name).to_owned() } else { format!("{}, {name}", count_threads(*threads)) };
            let lines = Lines {
                across: Across::Values(ticks.clone()),
                across_name: param.clone(),
                unit: Unit::Count,
                may_be_log: true,
                lines: lines(run, &own, Unit::Count, place, |p| Some(of(p)).filter(|e| e.value > 0.0)),
            };
            panels.extend(lines.any().then_some(Panel { title, body: Body::Lines(lines) }));
        }
    }
    if panels.is_empty() {
        return None;
    }
    let first = if counts.len() == 1 { count_threads(counts[0]) } else { String::new() };
    Some(Chart {
        title: format!("{workload}: rates over {param}"),
        subtitle: conditions(run, &first),
        legend: legend(run, &panels),
        panels,
        notes: notes(run, Some(UNIT)),
        ..Chart::default()
    })
}

/// Latency over the share of a capacity that was due: where it turns up is how much load an engine bears.
fn over_load(run: &Run, workload: &str, percentile: usize) -> Option<Chart> {
    let share = |p: &Point| p.swept.as_ref().filter(|(param, _)| param == LOAD).and_then(|(_, v)| number(v));
    let points: Vec<&Point> = run.points.iter().filter(|p| p.workload == workload && share(p).is_some()).collect();
    let mut shares: Vec<f64> = points.iter().filter_map(|p| share(p)).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let ops = distinct(points.iter().flat_map(|p| &p.latencies).map(|(op, _)| op));
    let counts = threads_of(&points);
    let mut panels = Vec::new();
    for threads in &counts {
        let own: Vec<&Point> = points.iter().filter(|p| p.threads == *threads).copied().collect();
        for op in &ops {
            let of = |p: &Point| p.latencies.iter().find(|(name, _)| name == op).map(|(_, of)| of[percentile]);
            let lines = Lines {
                across: Across::Values(shares.iter().map(|s| Tick { at: *s, label: format!("{s} %") }).collect()),
                across_name: "share of the capacity that was due".into(),
                unit: Unit::Nanos,
                may_be_log: true,
                lines: lines(run, &own, Unit::Nanos, share, of),
            };
            let title = if counts.len() == 1 { op.clone() } else { format!("{}, {op}", count_threads(*threads)) };
            panels.extend(lines.any().then_some(Panel { title, body: Body::Lines(lines) }));
        }
    }
    let first = if counts.len() == 1 { count_threads(counts[0]) } else { String::new() };
    (!panels.is_empty() && shares.len() > 1).then(|| Chart {
        title: format!("{workload}: {} of latency over load", PERCENTILES[percentile].1),
        subtitle: conditions(run, &first),
        legend: legend(run, &panels),
        panels,
        notes: notes(run, None),
        ..Chart::default()
    })
}

fn latency(run: &Run, workload: &str, percentile: usize) -> Option<Chart> {
    let points = at_baseline(run, workload);
    let counts = threads_of(&points);
    let ops = distinct(points.iter().flat_map(|p| &p.latencies).map(|(op, _)| op));
    let panel = |op: &String| {
        let of = |p: &Point| p.latencies.iter().find(|(name, _)| name == op).map(|(_, of)| of[percentile]);
        let body = if counts.len() > 1 {
            let lines = over_threads(run, &points, Unit::Nanos, of);
            lines.any().then_some(Body::Lines(lines))
        } else {
            let bars = bars(run, &points, Unit::Nanos, of);
            bars.any().then_some(Body::Bars(bars))
        };
        body.map(|body| Panel { title: op.clone(), body })
    };
    let panels: Vec<Panel> = ops.iter().filter_map(panel).collect();
    let over = if counts.len() > 1 { " over threads" } else { "" };
    let first = if counts.len() == 1 { count_threads(*counts.first()?) } else { String::new() };
    let unsound = |p: &&Point| p.unsound.map(|why| format!("{}: {why}.", p.engine));
    let unsound = distinct(points.iter().filter_map(unsound).collect::<Vec<_>>().iter());
    (!panels.is_empty()).then(|| Chart {
        title: format!("{}: {} of latency{over}", titled(workload, &points[0].swept), PERCENTILES[percentile].1),
        subtitle: conditions(run, &first),
        legend: legend(run, &panels),
        panels,
        notes: unsound.into_iter().chain(notes(run, None)).collect(),
        ..Chart::default()
    })
}
