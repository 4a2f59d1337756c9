//! The harness tells its own cost, in the console's report and in the files. How large it is depends on the machine: here
//! only that it is there and no nonsense.

use std::path::{Path, PathBuf};
use std::process::Command;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-harness-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn keybench(dir: &Path, words: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    let done = command.current_dir(dir).args(words.split_whitespace()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "keybench {words}: {out}{err}");
    out.into_owned()
}

/// The nanoseconds of each line that tells of the harness, with what it is about.
fn told(report: &str) -> Vec<(String, f64)> {
    let lines = report.lines().filter_map(|l| l.strip_prefix("harness: "));
    lines
        .map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            assert_eq!(words[1], "ns", "{l}");
            (l.to_owned(), words[0].parse().unwrap())
        })
        .collect()
}

/// From a nanosecond to ten milliseconds for an operation: no machine makes a loop faster. A busy one comes to few rounds in the time of a
/// measurement, of which the first cost a hundred times as much as the others.
fn plausible(ns: f64) -> bool {
    (1.0..10_000_000.0).contains(&ns)
}

#[test]
fn native_loops_tell_what_they_cost() {
    let dir = Dir::new("micro");
    for (workload, operations) in [("write", &["PUT"][..]), ("mixed", &["PUT", "GET"]), ("seek", &["LOAD", "SEEK"])] {
        let out =
            keybench(&dir.0, &format!("micro -e lmdb -o 2000 -t 1 --repeat 1 -w {workload} --csv {workload}.csv"));
        let told = told(&out);
        assert_eq!(told.len(), operations.len(), "{out}");
        for ((line, ns), operation) in told.iter().zip(operations) {
            assert!(line.contains(operation) && plausible(*ns), "{line}");
        }
        let csv = std::fs::read_to_string(dir.0.join(format!("{workload}.csv"))).unwrap();
        // What the figures depend on beside the engine.
        for fact in [
            " GiB, Linux ",
            "file system: ",
            "device: ",
            "compiler: rustc ",
            "allocator: ",
            "pages: ",
            "data set: about ",
            ", commit ",
        ] {
            assert!(out.contains(fact), "{fact}: {out}");
        }
        let (header, row) = (csv.lines().next().unwrap(), csv.lines().nth(1).unwrap());
        assert!(
            header.ends_with(",machine,file_system,device,allowed_cpus,governor,page_size,compiler,allocator,commit"),
            "{header}"
        );
        assert!(row.contains(" KiB,rustc ") && row.matches(',').count() == header.matches(',').count(), "{row}");
        let mut lines = csv.lines();
        let at = lines.next().unwrap().split(',').position(|c| c == "harness_ns").unwrap();
        let costs: Vec<f64> = lines.map(|l| l.split(',').nth(at).unwrap().parse().unwrap()).collect();
        assert!(costs.len() == operations.len() && costs.iter().all(|ns| plausible(*ns)), "{csv}");
    }
}

#[test]
fn workloads_in_lua_tell_what_they_cost() {
    let dir = Dir::new("run");
    let flags = "--backend memory --threads 1 --ops 20 --repeat 1 --items 100 --users 10 --value-size 50 --batch 1,8";
    let out = keybench(&dir.0, &format!("run mixed cart batch {flags} --report-dir reports"));
    let told = told(&out);
    let wanted = ["of mixed ", "of cart ", "of batch, batch 1 ", "of batch, batch 8 "];
    assert_eq!(told.len(), wanted.len(), "{out}");
    for ((line, ns), wanted) in told.iter().zip(wanted) {
        assert!(line.contains(wanted) && plausible(*ns), "{line}");
    }
    let report = std::fs::read_dir(dir.0.join("reports")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(report.join("report.txt")).unwrap();
    assert!(told.iter().all(|(line, _)| text.contains(line)));
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(report.join("report.json")).unwrap()).unwrap();
    let costs = json["harness"].as_array().unwrap();
    let cost = |n: usize, what: &str| costs[n][what].as_f64().unwrap();
    assert!(costs.len() == 4 && (0..4).all(|n| plausible(cost(n, "ns_per_op"))), "{costs:?}");
    // A unit of a batch is so many operations.
    for (n, batch) in [(2, 1.0), (3, 8.0)] {
        assert!((cost(n, "ns_per_wu") / cost(n, "ns_per_op") - batch).abs() < 1e-9, "{costs:?}");
    }
}

/// What the harness knows of entries, to check answers, grows with their number.
#[test]
fn phases_count_no_memory_of_the_harness_as_the_engines() {
    let dir = Dir::new("memory");
    let phases = "fillrandom,seekrandom,readseq,deletemost";
    keybench(&dir.0, &format!("micro -e null --phases {phases} -o 2M --reads 1000 -t 1 --repeat 1 --csv x.csv"));
    let csv = std::fs::read_to_string(dir.0.join("x.csv")).unwrap();
    let at = csv.lines().next().unwrap().split(',').position(|c| c == "peak_rss_mib").unwrap();
    let peaks: Vec<f64> = csv.lines().skip(1).map(|l| l.split(',').nth(at).unwrap().parse().unwrap()).collect();
    assert!(peaks.len() == 4 && peaks.iter().all(|mb| *mb < 8.0), "8 bytes of each entry are 16 MB: {peaks:?}");
}
