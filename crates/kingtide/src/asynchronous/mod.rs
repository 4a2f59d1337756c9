//! A database for tasks of the runtime tokio: the feature `tokio`.
//!
//! It is part of this crate and not one of its own, because it needs four things that no public call offers: a read that
//! says that it would have to read a file (`read/get.rs::get_in_memory`), a commit that says that it would have to wait
//! (`commit/in_task.rs`), a wait for a lock without a thread (the same), and one for the group sync (`waiters.rs`). Without the feature none of this is
//! compiled.

mod commit;
mod db;
mod entries;
mod family;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;

pub use db::AsyncDb;
pub use entries::AsyncEntries;
pub use family::AsyncFamily;
