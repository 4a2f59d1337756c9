//! redb, a copy-on-write B+tree in Rust: the feature `redb` of this crate builds it in.
//!
//! It has one writer at a time, and readers that never wait. A commit is either fsynced, or stays in the process until the
//! next one that is: nothing between, so that without `--sync` an acknowledged write does not even survive the process,
//! and the comparison of settings says so. Transactions take the writer's place when they begin: they run one after
//! another, so that each is serializable whatever level was asked for and none ever meets a conflict.

use super::txn::{Step, Transactions, unsupported};
use super::{Bounds, Checked, Cursor, Engine, EngineOptions, Session};
use crate::error::{Error, Result};
use kingtide_base::options::{OptionValue, nearest};
use redb::{
    AccessGuard, Database, Durability, Range, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use std::ops::Bound;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("keybench");
/// Options of the engine's own.
const OPTIONS: [&str; 2] = ["quick_repair", "two_phase_commit"];
/// Entries that a cursor of a transaction fetches at once.
const CHUNK: usize = 64;

/// How commits are made.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    sync: bool,
    quick_repair: bool,
    two_phase_commit: bool,
}

impl Settings {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let place = match key {
            "quick_repair" => &mut self.quick_repair,
            "two_phase_commit" => &mut self.two_phase_commit,
            _ => {
                let hint = nearest(key, &OPTIONS);
                let known = OPTIONS.join(", ");
                return Err(Error::usage(format!("redb has no option '{key}'{hint} (known: {known})")));
            }
        };
        *place = bool::parse_value(value).map_err(|e| Error::usage(format!("redb option {key}: {e}")))?;
        Ok(())
    }
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    Settings::default().set(key, value)?;
    Ok(Checked::Known)
}

#[cold]
fn error(doing: &str, e: impl std::fmt::Display) -> Error {
    Error::failed(format!("redb: {doing}: {e}"))
}

/// An open database.
struct Store {
    /// Locked for writing only by a compaction, which must be the only user.
    db: RwLock<Database>,
    settings: Settings,
    cache_size: u64,
    transactions: bool,
}

/// A read transaction's table.
type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

impl Store {
    fn begin(&self, durability: Durability) -> Result<WriteTransaction> {
        // A panic while the lock is held is a test's: a run with one has failed whatever the store holds.
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        let mut txn = db.begin_write().map_err(|e| error("begin writing", e))?;
        txn.set_durability(durability).map_err(|e| error("begin writing", e))?;
        txn.set_two_phase_commit(self.settings.two_phase_commit);
        txn.set_quick_repair(self.settings.quick_repair);
        Ok(txn)
    }

    /// A write transaction with the durability that was asked for.
    fn writer(&self) -> Result<WriteTransaction> {
        self.begin(if self.settings.sync { Durability::Immediate } else { Durability::None })
    }

    /// What was committed last.
    fn table(&self) -> Result<Table> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        let txn = db.begin_read().map_err(|e| error("begin reading", e))?;
        txn.open_table(TABLE).map_err(|e| error("open the table", e))
    }

    /// Commits nothing, but fsynced: what was committed before goes with it.
    fn sync(&self) -> Result<()> {
        self.begin(Durability::Immediate)?.commit().map_err(|e| error("commit", e))
    }
}

/// Changes the table of a write transaction.
fn change<T>(
    txn: &WriteTransaction,
    work: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> std::result::Result<T, redb::StorageError>,
) -> Result<T> {
    let mut table = txn.open_table(TABLE).map_err(|e| error("open the table", e))?;
    work(&mut table).map_err(|e| error("write", e))
}

struct RedbEngine(Arc<Store>);

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let mut settings = Settings { sync: options.sync, ..Settings::default() };
    options.extra.iter().try_for_each(|(key, value)| settings.set(key, value))?;
    let mut builder = Database::builder();
    let cache_size = options.block_cache_size.unwrap_or(1 << 30); // redb's own
    builder.set_cache_size(usize::try_from(cache_size).unwrap_or(usize::MAX));
    let db = builder.create(dir.join("keybench.redb")).map_err(|e| error("open", e))?;
    let store = Store { db: RwLock::new(db), settings, cache_size, transactions: options.transactions.is_some() };
    let txn = store.begin(Durability::Immediate)?;
    change(&txn, |_| Ok(()))?; // readers would find no table
    txn.commit().map_err(|e| error("commit", e))?;
    Ok(Box::new(RedbEngine(Arc::new(store))))
}

impl Engine for RedbEngine {
    fn version(&self) -> String {
        env!("KEYBENCH_REDB").into()
    }

    fn durability(&self) -> String {
        if self.0.settings.sync {
            "acknowledged writes survive a power cut: a commit is fsynced before it returns".into()
        } else {
            "acknowledged writes are lost when the process ends without closing the store: redb keeps commits that it \
             does not fsync in the process"
                .into()
        }
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        let settings = self.0.settings;
        let mut shown = vec![
            ("cache_size", self.0.cache_size.to_string()),
            ("durability", if settings.sync { "immediate" } else { "none" }.to_owned()),
            ("two_phase_commit", settings.two_phase_commit.to_string()),
            ("quick_repair", settings.quick_repair.to_string()),
            ("compression", "none".to_owned()),
        ];
        if self.0.transactions {
            shown.push(("transactions", "one writer at a time (serializable, never in conflict)".to_owned()));
        }
        shown.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(RedbSession { store: Arc::clone(&self.0), txn: None }))
    }

    fn flush(&self) -> Result<()> {
        self.0.sync()
    }

    fn compact(&self) -> Result<()> {
        let mut db = self.0.db.write().unwrap_or_else(PoisonError::into_inner);
        db.compact().map(drop).map_err(|e| error("compact", e))
    }

    /// Its counters cost a walk of the tree or are compiled out.
    fn stats(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.sync()
    }
}

struct RedbSession {
    store: Arc<Store>,
    txn: Option<Rc<WriteTransaction>>,
}

impl RedbSession {
    /// Writes outside the transaction.
    fn write(
        &self,
        work: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> std::result::Result<(), redb::StorageError>,
    ) -> Result<()> {
        if self.txn.is_some() {
            return unsupported("redb", "writes beside a transaction of the same thread: they would wait for its end");
        }
        let txn = self.store.writer()?;
        change(&txn, work)?;
        txn.commit().map_err(|e| error("commit", e))
    }

    fn txn(&self) -> Result<&WriteTransaction> {
        self.txn.as_deref().ok_or_else(|| Error::failed("redb: no transaction was begun"))
    }

    /// The transaction, to be ended.
    fn take_txn(&mut self) -> Result<WriteTransaction> {
        let txn = self.txn.take().ok_or_else(|| Error::failed("redb: no transaction was begun"))?;
        Rc::try_unwrap(txn).map_err(|txn| {
            self.txn = Some(txn);
            Error::failed("redb: a transaction cannot end while a cursor uses it")
        })
    }
}

fn look_up<T: ReadableTable<&'static [u8], &'static [u8]>>(
    table: &T,
    key: &[u8],
    found: &mut dyn FnMut(&[u8]),
) -> Result<bool> {
    let value = table.get(key).map_err(|e| error("get", e))?;
    if let Some(value) = &value {
        found(value.value());
    }
    Ok(value.is_some())
}

impl Session for RedbSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write(|table| table.insert(key, value).map(drop))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.write(|table| entries.iter().try_for_each(|(key, value)| table.insert(*key, *value).map(drop)))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        look_up(&self.store.table()?, key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let table = self.store.table()?;
        for (i, key) in keys.iter().enumerate() {
            if !look_up(&table, key, &mut |v| each(i, Some(v)))? {
                each(i, None);
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(|table| table.remove(key).map(drop))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.write(|table| keys.iter().try_for_each(|key| table.remove(*key).map(drop)))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        self.write(|table| table.retain_in(start..end, |_, _| false))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let (lower, upper) = own(bounds);
        Ok(Box::new(RedbCursor { table: self.store.table()?, lower, upper, range: None, entry: None }))
    }

    fn begin(&mut self, _how: Transactions) -> Result<()> {
        // The old one first: the new one would wait for it.
        if self.txn.is_some() {
            drop(self.take_txn()?);
        }
        self.txn = Some(Rc::new(self.store.writer()?));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        change(self.txn()?, |table| table.insert(key, value).map(drop)).map(Step::Done)
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        change(self.txn()?, |table| table.remove(key).map(drop)).map(Step::Done)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let table = self.txn()?.open_table(TABLE).map_err(|e| error("open the table", e))?;
        look_up(&table, key, found).map(Step::Done)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_get(key, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        self.txn()?;
        let Some(txn) = &self.txn else { return Err(Error::failed("redb: no transaction was begun")) };
        let (lower, upper) = own(bounds);
        Ok(Step::Done(Box::new(TxnCursor { txn: Rc::clone(txn), lower, upper, chunk: Vec::new(), at: 0 })))
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.take_txn()?.commit().map(Step::Done).map_err(|e| error("commit", e))
    }

    fn rollback(&mut self) -> Result<()> {
        self.take_txn()?.abort().map_err(|e| error("roll back", e))
    }
}

type Limits = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn own(bounds: Bounds<'_>) -> Limits {
    let lower = bounds.lower.map_or(Bound::Unbounded, |k| Bound::Included(k.to_vec()));
    (lower, bounds.upper.map_or(Bound::Unbounded, |k| Bound::Excluded(k.to_vec())))
}

fn lend(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether no key lies between the two.
fn empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
        _ => false,
    }
}

type Guard = AccessGuard<'static, &'static [u8]>;

/// Walks what was committed when it was made.
struct RedbCursor {
    table: Table,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    range: Option<Range<'static, &'static [u8], &'static [u8]>>,
    entry: Option<(Guard, Guard)>,
}

impl RedbCursor {
    fn from(&mut self, lower: Bound<&[u8]>) -> Result<bool> {
        let upper = lend(&self.upper);
        self.range = match empty(lower, upper) {
            true => None,
            false => Some(self.table.range::<&[u8]>((lower, upper)).map_err(|e| error("iterate", e))?),
        };
        self.next()
    }

    fn at(&self) -> Result<&(Guard, Guard)> {
        self.entry.as_ref().ok_or_else(|| Error::failed("redb: the cursor stands on no entry"))
    }
}

impl Cursor for RedbCursor {
    fn first(&mut self) -> Result<bool> {
        let lower = self.lower.clone();
        self.from(lend(&lower))
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.from(Bound::Included(key))
    }

    fn next(&mut self) -> Result<bool> {
        let next = self.range.as_mut().and_then(Iterator::next);
        self.entry = next.transpose().map_err(|e| error("iterate", e))?;
        Ok(self.entry.is_some())
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(self.at()?.0.value())
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let (key, value) = self.at()?;
        Ok((key.value(), value.value()))
    }
}

/// Walks what a transaction sees, a chunk at a time: its table is open only for a moment, so that it can be written.
struct TxnCursor {
    txn: Rc<WriteTransaction>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    chunk: Vec<(Vec<u8>, Vec<u8>)>,
    at: usize,
}

impl TxnCursor {
    fn fill(&mut self, lower: Bound<&[u8]>) -> Result<bool> {
        let upper = lend(&self.upper);
        let mut chunk = Vec::new();
        if !empty(lower, upper) {
            let table = self.txn.open_table(TABLE).map_err(|e| error("open the table", e))?;
            let range = table.range::<&[u8]>((lower, upper)).map_err(|e| error("iterate", e))?;
            for entry in range.take(CHUNK) {
                let (key, value) = entry.map_err(|e| error("iterate", e))?;
                chunk.push((key.value().to_vec(), value.value().to_vec()));
            }
        }
        (self.chunk, self.at) = (chunk, 0);
        Ok(!self.chunk.is_empty())
    }
}

impl Cursor for TxnCursor {
    fn first(&mut self) -> Result<bool> {
        let lower = self.lower.clone();
        self.fill(lend(&lower))
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        self.fill(Bound::Included(key))
    }

    fn next(&mut self) -> Result<bool> {
        self.at += 1;
        if self.at < self.chunk.len() {
            return Ok(true);
        }
        match self.chunk.pop() {
            Some((last, _)) if self.chunk.len() + 1 == CHUNK => self.fill(Bound::Excluded(&last)),
            _ => Ok(false),
        }
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(&self.chunk[self.at].0)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let (key, value) = &self.chunk[self.at];
        Ok((key, value))
    }
}
