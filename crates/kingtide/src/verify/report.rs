//! What verification finds, and how it tells.

use kingtide_base::{Error, ErrorKind};
use std::fmt;
use std::path::{Path, PathBuf};

/// The most problems of each [`Severity`] that a report lists; further ones are only counted.
pub const MAX_PROBLEMS: usize = 10_000;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing, and normal after a crash: a torn tail.
    Info,
    /// Nothing is lost, but something differs from what the engine writes, or was not checked: an orphan, damaged dead bytes, a key order that
    /// was not given.
    Warning,
    /// Damage: something cannot be read, or would be read wrongly.
    Error,
}

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// `CURRENT` or the manifest is damaged, or the manifest contradicts itself or the open database.
    Manifest,
    /// The manifest names a file that does not exist.
    MissingFile,
    /// A table, value log or temporary file that nothing names. The next open removes it.
    Orphan,
    /// A file does not have the size that the manifest states.
    WrongSize,
    /// A file's header, footer, index, filter, properties or range tombstones cannot be read.
    Structure,
    /// A block of a table cannot be read.
    Block,
    /// Entries, files or runs are not in order.
    Order,
    /// The key order of a family was not given, so not all of the family could be checked. The message says what was left out.
    UnknownOrder,
    /// A table's entries contradict its properties, or these the manifest.
    Metadata,
    /// The filter or the index does not find an existing key.
    Lookup,
    /// A value cannot be read from its value log.
    Value,
    /// References to a value log contradict its metadata.
    Accounting,
    /// The write-ahead log is damaged.
    Log,
    /// The write-ahead log or the manifest ends with an append that a crash interrupted.
    TornTail,
    /// A prepared transaction cannot be read.
    Prepared,
    /// A file is of a newer format than this build reads.
    NewerFormat,
    /// A file could not be read for another reason than its contents.
    Io,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of problem it is.
    pub kind: ProblemKind,
    /// The family that it concerns, if it concerns one.
    pub family: Option<String>,
    /// The file.
    pub path: Option<PathBuf>,
    /// The place in the file, in bytes.
    pub offset: Option<u64>,
    /// The smallest and largest key (both inclusive) that may be concerned.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// What is wrong.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(severity: Severity, kind: ProblemKind, message: impl Into<String>) -> Problem {
        Problem { severity, kind, family: None, path: None, offset: None, keys: None, message: message.into() }
    }

    /// Returns what an error says.
    pub(crate) fn of(kind: ProblemKind, e: &Error) -> Problem {
        let kind = match e.kind() {
            ErrorKind::NewerFormat => ProblemKind::NewerFormat,
            ErrorKind::Io => ProblemKind::Io,
            _ => kind,
        };
        let message = match std::error::Error::source(e) {
            Some(cause) => format!("{}: {cause}", e.message()),
            None => e.message().to_owned(),
        };
        let mut problem = Problem::new(Severity::Error, kind, message);
        problem.path = e.path().map(Path::to_owned);
        problem.offset = e.offset();
        problem
    }

    pub(crate) fn at(mut self, path: &Path) -> Problem {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    pub(crate) fn offset(mut self, offset: u64) -> Problem {
        self.offset = Some(offset);
        self
    }

    pub(crate) fn family(mut self, name: &str) -> Problem {
        self.family = Some(name.to_owned());
        self
    }

    pub(crate) fn keys(mut self, lo: &[u8], hi: &[u8]) -> Problem {
        self.keys = Some((lo.to_vec(), hi.to_vec()));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}): {}", self.severity, self.kind, self.message)?;
        if let Some(path) = &self.path {
            write!(f, ", in {}", path.display())?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at {offset}")?;
        }
        if let Some(family) = &self.family {
            write!(f, ", family '{family}'")?;
        }
        if let Some((lo, hi)) = &self.keys {
            write!(f, ", keys {} to {}", lo.escape_ascii(), hi.escape_ascii())?;
        }
        Ok(())
    }
}

/// How much was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyCounts {
    /// Column families.
    pub families: u64,
    /// Files, log segments and the manifest included.
    pub files: u64,
    /// Blocks of tables.
    pub blocks: u64,
    /// Entries of tables.
    pub entries: u64,
    /// Values read through a table's pointer.
    pub values: u64,
    /// Records of the write-ahead log.
    pub log_records: u64,
    /// Prepared transactions in doubt.
    pub prepared: u64,
    /// Bytes read and checked; a value that a table points to counts twice.
    pub bytes: u64,
}

/// What verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The problems, in the order in which they were found.
    pub problems: Vec<Problem>,
    /// Problems beyond [`MAX_PROBLEMS`] of their severity, not listed.
    pub unlisted: u64,
    /// The amounts that were checked.
    pub counts: VerifyCounts,
}

impl VerifyReport {
    /// Returns whether nothing is wrong: no problem worse than [`Severity::Info`].
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|p| p.severity == Severity::Info)
    }

    /// Returns whether something is damaged.
    pub fn is_damaged(&self) -> bool {
        self.problems.iter().any(|p| p.severity == Severity::Error)
    }
}

/// How far a verification or repair has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// Bytes read.
    pub bytes: u64,
    /// About how many there are to read.
    pub total_bytes: u64,
}

/// Called from time to time; false cancels the work. Implemented by closures that take [`Progress`].
pub type ProgressFn<'a> = dyn FnMut(Progress) -> bool + 'a;
