//! `report.html`: a run for people who decide something by it. First which engine wins what, by how much and how surely; then
//! the figures; then every point, and all that is needed to judge the numbers and to get them again.

mod about;
mod tables;
#[cfg(test)]
mod tests;

use crate::clock;
use crate::figure::{self, Figure};
use crate::lua::point::Limit;
use crate::measure::{plural, show_count};
use crate::page::verdicts::{self, Row};
use crate::page::{self, Html};
use crate::results::verdict::ENOUGH;
use crate::results::{Ending, Results};

/// The whole page.
pub fn render(results: &Results, figures: &[Figure]) -> String {
    let title = title(results);
    page::document(&title, &figure::style(), |h| {
        h.within("header", "", |h| {
            h.leaf("h1", "", &title);
            h.leaf("p", "conditions", &conditions(results));
            cautions(h, results);
        });
        verdict(h, results);
        drawn(h, figures);
        tables::summary(h, results);
        tables::resources(h, results);
        tables::every_point(h, results);
        about::engines(h, results);
        about::conditions(h, results);
        about::replay(h, &results.meta);
    })
}

/// Figures of what came out; behind a click those of how it went on the way.
fn drawn(h: &mut Html, figures: &[Figure]) {
    let on_the_way =
        |f: &&Figure| ["timeline_", "engine_stats_", "seed_"].iter().any(|prefix| f.name.starts_with(prefix));
    let (later, first): (Vec<&Figure>, Vec<&Figure>) = figures.iter().partition(on_the_way);
    if figures.is_empty() {
        return;
    }
    h.section("figures", "Figures", |h| {
        first.iter().for_each(|f| h.figure(&f.title, &f.svg, &f.narrow));
        if !later.is_empty() {
            h.within("details", "", |h| {
                h.leaf(
                    "summary",
                    "",
                    &format!("Seeding, and what was read over time: {}", plural(later.len(), "figure")),
                );
                later.iter().for_each(|f| h.figure(&f.title, &f.svg, &f.narrow));
            });
        }
    });
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

/// What a reader must know before any number, in a line.
fn conditions(results: &Results) -> String {
    let meta = &results.meta;
    let s = &meta.settings;
    let mut parts = vec![
        clock::date(&meta.stamp),
        format!("{} items", show_count(s.items as f64)),
        format!("{} users", show_count(s.users as f64)),
        format!("values of {}", results.value_sizes()),
        if s.sync { "every write synced" } else { "not synced" }.to_owned(),
        s.limit.unwrap_or(Limit::Endless).to_string(),
    ];
    if s.warmup > 0.0 {
        parts.push(format!("{} s of warming up before each", s.warmup));
    }
    parts.push(match s.open_loop() {
        Some(rate) => format!("open loop: {rate}"),
        None => "closed loop".into(),
    });
    parts.push(results.medians());
    parts.extend(meta.machine.as_ref().map(|m| m.description.clone()));
    parts.join(" · ")
}

/// What takes away from the numbers, before any of them.
fn cautions(h: &mut Html, results: &Results) {
    let meta = &results.meta;
    let mut told: Vec<String> = Vec::new();
    if !meta.optimised {
        told.push(
            "keybench was built without optimisation: these figures are meaningless. Use a release build.".into(),
        );
    }
    match meta.ending {
        Ending::Complete => {}
        Ending::Interrupted => told.push("The run was interrupted: this report has the finished part.".into()),
        Ending::None => told.push("The run is incomplete: this report has the finished part.".into()),
    }
    if meta.machine.as_ref().is_some_and(|m| m.tmpfs) {
        told.push("The stores were in memory, not on a disk: figures of disks mean nothing.".into());
    }
    told.extend(results.differences.iter().map(|d| format!("The engines were not set up alike: {d}.")));
    told.extend(results.small_stores().map(|why| format!("{why}.")));
    for e in &results.engines {
        if let Some(trouble) = &e.trouble {
            let what = if e.took_part() { "failed" } else { "was skipped" };
            told.push(format!("{} {what}: {trouble}", e.name));
        }
        let wrong = results.wrong_answers(&e.name);
        if wrong > 0 {
            let verified = e.answers().verified + results.repeats_of(&e.name).map(|m| m.verified).sum::<u64>();
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

/// Which engine wins what, by how much, and how sure that is.
fn verdict(h: &mut Html, results: &Results) {
    let verdicts = results.verdicts();
    let rows = verdicts.iter().map(|v| Row {
        place: v.place(),
        outcome: &v.outcome,
        unranked: v.unranked.iter().map(|(engine, why)| (*engine, why.to_string())).collect(),
    });
    let rows: Vec<Row<'_>> = rows.collect();
    verdicts::section(h, &rows, &results.standings(), "points", &method(results));
}

/// How to read the numbers above.
fn method(results: &Results) -> String {
    if results.meta.settings.is_open() {
        return "In an open loop every engine that keeps up has the rate that was asked for, so rates are not compared. An \
                engine kept up if it delivered at least 99 % of the rate; those are ordered by their highest p99 over all \
                kinds of operation."
            .into();
    }
    let repeats = results.points.iter().map(|p| p.repeats.len()).min().unwrap_or_default();
    let mut text = String::from(
        "Rates are medians of repeats, in which the engines alternate. Intervals are percentile bootstraps over pairs of \
         repeats; an engine wins where the interval of its ratio to each other one lies above 1.",
    );
    if (ENOUGH..5).contains(&repeats) {
        text += &format!(
            " With {repeats} repeats an interval is only their range, and must lie above 1.1: take more, if a small \
             difference matters."
        );
    }
    text
}
