//! Insertion. See the module above for what readers rely on.

use std::cmp::Ordering as Order;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

use kingtide_base::Tag;
use kingtide_base::key::head_be;
use kingtide_base::lock::MutexGuard;

use super::entry::{self, Entry, Links};
use super::node::{CAPACITY, NONE, Node, NodeRef};
use super::tree::{Match, Side, Target, Tree, child_index};
use crate::arena::{ArenaPool, Bump, NoRoom};
use crate::sync::{Observe, Ordering};

/// How many entries [`MemWriter::insert_batch`] looks ahead.
const AHEAD: usize = 6;

/// Insertions in a row beside each other after which a leaf is taken to be filled in order.
const RUN: u8 = 4;

/// What the one writer keeps between insertions.
pub(super) struct WriterState {
    bump: Bump,
    /// The leaf inserted into last; null while there is none.
    finger: *mut Node,
    /// The entry inserted last.
    last_entry: u32,
    /// Counts splits: a leaf found for a key stays right until the next one.
    splits: u64,
}

// SAFETY: the pointer points into the arena that `bump` owns.
unsafe impl Send for WriterState {}

impl WriterState {
    pub(super) fn new(pool: &Arc<ArenaPool>) -> WriterState {
        WriterState { bump: Bump::new(pool), finger: NONE, last_entry: 0, splits: 0 }
    }
}

/// The right to insert into a [`Memtable`](super::Memtable).
pub struct MemWriter<'t> {
    tree: &'t Tree,
    state: MutexGuard<'t, WriterState>,
}

/// An entry of a batch on its way, with the leaf that was found for it ahead of its turn.
struct Ahead<'t, 'k> {
    target: Target<'k>,
    entry: Entry<'k>,
    leaf: NodeRef<'t>,
    splits: u64,
}

impl<'t> MemWriter<'t> {
    pub(super) fn new(tree: &'t Tree, state: MutexGuard<'t, WriterState>) -> Self {
        #[cfg(loom)]
        crate::sync::WRITING.with(|w| w.set(true));
        MemWriter { tree, state }
    }

    #[cold]
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let bump = &mut self.state.bump;
        let reserved = if bump.left() >= bytes { Ok(()) } else { bump.reserve(&self.tree.slots, bytes) };
        self.tree.counters.room.store(self.state.bump.left() as u64, Ordering::Relaxed);
        reserved
    }

    pub(super) fn retire(&mut self) {
        self.state.bump.retire();
    }

    /// Inserts an entry. `(key, tag)` must not be in the memtable yet. O(log n), O(1) for a key beside the last one. Versions
    /// of a key should come oldest first: all that are newer than a late one are written again.
    ///
    /// # Panics
    /// If the memtable would exceed 32 GiB, or the key or value has 4 GiB or more.
    pub fn insert(&mut self, key: &[u8], tag: Tag, value: &[u8]) {
        let target = self.tree.target(key);
        let leaf = self.find(&target);
        self.insert_into(leaf, &target, Entry { tag, key, value });
    }

    /// Inserts many entries, in any order. Cheaper than one by one: leaves are fetched from memory for several entries
    /// at once; cheaper still when the entries are sorted. Versions of a key should come oldest first, as above.
    ///
    /// # Panics
    /// As [`MemWriter::insert`].
    #[inline(always)] // its iterator is a closure that the optimiser must see through
    pub fn insert_batch<'k>(&mut self, entries: impl IntoIterator<Item = (&'k [u8], Tag, &'k [u8])>) {
        let mut entries = entries.into_iter();
        let Some(first) = entries.next() else { return };
        let mut next = self.look_up(first);
        // As long as each key goes to the leaf of the one before it, which is at hand, there is nothing to fetch ahead of its turn.
        loop {
            self.insert_into(next.leaf, &next.target, next.entry);
            let Some(following) = entries.next() else { return };
            next = self.look_up(following);
            if next.leaf.as_ptr() != self.state.finger {
                break;
            }
        }
        let mut window: [Option<Ahead<'t, 'k>>; AHEAD] = [const { None }; AHEAD];
        window[0] = Some(next);
        let mut turn = 1;
        loop {
            let incoming = entries.next().map(|entry| self.look_up(entry));
            let more = incoming.is_some();
            if let Some(next) = std::mem::replace(&mut window[turn], incoming) {
                let known = next.splits == self.state.splits;
                let leaf = if known { next.leaf } else { self.find(&next.target) };
                self.insert_into(leaf, &next.target, next.entry);
            } else if !more && window.iter().all(Option::is_none) {
                return;
            }
            turn = (turn + 1) % AHEAD;
        }
    }

    /// Finds the leaf for an entry of a batch.
    #[inline(always)]
    fn look_up<'k>(&mut self, (key, tag, value): (&'k [u8], Tag, &'k [u8])) -> Ahead<'t, 'k> {
        let target = self.tree.target(key);
        Ahead { target, entry: Entry { tag, key, value }, leaf: self.find(&target), splits: self.state.splits }
    }

    /// The leaf that the target belongs to.
    #[inline]
    fn find(&mut self, target: &Target<'_>) -> NodeRef<'t> {
        if let Some(leaf) = self.finger_for(target) {
            return leaf;
        }
        match self.tree.descend(target, Side::At) {
            Some((leaf, _)) => leaf,
            None => self.plant(),
        }
    }

    /// The leaf inserted into last, if it is cheap to see that the target belongs there: between its first and last
    /// entry by their heads, or behind its last entry where nothing else can be, or while it is being filled in order.
    #[inline]
    fn finger_for(&self, target: &Target<'_>) -> Option<NodeRef<'t>> {
        // SAFETY: the finger is null or a leaf of this tree, which lives for 't.
        let leaf = unsafe { NodeRef::<'t>::new(self.state.finger) }?;
        let count = leaf.len();
        let prefix_len = leaf.prefix_len.observe(Ordering::Relaxed) as usize;
        let mut head = target.head;
        if prefix_len > 0 {
            // The last entry inserted is in that leaf and fresh in the processor's cache.
            let last = self.entry_key(self.state.last_entry);
            if target.key.get(..prefix_len)? != last.get(..prefix_len)? {
                return None;
            }
            head = head_be(&target.key[prefix_len..]);
        }
        let (first, last) = (leaf.head(0), leaf.head(count - 1));
        if (head > first || leaf.leftmost) && head < last {
            return Some(leaf);
        }
        if head < last {
            return None;
        }
        let high = leaf.high.observe(Ordering::Relaxed);
        let to_last = if head == last { self.compare_with(target, leaf.entry(count - 1)) } else { Order::Greater };
        match to_last {
            Order::Less => None,
            Order::Equal => Some(leaf),
            Order::Greater if high == 0 => Some(leaf),
            Order::Greater if !Run::of(&leaf).is_established() => None,
            Order::Greater => self.compare_with(target, high).is_lt().then_some(leaf),
        }
    }

    /// How the target compares with an entry.
    fn compare_with(&self, target: &Target<'_>, offset: u32) -> Order {
        self.tree.compare(&self.entry(offset), target).reverse()
    }

    fn entry_key(&self, offset: u32) -> &'t [u8] {
        self.entry(offset).key
    }

    #[inline(always)]
    fn entry(&self, offset: u32) -> Entry<'t> {
        // SAFETY: the writer wrote all entries itself, or got the lock after the thread that did.
        unsafe { self.tree.entry(offset) }
    }

    /// Makes the first leaf the root.
    #[cold]
    fn plant(&mut self) -> NodeRef<'t> {
        let leaf = self.make_node(0, true);
        self.tree.root.store(leaf.as_ptr(), Ordering::Release); // partner: Tree::enter
        leaf
    }

    fn make_node(&mut self, level: u8, leftmost: bool) -> NodeRef<'t> {
        let at = self.state.bump.allocate_lines(&self.tree.slots, NodeRef::size(level));
        // SAFETY: fresh memory of that size at a cache line; the arena lives as long as the tree.
        unsafe { NodeRef::init(at, level, leftmost) }
    }

    fn insert_into(&mut self, leaf: NodeRef<'t>, target: &Target<'_>, entry: Entry<'_>) {
        self.share_prefix(leaf, target.key);
        let (pos, head, found) = self.place(leaf, target);
        let is_new = found != Match::Exact;
        if is_new {
            let offset = self.write(entry, None);
            self.add_key(leaf, target, (pos, head), offset);
        } else {
            let newest = self.add_version(leaf.entry(pos), entry);
            // Release: partner of the Acquire in `Node::entry`, for readers that see this offset and not a new version of the
            // leaf, which stays as it is otherwise.
            leaf.entries[pos].store(newest, Ordering::Release);
            (self.state.finger, self.state.last_entry) = (leaf.as_ptr(), newest);
        }
        // One writer: a load and a store do for a read-modify-write. Statistics, so Relaxed.
        let counters = &self.tree.counters;
        let add = |counter: &Counter, n: u64| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&counters.len, 1);
        add(&counters.keys, u64::from(is_new));
        add(&counters.data_bytes, (entry.key.len() + entry.value.len()) as u64);
        counters.room.store(self.state.bump.left() as u64, Ordering::Relaxed);
    }

    /// Writes an entry into the arena, where no reader sees it yet.
    fn write(&mut self, entry: Entry<'_>, links: Option<Links>) -> u32 {
        let len = entry::encoded_len(entry.key, entry.value, links.is_some());
        let (offset, at) = self.state.bump.allocate(&self.tree.slots, len);
        // SAFETY: fresh memory of that size, aligned to 8.
        unsafe { entry::write(at, entry, links) };
        offset
    }

    /// Inserts the first version of a key into the leaf that it belongs to, at `pos`.
    fn add_key(&mut self, leaf: NodeRef<'t>, target: &Target<'_>, (pos, head): (usize, u64), offset: u32) {
        let count = leaf.len();
        Run::of(&leaf).note(pos).keep(&leaf);
        if count < CAPACITY {
            leaf.begin_write();
            leaf.insert(pos, count, head, offset);
            leaf.end_write();
            self.state.finger = leaf.as_ptr();
        } else {
            self.split_leaf(leaf, target, pos, head, offset);
        }
        self.state.last_entry = offset;
    }

    /// Writes a version of a key in front of the newest one so far, and returns what is the newest one now.
    fn add_version(&mut self, newest: u32, entry: Entry<'_>) -> u32 {
        if self.entry(newest).tag < entry.tag {
            let links = self.links_to(newest);
            return self.write(entry, Some(links));
        }
        self.add_late_version(newest, entry)
    }

    /// The same for a version that comes after newer ones: links never change, so those are written again in front of it.
    #[cold]
    fn add_late_version(&mut self, newest: u32, entry: Entry<'_>) -> u32 {
        let mut newer = Vec::new();
        let mut next = Some(newest);
        while let Some(offset) = next.filter(|o| self.entry(*o).tag >= entry.tag) {
            newer.push(offset);
            // SAFETY: the writer wrote all entries itself, or got the lock after the thread that did.
            next = unsafe { self.tree.links_of(offset) }.map(|l| l.older);
        }
        let links = next.map(|older| self.links_to(older));
        let mut front = self.write(entry, links);
        for offset in newer.into_iter().rev() {
            let again = self.entry(offset);
            debug_assert!(again.tag != entry.tag, "(key, tag) is in the memtable already");
            let links = self.links_to(front);
            front = self.write(again, Some(links));
        }
        front
    }

    fn links_to(&self, older: u32) -> Links {
        // SAFETY: the writer wrote all entries itself, or got the lock after the thread that did.
        unsafe { self.tree.links_to(older) }
    }

    /// Where in a leaf the target belongs, its head there, and whether its key is there already.
    #[inline]
    fn place(&self, node: NodeRef<'t>, target: &Target<'_>) -> (usize, u64, Match) {
        let prefix_len = node.prefix_len.observe(Ordering::Relaxed) as usize;
        let head = self.head_after(prefix_len, target.key, target.head);
        let count = node.len();
        // The common case of keys that arrive in order spares the search.
        if count > 0 && node.head(count - 1) < head {
            return (count, head, Match::Other);
        }
        let pos = node.rank(head).min(count);
        if pos == count || node.head(pos) != head {
            return (pos, head, Match::Other);
        }
        let version = node.read_version();
        match self.tree.locate_among_equals(node, version, target, head, pos, count) {
            Some((pos, found)) => (pos, head, found),
            None => unreachable!("only the writer changes nodes"),
        }
    }

    #[inline]
    fn head_after(&self, prefix_len: usize, key: &[u8], whole: u64) -> u64 {
        if prefix_len == 0 { whole } else { head_be(key.get(prefix_len..).unwrap_or_default()) }
    }

    /// Shortens the prefix of an outermost node to what the key shares.
    #[inline]
    fn share_prefix(&self, node: NodeRef<'t>, key: &[u8]) {
        let shown_by = node.prefix_entry.observe(Ordering::Relaxed);
        if shown_by == 0 {
            return;
        }
        let prefix_len = node.prefix_len.observe(Ordering::Relaxed) as usize;
        let prefix = &self.entry_key(shown_by)[..prefix_len];
        if !key.starts_with(prefix) {
            let mut draft = Draft::of(node);
            self.cut_heads(&mut draft, common_prefix(prefix, key));
            node.begin_write();
            draft.store(node);
            node.end_write();
        }
    }

    /// Splits a full leaf and inserts an entry that belongs at `pos`.
    #[cold]
    #[inline(never)]
    fn split_leaf(&mut self, leaf: NodeRef<'t>, target: &Target<'_>, pos: usize, head: u64, offset: u32) {
        let parent = self.parent_with_room(leaf, target);
        let mut all = Draft::of(leaf);
        all.insert(pos, head, offset, NONE);
        let run = Run::of(&leaf);
        let at = match () {
            // Keys that arrive in order leave full leaves behind, in whichever direction they go: what is in their way
            // goes to the other side, and they have a leaf to themselves.
            () if pos == CAPACITY && leaf.high.observe(Ordering::Relaxed) == 0 => CAPACITY,
            () if run.is_established() && run.ascending => (pos + 1).min(CAPACITY),
            () if run.is_established() => pos.max(1),
            () => all.len.div_ceil(2),
        };
        let right = self.split(parent, leaf, &all, at);
        Run::default().keep(&leaf);
        let (took, pos) = if pos < at { (leaf, pos) } else { (right, pos - at) };
        Run { pos: pos as u8, ..run }.keep(&took);
        self.state.finger = took.as_ptr();
    }

    /// The node above a leaf and the leaf's place in it, with room for one more child; `None` if the leaf is the root.
    /// Inner nodes are split on the way down, so that a split never has to go up further than one level.
    fn parent_with_room(&mut self, leaf: NodeRef<'t>, target: &Target<'_>) -> Option<(NodeRef<'t>, usize)> {
        'again: loop {
            let (mut node, _) = self.tree.enter()?;
            let mut parent = None;
            while node.as_ptr() != leaf.as_ptr() {
                assert!(!node.is_leaf(), "the order of the keys contradicts itself");
                let place = self.tree.locate(node, node.read_version(), target);
                let i = place.map_or(0, |p| child_index(p, Side::At));
                if node.len() == CAPACITY {
                    let all = Draft::of(node);
                    let in_order = i == CAPACITY - 1 && node.high.observe(Ordering::Relaxed) == 0;
                    self.split(parent, node, &all, if in_order { CAPACITY - 1 } else { CAPACITY.div_ceil(2) });
                    continue 'again;
                }
                let child = node.children()[i].observe(Ordering::Relaxed);
                parent = Some((node, i));
                // SAFETY: a child of a node of this tree, made by the writer.
                node = unsafe { NodeRef::new(child) }?;
            }
            return parent;
        }
    }

    /// Gives `all` to `node` and a new node to its right, `at` entries to the former, and tells the parent.
    fn split(
        &mut self,
        parent: Option<(NodeRef<'t>, usize)>,
        node: NodeRef<'t>,
        all: &Draft,
        at: usize,
    ) -> NodeRef<'t> {
        self.state.splits += 1;
        let high = node.high.observe(Ordering::Relaxed);
        let separator = all.entries[at];
        // For both parts, even one too small to have equal heads itself: if keys arrive in order, it gets the next ones.
        let collide = all.heads_collide();
        let mut lower = all.part(0, at);
        self.choose_prefix(&mut lower, collide, node.leftmost, separator);
        let mut upper = all.part(at, all.len);
        self.choose_prefix(&mut upper, collide, false, high);

        let right = self.make_node(node.level, false);
        upper.store(right);
        right.high.store(high, Ordering::Relaxed);
        right.next.store(node.next.observe(Ordering::Relaxed), Ordering::Release);
        let change = || {
            lower.store(node);
            node.high.store(separator, Ordering::Relaxed);
            // Release: partner of the Acquire with which MemIter goes to the next leaf.
            node.next.store(right.as_ptr(), Ordering::Release);
        };
        match parent {
            Some((parent, i)) => {
                let mut draft = Draft::of(parent);
                let shared = self.shared_prefix(parent, draft.prefix_len, separator);
                if shared < draft.prefix_len {
                    self.cut_heads(&mut draft, shared);
                }
                draft.insert(i + 1, self.head_of(separator, draft.prefix_len), separator, right.as_ptr());
                let collide = draft.heads_collide();
                self.choose_prefix(&mut draft, collide, parent.leftmost, parent.high.observe(Ordering::Relaxed));
                // Both are odd together: see `Tree::step`.
                parent.begin_write();
                node.begin_write();
                change();
                draft.store(parent);
                node.end_write();
                parent.end_write();
            }
            None => {
                let mut draft = Draft::empty();
                draft.insert(0, 0, 0, node.as_ptr());
                draft.insert(1, self.head_of(separator, 0), separator, right.as_ptr());
                let root = self.make_node(node.level + 1, true);
                draft.store(root);
                node.begin_write();
                change();
                self.tree.root.store(root.as_ptr(), Ordering::Release); // partner: Tree::enter
                node.end_write();
            }
        }
        right
    }

    /// How much of the prefix that a node's heads leave out a new separator shares: all of it but in the outermost nodes.
    fn shared_prefix(&self, node: NodeRef<'t>, prefix_len: usize, separator: u32) -> usize {
        match node.prefix_entry.observe(Ordering::Relaxed) {
            0 => prefix_len,
            shown_by => common_prefix(&self.entry_key(shown_by)[..prefix_len], self.entry_key(separator)),
        }
    }

    /// Decides which prefix the heads leave out. It is lengthened only where heads `collide`, because lengthening it means
    /// looking at every key.
    fn choose_prefix(&self, draft: &mut Draft, collide: bool, leftmost: bool, high: u32) {
        if !self.tree.order.is_bytewise() {
            return;
        }
        let real = &draft.entries[usize::from(draft.entries[0] == 0)..draft.len];
        let (Some(&first), Some(&last)) = (real.first(), real.last()) else {
            self.cut_heads(draft, 0);
            return;
        };
        let outermost = leftmost || high == 0;
        let shared = common_prefix(self.entry_key(first), self.entry_key(if outermost { last } else { high }));
        if shared < draft.prefix_len || (shared > draft.prefix_len && collide) {
            self.cut_heads(draft, shared);
        }
        draft.prefix_entry = if outermost && draft.prefix_len > 0 { first } else { 0 };
    }

    /// Makes the heads leave out `prefix_len` bytes.
    fn cut_heads(&self, draft: &mut Draft, prefix_len: usize) {
        for i in 0..draft.len {
            draft.heads[i] = self.head_of(draft.entries[i], prefix_len);
        }
        draft.prefix_len = prefix_len;
        if prefix_len == 0 {
            draft.prefix_entry = 0;
        }
    }

    /// The head of an entry after a prefix; 0 for the separator below everything.
    fn head_of(&self, offset: u32, prefix_len: usize) -> u64 {
        if offset == 0 {
            return 0;
        }
        let key = self.entry_key(offset);
        if prefix_len == 0 { self.tree.order.head(key) } else { head_be(key.get(prefix_len..).unwrap_or_default()) }
    }
}

#[cfg(loom)]
impl Drop for MemWriter<'_> {
    fn drop(&mut self) {
        crate::sync::WRITING.with(|w| w.set(false));
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The contents of a node while they are rearranged, with room for one more entry than a node has.
struct Draft {
    len: usize,
    prefix_len: usize,
    prefix_entry: u32,
    heads: [u64; CAPACITY + 1],
    entries: [u32; CAPACITY + 1],
    children: [*mut Node; CAPACITY + 1],
}

impl Draft {
    fn empty() -> Draft {
        Draft {
            len: 0,
            prefix_len: 0,
            prefix_entry: 0,
            heads: [0; CAPACITY + 1],
            entries: [0; CAPACITY + 1],
            children: [NONE; CAPACITY + 1],
        }
    }

    fn of(node: NodeRef<'_>) -> Draft {
        let mut draft = Draft::empty();
        draft.len = node.len();
        draft.prefix_len = node.prefix_len.observe(Ordering::Relaxed) as usize;
        draft.prefix_entry = node.prefix_entry.observe(Ordering::Relaxed);
        for i in 0..draft.len {
            draft.heads[i] = node.head(i);
            draft.entries[i] = node.entry(i);
            if !node.is_leaf() {
                draft.children[i] = node.children()[i].observe(Ordering::Relaxed);
            }
        }
        draft
    }

    fn part(&self, from: usize, to: usize) -> Draft {
        let mut part = Draft::empty();
        part.len = to - from;
        part.prefix_len = self.prefix_len;
        part.heads[..part.len].copy_from_slice(&self.heads[from..to]);
        part.entries[..part.len].copy_from_slice(&self.entries[from..to]);
        part.children[..part.len].copy_from_slice(&self.children[from..to]);
        part
    }

    /// Whether two entries have the same head.
    fn heads_collide(&self) -> bool {
        self.heads[..self.len].windows(2).any(|w| w[0] == w[1])
    }

    fn insert(&mut self, pos: usize, head: u64, entry: u32, child: *mut Node) {
        self.heads.copy_within(pos..self.len, pos + 1);
        self.entries.copy_within(pos..self.len, pos + 1);
        self.children.copy_within(pos..self.len, pos + 1);
        (self.heads[pos], self.entries[pos], self.children[pos]) = (head, entry, child);
        self.len += 1;
    }

    /// Between `begin_write` and `end_write`, or before the node is published.
    fn store(&self, node: NodeRef<'_>) {
        node.fill(&self.heads[..self.len], &self.entries[..self.len], self.prefix_len, self.prefix_entry);
        if !node.is_leaf() {
            for (to, from) in node.children().iter().zip(&self.children) {
                to.store(*from, Ordering::Release); // partner: Tree::step
            }
        }
    }
}

/// The writer's memory of a leaf: where it inserted last, and how often in a row that was just behind (ascending) or
/// just before (descending) the time before.
#[derive(Clone, Copy, Default)]
struct Run {
    pos: u8,
    length: u8,
    ascending: bool,
}

impl Run {
    fn of(leaf: &Node) -> Run {
        let [pos, length, ascending, _] = leaf.run.observe(Ordering::Relaxed).to_le_bytes();
        Run { pos, length, ascending: ascending != 0 }
    }

    fn keep(self, leaf: &Node) {
        leaf.run.store(u32::from_le_bytes([self.pos, self.length, self.ascending as u8, 0]), Ordering::Relaxed);
    }

    fn note(self, pos: usize) -> Run {
        let ascending = pos == self.pos as usize + 1;
        let beside = ascending || pos == self.pos as usize;
        let goes_on = beside && (ascending == self.ascending || self.length == 0);
        Run { pos: pos as u8, length: if goes_on { self.length.saturating_add(1) } else { beside as u8 }, ascending }
    }

    fn is_established(self) -> bool {
        self.length >= RUN
    }
}
