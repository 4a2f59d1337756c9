//! An iterator over what a transaction sees.
//!
//! On levels that check ranges it tells its transaction what it passed over: from where it was put to where it stands,
//! both included, or to the bound if it ran off the end. Nothing beyond that was seen, so nothing beyond it is checked.

use super::Transaction;
use crate::api::prefix::range_of_prefix;
use crate::api::range::{check_ends, owned_bounds};
use crate::api::{ColumnFamily, KeyRange};
use crate::engine::DbInner;
use crate::family::Family;
use crate::options::ReadOptions;
use crate::read::cursor::prefix_range;
use crate::read::newest::is_empty;
use crate::read::overlay::Overlay;
use crate::read::{Cursor, CursorConfig};
use crate::txn::bounds::slice;
use crate::txn::isolation::ReadRule;
use crate::txn::read_set::Scan;
use crate::txn::state::{State, TxnShared};
use crate::txn::write_set::WriteSet;
use kingtide_base::sync::Mutex;
use kingtide_base::{Error, KeyOrder, Result, TxnId};
use kingtide_locks::LockMode;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

/// Remembers what an iterator passed over.
struct Tracker {
    scan: Arc<Mutex<Scan>>,
    order: KeyOrder,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// Which of the scan's ranges it extends: another cursor may share the scan.
    at: Option<usize>,
}

impl Tracker {
    /// Where a seek begins to look: at its key, or at the bound that it lies outside of.
    fn inside(&self, key: &[u8], forward: bool) -> Bound<Vec<u8>> {
        let from = Bound::Included(key.to_vec());
        let bound = if forward { &self.lower } else { &self.upper };
        if outside(&self.order, &from, bound, !forward) { bound.clone() } else { from }
    }

    /// The iterator was put somewhere by looking from `lower` to `upper`.
    fn begin(&mut self, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) {
        if is_empty(&self.order, slice(&lower), slice(&upper)) {
            return; // put behind the bound, where it sees nothing and goes nowhere
        }
        let mut scan = self.scan.lock();
        // A seek into what was passed already, as a loop of seeks makes them, adds nothing.
        if let Some((from, to)) = self.at.and_then(|at| scan.ranges.get(at))
            && !outside(&self.order, &lower, from, false)
            && !outside(&self.order, &upper, to, true)
        {
            return;
        }
        self.at = Some(scan.ranges.len());
        scan.push(lower, upper);
    }

    /// It moved on to `key`, or off the end.
    fn extend(&self, key: Option<&[u8]>, forward: bool) {
        let mut scan = self.scan.lock();
        let Some((from, to)) = self.at.and_then(|at| scan.ranges.get_mut(at)) else { return };
        let end = if forward { to } else { from };
        match key {
            None => *end = if forward { self.upper.clone() } else { self.lower.clone() },
            Some(key) => {
                let passed = match end {
                    Bound::Unbounded => true,
                    Bound::Included(k) | Bound::Excluded(k) => {
                        let order = self.order.compare(key, k);
                        if forward { order.is_le() } else { order.is_ge() }
                    }
                };
                if passed {
                    return;
                }
                match end {
                    Bound::Included(k) => {
                        k.clear();
                        k.extend_from_slice(key);
                    }
                    _ => *end = Bound::Included(key.to_vec()),
                }
            }
        }
    }
}

/// Returns whether a bound lets through what `of` does not; both upper bounds, or both lower ones.
fn outside(order: &KeyOrder, bound: &Bound<Vec<u8>>, of: &Bound<Vec<u8>>, upper: bool) -> bool {
    match (bound, of) {
        (_, Bound::Unbounded) => false,
        (Bound::Unbounded, _) => true,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            let cmp = order.compare(a, b);
            let cmp = if upper { cmp } else { cmp.reverse() };
            cmp.is_gt() || cmp.is_eq() && matches!((bound, of), (Bound::Included(_), Bound::Excluded(_)))
        }
    }
}

/// Returns the bounds of `options`, narrowed to the keys with the prefix.
fn narrowed(order: &KeyOrder, prefix: &[u8], options: &ReadOptions<'_>) -> Result<(Bound<Vec<u8>>, Bound<Vec<u8>>)> {
    let [from, to] = prefix_range(order, prefix)?;
    let lower = if outside(order, &from, &options.lower, false) { options.lower.clone() } else { from };
    let upper = if outside(order, &to, &options.upper, true) { options.upper.clone() } else { to };
    Ok((lower, upper))
}

/// An iterator over a family as a transaction sees it, the transaction's own writes merged in as of the iterator's
/// creation. It is owned; its moves fail with `Finished`, `Aborted` or `Expired` once the transaction has ended.
///
/// It starts invalid: position it with one of the seeks. After an error it stays invalid, and
/// [`TransactionCursor::status`] returns the error.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// let tides = db.default_family();
/// db.put("ebb", "low")?;
/// db.put("flood", "rising")?;
/// let mut txn = db.begin(kingtide::Isolation::Snapshot)?;
/// txn.delete(tides, b"ebb")?;
/// txn.put(tides, b"spring", b"highest")?;
/// let mut cursor = txn.cursor(tides, ..)?;
/// cursor.seek_to_first();
/// assert_eq!(cursor.key(), b"flood");
/// cursor.next();
/// assert_eq!(cursor.key(), b"spring");
/// assert_eq!(cursor.value()?, b"highest");
/// cursor.next();
/// assert!(!cursor.valid());
/// cursor.status()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TransactionCursor {
    /// Gone once the transaction was over, so that it keeps no files and memtables alive.
    inner: Option<Cursor>,
    db: Arc<DbInner>,
    shared: Arc<TxnShared>,
    id: TxnId,
    tracker: Option<Tracker>,
    /// Whether the transaction has a timeout of its own, which every move checks.
    timed: bool,
    error: Option<Error>,
}

impl Transaction {
    /// A cursor over a range of a family, including the transaction's own writes so far; its later writes do not
    /// show. It is owned, and ends with the transaction. [`Transaction::range`] returns a Rust iterator.
    ///
    /// # Errors
    /// As [`ColumnFamily::cursor`] and [`Transaction::get`].
    pub fn cursor(&mut self, family: &ColumnFamily, range: impl KeyRange) -> Result<TransactionCursor> {
        let (lower, upper) = owned_bounds(&range);
        self.cursor_with(family, ReadOptions { lower, upper, ..Default::default() })
    }

    /// Does what [`Transaction::cursor`] does, with options. The transaction's level decides what it sees, so a snapshot among the
    /// options is an error.
    ///
    /// # Errors
    /// As [`Transaction::cursor`]; `InvalidArgument` for a snapshot.
    pub fn cursor_with(&mut self, family: &ColumnFamily, options: ReadOptions<'_>) -> Result<TransactionCursor> {
        self.iter_as_of(family, options, false)
    }

    /// Does what [`Transaction::cursor_with`] does, but with the newest committed values, regardless of the level's snapshot, as
    /// [`Transaction::get_for_update`] does, but without locks. After [`Transaction::lock_range`], or with a
    /// [`Transaction::get_for_update`] of each key, it shows the current state of the entries to be changed.
    ///
    /// ```
    /// # use kingtide::{Db, Options, vfs::MemFs};
    /// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
    /// use kingtide::{Isolation, ReadOptions};
    ///
    /// let tides = db.default_family();
    /// let mut txn = db.begin(Isolation::RepeatableRead)?;
    /// txn.put_ttl(tides, b"eddy", b"short", std::time::Duration::from_secs(60))?;
    /// db.put("ebb", "low")?; // after the beginning
    /// let mut seen = txn.cursor_with(tides, ReadOptions::new().readahead(true))?;
    /// seen.seek_to_first();
    /// assert_eq!(seen.entry()?, (&b"eddy"[..], &b"short"[..]));
    /// assert!(seen.expires_at().is_some());
    /// let mut newest = txn.cursor_newest(tides, ReadOptions::default())?;
    /// newest.seek_to_first();
    /// assert_eq!(newest.entry()?, (&b"ebb"[..], &b"low"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::cursor_with`]; `InvalidArgument` at levels that check writes, which may not act on data newer than
    /// their snapshot.
    pub fn cursor_newest(&mut self, family: &ColumnFamily, options: ReadOptions<'_>) -> Result<TransactionCursor> {
        if self.rules.check_writes {
            let level = self.isolation();
            return Err(Error::invalid(format!("cursor_newest: not allowed at level {level}, which checks writes")));
        }
        self.iter_as_of(family, options, true)
    }

    fn iter_as_of(
        &mut self,
        family: &ColumnFamily,
        options: ReadOptions<'_>,
        newest: bool,
    ) -> Result<TransactionCursor> {
        self.usable(family)?;
        if options.snapshot.is_some() {
            return Err(Error::invalid(
                "a transaction reads as its isolation level requires, not at a snapshot from the read options",
            ));
        }
        let order = family.inner().order();
        let narrowed = options.prefix.as_deref().map(|prefix| narrowed(order, prefix, &options)).transpose()?;
        let (lower, upper) =
            narrowed.as_ref().map_or((&options.lower, &options.upper), |(lower, upper)| (lower, upper));
        if self.rules.lock_reads {
            self.lock_span(family, slice(lower), slice(upper), LockMode::Shared)?;
        }
        self.fix_snapshot();
        let overlay = self.overlay(family.inner(), slice(lower), slice(upper));
        let tracked = self.rules.check_reads.then(|| (lower.clone(), upper.clone()));
        let seq = || if newest { self.db.snapshots.visible() } else { self.read_seq() };
        let (view, snapshot) = family.inner().acquire_view(|v| v.load_full(), || Ok(seq()))?;
        let config = CursorConfig {
            snapshot,
            lower: options.lower,
            upper: options.upper,
            prefix: options.prefix,
            fill_cache: options.fill_cache,
            readahead: options.readahead,
        };
        let seq = config.snapshot;
        let inner = Cursor::new(view, family.inner().reads.clone(), config, overlay)?;
        let tracker = tracked.map(|(lower, upper)| Tracker {
            scan: self.reads.add_scan(family.inner(), seq),
            order: order.clone(),
            lower,
            upper,
            at: None,
        });
        self.charge();
        self.read_holds(family)?;
        Ok(TransactionCursor {
            inner: Some(inner),
            db: self.db.clone(),
            shared: self.shared.clone(),
            id: self.id,
            tracker,
            timed: self.options.timeout.is_some(),
            error: None,
        })
    }

    /// Deletes all keys in a range. For a range with an open end or an excluded start, two seeks find the first and last key
    /// that the transaction sees, and keys between these are deleted; the seeks are checked or locked like any read,
    /// and a locking transaction locks the entire range against writers.
    ///
    /// # Errors
    /// As [`Transaction::put`]; `InvalidArgument` when the start sorts after the end.
    pub fn delete_range(&mut self, family: &ColumnFamily, range: impl KeyRange) -> Result<()> {
        match (range.lower(), range.upper()) {
            (Bound::Included(start), Bound::Excluded(end)) => self.delete_span(family, start, end),
            (Bound::Included(first), Bound::Included(last)) => self.delete_through(family, first, last),
            (lower, upper) => {
                check_ends("delete_range", family.order(), &range)?;
                self.delete_found(family, lower, upper)
            }
        }
    }

    /// Deletes all keys that begin with `prefix`, ignoring case in the case-insensitive order, including the transaction's own
    /// keys, with one range delete. If the prefix is empty or all 0xff, or the order is [`KeyOrder::Reverse`], two seeks find
    /// the first and last key that the transaction sees, and keys between these are deleted; the seeks are
    /// checked or locked like any read, and a locking transaction locks the entire prefix against writers.
    ///
    /// # Errors
    /// As [`Transaction::delete_range`] and [`Transaction::cursor`]; `InvalidArgument` for an order that does not support
    /// prefix iteration.
    pub fn delete_prefix(&mut self, family: &ColumnFamily, prefix: &[u8]) -> Result<()> {
        self.writable(family)?;
        let order = family.inner().order();
        if let Some((start, end)) = range_of_prefix(order, prefix)? {
            return self.delete_span(family, &start, &end);
        }
        let [lower, upper] = prefix_range(order, prefix)?;
        self.delete_found(family, slice(&lower), slice(&upper))
    }

    /// Deletes from the first key to the last that it sees between two bounds.
    pub(super) fn delete_found(
        &mut self,
        family: &ColumnFamily,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<()> {
        self.writable(family)?;
        if self.rules.lock_writes {
            self.lock_span(family, lower, upper, LockMode::Exclusive)?;
        }
        let mut it = self.cursor(family, (lower, upper))?;
        it.seek_to_first();
        let first = it.key().to_vec();
        it.seek_to_last();
        let last = it.key().to_vec();
        it.status()?;
        if last.is_empty() {
            return Ok(()); // there is none: no key is empty
        }
        self.delete_through(family, &first, &last)
    }

    /// The uncommitted writes between two bounds that an iterator over the family shows: its own, and on the weakest level
    /// those of others, its own being the last word.
    fn overlay(&mut self, family: &Arc<Family>, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<Arc<Overlay>> {
        if self.wrote_nothing() && self.rules.reads != ReadRule::Uncommitted {
            return None;
        }
        let writes = self.shared.writes.lock();
        if self.rules.reads == ReadRule::Uncommitted {
            let mut ops: Vec<(u8, Vec<u8>, Vec<u8>)> = Vec::new();
            let mut files = Vec::new();
            let mut add = |writes: &WriteSet| {
                files.extend(writes.files());
                ops.extend(writes.ops_of(family, 0).map(|(kind, key, value)| (kind, key.to_vec(), value.to_vec())));
            };
            drop(writes); // no thread holds two write sets
            self.db.txns.writers(self.id).iter().for_each(|t| add(&t.writes.lock()));
            add(&self.shared.writes.lock());
            let ops = ops.iter().map(|(kind, k, v)| (*kind, k.as_slice(), v.as_slice()));
            return Overlay::keep(Overlay::build(family.order(), ops), files.into_iter());
        }
        if writes.batch.is_empty() { None } else { self.overlays.within(family, &writes, lower, upper) }
    }
}

impl TransactionCursor {
    /// Another cursor over the same range of the same view, as of the same moment. It starts invalid.
    ///
    /// # Errors
    /// As [`Transaction::cursor`].
    pub(crate) fn another(&self) -> Result<TransactionCursor> {
        let Some(inner) = &self.inner else {
            return Err(self.db.txns.why_not(self.id, self.shared.state_of(self.id)));
        };
        let tracker = self.tracker.as_ref().map(|t| Tracker {
            scan: t.scan.clone(),
            order: t.order.clone(),
            lower: t.lower.clone(),
            upper: t.upper.clone(),
            at: None,
        });
        Ok(TransactionCursor {
            inner: Some(inner.another()?),
            db: self.db.clone(),
            shared: self.shared.clone(),
            id: self.id,
            tracker,
            timed: self.timed,
            error: None,
        })
    }

    /// The iterator, if the transaction still runs.
    fn running(&mut self) -> Option<&mut Cursor> {
        // Not in a forked child: the locks of what ends it may be held there for ever.
        if self.timed && self.db.check_origin().is_ok() {
            let _ = self.db.txns.check_deadline(&self.shared, self.id); // the state tells
        }
        let state = self.shared.state_of(self.id);
        if state != State::Active {
            self.inner = None;
            self.error.get_or_insert_with(|| self.db.txns.why_not(self.id, state));
        }
        self.inner.as_mut()
    }

    fn placed(&mut self, from: Bound<Vec<u8>>, forward: bool) {
        let (Some(t), Some(it)) = (&mut self.tracker, &self.inner) else { return };
        let key = it.valid().then(|| Bound::Included(it.key().to_vec()));
        if forward {
            t.begin(from, key.unwrap_or_else(|| t.upper.clone()));
        } else {
            t.begin(key.unwrap_or_else(|| t.lower.clone()), from);
        }
    }

    fn moved(&self, forward: bool) {
        if let (Some(t), Some(it)) = (&self.tracker, &self.inner) {
            t.extend(it.valid().then(|| it.key()), forward);
        }
    }

    /// Moves to the first key.
    pub fn seek_to_first(&mut self) {
        let Some(it) = self.running() else { return };
        it.seek_to_first();
        if let Some(from) = self.tracker.as_ref().map(|t| t.lower.clone()) {
            self.placed(from, true);
        }
    }

    /// Moves to the last key.
    pub fn seek_to_last(&mut self) {
        let Some(it) = self.running() else { return };
        it.seek_to_last();
        if let Some(from) = self.tracker.as_ref().map(|t| t.upper.clone()) {
            self.placed(from, false);
        }
    }

    /// Moves to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        let Some(it) = self.running() else { return };
        it.seek(key);
        if let Some(from) = self.tracker.as_ref().map(|t| t.inside(key, true)) {
            self.placed(from, true);
        }
    }

    /// Moves to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        let Some(it) = self.running() else { return };
        it.seek_for_prev(key);
        if let Some(from) = self.tracker.as_ref().map(|t| t.inside(key, false)) {
            self.placed(from, false);
        }
    }

    /// Moves to the next key. Does nothing while invalid.
    #[allow(clippy::should_implement_trait)] // a cursor, as `Cursor`
    pub fn next(&mut self) {
        let Some(it) = self.running() else { return };
        if it.valid() {
            it.next();
            self.moved(true);
        }
    }

    /// Moves to the previous key. Does nothing while invalid.
    pub fn prev(&mut self) {
        let Some(it) = self.running() else { return };
        if it.valid() {
            it.prev();
            self.moved(false);
        }
    }

    /// Moves on, forward or backward, and passes each entry to `take`, as [`Cursor::walk`] does. Every entry that it passes counts as read,
    /// even if it is not used. Does nothing while invalid.
    pub fn walk(&mut self, forward: bool, take: impl FnMut(&[u8], &[u8], Option<SystemTime>) -> bool) {
        let Some(it) = self.running() else { return };
        if it.valid() {
            it.walk(forward, take);
            self.moved(forward);
        }
    }

    /// Returns whether it is at an entry.
    pub fn valid(&self) -> bool {
        self.inner.as_ref().is_some_and(Cursor::valid)
    }

    /// The error that stopped it, if any.
    ///
    /// # Errors
    /// As [`Cursor::status`]; `Finished`, `Aborted`, `Expired`.
    pub fn status(&self) -> Result<()> {
        match (&self.error, &self.inner) {
            (Some(e), _) => Err(e.clone()),
            (None, Some(it)) => it.status(),
            (None, None) => Ok(()),
        }
    }

    /// The key. Empty while invalid.
    pub fn key(&self) -> &[u8] {
        self.inner.as_ref().map_or(&[], Cursor::key)
    }

    /// Returns when the entry expires; `None` if it does not, and while invalid.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.inner.as_ref().and_then(Cursor::expires_at)
    }

    /// The value.
    ///
    /// # Errors
    /// As [`Cursor::value`]; `Finished`, `Aborted`, `Expired`.
    pub fn value(&mut self) -> Result<&[u8]> {
        self.entry().map(|(_, value)| value)
    }

    /// Key and value together.
    ///
    /// # Errors
    /// As [`TransactionCursor::value`].
    pub fn entry(&mut self) -> Result<(&[u8], &[u8])> {
        let error = &self.error;
        match &mut self.inner {
            Some(it) => it.entry(),
            None => match error {
                Some(e) => Err(e.clone()),
                None => Err(Error::invalid("the cursor is at no entry")),
            },
        }
    }
}

impl std::fmt::Debug for TransactionCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TransactionCursor(of {}, {:?})", self.id, self.inner)
    }
}
