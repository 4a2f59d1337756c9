//! Transactions: their verbs, errors, locks and isolation.

mod basics;
mod drops;
mod errors;
mod isolation;
mod model;
mod moves;
mod own_writes;
mod row_locks;
mod two_phase;
