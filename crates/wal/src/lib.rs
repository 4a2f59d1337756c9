//! Kingtide's write-ahead log, which all families of a database share.
//!
//! A record is one batch; the log does not look into it. Records lie back to back in segment files, which are allocated in
//! advance, small at first and larger while the log is written, and reused. Segments form a chain: the header of each names
//! its predecessor and the place where that one's records end. `docs/format/wal.md` holds the byte tables and the rules of
//! recovery.
//!
//! Callers:
//!
//! | where | what |
//! |---|---|
//! | under the commit lock | [`WalWriter::append`]: two small writes, and now and then a swap to a prepared spare |
//! | outside it, committers | [`Wal::sync_to`]: one sync for all that wait together |
//! | the log's background lane | [`Wal::prepare_spare`] |
//! | background jobs | [`Wal::release`], [`Wal::sync_all`] |
//! | at rest | [`Wal::shrink`], then [`WalWriter::shrink`] under the commit lock |
//! | followers, while it is written | [`Tail`] |
//! | opening | [`RecoveredLog::find`] and [`replay`], then [`Wal::open`] with what they found |
//! | repair, and tools | [`salvage`] reads past damage, [`dump_segment`] shows a single segment |
//!
//! Promises: what `sync_to` acknowledged survives a power cut; what `append` acknowledged survives the process; replay
//! yields an exact prefix of what was appended, or says with file and offset that the middle is damaged.
//!
//! The log knows no database: its caller gives it a directory, a clock and a source of numbers ([`WalConfig`]), serializes the
//! calls of [`WalWriter`], and says what it must keep.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

mod config;
#[cfg(test)]
mod crash_tests;
mod dump;
mod durable_names;
mod lifecycle;
mod log;
mod reader;
mod recovered;
mod salvage;
mod scan;
mod segment;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(test)]
mod spare_tests;
mod spares;
mod sync;
#[cfg(test)]
mod sync_tests;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

pub use config::{Lsn, WalConfig};
pub use dump::{SegmentPart, dump_segment};
pub use log::Wal;
pub use reader::{Records, ReplayEnd, ReplayedSegment, TornTail, list_segments, replay, replay_records};
pub use recovered::RecoveredLog;
pub use salvage::{LogGap, SalvagedLog, salvage};
pub use segment::{RECORD_HEADER_LEN, SEGMENT_HEADER_LEN};
pub use sync::SyncFirst;
pub use tail::{Tail, TailItem};
pub use writer::{WalRecord, WalWriter};
