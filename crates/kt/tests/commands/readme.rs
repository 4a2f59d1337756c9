//! The commands of README.md as one script, and what they print. `book` runs each command of all pages.

use super::common::Dir;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

/// The lines of all blocks in a language, from top to bottom.
fn lines_of(page: &str, language: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(info) => inside = !inside && info.split(',').next() == Some(language),
            None if inside => lines.push(line.to_owned()),
            None => {}
        }
    }
    lines
}

/// Runs the lines that need no checkout of the repository, in an empty directory, with `kt` in the path.
#[track_caller]
fn run(lines: &[String], dir: &Dir) -> String {
    let of_checkout = |line: &String| ["cargo ", "./test.sh"].iter().any(|start| line.starts_with(start));
    let script: Vec<&str> = lines.iter().filter(|l| !of_checkout(l)).map(String::as_str).collect();
    assert!(script.iter().all(|l| l.starts_with("kt ") || l.starts_with('#')), "what is this? {script:?}");
    let bin = PathBuf::from(env!("CARGO_BIN_EXE_kt")).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let done =
        Command::new("sh").args(["-euc", &script.join("\n")]).current_dir(dir.path("")).env("PATH", path).output();
    let done = done.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}\n{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

#[test]
fn the_readme_works_from_top_to_bottom_in_an_empty_directory() {
    let (dir, readme) = (Dir::new(), page("README.md"));
    let out = run(&lines_of(&readme, "sh"), &dir);
    assert!(out.contains("tide\thigh\n") && out.contains("no problems found\n"), "{out}");
    let exported = std::fs::read_to_string(dir.path("my-database.jsonl")).unwrap();
    assert!(exported.contains("\"key\":\"tide\""), "{exported}");

    // Examples do not meet in one directory: the programs open databases of their own.
    let rust = lines_of(&readme, "rust").join("\n");
    let opened: Vec<&str> = rust.split("Db::open(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let names: BTreeSet<&str> = opened.iter().copied().chain(["my-database"]).collect();
    assert!(opened.len() >= 2 && names.len() == opened.len() + 1, "{opened:?}");
}
