//! What commits share under their lock.

use crate::family::Family;
use crate::txn::recent::RecentWrites;
use crate::wal::WalWriter;
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use std::sync::Arc;

/// What the commit lock protects.
pub(crate) struct CommitState {
    /// The log's appending end.
    pub wal: WalWriter,
    /// Last sequence number given out.
    pub last_seq: SeqNo,
    /// Families that can be written to.
    pub families: Vec<Arc<Family>>,
    /// What was committed while a transaction validates ranges.
    pub recent: RecentWrites,
    /// The log itself must hold all values, because `change_retention` keeps it. Changed with the option, under the commit
    /// lock, so that it is clear which commits come before.
    pub holds_values: bool,
    /// A panic left memtables with a part of a batch: nothing may be published or flushed any more.
    pub half_filled: bool,
}

impl CommitState {
    /// An error once a panic left a part of a batch in memtables.
    #[inline]
    pub fn check_whole(&self) -> Result<()> {
        if self.half_filled { Err(self.wal.shared().poison().unwrap_or_else(half_filled)) } else { Ok(()) }
    }
}

#[cold]
pub(super) fn half_filled() -> Error {
    let text = "a commit was interrupted by a panic, perhaps of a custom key order; its outcome is unknown until the database is reopened";
    Error::new(ErrorKind::Poisoned, text)
}
