//! Kingtide's sorted tables. A key log holds sorted entries; a value log holds values that are too large to be carried
//! through merges.
//!
//! | module | what it holds |
//! |---|---|
//! | [`block`] | sorted blocks of entries: layout, search, builder |
//! | [`compression`] | the codecs behind one interface |
//! | [`frame`] | how blocks lie in a file: compression byte and checksum |
//! | [`filter`] | the Bloom filter, blocked by cache line |
//! | [`index`] | the resident block index |
//! | `parts`, `partition_reads` | index and filter in partitions, for where those of all tables do not fit into memory |
//! | [`footer`], [`info`], [`tombstones`] | the rest of a key log's tail |
//! | [`writer`], [`reader`], [`iter`] | key logs: writing, point reads, cursors |
//! | [`salvage`] | what verification and repair read, damaged tables too |
//! | [`packed`] | values compressed before they reach a value log |
//! | [`vlog`] | value logs |
//!
//! The formats as a whole are described in `docs/format/klog.md` and `docs/format/vlog.md`.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

pub mod block;
pub mod compression;
mod estimate;
mod expansion;
pub mod filter;
pub mod footer;
pub mod frame;
pub mod index;
pub mod info;
pub mod iter;
mod lz4;
mod lz4_long;
pub mod packed;
mod partition_reads;
mod parts;
mod prefetch;
pub mod reader;
pub mod salvage;
pub mod tombstones;
mod verify;
pub mod vlog;
pub mod writer;

#[cfg(test)]
extern crate self as kingtide_table; // what the tests beside the source call it
#[cfg(test)]
#[path = "../tests/tables/mod.rs"]
mod tables;

pub use compression::Codec;
pub use info::{RangeTombstone, TableInfo, UNSEQUENCED, VlogRef};
pub use iter::{IterOptions, Offered, TableIter};
pub use packed::Packed;
pub use reader::{ReadScratch, Table, TableCaches, TableId, TableValue};
pub use vlog::{ReadAhead, ValuePointer, Vlog, VlogInfo, VlogMark, VlogValue, VlogValueReader, VlogWriter};
pub use writer::{TableOptions, TableWriter};
