//! Figures as a whole: which are drawn of which data, and that what is written is what others can read.

use super::data::{Course, Courses, FAILED, PERCENTILES, Point, WRONG, distinct, exactly};
use super::tables::{courses, points};
use super::*;
use crate::results::tests::run as made_up;
use crate::stats::Estimate;
use kingtide_base::rng::Rng;

const ENGINES: [&str; 3] = ["kingtide", "rocksdb", "tidesdb"];

fn around(value: f64) -> Estimate {
    Estimate { value, low: value * 0.9, high: value * 1.05 }
}

fn course(workload: &str, engine: &str, phase: &str, metric: &str) -> Course {
    let (workload, engine, phase, metric) = (workload.into(), engine.into(), phase.into(), metric.into());
    Course { workload, engine, threads: 4, phase, metric, ..Course::default() }
}

/// A run with everything in it: a workload without a sweep and two with one, three engines, threads, readings.
fn rich() -> Run {
    let mut run =
        Run { engines: ENGINES.map(String::from).to_vec(), conditions: "4 KiB values".into(), ..Run::default() };
    let mut readings = Courses::default();
    let swept =
        |param: &str, values: &[&str]| values.iter().map(|v| Some((param.to_owned(), (*v).to_owned()))).collect();
    let workloads: [(&str, Vec<Option<(String, String)>>); 3] =
        [("mixed", vec![None]), ("batch", swept("batch", &["1", "64"])), ("modes", swept("mode", &["plain", "txn"]))];
    for (workload, values) in workloads {
        for (at, engine) in ENGINES.iter().enumerate() {
            let speed = 1e5 / (at + 1) as f64;
            for (threads, swept) in [1, 4].into_iter().flat_map(|t| values.iter().map(move |v| (t, v.clone()))) {
                let rate = speed * threads as f64;
                let latencies =
                    ["get", "put"].map(|op| (op.to_owned(), [1.0, 5.0, 90.0].map(|f| around(f * 1e9 / rate))));
                run.points.push(Point {
                    workload: workload.into(),
                    engine: (*engine).into(),
                    threads,
                    swept,
                    wu_per_s: around(rate),
                    ops_per_s: around(if workload == "batch" { rate * 64.0 } else { rate }),
                    latencies: latencies.to_vec(),
                    unsound: None,
                });
            }
            for second in (1..=8).map(f64::from) {
                let mut read = |phase: &str, metric: &str, value: f64| {
                    readings.push(course(workload, engine, phase, metric), second, value);
                };
                read("seed", "seed_keys", second * speed);
                for (metric, value) in [("wu_per_s", speed + second), ("rss_mb", 50.0 + second), ("majflt", 0.0)] {
                    read("run", metric, value);
                }
                read("run", "flushed_bytes", second * 1e6);
                read("run", "levels", 3.0);
            }
        }
    }
    run.courses = readings.all;
    run
}

fn figures(run: &Run) -> Vec<Figure> {
    draw(charts(run))
}

fn names(figures: &[Figure]) -> Vec<&str> {
    figures.iter().map(|f| f.name.as_str()).collect()
}

/// Reads the SVG as anyone else would. Returns the texts that it shows.
fn read(figure: &Figure) -> Vec<String> {
    let file = figure.scene.svg_file(&figure.title);
    for svg in [&figure.svg, &figure.narrow, &file] {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{}: {e}", figure.name));
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "svg");
        assert_eq!(root.attribute("role"), Some("img"));
        assert!(root.attribute("aria-label").is_some_and(|l| !l.is_empty()));
        assert_eq!(document.descendants().filter(|n| n.has_tag_name("style")).count(), usize::from(svg == &file));
        for node in document.descendants().filter(roxmltree::Node::is_element) {
            for name in ["x", "y", "width", "height", "cx", "cy", "r", "font-size", "stroke-width"] {
                let number = node.attribute(name).map(|v| v.parse::<f64>());
                assert!(number.is_none_or(|n| n.is_ok_and(f64::is_finite)), "{}: {node:?}", figure.name);
            }
        }
    }
    let document = roxmltree::Document::parse(&file).unwrap();
    let texts = document.descendants().filter(|n| n.has_tag_name("text"));
    texts.map(|t| t.children().filter(roxmltree::Node::is_text).filter_map(|n| n.text()).collect()).collect()
}

/// Every shape lies on the paper; no two texts lie on each other.
fn laid_out(figure: &Figure) {
    laid_out_on(figure, &figure.scene);
    laid_out_on(figure, &figure.narrow_scene);
}

fn laid_out_on(figure: &Figure, scene: &Scene) {
    use scene::{Anchor, Shape};
    let (width, height) = (scene.width, scene.height);
    let mut boxes: Vec<(f64, f64, f64, f64, &str)> = Vec::new();
    let inside = |x: f64, y: f64| (-1.0..=width + 1.0).contains(&x) && (-1.0..=height + 1.0).contains(&y);
    for item in &scene.items {
        match &item.shape {
            Shape::Rect { x, y, width, height } => assert!(inside(*x, *y) && inside(x + width, y + height), "{item:?}"),
            Shape::Line { points, .. } => assert!(points.iter().all(|p| inside(p.0, p.1)), "{}: {item:?}", figure.name),
            Shape::Mark { x, y, .. } => assert!(inside(*x, *y), "{}: {item:?}", figure.name),
            Shape::Text { x, y, size, anchor, text, .. } => {
                let wide = font::drawn_width(text, *size);
                let left = match anchor {
                    Anchor::Start => *x,
                    Anchor::Middle => x - wide / 2.0,
                    Anchor::End => x - wide,
                };
                assert!(
                    inside(left, y - size) && inside(left + wide, *y),
                    "{}: {text} is not on the paper",
                    figure.name
                );
                boxes.push((left, y - size * 0.7, left + wide, *y, text));
            }
        }
    }
    for (at, a) in boxes.iter().enumerate() {
        for b in &boxes[..at] {
            let apart = a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1;
            assert!(apart, "{}: '{}' lies on '{}'", figure.name, a.4, b.4);
        }
    }
}

#[test]
fn every_figure_that_has_data_is_drawn() {
    let run = rich();
    let figures = figures(&run);
    let mut wanted = vec!["throughput_compare".to_owned(), "scalability".to_owned()];
    wanted.extend(["batch", "modes"].map(|w| format!("sweep_{w}")));
    for workload in ["mixed", "batch", "modes"] {
        wanted.extend(PERCENTILES.map(|(p, _)| format!("latency_{p}_threads_{workload}")));
    }
    wanted.extend(["seed_progress", "timeline_throughput"].map(String::from));
    wanted.extend(["mixed", "batch", "modes"].map(|w| format!("timeline_system_{w}")));
    for engine in ENGINES {
        wanted.extend(["mixed", "batch", "modes"].map(|w| format!("engine_stats_{engine}_{w}")));
    }
    assert_eq!(names(&figures), wanted);
    let mut pixels = 0;
    for figure in &figures {
        let texts = read(figure);
        laid_out(figure);
        assert!(texts.iter().any(|t| figure.title.starts_with(t.as_str())), "{}: {texts:?}", figure.name);
        // Each of them names the engines.
        let engines: &[&str] = if figure.name.starts_with("engine_stats") { &[] } else { &ENGINES };
        assert!(engines.iter().all(|e| texts.iter().any(|t| t == e)), "{}: {texts:?}", figure.name);
        pixels += figure.scene.width as usize * figure.scene.height as usize;
    }
    println!("{} figures, {pixels} pixels", figures.len());
    let text_of = |name: &str| read(figures.iter().find(|f| f.name == name).unwrap()).join("\n");
    assert!(text_of("throughput_compare").contains("400 k"));
    assert!(text_of("sweep_modes").contains("txn") && text_of("latency_p50_threads_mixed").contains("µs"));
    assert!(text_of("engine_stats_kingtide_mixed").contains("levels: 3"));
    assert!(text_of("timeline_system_mixed").contains("Zero at all times"));
}

/// A reader who sees no colours tells lines apart by their marks, of which the legend has one for each engine.
#[test]
fn lines_over_time_are_told_apart_without_colours() {
    let figures = figures(&rich());
    let figure = figures.iter().find(|f| f.name == "timeline_throughput").unwrap();
    for scene in [&figure.scene, &figure.narrow_scene] {
        let marks = |ink: theme::Ink| {
            scene.items.iter().filter(|i| i.ink == ink && matches!(i.shape, scene::Shape::Mark { .. })).count()
        };
        let inks = theme::inks(&ENGINES.map(String::from));
        // In each of three panels more than one.
        assert!(inks.iter().all(|ink| marks(*ink) > 1 + 3), "{:?}", inks.iter().map(|i| marks(*i)).collect::<Vec<_>>());
    }
}

/// A suite has tests with long names and ratios of all sizes.
#[test]
fn figures_of_suites_are_laid_out_on_wide_and_on_narrow_pages() {
    let cell = |test: &str, engine: &str, rate: f64| suite::Cell {
        test: test.into(),
        engine: engine.into(),
        rate: around(rate),
        p50: 1e9 / rate,
        p99: 3e9 / rate,
        memory: rate * 900.0,
        threads: 4.0,
        ..suite::Cell::default()
    };
    let mut cells = Vec::new();
    for (at, test) in ["fill_sequential_with_large_batches", "get", "seek_random_50m", "delete"].into_iter().enumerate()
    {
        let ratio = [0.07, 1.0, 6.0, 400.0][at];
        cells.extend([cell(test, "kingtide", 3e4 * ratio), cell(test, "rocksdb", 3e4), cell(test, "tidesdb", 2e4)]);
    }
    let suite = suite::Suite { name: "standard".into(), cells, ..suite::Suite::default() };
    let figures = of_suite(&suite);
    assert!(names(&figures).contains(&"throughput_ratio"), "{:?}", names(&figures));
    for figure in &figures {
        read(figure);
        laid_out(figure);
    }
    let ratio = figures.iter().find(|f| f.name == "throughput_ratio").unwrap();
    for scene in [&ratio.scene, &ratio.narrow_scene] {
        let one = |i: &scene::Item| matches!(&i.shape, scene::Shape::Text { text, .. } if text == "1×");
        assert!(scene.items.iter().any(one), "the line that bars begin at has its label");
    }
}

#[test]
fn nothing_is_drawn_of_nothing() {
    assert!(figures(&Run::default()).is_empty());
    let engines = ENGINES.map(String::from).to_vec();
    assert!(figures(&Run { engines: engines.clone(), ..Run::default() }).is_empty());
    // An engine that failed before it did anything.
    let point = Point { workload: "mixed".into(), engine: "kingtide".into(), threads: 1, ..Point::default() };
    assert!(figures(&Run { engines, points: vec![point], ..Run::default() }).is_empty());
}

#[test]
fn one_point_gives_bars_and_no_lines() {
    let mut run = rich();
    run.points.retain(|p| p.workload == "mixed" && p.engine == "kingtide" && p.threads == 1);
    run.courses.clear();
    let figures = figures(&run);
    assert_eq!(
        names(&figures),
        ["throughput_compare", "latency_p50_threads_mixed", "latency_p99_threads_mixed", "latency_p999_threads_mixed"]
    );
    figures.iter().for_each(laid_out);
    assert!(read(&figures[1]).iter().any(|t| t == "10 µs"));
}

#[test]
fn numbers_of_no_use_and_names_of_any_kind_do_no_harm() {
    let odd = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, -1e308, 5e-324, 1e-9, 1.0, 1e15];
    let name = [
        "</svg><script>",
        "a\u{0}b\u{1b}",
        "",
        "名前",
        "../../etc/passwd",
        "a \"quoted\" & 'other' name that is very long indeed",
    ];
    let mut rng = Rng::new(3);
    let mut drawn = 0;
    for case in 0..60 {
        let mut run = rich();
        let mut pick = || odd[rng.below(odd.len() as u64) as usize];
        for point in &mut run.points {
            point.workload = name[case % name.len()].into();
            point.engine.push_str(name[(case + 1) % name.len()]);
            (point.wu_per_s, point.ops_per_s) =
                (Estimate { value: pick(), low: pick(), high: pick() }, exactly(pick()));
            for (_, latencies) in &mut point.latencies {
                *latencies = [(); 3].map(|()| exactly(pick()));
            }
        }
        for course in &mut run.courses {
            course.repeats.iter_mut().flatten().for_each(|(t, v)| (*t, *v) = (pick(), pick()));
        }
        run.engines = distinct(run.points.iter().map(|p| &p.engine).chain(run.courses.iter().map(|c| &c.engine)));
        for figure in figures(&run) {
            read(&figure);
            assert!(figure.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{}", figure.name);
            if case < 4 {
                raster::png(&figure.scene).unwrap();
            }
            drawn += 1;
        }
    }
    println!("{drawn} figures, seed 3");
    assert!(drawn > 500);
}

#[test]
fn wrong_answers_are_told_and_not_drawn() {
    let mut run = rich();
    run.points.iter_mut().filter(|p| p.engine == "rocksdb").for_each(|p| p.unsound = Some(WRONG));
    run.troubles = vec![("lmdb".into(), "is not on this machine".into()), ("kingtide".into(), "no space left".into())];
    let figures = figures(&run);
    let of = |name: &str| read(figures.iter().find(|f| f.name == name).unwrap()).join("\n");
    assert!(
        of("throughput_compare").contains("wrong answers")
            && of("throughput_compare").contains("lmdb was not measured")
    );
    assert!(of("throughput_compare").contains("kingtide failed later: no space left"), "it has points");
    assert!(of("latency_p99_threads_mixed").contains("rocksdb: wrong answers."));
    assert!(!of("scalability").lines().any(|l| l == "rocksdb"), "it has no line and no place in the legend");
}

/// What the verdict does not rank no figure draws: wrong answers of a closing scan, which no point has, and failed calls.
#[test]
fn what_is_not_ranked_is_not_drawn() {
    let mut results = made_up(&[("kingtide", &[100; 3]), ("rocksdb", &[200; 3]), ("tidesdb", &[300; 3])]);
    results.points.retain(|p| p.point.threads == 1);
    results.engines[1].stores[0].checked.wrong = 2;
    results.points[2].figures.ops[0].failed = 3;
    let run = Run::of_results(&results);
    assert_eq!(run.points.iter().map(|p| p.unsound).collect::<Vec<_>>(), [None, Some(WRONG), Some(FAILED)]);
    let figures = figures(&run);
    let of = |name: &str| read(figures.iter().find(|f| f.name == name).unwrap());
    let shown = of("throughput_compare");
    assert!([WRONG, FAILED].iter().all(|why| shown.iter().any(|t| t == why)), "{shown:?}");
    assert!(shown.iter().any(|t| t == "100") && !shown.iter().any(|t| t == "200" || t == "300"), "{shown:?}");
    let told = of("latency_p99_threads_mixed").join(" ");
    assert!(told.contains("rocksdb: wrong answers.") && told.contains("tidesdb: failed calls."), "{told}");
}

/// A kind of operation may come in the first repeat and in no other one, and a workload may have none.
#[test]
fn each_repeat_has_its_rate_whichever_operations_it_has() {
    let of = |repeat: &str, rows: &[(&str, &str, u64)]| {
        let header =
            format!("workload\tengine\tthreads\tsweep_param\tsweep_value\t{repeat}op\tp50_ns\tp99_ns\tp999_ns\t");
        let row = |(number, op, rate): &(&str, &str, u64)| {
            format!("mixed\tkingtide\t2\t\t1\t{number}{op}\t1\t2\t3\t{rate}\t{rate}\t0\t0\n")
        };
        let text = format!("{header}wu_per_s\tops_per_s\twrong\tfailed\n{}", rows.iter().map(row).collect::<String>());
        points(Path::new("x.tsv"), &text).unwrap().remove(0)
    };
    let repeats = [("0\t", "del", 10), ("0\t", "put", 10), ("1\t", "put", 30), ("2\t", "get", 40), ("2\t", "put", 40)];
    let point = of("repeat\t", &repeats);
    assert_eq!(point.wu_per_s, Estimate::of(&[10.0, 30.0, 40.0]));
    assert_eq!(point.latencies.len(), 3);
    // Without numbers a repeat begins where a kind of operation comes again.
    let point = of("", &repeats.map(|(_, op, rate)| ("", op, rate)));
    assert_eq!(point.wu_per_s, Estimate::of(&[10.0, 30.0, 40.0]));
    let point = of("repeat\t", &[("0\t", "-", 10), ("1\t", "-", 20)]);
    assert_eq!((point.wu_per_s, point.latencies.len()), (Estimate::of(&[10.0, 20.0]), 0), "it has no latencies");
}

#[test]
fn tables_tell_which_points_are_no_results() {
    let header =
        "workload\tengine\tthreads\tsweep_param\tsweep_value\top\tp50_ns\tp99_ns\tp999_ns\twu_per_s\tops_per_s";
    let row = |engine: &str, op: &str, wrong: u64, failed: u64| {
        format!("mixed\t{engine}\t2\t\t1\t{op}\t1\t2\t3\t9\t9\t{wrong}\t{failed}\n")
    };
    let rows = row("a", "put", 0, 0)
        + &row("b", "put", 0, 2)
        + &row("b", "get", 0, 0)
        + &row("c", "put", 1, 0)
        + &row("c", "get", 1, 5);
    let read = points(Path::new("x.tsv"), &format!("{header}\twrong\tfailed\n{rows}")).unwrap();
    assert_eq!(read.iter().map(|p| p.unsound).collect::<Vec<_>>(), [None, Some(FAILED), Some(WRONG)]);
}

#[test]
fn tables_are_read_back_as_they_were_written() {
    let header = "workload\tengine\tthreads\tsweep_param\tsweep_value\t";
    let path = Path::new("points.tsv");
    let ours = format!(
        "{header}repeat\top\tcount\tp50_ns\tp99_ns\tp999_ns\tmax_ns\thit_rate\twu_per_s\tops_per_s\n\
         mixed\tkingtide\t2\t\t1\t0\tput\t5\t10\t20\t30\t40\t0.0\t100.0\t200.0\n\
         mixed\tkingtide\t2\t\t1\t0\tget\t5\t11\t21\t31\t41\t0.0\t100.0\t200.0\n\
         mixed\tkingtide\t2\t\t1\t1\tput\t5\t14\t20\t30\t40\t0.0\t120.0\t220.0\n\
         mixed\tkingtide\t2\tbatch\t8\t0\tput\t5\t10\t20\t30\t40\t0.0\t7.0\t56.0\n"
    );
    let read = points(path, &ours).unwrap();
    assert_eq!(read.len(), 2);
    assert_eq!(read[0].wu_per_s, Estimate::of(&[100.0, 120.0]));
    assert_eq!(read[0].latencies[0], ("put".into(), [Estimate::of(&[10.0, 14.0]), exactly(20.0), exactly(30.0)]));
    assert_eq!((read[0].latencies.len(), &read[1].swept), (2, &Some(("batch".to_owned(), "8".to_owned()))));
    // The original's has no repeats.
    let theirs = format!(
        "{header}op\tcount\tp50_ns\tp99_ns\tp999_ns\tmax_ns\thit_rate\twu_per_s\tops_per_s\n\
         cart\trocksdb 11.1.1\t8\tbatch\t64\tput\t60404\t462\t1430\t11710\t15480\t92.200\t315896.0\t315896.0\n"
    );
    assert_eq!(points(path, &theirs).unwrap()[0].wu_per_s, exactly(315_896.0));

    let timeline = format!(
        "{header}phase\telapsed_s\tmetric\tvalue\n\
         mixed\tkingtide\t2\t\t1\trun\t1.0\trss_mb\t5\nmixed\tkingtide\t2\t\t1\trun\t2.0\trss_mb\t6\n\
         mixed\tkingtide\t2\t\t1\trun\t1.0\trss_mb\t7\n"
    );
    let read = courses(path, &timeline).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].repeats, [vec![(1.0, 5.0), (2.0, 6.0)], vec![(1.0, 7.0)]]);

    for (text, wanted) in [
        (String::new(), "points.tsv:1: has no column 'workload'"),
        (ours.replace("100.0\t200.0", "fast\t200.0"), "points.tsv:2: wu_per_s: 'fast' is not a number"),
        (format!("{ours}mixed\tkingtide\n"), "points.tsv:6: has no 'threads'"),
    ] {
        let e = points(path, &text).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string() == wanted, "{e}");
    }
}

#[test]
fn files_are_written_and_can_be_read() {
    let dir = std::env::temp_dir().join(format!("keybench-figure-{}", std::process::id()));
    crate::process::fresh_dir(&dir).unwrap();
    let mut run = rich();
    run.points.retain(|p| p.workload == "mixed");
    run.courses.clear();
    let figures = figures(&run);
    write(&dir.join("figures"), &figures).unwrap();
    for figure in &figures {
        let svg = std::fs::read_to_string(dir.join("figures").join(format!("{}.svg", figure.name))).unwrap();
        assert!(svg.contains("prefers-color-scheme"), "a file of its own has its style with it");
        let file = std::fs::File::open(dir.join("figures").join(format!("{}.png", figure.name))).unwrap();
        let mut reader = ::png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let size = [figure.scene.width, figure.scene.height].map(|n| (n * raster::SCALE) as u32);
        assert_eq!([info.width, info.height], size);
        // Kingtide's blue is there, and more paper than ink.
        let colours = || pixels.chunks_exact(3);
        assert!(colours().any(|c| c == [0x00, 0x69, 0xb4]), "{}", figure.name);
        assert!(colours().filter(|c| *c == [255, 255, 255]).count() * 2 > colours().count(), "{}", figure.name);
    }
    write(&dir.join("none"), &[]).unwrap();
    assert!(!dir.join("none").exists(), "no figures, no directory");
    assert_eq!(of_dir(&dir).unwrap_err().exit_code(), 2);
    std::fs::remove_dir_all(&dir).unwrap();
    let huge = scene::Scene::new(900.0, 1e9);
    assert!(raster::png(&huge).unwrap_err().to_string().contains("pixels"));
}

#[test]
fn whiskers_of_two_repeats_are_no_intervals() {
    assert_eq!(of_repeats(2), "medians of 2 repeats, whiskers: their range");
    assert_eq!(of_repeats(3), "medians of 3 repeats, whiskers: 95 % intervals");
}

/// Letters of DejaVu Sans Bold, which a browser on Linux may have, are 1.3 times as wide as those that the PNG has.
#[test]
fn titles_fit_on_a_narrow_page_whichever_font_it_has() {
    for chart in charts(&rich()).into_iter().map(|(_, chart)| chart) {
        let room = chart::NARROW - 2.0 * chart::MARGIN;
        for line in font::wrapped(&chart.title, font::TITLE * font::BOLD, room) {
            assert!(font::drawn_width(&line, font::TITLE) * 1.3 <= room, "{line}");
        }
    }
}
