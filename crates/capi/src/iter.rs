//! Iterators, over a family or over what a transaction sees of it.

use crate::abi::{Out, Sized_, borrow, bytes, config, flag, kingtide_bound, need, out_handle, set_if, zero};
use crate::error::{guard, kingtide_error, kingtide_status, panic_text, quietly};
use crate::family::kingtide_family;
use crate::snapshot::kingtide_snapshot;
use crate::txn::kingtide_txn;
use kingtide::{Cursor, Error, ReadOptions, Result, TransactionCursor};
use kingtide_base::clock::unix_ms_of_time;
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::SystemTime;

/// Options of an iterator. If all members except `size` are zero: all entries, as of now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_read_options {
    /// `sizeof(kingtide_read_options)`.
    pub size: usize,
    /// The lower bound.
    pub lower: kingtide_bound,
    /// The upper bound.
    pub upper: kingtide_bound,
    /// Only keys that begin with this are shown; NULL for all.
    pub prefix: *const c_void,
    /// Its length.
    pub prefix_len: usize,
    /// The snapshot to read at; NULL for now. Not for transactions, where the level decides. Needed only during the call.
    pub snapshot: *const kingtide_snapshot,
    /// Not 0: blocks that it reads do not enter the block cache.
    pub no_fill_cache: i32,
    /// Not 0: read ahead from the start, for long scans; otherwise read-ahead begins by itself after a few blocks.
    pub readahead: i32,
    /// Not 0, for transactions only: show the newest committed values regardless of the level's snapshot, as
    /// `kingtide_txn_get_for_update` does, but without its locks. After `kingtide_txn_lock_range`, or with a get for update of each
    /// key, it shows the current state of the entries to be changed. Not at levels that check writes.
    pub newest: i32,
    /// Zero.
    pub reserved: i32,
}
// SAFETY: numbers and raw pointers only, the size first.
unsafe impl Sized_ for kingtide_read_options {
    const NAME: &'static str = "kingtide_read_options";
}

impl kingtide_read_options {
    ///
    /// # Safety
    /// Its pointers are as [`bytes`] and [`borrow`] need them.
    unsafe fn get<'a>(&self) -> Result<ReadOptions<'a>> {
        zero(self.reserved, Self::NAME)?;
        let own = |b: Bound<&[u8]>| b.map(<[u8]>::to_vec);
        let prefix = bytes(self.prefix, self.prefix_len, "prefix")?;
        let mut options = ReadOptions::new()
            .snapshot(borrow(self.snapshot).map(|s| &s.0))
            .fill_cache(!flag(self.no_fill_cache))
            .readahead(flag(self.readahead));
        options.lower = own(self.lower.get("lower")?);
        options.upper = own(self.upper.get("upper")?);
        options.prefix = (!self.prefix.is_null()).then(|| prefix.to_vec());
        Ok(options)
    }
}

/// A cursor over the keys of a family, in order, in both directions. It is invalid until a seek positions it. It owns the data that
/// it reads, so flushes, compactions and drops do not affect it. A transaction's cursor also shows its earlier writes, and ends
/// with it. For one thread at a time.
pub struct kingtide_iter {
    cursor: Source,
    /// Keys and values that `kingtide_iter_walk` gave last.
    walked: Walked,
    /// What a move panicked with. It stays invalid from then on.
    panic: Option<String>,
    /// Why the last seek was refused. It is invalid until the next one.
    refused: Option<Error>,
}

#[allow(clippy::large_enum_variant)] // boxed as a whole
enum Source {
    Family(Cursor),
    Transaction(TransactionCursor),
}

/// Calls the same method of either.
macro_rules! on {
    ($iter:expr, $it:ident => $call:expr) => {
        match &mut $iter.cursor {
            Source::Family($it) => $call,
            Source::Transaction($it) => $call,
        }
    };
}

impl kingtide_iter {
    fn new(cursor: Source) -> kingtide_iter {
        kingtide_iter { cursor, walked: Walked::default(), panic: None, refused: None }
    }

    fn valid(&self) -> bool {
        self.panic.is_none()
            && self.refused.is_none()
            && match &self.cursor {
                Source::Family(it) => it.valid(),
                Source::Transaction(it) => it.valid(),
            }
    }

    /// An error while a panic made it useless, or the last seek was refused.
    fn sound(&self) -> Result<()> {
        match (&self.panic, &self.refused) {
            (None, None) => Ok(()),
            (None, Some(e)) => Err(e.clone()),
            (Some(text), _) => Err(Error::invalid(format!("an earlier call on the iterator panicked: {text}"))),
        }
    }
}

/// Moves, and tells whether it is at an entry.
#[inline]
fn go(iter: Option<&mut kingtide_iter>, step: impl FnOnce(&mut kingtide_iter)) -> bool {
    let Some(iter) = iter.filter(|i| i.panic.is_none() && i.refused.is_none()) else { return false };
    match catch_unwind(AssertUnwindSafe(|| {
        step(iter);
        iter.valid()
    })) {
        Ok(valid) => valid,
        Err(panic) => {
            iter.panic = Some(panic_text(panic));
            false
        }
    }
}

/// Goes to where a key says, or becomes invalid when it says nothing.
fn seek_to(iter: Option<&mut kingtide_iter>, key: Result<&[u8]>, step: impl FnOnce(&mut kingtide_iter, &[u8])) -> bool {
    let Some(iter) = iter else { return false };
    match key {
        Ok(key) => {
            iter.refused = None;
            go(Some(iter), |iter| step(iter, key))
        }
        Err(e) => {
            iter.refused = Some(e);
            false
        }
    }
}

/// An iterator over a family. `options` may be NULL. Free it with `kingtide_iter_free`.
///
/// Errors: CLOSED, INVALID_ARGUMENT (a snapshot of another database, a prefix in a key order that does not support
/// prefix iteration), TOO_OLD, CORRUPTION, IO.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_family_iter(
    family: Option<&kingtide_family>,
    options: *const kingtide_read_options,
    iter: *mut *mut kingtide_iter,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let out = out_handle(iter, "iter")?;
        let options = config(options)?;
        if flag(options.newest) {
            return Err(Error::invalid("`newest` is for iterators of transactions"));
        }
        let it = need(family, "family")?.0.cursor_with(options.get()?)?;
        out.set(kingtide_iter::new(Source::Family(it)));
        Ok(())
    })
}

/// Creates an iterator over a family as a transaction sees it: its writes before this call are included, its later writes are
/// not. At levels whose reads take locks, the range between the bounds is locked now. After the transaction ended, the iterator returns
/// the same errors as the transaction. Free it with `kingtide_iter_free`, before or after the transaction.
///
/// Errors: as `kingtide_family_iter` and `kingtide_txn_get`; INVALID_ARGUMENT for a snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_txn_iter(
    txn: Option<&mut kingtide_txn>,
    family: Option<&kingtide_family>,
    options: *const kingtide_read_options,
    iter: *mut *mut kingtide_iter,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let (out, txn) = (out_handle(iter, "iter")?, need(txn, "txn")?);
        let (family, options) = (need(family, "family")?, config(options)?);
        let read = options.get()?;
        let it = if flag(options.newest) {
            txn.0.cursor_newest(&family.0, read)?
        } else {
            txn.0.cursor_with(&family.0, read)?
        };
        out.set(kingtide_iter::new(Source::Transaction(it)));
        Ok(())
    })
}

/// Moves to the first key. Returns true if it is at an entry; otherwise, as for all moves, `kingtide_iter_status` says why.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_seek_to_first(iter: Option<&mut kingtide_iter>) -> bool {
    seek_to(iter, Ok(&[]), |iter, _| on!(iter, it => it.seek_to_first()))
}

/// Moves to the last key.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_seek_to_last(iter: Option<&mut kingtide_iter>) -> bool {
    seek_to(iter, Ok(&[]), |iter, _| on!(iter, it => it.seek_to_last()))
}

/// Goes to the first key that is `key` or behind it. A key that is NULL and has a length leaves the iterator invalid, and its
/// status is INVALID_ARGUMENT until the next seek.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_seek(
    iter: Option<&mut kingtide_iter>,
    key: *const c_void,
    key_len: usize,
) -> bool {
    seek_to(iter, bytes(key, key_len, "key"), |iter, key| on!(iter, it => it.seek(key)))
}

/// Moves to the last key at or before `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_seek_for_prev(
    iter: Option<&mut kingtide_iter>,
    key: *const c_void,
    key_len: usize,
) -> bool {
    seek_to(iter, bytes(key, key_len, "key"), |iter, key| on!(iter, it => it.seek_for_prev(key)))
}

/// Moves to the next key. Allocates nothing. Does nothing while invalid.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_next(iter: Option<&mut kingtide_iter>) -> bool {
    go(iter, |iter| on!(iter, it => it.next()))
}

/// Moves to the previous key. Does nothing while invalid.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_prev(iter: Option<&mut kingtide_iter>) -> bool {
    go(iter, |iter| on!(iter, it => it.prev()))
}

/// What a walk came to.
#[derive(Default)]
struct Walked {
    /// Keys and values, one behind the other.
    bytes: Vec<u8>,
    /// Of each entry the lengths of its key and its value, and when it expires.
    lengths: Vec<(usize, usize, u64)>,
}

thread_local! {
    /// The buffers of the iterator that this thread freed last, for its next one. SQL creates an iterator for each of many short ranges,
    /// and growing new buffers would cost as much as the walk.
    static SPARE: Cell<Walked> = const { Cell::new(Walked { bytes: Vec::new(), lengths: Vec::new() }) };
}

impl Walked {
    /// Larger buffers are not kept.
    const KEEP: usize = 128 << 10;

    /// Returns it empty, with its own buffers or the spare ones, if there are any.
    fn emptied(mut self) -> Walked {
        if self.bytes.capacity() == 0 {
            self = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        self.bytes.clear();
        self.lengths.clear();
        self
    }

    fn keep(self) {
        let memory = self.bytes.capacity() + self.lengths.capacity() * size_of::<(usize, usize, u64)>();
        if self.bytes.capacity() > 0 && memory <= Walked::KEEP {
            let _ = SPARE.try_with(|spare| spare.set(self)); // fails while the thread ends
        }
    }
}

/// An entry that a walk returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kingtide_entry {
    /// The key.
    pub key: *const u8,
    /// Its length.
    pub key_len: usize,
    /// The value.
    pub value: *const u8,
    /// Its length.
    pub value_len: usize,
    /// When it expires, in milliseconds since 1970; 0 if it does not.
    pub expires_at_ms: u64,
}

/// Moves by up to `count` keys, forward or backward, and fills `entries`, which has room for `count`, with the entries that
/// it passes: one call instead of three per entry. Returns their number. It stops early after `most_bytes` of keys and
/// values, after an entry that expires, and at the end. At the end it is invalid, and, as after an error, the earlier entries are
/// still returned. Otherwise it is at the last returned entry. While invalid it does nothing: begin with a seek, whose entry
/// is not returned. The entries' pointers are valid until the next walk, regardless of other moves, or until the iterator is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_walk(
    iter: Option<&mut kingtide_iter>,
    forward: bool,
    entries: *mut kingtide_entry,
    count: usize,
    most_bytes: usize,
) -> usize {
    let Some(iter) = iter.filter(|i| i.valid() && count > 0) else { return 0 };
    let Ok(place) = Out::new(entries, "entries") else { return 0 };
    let mut walked = std::mem::take(&mut iter.walked).emptied();
    go(Some(iter), |iter| {
        let take = |key: &[u8], value: &[u8], expires: Option<SystemTime>| {
            walked.bytes.extend_from_slice(key);
            walked.bytes.extend_from_slice(value);
            walked.lengths.push((key.len(), value.len(), expires.map_or(0, unix_ms_of_time)));
            walked.lengths.len() < count && walked.bytes.len() < most_bytes && expires.is_none()
        };
        on!(iter, it => it.walk(forward, take));
    });
    // Only now: the buffer moved as it grew.
    let mut rest = &walked.bytes[..];
    place.set_each(walked.lengths.iter().map(|&(key_len, value_len, expires_at_ms)| {
        let (key, behind) = rest.split_at(key_len);
        let (value, behind) = behind.split_at(value_len);
        rest = behind;
        kingtide_entry { key: key.as_ptr(), key_len, value: value.as_ptr(), value_len, expires_at_ms }
    }));
    let given = walked.lengths.len();
    iter.walked = walked;
    given
}

/// Returns whether it is at an entry.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_valid(iter: Option<&kingtide_iter>) -> bool {
    quietly(false, || iter.is_some_and(kingtide_iter::valid))
}

/// Returns the error that stopped it, if any. A loop that ends because the iterator is invalid must check this.
///
/// Errors: CORRUPTION, IO; INVALID_ARGUMENT (a seek with a key that is NULL); of a transaction's, FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_status(
    iter: Option<&kingtide_iter>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let iter = need(iter, "iter")?;
        if let Some(text) = &iter.panic {
            // Caught a level up, where it becomes the status that the move could not return.
            std::panic::resume_unwind(Box::new(text.clone()));
        }
        iter.sound()?;
        match &iter.cursor {
            Source::Family(it) => it.status(),
            Source::Transaction(it) => it.status(),
        }
    })
}

/// The key; NULL while invalid. `len`, unless NULL, is set to its length. Valid until the iterator moves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_key(iter: Option<&kingtide_iter>, len: *mut usize) -> *const u8 {
    let found = quietly(None, || {
        let iter = iter.filter(|i| i.valid())?;
        Some(match &iter.cursor {
            Source::Family(it) => it.key(),
            Source::Transaction(it) => it.key(),
        })
    });
    set_if(len, found.map_or(0, <[u8]>::len));
    found.map_or(ptr::null(), <[u8]>::as_ptr)
}

/// The value: read from its value log, or decompressed, on the first call at an entry. Valid until the iterator moves.
///
/// Errors: INVALID_ARGUMENT (at no entry), CORRUPTION, IO; of a transaction's, FINISHED, ABORTED, EXPIRED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_value(
    iter: Option<&mut kingtide_iter>,
    value: *mut *const u8,
    len: *mut usize,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let iter = need(iter, "iter")?;
        iter.sound()?;
        let found = on!(iter, it => it.value())?;
        set_if(value, found.as_ptr());
        set_if(len, found.len());
        Ok(())
    })
}

/// Returns when the entry expires, in milliseconds since 1970; 0 if it does not, and while invalid.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_expires_at_ms(iter: Option<&kingtide_iter>) -> u64 {
    quietly(0, || match iter.filter(|i| i.valid()).map(|i| &i.cursor) {
        Some(Source::Family(it)) => it.expires_at().map_or(0, unix_ms_of_time),
        Some(Source::Transaction(it)) => it.expires_at().map_or(0, unix_ms_of_time),
        None => 0,
    })
}

/// Moves an iterator of a family to the current state, keeping its bounds. It is invalid afterwards, and an error is
/// cleared. Cheaper than a new one.
///
/// Errors: as `kingtide_family_iter`; INVALID_ARGUMENT for an iterator of another family or of a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kingtide_iter_refresh(
    iter: Option<&mut kingtide_iter>,
    family: Option<&kingtide_family>,
    err: *mut *mut kingtide_error,
) -> kingtide_status {
    guard(err, || {
        let iter = need(iter, "iter")?;
        let refused = iter.refused.take();
        let done = iter.sound().and_then(|()| match &mut iter.cursor {
            Source::Family(it) => need(family, "family")?.0.refresh(it),
            Source::Transaction(_) => Err(Error::invalid("an iterator of a transaction cannot be refreshed")),
        });
        if done.is_err() {
            iter.refused = refused;
        }
        done
    })
}

/// Frees an iterator. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn kingtide_iter_free(iter: Option<Box<kingtide_iter>>) {
    quietly((), || {
        if let Some(mut iter) = iter {
            std::mem::take(&mut iter.walked).keep();
        }
    });
}
