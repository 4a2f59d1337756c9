//! Bulk loading: sorted files are written outside of the database, and become part of families in one step.
//!
//! 1. [`SortedFileWriter`] writes a table whose entries have no sequence numbers.
//! 2. [`ColumnFamily::ingest`] links or copies it into the database's directory and makes it durable there. Until the last
//!    step a crash leaves an orphan, which the next open removes.
//! 3. It locks the keys between the file's smallest and largest (`install.rs`), and flushes memtables that hold any of them:
//!    memtables are newer than tables, but the file is to be newer than what was committed before. Writes into that range
//!    wait until the end.
//! 4. The file gets the next sequence number and the deepest place in the tree where nothing that overlaps it lies above
//!    (`place.rs`). One record of the log names it, the view has it, and the number is published: it is a commit like others.
//!    Then the log is synced and the manifest told, while commits go on, and so do all reads. [`crate::commit`] explains the order.
//!
//! The number stands in the records of the log and of the manifest, not in the file, which is never changed: a program that opens the
//! table receives it ([`kingtide_table::TableId`]).
//!
//! An ingest is a commit of all its keys. Snapshots taken before do not see it; a transaction that read or wrote one of
//! them fails validation; locks in its range of keys make it wait. It is not in the log: a change stream
//! fails with `TooOld` there, or shows a record without operations, and commit hooks are not called for it.

mod clone;
mod install;
mod place;
#[cfg(test)]
mod race_tests;
mod transfer;
mod writer;

pub(crate) use install::Part;
pub use transfer::ExportInfo;
pub use writer::{SortedFile, SortedFileWriter};

use crate::api::ColumnFamily;
use crate::api::Db;
use crate::copy::target::copy_file;
use crate::engine::DbInner;
use crate::family::Family;
use kingtide_base::names::klog_path;
use kingtide_base::stats::Stats;
use kingtide_base::{Error, ErrorKind, KeyOrder, Result, SeqNo};
use kingtide_mem::cache::BlockCache;
use kingtide_table::salvage::read_written_as;
use kingtide_table::{Table, TableId, TableInfo};
use kingtide_versions::{FileMeta, SORTED_FILE};
use kingtide_vfs::{File, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How sorted files are ingested.
///
/// ```
/// # use kingtide::{Db, Options, SortedFileWriter};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-ingest-options-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// use kingtide::IngestOptions;
///
/// # std::fs::create_dir_all(&dir)?;
/// let db = Db::open(dir.join("db"), Options::new())?;
/// let file = dir.join("tides.sorted");
/// let mut writer = SortedFileWriter::create(&file, db.default_family())?;
/// writer.put(b"ebb", b"low")?;
/// writer.finish()?;
/// db.default_family().ingest(&[&file], &IngestOptions::new().move_files(true).verify(true).no_wait(true))?;
/// assert_eq!(db.get("ebb")?.as_deref(), Some(&b"low"[..]));
/// # db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IngestOptions {
    /// Move the files instead of copying them: after the ingest has succeeded they are no longer at their old paths; if it fails, they still
    /// are. Files are copied nevertheless between two file systems, and if they may not be written.
    pub move_files: bool,
    /// Read each file completely first and check it: checksums, order, counts, and that index and filter find every key. Without it, only the
    /// file's end is checked now, and each block when it is read.
    pub verify: bool,
    /// Fail with `Conflict` instead of waiting when a transaction holds a lock between a file's smallest and largest key.
    pub no_wait: bool,
}

impl IngestOptions {
    /// The defaults.
    pub const fn new() -> IngestOptions {
        IngestOptions { move_files: false, verify: false, no_wait: false }
    }

    /// Sets whether the files are moved instead of copied.
    #[must_use]
    pub const fn move_files(mut self, move_files: bool) -> IngestOptions {
        self.move_files = move_files;
        self
    }

    /// Sets whether each file is completely read and checked first.
    #[must_use]
    pub const fn verify(mut self, verify: bool) -> IngestOptions {
        self.verify = verify;
        self
    }

    /// Sets whether an ingest fails with `Conflict` instead of waiting for locks.
    #[must_use]
    pub const fn no_wait(mut self, no_wait: bool) -> IngestOptions {
        self.no_wait = no_wait;
        self
    }
}

/// Files that were brought into the database's directory, to be removed again unless they are installed.
struct Brought<'a> {
    db: &'a DbInner,
    created: Vec<PathBuf>,
}

impl Drop for Brought<'_> {
    fn drop(&mut self) {
        for path in &self.created {
            let _ = self.db.fs.remove(path); // or the next open removes it
        }
    }
}

impl Brought<'_> {
    /// Links or copies a file into the database under a new id, and makes its bytes durable.
    fn bring(&mut self, from: &Path, link: bool) -> Result<(u64, Arc<dyn File>)> {
        if link {
            let (id, to) = self.new_name()?;
            if self.db.fs.hard_link(from, &to).is_ok() {
                // The program that wrote it need not have synced it.
                match self.db.fs.open(&to, OpenMode::Write) {
                    Ok(file) => {
                        file.sync_all()?;
                        return Ok((id, self.db.fs.open(&to, OpenMode::Read)?));
                    }
                    // One that may only be read cannot be synced on every system: a copy can.
                    Err(e) if e.io_kind() == Some(std::io::ErrorKind::PermissionDenied) => self.db.fs.remove(&to)?,
                    Err(e) => return Err(e),
                }
            }
        }
        self.copy(from).map(|(id, file, _)| (id, file))
    }

    /// Copies a file into the database under a new id. Tells its size and xxh3 too.
    fn copy(&mut self, from: &Path) -> Result<(u64, Arc<dyn File>, (u64, u64))> {
        let (id, to) = self.new_name()?;
        let db = self.db;
        let sum = copy_file((&*db.fs, from), (&*db.fs, &to), &mut |bytes| {
            db.limiter.take(bytes, db.jobs.cancel_flag());
            db.check_open()
        })?;
        Ok((id, db.fs.open(&to, OpenMode::Read)?, sum))
    }

    /// A file id and a path under which there is nothing: what a crash left behind is passed over.
    fn new_name(&mut self) -> Result<(u64, PathBuf)> {
        loop {
            let id = self.db.new_file_id();
            let path = klog_path(&self.db.dir, id);
            if !self.db.fs.exists(&path)? {
                self.created.push(path.clone());
                return Ok((id, path));
            }
        }
    }

    /// They are the database's now, or may be.
    fn keep(mut self) {
        self.created.clear();
    }
}

impl DbInner {
    /// Reads what a sorted file that lies in the directory says about itself.
    fn inspect(&self, id: u64, file: Arc<dyn File>, order: &KeyOrder, verify: bool) -> Result<FileMeta> {
        let path = file.path().to_owned();
        let written_as = read_written_as(&*file)?;
        let stats = Arc::new(Stats::default());
        let cache = BlockCache::new(0, 1, stats.clone());
        let identity = TableId { file_id: id, written_as, sequence: 0 };
        let table = Table::open(file, identity, order.clone(), cache, stats)?;
        if verify {
            table.verify()?;
        }
        let info = table.info();
        let wrong = |text: &str| Err(Error::invalid(text).at_path(&path));
        if !info.unsequenced || written_as & SORTED_FILE == 0 || !info.vlog_refs.is_empty() {
            return wrong("not a sorted file: it is a table of a database");
        }
        if info.entries + info.range_tombstones == 0 || info.min_key.is_empty() {
            return wrong("a sorted file with nothing in it");
        }
        if order.compare(&info.min_key, &info.max_key).is_gt() {
            return Err(Error::corruption("the smallest key sorts after the largest").at_path(&path));
        }
        Ok(meta_of(id, written_as, info, self.clock.unix_ms()))
    }

    /// Refuses files of the database's own. One can be named in more ways than a comparison of paths sees; what would be
    /// removed must not even have the name of one.
    fn check_foreign(&self, path: &Path, moves: bool) -> Result<()> {
        let named_alike = match path.file_name() {
            Some(name) if moves => self.fs.exists(&self.dir.join(name))?,
            _ => false,
        };
        if path.parent() == Some(self.dir.as_path()) || named_alike {
            return Err(Error::invalid("the file is in the database's directory, or has the name of a database file")
                .at_path(path));
        }
        Ok(())
    }

    /// See [`Db::ingest`].
    fn ingest(self: &Arc<Self>, files: &[(&Arc<Family>, &[PathBuf])], options: &IngestOptions) -> Result<SeqNo> {
        self.check_writable()?;
        self.check_space_to_grow()?;
        if !files.iter().all(|(family, _)| family.belongs_to(&self.stats)) {
            return Err(Error::invalid("the column family to ingest into belongs to another database"));
        }
        self.begin_log()?;
        let mut brought = Brought { db: self, created: Vec::new() };
        let mut parts: Vec<Part> = Vec::new();
        for (family, paths) in files {
            family.check_alive()?;
            let mut metas = Vec::with_capacity(paths.len());
            for path in *paths {
                self.check_foreign(path, options.move_files)?;
                let (id, file) = brought.bring(path, options.move_files).map_err(|e| of_given(e, path))?;
                let meta = self.inspect(id, file, family.order(), options.verify);
                metas.push(meta.map_err(|e| of_given(e, path))?);
            }
            match parts.iter_mut().find(|p| Arc::ptr_eq(&p.family, family)) {
                Some(part) => part.files.extend(metas),
                None => parts.push(Part { family: (*family).clone(), files: metas }),
            }
        }
        parts.retain(|p| !p.files.is_empty());
        if parts.is_empty() {
            return Ok(self.snapshots.visible());
        }
        self.fs.sync_dir(&self.dir)?;
        let installed = self.install_parts(&mut parts, options.no_wait);
        let seq = brought.settle(installed)?;
        self.count_ingest(parts.iter().flat_map(|p| &p.files).map(|f| f.size).sum());
        if options.move_files {
            // They are in: a name that cannot be removed is no reason to say that they are not.
            files.iter().flat_map(|(_, paths)| *paths).for_each(|p| _ = self.fs.remove(p));
        }
        Ok(seq)
    }
}

/// An error of a file that was given. An error in its contents has the path that the caller knows: what stands in the directory
/// of the database is removed again.
fn of_given(e: Error, path: &Path) -> Error {
    let e = e.context(format!("ingesting {}", path.display()));
    if !matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidArgument | ErrorKind::NewerFormat) {
        return e;
    }
    let given = Error::new(e.kind(), e.message()).at_path(path);
    match e.offset() {
        Some(offset) => given.at_offset(offset),
        None => given,
    }
}

fn meta_of(id: u64, written_as: u64, info: &TableInfo, now_ms: u64) -> FileMeta {
    FileMeta {
        id,
        run: 0,
        size: info.file_size,
        entries: info.entries,
        tombstones: info.tombstones,
        range_tombstones: info.range_tombstones,
        raw_bytes: info.raw_bytes,
        min_key: info.min_key.clone(),
        max_key: info.max_key.clone(),
        min_seq: info.min_seq,
        max_seq: info.max_seq,
        min_expiry_ms: info.min_expiry_ms,
        created_ms: now_ms,
        vlog_refs: Vec::new(),
        written_as,
        sequence: 0,
        hides: 0,
    }
}

impl ColumnFamily {
    /// Makes the contents of sorted files part of the family, in one step: see [`Db::ingest`].
    ///
    /// # Errors
    /// As [`Db::ingest`].
    pub fn ingest<P: AsRef<Path>>(&self, files: &[P], options: &IngestOptions) -> Result<SeqNo> {
        let paths: Vec<PathBuf> = files.iter().map(|p| p.as_ref().to_owned()).collect();
        self.db.ingest(&[(self.inner(), &paths)], options)
    }
}

impl Db {
    /// Makes the contents of sorted files part of families, all at one moment, and all or nothing even across a crash. It is as if all entries
    /// of the files were committed in one batch, file by file: they replace entries of the same keys in the families, and of a key in several of
    /// the files, the last file counts. Returns the sequence number of that commit.
    ///
    /// When this returns, the files survive a power cut, and so does everything that was committed before, except with `Durability::None`. Cost:
    /// O(files), plus copying or linking them, plus a flush of those memtables that hold keys between a file's smallest and largest key. Until
    /// that flush is done, writes into that range wait, without a timeout; other writes do not.
    ///
    /// Transactions see an ingest as they see a commit: those that read or wrote a key of it, or scanned a range with one, fail with `Conflict`
    /// if their level checks that; one that holds a lock between a file's smallest and largest key makes the ingest wait as long as a plain
    /// write would, or fail. Its entries are not in the log: a change stream fails with `TooOld` there, or shows a record without operations
    /// ([`crate::ChangeStreamOptions::show_unlogged`]), and commit hooks are not called for it.
    ///
    /// # Errors
    /// Nothing is ingested then. `InvalidArgument` for a file that is no sorted file, or a family of another database; `Incompatible` for one in
    /// another key order; `Corruption` with file and offset; `NewerFormat`; `NotFound`; `LockTimeout`, `Conflict`; `Poisoned`, `Io`, `NoSpace`,
    /// `Closed`, `ReadOnly`. There are two exceptions, which the message names: if the sync of the log fails, the ingest took effect but may not
    /// survive a power cut, as with a commit; and if the log fails in the middle of the ingest's record, the next open decides. A later failure
    /// of the manifest is a background error.
    pub fn ingest<P: AsRef<Path>>(&self, files: &[(&ColumnFamily, &[P])], options: &IngestOptions) -> Result<SeqNo> {
        let paths: Vec<Vec<PathBuf>> =
            files.iter().map(|(_, paths)| paths.iter().map(|p| p.as_ref().to_owned()).collect()).collect();
        let parts: Vec<(&Arc<Family>, &[PathBuf])> =
            files.iter().zip(&paths).map(|((family, _), paths)| (family.inner(), paths.as_slice())).collect();
        self.inner().ingest(&parts, options)
    }
}
