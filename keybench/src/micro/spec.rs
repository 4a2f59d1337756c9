//! What a run is to do, as its child process gets it.

use super::phases::Preset;
use crate::data::Pattern;
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::engine::{self, EngineOptions};
use crate::pin::Pin;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Puts into an empty store; then a scan checks what is there.
    Write,
    /// Gets of loaded keys.
    Read,
    /// As many puts as gets, interleaved; each get asks for a key that the same thread put before.
    Mixed,
    /// Deletes of loaded keys; then a scan checks what is left.
    Delete,
    /// Seeks to loaded keys.
    Seek,
    /// A seek to a loaded key and the entries that follow it.
    Range,
    /// One pass over all loaded keys in order.
    Iterate,
    /// Gets of many loaded keys in one call.
    Mget,
    /// Transactions of puts into an empty store; then a scan checks what is there.
    TxnWrite,
    /// Transactions that get loaded counters and put each back with one added; then a scan counts.
    TxnRmw,
    /// Transactions of as many gets of loaded entries as puts.
    TxnMixed,
}

impl Workload {
    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Write => "write",
            Workload::Read => "read",
            Workload::Mixed => "mixed",
            Workload::Delete => "delete",
            Workload::Seek => "seek",
            Workload::Range => "range",
            Workload::Iterate => "iterate",
            Workload::Mget => "mget",
            Workload::TxnWrite => "txn-write",
            Workload::TxnRmw => "txn-rmw",
            Workload::TxnMixed => "txn-mixed",
        }
    }

    /// Whether the data set is loaded before, in a phase of its own.
    pub fn loads_first(self) -> bool {
        !matches!(self, Workload::Write | Workload::Mixed | Workload::TxnWrite)
    }

    /// Whether it writes, so that it leaves work behind.
    pub fn writes(self) -> bool {
        matches!(self, Workload::Write | Workload::Mixed | Workload::Delete) || self.is_transactional()
    }

    /// Whether it is made of transactions.
    pub fn is_transactional(self) -> bool {
        matches!(self, Workload::TxnWrite | Workload::TxnRmw | Workload::TxnMixed)
    }
}

/// What is done between loading and measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AfterLoad {
    /// Nothing: what the load left behind in memory and in compaction debt is part of the measurement.
    Nothing,
    /// Memtables are flushed.
    Flush,
    /// Everything is compacted.
    Compact,
    /// The store is closed as it is and opened again: an engine that does not flush when it closes replays its log.
    Reopen,
    /// Memtables are flushed and compaction ends before the store is closed and opened again: there is no log to replay.
    ReopenSettled,
    /// The process is killed without closing the store, and another one opens it: every engine replays its log.
    ReopenKilled,
}

impl AfterLoad {
    /// What a time to reopen is of, if it reopens.
    pub fn reopens(self) -> Option<&'static str> {
        match self {
            AfterLoad::Nothing | AfterLoad::Flush | AfterLoad::Compact => None,
            AfterLoad::Reopen => Some("as it was closed"),
            AfterLoad::ReopenSettled => Some("settled: no log to replay"),
            AfterLoad::ReopenKilled => Some("killed: with a log to replay"),
        }
    }
}

/// How transactions are made.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TxnSpec {
    /// Level and mode.
    pub how: Transactions,
    /// Operations of one.
    pub size: usize,
    /// Entries that operations draw from; all without one.
    pub hot_keys: Option<u64>,
    /// Read-modify-writes read with a plain get even where only a read for update keeps their updates.
    pub plain_reads: bool,
}

impl TxnSpec {
    /// Whether read-modify-writes read for update: where the level does not check what was written, and where there are
    /// locks, so that a transaction waits for its turn rather than fail.
    pub fn reads_for_update(&self) -> bool {
        !self.plain_reads && (self.how.mode == TxnMode::Locking || self.how.isolation < Isolation::Snapshot)
    }

    /// Whether what was asked for may lose updates.
    pub fn may_lose_updates(&self) -> bool {
        self.plain_reads && self.how.isolation < Isolation::Snapshot
    }
}

/// One run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Engine's name.
    pub engine: String,
    /// Where its files go.
    pub dir: PathBuf,
    /// What is measured.
    pub workload: Workload,
    /// Order of keys.
    pub pattern: Pattern,
    /// Entries of the data set.
    pub entries: u64,
    /// Operations of the measured phase.
    pub operations: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Fraction of a value's bytes that is random.
    pub value_entropy: f64,
    /// Threads.
    pub threads: usize,
    /// Entries of a batch in the measured phase.
    pub batch: usize,
    /// Entries of a batch while loading.
    pub load_batch: usize,
    /// Entries of a range.
    pub range_size: usize,
    /// Column families of the phases that use them.
    pub families: usize,
    /// What is run instead of the workload, in order.
    pub phases: Vec<Preset>,
    /// Transactions, where the workload is made of them.
    pub txn: TxnSpec,
    /// Where threads run.
    #[serde(default)]
    pub pin: Pin,
    /// Whether a cursor is made anew for each seek and range.
    pub fresh_iterator: bool,
    /// What is done between loading and measuring.
    pub after_load: AfterLoad,
    /// Whether its files are taken from the page cache before what is measured.
    #[serde(default)]
    pub drop_cache: bool,
    /// The store exists and holds the data set.
    pub existing: bool,
    /// Whether the cost of writes is taken again when memtables are flushed and compaction is idle.
    pub settle: bool,
    /// Whether the process ends once the data set is loaded, without closing the store.
    pub killed: bool,
    /// Whether a scan after writes and deletes checks the whole store.
    pub final_check: bool,
    /// Seed of keys, values and choices.
    pub seed: u64,
    /// The engine's options.
    pub options: EngineOptions,
}

impl Spec {
    /// Bytes of keys and values that its data set has.
    pub fn bytes(&self) -> u64 {
        self.entries.saturating_mul((self.key_size + self.value_size) as u64)
    }

    /// Whether what is measured writes.
    pub fn writes(&self) -> bool {
        match self.phases[..] {
            [] => self.workload.writes(),
            _ => self.phases.iter().any(|p| p.writes()),
        }
    }

    /// Whether the cost of writes is taken again when they are settled: where there are files to compact.
    pub fn settles(&self) -> bool {
        self.settle && engine::keeps_files(&self.engine)
    }
}
