//! What a user of the crate calls: handles that check their arguments and call the operations below.

pub(crate) mod batch;
mod db;
mod entries;
pub(crate) mod family;
mod options;
pub(crate) mod prefix;
pub(crate) mod range;
mod read;
mod read_only;
mod snapshots;
pub(crate) mod transaction;
mod typed;
mod value_writer;

pub use db::Db;
pub use entries::{Entries, Entry};
pub use family::ColumnFamily;
pub use range::KeyRange;
pub use read::{Read, SnapshotReader, TransactionReader};
pub(crate) use transaction::Transaction;
pub use typed::{Decode, Encode, TypedEntries, TypedFamily, key_bytes};
pub use value_writer::{StagedValue, ValueWriter};
