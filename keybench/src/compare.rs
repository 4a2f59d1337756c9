//! `keybench compare A B`: two runs' reports side by side.
//!
//! Points are matched by workload, engine, threads and swept value. A point is slower, or faster, when its median rate moved
//! by more than the threshold and the 95 % interval of the ratio ([`crate::stats`]) agrees on the direction; so one noisy
//! repeat fails no build. Repeats of two runs are not pairs: what disturbed one did not disturb the other.

use crate::error::{Error, Result};
use crate::measure::{median, plural, show_count, sig3};
use crate::results::conditions::unlike;
use crate::results::verdict::ENOUGH;
use crate::results::{EngineResult, NO_OPERATION, Results};
use crate::say::{note, say, say_part};
use crate::stats::Estimate;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Compares two reports, and fails if the second is slower.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// The report to compare with: a directory that a run left, or its repeats.tsv
    pub before: PathBuf,
    /// The report to judge
    pub after: PathBuf,
    /// Part of a rate by which it may fall or a latency may rise: 0.05, or 5%
    #[arg(long, default_value = "5%", value_parser = share)]
    pub threshold: f64,
    /// Judge the p99 latency of each kind of operation as well as the rate
    #[arg(long)]
    pub latency: bool,
}

/// `0.05` or `5%`, for clap.
fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.trim().strip_suffix('%').map_or((text.trim(), 1.0), |n| (n.trim(), 100.0));
    match number.parse::<f64>() {
        Ok(x) if (0.0..1.0).contains(&(x / scale)) => Ok(x / scale),
        _ => Err(format!("'{text}' is not a fraction: use 0.05 or 5%")),
    }
}

/// Workload, engine, threads, swept parameter and value.
pub type Point = (String, String, u64, String, String);

/// What repeats of a point came to.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// Rate of each repeat.
    pub rates: BTreeMap<String, f64>,
    /// For each kind of operation the p99 of each repeat, in nanoseconds.
    p99: BTreeMap<String, Vec<f64>>,
    /// Wrong answers of each repeat, where answers were verified.
    wrong: BTreeMap<String, f64>,
    /// Calls that failed in the engine and were caught by the script, of all repeats and kinds of operation.
    pub failed: f64,
}

impl Figures {
    /// Wrong answers of all repeats.
    pub fn wrong(&self) -> f64 {
        self.wrong.values().sum()
    }
}

/// The points of a report: of the directory that a run left (its `repeats.tsv`, or the `points.tsv` of a program that keeps
/// medians only), or of one of these files.
pub fn read(path: &Path) -> Result<BTreeMap<Point, Figures>> {
    let within =
        |dir: &Path| Some(dir.join("repeats.tsv")).filter(|p| p.exists()).unwrap_or_else(|| dir.join("points.tsv"));
    let path = if path.is_dir() { within(path) } else { path.to_owned() };
    let text =
        std::fs::read_to_string(&path).map_err(|e| Error::usage(format!("cannot read {}: {e}", path.display())))?;
    parse(&text).map_err(|e| Error::usage(format!("{}:{e}", path.display())))
}

fn parse(text: &str) -> Result<BTreeMap<Point, Figures>, String> {
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = lines.next().map_or_else(Vec::new, |(_, l)| l.split('\t').collect());
    let column = |name: &str| {
        header
            .iter()
            .position(|h| *h == name)
            .ok_or_else(|| format!("1: no column '{name}': this is no points.tsv or repeats.tsv"))
    };
    let [workload, engine, threads, param, value] =
        ["workload", "engine", "threads", "sweep_param", "sweep_value"].map(column);
    let (op, p99, rate) = (column("op")?, column("p99_ns")?, column("wu_per_s")?);
    let (workload, engine, threads, param, value) = (workload?, engine?, threads?, param?, value?);
    // Files of programs that keep medians only have none.
    let (repeat, wrong, failed) = (column("repeat").ok(), column("wrong").ok(), column("failed").ok());
    let mut points: BTreeMap<Point, Figures> = BTreeMap::new();
    for (at, line) in lines.filter(|(_, l)| !l.is_empty()) {
        let cells: Vec<&str> = line.split('\t').collect();
        let cell = |i: usize| {
            cells.get(i).copied().ok_or_else(|| format!("{}: {} of {} columns", at + 1, cells.len(), header.len()))
        };
        let number = |i: usize| -> Result<f64, String> {
            cell(i)?.parse().map_err(|_| format!("{}: '{}' is not a number", at + 1, cells[i]))
        };
        // A version behind the engine's name may differ: that is what is compared.
        let name = cell(engine)?.split(' ').next().unwrap_or_default().to_owned();
        let point = (
            cell(workload)?.to_owned(),
            name,
            number(threads)? as u64,
            cell(param)?.to_owned(),
            cell(value)?.to_owned(),
        );
        let figures = points.entry(point).or_default();
        let number_of_repeat = repeat.map_or(Ok("0"), cell)?.to_owned();
        figures.wrong.insert(number_of_repeat.clone(), wrong.map_or(Ok(0.0), number)?);
        figures.rates.insert(number_of_repeat, number(rate)?);
        figures.failed += failed.map_or(Ok(0.0), number)?;
        let (op, p99) = (cell(op)?, number(p99)?);
        if op != NO_OPERATION {
            figures.p99.entry(op.to_owned()).or_default().push(p99);
        }
    }
    if points.is_empty() { Err("1: holds no point".into()) } else { Ok(points) }
}

/// What became of one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
}

/// `ratio` is after / before; of a latency less is better.
fn judge(ratio: Estimate, threshold: f64, less_is_better: bool) -> Verdict {
    let moved = ratio.excludes(1.0) && (ratio.value - 1.0).abs() > threshold;
    match moved.then_some((ratio.value > 1.0) != less_is_better) {
        None => Verdict::Same,
        Some(true) => Verdict::Better,
        Some(false) => Verdict::Worse,
    }
}

/// Runs `keybench compare`.
pub fn main(args: &Args) -> Result<()> {
    let compared = compare(&read(&args.before)?, &read(&args.after)?, args.threshold, args.latency)?;
    // Points tell of their own answers only; a report knows also what a scan of the whole store found, and how it was run.
    let sides = [(&args.before, whole(&args.before)?), (&args.after, whole(&args.after)?)];
    if let [(_, Some(before)), (_, Some(after))] = &sides {
        unlike(before, after).iter().for_each(|what| note!("warning: {what}"));
    }
    say_part!("{}", compared.text);
    let liars: Vec<String> = sides.iter().filter_map(|(dir, results)| wrong_outside(dir, results.as_ref()?)).collect();
    for liar in &liars {
        say!("{liar}");
    }
    if compared.wrong > 0 || !liars.is_empty() {
        return Err(Error::failed("answers were wrong: engines with wrong answers are not compared"));
    }
    if compared.failed > 0 {
        return Err(Error::failed("calls failed: engines whose calls fail are not compared"));
    }
    match compared.worse {
        0 => Ok(()),
        n => {
            let share = args.threshold * 100.0;
            Err(Error::failed(format!("{n} figures are missing or worse by more than {share:.1} %")))
        }
    }
}

/// All that the directory of a report has to say, if it has its `report.json`.
fn whole(dir: &Path) -> Result<Option<Results>> {
    let path = dir.join("report.json");
    if path.is_file() { Results::load(&path).map(Some) } else { Ok(None) }
}

/// What a report says of wrong answers that no point of it has.
fn wrong_outside(dir: &Path, results: &Results) -> Option<String> {
    let wrong = |e: &&EngineResult| e.answers().wrong > 0;
    let told = |e: &EngineResult| {
        format!("{}: {}, {} wrong answers in loading and closing scans", dir.display(), e.name, e.answers().wrong)
    };
    let engines: Vec<String> = results.engines.iter().filter(wrong).map(told).collect();
    (!engines.is_empty()).then(|| engines.join("\n"))
}

/// Two reports side by side.
struct Compared {
    /// The table.
    text: String,
    /// How many of its figures got worse, or are missing.
    worse: usize,
    /// How many of its points have wrong answers, on either side.
    wrong: usize,
    /// How many of the others have failed calls, on either side.
    failed: usize,
}

/// Compares what two reports have in common.
fn compare(
    before: &BTreeMap<Point, Figures>,
    after: &BTreeMap<Point, Figures>,
    threshold: f64,
    latency: bool,
) -> Result<Compared> {
    let mut out = String::new();
    let (mut worse, mut wrong, mut failed, mut matched) = (0, 0, 0, 0);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{:<44} {:>14} {:>14} {:>24}", "", "before", "after", "after / before");
    for (point, b) in before {
        let (workload, engine, threads, param, value) = point;
        let swept = if param.is_empty() || param == "-" { String::new() } else { format!(", {param} {value}") };
        let title = format!("{workload} {engine}, {}{swept}", plural(*threads as usize, "thread"));
        let Some(a) = after.get(point) else {
            // An engine that fails leaves no point: that is no reason to pass.
            worse += 1;
            let _ = writeln!(out, "{title:<44} only before: MISSING");
            continue;
        };
        matched += 1;
        if b.wrong() + a.wrong() > 0.0 {
            wrong += 1;
            let (b, a) = (show_count(b.wrong()), show_count(a.wrong()));
            let _ = writeln!(out, "{title:<44} {b:>14} {a:>14} wrong answers: not compared");
            continue;
        }
        // A call that fails at once costs less than one that does its work: such a point would look faster.
        if b.failed + a.failed > 0.0 {
            failed += 1;
            let (b, a) = (show_count(b.failed), show_count(a.failed));
            let _ = writeln!(out, "{title:<44} {b:>14} {a:>14} failed calls: not compared");
            continue;
        }
        let mut line = |what: String, b: &[f64], a: &[f64], less_is_better: bool| {
            let r = Estimate::unpaired_ratio(a, b);
            let few = a.len().min(b.len()) < ENOUGH;
            let (before, after) = (median(b.iter().copied()), median(a.iter().copied()));
            // There is no ratio to nothing.
            let nothing = before == 0.0;
            let verdict = if few || nothing { Verdict::Same } else { judge(r, threshold, less_is_better) };
            worse += usize::from(verdict == Verdict::Worse);
            let mark = match verdict {
                _ if nothing => " nothing before to compare with",
                Verdict::Better => " better",
                Verdict::Same if few => " too few repeats to tell",
                Verdict::Same => "",
                Verdict::Worse => " WORSE",
            };
            let (before, after) = (show_count(before), show_count(after));
            let ratio = || format!("{} [{} .. {}]", sig3(r.value), sig3(r.low), sig3(r.high));
            let shown = if nothing { "-".to_owned() } else { ratio() };
            let _ = writeln!(out, "{what:<44} {before:>14} {after:>14} {shown:>24}{mark}");
        };
        let rates = |f: &Figures| f.rates.values().copied().collect::<Vec<_>>();
        line(title, &rates(b), &rates(a), false);
        for (op, b) in b.p99.iter().filter(|_| latency) {
            if let Some(a) = a.p99.get(op) {
                line(format!("  {op} p99, ns"), b, a, true);
            }
        }
        // A point does not pass because an operation was not measured, either.
        for op in b.p99.keys().filter(|op| latency && !a.p99.contains_key(*op)) {
            worse += 1;
            let _ = writeln!(out, "{:<44} only before: MISSING", format!("  {op} p99, ns"));
        }
        for op in a.p99.keys().filter(|op| latency && !b.p99.contains_key(*op)) {
            let _ = writeln!(out, "{:<44} only after", format!("  {op} p99, ns"));
        }
    }
    for (workload, engine, threads, ..) in after.keys().filter(|p| !before.contains_key(*p)) {
        let _ =
            writeln!(out, "{:<44} only after", format!("{workload} {engine}, {}", plural(*threads as usize, "thread")));
    }
    if matched == 0 {
        return Err(Error::usage("the two reports have no point in common"));
    }
    Ok(Compared { text: out, worse, wrong, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "workload\tengine\tthreads\tsweep_param\tsweep_value\trepeat\top\tcount\tp50_ns\tp99_ns\tp999_ns\t\
                          max_ns\thit_rate\twu_per_s\tops_per_s\n";

    fn report(rates: &[f64], p99: f64) -> BTreeMap<Point, Figures> {
        let lines = rates
            .iter()
            .enumerate()
            .map(|(i, r)| format!("mixed\tkingtide\t2\t\t1\t{i}\tput\t9\t1\t{p99}\t3\t4\t0.0\t{r}\t{r}\n"));
        parse(&(HEADER.to_owned() + &lines.collect::<String>())).unwrap()
    }

    #[test]
    fn slower_is_told_from_noise() {
        let base = report(&[100.0, 101.0, 99.0], 1000.0);
        for (rates, worse) in [
            (&[80.0, 81.0, 79.0][..], 1), // slower beyond doubt
            (&[97.0, 98.0, 96.0], 0),     // slower, but less than the threshold
            (&[80.0, 120.0, 70.0], 0),    // as likely faster
            (&[150.0, 151.0, 149.0], 0),  // faster
        ] {
            let Compared { text, worse: n, .. } = compare(&base, &report(rates, 1000.0), 0.05, false).unwrap();
            assert_eq!(n, worse, "{rates:?}: {text}");
            assert_eq!(text.contains("WORSE"), worse > 0);
        }
        assert!(compare(&base, &report(&[150.0; 3], 1000.0), 0.05, false).unwrap().text.contains("better"));
        let Compared { text, worse: n, .. } = compare(&base, &report(&[100.0; 3], 2000.0), 0.05, true).unwrap();
        assert!(n == 1 && text.contains("put p99"), "{text}");
    }

    #[test]
    fn an_operation_that_one_side_lacks_is_told() {
        let both = report(&[100.0, 101.0, 99.0], 1000.0);
        let mut one = report(&[100.0, 101.0, 99.0], 1000.0);
        one.values_mut().for_each(|f| f.p99.retain(|_, _| false));
        let text = |before, after| {
            let Compared { text, worse, .. } = compare(before, after, 0.05, true).unwrap();
            (text, worse)
        };
        let (told, worse) = text(&both, &one);
        assert!(worse == 1 && told.contains("put p99, ns") && told.contains("only before: MISSING"), "{told}");
        let (told, worse) = text(&one, &both);
        assert!(worse == 0 && told.contains("put p99, ns") && told.contains("only after"), "{told}");
        let Compared { worse, .. } = compare(&both, &one, 0.05, false).unwrap();
        assert_eq!(worse, 0, "latencies were not asked for");
    }

    #[test]
    fn wrong_answers_are_not_ranked() {
        let base = report(&[100.0, 101.0, 99.0], 1000.0);
        let mut liar = report(&[900.0, 901.0, 899.0], 10.0);
        liar.values_mut().for_each(|f| f.wrong = [("1".to_owned(), 3.0)].into());
        for (before, after) in [(&base, &liar), (&liar, &base)] {
            let c = compare(before, after, 0.05, true).unwrap();
            assert_eq!((c.worse, c.wrong), (0, 1));
            assert!(c.text.contains("not compared") && !c.text.contains("better"), "{}", c.text);
        }
        let header = HEADER.trim_end().to_owned() + "\tverified\twrong\n";
        let line = |op: &str, wrong| format!("m\tk\t1\t\t1\t0\t{op}\t9\t1\t2\t3\t4\t0\t5\t6\t50\t{wrong}\n");
        let read = parse(&(header + &line("put", 2) + &line("get", 2))).unwrap();
        assert_eq!(read.values().next().unwrap().wrong(), 2.0, "each operation's line tells of the whole point");
    }

    #[test]
    fn failed_calls_are_not_ranked() {
        let base = report(&[100.0, 101.0, 99.0], 1000.0);
        let line =
            |i: usize, op: &str| format!("mixed\tkingtide\t2\t\t1\t{i}\t{op}\t9\t1\t2\t3\t4\t0\t900\t900\t0\t0\t7\n");
        let lines: String = (0..3).map(|i| line(i, "put") + &line(i, "get")).collect();
        let failing = parse(&(HEADER.trim_end().to_owned() + "\tverified\twrong\tfailed\n" + &lines)).unwrap();
        for (before, after) in [(&base, &failing), (&failing, &base)] {
            let c = compare(before, after, 0.05, true).unwrap();
            assert_eq!((c.worse, c.wrong, c.failed), (0, 0, 1), "{}", c.text);
            assert!(c.text.contains("42") && !c.text.contains("better"), "{}", c.text);
        }
    }

    #[test]
    fn more_than_nothing_is_not_worse() {
        let stuck = report(&[0.0; 3], 1000.0);
        let c = compare(&stuck, &report(&[150.0, 151.0, 149.0], 1000.0), 0.05, false).unwrap();
        assert!(c.worse == 0 && c.text.contains("nothing before to compare with"), "{}", c.text);
        let c = compare(&report(&[150.0, 151.0, 149.0], 1000.0), &stuck, 0.05, false).unwrap();
        assert!(c.worse == 1 && c.text.contains("WORSE"), "{}", c.text);
    }

    /// A workload without operations has a rate, and no latency to judge.
    #[test]
    fn a_point_of_no_operation_is_compared_by_its_rate() {
        let lines = |rate: u32| -> String {
            (0..3).map(|i| format!("idle\tkingtide\t2\t\t1\t{i}\t-\t0\t0\t0\t0\t0\t0.0\t{rate}\t0.0\n")).collect()
        };
        let of = |rate| parse(&(HEADER.to_owned() + &lines(rate))).unwrap();
        let c = compare(&of(100), &of(50), 0.05, true).unwrap();
        assert!(c.worse == 1 && !c.text.contains("p99"), "{}", c.text);
    }

    #[test]
    fn what_is_on_one_side_only_is_said() {
        let base = report(&[100.0], 1.0);
        let mut other = report(&[100.0], 1.0);
        let point = ("cart".to_owned(), "kingtide".to_owned(), 2, String::new(), "1".to_owned());
        other.insert(point, Figures::default());
        assert!(compare(&base, &other, 0.05, false).unwrap().text.contains("cart kingtide, 2 threads"));
        let alone = ("cart".to_owned(), "kingtide".to_owned(), 1, String::new(), "1".to_owned());
        let mut one = report(&[100.0], 1.0);
        one.insert(alone, Figures::default());
        let Compared { text, .. } = compare(&base, &one, 0.05, false).unwrap();
        assert!(text.contains("cart kingtide, 1 thread ") && !text.contains("1 threads"), "{text}");
        let Compared { text, worse, .. } = compare(&other, &base, 0.05, false).unwrap();
        assert!(worse == 1 && text.contains("only before: MISSING"), "{text}");
        let Compared { text, worse, .. } =
            compare(&report(&[100.0; 2], 1.0), &report(&[50.0; 3], 1.0), 0.05, false).unwrap();
        assert!(worse == 0 && text.contains("too few repeats"), "{text}");
        other.remove(&("mixed".to_owned(), "kingtide".to_owned(), 2, String::new(), "1".to_owned()));
        assert!(compare(&base, &other, 0.05, false).is_err());
    }

    #[test]
    fn files_that_are_none_are_refused_with_their_line() {
        for (text, wanted) in [
            ("", "1: no column"),
            ("a\tb\n", "1: no column"),
            (HEADER, "1: holds no point"),
            (&format!("{HEADER}mixed\tkingtide\n"), "2: 2 of 15 columns"),
            (&format!("{HEADER}m\tk\tmany\t\t1\t0\tput\t9\t1\t2\t3\t4\t0\t5\t6\n"), "2: 'many' is not a number"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.starts_with(wanted), "{text:?}: {e}");
        }
        assert!(share("5 %").is_ok_and(|x| (x - 0.05).abs() < 1e-12) && share("0.1") == Ok(0.1));
        assert!(share("150%").is_err() && share("x").is_err());
    }
}
