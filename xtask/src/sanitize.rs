//! Runs under Miri and the compiler's sanitizers, which need a nightly toolchain and a build of their own.
//!
//! Each tool is pointed at what it can judge: Miri at the unsafe room and a whole, small database; the address and leak
//! sanitizers at all that hands memory to C, maps files or counts references; the thread sanitizer at the threads. Without
//! `--full` that is the unsafe room alone, which takes minutes; the rest takes the better part of an hour.

use crate::tidy::root;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A run of test programs of one package: the arguments to `cargo test` before `--`, and those after it.
struct Suite {
    package: &'static str,
    targets: &'static [&'static str],
    tests: &'static [&'static str],
    /// Left out of runs that are not `--full`.
    full_only: bool,
}

const fn suite(package: &'static str, targets: &'static [&'static str], tests: &'static [&'static str]) -> Suite {
    Suite { package, targets, tests, full_only: false }
}

const fn full(package: &'static str, targets: &'static [&'static str], tests: &'static [&'static str]) -> Suite {
    Suite { package, targets, tests, full_only: true }
}

/// What Miri can run: no C (LZ4, Zstandard) and no mapped files. `crates/vfs` has unsafe code only around a mapping.
const MIRI: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &[]),
    suite("kingtide-base", &["--lib"], &["checksum::", "hash::", "stats::", "budget::"]),
    full("kingtide-table", &["--lib"], &["block::", "filter::", "info::", "tombstones::", "vlog::"]),
    full("kingtide", &["--test", "api"], &["small_database::"]),
];

/// What is repeated under many of Miri's schedules and weak-memory choices in a full run.
const MIRI_SEEDS: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &["readers_see_all_that_was_published", "hammer"]),
    suite("kingtide", &["--test", "api"], &["small_database::threads"]),
];

/// Seeds of those.
const SEEDS: &str = "0..64";

/// Permissive, because parking_lot keeps its queue of waiting threads as an integer; all else holds to strict provenance.
/// Isolation is off for the clock.
const MIRI_FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-disable-isolation";

const ADDRESS: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &[]),
    suite("kingtide-vfs", &["--lib"], &[]),
    full("kingtide-table", &["--lib", "--tests"], &[]),
    full("kingtide", &["--lib", "--tests"], &[]),
];

const THREAD: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &["readers_see_all_that_was_published", "hammer"]),
    full("kingtide", &["--test", "api"], &["small_database::", "read_only::", "commit_hooks::"]),
    full("kingtide", &["--test", "concurrency"], &["contended::", "no_lost_keys::"]),
    full("kingtide", &["--test", "transactions"], &["basics::"]),
];

/// Runs `cargo xtask miri [--full] [filter]`: undefined behaviour, by interpretation.
pub fn miri(args: &[String]) -> Result<(), String> {
    let (all, filter) = arguments(args, "usage: cargo xtask miri [--full] [test name]")?;
    needs("miri", "library/std")?;
    let command = |flags: &str| {
        let mut command = nightly("miri");
        command.args(["miri", "test"]).env("MIRIFLAGS", format!("{MIRI_FLAGS} {flags}"));
        command
    };
    run_all(MIRI, all, filter, || command(""))?;
    if all {
        run_all(MIRI_SEEDS, all, filter, || command(&format!("-Zmiri-many-seeds={SEEDS}")))?;
    }
    Ok(())
}

/// Runs `cargo xtask sanitize <address|thread|leak> [--full] [filter]`.
pub fn sanitize(args: &[String]) -> Result<(), String> {
    let usage = "usage: cargo xtask sanitize <address|thread|leak> [--full] [test name]";
    let (kind, rest) = args.split_first().ok_or(usage)?;
    let suites = match kind.as_str() {
        "address" | "leak" => ADDRESS,
        "thread" => THREAD,
        _ => return Err(usage.to_owned()),
    };
    let (all, filter) = arguments(rest, usage)?;
    needs("rustc", "library/std")?;
    let target = host()?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    run_all(suites, all, filter, || {
        let mut command = nightly(kind);
        command
            .arg("test")
            .env("RUSTFLAGS", format!("{flags} -Zsanitizer={kind}").trim())
            // Naming the target keeps build scripts and macros, which run on the compiler's side, out of it.
            .args(["--target", &target])
            .args(["--config", "profile.dev.debug=1", "--config", "profile.dev.package.\"*\".opt-level=1"]);
        if kind == "thread" {
            // A standard library that is not instrumented hides half of what orders threads, and would be blamed for it.
            command.arg("-Zbuild-std").env("TSAN_OPTIONS", "halt_on_error=1 second_deadlock_stack=1");
        }
        command
    })
}

/// `--full`, and the name to look for.
fn arguments<'a>(args: &'a [String], usage: &str) -> Result<(bool, Option<&'a str>), String> {
    let (mut all, mut filter) = (false, None);
    for arg in args {
        match arg.as_str() {
            "--full" => all = true,
            name if !name.starts_with('-') && filter.is_none() => filter = Some(name),
            _ => return Err(usage.to_owned()),
        }
    }
    Ok((all, filter))
}

/// Runs the suites one after the other; a filter takes the place of their own lists of tests.
fn run_all(suites: &[Suite], all: bool, filter: Option<&str>, command: impl Fn() -> Command) -> Result<(), String> {
    for suite in suites.iter().filter(|s| all || !s.full_only) {
        let mut command = command();
        command.args(["--package", suite.package]).args(suite.targets).arg("--");
        match filter {
            Some(name) => command.arg(name),
            None => command.args(suite.tests),
        };
        let start = Instant::now();
        let status = command.status().map_err(|e| format!("cargo could not be started: {e}"))?;
        if !status.success() {
            return Err(format!("{} {}: {status}", suite.package, suite.targets.join(" ")));
        }
        println!("== {} {}: passed in {} s", suite.package, suite.targets.join(" "), start.elapsed().as_secs());
    }
    Ok(())
}

/// Nightly's cargo, in the project's directory and with a target directory of its own below the usual one.
fn nightly(target: &str) -> Command {
    let above = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut command = Command::new("rustup");
    command.current_dir(root()).args(["run", "nightly", "cargo"]).env("CARGO_TARGET_DIR", above.join(target));
    // The cargo that runs this task names its own compiler to its children.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"] {
        command.env_remove(name);
    }
    command
}

/// The triple of this machine.
fn host() -> Result<String, String> {
    let out = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "nightly's rustc does not tell its host".to_owned())
}

/// Fails with what to install unless nightly has the tool and the sources of the standard library.
fn needs(tool: &str, source: &str) -> Result<(), String> {
    let ask = |args: &[&str]| Command::new("rustup").args(args).stderr(Stdio::null()).output().ok();
    let has_tool = ask(&["run", "nightly", tool, "--version"]).is_some_and(|o| o.status.success());
    let sysroot = ask(&["run", "nightly", "rustc", "--print", "sysroot"]);
    let has_source = sysroot.is_some_and(|o| {
        let sysroot = PathBuf::from(String::from_utf8_lossy(&o.stdout).trim());
        o.status.success() && sysroot.join("lib/rustlib/src/rust").join(source).exists()
    });
    if has_tool && has_source {
        return Ok(());
    }
    Err("this needs a nightly toolchain: rustup toolchain install nightly --component miri --component rust-src"
        .to_owned())
}
