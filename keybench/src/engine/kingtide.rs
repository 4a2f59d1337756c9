//! Kingtide through its Rust API.

use super::txn::{Step, Transactions, TxnMode};
use super::{
    Attempt, Bounds, Checked, Compression, Cursor, Engine, EngineOptions, Families, Session, family_name, until_ready,
};
use crate::error::{Error, Result};
use kingtide::{
    ColumnFamily, Db, Durability, ErrorKind, Options, ReadOptions, Transaction, TransactionCursor, TransactionOptions,
    WriteBatch, WriteOptions,
};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

struct KingtideEngine {
    db: Db,
    /// Of the default family, and of all that are made.
    family: kingtide::FamilyOptions,
    shown: Vec<(String, String)>,
}

/// Bytes of a batch's memory that a session keeps for the next one.
const KEEP_BATCH: usize = 16 << 20;

fn failed(e: &kingtide::Error) -> Error {
    Error::failed(format!("kingtide: {e}"))
}

/// A result in the harness's terms: `Busy` is to be asked again.
fn attempt<T>(result: kingtide::Result<T>) -> Result<Attempt<T>> {
    match result {
        Ok(t) => Ok(Attempt::Done(t)),
        Err(e) if e.kind() == ErrorKind::Busy => Ok(Attempt::Busy),
        Err(e) => Err(failed(&e)),
    }
}

/// A result of a transaction in the harness's terms: some errors mean that another one was first.
fn step<T>(result: kingtide::Result<T>) -> Result<Attempt<Step<T>>> {
    match result {
        Ok(t) => Ok(Attempt::Done(Step::Done(t))),
        Err(e) if e.kind() == ErrorKind::Busy => Ok(Attempt::Busy),
        Err(e) if e.is_transient_conflict() => Ok(Attempt::Done(Step::Conflict)),
        Err(e) => Err(failed(&e)),
    }
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    Options::new().set(key, value).map_err(|e| Error::usage(e.to_string()))?;
    Ok(Checked::Known)
}

/// The engine's options for those of a comparison.
fn configured(options: &EngineOptions) -> Result<Options> {
    let mut o = Options::new();
    o.db.block_cache_size = options.block_cache_size.unwrap_or(o.db.block_cache_size);
    o.db.durability = if options.sync { Durability::Power } else { Durability::Process };
    o.family.memtable_size = options.memtable_size.unwrap_or(o.family.memtable_size);
    o.family.filter_fp = options.bloom_fp;
    o.family.compression = match options.compression {
        Compression::None => kingtide::Compression::None,
        Compression::Lz4 => kingtide::Compression::Lz4,
        Compression::Zstd => kingtide::Compression::Zstd,
        Compression::Snappy => kingtide::Compression::Snappy,
    };
    for (name, value) in &options.extra {
        o.set(name, value).map_err(|e| Error::usage(e.to_string()))?;
    }
    Ok(o)
}

/// What a reader of a report must know, as it is in force whether or not it was asked for.
const SHOWN: [&str; 9] = [
    "memtable_size",
    "max_immutable_memtables",
    "filter_fp",
    "compression",
    "value_threshold",
    "direct_value_threshold",
    "vlog_dead_ratio",
    "block_cache_size",
    "durability",
];

/// The options that the engine is opened with.
pub fn effective(options: &EngineOptions) -> Result<Vec<(String, String)>> {
    let o = configured(options)?;
    let named = SHOWN.iter().filter_map(|n| o.family.get(n).or_else(|| o.db.get(n)).map(|v| ((*n).to_owned(), v)));
    let mut shown: Vec<(String, String)> = named.collect();
    // 0 stands for as many as the others are given.
    let threads = match o.db.background_threads {
        0 => EngineOptions::background_threads().to_string(),
        n => n.to_string(),
    };
    shown.push(("background_threads".into(), threads));
    let others = options.extra.iter().filter(|(name, _)| !shown.iter().any(|(known, _)| known == name));
    let others: Vec<_> = others.cloned().collect();
    shown.extend(others);
    Ok(shown)
}

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let (o, shown) = (configured(options)?, effective(options)?);
    let family = o.family.clone();
    let db = Db::open(dir, o).map_err(|e| failed(&e))?;
    Ok(Box::new(KingtideEngine { db, family, shown }))
}

/// What acknowledged writes survive, by the value of the option `durability`.
pub fn durability_in_words(durability: &str) -> String {
    match durability {
        "power" => "acknowledged writes survive a power cut: the log is fsynced before a write returns".into(),
        "process" => {
            "acknowledged writes survive the process: the log is written, not fsynced, before a write returns".into()
        }
        other => format!("durability {other}"),
    }
}

impl Engine for KingtideEngine {
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn durability(&self) -> String {
        let shown = self.shown.iter().rev().find(|(name, _)| name == "durability");
        durability_in_words(shown.map_or("process", |(_, v)| v))
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.shown.clone()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let family = self.db.default_family().clone();
        Ok(Box::new(KingtideSession { db: self.db.clone(), family, batch: WriteBatch::new(), txn: None }))
    }

    fn families(&self, count: usize) -> Result<Box<dyn Families>> {
        let made = (0..count).map(|n| self.db.get_or_create_family(&family_name(n), self.family.clone()));
        Ok(Box::new(KingtideFamilies(made.collect::<kingtide::Result<_>>().map_err(|e| failed(&e))?)))
    }

    fn flush(&self) -> Result<()> {
        self.db.flush().map_err(|e| failed(&e))
    }

    fn compact(&self) -> Result<()> {
        self.db.compact().map_err(|e| failed(&e))
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let report = self.db.stats();
        let mut out: Vec<_> = report.counters.iter().map(|(name, v)| ((*name).to_owned(), *v as f64)).collect();
        for family in &report.families {
            for level in &family.levels {
                out.push((format!("level{}_files", level.level), level.files as f64));
                out.push((format!("level{}_bytes", level.level), level.bytes as f64));
            }
        }
        out.push(("write_amplification".into(), report.write_amplification));
        out
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close().map_err(|e| failed(&e))
    }
}

struct KingtideFamilies(Vec<ColumnFamily>);

impl Families for KingtideFamilies {
    fn put(&mut self, family: usize, key: &[u8], value: &[u8]) -> Result<()> {
        until_ready(|| attempt(self.0[family].put(key, value).map(drop)))
    }

    fn get(&mut self, family: usize, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = until_ready(|| attempt(self.0[family].get(key)))?;
        if let Some(v) = &value {
            found(v);
        }
        Ok(value.is_some())
    }
}

struct KingtideSession {
    db: Db,
    family: ColumnFamily,
    batch: WriteBatch,
    txn: Option<(Transactions, Transaction)>,
}

/// The bounds of a cursor as options of an iterator.
fn read_options(bounds: Bounds<'_>) -> ReadOptions<'static> {
    let lower = bounds.lower.map_or(Bound::Unbounded, Bound::Included);
    let upper = bounds.upper.map_or(Bound::Unbounded, Bound::Excluded);
    ReadOptions::new().range((lower, upper))
}

impl KingtideSession {
    /// Does a step of the transaction.
    fn step<T>(&mut self, call: impl Fn(&mut Transaction, &ColumnFamily) -> kingtide::Result<T>) -> Result<Step<T>> {
        let Some((_, txn)) = &mut self.txn else { return Err(Error::failed("kingtide: no transaction was begun")) };
        until_ready(|| step(call(txn, &self.family)))
    }

    /// Fills the session's batch and commits it.
    fn write(&mut self, fill: impl FnOnce(&mut WriteBatch, &ColumnFamily) -> kingtide::Result<()>) -> Result<()> {
        fill(&mut self.batch, &self.family).map_err(|e| failed(&e))?;
        let done = until_ready(|| attempt(self.db.write_with(&mut self.batch, &WriteOptions::default())));
        if self.batch.bytes() > KEEP_BATCH {
            self.batch = WriteBatch::new();
        } else {
            self.batch.clear();
        }
        done.map(|_| ())
    }
}

impl Session for KingtideSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        until_ready(|| attempt(self.family.put(key, value).map(drop)))
    }

    fn put_ttl(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        until_ready(|| attempt(self.family.put_ttl(key, value, ttl).map(drop)))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.write(|batch, family| entries.iter().try_for_each(|(k, v)| batch.put(family, k, v)))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = until_ready(|| attempt(self.family.get(key)))?;
        if let Some(v) = &value {
            found(v);
        }
        Ok(value.is_some())
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        for (i, answer) in self.family.multi_get(keys).into_iter().enumerate() {
            let value = answer.map_err(|e| failed(&e))?;
            each(i, value.as_deref());
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        until_ready(|| attempt(self.family.delete(key).map(drop)))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.write(|batch, family| keys.iter().try_for_each(|k| batch.delete(family, k)))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        until_ready(|| attempt(self.family.delete_range(start..end).map(drop)))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let iter = self.family.cursor_with(read_options(bounds)).map_err(|e| failed(&e))?;
        Ok(Box::new(KingtideCursor { iter }))
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        // The last one's memory serves again.
        if let Some((_, txn)) = self.txn.as_mut().filter(|(last, _)| *last == how) {
            return until_ready(|| attempt(txn.reset()));
        }
        let locking = how.mode == TxnMode::Locking;
        let options = TransactionOptions::new(how.isolation).locking(locking);
        let txn = until_ready(|| attempt(self.db.begin_with(options.clone())))?;
        self.txn = Some((how, txn));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.step(|txn, family| txn.put(family, key, value))
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.step(|txn, family| txn.delete(family, key))
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        Ok(answer(self.step(|txn, family| txn.get(family, key))?, found))
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        Ok(answer(self.step(|txn, family| txn.get_for_update(family, key))?, found))
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        Ok(match self.step(|txn, family| txn.cursor_with(family, read_options(bounds)))? {
            Step::Done(iter) => Step::Done(Box::new(KingtideTxnCursor { iter })),
            Step::Conflict => Step::Conflict,
        })
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.step(|txn, _| txn.commit().map(|_| ()))
    }

    fn rollback(&mut self) -> Result<()> {
        match self.step(|txn, _| txn.rollback())? {
            Step::Done(()) => Ok(()),
            Step::Conflict => Err(Error::failed("kingtide: a rollback failed with a conflict")),
        }
    }
}

/// Hands a value on.
fn answer(step: Step<Option<kingtide::PinnedValue>>, found: &mut dyn FnMut(&[u8])) -> Step<bool> {
    match step {
        Step::Done(Some(value)) => {
            found(&value);
            Step::Done(true)
        }
        Step::Done(None) => Step::Done(false),
        Step::Conflict => Step::Conflict,
    }
}

/// A cursor over one of Kingtide's iterators, which are alike.
macro_rules! cursor {
    ($name:ident, $iterator:ty) => {
        struct $name {
            iter: $iterator,
        }

        impl $name {
            /// Whether the iterator stands on an entry; when it does not, whether that is the end or an error.
            #[inline]
            fn valid(&self) -> Result<bool> {
                if self.iter.valid() {
                    return Ok(true);
                }
                self.iter.status().map_err(|e| failed(&e)).map(|()| false)
            }
        }

        impl Cursor for $name {
            fn first(&mut self) -> Result<bool> {
                self.iter.seek_to_first();
                self.valid()
            }

            fn seek(&mut self, key: &[u8]) -> Result<bool> {
                self.iter.seek(key);
                self.valid()
            }

            fn next(&mut self) -> Result<bool> {
                self.iter.next();
                self.valid()
            }

            fn key(&mut self) -> Result<&[u8]> {
                Ok(self.iter.key())
            }

            fn entry(&mut self) -> Result<(&[u8], &[u8])> {
                self.iter.entry().map_err(|e| failed(&e))
            }
        }
    };
}

cursor!(KingtideCursor, kingtide::Cursor);
cursor!(KingtideTxnCursor, TransactionCursor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_is_shown_whether_or_not_it_was_asked_for() {
        let get = |options: &EngineOptions, name: &str| {
            let all: Vec<_> = effective(options).unwrap().into_iter().filter(|(n, _)| n == name).collect();
            assert_eq!(all.len(), 1, "{name}: {all:?}");
            all[0].1.clone()
        };
        let plain = EngineOptions::default();
        assert_eq!(get(&plain, "background_threads"), EngineOptions::background_threads().to_string());
        get(&plain, "vlog_dead_ratio");
        get(&plain, "direct_value_threshold");
        let extra = [("background_threads", "3"), ("compression", "none"), ("vlog_dead_ratio", "0.5")];
        let extra = extra.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
        let set = EngineOptions { extra, ..plain };
        assert_eq!((get(&set, "background_threads"), get(&set, "compression")), ("3".into(), "none".into()));
        assert_eq!(get(&set, "vlog_dead_ratio"), "0.5");
    }
}
