//! Flow control: writers are slowed in proportion to debt, so that they never meet a cliff.
//!
//! Debt is a fraction `f` from 0 (none) to 1: the largest of how far memtable memory is past half of its budget, how far
//! the values that immutable memtables point to are past half of theirs, how far level 0 is past twice its trigger, and how
//! far dead space of value logs is past its cap.
//! Writers together are held to
//!
//! ```text
//! allowed rate = drain rate * (1.1 - f) / f
//! ```
//! where the drain rate is what flushes were measured to take. A little debt costs nothing (f = 0.1 allows ten times the
//! drain rate), f = 0.55 is equilibrium, and f = 1 leaves a tenth. One sleep is at most a millisecond. Only where memory, or
//! the room for values without a table, is used up does a writer wait without a rate, and then it waits for a flush, which
//! takes milliseconds, or gets the background error that keeps flushes from running. Where dead space is past its cap by all
//! that it may be, a writer waits until a compaction gave some back, for a second at most.

use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::events::{Event, LONG_STALL, StallReason};
use kingtide_base::histogram::Histogram;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Longest single sleep.
const MAX_SLEEP: Duration = Duration::from_millis(1);
/// Debts below this are not worth a system call.
const MIN_SLEEP_NS: u64 = 100_000;
/// A commit never waits longer than this for its rate; memory alone may hold it longer.
const MAX_PACE_NS: u64 = 50_000_000;
/// Bytes per second assumed before the first flush was measured.
const FIRST_DRAIN_RATE: u64 = 200 << 20;

/// Measures debt and slows writers. All atomics here are Relaxed: they are estimates and order nothing.
pub(crate) struct WriteController {
    clock: Arc<dyn Clock>,
    stats: Arc<Stats>,
    memory: Arc<Budget>,
    /// Level-0 debt in thousandths.
    level0_debt: AtomicU64,
    /// Values that immutable memtables point to, in thousandths of what they may.
    unflushed_values: AtomicU64,
    /// Dead bytes of value logs past their cap, in thousandths of what they may be.
    dead_space: AtomicU64,
    /// Bytes of memtable that flushes take away per second.
    drain_rate: AtomicU64,
    /// Monotonic nanosecond at which everything admitted so far is paid for.
    paid_until: AtomicU64,
}

/// What to do with a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Go on.
    Go,
    /// Memory, or the room for values without a table, is used up: wait for a flush.
    Full,
}

impl WriteController {
    pub fn new(clock: Arc<dyn Clock>, stats: Arc<Stats>, memory: Arc<Budget>) -> WriteController {
        WriteController {
            clock,
            stats,
            memory,
            level0_debt: AtomicU64::new(0),
            unflushed_values: AtomicU64::new(0),
            dead_space: AtomicU64::new(0),
            drain_rate: AtomicU64::new(FIRST_DRAIN_RATE),
            paid_until: AtomicU64::new(0),
        }
    }

    /// Tells how many runs wait in level 0 of the worst family, in multiples of its trigger.
    pub fn set_level0(&self, worst: f64) {
        let f = ((worst - 2.0) / 6.0).clamp(0.0, 1.0);
        self.level0_debt.store((f * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Tells how many bytes of values immutable memtables point to, as a fraction of what they may.
    pub fn set_unflushed_values(&self, f: f64) {
        self.unflushed_values.store((f * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Tells how far dead bytes of value logs are past the cap of the worst family, as a fraction of how far they may be.
    pub fn set_dead_space(&self, f: f64) {
        self.dead_space.store((f.min(1.0) * 1000.0) as u64, Ordering::Relaxed);
    }

    /// What the last [`WriteController::set_dead_space`] told, in thousandths.
    pub fn dead_space_debt(&self) -> u64 {
        self.dead_space.load(Ordering::Relaxed)
    }

    /// Whether writers wait until dead space is given back.
    pub fn dead_space_full(&self) -> bool {
        self.dead_space_debt() >= 1000
    }

    /// Whether writers wait for a flush whatever their rate, and why.
    pub fn full(&self) -> Option<Stat> {
        if self.memory.used() >= self.memory.limit() {
            return Some(Stat::StallMemoryMicros);
        }
        (self.unflushed_values.load(Ordering::Relaxed) >= 1000).then_some(Stat::StallDebtMicros)
    }

    /// Tells that a flush took away `bytes` of memtable in `ns`.
    pub fn drained(&self, bytes: u64, ns: u64) {
        if bytes < 1 << 20 {
            return; // too small to say anything about the rate
        }
        let now = (bytes as f64 * 1e9 / ns.max(1) as f64) as u64;
        let old = self.drain_rate.load(Ordering::Relaxed);
        self.drain_rate.store((old * 3 + now.max(1 << 20)) / 4, Ordering::Relaxed);
    }

    /// Debt in thousandths: 0 is none.
    pub fn debt(&self) -> u64 {
        let (used, limit) = (self.memory.used(), self.memory.limit().max(1));
        let memory = (used * 2).saturating_sub(limit) * 1000 / limit;
        let values = (self.unflushed_values.load(Ordering::Relaxed) * 2).saturating_sub(1000);
        let rest = self.level0_debt.load(Ordering::Relaxed).max(self.dead_space.load(Ordering::Relaxed));
        memory.max(values).min(1000).max(rest)
    }

    /// Whether a commit of that many bytes would be slowed or held.
    pub fn would_wait(&self, bytes: u64) -> bool {
        self.full().is_some() || self.dead_space_full() || (self.debt() > 550 && self.price(bytes) > MIN_SLEEP_NS)
    }

    fn price(&self, bytes: u64) -> u64 {
        let f = self.debt().max(1) as f64 / 1000.0;
        let allowed = self.drain_rate.load(Ordering::Relaxed) as f64 * (1.1 - f) / f;
        (bytes as f64 * 1e9 / allowed.max(1.0)) as u64
    }

    /// Paces a commit of `bytes`; sleeps if the debt asks for it.
    #[inline]
    pub fn admit(&self, bytes: u64) -> Pace {
        if self.memory.used() * 2 < self.memory.limit()
            && self.level0_debt.load(Ordering::Relaxed) == 0
            && self.unflushed_values.load(Ordering::Relaxed) <= 500
            && self.dead_space.load(Ordering::Relaxed) == 0
        {
            return Pace::Go;
        }
        self.admit_slow(bytes)
    }

    /// Paces a commit of `bytes` as [`WriteController::admit`] does, if that does not take a sleep; otherwise returns false and
    /// counts nothing.
    #[cfg(feature = "tokio")]
    pub fn try_admit(&self, bytes: u64) -> bool {
        if self.full().is_some() || self.dead_space_full() {
            return false;
        }
        if self.debt() == 0 {
            return true;
        }
        let (now, price) = (self.clock.monotonic_ns(), self.price(bytes));
        let pay = |until: u64| Some(until.max(now) + price).filter(|due| *due <= now + MIN_SLEEP_NS);
        self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok()
    }

    #[cold]
    fn admit_slow(&self, bytes: u64) -> Pace {
        if self.full().is_some() {
            return Pace::Full;
        }
        let start = self.clock.monotonic_ns();
        let timer = perf::begin_wait();
        let price = self.price(bytes);
        let mine = match self
            .paid_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(until.max(start) + price))
        {
            Ok(before) | Err(before) => before.max(start) + price,
        };
        let due = mine.min(start + MAX_PACE_NS);
        let long = due.saturating_sub(start) >= LONG_STALL.as_nanos() as u64;
        if long {
            self.stats.events.tell(|| Event::StallBegun(StallReason::Debt));
        }
        let mut now = start;
        // A clock that goes back ends the wait: what is left of it is not known.
        while due > now + MIN_SLEEP_NS && now >= start && self.debt() > 0 {
            self.clock.sleep(Duration::from_nanos(due - now).min(MAX_SLEEP));
            now = self.clock.monotonic_ns();
        }
        if now > start || long {
            self.record(Stat::StallDebtMicros, now.saturating_sub(start), long);
            timer.end(Stage::AdmissionNs);
        }
        Pace::Go
    }

    /// Counts a wait. `begun`: its beginning was told to listeners.
    pub fn record(&self, reason: Stat, ns: u64, begun: bool) {
        self.stats.add(reason, ns / 1000);
        self.stats.add(Stat::Stalls, 1);
        self.stats.raise(Stat::StallMaxMicros, ns / 1000);
        self.stats.record(Histogram::Stall, None, ns);
        let event = || Event::StallEnded(stall_reason(reason), Duration::from_nanos(ns));
        // Short ones come often: each commit that is slowed a little.
        match begun || Duration::from_nanos(ns) >= LONG_STALL {
            true => self.stats.events.tell(event),
            false => self.stats.events.tell_detail(event),
        }
    }
}

/// What a statistic of waiting counts.
pub(crate) fn stall_reason(counted: Stat) -> StallReason {
    if counted == Stat::StallMemoryMicros { StallReason::Memory } else { StallReason::Debt }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kingtide_base::clock::ManualClock;
    use kingtide_base::events::LogLevel;

    fn controller(limit: u64) -> (Arc<ManualClock>, Arc<Budget>, Arc<Stats>, WriteController) {
        let clock = ManualClock::at_unix_ms(1);
        let memory = Budget::new(limit);
        let stats = Arc::new(Stats::default());
        let c = WriteController::new(clock.clone(), stats.clone(), memory.clone());
        (clock, memory, stats, c)
    }

    /// Time for a megabyte grows smoothly with memory debt, is zero below half, and never passes the bound.
    #[test]
    fn the_price_of_a_byte_rises_smoothly() {
        let mut last = 0;
        for percent in [10u64, 49, 55, 65, 75, 85, 95, 99] {
            let (clock, memory, stats, c) = controller(100 << 20);
            memory.charge((percent << 20) + 1);
            let start = clock.monotonic_ns();
            for _ in 0..64 {
                assert_eq!(c.admit(1 << 20), Pace::Go);
            }
            let spent = clock.monotonic_ns() - start;
            assert!(spent >= last, "{percent} %: {spent} < {last}");
            assert!(percent >= 50 || spent == 0);
            assert!(spent <= 64 * MAX_PACE_NS);
            assert_eq!(stats.get(Stat::Stalls) > 0, spent > 0);
            last = spent;
        }
        assert!(last > 100_000_000, "99 % must hurt, cost {last} ns");
    }

    /// A wait of 10 ms or more is reported when it begins and when it ends; shorter ones only as details.
    #[test]
    fn a_long_wait_is_told_of_when_it_begins() {
        for (bytes, expected) in [(64 << 10, vec![]), (64 << 20, vec!["stall_begun", "stall_ended"])] {
            let (clock, memory, stats, c) = controller(100 << 20);
            let told = Arc::new(std::sync::Mutex::new(Vec::new()));
            let sink = told.clone();
            stats
                .events
                .connect(LogLevel::Info, Box::new(move |e| sink.lock().unwrap().push((e.name(), e.to_string()))));
            memory.charge(90 << 20);
            let start = clock.monotonic_ns();
            assert_eq!(c.admit(bytes), Pace::Go);
            assert!(clock.monotonic_ns() > start);
            stats.events.deliver();
            let told = told.lock().unwrap();
            assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), expected, "{told:?}");
        }
    }

    #[test]
    fn values_without_a_table_are_debt_past_half_of_their_room() {
        let (_, _, _, c) = controller(1000);
        for (f, debt) in [(0.0, 0), (0.5, 0), (0.75, 500), (0.999, 998), (1.0, 1000), (3.0, 1000)] {
            c.set_unflushed_values(f);
            assert_eq!((c.debt(), c.full().is_some()), (debt, f >= 1.0), "{f}");
        }
        assert_eq!((c.admit(1), c.full()), (Pace::Full, Some(Stat::StallDebtMicros)));
    }

    #[test]
    fn dead_space_past_its_cap_is_debt_and_then_a_wait() {
        let (_, _, _, c) = controller(1000);
        for (f, debt) in [(0.0, 0), (0.25, 250), (0.999, 999), (1.0, 1000), (7.0, 1000)] {
            c.set_dead_space(f);
            assert_eq!((c.debt(), c.dead_space_full(), c.full()), (debt, f >= 1.0, None), "{f}");
        }
        assert!(c.would_wait(1), "it would be held");
    }

    #[test]
    fn full_memory_is_a_wait_and_level_zero_counts_as_debt() {
        let (_, memory, _, c) = controller(1000);
        memory.charge(1000);
        assert_eq!(c.admit(1), Pace::Full);
        assert!(c.would_wait(1));
        memory.release(1000);
        assert_eq!((c.debt(), c.would_wait(1 << 20)), (0, false));
        c.set_level0(1.9);
        assert_eq!(c.debt(), 0);
        c.set_level0(5.0);
        assert_eq!(c.debt(), 500);
        c.set_level0(100.0);
        assert_eq!((c.debt(), c.would_wait(1 << 20)), (1000, true));
        c.drained(100 << 20, 1_000_000_000);
        assert!(c.drain_rate.load(Ordering::Relaxed) < FIRST_DRAIN_RATE);
    }
}
