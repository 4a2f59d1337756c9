//! What is needed to judge a page's numbers and to get them again: engines, machine, settings, configuration.

use crate::clock;
use crate::lua::point::Limit;
use crate::measure::{show_bytes, show_count};
use crate::page::Html;
use crate::results::{EngineResult, Meta, Results};

/// Each engine with its version, what it promises, and how it was set up.
pub fn engines(h: &mut Html, results: &Results) {
    h.section("engines", "Engines", |h| {
        h.within("div", "engines", |h| results.engines.iter().for_each(|e| engine(h, e)));
    });
}

fn engine(h: &mut Html, e: &EngineResult) {
    h.within("div", "engine", |h| {
        h.within("h3", "", |h| {
            h.text(&e.name);
            h.text(" ");
            h.leaf("small", "", &e.version);
        });
        if let Some(trouble) = &e.trouble {
            let what = if e.took_part() { "Failed" } else { "Skipped" };
            h.leaf("p", "alarm", &format!("{what}: {trouble}"));
        }
        if !e.took_part() {
            return;
        }
        h.leaf("p", "note", &e.durability);
        let outside = e.answers();
        if outside.verified > 0 {
            let checked = show_count(outside.verified as f64);
            let told = format!("Loading and the closing scan: {checked} answers checked, {} wrong.", outside.wrong);
            h.leaf("p", if outside.wrong > 0 { "alarm" } else { "note" }, &told);
            outside.examples.iter().take(5).for_each(|e| h.leaf("p", "note", e));
        }
        if e.options.is_empty() {
            return;
        }
        h.within("details", "", |h| {
            h.leaf("summary", "", &format!("{} options in effect", e.options.len()));
            facts(h, e.options.iter().map(|(k, v)| (k.as_str(), v.clone())));
        });
    });
}

fn facts<'a>(h: &mut Html, all: impl IntoIterator<Item = (&'a str, String)>) {
    h.within("dl", "", |h| {
        for (name, value) in all {
            h.leaf("dt", "", name);
            h.leaf("dd", "", &value);
        }
    });
}

/// The machine, the program, and what was asked for.
pub fn conditions(h: &mut Html, results: &Results) {
    let meta = &results.meta;
    h.section("conditions", "Conditions", |h| {
        let s = &meta.settings;
        let mut all: Vec<(&str, String)> = Vec::new();
        if let Some(m) = &meta.machine {
            all.push(("machine", m.description.clone()));
            all.push(("its state", format!("{} of memory available, load {:.2}", show_bytes(m.available), m.load)));
            all.push(("stores in", format!("{}{}", m.data_dir, if m.tmpfs { " (memory, not a disk)" } else { "" })));
            all.extend(m.facts.iter().map(|(name, fact)| (name.as_str(), fact.clone())));
        }
        let build = if meta.optimised { "release build" } else { "built without optimisation" };
        all.push(("keybench", format!("{}, commit {}, {build}, {}", meta.version, meta.commit, meta.target)));
        all.push(("began", clock::date(&meta.stamp)));
        all.push(("data set", format!("{} items, {} users", show_count(s.items as f64), show_count(s.users as f64))));
        all.push(("values", results.value_sizes()));
        all.push(("duration", s.limit.unwrap_or(Limit::Endless).to_string()));
        all.push(("warming up", if s.warmup > 0.0 { format!("{} s", s.warmup) } else { "none".into() }));
        all.push((
            "loop",
            match s.open_loop() {
                Some(rate) => format!("open: {rate}; latencies count from when units were due"),
                None => "closed: each thread begins a unit when its last one is done".into(),
            },
        ));
        all.push(("repeats", s.repeat.to_string()));
        all.push(("seed of all choices", s.seed.to_string()));
        all.push(("seeding threads", s.seed_threads.to_string()));
        all.push(("writes", if s.sync { "synced before they are acknowledged" } else { "not synced" }.into()));
        all.push(("answers", if s.verify { "checked" } else { "not checked" }.into()));
        facts(h, all);
    });
}

/// How to run the same again.
pub fn replay(h: &mut Html, meta: &Meta) {
    h.section("repeat", "How to repeat it", |h| {
        h.within("p", "", |h| {
            h.text("The command line was ");
            h.leaf("code", "", &meta.command);
            h.text(". What it came to, defaults included, for ");
            h.leaf("code", "", "keybench run --config replay.cnf");
            h.text(":");
        });
        h.tag("pre", &[("tabindex", "0")], |h| h.text(&meta.replay));
    });
}
