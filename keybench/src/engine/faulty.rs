//! For tests: an engine that is right except for one fault.

use super::{Bounds, Cursor, Engine, Session};
use crate::error::{Error, Result};
use kingtide_base::hash::hash64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is wrong. Keys that a fault is about are [`struck`] ones; calls are counted over all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes fail after so many.
    FailsWritesAfter(u64),
    /// The call of this number takes a long time.
    Pauses(u64, Duration),
    /// One get in so many finds nothing.
    MissesGets(u64),
    /// Puts of struck keys are acknowledged and forgotten.
    LosesKeys,
    /// Values of struck keys are stored with their last byte changed.
    DamagesValues,
    /// Values of struck keys are another key's.
    SwapsValues,
    /// Seeks to struck keys stand too early: the answer of a reused cursor that keeps its block.
    SeeksShort,
    /// Deletes of struck keys are acknowledged and forgotten.
    ForgetsDeletes,
}

/// One key in 500.
pub fn struck(key: &[u8]) -> bool {
    hash64(key).is_multiple_of(500)
}

/// An engine with a fault.
pub struct Faulty {
    inner: Box<dyn Engine>,
    fault: Fault,
    calls: Arc<AtomicU64>,
}

impl Faulty {
    /// `inner` with a fault.
    pub fn engine(inner: Box<dyn Engine>, fault: Fault) -> Box<dyn Engine> {
        Box::new(Faulty { inner, fault, calls: Arc::default() })
    }
}

impl Engine for Faulty {
    fn version(&self) -> String {
        self.inner.version()
    }

    fn durability(&self) -> String {
        self.inner.durability()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.inner.effective_options()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        let trouble = Trouble { fault: self.fault, calls: Arc::clone(&self.calls) };
        Ok(Box::new(FaultySession { inner: self.inner.session()?, trouble }))
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    fn stats(&self) -> Vec<(String, f64)> {
        self.inner.stats()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.inner.close()
    }
}

#[derive(Clone)]
struct Trouble {
    fault: Fault,
    calls: Arc<AtomicU64>,
}

impl Trouble {
    /// The number of this call, from 0.
    fn number(&self) -> u64 {
        // Relaxed: a counter that orders nothing.
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Before a write.
    fn write(&self) -> Result<()> {
        match self.fault {
            Fault::FailsWritesAfter(n) if self.number() >= n => return Err(Error::failed("disk on fire")),
            Fault::Pauses(n, time) if self.number() == n => std::thread::sleep(time),
            _ => {}
        }
        Ok(())
    }
}

struct FaultySession {
    inner: Box<dyn Session>,
    trouble: Trouble,
}

impl Session for FaultySession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.trouble.write()?;
        let mut stored = value.to_vec();
        match self.trouble.fault {
            Fault::LosesKeys if struck(key) => return Ok(()),
            Fault::DamagesValues if struck(key) => stored.iter_mut().rev().take(1).for_each(|last| *last ^= 1),
            Fault::SwapsValues if struck(key) => stored.iter_mut().take(8).for_each(|b| *b = 7),
            _ => {}
        }
        self.inner.put(key, &stored)
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        entries.iter().try_for_each(|(k, v)| self.put(k, v))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.trouble.fault {
            Fault::MissesGets(n) if self.trouble.number() % n == n - 1 => Ok(false),
            _ => self.inner.get(key, found),
        }
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.inner.multi_get(keys, each)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.trouble.write()?;
        if self.trouble.fault == Fault::ForgetsDeletes && struck(key) { Ok(()) } else { self.inner.delete(key) }
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        keys.iter().try_for_each(|k| self.delete(k))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(FaultyCursor { inner: self.inner.cursor(bounds)?, fault: self.trouble.fault }))
    }
}

struct FaultyCursor {
    inner: Box<dyn Cursor>,
    fault: Fault,
}

impl Cursor for FaultyCursor {
    fn first(&mut self) -> Result<bool> {
        self.inner.first()
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if self.fault == Fault::SeeksShort && struck(key) { self.inner.first() } else { self.inner.seek(key) }
    }

    fn next(&mut self) -> Result<bool> {
        self.inner.next()
    }

    fn key(&mut self) -> Result<&[u8]> {
        self.inner.key()
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        self.inner.entry()
    }
}
