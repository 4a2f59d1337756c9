//! Kingtide's C API. `include/kingtide.h` is made from this crate; `docs/c-api.md` tells how to use it.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | where C's pointers become Rust's values |
//! | `error` | statuses, the error object, and the gate that no panic passes |
//! | `value` | values, texts and lists that are handed out |
//! | `options`, `db`, `family`, `batch`, `snapshot`, `iter`, `txn`, `locks` | the engine, type by type |
//!
//! Handles come in as `Option<&T>`, `Option<&mut T>` and, to be freed, `Option<Box<T>>`, which C sees as pointers that may
//! be NULL. Everything else that C points to goes through `abi`.

#![allow(non_camel_case_types)] // types have the names that they have in C

mod abi;
mod batch;
mod db;
mod error;
mod family;
mod iter;
mod locks;
mod options;
mod snapshot;
mod txn;
mod value;

pub use abi::*;
pub use batch::*;
pub use db::*;
pub use error::*;
pub use family::*;
pub use iter::*;
pub use locks::*;
pub use options::*;
pub use snapshot::*;
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
    moved::<kingtide_txn>();
    moved::<kingtide_iter>();
    moved::<kingtide_batch>();
    moved::<kingtide_value>();
};
