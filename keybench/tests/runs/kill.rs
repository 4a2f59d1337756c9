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

/// Runs `keybench kill` with a small store; returns whether it was content, and its summary.
fn kill(name: &str, workload: &str, flags: &[&str]) -> (bool, Value) {
    let place = Place(std::env::temp_dir().join(format!("keybench-kill-cli-{name}-{}", std::process::id())));
    let out = Command::new(env!("CARGO_BIN_EXE_keybench"))
        .args(["kill", workload, "--json", "--every", "0.1..0.4", "--items", "1000", "--value-size", "500"])
        .args(["--users", "100", "--threads", "4", "--memtable-size", "256K", "--dir"])
        .arg(&place.0)
        .args(flags)
        .output()
        .unwrap();
    let summary = String::from_utf8_lossy(&out.stdout);
    let summary = serde_json::from_str(&summary)
        .unwrap_or_else(|e| panic!("{name}: {e}: {summary}{}", String::from_utf8_lossy(&out.stderr)));
    println!("{name}: {summary}");
    assert_eq!(place.0.join("store/CURRENT").exists(), !out.status.success(), "kept when something was found");
    (out.status.success(), summary)
}

#[test]
fn nothing_is_lost() {
    for workload in ["mixed", "batch"] {
        let (content, summary) = kill(workload, workload, &["--cycles", "4"]);
        assert!(content, "{summary}");
        assert_eq!((&summary["kills"], &summary["lost"], &summary["verify_damage"]), (&4.into(), &0.into(), &0.into()));
        assert!(summary["operations_acknowledged"].as_u64() > Some(1000), "{summary}");
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
    let (content, summary) = kill("transfers", &script.display().to_string(), &["--cycles", "4"]);
    std::fs::remove_file(&script).unwrap();
    assert!(content && summary["mutations_acknowledged"].as_u64() > Some(100), "{summary}");
}

#[test]
fn planted_faults_are_found() {
    for (plant, kind) in [("loss", "lost"), ("wrong", "wrong"), ("half", "torn")] {
        let (content, summary) = kill(plant, "batch", &["--cycles", "6", "--plant", plant, "--batch", "8"]);
        assert!(!content && summary[kind].as_u64() > Some(0), "{plant}: {summary}");
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
