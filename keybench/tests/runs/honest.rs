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
fn a_rate_that_no_engine_delivers_is_an_overload() {
    let dir = Dir::new("overload");
    let slow = "return { run = function(ctx) for i = 1, 3000 do kv.put('k' .. i, 'v') end end }";
    std::fs::write(dir.0.join("slow.lua"), slow).unwrap();
    let (done, out, err) = keybench(&dir.0, "slow.lua --backend memory,lmdb --secs 0.3 --rate 100000");
    assert!(done.status.success(), "{out}{err}");
    assert!(out.contains("DID NOT KEEP UP") && out.contains("overloaded: no engine kept up"), "{out}");
    assert!(!out.contains("faster than") && !out.contains("memory / lmdb"), "{out}");
}

/// The harness reads files of `/proc` for every reading of its timeline; an engine in memory reads none.
#[test]
fn what_the_harness_reads_is_no_engines() {
    let dir = Dir::new("reads");
    let words = "--backend memory --items 50 --users 5 --value-size 50 --seed-threads 1 --threads 1 --repeat 1 --timeline 0.02 \
                 --auto-plot=false --report-dir reports --data-dir data --secs 0.5 --rate 50";
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    let done = command.current_dir(&dir.0).arg("mixed").args(words.split_whitespace()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: serde_json::Value = serde_json::from_str(&dir.report("report.json")).unwrap();
    let repeat = &report["points"][0]["repeats"][0];
    let (read, got) = (repeat["usage"]["read_calls"].as_u64().unwrap(), repeat["got_bytes"].as_u64().unwrap());
    assert!(got > 0 && read < 1000, "{read} bytes were read for {got} bytes of answers");
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
    // Two calls in 3.4 seconds, or in more on a busy machine.
    let shown = out.lines().filter_map(|l| l.split_once(" wu/s")?.0.rsplit_once(": ")).map(|(_, rate)| rate);
    assert_eq!(shown.filter(|rate| rate.len() == 5 && rate.starts_with("0.")).count(), 2, "{out}");
    let points = dir.report("points.tsv");
    let rates = points.lines().skip(1).map(|l| l.split('\t').nth(12).unwrap().parse::<f64>().unwrap());
    assert!(rates.clone().count() > 0 && rates.clone().all(|r| 0.0 < r && r < 0.6), "{points}");
    assert!(out.contains("1 repeat]") && !out.contains("1 repeats"), "{out}");
}

/// What was never measured is not told as zero, and an engine that failed was not skipped.
#[test]
fn figures_that_there_are_none_of_are_left_out() {
    let dir = Dir::new("none");
    std::fs::write(dir.0.join("early.lua"), "return { run = function(ctx) kv.put('k' .. ctx.iter, 'v') end }").unwrap();
    let (done, out, err) = keybench(&dir.0, "early.lua --backend kingtide --ops 50 --settle=false");
    assert!(done.status.success(), "{out}{err}");
    let row = |out: &str, engine: &str| {
        let behind = out.lines().skip_while(|l| !l.starts_with("resources")).skip(2);
        behind.take_while(|l| !l.is_empty()).find(|l| l.starts_with(engine)).map(str::to_owned)
    };
    let seeded: Vec<String> = row(&out, "kingtide ").expect(&out).split_whitespace().map(str::to_owned).collect();
    assert_eq!(seeded[1..3], ["-", "-"], "nothing was loaded: {out}");
    let page = dir.report("report.html");
    let small = page.split("<small").skip(1).filter_map(|part| part.split("</small>").next());
    assert!(page.contains("1 repeat") && !small.into_iter().any(|s| s.contains(" – ")), "one repeat has no interval");

    let dir = Dir::new("failed");
    let load = "return { load = function(ctx) for i = 1, 2000 do kv.put('k' .. i, string.rep('v', 500)) end end, ";
    std::fs::write(dir.0.join("full.lua"), format!("{load} run = function(ctx) kv.get('k1') end }}")).unwrap();
    let (done, out, err) = keybench(&dir.0, "full.lua --backend lmdb --ops 50 --opt lmdb.map_size=256K");
    assert_eq!(done.status.code(), Some(1), "{out}{err}");
    assert!(out.contains("lmdb failed: ") && !out.contains("was skipped"), "{out}");
    let figures = row(&out, "lmdb ").expect(&out);
    assert!(!figures.contains(" 0 B") && !figures.contains(" 0 ns"), "{figures}");
}

#[test]
fn the_warning_of_a_small_data_set_knows_the_memtables() {
    let dir = Dir::new("memtables");
    let own = "--opt kingtide.memtable_size=64K --opt kingtide-c.memtable_size=128K";
    let words = format!("mixed --backend kingtide,kingtide-c --ops 50 {own}");
    let (done, out, err) = keybench(&dir.0, &words);
    assert!(done.status.success() && err.contains("memtable differs"), "{out}{err}");
    assert!(err.contains("four times the memtable of 128 KiB") && !err.contains("64.0 MiB"), "{err}");
}

#[test]
fn what_cannot_be_written_is_told_before_the_run() {
    let dir = Dir::new("unwritable");
    for flag in ["--csv", "--report"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
        let words = ["micro", "-o", "1000", "--repeat", "1", "-d", "data", flag, "nowhere/x"];
        let done = command.current_dir(&dir.0).args(words).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && err.contains("cannot write nowhere/x"), "{err}");
        assert!(!err.contains("run 1 of 1") && !dir.0.join("data").exists(), "{err}");
    }
}

/// In `[bench]` the first of two values counts, as in the original, and in an engine's section the last: the report mentions both.
#[test]
fn an_option_given_twice_in_a_file_is_told() {
    let dir = Dir::new("twice");
    let text = "[bench]\nworkload = mixed\nops = 50\nops = 70\n[kingtide]\nmemtable_size = 1M\nmemtable_size = 3M\n";
    std::fs::write(dir.0.join("twice.cnf"), text).unwrap();
    let (done, out, err) = keybench(&dir.0, "--config twice.cnf --backend kingtide");
    assert!(done.status.success(), "{out}{err}");
    assert!(err.contains("twice.cnf:4: ops was given in line 3 already, which counts"), "{err}");
    assert!(err.contains("twice.cnf:7: memtable_size was given in line 6 already; this one counts"), "{err}");
    assert!(out.contains("50 units a point") && out.contains(" memtable_size=3145728 "), "{out}");
}
