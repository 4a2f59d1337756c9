//! The page's numbers: rates and latencies of the engines side by side, what they cost, and every point.

use crate::lua::point::Measured;
use crate::measure::{Summary, plural, show_amplification, show_bytes, show_count, show_ns, show_percent, sig3};
use crate::page::{Head, Html};
use crate::results::verdict::{ENOUGH, Unranked, ratio};
use crate::results::{EngineResult, PointResult, Results};
use crate::settle::{Cost, Costs};
use crate::stats::Estimate;

/// A point of the grid: what each engine did there.
type Place<'a> = Vec<&'a PointResult>;

/// The points of the grid by workload.
fn by_workload<'a>(results: &'a Results) -> Vec<(&'a str, Vec<Place<'a>>)> {
    let mut all: Vec<(&str, Vec<Place<'_>>)> = Vec::new();
    for place in results.places() {
        let workload = place[0].workload.as_str();
        match all.iter_mut().find(|(name, _)| *name == workload) {
            Some((_, places)) => places.push(place),
            None => all.push((workload, vec![place])),
        }
    }
    all
}

fn at<'a>(place: &Place<'a>, engine: &str) -> Option<&'a PointResult> {
    place.iter().copied().find(|p| p.engine == engine)
}

/// For each workload the rates, and the latencies, of all engines side by side.
pub fn summary(h: &mut Html, results: &Results) {
    let engines: Vec<&str> = results.measured_engines().map(|e| e.name.as_str()).collect();
    for (number, (workload, places)) in by_workload(results).iter().enumerate() {
        h.section(&format!("summary-{number}"), workload, |h| {
            h.leaf("h3", "", "Units of work a second");
            let mut head = vec![Head::Words("point")];
            head.extend(engines.iter().map(|e| Head::Numbers(e)));
            let ratios: Vec<String> = engines.iter().skip(1).map(|e| format!("{} / {e}", engines[0])).collect();
            head.extend(ratios.iter().map(|r| Head::Numbers(r)));
            h.table(&format!("{workload}: units of work a second"), &head, |h| {
                h.within("tbody", "", |h| places.iter().for_each(|place| rates(h, results, place, &engines)));
            });
            h.leaf("h3", "", "Latency in µs: p50 / p99 / p99.9");
            head.truncate(1 + engines.len());
            head.insert(1, Head::Words("operation"));
            h.table(&format!("{workload}: latencies"), &head, |h| {
                h.within("tbody", "", |h| places.iter().for_each(|place| latencies(h, place, &engines)));
            });
        });
    }
}

fn rates(h: &mut Html, results: &Results, place: &Place<'_>, engines: &[&str]) {
    let verdict = results.verdict(place);
    h.row("", |h| {
        h.tag("th", &[("scope", "row")], |h| h.text(&place[0].point.place()));
        for engine in engines {
            let Some(p) = at(place, engine) else {
                h.number("–");
                continue;
            };
            let e = &p.figures.wu_per_s;
            h.within("td", if verdict.outcome.winner() == Some(*engine) { "num best" } else { "num" }, |h| {
                h.text(&show_count(e.value));
                match results.unranked(p) {
                    Some(Unranked::Wrong { .. }) => h.leaf("small", "alarm", "wrong answers"),
                    Some(Unranked::Failures(_)) => h.leaf("small", "alarm", "failed calls"),
                    _ => interval(h, e, p.repeats.len(), show_count),
                }
            });
        }
        let open = results.meta.settings.is_open();
        let ranked = |engine: &str| at(place, engine).filter(|p| !open && results.unranked(p).is_none());
        for other in engines.iter().skip(1) {
            let (Some(a), Some(b)) = (ranked(engines[0]), ranked(other)) else {
                h.number("–");
                continue;
            };
            let e = ratio(a, b);
            h.within("td", "num", |h| {
                h.text(&format!("{}x", sig3(e.value)));
                interval(h, &e, a.repeats.len().min(b.repeats.len()), sig3);
            });
        }
    });
}

/// The ends of an interval, where there were repeats enough for one.
fn interval(h: &mut Html, e: &Estimate, repeats: usize, show: fn(f64) -> String) {
    if repeats >= ENOUGH {
        h.leaf("small", "", &format!("{} – {}", show(e.low), show(e.high)));
    }
}

fn latencies(h: &mut Html, place: &Place<'_>, engines: &[&str]) {
    let mut names: Vec<&str> = Vec::new();
    for op in place.iter().flat_map(|p| &p.figures.ops) {
        if !names.contains(&op.name.as_str()) {
            names.push(&op.name);
        }
    }
    for (at_op, name) in names.iter().enumerate() {
        h.row(if at_op + 1 < names.len() { "op" } else { "" }, |h| {
            if at_op == 0 {
                let rows = names.len().to_string();
                h.tag("th", &[("scope", "rowgroup"), ("rowspan", &rows)], |h| h.text(&place[0].point.place()));
            }
            h.leaf("td", "", name);
            for engine in engines {
                let found = at(place, engine).and_then(|p| p.op(name));
                h.number(&found.map_or("–".into(), |l| [l.p50, l.p99, l.p999].map(microseconds).join(" / ")));
            }
        });
    }
}

/// Nanoseconds as microseconds with three digits that count.
fn microseconds(ns: f64) -> String {
    match ns / 1e3 {
        us if us < 1000.0 => sig3(us),
        us => show_count(us),
    }
}

fn seconds(seconds: f64) -> String {
    show_ns(seconds * 1e9).replace(" us", " µs")
}

/// What each engine cost.
pub fn resources(h: &mut Html, results: &Results) {
    if results.measured_engines().next().is_none() {
        return;
    }
    h.section("resources", "What it cost", |h| {
        let numbers = [
            "keys seeded/s",
            "seeding",
            "peak memory",
            "mean memory",
            "written",
            "store on disk",
            "write amp",
            "read amp",
            "space amp",
            "CPU s per million ops",
            "close",
            "busy answers",
        ];
        let mut head = vec![Head::Words("store"), Head::Words("engine")];
        head.extend(numbers.iter().map(|n| Head::Numbers(n)));
        h.table("What each engine cost", &head, |h| {
            h.within("tbody", "", |h| {
                for (title, results) in results.by_store() {
                    results.measured_engines().for_each(|e| resources_of(h, &title, &results, e));
                }
            });
        });
        h.leaf(
            "p",
            "method",
            "Medians over the repeats of a store; memory is resident memory above what the harness itself held. \
             Amplification is bytes written for each byte given, bytes read by system calls for each byte answered \
             (memory maps are not seen), and bytes on disk for each live byte.",
        );
        harness(h, results);
    });
    settled(h, results);
}

/// What writes cost when the last one was acknowledged, and when they were settled.
fn settled(h: &mut Html, results: &Results) {
    if results.engines.iter().all(|e| e.costs().is_empty()) {
        return;
    }
    h.section("settled", "What writes cost until compaction was idle", |h| {
        let mut head = vec![Head::Words("store"), Head::Words("engine"), Head::Words("when")];
        head.extend(["time", "processor time", "written", "on disk", "memory"].map(Head::Numbers));
        h.table("What writes cost until compaction was idle", &head, |h| {
            h.within("tbody", "", |h| {
                for (title, results) in results.by_store() {
                    for e in results.measured_engines().filter(|e| !e.costs().is_empty()) {
                        let Costs { foreground, settled } = Costs::median_of(&e.costs());
                        costs_of(h, (&title, &e.name, "last write acknowledged"), &foreground);
                        costs_of(h, (&title, &e.name, "settled"), &settled);
                    }
                }
            });
        });
        let what =
            "Since the first write, load and points together. Settled: memtables are flushed and compaction is idle.";
        h.leaf("p", "method", what);
    });
}

fn costs_of(h: &mut Html, (store, engine, when): (&str, &str, &str), cost: &Cost) {
    h.row("", |h| {
        h.tag("th", &[("scope", "row")], |h| h.text(store));
        h.leaf("td", "", engine);
        h.leaf("td", "", when);
        h.number(&seconds(cost.seconds));
        h.number(&seconds(cost.cpu));
        for bytes in [cost.written, cost.disk_bytes, cost.rss] {
            h.number(&show_bytes(bytes as f64));
        }
    });
}

/// What an engine cost in one kind of store.
fn resources_of(h: &mut Html, title: &str, results: &Results, e: &EngineResult) {
    h.row("", |h| {
        h.tag("th", &[("scope", "row")], |h| h.text(title));
        h.leaf("td", "", &e.name);
        let mut number = |figure: Option<String>| h.number(figure.as_deref().unwrap_or("–"));
        number(e.seeding(Measured::touch_rate).map(show_count));
        number(e.seeding(|m| m.seconds).map(seconds));
        number(e.closing(|c| c.peak_rss as f64).map(show_bytes));
        number(results.mean_rss(&e.name).map(show_bytes));
        number(e.closing(|c| c.written_bytes as f64).map(show_bytes));
        number(e.closing(|c| c.disk_bytes as f64).map(show_bytes));
        for amplification in [e.write_amp(), results.read_amp(&e.name), e.space_amp()] {
            number(amplification.map(show_amplification));
        }
        number(results.cpu_per_million(&e.name).map(sig3));
        number(e.closing(|c| c.seconds).map(seconds));
        h.number(&e.busy().to_string());
    });
}

/// What the harness and the scripts themselves cost, where that was measured.
fn harness(h: &mut Html, results: &Results) {
    for cost in &results.harness {
        let swept = cost.swept.as_ref().map_or(String::new(), |(param, value)| format!(", {param} {value}"));
        let (op, unit) = (cost.ns_per_op, cost.ns_per_wu);
        h.leaf(
            "p",
            "method",
            &format!(
                "Each operation of {}{swept} includes {} ns of processor time for the harness and the script \
                 ({} ns of each unit of work).",
                cost.workload,
                sig3(op),
                sig3(unit)
            ),
        );
    }
}

/// The columns of [`every_point`] that belong to a kind of operation.
const OP_COLUMNS: [&str; 5] = ["count", "p50", "p99", "p99.9", "max"];

/// All that was measured.
pub fn every_point(h: &mut Html, results: &Results) {
    if results.points.is_empty() {
        return;
    }
    h.section("points", "Every point", |h| {
        for (workload, places) in by_workload(results) {
            h.leaf("h3", "", workload);
            let mut head = vec![Head::Words("engine"), Head::Numbers("units/s"), Head::Numbers("ops/s")];
            head.extend([Head::Numbers("gets that hit"), Head::Words("operation")]);
            head.extend(OP_COLUMNS.iter().map(|c| Head::Numbers(c)));
            h.table(&format!("Every point of {workload}"), &head, |h| {
                for place in &places {
                    h.within("tbody", "", |h| one_place(h, &place[0].point.place(), place));
                }
            });
        }
        h.leaf("p", "method", "Medians of repeats, but max is the longest latency of all repeats.");
    });
}

fn one_place(h: &mut Html, name: &str, points: &[&PointResult]) {
    h.row("place", |h| h.tag("th", &[("colspan", "10"), ("scope", "rowgroup")], |h| h.text(name)));
    points.iter().for_each(|p| one_point(h, p));
}

fn one_point(h: &mut Html, p: &PointResult) {
    let f = &p.figures;
    let remarks = remarks(p);
    let rows = (f.ops.len().max(1) + usize::from(!remarks.is_empty())).to_string();
    let spanning = |h: &mut Html| {
        h.tag("th", &[("scope", "rowgroup"), ("rowspan", &rows)], |h| h.text(&p.engine));
        h.tag("td", &[("class", "num"), ("rowspan", &rows)], |h| {
            h.text(&show_count(f.wu_per_s.value));
            interval(h, &f.wu_per_s, p.repeats.len(), show_count);
            h.leaf("small", "", &plural(p.repeats.len(), "repeat"));
        });
        h.tag("td", &[("class", "num"), ("rowspan", &rows)], |h| h.text(&show_count(f.ops_per_s.value)));
        let hits = f.hit_rate.map_or("–".into(), show_percent);
        h.tag("td", &[("class", "num"), ("rowspan", &rows)], |h| h.text(&hits));
    };
    let none = Summary::default();
    let ops = f.ops.iter().map(|o| (o.name.as_str(), &o.latency));
    let ops: Vec<(&str, &Summary)> = if f.ops.is_empty() { vec![("–", &none)] } else { ops.collect() };
    for (number, (name, l)) in ops.iter().enumerate() {
        let last = number + 1 == ops.len() && remarks.is_empty();
        h.row(if last { "" } else { "op" }, |h| {
            if number == 0 {
                spanning(h);
            }
            h.leaf("td", "", name);
            h.number(&show_count(l.count as f64));
            for ns in [l.p50, l.p99, l.p999, l.max] {
                h.number(&show_ns(ns).replace(" us", " µs"));
            }
        });
    }
    if !remarks.is_empty() {
        h.row("", |h| {
            h.tag("td", &[("colspan", "6")], |h| remarks.iter().for_each(|(class, r)| h.leaf("p", class, r)));
        });
    }
}

/// What a reader should know of a point besides its numbers, and how loudly.
fn remarks(p: &PointResult) -> Vec<(&'static str, String)> {
    let f = &p.figures;
    let mut out = Vec::new();
    if let Some(drift) = p.unsteady() {
        out.push((
            "note",
            format!("Not steady: the rate moved by {:+.1} % from the first third of a run to the last.", drift * 100.0),
        ));
    }
    out.extend(p.failures().map(|failures| ("alarm", format!("{failures}."))));
    if f.aborts > 0.0 {
        out.push(("note", format!("{} transactions were aborted because of a conflict.", show_count(f.aborts))));
    }
    if f.verified > 0 {
        let class = if f.wrong > 0 { "alarm" } else { "note" };
        out.push((class, format!("{} answers checked, {} wrong.", show_count(f.verified as f64), f.wrong)));
    }
    out.extend(p.examples().take(5).map(|e| ("note", e.to_owned())));
    out
}
