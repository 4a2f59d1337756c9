//! An engine whose sessions write down what they change: the engine under test, with a [`Journal`] beside it.

use super::journal::{Journal, Op, Print, stamps};
use crate::engine::txn::{Step, Transactions};
use crate::engine::{Bounds, Cursor, Engine, Session};
use crate::error::{Error, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// An engine, recorded.
pub struct Recorder {
    engine: Box<dyn Engine>,
    dir: PathBuf,
    run: u64,
    sessions: AtomicU64,
    stamps: Arc<Stamps>,
}

/// Draws the stamps of all sessions.
struct Stamps(AtomicU64);

impl Stamps {
    fn draw(&self) -> u64 {
        // AcqRel: pairs with the same in other threads. A thread that draws a higher number sees all that came before the lower
        // one was drawn, so numbers agree with which of two calls had returned when the other began.
        self.0.fetch_add(1, Ordering::AcqRel)
    }
}

impl Recorder {
    /// Records run number `run` of `engine` in files of `dir`.
    pub fn new(engine: Box<dyn Engine>, dir: PathBuf, run: u64) -> Recorder {
        let stamps = Arc::new(Stamps(AtomicU64::new(stamps(run).0)));
        Recorder { engine, dir, run, sessions: AtomicU64::new(0), stamps }
    }
}

impl Engine for Recorder {
    fn version(&self) -> String {
        self.engine.version()
    }

    fn durability(&self) -> String {
        self.engine.durability()
    }

    fn effective_options(&self) -> Vec<(String, String)> {
        self.engine.effective_options()
    }

    fn session(&self) -> Result<Box<dyn Session>> {
        // Relaxed: only the number matters.
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let journal = Journal::create(&self.dir, self.run, number)?;
        let stamps = Arc::clone(&self.stamps);
        Ok(Box::new(RecordedSession { session: self.engine.session()?, journal, stamps, txn: Vec::new() }))
    }

    fn flush(&self) -> Result<()> {
        self.engine.flush()
    }

    fn compact(&self) -> Result<()> {
        self.engine.compact()
    }

    fn stats(&self) -> Vec<(String, f64)> {
        self.engine.stats()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.engine.close()
    }
}

struct RecordedSession {
    session: Box<dyn Session>,
    journal: Journal,
    stamps: Arc<Stamps>,
    /// What the running transaction has written.
    txn: Vec<Op>,
}

impl RecordedSession {
    /// Does `ops` by `call`. When the call fails they stay in flight: how far they came is unknown.
    fn recorded(&mut self, ops: &[Op], call: impl FnOnce(&mut dyn Session) -> Result<Step<()>>) -> Result<Step<()>> {
        self.journal.intend(self.stamps.draw(), ops)?;
        let step = call(&mut *self.session)?;
        let ended = self.stamps.draw();
        match step {
            Step::Done(()) => self.journal.acknowledge(ended)?,
            Step::Conflict => self.journal.void(ended)?,
        }
        Ok(step)
    }

    fn mutation(&mut self, ops: &[Op], call: impl FnOnce(&mut dyn Session) -> Result<()>) -> Result<()> {
        self.recorded(ops, |s| call(s).map(Step::Done)).map(|_| ())
    }

    /// Remembers what a step of the transaction wrote.
    fn inside(&mut self, op: Op, step: Result<Step<()>>) -> Result<Step<()>> {
        if step == Ok(Step::Done(())) {
            self.txn.push(op);
        }
        step
    }
}

fn put(key: &[u8], value: &[u8]) -> Op {
    Op::Put(key.to_vec(), Print::of(value))
}

fn delete(key: &[u8]) -> Op {
    Op::Delete(key.to_vec())
}

impl Session for RecordedSession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.mutation(&[put(key, value)], |s| s.put(key, value))
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        let ops: Vec<Op> = entries.iter().map(|(k, v)| put(k, v)).collect();
        self.mutation(&ops, |s| s.put_batch(entries))
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.session.get(key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.session.multi_get(keys, each)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.mutation(&[delete(key)], |s| s.delete(key))
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        let ops: Vec<Op> = keys.iter().map(|k| delete(k)).collect();
        self.mutation(&ops, |s| s.delete_batch(keys))
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        self.session.cursor(bounds)
    }

    fn put_ttl(&mut self, _: &[u8], _: &[u8], _: Duration) -> Result<()> {
        Err(Error::Unsupported("keybench kill cannot tell an entry that expired from one that was lost".into()))
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.mutation(&[Op::DeleteRange(start.to_vec(), end.to_vec())], |s| s.delete_range(start, end))
    }

    fn begin(&mut self, how: Transactions) -> Result<()> {
        self.txn.clear();
        self.session.begin(how)
    }

    fn txn_put(&mut self, key: &[u8], value: &[u8]) -> Result<Step<()>> {
        let step = self.session.txn_put(key, value);
        self.inside(put(key, value), step)
    }

    fn txn_delete(&mut self, key: &[u8]) -> Result<Step<()>> {
        let step = self.session.txn_delete(key);
        self.inside(delete(key), step)
    }

    fn txn_get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.session.txn_get(key, found)
    }

    fn txn_get_for_update(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<Step<bool>> {
        self.session.txn_get_for_update(key, found)
    }

    fn txn_cursor(&mut self, bounds: Bounds<'_>) -> Result<Step<Box<dyn Cursor>>> {
        self.session.txn_cursor(bounds)
    }

    fn commit(&mut self) -> Result<Step<()>> {
        let ops = std::mem::take(&mut self.txn);
        self.recorded(&ops, |s| s.commit())
    }

    fn rollback(&mut self) -> Result<()> {
        self.txn.clear();
        self.session.rollback()
    }
}
