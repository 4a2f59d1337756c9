//! Time that moves only as the scenario says, and in which background work happens while a writer is being slowed.

use kingtide::{Clock, Db};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// When a scenario begins, in Unix milliseconds.
pub const BEGIN: u64 = 1_700_000_000_000;
/// By how much the monotonic clock trembles, where it does.
pub const JITTER: Duration = Duration::from_millis(5);
/// Times at which recovered databases are read: short-lived entries are gone, and then all that expire.
pub const LATER: [u64; 2] = [BEGIN + 600_000, BEGIN + 100 * 86_400_000];

/// A clock for one scenario.
pub struct SimClock {
    ns: AtomicU64,
    /// Runs jobs of this database whenever a thread sleeps.
    worker: Mutex<Option<(Db, Rng)>>,
    pub naps: AtomicU64,
    /// How far the monotonic clock and the wall clock stand behind the scenario's time, in nanoseconds.
    monotonic_back: AtomicU64,
    wall_back: AtomicU64,
    /// Up to how many nanoseconds each reading of the monotonic clock may be behind the one before.
    jitter: AtomicU64,
    readings: AtomicU64,
}

impl SimClock {
    pub fn new() -> Arc<SimClock> {
        let ns = AtomicU64::new(BEGIN * 1_000_000);
        let [naps, monotonic_back, wall_back, jitter, readings] = [const { AtomicU64::new(0) }; 5];
        Arc::new(SimClock { ns, worker: Mutex::default(), naps, monotonic_back, wall_back, jitter, readings })
    }

    /// Sets both clocks back by that much from where they would stand, and lets the monotonic one tremble.
    pub fn set_back(&self, monotonic: Duration, wall: Duration, jitter: Duration) {
        self.monotonic_back.store(monotonic.as_nanos() as u64, Ordering::SeqCst);
        self.wall_back.store(wall.as_nanos() as u64, Ordering::SeqCst);
        self.jitter.store(jitter.as_nanos() as u64, Ordering::SeqCst);
    }

    /// The monotonic clock without its trembling, in nanoseconds.
    pub fn monotonic(&self) -> u64 {
        self.ns.load(Ordering::SeqCst) - self.monotonic_back.load(Ordering::SeqCst)
    }

    pub fn advance(&self, d: Duration) {
        self.ns.fetch_add(d.as_nanos() as u64, Ordering::SeqCst);
    }

    /// From now on background jobs run while a thread sleeps, or no longer.
    pub fn work_while_sleeping(&self, worker: Option<(Db, Rng)>) {
        *self.worker.lock().expect("worker") = worker;
    }
}

impl Clock for SimClock {
    fn monotonic_ns(&self) -> u64 {
        let shown = self.monotonic();
        match self.jitter.load(Ordering::SeqCst) {
            0 => shown,
            jitter => shown - mix64(self.readings.fetch_add(1, Ordering::SeqCst)) % jitter,
        }
    }

    /// Histograms take no part in a run: their readings neither tremble nor move what later ones show.
    fn ticks(&self) -> u64 {
        self.ns.load(Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        (self.ns.load(Ordering::SeqCst) - self.wall_back.load(Ordering::SeqCst)) / 1_000_000
    }

    fn sleep(&self, d: Duration) {
        self.advance(d);
        // Taken out meanwhile: a job that sleeps does not run another one.
        let worker = self.worker.lock().expect("worker").take();
        if let Some((db, mut rng)) = worker {
            self.naps.fetch_add(1, Ordering::SeqCst);
            for _ in 0..rng.below(3) {
                let _ = db.run_one_job(); // the next caller sees a failure again
            }
            *self.worker.lock().expect("worker") = Some((db, rng));
        }
    }
}
