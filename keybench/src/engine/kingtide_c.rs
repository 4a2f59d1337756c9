//! Kingtide through its C API, to show what that boundary costs beside [`kingtide`](super::kingtide): the functions that C
//! calls, linked in, with pointers and lengths, statuses and handles as C has them.
//!
//! How a careful user would call it: a session keeps one place for values, one batch and one transaction, and uses each again.

use super::kingtide::durability_in_words;
use super::txn::{Isolation, Step, Transactions, TxnMode};
use super::{Attempt, Bounds, Cursor, Engine, EngineOptions, Session, until_ready};
use crate::error::{Error, Result};
use kingtide_capi_rlib as ffi;
use kingtide_capi_rlib::{kingtide_error, kingtide_status};
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// Where a call puts its error.
type ErrorOut = *mut *mut kingtide_error;

/// Bytes of a batch's memory that a session keeps for the next one.
const KEEP_BATCH: usize = 16 << 20;

/// A handle that a function has put into its out-parameter.
fn own<T>(doing: &str, handle: *mut T) -> Result<Box<T>> {
    if handle.is_null() {
        return Err(Error::failed(format!("kingtide: {doing} gave no handle")));
    }
    // SAFETY: the API hands over an object that it has boxed and that the caller frees; its functions for that take the
    // box itself.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Text that the API answered with.
fn text(answer: *const c_char) -> String {
    // SAFETY: the API's strings end with a NUL and are never null; they are copied while their owner is borrowed.
    unsafe { CStr::from_ptr(answer) }.to_string_lossy().into_owned()
}

/// Bytes that the API answered with.
///
/// # Safety
/// The object that they belong to must stay as it is for `'a`.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the API answers with a pointer to so many bytes, or with null and 0; the caller vouches for how long.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } }
}

/// What a call came to, in the harness's terms.
enum Called {
    Done,
    Busy,
    Conflict,
}

fn call(function: impl FnOnce(ErrorOut) -> kingtide_status) -> Result<Called> {
    let mut error = null_mut();
    match function(&mut error) {
        kingtide_status::KINGTIDE_OK => Ok(Called::Done),
        status => refused(status, error),
    }
}

#[cold]
fn refused(status: kingtide_status, error: *mut kingtide_error) -> Result<Called> {
    let error = own("a failed call", error)?;
    let transient = ffi::kingtide_error_is_transient_conflict(Some(&error));
    let message = text(ffi::kingtide_error_message(Some(&error)));
    ffi::kingtide_error_free(Some(error));
    match status {
        kingtide_status::KINGTIDE_BUSY => Ok(Called::Busy),
        _ if transient => Ok(Called::Conflict),
        _ => Err(Error::failed(format!("kingtide: {message}"))),
    }
}

/// Calls again while the engine is busy.
fn step(mut function: impl FnMut(ErrorOut) -> kingtide_status) -> Result<Step<()>> {
    until_ready(|| {
        Ok(match call(&mut function)? {
            Called::Done => Attempt::Done(Step::Done(())),
            Called::Busy => Attempt::Busy,
            Called::Conflict => Attempt::Done(Step::Conflict),
        })
    })
}

/// The same for what meets no conflict.
fn wait(function: impl FnMut(ErrorOut) -> kingtide_status) -> Result<()> {
    match step(function)? {
        Step::Done(()) => Ok(()),
        Step::Conflict => Err(Error::failed("kingtide: a conflict outside any transaction")),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::usage(format!("'{text}' contains a NUL byte")))
}

struct KingtideEngine {
    db: Arc<ffi::kingtide_db>,
    shown: Vec<(String, String)>,
}

/// Opens or creates a database in `dir`.
pub fn open(dir: &Path, options: &EngineOptions) -> Result<Box<dyn Engine>> {
    let durability = if options.sync { "power" } else { "process" };
    let shared = [
        ("memtable_size", options.memtable_size.map(|n| n.to_string())),
        ("filter_fp", Some(options.bloom_fp.to_string())),
        ("compression", Some(options.compression.to_string())),
        ("block_cache_size", options.block_cache_size.map(|n| n.to_string())),
        ("durability", Some(durability.to_owned())),
    ];
    let shared = shared.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?)));
    let given: Vec<(String, String)> = shared.chain(options.extra.iter().cloned()).collect();
    let shown = super::kingtide::effective(options)?;
    let mut own_options = ffi::kingtide_options_new();
    for (name, value) in &given {
        let (n, v) = (c_string(name)?, c_string(value)?);
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        call(|err| unsafe { ffi::kingtide_options_set(Some(&mut own_options), n.as_ptr(), v.as_ptr(), err) })
            .map_err(|e| Error::usage(e.to_string()))?;
    }
    let path = c_string(&dir.to_string_lossy())?;
    let mut db = null_mut();
    // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
    wait(|err| unsafe { ffi::kingtide_db_open(path.as_ptr(), Some(&own_options), &mut db, err) })?;
    ffi::kingtide_options_free(Some(own_options));
    Ok(Box::new(KingtideEngine { db: Arc::from(own("open", db)?), shown }))
}

impl Engine for KingtideEngine {
    fn version(&self) -> String {
        text(ffi::kingtide_version())
    }

    fn durability(&self) -> String {
        let shown = self.shown.iter().rev().find(|(name, _)| name == "durability");
        durability_in_words(shown.map_or("process", |(_, v)| v))
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.shown.clone()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let mut family = null_mut();
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_db_default_family(Some(&self.db), &mut family, err) })?;
        Ok(Box::new(KingtideSession {
            family: own("default family", family)?,
            batch: ffi::kingtide_batch_new(),
            value: ffi::kingtide_value_new(),
            values: Vec::new(),
            txn: None,
            db: Arc::clone(&self.db),
        }))
    }

    fn flush(&self) -> Result<()> {
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_db_flush(Some(&self.db), err) })
    }

    fn compact(&self) -> Result<()> {
        let mut family = null_mut();
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_db_default_family(Some(&self.db), &mut family, err) })?;
        let family = own("default family", family)?;
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_compact_range(Some(&family), null(), null(), err) })?;
        ffi::kingtide_family_free(Some(family));
        Ok(())
    }

    fn stats(&self) -> Vec<(String, f64)> {
        let mut stats = null_mut();
        let taken =
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            wait(|err| unsafe { ffi::kingtide_db_stats(Some(&self.db), &mut stats, err) }).and_then(|()| own("stats", stats));
        let Ok(stats) = taken else { return Vec::new() };
        let size = size_of::<ffi::kingtide_stat>();
        let mut one =
            ffi::kingtide_stat { size, name: null(), description: null(), value: 0, is_gauge: 0, reserved: 0 };
        let mut all = Vec::new();
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        while unsafe { ffi::kingtide_stats_get(Some(&stats), all.len(), &mut one) } {
            all.push((text(one.name), one.value as f64));
        }
        ffi::kingtide_stats_free(Some(stats));
        all
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_db_close(Some(&self.db), err) })
    }
}

struct KingtideSession {
    family: Box<ffi::kingtide_family>,
    batch: Box<ffi::kingtide_batch>,
    value: Box<ffi::kingtide_value>,
    /// Places for the values of many keys.
    #[allow(clippy::vec_box)] // handles, as C has them
    values: Vec<Box<ffi::kingtide_value>>,
    txn: Option<(Transactions, Box<ffi::kingtide_txn>)>,
    db: Arc<ffi::kingtide_db>,
}

/// The bounds of a cursor as options of an iterator.
fn read_options(bounds: Bounds<'_>) -> ffi::kingtide_read_options {
    let bound = |key: Option<&[u8]>, kind: ffi::kingtide_bound_kind| match key {
        Some(key) => ffi::kingtide_bound { kind: kind as i32, key: key.as_ptr().cast(), key_len: key.len() },
        None => ffi::kingtide_bound { kind: 0, key: null(), key_len: 0 },
    };
    ffi::kingtide_read_options {
        size: size_of::<ffi::kingtide_read_options>(),
        lower: bound(bounds.lower, ffi::kingtide_bound_kind::KINGTIDE_INCLUDED),
        upper: bound(bounds.upper, ffi::kingtide_bound_kind::KINGTIDE_EXCLUDED),
        prefix: null(),
        prefix_len: 0,
        snapshot: null(),
        no_fill_cache: 0,
        readahead: 0,
        newest: 0,
        reserved: 0,
    }
}

/// Hands on what a read found.
fn found(value: &ffi::kingtide_value, answer: &mut dyn FnMut(&[u8])) -> bool {
    let present = ffi::kingtide_value_is_present(Some(value));
    if present {
        // SAFETY: the place is borrowed while the bytes are read, so that no other read uses it.
        answer(unsafe { bytes(ffi::kingtide_value_data(Some(value)), ffi::kingtide_value_len(Some(value))) });
    }
    present
}

impl KingtideSession {
    /// Commits the session's batch.
    fn write(&mut self) -> Result<()> {
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        let done = wait(|err| unsafe {
            ffi::kingtide_db_write(Some(&self.db), Some(&mut self.batch), null(), null_mut(), err)
        });
        if ffi::kingtide_batch_bytes(Some(&self.batch)) > KEEP_BATCH {
            self.batch = ffi::kingtide_batch_new();
        } else {
            ffi::kingtide_batch_clear(Some(&mut self.batch));
        }
        done
    }

    fn txn(&mut self) -> Result<&mut ffi::kingtide_txn> {
        match &mut self.txn {
            Some((_, txn)) => Ok(txn),
            None => Err(Error::failed("kingtide: no transaction was begun")),
        }
    }

    fn txn_look_up(&mut self, key: &[u8], for_update: bool, answer: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let get = if for_update { ffi::kingtide_txn_get_for_update } else { ffi::kingtide_txn_get };
        let Some((_, txn)) = &mut self.txn else { return Err(Error::failed("kingtide: no transaction was begun")) };
        let (family, value, k) = (&self.family, &mut self.value, key.as_ptr().cast());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        Ok(match step(|err| unsafe { get(Some(txn), Some(family), k, key.len(), Some(value), err) })? {
            Step::Done(()) => Step::Done(found(&self.value, answer)),
            Step::Conflict => Step::Conflict,
        })
    }
}

impl Session for KingtideSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_put(Some(&self.family), k, key.len(), v, value.len(), err) })
    }

    fn put_ttl(&mut self, key: &[u8], value: &[u8], ttl: Duration) -> Result<()> {
        let (k, v, ms) = (key.as_ptr().cast(), value.as_ptr().cast(), ttl.as_millis() as u64);
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_put_ttl(Some(&self.family), k, key.len(), v, value.len(), ms, err) })
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        for (key, value) in entries {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            let (batch, family) = (&mut self.batch, &self.family);
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            wait(|err| unsafe {
                ffi::kingtide_batch_put(Some(batch), Some(family), k, key.len(), v, value.len(), err)
            })?;
        }
        self.write()
    }

    fn get(&mut self, key: &[u8], answer: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (family, value, k) = (&self.family, &mut self.value, key.as_ptr().cast());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_get(Some(family), k, key.len(), Some(value), err) })?;
        Ok(found(&self.value, answer))
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        if self.values.len() < keys.len() {
            self.values.resize_with(keys.len(), || ffi::kingtide_value_new());
        }
        let wanted: Vec<_> =
            keys.iter().map(|k| ffi::kingtide_slice { data: k.as_ptr().cast(), len: k.len() }).collect();
        let family = Some(&*self.family);
        let places: Vec<*mut ffi::kingtide_value> = self.values.iter_mut().map(|v| &raw mut **v).collect();
        wait(|err| {
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            unsafe {
                ffi::kingtide_family_multi_get(family, wanted.as_ptr(), keys.len(), places.as_ptr(), null_mut(), err)
            }
        })?;
        for (i, value) in self.values[..keys.len()].iter().enumerate() {
            if !found(value, &mut |v| each(i, Some(v))) {
                each(i, None);
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_delete(Some(&self.family), key.as_ptr().cast(), key.len(), err) })
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        for key in keys {
            let (batch, family) = (&mut self.batch, &self.family);
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            wait(|err| unsafe {
                ffi::kingtide_batch_delete(Some(batch), Some(family), key.as_ptr().cast(), key.len(), err)
            })?;
        }
        self.write()
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        let (a, b) = (start.as_ptr().cast(), end.as_ptr().cast());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_delete_range(Some(&self.family), a, start.len(), b, end.len(), err) })
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let (options, mut iter) = (read_options(bounds), null_mut());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_family_iter(Some(&self.family), &options, &mut iter, err) })?;
        Ok(Box::new(KingtideCursor(own("cursor", iter)?)))
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        if let Some((_, txn)) = self.txn.as_mut().filter(|(last, _)| *last == how) {
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            return wait(|err| unsafe { ffi::kingtide_txn_reset(Some(txn), err) });
        }
        let isolation = match how.isolation {
            Isolation::ReadUncommitted => 1,
            Isolation::ReadCommitted => 2,
            Isolation::RepeatableRead => 3,
            Isolation::Snapshot => 4,
            Isolation::Serializable => 5,
        };
        let options = ffi::kingtide_txn_options {
            size: size_of::<ffi::kingtide_txn_options>(),
            isolation,
            locking: i32::from(how.mode == TxnMode::Locking),
            read_only: 0,
            durability: 0,
            no_wait: 0,
            reserved: 0,
            timeout_ms: 0,
            lock_timeout_ms: 0,
            snapshot: null(),
        };
        let mut txn = null_mut();
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_txn_begin(Some(&self.db), &options, &mut txn, err) })?;
        self.txn = Some((how, own("begin", txn)?));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        let Some((_, txn)) = &mut self.txn else { return Err(Error::failed("kingtide: no transaction was begun")) };
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        step(|err| unsafe { ffi::kingtide_txn_put(Some(txn), Some(&self.family), k, key.len(), v, value.len(), err) })
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        let Some((_, txn)) = &mut self.txn else { return Err(Error::failed("kingtide: no transaction was begun")) };
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        step(|err| unsafe {
            ffi::kingtide_txn_delete(Some(txn), Some(&self.family), key.as_ptr().cast(), key.len(), err)
        })
    }

    fn txn_get(&mut self, key: &[u8], answer: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_look_up(key, false, answer)
    }

    fn txn_get_for_update(&mut self, key: &[u8], answer: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.txn_look_up(key, true, answer)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        let Some((_, txn)) = &mut self.txn else { return Err(Error::failed("kingtide: no transaction was begun")) };
        let (options, mut iter) = (read_options(bounds), null_mut());
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        match step(|err| unsafe { ffi::kingtide_txn_iter(Some(txn), Some(&self.family), &options, &mut iter, err) })? {
            Step::Done(()) => Ok(Step::Done(Box::new(KingtideCursor(own("cursor", iter)?)))),
            Step::Conflict => Ok(Step::Conflict),
        }
    }

    fn commit(&mut self) -> Result<Step<()>> {
        let txn = self.txn()?;
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        step(|err| unsafe { ffi::kingtide_txn_commit(Some(txn), null_mut(), err) })
    }

    fn rollback(&mut self) -> Result<()> {
        let txn = self.txn()?;
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_txn_rollback(Some(txn), err) })
    }
}

struct KingtideCursor(Box<ffi::kingtide_iter>);

impl KingtideCursor {
    /// Where a move led; when it is no entry, whether that is the end or an error.
    #[inline]
    fn at(&self, entry: bool) -> Result<bool> {
        if !entry {
            // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
            wait(|err| unsafe { ffi::kingtide_iter_status(Some(&self.0), err) })?;
        }
        Ok(entry)
    }
}

impl Cursor for KingtideCursor {
    fn first(&mut self) -> Result<bool> {
        let entry = ffi::kingtide_iter_seek_to_first(Some(&mut self.0));
        self.at(entry)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        let entry = unsafe { ffi::kingtide_iter_seek(Some(&mut self.0), key.as_ptr().cast(), key.len()) };
        self.at(entry)
    }

    fn next(&mut self) -> Result<bool> {
        let entry = ffi::kingtide_iter_next(Some(&mut self.0));
        self.at(entry)
    }

    fn key(&mut self) -> Result<&[u8]> {
        let mut len = 0;
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        let key = unsafe { ffi::kingtide_iter_key(Some(&self.0), &mut len) };
        // SAFETY: the bytes stay until the iterator moves, which the borrow of self prevents.
        Ok(unsafe { bytes(key, len) })
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let (mut value, mut len) = (null(), 0);
        // SAFETY: the handles are live, and the pointers have the lengths that are passed with them.
        wait(|err| unsafe { ffi::kingtide_iter_value(Some(&mut self.0), &mut value, &mut len, err) })?;
        // SAFETY: as in `key`.
        Ok((self.key()?, unsafe { bytes(value, len) }))
    }
}
