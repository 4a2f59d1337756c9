//! Every option by its builder method, each with a value that is not the default where there is a choice: of the database and of a family
//! by itself, and of both together in `Options`, which must come to the same.
//!
//! ```sh
//! cargo run --example options
//! ```

#![allow(clippy::disallowed_methods)] // the directory for temporary files is the machine's

use kingtide::{Compression, Db, DbOptions, Durability, FamilyOptions, FileMode, LogLevel, Options, Result};
use std::time::Duration;

/// A service with a gigabyte of memory that may lose its last moments in a power cut.
fn database() -> Result<DbOptions> {
    let options = DbOptions::new()
        .create_if_missing(true)
        .error_if_exists(true)
        .file_mode(FileMode::new(0o640)?)
        .durability(Durability::Interval(Duration::from_millis(50)))
        .wal_segment_size(4 << 20)
        .max_wal_size(256 << 20)
        .memory_limit(512 << 20)
        .memtable_budget(96 << 20)
        .block_cache_size(128 << 20)
        .cache_shards(4)
        .max_open_files(500)
        .background_threads(2)
        .max_subcompactions(2)
        .rate_limit(200 << 20)
        .close_timeout(Duration::from_secs(2))
        .transaction_timeout(Some(Duration::from_secs(60)))
        .transaction_memory(64 << 20)
        .lock_timeout(Duration::from_millis(200))
        .change_retention(0)
        .histograms(true)
        .family_histograms(8)
        .slow_operation_threshold(Some(Duration::from_millis(100)))
        .stats_interval(Some(Duration::from_secs(1)))
        .log_level(LogLevel::Warn)
        .log_file_size(1 << 20)
        .log_files(2);
    Ok(options)
}

/// Documents that are kept for a day.
fn documents() -> FamilyOptions {
    FamilyOptions::new()
        .memtable_size(32 << 20)
        .max_immutable_memtables(3)
        .block_size(8 << 10)
        .compression(Compression::Zstd)
        .compression_per_level(vec![Compression::None, Compression::Lz4])
        .zstd_level(1)
        .zstd_dictionary(0)
        .value_threshold(1024)
        .direct_value_threshold(32 << 10)
        .value_chunk_size(128 << 10)
        .filter_fp(0.02)
        .index_sampling(2)
        .index_prefix_len(16)
        .target_file_size(8 << 20)
        .level_ratio(8)
        .l0_trigger(6)
        .dividing_offset(2)
        .tombstone_density(0.25)
        .vlog_dead_ratio(0.2)
        .ttl(Some(Duration::from_secs(86_400)))
        .read_triggered_compaction(false)
}

fn all() -> Result<Options> {
    let options = Options::new()
        .create_if_missing(true)
        .error_if_exists(true)
        .file_mode(FileMode::new(0o640)?)
        .durability(Durability::Interval(Duration::from_millis(50)))
        .wal_segment_size(4 << 20)
        .max_wal_size(256 << 20)
        .memory_limit(512 << 20)
        .memtable_budget(96 << 20)
        .block_cache_size(128 << 20)
        .cache_shards(4)
        .max_open_files(500)
        .background_threads(2)
        .max_subcompactions(2)
        .rate_limit(200 << 20)
        .close_timeout(Duration::from_secs(2))
        .transaction_timeout(Some(Duration::from_secs(60)))
        .transaction_memory(64 << 20)
        .lock_timeout(Duration::from_millis(200))
        .change_retention(0)
        .histograms(true)
        .family_histograms(8)
        .slow_operation_threshold(Some(Duration::from_millis(100)))
        .stats_interval(Some(Duration::from_secs(1)))
        .log_level(LogLevel::Warn)
        .log_file_size(1 << 20)
        .log_files(2)
        .memtable_size(32 << 20)
        .max_immutable_memtables(3)
        .block_size(8 << 10)
        .compression(Compression::Zstd)
        .compression_per_level(vec![Compression::None, Compression::Lz4])
        .zstd_level(1)
        .zstd_dictionary(0)
        .value_threshold(1024)
        .direct_value_threshold(32 << 10)
        .value_chunk_size(128 << 10)
        .filter_fp(0.02)
        .index_sampling(2)
        .index_prefix_len(16)
        .target_file_size(8 << 20)
        .level_ratio(8)
        .l0_trigger(6)
        .dividing_offset(2)
        .tombstone_density(0.25)
        .vlog_dead_ratio(0.2)
        .ttl(Some(Duration::from_secs(86_400)))
        .read_triggered_compaction(false);
    Ok(options)
}

fn main() -> Result<()> {
    let options = all()?;
    assert_eq!(options.db, database()?);
    assert_eq!(options.family, documents());
    // What differs from the defaults, as text: as `Options::set`, `kt` and the C API take it.
    let texts = options.db.entries().into_iter().chain(options.family.entries());
    let defaults: Vec<_> = DbOptions::new().entries().into_iter().chain(FamilyOptions::new().entries()).collect();
    let changed: Vec<_> = texts.filter(|option| !defaults.contains(option)).collect();
    changed.iter().for_each(|(name, text)| println!("{name} = {text}"));
    let mut by_name = Options::new();
    changed.iter().try_for_each(|(name, text)| by_name.set(name, text))?;
    assert_eq!((&by_name.db, &by_name.family), (&options.db, &options.family));

    let dir = std::env::temp_dir().join(format!("kingtide-example-options-{}", std::process::id()));
    let db = Db::open(&dir, options)?;
    db.put(b"tide", b"high")?;
    db.close()?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
