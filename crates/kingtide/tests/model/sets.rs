//! The option sets that scripts run under: 25 with names, and generated ones over the whole option table.

use kingtide::{CustomOrder, DbOptions, FamilyOptions, KeyOrder, Options, Tuning};
use kingtide_base::hash::hash64;
use kingtide_base::options::OptionRow;
use kingtide_base::rng::Rng;
use std::cmp::Ordering;
use std::sync::Arc;

/// Where the files are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disk {
    /// In memory: the process can be killed.
    Memory,
    /// The machine's file system.
    Posix,
}

/// A key order by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Bytewise,
    Reverse,
    U64,
    I64,
    Caseless,
    ShortLex,
    Headless,
}

impl Order {
    pub fn order(self) -> KeyOrder {
        match self {
            Order::Bytewise => KeyOrder::Bytewise,
            Order::Reverse => KeyOrder::Reverse,
            Order::U64 => KeyOrder::U64,
            Order::I64 => KeyOrder::I64,
            Order::Caseless => KeyOrder::CaseInsensitive,
            Order::ShortLex => KeyOrder::Custom(Arc::new(ShortLex)),
            Order::Headless => KeyOrder::Custom(Arc::new(Headless)),
        }
    }
}

/// What decides a script's answers: all option sets of a class must give the same.
#[derive(Debug)]
pub struct Class {
    pub name: &'static str,
    /// Orders that families get by turns; the first is the default family's.
    pub orders: &'static [Order],
    /// Of the default family.
    pub ttl_ms: u64,
    /// Distinct keys a family.
    pub keys: u64,
    /// Upper size of the usual value.
    pub value: u64,
}

const fn class(name: &'static str, orders: &'static [Order]) -> Class {
    Class { name, orders, ttl_ms: 0, keys: 2000, value: 60 }
}

use Order::{Bytewise, Caseless, I64, Reverse, U64};
pub static CLASSES: [Class; 13] = [
    class("plain", &[Bytewise]),
    class("reverse", &[Reverse, Bytewise]),
    class("numbers", &[U64, I64]),
    class("signed-numbers", &[I64, U64, Reverse]),
    class("case-insensitive", &[Caseless]),
    class("custom-order", &[Order::ShortLex, Bytewise]),
    class("custom-order-without-head", &[Order::Headless, U64]),
    class("mixed-orders", &[Bytewise, Caseless, I64]),
    Class { value: 300, ..class("large-values", &[Bytewise]) },
    Class { keys: 300, value: 4000, ..class("larger-values", &[Bytewise, Reverse]) },
    Class { keys: 60, ..class("few-keys", &[Bytewise]) },
    Class { keys: 20_000, ..class("many-keys", &[Bytewise]) },
    Class { ttl_ms: 3000, ..class("everything-expires", &[Bytewise]) },
];

/// Options, as `name=value` texts.
type Texts = Vec<(String, String)>;

/// One way to run a script.
#[derive(Debug)]
pub struct Set {
    pub name: String,
    pub class: &'static Class,
    /// Background jobs on the test's own thread at random points: the run is a function of the seed.
    pub manual: bool,
    pub disk: Disk,
    /// On top of the small sizes that all sets have: those of the first open and, by turns, of the next ones.
    pub options: [Texts; 2],
}

/// Shorter keys first. Its head is finer than nothing and coarser than the order.
pub struct ShortLex;

impl CustomOrder for ShortLex {
    fn name(&self) -> &str {
        "shortlex"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
    fn head(&self, key: &[u8]) -> u64 {
        (key.len().min(0xffff) as u64) << 16 | u64::from(key.first().copied().unwrap_or(0)) << 8
    }
}

/// The same without a head.
pub struct Headless;

impl CustomOrder for Headless {
    fn name(&self) -> &str {
        "shortlex-headless"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        ShortLex.compare(a, b)
    }
}

/// What every set has unless it says otherwise: sizes at which a short run has many files and levels.
const SMALL: &str = "memtable_size=100000 target_file_size=65536 block_size=1024 wal_segment_size=131072 \
                     max_wal_size=1000000 memtable_budget=4M block_cache_size=1M l0_trigger=2 level_ratio=4 \
                     value_threshold=256 max_open_files=100 background_threads=2";

fn texts(line: &str) -> Texts {
    let pair = |text: &str| text.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()));
    line.split_whitespace().map(|t| pair(t).expect("name=value")).collect()
}

/// All options of the table.
pub fn rows() -> Vec<OptionRow> {
    [DbOptions::rows(), FamilyOptions::rows()].concat()
}

/// Values of an option that runs of this size feel, the odd ones among them; none for what belongs to the class.
pub fn values(name: &str) -> &'static [&'static str] {
    match name {
        "ttl_ms" => &[],
        "create_if_missing" | "error_if_exists" | "read_triggered_compaction" => &["true", "false"],
        "durability" => &["process", "power", "none", "interval:1", "interval:300"],
        "file_mode" => &["0600", "0640", "0666"],
        "wal_segment_size" => &["65536", "131072", "1M"],
        "max_wal_size" => &["131072", "1M", "512M"],
        "memtable_budget" => &["0", "32768", "100000", "300000", "4M"],
        "block_cache_size" => &["0", "4096", "1M", "64M"],
        "cache_shards" => &["0", "1", "3", "64"],
        "max_open_files" => &["16", "100", "1000"],
        "background_threads" => &["0", "1", "3"],
        "max_subcompactions" => &["0", "1", "4", "64"],
        "rate_limit" => &["0", "100M", "1G"],
        "close_timeout_ms" => &["0", "5000"],
        "transaction_timeout_ms" => &["0", "3600000"],
        "transaction_memory" => &["1M", "1G"],
        "lock_timeout_ms" => &["0", "1000"],
        "change_retention" => &["0", "200000", "1G"],
        "histograms" => &["true", "false"],
        "slow_operation_threshold_us" => &["0", "1", "1000000"],
        "stats_interval_ms" => &["0", "100"],
        "log_level" => &["off", "error", "warn", "info", "debug"],
        "log_file_size" => &["4096", "16M"],
        "log_files" => &["1", "4"],
        "memtable_size" => &["65536", "100000", "400000"],
        "family_histograms" => &["0", "1", "16"],
        "max_immutable_memtables" => &["1", "2", "64"],
        "block_size" => &["512", "1024", "4096", "1M"],
        "compression" => &["none", "lz4", "lz4-fast", "zstd", "snappy"],
        "compression_per_level" => &["", "none:snappy:zstd", "zstd", "lz4-fast:none:lz4:snappy"],
        "zstd_level" => &["1", "3", "9"],
        "zstd_dictionary" => &["0", "256", "5000", "262144"],
        "value_threshold" => &["0", "1", "20", "64", "256", "5000", "4294967295"],
        "direct_value_threshold" => &["0", "1", "16", "64", "1000", "32K"],
        "value_chunk_size" => &["4096", "16384", "16M"],
        "filter_fp" => &["0", "0.001", "0.01", "0.5"],
        "index_sampling" => &["1", "2", "4", "64"],
        "index_prefix_len" => &["0", "1", "2", "16", "1024"],
        "target_file_size" => &["65536", "200000", "4294967295"],
        "level_ratio" => &["2", "3", "10", "100"],
        "l0_trigger" => &["1", "2", "4", "16"],
        "dividing_offset" => &["1", "2", "3", "8"],
        "tombstone_density" => &["0.01", "0.1", "0.5", "1"],
        "vlog_dead_ratio" => &["0.01", "0.1", "0.3", "1"],
        other => panic!("the option '{other}' is never varied: give it values here"),
    }
}

/// A value for an option; what would make every commit wait for the disk is left to memory.
pub fn value_for(name: &str, disk: Disk, rng: &mut Rng) -> &'static str {
    let all = values(name);
    match all[rng.below(all.len() as u64) as usize] {
        "power" if disk == Disk::Posix => "process",
        value => value,
    }
}

impl Set {
    /// The options of the `n`th open, without file system and clock.
    pub fn open_options(&self, n: u64) -> Options {
        let order = self.class.orders[0].order();
        let mut options = Options::new().order(order).manual_jobs(self.manual);
        options.custom_orders = vec![Arc::new(ShortLex), Arc::new(Headless)];
        for (name, value) in texts(SMALL).iter().chain(&self.options[n as usize % 2]) {
            options.set(name, value).unwrap_or_else(|e| panic!("set {}: {e}", self.name));
        }
        options.family.set("ttl_ms", &self.class.ttl_ms.to_string()).unwrap();
        // Thresholds that make rare paths common, another draw for each set and each open.
        options.tuning = Tuning::random(hash64(self.name.as_bytes()) ^ n);
        options
    }

    /// A set whose every option is drawn, or left as it is.
    fn generated(n: u64) -> Set {
        let mut rng = Rng::new(0x5e75 ^ n << 32);
        let disk = if n % 8 == 5 { Disk::Posix } else { Disk::Memory };
        let manual = n % 3 != 1;
        let mut options: [Texts; 2] = Default::default();
        let odd = if rng.one_in(3) { 1 } else { 2 };
        for row in rows() {
            if !values(row.name).is_empty() && rng.one_in(odd) {
                let value = value_for(row.name, disk, &mut rng);
                options.iter_mut().for_each(|o| o.push((row.name.to_owned(), value.to_owned())));
            }
        }
        for (name, value) in &mut options[1] {
            if rng.one_in(4) {
                *value = value_for(name, disk, &mut rng).to_owned();
            }
        }
        let class = &CLASSES[n as usize % CLASSES.len()];
        Set { name: format!("generated-{n:03}"), class, manual, disk, options }
    }
}

/// Sets altogether.
pub const SETS: usize = 200;

/// Every set.
pub fn all() -> Vec<Set> {
    let mut sets = named();
    sets.extend((0..(SETS - sets.len()) as u64).map(Set::generated));
    sets
}

fn named() -> Vec<Set> {
    let of = |class: &str| CLASSES.iter().find(|c| c.name == class).expect("a class");
    let manual = |name: &str, class, options| {
        let name = name.to_owned();
        Set { name, class: of(class), manual: true, disk: Disk::Memory, options: [texts(options), texts(options)] }
    };
    let threads = |name, class, options| Set { manual: false, ..manual(name, class, options) };
    let posix = |name, class, options| Set { disk: Disk::Posix, ..threads(name, class, options) };
    vec![
        manual("plain", "plain", ""),
        manual("reverse", "reverse", ""),
        manual("numbers", "numbers", "index_prefix_len=2 filter_fp=0.2"),
        manual("signed-numbers", "signed-numbers", "value_threshold=0 compression=none"),
        manual("case-insensitive", "case-insensitive", "compression=snappy"),
        manual("custom-order", "custom-order", "value_threshold=64"),
        manual("custom-order-without-head", "custom-order-without-head", "index_sampling=4"),
        manual(
            "tiny-memtables",
            "plain",
            "memtable_size=65536 max_immutable_memtables=1 memtable_budget=0 value_threshold=512",
        ),
        manual("tiny-blocks", "plain", "block_size=512 index_sampling=4 index_prefix_len=2 compression=lz4-fast"),
        manual("dictionaries", "many-keys", "compression=zstd zstd_dictionary=2000 block_size=512 value_threshold=0"),
        manual("huge-blocks", "plain", "block_size=262144 compression=zstd value_threshold=0"),
        manual("every-value-in-a-log", "large-values", "value_threshold=1 vlog_dead_ratio=0.05 compression=none"),
        manual("large-values", "large-values", "value_threshold=64 vlog_dead_ratio=0.1 value_chunk_size=4096"),
        manual(
            "values-written-once",
            "large-values",
            "direct_value_threshold=1 value_threshold=1 vlog_dead_ratio=0.05 value_chunk_size=4096",
        ),
        manual("packed-values-written-once", "larger-values", "direct_value_threshold=64 vlog_dead_ratio=0.1"),
        manual("packed-values", "larger-values", "vlog_dead_ratio=0.1 value_chunk_size=4096"),
        manual("no-filter-no-cache", "plain", "filter_fp=0 block_cache_size=0 max_open_files=16"),
        manual("eager-merges", "plain", "l0_trigger=1 level_ratio=2 tombstone_density=0.05 dividing_offset=2"),
        manual(
            "lazy-merges",
            "plain",
            "l0_trigger=8 level_ratio=10 tombstone_density=1.0 read_triggered_compaction=false",
        ),
        manual("few-keys", "few-keys", "l0_trigger=1 tombstone_density=0.1 value_threshold=20"),
        manual("many-keys", "many-keys", "compression_per_level=none:snappy:zstd level_ratio=2"),
        manual("everything-expires", "everything-expires", "l0_trigger=1"),
        threads("threads", "plain", "background_threads=3"),
        threads(
            "threads-tiny-everything",
            "mixed-orders",
            "max_open_files=16 block_cache_size=4096 memtable_budget=0 block_size=512",
        ),
        threads(
            "threads-value-logs",
            "large-values",
            "value_threshold=1 vlog_dead_ratio=0.05 max_subcompactions=4 l0_trigger=1",
        ),
        threads(
            "threads-values-written-once",
            "large-values",
            "direct_value_threshold=8 value_threshold=64 vlog_dead_ratio=0.05 l0_trigger=1",
        ),
        posix("files-values-written-once", "plain", "direct_value_threshold=16"),
        posix("files", "plain", ""),
        posix("files-value-logs", "reverse", "value_threshold=32 compression=zstd max_open_files=16"),
        Set { manual: true, ..posix("files-manual", "plain", "durability=interval:300 index_prefix_len=2") },
    ]
}
