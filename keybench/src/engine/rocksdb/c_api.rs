//! The part of RocksDB's C API that is used. Declarations follow `rocksdb/c.h`, and only functions that both 7.8 and 11 export are here.

use crate::engine::peers::peer_symbols;
use crate::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};

/// Any of RocksDB's opaque types.
pub type Handle = *mut c_void;
/// Where RocksDB leaves an error message that it allocated.
pub type ErrorOut = *mut *mut c_char;

peer_symbols! {
    /// The part of the C API that is used.
    Api, "rocksdb_" {
        options_create: fn() -> Handle;
        options_destroy: fn(Handle);
        options_set_create_if_missing: fn(Handle, c_uchar);
        options_set_write_buffer_size: fn(Handle, usize);
        options_set_max_background_jobs: fn(Handle, c_int);
        options_set_compression: fn(Handle, c_int);
        options_set_block_based_table_factory: fn(Handle, Handle);
        get_options_from_string: fn(Handle, *const c_char, Handle, ErrorOut);
        block_based_options_create: fn() -> Handle;
        block_based_options_destroy: fn(Handle);
        block_based_options_set_block_cache: fn(Handle, Handle);
        block_based_options_set_filter_policy: fn(Handle, Handle);
        filterpolicy_create_bloom_full: fn(c_double) -> Handle;
        cache_create_lru: fn(usize) -> Handle;
        cache_destroy: fn(Handle);
        open_column_families: fn(Handle, *const c_char, c_int, *const *const c_char, *const Handle, *mut Handle, ErrorOut) -> Handle;
        column_family_handle_destroy: fn(Handle);
        create_column_family: fn(Handle, Handle, *const c_char, ErrorOut) -> Handle;
        put_cf: fn(Handle, Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorOut);
        get_pinned_cf: fn(Handle, Handle, Handle, *const c_char, usize, ErrorOut) -> Handle;
        flush_cf: fn(Handle, Handle, Handle, ErrorOut);
        close: fn(Handle);
        writeoptions_create: fn() -> Handle;
        writeoptions_destroy: fn(Handle);
        writeoptions_set_sync: fn(Handle, c_uchar);
        readoptions_create: fn() -> Handle;
        readoptions_destroy: fn(Handle);
        readoptions_set_iterate_upper_bound: fn(Handle, *const c_char, usize);
        put: fn(Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorOut);
        delete: fn(Handle, Handle, *const c_char, usize, ErrorOut);
        delete_range_cf: fn(Handle, Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorOut);
        get_pinned: fn(Handle, Handle, *const c_char, usize, ErrorOut) -> Handle;
        pinnableslice_value: fn(Handle, *mut usize) -> *const c_char;
        pinnableslice_destroy: fn(Handle);
        batched_multi_get_cf: fn(Handle, Handle, Handle, usize, *const *const c_char, *const usize, *mut Handle, *mut *mut c_char, c_uchar);
        writebatch_create: fn() -> Handle;
        writebatch_destroy: fn(Handle);
        writebatch_clear: fn(Handle);
        writebatch_put: fn(Handle, *const c_char, usize, *const c_char, usize);
        writebatch_delete: fn(Handle, *const c_char, usize);
        write: fn(Handle, Handle, Handle, ErrorOut);
        create_iterator: fn(Handle, Handle) -> Handle;
        iter_destroy: fn(Handle);
        iter_valid: fn(Handle) -> c_uchar;
        iter_seek_to_first: fn(Handle);
        iter_seek: fn(Handle, *const c_char, usize);
        iter_next: fn(Handle);
        iter_key: fn(Handle, *mut usize) -> *const c_char;
        iter_value: fn(Handle, *mut usize) -> *const c_char;
        iter_get_error: fn(Handle, ErrorOut);
        flushoptions_create: fn() -> Handle;
        flushoptions_destroy: fn(Handle);
        flush: fn(Handle, Handle, ErrorOut);
        compact_range: fn(Handle, *const c_char, usize, *const c_char, usize);
        property_value: fn(Handle, *const c_char) -> *mut c_char;
        property_int: fn(Handle, *const c_char, *mut u64) -> c_int;
        set_perf_level: fn(c_int);
        free: fn(*mut c_void);
    }
}

impl Api {
    /// A call's error message, which is freed.
    pub fn message(&self, message: *mut c_char) -> Option<String> {
        if message.is_null() {
            return None;
        }
        // SAFETY: a non-null message is a NUL-terminated string that RocksDB allocated for the caller to free.
        unsafe {
            let text = CStr::from_ptr(message).to_string_lossy().into_owned();
            (self.free)(message.cast());
            Some(text)
        }
    }

    /// A property that is a number: RocksDB tells some as integers and the rest, such as files of a level, as text.
    pub fn property(&self, db: Handle, name: &str) -> Option<f64> {
        let full = c_string(&format!("rocksdb.{name}")).ok()?;
        let mut value = 0u64;
        // SAFETY: the database is open, the name is NUL-terminated and `value` outlives the call.
        if unsafe { (self.property_int)(db, full.as_ptr(), &mut value) } == 0 {
            return Some(value as f64);
        }
        // SAFETY: as above; the text is ours to free, as messages are.
        let text = unsafe { (self.property_value)(db, full.as_ptr()) };
        self.message(text)?.trim().parse().ok()
    }

    /// Turns a call's error message into an error.
    pub fn check(&self, message: *mut c_char) -> Result<()> {
        match self.message(message) {
            None => Ok(()),
            Some(text) => Err(Error::failed(format!("rocksdb: {text}"))),
        }
    }
}

/// A text as C takes it.
pub fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::usage(format!("'{text}' contains a NUL byte")))
}

/// The bytes a pinnable slice holds.
///
/// # Safety
/// `slice` must be a live, non-null pinnable slice, and must not be destroyed while the bytes are in use.
pub unsafe fn slice_bytes(api: &Api, slice: Handle) -> &[u8] {
    let mut len = 0;
    // SAFETY: the caller vouches for the slice.
    unsafe { bytes((api.pinnableslice_value)(slice, &mut len), len) }
}

/// Foreign bytes as a slice; an empty value may come as a null pointer.
///
/// # Safety
/// `data` must be null or point to `len` bytes that stay as they are for `'a`.
pub unsafe fn bytes<'a>(data: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the caller vouches for pointer and length.
    if data.is_null() || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data.cast(), len) } }
}
