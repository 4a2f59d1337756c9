//! A database's directory: making it, and making its names durable.

use crate::sync::{Condvar, Mutex};
use kingtide_base::options::FileMode;
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_vfs::{File, FileLock, Fs, OpenMode};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The file system as an open database uses it. Everything that the engine does with files goes through this, so it sees every
/// sync of the database's directory, and after one that failed it lets none succeed until the database is opened again: the
/// system reports a failure once and may have forgotten whatever names there were, those of other jobs too, so a later sync
/// that succeeds says nothing about the names before it.
pub(crate) struct DatabaseFs {
    inner: Arc<dyn Fs>,
    dir: PathBuf,
    names: Arc<Names>,
}

/// What is known of the directory's names.
#[derive(Default)]
struct Names {
    /// The failure. Held during a sync: one that succeeds beside another that fails must not be believed either.
    failed: Mutex<Option<Error>>,
    /// Hears of the failure.
    stop: OnceLock<Box<dyn Fn(Error) + Send + Sync>>,
}

impl DatabaseFs {
    /// The file system `inner`, for the database in `dir`.
    pub fn new(inner: Arc<dyn Fs>, dir: &Path) -> Arc<DatabaseFs> {
        Arc::new(DatabaseFs { inner, dir: dir.to_owned(), names: Arc::default() })
    }

    /// Has `stop` called once, when a sync of the directory fails or if one failed already: it must stop whatever may count on
    /// names. To be set once.
    pub fn on_failed_sync(&self, stop: impl Fn(Error) + Send + Sync + 'static) {
        let failed = {
            let failed = self.names.failed.lock();
            let _ = self.names.stop.set(Box::new(stop));
            failed.clone()
        };
        self.tell(failed);
    }

    fn tell(&self, failed: Option<Error>) {
        if let (Some(e), Some(stop)) = (failed, self.names.stop.get()) {
            stop(e.context("sync of the database's directory failed"));
        }
    }

    fn sync_own_dir(&self) -> Result<()> {
        let mut failed = self.names.failed.lock();
        if let Some(e) = &*failed {
            let text = format!("names of files cannot be made durable since an earlier failure: {e}");
            return Err(Error::new(ErrorKind::Poisoned, text).at_path(&self.dir));
        }
        let synced = self.inner.sync_dir(&self.dir);
        match &synced {
            // Without a descriptor nothing was tried.
            Err(e) if !e.is_out_of_descriptors() => *failed = Some(e.clone()),
            _ => return synced,
        }
        drop(failed);
        self.tell(synced.as_ref().err().cloned());
        synced
    }
}

impl fmt::Debug for DatabaseFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseFs({} on {:?})", self.dir.display(), self.inner)
    }
}

impl Fs for DatabaseFs {
    fn with_mode(self: Arc<Self>, mode: FileMode) -> Arc<dyn Fs> {
        let inner = self.inner.clone().with_mode(mode);
        Arc::new(DatabaseFs { inner, dir: self.dir.clone(), names: self.names.clone() })
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

    fn sync_dir(&self, path: &Path) -> Result<()> {
        if path == self.dir { self.sync_own_dir() } else { self.inner.sync_dir(path) }
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn free_space(&self, path: &Path) -> Result<u64> {
        self.inner.free_space(path)
    }

    fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id()
    }
}

/// Makes the directory of a database, though none above it: a path with a typing error is to be noticed.
pub(crate) fn make_database_dir(fs: &dyn Fs, dir: &Path) -> Result<()> {
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

/// Makes the names in a directory durable. Without a file descriptor for it, waits for one, for a second: to be used where a
/// failure would mean that what is there already cannot be acknowledged.
pub(crate) fn sync_dir_patiently(fs: &dyn Fs, dir: &Path) -> Result<()> {
    let (pause, never) = (Mutex::new(()), Condvar::default());
    for _ in 0..100 {
        match fs.sync_dir(dir) {
            Err(e) if e.is_out_of_descriptors() => {
                rare!("directory-sync-waited-for-descriptor");
                drop(never.wait_for(pause.lock(), Duration::from_millis(10)));
            }
            done => return done,
        }
    }
    fs.sync_dir(dir)
}

/// Makes the directory and what is missing above it, and their names durable.
pub(crate) fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<()> {
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
        fs.create_dir_all(at)?;
        if let Some(parent) = at.parent() {
            fs.sync_dir(parent)?;
        }
    }
    Ok(())
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;
    use kingtide_vfs::{Fault, FaultFs, MemFs, Op, Rule};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_sync_of_the_directory_that_failed_is_not_believed_when_it_is_tried_again() {
        let (db, other) = (Path::new("db"), Path::new("other"));
        let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
        [db, other].iter().for_each(|dir| faults.create_dir_all(dir).unwrap());
        let fs = DatabaseFs::new(faults.clone(), db);
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        fs.on_failed_sync(move |e| {
            assert!(e.to_string().contains("directory"), "{e}");
            count.fetch_add(1, Ordering::Relaxed);
        });
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
    fn who_asks_after_the_failure_hears_of_it_at_once() {
        let faults = Arc::new(FaultFs::new(MemFs::shared(), 1));
        faults.add(Rule::new(Op::SyncDir, Fault::Eio));
        let fs = DatabaseFs::new(faults, Path::new(""));
        fs.sync_dir(Path::new("")).unwrap_err();
        let told = Arc::new(AtomicUsize::new(0));
        let count = told.clone();
        fs.on_failed_sync(move |_| _ = count.fetch_add(1, Ordering::Relaxed));
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
