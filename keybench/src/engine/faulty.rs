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
    /// Values of struck keys are stored with a byte in their middle changed.
    DamagesMiddles,
    /// Values of struck keys are another key's.
    SwapsValues,
    /// Values of struck keys are stored without their last byte.
    CutsValues,
    /// Puts of struck keys that are there already are acknowledged and forgotten.
    KeepsOldValues,
    /// Of batches with a struck key only the first half is written.
    HalvesBatches,
    /// Answers for struck keys and for the keys behind them in a `multi_get` are exchanged.
    SwapsAnswers,
    /// A `multi_get` has no answer at all for struck keys.
    SkipsAnswers,
    /// Instead of struck keys a `multi_get` answers the keys before them once more.
    RepeatsAnswers,
    /// Seeks to struck keys stand too early: the answer of a cursor that keeps its block.
    SeeksShort,
    /// Seeks to struck keys land one entry too far.
    SeeksLong,
    /// A cursor that was moved before is not moved by a seek to a struck key: TidesDB 9.3's.
    SeekStays,
    /// Cursors leave struck keys out.
    DropsRows,
    /// Cursors give struck keys after the keys behind them.
    MixesRows,
    /// Cursors give struck keys twice.
    RepeatsRows,
    /// Cursors end before struck keys.
    EndsEarly,
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

    /// How many operations of a batch are done.
    fn part(&self, of: usize, any_struck: bool) -> usize {
        if self.fault == Fault::HalvesBatches && any_struck { of / 2 } else { of }
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
            Fault::DamagesMiddles if struck(key) => {
                let middle = stored.len() / 2;
                stored.iter_mut().skip(middle).take(1).for_each(|b| *b ^= 1);
            }
            Fault::SwapsValues if struck(key) => stored.iter_mut().take(8).for_each(|b| *b = 7),
            Fault::CutsValues if struck(key) => drop(stored.pop()),
            Fault::KeepsOldValues if struck(key) && self.inner.get(key, &mut |_| ())? => return Ok(()),
            _ => {}
        }
        self.inner.put(key, &stored)
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let written = self.trouble.part(entries.len(), entries.iter().any(|(k, _)| struck(k)));
        entries[..written].iter().try_for_each(|(k, v)| self.put(k, v))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.trouble.fault {
            Fault::MissesGets(n) if self.trouble.number() % n == n - 1 => Ok(false),
            _ => self.inner.get(key, found),
        }
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        let mut asked = keys.to_vec();
        if self.trouble.fault == Fault::SwapsAnswers {
            (1..asked.len()).filter(|i| struck(keys[i - 1])).for_each(|i| asked.swap(i - 1, i));
        }
        if self.trouble.fault == Fault::RepeatsAnswers {
            (1..asked.len()).filter(|i| struck(keys[*i])).for_each(|i| asked[i] = keys[i - 1]);
        }
        let trouble = &self.trouble;
        self.inner.multi_get(&asked, &mut |i, value| match trouble.fault {
            Fault::RepeatsAnswers if i > 0 && struck(keys[i]) => each(i - 1, value),
            Fault::SkipsAnswers if struck(keys[i]) => {}
            Fault::MissesGets(n) if trouble.number() % n == n - 1 => each(i, None),
            _ => each(i, value),
        })
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.trouble.write()?;
        if self.trouble.fault == Fault::ForgetsDeletes && struck(key) { Ok(()) } else { self.inner.delete(key) }
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        let deleted = self.trouble.part(keys.len(), keys.iter().any(|k| struck(k)));
        keys[..deleted].iter().try_for_each(|k| self.delete(k))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        let (inner, fault) = (self.inner.cursor(bounds)?, self.trouble.fault);
        Ok(Box::new(FaultyCursor { inner, fault, stands: false, held: None, shows_held: false, again: false }))
    }
}

struct FaultyCursor {
    inner: Box<dyn Cursor>,
    fault: Fault,
    /// Whether it was moved onto an entry.
    stands: bool,
    /// An entry that is given after the one behind it, or for a second time.
    held: Option<(Vec<u8>, Vec<u8>)>,
    shows_held: bool,
    again: bool,
}

impl FaultyCursor {
    /// After the engine's cursor was moved: `valid` is what it said.
    fn arrive(&mut self, mut valid: bool, by_next: bool) -> Result<bool> {
        (self.held, self.shows_held, self.again) = (None, false, false);
        if valid && struck(self.inner.key()?) {
            match self.fault {
                Fault::DropsRows => {
                    while valid && struck(self.inner.key()?) {
                        valid = self.inner.next()?;
                    }
                }
                Fault::EndsEarly if by_next => valid = false,
                Fault::RepeatsRows => self.again = true,
                Fault::MixesRows => {
                    let (key, value) = self.inner.entry()?;
                    self.held = Some((key.to_vec(), value.to_vec()));
                    self.shows_held = !self.inner.next()?;
                }
                _ => {}
            }
        }
        self.stands = valid;
        Ok(valid)
    }
}

impl Cursor for FaultyCursor {
    fn first(&mut self) -> Result<bool> {
        let valid = self.inner.first()?;
        self.arrive(valid, false)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        let valid = match self.fault {
            Fault::SeekStays if self.stands && struck(key) => return Ok(true),
            Fault::SeeksShort if struck(key) => self.inner.first()?,
            Fault::SeeksLong if struck(key) => self.inner.seek(key)? && self.inner.next()?,
            _ => self.inner.seek(key)?,
        };
        self.arrive(valid, false)
    }

    fn next(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.again) {
            return Ok(true);
        }
        if self.held.is_some() && !self.shows_held {
            self.shows_held = true;
            return Ok(true);
        }
        let valid = self.inner.next()?;
        self.arrive(valid, true)
    }

    fn key(&mut self) -> Result<&[u8]> {
        Ok(self.entry()?.0)
    }

    fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        match &self.held {
            Some((key, value)) if self.shows_held => Ok((key, value)),
            _ => self.inner.entry(),
        }
    }
}
