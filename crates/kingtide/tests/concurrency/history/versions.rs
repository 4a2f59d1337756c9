//! Which versions each key had, in which order, and which transactions wrote them.
//!
//! A list's order is that of its longest read. A register's order is that of the commits' sequence numbers; what
//! transactions saw before they wrote must agree with it, which the checker asks of each.

use super::anomaly::{Anomaly, Report};
use super::recorded::{History, Key, Op, Outcome, OwnWrites, Txn, TxnNo, Value};
use kingtide::Isolation;
use std::collections::{HashMap, HashSet};

/// No transaction: the writer of the versions that were there from the start.
pub const NO_TXN: TxnNo = TxnNo::MAX;

/// One version of a key. Of a list every element counts as one.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// 0: the key is absent.
    pub value: Value,
    pub txn: TxnNo,
    /// Its commit.
    pub seq: u64,
}

/// What became of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was never written.
    Unwritten,
    Installed,
    /// Its transaction wrote the key again.
    Intermediate,
    /// Its transaction aborted, or took the write back.
    Aborted,
}

#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub txn: TxnNo,
    pub key: Key,
    pub fate: Fate,
    /// Place among the key's versions; `NOWHERE` if it has none.
    pub place: u32,
}

pub const NOWHERE: u32 = u32::MAX;

pub struct Versions {
    /// By value.
    written: Vec<Written>,
    /// By key; the first version is that of the start.
    keys: Vec<Vec<Version>>,
    /// By transaction: whether it is committed.
    pub committed: Vec<bool>,
    /// Registers that may have versions whose place is not known.
    vague: HashSet<Key>,
    absent: Vec<Version>,
}

impl Versions {
    pub fn new(history: &History, report: &mut Report) -> Versions {
        let start = vec![Version { value: 0, txn: NO_TXN, seq: 0 }];
        let mut v = Versions {
            written: values_written(history),
            keys: vec![start.clone(); key_count(history)],
            committed: Vec::new(),
            vague: HashSet::new(),
            absent: start,
        };
        v.committed = v.decide(history);
        let mut order: Vec<TxnNo> = (0..history.txns.len() as TxnNo).collect();
        order.retain(|t| history.txns[*t as usize].outcome != Outcome::Aborted);
        order.sort_by_key(|t| sequence(&history.txns[*t as usize]).unwrap_or(u64::MAX));
        let mut unread: Vec<(Key, Value)> = Vec::new();
        order.iter().for_each(|no| v.install(history, *no, &mut unread));
        v.order_lists(history, &unread, report);
        v.check_duplicates(history, report);
        v.check_finals(history, report);
        v
    }

    pub fn of(&self, key: Key) -> &[Version] {
        self.keys.get(key as usize).unwrap_or(&self.absent)
    }

    pub fn keys(&self) -> impl Iterator<Item = &[Version]> {
        self.keys.iter().map(|v| &v[..])
    }

    /// Whether a register may have versions whose place is not known.
    pub fn is_vague(&self, key: Key) -> bool {
        self.vague.contains(&key)
    }

    pub fn written(&self, value: Value) -> Written {
        let unwritten = Written { txn: NO_TXN, key: 0, fate: Fate::Unwritten, place: NOWHERE };
        self.written.get(value as usize).copied().unwrap_or(unwritten)
    }

    /// The place of the newest version up to that sequence number.
    pub fn at(&self, key: Key, seq: u64) -> u32 {
        self.of(key).partition_point(|v| v.seq <= seq).saturating_sub(1) as u32
    }

    /// The place of a transaction's first version of a key.
    pub fn place_of(&self, key: Key, txn: TxnNo, seq: u64) -> Option<u32> {
        let from = self.of(key).partition_point(|v| v.seq < seq);
        self.of(key).get(from).is_some_and(|v| v.txn == txn).then_some(from as u32)
    }

    /// Transactions of unknown outcome are committed if a committed one saw their writes.
    fn decide(&self, history: &History) -> Vec<bool> {
        let mut committed: Vec<bool> =
            history.txns.iter().map(|t| matches!(t.outcome, Outcome::Committed(_))).collect();
        if history.txns.iter().all(|t| t.outcome != Outcome::Unknown) {
            return committed;
        }
        let trusted = |no: usize| history.txns[no].level >= Isolation::ReadCommitted;
        let mut work: Vec<usize> = (0..committed.len()).filter(|t| committed[*t] && trusted(*t)).collect();
        let mut seen: Vec<Value> = Vec::new();
        if let Some(finals) = &history.finals {
            seen.extend(finals.lists.values().flat_map(|l| l.iter()));
            seen.extend(finals.registers.values().flatten());
        }
        loop {
            for value in seen.drain(..) {
                let writer = self.written(value).txn;
                if writer != NO_TXN && history.txns[writer as usize].outcome == Outcome::Unknown {
                    if !committed[writer as usize] && trusted(writer as usize) {
                        work.push(writer as usize);
                    }
                    committed[writer as usize] = true;
                }
            }
            let Some(reader) = work.pop() else { return committed };
            history.txns[reader].ops.iter().for_each(|op| values_read(op, &mut seen));
        }
    }

    /// Enters what a transaction wrote: registers in their place, elements of lists into `unread`.
    fn install(&mut self, history: &History, no: TxnNo, unread: &mut Vec<(Key, Value)>) {
        let txn = &history.txns[no as usize];
        let own = OwnWrites::of(txn);
        for (i, write) in own.all().iter().enumerate() {
            let last = own.is_last(i);
            let seq = sequence(txn);
            if seq.is_none() && !write.append {
                self.vague.insert(write.key);
            }
            if !self.committed[no as usize] {
                continue;
            }
            let value = write.value.unwrap_or(0);
            if value != 0 {
                self.written[value as usize].fate = if last { Fate::Installed } else { Fate::Intermediate };
            }
            match seq {
                _ if write.append => unread.push((write.key, value)),
                Some(seq) if last => self.push(write.key, value, no, seq),
                _ => {}
            }
        }
    }

    fn push(&mut self, key: Key, value: Value, txn: TxnNo, seq: u64) {
        let versions = &mut self.keys[key as usize];
        if value != 0 {
            self.written[value as usize].place = versions.len() as u32;
        }
        versions.push(Version { value, txn, seq });
    }

    /// Enters the elements of lists: as the longest read has them, then unread ones in the order of commits.
    fn order_lists(&mut self, history: &History, unread: &[(Key, Value)], report: &mut Report) {
        let longest = self.longest_lists(history, report);
        for (key, list) in &longest {
            for value in *list {
                let written = self.written(*value);
                let real = matches!(written.fate, Fate::Installed | Fate::Intermediate);
                if !real || written.key != *key || written.place != NOWHERE {
                    continue; // its readers are reported
                }
                let before = self.of(*key).last().map_or(0, |v| v.seq);
                // One whose outcome was not told has the sequence number of its place.
                let seq = sequence(&history.txns[written.txn as usize]).unwrap_or(before);
                if seq < before {
                    report.add(Anomaly::SequenceDisagrees, || {
                        format!("list {key}: {value}, committed as {seq}, comes after one committed as {before}")
                    });
                }
                self.push(*key, *value, written.txn, seq);
            }
        }
        let last = history.finals.as_ref().map(|f| &f.lists);
        for (key, value) in unread {
            let written = self.written(*value);
            if written.place != NOWHERE {
                continue;
            }
            if let Some(list) = last.and_then(|lists| lists.get(key)) {
                report.add(Anomaly::LostWrite, || format!("list {key}: {value} was committed and is not in {list:?}"));
                continue;
            }
            let before = self.of(*key).last().map_or(0, |v| v.seq);
            let seq = sequence(&history.txns[written.txn as usize]).unwrap_or(before);
            self.push(*key, *value, written.txn, seq);
        }
    }

    /// The longest read of each list. All others must begin it.
    fn longest_lists<'h>(&self, history: &'h History, report: &mut Report) -> HashMap<Key, &'h [Value]> {
        let mut longest: HashMap<Key, &[Value]> = HashMap::new();
        for (key, list) in list_reads(history, &self.committed) {
            let best = longest.entry(key).or_default();
            if list.len() > best.len() {
                *best = list;
            }
        }
        if let Some(finals) = &history.finals {
            longest.extend(finals.lists.iter().map(|(k, l)| (*k, &**l)));
        }
        for (key, list) in list_reads(history, &self.committed) {
            if !longest[&key].starts_with(list) {
                let text = || format!("list {key} was read as {list:?} and as {:?}", longest[&key]);
                report.add(Anomaly::IncompatibleOrder, text);
            }
        }
        longest
    }

    /// No list that was read holds an element twice.
    fn check_duplicates(&self, history: &History, report: &mut Report) {
        let mut stamps = vec![0u32; self.written.len()];
        let lists = history.txns.iter().flat_map(|t| &t.ops).filter_map(|op| match op {
            Op::ReadList { key, list, .. } => Some((*key, list)),
            _ => None,
        });
        let finals = history.finals.iter().flat_map(|f| f.lists.iter().map(|(k, l)| (*k, l)));
        for (stamp, (key, list)) in (1..).zip(lists.chain(finals)) {
            for value in list {
                let Some(last) = stamps.get_mut(*value as usize) else { continue };
                if std::mem::replace(last, stamp) == stamp {
                    report.add(Anomaly::Duplicate, || format!("list {key}: {value} is twice in {list:?}"));
                }
            }
        }
    }

    /// The last version of each key must be there in the end, and nothing that was never committed.
    fn check_finals(&self, history: &History, report: &mut Report) {
        let Some(finals) = &history.finals else { return };
        for (key, value) in finals.registers.iter().filter(|r| !self.vague.contains(r.0)) {
            let last = self.of(*key).last().map_or(0, |v| v.value);
            if value.unwrap_or(0) != last {
                let text = || format!("register {key}: {last} was committed last, in the end it is {value:?}");
                report.add(Anomaly::LostWrite, text);
            }
        }
        let lists = finals.lists.iter().flat_map(|(k, l)| l.iter().map(|v| (*k, *v)));
        let registers = finals.registers.iter().filter_map(|(k, v)| Some((*k, (*v)?)));
        for (key, value) in lists.chain(registers) {
            let written = self.written(value);
            let anomaly = match written.fate {
                _ if written.key != key => Anomaly::Garbage,
                Fate::Unwritten => Anomaly::Garbage,
                Fate::Aborted => Anomaly::AbortedRead,
                _ => continue,
            };
            report.add(anomaly, || format!("key {key} in the end holds {value}, {written:?}"));
        }
    }
}

/// The sequence number of a commit that wrote something.
pub fn sequence(txn: &Txn) -> Option<u64> {
    match txn.outcome {
        Outcome::Committed(seq) => Some(seq),
        _ => None,
    }
}

fn key_count(history: &History) -> usize {
    let own = |op: &Op| match op {
        Op::Append { key, .. } | Op::ReadList { key, .. } | Op::Write { key, .. } | Op::Read { key, .. } => *key + 1,
        Op::ReadRange { hi, .. } => *hi,
        Op::RollBack { .. } => 0,
    };
    history.txns.iter().flat_map(|t| &t.ops).map(own).max().unwrap_or(0) as usize
}

/// Which transaction wrote each value; none is installed yet.
fn values_written(history: &History) -> Vec<Written> {
    let unwritten = Written { txn: NO_TXN, key: 0, fate: Fate::Unwritten, place: NOWHERE };
    let mut all = vec![unwritten];
    for (no, txn) in history.txns.iter().enumerate() {
        for op in &txn.ops {
            let (Op::Append { key, elem: value } | Op::Write { key, value: Some(value) }) = *op else { continue };
            if all.len() <= value as usize {
                all.resize(value as usize + 1, unwritten);
            }
            assert!(value != 0 && all[value as usize].txn == NO_TXN, "value {value} is not unique");
            all[value as usize] = Written { txn: no as TxnNo, key, fate: Fate::Aborted, place: NOWHERE };
        }
    }
    all
}

fn values_read(op: &Op, into: &mut Vec<Value>) {
    match op {
        Op::ReadList { list, .. } => into.extend(&**list),
        Op::Read { value, .. } => into.extend(value),
        Op::ReadRange { found, .. } => into.extend(found.iter().map(|f| f.1)),
        _ => {}
    }
}

/// What committed transactions read of lists before they appended to them, where they were promised to see only what was
/// committed.
fn list_reads<'h, 'c>(
    history: &'h History,
    committed: &'c [bool],
) -> impl Iterator<Item = (Key, &'h [Value])> + use<'h, 'c> {
    let trusted = move |(i, t): &(usize, &Txn)| committed[*i] && t.level >= Isolation::ReadCommitted;
    let finals = history.finals.iter().flat_map(|f| f.lists.iter().map(|(k, l)| (*k, &**l)));
    let reads = |(_, t): (usize, &'h Txn)| {
        t.ops.iter().enumerate().filter_map(|(at, op)| {
            let Op::ReadList { key, list, .. } = op else { return None };
            let appended = |o: &Op| matches!(o, Op::Append { key: k, .. } if k == key);
            (!t.ops[..at].iter().any(appended)).then_some((*key, &**list))
        })
    };
    history.txns.iter().enumerate().filter(trusted).flat_map(reads).chain(finals)
}
