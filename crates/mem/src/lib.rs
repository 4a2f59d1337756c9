//! Kingtide's unsafe room: memory that is shared without locks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`arena`] | chunks of memory for memtables, recycled and charged to a budget |
//! | [`memtable`] | the ordered in-memory index: a B+tree over key heads |

pub mod arena;
pub mod memtable;

pub use arena::ArenaPool;
pub use memtable::{MemIter, MemWriter, Memtable};
