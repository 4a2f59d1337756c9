//! What belongs to one family: the view that readers borrow, and the handles of its open tables.

pub mod tables;
pub mod view;

pub use tables::{TableCache, TableHandle};
pub use view::View;
