//! The option sets that the model runs under, by name.

use kingtide::{CustomOrder, KeyOrder, Options};
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

/// One way to run the model.
pub struct Set {
    pub name: &'static str,
    /// Background jobs on the test's own thread at random points: the run is a function of the seed.
    pub manual: bool,
    pub disk: Disk,
    /// Orders that families get by turns; the first is the default family's.
    pub orders: Vec<KeyOrder>,
    /// `option=value`, on top of the small sizes that all sets have.
    pub options: &'static str,
    /// Distinct keys a family.
    pub keys: u64,
    /// Upper size of the usual value.
    pub value: u64,
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

impl Set {
    /// The options to open with, without file system and clock.
    pub fn open_options(&self) -> Options {
        let mut options = Options { order: self.orders[0].clone(), manual_jobs: self.manual, ..Options::default() };
        options.custom_orders = vec![Arc::new(ShortLex), Arc::new(Headless)];
        for text in SMALL.split_whitespace().chain(self.options.split_whitespace()) {
            let (name, value) = text.split_once('=').expect("name=value");
            options.set(name, value).unwrap_or_else(|e| panic!("set {}: {e}", self.name));
        }
        options
    }
}

/// Every set.
pub fn all() -> Vec<Set> {
    use KeyOrder::{Bytewise, CaseInsensitive, Custom, I64, Reverse, U64};
    let manual = |name, options| Set {
        name,
        manual: true,
        disk: Disk::Memory,
        orders: vec![Bytewise],
        options,
        keys: 2000,
        value: 60,
    };
    let threads = |name, options| Set { manual: false, ..manual(name, options) };
    let posix = |name, options| Set { disk: Disk::Posix, ..threads(name, options) };
    let ordered = |set: Set, orders: &[KeyOrder]| Set { orders: orders.to_vec(), ..set };
    vec![
        manual("plain", ""),
        ordered(manual("reverse", ""), &[Reverse, Bytewise]),
        ordered(manual("numbers", "index_prefix_len=2 filter_fp=0.2"), &[U64, I64]),
        ordered(manual("signed-numbers", "value_threshold=0 compression=none"), &[I64, U64, Reverse]),
        ordered(manual("case-insensitive", "compression=snappy"), &[CaseInsensitive]),
        ordered(manual("custom-order", "value_threshold=64"), &[Custom(Arc::new(ShortLex)), Bytewise]),
        ordered(manual("custom-order-without-head", "index_sampling=4"), &[Custom(Arc::new(Headless)), U64]),
        manual("tiny-memtables", "memtable_size=65536 max_immutable_memtables=1 memtable_budget=0 value_threshold=512"),
        manual("tiny-blocks", "block_size=512 index_sampling=4 index_prefix_len=2 compression=lz4-fast"),
        manual("huge-blocks", "block_size=262144 compression=zstd value_threshold=0"),
        Set { value: 200, ..manual("every-value-in-a-log", "value_threshold=1 vlog_dead_ratio=0.05 compression=none") },
        Set { value: 300, ..manual("large-values", "value_threshold=64 vlog_dead_ratio=0.1 value_chunk_size=4096") },
        Set { keys: 300, value: 4000, ..manual("packed-values", "vlog_dead_ratio=0.1 value_chunk_size=4096") },
        manual("no-filter-no-cache", "filter_fp=0 block_cache_size=0 max_open_files=16"),
        manual("eager-merges", "l0_trigger=1 level_ratio=2 tombstone_density=0.05 dividing_offset=2"),
        manual("lazy-merges", "l0_trigger=8 level_ratio=10 tombstone_density=1.0 read_triggered_compaction=false"),
        Set { keys: 60, ..manual("few-keys", "l0_trigger=1 tombstone_density=0.1 value_threshold=20") },
        Set { keys: 20_000, ..manual("many-keys", "compression_per_level=none:snappy:zstd level_ratio=2") },
        manual("everything-expires", "ttl_ms=3000 l0_trigger=1"),
        threads("threads", "background_threads=3"),
        ordered(
            threads(
                "threads-tiny-everything",
                "max_open_files=16 block_cache_size=4096 memtable_budget=0 block_size=512",
            ),
            &[Bytewise, CaseInsensitive, I64],
        ),
        threads("threads-value-logs", "value_threshold=1 vlog_dead_ratio=0.05 max_subcompactions=4 l0_trigger=1"),
        posix("files", ""),
        ordered(posix("files-value-logs", "value_threshold=32 compression=zstd max_open_files=16"), &[Reverse, U64]),
        Set { manual: true, ..posix("files-manual", "durability=interval:300 index_prefix_len=2") },
    ]
}
