//! A store of large values, of which parts are read.

use kingtide::{Db, Options, Result};
use std::path::Path;

/// The store.
pub struct Blobs(Db);

impl Blobs {
    /// Opens the store in a directory.
    pub fn open(path: &Path) -> Result<Blobs> {
        Ok(Blobs(Db::open(path, Options::default())?))
    }

    /// Stores a blob in the place of what had its name.
    pub fn put(&self, name: &str, blob: &[u8]) -> Result<()> {
        self.0.put(name, blob).map(drop)
    }

    /// Reads from an offset on into a buffer; the number of bytes, less than the buffer's only at the end.
    pub fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<Option<usize>> {
        let reader = self.0.default_family().get_reader(name)?;
        reader.map(|mut reader| reader.read_at(offset, buffer)).transpose()
    }
}
