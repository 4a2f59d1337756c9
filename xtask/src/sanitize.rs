//! Runs under Miri and the compiler's sanitizers, which need a nightly toolchain and a build of their own.
//!
//! The address and leak sanitizers need no more than that. Miri needs its component, and Miri and the thread sanitizer need the
//! sources of the standard library. `KINGTIDE_NIGHTLY` names another rustup toolchain than `nightly`; a stable one that has
//! those sources (a linked toolchain of a distribution, say) will do for the sanitizers.
//!
//! Each tool is pointed at what it can judge: Miri at the unsafe room and a whole, small database; the address and leak
//! sanitizers at all that hands memory to C, maps files or counts references; the thread sanitizer at the threads. Without
//! `--full` that is the unsafe room alone, which takes minutes; the rest takes the better part of an hour.

use crate::tree::root;
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
    full(
        "kingtide-table",
        &["--lib"],
        &["block::", "filter::", "info::", "lz4_long::", "tombstones::", "vlog::", "--skip", "tables::"],
    ),
    full("kingtide-tests", &["--test", "engine"], &["api::small_database::"]),
];

/// What is repeated under many of Miri's schedules and weak-memory choices in a full run.
const MIRI_SEEDS: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &["readers_see_all_that_was_published", "hammer"]),
    suite("kingtide-tests", &["--test", "engine"], &["api::small_database::threads"]),
];

/// Seeds of those.
const SEEDS: &str = "0..64";

/// Where a toolchain keeps the sources of the standard library, below its root.
const SOURCES: &str = "lib/rustlib/src/rust/library/std";

/// Permissive, because arc-swap keeps the pointers that readers hold as integers; all else holds to strict provenance.
/// Isolation is off for the clock.
const MIRI_FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-disable-isolation";

const ADDRESS: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &[]),
    suite("kingtide-vfs", &["--lib"], &[]),
    full("kingtide-table", &["--lib", "--tests"], &[]),
    full("kingtide-locks", &["--lib"], &[]),
    full("kingtide-wal", &["--lib"], &[]),
    full("kingtide-versions", &["--lib"], &[]),
    full("kingtide", &["--lib"], &[]),
    // Left out are those that limit the addresses that a process may have, or measure its memory.
    full("kingtide-tests", &["--tests"], &["--skip", "posix::memory::", "--skip", "limits::memory"]),
];

const THREAD: &[Suite] = &[
    suite("kingtide-mem", &["--lib"], &["readers_see_all_that_was_published", "hammer"]),
    full("kingtide-tests", &["--test", "engine"], THREADS),
];

/// What the thread sanitizer watches of the engine.
const THREADS: &[&str] = &[
    "api::small_database::",
    "api::read_only::",
    "api::commit_hooks::",
    "concurrency::contended::",
    "concurrency::no_lost_keys::",
    "transactions::basics::",
];

/// Runs `cargo xtask miri [--full] [filter]`: undefined behaviour, by interpretation.
pub fn miri(args: &[String]) -> Result<(), String> {
    let (all, filter) = arguments(args, "usage: cargo xtask miri [--full] [test name]")?;
    needs("miri", true)?;
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
    needs("rustc", kind == "thread")?;
    let target = host()?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    run_all(suites, all, filter, || {
        let mut command = nightly(kind);
        command
            .arg("test")
            .env("RUSTFLAGS", format!("{flags} -Zsanitizer={kind}").trim())
            // Naming the target keeps build scripts and macros, which run on the compiler's side, out of it.
            .args(["--target", &target])
            .args(["--config", "profile.dev.debug=1", "--config", "profile.dev.package.\"*\".opt-level=1"])
            .args(["--config", "profile.dev.package.kingtide-tests.opt-level=1"]);
        // The engine makes an error of memory that is refused, so the sanitizer's allocator must refuse it as the system's does.
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1").env("KINGTIDE_SANITIZED", kind);
        if kind == "thread" {
            // A standard library that is not instrumented hides half of what orders threads, and would be blamed for it.
            command
                .arg("-Zbuild-std")
                .env("TSAN_OPTIONS", "halt_on_error=1 second_deadlock_stack=1 allocator_may_return_null=1");
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

/// The rustup toolchain to use.
fn toolchain() -> String {
    std::env::var("KINGTIDE_NIGHTLY").unwrap_or_else(|_| "nightly".to_owned())
}

/// Nightly's cargo, in the project's directory and with a target directory of its own below the usual one.
fn nightly(target: &str) -> Command {
    let above = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut command = Command::new("rustup");
    command.current_dir(root()).args(["run", &toolchain(), "cargo"]).env("CARGO_TARGET_DIR", above.join(target));
    // Lets a stable compiler take the flags of a nightly one.
    command.env("RUSTC_BOOTSTRAP", "1");
    // The cargo that runs this task names its own compiler to its children.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"] {
        command.env_remove(name);
    }
    command
}

/// The triple of this machine.
fn host() -> Result<String, String> {
    let out = Command::new("rustup").args(["run", &toolchain(), "rustc", "-vV"]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| "nightly's rustc does not tell its host".to_owned())
}

/// Fails with what to install unless the toolchain has the tool and, if they are needed, the sources of the standard library.
fn needs(tool: &str, sources: bool) -> Result<(), String> {
    let name = toolchain();
    let ask = |args: &[&str]| {
        let output = Command::new("rustup").args(["run", &name]).args(args).stderr(Stdio::null()).output().ok();
        output.filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    };
    let has_sources = || ask(&["rustc", "--print", "sysroot"]).is_some_and(|s| PathBuf::from(s).join(SOURCES).is_dir());
    if ask(&[tool, "--version"]).is_some() && (!sources || has_sources()) {
        return Ok(());
    }
    Err(format!(
        "the toolchain '{name}' lacks {tool}{}: rustup toolchain install nightly --component miri --component rust-src, \
         or name another toolchain in KINGTIDE_NIGHTLY",
        if sources { " or the sources of the standard library" } else { "" }
    ))
}
