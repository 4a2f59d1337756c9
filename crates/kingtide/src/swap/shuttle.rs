//! The same under the control of [`shuttle`](mod@shuttle).

use arc_swap::RefCnt;
use kingtide_base::sync::atomic;
use std::sync::Arc;

/// As `arc_swap::ArcSwapAny`, where each access is a step of its own. Its insides are not explored.
pub(crate) struct ArcSwapAny<T: RefCnt> {
    inner: arc_swap::ArcSwapAny<T>,
    step: atomic::AtomicBool,
}

pub(crate) type ArcSwap<T> = ArcSwapAny<Arc<T>>;
pub(crate) type ArcSwapOption<T> = ArcSwapAny<Option<Arc<T>>>;

impl<T: RefCnt> ArcSwapAny<T> {
    fn of(inner: arc_swap::ArcSwapAny<T>) -> Self {
        ArcSwapAny { inner, step: atomic::AtomicBool::new(false) }
    }

    /// Lets another thread run before the access, as every access to an atomic does.
    fn step(&self) -> &arc_swap::ArcSwapAny<T> {
        self.step.load(atomic::Ordering::SeqCst);
        &self.inner
    }

    pub fn load(&self) -> arc_swap::Guard<T> {
        self.step().load()
    }

    pub fn load_full(&self) -> T {
        self.step().load_full()
    }

    pub fn store(&self, value: T) {
        self.step().store(value);
    }

    pub fn swap(&self, value: T) -> T {
        self.step().swap(value)
    }
}

impl<T> ArcSwapAny<Arc<T>> {
    pub fn from_pointee(value: T) -> Self {
        ArcSwapAny::of(arc_swap::ArcSwap::from_pointee(value))
    }
}

impl<T> ArcSwapAny<Option<Arc<T>>> {
    pub fn empty() -> Self {
        ArcSwapAny::of(arc_swap::ArcSwapAny::empty())
    }
}
