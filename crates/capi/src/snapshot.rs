//! Snapshots: the whole database as of one moment.

use crate::abi::{self, bytes, need, out_handle};
use crate::db::kingtide_db;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::value::{kingtide_strings, kingtide_value};
use kingtide::Snapshot;
use std::ffi::{c_char, c_void};

/// A consistent view of all families as of one moment. The versions that it sees are kept until it is freed. Any number of threads may
/// use it at once.
pub struct kingtide_snapshot(pub(crate) Snapshot);

/// Takes a snapshot of the current state. Free it with `kingtide_snapshot_free`.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_snapshot(
    db: Option<&kingtide_db>,
    snapshot: *mut *mut kingtide_snapshot,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(snapshot, "snapshot")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        out.set(kingtide_snapshot(db.db.snapshot()));
        Ok(())
    })
}

/// Takes a snapshot of the moment at which `sequence` was the newest sequence number.
///
/// Errors: TOO_OLD, INVALID_ARGUMENT (not committed yet), CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_snapshot_at(
    db: Option<&kingtide_db>,
    sequence: u64,
    snapshot: *mut *mut kingtide_snapshot,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(snapshot, "snapshot")?;
        out.set(kingtide_snapshot(need(db, "db")?.db.snapshot_at(sequence)?));
        Ok(())
    })
}

/// Returns the oldest sequence number at which `kingtide_db_snapshot_at` can read.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_db_oldest_readable_sequence(db: Option<&kingtide_db>) -> u64 {
    quietly(0, || db.map_or(0, |d| d.db.oldest_readable_sequence()))
}

/// Takes a snapshot of the current state and keeps it under a name until it is dropped or the database closes. `snapshot` is set to a
/// handle of it.
///
/// Errors: EXISTS, INVALID_ARGUMENT (an empty or too long name, too many of them), CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_name_snapshot(
    db: Option<&kingtide_db>,
    name: *const c_char,
    snapshot: *mut *mut kingtide_snapshot,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(snapshot, "snapshot")?;
        out.set(kingtide_snapshot(need(db, "db")?.db.create_named_snapshot(abi::text(name, "name")?)?));
        Ok(())
    })
}

/// A handle of the snapshot of that name.
///
/// Errors: NOT_FOUND, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_named_snapshot(
    db: Option<&kingtide_db>,
    name: *const c_char,
    snapshot: *mut *mut kingtide_snapshot,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(snapshot, "snapshot")?;
        out.set(kingtide_snapshot(need(db, "db")?.db.named_snapshot(abi::text(name, "name")?)?));
        Ok(())
    })
}

/// The names of named snapshots, sorted.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_snapshot_names(
    db: Option<&kingtide_db>,
    names: *mut *mut kingtide_strings,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(names, "names")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        out.set(db.db.named_snapshots().into_iter().map(|(name, _)| name).collect());
        Ok(())
    })
}

/// Drops a named snapshot. Its handles stay valid.
///
/// Errors: NOT_FOUND, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_drop_named_snapshot(
    db: Option<&kingtide_db>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.drop_named_snapshot(abi::text(name, "name")?))
}

/// The newest sequence number that it sees; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_snapshot_sequence(snapshot: Option<&kingtide_snapshot>) -> u64 {
    snapshot.map_or(0, |s| s.0.sequence())
}

/// Reads a key as of a snapshot.
///
/// Errors: as `kingtide_family_get`; INVALID_ARGUMENT (a snapshot of another database), TOO_OLD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_get_at(
    family: Option<&kingtide_family>,
    snapshot: Option<&kingtide_snapshot>,
    key: *const c_void,
    key_len: usize,
    value: Option<&mut kingtide_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let value = need(value, "value")?;
        value.0 = None;
        let snapshot = need(snapshot, "snapshot")?;
        value.0 = snapshot.0.get(&need(family, "family")?.0, bytes(key, key_len, "key")?)?;
        Ok(())
    })
}

/// Frees a snapshot. Objects that were created from it may still be used. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_snapshot_free(snapshot: Option<Box<kingtide_snapshot>>) {
    quietly((), || drop(snapshot));
}
