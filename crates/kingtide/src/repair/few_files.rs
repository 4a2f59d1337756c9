//! Reads many files with few of them open.
//!
//! The tables of a family are merged all at once, and their entries may be in as many value logs. A system allows a process 1024 open
//! files, as a rule, and a file that cannot be opened would be taken for lost.

use kingtide_base::sync::Mutex;
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_vfs::{File, Fs, OpenMode};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that are open at a time. Those of a merge are read in turns, one for each run of tables.
const MOST: usize = 64;

/// Opens files for reading, and closes the ones opened earlier when too many are open.
pub(super) struct FewFiles {
    fs: Arc<dyn Fs>,
    open: Mutex<HashMap<PathBuf, Arc<dyn File>>>,
    /// The first error of a file that could not be opened for want of a descriptor: not the file's fault.
    refused: Mutex<Option<Error>>,
}

impl FewFiles {
    pub fn new(fs: Arc<dyn Fs>) -> Arc<FewFiles> {
        Arc::new(FewFiles { fs, open: Mutex::default(), refused: Mutex::default() })
    }

    /// Opens a file that is neither changed nor removed meanwhile.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn open(self: &Arc<Self>, path: &Path) -> Result<Arc<dyn File>> {
        self.file(path)?;
        Ok(Arc::new(Reopened { path: path.to_owned(), among: self.clone() }))
    }

    fn file(&self, path: &Path) -> Result<Arc<dyn File>> {
        let mut open = self.open.lock();
        if let Some(file) = open.get(path) {
            return Ok(file.clone());
        }
        if open.len() >= MOST {
            open.clear();
        }
        let opened = self.fs.open(path, OpenMode::Read).or_else(|e| {
            if !e.is_out_of_descriptors() {
                return Err(e);
            }
            *open = HashMap::new();
            self.fs.open(path, OpenMode::Read)
        });
        let file = opened.map_err(|e| match e.is_out_of_descriptors() {
            true => self.note(e),
            false => e,
        })?;
        open.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    fn note(&self, e: Error) -> Error {
        let same = Error::new(e.kind(), e.to_string());
        self.refused.lock().get_or_insert(e);
        same
    }

    /// Whether every file could be opened as far as that was up to the process. What was not would be taken for lost.
    ///
    /// # Errors
    /// `Io`: the first that could not.
    pub fn check(&self) -> Result<()> {
        self.refused.lock().take().map_or(Ok(()), Err)
    }
}

impl fmt::Debug for FewFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FewFiles({} open)", self.open.lock().len())
    }
}

/// A file that is opened again where it was closed.
#[derive(Debug)]
struct Reopened {
    path: PathBuf,
    among: Arc<FewFiles>,
}

impl Reopened {
    fn only_read<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::ReadOnly, "a repair only reads the damaged database").at_path(&self.path))
    }
}

impl File for Reopened {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.among.file(&self.path)?.read_at(buf, offset)
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        self.only_read()
    }

    fn sync_data(&self) -> Result<()> {
        self.only_read()
    }

    fn sync_all(&self) -> Result<()> {
        self.only_read()
    }

    fn len(&self) -> Result<u64> {
        self.among.file(&self.path)?.len()
    }

    fn truncate(&self, _: u64) -> Result<()> {
        self.only_read()
    }

    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        self.only_read()
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Ok(file) = self.among.file(&self.path) {
            file.prefetch(offset, len);
        }
    }

    fn allows_helpers(&self) -> bool {
        self.among.file(&self.path).is_ok_and(|file| file.allows_helpers())
    }
}
