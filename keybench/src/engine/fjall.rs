//! fjall, an LSM tree in Rust: the feature `fjall` of this crate builds it in.
//!
//! How a careful user would call it: single unsynced puts go to the keyspace directly, everything else is a batch with its
//! durability. Where transactions are asked for, the store is opened for fjall's optimistic ones, which are serializable
//! whatever level was asked for; writes beside them then pass through the same check for conflicts.

use super::txn::{Step, Transactions, TxnMode, unsupported};
use super::{Bounds, Checked, Compression, Cursor, Engine, EngineOptions, Families, Session, family_name};
use crate::error::{Error, Result};
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{
    Iter, Keyspace, KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticWriteTx, PersistMode, Readable, Slice,
    Snapshot,
};
use kingtide_base::options::{nearest, parse_size};
use std::cell::RefCell;
use std::ops::Bound;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the longest key.
const LONGEST_KEY: usize = 65_535;
/// Options of the engine's own.
const OPTIONS: [&str; 3] = ["data_block_size", "max_journaling_size", "worker_threads"];

/// How a store is opened.
#[derive(Clone, Debug)]
struct Settings {
    sync: bool,
    /// fjall's own values, unless they are given.
    memtable_size: u64,
    cache_size: u64,
    compression: fjall::CompressionType,
    filter_fp: f64,
    worker_threads: u64,
    /// fjall's own values, unless they are given.
    data_block_size: u64,
    max_journaling_size: u64,
}

impl Settings {
    fn new(options: &EngineOptions) -> Result<Settings> {
        let compression = match options.compression {
            Compression::None => fjall::CompressionType::None,
            Compression::Lz4 => fjall::CompressionType::Lz4,
            other => return unsupported("fjall", &format!("compression {other}: it has none and lz4")),
        };
        let mut settings = Settings {
            sync: options.sync,
            memtable_size: options.memtable_size.unwrap_or(64 << 20),
            cache_size: options.block_cache_size.unwrap_or(32 << 20),
            compression,
            filter_fp: options.bloom_fp,
            worker_threads: EngineOptions::background_threads() as u64,
            data_block_size: 4 << 10,
            max_journaling_size: 512 << 20,
        };
        options.extra.iter().try_for_each(|(key, value)| settings.set(key, value))?;
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        // Outside these fjall panics.
        let (place, least, most) = match key {
            "data_block_size" => (&mut self.data_block_size, 1 << 10, 1 << 20),
            "max_journaling_size" => (&mut self.max_journaling_size, 64 << 20, u64::MAX),
            "worker_threads" => (&mut self.worker_threads, 1, 1024),
            _ => {
                let hint = nearest(key, &OPTIONS);
                let known = OPTIONS.join(", ");
                return Err(Error::usage(format!("fjall has no option '{key}'{hint} (known: {known})")));
            }
        };
        let bad = |e: String| Error::usage(format!("fjall option {key}: {e}"));
        let n = parse_size(value).map_err(bad)?;
        if !(least..=most).contains(&n) {
            return Err(bad(format!("use at least {least} and at most {most}")));
        }
        *place = n;
        Ok(())
    }

    fn keyspace(&self) -> KeyspaceCreateOptions {
        let filter = match self.filter_fp {
            fp if fp > 0.0 => FilterPolicyEntry::Bloom(BloomConstructionPolicy::FalsePositiveRate(fp as f32)),
            _ => FilterPolicyEntry::None,
        };
        KeyspaceCreateOptions::default()
            .max_memtable_size(self.memtable_size)
            .data_block_size_policy(BlockSizePolicy::all(self.data_block_size as u32))
            .data_block_compression_policy(CompressionPolicy::all(self.compression))
            .filter_policy(FilterPolicy::all(filter))
    }

    /// What a write persists before it returns.
    fn persist(&self) -> PersistMode {
        if self.sync { PersistMode::SyncData } else { PersistMode::Buffer }
    }

    fn shown(&self, transactions: bool) -> Vec<(String, String)> {
        let compression = if self.compression == fjall::CompressionType::None { "none" } else { "lz4" };
        let mut shown = vec![
            ("max_memtable_size", self.memtable_size.to_string()),
            ("cache_size", self.cache_size.to_string()),
            ("compression", compression.to_owned()),
            ("filter_fp", self.filter_fp.to_string()),
            ("worker_threads", self.worker_threads.to_string()),
            ("data_block_size", self.data_block_size.to_string()),
            ("max_journaling_size", self.max_journaling_size.to_string()),
        ];
        if transactions {
            shown.push(("transactions", "optimistic (serializable whatever level is asked for)".into()));
        }
        shown.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

/// An open database and its keyspace.
struct Store {
    db: OptimisticTxDatabase,
    keyspace: Keyspace,
    settings: Settings,
    /// Whether writes beside transactions must be seen by their check for conflicts.
    transactions: bool,
}

#[cold]
fn error(doing: &str, e: impl std::fmt::Display) -> Error {
    Error::failed(format!("fjall: {doing}: {e}"))
}

fn storable(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > LONGEST_KEY {
        return unsupported("fjall", &format!("keys of {} bytes: they have 1 to {LONGEST_KEY}", key.len()));
    }
    Ok(())
}

/// A key and its new value, or none for a delete.
type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Store {
    /// Makes changes that become visible together.
    fn apply<'a>(&self, keyspace: &Keyspace, changes: impl Iterator<Item = Change<'a>>) -> Result<()> {
        let durability = Some(self.settings.persist());
        if self.transactions {
            let mut txn = self.db.write_tx().map_err(|e| error("begin", e))?.durability(durability);
            for (key, value) in changes {
                change(&mut txn, keyspace, key, value)?;
            }
            // It read nothing, so nothing can have been changed under it.
            let committed = txn.commit().map_err(|e| error("write", e))?;
            return committed.map_err(|_| error("write", "a conflict of writes alone"));
        }
        let mut batch = self.db.inner().batch().durability(durability);
        for (key, value) in changes {
            match value {
                Some(value) => {
                    storable(key)?;
                    batch.insert(keyspace, key, value);
                }
                None if storable(key).is_ok() => batch.remove(keyspace, key),
                None => {} // it cannot be there
            }
        }
        batch.commit().map_err(|e| error("write", e))
    }

    fn put(&self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<()> {
        if self.transactions || self.settings.sync {
            return self.apply(keyspace, std::iter::once((key, Some(value))));
        }
        storable(key)?;
        keyspace.insert(key, value).map_err(|e| error("put", e))
    }
}

/// A change inside a transaction.
fn change(txn: &mut OptimisticWriteTx, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    match value {
        Some(value) => {
            storable(key)?;
            txn.insert(keyspace, key, value);
        }
        None if storable(key).is_ok() => txn.remove(keyspace, key),
        None => {} // it cannot be there
    }
    Ok(())
}

fn look_up(keyspace: &Keyspace, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
    if storable(key).is_err() {
        return Ok(false); // it cannot be there
    }
    let value = keyspace.get(key).map_err(|e| error("get", e))?;
    if let Some(value) = &value {
        found(value);
    }
    Ok(value.is_some())
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    Settings::new(&EngineOptions::default())?.set(key, value)?;
    Ok(Checked::Known)
}

struct FjallEngine(Arc<Store>);

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let settings = Settings::new(options)?;
    let builder = OptimisticTxDatabase::builder(dir)
        .cache_size(settings.cache_size)
        .worker_threads(settings.worker_threads as usize)
        .max_journaling_size(settings.max_journaling_size);
    let db = builder.open().map_err(|e| error("open", e))?;
    let keyspace = db.inner().keyspace("keybench", || settings.keyspace()).map_err(|e| error("open", e))?;
    Ok(Box::new(FjallEngine(Arc::new(Store { db, keyspace, settings, transactions: options.transactions.is_some() }))))
}

impl Engine for FjallEngine {
    fn version(&self) -> String {
        env!("KEYBENCH_FJALL").into()
    }

    fn durability(&self) -> String {
        if self.0.settings.sync {
            "acknowledged writes survive a power cut: the journal is fsynced (fdatasync) before a write returns".into()
        } else {
            "acknowledged writes survive the process: the journal is written, not fsynced, before a write returns"
                .into()
        }
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.0.settings.shown(self.0.transactions)
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(FjallSession { store: Arc::clone(&self.0), txn: None }))
    }

    fn flush(&self) -> Result<()> {
        self.0.keyspace.rotate_memtable_and_wait().map_err(|e| error("flush", e))
    }

    fn compact(&self) -> Result<()> {
        self.flush()?;
        self.0.keyspace.major_compact().map_err(|e| error("compact", e))
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let db = self.0.db.inner();
        [
            ("write_buffer_size", db.write_buffer_size() as f64),
            ("journals", db.journal_count() as f64),
            ("outstanding_flushes", db.outstanding_flushes() as f64),
            ("active_compactions", db.active_compactions() as f64),
            ("compactions_completed", db.compactions_completed() as f64),
            ("seconds_compacting", db.time_compacting().as_secs_f64()),
            ("cache_size", db.cache_size() as f64),
            ("tables", self.0.keyspace.table_count() as f64),
            ("l0_tables", self.0.keyspace.l0_table_count() as f64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn families(&self, count: usize) -> Result<Box<dyn Families>> {
        let open = |i| {
            let made = self.0.db.inner().keyspace(&family_name(i), || self.0.settings.keyspace());
            made.map_err(|e| error("open a keyspace", e))
        };
        let keyspaces = (0..count).map(open).collect::<Result<_>>()?;
        Ok(Box::new(FjallFamilies { store: Arc::clone(&self.0), keyspaces }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the last handle closes; what that meets is not reported.
        Ok(())
    }
}

struct FjallFamilies {
    store: Arc<Store>,
    keyspaces: Vec<Keyspace>,
}

impl Families for FjallFamilies {
    fn put(&mut self, family: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(&self.keyspaces[family], key, value)
    }

    fn get(&mut self, family: usize, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        look_up(&self.keyspaces[family], key, found)
    }
}

/// A transaction, shared with its cursors.
type Running = Rc<RefCell<OptimisticWriteTx>>;

struct FjallSession {
    store: Arc<Store>,
    txn: Option<Running>,
}

impl FjallSession {
    fn txn(&self) -> Result<&Running> {
        self.txn.as_ref().ok_or_else(|| Error::failed("fjall: no transaction was begun"))
    }

    fn change(&self, key: &[u8], value: Option<&[u8]>) -> Result<Step<()>> {
        change(&mut self.txn()?.borrow_mut(), &self.store.keyspace, key, value).map(Step::Done)
    }
}

impl Session for FjallSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.store.put(&self.store.keyspace, key, value)
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.store.apply(&self.store.keyspace, entries.iter().map(|(k, v)| (*k, Some(*v))))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        look_up(&self.store.keyspace, key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            if !look_up(&self.store.keyspace, key, &mut |v| each(i, Some(v)))? {
                each(i, None);
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.delete_batch(&[key])
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.store.apply(&self.store.keyspace, keys.iter().map(|k| (*k, None)))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(FjallCursor::new(View::Snapshot(self.store.db.read_tx()), &self.store, bounds)))
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        if how.mode == TxnMode::Locking {
            return unsupported("fjall", "transactions that lock keys");
        }
        if !self.store.transactions {
            return unsupported("fjall", "transactions on a store that was opened without them");
        }
        let txn = self.store.db.write_tx().map_err(|e| error("begin", e))?;
        self.txn = Some(Rc::new(RefCell::new(txn.durability(Some(self.store.settings.persist())))));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.change(key, Some(value))
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.change(key, None)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let txn = self.txn()?;
        if storable(key).is_err() {
            return Ok(Step::Done(false)); // it cannot be there
        }
        let value = txn.borrow().get(&self.store.keyspace, key).map_err(|e| error("get", e))?;
        if let Some(value) = &value {
            found(value);
        }
        Ok(Step::Done(value.is_some()))
    }

    /// Every read is checked at the commit.
    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_get(key, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        let view = View::Transaction(Rc::clone(self.txn()?));
        Ok(Step::Done(Box::new(FjallCursor::new(view, &self.store, bounds))))
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.txn()?;
        let Some(Ok(txn)) = self.txn.take().map(Rc::try_unwrap) else {
            return Err(Error::failed("fjall: a transaction cannot end while a cursor uses it"));
        };
        let committed = txn.into_inner().commit().map_err(|e| error("commit", e))?;
        Ok(if committed.is_ok() { Step::Done(()) } else { Step::Conflict })
    }

    /// After a conflict there is nothing left to be rolled back.
    fn rollback(&mut self) -> Result<()> {
        self.txn = None;
        Ok(())
    }
}

/// What a cursor walks.
enum View {
    Snapshot(Snapshot),
    /// What it reads is checked at the transaction's commit.
    Transaction(Running),
}

struct FjallCursor {
    store: Arc<Store>,
    view: View,
    lower: Bound<Slice>,
    upper: Bound<Slice>,
    iter: Option<Iter>,
    entry: (Slice, Slice),
}

impl FjallCursor {
    fn new(view: View, store: &Arc<Store>, bounds: Bounds<'_>) -> FjallCursor {
        let lower = bounds.lower.map_or(Bound::Unbounded, |k| Bound::Included(k.into()));
        let upper = bounds.upper.map_or(Bound::Unbounded, |k| Bound::Excluded(k.into()));
        let entry = (Slice::empty(), Slice::empty());
        FjallCursor { store: Arc::clone(store), view, lower, upper, iter: None, entry }
    }

    fn from(&mut self, lower: Bound<Slice>) -> Result<bool> {
        let empty = match (&lower, &self.upper) {
            (Bound::Included(a), Bound::Excluded(b)) => a >= b,
            _ => false,
        };
        // fjall panics for a range whose end is before its start.
        self.iter = (!empty).then(|| {
            let range = (lower, self.upper.clone());
            match &self.view {
                View::Snapshot(snapshot) => snapshot.range(&self.store.keyspace, range),
                View::Transaction(txn) => txn.borrow().range(&self.store.keyspace, range),
            }
        });
        self.next()
    }
}

impl Cursor for FjallCursor {
    fn first(&mut self) -> Result<bool> {
        self.from(self.lower.clone())
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.from(Bound::Included(key.into()))
    }

    fn next(&mut self) -> Result<bool> {
        let Some(guard) = self.iter.as_mut().and_then(Iterator::next) else { return Ok(false) };
        self.entry = guard.into_inner().map_err(|e| error("iterate", e))?;
        Ok(true)
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(&self.entry.0)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        Ok((&self.entry.0, &self.entry.1))
    }
}
