//! A page's first part: which engine wins what, by how much and how surely.

use super::{Head, Html};
use crate::measure::sig3;
use crate::results::verdict::{Outcome, Standing, lead};
use crate::stats::Estimate;

/// What is said of one place or test.
pub struct Row<'a> {
    /// Which it is.
    pub place: String,
    /// Which engine won.
    pub outcome: &'a Outcome<'a>,
    /// Engines that were measured and are not ranked, and why.
    pub unranked: Vec<(&'a str, String)>,
}

/// Writes it. `noun` says what `rows` are, in the plural; `method` is how the intervals came about.
pub fn section(h: &mut Html, rows: &[Row<'_>], standings: &[Standing<'_>], noun: &str, method: &str) {
    let outcomes: Vec<&Outcome<'_>> = rows.iter().map(|r| r.outcome).collect();
    if outcomes.is_empty() {
        return;
    }
    h.section("verdict", "Verdict", |h| {
        match rows {
            [only] => h.leaf("p", "lead", &format!("{}: {}.", only.place, only.outcome)),
            _ => h.leaf("p", "lead", &lead(&outcomes, noun)),
        }
        if rows.len() > 1 && !standings.is_empty() {
            h.within("ul", "standings", |h| standings.iter().for_each(|s| h.leaf("li", "", &s.sentence(noun))));
        }
        let compared = outcomes.iter().any(|o| o.lead().is_some());
        if compared || rows.iter().any(|r| !r.unranked.is_empty()) {
            let scale = Scale::of(&outcomes);
            h.within("div", "verdicts", |h| {
                let head = [Head::Words("Where"), Head::Words("Result"), Head::Words(&scale.label)];
                h.table("Verdicts", &head[..if compared { 3 } else { 2 }], |h| {
                    h.within("tbody", "", |h| rows.iter().for_each(|r| row(h, r, &scale, compared)));
                });
            });
        }
        if compared || outcomes.iter().any(|o| matches!(o, Outcome::Tail(_) | Outcome::Overloaded { .. })) {
            h.leaf("p", "method", method);
        }
    });
}

fn row(h: &mut Html, r: &Row<'_>, scale: &Scale, compared: bool) {
    h.row("", |h| {
        h.tag("th", &[("scope", "row")], |h| h.text(&r.place));
        h.within("td", "finding", |h| {
            let finding = r.outcome.to_string();
            let (what, how_surely) = finding.split_at(finding.find(" (").unwrap_or(finding.len()));
            h.within("p", "", |h| {
                h.leaf("span", if r.outcome.winner().is_some() { "best" } else { "" }, what);
                h.leaf("small", "", how_surely);
            });
            for (engine, why) in &r.unranked {
                h.leaf("p", "alarm", &format!("{engine} is not ranked: {why}"));
            }
        });
        if compared {
            h.within("td", "drawn", |h| {
                if let Some(lead) = r.outcome.lead() {
                    let sure = !matches!(r.outcome, Outcome::Unsure { .. });
                    scale.draw(h, &lead, r.outcome.winner().is_some(), sure);
                }
            });
        }
    });
}

/// The scale that ratios are drawn on: one for the whole table.
struct Scale {
    most: f64,
    label: String,
}

impl Scale {
    const WIDTH: f64 = 230.0;
    const MARGIN: f64 = 8.0;

    fn of(outcomes: &[&Outcome<'_>]) -> Scale {
        let ends = outcomes.iter().filter_map(|o| o.lead()).flat_map(|e| [e.high, 1.0 / e.low.max(1e-3)]);
        let most = ends.filter(|x| x.is_finite()).fold(1.25, f64::max).min(1e3);
        Scale { most, label: format!("Times as fast, from 1x to {}x", sig3(most)) }
    }

    /// From the inverse of the greatest ratio to it, in logarithms.
    fn x(&self, ratio: f64) -> f64 {
        let room = Scale::WIDTH - 4.0 * Scale::MARGIN;
        let at = (ratio.max(1e-9).ln() / self.most.ln()).clamp(-1.0, 1.0);
        // Few intervals reach below 1, and none far: a quarter of the room is for those.
        let one = Scale::MARGIN * 2.0 + room * 0.25;
        if at < 0.0 { one + at * room * 0.25 } else { one + at * room * 0.75 }
    }

    fn draw(&self, h: &mut Html, e: &Estimate, won: bool, sure: bool) {
        let class = if won { " class=\"won\"" } else { "" };
        let (low, value, high) = (self.x(e.low), self.x(e.value), self.x(e.high));
        let one = self.x(1.0);
        // Numbers only, here and below.
        h.raw(&format!(
            "<svg class=\"plot\" viewBox=\"0 0 {} 20\" aria-hidden=\"true\">\
             <line class=\"one\" x1=\"{one:.1}\" y1=\"0\" x2=\"{one:.1}\" y2=\"20\"/>",
            Scale::WIDTH
        ));
        if sure {
            h.raw(&format!(
                "<line{class} x1=\"{low:.1}\" y1=\"10\" x2=\"{high:.1}\" y2=\"10\"/>\
                 <line{class} x1=\"{low:.1}\" y1=\"6\" x2=\"{low:.1}\" y2=\"14\"/>\
                 <line{class} x1=\"{high:.1}\" y1=\"6\" x2=\"{high:.1}\" y2=\"14\"/>"
            ));
        }
        h.raw(&format!("<circle{class} cx=\"{value:.1}\" cy=\"10\" r=\"4\"/></svg>"));
    }
}
