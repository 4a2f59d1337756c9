//! Interrupts: they end a statement's wait without ending its transaction, as SQL servers ask for.

use super::{Transaction, TransactionHandle};
use kingtide_base::Result;

impl Transaction {
    /// Forgets an interrupt that met no wait.
    pub fn clear_interrupt(&mut self) {
        self.shared.take_interrupt(self.id);
    }
}

impl TransactionHandle {
    /// Ends a wait of the transaction for a lock: the call of its owner that waits, or else the next that would have to,
    /// returns `Cancelled`, and the transaction goes on. See [`Transaction::clear_interrupt`].
    ///
    /// # Errors
    /// `NotFound` when it is not running.
    pub fn interrupt(&self) -> Result<()> {
        self.db.txns.interrupt(self.id)
    }
}
