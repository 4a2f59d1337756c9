//! A clock cheap enough to read twice an operation: the processor's time-stamp counter where it is constant, about 10 ns
//! a reading; the operating system's monotonic clock elsewhere.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
        let (t0, c0) = both();
        std::thread::sleep(Duration::from_millis(20));
        let (t1, c1) = both();
        let (ns, ticks) = (t1.saturating_duration_since(t0).as_nanos(), c1.wrapping_sub(c0).max(1));
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

/// The operating system's clock and the counter at the same moment.
fn both() -> (Instant, u64) {
    let reading = |_| {
        let before = counter();
        let at = Instant::now();
        (before, at, counter())
    };
    tightest((0..50).map(reading)).unwrap_or_else(|| (Instant::now(), counter()))
}

/// Of readings of one clock between two of the counter the one between the closest two: a thread that loses its processor there
/// would take all times of a run for longer, or shorter, than they were.
fn tightest<T>(readings: impl Iterator<Item = (u64, T, u64)>) -> Option<(T, u64)> {
    let best = readings.min_by_key(|(before, _, after)| after.wrapping_sub(*before));
    best.map(|(before, at, after)| (at, before.wrapping_add(after.wrapping_sub(before) / 2)))
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

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The date in UTC: `YYYY-mm-dd`.
pub fn today() -> String {
    let s = stamp(unix_now());
    format!("{}-{}-{}", &s[..4], &s[4..6], &s[6..8])
}

/// `YYYYmmdd-HHMMSS` in UTC (days to civil date after Howard Hinnant, "chrono-compatible low-level date algorithms").
pub fn stamp(unix: u64) -> String {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// A stamp for people.
pub fn date(stamp: &str) -> String {
    let part = |range: std::ops::Range<usize>| stamp.get(range).unwrap_or("?");
    format!("{}-{}-{} {}:{} UTC", part(0..4), part(4..6), part(6..8), part(9..11), part(11..13))
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

    #[test]
    fn a_reading_that_was_interrupted_is_not_used() {
        let readings =
            [(100, "interrupted before", 9_000), (9_000, "at once", 9_020), (9_020, "interrupted after", 30_000)];
        assert_eq!(tightest(readings.into_iter()), Some(("at once", 9_010)));
    }

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(1_780_963_734), "20260609-000854");
        assert_eq!(stamp(1_735_689_599), "20241231-235959");
    }
}
