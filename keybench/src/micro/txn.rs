//! The loops of transactions. A transaction's operations are drawn before it begins, so that one that had to give way does
//! the same again; its latency runs from its first beginning to its commit, retries included.
//!
//! What reads may answer is known without a copy of the data: an entry's value holds a number on top of its tag
//! ([`Values::count`]), which is 0 when it is loaded. A read-modify-write adds 1 to it, so that in the end each entry must
//! hold exactly as many as committed transactions added; the choices are drawn again from their seeds for that. Other
//! puts write a number that no other put writes, so that a transaction knows its own.

use super::expected::{draws, expected_entries};
use super::outcome::Outcome;
use super::picker::Picker;
use super::spec::Workload;
use super::verify::{Tally, show, whole_store};
use super::work::{Shared, Worker};
use crate::data::Values;
use crate::engine::Session;
use crate::engine::txn::{Isolation, Step};
use crate::error::{Error, Result};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use std::time::{Duration, Instant};

/// How long a transaction may be retried before that is a failure.
const RETRY_LIMIT: Duration = Duration::from_secs(120);

/// One operation.
struct Op {
    id: u64,
    write: bool,
    /// The last operation before it, in the same transaction, on the same entry.
    earlier: Option<usize>,
}

/// Which operation of the current transaction met an entry last: a hash table that is emptied by counting on.
struct Met {
    slots: Vec<(u64, u64, usize)>,
    transaction: u64,
}

impl Met {
    fn new(size: usize) -> Met {
        Met { slots: vec![(0, 0, 0); (4 * size).next_power_of_two()], transaction: 0 }
    }

    fn next_transaction(&mut self) {
        self.transaction += 1;
    }

    /// Notes that operation `at` is on `entry`; returns the one before on the same.
    fn meet(&mut self, entry: u64, at: usize) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = mix64(entry) as usize & mask;
        loop {
            let (transaction, known, earlier) = &mut self.slots[slot];
            if *transaction != self.transaction {
                (*transaction, *known, *earlier) = (self.transaction, entry, at);
                return None;
            }
            if *known == entry {
                return Some(std::mem::replace(earlier, at));
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// One transaction's operations, filled again and again.
struct Room {
    ops: Vec<Op>,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// The number that each operation read, or wrote last.
    seen: Vec<u64>,
    met: Met,
    /// Chooses between reads and writes.
    coin: Rng,
    /// The number that this thread's next put writes.
    stamp: u64,
}

impl Room {
    fn new(worker: &Worker<'_>, size: usize) -> Room {
        let Shared { keys, values, spec, .. } = worker.shared;
        let thread = worker.thread as u64 + 1;
        Room {
            ops: Vec::with_capacity(size),
            keys: vec![0; size * keys.size()],
            values: vec![0; size * values.size()],
            seen: vec![0; size],
            met: Met::new(size),
            coin: Rng::new(spec.seed ^ 5 ^ (thread << 32)),
            stamp: thread << 40,
        }
    }

    /// Draws the next transaction's operations and makes their keys and values.
    fn draw(&mut self, picker: &mut Picker, n: usize, shared: &Shared<'_>) {
        let Shared { keys, values, spec, .. } = shared;
        let (k, v) = (keys.size(), values.size());
        self.ops.clear();
        self.met.next_transaction();
        for i in 0..n {
            let entry = picker.next();
            let id = keys.id(entry);
            let write = spec.workload != Workload::TxnMixed || self.coin.below(2) == 0;
            self.ops.push(Op { id, write, earlier: self.met.meet(entry, i) });
            keys.write(id, &mut self.keys[i * k..(i + 1) * k]);
            self.seen[i] = 0;
            if write {
                values.write(id, &mut self.values[i * v..(i + 1) * v]);
            }
            if write && spec.workload == Workload::TxnMixed {
                self.stamp += 1;
                self.seen[i] = self.stamp;
                values.set_count(id, self.stamp, &mut self.values[i * v..(i + 1) * v]);
            }
        }
    }
}

impl Worker<'_> {
    /// Transactions, until this thread has done its share of the operations.
    pub fn transactions(&mut self) -> Result<()> {
        let spec = self.shared.spec;
        let mut picker = Picker::for_txn(spec, self.thread);
        let mut room = Room::new(self, spec.txn.size);
        let mut left = self.quota(spec.operations);
        while left > 0 && !self.stopped() {
            let n = left.min(spec.txn.size as u64) as usize;
            room.draw(&mut picker, n, self.shared);
            let clock = &self.shared.clock;
            let from = clock.now();
            self.until_committed(&mut room)?;
            self.latencies[0].record(clock.ns(from, clock.now()));
            self.ops[0] += n as u64;
            self.txn.commits += 1;
            self.txn.writes += room.ops.iter().filter(|op| op.write).count() as u64;
            left -= n as u64;
        }
        Ok(())
    }

    fn until_committed(&mut self, room: &mut Room) -> Result<()> {
        let mut since = None;
        loop {
            if self.attempt(room)? == Step::Done(()) {
                return Ok(());
            }
            self.session.rollback()?;
            self.txn.aborts += 1;
            if since.is_some() {
                // Refused again: the thread in the way may be waiting for this processor.
                std::thread::yield_now();
            }
            if since.get_or_insert_with(Instant::now).elapsed() > RETRY_LIMIT {
                return Err(Error::failed(format!("a transaction failed with conflicts for {RETRY_LIMIT:?}")));
            }
            if self.stopped() {
                return Ok(());
            }
        }
    }

    fn attempt(&mut self, room: &mut Room) -> Result<Step<()>> {
        let spec = self.shared.spec;
        let for_update = spec.txn.reads_for_update();
        self.session.begin(spec.txn.how)?;
        for i in 0..room.ops.len() {
            let step = match spec.workload {
                Workload::TxnRmw => self.add_one(room, i, for_update)?,
                _ if room.ops[i].write => self.txn_put(room, i)?,
                _ => self.txn_get(room, i, false)?,
            };
            if step == Step::Conflict {
                return Ok(step);
            }
        }
        self.session.commit()
    }

    fn txn_put(&mut self, room: &Room, i: usize) -> Result<Step<()>> {
        let (k, v) = (self.shared.keys.size(), self.shared.values.size());
        self.session.txn_put(&room.keys[i * k..(i + 1) * k], &room.values[i * v..(i + 1) * v])
    }

    /// Gets operation `i`'s entry, checks it, and notes its number.
    fn txn_get(&mut self, room: &mut Room, i: usize, for_update: bool) -> Result<Step<()>> {
        let Shared { keys, values, spec, .. } = self.shared;
        let k = keys.size();
        let (key, op) = (&room.keys[i * k..(i + 1) * k], &room.ops[i]);
        let mut count = None;
        let mut found = |v: &[u8]| count = values.count(op.id, v);
        let step = if for_update {
            self.session.txn_get_for_update(key, &mut found)?
        } else {
            self.session.txn_get(key, &mut found)?
        };
        let Step::Done(found) = step else { return Ok(Step::Conflict) };
        // What the transaction wrote it must find again, and what it read where reads repeat.
        let repeats = spec.txn.how.isolation >= Isolation::RepeatableRead;
        let known = op.earlier.filter(|&e| room.ops[e].write || repeats).map(|e| room.seen[e]);
        let possible = |c: u64| known.map_or(spec.workload != Workload::TxnRmw || c <= spec.operations, |k| c == k);
        self.tally.judge(found && count.is_some_and(possible), || {
            let what = match (found, count, known) {
                (false, ..) => "is lost".to_owned(),
                (true, None, _) => "has a damaged value".to_owned(),
                (true, Some(c), Some(k)) => format!("holds {c}, and the transaction left {k} there"),
                (true, Some(c), None) => format!("holds {c}, more than were ever added"),
            };
            format!("transaction: key {} {what}", show(key))
        });
        room.seen[i] = count.unwrap_or(0);
        Ok(Step::Done(()))
    }

    fn add_one(&mut self, room: &mut Room, i: usize, for_update: bool) -> Result<Step<()>> {
        if self.txn_get(room, i, for_update)? == Step::Conflict {
            return Ok(Step::Conflict);
        }
        let v = self.shared.values.size();
        room.seen[i] += 1;
        let value = &mut room.values[i * v..(i + 1) * v];
        self.shared.values.set_count(room.ops[i].id, room.seen[i], value);
        self.txn_put(room, i)
    }
}

/// Scans the store after transactions that read and wrote loaded entries.
pub fn final_check(shared: &Shared<'_>, session: &mut dyn Session, outcome: &mut Outcome) -> Result<()> {
    let Shared { keys, values, spec, .. } = shared;
    let counts = spec.workload == Workload::TxnRmw;
    let times = if counts { draws(spec) } else { Vec::new() };
    let exist = expected_entries(spec).into_iter().enumerate().filter(|(_, e)| *e);
    let mut expected: Vec<(u64, u64)> =
        exist.map(|(i, _)| (keys.id(i as u64), times.get(i).copied().unwrap_or(0))).collect();
    expected.sort_unstable();
    let (mut lost, mut scratch) = (0, Vec::new());
    let ids: Vec<u64> = expected.iter().map(|e| e.0).collect();
    let tally = whole_store(session, keys, &ids, &mut |tally, at, key, value| {
        let (id, added) = expected[at];
        let holds = whole_count(values, id, value, &mut scratch);
        let missing = if counts { added.saturating_sub(holds.unwrap_or(added)) } else { 0 };
        lost += missing;
        let right = match holds {
            Some(c) if counts => c == added || (c < added && spec.txn.may_lose_updates()),
            Some(_) => true,
            None => false,
        };
        tally.judge(right, || match holds {
            None => format!("scan: key {} has the wrong value {}", show(key), show(value)),
            Some(c) if c < added => format!("scan: key {} lost {missing} of {added} updates", show(key)),
            Some(c) => format!("scan: key {} holds {c}, and {added} were committed", show(key)),
        });
    })?;
    let Tally { verified, wrong, examples, .. } = tally;
    outcome.final_check = (verified, wrong);
    outcome.examples.extend(examples);
    outcome.lost_updates = lost;
    Ok(())
}

/// The number in a value, if the value is whole.
fn whole_count(values: &Values, id: u64, value: &[u8], scratch: &mut Vec<u8>) -> Option<u64> {
    let count = values.count(id, value)?;
    scratch.resize(value.len(), 0);
    values.write(id, scratch);
    values.set_count(id, count, scratch);
    (value == &scratch[..]).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_within_a_transaction_are_known() {
        let mut met = Met::new(4);
        for round in 0..3 {
            met.next_transaction();
            let earlier: Vec<_> = [5, 9, 5, 5].into_iter().enumerate().map(|(i, e)| met.meet(e, i)).collect();
            assert_eq!(earlier, [None, None, Some(0), Some(2)], "round {round}");
        }
    }
}
