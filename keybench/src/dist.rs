//! Which key comes next: distributions over `0..n`, seeded and cheap.

use kingtide_base::rng::Rng;

/// A bijection of `0..n` that scatters neighbours: `i -> (a*i + b) mod n` with `a` coprime to `n`.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    a: u64,
    b: u64,
}

impl Permutation {
    /// A permutation drawn from `seed`.
    pub fn new(n: u64, seed: u64) -> Permutation {
        let n = n.max(1);
        let mut rng = Rng::new(seed ^ 0x7065_726d);
        // Near the golden ratio of n, neighbours land far apart; the first coprime number after that.
        let mut a = ((n as f64 * 0.618_033_988_749_895) as u64).max(1) + rng.below(n / 64 + 1);
        while gcd(a, n) != 1 {
            a += 1;
        }
        Permutation { n, a: a % n.max(2), b: rng.below(n) }
    }

    /// Where `i` goes.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        ((u128::from(i) * u128::from(self.a) + u128::from(self.b)) % u128::from(self.n)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Zipfian ranks: rank 0 is the most frequent (Gray et al., "Quickly generating billion-record synthetic databases",
/// SIGMOD 1994, as in YCSB).
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Over `0..n` with skew `theta` in (0, 1); 0.99 is what benchmarks mean by Zipfian.
    pub fn new(n: u64, theta: f64) -> Zipf {
        Zipf::of(n, &mut Harmonic::new(theta))
    }

    /// Over `0..n` with the skew of these sums, which remember what they have summed up.
    pub fn of(n: u64, sums: &mut Harmonic) -> Zipf {
        let (n, theta) = (n.max(1), sums.theta);
        let (two, zeta) = (sums.up_to(2), sums.up_to(n));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - two / zeta);
        Zipf { n, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// Whether it is over `0..n` with this skew.
    pub fn is(&self, n: u64, theta: f64) -> bool {
        self.n == n && self.theta == theta
    }

    /// The next rank.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.n - 1);
        }
        let base = self.eta * u - self.eta + 1.0;
        // theta 0.99 makes alpha 100: whole powers cost a tenth of powf, and this runs once an operation.
        let power = if (self.alpha - self.alpha.round()).abs() < 1e-9 {
            base.powi(self.alpha.round() as i32)
        } else {
            base.powf(self.alpha)
        };
        ((self.n as f64 * power) as u64).min(self.n - 1)
    }
}

/// Sums of `i^-theta` for `1..=n`: exact to a million terms, then by the integral, which is off by less than 1e-6 of it. Sums
/// up to some numbers are kept, so that one up to a number that is asked for later needs few terms.
#[derive(Clone, Debug)]
pub struct Harmonic {
    theta: f64,
    /// The sums up to the multiples of [`Harmonic::EVERY`], from 0 on.
    kept: Vec<f64>,
    /// The number that was asked for last, and its sum.
    last: (u64, f64),
}

impl Harmonic {
    const EXACT: u64 = 1_000_000;
    const EVERY: u64 = 64;

    /// Sums of this skew.
    pub fn new(theta: f64) -> Harmonic {
        Harmonic { theta, kept: vec![0.0], last: (0, 0.0) }
    }

    /// The skew.
    pub fn theta(&self) -> f64 {
        self.theta
    }

    /// The sum of `n` terms.
    pub fn up_to(&mut self, n: u64) -> f64 {
        let exact = self.exact(n.min(Harmonic::EXACT));
        if n <= Harmonic::EXACT {
            return exact;
        }
        let antiderivative = |x: f64| x.powf(1.0 - self.theta) / (1.0 - self.theta);
        exact + antiderivative(n as f64 + 0.5) - antiderivative(Harmonic::EXACT as f64 + 0.5)
    }

    /// Terms are added one after the other from the first on, wherever it begins: a sum is the same to the last bit.
    fn exact(&mut self, n: u64) -> f64 {
        let add = |theta: f64, from: (u64, f64), to: u64| {
            (from.0 + 1..=to).fold(from.1, |sum, i| sum + (i as f64).powf(-theta))
        };
        let whole = n / Harmonic::EVERY;
        while (self.kept.len() as u64) <= whole {
            let known = self.kept.len() as u64 - 1;
            let from = (known * Harmonic::EVERY, self.kept[known as usize]);
            self.kept.push(add(self.theta, from, from.0 + Harmonic::EVERY));
        }
        let mark = (whole * Harmonic::EVERY, self.kept[whole as usize]);
        let from = if (mark.0..=n).contains(&self.last.0) { self.last } else { mark };
        self.last = (n, add(self.theta, from, n));
        self.last.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_hits_everything_once() {
        for n in [1u64, 2, 3, 7, 64, 1000, 65_536, 99_991] {
            let p = Permutation::new(n, n + 5);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                assert!(!std::mem::replace(&mut seen[p.at(i) as usize], true), "n {n}: {i} collides");
            }
        }
    }

    #[test]
    fn zipf_is_skewed_as_it_says() {
        let n = 10_000;
        let z = Zipf::new(n, 0.99);
        let mut rng = Rng::new(3);
        let mut counts = vec![0u32; n as usize];
        let draws = 400_000;
        for _ in 0..draws {
            counts[z.sample(&mut rng) as usize] += 1;
        }
        let expected = f64::from(draws) / Harmonic::new(0.99).up_to(n);
        let got = f64::from(counts[0]);
        assert!((got - expected).abs() < expected * 0.05, "rank 0: {got} against {expected}");
        let tail: u32 = counts[5_000..].iter().sum();
        assert!(tail > 0 && f64::from(tail) < f64::from(draws) * 0.12, "tail {tail}");
        assert_eq!(Zipf::new(1, 0.99).sample(&mut rng), 0);
        assert!((0..1000).all(|_| Zipf::new(3, 0.5).sample(&mut rng) < 3));
    }

    #[test]
    fn long_harmonic_sums_are_close() {
        let exact: f64 = (1..=1_200_000u64).map(|i| (i as f64).powf(-0.99)).sum();
        assert!((Harmonic::new(0.99).up_to(1_200_000) - exact).abs() < 1e-6);
    }

    #[test]
    fn sums_are_the_same_in_whichever_order_they_are_asked_for() {
        for theta in [0.5, 0.99] {
            let plain: Vec<f64> = (0..=1000u64).map(|n| (1..=n).map(|i| (i as f64).powf(-theta)).sum()).collect();
            let mut sums = Harmonic::new(theta);
            let orders =
                [(1..=1000).collect::<Vec<u64>>(), (1..=1000).rev().collect(), vec![700, 63, 64, 65, 128, 1, 999]];
            for n in orders.into_iter().flatten() {
                assert_eq!(sums.up_to(n).to_bits(), plain[n as usize].to_bits(), "n {n}, theta {theta}");
                let mut fresh = Harmonic::new(theta);
                assert_eq!(fresh.up_to(n).to_bits(), plain[n as usize].to_bits(), "n {n}, theta {theta}, asked first");
            }
        }
    }
}
