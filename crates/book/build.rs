//! Makes a test of every Rust block in README.md, in that of the crate `kingtide`, and in the pages of `docs`, and of every program in
//! the crate's `examples`.
//!
//! A block that has a `main` is a program. One without is the body of a function in which `db` is an open database,
//! `family` its default family, and everything that the crate `kingtide` exports is in scope. Blocks marked `no_run` are compiled
//! only; `cargo xtask tidy` has a list of them.

#![allow(clippy::disallowed_methods)] // it reads pages, not databases

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("crates/kingtide/README.md")];
    find(&root.join("docs"), &mut pages);
    pages.sort();
    let mut tests = String::new();
    for page in pages {
        println!("cargo:rerun-if-changed={}", page.display());
        let name = page.strip_prefix(&root).unwrap_or(&page).display().to_string();
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{name}: {e}"));
        for block in blocks(&text) {
            tests.push_str(&test(&name, &block));
        }
    }
    for program in rust_files(&root.join("crates/kingtide/examples")) {
        println!("cargo:rerun-if-changed={}", program.display());
        let name = program.strip_prefix(&root).unwrap_or(&program).display().to_string();
        let text = std::fs::read_to_string(&program).unwrap_or_else(|e| panic!("{name}: {e}"));
        let of_file = |line: &&str| line.starts_with("//!") || line.starts_with("#!["); // not allowed within a module
        let body: Vec<&str> = text.lines().filter(|line| !of_file(line)).collect();
        // The arguments are those of the test program.
        let body = body.join("\n").replace("std::env::args()", "std::env::args().take(1)");
        tests.push_str(&test(&name, &Block { line: 1, runs: true, body }));
    }
    println!("cargo:rerun-if-changed={}", root.join("docs").display());
    println!("cargo:rerun-if-changed={}", root.join("crates/kingtide/examples").display());
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("blocks.rs"), tests).expect("the tests are written");
}

/// All Markdown files below `dir`.
fn find(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("docs is a directory") {
        let path = entry.expect("docs can be listed").path();
        if path.is_dir() {
            find(&path, pages);
        } else if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        }
    }
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the examples are there");
    let paths = entries.map(|e| e.expect("they can be listed").path());
    let mut files: Vec<PathBuf> = paths.filter(|p| p.extension().is_some_and(|e| e == "rs")).collect();
    files.sort();
    files
}

/// A fenced block of Rust.
struct Block {
    /// Line of the fence, from 1.
    line: usize,
    runs: bool,
    body: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.trim().strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().map(|(_, l)| l).take_while(|l| l.trim() != "```").collect();
        let words: Vec<&str> = info.split(',').map(str::trim).collect();
        if words[0] == "rust" {
            all.push(Block { line: at + 1, runs: !words.contains(&"no_run"), body: body.join("\n") });
        }
    }
    all
}

fn test(page: &str, block: &Block) -> String {
    let word: String =
        page.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    let name = format!("{word}_line_{}", block.line);
    let mut out = format!("#[allow(unused, dead_code)]\nmod {name} {{\n");
    if block.body.contains("fn main(") {
        let _ = writeln!(out, "{}", block.body);
    } else {
        out += "use kingtide::*;\npub fn main() -> kingtide::Result<()> {\n";
        out += "let db = Db::open(\"example\", Options::default())?;\nlet family = db.default_family();\n";
        let _ = writeln!(out, "{}\nOk(())\n}}", block.body);
    }
    let run = if block.runs { "true" } else { "false" };
    let _ = writeln!(out, "#[test]\nfn works() {{ super::check(\"{page}:{}\", {run}, main); }}\n}}", block.line);
    out
}
