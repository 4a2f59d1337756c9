//! Bugs planted on purpose, to show that the tests would find them: mutation testing with chosen mutants (DeMillo, Lipton,
//! Sayward: "Hints on Test Data Selection", Computer 1978).
//!
//! A test that has never failed proves little. Each row of [`BUGS`] is a mistake that a storage engine can make, and some
//! have made; it sits in the engine at the place where the real one would, as a condition on [`planted!`](macro@crate::planted):
//!
//! ```text
//! if !planted!("log-name-not-synced") { sync_names(config, sync)?; }
//! ```
//!
//! In an ordinary build the condition is the constant `false` and nothing is left of it. A build with `--cfg planted` holds
//! all bugs, asleep; the environment variable `KINGTIDE_PLANTED` wakes one by name. `cargo xtask planted` makes that build,
//! runs the tests without a bug, which must pass, and then once for each bug, when they must fail within a minute. A bug that
//! survives is a gap in the tests: write the test that was missing.
//!
//! To add one: a row here, a condition in the engine (a name that is not in the table does not compile), and `cargo xtask
//! planted <name>`. Choose the fastest test that catches it for a reason, not by chance.

/// A mistake, and what must notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlantedBug {
    /// Its name, for [`planted!`](macro@crate::planted) and `KINGTIDE_PLANTED`.
    pub name: &'static str,
    /// What the engine does wrong while it is awake.
    pub wrong: &'static str,
    /// The promise that it breaks.
    pub breaks: &'static str,
    /// Arguments of `cargo test`: the tests that must fail.
    pub caught_by: &'static str,
}

/// Whether this build holds the bugs.
pub const ENABLED: bool = cfg!(planted);

macro_rules! bugs {
    ($($name:literal: $wrong:literal, breaks $breaks:literal, caught by $caught_by:literal;)*) => {
        /// All planted bugs.
        pub const BUGS: &[PlantedBug] =
            &[$(PlantedBug { name: $name, wrong: $wrong, breaks: $breaks, caught_by: $caught_by }),*];
    };
}

bugs! {
    // The log and recovery.
    "log-name-not-synced":
        "the directory is not synced after a log segment was made",
        breaks "a Power commit survives a power cut",
        caught by "-p kingtide --test api each_level_survives_what_it_names";
    "power-commit-not-synced":
        "a Power commit is acknowledged without a sync of the log",
        breaks "a Power commit survives a power cut",
        caught by "-p kingtide --test api each_level_survives_what_it_names";
    "log-record-unchecked":
        "recovery does not compare the checksum of a log record's payload",
        breaks "a wrong value is never returned",
        caught by "-p kingtide --test crash damage_in_the_middle_of_a_log";
    "damage-taken-for-a-torn-tail":
        "recovery ends the log at any broken record",
        breaks "damage is reported, and acknowledged commits behind it are not dropped",
        caught by "-p kingtide --test crash a_zero_filled_hole";
    "failed-append-leaves-a-hole":
        "after a failed append the next record goes behind it",
        breaks "acknowledged commits after a failed one are recovered",
        caught by "-p kingtide --test crash a_short_write_does_not_hide";
    "failed-sync-ignored":
        "an error of the sync of the log is not looked at",
        breaks "a Power commit is durable, or its caller hears that it is not",
        caught by "-p kingtide --test crash a_sync_that_succeeds_after_one_that_failed";
    "failed-sync-forgotten":
        "the log goes on after a failed sync",
        breaks "nothing is acknowledged after a sync failed",
        caught by "-p kingtide --test crash a_sync_that_succeeds_after_one_that_failed";
    "recovered-log-not-synced":
        "recovery does not sync the log that it read",
        breaks "what recovery has shown stays",
        caught by "-p kingtide --test crash the_log_is_not_truncated_on_reopen";
    // Values that are written once.
    "direct-log-not-synced-first":
        "the log is synced without the value logs that its records point into",
        breaks "a Power commit survives a power cut",
        caught by "-p kingtide --test crash values_are_durable_before_the_log";
    "direct-log-name-not-synced":
        "the directory is not synced after a value log was made for commits",
        breaks "a Power commit survives a power cut",
        caught by "-p kingtide --test crash values_are_durable_before_the_log";
    "direct-value-unchecked-at-recovery":
        "recovery takes a log record although a power cut took the value that it points to",
        breaks "recovery yields a prefix of the commits, all of it readable",
        caught by "-p kingtide --test crash a_value_that_a_power_cut_took";
    "direct-log-not-held":
        "a memtable does not keep the value logs that it points into",
        breaks "what was written can be read",
        caught by "-p kingtide --test crash a_value_log_stays_as_long_as";
    "direct-log-written-after-its-footer":
        "a commit goes on writing to a value log that a flush has sealed",
        breaks "a value log that tables refer to is whole",
        caught by "-p kingtide --lib a_sealed_value_log_takes_no_more";
    "log-released-early":
        "log segments are given up as soon as a flush ends, whatever other families need",
        breaks "an acknowledged commit survives a kill",
        caught by "-p kingtide --test crash the_log_is_kept_until";
    "log-checksum-without-segment":
        "the checksum of a log record does not depend on its segment",
        breaks "what a recycled segment held does not come back",
        caught by "-p kingtide --test crash a_recycled_segment";
    "log-of-prepared-released":
        "the log gives up the records of prepared transactions",
        breaks "a prepared transaction stays in doubt until it is resolved",
        caught by "-p kingtide --test transactions the_log_keeps_what_is_in_doubt";
    "batch-ends-at-a-dropped-family":
        "replay drops the rest of a batch behind an operation on a dropped family",
        breaks "a batch is recovered whole",
        caught by "-p kingtide --test crash no_entry_is_lost_at_a_boundary";
    "flushed-one-too-many":
        "a flush records one sequence number more than the table holds",
        breaks "an acknowledged commit survives a kill",
        caught by "-p kingtide --test crash the_log_is_kept_until";
    "rotated-out-of-order":
        "a frozen memtable is put behind the older ones",
        breaks "a read returns the newest value",
        caught by "-p kingtide --test crash the_log_is_kept_until";
    "rotated-beside-an-insertion":
        "a flush freezes a memtable without the lock under which commits insert",
        breaks "an acknowledged commit survives a close",
        caught by "-p kingtide --test crash an_entry_that_races";
    "published-early":
        "a commit's sequence number is visible before its entries are inserted",
        breaks "what a snapshot shows does not change",
        caught by "-p kingtide --test crash nothing_is_visible_before";
    "log-of-others-not-synced":
        "a flush does not sync the log of older commits of other families",
        breaks "recovery yields a prefix of the commits",
        caught by "-p kingtide --test api a_flush_takes_older_commits";
    "batch-over-families-not-logged":
        "a batch over several families is left out of the log if it asks for no durability",
        breaks "a batch is recovered whole",
        caught by "-p kingtide --test api a_commit_over_two_families";
    // Manifest and files.
    "current-not-synced":
        "CURRENT is renamed into place before its bytes are durable",
        breaks "no open fails after a power cut",
        caught by "-p kingtide --test api each_level_survives_what_it_names";
    "manifest-not-synced":
        "a record of the manifest is not synced",
        breaks "what a flush made durable survives a power cut",
        caught by "-p kingtide --test api each_level_survives_what_it_names";
    "manifest-record-unchecked":
        "the checksum of a manifest record is not compared",
        breaks "damage is reported with file and offset",
        caught by "-p kingtide --test crash a_damaged_manifest_record";
    "manifest-grows-behind-a-failed-record":
        "after a failed append the next manifest record goes behind what it left",
        breaks "a full disk does no lasting harm",
        caught by "-p kingtide --test crash a_full_disk_does_not_corrupt_the_manifest";
    "table-not-synced":
        "a table or value log is installed without a sync",
        breaks "what a flush made durable survives a power cut",
        caught by "-p kingtide --test crash a_table_whose_write_failed";
    "table-name-not-synced":
        "the directory is not synced before a table is installed",
        breaks "what a flush made durable survives a power cut",
        caught by "-p kingtide --test api each_level_survives_what_it_names";
    "merged-tables-not-deleted":
        "the inputs of a merge stay on the disk",
        breaks "reported sizes are those of the files",
        caught by "-p kingtide --test crash reported_sizes_are_what_lies_on_the_disk";
    "live-value-log-deleted":
        "value logs that only deeper levels refer to are deleted",
        breaks "an acknowledged value can be read",
        caught by "-p kingtide --test crash a_full_disk_leaves_no_value_log";
    "value-log-miscounted":
        "the framing of live values is counted twice",
        breaks "dead bytes of a value log are exact",
        caught by "-p kingtide --test crash dead_bytes_of_a_value_log_are_exact";
    "empty-family-name":
        "a family may have an empty name",
        breaks "bad input is an error",
        caught by "-p kingtide --test crash an_empty_family_name";
    // Flushes and merges.
    "tombstone-dropped-early":
        "a merge drops a tombstone though an older run may hold its key",
        breaks "deleted keys stay deleted",
        caught by "-p kingtide --test crash deleted_keys_are_not_resurrected";
    "deleted-range-dropped-early":
        "a merge drops a range tombstone though an older run holds keys of it",
        breaks "deleted keys stay deleted",
        caught by "-p kingtide --test crash deleted_keys_are_not_resurrected";
    "deleted-range-lost-at-a-cut":
        "a range tombstone ends where an output file of a merge ends",
        breaks "deleted keys stay deleted",
        caught by "-p kingtide --test crash a_deleted_range_is_whole";
    "deleted-range-not-flushed":
        "a flush leaves out the range tombstones of its memtable",
        breaks "deleted keys stay deleted",
        caught by "-p kingtide --test crash deleted_keys_are_not_resurrected";
    "merge-ignores-snapshots":
        "a merge keeps only what is visible now",
        breaks "what a snapshot shows does not change",
        caught by "-p kingtide --test crash a_compaction_does_not_ignore";
    "transactions-not-listed":
        "a merge does not ask at which moments running transactions read",
        breaks "what a transaction reads does not change",
        caught by "-p kingtide --test crash an_old_snapshot_outlives";
    "merge-expires-early":
        "a merge takes an entry for expired a millisecond early",
        breaks "an entry lives as long as was said",
        caught by "-p kingtide --test crash an_entry_expires_neither_early_nor_late";
    "merge-input-error-swallowed":
        "a merge takes an input whose first read fails for an empty one",
        breaks "a read error loses nothing",
        caught by "-p kingtide --test crash a_read_error_in_a_compaction";
    // Reads.
    "filter-misses-a-key":
        "the first key of a table is not in its filter",
        breaks "an acknowledged key is found",
        caught by "-p kingtide --test crash no_key_is_lost_when_an_iterator_turns_round";
    "cache-key-without-file":
        "blocks of different files at one offset share a place in the cache",
        breaks "a wrong value is never returned",
        caught by "-p kingtide --test crash no_key_is_lost_when_an_iterator_turns_round";
    "block-prefix-too-long":
        "the prefix that all keys of a block share is recorded one byte too long",
        breaks "an acknowledged key is found",
        caught by "-p kingtide --test crash a_reused_iterator";
    "seek-answered-from-the-loaded-block":
        "a seek to before the loaded block is answered with that block's first key",
        breaks "a seek finds the first key at or behind its target",
        caught by "-p kingtide --test crash a_reused_iterator";
    "turned-iterator-skips":
        "an iterator that turns forward passes a key",
        breaks "a scan shows every key once",
        caught by "-p kingtide --test crash no_key_is_lost_when_an_iterator_turns_round";
    "iterator-error-swallowed":
        "an iterator ends at a read error as at the last key",
        breaks "a scan that lacks keys says so",
        caught by "-p kingtide --test crash an_iterator_does_not_continue";
    "iterator-goes-on-after-error":
        "an iterator can be positioned anew after an error",
        breaks "a scan that lacks keys says so",
        caught by "-p kingtide --test crash an_iterator_does_not_continue";
    "get-sees-one-commit-too-many":
        "a get at a snapshot sees the commit after it",
        breaks "what a snapshot shows does not change",
        caught by "-p kingtide --test crash a_flush_does_not_ignore";
    "staged-space-not-counted":
        "a value that is being written in pieces takes space that no statistic shows",
        breaks "reported sizes are those of the files",
        caught by "-p kingtide --test api staged_values::space_of_a_value";
    "staged-value-not-flushed":
        "a value that was written in pieces is committed while its end is in a buffer",
        breaks "an acknowledged commit survives a kill",
        caught by "-p kingtide --test api value_writer::what_was_committed_survives";
    "staged-value-taken-twice":
        "a value that was written in pieces is committed under two keys",
        breaks "what tables refer to is what a value log holds",
        caught by "-p kingtide --test api value_writer::a_staged_value_is_committed_once";
    "stale-reads-while-installing":
        "a change of files takes the old ones out of the view before it puts the new ones in",
        breaks "a read returns the newest value",
        caught by "-p kingtide --test crash no_point_read_is_stale";
    // Transactions and copies.
    "first-committer-off-by-one":
        "the conflict filter passes over the first commit after a snapshot",
        breaks "of two competing updates one is refused",
        caught by "-p kingtide --test crash snapshot_isolation_loses_no";
    "ranges-not-validated":
        "a serializable commit does not check the ranges that it read",
        breaks "no phantoms",
        caught by "-p kingtide --test transactions a_serializable_reader_of_a_range_sees_no_phantom";
    "reads-not-validated":
        "a serializable commit does not check the keys that it read",
        breaks "no write skew",
        caught by "-p kingtide --test transactions reads_for_update_are_checked";
    "locks-not-asked":
        "a plain write does not ask for the locks of transactions",
        breaks "what a transaction locked does not change",
        caught by "-p kingtide --test transactions locks_keep_others_away";
    "savepoint-leaves-writes":
        "a rollback to a savepoint keeps the writes after it",
        breaks "a savepoint takes back what came after it",
        caught by "-p kingtide --test transactions long_write_sets_are_read_back";
    "prepared-locks-forgotten":
        "recovery does not lock what prepared transactions hold",
        breaks "a prepared transaction can be committed whatever happens",
        caught by "-p kingtide --test transactions what_is_in_doubt_stays_locked";
    "copy-misses-value-logs":
        "a checkpoint or backup leaves out value logs",
        breaks "a copy is the whole database",
        caught by "-p kingtide --test api a_checkpoint_holds_what_was_visible";
    "backup-skips-a-changed-file":
        "a backup takes a file for unchanged if its name and length are",
        breaks "a backup is the database as of one moment",
        caught by "-p kingtide --test api files_of_one_name_and_length";
    "verify-silent-about-a-block":
        "verify passes over a block that it cannot read",
        breaks "verify finds every kind of damage",
        caught by "-p kingtide --test api damage_under_an_open_database";
    // Ingests and clones.
    "ingest-under-older-memtables":
        "an ingest does not flush the memtables that hold keys of its files",
        breaks "a read returns the newest value",
        caught by "-p kingtide --test api ingests_among_everything";
    "ingest-seen-by-older-snapshots":
        "an ingested file gets the sequence number of the commit before it",
        breaks "what a snapshot shows does not change",
        caught by "-p kingtide --test api a_file_says_what_it_holds";
    "ingest-placed-too-deep":
        "an ingested file goes below files with older versions of its keys",
        breaks "a read returns the newest value",
        caught by "-p kingtide --test api ingests_among_everything";
    "ingest-in-the-way-of-a-merge":
        "an ingested file goes where a running merge is about to put its result",
        breaks "files of a run do not overlap",
        caught by "-p kingtide --lib a_running_merge_keeps";
    "ingest-not-in-the-conflict-filter":
        "the conflict filter is not told of an ingest",
        breaks "of two competing updates one is refused",
        caught by "-p kingtide --test api a_transaction_fails_exactly";
    "ingest-not-among-recent-writes":
        "who validates ranges is not told of an ingest meanwhile",
        breaks "no phantoms",
        caught by "-p kingtide --lib an_ingest_during_the_validation";
    "ingest-passes-locks":
        "an ingest does not ask for the locks of transactions",
        breaks "what a transaction locked does not change",
        caught by "-p kingtide --test api locks_are_respected";
    "look-without-a-second":
        "a read over several keys takes a view from before an ingest with a sequence number from after it",
        breaks "what a read shows is of one moment",
        caught by "-p kingtide --lib a_view_is_not_older";
    "log-not-synced-before-an-ingest":
        "the manifest names ingested files before the log of older commits is synced",
        breaks "recovery yields a prefix of the commits",
        caught by "-p kingtide --test api a_power_cut_at_any_write";
    "ingest-releases-the-log":
        "an ingest releases the log of commits that are in memtables",
        breaks "an acknowledged commit survives a kill",
        caught by "-p kingtide --test api the_log_is_kept_over";
    "ingest-in-several-records":
        "an ingest into several families writes a manifest record for each",
        breaks "an ingest is there as a whole or not at all",
        caught by "-p kingtide --test api a_power_cut_at_any_write";
    "ingested-name-not-synced":
        "the directory is not synced before the manifest names an ingested file",
        breaks "what was ingested survives a power cut",
        caught by "-p kingtide --test api a_power_cut_at_any_write";
    "ingested-bytes-not-synced":
        "a file that is taken by a link is not synced",
        breaks "what was ingested survives a power cut",
        caught by "-p kingtide --test api a_file_that_nobody_synced";
    "files-of-a-failed-ingest-stay":
        "tables that were flushed for an ingest stay on the disk when it fails",
        breaks "what fails leaves nothing behind",
        caught by "-p kingtide --lib a_flush_for_an_ingest_that_fails";
    "number-of-an-ingest-forgotten":
        "a new manifest does not hold the last sequence number that the old one was told of",
        breaks "a sequence number is given to one commit",
        caught by "-p kingtide --test api the_number_of_an_ingest";
    "clone-shares-a-file":
        "a clone refers to a table of its source by the same id",
        breaks "a clone and its source are apart",
        caught by "-p kingtide --test api a_clone_has_the_same_contents";
    "clone-renames-a-file":
        "a cloned table is taken for one that was written under its new id",
        breaks "a clone holds what its source held",
        caught by "-p kingtide --test api a_clone_has_the_same_contents";

    // Numbers that fall, and a manifest's rewrite that forgets.
    "log-start-falls":
        "a memtable needs the log from the number at which it was made, and the log start follows it down",
        breaks "a killed database opens",
        caught by "-p kingtide --test crash the_first_write_to_an_idle_family";
    "rewrite-forgets-the-log-start":
        "the snapshot in a rewritten manifest has no log start",
        breaks "a rewritten manifest says what the one before said",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-what-is-flushed":
        "the snapshot in a rewritten manifest does not say up to where families are flushed",
        breaks "recovery does not replay what is in tables",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-file-ids":
        "the snapshot in a rewritten manifest does not say which file ids are taken",
        breaks "file ids are never reused",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-family-ids":
        "the snapshot in a rewritten manifest does not say which family ids are taken",
        breaks "ids of dropped families are never reused",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-a-value-log":
        "the snapshot in a rewritten manifest leaves a value log out",
        breaks "the files of live values are kept",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-options":
        "the snapshot in a rewritten manifest has no options of families",
        breaks "options of a family are persistent",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "rewrite-forgets-that-the-log-began":
        "the snapshot in a rewritten manifest does not say which log segment must be there",
        breaks "a lost log is noticed",
        caught by "-p kingtide --test crash a_rewritten_manifest_says_all";
    "numbers-given-out-again":
        "after a power cut, sequence numbers below the log start are given out again",
        breaks "an acknowledged commit is not in a released segment",
        caught by "-p kingtide --test crash numbers_below_the_log_start";
    "log-start-of-an-old-build-kept":
        "recovery vouches for a log start that it did not check against the log",
        breaks "a database of an older build stays usable",
        caught by "-p kingtide --test crash a_log_start_that_fell";
    "panic-in-a-job-forgotten":
        "the panic of a background job is an error like any other, and the job is tried again",
        breaks "a panic stops writes",
        caught by "-p kingtide --test crash a_panic_in_a_job";
    "failed-open-keeps-the-lock":
        "an open that fails at its end keeps its threads and the lock",
        breaks "a failed open can be tried again",
        caught by "-p kingtide --test crash an_open_that_cannot_start";
}

/// Whether the planted bug of that name is awake: the constant `false` in an ordinary build.
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        $crate::planted::ENABLED && {
            const INDEX: usize = $crate::planted::index_of($name);
            $crate::planted::is_awake(INDEX)
        }
    };
}

/// The row of a name. Evaluated at compile time, so a name without a row does not compile.
#[doc(hidden)]
pub const fn index_of(name: &str) -> usize {
    let mut i = 0;
    while i < BUGS.len() {
        if is_same(BUGS[i].name.as_bytes(), name.as_bytes()) {
            return i;
        }
        i += 1;
    }
    panic!("no planted bug of that name: add it to the table in kingtide_base::planted");
}

pub(crate) const fn is_same(a: &[u8], b: &[u8]) -> bool {
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

/// Whether row `index` is the one that the environment names.
#[doc(hidden)]
#[cfg(planted)]
pub fn is_awake(index: usize) -> bool {
    static AWAKE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *AWAKE.get_or_init(|| {
        #[allow(clippy::disallowed_methods)] // not the engine's configuration
        let name = std::env::var("KINGTIDE_PLANTED").ok().filter(|n| !n.is_empty())?;
        Some(BUGS.iter().position(|b| b.name == name).unwrap_or_else(|| panic!("no planted bug is named '{name}'")))
    }) == Some(index)
}

/// Never, in an ordinary build.
#[doc(hidden)]
#[cfg(not(planted))]
pub const fn is_awake(_index: usize) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete_and_names_unique() {
        for (i, bug) in BUGS.iter().enumerate() {
            assert_eq!(index_of(bug.name), i, "{} twice", bug.name);
            assert!(bug.caught_by.contains("--test ") || bug.caught_by.contains("--lib "), "{}", bug.name);
            assert!(
                bug.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !bug.wrong.is_empty(),
                "{}",
                bug.name
            );
        }
    }
}
