//! Rules for the links of Markdown files: files exist, anchors are headings, and the book lists every page.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::Report;

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A link in a Markdown file.
#[derive(Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// Line, counted from 0.
    pub line: usize,
    /// Byte offset of the target in that line.
    pub at: usize,
    /// What stands between the parentheses.
    pub target: &'a str,
}

/// The inline links and images of a Markdown text, those in code left out.
pub fn links(text: &str) -> Vec<Link<'_>> {
    let mut all = Vec::new();
    for (line, body) in prose(text) {
        for (found, _) in body.match_indices("](") {
            let at = found + 2;
            let Some(len) = body[at..].find(')') else { continue };
            let is_code = body[..found].matches('`').count() % 2 == 1;
            if !is_code {
                all.push(Link { line, at, target: &body[at..at + len] });
            }
        }
    }
    all
}

/// The lines of a Markdown text outside of fenced code, with their numbers from 0.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let trimmed = line.trim_start();
        let ticks = trimmed.len() - trimmed.trim_start_matches('`').len();
        match fence {
            None if ticks >= 3 => fence = Some(ticks),
            None => return true,
            Some(open) if ticks >= open && trimmed.trim_end().len() == ticks => fence = None,
            Some(_) => {}
        }
        false
    })
}

/// The anchors that the headings of a Markdown text make, on GitHub and in the book alike.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(title) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')) else { continue };
        if !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let times = seen.entry(anchor.clone()).or_default();
        all.insert(if *times == 0 { anchor } else { format!("{anchor}-{times}") });
        *times += 1;
    }
    all
}

/// The anchor of a heading: letters, digits, `_` and `-`; blanks become `-`; the target of a link does not count.
fn anchor(title: &str) -> String {
    let mut words = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        words += before;
        rest = after.split_once(')').map_or("", |r| r.1);
    }
    words += rest;
    let kept = words.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Relative links of Markdown files lead to files that exist, and their anchors to headings.
pub fn check(texts: &[(String, String)], files: &BTreeSet<String>, report: &mut Report) {
    let pages: Vec<&(String, String)> = texts.iter().filter(|t| t.0.ends_with(".md")).collect();
    let headings: BTreeMap<&str, BTreeSet<String>> = pages.iter().map(|p| (p.0.as_str(), anchors(&p.1))).collect();
    for (path, text) in &pages {
        for link in links(text) {
            if let Some(problem) = broken(path, link.target, files, &headings) {
                report.add(path, link.line, &problem);
            }
        }
    }
    if let Some((_, summary)) = pages.iter().find(|p| p.0 == SUMMARY) {
        let listed: BTreeSet<String> = links(summary).iter().map(|l| resolve("docs", l.target)).collect();
        for (path, _) in pages.iter().filter(|p| p.0.starts_with("docs/") && p.0 != SUMMARY) {
            if !listed.contains(path) {
                report.add(path, 0, &format!("this page is not in {SUMMARY}; add it, so that the book has it"));
            }
        }
    }
}

/// What is wrong with a link of the page `path`, if anything is.
fn broken(
    path: &str,
    target: &str,
    files: &BTreeSet<String>,
    headings: &BTreeMap<&str, BTreeSet<String>>,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = path.rsplit_once('/').map_or("", |p| p.0);
    let full = if file.is_empty() { path.to_owned() } else { resolve(folder, file) };
    if !files.iter().any(|f| *f == full || f.starts_with(&format!("{full}/"))) {
        return Some(format!("link to `{file}`, which does not exist; correct or remove it"));
    }
    let known = headings.get(full.as_str())?;
    if anchor.is_empty() || known.contains(anchor) {
        return None;
    }
    Some(format!("link to `#{anchor}`, which is no heading of {full}; correct it"))
}

/// The path that `target`, seen from `folder`, names in the repository.
pub fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            p => parts.push(p),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(pages: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = pages.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        let files = texts.iter().map(|t| t.0.clone()).chain(["crates/base/src/lib.rs".to_owned()]).collect();
        let mut report = Report::default();
        check(&texts, &files, &mut report);
        report.problems
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let readme = ("README.md", "# Top\n## A `code` heading, and more\n## Twice\n## Twice\n");
        let good = "[a](../README.md#a-code-heading-and-more) [b](../README.md#twice-1) [c](../crates/base) [d](#here)\n\
                    # Here\n[w](https://x.y#z) `[no](link)`\n```\n[no](link)\n```\n";
        assert_eq!(problems(&[readme, ("docs/b.md", good)]), Vec::<String>::new());
        let bad = "\n[a](c.md) [b](../README.md#thrice)\n[c](#nowhere)\n";
        let found = problems(&[readme, ("docs/b.md", bad)]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("docs/b.md:2: link to `c.md`"), "{found:?}");
        assert!(found[1].starts_with("docs/b.md:2: link to `#thrice`"), "{found:?}");
        assert!(found[2].starts_with("docs/b.md:3: link to `#nowhere`"), "{found:?}");
    }

    #[test]
    fn the_book_lists_every_page() {
        let summary = ("docs/SUMMARY.md", "# Book\n- [B](b.md)\n- [C](deep/c.md)\n");
        assert!(problems(&[summary, ("docs/b.md", "# B\n"), ("docs/deep/c.md", "# C\n")]).is_empty());
        let found = problems(&[summary, ("docs/b.md", "# B\n"), ("docs/deep/c.md", "# C\n"), ("docs/d.md", "# D\n")]);
        assert!(found.len() == 1 && found[0].starts_with("docs/d.md:1: this page is not in"), "{found:?}");
    }

    #[test]
    fn a_fence_ends_only_with_as_many_ticks() {
        let text = "````\n```\n[no](x)\n````\n[yes](y)\n";
        assert_eq!(links(text), [Link { line: 4, at: 6, target: "y" }]);
    }
}
