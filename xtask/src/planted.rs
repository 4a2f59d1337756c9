//! `cargo xtask planted`: shows that the tests find bugs that were planted on purpose. The table of them, and how it works,
//! is in `crates/base/src/planted.rs`.

use crate::tidy::root;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use table::{BUGS, PlantedBug};

/// The library's own file: a task depends on none of the crates that it works on.
#[allow(dead_code)]
#[path = "../../crates/base/src/planted.rs"]
mod table;

/// A bug counts as caught only if the tests say so within this time: a test that hangs must notice by itself.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `cargo xtask planted [--full] [name]`: all bugs, or those whose name contains `name`, and
/// then also what the tests say. With `--full` every bug meets
/// all tests of the target that catches it, to see how many notice.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut full, mut filter) = (false, "");
    for arg in args {
        match arg.as_str() {
            "--full" => full = true,
            name if !name.starts_with("--") => filter = name,
            _ => return Err("usage: cargo xtask planted [--full] [name]".to_owned()),
        }
    }
    let bugs: Vec<&PlantedBug> = BUGS.iter().filter(|b| b.name.contains(filter)).collect();
    if bugs.is_empty() {
        return Err(format!("no planted bug has '{filter}' in its name"));
    }
    let programs = build(&bugs)?;
    let mut healthy: BTreeMap<&str, Verdict> = BTreeMap::new();
    for bug in &bugs {
        if !healthy.contains_key(bug.caught_by) {
            let verdict = Suite::of(bug, full).run(&programs, None)?;
            if !matches!(verdict.end, End::Passed(tests) if tests > 0) {
                return Err(format!(
                    "without a bug, cargo test {}: {}\n{}",
                    bug.caught_by, verdict.end, verdict.output
                ));
            }
            healthy.insert(bug.caught_by, verdict);
        }
    }
    println!("{} sets of tests pass without a bug\n", healthy.len());
    let width = bugs.iter().map(|b| b.name.len()).max().unwrap_or(0);
    println!("{:width$}  seconds  verdict   by", "bug");
    let mut survivors = Vec::new();
    for bug in &bugs {
        let verdict = Suite::of(bug, full).run(&programs, Some(bug))?;
        let caught = matches!(verdict.end, End::Failed(_));
        let word = if caught { "caught" } else { "SURVIVED" };
        let many = if full { format!(" ({})", verdict.end) } else { String::new() };
        println!("{:width$}  {:7.1}  {word:8}  {}{many}", bug.name, verdict.seconds, bug.caught_by);
        if !filter.is_empty() {
            println!("{:width$}  {}", "", verdict.first_complaint());
        }
        if !caught {
            survivors.push(format!("{}: {} ({})", bug.name, bug.wrong, verdict.end));
        }
    }
    println!("\n{} of {} planted bugs caught", bugs.len() - survivors.len(), bugs.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("survived:\n{}", survivors.join("\n"))) }
}

/// How a run of tests ended.
enum End {
    /// So many tests, all of which passed.
    Passed(usize),
    /// So many failed; 0 if the process died before it could say.
    Failed(usize),
    /// Killed after [`LIMIT`].
    TimedOut,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Passed(n) => write!(f, "{n} tests passed"),
            End::Failed(0) => write!(f, "the process died"),
            End::Failed(n) => write!(f, "{n} tests failed"),
            End::TimedOut => write!(f, "still running after {} s", LIMIT.as_secs()),
        }
    }
}

struct Verdict {
    end: End,
    seconds: f64,
    output: String,
}

impl Verdict {
    /// What the first test that failed said.
    fn first_complaint(&self) -> String {
        let mut lines = self.output.lines().skip_while(|l| !l.contains(" panicked at ")).skip(1);
        let complaint: Vec<&str> =
            lines.by_ref().take_while(|l| !l.starts_with("note:") && !l.is_empty()).take(3).collect();
        complaint.join(" ").chars().take(200).collect()
    }
}

/// A test program, named as `cargo test` does, and what is passed on to it.
struct Suite<'a> {
    program: String,
    filters: Vec<&'a str>,
}

impl<'a> Suite<'a> {
    fn of(bug: &PlantedBug, full: bool) -> Suite<'_> {
        let mut program = Vec::new();
        let mut filters = Vec::new();
        let mut words = bug.caught_by.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-p" | "--test" => program.extend([word, words.next().unwrap_or_default()]),
                "--lib" => program.push(word),
                _ => filters.push(word),
            }
        }
        if full {
            filters.clear();
        }
        Suite { program: program.join(" "), filters }
    }

    fn run(&self, programs: &BTreeMap<String, PathBuf>, bug: Option<&PlantedBug>) -> Result<Verdict, String> {
        let path =
            programs.get(&self.program).ok_or_else(|| format!("cargo test {} built no program", self.program))?;
        let log = path.with_extension("planted.log");
        let out = std::fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let err = out.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
        let start = Instant::now();
        let mut child = Command::new(path)
            .args(&self.filters)
            .current_dir(root())
            .env("KINGTIDE_PLANTED", bug.map_or("", |b| b.name))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let success = wait(&mut child, start + LIMIT)?;
        let seconds = start.elapsed().as_secs_f64();
        let output = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
        let _ = std::fs::remove_file(&log);
        let end = match success {
            None => End::TimedOut,
            Some(true) => End::Passed(count(&output, " passed")),
            Some(false) => End::Failed(count(&output, " failed")),
        };
        Ok(Verdict { end, seconds, output })
    }
}

/// Whether the process succeeded; `None`, and it is killed, if it did not end in time.
fn wait(child: &mut Child, until: Instant) -> Result<Option<bool>, String> {
    loop {
        match child.try_wait().map_err(|e| format!("waiting for a test: {e}"))? {
            Some(status) => return Ok(Some(status.success())),
            None if Instant::now() >= until => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The number before `what` in the summary line of a test program.
fn count(output: &str, what: &str) -> usize {
    let summary = output.lines().rev().find(|l| l.starts_with("test result:")).unwrap_or_default();
    let before = summary.split(what).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Builds the test programs with the bugs in them, in a target directory of their own, which leaves the ordinary one alone.
fn build(bugs: &[&PlantedBug]) -> Result<BTreeMap<String, PathBuf>, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut programs = BTreeMap::new();
    for bug in bugs {
        let program = Suite::of(bug, true).program;
        if programs.contains_key(&program) {
            continue;
        }
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(root())
            .env("RUSTFLAGS", format!("{flags} --cfg planted").trim())
            .env("CARGO_TARGET_DIR", target.join("planted"))
            .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
            .args(program.split(' '))
            .args(["--config", "profile.dev.debug=0"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| format!("cargo could not be started: {e}"))?;
        let messages = String::from_utf8_lossy(&output.stdout);
        let path = messages.lines().filter(|l| l.contains("\"test\":true")).filter_map(executable).next_back();
        match path.filter(|_| output.status.success()) {
            Some(path) => programs.insert(program, path),
            None => return Err(format!("cargo test --no-run {program}: {}", output.status)),
        };
    }
    Ok(programs)
}

/// The path of the program that one of cargo's messages tells of.
fn executable(message: &str) -> Option<PathBuf> {
    let rest = message.split("\"executable\":\"").nth(1)?;
    Some(PathBuf::from(rest.split('"').next()?))
}
