//! Verification: reads everything that a database has on disk and says what is wrong with it.
//!
//! One problem does not stop the rest. Everything comes from the files themselves, never from caches. Memory is bounded
//! by the open tables' indexes and filters (one table of each run of a family at a time), a block of each, and a list of
//! at most [`MAX_PROBLEMS`] problems of each severity.
//!
//! What is read, in this order: `CURRENT` and the manifest; the directory; of each family all tables, merged over its
//! runs so that the order of versions across runs is seen, with every value that they point to; all value logs from
//! front to back; the write-ahead log.

mod checker;
mod layout;
mod log;
mod logged;
mod report;
mod tables;
mod values;

pub(crate) use checker::Checker;
pub(crate) use layout::Subject;
pub use report::{MAX_PROBLEMS, Problem, ProblemKind, Progress, ProgressFn, Severity, VerifyCounts, VerifyReport};

use crate::api::Db;
use crate::options::Options;
use kingtide_base::Result;
use kingtide_base::names::LOCK_FILE;
use kingtide_versions::LiveValues;
use kingtide_vfs::{FileLock, Fs, SystemFs};
use std::path::Path;
use std::sync::Arc;

/// Checks everything but the manifest and the log.
fn check_files(checker: &mut Checker<'_, '_>, subject: &Subject) -> Result<()> {
    for family in &subject.families {
        for (_, file) in family.version.files() {
            checker.expect_bytes(file.size + file.vlog_bytes());
        }
    }
    checker.expect_bytes(subject.vlogs.iter().map(|v| v.meta.size).sum());
    checker.tell()?;
    let mut live = LiveValues::default();
    for family in &subject.families {
        tables::check_family(checker, family, subject, &mut live)?;
    }
    values::check_vlogs(checker, subject, &live)
}

/// Verifies a database that is not open. Changes no byte on disk, and needs no permission to write: a database on a
/// read-only file system can be verified, and so can one that belongs to another user if its files are readable. No
/// process can open it for writing meanwhile; others can verify it too. Works on a database that [`Db::open`] refuses, as
/// far as its parts can be read. See [`verify_with`].
///
/// # Errors
/// As [`verify_with`], but never `Cancelled`.
pub fn verify(path: impl AsRef<Path>, options: &Options) -> Result<VerifyReport> {
    verify_with(path, options, &mut |_| true)
}

/// Does what [`verify`] does, with a function that is called with the progress and can cancel. O(bytes on disk).
///
/// Of the options only the file system and the key orders matter.
///
/// # Errors
/// `Locked` when the database is open (without a `LOCK` file, which every open creates, another process can open it meanwhile); `NotFound` when
/// there is no database; `Cancelled`; `Io` when the directory cannot be listed, or its `LOCK` not be read. Problems of the files are not errors:
/// the report lists them.
pub fn verify_with(path: impl AsRef<Path>, options: &Options, progress: &mut ProgressFn<'_>) -> Result<VerifyReport> {
    let dir = path.as_ref();
    let fs: Arc<dyn Fs> = options.fs.clone().unwrap_or_else(SystemFs::shared);
    let _lock = lock_existing(&*fs, dir)?;
    let mut checker = Checker::new(&fs, dir, progress);
    let Some(subject) = layout::closed(&mut checker, &options.key_orders())? else { return checker.finish() };
    check_files(&mut checker, &subject)?;
    let in_doubt = log::check_closed(&mut checker, &subject)?;
    layout::check_directory(&mut checker, &subject, &in_doubt)?;
    checker.finish()
}

/// Takes the lock of a database that is only read, so that no process changes it meanwhile: a shared one, for which the file
/// is neither made nor written to.
pub(crate) fn lock_existing(fs: &dyn Fs, dir: &Path) -> Result<Option<Box<dyn FileLock>>> {
    let path = dir.join(LOCK_FILE);
    if fs.exists(&path)? { fs.lock_shared(&path).map(Some) } else { Ok(None) }
}

impl Db {
    /// Verifies the open database: its manifest, all tables and value logs as of now, and the log up to the last commit. Commits, flushes and
    /// compactions continue meanwhile. Data that is only in memory is not checked, and neither are files that no family names, because a running
    /// compaction may be writing them.
    ///
    /// Of a database that was opened for reading only, the tables and value logs of the state that it shows are checked, whatever the writer
    /// has removed since, and the manifest by itself, but not the log.
    ///
    /// # Errors
    /// `Closed`, `Io`.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_with(&mut |_| true)
    }

    /// Does what [`Db::verify`] does, with a function that is called with the progress and can cancel. Files that existed at the beginning are
    /// kept until the end.
    ///
    /// # Errors
    /// As [`Db::verify`]; `Cancelled`.
    pub fn verify_with(&self, progress: &mut ProgressFn<'_>) -> Result<VerifyReport> {
        let db = self.inner();
        db.check_open()?;
        let mut checker = Checker::new(&db.fs, &db.dir, progress);
        let subject = layout::open(&mut checker, db)?;
        check_files(&mut checker, &subject)?;
        log::check_open(&mut checker, db)?;
        checker.finish()
    }
}
