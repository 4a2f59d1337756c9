//! Latency distributions and what is said about them.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies of one kind of operation, in nanoseconds, with an error under 0.1 %.
pub struct Latencies(Histogram<u64>);

/// The longest latency told apart: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        // Bounds and digits are constants within the crate's documented limits.
        #[allow(clippy::expect_used)]
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Latencies) {
        // Both have the same bounds, so nothing can be out of range.
        let _ = self.0.add(&other.0);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures of a report.
    pub fn summary(&self) -> Summary {
        let h = &self.0;
        if h.is_empty() {
            return Summary::default();
        }
        Summary {
            count: h.len(),
            avg: h.mean(),
            stddev: h.stdev(),
            p50: h.value_at_quantile(0.5) as f64,
            p95: h.value_at_quantile(0.95) as f64,
            p99: h.value_at_quantile(0.99) as f64,
            p999: h.value_at_quantile(0.999) as f64,
            min: h.min() as f64,
            max: h.max() as f64,
        }
    }
}

/// A latency distribution in nine numbers: nanoseconds, except the count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Latencies recorded.
    pub count: u64,
    /// Mean.
    pub avg: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// The median of each figure over repeats.
    pub fn median_of(all: &[Summary]) -> Summary {
        let of = |f: fn(&Summary) -> f64| median(all.iter().map(f));
        Summary {
            count: of(|s| s.count as f64) as u64,
            avg: of(|s| s.avg),
            stddev: of(|s| s.stddev),
            p50: of(|s| s.p50),
            p95: of(|s| s.p95),
            p99: of(|s| s.p99),
            p999: of(|s| s.p999),
            min: of(|s| s.min),
            max: of(|s| s.max),
        }
    }
}

/// The median; the mean of the middle two for an even number, 0 for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

/// Nanoseconds for people: three or four digits and a unit.
pub fn show_ns(ns: f64) -> String {
    match ns {
        n if n < 1_000.0 => format!("{n:.0} ns"),
        n if n < 1_000_000.0 => format!("{:.2} us", n / 1e3),
        n if n < 1_000_000_000.0 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A rate for people: digits grouped by thousands.
pub fn show_count(n: f64) -> String {
    let digits = format!("{:.0}", n.max(0.0));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Bytes for people.
pub fn show_bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1_048_576.0 => format!("{:.1} KiB", b / 1024.0),
        b if b < 1_073_741_824.0 => format!("{:.1} MiB", b / 1_048_576.0),
        b => format!("{:.2} GiB", b / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let mut a = Latencies::default();
        let mut b = Latencies::default();
        for i in 1..=5_000u64 {
            a.record(i * 1_000);
            b.record((5_000 + i) * 1_000);
        }
        a.merge(&b);
        let s = a.summary();
        let near = |got: f64, want: f64| assert!((got - want).abs() <= want * 0.001 + 1.0, "{got} against {want}");
        assert_eq!(s.count, 10_000);
        near(s.p50, 5_000_000.0);
        near(s.p95, 9_500_000.0);
        near(s.p99, 9_900_000.0);
        near(s.p999, 9_990_000.0);
        near(s.min, 1_000.0);
        near(s.max, 10_000_000.0);
        near(s.avg, 5_000_500.0);
        a.record(u64::MAX);
        assert!(a.summary().max >= LONGEST_NS as f64, "an absurd latency is kept as the longest");
        assert_eq!(Latencies::default().summary(), Summary::default());
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(show_count(1_234_567.4), "1,234,567");
        assert_eq!(show_count(999.0), "999");
        assert_eq!(show_ns(1_234.0), "1.23 us");
        assert_eq!(show_bytes(3.0 * 1_048_576.0), "3.0 MiB");
    }
}
