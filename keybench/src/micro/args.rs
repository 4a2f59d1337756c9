//! The command line of `keybench micro` and what it means.

use super::outcome::Phase;
use super::phases::{self, Preset};
use super::spec::{AfterLoad, Spec, TxnSpec, Workload};
use crate::data::{Keys, Pattern, Values};
use crate::engine;
use crate::error::{Error, Result};
use crate::measure::parse_count;
use crate::options::{EngineChoices, EngineFlags, TxnFlags, size, switch};
use crate::pin::Pin;
use std::path::PathBuf;

/// Native micro-benchmarks: write, read, mixed, delete, seek, range, iterate, and transactions.
#[derive(clap::Args, Debug, Clone)]
#[command(after_long_help = super::phases::help())]
pub struct Args {
    /// Engine, or several separated by commas: kingtide, kingtide-c (its C API), rocksdb, tidesdb, lmdb, memory, null;
    /// with the feature peers also fjall, redb and sqlite
    #[arg(short, long, alias = "engines", alias = "backend", default_value = "kingtide")]
    pub engine: String,
    /// Engines to compare with, separated by commas [default: rocksdb]
    #[arg(short, long, value_name = "ENGINES", num_args = 0..=1, default_missing_value = "rocksdb")]
    pub compare: Option<String>,
    /// Entries of the data set, and operations of the measured phase (K, M and G: thousands, millions, billions)
    #[arg(short, long, default_value = "1M", value_parser = parse_count)]
    pub operations: u64,
    /// Operations of the measured phase, if different from the size of the data set
    #[arg(long, value_parser = parse_count)]
    pub reads: Option<u64>,
    /// Size of a key in bytes, at least 8
    #[arg(short, long, default_value = "16", value_parser = small_size)]
    pub key_size: usize,
    /// Size of a value in bytes, with an optional suffix K or M
    #[arg(short, long, default_value = "100", value_parser = size)]
    pub value_size: u64,
    /// Threads
    #[arg(short, long, default_value_t = 2)]
    pub threads: usize,
    /// Entries per batch; 1 calls the single operation
    #[arg(short, long, default_value = "1", value_parser = small_count)]
    pub batch_size: usize,
    /// Entries per batch while the data set is loaded
    #[arg(long, default_value = "1000", value_parser = small_count)]
    pub load_batch: usize,
    /// Directory of the stores; each engine gets a directory in it
    #[arg(short, long, default_value = "bench-data")]
    pub db_path: PathBuf,
    /// Order of keys
    #[arg(short, long, value_enum, default_value_t = Pattern::Random)]
    pub pattern: Pattern,
    /// The same as --pattern seq
    #[arg(short, long, conflicts_with = "pattern")]
    pub sequential: bool,
    /// The same as --bloom-fp 0
    #[arg(long, conflicts_with = "bloom_fp")]
    pub no_bloom_filters: bool,
    /// Operation to measure
    #[arg(short, long, value_enum, default_value_t = Workload::Write)]
    pub workload: Workload,
    /// Phases in the names of RocksDB's db_bench, separated by commas, one after another on one store, instead of a
    /// workload: fill* begins with an empty store, the others use the existing one. --help lists them
    #[arg(long, value_name = "LIST", conflicts_with = "workload")]
    pub phases: Option<String>,
    /// Entries per range
    #[arg(short = 'R', long, default_value = "100", value_parser = small_count)]
    pub range_size: usize,
    /// Column families of the phases fillfamilies and readfamilies
    #[arg(long, default_value = "10", value_parser = small_count)]
    pub families: usize,
    #[command(flatten)]
    pub txn_flags: TxnFlags,
    /// Operations per transaction [default: 10]
    #[arg(long, value_parser = small_count)]
    pub txn_size: Option<usize>,
    /// Transactions draw keys uniformly from this many entries: the fewer, the more conflicts [default: all]
    #[arg(long, value_parser = parse_count)]
    pub hot_keys: Option<u64>,
    /// Use a plain get in read-modify-writes, even where only a read for update prevents lost updates
    #[arg(long)]
    pub plain_reads: bool,
    #[command(flatten)]
    pub engine_flags: EngineFlags,
    /// Append results to this CSV file
    #[arg(long)]
    pub csv: Option<PathBuf>,
    /// Also write the report to this file
    #[arg(short, long)]
    pub report: Option<PathBuf>,
    /// Name of the test in the CSV file
    #[arg(long)]
    pub test_name: Option<String>,
    /// Fraction of random bytes in a value: 1 is incompressible, 0 compresses to almost nothing
    #[arg(long, default_value_t = 0.5)]
    pub value_entropy: f64,
    /// Use the store that is already in the directory; do not load or remove it
    #[arg(long)]
    pub existing: bool,
    /// Keep the stores afterwards
    #[arg(long)]
    pub keep: bool,
    /// Number of runs of each engine; figures are medians
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
    /// Seed of keys, values and choices
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Step between loading and measuring
    #[arg(long, value_enum, default_value_t = AfterLoad::Nothing)]
    pub after_load: AfterLoad,
    /// Before measuring, write the store's files out and evict them from the page cache (needs no root), so that reads go to the
    /// disk. The engine's own cache stays; with --after-load reopen-settled it is empty too
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub drop_cache: bool,
    /// After writes, flush, wait until compaction is idle, and report the total cost of the writes. On by default for
    /// workloads that write; with --phases, after each phase that writes
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    pub settle: Option<bool>,
    /// Fail if the engines' effective settings differ: compression, cache, memtable, durability, filters, threads
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub equal: bool,
    /// Create a new cursor for each seek and range, instead of one per thread
    #[arg(long)]
    pub fresh_iterator: bool,
    /// Pin each thread to a processor of its own, or in turn to the processors of a list such as 0-3,6-6
    #[arg(long, value_name = "BOOL|LIST", num_args = 0..=1, require_equals = true, default_value_t = Pin::No, default_missing_value = "true")]
    pub pin: Pin,
    /// Run even if there seems to be too little free space for the data set
    #[arg(long)]
    pub ignore_free_space: bool,
    /// Do not scan the entire store after writes and deletes
    #[arg(long)]
    pub skip_final_check: bool,
}

/// A count that fits the machine's words.
fn small_count(text: &str) -> std::result::Result<usize, String> {
    parse_count(text).and_then(|n| usize::try_from(n).map_err(|e| e.to_string()))
}

/// A size that does.
fn small_size(text: &str) -> std::result::Result<usize, String> {
    size(text).and_then(|n| usize::try_from(n).map_err(|e| e.to_string()))
}

/// A checked command line.
pub struct Plan {
    /// Engines in the order of the report.
    pub engines: Vec<String>,
    /// Runs of each.
    pub repeat: usize,
    /// What all runs share; engine, directory and options are filled in for each.
    pub base: Spec,
    /// Directory of the stores.
    pub root: PathBuf,
    /// Whether stores stay.
    pub keep: bool,
    /// Whether it is not checked that they fit.
    pub ignore_free_space: bool,
    /// Whether engines with different settings are an error.
    pub equal: bool,
    /// Name of the test.
    pub test_name: String,
    /// Whether the user gave it.
    pub named: bool,
    /// Options of each engine.
    pub choices: EngineChoices,
}

impl Args {
    /// Checks everything that can be wrong before an engine is started.
    pub fn plan(&self) -> Result<Plan> {
        let mut plain = self.clone();
        if self.sequential {
            plain.pattern = Pattern::Seq;
        }
        if self.no_bloom_filters {
            plain.engine_flags.bloom_fp = 0.0;
        }
        plain.checked()
    }

    fn checked(&self) -> Result<Plan> {
        let mut engines = engine::parse_names(&self.engine)?;
        if let Some(list) = &self.compare {
            for name in engine::parse_names(list)? {
                if !engines.contains(&name) {
                    engines.push(name);
                }
            }
        }
        let range = |name: &str, value: usize, most: usize| match value {
            0 => Err(Error::usage(format!("--{name} 0: use at least 1"))),
            v if v > most => Err(Error::usage(format!("--{name} {v}: use at most {most}"))),
            _ => Ok(()),
        };
        range("threads", self.threads, 1024)?;
        range("batch-size", self.batch_size, 1 << 20)?;
        range("load-batch", self.load_batch, 1 << 20)?;
        range("range-size", self.range_size, 1 << 30)?;
        range("families", self.families, 100_000)?;
        range("repeat", self.repeat, 1000)?;
        range("key-size", self.key_size, 60_000)?;
        if self.value_size > 1 << 32 {
            return Err(Error::usage(format!("--value-size {}: use at most 4G", self.value_size)));
        }
        // Made only to be checked here rather than in a child process.
        Keys::new(self.pattern, self.operations, self.key_size, self.seed)?;
        Values::new(0, self.value_entropy, 0)?;
        let operations = self.reads.unwrap_or(self.operations);
        if operations == 0 {
            return Err(Error::usage("--reads 0: use at least 1"));
        }
        if self.workload == Workload::Delete && operations > self.operations && self.pattern != Pattern::Zipfian {
            return Err(Error::usage("--reads: there are not that many entries to delete"));
        }
        if self.after_load == AfterLoad::ReopenKilled && (!self.workload.loads_first() || self.workload.writes()) {
            return Err(Error::usage("--after-load reopen-killed is only for workloads that read the loaded data"));
        }
        if self.after_load != AfterLoad::Nothing && self.existing && self.workload.loads_first() {
            return Err(Error::usage(
                "--after-load has no effect with --existing, which loads nothing: omit one of them",
            ));
        }
        if self.drop_cache && !self.existing && (!self.workload.loads_first() || self.phases.is_some()) {
            return Err(Error::usage(
                "--drop-cache is for workloads that meet what was loaded before: read, seek, range ...",
            ));
        }
        self.pin.check()?;
        let value_size = self.value_size as usize;
        let txn = self.txn()?;
        let how = self.workload.is_transactional().then_some(txn.how);
        let choices = self.engine_flags.check(&engines, value_size)?.with_transactions(how);
        // Batches of big values are kept to 8 MiB while loading: a batch is one write of the log.
        let load_batch = self.load_batch.min(((8 << 20) / (value_size + self.key_size).max(1)).max(1));
        let base = Spec {
            engine: String::new(),
            dir: PathBuf::new(),
            workload: self.workload,
            pattern: self.pattern,
            entries: self.operations,
            operations,
            key_size: self.key_size,
            value_size,
            value_entropy: self.value_entropy,
            threads: self.threads,
            batch: self.batch_size,
            load_batch,
            range_size: self.range_size,
            families: self.families,
            phases: self.phases()?,
            txn,
            pin: self.pin.clone(),
            fresh_iterator: self.fresh_iterator,
            after_load: self.after_load,
            drop_cache: self.drop_cache,
            existing: self.existing,
            settle: self.settle.unwrap_or(self.phases.is_none() && self.workload.writes()),
            killed: false,
            final_check: !self.skip_final_check,
            seed: self.seed,
            options: choices.of(""),
        };
        let default_name = || match base.phases[..] {
            [] => format!("{}_{}", self.workload.name(), self.pattern.name()),
            _ => "phases".into(),
        };
        Ok(Plan {
            engines,
            repeat: self.repeat,
            root: self.db_path.clone(),
            keep: self.keep,
            named: self.test_name.is_some(),
            ignore_free_space: self.ignore_free_space,
            equal: self.equal,
            test_name: self.test_name.clone().unwrap_or_else(default_name),
            base,
            choices,
        })
    }
}

impl Plan {
    /// What is run, as the terminal shows it.
    pub fn doing(&self) -> String {
        match &self.base.phases[..] {
            [] => self.base.workload.name().to_owned(),
            phases => phases.iter().map(|p| p.name()).collect::<Vec<_>>().join(","),
        }
    }

    /// The name of the test that a row of the CSV file is of: a phase's own, behind the user's if there is one.
    pub fn test_name_of(&self, phase: &Phase) -> String {
        match (phase.name.as_str(), self.named) {
            ("", _) => self.test_name.clone(),
            (name, false) => name.to_owned(),
            (name, true) => format!("{}/{name}", self.test_name),
        }
    }
}

impl Args {
    /// Checks the list of phases.
    fn phases(&self) -> Result<Vec<Preset>> {
        let Some(list) = &self.phases else { return Ok(Vec::new()) };
        let all = phases::parse(list)?;
        phases::check_families(&all)?;
        let Some(first) = all.first() else { return Err(Error::usage("--phases: the list is empty")) };
        if !self.existing && !first.fills() {
            let hint = "begin with a phase that fills, or give --existing";
            return Err(Error::usage(format!("--phases: {} finds nothing there: {hint}", first.name())));
        }
        if self.existing && all.iter().any(|p| p.fills()) {
            return Err(Error::usage("--existing: a phase that fills would remove the store"));
        }
        if !matches!(self.pattern, Pattern::Random | Pattern::Uniform | Pattern::Zipfian) {
            return Err(Error::usage("--phases: the phases set the order; --pattern may be random or zipfian"));
        }
        if self.after_load != AfterLoad::Nothing || self.fresh_iterator {
            return Err(Error::usage(
                "--phases: --after-load and --fresh-iterator are for workloads; there is `compact`",
            ));
        }
        Ok(all)
    }

    /// Checks the flags of transactions.
    fn txn(&self) -> Result<TxnSpec> {
        let given = self.txn_flags.given() || self.txn_size.is_some() || self.hot_keys.is_some() || self.plain_reads;
        if given && !self.workload.is_transactional() {
            let flags = "--isolation, --txn-mode, --txn-size, --hot-keys and --plain-reads";
            return Err(Error::usage(format!("{flags} are for txn-write, txn-rmw and txn-mixed")));
        }
        let size = self.txn_size.unwrap_or(10);
        if !(1..=1 << 20).contains(&size) {
            return Err(Error::usage(format!("--txn-size {size}: use 1 to {}", 1 << 20)));
        }
        if let Some(n) = self.hot_keys.filter(|n| !(1..=self.operations).contains(n)) {
            return Err(Error::usage(format!("--hot-keys {n}: use 1 to the {} existing entries", self.operations)));
        }
        let numbered = matches!(self.workload, Workload::TxnRmw | Workload::TxnMixed);
        if numbered && self.value_size < 8 {
            return Err(Error::usage(format!(
                "--value-size {}: values that hold a number need at least 8",
                self.value_size
            )));
        }
        if self.workload == Workload::TxnRmw && self.existing {
            return Err(Error::usage("--existing: txn-rmw needs a store that it loaded itself"));
        }
        if self.plain_reads && self.workload != Workload::TxnRmw {
            return Err(Error::usage("--plain-reads is for txn-rmw; the other workloads already use plain reads"));
        }
        let how = self.txn_flags.transactions();
        Ok(TxnSpec { how, size, hot_keys: self.hot_keys, plain_reads: self.plain_reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Compression;
    use crate::engine::txn::{Isolation, Transactions, TxnMode};
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &str) -> Result<Plan> {
        let all = std::iter::once("micro").chain(words.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| Error::usage(e.to_string()))?.args.plan()
    }

    #[test]
    fn flags_as_users_know_them() {
        let p = plan(
            "-e kingtide -c rocksdb,tidesdb -o 5000 -k 24 -v 4K -t 3 -b 100 -d x -p zipfian -w seek --sync --seed 9",
        )
        .unwrap();
        assert_eq!(p.engines, ["kingtide", "rocksdb", "tidesdb"]);
        assert_eq!((p.base.entries, p.base.operations, p.base.key_size, p.base.value_size), (5000, 5000, 24, 4096));
        assert_eq!((p.base.threads, p.base.batch, p.base.pattern), (3, 100, Pattern::Zipfian));
        assert!(p.base.options.sync && p.repeat == 3 && p.test_name == "seek_zipfian");
        let p = plan("-v 1M --opt kingtide.block_size=8K --opt kingtide.l0_trigger=2").unwrap();
        assert_eq!(p.base.load_batch, 7, "batches of big values are bounded");
        assert_eq!(p.choices.of("kingtide").extra.len(), 2);
        assert!(p.choices.of("rocksdb").extra.is_empty());
    }

    /// Each flag by itself, away from its default, and where it must arrive.
    #[test]
    fn every_flag_arrives() {
        type Arrived = fn(&Plan) -> bool;
        let flags: &[(&str, Arrived)] = &[
            ("-e memory", |p| p.engines == ["memory"]),
            ("--engine lmdb,skiplist", |p| p.engines == ["lmdb", "memory"]),
            ("-c memory", |p| p.engines == ["kingtide", "memory"]),
            ("--compare kingtide,lmdb", |p| p.engines == ["kingtide", "lmdb"]),
            ("-o 77", |p| (p.base.entries, p.base.operations) == (77, 77)),
            ("-o 10K", |p| p.base.entries == 10_000),
            ("-o 2M --reads 3k", |p| (p.base.entries, p.base.operations) == (2_000_000, 3_000)),
            ("--reads 7", |p| (p.base.entries, p.base.operations) == (1_000_000, 7)),
            ("-k 20", |p| p.base.key_size == 20),
            ("-v 3K", |p| p.base.value_size == 3072),
            ("-t 5", |p| p.base.threads == 5),
            ("-b 9", |p| p.base.batch == 9),
            ("--load-batch 9", |p| p.base.load_batch == 9),
            ("-d elsewhere", |p| p.root.as_os_str() == "elsewhere"),
            ("--range-size 3", |p| p.base.range_size == 3),
            ("--sync", |p| p.base.options.sync),
            ("--sync=true", |p| p.base.options.sync),
            ("--memtable-size 8M", |p| p.base.options.memtable_size == Some(8 << 20)),
            ("--block-cache-size 9M", |p| p.base.options.block_cache_size == Some(9 << 20)),
            ("--compression zstd", |p| p.base.options.compression == Compression::Zstd),
            ("--bloom-fp 0.25", |p| p.base.options.bloom_fp == 0.25),
            ("--value-entropy 0.75", |p| p.base.value_entropy == 0.75),
            ("--existing", |p| p.base.existing),
            ("--keep", |p| p.keep),
            ("--repeat 2", |p| p.repeat == 2),
            ("--seed 3", |p| p.base.seed == 3),
            ("--after-load compact", |p| p.base.after_load == AfterLoad::Compact),
            ("--fresh-iterator", |p| p.base.fresh_iterator),
            ("--skip-final-check", |p| !p.base.final_check),
            ("--test-name mine", |p| p.test_name == "mine"),
            ("--opt kingtide.block_size=8K", |p| p.choices.of("kingtide").extra.len() == 1),
            ("--phases fillseq,readseq", |p| p.base.phases == [Preset::FillSeq, Preset::ReadSeq]),
        ];
        for (words, arrived) in flags {
            assert!(!arrived(&plan("").unwrap()), "{words} is the default");
            assert!(arrived(&plan(words).unwrap()), "{words}");
        }
        let parsed = Cli::try_parse_from("micro --csv a.csv --report b.txt".split(' ')).unwrap().args;
        assert_eq!((parsed.csv, parsed.report), (Some("a.csv".into()), Some("b.txt".into())));
        for name in ["seq", "random", "zipfian", "uniform", "timestamp", "reverse"] {
            assert_eq!(plan(&format!("-p {name}")).unwrap().base.pattern.name(), name);
        }
        for name in ["write", "read", "mixed", "delete", "seek", "range", "iterate", "mget", "txn-write", "txn-rmw"] {
            assert_eq!(plan(&format!("-w {name}")).unwrap().base.workload.name(), name);
        }
    }

    #[test]
    fn command_lines_of_benchtool_are_understood() {
        let p = plan("-e tidesdb -c -w read -s -R 1K -M 32M -C 16M -k 16 -b 1K --no-bloom-filters").unwrap();
        assert_eq!(
            (p.engines.join(","), p.base.workload, p.base.pattern),
            ("tidesdb,rocksdb".into(), Workload::Read, Pattern::Seq)
        );
        assert_eq!((p.base.range_size, p.base.batch), (1000, 1000));
        let options = p.choices.of("rocksdb");
        let sizes = (options.memtable_size, options.block_cache_size);
        assert_eq!((sizes, options.bloom_fp), ((Some(32 << 20), Some(16 << 20)), 0.0));
        // In benchtool 0 stands for an engine's own default.
        let own = plan("-e rocksdb -M 0 --block-cache-size=0").unwrap().base.options;
        assert_eq!((own.memtable_size, own.block_cache_size), (None, None));
        assert_eq!(plan("-C none").unwrap().base.options.block_cache_size, Some(0));
        assert_eq!(plan("-c lmdb,memory").unwrap().engines, ["kingtide", "lmdb", "memory"]);
        assert_eq!(plan("--bloom-fpr 0.02").unwrap().choices.of("kingtide").bloom_fp, 0.02);
        let parsed = Cli::try_parse_from("micro -r b.txt --test-name x".split(' ')).unwrap().args;
        assert_eq!(parsed.report, Some("b.txt".into()));
    }

    #[test]
    fn phases_name_their_tests() {
        let phase = Phase { name: "readseq".into(), ..Phase::default() };
        assert_eq!(plan("--phases fillseq,readseq").unwrap().test_name_of(&phase), "readseq");
        assert_eq!(plan("--phases fillseq --test-name x").unwrap().test_name_of(&phase), "x/readseq");
        assert_eq!(plan("-w read").unwrap().test_name_of(&Phase::default()), "read_random");
        plan("--phases readrandom --existing").unwrap();
        plan("-w write --existing --after-load compact").unwrap(); // which writes, so there is something to compact
    }

    #[test]
    fn flags_of_transactions() {
        let p =
            plan("-w txn-rmw --isolation Serializable --txn-mode locking --txn-size 100 --hot-keys 50 -o 500").unwrap();
        let txn = p.base.txn;
        let how = Transactions { isolation: Isolation::Serializable, mode: TxnMode::Locking };
        assert_eq!((txn.how, txn.size, txn.hot_keys, txn.plain_reads), (how, 100, Some(50), false));
        assert_eq!((p.choices.of("rocksdb").transactions, p.test_name.as_str()), (Some(how), "txn-rmw_random"));
        let p = plan("-w txn-write").unwrap();
        assert_eq!((p.base.txn.how.isolation, p.base.txn.how.mode), (Isolation::Snapshot, TxnMode::Optimistic));
        assert_eq!((p.base.txn.size, p.base.txn.hot_keys), (10, None));
        assert_eq!(plan("-w write").unwrap().choices.of("rocksdb").transactions, None, "opened as ever");
    }

    #[test]
    fn mistakes_are_refused_with_a_hint() {
        for (words, hint) in [
            ("-e rockdb", "did you mean 'rocksdb'"),
            ("-c nope", "unknown engine 'nope'"),
            ("-t 0", "--threads 0"),
            ("-b 0", "--batch-size 0"),
            ("-k 4", "at least 8"),
            ("-v 10Q", "suffix 'q'"),
            ("-M none", "--memtable-size"),
            ("-w dance", "invalid value 'dance'"),
            ("-p sideways", "invalid value 'sideways'"),
            ("--value-entropy 2", "between 0 and 1"),
            ("--bloom-fp 1.5", "--bloom-fp"),
            ("--opt block_size=1", "ENGINE.NAME=VALUE"),
            ("--opt rocksdb.x=1", "not among the engines"),
            ("--repeat 0", "--repeat 0"),
            ("-w delete -o 10 --reads 20", "not that many"),
            ("-w txn-rmw --isolation snapshto", "did you mean 'snapshot'"),
            ("-w txn-rmw --isolation serialisable", "did you mean 'serializable'"),
            ("-w txn-rmw --isolation chaos", "known: read-uncommitted, read-committed"),
            ("-w txn-rmw --txn-mode pessimistic", "possible values: optimistic, locking"),
            ("-w txn-rmw --txn-size 0", "--txn-size 0"),
            ("-w txn-rmw --hot-keys 0", "--hot-keys 0"),
            ("-w txn-rmw --hot-keys 11 -o 10", "the 10 existing entries"),
            ("-w txn-rmw -v 7", "need at least 8"),
            ("-w txn-rmw --existing", "--existing"),
            ("-w read --existing --after-load compact", "--after-load has no effect with --existing"),
            ("-w read --existing --after-load reopen-killed", "--after-load has no effect with --existing"),
            ("-w txn-mixed --plain-reads", "--plain-reads"),
            ("--phases fillseq,readsec", "did you mean 'readseq'"),
            ("--phases ,", "the list is empty"),
            ("--phases readseq,fillseq", "begin with a phase that fills"),
            ("--phases readseq,fillseq --existing", "would remove the store"),
            ("--phases fillseq -w read", "cannot be used with"),
            ("--phases fillseq -p reverse", "--pattern may be"),
            ("--phases fillseq --after-load flush", "--after-load"),
            ("-w write --isolation snapshot", "are for txn-write"),
            ("-w read --hot-keys 5", "are for txn-write"),
        ] {
            let e = plan(words).err().unwrap_or_else(|| panic!("{words} was accepted"));
            assert!(e.to_string().contains(hint), "{words}: {e}");
            assert_eq!(e.exit_code(), 2, "{words}");
        }
    }
}
