//! Locks and condition variables of the standard library, without its poisoning: what a lock guards is kept consistent at
//! every step at which a thread may panic, and a panic is contained where the work was begun.
//!
//! Not parking_lot's, which keep all waiting threads of the process in one table. A child of `fork()` inherits that table with
//! entries in the stacks of threads that do not exist there, and gives those stacks to threads of its own: a database that it
//! opens may then wait for ever or crash. A lock of the standard library is one word of memory of its own and knows no other.
//!
//! A thread that finds a lock held spins for a few microseconds and then sleeps, as the standard library does. It does not yield
//! the processor in between: with more threads than processors, a thread that yields resumes only after a time slice of each of
//! the others, whereas one that sleeps is woken when the lock is free (docs/experiments.md has the measurement).

use std::fmt;
use std::sync::{self, LockResult, PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// Returns what a lock holds, whether or not a thread panicked while it held it.
#[inline]
fn held<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// As [`std::sync::Mutex`].
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Does what [`std::sync::Mutex::new`] does.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Does what [`std::sync::Mutex::into_inner`] does.
    pub fn into_inner(self) -> T {
        held(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread holds the lock, and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        held(self.0.lock())
    }

    /// Takes the lock, unless a thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value. The exclusive borrow rules out other threads, so no lock is taken.
    pub fn get_mut(&mut self) -> &mut T {
        held(self.0.get_mut())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As [`std::sync::RwLock`].
#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Does what [`std::sync::RwLock::new`] does.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes, and takes the lock together with other readers.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        held(self.0.read())
    }

    /// Waits until no other thread holds the lock, and takes it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        held(self.0.write())
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As [`std::sync::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Does what [`std::sync::Condvar::new`] does.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Gives the lock back until the thread is woken, which may happen without a reason.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        held(self.0.wait(guard))
    }

    /// Does the same, but at most for `limit`.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        held(self.0.wait_timeout(guard, limit)).0
    }

    /// Wakes one of the waiting threads.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_leaves_the_locks_usable() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (mut a, mut b) = (mutex.lock(), lock.write());
            (*a, *b) = (2, 2);
            panic!("meant");
        }));
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(mutex.try_lock().map(|guard| *guard), Some(2));
        assert_eq!(*lock.read(), 2);
        assert_eq!(*lock.write(), 2);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert_eq!(mutex.into_inner(), 2);
    }

    #[test]
    fn a_timed_wait_ends_and_gives_the_lock_back() {
        let (mutex, wake) = (Mutex::new(1), Condvar::new());
        let mut guard = wake.wait_for(mutex.lock(), Duration::from_millis(1));
        *guard = 2;
        drop(guard);
        assert_eq!(*mutex.lock(), 2);
    }
}
