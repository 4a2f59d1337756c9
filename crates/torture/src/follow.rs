//! A follower of the change stream: what it is shown must be what lanes write, each lane's units in order.

use crate::contents::check_value;
use crate::messages::fail;
use crate::model::{ACCOUNT, LANES, PREPARED, parse_key};
use crate::world::World;
use kingtide::{ChangeKind, ChangeRecord, ChangeStreamOptions, ErrorKind};
use kingtide_base::rng::Rng;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FOLLOWER: usize = LANES + 2;

/// Follows until the database closes.
pub fn run(world: &World) {
    let mut rng = Rng::new(world.orders.seed ^ world.orders.session ^ 0xf0);
    let options = ChangeStreamOptions::new().durable_only(rng.one_in(3)).show_unlogged(true);
    let mut from = if rng.one_in(2) { world.db.latest_sequence() } else { world.db.oldest_change_sequence() };
    let mut last = [0; LANES];
    'stream: while !world.is_closing() {
        let mut stream = match world.db.changes_with(from, options) {
            Ok(stream) => stream,
            Err(e) if e.kind() == ErrorKind::Closed && world.is_closing() => break,
            Err(e) if e.kind() == ErrorKind::TooOld => {
                world.counts.add("streams that fell behind", 1);
                (from, last) = (world.db.latest_sequence(), [0; LANES]);
                continue;
            }
            Err(e) => fail(&format!("changes_with({from}): {e}")),
        };
        loop {
            world.beat(FOLLOWER);
            if world.is_closing() {
                break 'stream;
            }
            match stream.wait_next(Duration::from_millis(20)) {
                Ok(None) => {}
                Ok(Some(record)) => {
                    if record.first_sequence <= from {
                        fail(&format!("WRONG: the stream shows {} after {from}", record.first_sequence));
                    }
                    from = record.last_sequence;
                    world.counts.add("changes followed", 1);
                    if let Err(e) = check(&record, &mut last) {
                        fail(&format!("WRONG: change record {} to {from}: {e}", record.first_sequence));
                    }
                }
                Err(e) if e.kind() == ErrorKind::TooOld => {
                    world.counts.add("streams that fell behind", 1);
                    (from, last) = (world.db.latest_sequence(), [0; LANES]);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Closed && world.is_closing() => break 'stream,
                Err(e) => fail(&format!("stream behind {from}: {e}")),
            }
            if rng.one_in(500) {
                break; // and go on with a stream of its own
            }
        }
    }
    world.beats[FOLLOWER].store(u64::MAX / 2, Ordering::Relaxed);
}

fn check(record: &ChangeRecord, last: &mut [u64; LANES]) -> Result<(), String> {
    for change in record.operations().filter(|c| c.kind == ChangeKind::Put) {
        // Without the family's order only one of these reads the key.
        let Some((lane, slot)) = parse_key(0, change.key).or_else(|| parse_key(2, change.key)) else {
            return Err(format!("key {:?}", change.key));
        };
        if lane >= ACCOUNT || usize::from(lane) >= LANES {
            continue;
        }
        let id = check_value(usize::from(lane), slot, change.value, &mut Vec::new())?;
        let unit = id >> 12 & 0xfff_ffff_ffff;
        let last = &mut last[usize::from(lane)];
        // A prepared transaction shows when it commits.
        if slot < PREPARED && unit < *last {
            return Err(format!("unit {unit} of lane {lane} after {last}"));
        }
        if slot < PREPARED {
            *last = unit;
        }
    }
    Ok(())
}
