//! Kingtide's lock manager: exclusive and shared locks on keys, existing or not, and on ranges of keys.
//!
//! | module | contents |
//! |---|---|
//! | `kinds` | modes and targets of locks, and what the manager asks about their owners |
//! | `span` | places between keys; keys and ranges as spans of them |
//! | `table` | the locks held in one family |
//! | `tasks` | waits of asynchronous tasks, which take no thread |
//! | `state` | owners, queues, granting, deadlocks: everything under the one mutex |
//! | `manager` | asking, waiting, and what callers see |
//! | `free_wait` | the future with which a task waits |
//!
//! The manager knows no transactions and no database. Its caller gives it a clock and counters, says with each request in which order the
//! family's keys are, and answers questions about owners through one trait, [`Owners`].
//!
//! The mutex is a leaf: neither [`Owners`] nor any other lock is touched while it is held (a family's custom order is
//! called, though). `docs/concurrency.md` tells how locks and commits work together.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may start threads and read clocks

mod free_wait;
mod kinds;
mod manager;
mod queue;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod span;
mod state;
mod table;
mod tasks;
#[cfg(test)]
mod tests;

pub use free_wait::FreeWait;
pub use kinds::{DeadlockStep, HeldLock, LockMode, LockTarget, LockWait, LockWaitHook, Owners, Taken, Wait};
pub use manager::LockManager;
pub use tasks::Woken;
