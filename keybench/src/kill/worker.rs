//! The process that is killed: opens the store, lists what it holds, and when that was found to be right runs the workload
//! until it is killed.

use super::listing;
use super::plant::{Faulty, Plant};
use super::record::Recorder;
use crate::child;
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::lua::point::{self, Spec};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What the process gets at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Number of the run.
    pub run: u64,
    /// What to run on which store.
    pub work: Spec,
    /// Where it writes down what it does.
    pub journals: PathBuf,
    /// The file with the keys that may be gone: they are got even if a scan does not show them.
    pub asked: PathBuf,
    /// The file for what the store holds.
    pub listing: PathBuf,
    /// A fault to be found.
    pub plant: Option<Plant>,
}

/// What it gets once its listing was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Run the workload.
    Work,
    /// Close the store and end.
    Close,
}

/// What it tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// It begins to open the store.
    Opening,
    /// The store is open.
    Opened { seconds: f64 },
    /// What it holds is listed.
    Listed { keys: u64, wrong: Vec<String> },
    /// The data set is loaded.
    Loaded,
    /// The store is closed.
    Closed,
    /// It cannot go on.
    Failed(String),
    /// The engine is not on this machine.
    Unavailable(String),
    /// The user's mistake.
    Usage(String),
}

/// The process's side.
pub fn child_main() -> Result<()> {
    let order: Order = child::read_spec()?;
    match work(&order) {
        Ok(()) => Ok(()),
        Err(Error::Unavailable(m)) => child::send(&Message::Unavailable(m)),
        Err(Error::Usage(m)) => child::send(&Message::Usage(m)),
        Err(e) => child::send(&Message::Failed(e.to_string())),
    }
}

fn work(order: &Order) -> Result<()> {
    let spec = &order.work;
    child::send(&Message::Opening)?;
    let start = Instant::now();
    let engine = engine::registry::open(&spec.engine, &spec.dir, &spec.options)?;
    child::send(&Message::Opened { seconds: start.elapsed().as_secs_f64() })?;
    let (keys, wrong) = listing::write(&*engine, &order.listing, &listing::asked(&order.asked)?)?;
    child::send(&Message::Listed { keys, wrong })?;
    if child::read_spec::<Next>()? == Next::Close {
        engine.close()?;
        return child::send(&Message::Closed);
    }
    let loaded = Arc::new(AtomicBool::new(spec.seed_threads == 0));
    let faulty = match order.plant {
        // A loader that stops half-way never comes to the workload.
        Some(plant) => Box::new(Faulty::new(engine, plant, Arc::clone(&loaded))),
        None => engine,
    };
    let recorded: Box<dyn Engine> = Box::new(Recorder::new(faulty, order.journals.clone(), order.run));
    let recorded = Cell::new(Some(recorded));
    let take = |_: &std::path::Path| recorded.take().ok_or_else(|| Error::failed("a store can be opened only once"));
    point::run(spec, &take, &mut |message| match message {
        point::Message::Seeded(_) => {
            // Relaxed: the threads of the workload are started afterwards.
            loaded.store(true, Ordering::Relaxed);
            child::send(&Message::Loaded)
        }
        _ => Ok(()),
    })
}
