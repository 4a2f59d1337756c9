//! `--phases`: the benchmarks of RocksDB's `db_bench` by their names, one after another on one store.
//!
//! Names and meanings are those of its `--benchmarks` (RocksDB wiki, "Benchmarking tools"): a `fill` begins with an empty
//! store, everything else works on what is there. N is `--operations`; reads and seeks are `--reads`, N without it. Threads
//! share N here, where in db_bench each does all of it.
//!
//! What is there is known at any time without a copy, as choices can be drawn again from their seeds: so every answer is
//! checked, and how many keys were found is told apart from how many should have been.

mod stage;
#[cfg(test)]
mod tests;
mod work;

pub use stage::run;

use crate::error::{Error, Result};
use kingtide_base::options::nearest;
use serde::{Deserialize, Serialize};

/// A phase. Each is documented by its entry in [`PRESETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Preset {
    FillSeq,
    FillRandom,
    FillUniqueRandom,
    FillSync,
    FillBatch,
    Fill100K,
    Overwrite,
    UpdateRandom,
    ReadSeq,
    ReadRandom,
    ReadMissing,
    ReadHot,
    MultiReadRandom,
    ReadWhileWriting,
    ReadRandomWriteRandom,
    SeekRandom,
    SeekRandomWhileWriting,
    DeleteSeq,
    DeleteRandom,
    Compact,
    Flush,
}

/// Every phase, its name in flags, and what it does.
pub const PRESETS: [(Preset, &str, &str); 21] = [
    (Preset::FillSeq, "fillseq", "puts N entries in key order"),
    (Preset::FillRandom, "fillrandom", "puts N times an entry drawn from N, so that many are put twice and many never"),
    (Preset::FillUniqueRandom, "filluniquerandom", "puts N entries, each once, in random order"),
    (Preset::FillSync, "fillsync", "puts N/1000 random entries, each fsynced"),
    (Preset::FillBatch, "fillbatch", "puts N entries in key order in batches of 1000"),
    (Preset::Fill100K, "fill100K", "puts N/1000 random entries with values of 100,000 bytes"),
    (Preset::Overwrite, "overwrite", "puts N random entries into the store that is there"),
    (Preset::UpdateRandom, "updaterandom", "gets an entry and puts it, N times"),
    (Preset::ReadSeq, "readseq", "walks all entries in key order"),
    (Preset::ReadRandom, "readrandom", "gets random entries"),
    (Preset::ReadMissing, "readmissing", "gets keys that lie between those that were ever put"),
    (Preset::ReadHot, "readhot", "gets random entries of the first hundredth of all"),
    (Preset::MultiReadRandom, "multireadrandom", "gets random entries, --batch-size in one call"),
    (Preset::ReadWhileWriting, "readwhilewriting", "gets random entries while one more thread puts them"),
    (Preset::ReadRandomWriteRandom, "readrandomwriterandom", "nine gets of random entries for each put"),
    (Preset::SeekRandom, "seekrandom", "makes a cursor and seeks to a random key"),
    (Preset::SeekRandomWhileWriting, "seekrandomwhilewriting", "the same while one more thread puts entries"),
    (Preset::DeleteSeq, "deleteseq", "deletes N entries in key order"),
    (Preset::DeleteRandom, "deleterandom", "deletes N random entries"),
    (Preset::Compact, "compact", "compacts everything"),
    (Preset::Flush, "flush", "writes memtables out"),
];

/// Entries of one of [`Preset::FillBatch`]'s batches.
const FILL_BATCH: usize = 1000;
/// Bytes of a value of [`Preset::Fill100K`].
const BIG_VALUE: usize = 100_000;
/// Of a hundred operations of [`Preset::ReadRandomWriteRandom`], those that are gets.
const GETS_PERCENT: u64 = 90;

impl Preset {
    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        PRESETS.iter().find(|(p, ..)| *p == self).map_or("", |(_, name, _)| name)
    }

    /// Whether it begins with an empty store.
    pub fn fills(self) -> bool {
        use Preset::{Fill100K, FillBatch, FillRandom, FillSeq, FillSync, FillUniqueRandom};
        matches!(self, FillSeq | FillRandom | FillUniqueRandom | FillSync | FillBatch | Fill100K)
    }

    /// Whether one thread more puts entries meanwhile.
    fn has_writer(self) -> bool {
        matches!(self, Preset::ReadWhileWriting | Preset::SeekRandomWhileWriting)
    }

    /// Whether entries may come to be while it runs.
    fn creates(self) -> bool {
        self.has_writer()
            || self.fills()
            || matches!(self, Preset::Overwrite | Preset::UpdateRandom | Preset::ReadRandomWriteRandom)
    }

    /// Whether it writes at all, so that it matters whether writes are fsynced.
    fn writes(self) -> bool {
        self.creates() || matches!(self, Preset::DeleteSeq | Preset::DeleteRandom)
    }
}

/// A list as users write it: names separated by commas.
pub fn parse(text: &str) -> Result<Vec<Preset>> {
    let names = PRESETS.map(|(_, name, _)| name);
    let one = |name: &str| match PRESETS.iter().find(|p| p.1 == name) {
        Some((preset, ..)) => Ok(*preset),
        None if name == "readreverse" => {
            Err(Error::usage("--phases readreverse: cursors of this program walk forwards only"))
        }
        None => Err(Error::usage(format!(
            "--phases: no phase '{name}'{} (known: {})",
            nearest(name, &names),
            names.join(", ")
        ))),
    };
    text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(one).collect()
}

/// The phases for people, one a line.
pub fn help() -> String {
    let lines = PRESETS.iter().map(|(_, name, what)| format!("  {name:<22} {what}"));
    format!("Phases, in db_bench's names:\n{}", lines.collect::<Vec<_>>().join("\n"))
}
