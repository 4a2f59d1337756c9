//! The search tree, which readers and the writer share, and how to go down it. See the module above for what they rely on.

use std::cmp::Ordering as Order;
use std::sync::atomic::AtomicU64 as Counter;

use kingtide_base::KeyOrder;
use kingtide_base::key::head_be;

use super::entry::{self, Entry};
use super::node::{NONE, Node, NodeRef};
use crate::arena::Slots;
use crate::sync::{AtomicPtr, Observe, Ordering};

/// The half of a memtable that readers use. Its memory is that of the other half, the writer's, and lives as long as the tree.
pub(super) struct Tree {
    pub(super) order: KeyOrder,
    /// Null while empty, so that an unused memtable costs no arena. Acquire and Release: a root is built before it is
    /// published.
    pub(super) root: AtomicPtr<Node>,
    pub(super) slots: Slots,
    pub(super) counters: Counters,
}

/// On lines of their own: every insert changes them, and readers do not want to lose the lines of the root for it.
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) len: Counter,
    pub(super) keys: Counter,
    pub(super) data_bytes: Counter,
    /// Bytes left in the arena's chunk. Read and written by writers only, one at a time.
    pub(super) room: Counter,
}

/// What a search looks for: the place of a key.
#[derive(Clone, Copy)]
pub(super) struct Target<'k> {
    pub(super) key: &'k [u8],
    /// The head of the whole key.
    pub(super) head: u64,
}

/// How the entry at the place that was found compares with the target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// There is none, or it has another head, hence another key.
    Other,
    /// It has the same head and is greater.
    Greater,
    /// It has the target's key.
    Exact,
}

/// Which way to go at a separator that has the target's key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// To where the key itself is.
    At,
    /// To where the greatest key below it is.
    Below,
}

/// Which child to go to from the place that [`Tree::locate`] found among the separators.
#[inline(always)]
pub(super) fn child_index((pos, found): (usize, Match), side: Side) -> usize {
    if found == Match::Exact && side == Side::At { pos } else { pos.saturating_sub(1) }
}

impl Tree {
    pub(super) fn new(order: KeyOrder) -> Tree {
        Tree {
            order,
            root: AtomicPtr::new(NONE),
            slots: Slots::new(),
            counters: Counters {
                len: Counter::new(0),
                keys: Counter::new(0),
                data_bytes: Counter::new(0),
                room: Counter::new(0),
            },
        }
    }

    pub(super) fn target<'k>(&self, key: &'k [u8]) -> Target<'k> {
        Target { key, head: self.order.head(key) }
    }

    /// # Safety
    /// `offset` names an entry of this tree, and the writing of it happened before.
    #[inline(always)]
    pub(super) unsafe fn entry(&self, offset: u32) -> Entry<'_> {
        // SAFETY: by the contract, and the arena lives as long as self.
        unsafe { entry::read(self.slots.address(offset)) }
    }

    #[inline(always)]
    pub(super) fn compare(&self, entry: &Entry<'_>, target: &Target<'_>) -> Order {
        self.order.compare(entry.key, target.key)
    }

    /// The root and its version.
    pub(super) fn enter(&self) -> Option<(NodeRef<'_>, u64)> {
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
    pub(super) fn descend(&self, target: &Target<'_>, side: Side) -> Option<(NodeRef<'_>, u64)> {
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
    pub(super) fn descend_to_end(&self, last: bool) -> Option<(NodeRef<'_>, u64)> {
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
    pub(super) fn step<'a>(&'a self, parent: NodeRef<'a>, parent_version: u64, i: usize) -> Option<(NodeRef<'a>, u64)> {
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
    pub(super) fn locate(&self, node: NodeRef<'_>, version: u64, target: &Target<'_>) -> Option<(usize, Match)> {
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

    /// The end of [`Tree::locate`]: heads from `pos` on equal the target's, so the entries have to be compared.
    pub(super) fn locate_among_equals(
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
