//! A function that is told who waits for whom, for callers that know of waits outside of the engine: a server that commits
//! transactions in a given order can then end the one that would wait for itself.

use super::id::TxnId;

/// Is told of waits for locks. A closure will do.
pub trait LockWaitHook: Send + Sync {
    /// `waiter` is going to wait for locks of `holders`, or for those of them that stand before it in line. Called on the
    /// waiting thread, again a few times a second while it waits, for those that it waits for may have changed. A
    /// transaction named here may be over by now.
    ///
    /// The hook may interrupt or abort transactions, the waiting one included. It must neither panic nor wait for another
    /// transaction.
    fn waits(&self, waiter: TxnId, holders: &[TxnId]);
}

impl<F: Fn(TxnId, &[TxnId]) + Send + Sync> LockWaitHook for F {
    fn waits(&self, waiter: TxnId, holders: &[TxnId]) {
        self(waiter, holders);
    }
}
