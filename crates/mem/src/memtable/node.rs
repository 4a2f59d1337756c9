//! Nodes of the tree, and the sequence lock that lets readers look into a node while the writer changes it.
//!
//! # The sequence lock
//!
//! A node's version is odd while the writer changes the node. A reader notes an even version, reads what it wants with
//! relaxed loads, and then *validates*: if the version is still the same, all that it read belongs to that version
//! (Boehm, "Can Seqlocks Get Along with Programming Language Memory Models?", MSPC 2012). The four orderings and their
//! partners:
//!
//! * W1 `begin_write`: relaxed store of the odd version, then a release fence, then the changes.
//! * W2 `end_write`: release store of the even version after the changes.
//! * R1 `read_version`: acquire load; partner of W2. What was written before that version is seen.
//! * R2 `validate`: acquire fence, then a relaxed load of the version; partner of the fence in W1. If any value read
//!   before came from a change after W1, the load sees W1's odd version, or a later one, and validation fails.
//!
//! An entry offset may be followed only after a validation: only then did the writing of the entry happen before.
//! Pointers to nodes are stored with release and loaded with acquire, so they may be followed at once.

use std::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Observe, Ordering, fence, yield_now};

/// Entries of a node. Loom explores every interleaving of loads, so its nodes are tiny; Miri sees a deep tree sooner.
pub(super) const CAPACITY: usize = if cfg!(loom) {
    3
} else if cfg!(miri) {
    8
} else {
    64
};
/// Entries of a node that [`Node::rank`] counts in one round.
const GROUP: usize = if cfg!(loom) {
    3
} else if cfg!(miri) {
    4
} else {
    8
};

/// No node.
pub(super) const NONE: *mut Node = ptr::null_mut();

/// A leaf, or the part of an inner node that searches look at.
///
/// The entries of a leaf are the memtable's entries in order. The entries of an inner node separate its children:
/// entry `i` is the smallest entry that child `i` may hold, and offset 0 (as the first entry of the leftmost node of
/// a level) stands for "smaller than everything". Separators are entries of the memtable, never copies.
#[repr(C, align(64))]
pub(super) struct Node {
    version: AtomicU64,
    /// The leaf to the right. Unused in inner nodes.
    pub(super) next: AtomicPtr<Node>,
    pub(super) count: AtomicU32,
    /// Bytes that all keys in the node share and that the heads leave out.
    pub(super) prefix_len: AtomicU32,
    /// An entry that shows the prefix, where a search key need not share it: in the outermost nodes, which a key may
    /// reach that is smaller or greater than all before. 0 where the separators left and right of the node share the
    /// prefix, because then all that a search brings here shares it too.
    pub(super) prefix_entry: AtomicU32,
    /// The separator to the right: an upper bound of the node; 0 for the rightmost node of a level.
    pub(super) high: AtomicU32,
    /// The writer's memory of where it inserted last here and how often in a row that was beside the time before; see
    /// `Run`.
    pub(super) run: AtomicU32,
    /// 0 for leaves.
    pub(super) level: u8,
    /// Whether this is the first node of its level.
    pub(super) leftmost: bool,
    /// Heads of the entries, ascending; `u64::MAX` beyond `count`, so that `rank` need not know the count.
    pub(super) heads: [AtomicU64; CAPACITY],
    /// Offsets of the entries in the arena.
    pub(super) entries: [AtomicU32; CAPACITY],
}

/// A node above the leaves.
#[repr(C)]
pub(super) struct Inner {
    node: Node,
    children: [AtomicPtr<Node>; CAPACITY],
}

/// A pointer to a node of a tree that outlives `'a`: nodes are freed only together with the tree.
#[derive(Clone, Copy)]
pub(super) struct NodeRef<'a> {
    ptr: NonNull<Node>,
    node: &'a Node,
}

impl std::ops::Deref for NodeRef<'_> {
    type Target = Node;

    #[inline(always)]
    fn deref(&self) -> &Node {
        self.node
    }
}

impl<'a> NodeRef<'a> {
    /// `None` for null.
    ///
    /// # Safety
    /// `ptr` is null or was made by [`NodeRef::init`] for a tree that lives for `'a`, and that happened before.
    #[inline(always)]
    pub(super) unsafe fn new(ptr: *mut Node) -> Option<NodeRef<'a>> {
        let ptr = NonNull::new(ptr)?;
        // SAFETY: by the contract; all shared fields are atomics.
        Some(NodeRef { ptr, node: unsafe { ptr.as_ref() } })
    }

    /// Bytes of memory for a node of that level.
    pub(super) const fn size(level: u8) -> usize {
        if level == 0 { size_of::<Node>() } else { size_of::<Inner>() }
    }

    /// Makes an empty node.
    ///
    /// # Safety
    /// `at` is aligned to a cache line and valid for [`NodeRef::size`] bytes that no other code uses, for `'a`.
    pub(super) unsafe fn init(at: NonNull<u8>, level: u8, leftmost: bool) -> NodeRef<'a> {
        let node = Node {
            version: AtomicU64::new(0),
            next: AtomicPtr::new(NONE),
            count: AtomicU32::new(0),
            prefix_len: AtomicU32::new(0),
            prefix_entry: AtomicU32::new(0),
            high: AtomicU32::new(0),
            run: AtomicU32::new(0),
            level,
            leftmost,
            heads: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        let ptr = at.cast::<Node>();
        // SAFETY: by the contract there is room for what the level needs, suitably aligned.
        unsafe {
            if level == 0 {
                ptr.write(node);
            } else {
                let children = std::array::from_fn(|_| AtomicPtr::new(NONE));
                at.cast::<Inner>().write(Inner { node, children });
            }
            NodeRef { ptr, node: ptr.as_ref() }
        }
    }

    pub(super) fn as_ptr(self) -> *mut Node {
        self.ptr.as_ptr()
    }

    pub(super) fn is_leaf(self) -> bool {
        self.node.level == 0
    }

    /// The children; of inner nodes only.
    #[inline(always)]
    pub(super) fn children(self) -> &'a [AtomicPtr<Node>; CAPACITY] {
        assert!(self.node.level > 0);
        // SAFETY: a node above level 0 was made as an Inner, whose first field is the node (repr(C)), and the pointer
        // may access all of it.
        unsafe { &(*self.ptr.as_ptr().cast::<Inner>()).children }
    }

    /// R1: an even version, waiting for the writer if it is in the middle of a change.
    #[inline(always)]
    pub(super) fn read_version(&self) -> u64 {
        let version = self.node.version.observe(Ordering::Acquire); // partner: W2
        if version & 1 == 0 { version } else { self.wait_version() }
    }

    /// A change takes a fraction of a microsecond, unless the writer lost its processor in the middle of it.
    #[cold]
    fn wait_version(&self) -> u64 {
        for spins in 0u32.. {
            let version = self.node.version.observe(Ordering::Acquire); // partner: W2
            if version & 1 == 0 {
                return version;
            }
            if spins < 64 && !cfg!(loom) { std::hint::spin_loop() } else { yield_now() }
        }
        unreachable!()
    }

    /// R2: whether everything that was read since `version` was noted belongs to that version.
    #[inline(always)]
    pub(super) fn validate(&self, version: u64) -> bool {
        fence(Ordering::Acquire); // partner: the fence in W1
        self.node.version.observe(Ordering::Relaxed) == version
    }

    /// W1: from here on readers of the node wait or fail to validate. For the one writer only.
    #[inline(always)]
    pub(super) fn begin_write(&self) {
        let version = self.node.version.observe(Ordering::Relaxed);
        self.node.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release); // partner: R2
    }

    /// W2: the change is complete.
    #[inline(always)]
    pub(super) fn end_write(&self) {
        let version = self.node.version.observe(Ordering::Relaxed);
        self.node.version.store(version + 1, Ordering::Release); // partner: R1
    }

    /// Asks for the lines of the node ahead of their use.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        for line in 0..size_of::<Node>() / 64 {
            prefetch(self.ptr.as_ptr().cast::<u8>().wrapping_add(line * 64));
        }
    }
}

// What follows is called by readers, which validate afterwards and until then must expect any mixture of values, and by
// the writer, which needs no care. All accesses but one are Relaxed: the sequence lock orders them.
impl Node {
    /// The number of entries, at most `CAPACITY`.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        (self.count.observe(Ordering::Relaxed) as usize).min(CAPACITY)
    }

    #[inline(always)]
    pub(super) fn head(&self, i: usize) -> u64 {
        self.heads[i].observe(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn entry(&self, i: usize) -> u32 {
        self.entries[i].observe(Ordering::Acquire) // partner: the Release with which a new version takes an old one's place
    }

    /// The number of heads below `head`. Two rounds of independent loads, no branch: first which group of eight, by
    /// the groups' last heads, then where in it. A binary search would wait for six loads one after the other.
    #[inline(always)]
    pub(super) fn rank(&self, head: u64) -> usize {
        let mut start = 0;
        for group in 1..CAPACITY / GROUP {
            start += if self.head(group * GROUP - 1) < head { GROUP } else { 0 };
        }
        let mut rank = start;
        for i in 0..GROUP {
            // SAFETY: start is at most CAPACITY - GROUP.
            let h = unsafe { self.heads.get_unchecked(start + i) };
            rank += usize::from(h.observe(Ordering::Relaxed) < head);
        }
        rank
    }

    /// Opens a gap at `pos` and fills it; between `begin_write` and `end_write`, in a node that is not full.
    #[inline(always)]
    pub(super) fn insert(&self, pos: usize, count: usize, head: u64, entry: u32) {
        for i in (pos..count).rev() {
            self.heads[i + 1].store(self.head(i), Ordering::Relaxed);
            self.entries[i + 1].store(self.entry(i), Ordering::Relaxed);
        }
        self.heads[pos].store(head, Ordering::Relaxed);
        self.entries[pos].store(entry, Ordering::Relaxed);
        self.count.store(count as u32 + 1, Ordering::Relaxed);
    }

    /// Replaces the entries; between `begin_write` and `end_write`, or before the node is published.
    pub(super) fn fill(&self, heads: &[u64], entries: &[u32], prefix_len: usize, prefix_entry: u32) {
        for i in 0..CAPACITY {
            self.heads[i].store(heads.get(i).copied().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        for (to, from) in self.entries.iter().zip(entries) {
            to.store(*from, Ordering::Relaxed);
        }
        self.count.store(entries.len() as u32, Ordering::Relaxed);
        self.prefix_len.store(prefix_len as u32, Ordering::Relaxed);
        self.prefix_entry.store(prefix_entry, Ordering::Relaxed);
    }
}

/// Asks for a cache line ahead of its use. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing as far as the program can tell, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
