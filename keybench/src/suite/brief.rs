//! Which tests a short table shows, and what it calls them.

use crate::error::{Error, Result};
use kingtide_base::options::nearest;
use std::path::{Path, PathBuf};

/// A line: a test and the words for it.
#[derive(Debug)]
pub struct Row {
    line: usize,
    /// As the file of results calls it.
    pub test: String,
    /// As the table does.
    pub words: String,
}

/// The rows of a short table, from a file with one on each line; `#` begins a comment.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    rows: Vec<Row>,
}

impl Rows {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Rows> {
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::usage(format!("cannot read {}: {e}", path.display())))?;
        Rows::parse(path, &text)
    }

    /// Reads its text.
    pub fn parse(path: &Path, text: &str) -> Result<Rows> {
        let mut rows = Rows { path: path.to_owned(), rows: Vec::new() };
        for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#')) {
            let Some((test, words)) = line.trim().split_once(char::is_whitespace) else {
                let message = format!("{}:{}: a test and what to call it, please", path.display(), at + 1);
                return Err(Error::usage(message));
            };
            rows.rows.push(Row { line: at + 1, test: test.to_owned(), words: words.trim().to_owned() });
        }
        Ok(rows)
    }

    /// In the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }

    /// What is wrong with a row, and which of `known` it may have meant.
    pub fn wrong(&self, row: &Row, what: &str, known: &[String]) -> Error {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        Error::usage(format!("{}:{}: {what}{}", self.path.display(), row.line, nearest(&row.test, &known)))
    }
}
