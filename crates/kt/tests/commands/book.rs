//! The shell examples of README.md and of the book: every line that begins with `kt` works as it stands there.

use crate::common::Dir;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the `kt` lines of each page one after the other, in a directory of its own.
#[test]
fn the_examples_of_the_pages_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("crates/kt/README.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path());
    pages.extend(docs.filter(|p| p.extension().is_some_and(|e| e == "md")));
    pages.sort();
    let mut ran = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let dir = Dir::new();
        for (line, command) in commands(&text) {
            run(&dir.path(""), &format!("{}:{line}", page.display()), command);
            ran += 1;
        }
    }
    assert!(ran > 30, "the pages have more examples than {ran}");
}

/// The lines of shell blocks that run nothing but `kt`, with their numbers.
fn commands(text: &str) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        if !matches!(line.trim(), "```sh" | "```console") {
            continue;
        }
        let block = lines.by_ref().take_while(|(_, l)| l.trim() != "```");
        all.extend(block.filter(|(_, l)| l.starts_with("kt ")).map(|(at, l)| (at + 1, l)));
    }
    all
}

fn run(dir: &Path, place: &str, command: &str) {
    let tools = Path::new(env!("CARGO_BIN_EXE_kt")).parent().unwrap().to_owned();
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::iter::once(tools).chain(std::env::split_paths(&old)).collect();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).current_dir(dir).env("PATH", std::env::join_paths(path).unwrap());
    let done = shell.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{place}: `{command}`: {}\n{said}", done.status);
}
