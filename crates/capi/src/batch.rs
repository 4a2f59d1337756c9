//! Batches: operations that are committed together.

use crate::abi::{bytes, expiry, need};
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use kingtide::WriteBatch;
use std::ffi::c_void;
use std::time::Duration;

/// Operations over any families, to be committed at once with `kingtide_db_write`, which fails with CLOSED if one of the families was
/// dropped; adding operations does not. For one thread at a time.
#[derive(Default)]
pub struct kingtide_batch(pub(crate) WriteBatch);

/// An empty batch.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_batch_new() -> Box<kingtide_batch> {
    Box::default()
}

/// Removes all operations, but keeps the memory.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_batch_clear(batch: Option<&mut kingtide_batch>) {
    quietly((), || batch.map_or((), |b| b.0.clear()));
}

/// Number of operations.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_batch_count(batch: Option<&kingtide_batch>) -> usize {
    batch.map_or(0, |b| b.0.len())
}

/// Returns the size of the operations in the log, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_batch_bytes(batch: Option<&kingtide_batch>) -> usize {
    batch.map_or(0, |b| b.0.bytes())
}

/// Sets a key. Key and value are copied.
///
/// Errors: INVALID_ARGUMENT (an empty key, a batch of 4 GiB).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_put(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (batch, family) = (need(batch, "batch")?, need(family, "family")?);
        batch.0.put(&family.0, bytes(key, key_len, "key")?, bytes(value, value_len, "value")?)
    })
}

/// Sets a key that expires `ttl_ms` milliseconds from now.
///
/// Errors: as `kingtide_batch_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_put_ttl(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (batch, family) = (need(batch, "batch")?, need(family, "family")?);
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        batch.0.put_ttl(&family.0, key, value, Duration::from_millis(ttl_ms))
    })
}

/// Sets a key that expires at a moment given in milliseconds since 1970.
///
/// Errors: as `kingtide_batch_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_put_until(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    expires_at_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (batch, family) = (need(batch, "batch")?, need(family, "family")?);
        batch.0.put_until(
            &family.0,
            bytes(key, key_len, "key")?,
            bytes(value, value_len, "value")?,
            expiry(expires_at_ms),
        )
    })
}

/// Deletes a key. Deleting an absent key is not an error.
///
/// Errors: as `kingtide_batch_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_delete(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(batch, "batch")?.0.delete(&need(family, "family")?.0, bytes(key, key_len, "key")?))
}

/// Deletes a key that was put exactly once since its last delete; cheaper to reclaim. If the key was put more often, an
/// older value may reappear.
///
/// Errors: as `kingtide_batch_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_single_delete(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(batch, "batch")?.0.single_delete(&need(family, "family")?.0, bytes(key, key_len, "key")?))
}

/// Deletes all keys from `start` up to, and without, `end`.
///
/// Errors: as `kingtide_batch_put`; INVALID_ARGUMENT if `start` sorts after `end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_delete_range(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    start: *const c_void,
    start_len: usize,
    end: *const c_void,
    end_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (batch, family) = (need(batch, "batch")?, need(family, "family")?);
        batch.0.delete_range(&family.0, bytes(start, start_len, "start")?..bytes(end, end_len, "end")?)
    })
}

/// Deletes all keys that begin with a prefix, including those that the batch wrote before.
///
/// Errors: as `kingtide_batch_put`; INVALID_ARGUMENT for a key order that does not support prefix iteration;
/// CORRUPTION, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_delete_prefix(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    prefix: *const c_void,
    prefix_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        need(batch, "batch")?.0.delete_prefix(&need(family, "family")?.0, bytes(prefix, prefix_len, "prefix")?)
    })
}

/// Frees a batch. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_batch_free(batch: Option<Box<kingtide_batch>>) {
    quietly((), || drop(batch));
}
