//! The workload that docs/benchmarking.md shows runs as it stands there.

use std::path::Path;
use std::process::Command;

#[test]
fn the_workload_of_the_page_runs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarking.md");
    let text = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> = text.split("```lua\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [workload] = blocks[..] else { panic!("another workload: how is it to be run? {blocks:?}") };
    let dir = std::env::temp_dir().join(format!("keybench-page-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("counter.lua"), workload).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keybench"));
    command.args(["run", "counter.lua", "--backend", "memory", "--threads", "2", "--ops", "200", "--items", "100"]);
    let done = command.args(["--repeat", "1"]).current_dir(&dir).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.contains("100 % of gets found a value"), "{out}{err}");
    std::fs::remove_dir_all(dir).unwrap();
}
