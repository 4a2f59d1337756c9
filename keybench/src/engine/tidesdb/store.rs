//! An open store, and transactions of TidesDB's by which it is read and written.

use super::c_api::{Api, FamilyConfig, Handle, LOCKED, NOT_FOUND, READ_COMMITTED, SUCCESS, bytes};
use crate::engine::{Attempt, until_ready};
use crate::error::Result;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// An open database and its one column family.
pub struct Store {
    pub api: Api,
    pub version: String,
    pub db: Handle,
    pub family: Handle,
    /// The family's configuration, for those that are made beside it.
    pub config: FamilyConfig,
    pub sync: bool,
    pub shown: Vec<(String, String)>,
}

// SAFETY: a TidesDB database and its families may be used from any thread at once; the database is only closed in `drop`,
// when no session or cursor holds it any more.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed only here; every transaction and iterator held an Arc of the store.
        unsafe { (self.api.close)(self.db) };
    }
}

/// A transaction of its own store.
pub struct Txn {
    pub store: Arc<Store>,
    pub handle: Handle,
}

impl Txn {
    pub fn begin(store: &Arc<Store>) -> Result<Txn> {
        Txn::begin_at(store, READ_COMMITTED)
    }

    pub fn begin_at(store: &Arc<Store>, level: c_int) -> Result<Txn> {
        let handle = until_ready(|| {
            let mut handle = null_mut();
            // SAFETY: the database is open; the handle is written on success.
            let code = unsafe { (store.api.txn_begin_with_isolation)(store.db, level, &mut handle) };
            Ok(match store.api.check("begin", code)? {
                Attempt::Done(()) => Attempt::Done(handle),
                Attempt::Busy => Attempt::Busy,
            })
        })?;
        Ok(Txn { store: Arc::clone(store), handle })
    }

    /// Looks a key of a family up.
    pub fn get_in(&mut self, family: Handle, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let s = &*self.store;
        until_ready(|| {
            let (mut value, mut len) = (null_mut(), 0);
            // SAFETY: on success the value is an allocation of `len` bytes that is ours to free.
            unsafe {
                let txn = self.handle;
                match (s.api.txn_get_notrack)(txn, family, key.as_ptr(), key.len(), &mut value, &mut len) {
                    SUCCESS => {
                        found(bytes(value, len));
                        (s.api.free)(value.cast());
                        Ok(Attempt::Done(true))
                    }
                    NOT_FOUND => Ok(Attempt::Done(false)),
                    LOCKED => Ok(Attempt::Busy),
                    code => Err(s.api.error("get", code)),
                }
            }
        })
    }

    /// Buffers with `add` and commits; leaves the transaction fresh either way.
    pub fn commit_with(&mut self, add: impl Fn(&Api, Handle, Handle) -> Result<()>) -> Result<()> {
        self.commit_in(self.store.family, add)
    }

    /// The same in a family.
    pub fn commit_in(&mut self, family: Handle, add: impl Fn(&Api, Handle, Handle) -> Result<()>) -> Result<()> {
        let s = &*self.store;
        let outcome = add(&s.api, self.handle, family).and_then(|()| {
            // SAFETY: the transaction is live and used by this thread only.
            until_ready(|| s.api.check("commit", unsafe { (s.api.txn_commit)(self.handle) }))
        });
        // SAFETY: as above; a reset is allowed in every state of a transaction.
        let reset = until_ready(|| s.api.check("reset", unsafe { (s.api.txn_reset)(self.handle, READ_COMMITTED) }));
        outcome.and(reset)
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        // SAFETY: begun in `begin`, freed only here.
        unsafe { (self.store.api.txn_free)(self.handle) }
    }
}
