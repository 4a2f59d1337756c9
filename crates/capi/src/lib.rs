//! Kingtide's C API. `include/kingtide.h` is made from this crate; `docs/c-api.md` tells how to use it.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | where C's pointers become Rust's values |
//! | `error` | statuses, the error object, and the gate that no panic passes |
//! | `value` | values, texts and lists that are handed out |
//! | `options`, `db`, `family`, `batch`, `snapshot`, `iter`, `txn`, `locks` | the engine, type by type |
//! | `stats`, `changes`, `copies`, `check` | statistics and range estimates; streams and hooks; copies; verify and repair |
//!
//! Handles come in as `Option<&T>`, `Option<&mut T>` and, to be freed, `Option<Box<T>>`, which C sees as pointers that may
//! be NULL. Everything else that C points to goes through `abi`.

#![allow(non_camel_case_types)] // types have the names that they have in C
#![cfg_attr(test, allow(clippy::disallowed_methods))] // tests may use directories

mod abi;
mod batch;
mod changes;
mod check;
mod copies;
mod db;
mod error;
mod family;
mod iter;
mod locks;
mod options;
#[cfg(test)]
mod panic_tests;
mod snapshot;
mod stats;
mod txn;
mod value;

pub use abi::{Sized_, kingtide_bound, kingtide_bound_kind};
pub use batch::*;
pub use changes::*;
pub use check::*;
pub use copies::*;
pub use db::*;
pub use error::*;
pub use family::*;
pub use iter::*;
pub use locks::*;
pub use options::*;
pub use snapshot::*;
pub use stats::*;
pub use txn::*;
pub use value::*;

/// What threads may share, and what may move between them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<kingtide_db>();
    shared::<kingtide_family>();
    shared::<kingtide_snapshot>();
    shared::<kingtide_error>();
    shared::<kingtide_txn_handle>();
    shared::<kingtide_stats>();
    shared::<kingtide_change_record>();
    shared::<kingtide_backup>();
    shared::<kingtide_verify_report>();
    moved::<kingtide_txn>();
    moved::<kingtide_iter>();
    moved::<kingtide_batch>();
    moved::<kingtide_value>();
    moved::<kingtide_ticket>();
    moved::<kingtide_change_stream>();
    moved::<kingtide_sorted_writer>();
};
