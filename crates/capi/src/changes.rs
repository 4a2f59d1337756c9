//! Following commits: streams of what was committed, and hooks that are called for it.

use crate::abi::{Sized_, config, fill, flag, need, out_handle};
use crate::db::kingtide_db;
use crate::error::{c_text, guard, kingtide_error, kingtide_status, quietly};
use crate::family::kingtide_family;
use crate::options::{Context, kingtide_destroy_fn};
use kingtide::{Change, ChangeKind, ChangeStream, ChangeStreamOptions, CommitHook, CommittedWrites};
use kingtide_base::clock::unix_ms_of_time;
use std::ffi::{CString, c_char, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// The kind of an operation.
#[allow(clippy::enum_variant_names)]
#[repr(C)]
pub enum kingtide_change_kind {
    /// Sets a key.
    KINGTIDE_CHANGE_PUT = 1,
    /// Deletes a key.
    KINGTIDE_CHANGE_DELETE = 2,
    /// Deletes a key that was put once.
    KINGTIDE_CHANGE_SINGLE_DELETE = 3,
    /// Deletes all keys from `key` up to, and without, `value`.
    KINGTIDE_CHANGE_DELETE_RANGE = 4,
}

/// One operation of a commit. Its pointers are valid as long as the record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_change {
    /// `sizeof(kingtide_change)`, set by the caller.
    pub size: usize,
    /// One of `kingtide_change_kind`.
    pub kind: i32,
    /// The family's number: see `kingtide_family_id`.
    pub family: u32,
    /// The family's current name; NULL if it was dropped since.
    pub family_name: *const c_char,
    /// The key; for a range, its start.
    pub key: *const c_void,
    /// Its length.
    pub key_len: usize,
    /// The value; for a range, its end.
    pub value: *const c_void,
    /// Its length; 0 for deletes.
    pub value_len: usize,
    /// When the entry expires, in milliseconds since 1970; 0 if it does not.
    pub expires_at_ms: u64,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_change {
    const NAME: &'static str = "kingtide_change";
}

/// The commits that a stream shows. If all members except `size` are zero: every logged commit, as soon as it is committed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_change_options {
    /// `sizeof(kingtide_change_options)`.
    pub size: usize,
    /// Not 0: show only commits that survive a power cut.
    pub durable_only: i32,
    /// Not 0: commits that are not in the log (made without durability, or ingested) are shown as records without
    /// operations, instead of ending the stream with TOO_OLD.
    pub show_unlogged: i32,
}
// SAFETY: numbers only, the size first.
unsafe impl Sized_ for kingtide_change_options {
    const NAME: &'static str = "kingtide_change_options";
}

struct Op {
    kind: i32,
    family: u32,
    /// Among the names.
    name: Option<usize>,
    key: Range<usize>,
    value: Range<usize>,
    expires_at_ms: u64,
}

/// A commit: its operations, in the order in which they were made. Does not change; any thread may read it.
#[derive(Default)]
pub struct kingtide_change_record {
    first: u64,
    last: u64,
    unlogged: bool,
    bytes: Vec<u8>,
    names: Vec<(u32, CString)>,
    ops: Vec<Op>,
}

impl kingtide_change_record {
    fn push(&mut self, change: &Change<'_>) {
        let mut store = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            start..self.bytes.len()
        };
        let (key, value) = (store(change.key), store(change.value));
        let name = change.family_name.map(|name| {
            self.names.iter().position(|(id, _)| *id == change.family).unwrap_or_else(|| {
                self.names.push((change.family, c_text(name.as_bytes())));
                self.names.len() - 1
            })
        });
        let kind = match change.kind {
            ChangeKind::Put => 1,
            ChangeKind::Delete => 2,
            ChangeKind::SingleDelete => 3,
            ChangeKind::DeleteRange => 4,
        };
        let expires_at_ms = change.expires_at.map_or(0, unix_ms_of_time);
        self.ops.push(Op { kind, family: change.family, name, key, value, expires_at_ms });
    }

    fn show(&self, op: &Op) -> kingtide_change {
        let bytes = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or(&[]).as_ptr().cast();
        let name = op.name.and_then(|at| self.names.get(at));
        kingtide_change {
            size: 0,
            kind: op.kind,
            family: op.family,
            family_name: name.map_or(ptr::null(), |(_, name)| name.as_ptr()),
            key: bytes(&op.key),
            key_len: op.key.len(),
            value: bytes(&op.value),
            value_len: op.value.len(),
            expires_at_ms: op.expires_at_ms,
        }
    }
}

/// The commit's sequence number: that of its last operation.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_record_sequence(record: Option<&kingtide_change_record>) -> u64 {
    record.map_or(0, |r| r.last)
}

/// The sequence number of its first operation, over all families. 0 in a commit hook, which is called for its own family only.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_record_first_sequence(record: Option<&kingtide_change_record>) -> u64 {
    record.map_or(0, |r| r.first)
}

/// Returns whether it represents commits that are not in the log, and so has no operations.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_record_is_unlogged(record: Option<&kingtide_change_record>) -> bool {
    record.is_some_and(|r| r.unlogged)
}

/// Returns the number of its operations.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_record_count(record: Option<&kingtide_change_record>) -> usize {
    record.map_or(0, |r| r.ops.len())
}

/// Describes the operation at an index from 0. False after the last, or if `change->size` is not set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_change_record_get(
    record: Option<&kingtide_change_record>,
    index: usize,
    change: *mut kingtide_change,
) -> bool {
    let found = record.and_then(|r| r.ops.get(index).map(|op| r.show(op)));
    found.is_some_and(|found| fill(change, found).is_ok())
}

/// Frees a record returned by a stream. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_record_free(record: Option<Box<kingtide_change_record>>) {
    drop(record);
}

/// The commits of a database in order, read from the log. For one thread at a time.
pub struct kingtide_change_stream(ChangeStream);

/// Opens a stream of all commits after sequence number `since`: the result of `kingtide_change_stream_position` for an
/// earlier stream, or 0 for all available commits. `options` may be NULL. The option `change_retention` says how much log is
/// kept for this. Free it with `kingtide_change_stream_free`.
///
/// Errors: TOO_OLD (the log is gone), INVALID_ARGUMENT (not committed yet), READ_ONLY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_db_changes(
    db: Option<&kingtide_db>,
    since: u64,
    options: *const kingtide_change_options,
    stream: *mut *mut kingtide_change_stream,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, options) = (out_handle(stream, "stream")?, config(options)?);
        let options = ChangeStreamOptions::new()
            .durable_only(flag(options.durable_only))
            .show_unlogged(flag(options.show_unlogged));
        out.set(kingtide_change_stream(need(db, "db")?.db.changes_with(since, options)?));
        Ok(())
    })
}

/// Returns the oldest sequence number after which a stream can begin.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_db_oldest_change_sequence(db: Option<&kingtide_db>) -> u64 {
    quietly(0, || db.map_or(0, |d| d.db.oldest_change_sequence()))
}

/// Returns the next commit; `record` is set to NULL if there is none within `timeout_ms` milliseconds, or at once for 0. Free it with
/// `kingtide_change_record_free`.
///
/// Errors: TOO_OLD (commits that are not, or no longer, in the log), CORRUPTION, IO, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_change_stream_next(
    stream: Option<&mut kingtide_change_stream>,
    timeout_ms: u64,
    record: *mut *mut kingtide_change_record,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, stream) = (out_handle(record, "record")?, need(stream, "stream")?);
        let Some(next) = stream.0.wait_next(Duration::from_millis(timeout_ms))? else { return Ok(()) };
        let mut made = kingtide_change_record {
            first: next.first_sequence,
            last: next.last_sequence,
            unlogged: next.is_unlogged(),
            ..Default::default()
        };
        next.operations().for_each(|op| made.push(&op));
        out.set(made);
        Ok(())
    })
}

/// Returns the sequence number with which a later stream continues from this position.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_stream_position(stream: Option<&kingtide_change_stream>) -> u64 {
    stream.map_or(0, |s| s.0.position())
}

/// Frees a stream. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_change_stream_free(stream: Option<Box<kingtide_change_stream>>) {
    quietly((), || drop(stream));
}

/// Called with each commit to a family. The record is valid during the call, and holds the operations on that family. Must
/// neither unwind nor jump out.
pub type kingtide_commit_fn = Option<unsafe extern "C" fn(context: *mut c_void, record: *const kingtide_change_record)>;

struct Hook {
    committed: unsafe extern "C" fn(*mut c_void, *const kingtide_change_record),
    context: Context,
}

impl CommitHook for Hook {
    fn committed(&self, commit: &CommittedWrites<'_>) {
        let mut record = kingtide_change_record { last: commit.sequence(), ..Default::default() };
        commit.operations().for_each(|op| record.push(&op));
        // SAFETY: the caller that set the hook promised that it can be called with its context, and the record is valid meanwhile.
        unsafe { (self.committed)(self.context.pointer, &raw const record) };
    }
}

/// Sets the function that is called after every commit that writes to the family, replacing the previous one; NULL removes it. Ingests,
/// clones and imports are not reported, because their entries are in files. It is called in commit order, one call at a time over the
/// whole database, on the thread of this commit or of another one, after the commit is visible and before the committing call returns. The
/// commit may become durable later. Commits made inside it are reported afterwards. It must not wait for a commit of another thread. `destroy`, which may be
/// NULL, is called when the context is no longer needed, also if this fails.
///
/// Errors: INVALID_ARGUMENT, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_set_commit_hook(
    family: Option<&kingtide_family>,
    committed: kingtide_commit_fn,
    context: *mut c_void,
    destroy: kingtide_destroy_fn,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    let context = Context { pointer: context, destroy };
    guard(err, || {
        let hook = committed.map(|committed| Arc::new(Hook { committed, context }) as Arc<dyn CommitHook>);
        need(family, "family")?.0.set_commit_hook(hook)
    })
}
