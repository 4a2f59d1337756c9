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
//! | no files that use each other in cycles | every crate |
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
mod rust;
mod shape;
mod text;
mod uses;

use std::path::Path;

use crate::planted;
use crate::report::Report;
use crate::source::Source;
use crate::tree;
use ratchet::Counts;

/// Runs `cargo xtask tidy`.
pub fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() && args != ["--bless"] {
        return Err("usage: cargo xtask tidy [--bless]".to_owned());
    }
    let root = tree::root();
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

fn check(root: &Path) -> Result<(Report, Counts), String> {
    let (files, texts) = (tree::list_files(root)?, tree::texts(root)?);
    let mut report = Report::default();
    let mut counts = Counts::default();
    let all = Source::all(&texts);
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
    uses::check(&all, find("ARCHITECTURE.md"), &mut report);
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        let (report, _) = super::check(&super::tree::root()).unwrap();
        assert!(report.problems.is_empty(), "\n{}\n", report.problems.join("\n"));
    }
}
