//! A run's results as a report directory still has them.

use super::data::{Course, Courses, FAILED, PERCENTILES, Point, Run, WRONG, distinct};
use crate::error::{Error, Result};
use crate::results::{NO_OPERATION, Results};
use crate::stats::Estimate;
use std::collections::HashMap;
use std::path::Path;

/// A table's lines as maps from names of columns.
struct Rows<'a> {
    path: &'a Path,
    columns: HashMap<&'a str, usize>,
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
}

/// A line of a table.
struct Row<'a> {
    place: String,
    cells: Vec<&'a str>,
}

impl<'a> Rows<'a> {
    fn new(path: &'a Path, text: &'a str, wanted: &[&str]) -> Result<Rows<'a>> {
        let mut lines = text.lines().enumerate();
        let header = lines.next().map_or("", |(_, l)| l);
        let columns: HashMap<&str, usize> = header.split('\t').enumerate().map(|(at, name)| (name, at)).collect();
        if let Some(missing) = wanted.iter().find(|w| !columns.contains_key(**w)) {
            return Err(Error::usage(format!("{}:1: has no column '{missing}'", path.display())));
        }
        Ok(Rows { path, columns, lines })
    }

    fn next(&mut self) -> Option<Row<'a>> {
        let (at, line) = self.lines.by_ref().find(|(_, l)| !l.is_empty())?;
        Some(Row { place: format!("{}:{}", self.path.display(), at + 1), cells: line.split('\t').collect() })
    }

    fn text(&self, row: &Row<'a>, column: &str) -> Result<&'a str> {
        let cell = self.columns.get(column).and_then(|at| row.cells.get(*at)).copied();
        cell.ok_or_else(|| Error::usage(format!("{}: has no '{column}'", row.place)))
    }

    fn number<T: std::str::FromStr>(&self, row: &Row<'a>, column: &str) -> Result<T> {
        let text = self.text(row, column)?;
        text.parse().map_err(|_| Error::usage(format!("{}: {column}: '{text}' is not a number", row.place)))
    }

    /// A number of a column that not all programs write.
    fn count(&self, row: &Row<'a>, column: &str) -> Result<f64> {
        if self.columns.contains_key(column) { self.number(row, column) } else { Ok(0.0) }
    }

    fn swept(&self, row: &Row<'a>) -> Result<Option<(String, String)>> {
        let (param, value) = (self.text(row, "sweep_param")?, self.text(row, "sweep_value")?);
        Ok((!param.is_empty()).then(|| (param.to_owned(), value.to_owned())))
    }
}

/// Rates and latencies of one repeat or more, before they become estimates.
#[derive(Default)]
struct Repeats {
    wu: Vec<f64>,
    ops_per_s: Vec<f64>,
    latencies: Vec<(String, [Vec<f64>; 3])>,
    /// Which repeat the last line was of, where lines tell.
    number: String,
    /// The kinds of operations that the last repeat has so far.
    ops: Vec<String>,
}

impl Repeats {
    /// Takes in a repeat's name, if it has one, and a kind of operation. Each repeat has as many lines as it has kinds of
    /// operations, all with the same rates; returns whether this is the first of one.
    fn begins(&mut self, number: Option<&str>, op: &str) -> bool {
        let first = self.ops.is_empty()
            || number.map_or_else(|| self.ops.iter().any(|known| known == op), |number| number != self.number);
        if first {
            self.ops.clear();
            number.unwrap_or_default().clone_into(&mut self.number);
        }
        self.ops.push(op.to_owned());
        first
    }
}

/// Reads `repeats.tsv`, which has a line for each repeat, or `points.tsv`, which has medians.
///
/// # Errors
/// A usage error with the line that is no line of such a file.
pub fn points(path: &Path, text: &str) -> Result<Vec<Point>> {
    let wanted = ["workload", "engine", "threads", "sweep_param", "sweep_value", "op", "wu_per_s", "ops_per_s"];
    let mut rows = Rows::new(path, text, &wanted)?;
    let repeated = rows.columns.contains_key("repeat");
    let mut all: Vec<(Point, Repeats)> = Vec::new();
    let mut places: HashMap<(&str, &str, usize, Option<(String, String)>), usize> = HashMap::new();
    while let Some(row) = rows.next() {
        let (workload, engine) = (rows.text(&row, "workload")?, rows.text(&row, "engine")?);
        let (threads, swept) = (rows.number(&row, "threads")?, rows.swept(&row)?);
        let at = *places.entry((workload, engine, threads, swept.clone())).or_insert_with(|| {
            let (workload, engine) = (workload.to_owned(), engine.to_owned());
            all.push((Point { workload, engine, threads, swept, ..Point::default() }, Repeats::default()));
            all.len() - 1
        });
        let (point, repeats) = &mut all[at];
        point.unsound = match (rows.count(&row, "wrong")?, rows.count(&row, "failed")?) {
            (wrong, _) if wrong > 0.0 => Some(WRONG),
            (_, failed) if failed > 0.0 => point.unsound.or(Some(FAILED)),
            _ => point.unsound,
        };
        let op = rows.text(&row, "op")?;
        let number = if repeated { Some(rows.text(&row, "repeat")?) } else { None };
        if repeats.begins(number, op) {
            repeats.wu.push(rows.number(&row, "wu_per_s")?);
            repeats.ops_per_s.push(rows.number(&row, "ops_per_s")?);
        }
        if op == NO_OPERATION {
            continue;
        }
        let mut percentiles = [0.0; 3];
        for (value, (name, _)) in percentiles.iter_mut().zip(PERCENTILES) {
            *value = rows.number(&row, &format!("{name}_ns"))?;
        }
        let known = repeats.latencies.iter_mut().find(|(name, _)| name == op);
        match known {
            Some((_, values)) => values.iter_mut().zip(percentiles).for_each(|(v, p)| v.push(p)),
            None => repeats.latencies.push((op.to_owned(), percentiles.map(|p| vec![p]))),
        }
    }
    let done = |(point, repeats): (Point, Repeats)| Point {
        wu_per_s: Estimate::of(&repeats.wu),
        ops_per_s: Estimate::of(&repeats.ops_per_s),
        latencies: repeats.latencies.into_iter().map(|(op, of)| (op, of.map(|v| Estimate::of(&v)))).collect(),
        ..point
    };
    Ok(all.into_iter().map(done).collect())
}

/// Reads `timeline.tsv`. A repeat begins where the time of a course goes back, and where another phase came between.
///
/// # Errors
/// A usage error with the line that is no line of such a file.
pub fn courses(path: &Path, text: &str) -> Result<Vec<Course>> {
    let wanted = ["workload", "engine", "threads", "sweep_param", "sweep_value", "elapsed_s", "metric", "value"];
    let mut rows = Rows::new(path, text, &wanted)?;
    // Early versions of the original knew no phases: all was measured.
    let phases = rows.columns.contains_key("phase");
    let mut collected = Courses::default();
    let mut before: Option<(&str, &str, usize, Option<(String, String)>, &str)> = None;
    while let Some(row) = rows.next() {
        let (workload, engine) = (rows.text(&row, "workload")?, rows.text(&row, "engine")?);
        let (threads, swept) = (rows.number(&row, "threads")?, rows.swept(&row)?);
        let phase = if phases { rows.text(&row, "phase")? } else { "run" };
        let like = Course {
            workload: workload.to_owned(),
            engine: engine.to_owned(),
            threads,
            swept: swept.clone(),
            phase: phase.to_owned(),
            metric: rows.text(&row, "metric")?.to_owned(),
            repeats: Vec::new(),
        };
        let now = Some((workload, engine, threads, swept, phase));
        if now != before {
            collected.begin();
            before = now;
        }
        collected.push(like, rows.number(&row, "elapsed_s")?, rows.number(&row, "value")?);
    }
    Ok(collected.all)
}

impl Run {
    /// Of a report directory: `report.json` and `timeline.tsv`; without the first `repeats.tsv` or `points.tsv`, the latter of
    /// which is what the original keybench leaves. A table that is not there has nothing in it.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of its kind; none of them being there.
    pub fn of_dir(dir: &Path) -> Result<Run> {
        let read = |name: &str| -> Result<Option<(std::path::PathBuf, String)>> {
            let path = dir.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some((path, text))),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(Error::io("read", &path, e)),
            }
        };
        let points_tsv = match read("repeats.tsv")? {
            Some(repeats) => Some(repeats),
            None => read("points.tsv")?,
        };
        let timeline_tsv = read("timeline.tsv")?;
        let report = dir.join("report.json");
        if report.exists() {
            let mut run = Run::of_results(&Results::load(&report)?);
            if let Some((path, text)) = timeline_tsv {
                run.courses = courses(&path, &text)?;
            }
            return Ok(run);
        }
        if points_tsv.is_none() && timeline_tsv.is_none() {
            let what = "holds no report.json, points.tsv or timeline.tsv: it is no report directory";
            return Err(Error::usage(format!("{} {what}", dir.display())));
        }
        let points = points_tsv.map_or(Ok(Vec::new()), |(path, text)| points(&path, &text))?;
        let courses = timeline_tsv.map_or(Ok(Vec::new()), |(path, text)| courses(&path, &text))?;
        let engines = distinct(points.iter().map(|p| &p.engine).chain(courses.iter().map(|c| &c.engine)));
        Ok(Run { engines, points, courses, ..Run::default() })
    }
}
