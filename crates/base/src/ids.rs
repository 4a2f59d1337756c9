//! What column families and transactions are known by.

/// Identifies a column family for the life of a database; never reused.
pub type FamilyId = u32;

/// Identifies a running or prepared transaction. Never reused while the database is open; 0 is no transaction.
pub type TxnId = u64;
