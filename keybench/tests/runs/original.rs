//! The original keybench's form of a configuration, its five workloads by name, and what its plot programs read.
//!
//! What the workloads do is written down here as a table, so that the bundled ones cannot come to do something else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-original-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A point of `points.tsv` by workload, engine, threads and swept value: its operations with their counts.
type Points = BTreeMap<(String, String, String, String), BTreeMap<String, f64>>;

fn points(path: &Path) -> Points {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split('\t').collect();
    // The first columns are the original's, in its order.
    let original = "workload engine threads sweep_param sweep_value op count p50_ns p99_ns p999_ns max_ns hit_rate wu_per_s ops_per_s";
    assert_eq!(header[..14].join(" "), original);
    let mut points = Points::new();
    for line in lines {
        let cells: Vec<&str> = line.split('\t').collect();
        assert_eq!(cells.len(), header.len(), "{line}");
        let [workload, engine, threads, value] = [0, 1, 2, 4].map(|i| cells[i].to_owned());
        let ops = points.entry((workload, engine, threads, value)).or_default();
        let before = ops.insert(cells[5].to_owned(), cells[6].parse().unwrap());
        assert_eq!(before, None, "one row a point and operation, or plots draw each repeat: {line}");
    }
    points
}

/// A configuration as its users write them: comments at both places, repeated keys, braces, and a line that is no setting.
const CONFIG: &str = "\
# the grid
[bench]
backend      = kingtide, skiplist   # side by side
threads      = 1, 2
batch        = 1, 64, 256
seed_threads = 2
seed_once    = 1
ops          = 4000
users        = 100
items        = 2000
value_size   = 64
seed         = 1
repeat       = 2
report       = console
report_dir   = reports
data_dir     = stores
timeline     = 0
auto_plot    = 0
verify       = 0
workload     = mixed
workload     = cart
workload     = scan
workload     = batch
workload     = valsize
a line of text that is no setting

[rocksdb]
block_based_table_factory = {block_cache=64M;filter_policy=bloomfilter:10:false}

[tidesdb]
enable_block_indexes = 1
";

/// What a workload's operations are, in percent of its calls of `run`: the least and the most that chance leaves.
const SHARES: &[(&str, &str, &[(&str, f64, f64)])] = &[
    // 50 get, 30 put, 10 del, 10 range of 100, over all keys alike.
    ("mixed", "1", &[("get", 47.0, 53.0), ("put", 27.0, 33.0), ("del", 8.0, 12.0), ("range", 8.0, 12.0)]),
    // 35 add, 25 view, 15 get, 10 update that reads first, 10 remove, 5 checkout: a range and a delete of all its lines.
    (
        "cart",
        "1",
        &[("get", 21.0, 29.0), ("put", 34.0, 46.0), ("del", 8.0, 12.0), ("range", 26.0, 34.0), ("mdel", 2.0, 7.0)],
    ),
    // A thousand rows through a callback.
    ("scan", "1", &[("range", 100.0, 100.0)]),
    // 60 multi-get, 40 multi-put, of one key, of 64 and of 256.
    ("batch", "1", &[("mget", 57.0, 63.0), ("mput", 37.0, 43.0)]),
    ("batch", "64", &[("mget", 57.0, 63.0), ("mput", 37.0, 43.0)]),
    ("batch", "256", &[("mget", 57.0, 63.0), ("mput", 37.0, 43.0)]),
    // The mix of `mixed` at each size.
    ("valsize", "256", &[("get", 47.0, 53.0), ("put", 27.0, 33.0), ("del", 8.0, 12.0), ("range", 8.0, 12.0)]),
    ("valsize", "4096", &[("get", 47.0, 53.0), ("put", 27.0, 33.0), ("del", 8.0, 12.0), ("range", 8.0, 12.0)]),
];

#[test]
fn a_configuration_of_the_original_runs_as_it_is_and_its_workloads_do_what_theirs_did() {
    let dir = Dir::new("config");
    std::fs::write(dir.0.join("bench.cnf"), CONFIG).unwrap();
    let words = ["--config", "bench.cnf", "--sweep", "256,4096", "--settle=false"];
    let done = Command::new(env!("CARGO_BIN_EXE_keybench")).current_dir(&dir.0).args(words).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{told}");
    assert!(told.contains("warning") && told.contains("a line of text that is no setting"), "{told}");
    let report = std::fs::read_dir(dir.0.join("reports")).unwrap().next().unwrap().unwrap().path();
    let points = points(&report.join("points.tsv"));
    for (workload, value, shares) in SHARES {
        for engine in ["kingtide", "memory"] {
            for threads in ["1", "2"] {
                let key = [*workload, engine, threads, *value].map(str::to_owned);
                let ops = points.get(&key.clone().into()).unwrap_or_else(|| panic!("no point {key:?}: {told}"));
                assert_eq!(ops.len(), shares.len(), "{key:?}: {ops:?}");
                for (op, least, most) in *shares {
                    let share = ops[*op] / 4000.0 * 100.0;
                    assert!((*least..=*most).contains(&share), "{key:?}: {op} {share} % of {ops:?}");
                }
            }
        }
    }
    // Its plot program reads medians: those of two repeats lie between them, and both have a file of their own.
    let repeats = std::fs::read_to_string(report.join("repeats.tsv")).unwrap();
    let rates = |text: &str, column: usize| -> Vec<f64> {
        let mine = text.lines().filter(|l| l.starts_with("mixed\tkingtide\t1\t") && l.contains("\tget\t"));
        mine.map(|l| l.split('\t').nth(column).unwrap().parse().unwrap()).collect()
    };
    let both = rates(&repeats, 13);
    let median = rates(&std::fs::read_to_string(report.join("points.tsv")).unwrap(), 12);
    assert_eq!((both.len(), median.len()), (2, 1), "{repeats}");
    assert!((median[0] / ((both[0] + both[1]) / 2.0) - 1.0).abs() < 1e-4, "{median:?} of {both:?}");
}
