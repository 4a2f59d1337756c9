//! A store of large values, of which parts are read.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, Result};
use std::path::Path;

/// The store.
pub struct Blobs {
    _db: Database,
    blobs: Keyspace,
}

impl Blobs {
    /// Opens the store in a directory.
    pub fn open(path: &Path) -> Result<Blobs> {
        let db = Database::builder(path).open()?;
        let separated = || KeyspaceCreateOptions::default().with_kv_separation(Some(KvSeparationOptions::default()));
        let blobs = db.keyspace("blobs", separated)?;
        Ok(Blobs { _db: db, blobs })
    }

    /// Stores a blob in the place of what had its name.
    pub fn put(&self, name: &str, blob: &[u8]) -> Result<()> {
        self.blobs.insert(name, blob)
    }

    /// Reads from an offset on into a buffer; the number of bytes, less than the buffer's only at the end. The whole blob is
    /// read for it.
    pub fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<Option<usize>> {
        let Some(blob) = self.blobs.get(name)? else { return Ok(None) };
        let rest = blob.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(Some(n))
    }
}
