//! Tests that need another build of the whole workspace: exploration of schedules with shuttle, of weak memory with loom.
//!
//! A build with other flags would evict the ordinary one from the target directory, so each has one of its own below it.

use crate::tree::root;
use std::path::PathBuf;
use std::process::Command;

/// Schedules of each scenario in a full run. There are about forty scenarios, so these are a million.
const FULL: &str = "26000";

/// Runs `cargo xtask shuttle [--full] [--seed n] [name]`: explores schedules of the threads of the commit lock, of the lock
/// manager, of the log and of the engine.
pub fn shuttle(args: &[String]) -> Result<(), String> {
    let mut command = cargo("shuttle", &["kingtide-mem", "kingtide-locks", "kingtide-wal", "kingtide"]);
    let mut name = "shuttle";
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--full" => {
                command.env("KINGTIDE_SHUTTLE", FULL);
            }
            "--seed" => {
                command.env("KINGTIDE_SHUTTLE_SEED", rest.next().ok_or("--seed needs a number")?);
            }
            filter if !filter.starts_with('-') => name = filter,
            _ => return Err("usage: cargo xtask shuttle [--full] [--seed number] [name]".to_owned()),
        }
    }
    run(command.args([name, "--", "--nocapture"]))
}

/// Runs `cargo xtask loom [name]`: tries every interleaving of the lock-free structures, up to a number of preemptions.
pub fn loom(args: &[String]) -> Result<(), String> {
    let name = match args {
        [] => "loom",
        [name] if !name.starts_with('-') => name.as_str(),
        _ => return Err("usage: cargo xtask loom [name]".to_owned()),
    };
    let mut command = cargo("loom", &["kingtide-mem", "kingtide"]);
    if std::env::var_os("LOOM_MAX_PREEMPTIONS").is_none() {
        command.env("LOOM_MAX_PREEMPTIONS", "3");
    }
    // The models are small, and what they spend their time in is loom itself.
    let crates = ["", "-versions", "-locks", "-table", "-wal", "-vfs", "-base"];
    for package in crates.map(|name| format!("kingtide{name}")) {
        command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=0"));
    }
    run(command.args([name, "--", "--nocapture"]))
}

/// The crates that explore, and what they switch threads with.
const EXPLORERS: [&str; 14] = [
    "loom",
    "shuttle",
    "shuttle-engine",
    "shuttle-schedulers",
    "shuttle-std",
    "generator",
    "corosensei",
    "scoped-tls",
    "bitvec",
    "rand",
    "rand_core",
    "rand_pcg",
    "tracing",
    "tracing-core",
];

/// `cargo test` of packages' unit tests with `--cfg <cfg>`.
fn cargo(cfg: &str, packages: &[&str]) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .env("RUSTFLAGS", format!("{flags} --cfg {cfg}").trim())
        .env("CARGO_TARGET_DIR", target.join(cfg))
        .args(["test", "--lib"])
        .args(packages.iter().flat_map(|p| ["--package", p]))
        // Compiling takes longer than the tests do. What they spend their time in beside our own code is the explorer.
        .args(["--config", "profile.dev.debug=0"])
        .args(EXPLORERS.iter().flat_map(|p| ["--config".to_owned(), format!("profile.dev.package.{p}.opt-level=1")]))
        // A library in C, which takes twenty seconds to optimise, and does next to nothing in these tests.
        .args(["--config", "profile.dev.package.zstd-sys.opt-level=0"]);
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("cargo could not be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo test: {status}")) }
}
