//! Opens engines by their names. It uses all adapters, which is why it is none of what they use.

#[cfg(feature = "fjall")]
use super::fjall;
#[cfg(feature = "redb")]
use super::redb;
#[cfg(feature = "sqlite")]
use super::sqlite;
use super::{
    Checked, Engine, EngineOptions, canonical_name, kingtide, kingtide_c, lmdb, memory, null, rocksdb, tidesdb,
};
use crate::error::{Error, Result};
use std::path::Path;

/// An engine that a feature of this crate builds in, which this program was built without.
#[cfg(not(all(feature = "fjall", feature = "redb", feature = "sqlite")))]
fn not_built_in<T>(name: &str) -> Result<T> {
    Err(Error::Unavailable(format!(
        "{name} is not built in; `cargo build --release -p keybench --features peers` does it"
    )))
}

/// Checks an option of an engine's own.
pub fn check_option(engine: &str, key: &str, value: &str) -> Result<Checked> {
    match canonical_name(engine)? {
        "kingtide" | "kingtide-c" => kingtide::check_option(key, value),
        "tidesdb" => tidesdb::check_option(key, value),
        "lmdb" => lmdb::check_option(key, value),
        "rocksdb" => Ok(Checked::Known),
        #[cfg(feature = "fjall")]
        "fjall" => fjall::check_option(key, value),
        #[cfg(not(feature = "fjall"))]
        "fjall" => not_built_in("fjall"),
        #[cfg(feature = "redb")]
        "redb" => redb::check_option(key, value),
        #[cfg(not(feature = "redb"))]
        "redb" => not_built_in("redb"),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::check_option(key, value),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => not_built_in("sqlite"),
        other => Err(Error::usage(format!("engine {other} has no options, so '{key}' is unknown"))),
    }
}

/// Opens an engine in `dir`, which exists.
pub fn open(name: &str, dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    match canonical_name(name)? {
        "kingtide" => kingtide::open(dir, options),
        "kingtide-c" => kingtide_c::open(dir, options),
        "rocksdb" => rocksdb::open(dir, options),
        "tidesdb" => tidesdb::open(dir, options),
        "lmdb" => lmdb::open(dir, options),
        #[cfg(feature = "fjall")]
        "fjall" => fjall::open(dir, options),
        #[cfg(not(feature = "fjall"))]
        "fjall" => not_built_in("fjall"),
        #[cfg(feature = "redb")]
        "redb" => redb::open(dir, options),
        #[cfg(not(feature = "redb"))]
        "redb" => not_built_in("redb"),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::open(dir, options),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => not_built_in("sqlite"),
        "memory" => memory::open(options),
        _ => null::open(options),
    }
}
