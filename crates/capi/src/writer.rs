//! Values written in pieces.

use crate::abi::{bytes, need, out_handle};
use crate::batch::kingtide_batch;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::txn::kingtide_txn;
use kingtide::{Error, ErrorKind, StagedValue, ValueWriter};
use std::ffi::c_void;
use std::time::Duration;

/// A writer of one value, which may be larger than memory. No read finds the value before it is finished, put under a key, and
/// committed. For one thread at a time.
pub struct kingtide_value_writer(Option<ValueWriter>);

/// A finished value that waits for the commit that puts it under a key. Its file is removed when this, and every batch
/// and transaction that has the value, is freed without a commit. May be used by any number of threads at once.
pub struct kingtide_staged_value(StagedValue);

/// Begins a value of any length that is written in pieces, in bounded memory. Free the writer with `kingtide_value_writer_free`.
/// A value of up to 1 MiB is kept in memory, a longer one goes to a file. In a family with `value_threshold` = 0, and with
/// `change_retention`, a value of any length is kept in memory.
///
/// Errors: CLOSED, READ_ONLY, POISONED, INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_value_writer(
    family: Option<&kingtide_family>,
    writer: *mut *mut kingtide_value_writer,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(writer, "writer")?;
        out.set(kingtide_value_writer(Some(need(family, "family")?.0.value_writer()?)));
        Ok(())
    })
}

/// Appends bytes to the value. After an error the value is discarded, and every further call returns the same error.
///
/// Errors: NO_SPACE, IO, CLOSED, INVALID_ARGUMENT (a value that is kept in memory and too long for a batch); BUSY (more values
/// are being written than `max_open_files` has room for); FINISHED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_value_writer_write(
    writer: Option<&mut kingtide_value_writer>,
    data: *const c_void,
    len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let writer = need(writer, "writer")?.0.as_mut();
        writer.ok_or_else(finished)?.append(bytes(data, len, "data")?)
    })
}

/// Returns the bytes written so far; 0 for NULL, and once it is finished.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_writer_len(writer: Option<&kingtide_value_writer>) -> u64 {
    writer.and_then(|w| w.0.as_ref()).map_or(0, ValueWriter::len)
}

/// Finishes the value. The writer cannot be used any further, but must still be freed. Free the value with
/// `kingtide_staged_value_free`, even after it was put.
///
/// Errors: as `kingtide_value_writer_write`; the value is then discarded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_value_writer_finish(
    writer: Option<&mut kingtide_value_writer>,
    value: *mut *mut kingtide_staged_value,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(value, "value")?;
        let writer = need(writer, "writer")?.0.take().ok_or_else(finished)?;
        out.set(kingtide_staged_value(writer.finish()?));
        Ok(())
    })
}

/// Frees a writer. An unfinished value is discarded. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_value_writer_free(writer: Option<Box<kingtide_value_writer>>) {
    quietly((), || drop(writer));
}

/// Returns the length of the value in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_staged_value_len(value: Option<&kingtide_staged_value>) -> u64 {
    value.map_or(0, |v| v.0.len())
}

/// Frees a staged value. A value that was committed, or that a batch or transaction has, stays. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_staged_value_free(value: Option<Box<kingtide_staged_value>>) {
    quietly((), || drop(value));
}

/// Sets a key to a staged value of the same family, and commits that. A value can be committed only once.
///
/// Errors: INVALID_ARGUMENT (an empty key, a value of another family, one that was committed); as `kingtide_db_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_put_staged(
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&kingtide_staged_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(family, "family")?.0.put_staged(bytes(key, key_len, "key")?, &need(value, "value")?.0).map(drop))
}

/// Sets a key to a staged value of the same family, without a copy. It expires after `ttl_ms` milliseconds, unless that is
/// 0. Until it is committed, the value can be put into other batches and transactions too; it can be committed only once, and the
/// commit of another returns INVALID_ARGUMENT.
///
/// Errors: INVALID_ARGUMENT (an empty key, a value of another family, one that was committed or prepared, or that the batch has
/// already).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_batch_put_staged(
    batch: Option<&mut kingtide_batch>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&kingtide_staged_value>,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (batch, family, value) = (need(batch, "batch")?, need(family, "family")?, need(value, "value")?);
        let key = bytes(key, key_len, "key")?;
        match ttl_ms {
            0 => batch.0.put_staged(&family.0, key, &value.0),
            ttl => batch.0.put_staged_ttl(&family.0, key, &value.0, Duration::from_millis(ttl)),
        }
    })
}

/// Does the same in a transaction, which reads the value like its other writes. After a conflict the value can be put again. A
/// transaction that is prepared keeps the value for itself, after a crash too, until it is committed or rolled back.
///
/// Errors: as `kingtide_txn_put` and `kingtide_batch_put_staged`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_put_staged(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&kingtide_staged_value>,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family, value) = (need(txn, "txn")?, need(family, "family")?, need(value, "value")?);
        let key = bytes(key, key_len, "key")?;
        match ttl_ms {
            0 => txn.0.put_staged(&family.0, key, &value.0),
            ttl => txn.0.put_staged_ttl(&family.0, key, &value.0, Duration::from_millis(ttl)),
        }
    })
}

fn finished() -> Error {
    Error::new(ErrorKind::Finished, "the value writer is finished; create another for another value")
}
