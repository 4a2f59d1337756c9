//! What each open is given anew: options, and thresholds that make rare paths common. And a key order that panics on
//! demand.

use crate::sim::plan::{Part, Plan};
use kingtide::internal::least_memory_limit;
use kingtide::vfs::Fs;
use kingtide::{Clock, CustomOrder, KeyOrder, Options, Tuning};
use kingtide_base::rng::Rng;
use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::Arc;

/// Values of options that an open may have. Those that the scenario sets itself stay as they are.
const VALUES: [(&str, &str); 25] = [
    ("memtable_size", "65536 131072"),
    ("max_immutable_memtables", "1 2 64"),
    ("max_wal_size", "131072 400000 1M"),
    ("change_retention", "0 200000"),
    ("target_file_size", "65536 200000"),
    ("value_threshold", "0 1 100 5000"),
    ("value_chunk_size", "4096 16384"),
    ("l0_trigger", "1 2 4"),
    ("level_ratio", "2 4"),
    ("dividing_offset", "1 2"),
    ("block_size", "512 1024 4096"),
    ("compression", "none lz4 zstd snappy"),
    ("zstd_level", "1 3"),
    ("zstd_dictionary", "0 256 4096"),
    ("filter_fp", "0 0.01 0.5"),
    ("index_sampling", "1 4"),
    ("index_prefix_len", "0 1 16"),
    ("vlog_dead_ratio", "0.05 0.3 1"),
    ("tombstone_density", "0.1 0.5 1"),
    ("max_open_files", "16 100"),
    ("max_subcompactions", "1 4"),
    ("direct_value_threshold", "0 1 8 40 300"),
    ("block_cache_size", "0 65536 1M"),
    ("cache_shards", "0 1 2 16"),
    ("memory_limit", "0 65536 65536 2M"),
];

/// The scenario's options for a database on that file system, and what `draw` makes of them; with 0 nothing.
pub fn options(plan: &Plan, fs: Arc<dyn Fs>, clock: Arc<dyn Clock>, draw: u64) -> Options {
    let mut options = plan.options().fs(fs).clock(clock);
    if plan.mix.fragile > 0 {
        let order: Arc<dyn CustomOrder> = Arc::new(Fragile);
        (options.order, options.custom_orders) = (KeyOrder::Custom(order.clone()), vec![order]);
    }
    if draw == 0 {
        return options;
    }
    let mut rng = Rng::new(draw);
    if !rng.one_in(4) {
        options.tuning = Tuning::random(rng.next_u64());
    }
    if plan.does(Part::Clone) {
        // Most values that are written in pieces go to value logs there.
        options.tuning.staged_from = options.tuning.staged_from.min(2000);
    }
    let of_plan = |name: &str| plan.options.iter().any(|o| o.0 == name) || plan.live.iter().any(|o| o.0 == name);
    for (name, values) in VALUES {
        let values: Vec<&str> = values.split(' ').collect();
        let value = values[rng.below(values.len() as u64) as usize];
        if rng.one_in(2) && !of_plan(name) {
            options.set(name, value).unwrap_or_else(|e| panic!("{name}={value}: {e}"));
        }
    }
    if plan.live.iter().any(|o| o.0 == "memtable_budget") {
        options.db.memory_limit = 0; // with which not every budget is allowed
    } else if options.db.memory_limit > 0 {
        options.db.memory_limit = options.db.memory_limit.max(least_memory_limit(&options.db, &options.family));
    }
    options
}

/// Bytewise; panics when the fuse has burnt down.
struct Fragile;

impl CustomOrder for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        panic_when_due("compare");
        a.cmp(b)
    }
}

thread_local! {
    /// Chances to panic from now on that are let pass. `None`: all.
    static FUSE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The panics that were injected, by what the job was doing.
pub static PANICS: std::sync::Mutex<std::collections::BTreeMap<String, u64>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

/// Keeps panics that are injected out of the output, where they would hide the others.
pub fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().downcast_ref::<String>().is_some_and(|text| text.starts_with("injected: ")) {
                usual(info);
            }
        }));
    });
}

/// Lets the n-th chance on this thread panic, or none any more.
pub fn set_fuse(n: Option<u64>) {
    FUSE.set(n);
}

/// A chance to panic.
pub fn panic_when_due(doing: &str) {
    match FUSE.get() {
        None => {}
        Some(0) => {
            FUSE.set(None);
            *PANICS.lock().expect("panics").entry(doing.to_owned()).or_default() += 1;
            std::panic::panic_any(format!("injected: {doing}"));
        }
        Some(n) => FUSE.set(Some(n - 1)),
    }
}
