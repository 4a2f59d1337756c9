//! The interface of [`crate::lock`], which says what each function does, over the locks of shuttle and loom.

#![allow(missing_docs)] // as in `crate::lock`

#[cfg(loom)]
use ::loom::sync as sh;
#[cfg(shuttle)]
use ::shuttle::sync as sh;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// What a lock holds, whether or not a thread panicked while it held it.
pub(super) fn whatever<G>(locked: sh::LockResult<G>) -> G {
    locked.unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// As [`crate::lock::Mutex`].
#[derive(Default)]
pub struct Mutex<T>(sh::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sh::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        whatever(self.0.into_inner())
    }
}

impl<T> Mutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: whatever(self.0.lock()), of: &self.0 }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard { guard, of: &self.0 })
    }

    pub fn get_mut(&mut self) -> &mut T {
        whatever(self.0.get_mut())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A guard that knows its lock: shuttle waits for a time by giving the lock back and taking it again.
pub struct MutexGuard<'a, T> {
    pub(super) guard: sh::MutexGuard<'a, T>,
    pub(super) of: &'a sh::Mutex<T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// As [`crate::lock::RwLock`].
#[derive(Default)]
pub struct RwLock<T>(sh::RwLock<T>);

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock(sh::RwLock::new(value))
    }
}

impl<T> RwLock<T> {
    pub fn read(&self) -> sh::RwLockReadGuard<'_, T> {
        whatever(self.0.read())
    }

    pub fn write(&self) -> sh::RwLockWriteGuard<'_, T> {
        whatever(self.0.write())
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}
