//! Quantities and how they are written: three digits and a prefix.

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number, with decimal prefixes; the chart says what of.
    Count,
    /// Times: how often one is the other.
    Times,
    /// Seconds.
    Seconds,
    /// Nanoseconds, written as ns, µs, ms or s.
    Nanos,
    /// Bytes, with binary prefixes.
    Bytes,
    /// Hundredths.
    Percent,
}

/// A power that numbers are divided by, and how it is written behind them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefix {
    /// What a number is divided by.
    pub factor: f64,
    /// What is written behind it.
    pub suffix: &'static str,
}

const fn prefix(factor: f64, suffix: &'static str) -> Prefix {
    Prefix { factor, suffix }
}

const COUNT: &[Prefix] =
    &[prefix(1.0, ""), prefix(1e3, " k"), prefix(1e6, " M"), prefix(1e9, " G"), prefix(1e12, " T")];
const TIMES: &[Prefix] = &[prefix(1.0, "×")];
const SECONDS: &[Prefix] = &[prefix(1.0, " s")];
const NANOS: &[Prefix] = &[prefix(1.0, " ns"), prefix(1e3, " µs"), prefix(1e6, " ms"), prefix(1e9, " s")];
const BYTES: &[Prefix] = &[
    prefix(1.0, " B"),
    prefix(1024.0, " KiB"),
    prefix(1_048_576.0, " MiB"),
    prefix(1_073_741_824.0, " GiB"),
    prefix(1_099_511_627_776.0, " TiB"),
];
const PERCENT: &[Prefix] = &[prefix(1.0, " %")];

impl Unit {
    /// The prefix for numbers up to `largest`.
    pub fn prefix(self, largest: f64) -> Prefix {
        let all = match self {
            Unit::Count => COUNT,
            Unit::Times => TIMES,
            Unit::Seconds => SECONDS,
            Unit::Nanos => NANOS,
            Unit::Bytes => BYTES,
            Unit::Percent => PERCENT,
        };
        // Rounded to three digits 999.6 is a thousand.
        all.iter().rev().find(|p| largest.abs() >= p.factor * 0.9995).copied().unwrap_or(all[0])
    }

    /// A number with three digits, its prefix and its unit.
    pub fn show(self, x: f64) -> String {
        if !x.is_finite() {
            return "–".to_owned();
        }
        let prefix = self.prefix(x);
        format!("{}{}", three_digits(x / prefix.factor), prefix.suffix)
    }
}

/// Three digits, or as many as stand before the point; without zeros at the end of a fraction.
fn three_digits(x: f64) -> String {
    let size = x.abs();
    if size >= 1e6 || (size > 0.0 && size < 0.001) {
        return format!("{x:.2e}");
    }
    let digits = match size {
        s if s >= 99.95 || s == 0.0 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{x:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_three_digits() {
        for (unit, x, wanted) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 0.5, "0.5"),
            (Unit::Count, 999.4, "999"),
            (Unit::Count, 999.9, "1 k"),
            (Unit::Count, 1234.0, "1.23 k"),
            (Unit::Count, 12_345_678.0, "12.3 M"),
            (Unit::Count, -1500.0, "-1.5 k"),
            (Unit::Count, 0.00002, "2.00e-5"),
            (Unit::Count, 1e300, "1.00e288 T"),
            (Unit::Times, 2.345, "2.35×"),
            (Unit::Nanos, 875.0, "875 ns"),
            (Unit::Nanos, 1_500.0, "1.5 µs"),
            (Unit::Nanos, 2.5e9, "2.5 s"),
            (Unit::Bytes, 65_536.0, "64 KiB"),
            (Unit::Bytes, 1_572_864.0, "1.5 MiB"),
            (Unit::Percent, 99.96, "100 %"),
            (Unit::Seconds, 61.0, "61 s"),
            (Unit::Count, f64::NAN, "–"),
        ] {
            assert_eq!(unit.show(x), wanted);
        }
    }
}
