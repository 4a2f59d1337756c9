//! What figures of a run are drawn from: points and readings, whether a run just made them or a directory still has them.

use crate::stats::Estimate;
use std::collections::HashMap;

/// Latencies that have figures of their own: a name for files, a name for people.
pub const PERCENTILES: [(&str, &str); 3] =
    [("p50", "median"), ("p99", "99th percentile"), ("p999", "99.9th percentile")];

/// Why the points of an engine that answers wrongly are no results.
pub const WRONG: &str = "wrong answers";
/// Why those of an engine that fails calls are none: a call that fails at once costs less than one that does its work.
pub const FAILED: &str = "failed calls";

/// A point of the grid on one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// The workload.
    pub workload: String,
    /// The engine.
    pub engine: String,
    /// Worker threads.
    pub threads: usize,
    /// The swept parameter and its value.
    pub swept: Option<(String, String)>,
    /// Calls of `run` a second.
    pub wu_per_s: Estimate,
    /// Key touches a second.
    pub ops_per_s: Estimate,
    /// Kinds of operations, and for each the [`PERCENTILES`] of its latency in nanoseconds.
    pub latencies: Vec<(String, [Estimate; 3])>,
    /// Why it is no result, if it is none: wrong answers, or failed calls.
    pub unsound: Option<&'static str>,
}

/// How one quantity went while one store went through one phase, in each repeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// The workload.
    pub workload: String,
    /// The engine.
    pub engine: String,
    /// Threads of the phase.
    pub threads: usize,
    /// The swept value.
    pub swept: Option<(String, String)>,
    /// `seed`, `warmup` or `run`.
    pub phase: String,
    /// The quantity.
    pub metric: String,
    /// Seconds since the phase began, and the reading.
    pub repeats: Vec<Vec<(f64, f64)>>,
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// In the order of the command line.
    pub engines: Vec<String>,
    /// In the order in which they were run.
    pub points: Vec<Point>,
    /// In the order of their first readings.
    pub courses: Vec<Course>,
    /// What all points share, in words.
    pub conditions: String,
    /// What a figure's numbers are of repeats.
    pub estimates: String,
    /// Engines that could not be measured, and why.
    pub troubles: Vec<(String, String)>,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

/// Courses while they are being collected.
#[derive(Default)]
pub struct Courses {
    /// In the order of their first readings.
    pub all: Vec<Course>,
    /// Where each is, and of which phase its last reading was.
    places: HashMap<String, (usize, u64)>,
    /// Phases so far.
    phases: u64,
}

impl Courses {
    /// Readings that follow are of another phase than those before, if only of the same in another repeat.
    pub fn begin(&mut self) {
        self.phases += 1;
    }

    /// Adds a reading to the course that is `like` this one.
    pub fn push(&mut self, like: Course, elapsed: f64, value: f64) {
        let c = &like;
        let key = format!("{}\t{}\t{}\t{:?}\t{}\t{}", c.workload, c.engine, c.threads, c.swept, c.phase, c.metric);
        let (at, phase) = self.places.entry(key).or_insert_with(|| {
            self.all.push(like);
            (self.all.len() - 1, self.phases)
        });
        let repeats = &mut self.all[*at].repeats;
        let back = repeats.last().and_then(|r| r.last()).is_none_or(|(last, _)| *last >= elapsed);
        if back || *phase != self.phases {
            repeats.push(Vec::new());
        }
        *phase = self.phases;
        if let Some(last) = repeats.last_mut() {
            last.push((elapsed, value));
        }
    }
}

/// A value as a number, if it is one.
pub fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|x: &f64| x.is_finite())
}

/// The estimate that is no more than a value: a single repeat, or a file that has medians only.
pub fn exactly(value: f64) -> Estimate {
    Estimate { value, low: value, high: value }
}

/// Names in the order in which they first come.
pub fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for name in names {
        if !out.contains(name) {
            out.push(name.clone());
        }
    }
    out
}
