//! What the database must hold: families, and for each lane the keys that it owns.
//!
//! A *lane* is a writing thread with keys of its own in every family, so that the state of a lane's keys is a function of
//! the lane's *units* (atomic groups of operations, numbered from 1) alone, and at most one of them is in flight when the
//! process is killed. Lanes meet at the accounts: counters in the default family that transactions of all lanes change,
//! whose value is the sum of what each lane's committed units added.

use kingtide::KeyOrder;
use kingtide_base::coding::{Reader, put_slice, put_varint};
use kingtide_base::hash::mix64;
use std::collections::BTreeMap;
use std::ops::Range;

/// Writing threads of a child.
pub const LANES: usize = 5;
/// Counters that transactions of all lanes change.
pub const ACCOUNTS: usize = 8;
/// The default family.
pub const DEFAULT: u32 = 0;
/// In place of a lane in the keys that another build writes through `kt`.
pub const FOREIGN: u8 = 0xee;
/// In place of a lane in the keys of the accounts.
pub const ACCOUNT: u8 = 0xef;

/// Slot that changes with each unit that changes an account, and with some others.
pub const MARKER: u16 = 0;
/// Slots that are put once and then deleted with a single delete.
pub const ONCE: Range<u16> = 1000..1016;
/// Slots that only prepared transactions write, [`PREPARED_SLOTS`] for each that may be in doubt.
pub const PREPARED: u16 = 2000;
/// See [`PREPARED`].
pub const PREPARED_SLOTS: u16 = 6;
/// Prepared transactions that a lane may have in doubt.
pub const MOST_PREPARED: u8 = 4;

/// The ordinary slots of a family: every eighth family is large.
pub fn slots(uid: u32) -> u16 {
    if uid.is_multiple_of(8) { 300 } else { 30 + (mix64(u64::from(uid)) % 50) as u16 }
}

/// A key of a lane in a family.
pub type Place = (u32, u16);

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What wrote it: lane, unit and operation. Its value is made of that.
    pub id: u64,
    /// When it expires, in milliseconds since 1970; 0 for never.
    pub expires: u64,
}

/// The id of what operation `op` of a unit puts.
pub fn entry_id(lane: usize, unit: u64, op: usize) -> u64 {
    (lane as u64) << 56 | unit << 12 | (op as u64 & 0xfff)
}

/// An id for a message.
pub fn show_id(id: u64) -> String {
    format!("lane {} unit {} operation {}", id >> 56, id >> 12 & 0xfff_ffff_ffff, id & 0xfff)
}

/// The orders that families have.
pub fn order(code: u8) -> KeyOrder {
    match code {
        1 => KeyOrder::Reverse,
        2 => KeyOrder::U64,
        _ => KeyOrder::Bytewise,
    }
}

/// The bytes of a key.
pub fn key(order: u8, lane: u8, slot: u16) -> Vec<u8> {
    if order == 2 {
        return (u64::from(lane) << 32 | u64::from(slot)).to_le_bytes().to_vec();
    }
    let [hi, lo] = slot.to_be_bytes();
    let mut key = vec![lane, hi, lo];
    let h = mix64(u64::from(lane) << 16 | u64::from(slot));
    let filler = if h.is_multiple_of(32) { 120 } else { h % 20 };
    key.extend((0..filler).map(|i| b'a' + ((h >> (i % 48)) % 26) as u8));
    key
}

/// Lane and slot of a key, if it is one.
pub fn parse_key(order: u8, bytes: &[u8]) -> Option<(u8, u16)> {
    let (lane, slot) = if order == 2 {
        let n = u64::from_le_bytes(bytes.try_into().ok()?);
        (u8::try_from(n >> 32).ok()?, u16::try_from(n & 0xffff_ffff).ok()?)
    } else {
        (*bytes.first()?, u16::from_be_bytes([*bytes.get(1)?, *bytes.get(2)?]))
    };
    (key(order, lane, slot) == bytes).then_some((lane, slot))
}

/// The bounds, in the family's order, of the slots `from..to` of a lane; `from` is at least 1 in reverse order.
pub fn bounds(order: u8, lane: u8, from: u16, to: u16) -> (Vec<u8>, Vec<u8>) {
    let short = |slot: u16| [&[lane][..], &slot.to_be_bytes()].concat();
    match order {
        // What follows the slot in a key is a letter.
        1 => ([short(to.saturating_sub(1)), vec![0xff]].concat(), [short(from.saturating_sub(1)), vec![0xff]].concat()),
        2 => (key(2, lane, from), key(2, lane, to)),
        _ => (short(from), short(to)),
    }
}

/// Fills `out` with the value of an entry.
pub fn value_into(id: u64, slot: u16, out: &mut Vec<u8>) {
    out.clear();
    let h = mix64(id ^ u64::from(slot) << 40);
    let len = match h % 512 {
        0 => 9_000 + (h >> 20) % 60_000,
        1..24 => 300 + (h >> 20) % 1_700,
        _ => (h >> 20) % 90,
    };
    out.extend_from_slice(&id.to_le_bytes());
    let mut word = h;
    let random = h.is_multiple_of(3);
    for i in 0..len.div_ceil(8) {
        word = if random { mix64(word) } else { h ^ (i & 7) };
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// The id that stands in a value.
pub fn id_in(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// One operation of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a slot; with an expiry unless that is 0.
    Put(u32, u16, u64),
    Delete(u32, u16),
    SingleDelete(u32, u16),
    /// Deletes slots from the first up to, and without, the second.
    DeleteRange(u32, u16, u16),
    /// The same for the 256 slots whose high byte this is.
    DeletePrefix(u32, u8),
    /// Adds to an account.
    Add(u8, i64),
}

impl Op {
    /// The family that it changes.
    pub fn family(&self) -> u32 {
        match self {
            Op::Put(f, ..) | Op::Delete(f, _) | Op::SingleDelete(f, _) => *f,
            Op::DeleteRange(f, ..) | Op::DeletePrefix(f, _) => *f,
            Op::Add(..) => DEFAULT,
        }
    }

    /// The slots that it deletes, if it deletes a range.
    pub fn range(&self) -> Option<(u32, Range<u16>)> {
        match self {
            Op::DeleteRange(f, from, to) => Some((*f, *from..*to)),
            Op::DeletePrefix(f, hi) => Some((*f, u16::from(*hi) << 8..(u16::from(*hi) + 1) << 8)),
            _ => None,
        }
    }
}

/// What a unit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Its operations.
    Commit(Vec<Op>),
    /// Prepares a transaction with these operations under one of the lane's numbers.
    Prepare(u8, Vec<Op>),
    /// Commits or rolls back the prepared transaction of that number.
    Decide(u8, bool),
}

impl Work {
    /// All operations of a unit.
    pub fn ops(&self) -> &[Op] {
        match self {
            Work::Commit(ops) | Work::Prepare(_, ops) => ops,
            Work::Decide(..) => &[],
        }
    }
}

/// What takes effect together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Counted from 1 in each lane.
    pub n: u64,
    pub work: Work,
    /// It went to the log, so that an acknowledgement means that it survives.
    pub logged: bool,
}

/// The name of a prepared transaction.
pub fn xid(lane: usize, number: u8, unit: u64) -> Vec<u8> {
    format!("lane-{lane}-{number}-{unit}").into_bytes()
}

/// A transaction in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The unit that prepared it.
    pub unit: u64,
    pub ops: Vec<Op>,
}

/// What a lane wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// The last unit that was begun.
    pub last: u64,
    pub keys: BTreeMap<Place, Entry>,
    /// What its committed units added to the accounts.
    pub sums: [i64; ACCOUNTS],
    pub prepared: BTreeMap<u8, Prepared>,
}

impl Lane {
    /// Applies operations of a unit, those of families that `there` names.
    pub fn apply_ops(&mut self, lane: usize, unit: u64, ops: &[Op], there: impl Fn(&Op) -> bool) {
        for (i, op) in ops.iter().enumerate().filter(|(_, op)| there(op)) {
            match op {
                Op::Put(f, slot, expires) => {
                    self.keys.insert((*f, *slot), Entry { id: entry_id(lane, unit, i), expires: *expires });
                }
                Op::Delete(f, slot) | Op::SingleDelete(f, slot) => {
                    self.keys.remove(&(*f, *slot));
                }
                Op::DeleteRange(..) | Op::DeletePrefix(..) => {
                    let Some((f, slots)) = op.range() else { continue };
                    let gone: Vec<Place> =
                        self.keys.range((f, slots.start)..(f, slots.end)).map(|(place, _)| *place).collect();
                    gone.iter().for_each(|place| {
                        self.keys.remove(place);
                    });
                }
                Op::Add(account, by) => self.sums[usize::from(*account)] += by,
            }
        }
    }

    /// The operations that a unit makes visible, with the unit that their values name.
    pub fn writes<'a>(&'a self, unit: &'a Unit) -> (u64, &'a [Op]) {
        match &unit.work {
            Work::Commit(ops) => (unit.n, ops),
            Work::Decide(number, true) => self.prepared.get(number).map_or((unit.n, &[]), |p| (p.unit, &p.ops)),
            Work::Prepare(..) | Work::Decide(_, false) => (unit.n, &[]),
        }
    }

    /// What a unit does to the transactions in doubt.
    pub fn apply_prepared(&mut self, unit: &Unit) {
        match &unit.work {
            Work::Commit(_) => {}
            Work::Prepare(number, ops) => {
                self.prepared.insert(*number, Prepared { unit: unit.n, ops: ops.clone() });
            }
            Work::Decide(number, _) => {
                self.prepared.remove(number);
            }
        }
    }

    /// Applies a whole unit.
    pub fn apply(&mut self, lane: usize, unit: &Unit, there: impl Fn(&Op) -> bool) {
        let (of, ops) = self.writes(unit);
        let ops = ops.to_vec();
        self.apply_ops(lane, of, &ops, there);
        self.apply_prepared(unit);
    }

    /// Forgets a family.
    pub fn forget(&mut self, uid: u32) {
        self.keys.retain(|place, _| place.0 != uid);
    }
}

/// A column family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    pub name: String,
    /// See [`order`].
    pub order: u8,
}

/// A change of the set of families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Create(u32, Family),
    Drop(u32),
    Rename(u32, String),
    /// From, to, the name of the clone.
    Clone(u32, u32, String),
}

/// What the database must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Of the child that wrote it.
    pub session: u64,
    /// By a number that is never used again.
    pub families: BTreeMap<u32, Family>,
    pub next_uid: u32,
    pub lanes: Vec<Lane>,
}

impl State {
    /// A database that was not created yet.
    pub fn new() -> State {
        let default = Family { name: "default".to_owned(), order: 0 };
        State {
            session: 0,
            families: BTreeMap::from([(DEFAULT, default)]),
            next_uid: 1,
            lanes: vec![Lane::default(); LANES],
        }
    }

    /// Applies a change of the set of families.
    pub fn change(&mut self, change: &Change) {
        match change {
            Change::Create(uid, family) => drop(self.families.insert(*uid, family.clone())),
            Change::Drop(uid) => {
                self.families.remove(uid);
                self.lanes.iter_mut().for_each(|lane| lane.forget(*uid));
            }
            Change::Rename(uid, name) => {
                if let Some(family) = self.families.get_mut(uid) {
                    family.name.clone_from(name);
                }
            }
            Change::Clone(from, to, name) => {
                let Some(source) = self.families.get(from) else { return };
                let family = Family { name: name.clone(), order: source.order };
                self.families.insert(*to, family);
                for lane in &mut self.lanes {
                    let copied: Vec<(Place, Entry)> =
                        lane.keys.range((*from, 0)..=(*from, u16::MAX)).map(|((_, s), e)| ((*to, *s), *e)).collect();
                    lane.keys.extend(copied);
                }
            }
        }
        if let Change::Create(uid, _) | Change::Clone(_, uid, _) = change {
            self.next_uid = self.next_uid.max(uid + 1);
        }
    }
}

// The form in files.

fn put_ops(out: &mut Vec<u8>, ops: &[Op]) {
    put_varint(out, ops.len() as u64);
    for op in ops {
        let (kind, family, a, b) = match op {
            Op::Put(f, slot, expires) => (0, *f, u64::from(*slot), *expires),
            Op::Delete(f, slot) => (1, *f, u64::from(*slot), 0),
            Op::SingleDelete(f, slot) => (2, *f, u64::from(*slot), 0),
            Op::DeleteRange(f, from, to) => (3, *f, u64::from(*from), u64::from(*to)),
            Op::DeletePrefix(f, hi) => (4, *f, u64::from(*hi), 0),
            Op::Add(account, by) => (5, 0, u64::from(*account), by.cast_unsigned()),
        };
        out.push(kind);
        put_varint(out, u64::from(family));
        put_varint(out, a);
        put_varint(out, b);
    }
}

fn get_ops(r: &mut Reader<'_>) -> Option<Vec<Op>> {
    let len = r.varint()?;
    (0..len)
        .map(|_| {
            let kind = r.u8()?;
            let f = u32::try_from(r.varint()?).ok()?;
            let (a, b) = (r.varint()?, r.varint()?);
            let slot = u16::try_from(a).ok()?;
            Some(match kind {
                0 => Op::Put(f, slot, b),
                1 => Op::Delete(f, slot),
                2 => Op::SingleDelete(f, slot),
                3 => Op::DeleteRange(f, slot, u16::try_from(b).ok()?),
                4 => Op::DeletePrefix(f, u8::try_from(a).ok()?),
                5 => Op::Add(u8::try_from(a).ok()?, b.cast_signed()),
                _ => return None,
            })
        })
        .collect()
}

impl Unit {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.n);
        out.push(u8::from(self.logged));
        match &self.work {
            Work::Commit(ops) => {
                out.push(0);
                put_ops(out, ops);
            }
            Work::Prepare(number, ops) => {
                out.extend([1, *number]);
                put_ops(out, ops);
            }
            Work::Decide(number, commit) => out.extend([2, *number, u8::from(*commit)]),
        }
    }

    pub fn get(r: &mut Reader<'_>) -> Option<Unit> {
        let n = r.varint()?;
        let logged = r.u8()? != 0;
        let work = match r.u8()? {
            0 => Work::Commit(get_ops(r)?),
            1 => Work::Prepare(r.u8()?, get_ops(r)?),
            2 => Work::Decide(r.u8()?, r.u8()? != 0),
            _ => return None,
        };
        Some(Unit { n, work, logged })
    }
}

fn get_text(r: &mut Reader<'_>) -> Option<String> {
    String::from_utf8(r.slice()?.to_vec()).ok()
}

fn get_uid(r: &mut Reader<'_>) -> Option<u32> {
    u32::try_from(r.varint()?).ok()
}

impl Change {
    pub fn put(&self, out: &mut Vec<u8>) {
        let (kind, a, b, name) = match self {
            Change::Create(uid, family) => (0, *uid, u32::from(family.order), family.name.as_str()),
            Change::Drop(uid) => (1, *uid, 0, ""),
            Change::Rename(uid, name) => (2, *uid, 0, name.as_str()),
            Change::Clone(from, to, name) => (3, *from, *to, name.as_str()),
        };
        out.push(kind);
        put_varint(out, u64::from(a));
        put_varint(out, u64::from(b));
        put_slice(out, name.as_bytes());
    }

    pub fn get(r: &mut Reader<'_>) -> Option<Change> {
        let kind = r.u8()?;
        let (a, b, name) = (get_uid(r)?, get_uid(r)?, get_text(r)?);
        Some(match kind {
            0 => Change::Create(a, Family { name, order: u8::try_from(b).ok()? }),
            1 => Change::Drop(a),
            2 => Change::Rename(a, name),
            3 => Change::Clone(a, b, name),
            _ => return None,
        })
    }
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.session);
        put_varint(&mut out, u64::from(self.next_uid));
        put_varint(&mut out, self.families.len() as u64);
        for (uid, family) in &self.families {
            put_varint(&mut out, u64::from(*uid));
            out.push(family.order);
            put_slice(&mut out, family.name.as_bytes());
        }
        put_varint(&mut out, self.lanes.len() as u64);
        for lane in &self.lanes {
            put_varint(&mut out, lane.last);
            lane.sums.iter().for_each(|sum| out.extend(sum.to_le_bytes()));
            put_varint(&mut out, lane.prepared.len() as u64);
            for (number, prepared) in &lane.prepared {
                out.push(*number);
                put_varint(&mut out, prepared.unit);
                put_ops(&mut out, &prepared.ops);
            }
            put_varint(&mut out, lane.keys.len() as u64);
            for ((uid, slot), entry) in &lane.keys {
                put_varint(&mut out, u64::from(*uid));
                put_varint(&mut out, u64::from(*slot));
                out.extend(entry.id.to_le_bytes());
                put_varint(&mut out, entry.expires);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<State> {
        let r = &mut Reader::new(bytes);
        let mut state = State { session: r.varint()?, next_uid: get_uid(r)?, ..State::default() };
        for _ in 0..r.varint()? {
            let (uid, order, name) = (get_uid(r)?, r.u8()?, get_text(r)?);
            state.families.insert(uid, Family { name, order });
        }
        for _ in 0..r.varint()? {
            let mut lane = Lane { last: r.varint()?, ..Lane::default() };
            for sum in &mut lane.sums {
                *sum = r.u64()?.cast_signed();
            }
            for _ in 0..r.varint()? {
                let number = r.u8()?;
                lane.prepared.insert(number, Prepared { unit: r.varint()?, ops: get_ops(r)? });
            }
            for _ in 0..r.varint()? {
                let place = (get_uid(r)?, u16::try_from(r.varint()?).ok()?);
                lane.keys.insert(place, Entry { id: r.u64()?, expires: r.varint()? });
            }
            state.lanes.push(lane);
        }
        r.is_empty().then_some(state)
    }
}
