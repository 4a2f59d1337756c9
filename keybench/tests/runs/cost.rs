//! What writes cost until compaction is idle, stores that are opened again, and open loops at shares of a capacity.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-cost-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn run(dir: &Path, words: &str) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    // No peers: what this test sees is the same on every machine.
    let done = command.current_dir(dir).env("KEYBENCH_PEERS", dir).args(words.split_whitespace()).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    (done, told)
}

fn keybench(dir: &Path, words: &str) -> String {
    let (done, told) = run(dir, words);
    assert!(done.status.success(), "keybench {words}: {told}");
    told
}

/// Rows of a CSV file or of a table with tabs, as columns' names and cells.
fn rows(path: &Path, separator: char) -> Vec<Vec<(String, String)>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|l| l.split(separator).map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect()
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no column {name}")).1
}

#[test]
fn a_small_total_cost_has_settled_costs_and_says_that_it_is_small() {
    let dir = Dir::new("total");
    let flags = "--scale 0.0005 --engines kingtide,lmdb --repeat 1 --out x --auto-plot=false";
    let told = keybench(&dir.0, &format!("suite total-cost {flags}"));
    assert!(told.contains("| settled cost: kingtide / lmdb |") && told.contains("| overwrite/overwrite-3 |"), "{told}");
    let rows = rows(&dir.0.join("x.csv"), ',');
    let names: Vec<&str> = rows.iter().map(|r| cell(r, "test_name")).collect();
    for name in ["load/filluniquerandom", "overwrite/overwrite-3", "delete_90/deletemost", "range_delete/readcovered"] {
        assert_eq!(names.iter().filter(|n| **n == name).count(), 2, "{name}: {names:?}");
    }
    assert_eq!(names.iter().filter(|n| **n == "families_1000/fillfamilies").count(), 1, "LMDB's adapter has none");
    for row in &rows {
        let writes = ["PUT", "DELETE", "RANGE_DELETE"].contains(&cell(row, "operation"));
        let (wrong, settled) = (cell(row, "wrong"), cell(row, "settled_sec"));
        assert_eq!((wrong, settled.is_empty()), ("0", !writes), "{row:?}");
        let number = |name| cell(row, name).parse::<f64>().unwrap();
        assert!(!writes || number("settled_sec") >= number("foreground_sec"), "{row:?}");
        assert!(!writes || number("settled_db_size_mib") > 0.0, "{row:?}");
    }
    let page = std::fs::read_to_string(dir.0.join("x.html")).unwrap();
    for text in [&told, &page] {
        assert!(text.contains("under four times the memtable"), "{text}");
    }
    assert!(page.contains("What writes cost until compaction was idle") && !page.contains("different commits"));
    // The rows of an earlier program stay where no test is run again.
    let csv = std::fs::read_to_string(dir.0.join("x.csv")).unwrap();
    let commit = csv.lines().nth(1).unwrap().rsplit(',').next().unwrap();
    std::fs::write(dir.0.join("x.csv"), csv.replace(&format!(",{commit}\n"), ",0000000\n")).unwrap();
    let told = keybench(&dir.0, &format!("suite total-cost {flags} --only load"));
    let page = std::fs::read_to_string(dir.0.join("x.html")).unwrap();
    for text in [&told, &page] {
        assert!(
            text.contains(&format!("the results are of different commits: {commit} (8 results), 0000000 (")),
            "{text}"
        );
    }
}

#[test]
fn stores_are_opened_again_settled_and_with_a_log_to_replay() {
    let dir = Dir::new("reopen");
    for (how, words) in [("settled", "settled: no log to replay"), ("killed", "killed: with a log to replay")] {
        let flags = "-w read -e kingtide,lmdb -o 5000 -t 2 --repeat 1";
        let told = keybench(&dir.0, &format!("micro {flags} --after-load reopen-{how} --csv {how}.csv"));
        assert_eq!(told.matches(words).count(), 2, "{told}");
        assert!(told.contains("kingtide: 5,000 answers checked, 0 wrong"), "{told}");
        let resources = |line: &&str| line.starts_with("kingtide ") && line.split_whitespace().count() > 12;
        let loaded: Vec<_> = told.lines().filter(resources).filter_map(|l| l.split_whitespace().nth(3)).collect();
        assert!(!loaded.is_empty() && loaded.iter().all(|rss| *rss != "0"), "{loaded:?} in {told}");
        let rows = rows(&dir.0.join(format!("{how}.csv")), ',');
        let get: Vec<_> = rows.iter().filter(|r| cell(r, "operation") == "GET").collect();
        assert!(get.len() == 2 && get.iter().all(|r| cell(r, "reopen_of") == words), "{rows:?}");
        assert!(get.iter().all(|r| cell(r, "reopen_sec").parse::<f64>().unwrap() > 0.0), "{rows:?}");
    }
    let (done, told) = run(&dir.0, "micro -w write --after-load reopen-killed -o 1000");
    assert_eq!(done.status.code(), Some(2), "{told}");
    let (done, told) = run(&dir.0, "micro -w read -e memory --after-load reopen-killed -o 1000 --repeat 1");
    assert!(!done.status.success() && told.contains("has no files"), "{told}");
}

#[test]
fn native_loops_tell_unequal_settings() {
    let dir = Dir::new("equal");
    let flags = "micro -e kingtide,kingtide-c -o 1000 --repeat 1 --settle=false --opt kingtide.compression=none";
    let told = keybench(&dir.0, flags);
    assert_eq!(told.matches("warning: compression differs: kingtide none, kingtide-c lz4").count(), 2, "{told}");
    let (done, told) = run(&dir.0, &format!("{flags} --equal"));
    assert!(done.status.code() == Some(2) && told.contains("--equal: compression differs"), "{told}");
}

#[test]
fn a_sweep_over_the_rate_has_latency_over_load() {
    let dir = Dir::new("sweep");
    let flags = "--backend kingtide,memory --threads 1 --secs 0.2 --repeat 1 --items 100 --users 10 --value-size 50";
    let told = keybench(&dir.0, &format!("run mixed --rate-sweep {flags} --report-dir reports"));
    assert!(told.contains("capacity: mixed, 1 thread: kingtide reaches"), "{told}");
    let report = std::fs::read_dir(dir.0.join("reports")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(report.join("report.txt")).unwrap();
    assert!(text.contains("open loop: shares of a closed loop's rate are due"), "{text}");
    let points = rows(&report.join("points.tsv"), '\t');
    for engine in ["kingtide", "memory"] {
        // A row for each kind of operation: where few calls are due, not every point has all of them.
        let own = points.iter().filter(|p| cell(p, "engine") == engine);
        let mut shares: Vec<&str> = own.map(|p| cell(p, "sweep_value")).collect();
        shares.dedup();
        assert_eq!(shares, ["25", "50", "75", "90"], "{engine}");
    }
    let page = std::fs::read_to_string(report.join("report.html")).unwrap();
    assert!(page.contains("mixed: 99th percentile of latency over load"), "the page has the figure");
    for name in ["p50", "p99", "p999"] {
        assert!(report.join(format!("figures/latency_{name}_load_mixed.svg")).exists(), "{name}");
    }
    assert!(!report.join("figures/sweep_mixed.svg").exists(), "rates that were asked for have no figure");
    let json = std::fs::read_to_string(report.join("report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let capacity = json["meta"]["settings"]["capacities"][0]["wu_per_s"].as_f64().unwrap();
    let due = json["points"][0]["rate"].as_f64().unwrap();
    assert!((due / capacity - 0.25).abs() < 1e-9, "{due} of {capacity}");
    for (words, wanted) in
        [("batch --rate-sweep", "cannot be swept over its rate too"), ("mixed --rate-sweep --rate 9", "--rate")]
    {
        let (done, told) = run(&dir.0, &format!("run {words} {flags}"));
        assert!(done.status.code() == Some(2) && told.contains(wanted), "{told}");
    }
}

#[test]
fn reads_meet_the_disk_where_the_page_cache_is_dropped() {
    let dir = Dir::new("drop");
    let flags = "-e kingtide,lmdb -o 3000 -t 1 --repeat 1 --drop-cache";
    let told = keybench(&dir.0, &format!("micro -w read {flags} --after-load reopen-settled"));
    assert!(
        told.contains("evicted from the page cache") && told.contains("kingtide: 3,000 answers checked, 0 wrong"),
        "{told}"
    );
    for wrong in ["-w write", "--phases fillseq,readseq"] {
        let (done, told) = run(&dir.0, &format!("micro {wrong} {flags}"));
        assert!(done.status.code() == Some(2) && told.contains("--drop-cache is for workloads"), "{told}");
    }
}

/// What the one report under `dir` says: its text, its page, and its stores' costs by engine.
fn report(dir: &Path) -> (String, String, Vec<(String, serde_json::Value)>) {
    let report = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let read = |name: &str| std::fs::read_to_string(report.join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    let name = |e: &serde_json::Value| e["name"].as_str().unwrap().to_owned();
    let engines = json["engines"].as_array().unwrap().iter();
    (read("report.txt"), read("report.html"), engines.map(|e| (name(e), e["stores"][0]["costs"].clone())).collect())
}

#[test]
fn a_run_that_writes_tells_its_settled_cost_and_a_small_data_set() {
    let dir = Dir::new("settled");
    std::fs::write(
        dir.0.join("reads.lua"),
        "return { load = function(ctx) kv.fill(ctx, 500, function(i) return gen.key('k%08d', i) end, function() return gen.value(99, 0) end) end, \
         run = function() kv.get('k00000001') end }",
    )
    .unwrap();
    let flags = "--threads 1 --ops 3000 --repeat 1 --items 2000 --value-size 400 --timeline 0 --auto-plot=false";
    let run = |words: &str, reports: &str| {
        let told = keybench(&dir.0, &format!("run {words} {flags} --report-dir {reports}"));
        (told, report(&dir.0.join(reports)))
    };
    let (told, (text, page, costs)) = run("mixed --backend kingtide,lmdb,memory", "a");
    let small = "is under four times the memtable of 64.0 MiB";
    for place in [&told, &text, &page] {
        assert!(place.contains(small) && place.contains("until compaction was idle"), "{place}");
    }
    assert!(told.contains("warning: mixed, 1 thread: the data set") && text.contains("settled:"), "{told}");
    for (engine, costs) in costs {
        let figure = |when: &str, what: &str| costs[when][what].as_f64();
        if engine == "memory" {
            assert!(costs.is_null(), "it has nothing to settle: {costs}");
            continue;
        }
        for what in ["seconds", "cpu", "written"] {
            assert!(figure("settled", what) >= figure("foreground", what), "{engine}: {costs}");
        }
        assert!(figure("settled", "disk_bytes") > Some(0.0), "{engine}: {costs}");
    }
    let (told, (text, page, costs)) = run("mixed --settle=false --memtable-size 64K", "b");
    assert!(!told.contains("four times the memtable") && !text.contains("settled:"), "{told}");
    assert!(!page.contains("until compaction was idle") && costs[0].1.is_null());
    assert!(run("reads.lua", "c").1.2[0].1.is_null(), "points that only read have no cost of writes");
    assert!(run("reads.lua --settle", "d").1.2[0].1.is_object(), "unless that of the load is asked for");
}
