//! The CSV of native tests as a Markdown table: a row for each test, the engines side by side, and the first of them as a
//! multiple of the best other one whose answers were right.

mod figures;
mod page;

use super::brief::Rows;
use crate::compare;
use crate::error::{Error, Result};
use crate::measure::{plural, show_count, sig3};
use crate::micro::column_today;
use crate::results::verdict::ENOUGH;
use crate::stats::Estimate;
pub use page::About;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// What one engine came to in one test.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cell {
    /// Operations, or commits, a second.
    rate: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    rss: f64,
    disk: f64,
    wrong: u64,
    /// Calls that failed and that a script went on after.
    failed: u64,
    lost_updates: u64,
    /// Share of attempts that gave way; of transactions only.
    abort_rate: Option<f64>,
    /// The ends of the rate's 95 % interval, where there are repeats enough for one.
    spread: Option<(f64, f64)>,
    /// How many repeats that is of; 0 where a file does not tell.
    repeats: usize,
    /// Bytes written for each byte given, and bytes on disk for each live byte.
    write_amp: Option<f64>,
    space_amp: Option<f64>,
    /// Bytes read for each byte of an answer.
    read_amp: Option<f64>,
    /// What its writes cost until compaction was idle, where that was waited for.
    settled: Option<Settled>,
    /// What tests of a suite differ in, for figures: threads, entries of a batch, bytes of a value, operations of a
    /// transaction. 0 where a file does not tell.
    threads: f64,
    batch: f64,
    value_size: f64,
    txn_size: f64,
    /// Of the program that measured it; empty where a file does not tell.
    commit: String,
}

/// What writes cost until compaction was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Settled {
    seconds: f64,
    cpu: f64,
    written: f64,
    disk: f64,
    rss: f64,
}

impl Cell {
    /// Why it is no result, if it is none.
    fn unsound(&self) -> Option<&'static str> {
        match self {
            c if c.lost_updates > 0 => Some("lost updates"),
            c if c.wrong > 0 => Some("wrong answers"),
            c if c.failed > 0 => Some("failed calls"),
            _ => None,
        }
    }
}

/// A table that can be shown.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    tests: Vec<String>,
    engines: Vec<String>,
    /// The engines with their versions, where a file tells.
    versions: Vec<String>,
    cells: BTreeMap<(String, String), Cell>,
    /// Only rates are known: it came, in part, from a run's points.
    rates_only: bool,
}

impl Table {
    /// Reads a CSV file of `keybench micro --csv` or of a suite, or the points of a run (its directory, `repeats.tsv` or `points.tsv`),
    /// whose tests are then called `mixed/8`, by workload and threads, or `batch/8/256` with the swept value. A test with
    /// several kinds of operations is as many tests: `mixed_random/put` and `mixed_random/get`. Of a test that is in a file
    /// twice the later rows count.
    pub fn read(path: &Path) -> Result<Table> {
        if path.is_dir() || path.extension().is_some_and(|e| e == "tsv") {
            return Table::of_points(path, compare::read(path)?);
        }
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::usage(format!("cannot read {}: {e}", path.display())))?;
        Table::parse(path, &text)
    }

    fn empty(path: &Path) -> Table {
        Table {
            path: path.to_owned(),
            tests: Vec::new(),
            engines: Vec::new(),
            versions: Vec::new(),
            cells: BTreeMap::new(),
            rates_only: false,
        }
    }

    fn insert(&mut self, test: String, engine: String, cell: Cell) {
        if !self.tests.contains(&test) {
            self.tests.push(test.clone());
        }
        if !self.engines.contains(&engine) {
            self.engines.push(engine.clone());
        }
        self.cells.insert((test, engine), cell);
    }

    fn of_points(path: &Path, points: BTreeMap<compare::Point, compare::Figures>) -> Result<Table> {
        let mut table = Table { rates_only: true, ..Table::empty(path) };
        for ((workload, engine, threads, param, value), figures) in points {
            let swept = if matches!(param.as_str(), "" | "-") { String::new() } else { format!("/{value}") };
            let rates: Vec<f64> = figures.rates.values().copied().collect();
            let e = Estimate::of(&rates);
            let spread = (rates.len() >= ENOUGH).then_some((e.low, e.high));
            let (wrong, failed) = (figures.wrong() as u64, figures.failed as u64);
            let cell = Cell { rate: e.value, spread, repeats: rates.len(), wrong, failed, ..Cell::default() };
            table.insert(format!("{workload}/{threads}{swept}"), engine, cell);
        }
        if table.tests.is_empty() {
            return Err(Error::usage(format!("{} has no results", path.display())));
        }
        Ok(table)
    }

    /// The tests and engines of both.
    pub fn and(mut self, other: Table) -> Table {
        self.rates_only |= other.rates_only;
        self.versions.extend(other.versions.iter().filter(|v| !self.versions.contains(v)).cloned().collect::<Vec<_>>());
        for test in &other.tests {
            for engine in &other.engines {
                if let Some(cell) = other.cell(test, engine) {
                    self.insert(test.clone(), engine.clone(), cell.clone());
                }
            }
        }
        self
    }

    /// Rates and leads alone, of the tests that `rows` names, in its order and by its words.
    pub fn brief(&self, rows: &Rows) -> Result<String> {
        let head = |cells: String| {
            format!("| per second |{cells} x best other |\n|{}\n", "---|".repeat(self.engines.len() + 2))
        };
        let mut out = head(self.engines.iter().map(|e| format!(" {e} |")).collect());
        for row in rows.iter() {
            if !self.tests.contains(&row.test) {
                return Err(rows.wrong(row, &format!("no test '{}' in the files", row.test), &self.tests));
            }
            out.push_str(&format!("| {} |", row.words));
            self.push_rates(&mut out, &row.test);
            out.push('\n');
        }
        Ok(out)
    }

    /// The cells of all engines' rates and of the lead.
    fn push_rates(&self, out: &mut impl fmt::Write, test: &str) {
        for engine in &self.engines {
            // Into a string, or into a formatter that remembers its failure.
            let _ = write!(out, " {} |", self.cell(test, engine).map_or("-".into(), rate));
        }
        let _ = write!(out, " {} |", self.lead(test).map_or("-".into(), |x| format!("**{}**", sig3(x))));
    }

    fn parse(path: &Path, text: &str) -> Result<Table> {
        let wrong = |line: usize, what: String| Error::usage(format!("{}:{line}: {what}", path.display()));
        let mut lines = text.lines().enumerate();
        let header: Vec<_> = lines.next().map_or_else(Vec::new, |(_, l)| l.split(',').map(column_today).collect());
        let mut table = Table::empty(path);
        let mixed = mixed(&header, text);
        for (at, line) in lines {
            let cells: Vec<&str> = line.split(',').collect();
            let get = |name: &str| header.iter().position(|h| h == name).and_then(|i| cells.get(i).copied());
            let missing = |name: &str| match header.iter().any(|h| h == name) {
                true => format!("{} of {} columns: the file is cut off or damaged here", cells.len(), header.len()),
                false => format!("no column '{name}'"),
            };
            let text = |name: &str| get(name).ok_or_else(|| wrong(at + 1, missing(name)));
            let number = |name: &str| -> Result<f64> {
                let text = text(name)?;
                text.parse().map_err(|_| wrong(at + 1, format!("{name}: '{text}' is not a number")))
            };
            if text("operation")? == "LOAD" {
                continue;
            }
            let transactional = get("commits").is_some_and(|c| !c.is_empty());
            // Older files have no such columns.
            let known = |name: &str| match get(name) {
                None | Some("") => Ok(None),
                Some(_) => number(name).map(Some),
            };
            let repeats = known("repeats")?.unwrap_or(0.0) as usize;
            let spread = match (known("rate_low")?, known("rate_high")?) {
                (Some(low), Some(high)) if repeats >= ENOUGH => Some((low, high)),
                _ => None,
            };
            let cell = Cell {
                rate: number(if transactional { "commits_per_sec" } else { "ops_per_sec" })?,
                p50: number("p50_us")?,
                p99: number("p99_us")?,
                p999: number("p999_us")?,
                max: number("max_us")?,
                rss: number("peak_rss_mib")?,
                disk: number("db_size_mib")?,
                wrong: number("wrong")? as u64,
                failed: 0,
                lost_updates: if transactional { number("lost_updates")? as u64 } else { 0 },
                abort_rate: if transactional { Some(number("abort_rate")?) } else { None },
                spread,
                repeats,
                write_amp: known("write_amp")?.filter(|x| *x > 0.0),
                space_amp: known("space_amp")?.filter(|x| *x > 0.0),
                read_amp: known("read_amp")?.filter(|x| *x > 0.0),
                settled: match known("settled_sec")? {
                    None => None,
                    Some(seconds) => Some(Settled {
                        seconds,
                        cpu: number("settled_cpu_sec")?,
                        written: number("settled_write_mib")?,
                        disk: number("settled_db_size_mib")?,
                        rss: number("settled_rss_mib")?,
                    }),
                },
                threads: known("threads")?.unwrap_or(0.0),
                batch: known("batch_size")?.unwrap_or(0.0),
                value_size: known("value_size")?.unwrap_or(0.0),
                txn_size: known("txn_size")?.unwrap_or(0.0),
                commit: get("commit").unwrap_or_default().to_owned(),
            };
            let engine = text("engine")?;
            let version = format!("{engine} {}", get("version").unwrap_or_default()).trim_end().to_owned();
            if !table.versions.contains(&version) {
                table.versions.push(version);
            }
            let test = match text("test_name")? {
                test if mixed.contains(test) => format!("{test}/{}", text("operation")?.to_ascii_lowercase()),
                test => test.to_owned(),
            };
            table.insert(test, engine.to_owned(), cell);
        }
        if table.tests.is_empty() { Err(wrong(1, "has no results".into())) } else { Ok(table) }
    }

    /// The commits that its figures are of, as far as files tell, in the order of their first tests; each with the number of its results.
    fn commits(&self) -> Vec<(&str, usize)> {
        let mut commits: Vec<(&str, usize)> = Vec::new();
        let cells = self.tests.iter().flat_map(|test| self.engines.iter().filter_map(|e| self.cell(test, e)));
        for commit in cells.map(|c| c.commit.as_str()) {
            match commits.iter_mut().find(|(known, _)| *known == commit) {
                Some((_, n)) => *n += 1,
                None => commits.push((commit, 1)),
            }
        }
        if commits.iter().all(|(commit, _)| commit.is_empty()) { Vec::new() } else { commits }
    }

    /// The commit of all figures, or the commits with their shares, if files tell.
    pub fn commit(&self) -> Option<String> {
        let commits = self.commits();
        let shown = |commit: &str| if commit.is_empty() { "an unknown commit".to_owned() } else { commit.to_owned() };
        match commits.as_slice() {
            [] => None,
            [(one, _)] => Some(shown(one)),
            more => Some(
                more.iter()
                    .map(|(c, n)| format!("{} ({})", shown(c), plural(*n, "result")))
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
        }
    }

    /// What a reader must know of figures that do not belong together.
    pub fn mixture(&self) -> Option<String> {
        let mixed = self.commits().len() > 1;
        self.commit().filter(|_| mixed).map(|all| format!("the results are of different commits: {all}"))
    }

    fn cell(&self, test: &str, engine: &str) -> Option<&Cell> {
        self.cells.get(&(test.to_owned(), engine.to_owned()))
    }

    /// The first engine's rate over that of the best other one, where all three questions have answers: is it there, is
    /// it right, is there another that is.
    fn lead(&self, test: &str) -> Option<f64> {
        let right = |engine: &String| self.cell(test, engine).filter(|c| c.unsound().is_none()).map(|c| c.rate);
        let best = self.engines[1..].iter().filter_map(right).fold(0.0, f64::max);
        right(&self.engines[0]).filter(|_| best > 0.0).map(|own| own / best)
    }

    /// One figure of all engines: `a / b / c`.
    fn list(&self, test: &str, figure: impl Fn(&Cell) -> Option<String>) -> String {
        let one = |engine: &String| self.cell(test, engine).and_then(&figure).unwrap_or_else(|| "-".into());
        self.engines.iter().map(one).collect::<Vec<_>>().join(" / ")
    }

    /// What an engine's figures became since an earlier version's: the first engine that both tables have.
    pub fn since(&self, old: &Table) -> Result<String> {
        let engine = self.engines.iter().find(|e| old.engines.contains(e)).ok_or_else(|| {
            Error::usage(format!("{} and {} have no engine in common", old.path.display(), self.path.display()))
        })?;
        let mut out = format!(
            "| {engine} | old /s | new /s | x | p99 us | peak RSS MiB | disk MiB |\n|---|---|---|---|---|---|---|\n"
        );
        let mut any = false;
        for test in &self.tests {
            let (Some(a), Some(b)) = (old.cell(test, engine), self.cell(test, engine)) else { continue };
            any = true;
            let ratio = if a.rate > 0.0 { format!("**{}**", sig3(b.rate / a.rate)) } else { "-".into() };
            out.push_str(&format!(
                "| {test} | {} | {} | {ratio} | {} / {} | {} / {} | {} / {} |\n",
                rate(a),
                rate(b),
                figure(a.p99),
                figure(b.p99),
                figure(a.rss),
                figure(b.rss),
                figure(a.disk),
                figure(b.disk)
            ));
        }
        if any { Ok(out) } else { Err(Error::usage("the two files have no test in common")) }
    }
}

/// The tests of a file that have several kinds of operations, beside the loading of what they read.
fn mixed<'a>(header: &[Cow<'_, str>], text: &'a str) -> BTreeSet<&'a str> {
    let column = |name: &str| header.iter().position(|h| h == name);
    let (Some(test), Some(operation)) = (column("test_name"), column("operation")) else { return BTreeSet::new() };
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let rows = text.lines().skip(1).filter_map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        Some((*cells.get(test)?, *cells.get(operation)?))
    });
    rows.filter(|(test, operation)| *operation != "LOAD" && *first.entry(*test).or_insert(*operation) != *operation)
        .map(|(test, _)| test)
        .collect()
}

/// A column beside the rates, and how a cell of it is shown.
type Figure = (&'static str, fn(&Cell) -> Option<String>);

/// All there are. The table has the first of them: six, and those of transactions where there are any.
const FIGURES: [Figure; 15] = [
    ("p50 us", |c| Some(figure(c.p50))),
    ("p99 us", |c| Some(figure(c.p99))),
    ("p99.9 us", |c| Some(figure(c.p999))),
    ("max ms", |c| Some(figure(c.max / 1000.0))),
    ("peak RSS MiB", |c| Some(figure(c.rss))),
    ("disk MiB", |c| Some(figure(c.disk))),
    ("aborts %", |c| c.abort_rate.map(|r| figure(r * 100.0))),
    ("write amp", |c| c.write_amp.map(figure)),
    ("read amp", |c| c.read_amp.map(figure)),
    ("space amp", |c| c.space_amp.map(figure)),
    ("settled CPU s", |c| c.settled.map(|s| sig3(s.cpu))),
    ("settled s", |c| c.settled.map(|s| sig3(s.seconds))),
    ("settled written MiB", |c| c.settled.map(|s| sig3(s.written))),
    ("settled space MiB", |c| c.settled.map(|s| sig3(s.disk))),
    ("settled RSS MiB", |c| c.settled.map(|s| sig3(s.rss))),
];

/// A figure of [`Settled`]: less is better in each.
type SettledFigure = (&'static str, fn(&Settled) -> f64);

/// All of them, in the order of the table.
const SETTLED: [SettledFigure; 5] = [
    ("CPU s", |s| s.cpu),
    ("wall s", |s| s.seconds),
    ("written MiB", |s| s.written),
    ("space MiB", |s| s.disk),
    ("RSS MiB", |s| s.rss),
];

/// Three significant digits at least; nothing at all is `0`.
fn figure(x: f64) -> String {
    if x == 0.0 { "0".into() } else { sig3(x) }
}

/// A rate, or why there is none to speak of.
fn rate(cell: &Cell) -> String {
    if let Some(why) = cell.unsound() {
        return why.to_owned();
    }
    match cell {
        c if c.rate >= 999_500.0 => format!("{} M", sig3(c.rate / 1e6)),
        c if c.rate >= 9_995.0 => format!("{} k", sig3(c.rate / 1e3)),
        c if c.rate >= 999.5 => show_count(c.rate),
        c => figure(c.rate),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transactional = self.cells.values().any(|c| c.abort_rate.is_some());
        let mut more = if self.rates_only { vec![] } else { FIGURES.to_vec() };
        more.truncate(if transactional { 7 } else { 6 });
        write!(f, "| test |")?;
        for engine in &self.engines {
            write!(f, " {engine} /s |")?;
        }
        write!(f, " x best other |")?;
        for (name, _) in &more {
            write!(f, " {name} |")?;
        }
        writeln!(f, "\n|{}", "---|".repeat(self.engines.len() + 2 + more.len()))?;
        for test in &self.tests {
            write!(f, "| {test} |")?;
            self.push_rates(f, test);
            for (_, figure) in &more {
                write!(f, " {} |", self.list(test, figure))?;
            }
            writeln!(f)?;
        }
        self.settled(f)
    }
}

impl Table {
    /// The cost of writes until compaction was idle, and how many times as much the best other engine took.
    fn settled(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = |test: &str, engine: &str| self.cell(test, engine).filter(|c| c.unsound().is_none())?.settled;
        let has_any = |test: &&String| self.engines.iter().any(|e| cost(test, e).is_some());
        let tests: Vec<&String> = self.tests.iter().filter(has_any).collect();
        if tests.is_empty() {
            return Ok(());
        }
        write!(f, "\n| settled cost: {} |", self.engines.join(" / "))?;
        SETTLED.iter().try_for_each(|(name, _)| write!(f, " {name} | x best other |"))?;
        writeln!(f, "\n|{}", "---|".repeat(1 + 2 * SETTLED.len()))?;
        for test in tests {
            write!(f, "| {test} |")?;
            for (_, figure) in &SETTLED {
                let shown = |engine: &String| cost(test, engine).map_or("-".into(), |c| sig3(figure(&c)));
                let all: Vec<String> = self.engines.iter().map(shown).collect();
                let others = self.engines[1..].iter().filter_map(|e| cost(test, e)).map(|c| figure(&c));
                let best = others.fold(f64::INFINITY, f64::min);
                let own = cost(test, &self.engines[0]).map(|c| figure(&c)).filter(|own| *own > 0.0 && best.is_finite());
                let lead = own.map_or("-".into(), |own| format!("**{}**", sig3(best / own)));
                write!(f, " {} | {lead} |", all.join(" / "))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "engine,test_name,operation,ops_per_sec,p50_us,p99_us,p999_us,max_us,peak_rss_mib,db_size_mib,wrong,\
                          commits,commits_per_sec,abort_rate,lost_updates,repeats,rate_low,rate_high\n";

    pub fn table(rows: &str) -> Result<Table> {
        Table::parse(Path::new("x.csv"), &format!("{HEADER}{rows}"))
    }

    #[test]
    fn the_lead_is_over_the_best_that_is_right() {
        let t = table(
            "kingtide,get,LOAD,1,1,1,1,1,1,1,0,,,,\nkingtide,get,GET,3000000,1,2,3,4000,50,60,0,,,,\n\
             rocksdb,get,GET,1000000,1,2,3,4000,50,60,0,,,,\ntidesdb,get,GET,9000000,1,2,3,4000,50,60,7,,,,\n\
             kingtide,rmw,TXN,10,1,2,3,4,5,6,0,9,20000,0.125,0\nrocksdb,rmw,TXN,10,1,2,3,4,5,6,1,9,50,0,3\n",
        )
        .unwrap();
        let shown = t.to_string();
        assert!(shown.contains("| get | 3.00 M | 1.00 M | wrong answers | **3.00** |"), "{shown}");
        assert!(shown.contains("| rmw | 20.0 k | lost updates | - | - |") && shown.contains("12.5 / 0 / -"), "{shown}");
        assert!(shown.lines().all(|l| l.matches('|').count() == shown.lines().next().unwrap().matches('|').count()));
    }

    /// The names of columns that hold MiB once ended in `_mb`.
    #[test]
    fn files_with_the_names_of_earlier_columns_are_read() {
        let rows = "kingtide,get,GET,3000000,1,2,3,4000,50,60,0,,,,\n";
        let (new, old) = (HEADER, HEADER.replace("_mib", "_mb"));
        let [new, old] =
            [new, &old].map(|h| Table::parse(Path::new("x.csv"), &format!("{h}{rows}")).unwrap().to_string());
        assert!(new == old && new.contains("50.0"), "{new}\n{old}");
    }

    #[test]
    fn every_figure_has_three_digits() {
        let t = table(
            "kingtide,slow,GET,0.3123,0.1234,1234.5,3,4000,5.126,60,0,,,,\n\
             rocksdb,slow,GET,0.3671,15.25,2,3,4,5,6,0,,,,\nkingtide,mid,GET,32417,1,2,3,4,5,6,0,,,,\n\
             rocksdb,mid,GET,9996,1,2,3,4,5,6,0,,,,\nkingtide,low,GET,7.25,1,2,3,4,5,6,0,,,,\n\
             rocksdb,low,GET,999700,1,2,3,4,5,6,0,,,,\n",
        )
        .unwrap();
        let shown = t.to_string();
        for cells in [
            "| slow | 0.312 | 0.367 | **0.851** | 0.123 / 15.2 | 1234 / 2.00 | 3.00 / 3.00 | 4.00 / 0.00400 | 5.13 / 5.00 |",
            "| mid | 32.4 k | 10.0 k | **3.24** |",
            "| low | 7.25 | 1.00 M | **0.00000725** |",
        ] {
            assert!(shown.contains(cells), "{shown}");
        }
    }

    #[test]
    fn settled_costs_have_a_table_where_there_are_any() {
        let header = HEADER.trim_end().to_owned()
            + ",settled_sec,settled_cpu_sec,settled_write_mib,settled_db_size_mib,settled_rss_mib\n";
        let rows = "kingtide,load,PUT,10,1,1,1,1,1,1,0,,,,,,,,2,1,100,50,20\n\
                    rocksdb,load,PUT,10,1,1,1,1,1,1,0,,,,,,,,3,4,150,40,10\n\
                    kingtide,get,GET,10,1,1,1,1,1,1,0,,,,,,,,,,,,\n";
        let t = Table::parse(Path::new("x.csv"), &format!("{header}{rows}")).unwrap();
        let shown = t.to_string();
        let line = "| load | 1.00 / 4.00 | **4.00** | 2.00 / 3.00 | **1.50** | 100 / 150 | **1.50** | 50.0 / 40.0 | \
                    **0.800** | 20.0 / 10.0 | **0.500** |";
        assert!(shown.contains(line), "{shown}");
        assert!(!shown.split("settled cost").nth(1).unwrap().contains("| get |"), "{shown}");
        let page = t.page(&About { title: "x".into(), facts: vec![], troubles: vec![] });
        assert!(page.contains("settled CPU s"), "the page has them too");
        assert!(!table("kingtide,get,GET,1,1,1,1,1,1,1,0,,,,\n").unwrap().to_string().contains("settled"));
    }

    #[test]
    fn a_test_with_two_operations_is_two_tests() {
        let row = |engine: &str, test: &str, op: &str, rate| format!("{engine},{test},{op},{rate},1,2,3,4,5,6,0,,,,\n");
        let rows = row("kingtide", "mixed", "LOAD", 7)
            + &row("kingtide", "mixed", "PUT", 300)
            + &row("kingtide", "mixed", "GET", 500)
            + &row("rocksdb", "mixed", "PUT", 200)
            + &row("rocksdb", "mixed", "GET", 250)
            + &row("kingtide", "get", "LOAD", 7)
            + &row("kingtide", "get", "GET", 40)
            + &row("kingtide", "get", "GET", 50);
        let shown = table(&rows).unwrap().to_string();
        for cells in
            ["| mixed/put | 300 | 200 | **1.50** |", "| mixed/get | 500 | 250 | **2.00** |", "| get | 50.0 | - |"]
        {
            assert!(shown.contains(cells), "{cells}: {shown}");
        }
        assert!(!shown.contains("| mixed |"), "{shown}");
    }

    #[test]
    fn engines_whose_calls_fail_are_not_ranked() {
        let header =
            "workload\tengine\tthreads\tsweep_param\tsweep_value\trepeat\top\tp99_ns\twu_per_s\twrong\tfailed\n";
        let lines: String = [("kingtide", 50, 0), ("rocksdb", 900, 3)]
            .map(|(e, rate, failed)| format!("fill\t{e}\t1\t\t1\t0\tput\t1\t{rate}\t0\t{failed}\n"))
            .concat();
        let path = std::env::temp_dir().join(format!("keybench-failing-{}.tsv", std::process::id()));
        std::fs::write(&path, format!("{header}{lines}")).unwrap();
        let t = Table::read(&path);
        std::fs::remove_file(&path).unwrap();
        let t = t.unwrap();
        assert!(t.to_string().contains("| fill/1 | 50.0 | failed calls | - |"), "{t}");
        let page = t.page(&About { title: "x".into(), facts: vec![], troubles: vec![] });
        assert!(page.contains("3 calls failed"), "the page says it too");
    }

    /// Rows are added to a file that is there, by whatever program is run next.
    #[test]
    fn figures_of_different_commits_are_told() {
        let header = HEADER.trim_end().to_owned() + ",commit\n";
        let row = |engine: &str, test: &str, commit: &str| {
            format!("{engine},{test},GET,1,1,1,1,1,1,1,0,,,,,1,1,1,{commit}\n")
        };
        let told = |rows: &[String]| {
            let table = Table::parse(Path::new("x.csv"), &format!("{header}{}", rows.concat())).unwrap();
            (table.commit(), table.mixture())
        };
        let (old, new) = (row("kingtide", "get", "aaa"), row("kingtide", "get", "bbb"));
        assert_eq!(told(&[old.clone(), row("rocksdb", "get", "aaa")]), (Some("aaa".into()), None));
        assert_eq!(told(&[old.clone(), new.clone()]), (Some("bbb".into()), None), "the later row counts");
        let both = "bbb (1 result), aaa (2 results)";
        let three = [old, row("rocksdb", "get", "aaa"), row("kingtide", "put", "aaa"), new];
        assert_eq!(told(&three), (Some(both.into()), Some(format!("the results are of different commits: {both}"))));
        let (none, mixed) = told(&[row("kingtide", "get", "aaa"), row("kingtide", "put", "")]);
        assert!(none.unwrap().ends_with("an unknown commit (1 result)") && mixed.is_some());
        assert_eq!(table("kingtide,get,GET,1,1,1,1,1,1,1,0,,,,\n").unwrap().commit(), None);
    }

    #[test]
    fn versions_are_compared() {
        let old = table("tidesdb,get,GET,100,1,2,3,4,5,6,0,,,,\n").unwrap();
        let new = table("rocksdb,get,GET,1,1,2,3,4,5,6,0,,,,\ntidesdb,get,GET,150,1,2,3,4,5,6,0,,,,\n").unwrap();
        assert!(new.since(&old).unwrap().contains("| get | 100 | 150 | **1.50** |"));
        let other = table("tidesdb,put,PUT,100,1,2,3,4,5,6,0,,,,\n").unwrap();
        assert!(new.since(&other).is_err());
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_line() {
        assert!(table("").unwrap_err().to_string().contains("x.csv:1: has no results"));
        let e = table("kingtide,get,GET,fast,1,2,3,4,5,6,0,,,,\n").unwrap_err().to_string();
        assert!(e.contains("x.csv:2: ops_per_sec: 'fast' is not a number"), "{e}");
        let e = table("kingtide,get,GET,300,1,2,3,4,5,6,0,,,,\nrocksdb,get,GE").unwrap_err().to_string();
        assert!(e.contains("x.csv:3: 3 of 18 columns: the file is cut off or damaged here"), "{e}");
        assert!(Table::parse(Path::new("x"), "a,b\n1,2\n").unwrap_err().to_string().contains("no column 'operation'"));
    }

    #[test]
    fn a_short_table_has_the_rows_that_its_file_names() {
        let suite = table("kingtide,get,GET,300,1,2,3,4,5,6,0,,,,\nrocksdb,get,GET,200,1,2,3,4,5,6,0,,,,\n").unwrap();
        let header = "workload\tengine\tthreads\tsweep_param\tsweep_value\trepeat\top\tp99_ns\twu_per_s\n";
        let lines: String = [("kingtide", 0, 40), ("kingtide", 1, 60), ("kingtide", 2, 50), ("rocksdb", 0, 25)]
            .map(|(e, r, rate)| format!("batch\t{e}\t8\tbatch\t64\t{r}\tmget\t1\t{rate}\n"))
            .concat();
        let dir = std::env::temp_dir().join(format!("keybench-brief-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("points.tsv"), format!("{header}{lines}")).unwrap();
        let both = suite.and(Table::read(&dir).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();

        let rows = |text| Rows::parse(Path::new("rows.txt"), text).unwrap();
        let brief = both.brief(&rows("# what README shows\nbatch/8/64  batches of 64\nget  random get\n")).unwrap();
        let wanted = "| per second | kingtide | rocksdb | x best other |\n|---|---|---|---|\n\
                      | batches of 64 | 50.0 | 25.0 | **2.00** |\n| random get | 300 | 200 | **1.50** |\n";
        assert_eq!(brief, wanted);
        let e = both.brief(&rows("get  random get\ngte  a get\n")).unwrap_err().to_string();
        assert!(e.contains("rows.txt:2") && e.contains("did you mean 'get'"), "{e}");
        assert!(Rows::parse(Path::new("r"), "get\n").unwrap_err().to_string().contains("r:1"));
    }
}
