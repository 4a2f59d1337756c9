//! Transactions.

mod in_doubt;
mod isolation;
pub(crate) mod prepared;
#[cfg(test)]
mod prepared_tests;

pub(crate) use in_doubt::InDoubt;
pub use isolation::Isolation;
pub use prepared::PreparedInfo;

/// Names a running or prepared transaction. Never reused while the database is open; 0 is nobody.
pub type TxnId = u64;
