//! Lists, as of one moment, of running transactions, of the locks that they hold, and of their waits for locks.

use crate::abi::{self, Sized_, fill, kingtide_bound, need, out_handle};
use crate::db::kingtide_db;
use crate::error::{guard, kingtide_error, kingtide_status, quietly};
use crate::options::{Context, kingtide_destroy_fn};
use crate::txn::isolation_number;
use kingtide::{
    DeadlockStep, HeldLock, LockMode, LockTarget, LockWait, LockWaitHook, PreparedInfo, Result, TransactionInfo, TxnId,
};
use std::ffi::c_void;
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;

/// A running or prepared transaction.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_txn_info {
    /// `sizeof(kingtide_txn_info)`, set by the caller.
    pub size: usize,
    /// Its id.
    pub id: u64,
    /// One of `kingtide_isolation`.
    pub isolation: i32,
    /// Not 0: it locks what it reads and writes.
    pub locking: i32,
    /// The number of operations that it has written so far.
    pub writes: u64,
    /// The name under which it was prepared; NULL if it was not. Valid as long as the list.
    pub xid: *const c_void,
    /// Its length.
    pub xid_len: usize,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_txn_info {
    const NAME: &'static str = "kingtide_txn_info";
}

/// A lock that is held.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_lock_info {
    /// `sizeof(kingtide_lock_info)`, set by the caller.
    pub size: usize,
    /// The id of the transaction that holds it.
    pub txn: u64,
    /// The family's number: see `kingtide_family_id`.
    pub family: u32,
    /// One of `kingtide_lock_mode`.
    pub mode: i32,
    /// Not 0: a range; otherwise a key, which is both bounds.
    pub is_range: i32,
    /// Zero.
    pub reserved: i32,
    /// The lower bound of the locked range. Valid as long as the list.
    pub lower: kingtide_bound,
    /// The upper bound.
    pub upper: kingtide_bound,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_lock_info {
    const NAME: &'static str = "kingtide_lock_info";
}

/// A request that waits for a lock.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_lock_wait_info {
    /// `sizeof(kingtide_lock_wait_info)`, set by the caller.
    pub size: usize,
    /// The transaction that waits; 0 for a write outside of transactions.
    pub waiter: u64,
    /// The family's number: see `kingtide_family_id`.
    pub family: u32,
    /// One of `kingtide_lock_mode`.
    pub mode: i32,
    /// Not 0: a range; otherwise a key, which is both bounds.
    pub is_range: i32,
    /// Zero.
    pub reserved: i32,
    /// The lower bound of the requested range. Valid as long as the list.
    pub lower: kingtide_bound,
    /// The upper bound.
    pub upper: kingtide_bound,
    /// The time for which it has waited.
    pub waited_us: u64,
    /// The transactions that it waits for. Valid as long as the list.
    pub holders: *const u64,
    /// The number of elements.
    pub holder_count: usize,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_lock_wait_info {
    const NAME: &'static str = "kingtide_lock_wait_info";
}

/// A transaction in doubt.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_prepared_info {
    /// `sizeof(kingtide_prepared_info)`, set by the caller.
    pub size: usize,
    /// Its name. Valid as long as the list.
    pub xid: *const c_void,
    /// Its length.
    pub xid_len: usize,
    /// Sequence number of its prepare record.
    pub sequence: u64,
    /// Writes that it would commit.
    pub operations: u64,
    /// One of `kingtide_isolation`.
    pub isolation: i32,
    /// Zero.
    pub reserved: i32,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_prepared_info {
    const NAME: &'static str = "kingtide_prepared_info";
}

/// Running and prepared transactions. Does not change; any thread may read it.
pub struct kingtide_txn_list(Vec<TransactionInfo>);
/// A list of held locks. Does not change; any thread may read it.
pub struct kingtide_lock_list(Vec<HeldLock>);
/// A list of waiting requests. Does not change; any thread may read it.
pub struct kingtide_lock_wait_list(Vec<LockWait>);
/// A list of transactions in doubt. Does not change; any thread may read it.
pub struct kingtide_prepared_list(Vec<PreparedInfo>);

fn mode_number(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => 1,
        LockMode::Exclusive => 2,
    }
}

/// A bound of ours for C to look at.
fn shown(bound: Bound<&[u8]>) -> kingtide_bound {
    let (kind, key) = match bound {
        Bound::Unbounded => return kingtide_bound { kind: 0, key: ptr::null(), key_len: 0 },
        Bound::Included(key) => (1, key),
        Bound::Excluded(key) => (2, key),
    };
    kingtide_bound { kind, key: key.as_ptr().cast(), key_len: key.len() }
}

fn target(target: &LockTarget) -> (bool, kingtide_bound, kingtide_bound) {
    match target {
        LockTarget::Key(key) => (false, shown(Bound::Included(key)), shown(Bound::Included(key))),
        LockTarget::Range(lo, hi) => {
            (true, shown(lo.as_ref().map(Vec::as_slice)), shown(hi.as_ref().map(Vec::as_slice)))
        }
    }
}

fn lock_info(txn: TxnId, family: u32, mode: LockMode, locked: &LockTarget) -> kingtide_lock_info {
    let (is_range, lower, upper) = target(locked);
    let (mode, is_range) = (mode_number(mode), i32::from(is_range));
    kingtide_lock_info { size: 0, txn, family, mode, is_range, reserved: 0, lower, upper }
}

/// Fills `info` with what `of` makes of the item at an index; false behind the last.
///
/// # Safety
/// As [`fill`].
unsafe fn item<T, I: Sized_>(list: Option<&[T]>, index: usize, info: *mut I, of: impl FnOnce(&T) -> I) -> bool {
    quietly(false, || list.and_then(|l| l.get(index)).is_some_and(|found| fill(info, of(found)).is_ok()))
}

/// Hands a list out.
///
/// # Safety
/// As [`out_handle`] and [`guard`].
unsafe fn list<T>(
    db: Option<&kingtide_db>,
    out: *mut *mut T,
    err: *mut *mut kingtide_error,
    make: impl FnOnce(&kingtide_db) -> Result<T>,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(out, "list")?;
        let db = need(db, "db")?;
        db.db.check_process()?;
        out.set(make(db)?);
        Ok(())
    })
}

/// Lists running and prepared transactions.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_transactions(
    db: Option<&kingtide_db>,
    transactions: *mut *mut kingtide_txn_list,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    list(db, transactions, err, |db| Ok(kingtide_txn_list(db.db.transactions())))
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_list_count(list: Option<&kingtide_txn_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_list_get(
    list: Option<&kingtide_txn_list>,
    index: usize,
    info: *mut kingtide_txn_info,
) -> bool {
    item(list.map(|l| l.0.as_slice()), index, info, |t| kingtide_txn_info {
        size: 0,
        id: t.id,
        isolation: isolation_number(t.isolation),
        locking: i32::from(t.locking),
        writes: t.writes as u64,
        xid: t.xid.as_ref().map_or(ptr::null(), |x| x.as_ptr().cast()),
        xid_len: t.xid.as_ref().map_or(0, Vec::len),
    })
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_txn_list_free(list: Option<Box<kingtide_txn_list>>) {
    drop(list);
}

/// Lists all locks that transactions hold.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_locks(
    db: Option<&kingtide_db>,
    locks: *mut *mut kingtide_lock_list,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    list(db, locks, err, |db| Ok(kingtide_lock_list(db.db.locks())))
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_lock_list_count(list: Option<&kingtide_lock_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_lock_list_get(
    list: Option<&kingtide_lock_list>,
    index: usize,
    info: *mut kingtide_lock_info,
) -> bool {
    item(list.map(|l| l.0.as_slice()), index, info, |l| lock_info(l.txn, l.family, l.mode, &l.target))
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_lock_list_free(list: Option<Box<kingtide_lock_list>>) {
    drop(list);
}

/// Lists which transaction waits for the locks of which others.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_lock_waits(
    db: Option<&kingtide_db>,
    waits: *mut *mut kingtide_lock_wait_list,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    list(db, waits, err, |db| Ok(kingtide_lock_wait_list(db.db.lock_waits())))
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_lock_wait_list_count(list: Option<&kingtide_lock_wait_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_lock_wait_list_get(
    list: Option<&kingtide_lock_wait_list>,
    index: usize,
    info: *mut kingtide_lock_wait_info,
) -> bool {
    item(list.map(|l| l.0.as_slice()), index, info, |w| {
        let (is_range, lower, upper) = target(&w.target);
        kingtide_lock_wait_info {
            size: 0,
            waiter: w.waiter,
            family: w.family,
            mode: mode_number(w.mode),
            is_range: i32::from(is_range),
            reserved: 0,
            lower,
            upper,
            waited_us: u64::try_from(w.waited.as_micros()).unwrap_or(u64::MAX),
            holders: w.holders.as_ptr(),
            holder_count: w.holders.len(),
        }
    })
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_lock_wait_list_free(list: Option<Box<kingtide_lock_wait_list>>) {
    drop(list);
}

/// Called with the id of a transaction that is about to wait for locks, and with the ids of the transactions that it waits
/// for. Must neither unwind nor jump out.
pub type kingtide_lock_wait_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, waiter: u64, holders: *const u64, holder_count: usize)>;

struct WaitHook {
    waits: unsafe extern "C" fn(*mut c_void, u64, *const u64, usize),
    context: Context,
}

impl LockWaitHook for WaitHook {
    fn waits(&self, waiter: TxnId, holders: &[TxnId]) {
        // SAFETY: the caller that set the hook promised that it can be called with its context, and the ids are valid meanwhile.
        unsafe { (self.waits)(self.context.pointer, waiter, holders.as_ptr(), holders.len()) };
    }
}

/// Sets the function that is called for transactions that wait for locks, replacing the previous one; NULL removes it. It is
/// called on the waiting thread, when the wait begins and then a few times a second, because the transactions that it waits for may have
/// changed; they may already have ended. It may interrupt or abort transactions, including the waiting one, and must not wait for
/// another. `destroy`, which may be NULL, is called when the context is no longer needed, also if this fails.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_set_lock_wait_hook(
    db: Option<&kingtide_db>,
    waits: kingtide_lock_wait_fn,
    context: *mut c_void,
    destroy: kingtide_destroy_fn,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    let context = Context { pointer: context, destroy };
    guard(err, || {
        let hook = waits.map(|waits| Arc::new(WaitHook { waits, context }) as Arc<dyn LockWaitHook>);
        let db = need(db, "db")?;
        db.db.check_process()?;
        db.db.set_lock_wait_hook(hook);
        Ok(())
    })
}

/// A deadlock: transactions each of which waits for the next, and the last for the first. The first is the victim, which is going to
/// be rolled back. Valid during the call that receives it.
pub struct kingtide_deadlock(Vec<DeadlockStep>);

/// Called with a deadlock, on the thread of its victim, before the victim releases its locks: the others still wait, unless
/// something else ended their waits. Must not wait for another transaction, and must neither unwind nor jump out.
pub type kingtide_deadlock_fn = Option<unsafe extern "C" fn(context: *mut c_void, deadlock: *const kingtide_deadlock)>;

/// The functions that are called for lock waits and for deadlocks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_lock_hooks {
    /// `sizeof(kingtide_lock_hooks)`, set by the caller.
    pub size: usize,
    /// The context passed to the functions.
    pub context: *mut c_void,
    /// Called for waits, as `kingtide_db_set_lock_wait_hook` says. May be NULL.
    pub waits: kingtide_lock_wait_fn,
    /// Called for deadlocks. May be NULL.
    pub deadlock: kingtide_deadlock_fn,
    /// Called when the context is no longer needed. May be NULL.
    pub destroy: kingtide_destroy_fn,
}
// SAFETY: raw pointers and functions only, the size first; all zeros is a value of it.
unsafe impl Sized_ for kingtide_lock_hooks {
    const NAME: &'static str = "kingtide_lock_hooks";
}

struct LockHooks {
    waits: kingtide_lock_wait_fn,
    deadlock: kingtide_deadlock_fn,
    context: Context,
}

impl LockWaitHook for LockHooks {
    fn waits(&self, waiter: TxnId, holders: &[TxnId]) {
        if let Some(waits) = self.waits {
            // SAFETY: the caller that set the hooks promised that they can be called with their context; the ids are valid meanwhile.
            unsafe { waits(self.context.pointer, waiter, holders.as_ptr(), holders.len()) };
        }
    }

    fn deadlock(&self, cycle: &[DeadlockStep]) {
        if let Some(deadlock) = self.deadlock {
            let shown = kingtide_deadlock(cycle.to_vec());
            // SAFETY: as above; the deadlock is valid meanwhile.
            unsafe { deadlock(self.context.pointer, &raw const shown) };
        }
    }
}

/// Sets the functions that are called for transactions that wait for locks, and for deadlocks, replacing those that were set
/// before, also by `kingtide_db_set_lock_wait_hook`; NULL removes them.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child). After either, `destroy` is not called and nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_set_lock_hooks(
    db: Option<&kingtide_db>,
    hooks: *const kingtide_lock_hooks,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let db = &need(db, "db")?.db;
        db.check_process()?;
        if hooks.is_null() {
            db.set_lock_wait_hook(None);
            return Ok(());
        }
        let kingtide_lock_hooks { context, waits, deadlock, destroy, .. } = abi::config(hooks)?;
        let context = Context { pointer: context, destroy };
        db.set_lock_wait_hook(Some(Arc::new(LockHooks { waits, deadlock, context })));
        Ok(())
    })
}

/// Returns the number of its transactions.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_deadlock_count(deadlock: Option<&kingtide_deadlock>) -> usize {
    deadlock.map_or(0, |d| d.0.len())
}

/// Describes the lock request of the transaction at an index from 0: `txn` is that transaction. False after the last, or if
/// `info->size` is not set. Its pointers are valid as long as the deadlock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_deadlock_wanted(
    deadlock: Option<&kingtide_deadlock>,
    index: usize,
    info: *mut kingtide_lock_info,
) -> bool {
    item(deadlock.map(|d| d.0.as_slice()), index, info, |s| lock_info(s.waiter, s.family, s.wanted_mode, &s.wanted))
}

/// Describes the lock that the transaction at an index from 0 waits for: `txn` is the one that holds it, the next one of the cycle.
/// If the lock covers more than the request, it is the first conflicting part. Otherwise as
/// `kingtide_deadlock_wanted`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_deadlock_held(
    deadlock: Option<&kingtide_deadlock>,
    index: usize,
    info: *mut kingtide_lock_info,
) -> bool {
    item(deadlock.map(|d| d.0.as_slice()), index, info, |s| lock_info(s.holder, s.family, s.held_mode, &s.held))
}

/// Lists the transactions in doubt, oldest first: those prepared now and, after an open, those that recovery found. They
/// hold their locks. Resolve them with `kingtide_db_commit_prepared` and `kingtide_db_rollback_prepared`.
///
/// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_prepared(
    db: Option<&kingtide_db>,
    prepared: *mut *mut kingtide_prepared_list,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    list(db, prepared, err, |db| Ok(kingtide_prepared_list(db.db.recover_prepared())))
}

/// Returns the number of elements.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_prepared_list_count(list: Option<&kingtide_prepared_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_prepared_list_get(
    list: Option<&kingtide_prepared_list>,
    index: usize,
    info: *mut kingtide_prepared_info,
) -> bool {
    item(list.map(|l| l.0.as_slice()), index, info, |p| kingtide_prepared_info {
        size: 0,
        xid: p.xid.as_ptr().cast(),
        xid_len: p.xid.len(),
        sequence: p.sequence,
        operations: p.operations,
        isolation: isolation_number(p.isolation),
        reserved: 0,
    })
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_prepared_list_free(list: Option<Box<kingtide_prepared_list>>) {
    drop(list);
}
