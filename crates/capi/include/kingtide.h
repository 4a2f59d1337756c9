// SPDX-License-Identifier: MIT OR Apache-2.0

#ifndef KINGTIDE_H
#define KINGTIDE_H

// Made by cbindgen from crates/capi/src: change it there, and run KINGTIDE_BLESS=1 cargo test -p kingtide-capi --lib header

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A lock timeout: do not wait at all, but return `KINGTIDE_LOCK_HELD`.
#define KINGTIDE_NO_WAIT -1

// The outcome of a call. The numbers never change; later versions may add some.
typedef enum {
    // The call succeeded.
    KINGTIDE_OK = 0,
    // The operating system refused an operation.
    KINGTIDE_IO = 1,
    // The disk or quota is full. Writes resume by themselves once there is space.
    KINGTIDE_NO_SPACE = 2,
    // Stored bytes fail their checksum or contradict each other.
    KINGTIDE_CORRUPTION = 3,
    // The caller passed an invalid argument: NULL, an empty key, an option out of range.
    KINGTIDE_INVALID_ARGUMENT = 4,
    // No such database, family, file, snapshot, savepoint or transaction. An absent key is not an error.
    KINGTIDE_NOT_FOUND = 5,
    // An object of that name already exists.
    KINGTIDE_EXISTS = 6,
    // Back-pressure, and the caller asked not to wait; or transactions hold too much memory.
    KINGTIDE_BUSY = 7,
    // Another process or handle has the database open.
    KINGTIDE_LOCKED = 8,
    // The file was written in a newer format version than this library can read.
    KINGTIDE_NEWER_FORMAT = 9,
    // An earlier failed write or sync stopped all writes; reads continue to work. The message names the first cause.
    KINGTIDE_POISONED = 10,
    // The database was closed or the family dropped.
    KINGTIDE_CLOSED = 11,
    // The work was cancelled, or the wait interrupted.
    KINGTIDE_CANCELLED = 12,
    // Stored and given options contradict each other, such as two key orders.
    KINGTIDE_INCOMPATIBLE = 13,
    // Another transaction committed, or has locked, data that this one's isolation level does not allow to change. Nothing
    // was written: reset the transaction and run it again.
    KINGTIDE_CONFLICT = 14,
    // This transaction was chosen as the deadlock victim, and was rolled back.
    KINGTIDE_DEADLOCK = 15,
    // Another transaction did not release a lock in time. The transaction remains usable.
    KINGTIDE_LOCK_TIMEOUT = 16,
    // The transaction outlived its timeout and was rolled back.
    KINGTIDE_EXPIRED = 17,
    // The transaction was rolled back at the request of another thread.
    KINGTIDE_ABORTED = 18,
    // The requested state is no longer kept: a compaction dropped the versions, or the log was recycled.
    KINGTIDE_TOO_OLD = 19,
    // The transaction was already committed, rolled back or prepared.
    KINGTIDE_FINISHED = 20,
    // The database or the transaction was opened read-only.
    KINGTIDE_READ_ONLY = 21,
    // Another transaction holds the lock, and this one does not wait (`KINGTIDE_NO_WAIT`). The transaction remains
    // usable, as a statement with NOWAIT or SKIP LOCKED needs.
    KINGTIDE_LOCK_HELD = 22,
    // A defect of the library, or of a callback: it panicked. The outcome of the call is unknown; close the
    // database and open it again.
    KINGTIDE_PANIC = 23,
    // A kind of error that has no number in this list. The message describes it.
    KINGTIDE_OTHER = 24,
} kingtide_status;

// Which effects of other transactions a transaction may see.
typedef enum {
    // The default: `KINGTIDE_SNAPSHOT`.
    KINGTIDE_ISOLATION_DEFAULT = 0,
    // Reads see the newest writes of all transactions, even of those that may still roll back.
    KINGTIDE_READ_UNCOMMITTED = 1,
    // Each read sees the data that was committed when the read began.
    KINGTIDE_READ_COMMITTED = 2,
    // All reads see the data that was committed when the transaction began. Writes are not checked, unless the key was read for
    // update.
    KINGTIDE_REPEATABLE_READ = 3,
    // As repeatable read, and of two concurrent transactions that write the same key only the first can commit.
    KINGTIDE_SNAPSHOT = 4,
    // The result is that of running the transactions one after the other, in the order of their commits.
    KINGTIDE_SERIALIZABLE = 5,
} kingtide_isolation;

// What a commit survives.
typedef enum {
    // As the database's option `durability` says.
    KINGTIDE_DURABILITY_DEFAULT = 0,
    // The death of the process: the commit is handed to the operating system before it returns. No fsync.
    KINGTIDE_DURABILITY_PROCESS = 1,
    // A power cut: fsynced before the commit returns, one fsync for all commits that wait together.
    KINGTIDE_DURABILITY_POWER = 2,
    // Not logged: lost with the process until the memtable is flushed.
    KINGTIDE_DURABILITY_NONE = 3,
} kingtide_durability;

// The mode of a lock.
typedef enum {
    // Other transactions may also hold shared locks.
    KINGTIDE_LOCK_SHARED = 1,
    // No other transaction may hold a lock.
    KINGTIDE_LOCK_EXCLUSIVE = 2,
} kingtide_lock_mode;

// Values of `kingtide_bound.kind`.
typedef enum {
    // No bound.
    KINGTIDE_UNBOUNDED = 0,
    // The key belongs to the range.
    KINGTIDE_INCLUDED = 1,
    // The key does not belong to the range.
    KINGTIDE_EXCLUDED = 2,
} kingtide_bound_kind;

// The kind of an operation.
typedef enum {
    // Sets a key.
    KINGTIDE_CHANGE_PUT = 1,
    // Deletes a key.
    KINGTIDE_CHANGE_DELETE = 2,
    // Deletes a key that was put once.
    KINGTIDE_CHANGE_SINGLE_DELETE = 3,
    // Deletes all keys from `key` up to, and without, `value`.
    KINGTIDE_CHANGE_DELETE_RANGE = 4,
} kingtide_change_kind;

// The severity of a problem.
typedef enum {
    // Information: a normal state after a crash.
    KINGTIDE_SEVERITY_INFO = 0,
    // Nothing is lost, but the state is not one that the engine leaves behind.
    KINGTIDE_SEVERITY_WARNING = 1,
    // Damage: data cannot be read, or would be read incorrectly.
    KINGTIDE_SEVERITY_ERROR = 2,
} kingtide_severity;

// A directory of backups, of any databases. Any number of threads may use it at once.
typedef struct kingtide_backup kingtide_backup;

// The numbers of backups, ascending. Does not change; any thread may read it.
typedef struct kingtide_backup_list kingtide_backup_list;

// Operations over any families, to be committed at once with `kingtide_db_write`, which fails with CLOSED if one of the families was
// dropped; adding operations does not. For one thread at a time.
typedef struct kingtide_batch kingtide_batch;

// A commit: its operations, in the order in which they were made. Does not change; any thread may read it.
typedef struct kingtide_change_record kingtide_change_record;

// The commits of a database in order, read from the log. For one thread at a time.
typedef struct kingtide_change_stream kingtide_change_stream;

// An open database. All functions on it may be called from many threads at once, except `kingtide_db_free`.
typedef struct kingtide_db kingtide_db;

// A deadlock: transactions each of which waits for the next, and the last for the first. The first is the victim, which is going to
// be rolled back. Valid during the call that receives it.
typedef struct kingtide_deadlock kingtide_deadlock;

// The error of a failed call. It belongs to the caller, who frees it. May be read from any thread.
typedef struct kingtide_error kingtide_error;

// A handle of a column family. Any number of threads may use it at once. It does not keep the database open: after that
// was closed or the family dropped, calls return `KINGTIDE_CLOSED`.
typedef struct kingtide_family kingtide_family;

// A cursor over the keys of a family, in order, in both directions. It is invalid until a seek positions it. It owns the data that
// it reads, so flushes, compactions and drops do not affect it. A transaction's cursor also shows its earlier writes, and ends
// with it. For one thread at a time.
typedef struct kingtide_iter kingtide_iter;

// A list of keys. Does not change; any thread may read it.
typedef struct kingtide_keys kingtide_keys;

// A list of held locks. Does not change; any thread may read it.
typedef struct kingtide_lock_list kingtide_lock_list;

// A list of waiting requests. Does not change; any thread may read it.
typedef struct kingtide_lock_wait_list kingtide_lock_wait_list;

// Options for opening a database or creating a family. For one thread at a time. May be freed after the call that uses it.
typedef struct kingtide_options kingtide_options;

// A list of transactions in doubt. Does not change; any thread may read it.
typedef struct kingtide_prepared_list kingtide_prepared_list;

// A reader of one value, which may be larger than memory. It reads the value as of the moment when it was opened, regardless
// of later changes of the key, and keeps its file until it is freed. For one thread at a time.
typedef struct kingtide_reader kingtide_reader;

// A consistent view of all families as of one moment. The versions that it sees are kept until it is freed. Any number of threads may
// use it at once.
typedef struct kingtide_snapshot kingtide_snapshot;

// A writer of a sorted file outside of any database. Keys must be added in ascending order, each once. For one thread at a time.
typedef struct kingtide_sorted_writer kingtide_sorted_writer;

// A finished value that waits for the commit that puts it under a key. Its file is removed when this, and every batch
// and transaction that has the value, is freed without a commit. May be used by any number of threads at once.
typedef struct kingtide_staged_value kingtide_staged_value;

// All statistics at one moment. Does not change; any thread may read it.
typedef struct kingtide_stats kingtide_stats;

// A list of strings. Does not change; any thread may read it.
typedef struct kingtide_strings kingtide_strings;

// Text made by the library. Does not change; any thread may read it.
typedef struct kingtide_text kingtide_text;

// A commit that is visible to all but may not be durable yet. For one thread at a time.
typedef struct kingtide_ticket kingtide_ticket;

// A transaction: operations that take effect together or not at all. One thread at a time may use it, and it may move between
// threads; other threads may reach it only through a `kingtide_txn_handle`.
//
// After CONFLICT, DEADLOCK or LOCK_TIMEOUT nothing was written: reset the transaction and run it again. A deadlock victim, and a
// transaction whose commit or prepare failed with a conflict, is already rolled back; so is a transaction after ABORTED or EXPIRED.
// After any other error of a call before the commit, the transaction remains usable; `kingtide_txn_commit` says what its own
// errors mean.
typedef struct kingtide_txn kingtide_txn;

// Refers to a running transaction from any thread, any number at once. It may outlive the transaction, and refers to
// nothing once that ended or was reset.
typedef struct kingtide_txn_handle kingtide_txn_handle;

// Running and prepared transactions. Does not change; any thread may read it.
typedef struct kingtide_txn_list kingtide_txn_list;

// The result of a read: a value, or the fact that there is none. Create one with `kingtide_value_new` and use it for many
// reads; each replaces the previous result. It may keep a block of the cache in memory, so do not keep many without need. For one
// thread at a time.
typedef struct kingtide_value kingtide_value;

// A writer of one value, which may be larger than memory. No read finds the value before it is finished, put under a key, and
// committed. For one thread at a time.
typedef struct kingtide_value_writer kingtide_value_writer;

// The result of a verification. Does not change; any thread may read it.
typedef struct kingtide_verify_report kingtide_verify_report;

// One operation of a commit. Its pointers are valid as long as the record.
typedef struct {
    // `sizeof(kingtide_change)`, set by the caller.
    size_t size;
    // One of `kingtide_change_kind`.
    int32_t kind;
    // The family's number: see `kingtide_family_id`.
    uint32_t family;
    // The family's current name; NULL if it was dropped since.
    const char *family_name;
    // The key; for a range, its start.
    const void *key;
    // Its length.
    size_t key_len;
    // The value; for a range, its end.
    const void *value;
    // Its length; 0 for deletes.
    size_t value_len;
    // When the entry expires, in milliseconds since 1970; 0 if it does not.
    uint64_t expires_at_ms;
} kingtide_change;

// The commits that a stream shows. If all members except `size` are zero: every logged commit, as soon as it is committed.
typedef struct {
    // `sizeof(kingtide_change_options)`.
    size_t size;
    // Not 0: show only commits that survive a power cut.
    int32_t durable_only;
    // Not 0: commits that are not in the log (made without durability, or ingested) are shown as records without
    // operations, instead of ending the stream with TOO_OLD.
    int32_t show_unlogged;
} kingtide_change_options;

// Called with each commit to a family. The record is valid during the call, and holds the operations on that family. Must
// neither unwind nor jump out.
typedef void (*kingtide_commit_fn)(void *context, const kingtide_change_record *record);

// Called once, with a context that the library no longer needs.
typedef void (*kingtide_destroy_fn)(void *context);

// Called from time to time with the progress of a long operation. Not 0 cancels it with CANCELLED. Must neither unwind nor jump
// out.
typedef int32_t (*kingtide_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

// The amounts that were checked.
typedef struct {
    // `sizeof(kingtide_verify_counts)`, set by the caller.
    size_t size;
    // Column families.
    uint64_t families;
    // Files, log segments and the manifest included.
    uint64_t files;
    // Blocks of tables.
    uint64_t blocks;
    // Entries of tables.
    uint64_t entries;
    // Values read through a table's pointer.
    uint64_t values;
    // Records of the write-ahead log.
    uint64_t log_records;
    // Prepared transactions in doubt.
    uint64_t prepared;
    // Bytes read and checked.
    uint64_t bytes;
} kingtide_verify_counts;

// One problem. Its pointers are valid as long as the report.
typedef struct {
    // `sizeof(kingtide_problem)`, set by the caller.
    size_t size;
    // One of `kingtide_severity`.
    int32_t severity;
    // Not 0: `offset` is known.
    int32_t has_offset;
    // A description of the problem and its consequences.
    const char *message;
    // The kind of the problem, such as "Block" or "MissingFile".
    const char *kind;
    // The family that is affected; NULL if none is.
    const char *family;
    // The file; NULL if the problem is in none.
    const char *path;
    // The offset in the file, in bytes.
    uint64_t offset;
    // The smallest key that may be affected; NULL if unknown.
    const void *lowest_key;
    // Its length.
    size_t lowest_key_len;
    // The largest key that may be affected; NULL if unknown.
    const void *highest_key;
    // Its length.
    size_t highest_key_len;
} kingtide_problem;

// Options of a repair.
typedef struct {
    // `sizeof(kingtide_repair_options)`.
    size_t size;
    // Not 0: the log ends at its first damage; otherwise complete records after it are salvaged, too.
    int32_t stop_at_damage;
    // Not 0: assign all tables of unknown families to the default family. Only for databases that never had another.
    int32_t one_family;
} kingtide_repair_options;

// The result of a repair.
typedef struct {
    // `sizeof(kingtide_repair_result)`, set by the caller.
    size_t size;
    // Not 0: everything was salvaged.
    int32_t is_complete;
    // Not 0: the verification of the new database found damage.
    int32_t is_damaged;
    // Families of the new database.
    uint64_t families;
    // Tables that were read, completely or in part.
    uint64_t tables;
    // Keys in the new database.
    uint64_t kept_keys;
    // Keys that existed, but whose values could not be read.
    uint64_t lost_keys;
    // Ranges in which other keys may be missing.
    uint64_t lost_ranges;
    // Ranges in which keys may be out of date; includes those lost.
    uint64_t stale_ranges;
    // Files that could not be read completely.
    uint64_t unreadable_files;
    // Records of the log that were read.
    uint64_t log_records;
    // Gaps in the log.
    uint64_t log_gaps;
    // Transactions that are in doubt in the new database, too.
    uint64_t prepared;
} kingtide_repair_result;

// Information about a checkpoint.
typedef struct {
    // `sizeof(kingtide_checkpoint_info)`, set by the caller.
    size_t size;
    // It holds every commit up to this sequence number and none after it.
    uint64_t sequence;
    // Tables and value logs that it shares with the database by hard links.
    uint64_t linked_files;
    // Bytes of these.
    uint64_t linked_bytes;
    // Tables and value logs that could not be linked, and were copied.
    uint64_t copied_files;
    // Bytes of these.
    uint64_t copied_bytes;
} kingtide_checkpoint_info;

// Options for making, verifying or restoring a backup.
typedef struct {
    // `sizeof(kingtide_backup_options)`.
    size_t size;
    // Not 0: do not flush memtables before making the backup.
    int32_t no_flush;
    // Not 0: do not read a file again that an earlier backup took from this database under the same name and with the same
    // size. Not safe if the directory was copied by other means than checkpoints and backups.
    int32_t trust_names;
    // The maximum number of bytes to read per second; 0 for no limit.
    uint64_t rate_limit;
    // Called with the progress; may be NULL.
    kingtide_progress_fn progress;
    // The context passed to it.
    void *progress_context;
} kingtide_backup_options;

// Information about a backup.
typedef struct {
    // `sizeof(kingtide_backup_info)`, set by the caller.
    size_t size;
    // Its number, ascending with time.
    uint64_t id;
    // When it was made, in milliseconds since 1970.
    uint64_t created_ms;
    // It holds every commit up to this sequence number and none after it.
    uint64_t sequence;
    // The number of its files.
    uint64_t files;
    // Bytes of its files.
    uint64_t bytes;
    // Files that no backup held before it was made.
    uint64_t new_files;
    // Bytes of these.
    uint64_t new_bytes;
} kingtide_backup_info;

// Information about an export.
typedef struct {
    // `sizeof(kingtide_export_info)`, set by the caller.
    size_t size;
    // It holds every commit up to this sequence number and none after it.
    uint64_t sequence;
    // Keys.
    uint64_t entries;
    // Sorted files.
    uint64_t files;
    // Bytes of these.
    uint64_t bytes;
} kingtide_export_info;

// Information about a finished sorted file. Its pointers are valid as long as its writer.
typedef struct {
    // `sizeof(kingtide_sorted_file_info)`, set by the caller.
    size_t size;
    // Keys put and deleted.
    uint64_t entries;
    // Ranges deleted.
    uint64_t range_deletes;
    // Bytes of the file.
    uint64_t bytes;
    // Its smallest key.
    const void *smallest;
    // Its length.
    size_t smallest_len;
    // Its largest key, or the end of a range deleted.
    const void *largest;
    // Its length.
    size_t largest_len;
} kingtide_sorted_file_info;

// A sorted file, and the family to ingest it into.
typedef struct {
    // The family.
    const kingtide_family *family;
    // The file's path.
    const char *path;
} kingtide_ingest_file;

// Options of an ingest.
typedef struct {
    // `sizeof(kingtide_ingest_options)`.
    size_t size;
    // Not 0: move the files instead of copying them.
    int32_t move_files;
    // Not 0: first read and check each file completely.
    int32_t verify;
    // Not 0: fail with CONFLICT instead of waiting when a transaction holds a lock in a file's range.
    int32_t no_wait;
    // Zero.
    int32_t reserved;
} kingtide_ingest_options;

// Options of one commit.
typedef struct {
    // `sizeof(kingtide_write_options)`.
    size_t size;
    // One of `kingtide_durability`.
    int32_t durability;
    // Not 0: return `KINGTIDE_BUSY` instead of waiting when writers are being slowed, and `KINGTIDE_CONFLICT` instead of
    // waiting for a lock that a transaction or an ingest holds.
    int32_t no_wait;
} kingtide_write_options;

// Borrowed bytes.
typedef struct {
    // The first byte; may be NULL when there is none.
    const void *data;
    // The number of elements.
    size_t len;
} kingtide_slice;

// One end of a range of keys. If the lower end of a range sorts after its upper end, reads and estimates find nothing, and calls that
// would change something are refused with INVALID_ARGUMENT.
typedef struct {
    // One of `kingtide_bound_kind`.
    int32_t kind;
    // The key; ignored for `KINGTIDE_UNBOUNDED`.
    const void *key;
    // Its length.
    size_t key_len;
} kingtide_bound;

// Options of an iterator. If all members except `size` are zero: all entries, as of now.
typedef struct {
    // `sizeof(kingtide_read_options)`.
    size_t size;
    // The lower bound.
    kingtide_bound lower;
    // The upper bound.
    kingtide_bound upper;
    // Only keys that begin with this are shown; NULL for all.
    const void *prefix;
    // Its length.
    size_t prefix_len;
    // The snapshot to read at; NULL for now. Not for transactions, where the level decides. Needed only during the call.
    const kingtide_snapshot *snapshot;
    // Not 0: blocks that it reads do not enter the block cache.
    int32_t no_fill_cache;
    // Not 0: read ahead from the start, for long scans; otherwise read-ahead begins by itself after a few blocks.
    int32_t readahead;
    // Not 0, for transactions only: show the newest committed values regardless of the level's snapshot, as
    // `kingtide_txn_get_for_update` does, but without its locks. After `kingtide_txn_lock_range`, or with a get for update of each
    // key, it shows the current state of the entries to be changed. Not at levels that check writes.
    int32_t newest;
    // Zero.
    int32_t reserved;
} kingtide_read_options;

// An entry that a walk returned.
typedef struct {
    // The key.
    const uint8_t *key;
    // Its length.
    size_t key_len;
    // The value.
    const uint8_t *value;
    // Its length.
    size_t value_len;
    // When it expires, in milliseconds since 1970; 0 if it does not.
    uint64_t expires_at_ms;
} kingtide_entry;

// A running or prepared transaction.
typedef struct {
    // `sizeof(kingtide_txn_info)`, set by the caller.
    size_t size;
    // Its id.
    uint64_t id;
    // One of `kingtide_isolation`.
    int32_t isolation;
    // Not 0: it locks what it reads and writes.
    int32_t locking;
    // The number of operations that it has written so far.
    uint64_t writes;
    // The name under which it was prepared; NULL if it was not. Valid as long as the list.
    const void *xid;
    // Its length.
    size_t xid_len;
} kingtide_txn_info;

// A lock that is held.
typedef struct {
    // `sizeof(kingtide_lock_info)`, set by the caller.
    size_t size;
    // The id of the transaction that holds it.
    uint64_t txn;
    // The family's number: see `kingtide_family_id`.
    uint32_t family;
    // One of `kingtide_lock_mode`.
    int32_t mode;
    // Not 0: a range; otherwise a key, which is both bounds.
    int32_t is_range;
    // Zero.
    int32_t reserved;
    // The lower bound of the locked range. Valid as long as the list.
    kingtide_bound lower;
    // The upper bound.
    kingtide_bound upper;
} kingtide_lock_info;

// A request that waits for a lock.
typedef struct {
    // `sizeof(kingtide_lock_wait_info)`, set by the caller.
    size_t size;
    // The transaction that waits; 0 for a write outside of transactions.
    uint64_t waiter;
    // The family's number: see `kingtide_family_id`.
    uint32_t family;
    // One of `kingtide_lock_mode`.
    int32_t mode;
    // Not 0: a range; otherwise a key, which is both bounds.
    int32_t is_range;
    // Zero.
    int32_t reserved;
    // The lower bound of the requested range. Valid as long as the list.
    kingtide_bound lower;
    // The upper bound.
    kingtide_bound upper;
    // The time for which it has waited.
    uint64_t waited_us;
    // The transactions that it waits for. Valid as long as the list.
    const uint64_t *holders;
    // The number of elements.
    size_t holder_count;
} kingtide_lock_wait_info;

// Called with the id of a transaction that is about to wait for locks, and with the ids of the transactions that it waits
// for. Must neither unwind nor jump out.
typedef void (*kingtide_lock_wait_fn)(void *context, uint64_t waiter, const uint64_t *holders, size_t holder_count);

// Called with a deadlock, on the thread of its victim, before the victim releases its locks: the others still wait, unless
// something else ended their waits. Must not wait for another transaction, and must neither unwind nor jump out.
typedef void (*kingtide_deadlock_fn)(void *context, const kingtide_deadlock *deadlock);

// The functions that are called for lock waits and for deadlocks.
typedef struct {
    // `sizeof(kingtide_lock_hooks)`, set by the caller.
    size_t size;
    // The context passed to the functions.
    void *context;
    // Called for waits, as `kingtide_db_set_lock_wait_hook` says. May be NULL.
    kingtide_lock_wait_fn waits;
    // Called for deadlocks. May be NULL.
    kingtide_deadlock_fn deadlock;
    // Called when the context is no longer needed. May be NULL.
    kingtide_destroy_fn destroy;
} kingtide_lock_hooks;

// A transaction in doubt.
typedef struct {
    // `sizeof(kingtide_prepared_info)`, set by the caller.
    size_t size;
    // Its name. Valid as long as the list.
    const void *xid;
    // Its length.
    size_t xid_len;
    // Sequence number of its prepare record.
    uint64_t sequence;
    // Writes that it would commit.
    uint64_t operations;
    // One of `kingtide_isolation`.
    int32_t isolation;
    // Zero.
    int32_t reserved;
} kingtide_prepared_info;

// A histogram of durations, in nanoseconds. Quantiles are off by at most 5.9 %. The texts are valid for ever.
typedef struct {
    // `sizeof(kingtide_histogram)`, set by the caller.
    size_t size;
    // Its name.
    const char *name;
    // What it measures.
    const char *description;
    // The number of operations; approximate for gets, seeks and steps, because only a sample of them is timed.
    uint64_t count;
    // The sum of all durations.
    uint64_t sum;
    // The longest duration.
    uint64_t max;
    // The median.
    uint64_t p50;
    // The 90th percentile.
    uint64_t p90;
    // The 99th percentile.
    uint64_t p99;
    // The 99.9th percentile.
    uint64_t p999;
} kingtide_histogram;

// Called with the name of an event, such as "flush_ended", and with a sentence that describes it. Both are valid during
// the call. May call everything but `kingtide_db_close`, `kingtide_db_wait_for_background`, flushes, compactions, and ingests that have to
// flush first, which fail with INVALID_ARGUMENT. If it frees the last reference to the database, another thread closes the database soon
// after. Must neither unwind nor jump out.
typedef void (*kingtide_event_fn)(void *context, const char *name, const char *text);

// A listener: it is called for events inside of a database.
typedef struct {
    // `sizeof(kingtide_listener)`, set by the caller.
    size_t size;
    // The context passed to the functions.
    void *context;
    // Called for every event: one call at a time, in order, mostly on background threads.
    kingtide_event_fn event;
    // Called when the context is no longer needed. May be NULL.
    kingtide_destroy_fn destroy;
} kingtide_listener;

// Compares two keys: negative, zero or positive if `a` sorts before, is the same key as, or sorts after `b`. Called from
// many threads at once, at any time until the database is freed. Must always be the same total order. Must neither
// unwind nor jump out.
typedef int32_t (*kingtide_compare_fn)(void *context, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len);

// A monotone 64-bit image of a key: if `a` sorts before `b`, its image is not greater. Makes searches faster.
typedef uint64_t (*kingtide_head_fn)(void *context, const uint8_t *key, size_t key_len);

// The description of an option. All texts are valid for ever.
typedef struct {
    // `sizeof(kingtide_option_info)`, set by the caller.
    size_t size;
    // Its name.
    const char *name;
    // What it does, with its unit.
    const char *description;
    // The form of a value: "true or false", "number or size (64M)".
    const char *form;
    // The default.
    const char *default_value;
    // Not 0: it has limits.
    int32_t has_limits;
    // Not 0: an option of families; otherwise of the database.
    int32_t is_family;
    // Not 0: it can be changed while the database is open.
    int32_t is_live;
    // Zero.
    int32_t reserved;
    // The smallest value, if it has limits. A 0 may stand for something else than a size: then the description says so, and
    // which is the smallest other value.
    double minimum;
    // The largest value, if it has limits.
    double maximum;
} kingtide_option_info;

// A counter or gauge. Its texts are valid for ever.
typedef struct {
    // `sizeof(kingtide_stat)`, set by the caller.
    size_t size;
    // Its name.
    const char *name;
    // What it counts, with its unit.
    const char *description;
    // Its value.
    uint64_t value;
    // Not 0: it goes up and down; otherwise it only grows.
    int32_t is_gauge;
    // Zero.
    int32_t reserved;
} kingtide_stat;

// Figures derived from the counters.
typedef struct {
    // `sizeof(kingtide_amplification)`, set by the caller.
    size_t size;
    // Bytes written to log, tables and value logs per byte committed.
    double write;
    // Table blocks and values read from files per point read and seek.
    double read;
    // Bytes of tables and value logs per byte of them that is not known to be dead.
    double space;
} kingtide_amplification;

// One family.
typedef struct {
    // `sizeof(kingtide_family_stats)`, set by the caller.
    size_t size;
    // Its name. Valid as long as the statistics.
    const char *name;
    // Bytes in its active memtable.
    uint64_t active_bytes;
    // Immutable memtables that wait for a flush.
    uint64_t immutable_memtables;
    // Entries and range tombstones in all memtables, hidden versions included.
    uint64_t memtable_entries;
    // Bytes of its value logs.
    uint64_t vlog_bytes;
    // Stored bytes in them to which nothing refers.
    uint64_t vlog_dead_bytes;
    // The number of non-empty levels: see `kingtide_stats_level`.
    uint64_t levels;
    // Stored bytes in its value logs that newer entries of tables hide, and to which older tables still refer.
    uint64_t vlog_hidden_bytes;
} kingtide_family_stats;

// The shape of one level.
typedef struct {
    // `sizeof(kingtide_level_stats)`, set by the caller.
    size_t size;
    // The level.
    uint64_t level;
    // Sorted runs.
    uint64_t runs;
    // Table files.
    uint64_t files;
    // Bytes of key logs.
    uint64_t bytes;
    // Point entries, tombstones and hidden versions included.
    uint64_t entries;
    // Point tombstones.
    uint64_t tombstones;
} kingtide_level_stats;

// An estimate of the contents of a range of keys.
typedef struct {
    // `sizeof(kingtide_range_stats)`, set by the caller.
    size_t size;
    // Keys that a read would show. 0 only if there is no entry at all.
    uint64_t rows;
    // Point entries, tombstones and hidden versions included. 0 only if there is none.
    uint64_t entries;
    // Those of them that are in memtables.
    uint64_t memtable_entries;
    // Point tombstones in tables.
    uint64_t tombstones;
    // Range tombstones in the tables that overlap the range.
    uint64_t range_tombstones;
    // Bytes of keys and inline values in tables, before compression.
    uint64_t raw_bytes;
    // Bytes in key-log files.
    uint64_t disk_bytes;
    // Bytes in value-log files.
    uint64_t value_log_bytes;
    // Bytes of keys and values in memtables.
    uint64_t memtable_bytes;
    // Tables that overlap the range.
    uint64_t tables;
    // Runs that overlap the range, which a scan has to merge, without memtables.
    uint64_t runs;
    // Entries that have expired and were not compacted away yet, estimated. `rows` leaves them out.
    uint64_t expired;
} kingtide_range_stats;

// Given two neighbouring keys, returns the index of the first part in which they differ; the number of parts or more
// if none does. Must neither unwind nor jump out.
typedef size_t (*kingtide_first_difference_fn)(void *context,
                                               const uint8_t *a,
                                               size_t a_len,
                                               const uint8_t *b,
                                               size_t b_len);

// Options of a transaction. If all members except `size` are zero: snapshot isolation, optimistic.
typedef struct {
    // `sizeof(kingtide_txn_options)`.
    size_t size;
    // One of `kingtide_isolation`.
    int32_t isolation;
    // Not 0: take locks when keys are written, and read for update, instead of checking at commit.
    int32_t locking;
    // Not 0: refuse writes.
    int32_t read_only;
    // One of `kingtide_durability`, for the commit.
    int32_t durability;
    // Not 0: return `KINGTIDE_BUSY` from commit instead of waiting when writers are being slowed.
    int32_t no_wait;
    // Zero.
    int32_t reserved;
    // Its timeout, in milliseconds; 0 for the database's option `transaction_timeout_ms`.
    uint64_t timeout_ms;
    // Its lock timeout, in milliseconds; 0 for the database's option `lock_timeout_ms`; `KINGTIDE_NO_WAIT` not to wait.
    int64_t lock_timeout_ms;
    // Read as of this snapshot instead of now, at levels that read as of the beginning, and at no other moment; NULL for now. Needed only
    // during the call.
    const kingtide_snapshot *snapshot;
} kingtide_txn_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// An empty batch.
kingtide_batch *kingtide_batch_new(void);

// Removes all operations, but keeps the memory.
void kingtide_batch_clear(kingtide_batch *batch);

// Number of operations.
size_t kingtide_batch_count(const kingtide_batch *batch);

// Returns the size of the operations in the log, in bytes.
size_t kingtide_batch_bytes(const kingtide_batch *batch);

// Sets a key. Key and value are copied.
//
// Errors: INVALID_ARGUMENT (an empty key, a batch of 4 GiB).
kingtide_status kingtide_batch_put(kingtide_batch *batch,
                                   const kingtide_family *family,
                                   const void *key,
                                   size_t key_len,
                                   const void *value,
                                   size_t value_len,
                                   kingtide_error **err);

// Sets a key that expires `ttl_ms` milliseconds from now.
//
// Errors: as `kingtide_batch_put`.
kingtide_status kingtide_batch_put_ttl(kingtide_batch *batch,
                                       const kingtide_family *family,
                                       const void *key,
                                       size_t key_len,
                                       const void *value,
                                       size_t value_len,
                                       uint64_t ttl_ms,
                                       kingtide_error **err);

// Sets a key that expires at a moment given in milliseconds since 1970.
//
// Errors: as `kingtide_batch_put`.
kingtide_status kingtide_batch_put_until(kingtide_batch *batch,
                                         const kingtide_family *family,
                                         const void *key,
                                         size_t key_len,
                                         const void *value,
                                         size_t value_len,
                                         uint64_t expires_at_ms,
                                         kingtide_error **err);

// Deletes a key. Deleting an absent key is not an error.
//
// Errors: as `kingtide_batch_put`.
kingtide_status kingtide_batch_delete(kingtide_batch *batch,
                                      const kingtide_family *family,
                                      const void *key,
                                      size_t key_len,
                                      kingtide_error **err);

// Deletes a key that was put exactly once since its last delete; cheaper to reclaim. If the key was put more often, an
// older value may reappear.
//
// Errors: as `kingtide_batch_put`.
kingtide_status kingtide_batch_single_delete(kingtide_batch *batch,
                                             const kingtide_family *family,
                                             const void *key,
                                             size_t key_len,
                                             kingtide_error **err);

// Deletes all keys from `start` up to, and without, `end`.
//
// Errors: as `kingtide_batch_put`; INVALID_ARGUMENT if `start` sorts after `end`.
kingtide_status kingtide_batch_delete_range(kingtide_batch *batch,
                                            const kingtide_family *family,
                                            const void *start,
                                            size_t start_len,
                                            const void *end,
                                            size_t end_len,
                                            kingtide_error **err);

// Deletes all keys that begin with a prefix, including those that the batch wrote before.
//
// Errors: as `kingtide_batch_put`; INVALID_ARGUMENT for a key order that does not support prefix iteration;
// CORRUPTION, IO.
kingtide_status kingtide_batch_delete_prefix(kingtide_batch *batch,
                                             const kingtide_family *family,
                                             const void *prefix,
                                             size_t prefix_len,
                                             kingtide_error **err);

// Frees a batch. NULL is allowed.
void kingtide_batch_free(kingtide_batch *batch);

// The commit's sequence number: that of its last operation.
uint64_t kingtide_change_record_sequence(const kingtide_change_record *record);

// The sequence number of its first operation, over all families. 0 in a commit hook, which is called for its own family only.
uint64_t kingtide_change_record_first_sequence(const kingtide_change_record *record);

// Returns whether it represents commits that are not in the log, and so has no operations.
bool kingtide_change_record_is_unlogged(const kingtide_change_record *record);

// Returns the number of its operations.
size_t kingtide_change_record_count(const kingtide_change_record *record);

// Describes the operation at an index from 0. False after the last, or if `change->size` is not set.
bool kingtide_change_record_get(const kingtide_change_record *record, size_t index, kingtide_change *change);

// Frees a record returned by a stream. NULL is allowed.
void kingtide_change_record_free(kingtide_change_record *record);

// Opens a stream of all commits after sequence number `since`: the result of `kingtide_change_stream_position` for an
// earlier stream, or 0 for all available commits. `options` may be NULL. The option `change_retention` says how much log is
// kept for this. Free it with `kingtide_change_stream_free`.
//
// Errors: TOO_OLD (the log is gone), INVALID_ARGUMENT (not committed yet), READ_ONLY, CLOSED.
kingtide_status kingtide_db_changes(const kingtide_db *db,
                                    uint64_t since,
                                    const kingtide_change_options *options,
                                    kingtide_change_stream **stream,
                                    kingtide_error **err);

// Returns the oldest sequence number after which a stream can begin.
uint64_t kingtide_db_oldest_change_sequence(const kingtide_db *db);

// Returns the next commit; `record` is set to NULL if there is none within `timeout_ms` milliseconds, or at once for 0. Free it with
// `kingtide_change_record_free`.
//
// Errors: TOO_OLD (commits that are not, or no longer, in the log), CORRUPTION, IO, CLOSED.
kingtide_status kingtide_change_stream_next(kingtide_change_stream *stream,
                                            uint64_t timeout_ms,
                                            kingtide_change_record **record,
                                            kingtide_error **err);

// Returns the sequence number with which a later stream continues from this position.
uint64_t kingtide_change_stream_position(const kingtide_change_stream *stream);

// Frees a stream. NULL is allowed.
void kingtide_change_stream_free(kingtide_change_stream *stream);

// Sets the function that is called after every commit that writes to the family, replacing the previous one; NULL removes it. Ingests,
// clones and imports are not reported, because their entries are in files. It is called in commit order, one call at a time over the
// whole database, on the thread of this commit or of another one, after the commit is visible and before the committing call returns. The
// commit may become durable later. Commits made inside it are reported afterwards. It must not wait for a commit of another thread. `destroy`, which may be
// NULL, is called when the context is no longer needed, also if this fails.
//
// Errors: INVALID_ARGUMENT, CLOSED.
kingtide_status kingtide_family_set_commit_hook(const kingtide_family *family,
                                                kingtide_commit_fn committed,
                                                void *context,
                                                kingtide_destroy_fn destroy,
                                                kingtide_error **err);

// Verifies an open database: its manifest, all tables and value logs as of now, and the log. Commits continue. `progress` may be
// NULL. Problems are in the report and are not errors.
//
// Errors: CLOSED, CANCELLED, IO.
kingtide_status kingtide_db_verify(const kingtide_db *db,
                                   kingtide_progress_fn progress,
                                   void *context,
                                   kingtide_verify_report **report,
                                   kingtide_error **err);

// Verifies a closed database. Of the options, which may be NULL, only key orders that were added matter.
//
// Errors: LOCKED (it is open), NOT_FOUND, CANCELLED, IO.
kingtide_status kingtide_verify(const char *path,
                                const kingtide_options *options,
                                kingtide_progress_fn progress,
                                void *context,
                                kingtide_verify_report **report,
                                kingtide_error **err);

// Returns whether there is no problem worse than `KINGTIDE_SEVERITY_INFO`.
bool kingtide_verify_report_is_clean(const kingtide_verify_report *report);

// Returns whether there is damage.
bool kingtide_verify_report_is_damaged(const kingtide_verify_report *report);

// Returns what was checked. False if `counts->size` is not set.
bool kingtide_verify_report_counts(const kingtide_verify_report *report, kingtide_verify_counts *counts);

// Returns the number of problems that the report describes, which is bounded: see `kingtide_verify_report_unlisted`.
size_t kingtide_verify_report_count(const kingtide_verify_report *report);

// Returns the number of further problems that were found and are not described.
uint64_t kingtide_verify_report_unlisted(const kingtide_verify_report *report);

// Describes the problem at an index from 0. False after the last, or if `problem->size` is not set.
bool kingtide_verify_report_get(const kingtide_verify_report *report, size_t index, kingtide_problem *problem);

// Frees a report. NULL is allowed.
void kingtide_verify_report_free(kingtide_verify_report *report);

// Salvages all readable data of the database in `path`, which is not changed, into a new database in `into`. Key
// orders that it uses must be among the options, which may be NULL, as may `how`, `progress`, and `text`, which is set to a
// description for people.
//
// Errors: EXISTS (`into` is not empty), INVALID_ARGUMENT (it is inside `path`), LOCKED (the database is open), NOT_FOUND, CANCELLED, IO,
// NO_SPACE. After an error `into` must not be used.
kingtide_status kingtide_repair(const char *path,
                                const char *into,
                                const kingtide_options *options,
                                const kingtide_repair_options *how,
                                kingtide_progress_fn progress,
                                void *context,
                                kingtide_repair_result *result,
                                kingtide_text **text,
                                kingtide_error **err);

// Makes a copy of the database in a directory that is empty or absent, as of one moment, transactions in doubt included. It
// shares the immutable files by hard links where that is possible. Commits go on. `info` may be NULL.
//
// Errors: EXISTS (the directory holds anything), INVALID_ARGUMENT (it is inside the database's own), LOCKED (another copy is being made
// there), CORRUPTION (a file is missing), IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_db_checkpoint(const kingtide_db *db,
                                       const char *path,
                                       kingtide_checkpoint_info *info,
                                       kingtide_error **err);

// Refers to the directory of backups at `path`. Changes nothing: the first backup creates the directory. Free it with
// `kingtide_backup_free`.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_backup_open(const char *path, kingtide_backup **backup, kingtide_error **err);

// Backs up a database, as of one moment. Files that the directory already holds are not stored again. Commits continue.
// `options` and `info` may be NULL.
//
// Errors: INVALID_ARGUMENT (the directory is inside the database's own), LOCKED (another process or handle changes it), CANCELLED,
// CORRUPTION, IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_backup_create(const kingtide_backup *backup,
                                       const kingtide_db *db,
                                       const kingtide_backup_options *options,
                                       kingtide_backup_info *info,
                                       kingtide_error **err);

// Describes a backup.
//
// Errors: NOT_FOUND, CORRUPTION, NEWER_FORMAT, IO.
kingtide_status kingtide_backup_get_info(const kingtide_backup *backup,
                                         uint64_t id,
                                         kingtide_backup_info *info,
                                         kingtide_error **err);

// Lists all backups, readable or not; call `kingtide_backup_get_info` for each.
//
// Errors: IO.
kingtide_status kingtide_backup_list_all(const kingtide_backup *backup,
                                         kingtide_backup_list **list,
                                         kingtide_error **err);

// Returns the number of elements.
size_t kingtide_backup_list_count(const kingtide_backup_list *list);

// Returns the number at an index from 0; `UINT64_MAX` after the last.
uint64_t kingtide_backup_list_get(const kingtide_backup_list *list, size_t index);

// Frees a list. NULL is allowed.
void kingtide_backup_list_free(kingtide_backup_list *list);

// Reads every file of a backup and compares it with its checksum. `options` may be NULL.
//
// Errors: CORRUPTION (the first file that is damaged or missing), NOT_FOUND, CANCELLED, IO.
kingtide_status kingtide_backup_verify(const kingtide_backup *backup,
                                       uint64_t id,
                                       const kingtide_backup_options *options,
                                       kingtide_error **err);

// Restores a backup as a database in a directory that is empty or absent. Every checksum is checked. `options` may be
// NULL.
//
// Errors: CORRUPTION, NOT_FOUND, EXISTS, INVALID_ARGUMENT (inside the directory of backups), CANCELLED, LOCKED, IO, NO_SPACE. The copied
// files are then removed.
kingtide_status kingtide_backup_restore(const kingtide_backup *backup,
                                        uint64_t id,
                                        const char *target,
                                        const kingtide_backup_options *options,
                                        kingtide_error **err);

// Deletes a backup, and the files that no other backup needs.
//
// Errors: NOT_FOUND, LOCKED, CORRUPTION (another backup is damaged: this one is deleted, its files are not), IO.
kingtide_status kingtide_backup_delete(const kingtide_backup *backup, uint64_t id, kingtide_error **err);

// Deletes all backups except the newest `keep`. `deleted`, unless NULL, is set to the number of deleted backups; 0 if the directory does
// not exist.
//
// Errors: as `kingtide_backup_delete`, except NOT_FOUND.
kingtide_status kingtide_backup_purge(const kingtide_backup *backup,
                                      size_t keep,
                                      size_t *deleted,
                                      kingtide_error **err);

// Frees the reference; the backups stay. NULL is allowed.
void kingtide_backup_free(kingtide_backup *backup);

// Creates a family with the current contents of another. Tables are shared by hard links where possible. `family`,
// unless NULL, is set to a handle. Transactions in doubt are not cloned. What the new family shows at snapshots that were taken
// before is undefined.
//
// Errors: NOT_FOUND (`from`); EXISTS, INVALID_ARGUMENT (`to`); CORRUPTION, IO, NO_SPACE, POISONED, CLOSED, READ_ONLY.
kingtide_status kingtide_db_clone_family(const kingtide_db *db,
                                         const char *from,
                                         const char *to,
                                         kingtide_family **family,
                                         kingtide_error **err);

// Writes the current contents of the family into a directory that is empty or absent, for `kingtide_db_import_family`. `info` may be
// NULL.
//
// Errors: EXISTS, INVALID_ARGUMENT (the directory is inside the database's own), CORRUPTION, IO, NO_SPACE, CLOSED.
kingtide_status kingtide_family_export(const kingtide_family *family,
                                       const char *path,
                                       kingtide_export_info *info,
                                       kingtide_error **err);

// Creates a family from an export of `kingtide_family_export` in any database. `family`, unless NULL, is set to a handle.
//
// Errors: NOT_FOUND (no complete export), EXISTS or INVALID_ARGUMENT (the name), INCOMPATIBLE (a key order that this database
// does not know), CORRUPTION, NEWER_FORMAT, IO, NO_SPACE, POISONED, CLOSED, READ_ONLY.
kingtide_status kingtide_db_import_family(const kingtide_db *db,
                                          const char *name,
                                          const char *path,
                                          kingtide_family **family,
                                          kingtide_error **err);

// Begins a sorted file for a family, in its key order and format. The file must not exist. Free the writer with
// `kingtide_sorted_writer_free`, which removes a file that is not finished.
//
// Errors: EXISTS, NOT_FOUND (the directory), IO, NO_SPACE.
kingtide_status kingtide_sorted_writer_create(const char *path,
                                              const kingtide_family *family,
                                              kingtide_sorted_writer **writer,
                                              kingtide_error **err);

// Adds a key after all previous ones.
//
// Errors: INVALID_ARGUMENT (not in order), FINISHED, IO, NO_SPACE.
kingtide_status kingtide_sorted_writer_put(kingtide_sorted_writer *writer,
                                           const void *key,
                                           size_t key_len,
                                           const void *value,
                                           size_t value_len,
                                           kingtide_error **err);

// Adds a key that expires `ttl_ms` milliseconds from now.
//
// Errors: as `kingtide_sorted_writer_put`.
kingtide_status kingtide_sorted_writer_put_ttl(kingtide_sorted_writer *writer,
                                               const void *key,
                                               size_t key_len,
                                               const void *value,
                                               size_t value_len,
                                               uint64_t ttl_ms,
                                               kingtide_error **err);

// Adds a key that expires at a moment given in milliseconds since 1970.
//
// Errors: as `kingtide_sorted_writer_put`.
kingtide_status kingtide_sorted_writer_put_until(kingtide_sorted_writer *writer,
                                                 const void *key,
                                                 size_t key_len,
                                                 const void *value,
                                                 size_t value_len,
                                                 uint64_t expires_at_ms,
                                                 kingtide_error **err);

// Adds a deletion of a key of the family, after all previous keys.
//
// Errors: as `kingtide_sorted_writer_put`.
kingtide_status kingtide_sorted_writer_delete(kingtide_sorted_writer *writer,
                                              const void *key,
                                              size_t key_len,
                                              kingtide_error **err);

// Deletes the keys that the family held from `start` up to, and without, `end` before the ingest. The file's own entries
// stay. Ranges may be deleted in any order, at any time.
//
// Errors: as `kingtide_sorted_writer_put`.
kingtide_status kingtide_sorted_writer_delete_range(kingtide_sorted_writer *writer,
                                                    const void *start,
                                                    size_t start_len,
                                                    const void *end,
                                                    size_t end_len,
                                                    kingtide_error **err);

// Returns the approximate size of the file in bytes; 0 once it is finished.
uint64_t kingtide_sorted_writer_estimated_bytes(const kingtide_sorted_writer *writer);

// Finishes the file. `info` may be NULL.
//
// Errors: INVALID_ARGUMENT (nothing was added), FINISHED, IO, NO_SPACE. The file is then removed.
kingtide_status kingtide_sorted_writer_finish(kingtide_sorted_writer *writer,
                                              kingtide_sorted_file_info *info,
                                              kingtide_error **err);

// Frees a writer, and removes its file unless it is finished. NULL is allowed.
void kingtide_sorted_writer_free(kingtide_sorted_writer *writer);

// Makes the contents of sorted files part of families, all at one moment and, in case of a crash, all or nothing, as if all were one
// batch, file by file. When it returns, they survive a power cut. `options` may be NULL. `sequence`, unless NULL, is set to
// that of the commit.
//
// Errors: INVALID_ARGUMENT (no sorted file, a family of another database), INCOMPATIBLE (another key order), CORRUPTION,
// NEWER_FORMAT, NOT_FOUND, LOCK_TIMEOUT, CONFLICT, POISONED, IO, NO_SPACE, CLOSED, READ_ONLY. Nothing is then ingested, except
// where the message says that it was done but may not survive a power cut, as after a commit whose sync failed.
kingtide_status kingtide_db_ingest(const kingtide_db *db,
                                   const kingtide_ingest_file *files,
                                   size_t count,
                                   const kingtide_ingest_options *options,
                                   uint64_t *sequence,
                                   kingtide_error **err);

// Opens the database in directory `path`, creating it unless the options say otherwise. `options` may be NULL. Returns
// when recovery is complete. Free it with `kingtide_db_free`.
//
// Errors: LOCKED (it is open elsewhere); NOT_FOUND, EXISTS as the options ask; INVALID_ARGUMENT; INCOMPATIBLE (another key
// order); NEWER_FORMAT; CORRUPTION with file and offset; IO, NO_SPACE.
kingtide_status kingtide_db_open(const char *path,
                                 const kingtide_options *options,
                                 kingtide_db **db,
                                 kingtide_error **err);

// Opens a database read-only, without a lock and without changing anything, even while another process writes to it.
// Until `kingtide_db_catch_up`, it shows the data that was committed when it was opened.
//
// Errors: as `kingtide_db_open`, but never LOCKED.
kingtide_status kingtide_db_open_read_only(const char *path,
                                           const kingtide_options *options,
                                           kingtide_db **db,
                                           kingtide_error **err);

// Returns whether it was opened read-only.
bool kingtide_db_is_read_only(const kingtide_db *db);

// Moves a database that was opened read-only to the current committed state. `sequence`, unless NULL, is set to the newest
// visible sequence number.
//
// Errors: INVALID_ARGUMENT (opened for writing), CORRUPTION, IO, CLOSED.
kingtide_status kingtide_db_catch_up(const kingtide_db *db,
                                     uint64_t *sequence,
                                     kingtide_error **err);

// Closes the database: flushes memtables, cancels running compactions, and releases the directory's lock. Objects that were
// created from it may still be used and freed, and return `KINGTIDE_CLOSED`. Closing again does nothing. The handle must still
// be freed.
//
// Errors: the reason why memtables could not be flushed. Committed data is nevertheless safe in the log.
kingtide_status kingtide_db_close(const kingtide_db *db,
                                  kingtide_error **err);

// Frees the handle, and closes the database if it was not closed. Families, transactions, iterators and other objects may be
// freed before or after. NULL is allowed.
void kingtide_db_free(kingtide_db *db);

// Commits a batch atomically. `options` may be NULL. `sequence`, unless NULL, is set to the sequence number of
// the last operation. The batch is unchanged: clear it to use it again.
//
// Errors: CLOSED, READ_ONLY, NO_SPACE, POISONED, BUSY; LOCK_TIMEOUT (a transaction holds a lock on a key), or CONFLICT then
// with `no_wait`; INVALID_ARGUMENT (a family of another database, a staged value that was committed).
kingtide_status kingtide_db_write(const kingtide_db *db,
                                  kingtide_batch *batch,
                                  const kingtide_write_options *options,
                                  uint64_t *sequence,
                                  kingtide_error **err);

// Fsyncs the write-ahead log: everything committed so far survives a power cut, except commits without durability.
//
// Errors: POISONED, IO, CLOSED, READ_ONLY.
kingtide_status kingtide_db_sync(const kingtide_db *db, kingtide_error **err);

// Flushes all memtables of all families to tables and waits for it.
//
// Errors: the reason why a flush failed.
kingtide_status kingtide_db_flush(const kingtide_db *db, kingtide_error **err);

// Waits until no flush and no compaction is due or running.
//
// Errors: the background error that prevents them from finishing.
kingtide_status kingtide_db_wait_for_background(const kingtide_db *db, kingtide_error **err);

// Changes an option of the database while it is open, by name; only those that `kingtide_option_get_info` calls live. Not
// stored.
//
// Errors: INVALID_ARGUMENT (unknown, fixed, or out of range), CLOSED.
kingtide_status kingtide_db_set_option(const kingtide_db *db,
                                       const char *name,
                                       const char *value,
                                       kingtide_error **err);

// The newest visible sequence number; 0 for NULL.
uint64_t kingtide_db_latest_sequence(const kingtide_db *db);

// Names of all families, sorted.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_families(const kingtide_db *db, kingtide_strings **names, kingtide_error **err);

// A handle of the default family, named "default". Free it with `kingtide_family_free`.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_db_default_family(const kingtide_db *db, kingtide_family **family, kingtide_error **err);

// A handle of the family of that name. Free it with `kingtide_family_free`.
//
// Errors: NOT_FOUND, CLOSED.
kingtide_status kingtide_db_family(const kingtide_db *db,
                                   const char *name,
                                   kingtide_family **family,
                                   kingtide_error **err);

// Creates a family. Of `options`, which may be NULL, the options of families count. `order` is the name of a key order, built
// in or added to the options that the database was opened with; NULL for "bytewise". `family`, unless NULL, is set to a
// handle.
//
// Errors: EXISTS, NOT_FOUND (the key order), INVALID_ARGUMENT (name, options), IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_db_create_family(const kingtide_db *db,
                                          const char *name,
                                          const kingtide_options *options,
                                          const char *order,
                                          kingtide_family **family,
                                          kingtide_error **err);

// Drops a family and everything in it. Calls on its handles then return `KINGTIDE_CLOSED`, except those that read its name, order and
// options; open iterators can finish. The handles must still be freed.
//
// Errors: NOT_FOUND, INVALID_ARGUMENT (the default family), IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_db_drop_family(const kingtide_db *db,
                                        const char *name,
                                        kingtide_error **err);

// Renames a family.
//
// Errors: NOT_FOUND, EXISTS, INVALID_ARGUMENT (the default family, a bad name), IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_db_rename_family(const kingtide_db *db,
                                          const char *old_name,
                                          const char *new_name,
                                          kingtide_error **err);

// Returns the status that the failed call also returned. `KINGTIDE_OK` for NULL.
kingtide_status kingtide_error_status(const kingtide_error *error);

// Returns the message, in English, with file and offset where they are known. Valid as long as the error. Empty for NULL.
const char *kingtide_error_message(const kingtide_error *error);

// Returns the file that the error is about; NULL if there is none. Valid as long as the error.
const char *kingtide_error_path(const kingtide_error *error);

// Gets the byte offset in that file. Returns false, and does not write `offset`, if it is unknown.
bool kingtide_error_offset(const kingtide_error *error, uint64_t *offset);

// Returns whether the same call may succeed later with the same arguments.
bool kingtide_error_is_retryable(const kingtide_error *error);

// Returns whether the transaction that failed with it may succeed if it is run again from its beginning.
bool kingtide_error_is_transient_conflict(const kingtide_error *error);

// Frees an error. NULL is allowed.
void kingtide_error_free(kingtide_error *error);

// Returns the name of a status, such as "lock-timeout"; "other" for an unknown number. Valid for ever.
const char *kingtide_status_name(int32_t status);

// Returns its current name.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_family_name(const kingtide_family *family, kingtide_text **name, kingtide_error **err);

// Returns its number, which identifies it in reports of locks and changes and is never reused. `UINT32_MAX` for NULL.
uint32_t kingtide_family_id(const kingtide_family *family);

// The name of its key order.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_family_order(const kingtide_family *family, kingtide_text **name, kingtide_error **err);

// Compares two keys in the family's order: -1, 0 or 1. 0 also for NULL, or bytes that are NULL.
int32_t kingtide_family_compare(const kingtide_family *family,
                                const void *a,
                                size_t a_len,
                                const void *b,
                                size_t b_len);

// Returns the current value of one of its options, as text.
//
// Errors: NOT_FOUND.
kingtide_status kingtide_family_get_option(const kingtide_family *family,
                                           const char *name,
                                           kingtide_text **value,
                                           kingtide_error **err);

// Changes one of its options while the database is open, and stores it; only those that `kingtide_option_get_info` calls
// live.
//
// Errors: INVALID_ARGUMENT (unknown, fixed, or out of range), IO, NO_SPACE, CLOSED, READ_ONLY.
kingtide_status kingtide_family_set_option(const kingtide_family *family,
                                           const char *name,
                                           const char *value,
                                           kingtide_error **err);

// Sets a key, as a commit of its own.
//
// Errors: INVALID_ARGUMENT (an empty key), and those of `kingtide_db_write`.
kingtide_status kingtide_family_put(const kingtide_family *family,
                                    const void *key,
                                    size_t key_len,
                                    const void *value,
                                    size_t value_len,
                                    kingtide_error **err);

// Sets a key that expires after `ttl_ms` milliseconds.
//
// Errors: as `kingtide_family_put`.
kingtide_status kingtide_family_put_ttl(const kingtide_family *family,
                                        const void *key,
                                        size_t key_len,
                                        const void *value,
                                        size_t value_len,
                                        uint64_t ttl_ms,
                                        kingtide_error **err);

// Deletes a key. Deleting an absent key is not an error.
//
// Errors: as `kingtide_family_put`.
kingtide_status kingtide_family_delete(const kingtide_family *family,
                                       const void *key,
                                       size_t key_len,
                                       kingtide_error **err);

// Deletes a key that was put exactly once since its last delete. See `kingtide_batch_single_delete`.
//
// Errors: as `kingtide_family_put`.
kingtide_status kingtide_family_single_delete(const kingtide_family *family,
                                              const void *key,
                                              size_t key_len,
                                              kingtide_error **err);

// Deletes all keys from `start` up to, and without, `end`.
//
// Errors: as `kingtide_family_put`; INVALID_ARGUMENT if `start` sorts after `end`.
kingtide_status kingtide_family_delete_range(const kingtide_family *family,
                                             const void *start,
                                             size_t start_len,
                                             const void *end,
                                             size_t end_len,
                                             kingtide_error **err);

// Deletes all keys that begin with a prefix.
//
// Errors: as `kingtide_batch_delete_prefix` and `kingtide_db_write`.
kingtide_status kingtide_family_delete_prefix(const kingtide_family *family,
                                              const void *prefix,
                                              size_t prefix_len,
                                              kingtide_error **err);

// Replaces a key's value if it is the expected one, atomically: no other write comes in between. An `expected` that is NULL
// stands for an absent key, and a `desired` that is NULL deletes the key. `swapped` is set to whether it was replaced. `found`,
// unless NULL, holds the value that was there instead when it was not, and nothing otherwise, as after an error.
//
// Errors: as `kingtide_family_get` and `kingtide_family_put`.
kingtide_status kingtide_family_compare_and_swap(const kingtide_family *family,
                                                 const void *key,
                                                 size_t key_len,
                                                 const kingtide_slice *expected,
                                                 const kingtide_slice *desired,
                                                 kingtide_value *found,
                                                 bool *swapped,
                                                 kingtide_error **err);

// Reads a key into `value`, created by `kingtide_value_new`. An absent key is not an error: `value` then holds nothing,
// as after an error. Allocates nothing for small values, or for large ones in the block cache.
//
// Errors: CORRUPTION with file and offset, IO, CLOSED.
kingtide_status kingtide_family_get(const kingtide_family *family,
                                    const void *key,
                                    size_t key_len,
                                    kingtide_value *value,
                                    kingtide_error **err);

// Sets `found` to whether a key has a value, as `kingtide_family_get` sees it. No value log is read.
//
// Errors: as `kingtide_family_get`; INVALID_ARGUMENT (`found` is NULL).
kingtide_status kingtide_family_contains(const kingtide_family *family,
                                         const void *key,
                                         size_t key_len,
                                         bool *found,
                                         kingtide_error **err);

// Reads `count` keys as of one moment into as many values, sharing common work. All values must be
// different objects. If some keys cannot be read, the others are, and the first error is returned; `statuses`, unless NULL, has
// room for `count` statuses, one per key. They are not written if nothing was read at all, for example because an argument is NULL;
// the values then hold nothing, unless one of the pointers to them is NULL.
//
// Errors: as `kingtide_family_get`.
kingtide_status kingtide_family_multi_get(const kingtide_family *family,
                                          const kingtide_slice *keys,
                                          size_t count,
                                          kingtide_value *const *values,
                                          int32_t *statuses,
                                          kingtide_error **err);

// Flushes the family's memtables to tables and waits for it.
//
// Errors: CLOSED, READ_ONLY; the reason why the flush failed.
kingtide_status kingtide_family_flush(const kingtide_family *family, kingtide_error **err);

// Flushes memtables, compacts all tables that overlap the range into the deepest level, and waits for it. NULL is an
// open end; both ends belong to the range, regardless of their kind.
//
// Errors: the reason why the compaction failed; INVALID_ARGUMENT if `lower` sorts after `upper`.
kingtide_status kingtide_family_compact_range(const kingtide_family *family,
                                              const kingtide_bound *lower,
                                              const kingtide_bound *upper,
                                              kingtide_error **err);

// Reclaims, soon and in the background, the space of entries that a range delete deleted from `lower` up to, not including,
// `upper`. Snapshots still see these entries, and their space is reclaimed when the snapshots are freed. After a restart it is
// left to compactions.
//
// Errors: INVALID_ARGUMENT if `lower` sorts after `upper`; CLOSED, READ_ONLY; CORRUPTION and IO from opening a table.
kingtide_status kingtide_family_reclaim_range(const kingtide_family *family,
                                              const void *lower,
                                              size_t lower_len,
                                              const void *upper,
                                              size_t upper_len,
                                              kingtide_error **err);

// Frees a handle; the family stays. NULL is allowed.
void kingtide_family_free(kingtide_family *family);

// An iterator over a family. `options` may be NULL. Free it with `kingtide_iter_free`.
//
// Errors: CLOSED, INVALID_ARGUMENT (a snapshot of another database, a prefix in a key order that does not support
// prefix iteration), TOO_OLD, CORRUPTION, IO.
kingtide_status kingtide_family_iter(const kingtide_family *family,
                                     const kingtide_read_options *options,
                                     kingtide_iter **iter,
                                     kingtide_error **err);

// Creates an iterator over a family as a transaction sees it: its writes before this call are included, its later writes are
// not. At levels whose reads take locks, the range between the bounds is locked now. After the transaction ended, the iterator returns
// the same errors as the transaction. Free it with `kingtide_iter_free`, before or after the transaction.
//
// Errors: as `kingtide_family_iter` and `kingtide_txn_get`; INVALID_ARGUMENT for a snapshot.
kingtide_status kingtide_txn_iter(kingtide_txn *txn,
                                  const kingtide_family *family,
                                  const kingtide_read_options *options,
                                  kingtide_iter **iter,
                                  kingtide_error **err);

// Moves to the first key. Returns true if it is at an entry; otherwise, as for all moves, `kingtide_iter_status` says why.
bool kingtide_iter_seek_to_first(kingtide_iter *iter);

// Moves to the last key.
bool kingtide_iter_seek_to_last(kingtide_iter *iter);

// Goes to the first key that is `key` or behind it. A key that is NULL and has a length leaves the iterator invalid, and its
// status is INVALID_ARGUMENT until the next seek.
bool kingtide_iter_seek(kingtide_iter *iter,
                        const void *key,
                        size_t key_len);

// Moves to the last key at or before `key`.
bool kingtide_iter_seek_for_prev(kingtide_iter *iter, const void *key, size_t key_len);

// Moves to the next key. Allocates nothing. Does nothing while invalid.
bool kingtide_iter_next(kingtide_iter *iter);

// Moves to the previous key. Does nothing while invalid.
bool kingtide_iter_prev(kingtide_iter *iter);

// Moves by up to `count` keys, forward or backward, and fills `entries`, which has room for `count`, with the entries that
// it passes: one call instead of three per entry. Returns their number. It stops early after `most_bytes` of keys and
// values, after an entry that expires, and at the end. At the end it is invalid, and, as after an error, the earlier entries are
// still returned. Otherwise it is at the last returned entry. While invalid it does nothing: begin with a seek, whose entry
// is not returned. The entries' pointers are valid until the next walk, regardless of other moves, or until the iterator is freed.
size_t kingtide_iter_walk(kingtide_iter *iter,
                          bool forward,
                          kingtide_entry *entries,
                          size_t count,
                          size_t most_bytes);

// Returns whether it is at an entry.
bool kingtide_iter_valid(const kingtide_iter *iter);

// Returns the error that stopped it, if any. A loop that ends because the iterator is invalid must check this.
//
// Errors: CORRUPTION, IO; INVALID_ARGUMENT (a seek with a key that is NULL); of a transaction's, FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_iter_status(const kingtide_iter *iter,
                                     kingtide_error **err);

// The key; NULL while invalid. `len`, unless NULL, is set to its length. Valid until the iterator moves.
const uint8_t *kingtide_iter_key(const kingtide_iter *iter, size_t *len);

// The value: read from its value log, or decompressed, on the first call at an entry. Valid until the iterator moves.
//
// Errors: INVALID_ARGUMENT (at no entry), CORRUPTION, IO; of a transaction's, FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_iter_value(kingtide_iter *iter, const uint8_t **value, size_t *len, kingtide_error **err);

// Returns when the entry expires, in milliseconds since 1970; 0 if it does not, and while invalid.
uint64_t kingtide_iter_expires_at_ms(const kingtide_iter *iter);

// Moves an iterator of a family to the current state, keeping its bounds. It is invalid afterwards, and an error is
// cleared. Cheaper than a new one.
//
// Errors: as `kingtide_family_iter`; INVALID_ARGUMENT for an iterator of another family or of a transaction.
kingtide_status kingtide_iter_refresh(kingtide_iter *iter, const kingtide_family *family, kingtide_error **err);

// Frees an iterator. NULL is allowed.
void kingtide_iter_free(kingtide_iter *iter);

// Lists running and prepared transactions.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_transactions(const kingtide_db *db, kingtide_txn_list **transactions, kingtide_error **err);

// Returns the number of elements.
size_t kingtide_txn_list_count(const kingtide_txn_list *list);

// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
bool kingtide_txn_list_get(const kingtide_txn_list *list, size_t index, kingtide_txn_info *info);

// Frees a list. NULL is allowed.
void kingtide_txn_list_free(kingtide_txn_list *list);

// Lists all locks that transactions hold.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_locks(const kingtide_db *db, kingtide_lock_list **locks, kingtide_error **err);

// Returns the number of elements.
size_t kingtide_lock_list_count(const kingtide_lock_list *list);

// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
bool kingtide_lock_list_get(const kingtide_lock_list *list, size_t index, kingtide_lock_info *info);

// Frees a list. NULL is allowed.
void kingtide_lock_list_free(kingtide_lock_list *list);

// Lists which transaction waits for the locks of which others.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_lock_waits(const kingtide_db *db, kingtide_lock_wait_list **waits, kingtide_error **err);

// Returns the number of elements.
size_t kingtide_lock_wait_list_count(const kingtide_lock_wait_list *list);

// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
bool kingtide_lock_wait_list_get(const kingtide_lock_wait_list *list, size_t index, kingtide_lock_wait_info *info);

// Frees a list. NULL is allowed.
void kingtide_lock_wait_list_free(kingtide_lock_wait_list *list);

// Sets the function that is called for transactions that wait for locks, replacing the previous one; NULL removes it. It is
// called on the waiting thread, when the wait begins and then a few times a second, because the transactions that it waits for may have
// changed; they may already have ended. It may interrupt or abort transactions, including the waiting one, and must not wait for
// another. `destroy`, which may be NULL, is called when the context is no longer needed, also if this fails.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_set_lock_wait_hook(const kingtide_db *db,
                                               kingtide_lock_wait_fn waits,
                                               void *context,
                                               kingtide_destroy_fn destroy,
                                               kingtide_error **err);

// Sets the functions that are called for transactions that wait for locks, and for deadlocks, replacing those that were set
// before, also by `kingtide_db_set_lock_wait_hook`; NULL removes them.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child). After either, `destroy` is not called and nothing has changed.
kingtide_status kingtide_db_set_lock_hooks(const kingtide_db *db,
                                           const kingtide_lock_hooks *hooks,
                                           kingtide_error **err);

// Returns the number of its transactions.
size_t kingtide_deadlock_count(const kingtide_deadlock *deadlock);

// Describes the lock request of the transaction at an index from 0: `txn` is that transaction. False after the last, or if
// `info->size` is not set. Its pointers are valid as long as the deadlock.
bool kingtide_deadlock_wanted(const kingtide_deadlock *deadlock,
                              size_t index,
                              kingtide_lock_info *info);

// Describes the lock that the transaction at an index from 0 waits for: `txn` is the one that holds it, the next one of the cycle.
// If the lock covers more than the request, it is the first conflicting part. Otherwise as
// `kingtide_deadlock_wanted`.
bool kingtide_deadlock_held(const kingtide_deadlock *deadlock,
                            size_t index,
                            kingtide_lock_info *info);

// Lists the transactions in doubt, oldest first: those prepared now and, after an open, those that recovery found. They
// hold their locks. Resolve them with `kingtide_db_commit_prepared` and `kingtide_db_rollback_prepared`.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_prepared(const kingtide_db *db, kingtide_prepared_list **prepared, kingtide_error **err);

// Returns the number of elements.
size_t kingtide_prepared_list_count(const kingtide_prepared_list *list);

// Describes the one at an index from 0. False after the last, or if `info->size` is not set.
bool kingtide_prepared_list_get(const kingtide_prepared_list *list, size_t index, kingtide_prepared_info *info);

// Frees a list. NULL is allowed.
void kingtide_prepared_list_free(kingtide_prepared_list *list);

// Describes the histogram at an index from 0, as it is now. False behind the last, without a database, or when
// `histogram->size` is not set. Reads about 22 KB, and up to 22 KB more for each family with histograms of its own.
bool kingtide_db_histogram(const kingtide_db *db, size_t index, kingtide_histogram *histogram);

// Does the same for one family: how long operations took in it. The index means the same histogram. Its count is 0 if families
// have no such histogram, and if more families than the option `family_histograms` says were used before this one.
bool kingtide_family_histogram(const kingtide_family *family,
                               size_t index,
                               kingtide_histogram *histogram);

// Gets the nanoseconds that a share `quantile` (0 to 1) of the operations did not exceed, by the histogram's name. A number
// below 0 means 0, and one above 1 means 1; one that is not a number (NaN) is an INVALID_ARGUMENT.
//
// Errors: NOT_FOUND, INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_histogram_quantile(const kingtide_db *db,
                                               const char *name,
                                               double quantile,
                                               uint64_t *nanoseconds,
                                               kingtide_error **err);

// Sets the listener of databases that are opened with these options, replacing the previous one; NULL
// removes it.
//
// Errors: INVALID_ARGUMENT, after which `destroy` is not called.
kingtide_status kingtide_options_set_listener(kingtide_options *options,
                                              const kingtide_listener *listener,
                                              kingtide_error **err);

// Sets what is recorded about the operations of this thread: 0 nothing, 1 counts and waits, 2 also the times of all stages.
// Counting restarts from zero. Returns false for any other level.
bool kingtide_perf_start(int32_t level);

// Returns what the operations of this thread touched, and how long their stages took, since the start or the last such call: the
// fields that are not 0, as `name=value` with spaces between them. Names that end in `_ns` are nanoseconds.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_perf_take(kingtide_text **text,
                                   kingtide_error **err);

// Returns the last 128 operations that took at least as long as the option `slow_operation_threshold_us` says: a line for each,
// oldest first, with what it touched and waited for.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_slow_operations(const kingtide_db *db,
                                            kingtide_text **text,
                                            kingtide_error **err);

// The defaults.
kingtide_options *kingtide_options_new(void);

// Sets an option by name, from text: sizes as "64M", durations in the unit that the name ends with, "true" and "false".
// The name determines whether it is an option of the database or of families. `kingtide_option_get_info` lists all.
//
// Errors: INVALID_ARGUMENT, with the most similar name.
kingtide_status kingtide_options_set(kingtide_options *options,
                                     const char *name,
                                     const char *value,
                                     kingtide_error **err);

// An option's value as text.
//
// Errors: NOT_FOUND.
kingtide_status kingtide_options_get(const kingtide_options *options,
                                     const char *name,
                                     kingtide_text **value,
                                     kingtide_error **err);

// Sets the key order of the default family: "bytewise" (the default), "reverse", "u64", "i64", "case-insensitive", or an order
// that was added.
//
// Errors: NOT_FOUND.
kingtide_status kingtide_options_set_order(kingtide_options *options,
                                           const char *name,
                                           kingtide_error **err);

// Adds a custom key order. Its name is stored with the families that use it, and it must be added to the
// options of every later open. `head` and `destroy` may be NULL. `destroy` is called when neither options nor a database
// need the context any longer, or at once if this fails.
//
// Errors: EXISTS (the name), INVALID_ARGUMENT.
kingtide_status kingtide_options_add_order(kingtide_options *options,
                                           const char *name,
                                           kingtide_compare_fn compare,
                                           kingtide_head_fn head,
                                           void *context,
                                           kingtide_destroy_fn destroy,
                                           kingtide_error **err);

// Loads the stored options and key order of the default family of the database in `path`, and the database's `change_retention`;
// without this call, an open replaces the stored ones.
//
// Errors: NOT_FOUND (no database), INCOMPATIBLE (a key order that was not added), CORRUPTION, NEWER_FORMAT, IO.
kingtide_status kingtide_options_load(kingtide_options *options,
                                      const char *path,
                                      kingtide_error **err);

// Frees options. NULL is allowed.
void kingtide_options_free(kingtide_options *options);

// Describes the option at an index from 0: first those of databases, then those of families. False behind the last, or
// when `info->size` is not set.
bool kingtide_option_get_info(size_t index, kingtide_option_info *info);

// Returns the library's version, such as "0.1.0". Valid for ever.
const char *kingtide_version(void);

// Compares two keys as a built-in order does, by its name; for callers that merge or check. `order` may be NULL for
// "bytewise".
//
// Errors: NOT_FOUND.
kingtide_status kingtide_compare(const char *order,
                                 const void *a,
                                 size_t a_len,
                                 const void *b,
                                 size_t b_len,
                                 int32_t *result,
                                 kingtide_error **err);

// Opens the value of a key for reading in pieces. `snapshot` may be NULL to read the current value. `reader` is set to NULL
// if the key is absent, which is not an error. Free it with `kingtide_reader_free`.
//
// Errors: CORRUPTION with file and offset, IO, CLOSED; INVALID_ARGUMENT (a snapshot of another database), TOO_OLD.
kingtide_status kingtide_family_get_reader(const kingtide_family *family,
                                           const kingtide_snapshot *snapshot,
                                           const void *key,
                                           size_t key_len,
                                           kingtide_reader **reader,
                                           kingtide_error **err);

// Opens the value that a transaction sees of a key for reading in pieces: what `kingtide_txn_get` reads. It is read into
// memory as a whole if it is not committed. `reader` is set to NULL if the key is absent. It may outlive the transaction. Free
// it with `kingtide_reader_free`.
//
// Errors: as `kingtide_txn_get`.
kingtide_status kingtide_txn_get_reader(kingtide_txn *txn,
                                        const kingtide_family *family,
                                        const void *key,
                                        size_t key_len,
                                        kingtide_reader **reader,
                                        kingtide_error **err);

// As `kingtide_txn_get_reader`, for the value that `kingtide_txn_get_for_update` reads, with the same locks and checks.
//
// Errors: as `kingtide_txn_get_for_update`.
kingtide_status kingtide_txn_get_reader_for_update(kingtide_txn *txn,
                                                   const kingtide_family *family,
                                                   const void *key,
                                                   size_t key_len,
                                                   kingtide_reader **reader,
                                                   kingtide_error **err);

// `kingtide_txn_get_reader_for_update`, with a shared lock.
//
// Errors: as `kingtide_txn_get_for_update`.
kingtide_status kingtide_txn_get_reader_for_share(kingtide_txn *txn,
                                                  const kingtide_family *family,
                                                  const void *key,
                                                  size_t key_len,
                                                  kingtide_reader **reader,
                                                  kingtide_error **err);

// Returns the length of the value in bytes; 0 for NULL.
uint64_t kingtide_reader_len(const kingtide_reader *reader);

// Reads up to `size` bytes of the value from byte `offset` on into `buf`, and sets `read` to their number: fewer than
// `size` only at the value's end, and 0 beyond it. Reading forwards is cheap.
//
// Errors: CORRUPTION with file and offset (other parts of the value can still be read), IO, INVALID_ARGUMENT.
kingtide_status kingtide_reader_read(kingtide_reader *reader,
                                     uint64_t offset,
                                     void *buf,
                                     size_t size,
                                     size_t *read,
                                     kingtide_error **err);

// Frees a reader. NULL is allowed.
void kingtide_reader_free(kingtide_reader *reader);

// Takes a snapshot of the current state. Free it with `kingtide_snapshot_free`.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_snapshot(const kingtide_db *db, kingtide_snapshot **snapshot, kingtide_error **err);

// Takes a snapshot of the moment at which `sequence` was the newest sequence number.
//
// Errors: TOO_OLD, INVALID_ARGUMENT (not committed yet), CLOSED.
kingtide_status kingtide_db_snapshot_at(const kingtide_db *db,
                                        uint64_t sequence,
                                        kingtide_snapshot **snapshot,
                                        kingtide_error **err);

// Returns the oldest sequence number at which `kingtide_db_snapshot_at` can read.
uint64_t kingtide_db_oldest_readable_sequence(const kingtide_db *db);

// Takes a snapshot of the current state and keeps it under a name until it is dropped or the database closes. `snapshot` is set to a
// handle of it.
//
// Errors: EXISTS, INVALID_ARGUMENT (an empty or too long name, too many of them), CLOSED.
kingtide_status kingtide_db_name_snapshot(const kingtide_db *db,
                                          const char *name,
                                          kingtide_snapshot **snapshot,
                                          kingtide_error **err);

// A handle of the snapshot of that name.
//
// Errors: NOT_FOUND, CLOSED.
kingtide_status kingtide_db_named_snapshot(const kingtide_db *db,
                                           const char *name,
                                           kingtide_snapshot **snapshot,
                                           kingtide_error **err);

// The names of named snapshots, sorted.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_snapshot_names(const kingtide_db *db, kingtide_strings **names, kingtide_error **err);

// Drops a named snapshot. Its handles stay valid.
//
// Errors: NOT_FOUND, CLOSED.
kingtide_status kingtide_db_drop_named_snapshot(const kingtide_db *db, const char *name, kingtide_error **err);

// The newest sequence number that it sees; 0 for NULL.
uint64_t kingtide_snapshot_sequence(const kingtide_snapshot *snapshot);

// Reads a key as of a snapshot.
//
// Errors: as `kingtide_family_get`; INVALID_ARGUMENT (a snapshot of another database), TOO_OLD.
kingtide_status kingtide_family_get_at(const kingtide_family *family,
                                       const kingtide_snapshot *snapshot,
                                       const void *key,
                                       size_t key_len,
                                       kingtide_value *value,
                                       kingtide_error **err);

// Frees a snapshot. Objects that were created from it may still be used. NULL is allowed.
void kingtide_snapshot_free(kingtide_snapshot *snapshot);

// Takes all statistics. Free them with `kingtide_stats_free`.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_stats(const kingtide_db *db, kingtide_stats **stats, kingtide_error **err);

// Describes the statistic at an index from 0. False after the last, or if `stat->size` is not set.
bool kingtide_stats_get(const kingtide_stats *stats, size_t index, kingtide_stat *stat);

// Gets the value of the statistic of that name. Returns false, and does not write `value`, if there is none.
bool kingtide_stats_value(const kingtide_stats *stats, const char *name, uint64_t *value);

// Figures derived from the counters. False when `amplification->size` is not set.
bool kingtide_stats_amplification(const kingtide_stats *stats, kingtide_amplification *amplification);

// Returns why writes are no longer accepted; NULL if they are. Reads continue to work; the database must be reopened. Valid as long as
// the statistics.
const char *kingtide_stats_writes_stopped(const kingtide_stats *stats);

// Returns the last background error, which the next successful job clears; NULL if there is none. Valid as long as the
// statistics.
const char *kingtide_stats_background_error(const kingtide_stats *stats);

// Describes the family at an index from 0, in the order of names. False behind the last, or when `family->size` is not set.
bool kingtide_stats_family(const kingtide_stats *stats,
                           size_t index,
                           kingtide_family_stats *family);

// Describes a level of the family at an index: `level_index` counts the non-empty levels, from 0. False after the
// last, or if `level->size` is not set.
bool kingtide_stats_level(const kingtide_stats *stats,
                          size_t family_index,
                          size_t level_index,
                          kingtide_level_stats *level);

// Returns all statistics as text for people.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_stats_text(const kingtide_stats *stats, kingtide_text **text, kingtide_error **err);

// Returns all statistics as a JSON object: "counters", "amplification", "families" with their "levels", and "writes_stopped" and
// "background_error", which may be null.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_stats_json(const kingtide_stats *stats,
                                    kingtide_text **json,
                                    kingtide_error **err);

// Frees statistics. NULL is allowed.
void kingtide_stats_free(kingtide_stats *stats);

// All statistics in the text format of Prometheus.
//
// Errors: INVALID_ARGUMENT, CLOSED (in a forked child).
kingtide_status kingtide_db_prometheus(const kingtide_db *db, kingtide_text **text, kingtide_error **err);

// Estimates the contents of a range of keys from metadata and resident indexes, in a few microseconds: no block is read. NULL is
// an open end. For query planners. A transaction's own writes do not count.
//
// Errors: CLOSED; CORRUPTION, IO (opening a table); INVALID_ARGUMENT.
kingtide_status kingtide_family_range_stats(const kingtide_family *family,
                                            const kingtide_bound *lower,
                                            const kingtide_bound *upper,
                                            kingtide_range_stats *stats,
                                            kingtide_error **err);

// Counts the keys of a range if there are at most `most`, and estimates their number otherwise. `exact`,
// unless NULL, is set to whether they were counted.
//
// Errors: as `kingtide_family_range_stats`.
kingtide_status kingtide_family_count_up_to(const kingtide_family *family,
                                            const kingtide_bound *lower,
                                            const kingtide_bound *upper,
                                            uint64_t most,
                                            uint64_t *rows,
                                            bool *exact,
                                            kingtide_error **err);

// Returns keys, in ascending order, that split a range into at most `parts` parts of about equal size, for parallel scans. They
// need not exist; a part goes from one, included, to the next, excluded. NULL is an open end. No block is read. Free the list
// with `kingtide_keys_free`.
//
// Errors: as `kingtide_family_range_stats`.
kingtide_status kingtide_family_split_points(const kingtide_family *family,
                                             const kingtide_bound *lower,
                                             const kingtide_bound *upper,
                                             size_t parts,
                                             kingtide_keys **keys,
                                             kingtide_error **err);

// Returns the number of elements.
size_t kingtide_keys_count(const kingtide_keys *keys);

// Returns the key at an index from 0; NULL after the last. `len`, unless NULL, is set to its length. Valid until the list is freed.
const uint8_t *kingtide_keys_get(const kingtide_keys *keys,
                                 size_t index,
                                 size_t *len);

// Frees a list. NULL is allowed.
void kingtide_keys_free(kingtide_keys *keys);

// Estimates, for each number of leading parts of a range's keys from 1 to `parts`, the number of distinct combinations,
// as query planners need for an index. `distinct` has room for `parts` numbers. Reads about 16 keys at each of `places`
// places, or all keys if there are no more. `rows` and `exact` may be NULL. `parts` is at most 64.
//
// Errors: as `kingtide_family_range_stats`, and of reading.
kingtide_status kingtide_family_cardinality(const kingtide_family *family,
                                            const kingtide_bound *lower,
                                            const kingtide_bound *upper,
                                            size_t parts,
                                            size_t places,
                                            kingtide_first_difference_fn first_difference,
                                            void *context,
                                            uint64_t *distinct,
                                            uint64_t *rows,
                                            bool *exact,
                                            kingtide_error **err);

// Begins a transaction. `options` may be NULL. Free it with `kingtide_txn_free`.
//
// Errors: CLOSED, READ_ONLY, INVALID_ARGUMENT, BUSY (a million transactions run).
kingtide_status kingtide_txn_begin(const kingtide_db *db,
                                   const kingtide_txn_options *options,
                                   kingtide_txn **txn,
                                   kingtide_error **err);

// Its id, unique while the database is open; 0 for NULL.
uint64_t kingtide_txn_id(const kingtide_txn *txn);

// Returns the sequence number as of which it reads, at levels that read as of the beginning. After the first operation of a locking
// transaction at the snapshot level, this fixes that moment.
uint64_t kingtide_txn_snapshot_sequence(const kingtide_txn *txn);

// Returns the number of operations written and not committed.
size_t kingtide_txn_count(const kingtide_txn *txn);

// Sets a key.
//
// Errors: INVALID_ARGUMENT (an empty key, 4 GiB of writes, a family of another database), BUSY (transactions hold too much memory),
// READ_ONLY, FINISHED, ABORTED, EXPIRED, CLOSED; of a locking transaction also CONFLICT, LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED.
kingtide_status kingtide_txn_put(kingtide_txn *txn,
                                 const kingtide_family *family,
                                 const void *key,
                                 size_t key_len,
                                 const void *value,
                                 size_t value_len,
                                 kingtide_error **err);

// Sets a key that expires after `ttl_ms` milliseconds.
//
// Errors: as `kingtide_txn_put`.
kingtide_status kingtide_txn_put_ttl(kingtide_txn *txn,
                                     const kingtide_family *family,
                                     const void *key,
                                     size_t key_len,
                                     const void *value,
                                     size_t value_len,
                                     uint64_t ttl_ms,
                                     kingtide_error **err);

// Sets a key that expires at a moment given in milliseconds since 1970. Keys that must expire together need the same moment.
//
// Errors: as `kingtide_txn_put`.
kingtide_status kingtide_txn_put_until(kingtide_txn *txn,
                                       const kingtide_family *family,
                                       const void *key,
                                       size_t key_len,
                                       const void *value,
                                       size_t value_len,
                                       uint64_t expires_at_ms,
                                       kingtide_error **err);

// Deletes a key.
//
// Errors: as `kingtide_txn_put`.
kingtide_status kingtide_txn_delete(kingtide_txn *txn,
                                    const kingtide_family *family,
                                    const void *key,
                                    size_t key_len,
                                    kingtide_error **err);

// Deletes a key that was put exactly once since its last delete. See `kingtide_batch_single_delete`.
//
// Errors: as `kingtide_txn_put`.
kingtide_status kingtide_txn_single_delete(kingtide_txn *txn,
                                           const kingtide_family *family,
                                           const void *key,
                                           size_t key_len,
                                           kingtide_error **err);

// Deletes all keys from `start` up to, and without, `end`. A locking transaction locks the range.
//
// Errors: as `kingtide_txn_put`; INVALID_ARGUMENT if `start` sorts after `end`.
kingtide_status kingtide_txn_delete_range(kingtide_txn *txn,
                                          const kingtide_family *family,
                                          const void *start,
                                          size_t start_len,
                                          const void *end,
                                          size_t end_len,
                                          kingtide_error **err);

// Deletes all keys that begin with a prefix, including the transaction's own.
//
// Errors: as `kingtide_txn_delete_range` and `kingtide_txn_iter`.
kingtide_status kingtide_txn_delete_prefix(kingtide_txn *txn,
                                           const kingtide_family *family,
                                           const void *prefix,
                                           size_t prefix_len,
                                           kingtide_error **err);

// Reads a key into `value`, created by `kingtide_value_new`: the transaction's own write, or the value that its level lets it
// see. An absent key is not an error: `value` then holds nothing, as after an error.
//
// Errors: CORRUPTION with file and offset, IO, CLOSED, FINISHED, ABORTED, EXPIRED; when the level takes locks on reads, also
// those of `kingtide_txn_get_for_share`.
kingtide_status kingtide_txn_get(kingtide_txn *txn,
                                 const kingtide_family *family,
                                 const void *key,
                                 size_t key_len,
                                 kingtide_value *value,
                                 kingtide_error **err);

// Reads a key that the transaction is going to write; no other can change it before the commit. A locking transaction takes an
// exclusive lock; the key need not exist. It reads the newest committed value. At the snapshot level, all reads are of one moment: if
// the key was changed since, that moment moves to now or, if the transaction has read without locks, released a lock or asked for its
// snapshot, the error is CONFLICT. For an optimistic transaction, the key is checked at the commit.
//
// Errors: as `kingtide_txn_get`; CONFLICT, LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED.
kingtide_status kingtide_txn_get_for_update(kingtide_txn *txn,
                                            const kingtide_family *family,
                                            const void *key,
                                            size_t key_len,
                                            kingtide_value *value,
                                            kingtide_error **err);

// Reads a key that must not change until the commit, although the transaction does not write it: as
// `kingtide_txn_get_for_update`, with a shared lock.
//
// Errors: as `kingtide_txn_get_for_update`.
kingtide_status kingtide_txn_get_for_share(kingtide_txn *txn,
                                           const kingtide_family *family,
                                           const void *key,
                                           size_t key_len,
                                           kingtide_value *value,
                                           kingtide_error **err);

// Sets `found` to whether a key has a value, as `kingtide_txn_get` sees it. No value log is read.
//
// Errors: as `kingtide_txn_get`; INVALID_ARGUMENT (`found` is NULL).
kingtide_status kingtide_txn_contains(kingtide_txn *txn,
                                      const kingtide_family *family,
                                      const void *key,
                                      size_t key_len,
                                      bool *found,
                                      kingtide_error **err);

// Sets `found` to whether `kingtide_txn_get_for_update` would find a value, with the same locks and checks. No value log is read.
//
// Errors: as `kingtide_txn_get_for_update`; INVALID_ARGUMENT (`found` is NULL).
kingtide_status kingtide_txn_contains_for_update(kingtide_txn *txn,
                                                 const kingtide_family *family,
                                                 const void *key,
                                                 size_t key_len,
                                                 bool *found,
                                                 kingtide_error **err);

// `kingtide_txn_contains_for_update`, with a shared lock.
//
// Errors: as `kingtide_txn_contains_for_update`.
kingtide_status kingtide_txn_contains_for_share(kingtide_txn *txn,
                                                const kingtide_family *family,
                                                const void *key,
                                                size_t key_len,
                                                bool *found,
                                                kingtide_error **err);

// Reads `count` keys into as many different values, as of one moment, except where reads take locks and at the
// read-uncommitted level, which read key by key. If some cannot be read, the others are, and the first error is returned;
// `statuses`, unless NULL, has room for `count` statuses, as for `kingtide_family_multi_get`.
//
// Errors: as `kingtide_txn_get`.
kingtide_status kingtide_txn_multi_get(kingtide_txn *txn,
                                       const kingtide_family *family,
                                       const kingtide_slice *keys,
                                       size_t count,
                                       kingtide_value *const *values,
                                       int32_t *statuses,
                                       kingtide_error **err);

// Reads several keys as `kingtide_txn_get_for_update` does. A locking transaction locks them in key order, so that two
// that do so cannot deadlock, and then reads them as of one moment. If the lock of a key could not
// be granted, its status says so (LOCK_HELD with `KINGTIDE_NO_WAIT`, for rows that SKIP LOCKED skips); the others are read.
//
// Errors: as `kingtide_txn_get_for_update`.
kingtide_status kingtide_txn_multi_get_for_update(kingtide_txn *txn,
                                                  const kingtide_family *family,
                                                  const kingtide_slice *keys,
                                                  size_t count,
                                                  kingtide_value *const *values,
                                                  int32_t *statuses,
                                                  kingtide_error **err);

// As `kingtide_txn_multi_get_for_update`, with shared locks.
//
// Errors: as `kingtide_txn_get_for_update`.
kingtide_status kingtide_txn_multi_get_for_share(kingtide_txn *txn,
                                                 const kingtide_family *family,
                                                 const kingtide_slice *keys,
                                                 size_t count,
                                                 kingtide_value *const *values,
                                                 int32_t *statuses,
                                                 kingtide_error **err);

// Locks a key, which need not exist, without reading it. `mode` is one of `kingtide_lock_mode`. Only for locking transactions.
//
// Errors: as `kingtide_txn_lock_range`.
kingtide_status kingtide_txn_lock(kingtide_txn *txn,
                                  const kingtide_family *family,
                                  const void *key,
                                  size_t key_len,
                                  int32_t mode,
                                  kingtide_error **err);

// Releases the lock that the previous call took on a key, if the row is not needed after all, as SQL servers do at READ
// COMMITTED: `kingtide_txn_lock` or, for update or for share, a get of one key, a `contains` or a `get_reader`. `released`,
// unless NULL, is set to whether the lock was released: not if the transaction already had a lock on the key, if the lock has
// become part of a range lock, or at the serializable level.
//
// Errors: FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_txn_unlock_last(kingtide_txn *txn,
                                         bool *released,
                                         kingtide_error **err);

// Locks a range of keys, including absent ones. NULL is an open end. `mode` is one of `kingtide_lock_mode`. Only
// for locking transactions.
//
// Errors: INVALID_ARGUMENT (an optimistic transaction); LOCK_HELD, LOCK_TIMEOUT, DEADLOCK, CANCELLED; FINISHED, ABORTED,
// EXPIRED, CLOSED.
kingtide_status kingtide_txn_lock_range(kingtide_txn *txn,
                                        const kingtide_family *family,
                                        const kingtide_bound *lower,
                                        const kingtide_bound *upper,
                                        int32_t mode,
                                        kingtide_error **err);

// Sets its lock timeout from now on, in milliseconds: 0 for the database's option `lock_timeout_ms`,
// `KINGTIDE_NO_WAIT` not to wait.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_txn_set_lock_timeout(kingtide_txn *txn, int64_t timeout_ms, kingtide_error **err);

// Changes the durability of its prepare and commit, one of `kingtide_durability`, if it is not known at the beginning.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_txn_set_durability(kingtide_txn *txn, int32_t durability, kingtide_error **err);

// Makes further reads see the current state, at `KINGTIDE_REPEATABLE_READ`; writes and locks stay. For a statement's own view
// (SQL's READ COMMITTED is that level with this at the beginning of each statement), and for a locking transaction's snapshot
// that is taken at once and not with the first operation (START TRANSACTION WITH CONSISTENT SNAPSHOT). Open iterators
// are not affected.
//
// Errors: INVALID_ARGUMENT at other levels, or if an optimistic transaction has read for update; FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_txn_refresh_snapshot(kingtide_txn *txn,
                                              kingtide_error **err);

// Sets `changed` to whether a key was committed, a delete included, after the state that the transaction's reads see: then
// `kingtide_txn_get_for_update` may read another value than `kingtide_txn_get`. Always false at levels that read the newest state. The
// transaction's own writes do not count. The answer stays right only while the transaction has the key locked. Much cheaper
// than reading both.
//
// Errors: as `kingtide_txn_get`; INVALID_ARGUMENT (`changed` is NULL).
kingtide_status kingtide_txn_changed_since_snapshot(kingtide_txn *txn,
                                                    const kingtide_family *family,
                                                    const void *key,
                                                    size_t key_len,
                                                    bool *changed,
                                                    kingtide_error **err);

// Sets a savepoint. Savepoints nest; if several have the same name, the newest counts, as in SQL.
//
// Errors: FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_txn_set_savepoint(kingtide_txn *txn, const char *name, kingtide_error **err);

// Rolls back the writes since a savepoint. The savepoint stays; later savepoints are removed. Locks are kept.
//
// Errors: NOT_FOUND (nothing changes), FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_txn_rollback_to_savepoint(kingtide_txn *txn, const char *name, kingtide_error **err);

// Removes a savepoint and all later ones; the writes since then stay.
//
// Errors: as `kingtide_txn_rollback_to_savepoint`.
kingtide_status kingtide_txn_release_savepoint(kingtide_txn *txn, const char *name, kingtide_error **err);

// Commits, also a prepared transaction, and waits until the commit has its durability. `sequence`, unless
// NULL, is set to the sequence number of the last operation, 0 if there was none.
//
// Errors: CONFLICT (it is rolled back); BUSY, NO_SPACE, IO (nothing was written; commit may be tried again); POISONED from
// the sync (visible, and of unknown durability); FINISHED, ABORTED, EXPIRED, CLOSED.
kingtide_status kingtide_txn_commit(kingtide_txn *txn,
                                    uint64_t *sequence,
                                    kingtide_error **err);

// Commits up to the point where the writes are visible: consecutive calls take effect in their order,
// without waiting for the disk. For coordinators that fix the order of commits, such as a binary log;
// `kingtide_ticket_wait` does the rest. Also for a prepared transaction. `ticket`, unless NULL, is set to a ticket that must be freed.
//
// Errors: as `kingtide_txn_commit`, except those of the sync.
kingtide_status kingtide_txn_commit_ordered(kingtide_txn *txn,
                                            kingtide_ticket **ticket,
                                            kingtide_error **err);

// The sequence number of the commit's last operation; 0 if it wrote nothing. Tickets are ordered as the commits are.
uint64_t kingtide_ticket_sequence(const kingtide_ticket *ticket);

// Waits until the commit has its durability. Waiting threads share one sync. Can be called once.
//
// Errors: POISONED, IO: the commit is visible, and it is unknown whether it survives a power cut. FINISHED the second time.
kingtide_status kingtide_ticket_wait(kingtide_ticket *ticket,
                                     kingtide_error **err);

// Frees a ticket; the commit stands. NULL is allowed.
void kingtide_ticket_free(kingtide_ticket *ticket);

// Prepares: checks everything that a commit would check, and logs the transaction under a name of at most 1,024 bytes,
// durably unless it was begun with a durability of its own. From then on its commit cannot fail with a conflict, even after a
// crash, and it is in doubt until it is committed or rolled back, by this handle or by its name. Freeing it leaves it
// in doubt.
//
// Errors: CONFLICT (it is rolled back), EXISTS or INVALID_ARGUMENT (the name), NO_SPACE (it is as before), POISONED from the
// sync (prepared, and of unknown durability), FINISHED, ABORTED, EXPIRED.
kingtide_status kingtide_txn_prepare(kingtide_txn *txn,
                                     const void *xid,
                                     size_t xid_len,
                                     kingtide_error **err);

// Rolls back and releases all locks. It may be called after an error, and is a no-op once the transaction has ended.
//
// Errors: for a prepared transaction, those of the log; the transaction then remains in doubt.
kingtide_status kingtide_txn_rollback(kingtide_txn *txn, kingtide_error **err);

// Rolls back if it is still running, and restarts with the same options, keeping its memory. A prepared transaction stays in
// doubt.
//
// Errors: as `kingtide_txn_begin`.
kingtide_status kingtide_txn_reset(kingtide_txn *txn,
                                   kingtide_error **err);

// Rolls back if it is still running, and frees it. A prepared transaction stays in doubt. NULL is allowed.
void kingtide_txn_free(kingtide_txn *txn);

// Returns a handle with which any thread can abort or interrupt it. Free it with `kingtide_txn_handle_free`.
//
// Errors: INVALID_ARGUMENT.
kingtide_status kingtide_txn_get_handle(const kingtide_txn *txn, kingtide_txn_handle **handle, kingtide_error **err);

// The transaction's id.
uint64_t kingtide_txn_handle_id(const kingtide_txn_handle *handle);

// Rolls the transaction back. A call of its owner that waits for a lock returns ABORTED, as does the next call.
//
// Errors: NOT_FOUND if it is not running: committed, rolled back, or prepared.
kingtide_status kingtide_txn_handle_abort(const kingtide_txn_handle *handle, kingtide_error **err);

// Ends a wait of the transaction for a lock: the waiting call, or else the next one that would have to wait, returns
// CANCELLED. The transaction keeps running. For KILL QUERY.
//
// Errors: NOT_FOUND if it is not running.
kingtide_status kingtide_txn_handle_interrupt(const kingtide_txn_handle *handle, kingtide_error **err);

// Clears an interrupt that ended no wait, for example at the beginning of the next statement.
void kingtide_txn_clear_interrupt(kingtide_txn *txn);

// Frees a handle; the transaction keeps running. NULL is allowed.
void kingtide_txn_handle_free(kingtide_txn_handle *handle);

// Rolls a running transaction back by its id, from any thread.
//
// Errors: NOT_FOUND if it is not running.
kingtide_status kingtide_db_abort_transaction(const kingtide_db *db, uint64_t id, kingtide_error **err);

// Commits a prepared transaction by its name. `sequence`, unless NULL, is set to that of the commit.
//
// Errors: NOT_FOUND if no transaction of that name is in doubt; those of a commit, after which it is still in doubt.
kingtide_status kingtide_db_commit_prepared(const kingtide_db *db,
                                            const void *xid,
                                            size_t xid_len,
                                            uint64_t *sequence,
                                            kingtide_error **err);

// Rolls a prepared transaction back by its name.
//
// Errors: as `kingtide_db_commit_prepared`.
kingtide_status kingtide_db_rollback_prepared(const kingtide_db *db,
                                              const void *xid,
                                              size_t xid_len,
                                              kingtide_error **err);

// Creates an empty value.
kingtide_value *kingtide_value_new(void);

// Returns whether the last read found the key.
bool kingtide_value_is_present(const kingtide_value *value);

// Returns the bytes; NULL if the key was absent. Valid until the value is used for another read or freed.
const uint8_t *kingtide_value_data(const kingtide_value *value);

// Returns the number of bytes; 0 if the key was absent.
size_t kingtide_value_len(const kingtide_value *value);

// Frees a value. NULL is allowed.
void kingtide_value_free(kingtide_value *value);

// The text in UTF-8, NUL at the end. Valid until it is freed. Empty for NULL.
const char *kingtide_text_data(const kingtide_text *text);

// Its bytes, without the NUL.
size_t kingtide_text_len(const kingtide_text *text);

// Frees a text. NULL is allowed.
void kingtide_text_free(kingtide_text *text);

// Returns the number of elements.
size_t kingtide_strings_count(const kingtide_strings *strings);

// Returns the string at an index from 0; NULL after the last. `len`, unless NULL, is set to its length without the NUL. Valid until
// the list is freed.
const char *kingtide_strings_get(const kingtide_strings *strings,
                                 size_t index,
                                 size_t *len);

// Frees a list of strings. NULL is allowed.
void kingtide_strings_free(kingtide_strings *strings);

// Begins a value of any length that is written in pieces, in bounded memory. Free the writer with `kingtide_value_writer_free`.
// A value of up to 1 MiB is kept in memory, a longer one goes to a file. In a family with `value_threshold` = 0, and with
// `change_retention`, a value of any length is kept in memory.
//
// Errors: CLOSED, READ_ONLY, POISONED, INVALID_ARGUMENT.
kingtide_status kingtide_family_value_writer(const kingtide_family *family,
                                             kingtide_value_writer **writer,
                                             kingtide_error **err);

// Appends bytes to the value. After an error the value is discarded, and every further call returns the same error.
//
// Errors: NO_SPACE, IO, CLOSED, INVALID_ARGUMENT (a value that is kept in memory and too long for a batch); BUSY (more values
// are being written than `max_open_files` has room for); FINISHED.
kingtide_status kingtide_value_writer_write(kingtide_value_writer *writer,
                                            const void *data,
                                            size_t len,
                                            kingtide_error **err);

// Returns the bytes written so far; 0 for NULL, and once it is finished.
uint64_t kingtide_value_writer_len(const kingtide_value_writer *writer);

// Finishes the value. The writer cannot be used any further, but must still be freed. Free the value with
// `kingtide_staged_value_free`, even after it was put.
//
// Errors: as `kingtide_value_writer_write`; the value is then discarded.
kingtide_status kingtide_value_writer_finish(kingtide_value_writer *writer,
                                             kingtide_staged_value **value,
                                             kingtide_error **err);

// Frees a writer. An unfinished value is discarded. NULL is allowed.
void kingtide_value_writer_free(kingtide_value_writer *writer);

// Returns the length of the value in bytes; 0 for NULL.
uint64_t kingtide_staged_value_len(const kingtide_staged_value *value);

// Frees a staged value. A value that was committed, or that a batch or transaction has, stays. NULL is allowed.
void kingtide_staged_value_free(kingtide_staged_value *value);

// Sets a key to a staged value of the same family, and commits that. A value can be committed only once.
//
// Errors: INVALID_ARGUMENT (an empty key, a value of another family, one that was committed); as `kingtide_db_write`.
kingtide_status kingtide_family_put_staged(const kingtide_family *family,
                                           const void *key,
                                           size_t key_len,
                                           const kingtide_staged_value *value,
                                           kingtide_error **err);

// Sets a key to a staged value of the same family, without a copy. It expires after `ttl_ms` milliseconds, unless that is
// 0. Until it is committed, the value can be put into other batches and transactions too; it can be committed only once, and the
// commit of another returns INVALID_ARGUMENT.
//
// Errors: INVALID_ARGUMENT (an empty key, a value of another family, one that was committed or prepared, or that the batch has
// already).
kingtide_status kingtide_batch_put_staged(kingtide_batch *batch,
                                          const kingtide_family *family,
                                          const void *key,
                                          size_t key_len,
                                          const kingtide_staged_value *value,
                                          uint64_t ttl_ms,
                                          kingtide_error **err);

// Does the same in a transaction, which reads the value like its other writes. After a conflict the value can be put again. A
// transaction that is prepared keeps the value for itself, after a crash too, until it is committed or rolled back.
//
// Errors: as `kingtide_txn_put` and `kingtide_batch_put_staged`.
kingtide_status kingtide_txn_put_staged(kingtide_txn *txn,
                                        const kingtide_family *family,
                                        const void *key,
                                        size_t key_len,
                                        const kingtide_staged_value *value,
                                        uint64_t ttl_ms,
                                        kingtide_error **err);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KINGTIDE_H */
