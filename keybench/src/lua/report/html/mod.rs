//! `report.html`: a run for people who decide something by it. First who wins what, by how much and how surely; then the
//! figures; then every point, and all that is needed to judge the numbers and to get them again.

mod about;
mod tables;
#[cfg(test)]
mod tests;

use crate::lua::point::Limit;
use crate::measure::{show_bytes, show_count};
use crate::page::{self, Head, Html};
use crate::results::verdict::{ENOUGH, Outcome, Verdict};
use crate::results::{Ending, Meta, Results};
use crate::stats::Estimate;

/// The whole page.
pub fn render(results: &Results) -> String {
    let title = title(results);
    page::document(&title, "", |h| {
        h.within("header", "", |h| {
            h.leaf("h1", "", &title);
            h.leaf("p", "conditions", &conditions(&results.meta));
            cautions(h, results);
        });
        verdict(h, results);
        tables::summary(h, results);
        tables::resources(h, results);
        tables::every_point(h, results);
        about::engines(h, results);
        about::conditions(h, &results.meta);
        about::replay(h, &results.meta);
    })
}

/// Names in a row: `a, b and c`.
fn list<S: AsRef<str>>(names: &[S]) -> String {
    match names {
        [] => String::new(),
        [one] => one.as_ref().to_owned(),
        [most @ .., last] => {
            format!("{} and {}", most.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "), last.as_ref())
        }
    }
}

fn title(results: &Results) -> String {
    let mut workloads: Vec<&str> = Vec::new();
    for p in &results.points {
        if !workloads.contains(&p.workload.as_str()) {
            workloads.push(&p.workload);
        }
    }
    let engines: Vec<&str> = results.engines.iter().map(|e| e.name.as_str()).collect();
    match workloads.as_slice() {
        [] => format!("Nothing was measured on {}", list(&engines)),
        few if few.len() <= 3 => format!("{} on {}", list(few), list(&engines)),
        many => format!("{} workloads on {}", many.len(), list(&engines)),
    }
}

/// `YYYYmmdd-HHMMSS` for people.
fn date(stamp: &str) -> String {
    let part = |range: std::ops::Range<usize>| stamp.get(range).unwrap_or("?");
    format!("{}-{}-{} {}:{} UTC", part(0..4), part(4..6), part(6..8), part(9..11), part(11..13))
}

/// When a point ends, in words.
fn limit(limit: Option<Limit>) -> String {
    match limit {
        Some(Limit::Units(n)) => format!("{} units a point", show_count(n as f64)),
        Some(Limit::Seconds(s)) => format!("{s} s a point"),
        Some(Limit::Endless) | None => "points without an end".into(),
    }
}

/// What a reader must know before any number, in a line.
fn conditions(meta: &Meta) -> String {
    let s = &meta.settings;
    let mut parts = vec![
        date(&meta.stamp),
        format!("{} items", show_count(s.items as f64)),
        format!("{} users", show_count(s.users as f64)),
        format!("values of {}", show_bytes(s.value_size as f64)),
        if s.sync { "every write synced" } else { "not synced" }.to_owned(),
        limit(s.limit),
    ];
    if s.warmup > 0.0 {
        parts.push(format!("{} s of warming up before each", s.warmup));
    }
    parts.push(match s.rate {
        Some(rate) => format!("open loop at {} units/s", show_count(rate)),
        None => "closed loop".into(),
    });
    parts.push(format!("medians of {}", s.repeat));
    parts.extend(meta.machine.as_ref().map(|m| m.description.clone()));
    parts.join(" · ")
}

/// What takes away from the numbers, before any of them.
fn cautions(h: &mut Html, results: &Results) {
    let meta = &results.meta;
    let mut told: Vec<String> = Vec::new();
    if !meta.optimised {
        told.push("keybench was built without optimisation: these figures mean nothing. Use a release build.".into());
    }
    match meta.ending {
        Ending::Complete => {}
        Ending::Interrupted => told.push("The run was interrupted: what is here is what was finished.".into()),
        Ending::None => told.push("The run did not come to its end: what is here is what was finished.".into()),
    }
    if meta.machine.as_ref().is_some_and(|m| m.tmpfs) {
        told.push("The stores were in memory, not on a disk: figures of disks mean nothing.".into());
    }
    for e in &results.engines {
        if let Some(trouble) = &e.trouble {
            let what = if e.took_part() { "failed" } else { "was skipped" };
            told.push(format!("{} {what}: {trouble}", e.name));
        }
        let (wrong, verified) = results.repeats_of(&e.name).fold((0, 0), |(w, v), m| (w + m.wrong, v + m.verified));
        if wrong > 0 {
            let (wrong, verified) = (show_count(wrong as f64), show_count(verified as f64));
            told.push(format!(
                "{} gave wrong answers: {wrong} of {verified} that were checked. Where it did it is not ranked.",
                e.name
            ));
        }
    }
    if told.is_empty() {
        return;
    }
    h.within("div", "caution", |h| told.iter().for_each(|t| h.leaf("p", "", t)));
}

/// Who wins what, by how much, with confidence.
fn verdict(h: &mut Html, results: &Results) {
    let verdicts = results.verdicts();
    if verdicts.is_empty() {
        return;
    }
    h.section("verdict", "Verdict", |h| {
        h.leaf("p", "lead", &lead(&verdicts));
        let standings = results.standings();
        if verdicts.len() > 1 && !standings.is_empty() {
            h.within("ul", "standings", |h| standings.iter().for_each(|s| h.leaf("li", "", &s.sentence())));
        }
        let compared = verdicts.iter().any(|v| v.lead().is_some());
        if compared || verdicts.iter().any(|v| !v.unranked.is_empty()) {
            let scale = Scale::of(&verdicts);
            h.within("div", "verdicts", |h| {
                let head = [Head::Words("Where"), Head::Words("Who"), Head::Words(&scale.label)];
                h.table("Verdicts", &head[..if compared { 3 } else { 2 }], |h| {
                    h.within("tbody", "", |h| verdicts.iter().for_each(|v| verdict_row(h, v, &scale, compared)));
                });
            });
        }
        if compared {
            method(h, results);
        }
    });
}

/// The one sentence that a reader in a hurry takes along.
fn lead(verdicts: &[Verdict<'_>]) -> String {
    if let [only] = verdicts {
        return format!("{}: {}.", only.place(), only.finding());
    }
    let mut winners: Vec<(&str, usize)> = Vec::new();
    for winner in verdicts.iter().filter_map(Verdict::winner) {
        match winners.iter_mut().find(|(name, _)| *name == winner) {
            Some((_, n)) => *n += 1,
            None => winners.push((winner, 1)),
        }
    }
    winners.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let won: usize = winners.iter().map(|(_, n)| n).sum();
    let rest = verdicts.len() - won;
    let alone = verdicts.iter().all(|v| matches!(v.outcome, Outcome::Alone(_)));
    match winners.as_slice() {
        [] if alone => "Only one engine can be ranked: there is nothing to compare it with.".into(),
        [] => format!("No clear winner at any of {} points.", verdicts.len()),
        [(one, n)] if rest == 0 => format!("{one} is the fastest at all {n} points."),
        [(first, n), others @ ..] => {
            let mut out = format!("{first} is the fastest at {n} of {} points", verdicts.len());
            for (name, n) in others {
                out += &format!(", {name} at {n}");
            }
            if rest > 0 {
                out += &format!("; at {rest} there is no clear winner");
            }
            out + "."
        }
    }
}

/// The scale that ratios are drawn on: one for the whole table.
struct Scale {
    most: f64,
    label: String,
}

impl Scale {
    const WIDTH: f64 = 230.0;
    const MARGIN: f64 = 8.0;

    fn of(verdicts: &[Verdict<'_>]) -> Scale {
        let ends = verdicts.iter().filter_map(Verdict::lead).flat_map(|e| [e.high, 1.0 / e.low.max(1e-3)]);
        let most = ends.filter(|x| x.is_finite()).fold(1.25, f64::max).min(1e3);
        Scale { most, label: format!("Times as fast, from 1x to {most:.1}x") }
    }

    /// From the inverse of the greatest ratio to it, as far as 1x allows.
    fn x(&self, ratio: f64) -> f64 {
        let room = Scale::WIDTH - 4.0 * Scale::MARGIN;
        let at = (ratio.max(1e-9).ln() / self.most.ln()).clamp(-1.0, 1.0);
        // Few intervals reach below 1, and none far: a quarter of the room is for those.
        let one = Scale::MARGIN * 2.0 + room * 0.25;
        if at < 0.0 { one + at * room * 0.25 } else { one + at * room * 0.75 }
    }

    fn draw(&self, h: &mut Html, e: &Estimate, won: bool) {
        let class = if won { " class=\"won\"" } else { "" };
        let (low, value, high) = (self.x(e.low), self.x(e.value), self.x(e.high));
        let one = self.x(1.0);
        // Numbers only.
        h.raw(&format!(
            "<svg class=\"plot\" viewBox=\"0 0 {} 20\" aria-hidden=\"true\">\
             <line class=\"one\" x1=\"{one:.1}\" y1=\"0\" x2=\"{one:.1}\" y2=\"20\"/>\
             <line{class} x1=\"{low:.1}\" y1=\"10\" x2=\"{high:.1}\" y2=\"10\"/>\
             <line{class} x1=\"{low:.1}\" y1=\"6\" x2=\"{low:.1}\" y2=\"14\"/>\
             <line{class} x1=\"{high:.1}\" y1=\"6\" x2=\"{high:.1}\" y2=\"14\"/>\
             <circle{class} cx=\"{value:.1}\" cy=\"10\" r=\"4\"/></svg>",
            Scale::WIDTH
        ));
    }
}

fn verdict_row(h: &mut Html, v: &Verdict<'_>, scale: &Scale, compared: bool) {
    h.row("", |h| {
        h.tag("th", &[("scope", "row")], |h| h.text(&v.place()));
        h.within("td", "finding", |h| {
            let finding = v.finding();
            let (what, how_surely) = finding.split_at(finding.find(" (").unwrap_or(finding.len()));
            h.within("p", "", |h| {
                h.leaf("span", if v.winner().is_some() { "best" } else { "" }, what);
                h.leaf("small", "", how_surely);
            });
            for (engine, why) in &v.unranked {
                h.leaf("p", "alarm", &format!("{engine} is not ranked: {why}"));
            }
        });
        if compared {
            h.within("td", "drawn", |h| {
                if let Some(lead) = v.lead() {
                    scale.draw(h, &lead, v.winner().is_some());
                }
            });
        }
    });
}

/// How to read the numbers above.
fn method(h: &mut Html, results: &Results) {
    let repeats = results.points.iter().map(|p| p.repeats.len()).min().unwrap_or_default();
    let mut text = String::from(
        "Rates are medians of repeats, in which the engines alternate. Intervals are percentile bootstraps over pairs of \
         repeats; an engine wins where the interval of its ratio to each other one lies above 1.",
    );
    if (ENOUGH..5).contains(&repeats) {
        text += &format!(
            " With {repeats} repeats an interval is hardly more than their range: take more, if a small difference matters."
        );
    }
    if results.meta.settings.rate.is_some() {
        text +=
            " In an open loop every engine that keeps up has the same rate: what tells them apart is their latency.";
    }
    h.leaf("p", "method", &text);
}
