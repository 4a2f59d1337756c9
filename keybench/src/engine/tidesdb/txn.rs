//! TidesDB's transactions as its users have them: optimistic, of five levels. Writes are checked from snapshot on, reads at
//! repeatable read and at serializable; nothing is locked, and below repeatable read nothing is checked.

use super::c_api::{Api, Handle, LOCKED, NOT_FOUND, READ_COMMITTED, SUCCESS, bytes};
use super::cursor;
use super::store::{Store, Txn};
use crate::engine::txn::{Isolation, Step, Transactions, TxnMode, unsupported};
use crate::engine::{Attempt, Bounds, Cursor, until_ready};
use crate::error::{Error, Result};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::Arc;

/// "Another transaction committed a conflicting write first".
const CONFLICT: c_int = -7;

/// A session's transactions: one object, reset for each.
pub(super) struct Running {
    txn: Rc<Txn>,
    how: Transactions,
    running: bool,
}

/// A code as what the step came to.
fn step(api: &Api, doing: &str, code: c_int) -> Result<Attempt<Step<()>>> {
    match code {
        CONFLICT => Ok(Attempt::Done(Step::Conflict)),
        _ => Ok(match api.check(doing, code)? {
            Attempt::Done(()) => Attempt::Done(Step::Done(())),
            Attempt::Busy => Attempt::Busy,
        }),
    }
}

impl Running {
    /// Begins one, with the object of the last where there is one.
    pub(super) fn begin(store: &Arc<Store>, last: Option<Running>, how: Transactions) -> Result<Running> {
        if how.mode == TxnMode::Locking {
            return unsupported("tidesdb", "transactions in locking mode");
        }
        // An object that a cursor still reads is left to the cursor.
        let last = last.filter(|t| Rc::strong_count(&t.txn) == 1);
        let level = how.isolation as c_int;
        let txn = match last {
            Some(last) => {
                let api = &store.api;
                // SAFETY: the transaction is live and this session's; a reset is allowed in every state of it.
                until_ready(|| api.check("reset", unsafe { (api.txn_reset)(last.txn.handle, level) }))?;
                last.txn
            }
            None => Rc::new(Txn::begin_at(store, level)?),
        };
        Ok(Running { txn, how, running: true })
    }

    fn parts(&self) -> Result<(&Store, Handle)> {
        if !self.running {
            return Err(Error::failed("tidesdb: no transaction was begun"));
        }
        Ok((&self.txn.store, self.txn.handle))
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        let (s, txn) = self.parts()?;
        let (k, v) = (key.as_ptr(), value.as_ptr());
        until_ready(|| {
            // SAFETY: the transaction is live and copies key and value.
            let code = unsafe { (s.api.txn_put)(txn, s.family, k, key.len(), v, value.len(), 0) };
            step(&s.api, "put", code)
        })
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        let (s, txn) = self.parts()?;
        // SAFETY: the transaction is live and copies the key.
        let call = || unsafe { (s.api.txn_delete)(txn, s.family, key.as_ptr(), key.len()) };
        until_ready(|| step(&s.api, "delete", call()))
    }

    pub(super) fn get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        match self.how.isolation {
            Isolation::RepeatableRead | Isolation::Serializable => self.get(key, found),
            level => unsupported("tidesdb", &format!("reads for update at {level}")),
        }
    }

    pub(super) fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let (s, txn) = self.parts()?;
        until_ready(|| {
            let (mut value, mut len) = (null_mut(), 0);
            // SAFETY: on success the value is an allocation of `len` bytes that is ours to free.
            unsafe {
                match (s.api.txn_get)(txn, s.family, key.as_ptr(), key.len(), &mut value, &mut len) {
                    SUCCESS => {
                        found(bytes(value, len));
                        (s.api.free)(value.cast());
                        Ok(Attempt::Done(Step::Done(true)))
                    }
                    NOT_FOUND => Ok(Attempt::Done(Step::Done(false))),
                    CONFLICT => Ok(Attempt::Done(Step::Conflict)),
                    LOCKED => Ok(Attempt::Busy),
                    code => Err(s.api.error("get", code)),
                }
            }
        })
    }

    pub(super) fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        self.parts()?;
        cursor::cursor(Rc::clone(&self.txn), bounds)
    }

    /// An iterator over what ends would read freed memory.
    fn without_cursors(&self) -> Result<()> {
        match Rc::strong_count(&self.txn) {
            1 => Ok(()),
            _ => Err(Error::failed("tidesdb: a transaction cannot end while a cursor uses it")),
        }
    }

    pub(super) fn commit(&mut self) -> Result<Step<()>> {
        self.without_cursors()?;
        let (s, txn) = self.parts()?;
        // SAFETY: the transaction is live and used by this thread only.
        let step = until_ready(|| step(&s.api, "commit", unsafe { (s.api.txn_commit)(txn) }))?;
        self.running = step == Step::Conflict;
        Ok(step)
    }

    pub(super) fn rollback(&mut self) -> Result<()> {
        self.without_cursors()?;
        let (s, txn) = self.parts()?;
        // A refused commit has finished the transaction already, and says so: a reset serves both.
        // SAFETY: as in `begin`.
        until_ready(|| s.api.check("reset", unsafe { (s.api.txn_reset)(txn, READ_COMMITTED) }))?;
        self.running = false;
        Ok(())
    }
}
