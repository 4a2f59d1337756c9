//! What happened, and which states a recovery may come back with.
//!
//! Logged events (commits, prepares and their ends) survive as a prefix, over all families together. A commit without log
//! (`Durability::None`) survives once its family was flushed past it, so a recovered family is described by two numbers:
//! how many events the log holds, and up to which event the family was flushed. Families themselves come and go with the
//! manifest, which is synced before the call returns.
//!
//! An event can be void: it was refused, or a power cut within the scenario took it. Before that moment, its epoch, it may
//! be found on the disk all the same.

use kingtide_base::hash::{hash64, mix64};
use std::collections::{BTreeMap, BTreeSet};

/// A family of the scenario: never reused, whatever its name.
pub type FamilyNo = usize;
/// What a reader finds in one family.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;
/// A prepared transaction's name.
pub type Xid = u32;

/// An entry that does not expire.
pub const FOREVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub enum Op {
    /// With the Unix millisecond at which it expires.
    Put(FamilyNo, Vec<u8>, Vec<u8>, u64),
    Delete(FamilyNo, Vec<u8>),
    SingleDelete(FamilyNo, Vec<u8>),
    DeleteRange(FamilyNo, Vec<u8>, Vec<u8>),
    /// The prefix, and the first key behind it.
    DeletePrefix(FamilyNo, Vec<u8>, Vec<u8>),
}

impl Op {
    pub fn family(&self) -> FamilyNo {
        match self {
            Op::Put(f, ..) | Op::Delete(f, _) | Op::SingleDelete(f, _) => *f,
            Op::DeleteRange(f, ..) | Op::DeletePrefix(f, ..) => *f,
        }
    }
}

/// A family's entries with their expiry, and the hash of what is visible at one time.
#[derive(Clone, Debug)]
pub struct State {
    entries: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    /// What expired by then is not seen.
    now: u64,
    pub hash: u64,
}

fn entry_hash(key: &[u8], value: &[u8]) -> u64 {
    mix64(hash64(key) ^ mix64(hash64(value)).rotate_left(1))
}

/// A hash that is zero for nothing and the exclusive or over the entries.
pub fn hash_of(contents: &Contents) -> u64 {
    contents.iter().fold(0, |h, (k, v)| h ^ entry_hash(k, v))
}

impl State {
    pub fn at(now: u64) -> State {
        State { entries: BTreeMap::new(), now, hash: 0 }
    }

    fn flip(&mut self, key: &[u8], entry: &(Vec<u8>, u64)) {
        if entry.1 > self.now {
            self.hash ^= entry_hash(key, &entry.0);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.entries.remove(key) {
            self.flip(key, &old);
        }
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(_, key, value, expiry) => {
                self.remove(key);
                let entry = (value.clone(), *expiry);
                self.flip(key, &entry);
                self.entries.insert(key.clone(), entry);
            }
            Op::Delete(_, key) | Op::SingleDelete(_, key) => self.remove(key),
            Op::DeleteRange(_, start, end) | Op::DeletePrefix(_, start, end) => {
                let gone: Vec<Vec<u8>> = self.entries.range(start.clone()..end.clone()).map(|e| e.0.clone()).collect();
                gone.iter().for_each(|key| self.remove(key));
            }
        }
    }

    /// Whether there is an entry, expired or not.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    /// What puts all of it into another family.
    pub fn puts(&self, family: FamilyNo) -> Vec<Op> {
        self.entries.iter().map(|(k, (v, expiry))| Op::Put(family, k.clone(), v.clone(), *expiry)).collect()
    }

    /// The entries that expire after `now`.
    pub fn visible(&self, now: u64) -> Contents {
        self.entries.iter().filter(|e| e.1.1 > now).map(|(k, v)| (k.clone(), v.0.clone())).collect()
    }
}

#[derive(Clone, Debug)]
pub enum What {
    Commit {
        ops: Vec<Op>,
        /// It went to the log: any durability but `None`, and every batch over several families.
        logged: bool,
    },
    /// The log names the files, and these hold the operations.
    Ingest(Vec<Op>),
    /// A new family of that name, whose files hold these operations.
    Clone(String, Vec<Op>),
    Prepare(Xid, Vec<Op>),
    End(Xid, bool),
}

impl What {
    pub fn is_logged(&self) -> bool {
        !matches!(self, What::Commit { logged: false, .. })
    }
}

#[derive(Clone, Debug)]
pub struct Event {
    pub what: What,
    /// From this epoch on it never happened.
    pub void_from: Option<u64>,
    /// The sequence number of its last operation, if the call told.
    pub sequence: u64,
}

/// What the caller was told so far. Events are counted from 1.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Events begun.
    pub begun: usize,
    /// The last logged event acknowledged: survives the process.
    pub process: usize,
    /// The last event acknowledged to survive a power cut.
    pub power: usize,
    /// The same event, if it survives only because a commit asked for `Interval` itself; else 0.
    pub own_interval: usize,
    /// By family: the last event that a flush was acknowledged for.
    pub flushed: BTreeMap<FamilyNo, usize>,
    /// Families by name.
    pub families: BTreeMap<String, FamilyNo>,
    /// The same after the change that is under way.
    pub changing: Option<BTreeMap<String, FamilyNo>>,
    /// Grows with each event that turned out void.
    pub epoch: u64,
    /// Copies that were acknowledged, and the one that is being made.
    pub copies: Vec<Copy>,
    pub copying: Option<Copy>,
}

impl Progress {
    /// The first `n` events survive a power cut. `own`: only because a commit asked for `Interval` itself.
    pub fn synced(&mut self, n: usize, own: bool) {
        if n > self.power || n == self.power && !own {
            (self.power, self.own_interval) = (n, if own { n } else { 0 });
        }
    }
}

/// A checkpoint or a backup.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Number of the checkpoint, or id of the backup.
    pub number: u64,
    pub is_backup: bool,
    /// The moment it was made at: events, epoch, families.
    pub events: usize,
    pub epoch: u64,
    pub families: BTreeMap<String, FamilyNo>,
}

/// What a database holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub contents: BTreeMap<FamilyNo, Contents>,
    /// Transactions in doubt and the number of their writes.
    pub in_doubt: BTreeMap<Xid, u64>,
}

/// Which state was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Events of the log.
    pub logged: usize,
    /// By family: the event it was flushed to, as far as that can be told.
    pub flushed: BTreeMap<FamilyNo, usize>,
}

/// All events of a scenario.
#[derive(Default)]
pub struct History {
    pub events: Vec<Event>,
}

/// The hashes of all states that families can be found in, in one epoch and read at one time.
pub struct Tables {
    families: Vec<FamilyTable>,
    pub epoch: u64,
    pub now: u64,
}

struct FamilyTable {
    /// The family's unlogged commits, 0 first, each with the hashes of the states after it: by events of the log.
    by_flush: Vec<(usize, Vec<u64>)>,
}

impl FamilyTable {
    fn hash(&self, logged: usize, flushed: usize) -> Option<u64> {
        let (_, hashes) = self.by_flush.iter().find(|(f, _)| *f == flushed)?;
        hashes.get(logged.checked_sub(flushed)?).copied()
    }
}

impl History {
    fn counts(event: &Event, epoch: u64) -> bool {
        event.void_from.is_none_or(|from| epoch < from)
    }

    /// The operations that event `n` makes visible.
    fn writes(&self, n: usize) -> &[Op] {
        match &self.events[n - 1].what {
            What::Commit { ops, .. } | What::Ingest(ops) | What::Clone(_, ops) => ops,
            What::Prepare(..) | What::End(_, false) => &[],
            What::End(xid, true) => self.prepared(*xid),
        }
    }

    /// What a transaction prepared.
    pub fn prepared(&self, xid: Xid) -> &[Op] {
        let found = self.events.iter().rev().find_map(|e| match &e.what {
            What::Prepare(x, ops) if *x == xid => Some(ops),
            _ => None,
        });
        found.expect("prepared before it ends")
    }

    /// Whether a family is a clone that was made by an event after `events`: a snapshot from before it may show anything.
    pub fn is_cloned_after(&self, family: FamilyNo, events: usize) -> bool {
        let makes_it = |e: &Event| matches!(&e.what, What::Clone(_, ops) if ops.iter().any(|op| op.family() == family));
        self.events[events..].iter().any(makes_it)
    }

    /// A family after the first events: those of the log up to `logged`, all up to `flushed`.
    pub fn state(&self, family: FamilyNo, logged: usize, flushed: usize, epoch: u64, now: u64) -> State {
        let mut state = State::at(now);
        for n in 1..=logged.max(flushed) {
            let event = &self.events[n - 1];
            if Self::counts(event, epoch) && (n <= flushed || event.what.is_logged()) {
                self.writes(n).iter().filter(|op| op.family() == family).for_each(|op| state.apply(op));
            }
        }
        state
    }

    /// The transactions in doubt after the first events, with what they prepared.
    pub fn in_doubt(&self, events: usize, epoch: u64) -> BTreeSet<Xid> {
        let mut all = BTreeSet::new();
        for event in self.events[..events].iter().filter(|e| Self::counts(e, epoch)) {
            match event.what {
                What::Prepare(xid, _) => drop(all.insert(xid)),
                What::End(xid, _) => drop(all.remove(&xid)),
                What::Commit { .. } | What::Ingest(_) | What::Clone(..) => {}
            }
        }
        all
    }

    pub fn tables(&self, epoch: u64, now: u64) -> Tables {
        let all = (1..=self.events.len()).flat_map(|n| self.writes(n));
        let count = all.map(|op| op.family() + 1).max().unwrap_or(0);
        Tables { families: (0..count).map(|family| self.table(family, epoch, now)).collect(), epoch, now }
    }

    fn table(&self, family: FamilyNo, epoch: u64, now: u64) -> FamilyTable {
        let touches = |n: &usize| self.writes(*n).iter().any(|op| op.family() == family);
        let there: Vec<usize> =
            (1..=self.events.len()).filter(|n| Self::counts(&self.events[n - 1], epoch) && touches(n)).collect();
        let unlogged = there.iter().copied().filter(|n| !self.events[n - 1].what.is_logged());
        let by_flush = std::iter::once(0).chain(unlogged).map(|flushed| {
            let mut state = self.state(family, flushed, flushed, epoch, now);
            let mut hashes = vec![state.hash];
            let mut next = there.iter().copied().filter(|n| *n > flushed).peekable();
            for logged in flushed + 1..=self.events.len() {
                if next.next_if_eq(&logged).is_some() && self.events[logged - 1].what.is_logged() {
                    let of_family = self.writes(logged).iter().filter(|op| op.family() == family);
                    of_family.for_each(|op| state.apply(op));
                }
                hashes.push(state.hash);
            }
            (flushed, hashes)
        });
        FamilyTable { by_flush: by_flush.collect() }
    }

    /// Up to where a family that is found like that was flushed, if the log holds `logged` events.
    fn fits(tables: &Tables, family: FamilyNo, hash: u64, logged: usize, progress: &Progress) -> Option<usize> {
        let Some(table) = tables.families.get(family) else { return (hash == 0).then_some(0) }; // never written to
        let at_least = progress.flushed.get(&family).copied().unwrap_or(0);
        // The last one that must be there: later ones may be.
        let floor = table.by_flush.iter().rev().map(|t| t.0).find(|f| *f <= at_least).unwrap_or(0);
        let mut possible = table.by_flush.iter().map(|t| t.0).filter(|f| *f >= floor && *f <= logged);
        possible.rfind(|f| table.hash(logged, *f) == Some(hash))
    }

    /// Which state was found: at least so many events of the log, and not more than were begun. `None` if the history
    /// allows no such state.
    pub fn recovered(&self, tables: &Tables, found: &Found, at_least: usize, progress: &Progress) -> Option<Recovered> {
        assert_eq!(tables.epoch, progress.epoch);
        let hashes: Vec<(FamilyNo, u64)> = found.contents.iter().map(|(f, c)| (*f, hash_of(c))).collect();
        let try_one = |n: usize| {
            let fits = |(f, h): &(FamilyNo, u64)| Some((*f, Self::fits(tables, *f, *h, n, progress)?));
            let flushed: BTreeMap<_, _> = hashes.iter().map(fits).collect::<Option<_>>()?;
            let in_doubt = self.in_doubt(n, progress.epoch);
            (in_doubt.iter().eq(found.in_doubt.keys())).then_some(Recovered { logged: n, flushed })
        };
        let at_most = progress.begun;
        let recovered = (at_least..=at_most).rev().find_map(try_one)?;
        for (xid, writes) in &found.in_doubt {
            let there = self.prepared(*xid).iter().filter(|op| found.contents.contains_key(&op.family()));
            assert_eq!(there.count() as u64, *writes, "writes of transaction {xid}, which is in doubt");
        }
        Some(recovered)
    }

    /// Fails, and says which family holds what it should not.
    pub fn explain(&self, tables: &Tables, found: &Found, at_least: usize, progress: &Progress) -> ! {
        println!("recovered is no prefix of at least {at_least} events; {progress:?}");
        println!("in doubt: {:?}, was {:?}", found.in_doubt, self.in_doubt(progress.begun, progress.epoch));
        for (family, contents) in &found.contents {
            let hash = hash_of(contents);
            let fits: Vec<usize> =
                (0..=progress.begun).filter(|n| Self::fits(tables, *family, hash, *n, progress).is_some()).collect();
            println!("family {family}, {} keys, is as after these numbers of events: {fits:?}", contents.len());
            let begun = progress.begun;
            let expected = self.state(*family, begun, begun, progress.epoch, tables.now).visible(tables.now);
            let differs: Vec<_> = expected
                .keys()
                .chain(contents.keys())
                .filter(|k| expected.get(*k) != contents.get(*k))
                .map(|k| String::from_utf8_lossy(k).into_owned())
                .collect();
            println!("  differs from the last of them in {differs:?}");
        }
        panic!("not a prefix");
    }
}
