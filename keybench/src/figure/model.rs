//! A run's results as figures take them.

use super::data::{Course, Courses, FAILED, PERCENTILES, Point, Run, WRONG, distinct};
use super::unit::Unit;
use crate::measure::{Summary, show_count};
use crate::results::verdict::{ENOUGH, Unranked};
use crate::results::{Ending, PointResult, Results};
use crate::stats::Estimate;

impl Run {
    /// Of a run that this program made; its readings only if it made them just now.
    pub fn of_results(results: &Results) -> Run {
        let troubles = results.engines.iter().filter_map(|e| Some((e.name.clone(), e.trouble.as_ref()?.to_string())));
        Run {
            engines: results.engines.iter().map(|e| e.name.clone()).collect(),
            points: results.points.iter().map(|p| point(results, p)).collect(),
            courses: courses(results),
            conditions: conditions(results),
            estimates: estimates(results),
            troubles: troubles.collect(),
            notes: notes(results),
        }
    }
}

fn point(results: &Results, result: &PointResult) -> Point {
    let latency = |name: &String| {
        let of = |figure: fn(&Summary) -> f64| {
            let ops = result.repeats.iter().flat_map(|r| &r.measured.ops).filter(|o| o.name == *name);
            Estimate::of(&ops.map(|o| figure(&o.latency)).collect::<Vec<_>>())
        };
        let all: [Estimate; PERCENTILES.len()] = [of(|s| s.p50), of(|s| s.p99), of(|s| s.p999)];
        (name.clone(), all)
    };
    let ops = distinct(result.repeats.iter().flat_map(|r| &r.measured.ops).map(|o| &o.name));
    Point {
        workload: result.workload.clone(),
        engine: result.engine.clone(),
        threads: result.point.threads,
        swept: result.point.swept.as_ref().map(|(param, value)| (param.clone(), value.to_string())),
        wu_per_s: result.figures.wu_per_s,
        ops_per_s: result.figures.ops_per_s,
        latencies: ops.iter().map(latency).collect(),
        // What was measured before an engine failed is sound: the notes tell that it failed.
        unsound: match results.unranked(result) {
            Some(Unranked::Wrong { .. }) => Some(WRONG),
            _ => result.failures().map(|_| FAILED),
        },
    }
}

fn courses(results: &Results) -> Vec<Course> {
    let mut collected = Courses::default();
    let mut before: Option<&crate::results::Reading> = None;
    for reading in &results.timeline {
        let same = before.is_some_and(|b| {
            b.repeat == reading.repeat
                && b.phase == reading.phase
                && b.workload == reading.workload
                && b.engine == reading.engine
                && b.point == reading.point
        });
        if !same {
            collected.begin();
        }
        before = Some(reading);
        for (metric, value) in &reading.metrics {
            let like = Course {
                workload: reading.workload.clone(),
                engine: reading.engine.clone(),
                threads: reading.point.threads,
                swept: reading.point.swept.as_ref().map(|(param, value)| (param.clone(), value.to_string())),
                phase: reading.phase.name().to_owned(),
                metric: metric.clone(),
                repeats: Vec::new(),
            };
            collected.push(like, reading.elapsed, *value);
        }
    }
    collected.all
}

/// What all points share.
fn conditions(results: &Results) -> String {
    let settings = &results.meta.settings;
    let mut all = vec![
        format!("values of {}", Unit::Bytes.show(settings.value_size as f64)),
        format!("{} items", show_count(settings.items as f64)),
        if settings.sync { "every write synced" } else { "writes not synced" }.to_owned(),
    ];
    all.extend(settings.open_loop().map(|rate| format!("open loop, {rate}")));
    all.join(", ")
}

fn estimates(results: &Results) -> String {
    match results.points.iter().map(|p| p.repeats.len()).max().unwrap_or(0) {
        0 | 1 => String::new(),
        n => of_repeats(n),
    }
}

/// What the numbers and whiskers of a figure are where there is more than one repeat: the verdict has no intervals of fewer than
/// [`ENOUGH`].
pub fn of_repeats(n: usize) -> String {
    let whiskers = if n < ENOUGH { "their range" } else { "95 % intervals" };
    format!("medians of {n} repeats, whiskers: {whiskers}")
}

/// What a figure that stands alone must say of where it comes from.
fn notes(results: &Results) -> Vec<String> {
    let versions = results.engines.iter().filter(|e| !e.version.is_empty());
    let versions: Vec<String> = versions.map(|e| format!("{} {}", e.name, e.version)).collect();
    let meta = &results.meta;
    let mut origin = versions;
    origin.extend(meta.machine.as_ref().map(|m| m.description.clone()));
    origin.push(format!("keybench {}, run {}", meta.version, meta.stamp));
    let mut all = vec![format!("{}.", origin.join("; "))];
    if !meta.optimised {
        all.push("The program was built without optimisation: these figures are meaningless.".to_owned());
    }
    if meta.ending != Ending::Complete {
        all.push("The run is incomplete.".to_owned());
    }
    all
}
