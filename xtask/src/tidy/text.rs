//! Rules for all text files.

use crate::report::Report;

/// Directories of the machine that something was written on. Spelt so that this file passes.
const PRIVATE: &[&str] = &[concat!("/", "work"), concat!("/", "tmp/"), concat!("/", "root"), concat!("/", "home/")];

/// Words that documents, the C header, comments and messages do without, and what to write. Spelt so that this file passes.
const RETIRED: &[(&str, &str)] = &[
    (concat!("some", "body"), "name the thread, transaction, process or caller"),
    (concat!("no", "body"), "name what does not happen, as in `no transaction waits`"),
    (concat!("who", "ever"), "name the thread, transaction, process or caller"),
    (concat!("any", "body"), "name the thread, transaction, process or caller"),
    (concat!("those", " who "), "name the threads, transactions, processes or users"),
    (concat!("in a", " circle"), "write `cycle`"),
    (concat!("every", "body"), "write `all threads`, `all writers` or the like"),
    (concat!("in ", "vain"), "say what it did not achieve, or write `futile`"),
    (concat!("told", " of"), "write `called for`, `reported` or `recorded`"),
    (concat!("is yours", " to choose"), "write `you choose`"),
    (concat!("its owner", " wishes"), "write `remains usable`"),
    (concat!("to be had", " at once"), "write `could not be granted at once`"),
    (concat!("frozen", " memtable"), "write `immutable memtable`"),
    (concat!("freezes", " the memtable"), "write `seals the memtable`"),
    (concat!("merged", " away"), "write `dropped by a compaction`"),
];

/// Whitespace, paths and, in documents, in the comments and strings of Rust and in the MariaDB plugin, retired words.
pub fn check(path: &str, text: &str, report: &mut Report) {
    let is_go = path.ends_with(".go");
    let whole = path.ends_with(".md") || path.starts_with("crates/capi/include/") || is_of_plugin(path) || is_go;
    let is_rust = path.ends_with(".rs");
    // What tests write and say is read by developers only.
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    for (n, line) in text.lines().enumerate().filter(|_| whole || is_rust) {
        let line = match whole {
            true => line.to_lowercase(),
            false if is_test => comment(line).to_lowercase(),
            false => prose(line).to_lowercase(),
        };
        if let Some((word, advice)) = RETIRED.iter().find(|(word, _)| line.contains(word)) {
            report.add(path, n, &format!("`{word}` is a retired word; {advice}"));
        }
    }
    for (n, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            report.add(path, n, "trailing whitespace; remove it");
        }
        // gofmt indents with tabs.
        let after_indent = if is_go || path == "docs/go.md" { line.trim_start_matches('\t') } else { line };
        if after_indent.contains('\t') {
            report.add(path, n, "a tab; use spaces");
        }
        if let Some(found) = PRIVATE.iter().find(|p| names_directory(line, p)) {
            report.add(
                path,
                n,
                &format!("`{found}` is a path of one machine; use a relative path or std::env::temp_dir()"),
            );
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        report.add(path, text.lines().count().saturating_sub(1), "no line end at the end of the file; add one");
    }
}

/// The sources and tests of the MariaDB plugin. What a test prints is recorded, so all of its lines count and not only comments.
fn is_of_plugin(path: &str) -> bool {
    let ends = [".cc", ".h", ".py", ".test", ".inc"];
    path.starts_with("mariadb/") && ends.iter().any(|end| path.ends_with(end))
}

/// The comment at the end of a line of Rust. The `//` of a URL in a string counts as one, which does no harm.
fn comment(line: &str) -> &str {
    line.find("//").map_or("", |at| &line[at..])
}

/// What a line of Rust says to people: its comment and the strings that begin in it. A line inside of a longer string is not seen.
fn prose(line: &str) -> String {
    let comment = comment(line);
    let code = &line[..line.len() - comment.len()];
    let strings: Vec<&str> = code.split('"').skip(1).step_by(2).collect();
    format!("{} {comment}", strings.join(" "))
}

fn names_directory(line: &str, dir: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || "_-.~})".contains(c);
    line.match_indices(dir).any(|(at, _)| {
        let ends = dir.ends_with('/')
            || !line[at + dir.len()..].starts_with(|c: char| c.is_alphanumeric() || "_-".contains(c));
        ends && !line[..at].ends_with(word)
    })
}

/// Every format document that ARCHITECTURE.md or a source file names exists, and every one has a table of bytes.
pub fn formats(texts: &[(String, String)], report: &mut Report) {
    let is_format = |p: &str| p.starts_with("docs/format/") && p.ends_with(".md") && !p.ends_with("README.md");
    for (path, text) in texts {
        for (n, line) in text.lines().enumerate() {
            for (at, _) in line.match_indices("docs/format/") {
                let name_end = |c: char| !(c.is_alphanumeric() || "/_-.".contains(c));
                let name = line[at..].split(name_end).next().unwrap_or("").trim_end_matches('.');
                if name.ends_with(".md") && !texts.iter().any(|t| t.0 == name) {
                    report.add(path, n, &format!("`{name}` does not exist; write the format's byte table there"));
                }
            }
        }
        let has_table =
            || text.lines().any(|l| l.starts_with('|') && l.to_lowercase().contains("byte") || is_offset_row(l));
        if is_format(path) && !has_table() {
            report.add(path, 0, "no byte table; give offset, size and meaning of each field in rows of a table");
        }
    }
}

fn is_offset_row(line: &str) -> bool {
    line.starts_with('|') && ["offset", "size"].iter().any(|w| line.to_lowercase().contains(w))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(check: impl Fn(&mut Report)) -> Vec<String> {
        let mut report = Report::default();
        check(&mut report);
        report.problems
    }

    #[test]
    fn retired_words_are_found_where_users_read() {
        let line = concat!("It waits for no", "body.\n");
        assert_eq!(problems(|r| check("docs/a.md", line, r)).len(), 1);
        assert_eq!(problems(|r| check("crates/capi/include/kingtide.h", line, r)).len(), 1);
        assert!(problems(|r| check("crates/base/src/lib.rs", line, r)).is_empty(), "neither a comment nor a string");
        let message = format!("    panic!(\"{}\");\n", line.trim_end());
        assert_eq!(problems(|r| check("crates/base/src/lib.rs", &message, r)).len(), 1, "a message");
        for comment in ["/// ", "    let a = 1; // ", "//! "] {
            assert_eq!(problems(|r| check("crates/base/src/lib.rs", &format!("{comment}{line}"), r)).len(), 1);
        }
        for path in ["mariadb/src/a.cc", "mariadb/src/a.h", "mariadb/mysql-test/suite/kingtide/t/a.test"] {
            assert_eq!(problems(|r| check(path, line, r)).len(), 1);
        }
        assert!(problems(|r| check("docs/a.md", "No thread waits.\n", r)).is_empty());
    }

    #[test]
    fn whitespace_and_private_paths_are_found() {
        let of = |text: &str| problems(|r| check("a.md", text, r));
        assert!(of("fine\n").is_empty() && of("").is_empty() && of("a/workload net/tmp/x\n").is_empty());
        assert_eq!(of("a \n\tb\nend").len(), 3);
        let of_go = |text: &str| problems(|r| check("go/a.go", text, r));
        assert_eq!((of_go("\tx\n").len(), of_go("\tx\ty\n").len()), (0, 1));
        for dir in PRIVATE {
            assert_eq!(of(&format!("see {dir}x/y\n")).len(), usize::from(dir.ends_with('/')), "{dir}");
            assert_eq!(of(&format!("\"{dir}\"\n")).len(), 1, "{dir}");
        }
    }

    #[test]
    fn formats_have_tables_of_bytes() {
        let texts = |format: &str| {
            let text = |p: &str, t: &str| (p.to_owned(), t.to_owned());
            vec![text("ARCHITECTURE.md", "see docs/format/wal.md.\n"), text("docs/format/klog.md", format)]
        };
        assert_eq!(problems(|r| formats(&texts("| offset | size |\n"), r)).len(), 1);
        assert_eq!(problems(|r| formats(&texts("words\n"), r)).len(), 2);
    }
}
