//! Counters of rare paths: how often a run took the code that most runs never reach.
//!
//! A count of kills or cuts says little while the code that a bug sits in runs once in a thousand of them. Each row of
//! [`PATHS`] is such a place. The engine counts it with [`rare!`](crate::rare!); tests draw thresholds at random that make
//! these paths common, print the counts at their end, and the full runs fail when a path was never taken that has no excuse in
//! [`excuses`].
//!
//! The counters belong to the process, not to a database. Counting costs one relaxed addition on a path that is rare, and
//! nothing elsewhere.
//!
//! To add one: a row here, and `rare!("name")` in the engine (a name that is not in the table does not compile).

pub mod excuses;

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rare path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RarePath {
    /// Its name, for [`rare!`](crate::rare!).
    pub name: &'static str,
    /// What happens there.
    pub what: &'static str,
}

macro_rules! paths {
    ($($name:literal: $what:literal;)*) => {
        /// All rare paths.
        pub const PATHS: &[RarePath] = &[$(RarePath { name: $name, what: $what }),*];
    };
}

paths! {
    // The manifest.
    "manifest-rewritten": "the manifest had grown too long and was written anew";
    "manifest-rewritten-after-failure": "an append had failed, so the manifest was written anew";
    "files-of-failed-record": "a job made files whose manifest record failed";
    "manifest-settled": "the last record of the manifest had failed, so a close or the next job wrote it anew";
    "manifest-switch-in-doubt": "the rename that makes a manifest the current one failed and may have happened";
    "manifest-not-written-again": "there was no space to write the manifest over itself";
    "manifest-snapshot-split": "the snapshot in a new manifest takes several records";
    "manifest-torn-record": "an open found the manifest's last record torn";
    "manifest-of-old-build": "an open read a manifest of a build that let the log's start fall";
    // The log.
    "log-segment-recycled": "a released log segment became the spare";
    "log-segment-made-late": "a commit had to make its log segment, because there was no spare";
    "log-segment-without-durable-name": "a segment became the active one before its name was durable";
    "log-name-synced-by-leader": "a group commit had to make a segment's name durable";
    "log-names-synced-together": "a segment's name was made durable by another thread's sync of the directory";
    "log-spare-overtaken": "a spare was made while a commit made and used a later segment, so it is never used";
    "log-lost-name": "recovery left out a segment whose name a power cut had taken";
    "log-record-in-own-segment": "a record that is larger than a segment got one of its own size";
    "log-segment-smaller-for-space": "the disk had no space for a whole log segment, so a smaller one was made";
    "log-spare-grown": "the spare was too small for a record and was made longer";
    "log-spare-prefilled": "the spare was filled with zeros because the log is synced often";
    "log-segments-grown": "the next log segment was made larger than the one before";
    "log-spare-shrunk": "a large spare was deleted from a log at rest";
    "log-moved-to-small-segment": "the log moved to a small segment, so that the large one could go";
    "log-segment-released": "the oldest log segment was given up";
    "log-release-half-undone": "recovery passed over segments that a power cut brought back amid their release";
    "log-stray-released": "a segment that recovery had left out of the chain was given up";
    "log-strays-kept": "strays had to stay because no new segment was durable yet";
    "log-kept-for-followers": "a segment stayed although recovery did not need it";
    "log-torn-tail": "recovery left out a torn tail";
    "log-lost-header": "recovery left out a segment whose header a power cut had taken";
    "log-append-failed": "an append failed half-way, and its header was removed";
    "log-stopped": "the log was stopped for good";
    // Files.
    "directory-sync-waited-for-descriptor": "no descriptor was left to sync a directory that a commit waited for";
    "descriptors-ran-out": "cached tables were closed, because the process had no file descriptor left for another";
    // Values that are written once.
    "direct-log-sealed-in-hand": "a writer found the value log that it had in hand sealed";
    "direct-log-seal-waited": "a flush waited for a value that was being written";
    "direct-log-broken": "a flush moved values because a write to their log, or its sync, had failed";
    "direct-log-rewound": "a value that did not fit on the disk was taken back out of its log";
    "direct-value-not-worth-a-sync": "a durable commit had large values, but too few to sync a second file for";
    "direct-log-not-begun": "a large value went through the log, because too many files are open for another value log";
    "direct-log-spare-taken": "a value log that was made ahead got its first value";
    "direct-log-rotated": "a value log was as large as it may be, so the next value went to another";
    "direct-value-uncopied": "a large value was put by itself, without a copy in a batch";
    "direct-value-after-rotation": "a memtable took a pointer into a value log that an earlier one owns";
    "direct-value-torn-at-recovery": "the log ends before a record whose value a power cut took";
    "direct-value-gone-for-stream": "a change stream came too late for a value";
    "direct-value-moved-before-stream": "a change stream found a value where it had been moved to";
    "staged-value-begun": "a value that is written in pieces outgrew memory and got a file";
    "staged-value-growing": "a piece of a value went to its file, and more are to come";
    "rolled-back-staged-value-removed": "the end of a rolled back transaction was synced, and its staged values went";
    "recovery-in-doubt-staged": "recovery found a transaction in doubt that has staged values";
    "recovery-kept-prepared-values": "recovery met prepares with staged values, and no value is lost that is needed";
    "copy-of-staged-value": "a checkpoint or backup copied a staged value of a transaction in doubt";
    "staged-value-given-up": "a value in pieces was given up, with its writer, batch or transaction, and its file is to go";
    "staged-value-ended": "a value in pieces is in its file as a whole, and nothing refers to it yet";
    "direct-log-orphan-removed": "recovery gave up a value log that the manifest does not name";
    // Recovery.
    "recovery-wrote-again": "recovery wrote files over themselves, because an earlier sync may have failed";
    "recovery-flushed": "recovery flushed a memtable because memory ran out";
    "recovery-removed-orphan": "recovery removed a file that nothing names";
    "recovery-in-doubt": "recovery found a transaction in doubt";
    "recovery-skipped-flushed": "recovery skipped a logged operation that was in a table already";
    "recovery-skipped-dropped": "recovery skipped a logged operation of a dropped family";
    "recovery-of-closed-log": "recovery read a log that had been closed";
    "log-start-raised-by-chain": "recovery took the log's start from the oldest segment that there is";
    // Families and memtables.
    "first-write-to-idle-family": "the first entry of a memtable came after the log had been released past its creation";
    "memtable-sealed-for-log": "a memtable was sealed because it pinned too long a log";
    "writer-held-for-dead-space": "a writer was held until a compaction gave dead space of value logs back";
    "memtable-sealed-for-memory": "a memtable was sealed because writers waited for memory";
    "memtable-sealed-for-pieces": "a memtable was sealed because it can name no more pieces of memory";
    "cache-partition-filled": "a partition of the block cache became full for the first time";
    "value-cached": "a value of a value log entered the block cache";
    "tables-partitioned": "the indexes and filters of all tables did not fit into memory, and were partitioned";
    "table-partition-read": "a partition of an index or filter was read, because it was not in memory";
    "family-dropped-with-data": "a family was dropped whose memtables held entries";
    // Flush and compaction.
    "flush-synced-log-first": "a flush had to sync the log for older commits of other families";
    "flush-of-dropped-family": "a flush ended after its family was dropped";
    "compaction-of-dropped-family": "a compaction ended after its family was dropped";
    "file-ended-with-stream": "a file ended where a stream of ascending or descending keys did";
    "compaction-moved-file": "a compaction moved a file without reading it";
    "compaction-split": "a compaction ran as several key ranges at once";
    "compaction-cancelled": "a compaction was cancelled";
    "value-moved": "a job moved a value to another value log, which nothing names yet";
    "value-log-retired": "a value log went because nothing referred to it any more";
    "background-job-failed": "a background job failed and was tried again";
    "background-job-panicked": "a background job panicked, and writes were stopped";
    "disk-reserve-released": "the reserve was given up because the disk was full";
    "manifest-written-from-ballast": "the manifest, or the end of a prepared transaction, met a full disk and took the part of the ballast that is kept for the manifest";
    // Prepared transactions.
    "prepared-logged-again": "a prepare record was written again so that the log could be released";
    "log-start-moved-without-flush": "the log's start moved on although no flush moved it";
    // Ingestion.
    "commit-waited-for-ingest": "a commit between the keys of files waited until these were ingested";
    "ingest-below-level-0": "an ingested file was placed below level 0";
    "ingest-not-logged": "the log took no record of an ingest";
    "ingest-record-failed": "the manifest record of an ingest failed, which the log has";
    "recovery-added-files": "recovery found files in the log that the manifest did not have";
    "recovery-skipped-files": "recovery found files in the log that the manifest had";
    // Reading beside a writer.
    "read-only-older-manifest": "files in the log relied on a newer manifest than a reader had read, which began again";
    "read-only-overtaken": "a read-only open was overtaken by the writer and began again";
}

static COUNTS: [AtomicU64; PATHS.len()] = [const { AtomicU64::new(0) }; PATHS.len()];
static PROCESS_HOOK: OnceLock<Box<dyn Fn(&'static str) + Send + Sync>> = OnceLock::new();

type ThreadHook = Box<dyn FnMut(&'static str)>;

thread_local! {
    static THREAD_HOOK: RefCell<Option<ThreadHook>> = const { RefCell::new(None) };
}

/// Counts a rare path.
#[macro_export]
macro_rules! rare {
    ($name:literal) => {{
        const INDEX: usize = $crate::rare::index_of($name);
        $crate::rare::count(INDEX);
    }};
}

/// The row of a name. Evaluated at compile time, so a name without a row does not compile.
#[doc(hidden)]
pub const fn index_of(name: &str) -> usize {
    let mut i = 0;
    while i < PATHS.len() {
        if is_same(PATHS[i].name.as_bytes(), name.as_bytes()) {
            return i;
        }
        i += 1;
    }
    panic!("no rare path of that name: add it to the table in kingtide_base::rare");
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Counts the path in row `index` and calls the hooks.
#[doc(hidden)]
#[cold]
pub fn count(index: usize) {
    COUNTS[index].fetch_add(1, Ordering::Relaxed); // a statistic
    let name = PATHS[index].name;
    if let Some(hook) = PROCESS_HOOK.get() {
        hook(name);
    }
    // A hook that takes a rare path itself is not called again.
    let hook = THREAD_HOOK.with(|slot| slot.try_borrow_mut().ok().and_then(|mut slot| slot.take()));
    if let Some(mut hook) = hook {
        hook(name);
        THREAD_HOOK.with(|slot| _ = slot.borrow_mut().get_or_insert(hook));
    }
}

/// Has `hook` called whenever this thread takes a rare path: simulations cut the power or kill the process there. `None`
/// takes the hook away.
pub fn on_this_thread(hook: Option<ThreadHook>) {
    THREAD_HOOK.with(|slot| *slot.borrow_mut() = hook);
}

/// Has `hook` called whenever any thread takes a rare path, until the process ends. Only the first call counts.
pub fn on_any_thread(hook: impl Fn(&'static str) + Send + Sync + 'static) {
    _ = PROCESS_HOOK.set(Box::new(hook));
}

/// Returns how often this process took each path, in the order of [`PATHS`].
pub fn counts() -> Vec<(&'static str, u64)> {
    PATHS.iter().zip(&COUNTS).map(|(path, count)| (path.name, count.load(Ordering::Relaxed))).collect()
}

/// The paths of `counts` that were never taken, except those in `excused`.
pub fn never_taken<'a>(counts: &[(&'a str, u64)], excused: &[&str]) -> Vec<&'a str> {
    counts.iter().filter(|(name, count)| *count == 0 && !excused.contains(name)).map(|(name, _)| *name).collect()
}

/// Counts as text: a line that says how many paths were taken, then one for each.
pub fn report(counts: &[(&str, u64)]) -> String {
    let taken = counts.iter().filter(|(_, count)| *count > 0).count();
    let mut text = format!("rare paths: {taken} of {} taken\n", counts.len());
    for (name, count) in counts {
        let _ = writeln!(text, "{count:>12}  {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn names_are_unique_and_counted() {
        for (i, path) in PATHS.iter().enumerate() {
            assert_eq!(index_of(path.name), i, "{} twice", path.name);
            assert!(path.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-' || b.is_ascii_digit()));
            assert!(!path.what.is_empty());
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let list = seen.clone();
        on_this_thread(Some(Box::new(move |name| {
            list.lock().unwrap().push(name);
            rare!("log-torn-tail"); // is counted, and does not call the hook again
        })));
        rare!("log-stopped");
        rare!("log-stopped");
        on_this_thread(None);
        rare!("log-stopped");
        assert_eq!(*seen.lock().unwrap(), ["log-stopped", "log-stopped"]);
        let counts = counts();
        let count_of = |name| counts.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!((count_of("log-stopped"), count_of("log-torn-tail")), (3, 2));
        assert!(never_taken(&counts, &[]).contains(&"ingest-record-failed"));
        assert!(!never_taken(&counts, &["ingest-record-failed"]).contains(&"ingest-record-failed"));
        assert!(report(&counts).contains("3  log-stopped"));
    }
}
