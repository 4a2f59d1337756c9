//! `cargo xtask fuzz`: the targets of `crates/fuzz` under libFuzzer and AddressSanitizer.

use crate::tree::root;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask fuzz [--seconds number] [target]...";

/// What to do where the tools are missing. The committed inputs and mutations of them need neither.
const INSTALL: &str = "the fuzzers need a nightly compiler and cargo-fuzz:
  rustup toolchain install nightly
  cargo install cargo-fuzz
Without them, `cargo test -p kingtide-fuzz` runs the committed inputs and mutations of them.";

/// Seconds for each target by default.
const SECONDS: &str = "180";

/// Runs the named targets, or all, one after another. What they find that reaches new code is kept in
/// `target/fuzz/corpus`, what fails in `target/fuzz/artifacts`.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut seconds, mut names) = (SECONDS.to_owned(), Vec::new());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--seconds" => {
                let n = rest.next().filter(|n| n.parse::<u64>().is_ok());
                seconds = n.ok_or("--seconds needs a number")?.clone();
            }
            name if !name.starts_with('-') => names.push(name.to_owned()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    let known = targets()?;
    if let Some(other) = names.iter().find(|n| !known.contains(n)) {
        return Err(format!("no fuzz target '{other}'; there are {}\n{USAGE}", known.join(", ")));
    }
    if !works(&["+nightly", "--version"]) || !works(&["fuzz", "--version"]) {
        return Err(INSTALL.to_owned());
    }
    let failed: Vec<String> =
        known.into_iter().filter(|t| names.is_empty() || names.contains(t)).filter(|t| !fuzz(t, &seconds)).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The programs in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, String> {
    let dir = root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let names = entries.filter_map(|e| e.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

fn works(args: &[&str]) -> bool {
    let mut cargo = Command::new("cargo");
    cargo.args(args).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

fn fuzz(target: &str, seconds: &str) -> bool {
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join("fuzz");
    let (corpus, artifacts) = (base.join("corpus").join(target), base.join("artifacts").join(target));
    for dir in [&corpus, &artifacts] {
        if let Err(e) = std::fs::create_dir_all(dir) {
            eprintln!("{}: {e}", dir.display());
            return false;
        }
    }
    println!("fuzzing {target} for {seconds} seconds");
    let mut command = Command::new("cargo");
    command
        .current_dir(root())
        // A build of its own, with the sanitizer.
        .env("CARGO_TARGET_DIR", base.join("build"))
        .args(["+nightly", "fuzz", "run", target])
        .arg(&corpus)
        .args(
            ["seeds", "regressions"]
                .map(|d| root().join("fuzz/testdata").join(d).join(target))
                .iter()
                .filter(|d| d.is_dir()),
        )
        .args([
            "--",
            "-timeout=30",
            "-rss_limit_mb=2048",
            "-malloc_limit_mb=64",
            "-max_len=4096",
            "-print_final_stats=1",
        ])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"));
    command.status().is_ok_and(|s| s.success())
}
