//! Runs whose figures would mislead unless the report says so: unequal settings, overload, missing scripts, tiny rates.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-honest-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// The one report in it.
    fn report(&self, file: &str) -> String {
        let report = std::fs::read_dir(self.0.join("reports")).unwrap().next().unwrap().unwrap().path();
        std::fs::read_to_string(report.join(file)).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn keybench(dir: &Path, words: &str) -> (Output, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    let small = "--items 50 --users 5 --value-size 50 --seed-threads 1 --threads 1 --repeat 1 --timeline 0 \
                 --auto-plot=false --report-dir reports --data-dir data";
    let done = command.current_dir(dir).args(words.split_whitespace()).args(small.split_whitespace()).output().unwrap();
    let (out, err) = (&done.stdout, &done.stderr);
    let (out, err) = (String::from_utf8_lossy(out).into_owned(), String::from_utf8_lossy(err).into_owned());
    (done, out, err)
}

#[test]
fn unequal_settings_are_told_everywhere_or_refused() {
    let dir = Dir::new("unequal");
    let words = "mixed --backend kingtide,kingtide-c --ops 50 --opt kingtide-c.compression=none";
    let (done, out, err) = keybench(&dir.0, words);
    assert!(done.status.success(), "{out}{err}");
    let told = "compression differs: kingtide lz4, kingtide-c none";
    assert!(err.contains(&format!("warning: {told}")), "{err}");
    let (at, verdict) = (out.find(told).expect(&out), out.find("\nverdict\n").expect(&out));
    assert!(at < verdict, "{out}");
    let options = out.lines().find(|l| l.trim_start().starts_with("kingtide-c 0")).expect(&out);
    assert!(options.matches(" compression=").count() == 1 && options.contains(" compression=none"), "{options}");
    assert!(out.contains(" wu/s") && !out.contains(" .. "), "one repeat has no interval: {out}");
    assert!(dir.report("report.html").contains(told));
    for fact in ["file system: ", "device: ", "compiler: rustc ", "allocator: ", "pages: ", "data set: about "] {
        assert!(out.contains(fact), "{fact}: {out}");
    }
    assert!(dir.report("report.html").contains("file system"));
    assert!(dir.report("report.json").contains("\"setting\": \"compression\""));

    let dir = Dir::new("equal");
    let (done, out, err) = keybench(&dir.0, &format!("{words} --equal"));
    assert_eq!(done.status.code(), Some(2), "{out}{err}");
    assert!(err.contains(&format!("--equal: {told}")), "{err}");
    assert!(dir.report("report.json").contains("\"setting\": \"compression\""));
    let (done, out, err) = keybench(&dir.0, "mixed --backend kingtide,kingtide-c --ops 50 --equal");
    assert!(done.status.success(), "{out}{err}");
    assert!(!out.contains("differs"), "{out}");
}

#[test]
fn a_rate_that_nobody_delivers_is_an_overload() {
    let dir = Dir::new("overload");
    let slow = "return { run = function(ctx) for i = 1, 3000 do kv.put('k' .. i, 'v') end end }";
    std::fs::write(dir.0.join("slow.lua"), slow).unwrap();
    let (done, out, err) = keybench(&dir.0, "slow.lua --backend memory,lmdb --secs 0.3 --rate 100000");
    assert!(done.status.success(), "{out}{err}");
    assert!(out.contains("DID NOT KEEP UP") && out.contains("overloaded: no engine kept up"), "{out}");
    assert!(!out.contains("faster than") && !out.contains("memory / lmdb"), "{out}");
}

#[test]
fn a_missing_script_ends_the_run_before_it_begins() {
    let dir = Dir::new("missing");
    let (done, out, err) = keybench(&dir.0, "workloads/mixed.lua --backend memory --ops 5");
    assert!(done.status.code() == Some(2) && out.is_empty(), "{out}{err}");
    assert!(err.contains("there is no file") && err.contains("workloads/mixed.lua"), "{err}");
    assert!(!dir.0.join("reports").exists());
}

#[test]
fn a_replay_runs_in_another_directory_and_only_the_same_script() {
    let dir = Dir::new("replay");
    std::fs::write(dir.0.join("own.lua"), "return { run = function() kv.get('k') end }").unwrap();
    let (done, out, err) = keybench(&dir.0, "own.lua --backend memory --ops 5");
    assert!(done.status.success(), "{out}{err}");
    let elsewhere = Dir::new("elsewhere");
    std::fs::write(elsewhere.0.join("replay.cnf"), dir.report("replay.cnf")).unwrap();
    let (done, out, err) = keybench(&elsewhere.0, "--config replay.cnf");
    assert!(done.status.success(), "{out}{err}");
    std::fs::write(dir.0.join("own.lua"), "return { run = function() kv.del('k') end }").unwrap();
    let (done, _, err) = keybench(&elsewhere.0, "--config replay.cnf");
    assert!(done.status.code() == Some(2) && err.contains("is not the script that was run"), "{err}");
}

#[test]
fn rates_below_one_keep_their_digits() {
    let dir = Dir::new("slow");
    let (done, out, err) = keybench(&dir.0, "mixed --backend memory,lmdb --secs 3.4 --rate 0.3");
    assert!(done.status.success(), "{out}{err}");
    assert!(out.contains("0.300 units/s are due") && out.contains("kept up with the rate"), "{out}");
    // Two calls in 3.4 seconds.
    assert!(out.contains(": 0.588 wu/s") || out.contains(": 0.587 wu/s"), "{out}");
    let points = dir.report("points.tsv");
    let rates = points.lines().skip(1).map(|l| l.split('\t').nth(12).unwrap().parse::<f64>().unwrap());
    assert!(rates.clone().count() > 0 && rates.clone().all(|r| (0.5..0.6).contains(&r)), "{points}");
    assert!(out.contains("1 repeat]") && !out.contains("1 repeats"), "{out}");
}
