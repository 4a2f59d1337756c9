//! Figures from the outside: what a run draws, what is drawn again, and of what.

use std::path::{Path, PathBuf};
use std::process::Command;

fn keybench(args: &[&str]) -> std::process::Output {
    let out = Command::new(env!("CARGO_BIN_EXE_keybench")).args(args).output().expect("keybench starts");
    println!("keybench {}: {}\n{}", args.join(" "), out.status, String::from_utf8_lossy(&out.stderr));
    out
}

/// A directory that is gone when the test is.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-figures-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_draws_its_figures_and_they_can_be_drawn_again() {
    let dir = Dir::new("run");
    let (data, reports) = (dir.path("data"), dir.path("reports"));
    let run = |more: &[&str]| {
        let mut args = vec!["run", "mixed", "--backend", "kingtide,memory", "--threads", "1,2", "--repeat", "2"];
        args.extend(["--secs", "0.3", "--timeline", "0.1", "--items", "500", "--value-size", "100"]);
        args.extend(["--data-dir", &data, "--report-dir", &reports, "--report", "tsv:-", "--settle=false"]);
        args.extend(more);
        assert!(keybench(&args).status.success());
        let stamp = names(Path::new(&reports)).pop().unwrap();
        Path::new(&reports).join(stamp)
    };
    let report = run(&[]);
    let figures = names(&report.join("figures"));
    for wanted in [
        "throughput_compare",
        "scalability",
        "latency_p50_threads_mixed",
        "latency_p99_threads_mixed",
        "latency_p999_threads_mixed",
        "timeline_throughput",
        "timeline_system_mixed",
    ] {
        for ending in ["svg", "png"] {
            assert!(figures.contains(&format!("{wanted}.{ending}")), "{wanted}.{ending}: {figures:?}");
        }
    }

    let shown = report.display().to_string();
    let again = dir.path("again");
    assert!(keybench(&["plot", &shown, "--out", &again]).status.success());
    assert_eq!(names(Path::new(&again)), figures);
    // Into the directory itself its page goes, too.
    let page = report.join("report.html");
    std::fs::remove_file(&page).unwrap();
    std::fs::remove_dir_all(report.join("figures")).unwrap();
    assert!(keybench(&["plot", &shown]).status.success());
    assert_eq!(names(&report.join("figures")), figures);
    assert!(std::fs::read_to_string(&page).unwrap().matches("class=\"kb-figure\"").count() == figures.len());
    // The original keybench leaves no report.json.
    std::fs::remove_file(report.join("report.json")).unwrap();
    let tables = dir.path("tables");
    assert!(keybench(&["plot", &shown, "--out", &tables]).status.success());
    assert_eq!(names(Path::new(&tables)), figures);

    std::fs::remove_dir_all(&report).unwrap();
    let report = run(&["--auto-plot=false"]);
    assert!(report.join("report.json").exists() && !report.join("figures").exists());
}

#[test]
fn a_suite_draws_its_figures_and_they_can_be_drawn_again() {
    let dir = Dir::new("suite");
    let (out, data) = (dir.path("tiny"), dir.path("data"));
    let suite = |more: &[&str]| {
        let mut args = vec!["suite", "batch-scaling", "--scale", "0.0001", "--engines", "kingtide,memory"];
        args.extend(["--repeat", "1", "--only", "write_batch", "--out", &out, "--db-path", &data]);
        args.extend(more);
        assert!(keybench(&args).status.success());
    };
    let drawn = dir.0.join("tiny-figures");
    suite(&["--auto-plot=false"]);
    assert!(dir.0.join("tiny.csv").exists() && !drawn.exists());
    assert!(std::fs::read_to_string(dir.0.join("tiny.html")).unwrap().contains("class=\"kb-figure\""));
    suite(&[]);
    let figures = names(&drawn);
    for wanted in ["throughput", "throughput_ratio", "throughput_over_batch_size", "latency_p50", "latency_p99", "disk"]
    {
        assert!(
            figures.contains(&format!("{wanted}.svg")) && figures.contains(&format!("{wanted}.png")),
            "{figures:?}"
        );
    }
    let again = dir.path("again");
    assert!(keybench(&["plot", &dir.path("tiny.csv"), "--out", &again]).status.success());
    assert_eq!(names(Path::new(&again)), figures);
}

#[test]
fn what_cannot_be_drawn_is_told() {
    let dir = Dir::new("none");
    for (name, text, wanted) in [
        ("empty", None, "no report directory"),
        ("broken", Some(("points.tsv", "a\tb\n1\t2\n")), "points.tsv:1: has no column"),
        ("json", Some(("report.json", "{}")), "report.json"),
        (
            "header",
            Some(("timeline.tsv", "workload\tengine\tthreads\tsweep_param\tsweep_value\telapsed_s\tmetric\tvalue\n")),
            "nothing to draw",
        ),
    ] {
        let path = dir.path(name);
        std::fs::create_dir_all(&path).unwrap();
        if let Some((file, text)) = text {
            std::fs::write(Path::new(&path).join(file), text).unwrap();
        }
        let out = keybench(&["plot", &path]);
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains(wanted), "{name}");
    }
}
