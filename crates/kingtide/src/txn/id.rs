//! What names a transaction.

/// Names a running or prepared transaction. Never reused while the database is open; 0 is nobody.
pub type TxnId = u64;
