//! What was done to a file since its last sync, in order.

use std::sync::Arc;

use kingtide_base::hash::mix64;

use super::content::Content;

/// The unit that a disk writes whole or not at all.
pub(super) const SECTOR: u64 = 512;
/// The unit in which the page cache writes back.
pub(super) const PAGE: u64 = 4096;

/// One unsynced change.
#[derive(Debug)]
pub(super) enum Change {
    Write {
        offset: u64,
        data: Box<[u8]>,
        /// Stored into a mapped page, so that it may be written back half done.
        mapped: bool,
    },
    /// A new length; shrinking makes what was between zero.
    SetLen { from: u64, to: u64 },
}

impl Change {
    pub(super) fn apply(&self, to: &mut Content) {
        match self {
            Change::Write { offset, data, .. } => to.write(data, *offset),
            Change::SetLen { to: len, .. } => to.set_len(*len),
        }
    }

    /// The first `sectors` sectors of a write; nothing of a new length.
    pub(super) fn apply_torn(&self, to: &mut Content, sectors: u64) {
        let Change::Write { offset, data, .. } = self else { return };
        let end = (offset / SECTOR + sectors) * SECTOR;
        let n = end.saturating_sub(*offset).min(data.len() as u64) as usize;
        if n > 0 {
            to.write(&data[..n], *offset);
        }
    }

    /// The bytes whose value it changes.
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Write { offset, data, .. } => (*offset, offset + data.len() as u64),
            Change::SetLen { from, to } => (*to, *from),
        }
    }

    /// The sectors that it touches.
    pub(super) fn sectors(&self) -> std::ops::Range<u64> {
        let (from, to) = self.range();
        if from < to { from / SECTOR..to.div_ceil(SECTOR) } else { 0..0 }
    }

    /// Its part in one sector.
    pub(super) fn apply_sector(&self, to: &mut Content, sector: u64) {
        let (from, end) = self.range();
        let (from, end) = (from.max(sector * SECTOR), end.min((sector + 1) * SECTOR));
        if from >= end {
            return;
        }
        match self {
            Change::Write { offset, data, .. } => {
                to.write(&data[(from - offset) as usize..(end - offset) as usize], from)
            }
            Change::SetLen { .. } => to.zero(from, end),
        }
    }

    /// The pages that it touches.
    pub(super) fn pages(&self) -> std::ops::Range<u64> {
        let sectors = self.sectors();
        sectors.start / (PAGE / SECTOR)..sectors.end.div_ceil(PAGE / SECTOR)
    }

    /// Some of the aligned words of its part in one sector, as `words` draws them: those before some place, those from
    /// there on, or any. Nothing of what is no store: a `write` call holds the page meanwhile.
    pub(super) fn apply_words(&self, to: &mut Content, sector: u64, words: u64) {
        const WORD: u64 = 8;
        let Change::Write { offset, data, mapped: true } = self else { return };
        let end = offset + data.len() as u64;
        let (from, until) = ((*offset).max(sector * SECTOR), end.min((sector + 1) * SECTOR));
        let place = offset + (words >> 8) % data.len().max(1) as u64;
        let mut at = from;
        while at < until {
            let next = ((at / WORD + 1) * WORD).min(until);
            let stored = match words % 4 {
                0 | 1 => at < place,
                2 => at >= place,
                _ => mix64(words ^ (at / WORD)).is_multiple_of(2),
            };
            if stored {
                to.write(&data[(at - offset) as usize..(next - offset) as usize], at);
            }
            at = next;
        }
    }

    /// The length after it, of a file that had `len`.
    pub(super) fn len_after(&self, len: u64) -> u64 {
        match self {
            Change::Write { .. } => len.max(self.range().1),
            Change::SetLen { to, .. } => *to,
        }
    }
}

#[derive(Debug)]
struct Node {
    order: u64,
    change: Change,
    before: Option<Arc<Node>>,
}

/// A list that shares its past with its copies: a copy costs one reference count, however long it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    last: Option<Arc<Node>>,
}

impl Journal {
    /// Adds a change; `order` is its place among all changes of the file system.
    pub(super) fn push(&mut self, order: u64, change: Change) {
        self.last = Some(Arc::new(Node { order, change, before: self.last.take() }));
    }

    /// Oldest first.
    pub(super) fn in_order(&self) -> Vec<(u64, &Change)> {
        let mut all = Vec::new();
        let mut next = self.last.as_deref();
        while let Some(node) = next {
            all.push((node.order, &node.change));
            next = node.before.as_deref();
        }
        all.reverse();
        all
    }
}

impl Drop for Journal {
    /// Not left to the compiler, whose recursion a long list would overflow the stack with.
    fn drop(&mut self) {
        let mut next = self.last.take();
        while let Some(node) = next {
            next = Arc::into_inner(node).and_then(|mut n| n.before.take());
        }
    }
}
