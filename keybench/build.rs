//! Tells the program which commit it is built from, so that reports can.

#![allow(clippy::disallowed_methods)] // it looks at the source tree, not at databases

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    String::from_utf8(output.stdout).ok().map(|s| s.trim().to_owned())
}

fn main() {
    // Outside a checkout the commit is unknown, which is fine.
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=KEYBENCH_COMMIT={commit}");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok().and_then(|o| String::from_utf8(o.stdout).ok());
    println!("cargo::rustc-env=KEYBENCH_RUSTC={}", version.as_deref().map_or("unknown", str::trim));
    // Engines that are built in do not all tell their version.
    let lock = std::fs::read_to_string("../Cargo.lock").unwrap_or_default();
    for name in ["fjall", "redb"] {
        let version =
            lock.split_once(&format!("name = \"{name}\"\nversion = \"")).and_then(|(_, rest)| rest.split_once('"'));
        println!("cargo::rustc-env=KEYBENCH_{}={}", name.to_uppercase(), version.map_or("unknown", |(v, _)| v));
    }
    println!("cargo::rerun-if-changed=../Cargo.lock");
    // Moves with every commit and checkout; a path that is not there would make cargo build this again each time.
    let moves = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|p| std::path::Path::new(p).exists());
    println!("cargo::rerun-if-changed={}", moves.as_deref().unwrap_or("build.rs"));
}
