//! The directory that a copy is made in, and copying of files.
//!
//! A copy that was cut short must not pass for a database, nor for an empty directory. So the first thing made in the
//! directory, and durable before anything else, is a marker; the last but one is `CURRENT`, when all else is durable; then
//! the marker goes. A marker without `CURRENT` is an unfinished copy: opening refuses it, and another copy to the same
//! place removes its remains first. A marker beside `CURRENT` means nothing, and an open removes it.

use crate::directory::{DirFs, MadeDirs};
use kingtide_base::hash::Hasher64;
use kingtide_base::memory::zeroed;
use kingtide_base::names::{COPY_MARKER as MARKER, CURRENT, CURRENT_TMP, FileName, LOCK_FILE};
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_versions::unfinished_copy;
use kingtide_vfs::{Fs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;

/// A directory in which a copy is being made. Dropped unfinished, it removes what was made.
pub(crate) struct Target {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    finished: bool,
    /// With the lock.
    made: MadeDirs,
}

impl Target {
    /// Takes a directory, which must be empty, absent, or hold the remains of an unfinished copy.
    ///
    /// # Errors
    /// `Exists` for a directory with anything else in it; `Locked` when it is in use; `Io`, `NoSpace`.
    pub fn begin(fs: &DirFs, dir: &Path) -> Result<Target> {
        let names = match fs.list(dir) {
            Ok(names) => names,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        refuse_content(dir, &names)?; // before even the lock's file is made
        let mut made = MadeDirs::make(fs, dir)?;
        made.lock(&dir.join(LOCK_FILE))?;
        let names = fs.list(dir)?;
        refuse_content(dir, &names)?;
        let fs: Arc<dyn Fs> = Arc::new(fs.relying_on(dir)?);
        let target = Target { fs: fs.clone(), dir: dir.to_owned(), finished: false, made };
        if names.iter().any(|n| n == MARKER) {
            target.clear()?;
        }
        fs.open(&dir.join(MARKER), OpenMode::Overwrite)?.sync_data()?;
        fs.sync_dir(dir)?;
        Ok(target)
    }

    /// The file system to make the copy with, so that a failed sync of its directory is noticed.
    pub fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// The copy is complete, `CURRENT` durable. A marker that cannot be removed means nothing beside it.
    pub fn finish(mut self) {
        self.finished = true;
        self.made.keep();
        let _ = self.fs.remove(&self.dir.join(MARKER));
        let _ = self.fs.sync_dir(&self.dir);
    }

    /// Removes everything that copies make, `CURRENT` before what it names.
    fn clear(&self) -> Result<()> {
        let names = self.fs.list(&self.dir)?;
        for name in names.iter().filter(|n| *n == CURRENT).chain(names.iter().filter(|n| is_ours(n))) {
            match self.fs.remove(&self.dir.join(name)) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        self.fs.sync_dir(&self.dir)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.finished && self.clear().is_ok() {
            // What stays is found by the next copy to this place.
            let _ = self.fs.remove(&self.dir.join(MARKER));
            self.made.own(&self.dir.join(LOCK_FILE));
        }
    }
}

/// Whether a copy makes files of that name, the marker and the lock aside.
fn is_ours(name: &str) -> bool {
    let others =
        |of: FileName| matches!(of, FileName::Lock | FileName::InfoLog | FileName::Stats | FileName::Temporary);
    name == CURRENT_TMP || FileName::parse(name).is_some_and(|of| !others(of))
}

fn refuse_content(dir: &Path, names: &[String]) -> Result<()> {
    let has = |name: &str| names.iter().any(|n| n == name);
    let refuse = |text: String| Err(Error::new(ErrorKind::Exists, text).at_path(dir));
    if has(CURRENT) {
        return refuse("a database is there already; a copy goes into an empty or new directory".to_owned());
    }
    let unfinished = has(MARKER);
    let allowed = |n: &str| n == LOCK_FILE || n == MARKER || (unfinished && is_ours(n));
    match names.iter().find(|n| !allowed(n)) {
        Some(n) => refuse(format!("the directory is not empty: it holds '{n}'; a copy goes into an empty or new one")),
        None => Ok(()),
    }
}

/// Refuses to open the remains of a copy that was cut short. To be called for a directory without `CURRENT`.
pub(crate) fn refuse_unfinished(fs: &dyn Fs, dir: &Path) -> Result<()> {
    if !fs.exists(&dir.join(MARKER))? {
        return Ok(());
    }
    Err(unfinished_copy(dir))
}

/// Copies a file to a new one, which is synced; its name is not. `step` is called with each piece read, before it is written,
/// and may stop the copying with an error. Returns size and xxh3-64. What was written stays after an error.
pub(crate) fn copy_file(
    (from_fs, from): (&dyn Fs, &Path),
    (to_fs, to): (&dyn Fs, &Path),
    step: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(u64, u64)> {
    let target = to_fs.open(to, OpenMode::Overwrite)?;
    let sum = read_file(from_fs, from, &mut |bytes, at| {
        step(bytes.len() as u64)?;
        target.write_at(bytes, at)
    })?;
    target.sync_data()?;
    Ok(sum)
}

/// The error of reading a file that the manifest names. If the file is missing, that is damage, and not what the caller asked for.
pub(crate) fn of_named(path: &Path) -> impl Fn(Error) -> Error {
    move |e| match (e.kind(), e.path()) {
        (ErrorKind::NotFound, Some(at)) if at == path => {
            Error::corruption("a file of the database is missing").at_path(path)
        }
        _ => e,
    }
}

/// Reads a file from front to back, piece by piece. Returns its size and xxh3-64.
pub(crate) fn read_file(
    fs: &dyn Fs,
    path: &Path,
    piece: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<(u64, u64)> {
    let file = fs.open(path, OpenMode::Read)?;
    file.advise_sequential();
    let mut buffer = zeroed(CHUNK.min(file.len()?.max(1) as usize), "copying a file")?;
    let (mut at, mut hash) = (0, Hasher64::new());
    loop {
        let n = file.read_full_at(&mut buffer, at)?;
        if n == 0 {
            return Ok((at, hash.finish()));
        }
        hash.update(&buffer[..n]);
        piece(&buffer[..n], at)?;
        at += n as u64;
    }
}
