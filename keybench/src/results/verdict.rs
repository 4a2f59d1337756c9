//! Which engine wins what, by how much, and how sure that is.
//!
//! Engines are ranked by the median of their rates at each point of the grid. One wins a point if the 95 % interval of the
//! ratio to each other one ([`crate::stats`]) lies above 1, with few repeats clearly above ([`clearance`]). An engine that gave wrong answers, failed, or completed no operation
//! is reported and not ranked: how fast it is wrong does not matter.

use super::{EngineResult, PointResult, Results};
use crate::error::Error;
use crate::lua::point::Point;
use crate::measure::{show_count, show_ns, sig3};
use crate::stats::Estimate;

/// Repeats below which no interval is worth its name.
pub const ENOUGH: usize = 3;

/// What the interval of a ratio must lie above before one engine is called faster than another; `None`: there is no telling.
/// The interval of three or four repeats is their range, and all of three pairs fall on one side by chance in one case of
/// four: so there it must lie above 1.1, which noise of a few percent seldom does. From five repeats on 1 will do.
pub fn clearance(repeats: usize) -> Option<f64> {
    match repeats {
        0..ENOUGH => None,
        3 | 4 => Some(1.1),
        _ => Some(1.0),
    }
}

/// How many times as fast one is as another, at one point of the grid. Where both have the same repeats they are pairs.
pub fn ratio(over: &PointResult, under: &PointResult) -> Estimate {
    let numbers = |p: &PointResult| p.repeats.iter().map(|r| r.number).collect::<Vec<_>>();
    if numbers(over) == numbers(under) {
        Estimate::ratio(&over.unit_rates(), &under.unit_rates())
    } else {
        Estimate::unpaired_ratio(&over.unit_rates(), &under.unit_rates())
    }
}

/// What is said of one point of the grid.
#[derive(Debug)]
pub struct Verdict<'a> {
    /// The workload.
    pub workload: &'a str,
    /// Threads and swept value.
    pub point: &'a Point,
    /// Which engine won.
    pub outcome: Outcome<'a>,
    /// Engines that were measured here and are not ranked, and why.
    pub unranked: Vec<(&'a str, Unranked<'a>)>,
}

/// Which engine won.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<'a> {
    /// No winner: no engine is left to be ranked.
    NoEngine,
    /// No winner: an engine without another to compare it with.
    Alone(&'a str),
    /// No winner yet: the fastest two, and the ratio of too few repeats.
    Unsure { fastest: &'a str, next: &'a str, lead: Estimate },
    /// No winner: the fastest and those that it cannot be told apart from, with the ratio to the first of them.
    Close { fastest: &'a str, others: Vec<&'a str>, lead: Estimate },
    /// In an open loop: no engine delivered the rate; which came nearest, and the share that it delivered.
    Overloaded { nearest: &'a str, share: f64 },
    /// In an open loop: engines that delivered the rate, from the lowest p99 to the highest, with p99 and p99.9 in
    /// nanoseconds.
    Tail(Vec<(&'a str, f64, f64)>),
    /// One is faster than all others; so much faster than the next.
    Winner { fastest: &'a str, next: &'a str, lead: Estimate },
}

/// Why an engine is not ranked.
#[derive(Clone, Debug, PartialEq)]
pub enum Unranked<'a> {
    /// So many of its answers were wrong, of so many that were checked.
    Wrong { wrong: u64, verified: u64 },
    /// It failed in this workload, here or later.
    Trouble(&'a Error),
    /// It failed calls that the script went on after.
    Failures(String),
    /// It did not finish one unit.
    Nothing,
    /// In an open loop: it delivered this share of the rate.
    Behind(f64),
}

impl std::fmt::Display for Unranked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unranked::Wrong { wrong, verified } => {
                let (wrong, verified) = (show_count(*wrong as f64), show_count(*verified as f64));
                write!(f, "{wrong} of {verified} answers that were checked were wrong")
            }
            Unranked::Trouble(e) => write!(f, "it failed: {e}"),
            Unranked::Failures(what) => f.write_str(what),
            Unranked::Nothing => f.write_str("it did not finish one unit"),
            Unranked::Behind(share) => write!(f, "it did not keep up: it delivered {} of the rate", percent(*share)),
        }
    }
}

impl Verdict<'_> {
    /// Where: `mixed at 8 threads, batch 64`.
    pub fn place(&self) -> String {
        format!("{} at {}", self.workload, self.point.place())
    }
}

impl<'a> Outcome<'a> {
    /// Of engines from the fastest to the slowest and the ratio of any of them to any other. `clear` is what the interval of
    /// a ratio must lie above, if those ratios have intervals that are worth their name.
    pub fn of(ranked: &[&'a str], clear: Option<f64>, ratio: impl Fn(usize, usize) -> Estimate) -> Outcome<'a> {
        let (fastest, next) = match ranked {
            [] => return Outcome::NoEngine,
            [only] => return Outcome::Alone(only),
            [fastest, next, ..] => (*fastest, *next),
        };
        let apart = |at: usize| clear.is_some_and(|clear| ratio(0, at).low > clear);
        let near: Vec<usize> = (1..ranked.len()).filter(|at| !apart(*at)).collect();
        match near.first() {
            _ if clear.is_none() => Outcome::Unsure { fastest, next, lead: ratio(0, 1) },
            None => Outcome::Winner { fastest, next, lead: ratio(0, 1) },
            Some(nearest) => {
                let others = near.iter().map(|at| ranked[*at]).collect();
                Outcome::Close { fastest, others, lead: ratio(0, *nearest) }
            }
        }
    }

    /// The ratio of the fastest to the next, where there are two.
    pub fn lead(&self) -> Option<Estimate> {
        match self {
            Outcome::NoEngine | Outcome::Alone(_) | Outcome::Overloaded { .. } | Outcome::Tail(_) => None,
            Outcome::Unsure { lead, .. } | Outcome::Close { lead, .. } | Outcome::Winner { lead, .. } => Some(*lead),
        }
    }

    /// The engine that won, if one did.
    pub fn winner(&self) -> Option<&'a str> {
        if let Outcome::Winner { fastest, .. } = self { Some(fastest) } else { None }
    }
}

/// Which engine, and by how much: `kingtide is faster than rocksdb: 2.31x (95 % interval 2.20 to 2.41)`.
impl std::fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::NoEngine => f.write_str("no engine can be ranked"),
            Outcome::Overloaded { nearest, share } => {
                write!(f, "overloaded: no engine kept up; {nearest} came nearest, with {} of the rate", percent(*share))
            }
            Outcome::Tail(ranked) => {
                f.write_str("by p99 / p99.9 of those that kept up: ")?;
                let one =
                    |(engine, p99, p999): &(&str, f64, f64)| format!("{engine} {} / {}", show_ns(*p99), show_ns(*p999));
                f.write_str(&ranked.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            Outcome::Alone(engine) => write!(f, "{engine} has nothing to be compared with"),
            Outcome::Unsure { fastest, next, lead } => {
                write!(
                    f,
                    "{fastest} is ahead of {next}: {}x (too few repeats for a confidence interval)",
                    sig3(lead.value)
                )
            }
            Outcome::Close { fastest, others, lead } => {
                let (last, before) = others.split_last().map_or(("", &[][..]), |(last, before)| (*last, before));
                let before: String = before.iter().map(|other| format!(", {other}")).collect();
                // Of several it is not plain whose ratio it is.
                let of = others.first().filter(|_| others.len() > 1);
                let of = of.map_or(String::new(), |nearest| format!("{fastest} / {nearest} is "));
                write!(f, "no clear winner between {fastest}{before} and {last}: {of}{}", times(lead))
            }
            Outcome::Winner { fastest, next, lead } => write!(f, "{fastest} is faster than {next}: {}", times(lead)),
        }
    }
}

/// The one sentence that a reader in a hurry takes along, about all `outcomes`; each is of one of the things that `noun`
/// names in the plural.
pub fn lead(outcomes: &[&Outcome<'_>], noun: &str) -> String {
    let all = outcomes.len();
    if outcomes.iter().any(|o| matches!(o, Outcome::Tail(_) | Outcome::Overloaded { .. })) {
        return open_loop_lead(outcomes, noun);
    }
    let alone = outcomes.iter().all(|o| matches!(o, Outcome::Alone(_)));
    let unsure = outcomes.iter().all(|o| matches!(o, Outcome::Unsure { .. }));
    let first = |o: &&Outcome<'_>| match **o {
        Outcome::Unsure { fastest, .. } if unsure => Some(fastest.to_owned()),
        _ => o.winner().map(str::to_owned),
    };
    let mut firsts: Vec<(String, usize)> = Vec::new();
    for name in outcomes.iter().filter_map(first) {
        match firsts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += 1,
            None => firsts.push((name, 1)),
        }
    }
    firsts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let rest = all - firsts.iter().map(|(_, n)| n).sum::<usize>();
    let be = if unsure { "is ahead" } else { "is the fastest" };
    let mut out = match firsts.as_slice() {
        [] if alone => return "Only one engine can be ranked: there is nothing to compare it with.".into(),
        [] => return format!("No clear winner at any of {all} {noun}."),
        [(one, n)] if rest == 0 => format!("{one} {be} at all {n} {noun}"),
        [(one, n), ..] => format!("{one} {be} at {n} of {all} {noun}"),
    };
    for (name, n) in &firsts[1..] {
        out += &format!(", {name} at {n}");
    }
    match rest {
        0 if unsure => out += "; there are no confidence intervals",
        0 => {}
        n => out += &format!("; at {n} there is no clear winner"),
    }
    out + "."
}

/// The same for an open loop, where engines differ in their latency and in whether they keep up.
fn open_loop_lead(outcomes: &[&Outcome<'_>], noun: &str) -> String {
    let all = outcomes.len();
    let overloaded = outcomes.iter().filter(|o| matches!(o, Outcome::Overloaded { .. })).count();
    let mut firsts: Vec<(&str, usize)> = Vec::new();
    for outcome in outcomes {
        if let Outcome::Tail(ranked) = outcome
            && let [(name, ..), _, ..] = ranked.as_slice()
        {
            match firsts.iter_mut().find(|(known, _)| known == name) {
                Some((_, n)) => *n += 1,
                None => firsts.push((name, 1)),
            }
        }
    }
    let mut parts: Vec<String> =
        firsts.iter().map(|(name, n)| format!("{name} has the lowest p99 at {n} of {all} {noun}")).collect();
    if overloaded > 0 {
        parts.push(format!("{overloaded} of {all} {noun} are overloaded: no engine kept up"));
    }
    if parts.is_empty() {
        parts.push(format!("no two engines kept up at any of {all} {noun}"));
    }
    parts.join("; ") + "."
}

/// Share of an open loop's rate that counts as keeping up with it.
pub const KEPT_UP: f64 = 0.99;

pub use crate::measure::show_percent as percent;

/// A ratio in words.
pub fn times(e: &Estimate) -> String {
    format!("{}x (95 % interval {} to {})", sig3(e.value), sig3(e.low), sig3(e.high))
}

/// How one engine did against another at all points where both are ranked.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing<'a> {
    /// The one.
    pub engine: &'a str,
    /// The other.
    pub other: &'a str,
    /// Places where the one was faster, where it was slower, and where neither can be said.
    pub faster: usize,
    /// See `faster`.
    pub slower: usize,
    /// See `faster`.
    pub undecided: usize,
    /// Geometric mean of the ratios.
    pub mean: f64,
    /// The least of them.
    pub least: f64,
    /// The greatest of them.
    pub most: f64,
}

impl<'a> Standing<'a> {
    /// Of the ratios of one to the other wherever both are ranked, and what the interval of each must lie above.
    pub fn of(engine: &'a str, other: &'a str, ratios: &[(Estimate, Option<f64>)]) -> Option<Standing<'a>> {
        let values = || ratios.iter().map(|(e, _)| e.value);
        if ratios.is_empty() {
            return None;
        }
        let faster = ratios.iter().filter(|(e, clear)| clear.is_some_and(|c| e.low > c)).count();
        let slower = ratios.iter().filter(|(e, clear)| clear.is_some_and(|c| e.high < 1.0 / c)).count();
        Some(Standing {
            engine,
            other,
            faster,
            slower,
            undecided: ratios.len() - faster - slower,
            mean: (values().map(f64::ln).sum::<f64>() / ratios.len() as f64).exp(),
            least: values().fold(f64::MAX, f64::min),
            most: values().fold(0.0, f64::max),
        })
    }

    /// Places where both are ranked.
    pub fn places(&self) -> usize {
        self.faster + self.slower + self.undecided
    }

    /// All of it: `kingtide against rocksdb: faster at 4 of 6 points, slower at 1, undecided at 1; 1.80x in the geometric
    /// mean, from 0.90x to 2.40x`.
    pub fn sentence(&self, noun: &str) -> String {
        let mut out = format!("{} against {}: ", self.engine, self.other);
        let all = format!(" of {} {noun}", self.places());
        let counts = [("faster at ", self.faster), ("slower at ", self.slower), ("undecided at ", self.undecided)];
        let mut some = counts.iter().filter(|(_, n)| *n > 0);
        if let Some((what, n)) = some.next() {
            out += &format!("{what}{n}{all}");
        }
        for (what, n) in some {
            out += &format!(", {what}{n}");
        }
        match self.places() {
            1 => out += &format!("; {}x", sig3(self.mean)),
            _ => {
                let (mean, least, most) = (sig3(self.mean), sig3(self.least), sig3(self.most));
                out += &format!("; {mean}x in the geometric mean, from {least}x to {most}x");
            }
        }
        out
    }
}

impl Results {
    /// Why a point's engine is not ranked, if it is not.
    pub fn unranked(&self, p: &PointResult) -> Option<Unranked<'_>> {
        let engine = self.engine(&p.engine);
        // Answers outside the points are about the store that the points ran against.
        let outside = engine.map(EngineResult::answers).unwrap_or_default();
        match engine.and_then(|e| e.trouble.as_ref()) {
            _ if p.figures.wrong > 0 => Some(Unranked::Wrong { wrong: p.figures.wrong, verified: p.figures.verified }),
            _ if outside.wrong > 0 => Some(Unranked::Wrong { wrong: outside.wrong, verified: outside.verified }),
            Some(e) if engine.is_some_and(|e| e.failed_at(&p.workload)) => Some(Unranked::Trouble(e)),
            _ if p.failures().is_some() => p.failures().map(Unranked::Failures),
            _ if p.figures.wu_per_s.value <= 0.0 => Some(Unranked::Nothing),
            _ => None,
        }
    }

    /// The points of the grid in the order of their doing, each with the engines that were measured there, in the order of
    /// the command line.
    pub fn places(&self) -> Vec<Vec<&PointResult>> {
        let mut places: Vec<Vec<&PointResult>> = Vec::new();
        for p in &self.points {
            match places.iter_mut().find(|all| all[0].workload == p.workload && all[0].point.same_place(&p.point)) {
                Some(all) => all.push(p),
                None => places.push(vec![p]),
            }
        }
        let order = |p: &&PointResult| self.engines.iter().position(|e| e.name == p.engine);
        places.iter_mut().for_each(|all| all.sort_by_key(order));
        places
    }

    /// What is said of each point of the grid.
    pub fn verdicts(&self) -> Vec<Verdict<'_>> {
        self.places().into_iter().map(|all| self.verdict(&all)).collect()
    }

    /// The share of an open loop's rate that an engine delivered at a point; none in a closed loop.
    pub fn delivered(&self, p: &PointResult) -> Option<f64> {
        p.point.rate.or(self.meta.settings.rate).map(|rate| p.figures.wu_per_s.value / rate)
    }

    /// What is said of a point of an open loop: which engines kept up, and in which order their latencies are. All engines that keep
    /// up have the same rate, so their rates are not compared.
    fn open_loop_verdict<'a>(&'a self, all: &[&'a PointResult]) -> Verdict<'a> {
        let mut unranked: Vec<(&str, Unranked<'_>)> = Vec::new();
        let (mut ranked, mut behind) = (Vec::new(), Vec::new());
        for p in all {
            let share = self.delivered(p).unwrap_or_default();
            match self.unranked(p) {
                Some(why) => unranked.push((&p.engine, why)),
                None if share < KEPT_UP => behind.push((p.engine.as_str(), share)),
                None => {
                    let (p99, p999) = p.figures.tail();
                    ranked.push((p.engine.as_str(), p99, p999));
                }
            }
        }
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.total_cmp(&b.2)));
        let nearest = behind.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        unranked.extend(behind.iter().map(|(engine, share)| (*engine, Unranked::Behind(*share))));
        let outcome = match (ranked.is_empty(), nearest) {
            (false, _) => Outcome::Tail(ranked),
            (true, Some((nearest, share))) => Outcome::Overloaded { nearest, share },
            (true, None) => Outcome::NoEngine,
        };
        Verdict { workload: &all[0].workload, point: &all[0].point, outcome, unranked }
    }

    /// What is said of one of [`Results::places`].
    pub fn verdict<'a>(&'a self, all: &[&'a PointResult]) -> Verdict<'a> {
        if self.meta.settings.is_open() {
            return self.open_loop_verdict(all);
        }
        let reasons = all.iter().map(|p| (p.engine.as_str(), self.unranked(p)));
        let unranked = reasons.filter_map(|(engine, why)| why.map(|w| (engine, w))).collect();
        let mut ranked: Vec<&PointResult> = all.iter().copied().filter(|p| self.unranked(p).is_none()).collect();
        ranked.sort_by(|a, b| b.figures.wu_per_s.value.total_cmp(&a.figures.wu_per_s.value));
        let names: Vec<&str> = ranked.iter().map(|p| p.engine.as_str()).collect();
        let clear = clearance(ranked.iter().map(|p| p.repeats.len()).min().unwrap_or_default());
        let outcome = Outcome::of(&names, clear, |over, under| ratio(ranked[over], ranked[under]));
        Verdict { workload: &all[0].workload, point: &all[0].point, outcome, unranked }
    }

    /// How the first engine that is ranked anywhere did against each of the others.
    pub fn standings(&self) -> Vec<Standing<'_>> {
        if self.meta.settings.is_open() {
            // Ratios of rates that were asked for say nothing.
            return Vec::new();
        }
        let places = self.places();
        let ranked = |engine: &str| self.points.iter().any(|p| p.engine == engine && self.unranked(p).is_none());
        let mut engines = self.engines.iter().map(|e| e.name.as_str()).filter(|e| ranked(e));
        let Some(engine) = engines.next() else { return Vec::new() };
        engines.filter_map(|other| self.standing(&places, engine, other)).collect()
    }

    fn standing<'a>(&self, places: &[Vec<&PointResult>], engine: &'a str, other: &'a str) -> Option<Standing<'a>> {
        let ratio_at = |all: &Vec<&PointResult>| {
            let at = |name: &str| all.iter().find(|p| p.engine == name && self.unranked(p).is_none());
            let (a, b) = (at(engine)?, at(other)?);
            Some((ratio(a, b), clearance(a.repeats.len().min(b.repeats.len()))))
        };
        Standing::of(engine, other, &places.iter().filter_map(ratio_at).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Repeat;
    use super::super::tests::{measured, place, run};
    use super::*;

    fn outcome(results: &Results) -> Outcome<'_> {
        results.verdicts()[0].outcome.clone()
    }

    #[test]
    fn a_clear_win_is_told_with_its_interval() {
        let results = run(&[("rocksdb", &[50, 40, 50]), ("kingtide", &[100, 90, 110]), ("tidesdb", &[10, 10, 10])]);
        let verdicts = results.verdicts();
        assert_eq!(verdicts.len(), 2);
        assert_eq!(verdicts[0].place(), "mixed at 1 thread");
        assert_eq!(verdicts[1].place(), "mixed at 4 threads");
        assert_eq!(
            verdicts[0].outcome.to_string(),
            "kingtide is faster than rocksdb: 2.00x (95 % interval 2.00 to 2.25)"
        );
        assert_eq!(verdicts[0].outcome.winner(), Some("kingtide"));
        assert!(verdicts[0].unranked.is_empty());

        let standings = results.standings();
        assert_eq!(standings.len(), 2, "the first engine against each other one");
        assert_eq!((standings[0].engine, standings[0].other, standings[0].slower), ("rocksdb", "kingtide", 2));
        assert_eq!((standings[1].faster, standings[1].places()), (2, 2));
        assert!((standings[1].mean - 5.0).abs() < 1e-9, "{standings:?}");
        let sentence = standings[1].sentence("points");
        assert!(sentence.starts_with("rocksdb against tidesdb: faster at 2 of 2 points; 5.00x in"), "{sentence}");
    }

    #[test]
    fn intervals_that_hold_1_have_no_winner() {
        let results = run(&[("a", &[100, 120, 110]), ("b", &[105, 100, 109]), ("c", &[20, 20, 20])]);
        let Outcome::Close { fastest, others, lead } = outcome(&results) else { panic!("{:?}", outcome(&results)) };
        assert_eq!((fastest, others), ("a", vec!["b"]), "c is out of it");
        assert!(lead.low < 1.0 && lead.high > 1.0, "{lead:?}");
        assert!(results.verdicts()[0].outcome.to_string().starts_with("no clear winner between a and b: 1.05x"));
        assert_eq!(results.standings()[0].undecided, 2);

        // The second by its median is told apart, the third is not: still no winner.
        let results = run(&[("a", &[100, 101, 102]), ("b", &[80, 80, 80]), ("c", &[10, 79, 200])]);
        let Outcome::Close { others, .. } = outcome(&results) else { panic!("{:?}", outcome(&results)) };
        assert_eq!(others, ["c"]);

        let results = run(&[("a", &[100, 120, 110]), ("b", &[105, 100, 109]), ("c", &[99, 121, 100])]);
        let told = results.verdicts()[0].outcome.to_string();
        assert!(told.starts_with("no clear winner between a, b and c: a / b is 1.05x"), "{told}");
    }

    #[test]
    fn a_small_lead_needs_more_than_three_repeats() {
        let few = run(&[("a", &[105, 106, 107]), ("b", &[100, 100, 100])]);
        assert!(matches!(outcome(&few), Outcome::Close { fastest: "a", .. }), "{:?}", outcome(&few));
        assert_eq!(few.standings()[0].undecided, 2);
        let more = run(&[("a", &[105, 106, 107, 105, 106]), ("b", &[100, 100, 100, 100, 100])]);
        assert_eq!(outcome(&more).winner(), Some("a"));
        assert_eq!(more.standings()[0].faster, 2);
        let large = run(&[("b", &[100, 100, 100]), ("a", &[125, 126, 127])]);
        assert_eq!((outcome(&large).winner(), large.standings()[0].slower), (Some("a"), 2));
    }

    /// Rates of 1,000 asked for: `slow` delivers 62 % of it, the others all of it.
    #[test]
    fn an_open_loop_is_judged_by_keeping_up_and_by_latency() {
        let mut results = run(&[("a", &[1_000, 999, 1_000]), ("b", &[1_000; 3]), ("slow", &[620, 620, 620])]);
        results.meta.settings.rate = Some(1_000.0);
        for p in results.points.iter_mut().filter(|p| p.engine == "b") {
            p.figures.ops.iter_mut().for_each(|o| o.latency.p99 /= 2.0);
        }
        let verdict = &results.verdicts()[0];
        let Outcome::Tail(ranked) = &verdict.outcome else { panic!("{:?}", verdict.outcome) };
        assert_eq!(ranked.iter().map(|r| r.0).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(verdict.unranked, [("slow", Unranked::Behind(0.62))]);
        assert_eq!(verdict.unranked[0].1.to_string(), "it did not keep up: it delivered 62.0 % of the rate");
        assert!(results.standings().is_empty() && verdict.outcome.lead().is_none(), "no ratios of rates");
        let told = lead(&[&verdict.outcome], "points");
        assert_eq!(told, "b has the lowest p99 at 1 of 1 points.");

        // A point's own rate goes before the run's.
        results.points.iter_mut().for_each(|p| p.point.rate = Some(500.0));
        assert!(results.verdicts()[0].unranked.is_empty(), "half of the rate is met by all");
        results.points.iter_mut().for_each(|p| p.point.rate = None);
        results.meta.settings.rate = Some(100_000.0);
        let verdict = &results.verdicts()[0];
        assert!(matches!(verdict.outcome, Outcome::Overloaded { nearest: "a" | "b", .. }), "{:?}", verdict.outcome);
        assert!(verdict.outcome.to_string().starts_with("overloaded: no engine kept up"));
        assert_eq!(percent(0.9899), "98.9 %");
    }

    #[test]
    fn trouble_in_another_workload_changes_nothing_here() {
        let mut results = run(&[("a", &[10, 10, 10]), ("b", &[50, 50, 50])]);
        results.engines[1].trouble = Some(Error::failed("no space"));
        results.engines[1].trouble_in = Some("cart".into());
        assert_eq!(outcome(&results).winner(), Some("b"));
        results.engines[1].trouble_in = Some("mixed".into());
        assert_eq!(outcome(&results), Outcome::Alone("a"));
    }

    #[test]
    fn an_engine_whose_calls_failed_is_not_ranked() {
        let mut results = run(&[("a", &[10, 10, 10]), ("b", &[50, 50, 50])]);
        for p in results.points.iter_mut().filter(|p| p.engine == "b") {
            p.figures.ops[0].failed = 7;
            p.repeats[1].measured.first_failure = Some("put: disk on fire".into());
        }
        let verdict = &results.verdicts()[0];
        assert_eq!(verdict.outcome, Outcome::Alone("a"));
        let told = "7 put failed, and the script went on; the first: put: disk on fire";
        assert_eq!(verdict.unranked[0].1.to_string(), told);
    }

    #[test]
    fn few_repeats_prove_nothing() {
        let results = run(&[("a", &[100, 101]), ("b", &[10, 11])]);
        assert!(
            matches!(outcome(&results), Outcome::Unsure { fastest: "a", next: "b", .. }),
            "{:?}",
            outcome(&results)
        );
        assert!(results.verdicts()[0].outcome.to_string().contains("too few repeats"));
        assert_eq!((results.standings()[0].faster, results.standings()[0].undecided), (0, 2));
    }

    #[test]
    fn an_engine_that_lost_keys_unseen_by_its_points_is_not_ranked() {
        let mut results = run(&[("a", &[10, 10, 10]), ("loser", &[900, 900, 900])]);
        let lost = crate::lua::point::Answers { verified: 700, wrong: 3, examples: Vec::new() };
        results.engines[1].stores[2].checked = lost;
        let verdict = &results.verdicts()[0];
        assert_eq!(verdict.outcome, Outcome::Alone("a"));
        assert_eq!(verdict.unranked[0].1.to_string(), "3 of 700 answers that were checked were wrong");
    }

    #[test]
    fn an_engine_that_is_wrong_fails_or_does_nothing_is_reported_and_not_ranked() {
        let mut results =
            run(&[("a", &[10, 10, 10]), ("liar", &[900, 900, 900]), ("lazy", &[0, 0, 0]), ("dead", &[500, 500, 500])]);
        results.engines[3].trouble = Some(Error::failed("no space"));
        let at = results.points.iter().position(|p| p.engine == "liar").unwrap();
        let mut repeat = results.points[at].repeats[0].clone();
        (repeat.number, repeat.measured.verified, repeat.measured.wrong) = (3, 1_500, 2);
        results.points[at].push(repeat);
        let verdict = &results.verdicts()[0];
        assert_eq!(verdict.outcome, Outcome::Alone("a"));
        let told: Vec<String> = verdict.unranked.iter().map(|(engine, why)| format!("{engine}: {why}")).collect();
        assert_eq!(
            told,
            [
                "liar: 2 of 1,500 answers that were checked were wrong",
                "lazy: it did not finish one unit",
                "dead: it failed: no space"
            ]
        );
        // At the other point the liar was not caught.
        assert_eq!(results.verdicts()[1].outcome.winner(), Some("liar"));
        assert_eq!(results.standings().len(), 1);
    }

    #[test]
    fn no_engine_is_ranked_where_none_did_anything() {
        assert!(Results::default().verdicts().is_empty() && Results::default().standings().is_empty());
        let results = run(&[("a", &[0]), ("b", &[0])]);
        assert_eq!(outcome(&results), Outcome::NoEngine);
        assert_eq!(results.verdicts()[0].outcome.lead(), None);
        assert!(results.standings().is_empty());
        assert_eq!(outcome(&run(&[("a", &[7, 7, 7])])), Outcome::Alone("a"));
    }

    #[test]
    fn engines_with_other_repeats_are_no_pairs() {
        let a = run(&[("a", &[100, 200, 400])]).points.remove(0);
        let mut b = run(&[("b", &[50, 100, 200])]).points.remove(0);
        let paired = ratio(&a, &b);
        assert_eq!((paired.low, paired.high), (2.0, 2.0));
        b.repeats[2].number = 7;
        let apart = ratio(&a, &b);
        assert!(apart.value == 2.0 && apart.low < 1.0 && apart.high > 4.0, "{apart:?}");
    }

    #[test]
    fn leads_say_which_engine_won_what() {
        let lead_of = |results: &Results| {
            let verdicts = results.verdicts();
            lead(&verdicts.iter().map(|v| &v.outcome).collect::<Vec<_>>(), "points")
        };
        let all = run(&[("a", &[20, 20, 20]), ("b", &[10, 10, 10])]);
        assert_eq!(lead_of(&all), "a is the fastest at all 2 points.");
        let none = run(&[("a", &[20, 10, 20]), ("b", &[10, 20, 20])]);
        assert_eq!(lead_of(&none), "No clear winner at any of 2 points.");
        assert!(lead_of(&run(&[("a", &[1, 1, 1])])).starts_with("Only one engine"));
        let mut split = all.clone();
        split.points.remove(3);
        for number in 0..3 {
            split.add_point("mixed", "b", place(4, None), Repeat { number, measured: measured(90), drift: None });
        }
        assert_eq!(lead_of(&split), "a is the fastest at 1 of 2 points, b at 1.");
        let unsure = run(&[("a", &[20, 20]), ("b", &[10, 10])]);
        assert_eq!(lead_of(&unsure), "a is ahead at all 2 points; there are no confidence intervals.");
    }
}
