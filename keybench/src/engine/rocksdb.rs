//! RocksDB through its C API, from a library loaded at run time.
//!
//! This is a leaf of foreign calls: every `unsafe` block here and below rests on the pointers of one [`Store`], which are created
//! in [`open`], never null, used by any number of threads as RocksDB allows, and destroyed once in `Store::drop`.

mod c_api;
mod cursor;
mod store;
mod txn;
mod txn_db;

use super::peers::PeerLibrary;
use super::txn::{Step, Transactions, unsupported};
use super::{Bounds, Compression, Cursor, Engine, EngineOptions, Families, Session, family_name};
use crate::error::{Error, Result};
use c_api::{Api, Handle, c_string, slice_bytes};
use cursor::RocksCursor;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};
use store::Store;
use txn::Txn;
use txn_db::{PlainWrites, TxnDb};

/// The properties that are numbers and go into timelines. An engine that lacks one leaves it out.
const PROPERTIES: &[&str] = &[
    "num-files-at-level0",
    "num-files-at-level1",
    "num-files-at-level2",
    "num-files-at-level3",
    "num-files-at-level4",
    "num-files-at-level5",
    "num-files-at-level6",
    "num-immutable-mem-table",
    "num-immutable-mem-table-flushed",
    "mem-table-flush-pending",
    "num-running-flushes",
    "compaction-pending",
    "num-running-compactions",
    "num-running-compaction-sorted-runs",
    "background-errors",
    "cur-size-active-mem-table",
    "cur-size-all-mem-tables",
    "size-all-mem-tables",
    "num-entries-active-mem-table",
    "num-entries-imm-mem-tables",
    "num-deletes-active-mem-table",
    "num-deletes-imm-mem-tables",
    "estimate-num-keys",
    "estimate-table-readers-mem",
    "is-file-deletions-enabled",
    "num-snapshots",
    "oldest-snapshot-time",
    "oldest-snapshot-sequence",
    "num-live-versions",
    "current-super-version-number",
    "estimate-live-data-size",
    "min-log-number-to-keep",
    "min-obsolete-sst-number-to-keep",
    "total-sst-files-size",
    "live-sst-files-size",
    "obsolete-sst-files-size",
    "base-level",
    "estimate-pending-compaction-bytes",
    "actual-delayed-write-rate",
    "is-write-stopped",
    "estimate-oldest-key-time",
    "block-cache-capacity",
    "block-cache-usage",
    "block-cache-pinned-usage",
    "num-blob-files",
    "total-blob-file-size",
    "live-blob-file-size",
    "live-blob-file-garbage-size",
    "blob-cache-capacity",
    "blob-cache-usage",
    "blob-cache-pinned-usage",
];

/// RocksDB's numbers for compressions, from `rocksdb/c.h`.
fn compression_number(c: Compression) -> c_int {
    match c {
        Compression::None => 0,
        Compression::Snappy => 1,
        Compression::Lz4 => 4,
        Compression::Zstd => 7,
    }
}

/// Bits a key that give a Bloom filter this false-positive rate. 10 bits is what everyone means by 1 %.
fn bloom_bits(fp: f64) -> f64 {
    if (fp - 0.01).abs() < 1e-12 { 10.0 } else { -fp.ln() / (std::f64::consts::LN_2 * std::f64::consts::LN_2) }
}

struct RocksEngine(Arc<Store>);

/// What RocksDB's parser calls a value: it has words of its own for compressions, and configurations have those of all engines.
fn own_word<'v>(option: &str, value: &'v str) -> &'v str {
    match value {
        _ if !matches!(option, "compression" | "bottommost_compression") => value,
        "none" => "kNoCompression",
        "snappy" => "kSnappyCompression",
        "lz4" => "kLZ4Compression",
        "zstd" => "kZSTD",
        own => own,
    }
}

/// The names of RocksDB's numbers for compressions.
fn compression_name(number: c_int) -> String {
    let names = ["none", "snappy", "zlib", "bzip2", "lz4", "lz4hc", "xpress", "zstd"];
    usize::try_from(number).ok().and_then(|n| names.get(n)).map_or_else(|| number.to_string(), |n| (*n).to_owned())
}

/// What RocksDB itself says of its settings. Where a library has no function to ask by, it is what was asked for.
///
/// # Safety
/// `options` and `db` must be live.
unsafe fn asked(
    library: &PeerLibrary,
    api: &Api,
    options: Handle,
    db: Handle,
    given: &EngineOptions,
) -> Vec<(String, String)> {
    type Size = unsafe extern "C" fn(Handle) -> usize;
    type Int = unsafe extern "C" fn(Handle) -> c_int;
    // SAFETY: the types are those of `rocksdb/c.h`, and the caller vouches for the handle.
    let (memtable, memtables, jobs, compression) = unsafe {
        let memtables = library.symbol::<Int>("rocksdb_options_get_max_write_buffer_number").map(|get| get(options));
        let memtable = library.symbol::<Size>("rocksdb_options_get_write_buffer_size").map(|get| get(options));
        let jobs = library.symbol::<Int>("rocksdb_options_get_max_background_jobs").map(|get| get(options));
        let compression = library.symbol::<Int>("rocksdb_options_get_compression").map(|get| get(options));
        (memtable, memtables, jobs, compression)
    };
    // Without a block cache there is no such property.
    let cache = api.property(db, "block-cache-capacity").unwrap_or(0.0);
    let told = |name: &str| given.extra.iter().rfind(|(n, _)| n == name).map(|(_, v)| v.clone());
    let or = |name: &str, value: Option<String>, base: String| {
        (name.to_owned(), value.or_else(|| told(name)).unwrap_or(base))
    };
    let own = |size: Option<u64>| size.map_or("its own".to_owned(), |n| n.to_string());
    vec![
        or("write_buffer_size", memtable.ok().map(|n| n.to_string()), own(given.memtable_size)),
        or("max_write_buffer_number", memtables.ok().map(|n| n.to_string()), "its own".to_owned()),
        or("max_background_jobs", jobs.ok().map(|n| n.to_string()), EngineOptions::background_threads().to_string()),
        or("compression", compression.ok().map(compression_name), given.compression.to_string()),
        ("block_cache".to_owned(), cache.to_string()),
    ]
}

/// Options as reports show them: what RocksDB said of itself comes last, after what was asked for.
fn effective(options: &EngineOptions, asked: Vec<(String, String)>) -> Vec<(String, String)> {
    let bits = if options.bloom_fp > 0.0 { bloom_bits(options.bloom_fp) } else { 0.0 };
    let mut shown = vec![("bloom_bits_per_key".to_owned(), format!("{bits:.1}"))];
    shown.extend(options.transactions.into_iter().flat_map(TxnDb::shown));
    let own = options.extra.iter().filter(|(name, _)| !asked.iter().any(|(told, _)| told == name));
    shown.extend(own.cloned());
    shown.extend(asked);
    shown
}

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let library = PeerLibrary::load("rocksdb")?;
    let api = Api::load(&library)?;
    let path = c_string(&dir.to_string_lossy())?;
    let extra: Vec<String> = options.extra.iter().map(|(k, v)| format!("{k}={}", own_word(k, v))).collect();
    let extra = c_string(&extra.join(";"))?;
    let jobs = EngineOptions::background_threads();
    let mut error = null_mut();
    // SAFETY: handles are used as `rocksdb/c.h` says: created, set, passed on, destroyed once; the table options take
    // over the filter policy, and the column family's handle is written before the call returns.
    let store = unsafe {
        // Without one RocksDB makes its own; to destroy none does nothing.
        let cache = options.block_cache_size.map_or(null_mut(), |n| (api.cache_create_lru)(n as usize));
        let base = (api.options_create)();
        (api.options_set_create_if_missing)(base, 1);
        if let Some(n) = options.memtable_size {
            (api.options_set_write_buffer_size)(base, n as usize);
        }
        (api.options_set_max_background_jobs)(base, jobs as c_int);
        (api.options_set_compression)(base, compression_number(options.compression));
        let table = (api.block_based_options_create)();
        if !cache.is_null() {
            (api.block_based_options_set_block_cache)(table, cache);
        }
        if options.bloom_fp > 0.0 {
            (api.block_based_options_set_filter_policy)(
                table,
                (api.filterpolicy_create_bloom_full)(bloom_bits(options.bloom_fp)),
            );
        }
        (api.options_set_block_based_table_factory)(base, table);
        (api.block_based_options_destroy)(table);
        let full = (api.options_create)();
        (api.get_options_from_string)(base, extra.as_ptr(), full, &mut error);
        (api.options_destroy)(base);
        let read_options = (api.readoptions_create)();
        let write_options = (api.writeoptions_create)();
        (api.writeoptions_set_sync)(write_options, options.sync.into());
        let (mut db, mut family, mut txns, mut loaded) = (null_mut(), null_mut(), None, Ok(()));
        if let Some(how) = options.transactions.filter(|_| error.is_null()) {
            match TxnDb::open(&library, how.mode, full, path.as_ptr(), &mut family, &mut error) {
                Ok(opened) => (db, txns) = (opened.base, Some(opened)),
                Err(e) => loaded = Err(e),
            }
        } else if error.is_null() {
            db = (api.open_column_families)(
                full,
                path.as_ptr(),
                1,
                [c"default".as_ptr()].as_ptr(),
                [full].as_ptr(),
                &mut family,
                &mut error,
            );
        }
        if let Err(e) = loaded.and(api.check(error)) {
            if let Some(txns) = &txns {
                txns.close();
            }
            (api.readoptions_destroy)(read_options);
            (api.writeoptions_destroy)(write_options);
            (api.options_destroy)(full);
            (api.cache_destroy)(cache);
            return Err(e);
        }
        let asked = asked(&library, &api, full, db, options);
        let shown = effective(options, asked);
        let (sync, version) = (options.sync, library.version().to_owned());
        let unlocked = PlainWrites { db, put: api.put, delete: api.delete, write: api.write };
        let plain = txns.as_ref().and_then(TxnDb::plain_writes).unwrap_or(unlocked);
        let families = Mutex::default();
        let options = full;
        Store {
            api,
            version,
            db,
            txns,
            plain,
            family,
            families,
            options,
            cache,
            read_options,
            write_options,
            sync,
            shown,
        }
    };
    Ok(Box::new(RocksEngine(Arc::new(store))))
}

impl Engine for RocksEngine {
    fn version(&self) -> String {
        self.0.version.clone()
    }

    fn durability(&self) -> String {
        if self.0.sync {
            "acknowledged writes survive a power cut: the log is fsynced before a write returns".into()
        } else {
            "acknowledged writes survive the process: the log is written, not fsynced, before a write returns".into()
        }
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.0.shown.clone()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let store = Arc::clone(&self.0);
        // SAFETY: sets a thread-local of the calling thread. 1 turns off per-operation statistics, which the prebuilt
        // library would otherwise pay for in slow thread-local storage.
        let batch = unsafe {
            (store.api.set_perf_level)(1);
            (store.api.writebatch_create)()
        };
        Ok(Box::new(RocksSession { store, batch, pointers: Vec::new(), lengths: Vec::new(), txn: None }))
    }

    fn families(&self, count: usize) -> Result<Box<dyn Families>> {
        let s = &self.0;
        let mut families = s.families.lock().unwrap_or_else(PoisonError::into_inner);
        while families.len() < count {
            let name = c_string(&family_name(families.len()))?;
            let mut error = null_mut();
            // SAFETY: database and options are open; the name is read during the call only.
            let made = unsafe { (s.api.create_column_family)(s.db, s.options, name.as_ptr(), &mut error) };
            s.api.check(error)?;
            families.push(made);
        }
        Ok(Box::new(RocksFamilies { store: Arc::clone(s), handles: families.clone() }))
    }

    fn flush(&self) -> Result<()> {
        let s = &self.0;
        let families = s.families.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the options live for the calls, and so do the families, which end with the store.
        unsafe {
            let options = (s.api.flushoptions_create)();
            let mut error = null_mut();
            (s.api.flush)(s.db, options, &mut error);
            let mut flushed = s.api.check(error);
            for family in families.iter() {
                let mut error = null_mut();
                (s.api.flush_cf)(s.db, options, *family, &mut error);
                flushed = flushed.and(s.api.check(error));
            }
            (s.api.flushoptions_destroy)(options);
            flushed
        }
    }

    fn compact(&self) -> Result<()> {
        // SAFETY: null bounds mean the whole key space.
        unsafe { (self.0.api.compact_range)(self.0.db, null(), 0, null(), 0) };
        Ok(())
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let number = |name: &&str| self.0.api.property(self.0.db, name).map(|value| ((*name).to_owned(), value));
        PROPERTIES.iter().filter_map(number).collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the last reference closes; RocksDB's C API reports no failure of a close.
        Ok(())
    }
}

/// Families by their numbers; the store, which it holds, destroys them.
struct RocksFamilies {
    store: Arc<Store>,
    handles: Vec<Handle>,
}

impl Families for RocksFamilies {
    fn put(&mut self, family: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let s = &*self.store;
        let mut error = null_mut();
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: key and value are read during the call only; the family lives as long as the store.
        unsafe {
            (s.api.put_cf)(s.db, s.write_options, self.handles[family], k, key.len(), v, value.len(), &mut error);
        }
        s.api.check(error)
    }

    fn get(&mut self, family: usize, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let s = &*self.store;
        let mut error = null_mut();
        let (handle, k) = (self.handles[family], key.as_ptr().cast());
        // SAFETY: the key is read during the call only; the family lives as long as the store.
        let slice = unsafe { (s.api.get_pinned_cf)(s.db, s.read_options, handle, k, key.len(), &mut error) };
        s.api.check(error)?;
        if slice.is_null() {
            return Ok(false);
        }
        // SAFETY: a non-null slice is ours to read until we destroy it.
        unsafe {
            found(slice_bytes(&s.api, slice));
            (s.api.pinnableslice_destroy)(slice);
        }
        Ok(true)
    }
}

struct RocksSession {
    store: Arc<Store>,
    batch: Handle,
    pointers: Vec<*const c_char>,
    lengths: Vec<usize>,
    txn: Option<Txn>,
}

impl Drop for RocksSession {
    fn drop(&mut self) {
        // SAFETY: created with the session, destroyed only here.
        unsafe { (self.store.api.writebatch_destroy)(self.batch) }
    }
}

impl RocksSession {
    fn txn(&mut self) -> Result<&mut Txn> {
        self.txn.as_mut().ok_or_else(|| Error::failed("rocksdb: no transaction was begun"))
    }

    fn write_batch(&mut self) -> Result<()> {
        let s = &*self.store;
        let mut error = null_mut();
        // SAFETY: the batch is this session's and no one else uses it.
        unsafe {
            (s.plain.write)(s.plain.db, s.write_options, self.batch, &mut error);
            (s.api.writebatch_clear)(self.batch);
        }
        s.api.check(error)
    }
}

impl Session for RocksSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let s = &*self.store;
        let mut error = null_mut();
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: key and value are read during the call only.
        unsafe { (s.plain.put)(s.plain.db, s.write_options, k, key.len(), v, value.len(), &mut error) };
        s.api.check(error)
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        for (key, value) in entries {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            // SAFETY: the batch copies key and value.
            unsafe { (self.store.api.writebatch_put)(self.batch, k, key.len(), v, value.len()) };
        }
        self.write_batch()
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let s = &*self.store;
        let mut error = null_mut();
        // SAFETY: the key is read during the call only.
        let slice = unsafe { (s.api.get_pinned)(s.db, s.read_options, key.as_ptr().cast(), key.len(), &mut error) };
        s.api.check(error)?;
        if slice.is_null() {
            return Ok(false);
        }
        // SAFETY: a non-null slice is ours to read until we destroy it.
        unsafe {
            found(slice_bytes(&s.api, slice));
            (s.api.pinnableslice_destroy)(slice);
        }
        Ok(true)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let s = &*self.store;
        self.pointers.clear();
        self.pointers.extend(keys.iter().map(|k| k.as_ptr().cast::<c_char>()));
        self.lengths.clear();
        self.lengths.extend(keys.iter().map(|k| k.len()));
        let mut values: Vec<Handle> = vec![null_mut(); keys.len()];
        let mut errors: Vec<*mut c_char> = vec![null_mut(); keys.len()];
        // SAFETY: all four arrays have one entry a key, and the keys are read during the call only.
        unsafe {
            (s.api.batched_multi_get_cf)(
                s.db,
                s.read_options,
                s.family,
                keys.len(),
                self.pointers.as_ptr(),
                self.lengths.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                0,
            );
        }
        let mut outcome = Ok(());
        for (i, (value, error)) in values.into_iter().zip(errors).enumerate() {
            outcome = outcome.and(s.api.check(error));
            if value.is_null() {
                each(i, None);
                continue;
            }
            // SAFETY: a non-null slice is ours to read until we destroy it.
            unsafe {
                each(i, Some(slice_bytes(&s.api, value)));
                (s.api.pinnableslice_destroy)(value);
            }
        }
        outcome
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let s = &*self.store;
        let mut error = null_mut();
        // SAFETY: the key is read during the call only.
        unsafe { (s.plain.delete)(s.plain.db, s.write_options, key.as_ptr().cast(), key.len(), &mut error) };
        s.api.check(error)
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        for key in keys {
            // SAFETY: the batch copies the key.
            unsafe { (self.store.api.writebatch_delete)(self.batch, key.as_ptr().cast(), key.len()) };
        }
        self.write_batch()
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        let s = &*self.store;
        if s.plain.db != s.db {
            return unsupported("rocksdb", "delete_range beside locks");
        }
        let mut error = null_mut();
        let (a, b) = (start.as_ptr().cast(), end.as_ptr().cast());
        // SAFETY: both keys are read during the call only.
        unsafe {
            (s.api.delete_range_cf)(s.db, s.write_options, s.family, a, start.len(), b, end.len(), &mut error);
        }
        s.api.check(error)
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let store = Arc::clone(&self.store);
        let upper: Option<Box<[u8]>> = bounds.upper.map(Into::into);
        // SAFETY: the bound's bytes and the read options are kept by the cursor, which outlives the iterator.
        let (iter, options) = unsafe {
            let options = (store.api.readoptions_create)();
            if let Some(u) = &upper {
                (store.api.readoptions_set_iterate_upper_bound)(options, u.as_ptr().cast(), u.len());
            }
            ((store.api.create_iterator)(store.db, options), options)
        };
        Ok(Box::new(RocksCursor { store, iter, options, _upper: upper, _walked: () }))
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        self.txn = Some(Txn::begin(&self.store, self.txn.take(), how)?);
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.txn()?.put(key, value)
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.txn()?.delete(key)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn()?.get(key, false, found)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn()?.get(key, true, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        self.txn()?.cursor(bounds).map(Step::Done)
    }

    fn commit(&mut self) -> Result<Step<()>> {
        self.txn()?.commit()
    }

    fn rollback(&mut self) -> Result<()> {
        self.txn()?.rollback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::equality;

    #[test]
    fn what_rocksdb_says_of_itself_goes_before_what_was_asked_for() {
        let pairs =
            |all: &[(&str, &str)]| all.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let nested = "{block_cache=64M;no_block_cache=true;filter_policy=bloomfilter:8:false}";
        let extra = pairs(&[("write_buffer_size", "1M"), ("block_based_table_factory", nested)]);
        let options = EngineOptions { extra, ..EngineOptions::default() };
        let asked = pairs(&[("write_buffer_size", "67108864"), ("compression", "none"), ("block_cache", "0")]);
        let shown = equality::in_force(effective(&options, asked));
        let peer = pairs(&[
            ("memtable_size", "64M"),
            ("filter_fp", "0.01"),
            ("compression", "lz4"),
            ("block_cache_size", "64M"),
        ]);
        let all = equality::differences(&[("kingtide", &peer, ""), ("rocksdb", &shown, "")]);
        let told: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "compression differs: kingtide lz4, rocksdb none",
                "block cache differs: kingtide 64.0 MiB, rocksdb none",
                "filter differs: kingtide 10 bits a key, rocksdb 8 bits a key",
            ]
        );
        assert_eq!(
            (compression_name(4), compression_name(7), compression_name(99)),
            ("lz4".into(), "zstd".into(), "99".into())
        );
    }

    #[test]
    fn compressions_may_be_given_by_their_common_names() {
        assert_eq!(own_word("compression", "none"), "kNoCompression");
        assert_eq!(own_word("compression", "zstd"), "kZSTD");
        assert_eq!(own_word("bottommost_compression", "kZlibCompression"), "kZlibCompression");
        assert_eq!(own_word("compaction_pri", "none"), "none");
    }

    #[test]
    fn properties_are_named_once_and_none_of_the_usual_is_missing() {
        let mut names = PROPERTIES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROPERTIES.len());
        assert!(names.len() >= 45 && names.contains(&"num-files-at-level6"), "{}", names.len());
    }
}
