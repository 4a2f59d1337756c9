//! The reference: an ordered map in memory. It defines what right answers are; its speed says little.

use super::{Bounds, Cursor, Engine, EngineOptions, Session, no_extra_options};
use crate::error::Result;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Key = Box<[u8]>;
type Value = Arc<[u8]>;
type Map = BTreeMap<Key, Value>;

/// The ordered map behind its lock.
#[derive(Default)]
struct Shared {
    map: RwLock<Map>,
}

impl Shared {
    // A panic while the lock is held cannot leave the map half-changed: each change is one insert or remove.
    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
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
        Ok(Box::new(MemorySession(Arc::clone(&self.0))))
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

struct MemorySession(Arc<Shared>);

impl Session for MemorySession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.write().insert(key.into(), value.into());
        Ok(())
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let mut map = self.0.write();
        for (key, value) in entries {
            map.insert((*key).into(), (*value).into());
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.0.read().get(key).cloned();
        if let Some(v) = &value {
            found(v);
        }
        Ok(value.is_some())
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let map = self.0.read();
        for (i, key) in keys.iter().enumerate() {
            each(i, map.get(*key).map(|v| &**v));
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.write().remove(key);
        Ok(())
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        let mut map = self.0.write();
        for key in keys {
            map.remove(*key);
        }
        Ok(())
    }

    fn cursor(&mut self, _bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(MemoryCursor { shared: Arc::clone(&self.0), chunk: Vec::new(), at: 0 }))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        if start < end {
            let range: (Bound<Key>, Bound<Key>) = (Bound::Included(start.into()), Bound::Excluded(end.into()));
            self.0.write().extract_if(range, |_, _| true).for_each(drop);
        }
        Ok(())
    }
}

/// Walks the map a chunk at a time, so that a scan neither holds the lock nor takes it for every key.
struct MemoryCursor {
    shared: Arc<Shared>,
    chunk: Vec<(Key, Value)>,
    at: usize,
}

const CHUNK: usize = 64;

impl MemoryCursor {
    fn fill(&mut self, from: Bound<&[u8]>, count: usize) -> bool {
        let map = self.shared.read();
        let range = map.range::<[u8], _>((from, Bound::Unbounded)).take(count);
        let chunk: Vec<_> = range.map(|(k, v)| (k.clone(), Arc::clone(v))).collect();
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
