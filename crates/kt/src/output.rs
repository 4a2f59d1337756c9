//! Standard output: lines, JSON, and tables with aligned columns.

use crate::error::Result;
use crate::format::Formats;
use crate::keys::Key;
use crate::plain::plain;
use kingtide::ValueReader;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{BufWriter, Stdout, Write};

/// Where results go.
pub struct Out {
    to: BufWriter<Stdout>,
    /// Whether results are JSON.
    pub json: bool,
    /// How keys and values are written.
    pub formats: Formats,
}

impl Out {
    /// Standard output.
    pub fn new(json: bool, formats: Formats) -> Out {
        Out { to: BufWriter::with_capacity(1 << 16, std::io::stdout()), json, formats }
    }

    /// A key on the command line.
    pub fn parse_key(&self, text: &str) -> Result<Key> {
        Key::parse(text, self.formats.key_format)
    }

    /// The same for a key that may be absent.
    pub fn parse_key_if(&self, text: Option<&String>) -> Result<Option<Key>> {
        text.map(|t| self.parse_key(t)).transpose()
    }

    /// A line of text for a person.
    ///
    /// Names of families and files may have line feeds and escape sequences; they are shown as the format `utf8` shows them.
    pub fn line(&mut self, text: impl Display) -> Result<()> {
        self.data(plain(&text.to_string()))
    }

    /// A line of keys and values, which are in the formats that were asked for.
    pub fn data(&mut self, text: impl Display) -> Result<()> {
        Ok(writeln!(self.to, "{text}")?)
    }

    /// A line of JSON.
    pub fn object(&mut self, value: &Value) -> Result<()> {
        self.data(value)
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.to.write_all(bytes)?)
    }

    /// A value as it is, piece by piece.
    pub fn copy(&mut self, value: &mut ValueReader) -> Result<()> {
        let mut piece = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let n = value.read_at(at, &mut piece)?;
            if n == 0 {
                return Ok(());
            }
            self.raw(&piece[..n])?;
            at += n as u64;
        }
    }

    /// The object for a program, or the line for a person.
    pub fn answer(&mut self, value: &Value, text: impl Display) -> Result<()> {
        if self.json { self.object(value) } else { self.line(text) }
    }

    /// Hands everything over.
    pub fn finish(&mut self) -> Result<()> {
        Ok(self.to.flush()?)
    }

    /// A table, its columns aligned: those whose cells begin with a digit to the right. The first row is the head.
    pub fn table(&mut self, indent: &str, rows: &[Vec<String>]) -> Result<()> {
        // Before they are measured.
        let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
            .collect();
        let is_number = |cell: &Cow<str>| cell.starts_with(|c: char| c.is_ascii_digit()) || cell == "-";
        let numbers: Vec<bool> =
            (0..columns).map(|c| rows.len() > 1 && rows[1..].iter().filter_map(|r| r.get(c)).all(is_number)).collect();
        for row in &rows {
            let mut line = indent.to_owned();
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                let (before, after) = if numbers[c] { (pad.as_str(), "") } else { ("", pad.as_str()) };
                line = line + before + cell + after + "  ";
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// A number of bytes with its unit: `512 B`, `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number with its thousands apart: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number of things: `1 entry`, `2 entries`.
pub fn things(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        let shown = [0, 1023, 1024, 1536, 1 << 20, (1 << 30) - 1].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 GiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((things(1, "key", "keys"), things(0, "key", "keys")), ("1 key".into(), "0 keys".into()));
    }
}
