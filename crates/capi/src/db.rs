//! The database.

use crate::abi::{self, config, need, out_handle, set_if};
use crate::batch::kingtide_batch;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::options::{find_order, kingtide_options, kingtide_write_options};
use crate::value::kingtide_strings;
use kingtide::{CustomOrder, Db, Options};
use std::ffi::c_char;
use std::sync::Arc;

/// An open database. All functions on it may be called from many threads at once, except `kingtide_db_free`.
pub struct kingtide_db {
    pub(crate) db: Db,
    /// For families that are created later.
    orders: Vec<Arc<dyn CustomOrder>>,
}

impl kingtide_db {
    fn new(db: Db, options: Options) -> kingtide_db {
        kingtide_db { db, orders: options.custom_orders }
    }
}

/// Returns what options say; NULL says the defaults.
pub fn options_of(options: Option<&kingtide_options>) -> Options {
    options.map(|o| o.options.clone()).unwrap_or_default()
}

/// Opens the database in directory `path`, creating it unless the options say otherwise. `options` may be NULL. Returns
/// when recovery is complete. Free it with `kingtide_db_free`.
///
/// Errors: LOCKED (it is open elsewhere); NOT_FOUND, EXISTS as the options ask; INVALID_ARGUMENT; INCOMPATIBLE (another key
/// order); NEWER_FORMAT; CORRUPTION with file and offset; IO, NO_SPACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_open(
    path: *const c_char,
    options: Option<&kingtide_options>,
    db: *mut *mut kingtide_db,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, options) = (out_handle(db, "db")?, options_of(options));
        let opened = Db::open(abi::path(path, "path")?, options.clone())?;
        out.set(kingtide_db::new(opened, options));
        Ok(())
    })
}

/// Opens a database read-only, without a lock and without changing anything, even while another process writes to it.
/// Until `kingtide_db_catch_up`, it shows the data that was committed when it was opened.
///
/// Errors: as `kingtide_db_open`, but never LOCKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_open_read_only(
    path: *const c_char,
    options: Option<&kingtide_options>,
    db: *mut *mut kingtide_db,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, options) = (out_handle(db, "db")?, options_of(options));
        let opened = Db::open_read_only(abi::path(path, "path")?, options.clone())?;
        out.set(kingtide_db::new(opened, options));
        Ok(())
    })
}

/// Returns whether it was opened read-only.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_db_is_read_only(db: Option<&kingtide_db>) -> bool {
    quietly(false, || db.is_some_and(|d| d.db.is_read_only()))
}

/// Moves a database that was opened read-only to the current committed state. `sequence`, unless NULL, is set to the newest
/// visible sequence number.
///
/// Errors: INVALID_ARGUMENT (opened for writing), CORRUPTION, IO, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_catch_up(
    db: Option<&kingtide_db>,
    sequence: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(sequence, need(db, "db")?.db.try_catch_up()?);
        Ok(())
    })
}

/// Closes the database: flushes memtables, cancels running compactions, and releases the directory's lock. Objects that were
/// created from it may still be used and freed, and return `KINGTIDE_CLOSED`. Closing again does nothing. The handle must still
/// be freed.
///
/// Errors: the reason why memtables could not be flushed. Committed data is nevertheless safe in the log.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_close(db: Option<&kingtide_db>, err: *mut *mut kingtide_error) -> kingtide_status {
    guard(err, || need(db, "db")?.db.close())
}

/// Frees the handle, and closes the database if it was not closed. Families, transactions, iterators and other objects may be
/// freed before or after. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_db_free(db: Option<Box<kingtide_db>>) {
    quietly((), || drop(db));
}

/// Commits a batch atomically. `options` may be NULL. `sequence`, unless NULL, is set to the sequence number of
/// the last operation. The batch is unchanged: clear it to use it again.
///
/// Errors: CLOSED, READ_ONLY, NO_SPACE, POISONED, BUSY; LOCK_TIMEOUT (a transaction holds a lock on a key), or CONFLICT then
/// with `no_wait`; INVALID_ARGUMENT (a family of another database, a staged value that was committed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_write(
    db: Option<&kingtide_db>,
    batch: Option<&mut kingtide_batch>,
    options: *const kingtide_write_options,
    sequence: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (db, batch) = (need(db, "db")?, need(batch, "batch")?);
        set_if(sequence, db.db.write_with(&mut batch.0, &config(options)?.get()?)?);
        Ok(())
    })
}

/// Fsyncs the write-ahead log: everything committed so far survives a power cut, except commits without durability.
///
/// Errors: POISONED, IO, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_sync(db: Option<&kingtide_db>, err: *mut *mut kingtide_error) -> kingtide_status {
    guard(err, || need(db, "db")?.db.sync())
}

/// Flushes all memtables of all families to tables and waits for it.
///
/// Errors: the reason why a flush failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_flush(db: Option<&kingtide_db>, err: *mut *mut kingtide_error) -> kingtide_status {
    guard(err, || need(db, "db")?.db.flush())
}

/// Waits until no flush and no compaction is due or running.
///
/// Errors: the background error that prevents them from finishing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_wait_for_background(
    db: Option<&kingtide_db>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.wait_for_background())
}

/// Changes an option of the database while it is open, by name; only those that `kingtide_option_get_info` calls live. Not
/// stored.
///
/// Errors: INVALID_ARGUMENT (unknown, fixed, or out of range), CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_set_option(
    db: Option<&kingtide_db>,
    name: *const c_char,
    value: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.set_option(abi::text(name, "name")?, abi::text(value, "value")?))
}

/// The newest visible sequence number; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_db_latest_sequence(db: Option<&kingtide_db>) -> u64 {
    quietly(0, || db.map_or(0, |d| d.db.latest_sequence()))
}

/// Names of all families, sorted.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_families(
    db: Option<&kingtide_db>,
    names: *mut *mut kingtide_strings,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(names, "names")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        out.set(db.db.families().into_iter().collect());
        Ok(())
    })
}

/// A handle of the default family, named "default". Free it with `kingtide_family_free`.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_default_family(
    db: Option<&kingtide_db>,
    family: *mut *mut kingtide_family,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(family, "family")?;
        out.set(kingtide_family(need(db, "db")?.db.default_family().clone()));
        Ok(())
    })
}

/// A handle of the family of that name. Free it with `kingtide_family_free`.
///
/// Errors: NOT_FOUND, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_family(
    db: Option<&kingtide_db>,
    name: *const c_char,
    family: *mut *mut kingtide_family,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(family, "family")?;
        out.set(kingtide_family(need(db, "db")?.db.family(abi::text(name, "name")?)?));
        Ok(())
    })
}

/// Creates a family. Of `options`, which may be NULL, the options of families count. `order` is the name of a key order, built
/// in or added to the options that the database was opened with; NULL for "bytewise". `family`, unless NULL, is set to a
/// handle.
///
/// Errors: EXISTS, NOT_FOUND (the key order), INVALID_ARGUMENT (name, options), IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_create_family(
    db: Option<&kingtide_db>,
    name: *const c_char,
    options: Option<&kingtide_options>,
    order: *const c_char,
    family: *mut *mut kingtide_family,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(family, std::ptr::null_mut());
        let db = need(db, "db")?;
        let order = if order.is_null() { "bytewise" } else { abi::text(order, "order")? };
        let order = find_order(order, &db.orders)?;
        let options = options.map(|o| o.options.family.clone()).unwrap_or_default();
        let created = db.db.create_family_ordered(abi::text(name, "name")?, options, order)?;
        if !family.is_null() {
            out_handle(family, "family")?.set(kingtide_family(created));
        }
        Ok(())
    })
}

/// Drops a family and everything in it. Calls on its handles then return `KINGTIDE_CLOSED`, except those that read its name, order and
/// options; open iterators can finish. The handles must still be freed.
///
/// Errors: NOT_FOUND, INVALID_ARGUMENT (the default family), IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_drop_family(
    db: Option<&kingtide_db>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.drop_family(abi::text(name, "name")?))
}

/// Renames a family.
///
/// Errors: NOT_FOUND, EXISTS, INVALID_ARGUMENT (the default family, a bad name), IO, NO_SPACE, CLOSED, READ_ONLY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_rename_family(
    db: Option<&kingtide_db>,
    old_name: *const c_char,
    new_name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.rename_family(abi::text(old_name, "old_name")?, abi::text(new_name, "new_name")?))
}
