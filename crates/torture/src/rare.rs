//! Rare paths: how often children took each, and kills at them.

use crate::messages::say;
use kingtide_base::rare;
use kingtide_base::rare::excuses::TORTURE;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable by which the driver has a child killed at a rare path: `name:n`.
pub const KILL_AT: &str = "KINGTIDE_RARE_KILL";

/// Kills this process at a rare path, if the driver asked for it.
pub fn arm() {
    let Some((name, n)) = std::env::var(KILL_AT).ok().and_then(|text| {
        let (name, n) = text.split_once(':')?;
        Some((name.to_owned(), n.parse::<u64>().ok()?))
    }) else {
        return;
    };
    let taken = AtomicU64::new(0);
    rare::on_any_thread(move |path| {
        if path == name && taken.fetch_add(1, Ordering::SeqCst) + 1 == n {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    });
}

static TOLD: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Reports to the driver the counts that changed since the last report.
pub fn report() {
    let Ok(mut told) = TOLD.lock() else { return };
    let mut lines = Vec::new();
    for (name, count) in rare::counts() {
        if count > 0 && told.insert(name, count) != Some(count) {
            lines.push(format!("R {name} {count}"));
        }
    }
    if !lines.is_empty() {
        say(&lines.join("\n"));
    }
}

fn all(counts: &BTreeMap<String, u64>) -> Vec<(&'static str, u64)> {
    rare::PATHS.iter().map(|path| (path.name, counts.get(path.name).copied().unwrap_or(0))).collect()
}

/// A line for each rare path: how often it was taken, or why it cannot be.
pub fn table(counts: &BTreeMap<String, u64>) -> String {
    TORTURE.report(&all(counts))
}

/// An error if one was never taken that can be.
pub fn check(counts: &BTreeMap<String, u64>) -> Result<(), String> {
    TORTURE.check(&all(counts))
}
