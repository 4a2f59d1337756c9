//! Shared pointers that are read without a lock and replaced while they are read. With `--cfg shuttle` each access is a step
//! of the schedule: see [`kingtide_base::sync`].

#[cfg(shuttle)]
mod shuttle;

#[cfg(shuttle)]
pub(crate) use self::shuttle::{ArcSwap, ArcSwapOption};
#[cfg(not(shuttle))]
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption};
