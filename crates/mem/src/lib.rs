//! The unsafe code of Kingtide: memory that is shared without locks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`allocator`] | what the C library keeps of freed memory |
//! | [`arena`] | chunks of memory for memtables, recycled and charged to a budget |
//! | [`memtable`] | the ordered in-memory index: a B+tree over key heads |
//! | [`fair`] | the lock of commits, for which no thread waits much longer than others |
//! | [`cache`] | the block cache and the counted blocks that it hands out |
//! | [`zeroed`](mod@zeroed) | zero bytes that the system makes |
//! | `sync` | atomics, which loom replaces in its tests |

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

pub mod allocator;
pub mod arena;
pub mod cache;
pub mod fair;
pub mod memtable;
mod sync;
pub mod zeroed;

pub use arena::{ArenaPool, NoRoom};
pub use cache::{Block, BlockCache};
pub use memtable::{MemIter, MemRange, MemWriter, Memtable};
