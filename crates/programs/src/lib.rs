//! Seven programs that users of an embedded store write, each with Kingtide and, under the feature `peers`, with fjall and
//! redb: what the interfaces ask of a program can be compared side by side. Each engine's version keeps the same promises and
//! passes the same tests; docs/programs.md has the comparison.

#![allow(clippy::disallowed_methods)] // programs of users have no clock of a test's

pub mod with_kingtide;

#[cfg(feature = "peers")]
pub mod with_fjall;
#[cfg(feature = "peers")]
pub mod with_redb;

/// What the tests open the others' databases with.
#[cfg(feature = "peers")]
pub use {fjall, redb};
