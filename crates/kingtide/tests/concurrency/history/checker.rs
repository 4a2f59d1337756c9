//! Judges a history: every read of every transaction by itself, then the cycles among all of them.
//!
//! For the cycles each committed transaction is two nodes, its begin and its commit, and an edge stands for "before" among
//! these moments as far as the levels of the two promise it:
//!
//! | edge from T to U | leaves | enters |
//! |---|---|---|
//! | U overwrote T's version | T's commit | U's begin if its writes are checked (first committer wins), else its commit |
//! | U read T's version | T's commit | U's begin if its reads are of one snapshot, else its commit |
//! | T read what U overwrote | T's commit if its reads are checked or locked then, else its begin if they are of one snapshot | U's commit |
//! | U began when T's outcome was known | T's commit | U's begin |
//!
//! With all transactions serializable a cycle is one of Adya's graph; with all of them snapshot it is one without two
//! read-write edges in a row, which is what snapshot isolation excludes (Fekete and others, TODS 2005); at read committed
//! it is G1c; and with mixed levels it is a cycle that Adya's mixing-correct graph has, or one that a snapshot excludes.

use super::anomaly::{Anomaly, Report};
use super::graph::{Edge, Edges, Graph, Kinds, Node};
use super::recorded::{History, Key, Op, Outcome, OwnWrites, Txn, TxnNo, Value};
use super::versions::{Fate, NO_TXN, NOWHERE, Version, Versions, sequence};
use kingtide::Isolation;

/// Judges each transaction by its level.
pub fn check(history: &History) -> Report {
    let mut report = Report::default();
    let versions = Versions::new(history, &mut report);
    let mut checker = Checker { history, versions, edges: Edges::default(), report };
    for no in 0..history.txns.len() as TxnNo {
        checker.transaction(no);
    }
    checker.write_edges();
    let nodes = checker.real_time();
    checker.cycles(nodes);
    checker.report
}

struct Checker<'h> {
    history: &'h History,
    versions: Versions,
    edges: Edges,
    report: Report,
}

/// A read of what other transactions wrote.
#[derive(Clone, Copy)]
struct Seen {
    key: Key,
    /// The version's place.
    place: u32,
    current: bool,
    /// The key is one that a range did not have.
    absent: bool,
}

/// The reader, and which snapshots hold what it read so far.
struct Reader<'h> {
    no: TxnNo,
    txn: &'h Txn,
    committed: bool,
    own: OwnWrites,
    /// Snapshots from here on have all of it,
    from: u64,
    /// and those from here on have something newer.
    to: u64,
}

impl Reader<'_> {
    fn at_least(&self, level: Isolation) -> bool {
        self.txn.level >= level
    }

    /// The sequence number of its commit if it wrote something.
    fn commit(&self) -> Option<u64> {
        if self.committed && !self.own.all().is_empty() { sequence(self.txn) } else { None }
    }
}

fn begin(no: TxnNo) -> Node {
    2 * no
}

fn commit(no: TxnNo) -> Node {
    2 * no + 1
}

impl<'h> Checker<'h> {
    fn find(&mut self, reader: &Reader, anomaly: Anomaly, text: impl FnOnce() -> String) {
        self.find_in(reader, anomaly, false, text);
    }

    /// `current`: a read with an update in mind, which every level protects.
    fn find_in(&mut self, reader: &Reader, anomaly: Anomaly, current: bool, text: impl FnOnce() -> String) {
        if current || reader.at_least(anomaly.forbidden_from()) {
            let history = self.history;
            self.report.add(anomaly, || format!("{}\n    in {}", text(), history.describe(reader.no)));
        }
    }

    fn transaction(&mut self, no: TxnNo) {
        let txn = &self.history.txns[no as usize];
        let committed = self.versions.committed[no as usize];
        // All its writes first: a read is judged by what the transaction commits.
        let mut reader = Reader { no, txn, committed, own: OwnWrites::of(txn), from: 0, to: u64::MAX };
        let mut own = OwnWrites::default();
        for (at, op) in txn.ops.iter().enumerate() {
            match op {
                Op::Read { key, value, current } => self.register(&mut reader, &own, *key, *value, *current),
                Op::ReadList { key, list, current } => self.list(&mut reader, &own, at, *key, list, *current),
                Op::ReadRange { lo, hi, found } => self.range(&mut reader, &own, *lo..*hi, found),
                _ => {}
            }
            own.apply(at, op);
            self.repeated(&reader, at, op);
        }
        self.snapshot(&reader);
        if committed {
            self.edges.add(begin(no), commit(no), Edge::Inner);
            self.first_committer(&reader);
        }
    }

    /// A register, read by itself or in a range.
    fn register(&mut self, reader: &mut Reader<'h>, own: &OwnWrites, key: Key, value: Option<Value>, current: bool) {
        if let Some(write) = own.last(key) {
            if write.value != value {
                let text = || format!("register {key} is {value:?} after it wrote {:?}", write.value);
                self.find(reader, Anomaly::Internal, text);
            }
            return;
        }
        match value {
            Some(value) => {
                if let Some(place) = self.value(reader, key, value, true) {
                    self.seen(reader, Seen { key, place, current, absent: false });
                }
            }
            None => self.absent(reader, key, current, false),
        }
    }

    fn list(&mut self, reader: &mut Reader<'h>, own: &OwnWrites, at: usize, key: Key, list: &[Value], current: bool) {
        let appended = own.appended(key);
        if !appended.is_empty() {
            // The list that it appended to is the one that it read last.
            let first = own.all().iter().find(|w| w.key == key).map_or(at, |w| w.op);
            let base = reader.txn.ops[..first].iter().rev().find_map(|op| match op {
                Op::ReadList { key: k, list, .. } if *k == key => Some(&list[..]),
                _ => None,
            });
            if list.strip_suffix(&appended[..]).is_none_or(|rest| base.is_some_and(|base| base != rest)) {
                self.find(reader, Anomaly::Internal, || {
                    format!("list {key} is {list:?} after it appended {appended:?}")
                });
            }
            return;
        }
        let mut place = Some(0);
        for (i, elem) in list.iter().enumerate() {
            place = self.value(reader, key, *elem, i + 1 == list.len());
        }
        if let Some(place) = place {
            self.seen(reader, Seen { key, place, current, absent: false });
        }
    }

    fn range(&mut self, reader: &mut Reader<'h>, own: &OwnWrites, keys: std::ops::Range<Key>, found: &[(Key, Value)]) {
        let in_order = found.windows(2).all(|w| w[0].0 < w[1].0) && found.iter().all(|f| keys.contains(&f.0));
        if !in_order {
            self.find(reader, Anomaly::Garbage, || format!("range {keys:?} gave {found:?}"));
            return;
        }
        let mut rest = found;
        for key in keys {
            match rest.split_first().filter(|f| f.0.0 == key) {
                Some((hit, others)) => {
                    rest = others;
                    self.register(reader, own, key, Some(hit.1), false);
                }
                None if own.last(key).is_some() => self.register(reader, own, key, None, false),
                None => self.absent(reader, key, false, true),
            }
        }
    }

    /// A value that was read. Returns its version's place. `last`: no later element shows that its writer had finished.
    fn value(&mut self, reader: &Reader, key: Key, value: Value, last: bool) -> Option<u32> {
        let written = self.versions.written(value);
        if written.fate == Fate::Unwritten || written.key != key {
            self.find(reader, Anomaly::Garbage, || format!("key {key} held {value}, which no transaction wrote there"));
            return None;
        }
        let unknown = self.history.txns[written.txn as usize].outcome == Outcome::Unknown;
        if written.fate == Fate::Aborted && (reader.committed || !unknown) {
            self.find(reader, Anomaly::AbortedRead, || format!("key {key} held {value} of T{}", written.txn));
        }
        if written.fate == Fate::Intermediate && last {
            self.find(reader, Anomaly::IntermediateRead, || format!("key {key} held {value} of T{}", written.txn));
        }
        (written.place != NOWHERE).then_some(written.place)
    }

    /// A register that was not there. Only where it is plain which of its absences that was there is more to say.
    fn absent(&mut self, reader: &mut Reader<'h>, key: Key, current: bool, absent: bool) {
        if self.versions.is_vague(key) || !current && !reader.at_least(Isolation::ReadCommitted) {
            return;
        }
        let versions = self.versions.of(key);
        let known = if reader.txn.reads_snapshot(current) {
            reader.txn.snapshot.map(|s| (self.versions.at(key, s), Anomaly::WrongSnapshot))
        } else if current || reader.txn.locks_reads() {
            reader.commit().map(|c| (self.versions.at(key, c - 1), Anomaly::LostUpdate))
        } else {
            None
        };
        let place = match known {
            Some((place, anomaly)) if versions[place as usize].value != 0 => {
                let value = versions[place as usize].value;
                let text = || format!("register {key} was absent, not {value}");
                self.find_in(reader, anomaly, current, text);
                return;
            }
            Some((place, _)) => place,
            None => match self.only_absence(reader, key) {
                Some(place) => place,
                None => return,
            },
        };
        self.seen(reader, Seen { key, place, current, absent });
    }

    /// The one version without value that the reader can have seen. None at all is reported.
    fn only_absence(&mut self, reader: &Reader, key: Key) -> Option<u32> {
        let versions = self.versions.of(key);
        // What was there at its begin, and everything until its end.
        let first = reader.txn.snapshot.map_or(0, |s| self.versions.at(key, s));
        let began = |v: &Version| {
            v.txn == NO_TXN || self.history.txns[v.txn as usize].begin < reader.txn.end && v.txn != reader.no
        };
        let candidates = versions[first as usize..].iter().take_while(|v| began(v));
        let mut empty = candidates.enumerate().filter(|(_, v)| v.value == 0);
        let found = empty.next().map(|(i, _)| first + i as u32);
        let several = empty.next().is_some();
        if found.is_none() {
            self.find(reader, Anomaly::StaleRead, || format!("register {key} was absent, but never during its life"));
        }
        found.filter(|_| !several)
    }

    /// A version of another transaction, or of the start.
    fn seen(&mut self, reader: &mut Reader<'h>, seen: Seen) {
        if !seen.current && !reader.at_least(Isolation::ReadCommitted) {
            return;
        }
        let versions = self.versions.of(seen.key);
        let version = versions[seen.place as usize];
        let later = versions[seen.place as usize + 1..].iter().filter(|v| v.txn != version.txn);
        let next = later.clone().next().copied();
        let after = later.clone().find(|v| v.txn != reader.no).map(|v| v.txn);
        // A version whose writer's outcome was not told has a place, but no number of its own.
        let history = self.history;
        let numbered = |v: &Version| v.txn == NO_TXN || sequence(&history.txns[v.txn as usize]).is_some();
        let next_number = later.clone().find(|v| numbered(v)).map_or(u64::MAX, |v| v.seq);
        if reader.txn.reads_snapshot(seen.current) || reader.txn.locks_reads() {
            reader.from = reader.from.max(if numbered(&version) { version.seq } else { 0 });
            reader.to = reader.to.min(next_number);
        }
        let key = seen.key;
        if let Some(next) = next.filter(|n| n.txn != reader.no) {
            let replaced = &self.history.txns[next.txn as usize];
            if sequence(replaced).is_some() && replaced.end < reader.txn.begin {
                let text = || format!("key {key} was {} long after T{} wrote {}", version.value, next.txn, next.value);
                self.find(reader, Anomaly::StaleRead, text);
            }
            if reader.commit().is_some_and(|c| next_number < c) {
                let text = || format!("key {key} was {}, T{} wrote {} before it", version.value, next.txn, next.value);
                self.find_in(reader, Anomaly::NotSerial, seen.current, text);
            }
        }
        if let Some(c) = reader.commit().filter(|c| numbered(&version) && version.seq > *c) {
            let text = || format!("key {key} was {}, committed as {}, it as {c}", version.value, version.seq);
            self.find(reader, Anomaly::SequenceDisagrees, text);
        }
        let own = reader.commit().and_then(|c| self.versions.place_of(key, reader.no, c));
        if let Some(own) = own.filter(|own| *own != seen.place + 1) {
            let text = || format!("key {key} was {}, version {}, its own is {own}", version.value, seen.place);
            if own <= seen.place {
                self.find(reader, Anomaly::SequenceDisagrees, text);
            } else {
                self.find_in(reader, Anomaly::LostUpdate, seen.current, text);
            }
        }
        if reader.committed {
            self.read_edges(reader, seen, version.txn, after);
        }
    }

    /// Edges between the writer of a version, its reader, and the writer of the version after it.
    fn read_edges(&mut self, reader: &Reader, seen: Seen, writer: TxnNo, after: Option<TxnNo>) {
        let level = reader.txn.level;
        let (write_read, read_write) = match seen.absent {
            true => (Edge::WritePredicate, Edge::PredicateWrite),
            false => (Edge::WriteRead, Edge::ReadWrite),
        };
        let of_snapshot = reader.txn.reads_snapshot(seen.current);
        if writer != NO_TXN && writer != reader.no {
            let to = if of_snapshot { begin(reader.no) } else { commit(reader.no) };
            self.edges.add(commit(writer), to, write_read);
        }
        let Some(after) = after else { return };
        // What was read for update is checked by a commit, and a transaction that wrote nothing has none.
        if level == Isolation::Serializable || seen.current && reader.commit().is_some() {
            self.edges.add(commit(reader.no), commit(after), read_write);
        } else if of_snapshot {
            self.edges.add(begin(reader.no), commit(after), read_write);
        }
    }

    /// Plain reads of a key repeat.
    fn repeated(&mut self, reader: &Reader, at: usize, op: &Op) {
        if !reader.at_least(Isolation::RepeatableRead) {
            return;
        }
        let ops = &reader.txn.ops;
        let touches =
            |key: Key| move |o: &Op| matches!(o, Op::Write { key: k, .. } | Op::Append { key: k, .. } if *k == key);
        let (key, before) = match op {
            Op::Read { key, current: false, .. } => {
                (*key, ops[..at].iter().find(|o| matches!(o, Op::Read { key: k, current: false, .. } if k == key)))
            }
            Op::ReadList { key, current: false, .. } => {
                (*key, ops[..at].iter().find(|o| matches!(o, Op::ReadList { key: k, current: false, .. } if k == key)))
            }
            _ => return,
        };
        if let Some(before) = before.filter(|b| *b != op)
            && !ops[..at].iter().any(touches(key))
        {
            self.find(reader, Anomaly::NonRepeatable, || format!("first {before:?}, then {op:?}"));
        }
    }

    /// One snapshot, the one that the transaction names, holds all that it read.
    fn snapshot(&mut self, reader: &Reader) {
        let (from, to) = (reader.from, reader.to);
        if from >= to {
            self.find(reader, Anomaly::Fractured, || format!("some of it from {from} on, some only before {to}"));
        } else if let Some(snapshot) = reader.txn.snapshot.filter(|s| !(from..to).contains(s))
            && !reader.txn.locks_reads()
        {
            self.find(reader, Anomaly::WrongSnapshot, || format!("{snapshot}, but its reads fit {from}..{to}"));
        }
    }

    /// No other transaction wrote its keys since its snapshot.
    fn first_committer(&mut self, reader: &Reader) {
        let (Some(snapshot), Some(commit)) = (reader.txn.snapshot, reader.commit()) else { return };
        if !reader.txn.checks_writes() {
            return;
        }
        for write in reader.own.all() {
            let Some(place) = self.versions.place_of(write.key, reader.no, commit) else { continue };
            let before = self.versions.of(write.key)[place as usize - 1];
            if before.txn != NO_TXN && before.seq > snapshot {
                let text = || format!("key {}: T{} wrote it as {}", write.key, before.txn, before.seq);
                self.find(reader, Anomaly::ConcurrentWrites, text);
            }
        }
    }

    fn write_edges(&mut self) {
        for versions in self.versions.keys() {
            for pair in versions.windows(2).filter(|p| p[0].txn != NO_TXN && p[0].txn != p[1].txn) {
                let winner = self.history.txns[pair[1].txn as usize].checks_writes();
                let to = if winner { begin(pair[1].txn) } else { commit(pair[1].txn) };
                self.edges.add(commit(pair[0].txn), to, Edge::WriteWrite);
            }
        }
    }

    /// Real time as a chain of nodes, so that the edges are as many as the transactions. Returns how many nodes there are.
    fn real_time(&mut self) -> usize {
        let mut events: Vec<(u64, bool, TxnNo)> = Vec::new();
        for (no, txn) in self.history.txns.iter().enumerate().filter(|(no, _)| self.versions.committed[*no]) {
            events.push((txn.begin, false, no as TxnNo));
            if sequence(txn).is_some() {
                events.push((txn.end, true, no as TxnNo));
            }
        }
        events.sort_unstable();
        let mut node = 2 * self.history.txns.len() as Node;
        let mut used = false;
        for (_, end, no) in events {
            if end && used {
                self.edges.add(node, node + 1, Edge::RealTime);
                node += 1;
                used = false;
            }
            if end {
                self.edges.add(commit(no), node, Edge::RealTime);
            } else {
                self.edges.add(node, begin(no), Edge::RealTime);
                used = true;
            }
        }
        node as usize + 1
    }

    fn cycles(&mut self, nodes: usize) {
        self.report.edges = self.edges.len();
        let graph = Graph::new(nodes, &self.edges);
        for component in graph.cycles(Kinds::ALL) {
            let part = graph.within(&component);
            let (anomaly, cycle) = classify(&part);
            let history = self.history;
            self.report.add(anomaly, || {
                let mut text = String::from("a cycle");
                for (place, edge) in &cycle {
                    let node = component[*place as usize];
                    let txn = node / 2;
                    if (txn as usize) < history.txns.len() {
                        let moment = if node % 2 == 0 { "begin" } else { "commit" };
                        text += &format!("\n    {moment} of {}\n      then {edge:?}", history.describe(txn));
                    }
                }
                text
            });
        }
    }
}

/// The gravest anomaly of a component: cycles with fewer kinds of edges first, and those without real time before all.
fn classify(part: &Graph) -> (Anomaly, Vec<(Node, Edge)>) {
    let write = Kinds::of(&[Edge::WriteWrite]);
    let read = Kinds::of(&[Edge::WriteRead, Edge::WritePredicate]);
    let item = Kinds::of(&[Edge::ReadWrite]);
    let anti = item.or(Kinds::of(&[Edge::PredicateWrite]));
    let inner = Kinds::of(&[Edge::Inner]);
    for passing in [inner, inner.or(Kinds::of(&[Edge::RealTime]))] {
        let flow = write.or(read).or(passing);
        let searches = [
            (Anomaly::DirtyWrite, write, write.or(passing)),
            (Anomaly::CircularFlow, read, flow),
            (Anomaly::SingleAnti, anti, flow),
            (Anomaly::WriteSkew, item, flow.or(item)),
            (Anomaly::Phantom, anti, flow.or(anti)),
        ];
        for (anomaly, first, rest) in searches {
            let Some(cycle) = part.cycle(first, rest) else { continue };
            let edges: Vec<Edge> = cycle.iter().map(|c| c.1).filter(|e| *e != Edge::Inner).collect();
            let adjacent = (0..edges.len()).any(|i| edges[i].is_anti() && edges[(i + 1) % edges.len()].is_anti());
            let several = matches!(anomaly, Anomaly::WriteSkew | Anomaly::Phantom);
            return (if several && !adjacent { Anomaly::NonadjacentAnti } else { anomaly }, cycle);
        }
    }
    unreachable!("a component without a cycle")
}
