//! Faults planted between the recorder and the engine, to see that the check finds them.

use crate::engine::{Bounds, Cursor, Engine, Session};
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What goes wrong, in what the workload writes after the data set is loaded. Each process begins with a fault, so that few writes before a
/// kill are enough to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Plant {
    /// The first put or batch of a process, and one in a hundred after it, is acknowledged and dropped
    Loss,
    /// A byte is changed in the first put of a process and in one in a hundred after it, or in the first put of such a batch
    Wrong,
    /// The first batch of each thread, and the thread itself, stop half-way
    Half,
}

/// One put or batch in so many is dropped or changed.
const ONE_IN: u64 = 100;

/// An engine with a fault.
pub struct Faulty {
    engine: Box<dyn Engine>,
    plant: Plant,
    /// Whether sessions that are made now have the fault.
    armed: Arc<AtomicBool>,
    /// Puts and batches of all sessions with the fault: they share them out by chance, so that one alone may have few.
    mutations: Arc<AtomicU64>,
}

impl Faulty {
    /// `engine`, whose sessions have the fault if they are made while `armed` is set.
    pub fn new(engine: Box<dyn Engine>, plant: Plant, armed: Arc<AtomicBool>) -> Faulty {
        Faulty { engine, plant, armed, mutations: Arc::default() }
    }
}

impl Engine for Faulty {
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
        let session = self.engine.session()?;
        // Relaxed: the thread that sets it starts the threads that make sessions afterwards.
        if !self.armed.load(Ordering::Relaxed) {
            return Ok(session);
        }
        Ok(Box::new(FaultySession { session, plant: self.plant, mutations: Arc::clone(&self.mutations) }))
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

struct FaultySession {
    session: Box<dyn Session>,
    plant: Plant,
    mutations: Arc<AtomicU64>,
}

impl FaultySession {
    /// Whether the fault strikes a mutation of `ops` operations.
    fn strikes(&mut self, ops: usize) -> bool {
        match self.plant {
            // Relaxed: only the number matters.
            Plant::Loss | Plant::Wrong => self.mutations.fetch_add(1, Ordering::Relaxed).is_multiple_of(ONE_IN),
            Plant::Half => ops > 1,
        }
    }
}

fn changed(value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    match value.last_mut() {
        Some(byte) => *byte ^= 1,
        None => value.push(0),
    }
    value
}

/// Never returns: only a kill ends the thread.
fn stop() -> ! {
    loop {
        std::thread::park();
    }
}

impl Session for FaultySession {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match (self.strikes(1), self.plant) {
            (true, Plant::Loss) => Ok(()),
            (true, Plant::Wrong) => self.session.put(key, &changed(value)),
            _ => self.session.put(key, value),
        }
    }

    fn put_batch(&mut self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        if !self.strikes(entries.len()) {
            return self.session.put_batch(entries);
        }
        match self.plant {
            Plant::Loss => Ok(()),
            Plant::Wrong => {
                let mut wrong = entries.to_vec();
                let value = wrong.first().map(|(_, value)| changed(value)).unwrap_or_default();
                if let Some(first) = wrong.first_mut() {
                    first.1 = &value;
                }
                self.session.put_batch(&wrong)
            }
            Plant::Half => {
                self.session.put_batch(&entries[..entries.len() / 2])?;
                stop()
            }
        }
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.session.get(key, found)
    }

    fn multi_get(&mut self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.session.multi_get(keys, each)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.session.delete(key)
    }

    fn delete_batch(&mut self, keys: &[&[u8]]) -> Result<()> {
        self.session.delete_batch(keys)
    }

    fn cursor(&mut self, bounds: Bounds<'_>) -> Result<Box<dyn Cursor>> {
        self.session.cursor(bounds)
    }
}
