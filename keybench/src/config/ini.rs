//! The text form of a configuration: INI as existing configurations use it.
//!
//! `[section]`, `key = value`, blank lines. A `#` or `;` begins a comment at the start of a line or after white space, so
//! a value may hold either inside, such as RocksDB's `{block_cache=64M;block_size=4K}`. A key may be given again. What
//! comes before the first section belongs to `[bench]`.

use crate::error::{Error, Result};
use crate::say::note;
use std::path::{Path, PathBuf};

/// One `key = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As written.
    pub key: String,
    /// As written, without the white space around it.
    pub value: String,
    /// From 1.
    pub line: usize,
}

/// One `[section]`, all its parts together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// As written.
    pub name: String,
    /// Of its first header; 1 for what comes before any.
    pub line: usize,
    /// In order.
    pub entries: Vec<Entry>,
}

/// A configuration, read but not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ini {
    /// The file, for messages.
    pub path: PathBuf,
    /// In the order of their first headers.
    pub sections: Vec<Section>,
}

/// The section of what comes before the first header.
pub const FIRST: &str = "bench";

impl Ini {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Ini> {
        let bytes = std::fs::read(path).map_err(|e| Error::usage(format!("cannot read {}: {e}", path.display())))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            Error::usage(format!("{}: byte {} is not UTF-8", path.display(), e.utf8_error().valid_up_to()))
        })?;
        Ini::parse(path, &text)
    }

    /// Understands the form of `text`, not what it says.
    pub fn parse(path: &Path, text: &str) -> Result<Ini> {
        let mut ini = Ini { path: path.to_owned(), sections: Vec::new() };
        let mut current = FIRST.to_owned();
        for (at, raw) in text.lines().enumerate() {
            let line = at + 1;
            let content = without_comment(raw).trim();
            if content.is_empty() {
                continue;
            }
            if let Some(rest) = content.strip_prefix('[') {
                let name = rest.strip_suffix(']').map(str::trim).filter(|n| !n.is_empty());
                current = name.ok_or_else(|| ini.wrong(line, format!("'{content}' is no [section]")))?.to_owned();
                ini.section(&current, line);
                continue;
            }
            let Some((key, value)) = content.split_once('=').map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
            else {
                // The original's replay.cnf has lines of plain text.
                note!("warning: {}", ini.wrong(line, format!("'{content}' is not key = value; the line is ignored")));
                continue;
            };
            if key.is_empty() {
                return Err(ini.wrong(line, format!("'{content}' is neither a [section] nor key = value")));
            }
            ini.section(&current, line).entries.push(Entry { key, value, line });
        }
        Ok(ini)
    }

    fn section(&mut self, name: &str, line: usize) -> &mut Section {
        let at = self.sections.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.sections.push(Section { name: name.to_owned(), line, entries: Vec::new() });
            self.sections.len() - 1
        });
        &mut self.sections[at]
    }

    /// A mistake in a line, with the place.
    pub fn wrong(&self, line: usize, message: impl std::fmt::Display) -> Error {
        Error::usage(format!("{}:{line}: {message}", self.path.display()))
    }
}

/// A line up to its comment.
pub fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if (c == '#' || c == ';') && before.is_whitespace() {
            return &line[..at];
        }
        before = c;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Ini> {
        Ini::parse(Path::new("a.cnf"), text)
    }

    #[test]
    fn sections_values_and_comments() {
        let ini = parse(
            "threads = 1,2 # two points\n; nothing\n[rocksdb]\nx={a=1;b={c=2#3}} ; why\n\n[bench]\nworkload=a\n workload = b\r\n[empty]\n",
        )
        .unwrap();
        let of = |name: &str| {
            let s = ini.sections.iter().find(|s| s.name == name).unwrap();
            s.entries.iter().map(|e| (e.key.as_str(), e.value.as_str(), e.line)).collect::<Vec<_>>()
        };
        assert_eq!(of("bench"), [("threads", "1,2", 1), ("workload", "a", 7), ("workload", "b", 8)]);
        assert_eq!(of("rocksdb"), [("x", "{a=1;b={c=2#3}}", 4)]);
        assert_eq!(of("empty"), []);
    }

    #[test]
    fn lines_of_plain_text_are_skipped() {
        let ini = parse("to repeat this run:\nthreads = 4\n  keybench run --config it\n").unwrap();
        let keys: Vec<&str> = ini.sections.iter().flat_map(|s| &s.entries).map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["threads"]);
    }

    #[test]
    fn mistakes_name_file_and_line() {
        for (text, wanted) in [
            ("\n[bench\n", "a.cnf:2: '[bench' is no [section]"),
            ("[]", "a.cnf:1: '[]' is no [section]"),
            (" = 4", "a.cnf:1: '= 4' is neither a [section] nor key = value"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_no_text() {
        let dir = std::env::temp_dir().join(format!("keybench-ini-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("bytes.cnf");
        std::fs::write(&path, b"a = \xff").unwrap();
        assert!(Ini::read(&path).unwrap_err().to_string().ends_with("bytes.cnf: byte 4 is not UTF-8"));
        assert!(Ini::read(&dir.join("none")).unwrap_err().to_string().contains("none"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
