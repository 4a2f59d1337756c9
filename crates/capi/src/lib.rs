//! Kingtide's C API. `include/kingtide.h` is made from this crate; `docs/c-api.md` tells how to use it.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | where C's pointers become Rust's values |
//! | `error` | statuses, the error object, and the gate that no panic passes |
//! | `value`, `reader`, `writer` | values, texts and lists that are handed out; values read and written in pieces |
//! | `options`, `db`, `family`, `batch`, `snapshot`, `iter`, `txn`, `locks` | the engine, type by type |
//! | `stats`, `changes`, `copies`, `check` | statistics and range estimates; streams and hooks; copies; verify and repair |
//!
//! Handles come in as `Option<&T>`, `Option<&mut T>` and, to be freed, `Option<Box<T>>`, which C sees as pointers that may
//! be NULL. Everything else that C points to goes through `abi`.
//!
//! # Safety
//! A function is `unsafe` if a raw pointer or a callback reaches it. Each of them asks for the same: a pointer is NULL,
//! where the header allows that, or it points to what its type and the header say (as many bytes or elements as the
//! length or count beside it, a NUL-terminated string, a place that can be written), no other thread changes or frees
//! it while the function runs, and callbacks may be called with their context for as long as the header says. The
//! others are safe: references and boxes are what their types promise.

#![allow(non_camel_case_types)]
// types have the names that they have in C
// The contract is one for all, above, and comments on functions are the header's.
#![allow(clippy::missing_safety_doc)]
// The body of a function that C calls has one reason to be sound, its contract, and relies on it in every line.
#![allow(unsafe_op_in_unsafe_fn)]
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
mod observe;
mod options;
#[cfg(test)]
mod panic_tests;
#[cfg(test)]
#[path = "../tests/programs/mod.rs"]
mod programs;
mod reader;
mod snapshot;
mod stats;
mod txn;
mod value;
mod writer;

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
pub use observe::*;
pub use options::*;
pub use reader::*;
pub use snapshot::*;
pub use stats::*;
pub use txn::*;
pub use value::*;
pub use writer::*;

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
