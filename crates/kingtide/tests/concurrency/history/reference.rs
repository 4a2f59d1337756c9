//! A store in memory with versions and the five levels, optimistic, that runs transactions of several processes on one
//! thread, interleaved at random. Its histories are right by construction: the checker must find nothing in them, and in
//! those of a weaker level what a stronger one excludes.

use super::recorded::{Finals, History, Key, Op, Outcome, OwnWrites, Txn, Value};
use kingtide::Isolation;
use kingtide_base::rng::Rng;

/// What to run.
#[derive(Clone)]
pub struct Plan {
    /// Each transaction has one of these.
    pub levels: Vec<Isolation>,
    /// One process is a serial history.
    pub processes: usize,
    pub txns: usize,
    /// Keys `0..registers` are registers, those after them lists.
    pub registers: Key,
    pub seed: u64,
}

/// Transactions that share a list before the next one has its turn: a list stays short.
const TURN: usize = 40;
/// Lists in use at a time.
const LISTS: u64 = 4;

impl Plan {
    /// The first key that no transaction uses.
    pub fn unused(&self) -> Key {
        self.registers + (self.txns / TURN) as Key + LISTS as Key + 1
    }
}

/// A transaction that runs.
struct Running {
    txn: Txn,
    own: OwnWrites,
    snapshot: u64,
    /// Keys that must be unchanged since: read with an update in mind, or by a serializable transaction.
    checks: Vec<(Key, u64)>,
}

struct Store {
    /// Versions of each key with their sequence numbers; of a list each element is one.
    versions: Vec<Vec<(u64, Option<Value>)>>,
    seq: u64,
    clock: u64,
    next_value: Value,
    running: Vec<Option<Running>>,
    done: Vec<Txn>,
    rng: Rng,
    plan: Plan,
}

/// Runs a plan to its end.
pub fn generate(plan: &Plan) -> History {
    let mut store = Store {
        versions: vec![Vec::new(); plan.unused() as usize],
        seq: 0,
        clock: 0,
        next_value: 0,
        running: (0..plan.processes).map(|_| None).collect(),
        done: Vec::new(),
        rng: Rng::new(plan.seed),
        plan: plan.clone(),
    };
    while store.done.len() < plan.txns {
        let process = store.rng.below(plan.processes as u64) as usize;
        store.step(process);
    }
    while let Some(running) = store.running.iter_mut().find_map(Option::take) {
        store.finish(running, Outcome::Aborted);
    }
    let (registers, unused) = (plan.registers, plan.unused());
    let newest = |key: Key| store.versions[key as usize].last().and_then(|v| v.1);
    let list = |key: Key| store.versions[key as usize].iter().filter_map(|v| v.1).collect();
    let finals = Finals {
        lists: (registers..unused).map(|k| (k, list(k))).collect(),
        registers: (0..registers).map(|k| (k, newest(k))).collect(),
    };
    History { txns: store.done, finals: Some(finals) }
}

impl Store {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn step(&mut self, process: usize) {
        let Some(mut running) = self.running[process].take() else {
            self.running[process] = Some(self.begin(process));
            return;
        };
        let end = running.txn.ops.len() >= 2 && self.rng.one_in(4);
        if end && self.rng.one_in(12) {
            return self.finish(running, Outcome::Aborted);
        }
        if end {
            let outcome = self.commit(&running);
            return self.finish(running, outcome);
        }
        if self.operate(&mut running) {
            self.running[process] = Some(running);
        } else {
            self.finish(running, Outcome::Aborted);
        }
    }

    fn begin(&mut self, process: usize) -> Running {
        let level = self.plan.levels[self.rng.below(self.plan.levels.len() as u64) as usize];
        let txn = Txn {
            process: process as u32,
            level,
            locking: false,
            begin: self.tick(),
            end: 0,
            snapshot: Some(self.seq),
            outcome: Outcome::Aborted,
            ops: Vec::new(),
        };
        Running { txn, own: OwnWrites::default(), snapshot: self.seq, checks: Vec::new() }
    }

    fn finish(&mut self, running: Running, outcome: Outcome) {
        let end = self.tick();
        self.done.push(Txn { end, outcome, ..running.txn });
    }

    fn newest(&self, key: Key) -> u64 {
        self.versions[key as usize].last().map_or(0, |v| v.0)
    }

    fn commit(&mut self, running: &Running) -> Outcome {
        let level = running.txn.level;
        let own = running.own.all();
        let overtaken = |w: &super::recorded::OwnWrite| self.newest(w.key) > running.snapshot;
        if level >= Isolation::Snapshot && own.iter().any(overtaken) {
            return Outcome::Aborted;
        }
        if !own.is_empty() && running.checks.iter().any(|(key, seen)| self.newest(*key) != *seen) {
            return Outcome::Aborted;
        }
        let seq = self.seq + own.len() as u64;
        for (i, write) in own.iter().enumerate() {
            if write.append || running.own.is_last(i) {
                self.versions[write.key as usize].push((seq, write.value));
            }
        }
        self.seq = seq;
        Outcome::Committed(seq)
    }

    fn value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    /// One random operation. `false`: it cannot be done, the transaction must abort.
    fn operate(&mut self, running: &mut Running) -> bool {
        let register = self.rng.below(self.plan.registers as u64) as Key;
        let list = self.plan.registers + (self.done.len() / TURN) as Key + self.rng.below(LISTS) as Key;
        match self.rng.below(20) {
            0..5 => self.read(running, register, false),
            5..7 => self.read(running, register, true),
            7..11 => {
                let value = if self.rng.one_in(5) { None } else { Some(self.value()) };
                self.record(running, Op::Write { key: register, value });
                true
            }
            11..14 => self.read_range(running, register),
            14..16 => self.read_list(running, list, false),
            16..19 => {
                // Below snapshot only a protected read makes an append safe.
                let current = running.txn.level < Isolation::Snapshot || self.rng.one_in(2);
                if !self.read_list(running, list, current) {
                    return false;
                }
                let elem = self.value();
                self.record(running, Op::Append { key: list, elem });
                true
            }
            _ => {
                let to = self.rng.below(running.txn.ops.len() as u64 + 1) as usize;
                self.record(running, Op::RollBack { to });
                true
            }
        }
    }

    fn record(&mut self, running: &mut Running, op: Op) {
        running.own.apply(running.txn.ops.len(), &op);
        running.txn.ops.push(op);
    }

    /// The sequence number up to which a read sees, `None` if a read for update comes too late.
    fn horizon(&self, running: &mut Running, key: Key, current: bool) -> Option<u64> {
        let level = running.txn.level;
        if current {
            if level >= Isolation::Snapshot && self.newest(key) > running.snapshot {
                return None;
            }
            // What it read first is what must not change.
            if !running.checks.iter().any(|c| c.0 == key) {
                running.checks.push((key, self.newest(key)));
            }
            return Some(u64::MAX);
        }
        if level == Isolation::Serializable {
            let seen = self.versions[key as usize].iter().rev().map(|v| v.0).find(|s| *s <= running.snapshot);
            running.checks.push((key, seen.unwrap_or(0)));
        }
        Some(if level >= Isolation::RepeatableRead { running.snapshot } else { u64::MAX })
    }

    fn committed(&self, key: Key, horizon: u64) -> Option<Value> {
        self.versions[key as usize].iter().rev().find(|v| v.0 <= horizon).and_then(|v| v.1)
    }

    /// What a running transaction of another process wrote to a key.
    fn dirty(&self, key: Key) -> Option<Option<Value>> {
        self.running.iter().flatten().find_map(|r| r.own.last(key)).map(|w| w.value)
    }

    fn read(&mut self, running: &mut Running, key: Key, current: bool) -> bool {
        let Some(horizon) = self.horizon(running, key, current) else { return false };
        let dirty = self.dirty(key).filter(|_| running.txn.level == Isolation::ReadUncommitted && !current);
        let own = running.own.last(key).map(|w| w.value);
        let value = own.or(dirty).unwrap_or_else(|| self.committed(key, horizon));
        self.record(running, Op::Read { key, value, current });
        true
    }

    fn read_range(&mut self, running: &mut Running, lo: Key) -> bool {
        let hi = (lo + 1 + self.rng.below(6) as Key).min(self.plan.registers);
        let mut found = Vec::new();
        for key in lo..hi {
            let Some(horizon) = self.horizon(running, key, false) else { return false };
            let own = running.own.last(key).map(|w| w.value);
            let value = own.unwrap_or_else(|| self.committed(key, horizon));
            found.extend(value.map(|v| (key, v)));
        }
        self.record(running, Op::ReadRange { lo, hi, found: found.into() });
        true
    }

    fn read_list(&mut self, running: &mut Running, key: Key, current: bool) -> bool {
        // An append stands on the read before the first one: from then on the transaction sees its own list.
        let Some(horizon) = self.horizon(running, key, current) else { return false };
        let own = running.own.appended(key);
        let first = running.own.all().iter().find(|w| w.key == key).map(|w| w.op);
        let base: Vec<Value> = match first {
            None => self.versions[key as usize].iter().filter(|v| v.0 <= horizon).filter_map(|v| v.1).collect(),
            Some(op) => {
                let base = running.txn.ops[..op].iter().rev().find_map(|o| match o {
                    Op::ReadList { key: k, list, .. } if *k == key => Some(list.to_vec()),
                    _ => None,
                });
                base.unwrap_or_default()
            }
        };
        let mut list = base;
        list.extend(&own);
        if running.txn.level == Isolation::ReadUncommitted && !current && own.is_empty() {
            list.extend(self.running.iter().flatten().flat_map(|r| r.own.appended(key)));
        }
        self.record(running, Op::ReadList { key, list: list.into(), current });
        true
    }
}
