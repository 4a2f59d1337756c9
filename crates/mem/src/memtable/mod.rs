//! The memtable index: a B+tree over 8-byte key heads, one writer at a time, lock-free readers.
//!
//! # Shape
//!
//! A leaf holds up to 64 entries as two arrays: the *heads* (8 bytes of the key after the prefix that all keys of the
//! leaf share, as an integer) and the offsets of the entries in the arena. A search compares integers and touches an
//! entry's own memory only where heads are equal. Inner nodes look the same, with children beside the separators.
//! Keys are unique in the tree, which names the newest version of each; the older ones hang behind it (`entry`). So a
//! reader passes a key in one step however often it was written, and a new version takes no room in a leaf. The order of
//! entries is key ascending, then tag descending.
//!
//! # Concurrency
//!
//! One writer; every node has a sequence lock (`node`). A reader descends with optimistic lock coupling (Leis et al.,
//! "The ART of Practical Synchronization", DaMoN 2016): it notes the child's version *before* it validates the
//! parent's, so the child it arrives at covers the key it is looking for at the version it noted. The writer makes a
//! split visible in parent and child together: both are odd from before the first change until after the last one.
//! Nodes are never freed before the memtable, and entries never change, so a reader that raced just starts again. A new
//! version replaces the offset of the one before it, which needs no sequence lock: either is right for a reader.
//!
//! A leaf's lower bound never changes and its upper bound only falls, when the upper part of it moves to a new leaf
//! that is linked between it and its old neighbour. Hence a reader with a consistent copy of a leaf (entries and
//! `next`) may go on at that `next` at any later time: it still begins exactly where the copy ends. What was inserted
//! into the copied leaf since is newer than any sequence number that was visible when the copy was made.

mod entry;
mod estimate;
mod iter;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod node;
#[cfg(all(test, not(loom)))]
mod tests;
mod versions;
mod writer;

use std::cmp::Ordering as Order;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

use kingtide_base::key::head_be;
use kingtide_base::lock::Mutex;
use kingtide_base::{KeyOrder, Tag};

use crate::arena::{ArenaPool, NoRoom, Slots};
use crate::sync::{AtomicPtr, Observe, Ordering};
use entry::Entry;
use node::{Node, NodeRef};
use writer::WriterState;

pub use estimate::MemRange;
pub use iter::MemIter;
pub use writer::MemWriter;

/// Entries of a node. Loom explores every interleaving of loads, so its nodes are tiny; Miri sees a deep tree sooner.
const CAPACITY: usize = if cfg!(loom) {
    3
} else if cfg!(miri) {
    8
} else {
    64
};
/// Entries of a node that `Node::rank` counts in one round.
const GROUP: usize = if cfg!(loom) {
    3
} else if cfg!(miri) {
    4
} else {
    8
};

/// What an entry takes beside its key and value: its header with links, rounded up, and its share of nodes that are half
/// full.
const PER_ENTRY: usize = 96;
/// What a batch may take beside its entries: one leaf and one inner node that are split for it.
const PER_BATCH: usize = 2304;

/// Bytes of arena that so many entries take at most.
#[inline]
fn need(bytes: usize, entries: usize) -> usize {
    entries.saturating_mul(PER_ENTRY).saturating_add(bytes).saturating_add(PER_BATCH)
}

/// An ordered in-memory table of `(key, tag, value)`: keys ascending in the order, tags of one key descending.
///
/// Memory is not limited here: the owner watches [`Memtable::memory`] and the pool's budget, and asks for room with
/// [`Memtable::reserve`]. Without that, an insertion panics at 32 GiB, and at 4 GiB if all values are a little larger than
/// 256 KiB; without memory it ends the process. It always panics for keys or values of 4 GiB.
pub struct Memtable {
    order: KeyOrder,
    /// Null while empty, so that an unused memtable costs no arena. Acquire and Release: a root is built before it is
    /// published.
    root: AtomicPtr<Node>,
    slots: Slots,
    counters: Counters,
    writer: Mutex<WriterState>,
}

/// On lines of their own: every insert changes them, and readers do not want to lose the lines of the root for it.
#[repr(align(128))]
struct Counters {
    len: Counter,
    keys: Counter,
    data_bytes: Counter,
    /// Bytes left in the arena's chunk. Read and written by writers only, one at a time.
    room: Counter,
}

/// What a search looks for: the place of a key.
#[derive(Clone, Copy)]
struct Target<'k> {
    key: &'k [u8],
    /// The head of the whole key.
    head: u64,
}

/// How the entry at the place that was found compares with the target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Match {
    /// There is none, or it has another head, hence another key.
    Other,
    /// It has the same head and is greater.
    Greater,
    /// It has the target's key.
    Exact,
}

/// Which way to go at a separator that has the target's key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// To where the key itself is.
    At,
    /// To where the greatest key below it is.
    Below,
}

/// Which child to go to from the place that `Memtable::locate` found among the separators.
#[inline(always)]
fn child_index((pos, found): (usize, Match), side: Side) -> usize {
    if found == Match::Exact && side == Side::At { pos } else { pos.saturating_sub(1) }
}

impl Memtable {
    /// An empty memtable that takes its memory from `pool`.
    pub fn new(order: KeyOrder, pool: &Arc<ArenaPool>) -> Memtable {
        Memtable {
            order,
            root: AtomicPtr::new(node::NONE),
            slots: Slots::new(),
            counters: Counters {
                len: Counter::new(0),
                keys: Counter::new(0),
                data_bytes: Counter::new(0),
                room: Counter::new(0),
            },
            writer: Mutex::new(WriterState::new(pool)),
        }
    }

    /// The order of the keys.
    pub fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// Waits for the right to insert. One writer at a time; readers never wait for it.
    pub fn writer(&self) -> MemWriter<'_> {
        MemWriter::new(self, self.writer.lock())
    }

    /// The newest entry of `key` whose tag is `upper` or older. O(log n) in keys, and in versions newer than that.
    pub fn get(&self, key: &[u8], upper: Tag) -> Option<(Tag, &[u8])> {
        let target = self.target(key);
        loop {
            let (leaf, version) = self.descend(&target, Side::At)?;
            let Some((pos, found)) = self.locate(leaf, version, &target) else { continue };
            if found != Match::Exact {
                if leaf.validate(version) {
                    return None;
                }
                continue;
            }
            let offset = leaf.entry(pos);
            if !leaf.validate(version) {
                continue;
            }
            // SAFETY: validated, so the writing of the entry happened before.
            let entry = unsafe { self.entry(self.version_at(offset, upper)?) };
            return Some((entry.tag, entry.value));
        }
    }

    /// A cursor, not yet positioned. It keeps the memtable alive.
    pub fn iter(self: &Arc<Self>) -> MemIter {
        MemIter::new(self.clone())
    }

    /// Entries: all versions of all keys.
    pub fn len(&self) -> u64 {
        self.counters.len.load(Ordering::Relaxed)
    }

    /// Keys, each counted once however many versions it has.
    pub fn keys(&self) -> u64 {
        self.counters.keys.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the memtable off the pool's budget although it lives on: only readers hold it any more. Nothing must be
    /// inserted afterwards.
    pub fn uncharge(&self) {
        self.writer().uncharge();
    }

    /// Makes room for `entries` entries whose keys and values have `bytes` bytes together, so that inserting them neither
    /// panics nor fails for want of memory. Only for the sole writer: another writer would take what is reserved. One load
    /// and a comparison in most cases.
    ///
    /// # Errors
    /// [`NoRoom`]. Nothing was changed then.
    #[inline]
    pub fn reserve(&self, bytes: usize, entries: usize) -> Result<(), NoRoom> {
        let need = need(bytes, entries);
        if need as u64 <= self.counters.room.load(Ordering::Relaxed) { Ok(()) } else { self.writer().reserve(need) }
    }

    /// Whether an empty memtable with memory from `pool` could hold `entries` entries of `bytes` bytes together.
    pub fn fits(pool: &ArenaPool, bytes: usize, entries: usize) -> bool {
        pool.fits(need(bytes, entries))
    }

    /// Bytes of arena held. Grows in chunks of 4 KiB at first and 2 MiB later.
    pub fn memory(&self) -> u64 {
        self.slots.memory()
    }

    /// Bytes of keys and values inserted.
    pub fn data_bytes(&self) -> u64 {
        self.counters.data_bytes.load(Ordering::Relaxed)
    }

    fn target<'k>(&self, key: &'k [u8]) -> Target<'k> {
        Target { key, head: self.order.head(key) }
    }

    /// # Safety
    /// `offset` names an entry of this memtable, and the writing of it happened before.
    #[inline(always)]
    unsafe fn entry(&self, offset: u32) -> Entry<'_> {
        // SAFETY: by the contract, and the arena lives as long as self.
        unsafe { entry::read(self.slots.address(offset)) }
    }

    #[inline(always)]
    fn compare(&self, entry: &Entry<'_>, target: &Target<'_>) -> Order {
        self.order.compare(entry.key, target.key)
    }

    /// The root and its version.
    fn enter(&self) -> Option<(NodeRef<'_>, u64)> {
        loop {
            let ptr = self.root.observe(Ordering::Acquire);
            // SAFETY: roots are published with Release after they were made, and live as long as self.
            let root = unsafe { NodeRef::new(ptr) }?;
            let version = root.read_version();
            // A root that was split got its version after the new root was stored, so either that is seen here or
            // the version is from before the split.
            if self.root.observe(Ordering::Acquire) == ptr {
                return Some((root, version));
            }
        }
    }

    /// The leaf for the target and the version at which it covers it. `None` if nothing was inserted yet.
    fn descend(&self, target: &Target<'_>, side: Side) -> Option<(NodeRef<'_>, u64)> {
        'restart: loop {
            let (mut node, mut version) = self.enter()?;
            while !node.is_leaf() {
                let Some(place) = self.locate(node, version, target) else { continue 'restart };
                let Some(child) = self.step(node, version, child_index(place, side)) else { continue 'restart };
                (node, version) = child;
            }
            return Some((node, version));
        }
    }

    /// The first or the last leaf.
    fn descend_to_end(&self, last: bool) -> Option<(NodeRef<'_>, u64)> {
        'restart: loop {
            let (mut node, mut version) = self.enter()?;
            while !node.is_leaf() {
                let i = if last { node.len().saturating_sub(1) } else { 0 };
                let Some(child) = self.step(node, version, i) else { continue 'restart };
                (node, version) = child;
            }
            return Some((node, version));
        }
    }

    /// From a node at a version to its child `i` at a version that covers what the parent says. `None` if the parent
    /// has changed.
    #[inline(always)]
    fn step<'a>(&'a self, parent: NodeRef<'a>, parent_version: u64, i: usize) -> Option<(NodeRef<'a>, u64)> {
        let ptr = parent.children().get(i)?.observe(Ordering::Acquire); // partner: the Release in Draft::store
        // SAFETY: children are stored with Release after they were made, and live as long as self.
        let Some(child) = (unsafe { NodeRef::new(ptr) }) else {
            // The count is newer than the child. To validate, which must fail, is to see the version that is newer too.
            let valid = parent.validate(parent_version);
            debug_assert!(!valid, "an inner node has as many children as separators");
            return None;
        };
        if child.is_leaf() {
            child.prefetch();
        }
        let version = child.read_version();
        parent.validate(parent_version).then_some((child, version))
    }

    /// The number of entries of a node below the target, and how the entry at that place compares. `None` if the node
    /// was seen to have changed; otherwise the caller still has to validate.
    #[inline(always)]
    fn locate(&self, node: NodeRef<'_>, version: u64, target: &Target<'_>) -> Option<(usize, Match)> {
        let prefix_len = node.prefix_len.observe(Ordering::Relaxed) as usize;
        let mut head = target.head;
        if prefix_len > 0 {
            let shown_by = node.prefix_entry.observe(Ordering::Relaxed);
            if shown_by != 0 {
                if !node.validate(version) {
                    return None;
                }
                // SAFETY: validated, so the writing of the entry happened before.
                let prefix = &unsafe { self.entry(shown_by) }.key[..prefix_len];
                match target.key[..prefix_len.min(target.key.len())].cmp(prefix) {
                    Order::Less => return Some((0, Match::Other)),
                    Order::Greater => return Some((node.len(), Match::Other)),
                    Order::Equal => {}
                }
            }
            head = head_be(target.key.get(prefix_len..).unwrap_or_default());
        }
        let pos = node.rank(head);
        let count = node.len();
        if pos >= count || node.head(pos) != head {
            return Some((pos.min(count), Match::Other));
        }
        self.locate_among_equals(node, version, target, head, pos, count)
    }

    /// The end of [`Memtable::locate`]: heads from `pos` on equal the target's, so the entries have to be compared.
    fn locate_among_equals(
        &self,
        node: NodeRef<'_>,
        version: u64,
        target: &Target<'_>,
        head: u64,
        pos: usize,
        count: usize,
    ) -> Option<(usize, Match)> {
        let (mut low, mut high) = (pos, count);
        let mut found = Match::Other;
        // Nearly always there is just one: look at the first before halving.
        let mut probe = pos;
        while low < high {
            let order = if node.head(probe) != head {
                None
            } else {
                let offset = node.entry(probe);
                if !node.validate(version) {
                    return None;
                }
                if offset == 0 {
                    Some(Order::Less) // the separator below everything
                } else {
                    // SAFETY: validated, so the writing of the entry happened before.
                    Some(self.compare(&unsafe { self.entry(offset) }, target))
                }
            };
            match order {
                Some(Order::Less) => low = probe + 1,
                Some(Order::Equal) => return Some((probe, Match::Exact)),
                Some(Order::Greater) => (high, found) = (probe, Match::Greater),
                None => (high, found) = (probe, Match::Other),
            }
            probe = low + (high - low) / 2;
        }
        Some((low, found))
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("order", &self.order)
            .field("len", &self.len())
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}
