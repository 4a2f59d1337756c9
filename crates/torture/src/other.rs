//! Turns of another build: its `kt` recovers, verifies, writes and merges a database that was killed or closed.

use crate::model::{DEFAULT, FOREIGN, key};
use crate::places;
use kingtide_base::rng::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What a build before its fix says of a log whose recorded start went back.
const KNOWN: &str = "a segment is missing";

/// What a build says that has not got an option which the database's file of options names.
const UNKNOWN_OPTION: &str = "unknown option '";

/// Why the other build may refuse, if what it said is no failure of either build.
fn excuse(said: &str) -> Option<&'static str> {
    if said.contains(KNOWN) {
        return Some("refused by the other build for its known bug");
    }
    said.contains(UNKNOWN_OPTION).then_some("refused by the other build for an option that it has not got")
}

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
    let db = places::database(w.dir);
    if !db.join(kingtide_base::names::CURRENT).exists() {
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
            if let Some(why) = excuse(&text) {
                (w.count)(why);
                return Ok(());
            }
            return Err(format!("REFUSED: the other build's kt {}: {}: {text}", step.join(" "), output.status));
        }
        (w.count)(&format!("turns of the other build: {}", step[0]));
        if step[0] == "put" {
            w.foreign.insert(slot, value.clone());
            let lines: Vec<String> = w.foreign.iter().map(|(slot, value)| format!("{slot} {value}\n")).collect();
            std::fs::write(places::foreign(w.dir), lines.concat()).map_err(|e| e.to_string())?;
        }
    }
    debug_assert_eq!(DEFAULT, 0, "kt put writes to the default family");
    Ok(())
}

/// A refusal is excused for the known bug and for options, and for nothing else.
///
/// # Panics
/// If another is, or if one of these is not.
pub fn check_itself() {
    assert!(excuse("kt: write-ahead log: a segment is missing").is_some());
    assert!(excuse("kt: db: unknown option 'direct_value_threshold'").is_some());
    assert_eq!(excuse("kt: the manifest is damaged at offset 17"), None);
}
