//! Kingtide: an embeddable, transactional LSM key-value storage engine.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

pub mod compact;
pub mod family;
pub mod memtable;
pub mod rangedel;
pub mod read;
pub mod version;
pub mod wal;
