//! A lane: draws units, runs them, and reads its own keys in between.

use crate::draw::{self, How};
use crate::execute::{Outcome, execute};
use crate::journal::Record;
use crate::messages::{fail, say};
use crate::model::{LANES, Lane, Op, Unit};
use crate::reads::{self, Snapshots};
use crate::world::World;
use crate::writer::Writer;
use std::time::Duration;

/// Works until the database closes.
pub fn run(world: &World, number: usize, lane: Lane) {
    let (mut w, mut snapshots) = (Writer::new(world, number, lane), Snapshots::default());
    // Now and then a lane sleeps for long, so that what it wrote stays where it is.
    let lazy = w.rng.one_in(4);
    while !world.is_closing() {
        world.beat(number);
        match w.rng.below(100) {
            0..78 => unit(&mut w),
            78..90 => reads::read(&mut w),
            90..93 => snapshots.take(&mut w),
            93..96 => snapshots.check(&mut w),
            96..98 if number < LANES => std::thread::sleep(Duration::from_millis(w.rng.below(4))),
            _ if lazy => std::thread::sleep(Duration::from_millis(w.rng.below(40))),
            _ => {}
        }
    }
    world.beats[number].store(u64::MAX / 2, std::sync::atomic::Ordering::Relaxed);
}

fn unit(w: &mut Writer<'_>) {
    let world = w.world;
    let _gate = world.gate.read();
    let Some((work, how)) = draw::work(w) else { return };
    let unit = Unit { n: w.lane.last + 1, logged: how.is_logged(&work, world.orders.none), work };
    w.lane.last = unit.n;
    if matches!(how, How::Ingest { .. }) {
        say("E ingest");
    }
    world.write(&Record::Begin(w.number, unit.clone()));
    match execute(w, &unit, &how) {
        Outcome::Done(sequence) => {
            world.write(&Record::End(w.number, unit.n, true, sequence));
            let handles = world.handles();
            let there = |op: &Op| handles.iter().any(|h| h.uid == op.family());
            w.lane.apply(w.number, &unit, there);
            world.counts.add(how.name(&unit.work), 1);
        }
        Outcome::Refused => {
            world.write(&Record::End(w.number, unit.n, false, 0));
            world.counts.add("refused", 1);
        }
        Outcome::Failed(e) => fail(&format!("lane {} unit {unit:?} ({how:?}): {e}", w.number)),
    }
}
