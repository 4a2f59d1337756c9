//! What only the operating system's files and processes show: forked children, permissions, planted links, limits of a
//! process.

#![cfg(unix)]
#![allow(clippy::disallowed_methods)]

mod files;
#[cfg(target_os = "linux")]
mod fork;
mod memory;
#[path = "../process/mod.rs"]
mod process;

use std::path::PathBuf;

/// A directory of its own, removed at the end unless the test fails. It does not exist at the beginning.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("kingtide-posix-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
