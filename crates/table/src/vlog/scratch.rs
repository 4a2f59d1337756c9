//! Buffers that the reads of a thread share.

use crate::compression::Decompressor;
use std::cell::RefCell;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
pub(super) struct Scratch {
    pub buf: Vec<u8>,
    pub decompressor: Decompressor,
}

/// Hands out this thread's buffers, which `f` must not ask for again.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(f)
}
