//! Axes: from data to places, and the places that are labelled.

use super::unit::Unit;

/// A labelled place.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// In the data's unit.
    pub at: f64,
    /// What is written there.
    pub label: String,
}

/// A range of data and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// From the lowest to the highest.
    pub ticks: Vec<Tick>,
}

/// The smallest and the largest of what are numbers; `None` if nothing is.
fn extent(values: &[f64]) -> Option<(f64, f64)> {
    let finite = values.iter().filter(|v| v.is_finite());
    finite.fold(None, |range, v| Some(range.map_or((*v, *v), |(low, high): (f64, f64)| (low.min(*v), high.max(*v)))))
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `x`.
fn nice(x: f64) -> f64 {
    let power = 10_f64.powf(x.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.iter().map(|s| s * power).find(|s| *s >= x * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}

/// A number as ticks show it: as many digits as its distance to the next asks for.
fn plain(x: f64, step: f64) -> String {
    let power = (step * (1.0 + 1e-9)).log10().floor() as i32;
    // 2.5 has a digit more than its power of ten.
    let half = (step / 10_f64.powi(power) - 2.5).abs() < 0.1;
    let digits = (i32::from(half) - power).max(0) as usize;
    if x.abs() >= 1e6 || digits > 6 { format!("{x:.2e}") } else { format!("{x:.digits$}") }
}

impl Axis {
    /// From zero, or from below it where data are, to nice numbers around all data, with about `wanted` ticks.
    pub fn from_zero(values: &[f64], unit: Unit, wanted: usize) -> Axis {
        let (low, high) = extent(values).unwrap_or((0.0, 1.0));
        Axis::linear(low.min(0.0), high.max(0.0), unit, wanted)
    }

    /// Nice numbers around `low` and `high`.
    fn linear(low: f64, high: f64, unit: Unit, wanted: usize) -> Axis {
        // What has no range that could be drawn: nothing but zeros, or numbers at the end of all numbers.
        let (low, high) = (low.clamp(-1e300, 1e300), high.clamp(-1e300, 1e300));
        let high = if high - low < 1e-300 { low + 1.0 } else { high };
        let prefix = unit.prefix(high.abs().max(low.abs()));
        let (from, to) = (low / prefix.factor, high / prefix.factor);
        let step = nice((to - from) / wanted.max(1) as f64);
        let first = (from / step + 1e-9).floor();
        let last = (to / step - 1e-9).ceil();
        let count = (last - first).clamp(1.0, 50.0) as u32;
        let label =
            |x: f64| if x == 0.0 { format!("0{}", zero(unit)) } else { format!("{}{}", plain(x, step), prefix.suffix) };
        let tick = |i: u32| {
            let x = (first + f64::from(i)) * step;
            Tick { at: x * prefix.factor, label: label(x) }
        };
        let ticks = (0..=count).map(tick).collect();
        Axis { low: first * step * prefix.factor, high: last * step * prefix.factor, log: false, ticks }
    }

    /// From the first to the last, with no more room than that; for time.
    pub fn tight(values: &[f64], unit: Unit, wanted: usize) -> Axis {
        let mut axis = Axis::from_zero(values, unit, wanted);
        if let Some((_, high)) = extent(values).filter(|(_, high)| *high > axis.low) {
            axis.high = high;
            axis.ticks.retain(|t| t.at <= high * (1.0 + 1e-9));
        }
        axis
    }

    /// Decades, or 1, 2 and 5 of each where there are few, around data that are all above zero; `None` for others.
    pub fn logarithmic(values: &[f64], unit: Unit) -> Option<Axis> {
        let (low, high) = extent(values).filter(|(low, _)| *low > 0.0)?;
        let decades = (low.log10().floor() as i32..=high.log10().ceil() as i32).collect::<Vec<_>>();
        let fine: Vec<f64> =
            decades.iter().flat_map(|d| [1.0, 2.0, 5.0].map(|s| s * 10_f64.powi(*d))).filter(|p| *p > 0.0).collect();
        let low = fine.iter().rev().find(|p| **p <= low * (1.0 + 1e-9)).copied().unwrap_or(low);
        let high = fine.iter().find(|p| **p >= high * (1.0 - 1e-9)).copied().unwrap_or(high);
        let high = if high <= low { low * 10.0 } else { high };
        let within = |places: &[f64]| places.iter().copied().filter(|p| (low..=high).contains(p)).collect::<Vec<f64>>();
        let mut places = within(&fine);
        if places.len() > 7 {
            places = within(&fine.iter().copied().step_by(3).collect::<Vec<_>>());
        }
        // Not more labels than an axis has room for.
        let every = places.len().div_ceil(7).max(1);
        let ticks = places.iter().step_by(every).map(|p| Tick { at: *p, label: unit.show(*p) }).collect();
        Some(Axis { low, high, log: true, ticks })
    }

    /// Decades where data reach over more than a factor of 30, from zero otherwise.
    pub fn either(values: &[f64], unit: Unit, wanted: usize) -> Axis {
        let wide = extent(values).is_some_and(|(low, high)| low > 0.0 && high / low > 30.0);
        let log = if wide { Axis::logarithmic(values, unit) } else { None };
        log.unwrap_or_else(|| Axis::from_zero(values, unit, wanted))
    }

    /// The values that were run and nothing between, with room at both ends. Equal factors are equal distances, as in 1, 2,
    /// 4, 8, where all are above zero.
    pub fn of_values(ticks: Vec<Tick>) -> Axis {
        let values: Vec<f64> = ticks.iter().map(|t| t.at).collect();
        let (low, high) = extent(&values).unwrap_or((0.0, 1.0));
        let log = low > 0.0 && high / low > 2.5;
        if log {
            let room = (high / low).powf(0.06);
            return Axis { low: low / room, high: high * room, log, ticks };
        }
        let room = if high > low { (high - low) * 0.06 } else { 1.0 };
        Axis { low: low - room, high: high + room, log, ticks }
    }

    /// The same axis wide enough that 1 is on it, for what is compared with 1.
    pub fn around_one(values: &[f64], unit: Unit) -> Option<Axis> {
        let mut values = values.to_vec();
        values.push(1.0);
        Axis::logarithmic(&values, unit)
    }

    /// Whether equal factors are equal distances.
    #[cfg(test)]
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// Where `x` is: 0 at the lower end, 1 at the upper. What is no number, or not on a logarithmic axis, is nowhere.
    pub fn place(&self, x: f64) -> Option<f64> {
        let at = if self.log {
            (x.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (x - self.low) / (self.high - self.low)
        };
        at.is_finite().then(|| at.clamp(0.0, 1.0))
    }
}

/// What stands behind a zero: a unit that is always the same, but no prefix.
fn zero(unit: Unit) -> &'static str {
    match unit {
        Unit::Percent | Unit::Seconds | Unit::Times => unit.prefix(0.0).suffix,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|t| t.label.as_str()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn ticks_are_nice_and_hold_all_data() {
        for (high, unit, wanted) in [
            (7.0, Unit::Count, "0|2|4|6|8"),
            (0.9, Unit::Count, "0|0.25|0.50|0.75|1.00"),
            (1_234_567.0, Unit::Count, "0|0.5 M|1.0 M|1.5 M"),
            (9_300.0, Unit::Count, "0|2.5 k|5.0 k|7.5 k|10.0 k"),
            (180_000.0, Unit::Nanos, "0|50 µs|100 µs|150 µs|200 µs"),
            (300.0 * 1_048_576.0, Unit::Bytes, "0|100 MiB|200 MiB|300 MiB"),
            (97.0, Unit::Percent, "0 %|25 %|50 %|75 %|100 %"),
            (0.0, Unit::Count, "0|0.25|0.50|0.75|1.00"),
        ] {
            let axis = Axis::from_zero(&[high], unit, 4);
            assert_eq!(labels(&axis), wanted);
            let top = axis.ticks.last().unwrap().at;
            assert!(axis.place(high).unwrap() <= 1.0 && top >= high * 0.999, "{high}: {top}");
        }
        let below = Axis::from_zero(&[-3.0, 5.0], Unit::Count, 4);
        assert_eq!(labels(&below), "-4|-2|0|2|4|6");
        assert_eq!(below.place(-4.0), Some(0.0));
    }

    #[test]
    fn ticks_of_random_ranges_are_few_ascending_and_distinct() {
        let mut rng = kingtide_base::rng::Rng::new(11);
        for case in 0..20_000 {
            let high = 10_f64.powf(rng.unit() * 30.0 - 10.0);
            let low = if case % 3 == 0 { -high * rng.unit() } else { high * rng.unit() };
            let unit = [Unit::Count, Unit::Nanos, Unit::Bytes, Unit::Seconds][case % 4];
            for axis in [Axis::from_zero(&[low, high], unit, 5), Axis::either(&[low, high], unit, 5)] {
                let what = format!("case {case}: {low} {high} {}", labels(&axis));
                assert!((2..=12).contains(&axis.ticks.len()), "{what}");
                let places: Vec<f64> = axis.ticks.iter().map(|t| axis.place(t.at).unwrap()).collect();
                assert!(places.windows(2).all(|w| w[0] < w[1]), "{what}");
                assert!(axis.ticks.windows(2).all(|w| w[0].label != w[1].label), "{what}");
                assert!(axis.place(low) < axis.place(high), "{what}");
            }
        }
    }

    #[test]
    fn decades_and_what_lies_between() {
        assert_eq!(
            labels(&Axis::logarithmic(&[1500.0, 80_000.0], Unit::Nanos).unwrap()),
            "1 µs|2 µs|5 µs|10 µs|20 µs|50 µs|100 µs"
        );
        let wide = Axis::logarithmic(&[1.0, 1e9], Unit::Nanos).unwrap();
        assert_eq!(labels(&wide), "1 ns|100 ns|10 µs|1 ms|100 ms");
        assert_eq!(wide.place(1e9), Some(1.0));
        assert_eq!(wide.place(0.0), None);
        assert_eq!(Axis::logarithmic(&[0.0, 5.0], Unit::Count), None);
        assert!(
            Axis::either(&[1.0, 100.0], Unit::Count, 4).is_log()
                && !Axis::either(&[0.0, 100.0], Unit::Count, 4).is_log()
        );
        let one = Axis::around_one(&[3.0, 4.5], Unit::Times).unwrap();
        assert_eq!(labels(&one), "1×|2×|5×");
    }

    #[test]
    fn values_of_no_use_do_no_harm() {
        for values in [&[][..], &[f64::NAN], &[f64::INFINITY, f64::NEG_INFINITY], &[1e308, -1e308], &[5e-324], &[-0.0]]
        {
            for axis in [
                Axis::from_zero(values, Unit::Count, 4),
                Axis::either(values, Unit::Nanos, 4),
                Axis::tight(values, Unit::Seconds, 4),
            ] {
                assert!(axis.ticks.len() < 60, "{values:?}");
                assert!(axis.place(0.5).is_none_or(|p| (0.0..=1.0).contains(&p)), "{values:?}");
                assert_eq!(axis.place(f64::NAN), None);
            }
        }
    }

    #[test]
    fn values_that_were_run_are_the_ticks() {
        let ticks = |v: &[f64]| v.iter().map(|at| Tick { at: *at, label: at.to_string() }).collect::<Vec<_>>();
        let axis = Axis::of_values(ticks(&[1.0, 2.0, 4.0, 8.0]));
        let at: Vec<f64> = [1.0, 2.0, 4.0, 8.0].iter().map(|x| axis.place(*x).unwrap()).collect();
        assert!((at[1] - at[0] - (at[3] - at[2])).abs() < 1e-9 && at[0] > 0.0 && at[3] < 1.0, "{at:?}");
        assert_eq!(Axis::of_values(ticks(&[3.0])).place(3.0), Some(0.5));
    }
}
