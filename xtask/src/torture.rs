//! `cargo xtask torture`: the whitebox crash tester, with debug assertions; `--against REV` gives another build its turns.

use crate::tree::root;
use std::path::PathBuf;
use std::process::Command;

/// Runs `cargo xtask torture [--against REV] [arguments of kingtide-torture]`.
pub fn run(args: &[String]) -> Result<(), String> {
    if args.iter().any(|a| a == "--help") {
        let usage =
            "usage: cargo xtask torture [--against REV] [--minutes N] [--workers K] [--seed S] [--dir D] [--full]";
        return Err(usage.to_owned());
    }
    let mut passed = args.to_vec();
    if let Some(at) = passed.iter().position(|a| a == "--against") {
        let rev = passed.get(at + 1).cloned().ok_or("--against wants a commit, a tag or a branch")?;
        passed.drain(at..at + 2);
        passed.extend(["--other-kt".to_owned(), build_kt(&rev)?.to_string_lossy().into_owned()]);
    }
    let mut command = Command::new("cargo");
    command.args(["run", "-q", "-p", "kingtide-torture", "--"]).args(passed).current_dir(root());
    succeed("kingtide-torture", &mut command)
}

/// Builds `kt` of another commit, in a work tree of its own under the target directory.
fn build_kt(rev: &str) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut git = Command::new("git");
    let output = output_of(git.args(["rev-parse", "--short=12", "--verify"]).arg(format!("{rev}^{{commit}}")))?;
    let commit = output.trim();
    let tree = target.join("against").join(commit);
    if !tree.join("Cargo.toml").exists() {
        let add = ["worktree", "add", "--force", "--detach"];
        succeed("git worktree", Command::new("git").args(add).arg(&tree).arg(commit).current_dir(root()))?;
    }
    let built = tree.join("target");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "-p", "kt"]).current_dir(&tree).env("CARGO_TARGET_DIR", &built);
    succeed(&format!("the build of kt at {commit}"), &mut cargo)?;
    Ok(built.join("debug/kt"))
}

fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.current_dir(root()).output().map_err(|e| format!("git: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn succeed(what: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed: {status}")) }
}
