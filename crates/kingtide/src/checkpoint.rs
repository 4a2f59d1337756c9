//! Checkpoints: a copy of the database in another directory, which shares the immutable files with it.

use crate::api::Db;
use crate::copy::target::{Target, copy_file, of_named};
use crate::directory::refuse_inside;
use crate::engine::DbInner;
use kingtide_base::{Error, Result, SeqNo};
use std::path::Path;
use std::sync::Arc;

/// Information about a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// It holds every commit up to this sequence number and none after it.
    pub sequence: SeqNo,
    /// Tables and value logs that it shares with the database by hard links.
    pub linked_files: u64,
    /// Bytes of those.
    pub linked_bytes: u64,
    /// Tables and value logs that could not be linked, and were copied.
    pub copied_files: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
}

impl Db {
    /// Makes a copy of the database in directory `path`, in the same [`crate::vfs::Fs`], as of one moment: a commit
    /// boundary over all families, with everything that was visible then, `Durability::None` commits and transactions in
    /// doubt included. It is a database of its own, with an id of its own: open it like any other.
    ///
    /// Tables and value logs are immutable and shared by hard links, or copied where that is not possible (another
    /// device). The contents of memtables are written to tables of the copy. So it costs a link per file and one write of the
    /// memtables; commits are delayed by microseconds, flushes and compactions continue. Files that compactions retire meanwhile are
    /// kept until it is done. Afterwards the space of a shared file is freed when neither database needs it.
    ///
    /// The directory must be empty or absent. When this returns, the copy is on stable storage. If it fails, what it created is
    /// removed again, directories too. If the process or the machine dies meanwhile, the database is unharmed and the directory holds
    /// an unfinished copy, which [`Db::open`] refuses; another checkpoint to the same directory removes that first.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// let fs = MemFs::shared();
    /// let db = Db::open("db", Options::new().fs(fs.clone()))?;
    /// db.put("ebb", "low")?;
    /// db.checkpoint("copy")?;
    /// db.put("ebb", "lower")?;
    /// let copy = Db::open("copy", Options::new().fs(fs))?;
    /// assert_eq!(copy.get("ebb")?.as_deref(), Some(&b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Exists` when the directory holds anything; `InvalidArgument` when it is inside the database's own; `Locked` when another
    /// copy is being made there; `Io`, `NoSpace`, `Corruption` (a file is missing, or a prepared transaction's log record cannot be
    /// read); `Closed`, `ReadOnly`.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<CheckpointInfo> {
        let db = self.inner();
        db.check_writable()?;
        copy_to(db, path.as_ref()).map_err(|e| db.unless_closed(e))
    }
}

fn copy_to(db: &Arc<DbInner>, dir: &Path) -> Result<CheckpointInfo> {
    refuse_inside((&*db.fs, dir), (&*db.fs, &db.dir))?;
    db.check_space_to_copy(&*db.fs, dir)?;
    let target = Target::begin(&db.dirs, dir)?;
    let moment = db.pin_state()?;
    let mut info = CheckpointInfo { sequence: moment.seq, ..CheckpointInfo::default() };
    for (from, size) in moment.files(&db.dir) {
        let Some(name) = from.file_name() else { return Err(Error::invalid("a file without a name")) };
        let to = dir.join(name);
        // Whatever keeps it from being linked: if that keeps it from being copied too, the second error says so.
        if db.fs.hard_link(&from, &to).is_ok() {
            info.linked_files += 1;
            info.linked_bytes += size;
        } else {
            copy_file((&*db.fs, &from), (&*db.fs, &to), &mut |bytes| {
                db.limiter.take(bytes, db.jobs.cancel_flag());
                db.check_open()
            })
            .map_err(of_named(&from))?;
            info.copied_files += 1;
            info.copied_bytes += size;
        }
    }
    moment.write_rest(db, target.fs(), dir, &db.limiter)?;
    target.finish();
    Ok(info)
}
