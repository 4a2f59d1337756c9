//! Draws what a lane does next.

use crate::contents::now_ms;
use crate::model::{
    ACCOUNTS, DEFAULT, MARKER, MOST_PREPARED, ONCE, Op, PREPARED, PREPARED_SLOTS, Work, key, order, slots,
};
use crate::settings::logged_durability;
use crate::world::Handle;
use crate::writer::Writer;
use kingtide::{Durability, Isolation};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a unit is run.
#[derive(Clone, Debug)]
pub enum How {
    /// One call for one key.
    Single,
    Batch(Option<Durability>),
    Transaction {
        isolation: Isolation,
        locking: bool,
        durability: Option<Durability>,
        detour: bool,
    },
    Ingest {
        move_files: bool,
        verify: bool,
    },
    /// Prepared, and then left alone.
    Prepare {
        locking: bool,
        durability: Option<Durability>,
    },
    Decide,
}

impl How {
    /// Whether it goes to the log, or to tables at once.
    pub fn is_logged(&self, work: &Work, none: bool) -> bool {
        let durability = match self {
            How::Single => None,
            How::Batch(durability) | How::Transaction { durability, .. } => *durability,
            How::Ingest { .. } | How::Prepare { .. } | How::Decide => return true,
        };
        let Work::Commit(ops) = work else { return true };
        let one_family = ops.iter().all(|op| op.family() == ops[0].family());
        let unlogged = durability.map_or(none, |d| d == Durability::None);
        !(unlogged && one_family)
    }

    /// For counting.
    pub fn name(&self, work: &Work) -> &'static str {
        match (self, work) {
            (How::Single, _) => "single writes",
            (How::Batch(_), _) => "batches",
            (How::Transaction { locking: true, .. }, _) => "locking transactions",
            (How::Transaction { .. }, _) => "optimistic transactions",
            (How::Ingest { .. }, _) => "ingests",
            (How::Prepare { .. }, _) => "prepares",
            (How::Decide, Work::Decide(_, true)) => "commits of prepared transactions",
            (How::Decide, _) => "rollbacks of prepared transactions",
        }
    }
}

/// Something to do, or nothing.
pub fn work(w: &mut Writer<'_>) -> Option<(Work, How)> {
    match w.rng.below(1000) {
        0..400 => Some(single(w)),
        400..650 => Some(batch(w)),
        650..800 => Some(transaction(w)),
        800..880 => Some(transfer(w)),
        880..930 => prepare(w),
        930..990 => decide(w),
        _ => Some(ingest(w)),
    }
}

fn slot(w: &mut Writer<'_>, uid: u32) -> u16 {
    1 + w.rng.below(u64::from(slots(uid))) as u16
}

/// When something expires that does.
fn expiry(w: &mut Writer<'_>) -> u64 {
    let life = match w.rng.below(3) {
        0 => w.rng.below(100),
        1 => w.rng.below(4_000),
        _ => 3_600_000,
    };
    now_ms() + life
}

/// Operations on some family. `once` holds the slots of [`ONCE`] that this unit has used.
fn draw_op(w: &mut Writer<'_>, handle: &Arc<Handle>, once: &mut BTreeSet<(u32, u16)>, logged: bool) -> Op {
    let uid = handle.uid;
    match w.rng.below(100) {
        0..60 => Op::Put(uid, slot(w, uid), 0),
        60..68 => Op::Put(uid, slot(w, uid), expiry(w)),
        68..84 => Op::Delete(uid, slot(w, uid)),
        84..88 => {
            let from = slot(w, uid);
            Op::DeleteRange(uid, from, from + 1 + w.rng.below(12) as u16)
        }
        88 if handle.family.order == 0 => Op::DeletePrefix(uid, w.rng.below(2) as u8),
        // A put that a kill takes and a single delete that it leaves would not match.
        _ if logged => {
            let slot = ONCE.start + w.rng.below(ONCE.len() as u64) as u16;
            match once.insert((uid, slot)) {
                false => Op::Delete(uid, 1),
                true if w.lane.keys.contains_key(&(uid, slot)) => Op::SingleDelete(uid, slot),
                true => Op::Put(uid, slot, 0),
            }
        }
        _ => Op::Put(uid, slot(w, uid), 0),
    }
}

fn single(w: &mut Writer<'_>) -> (Work, How) {
    let handle = w.pick();
    let logged = !w.world.orders.none;
    let op = draw_op(w, &handle, &mut BTreeSet::new(), logged);
    (Work::Commit(vec![op]), How::Single)
}

fn durability(w: &mut Writer<'_>) -> Option<Durability> {
    w.rng.one_in(3).then(|| logged_durability(&mut w.rng))
}

fn some_ops(w: &mut Writer<'_>, most_families: u64, most: u64, logged: bool) -> Vec<Op> {
    let families = 1 + w.rng.below(most_families);
    let handles: Vec<Arc<Handle>> = (0..families).map(|_| w.pick()).collect();
    let count = if w.rng.one_in(10) { 10 * most } else { most };
    let count = 1 + w.rng.below(count);
    let mut once = BTreeSet::new();
    (0..count)
        .map(|_| {
            let handle = &handles[w.rng.below(families) as usize];
            draw_op(w, handle, &mut once, logged)
        })
        .collect()
}

fn batch(w: &mut Writer<'_>) -> (Work, How) {
    let durability = durability(w);
    let logged = !w.world.orders.none || durability.is_some();
    let most_families = if w.rng.one_in(2) { 1 } else { 4 };
    (Work::Commit(some_ops(w, most_families, 12, logged)), How::Batch(durability))
}

const ISOLATION: [Isolation; 5] = [
    Isolation::ReadUncommitted,
    Isolation::ReadCommitted,
    Isolation::RepeatableRead,
    Isolation::Snapshot,
    Isolation::Serializable,
];

fn transaction(w: &mut Writer<'_>) -> (Work, How) {
    let durability = durability(w);
    let logged = !w.world.orders.none || durability.is_some();
    let isolation = ISOLATION[w.rng.below(5) as usize];
    let (locking, detour) = (w.rng.one_in(2), w.rng.one_in(3));
    (Work::Commit(some_ops(w, 3, 6, logged)), How::Transaction { isolation, locking, durability, detour })
}

/// Moves an amount from one account to another, and writes keys of the lane.
fn transfer(w: &mut Writer<'_>) -> (Work, How) {
    let from = w.rng.below(ACCOUNTS as u64) as u8;
    let to = (from + 1 + w.rng.below(ACCOUNTS as u64 - 1) as u8) % ACCOUNTS as u8;
    let amount = 1 + w.rng.below(100).cast_signed();
    let mut ops = if w.rng.one_in(2) { some_ops(w, 2, 4, true) } else { Vec::new() };
    // Behind ranges that would delete it.
    ops.extend([Op::Put(DEFAULT, MARKER, 0), Op::Add(from, -amount), Op::Add(to, amount)]);
    let isolation = if w.rng.one_in(2) { Isolation::Snapshot } else { Isolation::Serializable };
    let durability = Some(logged_durability(&mut w.rng));
    let locking = w.rng.one_in(2);
    (Work::Commit(ops), How::Transaction { isolation, locking, durability, detour: false })
}

fn prepare(w: &mut Writer<'_>) -> Option<(Work, How)> {
    let number = w.rng.below(u64::from(MOST_PREPARED)) as u8;
    if w.is_in_doubt(number) {
        return None;
    }
    let first = PREPARED + u16::from(number) * PREPARED_SLOTS;
    let handles: Vec<Arc<Handle>> = (0..1 + w.rng.below(2)).map(|_| w.pick()).collect();
    let count = 1 + w.rng.below(5);
    let mut ops = Vec::new();
    for _ in 0..count {
        let uid = handles[w.rng.below(handles.len() as u64) as usize].uid;
        let slot = first + w.rng.below(u64::from(PREPARED_SLOTS)) as u16;
        ops.push(if w.rng.one_in(4) { Op::Delete(uid, slot) } else { Op::Put(uid, slot, 0) });
    }
    let durability = durability(w);
    Some((Work::Prepare(number, ops), How::Prepare { locking: w.rng.one_in(2), durability }))
}

fn decide(w: &mut Writer<'_>) -> Option<(Work, How)> {
    let number = w.rng.below(u64::from(MOST_PREPARED)) as u8;
    // One of the numbers stays in doubt for long, over restarts.
    let wait = number == 0 && !w.rng.one_in(20);
    if !w.is_in_doubt(number) || wait {
        return None;
    }
    Some((Work::Decide(number, !w.rng.one_in(3)), How::Decide))
}

/// Sorted files for one or two families: first what they delete, then their keys in order.
fn ingest(w: &mut Writer<'_>) -> (Work, How) {
    let mut handles = vec![w.pick()];
    let other = w.pick();
    if other.uid != handles[0].uid && w.rng.one_in(2) {
        handles.push(other);
    }
    let mut ops = Vec::new();
    for handle in handles {
        let uid = handle.uid;
        if w.rng.one_in(3) {
            let from = slot(w, uid);
            ops.push(Op::DeleteRange(uid, from, from + 1 + w.rng.below(30) as u16));
        }
        let count = 1 + w.rng.below(60);
        let chosen: BTreeSet<u16> = (0..count).map(|_| slot(w, uid)).collect();
        let mut chosen: Vec<u16> = chosen.into_iter().collect();
        let (code, lane) = (handle.family.order, w.number as u8);
        chosen.sort_by(|a, b| order(code).compare(&key(code, lane, *a), &key(code, lane, *b)));
        for slot in chosen {
            ops.push(match w.rng.below(8) {
                0 => Op::Delete(uid, slot),
                1 => Op::Put(uid, slot, expiry(w)),
                _ => Op::Put(uid, slot, 0),
            });
        }
    }
    (Work::Commit(ops), How::Ingest { move_files: w.rng.one_in(2), verify: w.rng.one_in(2) })
}
