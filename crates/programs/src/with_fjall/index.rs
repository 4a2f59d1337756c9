//! Users with a secondary index over their addresses, which is always as the users are.

use fjall::{KeyspaceCreateOptions, PersistMode, Readable, Result, SingleWriterTxDatabase, SingleWriterTxKeyspace};
use std::path::Path;

/// The users.
pub struct Users {
    db: SingleWriterTxDatabase,
    users: SingleWriterTxKeyspace,
    addresses: SingleWriterTxKeyspace,
}

impl Users {
    /// Opens the users in a directory.
    pub fn open(path: &Path) -> Result<Users> {
        let db = SingleWriterTxDatabase::builder(path).open()?;
        let users = db.keyspace("users", KeyspaceCreateOptions::default)?;
        let addresses = db.keyspace("addresses", KeyspaceCreateOptions::default)?;
        Ok(Users { db, users, addresses })
    }

    /// Stores a user's address; false if it is another user's.
    pub fn save(&self, id: u64, address: &str) -> Result<bool> {
        let id = id.to_be_bytes();
        let mut txn = self.db.write_tx().durability(Some(PersistMode::Buffer));
        if txn.get(&self.addresses, address)?.is_some_and(|owner| *owner != id) {
            return Ok(false);
        }
        if let Some(old) = txn.get(&self.users, id)? {
            txn.remove(&self.addresses, old);
        }
        txn.insert(&self.users, id, address);
        txn.insert(&self.addresses, address, id);
        txn.commit()?;
        Ok(true)
    }

    /// The user with an address.
    pub fn find(&self, address: &str) -> Result<Option<u64>> {
        let id = self.addresses.get(address)?;
        Ok(id.and_then(|id| id.first_chunk().copied()).map(u64::from_be_bytes))
    }
}
