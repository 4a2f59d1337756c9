//! What is left to do of a commit that is visible.

use crate::commit::pipeline::Visible;
use crate::engine::DbInner;
use kingtide_base::options::Durability;
use kingtide_base::{Result, SeqNo};
use std::sync::Arc;

/// A commit that is visible to all and may not be durable yet.
///
/// ```
/// use kingtide::{Db, Durability, Isolation, Options, vfs::MemFs};
///
/// let db = Db::open("db", Options::new().fs(MemFs::shared()).durability(Durability::Power))?;
/// let mut txn = db.begin(Isolation::Snapshot)?;
/// txn.put(db.default_family(), b"tide", b"high")?;
/// let ticket = txn.commit_ordered()?; // others see it now
/// let sequence = ticket.sequence();
/// assert_eq!(ticket.wait()?, sequence); // it survives a power cut now
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "durability is known only after `wait`"]
pub struct CommitTicket {
    db: Arc<DbInner>,
    commit: Option<Visible>,
    durability: Durability,
}

impl CommitTicket {
    pub(super) fn new(db: Arc<DbInner>, commit: Option<Visible>, durability: Durability) -> CommitTicket {
        CommitTicket { db, commit, durability }
    }

    /// The database that it was made in, the commit, unless it wrote nothing, and what it is to survive.
    #[cfg(feature = "tokio")]
    pub(crate) fn parts(&self) -> (&Arc<DbInner>, Option<Visible>, Durability) {
        (&self.db, self.commit, self.durability)
    }

    /// The sequence number of the commit's last operation; 0 if it wrote nothing. Tickets are ordered as the commits are.
    pub fn sequence(&self) -> SeqNo {
        self.commit.map_or(0, |c| c.last)
    }

    /// Waits until the commit survives what its durability names. Waiting threads share one sync. Returns the sequence
    /// number.
    ///
    /// # Errors
    /// `Poisoned`, `Io`: the commit is visible, and it is unknown whether it survives a power cut.
    pub fn wait(self) -> Result<SeqNo> {
        self.db.check_origin()?;
        if let Some(commit) = self.commit {
            self.db.make_durable(commit, self.durability)?;
        }
        Ok(self.sequence())
    }
}
