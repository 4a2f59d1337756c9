//! What a store may hold after a kill, and what is wrong with what it does hold.
//!
//! The contents at the last check and the mutations since then are known. What is found must be what some order of the
//! acknowledged mutations and of any of those in flight leaves behind, each done at once and at a moment between its
//! two stamps. That falls into two questions.
//!
//! **Each key by itself.** What a key holds must have been written by a mutation W, or be what it held before, and no
//! mutation of that key that was acknowledged may have begun after W had ended. There is an order in which W comes last
//! on that key if and only if that holds.
//!
//! **All keys together** (`order.rs`). Where only one mutation explains what a key holds, that one came after all other
//! writers of the key; where one ended before another began, it came first. These must not contradict each other. That
//! makes batches and transactions all or nothing: part of one shows as "it came after what was there before, for its
//! first key shows, and before it, for its second does not".
//!
//! Mutations in flight that show nowhere are taken not to have happened. A key whose contents several mutations explain
//! (two deletes, say) is only checked by itself, which can hide a torn batch but never accuses a store that is right.

use super::journal::{Mutation, Op, Print};
use super::order::Order;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Keys and what they hold.
pub type Contents = BTreeMap<Vec<u8>, Print>;

/// The keys that mutations were about: each that one names, and those of `known` in a range that was deleted.
pub fn touched(known: &Contents, mutations: &[Mutation]) -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    for op in mutations.iter().flat_map(|m| &m.ops) {
        match op {
            Op::Put(key, _) | Op::Delete(key) => drop(keys.insert(key.clone())),
            Op::DeleteRange(from, to) if from < to => {
                keys.extend(known.range(from.clone()..to.clone()).map(|(k, _)| k.clone()))
            }
            Op::DeleteRange(..) => {}
        }
    }
    keys
}

/// What kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged mutation is gone.
    Lost,
    /// A key holds what it never held, or exists though it was never written.
    Wrong,
    /// A batch or transaction is there in part, or mutations took effect in an order that cannot be.
    Torn,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub fault: Fault,
    /// In words.
    pub what: String,
}

/// What a check comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong; empty if all is well.
    pub findings: Vec<Finding>,
    /// Mutations that were acknowledged.
    pub acknowledged: u64,
    /// Operations of them.
    pub operations: u64,
    /// Mutations that were in flight when their process was killed.
    pub in_flight: u64,
    /// Those of them that show.
    pub shown: u64,
}

/// What a mutation leaves of a key: its number, and the value or nothing.
type Write = (usize, Option<Print>);

/// Judges what was found. O(n log n) in keys and operations.
pub fn check(before: &Contents, mutations: &[Mutation], found: &Contents) -> Verdict {
    let acknowledged = mutations.iter().filter(|m| m.acknowledged);
    let mut verdict = Verdict {
        acknowledged: acknowledged.clone().count() as u64,
        operations: acknowledged.map(|m| m.ops.len() as u64).sum(),
        ..Verdict::default()
    };
    verdict.in_flight = mutations.len() as u64 - verdict.acknowledged;
    let writes = writes_by_key(before, mutations);
    let mut last = Vec::new();
    for (key, writers) in &writes {
        let key_verdict = explain(mutations, before.get(*key), writers, found.get(*key));
        match key_verdict {
            Explained::By(writer) => last.push((*key, writer)),
            Explained::InSeveralWays => {}
            Explained::NotAtAll(fault, what) => verdict.add(fault, key, &what),
        }
    }
    for (key, print) in before.iter().filter(|(key, _)| !writes.contains_key(&key[..])) {
        match found.get(key) {
            Some(p) if p == print => {}
            Some(p) => verdict.add(Fault::Wrong, key, &format!("holds {}, which was never written", show(Some(p)))),
            None => verdict.add(Fault::Lost, key, "is gone, though it was never deleted"),
        }
    }
    for (key, print) in found.iter().filter(|(k, _)| !writes.contains_key(&k[..]) && !before.contains_key(*k)) {
        verdict.add(Fault::Wrong, key, &format!("holds {}, which was never written", show(Some(print))));
    }
    let order = Order { mutations, writes: &writes, last: &last };
    verdict.shown = order.shown().filter(|m| !mutations[*m].acknowledged).count() as u64;
    verdict.findings.extend(order.contradiction().map(|what| Finding { fault: Fault::Torn, what }));
    verdict
}

impl Verdict {
    fn add(&mut self, fault: Fault, key: &[u8], what: &str) {
        self.findings.push(Finding { fault, what: format!("key '{}' {what}", key.escape_ascii()) });
    }
}

/// For each key that was written since the last check, which mutations wrote it and what each left behind, by number.
fn writes_by_key<'a>(before: &'a Contents, mutations: &'a [Mutation]) -> HashMap<&'a [u8], Vec<Write>> {
    let mut writes: HashMap<&[u8], Vec<Write>> = HashMap::new();
    let ranges = mutations.iter().flat_map(|m| &m.ops).any(|op| matches!(op, Op::DeleteRange(..)));
    let mut keys: Vec<&[u8]> = Vec::new();
    if ranges {
        // A range is a delete of each key that there was: of no other can it be told whether it was deleted.
        keys.extend(before.keys().map(Vec::as_slice));
        keys.extend(mutations.iter().flat_map(|m| &m.ops).filter_map(|op| match op {
            Op::Put(key, _) => Some(key.as_slice()),
            _ => None,
        }));
        keys.sort_unstable();
        keys.dedup();
    }
    let mut add = |key, write: Write| {
        let of_key = writes.entry(key).or_default();
        match of_key.last_mut() {
            // Within a mutation the last operation on a key counts.
            Some(last) if last.0 == write.0 => *last = write,
            _ => of_key.push(write),
        }
    };
    for (number, op) in mutations.iter().enumerate().flat_map(|(n, m)| m.ops.iter().map(move |op| (n, op))) {
        match op {
            Op::Put(key, print) => add(key, (number, Some(*print))),
            Op::Delete(key) => add(key, (number, None)),
            Op::DeleteRange(from, to) => {
                let (from, to) = (keys.partition_point(|k| *k < &from[..]), keys.partition_point(|k| *k < &to[..]));
                keys.get(from..to).unwrap_or_default().iter().for_each(|key| add(key, (number, None)));
            }
        }
    }
    writes
}

enum Explained {
    /// Only by this mutation coming last, or only by none having happened.
    By(Option<usize>),
    InSeveralWays,
    NotAtAll(Fault, String),
}

/// Which mutations can have written what `found` says of one key.
fn explain(all: &[Mutation], before: Option<&Print>, writers: &[Write], found: Option<&Print>) -> Explained {
    let acknowledged = || writers.iter().filter(|(w, _)| all[*w].acknowledged);
    // Whatever had ended by then was overwritten.
    let newest = acknowledged().max_by_key(|(w, _)| all[*w].begun);
    let overwritten_to = newest.map_or(0, |(w, _)| all[*w].begun);
    let same = || writers.iter().filter(|(_, left)| left.as_ref() == found);
    let mut explanations =
        same().filter(|(w, _)| all[*w].ended >= overwritten_to).map(|(w, _)| Some(*w)).collect::<Vec<_>>();
    if newest.is_none() && before == found {
        explanations.push(None);
    }
    match (&explanations[..], newest) {
        ([only], _) => Explained::By(*only),
        ([], Some((_, left))) => {
            let expected = left.map_or("its deletion".to_owned(), |p| show(Some(&p)));
            if same().next().is_some() || before == found {
                let what = format!("holds {}, though {expected} was acknowledged after that", show(found));
                return Explained::NotAtAll(Fault::Lost, what);
            }
            if found.is_none() {
                let what = format!("is gone, though {expected} was acknowledged and it was never deleted");
                return Explained::NotAtAll(Fault::Lost, what);
            }
            Explained::NotAtAll(Fault::Wrong, format!("holds {}, which was never written", show(found)))
        }
        ([], None) if found.is_none() => {
            Explained::NotAtAll(Fault::Lost, "is gone, though it was never deleted".into())
        }
        ([], None) => Explained::NotAtAll(Fault::Wrong, format!("holds {}, which was never written", show(found))),
        _ => Explained::InSeveralWays,
    }
}

/// A value, or that there is none, for people.
fn show(print: Option<&Print>) -> String {
    print.map_or("nothing".into(), |p| format!("{} bytes with hash {:016x}", p.len, p.hash))
}
