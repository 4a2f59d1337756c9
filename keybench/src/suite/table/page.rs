//! The page of a suite: which engine wins which test, by how much and how surely, then all numbers side by side.

use super::{Cell, FIGURES, Table, rate};
use crate::figure;
use crate::measure::sig3;
use crate::page::verdicts::{self, Row};
use crate::page::{self, Head, Html};
use crate::results::verdict::{Outcome, Standing, clearance};
use crate::stats::Estimate;

/// How to read the numbers.
const METHOD: &str = "Rates are medians of repeats, in which the engines alternate. An engine wins where the whole 95 % \
interval of its rate lies above that of each other engine; the interval of a ratio goes from the least to the most that the \
two intervals allow, which is wider than one of pairs. With three or four repeats it must lie above 1.1. Where the file has no intervals, or fewer than three repeats, no \
engine is said to win.";

/// A group of columns for each engine: what it is called, and which of [`FIGURES`] it shows.
const GROUPS: [(&str, &str, &[&str]); 4] = [
    ("latency", "Latency", &["p50 us", "p99 us", "p99.9 us", "max ms"]),
    ("cost", "Memory and disk", &["peak RSS MiB", "disk MiB", "write amp", "read amp", "space amp"]),
    (
        "settled",
        "What writes cost until compaction was idle",
        &["settled CPU s", "settled s", "settled written MiB", "settled space MiB", "settled RSS MiB"],
    ),
    ("aborts", "Transactions that gave way, in percent", &["aborts %"]),
];

/// What a page says besides the table.
pub struct About<'a> {
    /// Its heading.
    pub title: String,
    /// Names and what there is to say.
    pub facts: Vec<(&'a str, String)>,
    /// What went wrong.
    pub troubles: Vec<String>,
}

impl Table {
    /// The page.
    pub fn page(&self, about: &About<'_>) -> String {
        page::document(&about.title, &figure::style(), |h| {
            h.within("header", "", |h| {
                h.leaf("h1", "", &about.title);
                let told: Vec<String> = about.facts.iter().filter_map(|(name, fact)| told(name, fact)).collect();
                h.leaf("p", "conditions", &told.join(" · "));
                if !about.troubles.is_empty() {
                    h.within("div", "caution", |h| about.troubles.iter().for_each(|t| h.leaf("p", "", t)));
                }
            });
            self.verdict(h);
            self.rates(h);
            let figures = self.draw("");
            if !figures.is_empty() {
                h.section("figures", "Figures", |h| figures.iter().for_each(|f| h.figure(&f.title, &f.svg, &f.narrow)));
            }
            if !self.rates_only {
                GROUPS.iter().for_each(|(id, heading, figures)| self.figures(h, id, heading, figures));
            }
            h.section("conditions", "Conditions", |h| {
                h.within("dl", "", |h| {
                    for (name, fact) in &about.facts {
                        h.leaf("dt", "", name);
                        h.leaf("dd", "", fact);
                    }
                });
            });
        })
    }

    /// Engines that may be ranked in a test, from the fastest to the slowest.
    fn ranked(&self, test: &str) -> Vec<(&str, &Cell)> {
        let cells = self.engines.iter().filter_map(|e| self.cell(test, e).map(|c| (e.as_str(), c)));
        let mut ranked: Vec<_> = cells.filter(|(_, c)| unranked(c).is_none()).collect();
        ranked.sort_by(|a, b| b.1.rate.total_cmp(&a.1.rate));
        ranked
    }

    fn outcome(&self, test: &str) -> Outcome<'_> {
        let ranked = self.ranked(test);
        let names: Vec<&str> = ranked.iter().map(|(engine, _)| *engine).collect();
        let clear = clear(ranked.iter().map(|(_, c)| *c));
        Outcome::of(&names, clear, |over, under| ratio(ranked[over].1, ranked[under].1))
    }

    fn standings(&self) -> Vec<Standing<'_>> {
        let Some(first) = self.engines.first() else { return Vec::new() };
        let against = |other: &'_ str| -> Vec<(Estimate, Option<f64>)> {
            let both = self.tests.iter().filter_map(|test| {
                let ranked = self.ranked(test);
                let at = |name: &str| ranked.iter().find(|(engine, _)| *engine == name).map(|(_, c)| *c);
                Some((at(first)?, at(other)?))
            });
            both.map(|(a, b)| (ratio(a, b), clear([a, b].into_iter()))).collect()
        };
        self.engines[1..].iter().filter_map(|other| Standing::of(first, other, &against(other))).collect()
    }

    fn verdict(&self, h: &mut Html) {
        let outcomes: Vec<Outcome<'_>> = self.tests.iter().map(|t| self.outcome(t)).collect();
        let told = |test: &String| {
            let cells = self.engines.iter().filter_map(|e| self.cell(test, e).map(|c| (e.as_str(), c)));
            cells.filter_map(|(engine, c)| unranked(c).map(|why| (engine, why))).collect()
        };
        let rows = self.tests.iter().zip(&outcomes);
        let rows: Vec<Row<'_>> =
            rows.map(|(test, outcome)| Row { place: test.clone(), outcome, unranked: told(test) }).collect();
        verdicts::section(h, &rows, &self.standings(), "tests", METHOD);
    }

    fn rates(&self, h: &mut Html) {
        h.section("rates", "Operations, or commits, a second", |h| {
            let mut head = vec![Head::Words("test")];
            head.extend(self.engines.iter().map(|e| Head::Numbers(e)));
            let lead = self.engines.first().map_or(String::new(), |e| format!("{e} / best other"));
            head.push(Head::Numbers(&lead));
            h.table("Rates", &head, |h| {
                h.within("tbody", "", |h| {
                    for test in &self.tests {
                        h.row("", |h| self.rates_of(h, test));
                    }
                });
            });
        });
    }

    fn rates_of(&self, h: &mut Html, test: &str) {
        h.tag("th", &[("scope", "row")], |h| h.text(test));
        let outcome = self.outcome(test);
        for engine in &self.engines {
            let Some(cell) = self.cell(test, engine) else {
                h.number("–");
                continue;
            };
            let class = match unranked(cell) {
                Some(_) => "num alarm",
                None if outcome.winner() == Some(engine) => "num best",
                None => "num",
            };
            h.within("td", class, |h| {
                h.text(&rate(cell));
                if let (Some((low, high)), None) = (cell.spread, unranked(cell)) {
                    let shown = |x| rate(&Cell { rate: x, ..Cell::default() });
                    h.leaf("small", "", &format!("{} – {}", shown(low), shown(high)));
                }
            });
        }
        h.number(&self.lead(test).map_or("–".into(), |x| format!("{}x", sig3(x))));
    }

    fn figure_of_each(&self, h: &mut Html, test: &str, figure: fn(&Cell) -> Option<String>) {
        for (at, engine) in self.engines.iter().enumerate() {
            let shown = self.cell(test, engine).and_then(figure);
            h.leaf("td", if at == 0 { "num first" } else { "num" }, shown.as_deref().unwrap_or("–"));
        }
    }

    /// A table with some figures of each engine, if there are any.
    fn figures(&self, h: &mut Html, id: &str, heading: &str, names: &[&str]) {
        let figures: Vec<_> = names.iter().filter_map(|n| FIGURES.iter().find(|(name, _)| name == n)).collect();
        let any = |(_, figure): &&&super::Figure| self.cells.values().any(|c| figure(c).is_some());
        let figures: Vec<_> = figures.iter().filter(any).collect();
        if figures.is_empty() {
            return;
        }
        h.section(id, heading, |h| {
            let groups: Vec<String> = figures.iter().map(|(name, _)| name.replace(" us", " µs")).collect();
            h.grouped_table(heading, &groups, &self.engines, |h| {
                h.within("tbody", "", |h| {
                    for test in &self.tests {
                        h.row("", |h| {
                            h.tag("th", &[("scope", "row")], |h| h.text(test));
                            figures.iter().for_each(|(_, figure)| self.figure_of_each(h, test, *figure));
                        });
                    }
                });
            });
        });
    }
}

/// A fact as the line under the heading has it; commands are further below.
fn told(name: &str, fact: &str) -> Option<String> {
    match name {
        "command" => None,
        "suite" | "machine" | "date" => Some(fact.to_owned()),
        _ => Some(format!("{name} {fact}")),
    }
}

/// Why an engine is not ranked in a test, if it is not.
fn unranked(cell: &Cell) -> Option<String> {
    match cell {
        c if c.lost_updates > 0 => Some(format!("{} committed updates were lost", c.lost_updates)),
        c if c.wrong > 0 => Some(format!("{} answers were wrong", c.wrong)),
        c if c.failed > 0 => Some(format!("{} calls failed", c.failed)),
        c if c.rate <= 0.0 => Some("it completed no operation".into()),
        _ => None,
    }
}

/// The interval of a rate, if there is one to divide by: that of an engine which stood still in most draws is none.
fn spread(cell: &Cell) -> Option<(f64, f64)> {
    cell.spread.filter(|(low, high)| *low > 0.0 && high >= low)
}

/// What the interval of a ratio must lie above, if all of these have intervals: those of three repeats of equals are apart in one
/// case of ten.
fn clear<'c>(mut cells: impl Iterator<Item = &'c Cell>) -> Option<f64> {
    let fewest = cells.try_fold(usize::MAX, |fewest, c| spread(c).map(|_| fewest.min(c.repeats)));
    fewest.and_then(clearance)
}

/// How many times as fast one is; the interval is the widest that both intervals allow.
fn ratio(over: &Cell, under: &Cell) -> Estimate {
    let value = over.rate / under.rate;
    match (spread(over), spread(under)) {
        (Some((low, high)), Some((under_low, under_high))) => {
            Estimate { value, low: low / under_high, high: high / under_low }
        }
        _ => Estimate { value, low: value, high: value },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;
    use crate::page::check;

    fn about() -> About<'static> {
        About { title: "Suite <core>".into(), facts: vec![("scale", "0.01".into())], troubles: vec!["a & b".into()] }
    }

    #[test]
    fn tests_are_won_by_intervals_that_are_apart() {
        let t = table(
            "kingtide,get,GET,300,1,2,3,4,5,6,0,,,,,3,290,310\nrocksdb,get,GET,200,1,2,3,4,5,6,0,,,,,3,190,210\n\
             kingtide,put,PUT,300,1,2,3,4,5,6,0,,,,,3,200,310\nrocksdb,put,PUT,200,1,2,3,4,5,6,0,,,,,3,190,210\n\
             kingtide,del,DEL,300,1,2,3,4,5,6,0,,,,,2,290,310\nrocksdb,del,DEL,200,1,2,3,4,5,6,0,,,,,3,190,210\n\
             kingtide,rmw,TXN,300,1,2,3,4,5,6,0,9,300,0.1,0,3,290,310\nrocksdb,rmw,TXN,200,1,2,3,4,5,6,0,9,200,0,7,3,1,2\n",
        )
        .unwrap();
        let page = t.page(&about());
        check::page(&page);
        for wanted in [
            "kingtide is the fastest at 1 of 4 tests; at 3 there is no clear winner.",
            "kingtide against rocksdb: faster at 1 of 3 tests, undecided at 2; 1.50x",
            "kingtide is faster than rocksdb: 1.50x</span><small> (95 % interval 1.38 to 1.63)",
            "no clear winner between kingtide and rocksdb: 1.50x",
            "too few repeats for a confidence interval",
            "rocksdb is not ranked: 7 committed updates were lost",
            "lost updates",
            "290 – 310",
            ">aborts %<",
            "Suite &lt;core&gt;",
            "a &amp; b",
        ] {
            assert!(page.contains(wanted), "'{wanted}' is not in {page}");
        }
    }

    #[test]
    fn a_small_lead_needs_more_than_three_repeats() {
        let rows = |n: u32| {
            let row =
                |engine: &str, rate, low, high| format!("{engine},get,GET,{rate},1,2,3,4,5,6,0,,,,,{n},{low},{high}\n");
            table(&(row("kingtide", 106, 105, 107) + &row("rocksdb", 100, 100, 101))).unwrap()
        };
        for (repeats, wanted) in
            [(3, "no clear winner"), (4, "no clear winner"), (5, "kingtide is faster than rocksdb")]
        {
            let page = rows(repeats).page(&about());
            assert!(page.contains(wanted), "{repeats} repeats: {page}");
        }
    }

    #[test]
    fn a_small_lead_is_not_rounded_to_nothing() {
        let t = table("kingtide,get,GET,3,1,2,3,4,5,6,0,,,,\nrocksdb,get,GET,2000,1,2,3,4,5,6,0,,,,\n").unwrap();
        let page = t.page(&about());
        assert!(page.contains(">0.00150x<") && !page.contains("0.00x"), "{page}");
    }

    #[test]
    fn old_files_have_pages_without_winners() {
        let mut t =
            table("kingtide,get,GET,300,1,2,3,4,5,6,0,,,,,,,\nrocksdb,get,GET,0,1,2,3,4,5,6,0,,,,,,,\n").unwrap();
        check::page(&t.page(&about()));
        t = t.and(
            table("rocksdb,get,GET,200,1,2,3,4,5,6,0,,,,,,,\nrocksdb,put,PUT,200,1,2,3,4,5,6,0,,,,,3,0,0\n").unwrap(),
        );
        t = t.and(table("kingtide,put,PUT,200,1,2,3,4,5,6,0,,,,,3,0,0\n").unwrap());
        let page = t.page(&about());
        check::page(&page);
        assert!(page.contains("kingtide is ahead of rocksdb: 1.50x") && !page.contains("is the fastest"), "{page}");
    }
}
