//! What repeats say and how sure they are.
//!
//! A figure is the median of its repeats. Its interval is a percentile bootstrap (Efron, "Bootstrap Methods: Another Look at
//! the Jackknife", 1979): repeats drawn from the repeats with replacement, the median of each draw, and the middle 95 % of
//! those medians. With few repeats it is coarse, and never wider than the repeats themselves: three repeats give their own
//! range. Draws come from a fixed seed, so that a report says the same whenever it is made.

use crate::measure::median;
use kingtide_base::rng::Rng;
use serde::{Deserialize, Serialize};

/// Draws of a bootstrap.
const DRAWS: usize = 2_000;
const SEED: u64 = 0x6b65_7962_656e_6368;

/// A median and the interval that holds it at 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Of repeats of one thing.
    pub fn of(repeats: &[f64]) -> Estimate {
        bootstrap(median(repeats.iter().copied()), |rng| median(draw(repeats, rng)))
    }

    /// Of the ratio of two things' medians whose repeats were measured in pairs, one after the other: what disturbed one
    /// of a pair disturbed both. Where the numbers of repeats differ there are no pairs.
    pub fn ratio(over: &[f64], under: &[f64]) -> Estimate {
        if over.len() != under.len() {
            return Estimate::unpaired_ratio(over, under);
        }
        bootstrap(quotient(over.iter().copied(), under.iter().copied()), |rng| {
            let pairs: Vec<usize> = (0..over.len()).map(|_| rng.below(over.len() as u64) as usize).collect();
            quotient(pairs.iter().map(|i| over[*i]), pairs.iter().map(|i| under[*i]))
        })
    }

    /// Of the ratio of two things' medians that were measured apart.
    pub fn unpaired_ratio(over: &[f64], under: &[f64]) -> Estimate {
        bootstrap(quotient(over.iter().copied(), under.iter().copied()), |rng| {
            let over: Vec<f64> = draw(over, rng).collect();
            quotient(over.into_iter(), draw(under, rng))
        })
    }

    /// Whether the interval lies on one side of `x`.
    pub fn excludes(&self, x: f64) -> bool {
        self.low > x || self.high < x
    }
}

/// Of medians; 0 over nothing.
fn quotient(over: impl Iterator<Item = f64>, under: impl Iterator<Item = f64>) -> f64 {
    let under = median(under);
    if under == 0.0 { 0.0 } else { median(over) / under }
}

fn draw<'a>(values: &'a [f64], rng: &'a mut Rng) -> impl Iterator<Item = f64> + 'a {
    (0..values.len()).map(|_| values[rng.below(values.len() as u64) as usize])
}

fn bootstrap(value: f64, mut one: impl FnMut(&mut Rng) -> f64) -> Estimate {
    let mut rng = Rng::new(SEED);
    let mut medians: Vec<f64> = (0..DRAWS).map(|_| one(&mut rng)).collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((DRAWS - 1) as f64 * share).round() as usize];
    Estimate { value, low: at(0.025), high: at(0.975) }
}

/// Calls in a third of the readings below which nothing is said of how the rate moved.
const ENOUGH: f64 = 100.0;

/// How a rate moved while it was measured: the mean of the last third of its readings over that of the first third, minus 1.
/// `None` with fewer than six readings, or with so few calls that chance moves the rate. The first reading is left out: it
/// holds the start. Readings are the seconds since the beginning, and calls in a second since the one before.
pub fn drift(readings: &[(f64, f64)]) -> Option<f64> {
    let spans: Vec<(f64, f64)> = readings.windows(2).map(|w| (w[1].0 - w[0].0, w[1].1)).collect();
    if spans.len() < 5 {
        return None;
    }
    let third = spans.len() / 3;
    let (begin, end) = (&spans[..third], &spans[spans.len() - third..]);
    let mean = |part: &[(f64, f64)]| part.iter().map(|(_, rate)| rate).sum::<f64>() / part.len() as f64;
    let calls: f64 = begin.iter().map(|(seconds, rate)| seconds * rate).sum();
    (calls >= ENOUGH).then(|| mean(end) / mean(begin) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_median_and_stays_within_the_repeats() {
        for repeats in [&[5.0][..], &[1.0, 9.0], &[10.0, 11.0, 12.0], &[3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]] {
            let e = Estimate::of(repeats);
            let (min, max) = repeats.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
            assert!(min <= e.low && e.low <= e.value && e.value <= e.high && e.high <= max, "{repeats:?}: {e:?}");
        }
        assert_eq!(Estimate::of(&[7.0; 5]), Estimate { value: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(Estimate::of(&[10.0, 11.0, 12.0]), Estimate { value: 11.0, low: 10.0, high: 12.0 });
        assert_eq!(Estimate::of(&[]).value, 0.0);
    }

    /// The method's own promise, held against data whose median is known: 95 of 100 intervals hold it, less what few
    /// repeats cost.
    #[test]
    fn most_intervals_hold_the_true_median() {
        let mut rng = Rng::new(7);
        let trials = 300;
        let held = (0..trials)
            .filter(|_| {
                let repeats: Vec<f64> =
                    (0..15).map(|_| 100.0 + (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0).collect();
                let e = Estimate::of(&repeats);
                (e.low..=e.high).contains(&100.0)
            })
            .count();
        assert!(held * 100 >= trials * 90, "{held} of {trials}");
    }

    #[test]
    fn a_ratio_of_pairs_ignores_what_both_suffered() {
        // A machine that slows down meets both engines of each pair.
        let slow = [100.0, 50.0, 25.0, 80.0, 10.0];
        let fast: Vec<f64> = slow.iter().map(|x| x * 2.0).collect();
        let e = Estimate::ratio(&fast, &slow);
        assert_eq!((e.value, e.low, e.high), (2.0, 2.0, 2.0));
        assert!(e.excludes(1.0) && !e.excludes(2.0));
        let same = Estimate::ratio(&[10.0, 12.0, 11.0], &[11.0, 10.0, 12.0, 11.5]);
        assert!(!same.excludes(1.0), "{same:?}");
        assert_eq!(Estimate::ratio(&[1.0], &[0.0]).value, 0.0);
    }

    #[test]
    fn drift_compares_ends() {
        let every = |seconds: f64, rates: &[f64]| {
            let readings = rates.iter().enumerate().map(|(i, rate)| ((i + 1) as f64 * seconds, *rate));
            drift(&readings.collect::<Vec<_>>())
        };
        assert_eq!(every(1.0, &[1.0, 2.0, 3.0]), None);
        assert_eq!(every(1.0, &[90.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0]), Some(0.0));
        let d = every(1.0, &[0.0, 100.0, 100.0, 90.0, 60.0, 50.0, 50.0]).unwrap();
        assert!((d + 0.5).abs() < 1e-9, "{d}");
        assert_eq!(every(1.0, &[0.0; 9]), None);
        assert_eq!(every(1.0, &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]), None, "one call in three seconds");
        let few = [100.0, 100.0, 100.0, 90.0, 60.0, 50.0, 50.0];
        assert_eq!(every(0.1, &few), None, "20 calls in the first third");
        assert!(every(10.0, &few.map(|rate| rate / 10.0)).is_some(), "200 calls");
    }
}
