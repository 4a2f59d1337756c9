//! Locks and atomics of the engine. All of its rooms take them from here, so that a build for schedule exploration can
//! put other ones in their place.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic;
