//! Style as a test: the rules that no compiler knows. `cargo xtask tidy` prints each violation with file, line and what
//! to do; `cargo xtask tidy --bless` lowers the ratchet to what is left of its known exceptions.
//!
//! | rule | where |
//! |---|---|
//! | files of at most 1000 lines, functions of at most 100 (ratchet) | Rust |
//! | functions of at most 6 parameters, nested at most 5 deep (ratchet) | `src` of all crates, but for the parameters of what C or Python calls |
//! | `unsafe` only in its rooms, each with its reason | Rust |
//! | no `.unwrap()` or `.expect(` outside tests (ratchet) | `crates/*/src` |
//! | public methods have a tested example (ratchet) | `crates/kingtide` |
//! | no unfinished work | Rust |
//! | dependencies go down only, external ones say why | manifests |
//! | a crate has what publishing it takes, or `publish = false` | manifests |
//! | no files that depend on each other in cycles (ratchet) | every crate |
//! | uses go down only, by the floors of ARCHITECTURE.md | crates with floors |
//! | no tabs, trailing blanks, paths of one machine | all text |
//! | no retired words | Markdown, the C header, comments of Rust, sources and tests of the MariaDB plugin |
//! | relative links lead to files and headings, the book lists every page of `docs` | Markdown |
//! | each fenced block is run or checked by a program, or listed with the reason why not | Markdown |
//! | named format documents exist, and have byte tables | Markdown |
//! | planted bugs fit the source that they change, and their tests exist | `planted` |

mod blocks;
mod examples;
pub mod links;
mod manifest;
mod programs;
mod ratchet;
mod report;
mod rust;
mod shape;
mod source;
mod text;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::graph::{self, Floors, Graph};
use crate::planted;
pub use ratchet::Counts;
pub use report::Report;
pub use source::Source;

/// The rule against cycles; its place is the first file of one.
pub const CYCLE: &str = "file-cycle";

/// Runs `cargo xtask tidy`.
pub fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() && args != ["--bless"] {
        return Err("usage: cargo xtask tidy [--bless]".to_owned());
    }
    let root = root();
    let (report, counts) = check(&root)?;
    if !args.is_empty() {
        let path = root.join(ratchet::PATH);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        return std::fs::write(&path, counts.bless(&old)).map_err(|e| format!("{}: {e}", path.display()));
    }
    match report.problems.len() {
        0 => Ok(()),
        n => Err(format!("{}\ntidy: {n} problems", report.problems.join("\n"))),
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    // What cargo says now comes first: a `target` folder that was copied has a program that was built for another tree.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_owned)
}

fn check(root: &Path) -> Result<(Report, Counts), String> {
    let files = list_files(root)?;
    let texts = read_texts(root, &files);
    let mut report = Report::default();
    let mut counts = Counts::default();
    let all = sources(&texts);
    for source in &all {
        rust::check(source, &mut report, &mut counts);
    }
    examples::check(&texts, &all, &mut counts);
    let find = |name: &str| texts.iter().find(|t| t.0 == name).map_or("", |t| t.1.as_str());
    manifests(&texts, find("ARCHITECTURE.md"), &mut report);
    for (path, body) in &texts {
        // What mysqltest recorded is compared byte by byte: columns are separated by tabs, empty ones end lines.
        if !path.ends_with(".result") && !path.ends_with(".rdiff") {
            text::check(path, body, &mut report);
        }
    }
    blocks::check(&texts, &mut report);
    links::check(&texts, &files, &mut report);
    text::formats(&texts.iter().filter(|t| !t.0.starts_with("xtask/")).cloned().collect::<Vec<_>>(), &mut report);
    floors(&all, find("ARCHITECTURE.md"), &mut report, &mut counts);
    planted::check(&texts, &mut report);
    programs::check(&texts, &mut report);
    counts.check(find(ratchet::PATH), &mut report);
    report.problems.sort();
    Ok((report, counts))
}

fn manifests(texts: &[(String, String)], architecture: &str, report: &mut Report) {
    let Some(layers) = manifest::Layers::parse(architecture) else {
        return report.add("ARCHITECTURE.md", 0, "no diagram `base <- ...` of the crates; restore it");
    };
    let all: Vec<_> = texts.iter().filter(|t| t.0.ends_with("/Cargo.toml")).collect();
    let ours: Vec<String> = all.iter().filter_map(|t| manifest::package_name(&t.1)).collect();
    for (path, body) in all {
        manifest::check(path, body, &layers, &ours, report);
        manifest::publishable(path, body, report);
    }
    if let Some((path, body)) = texts.iter().find(|t| t.0 == "Cargo.toml") {
        manifest::versions(path, body, report);
    }
}

/// All Rust files and ARCHITECTURE.md.
pub fn tree(root: &Path) -> Result<(Vec<Source>, String), String> {
    let texts = texts(root)?;
    let architecture = texts.iter().find(|t| t.0 == "ARCHITECTURE.md").map_or(String::new(), |t| t.1.clone());
    Ok((sources(&texts), architecture))
}

/// The text files with their contents.
pub fn texts(root: &Path) -> Result<Vec<(String, String)>, String> {
    Ok(read_texts(root, &list_files(root)?))
}

/// Finds cycles in crates, and holds the floors that ARCHITECTURE.md declares of some.
fn floors(sources: &[Source], architecture: &str, report: &mut Report, counts: &mut Counts) {
    for name in graph::crate_names(sources) {
        let graph = Graph::of(&graph::source_root(&name), sources);
        graph.cycles().iter().for_each(|c| counts.add(CYCLE, &graph.paths[c[0]], c.len(), 0));
        let Some(floors) = Floors::parse(architecture, &name) else { continue };
        for module in floors.unknown(&graph) {
            report.add("ARCHITECTURE.md", 0, &format!("the floors of {name} name `{module}`, which is no module"));
        }
        for (file, path) in graph.names.iter().zip(&graph.paths) {
            if file != "lib" && floors.of(file).is_none() {
                report.add(path, 0, "this module has no floor; add it to the list in ARCHITECTURE.md");
            }
        }
        for (from, to, cause) in floors.upward(&graph) {
            let (higher, what) = (&graph.names[to], &cause.what);
            let text =
                format!("`{what}` of {higher}, which is on a higher floor (ARCHITECTURE.md); move one of the two");
            report.add(&graph.paths[from], cause.line, &text);
        }
    }
}

/// All Rust files, those marked as tests that a `#[cfg(test)] mod name;` elsewhere declares.
fn sources(texts: &[(String, String)]) -> Vec<Source> {
    let rust = texts.iter().filter(|t| t.0.ends_with(".rs"));
    let mut all: Vec<Source> = rust.map(|(path, body)| Source::parse(path, body)).collect();
    let mut tests = Vec::new();
    for s in &all {
        let folder = match s.path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
            _ => s.path.trim_end_matches(".rs").to_owned(),
        };
        tests.extend(s.test_modules.iter().map(|m| format!("{folder}/{m}")));
    }
    for s in &mut all {
        if tests.iter().any(|t| s.path == format!("{t}.rs") || s.path.starts_with(&format!("{t}/"))) {
            s.mark_all();
        }
    }
    all
}

/// The files that git tracks or would.
pub fn list_files(root: &Path) -> Result<BTreeSet<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("tidy needs git to list the files: {e}"))?;
    if !listed.status.success() {
        return Err(format!("tidy needs a git checkout: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    Ok(names.split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect())
}

/// The text files among them with their contents. Test data, results and lock files follow no style.
fn read_texts(root: &Path, files: &BTreeSet<String>) -> Vec<(String, String)> {
    let skipped = |p: &str| {
        p.ends_with(".lock")
            || p.contains("/testdata/")
            || (p.starts_with("results/") && !p.ends_with(".md") && !p.ends_with(".sh"))
    };
    let read = |p: &str| std::fs::read_to_string(root.join(p)).ok().map(|t| (p.to_owned(), t));
    files.iter().map(String::as_str).filter(|p| !skipped(p)).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        let (report, _) = super::check(&super::root()).unwrap();
        assert!(report.problems.is_empty(), "\n{}\n", report.problems.join("\n"));
    }
}
