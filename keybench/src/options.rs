//! Flags that all commands share: what every engine of a comparison is given alike, and what one of them is given on top.

use crate::engine::txn::{Isolation, Transactions, TxnMode, isolation};
use crate::engine::{self, Compression, EngineOptions};
use crate::error::{Error, Result};
use kingtide_base::options::{OptionValue, parse_size};

/// Engine flags.
#[derive(clap::Args, Debug, Clone)]
pub struct EngineFlags {
    /// Fsync every write before it is acknowledged
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", value_parser = switch)]
    pub sync: bool,
    /// Size of a memtable in bytes; 0 for each engine's own default
    #[arg(short = 'M', long, default_value = "64M", value_parser = memtable_size)]
    pub memtable_size: SharedSize,
    /// Size of the block cache in bytes; 0 for each engine's own default, `none` for no cache
    #[arg(short = 'C', long, default_value = "64M", value_parser = cache_size)]
    pub block_cache_size: SharedSize,
    /// Compression of blocks
    #[arg(long, value_enum, default_value_t = Compression::Lz4)]
    pub compression: Compression,
    /// False-positive rate of the filters; 0 for none
    #[arg(long, alias = "bloom-fpr", default_value_t = 0.01, value_parser = bloom_fp)]
    pub bloom_fp: f64,
    /// Option of one engine, as engine.name=value; may be repeated
    #[arg(long = "opt", value_name = "ENGINE.NAME=VALUE")]
    pub opts: Vec<String>,
}

/// Kind of the transactions that a workload makes, if any.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct TxnFlags {
    /// Isolation level of transactions: read-uncommitted, read-committed, repeatable-read, snapshot or serializable
    /// [default: snapshot]
    #[arg(long, value_name = "LEVEL", value_parser = isolation)]
    pub isolation: Option<Isolation>,
    /// Whether transactions detect conflicts at their commit, or lock the keys that they use [default: optimistic]
    #[arg(long, value_enum)]
    pub txn_mode: Option<TxnMode>,
}

impl TxnFlags {
    /// The flags with their defaults.
    pub fn transactions(&self) -> Transactions {
        let mode = self.txn_mode.unwrap_or(TxnMode::Optimistic);
        Transactions { isolation: self.isolation.unwrap_or(Isolation::Snapshot), mode }
    }

    /// Whether the user gave one.
    pub fn given(&self) -> bool {
        self.isolation.is_some() || self.txn_mode.is_some()
    }
}

/// A size with an optional K, M, G or T, for clap.
pub fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size(text)
}

/// A size that all engines are given; without one each has its own default, for which people write 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSize(pub Option<u64>);

/// As the flags understand it.
impl std::fmt::Display for SharedSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str("0"),
            Some(0) => f.write_str("none"),
            Some(n) => n.fmt(f),
        }
    }
}

fn memtable_size(text: &str) -> std::result::Result<SharedSize, String> {
    parse_size(text).map(|n| SharedSize(Some(n).filter(|n| *n > 0)))
}

fn cache_size(text: &str) -> std::result::Result<SharedSize, String> {
    if text.trim() == "none" { Ok(SharedSize(Some(0))) } else { memtable_size(text) }
}

fn bloom_fp(text: &str) -> std::result::Result<f64, String> {
    within(text, 0.0, 0.999_999)
}

/// A number between two others, for clap.
pub fn within<T>(text: &str, least: T, most: T) -> std::result::Result<T, String>
where
    T: std::str::FromStr<Err: std::fmt::Display> + PartialOrd + std::fmt::Display + Copy,
{
    let n: T = text.trim().parse().map_err(|e: T::Err| e.to_string())?;
    if (least..=most).contains(&n) { Ok(n) } else { Err(format!("use {least} to {most}")) }
}

/// On or off, for clap's flags that need no value.
pub fn switch(text: &str) -> std::result::Result<bool, String> {
    bool::parse_value(text)
}

/// Engine flags that were checked.
#[derive(Clone, Debug)]
pub struct EngineChoices {
    shared: EngineOptions,
    own: Vec<(String, String, String)>,
}

impl EngineChoices {
    /// The options of one engine: what all share, and its own.
    pub fn of(&self, engine: &str) -> EngineOptions {
        let own = self.own.iter().filter(|(e, _, _)| e == engine);
        EngineOptions { extra: own.map(|(_, k, v)| (k.clone(), v.clone())).collect(), ..self.shared.clone() }
    }

    /// The same with transactions begun like this.
    pub fn with_transactions(mut self, how: Option<Transactions>) -> EngineChoices {
        self.shared.transactions = how;
        self
    }

    /// Whether writes are fsynced.
    pub fn sync(&self) -> bool {
        self.shared.sync
    }
}

impl EngineFlags {
    /// Checks the flags for a run of `engines` with values of `value_size` bytes.
    pub fn check(&self, engines: &[String], value_size: usize) -> Result<EngineChoices> {
        let own: Vec<_> = self.opts.iter().map(|o| parse_opt(o)).collect::<Result<_>>()?;
        if let Some((e, _, _)) = own.iter().find(|(e, _, _)| !engines.contains(e)) {
            return Err(Error::usage(format!("--opt {e}.…: {e} is not among the engines of this run")));
        }
        let shared = EngineOptions {
            sync: self.sync,
            memtable_size: self.memtable_size.0,
            block_cache_size: self.block_cache_size.0,
            compression: self.compression,
            bloom_fp: self.bloom_fp,
            extra: Vec::new(),
            value_size,
            transactions: None,
        };
        Ok(EngineChoices { shared, own })
    }
}

/// Splits `engine.name=value`.
pub fn parse_opt(text: &str) -> Result<(String, String, String)> {
    let bad = || Error::usage(format!("--opt {text}: use ENGINE.NAME=VALUE"));
    let (left, value) = text.split_once('=').ok_or_else(bad)?;
    let (name, key) = left.split_once('.').ok_or_else(bad)?;
    Ok((engine::canonical_name(name.trim())?.to_owned(), key.trim().to_owned(), value.trim().to_owned()))
}
