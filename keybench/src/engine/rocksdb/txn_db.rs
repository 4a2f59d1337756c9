//! An `OptimisticTransactionDB` or, for locking mode, a `TransactionDB`. Which of the two a database is opened as decides what
//! it can begin.

use super::c_api::{ErrorOut, Handle};
use crate::engine::peers::{PeerLibrary, peer_symbols};
use crate::engine::txn::{Isolation, Transactions, TxnMode};
use crate::error::Result;
use std::ffi::{c_char, c_int, c_uchar};

peer_symbols! {
    /// The part of the C API that transactions add. Loaded only for them: RocksDB 7.8 has not all of it.
    TxnApi, "rocksdb_" {
        transactiondb_options_create: fn() -> Handle;
        transactiondb_options_destroy: fn(Handle);
        transactiondb_open_column_families: fn(Handle, Handle, *const c_char, c_int, *const *const c_char, *const Handle, *mut Handle, ErrorOut) -> Handle;
        transactiondb_get_base_db: fn(Handle) -> Handle;
        transactiondb_close_base_db: fn(Handle);
        transactiondb_close: fn(Handle);
        transactiondb_put: fn(Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorOut);
        transactiondb_delete: fn(Handle, Handle, *const c_char, usize, ErrorOut);
        transactiondb_write: fn(Handle, Handle, Handle, ErrorOut);
        transaction_options_create: fn() -> Handle;
        transaction_options_destroy: fn(Handle);
        transaction_options_set_set_snapshot: fn(Handle, c_uchar);
        transaction_options_set_deadlock_detect: fn(Handle, c_uchar);
        transaction_begin: fn(Handle, Handle, Handle, Handle) -> Handle;
        optimistictransactiondb_open_column_families: fn(Handle, *const c_char, c_int, *const *const c_char, *const Handle, *mut Handle, ErrorOut) -> Handle;
        optimistictransactiondb_get_base_db: fn(Handle) -> Handle;
        optimistictransactiondb_close_base_db: fn(Handle);
        optimistictransactiondb_close: fn(Handle);
        optimistictransaction_options_create: fn() -> Handle;
        optimistictransaction_options_destroy: fn(Handle);
        optimistictransaction_options_set_set_snapshot: fn(Handle, c_uchar);
        optimistictransaction_begin: fn(Handle, Handle, Handle, Handle) -> Handle;
        transaction_get_snapshot: fn(Handle) -> Handle;
        transaction_get_pinned: fn(Handle, Handle, *const c_char, usize, ErrorOut) -> Handle;
        transaction_get_pinned_for_update: fn(Handle, Handle, *const c_char, usize, c_uchar, ErrorOut) -> Handle;
        transaction_put: fn(Handle, *const c_char, usize, *const c_char, usize, ErrorOut);
        transaction_delete: fn(Handle, *const c_char, usize, ErrorOut);
        transaction_create_iterator: fn(Handle, Handle) -> Handle;
        transaction_commit: fn(Handle, ErrorOut);
        transaction_rollback: fn(Handle, ErrorOut);
        transaction_destroy: fn(Handle);
        readoptions_set_snapshot: fn(Handle, Handle);
    }
}

/// How single operations and batches outside transactions are written.
pub(super) struct PlainWrites {
    pub(super) db: Handle,
    pub(super) put: unsafe extern "C" fn(Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorOut),
    pub(super) delete: unsafe extern "C" fn(Handle, Handle, *const c_char, usize, ErrorOut),
    pub(super) write: unsafe extern "C" fn(Handle, Handle, Handle, ErrorOut),
}

/// An open database that can begin transactions.
pub(super) struct TxnDb {
    pub(super) api: TxnApi,
    pub(super) mode: TxnMode,
    pub(super) db: Handle,
    /// The same database without its transactions.
    pub(super) base: Handle,
    /// Options of transactions that read a snapshot, and of those that do not.
    pub(super) at_snapshot: Handle,
    pub(super) at_latest: Handle,
}

impl TxnDb {
    /// Opens or creates a database with one column family; the caller looks at `error` before it uses the answer.
    ///
    /// # Safety
    /// `options` must be live options, `path` NUL-terminated, and `error` point to null.
    pub(super) unsafe fn open(
        library: &PeerLibrary,
        mode: TxnMode,
        options: Handle,
        path: *const c_char,
        family: &mut Handle,
        error: ErrorOut,
    ) -> Result<TxnDb> {
        let api = TxnApi::load(library)?;
        let (names, families) = ([c"default".as_ptr()], [options]);
        // SAFETY: the caller vouches for options, path and error; the arrays hold one family each and live for the call.
        // The base of a database that was not opened is not asked for. Transaction options are plain objects.
        let (db, base, [at_snapshot, at_latest]) = unsafe {
            match mode {
                TxnMode::Locking => {
                    let own = (api.transactiondb_options_create)();
                    let (n, f) = (names.as_ptr(), families.as_ptr());
                    let db = (api.transactiondb_open_column_families)(options, own, path, 1, n, f, family, error);
                    (api.transactiondb_options_destroy)(own);
                    let base = if db.is_null() { db } else { (api.transactiondb_get_base_db)(db) };
                    let make = |snapshot: u8| {
                        let o = (api.transaction_options_create)();
                        (api.transaction_options_set_set_snapshot)(o, snapshot);
                        (api.transaction_options_set_deadlock_detect)(o, 1);
                        o
                    };
                    (db, base, [1, 0].map(make))
                }
                TxnMode::Optimistic => {
                    let (n, f) = (names.as_ptr(), families.as_ptr());
                    let db = (api.optimistictransactiondb_open_column_families)(options, path, 1, n, f, family, error);
                    let base = if db.is_null() { db } else { (api.optimistictransactiondb_get_base_db)(db) };
                    let make = |snapshot: u8| {
                        let o = (api.optimistictransaction_options_create)();
                        (api.optimistictransaction_options_set_set_snapshot)(o, snapshot);
                        o
                    };
                    (db, base, [1, 0].map(make))
                }
            }
        };
        Ok(TxnDb { api, mode, db, base, at_snapshot, at_latest })
    }

    /// What the report says of it.
    pub(super) fn shown(how: Transactions) -> Vec<(String, String)> {
        let (kind, how_checked) = match how.mode {
            TxnMode::Optimistic => ("OptimisticTransactionDB", "validated at commit"),
            TxnMode::Locking => ("TransactionDB", "write-committed, deadlock_detect"),
        };
        let snapshot = if how.isolation >= Isolation::RepeatableRead { "set_snapshot" } else { "no snapshot" };
        vec![("transactions".into(), format!("{kind} ({how_checked}, {snapshot})"))]
    }

    /// Writes outside transactions that wait for their locks, where there are any.
    pub(super) fn plain_writes(&self) -> Option<PlainWrites> {
        let TxnApi { transactiondb_put: put, transactiondb_delete: delete, transactiondb_write: write, .. } = self.api;
        (self.mode == TxnMode::Locking).then_some(PlainWrites { db: self.db, put, delete, write })
    }

    /// Closes it.
    ///
    /// # Safety
    /// Once, with nothing left that uses the database.
    pub(super) unsafe fn close(&self) {
        let api = &self.api;
        // SAFETY: made in `open` by the functions of the same kind. Nothing but the options remains if opening failed.
        unsafe {
            match self.mode {
                TxnMode::Locking => {
                    if !self.db.is_null() {
                        (api.transactiondb_close_base_db)(self.base);
                        (api.transactiondb_close)(self.db);
                    }
                    [self.at_snapshot, self.at_latest].into_iter().for_each(|o| (api.transaction_options_destroy)(o));
                }
                TxnMode::Optimistic => {
                    if !self.db.is_null() {
                        (api.optimistictransactiondb_close_base_db)(self.base);
                        (api.optimistictransactiondb_close)(self.db);
                    }
                    [self.at_snapshot, self.at_latest]
                        .into_iter()
                        .for_each(|o| (api.optimistictransaction_options_destroy)(o));
                }
            }
        }
    }
}
