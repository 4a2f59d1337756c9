//! The original keybench's form of a configuration, its five workloads by name, and what its plot programs read.
//!
//! What the original's workloads do is written down here by itself: `calls` is asked of every call of `run` that a bundled
//! workload of the same name makes, as a script between it and `kv` notes them. Values are the one thing that differs: theirs
//! are a few bytes each (but for `valsize`), ours have `--value-size`.

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
items        = 200
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

/// Operations of `points.tsv` and their counts in percent of the calls of `run`: the least and the most that chance leaves.
type Shares = &'static [(&'static str, f64, f64)];

const MIX: Shares = &[("get", 47.0, 53.0), ("put", 27.0, 33.0), ("del", 8.0, 12.0), ("range", 8.0, 12.0)];
const BATCHES: Shares = &[("mget", 57.0, 63.0), ("mput", 37.0, 43.0)];
/// Points by workload and swept value. In a `cart`, adds and updates are puts, views and checkouts ranges, and removes and
/// the lines of checkouts deletes: two lines or so, as removes shorten carts.
const SHARES: &[(&str, &str, Shares)] = &[
    ("mixed", "1", MIX),
    ("cart", "1", &[("get", 12.0, 18.0), ("put", 41.0, 49.0), ("del", 12.0, 70.0), ("range", 26.0, 34.0)]),
    ("scan", "1", &[("range", 100.0, 100.0)]),
    ("batch", "1", BATCHES),
    ("batch", "64", BATCHES),
    ("batch", "256", BATCHES),
    ("valsize", "256", MIX),
    ("valsize", "4096", MIX),
];

#[test]
fn a_configuration_of_the_original_runs_as_it_is_and_plots_get_medians() {
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

/// Notes what a workload asks of `kv`, one line an operation and one before each call of `run`.
const SPY: &str = r##"
local real, trace = {}, nil
for name, verb in pairs(kv) do real[name] = verb end
local function note(...)
  if trace then
    local words = { ... }
    for i = 1, select("#", ...) do words[i] = tostring(words[i]) end
    trace:write(table.concat(words, "\t"), "\n")
  end
end
local function many(verb)
  return function(rows)
    note(verb, #rows)
    for _, row in ipairs(rows) do note("each", type(row) == "table" and row.key or row) end
    return real[verb](rows)
  end
end
kv.get = function(key) note("get", key) return real.get(key) end
kv.put = function(key, value) note("put", key, #value) real.put(key, value) end
kv.del = function(key) note("del", key) return real.del(key) end
kv.mget, kv.mput, kv.mdel = many("mget"), many("mput"), many("mdel")
kv.range = function(lo, hi, limit)
  local rows = real.range(lo, hi, limit)
  note("range", lo, hi, limit, #rows)
  for _, row in ipairs(rows) do note("each", row.key) end
  return rows
end
kv.scan = function(lo, hi, each, limit)
  local rows, stops = 0, 0
  real.scan(lo, hi, function(key, value)
    rows = rows + 1
    local stop = each(key, value)
    if stop then stops = stops + 1 end
    return stop
  end, limit)
  note("scan", lo, hi, limit, rows, stops)
end
local workload = dofile(SCRIPT)
local load, run = workload.load, workload.run
workload.load = function(ctx)
  trace = assert(io.open(TRACE .. ".load", "w"))
  load(ctx)
  trace:close()
  trace = nil
  real.put("~noted", "yes")
end
workload.run = function(ctx)
  -- The engine that does nothing is not watched: it finds whatever it is asked for.
  if ctx.iter == 1 and real.get("~noted") == "yes" then trace = assert(io.open(TRACE .. ".run", "w")) end
  note("call")
  run(ctx)
  if trace and ctx.iter == ctx.ops then trace:close() trace = nil end
end
return workload
"##;

const CALLS: u64 = 6000;
const USERS: u64 = 400;
const ITEMS: u64 = 3000;

/// An operation and what belongs to it: words of its line, and keys of its rows.
#[derive(Debug)]
struct Op {
    words: Vec<String>,
    keys: Vec<String>,
}

/// A number that a key ends in, after a prefix, in so many digits.
fn number(key: &str, prefix: &str, digits: usize) -> u64 {
    let rest = key.strip_prefix(prefix).unwrap_or_else(|| panic!("{key} does not begin with {prefix}"));
    assert!(rest.len() == digits && rest.bytes().all(|b| b.is_ascii_digit()), "{key}");
    rest.parse().unwrap()
}

fn k(key: &str) -> u64 {
    number(key, "k:", 12)
}

/// User and item of a line of a cart. A user's items lie in a window of 16 at a place that depends on the user.
fn line(key: &str) -> (u64, u64) {
    let user = number(&key[..key.len().min(12)], "u:", 10);
    let item = number(&key[12..], ":c:", 10);
    let first = user * 2_654_435_761 % (ITEMS - 16);
    assert!((first..first + 16).contains(&item), "{key}: items of the user are {first} to {}", first + 15);
    (user, item)
}

/// Checks a call of `run` and names what it is.
fn calls(workload: &str, ops: &[Op]) -> &'static str {
    let verbs: Vec<&str> = ops.iter().map(|op| op.words[0].as_str()).collect();
    let words: Vec<&str> = ops[0].words.iter().map(String::as_str).collect();
    let alone = ops.len() == 1;
    match (workload, verbs[0]) {
        ("mixed" | "valsize", "range") if alone => {
            let (lo, hi) = (k(words[1]), k(words[2]));
            assert!(lo < ITEMS && hi == lo + 100 && words[3] == "100", "{words:?}");
            "range"
        }
        ("mixed" | "valsize", verb @ ("get" | "put" | "del")) if alone => {
            assert!(k(words[1]) < ITEMS, "{words:?}");
            assert!(verb != "put" || words[2] == "256", "{words:?}");
            ["get", "put", "del"].into_iter().find(|v| *v == verb).unwrap()
        }
        ("scan", "scan") if alone => {
            let (lo, hi) = (k(words[1]), k(words[2]));
            assert!(lo <= ITEMS - 1000 && hi == lo + 1000 && words[3] == "nil", "{words:?}");
            assert_eq!(words[4..], ["1000", "0"], "all rows, and none ends the scan");
            "scan"
        }
        ("batch", verb @ ("mget" | "mput")) if alone => {
            assert!(words[1] == "64" && ops[0].keys.len() == 64, "{words:?}");
            assert!(ops[0].keys.iter().all(|key| k(key) < ITEMS));
            if verb == "mget" { "mget" } else { "mput" }
        }
        ("cart", "get" | "put" | "del") if alone => {
            let (user, _) = line(words[1]);
            assert!(user < USERS, "{words:?}");
            ["get", "put", "del"].into_iter().find(|v| *v == verbs[0]).unwrap()
        }
        // A checkout: the cart, and then each of its lines. One of an empty cart cannot be told from a view.
        ("cart", "range") => {
            let user = words[1].strip_suffix(":c:").unwrap_or_else(|| panic!("{words:?}"));
            assert!(
                number(user, "u:", 10) < USERS && words[2] == format!("{user}:c;") && words[3] == "nil",
                "{words:?}"
            );
            ops[0].keys.iter().for_each(|key| assert_eq!(key[..12], *user, "{:?}", line(key)));
            if alone {
                return "view";
            }
            let deleted: Vec<&String> = ops[1..].iter().map(|op| &op.words[1]).collect();
            assert!(
                verbs[1..].iter().all(|v| *v == "del") && deleted == ops[0].keys.iter().collect::<Vec<_>>(),
                "{ops:?}"
            );
            "checkout"
        }
        _ => panic!("{workload} does not do this: {ops:?}"),
    }
}

/// What was noted: calls of `run`, or one for a load.
fn noted(path: &Path) -> Vec<Vec<Op>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut calls: Vec<Vec<Op>> = Vec::new();
    for words in text.lines().map(|l| l.split('\t').map(str::to_owned).collect::<Vec<_>>()) {
        match words[0].as_str() {
            "call" => calls.push(Vec::new()),
            "each" => calls.last_mut().unwrap().last_mut().unwrap().keys.push(words[1].clone()),
            _ => {
                if calls.is_empty() {
                    calls.push(Vec::new());
                }
                calls.last_mut().unwrap().push(Op { words, keys: Vec::new() });
            }
        }
    }
    calls
}

/// Runs a bundled workload with the spy before it: what it loaded, and its calls.
fn watched(dir: &Path, workload: &str) -> (Vec<String>, Vec<Vec<Op>>) {
    let script = format!("{}/workloads/{workload}.lua", env!("CARGO_MANIFEST_DIR"));
    let trace = dir.join(workload);
    let head = format!("local SCRIPT, TRACE = {script:?}, {:?}\n", trace.display().to_string());
    let spy = dir.join(format!("{workload}.lua"));
    std::fs::write(&spy, format!("{head}{SPY}")).unwrap();
    let flags = format!(
        "--backend memory --threads 1 --seed-threads 1 --repeat 1 --batch 64 --ops {CALLS} --users {USERS} --items {ITEMS} \
         --value-size 256 --timeline 0 --auto-plot=false --data-dir stores --report-dir reports --verify"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    command.current_dir(dir).arg(&spy).args(flags.split_whitespace());
    if workload == "valsize" {
        command.args(["--sweep", "256"]);
    }
    let done = command.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{workload}: {told}");
    let keys = |op: Op| if op.words[0] == "put" { vec![op.words[1].clone()] } else { op.keys };
    let loaded = noted(&trace.with_extension("load")).into_iter().flatten().flat_map(keys).collect();
    (loaded, noted(&trace.with_extension("run")))
}

/// What calls of a workload are, in percent.
const CALLS_OF: &[(&str, &[(&str, f64)])] = &[
    ("mixed", &[("get", 50.0), ("put", 30.0), ("del", 10.0), ("range", 10.0)]),
    ("valsize", &[("get", 50.0), ("put", 30.0), ("del", 10.0), ("range", 10.0)]),
    ("scan", &[("scan", 100.0)]),
    ("batch", &[("mget", 60.0), ("mput", 40.0)]),
    // 35 add and 10 update are puts; some of the 5 checkouts find an empty cart and look like the 25 views.
    ("cart", &[("put", 45.0), ("view", 25.0), ("get", 15.0), ("del", 10.0), ("checkout", 5.0)]),
];

#[test]
fn bundled_workloads_of_the_originals_names_make_the_originals_calls() {
    let dir = Dir::new("calls");
    for (workload, shares) in CALLS_OF {
        let (loaded, run) = watched(&dir.0, workload);
        assert_eq!(run.len() as u64, CALLS, "{workload}");
        let mut counts = BTreeMap::<&str, u64>::new();
        run.iter().for_each(|ops| *counts.entry(calls(workload, ops)).or_default() += 1);
        assert_eq!(counts.len(), shares.len(), "{workload}: {counts:?}");
        for (call, percent) in *shares {
            let share = counts[call] as f64 / CALLS as f64 * 100.0;
            assert!((share - percent).abs() <= 2.5, "{workload}: {call} {share} % of {counts:?}");
        }
        if *workload != "cart" {
            let all: Vec<u64> = loaded.iter().map(|key| k(key)).collect();
            assert_eq!(all, (0..ITEMS).collect::<Vec<_>>(), "{workload} loads every key once");
            continue;
        }
        // 3 to 8 lines a user, and all of these numbers.
        let mut lines = BTreeMap::<u64, usize>::new();
        loaded.iter().for_each(|key| *lines.entry(line(key).0).or_default() += 1);
        let numbers: std::collections::BTreeSet<usize> = lines.values().copied().collect();
        assert_eq!((lines.len() as u64, numbers), (USERS, (3..=8).collect()));
        // floor(users * u^2): a share of sqrt(x) of the calls is for the first x of the users.
        let users = run.iter().map(|ops| number(&ops[0].words[1][..12], "u:", 10));
        let users: Vec<u64> = users.collect();
        for (part, wanted) in [(100, 0.1), (4, 0.5), (2, 0.707)] {
            let share = users.iter().filter(|u| **u < USERS / part).count() as f64 / CALLS as f64;
            assert!((share - wanted).abs() < 0.03, "{share} of the calls are for the first 1/{part} of the users");
        }
    }
}

#[test]
fn what_a_script_prints_on_the_engine_that_does_nothing_is_not_shown() {
    let dir = Dir::new("prints");
    std::fs::write(dir.0.join("loud.lua"), "return { run = function() kv.put('a', 'b') print('PRINTED') end }")
        .unwrap();
    let words = "loud.lua --backend memory --threads 1 --repeat 1 --ops 7 --auto-plot=false --settle=false";
    let done =
        Command::new(env!("CARGO_BIN_EXE_keybench")).current_dir(&dir.0).args(words.split(' ')).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && told.contains("harness: "), "{told}");
    assert_eq!(told.matches("PRINTED").count(), 7, "{told}");
}
