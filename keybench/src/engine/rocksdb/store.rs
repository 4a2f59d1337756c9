//! An open database and what goes with it.

use super::c_api::{Api, Handle};
use super::txn_db::{PlainWrites, TxnDb};
use std::sync::{Mutex, PoisonError};

/// Everything that lives as long as the open database.
pub struct Store {
    pub api: Api,
    pub version: String,
    /// The database, or the part of one with transactions that is without them.
    pub db: Handle,
    pub txns: Option<TxnDb>,
    pub plain: PlainWrites,
    pub family: Handle,
    /// Families beside it, by their numbers.
    pub families: Mutex<Vec<Handle>>,
    pub options: Handle,
    pub cache: Handle,
    pub read_options: Handle,
    pub write_options: Handle,
    pub sync: bool,
    pub shown: Vec<(String, String)>,
}

// SAFETY: a RocksDB database, its options and its cache may be used from any thread at once; they are only freed in
// `drop`, when no other reference is left.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the handles were created in `open`, are destroyed only here, and iterators hold an Arc of the store,
        // so none is left. The database goes before what it refers to.
        unsafe {
            let families = self.families.get_mut().unwrap_or_else(PoisonError::into_inner);
            families.drain(..).for_each(|family| (self.api.column_family_handle_destroy)(family));
            (self.api.column_family_handle_destroy)(self.family);
            match &self.txns {
                Some(txns) => txns.close(),
                None => (self.api.close)(self.db),
            }
            (self.api.readoptions_destroy)(self.read_options);
            (self.api.writeoptions_destroy)(self.write_options);
            (self.api.options_destroy)(self.options);
            (self.api.cache_destroy)(self.cache);
        }
    }
}
