//! A process of a recorded history: random transactions against a database, one after the other.

use super::recorded::{Key, Op, Outcome, Txn, Value};
use kingtide::{ColumnFamily, Db, Error, ErrorKind, Isolation, Result, Transaction, TransactionOptions, WriteBatch};
use kingtide_base::hash::mix64;
use kingtide_base::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub const FAMILIES: [&str; 3] = ["default", "a", "b"];
/// Registers of each family.
const REGISTERS: Key = 24;
/// All registers; the keys after them are lists.
pub const LISTS: Key = REGISTERS * FAMILIES.len() as Key;
/// Transactions that share a list before the next one has its turn, and lists in use at a time.
const TURN: u64 = 60;
const IN_USE: u64 = 5;

/// What all processes share.
pub struct World {
    pub clock: AtomicU64,
    pub values: AtomicU32,
    /// Transactions begun.
    pub begun: AtomicU64,
    pub stop: AtomicBool,
}

impl World {
    pub fn new() -> World {
        World {
            clock: AtomicU64::new(0),
            values: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// SeqCst: the order of these numbers is taken for the order in which things happened.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn value(&self) -> Value {
        self.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The first list that is still unused.
    pub fn unused(&self) -> Key {
        LISTS + (self.begun.load(Ordering::Relaxed) / TURN + IN_USE) as Key
    }
}

/// A transaction with the name that it was prepared under, if it was.
pub struct Recorded {
    pub txn: Txn,
    pub xid: Option<Vec<u8>>,
}

/// A family, and the name of a key in it. Registers of a family are next to each other.
pub fn locate(key: Key) -> (usize, [u8; 5]) {
    let (family, letter) = if key < LISTS { (key / REGISTERS, b'r') } else { (key % FAMILIES.len() as Key, b'l') };
    let k = key.to_be_bytes();
    (family as usize, [letter, k[0], k[1], k[2], k[3]])
}

fn key_in(name: &[u8]) -> Key {
    Key::from_be_bytes(name[1..].try_into().expect("a key of this test"))
}

/// A register's bytes: its value and something that depends on it, now and then long enough for a value log.
fn register_bytes(value: Value) -> Vec<u8> {
    let hash = mix64(value as u64);
    let more = if hash.is_multiple_of(8) { 300 + hash % 500 } else { hash % 60 };
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend((0..more).map(|i| (hash >> (i % 7 * 8)) as u8));
    bytes
}

pub fn register_in(bytes: &[u8]) -> Value {
    let value = bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    assert!(bytes == register_bytes(value), "these bytes are no register: {bytes:?}");
    value
}

pub fn list_in(bytes: &[u8]) -> Box<[Value]> {
    assert!(bytes.len().is_multiple_of(4), "these bytes are no list: {bytes:?}");
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four"))).collect()
}

fn list_bytes(list: &[Value]) -> Vec<u8> {
    list.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub struct Worker<'w> {
    pub world: &'w World,
    pub db: &'w Db,
    pub families: &'w [ColumnFamily],
    pub process: u32,
    /// Levels, and whether with locks, that a transaction may have.
    pub kinds: &'w [(Isolation, bool)],
    pub rng: Rng,
    pub recorded: Vec<Recorded>,
}

/// What a transaction does next.
struct Savepoint {
    operations: usize,
    set: bool,
}

impl Worker<'_> {
    /// Runs until so many transactions were begun in the world, or it is stopped.
    pub fn run(mut self, until: u64) -> Vec<Recorded> {
        while !self.world.stop.load(Ordering::Relaxed) && self.world.begun.fetch_add(1, Ordering::Relaxed) < until {
            if self.rng.one_in(25) {
                self.plain_write();
            } else {
                self.transaction();
            }
        }
        self.recorded
    }

    fn options(&mut self) -> TransactionOptions {
        let (isolation, locking) = self.kinds[self.rng.below(self.kinds.len() as u64) as usize];
        let wait = self.rng.below(30);
        TransactionOptions::new(isolation).locking(locking).lock_timeout(Duration::from_millis(wait))
    }

    fn transaction(&mut self) {
        let options = self.options();
        let (level, locking) = (options.isolation, options.locking);
        let begin = self.world.tick();
        let mut t = self.db.begin_with(options).expect("begin");
        let mut ops = Vec::new();
        let mut xid = None;
        let result = self.operate(&mut t, &mut ops);
        // A locking transaction takes it with its first operation, and may move it until its last.
        let snapshot = Some(t.snapshot_sequence());
        let result = result.and_then(|()| self.finish(t, &mut ops, &mut xid));
        let outcome = result.unwrap_or_else(|e| {
            assert!(e.is_transient_conflict() || e.kind() == ErrorKind::Aborted, "{level} {locking} {ops:?}: {e}");
            Outcome::Aborted
        });
        let end = self.world.tick();
        let txn = Txn { process: self.process, level, locking, begin, end, snapshot, outcome, ops };
        self.recorded.push(Recorded { txn, xid });
    }

    /// A batch outside of any transaction: blind writes that become visible together.
    fn plain_write(&mut self) {
        let mut batch = WriteBatch::new();
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let key = self.register();
            let (family, name) = locate(key);
            let value = self.world.value();
            batch.put(&self.families[family], &name, &register_bytes(value)).expect("put");
            ops.push(Op::Write { key, value: Some(value) });
        }
        let begin = self.world.tick();
        let outcome = match self.db.write(batch) {
            Ok(seq) => Outcome::Committed(seq),
            Err(e) if e.is_transient_conflict() => Outcome::Aborted,
            Err(e) => panic!("a plain write: {e}"),
        };
        let (end, level) = (self.world.tick(), Isolation::ReadCommitted);
        let txn = Txn { process: self.process, level, locking: false, begin, end, snapshot: None, outcome, ops };
        self.recorded.push(Recorded { txn, xid: None });
    }

    fn register(&mut self) -> Key {
        // Some more often than others.
        let below = if self.rng.one_in(3) { 6 } else { LISTS as u64 };
        (self.rng.below(below) as Key * 13) % LISTS
    }

    fn list(&mut self) -> Key {
        LISTS + (self.world.begun.load(Ordering::Relaxed) / TURN + self.rng.below(IN_USE)) as Key
    }

    fn operate(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let mut savepoint = Savepoint { operations: 0, set: false };
        for _ in 0..1 + self.rng.below(6) {
            if self.rng.one_in(2) {
                std::thread::yield_now();
            }
            match self.rng.below(100) {
                0..28 => self.read(t, ops)?,
                28..38 => self.read_protected(t, ops)?,
                38..41 => self.read_many(t, ops)?,
                41..57 => self.put(t, ops)?,
                57..62 => self.delete(t, ops)?,
                62..64 => self.delete_range(t, ops)?,
                64..76 => self.read_range(t, ops)?,
                76..82 => self.read_list(t, ops, false).map(|_| ())?,
                82..94 => self.append(t, ops)?,
                94..97 => {
                    t.set_savepoint("here")?;
                    savepoint = Savepoint { operations: ops.len(), set: true };
                }
                _ if savepoint.set => {
                    t.rollback_to_savepoint("here")?;
                    ops.push(Op::RollBack { to: savepoint.operations });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let key = self.register();
        let (family, name) = locate(key);
        let value = t.get(&self.families[family], &name)?.map(|v| register_in(&v));
        ops.push(Op::Read { key, value, current: false });
        Ok(())
    }

    fn read_protected(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let key = self.register();
        let (family, name) = locate(key);
        let family = &self.families[family];
        let found = if self.rng.one_in(3) { t.get_for_share(family, &name) } else { t.get_for_update(family, &name) };
        let value = found?.map(|v| register_in(&v));
        // At the other levels, what was read would not be of a snapshot any more.
        let current = t.isolation() != Isolation::Snapshot || !self.rng.one_in(4) || !t.unlock_last()?;
        ops.push(Op::Read { key, value, current });
        Ok(())
    }

    fn read_many(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let family = self.rng.below(FAMILIES.len() as u64) as usize;
        let keys: Vec<Key> =
            (0..3).map(|_| family as Key * REGISTERS + self.rng.below(REGISTERS as u64) as Key).collect();
        let names: Vec<[u8; 5]> = keys.iter().map(|k| locate(*k).1).collect();
        for (key, found) in keys.into_iter().zip(t.multi_get(&self.families[family], &names)) {
            ops.push(Op::Read { key, value: found?.map(|v| register_in(&v)), current: false });
        }
        Ok(())
    }

    fn put(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let (key, value) = (self.register(), self.world.value());
        let (family, name) = locate(key);
        // Before the call: others may see it at once.
        ops.push(Op::Write { key, value: Some(value) });
        t.put(&self.families[family], &name, &register_bytes(value))
    }

    fn delete(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let key = self.register();
        let (family, name) = locate(key);
        ops.push(Op::Write { key, value: None });
        t.delete(&self.families[family], &name)
    }

    /// A few registers next to each other.
    fn span(&mut self) -> (usize, Key, Key) {
        let lo = self.register();
        let (family, _) = locate(lo);
        let hi = (lo + 1 + self.rng.below(8) as Key).min((family as Key + 1) * REGISTERS);
        (family, lo, hi)
    }

    fn delete_range(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let (family, lo, hi) = self.span();
        let end = [b"r".as_slice(), &hi.to_be_bytes()].concat();
        ops.extend((lo..hi).map(|key| Op::Write { key, value: None }));
        t.delete_range(&self.families[family], &locate(lo).1[..]..&end)
    }

    fn read_range(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let (family, lo, hi) = self.span();
        let (start, end) = (locate(lo).1, [b"r".as_slice(), &hi.to_be_bytes()].concat());
        let mut it = t.cursor(&self.families[family], &start[..]..&end[..])?;
        let back = self.rng.one_in(4);
        if back {
            it.seek_to_last()
        } else {
            it.seek_to_first()
        }
        let mut found = Vec::new();
        while it.valid() {
            let key = key_in(it.key());
            found.push((key, register_in(it.value()?)));
            if back { it.prev() } else { it.next() }
        }
        it.status()?;
        if back {
            found.reverse();
        }
        ops.push(Op::ReadRange { lo, hi, found: found.into() });
        Ok(())
    }

    fn read_list(&mut self, t: &mut Transaction, ops: &mut Vec<Op>, current: bool) -> Result<(Key, Box<[Value]>)> {
        let key = self.list();
        let (family, name) = locate(key);
        let family = &self.families[family];
        let found = if current { t.get_for_update(family, &name) } else { t.get(family, &name) };
        let list = found?.map_or_else(Default::default, |v| list_in(&v));
        ops.push(Op::ReadList { key, list: list.clone(), current });
        Ok((key, list))
    }

    /// Reads a list and puts it back with one element more. Only a protected read makes that safe below snapshot.
    fn append(&mut self, t: &mut Transaction, ops: &mut Vec<Op>) -> Result<()> {
        let current = t.isolation() < Isolation::Snapshot || self.rng.one_in(2);
        let (key, list) = self.read_list(t, ops, current)?;
        let elem = self.world.value();
        let (family, name) = locate(key);
        ops.push(Op::Append { key, elem });
        t.put(&self.families[family], &name, &list_bytes(&[&list[..], &[elem]].concat()))
    }

    fn finish(&mut self, mut t: Transaction, ops: &mut [Op], xid: &mut Option<Vec<u8>>) -> Result<Outcome> {
        let wrote = ops.iter().any(|o| matches!(o, Op::Write { .. } | Op::Append { .. }));
        match self.rng.below(100) {
            0..6 => t.rollback().map(|()| Outcome::Aborted),
            6..7 => t.handle().abort().map(|()| Outcome::Aborted),
            7..20 => t.commit_ordered()?.wait().map(Outcome::Committed),
            20..27 if wrote => self.in_two_phases(t, xid),
            _ => t.commit().map(Outcome::Committed),
        }
    }

    fn in_two_phases(&mut self, mut t: Transaction, xid: &mut Option<Vec<u8>>) -> Result<Outcome> {
        let name = self.world.tick().to_be_bytes();
        *xid = Some(name.to_vec());
        t.prepare(&name)?;
        std::thread::yield_now();
        let unresolved = |e: Error| panic!("a prepared transaction stays in doubt: {e}");
        let outcome = match self.rng.below(6) {
            0 => t.rollback().map(|()| Outcome::Aborted),
            1 | 2 => t.commit().map(Outcome::Committed),
            other => {
                drop(t);
                match other {
                    3 => self.db.rollback_prepared(&name).map(|()| Outcome::Aborted),
                    _ => self.db.commit_prepared(&name).map(Outcome::Committed),
                }
            }
        };
        Ok(outcome.unwrap_or_else(unresolved))
    }
}
