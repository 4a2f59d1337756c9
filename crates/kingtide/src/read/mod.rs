//! Reading: point reads, batches of them, and iterators over a family's [`View`](crate::family::View).

pub mod get;
pub mod iter;
mod level;
mod merge;
mod multi_get;
#[allow(dead_code)] // until a transaction's commit calls it
pub(crate) mod newest;
pub mod value;

pub use get::{ReadContext, get, get_into};
pub use iter::{DbIterator, Entries, IterConfig};
pub use multi_get::multi_get;
pub use value::PinnedValue;

#[cfg(test)]
mod tests;
