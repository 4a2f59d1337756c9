//! Repair: salvages what can be read of a damaged database into a new one. The damaged one is only read.
//!
//! 1. [`plan`] finds out which families there were and which tables are theirs: from the whole records of the manifest,
//!    wherever they stand in it; where that is not enough, from the tables themselves.
//! 2. [`log`] reads the records of the log into memtables.
//! 3. [`salvage`] merges each family's tables and memtable by key and newest version, so that it does not matter in which
//!    level or run a table was; [`target`] writes what is left of each key, under the sequence number that it had, into
//!    tables of the new database, and then its manifest.
//! 4. Transactions in doubt are prepared again, and what was written is verified.
//!
//! The result holds the newest version of each key: snapshots of the past are not carried over. Memory: index and filter
//! of every table, a block of each, and the operations of the log that are in no table.

mod log;
mod plan;
mod salvage;
mod source;
mod target;

use self::salvage::copy_family;
use crate::api::Db;
use crate::copy;
use crate::names::CURRENT;
use crate::options::Options;
use crate::verify::{Progress, ProgressFn, VerifyReport, lock_existing, verify};
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_vfs::{Fs, PosixFs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::wal::LogGap;

/// How to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Whether whole log records behind a damaged one are salvaged too. Without them the log ends at the damage.
    pub salvage_past_damage: bool,
    /// Whether tables whose family is not known all belong to the default family. Right for a database that never had
    /// another one; otherwise keys of several families would be mixed. By default such tables are kept apart.
    pub one_family: bool,
}

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions { salvage_past_damage: true, one_family: false }
    }
}

/// A range of keys, both ends inclusive. `None` does not bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyGap {
    /// The first key.
    pub lo: Option<Vec<u8>>,
    /// The last key.
    pub hi: Option<Vec<u8>>,
    /// The file whose damage is the reason; `None` if the manifest is not whole.
    pub path: Option<PathBuf>,
    /// Where in the file, if not all of it is concerned.
    pub offset: Option<u64>,
}

/// What became of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Where keys may be out of date, or be there though they were deleted, for something newer may be lost: a lost block
    /// may have held tombstones. Includes all of `lost`.
    pub stale: Vec<KeyGap>,
}

/// A file of which something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableFile {
    /// The file.
    pub path: PathBuf,
    /// What was wrong with it first.
    pub message: String,
}

/// What repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Tables in the directory that are no part of the database: jobs and ingests that a crash cut short leave them behind.
    pub leftovers: Vec<PathBuf>,
    /// The last sequence number of the new database. What it holds has the numbers that it had. It is the old one's last
    /// number, or a greater one where a part of the log that may have held greater ones is lost.
    pub last_sequence: SeqNo,
    /// What else is worth knowing, in words.
    pub notes: Vec<String>,
    /// The verification of the new database.
    pub verify: VerifyReport,
}

impl RepairReport {
    /// Whether everything was salvaged.
    pub fn is_complete(&self) -> bool {
        self.log_gaps.is_empty()
            && self.left_out.is_empty()
            && self.families.iter().all(|f| f.lost_keys.is_empty() && f.lost.is_empty() && f.stale.is_empty())
    }

    fn unreadable(&mut self, path: &Path, e: &Error) {
        let path = e.path().unwrap_or(path);
        if !self.unreadable.iter().any(|u| u.path == path) {
            self.unreadable.push(UnreadableFile { path: path.to_owned(), message: e.to_string() });
        }
    }
}

/// What the steps share.
struct Repair<'a, 'p> {
    fs: Arc<dyn Fs>,
    dir: &'a Path,
    options: &'a Options,
    how: RepairOptions,
    report: RepairReport,
    progress: &'a mut ProgressFn<'p>,
    done: u64,
    told: u64,
    total: u64,
}

impl Repair<'_, '_> {
    fn advance(&mut self, bytes: u64) -> Result<()> {
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

/// Salvages the database in `path` into a new one in `into`, with default [`RepairOptions`]. See [`repair_with`].
///
/// # Errors
/// As [`repair_with`], but never `Cancelled`.
pub fn repair(path: impl AsRef<Path>, into: impl AsRef<Path>, options: &Options) -> Result<RepairReport> {
    repair_with(path, into, options, RepairOptions::default(), &mut |_| true)
}

/// Salvages everything that can be read of the database in `path`, which is not changed, into a new database in `into`.
/// `options` are those for opening both; custom key orders must be among them. O(bytes), with a comparison of every table
/// for each entry in the worst case.
///
/// # Errors
/// `Exists` when `into` is a directory that is not empty; `Locked` when the database is open; `NotFound` when nothing of
/// a database is there; `Cancelled`; what keeps the new database from being written. What cannot be read of the old one
/// is no error but in the report. After an error no database is in `into`, or one whose transactions in doubt are missing.
pub fn repair_with(
    path: impl AsRef<Path>,
    into: impl AsRef<Path>,
    options: &Options,
    how: RepairOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<RepairReport> {
    let (dir, into) = (path.as_ref(), into.as_ref());
    let fs: Arc<dyn Fs> = options.fs.clone().unwrap_or_else(PosixFs::shared).with_mode(options.db.file_mode);
    if fs.exists(into)? && fs.list(into)?.iter().any(|n| n == CURRENT) {
        let text = "repair writes into a new directory, and this one holds a database";
        return Err(Error::new(ErrorKind::Exists, text).at_path(into));
    }
    let _lock = lock_existing(&*fs, dir)?;
    let report = RepairReport::default();
    let mut repair = Repair { fs, dir, options, how, report, progress, done: 0, told: 0, total: 0 };
    let mut plan = plan::make(&mut repair)?;
    let copy = copy::target::Target::begin(&repair.fs, into)?;
    let log = log::read(&mut repair, &mut plan)?;
    let mut target = target::NewDatabase::new(&repair, into, &plan);
    for family in &plan.families {
        copy_family(&mut repair, &mut target, family, &log)?;
    }
    let order = target.finish(&mut repair, &plan)?;
    copy.finish()?;
    let with_order = Options { order, ..options.clone() };
    prepare_again(&mut repair, into, &with_order, &plan, log)?;
    repair.report.verify = verify(into, &with_order)?;
    Ok(repair.report)
}

/// Prepares the transactions in doubt again, in the new database.
fn prepare_again(
    repair: &mut Repair<'_, '_>,
    into: &Path,
    options: &Options,
    plan: &plan::Plan,
    log: log::SalvagedOperations,
) -> Result<()> {
    if log.prepared.is_empty() {
        return Ok(());
    }
    let mut options = options.clone();
    (options.db.create_if_missing, options.db.error_if_exists, options.manual_jobs) = (false, false, true);
    let db = Db::open(into, options)?;
    let mut families = BTreeMap::new();
    for family in &plan.families {
        if let (Some(id), Ok(found)) = (family.id, db.family(&family.name)) {
            families.insert(id, found);
        }
    }
    for (xid, bytes) in log.prepared {
        match log::prepare(&db, &families, &xid, &bytes) {
            Ok(()) => repair.report.prepared.push(xid),
            Err(e) => {
                let text = format!("the prepared transaction '{}' could not be kept: {e}", xid.escape_ascii());
                repair.report.notes.push(text);
                repair.report.left_out.push(format!("transaction '{}'", xid.escape_ascii()));
            }
        }
    }
    repair.report.last_sequence = db.latest_sequence();
    db.close()
}
