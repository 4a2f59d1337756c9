//! Puts planted bugs into source files. Each is behind a condition, so that one build holds all of them asleep, and no line
//! gets another number, so that what the compiler and a panic say of the copy is true of the original.

use super::bugs::{Bug, Hunk, Line};
use crate::report::Report;
use std::collections::BTreeMap;

/// How a diff refers to the switch of its bug.
const SWITCH: &str = "planted!()";

/// The files that the bugs change, with all of them planted. What does not fit is reported.
pub fn plant(bugs: &[Bug], texts: &BTreeMap<&str, &str>, report: &mut Report) -> BTreeMap<String, String> {
    let mut files: BTreeMap<&str, File<'_>> = BTreeMap::new();
    for bug in bugs {
        for hunk in &bug.hunks {
            let mut add = |message: &str| {
                report.add(&hunk.at.0, hunk.at.1, &format!("planted bug {}: {message}", bug.name));
            };
            let Some(text) = texts.get(hunk.file.as_str()) else {
                add(&format!("there is no file {}", hunk.file));
                continue;
            };
            let file = files.entry(&hunk.file).or_insert_with(|| File::of(text));
            if let Err(message) = file.change(&bug.name, hunk) {
                add(&message);
            }
        }
    }
    files.into_iter().map(|(path, file)| (path.to_owned(), file.text())).collect()
}

/// A file, and what goes into its lines.
struct File<'a> {
    lines: Vec<Planted<'a>>,
}

#[derive(Default)]
struct Planted<'a> {
    /// As it is in the file.
    right: &'a str,
    /// What takes its place, if anything.
    instead: Option<String>,
    /// The bug that changes it.
    by: String,
    /// What goes in front of it: ends of conditions that are open, insertions, conditions that begin.
    closed: String,
    inserted: String,
    opened: String,
}

impl<'a> File<'a> {
    fn of(text: &'a str) -> File<'a> {
        File { lines: text.lines().map(|right| Planted { right, ..Planted::default() }).collect() }
    }

    fn change(&mut self, bug: &str, hunk: &Hunk) -> Result<(), String> {
        let mut at = self.find(hunk)?;
        let mut rest = hunk.lines.as_slice();
        while let Some(line) = rest.first() {
            if let Line::Same(_) = line {
                (at, rest) = (at + 1, &rest[1..]);
                continue;
            }
            let group = rest.iter().position(|l| matches!(l, Line::Same(_))).unwrap_or(rest.len());
            let right = rest[..group].iter().filter(|l| matches!(l, Line::Right(_))).count();
            let wrong: Vec<&str> = rest[..group]
                .iter()
                .filter_map(|l| if let Line::Wrong(w) = l { Some(w.as_str()) } else { None })
                .collect();
            self.switch(bug, at..at + right, &wrong)?;
            (at, rest) = (at + right, &rest[group..]);
        }
        Ok(())
    }

    /// The first line of the only place where the lines of a hunk are.
    fn find(&self, hunk: &Hunk) -> Result<usize, String> {
        let wanted: Vec<&str> = hunk
            .lines
            .iter()
            .filter_map(|l| match l {
                Line::Same(text) | Line::Right(text) => Some(text.as_str()),
                Line::Wrong(_) => None,
            })
            .collect();
        let (file, function) = (&hunk.file, &hunk.function);
        let place = if function.is_empty() { file.to_owned() } else { format!("`fn {function}` of {file}") };
        let bodies = self.functions(function);
        if bodies.is_empty() {
            return Err(format!("{file} has no `fn {function}`; bring the diff up to date"));
        }
        if wanted.is_empty() {
            return Err(format!("add a line of {place} as context, with a blank in front of it"));
        }
        let is_at = |i: usize| wanted.iter().zip(&self.lines[i..]).all(|(w, l)| *w == l.right.trim());
        let mut found: Vec<usize> =
            bodies.into_iter().flatten().filter(|i| i + wanted.len() <= self.lines.len() && is_at(*i)).collect();
        found.dedup();
        match found[..] {
            [at] => Ok(at),
            [] => Err(format!("its lines are not in {place}; bring the diff up to date")),
            _ => Err(format!("its lines are in {place} {} times; add lines as context", found.len())),
        }
    }

    /// The lines of each function of that name, as rustfmt lays them out; those of the file if the name is empty.
    fn functions(&self, name: &str) -> Vec<std::ops::Range<usize>> {
        if name.is_empty() {
            return std::iter::once(0..self.lines.len()).collect();
        }
        let begins = |line: &str| {
            let line = line.trim_start();
            !line.starts_with("//")
                && line.split_once("fn ").is_some_and(|(before, rest)| {
                    (before.is_empty() || before.ends_with(' '))
                        && rest.strip_prefix(name).is_some_and(|r| r.starts_with(['(', '<']))
                })
        };
        let mut bodies = Vec::new();
        for (i, line) in self.lines.iter().enumerate().filter(|(_, l)| begins(l.right)) {
            let end = format!("{}}}", indentation(line.right));
            let on_one_line = line.right.ends_with([';', '}']);
            let last = self.lines[i..].iter().position(|l| on_one_line || l.right == end);
            bodies.extend(last.map(|last| i..i + last + 1));
        }
        bodies
    }

    /// Makes the lines `right` and `wrong` alternatives. `wrong` that names the switch itself replaces `right` as it is.
    fn switch(&mut self, bug: &str, right: std::ops::Range<usize>, wrong: &[&str]) -> Result<(), String> {
        let awake = format!("::kingtide_base::planted::is_awake(\"{bug}\")");
        let own_switch = wrong.iter().any(|w| w.contains(SWITCH));
        for line in &mut self.lines[right.clone()] {
            if !line.by.is_empty() {
                return Err(format!("{} changes `{}` too", line.by, line.right.trim()));
            }
            line.by = bug.to_owned();
        }
        let wrong: Vec<String> = wrong.iter().map(|w| w.replace(SWITCH, &awake)).collect();
        let end = right.end;
        let behind = self.lines.get_mut(end).ok_or("nothing follows the change; plant it inside a function")?;
        if right.is_empty() {
            let wrong = wrong.join(" ");
            let wrong = if own_switch { wrong } else { format!("if {awake} {{ {wrong} }}") };
            behind.inserted += &format!("{wrong} ");
        } else if own_switch {
            let room = right.len();
            for (i, line) in self.lines[right].iter_mut().enumerate() {
                let until = if i + 1 == room { wrong.len() } else { (i + 1).min(wrong.len()) };
                line.instead = Some(wrong[i.min(until)..until].join(" "));
            }
        } else {
            behind.closed += "} ";
            self.lines[right.start].opened = match wrong[..] {
                [] => format!("if !{awake} {{ "),
                _ => format!("if {awake} {{ {} }} else {{ ", wrong.join(" ")),
            };
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let Planted { right, instead, closed, inserted, opened, .. } = line;
            let content = instead.as_deref().unwrap_or(right.trim_start());
            text.extend([indentation(right), closed, inserted, opened, content, "\n"]);
        }
        text
    }
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

#[cfg(test)]
mod tests {
    use super::super::bugs;
    use super::*;

    const SOURCE: &str = "\
fn first(a: &A) -> Result<u64> {
    a.sync()?;
    let last = a.last();
    Ok(last)
}

impl A {
    fn second(&self) -> u64 {
        self.sync(); // twice
        self.sync();
        self.last
    }
}
";

    /// The source with bugs planted, and what was reported.
    fn planted(diffs: &[&str]) -> (String, Vec<String>) {
        let bug = |(i, diff): (usize, &&str)| {
            let name = char::from(b'a' + i as u8);
            format!("## {name}\n* wrong: w\n* breaks: b\n* caught by: `-p x --lib y`\n\n```diff\n--- x.rs\n{diff}```\n")
        };
        let description = diffs.iter().enumerate().map(bug).collect::<String>();
        let mut report = Report::default();
        let bugs = bugs::read(&[("planted/x.md".to_owned(), description)], &mut report);
        assert_eq!(bugs.len(), diffs.len());
        let files = plant(&bugs, &BTreeMap::from([("x.rs", SOURCE)]), &mut report);
        let text = files.get("x.rs").map_or("", String::as_str).replace("::kingtide_base::planted::is_awake", "awake");
        (text, report.problems)
    }

    #[test]
    fn lines_become_alternatives_and_keep_their_numbers() {
        let (text, problems) = planted(&[
            "@@ fn first\n-a.sync()?;\n",
            "@@ fn first\n+return Ok(0);\n let last = a.last();\n@@ fn second\n-self.last\n+self.last + 1\n",
            "@@ fn first\n-let last = a.last();\n+let last = a.last();\n+let last = last - u64::from(planted!());\n",
            "@@\n-self.sync(); // twice\n-self.sync();\n+if planted!() { self.forget(); }\n",
        ]);
        assert_eq!(problems, Vec::<String>::new());
        let expected = "\
fn first(a: &A) -> Result<u64> {
    if !awake(\"a\") { a.sync()?;
    } if awake(\"b\") { return Ok(0); } let last = a.last(); let last = last - u64::from(awake(\"c\"));
    Ok(last)
}

impl A {
    fn second(&self) -> u64 {
        if awake(\"d\") { self.forget(); }
@
        if awake(\"b\") { self.last + 1 } else { self.last
    } }
}
";
        assert_eq!(text, expected.replace('@', "        "));
    }

    #[test]
    fn what_does_not_fit_is_reported_with_bug_and_file() {
        for (diff, expected) in [
            ("@@ fn first\n-a.sink()?;\n", "planted bug a: its lines are not in `fn first` of x.rs; bring"),
            ("@@ fn second\n-a.sync()?;\n", "planted bug a: its lines are not in `fn second` of x.rs; bring"),
            ("@@ fn third\n-a.sync()?;\n", "planted bug a: x.rs has no `fn third`; bring"),
            ("@@\n }\n+x();\n", "planted bug a: its lines are in x.rs 3 times; add lines"),
            ("@@ fn first\n+x();\n", "planted bug a: add a line of `fn first` of x.rs as context"),
            ("@@ fn first\n a.sync()?;\n", "planted bug a: nothing changes here"),
            ("@@ fn first\n-a.sync()?;\n+x(); // y\n", "leave out the comment"),
            ("-a.sync()?;\n", "begin a diff with `--- <file>`"),
            ("--- y.rs\n@@ fn first\n-a.sync()?;\n", "planted bug a: there is no file y.rs"),
        ] {
            let (_, problems) = planted(&[diff]);
            assert!(problems.iter().any(|p| p.starts_with("planted/x.md:") && p.contains(expected)), "{problems:?}");
        }
        let (_, problems) = planted(&["@@ fn first\n-a.sync()?;\n"; 2]);
        assert!(problems[0].ends_with("planted bug b: a changes `a.sync()?;` too"), "{problems:?}");
    }
}
