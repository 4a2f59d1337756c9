//! `cargo xtask reference`: the pages of the book that are made from tables in the source, `docs/options.md` and
//! `docs/statistics.md`.
//!
//! With `--check` nothing is written, and a page that differs from its table is an error.

use crate::tree::root;
use std::path::Path;
use std::process::Command;

/// The pages, each named as the program that prints it expects.
const PAGES: &[&str] = &["options", "statistics"];

/// Runs `cargo xtask reference [--check]`.
pub fn run(args: &[String]) -> Result<(), String> {
    let check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("usage: cargo xtask reference [--check]".to_owned()),
    };
    let root = root();
    for page in PAGES {
        let path = root.join(format!("docs/{page}.md"));
        let new = print(&root, page)?;
        if std::fs::read_to_string(&path).is_ok_and(|old| old == new) {
            continue;
        }
        if check {
            return Err(format!("docs/{page}.md differs from the table in the source; run `cargo xtask reference`"));
        }
        std::fs::write(&path, new).map_err(|e| format!("cannot write docs/{page}.md: {e}"))?;
        println!("docs/{page}.md: updated");
    }
    Ok(())
}

/// What the crate `kingtide-book` prints.
fn print(root: &Path, page: &str) -> Result<String, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "-q", "-p", "kingtide-book", "--", page]).current_dir(root);
    let done = command.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !done.status.success() {
        return Err(format!("kingtide-book {page}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    String::from_utf8(done.stdout).map_err(|_| format!("kingtide-book {page}: printed no text"))
}
