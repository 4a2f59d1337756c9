//! A process that opens the database for reading only while a child writes it and is killed: what it sees must be in
//! order, whole and of the tester's making, and never go back.

use crate::contents::check_value;
use crate::messages::say;
use crate::model::{ACCOUNT, LANES, id_in, parse_key};
use crate::places::database;
use kingtide::{Db, Error, ErrorKind, Options};
use std::path::Path;
use std::time::Duration;

/// Looks a few times.
pub fn run(dir: &Path) -> Result<(), String> {
    let mut options = Options::default();
    options.db.create_if_missing = false;
    let options = match options.load(database(dir)) {
        Ok(options) => options,
        Err(e) => return Err(format!("a reader beside the child cannot load the options: {e}")),
    };
    let db = Db::open_read_only(database(dir), options).map_err(|e| format!("REFUSED: open_read_only: {e}"))?;
    say("C opened for reading beside the child 1");
    let mut last = [0; LANES];
    let mut sequence = db.latest_sequence();
    for _ in 0..6 {
        look(&db, &mut last)?;
        std::thread::sleep(Duration::from_millis(15));
        match db.try_catch_up() {
            Ok(now) if now < sequence => return Err(format!("WRONG: caught up from {sequence} back to {now}")),
            Ok(now) => sequence = now,
            // The child was killed and the next opened the database without what was in no log: an earlier state.
            Err(e) if e.kind() == ErrorKind::Incompatible => break,
            Err(e) => return Err(format!("REFUSED: try_catch_up: {e}")),
        }
    }
    crate::rare::report();
    Ok(())
}

fn look(db: &Db, last: &mut [u64; LANES]) -> Result<(), String> {
    let mut seen = [0; LANES];
    for name in db.families() {
        let family = match db.family(&name) {
            Ok(family) => family,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(e.to_string()),
        };
        let code = match family.order().name() {
            "reverse" => 1,
            "u64" => 2,
            _ => 0,
        };
        let wrong = |e: Error| format!("a reader beside the child, family '{name}': {e}");
        let mut it = family.cursor(..).map_err(wrong)?;
        it.seek_to_first();
        let (mut before, mut sum): (Option<Vec<u8>>, i64) = (None, 0);
        while it.valid() {
            let (key, value) = it.entry().map_err(wrong)?;
            if before.as_ref().is_some_and(|b| family.order().compare(b, key).is_ge()) {
                return Err(format!("WRONG: a reader sees key {key:?} after {before:?} in '{name}'"));
            }
            before = Some(key.to_vec());
            let Some((lane, slot)) = parse_key(code, key) else {
                return Err(format!("WRONG: a reader sees key {key:?} in '{name}'"));
            };
            if usize::from(lane) < LANES {
                check_value(usize::from(lane), slot, value, &mut Vec::new()).map_err(|e| format!("a reader: {e}"))?;
                let unit = id_in(value).unwrap_or(0) >> 12 & 0xfff_ffff_ffff;
                seen[usize::from(lane)] = seen[usize::from(lane)].max(unit);
            }
            if lane == ACCOUNT && name == "default" {
                sum += value.try_into().map_or(0, i64::from_le_bytes);
            }
            it.next();
        }
        it.status().map_err(wrong)?;
        if sum != 0 {
            return Err(format!("WRONG: a reader sees a part of a transfer: the accounts add up to {sum}"));
        }
    }
    *last = seen;
    Ok(())
}
