//! Reading: point reads, batches of them, and iterators over a family's [`View`](crate::family::View).

pub mod cursor;
pub(crate) mod exact;
pub mod get;
pub(crate) mod hidden;
mod level;
mod merge;
mod multi_get;
pub(crate) mod newest;
pub(crate) mod overlay;
mod stream;
pub mod value;

pub use cursor::{Cursor, CursorConfig};
#[cfg(feature = "tokio")]
pub use get::get_in_memory;
pub use get::{contains, get, get_into};
pub use multi_get::multi_get;
pub use stream::ValueReader;
pub(crate) use stream::open as open_value;
pub use value::PinnedValue;

#[cfg(test)]
mod tests;
