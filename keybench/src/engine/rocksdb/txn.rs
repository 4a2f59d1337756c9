//! RocksDB's transactions.
//!
//! How a careful user would call it: a session's transaction object is used again for the next transaction, reads at a
//! snapshot go through read options that hold the transaction's own, and deadlocks are looked for rather than waited out.
//!
//! Levels are met as well as RocksDB can, never less than asked: read uncommitted is read committed; from repeatable read
//! on a transaction reads a snapshot, and writes are checked against it; serializable reads are reads for update,
//! which leaves ranges unchecked.

use super::c_api::{Api, Handle, slice_bytes};
use super::cursor::RocksCursor;
use super::store::Store;
use super::txn_db::TxnApi;
use crate::engine::txn::{Isolation, Step, Transactions, TxnMode, unsupported};
use crate::engine::{Bounds, Cursor};
use crate::error::{Error, Result};
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

/// How the messages of statuses begin that mean another transaction was in the way: busy or a deadlock, a lock that was
/// waited for too long, and memtables that no longer reach back far enough to tell.
const CONFLICTS: [&str; 3] = ["Resource busy", "Operation timed out", "Operation failed. Try again."];

/// A call's message as what the step came to.
fn step<T>(api: &Api, message: *mut c_char, done: T) -> Result<Step<T>> {
    match api.message(message) {
        None => Ok(Step::Done(done)),
        Some(text) if CONFLICTS.iter().any(|c| text.starts_with(c)) => Ok(Step::Conflict),
        Some(text) => Err(Error::failed(format!("rocksdb: {text}"))),
    }
}

/// A transaction object of RocksDB's, begun again and again.
struct Object {
    store: Arc<Store>,
    handle: Handle,
    /// Read options that hold the transaction's snapshot once a read has needed it.
    read_options: Handle,
}

impl Drop for Object {
    fn drop(&mut self) {
        let Some(txns) = &self.store.txns else { return };
        // SAFETY: begun by `Txn::begin`, destroyed only here; cursors over it hold a reference to it.
        unsafe {
            (txns.api.transaction_destroy)(self.handle);
            (self.store.api.readoptions_destroy)(self.read_options);
        }
    }
}

/// A session's transactions: the object, and how far the running one is.
pub(super) struct Txn {
    object: Rc<Object>,
    how: Transactions,
    running: bool,
    /// The read options hold the running transaction's snapshot.
    knows_snapshot: bool,
}

impl Txn {
    /// Begins one, with the object of the last where there is one.
    pub(super) fn begin(store: &Arc<Store>, last: Option<Txn>, how: Transactions) -> Result<Txn> {
        let Some(txns) = store.txns.as_ref().filter(|t| t.mode == how.mode) else {
            let mode = how.mode.name();
            return unsupported(
                "rocksdb",
                &format!("{mode} transactions unless it is opened for them (--txn-mode {mode})"),
            );
        };
        let begin = match how.mode {
            TxnMode::Locking => txns.api.transaction_begin,
            TxnMode::Optimistic => txns.api.optimistictransaction_begin,
        };
        let options = if how.isolation >= Isolation::RepeatableRead { txns.at_snapshot } else { txns.at_latest };
        // An object that a cursor still reads is left to the cursor.
        let last = last.filter(|t| Rc::strong_count(&t.object) == 1);
        let old = last.as_ref().map_or(null_mut(), |t| t.object.handle);
        // SAFETY: the database and both options are live; an old transaction is used by this session alone.
        let handle = unsafe { begin(txns.db, store.write_options, options, old) };
        let object = match last {
            Some(last) => last.object,
            None => {
                // SAFETY: plain options, destroyed with the object.
                let read_options = unsafe { (store.api.readoptions_create)() };
                Rc::new(Object { store: Arc::clone(store), handle, read_options })
            }
        };
        Ok(Txn { object, how, running: true, knows_snapshot: false })
    }

    fn api(&self) -> Result<(&Api, &TxnApi)> {
        match &self.object.store.txns {
            Some(txns) if self.running => Ok((&self.object.store.api, &txns.api)),
            _ => Err(Error::failed("rocksdb: no transaction was begun")),
        }
    }

    /// Read options for what this transaction sees.
    fn read_options(&mut self) -> Result<Handle> {
        if self.how.isolation < Isolation::RepeatableRead {
            return Ok(self.object.store.read_options);
        }
        if !self.knows_snapshot {
            let (api, txn) = self.api()?;
            // SAFETY: the transaction was begun with a snapshot, which lives until it ends. The options copy the pointer
            // to it; what holds that pointer is ours to free.
            unsafe {
                let snapshot = (txn.transaction_get_snapshot)(self.object.handle);
                (txn.readoptions_set_snapshot)(self.object.read_options, snapshot);
                (api.free)(snapshot.cast::<c_void>());
            }
            self.knows_snapshot = true;
        }
        Ok(self.object.read_options)
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        let (api, txn) = self.api()?;
        let (mut error, k, v) = (null_mut(), key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the transaction is live and copies key and value.
        unsafe { (txn.transaction_put)(self.object.handle, k, key.len(), v, value.len(), &mut error) };
        step(api, error, ())
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        let (api, txn) = self.api()?;
        let mut error = null_mut();
        // SAFETY: the transaction is live and copies the key.
        unsafe { (txn.transaction_delete)(self.object.handle, key.as_ptr().cast(), key.len(), &mut error) };
        step(api, error, ())
    }

    pub(super) fn get(&mut self, key: &[u8], for_update: bool, found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let serializable = self.how.isolation == Isolation::Serializable;
        // A lock is granted only if the key is as the snapshot saw it, so the newest value is the snapshot's.
        let options = if for_update && self.how.mode == TxnMode::Locking {
            self.object.store.read_options
        } else {
            self.read_options()?
        };
        let (api, txn) = self.api()?;
        let (mut error, k) = (null_mut(), key.as_ptr().cast());
        let handle = self.object.handle;
        // SAFETY: the transaction and the read options are live; the key is read, and where it is locked copied,
        // during the call only.
        let slice = unsafe {
            if for_update || serializable {
                let exclusive = u8::from(for_update);
                (txn.transaction_get_pinned_for_update)(handle, options, k, key.len(), exclusive, &mut error)
            } else {
                (txn.transaction_get_pinned)(handle, options, k, key.len(), &mut error)
            }
        };
        let step = step(api, error, !slice.is_null())?;
        if !slice.is_null() {
            // SAFETY: a non-null slice is ours to read until we destroy it.
            unsafe {
                found(slice_bytes(api, slice));
                (api.pinnableslice_destroy)(slice);
            }
        }
        Ok(step)
    }

    pub(super) fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let snapshot = self.how.isolation >= Isolation::RepeatableRead;
        let (api, txn) = self.api()?;
        let upper: Option<Box<[u8]>> = bounds.upper.map(Into::into);
        // SAFETY: the cursor keeps the bound's bytes, the read options and the transaction for as long as the iterator
        // lives; it is dropped before the transaction ends, and so before its snapshot goes.
        let (iter, options) = unsafe {
            let options = (api.readoptions_create)();
            if let Some(u) = &upper {
                (api.readoptions_set_iterate_upper_bound)(options, u.as_ptr().cast(), u.len());
            }
            if snapshot {
                let held = (txn.transaction_get_snapshot)(self.object.handle);
                (txn.readoptions_set_snapshot)(options, held);
                (api.free)(held.cast::<c_void>());
            }
            ((txn.transaction_create_iterator)(self.object.handle, options), options)
        };
        let store = Arc::clone(&self.object.store);
        Ok(Box::new(RocksCursor { store, iter, options, _upper: upper, _walked: Rc::clone(&self.object) }))
    }

    /// An iterator over what ends would read freed memory.
    fn without_cursors(&self) -> Result<()> {
        match Rc::strong_count(&self.object) {
            1 => Ok(()),
            _ => Err(Error::failed("rocksdb: a transaction cannot end while a cursor uses it")),
        }
    }

    pub(super) fn commit(&mut self) -> Result<Step<()>> {
        self.without_cursors()?;
        let (api, txn) = self.api()?;
        let mut error = null_mut();
        // SAFETY: the transaction is live and used by this thread only.
        unsafe { (txn.transaction_commit)(self.object.handle, &mut error) };
        let step = step(api, error, ())?;
        self.running = step == Step::Conflict;
        Ok(step)
    }

    pub(super) fn rollback(&mut self) -> Result<()> {
        self.without_cursors()?;
        let (api, txn) = self.api()?;
        let mut error = null_mut();
        // SAFETY: as in `commit`.
        unsafe { (txn.transaction_rollback)(self.object.handle, &mut error) };
        api.check(error)?;
        self.running = false;
        Ok(())
    }
}
