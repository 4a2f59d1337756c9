//! Transactions.

mod in_doubt;
mod isolation;
#[allow(dead_code)] // until transactions take locks
mod locks;
pub(crate) mod prepared;
#[cfg(test)]
mod prepared_tests;

pub(crate) use in_doubt::InDoubt;
pub use isolation::Isolation;
pub use locks::{HeldLock, LockMode, LockTarget, LockWait};
pub use prepared::PreparedInfo;

/// Names a running or prepared transaction. Never reused while the database is open; 0 is nobody.
pub type TxnId = u64;
