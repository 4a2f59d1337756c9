//! Turns of another build: its `kt` recovers, verifies, writes and merges a database that was killed or closed.

use crate::child::{database, locked};
use crate::driver::Worker;
use crate::model::{DEFAULT, FOREIGN, key};
use std::process::Command;

/// What a build before its fix says of a log whose recorded start went back.
const KNOWN: &str = "a segment is missing";

/// One turn. An error is a failure.
pub fn turn(w: &mut Worker<'_>) -> Result<(), String> {
    let Some(program) = w.job.other.clone() else { return Ok(()) };
    let db = database(&w.dir);
    if !db.join("CURRENT").exists() {
        return Ok(());
    }
    let path = db.to_string_lossy().into_owned();
    let slot = w.rng.below(6) as u16;
    let value = format!("{}-{}", w.seed, w.rng.below(1 << 30));
    let name = key(0, FOREIGN, slot).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut steps: Vec<Vec<&str>> = Vec::new();
    if w.rng.one_in(3) {
        steps.push(vec!["verify", &path]);
    }
    let put = ["put", &path, &name, &value, "--key-format", "hex"];
    if !w.rng.one_in(4) {
        steps.push(put.to_vec());
    }
    if w.rng.one_in(3) {
        steps.push(vec!["compact", &path]);
    }
    for step in steps {
        let output = Command::new(&program).args(&step).output().map_err(|e| format!("{}: {e}", program.display()))?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            if text.contains(KNOWN) {
                locked(w.totals).add("refused by the other build for its known bug", 1);
                return Ok(());
            }
            return Err(format!("REFUSED: the other build's kt {}: {}: {text}", step.join(" "), output.status));
        }
        locked(w.totals).add(&format!("turns of the other build: {}", step[0]), 1);
        if step[0] == "put" {
            w.foreign.insert(slot, value.clone());
            let lines: Vec<String> = w.foreign.iter().map(|(slot, value)| format!("{slot} {value}\n")).collect();
            std::fs::write(w.dir.join("foreign"), lines.concat()).map_err(|e| e.to_string())?;
        }
    }
    debug_assert_eq!(DEFAULT, 0, "kt put writes to the default family");
    Ok(())
}
