//! keybench as its users start it: runs, their reports, and how they end.

mod cost;
mod endings;
mod figures;
mod foreign;
mod harness;
mod honest;
mod kill;
mod original;
mod page;
