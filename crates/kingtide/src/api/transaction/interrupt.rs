//! Interrupts: they end a statement's wait without ending its transaction, as SQL servers ask for.

use super::{Transaction, TransactionHandle};
use kingtide_base::Result;

impl Transaction {
    /// Clears an interrupt that ended no wait.
    pub fn clear_interrupt(&mut self) {
        self.shared.take_interrupt(self.id);
    }
}

impl TransactionHandle {
    /// Ends a wait of the transaction for a lock: the waiting call of its owner, or else the next one that would have to wait,
    /// returns `Cancelled`, and the transaction keeps running. See [`Transaction::clear_interrupt`].
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{ErrorKind, Isolation, TransactionOptions};
    ///
    /// let locking = || db.begin_with(TransactionOptions::new(Isolation::ReadCommitted).locking(true));
    /// let (mut first, mut second) = (locking()?, locking()?);
    /// first.get_for_update(db.default_family(), b"ebb")?;
    /// second.handle().interrupt()?; // any thread may; here, before the wait
    /// let e = second.get_for_update(db.default_family(), b"ebb").unwrap_err();
    /// assert_eq!(e.kind(), ErrorKind::Cancelled);
    /// second.put(db.default_family(), b"flood", b"rising")?; // it goes on
    /// second.handle().interrupt()?;
    /// second.clear_interrupt(); // the statement is over; the next one may wait
    /// second.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` when it is not running.
    pub fn interrupt(&self) -> Result<()> {
        self.db.check_origin()?;
        self.db.txns.interrupt(self.id)
    }
}
