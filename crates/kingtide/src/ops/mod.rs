//! The operations of a batch and of a log record: their bytes, written and read.

pub(crate) mod changed;
pub(crate) mod control;
pub(crate) mod files;
mod write;

pub(crate) use changed::ChangedOps;
pub use changed::{Change, ChangeKind};
pub(crate) use control::{LockTarget, LogOp, LoggedLock, Prepared, check_xid, put_prepare, put_resolved, read_log_op};
pub(crate) use write::LoggedOp;
