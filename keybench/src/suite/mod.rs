//! `keybench suite NAME`: a named list of native tests on several engines, and the table of what came of them.

mod brief;
mod list;
mod table;

use crate::error::{Error, Result};
use crate::figure;
use crate::micro;
use crate::options::switch;
use crate::process::{self, Machine};
use crate::say::{note, say, say_part};
use brief::Rows;
use clap::Parser;
use kingtide_base::options::nearest;
use list::{SUITES, Suite};
use std::path::{Path, PathBuf};
use table::{About, Table};

/// Runs a named list of native tests, engines interleaved, and draws up the table.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Which suite; without one, what there are
    pub name: Option<String>,
    /// Part of the counts that is run: 0.01 turns ten million operations into a hundred thousand
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Engines, separated by commas
    #[arg(short, long, alias = "engine", alias = "backend", default_value = "kingtide,rocksdb,tidesdb")]
    pub engines: String,
    /// Runs of each test; figures are medians
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
    /// Only tests whose names begin so; a list separated by commas
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// What every test is told besides, as in --also "--opt kingtide.l0_trigger=8 -t 4"
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub also: Option<String>,
    /// Before what is measured, take a store's files from the page cache, in tests that load first: see keybench micro
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub drop_cache: bool,
    /// Writes PREFIX.csv, PREFIX.txt, PREFIX.html and PREFIX-figures; rows are added to a CSV file and a text that are there
    #[arg(long, default_value = "bench-data/suite", value_name = "PREFIX")]
    pub out: PathBuf,
    /// Draw figures into PREFIX-figures when all is run
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", value_parser = switch)]
    pub auto_plot: bool,
    /// Directory for the stores
    #[arg(short, long, default_value = "bench-data")]
    pub db_path: PathBuf,
    /// Run nothing: print the table of these files: CSV of suites, repeats.tsv or points.tsv of runs
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "name")]
    pub table: Vec<PathBuf>,
    /// Of --table only rates, and only the tests that this file names: on each line a test and what to call it
    #[arg(long, value_name = "FILE", requires = "table")]
    pub rows: Option<PathBuf>,
    /// Of --table write a page too
    #[arg(long, value_name = "FILE", requires = "table", conflicts_with = "rows")]
    pub page: Option<PathBuf>,
    /// Run nothing: list the suite's tests, each with its arguments for `keybench micro`
    #[arg(long, requires = "name")]
    pub list: bool,
    /// Run nothing: compare an engine's figures in two CSV files, of an earlier version and of a later
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["name", "table"])]
    pub versions: Option<Vec<PathBuf>>,
}

/// The arguments of a test, for the parser that `keybench micro` has.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Line {
    #[command(flatten)]
    args: micro::Args,
}

/// A test of a suite.
struct Test {
    name: String,
    args: micro::Args,
    /// What it was told, for the report.
    words: String,
}

/// Runs `keybench suite`.
pub fn main(args: &Args) -> Result<()> {
    if let [first, rest @ ..] = args.table.as_slice() {
        let table = rest.iter().try_fold(Table::read(first)?, |table, path| Ok(table.and(Table::read(path)?)))?;
        match &args.rows {
            Some(path) => say_part!("{}", table.brief(&Rows::read(path)?)?),
            None => say_part!("{table}"),
        }
        if let Some(path) = &args.page {
            let names: Vec<String> = args.table.iter().map(|p| p.display().to_string()).collect();
            let mut facts = vec![("files", names.join(", "))];
            facts.extend(table.commit().map(|commit| ("commit", commit)));
            let troubles = table.mixture().into_iter().collect();
            write_page(path, &table, About { title: format!("Results of {}", names.join(", ")), facts, troubles })?;
        }
        return Ok(());
    }
    if let Some([old, new]) = args.versions.as_deref() {
        say_part!("{}", Table::read(new)?.since(&Table::read(old)?)?);
        return Ok(());
    }
    let Some(name) = &args.name else {
        say_part!("{}", overview());
        return Ok(());
    };
    let suite = find(name)?;
    let tests = tests(suite, args)?;
    if args.list {
        tests.iter().for_each(|t| say!("{:<16} keybench micro {}", t.name, t.words.trim_end()));
        return Ok(());
    }
    let (csv, text) = (output(&args.out, "csv"), output(&args.out, "txt"));
    if let Some(dir) = args.out.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    }
    let mut facts = facts(suite, args);
    append(&text, &facts.iter().map(|(name, fact)| format!("{name}: {fact}\n")).collect::<String>())?;
    let Ended { failed, warnings, interrupted } = run(&tests, &csv, &text)?;
    let table = match Table::read(&csv) {
        // Perhaps before anything was measured.
        Err(_) if interrupted => return Err(Error::Interrupted),
        table => table?,
    };
    // The file may have rows of earlier runs.
    if let (Some(commit), Some((_, fact))) = (table.commit(), facts.iter_mut().find(|(name, _)| *name == "commit")) {
        *fact = commit;
    }
    let untold = || "its rows do not name their commits, which may be different ones".to_owned();
    let mixture = table.mixture().or_else(|| table.commit().is_none().then(untold));
    let mixture = mixture.map(|mixture| format!("{}: {mixture}", csv.display()));
    mixture.iter().for_each(|mixture| note!("warning: {mixture}"));
    let warnings = mixture.into_iter().chain(warnings).collect();
    let page = output(&args.out, "html");
    let title = format!("Suite {} on {}", suite.name, args.engines.replace(',', ", "));
    write_page(&page, &table, About { title, facts, troubles: [failed.clone(), warnings].concat() })?;
    say!("\n{table}\n{}, {} and {}", csv.display(), text.display(), page.display());
    if args.auto_plot {
        let dir = figures_beside(&csv);
        figure::write(&dir, &table.draw(&shared_by_all(suite, args)))?;
        say!("figures: {}", dir.display());
    }
    match failed.is_empty() {
        _ if interrupted => Err(Error::Interrupted),
        true => Ok(()),
        false => Err(Error::failed(failed.join("; "))),
    }
}

/// What came of a suite's tests besides their figures.
struct Ended {
    failed: Vec<String>,
    /// What a reader must know before the figures, with the tests that it is about.
    warnings: Vec<String>,
    /// Whether a stop was requested.
    interrupted: bool,
}

/// Things to say of tests, each once, with the names of the tests.
struct Said<'t, T>(Vec<(T, Vec<&'t str>)>);

impl<'t, T: std::fmt::Display> Said<'t, T> {
    /// Says `what` of a test too. `both` is what says both of two things, if there is such a thing.
    fn say(&mut self, what: T, test: &'t str, both: impl Fn(&T, &T) -> Option<T>) {
        let known = self.0.iter_mut().find_map(|(known, of)| both(known, &what).map(|both| (both, known, of)));
        match known {
            Some((both, known, of)) => {
                *known = both;
                of.push(test);
            }
            None => self.0.push((what, vec![test])),
        }
    }

    /// One line for each thing.
    fn lines(&self, tests: usize) -> Vec<String> {
        let line = |(what, of): &(T, Vec<&str>)| match of.len() {
            n if n == tests && n > 2 => format!("all {n} tests: {what}"),
            _ => format!("{}: {what}", of.join(", ")),
        };
        self.0.iter().map(line).collect()
    }
}

/// Runs tests and writes down what came of each.
fn run(tests: &[Test], csv: &Path, text: &Path) -> Result<Ended> {
    let (mut failed, mut warnings, mut interrupted) = (Said(Vec::new()), Said(Vec::new()), false);
    let same = |a: &String, b: &String| (a == b).then(|| a.clone());
    for (at, test) in tests.iter().enumerate() {
        note!("== {} of {}: {}", at + 1, tests.len(), test.name);
        let measured = match micro::measure(&test.args) {
            Ok(measured) => measured,
            // The tests before it have their rows, and those behind it may do better.
            Err(e) => {
                failed.say(e.to_string(), &test.name, same);
                continue;
            }
        };
        for warning in &measured.warnings {
            warnings.say(warning.clone(), &test.name, micro::Warning::with);
        }
        append(text, &format!("== {}: keybench micro {}{}\n", test.name, test.words, measured.text))?;
        say_part!("{}", measured.text);
        micro::append_csv(csv, &measured)?;
        if measured.sound == Err(Error::Interrupted) {
            interrupted = true;
            failed.say("interrupted; tests behind it were not run".to_owned(), &test.name, same);
            break;
        }
        if let Err(e) = measured.sound {
            failed.say(e.to_string(), &test.name, same);
        }
    }
    Ok(Ended { failed: failed.lines(tests.len()), warnings: warnings.lines(tests.len()), interrupted })
}

/// What a figure that stands alone says of the suite.
fn shared_by_all(suite: &Suite, args: &Args) -> String {
    let repeats = match args.repeat {
        1 => "1 run".to_owned(),
        n => crate::figure::of_repeats(n),
    };
    format!("suite {}, scale {}, {repeats}; {}", suite.name, args.scale, process::describe_machine())
}

/// A file of results: the prefix that `--out` gives, and what kind it is. `glibc-2.36` is a prefix as it is; of `glibc.csv` the
/// prefix is `glibc`.
fn output(out: &Path, kind: &str) -> PathBuf {
    let named = out.extension().is_some_and(|e| ["csv", "txt", "html"].iter().any(|own| e == *own));
    let mut name = if named { out.with_extension("") } else { out.to_owned() }.into_os_string();
    name.push(".");
    name.push(kind);
    name.into()
}

/// Where the figures of a suite's CSV file go.
fn figures_beside(csv: &Path) -> PathBuf {
    let mut name = csv.file_stem().unwrap_or_default().to_owned();
    name.push("-figures");
    csv.with_file_name(name)
}

/// Draws the figures of a suite that was run before into `out`, or beside its CSV file. Returns where, and how many.
///
/// # Errors
/// A file that is no such CSV; what the file system says.
pub fn plot(csv: &Path, out: Option<&Path>) -> Result<(PathBuf, usize)> {
    let figures = Table::read(csv)?.draw("");
    let dir = out.map_or_else(|| figures_beside(csv), Path::to_owned);
    figure::write(&dir, &figures)?;
    Ok((dir, figures.len()))
}

fn overview() -> String {
    let line = |s: &Suite| format!("{:<20} {} ({} tests)\n", s.name, s.about, rows(s).count());
    SUITES.iter().map(line).collect()
}

pub(crate) fn find(name: &str) -> Result<&'static Suite> {
    let names: Vec<&str> = SUITES.iter().map(|s| s.name).collect();
    SUITES.iter().find(|s| s.name == name).ok_or_else(|| {
        Error::usage(format!("no suite '{name}'{} (known: {})", nearest(name, &names), names.join(", ")))
    })
}

/// Names of a suite's tests and their arguments.
fn rows(suite: &Suite) -> impl Iterator<Item = (&'static str, &'static str)> {
    suite.rows.lines().map(str::trim).filter(|l| !l.is_empty()).filter_map(|l| l.split_once(' '))
}

/// The tests that `args` asks for, all checked before the first is run.
fn tests(suite: &Suite, args: &Args) -> Result<Vec<Test>> {
    if !(args.scale > 0.0 && args.scale <= 1000.0) {
        return Err(Error::usage(format!("--scale {}: use more than 0 and at most 1000", args.scale)));
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|o| name.starts_with(o.as_str()));
    let mut tests = Vec::new();
    for (name, row) in rows(suite).filter(|(name, _)| wanted(name)) {
        let words = scaled(&format!("{} {row}", suite.common), args.scale)?;
        let also = args.also.as_deref().unwrap_or_default();
        let all = words.iter().map(String::as_str).chain(also.split_whitespace());
        let mut parsed = Line::try_parse_from(all).map_err(|e| Error::usage(format!("{name}: {e}")))?.args;
        parsed.engine.clone_from(&args.engines);
        parsed.repeat = args.repeat;
        parsed.test_name = Some(name.to_owned());
        parsed.db_path.clone_from(&args.db_path);
        parsed.hot_keys = parsed.hot_keys.map(|n| n.min(parsed.operations));
        parsed.drop_cache |= args.drop_cache && parsed.workload.loads_first() && parsed.phases.is_none();
        parsed.plan().map_err(|e| e.context(name))?;
        tests.push(Test { name: name.to_owned(), args: parsed, words: format!("{} {also}", words.join(" ")) });
    }
    if tests.is_empty() {
        return Err(Error::usage(format!("--only {}: suite {} has no such test", args.only.join(","), suite.name)));
    }
    Ok(tests)
}

/// A row's words with its counts scaled. Of a flag given twice the later counts; a test has 1,000 operations at least, or as
/// many as it is listed with.
fn scaled(row: &str, scale: f64) -> Result<Vec<String>> {
    let mut words: Vec<(String, Option<String>)> = Vec::new();
    for word in row.split_whitespace() {
        match words.last_mut() {
            Some((flag, value @ None)) if flag.starts_with('-') && !word.starts_with('-') => {
                *value = Some(word.to_owned())
            }
            _ => words.push((word.to_owned(), None)),
        }
    }
    let last = |words: &[(String, Option<String>)], i: usize| !words[i + 1..].iter().any(|(f, _)| *f == words[i].0);
    let kept: Vec<_> = (0..words.len()).filter(|i| last(&words, *i)).map(|i| words[i].clone()).collect();
    let entry = kept.iter().find(|(f, _)| f == "-v").and_then(|(_, v)| v.as_deref());
    let entry = 16 + kingtide_base::options::parse_size(entry.unwrap_or("100")).map_err(Error::usage)?;
    let count = |text: &str| -> Result<u64> {
        let listed = count(text, entry)?;
        Ok(((listed as f64 * scale).round() as u64).max(listed.min(1_000)))
    };
    let operations = kept.iter().find(|(f, _)| f == "-o").and_then(|(_, v)| v.as_deref()).map(count).transpose()?;
    let mut out = Vec::new();
    for (flag, value) in kept {
        let value = match (flag.as_str(), value) {
            ("-o", Some(v)) => Some(count(&v)?.to_string()),
            ("--reads", Some(v)) => Some(match v.strip_suffix('%') {
                Some(share) => {
                    let share: f64 = share.parse().map_err(|_| Error::usage(format!("'{v}' is not a share")))?;
                    ((operations.unwrap_or(0) as f64 * share / 100.0) as u64).max(1).to_string()
                }
                None => count(&v)?.to_string(),
            }),
            (_, Some(v)) if v == "QUARTER" => Some((memory() / 4).to_string()),
            (_, value) => value,
        };
        out.push(flag);
        out.extend(value);
    }
    Ok(out)
}

/// `10M` operations: a decimal suffix, as counts have. `TWICE`: as many entries as fill this machine's memory two times.
fn count(text: &str, entry: u64) -> Result<u64> {
    if text == "TWICE" {
        return Ok(2 * memory() / entry);
    }
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().map(|n| n * factor).map_err(|_| Error::usage(format!("'{text}' is not a count")))
}

/// This machine's, in bytes.
fn memory() -> u64 {
    Machine::now().memory.max(1 << 30)
}

/// What a reader must know of the run, in front of its tests.
fn facts(suite: &Suite, args: &Args) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("suite", format!("{}: {}", suite.name, suite.about)),
        ("command", format!("keybench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "))),
        ("scale", args.scale.to_string()),
        ("commit", env!("KEYBENCH_COMMIT").to_owned()),
        ("machine", process::describe_machine()),
        ("page cache", if args.drop_cache { "dropped before reads" } else { "as loading left it" }.to_owned()),
        ("date", crate::clock::today()),
    ];
    facts.extend(crate::machine::facts(&args.db_path));
    facts
}

fn write_page(path: &Path, table: &Table, mut about: About<'_>) -> Result<()> {
    if cfg!(debug_assertions) {
        about.troubles.insert(0, "keybench was built without optimisation: these figures are meaningless.".into());
    }
    std::fs::write(path, table.page(&about)).map_err(|e| Error::io("write", path, e))
}

fn append(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let io = |e| Error::io("write", path, e);
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::try_parse_from(line.split_whitespace()).unwrap().args
    }

    #[test]
    fn every_suite_can_be_run_at_every_scale() {
        for suite in SUITES {
            for scale in ["1", "0.0001", "0.5"] {
                let tests = tests(suite, &args(&format!("{} --scale {scale}", suite.name))).unwrap();
                let mut names: Vec<&str> = tests.iter().map(|t| t.name.as_str()).collect();
                assert_eq!(names.len(), rows(suite).count());
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), tests.len(), "{}: names are unique", suite.name);
            }
        }
    }

    #[test]
    fn what_is_so_of_several_tests_is_said_once() {
        let small = |bytes: u64| micro::Warning::Small { least: bytes, most: bytes, memtable: 64 << 20 };
        let mut said = Said(Vec::new());
        for (at, test) in ["put", "get", "scan"].into_iter().enumerate() {
            said.say(small((at as u64 + 1) << 20), test, micro::Warning::with);
        }
        said.say(micro::Warning::Small { least: 1, most: 1, memtable: 8 << 20 }, "scan", micro::Warning::with);
        let lines = said.lines(3);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("all 3 tests: the data sets of 1.00 MiB to 3.00 MiB are under four"), "{lines:?}");
        assert!(lines[1].starts_with("scan: the data set of 1 B is under four times"), "{lines:?}");
        assert!(said.lines(4)[0].starts_with("put, get, scan: "), "{lines:?}");
    }

    #[test]
    fn counts_are_scaled_and_later_flags_count() {
        let words = |row: &str, scale| scaled(row, scale).unwrap().join(" ");
        assert_eq!(words("-t 8 -o 10M -w read --reads 500K -t 2", 0.1), "-o 1000000 -w read --reads 50000 -t 2");
        assert_eq!(words("-o 10M --reads 1%", 0.5), "-o 5000000 --reads 50000");
        assert_eq!(words("-o 10 -v 1G", 0.01), "-o 10 -v 1G", "no fewer than are listed");
        assert_eq!(words("-o 1M --sync", 0.00001), "-o 1000 --sync");
        assert!(scaled("-o many", 1.0).is_err());
        let twice: u64 = scaled("-o TWICE", 1.0).unwrap()[1].parse().unwrap();
        assert!(twice > (1 << 30) / 116);
    }

    /// The example of the help, and a switch that the suite's own words have already.
    #[test]
    fn what_is_said_besides_overrides_the_row() {
        let suite = find("core").unwrap();
        let mut line = args("core --only put_sync_8");
        line.also = Some("--opt kingtide.l0_trigger=8 -t 4 --sync".into());
        let tests = tests(suite, &line).unwrap();
        assert_eq!((tests[0].args.threads, tests[0].args.engine_flags.sync), (4, true));
    }

    #[test]
    fn a_point_in_a_prefix_is_part_of_it() {
        for (out, csv) in [("a/glibc-2.36", "a/glibc-2.36.csv"), ("glibc.csv", "glibc.csv"), ("x", "x.csv")] {
            assert_eq!(output(Path::new(out), "csv"), Path::new(csv));
        }
        assert_eq!(output(Path::new("run.html"), "txt"), Path::new("run.txt"));
        assert_eq!(figures_beside(Path::new("a/glibc-2.36.csv")), Path::new("a/glibc-2.36-figures"));
    }

    #[test]
    fn mistakes_are_told() {
        assert!(find("standart").err().unwrap().to_string().contains("did you mean 'standard'"));
        let suite = find("core").unwrap();
        for (line, wanted) in [
            ("core --scale 0", "--scale"),
            ("core --only nothing", "no such test"),
            ("core --engines rokcsdb", "rocksdb"),
            ("core --also --no-such-flag", "no-such-flag"),
        ] {
            let e = tests(suite, &args(line)).err().unwrap_or_else(|| panic!("'{line}' was accepted"));
            assert!(e.exit_code() == 2 && e.to_string().contains(wanted), "{line}: {e}");
        }
        assert!(overview().contains("larger-than-memory"));
    }
}
