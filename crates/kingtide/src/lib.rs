//! Kingtide: an embeddable, transactional LSM key-value storage engine.

pub mod compact;
pub mod family;
pub mod memtable;
pub mod rangedel;
pub mod read;
pub mod version;
pub mod wal;
