//! What a commit is asked for, and what comes of it.

use crate::options::WriteOptions;
use crate::txn::validate::Validation;
use crate::wal::Lsn;
use kingtide_base::{Error, ErrorKind, SeqNo};
use std::cell::Cell;

/// How a batch is committed.
pub(crate) struct Commit<'a> {
    pub options: &'a WriteOptions,
    pub guard: Guard<'a>,
    /// Flow control let it pass already, before the caller took a lock that others must not wait for.
    pub admitted: bool,
    /// A commit that must not wait for another thread: where it would, it sets this and fails, and nothing has happened.
    pub refusal: Option<&'a Cell<bool>>,
}

impl Commit<'_> {
    /// The error of a commit that must not wait and would have to; `None` if it may.
    pub fn refuse(&self) -> Option<Error> {
        let refusal = self.refusal?;
        refusal.set(true);
        Some(Error::new(ErrorKind::Busy, "the commit would have to wait"))
    }
}

/// What a commit has to mind besides its batch.
pub(crate) enum Guard<'a> {
    /// A write outside any transaction: it waits until no transaction holds a lock on what it writes.
    Plain,
    /// An optimistic transaction: what it relied on must be unchanged, and no other transaction may hold a lock on what it writes.
    Checked(&'a Validation<'a>),
    /// A transaction that holds locks on all that it relies on.
    Locked,
}

/// A commit that is visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visible {
    /// The sequence number of its last operation.
    pub last: SeqNo,
    /// Where its log record ends; `None` if it was not logged.
    pub lsn: Option<Lsn>,
    /// A commit hook is to be called: see [`DbInner::notify_hooks`].
    pub hooked: bool,
}
