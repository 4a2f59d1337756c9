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
//! Dead space of value logs past its cap is a debt too, but of the families that a commit writes to, each with a rate of its own: see
//! [`DeadSpace`]. Where it is past the cap by all that it may be, a writer waits until compactions gave enough back.

use super::dead_space::{DeadSpace, Stored};
use kingtide_base::budget::Budget;
use kingtide_base::clock::Clock;
use kingtide_base::events::{Event, LONG_STALL, StallReason};
use kingtide_base::histogram::Histogram;
use kingtide_base::perf::{self, Stage};
use kingtide_base::stats::{Stat, Stats};
use kingtide_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Whether each family's [`DeadSpace`] is idle, and what part of its room is used up in the worst one, in thousandths.
    dead_space_idle: AtomicBool,
    dead_space_used: AtomicU64,
    stored: Stored,
    /// Bytes of memtable that flushes take away per second.
    drain_rate: AtomicU64,
    /// Monotonic nanosecond at which everything admitted so far is paid for.
    paid_until: AtomicU64,
}

/// Whether writers to one of these families are held until dead space is given back.
pub(crate) fn any_full(shares: &[(Arc<DeadSpace>, u64)]) -> bool {
    shares.iter().any(|(family, _)| family.is_full())
}

/// Takes `price` nanoseconds from a timeline at a monotonic nanosecond, and returns when that is paid. What a commit would wait for beyond the
/// longest wait is forgiven: otherwise the sum of it would slow writers long after the debt is gone.
fn pay(until: &AtomicU64, price: u64, now: u64) -> u64 {
    let due = |until: u64| (until.max(now) + price).min(now + MAX_PACE_NS);
    match until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(due(until))) {
        Ok(before) | Err(before) => due(before),
    }
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
            dead_space_idle: AtomicBool::new(true),
            dead_space_used: AtomicU64::new(0),
            stored: Stored::default(),
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

    /// Tells that dead space of all families was measured anew.
    pub fn set_dead_space<'a>(&self, families: impl Iterator<Item = &'a DeadSpace> + Clone) {
        self.dead_space_idle.store(families.clone().all(DeadSpace::is_idle), Ordering::Relaxed);
        self.dead_space_used.store(families.map(DeadSpace::used).max().unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether no writer need be slowed for dead space, so that what it writes need not be told.
    #[inline]
    pub fn dead_space_is_idle(&self) -> bool {
        self.dead_space_idle.load(Ordering::Relaxed)
    }

    /// Tells of a flush, as [`Stored::flushed`] does.
    pub fn flushed(&self, stored: u64) {
        self.stored.flushed(stored, self.stats.get(Stat::BytesCommitted));
    }

    /// What part of the room past the cap is used up in the worst family, in thousandths.
    pub fn dead_space_debt(&self) -> u64 {
        self.dead_space_used.load(Ordering::Relaxed)
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

    /// Debt in thousandths of a commit that writes to these families: 0 is none.
    pub fn debt(&self, shares: &[(Arc<DeadSpace>, u64)]) -> u64 {
        let drained = self.drained_debt();
        if shares.is_empty() {
            return drained;
        }
        let now = self.clock.monotonic_ns();
        shares.iter().map(|(family, _)| family.debt(now)).fold(drained, u64::max)
    }

    /// The debt that flushes and compactions of level 0 take away.
    fn drained_debt(&self) -> u64 {
        let (used, limit) = (self.memory.used(), self.memory.limit().max(1));
        let memory = (used * 2).saturating_sub(limit) * 1000 / limit;
        let values = (self.unflushed_values.load(Ordering::Relaxed) * 2).saturating_sub(1000);
        memory.max(values).min(1000).max(self.level0_debt.load(Ordering::Relaxed))
    }

    /// Whether a commit of that many bytes would be slowed or held.
    pub fn would_wait(&self, bytes: u64, shares: &[(Arc<DeadSpace>, u64)]) -> bool {
        if self.full().is_some() || any_full(shares) {
            return true;
        }
        let now = self.clock.monotonic_ns();
        let dead = |(family, bytes): &(Arc<DeadSpace>, u64)| family.price(self.stored.bytes(*bytes), now);
        let price = shares.iter().map(dead).fold(self.price(bytes), u64::max);
        self.debt(shares) > 550 && price > MIN_SLEEP_NS
    }

    /// Nanoseconds that a commit of so many bytes is to take for what flushes and compactions of level 0 take away.
    fn price(&self, bytes: u64) -> u64 {
        let f = self.drained_debt().max(1) as f64 / 1000.0;
        let allowed = self.drain_rate.load(Ordering::Relaxed) as f64 * (1.1 - f) / f;
        (bytes as f64 * 1e9 / allowed.max(1.0)) as u64
    }

    /// Paces a commit of `bytes`; sleeps if the debt asks for it. `shares` may be empty if [`WriteController::dead_space_is_idle`].
    #[inline]
    pub fn admit(&self, bytes: u64, shares: &[(Arc<DeadSpace>, u64)]) -> Pace {
        if self.memory.used() * 2 < self.memory.limit()
            && self.level0_debt.load(Ordering::Relaxed) == 0
            && self.unflushed_values.load(Ordering::Relaxed) <= 500
            && shares.is_empty()
        {
            return Pace::Go;
        }
        self.admit_slow(bytes, shares)
    }

    /// Paces a commit of `bytes` as [`WriteController::admit`] does, if that does not take a sleep; otherwise returns false and
    /// counts nothing.
    #[cfg(feature = "tokio")]
    pub fn try_admit(&self, bytes: u64, shares: &[(Arc<DeadSpace>, u64)]) -> bool {
        if self.full().is_some() || any_full(shares) {
            return false;
        }
        if self.debt(shares) == 0 {
            return true;
        }
        let now = self.clock.monotonic_ns();
        let dead = shares.iter().map(|(f, bytes)| (&f.paid_until, f.price(self.stored.bytes(*bytes), now)));
        let all: Vec<_> = std::iter::once((&self.paid_until, self.price(bytes))).chain(dead).collect();
        let due = |(until, price): &(&AtomicU64, u64)| until.load(Ordering::Relaxed).max(now) + price;
        if all.iter().any(|one| due(one) > now + MIN_SLEEP_NS) {
            return false;
        }
        for (until, price) in all {
            pay(until, price, now);
        }
        self.note_written(shares);
        true
    }

    /// Notes what is about to be written to families.
    fn note_written(&self, shares: &[(Arc<DeadSpace>, u64)]) {
        for (family, bytes) in shares {
            family.write(self.stored.bytes(*bytes));
        }
    }

    #[cold]
    fn admit_slow(&self, bytes: u64, shares: &[(Arc<DeadSpace>, u64)]) -> Pace {
        if self.full().is_some() {
            return Pace::Full;
        }
        let start = self.clock.monotonic_ns();
        let timer = perf::begin_wait();
        let pay_for = |(family, bytes): &(Arc<DeadSpace>, u64)| {
            let price = family.price(self.stored.bytes(*bytes), start);
            pay(&family.paid_until, price, start)
        };
        let due = shares.iter().map(pay_for).fold(pay(&self.paid_until, self.price(bytes), start), u64::max);
        self.note_written(shares);
        let long = due.saturating_sub(start) >= LONG_STALL.as_nanos() as u64;
        if long {
            self.stats.events.tell(|| Event::StallBegun(StallReason::Debt));
        }
        let mut now = start;
        // A clock that goes back ends the wait: what is left of it is not known.
        while due > now + MIN_SLEEP_NS && now >= start && self.debt(shares) > 0 {
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
    use crate::commit::dead_space::{Measured, Shares, hidden_per_kib};
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
                assert_eq!(c.admit(1 << 20, &[]), Pace::Go);
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
            assert_eq!(c.admit(bytes, &[]), Pace::Go);
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
            assert_eq!((c.debt(&[]), c.full().is_some()), (debt, f >= 1.0), "{f}");
        }
        assert_eq!((c.admit(1, &[]), c.full()), (Pace::Full, Some(Stat::StallDebtMicros)));
    }

    /// A family that is so at the controller's time.
    fn family(c: &WriteController, of: Measured) -> Shares {
        let family = Arc::new(DeadSpace::new(0));
        family.measure(Measured { hidden_per_kib: 1024, ..Measured::default() }, 0, 0);
        family.write(of.excess.max(0) as u64); // it did not come at once
        family.measure(of, 0, c.clock.monotonic_ns());
        c.set_dead_space(std::iter::once(&*family));
        vec![(family, 1)]
    }

    #[test]
    fn dead_space_past_its_cap_is_debt_and_then_a_wait() {
        let (_, _, _, c) = controller(1000);
        for (excess, debt) in [(-9, 0), (0, 0), (170, 200), (765, 900), (850, 1000), (1000, 1000), (7000, 1000)] {
            let f = family(&c, Measured { excess, room: 1000, ..Measured::default() });
            assert_eq!((c.debt(&f), any_full(&f), c.full()), (debt, excess >= 1000, None), "{excess}");
            assert_eq!((c.dead_space_is_idle(), c.dead_space_debt()), (excess <= 0, excess.clamp(0, 1000) as u64));
            assert_eq!(c.would_wait(1, &f), excess >= 1000, "it would be held");
            assert!(!c.would_wait(1 << 20, &[]), "{excess}");
        }
        // What the active memtable seems to hide counts, and so does what is written from then on.
        let of = |excess| Measured { excess, room: 1 << 20, stored: 0, coming: 100 << 10, hidden_per_kib: 512 };
        for (excess, coming, written) in [(-200 << 10, 0, 0), (-100 << 10, 0, 14), (0, 114, 129), (512 << 10, 703, 718)]
        {
            let f = family(&c, of(excess));
            assert_eq!(c.debt(&f), coming);
            f[0].0.write(26 << 10);
            assert_eq!(c.debt(&f), written);
        }
    }

    /// Writers of other families do not notice it, nor does one that writes little to it.
    #[test]
    fn writers_are_slowed_and_held_for_the_families_that_they_write_to() {
        let (clock, _, stats, c) = controller(1 << 30);
        let slow = Measured { excess: 99 << 20, room: 100 << 20, hidden_per_kib: 1024, ..Measured::default() };
        let slow = family(&c, slow).remove(0).0;
        let other = Arc::new(DeadSpace::new(0));
        other.measure(Measured { excess: -1, room: 1, ..Measured::default() }, 0, 0);
        c.set_dead_space([&*slow, &other].into_iter());
        assert!(!c.dead_space_is_idle());
        let start = clock.monotonic_ns();
        for _ in 0..1000 {
            assert_eq!(c.admit(1 << 20, &[(other.clone(), 1 << 20)]), Pace::Go);
        }
        assert_eq!((clock.monotonic_ns(), stats.get(Stat::Stalls)), (start, 0), "a family without debt");
        assert_eq!((other.sealed_early(4096), slow.sealed_early(4096)), (4096, 1024));
        // A thousand large values are owed much; what is owed beyond the longest wait is forgiven.
        for bytes in [1 << 20, 4 << 20, 1 << 30] {
            let before = clock.monotonic_ns();
            c.admit(bytes, &[(other.clone(), 1), (slow.clone(), bytes)]);
            assert!(clock.monotonic_ns() - before <= MAX_PACE_NS, "{bytes}");
        }
        let start = clock.monotonic_ns();
        clock.advance(Duration::from_nanos(MAX_PACE_NS));
        let waited = clock.monotonic_ns();
        assert_eq!(c.admit(1, &[(slow.clone(), 1)]), Pace::Go);
        assert_eq!(clock.monotonic_ns(), waited, "{} after {start}", waited - start);
        // It may be held at any size; others never are.
        slow.measure(Measured { excess: 99 << 20, room: 99 << 20, ..Measured::default() }, 0, 0);
        assert!(any_full(&[(other.clone(), 1), (slow.clone(), 1)]) && !any_full(&[(other, 1)]));
    }

    /// Half of a family is deleted: gigabytes are dead after a few flushes that had hardly any bytes. Writers are slowed to less than half of
    /// what compactions give back until that is gone, and not held.
    #[test]
    fn no_writer_is_held_for_dead_bytes_that_come_at_once() {
        const MIB: u64 = 1 << 20;
        let room = 640 * MIB;
        let (clock, _, _, c) = controller(1 << 30);
        let of = |dead: u64| Measured { excess: dead as i64, room, stored: 2 * dead, coming: 0, hidden_per_kib: 1024 };
        let f = family(&c, of(300 * MIB));
        let shares = [(f[0].0.clone(), MIB)];
        let mut dead = 10_000 * MIB;
        f[0].0.measure(of(dead), dead, clock.monotonic_ns());
        assert!(!any_full(&f), "they came at once");
        let (mut seconds, mut longest, mut slowest) = (0, 0, u64::MAX);
        while dead > room / 2 {
            // A compaction gives 200 MiB back in a second.
            let end = clock.monotonic_ns() + 1_000_000_000;
            let mut written = 0;
            while clock.monotonic_ns() < end {
                let before = clock.monotonic_ns();
                assert_eq!((c.admit(MIB, &shares), any_full(&f)), (Pace::Go, false), "held at {dead}");
                longest = longest.max(clock.monotonic_ns() - before);
                clock.advance(Duration::from_micros(100));
                written += MIB;
            }
            slowest = slowest.min(written);
            dead += written;
            f[0].0.measure(of(dead), dead, clock.monotonic_ns());
            dead -= 200 * MIB;
            f[0].0.measure(of(dead), dead, clock.monotonic_ns());
            seconds += 1;
            assert!(seconds < 100, "{dead} are left after {seconds} s");
        }
        assert!(seconds >= 48, "{seconds} s for what takes 48 without writers");
        assert!(longest < MAX_PACE_NS && slowest > 10 * MIB, "{longest} ns, {slowest} bytes in a second");
        // What writers bring themselves is no such thing, however much it is.
        for _ in 0..40 {
            f[0].0.write(50 * MIB);
            dead += 50 * MIB;
            f[0].0.measure(of(dead), dead, clock.monotonic_ns());
        }
        assert!(any_full(&f));
    }

    /// The cap is lowered when writers have used up most of the room. Compactions then move values of many tables out of the same value logs,
    /// and nothing is given back until the last of these tables is compacted.
    #[test]
    fn no_writer_is_held_for_old_copies_of_values_that_are_moved_in_a_backlog() {
        const MIB: u64 = 1 << 20;
        let room = 640 * MIB;
        let (clock, _, _, c) = controller(1 << 30);
        let of = |dead: u64| Measured { excess: dead as i64, room, stored: 2 * dead, coming: 0, hidden_per_kib: 1024 };
        let f = family(&c, of(0));
        let measure = |dead: u64| f[0].0.measure(of(dead), dead, clock.monotonic_ns());
        for dead in (0..=600 * MIB).step_by(100 << 20) {
            f[0].0.write(100 * MIB);
            measure(dead);
        }
        let used = f[0].0.used();
        assert!((900..1000).contains(&used), "{used}");
        let mut dead = 10_000 * MIB;
        measure(dead);
        assert_eq!(f[0].0.used(), used, "only what writers used up before counts");
        for _ in 0..20 {
            dead += 100 * MIB;
            f[0].0.moved(100 * MIB);
            measure(dead);
            assert_eq!(f[0].0.used(), used, "at {dead}");
        }
        dead -= 5_000 * MIB;
        measure(dead);
        assert!(f[0].0.used() < 300, "{}", f[0].0.used());
        // Dead bytes that writers cause count as usual.
        for _ in 0..8 {
            assert!(!any_full(&f));
            f[0].0.write(60 * MIB);
            dead += 60 * MIB;
            measure(dead);
        }
        assert!(any_full(&f));
    }

    /// New keys are repeatedly written and then deleted as a range, while compactions give back 50 MiB a second. Each range dies at once, and no
    /// write announces it. The backlog never exceeds what there was to delete at any time, and writers held for the rest go on in the end.
    #[test]
    fn repeated_jumps_leave_a_bounded_backlog() {
        const MIB: u64 = 1 << 20;
        const STEP: u64 = 128 * MIB;
        const RANGE: u64 = 32 * STEP;
        let room = 640 * MIB;
        let (clock, _, _, c) = controller(1 << 30);
        let f = family(&c, Measured::default());
        let shares = [(f[0].0.clone(), MIB)];
        let (mut live, mut dead, mut done, mut held, mut most) = (0, 0, clock.monotonic_ns(), 0, 0);
        let measure = |live: u64, dead: u64| {
            let excess = dead as i64 - (live + dead) as i64 / 4;
            let of = Measured { excess, room, stored: live + dead, ..Measured::default() };
            f[0].0.measure(of, dead, clock.monotonic_ns());
            excess
        };
        for _ in 0..20 {
            for at in (0..RANGE).step_by(1 << 20) {
                let start = clock.monotonic_ns();
                for round in 0.. {
                    // A compaction takes 2.56 s for what it gives back.
                    while dead > 0 && clock.monotonic_ns() >= done + 2_560_000_000 {
                        (dead, done) = (dead - dead.min(STEP), done + 2_560_000_000);
                        measure(live, dead);
                    }
                    if !any_full(&f) {
                        break;
                    }
                    clock.advance(Duration::from_millis(10));
                    assert!(round <= 2 * RANGE / STEP * 256, "held for longer than all compactions take");
                }
                held += clock.monotonic_ns() - start;
                assert_eq!(c.admit(MIB, &shares), Pace::Go);
                clock.advance(Duration::from_micros(100));
                if at % STEP == 0 {
                    live += STEP;
                    let excess = measure(live, dead);
                    assert!(excess < (RANGE + room) as i64, "{excess} while writers go on");
                }
            }
            done = if dead == 0 { clock.monotonic_ns() } else { done };
            (live, dead) = (0, dead + live);
            most = most.max(measure(live, dead));
        }
        println!("excess of {most} at most, held for {} ms", held / 1_000_000);
        assert!(most < (2 * RANGE + room) as i64, "{most}");
        assert!(held > 0, "as it should be where writers make more dead than compactions give back");
    }

    #[test]
    fn what_is_hidden_is_forgotten_slowly() {
        assert_eq!(hidden_per_kib(0, 100, 400), 256);
        assert_eq!((hidden_per_kib(0, 500, 400), hidden_per_kib(700, 9, 0)), (1024, 1024), "one for one at most");
        let mut of = 1024;
        let flushes = (0..100).take_while(|_| {
            of = hidden_per_kib(of, 0, 1 << 20);
            of > 0
        });
        assert_eq!(flushes.count(), 21);
        assert_eq!((hidden_per_kib(400, 100, 400), hidden_per_kib(100, 100, 400)), (300, 256));
    }

    /// Estimates of what is hidden are corrected by a little now and then, which is no compaction that is slow.
    #[test]
    fn a_few_bytes_given_back_say_nothing_of_the_rate() {
        let (clock, _, _, c) = controller(1 << 30);
        let of = Measured { excess: 50 << 20, room: 100 << 20, hidden_per_kib: 1024, ..Measured::default() };
        let f = family(&c, of).remove(0).0;
        let price = || f.price(1 << 20, clock.monotonic_ns());
        f.measure(of, 500 << 20, clock.monotonic_ns());
        let before = price();
        clock.advance(Duration::from_secs(2));
        f.measure(of, (500 << 20) - 1, clock.monotonic_ns());
        assert_eq!(price(), before);
        clock.advance(Duration::from_secs(2));
        f.measure(of, 460 << 20, clock.monotonic_ns());
        assert!(price() > 7 * before, "40 MiB in four seconds: {} after {before}", price());
    }

    /// Compactions that failed for an hour, and then many value logs of dead values that go at once.
    #[test]
    fn odd_times_are_not_taken_for_the_pace_of_compactions() {
        let (clock, _, _, c) = controller(1 << 30);
        let of = Measured { excess: 50 << 20, room: 100 << 20, hidden_per_kib: 1024, ..Measured::default() };
        for (odd, bytes) in [(Duration::from_secs(3600), 40 << 20), (Duration::from_micros(1), 10 << 30)] {
            let f = family(&c, of).remove(0).0;
            let price = || f.price(1 << 20, clock.monotonic_ns());
            let mut garbage = 20 << 30;
            f.measure(of, garbage, clock.monotonic_ns());
            let before = price();
            for (time, bytes) in [(odd, bytes)].into_iter().chain([(Duration::from_millis(200), 40 << 20); 3]) {
                clock.advance(time);
                garbage -= bytes;
                f.measure(of, garbage, clock.monotonic_ns());
            }
            assert!(price() < 3 * before && price() > before / 3, "{odd:?}: {} after {before}", price());
        }
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_task_is_told_of_a_wait_for_a_family_and_pays_for_what_it_writes() {
        let (clock, _, _, c) = controller(1 << 30);
        let f = family(&c, Measured { excess: 50 << 20, room: 100 << 20, hidden_per_kib: 1024, ..Measured::default() });
        let small = [(f[0].0.clone(), 4 << 10)];
        assert!(c.try_admit(4 << 10, &[]));
        let admitted = (0..1000).take_while(|_| c.try_admit(4 << 10, &small)).count();
        assert!((1..100).contains(&admitted), "{admitted} in no time");
        clock.advance(Duration::from_millis(1));
        assert!(c.try_admit(4 << 10, &small));
    }

    /// What is written is stored in fewer bytes, and only these die.
    #[test]
    fn a_byte_costs_as_much_as_flushes_left_of_it() {
        let (_, _, stats, c) = controller(1 << 30);
        let f = family(&c, Measured { excess: 50 << 20, room: 100 << 20, hidden_per_kib: 1024, ..Measured::default() });
        let price = || f[0].0.price(c.stored.bytes(1 << 20), 0);
        let before = price();
        stats.add(Stat::BytesCommitted, 400 << 20);
        c.flushed(100 << 20);
        assert!((before / 4).abs_diff(price()) <= 1, "{before}, {}", price());
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
            let family = family(&c, Measured::default()).remove(0).0;
            let shares = [(family.clone(), VALUE)];
            let measure = |dead: u64, memtable: u64, immutable: &std::collections::VecDeque<(u64, u64)>| {
                let waiting = immutable.iter().map(|(_, bytes)| hides(*bytes)).sum::<u64>();
                let hidden_per_kib = (hidden * 1024.0) as u64;
                let excess = (dead + waiting) as i64;
                let of = Measured { excess, room: ROOM, stored: 0, coming: hides(memtable), hidden_per_kib };
                family.measure(of, dead, clock.monotonic_ns());
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
                let held = (c.admit(VALUE, &shares), any_full(&shares));
                assert_eq!(held, (Pace::Go, false), "{what}: held after {second} s");
                longest = longest.max(clock.monotonic_ns() - before);
                clock.advance(Duration::from_micros(30));
                memtable += (VALUE as f64 * stored) as u64;
                seconds[second] += VALUE;
                stats.add(Stat::BytesCommitted, VALUE);
                let now = clock.monotonic_ns();
                if memtable >= family.sealed_early(512 * MIB) {
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
        assert_eq!(c.admit(1, &[]), Pace::Full);
        assert!(c.would_wait(1, &[]));
        memory.release(1000);
        assert_eq!((c.debt(&[]), c.would_wait(1 << 20, &[])), (0, false));
        c.set_level0(1.9);
        assert_eq!(c.debt(&[]), 0);
        c.set_level0(5.0);
        assert_eq!(c.debt(&[]), 500);
        c.set_level0(100.0);
        assert_eq!((c.debt(&[]), c.would_wait(1 << 20, &[])), (1000, true));
        c.drained(100 << 20, 1_000_000_000);
        assert!(c.drain_rate.load(Ordering::Relaxed) < FIRST_DRAIN_RATE);
    }
}
