//! Tables and value logs as files: their format, damage to them, and random ones against a model.
#![allow(missing_docs)]

mod common;
mod dictionary;
mod golden;
mod hostile;
mod model;
mod partitions;
mod vlog;
