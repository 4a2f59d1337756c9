//! Flow control: writers are slowed in proportion to debt, so that they never meet a cliff.
//!
//! Debt is a fraction `f` from 0 (none) to 1: the largest of how far memtable memory is past half of its budget, how far
//! the values that immutable memtables point to are past half of theirs, and how far level 0 is past twice its trigger.
//! Writers together are held to
//!
//! ```text
//! allowed rate = drain rate * (1.1 - f) / f
//! ```
//! where the drain rate is what flushes were measured to take. A little debt costs nothing (f = 0.1 allows ten times the
//! drain rate), f = 0.55 is equilibrium, and f = 1 leaves a tenth. One sleep is at most a millisecond. Only where memory, or
//! the room for values without a table, is used up does a writer wait without a rate, and then it waits for a flush, which
//! takes milliseconds, or gets the background error that keeps flushes from running.
//!
//! Dead space of value logs past its cap is a debt too, with a rate of its own: see [`DeadSpace`]. Where it is past the cap by all
//! that it may be, a writer waits until a compaction gave some back, for a second at most.

use super::dead_space::{DeadSpace, Measured};
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
    /// Dead bytes of value logs past their cap.
    dead_space: DeadSpace,
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
            dead_space: DeadSpace::default(),
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

    /// Tells how far dead bytes of value logs are past the cap in each family, and how many bytes of all families are dead or hidden.
    pub fn set_dead_space(&self, families: &[Measured], garbage: u64) {
        self.dead_space.measure(families.iter().copied(), garbage, self.clock.monotonic_ns());
    }

    /// Tells of a flush, as [`DeadSpace::flushed`] does.
    pub fn flushed(&self, stored: u64) {
        self.dead_space.flushed(stored, self.stats.get(Stat::BytesCommitted));
    }

    /// What part of the room past the cap is used up, in thousandths, as [`WriteController::set_dead_space`] told.
    pub fn dead_space_debt(&self) -> u64 {
        self.dead_space.used()
    }

    /// At how many bytes a memtable is sealed that otherwise has `most`, as [`DeadSpace::sealed_early`] says.
    #[inline]
    pub fn sealed_early(&self, most: u64) -> u64 {
        self.dead_space.sealed_early(most)
    }

    /// Whether writers wait until dead space is given back.
    pub fn dead_space_full(&self) -> bool {
        self.dead_space.is_full()
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
        let dead = if self.dead_space.is_idle() { 0 } else { self.dead_space.debt(self.clock.monotonic_ns()) };
        self.drained_debt().max(dead)
    }

    /// The debt that flushes and compactions of level 0 take away.
    fn drained_debt(&self) -> u64 {
        let (used, limit) = (self.memory.used(), self.memory.limit().max(1));
        let memory = (used * 2).saturating_sub(limit) * 1000 / limit;
        let values = (self.unflushed_values.load(Ordering::Relaxed) * 2).saturating_sub(1000);
        memory.max(values).min(1000).max(self.level0_debt.load(Ordering::Relaxed))
    }

    /// Whether a commit of that many bytes would be slowed or held.
    pub fn would_wait(&self, bytes: u64) -> bool {
        self.full().is_some() || self.dead_space_full() || (self.debt() > 550 && self.price(bytes) > MIN_SLEEP_NS)
    }

    fn price(&self, bytes: u64) -> u64 {
        let f = self.drained_debt().max(1) as f64 / 1000.0;
        let allowed = self.drain_rate.load(Ordering::Relaxed) as f64 * (1.1 - f) / f;
        let drained = (bytes as f64 * 1e9 / allowed.max(1.0)) as u64;
        if self.dead_space.is_idle() {
            return drained;
        }
        drained.max(self.dead_space.price(bytes, self.clock.monotonic_ns()))
    }

    /// Paces a commit of `bytes`; sleeps if the debt asks for it.
    #[inline]
    pub fn admit(&self, bytes: u64) -> Pace {
        if self.memory.used() * 2 < self.memory.limit()
            && self.level0_debt.load(Ordering::Relaxed) == 0
            && self.unflushed_values.load(Ordering::Relaxed) <= 500
            && self.dead_space.is_idle()
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
        let paid = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok();
        if paid {
            self.dead_space.write(bytes);
        }
        paid
    }

    #[cold]
    fn admit_slow(&self, bytes: u64) -> Pace {
        if self.full().is_some() {
            return Pace::Full;
        }
        let start = self.clock.monotonic_ns();
        let timer = perf::begin_wait();
        let price = self.price(bytes);
        self.dead_space.write(bytes);
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
        for (excess, debt) in [(-9, 0), (0, 0), (170, 200), (765, 900), (850, 1000), (1000, 1000), (7000, 1000)] {
            c.set_dead_space(&[Measured { excess, room: 1000, ..Measured::default() }], 0);
            assert_eq!((c.debt(), c.dead_space_full(), c.full()), (debt, excess >= 1000, None), "{excess}");
        }
        assert!(c.would_wait(1), "it would be held");
        // What the active memtable seems to hide counts, and so does what is written from then on.
        let of = |excess| Measured { excess, room: 1 << 20, coming: 100 << 10, hidden_per_kib: 512 };
        for (excess, coming, written) in [(-200 << 10, 0, 0), (-100 << 10, 0, 14), (0, 114, 129), (512 << 10, 703, 718)]
        {
            c.set_dead_space(&[of(excess)], 0);
            assert_eq!(c.debt(), coming);
            c.dead_space.write(26 << 10);
            assert_eq!(c.debt(), written);
        }
        // Writers are slowed for the family that needs it most, and held for any.
        let full = Measured { excess: 100, room: 100, ..Measured::default() };
        let filling = Measured { excess: 90, room: 100, coming: 90, hidden_per_kib: 1024 };
        for families in [[full, filling], [filling, full]] {
            c.set_dead_space(&families, 0);
            assert_eq!((c.dead_space_full(), c.dead_space.sealed_early(4096)), (true, 1024));
        }
        c.set_dead_space(&[filling, Measured::default()], 0);
        assert_eq!((c.debt(), c.dead_space_full(), c.dead_space_debt()), (1000, false, 900));
        c.set_dead_space(&[], 0);
        assert_eq!((c.debt(), c.dead_space_debt()), (0, 0));
    }

    /// Memtables are flushed and space is given back in steps of hundreds of megabytes. Writers are never held, and wait evenly.
    #[test]
    fn writers_meet_the_pace_of_compactions_before_they_are_held() {
        const MIB: u64 = 1 << 20;
        const ROOM: u64 = 640 * MIB;
        const VALUE: u64 = 64 << 10;
        // Of a byte that is written, `stored` are left after compression, and of a stored byte `hidden` is dead later.
        for (reclaim_mib, stored, hidden, step, flush_ms) in [
            (300, 0.6, 1.0, 128, 0),
            (300, 0.6, 1.0, 128, 500),
            (300, 0.6, 1.0, 350, 300),
            (50, 0.6, 1.0, 256, 1000),
            (300, 1.0, 1.0, 128, 500),
            (300, 0.1, 1.0, 128, 500),
            (1000, 1.0, 0.1, 128, 100),
        ] {
            let what =
                format!("{reclaim_mib} MiB/s, {stored}, {hidden}, steps of {step} MiB, flushes of {flush_ms} ms");
            let (clock, _, stats, c) = controller(1 << 30);
            let (mut dead, mut job) = (0u64, None::<(u64, u64)>);
            let (mut memtable, mut immutable) = (0u64, std::collections::VecDeque::<(u64, u64)>::new());
            let (mut longest, mut seconds) = (0, vec![0u64; 60]);
            let hides = |bytes: u64| (bytes as f64 * hidden) as u64;
            let measure = |dead: u64, memtable: u64, immutable: &std::collections::VecDeque<(u64, u64)>| {
                let waiting = immutable.iter().map(|(_, bytes)| hides(*bytes)).sum::<u64>();
                let hidden_per_kib = (hidden * 1024.0) as u64;
                let excess = (dead + waiting) as i64;
                c.set_dead_space(&[Measured { excess, room: ROOM, coming: hides(memtable), hidden_per_kib }], dead);
            };
            // A flush of values that were written once has little to write.
            c.drained(512 * MIB, 1_000_000);
            let begin = clock.monotonic_ns();
            loop {
                let before = clock.monotonic_ns();
                let second = ((before - begin) / 1_000_000_000) as usize;
                if second >= seconds.len() {
                    break;
                }
                assert_eq!((c.admit(VALUE), c.dead_space_full()), (Pace::Go, false), "{what}: held after {second} s");
                longest = longest.max(clock.monotonic_ns() - before);
                clock.advance(Duration::from_micros(30));
                memtable += (VALUE as f64 * stored) as u64;
                seconds[second] += VALUE;
                stats.add(Stat::BytesCommitted, VALUE);
                let now = clock.monotonic_ns();
                if memtable >= c.sealed_early(512 * MIB) {
                    let begins = immutable.back().map_or(now, |(end, _)| *end);
                    immutable.push_back((begins + flush_ms * 1_000_000, memtable));
                    memtable = 0;
                    measure(dead, memtable, &immutable);
                }
                if let Some((_, bytes)) = immutable.pop_front_if(|(end, _)| now >= *end) {
                    c.flushed(bytes);
                    dead += hides(bytes);
                    measure(dead, memtable, &immutable);
                }
                if let Some((_, bytes)) = job.take_if(|(end, _)| now >= *end) {
                    dead -= bytes;
                    measure(dead, memtable, &immutable);
                }
                if job.is_none() && dead > 0 {
                    let bytes = dead.min(step * MIB);
                    job = Some((now + bytes * 1_000_000_000 / (reclaim_mib * MIB), bytes));
                }
            }
            let sustained = (reclaim_mib * MIB) as f64 / hidden / stored;
            let written = seconds[10..].iter().sum::<u64>() as f64 / 50.0;
            let slowest = *seconds[10..].iter().min().expect("they are 50") as f64;
            println!("{what}: {written:.0} B/s of {sustained:.0}, slowest second {slowest:.0}, longest {longest} ns");
            assert!(longest <= 25_000_000, "{what}: a wait of {longest} ns");
            // What compactions can take away is written: they are busy most of the time.
            let most = (VALUE * 1_000_000 / 30) as f64;
            assert!(written >= 0.8 * sustained.min(most), "{what}: {written} of {sustained}");
            assert!(slowest >= 0.3 * written, "{what}: {slowest} in a second, {written} on average");
        }
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
