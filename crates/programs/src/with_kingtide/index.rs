//! Users with a secondary index over their addresses, which is always as the users are.

use kingtide::{ColumnFamily, Db, FamilyOptions, Options, Result};
use std::path::Path;

/// The users.
pub struct Users {
    db: Db,
    users: ColumnFamily,
    addresses: ColumnFamily,
}

impl Users {
    /// Opens the users in a directory.
    pub fn open(path: &Path) -> Result<Users> {
        let db = Db::open(path, Options::default())?;
        let users = db.get_or_create_family("users", FamilyOptions::default())?;
        let addresses = db.get_or_create_family("addresses", FamilyOptions::default())?;
        Ok(Users { db, users, addresses })
    }

    /// Stores a user's address; false if it is another user's.
    pub fn save(&self, id: u64, address: &str) -> Result<bool> {
        let id = id.to_be_bytes();
        self.db.transact(|txn| {
            if txn.get(&self.addresses, address.as_bytes())?.is_some_and(|owner| *owner != id) {
                return Ok(false);
            }
            if let Some(old) = txn.get(&self.users, &id)? {
                txn.delete(&self.addresses, &old)?;
            }
            txn.put(&self.users, &id, address.as_bytes())?;
            txn.put(&self.addresses, address.as_bytes(), &id)?;
            Ok(true)
        })
    }

    /// The user with an address.
    pub fn find(&self, address: &str) -> Result<Option<u64>> {
        let id = self.addresses.get(address)?;
        Ok(id.and_then(|id| id.first_chunk().copied()).map(u64::from_be_bytes))
    }
}
