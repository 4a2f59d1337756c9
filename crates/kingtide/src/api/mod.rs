//! What a user of the crate calls: handles that check their arguments and call the operations below.

pub(crate) mod batch;
mod db;
pub(crate) mod family;
mod options;
pub(crate) mod prefix;
mod read_only;
mod snapshots;
pub(crate) mod transaction;

pub use db::Db;
pub use family::ColumnFamily;
