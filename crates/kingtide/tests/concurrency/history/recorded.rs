//! What happened: transactions of several processes, with what each read and wrote, and how it ended.
//!
//! Two kinds of keys. A *list* key only ever gains elements at its end, so one read of it tells the order of all writes
//! before (Kingsbury and Alvaro, Elle, VLDB 2020). A *register* key is put and deleted; the order of its versions is that
//! of the sequence numbers that the engine gave to the commits. Values and elements are unique in a history and dense
//! from 1, so that a value names its writer.

use kingtide::Isolation;
use std::collections::BTreeMap;

/// A key, dense from 0; a range of keys is one in the engine's order too.
pub type Key = u32;
/// A register's value or a list's element: unique, dense from 1.
pub type Value = u32;
/// A transaction: its place in [`History::txns`].
pub type TxnNo = u32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts an element at the end of a list.
    Append { key: Key, elem: Value },
    /// Read of a list; one that is not there is empty. `current`: with an update in mind (`get_for_update`), so that it
    /// is the newest committed one on every level and must still be so at commit.
    ReadList { key: Key, list: Box<[Value]>, current: bool },
    /// Puts a register, or deletes it.
    Write { key: Key, value: Option<Value> },
    /// Read of a register.
    Read { key: Key, value: Option<Value>, current: bool },
    /// Read of all registers of `lo..hi`.
    ReadRange { lo: Key, hi: Key, found: Box<[(Key, Value)]> },
    /// Takes back the writes among the operations from number `to` to here.
    RollBack { to: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the last sequence number of the commit. That of a transaction that wrote nothing says nothing.
    Committed(u64),
    Aborted,
    /// It may be committed or not: the call failed, or its caller died.
    Unknown,
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct Txn {
    /// One process runs one transaction after another.
    pub process: u32,
    pub level: Isolation,
    /// Whether it takes locks. Serializable it reads the newest committed versions then, which its locks hold still.
    pub locking: bool,
    /// A count of events that all processes share, drawn before the transaction began.
    pub begin: u64,
    /// The same, drawn after its outcome was known.
    pub end: u64,
    /// The sequence number up to which it reads if it reads of a snapshot, if known: the newest at its begin, or at a later moment if it is
    /// locking, the same for all its reads.
    pub snapshot: Option<u64>,
    pub outcome: Outcome,
    pub ops: Vec<Op>,
}

/// The newest version of each key, read when everything had ended.
#[derive(Clone, Debug, Default)]
pub struct Finals {
    pub lists: BTreeMap<Key, Box<[Value]>>,
    pub registers: BTreeMap<Key, Option<Value>>,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub txns: Vec<Txn>,
    pub finals: Option<Finals>,
}

/// What a transaction wrote to a key and did not take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnWrite {
    pub key: Key,
    /// `None` deletes.
    pub value: Option<Value>,
    pub append: bool,
    /// Which operation of the transaction.
    pub op: usize,
}

/// The writes of a transaction as they stand after some of its operations.
#[derive(Default)]
pub struct OwnWrites(Vec<OwnWrite>);

impl OwnWrites {
    /// Applies operation number `at`.
    pub fn apply(&mut self, at: usize, op: &Op) {
        match *op {
            Op::Append { key, elem } => self.0.push(OwnWrite { key, value: Some(elem), append: true, op: at }),
            Op::Write { key, value } => self.0.push(OwnWrite { key, value, append: false, op: at }),
            Op::RollBack { to } => self.0.retain(|w| w.op < to),
            _ => {}
        }
    }

    /// All that a transaction wrote, in its order.
    pub fn of(txn: &Txn) -> OwnWrites {
        let mut own = OwnWrites::default();
        txn.ops.iter().enumerate().for_each(|(at, op)| own.apply(at, op));
        own
    }

    pub fn all(&self) -> &[OwnWrite] {
        &self.0
    }

    /// The last write to a register.
    pub fn last(&self, key: Key) -> Option<&OwnWrite> {
        self.0.iter().rev().find(|w| w.key == key)
    }

    /// Whether the write at this place is the last one to its key.
    pub fn is_last(&self, place: usize) -> bool {
        self.0[place + 1..].iter().all(|w| w.key != self.0[place].key)
    }

    /// The elements appended to a list.
    pub fn appended(&self, key: Key) -> Vec<Value> {
        self.0.iter().filter(|w| w.key == key && w.append).filter_map(|w| w.value).collect()
    }
}

impl Txn {
    /// Whether it keeps its two-phase locks in place of reading a snapshot.
    pub fn locks_reads(&self) -> bool {
        self.locking && self.level == Isolation::Serializable
    }

    /// Whether a read is of the snapshot of its begin. One with an update in mind is the newest, and from snapshot on
    /// refused unless that is the snapshot's too.
    pub fn reads_snapshot(&self, current: bool) -> bool {
        match self.level {
            Isolation::ReadUncommitted | Isolation::ReadCommitted => false,
            Isolation::RepeatableRead => !current,
            Isolation::Snapshot => true,
            Isolation::Serializable => !self.locking,
        }
    }

    /// Whether what it writes must not have been written since its begin.
    pub fn checks_writes(&self) -> bool {
        self.level >= Isolation::Snapshot && !self.locks_reads()
    }
}

impl History {
    /// The same, as if all transactions had asked for that level.
    pub fn at(&self, level: Isolation) -> History {
        let mut other = self.clone();
        other.txns.iter_mut().for_each(|t| t.level = level);
        other
    }

    /// For a report: a transaction in one line, cut short.
    pub fn describe(&self, txn: TxnNo) -> String {
        let t = &self.txns[txn as usize];
        let ops = format!("{:?}", t.ops);
        let cut = ops.char_indices().nth(400).map_or(ops.len(), |c| c.0);
        format!(
            "T{txn} process {} {}{} {:?} events {}..{} snapshot {:?}: {}",
            t.process,
            t.level.name(),
            if t.locking { " locking" } else { "" },
            t.outcome,
            t.begin,
            t.end,
            t.snapshot,
            &ops[..cut]
        )
    }
}
