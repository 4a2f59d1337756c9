//! Turns of another build: its `kt` recovers, verifies, writes and merges a database that was killed or closed.

use crate::child::database;
use crate::model::{DEFAULT, FOREIGN, key};
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What a build before its fix says of a log whose recorded start went back.
const KNOWN: &str = "a segment is missing";

/// What a turn works with.
pub struct Turn<'a> {
    /// The other build's `kt`.
    pub program: &'a Path,
    /// The worker's directory.
    pub dir: &'a Path,
    pub seed: u64,
    pub rng: &'a mut Rng,
    /// What other builds have put, by slot.
    pub foreign: &'a mut BTreeMap<u16, String>,
    /// Adds one to a total.
    pub count: &'a dyn Fn(&str),
}

/// One turn. An error is a failure.
pub fn turn(w: Turn<'_>) -> Result<(), String> {
    let db = database(w.dir);
    if !db.join(kingtide::names::CURRENT).exists() {
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
        let output =
            Command::new(w.program).args(&step).output().map_err(|e| format!("{}: {e}", w.program.display()))?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            if text.contains(KNOWN) {
                (w.count)("refused by the other build for its known bug");
                return Ok(());
            }
            return Err(format!("REFUSED: the other build's kt {}: {}: {text}", step.join(" "), output.status));
        }
        (w.count)(&format!("turns of the other build: {}", step[0]));
        if step[0] == "put" {
            w.foreign.insert(slot, value.clone());
            let lines: Vec<String> = w.foreign.iter().map(|(slot, value)| format!("{slot} {value}\n")).collect();
            std::fs::write(w.dir.join("foreign"), lines.concat()).map_err(|e| e.to_string())?;
        }
    }
    debug_assert_eq!(DEFAULT, 0, "kt put writes to the default family");
    Ok(())
}
