//! What other tools describe, and what was recorded: property files of YCSB, flags of db_bench, traces.

use std::path::{Path, PathBuf};
use std::process::Command;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("keybench-foreign-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn keybench(dir: &Path, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    let done = command.current_dir(dir).args(words.split_whitespace()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    (done.status.code(), format!("{out}{err}"))
}

const SMALL: &str = "--seed-threads 1 --repeat 1 --timeline 0 --auto-plot=false --report-dir reports --data-dir data";

/// The operations of a report's first engine: kind and count.
fn counts(out: &str) -> Vec<(String, u64)> {
    let lines = out.lines().skip_while(|l| !l.trim_start().starts_with("op ")).skip(1);
    let words = lines.map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.take_while(|w| w.len() > 6).map(|w| (w[0].clone(), w[1].replace(',', "").parse().unwrap())).collect()
}

#[test]
fn a_property_file_of_ycsb_is_run_as_it_is() {
    let dir = Dir::new("ycsb");
    let text = "# YCSB\nrecordcount=200\noperationcount=500\nworkload=site.ycsb.workloads.CoreWorkload\nreadallfields=true\n\
                readproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\nrequestdistribution=zipfian\n\
                fieldcount=2\nfieldlength=50\nthreadcount=2\n";
    std::fs::write(dir.0.join("workloada"), text).unwrap();
    let (code, out) = keybench(&dir.0, &format!("ycsb workloada --backend memory,lmdb --verify {SMALL}"));
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("workloada, 2 threads on lmdb") && out.contains("200 items"), "{out}");
    assert!(out.contains("values of 100 B") && !out.contains("WRONG"), "{out}");
    assert_eq!(counts(&out).iter().map(|(_, n)| n).sum::<u64>(), 500, "{out}");
    // The report's own configuration runs it again, from another directory.
    let report = std::fs::read_dir(dir.0.join("reports")).unwrap().next().unwrap().unwrap().path();
    let again = Dir::new("ycsb-again");
    let (code, out) = keybench(&again.0, &format!("--config {} --ops 30", report.join("replay.cnf").display()));
    assert!(code == Some(0) && counts(&out).iter().map(|(_, n)| n).sum::<u64>() == 30, "{out}");
    let (code, out) = keybench(&dir.0, &format!("ycsb mixed {SMALL}"));
    assert!(code == Some(2) && out.contains("'mixed' is no property file of YCSB"), "{out}");
}

#[test]
fn what_was_recorded_is_replayed_on_another_engine() {
    let dir = Dir::new("trace");
    let flags = "--items 300 --users 20 --value-size 60 --threads 2 --ops 400 --backend lmdb";
    let (code, out) = keybench(&dir.0, &format!("mixed {flags} --trace mixed.trace {SMALL}"));
    assert_eq!(code, Some(0), "{out}");
    let recorded = counts(&out);
    let trace = std::fs::read_to_string(dir.0.join("mixed.trace")).unwrap();
    assert!(trace.starts_with("keybench trace 1\n# mixed on lmdb 0.9"), "{}", &trace[..60]);
    for speed in ["", "--speed 50"] {
        let (code, out) = keybench(&dir.0, &format!("replay mixed.trace --backend kingtide,memory {speed} {SMALL}"));
        assert_eq!(code, Some(0), "{out}");
        assert!(out.contains("mixed, 2 threads on kingtide"), "{out}");
        assert_eq!(counts(&out), recorded, "{out}");
        assert_eq!(out.contains("are due"), !speed.is_empty(), "{out}");
    }
    std::fs::write(dir.0.join("cut.trace"), &trace[..trace.len() - 9]).unwrap();
    for command in ["replay", "run"] {
        let (code, out) = keybench(&dir.0, &format!("{command} cut.trace --backend memory {SMALL}"));
        let told = out.lines().filter(|line| line.contains("cut.trace")).collect::<Vec<_>>();
        assert!(code == Some(2) && told.len() == 1 && told[0].contains("cut off within its last line"), "{out}");
        assert!(!out.contains("traceback") && !out.contains("runtime error"), "{out}");
    }
    let (code, out) = keybench(&dir.0, &format!("replay nothing.trace {SMALL}"));
    assert!(code == Some(2) && out.contains("'nothing.trace' is not a trace"), "{out}");
}

#[test]
fn flags_of_db_bench_run_its_phases() {
    let dir = Dir::new("db_bench");
    std::fs::write(dir.0.join("flags"), "--benchmarks=fillrandom,readrandom\n--num=2000\n").unwrap();
    let (code, out) =
        keybench(&dir.0, "db_bench --flagfile=flags --value_size=50 --threads=2 -e memory,lmdb --db=data");
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("fillrandom") && out.contains("readrandom") && out.contains("2,000"), "{out}");
}
