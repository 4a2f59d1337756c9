//! Where a handle has its file while that is open, and the count of open files, which is right whatever threads open and close
//! the same file.

use crate::swap::ArcSwapOption;
use std::sync::Arc;

/// Counts open files.
pub(super) trait OpenCount {
    /// One more is open.
    fn opened(&self);
    /// One less is open.
    fn closed(&self);
}

/// A file that is open, or none.
pub(super) struct OpenSlot<T> {
    file: ArcSwapOption<T>,
}

impl<T> OpenSlot<T> {
    pub fn empty() -> OpenSlot<T> {
        OpenSlot { file: ArcSwapOption::empty() }
    }

    #[inline]
    pub fn get(&self) -> Option<Arc<T>> {
        self.file.load_full()
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.file.load().is_some()
    }

    /// Takes a file that was opened, in the place of the one that is there. It is counted before it is there, because from then on
    /// another thread may close it: a count that came later would fall below zero in between.
    pub fn put(&self, file: Arc<T>, count: &impl OpenCount) {
        count.opened();
        if self.file.swap(Some(file)).is_some() {
            count.closed();
        }
    }

    /// Closes the file, which those that read it keep. Returns whether there was one.
    pub fn close(&self, count: &impl OpenCount) -> bool {
        let was_open = self.file.swap(None).is_some();
        if was_open {
            count.closed();
        }
        was_open
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A count before and after each of whose steps another thread may come in: at one of them it closes the file.
    struct Interrupted<'a> {
        slot: &'a OpenSlot<u32>,
        open: Cell<u32>,
        moments: Cell<u32>,
        closed_at: u32,
    }

    impl Interrupted<'_> {
        fn moment(&self) {
            self.moments.set(self.moments.get() + 1);
            if self.moments.get() == self.closed_at {
                self.slot.close(self);
            }
        }
    }

    impl OpenCount for Interrupted<'_> {
        fn opened(&self) {
            self.moment();
            self.open.set(self.open.get() + 1);
            self.moment();
        }

        fn closed(&self) {
            self.moment();
            let left = self.open.get().checked_sub(1);
            self.open.set(left.expect("a file was closed before it was counted"));
            self.moment();
        }
    }

    /// At any moment of an open, another thread may close the file.
    #[test]
    fn a_file_is_counted_before_another_thread_can_close_it() {
        for closed_at in 0..=8 {
            let slot = OpenSlot::empty();
            let count = Interrupted { slot: &slot, open: Cell::new(0), moments: Cell::new(0), closed_at };
            for file in [1, 2] {
                slot.put(Arc::new(file), &count);
                assert_eq!(count.open.get(), u32::from(slot.is_open()), "file {file}, closed at moment {closed_at}");
            }
            let was_open = slot.is_open();
            assert_eq!((slot.close(&count), slot.close(&count)), (was_open, false));
            assert_eq!((count.open.get(), slot.get()), (0, None));
        }
    }
}
