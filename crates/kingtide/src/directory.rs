//! Directories: making them, and making their names durable.

use kingtide_base::options::FileMode;
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, ErrorKind, Result, lock};
use kingtide_vfs::{DirId, File, FileLock, Fs, OpenMode, PerProcess};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

/// Refuses to create something at `target`, which need not exist, if that lies inside the directory of a database. Links and relative
/// parts of the path make no difference: directories are compared by their identity, from the target's own upwards. The caller checks for
/// the directory of the database itself.
///
/// Two ways into it are not recognised. A directory inside that is mounted at another place too has the parent of that place there. And on
/// Windows the parent of a link is that of its name, not of what it leads to.
///
/// # Errors
/// `InvalidArgument` if it lies inside; an error of the file system if the database's directory cannot be examined.
pub(crate) fn refuse_inside((fs, target): (&dyn Fs, &Path), (db_fs, db): (&dyn Fs, &Path)) -> Result<()> {
    if is_inside((fs, target), (db_fs, db))? { Err(inside(target, db)) } else { Ok(()) }
}

/// Whether `target`, which need not exist, lies inside a directory: see [`refuse_inside`].
///
/// # Errors
/// An error of the file system if the directory cannot be examined.
pub(crate) fn is_inside((fs, target): (&dyn Fs, &Path), (dir_fs, dir): (&dyn Fs, &Path)) -> Result<bool> {
    let dir = dir_fs.dir_id(dir)?;
    let mut at = without_missing(fs, target);
    // A path that does not exist yet is created below the nearest directory that does.
    while fs.dir_id(&at).is_err() {
        at = match at.parent() {
            Some(_) if at == Path::new(".") => return Ok(false),
            Some(above) if above.as_os_str().is_empty() => Path::new(".").to_owned(),
            Some(above) => above.to_owned(),
            None => return Ok(false), // the attempt to create it will report why it cannot be created
        };
        if fs.dir_id(&at).is_ok_and(|id| id == dir) {
            return Ok(true);
        }
    }
    let mut below = fs.dir_id(&at)?;
    loop {
        at.push("..");
        // A directory whose parent this process may not examine is not inside one that it has open.
        let Ok(id) = fs.dir_id(&at) else { return Ok(false) };
        if id == dir {
            return Ok(true);
        }
        if id == below {
            return Ok(false); // the root
        }
        below = id;
    }
}

/// A path without those of its parts that are missing and have a `..` behind them. They would be created as directories, so that the `..`
/// leads back, and what follows may exist.
fn without_missing(fs: &dyn Fs, path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        let is_missing = || !found.as_os_str().is_empty() && fs.dir_id(&found).is_err();
        if part == Component::ParentDir && is_missing() {
            found.pop();
        } else {
            found.push(part);
        }
    }
    if found.as_os_str().is_empty() { PathBuf::from(".") } else { found }
}

#[cold]
fn inside(target: &Path, db: &Path) -> Error {
    let text = format!("this is inside the database's own directory, '{}': choose a place outside of it", db.display());
    Error::invalid(text).at_path(target)
}

/// A file system whose syncs of directories are known to the whole process. The engine reaches files only through one of these,
/// made from the caller's [`Fs`] for an open database, a copy that is being made, or a directory of backups.
///
/// The system reports a failed sync of a directory once and may have forgotten whatever names there were, so a later sync that
/// succeeds says nothing about the names before it. Code that relies on names in a directory therefore first calls
/// [`DirFs::relying_on`]. After that a sync of this directory fails here if one failed through any object in the process: a
/// backup, a checkpoint or another database may sync the same directory, by whatever path. What other processes do is not seen.
#[derive(Clone)]
pub(crate) struct DirFs {
    inner: Arc<dyn Fs>,
    relied_on: Vec<Arc<ReliedOn>>,
}

/// A directory that a [`DirFs`] relies on.
struct ReliedOn {
    dir: Arc<Directory>,
    /// Earlier failures do not matter: the names were not made yet, or were found by an open.
    failures_before: u64,
    /// Is called at the first failure.
    listener: OnceLock<Box<dyn Fn(Error) + Send + Sync>>,
}

/// What this process knows of a directory. It is forgotten when no [`DirFs`] relies on the directory any more.
#[derive(Default)]
struct Directory {
    /// Held during a sync: one that succeeds beside another that fails must not be believed either.
    syncs: Mutex<Syncs>,
}

#[derive(Default)]
struct Syncs {
    failures: u64,
    last_failure: Option<Error>,
    /// Have listeners that are to be called at a failure.
    to_tell: Vec<Weak<ReliedOn>>,
}

/// The directories that are relied on or synced just now.
static DIRECTORIES: PerProcess<lock::Mutex<BTreeMap<DirId, Weak<Directory>>>> = PerProcess::new();

impl Directory {
    fn with_id(id: DirId) -> Arc<Directory> {
        let mut all = DIRECTORIES.get().lock();
        if let Some(dir) = all.get(&id).and_then(Weak::upgrade) {
            return dir;
        }
        all.retain(|_, dir| dir.strong_count() > 0);
        let dir = Arc::new(Directory::default());
        all.insert(id, Arc::downgrade(&dir));
        dir
    }

    /// Runs `sync`, unless one failed that `relied_on` says matters, and tells of a failure.
    fn sync(&self, relied_on: Option<&ReliedOn>, path: &Path, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut syncs = self.syncs.lock();
        if relied_on.is_some_and(|r| r.failures_before < syncs.failures) {
            let cause = syncs.last_failure.as_ref().map_or("", |e| e.message());
            let text = format!("names of files cannot be made durable since an earlier failure: {cause}");
            return Err(Error::new(ErrorKind::Poisoned, text).at_path(path));
        }
        let synced = sync();
        let to_tell = match &synced {
            // Without a descriptor nothing was tried.
            Err(e) if !e.is_out_of_descriptors() => {
                syncs.failures += 1;
                syncs.last_failure = Some(e.clone());
                std::mem::take(&mut syncs.to_tell)
            }
            _ => return synced,
        };
        drop(syncs);
        if let Err(e) = &synced {
            to_tell.iter().filter_map(Weak::upgrade).for_each(|r| r.tell(e));
        }
        synced
    }
}

impl ReliedOn {
    fn tell(&self, e: &Error) {
        if let Some(listener) = self.listener.get() {
            listener(e.clone().context("sync of the directory failed"));
        }
    }
}

impl DirFs {
    /// The file system `inner`, which must not be a `DirFs` itself. No directory is relied on.
    pub fn new(inner: Arc<dyn Fs>) -> DirFs {
        DirFs { inner, relied_on: Vec::new() }
    }

    /// From here on, a failed sync of `dir`, which must exist, is final: see [`DirFs`].
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn relying_on(&self, dir: &Path) -> Result<DirFs> {
        let dir = Directory::with_id(self.inner.dir_id(dir)?);
        let failures_before = dir.syncs.lock().failures;
        let mut fs = self.clone();
        fs.relied_on.push(Arc::new(ReliedOn { dir, failures_before, listener: OnceLock::new() }));
        Ok(fs)
    }

    /// As [`Fs::with_mode`].
    pub fn with_file_mode(&self, mode: FileMode) -> DirFs {
        DirFs { inner: self.inner.clone().with_mode(mode), relied_on: self.relied_on.clone() }
    }

    /// Has `listener` called once, when a sync fails of a directory that is relied on, or at once if one did already. It is
    /// called on the thread whose sync fails, and lives as long as the file system. To be set once.
    pub fn on_failed_sync(&self, listener: impl Fn(Error) + Clone + Send + Sync + 'static) {
        for r in &self.relied_on {
            let failure = {
                let mut syncs = r.dir.syncs.lock();
                let _ = r.listener.set(Box::new(listener.clone()));
                if r.failures_before == syncs.failures {
                    syncs.to_tell.retain(|r| r.strong_count() > 0);
                    syncs.to_tell.push(Arc::downgrade(r));
                    continue;
                }
                syncs.last_failure.clone()
            };
            failure.iter().for_each(|e| r.tell(e));
        }
    }
}

impl fmt::Debug for DirFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirFs({:?})", self.inner)
    }
}

impl Fs for DirFs {
    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        Arc::new(self.with_file_mode(mode))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let dir = Directory::with_id(self.inner.dir_id(path)?);
        let relied_on = self.relied_on.iter().find(|r| Arc::ptr_eq(&r.dir, &dir));
        dir.sync(relied_on.map(|r| &**r), path, || self.inner.sync_dir(path))
    }

    fn dir_id(&self, path: &Path) -> Result<DirId> {
        self.inner.dir_id(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        self.inner.open(path, mode)
    }

    fn open_log(&self, path: &Path, size: u64) -> Result<Arc<dyn File>> {
        self.inner.open_log(path, size)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.inner.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock_shared(path)
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        self.inner.free_space(path)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id()
    }
}

/// Makes the directory of a database, though none above it: a path with a typing error is to be noticed.
pub(crate) fn make_database_dir(fs: &DirFs, dir: &Path) -> Result<()> {
    let above = dir.parent().filter(|parent| !parent.as_os_str().is_empty() && parent.parent().is_some());
    if let Some(parent) = above
        && !fs.exists(dir)?
        && !fs.exists(parent)?
    {
        let text = format!(
            "cannot create a database: the directory {} does not exist; create it first, or correct the path",
            parent.display()
        );
        return Err(Error::new(ErrorKind::NotFound, text).at_path(dir));
    }
    make_dir(fs, dir)
}

/// Directories, and a lock file in one, that were made for something that may fail. Dropped, it removes the file and those directories
/// that are empty, the last first, unless [`MadeDirs::keep`] was called. What was there before stays in any case.
#[must_use]
pub(crate) struct MadeDirs {
    fs: DirFs,
    made: Vec<(PathBuf, Kind)>,
    /// Given up last: once it is, the file may be the lock of another, which a third would not notice if it were removed.
    lock: Option<Box<dyn FileLock>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

impl MadeDirs {
    /// Makes the directory and what is missing above it, and their names durable.
    ///
    /// # Errors
    /// As [`Fs::create_dir_all`] and [`Fs::sync_dir`]. What was made is gone again then.
    pub fn make(fs: &DirFs, dir: &Path) -> Result<MadeDirs> {
        let mut made = MadeDirs { fs: fs.clone(), made: Vec::new(), lock: None };
        made.add(dir)?;
        Ok(made)
    }

    /// Makes one more.
    ///
    /// # Errors
    /// As [`MadeDirs::make`].
    pub fn add(&mut self, dir: &Path) -> Result<()> {
        let made = &mut self.made;
        make_dirs(&self.fs, dir, &mut |at| made.push((at.to_owned(), Kind::Directory)))
    }

    /// Takes the lock on a file, which is made if it is missing, and holds it until the end.
    ///
    /// # Errors
    /// As [`Fs::lock`].
    pub fn lock(&mut self, path: &Path) -> Result<()> {
        let exists = self.fs.exists(path)?;
        self.lock = Some(self.fs.lock(path)?);
        if !exists {
            self.own(path);
        }
        Ok(())
    }

    /// Has a file that the caller makes removed with the directories. Naming it twice changes nothing.
    pub fn own(&mut self, file: &Path) {
        let owned = (file.to_owned(), Kind::File);
        if !self.made.contains(&owned) {
            self.made.push(owned);
        }
    }

    /// Lets everything stay that was made.
    pub fn keep(&mut self) {
        self.made.clear();
    }
}

impl Drop for MadeDirs {
    fn drop(&mut self) {
        for (path, kind) in self.made.iter().rev() {
            let _ = match kind {
                Kind::Directory => self.fs.remove_dir(path), // fails if others put something there
                Kind::File => self.fs.remove(path),
            };
        }
    }
}

/// Makes the directory and what is missing above it, and their names durable.
pub(crate) fn make_dir(fs: &DirFs, dir: &Path) -> Result<()> {
    make_dirs(fs, dir, &mut |_| ())
}

/// The same, and calls `made` with each directory that was made.
fn make_dirs(fs: &DirFs, dir: &Path, made: &mut dyn FnMut(&Path)) -> Result<()> {
    let mut missing = Vec::new();
    for at in dir.ancestors().take_while(|at| !at.as_os_str().is_empty()) {
        if fs.exists(at)? {
            break;
        }
        missing.push(at);
    }
    if missing.is_empty() {
        // The process that made it may have been killed before its name was durable. A user who may not open the parent
        // did not make it in this way.
        return match dir.parent().map_or(Ok(()), |parent| fs.sync_dir(parent)) {
            Err(e) if e.io_kind() == Some(std::io::ErrorKind::PermissionDenied) => Ok(()),
            done => done,
        };
    }
    for at in missing.into_iter().rev() {
        let Some(parent) = at.parent() else { continue };
        let fs = fs.relying_on(parent)?;
        fs.create_dir_all(at)?;
        fs.sync_dir(parent).inspect_err(|e| {
            // The next attempt has to make the name again: a sync that succeeds later says nothing about this one. Nothing
            // was tried without the permission to open the parent.
            if e.io_kind() != Some(std::io::ErrorKind::PermissionDenied) {
                let _ = fs.remove_dir(at);
            }
        })?;
        made(at);
    }
    Ok(())
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;
    use kingtide_base::rng::Rng;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule, Survival, sync_dir_patiently};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A file system that fails on demand, with a directory `db` in which there is a directory `sub`.
    fn faulty() -> (Arc<FaultFs>, DirFs) {
        let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
        ["db/sub", "other"].iter().for_each(|dir| faults.create_dir_all(Path::new(dir)).unwrap());
        let fs = DirFs::new(faults.clone());
        (faults, fs)
    }

    fn counted(fs: &DirFs) -> Arc<AtomicUsize> {
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        fs.on_failed_sync(move |e| {
            assert!(e.to_string().contains("directory"), "{e}");
            count.fetch_add(1, Ordering::Relaxed);
        });
        told
    }

    #[test]
    fn a_sync_of_the_directory_that_failed_is_not_believed_when_it_is_tried_again() {
        let (db, other) = (Path::new("db"), Path::new("other"));
        let (faults, fs) = faulty();
        let fs = Arc::new(fs.relying_on(db).unwrap());
        let told = counted(&fs);
        faults.add(Rule::new(Op::SyncDir, Fault::Emfile));
        assert!(fs.sync_dir(db).unwrap_err().is_out_of_descriptors());
        fs.sync_dir(db).unwrap(); // nothing was tried before
        faults.add(Rule::new(Op::SyncDir, Fault::Eio));
        assert_eq!(fs.sync_dir(other).unwrap_err().kind(), ErrorKind::Io);
        fs.sync_dir(db).unwrap(); // of another directory
        assert_eq!(told.load(Ordering::Relaxed), 0);
        faults.add(Rule::new(Op::SyncDir, Fault::Eio));
        assert_eq!(fs.sync_dir(db).unwrap_err().kind(), ErrorKind::Io);
        let tried = faults.count(Op::SyncDir);
        for fs in [fs.clone() as Arc<dyn Fs>, fs.clone().with_mode(FileMode::OWNER)] {
            let e = fs.sync_dir(db).unwrap_err();
            assert!(e.kind() == ErrorKind::Poisoned && e.to_string().contains("injected"), "{e}");
            assert_eq!(sync_dir_patiently(&*fs, db).unwrap_err().kind(), ErrorKind::Poisoned);
        }
        assert_eq!((faults.count(Op::SyncDir), told.load(Ordering::Relaxed)), (tried, 1));
        fs.sync_dir(other).unwrap();
    }

    #[test]
    fn a_sync_that_failed_for_another_object_is_not_believed_either() {
        for spelling in ["db", "./db", "db/sub/..", "other/../db/"] {
            let (faults, plain) = faulty();
            let db = Path::new("db");
            let fs = plain.relying_on(db).unwrap();
            let told = counted(&fs);
            faults.add(Rule::new(Op::SyncDir, Fault::Eio));
            let other = DirFs::new(faults.clone() as Arc<dyn Fs>);
            assert_eq!(other.sync_dir(Path::new(spelling)).unwrap_err().kind(), ErrorKind::Io);
            assert_eq!(told.load(Ordering::Relaxed), 1, "{spelling}");
            assert_eq!(fs.sync_dir(db).unwrap_err().kind(), ErrorKind::Poisoned, "{spelling}");
            // What begins now makes its names after the failure.
            let later = plain.relying_on(db).unwrap();
            later.sync_dir(db).unwrap();
            assert_eq!(fs.sync_dir(db).unwrap_err().kind(), ErrorKind::Poisoned, "{spelling}");
        }
    }

    #[test]
    fn a_listener_set_after_the_failure_is_called_at_once() {
        let (faults, fs) = faulty();
        let fs = fs.relying_on(Path::new("")).unwrap();
        faults.add(Rule::new(Op::SyncDir, Fault::Eio));
        fs.sync_dir(Path::new("")).unwrap_err();
        assert_eq!(counted(&fs).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_directory_whose_name_could_not_be_made_durable_is_made_again() {
        let mem = MemFs::new();
        let fs = DirFs::new(Arc::new(mem.clone()));
        mem.fail_dir_sync(1);
        make_dir(&fs, Path::new("new")).unwrap_err();
        make_dir(&fs, Path::new("new")).unwrap();
        let cut = mem.crash_clone(Survival::AllLost, &mut Rng::new(1));
        assert!(cut.exists(Path::new("new")).unwrap());
    }

    #[test]
    fn what_is_not_relied_on_is_forgotten() {
        let (_, fs) = faulty();
        let own = fs.dir_id(Path::new("db")).unwrap();
        let known = || DIRECTORIES.get().lock().get(&own).is_some_and(|dir| dir.strong_count() > 0);
        let relying = fs.relying_on(Path::new("db")).unwrap();
        fs.sync_dir(Path::new("db")).unwrap();
        assert!(known());
        drop(relying);
        assert!(!known());
    }
}
