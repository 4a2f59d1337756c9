//! The figures of a suite: its tests side by side, and those that differ in one thing as a line over that.

use super::axis::Tick;
use super::bars::{Bar, Bars};
use super::chart::{Body, Chart, Panel};
use super::data::{distinct, exactly};
use super::lines::{Across, Line, Lines, Spot};
use super::theme::{self, Ink};
use super::unit::Unit;
use crate::stats::Estimate;

/// What one engine came to in one test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The test.
    pub test: String,
    /// The engine.
    pub engine: String,
    /// Why this is no result, if it is none.
    pub remark: Option<String>,
    /// Operations, or commits, a second.
    pub rate: Estimate,
    /// Median of latency, in nanoseconds.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Peak resident memory in bytes.
    pub memory: f64,
    /// Bytes of the store's files.
    pub disk: f64,
    /// Bytes written for each that was put.
    pub write_amp: f64,
    /// Bytes read for each that was answered.
    pub read_amp: f64,
    /// Bytes on disk for each that was put.
    pub space_amp: f64,
    /// Entries of a batch.
    pub batch: f64,
    /// Bytes of a value.
    pub value_size: f64,
    /// Operations of a transaction.
    pub txn_size: f64,
    /// Threads.
    pub threads: f64,
}

/// A suite's results.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    /// What it is called.
    pub name: String,
    /// One for each test and engine, tests in their order, the engine of interest first.
    pub cells: Vec<Cell>,
    /// What all tests share.
    pub conditions: String,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

/// A figure of a suite that has a panel of bars for each test: its name, its title, its unit and where it comes from.
type PerTest = (&'static str, &'static str, Unit, fn(&Cell) -> Estimate);

const PER_TEST: &[PerTest] = &[
    ("throughput", "operations (of transactions: commits) per second", Unit::Count, |c| c.rate),
    ("latency_p50", "median of latency", Unit::Nanos, |c| exactly(c.p50)),
    ("latency_p99", "99th percentile of latency", Unit::Nanos, |c| exactly(c.p99)),
    ("latency_p999", "99.9th percentile of latency", Unit::Nanos, |c| exactly(c.p999)),
    ("memory", "peak resident memory", Unit::Bytes, |c| exactly(c.memory)),
    ("disk", "files of the store", Unit::Bytes, |c| exactly(c.disk)),
    ("write_amplification", "bytes written for each byte put", Unit::Times, |c| exactly(c.write_amp)),
    ("read_amplification", "bytes read for each byte answered", Unit::Times, |c| exactly(c.read_amp)),
    ("space_amplification", "bytes on disk for each byte put", Unit::Times, |c| exactly(c.space_amp)),
];

/// Something that tests differ in: its name for files, its name for people, its unit, and where it comes from.
type Difference = (&'static str, &'static str, Unit, fn(&Cell) -> f64);

const DIFFERENCES: &[Difference] = &[
    ("batch_size", "entries of a batch", Unit::Count, |c| c.batch),
    ("value_size", "size of a value", Unit::Bytes, |c| c.value_size),
    ("txn_size", "operations of a transaction", Unit::Count, |c| c.txn_size),
    ("threads", "threads", Unit::Count, |c| c.threads),
];

/// Every figure that the suite has data for: the name of its file, and its chart.
pub fn charts(suite: &Suite) -> Vec<(String, Chart)> {
    let mut all = Vec::new();
    all.extend(lead(suite).map(|c| ("throughput_ratio".to_owned(), c)));
    for difference in DIFFERENCES {
        all.extend(over(suite, difference).map(|c| (format!("throughput_over_{}", difference.0), c)));
    }
    for figure in PER_TEST {
        all.extend(per_test(suite, figure).map(|c| (figure.0.to_owned(), c)));
    }
    all
}

impl Suite {
    fn tests(&self) -> Vec<String> {
        distinct(self.cells.iter().map(|c| &c.test))
    }

    fn inks(&self) -> Vec<(String, Ink)> {
        let engines = distinct(self.cells.iter().map(|c| &c.engine));
        let inks = theme::inks(&engines);
        engines.into_iter().zip(inks).collect()
    }

    fn cell(&self, test: &str, engine: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| c.test == test && c.engine == engine)
    }

    /// A cell whose answers were right.
    fn sound(&self, test: &str, engine: &str) -> Option<&Cell> {
        self.cell(test, engine).filter(|c| c.remark.is_none())
    }

    fn chart(&self, what: &str, panels: Vec<Panel>, notes: &[&str]) -> Option<Chart> {
        let notes = notes.iter().map(|n| (*n).to_owned()).chain(self.notes.iter().cloned()).collect();
        let (title, subtitle) = (format!("{}: {what}", self.name), self.conditions.clone());
        (!panels.is_empty()).then(|| Chart { title, subtitle, panels, notes, ..Chart::default() })
    }
}

fn per_test(suite: &Suite, (_, title, unit, value): &PerTest) -> Option<Chart> {
    let inks = suite.inks();
    let panel = |test: String| {
        let bar = |(engine, ink): &(String, Ink)| {
            let cell = suite.cell(&test, engine)?;
            let value = cell.remark.is_none().then(|| value(cell));
            Some(Bar { label: engine.clone(), ink: *ink, value, remark: cell.remark.clone() })
        };
        let bars = Bars { unit: *unit, bars: inks.iter().filter_map(bar).collect(), ratio: None };
        bars.any().then_some(Panel { title: test, body: Body::Bars(bars) })
    };
    suite.chart(title, suite.tests().into_iter().filter_map(panel).collect(), &[])
}

/// From the least to the most that two intervals allow: the repeats of a pair are not in the table.
fn quotient(over: Estimate, under: Estimate) -> Estimate {
    Estimate { value: over.value / under.value, low: over.low / under.high, high: over.high / under.low }
}

/// How many times as fast the first engine is as each of the others.
fn lead(suite: &Suite) -> Option<Chart> {
    let inks = suite.inks();
    let ((first, ink), others) = inks.split_first()?;
    let of_other = |(other, other_ink): &(String, Ink)| {
        let bar = |test: String| {
            let (own, theirs) = (suite.cell(&test, first)?, suite.cell(&test, other)?);
            let both = suite.sound(&test, first).zip(suite.sound(&test, other)).filter(|(_, b)| b.rate.low > 0.0);
            let remark = [(first, own), (other, theirs)];
            let remark = remark.iter().find_map(|(name, c)| c.remark.as_ref().map(|r| format!("{name}: {r}")));
            let value = both.map(|(a, b)| quotient(a.rate, b.rate)).filter(|v| v.value > 0.0);
            // The faster engine gives the colour.
            let ink = if value.is_some_and(|v| v.value < 1.0) { *other_ink } else { *ink };
            Some(Bar { label: test, ink, value, remark })
        };
        let bars: Vec<Bar> = suite.tests().into_iter().filter_map(bar).collect();
        (format!("{first} / {other}"), bars)
    };
    let all: Vec<(String, Vec<Bar>)> = others.iter().map(of_other).collect();
    let ends = |v: Estimate| [v.value, v.low, v.high];
    let scale: Vec<f64> = all.iter().flat_map(|(_, bars)| bars).filter_map(|b| b.value).flat_map(ends).collect();
    let panel = |(title, bars)| {
        let bars = Bars { unit: Unit::Times, bars, ratio: Some(scale.clone()) };
        bars.any().then_some(Panel { title, body: Body::Bars(bars) })
    };
    let panels: Vec<Panel> = all.into_iter().filter_map(panel).collect();
    let note = format!(
        "To the right of 1 {first} is faster, to the left the other; a pale bar is undecided, as its interval holds 1."
    );
    suite.chart(&format!("throughput of {first} as a multiple of the others'"), panels, &[&note])
}

/// A test's name without the number at its end: `write_batch` of `write_batch_100`, `get` of `get_64k`.
fn stem(test: &str) -> &str {
    let last = test.rsplit('_').next().unwrap_or_default();
    let digits = last.trim_start_matches('t').trim_end_matches(['k', 'm', 'g']);
    let numbered = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if numbered { test[..test.len() - last.len()].trim_end_matches('_') } else { test }
}

/// Tests that differ in one thing only, as far as their names and figures tell: a panel for each stem of names.
fn over(suite: &Suite, (_, name, unit, place): &Difference) -> Option<Chart> {
    let inks = suite.inks();
    let tests = suite.tests();
    let stems = distinct(tests.iter().map(|t| stem(t).to_owned()).collect::<Vec<_>>().iter());
    let mut panels = Vec::new();
    for stem_of_all in stems {
        let of_stem: Vec<&Cell> = suite.cells.iter().filter(|c| stem(&c.test) == stem_of_all).collect();
        let values = |of: fn(&Cell) -> f64| {
            let mut values: Vec<f64> = of_stem.iter().map(|c| of(c)).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let tests = distinct(of_stem.iter().map(|c| &c.test)).len();
        let own = values(*place);
        let differ = DIFFERENCES.iter().filter(|(_, _, _, of)| values(*of).len() > 1).count();
        if own.len() < 3 || own.len() != tests || differ != 1 || own[0] <= 0.0 {
            continue;
        }
        let line = |(engine, ink): &(String, Ink)| {
            let sound = of_stem.iter().filter(|c| c.engine == *engine && c.remark.is_none() && c.rate.value > 0.0);
            let mut spots: Vec<Spot> = sound.map(|c| Spot { x: place(c), y: c.rate }).collect();
            spots.sort_by(|a, b| a.x.total_cmp(&b.x));
            Line { name: engine.clone(), ink: *ink, spots }
        };
        let lines = Lines {
            across: Across::Values(own.iter().map(|v| Tick { at: *v, label: unit.show(*v) }).collect()),
            across_name: (*name).to_owned(),
            unit: Unit::Count,
            may_be_log: true,
            lines: inks.iter().map(line).filter(|l| !l.spots.is_empty()).collect(),
        };
        if lines.any() {
            panels.push(Panel { title: stem_of_all, body: Body::Lines(lines) });
        }
    }
    let mut chart = suite.chart(&format!("operations per second over {name}"), panels, &[])?;
    chart.legend = inks;
    Some(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(test: &str, engine: &str, rate: f64) -> Cell {
        Cell { test: test.into(), engine: engine.into(), rate: exactly(rate), p50: 1e9 / rate, ..Cell::default() }
    }

    fn suite(cells: Vec<Cell>) -> Suite {
        Suite { name: "a suite".into(), cells, ..Suite::default() }
    }

    #[test]
    fn names_have_stems() {
        for (test, wanted) in [
            ("write_batch_1000", "write_batch"),
            ("get_64k", "get"),
            ("put_1g", "put"),
            ("delete_random", "delete_random"),
            ("put_sync_t16", "put_sync"),
            ("rmw_locking_low_t2_10", "rmw_locking_low_t2"),
            ("write_", "write_"),
            ("", ""),
            ("100", ""),
        ] {
            assert_eq!(stem(test), wanted);
        }
    }

    #[test]
    fn tests_that_differ_in_one_thing_become_lines() {
        let engines = [("kingtide", 4.0), ("rocksdb", 1.0)];
        let mut cells = Vec::new();
        for (engine, speed) in engines {
            for batch in [1.0, 10.0, 100.0] {
                let batched =
                    Cell { batch, threads: 8.0, ..cell(&format!("write_batch_{batch}"), engine, speed * 1e5) };
                cells.push(batched);
            }
            cells.push(cell("read", engine, speed * 1e6));
        }
        let drawn = charts(&suite(cells.clone()));
        let names: Vec<&str> = drawn.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["throughput_ratio", "throughput_over_batch_size", "throughput", "latency_p50"]);
        let Body::Lines(lines) = &drawn[1].1.panels[0].body else { panic!("lines are drawn as bars") };
        assert_eq!((lines.lines.len(), lines.lines[0].spots.len()), (2, 3));
        assert_eq!(drawn[0].1.panels.len(), 1);
        // Two things at once are no line.
        cells[0].threads = 1.0;
        assert!(!charts(&suite(cells)).iter().any(|(n, _)| n.starts_with("throughput_over")));
    }

    #[test]
    fn wrong_answers_are_neither_faster_nor_slower() {
        let mut cells = vec![cell("get", "kingtide", 100.0), cell("get", "rocksdb", 900.0)];
        cells.extend([cell("put", "kingtide", 100.0), cell("put", "rocksdb", 50.0)]);
        cells[1].remark = Some("wrong answers".into());
        let drawn = charts(&suite(cells));
        let Body::Bars(bars) = &drawn[0].1.panels[0].body else { panic!("bars are drawn as lines") };
        assert_eq!(bars.bars[0].value, None);
        assert_eq!(bars.bars[0].remark.as_deref(), Some("rocksdb: wrong answers"));
        assert_eq!(bars.bars[1].value, Some(exactly(2.0)));
        assert!(charts(&suite(Vec::new())).is_empty());
        let zero = charts(&suite(vec![Cell { test: "x".into(), engine: "kingtide".into(), ..Cell::default() }]));
        assert!(zero.is_empty());
    }
}
