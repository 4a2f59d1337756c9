//! A clock cheap enough to read twice an operation: the processor's time-stamp counter where it is constant, about 10 ns
//! a reading; the operating system's monotonic clock elsewhere.

use std::time::{Duration, Instant};

/// Reads ticks and turns them into nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    counter: bool,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

impl Clock {
    /// Takes 20 ms to compare the counter with the operating system's clock.
    pub fn calibrated() -> Clock {
        let clock = Clock { start: Instant::now(), counter: counter_is_constant(), scale: 1 << 32 };
        if !clock.counter {
            return clock;
        }
        let (t0, c0) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(20));
        let (ns, ticks) = (t0.elapsed().as_nanos(), counter().wrapping_sub(c0).max(1));
        Clock { scale: ((ns << 32) / u128::from(ticks)) as u64, ..clock }
    }

    /// Now, in ticks since some fixed point.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.counter { counter() } else { self.start.elapsed().as_nanos() as u64 }
    }

    /// Nanoseconds between two readings.
    #[inline]
    pub fn ns(&self, from: u64, to: u64) -> u64 {
        ((u128::from(to.saturating_sub(from)) * u128::from(self.scale)) >> 32) as u64
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: RDTSC reads a counter and nothing else; every x86-64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Whether the counter runs at one speed, sleep states included, and is alike on all cores.
fn counter_is_constant() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else { return false };
    let has = |flag| info.split_whitespace().any(|w| w == flag);
    has("constant_tsc") && has("nonstop_tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_system_clock() {
        let clock = Clock::calibrated();
        let (t0, c0) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(30));
        let measured = clock.ns(c0, clock.now());
        let real = t0.elapsed().as_nanos() as u64;
        // The span between the two pairs of readings is the only noise; a tenth is generous.
        assert!(measured >= 25_000_000 && measured <= real + real / 10, "{measured} against {real}");
        assert_eq!(clock.ns(5, 3), 0);
    }
}
