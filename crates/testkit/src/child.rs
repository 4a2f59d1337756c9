//! Bodies of tests that run in a process of their own: the same test program, run again with one ignored test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the directory that the body works on.
pub const CHILD: &str = "KINGTIDE_CHILD_DIR";

/// Runs the ignored test of that full name (see [`crate::test_name`]) behind a shell line, which ends with executing it.
/// Returns what it printed.
///
/// # Panics
/// If the test fails or does not run, or on Windows, which has no such shell, if there is a line.
pub fn child(body: &str, dir: &Path, before: &str) -> String {
    let exe = std::env::current_exe().unwrap();
    let mut run = Command::new(if before.is_empty() { exe.as_os_str() } else { "sh".as_ref() });
    if !before.is_empty() {
        run.args(["-c", &format!("{before} exec \"$0\" \"$@\"")]).arg(&exe);
    }
    run.arg(body).args(["--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let run = run.env(CHILD, dir).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("1 passed"), "{body}: {said}");
    said
}

/// In a body: the directory. None when the ignored tests are run on their own.
pub fn child_dir() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}
