//! Kingtide: an embeddable, transactional LSM key-value storage engine.
//!
//! Start at [`Db::open`]. A [`Db`] holds column families ([`ColumnFamily`]); a [`WriteBatch`] commits operations over any
//! of them together; a [`Snapshot`] is a consistent view of all of them. [`Read`] says how all of these are read.
//!
//! `ARCHITECTURE.md` in the repository explains how it works; `docs/format` describes every byte on disk.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks and files

mod accountant;
mod admin;
mod api;
#[cfg(feature = "tokio")]
mod asynchronous;
mod background;
pub mod backup;
mod catalog;
mod catch_up;
mod changes;
mod checkpoint;
mod commit;
mod compact;
mod copy;
mod direct;
mod directory;
mod dump;
mod engine;
mod estimate;
mod failures;
mod family;
mod flush;
mod info_log;
mod ingest;
#[doc(hidden)]
pub mod internal;
mod jobs;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod memtable;
mod open;
mod ops;
mod options;
mod rangedel;
mod read;
mod read_only;
mod reclaim;
mod reclaims;
mod recover;
mod repair;
mod report;
mod reserve;
mod retire;
mod rewrite;
mod shadow;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod snapshot;
#[cfg(all(test, not(shuttle)))]
mod snapshot_tests;
mod space;
mod staged;
mod swap;
mod threads;
mod trace;
mod tuning;
mod txn;
mod verify;
#[cfg(feature = "tokio")]
mod waiters;

pub use api::transaction::{
    CommitTicket, TransactOptions, Transaction, TransactionCursor, TransactionHandle, TransactionOptions,
};
pub use api::{
    ColumnFamily, Db, Decode, Encode, Entries, Entry, KeyRange, Read, SnapshotReader, StagedValue, TransactionReader,
    TypedEntries, TypedFamily, ValueWriter, key_bytes,
};
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncDb, AsyncEntries, AsyncFamily};
pub use changes::{ChangeRecord, ChangeStream, ChangeStreamOptions};
pub use checkpoint::CheckpointInfo;
pub use commit::batch::{MAX_BATCH_BYTES, WriteBatch};
pub use commit::hook::{CommitHook, CommittedWrites};
pub use estimate::{Cardinality, RangeCount, RangeStats};
pub use ingest::{ExportInfo, IngestOptions, SortedFile, SortedFileWriter};
pub use kingtide_base::clock::{Clock, ManualClock, SystemClock};
pub use kingtide_base::events::{CompactionInfo, Event, EventListener, FlushInfo, LogLevel, RecoveryInfo, StallReason};
pub use kingtide_base::histogram::{Histogram, HistogramSnapshot};
pub use kingtide_base::key::CustomOrder;
pub use kingtide_base::options::{Compression, DbOptions, Durability, FamilyOptions, FileMode, OptionRow};
pub use kingtide_base::perf;
pub use kingtide_base::slow::{SlowOperation, Subject};
pub use kingtide_base::{Error, ErrorGroup, ErrorKind, KeyOrder, Result, SeqNo, TxnId};
pub use kingtide_locks::{DeadlockStep, HeldLock, LockMode, LockTarget, LockWait, LockWaitHook};
pub use kingtide_vfs as vfs;
pub use ops::{Change, ChangeKind};
pub use options::{Options, ReadOptions, WriteOptions};
pub use read::{Cursor, PinnedValue, ValueReader};
pub use repair::{FamilyRepair, KeyGap, LogGap, RepairOptions, RepairReport, UnreadableFile, repair, repair_with};
pub use report::{FamilyReport, LevelReport, StatsReport};
pub use snapshot::Snapshot;
#[doc(hidden)]
pub use tuning::Tuning;
pub use txn::{Isolation, PreparedInfo, TransactionInfo};
pub use verify::{
    MAX_PROBLEMS, Problem, ProblemKind, Progress, ProgressFn, Severity, VerifyCounts, VerifyReport, verify, verify_with,
};
