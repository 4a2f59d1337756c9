//! Kingtide's pure foundation. Nothing here touches a file or starts a thread by itself.
//!
//! | module | what it holds |
//! |---|---|
//! | [`key`] | entry tags (sequence number + kind), key orders |
//! | [`coding`] | little-endian and varint codecs over byte slices |
//! | [`checksum`] | crc32c, bound to a file id and an offset |
//! | [`FamilyId`], [`TxnId`] | what families and transactions are known by |
//! | [`hash`] | the one 64-bit key hash used by filters and caches |
//! | [`error`] | the one [`Error`] type with file and offset context |
//! | [`options`] | the table of options: names, types, defaults, limits, documentation |
//! | [`stats`], [`mod@histogram`] | the tables of counters, gauges and histograms |
//! | [`perf`], [`mod@slow`] | what a thread's operations touch and wait for; those that took long |
//! | [`events`] | what happens inside of a database, and its listeners |
//! | [`tick`] | the cheap clock of these |
//! | [`clock`], [`rng`] | injected time and randomness |
//! | [`processors`] | how many processors there are |
//! | [`names`] | the names of a database's files |
//! | [`lock`], [`sync`] | locks without poisoning; locks and atomics that tests explore the schedules of |
//! | [`budget`] | exact byte accounting shared by arenas and caches |
//! | [`rare`](mod@rare) | counters of paths that most runs never take |

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

// Before anything else can fail to compile with a message that says less.
#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "Kingtide runs on 64-bit machines only: sequence numbers, file offsets and pointers with counts in them need 64 bits"
);

pub mod budget;
pub mod checksum;
pub mod clock;
pub mod coding;
pub mod error;
pub mod events;
pub mod hash;
pub mod histogram;
mod ids;
pub mod key;
pub mod lock;
pub mod memory;
pub mod names;
pub mod options;
pub mod perf;
mod processors;
pub mod rare;
pub mod rng;
pub mod sample;
pub mod slow;
pub mod stats;
pub mod sync;
pub mod tick;

pub use error::{Error, ErrorGroup, ErrorKind, Result};
pub use ids::{FamilyId, TxnId};
pub use key::{KeyOrder, Kind, SeqNo, Tag};
pub use processors::processors;
