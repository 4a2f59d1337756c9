//! A store of large values, of which parts are read.

use redb::{Database, Error, ReadableDatabase, TableDefinition};
use std::path::Path;

const BLOBS: TableDefinition<&str, &[u8]> = TableDefinition::new("blobs");

/// The store.
pub struct Blobs(Database);

impl Blobs {
    /// Opens the store in a directory.
    pub fn open(path: &Path) -> Result<Blobs, Error> {
        let db = Database::create(path.join("blobs.redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(BLOBS)?; // a reader would find no table
        txn.commit()?;
        Ok(Blobs(db))
    }

    /// Stores a blob in the place of what had its name.
    pub fn put(&self, name: &str, blob: &[u8]) -> Result<(), Error> {
        let txn = self.0.begin_write()?;
        txn.open_table(BLOBS)?.insert(name, blob)?;
        Ok(txn.commit()?)
    }

    /// Reads from an offset on into a buffer; the number of bytes, less than the buffer's only at the end. The whole blob is
    /// read for it.
    pub fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let blobs = self.0.begin_read()?.open_table(BLOBS)?;
        let Some(blob) = blobs.get(name)? else { return Ok(None) };
        let rest = blob.value().get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(Some(n))
    }
}
