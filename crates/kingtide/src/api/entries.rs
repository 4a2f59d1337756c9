//! Entries as a Rust iterator: a cursor from the front, and a second one from the back once the back is asked for.
//!
//! Both cursors show the same view of the same moment, so where they meet is a comparison of the keys that they are at.
//! They need not meet at one key: an entry that has a time to live may be there for the one and gone for the other.

use crate::api::transaction::TransactionCursor;
use crate::read::{Cursor, PinnedValue};
use kingtide_base::{Error, KeyOrder, Result};
use std::fmt;

/// A key and its value, as an iterator returns them. Both own or share their bytes, and dereference to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: PinnedValue,
    /// The value.
    pub value: PinnedValue,
}

impl Entry {
    fn copy((key, value): (&[u8], &[u8])) -> Entry {
        Entry { key: PinnedValue::copy(key), value: PinnedValue::copy(value) }
    }
}

impl From<Entry> for (Vec<u8>, Vec<u8>) {
    fn from(entry: Entry) -> (Vec<u8>, Vec<u8>) {
        (entry.key.into_vec(), entry.value.into_vec())
    }
}

/// An iterator over entries in the order of their keys, from both ends. See [`Read::range`](crate::Read::range).
///
/// It owns the data that it reads and shows one moment: it may outlive the handle that created it, and no write, flush or compaction
/// affects it. It ends after its first error, and once it returned `None` it continues to do so.
///
/// Each entry is copied: two allocations if key and value are longer than about a hundred bytes, none if they are shorter.
/// [`Cursor`] lends entries without a copy, and can seek. Reading from both ends costs a second cursor.
pub struct Entries {
    order: KeyOrder,
    /// A cursor that is nowhere yet, for the end that is asked first.
    fresh: Option<Walker>,
    front: Option<Walker>,
    back: Option<Walker>,
    /// What kept the first cursor from being made.
    failed: Option<Error>,
    done: bool,
}

enum Walker {
    Family(Box<Cursor>),
    Transaction(Box<TransactionCursor>),
}

impl Entries {
    pub(crate) fn of_family(order: &KeyOrder, cursor: Result<Cursor>) -> Entries {
        Entries::new(order, cursor.map(|c| Walker::Family(Box::new(c))))
    }

    pub(crate) fn of_transaction(order: &KeyOrder, cursor: Result<TransactionCursor>) -> Entries {
        Entries::new(order, cursor.map(|c| Walker::Transaction(Box::new(c))))
    }

    /// Returns whether the next steps read no file.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_in_memory(&self) -> bool {
        [&self.fresh, &self.front, &self.back].into_iter().flatten().all(|walker| match walker {
            Walker::Family(c) => c.is_in_memory(),
            Walker::Transaction(_) => false,
        })
    }

    /// Makes a step end, as if there were no entry, when all of them since this call have passed `most` keys that are deleted or
    /// invisible. The step after that goes on.
    #[cfg(feature = "tokio")]
    pub(crate) fn limit_skips(&mut self, most: u64) {
        for walker in [&mut self.fresh, &mut self.front, &mut self.back].into_iter().flatten() {
            if let Walker::Family(c) = walker {
                c.limit_skips(most);
            }
        }
    }

    /// Returns whether the last step ended for that.
    #[cfg(feature = "tokio")]
    pub(crate) fn gave_up(&self) -> bool {
        [&self.front, &self.back].into_iter().flatten().any(Walker::gave_up)
    }

    fn new(order: &KeyOrder, cursor: Result<Walker>) -> Entries {
        let (fresh, failed) = match cursor {
            Ok(walker) => (Some(walker), None),
            Err(e) => (None, Some(e)),
        };
        Entries { order: order.clone(), fresh, front: None, back: None, failed, done: false }
    }

    fn step(&mut self, forward: bool) -> Option<Result<Entry>> {
        if self.done {
            return None;
        }
        let step = self.advance(forward);
        #[cfg(feature = "tokio")]
        if step.is_none() && self.gave_up() {
            return None;
        }
        self.done = !matches!(step, Some(Ok(_)));
        if self.done {
            (self.fresh, self.front, self.back) = (None, None, None); // what they keep alive may be much
        }
        step
    }

    fn advance(&mut self, forward: bool) -> Option<Result<Entry>> {
        if let Some(e) = self.failed.take() {
            return Some(Err(e));
        }
        let (this, other) = if forward { (&mut self.front, &self.back) } else { (&mut self.back, &self.front) };
        let walker = match this {
            Some(walker) => {
                walker.go_on(forward);
                walker
            }
            None => {
                let mut walker = match (self.fresh.take(), other) {
                    (Some(fresh), _) => fresh,
                    (None, Some(other)) => match other.another() {
                        Ok(walker) => walker,
                        Err(e) => return Some(Err(e)),
                    },
                    (None, None) => return None,
                };
                walker.begin(forward);
                this.insert(walker)
            }
        };
        if !walker.valid() {
            return walker.status().err().map(Err);
        }
        if let Some(other) = other {
            let order = self.order.compare(walker.key(), other.key());
            if if forward { order.is_ge() } else { order.is_le() } {
                return None; // the other end has returned it, or what comes after it
            }
        }
        Some(walker.entry())
    }
}

impl Walker {
    /// Another cursor over the same, nowhere yet.
    fn another(&self) -> Result<Walker> {
        Ok(match self {
            Walker::Family(c) => Walker::Family(Box::new(c.another()?)),
            Walker::Transaction(c) => Walker::Transaction(Box::new(c.another()?)),
        })
    }

    fn begin(&mut self, forward: bool) {
        match (self, forward) {
            (Walker::Family(c), true) => c.seek_to_first(),
            (Walker::Family(c), false) => c.seek_to_last(),
            (Walker::Transaction(c), true) => c.seek_to_first(),
            (Walker::Transaction(c), false) => c.seek_to_last(),
        }
    }

    #[cfg(feature = "tokio")]
    fn gave_up(&self) -> bool {
        matches!(self, Walker::Family(c) if c.gave_up())
    }

    fn go_on(&mut self, forward: bool) {
        match (self, forward) {
            #[cfg(feature = "tokio")]
            (Walker::Family(c), _) if c.gave_up() => c.resume(forward),
            (Walker::Family(c), true) => c.next(),
            (Walker::Family(c), false) => c.prev(),
            (Walker::Transaction(c), true) => c.next(),
            (Walker::Transaction(c), false) => c.prev(),
        }
    }

    fn valid(&self) -> bool {
        match self {
            Walker::Family(c) => c.valid(),
            Walker::Transaction(c) => c.valid(),
        }
    }

    fn status(&self) -> Result<()> {
        match self {
            Walker::Family(c) => c.status(),
            Walker::Transaction(c) => c.status(),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Walker::Family(c) => c.key(),
            Walker::Transaction(c) => c.key(),
        }
    }

    fn entry(&mut self) -> Result<Entry> {
        match self {
            Walker::Family(c) => c.entry().map(Entry::copy),
            Walker::Transaction(c) => c.entry().map(Entry::copy),
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        self.step(true)
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Result<Entry>> {
        self.step(false)
    }
}

impl std::iter::FusedIterator for Entries {}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |w: &Option<Walker>| w.as_ref().map(|w| w.key().escape_ascii().to_string());
        write!(f, "Entries(front at {:?}, back at {:?})", end(&self.front), end(&self.back))
    }
}
