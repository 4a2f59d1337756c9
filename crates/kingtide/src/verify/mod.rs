//! Verification: reads everything that a database has on disk and says what is wrong with it.
//!
//! One problem does not stop the rest. Everything comes from the files themselves, never from caches. Memory is bounded
//! by the open tables' indexes and filters (one table of each run of a family at a time), a block of each, and a list of
//! at most [`MAX_PROBLEMS`] problems.
//!
//! What is read, in this order: `CURRENT` and the manifest; the directory; of each family all tables, merged over its
//! runs so that the order of versions across runs is seen, with every value that they point to; all value logs from
//! front to back; the write-ahead log.

mod layout;
mod log;
mod tables;
mod values;

pub(crate) use layout::Subject;

use crate::api::Db;
use crate::names::LOCK_FILE;
use crate::options::Options;
use kingtide_base::stats::Stats;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_mem::cache::BlockCache;
use kingtide_vfs::{FileLock, Fs, PosixFs};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Problems that a report holds at most; more are only counted.
pub const MAX_PROBLEMS: usize = 10_000;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing, and as it should be after a crash: a torn tail.
    Info,
    /// Nothing is lost, but something is not as the engine leaves it: an orphan, dead bytes that are damaged.
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
    /// The manifest names a file that is not there.
    MissingFile,
    /// A table, value log or temporary file that nothing names. The next open removes it.
    Orphan,
    /// A file has not the size that the manifest states.
    WrongSize,
    /// A file's header, footer, index, filter, properties or range tombstones cannot be read.
    Structure,
    /// A block of a table cannot be read.
    Block,
    /// Entries, files or runs are not in order.
    Order,
    /// A table's entries contradict its properties, or these the manifest.
    Metadata,
    /// The filter or the index does not find a key that is there.
    Lookup,
    /// A value cannot be read from its value log.
    Value,
    /// References to a value log contradict what is stated of it.
    Accounting,
    /// The write-ahead log is damaged.
    Log,
    /// The write-ahead log or the manifest ends with what a crash left of an append.
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

    /// What an error says.
    pub(crate) fn of(kind: ProblemKind, e: &Error) -> Problem {
        let kind = match e.kind() {
            ErrorKind::NewerFormat => ProblemKind::NewerFormat,
            ErrorKind::Io => ProblemKind::Io,
            _ => kind,
        };
        let mut problem = Problem::new(Severity::Error, kind, e.message());
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
pub struct VerifyReport {
    /// What is wrong, in the order in which it was found.
    pub problems: Vec<Problem>,
    /// Problems beyond [`MAX_PROBLEMS`], not listed.
    pub unlisted: u64,
    /// What was checked.
    pub counts: VerifyCounts,
}

impl VerifyReport {
    /// Whether nothing is wrong: no problem worse than [`Severity::Info`].
    pub fn is_clean(&self) -> bool {
        self.unlisted == 0 && self.problems.iter().all(|p| p.severity == Severity::Info)
    }

    /// Whether something is damaged.
    pub fn is_damaged(&self) -> bool {
        self.unlisted > 0 || self.problems.iter().any(|p| p.severity == Severity::Error)
    }
}

/// How far a verification or repair has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// Bytes read.
    pub bytes: u64,
    /// About how many there are to read.
    pub total_bytes: u64,
}

/// Called every now and then; false cancels the work. A closure that takes [`Progress`] is one.
pub type ProgressFn<'a> = dyn FnMut(Progress) -> bool + 'a;

/// What all checks share.
pub(crate) struct Checker<'a, 'p> {
    pub fs: &'a Arc<dyn Fs>,
    pub dir: &'a Path,
    pub report: VerifyReport,
    /// Holds nothing: what is read comes from the files.
    pub cache: Arc<BlockCache>,
    pub stats: Arc<Stats>,
    progress: &'a mut ProgressFn<'p>,
    total: u64,
    told: u64,
}

impl<'a, 'p> Checker<'a, 'p> {
    /// Bytes between two calls of the progress function.
    const STEP: u64 = 1 << 20;

    pub fn new(fs: &'a Arc<dyn Fs>, dir: &'a Path, progress: &'a mut ProgressFn<'p>) -> Checker<'a, 'p> {
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        Checker { fs, dir, report: VerifyReport::default(), cache, stats, progress, total: 0, told: 0 }
    }

    pub fn problem(&mut self, problem: Problem) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(problem);
        } else {
            self.report.unlisted += 1;
        }
    }

    /// Announces what there is to read.
    pub fn expect_bytes(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Tells that bytes were read.
    ///
    /// # Errors
    /// `Cancelled` when the progress function says so.
    pub fn advance(&mut self, bytes: u64) -> Result<()> {
        self.report.counts.bytes += bytes;
        if self.report.counts.bytes - self.told < Self::STEP {
            return Ok(());
        }
        self.tell()
    }

    fn tell(&mut self) -> Result<()> {
        self.told = self.report.counts.bytes;
        let fraction = (self.told as f64 / self.total.max(1) as f64).min(1.0);
        let progress = Progress { fraction, bytes: self.told, total_bytes: self.total.max(self.told) };
        if (self.progress)(progress) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Cancelled, "verification was cancelled").at_path(self.dir))
    }

    /// Checks everything but the manifest and the log.
    pub fn check_files(&mut self, subject: &Subject) -> Result<()> {
        for family in &subject.families {
            for (_, file) in family.version.files() {
                self.expect_bytes(file.size + file.vlog_bytes());
            }
        }
        self.expect_bytes(subject.vlogs.values().map(|v| v.size).sum());
        self.tell()?;
        let mut live = values::LiveValues::default();
        for family in &subject.families {
            tables::check_family(self, family, subject, &mut live)?;
        }
        values::check_vlogs(self, subject, &live)
    }

    pub fn finish(mut self) -> Result<VerifyReport> {
        self.total = self.report.counts.bytes;
        self.tell()?;
        Ok(self.report)
    }
}

/// Verifies a database that is not open. Changes no byte on disk. Works on a database that [`Db::open`] refuses, as far
/// as its parts can be read. See [`verify_with`].
///
/// # Errors
/// As [`verify_with`], but never `Cancelled`.
pub fn verify(path: impl AsRef<Path>, options: &Options) -> Result<VerifyReport> {
    verify_with(path, options, &mut |_| true)
}

/// As [`verify`], with a function that is told the progress and can cancel. O(bytes on disk).
///
/// Of the options only the file system and the key orders matter.
///
/// # Errors
/// `Locked` when the database is open (without a `LOCK` file, which no open ever leaves away, nobody is kept from opening
/// it meanwhile); `NotFound` when there is no database; `Cancelled`; `Io` when the directory cannot be listed. What is
/// wrong with the files is no error but in the report.
pub fn verify_with(path: impl AsRef<Path>, options: &Options, progress: &mut ProgressFn<'_>) -> Result<VerifyReport> {
    let dir = path.as_ref();
    let fs: Arc<dyn Fs> = options.fs.clone().unwrap_or_else(PosixFs::shared);
    let _lock = lock_existing(&*fs, dir)?;
    let mut checker = Checker::new(&fs, dir, progress);
    let Some(subject) = layout::closed(&mut checker, options)? else { return checker.finish() };
    layout::check_directory(&mut checker, &subject)?;
    checker.check_files(&subject)?;
    log::check_closed(&mut checker, &subject)?;
    checker.finish()
}

/// Takes the lock of a database without making the file.
pub(crate) fn lock_existing(fs: &dyn Fs, dir: &Path) -> Result<Option<Box<dyn FileLock>>> {
    let path = dir.join(LOCK_FILE);
    if fs.exists(&path)? { fs.lock(&path).map(Some) } else { Ok(None) }
}

impl Db {
    /// Verifies the open database: its manifest, all tables and value logs as of now, and the log up to the last commit.
    /// Commits, flushes and merges go on meanwhile. What is only in memory is not looked at, and neither are files that
    /// no family names, for a running merge may be writing them.
    ///
    /// # Errors
    /// `Closed`, `Io`.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_with(&mut |_| true)
    }

    /// As [`Db::verify`], with a function that is told the progress and can cancel. The files that were there at the
    /// beginning take space until the end.
    ///
    /// # Errors
    /// As [`Db::verify`]; `Cancelled`.
    pub fn verify_with(&self, progress: &mut ProgressFn<'_>) -> Result<VerifyReport> {
        let db = self.inner();
        db.check_open()?;
        let mut checker = Checker::new(&db.fs, &db.dir, progress);
        let subject = layout::open(&mut checker, db)?;
        checker.check_files(&subject)?;
        log::check_open(&mut checker, db)?;
        checker.finish()
    }
}
