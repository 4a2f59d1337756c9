//! `--phases`: the benchmarks of RocksDB's `db_bench` by their names, one after another on one store.
//!
//! Names and meanings are those of its `--benchmarks` (RocksDB wiki, "Benchmarking tools"): a `fill` begins with an empty
//! store, everything else works on what is there. N is `--operations`; reads and seeks are `--reads`, N without it. Threads
//! share N here, whereas in db_bench each does all of it.
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
    DeleteMost,
    DeleteRanges,
    ReadCovered,
    RangeRandom,
    FillFamilies,
    ReadFamilies,
    Compact,
    Flush,
}

/// Every phase, its name in flags, and what it does.
pub const PRESETS: [(Preset, &str, &str); 27] = [
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
    (Preset::DeleteMost, "deletemost", "deletes nine tenths of N entries, each once, in random order"),
    (Preset::DeleteRanges, "deleteranges", "deletes 100 ranges, half of all N entries together"),
    (Preset::ReadCovered, "readcovered", "gets random entries among those that deleteranges deletes"),
    (Preset::RangeRandom, "rangerandom", "makes a cursor, seeks to a random key and reads --range-size entries"),
    (
        Preset::FillFamilies,
        "fillfamilies",
        "puts N entries, each once, in random order into --families column families",
    ),
    (Preset::ReadFamilies, "readfamilies", "gets random entries from the column families"),
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
        use Preset::{Fill100K, FillBatch, FillFamilies, FillRandom, FillSeq, FillSync, FillUniqueRandom};
        matches!(self, FillSeq | FillRandom | FillUniqueRandom | FillSync | FillBatch | Fill100K | FillFamilies)
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
    pub fn writes(self) -> bool {
        use Preset::{DeleteMost, DeleteRandom, DeleteRanges, DeleteSeq};
        self.creates() || matches!(self, DeleteSeq | DeleteRandom | DeleteMost | DeleteRanges)
    }

    /// Whether its entries are in column families of their own, or what it does is alike for all of them.
    fn minds_families(self) -> bool {
        matches!(self, Preset::FillFamilies | Preset::ReadFamilies | Preset::Compact | Preset::Flush)
    }
}

/// A list as users write it: names separated by commas.
pub fn parse(text: &str) -> Result<Vec<Preset>> {
    let names = PRESETS.map(|(_, name, _)| name);
    let one = |name: &str| match PRESETS.iter().find(|p| p.1 == name) {
        Some((preset, ..)) => Ok(*preset),
        None if name == "readreverse" => {
            Err(Error::usage("--phases readreverse: cursors of this program only move forwards"))
        }
        None => Err(Error::usage(format!(
            "--phases: no phase '{name}'{} (known: {})",
            nearest(name, &names),
            names.join(", ")
        ))),
    };
    text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(one).collect()
}

/// Refuses phases that would look for entries where the phase before them did not put them.
pub fn check_families(all: &[Preset]) -> Result<()> {
    let mut in_families = false;
    for preset in all {
        if preset.fills() {
            in_families = *preset == Preset::FillFamilies;
        }
        if in_families && !preset.minds_families() || *preset == Preset::ReadFamilies && !in_families {
            let only = "behind fillfamilies there may be readfamilies, and readfamilies only there";
            return Err(Error::usage(format!("--phases {}: {only}", preset.name())));
        }
    }
    Ok(())
}

/// How many ranges [`Preset::DeleteRanges`] deletes of `n` entries.
fn ranges(n: u64) -> u64 {
    (n / 2).clamp(1, 100)
}

/// The part of range `r` of `n` entries that [`Preset::DeleteRanges`] deletes, and where the range ends.
fn deleted(r: u64, n: u64) -> (std::ops::Range<u64>, u64) {
    let at = |r: u64| (u128::from(n) * u128::from(r) / u128::from(ranges(n))) as u64;
    let (start, end) = (at(r), at(r + 1));
    (start..start + (end - start).div_ceil(2), end)
}

/// The entry that is asked for in place of `i`: one that [`Preset::DeleteRanges`] deletes.
fn covered(i: u64, n: u64) -> u64 {
    let mut r = (u128::from(i) * u128::from(ranges(n)) / u128::from(n)) as u64;
    // The division above may be one range short, as the ranges' ends are rounded down.
    while deleted(r, n).1 <= i {
        r += 1;
    }
    let (gone, _) = deleted(r, n);
    gone.start + (i - gone.start) % (gone.end - gone.start)
}

/// The phases for people, one a line.
pub fn help() -> String {
    let lines = PRESETS.iter().map(|(_, name, what)| format!("  {name:<22} {what}"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    format!(
        "Phases, in db_bench's names; the threads share the operations of a phase, whereas in db_bench each performs all of them:\n{lines}"
    )
}
