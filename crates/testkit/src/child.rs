//! Bodies of tests that run in a process of their own: the same test program, run again with one ignored test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the directory that the body works on.
pub const CHILD: &str = "KINGTIDE_CHILD_DIR";

/// Runs the ignored test of that full name (see [`crate::test_name`]) behind a shell line, which ends with executing it.
/// Returns what it printed.
///
/// # Panics
/// If the test fails or does not run.
pub fn child(body: &str, dir: &Path, before: &str) -> String {
    let line = format!("{before} exec \"$0\" \"$1\" --exact --ignored --nocapture --test-threads=1");
    let run = Command::new("sh")
        .args(["-c", &line])
        .arg(std::env::current_exe().unwrap())
        .arg(body)
        .env(CHILD, dir)
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("1 passed"), "{body}: {said}");
    said
}

/// In a body: the directory. None when the ignored tests are run on their own.
pub fn child_dir() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}
