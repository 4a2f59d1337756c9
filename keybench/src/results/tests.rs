//! The form of a run, and runs made up for the tests of all that reads it.

use super::*;
use crate::process::Usage;

/// What a made-up run of a point came to: so many units in a second, of gets and puts.
pub fn measured(units: u64) -> Measured {
    let us = |us: f64| us * 1e3;
    let latency = |p50: f64| Summary {
        count: units / 2,
        avg: us(p50 * 1.1),
        stddev: us(p50 / 3.0),
        p50: us(p50),
        p95: us(p50 * 2.0),
        p99: us(p50 * 4.0),
        p999: us(p50 * 20.0),
        min: us(p50 / 4.0),
        max: us(p50 * 400.0),
    };
    let op = |name: &str, p50: f64| Op { name: name.into(), latency: latency(p50), failed: 0 };
    Measured {
        seconds: 1.0,
        units,
        touches: units,
        hits: units / 2,
        misses: units / 8,
        ops: vec![op("put", 8.5), op("get", 2.25)],
        put_bytes: 50 * units,
        got_bytes: 100 * units,
        usage: Usage { cpu_user: 0.75, cpu_sys: 0.25, read_calls: 25 * units, ..Usage::default() },
        mean_rss: 48e6,
        ..Measured::default()
    }
}

/// Where a made-up point is.
pub fn place(threads: usize, swept: Option<(&str, i64)>) -> Point {
    Point { threads, batch: 1, swept: swept.map(|(p, v)| (p.to_owned(), Swept::Int(v))), rate: None }
}

/// A made-up run of a workload `mixed`: for each engine the rates of its repeats with one thread; four threads give three
/// times as much.
pub fn run(engines: &[(&str, &[u64])]) -> Results {
    let mut results = Results { format: FORMAT, ..Results::default() };
    results.meta.stamp = "20260102-030405".into();
    results.meta.command = "keybench run mixed".into();
    results.meta.settings.repeat = 3;
    results.meta.settings.limit = Some(Limit::Seconds(1.0));
    for (name, rates) in engines {
        let store = |repeat| Store {
            workload: "mixed".into(),
            swept: None,
            threads: None,
            repeat,
            open_seconds: 0.01,
            seeded: Some(measured(50_000)),
            checked: Answers::default(),
            costs: None,
            closed: Some(Closed {
                seconds: 0.02,
                disk_bytes: 9e6 as u64,
                written_bytes: 27e6 as u64,
                put_bytes: 18e6 as u64,
                live_bytes: Some(6e6 as u64),
                peak_rss: 64_000_000,
                busy: 0,
            }),
        };
        results.engines.push(EngineResult {
            name: (*name).into(),
            version: "1.2.3".into(),
            durability: "a crash of the machine may lose the last writes".into(),
            options: vec![("memtable_size".into(), "1048576".into())],
            stores: (0..rates.len()).map(store).collect(),
            trouble: None,
            trouble_in: None,
        });
        for threads in [1, 4] {
            for (number, rate) in rates.iter().enumerate() {
                let measured = measured(if threads == 1 { *rate } else { rate * 3 });
                results.add_point("mixed", name, place(threads, None), Repeat { number, measured, drift: Some(0.01) });
            }
        }
    }
    results
}

#[test]
fn what_is_saved_is_what_is_loaded() {
    let mut results = run(&[("kingtide", &[100_000, 110_000, 105_000]), ("rocksdb", &[50_000, 40_000, 45_000])]);
    results.engines[1].trouble = Some(Error::Unavailable("not on this machine: \"<>&\u{7}".into()));
    results.engines[0].stores[0].closed = None;
    for value in [Swept::Int(64), Swept::Float(2.0), Swept::Float(0.1), Swept::Text("lz4".into())] {
        let point = Point { threads: 2, batch: 64, swept: Some(("batch".into(), value)), rate: None };
        results.add_point("batch", "kingtide", point, Repeat { measured: measured(7), ..Repeat::default() });
    }
    for limit in [Limit::Units(u64::MAX), Limit::Seconds(0.1), Limit::Endless] {
        results.meta.settings.limit = Some(limit);
        let dir = std::env::temp_dir().join(format!("keybench-results-{}", std::process::id()));
        crate::process::fresh_dir(&dir).unwrap();
        let path = dir.join("report.json");
        results.save(&path).unwrap();
        assert_eq!(Results::load(&path).unwrap(), results);
        results.save(&path).unwrap();
        let files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files, ["report.json"], "nothing is left over");
        crate::process::remove_dir(&dir).unwrap();
    }
}

#[test]
fn another_format_is_refused_and_a_new_field_is_not() {
    let results = run(&[("kingtide", &[1, 2, 3])]);
    let text = serde_json::to_string(&results).unwrap();
    let newer = text.replacen("\"format\":1", "\"format\":2", 1);
    let e = Results::parse(&newer).unwrap_err();
    assert!(e.contains("its format is 2") && e.contains("reads 1"), "{e}");
    let more = text.replacen("\"format\":1", "\"format\":1,\"weather\":\"fair\"", 1);
    assert_eq!(Results::parse(&more).unwrap(), results);
    for bad in ["{}", "[]", "{\"format\":1}", "{\"format\":1,\"meta\":3}"] {
        assert!(Results::parse(bad).unwrap_err().starts_with("not a report at line 1, column "), "{bad}");
    }
    for bad in ["", &text[..text.len() / 2], &text.replacen("\"format\":1", "\"format\":\n one", 1)] {
        let e = Results::parse(bad).unwrap_err();
        assert!(e.starts_with("damaged at line ") && e.contains("run the benchmark again"), "{e}");
        assert_eq!(e.matches(" at line ").count(), 1, "the place is in the message once: {e}");
    }
    let e = Results::load(Path::new("/no/such/report.json")).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("/no/such/report.json"), "{e}");
}

#[test]
fn figures_follow_the_repeats() {
    let results = run(&[("kingtide", &[90, 130, 100])]);
    assert_eq!(results.points.len(), 2, "repeats of a place are one point");
    let p = &results.points[0];
    let rate = p.figures.wu_per_s;
    assert_eq!((rate.value, rate.low, rate.high), (100.0, 90.0, 130.0));
    assert_eq!(p.op("get").unwrap().p50, 2_250.0);
    assert_eq!(p.op("del"), None);
    assert!((p.figures.hit_rate.unwrap() - 0.8).abs() < 0.02);
    assert_eq!((p.unsteady(), p.touches_differ()), (None, false));
    assert!((results.cpu_per_million("kingtide").unwrap() - 6e6 / 1280.0).abs() < 1e-6);

    let engine = &results.engines[0];
    let amplifications = (engine.write_amp(), results.read_amp("kingtide"), engine.space_amp());
    assert_eq!(amplifications, (Some(1.5), Some(0.25), Some(1.5)));
    assert_eq!((EngineResult::default().write_amp(), results.read_amp("nobody")), (None, None));

    let mut wrong = Repeat { number: 3, measured: measured(100), drift: Some(-0.9) };
    (wrong.measured.verified, wrong.measured.wrong, wrong.measured.touches) = (50, 2, 6_400);
    wrong.measured.examples = vec!["stale".into()];
    let mut p = p.clone();
    for _ in 0..4 {
        p.push(wrong.clone());
    }
    assert_eq!((p.figures.verified, p.figures.wrong, p.unsteady()), (200, 8, Some(-0.9)));
    assert!(p.touches_differ() && p.examples().count() == 4);
    assert_eq!(Figures::of(&[]), Figures::default());
}

/// A store of `mixed` is not averaged with one of `cart`, nor eight threads with one.
#[test]
fn resources_are_told_for_each_kind_of_store() {
    let mut results = run(&[("a", &[100, 100, 100])]);
    let mut more = results.engines[0].stores.clone();
    for store in &mut more {
        (store.workload, store.threads) = ("cart".into(), Some(4));
        store.closed.as_mut().unwrap().disk_bytes = 1_000;
    }
    results.engines[0].stores.extend(more);
    let mut point = results.points[0].clone();
    (point.workload, point.point.threads) = ("cart".into(), 4);
    results.points.push(point);
    let kinds = results.by_store();
    let told: Vec<_> =
        kinds.iter().map(|(t, r)| (t.as_str(), r.engines[0].closing(|c| c.disk_bytes as f64).unwrap())).collect();
    assert_eq!(told, [("mixed", 9e6), ("cart, 4 threads", 1e3)]);
    assert!(kinds[0].1.points.iter().all(|p| p.workload == "mixed") && kinds[1].1.points.len() == 1);
}

#[test]
fn the_size_of_values_is_that_of_what_was_swept() {
    let mut results = run(&[("a", &[100, 100, 100])]);
    results.meta.settings.value_size = 4096;
    assert_eq!(results.value_sizes(), "4.00 KiB");
    results.points.truncate(1);
    let swept = |n: i64| Some(("valuebytes".to_owned(), Swept::Int(n)));
    results.points[0].point.swept = swept(1 << 30);
    assert_eq!(results.value_sizes(), "1.00 GiB");
    let mut small = results.points[0].clone();
    small.point.swept = swept(256);
    results.points.push(small);
    assert_eq!(results.value_sizes(), "256 B to 1.00 GiB");
}
