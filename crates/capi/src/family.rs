//! Column families: reading and writing outside of transactions.

use crate::abi::{self, Out, array, bound, bytes, need, out_handle};
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::options::give_option;
use crate::value::{kingtide_text, kingtide_value};
use kingtide::{ColumnFamily, PinnedValue, Result};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// A handle of a column family. Any number of threads may use it at once. It does not keep the database open: after that
/// was closed or the family dropped, calls return `KINGTIDE_CLOSED`.
pub struct kingtide_family(pub(crate) ColumnFamily);

/// Borrowed bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_slice {
    /// The first byte; may be NULL when there is none.
    pub data: *const c_void,
    /// The number of elements.
    pub len: usize,
}

/// Returns its current name.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_name(
    family: Option<&kingtide_family>,
    name: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(name, "name")?;
        out.set(need(family, "family")?.0.name().into());
        Ok(())
    })
}

/// Returns its number, which identifies it in reports of locks and changes and is never reused. `UINT32_MAX` for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_family_id(family: Option<&kingtide_family>) -> u32 {
    quietly(u32::MAX, || family.map_or(u32::MAX, |f| f.0.id()))
}

/// The name of its key order.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_order(
    family: Option<&kingtide_family>,
    name: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(name, "name")?;
        out.set(need(family, "family")?.0.order().name().to_owned().into());
        Ok(())
    })
}

/// Compares two keys in the family's order: -1, 0 or 1. 0 also for NULL, or bytes that are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_compare(
    family: Option<&kingtide_family>,
    a: *const c_void,
    a_len: usize,
    b: *const c_void,
    b_len: usize,
) -> i32 {
    quietly(0, || match (family, bytes(a, a_len, "a"), bytes(b, b_len, "b")) {
        (Some(f), Ok(a), Ok(b)) => f.0.order().compare(a, b) as i32,
        _ => 0,
    })
}

/// Returns the current value of one of its options, as text.
///
/// Errors: NOT_FOUND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_get_option(
    family: Option<&kingtide_family>,
    name: *const c_char,
    value: *mut *mut kingtide_text,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, name) = (out_handle(value, "value")?, abi::text(name, "name")?);
        give_option(out, name, need(family, "family")?.0.options().get(name))
    })
}

/// Changes one of its options while the database is open, and stores it; only those that `kingtide_option_get_info` calls
/// live.
///
/// Errors: INVALID_ARGUMENT (unknown, fixed, or out of range), IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_set_option(
    family: Option<&kingtide_family>,
    name: *const c_char,
    value: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.set_option(abi::text(name, "name")?, abi::text(value, "value")?))
}

/// Sets a key, as a commit of its own.
///
/// Errors: INVALID_ARGUMENT (an empty key), and those of `kingtide_db_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_put(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        need(family, "family")?.0.put(bytes(key, key_len, "key")?, bytes(value, value_len, "value")?).map(drop)
    })
}

/// Sets a key that expires after `ttl_ms` milliseconds.
///
/// Errors: as `kingtide_family_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_put_ttl(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        need(family, "family")?.0.put_ttl(key, value, Duration::from_millis(ttl_ms)).map(drop)
    })
}

/// Deletes a key. Deleting an absent key is not an error.
///
/// Errors: as `kingtide_family_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_delete(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.delete(bytes(key, key_len, "key")?).map(drop))
}

/// Deletes a key that was put exactly once since its last delete. See `kingtide_batch_single_delete`.
///
/// Errors: as `kingtide_family_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_single_delete(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.single_delete(bytes(key, key_len, "key")?).map(drop))
}

/// Deletes all keys from `start` up to, and without, `end`.
///
/// Errors: as `kingtide_family_put`; INVALID_ARGUMENT if `start` sorts after `end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_delete_range(
    family: Option<&kingtide_family>,
    start: *const c_void,
    start_len: usize,
    end: *const c_void,
    end_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        need(family, "family")?.0.delete_range(bytes(start, start_len, "start")?..bytes(end, end_len, "end")?).map(drop)
    })
}

/// Deletes all keys that begin with a prefix.
///
/// Errors: as `kingtide_batch_delete_prefix` and `kingtide_db_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_delete_prefix(
    family: Option<&kingtide_family>,
    prefix: *const c_void,
    prefix_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.delete_prefix(bytes(prefix, prefix_len, "prefix")?).map(drop))
}

/// Replaces a key's value if it is the expected one, atomically: no other write comes in between. An `expected` that is NULL
/// stands for an absent key, and a `desired` that is NULL deletes the key. `swapped` is set to whether it was replaced. `found`,
/// unless NULL, holds the value that was there instead when it was not, and nothing otherwise, as after an error.
///
/// Errors: as `kingtide_family_get` and `kingtide_family_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_compare_and_swap(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    expected: Option<&kingtide_slice>,
    desired: Option<&kingtide_slice>,
    found: Option<&mut kingtide_value>,
    swapped: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let mut found = found;
        if let Some(found) = &mut found {
            found.0 = None;
        }
        let out = Out::new(swapped, "swapped")?;
        let part = |s: Option<&kingtide_slice>, name| s.map(|s| bytes(s.data, s.len, name)).transpose();
        let (expected, desired) = (part(expected, "expected")?, part(desired, "desired")?);
        let result = need(family, "family")?.0.compare_and_swap(bytes(key, key_len, "key")?, expected, desired)?;
        out.set(result.is_ok());
        if let Some(found) = found {
            found.0 = result.err().flatten();
        }
        Ok(())
    })
}

/// Reads a key into `value`, created by `kingtide_value_new`. An absent key is not an error: `value` then holds nothing,
/// as after an error. Allocates nothing for small values, or for large ones in the block cache.
///
/// Errors: CORRUPTION with file and offset, IO, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_get(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&mut kingtide_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let value = need(value, "value")?;
        value.0 = None;
        value.0 = need(family, "family")?.0.get(bytes(key, key_len, "key")?)?;
        Ok(())
    })
}

/// Sets `found` to whether a key has a value, as `kingtide_family_get` sees it. No value log is read.
///
/// Errors: as `kingtide_family_get`; INVALID_ARGUMENT (`found` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_contains(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    found: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(found, "found")?;
        out.set(need(family, "family")?.0.contains_key(bytes(key, key_len, "key")?)?);
        Ok(())
    })
}

/// The keys of a read of several.
///
/// # Safety
/// As [`array`], and each of its elements as [`bytes`].
pub(crate) unsafe fn keys_of<'a>(keys: *const kingtide_slice, count: usize) -> Result<Vec<&'a [u8]>> {
    array(keys, count, "keys")?.iter().map(|k| bytes(k.data, k.len, "keys")).collect()
}

/// The places of a read of several, emptied.
///
/// # Safety
/// As [`array`], and each of its elements is NULL or a value that no other code uses.
pub(crate) unsafe fn places_of(values: *const *mut kingtide_value, count: usize) -> Result<Vec<Out<kingtide_value>>> {
    let values = array(values, count, "values")?;
    let places = values.iter().map(|v| Out::new(*v, "values")).collect::<Result<Vec<_>>>()?;
    for value in values {
        Out::new(*value, "values")?.replace(kingtide_value(None));
    }
    Ok(places)
}

/// Puts what was found into its places, and how it went into `statuses` unless that is NULL. The first error, if there was one.
///
/// # Safety
/// Each place holds a value that no other code uses, and `statuses` is NULL or has room for as many as there are.
pub(crate) unsafe fn found(
    values: Vec<Result<Option<PinnedValue>>>,
    places: Vec<Out<kingtide_value>>,
    statuses: *mut i32,
) -> Result<()> {
    let mut first = Ok(());
    let mut went = Vec::with_capacity(places.len());
    for (value, place) in values.into_iter().zip(places) {
        went.push(value.as_ref().map_or_else(|e| kingtide_status::of(e) as i32, |_| 0));
        let value = value.unwrap_or_else(|e| {
            if first.is_ok() {
                first = Err(e);
            }
            None
        });
        place.replace(kingtide_value(value));
    }
    if let Ok(statuses) = Out::new(statuses, "statuses") {
        statuses.set_all(&went);
    }
    first
}

/// Reads `count` keys as of one moment into as many values, sharing common work. All values must be
/// different objects. If some keys cannot be read, the others are, and the first error is returned; `statuses`, unless NULL, has
/// room for `count` statuses, one per key. They are not written if nothing was read at all, for example because an argument is NULL;
/// the values then hold nothing, unless one of the pointers to them is NULL.
///
/// Errors: as `kingtide_family_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_multi_get(
    family: Option<&kingtide_family>,
    keys: *const kingtide_slice,
    count: usize,
    values: *const *mut kingtide_value,
    statuses: *mut i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let places = places_of(values, count)?; // first, so that they hold nothing after an error
        let (family, keys) = (need(family, "family")?, keys_of(keys, count)?);
        found(family.0.multi_get(&keys), places, statuses)
    })
}

/// Flushes the family's memtables to tables and waits for it.
///
/// Errors: CLOSED, READ_ONLY; the reason why the flush failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_flush(
    family: Option<&kingtide_family>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.flush())
}

/// Flushes memtables, compacts all tables that overlap the range into the deepest level, and waits for it. NULL is an
/// open end; both ends belong to the range, regardless of their kind.
///
/// Errors: the reason why the compaction failed; INVALID_ARGUMENT if `lower` sorts after `upper`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_compact_range(
    family: Option<&kingtide_family>,
    lower: *const abi::kingtide_bound,
    upper: *const abi::kingtide_bound,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.compact_range((bound(lower, "lower")?, bound(upper, "upper")?)))
}

/// Reclaims, soon and in the background, the space of entries that a range delete deleted from `lower` up to, not including,
/// `upper`. Snapshots still see these entries, and their space is reclaimed when the snapshots are freed. After a restart it is
/// left to compactions.
///
/// Errors: INVALID_ARGUMENT if `lower` sorts after `upper`; CLOSED, READ_ONLY; CORRUPTION and IO from opening a table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_reclaim_range(
    family: Option<&kingtide_family>,
    lower: *const c_void,
    lower_len: usize,
    upper: *const c_void,
    upper_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (lower, upper) = (bytes(lower, lower_len, "lower")?, bytes(upper, upper_len, "upper")?);
        need(family, "family")?.0.reclaim_range(lower..upper)
    })
}

/// Frees a handle; the family stays. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_family_free(family: Option<Box<kingtide_family>>) {
    quietly((), || drop(family));
}
