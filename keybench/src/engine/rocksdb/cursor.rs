//! Cursors.

use super::c_api::{Handle, bytes};
use super::store::Store;
use crate::engine::Cursor;
use crate::error::Result;
use std::ptr::null_mut;
use std::sync::Arc;

/// An iterator. It keeps what it walks, `W`, if that is not the store alone.
pub struct RocksCursor<W> {
    pub store: Arc<Store>,
    pub iter: Handle,
    pub options: Handle,
    /// Read by RocksDB through `options` for as long as `iter` lives.
    pub _upper: Option<Box<[u8]>>,
    pub _walked: W,
}

impl<W> Drop for RocksCursor<W> {
    fn drop(&mut self) {
        // SAFETY: created with the cursor, destroyed only here, the iterator before the options it reads.
        unsafe {
            (self.store.api.iter_destroy)(self.iter);
            (self.store.api.readoptions_destroy)(self.options);
        }
    }
}

impl<W> RocksCursor<W> {
    /// Whether the iterator stands on an entry; when it does not, whether that is the end or an error.
    fn valid(&self) -> Result<bool> {
        // SAFETY: the iterator is live.
        if unsafe { (self.store.api.iter_valid)(self.iter) } != 0 {
            return Ok(true);
        }
        let mut error = null_mut();
        // SAFETY: the iterator is live.
        unsafe { (self.store.api.iter_get_error)(self.iter, &mut error) };
        self.store.api.check(error).map(|()| false)
    }
}

impl<W> Cursor for RocksCursor<W> {
    fn first(&mut self) -> Result<bool> {
        // SAFETY: the iterator is live and used by one thread.
        unsafe { (self.store.api.iter_seek_to_first)(self.iter) };
        self.valid()
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        // SAFETY: the key is read during the call only.
        unsafe { (self.store.api.iter_seek)(self.iter, key.as_ptr().cast(), key.len()) };
        self.valid()
    }

    fn next(&mut self) -> Result<bool> {
        // SAFETY: the caller is on an entry, as `Cursor` asks.
        unsafe { (self.store.api.iter_next)(self.iter) };
        self.valid()
    }

    fn key(&mut self) -> Result<&[u8]> {
        let mut len = 0;
        // SAFETY: the bytes stay until the iterator moves, which the borrow of self prevents.
        Ok(unsafe { bytes((self.store.api.iter_key)(self.iter, &mut len), len) })
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let (mut k, mut v) = (0, 0);
        // SAFETY: as in `key`.
        Ok(unsafe {
            let key = (self.store.api.iter_key)(self.iter, &mut k);
            let value = (self.store.api.iter_value)(self.iter, &mut v);
            (bytes(key, k), bytes(value, v))
        })
    }
}
