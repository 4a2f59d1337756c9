//! How writers are slowed for dead space of value logs, so that they are seldom held for it.
//!
//! Compactions give space back a value log at a time or more, and a flush tells of what a whole memtable hides at once, so how far dead
//! space is past its cap changes in steps of a hundred megabytes and more. Writers are slowed evenly all the same: what the memtable seems
//! to hide counts already while it is filled, a memtable that hides much is sealed early, a compaction counts for half of what it should
//! have found by now, and the pace is that at which compactions were measured to give space back:
//!
//! ```text
//! allowed rate of dead bytes = rate of reclaiming * 1.2 * (1.05 - f) / f
//! ```
//! where `f` is the part of the room past the cap that is used up, and 1 where that is 85 %. So writers and compactions meet at about
//! half of the room. Meeting at two thirds made writers a tenth faster, since less has to be moved where more is dead, but they were held
//! now and then.
//! Each family has a pace of its own, as it has a cap of its own: writers of other families are neither slowed nor held, and their
//! memtables are filled as ever.
//!
//! The rate of flushes, which slows writers for memory, says nothing here: a memtable that points to values which were written once has
//! little to flush.
//!
//! Laws that depend less on `f` were tried in a model of steps whose lengths vary: writers were slowed more evenly by them, but were held
//! now and then.

use crate::failures::Failures;
use kingtide_base::FamilyId;
use kingtide_base::sync::Mutex;
use kingtide_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes per second assumed before compactions gave anything back.
const FIRST_RATE: u64 = 200 << 20;
/// What a byte that is written counts for at least, in 1024ths of a dead byte.
const LEAST_HIDDEN: u64 = 128;
/// The part of a full memtable that hides as many bytes as it has, at which it is sealed.
const EARLIEST: u64 = 4;
/// How much counts of what a compaction should have found by now: some compactions take longer than others.
const EXPECTED: f64 = 0.5;
/// Part of the room from which on writers are slowed as much as possible, so that a late compaction need not hold them.
const SLOWEST_FROM: f64 = 0.85;
/// Divisor of the room. Dead bytes that come at once are a [`Backlog`] if they are more than this part of the room. The backlog ends when the
/// excess is down to this part.
const AT_ONCE: i64 = 4;
/// Part of the room. Where fewer bytes were given back, that says nothing of the rate: flushes and compactions correct estimates of what is
/// hidden by a little.
const FEW: u64 = 32;
/// How many times as fast or as slow as before compactions are taken to be at most: a value log of dead values goes at once, and while they fail,
/// or a manual compaction is in their way, nothing is given back for long.
const ODD: f64 = 8.0;
/// Thousandths that the debt has at least until compactions gave that back.
const IN_BACKLOG: u64 = 750;
/// Weight that older measurements keep at each new one.
const MEMORY: f64 = 0.75;
/// Weight that they keep at the end of a backlog.
const AFTER_BACKLOG: f64 = 0.05;

/// The state of a family.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    /// Dead bytes past the cap, what immutable memtables seem to hide included. Negative where there are fewer than the cap allows.
    pub excess: i64,
    /// Bytes at which writers are held.
    pub room: u64,
    /// Bytes of the family's value logs.
    pub stored: u64,
    /// What the active memtable seems to hide.
    pub coming: u64,
    /// Bytes that flushes hide for each 1024 bytes of keys and values, 1024 at most.
    pub hidden_per_kib: u64,
}

/// Bytes that a flush says are hidden for each 1024 bytes that are written next, after it was so many before. A flush that hides less lowers
/// them by a quarter at most: a writer that alternates between new keys and old ones would otherwise be taken for what it did last.
pub(crate) fn hidden_per_kib(before: u64, hides: u64, bytes: u64) -> u64 {
    let now = (hides as u128 * 1024 / bytes.max(1) as u128).min(1024) as u64;
    now.max(before * 3 / 4)
}

/// Dead bytes that came at once, for which no writer is held.
///
/// Flushes of deletes, compactions that meet deleted ranges, expired values or those of a dropped snapshot, a lower cap, a reopen: these
/// bring gigabytes of dead bytes that no pace of writers could have anticipated. What they bring past the cap does not use up the room until
/// compactions have given back all but a quarter of a room of it. Meanwhile, the old copies of values that compactions move do not use it up
/// either: tables that share value logs are compacted one after the other, and nothing is given back until the last one is compacted. Writers
/// get less than half of what compactions give back, so that the backlog shrinks.
///
/// This holds only for dead bytes that writes announce. If new keys are repeatedly written and then deleted as a range, the writes appear to hide
/// nothing and outrun slow compactions. So a backlog covers only values that existed when it began, or at one later moment; the rest died of
/// writes made during the backlog, and uses up the room.
#[derive(Debug, Default)]
struct Backlog {
    /// The excess when measured last, with what the active memtable seemed to hide.
    expected: i64,
    bytes: i64,
    /// The most bytes that the backlog may have.
    most: i64,
    /// Bytes of value logs that were neither dead nor hidden when measured last.
    live: i64,
}

impl Backlog {
    /// Notes a state with `garbage` dead and hidden bytes, and returns the bytes of the backlog. `announced` is the estimate of the bytes
    /// that writes since the last call hide, `moved` the bytes of values that compactions have moved since then.
    fn note(&mut self, of: &Measured, garbage: u64, announced: u64, moved: u64) -> i64 {
        let least = i64::try_from(of.room).unwrap_or(i64::MAX) / AT_ONCE;
        let rise = of.excess.saturating_sub(self.expected.saturating_add_unsigned(announced).max(0)).max(0);
        self.expected = of.excess.saturating_add_unsigned(of.coming);
        // All bytes that come at once count, even those within the room: writers may have used up most of the room before.
        let came = match (rise > least, self.bytes > 0) {
            (true, _) => rise,
            (false, true) => rise.min(i64::try_from(moved).unwrap_or(i64::MAX)),
            (false, false) => 0,
        };
        let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.most = if self.bytes > 0 { self.most.max(self.live) } else { bytes(of.stored) };
        self.live = bytes(of.stored.saturating_sub(garbage));
        self.bytes = self.bytes.saturating_add(came).min(of.excess.saturating_sub(least)).max(0);
        self.bytes = self.bytes.min(self.most);
        self.bytes
    }
}

/// Of a commit, the bytes for each family, before compression.
pub(crate) type Shares = Vec<(Arc<DeadSpace>, u64)>;

/// The pace of writers of one family. All atomics are Relaxed: they are estimates and order nothing.
#[derive(Debug)]
pub(crate) struct DeadSpace {
    /// The family.
    pub family: FamilyId,
    /// Failures of its compactions. While they fail, no writer is held for space that they cannot give back.
    pub compactions: Failures,
    /// What part of the room is used up, in thousandths.
    used: AtomicU64,
    /// As [`Measured`] says. With what the active memtable seems to hide, the excess may be negative.
    room: AtomicU64,
    excess: AtomicI64,
    hidden_per_kib: AtomicU64,
    /// Whether nothing is past the cap, and nothing that is written now seems to get there.
    is_idle: AtomicBool,
    /// Bytes written since then, as they are stored.
    written: AtomicU64,
    /// Dead bytes that compactions give back per second, and at a time.
    rate: AtomicU64,
    step: AtomicU64,
    /// [`Reclaimed::since`], 0 for never.
    since: AtomicU64,
    /// Bytes of values that compactions have moved since the last measurement.
    moved: AtomicU64,
    /// Thousandths that the debt has at least while there is a [`Backlog`].
    least: AtomicU64,
    /// Monotonic nanosecond at which everything admitted so far is paid for.
    pub paid_until: AtomicU64,
    measured: Mutex<(Reclaimed, Backlog)>,
}

/// What written bytes take in memtables and in the value logs that these point to, after compression, in all families together.
#[derive(Debug)]
pub(crate) struct Stored {
    /// What 1024 written bytes take. Relaxed: an estimate.
    per_kib: AtomicU64,
    flushed: Mutex<Flushed>,
}

/// What was flushed, from which the ratio of compression is computed. Older flushes weigh less.
#[derive(Debug, Default)]
struct Flushed {
    /// Bytes that all commits had at the last flush.
    committed: u64,
    /// Bytes that were committed, and what memtables and value logs had of them.
    written: f64,
    stored: f64,
}

/// What was given back, from which the rate is computed.
#[derive(Debug, Default)]
struct Reclaimed {
    /// Dead and hidden bytes when measured last.
    garbage: u64,
    /// Since when there is something to give back, or when something was last.
    since: Option<u64>,
    /// What was given back since then.
    freed: u64,
    /// What was given back, the nanoseconds that it took, and in how many steps, older ones weighing less.
    bytes: f64,
    ns: f64,
    steps: f64,
}

impl Reclaimed {
    /// Gives the next measurement more weight than all earlier ones together. The value logs of a backlog are nearly empty: moving their few
    /// live bytes gives back many times as many bytes as the same work does once the backlog is gone.
    fn forget(&mut self) {
        for sum in [&mut self.bytes, &mut self.ns, &mut self.steps] {
            *sum *= AFTER_BACKLOG;
        }
    }
}

impl DeadSpace {
    /// Returns the state of a family without dead space.
    pub fn new(family: FamilyId) -> DeadSpace {
        DeadSpace {
            family,
            compactions: Failures::default(),
            used: AtomicU64::new(0),
            room: AtomicU64::new(1),
            excess: AtomicI64::new(0),
            hidden_per_kib: AtomicU64::new(LEAST_HIDDEN),
            is_idle: AtomicBool::new(true),
            written: AtomicU64::new(0),
            rate: AtomicU64::new(FIRST_RATE),
            step: AtomicU64::new(0),
            since: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            least: AtomicU64::new(0),
            paid_until: AtomicU64::new(0),
            measured: Mutex::default(),
        }
    }
}

impl Default for Stored {
    fn default() -> Stored {
        Stored { per_kib: AtomicU64::new(1024), flushed: Mutex::new(Flushed::default()) }
    }
}

impl Stored {
    /// Tells how many bytes a memtable had that was flushed, those of its values in value logs as they are stored, and how many bytes all
    /// commits had until now, before compression.
    pub fn flushed(&self, stored: u64, committed: u64) {
        let mut flushed = self.flushed.lock();
        flushed.written = flushed.written * MEMORY + committed.saturating_sub(flushed.committed) as f64;
        flushed.stored = flushed.stored * MEMORY + stored as f64;
        flushed.committed = committed;
        let per_kib = (flushed.stored * 1024.0 / flushed.written.max(1.0)) as u64;
        self.per_kib.store(per_kib.clamp(1, 1024), Ordering::Relaxed);
    }

    /// What so many written bytes take.
    pub fn bytes(&self, written: u64) -> u64 {
        (written as u128 * self.per_kib.load(Ordering::Relaxed) as u128).div_ceil(1024) as u64
    }
}

impl DeadSpace {
    /// Tells how the family is, and how many of its bytes are dead or hidden, at a monotonic nanosecond.
    pub fn measure(&self, of: Measured, garbage: u64, now: u64) {
        let mut measured = self.measured.lock();
        let (last, backlog) = &mut *measured;
        let announced = self.written.swap(0, Ordering::Relaxed) as f64 * self.hidden();
        let was_behind = backlog.bytes > 0;
        let backlog = backlog.note(&of, garbage, announced as u64, self.moved.swap(0, Ordering::Relaxed));
        if was_behind && backlog == 0 {
            last.forget();
        }
        let (excess, room) = (of.excess.saturating_sub(backlog), of.room.max(1));
        self.used.store((excess.max(0) as u128 * 1000 / room as u128).min(1000) as u64, Ordering::Relaxed);
        self.room.store(room, Ordering::Relaxed);
        self.excess.store(excess.saturating_add_unsigned(of.coming), Ordering::Relaxed);
        self.least.store(if backlog > 0 { IN_BACKLOG } else { 0 }, Ordering::Relaxed);
        self.is_idle.store(of.excess <= 0 && of.hidden_per_kib == 0, Ordering::Relaxed);
        self.hidden_per_kib.store(of.hidden_per_kib.max(LEAST_HIDDEN), Ordering::Relaxed);
        last.freed += last.garbage.saturating_sub(garbage);
        last.garbage = garbage;
        if let Some(since) = last.since
            && last.freed >= (room / FEW).max(1)
        {
            let freed = std::mem::take(&mut last.freed) as f64;
            let usual = freed * 1e9 / self.rate.load(Ordering::Relaxed) as f64;
            let ns = (now.saturating_sub(since) as f64).clamp(usual / ODD, usual * ODD);
            let weight = (room as f64 / 2.0 / freed).min(1.0);
            last.bytes = last.bytes * MEMORY + freed * weight;
            last.ns = last.ns * MEMORY + ns * weight;
            last.steps = last.steps * MEMORY + 1.0;
            self.rate.store(((last.bytes * 1e9 / last.ns) as u64).max(1 << 20), Ordering::Relaxed);
            self.step.store((last.bytes / last.steps) as u64, Ordering::Relaxed);
            last.since = None;
        }
        last.since = if of.excess > 0 { last.since.or(Some(now)) } else { None };
        if last.since.is_none_or(|since| since == now) {
            last.freed = 0;
        }
        self.since.store(last.since.unwrap_or(0), Ordering::Relaxed);
    }

    /// Notes bytes of values that a compaction has moved, whose old copies are dead now.
    pub fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes bytes that are about to be written, as they are stored.
    pub fn write(&self, bytes: u64) {
        if !self.is_idle() {
            self.written.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether writers need not be slowed, nor counted.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    /// At how many bytes a memtable is sealed that otherwise has `most`: where these hide much, early, because it is known what they hide,
    /// and can be given back, when they are flushed. So compactions have work all the time, and the pace of writers is even.
    #[inline]
    pub fn sealed_early(&self, most: u64) -> u64 {
        if self.is_idle() {
            return most;
        }
        let least = most / EARLIEST;
        (least * 1024 / self.hidden_per_kib.load(Ordering::Relaxed)).clamp(least, most)
    }

    /// What part of the room is used up, in thousandths.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether writers are held until dead space is given back.
    pub fn is_full(&self) -> bool {
        self.used() >= 1000
    }

    /// The debt in thousandths at a monotonic nanosecond: the part of the room that is used up, with what was written since it was
    /// measured, and without what compactions should have found to give back since they did so last.
    pub fn debt(&self, now: u64) -> u64 {
        if self.is_idle() {
            return 0;
        }
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let reclaimed = match self.since.load(Ordering::Relaxed) {
            0 => 0.0,
            since => (read(&self.rate) * now.saturating_sub(since) as f64 / 1e9).min(read(&self.step)) * EXPECTED,
        };
        let excess = self.excess.load(Ordering::Relaxed) as f64 + read(&self.written) * self.hidden() - reclaimed;
        (excess * 1000.0 / (SLOWEST_FROM * read(&self.room))).clamp(read(&self.least), 1000.0) as u64
    }

    /// Dead bytes for a stored byte that is written.
    fn hidden(&self) -> f64 {
        self.hidden_per_kib.load(Ordering::Relaxed) as f64 / 1024.0
    }

    /// Nanoseconds that a commit of so many stored bytes is to take, at a monotonic nanosecond.
    pub fn price(&self, bytes: u64, now: u64) -> u64 {
        let debt = self.debt(now);
        if debt == 0 {
            return 0;
        }
        let f = debt as f64 / 1000.0;
        let allowed = self.rate.load(Ordering::Relaxed) as f64 * 1.2 * (1.05 - f) / f;
        (bytes as f64 * self.hidden() * 1e9 / allowed) as u64
    }
}
