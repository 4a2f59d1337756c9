//! Rare paths: how often children took each, and kills at them.

use crate::child::say;
use kingtide_base::rare;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable by which the driver has a child killed at a rare path: `name:n`.
pub const KILL_AT: &str = "KINGTIDE_RARE_KILL";

/// Paths that this tool cannot take, and why.
const CANNOT: &[(&str, &str)] = &[
    ("manifest-rewritten-after-failure", "the disk does not fail here: crates/kingtide/tests/sim has failing disks"),
    ("manifest-of-old-build", "only with --other-kt"),
    ("manifest-torn-record", "a write to the page cache is hardly ever cut by a kill: sim has torn writes"),
    ("log-strays-kept", "not seen in 7,200 kills; takes a log whose end a power cut took: sim"),
    ("log-start-raised-by-chain", "takes a log start that an old build let fall: --test crash golden::"),
    ("log-torn-tail", "not seen in 7,200 kills: a kill hardly ever cuts a copy into the mapped log: sim"),
    ("log-lost-header", "takes a power cut: sim"),
    ("log-lost-name", "takes a power cut: sim"),
    ("directory-sync-waited-for-descriptor", "takes a process without descriptors: --lib wal::"),
    ("log-append-failed", "takes a failing disk: sim"),
    ("log-stopped", "takes a failing disk: sim"),
    ("background-job-failed", "takes a failing disk: sim"),
    ("background-job-panicked", "is a failure here"),
    ("disk-reserve-released", "takes a full disk: --test process limits::"),
    (
        "ingest-flushed-memtable",
        "takes another writer between the keys of a file; lanes keep apart: --test api ingest::",
    ),
    ("direct-log-broken", "takes a failing disk: sim"),
    ("direct-value-torn-at-recovery", "takes a power cut: sim"),
    ("writer-held-for-dead-space", "takes compactions that fall far behind: --test concurrency dead_space::"),
    ("ingest-record-failed", "takes a failing disk: sim"),
];

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

/// A line for each rare path: how often it was taken, or why it cannot be.
pub fn table(counts: &BTreeMap<String, u64>) -> Vec<String> {
    let line = |path: &rare::RarePath| {
        let count = counts.get(path.name).copied().unwrap_or(0);
        let why = CANNOT.iter().find(|(name, _)| count == 0 && *name == path.name);
        format!("{count:>10}  {}{}", path.name, why.map_or(String::new(), |(_, why)| format!(" ({why})")))
    };
    rare::PATHS.iter().map(line).collect()
}

/// An error if one was never taken that can be.
pub fn check(counts: &BTreeMap<String, u64>) -> Result<(), String> {
    let count = |path: &rare::RarePath| (path.name, counts.get(path.name).copied().unwrap_or(0));
    let counts: Vec<(&str, u64)> = rare::PATHS.iter().map(count).collect();
    let excused: Vec<&str> = CANNOT.iter().map(|(name, _)| *name).collect();
    match rare::never_taken(&counts, &excused) {
        never if never.is_empty() => Ok(()),
        never => Err(format!("rare paths that were never taken: {}", never.join(", "))),
    }
}
