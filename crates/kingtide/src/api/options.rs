//! Options as a database has stored them, and ranges of reads.

use crate::api::range::{KeyRange, owned_bounds};
use crate::options::{Options, ReadOptions};
use crate::recover::{StoredOptions, stored_options};
use kingtide_base::{Error, ErrorKind, Result};
use kingtide_vfs::SystemFs;
use std::path::Path;

impl Options {
    /// Returns the same options, but with the stored options and key order of the default family of the database in `path`: those of
    /// the last open for writing, and later changes. A custom key order is taken from `custom_orders`. Of the options of
    /// the database, in `db`, only `change_retention` is stored, by the first commit of an open and by `Db::set_option`: a tool
    /// that opens the database for a moment must not shorten a change stream that it does not know of. It stays as given
    /// if the database has none stored, as with builds before 2026-11-23.
    ///
    /// Reads the manifest and changes nothing: O(size of the manifest). Another process that has the database open may
    /// change the options afterwards.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// let fs = MemFs::shared();
    /// let small = Options::new().fs(fs.clone()).memtable_size(1 << 20);
    /// Db::open("db", small)?.close()?;
    /// let stored = Options::new().fs(fs).load("db")?;
    /// assert_eq!(stored.family.memtable_size, 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no database, `Incompatible` if the key order is not among those given, `Corruption`,
    /// `NewerFormat`, `Io`.
    pub fn load(mut self, path: impl AsRef<Path>) -> Result<Options> {
        let path = path.as_ref();
        let fs = self.fs.clone().unwrap_or_else(SystemFs::shared);
        let Some(StoredOptions { order, family, change_retention }) = stored_options(&fs, path)? else {
            return Err(Error::new(ErrorKind::NotFound, "no database here (no CURRENT file)").at_path(path));
        };
        let Some(resolved) = self.key_orders().named(&order) else {
            let text = format!("the default family is ordered by '{order}', which is not among `custom_orders`");
            return Err(Error::new(ErrorKind::Incompatible, text).at_path(path));
        };
        (self.order, self.family) = (resolved, family);
        if let Some(bytes) = change_retention {
            self.db.change_retention = bytes;
        }
        Ok(self)
    }
}

impl ReadOptions<'_> {
    /// Shows only keys of this range. Copies its bounds.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::ReadOptions;
    ///
    /// db.put("ebb", "low")?;
    /// db.put("flood", "high")?;
    /// let mut cursor = db.default_family().cursor_with(ReadOptions::new().range("f"..).readahead(true))?;
    /// cursor.seek_to_first();
    /// assert_eq!(cursor.key(), b"flood");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn range(mut self, range: impl KeyRange) -> Self {
        (self.lower, self.upper) = owned_bounds(&range);
        self
    }
}
