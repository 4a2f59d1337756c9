//! Backups: copies of a database, as of one moment each, in a directory that may be on another file system.
//!
//! ```text
//! backups/000007.backup     what backup 7 consists of: names, sizes, hashes
//! pool/0123456789abcdef-4096-00000012.klog    the files, by hash, size and name; backups share those that are the same
//! staging/                  files of a backup that is being made
//! LOCK                      held while the directory is changed
//! ```
//!
//! Tables and value logs never change, so a later backup stores only those that no earlier one has, and besides them what
//! was in memtables, and a manifest. A backup exists when its file in `backups` does, which is renamed into place when
//! all that it names is durable; a file of the pool is renamed into place when it is whole. So whenever the process or
//! the machine dies, earlier backups are as they were, and what is left over is used by the next backup or removed by the
//! next [`Backup::delete`] or [`Backup::purge`].
//!
//! A file of the pool is used again if it has the right size; its bytes are not read. [`Backup::verify`] reads them.

mod format;

use crate::api::Db;
use crate::compact::RateLimiter;
use crate::copy::target::{Target, copy_file, of_named, read_file};
use crate::directory::{DirFs, MadeDirs, is_inside, refuse_inside};
use crate::engine::DbInner;
use crate::options::Options;
pub use format::BackupInfo;
use format::{BackupFile, BackupManifest};
use kingtide_base::clock::{Clock, SystemClock};
use kingtide_base::names::{CURRENT, CURRENT_TMP, LOCK_FILE, parse_manifest_name};
use kingtide_base::sync::atomic::AtomicBool;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_versions::replace_id;
use kingtide_vfs::{FileLock, Fs, OpenMode, SystemFs};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The progress of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes read so far.
    pub done_bytes: u64,
    /// About how many there are to read; memtables are not counted before they are written.
    pub total_bytes: u64,
}

/// How to make, verify or restore a backup.
///
/// ```
/// use kingtide::backup::{Backup, BackupOptions};
/// use std::ops::ControlFlow;
/// # use kingtide::{Db, Options};
/// # let dir = std::env::temp_dir().join(format!("kingtide-doc-backup-options-{}", std::process::id()));
/// # let _ = std::fs::remove_dir_all(&dir);
/// # std::fs::create_dir_all(&dir)?;
/// # let db = Db::open(dir.join("db"), Options::new())?;
///
/// let mut read = 0;
/// let mut progress = |p: kingtide::backup::BackupProgress| {
///     read = p.done_bytes;
///     ControlFlow::Continue(())
/// };
/// let options = BackupOptions::new().flush(false).trust_names(true).rate_limit(64 << 20).progress(&mut progress);
/// db.put("ebb", "low")?;
/// Backup::at(dir.join("backups")).create(&db, options)?;
/// assert!(read > 0);
/// # db.close()?;
/// # let _ = std::fs::remove_dir_all(&dir);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub struct BackupOptions<'a> {
    /// Flush memtables before making a backup, so that later backups share the tables instead of storing the contents of memory
    /// again. On by default.
    pub flush: bool,
    /// Do not read a file again that an earlier backup took from this database (by the database's id) under the same name
    /// and with the same size. Saves reading the whole database for each backup. Not sound if the database's directory
    /// was copied by other means than checkpoints and backups, or restored by a build that left the database's id as it was,
    /// and both copies are backed up to the same place. Off by default.
    pub trust_names: bool,
    /// The most bytes to read per second; 0 for no limit.
    pub rate_limit: u64,
    /// Called for every MiB or less that was read. It may end the operation, which then fails with `Cancelled`.
    pub progress: Option<&'a mut dyn FnMut(BackupProgress) -> ControlFlow<()>>,
}

impl Default for BackupOptions<'_> {
    fn default() -> Self {
        BackupOptions { flush: true, trust_names: false, rate_limit: 0, progress: None }
    }
}

impl<'a> BackupOptions<'a> {
    /// The defaults.
    pub fn new() -> BackupOptions<'a> {
        BackupOptions::default()
    }

    /// Sets whether memtables are flushed before a backup is made.
    #[must_use]
    pub fn flush(mut self, flush: bool) -> BackupOptions<'a> {
        self.flush = flush;
        self
    }

    /// Sets whether files that an earlier backup took under the same name and size are not read again: see
    /// [`BackupOptions::trust_names`](#structfield.trust_names) for when that is sound.
    #[must_use]
    pub fn trust_names(mut self, trust_names: bool) -> BackupOptions<'a> {
        self.trust_names = trust_names;
        self
    }

    /// Limits the bytes that are read per second; 0 for no limit.
    #[must_use]
    pub fn rate_limit(mut self, bytes_per_second: u64) -> BackupOptions<'a> {
        self.rate_limit = bytes_per_second;
        self
    }

    /// Calls this function for every MiB or less. It may end the operation, which then fails with `Cancelled`.
    #[must_use]
    pub fn progress(mut self, progress: &'a mut dyn FnMut(BackupProgress) -> ControlFlow<()>) -> BackupOptions<'a> {
        self.progress = Some(progress);
        self
    }
}

/// Follows an operation: progress, rate, cancelling.
struct ProgressTracker<'a, 'b> {
    options: &'a mut BackupOptions<'b>,
    limiter: RateLimiter,
    progress: BackupProgress,
}

impl ProgressTracker<'_, '_> {
    fn new<'a, 'b>(
        options: &'a mut BackupOptions<'b>,
        clock: &Arc<dyn Clock>,
        total_bytes: u64,
    ) -> ProgressTracker<'a, 'b> {
        let limiter = RateLimiter::new(clock.clone(), options.rate_limit);
        ProgressTracker { options, limiter, progress: BackupProgress { done_bytes: 0, total_bytes } }
    }

    fn step(&mut self, bytes: u64) -> Result<()> {
        self.limiter.take(bytes, &AtomicBool::new(false));
        self.progress.done_bytes += bytes;
        match self.options.progress.as_mut().map(|told| told(self.progress)) {
            Some(ControlFlow::Break(())) => Err(Error::new(ErrorKind::Cancelled, "the backup operation was cancelled")),
            _ => Ok(()),
        }
    }
}

/// A directory of backups. Several handles and processes may read it; only one at a time may change it.
///
/// ```
/// use kingtide::backup::{Backup, BackupOptions};
/// use kingtide::vfs::{Fs, MemFs};
/// use kingtide::{Db, Options};
/// use std::sync::Arc;
///
/// let fs: Arc<dyn Fs> = MemFs::shared();
/// let db = Db::open("db", Options::new().fs(fs.clone()))?;
/// db.put("ebb", "low")?;
/// let backups = Backup::on(fs.clone(), "backups"); // `Backup::at` is for the machine's file system
/// let made = backups.create(&db, BackupOptions::new())?;
/// assert_eq!(backups.ids()?, [made.id]);
/// assert_eq!(backups.info(made.id)?.bytes, backups.list()?[0].bytes);
///
/// backups.restore_to(made.id, &fs, "copy", BackupOptions::new())?;
/// let copy = Db::open("copy", Options::new().fs(fs))?;
/// assert_eq!(copy.get("ebb")?.as_deref(), Some(&b"low"[..]));
///
/// backups.delete(made.id)?;
/// assert!(backups.list()?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Backup {
    fs: Arc<DirFs>,
    dir: PathBuf,
}

impl Backup {
    /// The directory of backups at `dir` on the machine's file system. Accesses nothing yet: the first backup creates the directory.
    pub fn at(dir: impl AsRef<Path>) -> Backup {
        Backup::on(SystemFs::shared(), dir)
    }

    /// Names a directory of backups on another file system.
    pub fn on(fs: Arc<dyn Fs>, dir: impl AsRef<Path>) -> Backup {
        Backup { fs: Arc::new(DirFs::new(fs)), dir: dir.as_ref().to_owned() }
    }

    /// Backs up a database, as of one moment: see [`Db::checkpoint`]. New files have the database's `file_mode`. Files that the directory
    /// already holds are not stored again. To find these, the database's files are read (see [`BackupOptions::trust_names`]). Of a file in the
    /// directory, only the size is compared, and one of another size is replaced; [`Backup::verify`] finds damage that leaves the size
    /// unchanged.
    ///
    /// O(bytes of the database) read, O(bytes of new files) written. Commits, flushes and compactions continue meanwhile.
    ///
    /// # Errors
    /// `Locked` when another process or handle changes the directory; `InvalidArgument` when that is the database's own or inside it;
    /// `Cancelled`; `Corruption` when a file is missing, or has another length than the database knows; `Io`, `NoSpace`, `Closed`, `ReadOnly`.
    /// No backup is then made, and earlier ones do not change. Directories that the call created are removed again. So are the files that it
    /// copied after `NoSpace`; after other errors these stay for the next backup.
    pub fn create(&self, db: &Db, options: BackupOptions<'_>) -> Result<BackupInfo> {
        let db = db.inner();
        db.check_writable()?;
        let mode = db.options.read().file_mode;
        // The pool too, because `refuse_inside` lets the database's own directory pass.
        for target in [&self.dir, &self.pool()] {
            refuse_inside((&*self.fs, target), (&*db.fs, &db.dir))?;
        }
        db.check_space_to_copy(&*self.fs, &self.dir)?;
        let mut own = self.with_fs(self.fs.with_file_mode(mode));
        let mut made = MadeDirs::make(&own.fs, &self.dir)?;
        made.lock(&self.dir.join(LOCK_FILE))?;
        for part in [own.pool(), own.manifests(), own.staging()] {
            made.add(&part)?;
            own = own.with_fs(own.fs.relying_on(&part)?);
        }
        let stored = own.fs.list(&own.pool())?;
        let backup = own.make(db, options).map_err(|e| db.unless_closed(e));
        match &backup {
            Ok(_) => made.keep(),
            // Or the next operation does it.
            Err(e) => drop(own.sweep().and_then(|()| own.give_back(&stored, e))),
        }
        backup
    }

    fn with_fs(&self, fs: DirFs) -> Backup {
        Backup { fs: Arc::new(fs), dir: self.dir.clone() }
    }

    /// Makes a backup in the directory, which is locked and has its parts, through a file system that relies on them.
    fn make(&self, db: &Arc<DbInner>, mut options: BackupOptions<'_>) -> Result<BackupInfo> {
        self.sweep()?;
        if options.flush {
            db.flush_all()?;
        }
        let moment = db.pin_state()?;
        let id = self.ids()?.last().map_or(Some(1), |last| last.checked_add(1));
        let id = id.ok_or_else(|| Error::invalid("the numbers of backups are used up").at_path(&self.manifests()))?;
        let immutable = moment.files(&db.dir);
        let mut making = Making {
            backup: self,
            stored: self.stored()?,
            trusted: if options.trust_names { self.known_of(&moment.db_id)? } else { HashMap::new() },
            tracker: ProgressTracker::new(&mut options, &db.clock, immutable.iter().map(|(_, size)| size).sum()),
            files: Vec::new(),
        };
        for (path, size) in immutable {
            making.add_immutable(db, &path, size)?;
        }
        let fs: Arc<dyn Fs> = self.fs.clone();
        moment.write_rest(db, &fs, &self.staging(), &making.tracker.limiter)?;
        making.add_staged()?;
        let files = making.files;
        self.fs.sync_dir(&self.pool())?;
        let (created_ms, sequence, db_id) = (db.clock.unix_ms(), moment.seq, moment.db_id);
        let manifest = BackupManifest { id, created_ms, sequence, db_id, files };
        self.install(&manifest)?;
        Ok(manifest.info())
    }

    /// The numbers of all backups, ascending, readable or not.
    ///
    /// # Errors
    /// `Io`.
    pub fn ids(&self) -> Result<Vec<u64>> {
        let names = match self.fs.list(&self.manifests()) {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let number =
            |name: &String| name.strip_suffix(".backup")?.parse::<u64>().ok().filter(|id| *name == manifest_name(*id));
        let mut ids: Vec<u64> = names.iter().filter_map(number).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Describes a backup.
    ///
    /// # Errors
    /// `NotFound`; `Corruption` when its manifest is damaged; `NewerFormat`, `Io`.
    pub fn info(&self, id: u64) -> Result<BackupInfo> {
        self.read(id).map(|m| m.info())
    }

    /// All backups, oldest first.
    ///
    /// # Errors
    /// The error of the first one that cannot be read; [`Backup::ids`] names all, and [`Backup::info`] describes a single one.
    pub fn list(&self) -> Result<Vec<BackupInfo>> {
        let mut all = Vec::new();
        for id in self.ids()? {
            match self.info(id) {
                Err(e) if e.kind() == ErrorKind::NotFound => {} // deleted just now
                info => all.push(info?),
            }
        }
        Ok(all)
    }

    /// Reads every file of a backup and compares it with its checksum.
    ///
    /// # Errors
    /// `Corruption`, naming the first file that is damaged or missing; `NotFound` (no such backup), `Cancelled`, `Io`.
    pub fn verify(&self, id: u64, mut options: BackupOptions<'_>) -> Result<()> {
        let manifest = self.read(id)?;
        let mut tracker = ProgressTracker::new(&mut options, &SystemClock::shared(), manifest.info().bytes);
        for file in &manifest.files {
            let path = self.pool().join(file.pool_name());
            let found = read_file(&*self.fs, &path, &mut |bytes, _| tracker.step(bytes.len() as u64));
            check(file, &path, found).map_err(|e| self.unless_deleted(&manifest, e))?;
        }
        Ok(())
    }

    /// Copies a backup to a directory that is empty or absent, on the machine's file system, where it is a database.
    ///
    /// # Errors
    /// As [`Backup::restore_to`].
    pub fn restore(&self, id: u64, target: impl AsRef<Path>) -> Result<()> {
        self.restore_to(id, &SystemFs::shared(), target, BackupOptions::default())
    }

    /// Copies a backup to a directory of another file system. Every file's checksum is compared while it is copied. The directory is a database
    /// when this returns; before, opening it is refused. A restore that was interrupted can be repeated in the same place.
    ///
    /// # Errors
    /// `Corruption`, naming the first file that is damaged or missing; `NotFound` (no such backup); `Exists` when the
    /// directory holds anything; `InvalidArgument` when it is inside the directory of backups; `Cancelled`, `Locked`, `Io`, `NoSpace`. The
    /// copied files are then removed.
    pub fn restore_to(
        &self,
        id: u64,
        fs: &Arc<dyn Fs>,
        target: impl AsRef<Path>,
        mut options: BackupOptions<'_>,
    ) -> Result<()> {
        let (dir, manifest) = (target.as_ref(), self.read(id)?);
        if is_inside((&**fs, dir), (&*self.fs, &self.dir))? {
            let text = "this is inside the directory of backups: choose a place outside of it";
            return Err(Error::invalid(text).at_path(dir));
        }
        let mut tracker = ProgressTracker::new(&mut options, &SystemClock::shared(), manifest.info().bytes);
        let target = Target::begin(&DirFs::new(fs.clone()), dir)?;
        let fs = target.fs();
        let mut copy = |file: &BackupFile, to: &Path| {
            let from = self.pool().join(file.pool_name());
            let copied = copy_file((&*self.fs, &from), (&**fs, to), &mut |bytes| tracker.step(bytes));
            check(file, &from, copied).map_err(|e| self.unless_deleted(&manifest, e))
        };
        for file in manifest.files.iter().filter(|f| f.name != CURRENT) {
            let to = dir.join(&file.name);
            copy(file, &to)?;
            if let Some(number) = parse_manifest_name(&file.name) {
                // What is restored again is another database, which gives the same numbers to other files.
                replace_id(&**fs, &to, number, Options::draw_id(None, number))?;
            }
        }
        fs.sync_dir(dir)?;
        let Some(current) = manifest.files.iter().find(|f| f.name == CURRENT) else {
            return Err(Error::corruption("the backup does not include CURRENT").at_path(&self.manifest_path(id)));
        };
        let tmp = dir.join(CURRENT_TMP);
        copy(current, &tmp)?;
        fs.rename(&tmp, &dir.join(CURRENT))?;
        fs.sync_dir(dir)?;
        target.finish();
        Ok(())
    }

    /// Deletes a backup, and the files that no other needs. One whose manifest is damaged can be deleted too.
    ///
    /// # Errors
    /// `NotFound`; `Locked`; `Corruption` when the manifest of *another* backup is damaged: this one is deleted, but no
    /// file of the pool is; `Io`.
    pub fn delete(&self, id: u64) -> Result<()> {
        let _lock = self.lock().map_err(|e| not_there(e, id))?;
        self.fs.remove(&self.manifest_path(id)).map_err(|e| not_there(e, id))?;
        self.fs.sync_dir(&self.manifests())?;
        self.collect()
    }

    /// Deletes all backups but the newest `keep`, and the files that no other needs. Returns how many it deleted: 0 if the directory
    /// does not exist.
    ///
    /// # Errors
    /// As [`Backup::delete`], except `NotFound`.
    pub fn purge(&self, keep: usize) -> Result<usize> {
        if !self.fs.exists(&self.dir)? {
            return Ok(0);
        }
        let _lock = self.lock()?;
        let ids = self.ids()?;
        let old = &ids[..ids.len().saturating_sub(keep)];
        for id in old {
            self.fs.remove(&self.manifest_path(*id))?;
        }
        if !ids.is_empty() {
            self.fs.sync_dir(&self.manifests())?;
        }
        self.collect()?;
        Ok(old.len())
    }

    fn pool(&self) -> PathBuf {
        self.dir.join("pool")
    }

    fn manifests(&self) -> PathBuf {
        self.dir.join("backups")
    }

    fn staging(&self) -> PathBuf {
        self.dir.join("staging")
    }

    fn manifest_path(&self, id: u64) -> PathBuf {
        self.manifests().join(manifest_name(id))
    }

    fn lock(&self) -> Result<Box<dyn FileLock>> {
        self.fs.lock(&self.dir.join(LOCK_FILE))
    }

    fn read(&self, id: u64) -> Result<BackupManifest> {
        let path = self.manifest_path(id);
        let mut all = Vec::new();
        read_file(&*self.fs, &path, &mut |bytes, _| {
            all.extend_from_slice(bytes);
            Ok(())
        })
        .map_err(|e| not_there(e, id))?;
        BackupManifest::decode(&all, id).map_err(|e| e.at_path(&path))
    }

    /// What kept a backup from being read: if it was deleted meanwhile, that.
    fn unless_deleted(&self, manifest: &BackupManifest, e: Error) -> Error {
        if e.kind() != ErrorKind::Corruption {
            return e;
        }
        let deleted = match self.read(manifest.id) {
            Err(e) => e.kind() == ErrorKind::NotFound,
            // Another may have got its number.
            Ok(now) => now.encode() != manifest.encode(),
        };
        if !deleted {
            return e;
        }
        Error::new(ErrorKind::NotFound, format!("backup {} was deleted while it was read", manifest.id))
    }

    /// Makes a backup exist.
    fn install(&self, manifest: &BackupManifest) -> Result<()> {
        let path = self.manifest_path(manifest.id);
        let tmp = path.with_extension("tmp");
        let file = self.fs.open(&tmp, OpenMode::Overwrite)?;
        file.write_at(&manifest.encode(), 0)?;
        file.sync_data()?;
        self.fs.rename(&tmp, &path)?;
        self.fs.sync_dir(&self.manifests()).inspect_err(|_| {
            // Its name is not certain to be durable, and a later sync says nothing about it: it must not count as a backup,
            // on account of which others are purged.
            let _ = self.fs.remove(&path);
        })
    }

    /// The files of the pool, and of each whether a backup has it, which was made when the file's name was durable. `None`: whether one
    /// has it is not known, because the manifest of one cannot be read.
    fn stored(&self) -> Result<HashMap<String, Option<bool>>> {
        let manifests: Vec<_> = self.ids()?.into_iter().map(|id| self.read(id)).collect();
        let all_read = manifests.iter().all(Result::is_ok);
        let taken: HashSet<String> =
            manifests.into_iter().flatten().flat_map(|m| m.files).map(|f| f.pool_name()).collect();
        let by_backup = |name: &String| (taken.contains(name) || all_read).then(|| taken.contains(name));
        let names = self.fs.list(&self.pool())?.into_iter();
        Ok(names.map(|name| (by_backup(&name), name)).map(|(taken, name)| (name, taken)).collect())
    }

    /// Files, by name and size, that readable backups took from that database, with their checksums. Not those that were
    /// written for a backup: the database's manifest may not know of their numbers, and after a crash they are given again.
    fn known_of(&self, db_id: &[u8; 16]) -> Result<HashMap<(String, u64), u64>> {
        let manifests = self.ids()?.into_iter().filter_map(|id| self.read(id).ok()).filter(|m| m.db_id == *db_id);
        let taken = manifests.flat_map(|m| m.files).filter(|f| !f.made);
        Ok(taken.map(|f| ((f.name, f.size), f.hash)).collect())
    }

    /// Removes what an operation that was cut short left half done.
    fn sweep(&self) -> Result<()> {
        for (part, all) in [(self.staging(), true), (self.pool(), false), (self.manifests(), false)] {
            let names = match self.fs.list(&part) {
                Ok(names) => names,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            for name in names.iter().filter(|n| all || n.ends_with(".tmp")) {
                self.fs.remove(&part.join(name))?;
            }
        }
        Ok(())
    }

    /// After a backup failed with `e`, removes the files of the pool that it copied, if the disk was full. Otherwise they stay until a
    /// backup is deleted, and the next backup need not copy them again. `before`: the files that were there.
    fn give_back(&self, before: &[String], e: &Error) -> Result<()> {
        if e.kind() != ErrorKind::NoSpace {
            return Ok(());
        }
        for (name, taken) in self.stored()? {
            if taken == Some(false) && !before.contains(&name) {
                self.fs.remove(&self.pool().join(name))?;
            }
        }
        Ok(())
    }

    /// Removes files of the pool that no backup needs. Removes none unless all backups can be read.
    fn collect(&self) -> Result<()> {
        self.sweep()?;
        let mut needed = HashSet::new();
        for id in self.ids()? {
            needed.extend(self.read(id)?.files.iter().map(BackupFile::pool_name));
        }
        let names = match self.fs.list(&self.pool()) {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        for name in names.iter().filter(|n| !needed.contains(*n)) {
            self.fs.remove(&self.pool().join(name))?;
        }
        Ok(())
    }
}

/// A backup that is being made.
struct Making<'m, 'a, 'b> {
    backup: &'m Backup,
    /// Files of the pool: see [`Backup::stored`].
    stored: HashMap<String, Option<bool>>,
    /// Checksums of files that need not be read again.
    trusted: HashMap<(String, u64), u64>,
    tracker: ProgressTracker<'a, 'b>,
    files: Vec<BackupFile>,
}

impl Making<'_, '_, '_> {
    /// Adds a table or value log of the database.
    fn add_immutable(&mut self, db: &DbInner, path: &Path, size: u64) -> Result<()> {
        let name = file_name(path)?;
        let mut file = BackupFile { name, size, hash: 0, new: false, made: false };
        if let Some(hash) = self.trusted.get(&(file.name.clone(), size)) {
            file.hash = *hash;
            if self.takes_stored(&file)? {
                self.files.push(file);
                return Ok(());
            }
        }
        let wrong_size = |found: u64| {
            Error::corruption(format!("the file has {found} bytes, but the manifest says {size}")).at_path(path)
        };
        let (fs, pool) = (&*self.backup.fs, self.backup.pool());
        let same_name = format!("-{size}-{}", file.name);
        if self.stored.keys().any(|s| s.ends_with(&same_name)) {
            let tracker = &mut self.tracker;
            let read = read_file(&*db.fs, path, &mut |bytes, _| tracker.step(bytes.len() as u64));
            let (found, hash) = read.map_err(of_named(path))?;
            file.hash = hash;
            if found != size {
                return Err(wrong_size(found));
            }
            if self.takes_stored(&file)? {
                self.files.push(file);
                return Ok(());
            }
            self.tracker.progress.total_bytes += size; // another file of that name and size: it is read again
        }
        let tmp = pool.join(format!("{}.tmp", file.name));
        let tracker = &mut self.tracker;
        let copied = copy_file((&*db.fs, path), (fs, &tmp), &mut |bytes| tracker.step(bytes));
        let (found, hash) = copied.map_err(of_named(path))?;
        if found != size {
            return Err(wrong_size(found));
        }
        file.hash = hash;
        file.new = true;
        fs.rename(&tmp, &pool.join(file.pool_name()))?;
        self.stored.insert(file.pool_name(), Some(true));
        self.files.push(file);
        Ok(())
    }

    /// Whether the pool has the file, so that it need not be copied. One of another size is damaged: a copy takes its place, in
    /// earlier backups too.
    fn takes_stored(&mut self, file: &BackupFile) -> Result<bool> {
        let (fs, pool, name) = (&*self.backup.fs, self.backup.pool(), file.pool_name());
        let Some(taken) = self.stored.get_mut(&name) else { return Ok(false) };
        let path = pool.join(&name);
        if fs.open(&path, OpenMode::Read)?.len()? != file.size {
            return Ok(false);
        }
        match taken {
            Some(true) => {}
            // What a backup left that was cut short or failed, perhaps in a sync of the pool: only a name that is made
            // after that is made durable by the next sync.
            Some(false) => {
                let away = pool.join(format!("{name}.tmp"));
                fs.rename(&path, &away)?;
                fs.rename(&away, &path)?;
                *taken = Some(true);
            }
            // The same, but a backup may need it, and must not be without it for a moment: a copy takes its place.
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Moves what was written into the staging directory to the pool.
    fn add_staged(&mut self) -> Result<()> {
        let (fs, pool, staging) = (&*self.backup.fs, self.backup.pool(), self.backup.staging());
        for name in fs.list(&staging)? {
            let from = staging.join(&name);
            let tracker = &mut self.tracker;
            let (size, hash) = read_file(fs, &from, &mut |bytes, _| {
                tracker.progress.total_bytes += bytes.len() as u64;
                tracker.step(bytes.len() as u64)
            })?;
            let file = BackupFile { name, size, hash, new: true, made: true };
            fs.rename(&from, &pool.join(file.pool_name()))?;
            self.files.push(file);
        }
        fs.sync_dir(&staging)
    }
}

/// The name of a backup's manifest. A file of another name is none, whatever number it has.
fn manifest_name(id: u64) -> String {
    format!("{id:06}.backup")
}

fn file_name(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|n| n.to_str());
    name.map(str::to_owned).ok_or_else(|| Error::invalid("a file without a name").at_path(path))
}

fn not_there(e: Error, id: u64) -> Error {
    match e.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("no backup {id}")),
        _ => e,
    }
}

/// Compares what was read of a file with what it should be.
fn check(file: &BackupFile, path: &Path, found: Result<(u64, u64)>) -> Result<()> {
    match found {
        Ok(found) if found == (file.size, file.hash) => Ok(()),
        Ok((size, _)) if size != file.size => {
            Err(Error::corruption(format!("a file of the backup has {size} bytes instead of {}", file.size))
                .at_path(path))
        }
        Ok(_) => Err(Error::corruption("a file of the backup fails its checksum").at_path(path)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(Error::corruption("a file of the backup is missing").at_path(path))
        }
        Err(e) => Err(e),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::copy::target::Target;
    use kingtide_base::sync::Mutex;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};

    /// Fails the `nth` operation of each kind below `copies`, until `copy` succeeds. Returns how often it failed, and the operations
    /// in which a lock file was removed that others could have locked.
    fn fail_everywhere(copy: &dyn Fn(&Arc<dyn Fs>) -> Result<()>) -> (u32, Vec<String>) {
        let (mut failed, unlocked) = (0, Arc::new(Mutex::new(Vec::new())));
        for op in [Op::Open, Op::Read, Op::Write, Op::Sync, Op::SyncDir, Op::Allocate] {
            for nth in 1.. {
                let mem = MemFs::shared();
                let faults = FaultFs::new(mem.clone(), 1);
                let noted = unlocked.clone();
                faults.before_each(Some(Arc::new(move |what, path: &Path| {
                    // As another copy to the same place would.
                    if what == Op::Remove && path.ends_with(LOCK_FILE) && mem.lock(path).is_ok() {
                        noted.lock().push(format!("{op:?} {nth}"));
                    }
                })));
                faults.add(Rule::new(op, Fault::Enospc).path("copies").nth(nth));
                let fs: Arc<dyn Fs> = Arc::new(faults);
                if copy(&fs).is_ok() {
                    break;
                }
                failed += 1;
            }
        }
        let unlocked = std::mem::take(&mut *unlocked.lock());
        (failed, unlocked)
    }

    /// Or it would be that of another copy, which a third one would then not notice.
    #[test]
    fn the_lock_of_a_failed_copy_is_removed_while_it_is_held() {
        let place = Path::new("copies/of/it");
        let target = |fs: &Arc<dyn Fs>| Target::begin(&DirFs::new(fs.clone()), place).map(Target::finish);
        let (failed, unlocked) = fail_everywhere(&target);
        assert!(failed > 8 && unlocked.is_empty(), "{failed}: {unlocked:?}");
        let db = Db::open("db", Options::new().fs(MemFs::shared()).manual_jobs(true)).unwrap();
        db.put(b"key", b"value").unwrap();
        let backup = |fs: &Arc<dyn Fs>| Backup::on(fs.clone(), place).create(&db, BackupOptions::new()).map(drop);
        let (failed, unlocked) = fail_everywhere(&backup);
        assert!(failed > 20 && unlocked.is_empty(), "{failed}: {unlocked:?}");
    }
}
