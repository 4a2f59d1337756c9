//! Transactions: their verbs, errors, locks and isolation.
#![allow(clippy::disallowed_methods, missing_docs)] // tests start threads

mod basics;
mod errors;
mod isolation;
mod model;
mod row_locks;
mod two_phase;
