//! What runs came to: a phase, a run, all runs of an engine.

use crate::error::Error;
use crate::measure::Summary;
use crate::process::Usage;
use crate::settle::Costs;
use serde::{Deserialize, Serialize};

/// What became of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TxnCounts {
    /// Transactions committed.
    pub commits: u64,
    /// Attempts that ended by a conflict.
    pub aborts: u64,
    /// Entries that committed transactions wrote, each write counted.
    pub writes: u64,
}

impl TxnCounts {
    /// The share of attempts that ended by a conflict.
    pub fn abort_rate(&self) -> f64 {
        self.aborts as f64 / (self.aborts + self.commits).max(1) as f64
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: &TxnCounts) {
        self.commits += other.commits;
        self.aborts += other.aborts;
        self.writes += other.writes;
    }
}

/// One operation's part of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Phase {
    /// The phase's name, where it is one of [`super::phases`].
    pub name: String,
    /// `LOAD`, `PUT`, `GET`, ...
    pub operation: String,
    /// Entries of a batch.
    pub batch: usize,
    /// Operations done; a batch counts its entries, a range counts one, an iteration counts keys.
    pub ops: u64,
    /// Wall-clock seconds from the first thread's start to the last one's end.
    pub seconds: f64,
    /// Latency of a call: of an operation, of a batch, or of a transaction with its retries.
    pub latency: Summary,
    /// What the phase cost.
    pub usage: Usage,
    /// Nanoseconds of processor time that the threads calling the engine used, together.
    pub callers_cpu_ns: u64,
    /// Answers checked.
    pub verified: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// Gets that found something, where that is not known beforehand.
    pub found: Option<u64>,
    /// What became of its transactions, where it has any.
    pub txn: Option<TxnCounts>,
    /// What its writes cost, and those of the load before it, where that was waited for.
    #[serde(default)]
    pub costs: Option<Costs>,
}

impl Phase {
    /// What distinguishes it from the other phases of a row.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.operation).trim_start().to_owned()
    }

    /// Operations a second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.ops as f64 / self.seconds } else { 0.0 }
    }

    /// Commits a second.
    pub fn commit_rate(&self) -> f64 {
        let commits = self.txn.map_or(0, |t| t.commits);
        if self.seconds > 0.0 { commits as f64 / self.seconds } else { 0.0 }
    }
}

/// One run of one engine, as its child process reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The engine's version.
    pub version: String,
    /// What its acknowledged writes survive.
    pub durability: String,
    /// Its options.
    pub options: Vec<(String, String)>,
    /// Its phases, in order.
    pub phases: Vec<Phase>,
    /// What was wrong with the first few wrong answers.
    pub examples: Vec<String>,
    /// Answers that the closing scan checked, and those that were wrong.
    pub final_check: (u64, u64),
    /// Committed read-modify-writes that the closing scan did not find.
    pub lost_updates: u64,
    /// Most resident bytes above what the harness itself held before the engine was opened.
    pub peak_rss: u64,
    /// The same after loading or writing.
    pub loaded_rss: u64,
    /// Most virtual bytes.
    pub peak_vms: u64,
    /// Bytes of the store's files after it was closed.
    pub disk_bytes: u64,
    /// Bytes of keys and values that were written.
    pub user_bytes: u64,
    /// Bytes of keys and values that are live at the end.
    pub live_bytes: u64,
    /// Bytes that the process wrote while the store was open.
    pub written_bytes: u64,
    /// Times the engine said it was busy.
    pub busy: u64,
    /// Seconds to open the empty or existing store.
    pub open_seconds: f64,
    /// Seconds to open it again after it was loaded ([`super::spec::AfterLoad::reopens`]).
    pub reopen_seconds: Option<f64>,
    /// Seconds to close it.
    pub close_seconds: f64,
}

impl Outcome {
    /// For an engine whose answers cannot be right: they are not judged.
    pub fn forget_answers(&mut self) {
        self.examples.clear();
        self.final_check = (0, 0);
        self.lost_updates = 0;
        self.phases.iter_mut().for_each(|p| (p.verified, p.wrong) = (0, 0));
    }

    /// Answers checked, in all phases and in the closing scan.
    pub fn verified(&self) -> u64 {
        self.phases.iter().map(|p| p.verified).sum::<u64>() + self.final_check.0
    }

    /// Wrong answers, in all phases and in the closing scan.
    pub fn wrong(&self) -> u64 {
        self.phases.iter().map(|p| p.wrong).sum::<u64>() + self.final_check.1
    }

    /// Bytes written for each byte of keys and values given.
    pub fn write_amp(&self) -> f64 {
        ratio(self.written_bytes, self.user_bytes)
    }

    /// Bytes on disk for each live byte.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes, self.live_bytes)
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// All runs of one engine.
pub struct Column {
    pub engine: String,
    pub outcomes: Vec<Outcome>,
    /// Why it has none, or no more.
    pub trouble: Option<Error>,
}

/// What the harness itself costs, as seen on the engine that does nothing.
pub struct HarnessCost {
    pub operation: String,
    /// Nanoseconds of processor time for each operation.
    pub ns: f64,
    /// Nanoseconds that a latency is measured too long: its median there.
    pub latency_ns: f64,
}
