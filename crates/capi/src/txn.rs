//! Transactions.

use crate::abi::{
    self, Out, Sized_, borrow, bytes, config, expiry, flag, kingtide_bound, need, out_handle, range_of, set_if,
};
use crate::db::kingtide_db;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::family::{found, keys_of, kingtide_family, kingtide_slice, places_of};
use crate::options::durability;
use crate::snapshot::kingtide_snapshot;
use crate::value::kingtide_value;
use kingtide::{
    CommitTicket, Error, ErrorKind, Isolation, LockMode, Result, Transaction, TransactionHandle, TransactionOptions,
};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// Which effects of other transactions a transaction may see.
#[allow(clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_isolation {
    /// The default: `KINGTIDE_SNAPSHOT`.
    KINGTIDE_ISOLATION_DEFAULT = 0,
    /// Reads see the newest writes of all transactions, even of those that may still roll back.
    KINGTIDE_READ_UNCOMMITTED = 1,
    /// Each read sees the data that was committed when the read began.
    KINGTIDE_READ_COMMITTED = 2,
    /// All reads see the data that was committed when the transaction began. Writes are not checked, unless the key was read for
    /// update.
    KINGTIDE_REPEATABLE_READ = 3,
    /// As repeatable read, and of two concurrent transactions that write the same key only the first can commit.
    KINGTIDE_SNAPSHOT = 4,
    /// The result is that of running the transactions one after the other, in the order of their commits.
    KINGTIDE_SERIALIZABLE = 5,
}

/// C's number for a level.
pub fn isolation_number(level: Isolation) -> i32 {
    level as i32 + 1
}

/// The mode of a lock.
#[allow(clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_lock_mode {
    /// Other transactions may also hold shared locks.
    KINGTIDE_LOCK_SHARED = 1,
    /// No other transaction may hold a lock.
    KINGTIDE_LOCK_EXCLUSIVE = 2,
}

fn lock_mode(number: i32) -> Result<LockMode> {
    match number {
        1 => Ok(LockMode::Shared),
        2 => Ok(LockMode::Exclusive),
        other => Err(Error::invalid(format!("{other} is not a kingtide_lock_mode"))),
    }
}

/// A lock timeout: do not wait at all, but return `KINGTIDE_LOCK_HELD`.
pub const KINGTIDE_NO_WAIT: i64 = -1;

/// From C's number; zero is the database's.
fn lock_timeout(ms: i64) -> Result<Option<Duration>> {
    match ms {
        0 => Ok(None),
        KINGTIDE_NO_WAIT => Ok(Some(Duration::ZERO)),
        1.. => Ok(Some(Duration::from_millis(ms as u64))),
        _ => Err(Error::invalid(format!("a lock timeout of {ms} ms"))),
    }
}

/// Options of a transaction. If all members except `size` are zero: snapshot isolation, optimistic.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_txn_options {
    /// `sizeof(kingtide_txn_options)`.
    pub size: usize,
    /// One of `kingtide_isolation`.
    pub isolation: i32,
    /// Not 0: take locks when keys are written, and read for update, instead of checking at commit.
    pub locking: i32,
    /// Not 0: refuse writes.
    pub read_only: i32,
    /// One of `kingtide_durability`, for the commit.
    pub durability: i32,
    /// Not 0: return `KINGTIDE_BUSY` from commit instead of waiting when writers are being slowed.
    pub no_wait: i32,
    /// Zero.
    pub reserved: i32,
    /// Its timeout, in milliseconds; 0 for the database's option `transaction_timeout_ms`.
    pub timeout_ms: u64,
    /// Its lock timeout, in milliseconds; 0 for the database's option `lock_timeout_ms`; `KINGTIDE_NO_WAIT` not to wait.
    pub lock_timeout_ms: i64,
    /// Read as of this snapshot instead of now, at levels that read as of the beginning, and at no other moment; NULL for now. Needed only
    /// during the call.
    pub snapshot: *const kingtide_snapshot,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_txn_options {
    const NAME: &'static str = "kingtide_txn_options";
}

impl kingtide_txn_options {
    /// # Safety
    /// Its pointer is as [`borrow`] needs it.
    unsafe fn get(&self) -> Result<TransactionOptions> {
        abi::zero(self.reserved, Self::NAME)?;
        let isolation = match self.isolation {
            0 => Isolation::default(),
            n => usize::try_from(n)
                .ok()
                .and_then(|n| Isolation::ALL.get(n - 1).copied())
                .ok_or_else(|| Error::invalid(format!("{n} is no kingtide_isolation")))?,
        };
        Ok(TransactionOptions::new(isolation)
            .locking(flag(self.locking))
            .read_only(flag(self.read_only))
            .timeout((self.timeout_ms > 0).then(|| Duration::from_millis(self.timeout_ms)))
            .lock_timeout(lock_timeout(self.lock_timeout_ms)?)
            .durability(durability(self.durability)?)
            .no_wait(flag(self.no_wait))
            .snapshot(borrow(self.snapshot).map(|s| s.0.clone())))
    }
}

/// A transaction: operations that take effect together or not at all. One thread at a time may use it, and it may move between
/// threads; other threads may reach it only through a `kingtide_txn_handle`.
///
/// After CONFLICT, DEADLOCK or LOCK_TIMEOUT nothing was written: reset the transaction and run it again. A deadlock victim, and a
/// transaction whose commit or prepare failed with a conflict, is already rolled back; so is a transaction after ABORTED or EXPIRED.
/// After any other error of a call before the commit, the transaction remains usable; `kingtide_txn_commit` says what its own
/// errors mean.
pub struct kingtide_txn(pub(crate) Transaction);

/// Begins a transaction. `options` may be NULL. Free it with `kingtide_txn_free`.
///
/// Errors: CLOSED, READ_ONLY, INVALID_ARGUMENT, BUSY (a million transactions run).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_begin(
    db: Option<&kingtide_db>,
    options: *const kingtide_txn_options,
    txn: *mut *mut kingtide_txn,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(txn, "txn")?;
        out.set(kingtide_txn(need(db, "db")?.db.begin_with(config(options)?.get()?)?));
        Ok(())
    })
}

/// Its id, unique while the database is open; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_id(txn: Option<&kingtide_txn>) -> u64 {
    txn.map_or(0, |t| t.0.id())
}

/// Returns the sequence number as of which it reads, at levels that read as of the beginning. After the first operation of a locking
/// transaction at the snapshot level, this fixes that moment.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_snapshot_sequence(txn: Option<&kingtide_txn>) -> u64 {
    txn.map_or(0, |t| t.0.snapshot_sequence())
}

/// Returns the number of operations written and not committed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_count(txn: Option<&kingtide_txn>) -> usize {
    quietly(0, || txn.map_or(0, |t| t.0.len()))
}

/// Sets a key.
///
/// Errors: INVALID_ARGUMENT (an empty key, 4 GiB of writes, a family of another database), BUSY (transactions hold too much memory),
/// READ_ONLY, FINISHED, ABORTED, EXPIRED, CLOSED; of a locking transaction also CONFLICT, LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_put(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        txn.0.put(&family.0, bytes(key, key_len, "key")?, bytes(value, value_len, "value")?)
    })
}

/// Sets a key that expires after `ttl_ms` milliseconds.
///
/// Errors: as `kingtide_txn_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_put_ttl(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    ttl_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        txn.0.put_ttl(&family.0, key, value, Duration::from_millis(ttl_ms))
    })
}

/// Sets a key that expires at a moment given in milliseconds since 1970. Keys that must expire together need the same moment.
///
/// Errors: as `kingtide_txn_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_put_until(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    expires_at_ms: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        let (key, value) = (bytes(key, key_len, "key")?, bytes(value, value_len, "value")?);
        txn.0.put_until(&family.0, key, value, expiry(expires_at_ms))
    })
}

/// Deletes a key.
///
/// Errors: as `kingtide_txn_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_delete(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.delete(&need(family, "family")?.0, bytes(key, key_len, "key")?))
}

/// Deletes a key that was put exactly once since its last delete. See `kingtide_batch_single_delete`.
///
/// Errors: as `kingtide_txn_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_single_delete(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.single_delete(&need(family, "family")?.0, bytes(key, key_len, "key")?))
}

/// Deletes all keys from `start` up to, and without, `end`. A locking transaction locks the range.
///
/// Errors: as `kingtide_txn_put`; INVALID_ARGUMENT if `start` sorts after `end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_delete_range(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    start: *const c_void,
    start_len: usize,
    end: *const c_void,
    end_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        txn.0.delete_range(&family.0, bytes(start, start_len, "start")?..bytes(end, end_len, "end")?)
    })
}

/// Deletes all keys that begin with a prefix, including the transaction's own.
///
/// Errors: as `kingtide_txn_delete_range` and `kingtide_txn_iter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_delete_prefix(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    prefix: *const c_void,
    prefix_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        txn.0.delete_prefix(&family.0, bytes(prefix, prefix_len, "prefix")?)
    })
}

/// Reads a key into `value`, created by `kingtide_value_new`: the transaction's own write, or the value that its level lets it
/// see. An absent key is not an error: `value` then holds nothing, as after an error.
///
/// Errors: CORRUPTION with file and offset, IO, CLOSED, FINISHED, ABORTED, EXPIRED; when the level takes locks on reads, also
/// those of `kingtide_txn_get_for_share`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&mut kingtide_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let value = need(value, "value")?;
        value.0 = None;
        value.0 = need(txn, "txn")?.0.get(&need(family, "family")?.0, bytes(key, key_len, "key")?)?;
        Ok(())
    })
}

/// Reads a key that the transaction is going to write; no other can change it before the commit. A locking transaction takes an
/// exclusive lock; the key need not exist. It reads the newest committed value. At the snapshot level, all reads are of one moment: if
/// the key was changed since, that moment moves to now or, if the transaction has read without locks, released a lock or asked for its
/// snapshot, the error is CONFLICT. For an optimistic transaction, the key is checked at the commit.
///
/// Errors: as `kingtide_txn_get`; CONFLICT, LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_for_update(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&mut kingtide_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let value = need(value, "value")?;
        value.0 = None;
        value.0 = need(txn, "txn")?.0.get_for_update(&need(family, "family")?.0, bytes(key, key_len, "key")?)?;
        Ok(())
    })
}

/// Reads a key that must not change until the commit, although the transaction does not write it: as
/// `kingtide_txn_get_for_update`, with a shared lock.
///
/// Errors: as `kingtide_txn_get_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_for_share(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    value: Option<&mut kingtide_value>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let value = need(value, "value")?;
        value.0 = None;
        value.0 = need(txn, "txn")?.0.get_for_share(&need(family, "family")?.0, bytes(key, key_len, "key")?)?;
        Ok(())
    })
}

/// Sets `found` to whether a key has a value, as `kingtide_txn_get` sees it. No value log is read.
///
/// Errors: as `kingtide_txn_get`; INVALID_ARGUMENT (`found` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_contains(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    found: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(found, "found")?;
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        out.set(txn.0.contains_key(&family.0, bytes(key, key_len, "key")?)?);
        Ok(())
    })
}

/// Sets `found` to whether `kingtide_txn_get_for_update` would find a value, with the same locks and checks. No value log is read.
///
/// Errors: as `kingtide_txn_get_for_update`; INVALID_ARGUMENT (`found` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_contains_for_update(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    found: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(found, "found")?;
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        out.set(txn.0.contains_for_update(&family.0, bytes(key, key_len, "key")?)?);
        Ok(())
    })
}

/// `kingtide_txn_contains_for_update`, with a shared lock.
///
/// Errors: as `kingtide_txn_contains_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_contains_for_share(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    found: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(found, "found")?;
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        out.set(txn.0.contains_for_share(&family.0, bytes(key, key_len, "key")?)?);
        Ok(())
    })
}

/// Reads `count` keys into as many different values, as of one moment, except where reads take locks and at the
/// read-uncommitted level, which read key by key. If some cannot be read, the others are, and the first error is returned;
/// `statuses`, unless NULL, has room for `count` statuses, as for `kingtide_family_multi_get`.
///
/// Errors: as `kingtide_txn_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_multi_get(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    keys: *const kingtide_slice,
    count: usize,
    values: *const *mut kingtide_value,
    statuses: *mut i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let places = places_of(values, count)?; // first, so that they hold nothing after an error
        let (txn, family, keys) = (need(txn, "txn")?, need(family, "family")?, keys_of(keys, count)?);
        found(txn.0.multi_get(&family.0, &keys), places, statuses)
    })
}

/// Reads several keys as `kingtide_txn_get_for_update` does. A locking transaction locks them in key order, so that two
/// that do so cannot deadlock, and then reads them as of one moment. If the lock of a key could not
/// be granted, its status says so (LOCK_HELD with `KINGTIDE_NO_WAIT`, for rows that SKIP LOCKED skips); the others are read.
///
/// Errors: as `kingtide_txn_get_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_multi_get_for_update(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    keys: *const kingtide_slice,
    count: usize,
    values: *const *mut kingtide_value,
    statuses: *mut i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let places = places_of(values, count)?; // first, so that they hold nothing after an error
        let (txn, family, keys) = (need(txn, "txn")?, need(family, "family")?, keys_of(keys, count)?);
        found(txn.0.multi_get_for_update(&family.0, &keys), places, statuses)
    })
}

/// As `kingtide_txn_multi_get_for_update`, with shared locks.
///
/// Errors: as `kingtide_txn_get_for_update`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_multi_get_for_share(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    keys: *const kingtide_slice,
    count: usize,
    values: *const *mut kingtide_value,
    statuses: *mut i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let places = places_of(values, count)?; // first, so that they hold nothing after an error
        let (txn, family, keys) = (need(txn, "txn")?, need(family, "family")?, keys_of(keys, count)?);
        found(txn.0.multi_get_for_share(&family.0, &keys), places, statuses)
    })
}

/// Locks a key, which need not exist, without reading it. `mode` is one of `kingtide_lock_mode`. Only for locking transactions.
///
/// Errors: as `kingtide_txn_lock_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_lock(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    mode: i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (txn, family, mode) = (need(txn, "txn")?, need(family, "family")?, lock_mode(mode)?);
        txn.0.lock(&family.0, bytes(key, key_len, "key")?, mode)
    })
}

/// Releases the lock that the previous call took on a key, if the row is not needed after all, as SQL servers do at READ
/// COMMITTED: `kingtide_txn_lock` or, for update or for share, a get of one key, a `contains` or a `get_reader`. `released`,
/// unless NULL, is set to whether the lock was released: not if the transaction already had a lock on the key, if the lock has
/// become part of a range lock, or at the serializable level.
///
/// Errors: FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_unlock_last(
    txn: Option<&mut kingtide_txn>,
    released: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(released, need(txn, "txn")?.0.unlock_last()?);
        Ok(())
    })
}

/// Locks a range of keys, including absent ones. NULL is an open end. `mode` is one of `kingtide_lock_mode`. Only
/// for locking transactions.
///
/// Errors: INVALID_ARGUMENT (an optimistic transaction); LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED; FINISHED, ABORTED,
/// EXPIRED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_lock_range(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    lower: *const kingtide_bound,
    upper: *const kingtide_bound,
    mode: i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let ((lower, upper), mode) = (range_of(lower, upper)?, lock_mode(mode)?);
        need(txn, "txn")?.0.lock_range(&need(family, "family")?.0, (lower, upper), mode)
    })
}

/// Sets its lock timeout from now on, in milliseconds: 0 for the database's option `lock_timeout_ms`,
/// `KINGTIDE_NO_WAIT` not to wait.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_set_lock_timeout(
    txn: Option<&mut kingtide_txn>,
    timeout_ms: i64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let timeout = lock_timeout(timeout_ms)?;
        need(txn, "txn")?.0.set_lock_timeout(timeout);
        Ok(())
    })
}

/// Changes the durability of its prepare and commit, one of `kingtide_durability`, if it is not known at the beginning.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_set_durability(
    txn: Option<&mut kingtide_txn>,
    durability: i32,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let durability = self::durability(durability)?;
        need(txn, "txn")?.0.set_durability(durability);
        Ok(())
    })
}

/// Makes further reads see the current state, at `KINGTIDE_REPEATABLE_READ`; writes and locks stay. For a statement's own view
/// (SQL's READ COMMITTED is that level with this at the beginning of each statement), and for a locking transaction's snapshot
/// that is taken at once and not with the first operation (START TRANSACTION WITH CONSISTENT SNAPSHOT). Open iterators
/// are not affected.
///
/// Errors: INVALID_ARGUMENT at other levels, or if an optimistic transaction has read for update; FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_refresh_snapshot(
    txn: Option<&mut kingtide_txn>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.refresh_snapshot())
}

/// Sets `changed` to whether a key was committed, a delete included, after the state that the transaction's reads see: then
/// `kingtide_txn_get_for_update` may read another value than `kingtide_txn_get`. Always false at levels that read the newest state. The
/// transaction's own writes do not count. The answer stays right only while the transaction has the key locked. Much cheaper
/// than reading both.
///
/// Errors: as `kingtide_txn_get`; INVALID_ARGUMENT (`changed` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_changed_since_snapshot(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    key: *const c_void,
    key_len: usize,
    changed: *mut bool,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = Out::new(changed, "changed")?; // which C need not have written before
        let (txn, family) = (need(txn, "txn")?, need(family, "family")?);
        out.set(txn.0.changed_since_snapshot(&family.0, bytes(key, key_len, "key")?)?);
        Ok(())
    })
}

/// Sets a savepoint. Savepoints nest; if several have the same name, the newest counts, as in SQL.
///
/// Errors: FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_set_savepoint(
    txn: Option<&mut kingtide_txn>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.set_savepoint(abi::text(name, "name")?))
}

/// Rolls back the writes since a savepoint. The savepoint stays; later savepoints are removed. Locks are kept.
///
/// Errors: NOT_FOUND (nothing changes), FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_rollback_to_savepoint(
    txn: Option<&mut kingtide_txn>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.rollback_to_savepoint(abi::text(name, "name")?))
}

/// Removes a savepoint and all later ones; the writes since then stay.
///
/// Errors: as `kingtide_txn_rollback_to_savepoint`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_release_savepoint(
    txn: Option<&mut kingtide_txn>,
    name: *const c_char,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.release_savepoint(abi::text(name, "name")?))
}

/// Commits, also a prepared transaction, and waits until the commit has its durability. `sequence`, unless
/// NULL, is set to the sequence number of the last operation, 0 if there was none.
///
/// Errors: CONFLICT (it is rolled back); BUSY, NO_SPACE, IO (nothing was written; commit may be tried again); POISONED from
/// the sync (visible, and of unknown durability); FINISHED, ABORTED, EXPIRED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_commit(
    txn: Option<&mut kingtide_txn>,
    sequence: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(sequence, need(txn, "txn")?.0.commit()?);
        Ok(())
    })
}

/// A commit that is visible to all but may not be durable yet. For one thread at a time.
pub struct kingtide_ticket {
    ticket: Option<CommitTicket>,
    sequence: u64,
}

/// Commits up to the point where the writes are visible: consecutive calls take effect in their order,
/// without waiting for the disk. For coordinators that fix the order of commits, such as a binary log;
/// `kingtide_ticket_wait` does the rest. Also for a prepared transaction. `ticket`, unless NULL, is set to a ticket that must be freed.
///
/// Errors: as `kingtide_txn_commit`, except those of the sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_commit_ordered(
    txn: Option<&mut kingtide_txn>,
    ticket: *mut *mut kingtide_ticket,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(ticket, std::ptr::null_mut());
        let done = need(txn, "txn")?.0.commit_ordered()?;
        if !ticket.is_null() {
            let sequence = done.sequence();
            out_handle(ticket, "ticket")?.set(kingtide_ticket { ticket: Some(done), sequence });
        }
        Ok(())
    })
}

/// The sequence number of the commit's last operation; 0 if it wrote nothing. Tickets are ordered as the commits are.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_ticket_sequence(ticket: Option<&kingtide_ticket>) -> u64 {
    ticket.map_or(0, |t| t.sequence)
}

/// Waits until the commit has its durability. Waiting threads share one sync. Can be called once.
///
/// Errors: POISONED, IO: the commit is visible, and it is unknown whether it survives a power cut. FINISHED the second time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_ticket_wait(
    ticket: Option<&mut kingtide_ticket>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || match need(ticket, "ticket")?.ticket.take() {
        Some(ticket) => ticket.wait().map(|_| ()),
        None => Err(Error::new(ErrorKind::Finished, "the ticket was already waited for")),
    })
}

/// Frees a ticket; the commit stands. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_ticket_free(ticket: Option<Box<kingtide_ticket>>) {
    quietly((), || drop(ticket));
}

/// Prepares: checks everything that a commit would check, and logs the transaction under a name of at most 1,024 bytes,
/// durably unless it was begun with a durability of its own. From then on its commit cannot fail with a conflict, even after a
/// crash, and it is in doubt until it is committed or rolled back, by this handle or by its name. Freeing it leaves it
/// in doubt.
///
/// Errors: CONFLICT (it is rolled back), EXISTS or INVALID_ARGUMENT (the name), NO_SPACE (it is as before), POISONED from the
/// sync (prepared, and of unknown durability), FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_prepare(
    txn: Option<&mut kingtide_txn>,
    xid: *const c_void,
    xid_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.prepare(bytes(xid, xid_len, "xid")?))
}

/// Rolls back and releases all locks. It may be called after an error, and is a no-op once the transaction has ended.
///
/// Errors: for a prepared transaction, those of the log; the transaction then remains in doubt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_rollback(
    txn: Option<&mut kingtide_txn>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.rollback())
}

/// Rolls back if it is still running, and restarts with the same options, keeping its memory. A prepared transaction stays in
/// doubt.
///
/// Errors: as `kingtide_txn_begin`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_reset(
    txn: Option<&mut kingtide_txn>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(txn, "txn")?.0.reset())
}

/// Rolls back if it is still running, and frees it. A prepared transaction stays in doubt. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_free(txn: Option<Box<kingtide_txn>>) {
    quietly((), || drop(txn));
}

/// Refers to a running transaction from any thread, any number at once. It may outlive the transaction, and refers to
/// nothing once that ended or was reset.
pub struct kingtide_txn_handle(TransactionHandle);

/// Returns a handle with which any thread can abort or interrupt it. Free it with `kingtide_txn_handle_free`.
///
/// Errors: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_get_handle(
    txn: Option<&kingtide_txn>,
    handle: *mut *mut kingtide_txn_handle,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(handle, "handle")?;
        out.set(kingtide_txn_handle(need(txn, "txn")?.0.handle()));
        Ok(())
    })
}

/// The transaction's id.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_handle_id(handle: Option<&kingtide_txn_handle>) -> u64 {
    handle.map_or(0, |h| h.0.id())
}

/// Rolls the transaction back. A call of its owner that waits for a lock returns ABORTED, as does the next call.
///
/// Errors: NOT_FOUND if it is not running: committed, rolled back, or prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_handle_abort(
    handle: Option<&kingtide_txn_handle>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(handle, "handle")?.0.abort())
}

/// Ends a wait of the transaction for a lock: the waiting call, or else the next one that would have to wait, returns
/// CANCELLED. The transaction keeps running. For KILL QUERY.
///
/// Errors: NOT_FOUND if it is not running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_handle_interrupt(
    handle: Option<&kingtide_txn_handle>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(handle, "handle")?.0.interrupt())
}

/// Clears an interrupt that ended no wait, for example at the beginning of the next statement.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_clear_interrupt(txn: Option<&mut kingtide_txn>) {
    quietly((), || txn.map_or((), |t| t.0.clear_interrupt()));
}

/// Frees a handle; the transaction keeps running. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_handle_free(handle: Option<Box<kingtide_txn_handle>>) {
    quietly((), || drop(handle));
}

/// Rolls a running transaction back by its id, from any thread.
///
/// Errors: NOT_FOUND if it is not running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_abort_transaction(
    db: Option<&kingtide_db>,
    id: u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.abort_transaction(id))
}

/// Commits a prepared transaction by its name. `sequence`, unless NULL, is set to that of the commit.
///
/// Errors: NOT_FOUND if no transaction of that name is in doubt; those of a commit, after which it is still in doubt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_commit_prepared(
    db: Option<&kingtide_db>,
    xid: *const c_void,
    xid_len: usize,
    sequence: *mut u64,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        set_if(sequence, need(db, "db")?.db.commit_prepared(bytes(xid, xid_len, "xid")?)?);
        Ok(())
    })
}

/// Rolls a prepared transaction back by its name.
///
/// Errors: as `kingtide_db_commit_prepared`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_rollback_prepared(
    db: Option<&kingtide_db>,
    xid: *const c_void,
    xid_len: usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || need(db, "db")?.db.rollback_prepared(bytes(xid, xid_len, "xid")?))
}
