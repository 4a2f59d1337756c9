//! Options drawn at random: small everything, so that memtables, tables and log segments come and go all the time.

use kingtide::{Compression, DbOptions, Durability, FamilyOptions, Options, Tuning};
use kingtide_base::rng::Rng;
use std::time::Duration;

fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

const COMPRESSIONS: [Compression; 5] =
    [Compression::None, Compression::Lz4, Compression::Lz4Fast, Compression::Zstd, Compression::Snappy];

/// A durability that a kill takes nothing acknowledged from.
pub fn logged_durability(rng: &mut Rng) -> Durability {
    match rng.below(10) {
        0..6 => Durability::Process,
        6..8 => Durability::Interval(Duration::from_millis(1 + rng.below(200))),
        _ => Durability::Power,
    }
}

pub fn db_options(rng: &mut Rng, durability: Durability) -> DbOptions {
    DbOptions::new()
        .durability(durability)
        .wal_segment_size(pick(rng, &[64 << 10, 64 << 10, 100_000, 256 << 10, 1 << 20]))
        .max_wal_size(pick(rng, &[128 << 10, 300 << 10, 1 << 20, 8 << 20]))
        .memtable_budget(pick(rng, &[0, 1 << 20, 4 << 20, 16 << 20, 16 << 20]))
        .block_cache_size(pick(rng, &[0, 64 << 10, 1 << 20, 8 << 20]))
        .cache_shards(rng.below(4))
        .max_open_files(pick(rng, &[16, 40, 1000]))
        .background_threads(1 + rng.below(3))
        .max_subcompactions(rng.below(4))
        .rate_limit(pick(rng, &[0, 0, 0, 32 << 20]))
        .close_timeout(Duration::from_millis(pick(rng, &[0, 10, 5_000])))
        .lock_timeout(Duration::from_millis(pick(rng, &[20, 200, 1_000])))
        .transaction_memory(pick(rng, &[1 << 20, 1 << 30]))
        .change_retention(pick(rng, &[0, 0, 200 << 10, 2 << 20]))
}

pub fn family_options(rng: &mut Rng) -> FamilyOptions {
    let levels = rng.below(4) as usize;
    // A `ttl` is so long that nothing expires, but entries have the flag.
    FamilyOptions::new()
        .memtable_size(pick(rng, &[64 << 10, 64 << 10, 100_000, 256 << 10]))
        .max_immutable_memtables(1 + rng.below(4))
        .block_size(pick(rng, &[512, 1_000, 4_096, 16_384]))
        .compression(pick(rng, &COMPRESSIONS))
        .compression_per_level((0..levels).map(|_| pick(rng, &COMPRESSIONS)).collect())
        .zstd_level(1 + rng.below(4))
        .zstd_dictionary(pick(rng, &[0, 0, 256, 4_096]))
        .value_threshold(pick(rng, &[0, 64, 300, 512, 4_096]))
        .direct_value_threshold(pick(rng, &[0, 8, 64, 1_000, 32 << 10]))
        .value_chunk_size(pick(rng, &[4_096, 10_000, 262_144]))
        .filter_fp(pick(rng, &[0.0, 0.01, 0.1]))
        .index_sampling(1 + rng.below(6))
        .index_prefix_len(pick(rng, &[0, 0, 4, 12]))
        .target_file_size(pick(rng, &[64 << 10, 64 << 10, 200 << 10]))
        .level_ratio(2 + rng.below(5))
        .l0_trigger(1 + rng.below(5))
        .dividing_offset(1 + rng.below(3))
        .tombstone_density(pick(rng, &[0.05, 0.5, 1.0]))
        .vlog_dead_ratio(pick(rng, &[0.05, 0.3, 1.0]))
        .ttl(pick(rng, &[None, None, None, Some(Duration::from_secs(864_000))]))
        .read_triggered_compaction(rng.one_in(2))
}

/// Options of one open.
pub fn options(rng: &mut Rng, durability: Durability) -> Options {
    let tuning = Tuning::random(rng.next_u64());
    Options::new().db(db_options(rng, durability)).family(family_options(rng)).tuning(tuning)
}

/// The name and a new value of an option that may change while the database is open; of a family, or of the database.
pub fn live_option(rng: &mut Rng, of_family: bool) -> (&'static str, String) {
    let rows = if of_family { FamilyOptions::rows() } else { DbOptions::rows() };
    let live: Vec<&'static str> = rows.iter().filter(|r| r.live && r.name != "durability").map(|r| r.name).collect();
    let name = pick(rng, &live);
    let value = if of_family {
        family_options(rng).get(name)
    } else {
        let durability = Durability::Process;
        db_options(rng, durability).get(name)
    };
    (name, value.unwrap_or_default())
}
