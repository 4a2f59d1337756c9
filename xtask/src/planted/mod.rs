//! `cargo xtask planted`: shows that the tests find bugs that were planted on purpose. `planted/README.md` tells how it works
//! and how to describe one.

mod bugs;
mod copy;
mod plant;

use crate::report::Report;
use crate::tree::root;
use bugs::Bug;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Reports descriptions that are wrong, those that do not fit the source, those whose tests are gone, and bugs that are in
/// the source itself.
pub fn check(texts: &[(String, String)], report: &mut Report) {
    let bugs = bugs::read(texts, report);
    let texts = copy::map(texts);
    plant::plant(&bugs, &texts, report);
    for bug in &bugs {
        let suite = Suite::of(bug, false);
        let program = suite.program.split(" --test ").nth(1);
        let files = program.map(|name| [format!("/tests/{name}.rs"), format!("/tests/{name}/main.rs")]);
        if files.is_some_and(|ends| !texts.keys().any(|path| ends.iter().any(|end| path.ends_with(end)))) {
            let text = format!("planted bug {}: there is no test program `{}`", bug.name, suite.program);
            report.add(&bug.at.0, bug.at.1, &text);
        }
        for filter in suite.filters {
            let test = format!("fn {}", filter.rsplit("::").next().unwrap_or(filter));
            if !texts.iter().any(|(path, text)| path.ends_with(".rs") && text.contains(&test)) {
                let text = format!("planted bug {}: there is no test {filter}; name the one that fails", bug.name);
                report.add(&bug.at.0, bug.at.1, &text);
            }
        }
    }
    let is_source = |p: &str| p.starts_with("crates/") && p.contains("/src/") && p.ends_with(".rs");
    for (path, text) in texts.iter().filter(|(p, _)| is_source(p)) {
        for (n, _) in text.lines().enumerate().filter(|(_, line)| line.contains("planted!")) {
            report.add(
                path,
                n,
                "a planted bug in the source itself; describe it in planted/*.md, as its README.md says",
            );
        }
    }
}

/// A bug counts as caught only if the tests say so within this time: a test that hangs must notice by itself.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `cargo xtask planted [--full] [name...]`: all bugs, or those whose name contains one of the names, and
/// then also what the tests say. With `--full` every bug meets all tests of the program that catches it, or those of the
/// folder if the test is named with one, to see how many notice.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut full, mut filters) = (false, Vec::new());
    for arg in args {
        match arg.as_str() {
            "--full" => full = true,
            name if !name.starts_with("--") => filters.push(name),
            _ => return Err("usage: cargo xtask planted [--full] [name...]".to_owned()),
        }
    }
    let all = copy::all_bugs()?;
    let is_meant = |b: &&Bug| filters.is_empty() || filters.iter().any(|name| b.name.contains(name));
    let bugs: Vec<&Bug> = all.iter().filter(is_meant).collect();
    if bugs.is_empty() {
        return Err(format!("no planted bug has '{}' in its name", filters.join("' or '")));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let target = std::path::absolute(target).map_err(|e| format!("the target directory: {e}"))?;
    let source = target.join("planted/src");
    copy::make(&all, &source)?;
    let programs = build(&bugs, &source, &target)?;
    let healthy: BTreeMap<&str, &Bug> = bugs.iter().map(|bug| (bug.caught_by.as_str(), *bug)).collect();
    let healthy: Vec<&Bug> = healthy.into_values().collect();
    side_by_side(&healthy, |bug| match Suite::of(bug, full).run(&programs, &source, bug, false)? {
        Verdict { end: End::Passed(tests), .. } if tests > 0 => Ok(()),
        other => Err(format!("without a bug, cargo test {}: {}\n{}", bug.caught_by, other.end, other.output)),
    })?;
    println!("{} sets of tests pass without a bug\n", healthy.len());
    let width = bugs.iter().map(|b| b.name.len()).max().unwrap_or(0);
    println!("{:width$}  seconds  verdict   by", "bug");
    let survivors = side_by_side(&bugs, |bug| {
        let verdict = Suite::of(bug, full).run(&programs, &source, bug, true)?;
        let caught = matches!(verdict.end, End::Failed(_));
        let word = if caught { "caught" } else { "SURVIVED" };
        let many = if full { format!(" ({})", verdict.end) } else { String::new() };
        let why =
            if filters.is_empty() { String::new() } else { format!("\n{:width$}  {}", "", verdict.first_complaint()) };
        println!("{:width$}  {:7.1}  {word:8}  {}{many}{why}", bug.name, verdict.seconds, bug.caught_by);
        Ok((!caught).then(|| format!("{}: {} ({})", bug.name, bug.wrong, verdict.end)))
    })?;
    let survivors: Vec<String> = survivors.into_iter().flatten().collect();
    println!("\n{} of {} planted bugs caught", bugs.len() - survivors.len(), bugs.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("survived:\n{}", survivors.join("\n"))) }
}

/// Does `run` for all bugs, for as many at once as there are cores: most tests wait more than they work. The results are in the order of the
/// bugs.
fn side_by_side<T: Send>(bugs: &[&Bug], run: impl Fn(&Bug) -> Result<T, String> + Sync) -> Result<Vec<T>, String> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(bug) = bugs.get(n) else { return };
            let result = run(bug);
            if result.is_err() {
                next.store(bugs.len(), Ordering::Relaxed); // no more of them
            }
            done.lock().unwrap_or_else(|failed| failed.into_inner()).insert(n, result);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    done.into_inner().unwrap_or_else(|failed| failed.into_inner()).into_values().collect()
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
    fn of(bug: &Bug, full: bool) -> Suite<'_> {
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
            // The folder of a large program, which no bug could meet as a whole within the limit.
            filters = filters.iter().filter_map(|f| f.find("::").map(|end| &f[..end + 2])).collect();
        }
        Suite { program: program.join(" "), filters }
    }

    /// Runs the tests with the bug awake or asleep.
    fn run(
        &self,
        programs: &BTreeMap<String, PathBuf>,
        source: &Path,
        bug: &Bug,
        awake: bool,
    ) -> Result<Verdict, String> {
        let path =
            programs.get(&self.program).ok_or_else(|| format!("cargo test {} built no program", self.program))?;
        let log = path.with_extension(format!("{}.log", bug.name));
        let out = std::fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let err = out.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
        let start = Instant::now();
        let mut child = Command::new(path)
            .args(&self.filters)
            .current_dir(source)
            .env("KINGTIDE_PLANTED", if awake { &bug.name } else { "" })
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

/// Builds the test programs of the copy, all at once, in the usual target directory: what the copy's packages depend on is
/// there already, and they themselves have a version of their own, so both builds stay.
fn build(bugs: &[&Bug], source: &Path, target: &Path) -> Result<BTreeMap<String, PathBuf>, String> {
    let wanted: BTreeSet<String> = bugs.iter().map(|bug| Suite::of(bug, true).program).collect();
    let words: BTreeSet<Vec<&str>> = wanted.iter().flat_map(|p| selectors(p)).collect();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(source)
        .env("CARGO_TARGET_DIR", target)
        .args(["test", "--no-run", "--message-format=json-render-diagnostics"])
        .args(words.iter().flatten())
        .args(["--config", "profile.dev.debug=0"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: BTreeMap<String, PathBuf> = messages.lines().filter_map(executable).collect();
    match wanted.iter().find(|p| !programs.contains_key(*p)) {
        Some(missing) => Err(format!("cargo test {missing} built no program")),
        None => Ok(programs),
    }
}

/// The options of a program's name, each with its value.
fn selectors(program: &str) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for word in program.split(' ') {
        match all.last_mut() {
            Some(last) if !word.starts_with('-') => last.push(word),
            _ => all.push(vec![word]),
        }
    }
    all
}

/// The test program that one of cargo's messages tells of: its name, as in `cargo test -p kingtide-tests --test engine`, and its path.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let text = |name: &str| {
        let rest = message.split(&format!("\"{name}\":\"")).nth(1)?;
        rest.split('"').next()
    };
    let path = text("executable").filter(|_| message.contains("\"test\":true"))?;
    // `path+file:///kingtide/crates/table#kingtide-table@0.1.0`, without the name if the directory has it.
    let (place, version) = text("package_id")?.rsplit_once('#')?;
    let package = version.split_once('@').map_or_else(|| place.rsplit('/').next(), |(name, _)| Some(name))?;
    let program = match message.contains("\"kind\":[\"test\"]") {
        true => format!("-p {package} --test {}", text("name")?),
        false => format!("-p {package} --lib"),
    };
    Some((program, PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_their_names() {
        let message = |package: &str, kind: &str, name: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///x/crates/{package}\",\"target\":\
                 {{\"kind\":[\"{kind}\"],\"name\":\"{name}\"}},\"profile\":{{\"test\":true}},\"executable\":\"/t/{name}\"}}"
            )
        };
        let found = |m: &str| executable(m).map(|(program, path)| format!("{program} {}", path.display()));
        let test = message("kingtide/tests#kingtide-tests@0.1.0", "test", "engine");
        assert_eq!(found(&test).as_deref(), Some("-p kingtide-tests --test engine /t/engine"));
        let lib = message("table#kingtide-table@0.1.0", "lib", "kingtide_table");
        assert_eq!(found(&lib).as_deref(), Some("-p kingtide-table --lib /t/kingtide_table"));
        assert_eq!(found(&lib.replace("\"test\":true", "\"test\":false")), None);
        let words = [vec!["-p", "kingtide-tests"], vec!["--test", "engine"]];
        assert_eq!(selectors("-p kingtide-tests --test engine"), words);
    }
}
