//! The work tree: where it is, its files and their texts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub fn root() -> PathBuf {
    // What cargo says now comes first: a `target` folder that was copied has a program that was built for another tree.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_owned)
}

/// The files that git tracks or would.
pub fn list_files(root: &Path) -> Result<BTreeSet<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git lists the files, and could not be started: {e}"))?;
    if !listed.status.success() {
        return Err(format!(
            "git lists the files, and this is no checkout: {}",
            String::from_utf8_lossy(&listed.stderr)
        ));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect())
}

/// The text files among them with their contents, but for test data, results and lock files, which follow no style.
pub fn texts(root: &Path) -> Result<Vec<(String, String)>, String> {
    let skipped = |p: &str| {
        p.ends_with(".lock")
            || p.contains("/testdata/")
            || (p.starts_with("results/") && !p.ends_with(".md") && !p.ends_with(".sh"))
    };
    let read = |p: &str| std::fs::read_to_string(root.join(p)).ok().map(|t| (p.to_owned(), t));
    let files = list_files(root)?;
    Ok(files.iter().map(String::as_str).filter(|p| !skipped(p)).filter_map(read).collect())
}
