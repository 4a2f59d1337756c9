//! `cargo xtask instructions`: how many instructions an operation takes, beside what is recorded.
//!
//! Counts say what a change costs where times cannot: callgrind simulates the processor, so the same program gives the same
//! count on a busy machine as on an idle one. They do not know of cache misses or waiting, which benchmarks show.

mod files;

use crate::tree::root;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kept beside the program that does the operations.
const RECORD: &str = "crates/kingtide/benches/instructions.txt";

/// Operations, as `benches/instructions.rs` names them.
const OPERATIONS: [&str; 11] = [
    "put",
    "put-batch",
    "get",
    "get-missing",
    "get-recent",
    "multi-get",
    "seek",
    "next",
    "transaction",
    "transaction-commit",
    "transaction-locking",
];

/// How often the program does each.
const COUNT: u64 = 10_000;

/// What a change may cost before the check fails, in percent.
const LIMIT: f64 = 5.0;

/// What histograms, a listener and the file `LOG` may cost, in percent of the operation without them.
const OBSERVER_LIMIT: f64 = 2.0;

const USAGE: &str = "usage: cargo xtask instructions [--record | --observers | --files | OPERATION]";

/// Runs `cargo xtask instructions [--record | --observers | --files | OPERATION]`: compares with the record, writes it anew, compares
/// with a database that is not observed, or lists the source files that operations execute.
pub fn run(args: &[String]) -> Result<(), String> {
    if args == ["--files"] {
        check_valgrind()?;
        return files::report(&build()?, &OPERATIONS, COUNT);
    }
    if args == ["--observers"] {
        check_valgrind()?;
        return observers(&build()?);
    }
    let (record, only) = match args {
        [] => (false, None),
        [arg] if arg == "--record" => (true, None),
        [arg] if OPERATIONS.contains(&arg.as_str()) => (false, Some(arg.as_str())),
        _ => return Err(format!("{USAGE}\noperations: {}", OPERATIONS.join(", "))),
    };
    check_valgrind()?;
    let path = root().join(RECORD);
    let before = if record { BTreeMap::new() } else { read(&path)? };
    let program = build()?;
    let mut counted = Vec::new();
    let mut slower = Vec::new();
    println!("{:20} {:>10} {:>10} {:>8}", "operation", "recorded", "now", "change");
    for operation in OPERATIONS.into_iter().filter(|o| only.is_none_or(|only| only == *o)) {
        let now = count(&program, &[operation])? / COUNT;
        let was = before.get(operation).copied();
        let change = was.map(|was| (now as f64 / was as f64 - 1.0) * 100.0);
        let was = was.map_or("-".to_owned(), |n| n.to_string());
        println!("{operation:20} {was:>10} {now:>10} {:>8}", change.map_or("-".to_owned(), |c| format!("{c:+.1} %")));
        if change.is_some_and(|c| c > LIMIT) {
            slower.push(operation);
        }
        counted.push((operation, now));
    }
    if record {
        return write(&path, &counted);
    }
    match slower.as_slice() {
        [] => Ok(()),
        some => Err(format!(
            "more than {LIMIT} % above {RECORD}: {}. If that is worth what it buys, record it: cargo xtask instructions \
             --record",
            some.join(", ")
        )),
    }
}

fn check_valgrind() -> Result<(), String> {
    match Command::new("valgrind").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err("valgrind is not installed; it counts the instructions".to_owned()),
    }
}

/// Counts each operation with and without histograms, listener and `LOG`, and fails if these cost more than the limit.
fn observers(program: &Path) -> Result<(), String> {
    let mut dear = Vec::new();
    println!("{:20} {:>10} {:>10} {:>8}", "operation", "without", "with", "cost");
    for operation in OPERATIONS {
        let without = count(program, &[operation, "--unobserved"])?;
        let with = count(program, &[operation])?;
        let cost = (with as f64 / without as f64 - 1.0) * 100.0;
        println!("{operation:20} {:>10} {:>10} {:>8}", without / COUNT, with / COUNT, format!("{cost:+.1} %"));
        if cost > OBSERVER_LIMIT {
            dear.push(operation);
        }
    }
    match dear.as_slice() {
        [] => Ok(()),
        some => Err(format!("observing costs more than {OBSERVER_LIMIT} % of: {}", some.join(", "))),
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, u64>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    let parse = |line: &str| {
        let (name, n) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), n.trim().parse().ok()?))
    };
    lines.map(|l| parse(l).ok_or_else(|| format!("{}: '{l}' is no operation and count", path.display()))).collect()
}

fn write(path: &Path, counted: &[(&str, u64)]) -> Result<(), String> {
    let mut text = "# Instructions an operation, of the release build: cargo xtask instructions --record\n".to_owned();
    counted.iter().for_each(|(operation, n)| text += &format!("{operation:20} {n}\n"));
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Builds the program as a release and returns its path.
fn build() -> Result<PathBuf, String> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", "kingtide", "--bench", "instructions", "--message-format=json"])
        .current_dir(root())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo could not be started: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let message = text.lines().rfind(|l| l.contains("\"name\":\"instructions\"") && l.contains("\"executable\":\""));
    let path = message.and_then(|m| m.split("\"executable\":\"").nth(1)?.split('"').next());
    path.filter(|_| out.status.success()).map(PathBuf::from).ok_or_else(|| "cargo built no program".to_owned())
}

/// Instructions that the program takes for all of its operations.
fn count(program: &Path, args: &[&str]) -> Result<u64, String> {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*measured*", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(args)
        .output()
        .map_err(|e| format!("valgrind could not be started: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    let collected = said.lines().find_map(|l| l.split_once("Collected :")?.1.trim().parse::<u64>().ok());
    match collected {
        Some(n) if out.status.success() && n > COUNT => Ok(n),
        _ => Err(format!("{}: {}, nothing was counted\n{said}", args.join(" "), out.status)),
    }
}
