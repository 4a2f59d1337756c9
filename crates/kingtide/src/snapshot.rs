//! Snapshots: sequence numbers at which reads may still happen.
//!
//! A merge keeps, of every key, what is visible at the sequence numbers that [`Snapshots::list`] gives it, and every
//! version newer than the last of them, which is the visible sequence number *now*. So a reader at `s` is safe from a
//! merge if the merge's list holds `s`, or its *now* is not newer than `s`. There are two ways to get into the list:
//!
//! * [`Snapshot`] handles are counted in a map. Registering one and listing them take the same lock, and both read the
//!   visible sequence under it: the merge sees the handle, or its *now* is not newer.
//! * Running transactions have a slot each, so that beginning one takes no lock: see [`Snapshots::pin`] for the proof.
//!
//! The *horizon* is the newest *now* that any merge was given. Everything from it on can be read, whether it was
//! registered or not; what lies below it only if it was registered in time, and is still.

use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use kingtide_base::{Error, ErrorKind, Result, SeqNo};
use kingtide_vfs::Origin;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Slots for transactions. One that finds none free takes a [`Snapshot`] instead, which exploration should see too.
const SLOTS: usize = if cfg!(any(shuttle, loom)) { 2 } else { 1024 };
/// A slot that pins nothing.
const UNPINNED: u64 = u64::MAX;
/// Set in a slot once its sequence number is known to be safe; the number is in the bits above.
const SETTLED: u64 = 1;
/// Named snapshots at most.
const MAX_NAMES: usize = 1024;
/// Bytes of a snapshot's name at most.
const MAX_NAME_LEN: usize = 256;

/// The snapshots of a database and the newest visible sequence number.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    visible: AtomicU64,
    held: Mutex<Held>,
    /// Made when the first transaction begins.
    slots: OnceLock<Box<[Slot]>>,
    /// Slots that are not claimed.
    free: Mutex<Vec<u16>>,
    /// Slots from here on were never claimed.
    claimed: AtomicUsize,
    /// In a forked child, handles that are dropped give nothing back.
    origin: Origin,
}

#[derive(Debug, Default)]
struct Held {
    /// Handles by sequence number.
    at: BTreeMap<SeqNo, u32>,
    /// Named snapshots; each counts as a handle.
    names: BTreeMap<String, SeqNo>,
    /// The newest visible sequence that was handed to a merge.
    horizon: SeqNo,
}

impl Held {
    fn add(&mut self, seq: SeqNo) {
        *self.at.entry(seq).or_insert(0) += 1;
    }

    fn remove(&mut self, seq: SeqNo) {
        if let Some(n) = self.at.get_mut(&seq) {
            *n -= 1;
            if *n == 0 {
                self.at.remove(&seq);
            }
        }
    }
}

/// A transaction's slot, in a cache line pair of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Slot(AtomicU64);

/// A claimed slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct SlotId(u16);

impl Snapshots {
    /// For a database that was recovered up to `seq`: recovery keeps only what is visible there.
    pub fn recovered(seq: SeqNo) -> Snapshots {
        let snapshots = Snapshots::default();
        snapshots.publish(seq);
        snapshots.held.lock().horizon = seq;
        snapshots
    }

    /// The newest visible sequence number. Acquire pairs with the Release in [`Snapshots::publish`]: a thread that sees the
    /// number sees the memtable entries below it.
    #[inline]
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes everything up to `seq` visible. Called in commit order, under the commit lock.
    #[inline]
    pub fn publish(&self, seq: SeqNo) {
        debug_assert!(self.visible() <= seq, "{seq} is published after {}", self.visible());
        self.visible.store(seq, Ordering::Release);
    }

    /// Moves to a state that was read anew, which `install` puts in place: a snapshot is taken before all of it or after.
    pub fn advance(&self, seq: SeqNo, install: impl FnOnce()) {
        let mut held = self.held.lock();
        // Before the views: an old view shows the same at a later number, but not a new one at an earlier number.
        self.publish(seq);
        held.horizon = seq;
        install();
    }

    /// Registers a snapshot of now.
    pub fn acquire(self: &Arc<Self>) -> Snapshot {
        if !self.origin.is_here() {
            return Snapshot { seq: self.visible(), list: self.clone() }; // in a forked child, where no read is let through
        }
        let mut held = self.held.lock();
        let seq = self.visible();
        held.add(seq);
        Snapshot { seq, list: self.clone() }
    }

    /// Registers a snapshot of an earlier moment.
    ///
    /// # Errors
    /// `TooOld` when merges may have dropped what was visible then, `InvalidArgument` when that moment has not come.
    pub fn acquire_at(self: &Arc<Self>, seq: SeqNo) -> Result<Snapshot> {
        let mut held = self.held.lock();
        let visible = self.visible();
        if seq > visible {
            let text = format!("sequence number {seq} was not committed yet; the newest is {visible}");
            return Err(Error::invalid(text));
        }
        // The lock is held from here until the handle is in the map. A merge that lists later finds it there; one that
        // listed before kept `seq`, because its `now` is not newer than the horizon, or because it found the handle or
        // the settled slot that is found here.
        if seq < held.horizon && !held.at.contains_key(&seq) && !self.is_settled(seq) {
            return Err(Error::new(
                ErrorKind::TooOld,
                format!(
                    "sequence number {seq} can no longer be read; the oldest that can is {}. Hold a snapshot to keep \
                     history readable",
                    held.horizon
                ),
            ));
        }
        held.add(seq);
        Ok(Snapshot { seq, list: self.clone() })
    }

    /// All snapshots held and the visible sequence, ascending, without duplicates: the versions a merge must keep.
    pub fn list(&self) -> Vec<SeqNo> {
        let mut held = self.held.lock();
        let now = self.visible();
        held.horizon = held.horizon.max(now);
        // Between the load of `now` and those of the slots: see `pin`.
        fence(Ordering::SeqCst);
        let mut all: Vec<SeqNo> = held.at.keys().copied().chain(self.pinned()).filter(|s| *s < now).collect();
        all.sort_unstable();
        all.dedup();
        all.push(now);
        all
    }

    /// Number of snapshots held, transactions' included.
    pub fn count(&self) -> u64 {
        self.held.lock().at.values().map(|n| *n as u64).sum::<u64>() + self.pinned().count() as u64
    }

    /// The oldest sequence number at which a read may happen. A hint: it orders nothing.
    pub fn oldest(&self) -> SeqNo {
        let held = self.held.lock();
        let now = self.visible();
        held.at.keys().next().copied().into_iter().chain(self.pinned()).fold(now, SeqNo::min)
    }

    /// Everything from this sequence number on can be read.
    pub fn oldest_readable(&self) -> SeqNo {
        self.held.lock().horizon
    }
}

/// Transactions' slots.
impl Snapshots {
    /// Claims a slot, for as long as a transaction object lives; `None` when all are claimed.
    pub fn claim_slot(&self) -> Option<SlotId> {
        let mut free = self.free.lock();
        let slots = self.slots.get_or_init(|| {
            *free = (0..SLOTS as u16).rev().collect();
            (0..SLOTS).map(|_| Slot(AtomicU64::new(UNPINNED))).collect()
        });
        debug_assert_eq!(slots.len(), SLOTS);
        let id = free.pop()?;
        // Relaxed: the fence in `pin` orders it before the load in `pinned`.
        self.claimed.fetch_max(id as usize + 1, Ordering::Relaxed);
        Some(SlotId(id))
    }

    /// Gives a slot back. Transactions keep theirs for their next use.
    #[cfg(test)]
    pub fn release_slot(&self, slot: SlotId) {
        self.unpin(slot);
        self.free.lock().push(slot.0);
    }

    /// Pins the visible sequence number in a slot, in place of what it pinned before, and returns it. Until
    /// [`Snapshots::unpin`], merges keep what is visible there. Takes no lock.
    ///
    /// Why: let `s` be the number returned, stored in the last turn of the loop, and consider any merge's `list`. Both
    /// have a SeqCst fence, so one of the two comes first.
    ///
    /// * The fence here first: the store of `s` before it is seen by the loads after the fence in `list`. The merge has
    ///   `s` in its list (or the slot has been unpinned since).
    /// * The fence in `list` first: it lies between the merge's load of its `now` and its loads of the slots. The load
    ///   of `visible` after the fence here reads nothing older than that load did, so it yields at least `now`; and it
    ///   yielded `s`, or the loop would have gone on. So `now <= s`, and the merge keeps every version newer than `now`
    ///   and what is visible at `now` itself.
    ///
    /// `publish` takes no part in this beyond being monotonic: it stays a plain Release store.
    #[inline]
    pub fn pin(&self, slot: SlotId) -> SeqNo {
        let Some(slot) = self.slot(slot) else { return self.visible() };
        let mut seq = self.visible();
        loop {
            slot.store(seq << 1, Ordering::Relaxed); // ordered by the fence
            fence(Ordering::SeqCst); // with the one in `list`
            let now = self.visible();
            if now == seq {
                break;
            }
            seq = now;
        }
        // Release, with the Acquire in `is_settled`: a thread that sees the mark is ordered after the proof above.
        slot.store(seq << 1 | SETTLED, Ordering::Release);
        seq
    }

    /// Pins nothing any more.
    #[inline]
    pub fn unpin(&self, slot: SlotId) {
        if let Some(slot) = self.slot(slot) {
            slot.store(UNPINNED, Ordering::Release); // with the Acquire in `pinned`: reads at the slot come before
        }
    }

    #[inline]
    fn slot(&self, slot: SlotId) -> Option<&AtomicU64> {
        Some(&self.slots.get()?.get(slot.0 as usize)?.0)
    }
}

impl Snapshots {
    fn slot_values(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self.slots.get().map_or(&[][..], |s| s);
        let claimed = self.claimed.load(Ordering::Relaxed).min(slots.len()); // with `claim_slot`
        slots[..claimed].iter().map(|s| s.0.load(Ordering::Acquire)).filter(|v| *v != UNPINNED)
    }

    /// Returns what the slots pin, or are about to pin.
    fn pinned(&self) -> impl Iterator<Item = SeqNo> + '_ {
        self.slot_values().map(|v| v >> 1)
    }

    /// Returns whether a slot is known to keep `seq`. A number that is not settled may be one that a merge has passed over.
    fn is_settled(&self, seq: SeqNo) -> bool {
        self.slot_values().any(|v| v == seq << 1 | SETTLED)
    }
}

/// Named snapshots.
impl Snapshots {
    /// A snapshot of now, kept under a name.
    pub fn name(self: &Arc<Self>, name: &str) -> Result<Snapshot> {
        if name.is_empty() || name.len() > MAX_NAME_LEN {
            return Err(Error::invalid(format!(
                "a snapshot's name has 1 to {MAX_NAME_LEN} bytes; this one has {}",
                name.len()
            )));
        }
        let mut held = self.held.lock();
        if held.names.contains_key(name) {
            return Err(Error::new(ErrorKind::Exists, format!("there is a snapshot named '{name}' already")));
        }
        if held.names.len() >= MAX_NAMES {
            return Err(Error::invalid(format!("there are {MAX_NAMES} named snapshots already; drop some")));
        }
        let seq = self.visible();
        held.names.insert(name.to_owned(), seq);
        held.add(seq); // the name's own
        held.add(seq);
        Ok(Snapshot { seq, list: self.clone() })
    }

    /// The snapshot of that name.
    pub fn named(self: &Arc<Self>, name: &str) -> Result<Snapshot> {
        let mut held = self.held.lock();
        let seq = *held.names.get(name).ok_or_else(|| no_such_name(name))?;
        held.add(seq);
        Ok(Snapshot { seq, list: self.clone() })
    }

    /// The names with their sequence numbers.
    pub fn names(&self) -> Vec<(String, SeqNo)> {
        self.held.lock().names.iter().map(|(name, seq)| (name.clone(), *seq)).collect()
    }

    /// Forgets a name.
    pub fn drop_name(&self, name: &str) -> Result<()> {
        let mut held = self.held.lock();
        let seq = held.names.remove(name).ok_or_else(|| no_such_name(name))?;
        held.remove(seq);
        Ok(())
    }
}

fn no_such_name(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no snapshot named '{name}'"))
}

/// A consistent view of the entire database at one moment, over all families. Reads through it see exactly the data that was committed before it
/// was taken. Dropping it lets compactions drop what only it could see.
///
/// ```
/// # use kingtide::{Db, Options, vfs::MemFs};
/// # let db = Db::open("db", Options::new().fs(MemFs::shared()))?;
/// db.put("tide", "rising")?;
/// let before = db.snapshot();
/// db.put("tide", "falling")?;
/// let family = db.default_family();
/// assert_eq!(before.get(family, "tide")?.as_deref(), Some(&b"rising"[..]));
/// assert!(before.contains_key(family, "tide")? && before.sequence() < db.snapshot().sequence());
/// assert_eq!(before.first(family)?, before.last(family)?, "there is one entry");
/// drop(before);
///
/// // A name keeps one until it is dropped.
/// db.create_named_snapshot("before")?;
/// db.put("tide", "low")?;
/// let again = db.named_snapshot("before")?;
/// assert_eq!(again.get(family, "tide")?.as_deref(), Some(&b"falling"[..]));
/// db.drop_named_snapshot("before")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Snapshot {
    seq: SeqNo,
    list: Arc<Snapshots>,
}

impl Snapshot {
    /// The newest sequence number that the snapshot sees.
    pub fn sequence(&self) -> SeqNo {
        self.seq
    }

    pub(crate) fn belongs_to(&self, list: &Arc<Snapshots>) -> bool {
        Arc::ptr_eq(&self.list, list)
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        if self.list.origin.is_here() {
            self.list.held.lock().add(self.seq);
        }
        Snapshot { seq: self.seq, list: self.list.clone() }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if self.list.origin.is_here() {
            self.list.held.lock().remove(self.seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_counted_and_listed_with_now() {
        let s = Arc::new(Snapshots::default());
        s.publish(5);
        let a = s.acquire();
        let b = a.clone();
        s.publish(9);
        assert_eq!((s.list(), s.count(), s.oldest()), (vec![5, 9], 2, 5));
        drop(a);
        assert_eq!(s.list(), [5, 9]);
        drop(b);
        assert_eq!((s.list(), s.oldest()), (vec![9], 9));
    }

    #[test]
    fn slots_are_listed_while_they_pin() {
        let s = Arc::new(Snapshots::default());
        let a = s.claim_slot().unwrap();
        assert_eq!((s.list(), s.count()), (vec![0], 0));
        assert_eq!(s.pin(a), 0, "zero is a sequence number like any other");
        s.publish(7);
        let b = s.claim_slot().unwrap();
        assert_ne!(a, b);
        assert_eq!(s.pin(b), 7);
        s.publish(9);
        assert_eq!((s.list(), s.count(), s.oldest()), (vec![0, 7, 9], 2, 0));
        assert_eq!(s.pin(a), 9);
        assert_eq!((s.list(), s.oldest()), (vec![7, 9], 7));
        s.release_slot(b);
        assert_eq!((s.list(), s.count()), (vec![9], 1));
        s.unpin(a);
        assert_eq!(s.count(), 0);
        assert_eq!(s.claim_slot(), Some(b), "a slot given back is used again");
        let more = std::iter::from_fn(|| s.claim_slot()).count();
        assert_eq!(more, SLOTS - 2);
        s.release_slot(a);
        assert_eq!(s.claim_slot(), Some(a));
    }

    #[test]
    fn history_is_readable_from_the_horizon_and_where_it_is_held() {
        let s = Arc::new(Snapshots::recovered(10));
        let kind = |seq| s.acquire_at(seq).map(|x| x.sequence()).map_err(|e| e.kind());
        assert_eq!((kind(9), kind(10), kind(11)), (Err(ErrorKind::TooOld), Ok(10), Err(ErrorKind::InvalidArgument)));
        s.publish(20);
        assert_eq!((kind(15), s.oldest_readable()), (Ok(15), 10));
        let held = s.acquire_at(12).unwrap();
        let slot = s.claim_slot().unwrap();
        s.pin(slot);
        s.publish(30);
        assert_eq!(s.list(), [12, 20, 30]);
        assert_eq!(
            (kind(12), kind(13), kind(20), kind(29)),
            (Ok(12), Err(ErrorKind::TooOld), Ok(20), Err(ErrorKind::TooOld))
        );
        assert_eq!((kind(30), s.oldest_readable()), (Ok(30), 30));
        let message = s.acquire_at(13).unwrap_err().to_string();
        assert!(message.contains("13") && message.contains("30"), "{message}");
        drop(held);
        s.unpin(slot);
        assert_eq!((kind(12), kind(20)), (Err(ErrorKind::TooOld), Err(ErrorKind::TooOld)));
    }

    #[test]
    fn names() {
        let s = Arc::new(Snapshots::default());
        s.publish(3);
        assert_eq!(s.name("a").unwrap().sequence(), 3);
        s.publish(4);
        assert_eq!(s.named("a").unwrap().sequence(), 3);
        assert_eq!((s.list(), s.count()), (vec![3, 4], 1));
        assert_eq!(s.name("a").unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(s.name("").unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(s.name(&"x".repeat(257)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(s.named("b").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(s.drop_name("b").unwrap_err().kind(), ErrorKind::NotFound);
        s.drop_name("a").unwrap();
        assert_eq!((s.list(), s.count()), (vec![4], 0));
        (0..MAX_NAMES).for_each(|i| drop(s.name(&i.to_string()).unwrap()));
        assert_eq!(s.name("one more").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    /// Threads pin while another publishes and a third lists. Whatever number a thread has pinned, every list taken
    /// while it was pinned holds it or ends at or below it.
    #[test]
    fn a_pinned_number_is_in_every_list_that_passes_it() {
        use std::sync::atomic::AtomicBool;
        let rounds: u64 = if std::env::var_os("KINGTIDE_FULL").is_some() { 1_000_000 } else { 30_000 };
        let s = Arc::new(Snapshots::default());
        let stop = AtomicBool::new(false);
        // What each pinner has pinned for sure, as the lister may check it: 0 is nothing.
        let sure: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        s.publish(1);
        std::thread::scope(|scope| {
            for mine in &sure {
                scope.spawn(|| {
                    let slot = s.claim_slot().unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        mine.store(s.pin(slot), Ordering::SeqCst);
                        std::thread::yield_now();
                        mine.store(0, Ordering::SeqCst);
                        s.unpin(slot);
                    }
                });
            }
            scope.spawn(|| {
                let mut seq = 1;
                while !stop.load(Ordering::Relaxed) {
                    seq += 1;
                    s.publish(seq);
                }
            });
            for _ in 0..rounds {
                let list = s.list();
                let now = *list.last().unwrap();
                for mine in &sure {
                    // Pinned after the list ended, or during it, or before it: the same rule.
                    let seq = mine.load(Ordering::SeqCst);
                    assert!(seq == 0 || seq >= now || list.contains(&seq), "{seq} is not in {list:?}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
