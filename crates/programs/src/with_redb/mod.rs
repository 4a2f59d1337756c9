//! The seven programs with redb.

pub mod blobs;
pub mod counter;
pub mod index;
pub mod pages;
pub mod queue;
pub mod series;
pub mod server;
