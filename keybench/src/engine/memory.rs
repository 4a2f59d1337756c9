//! The reference: an ordered map in memory. It defines what right answers are; its speed says little.
//!
//! Transactions read a snapshot and are validated at their commit, under the map's lock. Those in locking mode run one
//! after another: each waits at its beginning for the one before.

use super::txn::{Isolation, Step, Transactions, TxnMode};
use super::versions::{Key, Value, Versions};
use super::{Bounds, Cursor, Engine, EngineOptions, Session, no_extra_options};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The map behind its lock.
#[derive(Default)]
struct Shared {
    map: RwLock<Versions>,
    /// Whether a transaction in locking mode runs.
    locked: Mutex<bool>,
    unlocked: Condvar,
}

impl Shared {
    // A panic while a lock is held is a test's: a run with one has failed whatever the map holds.
    fn read(&self) -> RwLockReadGuard<'_, Versions> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Versions> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> MutexGuard<'_, bool> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct MemoryEngine(Arc<Shared>);

/// An empty map.
pub fn open(options: &EngineOptions) -> Result<Box<dyn Engine>> {
    no_extra_options("memory", options)?;
    Ok(Box::new(MemoryEngine(Arc::default())))
}

impl Engine for MemoryEngine {
    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn durability(&self) -> String {
        "nothing outlives the process".into()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(MemorySession { shared: Arc::clone(&self.0), txn: None }))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> Vec<(String, f64)> {
        vec![("keys".into(), self.0.read().len() as f64)]
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

type Writes = BTreeMap<Key, Option<Value>>;

/// A running transaction.
struct Txn {
    shared: Arc<Shared>,
    how: Transactions,
    snapshot: u64,
    writes: Writes,
    /// Keys read for update, and the commit that each had been changed by.
    for_update: HashMap<Key, u64>,
    /// What a serializable transaction has read: keys, and ranges from a key to another or to the end.
    read: Vec<Key>,
    ranges: Vec<(Bound<Key>, Bound<Key>)>,
}

impl Drop for Txn {
    fn drop(&mut self) {
        self.shared.write().release(self.snapshot);
        if self.how.mode == TxnMode::Locking {
            *self.shared.locked() = false;
            self.shared.unlocked.notify_one();
        }
    }
}

fn as_slice(bound: &Bound<Key>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(k) => Bound::Included(k),
        Bound::Excluded(k) => Bound::Excluded(k),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Txn {
    fn begin(shared: &Arc<Shared>, how: Transactions) -> Txn {
        if how.mode == TxnMode::Locking {
            let mut locked = shared.locked();
            while *locked {
                locked = shared.unlocked.wait(locked).unwrap_or_else(PoisonError::into_inner);
            }
            *locked = true;
        }
        let snapshot = shared.write().snapshot();
        let (writes, for_update) = Default::default();
        Txn { shared: Arc::clone(shared), how, snapshot, writes, for_update, read: Vec::new(), ranges: Vec::new() }
    }

    fn tracks_reads(&self) -> bool {
        self.how.isolation == Isolation::Serializable
    }

    /// The last commit that its reads see.
    fn horizon(&self) -> u64 {
        if self.how.isolation >= Isolation::RepeatableRead { self.snapshot } else { u64::MAX }
    }

    fn get(&mut self, key: &[u8], for_update: bool) -> Option<Value> {
        if let Some(own) = self.writes.get(key) {
            return own.clone();
        }
        let map = self.shared.read();
        let value = map.get(key, self.horizon()).cloned();
        if for_update {
            // At a snapshot a newer change has been missed already; its number then refuses the commit.
            let changed = map.changed(key).min(self.horizon());
            self.for_update.entry(key.into()).or_insert(changed);
        }
        drop(map);
        if self.tracks_reads() {
            self.read.push(key.into());
        }
        value
    }

    fn valid(&self, map: &Versions) -> bool {
        let newer = |key: &Key| map.changed(key) > self.snapshot;
        let first = self.how.isolation < Isolation::Snapshot || !self.writes.keys().any(newer);
        let current = self.for_update.iter().all(|(key, seq)| map.changed(key) == *seq);
        // One that only read has read a snapshot: it takes its place in the order there.
        let unread = self.writes.is_empty()
            || !(self.read.iter().any(newer)
                || self.ranges.iter().any(|(a, b)| map.range_changed((as_slice(a), as_slice(b)), self.snapshot)));
        first && current && unread
    }

    fn commit(&mut self) -> Step<()> {
        let mut map = self.shared.write();
        if !self.valid(&map) {
            return Step::Conflict;
        }
        map.apply(self.writes.iter().map(|(k, v)| (&**k, v.clone())));
        Step::Done(())
    }
}

struct MemorySession {
    shared: Arc<Shared>,
    txn: Option<Txn>,
}

impl MemorySession {
    fn txn(&mut self) -> Result<&mut Txn> {
        self.txn.as_mut().ok_or_else(|| Error::failed("memory: no transaction was begun"))
    }

    fn answer(&mut self, key: &[u8], for_update: bool, found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        let value = self.txn()?.get(key, for_update);
        if let Some(v) = &value {
            found(v);
        }
        Ok(Step::Done(value.is_some()))
    }
}

impl Session for MemorySession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_batch(&[(key, value)])
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        self.shared.write().apply(entries.iter().map(|(k, v)| (*k, Some((*v).into()))));
        Ok(())
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.shared.read().get(key, u64::MAX).cloned();
        if let Some(v) = &value {
            found(v);
        }
        Ok(value.is_some())
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let map = self.shared.read();
        for (i, key) in keys.iter().enumerate() {
            each(i, map.get(key, u64::MAX).map(|v| &**v));
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.delete_batch(&[key])
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.shared.write().apply(keys.iter().map(|k| (*k, None)));
        Ok(())
    }

    fn cursor(&mut self, _bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(MemoryCursor::new(&self.shared, u64::MAX, Writes::new())))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        let mut map = self.shared.write();
        let inside = map.from(Bound::Included(start), u64::MAX).take_while(|(k, _)| &***k < end);
        let gone: Vec<Key> = inside.map(|(k, _)| k.clone()).collect();
        map.apply(gone.iter().map(|k| (&**k, None)));
        Ok(())
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        // The old one first: in locking mode the new one would wait for it.
        self.txn = None;
        self.txn = Some(Txn::begin(&self.shared, how));
        Ok(())
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        self.txn()?.writes.insert(key.into(), Some(value.into()));
        Ok(Step::Done(()))
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        self.txn()?.writes.insert(key.into(), None);
        Ok(Step::Done(()))
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.answer(key, false, found)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.answer(key, true, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        let txn = self.txn()?;
        if txn.tracks_reads() {
            let lower = bounds.lower.map_or(Bound::Unbounded, |k| Bound::Included(k.into()));
            txn.ranges.push((lower, bounds.upper.map_or(Bound::Unbounded, |k| Bound::Excluded(k.into()))));
        }
        let (horizon, writes) = (txn.horizon(), txn.writes.clone());
        Ok(Step::Done(Box::new(MemoryCursor::new(&self.shared, horizon, writes))))
    }

    fn commit(&mut self) -> Result<Step<()>> {
        let step = self.txn()?.commit();
        if step == Step::Done(()) {
            self.txn = None;
        }
        Ok(step)
    }

    fn rollback(&mut self) -> Result<()> {
        self.txn()?;
        self.txn = None;
        Ok(())
    }
}

/// Walks the map a chunk at a time, so that a scan neither holds the lock nor takes it for every key.
struct MemoryCursor {
    shared: Arc<Shared>,
    /// The last commit that it sees, and a transaction's own writes over that.
    horizon: u64,
    own: Writes,
    chunk: Vec<(Key, Value)>,
    at: usize,
}

const CHUNK: usize = 64;

impl MemoryCursor {
    fn new(shared: &Arc<Shared>, horizon: u64, own: Writes) -> MemoryCursor {
        MemoryCursor { shared: Arc::clone(shared), horizon, own, chunk: Vec::new(), at: 0 }
    }

    fn fill(&mut self, from: Bound<&[u8]>, count: usize) -> bool {
        let map = self.shared.read();
        let mut theirs = map.from(from, self.horizon).filter(|(k, _)| !self.own.contains_key(*k)).peekable();
        let own = self.own.range::<[u8], _>((from, Bound::Unbounded));
        let mut own = own.filter_map(|(k, v)| Some((k, v.as_ref()?))).peekable();
        let mut chunk = Vec::with_capacity(count);
        while chunk.len() < count {
            let mine_first = match (own.peek(), theirs.peek()) {
                (Some((a, _)), Some((b, _))) => a < b,
                (own, _) => own.is_some(),
            };
            let Some((k, v)) = (if mine_first { own.next() } else { theirs.next() }) else { break };
            chunk.push((k.clone(), Arc::clone(v)));
        }
        drop((own, theirs));
        drop(map);
        (self.chunk, self.at) = (chunk, 0);
        !self.chunk.is_empty()
    }
}

impl Cursor for MemoryCursor {
    fn first(&mut self) -> Result<bool> {
        Ok(self.fill(Bound::Unbounded, CHUNK))
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        // Most seeks are followed by few steps: the next chunk is fetched whole when they go on.
        Ok(self.fill(Bound::Included(key), 1))
    }

    fn next(&mut self) -> Result<bool> {
        self.at += 1;
        if self.at < self.chunk.len() {
            return Ok(true);
        }
        let Some((last, _)) = self.chunk.pop() else { return Ok(false) };
        Ok(self.fill(Bound::Excluded(&last), CHUNK))
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(&self.chunk[self.at].0)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let (k, v) = &self.chunk[self.at];
        Ok((k, v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(isolation: Isolation) -> Transactions {
        Transactions { isolation, mode: TxnMode::Optimistic }
    }

    fn value(s: &mut dyn Session, key: &str) -> Option<String> {
        let mut out = None;
        let step = s.txn_get(key.as_bytes(), &mut |v| out = Some(v.escape_ascii().to_string())).unwrap();
        assert_eq!(step, Step::Done(out.is_some()));
        out
    }

    /// Two sessions on a map with a=1 and b=1.
    fn two() -> (Box<dyn Session>, Box<dyn Session>) {
        let engine = open(&EngineOptions::default()).unwrap();
        let (mut a, b) = (engine.session().unwrap(), engine.session().unwrap());
        a.put_batch(&[(b"a", b"1"), (b"b", b"1")]).unwrap();
        (a, b)
    }

    #[test]
    fn levels_do_what_they_say() {
        use Isolation::*;
        // Both read `a` and write it: the second commit loses an update unless it is refused.
        // Both read both and write one each: the second commit skews unless it is refused.
        for (level, lost_update_refused, skew_refused, repeats) in [
            (ReadUncommitted, false, false, false),
            (ReadCommitted, false, false, false),
            (RepeatableRead, false, false, true),
            (Snapshot, true, false, true),
            (Serializable, true, true, true),
        ] {
            for skew in [false, true] {
                let (mut s, mut t) = two();
                s.begin(how(level)).unwrap();
                t.begin(how(level)).unwrap();
                for session in [&mut s, &mut t] {
                    assert_eq!((value(&mut **session, "a"), value(&mut **session, "b")).0.as_deref(), Some("1"));
                }
                s.txn_put(b"a", b"2").unwrap();
                t.txn_put(if skew { b"b" } else { b"a" }, b"3").unwrap();
                assert_eq!(value(&mut *s, "a").as_deref(), Some("2"), "its own write");
                assert_eq!(s.commit().unwrap(), Step::Done(()));
                if skew {
                    assert_eq!(value(&mut *t, "a").as_deref(), Some(if repeats { "1" } else { "2" }), "{level}");
                }
                let refused = t.commit().unwrap() == Step::Conflict;
                assert_eq!(refused, if skew { skew_refused } else { lost_update_refused }, "{level} skew {skew}");
            }
        }
    }

    #[test]
    fn reads_for_update_are_checked_at_every_level() {
        for level in Isolation::ALL {
            let (mut s, mut t) = two();
            s.begin(how(level)).unwrap();
            assert_eq!(s.txn_get_for_update(b"a", &mut |_| {}).unwrap(), Step::Done(true));
            s.txn_put(b"a", b"2").unwrap();
            t.put(b"a", b"9").unwrap();
            assert_eq!(s.commit().unwrap(), Step::Conflict, "{level}");
            s.rollback().unwrap();
            assert!(s.rollback().is_err() && s.commit().is_err(), "there is none any more");
            s.begin(how(level)).unwrap();
            assert_eq!(s.txn_get_for_update(b"a", &mut |v| assert_eq!(v, b"9")).unwrap(), Step::Done(true));
            s.txn_put(b"a", b"2").unwrap();
            assert_eq!(s.commit().unwrap(), Step::Done(()), "{level}");
        }
    }

    #[test]
    fn cursors_see_own_writes_and_serializable_ones_are_checked() {
        let (mut s, mut t) = two();
        s.begin(how(Isolation::Serializable)).unwrap();
        s.txn_put(b"ab", b"x").unwrap();
        s.txn_delete(b"b").unwrap();
        let bounds = Bounds { lower: Some(b"a"), upper: Some(b"c") };
        let Step::Done(mut cursor) = s.txn_cursor(bounds).unwrap() else { panic!("nothing is in its way") };
        let mut seen = Vec::new();
        let mut valid = cursor.first().unwrap();
        while valid {
            seen.push(cursor.key().unwrap().to_vec());
            valid = cursor.next().unwrap();
        }
        assert_eq!(seen, [&b"a"[..], b"ab"]);
        drop(cursor);
        t.put(b"az", b"phantom").unwrap();
        assert_eq!(s.commit().unwrap(), Step::Conflict);
        s.begin(how(Isolation::Serializable)).unwrap();
        drop(s.txn_cursor(bounds).unwrap());
        s.txn_put(b"d", b"x").unwrap();
        t.put(b"c", b"outside").unwrap();
        assert_eq!(s.commit().unwrap(), Step::Done(()));
    }
}
