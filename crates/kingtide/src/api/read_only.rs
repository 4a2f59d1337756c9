//! A database that was opened for reading only.

use crate::api::Db;
use crate::open;
use crate::options::Options;
#[cfg(doc)]
use kingtide_base::ErrorKind;
use kingtide_base::{Result, SeqNo};
use std::path::Path;

impl Db {
    /// Opens the database in directory `path` read-only. Changes no byte of the directory and takes no lock, so the database may be open for
    /// writing elsewhere, in this process or another, and any number of times read-only.
    ///
    /// It shows the data that was committed when it was opened, in tables and in the log, so every commit that was acknowledged with
    /// `Durability::Process` or more. It shows this state until [`Db::try_catch_up`], regardless of what a writer does: all files are held open,
    /// so `max_open_files` does not apply. The contents of the log are kept in memory regardless of `memtable_budget`, and indexes and filters
    /// regardless of `memory_limit`. There are no background threads.
    ///
    /// Everything that would write, transactions and checkpoints included, fails with [`ErrorKind::ReadOnly`]. Options
    /// that only matter to writers are ignored, `create_if_missing` and `error_if_exists` too.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// let fs = MemFs::shared();
    /// let db = Db::open("db", Options::new().fs(fs.clone()))?;
    /// db.put("ebb", "low")?;
    /// let reader = Db::open_read_only("db", Options::new().fs(fs))?;
    /// assert!(reader.is_read_only() && !db.is_read_only());
    /// db.put("flood", "rising")?;
    /// assert_eq!(reader.get("flood")?, None);
    /// reader.try_catch_up()?;
    /// assert!(reader.get("flood")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` when no database is there; `Corruption`, also for an unfinished checkpoint or restore; `Incompatible`, `NewerFormat`,
    /// `InvalidArgument` as [`Db::open`]; `Busy` if a writer keeps ingesting files over keys that it has just written; `Io`, such as too many
    /// open files.
    pub fn open_read_only(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let (inner, default) = open::open_read_only(path.as_ref(), options)?;
        Ok(Db::new(inner, default))
    }

    /// Returns whether it was opened with [`Db::open_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.inner().read_only.is_some()
    }

    /// Moves a database that was opened read-only to the current committed state. Returns the newest visible sequence number. Families that were
    /// created or renamed since then exist; handles of those that were dropped return `Closed`. Open iterators go on as they were; reads at
    /// snapshots that were taken before fail with `TooOld` if anything was committed since.
    ///
    /// Reads the manifest and the log from their beginnings: O(bytes of both). Tables that are open stay open.
    ///
    /// # Errors
    /// `InvalidArgument` for a database that is open for writing; `Incompatible` when another database is in the
    /// directory, or an earlier state of this one, as after a power cut of the writer's machine: open it anew. Otherwise
    /// as [`Db::open_read_only`]. After an error it shows what it showed before.
    pub fn try_catch_up(&self) -> Result<SeqNo> {
        self.inner().catch_up()
    }
}
