//! `cargo xtask full`: every test at its full count, one after another. It takes the better part of a day on two cores; the
//! continuous build runs samples of the same tests. What each run printed is kept in `target/full`.

use crate::tree::root;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A run at its full count.
struct Run {
    name: &'static str,
    /// What it shows, as in the table of docs/reliability.md.
    shows: &'static str,
    /// A line for a shell.
    line: &'static str,
}

const fn run_of(name: &'static str, shows: &'static str, line: &'static str) -> Run {
    Run { name, shows, line }
}

/// All of them, the cheap ones first. Optimised builds, except where a tool makes its own.
const RUNS: &[Run] = &[
    run_of("planted", "planted bugs are caught", "cargo xtask planted --full"),
    run_of("loom", "lock-free structures", "cargo xtask loom"),
    run_of("miri", "the unsafe code", "cargo xtask miri --full"),
    run_of("address", "memory errors and leaks", "cargo xtask sanitize address --full"),
    run_of("thread", "data races", "cargo xtask sanitize thread --full"),
    run_of("capi", "the C API under valgrind", "cargo test -p kingtide-capi -- --nocapture"),
    run_of(
        "limits",
        "descriptors, disk, memory",
        "cargo test --release -p kingtide-tests --test process limits:: -- --nocapture",
    ),
    run_of(
        "golden",
        "old formats open",
        "cargo test --release -p kingtide-tests --test engine crash::golden:: -- --nocapture",
    ),
    run_of(
        "isolation",
        "isolation levels",
        "cargo test --release -p kingtide-tests --test engine transactions::isolation:: -- --nocapture",
    ),
    run_of(
        "contended",
        "contended increments",
        "cargo test --release -p kingtide-tests --test engine concurrency::contended:: -- --nocapture",
    ),
    run_of(
        "history",
        "histories of transactions",
        "cargo test --release -p kingtide-tests --test engine concurrency::history:: -- --nocapture",
    ),
    run_of(
        "damage",
        "damaged files",
        "cargo test --release -p kingtide-tests --test engine crash::damage:: -- --nocapture",
    ),
    run_of(
        "sim",
        "power cuts and failing disks",
        "cargo test --release -p kingtide-tests --test engine sim:: -- --nocapture",
    ),
    run_of("kill", "SIGKILL", "cargo test --release -p kingtide-tests --test process kill_nine:: -- --nocapture"),
    run_of(
        "bank",
        "SIGKILL amid transfers",
        "cargo test --release -p kingtide-tests --test process bank:: -- --nocapture",
    ),
    run_of("model", "option sets", "cargo test --release -p kingtide-tests --test engine model:: -- --nocapture"),
    run_of("shuttle", "schedules of threads", "cargo xtask shuttle --full"),
    run_of("fuzz", "hostile input", "cargo xtask fuzz --seconds 3600"),
    run_of("torture", "SIGKILL of everything at once", "cargo xtask torture --minutes 120 --workers 2 --full"),
    run_of("keybench", "a workload killed for half an hour", "results/kill.sh mixed 30"),
];

/// Runs `cargo xtask full [name]...`.
pub fn run(args: &[String]) -> Result<(), String> {
    if let Some(other) = args.iter().find(|a| !RUNS.iter().any(|r| r.name == a.as_str())) {
        let names: Vec<&str> = RUNS.iter().map(|r| r.name).collect();
        return Err(format!("no run '{other}'\nusage: cargo xtask full [{}]...", names.join("|")));
    }
    let logs = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from).join("full");
    std::fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let mut failed = Vec::new();
    for run in RUNS.iter().filter(|r| args.is_empty() || args.iter().any(|a| a == r.name)) {
        let log = logs.join(run.name).with_extension("log");
        println!("== {} ({}): {}", run.name, run.shows, run.line);
        let start = Instant::now();
        let io = |e: std::io::Error| format!("cannot write {}: {e}", log.display());
        let out = File::create(&log).map_err(io)?;
        let status = Command::new("sh")
            .args(["-c", run.line])
            .current_dir(root())
            .env("KINGTIDE_FULL", "1")
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(io)?)
            .stderr(out)
            .status()
            .map_err(|e| format!("sh: {e}"))?;
        let verdict = if status.success() { "passed" } else { "FAILED" };
        println!("== {} {verdict} in {} s: {}", run.name, start.elapsed().as_secs(), log.display());
        if !status.success() {
            failed.push(run.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
