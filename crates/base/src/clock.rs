//! Injected time. Code takes a [`Clock`]; clippy bans the raw ones outside this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The end of the year 30827, in seconds: Windows has no later moments.
const LATEST_SECONDS: u64 = 910_692_730_000;

/// Returns the moment that is so many milliseconds after the beginning of 1970. Where the system's clock has no such moment (on
/// Windows after the year 30827), the last one that it has, less than a second early.
pub fn time_of_unix_ms(unix_ms: u64) -> SystemTime {
    let since = Duration::from_millis(unix_ms);
    UNIX_EPOCH.checked_add(since).unwrap_or_else(|| UNIX_EPOCH + Duration::from_secs(LATEST_SECONDS))
}

/// Returns a moment in milliseconds since the beginning of 1970, rounded up. It is 0 for all moments before 1970.
pub fn unix_ms_of_time(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A source of time.
///
/// ```
/// use kingtide_base::clock::{Clock, SystemClock};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// /// A clock that runs a thousand times as fast.
/// struct Hasty(Arc<dyn Clock>);
///
/// impl Clock for Hasty {
///     fn monotonic_ns(&self) -> u64 {
///         self.0.monotonic_ns().saturating_mul(1000)
///     }
///     fn unix_ms(&self) -> u64 {
///         self.0.unix_ms()
///     }
///     fn sleep(&self, d: Duration) {
///         self.0.sleep(d / 1000);
///     }
/// }
///
/// let clock = Hasty(SystemClock::shared());
/// let before = clock.ticks();
/// clock.sleep(Duration::from_secs(1)); // a millisecond of the machine
/// assert!(clock.ticks() - before >= 1_000_000_000);
/// ```
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary fixed point, never going back.
    fn monotonic_ns(&self) -> u64;
    /// Unix time in milliseconds; may jump. Decides expiry only.
    fn unix_ms(&self) -> u64;
    /// Does the same as [`Clock::monotonic_ns`], for durations that are only shown, in histograms. A clock for tests whose readings
    /// have effects can spare these.
    fn ticks(&self) -> u64 {
        self.monotonic_ns()
    }
    /// Waits.
    fn sleep(&self, d: Duration);
}

/// The operating system's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    /// A handle to the clock.
    #[allow(clippy::disallowed_methods)] // the one room for the raw clock
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(SystemClock { start: std::time::Instant::now() })
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[allow(clippy::disallowed_methods)]
    fn unix_ms(&self) -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }

    #[allow(clippy::disallowed_methods)]
    fn sleep(&self, d: Duration) {
        std::thread::sleep(d);
    }
}

/// A clock that moves only by [`ManualClock::advance`], or when a thread sleeps on it.
#[derive(Debug, Default)]
pub struct ManualClock {
    ns: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `unix_ms`.
    pub fn at_unix_ms(unix_ms: u64) -> Arc<ManualClock> {
        Arc::new(ManualClock { ns: AtomicU64::new(unix_ms * 1_000_000) })
    }

    /// Moves time forward.
    pub fn advance(&self, d: Duration) {
        self.ns.fetch_add(d.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic_ns(&self) -> u64 {
        self.ns.load(Ordering::SeqCst)
    }

    fn unix_ms(&self) -> u64 {
        self.ns.load(Ordering::SeqCst) / 1_000_000
    }

    fn sleep(&self, d: Duration) {
        self.advance(d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rounded_up_to_milliseconds() {
        for ms in [0, 1, 999, 1_000, 1_750_000_000_123, LATEST_SECONDS * 1_000] {
            assert_eq!(unix_ms_of_time(time_of_unix_ms(ms)), ms);
        }
        assert_eq!(unix_ms_of_time(time_of_unix_ms(5) + Duration::from_nanos(100)), 6);
        assert_eq!(unix_ms_of_time(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let latest = unix_ms_of_time(time_of_unix_ms(u64::MAX));
        if cfg!(windows) {
            assert_eq!(latest, LATEST_SECONDS * 1_000);
        } else {
            assert_eq!(latest, u64::MAX);
            assert_eq!(unix_ms_of_time(time_of_unix_ms(u64::MAX) + Duration::from_secs(1)), u64::MAX);
        }
    }

    #[test]
    fn manual_clock_moves_only_when_told() {
        let c = ManualClock::at_unix_ms(1_000);
        c.advance(Duration::from_millis(5));
        assert_eq!((c.unix_ms(), c.monotonic_ns()), (1_005, 1_005_000_000));
        c.sleep(Duration::from_millis(5));
        assert_eq!(c.unix_ms(), 1_010);
        let s = SystemClock::shared();
        assert!(s.monotonic_ns() <= s.monotonic_ns() && s.unix_ms() > 1_700_000_000_000);
    }
}
