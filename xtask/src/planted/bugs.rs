//! The descriptions of the planted bugs: what is in `planted/*.md`, whose README explains the notation.

use crate::report::Report;

/// Where the descriptions are, from the root of the repository.
pub const FOLDER: &str = "planted/";

/// A mistake, and what must notice it.
#[derive(Debug, Default)]
pub struct Bug {
    pub name: String,
    /// What the engine does wrong while it is awake.
    pub wrong: String,
    /// The promise that it breaks.
    pub breaks: String,
    /// Arguments of `cargo test`: the tests that must fail.
    pub caught_by: String,
    pub hunks: Vec<Hunk>,
    /// File and line (from 0) of its heading.
    pub at: (String, usize),
}

/// A place in a source file, and what becomes of it.
#[derive(Debug, Default)]
pub struct Hunk {
    /// Path from the root of the repository.
    pub file: String,
    /// The function that the lines are in; empty for anywhere in the file.
    pub function: String,
    pub lines: Vec<Line>,
    /// File and line (from 0) where it is written.
    pub at: (String, usize),
}

/// A line of a hunk, without its indentation.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Is in the source and stays.
    Same(String),
    /// Is in the source, and is not executed while the bug is awake.
    Right(String),
    /// Takes its place.
    Wrong(String),
}

/// Reads all descriptions among `texts`, which are paths and contents. What is not understood is reported.
pub fn read(texts: &[(String, String)], report: &mut Report) -> Vec<Bug> {
    let is_description = |p: &str| p.starts_with(FOLDER) && p.ends_with(".md") && !p.ends_with("/README.md");
    let mut bugs = Vec::new();
    for (path, text) in texts.iter().filter(|t| is_description(&t.0)) {
        parse(path, text, &mut bugs, report);
    }
    check(&bugs, report);
    bugs
}

fn parse(path: &str, text: &str, bugs: &mut Vec<Bug>, report: &mut Report) {
    let mut in_diff = false;
    let mut file = String::new();
    let mut named = false; // text in front of the first bug is for readers
    for (n, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("## ") {
            named = true;
            bugs.push(Bug { name: name.trim().to_owned(), at: (path.to_owned(), n), ..Bug::default() });
            continue;
        }
        let Some(bug) = bugs.last_mut().filter(|_| named) else { continue };
        if line.starts_with("```") {
            in_diff = line == "```diff";
            file.clear();
        } else if !in_diff {
            field(bug, path, n, line, report);
        } else if let Some(name) = line.strip_prefix("--- ") {
            file = name.trim().to_owned();
        } else if let Some(place) = line.strip_prefix("@@") {
            let function = place.trim().trim_start_matches("fn ").to_owned();
            bug.hunks.push(Hunk { file: file.clone(), function, lines: Vec::new(), at: (path.to_owned(), n) });
        } else if let Some(hunk) = bug.hunks.last_mut().filter(|h| h.file == file && !file.is_empty()) {
            match line_of(line) {
                Ok(line) => hunk.lines.push(line),
                Err(message) => report.add(path, n, message),
            }
        } else {
            report.add(path, n, "begin a diff with `--- <file>` and `@@ fn <function>`");
        }
    }
}

fn field(bug: &mut Bug, path: &str, n: usize, line: &str, report: &mut Report) {
    let Some((key, value)) = line.strip_prefix("* ").and_then(|l| l.split_once(": ")) else {
        if !line.is_empty() {
            report.add(path, n, "a bug has the lines `* wrong: `, `* breaks: ` and `* caught by: `, and a diff");
        }
        return;
    };
    let value = value.trim().trim_matches('`').to_owned();
    match key {
        "wrong" => bug.wrong = value,
        "breaks" => bug.breaks = value,
        "caught by" => bug.caught_by = value,
        _ => report.add(path, n, &format!("`{key}` is none of `wrong`, `breaks` and `caught by`")),
    }
}

fn line_of(line: &str) -> Result<Line, &'static str> {
    let rest = |l: &str| l.get(1..).unwrap_or_default().trim().to_owned();
    match line.chars().next() {
        Some(' ') => Ok(Line::Same(rest(line))),
        Some('-') => Ok(Line::Right(rest(line))),
        // Lines may be joined, so that the numbers of those behind them stay.
        Some('+') if line.contains("//") => Err("leave out the comment: added lines may be joined with what follows"),
        Some('+') => Ok(Line::Wrong(rest(line))),
        _ => Err("a line of a diff begins with a blank, `-` or `+`"),
    }
}

fn check(bugs: &[Bug], report: &mut Report) {
    for (i, bug) in bugs.iter().enumerate() {
        let mut add = |text: &str| report.add(&bug.at.0, bug.at.1, &format!("planted bug {}: {text}", bug.name));
        if let Some(other) = bugs[..i].iter().find(|b| b.name == bug.name) {
            add(&format!("{} has one of that name too", other.at.0));
        }
        if bug.name.is_empty() || !bug.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
            add("a name is made of small letters and hyphens");
        }
        if bug.wrong.is_empty() || bug.breaks.is_empty() {
            add("say what is wrong and what it breaks, in lines `* wrong: ` and `* breaks: `");
        }
        if !bug.caught_by.starts_with("-p ") || !["--test ", "--lib "].iter().any(|t| bug.caught_by.contains(t)) {
            add("name the test that fails: `* caught by: `-p <package> --test <program> <test>``, or with --lib");
        }
        if bug.hunks.is_empty() {
            add("show in a diff what to change");
        }
        for hunk in bug.hunks.iter().filter(|h| !h.lines.iter().any(|l| !matches!(l, Line::Same(_)))) {
            report.add(&hunk.at.0, hunk.at.1, &format!("planted bug {}: nothing changes here", bug.name));
        }
    }
}
