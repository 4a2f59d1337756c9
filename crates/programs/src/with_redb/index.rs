//! Users with a secondary index over their addresses, which is always as the users are.

use redb::{Database, Error, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const USERS: TableDefinition<u64, &str> = TableDefinition::new("users");
const ADDRESSES: TableDefinition<&str, u64> = TableDefinition::new("addresses");

/// The users.
pub struct Users(Database);

impl Users {
    /// Opens the users in a directory.
    pub fn open(path: &Path) -> Result<Users, Error> {
        let db = Database::create(path.join("users.redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(ADDRESSES)?; // a reader would find no table
        txn.commit()?;
        Ok(Users(db))
    }

    /// Stores a user's address; false if it is another user's.
    pub fn save(&self, id: u64, address: &str) -> Result<bool, Error> {
        let txn = self.0.begin_write()?;
        {
            let (mut users, mut addresses) = (txn.open_table(USERS)?, txn.open_table(ADDRESSES)?);
            if addresses.get(address)?.is_some_and(|owner| owner.value() != id) {
                return Ok(false);
            }
            if let Some(old) = users.insert(id, address)? {
                addresses.remove(old.value())?;
            }
            addresses.insert(address, id)?;
        }
        txn.commit()?;
        Ok(true)
    }

    /// The user with an address.
    pub fn find(&self, address: &str) -> Result<Option<u64>, Error> {
        let addresses = self.0.begin_read()?.open_table(ADDRESSES)?;
        Ok(addresses.get(address)?.map(|id| id.value()))
    }
}
