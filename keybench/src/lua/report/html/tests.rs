//! The page of made-up runs.

use super::*;
use crate::error::Error;
use crate::page::check;
use crate::results::Repeat;
use crate::results::tests::{measured, place, run};
use crate::settle::{Cost, Costs};

fn drawn_page(results: &Results) -> String {
    render(results, &figure::of_run(results))
}

/// The page's words, without its tags.
fn words(page: &str) -> String {
    let body = &page[page.find("<main>").unwrap()..page.find("</main>").unwrap()];
    let mut out = String::new();
    let mut inside = false;
    for c in body.chars() {
        match c {
            '<' => inside = true,
            '>' => {
                inside = false;
                out.push(' ');
            }
            c if !inside => out.push(c),
            _ => {}
        }
    }
    out
}

#[test]
fn the_verdict_is_first_and_all_else_is_there() {
    let mut results = run(&[("kingtide", &[231_000, 230_000, 235_000]), ("rocksdb", &[100_000, 100_000, 100_000])]);
    (results.meta.ending, results.meta.optimised) = (Ending::Complete, true);
    for value in [1, 64] {
        for (engine, rate) in [("kingtide", 500), ("rocksdb", 501)] {
            let repeat = Repeat { measured: measured(rate * 40), ..Repeat::default() };
            results.add_point("batch", engine, place(2, Some(("batch", value))), repeat);
        }
    }
    results.meta.replay = "# keybench run\n[bench]\nbackend = kingtide,rocksdb\n".into();
    let page = drawn_page(&results);
    check::page(&page);
    let words = words(&page);
    for wanted in [
        "mixed and batch on kingtide and rocksdb",
        "2026-01-02 03:04 UTC",
        "kingtide is the fastest at 2 of 4 points; at 2 there is no clear winner.",
        "kingtide is faster than rocksdb: 2.31x   (95 % interval 2.30 to 2.35)",
        "rocksdb is ahead of kingtide: 1.00x   (too few repeats for a confidence interval)",
        "2 threads, batch 64",
        "231,000",
        "230,000 – 235,000",
        "2.25 / 9.00 / 45.0",
        "8.50 µs",
        "80.0 %",
        "a crash of the machine may lose the last writes",
        "memtable_size",
        "write amp",
        "backend = kingtide,rocksdb",
    ] {
        assert!(words.contains(wanted), "'{wanted}' is not in {words}");
    }
    assert!(!page.contains("class=\"caution\""));
    let at = |id: &str| page.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id}"));
    let order =
        ["verdict", "figures", "summary-0", "summary-1", "resources", "points", "engines", "conditions", "repeat"];
    assert!(order.map(at).is_sorted());
}

#[test]
fn wrong_answers_failures_and_doubts_are_told_before_any_number() {
    let mut results = run(&[("a", &[10, 10, 10]), ("liar", &[900, 900, 900]), ("gone", &[])]);
    results.engines[2].trouble = Some(Error::Unavailable("no library <x>".into()));
    let mut repeat = results.points[2].repeats[0].clone();
    (repeat.measured.verified, repeat.measured.wrong) = (2_000, 17);
    repeat.measured.examples = vec!["key 'a<b>' is lost & gone".into()];
    results.points[2].push(repeat);
    results.engines[0].stores[1].checked =
        crate::lua::point::Answers { verified: 60, wrong: 0, examples: vec!["nothing <to> see".into()] };
    let page = drawn_page(&results);
    check::page(&page);
    let words = words(&page);
    for wanted in [
        "these figures are meaningless",
        "is incomplete",
        "liar gave wrong answers: 17 of 2,000",
        "gone was skipped: no library &lt;x&gt;",
        "liar is not ranked: 17 of 2,000 answers",
        "key &#39;a&lt;b&gt;&#39; is lost &amp; gone",
        "2,000 answers checked, 17 wrong.",
        "Loading and the closing scan: 60 answers checked, 0 wrong.",
    ] {
        assert!(words.contains(wanted), "'{wanted}' is not in {words}");
    }
}

#[test]
fn a_page_of_anything_is_a_page() {
    for results in [
        Results::default(),
        run(&[]),
        run(&[("a", &[])]),
        run(&[("a", &[0, 0, 0])]),
        run(&[("a", &[0, 0, 0]), ("b", &[0, 1, 0]), ("c", &[5])]),
        run(&[("a", &[u64::MAX / 10_000, 1, 1]), ("b", &[1, u64::MAX / 10_000, 1])]),
        run(&[("</main><b>\"'&", &[1, 2, 3])]),
    ] {
        check::page(&drawn_page(&results));
    }
    let mut results = run(&[("a", &[1, 2, 3])]);
    results.meta.stamp = "?".into();
    results.points[0].repeats.iter_mut().for_each(|r| r.measured.ops.clear());
    results.points[0].figures.ops.clear();
    check::page(&drawn_page(&results));
}

/// Numbers with a point that have fewer than three digits that count. Versions and percentiles are no figures.
fn rounded_away(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c.is_alphabetic()));
    let figure = |word: &&str| {
        let number = word.trim_end_matches(|c: char| c.is_alphabetic() || c == '.');
        number.starts_with(|c: char| c.is_ascii_digit()) && number.matches('.').count() == 1
    };
    let digits = |word: &str| word.chars().filter(char::is_ascii_digit).skip_while(|c| *c == '0').count();
    words.filter(figure).filter(|w| digits(w) < 3 && w.chars().any(|c| ('1'..='9').contains(&c))).collect()
}

#[test]
fn a_narrow_page_shows_figures_that_are_drawn_for_it() {
    let page = drawn_page(&run(&[("kingtide", &[3, 3, 4])]));
    let narrow = page.split("@media (max-width: 640px)").nth(1).unwrap();
    let (rules, _) = narrow.split_once("@media").unwrap();
    let shown = ["figure .wide { display: none; }", "figure .narrow { display: block; }"];
    assert!(shown.iter().all(|rule| rules.contains(rule)), "bars that are cut at the edge look alike: {rules}");
    let drawn = |class: &str, width: &str| {
        let box_of = format!("<div class=\"{class}\">");
        let figures: Vec<&str> = page.split(&box_of).skip(1).collect();
        assert!(!figures.is_empty() && figures.iter().all(|f| f.contains(&format!("width=\"{width}\""))), "{class}");
        figures.len()
    };
    assert_eq!(drawn("wide", "900"), drawn("narrow", "360"));
}

#[test]
fn every_figure_has_three_digits_that_count() {
    assert_eq!(rounded_away("0.05 1.2.3 p99.9 0.0500 1.0x 12 k 7.25 0.00"), ["0.05", "1.0x"]);
    let mut results = run(&[("kingtide", &[3, 3, 4]), ("rocksdb", &[2, 3, 3])]);
    results.meta.settings.rate = Some(0.123_456);
    for p in &mut results.points {
        p.figures.hit_rate = Some(0.012_345);
        p.figures.drift = Some(-0.123_456);
        for op in &mut p.figures.ops {
            op.latency.p50 = 1.234_567;
            op.latency.p99 = 12_345.678;
            op.latency.max = 5e9;
        }
    }
    for e in &mut results.engines {
        for s in &mut e.stores {
            let closed = s.closed.as_mut().unwrap();
            (closed.seconds, closed.disk_bytes, closed.written_bytes) = (0.004_567, 5_300, 18_100_000);
            closed.peak_rss = 7 << 20;
            s.seeded.as_mut().unwrap().seconds = 0.023_4;
            let cost = Cost { seconds: 0.012_3, cpu: 0.07, written: 5 << 20, disk_bytes: 9_000, rss: 3 << 30 };
            s.costs = Some(Costs { foreground: cost, settled: cost });
        }
    }
    for open in [true, false] {
        if !open {
            results.meta.settings.rate = None;
        }
        let text = super::super::text::render(&results);
        assert_eq!(rounded_away(&text), Vec::<&str>::new(), "{text}");
        // A bound that the method names is no figure.
        let page = words(&render(&results, &[])).replace("above 1.1", "");
        assert_eq!(rounded_away(&page), Vec::<&str>::new(), "{page}");
    }
}

/// A call that fails at once costs less than one that does its work, and answers of a closing scan are of no point.
#[test]
fn no_ratio_is_told_of_an_engine_that_is_not_ranked() {
    let of = |change: fn(&mut Results)| {
        let mut results = run(&[("kingtide", &[100; 3]), ("rocksdb", &[200; 3])]);
        change(&mut results);
        let text = super::super::text::render(&results);
        let rates = text.lines().find(|l| l.starts_with("  1       ")).unwrap_or_default().trim_end().to_owned();
        (rates, words(&render(&results, &[])))
    };
    let (rates, page) = of(|_| ());
    assert!(rates.ends_with("0.500 [0.500 .. 0.500]") && !page.contains("failed calls"), "{rates}");
    let (rates, page) =
        of(|r| r.points.iter_mut().filter(|p| p.engine == "rocksdb").for_each(|p| p.figures.ops[0].failed = 3));
    assert!(rates.contains("FAILED CALLS") && rates.ends_with(" -") && page.contains("failed calls"), "{rates}");
    let (rates, page) = of(|r| r.engines[1].stores[0].checked.wrong = 2);
    assert!(rates.contains("WRONG") && rates.ends_with(" -") && page.contains("wrong answers"), "{rates}");
}
