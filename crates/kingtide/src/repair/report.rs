//! What repair is asked, what it tells, and what its steps share.

use super::few_files::FewFiles;
use crate::options::Options;
use crate::verify::{Progress, ProgressFn, VerifyReport};
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_vfs::Fs;
use kingtide_wal::LogGap;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairOptions {
    /// Whether complete log records after a damaged one are salvaged too. Otherwise the log ends at the damage.
    pub salvage_past_damage: bool,
    /// Whether tables whose family is not known all belong to the default family. Right for a database that never had
    /// another one; otherwise keys of several families would be mixed. By default such tables are kept apart.
    pub one_family: bool,
}

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions::new()
    }
}

impl RepairOptions {
    /// The defaults: salvage past damage, and keep tables of unknown families apart.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let fs = MemFs::shared();
    /// # Db::open("db", Options::new().fs(fs.clone()))?.close()?;
    /// use kingtide::{RepairOptions, repair_with};
    ///
    /// let how = RepairOptions::new().salvage_past_damage(false).one_family(true);
    /// let report = repair_with("db", "repaired", &Options::new().fs(fs), how, &mut |_| true)?;
    /// assert!(report.families.iter().all(|family| family.lost.is_empty()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new() -> RepairOptions {
        RepairOptions { salvage_past_damage: true, one_family: false }
    }

    /// Sets whether complete log records after a damaged one are salvaged.
    #[must_use]
    pub const fn salvage_past_damage(mut self, salvage: bool) -> RepairOptions {
        self.salvage_past_damage = salvage;
        self
    }

    /// Sets whether tables whose family is not known belong to the default family.
    #[must_use]
    pub const fn one_family(mut self, one_family: bool) -> RepairOptions {
        self.one_family = one_family;
        self
    }
}

/// A range of keys, both ends inclusive. `None` does not bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyGap {
    /// The first key.
    pub lo: Option<Vec<u8>>,
    /// The last key.
    pub hi: Option<Vec<u8>>,
    /// The file whose damage is the reason; `None` if the manifest is incomplete.
    pub path: Option<PathBuf>,
    /// Where in the file, if not all of it is concerned.
    pub offset: Option<u64>,
}

/// The result for one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyRepair {
    /// Its name in the new database.
    pub name: String,
    /// Whether that is its former name; otherwise the manifest's record of it is lost.
    pub named: bool,
    /// Tables that were read, in whole or in part.
    pub tables: u64,
    /// Keys in the new database.
    pub kept: u64,
    /// Keys that existed, but whose values could not be read.
    pub lost_keys: Vec<Vec<u8>>,
    /// Where other keys may be missing.
    pub lost: Vec<KeyGap>,
    /// Ranges in which keys may be out of date, or may exist although they were deleted, because something newer may be lost: a lost block may
    /// have held tombstones. Includes all of `lost`.
    pub stale: Vec<KeyGap>,
}

/// A file of which something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableFile {
    /// The file.
    pub path: PathBuf,
    /// What was wrong with it first.
    pub message: String,
}

/// What repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// The families of the new database.
    pub families: Vec<FamilyRepair>,
    /// Files of which not everything could be read.
    pub unreadable: Vec<UnreadableFile>,
    /// Records of the log that were read.
    pub log_records: u64,
    /// Holes in the log: the operations there are lost, and the keys that they were on may be missing or out of date.
    pub log_gaps: Vec<LogGap>,
    /// Prepared transactions that are in doubt in the new database too.
    pub prepared: Vec<Vec<u8>>,
    /// What was left out, by name: column families and groups of tables whose key order the options lack, and
    /// transactions that could not be prepared again.
    pub left_out: Vec<String>,
    /// Tables in the directory that are not part of the database: jobs and ingests that a crash interrupted leave them behind.
    pub leftovers: Vec<PathBuf>,
    /// The last sequence number of the new database. Its entries have their old numbers. It is the old database's last number, or a greater one
    /// if a part of the log that may have held greater ones is lost.
    pub last_sequence: SeqNo,
    /// What else is worth knowing, in words.
    pub notes: Vec<String>,
    /// The verification of the new database.
    pub verify: VerifyReport,
}

impl RepairReport {
    /// Whether everything was salvaged.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// let fs = MemFs::shared();
    /// Db::open("db", Options::new().fs(fs.clone()))?.put("ebb", "low")?;
    /// let report = kingtide::repair("db", "repaired", &Options::new().fs(fs))?;
    /// assert!(report.is_complete());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_complete(&self) -> bool {
        self.log_gaps.is_empty()
            && self.left_out.is_empty()
            && self.families.iter().all(|f| f.lost_keys.is_empty() && f.lost.is_empty() && f.stale.is_empty())
    }

    pub(super) fn unreadable(&mut self, path: &Path, e: &Error) {
        let path = e.path().unwrap_or(path);
        if !self.unreadable.iter().any(|u| u.path == path) {
            self.unreadable.push(UnreadableFile { path: path.to_owned(), message: e.to_string() });
        }
    }
}

/// What the steps share.
pub(super) struct Repair<'a, 'p> {
    pub fs: Arc<dyn Fs>,
    /// Where its tables and value logs are read.
    pub files: Arc<FewFiles>,
    pub dir: &'a Path,
    pub options: &'a Options,
    pub how: RepairOptions,
    pub report: RepairReport,
    /// Value logs that log records point into: commits may have been writing them.
    pub unfinished: HashSet<u64>,
    pub progress: &'a mut ProgressFn<'p>,
    pub done: u64,
    pub told: u64,
    pub total: u64,
}

impl Repair<'_, '_> {
    /// Tells that bytes were read.
    ///
    /// # Errors
    /// `Cancelled` when the progress function says so; `Io` when the process has no file descriptor left to read more.
    pub fn advance(&mut self, bytes: u64) -> Result<()> {
        self.files.check()?;
        self.done += bytes;
        if self.done - self.told < 1 << 20 {
            return Ok(());
        }
        self.told = self.done;
        let fraction = (self.done as f64 / self.total.max(1) as f64).min(1.0);
        let progress = Progress { fraction, bytes: self.done, total_bytes: self.total.max(self.done) };
        if (self.progress)(progress) { Ok(()) } else { Err(Error::new(ErrorKind::Cancelled, "repair was cancelled")) }
    }
}
