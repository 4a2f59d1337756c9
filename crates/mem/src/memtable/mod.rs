//! The memtable index: a B+tree over 8-byte key heads, one writer at a time, lock-free readers.

use std::marker::PhantomData;
use std::sync::Arc;

use kingtide_base::{KeyOrder, Tag};

use crate::arena::ArenaPool;

/// An ordered in-memory table of `(key, tag, value)`: keys ascending in the order, tags of one key descending.
#[derive(Debug)]
pub struct Memtable {
    order: KeyOrder,
}

impl Memtable {
    /// An empty memtable that takes its memory from `pool`.
    pub fn new(order: KeyOrder, _pool: &Arc<ArenaPool>) -> Memtable {
        Memtable { order }
    }

    /// The order of the keys.
    pub fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// Waits for the right to insert. One writer at a time; readers never wait for it.
    pub fn writer(&self) -> MemWriter<'_> {
        todo!()
    }

    /// The newest entry of `key` whose tag is `upper` or older.
    pub fn get(&self, _key: &[u8], _upper: Tag) -> Option<(Tag, &[u8])> {
        todo!()
    }

    /// A cursor, not yet positioned. It keeps the memtable alive.
    pub fn iter(self: &Arc<Self>) -> MemIter {
        todo!()
    }

    /// Entries.
    pub fn len(&self) -> u64 {
        todo!()
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of arena held: what is charged to the budget.
    pub fn memory(&self) -> u64 {
        todo!()
    }

    /// Bytes of keys and values inserted.
    pub fn data_bytes(&self) -> u64 {
        todo!()
    }
}

/// The right to insert into a [`Memtable`].
#[derive(Debug)]
pub struct MemWriter<'a>(PhantomData<&'a mut Memtable>);

impl MemWriter<'_> {
    /// Inserts an entry. `(key, tag)` must not be in the memtable yet.
    pub fn insert(&mut self, _key: &[u8], _tag: Tag, _value: &[u8]) {
        todo!()
    }

    /// Inserts many entries, in any order; cheaper than one by one, and cheaper still when sorted by key.
    pub fn insert_batch<'k>(&mut self, entries: impl IntoIterator<Item = (&'k [u8], Tag, &'k [u8])>) {
        entries.into_iter().for_each(|(k, t, v)| self.insert(k, t, v));
    }
}

/// A cursor over a [`Memtable`] that owns a share of it.
#[derive(Clone, Debug)]
pub struct MemIter {
    _table: Arc<Memtable>,
}

impl MemIter {
    /// Goes to the first entry.
    pub fn first(&mut self) {
        todo!()
    }
    /// Goes to the last entry.
    pub fn last(&mut self) {
        todo!()
    }
    /// Goes to the first entry at or after `(key, tag)`.
    pub fn seek(&mut self, _key: &[u8], _tag: Tag) {
        todo!()
    }
    /// Goes to the last entry before `(key, tag)`.
    pub fn seek_lt(&mut self, _key: &[u8], _tag: Tag) {
        todo!()
    }
    /// Goes to the following entry; stays invalid if it is not at one.
    #[allow(clippy::should_implement_trait)] // a cursor, not an iterator
    pub fn next(&mut self) {
        todo!()
    }
    /// Goes to the preceding entry; stays invalid if it is not at one.
    pub fn prev(&mut self) {
        todo!()
    }
    /// Whether the cursor is at an entry.
    pub fn valid(&self) -> bool {
        todo!()
    }
    /// The entry's key.
    pub fn key(&self) -> &[u8] {
        todo!()
    }
    /// The entry's tag.
    pub fn tag(&self) -> Tag {
        todo!()
    }
    /// The entry's stored value.
    pub fn value(&self) -> &[u8] {
        todo!()
    }
    /// `order.head(key)`.
    pub fn head(&self) -> u64 {
        todo!()
    }
}
