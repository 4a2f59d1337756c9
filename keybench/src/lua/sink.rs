//! Where a run's tables go besides its report directory (`--report`), and what is reported about the machine (`--probe`).

use crate::error::{Error, Result};
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::str::FromStr;

/// A table that a sink takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The report that people read.
    Console,
    /// A line for each kind of operation of each point.
    Points,
    /// A line for each reading.
    Timeline,
}

const TABLES: [(&str, Table); 3] = [("console", Table::Console), ("tsv", Table::Points), ("timeline", Table::Timeline)];

/// `table` or `table:path`; without a path, or with `-` for it, standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sink {
    /// What it takes.
    pub table: Table,
    /// Where to; `None`: standard output.
    pub path: Option<PathBuf>,
}

impl FromStr for Sink {
    type Err = String;

    fn from_str(text: &str) -> Result<Sink, String> {
        let (name, path) = text.trim().split_once(':').map_or((text.trim(), None), |(n, p)| (n, Some(p)));
        let known = TABLES.iter().find(|(n, _)| *n == name);
        let (_, table) = known.ok_or_else(|| {
            let names = TABLES.map(|(n, _)| n);
            format!("no report '{name}'{} (known: {})", kingtide_base::options::nearest(name, &names), names.join(", "))
        })?;
        match path {
            Some("") => Err(format!("'{text}' has no file name after the colon")),
            Some("-") | None => Ok(Sink { table: *table, path: None }),
            Some(path) => Ok(Sink { table: *table, path: Some(path.into()) }),
        }
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TABLES.iter().find(|(_, t)| *t == self.table).map_or("", |(n, _)| n))?;
        self.path.as_ref().map_or(Ok(()), |p| write!(f, ":{}", p.display()))
    }
}

impl Sink {
    /// Opens it for writing.
    pub fn open(&self) -> Result<Box<dyn Write>> {
        match &self.path {
            None => Ok(Box::new(crate::say::Stdout)),
            Some(path) => Ok(Box::new(BufWriter::new(File::create(path).map_err(|e| Error::io("create", path, e))?))),
        }
    }
}

/// What is reported about the machine and the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Processor, memory, kernel, disk.
    pub system: bool,
    /// Version, compiler, how it was built.
    pub build: bool,
}

impl FromStr for Probes {
    type Err = String;

    fn from_str(text: &str) -> Result<Probes, String> {
        let mut probes = Probes { system: false, build: false };
        for part in text.split(',').map(str::trim) {
            match part {
                "all" => probes = Probes { system: true, build: true },
                "none" => probes = Probes { system: false, build: false },
                "system" => probes.system = true,
                "build" => probes.build = true,
                other => return Err(format!("no probe '{other}' (known: all, none, system, build)")),
            }
        }
        Ok(probes)
    }
}

impl fmt::Display for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.system, self.build) {
            (true, true) => "all",
            (true, false) => "system",
            (false, true) => "build",
            (false, false) => "none",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_are_read_and_written() {
        for text in ["console", "tsv:a.tsv", "timeline:dir/b:c.tsv"] {
            assert_eq!(text.parse::<Sink>().unwrap().to_string(), text);
        }
        assert_eq!("tsv:-".parse::<Sink>().unwrap(), Sink { table: Table::Points, path: None });
        assert!("tvs".parse::<Sink>().unwrap_err().contains("did you mean 'tsv'"));
        assert!("tsv:".parse::<Sink>().unwrap_err().contains("has no file name"));
        assert!(Sink { table: Table::Points, path: Some("/no/such/dir/x".into()) }.open().is_err());
    }

    #[test]
    fn probes_are_read_and_written() {
        for text in ["all", "none", "system", "build"] {
            assert_eq!(text.parse::<Probes>().unwrap().to_string(), text);
        }
        assert_eq!("system,build".parse::<Probes>().unwrap().to_string(), "all");
        assert!("cpu".parse::<Probes>().is_err());
    }
}
