//! Transactions: their verbs, errors, locks and isolation.
#![allow(clippy::disallowed_methods, missing_docs)] // tests start threads

mod basics;
mod drops;
mod errors;
mod isolation;
mod model;
mod own_writes;
mod row_locks;
mod two_phase;
