//! keybench as its users start it: runs, their reports, and how they end.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, missing_docs)] // tests start processes and handle files

mod cost;
mod endings;
mod figures;
mod foreign;
mod harness;
mod honest;
mod kill;
mod original;
mod page;
