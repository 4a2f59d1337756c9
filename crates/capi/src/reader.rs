//! Values read in pieces.

use crate::abi::{Out, OutHandle, buffer, bytes, need, out_handle};
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::snapshot::kingtide_snapshot;
use crate::txn::kingtide_txn;
use kingtide::ValueReader;
use std::ffi::c_void;

/// A reader of one value, which may be larger than memory. It reads the value as of the moment when it was opened, regardless
/// of later changes of the key, and keeps its file until it is freed. For one thread at a time.
pub struct kingtide_reader(ValueReader);

/// Hands out the reader of a value, if the key has one.
fn set(out: OutHandle<kingtide_reader>, opened: Option<ValueReader>) -> kingtide::Result<()> {
    if let Some(opened) = opened {
        out.set(kingtide_reader(opened));
    }
    Ok(())
}

/// Opens the value of a key for reading in pieces. `snapshot` may be NULL to read the current value. `reader` is set to NULL
/// if the key is absent, which is not an error. Free it with `kingtide_reader_free`.
///
/// Errors: CORRUPTION with file and offset, IO, CLOSED; INVALID_ARGUMENT (a snapshot of another database), TOO_OLD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_get_reader(
    family: Option<&kingtide_family>,
    snapshot: Option<&kingtide_snapshot>,
    key: *const c_void,
    key_len: usize,
    reader: *mut *mut kingtide_reader,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(reader, "reader")?;
        let (family, key) = (&need(family, "family")?.0, bytes(key, key_len, "key")?);
        let opened = match snapshot {
            None => family.get_reader(key)?,
            Some(snapshot) => snapshot.0.of(family).get_reader(key)?,
        };
        set(out, opened)
    })
}

/// Opens the value that a transaction sees of a key for reading in pieces: what `kingtide_txn_get` reads. It is read into
/// memory as a whole if it is not committed. `reader` is set to NULL if the key is absent. It may outlive the transaction. Free
/// it with `kingtide_reader_free`.
///
/// Errors: as `kingtide_txn_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_reader(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    reader: *mut *mut kingtide_reader,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(reader, "reader")?;
        let (txn, family, key) = (need(txn, "txn")?, &need(family, "family")?.0, bytes(key, key_len, "key")?);
        set(out, txn.0.get_reader(family, key)?)
    })
}

/// As `kingtide_txn_get_reader`, for the value that `kingtide_txn_get_for_update` reads, with the same locks and checks.
///
/// Errors: as `kingtide_txn_get_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_reader_for_update(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    reader: *mut *mut kingtide_reader,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(reader, "reader")?;
        let (txn, family, key) = (need(txn, "txn")?, &need(family, "family")?.0, bytes(key, key_len, "key")?);
        set(out, txn.0.get_reader_for_update(family, key)?)
    })
}

/// `kingtide_txn_get_reader_for_update`, with a shared lock.
///
/// Errors: as `kingtide_txn_get_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_reader_for_share(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    reader: *mut *mut kingtide_reader,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(reader, "reader")?;
        let (txn, family, key) = (need(txn, "txn")?, &need(family, "family")?.0, bytes(key, key_len, "key")?);
        set(out, txn.0.get_reader_for_share(family, key)?)
    })
}

/// Returns the length of the value in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_reader_len(reader: Option<&kingtide_reader>) -> u64 {
    reader.map_or(0, |r| r.0.len())
}

/// Reads up to `size` bytes of the value from byte `offset` on into `buf`, and sets `read` to their number: fewer than
/// `size` only at the value's end, and 0 beyond it. Reading forwards is cheap.
///
/// Errors: CORRUPTION with file and offset (other parts of the value can still be read), IO, INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_reader_read(
    reader: Option<&mut kingtide_reader>,
    offset: u64,
    buf: *mut c_void,
    size: usize,
    read: *mut usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(read, "read")?;
        let reader = need(reader, "reader")?;
        out.set(reader.0.read_at(offset, buffer(buf, size, "buf")?)?);
        Ok(())
    })
}

/// Frees a reader. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_reader_free(reader: Option<Box<kingtide_reader>>) {
    quietly((), || drop(reader));
}
