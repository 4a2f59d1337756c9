//! The cursor.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use kingtide_base::{KeyOrder, Tag};

use super::Memtable;
use super::node::{CAPACITY, NONE, Node, NodeRef, prefetch};
use super::tree::{Match, Side};
use crate::sync::{Observe, Ordering};

/// How many entries ahead of the cursor memory is asked for.
const AHEAD: usize = 8;

/// A cursor over a [`Memtable`] that owns a share of it.
///
/// On entering a leaf it copies the offsets of the leaf's entries and goes on in the copy: see the module above for
/// why nothing is missed. An entry inserted behind the cursor's back may or may not be seen; it is newer than what
/// was visible when the cursor was positioned.
pub struct MemIter {
    table: Arc<Memtable>,
    leaf: LeafCopy,
    pos: usize,
    at: Option<At>,
}

/// A leaf as it was at one version.
#[derive(Clone)]
struct LeafCopy {
    entries: [u32; CAPACITY],
    count: usize,
    /// The leaf to the right.
    next: *mut Node,
    /// Whether there is no leaf to the left.
    leftmost: bool,
}

impl LeafCopy {
    /// Copies a leaf. `false` if it is not at that version any more.
    #[inline]
    fn take(&mut self, leaf: NodeRef<'_>, version: u64) -> bool {
        self.count = leaf.len();
        for (i, to) in self.entries[..self.count].iter_mut().enumerate() {
            *to = leaf.entry(i);
        }
        self.next = leaf.next.observe(Ordering::Acquire); // partner: the Release in MemWriter::split
        self.leftmost = leaf.leftmost;
        leaf.validate(version)
    }

    fn entries(&self) -> &[u32] {
        &self.entries[..self.count]
    }
}

/// The entry that a cursor is at, decoded. The pointers are into the arena of the cursor's table.
#[derive(Clone, Copy)]
struct At {
    key: NonNull<[u8]>,
    value: NonNull<[u8]>,
    tag: Tag,
    head: u64,
    offset: u32,
}

// SAFETY: all pointers lead to memory that `table` keeps alive and that is safe to read from any thread: nodes are made
// of atomics, and entries never change.
unsafe impl Send for MemIter {}
// SAFETY: as above; `&MemIter` only reads.
unsafe impl Sync for MemIter {}

impl Memtable {
    /// A cursor, not yet positioned. It keeps the memtable alive.
    pub fn iter(self: &Arc<Self>) -> MemIter {
        let leaf = LeafCopy { entries: [0; CAPACITY], count: 0, next: NONE, leftmost: true };
        MemIter { table: self.clone(), leaf, pos: 0, at: None }
    }
}

impl MemIter {
    /// The memtable.
    pub fn table(&self) -> &Arc<Memtable> {
        &self.table
    }

    /// Whether the cursor is at an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.at.is_some()
    }

    /// The entry's key. Empty if the cursor is not at an entry.
    #[inline]
    pub fn key(&self) -> &[u8] {
        // SAFETY: points to an entry of the table that self keeps alive.
        self.at.as_ref().map_or(&[], |at| unsafe { at.key.as_ref() })
    }

    /// The entry's stored value. Empty if the cursor is not at an entry.
    #[inline]
    pub fn value(&self) -> &[u8] {
        // SAFETY: points to an entry of the table that self keeps alive.
        self.at.as_ref().map_or(&[], |at| unsafe { at.value.as_ref() })
    }

    /// The entry's tag. Zero if the cursor is not at an entry.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.at.map_or(Tag(0), |at| at.tag)
    }

    /// The tag of the next older version of the key, if there is one in the memtable.
    pub fn older_tag(&self) -> Option<Tag> {
        // SAFETY: the entry that the cursor is at, and one that was written before it.
        unsafe { self.table.tree.links_of(self.at?.offset).map(|links| self.table.tree.tag_of(links.older)) }
    }

    /// `order.head(key)`.
    #[inline]
    pub fn head(&self) -> u64 {
        self.at.map_or(0, |at| at.head)
    }

    /// Goes to the first entry.
    pub fn first(&mut self) {
        self.go_to_end(false);
    }

    /// Goes to the last entry.
    pub fn last(&mut self) {
        self.go_to_end(true);
    }

    fn go_to_end(&mut self, last: bool) {
        self.at = None;
        while let Some((leaf, version)) = self.table.tree.descend_to_end(last) {
            if self.leaf.take(leaf, version) {
                let pos = if last { self.leaf.count.checked_sub(1) } else { Some(0) };
                return self.settle(pos, last);
            }
        }
    }

    /// Goes to the first entry at or after `(key, tag)`. O(log n).
    pub fn seek(&mut self, key: &[u8], tag: Tag) {
        match self.enter_leaf(key, Side::At) {
            Some((pos, Match::Exact)) => self.settle_at_version(pos, tag),
            Some((pos, _)) => self.settle(Some(pos), false),
            None => {}
        }
    }

    /// Goes to the last entry before `(key, tag)`. O(log n).
    pub fn seek_lt(&mut self, key: &[u8], tag: Tag) {
        let Some((pos, found)) = self.enter_leaf(key, Side::At) else { return };
        // SAFETY: the copy was validated.
        let same_key = (found == Match::Exact)
            .then(|| unsafe { self.table.tree.version_above(self.leaf.entries[pos], tag) })
            .flatten();
        match same_key {
            Some(offset) => {
                self.pos = pos;
                self.decode(offset);
            }
            None => self.settle(pos.checked_sub(1), true),
        }
    }

    /// Copies the leaf for a key and returns the number of entries in it below the key, and what the next one is.
    fn enter_leaf(&mut self, key: &[u8], side: Side) -> Option<(usize, Match)> {
        self.at = None;
        let target = self.table.tree.target(key);
        loop {
            let (leaf, version) = self.table.tree.descend(&target, side)?;
            let Some(place) = self.table.tree.locate(leaf, version, &target) else { continue };
            if self.leaf.take(leaf, version) {
                return Some(place);
            }
        }
    }

    /// Goes to the following entry; stays nowhere if it is not at one.
    #[allow(clippy::should_implement_trait)] // a cursor, whose item borrows from it
    #[inline]
    pub fn next(&mut self) {
        let Some(at) = &self.at else { return };
        // SAFETY: the entry that the cursor is at.
        match unsafe { self.table.tree.links_of(at.offset) } {
            Some(links) => self.decode(links.older),
            None => self.next_key(),
        }
    }

    /// Goes to the newest version of the following key; stays nowhere if it is not at an entry. O(1).
    #[inline]
    pub fn next_key(&mut self) {
        if self.at.is_none() {
            return;
        }
        if self.pos + 1 < self.leaf.count {
            self.pos += 1;
            self.ask_for(self.pos + AHEAD);
            self.decode(self.leaf.entries[self.pos]);
        } else {
            self.settle(Some(self.leaf.count), false);
        }
    }

    /// Goes to the newest version of the current key whose tag is `upper` or older, or without one to the following key.
    /// Only forward: the current entry must be newer than `upper`. O(log n) for n versions that are newer.
    pub fn pass_newer(&mut self, upper: Tag) {
        let Some(at) = &self.at else { return };
        // SAFETY: the entry that the cursor is at.
        match unsafe { self.table.tree.version_at(at.offset, upper) } {
            Some(offset) => self.decode(offset),
            None => self.next_key(),
        }
    }

    /// Goes back to the newest version of the current key whose tag is `upper` or older. Only backward: the current entry
    /// must be such a one. O(log n) for n versions that are newer.
    pub fn go_newest(&mut self, upper: Tag) {
        let Some(at) = &self.at else { return };
        let newest = self.leaf.entries[self.pos];
        if newest == at.offset {
            return;
        }
        // SAFETY: the copy was validated.
        if let Some(offset) = unsafe { self.table.tree.version_at(newest, upper) } {
            self.decode(offset);
        }
    }

    /// Goes to the preceding entry; stays nowhere if it is not at one. O(1), O(log n) among n versions of a key, and
    /// O(log n) once in a leaf.
    #[inline]
    pub fn prev(&mut self) {
        let Some(at) = &self.at else { return };
        let newest = self.leaf.entries[self.pos];
        if newest != at.offset {
            // SAFETY: the copy was validated.
            if let Some(offset) = unsafe { self.table.tree.version_above(newest, at.tag) } {
                return self.decode(offset);
            }
        }
        self.prev_key();
    }

    /// Goes to the oldest version of the preceding key; stays nowhere if it is not at an entry.
    #[inline]
    pub fn prev_key(&mut self) {
        if self.at.is_none() {
            return;
        }
        if self.pos > 0 {
            self.pos -= 1;
            self.ask_for(self.pos.wrapping_sub(AHEAD));
            self.decode_oldest();
        } else {
            self.settle(None, true);
        }
    }

    /// Goes to the newest version of the key at `pos` whose tag is `upper` or older, or without one to the following key.
    fn settle_at_version(&mut self, pos: usize, upper: Tag) {
        self.pos = pos;
        (0..AHEAD).for_each(|i| self.ask_for(pos + i));
        self.decode(self.leaf.entries[pos]);
        if self.tag() > upper {
            self.pass_newer(upper);
        }
    }

    /// Goes to an entry of the copy, or to the leaf after it or before it if `pos` is beyond its entries.
    fn settle(&mut self, pos: Option<usize>, backward: bool) {
        self.at = None;
        let pos = match pos {
            Some(pos) if pos < self.leaf.count => pos,
            Some(_) if self.following() => 0,
            None if self.preceding() => self.leaf.count - 1,
            _ => return,
        };
        self.pos = pos;
        for i in 0..AHEAD {
            self.ask_for(if backward { pos.wrapping_sub(i) } else { pos + i });
        }
        if backward { self.decode_oldest() } else { self.decode(self.leaf.entries[pos]) }
    }

    /// Goes to the oldest version of the key at `pos`.
    fn decode_oldest(&mut self) {
        let newest = self.leaf.entries[self.pos];
        // SAFETY: the copy was validated.
        let oldest = unsafe { self.table.tree.version_above(newest, Tag(0)) };
        self.decode(oldest.unwrap_or(newest));
    }

    /// Copies the leaf after the copy. Leaves other than the first root are never empty.
    fn following(&mut self) -> bool {
        // SAFETY: null, or read with Acquire from a leaf of the table, which self keeps alive.
        while let Some(leaf) = unsafe { NodeRef::new(self.leaf.next) } {
            let (ptr, version) = (self.leaf.next, leaf.read_version());
            if !self.leaf.take(leaf, version) {
                self.leaf.next = ptr;
                continue;
            }
            // SAFETY: as above. Only to ask for its memory.
            if let Some(next) = unsafe { NodeRef::new(self.leaf.next) } {
                next.prefetch();
            }
            return self.leaf.count > 0;
        }
        false
    }

    /// Copies the leaf before the copy: the one that holds the greatest entry below the copy's first, which is the
    /// leaf's lower bound.
    fn preceding(&mut self) -> bool {
        if self.leaf.leftmost || self.leaf.count == 0 {
            return false;
        }
        let table = self.table.clone();
        // SAFETY: the copy was validated.
        let first = unsafe { table.tree.entry(self.leaf.entries[0]) };
        self.enter_leaf(first.key, Side::Below).is_some() && self.leaf.count > 0
    }

    /// The current key's place in its leaf, and how many keys the leaf has; only while valid.
    pub(super) fn in_leaf(&self) -> (usize, usize) {
        (self.pos, self.leaf.count)
    }

    /// Goes to another key of the current leaf; only while valid.
    pub(super) fn go_in_leaf(&mut self, pos: usize) {
        self.pos = pos.min(self.leaf.count - 1);
        self.decode(self.leaf.entries[self.pos]);
    }

    #[inline(always)]
    fn ask_for(&self, pos: usize) {
        if let Some(offset) = self.leaf.entries().get(pos) {
            // SAFETY: the copy was validated, so its offsets resolve.
            let at = unsafe { self.table.tree.slots.address(*offset) };
            prefetch(at.as_ptr());
            prefetch(at.as_ptr().wrapping_add(64));
        }
    }

    /// Goes to a version of the key at `pos`.
    #[inline(always)]
    fn decode(&mut self, offset: u32) {
        // SAFETY: the copy was validated, so the writing of its entries and of what they link to happened before.
        let entry = unsafe { self.table.tree.entry(offset) };
        let head = match &self.table.tree.order {
            KeyOrder::Bytewise => kingtide_base::key::head_be(entry.key),
            order => order.head(entry.key),
        };
        self.at = Some(At { key: entry.key.into(), value: entry.value.into(), tag: entry.tag, head, offset });
    }
}

impl Clone for MemIter {
    fn clone(&self) -> Self {
        MemIter { table: self.table.clone(), leaf: self.leaf.clone(), ..*self }
    }
}

impl fmt::Debug for MemIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.map(|at| at.tag);
        f.debug_struct("MemIter").field("key", &self.key()).field("tag", &at).finish_non_exhaustive()
    }
}
