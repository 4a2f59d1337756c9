//! Repair: salvages what can be read of a damaged database into a new one. The damaged one is only read.
//!
//! 1. `plan` finds out which families there were and which tables are theirs: from the whole records of the manifest,
//!    wherever they stand in it; where that is not enough, from the tables themselves.
//! 2. `log` reads the records of the log into memtables: those that no table has, and where a table is damaged all that the log
//!    still has, if nothing that was done since is missing in it.
//! 3. `salvage` merges each family's tables and memtable by key and newest version, so that it does not matter in which
//!    level or run a table was; `target` writes what is left of each key, under the sequence number that it had, into
//!    tables of the new database, and then its manifest.
//! 4. Transactions in doubt are prepared again, and what was written is verified.
//!
//! The result holds the newest version of each key: snapshots of the past are not carried over. Memory: index and filter
//! of every table, a block of each, and the operations of the log that are in no table. However many tables and value
//! logs there are, few of them are open at a time (`few_files`).

mod few_files;
mod files;
mod log;
mod plan;
mod report;
mod salvage;
mod source;
mod target;

use self::few_files::FewFiles;
use self::salvage::copy_family;
use crate::api::Db;
use crate::copy;
use crate::directory::{DirFs, refuse_inside};
use crate::options::Options;
use crate::verify::{ProgressFn, lock_existing, verify};
use kingtide_base::names::CURRENT;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_vfs::{Fs, SystemFs};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

pub use kingtide_wal::LogGap;
use report::Repair;
pub use report::{FamilyRepair, KeyGap, RepairOptions, RepairReport, UnreadableFile};

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
/// `Exists` when `into` is a directory that is not empty; `InvalidArgument` when it is inside `path`; `Locked` when the database is open;
/// `NotFound` when nothing of a database is there; `Cancelled`; `Io` when the process has no file descriptor left; any error that keeps the new
/// database from being written. Other parts of the old one that cannot be read are not errors: the report lists them. After an error, and if the
/// process dies, `into` holds no database, or one whose transactions in doubt are missing: remove it, and repair again.
pub fn repair_with(
    path: impl AsRef<Path>,
    into: impl AsRef<Path>,
    options: &Options,
    how: RepairOptions,
    progress: &mut ProgressFn<'_>,
) -> Result<RepairReport> {
    let (dir, into) = (path.as_ref(), into.as_ref());
    let fs: Arc<dyn Fs> = options.fs.clone().unwrap_or_else(SystemFs::shared).with_mode(options.db.file_mode);
    if fs.exists(into)? && fs.list(into)?.iter().any(|n| n == CURRENT) {
        let text = "repair writes to a new directory, but this one holds a database";
        return Err(Error::new(ErrorKind::Exists, text).at_path(into));
    }
    let _lock = lock_existing(&*fs, dir)?;
    refuse_inside((&*fs, into), (&*fs, dir))?;
    let report = RepairReport::default();
    let mut repair = Repair {
        files: FewFiles::new(fs.clone()),
        fs,
        dir,
        options,
        how,
        report,
        unfinished: HashSet::new(),
        progress,
        done: 0,
        told: 0,
        total: 0,
    };
    let mut plan = plan::make(&mut repair)?;
    repair.files.check()?;
    let copy = copy::target::Target::begin(&DirFs::new(repair.fs.clone()), into)?;
    let log = log::read(&mut repair, &mut plan)?;
    let mut target = target::NewDatabase::new(&repair, (copy.fs(), into), &plan);
    for family in &plan.families {
        copy_family(&mut repair, &mut target, family, &log)?;
        repair.files.check()?;
    }
    let order = target.finish(&mut repair, &plan)?;
    copy.finish();
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
    // In the order in which they were prepared: `Db::recover_prepared` lists the oldest first.
    let mut prepared: Vec<_> = log.prepared.into_iter().collect();
    prepared.sort_by_key(|(_, (first, _))| *first);
    for (xid, (_, bytes)) in prepared {
        match log::prepare(&db, (&repair.fs, repair.dir), &families, &xid, &bytes) {
            Ok(()) => repair.report.prepared.push(xid),
            Err(e) if e.is_out_of_descriptors() => return Err(e),
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
