//! Time that is cheap enough to be read twice an operation, for durations on which no decision depends.
//!
//! On x86-64 it is the processor's time-stamp counter, if the processor says that it runs at one speed in all states; the
//! first use compares it with the operating system's clock for a fifth of a millisecond. Elsewhere, and when a database has a
//! [`Clock`] of its own, it is that clock: a simulation then sees its own time in histograms, the same in every run.

use crate::clock::{Clock, SystemClock};
use std::sync::{Arc, OnceLock};

/// Reads ticks and makes nanoseconds of their differences.
#[derive(Clone)]
pub struct Ticker {
    clock: Arc<dyn Clock>,
    /// Ticks are the time-stamp counter's, not the clock's.
    counter: bool,
    /// Nanoseconds for a tick, times 2^32.
    scale: u64,
}

impl Ticker {
    /// Ticks of the machine: one for the whole process.
    pub fn machine() -> &'static Ticker {
        static MACHINE: OnceLock<Ticker> = OnceLock::new();
        // Made outside of the cell: a process that is forked while the cell is being filled waits at it for ever.
        MACHINE.get().unwrap_or_else(|| {
            let clock = SystemClock::shared();
            let made = match calibrate(&*clock) {
                Some(scale) => Ticker { clock, counter: true, scale },
                None => Ticker::of(clock),
            };
            MACHINE.get_or_init(|| made)
        })
    }

    /// Ticks of a clock: its nanoseconds.
    pub fn of(clock: Arc<dyn Clock>) -> Ticker {
        Ticker { clock, counter: false, scale: 1 << 32 }
    }

    /// Now, in ticks since some fixed point: less than 2^[`TICK_BITS`].
    #[inline]
    pub fn now(&self) -> u64 {
        if self.counter { counter() } else { self.clock.ticks() & ((1 << TICK_BITS) - 1) }
    }

    /// Nanoseconds from one reading to a later one; 0 if the counter went back, as between processors that disagree.
    #[inline]
    pub fn ns_between(&self, from: u64, to: u64) -> u64 {
        ((u128::from(to.saturating_sub(from)) * u128::from(self.scale)) >> 32) as u64
    }

    /// Nanoseconds since a reading.
    #[inline]
    pub fn ns_since(&self, from: u64) -> u64 {
        self.ns_between(from, self.now())
    }
}

/// Bits of a reading. That is 24 years of a counter at 3 GHz.
pub const TICK_BITS: u32 = 61;

/// How long the counter is compared with the clock: the error of a reading, below 100 ns, is then below a tenth of a percent.
const COMPARED_NS: u64 = 200_000;

/// Nanoseconds for a tick of the counter, times 2^32; `None` when there is no counter to rely on.
fn calibrate(clock: &dyn Clock) -> Option<u64> {
    // A hypervisor may let it begin anywhere. From here it takes more than twenty years to the limit.
    if !counter_is_constant() || counter() >> (TICK_BITS - 4) != 0 {
        return None;
    }
    // The pair of readings that lie closest together, in case the thread was interrupted between them.
    let pair = || {
        let one = || {
            let before = counter();
            let ns = clock.monotonic_ns();
            let after = counter();
            (after.wrapping_sub(before), before / 2 + after / 2, ns)
        };
        (0..5).map(|_| one()).min_by_key(|(apart, ..)| *apart).unwrap_or_else(one)
    };
    let (_, from_ticks, from_ns) = pair();
    while clock.monotonic_ns().saturating_sub(from_ns) < COMPARED_NS {
        std::hint::spin_loop();
    }
    let (_, to_ticks, to_ns) = pair();
    let ticks = to_ticks.checked_sub(from_ticks).filter(|t| *t > 0)?;
    u64::try_from((u128::from(to_ns - from_ns) << 32) / u128::from(ticks)).ok().filter(|scale| *scale > 0)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn counter() -> u64 {
    // SAFETY: RDTSC reads a counter and nothing else; every x86-64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter() -> u64 {
    0
}

/// Returns whether the counter runs at one speed in all states of the processor: what CPUID calls an invariant counter.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unused_unsafe)] // CPUID is a safe function in newer compilers
fn counter_is_constant() -> bool {
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    // SAFETY: every x86-64 processor has CPUID, and leaf 0x80000000 says up to which leaf it answers.
    unsafe {
        core::arch::x86_64::__cpuid(EXTENDED).eax >= POWER && core::arch::x86_64::__cpuid(POWER).edx & 1 << 8 != 0
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter_is_constant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use std::time::Duration;

    #[test]
    fn ticks_of_a_clock_are_its_nanoseconds() {
        let clock = ManualClock::at_unix_ms(5);
        let ticker = Ticker::of(clock.clone());
        let from = ticker.now();
        clock.advance(Duration::from_nanos(1_234_567_891));
        assert_eq!(ticker.ns_since(from), 1_234_567_891);
        assert_eq!(ticker.ns_between(5, 3), 0, "time that goes back is no time");
    }

    /// Bounds from below only: a loaded machine may make any wait longer, and both clocks see that.
    #[test]
    fn the_machines_ticks_agree_with_its_clock() {
        let (ticker, clock) = (Ticker::machine(), SystemClock::shared());
        let (outer, from) = (clock.monotonic_ns(), ticker.now());
        let inner = clock.monotonic_ns();
        std::thread::sleep(Duration::from_millis(20));
        let least = clock.monotonic_ns() - inner;
        let ticked = ticker.ns_since(from);
        let most = clock.monotonic_ns() - outer;
        assert!(ticked >= least - least / 50 && ticked <= most + most / 50, "{least} <= {ticked} <= {most}");
    }
}
