//! The part of TidesDB's C API that is used. Declarations and struct layouts follow its `db.h`.

use crate::engine::Attempt;
use crate::engine::peers::peer_symbols;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_double, c_float, c_int, c_void};

/// Any of TidesDB's opaque types.
pub type Handle = *mut c_void;

pub const SUCCESS: c_int = 0;
pub const NOT_FOUND: c_int = -3;
pub const EXISTS: c_int = -6;
/// "Transient contention, never a failed operation": to be asked again.
pub const LOCKED: c_int = -12;
pub const READ_COMMITTED: c_int = 1;
pub const SYNC_FULL: c_int = 1;
pub const LOG_NONE: c_int = 0;

/// `tidesdb_column_family_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FamilyConfig {
    pub name: [c_char; 128],
    pub level_size_ratio: usize,
    pub min_levels: c_int,
    pub dividing_level_offset: c_int,
    pub keep_values_inline: c_int,
    pub btree_klog_block_size: usize,
    pub encoding_pipeline: [u8; 8],
    pub encoding_count: u8,
    pub enable_bloom_filter: c_int,
    pub bloom_fpr: c_double,
    pub default_isolation_level: c_int,
    pub l1_file_count_trigger: c_int,
    pub tombstone_density_trigger: c_double,
    pub tombstone_density_min_entries: u64,
    pub commit_hook: *mut c_void,
    pub commit_hook_context: *mut c_void,
}

/// `tidesdb_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    pub db_path: *mut c_char,
    pub num_flush_threads: c_int,
    pub num_compaction_threads: c_int,
    pub log_level: c_int,
    pub block_cache_size: usize,
    pub max_open_sstables: usize,
    pub log_to_file: c_int,
    pub log_truncation_at: usize,
    pub memtable_write_buffer_size: usize,
    pub memtable_skip_list_max_level: c_int,
    pub memtable_skip_list_probability: c_float,
    pub memtable_sync_mode: c_int,
    pub memtable_sync_interval_us: u64,
    pub value_separation_threshold: usize,
    pub vlog_segment_size: usize,
    pub memtable_l0_queue_stall_threshold: c_int,
    pub memtable_idle_flush_seconds: c_int,
    pub txn_timeout_seconds: i64,
}

// The library fills these in place: a layout that drifted must fail the build, not the measurement.
const _: () = assert!(size_of::<FamilyConfig>() == 224 && size_of::<Config>() == 120);

/// `tidesdb_db_stats_t`: 36 counters of 8 bytes after four ints, some ints among them. Read by name below.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DbStats {
    pub num_column_families: c_int,
    pub immutable_memtable_count: c_int,
    pub compaction_pending_count: c_int,
    pub total_sstable_count: c_int,
    pub total_data_size_bytes: u64,
    pub num_open_sstables: c_int,
    pub global_seq: u64,
    pub min_snapshot_seq: u64,
    pub active_txn_count: c_int,
    pub txn_memory_bytes: i64,
    pub txn_commits: u64,
    pub txn_conflicts: u64,
    pub memtable_bytes: usize,
    pub is_flushing: c_int,
    pub next_cf_index: u32,
    pub wal_generation: u64,
    pub flush_count: u64,
    pub compaction_count: u64,
    pub flush_bytes_written: u64,
    pub compaction_bytes_written: u64,
    pub compaction_bytes_read: u64,
    pub wal_bytes_written: u64,
    pub user_bytes_written: u64,
    pub vlog_file_size: u64,
    pub vlog_value_count: u64,
    pub vlog_used_bytes: u64,
    pub vlog_stored_bytes: u64,
    pub vlog_live_bytes: u64,
    pub vlog_segment_count: u64,
    pub vlog_bytes_written: u64,
    pub vlog_dead_bytes: u64,
    pub vlog_reclaim_calls: u64,
    pub vlog_reclaim_passes: u64,
    pub vlog_segments_retired: u64,
    pub vlog_segments_drainable: u64,
    pub writes_throttled: u64,
    pub writes_blocked: u64,
    pub write_stall_us: u64,
    pub write_stall_ceiling_hits: u64,
}

const _: () = assert!(size_of::<DbStats>() == 288);

peer_symbols! {
    /// The part of the C API that is used.
    Api, "tidesdb_" {
        strerror: fn(c_int) -> *const c_char;
        free: fn(*mut c_void);
        default_config: fn() -> Config;
        default_column_family_config: fn() -> FamilyConfig;
        open: fn(*const Config, *mut Handle) -> c_int;
        close: fn(Handle) -> c_int;
        create_column_family: fn(Handle, *const c_char, *const FamilyConfig) -> c_int;
        get_column_family: fn(Handle, *const c_char) -> Handle;
        txn_begin_with_isolation: fn(Handle, c_int, *mut Handle) -> c_int;
        txn_put: fn(Handle, Handle, *const u8, usize, *const u8, usize, i64) -> c_int;
        txn_get: fn(Handle, Handle, *const u8, usize, *mut *mut u8, *mut usize) -> c_int;
        txn_get_notrack: fn(Handle, Handle, *const u8, usize, *mut *mut u8, *mut usize) -> c_int;
        txn_delete: fn(Handle, Handle, *const u8, usize) -> c_int;
        txn_delete_range: fn(Handle, Handle, *const u8, usize, *const u8, usize) -> c_int;
        txn_commit: fn(Handle) -> c_int;
        txn_reset: fn(Handle, c_int) -> c_int;
        txn_free: fn(Handle);
        iter_new: fn(Handle, Handle, *mut Handle) -> c_int;
        iter_new_range: fn(Handle, Handle, *const u8, usize, *const u8, usize, *mut Handle) -> c_int;
        iter_free: fn(Handle);
        iter_seek_to_first: fn(Handle) -> c_int;
        iter_seek: fn(Handle, *const u8, usize) -> c_int;
        iter_next: fn(Handle) -> c_int;
        iter_valid: fn(Handle) -> c_int;
        iter_key: fn(Handle, *mut *mut u8, *mut usize) -> c_int;
        iter_key_value: fn(Handle, *mut *mut u8, *mut usize, *mut *mut u8, *mut usize) -> c_int;
        flush_memtable: fn(Handle) -> c_int;
        is_flushing: fn(Handle) -> c_int;
        compact: fn(Handle, Handle) -> c_int;
        is_compacting: fn(Handle) -> c_int;
        get_db_stats: fn(Handle, *mut DbStats) -> c_int;
    }
}

impl Api {
    /// A code's error, or what to do next.
    pub fn check(&self, doing: &str, code: c_int) -> Result<Attempt<()>> {
        match code {
            SUCCESS => Ok(Attempt::Done(())),
            LOCKED => Ok(Attempt::Busy),
            _ => Err(self.error(doing, code)),
        }
    }

    #[cold]
    pub fn error(&self, doing: &str, code: c_int) -> Error {
        // SAFETY: the returned string is static and never null, whatever the code.
        let text = unsafe { CStr::from_ptr((self.strerror)(code)) };
        Error::failed(format!("tidesdb: {doing}: {} (code {code})", text.to_string_lossy()))
    }
}

/// Foreign bytes as a slice; an empty value may come as a null pointer.
///
/// # Safety
/// `data` must be null or point to `len` bytes that stay as they are for `'a`.
pub unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller vouches for pointer and length.
    if data.is_null() || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } }
}
