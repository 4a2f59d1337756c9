//! Ends the process when something hangs, and says what.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest that one case may take; on a busy machine `KINGTIDE_HANG_SECONDS` may allow more.
fn limit() -> Duration {
    Duration::from_secs(crate::sim::env("KINGTIDE_HANG_SECONDS").unwrap_or(60))
}

static RUNNING: Mutex<BTreeMap<u64, (String, Instant)>> = Mutex::new(BTreeMap::new());
static NEXT: Mutex<u64> = Mutex::new(0);

/// A case that runs; over when dropped.
pub struct Watched(u64);

impl Drop for Watched {
    fn drop(&mut self) {
        RUNNING.lock().expect("cases").remove(&self.0);
    }
}

/// Watches a case. Its name is what repeats it.
pub fn watch(name: impl Into<String>) -> Watched {
    let id = {
        let mut next = NEXT.lock().expect("number");
        *next += 1;
        if *next == 1 {
            std::thread::spawn(patrol);
        }
        *next
    };
    RUNNING.lock().expect("cases").insert(id, (name.into(), Instant::now()));
    Watched(id)
}

fn patrol() {
    let limit = limit();
    loop {
        std::thread::sleep(limit / 10);
        let running = RUNNING.lock().expect("cases");
        if let Some((name, since)) = running.values().find(|r| r.1.elapsed() > limit) {
            eprintln!("hangs for {:?}: {name}", since.elapsed());
            std::process::abort();
        }
    }
}
