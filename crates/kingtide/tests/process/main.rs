//! What only real processes show: SIGKILL, limits of the system, permissions, forks.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, missing_docs)] // tests start threads and processes

mod bank;
mod huge_values;
mod kill_nine;
mod limits;
mod posix;
