//! `keybench kill` from the outside: processes that are really killed, and faults that must be found.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place for a store, gone with the test.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `keybench kill` with a small store and four kills; returns whether it was content, and its summary. Processes live as long as it takes on
/// this machine for `enough` to be done: on a slow one, or one that has more to do, little is done in a part of a second.
fn kill(name: &str, workload: &str, flags: &[&str], enough: impl Fn(&Value) -> bool) -> (bool, Value) {
    for doubled in 0..8 {
        let (from, to) = (0.1 * f64::from(1 << doubled), 0.4 * f64::from(1 << doubled));
        let (content, summary) = four_kills(name, workload, &format!("{from}..{to}"), flags);
        if !content || enough(&summary) {
            return (content, summary);
        }
    }
    panic!("{name}: next to nothing is done in minutes");
}

fn four_kills(name: &str, workload: &str, every: &str, flags: &[&str]) -> (bool, Value) {
    let place = Place(std::env::temp_dir().join(format!("keybench-kill-cli-{name}-{}", std::process::id())));
    let out = Command::new(env!("CARGO_BIN_EXE_keybench"))
        .args(["kill", workload, "--json", "--cycles", "4", "--every", every, "--items", "1000", "--value-size", "500"])
        .args(["--users", "100", "--threads", "4", "--memtable-size", "256K", "--dir"])
        .arg(&place.0)
        .args(flags)
        .output()
        .unwrap();
    let summary = String::from_utf8_lossy(&out.stdout);
    let summary = serde_json::from_str(&summary)
        .unwrap_or_else(|e| panic!("{name}: {e}: {summary}{}", String::from_utf8_lossy(&out.stderr)));
    println!("{name}, a kill every {every} s: {summary}");
    assert_eq!(place.0.join("store/CURRENT").exists(), !out.status.success(), "kept when something was found");
    (out.status.success(), summary)
}

/// A field of a summary.
fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap()
}

#[test]
fn nothing_is_lost() {
    for workload in ["mixed", "batch"] {
        // The data set is 1000 keys, and may be loaded twice.
        let (content, summary) = kill(workload, workload, &[], |s| number(s, "operations_acknowledged") > 2100);
        assert!(content, "{summary}");
        let found = ["kills", "lost", "wrong", "torn", "verify_damage"].map(|name| number(&summary, name));
        assert_eq!(found, [4, 0, 0, 0, 0]);
    }
}

/// Transfers between accounts, some rolled back.
const TRANSFERS: &str = r#"
return {
  name = "transfers",
  run = function(ctx)
    local a, b = gen.key("%04d", gen.uniform(50)), gen.key("%04d", gen.uniform(50))
    local mark = gen.value(100)
    kv.begin("snapshot")
    kv.get(a); kv.put(a, mark)
    if gen.uniform(4) == 0 then kv.del(b) else kv.put(b, mark) end
    if gen.uniform(10) == 0 then kv.rollback() else kv.commit() end
  end,
}
"#;

#[test]
fn transactions_are_whole() {
    let script = std::env::temp_dir().join(format!("keybench-transfers-{}.lua", std::process::id()));
    std::fs::write(&script, TRANSFERS).unwrap();
    let workload = script.display().to_string();
    let (content, summary) = kill("transfers", &workload, &[], |s| number(s, "mutations_acknowledged") > 100);
    std::fs::remove_file(&script).unwrap();
    assert!(content, "{summary}");
}

#[test]
fn planted_faults_are_found() {
    for (plant, kind) in [("loss", "lost"), ("wrong", "wrong"), ("half", "torn")] {
        let flags = ["--plant", plant, "--batch", "8"];
        // What four processes do after they loaded the data set is not all overwritten.
        let (content, summary) = kill(plant, "batch", &flags, |s| number(s, "operations_acknowledged") > 2100);
        assert!(!content && number(&summary, kind) > 0, "{plant}: {summary}");
    }
}

#[test]
fn a_directory_that_is_there_is_refused() {
    let out =
        Command::new(env!("CARGO_BIN_EXE_keybench")).args(["kill", "mixed", "--dir"]).arg(Path::new(".")).output();
    let out = out.unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("already exists"));
}
