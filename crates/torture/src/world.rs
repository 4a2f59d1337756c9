//! What the threads of a child share.

use crate::args::Orders;
use crate::journal::{Journal, Record};
use crate::messages::{Counts, fail};
use crate::model::{Family, LANES};
use kingtide::{ColumnFamily, Db, Error, ErrorKind, Options};
use kingtide_base::lock::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Threads besides the lanes that are watched: the administrator, the copier, the follower.
const OTHERS: usize = 3;

/// A family that is open.
pub struct Handle {
    pub uid: u32,
    pub family: Family,
    pub cf: ColumnFamily,
}

/// What the threads of a child share.
pub struct World {
    pub orders: Orders,
    /// What the database was opened with.
    pub options: Options,
    pub db: Db,
    pub journal: Journal,
    /// In order of their numbers.
    pub families: RwLock<Arc<Vec<Arc<Handle>>>>,
    /// Families that were dropped or may be about to be.
    pub dropping: Mutex<BTreeSet<u32>>,
    /// Held shared while a unit runs; exclusively by what needs lanes to stand still.
    pub gate: RwLock<()>,
    /// Held by the thread that changes the set of families.
    pub structure: Mutex<()>,
    pub closing: AtomicBool,
    pub flushes: AtomicU64,
    pub counts: Counts,
    /// When each thread last did something, in milliseconds since the start.
    pub beats: Vec<AtomicU64>,
    start: Instant,
}

impl World {
    /// Its clock begins now.
    pub fn new(
        (orders, options): (Orders, Options),
        db: Db,
        journal: Journal,
        handles: Vec<Arc<Handle>>,
        counts: Counts,
    ) -> World {
        World {
            orders,
            options,
            db,
            journal,
            families: RwLock::new(Arc::new(handles)),
            dropping: Mutex::default(),
            gate: RwLock::default(),
            structure: Mutex::default(),
            closing: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            counts,
            beats: (0..LANES + OTHERS).map(|_| AtomicU64::new(0)).collect(),
            start: Instant::now(),
        }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn handles(&self) -> Arc<Vec<Arc<Handle>>> {
        self.families.read().clone()
    }

    pub fn handle(&self, uid: u32) -> Option<Arc<Handle>> {
        self.handles().iter().find(|h| h.uid == uid).cloned()
    }

    pub fn set_handles(&self, change: impl FnOnce(&mut Vec<Arc<Handle>>)) {
        let mut held = self.families.write();
        let mut all = Vec::clone(&held);
        change(&mut all);
        *held = Arc::new(all);
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub fn is_dropping(&self, uid: u32) -> bool {
        self.dropping.lock().contains(&uid)
    }

    pub fn write(&self, record: &Record) {
        if let Err(e) = self.journal.append(record) {
            fail(&e);
        }
    }

    pub fn beat(&self, thread: usize) {
        self.beats[thread].store(self.now(), Ordering::Relaxed);
    }

    /// Whether an error is one that a correct engine may give to work on these families.
    pub fn is_excused(&self, e: &Error, families: impl IntoIterator<Item = u32>) -> bool {
        match e.kind() {
            ErrorKind::Conflict | ErrorKind::Deadlock | ErrorKind::LockTimeout | ErrorKind::Busy => true,
            ErrorKind::Closed | ErrorKind::NotFound | ErrorKind::Cancelled => {
                self.is_closing() || families.into_iter().any(|f| self.is_dropping(f))
            }
            _ => false,
        }
    }
}
