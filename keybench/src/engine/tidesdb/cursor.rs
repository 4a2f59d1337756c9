//! Cursors.

use super::c_api::{Api, Handle, LOCKED, NOT_FOUND, SUCCESS, bytes};
use super::store::Txn;
use crate::engine::{Attempt, Bounds, Cursor, until_ready};
use crate::error::Result;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::rc::Rc;

/// A cursor over what a transaction sees.
pub fn cursor(txn: Rc<Txn>, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
    let s = &*txn.store;
    let iter = until_ready(|| {
        let mut iter = null_mut();
        // SAFETY: the transaction is kept by the cursor; bounds are copied; the iterator is written on success.
        let code = unsafe {
            match (bounds.lower, bounds.upper) {
                (Some(lo), Some(hi)) => {
                    let (a, b) = (lo.as_ptr(), hi.as_ptr());
                    (s.api.iter_new_range)(txn.handle, s.family, a, lo.len(), b, hi.len(), &mut iter)
                }
                _ => (s.api.iter_new)(txn.handle, s.family, &mut iter),
            }
        };
        Ok(match s.api.check("new iterator", code)? {
            Attempt::Done(()) => Attempt::Done(iter),
            Attempt::Busy => Attempt::Busy,
        })
    })?;
    Ok(Box::new(TidesCursor { iter, txn, key: Owned::EMPTY, value: Owned::EMPTY }))
}

/// Bytes that TidesDB allocated for us.
#[derive(Clone, Copy)]
struct Owned {
    data: *mut u8,
    len: usize,
}

impl Owned {
    const EMPTY: Owned = Owned { data: null_mut(), len: 0 };
}

/// An iterator, its transaction, and the copies of key and value that TidesDB made for the last call.
struct TidesCursor {
    iter: Handle,
    txn: Rc<Txn>,
    key: Owned,
    value: Owned,
}

impl Drop for TidesCursor {
    fn drop(&mut self) {
        self.release();
        // SAFETY: made with the cursor, freed only here, before its transaction.
        unsafe { (self.txn.store.api.iter_free)(self.iter) }
    }
}

impl TidesCursor {
    /// Frees the last copies.
    fn release(&mut self) {
        let api = &self.txn.store.api;
        for owned in [&mut self.key, &mut self.value] {
            if !owned.data.is_null() {
                // SAFETY: allocated by TidesDB for us, freed once: it is forgotten at once.
                unsafe { (api.free)(owned.data.cast()) };
                *owned = Owned::EMPTY;
            }
        }
    }

    fn moved(&mut self, doing: &str, step: impl Fn(&Api, Handle) -> c_int) -> Result<bool> {
        let api = &self.txn.store.api;
        until_ready(|| match step(api, self.iter) {
            SUCCESS => Ok(Attempt::Done(true)),
            NOT_FOUND => Ok(Attempt::Done(false)),
            LOCKED => Ok(Attempt::Busy),
            code => Err(api.error(doing, code)),
        })?;
        // SAFETY: the iterator is live.
        Ok(unsafe { (api.iter_valid)(self.iter) } != 0)
    }
}

impl Cursor for TidesCursor {
    fn first(&mut self) -> Result<bool> {
        // SAFETY: the iterator is live and used by one thread.
        self.moved("seek to first", |api, iter| unsafe { (api.iter_seek_to_first)(iter) })
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        // SAFETY: the key is read during the call only.
        self.moved("seek", |api, iter| unsafe { (api.iter_seek)(iter, key.as_ptr(), key.len()) })
    }

    fn next(&mut self) -> Result<bool> {
        // SAFETY: the iterator is live and used by one thread.
        self.moved("next", |api, iter| unsafe { (api.iter_next)(iter) })
    }

    fn key(&mut self) -> Result<&[u8]> {
        self.release();
        let api = &self.txn.store.api;
        let out = &mut self.key;
        // SAFETY: on success the key is an allocation that is ours, kept in `self.key` until the next call.
        until_ready(|| api.check("key", unsafe { (api.iter_key)(self.iter, &mut out.data, &mut out.len) }))?;
        // SAFETY: the copy stays until `release`, which the borrow of self prevents.
        Ok(unsafe { bytes(self.key.data, self.key.len) })
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        self.release();
        let api = &self.txn.store.api;
        let (k, v) = (&mut self.key, &mut self.value);
        until_ready(|| {
            // SAFETY: on success both are allocations that are ours, kept in `self` until the next call.
            let code = unsafe { (api.iter_key_value)(self.iter, &mut k.data, &mut k.len, &mut v.data, &mut v.len) };
            api.check("key and value", code)
        })?;
        // SAFETY: the copies stay until `release`, which the borrow of self prevents.
        Ok(unsafe { (bytes(self.key.data, self.key.len), bytes(self.value.data, self.value.len)) })
    }
}
