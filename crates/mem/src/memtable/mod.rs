//! The memtable index: a B+tree (`tree`) over 8-byte key heads, one writer at a time (`writer`), lock-free readers.
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
mod node;
#[cfg(all(test, not(loom)))]
mod tests;
mod tree;
mod versions;
mod writer;

use std::fmt;
use std::sync::Arc;

use kingtide_base::lock::Mutex;
use kingtide_base::{KeyOrder, Tag};

use crate::arena::{ArenaPool, NoRoom};
use crate::sync::Ordering;
use tree::{Match, Side, Tree};
use writer::WriterState;

pub use estimate::MemRange;
pub use iter::MemIter;
pub use writer::MemWriter;

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
    tree: Tree,
    writer: Mutex<WriterState>,
}

impl Memtable {
    /// An empty memtable that takes its memory from `pool`.
    pub fn new(order: KeyOrder, pool: &Arc<ArenaPool>) -> Memtable {
        Memtable { tree: Tree::new(order), writer: Mutex::new(WriterState::new(pool)) }
    }

    /// The order of the keys.
    pub fn order(&self) -> &KeyOrder {
        &self.tree.order
    }

    /// Waits for the right to insert. One writer at a time; readers never wait for it.
    pub fn writer(&self) -> MemWriter<'_> {
        MemWriter::new(&self.tree, self.writer.lock())
    }

    /// The newest entry of `key` whose tag is `upper` or older. O(log n) in keys, and in versions newer than that.
    pub fn get(&self, key: &[u8], upper: Tag) -> Option<(Tag, &[u8])> {
        let tree = &self.tree;
        let target = tree.target(key);
        loop {
            let (leaf, version) = tree.descend(&target, Side::At)?;
            let Some((pos, found)) = tree.locate(leaf, version, &target) else { continue };
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
            let entry = unsafe { tree.entry(tree.version_at(offset, upper)?) };
            return Some((entry.tag, entry.value));
        }
    }

    /// Entries: all versions of all keys.
    pub fn len(&self) -> u64 {
        self.tree.counters.len.load(Ordering::Relaxed)
    }

    /// Keys, each counted once however many versions it has.
    pub fn keys(&self) -> u64 {
        self.tree.counters.keys.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the memtable from the pool's budget to that of retired ones, although it lives on: only readers hold it any more. Nothing must
    /// be inserted afterwards.
    pub fn retire(&self) {
        self.writer().retire();
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
        if need as u64 <= self.tree.counters.room.load(Ordering::Relaxed) {
            Ok(())
        } else {
            self.writer().reserve(need)
        }
    }

    /// Whether an empty memtable with memory from `pool` could hold `entries` entries of `bytes` bytes together.
    pub fn fits(pool: &ArenaPool, bytes: usize, entries: usize) -> bool {
        pool.fits(need(bytes, entries))
    }

    /// Bytes of arena held. Grows in chunks of 4 KiB at first and 2 MiB later.
    pub fn memory(&self) -> u64 {
        self.tree.slots.memory()
    }

    /// Bytes of keys and values inserted.
    pub fn data_bytes(&self) -> u64 {
        self.tree.counters.data_bytes.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memtable")
            .field("order", self.order())
            .field("len", &self.len())
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}
