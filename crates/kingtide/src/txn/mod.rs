//! Transactions.
//!
//! A transaction holds its writes back ([`write_set`]) and remembers what it must find unchanged ([`read_set`]), as the
//! table in [`isolation`] says for its level. Its commit is a batch like any other, committed under the commit lock at once
//! and as a whole ([`crate::commit`]), but only
//!
//! * if nothing that it relied on changed since ([`validate`], with the help of [`filter`]), when it is optimistic;
//! * if no other transaction holds a lock ([`kingtide_locks`]) on what it writes. A locking transaction has its own by then.
//!
//! Why that is enough for each level, and which anomalies remain, is in `docs/isolation.md`. [`state`] is what
//! transactions know of one another: which of them run, were aborted, or have expired.

pub(crate) mod bounds;
mod filter;
mod in_doubt;
pub(crate) mod isolation;
pub(crate) mod prepared;
#[cfg(test)]
mod prepared_tests;
pub(crate) mod read_set;
pub(crate) mod recent;
pub(crate) mod state;
mod two_phase;
pub(crate) mod validate;
pub(crate) mod write_set;

#[cfg(all(test, loom))]
pub(crate) use filter::ConflictFilter;
pub(crate) use filter::slot_of;
pub(crate) use in_doubt::{Fates, InDoubt};
pub use isolation::Isolation;
pub use prepared::PreparedInfo;
pub use state::TransactionInfo;
pub(crate) use state::Transactions;
