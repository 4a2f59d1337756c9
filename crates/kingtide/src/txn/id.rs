//! What names a transaction.

/// Names a running or prepared transaction. Never reused while the database is open; 0 names none.
pub type TxnId = u64;
