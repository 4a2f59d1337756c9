//! Draws a script: operations that are a function of class and seed alone, and what each must answer.

use crate::model::answer::Answer;
use crate::model::ops::{Change, FAMILIES, HELD, Key, Move, Op, Range, SNAPSHOTS, TxnOp, Value, Write};
use crate::model::oracle::Window;
use crate::model::sets::Class;
use crate::model::world::{REMEMBERED, World};
use kingtide::{Isolation, KeyOrder};
use kingtide_base::hash::{hash64, mix64};
use kingtide_base::rng::Rng;
use std::ops::Bound;

pub struct Script {
    pub class: &'static Class,
    pub ops: Vec<Op>,
    /// The oracle's answers.
    pub expected: Vec<u64>,
}

impl Script {
    pub fn new(class: &'static Class, seed: u64, length: usize) -> Script {
        let mut g = Generator {
            rng: Rng::new(hash64(class.name.as_bytes()) ^ mix64(seed)),
            world: World::new(class),
            script: Script { class, ops: Vec::with_capacity(length), expected: Vec::with_capacity(length) },
            names: 0,
        };
        while g.script.ops.len() < length {
            g.step();
        }
        for op in [Op::Scan(None), Op::Reopen, Op::Compact(0, None, None), Op::Scan(None)] {
            g.emit(op);
        }
        g.script
    }

    /// One number for all answers.
    pub fn digest(&self) -> u64 {
        self.expected.iter().fold(0, |sum, answer| mix64(sum ^ answer))
    }

    /// What an operation must answer, in words.
    pub fn explain(&self, at: usize) -> String {
        let mut world = World::new(self.class);
        self.ops[..at].iter().for_each(|op| world.apply(op, &mut Answer::default()));
        let mut answer = Answer::in_words();
        world.apply(&self.ops[at], &mut answer);
        answer.words.unwrap_or_default()
    }
}

struct Generator {
    rng: Rng,
    world: World,
    script: Script,
    names: u64,
}

const LEVELS: [Isolation; 5] = [
    Isolation::ReadUncommitted,
    Isolation::ReadCommitted,
    Isolation::RepeatableRead,
    Isolation::Snapshot,
    Isolation::Serializable,
];

impl Generator {
    fn emit(&mut self, op: Op) {
        let mut answer = Answer::default();
        self.world.apply(&op, &mut answer);
        self.script.ops.push(op);
        self.script.expected.push(answer.hash);
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    // Arguments.

    /// A slot of a family: mostly the default, so that one family gets deep.
    fn family(&mut self) -> usize {
        let there: Vec<usize> = (0..FAMILIES).filter(|f| self.world.families[*f].is_some()).collect();
        if self.rng.one_in(2) { 0 } else { there[self.below(there.len())] }
    }

    fn key(&mut self, f: usize) -> Key {
        let order = self.world.family(f).borrow().order.clone();
        let class = self.world.class;
        // Half of the accesses go to a tenth of the keys.
        let range = if self.rng.one_in(2) { class.keys.div_ceil(10) } else { class.keys };
        let n = self.rng.below(range);
        if matches!(order, KeyOrder::U64 | KeyOrder::I64) && !n.is_multiple_of(31) {
            let number = if n.is_multiple_of(3) { mix64(n) } else { (n as i64 - 1000) as u64 };
            return Key(number.to_le_bytes().to_vec());
        }
        let group = (b'a' + (n % 11) as u8) as char;
        let mut key = format!("{group}{}{:04}", ["", "xy", "Z\u{ff}"][n as usize % 3], n / 11).into_bytes();
        match n % 17 {
            0 => key.extend_from_slice(&[b'/'; 150]),
            1 => key.truncate(4),
            2 => key.extend_from_slice(&[0, 0xff, n as u8]),
            _ => {}
        }
        if matches!(order, KeyOrder::CaseInsensitive) && self.rng.one_in(2) {
            key.make_ascii_uppercase();
        }
        Key(key)
    }

    fn value(&mut self) -> Value {
        let len = match self.rng.below(400) {
            0 => self.rng.below(40_000),
            1..10 => self.rng.below(2000),
            20..30 => 0,
            _ => self.rng.below(self.world.class.value),
        };
        let mut value = vec![0u8; len as usize];
        if self.rng.one_in(3) {
            self.rng.fill(&mut value); // cannot be compressed
        } else {
            let (a, b) = (self.rng.next_u64() as u8, self.rng.below(7) as usize + 1);
            value.iter_mut().enumerate().for_each(|(i, v)| *v = a.wrapping_add((i / b) as u8));
        }
        Value(value.into())
    }

    /// An end for a range that begins at `start`: mostly not far behind it.
    fn range_end(&mut self, f: usize, start: &Key) -> Key {
        if self.rng.one_in(4) {
            return self.key(f);
        }
        let family = self.world.family(f);
        let m = family.borrow();
        let (now, mut end, mut key) = (self.world.now(), m.canon(start), start.clone());
        for _ in 0..self.rng.below(12) + 1 {
            let Some((next, bytes, _)) = m.first(&Window::ALL, Bound::Excluded(&end), now) else { break };
            (end, key) = (next, Key(bytes.to_vec()));
        }
        key
    }

    /// A prefix, where the order has them.
    fn prefix(&mut self, f: usize) -> Option<Key> {
        let order = self.world.family(f).borrow().order.clone();
        let mut key = self.key(f);
        let keep = 1 + self.below(4);
        key.0.truncate(keep);
        matches!(order, KeyOrder::Bytewise | KeyOrder::Reverse | KeyOrder::CaseInsensitive).then_some(key)
    }

    fn write(&mut self) -> Write {
        let family = self.family();
        let key = self.key(family);
        let change = match self.rng.below(200) {
            0..120 => Change::Put(key, self.value(), None),
            120..150 => Change::Delete(key),
            150..176 if self.may_single_delete(family, &key) => Change::SingleDelete(key),
            150..176 => Change::Delete(key),
            176..193 => Change::Put(key, self.value(), Some(self.rng.below(20_000))),
            193 => match self.prefix(family) {
                Some(prefix) => Change::DeletePrefix(prefix),
                None => Change::Delete(key),
            },
            _ => {
                let end = self.range_end(family, &key);
                Change::DeleteRange(key, end)
            }
        };
        Write { family, change }
    }

    fn may_single_delete(&self, f: usize, key: &Key) -> bool {
        self.world.family(f).borrow().may_single_delete(key)
    }

    /// Single deletes and prefixes are judged by what is committed, and a batch's or transaction's own writes come first.
    fn write_among_others(&mut self) -> Write {
        let write = self.write();
        match write.change {
            Change::SingleDelete(key) => Write { change: Change::Delete(key), ..write },
            Change::DeletePrefix(prefix) => {
                let change = Change::DeleteRange(prefix.clone(), self.range_end(write.family, &prefix));
                Write { change, ..write }
            }
            _ => write,
        }
    }

    fn bound(&mut self, f: usize) -> Bound<Key> {
        match self.rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.key(f)),
            _ => Bound::Excluded(self.key(f)),
        }
    }

    fn range(&mut self) -> Range {
        let family = self.family();
        let (lower, upper) = (self.bound(family), self.bound(family));
        let prefix = if self.rng.one_in(4) { self.prefix(family) } else { None };
        Range { family, lower, upper, prefix }
    }

    fn moves(&mut self, f: usize, from_new: bool) -> Vec<Move> {
        let mut moves = Vec::new();
        if from_new {
            moves.push(if self.rng.one_in(2) { Move::First } else { Move::Seek(self.key(f)) });
            let run = if self.rng.one_in(2) { self.below(30) } else { 0 };
            moves.extend((0..run).map(|_| Move::Next));
        }
        for _ in 0..self.below(8) + 1 {
            moves.push(match self.rng.below(16) {
                0 => Move::First,
                1 => Move::Last,
                2 | 3 => Move::Seek(self.key(f)),
                4 | 5 => Move::SeekForPrev(self.key(f)),
                6..11 => Move::Next,
                _ => Move::Prev,
            });
        }
        moves
    }

    /// A slot that is taken (or free) among some; `None` if there is none.
    fn slot<T>(slots: &[Option<T>], taken: bool, rng: &mut Rng) -> Option<usize> {
        let fit: Vec<usize> = (0..slots.len()).filter(|i| slots[*i].is_some() == taken).collect();
        if fit.is_empty() { None } else { Some(fit[rng.below(fit.len() as u64) as usize]) }
    }

    /// A snapshot to read at, or now.
    fn moment(&mut self) -> Option<usize> {
        let i = self.below(SNAPSHOTS * 2);
        (i < SNAPSHOTS && self.world.snapshots[i].is_some()).then_some(i)
    }

    // Operations.

    fn step(&mut self) {
        let op = match self.rng.below(10_000) {
            0..4000 => Op::Write(self.write()),
            4000..4400 => self.batch(),
            4400..6300 => {
                let f = self.family();
                Op::Get(f, self.key(f))
            }
            6300..6450 => {
                let f = self.family();
                Op::GetInAllWays(f, self.key(f))
            }
            6450..6750 => {
                let f = self.family();
                let n = self.below(30);
                Op::MultiGet(f, (0..n).map(|_| self.key(f)).collect())
            }
            6750..7350 => {
                let range = self.range();
                let moves = self.moves(range.family, true);
                Op::Iterate(range, self.moment(), moves)
            }
            7350..8500 => return self.at_held_moments(),
            8500..8900 => return self.transactions(),
            8900..9500 => Op::Housekeeping,
            9500..9800 => Op::Advance(self.rng.below(300)),
            9800..9815 => Op::Flush(if self.rng.one_in(2) { None } else { Some(self.family()) }),
            9815..9820 => self.compact(),
            9820..9850 => return self.change_families(),
            9850..9855 => Op::Reopen,
            9855..9858 => Op::Copy,
            9858..9861 => {
                let f = self.family();
                Op::ReadOnly(f, (0..20).map(|_| self.key(f)).collect())
            }
            9861..9864 => Op::Scan(self.moment()),
            _ => Op::Housekeeping,
        };
        self.emit(op);
    }

    fn batch(&mut self) -> Op {
        let most = if self.rng.one_in(20) { 200 } else { 8 };
        let n = self.below(most);
        Op::Batch((0..n).map(|_| self.write_among_others()).collect())
    }

    fn at_held_moments(&mut self) {
        let f = self.family();
        let free = Self::slot(&self.world.snapshots, false, &mut self.rng);
        let held = Self::slot(&self.world.snapshots, true, &mut self.rng);
        let free_cursor = Self::slot(&self.world.cursors, false, &mut self.rng);
        let cursor = Self::slot(&self.world.cursors, true, &mut self.rng);
        let op = match self.rng.below(115) {
            0..10 => free.map(Op::Snapshot),
            10..20 => held.map(Op::DropSnapshot),
            20..55 => held.map(|s| Op::GetAt(s, f, self.key(f))),
            55..63 => {
                let back = self.rng.below(REMEMBERED.min(self.world.at + 1));
                Some(Op::GetBefore(back, f, self.key(f)))
            }
            63..69 => free_cursor.map(|c| {
                let range = self.range();
                Op::Hold(c, range, self.moment())
            }),
            69..74 => cursor.map(Op::DropHeld),
            74..76 => cursor.filter(|c| self.family_of_cursor_lives(*c)).map(Op::Refresh),
            _ => cursor.map(|c| {
                let slot = self.world.cursors[c].as_ref().expect("taken").slot;
                let there = self.world.families[slot].is_some();
                Op::MoveHeld(c, self.moves(if there { slot } else { 0 }, false))
            }),
        };
        if let Some(op) = op {
            self.emit(op);
        }
    }

    fn family_of_cursor_lives(&self, c: usize) -> bool {
        let cursor = self.world.cursors[c].as_ref().expect("taken");
        self.world.families[cursor.slot].as_ref().is_some_and(|f| std::rc::Rc::ptr_eq(f, &cursor.family))
    }

    fn compact(&mut self) -> Op {
        let f = self.family();
        let (mut lo, mut hi) = (None, None);
        if self.rng.one_in(2) {
            let (a, b) = (self.key(f), self.key(f));
            let family = self.world.family(f);
            let sorted = family.borrow().canon(&a) <= family.borrow().canon(&b);
            (lo, hi) = if sorted { (Some(a), Some(b)) } else { (Some(b), Some(a)) };
            lo = lo.filter(|_| !self.rng.one_in(4));
            hi = hi.filter(|_| !self.rng.one_in(4));
        }
        Op::Compact(f, lo, hi)
    }

    fn change_families(&mut self) {
        let free = Self::slot(&self.world.families, false, &mut self.rng);
        let other = Self::slot(&self.world.families[1..], true, &mut self.rng).map(|f| f + 1);
        let running = self.world.txns.iter().any(Option::is_some);
        let op = match self.rng.below(30) {
            0..9 => free.map(|slot| {
                self.names += 1;
                // Names come back after their family was dropped.
                let name = format!("family-{}", self.names % 7);
                let ttl = if self.rng.one_in(8) { 5000 } else { self.world.class.ttl_ms };
                Op::CreateFamily(slot, name, self.below(self.world.class.orders.len()), ttl)
            }),
            9..14 => other.filter(|_| !running).map(Op::DropFamily),
            14..20 => other.map(|slot| Op::RenameFamily(slot, format!("renamed-{}", self.rng.below(6)))),
            _ => {
                let ms = if self.rng.one_in(3) { 1000 + self.rng.below(5000) } else { self.world.class.ttl_ms };
                Some(Op::SetTtl(self.family(), ms))
            }
        };
        if let Some(op) = op {
            self.emit(op);
        }
    }

    fn transactions(&mut self) {
        let held = Self::slot(&self.world.txns[..HELD], true, &mut self.rng);
        let free = Self::slot(&self.world.txns[..HELD], false, &mut self.rng);
        match self.rng.below(40) {
            0..5 => {
                if let Some(slot) = free {
                    // The lowest level sees what others have not committed.
                    let level = LEVELS[1 + self.below(4)];
                    self.emit(Op::Begin(slot, level, false));
                }
            }
            5..8 => {
                if let Some(slot) = held {
                    let op = if self.rng.one_in(4) { Op::Rollback(slot) } else { Op::Commit(slot) };
                    self.emit(op);
                }
            }
            8..30 => {
                if let Some(slot) = held {
                    let level = self.world.txns[slot].as_ref().expect("taken").level;
                    let op = self.txn_op(level == Isolation::Serializable);
                    self.emit(Op::InTxn(slot, op));
                }
            }
            30 => self.doubt(),
            _ => self.whole_transaction(held.is_some()),
        }
    }

    /// With nothing else in between.
    fn whole_transaction(&mut self, others: bool) {
        let level = LEVELS[self.below(5).max(usize::from(others))];
        let locking = self.rng.one_in(3);
        self.emit(Op::Begin(HELD, level, locking));
        for _ in 0..self.below(12) {
            let op = self.txn_op(false);
            self.emit(Op::InTxn(HELD, op));
        }
        let op = if self.rng.one_in(5) { Op::Rollback(HELD) } else { Op::Commit(HELD) };
        self.emit(op);
    }

    /// `checked`: all that is read must be unchanged at the commit, which is given keys here and not ranges.
    fn txn_op(&mut self, checked: bool) -> TxnOp {
        let f = self.family();
        match self.rng.below(20) {
            0..8 => TxnOp::Write(self.write_among_others()),
            8..12 => TxnOp::Get(f, self.key(f)),
            12 => TxnOp::MultiGet(f, (0..5).map(|_| self.key(f)).collect()),
            13..16 if !checked => {
                let range = self.range();
                let moves = self.moves(range.family, true);
                TxnOp::Iterate(range, moves)
            }
            13..17 => TxnOp::Savepoint(self.below(3) as u8),
            17 | 18 => TxnOp::RollbackTo(self.below(3) as u8),
            _ => TxnOp::Release(self.below(3) as u8),
        }
    }

    fn doubt(&mut self) {
        let n = 1 + self.below(6);
        let writes: Vec<Write> = (0..n)
            .map(|_| {
                let family = self.family();
                let key = self.key(family);
                let change =
                    if self.rng.one_in(4) { Change::Delete(key) } else { Change::Put(key, self.value(), None) };
                Write { family, change }
            })
            .collect();
        let (reopen, commit) = (self.rng.one_in(4), self.rng.one_in(2));
        self.emit(Op::Doubt { writes, reopen, commit });
    }
}
