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
    /// Of repeats together: the median of each figure, but of the smallest and the largest the extremes. A stall in one of
    /// three repeats is longer than the median of their longest.
    pub fn of_repeats(all: &[Summary]) -> Summary {
        let of = |f: fn(&Summary) -> f64| median(all.iter().map(f));
        Summary {
            count: of(|s| s.count as f64) as u64,
            avg: of(|s| s.avg),
            stddev: of(|s| s.stddev),
            p50: of(|s| s.p50),
            p95: of(|s| s.p95),
            p99: of(|s| s.p99),
            p999: of(|s| s.p999),
            min: all.iter().map(|s| s.min).reduce(f64::min).unwrap_or_default(),
            max: all.iter().map(|s| s.max).reduce(f64::max).unwrap_or_default(),
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

/// Nanoseconds for people: three significant digits, or all of them before the point, and a unit.
pub fn show_ns(ns: f64) -> String {
    match ns {
        n if n < 999.5 => format!("{} ns", show_count(n)),
        n if n < 999.5e3 => format!("{} us", sig3(n / 1e3)),
        n if n < 999.5e6 => format!("{} ms", sig3(n / 1e6)),
        n => format!("{} s", show_count(n / 1e9)),
    }
}

/// Three significant digits, in plain decimal notation: `0.300`, `2.31`, `64.0`, `512`.
pub fn sig3(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return format!("{x:.2}");
    }
    // Of what is shown: 9.996 is shown as 10.0.
    let rounded = format!("{x:.2e}");
    let magnitude: i32 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or_default();
    format!("{x:.*}", (2 - magnitude).clamp(0, 12) as usize)
}

/// An amplification for people. Less than a thousandth is shown as none: a byte that the process read for something else would have
/// three significant digits like any other figure, behind more zeros than a column has room for.
pub fn show_amplification(x: f64) -> String {
    sig3(if x < 0.001 { 0.0 } else { x })
}

/// A number for a file that programs read: six significant digits at least, and one decimal at least, so that a ratio
/// of two such numbers is the ratio of what was measured.
pub fn exact(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return "0.0".into();
    }
    let magnitude = x.abs().log10().floor() as i32;
    let text = format!("{x:.*}", (5 - magnitude).clamp(1, 15) as usize);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

/// A rate with a suffix, for narrow columns: `0.300`, `12.3k`, `1.23M`.
pub fn show_short(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{}M", sig3(n / 1e6)),
        n if n >= 1e3 => format!("{}k", sig3(n / 1e3)),
        n => sig3(n),
    }
}

/// A number and its noun: `1 thread`, `4 threads`.
pub fn plural(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A count or a rate for people: digits grouped by thousands, and three significant digits where a rate is small.
pub fn show_count(n: f64) -> String {
    if n > 0.0 && n < 999.5 && n.fract() != 0.0 {
        return sig3(n);
    }
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

/// A share in percent. One that falls short is not rounded up to the whole.
pub fn show_percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 100.0 || percent <= 0.0 {
        return format!("{percent:.0} %");
    }
    let digits = (2 - percent.log10().floor() as i32).clamp(0, 12);
    // What the multiplication loses is not a digit that was there.
    let cut = (percent * 10_f64.powi(digits) + 1e-6).floor() / 10_f64.powi(digits);
    format!("{cut:.*} %", digits as usize)
}

/// Bytes for people.
pub fn show_bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1_048_576.0 => format!("{} KiB", sig3(b / 1024.0)),
        b if b < 1_073_741_824.0 => format!("{} MiB", sig3(b / 1_048_576.0)),
        b => format!("{} GiB", sig3(b / 1_073_741_824.0)),
    }
}

/// A number of operations: suffixes of counts are decimal, those of sizes binary.
pub fn parse_count(text: &str) -> std::result::Result<u64, String> {
    let suffixes = [('K', 1_000_u64), ('M', 1_000_000), ('G', 1_000_000_000)];
    let found = suffixes.iter().find_map(|(c, n)| text.strip_suffix([*c, c.to_ascii_lowercase()]).map(|t| (t, *n)));
    let (digits, factor) = found.unwrap_or((text, 1));
    let n: u64 =
        digits.parse().map_err(|_| format!("'{text}' is not a count: use digits, and K, M or G behind them"))?;
    n.checked_mul(factor).ok_or_else(|| format!("'{text}' is too large"))
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
    fn the_longest_of_repeats_is_the_longest_of_all() {
        let of = |min: f64, p50: f64, max: f64| Summary { count: 9, min, p50, max, ..Summary::default() };
        let all = Summary::of_repeats(&[of(2.0, 5.0, 9.0), of(3.0, 6.0, 200.0), of(1.0, 7.0, 8.0)]);
        assert_eq!((all.min, all.p50, all.max, all.count), (1.0, 6.0, 200.0, 9));
        assert_eq!(Summary::of_repeats(&[]), Summary::default());
    }

    /// Two engines at 0.0561 and 0.0663 operations a second are 0.846 apart, not 0.6 / 0.9.
    #[test]
    fn numbers_in_files_are_not_rounded_away() {
        let read = |x: f64| exact(x).parse::<f64>().unwrap();
        for x in [0.056_123, 0.066_3, 3.0, 1e-7, 123_456.789, 8_765_432.1] {
            assert!((read(x) / x - 1.0).abs() < 1e-5, "{x}: {}", exact(x));
        }
        assert!((read(0.0561) / read(0.0663) - 0.0561 / 0.0663).abs() < 1e-4);
        assert_eq!((exact(3.0), exact(0.0), exact(0.25)), ("3.0".into(), "0.0".into(), "0.25".into()));
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
        assert_eq!(
            ["0.300", "2.31", "64.5", "512"],
            [0.3, 2.314, 64.52, 512.4].map(show_count).each_ref().map(String::as_str)
        );
        assert_eq!((show_count(0.0), show_count(7.0), show_count(999.7)), ("0".into(), "7".into(), "1,000".into()));
        assert_eq!((sig3(0.0042), sig3(10.0), sig3(0.0)), ("0.00420".into(), "10.0".into(), "0.00".into()));
        assert_eq!([4.37e-10, 0.0042, 2.5].map(show_amplification), ["0.00", "0.00420", "2.50"]);
        assert_eq!(
            ["0.300", "12.3k", "1.23M"],
            [0.3, 12_345.0, 1_234_567.0].map(show_short).each_ref().map(String::as_str)
        );
        assert_eq!((plural(1, "repeat"), plural(3, "repeat")), ("1 repeat".into(), "3 repeats".into()));
        assert_eq!(show_ns(1_234.0), "1.23 us");
        assert_eq!((show_ns(39_846_000.0), show_ns(848.3e6)), ("39.8 ms".into(), "848 ms".into()));
        assert_eq!((show_ns(999_600.0), show_ns(3_333.3e9)), ("1.00 ms".into(), "3,333 s".into()));
        assert_eq!(
            (show_ns(12.345), show_ns(12.0), show_ns(0.5)),
            ("12.3 ns".into(), "12 ns".into(), "0.500 ns".into())
        );
        assert_eq!((show_bytes(3.0 * 1_048_576.0), show_bytes(7.0)), ("3.00 MiB".into(), "7 B".into()));
        assert_eq!(
            (show_percent(0.0123), show_percent(0.9996), show_percent(1.0)),
            ("1.23 %".into(), "99.9 %".into(), "100 %".into())
        );
    }
}
