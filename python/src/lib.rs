//! The native part of the Python package `kingtide`. What a Python program sees is documented in `kingtide/_kingtide.pyi`
//! and in the book.
//!
//! Every call that may block (on the disk, on a lock, on another thread's use of the same object) runs detached from the
//! interpreter, so that other Python threads go on.
#![allow(missing_docs)] // the documentation of what is exported is Python's

mod batch;
mod convert;
mod db;
mod error;
mod family;
mod iter;
mod reader;
mod snapshot;
mod transaction;
mod value;
mod writer;

#[pyo3::pymodule]
mod _kingtide {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::db::{Db, version};
    #[pymodule_export]
    use crate::family::Family;
    #[pymodule_export]
    use crate::iter::Entries;
    #[pymodule_export]
    use crate::reader::Reader;
    #[pymodule_export]
    use crate::snapshot::Snapshot;
    #[pymodule_export]
    use crate::transaction::Transaction;
    #[pymodule_export]
    use crate::value::Value;
    #[pymodule_export]
    use crate::writer::{StagedValueObject, Writer};
}
