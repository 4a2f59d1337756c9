//! A cursor over one run: its files one after the other.
//!
//! Files of a run are disjoint, so the cursor has one table open at a time. Where a file ends with a range tombstone
//! whose exclusive end is the next file's first key, the two share that bound; every seek therefore carries on into the
//! next file rather than trusting the bound.

use crate::family::view::{FileSlot, ResolvedRun};
use kingtide_base::{KeyOrder, Result, SeqNo, Tag};
use kingtide_table::{IterOptions, Offered, TableIter};
use std::sync::Arc;

/// A cursor over a run.
pub(crate) struct RunIter {
    run: Arc<ResolvedRun>,
    order: KeyOrder,
    /// The file that `inner` reads; meaningful only while `inner` is there.
    at: usize,
    /// Kept when the cursor runs off an end, for the block that it has loaded.
    inner: Option<TableIter>,
    /// Whether the cursor is off an end, wherever `inner` is.
    off: bool,
    options: IterOptions,
}

impl RunIter {
    pub(crate) fn new(run: Arc<ResolvedRun>, order: KeyOrder, options: IterOptions) -> RunIter {
        RunIter { run, order, at: 0, inner: None, off: true, options }
    }

    /// The cursor of file `at`; not moved when it is the current one.
    fn open(&mut self, at: usize) -> Result<&mut TableIter> {
        self.off = false;
        match &mut self.inner {
            Some(_) if self.at == at => {}
            Some(inner) => inner.reset(self.run.files[at].table()?),
            None => self.inner = Some(self.run.files[at].table()?.iter(self.options)),
        }
        self.at = at;
        match &mut self.inner {
            Some(inner) => Ok(inner),
            None => unreachable!("set above"),
        }
    }

    /// The file of the current entry.
    pub(crate) fn slot(&self) -> &FileSlot {
        &self.run.files[self.at]
    }

    pub(crate) fn valid(&self) -> bool {
        !self.off && self.inner.as_ref().is_some_and(TableIter::valid)
    }

    /// The table cursor; only asked while valid.
    #[inline]
    pub(crate) fn current(&self) -> Option<&TableIter> {
        self.inner.as_ref()
    }

    pub(crate) fn first(&mut self) -> Result<()> {
        self.enter_forward(0)
    }

    pub(crate) fn last(&mut self) -> Result<()> {
        self.enter_backward(self.run.files.len())
    }

    /// Goes to the first entry of file `at` or of the first file behind it that has one.
    fn enter_forward(&mut self, at: usize) -> Result<()> {
        for i in at..self.run.files.len() {
            let inner = self.open(i)?;
            inner.first()?;
            if inner.valid() {
                return Ok(());
            }
        }
        self.off = true;
        Ok(())
    }

    /// Goes to the last entry of the files before `end`.
    fn enter_backward(&mut self, end: usize) -> Result<()> {
        for i in (0..end).rev() {
            let inner = self.open(i)?;
            inner.last()?;
            if inner.valid() {
                return Ok(());
            }
        }
        self.off = true;
        Ok(())
    }

    /// Goes to the first entry at or after `(key, tag)`.
    pub(crate) fn seek(&mut self, key: &[u8], head: u64, tag: Tag) -> Result<()> {
        let from = self.run.find(key, head);
        for i in from..self.run.files.len() {
            let inner = self.open(i)?;
            inner.seek(key, tag)?;
            if inner.valid() {
                return Ok(());
            }
        }
        self.off = true;
        Ok(())
    }

    /// Goes to the last entry before `(key, tag)`.
    pub(crate) fn seek_lt(&mut self, key: &[u8], head: u64, tag: Tag) -> Result<()> {
        let mut at = self.run.find(key, head);
        let files = &self.run.files;
        if at == files.len() {
            return self.last();
        }
        if files[at].shares_bound && self.order.compare(&files[at].meta.max_key, key).is_eq() {
            at += 1;
        }
        loop {
            let inner = self.open(at)?;
            inner.seek_lt(key, tag)?;
            if inner.valid() {
                return Ok(());
            }
            if at == 0 {
                self.off = true;
                return Ok(());
            }
            at -= 1;
        }
    }

    /// Starts loading what [`RunIter::may_contain`] looks at into the processor's cache.
    pub(crate) fn prefetch(&self, key: &[u8], head: u64, hash: u64) {
        if let Some(table) = self.run.files.get(self.run.find(key, head)).and_then(FileSlot::resident) {
            table.prefetch(hash);
        }
    }

    /// Returns whether the run may hold `key`: asks the filter of a table that is open, if that is in memory.
    pub(crate) fn may_contain(&self, key: &[u8], head: u64, hash: u64) -> bool {
        match self.run.files.get(self.run.find(key, head)) {
            Some(slot) if slot.shares_bound => true,
            Some(slot) => slot.resident().is_none_or(|t| t.may_contain_in_memory(hash)),
            None => false,
        }
    }

    /// Newest sequence number in the run.
    pub(crate) fn max_seq(&self) -> SeqNo {
        self.run.max_seq
    }

    /// Entries of all files.
    pub(crate) fn entries(&self) -> u64 {
        self.run.files.iter().map(|slot| slot.meta.entries).sum()
    }

    /// Only called while valid, so that `off` is false.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<()> {
        if let Some(inner) = &mut self.inner {
            inner.next()?;
            if !inner.valid() {
                return self.enter_forward(self.at + 1);
            }
        }
        Ok(())
    }

    /// Moves to the next entry if that is in the loaded block and has another key: see [`TableIter::next_at_hand`]. Only called while
    /// valid.
    #[inline]
    pub(crate) fn next_at_hand(&mut self, head: u64) -> Option<u64> {
        self.inner.as_mut().and_then(|inner| inner.next_at_hand(head))
    }

    /// Walks forward in the loaded block: see [`TableIter::walk_block`]. Only called while valid.
    #[inline]
    pub(crate) fn walk_block(&mut self, pass: impl FnMut(u64, &[u8], Tag, &[u8]) -> Offered) {
        if let Some(inner) = &mut self.inner {
            inner.walk_block(pass);
        }
    }

    #[inline]
    pub(crate) fn prev(&mut self) -> Result<()> {
        if let Some(inner) = &mut self.inner {
            inner.prev()?;
            if !inner.valid() {
                return self.enter_backward(self.at);
            }
        }
        Ok(())
    }
}
