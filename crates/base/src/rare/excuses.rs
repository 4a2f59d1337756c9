//! What each long test run cannot reach, and why. A full run fails when it never took a rare path that has no excuse here.

use super::never_taken;
use std::fmt::Write;

/// Rare paths that a run does not take, for one reason.
pub struct Excuse {
    /// The reason, and what takes them instead.
    pub why: &'static str,
    /// Their names.
    pub paths: &'static [&'static str],
}

/// A run of tests, and what it does not reach.
pub struct Run {
    /// Its name.
    pub name: &'static str,
    excuses: &'static [&'static [&'static Excuse]],
}

impl Run {
    /// Why this run does not take the path of that name, if it does not.
    pub fn excuse(&self, name: &str) -> Option<&'static str> {
        self.excuses.iter().copied().flatten().find(|e| e.paths.contains(&name)).map(|e| e.why)
    }

    /// Counts as text, with the excuse beside each path that was not taken.
    pub fn report(&self, counts: &[(&str, u64)]) -> String {
        let taken = counts.iter().filter(|(_, count)| *count > 0).count();
        let mut text = format!("rare paths: {taken} of {} taken\n", counts.len());
        for (name, count) in counts {
            let why = self.excuse(name).filter(|_| *count == 0).map_or(String::new(), |why| format!(" ({why})"));
            let _ = writeln!(text, "{count:>12}  {name}{why}");
        }
        text
    }

    /// # Errors
    /// The names of the paths that were never taken and that have no excuse.
    pub fn check(&self, counts: &[(&str, u64)]) -> Result<(), String> {
        let mut never = never_taken(counts, &[]);
        never.retain(|name| self.excuse(name).is_none());
        if never.is_empty() { Ok(()) } else { Err(format!("{}: never taken: {}", self.name, never.join(", "))) }
    }
}

const OLD_BUILD: Excuse = Excuse {
    why: "takes a directory of an older build: --test engine crash::golden::",
    paths: &["manifest-of-old-build", "log-start-raised-by-chain"],
};
const FAILING_DISK: Excuse = Excuse {
    why: "takes a disk that fails: --test engine sim::",
    paths: &[
        "manifest-rewritten-after-failure",
        "files-of-failed-record",
        "manifest-settled",
        "log-append-failed",
        "log-stopped",
        "background-job-failed",
        "direct-log-broken",
        "ingest-not-logged",
        "ingest-record-failed",
    ],
};
const FULL_DISK: Excuse = Excuse {
    why: "takes a full disk: --test engine sim::, --test process limits::",
    paths: &[
        "disk-reserve-released",
        "direct-log-rewound",
        "log-segment-smaller-for-space",
        "manifest-written-from-ballast",
    ],
};
const POWER_CUT: Excuse = Excuse {
    why: "takes a power cut: --test engine sim::",
    paths: &[
        "log-lost-header",
        "log-lost-name",
        "log-strays-kept",
        "log-release-half-undone",
        "direct-value-torn-at-recovery",
    ],
};
const TORN: Excuse = Excuse {
    why: "takes a write that is cut in its midst, which a kill hardly ever does: --test engine sim::",
    paths: &["manifest-torn-record", "log-torn-tail"],
};
const PANIC: Excuse = Excuse { why: "is a failure here: --test engine sim::", paths: &["background-job-panicked"] };
const DESCRIPTORS: Excuse = Excuse {
    why: "takes a limit of descriptors, which would fail the run's own files too: --test process limits::",
    paths: &["descriptors-ran-out"],
};
const SYNC_WITHOUT_DESCRIPTORS: Excuse = Excuse {
    why: "takes a process without descriptors amid a sync of the log's directory: tests of `wal`",
    paths: &["directory-sync-waited-for-descriptor"],
};
const PIECES: Excuse = Excuse {
    why: "takes a memtable of 64 entries above 256 KiB: --test process memory::",
    paths: &["memtable-sealed-for-pieces"],
};
const INGEST: Excuse = Excuse {
    why: "nothing is ingested here: --test engine api::ingest::",
    paths: &[
        "commit-waited-for-ingest",
        "ingest-below-level-0",
        "ingest-not-logged",
        "ingest-record-failed",
        "recovery-added-files",
        "recovery-skipped-files",
    ],
};
const INGEST_AMID: Excuse = Excuse {
    why: "takes another writer between the keys of a file, and those that ingest keep apart: --test engine api::ingest::",
    paths: &["commit-waited-for-ingest"],
};
const DEAD_SPACE: Excuse = Excuse {
    why: "takes compactions that fall far behind: --test engine concurrency::dead_space::",
    paths: &["writer-held-for-dead-space"],
};
const READER: Excuse = Excuse {
    why: "takes a writer at work while another process opens for reading: --test engine api::read_only::",
    paths: &["read-only-older-manifest", "read-only-overtaken"],
};
const ONE_THREAD: Excuse = Excuse {
    why: "takes two threads at once; one does one job after the other here: --test engine concurrency::, tests of `direct.rs`",
    paths: &[
        "direct-log-sealed-in-hand",
        "direct-log-seal-waited",
        "log-names-synced-together",
        "log-spare-overtaken",
        "memtable-sealed-for-memory",
        "flush-of-dropped-family",
        "compaction-of-dropped-family",
        "compaction-cancelled",
    ],
};
const CHANCE: Excuse = Excuse {
    why: "takes two threads within microseconds of one another: tests of `direct.rs` and of `wal`",
    paths: &["direct-log-sealed-in-hand", "direct-log-seal-waited", "log-names-synced-together", "log-spare-overtaken"],
};
const AT_REST: Excuse = Excuse {
    why: "takes a log at rest, and this run always writes: --test engine model::, --test engine api::small_log::",
    paths: &["log-moved-to-small-segment", "log-spare-shrunk"],
};
const STREAM: Excuse = Excuse {
    why: "no change stream is followed here: --test engine api::changes::",
    paths: &["direct-value-gone-for-stream", "direct-value-moved-before-stream", "log-kept-for-followers"],
};
const NO_STREAM_LATE: Excuse = Excuse {
    why: "takes a change stream that comes late: --test engine api::changes::",
    paths: &["direct-value-gone-for-stream", "direct-value-moved-before-stream"],
};
const NO_STAGED: Excuse = Excuse {
    why: "no value is written in pieces here: --test engine sim::",
    paths: &[
        "staged-value-begun",
        "staged-value-growing",
        "staged-value-given-up",
        "staged-value-ended",
        "recovery-in-doubt-staged",
        "recovery-kept-prepared-values",
        "rolled-back-staged-value-removed",
        "copy-of-staged-value",
    ],
};
const NO_PREPARED: Excuse = Excuse {
    why: "nothing is prepared here: --test engine sim::",
    paths: &["recovery-in-doubt", "prepared-logged-again", "log-start-moved-without-flush"],
};
const ONE_FAMILY: Excuse = Excuse {
    why: "the families are the same from the beginning to the end: --test engine sim::, --test engine concurrency::dropped_amid::",
    paths: &[
        "family-dropped-with-data",
        "flush-of-dropped-family",
        "compaction-of-dropped-family",
        "recovery-skipped-dropped",
    ],
};
const SMALL_RECORDS: Excuse = Excuse {
    why: "takes a record that is larger than a log segment: --test engine sim::",
    paths: &["log-record-in-own-segment", "log-spare-grown"],
};
const LITTLE_MEMORY: Excuse = Excuse {
    why: "takes more data than memory or the log may hold: --test engine sim::, model::",
    paths: &["recovery-flushed", "memtable-sealed-for-log", "memtable-sealed-for-memory"],
};
const CANCELLED: Excuse = Excuse {
    why: "takes a close amid a compaction, and most ends here are kills: --test engine model::",
    paths: &["compaction-cancelled"],
};
const CACHE: Excuse = Excuse {
    why: "takes more data than the block cache has room for: --test engine sim::",
    paths: &["cache-partition-filled"],
};
const PARTITIONS: Excuse = Excuse {
    why: "takes indexes and filters that are larger than memory, and larger than 4 KiB each: --test engine api::memory_limit::",
    paths: &["tables-partitioned", "table-partition-read"],
};
const REPEATED: Excuse = Excuse {
    why: "takes a transaction in doubt for longer than the log may grow: --test engine sim::",
    paths: &["prepared-logged-again", "log-start-moved-without-flush"],
};
const AFTER_ROTATION: Excuse = Excuse {
    why: "takes a commit that a rotation of memtables overtakes: --test engine sim::, tests of `direct.rs`",
    paths: &["direct-value-after-rotation"],
};

/// What the simulation does not reach, with its one thread.
const SIMULATED: &[&Excuse] =
    &[&ONE_THREAD, &OLD_BUILD, &INGEST_AMID, &DEAD_SPACE, &READER, &PIECES, &SYNC_WITHOUT_DESCRIPTORS, &PARTITIONS];

/// What a run does not reach whose disk neither fails nor fills nor loses power.
const SOUND_DISK: &[&Excuse] = &[
    &OLD_BUILD,
    &FAILING_DISK,
    &FULL_DISK,
    &POWER_CUT,
    &TORN,
    &PANIC,
    &DESCRIPTORS,
    &SYNC_WITHOUT_DESCRIPTORS,
    &PIECES,
    &DEAD_SPACE,
    &CHANCE,
    &PARTITIONS,
];

/// What a run does not reach in which real processes only write small batches and are killed.
const KILLED: &[&Excuse] = &[
    &INGEST,
    &READER,
    &AT_REST,
    &STREAM,
    &NO_STAGED,
    &SMALL_RECORDS,
    &LITTLE_MEMORY,
    &CANCELLED,
    &CACHE,
    &AFTER_ROTATION,
];

/// Long lives of one database in the simulation, `--test engine sim::lives::`.
pub const LIVES: Run = Run { name: "lives", excuses: &[SIMULATED] };

/// Power cuts in the simulation, `--test engine sim::cuts::`.
pub const CUTS: Run = Run { name: "power cuts", excuses: &[SIMULATED, &[&DESCRIPTORS]] };

/// Errors of the disk in the simulation, `--test engine sim::faults::`.
pub const FAULTS: Run = Run { name: "errors of the disk", excuses: &[SIMULATED] };

/// One script under many sets of options, `--test engine model::`.
pub const MODEL: Run = Run {
    name: "option sets",
    excuses: &[SOUND_DISK, &[&INGEST, &READER, &NO_STREAM_LATE, &NO_STAGED, &REPEATED, &AFTER_ROTATION]],
};

/// Real SIGKILLs, `--test process kill_nine::`.
pub const KILL_NINE: Run = Run { name: "kill_nine", excuses: &[SOUND_DISK, KILLED, &[&NO_PREPARED]] };

/// Histories across restarts, `--test engine concurrency::history::`.
pub const HISTORIES: Run =
    Run { name: "histories across restarts", excuses: &[SOUND_DISK, KILLED, &[&REPEATED, &ONE_FAMILY]] };

/// `cargo xtask torture`.
pub const TORTURE: Run = Run { name: "torture", excuses: &[SOUND_DISK, &[&INGEST_AMID, &AT_REST]] };

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rare::PATHS;

    #[test]
    fn excuses_name_paths_that_there_are_and_a_run_fails_on_others() {
        let runs = [LIVES, CUTS, FAULTS, MODEL, KILL_NINE, HISTORIES, TORTURE];
        for run in &runs {
            for path in run.excuses.iter().copied().flatten().flat_map(|e| e.paths) {
                assert!(PATHS.iter().any(|p| p.name == *path), "{}: no path {path}", run.name);
            }
            let all: Vec<_> = PATHS.iter().map(|p| (p.name, 1)).collect();
            assert_eq!(run.check(&all), Ok(()));
            let none: Vec<_> = PATHS.iter().map(|p| (p.name, 0)).collect();
            let never = run.check(&none).unwrap_err();
            assert!(never.contains("log-segment-released") && !never.contains("manifest-of-old-build"), "{never}");
            assert!(run.report(&none).contains("manifest-of-old-build (takes a directory of an older build"));
        }
        // A run that never takes a path takes none that needs it.
        let needs = [
            ("staged-value-begun", "staged-value-growing"),
            ("staged-value-begun", "staged-value-ended"),
            ("staged-value-begun", "staged-value-given-up"),
            ("staged-value-ended", "rolled-back-staged-value-removed"),
            ("staged-value-ended", "recovery-in-doubt-staged"),
            ("staged-value-ended", "recovery-kept-prepared-values"),
            ("staged-value-ended", "copy-of-staged-value"),
            ("recovery-in-doubt", "recovery-in-doubt-staged"),
            ("tables-partitioned", "table-partition-read"),
        ];
        for (run, (first, then)) in runs.iter().flat_map(|run| needs.map(|needs| (run, needs))) {
            let excused = |path| run.excuse(path).is_some();
            assert!(!excused(first) || excused(then), "{}: {then} is not taken without {first}", run.name);
        }
        // Every path is taken by one of the runs, but for these, which other tests take.
        let by_none = |p: &&crate::rare::RarePath| runs.iter().all(|run| run.excuse(p.name).is_some());
        let by_none: Vec<_> = PATHS.iter().filter(by_none).map(|p| p.name).collect();
        assert_eq!(
            by_none,
            [
                "manifest-of-old-build",
                "log-names-synced-together",
                "log-spare-overtaken",
                "directory-sync-waited-for-descriptor",
                "direct-log-sealed-in-hand",
                "direct-log-seal-waited",
                "log-start-raised-by-chain",
                "writer-held-for-dead-space",
                "memtable-sealed-for-pieces",
                "tables-partitioned",
                "table-partition-read",
                "commit-waited-for-ingest",
            ]
        );
    }
}
