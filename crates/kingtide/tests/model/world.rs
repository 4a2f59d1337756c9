//! The oracle's side of a script: what every operation must answer.

use crate::model::answer::Answer;
use crate::model::ops::{CURSORS, Change, FAMILIES, HELD, Key, Move, Op, Range, SNAPSHOTS, TxnOp, Write};
use crate::model::oracle::{Canon, FamilyModel, Moment, Part, Shown, Stored, Window};
use crate::model::sets::Class;
use crate::model::txn::Txn;
use kingtide::ErrorKind;
use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;

/// Commits that can be read at without a snapshot of them.
pub const REMEMBERED: u64 = 100;

pub type Family = Rc<RefCell<FamilyModel>>;

/// An iterator as it should stand.
pub struct Cursor {
    pub family: Family,
    pub slot: usize,
    window: Window,
    at: u64,
    position: Option<Canon>,
}

pub struct World {
    pub class: &'static Class,
    pub now_ms: u64,
    /// The oracle's time: one tick for an operation that commits.
    pub at: u64,
    pub families: [Option<Family>; FAMILIES],
    pub snapshots: [Option<u64>; SNAPSHOTS],
    pub cursors: [Option<Cursor>; CURSORS],
    pub txns: [Option<Txn>; HELD + 1],
}

pub fn window(family: &FamilyModel, range: &Range) -> Window {
    let canon = |b: &Bound<Key>| b.as_ref().map(|k| family.canon(k));
    Window {
        lower: canon(&range.lower),
        upper: canon(&range.upper),
        prefix: range.prefix.as_ref().map(|p| p.0.clone()),
    }
}

/// Where a move from `here` leads; `first` and `last` find the nearest entry from a bound on.
pub fn follow(
    step: &Move,
    here: Option<Canon>,
    canon: impl Fn(&[u8]) -> Canon,
    first: impl Fn(Bound<&Canon>) -> Option<Shown>,
    last: impl Fn(Bound<&Canon>) -> Option<Shown>,
) -> Option<Shown> {
    match (step, &here) {
        (Move::First, _) => first(Bound::Unbounded),
        (Move::Last, _) => last(Bound::Unbounded),
        (Move::Seek(k), _) => first(Bound::Included(&canon(k))),
        (Move::SeekForPrev(k), _) => last(Bound::Included(&canon(k))),
        (_, None) => None,
        (Move::Next, Some(k)) => first(Bound::Excluded(k)),
        (Move::Prev, Some(k)) => last(Bound::Excluded(k)),
    }
}

impl World {
    pub fn new(class: &'static Class) -> World {
        let default = FamilyModel::new("default", class.orders[0].order(), class.ttl_ms);
        let mut families: [Option<Family>; FAMILIES] = Default::default();
        families[0] = Some(Rc::new(RefCell::new(default)));
        World {
            class,
            now_ms: crate::model::engine::START_MS,
            at: 0,
            families,
            snapshots: Default::default(),
            cursors: Default::default(),
            txns: Default::default(),
        }
    }

    pub fn now(&self) -> Moment {
        Moment { at: self.at, now_ms: self.now_ms }
    }

    pub fn family(&self, slot: usize) -> Family {
        self.families[slot].clone().expect("a family")
    }

    /// No read is at an older time.
    fn oldest(&self) -> u64 {
        let snapshots = self.snapshots.iter().flatten().copied();
        let cursors = self.cursors.iter().flatten().map(|c| c.at);
        let txns = self.txns.iter().flatten().map(|t| t.at);
        let recent = self.at.saturating_sub(REMEMBERED);
        snapshots.chain(cursors).chain(txns).chain([recent]).min().unwrap_or(recent)
    }

    /// Does a committed write at the present tick.
    pub fn change(&mut self, write: &Write, expiry: Option<u64>) -> Result<(), ErrorKind> {
        let (at, oldest) = (self.at, self.oldest());
        let family = self.family(write.family);
        let mut m = family.borrow_mut();
        match &write.change {
            Change::Put(key, value, _) => m.set(at, oldest, key, Some(Stored { bytes: value.0.clone(), expiry })),
            Change::Delete(key) | Change::SingleDelete(key) => m.set(at, oldest, key, None),
            Change::DeleteRange(start, end) => {
                let (start, end) = (m.canon(start), m.canon(end));
                if start > end {
                    return Err(ErrorKind::InvalidArgument);
                }
                m.delete_range(at, oldest, start, end);
            }
            Change::DeletePrefix(prefix) => drop(m.delete_prefix(at, oldest, prefix, self.now_ms)),
        }
        Ok(())
    }

    /// When what is put now expires.
    pub fn expiry(&self, write: &Write) -> Option<u64> {
        let Change::Put(_, _, ttl) = &write.change else { return None };
        let family_ttl = self.family(write.family).borrow().ttl_ms;
        ttl.or((family_ttl > 0).then_some(family_ttl)).map(|ms| self.now_ms + ms)
    }

    fn write(&mut self, write: &Write, answer: &mut Answer) {
        let expiry = self.expiry(write);
        answer.outcome(self.change(write, expiry));
    }

    fn reopened(&mut self) {
        (self.snapshots, self.cursors, self.txns) = Default::default();
        // The default family takes the options of the open, the others those that are stored.
        self.family(0).borrow_mut().ttl_ms = self.class.ttl_ms;
    }

    fn cursor(&self, range: &Range, snapshot: Option<usize>) -> Cursor {
        let family = self.family(range.family);
        let window = window(&family.borrow(), range);
        let at = snapshot.map_or(self.at, |s| self.snapshots[s].expect("a snapshot"));
        Cursor { family, slot: range.family, window, at, position: None }
    }

    fn scan(&self, at: u64, answer: &mut Answer) {
        for family in self.families.iter().flatten() {
            let m = family.borrow();
            answer.name(m.name.as_bytes());
            m.all(Moment { at, now_ms: self.now_ms }).for_each(|(k, v)| answer.entry(Some((&k, &v))));
        }
    }

    /// Does an operation and says what it must answer.
    pub fn apply(&mut self, op: &Op, answer: &mut Answer) {
        match op {
            Op::Write(write) => {
                self.at += 1;
                self.write(write, answer);
            }
            Op::Batch(writes) => {
                self.at += 1;
                writes.iter().for_each(|w| self.write(w, answer));
            }
            Op::Get(f, key) => answer.value(self.family(*f).borrow().get(key, self.now()).as_deref()),
            Op::GetInAllWays(f, key) => answer.value(self.family(*f).borrow().get(key, self.now()).as_deref()),
            Op::MultiGet(f, keys) | Op::ReadOnly(f, keys) => {
                let family = self.family(*f);
                keys.iter().for_each(|k| answer.value(family.borrow().get(k, self.now()).as_deref()));
            }
            Op::GetAt(slot, f, key) => {
                let moment = Moment { at: self.snapshots[*slot].expect("a snapshot"), now_ms: self.now_ms };
                answer.value(self.family(*f).borrow().get(key, moment).as_deref());
            }
            Op::GetBefore(back, f, key) => {
                let moment = Moment { at: self.at - back, now_ms: self.now_ms };
                answer.value(self.family(*f).borrow().get(key, moment).as_deref());
            }
            Op::Scan(snapshot) => {
                self.scan(snapshot.map_or(self.at, |s| self.snapshots[s].expect("a snapshot")), answer)
            }
            Op::Copy => self.scan(self.at, answer),
            Op::Snapshot(slot) => self.snapshots[*slot] = Some(self.at),
            Op::DropSnapshot(slot) => self.snapshots[*slot] = None,
            Op::Advance(ms) => self.now_ms += ms,
            Op::Flush(_) | Op::Compact(..) | Op::Housekeeping => {}
            Op::Reopen => self.reopened(),
            Op::Iterate(..) | Op::Hold(..) | Op::MoveHeld(..) | Op::Refresh(_) | Op::DropHeld(_) => {
                self.iterate(op, answer)
            }
            Op::CreateFamily(..) | Op::DropFamily(_) | Op::RenameFamily(..) | Op::SetTtl(..) => {
                self.change_families(op, answer)
            }
            Op::Begin(..) | Op::InTxn(..) | Op::Commit(_) | Op::Rollback(_) | Op::Doubt { .. } => {
                self.transact(op, answer)
            }
        }
    }

    fn iterate(&mut self, op: &Op, answer: &mut Answer) {
        let now_ms = self.now_ms;
        match op {
            Op::Iterate(range, snapshot, moves) => {
                let mut cursor = self.cursor(range, *snapshot);
                moves.iter().for_each(|step| cursor.step(step, now_ms, answer));
            }
            Op::Hold(slot, range, snapshot) => self.cursors[*slot] = Some(self.cursor(range, *snapshot)),
            Op::MoveHeld(slot, moves) => {
                let cursor = self.cursors[*slot].as_mut().expect("an iterator");
                moves.iter().for_each(|step| cursor.step(step, now_ms, answer));
            }
            Op::Refresh(slot) => {
                let cursor = self.cursors[*slot].as_mut().expect("an iterator");
                (cursor.at, cursor.position) = (self.at, None);
            }
            Op::DropHeld(slot) => self.cursors[*slot] = None,
            other => unreachable!("{other:?}"),
        }
    }

    fn change_families(&mut self, op: &Op, answer: &mut Answer) {
        let taken = |name: &String| self.families.iter().flatten().any(|f| f.borrow().name == *name);
        match op {
            Op::CreateFamily(_, name, ..) | Op::RenameFamily(_, name) if taken(name) => {
                answer.outcome(Err(ErrorKind::Exists));
            }
            Op::CreateFamily(slot, name, order, ttl_ms) => {
                let model = FamilyModel::new(name, self.class.orders[*order].order(), *ttl_ms);
                self.families[*slot] = Some(Rc::new(RefCell::new(model)));
                answer.outcome(Ok(()));
            }
            Op::RenameFamily(slot, name) => {
                self.family(*slot).borrow_mut().name.clone_from(name);
                answer.outcome(Ok(()));
            }
            Op::DropFamily(slot) => {
                self.families[*slot] = None;
                answer.outcome(Ok(()));
            }
            Op::SetTtl(slot, ms) => self.family(*slot).borrow_mut().ttl_ms = *ms,
            other => unreachable!("{other:?}"),
        }
    }

    fn transact(&mut self, op: &Op, answer: &mut Answer) {
        match op {
            Op::Begin(slot, level, _) => self.txns[*slot] = Some(Txn::new(*level, self.at)),
            Op::InTxn(slot, op) => {
                let mut txn = self.txns[*slot].take().expect("a transaction");
                self.in_txn(&mut txn, op, answer);
                self.txns[*slot] = Some(txn);
            }
            Op::Rollback(slot) => self.txns[*slot] = None,
            Op::Commit(slot) => {
                let txn = self.txns[*slot].take().expect("a transaction");
                self.at += 1;
                let conflict = txn.must_conflict(self);
                if !conflict {
                    for (write, expiry) in &txn.own {
                        let done = self.change(write, *expiry);
                        assert!(done.is_ok());
                    }
                }
                answer.outcome(if conflict { Err(ErrorKind::Conflict) } else { Ok(()) });
            }
            Op::Doubt { writes, reopen, commit } => {
                let expiries: Vec<_> = writes.iter().map(|w| self.expiry(w)).collect();
                if *reopen {
                    self.reopened();
                }
                self.at += 1;
                for (write, expiry) in writes.iter().zip(expiries).filter(|_| *commit) {
                    answer.outcome(self.change(write, expiry));
                }
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn in_txn(&mut self, txn: &mut Txn, op: &TxnOp, answer: &mut Answer) {
        match op {
            TxnOp::Write(write) => answer.outcome(txn.write(self, write)),
            TxnOp::Get(f, key) => answer.value(txn.get(self, *f, key).as_deref()),
            TxnOp::MultiGet(f, keys) => keys.iter().for_each(|k| answer.value(txn.get(self, *f, k).as_deref())),
            TxnOp::Iterate(range, moves) => txn.iterate(self, range, moves, answer),
            TxnOp::Savepoint(name) => txn.savepoints.push((*name, txn.own.len())),
            TxnOp::RollbackTo(name) => answer.outcome(txn.rollback_to(*name)),
            TxnOp::Release(name) => answer.outcome(txn.release(*name)),
        }
    }
}

impl Cursor {
    fn step(&mut self, step: &Move, now_ms: u64, answer: &mut Answer) {
        let m = self.family.borrow();
        let moment = Moment { at: self.at, now_ms };
        let first = |from: Bound<&Canon>| m.first(&self.window, from, moment);
        let last = |from: Bound<&Canon>| m.last(&self.window, from, moment);
        let shown = follow(step, self.position.take(), |k| m.canon(k), first, last);
        answer.entry(shown.as_ref().map(|(_, k, v)| (&**k, &**v)));
        self.position = shown.map(|(canon, ..)| canon);
    }
}

/// The parts that a write is about, as far as a transaction's checks are concerned.
pub fn parts(m: &FamilyModel, change: &Change) -> Part {
    match change {
        Change::Put(k, ..) | Change::Delete(k) | Change::SingleDelete(k) => Part::Key(m.canon(k)),
        Change::DeleteRange(lo, hi) => Part::Range(m.canon(lo), m.canon(hi)),
        Change::DeletePrefix(_) => unreachable!("not in a transaction of a script"),
    }
}
