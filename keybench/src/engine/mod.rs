//! One trait for all engines, one file for each.
//!
//! An [`Engine`] is an open store that threads share; a [`Session`] is one thread's handle to it; a [`Cursor`] walks keys
//! in ascending byte order. Answers are handed to a callback or borrowed from the cursor, so that an engine that can read
//! without copying is not made to copy.
//!
//! No adapter lets `Busy` out: [`until_ready`] waits and retries inside the call, so the wait is part of the operation's
//! latency and no engine looks fast by refusing writes.

#[cfg(test)]
mod conformance;
#[cfg(test)]
pub mod faulty;
#[cfg(feature = "fjall")]
mod fjall;
pub mod kingtide;
pub mod kingtide_c;
pub mod lmdb;
pub mod memory;
pub mod null;
pub mod peers;
#[cfg(feature = "redb")]
mod redb;
pub mod registry;
pub mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod tidesdb;
pub mod txn;
mod versions;

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use txn::{Step, Transactions};

/// An open store, shared by all threads.
pub trait Engine: Send + Sync {
    /// The engine's own version.
    fn version(&self) -> String;
    /// What acknowledged writes survive, in words.
    fn durability(&self) -> String;
    /// The options that differ from the engine's defaults, or that a reader of a report needs.
    fn effective_options(&self) -> Vec<(String, String)>;
    /// A handle for the calling thread.
    fn session(&self) -> Result<Box<dyn Session>>;
    /// Writes all memtables out.
    fn flush(&self) -> Result<()>;
    /// Compacts everything and waits for it.
    fn compact(&self) -> Result<()>;
    /// The engine's own counters and gauges.
    fn stats(&self) -> Vec<(String, f64)>;
    /// A handle for the calling thread to column families 0 to `count`, which are made if they are not there. They have
    /// the options of the store's own one.
    fn families(&self, _count: usize) -> Result<Box<dyn Families>> {
        Err(Error::Unsupported("this engine's adapter has no column families".into()))
    }
    /// Closes the store. All sessions and cursors are gone by then.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's handle to a store.
pub trait Session {
    /// Writes one entry and acknowledges it.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Writes entries as one batch, in order.
    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()>;
    /// Looks a key up; `found` gets its value. Returns whether there was one.
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;
    /// Looks many keys up; `each` is called exactly once for every index, in any order.
    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()>;
    /// Deletes one key, whether or not it exists.
    fn delete(&mut self, key: &[u8]) -> Result<()>;
    /// Deletes keys as one batch.
    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()>;
    /// A cursor. What it returns outside `bounds` is undefined; it may stop at the upper bound or run past it.
    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>>;

    /// Writes an entry that expires.
    fn put_ttl(&mut self, _key: &[u8], _value: &[u8], _ttl: Duration) -> Result<()> {
        Err(Error::Unsupported("this engine's adapter has no put_ttl".into()))
    }

    /// Deletes every key in `[start, end)`.
    fn delete_range(&mut self, _start: &[u8], _end: &[u8]) -> Result<()> {
        Err(Error::Unsupported("this engine's adapter has no delete_range".into()))
    }

    /// Begins a transaction. The `txn_` verbs work on it until it ends by [`commit`](Session::commit) or
    /// [`rollback`](Session::rollback); all other verbs stay outside it. A session has one at a time.
    fn begin(&mut self, _how: Transactions) -> Result<()> {
        no_transactions()
    }

    /// Puts inside the transaction.
    fn txn_put(&mut self, _key: &[u8], _value: &[u8]) -> Result<Step<()>> {
        no_transactions()
    }

    /// Deletes inside the transaction.
    fn txn_delete(&mut self, _key: &[u8]) -> Result<Step<()>> {
        no_transactions()
    }

    /// Gets as the transaction sees it: its own writes, and those of other transactions as its level allows.
    fn txn_get(&mut self, _key: &[u8], _found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        no_transactions()
    }

    /// Gets a value that must still be the newest when the transaction commits, whatever its level.
    fn txn_get_for_update(&mut self, _key: &[u8], _found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        no_transactions()
    }

    /// A cursor over what the transaction sees. It is dropped before the transaction ends.
    fn txn_cursor(&mut self, _bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        no_transactions()
    }

    /// Makes all of the transaction's writes visible to others, or none of them. After a conflict it must still be rolled back.
    fn commit(&mut self) -> Result<Step<()>> {
        no_transactions()
    }

    /// Ends the transaction without a trace.
    fn rollback(&mut self) -> Result<()> {
        no_transactions()
    }
}

/// One thread's handle to several column families.
pub trait Families {
    /// Writes one entry and acknowledges it.
    fn put(&mut self, family: usize, key: &[u8], value: &[u8]) -> Result<()>;
    /// Looks a key up; `found` gets its value. Returns whether there was one.
    fn get(&mut self, family: usize, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;
}

/// The name of a family that is known by its number.
fn family_name(number: usize) -> String {
    format!("family{number:05}")
}

fn no_transactions<T>() -> Result<T> {
    Err(Error::Unsupported("this engine's adapter has no transactions".into()))
}

/// The part of the key space that a cursor will be asked for: `[lower, upper)`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bounds<'a> {
    /// Inclusive.
    pub lower: Option<&'a [u8]>,
    /// Exclusive.
    pub upper: Option<&'a [u8]>,
}

/// Walks entries in ascending key order. Moves return whether the cursor stands on an entry.
pub trait Cursor {
    /// To the first entry.
    fn first(&mut self) -> Result<bool>;
    /// To the first entry at or after `key`.
    fn seek(&mut self, key: &[u8]) -> Result<bool>;
    /// To the next entry. Only on an entry.
    fn next(&mut self) -> Result<bool>;
    /// The key under the cursor. Only on an entry.
    fn key(&mut self) -> Result<&[u8]>;
    /// Key and value under the cursor. Only on an entry.
    fn entry(&mut self) -> Result<(&[u8], &[u8])>;
}

/// Block compression by the name all engines know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Stored as it is.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard at the engine's default level.
    Zstd,
    /// Snappy.
    Snappy,
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
            Compression::Snappy => "snappy",
        })
    }
}

/// What every engine of a comparison is given alike, and what one engine is given on top.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineOptions {
    /// Whether a write is fsynced before it is acknowledged.
    pub sync: bool,
    /// Bytes of one memtable; each engine has its own default where there are none.
    pub memtable_size: Option<u64>,
    /// Bytes of the block cache, of which 0 is no cache; each engine has its own default where there are none.
    pub block_cache_size: Option<u64>,
    /// Block compression.
    pub compression: Compression,
    /// False-positive rate of the filters; 0 for none.
    pub bloom_fp: f64,
    /// The engine's own options, by its own names.
    pub extra: Vec<(String, String)>,
    /// Bytes of a value, for the `null` engine's answers.
    pub value_size: usize,
    /// How transactions are begun, where there are any: some engines must be opened for them.
    pub transactions: Option<Transactions>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            sync: false,
            memtable_size: Some(64 << 20),
            block_cache_size: Some(64 << 20),
            compression: Compression::Lz4,
            bloom_fp: 0.01,
            extra: Vec::new(),
            value_size: 100,
            transactions: None,
        }
    }
}

impl EngineOptions {
    /// Threads for flush and compaction that each engine is given: one a core, at least 2.
    pub fn background_threads() -> usize {
        std::thread::available_parallelism().map_or(2, usize::from).max(2)
    }
}

/// The engines a user can name.
pub const NAMES: &[&str] =
    &["kingtide", "kingtide-c", "rocksdb", "tidesdb", "lmdb", "fjall", "redb", "sqlite", "memory", "null"];

/// The name an engine goes by: `skiplist` is an old name of the in-memory reference.
pub fn canonical_name(name: &str) -> Result<&'static str> {
    let wanted = if name == "skiplist" { "memory" } else { name };
    NAMES.iter().copied().find(|n| *n == wanted).ok_or_else(|| {
        Error::usage(format!(
            "unknown engine '{name}'{} (known: {})",
            kingtide_base::options::nearest(name, NAMES),
            NAMES.join(", ")
        ))
    })
}

/// A list of engine names, as users write them: separated by commas, no repetition.
pub fn parse_names(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let name = canonical_name(part)?;
        if !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Err(Error::usage(format!("no engine named in '{text}'; known: {}", NAMES.join(", "))));
    }
    Ok(names)
}

/// The order of `n` engines in a repeat: each repeat begins with another one, so that none always follows what another has left to the
/// machine, such as dirty pages and a busy disk.
pub fn turns(n: usize, repeat: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |i| (i + repeat) % n)
}

/// What became of an option of an engine's own that was looked at without opening a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It will be passed on. RocksDB's are only understood by RocksDB, when a store is opened.
    Known,
    /// An earlier version had it, the present one does not: why it is left out.
    Gone(String),
}

/// Whether a write of this engine can be read back, and so whether its answers can be judged.
pub fn keeps_data(name: &str) -> bool {
    name != "null"
}

/// Whether what was written is there again when a store is closed and opened.
pub fn keeps_files(name: &str) -> bool {
    keeps_data(name) && name != "memory"
}

/// What a reader must know of an engine's resident memory.
pub fn memory_note(name: &str) -> Option<&'static str> {
    (name == "lmdb")
        .then_some("lmdb maps its file: RSS counts pages of the file that it touched, VMS the whole map_size")
}

/// Refuses options for an engine that has none.
fn no_extra_options(name: &str, options: &EngineOptions) -> Result<()> {
    match options.extra.first() {
        Some((key, _)) => Err(Error::usage(format!("engine {name} has no options, so '{key}' is unknown"))),
        None => Ok(()),
    }
}

/// What one attempt at an operation came to.
pub enum Attempt<T> {
    /// It was done.
    Done(T),
    /// The engine asked to be asked again.
    Busy,
}

/// Times an engine said `Busy`.
static BUSY_ANSWERS: AtomicU64 = AtomicU64::new(0);

/// Times any engine of this process has said `Busy` so far.
pub fn busy_answers() -> u64 {
    // Relaxed: a statistic that orders nothing.
    BUSY_ANSWERS.load(Ordering::Relaxed)
}

/// How long an engine may stay busy before that is a failure.
const BUSY_LIMIT: Duration = Duration::from_secs(600);

/// Repeats `attempt` while the engine is busy, sleeping 20 us at first and 1 ms at most between attempts.
pub fn until_ready<T>(attempt: impl FnMut() -> Result<Attempt<T>>) -> Result<T> {
    until_ready_within(BUSY_LIMIT, attempt)
}

fn until_ready_within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<Attempt<T>>) -> Result<T> {
    if let Attempt::Done(t) = attempt()? {
        return Ok(t);
    }
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        // Relaxed: a statistic that orders nothing.
        BUSY_ANSWERS.fetch_add(1, Ordering::Relaxed);
        if start.elapsed() >= limit {
            return Err(Error::failed(format!("the engine stayed busy for {limit:?}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
        if let Attempt::Done(t) = attempt()? {
            return Ok(t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_old_ones_kept() {
        assert_eq!(canonical_name("skiplist").unwrap(), "memory");
        let e = canonical_name("rockdb").unwrap_err();
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains("did you mean 'rocksdb'") && e.to_string().contains("tidesdb"), "{e}");
        assert_eq!(parse_names("kingtide, skiplist,memory").unwrap(), ["kingtide", "memory"]);
        assert!(parse_names(" , ").is_err());
    }

    #[test]
    fn each_engine_is_first_as_often_as_the_others() {
        let order = |repeat| turns(3, repeat).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2), order(3)], [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!((turns(1, 5).collect::<Vec<_>>(), turns(0, 5).count()), (vec![0], 0));
    }

    #[test]
    fn busy_is_waited_for_then_reported() {
        let mut left = 3;
        let answer = until_ready(|| {
            left -= 1;
            Ok(if left == 0 { Attempt::Done(7) } else { Attempt::Busy })
        });
        assert_eq!(answer, Ok(7));
        let e = until_ready_within::<()>(Duration::from_millis(2), || Ok(Attempt::Busy)).unwrap_err();
        assert!(e.to_string().contains("stayed busy"), "{e}");
        assert!(until_ready::<()>(|| Err(Error::failed("disk"))).is_err());
        assert!(busy_answers() >= 3);
    }
}
