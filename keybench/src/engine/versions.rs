//! The map behind the in-memory reference: the newest version of every key, and the older ones that a running
//! transaction may still ask for.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

pub type Key = Box<[u8]>;
pub type Value = Arc<[u8]>;

/// A change of a key; no value for a delete.
#[derive(Clone)]
struct Version {
    seq: u64,
    value: Option<Value>,
}

/// A map with a past as long as its oldest snapshot.
#[derive(Default)]
pub struct Versions {
    newest: BTreeMap<Key, Version>,
    /// What was overwritten, oldest first. Empty while there is no snapshot.
    older: HashMap<Key, Vec<Version>>,
    /// Keys deleted since there is a snapshot: the deletes are kept, as changes that others may have missed.
    deleted: Vec<Key>,
    /// Number of the last commit.
    seq: u64,
    /// Snapshots and how many hold each.
    snapshots: BTreeMap<u64, usize>,
}

impl Versions {
    /// Number of keys that have a value.
    pub fn len(&self) -> usize {
        self.newest.len() - self.deleted.iter().filter(|k| self.get(k, u64::MAX).is_none()).count()
    }

    /// Makes changes that become visible together.
    pub fn apply<'c>(&mut self, changes: impl Iterator<Item = (&'c [u8], Option<Value>)>) {
        self.seq += 1;
        for (key, value) in changes {
            self.set(key, value);
        }
    }

    fn set(&mut self, key: &[u8], value: Option<Value>) {
        let Some((&oldest, _)) = self.snapshots.first_key_value() else {
            match value {
                Some(_) => drop(self.newest.insert(key.into(), Version { seq: self.seq, value })),
                None => drop(self.newest.remove(key)),
            }
            return;
        };
        if value.is_none() {
            self.deleted.push(key.into());
        }
        let Some(before) = self.newest.insert(key.into(), Version { seq: self.seq, value }) else { return };
        let versions = self.older.entry(key.into()).or_default();
        versions.push(before);
        // Of those that the oldest snapshot sees, it sees the last only.
        let unseen = versions.iter().filter(|v| v.seq <= oldest).count().saturating_sub(1);
        versions.drain(..unseen);
    }

    /// The value that a key had after commit `seq`.
    pub fn get(&self, key: &[u8], seq: u64) -> Option<&Value> {
        let newest = self.newest.get(key)?;
        self.as_of(key, newest, seq)
    }

    fn as_of<'a>(&'a self, key: &[u8], newest: &'a Version, seq: u64) -> Option<&'a Value> {
        if newest.seq <= seq {
            return newest.value.as_ref();
        }
        self.older.get(key)?.iter().rev().find(|v| v.seq <= seq)?.value.as_ref()
    }

    /// The first entries from `from` on, as they were after commit `seq`.
    pub fn from<'a>(&'a self, from: Bound<&[u8]>, seq: u64) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        let range = self.newest.range::<[u8], _>((from, Bound::Unbounded));
        range.filter_map(move |(key, newest)| self.as_of(key, newest, seq).map(|v| (key, v)))
    }

    /// The commit that changed a key last, 0 for none that is remembered.
    pub fn changed(&self, key: &[u8]) -> u64 {
        self.newest.get(key).map_or(0, |v| v.seq)
    }

    /// Whether anything in a range was changed after commit `seq`, deletes included.
    pub fn range_changed(&self, range: (Bound<&[u8]>, Bound<&[u8]>), seq: u64) -> bool {
        let empty = match range {
            (Bound::Included(a) | Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
            _ => false,
        };
        !empty && self.newest.range::<[u8], _>(range).any(|(_, v)| v.seq > seq)
    }

    /// A snapshot of now, to be given back by [`release`](Versions::release).
    pub fn snapshot(&mut self) -> u64 {
        *self.snapshots.entry(self.seq).or_default() += 1;
        self.seq
    }

    /// Gives a snapshot back; with the last one the past goes.
    pub fn release(&mut self, snapshot: u64) {
        if let Some(holders) = self.snapshots.get_mut(&snapshot) {
            *holders -= 1;
            if *holders == 0 {
                self.snapshots.remove(&snapshot);
            }
        }
        if self.snapshots.is_empty() {
            self.older.clear();
            for key in std::mem::take(&mut self.deleted) {
                if self.newest.get(&key).is_some_and(|v| v.value.is_none()) {
                    self.newest.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(map: &mut Versions, key: &str, value: &str) {
        map.apply([(key.as_bytes(), Some(value.as_bytes().into()))].into_iter());
    }

    fn seen(map: &Versions, seq: u64) -> String {
        map.from(Bound::Unbounded, seq).map(|(k, v)| format!("{}{}", k.escape_ascii(), v.escape_ascii())).collect()
    }

    #[test]
    fn snapshots_keep_what_they_saw_and_nothing_else() {
        let mut map = Versions::default();
        put(&mut map, "a", "1");
        put(&mut map, "b", "1");
        let first = map.snapshot();
        put(&mut map, "a", "2");
        let second = map.snapshot();
        put(&mut map, "a", "3");
        map.apply([(&b"b"[..], None)].into_iter());
        put(&mut map, "c", "3");
        assert_eq!((seen(&map, first), seen(&map, second)), ("a1b1".into(), "a2b1".into()));
        assert_eq!((seen(&map, u64::MAX), map.len()), ("a3c3".into(), 2));
        assert!(map.range_changed((Bound::Included(b"b"), Bound::Excluded(b"c")), second), "a delete is a change");
        assert!(!map.range_changed((Bound::Included(b"d"), Bound::Unbounded), first));
        map.release(first);
        put(&mut map, "a", "4");
        assert_eq!(seen(&map, second), "a2b1");
        map.release(second);
        assert!(map.older.is_empty() && map.deleted.is_empty() && map.newest.len() == 2);
    }

    #[test]
    fn the_past_is_no_longer_than_the_oldest_snapshot() {
        let mut map = Versions::default();
        for i in 0..100 {
            put(&mut map, "k", "v");
            let s = map.snapshot();
            put(&mut map, "k", "w");
            if i > 0 {
                map.release(s - 2);
            }
            assert!(map.older[&b"k"[..]].len() <= 3, "{}", map.older[&b"k"[..]].len());
        }
    }
}
