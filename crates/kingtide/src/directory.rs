//! Making a database's directory.

use crate::sync::{Condvar, Mutex};
use kingtide_base::{Error, ErrorKind, Result, rare};
use kingtide_vfs::Fs;
use std::path::Path;
use std::time::Duration;

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
