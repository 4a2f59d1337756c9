//! TidesDB 10 through its C API, from a library loaded at run time.
//!
//! This is a leaf of foreign calls: every `unsafe` block here and below rests on the pointers of one [`Store`] or of one
//! transaction or iterator made from it, which are never null, used by one thread at a time as TidesDB asks, and freed once.
//!
//! How a careful user would call it: a session keeps one read-committed transaction for reads, which sees the newest
//! commit at every read, and one for writes, which is reset rather than made anew.

mod c_api;
mod cursor;
mod store;
mod txn;

use super::peers::PeerLibrary;
use super::txn::{Step, Transactions};
use super::{
    Attempt, Bounds, Checked, Compression, Cursor, Engine, EngineOptions, Families, Session, family_name, until_ready,
};
use crate::error::{Error, Result};
use c_api::{Api, Config, DbStats, EXISTS, FamilyConfig, Handle, LOG_NONE, SUCCESS, SYNC_FULL};
use std::ffi::{CStr, CString, c_float, c_int};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, Txn};
use txn::Running;

struct TidesEngine(Arc<Store>);

/// The family that all data is in.
const FAMILY: &CStr = c"default";

/// Options of earlier versions, which configurations still name.
const GONE: [&str; 9] = [
    "block_index_prefix_len",
    "enable_block_indexes",
    "index_sample_ratio",
    "max_concurrent_flushes",
    "max_memory_usage",
    "min_disk_space",
    "unified_memtable",
    "unified_memtable_write_buffer_size",
    "use_btree",
];

/// Sets an option by its present name, or by the one that earlier versions had for it.
fn set_option(config: &mut Config, family: &mut FamilyConfig, key: &str, value: &str) -> Result<Checked> {
    let bad = |e: String| Error::usage(format!("tidesdb option {key}: {e}"));
    let size = || kingtide_base::options::parse_size(value).map_err(bad);
    let int = || value.trim().parse::<c_int>().map_err(|_| bad(format!("'{value}' is not a whole number")));
    let real = || value.trim().parse::<f64>().map_err(|_| bad(format!("'{value}' is not a number")));
    let one_of = |names: &[&str]| {
        let found = names.iter().position(|n| *n == value.trim());
        found.map(|at| at as c_int).ok_or_else(|| bad(format!("'{value}' is none of {}", names.join(", "))))
    };
    match key {
        "num_flush_threads" => config.num_flush_threads = int()?,
        "num_compaction_threads" => config.num_compaction_threads = int()?,
        "max_open_sstables" => config.max_open_sstables = size()? as usize,
        "block_cache_size" => config.block_cache_size = size()? as usize,
        "memtable_write_buffer_size" | "write_buffer_size" => config.memtable_write_buffer_size = size()? as usize,
        "memtable_skip_list_max_level" | "skip_list_max_level" => config.memtable_skip_list_max_level = int()?,
        "memtable_skip_list_probability" | "skip_list_probability" => {
            config.memtable_skip_list_probability = real()? as c_float;
        }
        "memtable_sync_mode" | "sync_mode" => config.memtable_sync_mode = one_of(&["none", "full", "interval"])?,
        "memtable_sync_interval_us" | "sync_interval_us" => config.memtable_sync_interval_us = size()?,
        "value_separation_threshold" | "klog_value_threshold" => config.value_separation_threshold = size()? as usize,
        "vlog_segment_size" => config.vlog_segment_size = size()? as usize,
        "memtable_l0_queue_stall_threshold" | "l0_queue_stall_threshold" => {
            config.memtable_l0_queue_stall_threshold = int()?;
        }
        "memtable_idle_flush_seconds" => config.memtable_idle_flush_seconds = int()?,
        "level_size_ratio" => family.level_size_ratio = size()? as usize,
        "min_levels" => family.min_levels = int()?,
        "dividing_level_offset" => family.dividing_level_offset = int()?,
        "keep_values_inline" => family.keep_values_inline = int()?,
        "btree_klog_block_size" => family.btree_klog_block_size = size()? as usize,
        "compression" => set_compression(family, one_of(&["none", "snappy", "lz4", "zstd"])? as u8),
        "enable_bloom_filter" => family.enable_bloom_filter = int()?,
        "bloom_fpr" => family.bloom_fpr = real()?,
        "isolation" => {
            let levels = ["read_uncommitted", "read_committed", "repeatable_read", "snapshot", "serializable"];
            family.default_isolation_level = one_of(&levels)?;
        }
        "l1_file_count_trigger" => family.l1_file_count_trigger = int()?,
        "tombstone_density_trigger" => family.tombstone_density_trigger = real()?,
        "tombstone_density_min_entries" => family.tombstone_density_min_entries = size()?,
        "log_level" if value.trim() == "none" => {}
        "log_level" => return Ok(Checked::Gone("the engine's own log is always off, so this is left out".into())),
        _ if GONE.contains(&key) => {
            return Ok(Checked::Gone("TidesDB 10 has no such option any more, so it is left out".into()));
        }
        _ => return Err(Error::usage(format!("tidesdb has no option '{key}'"))),
    }
    Ok(Checked::Known)
}

/// Checks an option of the engine's own.
pub fn check_option(key: &str, value: &str) -> Result<Checked> {
    // SAFETY: structs of integers, floats and raw pointers, for all of which zeros are values.
    let (mut config, mut family) = unsafe { (std::mem::zeroed::<Config>(), std::mem::zeroed::<FamilyConfig>()) };
    set_option(&mut config, &mut family, key, value)
}

/// Puts TidesDB's own defaults, `own`, in the place of 0, which stands for them in benchtool, where there is an option for it.
fn own_where_0(config: &mut Config, family: &mut FamilyConfig, own: &(Config, FamilyConfig)) {
    fn replace<T: Default + PartialEq>(value: &mut T, own: T) {
        if *value == T::default() {
            *value = own;
        }
    }
    let (c, f) = own;
    replace(&mut config.num_flush_threads, c.num_flush_threads);
    replace(&mut config.num_compaction_threads, c.num_compaction_threads);
    replace(&mut config.max_open_sstables, c.max_open_sstables);
    replace(&mut config.memtable_write_buffer_size, c.memtable_write_buffer_size);
    replace(&mut config.memtable_skip_list_max_level, c.memtable_skip_list_max_level);
    replace(&mut config.memtable_skip_list_probability, c.memtable_skip_list_probability);
    replace(&mut config.memtable_sync_interval_us, c.memtable_sync_interval_us);
    replace(&mut family.level_size_ratio, f.level_size_ratio);
}

/// The pipeline takes ids of the compression enum: snappy 1, lz4 2, zstd 3.
fn set_compression(family: &mut FamilyConfig, id: u8) {
    family.encoding_pipeline[0] = id;
    family.encoding_count = u8::from(id != 0);
}

/// What a reader of a report must know of a configuration, and the rest of what was asked for.
fn effective(config: &Config, family: &FamilyConfig, extra: &[(String, String)]) -> Vec<(String, String)> {
    let compression = match (family.encoding_count, family.encoding_pipeline[0]) {
        (0, _) => "none",
        (_, 1) => "snappy",
        (_, 2) => "lz4",
        _ => "zstd",
    };
    let filters = if family.enable_bloom_filter == 0 { 0.0 } else { family.bloom_fpr };
    let sync = ["none", "full", "interval"].get(config.memtable_sync_mode as usize).copied();
    let all = [
        ("memtable_write_buffer_size", config.memtable_write_buffer_size.to_string()),
        ("block_cache_size", config.block_cache_size.to_string()),
        ("encoding_pipeline", compression.to_owned()),
        ("bloom_fpr", filters.to_string()),
        ("memtable_sync_mode", sync.unwrap_or("unknown").to_owned()),
        ("num_compaction_threads", config.num_compaction_threads.to_string()),
        ("num_flush_threads", config.num_flush_threads.to_string()),
        ("memtable_l0_queue_stall_threshold", config.memtable_l0_queue_stall_threshold.to_string()),
        ("value_separation_threshold", config.value_separation_threshold.to_string()),
    ];
    let told = ["write_buffer_size", "compression", "sync_mode", "l0_queue_stall_threshold", "klog_value_threshold"];
    let known = |name: &str| told.contains(&name) || all.iter().any(|(n, _)| *n == name);
    let others: Vec<(String, String)> = extra.iter().filter(|(name, _)| !known(name)).cloned().collect();
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(others).collect()
}

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let library = PeerLibrary::load("tidesdb")?;
    let api = Api::load(&library)?;
    let path = CString::new(dir.to_string_lossy().as_bytes())
        .map_err(|_| Error::usage(format!("{} contains a NUL byte", dir.display())))?;
    // SAFETY: both only fill a struct whose layout is checked above.
    let (mut config, mut family) = unsafe { ((api.default_config)(), (api.default_column_family_config)()) };
    config.db_path = path.as_ptr().cast_mut();
    config.log_level = LOG_NONE;
    let own = (config, family);
    config.block_cache_size = options.block_cache_size.map_or(config.block_cache_size, |n| n as usize);
    config.memtable_write_buffer_size = options.memtable_size.map_or(config.memtable_write_buffer_size, |n| n as usize);
    config.num_compaction_threads = EngineOptions::background_threads() as c_int;
    if options.sync {
        config.memtable_sync_mode = SYNC_FULL;
    }
    set_compression(
        &mut family,
        match options.compression {
            Compression::None => 0,
            Compression::Snappy => 1,
            Compression::Lz4 => 2,
            Compression::Zstd => 3,
        },
    );
    family.enable_bloom_filter = c_int::from(options.bloom_fp > 0.0);
    family.bloom_fpr = if options.bloom_fp > 0.0 { options.bloom_fp } else { 0.01 };
    for (key, value) in &options.extra {
        set_option(&mut config, &mut family, key, value)?;
    }
    own_where_0(&mut config, &mut family, &own);
    // Whichever way it was asked for.
    let sync = config.memtable_sync_mode == SYNC_FULL;
    let shown = effective(&config, &family, &options.extra);
    let mut db = null_mut();
    // SAFETY: the configuration and the path it points to live for the call; `db` is written on success.
    let code = unsafe { (api.open)(&config, &mut db) };
    if code != SUCCESS {
        return Err(api.error("open", code));
    }
    // SAFETY: the database is open; the family's configuration is copied.
    let (created, handle) = unsafe {
        let created = (api.create_column_family)(db, FAMILY.as_ptr(), &family);
        (created, (api.get_column_family)(db, FAMILY.as_ptr()))
    };
    if handle.is_null() || (created != SUCCESS && created != EXISTS) {
        let e = api.error("create column family", created);
        // SAFETY: the database was opened above and nothing uses it.
        unsafe { (api.close)(db) };
        return Err(e);
    }
    let version = library.version().to_owned();
    Ok(Box::new(TidesEngine(Arc::new(Store { api, version, db, family: handle, config: family, sync, shown }))))
}

/// What acknowledged writes survive. Without syncs a thread of TidesDB's own writes the log, from a buffer in the process, after a
/// write has returned: `keybench kill` finds the last ones lost.
fn durability_in_words(sync: bool) -> &'static str {
    match sync {
        true => "acknowledged writes survive a power cut: the log is fsynced before a write returns",
        false => {
            "the last acknowledged writes are lost when the process ends without closing the store: the log is written soon \
             after a write returns, and never fsynced by one"
        }
    }
}

impl Engine for TidesEngine {
    fn version(&self) -> String {
        self.0.version.clone()
    }

    fn durability(&self) -> String {
        durability_in_words(self.0.sync).into()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.0.shown.clone()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let reads = Txn::begin(&self.0)?;
        let writes = Txn::begin(&self.0)?;
        Ok(Box::new(TidesSession { store: Arc::clone(&self.0), reads, writes, txn: None }))
    }

    fn families(&self, count: usize) -> Result<Box<dyn Families>> {
        let s = &self.0;
        let mut handles = Vec::new();
        for number in 0..count {
            let name =
                CString::new(family_name(number)).map_err(|_| Error::failed("a family's name contains a NUL byte"))?;
            // SAFETY: the database is open; name and configuration are copied.
            let (made, handle) = unsafe {
                let made = (s.api.create_column_family)(s.db, name.as_ptr(), &s.config);
                (made, (s.api.get_column_family)(s.db, name.as_ptr()))
            };
            if handle.is_null() || (made != SUCCESS && made != EXISTS) {
                return Err(s.api.error("create column family", made));
            }
            handles.push(handle);
        }
        Ok(Box::new(TidesFamilies { handles, reads: Txn::begin(s)?, writes: Txn::begin(s)? }))
    }

    fn flush(&self) -> Result<()> {
        let s = &self.0;
        // SAFETY: the database is open.
        until_ready(|| s.api.check("flush", unsafe { (s.api.flush_memtable)(s.db) }))?;
        until_ready(|| {
            // SAFETY: the database is open.
            let flushing = unsafe { (s.api.is_flushing)(s.db) } != 0;
            Ok(if flushing { Attempt::Busy } else { Attempt::Done(()) })
        })
    }

    fn compact(&self) -> Result<()> {
        let s = &self.0;
        self.flush()?;
        // SAFETY: the database is open and the family belongs to it.
        until_ready(|| s.api.check("compact", unsafe { (s.api.compact)(s.db, s.family) }))?;
        until_ready(|| {
            // SAFETY: as above.
            let compacting = unsafe { (s.api.is_compacting)(s.family) } != 0;
            Ok(if compacting { Attempt::Busy } else { Attempt::Done(()) })
        })
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let mut stats = std::mem::MaybeUninit::<DbStats>::zeroed();
        // SAFETY: the layout is checked above; all bits zero is a valid value, so it is initialised either way.
        let (code, d) = unsafe {
            let code = (self.0.api.get_db_stats)(self.0.db, stats.as_mut_ptr());
            (code, stats.assume_init())
        };
        if code != SUCCESS {
            return Vec::new();
        }
        let rows: [(&str, f64); 16] = [
            ("immutable_memtables", d.immutable_memtable_count.into()),
            ("compaction_pending", d.compaction_pending_count.into()),
            ("sstables", d.total_sstable_count.into()),
            ("data_bytes", d.total_data_size_bytes as f64),
            ("memtable_bytes", d.memtable_bytes as f64),
            ("txn_commits", d.txn_commits as f64),
            ("flushes", d.flush_count as f64),
            ("compactions", d.compaction_count as f64),
            ("flush_bytes_written", d.flush_bytes_written as f64),
            ("compaction_bytes_written", d.compaction_bytes_written as f64),
            ("compaction_bytes_read", d.compaction_bytes_read as f64),
            ("wal_bytes_written", d.wal_bytes_written as f64),
            ("vlog_file_bytes", d.vlog_file_size as f64),
            ("writes_throttled", d.writes_throttled as f64),
            ("writes_blocked", d.writes_blocked as f64),
            ("write_stall_us", d.write_stall_us as f64),
        ];
        rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn close(self: Box<Self>) -> Result<()> {
        // Dropping the last reference closes; TidesDB reports no failure of a close.
        Ok(())
    }
}

/// Families by their numbers, which live as long as the store that the transactions hold.
struct TidesFamilies {
    handles: Vec<Handle>,
    reads: Txn,
    writes: Txn,
}

impl Families for TidesFamilies {
    fn put(&mut self, family: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.writes.commit_in(self.handles[family], |api, txn, family| add_put(api, txn, family, key, value, 0))
    }

    fn get(&mut self, family: usize, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.reads.get_in(self.handles[family], key, found)
    }
}

struct TidesSession {
    store: Arc<Store>,
    reads: Txn,
    writes: Txn,
    txn: Option<Running>,
}

impl TidesSession {
    fn txn(&mut self) -> Result<&mut Running> {
        self.txn.as_mut().ok_or_else(|| Error::failed("tidesdb: no transaction was begun"))
    }
}

fn add_put(api: &Api, txn: Handle, family: Handle, key: &[u8], value: &[u8], ttl: i64) -> Result<()> {
    until_ready(|| {
        // SAFETY: the transaction copies key and value.
        let code = unsafe { (api.txn_put)(txn, family, key.as_ptr(), key.len(), value.as_ptr(), value.len(), ttl) };
        api.check("put", code)
    })
}

fn add_delete(api: &Api, txn: Handle, family: Handle, key: &[u8]) -> Result<()> {
    // SAFETY: the transaction copies the key.
    until_ready(|| api.check("delete", unsafe { (api.txn_delete)(txn, family, key.as_ptr(), key.len()) }))
}

impl Session for TidesSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.writes.commit_with(|api, txn, family| add_put(api, txn, family, key, value, 0))
    }

    fn put_ttl(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        // Whole seconds, rounded up: an entry may live longer than asked, never shorter.
        let seconds = ttl.as_secs() as i64 + i64::from(ttl.subsec_nanos() > 0);
        self.writes.commit_with(|api, txn, family| add_put(api, txn, family, key, value, seconds.max(1)))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.writes.commit_with(|api, txn, family| {
            entries.iter().try_for_each(|(key, value)| add_put(api, txn, family, key, value, 0))
        })
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.reads.get_in(self.store.family, key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        for (i, key) in keys.iter().enumerate() {
            if !self.get(key, &mut |value| each(i, Some(value)))? {
                each(i, None);
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.writes.commit_with(|api, txn, family| add_delete(api, txn, family, key))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.writes.commit_with(|api, txn, family| keys.iter().try_for_each(|k| add_delete(api, txn, family, k)))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.writes.commit_with(|api, txn, family| {
            let (a, b) = (start.as_ptr(), end.as_ptr());
            // SAFETY: the transaction copies both keys.
            let call = || unsafe { (api.txn_delete_range)(txn, family, a, start.len(), b, end.len()) };
            until_ready(|| api.check("delete range", call()))
        })
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        cursor::cursor(Rc::new(Txn::begin(&self.store)?), bounds)
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        self.txn = Some(Running::begin(&self.store, self.txn.take(), how)?);
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.txn()?.put(key, value)
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.txn()?.delete(key)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn()?.get(key, found)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn()?.get_for_update(key, found)
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

    #[test]
    fn own_options_are_a_closed_set() {
        // SAFETY: all bits zero is a valid value of both structs.
        let (mut c, mut f) = unsafe { (std::mem::zeroed::<Config>(), std::mem::zeroed::<FamilyConfig>()) };
        set_option(&mut c, &mut f, "value_separation_threshold", "4K").unwrap();
        assert_eq!(c.value_separation_threshold, 4096);
        let e = set_option(&mut c, &mut f, "min_levels", "many").unwrap_err().to_string();
        assert!(e.contains("min_levels") && e.contains("'many'"), "{e}");
        assert!(set_option(&mut c, &mut f, "no_such", "1").is_err());
    }

    #[test]
    fn unsynced_writes_promise_less_than_those_of_engines_that_write_their_log() {
        let kingtide = crate::engine::kingtide::durability_in_words("process");
        let differences = crate::results::equality::differences(&[
            ("kingtide", &[], &kingtide),
            ("tidesdb", &[], durability_in_words(false)),
        ]);
        let told: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["durability differs: kingtide end of the process, tidesdb less than the end of the process"]);
        let synced = crate::engine::kingtide::durability_in_words("power");
        let both = [("kingtide", &[][..], synced.as_str()), ("tidesdb", &[][..], durability_in_words(true))];
        assert_eq!(crate::results::equality::differences(&both), []);
    }

    #[test]
    fn zero_stands_for_tidesdbs_own_defaults() {
        // SAFETY: all bits zero is a valid value of both structs.
        let (mut c, mut f) = unsafe { (std::mem::zeroed::<Config>(), std::mem::zeroed::<FamilyConfig>()) };
        let mut own = (c, f);
        (own.0.num_compaction_threads, own.0.num_flush_threads, own.0.max_open_sstables) = (1, 2, 256);
        (own.0.memtable_skip_list_probability, own.1.level_size_ratio) = (0.25, 10);
        (own.0.block_cache_size, own.0.memtable_write_buffer_size) = (8 << 20, 4 << 20);
        for (name, value) in [
            ("num_compaction_threads", "8"),
            ("num_compaction_threads", "0"),
            ("num_flush_threads", "3"),
            ("max_open_sstables", "0"),
            ("skip_list_probability", "0"),
            ("level_size_ratio", "0"),
            ("write_buffer_size", "0"),
        ] {
            set_option(&mut c, &mut f, name, value).unwrap();
        }
        own_where_0(&mut c, &mut f, &own);
        assert_eq!((c.num_compaction_threads, c.num_flush_threads, c.max_open_sstables), (1, 3, 256));
        assert_eq!((c.memtable_skip_list_probability, f.level_size_ratio), (0.25, 10));
        assert_eq!((c.block_cache_size, c.memtable_write_buffer_size), (0, 4 << 20), "0 is a size of caches");
    }

    #[test]
    fn what_is_shown_is_what_the_engine_is_opened_with() {
        // SAFETY: all bits zero is a valid value of both structs.
        let (mut c, mut f) = unsafe { (std::mem::zeroed::<Config>(), std::mem::zeroed::<FamilyConfig>()) };
        (f.enable_bloom_filter, f.bloom_fpr) = (1, 0.01);
        let extra = [
            ("enable_bloom_filter", "0"),
            ("write_buffer_size", "32M"),
            ("compression", "zstd"),
            ("sync_mode", "full"),
            ("min_levels", "3"),
        ];
        let extra = extra.map(|(n, v)| (n.to_owned(), v.to_owned()));
        for (name, value) in &extra {
            set_option(&mut c, &mut f, name, value).unwrap();
        }
        let shown = effective(&c, &f, &extra);
        let get = |name: &str| shown.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!((get("bloom_fpr"), get("memtable_write_buffer_size")), (Some("0"), Some("33554432")));
        assert_eq!((get("encoding_pipeline"), get("memtable_sync_mode")), (Some("zstd"), Some("full")));
        assert_eq!((get("min_levels"), get("compression")), (Some("3"), None));
        let peer = [("bloom_fpr".to_owned(), "0.01".to_owned())];
        let differences = crate::results::equality::differences(&[("tidesdb", &shown, ""), ("tidesdb", &peer, "")]);
        assert!(differences.iter().any(|d| d.to_string() == "filter differs: tidesdb none, tidesdb 10 bits a key"));
    }
}
